"""FusedGroupNorm[act] on the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_float, c_int, c_int32, c_int64
from typing import Any

import numpy as np

from tests.hip import activations
from tests.hip.case import FLOATS, Case, signed, tolerance_of
from tests.hip.harness import Harness, Plan

# N, C, groups, spatial shape. A group of one work-group with few or many elements a work-item, and groups that are
# cut into parts: because they are large, because there are few, and because they are not aligned.
SMALL: tuple[tuple[int, int, int, tuple[int, ...]], ...] = (
    (1, 8, 2, (4, 4)),
    (2, 6, 3, (2, 10)),
    (1, 32, 32, (8, 8)),
    (3, 20, 5, (7, 8)),
    (2, 12, 4, (33, 8)),
    (1, 16, 1, (16, 20)),
    (1, 10, 2, (40, 8)),
    (2, 24, 8, (9, 16)),
)
LARGE: tuple[tuple[int, int, int, tuple[int, ...]], ...] = (
    (1, 3, 1, (80, 80)),
    (1, 8, 2, (72, 64)),
    (2, 5, 1, (57, 64)),
    (1, 7, 1, (51, 56)),
    (1, 2, 1, (104, 96)),
    (1, 33, 1, (24, 24)),
    (1, 10, 1, (48, 48)),
    (1, 9, 1, (47, 48)),
)
SPLIT: tuple[tuple[int, int, int, tuple[int, ...]], ...] = (
    (1, 6, 2, (3, 5)),
    (2, 3, 3, (7, 7)),
    (1, 4, 1, (1, 1)),
    (1, 6, 1, (91, 93)),
    (2, 4, 2, (61, 67)),
    (1, 15, 5, (57, 51)),
    (1, 2, 1, (128, 160)),
    (1, 1, 1, (8193,)),
    (1, 5, 1, (101, 103)),
)


def case(name: str, dtype: Any, N: int, C: int, groups: int, spatial: tuple[int, ...], act: str) -> Case:
    rng = np.random.default_rng([N, C, groups, *spatial])
    inner = int(np.prod(spatial))
    # A mean that is large against the deviations shows a variance from E[x^2] - E[x]^2.
    offset = 30 if dtype == np.float32 else 3
    x = (signed(rng, N, C, *spatial) + offset).astype(dtype)
    gamma, beta = signed(rng, C, dtype=dtype), signed(rng, C, dtype=dtype)
    epsilon = 1e-3
    wide = x.astype(np.float64).reshape(N, groups, -1)
    centred = wide - wide.mean(-1, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + float(np.float32(epsilon)))
    axis = (C, *(1 for _ in spatial))
    y = normal.reshape(x.shape) * gamma.astype(np.float64).reshape(axis) + beta.astype(np.float64).reshape(axis)
    kind, a, b = activations.parameters(act)

    def plan(harness: Harness, facts: int) -> Plan:
        sizes = (c_int64(N), c_int64(C), c_int64(inner), c_int64(groups))
        half = c_int(dtype == np.float16)
        return harness.plan("group_norm", facts, half, *sizes, c_float(epsilon), c_int32(kind), c_float(a), c_float(b))

    return Case(name, "FusedGroupNorm", [x, gamma, beta], [activations.apply(act, y)], plan, tolerance_of(dtype))


def cases() -> Iterator[Case]:
    for suffix, dtype in FLOATS:
        for i, (N, C, groups, spatial) in enumerate((*SMALL, *LARGE, *SPLIT)):
            act = activations.NAMES[i % len(activations.NAMES)]
            size = "x".join(str(d) for d in (N, C, *spatial))
            name = f"group_norm_{act.lower() or 'none'}_{suffix}-g{groups}_{size}"
            yield case(name, dtype, N, C, groups, spatial, act)
