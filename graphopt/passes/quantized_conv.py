"""On CPUs a quantized convolution becomes QuantizedConv, with channels last, where ONNX Runtime's kernel is slow.

    Q(act(Conv(D(X), D(W), D(B)))) = T(QuantizedConv<act>(T'(X), W, B))     D: DequantizeLinear, Q: QuantizeLinear
    QLinearConv(X, W, B)           = T(QuantizedConv(T'(X), W, B))          T, T': Transpose from and to channels last

Why it is legal: QuantizedConv is defined by the first equation, and its integer sums are exact. On processors without
VNNI ONNX Runtime saturates sums of two products. Our kernel never saturates them.

Conditions: two spatial axes; one group, or a depthwise convolution with one filter for each channel; X and the result
are both int8 or both uint8, with scalar scales; all scales, zero points, W and B are constants; W minus its zero points
fits int8; the scale of B is the product of the scales of X and W; act is Relu, Clip or absent. No other node reads a
value between Conv and QuantizeLinear.

Why it is faster: ONNX Runtime copies the windows of few channels element by element, and its depthwise kernel
multiplies 16-bit integers. Its other convolutions run near the peak of VNNI. They also have channels last, so ONNX
Runtime removes the Transposes between them and our nodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from graphopt.forms.activation import Form, form_of
from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.view import (
    attribute_int,
    attribute_ints,
    producer_of,
    require_contained,
    require_input,
    require_one_graph,
    sole_reader,
    to_channels_first,
)
from graphopt.metadata import Numerics
from graphopt.ops.quantized_conv import ACTIVATION_SUFFIXES, STEM
from graphopt.ops.schema import Array
from graphopt.passes.base import Pass
from graphopt.passes.fused_conv import resolved_pads
from graphopt.remarks import Code, Refusal, became
from graphopt.targets.cpu import quantized_conv_no_gain
from graphopt.targets.profit import Candidate

INT8_TYPES = (np.dtype(np.uint8), np.dtype(np.int8))
# The largest relative difference between the scale of B and the product of both scales, which is rounded to float32.
SCALE_TOLERANCE = 1e-6
RANK = 4  # of images, with two spatial axes


@dataclass(frozen=True)
class Quantized:
    """A quantized value: integers with a scale and a zero point, which is None for 0.

    Attributes:
        value: the integers.
        scale: the scale.
        zero: the zero point.
        node: the node that reads the three.
    """

    value: ir.Value
    scale: ir.Value
    zero: ir.Value | None
    node: ir.Node


@dataclass(frozen=True)
class QuantizedConvMatch:
    """A quantized convolution.

    Attributes:
        conv: the Conv or QLinearConv.
        X: its input.
        W: its weight.
        B: its bias, with a scale except in a QLinearConv; None if there is no bias.
        Y: the result. Its value is the output of the last node.
        form: the activation, or None.
        nodes: the nodes from the convolution to the result.
    """

    conv: ir.Node
    X: Quantized
    W: Quantized
    B: Quantized | ir.Value | None
    Y: Quantized
    form: Form | None
    nodes: tuple[ir.Node, ...]

    @property
    def name(self) -> str:
        return STEM + ("" if self.form is None else self.form.suffix)


@dataclass(frozen=True)
class QuantizedConvPlan:
    """The inputs and attributes of the new node. Scales and zero points of X and Y are scalars."""

    match: QuantizedConvMatch
    x_scale: Array
    x_zero: Array
    weight: Array
    w_scale: Array
    y_scale: Array
    y_zero: Array
    bias: Array
    attributes: Mapping[str, Any]


class QuantizedConv(Pass[QuantizedConvMatch, QuantizedConvPlan]):
    name = "quantized_conv"
    equation = "Q(act(Conv(D(X), D(W), D(B)))) -> QuantizedConv<act>(X, W, B) with channels last"
    numerics = Numerics.REASSOCIATED
    anchors = frozenset({("", "Conv"), ("", "QLinearConv")})
    fallback = True  # rewrites nodes that fused_conv and winograd_conv refuse

    def match(self, node: ir.Node, editor: Editor) -> QuantizedConvMatch | None:
        if editor.target.device != "cpu":
            return None
        return _quantized_conv(node) if node.op_type == "QLinearConv" else _dequantized_conv(node, editor)

    def legal(self, match: QuantizedConvMatch, editor: Editor) -> QuantizedConvPlan:
        conv = match.conv
        editor.require_op(match.name, match.Y.scale, conv)
        require_one_graph(match.nodes, conv)
        require_contained(match.nodes, match.Y.value)
        x_scale, x_zero = _scalar_parameters(match.X, "X", editor)
        y_scale, y_zero = _scalar_parameters(match.Y, "the result", editor)
        if x_zero.dtype != y_zero.dtype:
            raise Refusal(Code.WRONG_DTYPE, f"X is {x_zero.dtype}, the result is {y_zero.dtype}", conv)
        weight, w_scale = _weight(match, editor)
        attributes = _window(match, weight, editor)
        bias = _bias(match, x_scale * w_scale, editor)
        return QuantizedConvPlan(match, x_scale, x_zero, weight, w_scale, y_scale, y_zero, bias, attributes)

    def candidate(self, plan: QuantizedConvPlan, editor: Editor) -> Candidate:
        match = plan.match
        no_gain = _no_gain(match.conv, plan.weight.shape, editor)
        if not no_gain and _leaves_only_pools(match.conv, editor):
            no_gain = "ONNX Runtime would pool with channels first, because no quantized convolution remains for it"
        return editor.candidate(match.name, (match.X.value, match.W.value), match.Y.value, match.conv, no_gain)

    def rewrite(self, plan: QuantizedConvPlan, editor: Editor) -> str:
        match, last = plan.match, plan.match.nodes[-1]
        b = Builder(editor, last, label=match.conv.name)

        def constant(data: Array, hint: str) -> ir.Value:
            return editor.initializer(match.conv, data, f"{match.W.value.name}_{hint}")

        inputs = [
            b.in_channels_last(match.X.value, RANK, ir.DataType.from_numpy(plan.x_zero.dtype)),
            constant(plan.x_scale, "x_scale"),
            constant(plan.x_zero, "x_zero_point"),
            constant(plan.weight, "int8"),
            constant(plan.w_scale, "scale"),
            constant(plan.y_scale, "y_scale"),
            constant(plan.y_zero, "y_zero_point"),
            constant(plan.bias, "bias"),
        ]
        activation = {} if match.form is None else match.form.attributes
        new = b.emit(match.name, inputs, {**plan.attributes, **activation})
        y = b.op("Transpose", new.outputs[0], perm=to_channels_first(RANK), _like=match.Y.value)
        editor.replace([*reversed(match.nodes)], b.nodes, {match.Y.value: y}, anchor=last)
        return became(len(match.nodes), match.name)


def _quantized_conv(node: ir.Node) -> QuantizedConvMatch:
    def quantized(first: int, value: ir.Value) -> Quantized:
        return Quantized(value, require_input(node, first), require_input(node, first + 1), node)

    X, W = (quantized(i + 1, require_input(node, i)) for i in (0, 3))
    B = node.inputs[8] if len(node.inputs) > 8 else None
    return QuantizedConvMatch(node, X, W, B, quantized(6, node.outputs[0]), None, (node,))


def _dequantized_conv(node: ir.Node, editor: Editor) -> QuantizedConvMatch | None:
    operands = [_dequantized(value) for value in node.inputs]
    if len(operands) < 2 or operands[0] is None or operands[1] is None:
        return None
    if len(operands) > 2 and operands[2] is None and node.inputs[2] is not None:
        return None
    form = form_of(node.outputs[0], editor)
    if form is not None and form.suffix not in ACTIVATION_SUFFIXES:
        return None
    y = node.outputs[0] if form is None else form.y
    quantize = sole_reader(y, "QuantizeLinear")
    if quantize is None or quantize.inputs[0] is not y:
        return None
    scale, zero = require_input(quantize, 1), quantize.inputs[2] if len(quantize.inputs) > 2 else None
    nodes = (node, *(() if form is None else form.nodes), quantize)
    Y = Quantized(quantize.outputs[0], scale, zero, quantize)
    return QuantizedConvMatch(
        node, operands[0], operands[1], operands[2] if len(operands) > 2 else None, Y, form, nodes
    )


def _dequantized(value: ir.Value | None) -> Quantized | None:
    node = producer_of(value, "DequantizeLinear")
    if node is None:
        return None
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    return Quantized(require_input(node, 0), require_input(node, 1), zero, node)


def _scalar_parameters(x: Quantized, what: str, editor: Editor) -> tuple[Array, Array]:
    """Returns scale and zero point of X or Y, as scalars.

    Raises:
        Refusal: NOT_CONSTANT, OVERRIDABLE, PER_CHANNEL_SCALE or WRONG_DTYPE.
    """
    _require_plain(x.node)
    scale = editor.require_constant(x.scale, f"the scale of {what}", x.node)
    if x.zero is None:
        dtype = editor.dtype(x.value)
        zero = np.zeros((), None if dtype is None else dtype.numpy())
    else:
        zero = editor.require_constant(x.zero, f"the zero point of {what}", x.node)
    if scale.size != 1 or zero.size != 1:
        raise Refusal(Code.PER_CHANNEL_SCALE, f"the scale of {what} has {scale.size} elements", x.node)
    if scale.dtype != np.float32 or zero.dtype not in INT8_TYPES:
        raise Refusal(Code.WRONG_DTYPE, f"{what} is {zero.dtype} with a scale of {scale.dtype}", x.node)
    return scale.reshape(()), zero.reshape(())


def _require_plain(node: ir.Node) -> None:
    """Refuses a node that quantizes by blocks or has output_dtype or precision.

    Raises:
        Refusal: ATTRIBUTE.
    """
    for name in ("block_size", "output_dtype", "precision"):
        if attribute_int(node, name, 0) != 0:
            raise Refusal(Code.ATTRIBUTE, f"{name} is {attribute_int(node, name, 0)}", node)


def _weight(match: QuantizedConvMatch, editor: Editor) -> tuple[Array, Array]:
    """Returns W minus its zero points as int8, and its scales as [M].

    Raises:
        Refusal: NOT_CONSTANT, OVERRIDABLE, WRONG_RANK, WRONG_SHAPE, WRONG_AXIS or WRONG_DTYPE.
    """
    W, node = match.W, match.W.node
    _require_plain(node)
    w = editor.require_constant(W.value, "the weight", node)
    if w.ndim != RANK:
        raise Refusal(Code.WRONG_RANK, f"{W.value.name} has rank {w.ndim}", node)
    M = w.shape[0]
    scale = editor.require_constant(W.scale, "the scale of the weight", node)
    zero = np.zeros(1, w.dtype) if W.zero is None else editor.require_constant(W.zero, "the zero point", node)
    if scale.size not in (1, M) or zero.size not in (1, M):
        raise Refusal(Code.WRONG_SHAPE, f"{W.scale.name} has {scale.size} elements for {M} channels", node)
    if max(scale.size, zero.size) > 1 and node is not match.conv and attribute_int(node, "axis", 1) % 4 != 0:
        raise Refusal(
            Code.WRONG_AXIS, f"the weight has a scale for each element of axis {attribute_int(node, 'axis', 1)}", node
        )
    if w.dtype not in INT8_TYPES or scale.dtype != np.float32:
        raise Refusal(Code.WRONG_DTYPE, f"{W.value.name} is {w.dtype} with a scale of {scale.dtype}", node)
    centred = w.astype(np.int16) - zero.reshape(-1, 1, 1, 1).astype(np.int16)
    if centred.min(initial=0) < -128 or centred.max(initial=0) > 127:
        raise Refusal(Code.WRONG_DTYPE, f"{W.value.name} minus its zero point does not fit int8", node)
    return centred.astype(np.int8), np.broadcast_to(scale.reshape(-1), (M,)).copy()


def _bias(match: QuantizedConvMatch, product_scale: Array, editor: Editor) -> Array:
    """Returns the bias as int32 [M], with the scale of X times that of W; zeros if there is no bias.

    Raises:
        Refusal: NOT_CONSTANT, OVERRIDABLE, WRONG_SHAPE, WRONG_DTYPE or PER_CHANNEL_SCALE.
    """
    B, conv, M = match.B, match.conv, len(product_scale)
    if isinstance(B, Quantized):
        _require_plain(B.node)
    if B is None:
        return np.zeros(M, np.int32)
    bias = editor.require_constant(B if isinstance(B, ir.Value) else B.value, "the bias", conv)
    if bias.dtype != np.int32:
        raise Refusal(Code.WRONG_DTYPE, f"the bias is {bias.dtype}", conv)
    if bias.shape != (M,):
        raise Refusal(Code.WRONG_SHAPE, f"the bias has shape {list(bias.shape)} for {M} channels", conv)
    if isinstance(B, ir.Value):
        return bias
    scale = editor.require_constant(B.scale, "the scale of the bias", B.node)
    zero = np.zeros(1) if B.zero is None else editor.require_constant(B.zero, "the zero point of the bias", B.node)
    if scale.size not in (1, M) or zero.any():
        raise Refusal(Code.WRONG_SHAPE, f"the scale of the bias has {scale.size} elements", B.node)
    if not np.allclose(scale, product_scale, rtol=SCALE_TOLERANCE, atol=0):
        raise Refusal(
            Code.PER_CHANNEL_SCALE, "the scale of the bias is not the product of the scales of X and the weight", B.node
        )
    return bias


def _window(match: QuantizedConvMatch, weight: Array, editor: Editor) -> dict[str, Any]:
    """Returns pads, strides, dilations and group.

    Raises:
        Refusal: ATTRIBUTE.
    """
    conv, kernel = match.conv, weight.shape[2:]
    group = attribute_int(conv, "group", 1)
    if group != 1 and not (weight.shape[0] == group and weight.shape[1] == 1):
        raise Refusal(Code.ATTRIBUTE, f"each of {group} groups has {weight.shape[1]} channels", conv)
    strides, dilations = (attribute_ints(conv, name, (1, 1)) for name in ("strides", "dilations"))
    pads = resolved_pads(conv, kernel, strides, dilations, editor)
    if min(pads) < 0:
        raise Refusal(Code.ATTRIBUTE, f"the pads are {list(pads)}", conv)
    return {"pads": pads, "strides": strides, "dilations": dilations, "group": group}


def _no_gain(conv: ir.Node, weight: Sequence[int], editor: Editor) -> str:
    """Returns why QuantizedConv is not faster for a convolution with a weight of this shape; "" if it is faster."""
    M, C, *kernel = weight
    dims = editor.shapes.dims(conv.outputs[0])
    pixels = [None] * len(kernel) if dims is None else [d.value for d in dims[2:]]
    return quantized_conv_no_gain(C, M, attribute_int(conv, "group", 1), math.prod(kernel), pixels)


def _leaves_only_pools(conv: ir.Node, editor: Editor) -> bool:
    """Returns whether the model has MaxPools, and this pass would rewrite all its quantized convolutions.

    ONNX Runtime uses the channels-last layout only in models with a QLinearConv. Its 8-bit MaxPool is many times slower
    with channels first.
    """
    if not editor.nodes({("", "MaxPool")}):
        return False
    for node in editor.nodes(QuantizedConv.anchors):
        weight = node.inputs[3] if node.op_type == "QLinearConv" else node.inputs[1]
        if node.op_type == "Conv" and (dequantize := producer_of(weight, "DequantizeLinear")) is not None:
            weight = dequantize.inputs[0]
        elif node.op_type == "Conv":
            continue
        array = None if weight is None else editor.constant(weight)
        if node is not conv and array is not None and array.ndim == RANK and _no_gain(node, array.shape, editor):
            return False
    return True
