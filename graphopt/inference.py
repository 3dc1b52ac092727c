"""Types and shapes of the values of a model, for the passes to ask.

onnx's own shape inference, with data propagation, on a copy of the graph without large weights. What it finds is put
on the values while passes run and taken off again before the model is written, so that a file changes only where it
was rewritten.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir

from graphopt.errors import OptionError
from graphopt.model import graphs

_DECLARED = "graphopt.declared"
# Smaller initializers may be shapes and axes, which data propagation reads.
_SMALL_TENSOR_BYTES = 1024


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
    stripped = _without_large_weights(ir.serde.serialize_model(model) if proto is None else proto)
    if proto is not None:
        for value, info in zip(model.graph.inputs, stripped.graph.input):
            if value.name == info.name and value.shape is not None:
                info.CopyFrom(ir.serde.serialize_value(value))
    try:
        inferred = onnx.shape_inference.infer_shapes(stripped, check_type=False, strict_mode=False, data_prop=True)
    except Exception:  # invalid corners of a model are no reason to refuse the rest of it
        return
    _merge(model.graph, inferred.graph)


def forget(model: ir.Model) -> None:
    """Takes off what `infer` put on."""
    for graph in graphs(model):
        for node in graph:
            for value in node.outputs:
                if _DECLARED in value.meta:
                    value.type, value.shape = value.meta.pop(_DECLARED)


def _without_large_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which large initializers are inputs of their type and shape: inference does not read their data."""
    stripped = onnx.ModelProto(ir_version=max(proto.ir_version, 4))
    stripped.opset_import.extend(proto.opset_import)
    stripped.functions.extend(proto.functions)
    graph = stripped.graph
    graph.name = proto.graph.name
    graph.node.extend(proto.graph.node)
    graph.input.extend(proto.graph.input)
    graph.output.extend(proto.graph.output)
    graph.value_info.extend(proto.graph.value_info)
    inputs = {value.name for value in proto.graph.input}
    for tensor in proto.graph.initializer:
        if len(tensor.raw_data) <= _SMALL_TENSOR_BYTES and math.prod(tensor.dims) <= _SMALL_TENSOR_BYTES:
            graph.initializer.append(tensor)
        elif tensor.name not in inputs:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return stripped


def _merge(graph: ir.Graph, proto: onnx.GraphProto) -> None:
    types = {info.name: info.type for info in (*proto.value_info, *proto.output)}
    for node, node_proto in zip(graph, proto.node):
        for value in node.outputs:
            if value.name and value.name in types:
                _refine(value, types[value.name])
        if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values()):
            for attribute in node_proto.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    _merge(node.attributes[attribute.name].as_graph(), attribute.g)
                elif attribute.type == onnx.AttributeProto.GRAPHS:
                    for body, body_proto in zip(node.attributes[attribute.name].as_graphs(), attribute.graphs):
                        _merge(body, body_proto)


def _refine(value: ir.Value, type_proto: onnx.TypeProto) -> None:
    if not type_proto.HasField("tensor_type"):
        return
    dtype = type_proto.tensor_type.elem_type
    dims: list[int | str | None] | None = None
    if type_proto.tensor_type.HasField("shape"):
        dims = [
            d.dim_value if d.HasField("dim_value") else (d.dim_param or None) for d in type_proto.tensor_type.shape.dim
        ]
        if any(isinstance(d, int) and d < 0 for d in dims):
            dims = None
    value.meta.setdefault(_DECLARED, (value.type, value.shape))
    if value.type is None and dtype:
        value.type = ir.TensorType(ir.DataType(dtype))
    if dims is not None:
        declared = value.shape
        if declared is not None and len(declared) == len(dims):
            # A declared static dimension or symbol says at least as much as an inferred one.
            merged = [_declared_or(d, inferred) for d, inferred in zip(declared, dims)]
            value.shape = ir.Shape(merged)
        elif declared is None:
            value.shape = ir.Shape(dims)


def _declared_or(declared: int | ir.SymbolicDim, inferred: int | str | None) -> int | str | None:
    if isinstance(declared, int):
        return declared
    if isinstance(inferred, int):
        return inferred
    return declared.value or inferred
