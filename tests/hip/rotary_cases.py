"""RotaryEmbedding and FusedRotary[Interleaved] on the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_int
from typing import Any

import numpy as np

from graphopt.ops import OPS
from tests.contrib.references.rotary import rotate_reference
from tests.hip.case import FLOATS, Case, signed, tolerance_of
from tests.hip.harness import Harness, Plan, int64s

POSITIONS = 40
# B, S, N, H, half: some elements of a head are not rotated if H > 2 half.
SIZES = (
    *((1, 5, 3, 16, 8), (2, 3, 1, 64, 16), (1, 33, 2, 6, 3), (3, 1, 4, 128, 64), (2, 7, 5, 10, 2)),
    *((2, 3, 2, 12, 2), (1, 4, 3, 8, 4), (1, 3, 2, 6, 1), (2, 2, 3, 14, 7)),
)


def case(name: str, dtype: Any, sizes: tuple[int, ...], heads_first: bool, one_id: bool, interleaved: bool) -> Case:
    B, S, N, H, half = sizes
    rng = np.random.default_rng(sizes)
    x = signed(rng, B, S, N, H, dtype=dtype)
    cos, sin = signed(rng, POSITIONS, half, dtype=dtype), signed(rng, POSITIONS, half, dtype=dtype)
    ids = rng.integers(0, POSITIONS - S, 1) if one_id else rng.integers(0, POSITIONS, (B, S))
    at = np.broadcast_to(ids[0] + np.arange(S), (B, S)) if one_id else ids
    wide = [a.astype(np.float64) for a in (x, cos[at], sin[at])]
    y = rotate_reference(wide[0], wide[1], wide[2], interleaved)
    if heads_first:
        x, y = (np.ascontiguousarray(a.transpose(0, 2, 1, 3)) for a in (x, y))

    def plan(harness: Harness, facts: int) -> Plan:
        flags = (c_int * 3)(heads_first, one_id, interleaved)
        return harness.plan("rotary", facts, c_int(dtype == np.float16), int64s([*sizes, POSITIONS]), flags)

    return Case(name, "RotaryEmbedding", [x, ids, cos, sin], [y], plan, tolerance_of(dtype))


def fused(
    name: str, dtype: Any, shape: tuple[int, ...], perm: tuple[int, ...], angles: tuple[int, ...], interleaved: bool
) -> Case:
    rng = np.random.default_rng(shape)
    x, cos, sin = (signed(rng, *s, dtype=dtype) for s in (shape, angles, angles))
    op = f"FusedRotary{'Interleaved' if interleaved else ''}"
    (y,) = OPS[op].reference(x, cos, sin, perm=perm)
    outer = len(shape) - 1
    steps = [int(np.prod(shape[axis + 1 :])) for axis in perm[:outer]]
    turned = [0] * (len(shape) - len(angles))
    turned += [0 if n == 1 else int(np.prod(angles[i + 1 :])) for i, n in enumerate(angles[:-1])]
    pad = [0] * (3 - outer)
    sizes = [*([1] * (3 - outer)), *y.shape[:-1], *pad, *steps, *pad, *turned, *pad, *turned, shape[-1]]

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("fused_rotary", facts, c_int(dtype == np.float16), int64s(sizes), c_int(interleaved))

    return Case(name, op, [x, cos, sin], [y], plan, tolerance_of(dtype))


# X, perm, cos and sin
FUSED = (
    ((2, 3, 5, 8), (0, 1, 2, 3), (2, 1, 5, 8)),
    ((2, 33, 3, 64), (0, 2, 1, 3), (1, 1, 33, 64)),
    ((1, 7, 4, 34), (0, 1, 2, 3), (7, 1, 34)),
    ((3, 5, 6), (1, 0, 2), (3, 6)),
    ((9, 2), (0, 1), (2,)),
    ((2, 5, 3, 24), (0, 2, 1, 3), (1, 1, 5, 24)),
    ((4, 3, 16), (1, 0, 2), (4, 16)),
    ((2, 3, 5, 10), (0, 1, 2, 3), (5, 10)),
)


def cases() -> Iterator[Case]:
    for dtype in (np.float32, np.float16):
        for i, (shape, perm, angles) in enumerate(FUSED):
            name = f"fused_rotary_{np.dtype(dtype).name}-{'x'.join(map(str, shape))}"
            for interleaved in (False, True):
                yield fused(f"{name}{'-interleaved' * interleaved}-{i}", dtype, shape, perm, angles, interleaved)
    for suffix, dtype in FLOATS:
        for i, sizes in enumerate(SIZES):
            for heads_first in (False, True):
                name = f"rotary_{suffix}-{'x'.join(map(str, sizes))}{'-heads_first' * heads_first}"
                yield case(name, dtype, sizes, heads_first, i % 2 == 1, (i + heads_first) % 2 == 1)
