"""FusedMatMul, TransposeMatMul and FusedGemm: products with transposes, a factor and an activation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from graphopt.contrib import activation
from graphopt.contrib.schema import Call, Case, ContribOp, either, normal
from graphopt.contrib.writer import Writer
from graphopt.ops.schema import Array


def _perm(rank: int, transposed: bool, batch: bool) -> tuple[int, ...]:
    """[M, B.., K] becomes [B.., M, K] for `batch`; the last two change places for `transposed`."""
    perm = [*range(1, rank - 1), 0, rank - 1] if batch else list(range(rank))
    if transposed:
        perm[-2:] = perm[:-3:-1]
    return tuple(perm)


def _define_matmul(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    operands = []
    for name in "AB":
        x = call[name]
        transposed, batch = bool(call.attribute(f"trans{name}")), bool(call.attributes.get(f"transBatch{name}"))
        if transposed or batch:
            rank = w.rank(x)
            if rank > 1:  # a vector is its own transpose
                x = w.transpose(x, *_perm(rank, transposed, batch and rank > 2))
        operands.append(x)
    y = w.matmul(*operands)
    alpha = call.attribute("alpha")
    return {"Y": y if alpha == 1.0 else w.mul(y, w.number(alpha, w.dtype(call["A"], call["B"])))}


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


def _define_gemm(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    attributes = {n: call.attribute(n) for n in ("transA", "transB", "alpha", "beta")}
    y = w.op("Gemm", call["A"], call["B"], *((call["C"],) if "C" in call else ()), **attributes)
    return {"Y": activation.activate(w, y, w.dtype(call["A"]), call.attribute("activation"), _parameters(call))}


def _parameters(call: Call[ir.Value] | Call[Array]) -> list[float]:
    given = [call.attribute(f"activation_{n}") for n in ("alpha", "beta", "gamma")]
    return [p for p in given if p is not None]


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
    # Clip has no place in its two numbers; the runtime's Gemm fusion never writes it.
    attributes["activation"] = name if name and name != "Clip" else "Relu"
    if name != "Clip":
        attributes |= {f"activation_{n}": p for n, p in zip(("alpha", "beta"), parameters)}
    return Case(inputs, attributes, ("Y",))


_TRANSPOSES = {"alpha": 1.0, "transA": 0, "transB": 0}
SPECS = (
    ContribOp(
        "FusedMatMul",
        ("A", "B"),
        ("Y",),
        {**_TRANSPOSES, "transBatchA": 0, "transBatchB": 0},
        _define_matmul,
        _matmul_reference,
        lambda rng: _draw_matmul(rng, batches=True),
        on_provider="matmul",
        form="Transpose, MatMul, Mul",
    ),
    ContribOp(
        "TransposeMatMul",
        ("A", "B"),
        ("Y",),
        _TRANSPOSES,
        _define_matmul,
        _matmul_reference,
        lambda rng: _draw_matmul(rng, batches=False),
        on_provider="matmul",
        form="Transpose, MatMul, Mul",
    ),
    ContribOp(
        "FusedGemm",
        ("A", "B", "C?"),
        ("Y",),
        {
            **_TRANSPOSES,
            "beta": 1.0,
            "activation": None,
            "activation_alpha": None,
            "activation_beta": None,
            "activation_gamma": None,
        },
        _define_gemm,
        _gemm_reference,
        _draw_gemm,
        form="Gemm, activation",
        refuses="activations that no fusion of the runtime writes",
    ),
)
