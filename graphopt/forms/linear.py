"""A common view of Conv, ConvTranspose, Gemm and MatMul with constant weights: Y = L(X; W) + b, linear in X and W.

Folding needs two facts: which axes of W are the output and input channels, and how a constant shift of X changes b.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from graphopt.forms.affine import WEIGHT_TYPES, per_channel, require_finite
from graphopt.forms.scaled_weight import ScaledWeight, is_streamed, scaled_rows
from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.operators.traits import LINEAR
from graphopt.graph.traversal import tensor_dims
from graphopt.graph.view import (
    attribute_float,
    attribute_int,
    attribute_ints,
    attribute_string,
    is_op,
    is_read_once,
    other_input,
    producer_of,
    require_input,
    require_one_graph,
)
from graphopt.ops.schema import NUMPY_BROADCASTING_OPSET, Array
from graphopt.remarks import Code, Refusal

OPERATORS = frozenset(("", op_type) for op_type in LINEAR)


@dataclass(frozen=True)
class Linear:
    """One linear operator.

    Attributes:
        node: the operator.
        add: the Add of a constant bias after a MatMul; None if there is none, and for the other operators.
    """

    node: ir.Node
    add: ir.Node | None = None

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        """The nodes of the operator, consumers first."""
        return (self.node,) if self.add is None else (self.add, self.node)

    @property
    def X(self) -> ir.Value:
        return require_input(self.node, 0)

    @property
    def W(self) -> ir.Value:
        return require_input(self.node, 1)

    @property
    def Y(self) -> ir.Value:
        return (self.add or self.node).outputs[0]

    @property
    def bias(self) -> ir.Value | None:
        if self.add is not None:
            return other_input(self.add, self.node.outputs[0])
        if self.node.op_type == "MatMul":
            return None
        return self.node.inputs[2] if len(self.node.inputs) > 2 else None

    @property
    def channel_axis(self) -> int:
        """The axis of Y (and of X) that holds channels."""
        return -1 if self.node.op_type == "MatMul" else 1


@dataclass(frozen=True)
class Folded:
    """New weight and bias of a linear operator, in its weight's dtype; `bias` is None if no bias is needed."""

    W: Array | ScaledWeight
    bias: Array | None


@dataclass(frozen=True)
class FoldCandidate:
    """A node that scales and shifts each channel of X, and the linear operators into which it can be folded.

    Attributes:
        node: the node; its result is its first output.
        X: its input.
        before: the linear operator that produces X, or None.
        after: the linear operator that is the only reader of the result, or None.
        transpose: the Transpose between `before` and the node, or None.
    """

    node: ir.Node
    X: ir.Value
    before: Linear | None
    after: Linear | None
    transpose: ir.Node | None = None

    def fold(self, into_before: Callable[[Linear], Folded], into_after: Callable[[Linear], Folded]) -> FoldPlan:
        """Folds the node into the operator before it, or else into the one after it.

        Raises:
            Refusal: the first reason, if the node can be folded into neither.
        """
        first: Refusal | None = None
        for linear, fold in ((self.before, into_before), (self.after, into_after)):
            if linear is None:
                continue
            try:
                require_one_graph([linear.node], self.node)
                return FoldPlan(self, linear, fold(linear))
            except Refusal as refusal:
                first = first or refusal
        assert first is not None
        raise first


@dataclass(frozen=True)
class FoldPlan:
    """A candidate, the operator into which it is folded, and that operator's new weight and bias."""

    candidate: FoldCandidate
    linear: Linear
    folded: Folded

    def rewrite(self, editor: Editor) -> str:
        """Gives the operator its new weight and bias and removes the node; returns a text for the remark."""
        linear, folded, node = self.linear, self.folded, self.candidate.node
        kind = linear.node.op_type  # before a MatMul becomes a Gemm
        if linear is self.candidate.before:
            new = rewire(linear, folded, linear.X, editor)
            new += () if self.candidate.transpose is None else (self.candidate.transpose,)
            for changed in new[:-1]:  # renamed, because its elements change
                changed.outputs[0].name = editor.unique_name(f"{changed.outputs[0].name}_folded")
            editor.replace([node], new, {node.outputs[0]: new[-1].outputs[0]}, anchor=node)
            return f"folded into the weights of {kind} before it"
        new = rewire(linear, folded, self.candidate.X, editor)
        outputs = {} if new[-1] is linear.node else {linear.Y: new[-1].outputs[0]}
        editor.replace([node], new, outputs, anchor=linear.node)
        return f"folded into the weights of {kind} after it"


def linear_before(value: ir.Value, editor: Editor) -> Linear | None:
    """Returns the linear operator that produces `value`, or None."""
    node = value.producer()
    if node is None:
        return None
    if (node.domain, node.op_type) in OPERATORS:
        return Linear(node)
    if not is_op(node, "Add"):
        return None
    for operand, other in (node.inputs, reversed(node.inputs)):
        producer = producer_of(operand, "MatMul")
        if producer is None or not editor.is_constant(other):
            continue
        if producer.graph is node.graph and is_read_once(producer.outputs[0]):
            return Linear(producer, node)
    return None


