"""ScatterElements and ScatterND on the GPU, with repeated indices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ctypes import c_int, c_int32, c_int64
from typing import Any

import numpy as np

from tests.hip.case import Case, signed, tolerance_of
from tests.hip.harness import Array, Harness, Plan, element_type, int64s

Dims = tuple[int, ...]
# In the order of native/operators/movement/scatter/args.h: the new value from the old one and the update.
HOW: dict[str, Callable[[Any, Any], Any]] = {
    "none": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "min": np.minimum,
    "max": np.maximum,
}
# Shape of x, shape of the indices, axis.
ELEMENTS: tuple[tuple[Dims, Dims, int], ...] = (
    ((7,), (5,), 0), ((3, 4), (3, 9), 1), ((5, 6), (9, 4), 0), ((2, 3, 4), (2, 7, 4), 1), ((1, 50), (1, 2000), 1),
    ((2, 3, 4, 5), (1, 2, 4, 5), 2), ((2, 2, 3, 2, 4), (1, 2, 2, 2, 9), 4), ((300, 5), (2, 5), 0),
)  # fmt: skip
# Indexed sizes, shape of one tuple's slice, number of tuples.
TUPLES: tuple[tuple[Dims, Dims, int], ...] = (
    ((5,), (16,), 7), ((4, 3), (), 300), ((4, 3), (8,), 5), ((3, 2, 4), (1, 32), 9), ((6,), (16,), 1),
    ((2, 3, 2, 2, 3), (48,), 6), ((9,), (2, 8, 8), 3), ((2,), (7,), 40),
)  # fmt: skip


def values(rng: np.random.Generator, dtype: Any, dims: Dims, how: str) -> Array:
    if how == "mul":  # near 1, so products of many factors neither vanish nor overflow
        x = 1 + 0.1 * signed(rng, *dims)
        return np.asarray(
            x.astype(dtype) if np.issubdtype(dtype, np.floating) else rng.integers(1, 3, dims).astype(dtype)
        )
    x = signed(rng, *dims)
    return np.asarray(x.astype(dtype) if np.issubdtype(dtype, np.floating) else (20 * np.abs(x)).astype(dtype))


def scattered(x: Array, places: Any, updates: Array, how: str) -> Array:
    """Scatters in float64, or in wrapping integers; `places` gives the position of each update."""
    real = np.issubdtype(x.dtype, np.floating)
    y = x.astype(np.float64 if real else np.int64)
    for place, update in zip(places, updates, strict=True):
        y[place] = HOW[how](y[place], update.astype(y.dtype))
    return y if real else y.astype(x.dtype).astype(np.float64)


def case(name: str, op: str, how: str, data: tuple[Array, Array, Array, Array], sizes: list[int]) -> Case:
    x, index, updates, y = data
    kind = element_type(x.dtype)

    def plan(harness: Harness, facts: int) -> Plan:
        arguments = (kind, c_int64(x.itemsize), c_int(index.dtype == np.int32), c_int32(list(HOW).index(how)))
        return harness.plan("scatter", facts, *arguments, int64s(sizes))

    return Case(name, op, [x, index, updates], [y], plan, tolerance_of(x.dtype) if how in ("add", "mul") else 0)


def elements(name: str, dtype: Any, how: str, x_dims: Dims, dims: Dims, axis: int, narrow: bool) -> Case:
    rng = np.random.default_rng([*x_dims, *dims])
    x, updates = values(rng, dtype, x_dims, how), values(rng, dtype, dims, how)
    index = rng.integers(-x_dims[axis], x_dims[axis], dims).astype(np.int32 if narrow else np.int64)
    places = ((*p[:axis], int(index[p]), *p[axis + 1 :]) for p in np.ndindex(*dims))
    y = scattered(x, places, updates.ravel(), how)
    sizes = [len(x_dims), *x_dims, len(dims), *dims, 1, axis]
    return case(name, "ScatterElements", how, (x, index, updates, y), sizes)


def tuples(name: str, dtype: Any, how: str, indexed: Dims, inner: Dims, rows: int) -> Case:
    rng = np.random.default_rng([*indexed, *inner, rows])
    x, updates = values(rng, dtype, (*indexed, *inner), how), values(rng, dtype, (rows, *inner), how)
    index = np.stack([rng.integers(-n, n, rows) for n in indexed], -1)
    y = scattered(x, map(tuple, index), updates, how)
    sizes = [len(indexed), *indexed, 2, rows, len(indexed), int(np.prod(inner)), -1]
    return case(name, "ScatterND", how, (x, index, updates, y), sizes)


def cases() -> Iterator[Case]:
    for dtype in (np.uint8, np.float16, np.float32, np.int64):
        kind = np.dtype(dtype).name
        for i, (x, dims, axis) in enumerate(ELEMENTS):
            yield elements(f"scatter_elements_none_{kind}-{i}", dtype, "none", x, dims, axis, i % 2 == 1)
        for i, (indexed, inner, rows) in enumerate(TUPLES):
            yield tuples(f"scatter_nd_none_{kind}-{i}", dtype, "none", indexed, inner, rows)
    of_rows = [place for place in TUPLES if place[1]]
    for i, how in enumerate(list(HOW)[1:]):
        for j, reduced in enumerate((np.float32, np.float16, np.uint8, np.int8, np.int32, np.int64)):
            for k in range(2):
                kind = f"{how}_{np.dtype(reduced).name}-{k}"
                x, dims, axis = ELEMENTS[(i + j + 4 * k) % len(ELEMENTS)]
                yield elements(f"scatter_elements_{kind}", reduced, how, x, dims, axis, j % 2 == 1)
                yield tuples(f"scatter_nd_{kind}", reduced, how, *of_rows[(i + j + 3 * k) % len(of_rows)])
        yield tuples(f"scatter_nd_{how}_each", np.float32, how, *TUPLES[1])
