"""Clean-up: what is constant is computed, what changes nothing goes, what is equal is merged, what nobody reads goes.

    f(constants) = constant;  Shape(x)[i] = n for a static dimension;  id(x) = x;  f(x), f(x) = f(x) once
    If(true, f, g) = f

Why it is legal: the results are the same bits. Only operators whose results IEEE 754 and the ONNX operator
specification define exactly are computed (evaluation.py); dimensions are followed through integer arithmetic only
(graph/shapes).

Conditions:
- Random operators (Bernoulli too) are neither computed nor merged, a Dropout that drops numbers stays, quantization
  nodes are not merged (runtimes look for one pair for each reader), nodes of foreign domains are not merged or removed.
- Initializers that callers may override are not constants.
- Matrices and filters that are stored in float16 stay so: a Cast of them is not computed.
- A constant may not make the file larger: results have at most 64 KiB, or at most the bytes of inputs that go with
  them. Tile, Expand, ConstantOfShape and Transposes of shared weights stay where they would grow the file.
- Graph inputs and outputs keep names, order, types and dimensions; unused functions of others, opset imports,
  metadata and doc strings stay.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from graphopt.graph.branches import Branches, take_apart
from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.evaluation import DTYPES, Call, CannotEvaluateError, can_evaluate, cast, evaluate
from graphopt.graph.operators.dropout import drops_nothing
from graphopt.graph.operators.traits import QUANTIZATION, RANDOM
from graphopt.graph.shapes.elements import ELEMENTS
from graphopt.graph.shapes.sizes import ONE, ZERO, Size
from graphopt.graph.traversal import bodies, tensor_dims
from graphopt.graph.view import attribute_int, has_readers, is_op, made_by, use_count
from graphopt.metadata import Numerics
from graphopt.ops import DOMAIN
from graphopt.ops.schema import Array
from graphopt.passes.base import ModelPass

MAX_CONSTANT_BYTES = 64 * 1024
# Larger weights stay where they are, on disk.
MAX_REPLACED_BYTES = 256 * 1024 * 1024
# Constants of up to this size are compared by content when nodes are merged.
MAX_COMPARED_BYTES = 128
SHAPE_TYPES = (ir.DataType.INT64, ir.DataType.INT32)
MAY_BE_SHAPES = (*SHAPE_TYPES, None)
NEVER_MERGED = RANDOM | QUANTIZATION | {"Dropout"}
# Domains whose operators have no effect but their outputs.
PURE_DOMAINS = frozenset({"", "ai.onnx.ml", "com.microsoft", DOMAIN})


class CleanUp(ModelPass):
    name = "clean_up"
    equation = "f(constants) = constant;  id(x) = x;  f(x), f(x) = one f(x);  what nobody reads goes"
    # Node by node the bits are the same; but a runtime may sum a product otherwise once its weight is a constant.
    numerics = Numerics.REASSOCIATED

    def run(self, editor: Editor) -> list[str]:
        work = _CleanUp(editor)
        for graph in list(editor.graphs()):
            work.forward(graph)
        for graph in list(editor.graphs()):
            work.remove_unread(graph)
        editor.changed()
        if cast := cast_before_transposing(editor):
            work.done["Cast before a product, moved before its Transpose"] += cast
        if unread := remove_unread_definitions(editor):
            work.done["definition of an operator that no node uses, removed"] += unread
        if work.computed:
            # A shape that has become a constant tells inference more, as a second run would find out.
            editor.infer_afresh()
        editor.touched.clear()
        return [f"{what}: {count}" for what, count in work.done.items()]


# Nodes that may be equal: one whose key nobody has asked for yet, or all of them by key.
_Bucket = ir.Node | dict[Hashable, ir.Node]


@dataclass
class _CleanUp:
    editor: Editor
    done: Counter[str] = field(default_factory=Counter)
    computed: bool = False
    _contents: dict[ir.Value, Hashable] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._branches = Branches(self.editor)

    def forward(self, graph: ir.Graph) -> None:
        """One walk in topological order, so that chains collapse at once."""
        seen: dict[Hashable, _Bucket] = {}
        for node in graph:
            if self._compute(node):
                continue
            if is_op(node, "If") and self._branches.take(node):
                self.done["If of a constant condition, its branch put in its place"] += 1
                self.computed = True
                continue
            if is_op(node, "Range"):
                self._read_scalars(node)
            same = _unchanged(node, self.editor) if node.op_type in CANDIDATES else None
            if same is not None and self.editor.bypass(node, same):
                self.done[f"{node.op_type} that changes nothing, removed"] += 1
                continue
            self._merge(node, seen)

    def _compute(self, node: ir.Node) -> bool:
        """Puts a constant in the place of the node's output."""
        if len(node.outputs) != 1:
            return False
        output = node.outputs[0]
        if output.is_graph_output() or not use_count(output):
            return False
        array = self._from_shapes(node)
        if array is None:
            array = self._evaluate(node)
        if array is None:
            return False
        constant = self.editor.initializer(node, array, str(output.name))
        self.editor.replace([node], [], {output: constant}, anchor=node)
        self.done[f"{node.op_type} of constants, computed"] += 1
        self.computed = True
        return True

    def _read_scalars(self, node: ir.Node) -> None:
        """Gives a Range scalars for constants of one element and an axis.

        Runtimes take such a tensor while it is computed, and once it is a constant refuse the model.
        """
        arrays = [self.editor.constant(v) for v in node.inputs]
        if not all(a is not None and a.size == 1 for a in arrays) or all(a is not None and not a.shape for a in arrays):
            return
        name = node.outputs[0].name
        scalars = [self.editor.initializer(node, a.reshape(()), f"{name}/scalar") for a in arrays if a is not None]
        self.editor.rewire(node, scalars)
        self.done["constants of a Range, made scalars"] += 1

    def _from_shapes(self, node: ir.Node) -> Array | None:
        """Integers that follow from dimensions."""
        output = node.outputs[0]
        if node.op_type not in ELEMENTS or self.editor.dtype(output) not in MAY_BE_SHAPES:
            return None
        elements = self.editor.shapes.elements(output)
        return elements.array if elements is not None and elements.dtype in SHAPE_TYPES else None

    def _evaluate(self, node: ir.Node) -> Array | None:
        if is_op(node, "CastLike"):
            return self._cast_like(node)
        # Shapes knows a Shape, or nobody does.
        if not can_evaluate(node) or node.op_type == "Shape":
            return None
        tensors: list[ir.TensorProtocol | None] = []
        for value in node.inputs:
            tensor = self.editor.tensor(value)
            if value is not None and (tensor is None or tensor.dtype not in DTYPES):
                return None
            tensors.append(tensor)
        if any(a.is_ref() for a in node.attributes.values()):
            return None
        if node.op_type == "Cast" and _is_stored_weight(tensors[0]):
            return None
        limit = self._limit(node)
        if any(t is not None and t.nbytes > limit for t in tensors):
            return None
        arrays = tuple(None if t is None else t.numpy() for t in tensors)
        try:
            result = evaluate(Call(node, arrays, self.editor.opset(node), limit))
        except CannotEvaluateError:
            return None
        return result if result.nbytes <= limit else None

    def _cast_like(self, node: ir.Node) -> Array | None:
        """Only the type of the second input matters."""
        tensor, dtype = self.editor.tensor(node.inputs[0]), self.editor.dtype(node.inputs[1])
        if tensor is None or tensor.dtype not in DTYPES or dtype not in DTYPES or dtype is None:
            return None
        if tensor.size * 8 > MAX_CONSTANT_BYTES:
            return None
        try:
            return cast(tensor.numpy(), dtype.numpy())
        except CannotEvaluateError:
            return None

    def _limit(self, node: ir.Node) -> int:
        """The most bytes that the result may have: few, or no more than go away with the node."""
        freed = 0
        for value in dict.fromkeys(node.inputs):
            tensor = self.editor.tensor(value)
            if value is not None and tensor is not None and use_count(value) == node.inputs.count(value):
                freed += tensor.nbytes
        return max(MAX_CONSTANT_BYTES, min(freed, MAX_REPLACED_BYTES))

    def _merge(self, node: ir.Node, seen: dict[Hashable, _Bucket]) -> None:
        """Replaces a node by an equal one before it."""
        if not _is_pure(node):
            return
        # Contents of constants are compared only among nodes that agree in what costs nothing to compare.
        data = next((v for v in node.inputs if v is not None and not self.editor.is_constant(v)), None)
        place = (node.domain, node.op_type, data)
        bucket = seen.setdefault(place, node)
        if bucket is node:
            return
        if isinstance(bucket, ir.Node):
            bucket = seen[place] = {self._key(bucket): bucket}
        key = self._key(node)
        if key is None:
            return
        first = bucket.get(key)
        if first is None or first.graph is None:
            bucket[key] = node
            return
        # A graph output gets no readers that it did not have (see `Editor.bypass`).
        if any(o.is_graph_output() for o in (*node.outputs, *first.outputs)):
            return
        self.editor.replace([node], [], dict(zip(node.outputs, first.outputs, strict=True)), anchor=node)
        self.done[f"{node.op_type} that repeats another, merged"] += 1

    def _key(self, node: ir.Node) -> Hashable | None:
        """Nodes with equal keys compute equal outputs; None for a node that is never merged."""
        attributes: list[Hashable] = []
        for name, attribute in sorted(node.attributes.items()):
            content = _attribute_key(attribute)
            if content is None:
                return None
            attributes.append((name, content))
        inputs = tuple(None if v is None else self._content(v) for v in node.inputs)
        outputs = tuple(bool(o.name) for o in node.outputs)
        return (node.overload, node.version, inputs, outputs, tuple(attributes))

    def _content(self, value: ir.Value) -> Hashable:
        """A small constant's own bytes, or the value itself."""
        if value not in self._contents:
            tensor = self.editor.tensor(value)
            self._contents[value] = (None if tensor is None else _tensor_key(tensor)) or value
        return self._contents[value]

    def remove_unread(self, graph: ir.Graph) -> None:
        for node in reversed(graph):
            if node.domain not in PURE_DOMAINS or has_readers(node):
                continue
            if not node.outputs:
                continue
            for body in bodies(node):
                take_apart(body)
            graph.remove(node, safe=True)
            self.done[f"{node.op_type} that nobody reads, removed"] += 1
        for name, value in list(graph.initializers.data.items()):
            if not (use_count(value) or value.is_graph_output() or value.is_graph_input()):
                del graph.initializers[name]
                self.done["initializer that nobody reads, removed"] += 1


