"""Copies between strides and Pad on the GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ctypes import c_int, c_int32, c_int64, c_uint64
from typing import Any

import numpy as np

from tests.hip.case import Case, signed
from tests.hip.harness import Array, Harness, Plan, int64s


def strides_of(shape: Sequence[int]) -> list[int]:
    strides = [1] * len(shape)
    for d in range(len(shape) - 2, -1, -1):
        strides[d] = strides[d + 1] * shape[d + 1]
    return strides


# Shape and permutation: in whole packs of 16 bytes, in single elements, with mergeable axes, with five and more others.
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


# Shape, block, depth to space or back, whether a block's channels are adjacent: in packs of Y, across its rows, with
# odd tails, with more axes than one launch supports.
BLOCKS: tuple[tuple[tuple[int, int, int, int], int, bool, bool], ...] = (
    ((1, 8, 4, 16), 2, True, False),
    ((1, 8, 4, 16), 2, True, True),
    ((2, 8, 3, 5), 2, True, False),
    ((1, 18, 3, 7), 3, True, True),
    ((1, 16, 5, 3), 4, True, False),
    ((1, 2, 8, 64), 2, False, False),
    ((3, 2, 8, 64), 2, False, True),
    ((1, 3, 6, 10), 2, False, False),
    ((1, 2, 9, 15), 3, False, True),
    ((2, 1, 8, 4), 4, False, False),
)


def block_move(name: str, bytes_: int, given: tuple[tuple[int, int, int, int], int, bool, bool]) -> Case:
    shape, b, to_space, side_by_side = given
    N, C, H, W = shape
    x = (20 * signed(np.random.default_rng(shape), *shape)).astype(np.int64).astype(VALUES[bytes_])
    if to_space:
        dims = (N, C // b**2, b, b, H, W) if side_by_side else (N, b, b, C // b**2, H, W)
        perm = (0, 1, 4, 2, 5, 3) if side_by_side else (0, 3, 4, 1, 5, 2)
    else:
        dims = (N, C, H // b, b, W // b, b)
        perm = (0, 1, 3, 5, 2, 4) if side_by_side else (0, 3, 5, 1, 2, 4)
    y = x.reshape(dims).transpose(perm)
    strides = strides_of(dims)
    numbers = [len(dims), *y.shape, *(strides[p] for p in perm), *strides_of(y.shape), 0, 0]

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("strided_copy", facts, c_int64(bytes_), int64s(numbers))

    return Case(name, "DepthToSpace" if to_space else "SpaceToDepth", [x], [y.astype(np.float64)], plan, 0)


# Shape of x [rows, columns], first column, step, number of columns, and width and first column in y: in packs of both,
# of y alone, of neither; backwards; with tails.
PARTS: tuple[tuple[tuple[int, int], int, int, int, tuple[int, int]], ...] = (
    ((5, 48), 16, 1, 16, (32, 16)),
    ((5, 48), 1, 1, 16, (16, 0)),
    ((4, 67), 3, 1, 64, (64, 0)),
    ((4, 67), 3, 1, 48, (80, 32)),
    ((3, 64), 1, 2, 31, (31, 0)),
    ((7, 33), 32, -1, 33, (33, 0)),
    ((7, 33), 32, -3, 7, (9, 1)),
    ((1, 1000), 999, -1, 999, (999, 0)),
    ((6, 3), 1, 1, 1, (1, 0)),
    ((9, 40), 7, 1, 32, (48, 4)),
    ((5, 48), 0, 1, 48, (49, 0)),
    ((5, 48), 47, -1, 48, (51, 3)),
    ((40, 29), 0, 2, 15, (17, 1)),
    ((3, 1100), 1, 1, 1099, (1101, 2)),
    ((1, 77), 0, 1, 70, (75, 5)),
    ((300, 4), 0, 3, 2, (5, 1)),
    ((2, 64), 0, 1, 64, (127, 63)),
)


def part(name: str, bytes_: int, given: tuple[tuple[int, int], int, int, int, tuple[int, int]]) -> Case:
    (rows, columns), start, step, length, (wide, to) = given
    x = (20 * signed(np.random.default_rng((rows, columns)), rows, columns)).astype(np.int64).astype(VALUES[bytes_])
    memory = np.full(rows * wide * x.itemsize, 0xFF, np.uint8)  # unwritten bytes must keep this value
    y = memory.view(x.dtype).reshape(rows, wide).astype(np.float64)
    y[:, to : to + length] = x[:, start + step * np.arange(length)]
    numbers = int64s([2, rows, length, columns, step, wide, 1, start, to])

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("strided_copy", facts, c_int64(bytes_), numbers)

    return Case(name, "Slice", [x], [y], plan, 0)


# Rows, widths of the inputs, first column in y and columns after them: in vectors of 16 bytes and in others, one and
# several rows, one to eight inputs, empty inputs.
CONCATS: tuple[tuple[int, tuple[int, ...], int, int], ...] = (
    (1, (16, 32), 0, 0),
    (5, (48,), 16, 0),
    (49, (64, 32, 32, 32, 32, 32, 32, 32), 0, 64),
    (7, (16, 16, 0, 48, 16, 0, 16, 32), 32, 16),
    (3, (5, 7, 1), 0, 0),
    (1, (1, 999, 2, 3), 7, 5),
    (130, (8, 24), 0, 0),
    (2, (0, 3, 0, 20), 0, 3),
    (33, (4, 12, 4), 4, 8),
    (9, (2, 4, 6, 8, 10, 12, 14, 16), 2, 0),
    (600, (3, 4), 0, 0),
    (4, (0, 0, 0, 0, 0, 0, 16, 32), 0, 0),
)


def concat(
    name: str, bytes_: int, rows: int, widths: tuple[int, ...], first: int, rest: int, aligned: bool = True
) -> Case:
    rng = np.random.default_rng((rows, *widths))
    xs = [(20 * signed(rng, rows, width)).astype(np.int64).astype(VALUES[bytes_]) for width in widths]
    pitch = first + sum(widths) + rest
    memory = np.full(rows * pitch * bytes_, 0xFF, np.uint8)  # unwritten bytes must keep this value
    y = memory.view(xs[0].dtype).reshape(rows, pitch).astype(np.float64)
    y[:, first : pitch - rest] = np.concatenate(xs, axis=1)
    numbers = int64s([bytes_, rows, pitch, first, len(widths), *widths])

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("concat", facts, numbers, c_int(aligned))

    return Case(name, "Concat", xs, [y], plan, 0)


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
    ((3, 2, 16), (0, 0, 0), (0, 0, 16), "constant"),
    ((5, 64), (0, 16), (0, 16), "edge"),
    ((2, 3, 33), (0, 1, 1), (1, 1, 1), "constant"),
    ((2, 5, 30), (1, 1, 1), (1, 1, 1), "reflect"),
    ((2, 4, 19), (1, 0, 16), (0, 1, 16), "wrap"),
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
        for i, block in enumerate(BLOCKS):
            yield block_move(f"blocks_b{8 * bytes_}-{i}", bytes_, block)
        for i, piece in enumerate(PARTS):
            yield part(f"part_b{8 * bytes_}-{i}", bytes_, piece)
        for i, joined in enumerate(CONCATS):
            yield concat(f"concat_b{8 * bytes_}-{i}", bytes_, *joined)
            yield concat(f"concat_unaligned_b{8 * bytes_}-{i}", bytes_, *joined, aligned=False)
    for dtype in (np.float32, np.float16, np.int64, np.uint8):
        for i, (shape, before, after, mode) in enumerate(PADS):
            size = "x".join(map(str, shape))
            yield pad(f"pad_{mode}_{np.dtype(dtype).name}-{size}-{i}", dtype, shape, before, after, mode)
