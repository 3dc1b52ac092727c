"""Float64 references of group_norm.py and its random nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphopt.contrib.schema import Call
from graphopt.ops.schema import Array
from tests.contrib.case import Case, Reference, either, normal


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


REFERENCES = {
    ("com.microsoft", "GroupNorm"): Reference(_reference, lambda rng: _draw(rng, skip=False)),
    ("com.microsoft", "SkipGroupNorm"): Reference(_reference, lambda rng: _draw(rng, skip=True)),
}
