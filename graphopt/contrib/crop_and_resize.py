"""CropAndResize: crops boxes from images and resizes each crop to h x w, with aligned corners.

X [N, C, H, W]; rois [R, 4] are y1, x1, y2, x2 in units of H - 1 and W - 1; batch_indices [R] is the image of each box.
Output row i samples the image at y1 (H - 1) + i (y2 - y1) (H - 1) / (h - 1), or at the center of the box if h is 1.
Samples outside the image are `extrapolation_value`.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from graphopt.contrib.schema import Call, ContribOp
from graphopt.contrib.writer import Writer
from graphopt.remarks import Code

INT64 = ir.DataType.INT64
FLOAT = ir.DataType.FLOAT


def _define(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    x, rois, mode = call["X"], call["rois"], call.attribute("mode")
    if w.dtype(x, rois) != FLOAT:
        raise w.refuse(Code.WRONG_DTYPE, "X is not float32")
    if mode not in ("bilinear", "nearest"):
        raise w.refuse(Code.ATTRIBUTE, f"mode {mode} has no definition")
    size = w.cast(call["crop_size"], INT64)
    sides = []
    for axis, image_axis in ((0, 2), (1, 3)):
        count = w.slice(size, 0, axis, axis + 1)
        extent = w.dim(x, image_axis)
        sides.append(_positions(w, rois, axis, count, extent))
    (y, last_row), (x_at, last_column) = sides
    # In channels-last layout one GatherND reads all channels of a pixel.
    images, image = w.transpose(x, 0, 2, 3, 1), w.unsqueeze(w.cast(call["batch_indices"], INT64), 1, 2)
    inside = w.op("And", w.unsqueeze(_inside(w, y, last_row), 2), w.unsqueeze(_inside(w, x_at, last_column), 1))
    if mode == "nearest":
        value = _pixels(w, images, image, _round(w, y), _round(w, x_at), last_row, last_column)
    else:
        low_y, low_x = w.op("Floor", y), w.op("Floor", x_at)
        weight_y, weight_x = w.unsqueeze(w.sub(y, low_y), 2, 3), w.unsqueeze(w.sub(x_at, low_x), 1, 3)
        high_y, high_x = w.op("Ceil", y), w.op("Ceil", x_at)
        rows = []
        for row in (low_y, high_y):
            left, right = (_pixels(w, images, image, row, column, last_row, last_column) for column in (low_x, high_x))
            rows.append(w.add(left, w.mul(w.sub(right, left), weight_x)))
        value = w.add(rows[0], w.mul(w.sub(rows[1], rows[0]), weight_y))
    outside = w.number(call.attribute("extrapolation_value"), FLOAT)
    return {"Y": w.transpose(w.op("Where", w.unsqueeze(inside, 3), value, outside), 0, 3, 1, 2)}


def _positions(w: Writer, rois: ir.Value, axis: int, count: ir.Value, extent: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Returns the sampled image row (or column) of each crop row (or column), float [R, count], and the last index."""
    last = w.cast(w.sub(extent, w.ints(1)), FLOAT)
    begin = w.mul(w.slice(rois, 1, axis, axis + 1), last)
    end = w.mul(w.slice(rois, 1, axis + 2, axis + 3), last)
    step = w.unsqueeze(w.cast(w.arange(count), FLOAT), 0)
    one = w.ints(1)
    # With one row the result is `middle`; the divisor 1 only avoids a division by zero.
    steps = w.cast(w.op("Where", w.op("Equal", count, one), one, w.sub(count, one)), FLOAT)
    spread = w.add(begin, w.mul(step, w.div(w.sub(end, begin), steps)))
    middle = w.mul(w.add(begin, end), w.number(0.5, FLOAT))
    return w.op("Where", w.op("Equal", count, one), middle, spread), last


def _inside(w: Writer, at: ir.Value, last: ir.Value) -> ir.Value:
    zero = w.number(0.0, FLOAT)
    return w.op("Not", w.op("Or", w.op("Less", at, zero), w.op("Greater", at, last)))


def _round(w: Writer, at: ir.Value) -> ir.Value:
    """Rounds to the nearest integer; rounds halves up."""
    return w.op("Floor", w.add(at, w.number(0.5, FLOAT)))


def _pixels(
    w: Writer,
    images: ir.Value,
    image: ir.Value,
    y: ir.Value,
    x: ir.Value,
    last_row: ir.Value,
    last_column: ir.Value,
) -> ir.Value:
    """Gathers pixels [R, h, w, C]; positions outside the image read the nearest edge pixel.

    Args:
        w: writes the nodes.
        images: [N, H, W, C].
        image: the index of the image of each box, int64 [R, 1, 1].
        y: rows, float [R, h].
        x: columns, float [R, w].
        last_row: H - 1, float [1].
        last_column: W - 1, float [1].
    """
    zero = w.number(0.0, FLOAT)
    rows, columns = (
        w.cast(w.op("Min", w.op("Max", at, zero), last), INT64) for at, last in ((y, last_row), (x, last_column))
    )
    coordinates = [image, w.unsqueeze(rows, 2), w.unsqueeze(columns, 1)]
    shape = w.op("Shape", w.add(coordinates[1], coordinates[2]))
    index = w.concat([w.unsqueeze(w.op("Expand", coordinate, shape), 3) for coordinate in coordinates], 3)
    return w.op("GatherND", images, index)


SPECS = (
    ContribOp(
        "CropAndResize(X, rois, batch_indices, crop_size) -> Y",
        _define,
        {"extrapolation_value": 0.0, "mode": "bilinear"},
        kept_on_cpu="on onnxruntime 1.22 its kernel takes half of the definition's time",
        form="GatherND, Mul, Add",
        refuses="float16 and double",
    ),
)
