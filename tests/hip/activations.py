"""The activations in float64, by their index in the kernels."""

from __future__ import annotations

import numpy as np

from graphopt.ops.activation import ACTIVATIONS
from graphopt.ops.cases import ACTIVATION_ATTRIBUTES
from tests.hip.harness import Array

NAMES = tuple(ACTIVATIONS)


def parameters(name: str) -> tuple[int, float, float]:
    """Returns kind, a and b of an activation."""
    a, b, *_ = (*ACTIVATION_ATTRIBUTES.get(name, {}).values(), 0.0, 0.0)
    return NAMES.index(name), a, b


def apply(name: str, x: Array) -> Array:
    """Applies the activation to a float64 array."""
    attributes = {key: float(np.float32(value)) for key, value in ACTIVATION_ATTRIBUTES.get(name, {}).items()}
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(ACTIVATIONS[name].reference(x, **attributes))
