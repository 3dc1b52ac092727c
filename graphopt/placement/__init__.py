"""Predicts the execution provider of each node of a model without a session."""

from graphopt.placement.forecast import Forecast, NodeGroup, PlacedNode, forecast

__all__ = ["Forecast", "NodeGroup", "PlacedNode", "forecast"]
