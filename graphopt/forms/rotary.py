"""Recognises written-out rotary position embedding: X cos + rotated(X) sin.

halves       rotated = Concat(-x2, x1), x1 and x2 the halves of X's last axis                     Llama, Phi, GPT-NeoX
neighbours   rotated = Reshape(Concat of (-x1, x0) along a new last axis); x0 = X[.., ::2] and x1 = X[.., 1::2], or
             x0 and x1 are the two elements along the last axis of X reshaped to pairs           GPT-J, Flux, EVA
separate     Concat(x1 cos - x2 sin, x2 cos + x1 sin)                    GPT-OSS, the definitions of RotaryEmbedding
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from graphopt.forms.halves import half_of, slice_of_last_axis
from graphopt.graph.editor import Editor
from graphopt.graph.shapes.sizes import Size
from graphopt.graph.view import attribute_int, is_op, other_input, producer_of, sole_reader

# Operators that compute a shape.
SHAPES = ("Shape", "Slice", "Gather", "Concat", "Unsqueeze", "Squeeze", "Cast")
MOST_SHAPE_NODES = 24


@dataclass(frozen=True)
class Rotary:
    """A rotary embedding of one tensor.

    Attributes:
        X: the tensor.
        cos, sin: the factors of X and of rotated(X), with half the columns if `separate`.
        nodes: the nodes to replace; the last one produces Y.
        splits: the nodes that split X; other nodes may read their results.
        interleaved: whether the two elements of a pair are adjacent.
        separate: whether each half of the result is computed separately, with the same cos and sin.
    """

    X: ir.Value
    cos: ir.Value
    sin: ir.Value
    nodes: tuple[ir.Node, ...]
    splits: tuple[ir.Node, ...]
    interleaved: bool
    separate: bool = False

    @property
    def Y(self) -> ir.Value:
        return self.nodes[-1].outputs[0]


@dataclass(frozen=True)
class _Rotated:
    """rotated(X): `value`, computed by `nodes` from the parts that `splits` produce."""

    X: ir.Value
    value: ir.Value
    nodes: tuple[ir.Node, ...]
    splits: tuple[ir.Node, ...]
    interleaved: bool


def rotated_by(neg: ir.Node, editor: Editor) -> _Rotated | None:
    """Returns the rotated tensor that is computed from a Neg, or None."""
    return _rotated_halves(neg, editor) or _rotated_neighbours(neg, editor)


def rotary_of(rotated: _Rotated, editor: Editor) -> Rotary | None:
    """Matches X cos + rotated(X) sin."""
    by_sin = sole_reader(rotated.value, "Mul")
    total = None if by_sin is None else sole_reader(by_sin.outputs[0], "Add")
    by_cos = None if by_sin is None or total is None else producer_of(other_input(total, by_sin.outputs[0]), "Mul")
    if by_sin is None or total is None or by_cos is None or rotated.X not in by_cos.inputs:
        return None
    sin, cos = other_input(by_sin, rotated.value), other_input(by_cos, rotated.X)
    if sin is None or cos is None:
        return None
    nodes = (*rotated.nodes, by_sin, by_cos, total)
    return Rotary(rotated.X, cos, sin, nodes, rotated.splits, rotated.interleaved)


def rotary_of_halves(concat: ir.Node, editor: Editor) -> Rotary | None:
    """Matches Concat(x1 cos - x2 sin, x2 cos + x1 sin) of the halves x1 and x2."""
    if len(concat.inputs) != 2 or not _concatenates_last_axis(concat, editor):
        return None
    first, second = producer_of(concat.inputs[0], "Sub"), producer_of(concat.inputs[1], "Add")
    if first is None or second is None:
        return None
    by_cos, by_sin = (producer_of(v, "Mul") for v in first.inputs)
    if by_cos is None or by_sin is None:
        return None
    for x1 in by_cos.inputs:
        half = None if x1 is None else half_of(x1, editor)
        if x1 is None or half is None or half.index != 0:
            continue
        cos = other_input(by_cos, x1)
        for x2 in by_sin.inputs:
            other = None if x2 is None else half_of(x2, editor)
            if x2 is None or other is None or other.X is not half.X or other.index != 1:
                continue
            sin = other_input(by_sin, x2)
            products = [producer_of(v, "Mul") for v in second.inputs]
            wanted = [{x2, cos}, {x1, sin}]
            found = [set() if product is None else set(product.inputs) for product in products]
            if cos is None or sin is None or (found != wanted and found[::-1] != wanted):
                continue
            nodes = tuple(n for n in (by_cos, by_sin, *products, first, second, concat) if n is not None)
            splits = tuple(dict.fromkeys((half.split, other.split)))
            return Rotary(half.X, cos, sin, nodes, splits, interleaved=False, separate=True)
    return None


def _rotated_halves(neg: ir.Node, editor: Editor) -> _Rotated | None:
    concat = sole_reader(neg.outputs[0], "Concat")
    part = neg.inputs[0]
    second = None if part is None else half_of(part, editor)
    if concat is None or second is None or second.index != 1 or len(concat.inputs) != 2:
        return None
    other = concat.inputs[1]
    first = None if other is None else half_of(other, editor)
    if concat.inputs[0] is not neg.outputs[0] or first is None or first.index != 0 or first.X is not second.X:
        return None
    if not _concatenates_last_axis(concat, editor):
        return None
    splits = tuple(dict.fromkeys((first.split, second.split)))
    return _Rotated(first.X, concat.outputs[0], (neg, concat), splits, interleaved=False)


def _rotated_neighbours(neg: ir.Node, editor: Editor) -> _Rotated | None:
    x1 = neg.inputs[0]
    wide = sole_reader(neg.outputs[0], "Unsqueeze")
    concat = None if wide is None else sole_reader(wide.outputs[0], "Concat")
    if (
        x1 is None
        or wide is None
        or concat is None
        or len(concat.inputs) != 2
        or concat.inputs[0] is not wide.outputs[0]
    ):
        return None
    beside = producer_of(concat.inputs[1], "Unsqueeze")
    flat = next((node for node in concat.outputs[0].consumers() if is_op(node, "Reshape")), None)
    x0 = None if beside is None else beside.inputs[0]
    if beside is None or flat is None or x0 is None:
        return None
    x0_at, x1_at = _neighbour(x0, editor), _neighbour(x1, editor)
    if x0_at is None or x1_at is None or x0_at.X is not x1_at.X or (x0_at.index, x1_at.index) != (0, 1):
        return None
    dims, pairs = editor.shapes.dims(x0_at.X), editor.shapes.dims(concat.outputs[0])
    if dims is None or editor.shapes.dims(flat.outputs[0]) != dims or pairs is None:
        return None
    # Both parts are concatenated along a new last axis.
    if len(pairs) != len(dims) + 1 or pairs[-1].value != 2 or not _concatenates_last_axis(concat, editor):
        return None
    splits = tuple(dict.fromkeys((*x0_at.splits, *x1_at.splits)))
    nodes = (neg, wide, beside, concat, *_shape_of(concat, flat), flat)
    return _Rotated(x0_at.X, flat.outputs[0], nodes, splits, interleaved=True)


def _shape_of(concat: ir.Node, flat: ir.Node) -> tuple[ir.Node, ...]:
    """Returns the nodes that only serve to compute a Reshape's target shape from the shape of its input."""
    found: dict[ir.Node, None] = {}
    work = [flat.inputs[1]]
    while work and len(found) < MOST_SHAPE_NODES:
        node = producer_of(work.pop(), *SHAPES)
        readers = [] if node is None else [reader for output in node.outputs for reader in output.consumers()]
        if node is not None and all(reader is flat or reader in found for reader in readers):
            found[node] = None
            work += [] if concat.outputs[0] in node.inputs else node.inputs
    return tuple(found)


