"""Writes the activations that attributes of FusedConv and FusedGemm name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from graphopt.contrib.writer import Writer
from graphopt.remarks import Code

# Activation name -> attributes of the standard operator, in the order of the parameters.
PARAMETERS = {
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
    "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Clip": ("min", "max"),
}


def activate(w: Writer, x: ir.Value, T: ir.DataType, name: str | None, parameters: Sequence[float]) -> ir.Value:
    """Returns the activation `name` of x, of element type T; x if `name` is empty.

    Raises:
        Refusal: an activation that is not in PARAMETERS, or too few parameters.
    """
    if not name:
        return x
    wanted = PARAMETERS.get(name)
    if wanted is None or len(parameters) < len(wanted):
        raise w.refuse(Code.ATTRIBUTE, f"activation {name} with {len(parameters)} parameters has no definition")
    if name == "Clip":
        return w.op("Clip", x, *(w.number(p, T) for p in parameters[:2]))
    attributes: dict[str, Any] = {k: float(p) for k, p in zip(wanted, parameters)}
    return w.op(name, x, **attributes)
