"""Trilu: the upper or lower triangle of matrices. Inverse: the inverse of square matrices."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from graphopt.contrib.schema import Call, ContribOp
from graphopt.contrib.writer import Writer
from graphopt.graph.operators.arguments import first_opset
from graphopt.remarks import Code

# The largest number of rows of a matrix for which the definition unrolls the Gauss-Jordan elimination.
MAX_INVERSE = 16


def _define_trilu(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    x, k, upper = call["X"], call.get("k"), int(call.attribute("upper") != 0)
    if w.opset >= first_opset("Trilu"):
        return {"Y": w.op("Trilu", x, *((k,) if k is not None else ()), upper=upper)}
    row = w.unsqueeze(w.arange(w.dim(x, -2)), 1)
    column = w.unsqueeze(w.arange(w.dim(x, -1)), 0)
    diagonal = row if k is None else w.add(row, w.op("Reshape", k, w.ints(1)))
    kept = w.op("Not", w.op("Less" if upper else "Greater", column, diagonal))
    return {"Y": w.op("Where", kept, x, w.number(0, w.dtype(x)))}


def _define_inverse(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    """Writes an unrolled Gauss-Jordan elimination of [X | I] with partial pivoting."""
    x = call["X"]
    n = w.size(x, -1)
    if n is None or not 0 < n <= MAX_INVERSE:
        raise w.refuse(Code.UNKNOWN_SHAPE, f"the definition needs a static size up to {MAX_INVERSE}")
    T = w.dtype(x)
    work = x if T == ir.DataType.FLOAT else w.cast(x, ir.DataType.FLOAT)
    eye = w.array(np.eye(n, dtype=np.float32))
    matrix = w.reshape(work, -1, n, n)
    right = w.expand(eye, w.dim(matrix, 0), n, n)
    rows = w.concat([matrix, right], -1)
    index = w.ints(*range(n))
    for step in range(n):
        column = w.slice(rows, 2, step, step + 1)  # [B, n, 1]
        size = w.op("Abs", column)
        if step:  # exclude earlier pivot rows
            is_remaining = w.array(np.arange(n).reshape(1, n, 1) >= step)
            size = w.op("Where", is_remaining, size, w.number(-1.0, ir.DataType.FLOAT))
        pivot = w.op("ArgMax", size, axis=1, keepdims=1)  # [B, 1, 1]
        row_index = w.op("Reshape", index, w.ints(1, n, 1))
        # Exchanges rows `step` and `pivot`; `source` is the old index of each row.
        source = w.op("Where", w.op("Equal", row_index, pivot), w.ints(step), row_index)
        source = w.op("Where", w.op("Equal", row_index, w.ints(step)), pivot, source)
        rows = w.op("GatherElements", rows, w.op("Expand", source, w.op("Shape", rows)), axis=1)
        pivot_row = w.slice(rows, 1, step, step + 1)
        pivot_row = w.div(pivot_row, w.slice(pivot_row, 2, step, step + 1))
        factors = w.slice(rows, 2, step, step + 1)
        reduced = w.sub(rows, w.mul(factors, pivot_row))
        rows = w.op("Where", w.array(np.arange(n).reshape(1, n, 1) == step), pivot_row, reduced)
    y = w.op("Reshape", w.slice(rows, 2, n, None), w.op("Shape", x))
    return {"Y": y if T == ir.DataType.FLOAT else w.cast(y, T)}


SPECS = (
    ContribOp(
        "Trilu(X, k?) -> Y", _define_trilu, {"upper": 1}, kept_on_cpu="there is nothing to fuse it with", form="Trilu"
    ),
    ContribOp(
        "Inverse(X) -> Y",
        _define_inverse,
        kept_on_cpu="the definition is an unrolled Gauss-Jordan elimination",
        form="Gauss-Jordan elimination, written out",
        refuses=f"sizes that are not static, or above {MAX_INVERSE}",
    ),
)