@dataclass(frozen=True)
class _Neighbour:
    """Element `index` (0 or 1) of each pair of X, produced by `splits`."""

    X: ir.Value
    index: int
    splits: tuple[ir.Node, ...]


def _neighbour(value: ir.Value, editor: Editor) -> _Neighbour | None:
    piece = producer_of(value, "Slice", "Squeeze", "Gather")
    source = None if piece is None else piece.inputs[0]
    dims = editor.shapes.dims(value)
    if piece is None or source is None or not dims:
        return None
    if piece.op_type == "Slice":
        span, last = slice_of_last_axis(piece, editor), editor.shapes.last(source)
        if span is None or last is None or last.value is None:
            return None
        start, end, step = span
        whole = step == 2 and start in (0, 1) and end >= last.value and last == dims[-1] + dims[-1]
        return _Neighbour(source, start, (piece,)) if whole else None
    splits: tuple[ir.Node, ...] = (piece,)
    sliced = producer_of(source, "Slice")
    if piece.op_type == "Gather":
        index = editor.scalar(piece.inputs[1])
        at = attribute_int(piece, "axis", 0)
    elif sliced is not None:
        span, at = slice_of_last_axis(sliced, editor), -1
        if span is None or sliced.inputs[0] is None or span[2] != 1 or span[1] <= span[0]:
            return None
        index, source, splits = span[0], sliced.inputs[0], (piece, sliced)
    else:
        split = producer_of(source, "Split")
        if split is None or len(split.outputs) != 2 or split.inputs[0] is None:
            return None
        index, at, source = source.index(), attribute_int(split, "axis", 0), split.inputs[0]
        splits = (piece, split)
    pairs, reshape = editor.shapes.dims(source), producer_of(source, "Reshape")
    x = None if reshape is None else reshape.inputs[0]
    whole_dims = editor.shapes.dims(x)
    if index not in (0, 1) or x is None or reshape is None or pairs is None or not whole_dims:
        return None
    if at not in (-1, len(pairs) - 1) or list(pairs) != [*whole_dims[:-1], dims[-1], Size.of(2)]:
        return None
    return _Neighbour(x, int(index), (*splits, reshape)) if list(dims) == list(pairs[:-1]) else None


def _concatenates_last_axis(concat: ir.Node, editor: Editor) -> bool:
    return editor.shapes.is_last(attribute_int(concat, "axis", 0), concat.outputs[0])
