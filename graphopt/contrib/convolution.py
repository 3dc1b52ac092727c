"""FusedConv: act(Conv(X, W, B) + Z). NhwcConv: Conv with X and Y in the layout [N, spatial.., C]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from graphopt.contrib import activation
from graphopt.contrib.schema import Call, ContribOp
from graphopt.contrib.writer import Writer

CONV_ATTRIBUTES: Mapping[str, Any] = {
    "auto_pad": "NOTSET",
    "dilations": None,
    "group": 1,
    "kernel_shape": None,
    "pads": None,
    "strides": None,
}


def _conv(w: Writer, x: ir.Value, call: Call[ir.Value]) -> ir.Value:
    attributes = {n: call.attribute(n) for n in CONV_ATTRIBUTES if call.attribute(n) is not None}
    return w.op("Conv", x, call["W"], *((call["B"],) if "B" in call else ()), **attributes)


def _define_fused(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    y = _conv(w, call["X"], call)
    if "Z" in call:
        y = w.add(y, call["Z"])
    T, name = w.dtype(call["X"], call["W"]), call.attribute("activation")
    return {"Y": activation.activate(w, y, T, name, call.attribute("activation_params", ()))}


def _define_nhwc(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    return {"Y": w.channels_last(_conv(w, w.channels_first(call["X"]), call))}


SPECS = (
    ContribOp(
        "FusedConv(X, W, B?, Z?) -> Y",
        _define_fused,
        {**CONV_ATTRIBUTES, "activation": None, "activation_params": None},
        form="Conv, Add, activation",
    ),
    ContribOp("NhwcConv(X, W, B?) -> Y", _define_nhwc, CONV_ATTRIBUTES, form="Transpose, Conv, Transpose"),
)
