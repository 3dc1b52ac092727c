"""`verify`: do two models compute the same?

Both models are read (`pair`) and the inputs planned (`inputs/plan.py`); BEFORE and AFTER run on them (`ways`, `run`);
what differs is judged by how far rounding alone moves BEFORE (`judging`, `judge`, `honest`); the verdict and its
reasons go into the report (`conclusion`, `report`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from graphopt.inputs.given import save_case
from graphopt.inputs.plan import Case, Wishes
from graphopt.inputs.uses import only_compared
from graphopt.metadata import Numerics
from graphopt.progress import Progress, Steps
from graphopt.runtime.custom_ops import registering_custom_ops
from graphopt.runtime.discovery import CPU, provider_name
from graphopt.verification.conclusion import conclude
from graphopt.verification.coverage import not_covered
from graphopt.verification.honest import Budget, HonestErrors
from graphopt.verification.intermediate import first_difference
from graphopt.verification.judge import Verdict
from graphopt.verification.judging import judge_runs, unmeasured, unnoticed
from graphopt.verification.pair import (
    EFFORTS,
    Pair,
    Tolerance,
    Way,
    paired,
    steps_of,
    two_ways,
    ways_on_one,
    wishes_of,
)
from graphopt.verification.report import OutputComparison, VerifyReport, inconclusive, severity
from graphopt.verification.run import Outputs
from graphopt.verification.ways import empty_batch, run_before, run_beside, run_every_way, with_rows


@registering_custom_ops
def verify(
    before: Any,
    after: Any,
    *,
    inputs: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    rtol: Tolerance | None = None,
    atol: Tolerance | None = None,
    seed: int = 0,
    probe_nan: bool = False,
    provider: str | None = None,
    effort: str = "normal",
    sizes: Mapping[str, Sequence[int]] | None = None,
    batch: Sequence[int] = (),
    ranges: Mapping[str, tuple[float, float]] | None = None,
    providers: Sequence[str] | None = None,
    custom_ops: Sequence[str | os.PathLike[str]] = (),
    save_inputs: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Runs two models on the same inputs, with all of the runtime's optimizations off, and compares every output.

    AFTER runs twice when it has nodes of ours: by its function bodies, and with the native library. With a provider it
    runs there as well; BEFORE always runs on the CPU. A few cases also run at the runtime's default optimization level,
    in a process of their own. Where BEFORE runs at that level alone, both run at it (a note says so).

    With two `providers` BEFORE runs on the first and AFTER (which may be the same model) on the second, and nothing
    else runs. On the CPU, nodes of ours then run by their function bodies.

    Args:
        before: the original, in any form that `optimize` takes.
        after: the rewritten model.
        inputs: a .npz file, a folder, or name -> array; None makes adversarial inputs from the model's own input types.
        rtol: limit of the largest difference relative to the RMS of the output, for all outputs or by name ("" for the
            others); None judges by how far rounding moves BEFORE itself, output by output and slice by slice.
        atol: a difference of no more than this is accepted as well.
        seed: of the inputs that are made.
        probe_nan: also tries inputs with NaN and infinities. A rewrite may spread them further than the original
            without being wrong about numbers: one NaN fills a whole tile of a Winograd convolution.
        provider: "rocm", "graphopt", ... or a full name: where AFTER is to run too.
        effort: "quick", "normal" or "thorough" (`EFFORTS`).
        sizes: symbolic dimension -> the sizes to try.
        batch: sizes to try for symbolic first axes.
        ranges: input -> the lowest and the highest number that it is given.
        providers: two of them, where BEFORE and where AFTER is to run.
        custom_ops: libraries with operators of your own, for ONNX Runtime to register.
        save_inputs: a folder for the inputs on which the outputs differ most, and BEFORE's outputs, in the layout of
            ONNX's test data (test_data_set_0/input_0.pb, ...). Nothing is written where they do not differ.
        progress: called with a line when a step starts.

    Raises:
        ModelSaveError: the inputs cannot be written to `save_inputs`.
        OptionError: an unknown name, a range beyond an input's type, a provider that is not there, not two `providers`.
        ModelLoadError: a model cannot be read.
        VerifyError: they could not be compared: the runtime refuses a model, or every case.
        MemoryError: AFTER needs more than this machine has.
        RuntimeMissingError: no ONNX Runtime, or no native library.
    """
    device = provider_name(provider) if provider is not None else CPU
    two = two_ways(providers, provider)
    pair = paired(before, after, rtol, atol, two)
    if isinstance(pair, str):
        return VerifyReport(Verdict.DIFFERENT, summary=pair)
    report = VerifyReport(numerics=pair.numerics, fixed=pair.fixed, notes=list(pair.notes))
    wishes = wishes_of(pair.before.proto, Wishes(seed, pair.fixed, sizes or {}, batch, ranges or {}, probe_nan), effort)
    ways = two[1:] or ways_on_one(pair, device)
    steps = Steps(progress, steps_of(ways, at_default_level=not two))
    steps.begin()
    wanted, cases = run_before(pair, report, inputs, wishes, EFFORTS[effort].allowance)
    honest = _honest(pair, wanted)
    ways = [replace(way, optimized=pair.reference.optimized) for way in ways]
    runs = run_every_way(pair, ways, cases, wanted, steps)
    empty = empty_batch(pair.before.proto, cases[0], wishes) if inputs is None else None
    wrong = [] if two else run_beside(pair, cases, wanted, report, empty, runs, steps)
    steps.begin()
    judge_runs(pair, runs, honest, report, Budget(EFFORTS[effort].seconds))
    steps.begin()
    report.not_covered += unmeasured(pair, report, honest) + not_covered(pair.before, cases, wanted)
    if not two and all(row.equal for row in [*report.rows, *wrong]):
        report.not_covered += unnoticed(pair, cases, wanted, honest, report, EFFORTS[effort])
    return _conclude(pair, report, [*cases, *with_rows(report, wrong, empty)], honest, wanted, save_inputs)


