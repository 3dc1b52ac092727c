"""Feed-forward layers get their remark, and nothing else happens to them."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt.passes.feed_forward import FeedForward
from tests.rewriting import model_from_text, rewrite

W = {"w": np.ones((4, 4), np.float32), "b": np.ones(4, np.float32)}


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ("m = MatMul(x, w)  t = Add(m, b)  y = Relu(t)", "MatMul, bias, Relu"),
        ("t = Gemm(x, w, b)  y = Tanh(t)", "Gemm, Tanh"),
        ("m = MatMul(x, w)  t = Add(b, m)  y = Add(t, r)", "MatMul, bias, residual"),
        ("t = Gemm(x, w, b)  s = Sigmoid(t)  y = Mul(t, s)", "Gemm, Silu"),
    ],
)
def test_a_site_is_refused(body: str, parts: str) -> None:
    model = model_from_text(f"g (float[2, 4] x, float[2, 4] r) => (float[2, 4] y) {{ {body} }}", W)
    for all_sites in (False, True):
        result = rewrite(model, [FeedForward()], all_sites=all_sites)
        (remark,) = result.remarks
        assert remark.code == "NO_GAIN"
        assert remark.detail.startswith(f"{parts}:")
        assert result.op_types == [n.op_type for n in model.graph.node]


@pytest.mark.parametrize(
    "body",
    ["m = MatMul(x, w)  y = Add(m, b)", "m = MatMul(x, r)  y = Relu(m)", "m = MatMul(x, w)  t = Neg(m)  y = Relu(t)"],
)
def test_no_candidates(body: str) -> None:
    model = model_from_text(f"g (float[2, 4] x, float[4, 4] r) => (float[2, 4] y) {{ {body} }}", W)
    assert rewrite(model, [FeedForward()]).remarks == []
