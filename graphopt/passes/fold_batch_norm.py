"""Folds inference BatchNormalization into the weights of the preceding or following operator.

    BN after L:  BN(L(X; W) + b) = L(X; scale * W) + (scale * b + shift)
    BN before L: L(BN(X); W) + b = L(X; W * scale) + (b + L(shift; W))

L is Conv, ConvTranspose, Gemm or MatMul; scale = gamma / sqrt(var + epsilon), shift = beta - mean * scale (Ioffe and
Szegedy, ICML 2015). New weights are computed in float64 and rounded once.

Why it is legal: L is linear, and BatchNormalization is an affine map of each channel.

Conditions: inference mode; parameters, weight and bias are constants; the intermediate value is read once and is not a
graph output; BatchNormalization and the operator have the same channel axis (a MatMul needs data of rank 2); folded
values are finite in the weight's dtype; a shift is folded into a following Conv only if it has no padding, because
padding adds zeros that are not shifted, and never into a following ConvTranspose.
"""

from __future__ import annotations

import onnx_ir as ir

from graphopt.forms.affine import Affine, batch_norm_affine
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
)
from graphopt.graph.editor import Editor
from graphopt.graph.view import require_input, require_read_once
from graphopt.metadata import Numerics
from graphopt.passes.base import Pass
from graphopt.remarks import Code, Refusal


class FoldBatchNorm(Pass[FoldCandidate, FoldPlan]):
    name = "fold_batch_norm"
    equation = "BN(W X + b) = (scale W) X + (scale b + shift);  W BN(X) + b = (W scale) X + (b + W shift)"
    numerics = Numerics.REASSOCIATED
    anchors = frozenset({("", "BatchNormalization")})

    def match(self, node: ir.Node, editor: Editor) -> FoldCandidate | None:
        x = require_input(node, 0)
        before, after = linear_before(x, editor), linear_after(node.outputs[0])
        return None if before is None and after is None else FoldCandidate(node, x, before, after)

    def legal(self, match: FoldCandidate, editor: Editor) -> FoldPlan:
        affine = batch_norm_affine(match.node, editor)
        return match.fold(
            lambda linear: _into_before(linear, affine, editor), lambda linear: _into_after(linear, affine, editor)
        )

    def rewrite(self, plan: FoldPlan, editor: Editor) -> str:
        return plan.rewrite(editor)


def _into_before(linear: Linear, affine: Affine, editor: Editor) -> Folded:
    require_read_once(linear.Y, *linear.nodes)
    _require_matrix(linear, linear.Y, editor)
    _, M = channels(linear, editor)
    _require_statistics(affine, M, linear)
    return fold_after(linear, affine.scale, affine.shift, editor)


def _into_after(linear: Linear, affine: Affine, editor: Editor) -> Folded:
    _require_matrix(linear, linear.X, editor)
    C, _ = channels(linear, editor)
    _require_statistics(affine, C, linear)
    return fold_before(linear, affine.scale, affine.shift, editor)


def _require_statistics(affine: Affine, count: int, linear: Linear) -> None:
    if affine.scale.shape != (count,):
        raise Refusal(Code.WRONG_SHAPE, f"there are {affine.scale.size} statistics and {count} channels", linear.node)


def _require_matrix(linear: Linear, value: ir.Value, editor: Editor) -> None:
    """Requires rank 2 for a MatMul: only then is its last axis the channel axis 1 of BatchNormalization."""
    if linear.node.op_type != "MatMul":
        return
    rank = editor.shapes.rank(value)
    if rank is None:
        raise Refusal(Code.UNKNOWN_RANK, f"the rank of {value.name} is not known", linear.node)
    if rank != 2:
        raise Refusal(Code.WRONG_RANK, f"{value.name} has rank {rank}, so axis 1 is not its last axis", linear.node)
