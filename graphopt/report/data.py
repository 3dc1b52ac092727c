"""What an optimization did: the data, and its rendering as JSON. Tables are made from the same data by the CLI."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from graphopt.graph.traversal import graphs, tensor_bytes
from graphopt.ops import DOMAIN
from graphopt.remarks import Code, InitializerRange, Remark
from graphopt.report.multiply_adds import has_multiply_adds, multiply_adds
from graphopt.report.text import count, fitted, size
from graphopt.strict_json import dumps


@dataclass
class ModelStats:
    """What a model consists of.

    Attributes:
        nodes: operator type -> count, over all graphs, bodies of our own domain not counted.
        initializer_bytes: bytes of all initializers.
        multiply_adds: of convolutions and matrix multiplications, as the equations state them (a Winograd convolution
            counts like the convolution that it computes); None where one of them has an unknown size.
    """

    nodes: dict[str, int] = field(default_factory=dict)
    initializer_bytes: int = 0
    multiply_adds: int | None = None


def model_stats(model: ir.Model) -> ModelStats:
    """Counts nodes, bytes and multiply-adds; uses the shapes that are on the values."""
    counts: Counter[str] = Counter()
    total_bytes = 0
    total: int | None = 0
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
            if total is not None and has_multiply_adds(domain, op_type):
                n = multiply_adds(node)
                total = None if n is None else total + n
    return ModelStats(dict(sorted(counts.items())), total_bytes, total)


def node_counts(before: ModelStats, after: ModelStats) -> str:
    """How many before and after: "30 -> 12 nodes"."""
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
    """What `optimize` did.

    Attributes:
        target: what it was optimized for.
        target_reason: why that, where the target was "auto"; else what this machine's library lacks for it.
        remarks: one for each candidate site.
        passes: seconds and counts of each pass.
        before, after: what the model consisted of.
        numerics: the class of the rewrites that were applied ("exact", "reassociated", "approximate", "fp16").
        seconds: all of it, loading and writing included.
        notes: remarks about the model as a whole.
        obstacle: why no pass may run on the model; "" where they may.
        doubt: why the result may be slower on this machine; "" where nothing says so.
        inputs_changed: whether initializers were frozen or dimensions of inputs fixed.
        tuning: what `--tune` measured, or the cache said.
        initializer_ranges: what float16 does to the initializers that do not fit it (with a precision).
        files: path -> bytes of each file that was written, the model first.
        shared_files: the same of the input's files that the model refers to.
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
    doubt: str = ""
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
        """The node counts, or why the model is unchanged: "30 -> 12 nodes"."""
        if not self.changed and self.before.nodes == self.after.nodes:
            return (
                f"{'inputs changed, nodes' if self.inputs_changed else ''} unchanged: {self._why_unchanged()}".strip()
            )
        counted = node_counts(self.before, self.after)
        return f"{counted}, {self.doubt}" if self.doubt else counted

    def _why_unchanged(self) -> str:
        if self.obstacle:
            return self.obstacle
        codes = Counter(r.code for r in self.remarks)
        dear = codes.pop(Code.NO_GAIN.name, 0)
        others = ", ".join(f"{code} {n}" for code, n in codes.most_common(2)) + ", ..." * (len(codes) > 2)
        if dear:
            also = f", {codes.total()} refused: {others}" if codes else ""
            return f"nothing pays here ({count(dear, 'candidate')} {'costs' if dear == 1 else 'cost'} more{also})"
        if codes:
            return f"no rewrite is possible ({count(codes.total(), 'candidate')} refused: {others})"
        return "no pass finds anything to rewrite"

    @property
    def optimized_for(self) -> str:
        """The target, and why it was chosen where it was "auto"."""
        return f"optimized for {self.target}" + (f" ({self.target_reason})" if self.target_reason else "")

    @property
    def weights(self) -> str:
        """The sizes of the initializers where they differ: "weights 43.4 KiB -> 42.2 KiB"; else ""."""
        before, after = size(self.before.initializer_bytes), size(self.after.initializer_bytes)
        return "" if before == after else f"weights {before} -> {after}"

    def details(self) -> list[str]:
        """What changed: operators and rewrites, a line each."""
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
