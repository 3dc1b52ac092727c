"""Dropout."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.graph.operators.arguments import signature
from graphopt.graph.view import GraphView, attribute_int


def drops_nothing(node: ir.Node, view: GraphView) -> bool:
    """Returns whether a Dropout returns its input: it is not in training mode, or its ratio is 0."""
    if signature("Dropout", view.opset(node)).has_argument("is_test"):
        return attribute_int(node, "is_test", 0) == 1
    arguments = view.arguments(node)
    ratio, training = (
        None if (index := arguments.position(name)) is None else view.scalar(node.inputs[index])
        for name in ("ratio", "training_mode")
    )
    return arguments.position("training_mode") is None or training == 0.0 or ratio == 0.0
