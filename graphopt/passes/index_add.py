"""On CPUs a scatter that adds whole slices along one axis becomes IndexAdd.

    ScatterElements(data, Expand(column(i)), updates, axis, add) = IndexAdd(data, i, updates, axis)
    ScatterND(data, column(i), updates, add)                     = IndexAdd(data, i, updates, 0)

column(i) are the indices i with size 1 along all axes but one. PyTorch exports index_add and scatter_add like this, and
PyTorch Geometric sums the messages of a graph network with them (M. Fey and J. E. Lenssen, "Fast Graph Representation
Learning with PyTorch Geometric", 2019).

Why it is legal: the indices of all elements of a slice of updates are equal, so the element goes to the same place of
the slice that the index selects. Each element of the result adds its updates in the same order as in ONNX Runtime's
ScatterElements, so the bits are equal. ONNX Runtime's ScatterND adds with several threads, which may lose updates.

Conditions: the axis and the rank of data are known; the indices have size 1 along the other axes before Expand, or are
a constant that repeats them; float32.

Where it is faster: ONNX Runtime computes the address of each element, on one thread. Our kernel adds rows of vectors.
For few elements both take the time of a call (docs/passes/index_add.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from graphopt.forms.row_moves import VIEWS
from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.shapes import sizes
from graphopt.graph.view import attribute_int, attribute_string, producer_of, require_input
from graphopt.metadata import Numerics
from graphopt.ops.index_add import NAME
from graphopt.ops.schema import Array
from graphopt.passes.base import Pass
from graphopt.remarks import Code, Refusal, became
from graphopt.targets.profit import Candidate

# With fewer elements of updates ONNX Runtime's nodes are as fast.
FEWEST_UPDATES = 256


@dataclass(frozen=True)
class SliceScatter:
    """A scatter that adds slices.

    Attributes:
        node: the ScatterElements or ScatterND.
        data: its first input.
        indices: a value with the index of each slice, or their array.
        updates: its last input.
        axis: the axis; negative ones count from the end.
    """

    node: ir.Node
    data: ir.Value
    indices: ir.Value | Array
    updates: ir.Value
    axis: int


class IndexAdd(Pass[SliceScatter, SliceScatter]):
    name = "index_add"
    equation = "ScatterElements and ScatterND that add slices along an axis = IndexAdd(data, indices, updates)"
    numerics = Numerics.EXACT
    anchors = frozenset({("", "ScatterElements"), ("", "ScatterND")})

    def match(self, node: ir.Node, editor: Editor) -> SliceScatter | None:
        if editor.target.device != "cpu" or attribute_string(node, "reduction", "none") != "add":
            return None
        data, indices, updates = (require_input(node, i) for i in range(3))
        dims = editor.shapes.dims(indices)
        if node.op_type == "ScatterND":
            is_column = dims is not None and len(dims) == 2 and dims[1].value == 1
            return SliceScatter(node, data, indices, updates, 0) if is_column else None
        axis = attribute_int(node, "axis", 0)
        expand = producer_of(indices, "Expand")
        if expand is not None:
            return SliceScatter(node, data, require_input(expand, 0), updates, axis)
        if (array := editor.constant(indices)) is not None and (line := _line(array, axis)) is not None:
            return SliceScatter(node, data, line, updates, axis)
        others = () if dims is None else [d.value for i, d in enumerate(dims) if i not in (axis, axis + len(dims))]
        is_column = dims is not None and all(size == 1 for size in others)
        return SliceScatter(node, data, indices, updates, axis) if is_column else None

    def legal(self, match: SliceScatter, editor: Editor) -> SliceScatter:
        node, indices = match.node, match.indices
        editor.require_dtype(match.data, node, ir.DataType.FLOAT)
        editor.require_op(NAME, match.data, node)
        if node.op_type == "ScatterElements" and isinstance(indices, ir.Value):
            rank, dims = len(editor.require_dims(match.data, node)), editor.require_dims(indices, node)
            axis = match.axis - (rank if match.axis >= 0 else 0) + len(dims)  # Expand aligns the last axes
            for i, size in enumerate(dims):
                if i != axis and size.value is None:
                    raise Refusal(Code.UNKNOWN_SHAPE, f"the size of axis {i} of {indices.name} is not known", node)
                if i != axis and size.value != 1:
                    raise Refusal(Code.WRONG_SHAPE, f"axis {i} of {indices.name} has size {size.value}, not 1", node)
        return match

    def candidate(self, plan: SliceScatter, editor: Editor) -> Candidate:
        dims = editor.shapes.dims(plan.updates)
        elements = None if dims is None else sizes.product(dims).value
        few = elements is not None and elements < FEWEST_UPDATES
        no_gain = f"ONNX Runtime's kernel is as fast for {elements} elements of updates" if few else ""
        return editor.candidate(NAME, (plan.data, plan.updates), plan.node.outputs[0], plan.node, no_gain)

    def rewrite(self, plan: SliceScatter, editor: Editor) -> str:
        node = plan.node
        builder = Builder(editor, node)
        if isinstance(plan.indices, ir.Value):
            indices = _flat(plan.indices, editor) or builder.reshape(plan.indices, -1)
        else:
            indices = builder.initializer(plan.indices, "/indices")
        new = builder.emit(NAME, [plan.data, indices, plan.updates], {"axis": plan.axis})
        editor.replace([node], builder.nodes, {node.outputs[0]: new.outputs[0]}, anchor=node)
        return became(1, NAME)


def _line(array: Array, axis: int) -> Array | None:
    """Returns the elements along the axis if they are equal for all positions along the other axes."""
    if not -array.ndim <= axis < array.ndim or array.size == 0:
        return None
    lines = np.moveaxis(array, axis, -1).reshape(-1, array.shape[axis])
    return lines[0].copy() if (lines == lines[0]).all() else None


def _flat(indices: ir.Value, editor: Editor) -> ir.Value | None:
    """Returns the value of rank 1 that the indices are a view of, if there is one."""
    while editor.shapes.rank(indices) != 1:
        view = producer_of(indices, "Identity", *VIEWS)
        if view is None:
            return None
        indices = require_input(view, 0)
    return indices
