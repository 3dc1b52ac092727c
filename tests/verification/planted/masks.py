"""Faults in masks: polarity, causal structure, supported padding, how strongly a position is hidden."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx
from onnx import TensorProto

from tests.rewriting import Array
from tests.verification.planted.registry import (
    Facts,
    Patch,
    Sites,
    attribute,
    become,
    each,
    integer,
    integers,
    kind,
    set_attributes,
    set_constant,
    where,
)

# The smallest magnitude that exporters use to hide a position.
LOW = 1e3


def _masks(facts: Facts, change: Callable[[Patch, str], str]) -> Sites:
    """One site for each mask of the model."""
    return integers(facts, facts.hints.masks, lambda patch, mask, _: change(patch, mask))


def _ones(patch: Patch, mask: str) -> str:
    return patch.op("Expand", integer(patch, 1), patch.op("Shape", mask))


def _positions(patch: Patch, mask: str) -> str:
    size = patch.op("Gather", patch.op("Shape", mask), integer(patch, 1))
    return patch.op("Range", integer(patch, 0), size, integer(patch, 1))


def _flag(patch: Patch, condition: str) -> str:
    return patch.op("Cast", condition, to=TensorProto.INT64)


@kind("mask: inverted")
def _(facts: Facts) -> Sites:
    return _masks(facts, lambda patch, mask: patch.op("Sub", integer(patch, 1), mask))


@kind("mask: ignored")
def _(facts: Facts) -> Sites:
    return _masks(facts, _ones)


@kind("mask: first row stands for all")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, mask: str) -> str:
        zero, one = patch.const([0], np.int64), patch.const([1], np.int64)
        return patch.op("Expand", patch.op("Slice", mask, zero, one, zero), patch.op("Shape", mask))

    return _masks(facts, change)


@kind("mask: first row ignored")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, mask: str) -> str:
        zero, one, far = (patch.const([v], np.int64) for v in (0, 1, 2**31))
        ones = patch.op("Slice", _ones(patch, mask), zero, one, zero)
        return patch.op("Concat", ones, patch.op("Slice", mask, one, far, zero), axis=0)

    return _masks(facts, change)


@kind("mask: taken as a length")
def _(facts: Facts) -> Sites:
    """Reads the mask as a length, the number of visible positions: left padding and holes become wrong."""

    def change(patch: Patch, mask: str) -> str:
        length = patch.op("ReduceSum", mask, patch.const([1], np.int64))
        return _flag(patch, patch.op("Less", _positions(patch, mask), length))

    return _masks(facts, change)


def _seen(patch: Patch, mask: str, reverse: int) -> str:
    return patch.op("Greater", patch.op("CumSum", mask, integer(patch, 1), reverse=reverse), integer(patch, 0))


@kind("mask: padding on the left ignored")
def _(facts: Facts) -> Sites:
    return _masks(facts, lambda patch, mask: _flag(patch, _seen(patch, mask, 1)))


@kind("mask: padding on the right ignored")
def _(facts: Facts) -> Sites:
    return _masks(facts, lambda patch, mask: _flag(patch, _seen(patch, mask, 0)))


@kind("mask: holes filled")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, mask: str) -> str:
        return _flag(patch, patch.op("And", _seen(patch, mask, 0), _seen(patch, mask, 1)))

    return _masks(facts, change)


@kind("mask: first key always kept")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, mask: str) -> str:
        first = _flag(patch, patch.op("Less", _positions(patch, mask), integer(patch, 1)))
        return patch.op("Max", mask, patch.op("Expand", first, patch.op("Shape", mask)))

    return _masks(facts, change)


@kind("mask: last key always dropped")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, mask: str) -> str:
        size = patch.op("Gather", patch.op("Shape", mask), integer(patch, 1))
        last = patch.op("Sub", size, integer(patch, 1))
        return patch.op("Mul", mask, _flag(patch, patch.op("Less", _positions(patch, mask), last)))

    return _masks(facts, change)


@kind("mask: shifted by a key")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, mask: str) -> str:
        zero, one, far, axis = (patch.const([v], np.int64) for v in (0, 1, 2**31, 1))
        head = patch.op("Slice", mask, zero, one, axis)
        return patch.op("Concat", patch.op("Slice", mask, one, far, axis), head, axis=1)

    return _masks(facts, change)


@kind("mask: read up to the eighth key")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, mask: str) -> str:
        beyond = _flag(patch, patch.op("Greater", _positions(patch, mask), integer(patch, 7)))
        return patch.op("Max", mask, patch.op("Expand", beyond, patch.op("Shape", mask)))

    return _masks(facts, change)


@kind("mask: a row with one key keeps all")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, mask: str) -> str:
        single = patch.op("Equal", patch.op("ReduceSum", mask, patch.const([1], np.int64)), integer(patch, 1))
        return patch.op("Max", mask, patch.op("Expand", _flag(patch, single), patch.op("Shape", mask)))

    return _masks(facts, change)


def _bounds(facts: Facts) -> Iterator[tuple[str, Array]]:
    for name, array in facts.constants.items():
        if array.dtype.kind == "f" and array.size == 1 and abs(float(array.reshape(-1)[0])) >= LOW:
            yield name, array


@kind("bound of a mask: hides too little")
def _(facts: Facts) -> Sites:
    for name, array in _bounds(facts):
        yield name, set_constant(name, np.sign(array) * 8)


@kind("bound of a mask: 1e9 for 1e4, 1e4 for more")
def _(facts: Facts) -> Sites:
    """Changes outputs only where all keys of a query are hidden, or where scores are as large as the mask value."""
    for name, array in _bounds(facts):
        value = 1e9 if abs(float(array.reshape(-1)[0])) <= 1e4 else 1e4
        yield name, set_constant(name, np.sign(array) * min(value, float(np.finfo(array.dtype).max)))


@kind("bound of a mask: another sign")
def _(facts: Facts) -> Sites:
    for name, array in _bounds(facts):
        yield name, set_constant(name, -array)


@kind("bound of a mask: hides nothing")
def _(facts: Facts) -> Sites:
    for name, array in _bounds(facts):
        yield name, set_constant(name, np.zeros_like(array))


def _squares(facts: Facts) -> Iterator[tuple[str, Array]]:
    for name, array in facts.constants.items():
        if array.ndim < 2 or array.shape[-1] != array.shape[-2] or array.shape[-1] < 2:
            continue
        large = array.dtype.kind == "f" and np.abs(array[np.isfinite(array)]).max(initial=0.0) >= LOW
        if array.dtype.kind in "bu" or large:
            yield name, array


@kind("causal mask: shifted by a key")
def _(facts: Facts) -> Sites:
    for name, array in _squares(facts):
        yield name, set_constant(name, np.roll(array, 1, axis=-1))
    for node in facts.nodes:
        if node.op_type == "Trilu":
            k = facts.constants.get(node.input[1]) if len(node.input) > 1 else np.array(0)

            def edit(patch: Patch, node: onnx.NodeProto = node, k: Array | None = k) -> None:
                assert k is not None
                patch.node(node).input[:] = [node.input[0], patch.const(k + 1, np.int64)]

            if k is not None:
                yield where(node), edit


@kind("causal mask: transposed")
def _(facts: Facts) -> Sites:
    for name, array in _squares(facts):
        yield name, set_constant(name, np.swapaxes(array, -1, -2))
    for node in facts.nodes:
        if node.op_type == "Trilu":
            upper = attribute(node, "upper", 1)
            yield where(node), set_attributes(node, upper=1 - upper)


@kind("causal mask: keeps everything")
def _(facts: Facts) -> Sites:
    for name, array in _squares(facts):
        yield name, set_constant(name, np.ones_like(array) if array.dtype.kind in "bu" else np.zeros_like(array))


@kind("causal mask: the last query sees one key less")
def _(facts: Facts) -> Sites:
    for name, array in _squares(facts):
        if array.dtype.kind == "b":
            changed = array.copy()
            changed[..., np.arange(array.shape[-1]) >= 3, 0] = False
            yield name, set_constant(name, changed)


@kind("summand of scores dropped")
def _(facts: Facts) -> Sites:
    """Keeps only the scores or only the mask."""
    softmax_inputs = {n.input[0] for n in facts.nodes if n.op_type == "Softmax"}
    for node in facts.nodes:
        if node.op_type == "Add" and node.output[0] in softmax_inputs:
            for name in node.input:
                # A mask that broadcasts has another rank, which would give an error instead of wrong values.
                if name not in facts.constants and facts.rank(name) == facts.rank(node.output[0]):
                    yield f"{where(node)} keeps {name}", become(node, "Identity", [name])


@kind("complement of a mask dropped")
def _(facts: Facts) -> Sites:
    for node in facts.nodes:
        if node.op_type == "Sub" and node.input[0] in facts.constants and facts.constants[node.input[0]].size == 1:
            yield where(node), become(node, "Identity", [node.input[1]])
        if node.op_type == "Not":
            yield where(node), become(node, "Identity", list(node.input))


def _float_masks(facts: Facts) -> Iterator[tuple[str]]:
    """Float inputs whose name contains "mask"."""
    for name in facts.inputs:
        if facts.elem_type(name) == TensorProto.FLOAT and "mask" in name:
            yield (name,)


@kind("float mask: taken as keep or drop")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, x: str) -> str:
        low = patch.op("Less", x, patch.const(-1.0, np.float32))
        return patch.op("Where", low, patch.const(-1e4, np.float32), patch.const(0.0, np.float32))

    return each(_float_masks(facts), change)


@kind("float mask: positive values lost")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, x: str) -> str:
        return patch.op("Min", x, patch.const(0.0, np.float32))

    return each(_float_masks(facts), change)


@kind("float mask: one head's for all heads")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, x: str) -> str:
        zero, one, axis = (patch.const([v], np.int64) for v in (0, 1, 1))
        return patch.op("Expand", patch.op("Slice", x, zero, one, axis), patch.op("Shape", x))

    by_head = (n for n in _float_masks(facts) if facts.rank(n[0]) == 4 and facts.dim(n[0], 1) != 1)
    return each(by_head, change)
