"""Nodes that compute Y = scale * X + shift with constants: inference BatchNormalization, Mul, Add, Sub, Div.

All arithmetic is in float64; callers cast once, when they write the folded values.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from graphopt.graph.editor import Editor
from graphopt.graph.operators.arguments import signature
from graphopt.graph.operators.traits import ARITHMETIC
from graphopt.graph.traversal import tensor_array
from graphopt.graph.view import attribute_float, attribute_int, require_input
from graphopt.ops.schema import NUMPY_BROADCASTING_OPSET, Array
from graphopt.remarks import Code, Refusal

WEIGHT_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)
ELEMENTWISE = frozenset(("", op_type) for op_type in ARITHMETIC)


@dataclass(frozen=True)
class Affine:
    """Y = scale * X + shift; both are float64 arrays that broadcast to X like the node's constant."""

    X: ir.Value
    scale: Array
    shift: Array


def batch_norm_affine(node: ir.Node, editor: Editor) -> Affine:
    """Returns scale and shift [C] of an inference BatchNormalization.

    S. Ioffe, C. Szegedy, "Batch Normalization", ICML 2015: scale = gamma / sqrt(var + epsilon),
    shift = beta - mean * scale.

    Raises:
        Refusal: training mode, an unknown operator version, statistics of each element (`spatial` is 0), parameters
            that are not constants of shape [C], or a scale or shift that is not finite.
    """
    opset = editor.opset(node)
    form = signature("BatchNormalization", opset)
    if any(o.name or o.uses() or o.is_graph_output() for o in node.outputs[1:]):
        raise Refusal(Code.TRAINING_MODE, "the statistics are outputs", node)
    if form.has_argument("training_mode") and attribute_int(node, "training_mode", 0) != 0:
        raise Refusal(Code.TRAINING_MODE, "training_mode is 1", node)
    if form.has_argument("is_test") and attribute_int(node, "is_test", 0) != 1:
        raise Refusal(Code.TRAINING_MODE, f"is_test is 0 at opset {opset}", node)
    if not form.since:
        raise Refusal(Code.OPSET, f"graphopt does not know BatchNormalization of opset {opset}", node)
    if form.has_argument("spatial") and attribute_int(node, "spatial", 1) != 1:
        raise Refusal(Code.ATTRIBUTE, "spatial is 0, so each element has its own statistics", node)
    x = require_input(node, 0)
    parameters = []
    for value, what in zip(node.inputs[1:5], ("scale", "B", "mean", "var"), strict=True):
        parameters.append(editor.require_constant(value, what, node))
    shapes = [p.shape for p in parameters]
    if len(shapes[0]) != 1 or shapes.count(shapes[0]) != 4:
        raise Refusal(Code.WRONG_SHAPE, f"the parameters have the shapes {shapes}", node)
    gamma, beta, mean, var = np.array(parameters, np.float64)
    radicand = var + attribute_float(node, "epsilon", 1e-5)
    if not ((radicand > 0) & (radicand < np.inf)).all():
        raise Refusal(Code.NOT_FINITE, "var + epsilon is not a positive number", node)
    scale = gamma / np.sqrt(radicand)
    shift = beta - mean * scale
    if not (np.isfinite(scale).all() and np.isfinite(shift).all()):
        raise Refusal(Code.NOT_FINITE, "the scale or the shift is not finite", node)
    return Affine(x, scale, shift)


def elementwise_operands(node: ir.Node, editor: Editor) -> tuple[ir.Value, ir.Value] | None:
    """Returns X and the constant of a Mul, Add, Sub or Div with one constant operand; None for other nodes.

    Raises:
        Refusal: OVERRIDABLE if callers may override the operand.
    """
    if (node.domain, node.op_type) not in ELEMENTWISE or editor.opset(node) < NUMPY_BROADCASTING_OPSET:
        return None
    a, b = node.inputs
    if a is None or b is None:
        return None
    first, second = editor.is_constant(a), editor.is_constant(b)
    if first == second:
        for value in (a, b):
            if value.is_initializer() and not first:
                raise Refusal(Code.OVERRIDABLE, f"{value.name} can be overridden", node)
        return None
    return (b, a) if first else (a, b)


