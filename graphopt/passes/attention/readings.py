"""The steps between the scores and a softmax: the interpretations of each operator, and their effect on the scores.

A step is one node and its effect on the scores: a factor, a soft cap, an additive term, a mask or a Reshape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import onnx_ir as ir

from graphopt.graph.operators.dropout import drops_nothing
from graphopt.graph.operators.traits import QUANTIZATION, RANDOM
from graphopt.graph.shapes.sizes import Size
from graphopt.graph.view import GraphView, require_input
from graphopt.passes.attention.mask_factor import is_zero_or_one
from graphopt.passes.attention.match import Condition, Term
from graphopt.passes.attention.scores import Scores
from graphopt.remarks import Code, Refusal


@dataclass(frozen=True, kw_only=True)
class Step:
    """One node between the scores and the softmax; `refusal` is set if no fused node can compute it."""

    node: ir.Node
    refusal: Refusal | None = None

    def apply(self, scores: Scores) -> None:
        """Applies the step to the scores.

        Raises:
            Refusal: no fused node can compute it, or the order of the fused node would change the results.
        """
        assert self.refusal is not None
        raise self.refusal


@dataclass(frozen=True, kw_only=True)
class Unchanged(Step):
    """A node that does not change the scores."""

    def apply(self, scores: Scores) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class Cast(Step):
    def apply(self, scores: Scores) -> None:
        scores.cast(self.node)


@dataclass(frozen=True, kw_only=True)
class Reshape(Step):
    def apply(self, scores: Scores) -> None:
        scores.reshape(self.node)


@dataclass(frozen=True, kw_only=True)
class Scale(Step):
    """number * s"""

    number: float

    def apply(self, scores: Scores) -> None:
        scores.multiply(self.number, self.node)


@dataclass(frozen=True, kw_only=True)
class Tanh(Step):
    def apply(self, scores: Scores) -> None:
        scores.cap(self.node)


@dataclass(frozen=True, kw_only=True)
class Add(Step):
    """s + number * operand"""

    operand: ir.Value
    number: float = 1.0

    def apply(self, scores: Scores) -> None:
        scores.add(Term(self.operand, self.node, scores.view, self.number))


@dataclass(frozen=True, kw_only=True)
class Mask(Step):
    """where(operand, s, number) if `keeps`, otherwise where(operand, number, s)"""

    operand: ir.Value
    number: float
    keeps: bool

    def apply(self, scores: Scores) -> None:
        scores.hide(self.number, Condition(self.operand, self.node, scores.view, self.keeps), self.node)


@dataclass(frozen=True, kw_only=True)
class ScoreFactor(Step):
    """s * operand, which is a mask if every element is 0 or 1 and a term follows (mask_factor.py)."""

    operand: ir.Value

    def apply(self, scores: Scores) -> None:
        raise Refusal(Code.PER_CHANNEL_SCALE, f"the scores are multiplied by {self.operand.name}", self.node)


# An interpretation of a node: the input that is the scores, and the step.
Reading: TypeAlias = tuple[ir.Value | None, Step]


def readings(node: ir.Node, graph: GraphView) -> Iterable[Reading]:
    """Returns the possible interpretations of a node between the scores and the softmax."""
    if node.op_type in _READINGS:
        return _READINGS[node.op_type](node, graph)
    refusal = Refusal(code_of(node.op_type), f"{node.op_type} is between the MatMul of Q and K and the softmax", node)
    return [(value, Step(node=node, refusal=refusal)) for value in node.inputs]


def _dropout(node: ir.Node, graph: GraphView) -> Iterable[Reading]:
    yield node.inputs[0], Unchanged(node=node, refusal=dropout_refusal(node, graph))


def _mul(node: ir.Node, graph: GraphView) -> Iterable[Reading]:
    a, b = node.inputs
    yield from _factor(node, a, b, graph.shapes.number(b), graph)
    yield from _factor(node, b, a, graph.shapes.number(a), graph)


def _div(node: ir.Node, graph: GraphView) -> Iterable[Reading]:
    a, b = node.inputs
    yield b, Step(node=node, refusal=Refusal(Code.UNSUPPORTED_OP, "the scores are the divisor of a Div", node))
    number = graph.shapes.number(b)
    if number is not None:
        number = 1.0 / number if number else math.inf
    yield from _factor(node, a, b, number, graph)


def _factor(
    node: ir.Node, main: ir.Value | None, other: ir.Value | None, number: float | None, graph: GraphView
) -> Iterable[Reading]:
    """Yields the reading that `other` multiplies or divides the scores `main`. `number`: the factor, if known."""
    if number is not None:
        yield main, Scale(node=node, number=number)
    elif not graph.is_constant(main):
        code = Code.PER_CHANNEL_SCALE if graph.is_constant(other) else Code.NOT_CONSTANT
        refusal = Refusal(code, f"the scores are multiplied by {other.name if other is not None else '?'}", node)
        if other is None or node.op_type == "Div":
            yield main, Step(node=node, refusal=refusal)
        else:
            yield main, ScoreFactor(node=node, operand=other, refusal=None if is_zero_or_one(other, graph) else refusal)


def _add(node: ir.Node, graph: GraphView) -> Iterable[Reading]:
    a, b = (require_input(node, i) for i in range(2))
    return [(a, Add(node=node, operand=b)), (b, Add(node=node, operand=a))]


def _sub(node: ir.Node, graph: GraphView) -> Iterable[Reading]:
    a, b = (require_input(node, i) for i in range(2))
    subtracted = Refusal(Code.UNSUPPORTED_OP, "the scores are subtracted", node)
    return [(a, Add(node=node, operand=b, number=-1.0)), (b, Step(node=node, refusal=subtracted))]


def _where(node: ir.Node, graph: GraphView) -> Iterable[Reading]:
    condition, a, b = (require_input(node, i) for i in range(3))
    for main, other, keeps in ((a, b, True), (b, a, False)):
        number, refusal = _mask_value(other, main, node, graph)
        yield main, Mask(node=node, refusal=refusal, operand=condition, number=number, keeps=keeps)


_READINGS: dict[str, Callable[[ir.Node, GraphView], Iterable[Reading]]] = {
    "Identity": lambda node, _: [(node.inputs[0], Unchanged(node=node))],
    "Dropout": _dropout,
    "Cast": lambda node, _: [(node.inputs[0], Cast(node=node))],
    "Reshape": lambda node, _: [(node.inputs[0], Reshape(node=node))],
    "Tanh": lambda node, _: [(node.inputs[0], Tanh(node=node))],
    "Neg": lambda node, _: [(node.inputs[0], Scale(node=node, number=-1.0))],
    "Mul": _mul,
    "Div": _div,
    "Add": _add,
    "Sub": _sub,
    "Where": _where,
}


def dropout_refusal(node: ir.Node, graph: GraphView) -> Refusal | None:
    return None if drops_nothing(node, graph) else Refusal(Code.TRAINING_MODE, "Dropout may drop values", node)


def code_of(op_type: str) -> Code:
    if op_type in RANDOM:
        return Code.NON_DETERMINISTIC
    return Code.QUANTIZED if op_type in QUANTIZATION else Code.UNSUPPORTED_OP


def _mask_value(
    value: ir.Value | None, scores: ir.Value | None, node: ir.Node, graph: GraphView
) -> tuple[float, Refusal | None]:
    """Returns the scalar that a Where writes in place of hidden scores, or a refusal."""
    array = graph.constant(value)
    if array is None:
        number = graph.shapes.number(value)
        if number is not None:
            return number, None
        name = value.name if value is not None else "absent"
        return 0.0, Refusal(Code.NOT_CONSTANT, f"the value {name} for hidden scores is not a constant", node)
    if array.size == 0 or not (array == array.reshape(-1)[0]).all():
        return 0.0, Refusal(Code.UNSUPPORTED_OP, "the hidden scores have different values", node)
    rank = graph.shapes.rank(scores)
    if array.size > 1 or array.ndim > 1:
        dims = graph.shapes.dims(scores)
        if rank is None or dims is None:
            return 0.0, Refusal(Code.UNKNOWN_RANK, "the rank of the scores is not known", node)
        grows = array.ndim > rank or any(
            n != 1 and Size.of(n) != d for n, d in zip(reversed(array.shape), reversed(dims))
        )
        if grows:
            return 0.0, Refusal(Code.BROADCAST_GROWS, f"the value for hidden scores has shape {array.shape}", node)
    return float(array.reshape(-1)[0]), None
