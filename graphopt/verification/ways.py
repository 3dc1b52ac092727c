"""Runs BEFORE on the inputs that it takes, and AFTER on these in every way.

Among these is an empty batch, which a detector that found nothing hands on to the model behind it. Some kernels of the
runtime end the process there, so AFTER runs on it beside the cases that run in a process of their own, and BEFORE does
in the same way, where AFTER's outputs are not as declared.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import onnx

from graphopt.errors import VerifyError, about
from graphopt.graph.messages import bodies, inlined
from graphopt.graph.operators.traits import RANDOM
from graphopt.inputs.declared import is_given, required_inputs, symbol_of, symbols
from graphopt.inputs.given import given_cases
from graphopt.inputs.plan import Allowance, Case, Wishes, plan
from graphopt.metadata import Numerics
from graphopt.progress import Steps
from graphopt.runtime.discovery import CPU
from graphopt.verification.compare import Deviation, deviation
from graphopt.verification.coverage import is_real, left_out, numbers_tried, sizes_of, sizes_tried
from graphopt.verification.halves import farthest, is_usual, kept_in_half
from graphopt.verification.pair import Pair, Way
from graphopt.verification.report import OutputComparison, VerifyReport, broken
from graphopt.verification.run import (
    Outputs,
    open_session,
    require_loads_optimized,
    require_memory,
    run_case,
    run_optimized,
)
from graphopt.verification.table_rows import cases_that_read

# How many cases run at the runtime's default optimization level, the smallest of them.
DEFAULT_LEVEL_CASES = 3
# How many cases run with every number of float16 rounded to it: those with the largest inputs, and one of usual size.
HALF_CASES = 2
# Their results may be others at every run.
MAY_BE_RANDOM = RANDOM | {"Dropout"}


@dataclass(frozen=True, eq=False)
class Run:
    """AFTER on one case in one way: how far each output is from BEFORE's, or the runtime's message."""

    way: Way
    case: Case
    found: list[Deviation] | str


def run_before(
    pair: Pair, report: VerifyReport, inputs: Any, wishes: Wishes, allowance: Allowance
) -> tuple[dict[str, Outputs], list[Case]]:
    """BEFORE's outputs, and the cases that it takes.

    Some models hold nodes that no kernel takes, and that the runtime's own optimizations remove: they run with these.
    """
    try:
        return _tried(pair, report, inputs, wishes, allowance)
    except VerifyError as refused:
        report.skipped.clear()
        pair.reference = replace(pair.reference, optimized=True)
        try:
            found = _tried(pair, report, inputs, wishes, allowance)
        except VerifyError:
            raise refused from None
    report.notes.append("BEFORE runs at the runtime's default optimization level alone: both were compared there")
    return found


def runs_before(pair: Pair) -> Callable[[Case], Outputs | str]:
    """Runs BEFORE on a case; with the runtime's optimizations in a process of its own.

    Raises:
        VerifyError: the runtime refuses the model.
    """
    library, provider = pair.reference.library, pair.reference.provider
    if pair.reference.optimized and provider == CPU:
        # Sizes would be searched for a model that cannot run at any.
        require_loads_optimized(pair.before.source, library=library)
        return lambda case: run_optimized(pair.before.source, [case], library=library)[case.name]
    optimized, reuse = pair.reference.optimized, not pair.large
    session = open_session(pair.before.source, library=library, provider=provider, optimized=optimized, reuse=reuse)
    return partial(run_case, session)


def _tried(
    pair: Pair, report: VerifyReport, inputs: Any, wishes: Wishes, allowance: Allowance
) -> tuple[dict[str, Outputs], list[Case]]:
    """BEFORE's outputs, and the cases that it takes; notes outputs that a second run changes."""
    run = runs_before(pair)
    wanted: dict[str, Outputs] = {}
    cases: list[Case] = []
    random: set[str] = set()
    repeat = math.inf if _has_random_operators(pair.before.proto) else 1

    def accepts(case: Case) -> bool:
        outputs = run(case)
        if isinstance(outputs, str):
            report.skipped[case.name] = outputs
            return False
        report.skipped.pop(case.name, None)
        wanted[case.name] = outputs
        cases.append(case)
        if len(cases) <= repeat:
            again = run(case)
            if not isinstance(again, str):
                found = (deviation(a, b) for a, b in zip(outputs, again))
                random.update(name for name, d in zip(pair.names, found) if d.structure or d.max_abs)
        return True

    pair.given = inputs is not None
    if inputs is not None:
        for case in given_cases(inputs, pair.before.proto):
            accepts(case)
    else:
        with about(pair.called):
            before, after = inlined(pair.before.proto), pair.after.proto
            report.left_out = plan(before, wishes, accepts, allowance, lambda case: _has_numbers(wanted[case]), after)
        for case in [*cases_that_read(pair.tables, cases)]:
            accepts(case)
    if not wanted:
        tried = "that were made up: {}; give some that it takes with --inputs" if inputs is None else "given: {}"
        raise VerifyError(
            f"{pair.called} runs on none of the inputs {tried.format(next(iter(report.skipped.values())))}"
        )
    report.random = [name for name in pair.names if name in random]
    report.cases = {case.name: case.about for case in cases if case.about}
    if inputs is None:
        found = sizes_of(pair.before.proto, cases)
        report.sizes = [dict(sizes) for sizes in dict.fromkeys(tuple(s.items()) for s in found.values() if s)]
        report.notes += sizes_tried(report.sizes) + left_out(report.left_out)
        report.notes += numbers_tried(pair.before.proto, cases)
    return wanted, cases


