"""A weight on disk times factors for its rows and columns, computed in blocks each time it is read.

A folded weight of a gigabyte is never in memory completely: each block is read from the data file of the input model,
multiplied in float64, cast once, and written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
import onnx_ir as ir

from graphopt.graph.traversal import tensor_array, tensor_dims
from graphopt.ops.schema import Array

BLOCK_BYTES = 16 * 1024 * 1024
# Smaller weights are computed at once, because reading them twice would cost more than keeping them in memory.
LARGE_BYTES = 64 * 1024 * 1024


class ScaledWeight(ir.LazyTensor):
    """`source` times `factor`, in the dtype of `source` (float32, float16 or float64).

    Args:
        source: the weight [rows, ..], on disk or a ScaledWeight.
        factor: float64, with the rank of `source`; broadcasts to its shape.
    """

    def __init__(self, source: ir.TensorProtocol, factor: Array) -> None:
        shape = ir.Shape(source.shape.numpy())
        super().__init__(self._compute, source.dtype, shape, name=source.name or "")
        self._source = source
        self._factor = factor

    def rows(self, start: int, stop: int) -> Array:
        """Returns the rows from start to stop, cast to the weight's dtype."""
        with np.errstate(over="ignore", invalid="ignore"):
            return _scaled(self._source, self._factor, start, stop).astype(self.dtype.numpy())

    def blocks(self) -> Iterator[Array]:
        """Yields all rows in order, in blocks, cast to the weight's dtype."""
        for start, stop in _ranges(self._source):
            yield self.rows(start, stop)

    def tofile(self, file: BinaryIO) -> None:
        for block in self.blocks():
            file.write(block.data)

    def _compute(self) -> ir.TensorProtocol:
        return ir.Tensor(np.concatenate(list(self.blocks())))


def is_streamed(tensor: ir.TensorProtocol) -> bool:
    """Returns whether a weight is on disk and so large that it must be processed in blocks."""
    return type(tensor) in (ScaledWeight, ir.ExternalTensor) and tensor.nbytes >= LARGE_BYTES


def scaled_rows(tensor: ir.TensorProtocol, factor: Array) -> Iterator[Array]:
    """Yields the rows of tensor * factor in float64, in order: all at once, or in blocks for a streamed weight."""
    if not is_streamed(tensor):
        yield tensor_array(tensor).astype(np.float64) * factor
        return
    for start, stop in _ranges(tensor):
        yield _scaled(tensor, factor, start, stop)


def _scaled(tensor: ir.TensorProtocol, factor: Array, start: int, stop: int) -> Array:
    wide = _rows(tensor, start, stop).astype(np.float64)
    wide *= factor[start:stop] if factor.shape[0] != 1 else factor
    return wide


def _ranges(tensor: ir.TensorProtocol) -> Iterator[tuple[int, int]]:
    rows = tensor_dims(tensor)[0]
    step = max(1, BLOCK_BYTES * rows // tensor.nbytes)
    return ((start, min(start + step, rows)) for start in range(0, rows, step))


def _rows(tensor: ir.TensorProtocol, start: int, stop: int) -> Array:
    if isinstance(tensor, ScaledWeight):
        return tensor.rows(start, stop)
    if not isinstance(tensor, ir.ExternalTensor):
        return np.asarray(tensor.numpy()[start:stop])
    # Read, not mapped: pages of a mapped file count as memory of this process until the system reclaims them.
    rows, *rest = tensor_dims(tensor)
    row_bytes = tensor.nbytes // rows
    dtype = np.dtype(tensor.dtype.numpy()).newbyteorder("<")
    offset = (tensor.offset or 0) + start * row_bytes
    count = (stop - start) * row_bytes // dtype.itemsize
    return np.fromfile(tensor.path, dtype, count, offset=offset).reshape(stop - start, *rest)
