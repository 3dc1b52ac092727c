"""Moves a Gather of rows from the result of a MatMul to its input. The MatMul then multiplies fewer rows.

    (X W + b)[rows] = X[rows] W + b

Why it is legal: each row of X W depends only on the same row of X, and the bias is the same for all rows.

Windowed attention on padded images removes the padding after its last MatMul. The Gather that does so also reverses the
window partition. In Segment Anything 4096 of 4900 rows remain. After the rewrite this Gather reads the Transpose of the
heads, and gather_rows merges both into one copy.

Conditions: W is a matrix; b is a constant that is the same for all rows; the Gather selects along axis 1 of three, with
a constant vector of indices; at most a Reshape is between MatMul and Gather; no other node reads a value between them.

Where it is faster: if the Gather selects fewer rows than its input has. With the same number of rows it is faster if a
copy produces X, because gather_rows then merges both copies.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from graphopt.forms.linear import Linear, linear_before
from graphopt.forms.row_moves import COPIES, VIEWS, reshaped
from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.shapes.sizes import ONE, Size, shape_text
from graphopt.graph.view import attribute_int, producer_of, require_read_once, sole_reader
from graphopt.metadata import Numerics
from graphopt.passes.base import Pass
from graphopt.remarks import Code, Refusal, became
from graphopt.targets.profit import Candidate


@dataclass(frozen=True)
class GatherAfterMatMul:
    """A Gather after a MatMul.

    Attributes:
        linear: the MatMul and its bias.
        reshape: the Reshape between them, or None.
        gather: the Gather of rows.
        last: the Reshape that is the only reader of the Gather, or the Gather.
        images: the first dimension of the Gather's input.
        rows: the number of rows that the Gather selects, and the number of rows of its input, for each image.
        tokens: how many rows of the MatMul's result form one row of the Gather's input.
    """

    linear: Linear
    reshape: ir.Node | None
    gather: ir.Node
    last: ir.Node
    images: Size
    rows: tuple[int, int]
    tokens: int

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        """The nodes to remove, consumers first."""
        between = () if self.reshape is None else (self.reshape,)
        return (*dict.fromkeys((self.last, self.gather)), *between, *self.linear.nodes)


class HoistGather(Pass[GatherAfterMatMul, GatherAfterMatMul]):
    name = "hoist_gather"
    equation = "(X W + b)[rows] = X[rows] W + b"
    numerics = Numerics.REASSOCIATED
    anchors = frozenset({("", "Gather")})

    def match(self, node: ir.Node, editor: Editor) -> GatherAfterMatMul | None:
        rows = editor.constant(node.inputs[1])
        if rows is None or rows.ndim != 1 or attribute_int(node, "axis", 0) != 1:
            return None
        reshape = producer_of(node.inputs[0], "Reshape")
        matmul_output = node.inputs[0] if reshape is None else reshape.inputs[0]
        linear = None if matmul_output is None else linear_before(matmul_output, editor)
        if linear is None or linear.node.op_type != "MatMul" or linear.node.graph is not node.graph:
            return None
        dims, weight = editor.shapes.dims(node.inputs[0]), editor.shapes.dims(linear.W)
        if weight is None or len(weight) != 2:
            return None
        if dims is None or len(dims) != 3 or None in (dims[1].value, dims[2].value, *(d.value for d in weight)):
            text = f"the number and width of the rows must be known, but the shape is {shape_text(dims)}"
            raise Refusal(Code.UNKNOWN_SHAPE, text, node)
        length, width, channels = dims[1].value or 0, dims[2].value or 0, weight[1].value or 0
        if channels == 0 or width % channels:
            return None
        last = sole_reader(node.outputs[0], "Reshape") or node
        return GatherAfterMatMul(linear, reshape, node, last, dims[0], (rows.size, length), width // channels)

    def legal(self, match: GatherAfterMatMul, editor: Editor) -> GatherAfterMatMul:
        linear = match.linear
        bias = () if linear.bias is None else editor.shapes.dims(linear.bias)
        if bias is None or any(d != ONE for d in bias[:-1]) or len(bias) > (editor.shapes.rank(linear.X) or 0):
            raise Refusal(Code.WRONG_SHAPE, f"the bias has shape {shape_text(bias)}", linear.node)
        for node in match.nodes[len({match.last, match.gather}) :]:
            require_read_once(node.outputs[0], node)
        return match

    def candidate(self, plan: GatherAfterMatMul, editor: Editor) -> Candidate:
        selected, length = plan.rows
        is_faster = selected < length or (selected == length and _is_copy(plan.linear.X))
        no_gain = "" if is_faster else f"the Gather selects {selected} of {length} rows"
        return editor.candidate("MatMul", [plan.linear.X, plan.linear.W], plan.last.outputs[0], plan.gather, no_gain)

    def rewrite(self, plan: GatherAfterMatMul, editor: Editor) -> str:
        linear, gather = plan.linear, plan.gather
        builder, dtype = Builder(editor, gather), linear.Y.dtype
        (selected, length), tokens = plan.rows, plan.tokens
        inner = editor.shapes.last(linear.X) or ONE
        channels = editor.shapes.dim(linear.W, 1)

        def shape_of_rows(rows: int, width: Size) -> tuple[Size, ...]:
            return plan.images, Size.of(rows), width

        wide = Size.of(tokens) * inner
        value = reshaped(builder, linear.X, editor.shapes.dims(linear.X), shape_of_rows(length, wide))
        value = builder.op("Gather", value, gather.inputs[1], axis=1, _dtype=dtype)
        value = reshaped(builder, value, shape_of_rows(selected, wide), shape_of_rows(selected * tokens, inner))
        value = builder.op("MatMul", value, linear.W, _dtype=dtype)
        if linear.bias is not None:
            value = builder.op("Add", value, linear.bias, _dtype=dtype)
        y = plan.last.outputs[0]
        value = reshaped(builder, value, shape_of_rows(selected * tokens, channels), editor.shapes.dims(y))
        editor.replace(plan.nodes, builder.nodes, {y: value}, anchor=plan.last)
        return became(len(plan.nodes), "Gather and MatMul")


def _is_copy(x: ir.Value | None) -> bool:
    """Returns whether a copy (Slice, Transpose, ...) produces x, directly or through Reshapes without other readers."""
    while (view := producer_of(x, *VIEWS)) is not None and sole_reader(view.outputs[0]) is not None:
        x = view.inputs[0]
    return producer_of(x, *COPIES) is not None and sole_reader(x) is not None
