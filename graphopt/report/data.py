"""Results of an optimization as data and JSON. The command line formats the same data as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from graphopt.graph.traversal import tensor_bytes
from graphopt.ops import DOMAIN
from graphopt.remarks import Code, InitializerRange, Remark
from graphopt.report.multiply_adds import has_multiply_adds, multiply_adds
from graphopt.report.text import count, fitted, size
from graphopt.strict_json import dumps


@dataclass
class ModelStats:
    """Statistics of a model.

    Attributes:
        nodes: operator type -> count, in all graphs except the function bodies of our domain.
        initializer_bytes: bytes of all initializers.
        multiply_adds: number in convolutions, matrix multiplications and attention, by their equations (a Winograd
            convolution counts like a direct convolution); None if a size of such a node is unknown.
    """

    nodes: dict[str, int] = field(default_factory=dict)
    initializer_bytes: int = 0
    multiply_adds: int | None = None


def model_stats(graphs: Iterable[ir.Graph]) -> ModelStats:
    """Counts nodes, bytes and multiply-adds in the graphs of a model, using the shapes of the values."""
    counts: Counter[str] = Counter()
    total_bytes = 0
    total: int | None = 0
    for graph in graphs:
        for value in graph.initializers.data.values():
            if value.const_value is not None:
                total_bytes += tensor_bytes(value.const_value)
        for node in graph:
            domain, op_type = node.domain, node.op_type
            counts[op_type if domain in ("", DOMAIN) else f"{domain}::{op_type}"] += 1
            if total is not None and has_multiply_adds(domain, op_type):
                n = multiply_adds(node)
                total = None if n is None else total + n
    return ModelStats(dict(sorted(counts.items())), total_bytes, total)


def node_counts(before: ModelStats, after: ModelStats) -> str:
    """Returns the node counts before and after: "30 -> 12 nodes"."""
    a, b = sum(before.nodes.values()), sum(after.nodes.values())
    return f"{count(a, 'node')}, as before" if before.nodes == after.nodes else f"{a:,} -> {count(b, 'node')}"


@dataclass
class PassSummary:
    name: str
    seconds: float
    applied: int
    refused: int


@dataclass
class Report:
    """Result of `optimize`.

    Attributes:
        target: the target.
        target_reason: why "auto" selected the target; for a named target, the device code that our library lacks.
        remarks: one for each candidate.
        passes: seconds and counts of each pass.
        before, after: statistics of the model.
        numerics: the class of the applied rewrites ("exact", "reassociated", "approximate", "fp16", "bf16").
        seconds: total time, including loading and writing.
        notes: remarks about the whole model.
        obstacle: why no pass may run on the model; "" if passes may run.
        warning: why the result may be slower on this machine; "" without such a reason.
        inputs_changed: whether initializers were frozen or dimensions of inputs fixed.
        tuning: measurements of `--tune` or its cache; None without them.
        initializer_ranges: with a precision, the effect of float16 on initializers outside its range.
        files: path -> bytes of each written file, the model first.
        shared_files: path -> bytes of the original's data files to which the written model refers.
    """

    target: str
    target_reason: str = ""
    remarks: list[Remark] = field(default_factory=list)
    passes: list[PassSummary] = field(default_factory=list)
    before: ModelStats = field(default_factory=ModelStats)
    after: ModelStats = field(default_factory=ModelStats)
    numerics: str = "exact"
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    obstacle: str = ""
    warning: str = ""
    inputs_changed: bool = False
    tuning: dict[str, Any] | None = None
    initializer_ranges: list[InitializerRange] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)
    shared_files: dict[str, int] = field(default_factory=dict)

    @property
    def changed(self) -> bool:
        return any(r.applied for r in self.remarks)

    @property
    def outcome(self) -> str:
        """Node counts, "30 -> 12 nodes", or the reason why the model is unchanged."""
        if not self.changed and self.before.nodes == self.after.nodes:
            return (
                f"{'inputs changed, nodes' if self.inputs_changed else ''} unchanged: {self._why_unchanged()}".strip()
            )
        counted = node_counts(self.before, self.after)
        return f"{counted}, {self.warning}" if self.warning else counted

    def _why_unchanged(self) -> str:
        if self.obstacle:
            return self.obstacle
        codes = Counter(r.code for r in self.remarks)
        slower = codes.pop(Code.NO_GAIN.name, 0)
        others = ", ".join(f"{code} {n}" for code, n in codes.most_common(2)) + ", ..." * (len(codes) > 2)
        if slower:
            also = f", {codes.total()} refused: {others}" if codes else ""
            are = "is" if slower == 1 else "are"
            return f"no rewrite is faster here ({count(slower, 'candidate')} {are} slower{also})"
        if codes:
            return f"no rewrite is possible ({count(codes.total(), 'candidate')} refused: {others})"
        return "no pass finds anything to rewrite"

    @property
    def optimized_for(self) -> str:
        """The target, with its reason if there is one."""
        return f"optimized for {self.target}" + (f" ({self.target_reason})" if self.target_reason else "")

    @property
    def weights(self) -> str:
        """Sizes of the initializers if they differ, "weights 43.4 KiB -> 42.2 KiB"; else ""."""
        before, after = size(self.before.initializer_bytes), size(self.after.initializer_bytes)
        return "" if before == after else f"weights {before} -> {after}"

    def details(self) -> list[str]:
        """Returns a line about changed operators and a line about rewrites."""
        lines = []
        old, new = self.before.nodes, self.after.nodes
        moved = {op: abs(new.get(op, 0) - old.get(op, 0)) for op in {*old, *new}}
        ops = sorted((op for op, n in moved.items() if n), key=lambda op: (-moved[op], op))
        if ops:
            lines.append("nodes: " + fitted([f"{op} {old.get(op, 0)} -> {new.get(op, 0)}" for op in ops]))
        worked = sorted((p for p in self.passes if p.applied), key=lambda p: -p.applied)
        if worked:
            done = fitted([f"{p.name} {p.applied}" for p in worked])
            lines.append(f"rewrites: {done} ({self.seconds:.2f} s in all)")
        return lines

    def __str__(self) -> str:
        lines = [self.outcome, self.weights, *self.details(), *self.notes, self.optimized_for]
        return "\n".join(line for line in lines if line)

    def to_dict(self) -> dict[str, Any]:
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
            "before": vars(self.before),
            "after": vars(self.after),
            "passes": [vars(p) for p in self.passes],
            "initializer_ranges": [r.to_dict() for r in self.initializer_ranges],
            "remarks": [r.to_dict() for r in self.remarks],
        }

    def to_json(self) -> str:
        return dumps(self.to_dict())
