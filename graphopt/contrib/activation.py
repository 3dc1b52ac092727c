"""The activations that FusedConv and FusedGemm end with, by the names that their attributes have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from graphopt.contrib.writer import Writer
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
        raise w.refuse(Code.ATTRIBUTE, f"its activation is {name} with {len(parameters)} parameters")
    if name == "Clip":
        return w.op("Clip", x, *(w.number(p, T) for p in parameters[:2]))
    attributes: dict[str, Any] = {k: float(p) for k, p in zip(wanted, parameters)}
    return w.op(name, x, **attributes)
