"""Faults that mutation testing and fault injection plant in neural networks.

The mutation operators of DeepMutation (Ma et al., ISSRE 2018), which change one percent of the weights or neurons of a
layer, at least one; and the fault models of PyTorchFI (Mahmoud et al., DSN-W 2020): a flipped bit, a random neuron.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

import numpy as np

from tests.rewriting import Array
from tests.verification.planted.registry import (
    DType,
    Facts,
    Patch,
    Product,
    Sites,
    attribute,
    become,
    each,
    integer,
    kind,
    nodes,
    products,
    set_constant,
    where,
)  # fmt: skip
from tests.verification.planted.values import MAIN

RATIO = 0.01
ACTIVATIONS = ("Relu", "LeakyRelu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Elu", "Clip", "Erf", "Softplus")


def _rng(name: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(name.encode()))


def _some(rng: np.random.Generator, count: int) -> Array:
    """A random selection of one percent of `count` items, at least one."""
    return np.asarray(rng.choice(count, max(1, round(RATIO * count)), replace=False))


def _weights(facts: Facts, change: Callable[[Array, Product, np.random.Generator], None]) -> Sites:
    """One site for each layer; `change` modifies its weights in place, with output channels on the first axis."""
    for p in products(facts):
        array = p.weight.copy()
        change(np.moveaxis(array, p.out, 0), p, _rng(p.name))
        if not np.array_equal(array, p.weight):
            yield p.name, set_constant(p.name, array)


@kind("mutant: Gaussian fuzzing")
def _(facts: Facts) -> Sites:
    """Adds noise with a tenth of the layer's standard deviation."""

    def change(array: Array, p: Product, rng: np.random.Generator) -> None:
        places = np.unravel_index(_some(rng, array.size), array.shape)
        array[places] += rng.normal(0, 0.1 * float(p.weight.std()), len(places[0])).astype(array.dtype)

    return _weights(facts, change)


@kind("mutant: weights of a neuron shuffled")
def _(facts: Facts) -> Sites:
    def change(array: Array, _: Product, rng: np.random.Generator) -> None:
        for i in _some(rng, len(array)):
            array[i] = rng.permutation(array[i].reshape(-1)).reshape(array[i].shape)

    return _weights(facts, change)


@kind("mutant: a neuron's effect blocked")
def _(facts: Facts) -> Sites:
    """The next layer reads zeros from the selected neurons."""

    def change(array: Array, p: Product, rng: np.random.Generator) -> None:
        inner = np.moveaxis(array, 1, 0) if array.ndim > 1 else array
        inner[_some(rng, len(inner))] = 0

    return _weights(facts, change)


@kind("mutant: a neuron's activation inverted")
def _(facts: Facts) -> Sites:
    def change(array: Array, _: Product, rng: np.random.Generator) -> None:
        array[_some(rng, len(array))] *= -1

    return _weights(facts, change)


@kind("mutant: two neurons switched")
def _(facts: Facts) -> Sites:
    def change(array: Array, _: Product, rng: np.random.Generator) -> None:
        if len(array) > 1:
            pair = rng.choice(len(array), 2, replace=False)
            array[pair] = array[pair[::-1]]

    return _weights(facts, change)


def _square(facts: Facts) -> Iterator[Product]:
    """Yields layers whose output has as many channels and pixels as their input."""
    for p in products(facts):
        plain = attribute(p.node, "group", 1) == 1 and set(attribute(p.node, "strides", [1])) == {1}
        same = (
            p.node.op_type != "Conv" or list(p.weight.shape[2:]) == [1, 1] or attribute(p.node, "pads") == [1, 1, 1, 1]
        )
        if p.weight.shape[p.out] == p.weight.shape[p.inner] and plain and same and p.node.op_type in ("Conv", "MatMul"):
            yield p


@kind("mutant: a layer removed")
def _(facts: Facts) -> Sites:
    values = ((p.node.output[0], p.node.input[0]) for p in _square(facts))
    return each(values, lambda patch, _, source: patch.op("Identity", source))


@kind("mutant: a layer duplicated")
def _(facts: Facts) -> Sites:
    def again(patch: Patch, x: str, p: Product) -> str:
        attributes = {a.name: attribute(p.node, a.name) for a in p.node.attribute}
        return patch.op(p.node.op_type, x, *p.node.input[1:], **attributes)

    return each(((p.node.output[0], p) for p in _square(facts)), again)


@kind("mutant: an activation removed")
def _(facts: Facts) -> Sites:
    for node in nodes(facts, *ACTIVATIONS):
        yield where(node), become(node, "Identity", node.input[:1])


def _flipped(facts: Facts, low: int, high: int) -> Sites:
    """Flips one bit of one float32 weight; results that are infinite or NaN are not planted."""
    for p in products(facts):
        if p.weight.dtype != np.float32:
            continue
        rng = _rng(f"{p.name}{low}")
        array = np.ascontiguousarray(p.weight).copy()
        place = np.unravel_index(int(rng.integers(array.size)), array.shape)
        bits = array[place].view(np.uint32) ^ np.uint32(1 << int(rng.integers(low, high)))
        array[place] = bits.view(np.float32)
        if np.isfinite(array).all():
            yield p.name, set_constant(p.name, array)


@kind("mutant: a bit of a weight's mantissa flipped")
def _(facts: Facts) -> Sites:
    return _flipped(facts, 12, 23)


@kind("mutant: a bit of a weight's exponent flipped")
def _(facts: Facts) -> Sites:
    return _flipped(facts, 23, 31)


@kind("mutant: the sign of a weight flipped")
def _(facts: Facts) -> Sites:
    return _flipped(facts, 31, 32)


@kind("mutant: a random neuron of the first row")
def _(facts: Facts) -> Sites:
    """Replaces the output of one neuron in one batch element by a random value from -1 to 1."""

    def change(patch: Patch, x: str, dtype: DType, name: str) -> str:
        rng = _rng(name)
        shape, flat = patch.op("Shape", x), patch.op("Reshape", x, integer(patch, [-1]))
        number = patch.const([rng.uniform(-1, 1)], dtype)
        changed = patch.op("ScatterElements", flat, integer(patch, [int(rng.integers(8))]), number, axis=0)
        return patch.op("Reshape", changed, shape)

    values = ((v, facts.dtype(v), v) for rank in (2, 3, 4) for v in facts.values(rank, ops=MAIN))
    return each(values, change)