def elementwise_affine(node: ir.Node, editor: Editor) -> Affine | None:
    """Returns the affine map of a Mul, Add, Sub or Div with one constant operand; None for other nodes, and for c / X.

    Raises:
        Refusal: OVERRIDABLE: see `elementwise_operands`; NOT_FINITE: the constant divisor contains a zero.
    """
    operands = elementwise_operands(node, editor)
    if operands is None:
        return None
    x, c = operands
    tensor = editor.tensor(c)
    if tensor is None or tensor.dtype not in WEIGHT_TYPES:
        return None
    number = tensor_array(tensor).astype(np.float64)
    if node.op_type in ("Add", "Sub"):
        one = np.ones(number.shape)
        if node.op_type == "Add":
            return Affine(x, one, number)
        return Affine(x, one, -number) if x is node.inputs[0] else Affine(x, -one, number)
    zero = np.zeros(number.shape)
    if node.op_type == "Mul":
        return Affine(x, number, zero)
    if x is node.inputs[1]:
        return None  # constant / x
    if (number == 0).any():
        raise Refusal(Code.NOT_FINITE, "the constant divisor contains a zero", node)
    return Affine(x, 1.0 / number, zero)


def per_channel(array: Array, rank: int | None, axis: int, channels: int, node: ir.Node) -> Array:
    """Returns a constant operand in the shape [channels]; it may vary only along one axis of X.

    Args:
        array: the operand; numpy aligns it with X from the right.
        rank: rank of X; None if unknown, which is accepted if `array` has rank 0, or has rank 1 and `axis` is -1.
        axis: the axis of X; -1 for the last.
        channels: size of that axis.
        node: the node that a refusal names.

    Raises:
        Refusal: WRONG_AXIS, WRONG_SHAPE, BROADCAST_GROWS or UNKNOWN_RANK.
    """
    if array.ndim == 0:
        return np.broadcast_to(array, (channels,))
    if rank is None and not (axis == -1 and array.ndim == 1):
        raise Refusal(Code.UNKNOWN_RANK, "the rank of the data is not known", node)
    if rank is not None and array.ndim > rank:
        raise Refusal(Code.BROADCAST_GROWS, f"a constant has shape {array.shape}, and the data has rank {rank}", node)
    dim = array.ndim - 1 if axis == -1 or rank is None else axis % rank - (rank - array.ndim)
    if array.size != (array.shape[dim] if 0 <= dim < array.ndim else 1):
        raise Refusal(Code.WRONG_AXIS, f"a constant of shape {array.shape} varies along another axis", node)
    if array.size not in (1, channels):
        raise Refusal(
            Code.WRONG_SHAPE, f"a constant has shape {array.shape}, and the data has {channels} channels", node
        )
    numbers = array.reshape(-1)
    return numbers if numbers.size == channels else np.broadcast_to(numbers, (channels,))


def column_of_channels(array: Array, channels: int, rank: int, node: ir.Node) -> Array:
    """Returns the slopes of a PRelu as [channels, 1, .., 1]; they may have a leading dimension of 1.

    Raises:
        Refusal: WRONG_SHAPE.
    """
    column = (channels, *[1] * (rank - 2))
    if array.shape not in (column, (1, *column)):
        raise Refusal(
            Code.WRONG_SHAPE, f"the slope has shape {list(array.shape)}, and the data has {channels} channels", node
        )
    return array.reshape(column)


def row_of_columns(array: Array, what: str, columns: int | None, rank: int | None, node: ir.Node) -> Array:
    """Returns a constant with one element for all columns of a matrix, or one for each, as [columns].

    Args:
        array: the constant; all its dimensions but the last are 1.
        what: its description in the refusal.
        columns: the number of columns; None if unknown.
        rank: the largest rank that the constant may have, at least 1; None: 1.
        node: the node that reads the constant.

    Raises:
        Refusal: WRONG_SHAPE.
    """
    is_row = array.ndim <= 1 or (rank is not None and array.ndim <= rank)
    if columns is None or not is_row or array.size not in (1, columns) or array.shape[-1:] not in ((), (array.size,)):
        detail = f"{what} has shape {array.shape}, and the result has {columns} columns"
        raise Refusal(Code.WRONG_SHAPE, detail, node)
    return np.ascontiguousarray(np.broadcast_to(array.reshape(-1), (columns,)))


def require_finite(array: Array, dtype: np.dtype[np.generic], what: str, node: ir.Node) -> Array:
    """Casts an array to `dtype`.

    Raises:
        Refusal: NOT_FINITE if an element is not finite after the cast.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(dtype)
    if not np.isfinite(cast).all():
        raise Refusal(Code.NOT_FINITE, f"{what} does not fit into {dtype}", node)
    return cast