def _has_numbers(outputs: Outputs) -> bool:
    """Whether each floating point output has a finite number."""
    arrays = (o for o in outputs if isinstance(o, np.ndarray) and o.size)
    return all(np.isfinite(a).any() for a in arrays if is_real(a))


def _has_random_operators(model: onnx.ModelProto) -> bool:
    waiting = [model.graph.node, *(f.node for f in model.functions)]
    while waiting:
        for node in waiting.pop():
            if node.op_type in MAY_BE_RANDOM:
                return True
            waiting += [body.node for body in bodies(node)]
    return False


def run_every_way(
    pair: Pair, ways: Sequence[Way], cases: Sequence[Case], wanted: Mapping[str, Outputs], steps: Steps
) -> list[Run]:
    runs = []
    for way in ways:
        steps.begin(f"on {len(cases)} sets of inputs")
        runs += _run_after(pair, way, cases, wanted)
    return runs


def _run_after(pair: Pair, way: Way, cases: Sequence[Case], wanted: Mapping[str, Outputs]) -> list[Run]:
    if way.optimized and way.provider == CPU:
        got = _optimized(pair, way, cases)
        return [Run(way, case, deviations(wanted[case.name], got[case.name])) for case in cases]
    began = time.process_time()
    session = open_session(
        pair.after.source, library=way.library, provider=way.provider, optimized=way.optimized, reuse=not pair.large
    )
    pair.opening = time.process_time() - began
    runs = []
    for case in cases:
        began = time.process_time()
        result = run_case(session, case, half_io=pair.half_io)
        require_memory(result)
        pair.running = min(pair.running, time.process_time() - began)
        runs.append(Run(way, case, deviations(wanted[case.name], result)))
    return runs


def _optimized(pair: Pair, way: Way, cases: Sequence[Case]) -> dict[str, Outputs | str]:
    """AFTER with the runtime's optimizations."""
    got = run_optimized(pair.after.source, cases, library=way.library, half_io=pair.half_io)
    for outputs in got.values():
        require_memory(outputs)
    return got


def deviations(want: Outputs, got: Outputs | str) -> list[Deviation] | str:
    """How far each output is from BEFORE's; or the runtime's message, where that is what came."""
    return got if isinstance(got, str) else [deviation(w, g) for w, g in zip(want, got)]


def run_beside(
    pair: Pair,
    cases: Sequence[Case],
    wanted: Mapping[str, Outputs],
    report: VerifyReport,
    empty: Case | None,
    runs: list[Run],
    steps: Steps,
) -> list[OutputComparison]:
    """Appends runs at the default level and in half precision; rows of what is wrong with an empty batch.

    None where BEFORE runs at that level alone, so that both did already.
    """
    steps.begin()
    if pair.reference.optimized:
        return []
    more, wrong = _run_at_default_level(pair, cases, wanted, report, empty)
    runs += more + _run_in_half(pair, cases, wanted)
    return wrong


def with_rows(report: VerifyReport, wrong: Sequence[OutputComparison], empty: Case | None) -> list[Case]:
    """Adds rows of an empty batch to the others; it, if there are any."""
    if not wrong or empty is None:
        return []
    if all(row.equal for row in report.rows):
        report.notes.append("the outputs differ on an empty batch alone, which --batch with other sizes leaves out")
    report.rows += wrong
    return [empty]


def _run_in_half(pair: Pair, cases: Sequence[Case], wanted: Mapping[str, Outputs]) -> list[Run]:
    """A few cases with every number of float16 rounded to it."""
    if not pair.halves or Numerics.FP16 not in pair.rewritten.classes.values():
        return []
    try:
        session = open_session(kept_in_half(pair.after.model), library=False)
    except VerifyError:  # larger than a message may be
        return []
    runs = []
    chosen = farthest(cases, HALF_CASES)
    chosen += [case for case in cases if is_usual(case) and case not in chosen][:1]
    for case in chosen:
        got = run_case(session, case, half_io=pair.half_io)
        runs.append(Run(Way(False, in_half=True), case, deviations(wanted[case.name], got)))
    return runs


