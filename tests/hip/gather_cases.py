"""Gather, GatherElements and GatherND on the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_int, c_int64
from typing import Any

import numpy as np

from tests.hip.case import Case, signed
from tests.hip.harness import Harness, Plan, int64s

Dims = tuple[int, ...]
TYPES = (np.uint8, np.float16, np.float32, np.int64)
# Shape of x, shape of the indices, axis.
ELEMENTS: tuple[tuple[Dims, Dims, int], ...] = (
    ((7,), (5,), 0), ((3, 4), (3, 9), 1), ((5, 6), (9, 4), 0), ((2, 3, 4), (2, 7, 4), 1), ((1, 50), (1, 2000), 1),
    ((2, 3, 4, 5), (1, 2, 4, 5), 2), ((2, 2, 3, 2, 4), (1, 2, 2, 2, 9), 4), ((3, 1, 5), (8, 1, 5), 0),
)  # fmt: skip
# Batch, indexed sizes, shape of one tuple's slice, number of tuples.
TUPLES: tuple[tuple[Dims, Dims, Dims, int], ...] = (
    ((), (5,), (16,), 7), ((), (4, 3), (), 300), ((2,), (4, 3), (8,), 5), ((), (3, 2, 4), (1, 32), 9),
    ((3, 2), (6,), (16,), 4), ((), (2, 3, 2, 2, 3), (48,), 6), ((5,), (7,), (2, 16), 1), ((), (9,), (2, 8, 8), 3),
    ((), (5,), (3,), 7), ((), (4, 3), (5,), 8), ((2,), (4, 3), (7,), 5), ((), (3, 2, 4), (1, 3), 9),
    ((3, 2), (6,), (1,), 4), ((), (2, 3, 2, 2, 3), (), 6), ((5,), (7,), (2, 3), 1), ((), (9,), (3, 7), 3),
)  # fmt: skip


# outer, size, inner, indices
GATHERS = (
    (1, 5, 16, 7), (3, 4, 8, 5), (2, 9, 24, 1), (1, 50, 64, 20), (4, 3, 40, 6), (1, 2, 128, 9), (2, 7, 8, 3),
    (5, 6, 32, 4),
    (1, 5, 1, 7), (3, 4, 3, 5), (2, 9, 5, 1), (1, 50, 7, 20), (4, 3, 1, 6), (1, 2, 13, 9), (2, 7, 6, 3), (5, 6, 2, 4),
)  # fmt: skip


def gather(name: str, dtype: Any, sizes: tuple[int, int, int, int], narrow: bool) -> Case:
    outer, size, inner, indices = sizes
    rng = np.random.default_rng(sizes)
    x = (20 * signed(rng, outer, size, inner)).astype(dtype)
    index = rng.integers(-size, size, indices).astype(np.int32 if narrow else np.int64)

    def plan(harness: Harness, facts: int) -> Plan:
        numbers = (c_int64(outer), c_int64(size), c_int64(inner), c_int64(indices))
        return harness.plan("gather", facts, c_int64(np.dtype(dtype).itemsize), c_int(narrow), *numbers)

    return Case(name, "Gather", [x, index], [np.take(x, index, 1).astype(np.float64)], plan, 0)


def elements(name: str, dtype: Any, x_dims: Dims, dims: Dims, axis: int, narrow: bool) -> Case:
    rng = np.random.default_rng([*x_dims, *dims])
    x = (20 * signed(rng, *x_dims)).astype(np.int64).astype(dtype)
    index = rng.integers(-x_dims[axis], x_dims[axis], dims).astype(np.int32 if narrow else np.int64)
    places = list(np.indices(dims))
    places[axis] = index % x_dims[axis]
    numbers = [len(x_dims), *x_dims, len(dims), *dims, axis]

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("gather_elements", facts, c_int64(x.itemsize), c_int(narrow), int64s(numbers))

    return Case(name, "GatherElements", [x, index], [x[tuple(places)].astype(np.float64)], plan, 0)


def tuples(name: str, dtype: Any, batch: Dims, sizes: Dims, inner: Dims, rows: int) -> Case:
    rng = np.random.default_rng([len(batch), *sizes, *inner, rows])
    x = (20 * signed(rng, *batch, *sizes, *inner)).astype(np.int64).astype(dtype)
    index = np.stack([rng.integers(-n, n, (*batch, rows)) for n in sizes], -1)
    y = np.zeros((*batch, rows, *inner))
    for place in np.ndindex(*batch, rows):
        y[place] = x[place[:-1] + tuple(index[place])]
    numbers = [int(np.prod(batch)), rows, int(np.prod(inner)), len(sizes), *sizes]

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("gather_nd", facts, c_int64(x.itemsize), int64s(numbers))

    return Case(name, "GatherND", [x, index], [y], plan, 0)


def cases() -> Iterator[Case]:
    for dtype in TYPES:
        kind = np.dtype(dtype).name
        for i, (x, dims, axis) in enumerate(ELEMENTS):
            yield elements(f"gather_elements_{kind}-{'x'.join(map(str, x))}_{axis}", dtype, x, dims, axis, i % 2 == 1)
        for i, (batch, sizes, inner, rows) in enumerate(TUPLES):
            yield tuples(f"gather_nd_{kind}-{i}", dtype, batch, sizes, inner, rows)
    for gathered in (np.int8, np.float16, np.float32, np.int64):
        for i, sizes in enumerate(GATHERS):
            kind = np.dtype(gathered).name
            yield gather(f"gather_{kind}-{'x'.join(map(str, sizes))}", gathered, sizes, i % 2 == 1)
