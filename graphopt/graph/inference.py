"""Infers types and shapes of a model's values for the passes.

`infer` runs onnx's shape inference with data propagation on a copy of the graph without large weights. The results are
set on the values while passes run, and are reset before the model is written. A file thus changes only where it was
rewritten.

Inferred dimensions take precedence over dimensions that the file declares for intermediate values, because exporters
and editors do not update declared ones when an input changes. An inferred integer or a symbol of the inputs replaces a
declared integer. Runtimes check only the declared shapes of inputs, and ignore declared dimensions that mean any size
(`known_dim`). Each dimension that means any size is treated as a separate unknown.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx
import onnx_ir as ir

from graphopt.errors import OptionError
from graphopt.graph import messages
from graphopt.graph.shapes.facts import MICROSOFT
from graphopt.graph.traversal import bodies, captures, foreign_bodies, graphs, tensor_bytes, tensor_dims
from graphopt.ops import DOMAIN

_DECLARED = "graphopt.declared"
Dims = Sequence[int | str | None]
# Initializers up to this size may be shapes and axes, which data propagation uses.
_SMALL_TENSOR_BYTES = 1024
# The floating point types in which ONNX Runtime's kernels compute; others are only stored and converted.
RUNTIME_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE})
# Prefixes of symbols: onnx's for an unknown dimension, and ours for an unknown dimension of an input.
GENERATED_SYMBOL = "unk__"
_INPUT_SYMBOL = "graphopt_unknown"
_GENERATED_PREFIXES = (GENERATED_SYMBOL, _INPUT_SYMBOL)
# With more nodes after inlining, functions are not passed to onnx's inference. It enters the function body at each
# call, so nested calls can take exponential time.
_MAX_INLINED_NODES = 1_000_000
# Words that exporters write for any size; equal words do not mean equal sizes.
_ANY_SIZE = frozenset("any dim dyn dynamic nan none null unk unknown undefined".split())
# Operator of com.microsoft -> indices of the outputs that have the type of its floating-point inputs.
_FLOAT_RESULT: Mapping[str, Sequence[int]] = {
    **dict.fromkeys(
        "BiasAdd BiasGelu BiasSplitGelu CropAndResize DynamicQuantizeMatMul FastGelu FusedConv FusedGemm FusedMatMul "
        "GatherBlockQuantized Gelu GroupNorm Inverse MatMulIntegerToFloat MatMulNBits NhwcConv PackedAttention "
        "PackedMultiHeadAttention QuickGelu RotaryEmbedding TransposeMatMul".split(),
        (0,),
    ),
    **dict.fromkeys(("Attention", "SkipGroupNorm"), (0, 1)),
    **dict.fromkeys(("DecoderMaskedMultiHeadAttention", "MultiHeadAttention"), (0, 1, 2)),
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), (0, 3)),
    "EmbedLayerNormalization": (0, 2),
    "GroupQueryAttention": (0,),
}
_ELEMENT_TYPES = {int(d): d for d in ir.DataType if d != ir.DataType.UNDEFINED}
# Some tools write -1, 0 or INT32_MAX for any size.
_LARGEST_DIM = 2**31 - 2


def known_dim(dim: int | str | ir.SymbolicDim | None) -> int | str | None:
    """Returns a declared dimension, or None if it does not mean a definite size.

    Integers below 1 and beyond 2^31 - 2 mean any size, so the 0 of an empty tensor counts as unknown. Symbols without a
    letter ("?", "-1") and the words of _ANY_SIZE mean any size as well.
    """
    if isinstance(dim, int):
        return dim if 0 < dim <= _LARGEST_DIM else None
    name = dim.value if isinstance(dim, ir.SymbolicDim) else dim
    if name is None or name.strip().lower() in _ANY_SIZE or not any(c.isalpha() for c in name):
        return None
    return name


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
            known = [known_dim(d) for d in declared]
            fits = len(known) == len(dims) and all(not isinstance(d, int) or d == n for d, n in zip(known, dims))
            if not fits:
                raise OptionError(
                    f"--input-shape: '{name}' is {declared}, which {'x'.join(map(str, dims))} does not fit"
                )
        inputs[name].shape = ir.Shape(dims)


def infer(model: ir.Model, proto: onnx.ModelProto | None = None, every: Sequence[ir.Graph] | None = None) -> None:
    """Sets inferred types and shapes on the model's values.

    Args:
        model: the model.
        proto: the message that `model` was read from, if the graph is unchanged; it saves a serialization.
        every: all of its graphs, if they are known.
    """
    declared = model.meta.setdefault(_DECLARED, {})
    every = list(graphs(model)) if every is None else every
    _distrust(model, every, declared)
    _type_microsoft(model, every, declared)
    message = _message(model, every, proto)
    merge = _Merge(declared, bodies=_has_bodies(model, every))
    for _ in range(2):
        try:
            inferred = onnx.shape_inference.infer_shapes(message, check_type=False, strict_mode=False, data_prop=True)
        except Exception:  # a model with an invalid part is still rewritten elsewhere
            return
        merge.graph(model.graph, inferred.graph)
        if not merge.only_declared:
            break
        # The second inference also receives the declared shapes that the first one did not find. From these it can
        # infer shapes of later values.
        outputs = {info.name: info for info in message.graph.output}
        for value in merge.only_declared:
            ir.serde.serialize_value_into(outputs.get(value.name) or message.graph.value_info.add(), value)
    if _has_bodies(model, every):
        for body, body_message in foreign_bodies(model.graph, message.graph):
            _infer_foreign_body(message, body, body_message, merge)


def _has_bodies(model: ir.Model, every: Sequence[ir.Graph]) -> bool:
    """Returns whether any node has a body. Counting the graphs is faster than visiting all nodes."""
    return len(every) > 1 + len(model.functions)


def _infer_foreign_body(message: onnx.ModelProto, body: ir.Graph, body_message: onnx.GraphProto, merge: _Merge) -> None:
    """Infers the body of an operator that onnx does not know (BeamSearch); onnx's inference skips such bodies."""
    alone = onnx.ModelProto(ir_version=message.ir_version)
    alone.opset_import.extend(message.opset_import)
    alone.functions.extend(message.functions)
    graph = alone.graph
    graph.name = body_message.name
    graph.node.extend(body_message.node)
    graph.input.extend(body_message.input)
    graph.output.extend(body_message.output)
    for tensor in body_message.initializer:
        if math.prod(tensor.dims) <= _SMALL_TENSOR_BYTES:
            graph.initializer.append(tensor)
        else:
            _Declare(graph)(tensor.name, tensor.data_type, tuple(tensor.dims))
    for value in captures(body):
        tensor = value.const_value
        if tensor is not None and not value.is_graph_input() and tensor_bytes(tensor) <= _SMALL_TENSOR_BYTES:
            ir.serde.serialize_tensor_into(graph.initializer.add(), from_=tensor)
        elif value.type is not None:
            ir.serde.serialize_value_into(graph.input.add(), value)
    try:
        inferred = onnx.shape_inference.infer_shapes(alone, check_type=False, strict_mode=False, data_prop=True)
    except Exception:  # as in `infer`
        return
    merge.graph(body, inferred.graph, main=False)


