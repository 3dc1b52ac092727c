"""Faults of tiled kernels: a wrong result of one thread, one tile or one partial sum."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from tests.verification.planted.registry import DType, Facts, Patch, Sites, each, integer, kind, nodes, times
from tests.verification.planted.values import main_values


def _numbered(patch: Patch, x: str) -> str:
    """The flat index of each element, in the shape of x."""
    shape = patch.op("Shape", x)
    count = patch.op("ReduceProd", shape, keepdims=0)
    return patch.op("Reshape", patch.op("Range", integer(patch, 0), count, integer(patch, 1)), shape)


def _every(patch: Patch, x: str, period: int, place: int) -> str:
    """True at one element of each period."""
    rest = patch.op("Mod", _numbered(patch, x), integer(patch, period))
    return patch.op("Equal", rest, integer(patch, place))


@kind("tiles: one element of 64 is zero")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, x: str, dtype: DType) -> str:
        return patch.op("Where", _every(patch, x, 64, 63), patch.const([0], dtype), x)

    return each(main_values(facts), change)


@kind("tiles: one element of 256 off by 5 %")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, x: str, dtype: DType) -> str:
        return patch.op("Where", _every(patch, x, 256, 17), times(patch, x, 1.05, dtype), x)

    return each(main_values(facts), change)


@kind("tiles: the element at the end of a line of 32 is the one before")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, x: str, dtype: DType) -> str:
        shape, flat = patch.op("Shape", x), patch.op("Reshape", x, integer(patch, [-1]))
        here = _numbered(patch, flat)
        last = patch.op("Equal", patch.op("Mod", here, integer(patch, 32)), integer(patch, 31))
        back = patch.op("Sub", here, patch.op("Cast", last, to=TensorProto.INT64))
        return patch.op("Reshape", patch.op("Gather", flat, back, axis=0), shape)

    return each(main_values(facts), change)


@kind("probabilities: their sum is 0.99")
def _(facts: Facts) -> Sites:
    values = ((node.output[0], facts.dtype(node.output[0])) for node in nodes(facts, "Softmax"))
    return each(values, lambda patch, x, dtype: times(patch, x, 0.99, dtype))


@kind("probabilities: the smaller ones are zero")
def _(facts: Facts) -> Sites:
    """Sets probabilities below 0.01 to zero, as a kernel with a short table of exponentials would."""

    def change(patch: Patch, x: str, dtype: DType) -> str:
        small = patch.op("Less", x, patch.const([0.01], dtype))
        return patch.op("Where", small, patch.const([0], dtype), x)

    values = ((node.output[0], facts.dtype(node.output[0])) for node in nodes(facts, "Softmax"))
    return each(values, change)


@kind("partial sums: the first input of each product counts twice")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, x: str, dtype: DType) -> str:
        size = patch.op("Gather", patch.op("Shape", x), integer(patch, -1))
        here = patch.op("Range", integer(patch, 0), size, integer(patch, 1))
        first = patch.op("Equal", here, integer(patch, 0))
        return patch.op("Where", first, times(patch, x, 2.0, dtype), x)

    values = {n.input[0] for n in nodes(facts, "MatMul") if n.input[0] not in facts.constants}
    return each(((v, facts.dtype(v)) for v in sorted(values) if facts.dtype(v).kind == "f"), change)


@kind("partial sums: added in half precision")
def _(facts: Facts) -> Sites:
    """Rounds the last addition of a float32 MatMul to half precision."""

    def change(patch: Patch, x: str, dtype: DType) -> str:
        half = patch.op("Cast", times(patch, x, 0.5, dtype), to=TensorProto.FLOAT16)
        back = patch.op("Cast", half, to=TensorProto.FLOAT)
        return patch.op("Add", times(patch, x, 0.5, dtype), back)

    values = ((n.output[0], facts.dtype(n.output[0])) for n in nodes(facts, "MatMul", "Gemm"))
    return each((v for v in values if v[1] == np.float32), change)
