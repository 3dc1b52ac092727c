"""Softmax, reductions, pooling and Resize on the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_float, c_int, c_int32, c_int64
from typing import Any

import numpy as np
from onnx import helper

from tests.hip.case import Case, signed, tolerance_of
from tests.hip.harness import Array, Harness, Plan
from tests.hip.movement_cases import int64s

# outer, D, inner
SOFTMAXES = (
    (3, 7, 1), (1, 1, 1), (5, 64, 1), (2, 1000, 1), (4, 129, 1), (9, 33, 1), (2, 4100, 1), (7, 256, 1),
    (3, 7, 5), (1, 1, 3), (2, 21, 64), (1, 300, 7), (4, 5, 100), (2, 9, 33), (1, 1000, 2), (5, 8, 32),
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
    (x[1::5] if sizes[2] == 1 else x[:, :, ::5])[:] = 0  # some of the vectors that are divided by their norms
    wide = x.astype(np.float64)
    norm = np.abs(wide).sum(1, keepdims=True) if order == 1 else np.sqrt((wide**2).sum(1, keepdims=True))
    half = c_int(dtype == np.float16)

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("softmax", facts, half, *map(c_int64, sizes), c_int32(1 + order))

    return Case(name, "LpNormalization", [x], [wide / np.where(norm == 0, 1, norm)], plan, tolerance_of(dtype))


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


REDUCTIONS = ("Sum", "Max", "Min", "Mean", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp")
# Shapes, and which axes are reduced: rows, columns, and both in turn.
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
    if how == "Prod":  # of about 1
        x = np.exp(signed(rng, *shape) / np.sqrt(count)) * np.where(rng.random(shape) < 0.5, -1, 1)
        if dtype in WHOLE:
            x = np.where(rng.random(shape) < 5 / count, 3, np.sign(x))
    elif how in ("Sum", "Mean", "LogSum"):  # values that do not cancel: a sum's error is measured against it
        x = np.abs(signed(rng, *shape)) + 1
    else:
        x = 2 * signed(rng, *shape)
    if dtype in WHOLE and how != "Prod":
        x = 9 * x
    if np.issubdtype(dtype, np.unsignedinteger):  # beyond the signed ones, too, where nothing is added up
        large = 2.0 ** (8 * np.dtype(dtype).itemsize - 1) if how in ("Max", "Min") else 0
        x = np.abs(x) + large * (rng.random(shape) < 0.5)
    x = np.ascontiguousarray(x.astype(dtype))
    y = reduced_in_float64(x, axes, how)
    if how == "Mean" and dtype in WHOLE:
        y = np.trunc(y)
    numbers = int64s([len(shape), *shape, *(c == "R" for c in which)])
    codes = (c_int32(ONNX_TYPES[dtype]), c_int32(REDUCTIONS.index(how)))

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("reduce", facts, *codes, numbers)

    exact = dtype in WHOLE
    return Case(name, "Reduce" + how, [x], [y], plan, 0 if exact else tolerance_of(dtype))


def overflowing(name: str, how: str) -> Case:
    """What does not fit float16, or the exponential of a float, in between only."""
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
)
POOLS = ("Max", "Average", "AverageWithPadding")


def channels_last(x: Array, channels: int) -> Array:
    """[planes, H, W] as [planes / channels, H, W, channels]."""
    return np.ascontiguousarray(np.moveaxis(x.reshape(-1, channels, *x.shape[1:]), 1, -1))


def pool(name: str, dtype: Any, window: Any, mode: str, channels: int = 0) -> Case:
    """`channels`: of float16 that lie last; 0: they are planes."""
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
        kind = c_int32(int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype))))
        return harness.plan("pool", facts, kind, c_int32(POOLS.index(mode)), int64s(numbers), c_int64(channels))

    return Case(name, mode + "Pool", [x], [y], plan, tolerance_of(dtype))


COORDINATES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "linear")
# H, W, OH, OW
SIZES = ((6, 5, 12, 15), (7, 8, 3, 5), (4, 4, 4, 9), (1, 6, 3, 1))


def source(size: int, out: int, coordinates: str) -> Array:
    """Where each element of an axis comes from, as the specification of Resize says."""
    at = np.arange(out, dtype=np.float64)
    if coordinates == "align_corners":
        return at * (size - 1) / (out - 1) if out > 1 else 0 * at
    if coordinates == "asymmetric":
        return at * size / out
    if coordinates == "pytorch_half_pixel" and out == 1:
        return 0 * at
    return (at + 0.5) * size / out - 0.5


def resize(
    name: str, dtype: Any, sizes: tuple[int, int, int, int], coordinates: str, how: str, channels: int = 0
) -> Case:
    """`channels`: as pool's."""
    H, W, OH, OW = sizes
    planes = 2 * channels or 3
    x = signed(np.random.default_rng(sizes), planes, H, W, dtype=dtype)
    y = x.astype(np.float64)
    for axis, (size, out) in enumerate(((H, OH), (W, OW)), 1):
        at = source(size, out, coordinates)
        if how == "linear":
            at = np.clip(at, 0, size - 1)
            low = np.floor(at).astype(int)
            high = np.minimum(low + 1, size - 1)
            part = (at - low).reshape((-1, 1) if axis == 1 else (-1,))
            y = np.take(y, low, axis) * (1 - part) + np.take(y, high, axis) * part
        else:
            rounded = {
                "round_prefer_floor": np.ceil(at - 0.5),
                "round_prefer_ceil": np.floor(at + 0.5),
                "floor": np.floor(at),
                "ceil": np.ceil(at),
            }[how]
            y = np.take(y, np.clip(rounded, 0, size - 1).astype(int), axis)
    if channels:
        x, y = channels_last(x, channels), channels_last(y, channels)
    numbers = int64s([planes // max(channels, 1), *sizes])
    codes = (c_int32(COORDINATES.index(coordinates)), c_int32(NEAREST.index(how)))
    scales = (c_float(OH / H), c_float(OW / W))

    def plan(harness: Harness, facts: int) -> Plan:
        half = c_int(dtype == np.float16)
        rows_each = c_int64(3 * (OH % 2))  # 0: the plan's own choice
        return harness.plan("resize", facts, half, *codes, numbers, *scales, c_int64(channels), rows_each)

    return Case(name, "Resize", [x], [y], plan, tolerance_of(dtype))


WITH_INTEGERS = ("Sum", "Max", "Min", "Mean", "Prod", "L1", "SumSquare")


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
    for byte in (np.int8, np.uint8):
        for i, window in enumerate(WINDOWS):
            yield pool(f"pool_max_{byte.__name__}-{i}", byte, window, "Max")
    for how in ("L2", "LogSumExp"):
        yield overflowing(f"reduce_{how.lower()}_overflowing", how)
    for dtype in (np.float32, np.float16):
        suffix = "f32" if dtype == np.float32 else "f16"
        for i, sizes in enumerate(SOFTMAXES):
            size = "x".join(map(str, sizes))
            yield softmax(f"softmax{'_log' if i % 2 else ''}_{suffix}-{size}", dtype, sizes, i % 2 == 1)
            yield lp_norm(f"lp_norm_{i % 2 + 1}_{suffix}-{size}", dtype, sizes, i % 2 + 1)
        for across in ACROSS:
            yield lrn(f"lrn_{suffix}-{'x'.join(map(str, across))}", dtype, across)
        for i, (shape, which) in enumerate(REDUCED):
            how = REDUCTIONS[i % len(REDUCTIONS)]
            size = "x".join(map(str, shape))
            yield reduce(f"reduce_{how.lower()}_{suffix}-{size}_{which}", dtype, shape, which, how)
        for i, window in enumerate(WINDOWS):
            mode = POOLS[i % 3]
            size = "x".join(map(str, window[0]))
            yield pool(f"pool_{mode.lower()}_{suffix}-{size}", dtype, window, mode)
        for i, coordinates in enumerate(COORDINATES):
            for j, how in enumerate(NEAREST):
                if (i + j) % 2:
                    continue
                extent = SIZES[(i + j) // 2 % len(SIZES)]
                size = "x".join(map(str, extent))
                yield resize(f"resize_{coordinates}_{how}_{suffix}-{size}", dtype, extent, coordinates, how)