def cast_before_transposing(editor: Editor) -> int:
    """Cast(Transpose(x)) of half precision before a product becomes Transpose(Cast(x)); returns how many did.

    The numbers are the same. onnxruntime's own rewrite that moves a Transpose into its product ends the process where a
    Cast stands in between (1.22.2 and 1.31.1, on the CPU at the default level).
    """
    done = 0
    for node in editor.nodes([("", "Cast")]):
        value = node.inputs[0]
        transpose = made_by(value, "Transpose")
        if transpose is None:
            continue
        x, result = transpose.inputs[0], node.outputs[0]
        wide = editor.dtype(result) == ir.DataType.FLOAT and editor.dtype(x) not in (None, ir.DataType.FLOAT)
        if x is None or not wide or not any(is_op(u, "MatMul") for u in result.consumers()):
            continue
        attributes: dict[str, Any] = {
            name: a.as_ints() for name, a in transpose.attributes.items() if name == "perm" and not a.is_ref()
        }
        if len(attributes) != len(transpose.attributes):
            continue
        b, FLOAT = Builder(editor, node, result.name), ir.DataType.FLOAT
        cast = b.op("Cast", x, to=int(FLOAT), _hint=f"{result.name}/cast", _like=x, _dtype=FLOAT)
        y = b.op("Transpose", cast, _hint=f"{result.name}/transpose", **attributes)
        editor.replace([node], b.nodes, {result: y}, anchor=node)
        done += 1
    return done


