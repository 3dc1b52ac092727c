"""Queries of a model's protobuf message: bodies, opset, data files, and the nodes without weights."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
import onnx.inliner
from google.protobuf.message import DecodeError

# Protobuf wire types (https://protobuf.dev/programming-guides/encoding), and the bytes of fixed-size ones.
_VARINT, _WITH_LENGTH = 0, 2
_FIXED_SIZES = {1: 8, 5: 4}
_MOST_BYTES_OF_VARINT = 10


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yields the graphs in a node's attributes: branches of an If, the body of a Loop or Scan.

    Attributes are interpreted as in onnx_ir and ONNX Runtime: the type decides which field is used, and a reference to
    a function's attribute has no graph. If several attributes have the same name, the last one is used.
    """
    for attribute in {attribute.name: attribute for attribute in node.attribute}.values():
        if attribute.type == attribute.GRAPH and not attribute.ref_attr_name:
            yield attribute.g
        elif attribute.type == attribute.GRAPHS and not attribute.ref_attr_name:
            yield from attribute.graphs


def opset_of(model: onnx.ModelProto) -> int:
    """Returns the version of ONNX's own operators; 0 if none is imported."""
    return max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=0)


def inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """Inlines the functions of a model; returns the model itself if it has none."""
    return onnx.inliner.inline_local_functions(model) if model.functions else model


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yields nodes and the nodes of their bodies."""
    for node in nodes:
        yield node
        for body in bodies(node):
            yield from all_nodes(body.node)


def external_files(model: onnx.ModelProto) -> list[str]:
    """Returns the data files of a model, relative to its folder, each once and in order."""
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
    """Reads the nodes, functions and metadata of a path or a serialized model without its weights.

    Returns:
        The model; None if the data is not a model.
    """
    try:
        if isinstance(model, bytes):
            return _without_weights(memoryview(model))
        with Path(model).open("rb") as file:
            return _without_weights(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
    except (DecodeError, OSError, ValueError):  # mmap raises ValueError for an empty file
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
    """Yields the length-delimited fields of an encoded message (messages, strings, bytes): field number and contents.

    Raises:
        DecodeError: the data is not a protobuf message.
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
            raise DecodeError("a field has no number or no end")
        if kind == _WITH_LENGTH:
            yield tag >> 3, message[at : at + size]
        at += size


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """Decodes a varint, with seven bits in each byte; returns its value and the offset after it."""
    value = 0
    for i, byte in enumerate(message[at : at + _MOST_BYTES_OF_VARINT]):
        value |= (byte & 127) << 7 * i
        if byte < 128:
            return value, at + i + 1
    raise DecodeError("a varint has no end")
