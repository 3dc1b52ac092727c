"""Multiply-adds of nodes, counted from the number of sums and the number of products in each sum."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from graphopt.report.multiply_adds import multiply_adds

B, M, K, N = 2, 3, 5, 7


@pytest.mark.parametrize(
    ("dims", "attributes"),
    [
        ((B, M, K), {}),
        ((B, K, M), {"transA": 1}),
        ((M, B, K), {"transBatchA": 1}),
        ((K, B, M), {"transA": 1, "transBatchA": 1}),
    ],
)
def test_fused_matmul_with_every_layout_of_its_first_operand(dims: tuple[int, ...], attributes: dict[str, int]) -> None:
    a, b = ir.Value(name="a", shape=ir.Shape(dims)), ir.Value(name="b", shape=ir.Shape((B, K, N)))
    node = ir.node("FusedMatMul", [a, b], attributes, domain="com.microsoft")
    node.outputs[0].shape = ir.Shape((B, M, N))
    assert multiply_adds(node) == B * M * N * K


def test_operators_with_definitions_that_are_matrix_multiplications_or_convolutions() -> None:
    """Their counts are those of the MatMul and the Conv that replace them."""
    a, b = ir.Value(name="a", shape=ir.Shape((B, K, M))), ir.Value(name="b", shape=ir.Shape((B, K, N)))
    matmul = ir.node("TransposeMatMul", [a, b], {"transA": 1}, domain="com.microsoft")
    matmul.outputs[0].shape = ir.Shape((B, M, N))
    assert multiply_adds(matmul) == B * M * N * K
    x, w = ir.Value(name="x", shape=ir.Shape((B, 9, 9, K))), ir.Value(name="w", shape=ir.Shape((M, K, 3, 3)))
    conv = ir.node("NhwcConv", [x, w], domain="com.microsoft")
    conv.outputs[0].shape = ir.Shape((B, 7, 7, M))
    assert multiply_adds(conv) == B * 7 * 7 * M * K * 3 * 3
