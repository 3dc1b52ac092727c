"""Float64 references of convolution.py and its random nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphopt.contrib.convolution import CONV_ATTRIBUTES
from graphopt.contrib.schema import Call
from graphopt.ops.schema import Array
from tests.contrib.case import Case, Reference, either, normal
from tests.contrib.references import activation


def conv_reference(x: Array, call: Call[Array]) -> Array:
    """Computes Conv with any number of spatial axes, by ONNX's operator specification."""
    W, group = call["W"], call.attribute("group")
    axes = x.ndim - 2
    strides: Sequence[int] = call.attribute("strides", [1] * axes)
    dilations: Sequence[int] = call.attribute("dilations", [1] * axes)
    extents = [d * (k - 1) + 1 for d, k in zip(dilations, W.shape[2:])]
    pads: list[int] = list(call.attribute("pads", [0] * 2 * axes))
    if call.attribute("auto_pad") in ("SAME_UPPER", "SAME_LOWER"):
        for i, (size, stride, extent) in enumerate(zip(x.shape[2:], strides, extents)):
            total = max((-(-size // stride) - 1) * stride + extent - size, 0)
            pads[i], pads[i + axes] = total // 2, total - total // 2
            if call.attribute("auto_pad") == "SAME_LOWER":
                pads[i], pads[i + axes] = pads[i + axes], pads[i]
    padded = np.pad(x, [(0, 0), (0, 0), *zip(pads[:axes], pads[axes:])])
    windows = np.lib.stride_tricks.sliding_window_view(padded, extents, axis=tuple(range(2, x.ndim)))
    windows = windows[tuple(slice(None, None, s) for s in (1, 1, *strides, *dilations))]
    N, C, M = x.shape[0], x.shape[1], W.shape[0]
    out = windows.shape[2 : 2 + axes]
    grouped = windows.reshape(N, group, C // group, *out, *W.shape[2:])
    weights = W.reshape(group, M // group, C // group, *W.shape[2:])
    letters, window = "xyz"[:axes], "ijk"[:axes]
    y: Array = np.einsum(f"ngc{letters}{window},gmc{window}->ngm{letters}", grouped, weights).reshape(N, M, *out)
    return y + call["B"].reshape(-1, *[1] * axes) if "B" in call else y


def _fused_reference(call: Call[Array]) -> Mapping[str, Array]:
    y = conv_reference(call["X"], call) + call.inputs.get("Z", np.zeros(1))
    return {"Y": activation.reference(y, call.attribute("activation"), call.attribute("activation_params", ()))}


def _nhwc_reference(call: Call[Array]) -> Mapping[str, Array]:
    return {"Y": np.moveaxis(conv_reference(np.moveaxis(call["X"], -1, 1), call), 1, -1)}


def draw_conv(rng: np.random.Generator) -> tuple[dict[str, Array], dict[str, Any]]:
    axes, group = int(either(rng, 1, 2, 2, 3)), int(either(rng, 1, 1, 2))
    N, C, M = int(rng.integers(1, 3)), group * int(rng.integers(1, 4)), group * int(rng.integers(1, 4))
    kernel = [int(k) for k in rng.integers(1, 4, axes)]
    attributes: dict[str, Any] = {"group": group, "kernel_shape": kernel}
    if rng.random() < 0.5:
        attributes["strides"] = [int(s) for s in rng.integers(1, 3, axes)]
    if rng.random() < 0.3:
        attributes["auto_pad"] = either(rng, "SAME_UPPER", "SAME_LOWER", "VALID")
    else:
        attributes["pads"] = [int(p) for p in rng.integers(0, 3, 2 * axes)]
        if rng.random() < 0.4:
            attributes["dilations"] = [int(d) for d in rng.integers(1, 3, axes)]
    size = [int(s) for s in rng.integers(5, 9, axes)]
    inputs = {"X": normal(rng, N, C, *size), "W": normal(rng, M, C // group, *kernel)}
    if rng.random() < 0.6:
        inputs["B"] = normal(rng, M)
    return inputs, attributes


def _draw_fused(rng: np.random.Generator) -> Case:
    inputs, attributes = draw_conv(rng)
    name, parameters = activation.draw(rng)
    if name is not None:
        attributes["activation"] = name
    if parameters:
        attributes["activation_params"] = parameters
    if rng.random() < 0.4:
        call: Call[Array] = Call(inputs, {**CONV_ATTRIBUTES, **attributes}, frozenset())
        inputs["Z"] = normal(rng, *conv_reference(inputs["X"], call).shape)
    return Case(inputs, attributes, ("Y",), frozenset({"W", "B"}))


def _draw_nhwc(rng: np.random.Generator) -> Case:
    inputs, attributes = draw_conv(rng)
    inputs["X"] = np.ascontiguousarray(np.moveaxis(inputs["X"], 1, -1))
    return Case(inputs, attributes, ("Y",), frozenset({"W", "B"}))


REFERENCES = {
    ("com.microsoft", "FusedConv"): Reference(_fused_reference, _draw_fused),
    ("com.microsoft", "NhwcConv"): Reference(_nhwc_reference, _draw_nhwc),
}
