"""MaxPool, AveragePool and LRN on the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_float, c_int, c_int32, c_int64
from typing import Any

import numpy as np

from tests.hip.case import FLOATS, Case, channels_last, signed, tolerance_of
from tests.hip.harness import Harness, Plan, element_type, int64s

# images, channels, inner, window
ACROSS = (
    (1, 1, 1, 1),
    (2, 5, 7, 3),
    (3, 8, 64, 5),
    (1, 17, 33, 4),
    (2, 3, 100, 9),
    (1, 96, 49, 5),
    (4, 6, 1, 2),
    (1, 9, 257, 1),
    *((1, 7, 4, 3), (2, 3, 12, 2), (1, 20, 48, 5), (3, 2, 256, 4), (1, 5, 1028, 7), (2, 4, 8, 9)),
    *((1, 6, 5, 3), (2, 2, 30, 2)),
)


def lrn(name: str, dtype: Any, sizes: tuple[int, int, int, int]) -> Case:
    *shape, window = sizes
    x = (3 * signed(np.random.default_rng(sizes), *shape)).astype(dtype)
    wide = x.astype(np.float64)
    alpha, beta, bias = (float(np.float32(v)) for v in (0.02, 0.75, 1.5))
    padded = np.pad(wide**2, ((0, 0), ((window - 1) // 2, window // 2), (0, 0)))
    squares = sum(padded[:, i : i + shape[1]] for i in range(window))
    half = c_int(dtype == np.float16)

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("lrn", facts, half, *map(c_int64, sizes), c_float(alpha), c_float(beta), c_float(bias))

    return Case(name, "LRN", [x], [wide / (bias + alpha / window * squares) ** beta], plan, tolerance_of(dtype))


# H, W, kernel, strides, pads (top, left, bottom, right), dilations
WINDOWS = (
    ((9, 11), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1)),
    ((8, 8), (2, 2), (2, 2), (0, 0, 0, 0), (1, 1)),
    ((12, 9), (3, 2), (1, 3), (1, 0, 1, 1), (1, 1)),
    ((13, 17), (3, 3), (1, 2), (2, 2, 2, 2), (2, 2)),
    ((5, 5), (5, 5), (1, 1), (2, 2, 2, 2), (1, 1)),
    ((1, 30), (1, 4), (1, 2), (0, 1, 0, 2), (1, 1)),
    ((7, 6), (1, 1), (2, 3), (0, 0, 0, 0), (1, 1)),
    ((20, 31), (4, 3), (3, 2), (0, 1, 3, 1), (1, 2)),
    ((5, 6, 7), (2, 3, 3), (2, 1, 2), (0, 1, 1, 1, 1, 0), (1, 1, 2)),
    ((9, 5, 4), (3, 3, 2), (2, 2, 2), (1, 1, 0, 1, 0, 1), (1, 1, 1)),
    ((4, 4, 9), (2, 1, 4), (1, 2, 3), (1, 0, 2, 0, 0, 1), (2, 1, 1)),
    ((31,), (5,), (3,), (2, 1), (2,)),
    # Rows of Y with four neighbouring outputs for each work-item.
    ((9, 16), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1)),
    ((5, 12), (2, 5), (1, 1), (1, 2, 0, 2), (1, 1)),
    ((6, 10), (2, 2), (1, 1), (1, 0, 0, 0), (1, 2)),
    ((4, 6, 8), (1, 2, 3), (1, 1, 1), (0, 0, 1, 0, 1, 1), (1, 1, 1)),
    ((3, 40), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),
    ((24,), (2,), (2,), (0, 0), (1,)),
    ((7, 11), (4, 4), (1, 1), (2, 0, 1, 0), (1, 1)),
    ((3, 5, 24), (2, 2, 2), (1, 2, 2), (1, 0, 0, 0, 1, 0), (1, 1, 1)),
)
POOLS = ("Max", "Average", "AverageWithPadding")


def pool(name: str, dtype: Any, window: Any, mode: str, channels: int = 0) -> Case:
    """Makes a case; `channels` is the number of channels in channels-last float16, or 0 for planes."""
    size, kernel, strides, pads, dilations = window
    planes, axes = 2 * channels or 5, len(size)
    x = signed(np.random.default_rng(size), planes, *size)
    x = (40 * x if np.dtype(dtype).kind in "iu" else x).astype(np.int32 if dtype == np.uint8 else dtype).astype(dtype)
    around = [(pads[d], pads[d + axes]) for d in range(axes)]
    padded = np.pad(x.astype(np.float64), [(0, 0), *around], constant_values=np.nan)
    out = [
        (n - (k - 1) * d - 1) // s + 1 for n, k, d, s in zip(padded.shape[1:], kernel, dilations, strides, strict=True)
    ]
    y = np.empty((*out, planes))
    for at in np.ndindex(*out):
        taps = [at[d] * strides[d] + dilations[d] * np.arange(kernel[d]) for d in range(axes)]
        inside: Any = (slice(None), *np.ix_(*taps))
        patch = padded[inside].reshape(planes, -1)
        if mode == "Max":
            y[at] = np.nanmax(patch, 1)
        elif mode == "Average":
            y[at] = np.nanmean(patch, 1)
        else:
            y[at] = np.nan_to_num(patch).mean(1)
    y = np.moveaxis(y, -1, 0)
    if channels:
        x, y = channels_last(x, channels), channels_last(y, channels)
    numbers = [planes // max(channels, 1), *[1, 1, 1, 1, 0, 1, 1] * (3 - axes)]
    for d in range(axes):
        numbers += [out[d], size[d], kernel[d], strides[d], -pads[d], dilations[d], size[d] + pads[d + axes]]

    def plan(harness: Harness, facts: int) -> Plan:
        kind = element_type(dtype)
        return harness.plan("pool", facts, kind, c_int32(POOLS.index(mode)), int64s(numbers), c_int64(channels))

    return Case(name, mode + "Pool", [x], [y], plan, tolerance_of(dtype))


def cases() -> Iterator[Case]:
    for byte in (np.int8, np.uint8):
        for i, window in enumerate(WINDOWS):
            yield pool(f"pool_max_{byte.__name__}-{i}", byte, window, "Max")
    for suffix, dtype in FLOATS:
        for across in ACROSS:
            yield lrn(f"lrn_{suffix}-{'x'.join(map(str, across))}", dtype, across)
        for i, window in enumerate(WINDOWS):
            mode = POOLS[i % 3]
            size = "x".join(map(str, window[0]))
            yield pool(f"pool_{mode.lower()}_{suffix}-{size}", dtype, window, mode)
