"""Runs passes in order until nothing changes, for at most MAX_ROUNDS rounds, and collects remarks.

The run time is linear in the number of nodes: each pass puts the nodes at which it can match (its anchors) into a
worklist, and a rewrite adds only anchors near the changed nodes.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from graphopt.graph.editor import Editor
from graphopt.metadata import Numerics
from graphopt.passes.base import ModelPass, Pass
from graphopt.remarks import Code, Refusal, Remark, node_label, refused

# More rounds mean that the passes do not converge, which is a bug; real models need 2 or 3.
MAX_ROUNDS = 8


@dataclass
class PassResult:
    """Time and counts of one pass in all rounds."""

    name: str
    seconds: float = 0.0
    applied: int = 0
    refused: int = 0


@dataclass
class PipelineResult:
    """Result of all passes.

    Attributes:
        remarks: applied rewrites, and refusals at remaining nodes.
        superseded: refusals at nodes that a later fallback pass removed.
        passes: result of each pass.
        numerics: the largest class of the passes that changed something.
        converged: whether the last round found nothing.
    """

    remarks: list[Remark] = field(default_factory=list)
    superseded: list[Remark] = field(default_factory=list)
    passes: dict[str, PassResult] = field(default_factory=dict)
    numerics: Numerics = Numerics.EXACT
    converged: bool = True

    def extend(self, later: PipelineResult) -> None:
        """Adds a later run over the same model, which saw all candidates: its refusals replace the earlier ones."""
        self.remarks = [r for r in self.remarks if r.applied or r.pass_name not in later.passes] + later.remarks
        self.superseded += later.superseded
        for name, result in later.passes.items():
            self.passes.setdefault(name, PassResult(name)).seconds += result.seconds
        self.count()
        self.numerics = max(self.numerics, later.numerics)
        self.converged = later.converged

    def count(self) -> None:
        """Counts the applied and refused candidates of each pass."""
        counts = Counter((r.pass_name, r.applied) for r in (*self.remarks, *self.superseded))
        for name, result in self.passes.items():
            result.applied, result.refused = counts[name, True], counts[name, False]


def run(
    editor: Editor,
    passes: Sequence[Pass[Any, Any] | ModelPass],
    *,
    after_pass: Callable[[str], None] | None = None,
    limit: int | None = None,
) -> PipelineResult:
    """Runs `passes` over the editor's model until none of them finds a candidate.

    Args:
        editor: the editor of a model with inferred types and shapes; the model, its types and its shapes are
            changed in place.
        passes: the passes, in order.
        after_pass: called with the name of each pass that changed something (invariant checks).
        limit: stop after this many rewrites (bisection); a run of a `ModelPass` counts as one.
    """
    editor.shapes.forget()
    result = _run_rounds(editor, passes, after_pass, limit)
    while editor.needs_inference:
        editor.infer_again()
        left = None if limit is None else limit - sum(r.applied for r in result.remarks)
        result.extend(_run_rounds(editor, passes, after_pass, left))
    if any(r.applied for r in result.remarks):
        editor.remove_unused_definitions()
    return result


def _run_rounds(
    editor: Editor,
    passes: Sequence[Pass[Any, Any] | ModelPass],
    after_pass: Callable[[str], None] | None,
    limit: int | None,
) -> PipelineResult:
    editor.needs_inference = False
    result = PipelineResult(passes={p.name: PassResult(p.name) for p in passes})
    local = {p.name: p for p in passes if isinstance(p, Pass)}
    refusals: dict[str, dict[ir.Node, Remark]] = {name: {} for name in local}
    done: list[Remark] = []
    # Passes that found nothing in the current graph and need not run again.
    satisfied: set[str] = set()
    for _ in range(MAX_ROUNDS):
        for p in passes:
            if p.name in satisfied:
                continue
            left = sys.maxsize if limit is None else limit - len(done)
            if left <= 0:
                break
            start = time.perf_counter()
            remarks = _run_local(p, editor, refusals[p.name], left) if isinstance(p, Pass) else _run_model(p, editor)
            if isinstance(p, Pass) and p.fallback:
                for name, refused_nodes in refusals.items():
                    removed = [node for node in editor.removed if node in refused_nodes and name != p.name]
                    result.superseded += [refused_nodes.pop(node) for node in removed]
            editor.removed.clear()
            result.passes[p.name].seconds += time.perf_counter() - start
            done += remarks
            if not remarks:
                satisfied.add(p.name)
            else:
                satisfied.clear()
                result.numerics = max(result.numerics, p.numerics)
                if after_pass is not None:
                    after_pass(p.name)
                if isinstance(p, Pass) and p.emits_unknown_types:
                    editor.infer_again()
        if len(satisfied) == len(passes) or (limit is not None and len(done) >= limit):
            break
    else:
        result.converged = False
    alive = [
        remark
        for name, refused_nodes in refusals.items()
        for node, remark in refused_nodes.items()
        if node.graph is not None and local[name].is_anchor(node)
    ]
    result.remarks = done + alive
    result.count()
    return result


def _run_model(p: ModelPass, editor: Editor) -> list[Remark]:
    lines = p.run(editor)
    return [Remark(p.name, "APPLIED", (), "; ".join(lines))] if lines else []


def _run_local(p: Pass[Any, Any], editor: Editor, refusals: dict[ir.Node, Remark], limit: int) -> list[Remark]:
    remarks: list[Remark] = []
    work = deque(editor.nodes(p.anchors))
    queued = set(work)
    while work and len(remarks) < limit:
        node = work.popleft()
        queued.discard(node)
        if node.graph is None:
            continue
        refusals.pop(node, None)
        try:
            match = p.match(node, editor)
            if match is None:
                continue
            plan = p.legal(match, editor)
            candidate = p.candidate(plan, editor)
            if candidate is not None and (reason := editor.profit.decline(candidate)):
                raise Refusal(Code.NO_GAIN, reason, node)
        except Refusal as refusal:
            refusals[node] = refused(p.name, node, refusal)
            continue
        label = node_label(node)
        detail = p.rewrite(plan, editor)
        remarks.append(Remark(p.name, "APPLIED", (label,), detail))
        for neighbour in editor.touched:
            if p.is_anchor(neighbour) and neighbour not in queued and neighbour.graph is not None:
                work.append(neighbour)
                queued.add(neighbour)
        editor.touched.clear()
    return remarks


__all__ = ["MAX_ROUNDS", "PassResult", "PipelineResult", "run"]
