"""Faults in control flow and recurrence: the wrong branch, a missing iteration, a lost state, weights in a body."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.rewriting import Array
from tests.verification.planted.registry import (
    Facts,
    Patch,
    Sites,
    attribute,
    kind,
    nodes,
    set_attributes,
    set_constant,
    set_inputs,
    tap,
    where,
)  # fmt: skip


def _graph(node: onnx.NodeProto, name: str) -> onnx.GraphProto:
    graph: onnx.GraphProto = next(a.g for a in node.attribute if a.name == name)
    return graph


def _constant(patch: Patch, condition: str, value: bool) -> str:
    """Returns a constant condition; the nodes that compute the original condition are kept in the model."""
    never = patch.op("And", condition, patch.const(False, np.bool_))
    return patch.op("Not", never) if value else never


@kind("If: always the first branch")
def _(facts: Facts) -> Sites:
    for node in nodes(facts, "If"):
        yield where(node), tap(node.input[0], _constant, True)


@kind("If: always the second branch")
def _(facts: Facts) -> Sites:
    for node in nodes(facts, "If"):
        yield where(node), tap(node.input[0], _constant, False)


@kind("If: condition inverted")
def _(facts: Facts) -> Sites:
    for node in nodes(facts, "If"):
        yield where(node), tap(node.input[0], lambda patch, c: patch.op("Not", c))


def _constants(graph: onnx.GraphProto) -> Iterator[tuple[str, int, Array]]:
    for i, tensor in enumerate(graph.initializer):
        yield "initializer", i, numpy_helper.to_array(tensor)
    for i, node in enumerate(graph.node):
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            yield "node", i, numpy_helper.to_array(node.attribute[0].t)


def _set_inner(graph: onnx.GraphProto, place: str, index: int, array: Array) -> None:
    tensor = graph.initializer[index] if place == "initializer" else graph.node[index].attribute[0].t
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


@kind("a constant inside a branch or body")
def _(facts: Facts) -> Sites:
    for node in facts.nodes:
        for a in node.attribute:
            if a.type != onnx.AttributeProto.GRAPH:
                continue
            for place, index, array in _constants(a.g):
                if array.dtype.kind != "f" or not array.any():
                    continue

                def edit(
                    patch: Patch,
                    node: onnx.NodeProto = node,
                    name: str = a.name,
                    at: tuple[str, int, Array] = (place, index, array),
                ) -> None:
                    _set_inner(_graph(patch.node(node), name), at[0], at[1], at[2] * at[2].dtype.type(1.1))

                yield f"{where(node)}.{a.name} {index}", edit


@kind("a node inside a branch or body lost")
def _(facts: Facts) -> Sites:
    for node in facts.nodes:
        for a in node.attribute:
            if a.type != onnx.AttributeProto.GRAPH:
                continue
            for i, inner in enumerate(a.g.node):
                if inner.op_type in ("Relu", "Tanh", "Sigmoid", "LeakyRelu", "Exp", "Neg", "Sqrt"):

                    def edit(patch: Patch, node: onnx.NodeProto = node, name: str = a.name, i: int = i) -> None:
                        old = _graph(patch.node(node), name).node[i]
                        old.CopyFrom(helper.make_node("Identity", old.input, old.output))

                    yield f"{where(node)}.{a.name} {inner.op_type}", edit


@kind("Loop: one turn less")
def _(facts: Facts) -> Sites:
    for node in nodes(facts, "Loop"):
        if node.input[0]:

            def edit(patch: Patch, node: onnx.NodeProto = node) -> None:
                patch.tap(
                    node.input[0],
                    lambda n: patch.op("Max", patch.op("Sub", n, patch.const(1, np.int64)), patch.const(0, np.int64)),
                )

            if node.input[0] not in facts.constants:
                yield where(node), edit


@kind("Loop: at most three turns")
def _(facts: Facts) -> Sites:
    for node in nodes(facts, "Loop"):
        if node.input[0] and node.input[0] not in facts.constants:

            def edit(patch: Patch, node: onnx.NodeProto = node) -> None:
                patch.tap(node.input[0], lambda n: patch.op("Min", n, patch.const(3, np.int64)))

            yield where(node), edit


@kind("Loop: the state starts at zero")
def _(facts: Facts) -> Sites:
    for node in nodes(facts, "Loop", "Scan"):
        first = 2 if node.op_type == "Loop" else 0
        for which in range(first, len(node.input)):
            name = node.input[which]
            if facts.dtype(name).kind == "f" and facts.elem_type(name) == onnx.TensorProto.FLOAT:

                def edit(patch: Patch, node: onnx.NodeProto = node, which: int = which) -> None:
                    name = node.input[which]
                    zero = f"planted/zero_{node.output[0]}"
                    copy = patch.node(node)
                    at = list(patch.graph.node).index(copy)
                    copy.input[which] = zero
                    made = helper.make_node("Mul", [name, patch.const(0, np.float32)], [zero])
                    patch.graph.node.insert(at, made)

                yield f"{where(node)} {name}", edit
                break


@kind("Loop: condition ignored")
def _(facts: Facts) -> Sites:
    for node in nodes(facts, "Loop"):
        body = _graph(node, "body")
        condition = body.output[0].name
        maker = [i for i, n in enumerate(body.node) if condition in n.output]
        if maker and body.node[maker[0]].op_type not in ("Identity", "Constant"):

            def edit(patch: Patch, node: onnx.NodeProto = node, at: int = maker[0]) -> None:
                graph = _graph(patch.node(node), "body")
                always = helper.make_node("Identity", [graph.input[1].name], list(graph.node[at].output))
                graph.node[at].CopyFrom(always)

            yield where(node), edit


def _recurrent(facts: Facts) -> Iterator[onnx.NodeProto]:
    return nodes(facts, "LSTM", "GRU", "RNN")


@kind("recurrence: the first state ignored")
def _(facts: Facts) -> Sites:
    for node in _recurrent(facts):
        if len(node.input) > 5 and node.input[5]:
            yield where(node), set_inputs(node, [*node.input[:5], "", *node.input[6:]])


@kind("recurrence: two gates exchanged")
def _(facts: Facts) -> Sites:
    for node in _recurrent(facts):
        gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[node.op_type]
        weight = facts.constants.get(node.input[2])
        if gates > 1 and weight is not None:
            parts = np.split(weight, gates, axis=1)
            changed = np.concatenate([parts[1], parts[0], *parts[2:]], axis=1)
            yield where(node), set_constant(node.input[2], changed)


@kind("recurrence: forgets")
def _(facts: Facts) -> Sites:
    """The recurrent weights are zero: visible from the second step on, or with an initial state."""
    for node in _recurrent(facts):
        weight = facts.constants.get(node.input[2])
        if weight is not None:
            yield where(node), set_constant(node.input[2], weight * 0)


@kind("recurrence: bias halved")
def _(facts: Facts) -> Sites:
    for node in _recurrent(facts):
        bias = facts.constants.get(node.input[3]) if len(node.input) > 3 else None
        if bias is not None and bias.any():
            yield where(node), set_constant(node.input[3], bias / 2)


@kind("recurrence: backwards")
def _(facts: Facts) -> Sites:
    for node in _recurrent(facts):
        if attribute(node, "direction", b"forward") == b"forward":
            yield where(node), set_attributes(node, direction="reverse")
