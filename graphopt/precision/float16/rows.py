"""Rewrites Transposes between planes [N, C, HW] and rows of pixels [N, HW, C] as Transposes with four axes.

GPU providers with channels-last layout omit Transposes with four axes.
"""

from __future__ import annotations

import onnx_ir as ir

from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.view import attribute_ints, is_read_once, producer_of
from graphopt.precision.float16.constants import HALF

_SWAP, _TO_ROWS, _TO_PLANES = (0, 2, 1), (0, 2, 3, 1), (0, 3, 1, 2)


def transpose_pixels(editor: Editor) -> None:
    """Moves float16 Transposes of three axes to the side of the Reshape where H and W are separate axes.

        Transpose<0, 2, 1>(Reshape(x [N, C, H, W])) = Reshape(Transpose<0, 2, 3, 1>(x))
        Reshape(Transpose<0, 2, 1>(x [N, HW, C])) = Transpose<0, 3, 1, 2>(Reshape(x))

    The elements are the same. Transformers for images change between planes and rows in this way.
    """
    for node in editor.nodes([("", "Transpose")]):
        reshape = producer_of(node.inputs[0], "Reshape")
        if reshape is not None and attribute_ints(node, "perm", ()) == _SWAP:
            _rewrite(reshape, node, editor, to_rows=True)
    for node in editor.nodes([("", "Reshape")]):
        transpose = producer_of(node.inputs[0], "Transpose")
        if transpose is not None and attribute_ints(transpose, "perm", ()) == _SWAP:
            _rewrite(transpose, node, editor, to_rows=False)


def _rewrite(first: ir.Node, second: ir.Node, editor: Editor, *, to_rows: bool) -> None:
    x, middle, y = first.inputs[0], first.outputs[0], second.outputs[0]
    if x is None or editor.dtype(x) != HALF or not is_read_once(middle) or first.graph is not second.graph:
        return
    planes, merged = editor.shapes.dims(x if to_rows else y), editor.shapes.dims(middle)
    if planes is None or merged is None or len(planes) != 4 or len(merged) != 3 or planes[:2] != merged[:2]:
        return
    _, channels, height, width = (size.value for size in planes)
    if not (channels and height and width):
        return
    b = Builder(editor, second)
    if to_rows:
        moved = b.op("Transpose", x, perm=_TO_ROWS, _hint=f"{b.label}/rows")
        result = b.op("Reshape", moved, b.ints(0, height * width, channels))
    else:
        split = b.op("Reshape", x, b.ints(0, height, width, channels), _hint=f"{b.label}/pixels")
        result = b.op("Transpose", split, perm=_TO_PLANES)
    editor.replace([second], b.nodes, {y: result}, anchor=second)