_Declared = dict[ir.Value, tuple[ir.TypeProtocol | None, ir.Shape | None]]


def _distrust(model: ir.Model, every: Sequence[ir.Graph], declared: _Declared) -> None:
    """Removes declared types and dimensions that mean any type or size; `forget` restores them.

    Initializers get the type and shape of their tensors; unknown dimensions of model inputs get separate symbols.
    """
    for graph in every:
        for value in graph.initializers.data.values():
            tensor, shape = value.const_value, value.shape
            if tensor is None or shape is None or value.is_graph_input():
                continue
            held = tensor_dims(tensor)
            if shape.dims != held:
                _set_type_and_shape(value, ir.TensorType(tensor.dtype), ir.Shape(held), declared)
        for value in graph.inputs:
            _distrust_value(value, declared)
        for node in graph:
            for value in node.outputs:
                if value.type is not None or value.shape is not None:
                    _distrust_value(value, declared)
    for i, value in enumerate(model.graph.inputs):
        if value.shape is not None and not value.is_initializer():
            dims = _dims(value.shape)
            if None in dims:
                named = [f"{_INPUT_SYMBOL}_{i}_{axis}" if d is None else d for axis, d in enumerate(dims)]
                _set_type_and_shape(value, value.type, ir.Shape(named), declared)


