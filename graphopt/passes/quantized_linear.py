"""On CPUs the layers that ONNX Runtime's quantize_dynamic writes become QuantizedLinear.

    act(Cast(MatMulInteger(Q(X), W, x_zero, w_zero)) * (x_scale * w_scale) + b)
        = QuantizedLinear<act>(X, W, w_scale, w_zero, b),       Q(X), x_scale, x_zero = DynamicQuantizeLinear(X)

    the same with ConvInteger whose window is one pixel
        = T(QuantizedLinear<act>(T'(X), W^T, w_scale, w_zero, b))         T, T': Transpose from and to channels last

Why it is legal: QuantizedLinear is defined by this equation, and its integer sums are equal. The scale of X depends on
its smallest and largest element, which a Transpose keeps. On processors without VNNI ONNX Runtime's MatMulInteger
saturates sums of two products. Our kernel never saturates them.

Conditions: W is a constant int8 or uint8 matrix, or the weight of a convolution with one group, a window of one pixel,
strides of 1 and no padding; w_scale, w_zero and b are constants with one element for all columns (output channels) or
one for each; no other node reads a value between MatMulInteger or ConvInteger and the result. DynamicQuantizeLinear may
have other readers.

Where it is faster: with few rows, because the runtime quantizes, multiplies and scales in separate nodes. Our kernel
quantizes X while it packs it, and applies scale, bias and activation to the sums in the first-level cache. With many
rows both kernels run at the peak of VNNI. Without VNNI our kernel is faster for many rows as well, except for weights
with sums beyond 16 bits. There the runtime is faster for one and two rows if no other layer reads the quantized X,
because it then has one kernel for the layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from graphopt.forms.dynamic_quantization import DynamicLayer, bias_row, dynamic_layer, parameter_row
from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.shapes import sizes
from graphopt.graph.traversal import tensor_array, tensor_dims
from graphopt.graph.view import (
    attribute_int,
    attribute_ints,
    require_one_graph,
    sole_reader,
    to_channels_first,
)
from graphopt.metadata import Numerics
from graphopt.ops.quantized_linear import STEM
from graphopt.ops.schema import Array
from graphopt.passes.base import Pass
from graphopt.remarks import Code, Refusal
from graphopt.targets.cpu import quantized_linear_no_gain, quantized_linear_no_gain_without_vnni
from graphopt.targets.profit import Candidate


@dataclass(frozen=True)
class QuantizedPlan:
    """The parameters of the new node: the weight [K, N], and the others [N], in their final types.

    `axes` is the number of spatial axes of a convolution; None for a MatMulInteger.
    """

    match: DynamicLayer
    axes: int | None
    weight: ir.Value | Array
    scale: ir.Value | Array
    zero_point: ir.Value | Array
    bias: ir.Value | Array


class QuantizedLinear(Pass[DynamicLayer, QuantizedPlan]):
    name = "quantized_linear"
    equation = (
        "act(Cast(MatMulInteger(Q(X), W)) * scale + b) -> QuantizedLinear<act>, Q of DynamicQuantizeLinear; "
        "ConvInteger with a window of one pixel"
    )
    numerics = Numerics.REASSOCIATED
    hides_from_bfloat16 = True
    anchors = frozenset({("", "MatMulInteger"), ("", "ConvInteger")})
    fallback = True  # rewrites nodes that winograd_conv refuses

    def match(self, node: ir.Node, editor: Editor) -> DynamicLayer | None:
        return dynamic_layer(STEM, node, editor) if editor.target.device == "cpu" else None

    def legal(self, match: DynamicLayer, editor: Editor) -> QuantizedPlan:
        gemm, w = match.gemm, match.W
        editor.require_op(match.name, match.X, gemm)
        require_one_graph((match.quantize, match.scales, *match.layer), gemm)
        tensor = editor.tensor(w)
        if tensor is None:
            editor.require_constant(w, "the weight", gemm)
        assert tensor is not None
        dims, axes = tensor_dims(tensor), None
        weight: ir.Value | Array = w
        if gemm.op_type == "ConvInteger":
            axes = _spatial_axes(gemm, dims)
            weight = np.ascontiguousarray(tensor_array(tensor).reshape(dims[:2]).T)
        elif len(dims) != 2:
            raise Refusal(Code.WRONG_RANK, f"{w.name} has rank {len(dims)}", gemm)
        N, scale_rank = (dims[1], 1) if axes is None else (dims[0], len(dims))
        w_zero = gemm.inputs[3] if len(gemm.inputs) > 3 else None
        float32 = np.dtype(np.float32)
        return QuantizedPlan(
            match,
            axes,
            weight,
            parameter_row(match.w_scale, "the scale of the weight", scale_rank, axes, float32, N, match.scales, editor),
            parameter_row(w_zero, "the zero point of the weight", 1, None, tensor.dtype.numpy(), N, gemm, editor),
            bias_row(match, axes, N, editor),
        )

    def candidate(self, plan: QuantizedPlan, editor: Editor) -> Candidate:
        match, x, weight = plan.match, editor.shapes.dims(plan.match.X), editor.tensor(plan.match.W)
        assert weight is not None
        dims = tensor_dims(weight)
        if plan.axes is None:
            rows, K, N = None if x is None else sizes.product(x[:-1]).value, *dims
        else:
            rows, K, N = None if x is None else sizes.product((x[0], *x[2:])).value, dims[1], dims[0]
        if plan.axes is None and not editor.target.vnni:
            only_reader = sole_reader(match.quantize.outputs[0]) is not None
            no_gain = quantized_linear_no_gain_without_vnni(
                rows, K, N, lambda: _large_word_share(tensor_array(weight)), only_reader=only_reader
            )
        else:
            no_gain = quantized_linear_no_gain(rows, K, N)
        return editor.candidate(match.name, (match.X, match.W), match.Y, match.gemm, no_gain)

    def rewrite(self, plan: QuantizedPlan, editor: Editor) -> str:
        match, b = plan.match, Builder(editor, plan.match.layer[-1])
        parameters = {"columns": plan.weight, "scales": plan.scale, "zero_points": plan.zero_point, "bias": plan.bias}
        constants = match.constants(parameters, editor)
        rank = None if plan.axes is None else plan.axes + 2
        x = match.X if rank is None else b.in_channels_last(match.X, rank)
        y = b.emit(match.name, [x, *constants], match.attributes).outputs[0]
        if rank is not None:
            y = b.transpose(y, *to_channels_first(rank))
        return match.replace(b, y, editor)


def _spatial_axes(conv: ir.Node, weight: Sequence[int]) -> int:
    """Returns the number of spatial axes of a convolution whose window is one pixel.

    Raises:
        Refusal: WRONG_SHAPE or ATTRIBUTE.
    """
    kernel = weight[2:]
    if math.prod(kernel) != 1:
        raise Refusal(Code.WRONG_SHAPE, f"the window has {math.prod(kernel)} elements", conv)
    group = attribute_int(conv, "group", 1)
    if group != 1:
        raise Refusal(Code.ATTRIBUTE, f"there are {group} groups", conv)
    for name, neutral in (("strides", 1), ("pads", 0)):
        given = attribute_ints(conv, name, ())
        if any(n != neutral for n in given):
            raise Refusal(Code.ATTRIBUTE, f"the {name} are {list(given)}", conv)
    return len(kernel)


def _large_word_share(weight: Array) -> float:
    """Returns the share of a weight that QuantizedLinear multiplies in 16 bits without VNNI.

    It multiplies words of four rows of W, and adds the sums of two words in 16 bits. Words with sums that may exceed
    16 bits are multiplied separately (`list_large_words` in native/operators/matmul/quantized_linear/cpu.cpp).

    Args:
        weight: an int8 or uint8 weight [K, N].
    """
    K, N = weight.shape
    signed = weight.astype(np.int16) - np.int16(128 if weight.dtype == np.uint8 else 0)
    words = np.pad(signed, ((0, -K % 8), (0, 0))).reshape(-1, 2, 2, 2, N)  # two words, two pairs of bytes

    def exceed(sums: Array) -> Array:
        return np.asarray((255 * np.abs(sums.astype(np.int32)) > np.iinfo(np.int16).max).any(axis=1))

    large = exceed(np.maximum(words, 0).sum(axis=(1, 3))) | exceed(np.minimum(words, 0).sum(axis=(1, 3)))
    both_large = exceed(words[:, 0].sum(axis=2)) & exceed(words[:, 1].sum(axis=2))
    return int(large.sum() + both_large.sum()) / max(2 * int(large.size), 1)
