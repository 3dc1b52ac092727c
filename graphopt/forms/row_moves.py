"""Nodes that only move the elements of one value, and the source index of each element of their result."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir

from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.operators.arguments import spans
from graphopt.graph.operators.evaluation import CannotEvaluateError, FoldableNode, evaluate
from graphopt.graph.shapes.sizes import ONE, Size, shape_text
from graphopt.graph.view import attribute_int, attribute_string, producer_of
from graphopt.ops.schema import Array
from graphopt.remarks import Code, Refusal

COPIES = ("Concat", "Gather", "Slice", "Transpose")  # operators that copy elements to other positions
VIEWS = ("Flatten", "Reshape", "Squeeze", "Unsqueeze")  # operators that keep the order of the elements
MAX_ROWS = 2**18  # rows of an image
MAX_ELEMENTS = 2**23  # elements of an image: the indices of each node's result take up to 32 MiB during the rewrite
MOST_NODES = 64  # nodes between x and the result, so the time for a long chain is linear in its length
PADDED = -1  # the index of an element that padding added

Dims = dict[ir.Value, tuple[Size, ...]]


def moves_to(last: ir.Node, editor: Editor, *more: str) -> tuple[ir.Value | None, list[ir.Node]]:
    """Finds the earliest value that contains all elements of a node's output, and the nodes from there to that output.

    The value is None if the elements come from several values.

    Args:
        last: the node that produces the output.
        editor: the model.
        more: operators to follow in addition to COPIES and VIEWS.
    """
    nodes = [last]
    found: tuple[ir.Value | None, list[ir.Node]] = None, nodes
    while len(nodes) <= MOST_NODES:
        sources = {v for node in nodes for v in _moved(node) if v is None or v.producer() not in nodes}
        if len(sources) == 1:
            found = next(iter(sources)), nodes[::-1]
        found_before = (producer_of(v, *COPIES, *VIEWS, *more) for v in sources)
        producers = [n for n in found_before if n is not None and n.graph is last.graph]
        free = next((n for n in producers if is_known(n, editor) and _moves_alone(n, nodes)), None)
        if free is None:
            break
        nodes.append(free)
    return found


def _moved(node: ir.Node) -> Sequence[ir.Value | None]:
    """Returns the inputs that provide the elements that a node moves."""
    return node.inputs if node.op_type == "Concat" else node.inputs[:1]


def is_known(node: ir.Node, editor: Editor) -> bool:
    """Returns whether the new positions of elements depend only on shapes, constants and attributes."""
    others = () if node.op_type in VIEWS else node.inputs[len(_moved(node)) :]
    refers = any(a.is_ref() for a in node.attributes.values())
    return not refers and all(v is None or editor.is_constant(v) for v in others)


def _moves_alone(node: ir.Node, readers: Collection[ir.Node]) -> bool:
    """Returns whether only `readers` use a node's result, and only to move its elements."""
    y = node.outputs[0]
    return not y.is_graph_output() and all(u.node in readers and u.idx < len(_moved(u.node)) for u in y.uses())


def images_of(x: ir.Value, nodes: Sequence[ir.Node], editor: Editor) -> tuple[Dims, Size]:
    """Returns the dimensions of all values, and the number of images.

    The images are equal blocks along the first axis; no node moves elements from one image to another.

    Raises:
        Refusal: UNKNOWN_SHAPE.
    """
    dims: Dims = {}
    for value in (x, *(n.outputs[0] for n in nodes)):
        known = editor.shapes.dims(value)
        if not known or any(d.value is None for d in known[1:]):
            raise Refusal(Code.UNKNOWN_SHAPE, f"{value.name} has shape {shape_text(known)}", value.producer())
        dims[value] = known
    firsts = {known[0] for known in dims.values()}
    split = any(_along_first(n, editor) for n in nodes)
    if all(first.value is not None for first in firsts):
        return dims, ONE if split else Size.of(math.gcd(*(first.value or 0 for first in firsts)))
    for images in () if split else firsts:
        if all((count := first.divided_by(images)) is not None and count.value is not None for first in firsts):
            return dims, images
    raise Refusal(
        Code.UNKNOWN_SHAPE,
        f"the values have different first dimensions: {', '.join(sorted(map(str, firsts)))}",
        nodes[-1],
    )


