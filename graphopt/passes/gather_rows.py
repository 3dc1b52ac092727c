"""Slices, Concats and Transposes that move whole rows of one value become one Gather of these rows.

    f_n(... f_1(x)) = Reshape(Gather(Reshape(x), rows)), each f one of Slice, Concat, Transpose, Gather, Reshape

A cyclic shift of an image's tokens (torch.roll: two Slices and a Concat for each axis), the partition into windows
behind it and the reverse of both are what shifted windows of attention have (Z. Liu et al., "Swin Transformer", 2021);
merging patches (strided Slices, joined over channels) is another. Each of these nodes copies what the next one copies
again.

Why it is legal: none of the operators computes anything, so that each element of the result is an element of x. Which
one it is does not depend on x: it is found by giving the nodes the numbers of the elements. Elements that lie beside
each other before and behind move together, as a row.

Conditions: what is moved is of one value, and nobody reads what lies between; of all shapes only the number of images
may be unknown, which are then moved each by itself: no node works along the first axis. Rows have 64 bytes at least,
and there are at most 2^18 in an image, so that the indices, which the file carries, are few beside the data.

Where it pays: where the nodes write twice as much as the Gather. Attention is fused first, which reads its operands
through Transposes without copying them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from graphopt.graph.editor import Editor, attribute_int, attribute_ints
from graphopt.graph.evaluation import Call, CannotEvaluateError, evaluate
from graphopt.graph.shapes.sizes import ONE, Size, shape_text
from graphopt.graph.vocabulary import made_by, sole_reader
from graphopt.metadata import Numerics
from graphopt.ops.schema import Array
from graphopt.passes.base import Pass
from graphopt.remarks import Code, Refusal, became
from graphopt.targets.profit import Candidate

COPIES = ("Concat", "Gather", "Slice", "Transpose")
VIEWS = ("Flatten", "Reshape", "Squeeze", "Unsqueeze")
RESHAPE_INPUT_OPSET = 5
MIN_ROW_BYTES = 64
MAX_ROWS = 2**18
MAX_ELEMENTS = 2**23  # of an image: each node's result is 32 MiB of numbers while a model is rewritten
MOST_NODES = 64  # between x and the result, so that a long chain takes time that grows with its length


Dims = dict[ir.Value, tuple[Size, ...]]


@dataclass(frozen=True)
class RowMoves:
    """Nodes that make a value of another one's elements.

    Attributes:
        x: whose elements they are.
        dtype: of x.
        nodes: in their order; the last one makes the result.
        images: how many parts of x are moved each by itself.
        rows: those of x that make an image of the result, in its order.
        rows_of_x: how many an image of x has.
        width: elements of a row.
        written: elements that the nodes copy for an image.
    """

    x: ir.Value
    dtype: ir.DataType
    nodes: tuple[ir.Node, ...]
    images: Size
    rows: Array
    rows_of_x: int
    width: int
    written: int

    @property
    def y(self) -> ir.Value:
        return self.nodes[-1].outputs[0]


class GatherRows(Pass[RowMoves, RowMoves]):
    name = "gather_rows"
    equation = "Slice, Concat and Transpose of whole rows of x = Gather(x, rows)"
    numerics = Numerics.EXACT
    anchors = frozenset(("", op) for op in COPIES)

    def match(self, node: ir.Node, editor: Editor) -> RowMoves | None:
        last = node
        while (view := sole_reader(last.outputs[0], *VIEWS)) is not None and view.graph is node.graph:
            last = view
        x, nodes = _moves_to(last, editor) if _is_known(node, editor) else (None, [])
        dtype = editor.dtype(x)
        if x is None or dtype in (None, ir.DataType.STRING) or editor.is_constant(x):
            return None
        if sum(n.op_type in COPIES for n in nodes) < 2 or (editor.shapes.rank(x) or 0) < 2:
            return None
        dims, images = _images(x, nodes, editor)
        elements = _elements(x, nodes, dims, images, editor)
        moved = elements[last.outputs[0]].reshape(-1)
        width = _row_width(moved, elements[x].size)
        if moved.size == 0 or width * dtype.itemsize < MIN_ROW_BYTES:
            return None
        rows = (moved[::width] // width).astype(np.int32)
        written = sum(elements[n.outputs[0]].size for n in nodes if n.op_type in COPIES)
        return RowMoves(x, dtype, tuple(nodes), images, rows, elements[x].size // width, width, written)

    def legal(self, match: RowMoves, editor: Editor) -> RowMoves:
        if editor.opset(match.nodes[-1]) < RESHAPE_INPUT_OPSET:
            raise Refusal(Code.OPSET, "Reshape below opset 5 has its target as an attribute", match.nodes[-1])
        if match.rows.size > MAX_ROWS:
            raise Refusal(Code.WRONG_SHAPE, f"{match.rows.size} rows in an image", match.nodes[-1])
        return match

    def candidate(self, plan: RowMoves, editor: Editor) -> Candidate:
        gathered = plan.rows.size * plan.width
        few = plan.written < 2 * gathered
        doubt = f"the nodes copy {plan.written} elements of an image, a Gather {gathered}" if few else ""
        return editor.candidate("Gather", [plan.x], plan.y, plan.nodes[-1], doubt)

    def rewrite(self, plan: RowMoves, editor: Editor) -> str:
        last, type_ = plan.nodes[-1], ir.TensorType(plan.dtype)
        label = last.name or last.outputs[0].name or "rows"
        rows = editor.initializer(last, plan.rows, f"{label}/rows")
        new: list[ir.Node] = []

        def reshaped(value: ir.Value, have: Sequence[Size], want: Sequence[Size]) -> ir.Value:
            if tuple(have) == tuple(want):
                return value
            # At most one dimension, that of the images, is not known.
            target = np.array([-1 if d.value is None else d.value for d in want], np.int64)
            shape = editor.initializer(last, target, f"{label}/shape")
            node = editor.node("Reshape", [value, shape], {}, hint=f"{label}/Reshape")
            node.outputs[0].type = type_
            new.append(node)
            return node.outputs[0]

        def images_of(rows: int) -> tuple[Size, ...]:
            return plan.images, Size.of(rows), Size.of(plan.width)

        read = reshaped(plan.x, editor.shapes.dims(plan.x) or (), images_of(plan.rows_of_x))
        gather = editor.node("Gather", [read, rows], {"axis": 1}, hint=f"{label}/Gather")
        gather.outputs[0].type = type_
        new.append(gather)
        y = reshaped(gather.outputs[0], images_of(plan.rows.size), editor.shapes.dims(plan.y) or ())
        editor.replace(plan.nodes, new, {plan.y: y}, anchor=last)
        return became(len(plan.nodes), "Gather")


def _moves_to(last: ir.Node, editor: Editor) -> tuple[ir.Value | None, list[ir.Node]]:
    """The one value that a node's output is made of, as far up as there is one, and the nodes between them in order."""
    taken = [last]
    found: tuple[ir.Value | None, list[ir.Node]] = None, taken
    while len(taken) <= MOST_NODES:
        ends = {v for node in taken for v in _moved(node) if v is None or v.producer() not in taken}
        if len(ends) == 1:
            found = next(iter(ends)), taken[::-1]
        makers = [n for v in ends if (n := made_by(v, *COPIES, *VIEWS)) is not None and n.graph is last.graph]
        free = next((n for n in makers if _is_known(n, editor) and _moves_alone(n, taken)), None)
        if free is None:
            break
        taken.append(free)
    return found


