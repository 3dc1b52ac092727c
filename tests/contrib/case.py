"""Random nodes of contrib operators, and their references."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphopt.contrib.schema import REQUIRED, Call, ContribOp
from graphopt.ops.schema import Array


@dataclass
class Case:
    """A random node, for tests of the definition.

    Attributes:
        inputs: formal name -> array, in the node's types.
        attributes: the attributes that the node has.
        outputs: the formal outputs that it has.
        constants: inputs that are initializers.
        dims: dimensions that the model declares for inputs; by default unique symbols.
        tolerance: relative to the RMS of each output, for operators with more rounding than float32.
        steps: allowed difference of a quantized output, since the last bits of the sum decide its rounding.
        kernel: the first release known to compute it as the schema says; None if ONNX Runtime's kernel reads out of
        bounds, and is not run.
        valid: output -> mask of its meaningful elements; by default all.
    """

    inputs: dict[str, Array]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    constants: frozenset[str] = frozenset()
    tolerance: float = 1e-5
    steps: int = 0
    dims: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    valid: Mapping[str, Array] = field(default_factory=dict)
    kernel: tuple[int, int] | None = (0, 0)


@dataclass(frozen=True)
class Reference:
    """The reference of an operator.

    Attributes:
        compute: computes the outputs in float64 with numpy, from the schema's text.
        draw: draws a random node, with odd sizes, with and without optional inputs and attributes.
    """

    compute: Callable[[Call[Array]], Mapping[str, Array]]
    draw: Callable[[np.random.Generator], Case]


def call_of(op: ContribOp, case: Case) -> Call[Array]:
    """Returns a random node as the reference reads it: floats in float64."""
    inputs = {k: v.astype(np.float64) if v.dtype.kind == "f" else v for k, v in case.inputs.items()}
    attributes = {k: v for k, v in op.attributes.items() if v is not REQUIRED} | case.attributes
    return Call(inputs, attributes, frozenset(case.outputs))


def either(rng: np.random.Generator, *choices: Any) -> Any:
    return choices[rng.integers(len(choices))]


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> Array:
    """Draws signed float32 values, some of them zero."""
    array = rng.normal(size=shape) * scale
    return np.where(rng.random(shape) < 0.02, 0.0, array).astype(np.float32)
