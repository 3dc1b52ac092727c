"""Faults in positions (wrong head, row, pixel or half), coarse quantization, and approximations of functions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto

from tests.verification.planted.registry import (
    FLOATS,
    DType,
    Facts,
    Patch,
    Sites,
    become,
    each,
    first_for_all,
    integer,
    kind,
    nodes,
    set_constant,
    tap,
    times,
    where,
)
from tests.verification.planted.values import MAIN, main_values


def _rolled(patch: Patch, x: str, axis: int) -> str:
    """Moves the first entry along an axis to the end."""
    zero, one, far, along = (integer(patch, [v]) for v in (0, 1, 2**31, axis))
    head = patch.op("Slice", x, zero, one, along)
    return patch.op("Concat", patch.op("Slice", x, one, far, along), head, axis=axis)


def _products(facts: Facts, operand: int) -> Iterator[tuple[str, DType]]:
    """Yields operands [B, H, S, D] of MatMul nodes of attention heads that have no constant operand."""
    for node in nodes(facts, "MatMul"):
        if any(n in facts.constants for n in node.input):
            continue
        name = node.input[operand]
        heads = facts.dim(name, 1) if facts.rank(name) == 4 else None
        if heads != 1 and heads is not None:
            yield name, facts.dtype(name)


@kind("heads: keys or values of the next head")
def _(facts: Facts) -> Sites:
    return each(_products(facts, 1), lambda patch, x, dtype: _rolled(patch, x, 1))


@kind("heads: all keys or values of the first head")
def _(facts: Facts) -> Sites:
    return each(_products(facts, 1), first_for_all)


@kind("heads: the halves of each query exchanged")
def _(facts: Facts) -> Sites:
    """Models a rotary embedding with the other interleaving."""

    def change(patch: Patch, x: str, dtype: DType, size: int) -> str:
        order = np.arange(size).reshape(2, size // 2).T.reshape(-1)
        return patch.op("Gather", x, patch.const(order, np.int64), axis=3)

    sized = ((name, dtype, facts.dim(name, 3)) for name, dtype in _products(facts, 0))
    return each((s for s in sized if isinstance(s[2], int) and s[2] % 2 == 0), change)


@kind("a sign lost")
def _(facts: Facts) -> Sites:
    for node in nodes(facts, "Neg", "Abs"):
        if facts.elem_type(node.output[0]) in FLOATS:
            yield where(node), become(node, "Identity", list(node.input))


@kind("every other token reads the one before")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, x: str, dtype: DType) -> str:
        size = patch.op("Gather", patch.op("Shape", x), integer(patch, 1))
        position = patch.op("Range", integer(patch, 0), size, integer(patch, 1))
        two = integer(patch, 2)
        return patch.op("Gather", x, patch.op("Mul", patch.op("Div", position, two), two), axis=1)

    values = ((v, facts.dtype(v)) for v in facts.values(3, ops=MAIN) if isinstance(facts.dim(v, 1), str))
    return each(values, change)


@kind("tokens in reverse")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, x: str, dtype: DType) -> str:
        back, far, axis = integer(patch, [-1]), integer(patch, [-(2**31)]), integer(patch, [1])
        return patch.op("Slice", x, back, far, axis, back)

    values = ((v, facts.dtype(v)) for v in facts.values(3, ops=MAIN) if isinstance(facts.dim(v, 1), str))
    return each(values, change)


def _pictures(facts: Facts) -> Iterator[tuple[str, DType]]:
    for value in facts.values(4, ops=MAIN):
        if facts.dim(value, 1) != 1 and facts.dim(value, 2) not in (1, 2) and facts.dim(value, 3) not in (1, 2):
            yield value, facts.dtype(value)


@kind("the last row of pixels repeats the one before")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, x: str, dtype: DType) -> str:
        zero, last, along = (integer(patch, [v]) for v in (0, -1, 2))
        most = patch.op("Slice", x, zero, last, along)
        again = patch.op("Slice", most, last, integer(patch, [2**31]), along)
        return patch.op("Concat", most, again, axis=2)

    return each(_pictures(facts), change)


@kind("pixels one to the left")
def _(facts: Facts) -> Sites:
    return each(_pictures(facts), lambda patch, x, dtype: _rolled(patch, x, 3))


@kind("channels shifted by one")
def _(facts: Facts) -> Sites:
    values = [*((v, 1) for v in facts.values(4, ops=MAIN)), *((v, 2) for v in facts.values(3, ops=MAIN))]
    wide = ((v, axis) for v, axis in values if isinstance(c := facts.dim(v, axis), int) and c > 2)
    return each(wide, _rolled)


@kind("a value through 8 bits")
def _(facts: Facts) -> Sites:
    """Rounds values to multiples of 1/16 in [-8, 7.9375]."""

    def change(patch: Patch, x: str, dtype: DType) -> str:
        low, high = patch.const(-128, dtype), patch.const(127, dtype)
        steps = patch.op("Round", times(patch, x, 16, dtype))
        return times(patch, patch.op("Max", patch.op("Min", steps, high), low), 1 / 16, dtype)

    return each(main_values(facts), change)


@kind("a quantized value saturates at 127")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, x: str, elem_type: int) -> str:
        wide = patch.op("Cast", x, to=TensorProto.INT64)
        return patch.op("Cast", patch.op("Min", wide, integer(patch, 120)), to=elem_type)

    made = (n.output[0] for n in nodes(facts, "QuantizeLinear", "DynamicQuantizeLinear"))
    return each(((name, facts.elem_type(name)) for name in made if facts.elem_type(name)), change)


@kind("zero point off by one")
def _(facts: Facts) -> Sites:
    for node in nodes(facts, "QuantizeLinear", "DequantizeLinear"):
        point = facts.constants.get(node.input[2]) if len(node.input) > 2 else None
        if point is not None:
            yield where(node), set_constant(node.input[2], np.clip(point.astype(np.int64) + 1, -128, 127))


@kind("ReLU that ends at six")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, x: str, dtype: DType) -> str:
        return patch.op("Min", x, patch.const(6, dtype))

    made = (n.output[0] for n in nodes(facts, "Relu", "LeakyRelu", "Softplus"))
    return each(((name, facts.dtype(name)) for name in made), change)


@kind("GELU by a sigmoid")
def _(facts: Facts) -> Sites:
    """Replaces (1 + erf(x / sqrt 2)) / 2 by sigmoid(1.702 x)."""
    for node in nodes(facts, "Erf"):
        dtype = facts.dtype(node.output[0])

        def change(patch: Patch, x: str, scaled: str = node.input[0], dtype: DType = dtype) -> str:
            slope = patch.op("Sigmoid", times(patch, scaled, 1.702 * np.sqrt(2), dtype))
            return patch.op("Sub", times(patch, slope, 2, dtype), patch.const(1, dtype))

        yield where(node), tap(node.output[0], change)


@kind("variance of a norm over n - 1")
def _(facts: Facts) -> Sites:
    for node in nodes(facts, "LayerNormalization", "FusedLayerNorm"):
        scale = facts.constants.get(node.input[1])
        if scale is not None and scale.ndim == 1 and scale.size > 2:
            yield where(node), set_constant(node.input[1], scale * np.sqrt(1 - 1 / scale.size))
