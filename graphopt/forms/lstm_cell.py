"""Recognises one time step of an LSTM that a model computes with elementary operators.

    c = Sigmoid(f) c' + Sigmoid(i) Tanh(g);  h = Sigmoid(o) Tanh(c);  i, o, f, g each X W + h' R + b

S. Hochreiter and J. Schmidhuber, "Long Short-Term Memory", 1997; F. Gers et al., "Learning to Forget", 2000.

PyTorch exports LSTMCell as two Gemms, an Add and a Split. Keras with `unroll=True` has MatMuls and Adds, and
TensorFlow's LSTMCell has one MatMul of the concatenated input and state. Models written by hand also slice the sum, or
multiply for each gate separately.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from graphopt.forms.halves import slice_of_last_axis
from graphopt.graph.editor import Editor
from graphopt.graph.traversal import tensor_dims
from graphopt.graph.view import attribute_float, attribute_int, is_op, producer_of, require_input
from graphopt.ops.schema import NUMPY_BROADCASTING_OPSET, Array
from graphopt.remarks import Code, Refusal

Range = tuple[int, int]  # the first index, and the one after the last


@dataclass(frozen=True)
class LstmCell:
    """One time step.

    Attributes:
        h: the new hidden state.
        c: the new cell state.
        previous_c: the cell state before the step.
        gates: the inputs of the activations of the gates, in ONNX's order: input, output, forget, cell.
        nodes: the nodes from the gates' activations to h, consumers first.
    """

    h: ir.Value
    c: ir.Value
    previous_c: ir.Value
    gates: tuple[ir.Value, ...]
    nodes: tuple[ir.Node, ...]


@dataclass(frozen=True)
class Part:
    """A part of a constant: the weight of one gate and one input, or a bias of one gate.

    Attributes:
        value: the constant.
        columns: the gate's index range along the last axis of the matrix multiplication's result, or of the bias.
        rows: the index range along the weight's input axis; None for a bias.
        transposed: whether the weight is stored as [columns, rows], as for Gemm with transB.
    """

    value: ir.Value
    columns: Range
    rows: Range | None = None
    transposed: bool = False

    def array(self, editor: Editor) -> Array:
        """Returns the weight [columns, rows], or the bias [columns]."""
        stored = editor.constant(self.value)
        assert stored is not None
        start, stop = self.columns
        if self.rows is not None:
            return (stored if self.transposed else stored.T)[start:stop, slice(*self.rows)]
        row = np.atleast_2d(stored)[0]
        return np.full(stop - start, row[0]) if row.size == 1 else row[start:stop]


@dataclass(frozen=True)
class Gate:
    """The input of a gate's activation, as a sum.

    Attributes:
        size: the number of hidden units.
        matmuls: the inputs and their weights.
        biases: the constant addends.
        nodes: the nodes that compute the sum.
    """

    size: int
    matmuls: tuple[tuple[ir.Value, Part], ...]
    biases: tuple[Part, ...]
    nodes: tuple[ir.Node, ...]


def cell_of(tanh: ir.Node) -> LstmCell | None:
    """Returns the time step of an LSTM that ends with `tanh` of its cell state; None if there is none."""
    c = tanh.inputs[0]
    total = producer_of(c, "Add")
    output = _product_with_sigmoid(tanh)
    if c is None or total is None or output is None:
        return None
    h, o = output
    for forget, update in ((0, 1), (1, 0)):
        kept, added = (producer_of(total.inputs[i], "Mul") for i in (forget, update))
        gated, carried = _operands(added, "Tanh"), _operands(kept, None)
        if kept is None or added is None or gated is None or carried is None:
            continue
        (i, g), (f, previous) = gated, carried
        nodes = (h, tanh, o, total, kept, added, f, i)
        tanh_g = g.producer()
        if tanh_g is None or any(n.graph is not tanh.graph for n in (*nodes, tanh_g)):
            return None
        gates = tuple(require_input(n, 0) for n in (i, o, f, tanh_g))
        return LstmCell(h.outputs[0], c, previous, gates, (*nodes, tanh_g))
    return None


def _product_with_sigmoid(tanh: ir.Node) -> tuple[ir.Node, ir.Node] | None:
    """Returns the Mul that multiplies the result of `tanh` by a Sigmoid, and the Sigmoid."""
    for mul in tanh.outputs[0].consumers():
        if is_op(mul, "Mul"):
            for operand in mul.inputs:
                if (sigmoid := producer_of(operand, "Sigmoid")) is not None:
                    return mul, sigmoid
    return None


def _operands(mul: ir.Node | None, other: str | None) -> tuple[ir.Node, ir.Value] | None:
    """Returns the Sigmoid that a Mul reads and the other operand, which an operator `other` must produce."""
    if mul is None:
        return None
    for a, b in (mul.inputs, reversed(mul.inputs)):
        sigmoid = producer_of(a, "Sigmoid")
        if sigmoid is not None and b is not None and (other is None or producer_of(b, other) is not None):
            return sigmoid, b
    return None


def total(parts: Iterable[Part], editor: Editor) -> Array | None:
    """Returns the sum of weights or biases, computed in float64, in their element type; None without parts."""
    arrays = [part.array(editor) for part in parts]
    if len(arrays) < 2:
        return arrays[0] if arrays else None
    return np.sum(arrays, axis=0, dtype=np.float64).astype(arrays[0].dtype)


def gate_of(value: ir.Value, editor: Editor) -> Gate:
    """Returns the input [batch, hidden] of a gate's activation as a sum.

    Raises:
        Refusal: the value is not a sum of constants and of products with constant weights.
    """
    size = editor.shapes.last(value)
    if size is None or size.value is None:
        raise Refusal(Code.UNKNOWN_SHAPE, f"the last dimension of {value.name} is not known", value.producer())
    matmuls: list[tuple[ir.Value, Part]] = []
    biases: list[Part] = []
    nodes: list[ir.Node] = []
    work: list[tuple[ir.Value, Range]] = [(value, (0, size.value))]
    while work:
        addend, columns = work.pop()
        if editor.is_constant(addend):
            biases.append(_bias(addend, columns, editor))
            continue
        node = producer_of(addend, "Add", "Split", "Slice", "Gemm", "MatMul")
        if node is None:
            source = addend.producer()
            what = addend.name if source is None else f"the output of {source.op_type}"
            raise Refusal(Code.UNSUPPORTED_OP, f"a gate adds {what}", source)
        nodes.append(node)
        if node.op_type == "Add":
            if editor.opset(node) < NUMPY_BROADCASTING_OPSET:
                raise Refusal(Code.OPSET, f"graphopt does not know Add of opset {editor.opset(node)}", node)
            work += [(_operand(node, i, editor), columns) for i in (1, 0)]
        elif node.op_type in ("Split", "Slice"):
            start = _start(node, addend, editor)
            work.append((require_input(node, 0), (columns[0] + start, columns[1] + start)))
        else:
            matmuls += _matmuls(node, columns, editor, nodes)
            if node.op_type == "Gemm" and len(node.inputs) > 2 and node.inputs[2] is not None:
                work.append((node.inputs[2], columns))
    return Gate(size.value, tuple(matmuls), tuple(biases), tuple(nodes))


def _operand(add: ir.Node, index: int, editor: Editor) -> ir.Value:
    """Returns an operand of an Add: a constant, or a value as wide as the result."""
    value = require_input(add, index)
    if not editor.is_constant(value) and editor.shapes.last(value) != editor.shapes.last(add.outputs[0]):
        raise Refusal(Code.UNKNOWN_SHAPE, f"{value.name} may have fewer columns than {add.outputs[0].name}", add)
    return value


def _start(node: ir.Node, value: ir.Value, editor: Editor) -> int:
    """Returns the first index of an output of a Split or Slice along the last axis."""
    x = require_input(node, 0)
    if node.op_type == "Split":
        before = [editor.shapes.last(v) for v in node.outputs[: value.index()]]
        if not editor.shapes.is_last(attribute_int(node, "axis", 0), x):
            raise Refusal(Code.WRONG_AXIS, "the gates are not split along the last axis", node)
        starts = [None if size is None else size.value for size in before]
        if None in starts:
            raise Refusal(Code.UNKNOWN_SHAPE, f"the sizes of the outputs of {node.name} are not known", node)
        return sum(n for n in starts if n is not None)
    start, _, step = slice_of_last_axis(node, editor) or (None, None, None)
    if start is None or step != 1:
        raise Refusal(Code.WRONG_AXIS, "a gate is not a contiguous slice of the last axis", node)
    length = editor.shapes.last(x)
    if start < 0 and (length is None or length.value is None):
        raise Refusal(Code.UNKNOWN_SHAPE, f"the last dimension of {x.name} is not known", node)
    return start if start >= 0 or length is None else max(start + (length.value or 0), 0)


def _bias(value: ir.Value, columns: Range, editor: Editor) -> Part:
    stored = editor.constant(value)
    assert stored is not None
    if stored.ndim > 2:
        raise Refusal(Code.WRONG_SHAPE, f"the bias {value.name} has rank {stored.ndim}", value.producer())
    if stored.ndim == 2 and not (stored == stored[:1]).all():
        raise Refusal(Code.WRONG_SHAPE, f"the rows of the bias {value.name} differ", value.producer())
    return Part(value, columns)


def _matmuls(node: ir.Node, columns: Range, editor: Editor, nodes: list[ir.Node]) -> Iterator[tuple[ir.Value, Part]]:
    """Yields the inputs of a matrix multiplication with their weights; a concatenated input has several."""
    transposed = False
    if node.op_type == "Gemm":
        if editor.opset(node) < NUMPY_BROADCASTING_OPSET:
            raise Refusal(Code.OPSET, f"graphopt does not know Gemm of opset {editor.opset(node)}", node)
        scales = attribute_float(node, "alpha", 1.0), attribute_float(node, "beta", 1.0)
        if scales != (1.0, 1.0) or attribute_int(node, "transA", 0):
            raise Refusal(Code.ATTRIBUTE, "Gemm scales its operands or transposes its input", node)
        transposed = attribute_int(node, "transB", 0) != 0
    x, weight = require_input(node, 0), require_input(node, 1)
    tensor = editor.tensor(weight)
    if tensor is None:
        editor.require_constant(weight, "the weight", node)
    assert tensor is not None
    shape = tensor_dims(tensor)
    if len(shape) != 2:
        raise Refusal(Code.WRONG_RANK, f"the weight {weight.name} has rank {len(shape)}", node)
    concat = producer_of(x, "Concat")
    parts = [x]
    if concat is not None and editor.shapes.is_last(attribute_int(concat, "axis", 0), x):
        nodes.append(concat)
        parts = [v for v in concat.inputs if v is not None]
    start = 0
    for part in parts:
        size = editor.shapes.last(part)
        if len(parts) > 1 and (size is None or size.value is None):
            raise Refusal(Code.UNKNOWN_SHAPE, f"the last dimension of {part.name} is not known", node)
        rows = shape[transposed] if len(parts) == 1 or size is None else size.value or 0
        yield part, Part(weight, columns, (start, start + rows), transposed)
        start += rows
