"""How far AFTER may be from BEFORE: as far as rounding alone moves BEFORE, measured where there is a doubt."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from graphopt.errors import VerifyError
from graphopt.inputs.plan import Case
from graphopt.metadata import Numerics
from graphopt.precision.float16.constants import LARGEST
from graphopt.precision.float16.ranges import MARGIN
from graphopt.runtime.discovery import CPU
from graphopt.verification.choices import Group, grouped
from graphopt.verification.compare import NAN_EVERYWHERE, Deviation
from graphopt.verification.coverage import unseen
from graphopt.verification.halves import agree_in_single, farthest, is_usual
from graphopt.verification.honest import Budget, HonestErrors
from graphopt.verification.intermediate import has_levels, levels_part
from graphopt.verification.judge import NOISE, Finding, Judgement, is_beyond_doubt, judge
from graphopt.verification.pair import Effort, Pair, Tolerance, Way
from graphopt.verification.ranges import largest_in_single
from graphopt.verification.report import OutputComparison, VerifyReport, broken
from graphopt.verification.run import Outputs, open_session, run_case, run_cases, run_optimized
from graphopt.verification.ways import Run, at_default_level, deviations, runs_before
from graphopt.verification.winograd import approximated

# Random draws of rounding for each case, and for one that looks different: then twice as many, and again.
DRAWS, MOST_DRAWS = 1, 24
# Units by which what decides a step is moved where a case still looks different, and draws of each: one step of a
# quantized value, another choice of a TopK is an honest effect, however large.
STEP_UNITS, STEP_DRAWS = (16.0, 256.0), 4
# Where the budget ends before a case is decided, this many limits are no finding: the largest of few draws is too
# small a limit. A case beyond it is decided whatever that takes.
UNDECIDED = 2.0
# A difference of so many limits, of the output as a whole or after more draws, is no matter of luck.
BEYOND_LUCK, ENOUGH_DRAWS = 20.0, 6
# How often BEFORE runs again on a case that looks different.
SAME_RUNS = 3
# On so many cases quantized values in between are compared, where outputs look equal.
LEVELS_CASES = 3
# On so many, those with the largest inputs, ranges of intermediate values are compared.
RANGE_CASES = 2
# The share of the budget that is added to it for nodes of ours that could give zeros.
UNSEEN_SHARE = 0.2

Rows = dict[Run, list[OutputComparison]]


def judge_runs(
    pair: Pair,
    runs: Sequence[Run],
    honest: HonestErrors,
    report: VerifyReport,
    budget: Budget,
) -> None:
    """Appends the rows."""
    compared = [name for name in pair.names if name not in report.random]
    groups = grouped(pair, honest, runs, compared)
    rows: Rows = {}
    for group in groups:
        measure = _Measure(group.pair, group.honest, compared)
        group.runs = _judge_group(measure, group.runs, rows, report, budget)
        if group.choices:
            _judge_choices(group, measure, rows)
    if all(row.equal for group in groups for run in group.runs for row in rows[run]):
        for group in groups:
            _compare_levels(group.pair, group.runs, rows, budget)
            _compare_ranges(group.pair, group.runs, rows)
    for group in groups:
        for run in group.runs:
            report.rows += rows[run]


def _judge_group(
    measure: _Measure, given: Sequence[Run], rows: Rows, report: VerifyReport, budget: Budget
) -> list[Run]:
    """Adds the rows of runs that are compared with one BEFORE; the runs that count."""
    pair = measure.pair
    measure.draw(given)
    rows |= {run: measure.rows_of(run) for run in given}
    # Most models stay within what rounding does even with kernels that approximate.
    if pair.rewritten.approximated:
        beyond = [r for r in given if _has_kernels(pair, r) and not all(row.equal for row in rows[r])]
        measure.approximation |= _approximation(pair, list({r.case.name: r.case for r in beyond}.values()))
        rows |= {run: measure.rows_of(run) for run in beyond}
    runs = _without_what_befalls_before(measure, given, rows, report)
    _measure_again(measure, runs, rows, budget)
    unsteady = {output for _, output in measure.unsteady}
    report.random += [n for n in measure.compared if n in unsteady and n not in report.random]
    for name in sorted({output for _, output, in_half in measure.overflown if in_half}):
        case = next(case for case, output, in_half in measure.overflown if in_half and output == name)
        report.notes.append(
            f"on '{case}' numbers behind output '{name}' are beyond float16, BEFORE's in that precision, too: a GPU "
            "makes infinities of them, and the CPU's runtime, which casts between nodes, does not"
        )
    return list(runs)


def _judge_choices(group: Group, measure: _Measure, rows: Rows) -> None:
    """Marks runs with choices that BEFORE could not have made by its scores and their rounding error."""
    numerics = max(group.pair.rewritten.classes[name] for name in measure.compared)
    for run in group.runs:
        why, behind = group.mistake(run, numerics)
        while why and group.honest.drawn(numerics, run.case) < ENOUGH_DRAWS:
            group.honest.measure(numerics, [run.case], DRAWS)
            why, behind = group.mistake(run, numerics)
        if why and rows[run]:
            worst = max(rows[run], key=lambda row: (row.name in behind, row.severity))
            broken_row = replace(worst, equal=False, reason=why, slice="", slice_error=math.inf)
            rows[run] = [broken_row if row is worst else row for row in rows[run]]


@dataclass
class _Measure:
    """What rows are judged by: it grows while cases that look different are measured again.

    Attributes:
        compared: outputs that BEFORE does not make at random.
        classes: class -> the compared outputs of it that honest errors judge, by number.
        approximation: by case; see `_approximation`.
        overflown: (case, output, whether AFTER ran in half) where BEFORE leaves that range, too.
        allowed: by case, how many limits are no finding.
        unsteady: (case, output) where BEFORE differs from itself.
    """

    pair: Pair
    honest: HonestErrors
    compared: list[str]
    classes: dict[Numerics, list[int]] = field(default_factory=dict)
    approximation: dict[str, list[Deviation]] = field(default_factory=dict)
    overflown: set[tuple[str, str, bool]] = field(default_factory=set)
    allowed: dict[str, float] = field(default_factory=dict)
    unsteady: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        for name in self.compared:
            numerics = self.pair.rewritten.classes[name]
            if numerics != Numerics.EXACT and _for_output(self.pair.rtol, name) is None:
                self.classes.setdefault(numerics, []).append(self.pair.names.index(name))

    def draw(self, runs: Sequence[Run]) -> None:
        """Lets rounding move BEFORE where a class of outputs leaves a doubt."""
        for numerics, outputs in self.classes.items():
            doubtful = {
                r.case.name: r.case
                for r in runs
                if not isinstance(r.found, str) and any(not is_beyond_doubt(r.found[i]) for i in outputs)
            }
            self.honest.measure(numerics, doubtful.values(), DRAWS)

    def measure_fixed(self, run: Run) -> None:
        for numerics in self.classes:
            self.honest.measure_fixed(numerics, run.case)

    def rows_of(self, run: Run) -> list[OutputComparison]:
        rows = (r for r in self._measured(run) if (r.case, r.name) not in self.unsteady)
        return [self._forgiven(r, in_half=run.way.in_half) for r in rows]

    def _measured(self, run: Run) -> list[OutputComparison]:
        return _rows(self.pair, run, self.honest, self.approximation.get(run.case.name), self.compared)

    def _forgiven(self, row: OutputComparison, *, in_half: bool) -> OutputComparison:
        if (row.case, row.name, in_half) in self.overflown:
            row = replace(row, equal=True, reason=NOISE, slice_error=0.0)
        return replace(row, equal=True, reason=NOISE) if 1 < row.severity <= self.allowed.get(row.case, 1.0) else row


def _without_what_befalls_before(
    measure: _Measure, runs: Sequence[Run], rows: Rows, report: VerifyReport
) -> Sequence[Run]:
    """The runs but those in which the runtime's own optimizations take BEFORE as far from itself as AFTER.

    Up to 1.31 its fusion of a LayerNormalization, for one, takes 1e-5 for an epsilon that is the first operand of its
    sum.
    """
    bad = [run for run in runs if run.way.optimized and not all(row.equal for row in rows[run])]
    if not bad:
        return runs
    original = run_optimized(measure.pair.before.source, [run.case for run in bad], library=False)
    dropped = set()
    for run in bad:
        itself = replace(run, found=deviations(measure.honest.wanted[run.case.name], original[run.case.name]))
        moved = {row.name: row for row in measure.rows_of(itself)}
        pairs = [(row, moved.get(row.name)) for row in rows[run] if not row.equal]
        if all(b is not None and not b.equal and row.severity <= b.severity + 1 for row, b in pairs):
            dropped.add(run)
            report.notes.append(at_default_level(run.case, "its outputs change"))
    return [run for run in runs if run not in dropped]


def _measure_again(measure: _Measure, runs: Sequence[Run], rows: Rows, budget: Budget) -> None:
    """Cases that look different are measured again, the worst first, until one stays so."""
    worst = sorted(runs, key=lambda run: max((r.severity for r in rows[run] if not r.equal), default=0.0))
    again: set[str] = set()
    for run in reversed(worst):
        if run.case.name in again:
            rows[run] = measure.rows_of(run)
        bad = [r for r in rows[run] if not r.equal]
        if not bad:
            continue
        if _is_beyond_luck(bad):
            measure.measure_fixed(run)
            rows[run] = measure.rows_of(run)
            bad = [r for r in rows[run] if not r.equal]
        if _is_beyond_luck(bad) and not measure.honest.has_choices and not run.way.in_half:
            if _is_steady(measure, run, runs, rows):
                break
            continue
        measure.overflown |= _overflown(measure.pair, run, measure.honest, bad)
        decided = _drawn_again(run, measure, budget if again else None)
        again.add(run.case.name)
        measure.allowed[run.case.name] = 1.0 if decided else UNDECIDED
        rows[run] = measure.rows_of(run)
        if any(not r.equal for r in rows[run]) and _is_steady(measure, run, runs, rows):
            break
    measured = again | {case for case, _ in measure.unsteady}
    for run in runs:
        if run.case.name in measured:
            rows[run] = measure.rows_of(run)


def _is_beyond_luck(rows: Sequence[OutputComparison]) -> bool:
    return any(math.isfinite(r.rel_rms) and r.rel_rms > BEYOND_LUCK * r.limit for r in rows)


def _is_steady(measure: _Measure, run: Run, runs: Sequence[Run], rows: Rows) -> bool:
    """Whether what looks different does so without what BEFORE makes another way each time."""
    measure.unsteady |= _unsteady(measure, run, runs)
    rows[run] = measure.rows_of(run)
    return any(not r.equal for r in rows[run])


def _unsteady(measure: _Measure, run: Run, runs: Sequence[Run]) -> set[tuple[str, str]]:
    """(case, output) where BEFORE itself looks different from one run to the next: of memory that nobody wrote to."""
    reference, before = measure.pair.reference, runs_before(measure.pair)
    others = list({r.case.name: r.case for r in runs if r.case is not run.case}.values())
    found = set()
    for turn in range(SAME_RUNS):
        # What another case left in memory.
        for other in others[turn : turn + 1]:
            before(other)
        itself = Run(reference, run.case, deviations(measure.honest.wanted[run.case.name], before(run.case)))
        found |= {(row.case, row.name) for row in measure.rows_of(itself) if not row.equal}
    return found


def _drawn_again(run: Run, measure: _Measure, budget: Budget | None) -> bool:
    """Draws until the case no longer looks different, or surely is; False where the budget ends before."""
    classes, honest, rows_of = measure.classes, measure.honest, measure.rows_of

    def spend(draws: int, steps: float = 1.0) -> None:
        for numerics in classes:
            seconds = honest.measure(numerics, [run.case], draws, steps)
            if budget is not None:
                budget.spent += seconds

    while True:
        drawn = max((honest.drawn(numerics, run.case) for numerics in classes), default=MOST_DRAWS)
        bad = [r for r in rows_of(run) if not r.equal]
        if bad and drawn >= ENOUGH_DRAWS:
            measure.measure_fixed(run)
            bad = [r for r in rows_of(run) if not r.equal]
        # A choice that no draw made has no limit to be beyond.
        surely = all(BEYOND_LUCK < r.severity < math.inf and math.isfinite(r.rel_rms) for r in bad)
        if not bad or drawn >= MOST_DRAWS or (surely and drawn >= ENOUGH_DRAWS):
            break
        if _may_end(budget, bad):
            return False
        spend(min(max(1, drawn), MOST_DRAWS - drawn))
    for units in STEP_UNITS if bad and classes and honest.has_steps else ():
        if _may_end(budget, bad):
            return False
        spend(STEP_DRAWS, units)
        bad = [r for r in rows_of(run) if not r.equal]
        if not bad:
            break
    return True


def _may_end(budget: Budget | None, bad: Sequence[OutputComparison]) -> bool:
    """Whether a case may stay undecided: no budget is left, and its limits of few draws make no finding of it."""
    return budget is not None and budget.is_spent and all(row.severity <= UNDECIDED for row in bad)


def _overflown(
    pair: Pair, run: Run, honest: HonestErrors, rows: Sequence[OutputComparison]
) -> set[tuple[str, str, bool]]:
    """(case, output, whether AFTER ran in half) where one side leaves the range of half precision.

    AFTER may where BEFORE would, too, in AFTER's precision, on inputs far from usual ones. Where BEFORE is not finite
    itself, AFTER may have the numbers that BEFORE gives in float32.
    """
    found = set()
    usual = pair.given or is_usual(run.case)
    single: list[bool] | None = None
    for row in rows:
        numerics, place = pair.rewritten.classes[row.name], pair.names.index(row.name)
        infinite = isinstance(run.found, list) and run.found[place].structure.startswith(("NaN", "infinities"))
        if not (infinite or run.way.in_half) or numerics not in (Numerics.FP16, Numerics.BF16):
            continue
        moved = [] if usual else honest.overflows(numerics, run.case)
        if row.reason.startswith(NAN_EVERYWHERE):
            beyond = [d.structure == NAN_EVERYWHERE for d in moved]
        else:
            beyond = [bool(d.structure) or (not infinite and d.relative > row.limit) for d in moved]
        want = honest.wanted[row.case][place]
        if not (beyond and beyond[place]) and isinstance(want, np.ndarray) and not np.isfinite(want).all():
            if single is None:
                way = run.way
                session = open_session(
                    pair.after.source, library=way.library, provider=way.provider, optimized=way.optimized
                )
                got = run_case(session, run.case, half_io=pair.half_io)
                single = [] if isinstance(got, str) else agree_in_single(pair.before.whole, run.case, got)
            beyond = single
        if beyond and beyond[place]:
            found.add((row.case, row.name, run.way.in_half))
    return found


def _compare_levels(pair: Pair, runs: Sequence[Run], rows: Rows, budget: Budget) -> None:
    """Looks at quantized values in between, on cases whose outputs differ and look equal, the worst first."""
    single = max(pair.rewritten.classes.values(), default=Numerics.EXACT) <= Numerics.APPROXIMATE
    if not single or not has_levels(pair.before.model):
        return
    moved = [run for run in runs if not run.way.optimized and any(row.max_abs for row in rows[run])]
    moved.sort(key=lambda run: max(row.severity for row in rows[run]), reverse=True)
    for tried, run in enumerate(moved[:LEVELS_CASES]):
        if tried and budget.is_spent:
            return
        began = time.process_time()
        why = levels_part(pair, run.way, run.case)
        budget.spent += time.process_time() - began
        if why:
            worst = max(rows[run], key=lambda row: row.severity)
            rows[run] = [replace(r, equal=False, reason=why) if r is worst else r for r in rows[run]]
            return


def _compare_ranges(pair: Pair, runs: Sequence[Run], rows: Rows) -> None:
    """Compares ranges of intermediate values, where both models are in float16 and their outputs look equal.

    The CPU's runtime computes most of float16 in float32, which hides values that AFTER alone takes beyond float16.
    """
    if not pair.before_halves or not pair.after_halves:
        return
    for case in farthest([run.case for run in runs], RANGE_CASES):
        try:
            before = largest_in_single(pair.before, pair.before_halves, case)
            after = largest_in_single(pair.after, pair.after_halves, case)
        except VerifyError:
            return
        beyond = {name: most for name, most in after.items() if most > LARGEST}
        if beyond and max(before.values(), default=0.0) <= LARGEST / MARGIN:
            run = next(run for run in runs if run.case is case)
            value, most = next(iter(beyond.items()))
            why = (
                f"'{value}' reaches {most:.3g}, beyond float16, and no value of BEFORE comes near its limit: infinite "
                "where float16 is computed as such, as on GPUs"
            )
            rows[run] = [replace(r, equal=False, reason=why, slice_error=math.inf) for r in rows[run][:1]]
            return


def _approximation(pair: Pair, cases: Sequence[Case]) -> dict[str, list[Deviation]]:
    """By case: how far another honest implementation of what our kernels approximate is from the function bodies."""
    if not cases:
        return {}
    optimized = pair.reference.optimized
    bodies = run_cases(pair.after.source, cases, library=False, optimized=optimized)
    try:
        results = run_cases(approximated(pair.after.model), cases, library=False, optimized=optimized)
    except VerifyError:
        return {}
    found = {}
    for name, got in results.items():
        want = bodies[name]
        compared = got if isinstance(want, str) else deviations(want, got)
        if not isinstance(compared, str):
            found[name] = compared
    return found


def _has_kernels(pair: Pair, run: Run) -> bool:
    """Whether kernels of ours may have computed one side."""
    return run.way.library or pair.reference.library


def _rows(
    pair: Pair, run: Run, honest: HonestErrors, approximation: list[Deviation] | None, compared: Sequence[str]
) -> list[OutputComparison]:
    """A row for each compared output; one for all where AFTER did not run."""
    way = (run.way.library, run.way.provider, run.way.optimized)
    if isinstance(run.found, str):
        return [broken(pair.names[0], run.case.name, way, f"AFTER cannot run: {run.found}")]
    rows = []
    for i, (name, found) in enumerate(zip(pair.names, run.found)):
        if name not in compared:
            continue
        judged = _judged(pair, run, honest, approximation, i)
        own_limit = _for_output(pair.rtol, name)
        rows.append(
            OutputComparison(
                name,
                run.case.name,
                *way,
                found.max_abs,
                math.inf if found.structure else found.relative,
                found.snr_db,
                found.cosine,
                judged.whole_limit if own_limit is None else own_limit,
                judged.finding != Finding.DIFFERENT,
                judged.reason,
                judged.where,
                judged.measure,
                judged.error,
                judged.limit,
                None if math.isnan(judged.honest) else judged.honest,
                judged.unmeasured,
            )
        )
    return rows


def _judged(
    pair: Pair, run: Run, honest: HonestErrors, approximation: list[Deviation] | None, output: int
) -> Judgement:
    """What one output of a run says: by the caller's limits, or by how far rounding moves BEFORE."""
    assert not isinstance(run.found, str)
    name, found = pair.names[output], run.found[output]
    own_limit = _for_output(pair.rtol, name)
    accepted = _for_output(pair.atol, name) or 0.0
    if own_limit is not None:
        equal = not found.structure and (found.relative <= own_limit or found.max_abs <= accepted)
        finding = Finding.EQUAL if equal else Finding.DIFFERENT
        return Judgement(finding, found.structure or ("" if equal else "differs"), found.relative, own_limit)
    own = numerics = pair.rewritten.classes[name]
    if run.way.provider != CPU or run.way.optimized:
        numerics = max(numerics, Numerics.REASSOCIATED)  # sums in an order of its own, also where nothing changed
    approximates = name in pair.rewritten.approximated and _has_kernels(pair, run)
    if approximates:
        numerics = max(numerics, Numerics.APPROXIMATE)
    case = run.case.name
    judged = judge(
        found,
        numerics,
        honest.of(own, case, output),
        approximation[output] if approximation and approximates else None,
        honest.shares(own, output),
        honest.fixed_of(own, case, output),
    )
    if judged.finding == Finding.DIFFERENT and run.way.in_half:
        judged = replace(judged, reason=f"{judged.reason}, with every number of float16 rounded to it")
    if judged.finding == Finding.DIFFERENT and not found.structure and found.max_abs <= accepted:
        return Judgement(Finding.EQUAL, "", judged.error, judged.limit, judged.honest)
    return judged


