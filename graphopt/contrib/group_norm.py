"""GroupNorm and SkipGroupNorm: y = silu?(gamma (s - mean) / sqrt(var + epsilon) + beta), s = x + skip + bias.

X is [N, H, W, C] unless channels_last is 0. Y. Wu, K. He, "Group Normalization", ECCV 2018.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from graphopt.contrib.schema import REQUIRED, Call, Case, ContribOp, either, normal
from graphopt.contrib.writer import Writer
from graphopt.ops.schema import Array


def _define(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    x, outputs = call["X"], {}
    if "skip" in call:
        x = _sum(w, call)
        outputs["S"] = x
    last, groups = bool(call.attribute("channels_last")), call.attribute("groups")
    if last:
        x = w.transpose(x, 0, 3, 1, 2)
    T = w.dtype(call["X"])
    grouped = w.reshape(x, 0, groups, -1)
    one, zero = (w.array(np.full(groups, n, T.numpy())) for n in (1, 0))
    normalized = w.op("InstanceNormalization", grouped, one, zero, epsilon=call.attribute("epsilon"))
    y = w.op("Reshape", normalized, w.op("Shape", x))
    for name, op in (("gamma", "Mul"), ("beta", "Add")):
        parameter = call[name] if w.dtype(call[name]) == T else w.cast(call[name], T)
        y = w.op(op, y, w.unsqueeze(parameter, 1, 2))
    if call.attribute("activation"):
        y = w.mul(y, w.op("Sigmoid", y))
    outputs["Y"] = w.transpose(y, 0, 2, 3, 1) if last else y
    return outputs


def _sum(w: Writer, call: Call[ir.Value]) -> ir.Value:
    last = bool(call.attribute("channels_last"))
    skip, bias = call["skip"], call.get("bias")
    if w.rank(skip) == 2:
        skip = w.unsqueeze(skip, *((1, 2) if last else (2, 3)))
    x = w.add(call["X"], skip)
    return x if bias is None else w.add(x, bias if last else w.unsqueeze(bias, 1, 2))


def _reference(call: Call[Array]) -> Mapping[str, Array]:
    last, groups = call.attribute("channels_last"), call.attribute("groups")
    s = call["X"]
    channel = (1, 1, -1) if last else (-1, 1, 1)
    if "skip" in call:
        skip = call["skip"]
        s = s + (skip.reshape(skip.shape[0], *channel) if skip.ndim == 2 else skip)
    if "bias" in call:
        s = s + call["bias"].reshape(channel)
    x = np.moveaxis(s, -1, 1) if last else s
    split = x.reshape(x.shape[0], groups, -1)
    mean, variance = split.mean(-1, keepdims=True), split.var(-1, keepdims=True)
    y = ((split - mean) / np.sqrt(variance + call.attribute("epsilon"))).reshape(x.shape)
    y = y * call["gamma"].reshape(-1, 1, 1) + call["beta"].reshape(-1, 1, 1)
    if call.attribute("activation"):
        y = y / (1.0 + np.exp(-y))
    return {"Y": np.moveaxis(y, 1, -1) if last else y, "S": s}


def _draw(rng: np.random.Generator, skip: bool) -> Case:
    groups = int(either(rng, 1, 2, 4))
    C = groups * int(rng.integers(1, 4))
    N, H, W = (int(n) for n in rng.integers(1, 5, 3))
    attributes: dict[str, Any] = {"groups": groups, "activation": int(either(rng, 0, 1))}
    last = rng.random() < 0.6
    if not last or rng.random() < 0.5:
        attributes["channels_last"] = int(last)
    if rng.random() < 0.5:
        attributes["epsilon"] = 0.1
    shape = (N, H + 1, W, C) if last else (N, C, H + 1, W)
    inputs = {"X": normal(rng, *shape) + np.float32(0.5), "gamma": normal(rng, C), "beta": normal(rng, C)}
    outputs: tuple[str, ...] = ("Y",)
    if skip:
        inputs["skip"] = normal(rng, *either(rng, shape, (N, C), (N, 1, 1, C) if last else (N, C, 1, 1)))
        if rng.random() < 0.5:
            inputs["bias"] = normal(rng, C)
        outputs = either(rng, ("Y",), ("Y", "S"))
    return Case(inputs, attributes, outputs, frozenset({"gamma", "beta", "bias"}))


_ATTRIBUTES = {"activation": REQUIRED, "channels_last": 1, "epsilon": 1e-5, "groups": REQUIRED}
SPECS = (
    ContribOp(
        "GroupNorm",
        ("X", "gamma", "beta"),
        ("Y",),
        _ATTRIBUTES,
        _define,
        _reference,
        lambda rng: _draw(rng, skip=False),
        form="FusedGroupNorm[Silu]",
    ),
    ContribOp(
        "SkipGroupNorm",
        ("X", "gamma", "beta", "skip", "bias?"),
        ("Y", "S?"),
        _ATTRIBUTES,
        _define,
        _reference,
        lambda rng: _draw(rng, skip=True),
        form="Add, FusedGroupNorm[Silu]",
    ),
)
