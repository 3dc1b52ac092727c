"""Fused<act> on the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_int, c_int32, c_int64

import numpy as np

from graphopt.ops import OPS
from graphopt.ops.fused_activation import FUSED
from tests.hip import activations
from tests.hip.case import FLOATS, Case, signed, tolerance_of
from tests.hip.harness import Harness, Plan

# One element, whole vectors, a whole and a partial vector, several work-groups.
SIZES = (1, 64, 33, 7001)


def case(name: str, dtype: type[np.generic], size: int, act: str) -> Case:
    x = (signed(np.random.default_rng(size), size) * 4).astype(dtype)
    kind, _, _ = activations.parameters(act)

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("activation", facts, c_int(dtype == np.float16), c_int64(size), c_int32(kind))

    return Case(name, f"Fused{act}", [x], list(OPS[f"Fused{act}"].reference(x)), plan, tolerance_of(dtype))


def cases() -> Iterator[Case]:
    for suffix, dtype in FLOATS:
        for act, size in zip(FUSED, SIZES, strict=True):
            yield case(f"fused_{act.lower()}_{suffix}-{size}", dtype, size, act)
