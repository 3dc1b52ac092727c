"""GridSample on the GPU, against the specification in float64."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_int, c_int32
from itertools import product
from typing import Any

import numpy as np

from tests.hip.case import Case, signed, tolerance_of
from tests.hip.harness import Array, Harness, Plan, int64s
from tests.hip.resize_cases import cubic

PADDINGS = ("zeros", "border", "reflection")
TAPS = {"nearest": 1, "linear": 2, "cubic": 4}
# N, C, sizes of x, sizes of y
SHAPES: tuple[tuple[int, int, tuple[int, ...], tuple[int, ...]], ...] = (
    (2, 3, (5, 7), (6, 4)), (1, 9, (4, 3), (17, 23)), (3, 1, (1, 6), (5, 5)), (2, 2, (3, 4, 5), (2, 3, 4)),
    (1, 70, (8, 8), (1, 3)), (1, 3, (6, 2, 3), (4, 1, 5)),
)  # fmt: skip


def reflected(x: Array, low: float, high: float) -> Array:
    """Reflects x into [low, high], repeatedly if necessary."""
    span = high - low
    if span <= 0:
        return np.full_like(x, low)
    away = np.mod(x - low, 2 * span)
    return low + np.where(away > span, 2 * span - away, away)


def taps(given: Array, size: int, how: str, padding: str, corners: bool) -> tuple[Array, Array]:
    """Returns the neighbours' indices along an axis, -1 for none, and their weights; both [points, taps]."""
    x = (given + 1) / 2 * (size - 1) if corners else ((given + 1) * size - 1) / 2
    low, high = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
    x = np.rint(x) if how == "nearest" else x
    outside = (x < low) | (x > high)
    if padding == "border":
        x = np.where(outside, np.clip(x, 0, size - 1), x)
    elif padding == "reflection":
        x = np.where(outside, reflected(x, low, high), x)
    if how == "nearest":
        at, weight = x[:, None], np.ones((len(x), 1))
    else:
        n = TAPS[how] // 2
        at = np.floor(x)[:, None] + np.arange(1 - n, n + 1)
        d = np.abs(x[:, None] - at)
        weight = 1 - d if how == "linear" else cubic(d)
    if padding == "reflection":
        at = reflected(at, low, high)
    elif padding == "zeros":
        weight = np.where((at < 0) | (at >= size), 0, weight)
    return np.clip(at, 0, size - 1).astype(int), weight


def sampled(x: Array, grid: Array, how: str, padding: str, corners: bool) -> Array:
    N, C, *sizes = x.shape
    y = np.zeros((N, C, *grid.shape[1:-1]))
    for n in range(N):
        points = grid[n].reshape(-1, len(sizes))
        axes = [taps(points[:, -1 - d], size, how, padding, corners) for d, size in enumerate(sizes)]
        total = np.zeros((C, len(points)))
        for which in product(range(TAPS[how]), repeat=len(sizes)):
            weight = np.prod([axes[d][1][:, k] for d, k in enumerate(which)], axis=0)
            places = (slice(None), *(axes[d][0][:, k] for d, k in enumerate(which)))
            total += weight * x[n][places]
        y[n] = total.reshape(y.shape[1:])
    return y


def grid_sample(name: str, dtype: Any, shape: Any, how: str, padding: str, corners: bool) -> Case:
    N, C, sizes, out = shape
    rng = np.random.default_rng([N, C, *sizes, *out])
    x = signed(rng, N, C, *sizes, dtype=dtype)
    grid = np.ascontiguousarray((1.2 * rng.standard_normal((N, *out, len(sizes)))).astype(dtype))
    grid.reshape(-1)[0] = 30000
    y = sampled(x.astype(np.float64), grid.astype(np.float64), how, padding, corners)
    numbers = int64s([N, C, int(np.prod(out)), len(sizes), *sizes])
    codes = c_int(TAPS[how]), c_int32(PADDINGS.index(padding)), c_int(corners)

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("grid_sample", facts, c_int(dtype == np.float16), numbers, *codes)

    return Case(name, "GridSample", [x, grid], [y], plan, tolerance_of(dtype, 1e-4))


def cases() -> Iterator[Case]:
    for dtype, how in product((np.float32, np.float16), TAPS):
        for i, (padding, corners) in enumerate(product(PADDINGS, (False, True))):
            for shape in (SHAPES[i % len(SHAPES)], SHAPES[(i + 3) % len(SHAPES)]):
                size = "x".join(map(str, shape[2]))
                name = f"grid_sample_{how}_{padding}_{int(corners)}_{np.dtype(dtype).name}-{size}"
                yield grid_sample(name, dtype, shape, how, padding, corners)
