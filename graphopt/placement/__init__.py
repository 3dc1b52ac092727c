"""Which provider takes which nodes of a model, said before there is a session."""

from graphopt.placement.forecast import Forecast, Group, PlacedNode, forecast

__all__ = ["Forecast", "Group", "PlacedNode", "forecast"]