def _run_at_default_level(
    pair: Pair, cases: Sequence[Case], wanted: Mapping[str, Outputs], report: VerifyReport, empty: Case | None
) -> tuple[list[Run], list[OutputComparison]]:
    """A few cases as users run them, and rows of what is wrong with an empty batch.

    What the runtime's optimizations do to BEFORE as well is not AFTER's fault.
    """
    few = sorted(cases, key=lambda case: sum(getattr(a, "size", 1) for a in case.feeds.values()))[:DEFAULT_LEVEL_CASES]
    way = Way(pair.rewritten.has_ours, optimized=True)
    got = _optimized(pair, way, [*few, *([empty] if empty is not None else [])])
    runs = [Run(way, case, deviations(wanted[case.name], got[case.name])) for case in few]
    wrong = (
        [] if empty is None else _wrong_on_empty(pair, Run(way, empty, ""), wanted[cases[0].name], got[EMPTY], report)
    )
    return _without_what_both_do(pair, runs, few, wanted, report), wrong


def _wrong_on_empty(
    pair: Pair, run: Run, usual: Outputs, got: Outputs | str, report: VerifyReport
) -> list[OutputComparison]:
    """A row for each output that has another size on an empty batch; where AFTER does not take one, it is not covered.

    Two exports of one module differ in what they refuse, so that alone is no finding.

    Args:
        pair: the models.
        run: AFTER's, whose outputs are yet to be judged.
        usual: BEFORE's on another batch.
        got: AFTER's.
        report: is told what is not covered.
    """
    if not isinstance(got, str) and is_as_declared(pair.before.proto.graph.output, usual, got):
        return []
    want = run_optimized(pair.before.source, [run.case], library=False)[EMPTY]
    if isinstance(want, str):
        return []
    way = (run.way.library, run.way.provider, run.way.optimized)
    if isinstance(got, str):
        report.not_covered.append(f"an empty batch was not compared: BEFORE takes it, and AFTER does not: {got}")
        return []
    # Sizes alone: where nothing is read, some kernels of the runtime leave what they make as it was in memory.
    found = zip(pair.names, (deviation(w, g).structure for w, g in zip(want, got)))
    return [broken(name, EMPTY, way, words) for name, words in found if words.startswith(("shape", "type"))]


def _without_what_both_do(
    pair: Pair, runs: list[Run], few: Sequence[Case], wanted: Mapping[str, Outputs], report: VerifyReport
) -> list[Run]:
    """The runs but those of cases on which BEFORE breaks at this level, too."""
    far = [r for r in runs if isinstance(r.found, str) or any(_is_far(d) for d in r.found)]
    if not far:
        return runs
    original = run_optimized(pair.before.source, few, library=False)
    kept = []
    for run in runs:
        found = deviations(wanted[run.case.name], original[run.case.name])
        if run in far and (isinstance(found, str) or any(_is_far(d) for d in found)):
            report.notes.append(at_default_level(run.case, found if isinstance(found, str) else "its outputs change"))
        else:
            kept.append(run)
    return kept


def at_default_level(case: Case, what: str) -> str:
    """A note on what befalls BEFORE there."""
    return f"BEFORE at the runtime's default optimization level, on '{case.name}': {what}"


def _is_far(found: Deviation) -> bool:
    return bool(found.structure) or found.relative > 1e-3


# -- an empty batch ----------------------------------------------------------------------------------------------------

EMPTY = "empty batch"


def empty_batch(model: onnx.ModelProto, case: Case, wishes: Wishes) -> Case | None:
    """A case of BEFORE with its batch cut to nothing; None where that is a number, or the caller's choice."""
    asked = {*wishes.sizes, *wishes.fixed}
    batches = {s for s, role in symbols(model).items() if role == "batch" and not wishes.batch} - asked
    feeds = dict(case.feeds)
    for value in required_inputs(model):
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if not is_given(dim) and symbol_of(value, axis) in batches:
                feeds[value.name] = np.asarray(feeds[value.name])[(slice(None),) * axis + (slice(0),)]
    return Case(EMPTY, feeds) if batches else None


def is_as_declared(outputs: Sequence[onnx.ValueInfoProto], usual: Outputs, empty: Outputs) -> bool:
    """Whether outputs of an empty batch hold nothing, and are as large as BEFORE declares, or on another batch.

    Args:
        outputs: of BEFORE.
        usual: their values, of a batch that is not empty.
        empty: AFTER's.
    """
    return all(map(_is_as_declared, outputs, usual, empty))


def _is_as_declared(output: onnx.ValueInfoProto, usual: Any, empty: Any) -> bool:
    if not isinstance(usual, np.ndarray) or not isinstance(empty, np.ndarray):
        return False
    if empty.size or empty.ndim != usual.ndim or empty.dtype != usual.dtype:
        return False
    dims = output.type.tensor_type.shape.dim
    declared = [d.dim_value if is_given(d) else n for d, n in zip(dims, empty.shape)] or empty.shape
    return empty.shape == tuple(declared) and all(n in (0, was) for n, was in zip(empty.shape, usual.shape))