def _along_first(node: ir.Node, editor: Editor) -> bool:
    """Returns whether a node moves elements along the first axis."""
    if node.op_type in VIEWS:
        return False
    if node.op_type == "Transpose":
        perm = node.attributes.get("perm")
        return perm is None or perm.as_ints()[0] != 0
    rank = editor.shapes.rank(node.inputs[0]) or 1  # a Gather may have a result of another rank
    if node.op_type == "Pad":
        pads = _pads(node, editor)
        return any(pads[0])
    if node.op_type != "Slice":
        return attribute_int(node, "axis", 0) % rank == 0
    found = spans(editor.arguments(node))
    return found is None or any(span.axis % rank == 0 for span in found)


def elements_of(
    x: ir.Value, nodes: Sequence[ir.Node], dims: Dims, images: Size, editor: Editor
) -> dict[ir.Value, Array]:
    """Returns, for one image, the index in x of each element of each value; PADDED for the zeros that a Pad adds.

    Raises:
        Refusal: UNSUPPORTED_OP, WRONG_SHAPE, PADDED.
    """
    shapes = {v: (times(d[0], images), *(s.value or 0 for s in d[1:])) for v, d in dims.items()}
    if max(map(math.prod, shapes.values())) > MAX_ELEMENTS:
        raise Refusal(
            Code.WRONG_SHAPE,
            f"an image has {max(map(math.prod, shapes.values()))} elements, which are too many",
            nodes[-1],
        )
    found: dict[ir.Value, Array] = {x: np.arange(math.prod(shapes[x]), dtype=np.int32).reshape(shapes[x])}
    for node in nodes:
        arrays = tuple(found[v] if v in found else editor.constant(v) for v in node.inputs)
        y = node.outputs[0]
        try:
            if node.op_type in VIEWS:
                assert arrays[0] is not None
                found[y] = arrays[0].reshape(shapes[y])
            elif node.op_type == "Pad":
                assert arrays[0] is not None
                found[y] = np.pad(arrays[0], _pads(node, editor), constant_values=PADDED)
            else:
                found[y] = evaluate(FoldableNode(node, arrays, editor.opset(node), MAX_ELEMENTS))
        except (CannotEvaluateError, ValueError):
            raise Refusal(Code.UNSUPPORTED_OP, f"graphopt cannot evaluate this {node.op_type}", node) from None
    return found


def reshaped(builder: Builder, value: ir.Value, have: Sequence[Size] | None, want: Sequence[Size] | None) -> ir.Value:
    """Returns the value reshaped to `want`; only one of these dimensions, the number of images, may be unknown."""
    if have == want or want is None:
        return value
    target = np.array([-1 if d.value is None else d.value for d in want], np.int64)
    return builder.op("Reshape", value, builder.initializer(target, "/shape"), _dtype=value.dtype)


def times(first: Size, images: Size) -> int:
    count = first.divided_by(images)
    return 0 if count is None else count.value or 0


def _pads(node: ir.Node, editor: Editor) -> list[tuple[int, int]]:
    """Returns the pads before and after each axis.

    Raises:
        Refusal: PADDED unless the node only adds zeros, with constant pads for all axes.
    """
    pads = editor.constant(node.inputs[1]) if len(node.inputs) > 1 else None
    value, axes = (*node.inputs[2:4], None, None)[:2]
    of_zeros = attribute_string(node, "mode", "constant") == "constant" and (value is None or editor.scalar(value) == 0)
    if pads is None or axes is not None or (pads < 0).any() or not of_zeros:
        raise Refusal(
            Code.PADDED,
            f"{node.op_type} adds elements other than zeros, or its pads are negative, not constant or with axes",
            node,
        )
    return list(zip(pads[: pads.size // 2].tolist(), pads[pads.size // 2 :].tolist(), strict=True))