def _distrust_value(value: ir.Value, declared: _Declared) -> None:
    type_, shape = value.type, value.shape
    if type_ is not None and type_.dtype == ir.DataType.UNDEFINED:
        if not (value.is_graph_input() or value.is_graph_output()):
            value.type = type_ = None  # runtimes refuse an undefined element type
        elif isinstance(type_, ir.TensorType):
            type_ = None
    if shape is not None:
        dims = _dims(shape)
        known = tuple([known_dim(d) for d in dims])
        shape = shape if known == dims else ir.Shape(known)
    if type_ is not value.type or shape is not value.shape:
        _set_type_and_shape(value, type_, shape, declared)


def _type_microsoft(model: ir.Model, every: Sequence[ir.Graph], declared: _Declared) -> None:
    """Sets output types of com.microsoft operators: onnx's inference uses these types, but cannot find them."""
    if not any(
        MICROSOFT in imports for imports in (model.opset_imports, *(f.opset_imports for f in model.functions.values()))
    ):
        return
    for graph in every:
        for node in graph:
            if node.domain != MICROSOFT or not node.outputs or node.op_type not in _FLOAT_RESULT:
                continue
            for i in _FLOAT_RESULT[node.op_type]:
                if i < len(node.outputs) and (value := node.outputs[i]).type is None:
                    known = (v.dtype for v in node.inputs if v is not None and v.dtype in RUNTIME_FLOATS)
                    if (dtype := next(known, None)) is not None:
                        _set_type_and_shape(value, ir.TensorType(dtype), value.shape, declared)


def _dims(shape: ir.Shape) -> tuple[int | str | None, ...]:
    return tuple([d if isinstance(d, int) else d.value for d in shape.dims])


def _set_type_and_shape(
    value: ir.Value,
    type_: ir.TypeProtocol | None,
    shape: ir.Shape | None,
    declared: _Declared,
) -> None:
    declared.setdefault(value, (value.type, value.shape))
    value.type, value.shape = type_, shape


def infer_again(model: ir.Model) -> None:
    """Infers again after a change.

    Earlier results are removed first: onnx numbers its symbols from 0 in each run, so equal names of two runs may mean
    different sizes.
    """
    forget(model)
    infer(model)


def forget(model: ir.Model) -> None:
    """Removes the results of `infer`."""
    for value, (type_, shape) in model.meta.pop(_DECLARED, {}).items():
        value.type, value.shape = type_, shape


def clone(model: ir.Model) -> ir.Model:
    """Copies a model with its inferred types and shapes; the copy shares the tensors."""
    copy = model.clone()
    if declared := model.meta.get(_DECLARED):
        copies = dict(zip(_values(model), _values(copy), strict=True))
        copy.meta[_DECLARED] = {copies[value]: held for value, held in declared.items() if value in copies}
    return copy


def _values(model: ir.Model) -> Iterator[ir.Value]:
    for graph in graphs(model):
        yield from graph.inputs
        yield from graph.initializers.data.values()
        for node in graph:
            yield from node.outputs


