"""Rounds weights to bfloat16 such that the errors of each sum cancel.

With rounding to nearest, the errors of a row do not cancel: activations do not average to zero. They are mostly outputs
of Relu, or images with equal neighbouring pixels, so the sum of the errors shifts every result in the same direction.
Here some elements near the middle between two bfloat16 values are rounded to the other neighbour until the errors of
the row cancel. This costs nothing at run time, and no element changes by more than one bfloat16 step.

The rounding minimizes the expected squared error of a row's sum for independent inputs with equal mean and standard
deviation:

    (sum of e)^2 + sum of e^2        e = rounded - weight

M. Nagel et al., "Up or Down? Adaptive Rounding for Post-Training Quantization", ICML 2020, choose the direction from
calibration inputs; here the distribution of the inputs is assumed.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from graphopt.graph.editor import Editor
from graphopt.graph.traversal import tensor_array, tensor_dims
from graphopt.ops.schema import Array

BLOCK = 1 << 16  # elements that are rounded at a time; the temporary arrays fit a cache


class RoundedWeight(ir.LazyTensor):
    """A float32 weight of bfloat16 values, computed each time it is read.

    Args:
        source: float32 [M, terms..], or [terms, M] if `terms_first`: each output sums over its terms.
        terms_first: whether the terms are the first axis.
    """

    def __init__(self, source: ir.TensorProtocol, *, terms_first: bool) -> None:
        super().__init__(self._compute, source.dtype, ir.Shape(tensor_dims(source)))
        self.source = source
        self.terms_first = terms_first

    def _compute(self) -> ir.TensorProtocol:
        array = tensor_array(self.source)
        if self.terms_first:
            return ir.Tensor(np.ascontiguousarray(to_bfloat16(array.T).T))
        return ir.Tensor(to_bfloat16(array.reshape(array.shape[0], -1)).reshape(array.shape))


def rounded(w: ir.Value, node: ir.Node, editor: Editor, *, terms_first: bool) -> ir.Value:
    """Returns the rounded weight as an initializer, which all readers of `w` in a graph share."""
    source = editor.tensor(w)
    assert source is not None, "`legal` requires a constant"
    name = f"{w.name}_bf16"
    made = None if node.graph is None else node.graph.initializers.get(name)
    tensor = None if made is None else made.const_value
    same = isinstance(tensor, RoundedWeight) and tensor.source is source and tensor.terms_first == terms_first
    if made is not None and same:
        return made
    return editor.initializer(node, RoundedWeight(source, terms_first=terms_first), name)


def to_bfloat16(weights: Array) -> npt.NDArray[np.float32]:
    """Rounds float32 weights [rows, terms] to one of the two nearest bfloat16 values, as float32."""
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
        # The step to the other neighbour. Zeros and elements without finite neighbours keep their value.
        bits, towards_zero = nearest.view(np.uint32), (error > 0) == (nearest > 0)
        other = np.where(towards_zero, bits - np.uint32(1 << 16), bits + np.uint32(1 << 16)).view(np.float32)
        movable = (error != 0) & (nearest != 0) & np.isfinite(nearest) & np.isfinite(other)
        step = np.where(movable, other.astype(np.float64) - nearest, 0.0)
    error[~np.isfinite(error)] = 0.0
    own = step * (2 * error + step)  # change of the sum of squares
    total = error.sum(axis=1)
    moved = np.zeros(weights.shape, bool)
    every = np.arange(len(weights))
    for _ in range(weights.shape[1]):  # a limit; far fewer iterations suffice
        gain = step * (2 * total[:, None] + step) + own
        best = gain.argmin(axis=1)
        better = gain[every, best] < 0
        if not better.any():
            break
        at = every[better], best[better]
        total[better] += step[at]
        step[at], own[at], moved[at] = -step[at], -own[at], ~moved[at]
    return np.where(moved, other, nearest)
