"""Reductions over any axes on the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_int32
from decimal import Decimal
from math import isqrt
from typing import Any

import numpy as np

from tests.hip.case import FLOATS, Case, signed, tolerance_of
from tests.hip.harness import Array, Harness, Plan, int64s

REDUCTIONS = ("Sum", "Max", "Min", "Mean", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp")
# Shapes, and their reduced axes (R): rows, columns, and both alternating.
REDUCED: tuple[tuple[tuple[int, ...], str], ...] = (
    ((3, 7), ".R"), ((1, 1), ".R"), ((5, 256), ".R"), ((2, 1000), ".R"), ((4, 255), ".R"), ((9, 33), ".R"),
    ((2, 4100), ".R"), ((3, 9001), ".R"), ((1, 70001), ".R"), ((300, 2, 64), "R.R"),
    ((1, 8192), ".R"), ((2, 8199), ".R"), ((1, 9000), ".R"), ((4, 8200), ".R"), ((1, 12345), ".R"), ((2, 16400), ".R"),
    ((500, 33), ".R"), ((7, 7, 7), ".RR"), ((1, 300), ".R"), ((6, 64), ".R"),
    ((3, 7, 5), ".R."), ((7, 3), "R."), ((2, 60, 64), ".R."), ((300, 7), "R."), ((4, 5, 100), ".R."),
    ((9, 3, 33), ".R."), ((2, 2, 500), ".R."), ((17, 2), "R."), ((2, 3, 4, 9), ".RR."), ((40, 3), "R."),
    ((3, 4, 5), "R.R"), ((2, 5, 7, 9), "R.RR"), ((4, 3, 50), "R.R"), ((5, 2, 3, 4), "R.R."), ((2, 33, 257), "R.R"),
    ((3, 2, 2, 2, 6), "R.R.R"), ((2, 3, 5, 4), ".R.R"), ((8, 9, 1, 3), "R.RR"), ((6, 1, 7, 2), "RR.R"),
    ((3, 3, 3, 3), "R.R."), ((2, 2, 4, 2, 3), "R.R.R"), ((5, 6, 70), "R.R"), ((9, 2, 11, 3), "R.R."),
    ((4, 2, 3, 5), "R.R."), ((7, 3, 5, 2), "R.R."), ((2, 4, 3, 2), "R.R."),
    ((3, 5, 2, 7), "R.R."), ((2, 3, 4, 3), "R.R."), ((400, 700), "R."), ((2, 90, 3), ".R."),
)  # fmt: skip
# A work-item loads 32 bytes at a time: reductions of whole loads, of a part of one, and of a part after whole loads.
AT_ONCE: tuple[tuple[tuple[int, ...], str], ...] = (
    ((70, 64), ".R"), ((33, 512), ".R"), ((65, 128), ".R"), ((40, 16), ".R"), ((9, 32), ".R"), ((20, 8), ".R"),
    ((3, 4104), ".R"), ((2, 16, 40), ".R."), ((2, 17, 40), ".R."), ((1, 129, 9), ".R."),
)  # fmt: skip
# Long rows, which a work-group joins: in one step, in the first of two steps, and in the last one. Each runs with
# every operation of JOINS.
LONG: tuple[tuple[tuple[int, ...], str], ...] = (((3, 601), ".R"), ((2, 2, 520), "R.R"), ((1, 8401), ".R"))
JOINS = ("Sum", "Max", "Min", "Prod", "LogSumExp")
ONNX_TYPES: dict[Any, int] = {
    np.float32: 1, np.float16: 10, np.int32: 6, np.int64: 7, np.uint32: 12, np.uint64: 13, np.int8: 3, np.uint8: 2,
}  # fmt: skip
WHOLE = tuple(t for t in ONNX_TYPES if np.issubdtype(t, np.integer))


def reduced_in_float64(x: Array, axes: tuple[int, ...], how: str) -> Array:
    wide = x.astype(np.float64)
    if how == "LogSumExp":
        return np.asarray(np.log(np.exp(wide).sum(axes)))
    y = {
        "Sum": lambda: wide.sum(axes),
        "Max": lambda: wide.max(axes),
        "Min": lambda: wide.min(axes),
        "Mean": lambda: wide.mean(axes),
        "Prod": lambda: wide.prod(axes),
        "L1": lambda: np.abs(wide).sum(axes),
        "L2": lambda: np.sqrt((wide**2).sum(axes)),
        "SumSquare": lambda: (wide**2).sum(axes),
        "LogSum": lambda: np.log(wide.sum(axes)),
    }[how]()
    return np.asarray(y)


def reduce(name: str, dtype: Any, shape: tuple[int, ...], which: str, how: str) -> Case:
    rng = np.random.default_rng(shape)
    axes = tuple(d for d, c in enumerate(which) if c == "R")
    count = int(np.prod([shape[d] for d in axes]))
    if how == "Prod":  # factors of about 1
        x = np.exp(signed(rng, *shape) / np.sqrt(count)) * np.where(rng.random(shape) < 0.5, -1, 1)
        if dtype in WHOLE:
            x = np.where(rng.random(shape) < 5 / count, 3, np.sign(x))
    # values without cancellation, since the error is measured relative to the sum
    elif how in ("Sum", "Mean", "LogSum"):
        x = np.abs(signed(rng, *shape)) + 1
    else:
        x = 2 * signed(rng, *shape)
    if dtype in WHOLE and how != "Prod":
        x = 9 * x
    if np.issubdtype(dtype, np.unsignedinteger):  # also beyond the signed range, if nothing is summed
        large = 2.0 ** (8 * np.dtype(dtype).itemsize - 1) if how in ("Max", "Min") else 0
        x = np.abs(x) + large * (rng.random(shape) < 0.5)
    x = np.ascontiguousarray(x.astype(dtype))
    y = reduced_in_float64(x, axes, how)
    if how in ROUNDED and dtype in WHOLE:
        y = np.trunc(y)
    numbers = int64s([len(shape), *shape, *(c == "R" for c in which)])
    codes = (c_int32(ONNX_TYPES[dtype]), c_int32(REDUCTIONS.index(how)))

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("reduce", facts, *codes, numbers)

    exact = dtype in WHOLE
    return Case(name, "Reduce" + how, [x], [y], plan, 0 if exact else tolerance_of(dtype))


def overflowing(name: str, how: str) -> Case:
    """Intermediate values overflow float16, or the exponential overflows float; the results do not."""
    x = np.full((2, 3, 4), 300 if how == "L2" else 90, np.float16 if how == "L2" else np.float32)
    x[1] = -x[1]
    if how == "LogSumExp":
        x[0, 1], x[0, 2, 0], x[1, 1] = -np.inf, np.inf, np.nan
        with np.errstate(invalid="ignore"):
            y = np.logaddexp.reduce(np.logaddexp.reduce(x.astype(np.float64), 2), 0)
    else:
        y = np.sqrt((x.astype(np.float64) ** 2).sum((0, 2)))
    numbers = int64s([3, 2, 3, 4, 1, 0, 1])
    codes = (c_int32(ONNX_TYPES[x.dtype.type]), c_int32(REDUCTIONS.index(how)))

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("reduce", facts, *codes, numbers)

    return Case(name, "Reduce" + how, [x], [y], plan, tolerance_of(x.dtype))


ROUNDED = ("Mean", "L2", "LogSum")  # rounded for integers
WITH_INTEGERS = ("Sum", "Max", "Min", "Mean", "Prod", "L1", "SumSquare", "L2", "LogSum")


def integer_result(how: str, dtype: Any, row: list[int]) -> int:
    """Returns the exact integer result; the logarithm of 0 gives the least value."""
    if how == "L2":
        return isqrt(sum(v * v for v in row))
    return int(Decimal(sum(row)).ln()) if sum(row) > 0 else int(np.iinfo(dtype).min)


def beside_steps(name: str, how: str, dtype: Any, columns: bool) -> Case:
    """Sums that make the root or the logarithm reach its next integer, and sums that are one less."""
    bits = 8 * np.dtype(dtype).itemsize - 1
    if how == "L2":
        least = isqrt(2**bits - 1)
        rows = [[0], [least], *([k] for k in (1, 2, 3, 7, 20, 40)), *([k - 1, *[1] * (2 * k - 2)] for k in (2, 9, 40))]
    else:
        sums = [0, 1, *(int(Decimal(k).exp()) + d for k in range(1, 64) for d in (0, 1))]
        rows = [[s - s // 3, s // 3] for s in sums if s < 2**bits]
    y = np.array([integer_result(how, dtype, row) for row in rows], np.float64)
    x = np.zeros((len(rows), max(map(len, rows))), dtype)
    for line, row in zip(x, rows):
        line[: len(row)] = row
    x = np.ascontiguousarray(x.T if columns else x)
    numbers = int64s([2, *x.shape, columns, not columns])
    codes = (c_int32(ONNX_TYPES[dtype]), c_int32(REDUCTIONS.index(how)))

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("reduce", facts, *codes, numbers)

    return Case(name, "Reduce" + how, [x], [y], plan, 0)


def cases() -> Iterator[Case]:
    for j, pair in enumerate(((np.int32, np.uint32), (np.int64, np.uint64))):
        for i, (shape, which) in enumerate(REDUCED[j::2]):
            how = WITH_INTEGERS[i % len(WITH_INTEGERS)]
            integer = pair[i // len(WITH_INTEGERS) % 2]
            size = "x".join(map(str, shape))
            yield reduce(f"reduce_{how.lower()}_{integer.__name__}-{size}_{which}", integer, shape, which, how)
    for i, (shape, which) in enumerate(REDUCED[:8] + REDUCED[-12:]):
        how, byte = ("Max", "Min")[i % 2], (np.int8, np.uint8)[i // 2 % 2]
        yield reduce(f"reduce_{how.lower()}_{byte.__name__}-{i}_{which}", byte, shape, which, how)
    for how in ("L2", "LogSum"):
        for dtype in WHOLE[:4]:
            for columns in (False, True):
                name = f"reduce_{how.lower()}_{dtype.__name__}_steps{'_columns' * columns}"
                yield beside_steps(name, how, dtype, columns)
    for how in ("L2", "LogSumExp"):
        yield overflowing(f"reduce_{how.lower()}_overflowing", how)
    for suffix, dtype in FLOATS:
        for i, (shape, which) in enumerate(REDUCED):
            how = REDUCTIONS[i % len(REDUCTIONS)]
            size = "x".join(map(str, shape))
            yield reduce(f"reduce_{how.lower()}_{suffix}-{size}_{which}", dtype, shape, which, how)
        for shape, which, how in (
            *((*one, how) for one in AT_ONCE for how in ("LogSumExp", "Min", "L1")),
            *((*one, how) for one in LONG for how in JOINS),
        ):
            size = "x".join(map(str, shape))
            yield reduce(f"reduce_{how.lower()}_{suffix}_at_once-{size}_{which}", dtype, shape, which, how)
