"""CumSum on the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_int, c_int64
from typing import Any

import numpy as np

from tests.hip.case import Case, signed, tolerance_of
from tests.hip.harness import Array, Harness, Plan, element_type

# outer, size, inner; rows of several tiles, and a few long rows, which are split.
SIZES = (
    (3, 7, 1), (1, 1, 1), (5, 1024, 1), (2, 1025, 1), (1, 9000, 1), (4, 2500, 1), (300, 5, 1), (2, 20000, 1),
    (3, 7, 5), (1, 1, 3), (2, 60, 64), (1, 300, 7), (4, 5, 100), (9, 3, 33), (2, 2, 500), (1, 17, 2),
)  # fmt: skip


def sums(x: Array, axis: int, reverse: bool, exclusive: bool) -> Array:
    # Integer sums wrap around.
    wide: Array = x.astype(np.float64 if np.issubdtype(x.dtype, np.floating) else np.int64)
    if reverse:
        wide = np.flip(wide, axis)
    y = np.cumsum(wide, axis)
    if exclusive:
        y = y - wide
    return np.asarray(np.flip(y, axis) if reverse else y)


def case(name: str, dtype: Any, sizes: tuple[int, int, int], reverse: bool, exclusive: bool) -> Case:
    x = (signed(np.random.default_rng(sizes), *sizes) + 2).astype(dtype)
    if dtype == np.float16:
        x = (x / 64).astype(dtype)  # keeps sums of thousands in range
    if dtype == np.int64:
        x = x << 60
    kind = element_type(dtype)

    def plan(harness: Harness, facts: int) -> Plan:
        outer, size, inner = map(c_int64, sizes)
        return harness.plan("cumsum", facts, kind, outer, size, inner, c_int(reverse), c_int(exclusive))

    tolerance = tolerance_of(dtype) if np.issubdtype(dtype, np.floating) else 0
    return Case(name, "CumSum", [x], [sums(x, 1, reverse, exclusive)], plan, tolerance)


def cases() -> Iterator[Case]:
    for dtype in (np.float32, np.float16, np.int32, np.int64):
        kind = np.dtype(dtype).name
        for i, sizes in enumerate(SIZES):
            yield case(f"cumsum_{kind}-{'x'.join(map(str, sizes))}", dtype, sizes, i % 3 == 1, i % 4 > 1)
