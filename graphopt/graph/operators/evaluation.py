"""Evaluates nodes with constant inputs in numpy, if numpy and every runtime compute the same bits.

The allow-list has integer, boolean and shape operators, data movement, and the floating-point operations that IEEE 754
defines exactly. It has no random operators, and none with library-dependent rounding (Pow, Exp, Erf, MatMul, ...).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from graphopt.graph.operators.arguments import Arguments, spans
from graphopt.ops.schema import Array

DTYPES = frozenset(
    {
        ir.DataType.BOOL,
        ir.DataType.INT8,
        ir.DataType.INT16,
        ir.DataType.INT32,
        ir.DataType.INT64,
        ir.DataType.UINT8,
        ir.DataType.UINT16,
        ir.DataType.UINT32,
        ir.DataType.UINT64,
        ir.DataType.FLOAT16,
        ir.DataType.FLOAT,
        ir.DataType.DOUBLE,
    }
)


class CannotEvaluateError(Exception):
    """The node cannot be evaluated, and is kept."""


@dataclass
class FoldableNode(Arguments):
    """One node with constant inputs.

    Attributes:
        node: the node; its attributes must not refer to attributes of a function.
        inputs: the inputs; None for an absent one.
        version: the opset of the node's domain.
        limit: the largest allowed number of elements of the result.
    """

    node: ir.Node
    inputs: tuple[Array | None, ...]
    version: int
    limit: int

    @property
    def opset(self) -> int:
        return self.version

    def input(self, i: int) -> Array:
        array = self.inputs[i] if i < len(self.inputs) else None
        if array is None:
            raise CannotEvaluateError
        return array

    def optional(self, i: int) -> Array | None:
        return self.inputs[i] if i < len(self.inputs) else None

    def integer_input(self, i: int) -> list[int] | None:
        array = self.optional(i)
        return None if array is None else [int(n) for n in array.reshape(-1)]

    def require_small(self, shape: Sequence[int]) -> tuple[int, ...]:
        if any(d < 0 for d in shape) or math.prod(shape) > self.limit:
            raise CannotEvaluateError
        return tuple(int(d) for d in shape)


def evaluate(call: FoldableNode) -> Array:
    """Computes the node's only output.

    Raises:
        CannotEvaluateError: the operator is not on the allow-list, or the result is too large or undefined.
    """
    function = _FUNCTIONS.get(call.node.op_type)
    if function is None or call.node.domain != "" or len(call.node.outputs) != 1:
        raise CannotEvaluateError
    try:
        with np.errstate(all="ignore"):
            result = np.asarray(function(call))
    except (ValueError, IndexError, TypeError, OverflowError, KeyError):  # an invalid node, which the runtime reports
        raise CannotEvaluateError from None
    call.require_small(result.shape)
    return result


def _elementwise(function: Callable[..., Array], oldest: int = 7) -> Callable[[FoldableNode], Array]:
    def call(c: FoldableNode) -> Array:
        arrays = [c.input(i) for i in range(len(c.inputs))]
        if c.opset < oldest or not arrays:
            raise CannotEvaluateError
        c.require_small(np.broadcast_shapes(*(a.shape for a in arrays)))
        return np.asarray(function(*arrays))

    return call


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.asarray(np.divide(a, b))
    if np.any(b == 0):
        raise CannotEvaluateError
    if a.dtype.kind == "u":
        return np.asarray(a // b)
    if np.any((a == np.iinfo(a.dtype).min) & (b == -1)):
        raise CannotEvaluateError  # the quotient overflows
    # ONNX's Div truncates toward zero, and numpy's // rounds down. np.abs would overflow for the lowest integer.
    floor = a // b
    return np.asarray(floor + ((floor * b != a) & ((a < 0) != (b < 0))), a.dtype)


def _mod(c: FoldableNode) -> Array:
    a, b = c.input(0), c.input(1)
    if a.dtype.kind == "f" or np.any(b == 0):
        raise CannotEvaluateError
    c.require_small(np.broadcast_shapes(a.shape, b.shape))
    return np.asarray(np.fmod(a, b) if c.attribute("fmod", 0) else np.mod(a, b))


def _fold(function: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    def reduce(*arrays: Array) -> Array:
        # Runtimes differ for NaN and signed zeros in Min and Max.
        if any(a.dtype.kind == "f" and (np.isnan(a).any() or (a == 0).any()) for a in arrays):
            raise CannotEvaluateError
        result = arrays[0]
        for array in arrays[1:]:
            result = function(result, array)
        return result

    return reduce


def cast(array: Array, dtype: np.dtype[Any]) -> Array:
    """Casts an array as ONNX Cast does.

    Raises:
        CannotEvaluateError: NaN, or a value beyond the range of the integer type, which ONNX leaves undefined.
    """
    if array.dtype.kind == "f" and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if not np.all(np.isfinite(array)):
            raise CannotEvaluateError
        truncated = np.trunc(array.astype(np.float64))
        if np.any(truncated < float(limits.min)) or np.any(truncated >= float(limits.max) + 1):
            raise CannotEvaluateError
    return np.asarray(array.astype(dtype))


def _cast(c: FoldableNode) -> Array:
    to = ir.DataType(c.attribute("to"))
    if to not in DTYPES:
        raise CannotEvaluateError
    c.require_small(c.input(0).shape)
    return cast(c.input(0), to.numpy())


def _gather(c: FoldableNode) -> Array:
    data, indices = c.input(0), c.input(1)
    axis = c.attribute("axis", 0)
    if not -data.ndim <= axis < data.ndim:
        raise CannotEvaluateError
    axis %= data.ndim
    c.require_small((*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]))
    return np.asarray(data.take(indices, axis=axis))  # raises IndexError for an index out of range


def _slice(c: FoldableNode) -> Array:
    data = c.input(0)
    window = [slice(None)] * data.ndim
    for span in spans(c) or ():
        if not -data.ndim <= span.axis < data.ndim or (taken := span.of(data.shape[span.axis])) is None:
            raise CannotEvaluateError
        last = None if taken.stop < 0 else taken.stop
        window[span.axis] = slice(taken.start, last, taken.step) if taken else slice(0, 0)
    return np.asarray(data[tuple(window)], order="C")


def _concat(c: FoldableNode) -> Array:
    arrays = [c.input(i) for i in range(len(c.inputs))]
    axis = c.attribute("axis")  # optional below opset 4; numpy would flatten the arrays
    if axis is None or sum(a.size for a in arrays) > c.limit:
        raise CannotEvaluateError
    return np.concatenate(arrays, axis=axis)


def _squeeze(c: FoldableNode) -> Array:
    data = c.input(0)
    axes = c.axes(data.ndim)
    return np.squeeze(data, axis=None if axes is None else tuple(axes))


def _unsqueeze(c: FoldableNode) -> Array:
    data = c.input(0)
    axes = c.axes(data.ndim + len(c.integer_argument("axes") or ()))
    if axes is None:
        raise CannotEvaluateError
    return np.expand_dims(data, tuple(sorted(axes)))


def _reshape(c: FoldableNode) -> Array:
    data = c.input(0)
    target = [int(d) for d in c.input(1).reshape(-1)]
    if not c.attribute("allowzero", 0):
        target = [data.shape[i] if d == 0 else d for i, d in enumerate(target)]
    elif 0 in target and -1 in target:
        raise CannotEvaluateError
    return data.reshape(target)


def _transpose(c: FoldableNode) -> Array:
    return np.asarray(np.transpose(c.input(0), c.attribute("perm")), order="C")


def _range(c: FoldableNode) -> Array:
    start, limit, delta = (c.input(i).reshape(()) for i in range(3))
    if start.dtype.kind not in "iu" or delta == 0:
        raise CannotEvaluateError
    c.require_small((max(math.ceil((int(limit) - int(start)) / int(delta)), 0),))
    return np.arange(int(start), int(limit), int(delta), dtype=start.dtype)


def _constant_of_shape(c: FoldableNode) -> Array:
    shape = c.require_small([int(d) for d in c.input(0).reshape(-1)])
    value = c.attribute("value")
    if value is None:
        return np.zeros(shape, np.float32)
    if value.dtype not in DTYPES:
        raise CannotEvaluateError
    return np.full(shape, value.numpy().reshape(()))


def _expand(c: FoldableNode) -> Array:
    data = c.input(0)
    target = tuple(int(d) for d in c.input(1).reshape(-1))
    shape = c.require_small(np.broadcast_shapes(data.shape, target))
    return np.asarray(np.broadcast_to(data, shape), order="C")


def _tile(c: FoldableNode) -> Array:
    data, repeats = c.input(0), [int(r) for r in c.input(1).reshape(-1)]
    if len(repeats) != data.ndim:
        raise CannotEvaluateError
    c.require_small([d * r for d, r in zip(data.shape, repeats)])
    return np.tile(data, repeats)


def _flatten(c: FoldableNode) -> Array:
    data, axis = c.input(0), c.attribute("axis", 1)
    axis = axis + data.ndim if axis < 0 else axis
    return data.reshape(math.prod(data.shape[:axis]), -1)


def _reduction(function: Callable[..., Array]) -> Callable[[FoldableNode], Array]:
    def call(c: FoldableNode) -> Array:
        data = c.input(0)
        if data.dtype.kind not in "iu":
            # Sums and products of floats depend on the runtime's order. ReduceMin and ReduceMax of floats also remain.
            raise CannotEvaluateError
        axes = tuple(sorted(c.axes(data.ndim) or ()))
        if not axes and c.attribute("noop_with_empty_axes", 0):
            return data
        return np.asarray(function(data, axis=axes or None, keepdims=bool(c.attribute("keepdims", 1))), data.dtype)

    return call


def _trilu(c: FoldableNode) -> Array:
    k = 0 if c.optional(1) is None else int(c.input(1).reshape(()))
    return (np.triu if c.attribute("upper", 1) else np.tril)(c.input(0), k)


def _shape(c: FoldableNode) -> Array:
    shape = c.input(0).shape
    return np.array(shape[c.attribute("start", 0) : c.attribute("end", len(shape))], np.int64)


def _neg(a: Array) -> Array:
    return np.asarray(-a)


_FUNCTIONS: dict[str, Callable[[FoldableNode], Array]] = {
    "Identity": lambda c: c.input(0),
    "Cast": _cast,
    "Shape": _shape,
    "Size": lambda c: np.array(c.input(0).size, np.int64),
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Transpose": _transpose,
    "Range": _range,
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
    "Tile": _tile,
    "Trilu": _trilu,
    "Add": _elementwise(np.add),
    "Sub": _elementwise(np.subtract),
    "Mul": _elementwise(np.multiply),
    "Div": _elementwise(_divide),
    "Mod": _mod,
    "Neg": _elementwise(_neg, 6),
    "Abs": _elementwise(np.abs, 6),
    "Sqrt": _elementwise(np.sqrt, 6),
    "Floor": _elementwise(np.floor, 6),
    "Ceil": _elementwise(np.ceil, 6),
    "Min": _elementwise(_fold(np.minimum), 8),
    "Max": _elementwise(_fold(np.maximum), 8),
    "Equal": _elementwise(np.equal),
    "Less": _elementwise(np.less),
    "LessOrEqual": _elementwise(np.less_equal),
    "Greater": _elementwise(np.greater),
    "GreaterOrEqual": _elementwise(np.greater_equal),
    "Not": _elementwise(np.logical_not, 1),
    "And": _elementwise(np.logical_and),
    "Or": _elementwise(np.logical_or),
    "Xor": _elementwise(np.logical_xor),
    "Where": _elementwise(np.where, 9),
    "ReduceSum": _reduction(np.sum),
    "ReduceProd": _reduction(np.prod),
    "ReduceMax": _reduction(np.max),
    "ReduceMin": _reduction(np.min),
}
# The operators that `evaluate` supports.
EVALUATED = _FUNCTIONS.keys()