def linear_after(value: ir.Value) -> Linear | None:
    """Returns the linear operator that is the only reader of `value` and reads it as X, or None."""
    if not is_read_once(value):
        return None
    (use,) = value.uses()
    return Linear(use.node) if (use.node.domain, use.node.op_type) in OPERATORS and use.idx == 0 else None


def output_rank(linear: Linear, editor: Editor) -> int | None:
    """Returns the rank of Y, which for a convolution is the rank of its weight; None if it is unknown."""
    if linear.node.op_type in ("Conv", "ConvTranspose"):
        return editor.shapes.rank(linear.W)
    return 2 if linear.node.op_type == "Gemm" else editor.shapes.rank(linear.Y) or editor.shapes.rank(linear.X)


def channels(linear: Linear, editor: Editor) -> tuple[int, int]:
    """Returns the numbers of input and output channels.

    Raises:
        Refusal: NOT_CONSTANT, OVERRIDABLE, QUANTIZED, WRONG_DTYPE, WRONG_RANK, WRONG_SHAPE or OPSET.
    """
    node = linear.node
    tensor = editor.tensor(linear.W)
    if tensor is None:
        editor.require_constant(linear.W, "the weight", node)
    assert tensor is not None
    if tensor.dtype not in WEIGHT_TYPES:
        raise Refusal(Code.WRONG_DTYPE, f"the weight is {tensor.dtype}", node)
    shape = tensor_dims(tensor)
    if node.op_type in ("Conv", "ConvTranspose"):
        if len(shape) < 3:
            raise Refusal(Code.WRONG_RANK, f"the weight has shape {shape}", node)
        group = attribute_int(node, "group", 1)
        if group < 1 or shape[0] % group:
            raise Refusal(Code.WRONG_SHAPE, f"the weight has shape {shape} and {group} groups", node)
        return (shape[1] * group, shape[0]) if node.op_type == "Conv" else (shape[0], shape[1] * group)
    if len(shape) != 2:
        raise Refusal(Code.WRONG_RANK, f"the weight has rank {len(shape)}", node)
    if node.op_type == "Gemm":
        if editor.opset(node) < NUMPY_BROADCASTING_OPSET:
            raise Refusal(Code.OPSET, f"graphopt does not know Gemm of opset {editor.opset(node)}", node)
        if attribute_int(node, "transB", 0):
            return shape[1], shape[0]
    return shape[0], shape[1]


def fold_after(linear: Linear, scale: Array, shift: Array, editor: Editor) -> Folded:
    """Folds scale * Y + shift into the operator; both are float64 [output channels].

    Raises:
        Refusal: the bias is not constant or has another shape, or a folded value overflows.
    """
    W, bias = _weight_and_bias(linear, editor)
    needs_bias = bias is not None or bool(shift.any())
    folded_bias = (0.0 if bias is None else bias) * scale + shift if needs_bias else None
    return _folded(linear, W, _factors_of_outputs(linear, W, scale), folded_bias)


def fold_before(linear: Linear, scale: Array, shift: Array, editor: Editor) -> Folded:
    """Folds scale * X + shift into an operator that reads it; both are float64 [input channels].

    Raises:
        Refusal: PADDED if there is a shift, and the operator is a ConvTranspose or pads X with zeros, which get no
            shift; WRONG_AXIS if Gemm transposes X; or a reason of `fold_after`.
    """
    node = linear.node
    if node.op_type == "Gemm" and attribute_int(node, "transA", 0):
        raise Refusal(Code.WRONG_AXIS, "Gemm transposes its input", node)
    shifted = bool(shift.any())
    if shifted and node.op_type == "ConvTranspose":
        raise Refusal(
            Code.PADDED, "a shift is added before a transposed convolution, which uses fewer taps at its borders", node
        )
    if shifted and node.op_type == "Conv":
        auto_pad = attribute_string(node, "auto_pad", "NOTSET")
        pads = attribute_ints(node, "pads", ())
        if auto_pad not in ("NOTSET", "VALID", "") or (auto_pad != "VALID" and any(pads)):
            raise Refusal(
                Code.PADDED, f"auto_pad is {auto_pad}, pads are {list(pads)}, and a shift is added before them", node
            )
    W, bias = _weight_and_bias(linear, editor)
    if shifted:
        alpha = attribute_float(node, "alpha", 1.0) if node.op_type == "Gemm" else 1.0
        through = scaled_rows(W, _factors_of_inputs(linear, W, shift) * alpha)
        if node.op_type == "Conv" or _transposed(linear):
            added = np.concatenate([rows.sum(axis=tuple(range(1, rows.ndim))) for rows in through])
        else:
            added = np.sum([rows.sum(axis=0) for rows in through], axis=0)
        bias = added if bias is None else bias + added
    return _folded(linear, W, _factors_of_inputs(linear, W, scale), bias)