def remove_unread_definitions(editor: Editor) -> int:
    """Removes definitions of our own operators that rewrites have left without a node; returns how many."""
    functions = editor.model.functions
    ours = [i for i, f in functions.items() if f.domain == DOMAIN]
    used = {node.op_type for graph in editor.graphs() for node in graph if node.domain == DOMAIN} if ours else set()
    unread = [i for i in ours if i[1] not in used]
    for identifier in unread:
        del functions[identifier]
    return len(unread)


# -- nodes that change nothing -----------------------------------------------------------------------------------


def _unchanged(node: ir.Node, editor: Editor) -> ir.Value | None:
    """The input that the only read output of a node of CANDIDATES always equals, or None."""
    if node.domain != "" or not node.inputs or node.inputs[0] is None:
        return None
    attributes = node.attributes.data
    if attributes and any(a.is_ref() for a in attributes.values()):
        return None
    if len(node.outputs) > 1 and any(use_count(o) or o.is_graph_output() for o in node.outputs[1:]):
        return None
    if node.op_type in FACTORS:
        return _times_one(node, editor)
    if node.op_type == "Reshape":
        return _reshaped_back(node, editor)
    return node.inputs[0] if _KEEPS[node.op_type](node, editor) else None


def is_matrix(tensor: ir.TensorProtocol) -> bool:
    """Whether more than one dimension is larger than 1."""
    return sum(d != 1 for d in tensor_dims(tensor)) > 1


