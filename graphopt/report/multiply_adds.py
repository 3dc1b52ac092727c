"""Counts multiply-adds of convolutions, matrix multiplications and attention by their equations."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from graphopt.ops import DOMAIN

Dims = tuple[int, ...]


def _conv(node: ir.Node, y: Dims, w: Dims) -> int:
    return math.prod(y) * math.prod(w[1:])


def _conv_transpose(node: ir.Node, y: Dims, x: Dims, w: Dims) -> int:
    return math.prod(x) * math.prod(w[1:])


def _inverted_residual(node: ir.Node, y: Dims, x: Dims, w1: Dims, w2: Dims, w3: Dims) -> int:
    pixels = math.prod(y) // y[1]
    return math.prod(x) * w1[0] + pixels * (math.prod(w2) + math.prod(w3))


def _matmul(node: ir.Node, y: Dims, a: Dims) -> int:
    return math.prod(y) * (a[-1] if a else 1)


def _gemm(node: ir.Node, y: Dims, a: Dims) -> int:
    return math.prod(y) * a[-2 if len(a) > 1 and _is_set(node, "transA") else -1]


def _fused_matmul(node: ir.Node, y: Dims, a: Dims) -> int:
    """Counts A [.., M, K], [.., K, M] with transA, [M, .., K] with transBatchA, or [K, .., M] with both."""
    batch_first = len(a) > 2 and _is_set(node, "transA") and _is_set(node, "transBatchA")
    return math.prod(y) * a[0] if batch_first else _gemm(node, y, a)


def _standard_attention(node: ir.Node, y: Dims, q: Dims, k: Dims) -> int | None:
    """Returns None for a node with past keys, because q and k do not contain the number of past keys."""
    has_past = len(node.inputs) > 4 and node.inputs[4] is not None
    return None if has_past or len(k) < 3 else (math.prod(q) + math.prod(y)) * k[-2]


def _attention(node: ir.Node, y: Dims, q: Dims, k: Dims) -> int:
    keys = k[node.attributes["k_perm"].as_ints()[-1]]
    return (math.prod(q) + math.prod(y)) * keys


def _is_set(node: ir.Node, name: str) -> bool:
    attribute = node.attributes.get(name)
    return attribute is not None and bool(attribute.as_int())


# Operator -> formula and input indices. The formula receives the dimensions of the output, then of these inputs.
_Formula = tuple[Callable[..., int | None], tuple[int, ...]]
_COUNTED: Mapping[tuple[str, str], _Formula] = {
    ("", "Attention"): (_standard_attention, (0, 1)),
    ("", "Conv"): (_conv, (1,)),
    ("", "ConvInteger"): (_conv, (1,)),
    ("", "QLinearConv"): (_conv, (3,)),
    ("", "ConvTranspose"): (_conv_transpose, (0, 1)),
    ("", "MatMul"): (_matmul, (0,)),
    ("", "MatMulInteger"): (_matmul, (0,)),
    ("", "QLinearMatMul"): (_matmul, (0,)),
    ("", "Gemm"): (_gemm, (0,)),
    ("com.microsoft", "FusedConv"): (_conv, (1,)),
    ("com.microsoft", "FusedGemm"): (_gemm, (0,)),
    ("com.microsoft", "FusedMatMul"): (_fused_matmul, (0,)),
    ("com.microsoft", "NhwcConv"): (_conv, (1,)),
    ("com.microsoft", "TransposeMatMul"): (_gemm, (0,)),
}
# Our operators by the start of their names, because suffixes add no multiplications. The first entry that matches is
# used, so "FusedConvTranspose" comes before "FusedConv".
_OURS: Mapping[str, _Formula] = {
    "FusedConvTranspose": (_conv_transpose, (0, 1)),
    "FusedConv": (_conv, (1,)),
    "WinogradConv": (_conv, (1,)),
    "InvertedResidual": (_inverted_residual, (0, 1, 3, 5)),
    "FusedAttention": (_attention, (0, 1)),
    "Linear": (_matmul, (0,)),
    "MatMulBf16": (_matmul, (0,)),
    "DynamicQuantizedConv": (_conv, (1,)),
    "QuantizedConv": (_conv, (3,)),
    "QuantizedLinear": (_matmul, (0,)),
}
# Operators that passes rewrite into operators with a formula, but that have no formula themselves.
_UNKNOWN = frozenset(
    {
        ("com.microsoft", name)
        for name in (
            *("Attention", "DecoderMaskedMultiHeadAttention", "DynamicQuantizeMatMul", "GroupQueryAttention"),
            *("MatMulIntegerToFloat", "MatMulNBits", "MultiHeadAttention", "PackedAttention"),
            *("PackedMultiHeadAttention", "QAttention", "QGemm", "QLinearConv"),
        )
    }
)


def _formula(domain: str, op_type: str) -> _Formula | None:
    if domain == DOMAIN:
        return next((formula for stem, formula in _OURS.items() if op_type.startswith(stem)), None)
    return _COUNTED.get((domain, op_type))


def operands(domain: str, op_type: str) -> Sequence[int]:
    """Returns the indices of the inputs of which `multiply_adds` needs the dimensions; empty for other operators."""
    formula = _formula(domain, op_type)
    return () if formula is None else formula[1]


@functools.cache
def has_multiply_adds(domain: str, op_type: str) -> bool:
    """Returns whether an operator computes a convolution, a matrix multiplication or attention."""
    return (domain, op_type) in _UNKNOWN or _formula(domain, op_type) is not None


def multiply_adds(node: ir.Node, dims: Mapping[str, Dims] | None = None) -> int | None:
    """Counts the multiply-adds of a node.

    Args:
        node: the node; its values have static shapes or are in `dims`.
        dims: value name -> dimensions in a run.

    Returns:
        The number; None for an operator without multiply-adds, or if a size is unknown.
    """
    formula = _formula(node.domain, node.op_type)
    if formula is None:
        return None
    count, indices = formula
    if max(indices) >= len(node.inputs):
        return None
    known = []
    for value in (node.outputs[0], *(node.inputs[i] for i in indices)):
        shape = _static(value)
        if shape is None and dims is not None and value is not None:
            shape = dims.get(value.name or "")
        if shape is None:
            return None
        known.append(shape)
    return count(node, *known)


def _static(value: ir.Value | None) -> Dims | None:
    shape = None if value is None else value.shape
    return shape.numpy() if shape is not None and shape.is_static() else None