def rewire(linear: Linear, folded: Folded, X: ir.Value, editor: Editor) -> list[ir.Node]:
    """Gives the operator its new weight and bias, in place.

    Returns:
        The nodes of the operator; the last one produces Y.
    """
    node = linear.node
    inputs: list[ir.Value | None] = [X, editor.initializer(node, folded.W, f"{linear.W.name}_folded")]
    if folded.bias is None:
        editor.rewire(node, inputs)
        return [node]
    label = f"{linear.bias.name}_folded" if linear.bias is not None else f"{linear.W.name}_bias"
    bias = editor.initializer(node, folded.bias, label)
    if node.op_type != "MatMul":
        editor.rewire(node, [*inputs, bias], {"beta": 1.0} if node.op_type == "Gemm" else None)
        return [node]
    if linear.add is None and editor.shapes.rank(X) == 2 and editor.opset(node) >= NUMPY_BROADCASTING_OPSET:
        editor.rewire(node, [*inputs, bias], op_type="Gemm")
        return [node]
    editor.rewire(node, inputs)
    if linear.add is None:
        builder = Builder(editor, node, node.name or "MatMul")
        builder.op("Add", node.outputs[0], bias)
        editor.add_after(node.outputs[0], builder.nodes)
        return [node, *builder.nodes]
    editor.rewire(linear.add, [node.outputs[0], bias])
    return [node, linear.add]


def _weight_and_bias(linear: Linear, editor: Editor) -> tuple[ir.TensorProtocol, Array | None]:
    """Returns W, and the bias (times Gemm's beta) in float64, in a shape that broadcasts to Y; None if it is absent."""
    node = linear.node
    W = editor.tensor(linear.W)
    assert W is not None, "`channels` requires a constant"
    if linear.bias is None:
        return W, None
    bias = editor.require_constant(linear.bias, "the bias", node).astype(np.float64)
    _, M = channels(linear, editor)
    if node.op_type == "Gemm":
        if bias.ndim > 2 or (bias.ndim > 0 and bias.shape[-1] not in (1, M)):
            raise Refusal(Code.WRONG_SHAPE, f"C has shape {bias.shape}, and the result has {M} columns", node)
        bias = bias * attribute_float(node, "beta", 1.0)
    elif node.op_type == "MatMul":
        bias = per_channel(bias, editor.shapes.rank(node.outputs[0]), -1, M, node)
    elif bias.shape != (M,):
        raise Refusal(Code.WRONG_SHAPE, f"the bias has shape {bias.shape}, and the result has {M} channels", node)
    return W, bias


def _transposed(linear: Linear) -> bool:
    return linear.node.op_type == "Gemm" and attribute_int(linear.node, "transB", 0) != 0


def _factors_of_outputs(linear: Linear, W: ir.TensorProtocol, factor: Array) -> Array:
    """Returns one factor for each output channel in a shape that broadcasts to W."""
    shape = tensor_dims(W)
    if linear.node.op_type == "Conv":
        return factor.reshape(-1, *([1] * (len(shape) - 1)))
    if linear.node.op_type == "ConvTranspose":
        return _grouped_columns(linear, shape, factor)
    return factor[:, None] if _transposed(linear) else factor[None, :]


def _factors_of_inputs(linear: Linear, W: ir.TensorProtocol, factor: Array) -> Array:
    """Returns one factor for each input channel in a shape that broadcasts to W."""
    shape = tensor_dims(W)
    if linear.node.op_type == "Conv":
        return _grouped_columns(linear, shape, factor)
    if linear.node.op_type == "ConvTranspose":
        return factor.reshape(-1, *([1] * (len(shape) - 1)))
    return factor[None, :] if _transposed(linear) else factor[:, None]


def _grouped_columns(linear: Linear, shape: Sequence[int], factor: Array) -> Array:
    """Returns factors [rows, columns, 1..] for W [rows, columns of one group, k..] from `factor` [groups * columns]."""
    group = attribute_int(linear.node, "group", 1)
    rows, columns = shape[:2]
    by_row = np.repeat(factor.reshape(group, columns), rows // group, axis=0)
    return by_row.reshape(rows, columns, *([1] * (len(shape) - 2)))


def _folded(linear: Linear, W: ir.TensorProtocol, factor: Array, bias: Array | None) -> Folded:
    """Casts W * factor and the bias to W's dtype.

    Raises:
        Refusal: NOT_FINITE if an element is not finite after the cast.
    """
    node, dtype = linear.node, W.dtype.numpy()
    weight: Array | ScaledWeight
    if is_streamed(W):
        weight = ScaledWeight(W, factor)
        for rows in weight.blocks():
            require_finite(rows, dtype, "the folded weight", node)
    else:
        (wide,) = scaled_rows(W, factor)
        weight = require_finite(wide, dtype, "the folded weight", node)
    return Folded(weight, None if bias is None else require_finite(bias, dtype, "the folded bias", node))
