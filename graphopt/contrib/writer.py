"""Writes the standard ONNX of a definition, in the spelling of the model's opset."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir

from graphopt.contrib.schema import MIN_OPSET
from graphopt.graph.editor import Attribute, Editor
from graphopt.graph.view import use_count
from graphopt.ops.row_norm import LAYER_NORMALIZATION_OPSET
from graphopt.ops.schema import AXES_INPUT_OPSET, REDUCE_AXES_INPUT_OPSET, Array
from graphopt.remarks import Code, Refusal

SLICE_INPUTS_OPSET = 10

# A dimension: a number, or an int64 tensor of shape [1].
Dim = int | ir.Value


class Writer:
    """The nodes of one definition, in order. They read the node's inputs and are not in the graph yet."""

    def __init__(self, editor: Editor, anchor: ir.Node) -> None:
        self.editor = editor
        self.anchor = anchor
        self.nodes: list[ir.Node] = []
        self.opset = editor.opset_at(anchor)
        self._hint = anchor.name or anchor.outputs[0].name or anchor.op_type
        if self.opset < MIN_OPSET:
            raise Refusal(Code.OPSET, f"its definition needs opset {MIN_OPSET}, the model has {self.opset}", anchor)

    # -- what is known of the node's inputs ----------------------------------------------------------------------------

    def refuse(self, code: Code, detail: str) -> Refusal:
        return Refusal(code, detail, self.anchor)

    def dtype(self, *values: ir.Value | None) -> ir.DataType:
        """The element type that these values share, which one of them tells at least."""
        known = next((d for v in values if (d := self.editor.dtype(v)) is not None), None)
        if known is None:
            raise self.refuse(Code.WRONG_DTYPE, "the element type of its inputs is not known")
        return known

    def rank(self, value: ir.Value) -> int:
        rank = self.editor.shapes.rank(value)
        if rank is None:
            raise self.refuse(Code.UNKNOWN_RANK, f"the rank of {value.name}")
        return rank

    def size(self, value: ir.Value, axis: int) -> int | None:
        """One dimension of an input, where it is a number."""
        dims = self.editor.shapes.dims(value)
        found = None if dims is None else dims[axis]
        return None if found is None else found.value

    def require_size(self, value: ir.Value, axis: int) -> int:
        size = self.size(value, axis)
        if size is None:
            raise self.refuse(Code.UNKNOWN_SHAPE, f"dimension {axis} of {value.name}")
        return size

    def constant(self, value: ir.Value | None) -> Array | None:
        return self.editor.constant(value)

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def outputs(self, op: str, *inputs: ir.Value | None, outputs: int, **attributes: Attribute) -> Sequence[ir.Value]:
        node = self.editor.node(op, inputs, attributes, hint=f"{self._hint}/{op}", outputs=outputs)
        self.nodes.append(node)
        return node.outputs

    def op(self, op: str, *inputs: ir.Value | None, **attributes: Attribute) -> ir.Value:
        return self.outputs(op, *inputs, outputs=1, **attributes)[0]

    def array(self, data: Array) -> ir.Value:
        """A constant."""
        node = self.editor.node("Constant", [], hint=f"{self._hint}/Constant")
        tensor = ir.Tensor(np.asarray(data, order="C"), name=node.outputs[0].name)
        node.attributes.add(ir.AttrTensor("value", tensor))
        value = node.outputs[0]
        value.dtype, value.shape = tensor.dtype, tensor.shape
        self.nodes.append(node)
        return value

    def number(self, value: float, dtype: ir.DataType) -> ir.Value:
        """A scalar."""
        return self.array(np.array(value).astype(dtype.numpy()))

    def ints(self, *values: int) -> ir.Value:
        return self.array(np.array(values, np.int64))

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

    def channels_first(self, x: ir.Value) -> ir.Value:
        """[N, spatial.., C] as [N, C, spatial..]."""
        rank = self.rank(x)
        return self.transpose(x, 0, rank - 1, *range(1, rank - 1))

    def channels_last(self, x: ir.Value) -> ir.Value:
        """[N, C, spatial..] as [N, spatial.., C]."""
        return self.transpose(x, 0, *range(2, self.rank(x)), 1)

    def concat(self, values: Sequence[ir.Value], axis: int) -> ir.Value:
        return values[0] if len(values) == 1 else self.op("Concat", *values, axis=axis)

    def dim(self, x: ir.Value, axis: int) -> ir.Value:
        """One dimension as an int64 tensor of shape [1]."""
        shape = self.op("Shape", x)
        return self.slice(shape, 0, axis, axis + 1 if axis != -1 else None)

    def shape(self, dims: Sequence[Dim]) -> ir.Value:
        """An int64 vector of numbers and tensors of shape [1]."""
        if all(isinstance(d, int) for d in dims):
            return self.ints(*(d for d in dims if isinstance(d, int)))
        return self.op("Concat", *(self.ints(d) if isinstance(d, int) else d for d in dims), axis=0)

    def reshape(self, x: ir.Value, *dims: Dim) -> ir.Value:
        return self.op("Reshape", x, self.shape(dims))

    def expand(self, x: ir.Value, *dims: Dim) -> ir.Value:
        return self.op("Expand", x, self.shape(dims))

    def slice(self, x: ir.Value, axis: int, start: Dim, end: Dim | None) -> ir.Value:
        """Along one axis; None is to the end."""
        bounds = [self.ints(d) if isinstance(d, int) else d for d in (start, 2**31 - 1 if end is None else end)]
        return self.op("Slice", x, *bounds, self.ints(axis))

    def split(self, x: ir.Value, sizes: Sequence[int], axis: int) -> Sequence[ir.Value]:
        if self.opset < AXES_INPUT_OPSET:
            return self.outputs("Split", x, outputs=len(sizes), axis=axis, split=sizes)
        return self.outputs("Split", x, self.ints(*sizes), outputs=len(sizes), axis=axis)

    def unsqueeze(self, x: ir.Value, *axes: int) -> ir.Value:
        return self._with_axes("Unsqueeze", x, axes, AXES_INPUT_OPSET)

    def squeeze(self, x: ir.Value, *axes: int) -> ir.Value:
        return self._with_axes("Squeeze", x, axes, AXES_INPUT_OPSET)

    def reduce_sum(self, x: ir.Value, *axes: int, keepdims: int = 1) -> ir.Value:
        return self._with_axes("ReduceSum", x, axes, AXES_INPUT_OPSET, keepdims=keepdims)

    def reduce(self, op: str, x: ir.Value, *axes: int, keepdims: int = 1) -> ir.Value:
        """ReduceMean, ReduceMax, ..."""
        return self._with_axes(op, x, axes, REDUCE_AXES_INPUT_OPSET, keepdims=keepdims)

    def _with_axes(self, op: str, x: ir.Value, axes: Sequence[int], since: int, **attributes: Attribute) -> ir.Value:
        if self.opset < since:
            return self.op(op, x, axes=axes, **attributes)
        return self.op(op, x, self.ints(*axes), **attributes)

    def softmax(self, x: ir.Value) -> ir.Value:
        """Along the last axis, in every opset."""
        return self.op("Softmax", x, axis=-1)

    def arange(self, end: ir.Value) -> ir.Value:
        """0, 1, ... below `end`, an int64 tensor of shape [1]."""
        zero, one = self.number(0, ir.DataType.INT64), self.number(1, ir.DataType.INT64)
        return self.op("Range", zero, self.squeeze(end, 0), one)

    # -- what several definitions are made of --------------------------------------------------------------------------

    def layer_norm(self, x: ir.Value, gamma: ir.Value, beta: ir.Value | None, epsilon: float) -> ir.Value:
        """Over the last axis."""
        T = self.dtype(gamma, x)
        if self.opset >= LAYER_NORMALIZATION_OPSET:
            shift = () if beta is None else (beta,)
            return self.op("LayerNormalization", x, gamma, *shift, axis=-1, epsilon=epsilon)
        wide = x if T == ir.DataType.FLOAT else self.cast(x, ir.DataType.FLOAT)
        centred = self.sub(wide, self.reduce("ReduceMean", wide, -1))
        y = self.mul(self._narrow(self.div(centred, self.deviation(centred, epsilon)), T), gamma)
        return y if beta is None else self.add(y, beta)

    def rms_norm(self, x: ir.Value, gamma: ir.Value, epsilon: float) -> ir.Value:
        """Over the last axis."""
        T = self.dtype(gamma, x)
        wide = x if T == ir.DataType.FLOAT else self.cast(x, ir.DataType.FLOAT)
        return self.mul(self._narrow(self.div(wide, self.deviation(wide, epsilon)), T), gamma)

    def deviation(self, centred: ir.Value, epsilon: float) -> ir.Value:
        """sqrt(mean(x^2) + epsilon) over the last axis, in float32."""
        squares = self.op("Pow", centred, self.number(2.0, ir.DataType.FLOAT))
        variance = self.reduce("ReduceMean", squares, -1)
        return self.op("Sqrt", self.add(variance, self.number(epsilon, ir.DataType.FLOAT)))

    def _narrow(self, x: ir.Value, T: ir.DataType) -> ir.Value:
        return x if T == ir.DataType.FLOAT else self.cast(x, T)

    def prune(self, results: Collection[ir.Value]) -> None:
        """Drops nodes of which nothing reads a result."""
        kept = []
        for node in reversed(self.nodes):
            if any(use_count(o) or o in results for o in node.outputs):
                kept.append(node)
            else:
                _detach(node)
        self.nodes = kept[::-1]

    def discard(self) -> None:
        """Forgets the nodes, so that nothing counts as read by them."""
        for node in self.nodes:
            _detach(node)
        self.nodes.clear()


def _detach(node: ir.Node) -> None:
    for i in range(len(node.inputs)):
        node.replace_input_with(i, None)
