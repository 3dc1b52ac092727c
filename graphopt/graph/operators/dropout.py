"""Dropout."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.graph.view import GraphView, attribute_int


def drops_nothing(node: ir.Node, view: GraphView) -> bool:
    """Whether a Dropout gives its input as it is: outside of training, or where its ratio is 0."""
    if view.opset(node) < 7:
        return attribute_int(node, "is_test", 0) == 1
    if view.opset(node) < 12:
        return True
    ratio, training = [*node.inputs[1:3], None, None][:2]
    return training is None or view.scalar(training) == 0.0 or (ratio is not None and view.scalar(ratio) == 0.0)
