"""Unary functions on the GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ctypes import c_float, c_int, c_int32, c_int64
from typing import Any

import numpy as np

from tests.hip.case import FLOATS, Case, signed, tolerance_of
from tests.hip.harness import Array, Harness, Plan

ALPHA = 0.3
# In the order of native/operators/elementwise/unary/args.h.
OPS: dict[str, Callable[[Array], Array]] = {
    "Sin": np.sin,
    "Cos": np.cos,
    "Tan": np.tan,
    "Atan": np.arctan,
    "Sign": np.sign,
    "Ceil": np.ceil,
    "Floor": np.floor,
    "Round": np.round,
    "Softsign": lambda x: np.asarray(x / (1 + np.abs(x))),
    "ThresholdedRelu": lambda x: np.where(x > float(np.float32(ALPHA)), x, 0),
    "QuickGelu": lambda x: np.asarray(x / (1 + np.exp(-float(np.float32(ALPHA)) * x))),
}


def case(name: str, dtype: Any, op: str, total: int, aligned: bool = True, factor: float = 2) -> Case:
    """Makes a case with arguments of at most about `factor`."""
    x = factor * signed(np.random.default_rng(total), total)
    if op in ("Sin", "Cos"):
        x = 20 * x
    if op == "Tan":
        x = np.clip(x, -1.4, 1.4)
    if op == "Round":
        x = np.round(4 * x) / 4  # includes halves
    x = x.astype(dtype)
    y = np.asarray(OPS[op](x.astype(np.float64)))

    def plan(harness: Harness, facts: int) -> Plan:
        half, code = c_int(dtype == np.float16), c_int32(list(OPS).index(op))
        return harness.plan("unary", facts, half, code, c_float(ALPHA), c_int64(total), c_int(aligned))

    return Case(name, op, [x], [y], plan, tolerance_of(dtype))


def cases() -> Iterator[Case]:
    for suffix, dtype in FLOATS:
        for i, op in enumerate(OPS):
            yield case(f"unary_{op.lower()}_{suffix}-4099", dtype, op, 4099)
            yield case(f"unary_{op.lower()}_{suffix}-unaligned", dtype, op, 17 + i, False)
        for op in ("Sin", "Cos"):
            yield case(f"unary_{op.lower()}_{suffix}-large", dtype, op, 515, factor=300)
