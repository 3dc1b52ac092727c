"""Moves a factor for each head from the scores of attention to the queries. FuseAttention can then fuse the attention.

    (Q K) c = (Q c) K,   c [H, 1, 1]

Z. Liu et al., "Swin Transformer V2", 2022: c = exp(min(s, ln 100)) with a learned s for each head.

Why it is legal: c is constant in each row of Q K, so it can multiply the row of Q instead. FusedAttention also
multiplies Q by its scale, so the risk of overflow in float32 is the same.

Conditions: only the Mul reads the MatMul, and a Softmax follows; c has size 1 along rows and columns and does not
broadcast Q to a larger shape; float32; c is not a known scalar, which would become the scale of FusedAttention.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.view import other_input, sole_reader
from graphopt.metadata import Numerics
from graphopt.passes.base import Pass

# Operators between the scores and their Softmax.
STEPS = ("Add", "Sub", "Where", "Reshape", "Mul", "Div", "Cast", "Clip", "Max", "Min", "Tanh")
MAX_STEPS = 12


@dataclass(frozen=True)
class HeadScale:
    """A MatMul Q K, the Mul after it, and its factor."""

    gemm: ir.Node
    scaled: ir.Node
    factor: ir.Value


class ScaleHeads(Pass[HeadScale, HeadScale]):
    name = "scale_heads"
    equation = "(Q K) c = (Q c) K with a factor c for each head"
    numerics = Numerics.REASSOCIATED
    anchors = frozenset({("", "MatMul")})

    def match(self, node: ir.Node, editor: Editor) -> HeadScale | None:
        """Returns a match that can be rewritten, or None. FuseAttention refuses other candidates with a reason."""
        scaled = sole_reader(node.outputs[0], "Mul")
        factor = None if scaled is None else other_input(scaled, node.outputs[0])
        if scaled is None or factor is None or scaled.graph is not node.graph or not editor.target.custom_ops:
            return None
        if editor.shapes.number(factor) is not None or not _softmax_follows(scaled):
            return None
        q, c = editor.shapes.dims(node.inputs[0]), editor.shapes.dims(factor)
        if q is None or c is None or len(q) < 3 or len(c) > len(q) or any(size.value != 1 for size in c[-2:]):
            return None
        if (editor.shapes.rank(node.inputs[1]) or 0) < 2:
            return None  # with a vector K the result has one axis less than Q, so c applies to other axes
        fits = all(size.value == 1 or size == of for size, of in zip(c[:-2], q[len(q) - len(c) :]))
        types = {editor.dtype(v) for v in (node.inputs[0], factor)}
        return HeadScale(node, scaled, factor) if fits and types == {ir.DataType.FLOAT} else None

    def legal(self, match: HeadScale, editor: Editor) -> HeadScale:
        return match

    def rewrite(self, plan: HeadScale, editor: Editor) -> str:
        gemm, scaled = plan.gemm, plan.scaled
        q, k = gemm.inputs
        assert q is not None and k is not None, "`match` requires both"
        builder = Builder(editor, scaled, gemm.name or scaled.name or "scores")
        y = builder.op("MatMul", builder.op("Mul", q, plan.factor, _dtype=ir.DataType.FLOAT), k)
        editor.replace([gemm, scaled], builder.nodes, {scaled.outputs[0]: y}, anchor=scaled)
        return "the factor of each head is applied to the queries"


def _softmax_follows(node: ir.Node) -> bool:
    for _ in range(MAX_STEPS):
        reader = sole_reader(node.outputs[0], "Softmax", *STEPS)
        if reader is None or reader.op_type == "Softmax":
            return reader is not None
        node = reader
    return False
