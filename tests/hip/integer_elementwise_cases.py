"""Element-wise integer operators on the GPU, including the limits of their types."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ctypes import c_int32, c_int64
from typing import Any

import numpy as np

from tests.hip.case import Case
from tests.hip.elementwise_cases import PAIRS, Dims
from tests.hip.harness import Array, Harness, Plan, int64s

COMMON = (np.uint8, np.int32, np.int64)
TYPES = (*COMMON, np.int8, np.uint64, np.uint32, np.uint16, np.int16)


def truncated(a: Array, b: Array) -> Array:
    return np.asarray(np.trunc(a.astype(np.longdouble) / b).astype(a.dtype))


# In the order of native/operators/elementwise/elementwise/integer_args.h.
UNARY: dict[str, Callable[[Array], Array]] = {"Neg": np.negative, "Abs": np.abs, "BitwiseNot": np.invert}
BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": truncated,
    "Max": np.maximum,
    "Min": np.minimum,
    "Mod": np.mod,
    "Fmod": np.fmod,
    "BitwiseAnd": np.bitwise_and,
    "BitwiseOr": np.bitwise_or,
    "BitwiseXor": np.bitwise_xor,
    "ShiftLeft": np.left_shift,
    "ShiftRight": np.right_shift,
}
OPS = [*UNARY, *BINARY, "Where", "Clip"]
ONE_INPUT = (*UNARY, "Clip")


def values(rng: np.random.Generator, dtype: Any, dims: Dims) -> Array:
    """Draws from the whole range of the type, and small values."""
    ends = np.iinfo(dtype)
    wide = rng.integers(ends.min, ends.max, dims, dtype, endpoint=True)
    return np.asarray(np.where(rng.integers(0, 2, dims) == 1, wide, wide % dtype(9))).astype(dtype)


def operands(op: str, dtype: Any, a: Dims, b: Dims) -> list[Array]:
    rng = np.random.default_rng([OPS.index(op), len(a), *a, *b])
    inputs = [values(rng, dtype, a)] + ([] if op in ONE_INPUT else [values(rng, dtype, b)])
    if op in ("Div", "Mod", "Fmod"):  # numpy warns when the least value is divided by -1, which overflows
        inputs[1] = np.where((inputs[1] == 0) | (inputs[1].astype(np.int64) == -1), 3, inputs[1]).astype(dtype)
    if op.startswith("Shift"):  # includes shifts by more than the number of bits
        inputs[1] = (inputs[1].astype(np.uint64) % np.uint64(8 * np.dtype(dtype).itemsize + 1)).astype(dtype)
    return [np.asarray(x) for x in inputs]


def computed(op: str, inputs: list[Array]) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(UNARY[op](inputs[0]) if op in UNARY else BINARY[op](inputs[0], inputs[1]))


def case(name: str, dtype: Any, op: str, a: Dims, b: Dims = (), mask: Dims = ()) -> Case:
    ends = np.iinfo(dtype)
    limits = np.array([ends.min // 2 + 3, ends.max - ends.max // 4], dtype)
    if op == "Where":
        inputs = [*operands("Add", dtype, a, b), np.random.default_rng(a).integers(0, 2, mask).astype(bool)]
        y = np.where(inputs[2], inputs[0], inputs[1])
    else:
        inputs = operands(op, dtype, a, b)
        y = np.clip(inputs[0], *limits) if op == "Clip" else computed(op, inputs)
    shapes: list[int] = []
    for dims in (y.shape, a, b, mask):
        shapes += [len(dims), *dims]
    bits = int64s(limits.astype(np.uint64).view(np.int64).tolist())
    width, is_signed = c_int64(np.dtype(dtype).itemsize), c_int32(int(np.issubdtype(dtype, np.signedinteger)))

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan(
            "integer_elementwise",
            facts,
            width,
            is_signed,
            c_int32(OPS.index(op)),
            c_int32(len(inputs)),
            bits,
            int64s(shapes),
        )

    return IntegerCase(name, op, inputs, [y], plan, 0)


class IntegerCase(Case):
    """Compared as integers: float64 cannot represent all 64-bit values."""

    def outputs(self) -> list[Array]:
        return self.expected

    def check(self, got: list[Array]) -> str:
        wrong = int((got[0] != self.expected[0]).sum())
        return f"{wrong} numbers differ" if wrong else ""


def cases() -> Iterator[Case]:
    for i, op in enumerate(OPS):
        for j, dtype in enumerate(TYPES):
            other = 1 + (i + j) % 9
            for k in (0, other) if dtype in COMMON else (other,):
                a, b = PAIRS[k]
                b = () if op in ONE_INPUT else b
                mask = np.broadcast_shapes(a, b)[-2:] if op == "Where" else ()
                yield case(f"integer_elementwise_{op.lower()}_{np.dtype(dtype).name}-{k}", dtype, op, a, b, mask)
