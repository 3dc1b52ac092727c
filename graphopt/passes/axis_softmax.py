"""On CPUs a Softmax over an axis that is not the last becomes AxisSoftmax.

    Softmax(X, axis) = AxisSoftmax(X, axis)

Why it is legal: AxisSoftmax is defined by this equation. ONNX Runtime transposes the axis to the end and back, element
by element; our kernel vectorizes over the axes after that axis.

Conditions: Softmax over one axis (opset 13 and later) that is not the last; float32.

Where it is faster: if the axes after the Softmax axis have at least 16 elements, which fill one vector
(docs/measurements/forms_cpu.md). Examples are the boxes of YOLOv8 and the classes of segmentation models.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx_ir as ir

from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.operators.arguments import flattens
from graphopt.graph.view import attribute_int, require_input
from graphopt.metadata import Numerics
from graphopt.ops.axis_softmax import NAME
from graphopt.passes.base import Pass
from graphopt.remarks import became
from graphopt.targets.cpu import FEWEST_COLUMNS
from graphopt.targets.profit import Candidate


@dataclass(frozen=True)
class SoftmaxMatch:
    """A Softmax, its non-negative axis, and the number of elements of the axes after it (None if unknown)."""

    node: ir.Node
    X: ir.Value
    axis: int
    columns: int | None


class AxisSoftmax(Pass[SoftmaxMatch, SoftmaxMatch]):
    name = "axis_softmax"
    equation = "Softmax(X, axis) = AxisSoftmax(X, axis), not over the last axis"
    numerics = Numerics.REASSOCIATED
    anchors = frozenset({("", "Softmax")})
    fallback = True  # rewrites nodes that fuse_attention has refused

    def match(self, node: ir.Node, editor: Editor) -> SoftmaxMatch | None:
        x = require_input(node, 0)
        dims = editor.shapes.dims(x)
        if editor.target.device != "cpu" or flattens("Softmax", editor.opset(node)) or dims is None:
            return None
        axis = attribute_int(node, "axis", -1)
        axis += len(dims) if axis < 0 else 0
        if not 0 <= axis < len(dims) - 1:
            return None
        sizes = [size.value for size in dims[axis + 1 :]]
        columns = None if None in sizes else math.prod(size or 0 for size in sizes)
        return SoftmaxMatch(node, x, axis, columns)

    def legal(self, match: SoftmaxMatch, editor: Editor) -> SoftmaxMatch:
        editor.require_dtype(match.X, match.node, ir.DataType.FLOAT)
        editor.require_op(NAME, match.X, match.node)
        return match

    def candidate(self, plan: SoftmaxMatch, editor: Editor) -> Candidate:
        few = plan.columns is not None and plan.columns < FEWEST_COLUMNS
        no_gain = f"the {plan.columns} elements after axis {plan.axis} do not fill a vector" if few else ""
        return editor.candidate(NAME, (plan.X,), plan.node.outputs[0], plan.node, no_gain)

    def rewrite(self, plan: SoftmaxMatch, editor: Editor) -> str:
        new = Builder(editor, plan.node).emit(NAME, [plan.X], {"axis": plan.axis})
        editor.replace([plan.node], [new], {plan.node.outputs[0]: new.outputs[0]}, anchor=plan.node)
        return became(1, NAME)
