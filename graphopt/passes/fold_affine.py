"""Constant Mul, Add, Sub and Div by channel go into the weights of the operator before them, or of the one after.

    before: s * (L(X; W) + b) + t = L(X; s * W) + (s * b + t)
    after:  L(s * X + t; W) + b   = L(X; W * s) + (b + L(t; W))

L is Conv, ConvTranspose, Gemm or MatMul. The arithmetic is in float64 and cast once.

Why it is legal: L is linear, and numpy's broadcasting applies one number to each channel.

Conditions: the constant varies along the channel axis only (numpy aligns shapes from the right, so for a convolution
[C] is the last axis, not the channels) and does not make the result larger; weight and bias are constants; the value
in between is read once and is no graph output; ahead of a convolution a shift only when nothing pads; the node is no
part of a written-out activation, which runtimes fuse as a whole. A MatMul's own bias Add is no candidate: there is
nothing to gain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from graphopt.ops.schema import Array
from graphopt.passes.activation_forms import form_around
from graphopt.passes.affine import ELEMENTWISE, Affine, elementwise_affine, per_channel
from graphopt.passes.base import Editor, Numerics, Pass
from graphopt.passes.linear import (
    Folded,
    Linear,
    channels,
    fold_after,
    fold_before,
    linear_after,
    linear_before,
    output_rank,
    rebuild,
)
from graphopt.remarks import Code, Refusal


@dataclass
class AffineMatch:
    """An element-wise node with a constant, and its linear neighbours; `legal` chooses one and fills in the rest."""

    node: ir.Node
    affine: Affine
    before: Linear | None
    after: Linear | None
    linear: Linear | None = None
    folded: Folded | None = None


class FoldAffine(Pass[AffineMatch]):
    name = "fold_affine"
    equation = "s (W X + b) + t = (s W) X + (s b + t);  W (s X + t) + b = (W s) X + (b + W t)"
    numerics = Numerics.REASSOCIATED
    anchors = ELEMENTWISE

    def match(self, node: ir.Node, editor: Editor) -> AffineMatch | None:
        data = [v for v in node.inputs if v is not None]
        if not any(linear_before(v, editor) for v in data) and linear_after(node.outputs[0]) is None:
            return None
        affine = elementwise_affine(node, editor)
        if affine is None:
            return None
        before, after = linear_before(affine.X, editor), linear_after(node.outputs[0])
        if before is not None and before.node.op_type == "MatMul" and before.add is None and not _scales(affine):
            before = None  # this node is the bias
        if after is not None and after.node.op_type == "MatMul" and not _plain_scale(affine):
            after = None  # the shift would become another Add behind
        if before is None and after is None:
            return None
        if affine.scale.size == 1 and (form := form_around(node, editor)) is not None:
            # Runtimes fuse the whole activation, which is worth more than one of its nodes.
            raise Refusal(Code.NO_GAIN, f"it is a part of {form.suffix}", node)
        return AffineMatch(node, affine, before, after)

    def legal(self, match: AffineMatch, editor: Editor) -> None:
        first: Refusal | None = None
        for linear, fold in ((match.before, _into_before), (match.after, _into_after)):
            if linear is None:
                continue
            try:
                if linear.node.graph is not match.node.graph:
                    raise Refusal(Code.ESCAPES, "the two stand in different graphs", linear.node)
                match.folded = fold(linear, match, editor)
                match.linear = linear
                return
            except Refusal as refusal:
                first = first or refusal
        assert first is not None
        raise first

    def rewrite(self, match: AffineMatch, editor: Editor) -> str:
        linear, folded, node = match.linear, match.folded, match.node
        assert linear is not None and folded is not None
        if linear is match.before:
            new = rebuild(linear, folded, linear.X, editor, anchor=node)
            editor.replace([*reversed(linear.nodes), node], new, {node.outputs[0]: new[-1].outputs[0]}, anchor=node)
            return f"{node.op_type} into the weights of {linear.node.op_type} before it"
        new = rebuild(linear, folded, match.affine.X, editor, anchor=linear.node)
        editor.replace([node, linear.node], new, {linear.Y: new[-1].outputs[0]}, anchor=linear.node)
        return f"{node.op_type} into the weights of {linear.node.op_type} after it"


def _into_before(linear: Linear, match: AffineMatch, editor: Editor) -> Folded:
    editor.require_only_use(linear.Y, *linear.nodes)
    _, M = channels(linear, editor)
    rank = output_rank(linear, editor)
    scale, shift = _numbers(match, rank, linear.channel_axis, M)
    return fold_after(linear, scale, shift, editor)


def _into_after(linear: Linear, match: AffineMatch, editor: Editor) -> Folded:
    C, _ = channels(linear, editor)
    rank = output_rank(linear, editor)
    if linear.node.op_type == "MatMul":
        rank = editor.rank(match.affine.X)
    shape = editor.shape(match.affine.X)
    if shape is None or shape[linear.channel_axis] != C:
        # X's own channel axis could be 1, and the constant what makes it C.
        raise Refusal(Code.UNKNOWN_SHAPE, f"the channels of {match.affine.X.name}", linear.node)
    scale, shift = _numbers(match, rank, linear.channel_axis, C)
    return fold_before(linear, scale, shift, editor)


def _numbers(match: AffineMatch, rank: int | None, axis: int, count: int) -> tuple[Array, Array]:
    node, affine = match.node, match.affine
    return per_channel(affine.scale, rank, axis, count, node), per_channel(affine.shift, rank, axis, count, node)


def _scales(affine: Affine) -> bool:
    return bool(np.any(affine.scale != 1))


def _plain_scale(affine: Affine) -> bool:
    return not np.any(affine.shift)
