"""`verify` compares the outputs of two models, and explains the verdict.

It reads both models (`pair.py`), plans the inputs (`inputs/plan.py`), runs BEFORE and AFTER on them (`modes.py`), and
judges the differences by BEFORE's rounding errors (`judge.py`, `rounding_error.py`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphopt.errors import VerifyError
from graphopt.graph.messages import inlined
from graphopt.inputs.given import save_case
from graphopt.inputs.plan import Case, InputOptions, masks_of
from graphopt.inputs.uses import HIDES, only_compared
from graphopt.metadata import Numerics
from graphopt.progress import Progress, Steps
from graphopt.report.text import count
from graphopt.runtime.custom_ops import registering_custom_ops
from graphopt.runtime.discovery import CPU, provider_name
from graphopt.verification import modes
from graphopt.verification.choices import values_of
from graphopt.verification.compare import LARGEST_LIMIT, Deviation, deviation, judge
from graphopt.verification.judge import judge_runs, unmeasured_outputs, untested
from graphopt.verification.pair import EFFORTS, Effort, Pair, Tolerance, input_options_of, modes_of_two, paired
from graphopt.verification.probes import first_beyond_half, unused_branches
from graphopt.verification.report import NOISE, OutputComparison, Verdict, VerifyReport, inconclusive, sort_key
from graphopt.verification.rounding_error import Budget, RoundingErrors
from graphopt.verification.run import Crash, Mode, Outputs, open_session, run_case


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
    """Runs two models on the same inputs, with the runtime's optimizations off, and compares every output.

    If AFTER has our operators, it runs twice: by its function bodies, and with the native library. It also runs on
    `provider`, if there is one; BEFORE always runs on the CPU. A few cases also run at the runtime's default
    optimization level, in another process. If BEFORE runs only at that level, both run at it, and a note reports it.

    With two `providers`, BEFORE runs on the first and AFTER on the second, and nothing else runs. BEFORE and AFTER may
    be the same model. On the CPU, our nodes then run by their function bodies.

    Args:
        before: the original, in any form that `optimize` accepts.
        after: the rewritten model.
        inputs: a .npz file, a folder, or name -> array; None generates inputs that are likely to show faults.
        rtol: limit of the largest difference relative to the RMS of the output, for all outputs or by name ("" for all
            other outputs); None uses measured rounding errors of BEFORE, for each output and slice.
        atol: accepted absolute difference, for all outputs or by name.
        seed: the seed of the generated inputs.
        probe_nan: also tries inputs with NaN and infinities. A correct rewrite may spread them further than the
            original: one NaN fills a whole tile of a Winograd convolution.
        provider: an additional provider for AFTER: "rocm", "graphopt", ... or a full name.
        effort: "quick", "normal" or "thorough" (`EFFORTS`).
        sizes: symbolic dimension -> the sizes to try.
        batch: sizes to try for symbolic first axes.
        ranges: input -> its lowest and highest element.
        providers: the providers of BEFORE and of AFTER.
        custom_ops: your libraries with operators, which ONNX Runtime registers.
        save_inputs: a folder for the inputs with the largest difference, and BEFORE's outputs, in the layout of ONNX's
            test data (test_data_set_0/input_0.pb, ...). Nothing is written if there is no difference.
        progress: called with a line when a step starts.

    Raises:
        ModelSaveError: the inputs cannot be written to `save_inputs`.
        OptionError: an unknown name, a range beyond an input's type, a missing provider, or `providers` that are not
            two.
        ModelLoadError: a model cannot be read.
        VerifyError: the models cannot be compared: the runtime refuses a model, or every case.
        MemoryError: AFTER needs more memory than this machine has.
        RuntimeMissingError: no ONNX Runtime, or no native library.
    """
    device = provider_name(provider) if provider is not None else CPU
    two = modes_of_two(providers, provider)
    pair = paired(before, after, rtol, atol, two)
    if isinstance(pair, str):
        return VerifyReport(Verdict.DIFFERENT, summary=pair)
    report = VerifyReport(numerics=pair.numerics, fixed=dict(pair.fixed), notes=list(pair.notes))
    input_options = InputOptions(seed, pair.fixed, sizes or {}, batch, ranges or {}, probe_nan)
    input_options = input_options_of(pair.before.proto, input_options, effort)
    chosen = two[1:] or modes.modes_on_one(pair, device)
    steps = Steps(progress, modes.steps_of(chosen, at_default_level=not two))
    _compare(pair, report, inputs, input_options, chosen, EFFORTS[effort], steps)
    if save_inputs is not None and report.feeds:
        place = save_case(Path(save_inputs), pair.before.proto, report.feeds, report.outputs)
        report.notes.append(f"the inputs of the largest difference were written to {place}")
    return report


def _compare(
    pair: Pair,
    report: VerifyReport,
    inputs: Any,
    input_options: InputOptions,
    chosen: Sequence[Mode],
    effort: Effort,
    steps: Steps,
) -> None:
    """Runs both models, AFTER in the chosen modes, judges the runs and fills the report."""
    steps.begin()
    expected, cases = modes.run_before(pair, report, inputs, input_options, effort.allowance)
    errors = _rounding_errors(pair, expected)
    runs = modes.run_after(
        pair, [replace(m, optimized=pair.reference.optimized) for m in chosen], cases, expected, steps
    )
    if (crashed := next((run for run in runs if isinstance(run.found, Crash)), None)) is not None:
        # The explanations below would run AFTER on this case in the caller's process.
        report.verdict = Verdict.DIFFERENT
        report.summary = f"on '{crashed.case.name}', which BEFORE accepts, AFTER fails: {crashed.found}"
        report.feeds, report.outputs = dict(crashed.case.feeds), dict(zip(pair.names, expected[crashed.case.name]))
        return
    empty = modes.empty_batch(pair.before.proto, cases[0], input_options) if inputs is None else None
    rows_of_empty: list[OutputComparison] = []
    if not pair.alone:
        steps.begin()
        more, rows_of_empty = modes.run_at_default_level(pair, cases, expected, report, empty)
        runs += more + modes.run_in_half(pair, cases, expected)
    steps.begin()
    judge_runs(pair, runs, errors, report, Budget(effort.seconds))
    steps.begin()
    report.not_covered += _not_covered(pair, cases, errors, report)
    if not pair.alone and all(row.equal for row in [*report.rows, *rows_of_empty]):
        report.not_covered += untested(pair, cases, errors, report, effort)
    if rows_of_empty and empty is not None:
        if all(row.equal for row in report.rows):
            report.notes.append(
                "the outputs differ only on an empty batch; give the sizes with --batch to leave it out"
            )
        report.rows += rows_of_empty
        cases.append(empty)
    _conclude(pair, report, cases, errors)


def _rounding_errors(pair: Pair, expected: dict[str, Outputs]) -> RoundingErrors:
    compared = only_compared(pair.before.model) & only_compared(pair.after.model)
    mode, sides = pair.reference, (pair.before, expected, pair.rewritten, pair.half_io)
    return RoundingErrors(*sides, optimized=mode.optimized, elsewhere=mode.provider != CPU, compared=compared)


def _not_covered(pair: Pair, cases: Sequence[Case], errors: RoundingErrors, report: VerifyReport) -> list[str]:
    """Returns a sentence for each output, input and branch that no case tests."""
    proto = pair.before.proto
    sentences = [*unmeasured_outputs(pair, report, errors), *modes.uncovered_outputs(proto, errors.expected)]
    return [*sentences, *modes.uncovered_inputs(proto, cases), *unused_branches(pair.before.whole, cases)]


# -- the verdict -------------------------------------------------------------------------------------------------------


def _conclude(pair: Pair, report: VerifyReport, cases: Sequence[Case], errors: RoundingErrors) -> None:
    """Sets the verdict and its summary, and describes the largest difference.

    Raises:
        VerifyError: an output is rounding noise on all cases.
    """
    report.notes += inconclusive(report.rows)
    bad = [row for row in report.rows if not row.equal]
    if bad:
        report.verdict = Verdict.DIFFERENT
        report.notes += _where_hidden(pair, bad, cases, errors.expected) + _where_beyond_half(pair, report, cases)
    else:
        report.verdict = Verdict.RANDOM if report.random else Verdict.EQUAL
        far = [r for r in report.rows if r.reason == NOISE and r.rel_rms > LARGEST_LIMIT[Numerics.REASSOCIATED]]
        report.notes += _where_hidden(pair, far, cases, errors.expected)
    report.summary = _summary(report, len(cases)) + ("; AFTER's interface is float16" if pair.half_io else "")
    if bad:
        worst = max(bad, key=sort_key)
        report.feeds = next(dict(case.feeds) for case in cases if case.name == worst.case)
        report.outputs = dict(zip(pair.names, errors.expected.get(worst.case, ())))
        if worst.case in report.cases:
            report.notes.append(f"'{worst.case}': {report.cases[worst.case]}")
        report.notes += _where_first(pair, worst, report.rows, cases, errors)
        return
    for name in pair.names:
        rows = [r for r in report.rows if r.name == name]
        # Zeros that remain zeros are no evidence for an output that is noise on other cases.
        noise = [r for r in rows if r.reason == NOISE]
        evidence = [r for r in rows if r.reason != NOISE and r.cosine != 0.0]
        if noise and not evidence:
            moved = min((r.noise for r in noise if r.noise is not None), default=math.inf)
            worst_error = max(r.slice_error for r in noise)
            raise VerifyError(
                f"{pair.called}: output '{name}' is rounding noise on every input tried: rounding alone moves BEFORE "
                f"by {moved:.2g} of its RMS or more, and AFTER's error is at most {worst_error:.2g}; give inputs with "
                "--inputs, or a limit with --rtol"
            )


def _summary(report: VerifyReport, cases: int) -> str:
    ours = any(r.library and r.provider == CPU for r in report.rows)
    modes = "with and without the library" if ours else "as standard ONNX"
    modes += ", at the runtime's default level" if all(r.optimized for r in report.rows) else ""
    modes += "".join(f", on {p}" for p in sorted({r.provider for r in report.rows} - {CPU}))
    text = f"{count(cases, 'input set')}, {modes}, class {report.numerics}"
    if report.fixed:
        text += ", with AFTER's " + ", ".join(f"{s}={n}" for s, n in report.fixed.items())
    if report.skipped:
        text += f"; BEFORE refuses {count(len(report.skipped), 'more input set')}"
    if report.random:
        text += f"; {', '.join(report.random)} not compared, since BEFORE makes random values there"
    noise = {r.case for r in report.rows if r.reason == NOISE}
    if noise:
        text += f"; {len(noise)} inconclusive, where rounding decides"
    if report.not_covered:
        text += f"; {len(report.not_covered)} not covered"
    bad = [r for r in report.rows if not r.equal]
    if bad:
        r = max(bad, key=sort_key)
        how = "with the library" if r.library else "without the library"
        how = how if r.provider == CPU else f"on {r.provider}"
        how += ", at the runtime's default level" if r.optimized else ""
        text += f"; worst: output '{r.name}{r.slice}' on '{r.case}', {how}: {r.reason}"
        error = "RMS error" if r.measure == "rms" else "largest error"
        if math.isfinite(r.slice_error):
            text += f", {error} / RMS {r.slice_error:.3g} (limit {r.slice_limit:.3g})"
    return text


def _where_beyond_half(pair: Pair, report: VerifyReport, cases: Sequence[Case]) -> list[str]:
    """Names the first node of AFTER with values beyond float16, if there is one."""
    row = max((r for r in report.rows if not r.equal), key=sort_key)
    case = next((case for case in cases if case.name == row.case), None)
    if case is None or not pair.after_halves:
        return []
    try:
        found = first_beyond_half(pair.after, pair.after_halves, case)
    except VerifyError:
        return []
    if found is None:
        return []
    node, value, most = found
    label = node.name or f"{node.op_type}->{value.removesuffix('_half')}"
    note = f"on '{case.name}' values of {node.op_type} '{label}' reach {most:.3g}, beyond float16's 65504"
    if not pair.before_halves:
        note += (
            f": optimize --precision fp16 --keep-float '{label}' keeps it in float32, and optimize --inputs finds such "
            "nodes with your inputs"
        )
    return [note]


# -- the first difference ----------------------------------------------------------------------------------------------

# The most values that become outputs of one run. If there are more, every n-th value is compared first. Then the values
# between the last equal one of these and the first different one are compared in the same way.
VALUES_PER_RUN = 32


def _where_first(
    pair: Pair, row: OutputComparison, rows: Sequence[OutputComparison], cases: Sequence[Case], errors: RoundingErrors
) -> list[str]:
    """Names the first value of both models that differs, and its node in BEFORE, on the case of a row."""
    case = next((c for c in cases if c.name == row.case), None)
    if case is None or row.optimized:
        return []
    in_bodies = any(not r.equal and not r.library and not r.optimized for r in rows if r.case == row.case)
    numerics = max(pair.rewritten.classes.values(), default=Numerics.REASSOCIATED)
    library = row.library and not in_bodies
    if library and pair.rewritten.approximated:
        numerics = max(numerics, Numerics.APPROXIMATE)
    made = {value.name for node in pair.after.model.graph for value in node.outputs if value.name}
    nodes = {str(v.name): node for node in pair.before.model.graph for v in node.outputs if v.name in made}
    names = list(nodes)
    found = None
    while names:
        step = -(-len(names) // VALUES_PER_RUN)
        chosen = names[step - 1 :: step]
        if chosen[-1] != names[-1]:
            chosen.append(names[-1])
        try:
            first = _first_of(pair, Mode(library, row.provider), chosen, case, errors, numerics)
        except VerifyError:
            break
        if first is None:
            break
        found = first
        if step == 1:
            break
        end = names.index(first[0])
        names = names[max(0, end - step + 1) : end]
    if found is None:
        return []
    name, far = found
    node = nodes[name]
    label = f"{node.op_type} '{node.name}'" if node.name else node.op_type
    how = far.structure or f"{far.relative:.2g} of its RMS"
    return [f"on '{case.name}' the first value of both models that differs is '{name}', the result of {label}: {how}"]


def _first_of(
    pair: Pair, mode: Mode, names: Sequence[str], case: Case, errors: RoundingErrors, numerics: Numerics
) -> tuple[str, Deviation] | None:
    """Returns the first of these values that differs, and its deviation."""
    want, got = values_of(pair.before, pair.reference, names, case), values_of(pair.after, mode, names, case)
    moved = errors.values(numerics, names, case) if case.fits else {}
    for name in names:
        a, b = want.get(name), got.get(name)
        if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
            continue
        if a.dtype != b.dtype and a.dtype.kind in "fV" and b.dtype.kind in "fV":
            b = b.astype(a.dtype)
        far = deviation(a, b)
        draws = [deviation(a, moved[name])] if name in moved else []
        if not judge(far, numerics if a.dtype.kind in "fV" else Numerics.REASSOCIATED, draws).equal:
            return name, far
    return None


# -- queries without visible keys --------------------------------------------------------------------------------------

# If a mask hides every key of a query, the query's softmax is over no keys and has no meaning. Two exports of one
# module may differ for such a query: if the lowest number is added to hidden scores, the result is the mean of all
# values; if minus infinity is added, the result is NaN, or 0.

Flags = npt.NDArray[np.bool_]


def _where_hidden(
    pair: Pair, rows: Sequence[OutputComparison], cases: Sequence[Case], expected: Mapping[str, Outputs]
) -> list[str]:
    """Returns a sentence if the differences of these rows are only in queries without visible keys."""
    masks = masks_of(inlined(pair.before.proto)) if rows else []
    bad, optimized = ({(r.case, r.name): r for r in rows if r.optimized == level} for level in (False, True))
    if not masks or not bad or optimized.keys() - bad.keys():
        return []
    row = next(iter(bad.values()))
    session = open_session(pair.after.source, Mode(row.library, row.provider))
    reasons: list[str] | None = None
    for case in (case for case in cases if any(name == case.name for name, _ in bad)):
        got = run_case(session, case, half_io=pair.half_io)
        for want, other, name in zip(expected[case.name], got, pair.names) if not isinstance(got, str) else ():
            if (case.name, name) not in bad:
                continue
            flags = _differing(want, other, min(bad[case.name, name].limit, LARGEST_LIMIT[Numerics.REASSOCIATED]))
            if flags is None:
                return []
            here = [why for mask in masks for why in _reasons(flags, mask, np.asarray(case.feeds[mask]))]
            reasons = [why for why in here if reasons is None or why in reasons]
    return [f"the outputs differ only {reasons[0]}: a softmax over no key has no meaning"] if reasons else []


def _differing(want: Any, got: Any, limit: float) -> Flags | None:
    """Returns which elements of an output differ by more than `limit` of its RMS; None if the shapes differ."""
    if not isinstance(want, np.ndarray) or not isinstance(got, np.ndarray):
        return None
    if want.shape != got.shape or want.ndim == 0 or want.dtype.kind not in "fV":
        return None
    a, b = want.astype(np.float64), got.astype(np.float64)
    with np.errstate(invalid="ignore"):
        finite = np.isfinite(a)
        rms = float(np.sqrt(np.mean(a[finite] ** 2))) if finite.any() else 0.0
        return np.asarray((np.abs(a - b) > limit * rms) | (np.isnan(a) != np.isnan(b)))


def hides_all(mask: npt.NDArray[Any]) -> Flags:
    """Returns the sequences [B], or queries [B, S], for which a mask [B, T] or [B, ..., S, T] hides every key.

    The elements of hidden keys are 0, or large negative floats that are added to the scores.
    """
    shown = mask > -HIDES if mask.dtype.kind in "fV" and (mask < 0).any() else mask != 0
    seen = shown.any(axis=-1)
    queries = seen if seen.ndim == 1 else np.any(seen, axis=tuple(range(1, seen.ndim - 1)))
    return np.logical_not(queries)


def hides_all_before(mask: npt.NDArray[Any]) -> Flags:
    """Returns the queries [B, T] of a causal model for which a mask [B, T] hides every key up to their own position."""
    return ~np.logical_or.accumulate(mask != 0, axis=-1)


def _reasons(flags: Flags, name: str, mask: npt.NDArray[Any]) -> list[str]:
    hidden = {f"where '{name}' hides every key": hides_all(mask)} if mask.ndim > 1 else {}
    if mask.ndim == 2:
        hidden[f"where '{name}' hides every key up to the query"] = hides_all_before(mask)
    return [why for why, queries in hidden.items() if queries.any() and _are_in(flags, queries)]


def _are_in(flags: Flags, queries: Flags) -> bool:
    """Returns whether all differences are in these sequences or queries.

    Axis 0 of the output is the batch, and axis 1 or 2 the position of the query.
    """
    queries = queries[: len(flags)]  # a mask may have unused rows
    if len(queries) < len(flags):
        return False
    if queries.ndim == 1 or queries.shape[1] == 1:
        return not flags[~queries.reshape(-1)].any()
    axis = next((i for i in (1, 2) if i < flags.ndim and flags.shape[i] == queries.shape[1]), None)
    return axis is not None and not np.moveaxis(flags, axis, 1)[~queries].any()


__all__ = ["OutputComparison", "Verdict", "VerifyReport", "verify"]