def as_declared(model: ir.Model, value: ir.Value) -> tuple[ir.TypeProtocol | None, ir.Shape | None]:
    """Returns the type and shape that a value has in the file."""
    found: tuple[ir.TypeProtocol | None, ir.Shape | None] = model.meta.get(_DECLARED, {}).get(
        value, (value.type, value.shape)
    )
    return found


def is_certain(shape: ir.Shape | None) -> bool:
    """Returns whether a shape is complete: every dimension is an integer or a symbol of the model."""
    if shape is None:
        return False
    symbols = [d.value for d in shape.dims if not isinstance(d, int)]
    return not symbols or all(s is not None and not s.startswith(GENERATED_SYMBOL) for s in symbols)


def have_equal_dims(a: ir.Shape | None, b: ir.Shape | None) -> bool:
    """Returns whether two shapes are equal after symbols that inference made are replaced by unknown dimensions."""
    return (a if a is None else _without_generated(_dims(a))) == (b if b is None else _without_generated(_dims(b)))


def _without_generated(dims: tuple[int | str | None, ...]) -> tuple[int | str | None, ...]:
    return tuple([None if isinstance(d, str) and d.startswith(_GENERATED_PREFIXES) else d for d in dims])


def declare_like(model: ir.Model, new: ir.Value, old: ir.Value) -> None:
    """Copies the declared type and shape of `old` to `new`, which replaces it; `forget` sets them on `new`."""
    declared = model.meta.data.get(_DECLARED, {})
    if old in declared:
        declared[new] = declared[old]
    else:
        declared.pop(new, None)


def declare(model: ir.Model, value: ir.Value) -> None:
    """Declares the current type and shape of a value, so `forget` keeps them for readers that cannot infer them."""
    shape = value.shape
    if shape is not None and (known := _without_generated(dims := _dims(shape))) != dims:
        shape = ir.Shape(known)
    model.meta.data.get(_DECLARED, {})[value] = (value.type, shape)


def retype(model: ir.Model, value: ir.Value, dtype: ir.DataType) -> None:
    """Changes the element type of a value; `forget` keeps it."""
    value.type = ir.TensorType(dtype)
    declared = model.meta.get(_DECLARED, {})
    if value in declared:
        type_, shape = declared[value]
        declared[value] = (type_ if type_ is None else value.type, shape)


def suppose(model: ir.Model, value: ir.Value, dtype: ir.DataType) -> None:
    """Sets a type that inference does not find; `forget` removes it."""
    _set_type_and_shape(value, ir.TensorType(dtype), value.shape, model.meta.setdefault(_DECLARED, {}))


def _message(model: ir.Model, every: Sequence[ir.Graph], proto: onnx.ModelProto | None) -> onnx.ModelProto:
    """Serializes the model without large weights. Declares only shapes that onnx's inference cannot find.

    Args:
        model: the model.
        every: all of its graphs.
        proto: see `infer`.
    """
    message = onnx.ModelProto(ir_version=max(model.ir_version, 4))
    message.opset_import.extend(onnx.helper.make_opsetid(d, v) for d, v in model.opset_imports.items())
    functions = [ir.serde.serialize_function(f) for f in model.functions.values()] if proto is None else proto.functions
    if _inlined_nodes(functions) <= _MAX_INLINED_NODES:
        message.functions.extend(functions)
    graph = message.graph
    graph.name = model.graph.name or ""
    for value in model.graph.inputs:
        ir.serde.serialize_value_into(graph.input.add(), value)
    for value in model.graph.outputs:
        info = graph.output.add(name=value.name)
        if value.type is not None:
            ir.serde.serialize_type_into(info.type, value.type)
    if proto is None:
        _write_nodes(model, graph)
    else:
        graph.node.extend(proto.graph.node)
        inputs = {value.name for value in model.graph.inputs}
        small, declare = [], _Declare(graph)
        for tensor in proto.graph.initializer:
            few = len(tensor.raw_data) <= _SMALL_TENSOR_BYTES and math.prod(tensor.dims) <= _SMALL_TENSOR_BYTES
            if few and tensor.data_location != onnx.TensorProto.EXTERNAL:
                small.append(tensor)
            elif (name := tensor.name) not in inputs:
                declare(name, tensor.data_type, tuple(tensor.dims))
        graph.initializer.extend(small)
    has_bodies = _has_bodies(model, every)
    for i, node in enumerate(model.graph):
        if has_bodies and bodies(node):
            for body in messages.bodies(graph.node[i]):
                _forget_declared(body)
        if not _follows(node.domain, node.op_type) and node.op_identifier() not in model.functions:
            for value in node.outputs:
                if value.name and value.type is not None:
                    ir.serde.serialize_value_into(graph.value_info.add(), value)
    return message


