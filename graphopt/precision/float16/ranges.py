"""Ranges of activations: the largest values in runs of the float32 model.

They decide which activations fit float16: the residual streams of Gemma and T5 exceed 65504 and would become infinite.
`graphopt/verification/probes.py` measures them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from graphopt.precision.float16.constants import LARGEST
from graphopt.report.multiply_adds import Dims

# A value above float16's limit divided by this factor keeps float32, because other inputs may give larger values.
MARGIN = 4.0
# A weight is scaled so that the result of the matrix multiplication is at most the limit divided by this factor.
SCALED_MARGIN = 16.0


@dataclass(frozen=True)
class ActivationRanges:
    """The ranges of a model's float32 values in a few runs.

    Attributes:
        largest: value -> its largest finite magnitude.
        dims: operand or result of a matrix multiplication -> its dimensions in the first run.
    """

    largest: Mapping[str, float] = field(default_factory=dict)
    dims: Mapping[str, Dims] = field(default_factory=dict)

    def of(self, value: ir.Value | None) -> float:
        """Returns the largest magnitude of a value, and 0 if it was not measured."""
        return 0.0 if value is None else self.largest.get(value.name or "", 0.0)

    def exceeds(self, value: ir.Value | None) -> bool:
        """Returns whether a value's largest magnitude is above float16's largest number divided by `MARGIN`."""
        return self.of(value) > LARGEST / MARGIN


def power_that_fits(largest: float) -> int:
    """Returns the least k >= 0 with `largest` / 2^k <= float16's limit / `SCALED_MARGIN`."""
    return max(0, math.ceil(math.log2(largest * SCALED_MARGIN / LARGEST))) if largest > 0 else 0
