"""Faults in intermediate values: a row, a border, a tail, a precision, a range."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto

from tests.verification.planted.registry import DType, Facts, Patch, Sites, each, kind, tap, times

MAIN = (
    "Conv", "MatMul", "Add", "Relu", "Gemm", "LayerNormalization", "Mul", "LeakyRelu", "Clip",
    "WinogradConvRelu", "WinogradConv", "WinogradConvAddRelu", "FusedAttention", "FusedAttentionBias", "FusedLayerNorm",
)  # fmt: skip


def _batched(facts: Facts) -> Iterator[tuple[str, DType]]:
    """Values with the batch on the first axis."""
    symbols = {facts.dim(i, 0) for i in facts.inputs if facts.rank(i)}
    for rank in (2, 3, 4):
        for value in facts.values(rank, ops=MAIN):
            first = facts.dim(value, 0)
            if isinstance(first, str) and first in symbols:
                yield value, facts.dtype(value)


@kind("first row of the batch stands for all")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, x: str, dtype: DType) -> str:
        first = patch.op("Slice", x, patch.const([0], np.int64), patch.const([1], np.int64), patch.const([0], np.int64))
        return patch.op("Expand", first, patch.op("Shape", x))

    return each(_batched(facts), change)


@kind("rows of the batch after the first are zero")
def _(facts: Facts) -> Sites:
    return each(_batched(facts), _first_row)


@kind("rows of the batch in another order")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, x: str, dtype: DType) -> str:
        zero, one, far = (patch.const([v], np.int64) for v in (0, 1, 2**31))
        head = patch.op("Slice", x, zero, one, zero)
        return patch.op("Concat", patch.op("Slice", x, one, far, zero), head, axis=0)

    return each(_batched(facts), change)


def _position(patch: Patch, x: str, axis: int) -> tuple[str, str]:
    """Returns the indices along the axis and its size, as int64."""
    size = patch.op("Gather", patch.op("Shape", x), patch.const(axis, np.int64))
    return patch.op("Range", patch.const(0, np.int64), size, patch.const(1, np.int64)), size


def _where_kept(patch: Patch, x: str, axis: int, keep: str, dtype: DType) -> str:
    """Returns x where `keep` is true along `axis` (negative), and 0 elsewhere."""
    after = list(range(1, -axis))
    wide = patch.op("Unsqueeze", keep, patch.const(after, np.int64)) if after else keep
    return patch.op("Where", wide, x, patch.const(0, dtype))


def _first_row(patch: Patch, x: str, dtype: DType) -> str:
    """X with zeros in all rows of the first axis except the first row."""
    zero, one, far = (patch.const([v], np.int64) for v in (0, 1, 2**31))
    zeros = patch.op("Expand", patch.const(0, dtype), patch.op("Shape", x))
    head = patch.op("Slice", x, zero, one, zero)
    return patch.op("Concat", head, patch.op("Slice", zeros, one, far, zero), axis=0)


def _images(facts: Facts) -> Iterator[tuple[str, DType]]:
    for value in facts.values(4, ops=MAIN):
        width = facts.dim(value, 3)
        if facts.dim(value, 1) != 1 and (not isinstance(width, int) or width > 2):
            yield value, facts.dtype(value)


def _tokens(facts: Facts) -> Iterator[tuple[str, DType]]:
    for value in facts.values(3, ops=MAIN):
        if isinstance(facts.dim(value, 1), str):
            yield value, facts.dtype(value)


@kind("last column of pixels is zero")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, x: str, dtype: DType) -> str:
        position, size = _position(patch, x, 3)
        last = patch.op("Sub", size, patch.const(1, np.int64))
        return _where_kept(patch, x, -1, patch.op("Less", position, last), dtype)

    return each(_images(facts), change)


@kind("a corner pixel is zero")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, x: str, dtype: DType) -> str:
        row, _ = _position(patch, x, 2)
        column, _ = _position(patch, x, 3)
        both = patch.op("Add", patch.op("Unsqueeze", row, patch.const([1], np.int64)), column)
        return patch.op("Where", patch.op("Greater", both, patch.const(0, np.int64)), x, patch.const(0, dtype))

    return each(_images(facts), change)


def _tail(patch: Patch, x: str, axis: int, multiple: int, dtype: DType) -> str:
    position, size = _position(patch, x, axis)
    whole = patch.op("Sub", size, patch.op("Mod", size, patch.const(multiple, np.int64)))
    rank_axis = {1: -2, 3: -1}[axis]
    return _where_kept(patch, x, rank_axis, patch.op("Less", position, whole), dtype)


@kind("pixels beyond a multiple of four are zero")
def _(facts: Facts) -> Sites:
    for value, dtype in _images(facts):
        if isinstance(facts.dim(value, 3), int) and int(str(facts.dim(value, 3))) % 4 == 0:
            continue
        yield value, tap(value, _tail, 3, 4, dtype)


@kind("tokens beyond a multiple of eight are zero")
def _(facts: Facts) -> Sites:
    return each(_tokens(facts), lambda patch, x, dtype: _tail(patch, x, 1, 8, dtype))


def _beyond(patch: Patch, x: str, traced: int, dtype: DType) -> str:
    position, _ = _position(patch, x, 1)
    return _where_kept(patch, x, -2, patch.op("Less", position, patch.const(traced, np.int64)), dtype)


@kind("tokens beyond the 16th are zero")
def _(facts: Facts) -> Sites:
    return each(_tokens(facts), lambda patch, x, dtype: _beyond(patch, x, 16, dtype))


@kind("tokens beyond the 64th are zero")
def _(facts: Facts) -> Sites:
    return each(_tokens(facts), lambda patch, x, dtype: _beyond(patch, x, 64, dtype))


@kind("a batch above two reads other rows")
def _(facts: Facts) -> Sites:
    """Replaces rows from the third on by the first row."""

    def change(patch: Patch, x: str, dtype: DType) -> str:
        position, _ = _position(patch, x, 0)
        low = patch.op("Less", position, patch.const(2, np.int64))
        index = patch.op("Mul", position, patch.op("Cast", low, to=TensorProto.INT64))
        return patch.op("Gather", x, index, axis=0)

    return each(_batched(facts), change)


def _through(patch: Patch, x: str, elem_type: int) -> str:
    return patch.op("Cast", patch.op("Cast", x, to=elem_type), to=TensorProto.FLOAT)


@kind("a value through half precision")
def _(facts: Facts) -> Sites:
    return each(_floats(facts), lambda patch, x: _through(patch, x, TensorProto.FLOAT16))


@kind("a value through bfloat16")
def _(facts: Facts) -> Sites:
    return each(_floats(facts), lambda patch, x: _through(patch, x, TensorProto.BFLOAT16))


def _floats(facts: Facts) -> Iterator[tuple[str]]:
    return ((value,) for value, dtype in main_values(facts) if facts.elem_type(value) == TensorProto.FLOAT)


def main_values(facts: Facts) -> Iterator[tuple[str, DType]]:
    """Results of the main operators, with their dtype."""
    for rank in (2, 3, 4):
        for value in facts.values(rank, ops=MAIN):
            yield value, facts.dtype(value)


@kind("values above 40 clipped")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, x: str, dtype: DType) -> str:
        return patch.op("Clip", x, patch.const(-40, dtype), patch.const(40, dtype))

    return each(main_values(facts), change)


@kind("values below 0.01 flushed to zero")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, x: str, dtype: DType) -> str:
        small = patch.op("Less", patch.op("Abs", x), patch.const(0.01, dtype))
        return patch.op("Where", small, patch.const(0, dtype), x)

    return each(main_values(facts), change)


@kind("a channel of a value is zero")
def _(facts: Facts) -> Sites:
    for value, dtype in main_values(facts):
        axis = 1 if facts.rank(value) == 4 else -1
        channels = facts.dim(value, axis)
        if isinstance(channels, int) and channels > 2:
            keep = np.ones((channels, 1, 1) if axis == 1 else (channels,), dtype)
            keep[channels // 3] = 0
            yield value, tap(value, times, keep, dtype)
