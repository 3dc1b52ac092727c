"""Float64 references of fused_matmul.py and its random nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphopt.contrib.fused_matmul import _parameters
from graphopt.contrib.schema import Call
from graphopt.ops.schema import Array
from tests.contrib.case import Case, Reference, either, normal
from tests.contrib.references import activation


def _matmul_reference(call: Call[Array]) -> Mapping[str, Array]:
    operands = []
    for name in "AB":
        x = call[name]
        if x.ndim > 2 and call.attributes.get(f"transBatch{name}"):
            x = np.moveaxis(x, 0, -2)
        if x.ndim > 1 and call.attribute(f"trans{name}"):
            x = np.swapaxes(x, -1, -2)
        operands.append(x)
    return {"Y": np.asarray(call.attribute("alpha") * np.matmul(*operands))}


def _draw_matmul(rng: np.random.Generator, batches: bool) -> Case:
    M, K, N = (int(rng.integers(1, 9)) for _ in range(3))
    batch: Sequence[int] = either(rng, (), (2,), (2, 3))
    attributes: dict[str, float] = {}
    shapes = {}
    for name, rows, columns in (("A", M, K), ("B", K, N)):
        shape = [*batch, rows, columns]
        if rng.random() < 0.5:
            attributes[f"trans{name}"] = 1
            shape[-2:] = shape[:-3:-1]
        if batches and batch and rng.random() < 0.4:
            attributes[f"transBatch{name}"] = 1
            shape = [shape[-2], *shape[:-2], shape[-1]]
        shapes[name] = shape
    if rng.random() < 0.5:
        attributes["alpha"] = float(either(rng, -0.5, 0.125, 3.0))
    return Case({n: normal(rng, *s) for n, s in shapes.items()}, attributes, ("Y",))


def _gemm_reference(call: Call[Array]) -> Mapping[str, Array]:
    A = call["A"].T if call.attribute("transA") else call["A"]
    B = call["B"].T if call.attribute("transB") else call["B"]
    y = call.attribute("alpha") * (A @ B)
    if "C" in call:
        y = y + call.attribute("beta") * call["C"]
    return {"Y": activation.reference(y, call.attribute("activation"), _parameters(call))}


def _draw_gemm(rng: np.random.Generator) -> Case:
    M, K, N = (int(rng.integers(1, 9)) for _ in range(3))
    attributes: dict[str, Any] = {}
    shapes = {"A": (M, K), "B": (K, N)}
    for operand in "AB":
        if rng.random() < 0.5:
            attributes[f"trans{operand}"] = 1
            shapes[operand] = shapes[operand][::-1]
    inputs = {n: normal(rng, *s) for n, s in shapes.items()}
    if rng.random() < 0.6:
        inputs["C"] = normal(rng, *either(rng, (M, N), (N,), (1, N), (M, 1)))
        attributes["beta"] = float(either(rng, 1.0, -0.5))
    attributes["alpha"] = float(either(rng, 1.0, 0.25))
    name, parameters = activation.draw(rng)
    # The two parameters cannot represent Clip; ONNX Runtime's Gemm fusion never writes it.
    attributes["activation"] = name if name and name != "Clip" else "Relu"
    if name != "Clip":
        attributes |= {f"activation_{n}": p for n, p in zip(("alpha", "beta"), parameters)}
    return Case(inputs, attributes, ("Y",))


REFERENCES = {
    ("com.microsoft", "FusedMatMul"): Reference(_matmul_reference, lambda rng: _draw_matmul(rng, batches=True)),
    ("com.microsoft", "TransposeMatMul"): Reference(_matmul_reference, lambda rng: _draw_matmul(rng, batches=False)),
    ("com.microsoft", "FusedGemm"): Reference(_gemm_reference, _draw_gemm),
}
