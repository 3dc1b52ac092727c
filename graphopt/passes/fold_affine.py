"""Folds Mul, Add, Sub and Div by per-channel constants into the weights of the preceding or following operator.

    node after L:  s * (L(X; W) + b) + t = L(X; s * W) + (s * b + t)
    node before L: L(s * X + t; W) + b   = L(X; W * s) + (b + L(t; W))

L is Conv, ConvTranspose, Gemm or MatMul. A Transpose may be between L and the node after it, as for the layer scale of
ConvNeXt. New weights are computed in float64 and rounded once.

Why it is legal: L is linear, and broadcasting applies one value to each channel.

Conditions: the constant varies along the channel axis only (shapes align from the right, so a constant [C] varies along
the last axis of a convolution's data, not along the channels); it does not broadcast the data; weight and bias are
constants; the intermediate value is read once and is not a graph output; a shift is folded into a following Conv
only if it has no padding, and never into a following ConvTranspose; the node is not part of a written-out activation or
norm, which runtimes fuse as a whole. The bias Add of a MatMul is not a candidate: folding it saves no node.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from graphopt.forms.activation import form_around
from graphopt.forms.affine import ELEMENTWISE, Affine, elementwise_affine, per_channel
from graphopt.forms.linear import (
    FoldCandidate,
    Folded,
    FoldPlan,
    Linear,
    channels,
    fold_after,
    fold_before,
    linear_after,
    linear_before,
    output_rank,
)
from graphopt.forms.row_statistics import fused_by_runtimes
from graphopt.graph.editor import Editor
from graphopt.graph.view import attribute_ints, producer_of, require_one_graph, require_read_once
from graphopt.metadata import Numerics
from graphopt.ops.schema import Array
from graphopt.passes.base import Pass
from graphopt.remarks import Code, Refusal


@dataclass(frozen=True)
class AffineMatch:
    """An element-wise node with a constant, before or after a linear operator."""

    affine: Affine
    candidate: FoldCandidate


class FoldAffine(Pass[AffineMatch, FoldPlan]):
    name = "fold_affine"
    equation = "s (W X + b) + t = (s W) X + (s b + t);  W (s X + t) + b = (W s) X + (b + W t)"
    numerics = Numerics.REASSOCIATED
    anchors = ELEMENTWISE

    def match(self, node: ir.Node, editor: Editor) -> AffineMatch | None:
        following = linear_after(node.outputs[0])
        if following is None and not any(_preceding(v, editor)[0] for v in node.inputs if v is not None):
            return None
        if following is None and _is_bias(node, editor):
            return None  # the cheap test is first, because most constant Adds next to a MatMul are its bias
        try:
            affine = elementwise_affine(node, editor)
        except Refusal:
            if _is_bias(node, editor):
                return None
            raise
        if affine is None:
            return None
        (before, transpose), after = _preceding(affine.X, editor), following
        if before is not None and before.node.op_type == "MatMul" and before.add is None and not _has_scale(affine):
            before = None  # this node is the bias
        if after is not None and after.node.op_type == "MatMul" and not _has_no_shift(affine):
            after = None  # the shift would become an Add after the MatMul
        if before is None and after is None:
            return None
        # Runtimes fuse the whole activation or norm, which saves more than folding one of its nodes.
        if affine.scale.size == 1 and (form := form_around(node, editor)) is not None:
            raise Refusal(Code.NO_GAIN, f"the node is part of {form.suffix}, which runtimes fuse as a whole", node)
        if (norm := fused_by_runtimes(node, editor)) is not None:
            raise Refusal(Code.NO_GAIN, f"the node is part of {norm}, which runtimes fuse as a whole", node)
        return AffineMatch(affine, FoldCandidate(node, affine.X, before, after, transpose))

    def legal(self, match: AffineMatch, editor: Editor) -> FoldPlan:
        return match.candidate.fold(
            lambda linear: _into_before(linear, match, editor), lambda linear: _into_after(linear, match, editor)
        )

    def rewrite(self, plan: FoldPlan, editor: Editor) -> str:
        return plan.rewrite(editor)


def _preceding(value: ir.Value, editor: Editor) -> tuple[Linear | None, ir.Node | None]:
    """Returns the linear operator that produces a value, directly or with a Transpose after it, and this Transpose."""
    transpose = producer_of(value, "Transpose")
    x = value if transpose is None else transpose.inputs[0]
    return None if x is None else linear_before(x, editor), transpose


def _is_bias(node: ir.Node, editor: Editor) -> bool:
    """Returns whether a node is an Add and all linear operators next to it are MatMuls without a bias."""
    before = [found for v in node.inputs if v is not None and (found := _preceding(v, editor)[0]) is not None]
    after = linear_after(node.outputs[0])
    return (
        node.op_type == "Add"
        and all(linear.node.op_type == "MatMul" and linear.add is None for linear in before)
        and (after is None or after.node.op_type == "MatMul")
    )


def _into_before(linear: Linear, match: AffineMatch, editor: Editor) -> Folded:
    require_read_once(linear.Y, *linear.nodes)
    _, M = channels(linear, editor)
    rank, axis = output_rank(linear, editor), linear.channel_axis
    if (transpose := match.candidate.transpose) is not None:
        require_one_graph([transpose], match.candidate.node)
        require_read_once(transpose.outputs[0], transpose)
        if rank is None:
            raise Refusal(Code.UNKNOWN_RANK, "the rank of the data is not known", linear.node)
        axis = list(attribute_ints(transpose, "perm", range(rank)[::-1])).index(axis % rank)
    scale, shift = _scale_and_shift(match, rank, axis, M)
    return fold_after(linear, scale, shift, editor)


def _into_after(linear: Linear, match: AffineMatch, editor: Editor) -> Folded:
    C, _ = channels(linear, editor)
    X = match.affine.X
    dims = editor.shapes.dims(X)
    if dims is None or dims[linear.channel_axis].value != C:
        # The channel axis of X could have size 1 and be broadcast to the constant's C.
        raise Refusal(Code.UNKNOWN_SHAPE, f"the number of channels of {X.name} is not known", linear.node)
    rank = len(dims) if linear.node.op_type == "MatMul" else output_rank(linear, editor)
    scale, shift = _scale_and_shift(match, rank, linear.channel_axis, C)
    return fold_before(linear, scale, shift, editor)


def _scale_and_shift(match: AffineMatch, rank: int | None, axis: int, count: int) -> tuple[Array, Array]:
    """Returns the affine map of the node as two arrays [count] along `axis` of data of this rank."""
    node, affine = match.candidate.node, match.affine
    return per_channel(affine.scale, rank, axis, count, node), per_channel(affine.shift, rank, axis, count, node)


def _has_scale(affine: Affine) -> bool:
    return bool(np.any(affine.scale != 1))


def _has_no_shift(affine: Affine) -> bool:
    return not np.any(affine.shift)
