"""One case: inputs, the plan that runs, and what must come out by a float64 reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.hip.harness import Array, Harness, Plan


@dataclass(frozen=True)
class Case:
    """A case of one operator.

    Attributes:
        name: unique within the operator.
        op: name of the operator.
        inputs: what the node reads, contiguous.
        expected: float64 references of the outputs.
        plan: makes the plan for a device's facts.
        prepare: makes the plan that prepares weights, if the operator has any.
        output_dtype: dtype of the outputs on the device; None for that of inputs[0].
        tolerance: max |got - expected| <= tolerance RMS(expected).

    """

    name: str
    op: str
    inputs: list[Array]
    expected: list[Array]
    plan: Callable[[Harness, int], Plan]
    tolerance: float
    prepare: Callable[[Harness, int], Plan] | None = field(default=None)
    output_dtype: Any = field(default=None)

    @property
    def dtype(self) -> Any:
        return self.inputs[0].dtype if self.output_dtype is None else np.dtype(self.output_dtype)

    def outputs(self) -> list[Array]:
        """The expected outputs, rounded to the dtype that the device writes."""
        with np.errstate(over="ignore"):
            return [e.astype(self.dtype) for e in self.expected]

    def check(self, got: list[Array]) -> str:
        """An empty string, or what is wrong."""
        for i, (actual, expected) in enumerate(zip(got, self.outputs(), strict=True)):
            message = compare(actual, expected, self.tolerance)
            if message:
                return f"output {i}: {message}"
        return ""


def compare(got: Array, expected: Array, tolerance: float) -> str:
    """An empty string, or how `got` differs: NaN and infinity positions must match, the rest be within tolerance."""
    actual, wanted = got.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(wanted)
    if not np.array_equal(np.isnan(actual), np.isnan(wanted)):
        return f"{np.isnan(actual).sum()} NaN, {np.isnan(wanted).sum()} expected"
    infinite = np.isinf(wanted)
    if not np.array_equal(np.isinf(actual), infinite) or (actual[infinite] != wanted[infinite]).any():
        return f"{np.isinf(actual).sum()} infinities, {infinite.sum()} expected"
    if not finite.any():
        return ""
    scale = np.sqrt(np.mean(wanted[finite] ** 2))
    error = np.abs(actual[finite] - wanted[finite]).max()
    if error <= tolerance * scale:
        return ""
    return f"error {error / scale if scale else np.inf:.3g} of RMS, tolerance {tolerance:.3g}"


def tolerance_of(dtype: Any, float32: float = 1e-5) -> float:
    return float32 if np.dtype(dtype) == np.float32 else 5e-3


def signed(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> Array:
    """Signed values of magnitude about 1."""
    return np.ascontiguousarray(rng.standard_normal(shape).astype(dtype))


Cases = Callable[[], Iterator[Case]]