def _for_output(tolerance: Tolerance | None, name: str) -> float | None:
    if isinstance(tolerance, Mapping):
        return tolerance.get(name, tolerance.get(""))
    return tolerance


def unmeasured(pair: Pair, report: VerifyReport, honest: HonestErrors) -> list[str]:
    """A sentence for each output that a fixed limit judged, since nothing says how far rounding moves it."""
    said = []
    for name in pair.names:
        limits = {row.case: row.limit for row in report.rows if row.name == name and row.unmeasured}
        if limits:
            tried = len({row.case for row in report.rows})
            some = f"{len(limits)} of {tried} inputs" if len(limits) < tried else "every input tried"
            why = honest.why_not(pair.rewritten.classes[name], next(iter(limits)))
            said.append(
                f"how far rounding moves output '{name}' could not be measured on {some} ({why}): a fixed limit stands "
                f"in, {max(limits.values()):.0e} of its RMS, and none of its slices was compared by itself"
            )
    return said


def unnoticed(
    pair: Pair,
    cases: Sequence[Case],
    wanted: Mapping[str, Outputs],
    honest: HonestErrors,
    report: VerifyReport,
    effort: Effort,
) -> list[str]:
    """Nodes of ours that could give zeros, and tables that could hold others, without any row that says so."""
    compared = [name for name in pair.names if name not in report.random]

    def moves(case: Case, outputs: Outputs) -> bool:
        run = Run(Way(False), case, deviations(wanted[case.name], outputs))
        return not all(row.equal for row in _rows(pair, run, honest, None, compared))

    part = Budget(effort.seconds * UNSEEN_SHARE, spent=2 * pair.opening)
    tables = [str(table) for table in pair.tables if not table.input]
    return unseen(pair.after, cases, moves, part, pair.running) + tables
