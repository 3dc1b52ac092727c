"""Replaces Slices, Concats and Transposes that move whole rows of one value with one Gather of these rows.

    f_n(... f_1(x)) = Reshape(Gather(Reshape(x), rows)), each f one of Slice, Concat, Transpose, Gather, Reshape

Shifted-window attention (Z. Liu et al., "Swin Transformer", 2021) has such nodes: a cyclic shift of an image's tokens
(torch.roll: two Slices and a Concat for each axis), the partition into windows, and the reverse of both. Patch merging
(strided Slices, concatenated over channels) is another case. Each node copies the whole tensor again.

Why it is legal: the operators only move elements, so each element of the result is an element of x. Its index does not
depend on the values of x: the pass runs the nodes on the indices of the elements. Elements that are adjacent in both x
and the result move together, as a row.

Conditions: all moved elements come from one value; no other node reads an intermediate value. Only the first dimension,
the number of images, may be unknown; then no node moves elements along it, and every image is moved in the same way. A
row has at least 64 bytes, and an image at most 2^18 rows, so the stored indices are small compared to the data.

Where it is faster: if the nodes copy at least twice as many elements as the Gather. The pass runs after
fuse_attention, because FusedAttention reads transposed operands without a copy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from graphopt.forms.row_moves import COPIES, MAX_ROWS, VIEWS, elements_of, images_of, is_known, moves_to, reshaped
from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.operators.arguments import signature
from graphopt.graph.shapes.sizes import Size
from graphopt.graph.view import sole_reader
from graphopt.metadata import Numerics
from graphopt.ops.schema import Array
from graphopt.passes.base import Pass
from graphopt.remarks import Code, Refusal, became
from graphopt.targets.profit import Candidate

MIN_ROW_BYTES = 64


@dataclass(frozen=True)
class RowMoves:
    """Nodes that move the elements of one value.

    Attributes:
        x: the value.
        dtype: its element type.
        nodes: the nodes in topological order; the last one produces the result.
        images: the number of images, which are moved independently.
        rows: for each row of an image of the result, the index of the row of x.
        rows_of_x: the number of rows of an image of x.
        width: the number of elements of a row.
        copied: the number of elements that the nodes copy for one image.
    """

    x: ir.Value
    dtype: ir.DataType
    nodes: tuple[ir.Node, ...]
    images: Size
    rows: Array
    rows_of_x: int
    width: int
    copied: int

    @property
    def y(self) -> ir.Value:
        return self.nodes[-1].outputs[0]


class GatherRows(Pass[RowMoves, RowMoves]):
    name = "gather_rows"
    equation = "Slice, Concat and Transpose of whole rows of x = Gather(x, rows)"
    numerics = Numerics.EXACT
    anchors = frozenset(("", op) for op in COPIES)

    def match(self, node: ir.Node, editor: Editor) -> RowMoves | None:
        last = node
        while (view := sole_reader(last.outputs[0], *VIEWS)) is not None and view.graph is node.graph:
            last = view
        x, nodes = moves_to(last, editor) if is_known(node, editor) else (None, [])
        dtype = editor.dtype(x)
        if x is None or dtype in (None, ir.DataType.STRING) or editor.is_constant(x):
            return None
        if sum(n.op_type in COPIES for n in nodes) < 2 or (editor.shapes.rank(x) or 0) < 2:
            return None
        dims, images = images_of(x, nodes, editor)
        elements = elements_of(x, nodes, dims, images, editor)
        moved = elements[last.outputs[0]].reshape(-1)
        width = _row_width(moved, elements[x].size)
        if moved.size == 0 or width * dtype.itemsize < MIN_ROW_BYTES:
            return None
        rows = (moved[::width] // width).astype(np.int32)
        copied = sum(elements[n.outputs[0]].size for n in nodes if n.op_type in COPIES)
        return RowMoves(x, dtype, tuple(nodes), images, rows, elements[x].size // width, width, copied)

    def legal(self, match: RowMoves, editor: Editor) -> RowMoves:
        if "shape" not in signature("Reshape", editor.opset(match.nodes[-1])).inputs:
            raise Refusal(Code.OPSET, "Reshape has its target shape as an attribute in this opset", match.nodes[-1])
        if match.rows.size > MAX_ROWS:
            raise Refusal(Code.WRONG_SHAPE, f"an image has {match.rows.size} rows, which are too many", match.nodes[-1])
        return match

    def candidate(self, plan: RowMoves, editor: Editor) -> Candidate:
        gathered = plan.rows.size * plan.width
        few = plan.copied < 2 * gathered
        no_gain = f"the nodes copy {plan.copied} elements per image, and a Gather {gathered}" if few else ""
        return editor.candidate("Gather", [plan.x], plan.y, plan.nodes[-1], no_gain)

    def rewrite(self, plan: RowMoves, editor: Editor) -> str:
        last = plan.nodes[-1]
        builder = Builder(editor, last)

        def shape_of_rows(rows: int) -> tuple[Size, ...]:
            return plan.images, Size.of(rows), Size.of(plan.width)

        rows = builder.initializer(plan.rows, "/rows")
        x_rows = reshaped(builder, plan.x, editor.shapes.dims(plan.x), shape_of_rows(plan.rows_of_x))
        gathered = builder.op("Gather", x_rows, rows, axis=1, _dtype=plan.dtype)
        y = reshaped(builder, gathered, shape_of_rows(plan.rows.size), editor.shapes.dims(plan.y))
        editor.replace(plan.nodes, builder.nodes, {plan.y: y}, anchor=last)
        return became(len(plan.nodes), "Gather")


def _row_width(elements: Array, size_of_x: int) -> int:
    """Returns the largest row width that divides the start of each run of consecutive elements, in x and the result."""
    flat = elements.reshape(-1)
    begins = np.flatnonzero(np.diff(flat, prepend=-2) != 1)
    return math.gcd(size_of_x, flat.size, *np.unique(begins).tolist(), *np.unique(flat[begins]).tolist())
