"""Masks that multiply the scores: s mask + c (1 - mask). Megatron, GLM, minGPT and the first GPT-2 have such masks.

If every element of the mask is 0 or 1, the sum equals Where(mask, s, c) bit for bit: s * 1 + c * 0 = s and
s * 0 + c = c for every finite score. A mask that is a model input may have other values, so the mask must be computed
from booleans or constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from graphopt.graph.operators.traits import DATA_MOVEMENT
from graphopt.graph.view import GraphView, attribute_int, producer_of
from graphopt.ops.schema import Array
from graphopt.passes.attention.match import MAX_PATH, Condition, ScoresView

# Operators that keep elements of the first operand or write zeros, possibly cast to another type.
_KEEP_OR_CLEAR = DATA_MOVEMENT | {"Cast", "Trilu"}
# Operators that return only 0 and 1 if all operands are 0 or 1.
_KEEP_ZERO_OR_ONE = frozenset("Concat Max Min Mul".split())


def is_zero_or_one(value: ir.Value | None, graph: GraphView) -> bool:
    """Returns whether every element of a value is 0 or 1, or a boolean, for every input of the model."""
    visited = {value}
    nearest = [value]
    for _ in range(MAX_PATH):
        found = [_sources_to_check(v, graph) for v in nearest]
        if any(sources is None for sources in found):
            return False
        # Each value is visited once, because the number of paths can grow exponentially.
        nearest = list(dict.fromkeys(v for sources in found for v in sources or () if v not in visited))
        if not nearest:
            return True
        visited.update(nearest)
    return False


def _sources_to_check(value: ir.Value | None, graph: GraphView) -> Sequence[ir.Value | None] | None:
    """Returns the values that must be 0 or 1 for `value` to be 0 or 1; None if it may have other elements."""
    array = graph.constant(value)
    if array is not None:
        return () if array.dtype.kind in "biuf" and np.isin(array, (0, 1)).all() else None
    if value is not None and graph.dtype(value) == ir.DataType.BOOL:
        return ()
    node = producer_of(value)
    if node is None:
        return None
    if node.op_type in _KEEP_OR_CLEAR:
        return node.inputs[:1]
    if node.op_type in _KEEP_ZERO_OR_ONE:
        return node.inputs
    if node.op_type == "Where":
        return node.inputs[1:]
    if node.op_type == "Sub":
        return node.inputs[1:] if graph.scalar(node.inputs[0]) == 1.0 else None
    if node.op_type == "ConstantOfShape":
        filled = node.attributes.get("value")
        return () if filled is None or filled.as_tensor().numpy().reshape(-1)[0] in (0, 1) else None
    return None


def hidden_value(mask: ir.Value, bias: ir.Value, factor: float, graph: GraphView) -> float | None:
    """Returns the c of s mask + c (1 - mask); None if the expression has another form.

    Args:
        mask: the factor of the scores.
        bias: the value that is added next, times `factor`.
        factor: 1 or -1.
        graph: the graph of the values.
    """
    if graph.shapes.rank(mask) is None or graph.shapes.rank(mask) != graph.shapes.rank(bias):
        return None
    stored, added = graph.constant(_origin(mask)), graph.constant(bias)
    if stored is not None and added is not None:
        if stored.shape != added.shape:
            return None
        added_where: list[Array | None] = [added[stored == 0], added[stored == 1]]
    else:
        added_where = [_Evaluation(_origin(mask), number, graph).evaluate(bias) for number in (0, 1)]
    zeros, ones = added_where
    if zeros is None or ones is None or np.any(ones) or zeros.size == 0 or np.any(zeros != zeros.reshape(-1)[0]):
        return None
    return factor * float(zeros.reshape(-1)[0])


def condition_of(mask: ir.Value, node: ir.Node, view: ScoresView | None, graph: GraphView) -> Condition:
    """Returns a mask factor as a condition: the boolean that was cast to the factor if there is one, or the factor."""
    source = _origin(mask)
    if graph.dtype(source) == ir.DataType.BOOL:
        return Condition(source, node, view)
    return Condition(mask, node, view, numeric=True)


def _origin(value: ir.Value) -> ir.Value:
    """Returns the source of a value before Casts and Identities, which keep 0 and 1 in every type."""
    for _ in range(MAX_PATH):
        node = producer_of(value, "Cast", "Identity")
        if node is None or node.inputs[0] is None:
            break
        value = node.inputs[0]
    return value


@dataclass
class _Evaluation:
    """Evaluates values that are computed from a mask and scalars, where the mask's element is `number` (0 or 1).

    Each value is computed once, in its own type.
    """

    mask: ir.Value
    number: int
    graph: GraphView
    _results: dict[ir.Value, Array | None] = field(default_factory=dict)

    def evaluate(self, value: ir.Value | None, budget: int = MAX_PATH) -> Array | None:
        if value is None or budget == 0:
            return None
        if value not in self._results:
            self._results[value] = self._evaluate(value, budget)
        return self._results[value]

    def _evaluate(self, value: ir.Value, budget: int) -> Array | None:
        dtype = self.graph.dtype(value)
        if _origin(value) is self.mask:
            return None if dtype is None else np.asarray(self.number, dtype.numpy())
        array = self.graph.constant(value)
        if array is not None:
            return array.reshape(()) if array.size == 1 else None
        node = producer_of(value)
        if node is None:
            return None
        known = [o for v in node.inputs if (o := self.evaluate(v, budget - 1)) is not None]
        if len(known) < len(node.inputs) or not known:
            return None
        return _apply(node, known)


def _apply(node: ir.Node, operands: Sequence[Array]) -> Array | None:
    """Applies a node to scalars; returns None for operators that masks do not use."""
    first = operands[0]
    with np.errstate(all="ignore"):
        if node.op_type == "Cast":
            return first.astype(ir.DataType(attribute_int(node, "to", 0)).numpy())
        if node.op_type in ("Identity", "Neg"):
            return np.asarray(first if node.op_type == "Identity" else -first)
        if node.op_type == "Not":
            return np.asarray(~first)
        if node.op_type == "Where":
            return operands[1] if first else operands[2]
        if node.op_type in ("Add", "Sub", "Mul", "Div") and first.dtype.kind == "f":
            function = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}[node.op_type]
            return np.asarray(function(first, operands[1]))
    return None
