"""Measured rounding errors where rounding accumulates, or where only rounding remains after cancellation.

Each case has a file that computes the same in another order, which `verify` must accept, and a file with a fault that
such a rewrite could introduce, which it must report as different.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from graphopt import verify
from tests.rewriting import Array, model_from_text


@dataclass(frozen=True)
class Case:
    """Graph bodies in ONNX's text syntax with a common signature.

    Attributes:
        signature: graph inputs and outputs.
        before: the original.
        after: the same computation in another order.
        fault: another computation.
        constants: constants of all three bodies.
        feeds: inputs.
        opset: opset of all three bodies.
    """

    signature: str
    before: str
    after: str
    fault: str
    constants: dict[str, Any]
    feeds: dict[str, Array]
    opset: int = 17

    def model(self, body: str) -> onnx.ModelProto:
        return model_from_text(f"g {self.signature} {{ {body} }}", self.constants, self.opset)


def _ones(*shape: int) -> Array:
    return np.ones(shape, np.float32)


EPSILON = 1e-5
# 1 / sqrt(1 + epsilon), the factor of a BatchNormalization whose parameters are ones; its offset is 1 - FOLDED.
FOLDED = 1 / np.sqrt(1 + EPSILON)
WHOLE = np.arange(1000, 2232, 77, dtype=np.float32)
IMAGE = "(float[N, 4, H, W] x) => (float[N, 8, H, W] y)"
ROWS = "(float[N, 32] x) => (float[N, 32] y)"
SCORES = "(float[N, 2, S, 8] q, float[N, 2, 8, T] k, float[N, 2, T, 8] v) => (float[N, 2, S, 8] y)"
_x = np.random.default_rng(0).standard_normal((40, 32)).astype(np.float32)


# Scores of 10^4 that are about 1 apart: one unit in the last place of a score changes a softmax by a thousandth.
_pixels = {"q": 63 * _ones(1, 2, 9, 8), "k": 63 * _ones(1, 2, 8, 11), "v": 0 * _ones(1, 2, 11, 8)}
_pixels["v"] += np.rint(100 * _x[:22, :8]).reshape(1, 2, 11, 8)
_pixels["q"][..., 7] = 1 + np.arange(9) % 3
_pixels["k"][:, :, 7] = np.arange(11) % 4


def _batch_norm(parameters: tuple[str, ...]) -> Case:
    return Case(
        IMAGE,
        f"a = Conv <pads = [1, 1, 1, 1]> (x, w) b = BatchNormalization (a, {', '.join(parameters)}) y = Relu(b)",
        "b = Conv <pads = [1, 1, 1, 1]> (x, folded, shift) y = Relu(b)",
        "b = Conv <pads = [1, 1, 1, 1]> (x, folded, twice) y = Relu(b)",
        {
            "w": _ones(8, 4, 3, 3), "folded": np.float32(FOLDED) * _ones(8, 4, 3, 3),
            **{name: _ones(8) for name in parameters},
            "shift": np.float32(1 - FOLDED) * _ones(8), "twice": np.float32(2 * (1 - FOLDED)) * _ones(8),
        },
        {"x": 0 * _ones(2, 4, 5, 7)},
    )  # fmt: skip


CASES = {
    "BatchNormalization of ones": _batch_norm(("scale", "bias", "mean", "variance")),
    "BatchNormalization of one tensor": _batch_norm(("one",) * 4),
    "BatchNormalization of whole numbers": Case(
        "(float[N, 16, H, W] x) => (float[N, 16, H, W] y)",
        "y = BatchNormalization (x, ones, ones, mean, ones)",
        "a = Mul(x, scale) y = Add(a, shift)",
        "a = Mul(x, scale) b = Add(a, shift) y = Mul(b, more)",
        {
            "ones": _ones(16), "mean": WHOLE, "scale": np.float32(FOLDED) * _ones(16, 1, 1),
            "shift": (1 - FOLDED * WHOLE).astype(np.float32).reshape(16, 1, 1), "more": np.float32(1.003),
        },
        {"x": WHOLE.reshape(16, 1, 1) * _ones(2, 16, 5, 7)},
    ),
    "products and a sum": Case(
        IMAGE,
        "a = Conv <pads = [1, 1, 1, 1]> (x, w, one) b = Mul(a, part) c = Mul(b, rest) y = Sub(c, one_more)",
        "y = Conv <pads = [1, 1, 1, 1]> (x, folded, shift)",
        "y = Conv <pads = [1, 1, 1, 1]> (x, folded, twice)",
        {
            "w": _ones(8, 4, 3, 3), "one": _ones(8), "one_more": _ones(1, 8, 1, 1),
            "part": np.float32(0.3) * _ones(8, 1, 1), "rest": np.float32(FOLDED / 0.3) * _ones(8, 1, 1),
            "folded": np.float32(FOLDED) * _ones(8, 4, 3, 3), "shift": np.float32(FOLDED - 1) * _ones(8),
            "twice": np.float32(2 * (FOLDED - 1)) * _ones(8),
        },
        {"x": 0 * _ones(2, 4, 5, 7)},
    ),
    "a number and its product": Case(
        ROWS,
        "a = Mul(x, third) b = Mul(a, three) d = Sub(b, x) e = Mul(d, many) y = Add(e, x)",
        "a = Div(x, three) b = Mul(a, three) d = Sub(b, x) e = Mul(d, many) y = Add(e, x)",
        "a = Mul(x, third) b = Mul(a, less) d = Sub(b, x) e = Mul(d, many) y = Add(e, x)",
        {"three": np.float32(3), "third": np.float32(1 / 3), "less": np.float32(3 - 1e-5), "many": np.float32(1e4)},
        {"x": np.rint(100 * _x)},
    ),
    "pixels about their mean": Case(
        "(float[N, 3, H, W] x) => (float[N, 3, H, W] y)",
        "a = Mul(x, part) b = Sub(a, mean) y = Div(b, spread)",
        "a = Mul(x, scale) y = Add(a, shift)",
        "a = Mul(x, scale) y = Add(a, off)",
        {
            "part": np.float32(1 / 255), "mean": np.full((3, 1, 1), 124 / 255 + 1e-3, np.float32),
            "spread": np.full((3, 1, 1), 0.229, np.float32),
            "scale": np.full((3, 1, 1), 1 / 255 / 0.229, np.float32),
            "shift": np.full((3, 1, 1), -np.float32(124 / 255 + 1e-3) / 0.229, np.float32),
            "off": np.full((3, 1, 1), -np.float32(124 / 255 + 1.1e-3) / 0.229, np.float32),
        },
        {"x": 124 * _ones(1, 3, 4, 5)},
    ),
    "planes of whole numbers, normalized": Case(
        "(float[N, 4, H, W] x) => (float[N, 4, H, W] y)",
        "y = InstanceNormalization (x, s, b)",
        "m = ReduceMean <axes = [2, 3]> (x) c = Sub(x, m) q = Mul(c, c) v = ReduceMean <axes = [2, 3]> (q)"
        " e = Add(v, least) r = Sqrt(e) n = Div(c, r) w = Mul(n, scale) y = Add(w, bias)",
        "m = ReduceMean <axes = [2, 3]> (x) c = Sub(x, m) q = Mul(c, c) v = ReduceMean <axes = [2, 3]> (q)"
        " e = Add(v, least) r = Sqrt(e) n = Div(c, r) w = Mul(n, scale) y = Add(w, off)",
        {"s": _ones(4), "b": 0.5 * _ones(4), "scale": _ones(4, 1, 1), "bias": 0.5 * _ones(4, 1, 1),
         "off": 0.52 * _ones(4, 1, 1), "least": np.float32(1e-5)},
        {"x": np.rint(30000 + 10 * _x).reshape(2, 4, 5, 32)},
    ),
    "a mean of equal numbers": Case(
        "(float[N, 2, 256, 256] x) => (float[N, 2, 1, 1] y)",
        "y = GlobalAveragePool (x)",
        "a = ReduceMean <axes = [3]> (x) y = ReduceMean <axes = [2]> (a)",
        "a = ReduceMean <axes = [3]> (x) b = ReduceMean <axes = [2]> (a) y = Mul(b, more)",
        {"more": np.float32(1.001)},
        {"x": np.float32(0.7) * _ones(1, 2, 256, 256)},
    ),
    "one number and many that are lost beside it": Case(
        "(float[N, 8000] x) => (float[N, 8000] y)",
        "y = Softmax (x)",
        "m = ReduceMax <axes = [1]> (x) s = Sub(x, m) e = Exp(s) p = Reshape(e, parts)"
        " a = ReduceSum <keepdims = 0> (p, last) b = ReduceSum (a, first) y = Div(e, b)",
        "m = ReduceMax <axes = [1]> (x) s = Sub(x, m) e = Exp(s) p = Reshape(e, parts)"
        " a = ReduceSum <keepdims = 0> (p, last) b = ReduceSum (a, first) c = Mul(b, more) y = Div(e, c)",
        {"parts": np.array([0, 80, -1]), "last": np.array([2]), "first": np.array([1]), "more": np.float32(1.01)},
        {"x": np.where(np.arange(8000) == 0, np.float32(16.4), np.float32(0)).reshape(1, 8000)},
    ),
    "scores of whole numbers": Case(
        SCORES,
        "s = MatMul(q, k) t = Mul(s, scale) p = Softmax(t) y = MatMul(p, v)",
        "a = Mul(q, scale) s = MatMul(a, k) p = Softmax(s) y = MatMul(p, v)",
        "s = MatMul(q, k) t = Mul(s, scale) p = Softmax(t) a = MatMul(p, v) y = Mul(a, more)",
        {"scale": np.float32(1 / np.sqrt(8)), "more": np.float32(1.03)},
        _pixels,
    ),
}  # fmt: skip
if onnxruntime.__version__ >= "1.23":  # the first version with opset 23
    CASES["attention of whole numbers"] = Case(
        SCORES,
        "t = Transpose <perm = [0, 1, 3, 2]> (k) y = Attention (q, t, v)",
        "a = Mul(q, scale) s = MatMul(a, k) p = Softmax(s) y = MatMul(p, v)",
        "a = Mul(q, scale) s = MatMul(a, k) p = Softmax(s) b = MatMul(p, v) y = Mul(b, more)",
        {"scale": np.float32(1 / np.sqrt(8)), "more": np.float32(1.03)},
        _pixels,
        opset=23,
    )


@pytest.mark.parametrize("name", CASES)
def test_another_order_is_equal(name: str) -> None:
    case = CASES[name]
    report = verify(case.model(case.before), case.model(case.after), inputs=case.feeds)
    assert report.equal, report.summary


@pytest.mark.once
@pytest.mark.parametrize("name", CASES)
def test_a_fault_is_different(name: str) -> None:
    case = CASES[name]
    assert not verify(case.model(case.before), case.model(case.fault), inputs=case.feeds)


# Three sequences of four tokens, two heads of size eight; the second sequence, or one of its queries, has no visible
# key.
_seen = np.array([[1, 1, 1, 0], [0, 0, 0, 0], [0, 1, 1, 1]], np.int32)
HIDING = {
    "keys": ("B, T", _seen),
    "queries and keys": ("B, S, T", np.repeat(_seen[:, None], 4, axis=1)),
    "lengths": ("B", np.array([4, 0, 2], np.int32)),
}
# Two orders of adding bias and mask to the scores: releases of ONNX Runtime's kernel differ in the order.
HIDDEN_LAST, BIAS_LAST = "u = Add(t, b) z = Add(u, h)", "u = Add(b, h) z = Add(t, u)"


def _interface(mask: str) -> str:
    of_tokens = ", ".join(f"float[B, {n}, 16] {x}" for x, n in zip("qkv", "STT"))
    return f"g ({of_tokens}, int32[{mask}] m, float[B, 2, S, T] b) => (float[B, S, 16] y)"


def _masked(mask: str, opset: int = 17) -> onnx.ModelProto:
    header = f'<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]> '
    body = "y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v, , m, b)"
    return onnx.parser.parse_model(f"{header}{_interface(mask)} {{ {body} }}")


def _spelled_out(mask: str, sums: str, **changed: float) -> onnx.ModelProto:
    """Returns the same attention in standard operators."""
    apart = "".join(f"{x}4 = Reshape({x}, apart) {x}h = Transpose <perm = [0, 2, 1, 3]> ({x}4) " for x in "qkv")
    seen = "long = Unsqueeze(m, one) kept = Greater(long, positions)" if mask == "B" else "kept = Greater(m, nothing)"
    body = (
        f"{apart} kt = Transpose <perm = [0, 1, 3, 2]> (kh) s = MatMul(qh, kt) t = Mul(s, scale) {seen}"
        f" seen = Unsqueeze(kept, beside) h = Where(seen, zero, hides) {sums} w = Softmax(z) o = MatMul(w, vh)"
        " back = Transpose <perm = [0, 2, 1, 3]> (o) y = Reshape(back, whole)"
    )
    numbers = {"scale": 8**-0.5, "zero": 0.0, "hides": -1e4} | changed
    constants: dict[str, Array] = {name: np.array(x, np.float32) for name, x in numbers.items()}
    constants |= {"apart": np.array([0, 0, 2, 8]), "whole": np.array([0, 0, 16]), "one": np.array([1])}
    constants |= {"positions": np.arange(4, dtype=np.int32), "nothing": np.array(0, np.int32)}
    constants["beside"] = np.array([1] if mask == "B, S, T" else [1, 2])
    return model_from_text(f"{_interface(mask)} {{ {body} }}", constants)


def _rows(mask: Array) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    numbers = {x: rng.standard_normal((3, 4, 16)).astype(np.float32) for x in "qkv"}
    return numbers | {"m": mask, "b": rng.standard_normal((3, 2, 4, 4)).astype(np.float32)}


@pytest.mark.parametrize("sums", [HIDDEN_LAST, BIAS_LAST])
@pytest.mark.parametrize("form", HIDING)
def test_rows_without_a_visible_key_may_differ_by_their_rounded_bias(form: str, sums: str) -> None:
    mask, numbers = HIDING[form]
    for opset in (17, 22):  # from opset 22 on, noise is drawn by other nodes
        report = verify(_masked(mask, opset), _spelled_out(mask, sums), inputs=_rows(numbers))
        assert report.equal and not any(row.unmeasured for row in report.rows), report.summary


@pytest.mark.parametrize("form", HIDING)
def test_a_fault_in_a_row_that_sees_no_key(form: str) -> None:
    mask, numbers = HIDING[form]
    for sums, changed in (
        (HIDDEN_LAST, {"scale": 1.01 * 8**-0.5}),
        (HIDDEN_LAST, {"hides": -3e38}),  # absorbs the scores completely
        (HIDDEN_LAST, {"hides": -1.0}),
        (HIDDEN_LAST, {"hides": 0.0}),
        ("z = Add(t, h)", {}),  # without bias
        ("u = Where(seen, b, zero) i = Add(t, u) z = Add(i, h)", {}),  # without bias on hidden keys
    ):
        assert not verify(_masked(mask), _spelled_out(mask, sums, **changed), inputs=_rows(numbers)), (sums, changed)


def test_another_mask_value_is_different() -> None:
    """A hidden key gets a large probability if its score exceeds the others by more than the mask value."""
    mask, _ = HIDING["keys"]
    for sums in (HIDDEN_LAST, BIAS_LAST):
        report = verify(_masked(mask), _spelled_out(mask, sums))
        assert report.equal, report.summary
    for hides in (-1e3, -2e4):
        assert not verify(_masked(mask), _spelled_out(mask, HIDDEN_LAST, hides=hides)), hides


def _recurrent(products: int, seed: int, factor: float = 1.0) -> onnx.ModelProto:
    """Returns an LSTM after one or two GEMMs. Its output gate is nearly closed: states of 1e-4 in steps of 2**-24."""
    rng = np.random.default_rng(seed)
    constants: dict[str, Array] = {n: rng.standard_normal((1, 64, 16)).astype(np.float32) / 4 for n in "wr"}
    constants["b"] = np.repeat(np.array([[0, -9, 0, 0, 0, 0, 0, 0]], np.float32), 16, axis=1)
    m, n = (rng.standard_normal((16, 16)).astype(np.float32) / 4 for _ in range(2))
    both = (factor * m.astype(np.float64) @ n).astype(np.float32)
    body = "p = MatMul(x, m) q = MatMul(p, n)" if products == 2 else "q = MatMul(x, both)"
    constants |= {"m": m, "n": n} if products == 2 else {"both": both}
    last = "y, h, c = LSTM <hidden_size = 16> (q, w, r, b)"
    return model_from_text(f"g (float[S, N, 16] x) => (float[S, 1, N, 16] y) {{ {body} {last} }}", constants)


def test_an_almost_closed_gate_rounds_in_steps() -> None:
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 40, 16)).astype(np.float32)}
    reports = [verify(_recurrent(2, seed), _recurrent(1, seed), inputs=feeds) for seed in range(6)]
    assert 0 < max(report.worst.severity for report in reports if report.worst is not None) < 0.5
    assert not verify(_recurrent(2, 0), _recurrent(1, 0, factor=1.003), inputs=feeds)
