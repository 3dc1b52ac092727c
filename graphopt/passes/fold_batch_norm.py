"""BatchNormalization at inference goes into the weights of the operator before it, or of the one after it.

    before: BN(L(X; W) + b) = L(X; scale * W) + (scale * b + shift)
    after:  L(BN(X); W) + b = L(X; W * scale) + (b + L(shift; W))

L is Conv, ConvTranspose, Gemm or MatMul; scale = gamma / sqrt(var + epsilon), shift = beta - mean * scale, in float64,
cast once (Ioffe and Szegedy, ICML 2015).

Why it is legal: L is linear, and BatchNormalization maps each channel on its own.

Conditions: inference mode; parameters, weight and bias are constants; the value in between is read once and is no
graph output; the channel axis is the operator's own (MatMul: rank 2, direct neighbours only); folded numbers are
finite in the weight's dtype; ahead of a convolution a shift only when nothing pads, since padding puts unshifted zeros
beside X.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from graphopt.passes.affine import Affine, batch_norm_affine
from graphopt.passes.base import Editor, Numerics, Pass
from graphopt.passes.linear import (
    Folded,
    Linear,
    channels,
    fold_after,
    fold_before,
    linear_after,
    linear_before,
    rebuild,
)
from graphopt.remarks import Code, Refusal


@dataclass
class BatchNormMatch:
    """A BatchNormalization and its linear neighbours; `legal` chooses one and fills in the rest."""

    node: ir.Node
    before: Linear | None
    after: Linear | None
    linear: Linear | None = None
    folded: Folded | None = None


class FoldBatchNorm(Pass[BatchNormMatch]):
    name = "fold_batch_norm"
    equation = "BN(W X + b) = (scale W) X + (scale b + shift);  W BN(X) + b = (W scale) X + (b + W shift)"
    numerics = Numerics.REASSOCIATED
    anchors = frozenset({("", "BatchNormalization")})

    def match(self, node: ir.Node, editor: Editor) -> BatchNormMatch | None:
        x = node.inputs[0]
        assert x is not None
        before, after = linear_before(x, editor), linear_after(node.outputs[0])
        return None if before is None and after is None else BatchNormMatch(node, before, after)

    def legal(self, match: BatchNormMatch, editor: Editor) -> None:
        affine = batch_norm_affine(match.node, editor)
        first: Refusal | None = None
        for linear, fold in ((match.before, _into_before), (match.after, _into_after)):
            if linear is None:
                continue
            try:
                match.folded = fold(linear, match.node, affine, editor)
                match.linear = linear
                return
            except Refusal as refusal:
                first = first or refusal
        assert first is not None
        raise first

    def rewrite(self, match: BatchNormMatch, editor: Editor) -> str:
        linear, folded, node = match.linear, match.folded, match.node
        assert linear is not None and folded is not None
        x = node.inputs[0]
        assert x is not None
        if linear is match.before:
            new = rebuild(linear, folded, linear.X, editor, anchor=node)
            editor.replace([*reversed(linear.nodes), node], new, {node.outputs[0]: new[-1].outputs[0]}, anchor=node)
            return f"into the weights of {linear.node.op_type} before it"
        new = rebuild(linear, folded, x, editor, anchor=linear.node)
        editor.replace([node, linear.node], new, {linear.Y: new[-1].outputs[0]}, anchor=linear.node)
        return f"into the weights of {linear.node.op_type} after it"


def _into_before(linear: Linear, node: ir.Node, affine: Affine, editor: Editor) -> Folded:
    if linear.node.graph is not node.graph:
        raise Refusal(Code.ESCAPES, "the operator before is in another graph", linear.node)
    editor.require_only_use(linear.Y, *linear.nodes)
    _require_matrix(linear, linear.Y, editor)
    _, M = channels(linear, editor)
    if affine.scale.shape != (M,):
        raise Refusal(Code.WRONG_SHAPE, f"{affine.scale.size} statistics for {M} channels", linear.node)
    return fold_after(linear, affine.scale, affine.shift, editor)


def _into_after(linear: Linear, node: ir.Node, affine: Affine, editor: Editor) -> Folded:
    if linear.node.graph is not node.graph:
        raise Refusal(Code.ESCAPES, "the operator after is in another graph", linear.node)
    _require_matrix(linear, linear.X, editor)
    C, _ = channels(linear, editor)
    if affine.scale.shape != (C,):
        raise Refusal(Code.WRONG_SHAPE, f"{affine.scale.size} statistics for {C} channels", linear.node)
    return fold_before(linear, affine.scale, affine.shift, editor)


def _require_matrix(linear: Linear, value: ir.Value, editor: Editor) -> None:
    """BatchNormalization's channel axis is 1, which is MatMul's last axis for matrices only."""
    if linear.node.op_type != "MatMul":
        return
    rank = editor.rank(value)
    if rank is None:
        raise Refusal(Code.UNKNOWN_RANK, f"the rank of {value.name}", linear.node)
    if rank != 2:
        raise Refusal(Code.WRONG_RANK, f"{value.name} of rank {rank} has its channels on another axis", linear.node)
