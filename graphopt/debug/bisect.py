"""Finds the rewrite that makes a model's outputs wrong, and cuts a minimal model out around it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from graphopt import pipeline
from graphopt.graph import inference, reading, traversal
from graphopt.graph.editor import Editor
from graphopt.metadata import METADATA_NUMERICS, Numerics
from graphopt.passes.base import ModelPass, Pass
from graphopt.passes.registry import PASSES
from graphopt.remarks import Remark
from graphopt.runtime.auto import resolve_target
from graphopt.runtime.custom_ops import registering_custom_ops
from graphopt.targets.profit import EveryLegalCandidate
from graphopt.targets.target import TargetName
from graphopt.verification.verify import Verdict, VerifyReport, verify


@dataclass(frozen=True)
class BisectResult:
    """The result of `bisect`.

    Attributes:
        rewrites: the number of rewrites of all passes.
        verdict: the verdict of `verify` after all rewrites; if it is RANDOM, no rewrite is at fault.
        culprit: the first rewrite that makes `verify` report a difference; None if there is none.
        summary: the summary of `verify` after the culprit, or after all rewrites if there is no culprit.
        minimal: a model of the nodes that the culprit replaces; None if they cannot be cut out.
    """

    rewrites: int
    verdict: Verdict
    culprit: Remark | None
    summary: str
    minimal: ir.Model | None


@registering_custom_ops
def bisect(
    model: Any,
    *,
    target: TargetName | str = "auto",
    ignore_cost_model: bool = False,
    passes: Sequence[Pass[Any, Any] | ModelPass] = PASSES,
    inputs: str | os.PathLike[str] | None = None,
    seed: int = 0,
    custom_ops: Sequence[str | os.PathLike[str]] = (),
) -> BisectResult:
    """Finds the first rewrite that changes the outputs, by a binary search over the number of rewrites.

    Args:
        model: as for `optimize`.
        target: as for `optimize`.
        ignore_cost_model: as for `optimize`.
        passes: the passes to run, in order.
        inputs: as for `verify`.
        seed: as for `verify`.
        custom_ops: as for `verify`.

    Raises:
        ModelLoadError: the model cannot be read.
        VerifyError: the model cannot be run.
    """
    parsed, _ = resolve_target(target)

    def rewritten(limit: int | None) -> tuple[ir.Model, pipeline.PipelineResult]:
        source = reading.load(model)
        inference.infer(source.model, source.proto)
        editor = Editor(source.model, parsed, EveryLegalCandidate() if ignore_cost_model else None)
        result = pipeline.run(editor, passes, limit=limit)
        inference.forget(source.model)
        return source.model, result

    def report(limit: int | None) -> VerifyReport:
        after, result = rewritten(limit)
        after.metadata_props[METADATA_NUMERICS] = max(result.numerics, Numerics.REASSOCIATED).name.lower()
        return verify(model, after, inputs=inputs, seed=seed)

    total = sum(r.applied for r in rewritten(None)[1].remarks)
    whole = report(None)
    if whole.verdict != Verdict.DIFFERENT or not total:
        return BisectResult(total, whole.verdict, None, whole.summary, None)
    good, bad = 0, total
    while bad - good > 1:
        middle = (good + bad) // 2
        # RANDOM counts as good: `verify` does not compare outputs that are random in the original.
        if report(middle).verdict == Verdict.DIFFERENT:
            bad = middle
        else:
            good = middle
    before, _ = rewritten(good)
    after, result = rewritten(bad)
    culprit = [r for r in result.remarks if r.applied][-1]
    return BisectResult(total, whole.verdict, culprit, report(bad).summary, _minimal(before, after))


def _minimal(before: ir.Model, after: ir.Model) -> ir.Model | None:
    """Cuts out the nodes of `before` that `after` lacks; the values that they read become inputs."""
    names = {n.name for n in traversal.nodes(after)}
    removed = [n for n in before.graph if n.name not in names]
    if not removed:
        return None
    inside = set(removed)
    reads = {v: None for n in removed for v in n.inputs if v is not None and v.producer() not in inside}
    inputs = [v for v in reads if not v.is_initializer()]
    outputs = [
        o for n in removed for o in n.outputs if o.is_graph_output() or any(u not in inside for u in o.consumers())
    ]
    if not inputs or not outputs:
        return None
    graph = ir.convenience.extract(before.graph, inputs, outputs)
    return ir.Model(graph, ir_version=before.ir_version, functions=list(before.functions.values()))
