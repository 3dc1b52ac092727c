"""Layers as ONNX Runtime's quantize_dynamic writes them.

A layer is act(Cast(G(Q(X), W, x_zero, w_zero)) * (x_scale * w_scale) + b). G is MatMulInteger or ConvInteger, and
Q(X), x_scale, x_zero = DynamicQuantizeLinear(X).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from graphopt.forms.activation import Form, form_of
from graphopt.forms.affine import row_of_columns
from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.view import (
    attribute_int,
    other_input,
    producer_of,
    require_contained,
    require_input,
    require_one_graph,
    sole_reader,
)
from graphopt.ops import OPS
from graphopt.ops.schema import Array
from graphopt.remarks import Code, Refusal, became


@dataclass(frozen=True)
class DynamicLayer:
    """A layer with 8-bit weights.

    Attributes:
        stem: the name of the operator that computes the layer, without the activation.
        quantize: the DynamicQuantizeLinear.
        scales: the Mul of both scales.
        gemm: the MatMulInteger or ConvInteger.
        rescaled: the Cast and the Mul by the scales.
        w_scale: the scale of W.
        add: the Add of the bias, or None.
        form: the activation, or None.
    """

    stem: str
    quantize: ir.Node
    scales: ir.Node
    gemm: ir.Node
    rescaled: tuple[ir.Node, ir.Node]
    w_scale: ir.Value
    add: ir.Node | None
    form: Form | None

    @property
    def name(self) -> str:
        return self.stem + ("" if self.form is None else self.form.suffix)

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

    @property
    def attributes(self) -> Mapping[str, float]:
        """The attributes of the activation."""
        return {} if self.form is None else self.form.attributes

    def constants(self, parameters: Mapping[str, ir.Value | Array], editor: Editor) -> list[ir.Value]:
        """Returns the parameters as values: those of the model, and new initializers. The keys end their names."""
        return [
            value if isinstance(value, ir.Value) else editor.initializer(self.gemm, value, f"{self.W.name}_{hint}")
            for hint, value in parameters.items()
        ]

    def replace(self, builder: Builder, y: ir.Value, editor: Editor) -> str:
        """Replaces all nodes by those of the builder, with the result y; returns the text of the remark."""
        nodes = [*reversed(self.layer), self.scales, self.quantize]
        editor.replace(nodes, builder.nodes, {self.Y: y}, anchor=self.layer[-1])
        return became(len(nodes), self.name)


def dynamic_layer(stem: str, node: ir.Node, editor: Editor) -> DynamicLayer | None:
    """Returns the layer of a MatMulInteger or ConvInteger, with its bias and activation; None if there is none.

    Args:
        stem: the name of the new operator without activation. Activations that it does not support are not fused.
        node: the MatMulInteger or ConvInteger.
        editor: the model.
    """
    quantize = producer_of(node.inputs[0], "DynamicQuantizeLinear")
    zero_point = node.inputs[2] if len(node.inputs) > 2 else None
    cast = sole_reader(node.outputs[0], "Cast")
    rescale = None if cast is None else sole_reader(cast.outputs[0], "Mul")
    if quantize is None or cast is None or rescale is None:
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
    match = DynamicLayer(stem, quantize, scales, node, (cast, rescale), w_scale, add, form)
    return match if _can_fuse_activation(match) else replace(match, form=None)


def _can_fuse_activation(match: DynamicLayer) -> bool:
    if match.form is None:
        return True
    try:
        match.form.require_closed()
        require_contained(match.layer, match.Y)
        require_one_graph(match.layer, match.gemm)
    except Refusal:
        return False
    return match.name in OPS


def bias_row(match: DynamicLayer, axes: int | None, N: int, editor: Editor) -> ir.Value | Array:
    """Returns the bias as [N]: the model's value, or a new array; `axes` as in `parameter_row`.

    Raises:
        Refusal: NOT_CONSTANT, OVERRIDABLE or WRONG_SHAPE.
    """
    if match.add is None:
        return np.zeros(N, np.float32)
    y = match.rescaled[-1].outputs[0]
    rank = editor.shapes.rank(y)
    value = other_input(match.add, y)
    return parameter_row(value, "the bias", rank, axes, np.dtype(np.float32), N, match.add, editor)


def parameter_row(
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
