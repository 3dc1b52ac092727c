"""Recognises a half of a tensor along its last axis: one output of a Split in two, or a Slice."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from graphopt.graph.editor import Editor
from graphopt.graph.operators.arguments import spans
from graphopt.graph.view import attribute_int, producer_of


@dataclass(frozen=True)
class Half:
    """Half `index` (0 or 1) of X, produced by the node `split`."""

    X: ir.Value
    index: int
    split: ir.Node


def half_of(value: ir.Value, editor: Editor) -> Half | None:
    """Returns the tensor that `value` is half of, and which half; None if it is not a half along the last axis."""
    split = producer_of(value, "Split", "Slice")
    x = None if split is None else split.inputs[0]
    if split is None or x is None:
        return None
    last, part = editor.shapes.last(x), editor.shapes.last(value)
    if last is None or part is None or part + part != last:
        return None
    if split.op_type == "Split":
        if not editor.shapes.is_last(attribute_int(split, "axis", 0), x) or len(split.outputs) != 2:
            return None
        return Half(x, value.index() or 0, split)
    start, _, step = slice_of_last_axis(split, editor) or (None, None, None)
    if step != 1:
        return None
    length = part.value
    if start == 0:
        return Half(x, 0, split)
    return Half(x, 1, split) if length is not None and start in (length, -length) else None


def slice_of_last_axis(node: ir.Node, editor: Editor) -> tuple[int, int, int] | None:
    """Returns start, end and step of a Slice of the last axis only; None for other Slices, or if any is unknown."""
    found = spans(editor.arguments(node))
    if found is None or len(found) != 1 or not editor.shapes.is_last(found[0].axis, node.inputs[0]):
        return None
    start, end, step = found[0].start, found[0].end, found[0].step
    return None if start is None or end is None or step is None else (start, end, step)