def _conclude(
    pair: Pair,
    report: VerifyReport,
    cases: Sequence[Case],
    honest: HonestErrors,
    wanted: Mapping[str, Outputs],
    save_inputs: str | os.PathLike[str] | None,
) -> VerifyReport:
    """Sets the verdict, and locates and saves a difference."""
    report.notes += inconclusive(report.rows)
    conclude(pair, report, cases, wanted)
    if report.verdict == Verdict.DIFFERENT:
        _locate(pair, report, cases, honest, wanted)
    if save_inputs is not None and report.feeds:
        place = save_case(Path(save_inputs), pair.before.proto, report.feeds, report.outputs)
        report.notes.append(f"the inputs of the largest difference were written to {place}")
    return report


def _locate(
    pair: Pair, report: VerifyReport, cases: Sequence[Case], honest: HonestErrors, wanted: Mapping[str, Outputs]
) -> None:
    """Describes the worst case and names the first value that differs."""
    row = max((r for r in report.rows if not r.equal), key=severity)
    report.outputs = dict(zip(pair.names, wanted.get(row.case, ())))
    about = report.cases.get(row.case)
    if about is not None:
        report.notes.append(f"'{row.case}': {about}")
    case = next((c for c in cases if c.name == row.case), None)
    if case is None or row.optimized:
        return
    bodies = any(not r.equal and not r.library and not r.optimized for r in report.rows if r.case == row.case)
    numerics = max(pair.rewritten.classes.values(), default=Numerics.REASSOCIATED)
    if row.library and not bodies and pair.rewritten.approximated:
        numerics = max(numerics, Numerics.APPROXIMATE)
    way = Way(row.library and not bodies, row.provider)
    said = first_difference(pair, way, case, honest, numerics)
    report.notes += [said] if said else []


def _honest(pair: Pair, wanted: dict[str, Outputs]) -> HonestErrors:
    reference = pair.reference
    compared = only_compared(pair.before.proto) & only_compared(pair.after.proto)
    sides = pair.before, wanted, pair.rewritten, pair.half_io
    return HonestErrors(*sides, optimized=reference.optimized, elsewhere=reference.provider != CPU, compared=compared)


__all__ = ["OutputComparison", "Verdict", "VerifyReport", "verify"]
