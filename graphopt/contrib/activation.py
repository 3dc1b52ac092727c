"""The activations that FusedConv and FusedGemm end with, by the names that their attributes have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from graphopt.contrib.schema import either
from graphopt.contrib.writer import Writer
from graphopt.ops.schema import Array
from graphopt.remarks import Code

# The attributes of the standard operator that the parameters become, in order.
PARAMETERS = {
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
    "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Clip": ("min", "max"),
}


def activate(w: Writer, x: ir.Value, T: ir.DataType, name: str | None, parameters: Sequence[float]) -> ir.Value:
    if not name:
        return x
    wanted = PARAMETERS.get(name)
    if wanted is None or len(parameters) < len(wanted):
        raise w.refuse(Code.ATTRIBUTE, f"the activation {name} with {len(parameters)} parameters")
    if name == "Clip":
        return w.op("Clip", x, *(w.number(p, T) for p in parameters[:2]))
    attributes: dict[str, Any] = {k: float(p) for k, p in zip(wanted, parameters)}
    return w.op(name, x, **attributes)


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
