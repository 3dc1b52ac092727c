"""Noise: the number of products in each sum, which scales the noise of partial sums, and inputs that are sequences."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from graphopt import verify
from graphopt.verification.noise import USUAL_TERMS, _terms
from tests.rewriting import model_from_text

K = 5


def _weight(*dims: int) -> ir.Value:
    tensor = ir.Tensor(np.zeros(dims, np.float32))
    value = ir.Value(name="w", shape=ir.Shape(dims), type=ir.TensorType(ir.DataType.FLOAT), const_value=tensor)
    ir.Graph([], [], nodes=[], initializers=[value])
    return value


@pytest.mark.parametrize(
    ("op_type", "dims", "position", "attributes", "terms"),
    [
        ("MatMul", (K, 3), 1, {}, K),
        ("MatMul", (2, K, 3), 1, {}, K),
        ("MatMul", (3, K), 0, {}, K),
        ("MatMul", (2, 3, K), 0, {}, K),
        ("MatMul", (K,), 1, {}, K),
        ("Gemm", (K, 3), 1, {}, K),
        ("Gemm", (3, K), 1, {"transB": 1}, K),
        ("Gemm", (3, K), 0, {}, K),
        ("Gemm", (K, 3), 0, {"transA": 1}, K),
        ("Gemm", (3, K), 0, {"transB": 1}, K),
        ("Gemm", (3, 4), 2, {}, USUAL_TERMS),
        ("Conv", (7, K, 3, 3), 1, {}, 9 * K),
        ("Conv", (1, 7, 8, 8), 0, {}, USUAL_TERMS),
        ("ConvTranspose", (K, 7, 3, 3), 1, {}, K),
    ],
)
def test_terms_of_a_sum(
    op_type: str, dims: tuple[int, ...], position: int, attributes: dict[str, int], terms: int
) -> None:
    """A constant of these dimensions is at a position of the inputs, and all other inputs are computed."""
    inputs = [ir.Value(name=f"x{i}") for i in range(max(2, position + 1))]
    inputs[position] = _weight(*dims)
    node = ir.node(op_type, inputs, attributes)
    assert _terms(node, 1 if position == 0 else 0) == terms


def test_inputs_that_are_sequences_are_rounded() -> None:
    """The arrays of the sequence have different shapes."""
    rng = np.random.default_rng(0)
    v, w = (rng.standard_normal((8, 8)).astype(np.float32) for _ in range(2))
    graph = """g (seq(float[M, 8]) s) => (float[N, 8] y) {
        last = Constant<value_int = 1>()  x = SequenceAt(s, last)  BODY
    }"""
    before = model_from_text(graph.replace("BODY", "h = MatMul(x, v)  y = MatMul(h, w)"), {"v": v, "w": w})
    for factor, equal in ((1, True), (1.01, False)):
        folded = (factor * v.astype(np.float64) @ w).astype(np.float32)
        after = model_from_text(graph.replace("BODY", "y = MatMul(x, vw)"), {"vw": folded})
        given = [rng.standard_normal((n, 8)).astype(np.float32) for n in (3, 5)]
        assert verify(before, after, inputs={"s": given}).equal == equal
