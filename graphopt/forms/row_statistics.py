"""Recognises written-out normalisation: ReduceMean, Sub, square, ReduceMean, Add epsilon, Sqrt, Div.

    LayerNorm: (X - mean(X)) / sqrt(mean((X - mean(X))^2) + epsilon)
    RMSNorm:   X / sqrt(mean(X^2) + epsilon)
    factored:  X f + (beta - mean(X) f), f = gamma / sqrt(mean((X - mean(X))^2) + epsilon)

TensorFlow and Keras write the factored LayerNorm (tf.nn.batch_normalization after tf.nn.moments). The factored form may
square mean(X) - X, because TensorFlow's optimizer sorts the operands of squared_difference. The passes for GroupNorm,
LayerNorm and RMSNorm use these functions.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from graphopt.graph.editor import Editor
from graphopt.graph.view import attribute_int, is_op, other_input, producer_of, sole_reader


@dataclass(frozen=True)
class RowNorm:
    """The statistics and the division, without scale and shift.

    Attributes:
        nodes: all nodes, in no particular order.
        X: the value that is normalised.
        Y: the result.
        axes: normalised axes, non-negative, ascending; (-1,) if the rank is unknown.
        rank: rank of X, inferred from X or X - mean(X); None if unknown.
        epsilon: the epsilon that is added to the variance.
        centred: X - mean(X), or mean(X) - X if `mean_first`; None for RMSNorm, which subtracts no mean.
    """

    nodes: tuple[ir.Node, ...]
    X: ir.Value
    Y: ir.Value
    axes: tuple[int, ...]
    rank: int | None
    epsilon: float
    centred: ir.Value | None
    mean_first: bool = False

    @property
    def rms(self) -> bool:
        return self.centred is None


@dataclass(frozen=True)
class Factored:
    """The factored form.

    Attributes:
        norm: the norm; its Y includes scale and shift.
        gamma, beta: scale and shift; None if absent.
    """

    norm: RowNorm
    gamma: ir.Value | None
    beta: ir.Value | None


@dataclass(frozen=True)
class _Deviation:
    """sqrt(mean(base^2) + epsilon), computed by `nodes`, the Sqrt last."""

    nodes: tuple[ir.Node, ...]
    base: ir.Value
    epsilon: float

    @property
    def mean_square(self) -> ir.Node:
        return self.nodes[1]


def match_row_norm(sqrt: ir.Node, editor: Editor) -> RowNorm | None:
    """Matches the norm around a Sqrt; returns None if the Sqrt is not the deviation of a norm."""
    deviation = _deviation(sqrt, editor)
    division = None if deviation is None else _division(sqrt, deviation.base, editor)
    if deviation is None or division is None:
        return None
    nodes, base = (*deviation.nodes, *division), deviation.base
    centred = _centred(deviation, editor)
    if centred is not None:
        mean, centre, x, axes, rank = centred
        return RowNorm((mean, centre, *nodes), x, division[-1].outputs[0], axes, rank, deviation.epsilon, base)
    rank = editor.shapes.rank(base)
    own = reduced_axes(deviation.mean_square, rank, editor)
    if own is None or not attribute_int(deviation.mean_square, "keepdims", 1):
        return None
    return RowNorm(nodes, base, division[-1].outputs[0], own, rank, deviation.epsilon, None)


def fused_by_runtimes(node: ir.Node, editor: Editor) -> str | None:
    """Returns "LayerNorm" or "RMSNorm" if a Mul or Add is the scale or shift of a norm that runtimes fuse; else None.

    Runtimes fuse norms over the last axis that are written with Pow and Div. For MIGraphX the result is None: MIGraphX
    matches norms without their scale, so passes may change the scale.
    """
    if editor.target.device == "migraphx":
        return None
    shifts = is_op(node, "Add")
    scales = [producer_of(value, "Mul") for value in node.inputs] if shifts else [node]
    for value in (x for scale in scales if scale is not None for x in scale.inputs):
        division = producer_of(value, "Div")
        sqrt = None if division is None else producer_of(division.inputs[1], "Sqrt")
        norm = None if sqrt is None else match_row_norm(sqrt, editor)
        if norm is None or norm.Y is not value or (norm.rms and shifts):
            continue
        last = -1 if norm.rank is None else norm.rank - 1
        if norm.axes == (last,) and any(is_op(n, "Pow") for n in norm.nodes):
            return "RMSNorm" if norm.rms else "LayerNorm"
    return None


def match_factored_norm(sqrt: ir.Node, editor: Editor) -> Factored | None:
    """Matches the factored form around a Sqrt, or returns None."""
    deviation = _deviation(sqrt, editor)
    centred = None if deviation is None else _centred(deviation, editor) or _centred(deviation, editor, mean_first=True)
    if deviation is None or centred is None:
        return None
    mean, centre, x, axes, rank = centred
    for inverse in sqrt.outputs[0].consumers():
        if not _inverts(inverse, sqrt.outputs[0], editor):
            continue
        factor, gamma = [inverse], None
        scaled = sole_reader(inverse.outputs[0], "Mul")
        if scaled is not None:
            gamma = other_input(scaled, inverse.outputs[0])
            factor.append(scaled)
        f = factor[-1].outputs[0]
        slope, offset = (_times(f, value) for value in (x, mean.outputs[0]))
        if slope is None or offset is None:
            continue
        shift = sole_reader(offset.outputs[0], "Sub")
        if shift is None:
            continue
        nodes = (mean, centre, *deviation.nodes, *factor, slope, offset, shift)
        beta, last = None, shift
        if shift.inputs[1] is not offset.outputs[0]:
            continue
        if shift.inputs[0] is not slope.outputs[0]:
            beta = shift.inputs[0]
            added = sole_reader(shift.outputs[0], "Add")
            if added is None or slope.outputs[0] not in added.inputs:
                continue
            last = added
            nodes = (*nodes, added)
        mean_first = centre.inputs[1] is x
        norm = RowNorm(nodes, x, last.outputs[0], axes, rank, deviation.epsilon, deviation.base, mean_first)
        return Factored(norm, gamma, beta)
    return None


def _deviation(sqrt: ir.Node, editor: Editor) -> _Deviation | None:
    add = producer_of(sqrt.inputs[0], "Add")
    if add is None:
        return None
    variance, epsilon = _split_constant(add, editor)
    mean_square = producer_of(variance, "ReduceMean")
    if epsilon is None or mean_square is None:
        return None
    square = producer_of(mean_square.inputs[0], "Mul", "Pow")
    base = None if square is None else _squared(square, editor)
    if base is None or square is None:
        return None
    return _Deviation((square, mean_square, add, sqrt), base, epsilon)


def _centred(
    deviation: _Deviation, editor: Editor, *, mean_first: bool = False
) -> tuple[ir.Node, ir.Node, ir.Value, tuple[int, ...], int | None] | None:
    """Returns the mean, the Sub, X, the axes and X's rank of a deviation, or None.

    The base of the deviation must be X - mean(X), or mean(X) - X with `mean_first`.
    """
    centre = producer_of(deviation.base, "Sub")
    if centre is None:
        return None
    x, mean = centre.inputs[1 if mean_first else 0], producer_of(centre.inputs[0 if mean_first else 1], "ReduceMean")
    if x is None or mean is None or mean.inputs[0] is not x:
        return None
    rank = editor.shapes.rank(deviation.base)
    if rank is None:
        rank = editor.shapes.rank(x)  # subtracting the mean keeps the rank
    axes = reduced_axes(deviation.mean_square, rank, editor)
    keep = [attribute_int(node, "keepdims", 1) for node in (mean, deviation.mean_square)]
    if axes is None or keep != [1, 1] or reduced_axes(mean, rank, editor) != axes:
        return None
    return mean, centre, x, axes, rank


def _times(factor: ir.Value, value: ir.Value) -> ir.Node | None:
    """Returns the Mul of two values, or None."""
    for node in factor.consumers():
        if is_op(node, "Mul") and set(node.inputs) == {factor, value}:
            return node
    return None


def is_deviation(sqrt: ir.Node) -> bool:
    """Returns whether a Sqrt may be the deviation of a norm: whether it reads the Add of a mean of squares."""
    add = producer_of(sqrt.inputs[0], "Add")
    if add is None:
        return False
    means = [mean for v in add.inputs if (mean := producer_of(v, "ReduceMean")) is not None]
    squares = [square for mean in means if (square := producer_of(mean.inputs[0], "Pow", "Mul")) is not None]
    return any(s.op_type == "Pow" or s.inputs[0] is s.inputs[1] for s in squares)


def _split_constant(node: ir.Node, editor: Editor) -> tuple[ir.Value | None, float | None]:
    """Returns the other input and the scalar of a commutative node with one scalar constant, or (None, None)."""
    a, b = node.inputs
    for value, constant in ((a, b), (b, a)):
        number = editor.scalar(constant)
        if number is not None:
            return value, number
    return None, None


def _squared(node: ir.Node, editor: Editor) -> ir.Value | None:
    """Returns x if a Mul or Pow computes x * x or x ^ 2, or None."""
    if node.op_type == "Mul" and node.inputs[0] is node.inputs[1]:
        return node.inputs[0]
    if node.op_type == "Pow" and editor.scalar(node.inputs[1]) == 2.0:
        return node.inputs[0]
    return None


def _division(sqrt: ir.Node, base: ir.Value, editor: Editor) -> tuple[ir.Node, ...] | None:
    """Returns the nodes that divide `base` by the Sqrt's result: Div, or Reciprocal (or 1 / x) and Mul; or None."""
    deviation = sqrt.outputs[0]
    for user in deviation.consumers():
        if is_op(user, "Div") and user.inputs[0] is base and user.inputs[1] is deviation:
            return (user,)
        if _inverts(user, deviation, editor):
            inverse = user.outputs[0]
            for product in inverse.consumers():
                if is_op(product, "Mul") and base in product.inputs:
                    return (user, product)
    return None


def _inverts(node: ir.Node, value: ir.Value, editor: Editor) -> bool:
    if is_op(node, "Reciprocal"):
        return True
    divides = is_op(node, "Div") and node.inputs[1] is value
    return divides and editor.scalar(node.inputs[0]) == 1.0


def reduced_axes(node: ir.Node, rank: int | None, editor: Editor) -> tuple[int, ...] | None:
    """Returns the axes of a ReduceMean of a tensor with `rank` dimensions, non-negative and ascending.

    If the rank is unknown, the result is (-1,) for the last axis and None for other axes. If the axes are unknown or
    absent, it is None.
    """
    axes = tuple(editor.arguments(node).integer_argument("axes") or ())
    if not axes:
        return None
    if rank is None:
        return axes if axes == (-1,) else None
    return tuple(sorted(a % rank for a in axes))
