"""The 16x16x16 tile of native/gemm/pipelines/instruction.h: products, chains of two products, and rows."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_int, c_int32
from typing import Any

import numpy as np

from tests.hip.case import FLOATS, Case, signed, tolerance_of
from tests.hip.harness import Harness, Plan

# M, N, K, P: one tile, partial tiles, many tiles.
SHAPES = (
    (16, 16, 16, 16), (1, 1, 1, 1), (15, 17, 16, 31), (16, 16, 48, 16), (33, 2, 7, 9), (48, 64, 32, 16),
    (5, 40, 19, 70), (64, 31, 65, 33), (17, 16, 96, 48),
)  # fmt: skip
KINDS = ("product", "chain", "rows")


def case(kind: str, suffix: str, dtype: Any, M: int, N: int, K: int, P: int) -> Case:
    rng = np.random.default_rng([M, N, K, P])
    if kind == "rows":
        N = min(N, 16)
    a, b = signed(rng, M, K, dtype=dtype), (signed(rng, N, K) / np.sqrt(K)).astype(dtype)
    inputs = [a, b]
    product = a.astype(np.float64) @ b.astype(np.float64).T
    expected = product
    if kind == "chain":
        inputs.append(signed(rng, N, P, dtype=dtype))
        expected = product.astype(dtype).astype(np.float64) @ inputs[2].astype(np.float64)
    if kind == "rows":
        expected = np.stack([product.max(axis=1), product.sum(axis=1)], axis=1)

    def plan(harness: Harness, facts: int) -> Plan:
        sizes = (c_int32(M), c_int32(N), c_int32(K), c_int32(P))
        return harness.plan("tile", facts, c_int(dtype == np.float16), c_int(KINDS.index(kind)), *sizes)

    return Case(f"tile_{kind}_{suffix}-{M}x{N}x{K}x{P}", "Tile", inputs, [expected], plan, tolerance_of(dtype))


def cases() -> Iterator[Case]:
    for suffix, dtype in FLOATS:
        for kind in KINDS:
            for M, N, K, P in SHAPES:
                yield case(kind, suffix, dtype, M, N, K, P)