def without_weights(model: ir.Model, proto: onnx.ModelProto | None = None) -> onnx.ModelProto:
    """Serializes the model with large weights as inputs of the same type and shape; for `proto` see `infer`."""
    return _message(model, list(graphs(model)), proto)


def _write_nodes(model: ir.Model, graph: onnx.GraphProto) -> None:
    declare = _Declare(graph)
    for name, value in model.graph.initializers.data.items():
        tensor = value.const_value
        if tensor is None:
            continue
        if tensor_bytes(tensor) <= _SMALL_TENSOR_BYTES:
            ir.serde.serialize_tensor_into(graph.initializer.add(), from_=tensor)
        elif not value.is_graph_input():
            declare(name, tensor.dtype, tensor_dims(tensor))
    for node in model.graph:
        ir.serde.serialize_node_into(graph.node.add(), from_=node)


def _forget_declared(body: onnx.GraphProto) -> None:
    """Removes a body's value_info, and dimensions of its inputs and outputs that mean any size (see `_distrust`)."""
    del body.value_info[:]
    for info in (*body.input, *body.output):
        for dim in info.type.tensor_type.shape.dim if info.type.HasField("tensor_type") else ():
            if known_dim(dim.dim_value if dim.HasField("dim_value") else dim.dim_param) is None:
                dim.Clear()
    for node in body.node:
        for inner in messages.bodies(node):
            _forget_declared(inner)


@functools.cache
def _follows(domain: str, op_type: str) -> bool:
    """Returns whether onnx infers the types and shapes of an operator's outputs."""
    if domain == DOMAIN:
        return False  # onnx does not follow the Reshapes of our function bodies
    try:
        schema = onnx.defs.get_schema(op_type, domain=domain)
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_type_and_shape_inference_function)


def _inlined_nodes(functions: Iterable[onnx.FunctionProto]) -> float:
    """Returns the number of nodes of all functions after inlining; infinity for a recursive function."""
    bodies = {(f.domain, f.name): f.node for f in functions}
    sizes: dict[tuple[str, str], float] = {}

    def size(nodes: Iterable[onnx.NodeProto]) -> float:
        total = 0.0
        for node in nodes:
            key = (node.domain, node.op_type)
            if key in bodies and key not in sizes:
                sizes[key] = math.inf  # the result if the function calls itself
                sizes[key] = size(bodies[key])
            total += sizes.get(key, 1)
            total += sum(size(body.node) for body in messages.bodies(node))
        return total

    return sum(size(nodes) for nodes in bodies.values())


