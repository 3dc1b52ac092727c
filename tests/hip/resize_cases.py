"""Resize on the GPU: images in one launch, and all modes along one axis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ctypes import c_float, c_int, c_int32, c_int64, c_uint64
from typing import Any

import numpy as np

from tests.hip.case import FLOATS, Case, channels_last, signed, tolerance_of
from tests.hip.harness import Array, Harness, Plan, int64s

COORDINATES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")
ROUNDED: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda at: np.ceil(at - 0.5),
    "round_prefer_ceil": lambda at: np.floor(at + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
WAYS_OF_IMAGES = (*ROUNDED, "linear")
# H, W, OH, OW
IMAGES = ((6, 5, 12, 15), (7, 8, 3, 5), (4, 4, 4, 9), (1, 6, 3, 1))


def source(size: int, out: int, coordinates: str) -> Array:
    """Returns the source coordinate of each element of an axis, by the specification of Resize."""
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
    """Makes a case; `channels` as for `pool`."""
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
            y = np.take(y, np.clip(ROUNDED[how](at), 0, size - 1).astype(int), axis)
    if channels:
        x, y = channels_last(x, channels), channels_last(y, channels)
    numbers = int64s([planes // max(channels, 1), *sizes])
    codes = (c_int32(COORDINATES.index(coordinates)), c_int32(WAYS_OF_IMAGES.index(how)))
    scales = (c_float(OH / H), c_float(OW / W))

    def plan(harness: Harness, facts: int) -> Plan:
        half = c_int(dtype == np.float16)
        rows_each = c_int64(3 * (OH % 2))  # 0: the plan's choice
        return harness.plan("resize", facts, half, *codes, numbers, *scales, c_int64(channels), rows_each)

    return Case(name, "Resize", [x], [y], plan, tolerance_of(dtype))


ALL_COORDINATES = (*COORDINATES, "half_pixel_symmetric", "tf_crop_and_resize")
WAYS = (*WAYS_OF_IMAGES, "cubic")
BEYOND = -3.0  # the value outside of a crop
# outer, in, out, inner
SIZES = ((2, 7, 13, 5), (1, 16, 5, 3), (3, 1, 4, 8), (2, 9, 9, 1), (1, 40, 7, 6), (4, 5, 1, 7), (1, 6, 300, 2))


def cubic(d: Array) -> Array:
    """Keys' cubic kernel with a = -0.75, at distances d >= 0."""
    a = -0.75
    near, far = ((a + 2) * d - (a + 3)) * d * d + 1, ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def weights_of(away: Array, how: str) -> Array:
    d: Array = np.abs(away)
    if how == "linear":
        return np.asarray(np.clip(1 - d, 0, 1))
    return cubic(d)


def matrix(sizes: tuple[int, int], at: Array, scale: float, how: str, antialias: bool, inside_only: bool) -> Array:
    """Returns the weight of each element of x in each of y, by the specification of Resize; [out, in]."""
    size, out = sizes
    m = np.zeros((out, size))
    if how not in ("linear", "cubic"):
        m[np.arange(out), np.clip(ROUNDED[how](at), 0, size - 1).astype(int)] = 1
        return m
    narrow = min(scale, 1) if antialias else 1
    reach = int(np.ceil(2 / narrow)) + 1
    for o, x in enumerate(at):
        places = np.arange(int(np.floor(x)) - reach, int(np.floor(x)) + reach + 1)
        w = weights_of((places - x) * narrow, how)
        if inside_only:
            w = np.where((places >= 0) & (places < size), w, 0)
        np.add.at(m[o], np.clip(places, 0, size - 1), w / w.sum())
    return m


def one(
    name: str, types: tuple[Any, Any], sizes: tuple[int, int, int, int], coordinates: str, how: str, **flags: bool
) -> Case:
    outer, size, out, inner = sizes
    dtype, to = types
    rng = np.random.default_rng(sizes)
    interpolates = how in ("linear", "cubic")
    x = (
        signed(rng, outer, size, inner, dtype=dtype)
        if interpolates
        else (20 * signed(rng, outer, size, inner)).astype(dtype)
    )
    scale = float(np.float32(out / size if coordinates != "half_pixel_symmetric" else (out + 0.4) / size))
    first, last = 0.2, 1.3
    if coordinates == "tf_crop_and_resize":
        wide = (size - 1) * float(np.float32(last) - np.float32(first))
        at = np.float32(first) * (size - 1) + np.arange(out) * wide / max(out - 1, 1)
        if out == 1:
            at = np.full(1, (np.float32(first) + np.float32(last)) / 2 * (size - 1), np.float64)
    elif coordinates == "half_pixel_symmetric":
        at = size / 2 * (1 - out / (scale * size)) + (np.arange(out) + 0.5) / scale - 0.5
    else:
        at = source(size, out, coordinates)
    antialias, inside_only = flags.get("antialias", False), flags.get("inside_only", False)
    y = np.einsum("os,asb->aob", matrix((size, out), at, scale, how, antialias, inside_only), x.astype(np.float64))
    value = np.dtype(np.float32 if interpolates else dtype).type(BEYOND if np.dtype(dtype).kind != "u" else 7)
    if coordinates == "tf_crop_and_resize":
        y[:, (at < 0) | (at > size - 1)] = value
    bits = c_uint64(int.from_bytes(value.tobytes(), "little"))
    codes = c_int32(ALL_COORDINATES.index(coordinates)), c_int32(WAYS.index(how))
    numbers = int64s([outer, size, out, inner, np.dtype(dtype).itemsize, dtype == np.float16, to == np.float16])

    def plan(harness: Harness, facts: int) -> Plan:
        ends = c_float(scale), c_float(first), c_float(last)
        return harness.plan("resize_one", facts, *codes, numbers, *ends, bits, c_int(antialias), c_int(inside_only))

    tolerance = max(tolerance_of(dtype), tolerance_of(to)) if interpolates else 0
    return Case(name, "Resize", [x], [y], plan, tolerance, output_dtype=to)


def cases() -> Iterator[Case]:
    picks = list(ROUNDED)
    for dtype in (np.uint8, np.float16, np.int32, np.int64):
        for i in range(8):
            coordinates, how = ALL_COORDINATES[(i + 4) % 6], picks[(i // 2) % 4]
            name = f"resize_one_{coordinates}_{how}_{np.dtype(dtype).name}-{i}"
            yield one(name, (dtype, dtype), SIZES[i % len(SIZES)], coordinates, how)
    for types in (
        (np.float32, np.float32),
        (np.float16, np.float16),
        (np.float16, np.float32),
        (np.float32, np.float16),
    ):
        kind = "_".join(np.dtype(t).name for t in types)
        for i in range(12):
            coordinates, how = ALL_COORDINATES[i % 6], ("linear", "cubic")[(i + i // 6) % 2]
            flags = {"antialias": i % 3 == 0, "inside_only": i % 4 == 3 and how == "cubic"}
            yield one(
                f"resize_one_{coordinates}_{how}_{kind}-{i}", types, SIZES[i % len(SIZES)], coordinates, how, **flags
            )
    for suffix, dtype in FLOATS:
        for i, coordinates in enumerate(COORDINATES):
            for j, how in enumerate(WAYS_OF_IMAGES):
                if (i + j) % 2:
                    continue
                extent = IMAGES[(i + j) // 2 % len(IMAGES)]
                size = "x".join(map(str, extent))
                yield resize(f"resize_{coordinates}_{how}_{suffix}-{size}", dtype, extent, coordinates, how)
