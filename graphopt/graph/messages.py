"""What is asked of a model's message: the bodies of a node, the opset, the model without functions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
import onnx.inliner
from google.protobuf.message import DecodeError


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs that a node holds: branches of an If, the body of a Loop or Scan.

    As onnx_ir and the runtime read a message: an attribute is what its type says, whatever else lies in it, and one
    that refers to a function's attribute holds nothing.
    """
    for attribute in node.attribute:
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


def read_if_small(model: str | os.PathLike[str] | bytes, most_bytes: int) -> onnx.ModelProto | None:
    """A path's or a serialized model's message, its external data left where they are; none where it is larger than
    `most_bytes`, or no model.
    """
    try:
        if isinstance(model, bytes):
            return onnx.load_model_from_string(model) if len(model) <= most_bytes else None
        path = Path(model)
        return onnx.load_model_from_string(path.read_bytes()) if path.stat().st_size <= most_bytes else None
    except (DecodeError, OSError):
        return None
