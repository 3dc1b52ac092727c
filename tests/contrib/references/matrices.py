"""Float64 references of matrices.py and its random nodes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from graphopt.contrib.schema import Call
from graphopt.ops.schema import Array
from tests.contrib.case import Case, Reference, either, normal


def _trilu_reference(call: Call[Array]) -> Mapping[str, Array]:
    k = int(call["k"].reshape(-1)[0]) if "k" in call else 0
    return {"Y": np.triu(call["X"], k) if call.attribute("upper") else np.tril(call["X"], k)}


def _draw_trilu(rng: np.random.Generator) -> Case:
    shape = either(rng, (3, 5), (2, 4, 4), (2, 1, 5, 3))
    x = normal(rng, *shape) if rng.random() < 0.7 else rng.integers(-9, 9, shape, np.int64)
    inputs = {"X": x}
    if rng.random() < 0.6:
        inputs["k"] = np.array(rng.integers(-3, 4), np.int64)
    return Case(inputs, either(rng, {}, {"upper": 0}, {"upper": 1}), ("Y",))


def _draw_inverse(rng: np.random.Generator) -> Case:
    n = int(rng.integers(1, 6))
    x = normal(rng, *either(rng, (), (2,), (2, 3)), n, n) + 2 * np.eye(n, dtype=np.float32)[rng.permutation(n)]
    return Case({"X": x.astype(np.float32)}, {}, ("Y",), frozenset({"X"}), tolerance=1e-3)


REFERENCES = {
    ("com.microsoft", "Trilu"): Reference(_trilu_reference, _draw_trilu),
    ("com.microsoft", "Inverse"): Reference(lambda call: {"Y": np.linalg.inv(call["X"])}, _draw_inverse),
}