def _is_stored_weight(tensor: ir.TensorProtocol | None) -> bool:
    """A matrix or filter in float16: a Cast to float32 behind it saves half of its bytes (half_precision/)."""
    return tensor is not None and tensor.dtype == ir.DataType.FLOAT16 and is_matrix(tensor)


def _has_one_input(node: ir.Node, editor: Editor) -> bool:
    return len(node.inputs) == 1


def _casts_to_its_own(node: ir.Node, editor: Editor) -> bool:
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
    """What a Reshape reads, or what a Reshape in front of it read, in the shape that it had."""
    x = node.inputs[0]
    while x is not None and not _has_shape(node, x, editor):
        before = made_by(x, "Reshape")
        x = None if before is None else before.inputs[0]
    return x


def _has_shape(node: ir.Node, x: ir.Value, editor: Editor) -> bool:
    """Whether a Reshape gives the shape of x, whose elements it reads.

    Proven from the target: each dimension is x's own, but for one -1, which the number of elements decides.
    """
    if editor.opset(node) < 5:
        return False
    have, target = editor.shapes.dims(x), editor.shapes.elements(node.inputs[1])
    if have is None or target is None or len(have) != target.items.size:
        return False
    read = have if x is node.inputs[0] else editor.shapes.dims(node.inputs[0])
    copied = () if read is None or attribute_int(node, "allowzero", 0) != 0 else tuple(read)

    def is_own(axis: int, wanted: object) -> bool:
        dim = have[axis]
        return copied[axis : axis + 1] == (dim,) if wanted == ZERO else wanted == dim

    unproven = [(have[i], w) for i, w in enumerate(target.items.flat) if not is_own(i, w)]
    if len(unproven) != 1:
        return not unproven
    # The number of elements decides one dimension, unless another one is 0; -1 asks for just that.
    ((dim, wanted),) = unproven
    if wanted == Size.of(-1):
        return True
    others_static = sum(bool(d.value) for d in have) >= len(have) - (dim.value is None)
    return others_static and (dim.value is None or not (isinstance(wanted, Size) and wanted.value is not None))


def _expands_nothing(node: ir.Node, editor: Editor) -> bool:
    have, target = editor.shapes.dims(node.inputs[0]), editor.shapes.elements(node.inputs[1])
    if have is None or target is None or target.items.size > len(have):
        return False
    return all(w in (ONE, d) for d, w in zip(reversed(have), reversed(list(target.items.flat))))


