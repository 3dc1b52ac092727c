"""Range, ConstantOfShape, Trilu and OneHot on the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_double, c_int, c_int32, c_int64, c_uint64
from typing import Any

import numpy as np

from tests.hip.case import Case, signed, tolerance_of
from tests.hip.harness import Harness, Plan, element_type

# start, step, number of elements
RANGES = ((0, 1, 1), (0, 1, 5), (3, 2, 1000), (10, -3, 4099), (-7, 1, 1024), (100, -1, 17), (5, 7, 2048), (1, 1, 333))
# batch, rows, columns, k
TRIANGLES = (
    (1, 5, 5, 0), (2, 16, 16, 1), (3, 7, 9, -2), (1, 8, 32, 3), (2, 33, 8, -40), (1, 1, 64, 5), (4, 6, 6, 60),
    (1, 40, 41, 0),
)  # fmt: skip
# outer, depth, inner
HOT = (
    (7, 5, 1), (1, 3, 4), (2, 10, 6), (30, 100, 1), (5, 2, 3), (1, 1, 1), (4, 16, 16), (2, 33, 7), (90, 33, 1),
    (200, 1, 1), (77, 3, 1), (5, 64, 1),
)  # fmt: skip
# In the order of the type codes of native/operators/movement/generate/args.h.
INDICES: tuple[Any, ...] = (
    np.int64, np.int32, np.uint8, np.float32, np.int16, np.int8, np.uint64, np.uint32, np.uint16, np.float16,
)  # fmt: skip
VALUES = (np.uint8, np.float16, np.float32, np.int64)


def range_case(name: str, dtype: Any, start: int, step: int, total: int) -> Case:
    factor = 0.25 if dtype == np.float32 else 1
    y = factor * (start + step * np.arange(total, dtype=np.float64))
    kind = element_type(dtype)
    numbers = (c_double(factor * start), c_double(factor * step), c_int64(total))

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("range", facts, kind, *numbers)

    return Case(name, "Range", [], [y], plan, tolerance_of(np.float32), output_dtype=dtype)


def triangle(name: str, dtype: Any, sizes: tuple[int, int, int, int], upper: bool) -> Case:
    x = (20 * np.abs(signed(np.random.default_rng(sizes[:3]), *sizes[:3]))).astype(np.int64).astype(dtype)
    y = np.triu(x, sizes[3]) if upper else np.tril(x, sizes[3])

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("trilu", facts, *map(c_int64, (*sizes, x.itemsize)), c_int(upper))

    return Case(name, "Trilu", [x], [y.astype(np.float64)], plan, 0)


def one_hot(name: str, dtype: Any, index_dtype: Any, sizes: tuple[int, int, int]) -> Case:
    outer, depth, inner = sizes
    rng = np.random.default_rng(sizes)
    low = 0 if np.issubdtype(index_dtype, np.unsignedinteger) else -depth - 1
    index = rng.integers(low, depth + 2, (outer, inner)).astype(index_dtype)
    values = np.array([3, 7], dtype)
    place = np.where(index < 0, index.astype(np.int64) + depth, index.astype(np.int64))
    y = np.where(place[:, None, :] == np.arange(depth)[None, :, None], 7.0, 3.0)
    code = INDICES.index(index_dtype)

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("one_hot", facts, *map(c_int64, sizes), c_int32(code), c_int64(values.itemsize))

    return Case(name, "OneHot", [index, values], [y], plan, 0, output_dtype=dtype)


def fill(name: str, dtype: Any, total: int) -> Case:
    value = np.array([total % 100 + 3], dtype)
    bits = int.from_bytes(value.tobytes(), "little")

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("fill", facts, c_int64(total), c_int64(value.itemsize), c_uint64(bits))

    y = np.full(total, float(value[0]))
    return Case(name, "ConstantOfShape", [], [y], plan, 0, output_dtype=dtype)


def cases() -> Iterator[Case]:
    for dtype in (np.float32, np.int16, np.int32, np.int64):
        for start, step, total in RANGES:
            yield range_case(f"range_{np.dtype(dtype).name}-{total}", dtype, start, step, total)
    for j, value in enumerate(VALUES):
        kind = np.dtype(value).name
        for total in (1, 2, 7, 16, 255, 1024, 4099, 10_000):
            yield fill(f"fill_{kind}-{total}", value, total)
        for i, sizes in enumerate(TRIANGLES):
            yield triangle(f"trilu_{kind}-{i}", value, sizes, i % 2 == 0)
        for i, hot in enumerate(HOT):
            index = INDICES[(i + 2 * j) % len(INDICES)]
            yield one_hot(f"one_hot_{kind}-{i}", value, index, hot)
