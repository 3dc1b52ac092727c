"""Creates nodes with their names, types and shapes.

    b = Builder(editor, anchor)
    y = b.op("Mul", x, b.initializer(scale, "scale"))
    editor.replace([anchor], b.nodes, {anchor.outputs[0]: y}, anchor=anchor)

Unlike with onnx_ir's tape.Builder, names are unique in the whole model, including its bodies and functions. The nodes
of a branch can therefore replace its If.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from graphopt.graph import inference
from graphopt.graph.editor import Attribute, Editor
from graphopt.graph.operators.arguments import signature, slices_by_attributes
from graphopt.graph.view import (
    attribute_ints,
    producer_of,
    require_input,
    to_channels_first,
    to_channels_last,
    use_count,
)
from graphopt.ops import DOMAIN, OPS
from graphopt.ops.schema import Array

# A dimension: an integer, or an int64 tensor of shape [1].
Dim = int | ir.Value


class Builder:
    """Creates nodes in order, for the graph of `anchor`. They are not in the graph yet.

    Attributes:
        editor: the editor of the model.
        anchor: a node of the graph.
        nodes: the created nodes.
        label: the prefix of their names; by default the anchor's name.
    """

    def __init__(self, editor: Editor, anchor: ir.Node, label: str | None = None) -> None:
        self.editor = editor
        self.anchor = anchor
        self.nodes: list[ir.Node] = []
        self.label = label or anchor.name or anchor.outputs[0].name or anchor.op_type

    @property
    def opset(self) -> int:
        """The version of ONNX's operators at the anchor."""
        return self.editor.opset_at(self.anchor)

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def outputs(
        self,
        op_type: str,
        *inputs: ir.Value | None,
        _count: int,
        _hint: str | None = None,
        _domain: str = "",
        **attributes: Any,
    ) -> Sequence[ir.Value]:
        """Creates a node and returns its outputs.

        Args:
            op_type: the operator.
            inputs: the inputs; None for an absent one.
            _count: the number of outputs.
            _hint: the node's name, made unique; by default the label and the operator.
            _domain: the operator's domain.
            attributes: the attributes by name.
        """
        name = self.editor.unique_node_name(f"{self.label}/{op_type}" if _hint is None else _hint)
        node = ir.node(op_type, inputs, attributes, domain=_domain, num_outputs=_count, name=name)
        for i, output in enumerate(node.outputs):
            output.name = self.editor.unique_name(f"{name}_out{i}" if _count > 1 else f"{name}_out")
        self.nodes.append(node)
        return node.outputs

    def op(
        self,
        op_type: str,
        *inputs: ir.Value | None,
        _hint: str | None = None,
        _domain: str = "",
        _dtype: ir.DataType | None = None,
        _like: ir.Value | None = None,
        **attributes: Any,
    ) -> ir.Value:
        """Creates a node and returns its only output, with element type `_dtype`, or type and shape of `_like`."""
        (y,) = self.outputs(op_type, *inputs, _count=1, _hint=_hint, _domain=_domain, **attributes)
        if _like is not None:
            y.type, y.shape = _like.type, _like.shape
        if _dtype is not None:
            y.type = ir.TensorType(_dtype)
        if _like is not None:
            inference.declare(self.editor.model, y)
        return y

    def copy(self, node: ir.Node, *inputs: ir.Value | None) -> ir.Value:
        """Creates a copy of a node with other inputs, and returns its only output."""
        attributes: dict[str, Any] = dict(node.attributes)
        return self.op(node.op_type, *inputs, _domain=node.domain, **attributes)

    def emit(self, name: str, inputs: Sequence[ir.Value], attributes: Mapping[str, Attribute]) -> ir.Node:
        """Creates a node of our domain and adds its function body to the model.

        In `legal` the pass must call `require_op`, which checks that the model may contain the operator.
        """
        spec, editor = OPS[name], self.editor
        assert len(inputs) == len(spec.inputs), f"{name} takes {spec.inputs}"
        assert attributes.keys() == spec.attributes.keys(), f"{name} has attributes {list(spec.attributes)}"
        typed = [ir.Attr(k, spec.attributes[k], v) for k, v in attributes.items()]
        label = editor.unique_node_name(f"{self.label}/{name}")
        node = ir.Node(DOMAIN, name, inputs, typed, num_outputs=len(spec.outputs), name=label)
        T = next((d for i in spec.inputs_of_T if (d := editor.dtype(inputs[i])) is not None), None)
        for i, output in enumerate(node.outputs):
            output.name = editor.unique_name(f"{label}_out{i}")
            dtype = ir.DataType.BFLOAT16 if spec.outputs[i] in spec.bfloat16 else T
            dtype = editor.dtype(inputs[0]) if spec.outputs_like_x else dtype
            output.type = None if dtype is None else ir.TensorType(dtype)
        editor.import_op(name, inputs, self.anchor)
        self.nodes.append(node)
        return node

    # -- created nodes -------------------------------------------------------------------------------------------------

    def prune(self, results: Collection[ir.Value]) -> None:
        """Removes the created nodes that do not contribute to `results`."""
        kept = []
        for node in reversed(self.nodes):
            if any(use_count(o) or o in results for o in node.outputs):
                kept.append(node)
            else:
                node.resize_inputs(0)
        self.nodes = kept[::-1]

    def discard(self) -> None:
        """Removes all created nodes, which would otherwise count as readers of their inputs."""
        for node in self.nodes:
            node.resize_inputs(0)
        self.nodes.clear()

    # -- constants -----------------------------------------------------------------------------------------------------

    def initializer(self, data: Array | ir.LazyTensor, hint: str) -> ir.Value:
        """Creates a constant in the anchor's graph, with the label and `hint` as its name."""
        return self.editor.initializer(self.anchor, data, f"{self.label}{hint}")

    def array(self, data: Array) -> ir.Value:
        """Creates a constant."""
        return self.initializer(np.asarray(data), "/constant")

    def number(self, value: float, dtype: ir.DataType) -> ir.Value:
        """Creates a scalar constant."""
        return self.array(np.array(value).astype(dtype.numpy()))

    def ints(self, *values: int) -> ir.Value:
        """Creates an int64 vector constant."""
        return self.array(np.array(values, np.int64))

    # -- operators -----------------------------------------------------------------------------------------------------

    def add(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.op("Add", a, b)

    def sub(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.op("Sub", a, b)

    def mul(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.op("Mul", a, b)

    def div(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.op("Div", a, b)

    def matmul(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.op("MatMul", a, b)

    def cast(self, x: ir.Value, dtype: ir.DataType) -> ir.Value:
        return self.op("Cast", x, to=int(dtype))

    def transpose(self, x: ir.Value, *perm: int) -> ir.Value:
        return self.op("Transpose", x, perm=perm)

    def in_channels_last(self, x: ir.Value, rank: int, _dtype: ir.DataType | None = None) -> ir.Value:
        """Returns x in channels-last layout.

        If a Transpose from channels last produces x, this is its input; otherwise it is the result of a new Transpose.
        """
        before = producer_of(x, "Transpose")
        if before is not None and attribute_ints(before, "perm", ()) == to_channels_first(rank):
            return require_input(before, 0)
        return self.op("Transpose", x, perm=to_channels_last(rank), _dtype=_dtype)

    def concat(self, values: Sequence[ir.Value], axis: int) -> ir.Value:
        return values[0] if len(values) == 1 else self.op("Concat", *values, axis=axis)

    def dim(self, x: ir.Value, axis: int) -> ir.Value:
        """Writes one dimension of x as an int64 tensor of shape [1]."""
        shape = self.op("Shape", x)
        return self.slice(shape, 0, axis, axis + 1 if axis != -1 else None)

    def shape(self, dims: Sequence[Dim]) -> ir.Value:
        """Writes an int64 vector of integers and tensors of shape [1]."""
        if all(isinstance(d, int) for d in dims):
            return self.ints(*(d for d in dims if isinstance(d, int)))
        return self.op("Concat", *(self.ints(d) if isinstance(d, int) else d for d in dims), axis=0)

    def reshape(self, x: ir.Value, *dims: Dim) -> ir.Value:
        return self.op("Reshape", x, self.shape(dims))

    def expand(self, x: ir.Value, *dims: Dim) -> ir.Value:
        return self.op("Expand", x, self.shape(dims))

    def slice(self, x: ir.Value, axis: int, start: Dim, end: Dim | None) -> ir.Value:
        """Writes a slice along one axis; an `end` of None is the end of the axis.

        If the opset's Slice has its bounds as attributes (`slices_by_attributes`), `start` and `end` must be integers.
        """
        if slices_by_attributes(self.opset):
            return self.op("Slice", x, axes=[axis], starts=[start], ends=[2**31 - 1 if end is None else end])
        bounds = [self.ints(d) if isinstance(d, int) else d for d in (start, 2**31 - 1 if end is None else end)]
        return self.op("Slice", x, *bounds, self.ints(axis))

    def split(self, x: ir.Value, sizes: Sequence[int], axis: int) -> Sequence[ir.Value]:
        if "split" in signature("Split", self.opset).attributes:
            return self.outputs("Split", x, _count=len(sizes), axis=axis, split=sizes)
        return self.outputs("Split", x, self.ints(*sizes), _count=len(sizes), axis=axis)

    def unsqueeze(self, x: ir.Value, *axes: int) -> ir.Value:
        return self._with_axes("Unsqueeze", x, axes)

    def squeeze(self, x: ir.Value, *axes: int) -> ir.Value:
        return self._with_axes("Squeeze", x, axes)

    def reduce(self, op_type: str, x: ir.Value, *axes: int, keepdims: int = 1) -> ir.Value:
        """Writes a reduction: ReduceSum, ReduceMean, ReduceMax, ..."""
        return self._with_axes(op_type, x, axes, keepdims=keepdims)

    def _with_axes(self, op_type: str, x: ir.Value, axes: Sequence[int], **attributes: Any) -> ir.Value:
        if "axes" in signature(op_type, self.opset).attributes:
            return self.op(op_type, x, axes=axes, **attributes)
        return self.op(op_type, x, self.ints(*axes), **attributes)

    def softmax(self, x: ir.Value) -> ir.Value:
        """Writes a Softmax over the last axis, which has the same meaning in every opset."""
        return self.op("Softmax", x, axis=-1)

    def arange(self, end: ir.Value) -> ir.Value:
        """Writes the vector 0, 1, ..., end - 1; `end` is an int64 tensor of shape [1]."""
        zero, one = self.number(0, ir.DataType.INT64), self.number(1, ir.DataType.INT64)
        return self.op("Range", zero, self.squeeze(end, 0), one)
