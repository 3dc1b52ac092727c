"""Linear[Add][act] on the GPU: as one GEMM, and as the epilogue after the vendor library's GEMM."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_float, c_int, c_int32, c_int64
from typing import Any

import numpy as np

from tests.hip import activations
from tests.hip.case import FLOATS, Case, signed, tolerance_of
from tests.hip.harness import Harness, Plan

# rows, K, N: rows of one element, rows that are and are not a multiple of the vector, several work-groups, one row.
SHAPES = ((2, 1, 5), (5, 9, 33), (70, 32, 64), (130, 24, 136), (1, 40, 200), (257, 3, 7))
ACTIVATIONS = ("Relu", "Silu", "Gelu", "GeluTanh", "Mish", "")


def case(name: str, dtype: Any, rows: int, K: int, N: int, act: str, fused: bool = False) -> Case:
    """Makes a case of Linear<act>, or LinearAdd without an activation; `fused` includes the GEMM."""
    rng = np.random.default_rng([rows, K, N, activations.NAMES.index(act)])
    x, w, b = signed(rng, rows, K, dtype=dtype), signed(rng, K, N, dtype=dtype), signed(rng, N, dtype=dtype)
    y = x.astype(np.float64) @ w.astype(np.float64)
    inputs = [x, w, b]
    if not fused:
        inputs[0] = y.astype(dtype)
        y = inputs[0].astype(np.float64)
    if act == "":
        inputs.append(signed(rng, rows, N, dtype=dtype))
    wide = [i.astype(np.float64) for i in inputs]
    y = y + wide[2]
    if act == "":
        y = y + wide[3]
    kind, p, q = activations.parameters(act)

    def plan(harness: Harness, facts: int) -> Plan:
        sizes = (c_int64(rows), c_int64(K), c_int64(N))
        activation = (c_int32(kind), c_float(p), c_float(q))
        return harness.plan(
            "linear", facts, c_int(dtype == np.float16), *sizes, c_int(act == ""), *activation, c_int(fused)
        )

    return Case(name, "Linear", inputs, [activations.apply(act, y)], plan, tolerance_of(dtype))


def cases() -> Iterator[Case]:
    for suffix, dtype in FLOATS:
        for i, act in enumerate(ACTIVATIONS):
            rows, K, N = SHAPES[i]
            yield case(f"linear_{act.lower() or 'add'}_{suffix}-{rows}x{K}x{N}", dtype, rows, K, N, act)
            yield case(f"linear_fused_{act.lower() or 'add'}_{suffix}-{rows}x{K}x{N}", dtype, rows, K, N, act, True)
            rows, K, N = SHAPES[(i + 3) % len(SHAPES)]
            yield case(f"linear_{act.lower() or 'add'}_{suffix}-{rows}x{K}x{N}", dtype, rows, K, N, act)
