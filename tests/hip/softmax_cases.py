"""Softmax, LogSoftmax and LpNormalization on the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_int, c_int32, c_int64
from typing import Any

import numpy as np

from tests.hip.case import FLOATS, Case, signed, tolerance_of
from tests.hip.harness import Harness, Plan

# outer, D, inner
SOFTMAXES = (
    (3, 7, 1), (1, 1, 1), (5, 64, 1), (2, 1000, 1), (4, 129, 1), (9, 33, 1), (2, 4100, 1), (7, 256, 1),
    (3, 7, 5), (1, 1, 3), (2, 21, 64), (1, 300, 7), (4, 5, 100), (2, 9, 33), (1, 1000, 2), (5, 8, 32),
    (2, 64, 66), (1, 65, 8), (3, 64, 1001), (2, 200, 130), (1, 11, 3), (2, 65, 9), (1, 3, 2), (2, 2, 31), (1, 57, 258),
    (2, 8209, 1), (1, 8720, 1),  # rows that the registers of a work-group cannot hold
)  # fmt: skip


def softmax(name: str, dtype: Any, sizes: tuple[int, int, int], log: bool) -> Case:
    x = (2 * signed(np.random.default_rng(sizes), *sizes) + 3).astype(dtype)
    wide = x.astype(np.float64) - x.astype(np.float64).max(1, keepdims=True)
    y = wide - np.log(np.exp(wide).sum(1, keepdims=True))
    half = c_int(dtype == np.float16)

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("softmax", facts, half, *map(c_int64, sizes), c_int32(log))

    return Case(name, "Softmax", [x], [y if log else np.exp(y)], plan, tolerance_of(dtype))


def lp_norm(name: str, dtype: Any, sizes: tuple[int, int, int], order: int) -> Case:
    x = (2 * signed(np.random.default_rng(sizes), *sizes)).astype(dtype)
    (x[1::5] if sizes[2] == 1 else x[:, :, ::5])[:] = 0  # some vectors with a zero norm
    wide = x.astype(np.float64)
    norm = np.abs(wide).sum(1, keepdims=True) if order == 1 else np.sqrt((wide**2).sum(1, keepdims=True))
    half = c_int(dtype == np.float16)

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("softmax", facts, half, *map(c_int64, sizes), c_int32(1 + order))

    return Case(name, "LpNormalization", [x], [wide / np.where(norm == 0, 1, norm)], plan, tolerance_of(dtype))


def cases() -> Iterator[Case]:
    for suffix, dtype in FLOATS:
        for i, sizes in enumerate(SOFTMAXES):
            size = "x".join(map(str, sizes))
            yield softmax(f"softmax{'_log' if i % 2 else ''}_{suffix}-{size}", dtype, sizes, i % 2 == 1)
            yield lp_norm(f"lp_norm_{i % 2 + 1}_{suffix}-{size}", dtype, sizes, i % 2 + 1)
