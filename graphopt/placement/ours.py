"""Finds the nodes that our provider would claim, by a call of the native library, which contains the provider's code.

native/runtime/provider/forecast.h defines the structs.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from graphopt.errors import RuntimeMissingError
from graphopt.graph import traversal
from graphopt.ops.schema import Array
from graphopt.runtime.discovery import library_path


@dataclass(frozen=True)
class Group:
    """Connected nodes that the provider claims, with estimated times in seconds.

    Attributes:
        nodes: the number of nodes.
        device: their time on the device, with the copies of inputs and outputs.
        cpu: their time on the CPU; None if the CPU has no kernel for a node.
    """

    nodes: int
    device: float
    cpu: float | None


class _Value(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
        ("is_constant", ctypes.c_int32),
        ("data", ctypes.c_void_p),
    )


class _Attribute(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("kind", ctypes.c_int32),
        ("f", ctypes.c_float),
        ("i", ctypes.c_int64),
        ("s", ctypes.c_char_p),
        ("ints", ctypes.POINTER(ctypes.c_int64)),
        ("count", ctypes.c_size_t),
    )


class _Node(ctypes.Structure):
    _fields_ = (
        ("op", ctypes.c_char_p),
        ("domain", ctypes.c_char_p),
        ("version", ctypes.c_int32),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("inputs", ctypes.POINTER(_Value)),
        ("outputs", ctypes.POINTER(_Value)),
        ("implicit", ctypes.POINTER(ctypes.c_char_p)),
        ("has_claimed_subgraph_nodes", ctypes.c_int32),
        ("is_assigned_elsewhere", ctypes.c_int32),
    )


class _Graph(ctypes.Structure):
    _fields_ = (
        ("nodes", ctypes.POINTER(_Node)),
        ("count", ctypes.c_size_t),
        ("parent", ctypes.c_char_p),
        ("outputs", ctypes.POINTER(ctypes.c_char_p)),
    )


class _Group(ctypes.Structure):
    _fields_ = (("nodes", ctypes.c_int32), ("device", ctypes.c_double), ("cpu", ctypes.c_double))


class _StructWriter:
    """Fills the structs, and keeps their memory alive."""

    def __init__(
        self, constant: Collection[ir.Value], small: Mapping[ir.Value, Array], same: Mapping[ir.Value, ir.Value]
    ) -> None:
        self._constant, self._small, self._same = constant, small, same
        self._kept: list[Any] = []

    def node(self, node: ir.Node, version: int, has_claimed_subgraph_nodes: bool, is_assigned_elsewhere: bool) -> _Node:
        domain = "" if node.domain == "ai.onnx" else node.domain
        return _Node(
            node.op_type.encode(),
            domain.encode(),
            version,
            self._array(_Attribute, [self._attribute(a) for a in node.attributes.values() if not a.is_ref()]),
            self._array(_Value, [self._value(v) for v in node.inputs]),
            self._array(_Value, [self._value(v) for v in node.outputs]),
            self.names([v for body in traversal.bodies(node) for v in traversal.captures(body)]),
            has_claimed_subgraph_nodes,
            is_assigned_elsewhere,
        )

    def names(self, values: Iterable[ir.Value]) -> Any:
        return self._array(ctypes.c_char_p, [self._name(v) for v in values])

    def _name(self, value: ir.Value) -> bytes:
        return (self._same.get(value, value).name or "").encode()

    def _array(self, kind: Any, items: Sequence[Any]) -> Any:
        """Returns a C array with an additional last item of zeros."""
        array = (kind * (len(items) + 1))(*items)
        self._kept.append(array)
        return array

    def _ints(self, numbers: Sequence[int]) -> Any:
        return self._array(ctypes.c_int64, numbers)

    def _value(self, value: ir.Value | None) -> _Value:
        if value is None or not value.name:
            return _Value(b"", 0, -1, None, 0, None)
        # ONNX Runtime gives a provider no element type for sequences.
        dtype = int(value.type.dtype) if isinstance(value.type, ir.TensorType) else 0
        # onnxruntime 1.31.1 gives a provider rank 0 for an unknown rank.
        dims = [d if isinstance(d, int) else -1 for d in value.shape or ()]
        data = None
        if value in self._small:
            array = np.ascontiguousarray(self._small[value])
            self._kept.append(array)
            dtype, dims = int(ir.DataType.from_numpy(array.dtype)), list(array.shape)
            data = array.ctypes.data
        is_constant = int(value in self._constant)
        return _Value(self._name(value), dtype, len(dims), self._ints(dims), is_constant, data)

    def _attribute(self, attribute: ir.Attr) -> _Attribute:
        found = _Attribute(name=attribute.name.encode(), kind=int(attribute.type))
        if attribute.type == ir.AttributeType.FLOAT:
            found.f = attribute.as_float()
        elif attribute.type == ir.AttributeType.INT:
            found.i = attribute.as_int()
        elif attribute.type == ir.AttributeType.STRING:
            found.s = attribute.as_string().encode()
        elif attribute.type == ir.AttributeType.INTS:
            numbers = attribute.as_ints()
            found.ints, found.count = self._ints(numbers), len(numbers)
        elif attribute.type == ir.AttributeType.STRINGS:  # concatenated, each with a final NUL
            texts = attribute.as_strings()
            found.s, found.count = b"".join(text.encode() + b"\0" for text in texts), len(texts)
        return found


def place(
    nodes: Sequence[ir.Node],
    versions: Sequence[int],
    constant: Collection[ir.Value],
    small: Mapping[ir.Value, Array],
    same: Mapping[ir.Value, ir.Value],
    parent: ir.Node | None,
    outputs: Sequence[ir.Value],
    with_claimed_bodies: Collection[ir.Node],
    elsewhere: Collection[ir.Node] = (),
    min_nodes: int = 0,
) -> tuple[list[str], list[Group]]:
    """Returns for each node of a graph why our provider does not claim it ("" if it does), and the claimed groups.

    Args:
        nodes: the nodes in topological order.
        versions: the versions of the nodes' operators.
        constant: the values that are constant.
        small: the elements of small constants.
        same: outputs of folded nodes -> the values that replace them.
        parent: the node that has the graph as a body.
        outputs: the outputs of the graph.
        with_claimed_bodies: nodes with a claimed node in their bodies.
        elsewhere: nodes that another provider has claimed.
        min_nodes: the provider option of this name; 0 places groups of nodes by their estimated times.

    Raises:
        RuntimeMissingError: there is no native library, it lacks this function, or the function fails.
    """
    path = library_path()
    function = getattr(ctypes.CDLL(str(path)), "GraphoptForecastGraph", None)
    if function is None:
        raise RuntimeMissingError(f"{path} is older than this graphopt: install graphopt again")
    function.restype = ctypes.c_int
    writer = _StructWriter(constant, small, same)
    written = [
        writer.node(n, v, n in with_claimed_bodies, n in elsewhere) for n, v in zip(nodes, versions, strict=True)
    ]
    inside = parent.op_type.encode() if parent is not None else b""
    graph = _Graph((_Node * len(nodes))(*written), len(nodes), inside, writer.names(outputs))
    reasons = (ctypes.c_char_p * max(len(nodes), 1))()
    groups = (_Group * max(len(nodes), 1))()
    failed = function(ctypes.byref(graph), ctypes.c_size_t(min_nodes), reasons, groups)
    texts = [(r or b"").decode() for r in reasons[: len(nodes)]]
    if failed:
        raise RuntimeMissingError(f"{path}: {texts[0] if texts else 'it failed'}")
    return texts, [Group(g.nodes, g.device, g.cpu if math.isfinite(g.cpu) else None) for g in groups if g.nodes]
