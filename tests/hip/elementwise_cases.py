"""Element-wise operators with broadcasting on the GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from ctypes import c_float, c_int, c_int32, c_int64
from typing import Any

import numpy as np

from tests.hip import activations
from tests.hip.case import FLOATS, Case, signed, tolerance_of
from tests.hip.harness import Array, Harness, Plan

# The order is that of native/operators/elementwise/elementwise/operations.h, which begins with the activations.
PARAMETERS = {**{name: activations.parameters(name)[1:] for name in activations.NAMES}, "Elu": (0.7, 0.0)}


def _activation(name: str) -> Callable[[Array, float, float], Array]:
    return lambda x, p, q: activations.apply(name, x)


UNARY: dict[str, Callable[[Array, float, float], Array]] = {
    **{name or "Copy": _activation(name) for name in activations.NAMES},
    "Erf": lambda x, p, q: np.vectorize(math.erf, otypes=[float])(x),
    "Softplus": lambda x, p, q: np.logaddexp(x, 0),
    "Exp": lambda x, p, q: np.exp(x),
    "Log": lambda x, p, q: np.log(x),
    "Sqrt": lambda x, p, q: np.sqrt(x),
    "Reciprocal": lambda x, p, q: 1 / x,
    "Neg": lambda x, p, q: -x,
    "Abs": lambda x, p, q: np.abs(x),
    "Elu": lambda x, p, q: np.where(x < 0, p * np.expm1(x), x),
}
BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": np.power,
    "Max": np.maximum,
    "Min": np.minimum,
    "PRelu": lambda x, s: np.where(x < 0, x * s, x),
    "Fmod": np.fmod,
}
OPS = (*UNARY, *BINARY, "Where")
POSITIVE = ("Log", "Sqrt", "Pow")

Dims = tuple[int, ...]
# Shapes of a and b: with and without whole vectors, with and without mergeable axes, a scalar, a single element, five
# axes.
PAIRS: tuple[tuple[Dims, Dims], ...] = (
    ((2, 3, 8, 16), (2, 3, 8, 16)),
    ((2, 3, 5, 7), (2, 3, 5, 7)),
    ((2, 6, 4, 8), (6, 1, 1)),
    ((3, 5, 24), (24,)),
    ((3, 5, 7), (5, 1)),
    ((4, 1, 8), (3, 1)),
    ((1,), (2, 1, 3, 1, 16)),
    ((2, 1, 3, 1, 5), (1, 4, 1, 2, 5)),
    ((), ()),
    ((2, 16, 33, 8), ()),
)


def case(name: str, dtype: Any, op: str, a: Dims, b: Dims = (), mask: Dims = ()) -> Case:
    rng = np.random.default_rng([OPS.index(op), len(a), *a, *b])
    binary, masked = op not in UNARY, op == "Where"

    def values(dims: Dims) -> Array:
        x = 2 * signed(rng, *dims)
        if op in POSITIVE:
            x = np.abs(x) + 0.1
        if op in ("Div", "Reciprocal"):
            x = np.where(np.abs(x) < 0.25, np.float32(0.25), x)
        if op == "Exp":
            x = np.minimum(x, 5)
        if op == "Fmod":  # quotients with many digits and subnormal values, but no zeros
            digits = 12 if dtype == np.float16 else 120
            x = (x + np.where(x < 0, -0.5, 0.5)) * 2.0 ** rng.integers(-digits - 8, digits, dims)
        return np.asarray(x.astype(dtype))

    inputs = [values(a)]
    p, q = PARAMETERS.get(op, (0.0, 0.0))
    wide = inputs[0].astype(np.float64)
    if op in UNARY:
        y = np.asarray(UNARY[op](wide, float(np.float32(p)), float(np.float32(q))))
    else:
        inputs.append(values(b))
        second = inputs[1].astype(np.float64)
        if masked:
            inputs.append(rng.integers(0, 2, mask).astype(bool))
            y = np.where(inputs[2], wide, second)
        else:
            y = np.asarray(BINARY[op](wide, second))
    shapes: list[int] = []
    for dims in (y.shape, a, b, mask):
        shapes += [len(dims), *dims]

    def plan(harness: Harness, facts: int) -> Plan:
        half, code, flags = c_int(dtype == np.float16), c_int32(OPS.index(op)), (c_int(binary), c_int(masked))
        array = (c_int64 * len(shapes))(*shapes)
        return harness.plan("elementwise", facts, half, code, c_float(p), c_float(q), *flags, array)

    return Case(name, op, inputs, [y], plan, 0 if op == "Fmod" else tolerance_of(dtype))


def cases() -> Iterator[Case]:
    for suffix, dtype in FLOATS:
        for i, op in enumerate(OPS):
            for k in (0, 1) if op in UNARY else (i % 6, 6 + i % 4) if op != "Add" else range(len(PAIRS)):
                a, b = PAIRS[k]
                if op in UNARY:
                    b = ()
                mask = np.broadcast_shapes(a, b)[-2:] if op == "Where" else ()
                size = "_".join("x".join(map(str, d)) or "1" for d in (a, b))
                yield case(f"elementwise_{op.lower()}_{suffix}-{size}", dtype, op, a, b, mask)
