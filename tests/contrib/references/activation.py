"""The activations of FusedConv and FusedGemm."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphopt.contrib.activation import PARAMETERS
from graphopt.ops.schema import Array
from tests.contrib.case import either


def reference(x: Array, name: str | None, parameters: Sequence[float]) -> Array:
    p = parameters
    match name:
        case "Relu":
            return np.maximum(x, 0.0)
        case "Sigmoid":
            return np.asarray(1.0 / (1.0 + np.exp(-x)))
        case "Tanh":
            return np.tanh(x)
        case "LeakyRelu":
            return np.where(x < 0, p[0] * x, x)
        case "HardSigmoid":
            return np.clip(p[0] * x + p[1], 0.0, 1.0)
        case "Clip":
            return np.clip(x, p[0], p[1])
    return x


def draw(rng: np.random.Generator) -> tuple[str | None, list[float]]:
    name = either(rng, None, *PARAMETERS)
    return name, {"LeakyRelu": [0.1], "HardSigmoid": [0.3, 0.4], "Clip": [-0.5, 0.75]}.get(name or "", [])
