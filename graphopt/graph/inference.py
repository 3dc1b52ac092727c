"""Types and shapes of the values of a model, for the passes to ask.

onnx's own shape inference, with data propagation, on a copy of the graph without large weights. What it finds is put
on the values while passes run and taken off again before the model is written, so that a file changes only where it
was rewritten.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import onnx
import onnx_ir as ir

from graphopt.errors import OptionError
from graphopt.graph.model import bodies, tensor_bytes, tensor_dims

_DECLARED = "graphopt.declared"
Dims = Sequence[int | str | None]
# Smaller initializers may be shapes and axes, which data propagation reads.
_SMALL_TENSOR_BYTES = 1024
# What onnx calls a dimension of which it knows nothing.
_MADE_SYMBOL = "unk__"
# onnx follows each call of a function into its body; calls that call twice would never end.
_MAX_INLINED_NODES = 1_000_000


def set_input_shapes(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> None:
    """Fixes the dimensions of graph inputs.

    Raises:
        OptionError: an unknown input, another rank, or a contradiction with a static dimension.
    """
    inputs = {v.name: v for v in model.graph.inputs}
    for name, dims in shapes.items():
        if name not in inputs:
            raise OptionError(f"--input-shape: the model has no input '{name}'; it has {', '.join(map(str, inputs))}")
        declared = inputs[name].shape
        if declared is not None:
            fits = len(declared) == len(dims) and all(not isinstance(d, int) or d == n for d, n in zip(declared, dims))
            if not fits:
                raise OptionError(
                    f"--input-shape: '{name}' is {declared}, which {'x'.join(map(str, dims))} does not fit"
                )
        inputs[name].shape = ir.Shape(dims)


def infer(model: ir.Model, proto: onnx.ModelProto | None = None) -> None:
    """Puts inferred types and shapes on the model's values; declared ones are refined, never contradicted.

    Args:
        model: the model.
        proto: the message that `model` was made from, when its graph still is as it came: saves writing it again.
    """
    stripped = _written(model) if proto is None else _without_large_weights(proto)
    if proto is not None:
        for value, info in zip(model.graph.inputs, stripped.graph.input):
            if value.name == info.name and value.shape is not None:
                info.CopyFrom(ir.serde.serialize_value(value))
    try:
        inferred = onnx.shape_inference.infer_shapes(stripped, check_type=False, strict_mode=False, data_prop=True)
    except Exception:  # invalid corners of a model are no reason to refuse the rest of it
        return
    _Merge(model.meta.setdefault(_DECLARED, {})).graph(model.graph, inferred.graph)


def forget(model: ir.Model) -> None:
    """Takes off what `infer` put on."""
    for value, (type_, shape) in model.meta.pop(_DECLARED, {}).items():
        value.type, value.shape = type_, shape


def is_certain(shape: ir.Shape | None) -> bool:
    """Whether nothing more can be inferred: every dimension is a number or a symbol that the model itself gave."""
    return shape is not None and all(
        isinstance(d, int) or (d.value is not None and not d.value.startswith(_MADE_SYMBOL)) for d in shape
    )


def declare_like(model: ir.Model, new: ir.Value, old: ir.Value) -> None:
    """Lets `forget` leave the type and shape that the model declared for `old` on `new`, which takes its place."""
    declared = model.meta.get(_DECLARED, {})
    if old in declared:
        declared[new] = declared[old]
    else:
        declared.pop(new, None)


def declare(model: ir.Model, value: ir.Value) -> None:
    """Lets `forget` leave on a value what is known of it now, for those who cannot find it out by themselves."""
    shape = value.shape
    if not is_certain(shape) and shape is not None:
        symbols = [d if isinstance(d, int) else d.value for d in shape]
        shape = ir.Shape([None if isinstance(d, str) and d.startswith(_MADE_SYMBOL) else d for d in symbols])
    model.meta.get(_DECLARED, {})[value] = (value.type, shape)


def retype(model: ir.Model, value: ir.Value, dtype: ir.DataType) -> None:
    """Gives a value of the model another element type, which `forget` leaves on it."""
    value.type = ir.TensorType(dtype)
    declared = model.meta.get(_DECLARED, {})
    if value in declared:
        type_, shape = declared[value]
        declared[value] = (type_ if type_ is None else value.type, shape)


def _without_large_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which large initializers are inputs of their type and shape: inference does not read their data."""
    stripped = onnx.ModelProto(ir_version=max(proto.ir_version, 4))
    stripped.opset_import.extend(proto.opset_import)
    if _inlined_nodes(proto.functions) <= _MAX_INLINED_NODES:
        stripped.functions.extend(proto.functions)
    graph = stripped.graph
    graph.name = proto.graph.name
    graph.node.extend(proto.graph.node)
    graph.input.extend(proto.graph.input)
    graph.output.extend(proto.graph.output)
    graph.value_info.extend(proto.graph.value_info)
    inputs = {value.name for value in proto.graph.input}
    small = []
    for tensor in proto.graph.initializer:
        if math.prod(tensor.dims) <= _SMALL_TENSOR_BYTES and len(tensor.raw_data) <= _SMALL_TENSOR_BYTES:
            small.append(tensor)
        elif tensor.name not in inputs:
            _declare(graph, tensor.name, tensor.data_type, tensor.dims)
    graph.initializer.extend(small)
    return stripped


