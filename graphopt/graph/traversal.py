"""Iteration over the graphs and tensors of a model, and fast access to a tensor's dimensions, bytes and elements."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from graphopt.graph import messages
from graphopt.ops import DOMAIN

# `isinstance` with onnx_ir's classes checks a protocol before it fails, which is slow for 100,000 constants.
_EMBEDDED = (ir.serde.TensorProtoTensor, ir.Tensor)
_GRAPH, _GRAPHS, _TENSOR = ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS, ir.AttributeType.TENSOR


def graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """Yields every graph of the model: the main graph, functions, and all bodies in them."""
    yield from with_subgraphs(model.graph)
    for function in model.functions.values():
        yield from with_subgraphs(function.graph)


def own_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """Yields every graph of the model except the function bodies of our operators."""
    yield from with_subgraphs(model.graph)
    for function in model.functions.values():
        if function.domain != DOMAIN:
            yield from with_subgraphs(function.graph)


def nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Yields every node of the graphs of `graphs`."""
    return (node for graph in graphs(model) for node in graph)


def own_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Yields every node of the graphs of `own_graphs`."""
    return (node for graph in own_graphs(model) for node in graph)


def with_subgraphs(graph: ir.Graph) -> Iterator[ir.Graph]:
    """Yields a graph and the bodies in it, at any depth."""
    yield graph
    for node in graph:
        # This loop visits every node of large graphs several times, so it makes no call for nodes without a body.
        for attribute in node.attributes.data.values():
            if (kind := attribute.type) is _GRAPH or kind is _GRAPHS:
                for body in bodies(node):
                    yield from with_subgraphs(body)
                break


def bodies(node: ir.Node) -> list[ir.Graph]:
    """Returns the graphs in the attributes of a node."""
    found: list[ir.Graph] = []
    # `.data`, because views of onnx_ir's containers make several calls for each item, which is slow for whole graphs.
    for attribute in node.attributes.data.values():
        kind = attribute.type
        if kind is _GRAPH and not attribute.is_ref():
            found.append(attribute.value)
        elif kind is _GRAPHS and not attribute.is_ref():
            found += attribute.value
    return found


def external_tensors(graphs: Iterable[ir.Graph]) -> Iterator[ir.ExternalTensor]:
    """Yields the external tensors of these graphs."""
    for tensor in tensors(graphs):
        if is_external(tensor):
            yield tensor


def is_external(tensor: ir.TensorProtocol | None) -> TypeGuard[ir.ExternalTensor]:
    """Returns whether the elements are stored in a separate file."""
    return type(tensor) not in _EMBEDDED and isinstance(tensor, ir.ExternalTensor)


def tensors(graphs: Iterable[ir.Graph]) -> Iterator[ir.TensorProtocol]:
    """Yields the tensors of these graphs: initializers and attributes."""
    for graph in graphs:
        for value in graph.initializers.data.values():
            if value.const_value is not None:
                yield value.const_value
        for node in graph:
            for attribute in node.attributes.data.values():
                if attribute.type is _TENSOR and not attribute.is_ref():
                    yield attribute.value


@functools.cache
def element_bits(data_type: int) -> int:
    """Returns the bits of one element; cached, because onnx_ir creates an enum member for each call."""
    return ir.DataType(data_type).bitwidth


# onnx_ir creates an enum member and a Shape for each query of a tensor, which is slow for 100,000 constants. The next
# three functions therefore read the message directly. They compare exact classes for the reason given at _EMBEDDED.
_ARRAYS: dict[int, np.dtype[Any]] = {
    int(ir.DataType.FLOAT): np.dtype("<f4"),
    int(ir.DataType.FLOAT16): np.dtype("<f2"),
    int(ir.DataType.DOUBLE): np.dtype("<f8"),
    int(ir.DataType.INT64): np.dtype("<i8"),
    int(ir.DataType.INT32): np.dtype("<i4"),
}


def tensor_dims(tensor: ir.TensorProtocol) -> tuple[int, ...]:
    """Returns the dimensions of a tensor."""
    if type(tensor) is ir.serde.TensorProtoTensor:
        return tuple(tensor.raw.dims[:])  # a slice takes half the time of protobuf's iterator
    return tuple(tensor.shape.dims)  # type: ignore[arg-type]  # integers only: a tensor has no symbols


def tensor_bytes(tensor: ir.TensorProtocol) -> int:
    """Returns the size of a tensor's elements in bytes."""
    if type(tensor) is ir.serde.TensorProtoTensor:
        message = tensor.raw
        dims: list[int] = message.dims[:]
        return (math.prod(dims) * element_bits(message.data_type) + 7) // 8
    if type(tensor) is ir.Tensor and isinstance(tensor.raw, np.ndarray):
        return (tensor.raw.size * element_bits(tensor.dtype) + 7) // 8
    return tensor.nbytes


def tensor_array(tensor: ir.TensorProtocol) -> npt.NDArray[Any]:
    """Returns a tensor's elements; callers must not change them."""
    if type(tensor) is ir.serde.TensorProtoTensor:
        message = tensor.raw
        if (dtype := _ARRAYS.get(message.data_type)) is not None and message.HasField("raw_data"):
            array: npt.NDArray[Any] = np.frombuffer(message.raw_data, dtype)
            return array.reshape(tensor_dims(tensor))
    return np.asarray(tensor.numpy())


def foreign_bodies(graph: ir.Graph, message: onnx.GraphProto) -> Iterator[tuple[ir.Graph, onnx.GraphProto]]:
    """Yields the bodies of nodes outside ONNX's domain, each with its message.

    The nodes of `message` must be those of `graph`, in the same order.
    """
    for i, node in enumerate(graph):
        if inner := bodies(node):
            for body, proto in zip(inner, messages.bodies(message.node[i]), strict=True):
                if node.domain != "":
                    yield body, proto
                yield from foreign_bodies(body, proto)


def captures(body: ir.Graph) -> list[ir.Value]:
    """Returns the values that a body uses from outer graphs, sorted by name."""
    inside = set(with_subgraphs(body))
    read = dict.fromkeys(v for graph in inside for node in graph for v in node.inputs if v is not None)
    return sorted((v for v in read if v.graph not in inside), key=lambda v: str(v.name))
