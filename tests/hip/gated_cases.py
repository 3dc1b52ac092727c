"""Gated<act> and GatedHalves<act> on the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_int, c_int32, c_int64
from typing import Any

import numpy as np

from graphopt.ops import OPS
from graphopt.ops.gated import GATES
from tests.hip import activations
from tests.hip.case import Case, signed, tolerance_of
from tests.hip.harness import Harness, Plan

# rows, D: a single element, rows with and without whole vectors, several work-groups.
SHAPES = ((1, 1), (3, 64), (5, 33), (7, 1000), (2, 2056))


def case(name: str, dtype: Any, rows: int, D: int, act: str, gate: int | None) -> Case:
    rng = np.random.default_rng([rows, D])
    kind, _, _ = activations.parameters(act)
    shapes = ((rows, D), (rows, D)) if gate is None else ((rows, 2 * D),)
    inputs = [(signed(rng, *shape) * 2).astype(dtype) for shape in shapes]
    op = f"Gated{'' if gate is None else 'Halves'}{act}"
    expected = OPS[op].reference(*inputs, **({} if gate is None else {"gate": gate}))

    def plan(harness: Harness, facts: int) -> Plan:
        sizes = (c_int64(rows), c_int64(D), c_int(gate is not None), c_int(gate or 0))
        return harness.plan("gated", facts, c_int(dtype == np.float16), *sizes, c_int32(kind))

    return Case(name, op, inputs, list(expected), plan, tolerance_of(dtype))


def cases() -> Iterator[Case]:
    for dtype in (np.float32, np.float16):
        for i, act in enumerate(GATES):
            for gate in (None, i % 2):
                rows, D = SHAPES[(i + (gate is None)) % len(SHAPES)]
                name = f"gated_{'' if gate is None else 'halves_'}{act.lower()}_{np.dtype(dtype).name}-{rows}x{D}"
                yield case(name, dtype, rows, D, act, gate)
