"""Cast on the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_int, c_int64
from typing import Any

import numpy as np

from tests.hip.case import Case, signed
from tests.hip.harness import Array, Harness, Plan, element_type

TYPES = (
    np.float32, np.float16, np.int64, np.int32, np.bool_, np.uint8,
    np.int8, np.uint16, np.int16, np.uint32, np.uint64, np.float64,
)  # fmt: skip


def cast(name: str, source: Any, target: Any, total: int, aligned: bool = True) -> Case:
    rng = np.random.default_rng(total)
    values: Array = (10 * signed(rng, total)).astype(np.int64)
    values[::3] = 0
    if any(np.issubdtype(t, np.unsignedinteger) for t in (source, target)):
        values = np.abs(values)
    x = values.astype(source)
    code = [element_type(t) for t in (source, target)]

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("cast", facts, c_int64(total), *code, c_int(aligned))

    return Case(name, "Cast", [x], [x.astype(target).astype(np.float64)], plan, 0, output_dtype=target)


def cases() -> Iterator[Case]:
    for i, source in enumerate(TYPES):
        for j, target in enumerate(TYPES):
            if (i + 5 * j) % 7 < 3:
                names = f"{np.dtype(source).name}_{np.dtype(target).name}"
                yield cast(f"cast_{names}", source, target, 500 * (i + 1) + j)
    for source, target in ((np.float32, np.float16), (np.float16, np.float32)):
        for total in (1, 3, 4, 7, 512, 1029, 2048, 5003):
            yield cast(f"cast_{np.dtype(source).name}_packs-{total}", source, target, total)
        yield cast(f"cast_{np.dtype(source).name}_unaligned", source, target, 1029, aligned=False)