class _Declare:
    """Adds typed inputs to a graph; equal types share one message, because large graphs have few different types."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._graph = graph
        self._types: dict[tuple[int, tuple[int, ...]], onnx.TypeProto] = {}

    def __call__(self, name: str, dtype: int, dims: tuple[int, ...]) -> None:
        if (dtype, dims) not in self._types:
            self._types[dtype, dims] = onnx.helper.make_tensor_type_proto(dtype, dims)
        self._graph.input.add(name=name, type=self._types[dtype, dims])


class _Merge:
    """Copies inferred types and shapes to a model's values.

    Args:
        declared: receives the old type and shape of each changed value.
        bodies: whether any node has a body.
    """

    def __init__(self, declared: _Declared, *, bodies: bool) -> None:
        self._has_bodies = bodies
        self._declared = declared
        # Used values with declared dimensions that inference did not find.
        self.only_declared: list[ir.Value] = []
        # A large graph has few different shapes; values share frozen ones.
        self._shapes: dict[tuple[int | str | None, ...], ir.Shape] = {}
        # Serialized type -> element type, dimensions and shape.
        self._types: dict[bytes, tuple[ir.DataType | None, Dims | None, ir.Shape | None]] = {}

    def graph(self, graph: ir.Graph, proto: onnx.GraphProto, *, main: bool = True) -> None:
        types = {info.name: info.type for info in (*proto.value_info, *proto.output)}
        if not main:
            self._type_inputs(graph, proto)
        for i, node in enumerate(graph):
            for value in node.outputs:
                found = types.get(value.name or "")
                more = self._refine(value, found) if found is not None else value.shape is not None
                if more and main and value.uses():
                    self.only_declared.append(value)
            if self._has_bodies and (inner := bodies(node)):
                for body, body_proto in zip(inner, messages.bodies(proto.node[i])):
                    self.graph(body, body_proto, main=False)

    def _type_inputs(self, body: ir.Graph, proto: onnx.GraphProto) -> None:
        """Sets the types of a body's inputs, which need not be declared because the node determines them."""
        for value, info in zip(body.inputs, proto.input):
            element = self._tensor_type(info.type)[0]
            if value.type is None and element is not None:
                _set_type_and_shape(value, ir.TensorType(element), value.shape, self._declared)

    def _refine(self, value: ir.Value, found: onnx.TypeProto) -> bool:
        """Sets the merged type and shape of a value; returns whether declared dimensions add to the inferred ones."""
        message = found.SerializeToString()
        if message not in self._types:
            self._types[message] = self._tensor_type(found)
        element, dims, whole = self._types[message]
        type_, shape = value.type, value.shape
        if type_ is None and element is not None:
            value.type = ir.TensorType(element)
        more = False
        if dims is None:
            more = shape is not None
        elif shape is None or len(shape) != len(dims):
            value.shape = whole
        else:
            merged = [_merged(d, n) for d, n in zip(shape, dims)]
            more = any(m != n and not isinstance(n, int) and _is_generated(n) for m, n in zip(merged, dims))
            value.shape = self._shape(merged)
        if value.type is not type_ or value.shape is not shape:
            self._declared.setdefault(value, (type_, shape))
        return more

    def _tensor_type(self, found: onnx.TypeProto) -> tuple[ir.DataType | None, Dims | None, ir.Shape | None]:
        if not found.HasField("tensor_type"):
            return None, None, None
        tensor = found.tensor_type
        element = _ELEMENT_TYPES.get(tensor.elem_type)
        if not tensor.HasField("shape"):
            return element, None, None
        dims = [d.dim_value if d.HasField("dim_value") else (d.dim_param or None) for d in tensor.shape.dim]
        return element, dims, self._shape(dims)

    def _shape(self, dims: Dims) -> ir.Shape:
        key = tuple(d if not isinstance(d, int) or 0 <= d <= _LARGEST_DIM else None for d in dims)
        if key not in self._shapes:
            self._shapes[key] = ir.Shape(key, frozen=True)
        return self._shapes[key]


def _merged(declared: int | ir.SymbolicDim, inferred: int | str | None) -> int | str | None:
    """Merges one dimension. Two symbols mean the same size; the declared one is kept."""
    if isinstance(inferred, int):
        return inferred
    if isinstance(declared, int):
        return declared if _is_generated(inferred) else inferred
    return declared.value or inferred


def _is_generated(symbol: str | None) -> bool:
    """Returns whether a dimension is unknown to onnx's inference."""
    return symbol is None or symbol.startswith(GENERATED_SYMBOL)
