"""On CPUs the convolutions that ONNX Runtime's quantize_dynamic writes become DynamicQuantizedConv.

    act(Cast(ConvInteger(Q(X), W, x_zero, w_zero)) * (x_scale * w_scale) + b)
        = DynamicQuantizedConv<act>(X, W, b, w_scale, w_zero),       Q(X), x_scale, x_zero = DynamicQuantizeLinear(X)

Why it is legal: DynamicQuantizedConv is defined by this equation, and its integer sums are equal.

Conditions: W is a constant int8 or uint8 weight over one to three axes with one zero point; its scale and b are
constants with one element for all output channels or one for each; no other node reads a value between ConvInteger and
the result. DynamicQuantizeLinear may have other readers.

Where it is faster: with strides of 1, for groups, few pixels or few multiply-adds for each element of Y. ONNX Runtime
copies the windows of each group. It quantizes, converts, scales, shifts and activates in separate nodes. Our kernel
quantizes X while it packs it, and applies scale, bias and activation to the sums in registers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from graphopt.forms.dynamic_quantization import DynamicLayer, bias_row, dynamic_layer, parameter_row
from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.traversal import tensor_dims
from graphopt.graph.view import attribute_int, attribute_ints, require_one_graph
from graphopt.metadata import Numerics
from graphopt.ops.dynamic_quantized_conv import STEM
from graphopt.ops.schema import Array
from graphopt.passes.base import Pass
from graphopt.passes.fused_conv import resolved_pads
from graphopt.passes.unsigned_conv import unsigned
from graphopt.remarks import Code, Refusal
from graphopt.targets.cpu import dynamic_quantized_conv_no_gain
from graphopt.targets.profit import Candidate


@dataclass(frozen=True)
class DynamicConvPlan:
    """The inputs of the new node after X, in their final types, and its attributes."""

    match: DynamicLayer
    weight: ir.Value | Array
    bias: ir.Value | Array
    scale: ir.Value | Array
    zero_point: Array
    attributes: Mapping[str, Any]


class DynamicQuantizedConv(Pass[DynamicLayer, DynamicConvPlan]):
    name = "dynamic_quantized_conv"
    equation = "act(Cast(ConvInteger(Q(X), W)) * scale + b) -> DynamicQuantizedConv<act>, Q of DynamicQuantizeLinear"
    numerics = Numerics.REASSOCIATED
    hides_from_bfloat16 = True
    anchors = frozenset({("", "ConvInteger")})
    fallback = True  # rewrites nodes that quantized_linear refuses

    def match(self, node: ir.Node, editor: Editor) -> DynamicLayer | None:
        return dynamic_layer(STEM, node, editor) if editor.target.device == "cpu" else None

    def legal(self, match: DynamicLayer, editor: Editor) -> DynamicConvPlan:
        conv = match.gemm
        editor.require_op(match.name, match.X, conv)
        require_one_graph((match.quantize, match.scales, *match.layer), conv)
        weight = editor.require_constant(match.W, "the weight", conv)
        if not 3 <= weight.ndim <= 5:
            raise Refusal(Code.WRONG_RANK, f"{match.W.name} has rank {weight.ndim}", conv)
        M, axes = weight.shape[0], weight.ndim - 2
        scale = parameter_row(
            match.w_scale, "the scale of the weight", weight.ndim, axes, np.dtype(np.float32), M, match.scales, editor
        )
        is_signed = weight.dtype == np.int8
        zero_point = _zero_point(conv, weight.dtype, editor)
        return DynamicConvPlan(
            match,
            unsigned(weight) if is_signed else match.W,
            bias_row(match, axes, M, editor),
            scale,
            unsigned(zero_point) if is_signed else zero_point,
            _window(conv, weight.shape[2:], editor),
        )

    def candidate(self, plan: DynamicConvPlan, editor: Editor) -> Candidate:
        match, attributes, tensor = plan.match, plan.attributes, editor.tensor(plan.match.W)
        assert tensor is not None
        M, C, *kernel = tensor_dims(tensor)
        dims = editor.shapes.dims(match.gemm.outputs[0])
        pixels = [None] * len(kernel) if dims is None else [d.value for d in dims[2:]]
        no_gain = dynamic_quantized_conv_no_gain(C, M, attributes["group"], kernel, attributes["strides"], pixels)
        return editor.candidate(match.name, (match.X, match.W), match.Y, match.gemm, no_gain)

    def rewrite(self, plan: DynamicConvPlan, editor: Editor) -> str:
        match, b = plan.match, Builder(editor, plan.match.layer[-1])
        parameters = {"uint8": plan.weight, "bias": plan.bias, "scales": plan.scale, "zero_point": plan.zero_point}
        inputs = [match.X, *match.constants(parameters, editor)]
        y = b.emit(match.name, inputs, {**plan.attributes, **match.attributes}).outputs[0]
        return match.replace(b, y, editor)


def _zero_point(conv: ir.Node, dtype: np.dtype[Any], editor: Editor) -> Array:
    """Returns the zero point of the weight as a scalar.

    Raises:
        Refusal: NOT_CONSTANT, OVERRIDABLE or PER_CHANNEL_SCALE.
    """
    value = conv.inputs[3] if len(conv.inputs) > 3 else None
    if value is None:
        return np.zeros((), dtype)
    zero_point = editor.require_constant(value, "the zero point of the weight", conv)
    if zero_point.size != 1:
        raise Refusal(Code.PER_CHANNEL_SCALE, f"{value.name} has {zero_point.size} elements", conv)
    return zero_point.reshape(())


def _window(conv: ir.Node, kernel: tuple[int, ...], editor: Editor) -> dict[str, Any]:
    """Returns pads, strides, dilations and group.

    Raises:
        Refusal: ATTRIBUTE.
    """
    ones = (1,) * len(kernel)
    strides, dilations = attribute_ints(conv, "strides", ones), attribute_ints(conv, "dilations", ones)
    pads = resolved_pads(conv, kernel, strides, dilations, editor)
    if min(pads) < 0:
        raise Refusal(Code.ATTRIBUTE, f"the pads are {list(pads)}", conv)
    return {"pads": pads, "strides": strides, "dilations": dilations, "group": attribute_int(conv, "group", 1)}
