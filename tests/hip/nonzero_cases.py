"""NonZero on the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_int, c_int64
from typing import Any

import numpy as np

from tests.hip.case import Case
from tests.hip.harness import Array, Harness, Plan, int64s

PART = 4096  # elements of a work-group
# Shape, and the fraction of non-zero elements.
SHAPES: tuple[tuple[tuple[int, ...], float], ...] = (
    ((1,), 1), ((7,), 0.5), ((3, 5), 0.3), ((2, 3, 4, 5), 0.9), ((4097,), 0.02), ((90, 91), 0.5),
    ((3, 1, 2, 2, 3, 2), 0.5), ((300, 41), 1), ((64, 64), 0.001), ((2, 4104), 0.25), ((5, 1643), 0.25),
)  # fmt: skip
MANY_PARTS = PART * 2048 + 5  # elements of as many parts as a work-group sums in two rounds
TYPES = (np.bool_, np.float16, np.float32, np.int64)


def sparse(dims: tuple[int, ...], part: float, dtype: Any) -> Array:
    """Draws a sparse tensor with zeros of both signs and NaN, if the type has them."""
    rng = np.random.default_rng(dims)
    x = np.where(rng.random(dims) < part, rng.integers(1, 9, dims) * rng.choice([-1, 1], dims), 0)
    if np.dtype(dtype).kind != "f":
        return x.astype(dtype)
    y = x.astype(dtype) * rng.choice(np.array([-1, 1], dtype), dims)
    y[np.asarray(rng.random(dims) < 0.1) & (x != 0)] = np.nan
    return np.ascontiguousarray(y)


def count_case(name: str, x: Array) -> Case:
    """Counts the non-zero elements of x, and those before each part."""
    kind = (c_int64(x.itemsize), c_int(x.dtype.kind == "f"))
    counts = np.add.reduceat((x != 0).ravel(), np.arange(0, x.size, PART), dtype=np.int64)
    starts = np.cumsum(counts) - counts

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("nonzero_count", facts, c_int64(x.size), *kind)

    expected = [np.array([counts.sum()], np.float64), starts.astype(np.float64)]
    return Case(f"nonzero_count_{name}", "NonZero", [x], expected, plan, 0, output_dtype=(np.int64, np.uint32))


def cases() -> Iterator[Case]:
    many = np.zeros(MANY_PARTS, np.bool_)
    many[::4099] = True
    yield count_case(f"many_parts-{MANY_PARTS}", many)
    for dtype in TYPES:
        kind = (c_int64(np.dtype(dtype).itemsize), c_int(np.dtype(dtype).kind == "f"))
        for dims, part in SHAPES:
            x = sparse(dims, part, dtype)
            if len(dims) == 1:
                x = np.concatenate([x[:1], x])[1:]  # misaligned: not at a multiple of 16 bytes
            places = np.stack(np.nonzero(x))
            name = f"{np.dtype(dtype).name}-{'x'.join(map(str, dims))}"
            count = count_case(name, x)
            yield count

            def find(harness: Harness, facts: int, x: Array = x, kind: Any = kind, n: int = places.shape[1]) -> Plan:
                return harness.plan("nonzero_indices", facts, int64s([x.ndim, *x.shape]), *kind, c_int64(n))

            inputs = [x, count.expected[1].astype(np.uint32)]
            yield Case(f"nonzero_{name}", "NonZero", inputs, [places.astype(float)], find, 0, output_dtype=np.int64)
