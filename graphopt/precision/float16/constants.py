"""Constants in float16: their range problems, and the converted constants."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from graphopt.graph.editor import Editor
from graphopt.graph.operators.traits import QUANTIZATION
from graphopt.ops.schema import Array
from graphopt.passes.clean_up.constants import is_matrix
from graphopt.remarks import InitializerRange

FLOAT, HALF = ir.DataType.FLOAT, ir.DataType.FLOAT16
LARGEST = 65504.0
SMALLEST_NORMAL = 2.0**-14


def range_of(name: str, array: Array) -> InitializerRange:
    """Counts the elements of a float32 array that overflow or underflow in float16."""
    flat = array.reshape(-1)
    finite = flat[np.isfinite(flat)]
    size = np.abs(finite)
    half = to_half(finite)
    overflow = int(np.count_nonzero(np.isinf(half)))
    vanish = int(np.count_nonzero((half == 0) & (size > 0)))
    subnormal = int(np.count_nonzero((size > 0) & (size < SMALLEST_NORMAL) & (half != finite))) - vanish
    norm = float(np.linalg.norm(finite.astype(np.float64)))
    if overflow:
        error = math.inf
    elif norm == 0:
        error = 0.0
    else:
        error = float(np.linalg.norm(finite.astype(np.float64) - half)) / norm
    return InitializerRange(name, flat.size, overflow, max(subnormal, 0), vanish, error)


def to_half(array: Array) -> Array:
    with np.errstate(over="ignore", under="ignore"):
        return array.astype(np.float16)


def _saturated(array: Array) -> Array:
    """Converts to float16; finite elements beyond the range become its limits."""
    clipped = np.where(np.isfinite(array), np.clip(array, -LARGEST, LARGEST), array)
    return to_half(clipped)


@dataclass
class HalfConstants:
    """The constants of a model and their float16 copies.

    Attributes:
        editor: the model.
        ranges: the ranges computed so far.
        in_half: constants with a float16 copy, in the order of their conversion, which fixes their order in the file.
        scaled: (constant, power) -> the constant divided by 2^power, in float16.
    """

    editor: Editor
    ranges: dict[ir.Value, InitializerRange] = field(default_factory=dict)
    in_half: dict[ir.Value, None] = field(default_factory=dict)
    scaled: dict[tuple[ir.Value, int], ir.Value] = field(default_factory=dict)

    def range(self, value: ir.Value) -> InitializerRange:
        """Returns the range problems of a constant."""
        if value not in self.ranges:
            array = self.editor.constant(value)
            assert array is not None
            self.ranges[value] = range_of(value.name or "", array)
        return self.ranges[value]

    def may_store(self, value: ir.Value, node: ir.Node) -> bool:
        """Returns whether a constant may be stored in float16: matrices, filters and tables that fit.

        A stored constant is read through a Cast to float32. Scalars and vectors keep float32, because clean-up would
        fold this Cast.
        """
        tensor = self.editor.tensor(value)
        if tensor is None or tensor.dtype != FLOAT or not value.is_initializer() or node.op_type in QUANTIZATION:
            return False
        return is_matrix(tensor) and self.range(value).fits

    def may_scale(self, value: ir.Value | None, power: int) -> bool:
        """Returns whether a constant divided by 2^`power` neither overflows nor underflows in float16."""
        array = self.editor.constant(value)
        return array is not None and range_of("", np.ldexp(array, -power)).fits

    def scaled_half(self, value: ir.Value, power: int) -> ir.Value:
        """Returns a constant divided by 2^`power` in float16."""
        if (value, power) not in self.scaled:
            tensor = self.editor.tensor(value)
            assert tensor is not None
            shape = ir.Shape(tensor.shape.numpy())
            half = ir.LazyTensor(lambda: ir.Tensor(to_half(np.ldexp(tensor.numpy(), -power))), HALF, shape)
            self.in_half[value] = None
            self.scaled[value, power] = self.editor.initializer_like(value, half, "scaled")
        return self.scaled[value, power]

    def half(self, value: ir.Value, saturate: bool) -> ir.Value:
        """Returns a constant in float16; with `saturate` finite elements beyond the range become its limits."""
        tensor = self.editor.tensor(value)
        assert tensor is not None
        found = self.range(value)
        convert = _saturated if saturate and not found.fits else to_half
        # Computed each time it is read, because the model may be larger than memory.
        shape = ir.Shape(tensor.shape.numpy())
        half = ir.LazyTensor(lambda: ir.Tensor(convert(tensor.numpy())), HALF, shape)
        self.in_half[value] = None
        return self.editor.initializer_like(value, half, "half")

    def without_hidden(self, bias: ir.Value, array: Array) -> tuple[ir.Value | None, ir.Value]:
        """Splits an attention bias into a float16 bias and a boolean mask.

        Returns:
            The bias with 0 instead of finite elements <= -65504, or None if all elements would be 0; a mask that is
            false at these elements. -inf is kept.
        """
        keep = ~(np.isfinite(array) & (array <= -LARGEST))
        self.in_half[bias] = None
        rest = np.where(keep, array, 0)
        half = self.editor.initializer_like(bias, ir.Tensor(to_half(rest)), "half") if rest.any() else None
        return half, self.editor.initializer_like(bias, ir.Tensor(keep), "keep")
