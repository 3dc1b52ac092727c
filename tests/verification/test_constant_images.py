"""Images of one colour: every pixel has the same rounding error, so errors add up that cancel on other images.

A small classifier is compared with the same classifier whose sums are in another order, and with faults that a rewrite
could introduce, on the same inputs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from graphopt import verify
from tests.rewriting import Array, model_from_text

Constants = dict[str, Array]
SIZE, CHANNELS, CLASSES = 96, 24, 6000
HEAD = """
    p = Pad (x, around, border)
    a = Conv <strides = [2, 2]> (p, w1, b1)
    h = HardSigmoid <alpha = 0.1666667, beta = 0.5> (a)
    s = Mul (a, h)
"""
SECOND = """
    c = Conv <pads = [1, 1, 1, 1]> (s, w2, b2)
    n = BatchNormalization <epsilon = 1e-5> (c, scale, shift, mean, variance)
    r = Relu (n)
"""
TAIL = """
    m = GlobalAveragePool (r)
    f = Flatten (m)
    z = Gemm (f, w3, b3)
    y = Softmax (z)
"""
# BatchNormalization is folded into the convolution, the mean has two steps, and the softmax 60 parts.
ANOTHER_ORDER = """
    n = Conv <pads = [1, 1, 1, 1]> (s, folded, folded_bias)
    r = Relu (n)
    rows = ReduceMean <axes = [3]> (r)
    m = ReduceMean <axes = [2]> (rows)
    f = Flatten (m)
    product = MatMul (f, w3)
    z = Add (product, b3)
    most = ReduceMax <axes = [1]> (z)
    less = Sub (z, most)
    e = Exp (less)
    parts = Reshape (e, in_parts)
    sums = ReduceSum <keepdims = 0> (parts, last)
    sum = ReduceSum <keepdims = 0> (sums, first)
    y = Div (e, sum)
"""


def constants() -> Constants:
    rng = np.random.default_rng(5)

    def normal(*shape: int) -> Array:
        drawn: Array = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        return drawn.astype(np.float32)

    found: Constants = {
        "around": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "border": np.zeros((), np.float32),
        "w1": normal(CHANNELS, 3, 3, 3), "w2": normal(CHANNELS, CHANNELS, 3, 3), "w3": normal(CHANNELS, CLASSES),
        "in_parts": np.array([1, 60, -1]), "last": np.array([2]), "first": np.array([1]),
    }  # fmt: skip
    for name in ("b1", "b2", "b3", "scale", "shift", "mean"):
        found[name] = (rng.standard_normal(CLASSES if name == "b3" else CHANNELS) * 0.5).astype(np.float32)
    found["variance"] = rng.uniform(0.01, 0.1, CHANNELS).astype(np.float32)
    found["b3"][0] = 10  # the class of a blank image
    found["shift"][5] = 3  # above zero for every colour
    return found


def folded(c: Constants) -> Constants:
    factor = c["scale"] / np.sqrt(c["variance"].astype(np.float64) + 1e-5)
    bias = (c["b2"] - c["mean"].astype(np.float64)) * factor + c["shift"]
    return c | {
        "folded": (c["w2"] * factor[:, None, None, None]).astype(np.float32),
        "folded_bias": bias.astype(np.float32),
    }


def model(body: str, c: Constants) -> onnx.ModelProto:
    text = f"g (float[1, 3, H, W] x) => (float[1, {CLASSES}] y) {{ {body} }}"
    return model_from_text(text, {name: value for name, value in c.items() if name in body}, 17)


def image(colour: float) -> dict[str, Array]:
    return {"x": np.full((1, 3, SIZE, SIZE), colour, np.float32)}


def _changed(name: str, change: Callable[[Array], object]) -> Callable[[str, Constants], tuple[str, Constants]]:
    def plant(body: str, c: Constants) -> tuple[str, Constants]:
        array = np.array(c[name])
        change(array)
        return body, c | {name: array}

    return plant


def _other(old: str, new: str) -> Callable[[str, Constants], tuple[str, Constants]]:
    return lambda body, c: (body.replace(old, new), c)


def _tap(array: Array, factor: float) -> None:
    array[5, 11, 1, 1] *= factor


def _exchange(array: Array) -> None:
    array[[3, 4]] = array[[4, 3]]


FAULTS = {
    "one tap lost": _changed("w2", lambda a: _tap(a, 0)),
    "one tap three times": _changed("w2", lambda a: _tap(a, 3)),
    "all taps off in the third digit": _changed("w2", lambda a: a.__imul__(np.float32(1.005))),
    "two channels exchanged": _changed("w2", _exchange),
    "another epsilon": _other("epsilon = 1e-5", "epsilon = 1e-4"),
    "another border": _changed("border", lambda a: a.fill(1)),
    "a bias lost": _changed("b2", lambda a: a[5:6].fill(0)),
    "another activation": _other("0.1666667", "0.2"),
    "a class off": _changed("b3", lambda a: a[17:18].__iadd__(np.float32(0.01))),
}
COLOURS = (0.0, 1.0)


@pytest.mark.parametrize("colour", COLOURS)
def test_another_order_of_sums_is_equal(colour: float) -> None:
    c = folded(constants())
    report = verify(model(HEAD + SECOND + TAIL, c), model(HEAD + ANOTHER_ORDER, c), inputs=image(colour))
    assert report.equal, report.summary


@pytest.mark.once
@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found_on_the_same_inputs(fault: str, colour: float) -> None:
    c = constants()
    body = HEAD + SECOND + TAIL
    before, after = model(body, c), model(*FAULTS[fault](body, c))
    assert not verify(before, after, inputs=image(colour)).equal
