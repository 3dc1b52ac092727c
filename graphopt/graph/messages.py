"""What is asked of a model's message: the bodies of a node, the opset, the model without functions."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
import onnx.inliner
from google.protobuf.message import DecodeError

# Of protobuf's encoding (https://protobuf.dev/programming-guides/encoding): what a field is, and bytes of it.
_VARINT, _WITH_LENGTH = 0, 2
_FIXED_SIZES = {1: 8, 5: 4}
_MOST_BYTES_OF_VARINT = 10


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs that a node holds: branches of an If, the body of a Loop or Scan.

    As onnx_ir reads a message, and the runtime where it takes it: an attribute is what its type says, whatever else
    lies in it, one that refers to a function's attribute holds nothing, and of one that is there twice the last counts.
    """
    for attribute in {attribute.name: attribute for attribute in node.attribute}.values():
        if attribute.type == attribute.GRAPH and not attribute.ref_attr_name:
            yield attribute.g
        elif attribute.type == attribute.GRAPHS and not attribute.ref_attr_name:
            yield from attribute.graphs


def opset_of(model: onnx.ModelProto) -> int:
    """The version of ONNX's own operators; 0 where none is imported."""
    return max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=0)


def inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its functions inlined; itself where it has none."""
    return onnx.inliner.inline_local_functions(model) if model.functions else model


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Nodes and those of their bodies."""
    for node in nodes:
        yield node
        for body in bodies(node):
            yield from all_nodes(body.node)


def external_files(model: onnx.ModelProto) -> list[str]:
    """The data files of a model, relative to its folder; each once, in order."""
    tensors: list[onnx.TensorProto] = []
    graphs, nodes = [model.graph], [node for function in model.functions for node in function.node]
    while graphs or nodes:
        for graph in graphs:
            tensors += graph.initializer
            tensors += [t for sparse in graph.sparse_initializer for t in (sparse.values, sparse.indices)]
        nodes += [node for graph in graphs for node in graph.node]
        for node in nodes:
            for attribute in node.attribute:
                if attribute.type == attribute.TENSOR:
                    tensors.append(attribute.t)
        graphs, nodes = [body for node in nodes for body in bodies(node)], []
    external = [t for t in tensors if t.data_location == onnx.TensorProto.EXTERNAL]
    return list(dict.fromkeys(e.value for t in external for e in t.external_data if e.key == "location"))


def read_nodes(model: str | os.PathLike[str] | bytes) -> onnx.ModelProto | None:
    """Reads the nodes, functions and metadata of a path or a serialized model, but not its weights.

    Returns None if it is no model.
    """
    try:
        if isinstance(model, bytes):
            return _without_weights(memoryview(model))
        with Path(model).open("rb") as file:
            return _without_weights(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
    except (DecodeError, OSError, ValueError):  # mmap's for an empty file
        return None


def _without_weights(model: memoryview) -> onnx.ModelProto:
    found = onnx.ModelProto()
    for number, field in _messages(model):
        if number == onnx.ModelProto.GRAPH_FIELD_NUMBER:
            for inner, node in _messages(field):
                if inner == onnx.GraphProto.NODE_FIELD_NUMBER:
                    found.graph.node.add().MergeFromString(bytes(node))
        elif number == onnx.ModelProto.FUNCTIONS_FIELD_NUMBER:
            found.functions.add().MergeFromString(bytes(field))
        elif number == onnx.ModelProto.METADATA_PROPS_FIELD_NUMBER:
            found.metadata_props.add().MergeFromString(bytes(field))
    return found


def _messages(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The fields of a message in protobuf's encoding that have a length: messages, texts, bytes.

    Raises:
        DecodeError: this is no message.

    """
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind, size = tag & 7, 0
        if kind == _VARINT:
            _, at = _varint(message, at)
        elif kind == _WITH_LENGTH:
            size, at = _varint(message, at)
        elif kind in _FIXED_SIZES:
            size = _FIXED_SIZES[kind]
        else:
            raise DecodeError(f"a field of kind {kind}")
        if tag >> 3 == 0 or size > len(message) - at:
            raise DecodeError("a field without number or end")
        if kind == _WITH_LENGTH:
            yield tag >> 3, message[at : at + size]
        at += size


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, and where it ends."""
    value = 0
    for i, byte in enumerate(message[at : at + _MOST_BYTES_OF_VARINT]):
        value |= (byte & 127) << 7 * i
        if byte < 128:
            return value, at + i + 1
    raise DecodeError("a number without end")
