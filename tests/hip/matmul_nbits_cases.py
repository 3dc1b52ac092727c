"""MatMulNBits on the GPU, against the reference of graphopt/contrib, element by element."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_int, c_int64
from typing import Any

import numpy as np

from graphopt.contrib import CONTRIB
from graphopt.contrib.schema import DOMAIN, Call
from tests.contrib.references import REFERENCES
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


def case(
    name: str, dtype: Any, M: int, N: int, K: int, bits: int, size: int, points: str, g_idx: bool, bias: bool
) -> Case:
    rng = np.random.default_rng([M, N, K])
    blocks, per_byte = -(-K // size), 8 // bits
    given: dict[str, Array] = {
        "A": signed(rng, M, K, dtype=dtype),
        "B": rng.integers(0, 256, (N, blocks, size // per_byte), np.uint8),
        "scales": signed(rng, N, blocks, dtype=dtype),
    }
    if points == "bytes":
        given["zero_points"] = rng.integers(0, 256, (N, -(-blocks // per_byte)), np.uint8)
    elif points:
        given["zero_points"] = (2 ** (bits - 1) + signed(rng, N, blocks)).astype(dtype)
    if g_idx:
        given["g_idx"] = rng.permutation(np.arange(K) // size).astype(np.int32)
    if bias:
        given["bias"] = signed(rng, N, dtype=dtype)
    wide = {n: x.astype(np.float64) if x.dtype.kind == "f" else x for n, x in given.items()}
    attributes = {**OP.attributes, "K": K, "N": N, "bits": bits, "block_size": size}
    y = REFERENCES[OP.identifier].compute(Call(wide, attributes, frozenset({"Y"})))["Y"]
    nothing = np.zeros(1, dtype)
    inputs = [given.get(n, nothing) for n in ("A", "B", "scales", "zero_points", "g_idx", "bias")]
    flags = (c_int * 4)(bool(points), points == "bytes", g_idx, bias)

    def plan(harness: Harness, facts: int) -> Plan:
        numbers = (c_int64(M), c_int64(N), c_int64(K), c_int(bits), c_int64(size))
        return harness.plan("matmul_nbits", facts, c_int(dtype == np.float16), *numbers, flags)

    return Case(name, "MatMulNBits", inputs, [y], plan, tolerance_of(dtype))


def cases() -> Iterator[Case]:
    for suffix, dtype in FLOATS:
        for sizes in SIZES:
            yield case(f"matmul_nbits_{suffix}-" + "x".join(map(str, sizes[:5])), dtype, *sizes)
