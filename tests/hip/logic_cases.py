"""Comparisons, logical operators and predicates on the GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ctypes import c_int, c_int32, c_int64
from typing import Any

import numpy as np

from tests.hip.case import Case
from tests.hip.elementwise_cases import PAIRS, Dims
from tests.hip.harness import Array, Harness, Plan, element_type

NUMBERS = (np.float32, np.float16, np.int32, np.int64, np.uint8, np.int8, np.int16, np.uint16, np.uint32, np.uint64)
FLOATS = (np.float32, np.float16)
TRUTH = (np.bool_,)
# In the order of native/operators/elementwise/logic/args.h: reference and supported types.
BINARY: dict[str, tuple[Callable[..., Array], tuple[Any, ...]]] = {
    "Equal": (np.equal, (*NUMBERS, *TRUTH)),
    "Less": (np.less, NUMBERS),
    "LessOrEqual": (np.less_equal, NUMBERS),
    "Greater": (np.greater, NUMBERS),
    "GreaterOrEqual": (np.greater_equal, NUMBERS),
    "And": (np.logical_and, TRUTH),
    "Or": (np.logical_or, TRUTH),
    "Xor": (np.logical_xor, TRUTH),
}
UNARY: dict[str, tuple[Callable[..., Array], tuple[Any, ...]]] = {
    "Not": (np.logical_not, TRUTH),
    "IsNaN": (np.isnan, FLOATS),
    "IsInf": (np.isinf, FLOATS),
    "IsPositiveInf": (np.isposinf, FLOATS),
    "IsNegativeInf": (np.isneginf, FLOATS),
}
OPS = {**BINARY, **UNARY}


def values(rng: np.random.Generator, dtype: Any, dims: Dims) -> Array:
    """Draws from few values, so many are equal: floats with infinities and NaN, integers up to their limits."""
    if dtype == np.bool_:
        return np.asarray(rng.integers(0, 2, dims).astype(bool))
    few: tuple[Any, ...] = (-2, -1, 0, 1, 2)
    if dtype in FLOATS:
        few = (-np.inf, -1.5, -0.0, 0.0, 1.5, np.finfo(dtype).max, np.inf, np.nan)
    elif dtype == np.uint8:
        few = (0, 1, 127, 128, 255)
    elif np.issubdtype(dtype, np.unsignedinteger):
        few = (0, 1, np.iinfo(dtype).max // 2 + 1, np.iinfo(dtype).max - 1, np.iinfo(dtype).max)
    elif dtype != np.int8:
        few = (np.iinfo(dtype).min, -1, 0, 1, np.iinfo(dtype).max - 1, np.iinfo(dtype).max)
    return np.asarray(rng.choice(np.array(few, dtype), dims))


def case(name: str, dtype: Any, op: str, a: Dims, b: Dims = ()) -> Case:
    rng = np.random.default_rng([list(OPS).index(op), len(a), *a, *b])
    inputs = [values(rng, dtype, dims) for dims in ((a, b) if op in BINARY else (a,))]
    y = np.asarray(OPS[op][0](*inputs))
    shapes: list[int] = []
    for dims in (y.shape, a, b):
        shapes += [len(dims), *dims]
    kind = element_type(dtype)

    def plan(harness: Harness, facts: int) -> Plan:
        array = (c_int64 * len(shapes))(*shapes)
        return harness.plan("logic", facts, kind, c_int32(list(OPS).index(op)), c_int(op in BINARY), array)

    return Case(name, op, inputs, [y.astype(np.float64)], plan, 0, output_dtype=np.bool_)


def cases() -> Iterator[Case]:
    for i, (op, (_, types)) in enumerate(OPS.items()):
        for j, dtype in enumerate(types):
            for k in (i + j, i + j + 5) if dtype in (np.int32, np.int64, np.bool_) else (i + j,):
                a, b = PAIRS[k % len(PAIRS)]
                size = "_".join("x".join(map(str, d)) or "1" for d in (a, b))
                yield case(f"logic_{op.lower()}_{np.dtype(dtype).name}-{size}", dtype, op, a, b if op in BINARY else ())