def _moved(node: ir.Node) -> Sequence[ir.Value | None]:
    """The inputs whose elements a node moves."""
    return node.inputs if node.op_type == "Concat" else node.inputs[:1]


def _is_known(node: ir.Node, editor: Editor) -> bool:
    """Whether where a node moves elements to is the same for all inputs of the model, but for shapes."""
    others = () if node.op_type in VIEWS else node.inputs[len(_moved(node)) :]
    refers = any(a.is_ref() for a in node.attributes.values())
    return not refers and all(v is None or editor.is_constant(v) for v in others)


def _moves_alone(node: ir.Node, readers: Collection[ir.Node]) -> bool:
    """Whether what a node makes is moved by these readers, and read by nobody else."""
    y = node.outputs[0]
    return not y.is_graph_output() and all(u.node in readers and u.idx < len(_moved(u.node)) for u in y.uses())


def _images(x: ir.Value, nodes: Sequence[ir.Node], editor: Editor) -> tuple[Dims, Size]:
    """The dimensions of all values, and how many images each of them is.

    Raises:
        Refusal: UNKNOWN_SHAPE.

    """
    dims: Dims = {}
    for value in (x, *(n.outputs[0] for n in nodes)):
        known = editor.shapes.dims(value)
        if not known or any(d.value is None for d in known[1:]):
            raise Refusal(Code.UNKNOWN_SHAPE, f"{value.name} is {shape_text(known)}", value.producer())
        dims[value] = known
    firsts = {known[0] for known in dims.values()}
    split = any(_along_first(n, editor) for n in nodes)
    if all(first.value is not None for first in firsts):
        return dims, ONE if split else Size.of(math.gcd(*(first.value or 0 for first in firsts)))
    for images in () if split else firsts:
        if all((times := first.divided_by(images)) is not None and times.value is not None for first in firsts):
            return dims, images
    raise Refusal(Code.UNKNOWN_SHAPE, f"first dimensions are {', '.join(sorted(map(str, firsts)))}", nodes[-1])


