"""Predicts the execution provider of each node of a model without a session."""

from graphopt.placement.forecast import Forecast, Group, PlacedNode, forecast

__all__ = ["Forecast", "Group", "PlacedNode", "forecast"]
