"""Follows dimensions through the integer operators that exporters build shapes with.

Exact integers only: a chain through floating point (Resize's scales) is not followed, since its rounding is the
runtime's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from graphopt.graph.editor import Dim, Editor

# Longer vectors are data, not shapes.
MAX_ELEMENTS = 64


@dataclass(frozen=True)
class Dims:
    """What is known of an integer scalar or vector: each element a number, a symbol, or None."""

    elements: tuple[Dim, ...]
    scalar: bool = False

    @property
    def known(self) -> list[int] | None:
        """The numbers, when all are known."""
        numbers = [e for e in self.elements if isinstance(e, int)]
        return numbers if len(numbers) == len(self.elements) else None


class PartialShapes:
    """Remembers what `visit` found; nodes are visited in topological order, each once."""

    def __init__(self, editor: Editor) -> None:
        self._editor = editor
        self._found: dict[ir.Value, Dims] = {}

    def of(self, value: ir.Value | None) -> Dims | None:
        """The elements of a value, or None when nothing is known of it."""
        if value is None:
            return None
        if value in self._found:
            return self._found[value]
        tensor = self._editor.tensor(value)
        if tensor is None or tensor.dtype not in (ir.DataType.INT64, ir.DataType.INT32):
            return None
        if len(tensor.shape) > 1 or tensor.size > MAX_ELEMENTS:
            return None
        array = tensor.numpy()
        dims = Dims(tuple(int(i) for i in array.reshape(-1)), array.ndim == 0)
        self._found[value] = dims
        return dims

    def visit(self, node: ir.Node) -> Dims | None:
        """What the node's output holds, remembered for the nodes behind it."""
        if node.domain != "" or node.op_type not in _OPERATORS or not node.inputs or node.inputs[0] is None:
            return None
        if any(a.is_ref() for a in node.attributes.values()):
            return None
        dims = self._compute(node, self._editor.opset(node))
        if dims is not None and len(dims.elements) <= MAX_ELEMENTS:
            self._found[node.outputs[0]] = dims
            return dims
        return None

    def _compute(self, node: ir.Node, opset: int) -> Dims | None:
        if node.op_type == "Shape":
            shape = self._editor.shape(node.inputs[0])
            if shape is None:
                return None
            start = node.attributes["start"].as_int() if "start" in node.attributes else 0
            end = node.attributes["end"].as_int() if "end" in node.attributes else len(shape)
            return Dims(shape[start:end])
        parts = [self.of(v) for v in node.inputs if v is not None]
        if len(parts) != len(node.inputs) or any(p is None for p in parts):
            return None
        known = [p for p in parts if p is not None]
        return _combine(node, known, opset)


def _combine(node: ir.Node, parts: Sequence[Dims], opset: int) -> Dims | None:
    data = parts[0]
    if node.op_type == "Identity":
        return data
    if node.op_type == "Cast":
        to = node.attributes["to"].as_int()
        small = all(not isinstance(e, int) or abs(e) < 2**31 for e in data.elements)
        return data if to == ir.DataType.INT64 or (to == ir.DataType.INT32 and small) else None
    if node.op_type == "Concat":
        return None if any(p.scalar for p in parts) else Dims(tuple(e for p in parts for e in p.elements))
    if node.op_type == "Unsqueeze":
        axes = parts[1].known if opset >= 13 and len(parts) > 1 else _ints(node, "axes")
        return Dims(data.elements) if data.scalar and axes in ([0], [-1]) else None
    if node.op_type == "Squeeze":
        return Dims(data.elements, True) if not data.scalar and len(data.elements) == 1 else None
    if node.op_type == "Gather":
        indices = parts[1].known
        if data.scalar or indices is None or any(not -len(data.elements) <= i < len(data.elements) for i in indices):
            return None
        return Dims(tuple(data.elements[i] for i in indices), parts[1].scalar)
    # Slice
    if opset < 10:
        starts, ends, axes, steps = (_ints(node, n) for n in ("starts", "ends", "axes", "steps"))
    else:
        starts, ends, axes, steps = (parts[i].known if i < len(parts) else None for i in (1, 2, 3, 4))
        if any(p.known is None for p in parts[1:]):
            return None
    if data.scalar or starts is None or ends is None or len(starts) != 1 or len(ends) != 1:
        return None
    if axes not in (None, [0], [-1]) or steps not in (None, [1]):
        return None
    return Dims(data.elements[starts[0] : ends[0]])


def _ints(node: ir.Node, name: str) -> list[int] | None:
    return list(node.attributes[name].as_ints()) if name in node.attributes else None


_OPERATORS = frozenset({"Shape", "Identity", "Cast", "Concat", "Unsqueeze", "Squeeze", "Gather", "Slice"})
