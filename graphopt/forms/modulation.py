"""Recognises Y A + B: scale A and shift B, computed for each image, of a norm's result Y (AdaLN of transformers)."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from graphopt.graph.editor import Editor
from graphopt.graph.shapes.sizes import Size
from graphopt.graph.view import other_input, sole_reader


@dataclass(frozen=True)
class Modulation:
    """The Mul and the Add after a norm, and their other operands."""

    scaled: ir.Node
    shifted: ir.Node
    scale: ir.Value
    shift: ir.Value

    @property
    def nodes(self) -> tuple[ir.Node, ir.Node]:
        return (self.scaled, self.shifted)


def modulation_of(y: ir.Value, editor: Editor) -> Modulation | None:
    """Returns the Mul that alone reads y and the Add that alone reads the Mul; None if an operand is constant."""
    scaled = sole_reader(y, "Mul")
    shifted = None if scaled is None else sole_reader(scaled.outputs[0], "Add")
    if scaled is None or shifted is None:
        return None
    scale, shift = other_input(scaled, y), other_input(shifted, scaled.outputs[0])
    if scale is None or shift is None or editor.is_constant(scale) or editor.is_constant(shift):
        return None
    return Modulation(scaled, shifted, scale, shift)


def is_modulated(y: ir.Value, editor: Editor) -> bool:
    """Returns whether y is modulated by a scale and a shift that have one row for each image."""
    found = modulation_of(y, editor)
    dims = editor.shapes.dims(y)
    if found is None or dims is None or len(dims) < 2:
        return False
    rows = [editor.shapes.dims(value) for value in (found.scale, found.shift)]
    return all(d is not None and is_row_of_each_image(d, dims) for d in rows)


def is_row_of_each_image(given: tuple[Size, ...], dims: tuple[Size, ...]) -> bool:
    """Returns whether a shape has the rank and last size of `dims`, and size 1 between the first and the last axis."""
    return len(given) == len(dims) and given[-1] == dims[-1] and all(size.value == 1 for size in given[1:-1])
