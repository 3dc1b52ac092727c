"""IndexAdd: Y = data, and Y[.., indices[e], ..] += updates[.., e, ..] for each e in order, as PyTorch's index_add.

data and Y [.., D, ..], updates [.., E, ..] of the same rank with sizes up to those of data along the other axes,
indices [E] or [1] of int32 or int64 in [-D, D). A single index is that of all E slices. CPU only.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.ops.schema import Array, Dialect, OpSpec, ints, widen

NAME = "IndexAdd"
REDUCTION_OPSET = 16  # ScatterElements has the attribute reduction


def _reference(data: Array, indices: Array, updates: Array, axis: int) -> tuple[Array, ...]:
    y = widen(data).copy()
    part = y[tuple(slice(None if i == axis % y.ndim else n) for i, n in enumerate(updates.shape))]
    lines = np.moveaxis(part, axis, 0)  # a view of y
    np.add.at(lines, np.broadcast_to(indices, updates.shape[axis]), np.moveaxis(widen(updates), axis, 0))
    return (y,)


def _body(_: Dialect) -> str:
    """The indices get size 1 along the other axes, by a Reshape to a list of ones with -1 at the axis."""
    return (
        "shape = Shape(updates)\nrank = Shape(shape)\n"
        "ones = ConstantOfShape <value: tensor = int64[1] {1}> (rank)\n"
        "at_axis = Constant <value_int: int = @axis> ()\n"
        + ints("one", 1)
        + ints("minus_one", -1)
        + "at = Reshape(at_axis, one)\n"
        "column = ScatterElements(ones, at, minus_one)\n"
        "index = Reshape(indices, column)\n"
        "indices_of_updates = Expand(index, shape)\n"
        'Y = ScatterElements <axis: int = @axis, reduction: string = "add"> (data, indices_of_updates, updates)\n'
    )


SPECS = (
    OpSpec(
        name=NAME,
        inputs=("data", "indices", "updates"),
        outputs=("Y",),
        attributes={"axis": ir.AttributeType.INT},
        body=_body,
        min_opset=REDUCTION_OPSET,
        reference=_reference,
        summary="Y = data, with updates added to the slices that indices select",
        keeps_shape=True,
        gpu_kernel=False,
        float32_only=True,
        integers=("indices",),
    ),
)
