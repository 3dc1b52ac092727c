"""One case: inputs, the plan to run, and the outputs expected by a float64 reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.hip.harness import Array, Harness, Plan

FLOATS: tuple[tuple[str, Any], ...] = (("f32", np.float32), ("f16", np.float16))  # suffix of kernel names, dtype


@dataclass(frozen=True)
class Case:
    """A case of one operator.

    Attributes:
        name: unique within the operator.
        op: name of the operator.
        inputs: the node's inputs, contiguous.
        expected: float64 references of the outputs.
        plan: makes the plan for the facts of a device.
        prepare: makes the plan that prepares weights, if the operator has any.
        output_dtype: dtype of the outputs on the device, or a tuple with one for each output; None for that of
            inputs[0].
        tolerance: max |got - expected| <= tolerance * RMS(expected).
        by_row: whether RMS is that of a row (the last axis) instead of the whole output. For rows of very different
            magnitude, where rounding errors of large rows exceed the RMS of small ones.
    """

    name: str
    op: str
    inputs: list[Array]
    expected: list[Array]
    plan: Callable[[Harness, int], Plan]
    tolerance: float
    prepare: Callable[[Harness, int], Plan] | None = field(default=None)
    output_dtype: Any = field(default=None)
    by_row: bool = False

    @property
    def dtypes(self) -> list[Any]:
        """Returns the dtype of each output."""
        if isinstance(self.output_dtype, tuple):
            return [np.dtype(d) for d in self.output_dtype]
        one = self.inputs[0].dtype if self.output_dtype is None else np.dtype(self.output_dtype)
        return [one] * len(self.expected)

    def outputs(self) -> list[Array]:
        """Returns the expected outputs, rounded to the dtype that the device writes."""
        with np.errstate(over="ignore"):
            return [e.astype(d) for e, d in zip(self.expected, self.dtypes, strict=True)]

    def view(self, memory: list[Array]) -> list[Array]:
        """Returns the outputs as views of the bytes that the device wrote."""
        return [m[: y.nbytes].view(y.dtype).reshape(y.shape) for m, y in zip(memory, self.outputs(), strict=True)]

    def check(self, got: list[Array]) -> str:
        """Returns a description of the first wrong output, or an empty string."""
        for i, (actual, expected) in enumerate(zip(got, self.outputs(), strict=True)):
            message = compare(actual, expected, self.tolerance, self.by_row)
            if message:
                return f"output {i}: {message}"
        return ""


def compare(got: Array, expected: Array, tolerance: float, by_row: bool = False) -> str:
    """Describes a difference, or returns an empty string.

    NaN and infinities must be at the same positions; all other elements must be within the tolerance.
    """
    actual, wanted = got.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(wanted)
    if not np.array_equal(np.isnan(actual), np.isnan(wanted)):
        return f"{np.isnan(actual).sum()} NaN, {np.isnan(wanted).sum()} expected"
    infinite = np.isinf(wanted)
    if not np.array_equal(np.isinf(actual), infinite) or (actual[infinite] != wanted[infinite]).any():
        return f"{np.isinf(actual).sum()} infinities, {infinite.sum()} expected"
    with np.errstate(invalid="ignore"):
        error = np.where(finite, np.abs(actual - wanted), 0)
        squares = np.where(finite, wanted**2, 0)
    axis = -1 if by_row else None
    count = np.maximum(finite.sum(axis=axis, keepdims=True), 1)
    scale = np.sqrt(squares.sum(axis=axis, keepdims=True) / count)
    if (error <= tolerance * scale).all():
        return ""
    worst = (error / np.maximum(scale, np.finfo(np.float64).tiny)).max()
    return f"error {worst:.3g} of RMS, tolerance {tolerance:.3g}"


def tolerance_of(dtype: Any, float32: float = 1e-5) -> float:
    return float32 if np.dtype(dtype) == np.float32 else 5e-3


def signed(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> Array:
    """Draws signed values of magnitude about 1."""
    return np.ascontiguousarray(rng.standard_normal(shape).astype(dtype))


def channels_last(x: Array, channels: int) -> Array:
    """Converts [planes, H, W] to [planes / channels, H, W, channels]."""
    return np.ascontiguousarray(np.moveaxis(x.reshape(-1, channels, *x.shape[1:]), 1, -1))
