"""The registry of fault kinds, and helpers to plant a fault in a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.rewriting import Array

DOMAIN = "com.graphopt"
DType = np.dtype[Any]
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)


@dataclass(frozen=True)
class Hints:
    """Information about a model that the file does not contain.

    Attributes:
        masks: mask inputs [B, S], where 1 or true keeps a position.
        ids: index inputs -> (lowest, highest), both inclusive.
        boxes: detector outputs -> (axis of the columns, number of leading columns that are box coordinates in pixels).
    """

    masks: tuple[str, ...] = ()
    ids: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    boxes: Mapping[str, tuple[int, int]] = field(default_factory=dict)


class Facts:
    """A model with its constants, inferred types, and the users of each value."""

    def __init__(self, model: onnx.ModelProto, hints: Hints) -> None:
        self.model = model
        self.hints = hints
        self.nodes = list(model.graph.node)
        self.constants: dict[str, Array] = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        for node in self.nodes:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                self.constants[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
        self.users: dict[str, list[onnx.NodeProto]] = {}
        self.producer: dict[str, onnx.NodeProto] = {}
        for node in self.nodes:
            for name in node.input:
                self.users.setdefault(name, []).append(node)
            for name in node.output:
                self.producer[name] = node
        inferred = onnx.shape_inference.infer_shapes(model)
        self.types: dict[str, onnx.TypeProto.Tensor] = {}
        for value in (*inferred.graph.value_info, *inferred.graph.input, *inferred.graph.output):
            if value.type.HasField("tensor_type"):
                self.types[value.name] = value.type.tensor_type
        self.inputs = [i.name for i in model.graph.input if i.name not in self.constants]
        self.outputs = [o.name for o in model.graph.output]
        self.half = any(a.dtype == np.float16 for a in self.constants.values())

    def rank(self, name: str) -> int | None:
        """The rank of a value, or None if inference does not know it."""
        found = self.types.get(name)
        return len(found.shape.dim) if found is not None and found.HasField("shape") else None

    def elem_type(self, name: str) -> int:
        """The element type of a value, or 0 if inference does not know it."""
        found = self.types.get(name)
        return found.elem_type if found is not None else 0

    def dtype(self, name: str) -> DType:
        """The numpy dtype of a float value; float32 if inference does not know it."""
        return np.dtype(np.float16 if self.elem_type(name) == TensorProto.FLOAT16 else np.float32)

    def dim(self, name: str, axis: int) -> int | str | None:
        """One dimension as a number, a symbol or None."""
        if self.rank(name) is None:
            return None
        d = self.types[name].shape.dim[axis]
        return d.dim_value if d.HasField("dim_value") else d.dim_param or None

    def values(self, rank: int, *, ops: Sequence[str] = ()) -> Iterator[str]:
        """Computed float values of a given rank, in the order of the file."""
        for node in self.nodes:
            for name in node.output if not ops or node.op_type in ops else ():
                if self.rank(name) == rank and self.elem_type(name) in FLOATS and name not in self.constants:
                    yield name


class Patch:
    """A copy of a model that receives a fault."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        self.graph = self.model.graph
        self._made: list[onnx.NodeProto] = []
        self._count = 0

    def node(self, like: onnx.NodeProto) -> onnx.NodeProto:
        """Returns the node of the copy that corresponds to the node `like` of the original."""
        found: onnx.NodeProto = next(n for n in self.graph.node if list(n.output) == list(like.output))
        return found

    def attribute(self, like: onnx.NodeProto, **values: Any) -> None:
        node = self.node(like)
        for name, value in values.items():
            kept = [a for a in node.attribute if a.name != name]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute(name, value)])

    def become(self, like: onnx.NodeProto, op_type: str, inputs: Sequence[str], **attributes: Any) -> None:
        """Replaces a node by another operator with the same outputs."""
        node = self.node(like)
        node.CopyFrom(helper.make_node(op_type, inputs, node.output, name=node.name, **attributes))

    def set_constant(self, name: str, array: Array) -> None:
        """Replaces an initializer or the value of a Constant node, with the same element type."""
        for tensor in self.graph.initializer:
            if tensor.name == name:
                dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
                tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array).astype(dtype), name))
                return
        for node in self.graph.node:
            if node.op_type == "Constant" and node.output[0] == name:
                tensor = node.attribute[0].t
                dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
                tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array).astype(dtype), tensor.name))
                return
        raise KeyError(name)

    def const(self, array: Any, dtype: Any = None) -> str:
        """Adds an initializer and returns its name."""
        self._count += 1
        name = f"planted/constant_{self._count}"
        made = np.asarray(array, dtype)
        self.graph.initializer.append(numpy_helper.from_array(made, name))
        return name

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Creates a node with one output and returns its name; `tap` inserts the node into the graph."""
        self._count += 1
        name = f"planted/{op_type}_{self._count}"
        self._made.append(helper.make_node(op_type, inputs, [name], name=name, **attributes))
        return name

    def tap(self, value: str, change: Callable[[str], str]) -> None:
        """Makes all users of `value` read change(value) instead, including the graph output of that name."""
        raw = f"planted/raw_{value}"
        producers = [i for i, n in enumerate(self.graph.node) if value in n.output]
        if producers:
            node = self.graph.node[producers[0]]
            node.output[:] = [raw if o == value else o for o in node.output]
            source, target, at = raw, value, producers[0] + 1
            for info in [i for i in self.graph.value_info if i.name == value]:
                self.graph.value_info.remove(info)
        else:
            for node in self.graph.node:
                _rename_inputs(node, value, raw)
            source, target, at = value, raw, 0
        self._made = []
        self._made.append(helper.make_node("Identity", [change(source)], [target], name=f"planted/end_{value}"))
        for i, node in enumerate(self._made):
            self.graph.node.insert(at + i, node)


def _rename_inputs(node: onnx.NodeProto, old: str, new: str) -> None:
    """Renames an input of a node and in its subgraphs, which see the names of the outer graph."""
    node.input[:] = [new if i == old else i for i in node.input]
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                _rename_inputs(inner, old, new)


Edit = Callable[[Patch], None]
Sites = Iterator[tuple[str, Edit]]
Kind = Callable[[Facts], Sites]
KINDS: dict[str, Kind] = {}


def kind(name: str) -> Callable[[Kind], Kind]:
    """Registers a fault kind: a function from the facts of a model to pairs of (site, edit)."""

    def register(function: Kind) -> Kind:
        assert name not in KINDS
        KINDS[name] = function
        return function

    return register


# Common edits.


def set_constant(name: str, array: Array) -> Edit:
    """Replaces the values of an initializer or a Constant node."""
    return lambda patch: patch.set_constant(name, array)


def set_attributes(node: onnx.NodeProto, **values: Any) -> Edit:
    """Sets attributes of a node."""
    return lambda patch: patch.attribute(node, **values)


def set_inputs(node: onnx.NodeProto, inputs: Sequence[str]) -> Edit:
    """Replaces the inputs of a node."""

    def edit(patch: Patch) -> None:
        patch.node(node).input[:] = inputs

    return edit


def become(node: onnx.NodeProto, op_type: str, inputs: Sequence[str], **attributes: Any) -> Edit:
    """Replaces a node by another operator."""
    return lambda patch: patch.become(node, op_type, inputs, **attributes)


def tap(value: str, change: Callable[..., str], *arguments: Any) -> Edit:
    """Makes all users of `value` read change(patch, value, *arguments) instead."""
    return lambda patch: patch.tap(value, lambda x: change(patch, x, *arguments))


def each(values: Iterable[tuple[Any, ...]], change: Callable[..., str]) -> Sites:
    """One site for each (value, ...): its users read change(patch, value, ...) instead."""
    for name, *rest in values:
        yield name, tap(name, change, *rest)


def integers(facts: Facts, names: Iterable[str], change: Callable[..., str]) -> Sites:
    """One site for each integer value of any type: change(patch, value, name) takes and returns int64."""

    def wide(patch: Patch, x: str, name: str) -> str:
        changed = change(patch, patch.op("Cast", x, to=TensorProto.INT64), name)
        return patch.op("Cast", changed, to=facts.elem_type(name))

    return each(((name, name) for name in names), wide)


def nodes(facts: Facts, *ops: str) -> Iterator[onnx.NodeProto]:
    """The nodes of the given operators, in the order of the file."""
    return (n for n in facts.nodes if n.op_type in ops)


def integer(patch: Patch, value: int | Sequence[int]) -> str:
    """Adds an int64 constant."""
    return patch.const(value, np.int64)


def times(patch: Patch, x: str, factor: Array | float, dtype: DType) -> str:
    """X multiplied by a constant."""
    return patch.op("Mul", x, patch.const(factor, dtype))


def plus(patch: Patch, x: str, summand: Array | float, dtype: DType) -> str:
    """X plus a constant."""
    return patch.op("Add", x, patch.const(summand, dtype))


def first_for_all(patch: Patch, x: str, *_: object) -> str:
    """The first entry along axis 1, repeated for all entries."""
    zero, one = integer(patch, [0]), integer(patch, [1])
    return patch.op("Expand", patch.op("Slice", x, zero, one, one), patch.op("Shape", x))


def plant(model: onnx.ModelProto, edit: Edit) -> onnx.ModelProto:
    """A copy of the model with the fault."""
    patch = Patch(model)
    edit(patch)
    return patch.model


@dataclass(frozen=True)
class Product:
    """A node that multiplies by constant weights.

    Attributes:
        node: Conv, ConvTranspose, Gemm, MatMul or a GraphOpt operator.
        name: name of the weights.
        weight: value of the weights.
        out: axis of the output channels.
        inner: axis of the input channels.
        bias: name of the bias if it is a separate constant.
    """

    node: onnx.NodeProto
    name: str
    weight: Array
    out: int
    inner: int
    bias: str | None


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """The value of an attribute, or `default`."""
    for a in node.attribute:
        if a.name == name:
            return helper.get_attribute_value(a)
    return default


def where(node: onnx.NodeProto) -> str:
    """The name of a node in a list of sites."""
    return node.name or node.output[0]


def products(facts: Facts) -> Iterator[Product]:
    """Convolutions and linear layers with constant weights of more than 8 elements."""
    for node in facts.nodes:
        if len(node.input) < 2:
            continue
        weight = facts.constants.get(node.input[1])
        if weight is None or weight.dtype.kind != "f" or weight.ndim < 2 or weight.size <= 8:
            continue
        bias = node.input[2] if len(node.input) > 2 and node.input[2] in facts.constants else None
        if node.op_type == "Conv" or node.op_type.startswith("WinogradConv"):
            yield Product(node, node.input[1], weight, 0, 1, bias)
        elif node.op_type == "ConvTranspose":
            yield Product(node, node.input[1], weight, 1, 0, bias)
        elif node.op_type == "Gemm":
            trans = bool(attribute(node, "transB", 0))
            yield Product(node, node.input[1], weight, 0 if trans else 1, 1 if trans else 0, bias)
        elif node.op_type == "MatMul" and weight.ndim == 2:
            yield Product(node, node.input[1], weight, 1, 0, _added(facts, node.output[0]))


def each_weight(facts: Facts, change: Callable[[Product], Array | None]) -> Sites:
    """One site for each product with weights that `change` replaces."""
    for p in products(facts):
        array = change(p)
        if array is not None and not np.array_equal(array, p.weight):
            yield p.name, set_constant(p.name, array)


def _added(facts: Facts, value: str) -> str | None:
    """The constant that the only user of a value adds to it."""
    users = facts.users.get(value, [])
    if len(users) == 1 and users[0].op_type == "Add":
        other = [i for i in users[0].input if i != value]
        if other and other[0] in facts.constants and facts.constants[other[0]].ndim == 1:
            return str(other[0])
    return None


def bfloat16(array: Array) -> Array:
    """The array rounded to bfloat16 precision."""
    return np.asarray(array.astype(ml_dtypes.bfloat16).astype(array.dtype))


def mantissa(array: Array, bits: int) -> Array:
    """Float32 values rounded to the given number of mantissa bits; 10 bits is TF32."""
    drop = 23 - bits
    raw = np.ascontiguousarray(array, np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((raw + (1 << (drop - 1))) >> drop) << drop
    return rounded.astype(np.uint32).view(np.float32)
