"""A weight in bfloat16, rounded so that the sums that it is for move least.

Rounding each number to its nearest leaves errors that add up to something: what a sum of products reads is no noise
around zero, but mostly what a Relu gave or a picture that changes little from one pixel to the next, so that the sum of
the errors moves every result the same way. Here some numbers, those that lie near the middle between two of bfloat16's,
go to the other neighbour, until the errors of a sum's terms cancel. It costs nothing when the model runs, and no number
moves by more than the distance of two neighbours.

Minimized is what a row's error adds to its sum, squared, for inputs whose mean is as large as their deviation:

    (sum of e)^2 + sum of e^2        e = rounded - weight

It is the choice of Nagel et al., "Up or Down? Adaptive Rounding for Post-Training Quantization" (ICML 2020), by a fixed
guess of what is read in place of inputs to measure it on.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from graphopt.graph.editor import Editor
from graphopt.graph.traversal import tensor_array, tensor_dims
from graphopt.ops.schema import Array

BLOCK = 1 << 16  # numbers that are rounded at a time: with what is kept of them they fit a cache


class RoundedWeight(ir.LazyTensor):
    """A float32 weight of numbers that bfloat16 has, computed whenever it is read.

    Args:
        source: float32, [M, terms..], or [terms, M] where they come first: a result sums over its terms.
        terms_first: which.
    """

    def __init__(self, source: ir.TensorProtocol, *, terms_first: bool) -> None:
        super().__init__(self._all, source.dtype, ir.Shape(tensor_dims(source)))
        self.source = source
        self.terms_first = terms_first

    def _all(self) -> ir.TensorProtocol:
        array = tensor_array(self.source)
        if self.terms_first:
            return ir.Tensor(np.ascontiguousarray(to_bfloat16(array.T).T))
        return ir.Tensor(to_bfloat16(array.reshape(array.shape[0], -1)).reshape(array.shape))


def rounded(w: ir.Value, node: ir.Node, editor: Editor, *, terms_first: bool) -> ir.Value:
    """A constant of the numbers that take those of `w`'s place, the same one for all nodes of a graph that share it."""
    source = editor.tensor(w)
    assert source is not None, "`legal` asked for a constant"
    name = f"{w.name}_bf16"
    made = None if node.graph is None else node.graph.initializers.get(name)
    tensor = None if made is None else made.const_value
    same = isinstance(tensor, RoundedWeight) and tensor.source is source and tensor.terms_first == terms_first
    if made is not None and same:
        return made
    return editor.initializer(node, RoundedWeight(source, terms_first=terms_first), name)


def to_bfloat16(weights: Array) -> npt.NDArray[np.float32]:
    """float32 [rows, terms] of numbers that bfloat16 has: each one of the two nearest to a weight."""
    rows, terms = weights.shape
    result = np.empty(weights.shape, np.float32)
    step = max(BLOCK // max(terms, 1), 1)
    for start in range(0, rows, step):
        result[start : start + step] = _rows(np.asarray(weights[start : start + step], np.float32))
    return result


def _rows(weights: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore", invalid="ignore"):
        nearest = weights.astype(ml_dtypes.bfloat16).astype(np.float32)
        error = nearest.astype(np.float64) - weights
        # What the other neighbour would add to it. Zeros stay, and so does what has no finite neighbours.
        bits, towards_zero = nearest.view(np.uint32), (error > 0) == (nearest > 0)
        other = np.where(towards_zero, bits - np.uint32(1 << 16), bits + np.uint32(1 << 16)).view(np.float32)
        movable = (error != 0) & (nearest != 0) & np.isfinite(nearest) & np.isfinite(other)
        step = np.where(movable, other.astype(np.float64) - nearest, 0.0)
    error[~np.isfinite(error)] = 0.0
    own = step * (2 * error + step)  # of the sum of squares
    total = error.sum(axis=1)
    moved = np.zeros(weights.shape, bool)
    every = np.arange(len(weights))
    for _ in range(weights.shape[1]):  # far more than it takes
        gain = step * (2 * total[:, None] + step) + own
        best = gain.argmin(axis=1)
        better = gain[every, best] < 0
        if not better.any():
            break
        at = every[better], best[better]
        total[better] += step[at]
        step[at], own[at], moved[at] = -step[at], -own[at], ~moved[at]
    return np.where(moved, other, nearest)
