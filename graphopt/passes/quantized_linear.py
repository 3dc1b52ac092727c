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
rows both kernels run at the peak of VNNI.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from graphopt.forms.activation import Form, form_of
from graphopt.forms.affine import row_of_columns
from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.shapes import sizes
from graphopt.graph.traversal import tensor_array, tensor_dims
from graphopt.graph.view import (
    attribute_int,
    attribute_ints,
    other_input,
    producer_of,
    require_contained,
    require_input,
    require_one_graph,
    sole_reader,
    to_channels_first,
)
from graphopt.metadata import Numerics
from graphopt.ops import OPS
from graphopt.ops.quantized_linear import STEM
from graphopt.ops.schema import Array
from graphopt.passes.base import Pass
from graphopt.remarks import Code, Refusal, became
from graphopt.targets.cpu import quantized_linear_no_gain
from graphopt.targets.profit import Candidate


@dataclass(frozen=True)
class QuantizedMatch:
    """A layer with 8-bit weights.

    Attributes:
        quantize: the DynamicQuantizeLinear.
        scales: the Mul of both scales.
        gemm: the MatMulInteger or ConvInteger.
        rescaled: the Cast and the Mul by the scales.
        w_scale: the scale of W.
        add: the Add of the bias, or None.
        form: the activation, or None.
    """

    quantize: ir.Node
    scales: ir.Node
    gemm: ir.Node
    rescaled: tuple[ir.Node, ir.Node]
    w_scale: ir.Value
    add: ir.Node | None
    form: Form | None

    @property
    def name(self) -> str:
        return STEM + ("" if self.form is None else self.form.suffix)

    @property
    def layer(self) -> tuple[ir.Node, ...]:
        """The nodes from the multiplication to the result, in topological order."""
        add = () if self.add is None else (self.add,)
        return (self.gemm, *self.rescaled, *add, *(() if self.form is None else self.form.nodes))

    @property
    def X(self) -> ir.Value:
        return require_input(self.quantize, 0)

    @property
    def W(self) -> ir.Value:
        return require_input(self.gemm, 1)

    @property
    def Y(self) -> ir.Value:
        return self.layer[-1].outputs[0]


@dataclass(frozen=True)
class QuantizedPlan:
    """The parameters of the new node: the weight [K, N], and the others [N], in their final types.

    `axes` is the number of spatial axes of a convolution; None for a MatMulInteger.
    """

    match: QuantizedMatch
    axes: int | None
    weight: ir.Value | Array
    scale: ir.Value | Array
    zero_point: ir.Value | Array
    bias: ir.Value | Array


