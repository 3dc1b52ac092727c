"""FusedGroupNorm[act] on the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_float, c_int, c_int32, c_int64
from typing import Any

import numpy as np

from tests.hip import activations
from tests.hip.case import FLOATS, Case, signed, tolerance_of
from tests.hip.harness import Harness, Plan

# N, C, groups, spatial shape. Groups in one work-group with few or many elements for each work-item, and split groups:
# because they are large, because there are few, and because they are not aligned.
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

# Float16 in channels-last layout: channels that are and are not a multiple of a pack; groups of whole packs, groups
# that share packs, and groups of one channel; images with fewer and more pixels than a work-group has rows. Some
# work-groups process all pixels of a few groups; others process slabs and blocks of channels that split groups, with
# one group in several blocks and slabs of several rounds.
LAST: tuple[tuple[int, int, int, tuple[int, int]], ...] = (
    (1, 8, 2, (4, 4)),
    (2, 24, 3, (5, 7)),
    (1, 320, 32, (8, 8)),
    (1, 1280, 32, (3, 3)),
    (3, 48, 16, (9, 5)),
    (1, 24, 1, (11, 31)),
    (1, 256, 1, (2, 5)),
    (2, 72, 8, (6, 6)),
    (1, 64, 64, (1, 1)),
    (2, 16, 16, (20, 13)),
    (14, 64, 8, (16, 18)),
    (3, 64, 2, (40, 40)),
)
LAST_ODD: tuple[tuple[int, int, int, tuple[int, int]], ...] = (
    (1, 6, 2, (3, 5)),
    (2, 3, 3, (7, 7)),
    (1, 5, 1, (6, 9)),
    (2, 9, 3, (5, 11)),
    (1, 33, 1, (6, 5)),
    (1, 7, 7, (9, 9)),
    (3, 15, 5, (4, 3)),
    (1, 1, 1, (13, 17)),
    (1, 255, 1, (2, 2)),
    (2, 18, 2, (1, 1)),
)
LAST_CUT: tuple[tuple[int, int, int, tuple[int, int]], ...] = (
    (1, 16, 2, (40, 40)),
    (1, 40, 4, (36, 37)),
    (1, 72, 8, (35, 30)),
    (1, 320, 32, (16, 16)),
    (1, 264, 1, (9, 11)),
    (2, 1280, 2, (5, 7)),
    (1, 16, 16, (130, 130)),
    (2, 96, 3, (20, 33)),
    (1, 520, 8, (6, 8)),
    (1, 128, 4, (33, 8)),
)
LAST_CUT_ODD: tuple[tuple[int, int, int, tuple[int, int]], ...] = (
    (1, 5, 1, (41, 37)),
    (2, 7, 7, (40, 30)),
    (1, 33, 3, (20, 21)),
    (1, 300, 2, (3, 5)),
    (1, 513, 1, (4, 5)),
    (1, 20, 20, (65, 64)),
    (2, 9, 3, (61, 27)),
    (1, 2, 1, (80, 90)),
    (1, 11, 11, (70, 61)),
)


def case(
    name: str,
    dtype: Any,
    N: int,
    C: int,
    groups: int,
    spatial: tuple[int, ...],
    act: str,
    *,
    last: bool = False,
    offset: float | None = None,
    spread: float = 1,
) -> Case:
    """Makes a case; `offset` and `spread` are mean and standard deviation of X."""
    rng = np.random.default_rng([N, C, groups, *spatial])
    inner = int(np.prod(spatial))
    # A mean much larger than the deviations reveals a variance computed as E[x^2] - E[x]^2.
    if offset is None:
        offset = 30 if dtype == np.float32 else 3
    x = (spread * signed(rng, N, C, *spatial) + offset).astype(dtype)
    gamma, beta = signed(rng, C, dtype=dtype), signed(rng, C, dtype=dtype)
    epsilon = 1e-3
    wide = x.astype(np.float64).reshape(N, groups, -1)
    centred = wide - wide.mean(-1, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + float(np.float32(epsilon)))
    axis = (C, *(1 for _ in spatial))
    y = normal.reshape(x.shape) * gamma.astype(np.float64).reshape(axis) + beta.astype(np.float64).reshape(axis)
    kind, a, b = activations.parameters(act)
    if last:
        x, y = (np.ascontiguousarray(np.moveaxis(v, 1, -1)) for v in (x, y))

    def plan(harness: Harness, facts: int) -> Plan:
        sizes = (c_int64(N), c_int64(C), c_int64(inner), c_int64(groups))
        activation = (c_int32(kind), c_float(a), c_float(b))
        types = (c_int(dtype == np.float16), c_int(last))
        return harness.plan("group_norm", facts, *types, *sizes, c_float(epsilon), *activation)

    return Case(name, "FusedGroupNorm", [x, gamma, beta], [activations.apply(act, y)], plan, tolerance_of(dtype))


def cases() -> Iterator[Case]:
    for suffix, dtype in FLOATS:
        for i, (N, C, groups, spatial) in enumerate((*SMALL, *LARGE, *SPLIT)):
            act = activations.NAMES[i % len(activations.NAMES)]
            size = "x".join(str(d) for d in (N, C, *spatial))
            name = f"group_norm_{act.lower() or 'none'}_{suffix}-g{groups}_{size}"
            yield case(name, dtype, N, C, groups, spatial, act)
    for i, (N, C, groups, spatial) in enumerate((*LAST, *LAST_ODD, *LAST_CUT, *LAST_CUT_ODD)):
        act = activations.NAMES[i % len(activations.NAMES)]
        size = "x".join(str(d) for d in (N, *spatial, C))
        name = f"group_norm_channels_last_{act.lower() or 'none'}-g{groups}_{size}"
        yield case(name, np.float16, N, C, groups, spatial, act, last=True)
    # Deviations of two units in the last place, no deviations, and large and small values around zero.
    for kind, offset, spread in (("far", 3000.0, 4.0), ("equal", 30000.0, 0.0), ("large", 0.0, 9000.0)):
        for C, groups, spatial in ((80, 8, (9, 10)), (15, 5, (9, 10)), (264, 1, (9, 11)), (21, 3, (31, 32))):
            name = f"group_norm_channels_last_{kind}-g{groups}_{'x'.join(str(d) for d in (*spatial, C))}"
            yield case(name, np.float16, 1, C, groups, spatial, "", last=True, offset=offset, spread=spread)
