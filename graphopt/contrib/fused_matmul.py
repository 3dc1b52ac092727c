"""FusedMatMul, TransposeMatMul and FusedGemm: matrix multiplication with transposes, a factor and an activation."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from graphopt.contrib import activation
from graphopt.contrib.schema import Call, ContribOp
from graphopt.contrib.writer import Writer
from graphopt.ops.schema import Array


def _perm(rank: int, transposed: bool, batch: bool) -> tuple[int, ...]:
    """Returns a permutation: [M, B.., K] to [B.., M, K] if `batch`, then the last two axes swapped if `transposed`."""
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


def _define_gemm(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    attributes = {n: call.attribute(n) for n in ("transA", "transB", "alpha", "beta")}
    y = w.op("Gemm", call["A"], call["B"], *((call["C"],) if "C" in call else ()), **attributes)
    return {"Y": activation.activate(w, y, w.dtype(call["A"]), call.attribute("activation"), _parameters(call))}


def _parameters(call: Call[ir.Value] | Call[Array]) -> list[float]:
    given = [call.attribute(f"activation_{n}") for n in ("alpha", "beta", "gamma")]
    return [p for p in given if p is not None]


_TRANSPOSES = {"alpha": 1.0, "transA": 0, "transB": 0}
SPECS = (
    ContribOp(
        "FusedMatMul(A, B) -> Y",
        _define_matmul,
        {**_TRANSPOSES, "transBatchA": 0, "transBatchB": 0},
        on_provider="matmul/matmul",
        form="Transpose, MatMul, Mul",
    ),
    ContribOp(
        "TransposeMatMul(A, B) -> Y",
        _define_matmul,
        _TRANSPOSES,
        on_provider="matmul/matmul",
        form="Transpose, MatMul, Mul",
    ),
    ContribOp(
        "FusedGemm(A, B, C?) -> Y",
        _define_gemm,
        {
            **_TRANSPOSES,
            "beta": 1.0,
            "activation": None,
            "activation_alpha": None,
            "activation_beta": None,
            "activation_gamma": None,
        },
        form="Gemm, activation",
        refuses="activations that ONNX Runtime's fusion does not write",
    ),
)