class QuantizedLinear(Pass[QuantizedMatch, QuantizedPlan]):
    name = "quantized_linear"
    equation = (
        "act(Cast(MatMulInteger(Q(X), W)) * scale + b) -> QuantizedLinear<act>, Q of DynamicQuantizeLinear; "
        "ConvInteger with a window of one pixel"
    )
    numerics = Numerics.REASSOCIATED
    hides_from_bfloat16 = True
    anchors = frozenset({("", "MatMulInteger"), ("", "ConvInteger")})
    fallback = True  # rewrites nodes that winograd_conv refuses

    def match(self, node: ir.Node, editor: Editor) -> QuantizedMatch | None:
        quantize = producer_of(node.inputs[0], "DynamicQuantizeLinear")
        zero_point = node.inputs[2] if len(node.inputs) > 2 else None
        cast = sole_reader(node.outputs[0], "Cast")
        rescale = None if cast is None else sole_reader(cast.outputs[0], "Mul")
        if editor.target.device != "cpu" or quantize is None or cast is None or rescale is None:
            return None
        if node.inputs[0] is not quantize.outputs[0] or zero_point is not quantize.outputs[2]:
            return None
        scales = producer_of(other_input(rescale, cast.outputs[0]), "Mul")
        if scales is None or quantize.outputs[1] not in scales.inputs:
            return None
        w_scale = other_input(scales, quantize.outputs[1])
        if w_scale is None or attribute_int(cast, "to", 0) != ir.DataType.FLOAT:
            return None
        y = rescale.outputs[0]
        add = sole_reader(y, "Add")
        if add is not None and not editor.is_constant(other_input(add, y)):
            add = None
        form = form_of(y if add is None else add.outputs[0], editor)
        match = QuantizedMatch(quantize, scales, node, (cast, rescale), w_scale, add, form)
        return match if _can_fuse_activation(match) else QuantizedMatch(**{**vars(match), "form": None})

    def legal(self, match: QuantizedMatch, editor: Editor) -> QuantizedPlan:
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
            _row(match.w_scale, "the scale of the weight", scale_rank, axes, float32, N, match.scales, editor),
            _row(w_zero, "the zero point of the weight", 1, None, tensor.dtype.numpy(), N, gemm, editor),
            _bias(match, axes, N, editor),
        )

    def candidate(self, plan: QuantizedPlan, editor: Editor) -> Candidate:
        match, x, weight = plan.match, editor.shapes.dims(plan.match.X), editor.tensor(plan.match.W)
        assert weight is not None
        dims = tensor_dims(weight)
        if plan.axes is None:
            rows, K, N = None if x is None else sizes.product(x[:-1]).value, *dims
        else:
            rows, K, N = None if x is None else sizes.product((x[0], *x[2:])).value, dims[1], dims[0]
        no_gain = quantized_linear_no_gain(rows, K, N)
        return editor.candidate(match.name, (match.X, match.W), match.Y, match.gemm, no_gain)

    def rewrite(self, plan: QuantizedPlan, editor: Editor) -> str:
        match, last = plan.match, plan.match.layer[-1]
        parameters = {"columns": plan.weight, "scales": plan.scale, "zero_points": plan.zero_point, "bias": plan.bias}
        constants = [
            value if isinstance(value, ir.Value) else editor.initializer(match.gemm, value, f"{match.W.name}_{hint}")
            for hint, value in parameters.items()
        ]
        attributes = {} if match.form is None else match.form.attributes
        b = Builder(editor, last)
        rank = None if plan.axes is None else plan.axes + 2
        x = match.X if rank is None else b.in_channels_last(match.X, rank)
        y = b.emit(match.name, [x, *constants], attributes).outputs[0]
        if rank is not None:
            y = b.transpose(y, *to_channels_first(rank))
        editor.replace([*reversed(match.layer), match.scales, match.quantize], b.nodes, {match.Y: y}, anchor=last)
        return became(len(match.layer) + 2, match.name)


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


def _can_fuse_activation(match: QuantizedMatch) -> bool:
    if match.form is None:
        return True
    try:
        match.form.require_closed()
        require_contained(match.layer, match.Y)
        require_one_graph(match.layer, match.gemm)
    except Refusal:
        return False
    return match.name in OPS


def _bias(match: QuantizedMatch, axes: int | None, N: int, editor: Editor) -> ir.Value | Array:
    if match.add is None:
        return np.zeros(N, np.float32)
    y = match.rescaled[-1].outputs[0]
    rank = editor.shapes.rank(y)
    value = other_input(match.add, y)
    return _row(value, "the bias", rank, axes, np.dtype(np.float32), N, match.add, editor)


def _row(
    value: ir.Value | None,
    what: str,
    rank: int | None,
    axes: int | None,
    dtype: np.dtype[np.generic],
    N: int,
    node: ir.Node,
    editor: Editor,
) -> ir.Value | Array:
    """Returns a parameter of the columns as [N]: the model's value, or a new array of the required shape and type.

    Args:
        value: the parameter; None for zeros.
        what: its description in a refusal.
        rank: the largest rank that the parameter may have; None: 1.
        axes: the number of spatial axes behind that of the channels; None if the columns are the last axis.
        dtype: its type.
        N: the number of columns.
        node: the node that reads it.
        editor: the model.

    Raises:
        Refusal: NOT_CONSTANT, OVERRIDABLE or WRONG_SHAPE.
    """
    if value is None:
        return np.zeros(N, dtype)
    array = editor.require_constant(value, what, node)
    if axes is None:
        if array.shape == (N,) and array.dtype == dtype:
            return value
        return row_of_columns(array.astype(dtype), what, N, rank, node)
    if array.shape[max(array.ndim - axes, 0) :] != (1,) * min(axes, array.ndim):
        raise Refusal(Code.WRONG_SHAPE, f"{what} has shape {array.shape} for {N} channels", node)
    channels = array.reshape(array.shape[: max(array.ndim - axes, 0)])
    return row_of_columns(channels.astype(dtype), what, N, None if rank is None else rank - axes, node)
