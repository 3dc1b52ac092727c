"""Fuses a written-out rotary position embedding, and the Transpose of heads before it, into one node.

    X cos + rotated(X) sin -> FusedRotary[Interleaved](X, cos, sin);  X = Transpose(Z, perm) becomes an attribute

J. Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021.

rotated(X) swaps the two elements of each pair and negates one of them. A pair consists of element i of the first half
and element i of the second half of X (Hugging Face's `rotate_half`), or of two adjacent elements (Interleaved).

Why it is legal: the operators are defined by that equation for any cos and sin, which need not belong to one angle or
be equal in both halves. If the graph computes each half separately, with cos and sin of half the columns, the rewrite
concatenates cos with itself and sin with itself.

Conditions: X has two, three or four axes; its halves or pairs are proven to cover the last axis, which is static and
even; cos and sin have the last axis' size, or half of it if each half is computed separately, and do not broadcast X;
all have the same type, float or float16; no other node reads an intermediate value.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from graphopt.forms.rotary import Rotary, rotary_of, rotary_of_halves, rotated_by
from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.shapes.sizes import shape_text
from graphopt.graph.view import attribute_ints, producer_of, require_contained, require_one_graph
from graphopt.metadata import Numerics
from graphopt.passes.base import Pass
from graphopt.remarks import Code, Refusal, became
from graphopt.targets.profit import Candidate

RANKS = (2, 3, 4)


@dataclass(frozen=True)
class RotaryMatch:
    """A rotary embedding, and the Transpose before it if the fused node can include it; X is the fused node's input."""

    rotary: Rotary
    X: ir.Value
    perm: tuple[int, ...]
    transpose: ir.Node | None

    @property
    def name(self) -> str:
        return f"FusedRotary{'Interleaved' if self.rotary.interleaved else ''}"


class FuseRotary(Pass[RotaryMatch, RotaryMatch]):
    name = "fuse_rotary"
    equation = "X cos + rotated(X) sin -> FusedRotary[Interleaved](X, cos, sin)"
    numerics = Numerics.REASSOCIATED
    anchors = frozenset({("", "Neg"), ("", "Concat")})

    def match(self, node: ir.Node, editor: Editor) -> RotaryMatch | None:
        if node.op_type == "Concat":
            rotary = rotary_of_halves(node, editor)
        else:
            rotated = rotated_by(node, editor)
            rotary = None if rotated is None else rotary_of(rotated, editor)
            if rotated is not None and rotary is None:
                raise Refusal(Code.UNSUPPORTED_OP, "the rotated half is not multiplied by sin and added to x cos", node)
        rank = None if rotary is None else editor.shapes.rank(rotary.X)
        if rotary is None or rank is None:
            return None
        transpose = producer_of(rotary.X, "Transpose")
        perm = () if transpose is None else tuple(attribute_ints(transpose, "perm", ()))
        if transpose is None or transpose.inputs[0] is None or len(perm) != rank or perm[-1] != rank - 1:
            return RotaryMatch(rotary, rotary.X, tuple(range(rank)), None)
        return RotaryMatch(rotary, transpose.inputs[0], perm, transpose)

    def legal(self, match: RotaryMatch, editor: Editor) -> RotaryMatch:
        rotary = match.rotary
        anchor = rotary.nodes[0]
        x = rotary.X
        dims = editor.shapes.dims(x)
        if len(match.perm) not in RANKS:
            raise Refusal(Code.WRONG_RANK, f"{x.name} has rank {len(match.perm)}", anchor)
        D = None if dims is None else dims[-1].value
        if dims is None or D is None:
            raise Refusal(Code.UNKNOWN_SHAPE, f"the last dimension of {x.name} is not known", anchor)
        for what, value in (("cos", rotary.cos), ("sin", rotary.sin)):
            given = editor.shapes.dims(value)
            if given is None:
                raise Refusal(Code.UNKNOWN_SHAPE, f"the shape of {what} {value.name} is not known", anchor)
            columns = D // 2 if rotary.separate else D
            text = f"{what} has shape {shape_text(given)}, and X has {shape_text(dims)}"
            if not given or len(given) > len(dims) or given[-1].value != columns:
                raise Refusal(Code.WRONG_SHAPE, text, anchor)
            for size, of_x in zip(given[:-1], dims[len(dims) - len(given) :]):
                if size.value != 1 and size != of_x:
                    known = size.value is not None and of_x.value is not None
                    raise Refusal(Code.WRONG_SHAPE if known else Code.UNKNOWN_SHAPE, text, anchor)
        editor.require_equal_types((x, rotary.cos, rotary.sin), anchor)
        editor.require_dtype(x, anchor)
        require_one_graph(rotary.nodes, anchor)
        require_contained(rotary.nodes, rotary.Y)
        editor.require_op(match.name, x, anchor)
        return match

    def candidate(self, plan: RotaryMatch, editor: Editor) -> Candidate:
        operands = (plan.X, plan.rotary.cos, plan.rotary.sin)
        return editor.candidate(plan.name, operands, plan.rotary.Y, plan.rotary.nodes[-1])

    def rewrite(self, plan: RotaryMatch, editor: Editor) -> str:
        rotary, last = plan.rotary, plan.rotary.nodes[-1]
        builder, angles = Builder(editor, last), [rotary.cos, rotary.sin]
        if rotary.separate:
            dtype = editor.dtype(rotary.X)
            angles = [
                builder.op("Concat", value, value, axis=-1, _hint=f"{value.name}/twice", _dtype=dtype)
                for value in angles
            ]
        fused = builder.emit(plan.name, [plan.X, *angles], {"perm": plan.perm})
        nodes = [*rotary.nodes, *rotary.splits, *(() if plan.transpose is None else (plan.transpose,))]
        editor.replace(nodes, builder.nodes, {rotary.Y: fused.outputs[0]}, anchor=last)
        return became(len(rotary.nodes) + len(rotary.splits), plan.name)
