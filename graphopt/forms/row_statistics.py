"""Recognises written-out normalisation: ReduceMean, Sub, square, ReduceMean, Add epsilon, Sqrt, Div.

    LayerNorm: (X - mean(X)) / sqrt(mean((X - mean(X))^2) + epsilon)
    RMSNorm:   X / sqrt(mean(X^2) + epsilon)

Shared by the passes that make GroupNorm, LayerNorm and RMSNorm of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from graphopt.graph.editor import Editor, attribute_int, attribute_ints


@dataclass(frozen=True)
class RowNorm:
    """The statistics and the division, without scale and shift.

    Attributes:
        nodes: all nodes, in no particular order.
        X: what is normalised.
        Y: the result.
        axes: normalised axes, non-negative, ascending; (-1,) when the rank is unknown.
        rank: of X, as X or what is made of it shows; None when neither does.
        epsilon: what is added to the variance.
        rms: no mean is subtracted.

    """

    nodes: tuple[ir.Node, ...]
    X: ir.Value
    Y: ir.Value
    axes: tuple[int, ...]
    rank: int | None
    epsilon: float
    rms: bool


def match_row_norm(sqrt: ir.Node, editor: Editor) -> RowNorm | None:
    """Looks around a Sqrt; None when it is not the deviation of a normalisation."""
    variance_eps = sqrt.inputs[0]
    add = variance_eps.producer() if variance_eps is not None else None
    if add is None or (add.domain, add.op_type) != ("", "Add"):
        return None
    variance, epsilon = _split_constant(add, editor)
    mean_square = variance.producer() if variance is not None else None
    if epsilon is None or mean_square is None or (mean_square.domain, mean_square.op_type) != ("", "ReduceMean"):
        return None
    squares = mean_square.inputs[0]
    square = squares.producer() if squares is not None else None
    base = _squared(square, editor) if square is not None else None
    if base is None or square is None:
        return None
    division = _division(sqrt, base, editor)
    if division is None:
        return None
    nodes = (square, mean_square, add, sqrt, *division)
    rank = editor.rank(base)
    centre = base.producer()
    mean: ir.Node | None = None
    if centre is not None and (centre.domain, centre.op_type) == ("", "Sub"):
        x, mean_value = centre.inputs
        mean = mean_value.producer() if mean_value is not None else None
        if mean is not None and (mean.domain, mean.op_type) == ("", "ReduceMean") and mean.inputs[0] is x:
            rank = editor.rank(x) if rank is None else rank
    axes = reduced_axes(mean_square, rank, editor)
    if axes is None or not attribute_int(mean_square, "keepdims", 1):
        return None
    if centre is not None and mean is not None:
        is_mean = (
            (mean.domain, mean.op_type) == ("", "ReduceMean")
            and mean.inputs[0] is x
            and reduced_axes(mean, rank, editor) == axes
            and attribute_int(mean, "keepdims", 1) == 1
        )
        if is_mean and x is not None:
            return RowNorm((mean, centre, *nodes), x, division[-1].outputs[0], axes, rank, epsilon, rms=False)
    return RowNorm(nodes, base, division[-1].outputs[0], axes, rank, epsilon, rms=True)


def is_deviation(sqrt: ir.Node) -> bool:
    """Whether a Sqrt looks like the deviation of a normalisation: of a mean of squares, to which something is added."""
    value = sqrt.inputs[0]
    add = value.producer() if value is not None else None
    if add is None or (add.domain, add.op_type) != ("", "Add"):
        return False
    means = [p for v in add.inputs if v is not None and (p := v.producer()) is not None and p.op_type == "ReduceMean"]
    squares = [p for m in means if (v := m.inputs[0]) is not None and (p := v.producer()) is not None]
    return any(s.op_type == "Pow" or (s.op_type == "Mul" and s.inputs[0] is s.inputs[1]) for s in squares)


def _split_constant(node: ir.Node, editor: Editor) -> tuple[ir.Value | None, float | None]:
    """(the other input, the number) of a commutative node with one scalar constant."""
    a, b = node.inputs
    for value, constant in ((a, b), (b, a)):
        number = editor.scalar(constant)
        if number is not None:
            return value, number
    return None, None


def _squared(node: ir.Node, editor: Editor) -> ir.Value | None:
    """X when the node computes x * x or x ^ 2."""
    if node.domain != "":
        return None
    if node.op_type == "Mul" and node.inputs[0] is node.inputs[1]:
        return node.inputs[0]
    if node.op_type == "Pow" and editor.scalar(node.inputs[1]) == 2.0:
        return node.inputs[0]
    return None


def _division(sqrt: ir.Node, base: ir.Value, editor: Editor) -> tuple[ir.Node, ...] | None:
    """The nodes that divide `base` by the Sqrt's result: Div, or Reciprocal (or 1 / x) and Mul."""
    deviation = sqrt.outputs[0]
    for user in deviation.consumers():
        if user.domain != "":
            continue
        if user.op_type == "Div" and user.inputs[0] is base and user.inputs[1] is deviation:
            return (user,)
        inverts = user.op_type == "Div" and user.inputs[1] is deviation and editor.scalar(user.inputs[0]) == 1.0
        if inverts or user.op_type == "Reciprocal":
            inverse = user.outputs[0]
            for product in inverse.consumers():
                if (product.domain, product.op_type) == ("", "Mul") and base in product.inputs:
                    return (user, product)
    return None


def reduced_axes(node: ir.Node, rank: int | None, editor: Editor) -> tuple[int, ...] | None:
    """The axes of a ReduceMean over `rank` dimensions, as non-negative numbers.

    (-1,) for the last axis where the rank is unknown; None where the axes are.
    """
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        array = editor.constant(node.inputs[1])
        axes = None if array is None else tuple(int(a) for a in array.reshape(-1))
    else:
        axes = attribute_ints(node, "axes", ())
    if not axes:
        return None
    if rank is None:
        return axes if axes == (-1,) else None
    return tuple(sorted(a % rank for a in axes))
