"""On CPUs the layers that ONNX Runtime's quantize_dynamic writes become QuantizedLinear.

    act(Cast(MatMulInteger(Q(X), W, x_zero, w_zero)) * (x_scale * w_scale) + b)
        = QuantizedLinear<act>(X, W, w_scale, w_zero, b),       Q(X), x_scale, x_zero = DynamicQuantizeLinear(X)

Why it is legal: QuantizedLinear is defined by this equation, and its integer sums are equal. On processors without VNNI
ONNX Runtime's MatMulInteger saturates sums of two products. Our kernel never saturates them.

Conditions: W is a constant int8 or uint8 matrix; w_scale, w_zero and b are constants with one element for all columns
or one for each; no other node reads a value between MatMulInteger and the result. DynamicQuantizeLinear may have other
readers.

Where it is faster: with few rows, because the runtime quantizes, multiplies and scales in separate nodes. Our kernel
quantizes X while it packs it, and applies scale, bias and activation to the sums in the first-level cache. With many
rows both kernels run at the peak of VNNI.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from graphopt.forms.activation import Form, form_of
from graphopt.forms.affine import row_of_columns
from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.shapes import sizes
from graphopt.graph.traversal import tensor_dims
from graphopt.graph.view import (
    attribute_int,
    other_input,
    producer_of,
    require_contained,
    require_input,
    require_one_graph,
    sole_reader,
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
        gemm: the MatMulInteger.
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
        """The nodes from MatMulInteger to the result, in topological order."""
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
    """The parameters of the new node, each [N] in its final type."""

    match: QuantizedMatch
    scale: ir.Value | Array
    zero_point: ir.Value | Array
    bias: ir.Value | Array


class QuantizedLinear(Pass[QuantizedMatch, QuantizedPlan]):
    name = "quantized_linear"
    equation = "act(Cast(MatMulInteger(Q(X), W)) * scale + b) -> QuantizedLinear<act>, Q of DynamicQuantizeLinear"
    numerics = Numerics.REASSOCIATED
    hides_from_bfloat16 = True
    anchors = frozenset({("", "MatMulInteger")})

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
        weight = editor.tensor(w)
        if weight is None:
            editor.require_constant(w, "the weight", gemm)
        assert weight is not None
        dims = tensor_dims(weight)
        if len(dims) != 2:
            raise Refusal(Code.WRONG_RANK, f"{w.name} has rank {len(dims)}", gemm)
        N = dims[1]
        w_zero = gemm.inputs[3] if len(gemm.inputs) > 3 else None
        return QuantizedPlan(
            match,
            _row(match.w_scale, "the scale of the weight", 1, np.dtype(np.float32), N, match.scales, editor),
            _row(w_zero, "the zero point of the weight", 1, weight.dtype.numpy(), N, gemm, editor),
            _bias(match, N, editor),
        )

    def candidate(self, plan: QuantizedPlan, editor: Editor) -> Candidate:
        match, x = plan.match, editor.shapes.dims(plan.match.X)
        rows = None if x is None else sizes.product(x[:-1]).value
        weight = editor.tensor(match.W)
        assert weight is not None
        no_gain = quantized_linear_no_gain(rows, *tensor_dims(weight))
        return editor.candidate(match.name, (match.X, match.W), match.Y, match.gemm, no_gain)

    def rewrite(self, plan: QuantizedPlan, editor: Editor) -> str:
        match, last = plan.match, plan.match.layer[-1]
        parameters = {"scales": plan.scale, "zero_points": plan.zero_point, "bias": plan.bias}
        scale, zero_point, bias = (
            value if isinstance(value, ir.Value) else editor.initializer(match.gemm, value, f"{match.W.name}_{hint}")
            for hint, value in parameters.items()
        )
        attributes = {} if match.form is None else match.form.attributes
        new = Builder(editor, last).emit(match.name, [match.X, match.W, scale, zero_point, bias], attributes)
        editor.replace(
            [*reversed(match.layer), match.scales, match.quantize], [new], {match.Y: new.outputs[0]}, anchor=last
        )
        return became(len(match.layer) + 2, match.name)


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


def _bias(match: QuantizedMatch, N: int, editor: Editor) -> ir.Value | Array:
    if match.add is None:
        return np.zeros(N, np.float32)
    y = match.rescaled[-1].outputs[0]
    return _row(
        other_input(match.add, y), "the bias", editor.shapes.rank(y), np.dtype(np.float32), N, match.add, editor
    )


def _row(
    value: ir.Value | None,
    what: str,
    rank: int | None,
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
    if array.shape == (N,) and array.dtype == dtype:
        return value
    return row_of_columns(array.astype(dtype), what, N, rank, node)