def _along_first(node: ir.Node, editor: Editor) -> bool:
    """Whether a node moves elements along the first axis."""
    if node.op_type in VIEWS:
        return False
    if node.op_type == "Transpose":
        perm = node.attributes.get("perm")
        return perm is None or perm.as_ints()[0] != 0
    rank = editor.shapes.rank(node.outputs[0]) or 1
    if node.op_type != "Slice":
        return attribute_int(node, "axis", 0) % rank == 0
    if editor.opset(node) < 10:
        axes = attribute_ints(node, "axes", (0,))
    else:
        given = editor.constant(node.inputs[3]) if len(node.inputs) > 3 else None
        axes = (0,) if given is None else given.tolist()
    return any(axis % rank == 0 for axis in axes)


def _elements(x: ir.Value, nodes: Sequence[ir.Node], dims: Dims, images: Size, editor: Editor) -> dict[ir.Value, Array]:
    """Which elements of x, by their numbers, the values hold, of an image.

    Raises:
        Refusal: UNSUPPORTED_OP, WRONG_SHAPE.

    """
    shapes = {v: (_times(d[0], images), *(s.value or 0 for s in d[1:])) for v, d in dims.items()}
    if max(map(math.prod, shapes.values())) > MAX_ELEMENTS:
        raise Refusal(Code.WRONG_SHAPE, f"images of {max(map(math.prod, shapes.values()))} elements", nodes[-1])
    found: dict[ir.Value, Array] = {x: np.arange(math.prod(shapes[x]), dtype=np.int32).reshape(shapes[x])}
    for node in nodes:
        arrays = tuple(found[v] if v in found else editor.constant(v) for v in node.inputs)
        y = node.outputs[0]
        try:
            if node.op_type in VIEWS:
                assert arrays[0] is not None
                found[y] = arrays[0].reshape(shapes[y])
            else:
                found[y] = evaluate(Call(node, arrays, editor.opset(node), MAX_ELEMENTS))
        except (CannotEvaluateError, ValueError):
            raise Refusal(Code.UNSUPPORTED_OP, f"what {node.op_type} does is not defined", node) from None
    return found


def _times(first: Size, images: Size) -> int:
    times = first.divided_by(images)
    return 0 if times is None else times.value or 0


def _row_width(elements: Array, all_of_x: int) -> int:
    """How many elements move together: runs of them begin at multiples of it, in x and in the result."""
    flat = elements.reshape(-1)
    begins = np.flatnonzero(np.diff(flat, prepend=-2) != 1)
    return math.gcd(all_of_x, flat.size, *np.unique(begins).tolist(), *np.unique(flat[begins]).tolist())
