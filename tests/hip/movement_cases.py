"""Copies between strides and Pad on the GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ctypes import c_int32, c_int64, c_uint64
from typing import Any

import numpy as np

from tests.hip.case import Case, signed
from tests.hip.harness import Array, Harness, Plan, int64s


def strides_of(shape: Sequence[int]) -> list[int]:
    strides = [1] * len(shape)
    for d in range(len(shape) - 2, -1, -1):
        strides[d] = strides[d + 1] * shape[d + 1]
    return strides


# Shape and permutation. In whole packs of 16 bytes, in single elements, axes that merge, five and more that do not.
TRANSPOSES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((2, 3, 5, 16), (0, 2, 1, 3)),
    ((3, 4, 32), (1, 0, 2)),
    ((7, 2, 64), (1, 0, 2)),
    ((2, 3, 4, 5, 16), (3, 1, 2, 0, 4)),
    ((5, 9, 48), (1, 0, 2)),
    ((4, 3, 128), (1, 0, 2)),
    ((6, 5, 80), (1, 0, 2)),
    ((2, 2, 2, 2, 16), (3, 2, 1, 0, 4)),
    ((5, 7), (1, 0)),
    ((2, 3, 5, 7), (0, 2, 3, 1)),
    ((2, 3, 4, 5, 6), (4, 2, 0, 3, 1)),
    ((33, 65), (1, 0)),
    ((1, 9, 11), (2, 0, 1)),
    ((3, 1, 70), (2, 1, 0)),
    ((2, 17, 3), (1, 2, 0)),
    ((2, 6, 10, 3), (3, 0, 2, 1)),
    ((3, 2, 2, 4, 2, 3), (0, 5, 1, 3, 2, 4)),
    ((2, 3, 2, 2, 3, 2, 16), (5, 3, 1, 4, 2, 0, 6)),
)
VALUES = {1: np.uint8, 2: np.float16, 4: np.float32, 8: np.int64}


def transpose(name: str, bytes_: int, shape: tuple[int, ...], perm: tuple[int, ...]) -> Case:
    rng = np.random.default_rng(shape)
    x = (20 * signed(rng, *shape)).astype(np.int64).astype(VALUES[bytes_])
    y = x.transpose(perm)
    strides = strides_of(shape)
    numbers = [len(shape), *y.shape, *(strides[p] for p in perm), *strides_of(y.shape), 0, 0]

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("strided_copy", facts, c_int64(bytes_), int64s(numbers))

    return Case(name, "Transpose", [x], [y.astype(np.float64)], plan, 0)


PADS: tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], str], ...] = (
    ((2, 3, 4, 5), (0, 1, 2, 3), (1, 0, 1, 2), "constant"),
    ((2, 3, 4, 5), (0, 1, 2, 3), (1, 0, 1, 2), "reflect"),
    ((2, 3, 4, 5), (0, 1, 2, 3), (1, 0, 1, 2), "edge"),
    ((4, 6), (-1, 2), (1, -3), "constant"),
    ((9,), (8,), (3,), "reflect"),
    ((2, 1, 3, 1, 5), (1, 0, 0, 2, 1), (0, 1, 2, 0, 0), "constant"),
    ((33, 17), (0, 0), (7, 64), "edge"),
    ((1, 3, 224, 5), (0, 0, 3, 3), (0, 0, 3, 3), "constant"),
    ((2, 3, 4), (5, 0, 9), (3, 7, 2), "wrap"),
    ((6, 7), (-2, 3), (11, -3), "wrap"),
    ((6, 7), (-2, 3), (3, -3), "reflect"),
)


def pad(name: str, dtype: Any, shape: tuple[int, ...], before: Any, after: Any, mode: str) -> Case:
    x = (20 * np.abs(signed(np.random.default_rng(shape), *shape))).astype(dtype)
    value = dtype(1.5)
    widths = [(max(b, 0), max(a, 0)) for b, a in zip(before, after)]
    cut = x[tuple(slice(max(-b, 0), n - max(-a, 0)) for b, a, n in zip(before, after, shape))]
    fill: dict[str, Any] = {"constant_values": value} if mode == "constant" else {}
    y: Array = np.pad(cut, widths, mode=mode, **fill)  # type: ignore[call-overload]
    bits = int.from_bytes(np.array(value).tobytes(), "little")
    code = ("constant", "reflect", "edge", "wrap").index(mode)

    def plan(harness: Harness, facts: int) -> Plan:
        numbers = int64s([len(shape), *shape, *before, *after])
        return harness.plan("pad", facts, c_int64(np.dtype(dtype).itemsize), c_int32(code), c_uint64(bits), numbers)

    return Case(name, "Pad", [x], [y.astype(np.float64)], plan, 0)


def cases() -> Iterator[Case]:
    for bytes_ in VALUES:
        for shape, perm in TRANSPOSES:
            if bytes_ == 8 and len(shape) > 4:
                continue
            size = "x".join(map(str, shape)) + "_" + "".join(map(str, perm))
            yield transpose(f"transpose_b{8 * bytes_}-{size}", bytes_, shape, perm)
    for dtype in (np.float32, np.float16, np.int64, np.uint8):
        for i, (shape, before, after, mode) in enumerate(PADS):
            size = "x".join(map(str, shape))
            yield pad(f"pad_{mode}_{np.dtype(dtype).name}-{size}-{i}", dtype, shape, before, after, mode)
