"""What is asked of a model's message: the bodies of a node, the opset, the model without functions."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnx.inliner


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
