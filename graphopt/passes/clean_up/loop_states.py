"""Removes the states of a Loop that every iteration returns unchanged."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from graphopt.graph.editor import FIRST_STATE, FIRST_STATE_OUTPUT, Editor
from graphopt.graph.traversal import with_subgraphs
from graphopt.graph.view import producer_of


def remove_constant_states(node: ir.Node, editor: Editor) -> int:
    """Lets the body of a Loop read the initial values of constant states; returns the number of removed states.

    TensorFlow passes the weights of a recurrent layer as such states, and ONNX Runtime copies them in each iteration.
    """
    attribute = node.attributes.get("body")
    if attribute is None or attribute.is_ref() or attribute.type != ir.AttributeType.GRAPH:
        return 0
    body = attribute.as_graph()
    if len(body.inputs) != len(node.inputs) or not len(node.inputs) <= len(body.outputs) + 1 == len(node.outputs) + 2:
        return 0  # not valid
    constant = [i for i in range(len(node.inputs) - FIRST_STATE) if _is_constant(node, body, i)]
    if not constant or len(constant) == len(node.outputs):
        return 0
    editor.remove_loop_states(node, constant)
    return len(constant)


def _is_constant(node: ir.Node, body: ir.Graph, i: int) -> bool:
    """Returns whether every iteration returns state `i` unchanged, and the body can read its initial value."""
    initial, state = node.inputs[FIRST_STATE + i], body.inputs[FIRST_STATE + i]
    result = body.outputs[FIRST_STATE_OUTPUT + i]
    while result is not state and (producer := producer_of(result, "Identity")) is not None:
        if (x := producer.inputs[0]) is None:
            return False
        result = x
    if result is not state or initial is None or node.outputs[i].is_graph_output():
        return False
    if any(y is state for k, y in enumerate(body.outputs) if k != FIRST_STATE_OUTPUT + i):
        return False
    return all(value is state or value.name != initial.name for value in _definitions(body))


def _definitions(body: ir.Graph) -> Iterator[ir.Value]:
    for graph in with_subgraphs(body):
        yield from graph.inputs
        yield from graph.initializers.values()
        for node in graph:
            yield from node.outputs
