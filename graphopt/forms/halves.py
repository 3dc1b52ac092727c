"""Recognises a half of a tensor along its last axis: one output of a Split in two, or a Slice."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from graphopt.graph.editor import Editor
from graphopt.graph.view import attribute_int, made_by


@dataclass(frozen=True)
class Half:
    """Half number `index` of X, which `cut` makes."""

    X: ir.Value
    index: int
    cut: ir.Node


def half_of(value: ir.Value, editor: Editor) -> Half | None:
    """What a value is a half of along the last axis; None when it is none."""
    cut = made_by(value, "Split", "Slice")
    x = None if cut is None else cut.inputs[0]
    if cut is None or x is None:
        return None
    last, part = editor.shapes.last(x), editor.shapes.last(value)
    if last is None or part is None or part + part != last:
        return None
    if cut.op_type == "Split":
        if not editor.shapes.is_last(attribute_int(cut, "axis", 0), x) or len(cut.outputs) != 2:
            return None
        return Half(x, value.index() or 0, cut)
    span = slice_of_last_axis(cut, editor)
    if span is None or span.step != 1:
        return None
    length = part.value
    if span.start == 0:
        return Half(x, 0, cut)
    return Half(x, 1, cut) if length is not None and span.start in (length, -length) else None


@dataclass(frozen=True)
class Span:
    start: int
    end: int
    step: int


def slice_of_last_axis(node: ir.Node, editor: Editor) -> Span | None:
    """Start, end and step of a Slice of the last axis alone; None for any other."""
    numbers: list[int] = []
    x = node.inputs[0]
    for position, default in ((1, None), (2, None), (3, None), (4, 1)):
        given = node.inputs[position] if position < len(node.inputs) else None
        elements = None if given is None else editor.shapes.elements(given)
        if given is None and default is not None:
            numbers.append(default)
            continue
        whole = None if elements is None else elements.integers
        if whole is None or len(whole) != 1:
            return None
        numbers += whole
    start, end, axis, step = numbers
    return Span(start, end, step) if x is not None and editor.shapes.is_last(axis, x) else None
