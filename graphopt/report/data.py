"""What an optimization did: the data, and its rendering as JSON. Tables are made from the same data by the CLI."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from graphopt.graph.traversal import graphs, tensor_bytes
from graphopt.ops import DOMAIN
from graphopt.remarks import InitializerRange, Remark
from graphopt.strict_json import dumps


@dataclass
class ModelStats:
    """What a model consists of.

    Attributes:
        nodes: operator type -> count, over all graphs, bodies of our own domain not counted.
        initializer_bytes: bytes of all initializers.
        multiply_adds: of convolutions and matrix products whose shapes are static, as the equations state them (a
            Winograd convolution counts like the convolution that it computes); None when no shape is known.
    """

    nodes: dict[str, int]
    initializer_bytes: int
    multiply_adds: int | None


def model_stats(model: ir.Model) -> ModelStats:
    """Counts nodes, bytes and multiply-adds; uses the shapes that are on the values."""
    counts: Counter[str] = Counter()
    total_bytes = 0
    total: int | None = None
    bodies = {f.graph for f in model.functions.values() if f.domain == DOMAIN}
    for graph in graphs(model):
        if graph in bodies:
            continue
        for value in graph.initializers.data.values():
            if value.const_value is not None:
                total_bytes += tensor_bytes(value.const_value)
        for node in graph:
            domain, op_type = node.domain, node.op_type
            counts[op_type if domain in ("", DOMAIN) else f"{domain}::{op_type}"] += 1
            n = multiply_adds(node)
            if n is not None:
                total = (total or 0) + n
    return ModelStats(dict(sorted(counts.items())), total_bytes, total)


def _static(value: ir.Value | None) -> tuple[int, ...] | None:
    shape = None if value is None else value.shape
    return shape.numpy() if shape is not None and shape.is_static() else None


Dims = tuple[int, ...]


def _conv(node: ir.Node, y: Dims, x: Dims, w: Dims) -> int:
    return math.prod(y) * math.prod(w[1:])


def _conv_transpose(node: ir.Node, y: Dims, x: Dims, w: Dims) -> int:
    return math.prod(x) * math.prod(w[1:])


def _matmul(node: ir.Node, y: Dims, a: Dims, b: Dims) -> int:
    return math.prod(y) * (a[-1] if a else 1)


def _gemm(node: ir.Node, y: Dims, a: Dims, b: Dims) -> int:
    transposed = node.attributes.get("transA")
    return math.prod(y) * a[0 if transposed is not None and transposed.as_int() else 1]


def _attention(node: ir.Node, y: Dims, q: Dims, k: Dims) -> int:
    keys = k[node.attributes["k_perm"].as_ints()[-1]]
    return (math.prod(q) + math.prod(y)) * keys


_COUNTED: dict[str, Callable[[ir.Node, Dims, Dims, Dims], int]] = {
    "Conv": _conv,
    "WinogradConv": _conv,
    "ConvTranspose": _conv_transpose,
    "FusedConvTranspose": _conv_transpose,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "FusedAttention": _attention,
    "FusedConv": _conv,
    "Linear": _matmul,
}


def counted_as(domain: str, op_type: str) -> str | None:
    """Returns the convolution or matrix multiplication that an operator computes; None for other operators."""
    if domain == DOMAIN:
        # Variants of our operators differ in their suffixes, which add no products.
        stems = ("WinogradConv", "FusedConvTranspose", "FusedConv", "FusedAttention", "Linear")
        op_type = next((stem for stem in stems if op_type.startswith(stem)), op_type)
    return op_type if op_type in _COUNTED else None


def multiply_adds(node: ir.Node, dims: Mapping[str, Dims] | None = None) -> int | None:
    """Counts the multiply-adds of a convolution or matrix multiplication with known shapes; None for other nodes.

    Args:
        node: its values have static shapes, or are in `dims`.
        dims: of a run, by the names of values.
    """
    op_type = counted_as(node.domain, node.op_type)
    if op_type is None:
        return None
    known = [
        _static(value) or (None if dims is None or value is None else dims.get(value.name or ""))
        for value in (node.outputs[0], *node.inputs[:2])
    ]
    if len(known) < 3 or any(shape is None for shape in known):
        return None
    y, a, b = (shape or () for shape in known)
    return _COUNTED[op_type](node, y, a, b)


@dataclass
class PassSummary:
    name: str
    seconds: float
    applied: int
    refused: int


@dataclass
class Report:
    """What `optimize` did.

    Attributes:
        target: what it was optimized for.
        target_reason: why that, where the target was "auto".
        remarks: one for each candidate site.
        passes: seconds and counts of each pass.
        before, after: what the model consisted of.
        numerics: the class of the rewrites that were applied ("exact", "reassociated", "approximate", "fp16").
        seconds: all of it, loading and writing included.
        notes: remarks about the model as a whole.
        tuning: what `--tune` measured, or the cache said.
        initializer_ranges: what float16 does to the initializers that do not fit it (with a precision).
        files: path -> bytes of each file that was written, the model first.
        shared_files: the same of the input's files that the model refers to.
    """

    target: str
    target_reason: str = ""
    remarks: list[Remark] = field(default_factory=list)
    passes: list[PassSummary] = field(default_factory=list)
    before: ModelStats | None = None
    after: ModelStats | None = None
    numerics: str = "exact"
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    tuning: dict[str, Any] | None = None
    initializer_ranges: list[InitializerRange] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)
    shared_files: dict[str, int] = field(default_factory=dict)

    @property
    def changed(self) -> bool:
        return any(r.applied for r in self.remarks)

    def to_dict(self) -> dict[str, Any]:
        def stats(s: ModelStats | None) -> dict[str, Any] | None:
            return None if s is None else vars(s)

        return {
            "format": 1,
            "target": self.target,
            "target_reason": self.target_reason,
            "numerics": self.numerics,
            "seconds": round(self.seconds, 4),
            "notes": self.notes,
            "tuning": self.tuning,
            "files": self.files,
            "shared_files": self.shared_files,
            "before": stats(self.before),
            "after": stats(self.after),
            "passes": [vars(p) for p in self.passes],
            "initializer_ranges": [r.to_dict() for r in self.initializer_ranges],
            "remarks": [r.to_dict() for r in self.remarks],
        }

    def to_json(self) -> str:
        return dumps(self.to_dict())
