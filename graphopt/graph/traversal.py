"""All graphs of a model and all of its tensors, and short ways to a tensor's dimensions, bytes and elements."""

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

# `isinstance` asks a protocol of each of onnx_ir's classes before it says no: slow where a graph has 100,000 constants.
_EMBEDDED = (ir.serde.TensorProtoTensor, ir.Tensor)
_GRAPH, _GRAPHS, _TENSOR = ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS, ir.AttributeType.TENSOR


def graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """Every graph of the model: main, subgraphs, functions and theirs."""
    yield from with_subgraphs(model.graph)
    for function in model.functions.values():
        yield from with_subgraphs(function.graph)


def with_subgraphs(graph: ir.Graph) -> Iterator[ir.Graph]:
    """A graph and the bodies in it, at any depth."""
    yield graph
    for node in graph:
        # Asked of every node of a large graph several times: no call for those that have no body.
        for attribute in node.attributes.data.values():
            if (kind := attribute.type) is _GRAPH or kind is _GRAPHS:
                for body in bodies(node):
                    yield from with_subgraphs(body)
                break


def bodies(node: ir.Node) -> list[ir.Graph]:
    """The graphs that are attributes of a node."""
    found: list[ir.Graph] = []
    # `.data`, since the views of onnx_ir's containers make several calls for each item, which counts over whole graphs.
    for attribute in node.attributes.data.values():
        kind = attribute.type
        if kind is _GRAPH and not attribute.is_ref():
            found.append(attribute.value)
        elif kind is _GRAPHS and not attribute.is_ref():
            found += attribute.value
    return found


def external_tensors(graphs: Iterable[ir.Graph]) -> Iterator[ir.ExternalTensor]:
    for tensor in tensors(graphs):
        if is_external(tensor):
            yield tensor


def is_external(tensor: ir.TensorProtocol | None) -> TypeGuard[ir.ExternalTensor]:
    """Whether the elements lie in a file of their own."""
    return type(tensor) not in _EMBEDDED and isinstance(tensor, ir.ExternalTensor)


def tensors(graphs: Iterable[ir.Graph]) -> Iterator[ir.TensorProtocol]:
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
    """Bits of one element; cached, since onnx_ir makes an enum member each time."""
    return ir.DataType(data_type).bitwidth


# onnx_ir asks an enum for every property of a tensor and makes a Shape each time, which counts where a graph has
# 100,000 constants. The three functions below ask the message itself, and look at the very class, as above.
_ARRAYS: dict[int, np.dtype[Any]] = {
    int(ir.DataType.FLOAT): np.dtype("<f4"),
    int(ir.DataType.FLOAT16): np.dtype("<f2"),
    int(ir.DataType.DOUBLE): np.dtype("<f8"),
    int(ir.DataType.INT64): np.dtype("<i8"),
    int(ir.DataType.INT32): np.dtype("<i4"),
}


def tensor_dims(tensor: ir.TensorProtocol) -> tuple[int, ...]:
    """The dimensions of a tensor."""
    if type(tensor) is ir.serde.TensorProtoTensor:
        return tuple(tensor.raw.dims[:])  # a slice is a list at once; protobuf's iterator takes twice as long
    return tuple(tensor.shape.numpy())


def tensor_bytes(tensor: ir.TensorProtocol) -> int:
    """Bytes of a tensor's elements."""
    if type(tensor) is ir.serde.TensorProtoTensor:
        message = tensor.raw
        dims: list[int] = message.dims[:]
        return (math.prod(dims) * element_bits(message.data_type) + 7) // 8
    if type(tensor) is ir.Tensor and isinstance(tensor.raw, np.ndarray):
        return (tensor.raw.size * element_bits(tensor.dtype) + 7) // 8
    return tensor.nbytes


def tensor_array(tensor: ir.TensorProtocol) -> npt.NDArray[Any]:
    """A tensor's elements; not to be written to."""
    if type(tensor) is ir.serde.TensorProtoTensor:
        message = tensor.raw
        if (dtype := _ARRAYS.get(message.data_type)) is not None and message.HasField("raw_data"):
            array: npt.NDArray[Any] = np.frombuffer(message.raw_data, dtype)
            return array.reshape(tensor_dims(tensor))
    return np.asarray(tensor.numpy())


def foreign_bodies(graph: ir.Graph, message: onnx.GraphProto) -> Iterator[tuple[ir.Graph, onnx.GraphProto]]:
    """The bodies of nodes of foreign domains, with their messages; `message` holds the nodes of `graph` in order."""
    for i, node in enumerate(graph):
        if inner := bodies(node):
            for body, proto in zip(inner, messages.bodies(message.node[i]), strict=True):
                if node.domain != "":
                    yield body, proto
                yield from foreign_bodies(body, proto)


def captures(body: ir.Graph) -> list[ir.Value]:
    """The values that a body reads from the graphs around it."""
    inside = set(with_subgraphs(body))
    read = dict.fromkeys(v for graph in inside for node in graph for v in node.inputs if v is not None)
    return sorted((v for v in read if v.graph not in inside), key=lambda v: str(v.name))
