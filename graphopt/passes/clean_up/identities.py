"""Finds nodes that return an input unchanged."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from graphopt.graph.editor import Editor
from graphopt.graph.operators.arguments import Span, spans
from graphopt.graph.operators.dropout import drops_nothing
from graphopt.graph.shapes.sizes import ONE, ZERO, Size
from graphopt.graph.view import attribute_int, is_read, producer_of
from graphopt.ops.schema import NUMPY_BROADCASTING_OPSET


def unchanged(node: ir.Node, editor: Editor) -> ir.Value | None:
    """Returns the input that always equals the only used output of a node of CANDIDATES, or None."""
    inputs, outputs, op_type = node.inputs, node.outputs, node.op_type
    if node.domain != "" or not inputs or inputs[0] is None:
        return None
    attributes = node.attributes.data
    if attributes and any(a.is_ref() for a in attributes.values()):
        return None
    if len(outputs) > 1 and any(is_read(o) for o in outputs[1:]):
        return None
    if op_type in FACTORS:
        return _times_one(node, editor)
    if op_type == "Reshape":
        return _reshaped_back(node, editor)
    return inputs[0] if _KEEPS[op_type](node, editor) else None


def _has_one_input(node: ir.Node, editor: Editor) -> bool:
    return len(node.inputs) == 1


def _casts_to_same_dtype(node: ir.Node, editor: Editor) -> bool:
    dtype = editor.dtype(node.inputs[0])
    wanted = node.attributes["to"].as_int() if node.op_type == "Cast" else editor.dtype(node.inputs[1])
    return dtype is not None and dtype == wanted


def _flattens_a_matrix(node: ir.Node, editor: Editor) -> bool:
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 1
    return editor.shapes.rank(node.inputs[0]) == 2 and axis in (1, -1)


def _is_identity_transpose(node: ir.Node, editor: Editor) -> bool:
    if "perm" in node.attributes:
        perm = list(node.attributes["perm"].as_ints())
        return perm == list(range(len(perm)))
    rank = editor.shapes.rank(node.inputs[0])
    return rank is not None and rank <= 1


def _reshaped_back(node: ir.Node, editor: Editor) -> ir.Value | None:
    """Returns the input of a Reshape, or of a Reshape before it, that has the shape of the result; or None."""
    x = node.inputs[0]
    while x is not None and not _has_shape(node, x, editor):
        before = producer_of(x, "Reshape")
        x = None if before is None else before.inputs[0]
    return x


def _has_shape(node: ir.Node, x: ir.Value, editor: Editor) -> bool:
    """Returns whether the result of a Reshape of x's elements has the shape of x.

    The proof uses the Reshape's input `shape`. Each dimension equals that of x, except one, which follows from the
    number of elements.
    """
    if editor.arguments(node).position("shape") is None:
        return False
    have, shape = editor.shapes.dims(x), editor.shapes.elements(node.inputs[1])
    if have is None or shape is None or len(have) != shape.items.size:
        return False
    read = have if x is node.inputs[0] else editor.shapes.dims(node.inputs[0])
    copied = () if read is None or attribute_int(node, "allowzero", 0) != 0 else tuple(read)

    def is_own(axis: int, wanted: object) -> bool:
        dim = have[axis]
        return copied[axis : axis + 1] == (dim,) if wanted == ZERO else wanted == dim

    unproven = [(have[i], w) for i, w in enumerate(shape.items.flat) if not is_own(i, w)]
    if len(unproven) != 1:
        return not unproven
    # The equal number of elements proves one dimension if all others are known and not 0. -1 needs no proof.
    ((dim, wanted),) = unproven
    if wanted == Size.of(-1):
        return True
    others_static = sum(bool(d.value) for d in have) >= len(have) - (dim.value is None)
    return others_static and (dim.value is None or not (isinstance(wanted, Size) and wanted.value is not None))


def _expands_nothing(node: ir.Node, editor: Editor) -> bool:
    have, shape = editor.shapes.dims(node.inputs[0]), editor.shapes.elements(node.inputs[1])
    if have is None or shape is None or shape.items.size > len(have):
        return False
    return all(w in (ONE, d) for d, w in zip(reversed(have), reversed(list(shape.items.flat))))


def _slices_everything(node: ir.Node, editor: Editor) -> bool:
    arguments, dims = editor.arguments(node), editor.shapes.dims(node.inputs[0])
    found, at = spans(arguments), arguments.position("ends")
    ends = None if at is None else editor.shapes.elements(node.inputs[at])

    def covers_axis(i: int, span: Span) -> bool:
        """Whether the span has every element; its end may be the size of the axis, which may be a symbol."""
        if span.covers_axis or ends is None or dims is None or not -len(dims) <= span.axis < len(dims):
            return span.covers_axis
        return span.start == 0 and ends.items.flat[i] == dims[span.axis]

    return found is not None and all(span.step == 1 and covers_axis(i, span) for i, span in enumerate(found))


def _pads_nothing(node: ir.Node, editor: Editor) -> bool:
    pads = editor.arguments(node).integer_argument("pads")
    return pads is not None and not any(pads)


def _times_one(node: ir.Node, editor: Editor) -> ir.Value | None:
    a, b = node.inputs
    if a is None or b is None or editor.opset(node) < NUMPY_BROADCASTING_OPSET:
        return None
    for x, one in ((a, b), (b, a))[: 1 if node.op_type == "Div" else 2]:
        if editor.scalar(one) == 1.0:
            rank, rank_one = editor.shapes.rank(x), editor.shapes.rank(one)
            if rank_one is not None and (rank_one == 0 or (rank is not None and rank_one <= rank)):
                return x
    return None


# Operator -> whether a node returns its first input unchanged.
_KEEPS: dict[str, Callable[[ir.Node, Editor], bool]] = {
    "Identity": lambda node, editor: True,
    **dict.fromkeys(("Concat", "Sum", "Max", "Min", "Mean"), _has_one_input),
    "Dropout": drops_nothing,
    **dict.fromkeys(("Cast", "CastLike"), _casts_to_same_dtype),
    "Transpose": _is_identity_transpose,
    "Flatten": _flattens_a_matrix,
    "Expand": _expands_nothing,
    "Slice": _slices_everything,
    "Pad": _pads_nothing,
}
FACTORS = frozenset(("Mul", "Div"))
CANDIDATES = FACTORS | _KEEPS.keys() | {"Reshape"}