def _takes_everything(node: ir.Node, editor: Editor) -> bool:
    if editor.opset(node) < 10:
        starts = list(node.attributes["starts"].as_ints())
        ends = list(node.attributes["ends"].as_ints())
        steps = [1] * len(starts)
    else:
        has_steps = len(node.inputs) > 4 and node.inputs[4] is not None
        arrays = [editor.constant(v) for v in (*node.inputs[1:3], *(node.inputs[4:5] if has_steps else ()))]
        if any(a is None or a.ndim != 1 for a in arrays):
            return False
        starts, ends, steps = [*(a.tolist() for a in arrays if a is not None), [1]][:3]
    # Exporters write "to the end" as INT32_MAX or INT64_MAX.
    return all(s == 0 for s in starts) and all(e >= 2**31 - 1 for e in ends) and all(s == 1 for s in steps)


def _pads_nothing(node: ir.Node, editor: Editor) -> bool:
    if editor.opset(node) < 11:
        return "pads" in node.attributes and not any(node.attributes["pads"].as_ints())
    pads = editor.constant(node.inputs[1])
    return pads is not None and not pads.any()


def _times_one(node: ir.Node, editor: Editor) -> ir.Value | None:
    a, b = node.inputs
    if a is None or b is None or editor.opset(node) < 7:
        return None
    for x, one in ((a, b), (b, a))[: 1 if node.op_type == "Div" else 2]:
        rank, rank_one = editor.shapes.rank(x), editor.shapes.rank(one)
        if rank_one is None or (rank_one > 0 and (rank is None or rank_one > rank)):
            continue
        if editor.scalar(one) == 1.0:
            return x
    return None


# Operator -> whether a node gives its first input.
_KEEPS: dict[str, Callable[[ir.Node, Editor], bool]] = {
    "Identity": lambda node, editor: True,
    **dict.fromkeys(("Concat", "Sum", "Max", "Min", "Mean"), _has_one_input),
    "Dropout": drops_nothing,
    **dict.fromkeys(("Cast", "CastLike"), _casts_to_its_own),
    "Transpose": _is_identity_transpose,
    "Flatten": _flattens_a_matrix,
    "Expand": _expands_nothing,
    "Slice": _takes_everything,
    "Pad": _pads_nothing,
}
FACTORS = frozenset(("Mul", "Div"))
CANDIDATES = FACTORS | _KEEPS.keys() | {"Reshape"}


# -- equal nodes -------------------------------------------------------------------------------------------------


@functools.cache
def _is_known(domain: str, op_type: str) -> bool:
    return domain == DOMAIN or onnx.defs.has(op_type, domain)


def _is_pure(node: ir.Node) -> bool:
    """Whether equal inputs and attributes surely give equal outputs, and nobody minds one node for two."""
    return node.op_type not in NEVER_MERGED and _is_known(node.domain, node.op_type)


def _attribute_key(attribute: ir.Attr) -> Hashable | None:
    if attribute.is_ref():
        return ("ref", attribute.ref_attr_name)
    if attribute.type in (ir.AttributeType.INTS, ir.AttributeType.FLOATS, ir.AttributeType.STRINGS):
        return (attribute.type, tuple(attribute.value))
    if attribute.type in (ir.AttributeType.INT, ir.AttributeType.STRING):
        return (attribute.type, attribute.value)
    if attribute.type == ir.AttributeType.FLOAT:
        return (attribute.type, np.float32(attribute.value).tobytes())
    if attribute.type == ir.AttributeType.TENSOR:
        return _tensor_key(attribute.as_tensor())
    return None


def _tensor_key(tensor: ir.TensorProtocol) -> Hashable | None:
    if tensor.dtype not in DTYPES or tensor.nbytes > MAX_COMPARED_BYTES:
        return None
    return (tensor.dtype, tensor_dims(tensor), tensor.tobytes())
