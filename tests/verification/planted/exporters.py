"""Faults of exporters and quantizers: values read in the wrong order, on the wrong axis or with a wrong parameter."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto

from tests.rewriting import Array
from tests.verification.planted.registry import (
    FLOATS,
    Edit,
    Facts,
    Patch,
    Product,
    Sites,
    attribute,
    become,
    bfloat16,
    each,
    each_weight,
    first_for_all,
    integer,
    kind,
    nodes,
    products,
    set_attributes,
    set_constant,
    tap,
    times,
    where,
)

# Quantization steps from 0 to the largest int8 value.
STEPS = 127
# Constants with at most this many elements are scales, bounds and epsilons.
SMALL = 4


def _largest(p: Product, axis: int) -> Array:
    """The largest weight of each channel along an axis, in a shape that broadcasts to the weights."""
    others = tuple(i for i in range(p.weight.ndim) if i != axis)
    return np.asarray(np.abs(p.weight).max(axis=others, keepdims=True))


@kind("quantizer: the first channel's range for all")
def _(facts: Facts) -> Sites:
    def change(p: Product) -> Array:
        most = np.take(_largest(p, p.out), [0], axis=p.out)
        return np.clip(p.weight, -most, most)

    return each_weight(facts, change)


@kind("quantizer: every two input channels exchanged")
def _(facts: Facts) -> Sites:
    """Models two 4-bit values of a byte that are read in the wrong order."""

    def change(p: Product) -> Array | None:
        order = np.arange(p.weight.shape[p.inner]) ^ 1
        return np.take(p.weight, order, axis=p.inner) if len(order) % 2 == 0 else None

    return each_weight(facts, change)


@kind("quantizer: scales along the other axis")
def _(facts: Facts) -> Sites:
    def change(p: Product) -> Array | None:
        scale = _largest(p, p.out)
        if p.weight.ndim != 2 or len(set(p.weight.shape)) > 1 or not scale.all():
            return None
        return np.asarray(p.weight / scale * scale.T)

    return each_weight(facts, change)


@kind("quantizer: weights half a step of 8 bits too high")
def _(facts: Facts) -> Sites:
    return each_weight(facts, lambda p: p.weight + np.abs(p.weight).max() / p.weight.dtype.type(2 * STEPS))


@kind("quantizer: weights cut off to bfloat16")
def _(facts: Facts) -> Sites:
    def change(p: Product) -> Array:
        bits = np.ascontiguousarray(p.weight, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
        return np.asarray(bits.view(np.float32).astype(p.weight.dtype))

    return each_weight(facts, change)


@kind("quantizer: bias in steps of 8 bits")
def _(facts: Facts) -> Sites:
    for p in products(facts):
        bias = facts.constants[p.bias] if p.bias else np.zeros(1)
        step = np.abs(bias).max() / STEPS
        if p.bias and step > 0:
            yield p.bias, set_constant(p.bias, np.rint(bias / step) * step)


@kind("quantizer: a scale in bfloat16")
def _(facts: Facts) -> Sites:
    for node in nodes(facts, "Mul", "Div"):
        for name in node.input:
            scale = facts.constants.get(name)
            if scale is not None and scale.dtype.kind == "f" and scale.size <= SMALL:
                rounded = bfloat16(scale)
                if not np.array_equal(rounded, scale):
                    yield name, set_constant(name, rounded)


@kind("exporter: weights of two layers exchanged")
def _(facts: Facts) -> Sites:
    """Exchanges the weights of a layer with those of the next layer that has the same shape."""
    last: dict[tuple[str, tuple[int, ...]], Product] = {}
    for p in products(facts):
        key = p.node.op_type, p.weight.shape
        other = last.get(key)
        if other is not None and not np.array_equal(other.weight, p.weight):

            def edit(patch: Patch, a: Product = other, b: Product = p) -> None:
                patch.set_constant(a.name, b.weight)
                patch.set_constant(b.name, a.weight)

            yield f"{other.name} {p.name}", edit
        last[key] = p


@kind("exporter: tanh for a sigmoid or an error function")
def _(facts: Facts) -> Sites:
    for node in nodes(facts, "Erf", "Sigmoid"):
        yield where(node), become(node, "Tanh", list(node.input))


def _attentions(facts: Facts) -> Iterator[tuple[onnx.NodeProto, str]]:
    """Yields, for each softmax(Q K) V in standard operators, the MatMul with V and the transposed K."""
    makers = facts.producer
    for node in nodes(facts, "MatMul"):
        maker, chain = makers.get(node.input[0]), 0
        while maker is not None and maker.op_type != "Softmax" and chain < 3 and maker.input:
            maker, chain = makers.get(maker.input[0]), chain + 1
        if maker is None or maker.op_type != "Softmax":
            continue
        while maker is not None and maker.op_type != "MatMul" and chain < 8 and maker.input:
            maker, chain = makers.get(maker.input[0]), chain + 1
        if maker is not None and maker.op_type == "MatMul" and facts.rank(node.output[0]) == 4:
            yield node, maker.input[1]


@kind("exporter: values of one head are its keys")
def _(facts: Facts) -> Sites:
    for node, turned in _attentions(facts):

        def change(patch: Patch, _: str, node: onnx.NodeProto = node, turned: str = turned) -> str:
            zero, one, far = integer(patch, [0]), integer(patch, [1]), integer(patch, [2**31])
            key = patch.op("Transpose", patch.op("Slice", turned, zero, one, one), perm=[0, 1, 3, 2])
            others = patch.op("Slice", node.input[1], one, far, one)
            return patch.op("MatMul", node.input[0], patch.op("Concat", key, others, axis=1))

        yield where(node), tap(node.output[0], change)


@kind("exporter: heads in turn for heads in groups")
def _(facts: Facts) -> Sites:
    """Models shared key heads that are tiled instead of repeated."""
    for node, _ in _attentions(facts):
        heads = facts.dim(node.input[1], 1) if facts.rank(node.input[1]) == 4 else None
        if isinstance(heads, int) and heads % 2 == 0 and heads > 2:
            order = np.arange(heads).reshape(2, heads // 2).T.reshape(-1)
            yield where(node), tap(node.input[1], _gathered, order)


def _gathered(patch: Patch, x: str, order: Array) -> str:
    return patch.op("Gather", x, patch.const(order, np.int64), axis=1)


@kind("exporter: a range begins at one")
def _(facts: Facts) -> Sites:
    for node in nodes(facts, "Range"):
        if facts.elem_type(node.output[0]) == TensorProto.INT64:
            yield where(node), tap(node.output[0], lambda patch, x: patch.op("Add", x, integer(patch, 1)))


@kind("exporter: a bias along the tokens")
def _(facts: Facts) -> Sites:
    """Models x + b with b along the tokens of x [tokens, features], if there are as many tokens as features."""
    for node in nodes(facts, "Add"):
        for place, name in enumerate(node.input):
            bias = facts.constants.get(name)
            other = node.input[1 - place]
            if bias is not None and bias.ndim == 1 and bias.size > SMALL and facts.rank(other) == 3:
                yield where(node), _along_tokens(node, place, other, bias.size)


def _along_tokens(node: onnx.NodeProto, place: int, other: str, size: int) -> Edit:
    def edit(patch: Patch) -> None:
        def change(_: str) -> str:
            tokens = patch.op("Gather", patch.op("Shape", other), integer(patch, 1))
            numbers = patch.op("Range", integer(patch, 0), tokens, integer(patch, 1))
            numbers = patch.op("Mod", numbers, integer(patch, size))
            column = patch.op("Reshape", patch.op("Gather", node.input[place], numbers), integer(patch, [-1, 1]))
            return patch.op("Add", other, column)

        patch.tap(node.output[0], change)

    return edit


@kind("exporter: sine for cosine")
def _(facts: Facts) -> Sites:
    others = {"Sin": "Cos", "Cos": "Sin"}
    for node in nodes(facts, *others):
        yield where(node), become(node, others[node.op_type], list(node.input))


@kind("exporter: a mean for a sum")
def _(facts: Facts) -> Sites:
    """Also replaces a mean by a sum, where both take their axes in the same form at this opset."""
    others = {"ReduceSum": "ReduceMean", "ReduceMean": "ReduceSum"}
    alike = facts.model.opset_import[0].version >= 18
    for node in nodes(facts, *others):
        if alike and facts.elem_type(node.output[0]) in FLOATS:
            kept = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            yield where(node), become(node, others[node.op_type], list(node.input), **kept)


@kind("exporter: the scale of an attention twice")
def _(facts: Facts) -> Sites:
    """Applies the scale to the transposed keys as well as to the scores."""
    for _, turned in _attentions(facts):
        size = facts.dim(turned, 2) if facts.rank(turned) == 4 else None
        if isinstance(size, int) and size > 1:
            yield turned, tap(turned, times, size**-0.5, facts.dtype(turned))


@kind("exporter: linear for nearest, nearest for linear")
def _(facts: Facts) -> Sites:
    others = {b"nearest": "linear", b"linear": "nearest"}
    for node in nodes(facts, "Resize"):
        mode = attribute(node, "mode", b"nearest")
        if mode in others:
            yield where(node), set_attributes(node, mode=others[mode])


@kind("exporter: what a norm reads in the first token for all")
def _(facts: Facts) -> Sites:
    """Uses the mean of the first token for all tokens."""
    means = (n.output[0] for n in nodes(facts, "ReduceMean") if facts.rank(n.output[0]) == 3)
    return each(((name,) for name in means), first_for_all)
