"""MatMulNBits on the GPU, against the reference of graphopt/contrib, element by element."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from ctypes import c_int, c_int32, c_int64
from typing import Any

import numpy as np

from graphopt.contrib import CONTRIB
from graphopt.contrib.schema import DOMAIN, Call
from tests.contrib.references import REFERENCES
from tests.hip import tiles
from tests.hip.case import FLOATS, Case, signed, tolerance_of
from tests.hip.harness import Array, Harness, Plan

OP = CONTRIB[DOMAIN, "MatMulNBits"]
# M, N, K, bits, size, zero points, with g_idx, with bias. Some K are not a multiple of a block, some N not of a group.
SIZES = (
    (1, 16, 64, 4, 32, "bytes", False, False), (1, 5, 72, 4, 16, "", False, True),
    (1, 33, 1048, 4, 128, "numbers", False, False), (1, 7, 40, 8, 32, "bytes", False, False),
    (1, 9, 96, 2, 16, "bytes", False, True), (1, 3, 64, 8, 64, "", True, False),
    (1, 17, 200, 4, 32, "bytes", True, False), (1, 1, 16, 2, 16, "", False, False),
    (2, 16, 64, 4, 32, "bytes", False, False), (9, 5, 72, 4, 16, "", False, True),
    (17, 35, 264, 4, 128, "numbers", False, False), (3, 7, 40, 8, 32, "bytes", False, False),
    (8, 9, 96, 2, 16, "bytes", False, True), (5, 3, 64, 8, 64, "", True, False),
    (4, 17, 200, 4, 32, "bytes", True, False), (20, 21, 48, 2, 16, "numbers", False, False),
)  # fmt: skip

# Few rows of float16 in whole packs: bits and block size for each kernel, and M, N, K, zero points, with bias. K is
# rounded up so that rows of weights consist of packs of 16 bytes.
FEW_BLOCKS = (
    (2, (64, 256, 128)), (2, (32,)), (2, (16,)), (4, (32, 128, 64, 256)), (4, (16,)), (8, (32, 16, 128)),
)  # fmt: skip
FEW = (
    (1, 16, 64, "bytes", False), (1, 33, 136, "", True), (2, 1, 520, "numbers", False), (5, 40, 264, "bytes", True),
    (8, 7, 1048, "", False), (9, 64, 96, "bytes", False), (13, 50, 2056, "numbers", True), (16, 17, 8, "bytes", False),
)  # fmt: skip
# Packs on the vector unit, where K is a multiple of 4 and not of 8: M, N, K, bits, size, zero points, with bias.
PACKS = (
    (1, 33, 132, 4, 32, "bytes", True), (1, 5, 524, 4, 16, "", False), (1, 7, 68, 2, 16, "bytes", True),
    (1, 130, 2052, 2, 128, "numbers", False), (1, 9, 36, 8, 32, "bytes", False), (9, 6, 1028, 8, 16, "", True),
    (3, 35, 260, 4, 128, "bytes", False), (17, 4, 100, 2, 32, "numbers", True), (8, 65, 1060, 4, 16, "bytes", True),
    (1, 16, 260, 8, 16, "", True), (1, 21, 388, 4, 64, "numbers", False), (1, 3, 516, 2, 32, "", False),
    (2, 19, 132, 8, 32, "bytes", False), (5, 8, 388, 2, 64, "", True), (12, 11, 36, 4, 16, "numbers", False),
    (6, 40, 516, 8, 128, "", False),
)  # fmt: skip

# The same for tiles.
TILED = (
    (17, 40, 64, "bytes", True), (33, 33, 136, "", False), (64, 72, 264, "numbers", False),
    (130, 24, 96, "bytes", False), (5, 130, 520, "bytes", True), (1, 1, 8, "", False), (290, 8, 72, "bytes", False),
    (24, 160, 1032, "numbers", True), (290, 270, 32, "", True),
)  # fmt: skip
TILED_BLOCKS = (32, 16, 64, 128, 32, 16, 256)

# The same for warpgroups: NVIDIA and the CPU with waves of 32 have the kernels.
WARPGROUPS = (
    (17, 40, 64, 32, "bytes", True), (33, 33, 136, 96, "", False), (128, 128, 128, 128, "numbers", False),
    (130, 24, 96, 32, "bytes", False), (20, 130, 520, 64, "bytes", True), (129, 129, 8, 64, "", True),
    (150, 8, 1096, 32, "bytes", False), (24, 136, 1032, 256, "numbers", True), (140, 136, 328, 96, "bytes", True),
)  # fmt: skip


def drawn(
    dtype: Any, M: int, N: int, K: int, bits: int, size: int, points: str, g_idx: bool, bias: bool
) -> dict[str, Array]:
    """Draws the inputs of a node. `points`: "bytes" for packed zero points, "numbers" for floats, "" for none."""
    rng = np.random.default_rng([M, N, K])
    blocks, per_byte = -(-K // size), 8 // bits
    # Scales of similar magnitude: rounding an output of many times the RMS to float16 exceeds the tolerance.
    scales = (rng.random((N, blocks)) + 0.5) * rng.choice((-1, 1), (N, blocks))
    given: dict[str, Array] = {
        "A": signed(rng, M, K, dtype=dtype),
        "B": rng.integers(0, 256, (N, blocks, size // per_byte), np.uint8),
        "scales": scales.astype(dtype),
    }
    if points == "bytes":
        given["zero_points"] = rng.integers(0, 256, (N, -(-blocks // per_byte)), np.uint8)
    elif points:
        given["zero_points"] = (2 ** (bits - 1) + signed(rng, N, blocks)).astype(dtype)
    if g_idx:
        given["g_idx"] = rng.permutation(np.arange(K) // size).astype(np.int32)
    if bias:
        given["bias"] = signed(rng, N, dtype=dtype)
    return given


def case(
    name: str,
    dtype: Any,
    M: int,
    N: int,
    K: int,
    bits: int,
    size: int,
    points: str,
    g_idx: bool,
    bias: bool,
    aligned: bool = False,
    tile: int = -1,
) -> Case:
    given = drawn(dtype, M, N, K, bits, size, points, g_idx, bias)
    wide = {n: x.astype(np.float64) if x.dtype.kind == "f" else x for n, x in given.items()}
    attributes = {**OP.attributes, "K": K, "N": N, "bits": bits, "block_size": size}
    y = REFERENCES[OP.identifier].compute(Call(wide, attributes, frozenset({"Y"})))["Y"]
    nothing = np.zeros(1, dtype)
    inputs = [given.get(n, nothing) for n in ("A", "B", "scales", "zero_points", "g_idx", "bias")]
    flags = (c_int * 5)(bool(points), points == "bytes", g_idx, bias, aligned)

    def plan(harness: Harness, facts: int) -> Plan:
        numbers = (c_int64(M), c_int64(N), c_int64(K), c_int(bits), c_int64(size))
        return harness.plan("matmul_nbits", facts, c_int(dtype == np.float16), *numbers, flags, c_int32(tile))

    return Case(name, "MatMulNBits", inputs, [y], plan, tolerance_of(dtype))


def dequantized(name: str, dtype: Any, N: int, K: int, bits: int, size: int, points: str, g_idx: bool) -> Case:
    """B [N, K] dequantized: the transposed product of B and the identity matrix."""
    given = drawn(dtype, 1, N, K, bits, size, points, g_idx, False) | {"A": np.eye(K)}
    wide = {n: x.astype(np.float64) if x.dtype.kind == "f" else x for n, x in given.items()}
    attributes = {**OP.attributes, "K": K, "N": N, "bits": bits, "block_size": size}
    weights = REFERENCES[OP.identifier].compute(Call(wide, attributes, frozenset({"Y"})))["Y"].T
    nothing = np.zeros(1, dtype)
    inputs = [nothing, *(given.get(n, nothing) for n in ("B", "scales", "zero_points", "g_idx"))]
    flags = (c_int * 3)(bool(points), points == "bytes", g_idx)

    def plan(harness: Harness, facts: int) -> Plan:
        numbers = (c_int64(N), c_int64(K), c_int(bits), c_int64(size))
        return harness.plan("dequantize_nbits", facts, c_int(dtype == np.float16), *numbers, flags)

    return Case(name, "MatMulNBits", inputs, [weights], plan, tolerance_of(dtype))


def in_packs(K: int, bits: int, size: int, step: int = 8) -> int:
    """Returns the least K + n step that has rows of weights in whole packs."""
    while -(-K // size) * size * bits % 128:
        K += step
    return K


def tiled(tile: tiles.Tile) -> Iterator[Case]:
    """Yields a case for each number of bits and each problem of TILED."""
    for bits in (2, 4, 8):
        for (M, N, least, points, bias), size in zip(TILED, itertools.cycle(TILED_BLOCKS), strict=False):
            K = in_packs(least, bits, size)
            name = f"matmul_nbits_{bits}_{tile.size}_f16-{M}x{N}x{K}x{size}"
            yield case(name, np.float16, M, N, K, bits, size, points, False, bias, True, tile.number)


def warpgroups(tile: tiles.Tile) -> Iterator[Case]:
    """Yields a case for each number of bits and each problem of WARPGROUPS.

    Devices without the tile run another kernel.
    """
    for bits in (2, 4, 8):
        for M, N, least, size, points, bias in WARPGROUPS:
            K = in_packs(least, bits, size)
            name = f"matmul_nbits_warpgroups_{bits}_{tile.size}_f16-{M}x{N}x{K}x{size}"
            yield case(name, np.float16, M, N, K, bits, size, points, False, bias, True, tile.number)


def cases() -> Iterator[Case]:
    for suffix, dtype in FLOATS:
        for sizes in SIZES:
            yield case(f"matmul_nbits_{suffix}-" + "x".join(map(str, sizes[:5])), dtype, *sizes)
        for N, K, bits, size, points, g_idx in dict.fromkeys(sizes[1:-1] for sizes in SIZES):  # any M
            name = f"dequantize_nbits_{suffix}-{N}x{K}x{bits}x{size}"
            yield dequantized(name, dtype, N, K, bits, size, points, g_idx)
        for M, N, least, bits, size, points, bias in PACKS:
            K = in_packs(least, bits, size, 4)
            name = f"matmul_nbits_packs_{suffix}-{M}x{N}x{K}x{bits}x{size}"
            yield case(name, dtype, M, N, K, bits, size, points, False, bias, aligned=True)
    for bits, of_blocks in FEW_BLOCKS:
        for (M, N, least, points, bias), size in zip(FEW, itertools.cycle(of_blocks), strict=False):
            K = in_packs(least, bits, size)
            name = f"matmul_nbits_rows_{bits}_f16-{M}x{N}x{K}x{size}"
            yield case(name, np.float16, M, N, K, bits, size, points, False, bias, aligned=True)
    # More columns than work-groups at a time, and more slices of K than waves: a wave has several tiles and slices.
    for bits, M in ((2, 11), (4, 2), (8, 12)):
        name = f"matmul_nbits_rows_{bits}_f16-several"
        yield case(name, np.float16, M, 1700, 2080, bits, 32, "bytes", False, True, aligned=True)
    yield from warpgroups(tiles.WARPGROUP[-1])
    for tile in tiles.PACKED:
        yield from tiled(tile)