def _written(model: ir.Model) -> onnx.ModelProto:
    """The model as a message, without the data of large weights (onnx_ir would write all of it)."""
    message = onnx.ModelProto(ir_version=max(model.ir_version, 4))
    message.opset_import.extend(onnx.helper.make_opsetid(d, v) for d, v in model.opset_imports.items())
    functions = [ir.serde.serialize_function(f) for f in model.functions.values()]
    if _inlined_nodes(functions) <= _MAX_INLINED_NODES:
        message.functions.extend(functions)
    graph = message.graph
    graph.name = model.graph.name or ""
    for value in model.graph.inputs:
        ir.serde.serialize_value_into(graph.input.add(), value)
    for value in model.graph.outputs:
        ir.serde.serialize_value_into(graph.output.add(), value)
    for name, value in model.graph.initializers.data.items():
        tensor = value.const_value
        if tensor is None:
            continue
        if tensor_bytes(tensor) <= _SMALL_TENSOR_BYTES:
            ir.serde.serialize_tensor_into(graph.initializer.add(), from_=tensor)
        elif not value.is_graph_input():
            _declare(graph, name, tensor.dtype, tensor_dims(tensor))
    for node in model.graph:
        ir.serde.serialize_node_into(graph.node.add(), from_=node)
        for value in node.outputs:
            if value.name and value.type is not None and not value.is_graph_output():
                ir.serde.serialize_value_into(graph.value_info.add(), value)
    return message


def _inlined_nodes(functions: Iterable[onnx.FunctionProto]) -> float:
    """Nodes of all functions with the functions that they call written out; infinite where one calls itself."""
    bodies = {(f.domain, f.name): f.node for f in functions}
    sizes: dict[tuple[str, str], float] = {}

    def size(nodes: Iterable[onnx.NodeProto]) -> float:
        total = 0.0
        for node in nodes:
            key = (node.domain, node.op_type)
            if key in bodies and key not in sizes:
                sizes[key] = math.inf  # until it is known
                sizes[key] = size(bodies[key])
            total += sizes.get(key, 1)
            total += sum(size(g.node) for a in node.attribute for g in (a.g, *a.graphs))
        return total

    return sum(size(nodes) for nodes in bodies.values())


def _declare(graph: onnx.GraphProto, name: str, dtype: int, dims: Sequence[int]) -> None:
    info = graph.input.add(name=name)
    info.type.tensor_type.elem_type = dtype
    shape = info.type.tensor_type.shape
    for n in dims:
        shape.dim.add(dim_value=n)


class _Merge:
    """Carries what inference found over to a model's values.

    Args:
        declared: receives the type and shape that each value had before.
    """

    def __init__(self, declared: dict[ir.Value, tuple[ir.TypeProtocol | None, ir.Shape | None]]) -> None:
        self._declared = declared
        # A large graph has few different shapes: values share them, and nobody can change them.
        self._shapes: dict[tuple[int | str | None, ...], ir.Shape] = {}
        # Nor many different types, which come as messages: (element type, dimensions), None where there are none.
        self._types: dict[bytes, tuple[int, Dims | None]] = {}

    def graph(self, graph: ir.Graph, proto: onnx.GraphProto) -> None:
        types = {info.name: info.type for info in (*proto.value_info, *proto.output)}
        for i, node in enumerate(graph):
            for value in node.outputs:
                found = types.get(value.name or "")
                if found is not None:
                    self._refine(value, found)
            if inner := bodies(node):
                for body, body_proto in zip(inner, _body_protos(proto.node[i])):
                    self.graph(body, body_proto)

    def _refine(self, value: ir.Value, found: onnx.TypeProto) -> None:
        message = found.SerializeToString()
        if message not in self._types:
            self._types[message] = _tensor_type(found)
        element, dims = self._types[message]
        type_, shape = value.type, value.shape
        if type_ is None and element:
            value.type = ir.TensorType(ir.DataType(element))
        if dims is not None:
            if shape is None:
                value.shape = self._shape(dims)
            elif len(shape) == len(dims):
                # A declared static dimension or symbol says at least as much as an inferred one.
                value.shape = self._shape([_declared_or(d, n) for d, n in zip(shape, dims)])
        if value.type is not type_ or value.shape is not shape:
            self._declared.setdefault(value, (type_, shape))

    def _shape(self, dims: Sequence[int | str | None]) -> ir.Shape | None:
        if any(isinstance(d, int) and d < 0 for d in dims):
            return None
        key = tuple(dims)
        if key not in self._shapes:
            self._shapes[key] = ir.Shape(key, frozen=True)
        return self._shapes[key]


def _tensor_type(found: onnx.TypeProto) -> tuple[int, Dims | None]:
    if not found.HasField("tensor_type"):
        return 0, None
    tensor = found.tensor_type
    if not tensor.HasField("shape"):
        return tensor.elem_type, None
    return tensor.elem_type, [
        d.dim_value if d.HasField("dim_value") else (d.dim_param or None) for d in tensor.shape.dim
    ]


def _body_protos(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [g for a in node.attribute for g in ((a.g,) if a.type == onnx.AttributeProto.GRAPH else a.graphs)]


def _declared_or(declared: int | ir.SymbolicDim, inferred: int | str | None) -> int | str | None:
    if isinstance(declared, int):
        return declared
    if isinstance(inferred, int):
        return inferred
    return declared.value or inferred
