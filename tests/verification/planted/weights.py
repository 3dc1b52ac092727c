"""Faults in constants, as folding, transposing, packing and rounding of weights could introduce them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tests.rewriting import Array
from tests.verification.planted.registry import (
    Facts,
    Product,
    Sites,
    attribute,
    bfloat16,
    each_weight,
    kind,
    mantissa,
    products,
    set_constant,
    set_inputs,
    where,
)  # fmt: skip

NORMS = ("LayerNormalization", "FusedLayerNorm", "FusedLayerNormAdd", "FusedLayerNormAddSum", "InstanceNormalization")


def _exchanged(array: Array, axis: int, first: int, second: int) -> Array:
    order = np.arange(array.shape[axis])
    order[[first, second]] = second, first
    return np.take(array, order, axis=axis)


def _along(p: Product, axis: int, index: int) -> tuple[slice | int, ...]:
    return tuple(index if i == axis else slice(None) for i in range(p.weight.ndim))


@kind("sign of the largest weight")
def _(facts: Facts) -> Sites:
    def change(p: Product) -> Array:
        array: Array = p.weight.copy()
        array[np.unravel_index(np.abs(array).argmax(), array.shape)] *= -1
        return array

    return each_weight(facts, change)


@kind("weights off by 0.1 %")
def _(facts: Facts) -> Sites:
    return each_weight(facts, lambda p: p.weight * p.weight.dtype.type(1.001))


@kind("an output channel is zero")
def _(facts: Facts) -> Sites:
    def change(p: Product) -> Array:
        array: Array = p.weight.copy()
        array[_along(p, p.out, array.shape[p.out] // 2)] = 0
        return array

    return each_weight(facts, change)


@kind("the last output channel is zero")
def _(facts: Facts) -> Sites:
    def change(p: Product) -> Array:
        array: Array = p.weight.copy()
        array[_along(p, p.out, -1)] = 0
        return array

    return each_weight(facts, change)


@kind("two output channels exchanged")
def _(facts: Facts) -> Sites:
    return each_weight(facts, lambda p: _exchanged(p.weight, p.out, 0, 1) if p.weight.shape[p.out] > 1 else None)


@kind("an output channel off by 1 %")
def _(facts: Facts) -> Sites:
    def change(p: Product) -> Array:
        array: Array = p.weight.copy()
        array[_along(p, p.out, 1 % array.shape[p.out])] *= array.dtype.type(1.01)
        return array

    return each_weight(facts, change)


@kind("two input channels exchanged")
def _(facts: Facts) -> Sites:
    return each_weight(facts, lambda p: _exchanged(p.weight, p.inner, 0, 1) if p.weight.shape[p.inner] > 1 else None)


@kind("the last input channel is not read")
def _(facts: Facts) -> Sites:
    def change(p: Product) -> Array | None:
        if p.weight.shape[p.inner] < 2:
            return None
        array: Array = p.weight.copy()
        array[_along(p, p.inner, -1)] = 0
        return array

    return each_weight(facts, change)


@kind("convolution kernel transposed")
def _(facts: Facts) -> Sites:
    return each_weight(
        facts,
        lambda p: p.weight.swapaxes(2, 3) if p.weight.ndim == 4 and p.weight.shape[2] == p.weight.shape[3] else None,
    )


@kind("convolution kernel flipped")
def _(facts: Facts) -> Sites:
    return each_weight(facts, lambda p: p.weight[..., ::-1, ::-1] if p.weight.ndim == 4 else None)


@kind("one tap of a convolution kernel lost")
def _(facts: Facts) -> Sites:
    def change(p: Product) -> Array | None:
        if p.weight.ndim != 4 or p.weight.shape[3] < 3:
            return None
        array: Array = p.weight.copy()
        array[..., 0, -1] = 0
        return array

    return each_weight(facts, change)


@kind("square weights transposed")
def _(facts: Facts) -> Sites:
    return each_weight(facts, lambda p: p.weight.T if p.weight.ndim == 2 and len(set(p.weight.shape)) == 1 else None)


@kind("groups of a convolution shifted by one")
def _(facts: Facts) -> Sites:
    def change(p: Product) -> Array | None:
        group = attribute(p.node, "group", 1)
        return np.asarray(np.roll(p.weight, p.weight.shape[0] // group, axis=0)) if group > 1 else None

    return each_weight(facts, change)


@kind("weights rounded to bfloat16")
def _(facts: Facts) -> Sites:
    return each_weight(facts, lambda p: bfloat16(p.weight))


@kind("weights rounded to TF32")
def _(facts: Facts) -> Sites:
    return each_weight(facts, lambda p: mantissa(p.weight, 10) if p.weight.dtype == np.float32 else None)


@kind("weights rounded to half precision")
def _(facts: Facts) -> Sites:
    return each_weight(
        facts, lambda p: p.weight.astype(np.float16).astype(np.float32) if p.weight.dtype == np.float32 else None
    )


@kind("weights rounded to int8")
def _(facts: Facts) -> Sites:
    def change(p: Product) -> Array:
        step = np.abs(p.weight).max() / 127
        return np.asarray(np.round(p.weight / step) * step).astype(p.weight.dtype)

    return each_weight(facts, change)


@kind("a kernel with an error of 3e-4")
def _(facts: Facts) -> Sites:
    def change(p: Product) -> Array:
        noise = np.random.default_rng(5).uniform(-3e-4, 3e-4, p.weight.shape)
        return np.asarray(p.weight * (1 + noise)).astype(p.weight.dtype)

    return (s for s in each_weight(facts, change) if not facts.half)


@kind("small weights flushed to zero")
def _(facts: Facts) -> Sites:
    return each_weight(facts, lambda p: np.where(np.abs(p.weight) < 0.02 * np.abs(p.weight).max(), 0, p.weight))


@kind("large weights clipped")
def _(facts: Facts) -> Sites:
    def change(p: Product) -> Array:
        bound = 0.8 * np.abs(p.weight).max()
        return np.clip(p.weight, -bound, bound)

    return each_weight(facts, change)


@kind("bias dropped")
def _(facts: Facts) -> Sites:
    for p in products(facts):
        if p.bias is not None:
            yield p.bias, set_constant(p.bias, np.zeros_like(facts.constants[p.bias]))


@kind("bias of one channel dropped")
def _(facts: Facts) -> Sites:
    for p in products(facts):
        if p.bias is not None:
            array = facts.constants[p.bias].copy()
            array[np.abs(array).argmax()] = 0
            yield p.bias, set_constant(p.bias, array)


@kind("bias added twice")
def _(facts: Facts) -> Sites:
    for p in products(facts):
        if p.bias is not None:
            yield p.bias, set_constant(p.bias, facts.constants[p.bias] * 2)


@kind("bias shifted by a channel")
def _(facts: Facts) -> Sites:
    for p in products(facts):
        if p.bias is not None:
            yield p.bias, set_constant(p.bias, np.roll(facts.constants[p.bias], 1))


def _of_batch_norms(facts: Facts, which: int, change: Callable[[Array], Array]) -> Sites:
    for node in facts.nodes:
        if node.op_type == "BatchNormalization" and node.input[which] in facts.constants:
            name = node.input[which]
            yield name, set_constant(name, change(facts.constants[name]))


@kind("mean of a BatchNormalization ignored")
def _(facts: Facts) -> Sites:
    return _of_batch_norms(facts, 3, np.zeros_like)


@kind("variance of one channel of a BatchNormalization is one")
def _(facts: Facts) -> Sites:
    def change(array: Array) -> Array:
        found: Array = array.copy()
        found[np.abs(found - 1).argmax()] = 1
        return found

    return _of_batch_norms(facts, 4, change)


@kind("scale and shift of a BatchNormalization exchanged")
def _(facts: Facts) -> Sites:
    for node in facts.nodes:
        if node.op_type == "BatchNormalization":
            yield where(node), set_inputs(node, [node.input[0], node.input[2], node.input[1], *node.input[3:]])


@kind("scale of one feature of a norm is one")
def _(facts: Facts) -> Sites:
    for name in _norm_weights(facts, 1):
        array = facts.constants[name].copy()
        flat = array.reshape(-1)
        flat[np.abs(flat - 1).argmax()] = 1
        if not np.array_equal(array, facts.constants[name]):
            yield name, set_constant(name, array)


@kind("shift of a norm dropped")
def _(facts: Facts) -> Sites:
    for name in _norm_weights(facts, 2):
        if facts.constants[name].any():
            yield name, set_constant(name, np.zeros_like(facts.constants[name]))


def _norm_weights(facts: Facts, which: int) -> Iterator[str]:
    for node in facts.nodes:
        if node.op_type in NORMS and len(node.input) > which:
            place = which + ("Add" in node.op_type)
            if place < len(node.input) and node.input[place] in facts.constants:
                yield node.input[place]


def _tables(facts: Facts) -> Iterator[tuple[str, Array]]:
    """Tables whose rows are read by Gather."""
    for node in facts.nodes:
        if node.op_type == "Gather" and node.input[0] in facts.constants and node.input[1] not in facts.constants:
            table = facts.constants[node.input[0]]
            if table.dtype.kind == "f" and table.ndim == 2 and table.shape[0] > 1:
                yield node.input[0], table


def _tables_with(facts: Facts, change: Callable[[Array], None]) -> Sites:
    for name, table in _tables(facts):
        array = table.copy()
        change(array)
        yield name, set_constant(name, array)


@kind("last row of a table is zero")
def _(facts: Facts) -> Sites:
    def change(array: Array) -> None:
        array[-1] = 0

    return _tables_with(facts, change)


@kind("first row of a table is zero")
def _(facts: Facts) -> Sites:
    def change(array: Array) -> None:
        array[0] = 0

    return _tables_with(facts, change)


@kind("one row in the middle of a table is off by 10 %")
def _(facts: Facts) -> Sites:
    def change(array: Array) -> None:
        array[array.shape[0] // 2] *= array.dtype.type(1.1)

    return _tables_with(facts, change)


@kind("table shifted by a row")
def _(facts: Facts) -> Sites:
    def change(array: Array) -> None:
        array[:] = np.roll(array, 1, axis=0)

    return _tables_with(facts, change)


@kind("second half of a table is zero")
def _(facts: Facts) -> Sites:
    def change(array: Array) -> None:
        array[(array.shape[0] + 1) // 2 :] = 0

    return _tables_with(facts, change)


def _after_heads(facts: Facts) -> Iterator[tuple[Product, int]]:
    """Products after merged attention heads, with the number of heads."""
    for p in products(facts):
        reshape = facts.producer.get(p.node.input[0])
        if p.weight.ndim != 2 or reshape is None or reshape.op_type != "Reshape":
            continue
        source = facts.producer.get(reshape.input[0])
        if source is None:
            continue
        if source.op_type == "Transpose" and facts.rank(source.input[0]) == 4:
            heads = facts.dim(source.input[0], 1)
        elif source.op_type.startswith("FusedAttention"):
            heads = facts.dim(source.output[0], 2) if facts.rank(source.output[0]) == 4 else None
        else:
            continue
        if isinstance(heads, int) and heads > 1 and p.weight.shape[p.inner] % heads == 0:
            yield p, heads


@kind("an attention head is zero")
def _(facts: Facts) -> Sites:
    for p, heads in _after_heads(facts):
        array = np.moveaxis(p.weight.copy(), p.inner, 0)
        array[-(array.shape[0] // heads) :] = 0
        yield p.name, set_constant(p.name, np.moveaxis(array, 0, p.inner))


@kind("two attention heads exchanged")
def _(facts: Facts) -> Sites:
    for p, heads in _after_heads(facts):
        array = np.moveaxis(p.weight, p.inner, 0)
        split = array.reshape(heads, array.shape[0] // heads, -1)
        changed = _exchanged(split, 0, 0, 1).reshape(array.shape)
        yield p.name, set_constant(p.name, np.moveaxis(changed, 0, p.inner))
