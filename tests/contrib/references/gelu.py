"""Float64 references of gelu.py and its random nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from graphopt.contrib.schema import Call
from graphopt.ops.schema import Array
from tests.contrib.case import Case, Reference, either, normal

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _reference(x: Array) -> Array:
    return np.asarray(0.5 * x * (1.0 + _erf(x * math.sqrt(0.5))))


def _fast_reference(x: Array) -> Array:
    # The schema's two constants are sqrt(2 / pi) and 0.044715 times it, rounded.
    return np.asarray(0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))))


def _split_reference(call: Call[Array]) -> Mapping[str, Array]:
    left, right = np.split(call["X"] + call["bias"], 2, axis=-1)
    return {"Y": left * _reference(right)}


def _shape(rng: np.random.Generator) -> tuple[int, ...]:
    return tuple(either(rng, (7,), (3, 5), (2, 3, 17), (1, 2, 3, 16), (2, 0, 4)))


def _draw_gelu(rng: np.random.Generator) -> Case:
    return Case({"X": normal(rng, *_shape(rng), scale=3.0)}, outputs=("Y",))


def _draw_bias_gelu(rng: np.random.Generator) -> Case:
    shape = either(rng, (3, 5), (2, 3, 17), (1, 2, 3, 16))
    return Case({"A": normal(rng, *shape, scale=3.0), "B": normal(rng, shape[-1])}, outputs=("C",))


def _draw_fast_gelu(rng: np.random.Generator) -> Case:
    shape = either(rng, (3, 5), (2, 3, 17), (1, 2, 3, 16))
    inputs = {"X": normal(rng, *shape, scale=3.0)}
    if rng.random() < 0.5:
        inputs["bias"] = normal(rng, shape[-1])
    return Case(inputs, outputs=("Y",))


def _draw_quick_gelu(rng: np.random.Generator) -> Case:
    attributes = either(rng, {}, {"alpha": 1.0}, {"alpha": -0.5}, {"alpha": 2.5})
    return Case({"X": normal(rng, *_shape(rng), scale=3.0)}, attributes, ("Y",))


def _draw_bias_split_gelu(rng: np.random.Generator) -> Case:
    N, S, D = either(rng, (1, 3, 8), (2, 5, 34))
    return Case({"X": normal(rng, N, S, D), "bias": normal(rng, D)}, {}, ("Y",), frozenset({"bias"}))


def _draw_bias_add(rng: np.random.Generator) -> Case:
    N, S, C = either(rng, (1, 3, 8), (2, 5, 33))
    return Case({"X": normal(rng, N, S, C), "bias": normal(rng, C), "skip": normal(rng, N, S, C)}, outputs=("Y",))


REFERENCES = {
    ("com.microsoft", "Gelu"): Reference(lambda c: {"Y": _reference(c["X"])}, _draw_gelu),
    ("com.microsoft", "BiasGelu"): Reference(lambda c: {"C": _reference(c["A"] + c["B"])}, _draw_bias_gelu),
    ("com.microsoft", "FastGelu"): Reference(
        lambda c: {"Y": _fast_reference(c["X"] + c.inputs.get("bias", np.zeros(1)))}, _draw_fast_gelu
    ),
    ("com.microsoft", "QuickGelu"): Reference(
        lambda c: {"Y": c["X"] / (1.0 + np.exp(-c.attribute("alpha") * c["X"]))}, _draw_quick_gelu
    ),
    ("com.microsoft", "BiasSplitGelu"): Reference(_split_reference, _draw_bias_split_gelu),
    ("com.microsoft", "BiasAdd"): Reference(lambda c: {"Y": c["X"] + c["bias"] + c["skip"]}, _draw_bias_add),
}
