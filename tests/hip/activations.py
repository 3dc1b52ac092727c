"""The activations in float64, as docs/architecture.md defines them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tests.hip.harness import Array

# The order is that of native/operators/activation.h.
NAMES = (
    "", "Relu", "LeakyRelu", "Clip", "Sigmoid", "Silu", "HardSigmoid", "HardSwish", "Tanh", "Gelu", "GeluTanh", "Mish",
)  # fmt: skip
PARAMETERS = {"LeakyRelu": (0.1, 0.0), "Clip": (-0.5, 0.75), "HardSigmoid": (0.3, 0.4)}


def parameters(name: str) -> tuple[int, float, float]:
    """Kind, a and b of an activation."""
    a, b = PARAMETERS.get(name, (0.0, 0.0))
    return NAMES.index(name), a, b


def apply(name: str, x: Array) -> Array:
    """The activation of a float64 array."""
    _, a, b = parameters(name)
    a, b = float(np.float32(a)), float(np.float32(b))
    with np.errstate(over="ignore", invalid="ignore"):
        sigmoid = 1 / (1 + np.exp(-x))
        values: dict[str, Callable[[], Array]] = {
            "": lambda: x,
            "Relu": lambda: np.maximum(x, 0),
            "LeakyRelu": lambda: np.where(x < 0, a * x, x),
            "Clip": lambda: np.minimum(np.maximum(x, a), b),
            "Sigmoid": lambda: sigmoid,
            "Silu": lambda: x * sigmoid,
            "HardSigmoid": lambda: np.clip(a * x + b, 0, 1),
            "HardSwish": lambda: x * np.clip(x / 6 + 0.5, 0, 1),
            "Tanh": lambda: np.tanh(x),
            "Gelu": lambda: 0.5 * x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2))),
            "GeluTanh": lambda: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
            "Mish": lambda: x * np.tanh(np.logaddexp(0, x)),
        }
        return np.asarray(values[name]())
