"""Merges equal nodes (common subexpression elimination)."""

from __future__ import annotations

import functools
from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_ir as ir

from graphopt.graph.editor import Editor
from graphopt.graph.operators.evaluation import DTYPES
from graphopt.graph.operators.traits import QUANTIZATION, RANDOM
from graphopt.graph.traversal import tensor_dims
from graphopt.ops import DOMAIN

# Constants of up to this size are compared by content.
MAX_COMPARED_BYTES = 128
# Random operators, and quantization nodes: runtimes expect one quantization node for each reader.
NEVER_MERGED = RANDOM | QUANTIZATION | {"Dropout"}
# Visited nodes that may be equal: a single node whose key is not computed yet, or key -> node.
_Bucket = ir.Node | dict[Hashable, ir.Node]


@dataclass
class EqualNodes:
    """The nodes of one graph that have been visited, in order.

    Attributes:
        editor: the model.
        contents: value -> its content if it is a small constant, otherwise the value; shared by the graphs of a model.
    """

    editor: Editor
    contents: dict[ir.Value, Hashable]
    _seen: dict[Hashable, _Bucket] = field(default_factory=dict)

    def merge(self, node: ir.Node) -> bool:
        """Replaces a node by an equal earlier one; returns whether there is one."""
        domain, op_type = node.domain, node.op_type
        if op_type in NEVER_MERGED or not _is_known(domain, op_type):
            return False
        # Contents of constants are compared only if the operator and the first non-constant input are the same.
        data: ir.Value | None = None
        for value in node.inputs:  # a generator expression would take twice as long
            if value is not None and self.editor.tensor(value) is None:
                data = value
                break
        bucket_key = (domain, op_type, data)
        bucket = self._seen.setdefault(bucket_key, node)
        if bucket is node:
            return False
        if isinstance(bucket, ir.Node):
            bucket = self._seen[bucket_key] = {self._key(bucket): bucket}
        key = self._key(node)
        if key is None:
            return False
        first = bucket.get(key)
        if first is None or first.graph is None:
            bucket[key] = node
            return False
        # A graph output must not get new readers (see `Editor.bypass`).
        if any(o.is_graph_output() for o in (*node.outputs, *first.outputs)):
            return False
        self.editor.replace([node], [], dict(zip(node.outputs, first.outputs, strict=True)), anchor=node)
        return True

    def _key(self, node: ir.Node) -> Hashable | None:
        """Returns a key that is equal for nodes with equal outputs; None if the node is never merged."""
        attributes: list[Hashable] = []
        for name, attribute in sorted(node.attributes.data.items()):
            content = _attribute_key(attribute)
            if content is None:
                return None
            attributes.append((name, content))
        inputs = tuple([None if v is None else self._content(v) for v in node.inputs])
        outputs = tuple([bool(o.name) for o in node.outputs])
        return (node.overload, node.version, inputs, outputs, tuple(attributes))

    def _content(self, value: ir.Value) -> Hashable:
        """Returns the content of a small constant, or the value itself."""
        if value not in self.contents:
            tensor = self.editor.tensor(value)
            self.contents[value] = (None if tensor is None else _tensor_key(tensor)) or value
        return self.contents[value]


@functools.cache
def _is_known(domain: str, op_type: str) -> bool:
    return domain == DOMAIN or onnx.defs.has(op_type, domain)


def _attribute_key(attribute: ir.Attr) -> Hashable | None:
    if attribute.is_ref():
        return ("ref", attribute.ref_attr_name)
    if attribute.type in (ir.AttributeType.INTS, ir.AttributeType.FLOATS, ir.AttributeType.STRINGS):
        return (attribute.type, tuple(attribute.value))
    if attribute.type in (ir.AttributeType.INT, ir.AttributeType.STRING):
        return (attribute.type, attribute.value)
    if attribute.type == ir.AttributeType.FLOAT:
        return (attribute.type, np.float32(attribute.value).tobytes())
    if attribute.type == ir.AttributeType.TENSOR:
        return _tensor_key(attribute.as_tensor())
    return None


def _tensor_key(tensor: ir.TensorProtocol) -> Hashable | None:
    if tensor.dtype not in DTYPES or tensor.nbytes > MAX_COMPARED_BYTES:
        return None
    return (tensor.dtype, tensor_dims(tensor), tensor.tobytes())
