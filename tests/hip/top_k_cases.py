"""TopK, ArgMax and ArgMin on the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_int, c_int32, c_int64
from typing import Any

import numpy as np

from tests.hip.case import Case
from tests.hip.harness import Array, Harness, Plan

# In the order of the kernels' type codes.
TYPES: tuple[Any, ...] = (
    np.float32, np.float16, np.int64, np.int32, np.int8, np.uint8, np.int16, np.uint16, np.uint32, np.uint64,
)  # fmt: skip
# outer, R, inner, K: part of a chunk, one whole chunk, several chunks with few or many selected elements.
TOPS = (
    (3, 7, 1, 3), (1, 1, 1, 1), (2, 64, 5, 64), (1, 100, 3, 1), (2, 2048, 1, 2048), (1, 2049, 1, 1024),
    (2, 4100, 1, 5), (1, 5000, 2, 100), (1, 9000, 1, 1000),
    (1, 2049, 1, 2049), (2, 4100, 1, 1500), (1, 6145, 2, 1025), (1, 4096, 1, 4096), (1, 9000, 1, 3000),
    (2, 2050, 3, 2000), (1, 10300, 1, 10000), (3, 4097, 1, 1030),
)  # fmt: skip
# outer, R, inner: rows that begin at packs of 16 bytes (all or few of them), in one round and several, with partial
# packs.
ROWS = ((2, 4096, 1), (1, 8216, 1), (3, 80, 1), (5, 2049, 1))
# outer, R, inner
ARGS = (
    (3, 7, 1), (1, 1, 1), (5, 256, 1), (2, 1000, 1), (4, 255, 1), (9, 33, 1), (2, 4100, 1), (7, 49, 1), (1, 300, 1),
    (1, 9001, 1), (3, 8192, 1), (2, 9000, 3), (1, 70001, 1),
    (3, 7, 5), (1, 1, 3), (2, 60, 64), (1, 300, 7), (4, 5, 100), (9, 3, 33), (2, 2, 500), (1, 17, 2), (2, 8, 3),
)  # fmt: skip


def numbers(dtype: Any, *shape: int) -> Array:
    """Draws values with many ties, and for floats both zeros, infinities and NaN of both signs."""
    rng = np.random.default_rng(shape)
    x = rng.integers(-40, 40, shape)
    if not np.issubdtype(dtype, np.floating):
        whole = x.astype(dtype)
        if np.iinfo(dtype).bits > 8:
            whole.flat[0], whole.flat[-1] = np.iinfo(dtype).min, np.iinfo(dtype).max
        return whole
    y = (x / 4).astype(dtype)
    special = (0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan)
    for value, at in zip(special, rng.integers(0, y.size, len(special)), strict=True):
        if y.size > 20:
            y.flat[at] = value
    return y


def in_order(x: Array, smallest: bool, nan_first: bool) -> Array:
    """Returns the order along axis 1: ties in input order; NaN is the largest, or comes first."""
    wide = x if x.dtype.itemsize == 8 else x.astype(np.float64)
    nan = np.isnan(wide) if wide.dtype == np.float64 else np.zeros(x.shape, bool)
    numbers = np.where(nan, 0, wide)
    # Exact in both types: ranks of the distinct values.
    rank = np.unique(numbers, return_inverse=True)[1].reshape(x.shape)
    rank = rank if smallest else -rank
    last = rank.max() + 1
    rank = np.where(nan, rank.min() - 1 if nan_first or not smallest else last, rank)
    return np.argsort(rank, axis=1, kind="stable")


def top_k(name: str, dtype: Any, sizes: tuple[int, int, int, int], smallest: bool) -> Case:
    outer, R, inner, K = sizes
    x = numbers(dtype, outer, R, inner)
    which = in_order(x, smallest, nan_first=False)[:, :K]
    y = np.take_along_axis(x, which, 1)
    order = c_int32(TYPES.index(dtype))

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("top_k", facts, *map(c_int64, sizes), order, c_int(smallest))

    return Case(name, "TopK", [x], [y, which], plan, 0, output_dtype=(dtype, np.int64))


def arg(name: str, dtype: Any, sizes: tuple[int, int, int], smallest: bool, last: bool) -> Case:
    x = numbers(dtype, *sizes)
    from_end = in_order(x[:, ::-1], smallest, nan_first=True)[:, 0]
    y = sizes[1] - 1 - from_end if last else in_order(x, smallest, nan_first=True)[:, 0]
    order = c_int32(TYPES.index(dtype))

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("arg", facts, *map(c_int64, sizes), order, c_int(smallest), c_int(last))

    return Case(name, "ArgMin" if smallest else "ArgMax", [x], [y], plan, 0, output_dtype=np.int64)


def cases() -> Iterator[Case]:
    for i, top in enumerate(TOPS):
        dtype = TYPES[i % len(TYPES)]
        size = "x".join(map(str, top))
        yield top_k(f"top_k_{np.dtype(dtype)}-{size}", dtype, top, i % 4 == 1)
    for i, sizes in enumerate(ARGS):
        dtype = TYPES[i % len(TYPES)]
        size = "x".join(map(str, sizes))
        yield arg(f"arg_{np.dtype(dtype)}-{size}", dtype, sizes, i % 2 == 1, i % 3 == 1)
    for dtype in TYPES:
        for i, sizes in enumerate(ROWS):
            size = "x".join(map(str, sizes))
            yield arg(f"arg_rows_{np.dtype(dtype)}-{size}", dtype, sizes, i % 2 == 1, i in (1, 2))
