"""Judges the runs of AFTER: measures rounding errors where outputs differ, until each case is decided."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from graphopt.errors import VerifyError
from graphopt.inputs.plan import Case, map_arrays
from graphopt.metadata import Numerics
from graphopt.precision.float16.constants import LARGEST
from graphopt.precision.float16.ranges import MARGIN
from graphopt.runtime.discovery import CPU
from graphopt.verification.choices import RunGroup, grouped, has_levels, level_difference, levels_agree
from graphopt.verification.compare import LIMITS, NAN_EVERYWHERE, Deviation, Judgement, deviation, deviations, judge
from graphopt.verification.modes import ComparedRun, at_default_level, is_usual, runner_of_before, with_largest_elements
from graphopt.verification.pair import Effort, Pair, Tolerance
from graphopt.verification.probes import largest_in_single, untested_nodes
from graphopt.verification.report import NOISE, OutputComparison, VerifyReport, row_without_error
from graphopt.verification.rounding_error import Budget, RoundingErrors
from graphopt.verification.run import (
    BODIES,
    Mode,
    Outputs,
    new_memory_filled,
    open_session,
    run_case,
    run_cases,
    run_isolated,
)
from graphopt.verification.variants import widened, with_winograd

# The number of draws (runs of BEFORE with random rounding) of each case. For a case that looks different it is doubled
# repeatedly, up to MOST_DRAWS.
DRAWS, MOST_DRAWS = 1, 24
# If a case still looks different, the noise on the inputs of STEPS (noise.py) is raised to these multiples of float32's
# rounding, with STEP_DRAWS draws of each: rounding of any size may cause another level of a quantized value or another
# choice of a TopK.
STEP_UNITS, STEP_DRAWS = (16.0, 256.0), 4
# If the budget ends before a case is decided, differences of up to UNDECIDED times the limit are inconclusive, because
# few draws give too small a limit. Cases with larger differences are decided without a budget.
UNDECIDED = 2.0
# A difference of more than CERTAIN_RATIO times the limit is certain for the output as a whole, and for a slice after
# ENOUGH_DRAWS draws.
CERTAIN_RATIO, ENOUGH_DRAWS = 20.0, 6
# A byte for each repeated run of BEFORE on a case that looks different: the runtime's new memory is filled with it, so
# that unwritten values change. 0 leaves memory as it is.
FILLS = (0, 0x5A, 0x33)
# The number of cases for comparisons of quantized intermediate values, if the outputs look equal.
LEVELS_CASES = 3
# The number of cases for comparisons of value ranges; the cases with the largest elements are used.
RANGE_CASES = 2
# The time to look for untested nodes, as a share of the budget; it is added to the budget.
UNTESTED_SHARE = 0.2

Rows = list[OutputComparison]


def judge_runs(
    pair: Pair, runs: Sequence[ComparedRun], errors: RoundingErrors, report: VerifyReport, budget: Budget
) -> None:
    """Judges all runs, and appends their rows and notes to the report.

    Raises:
        VerifyError: BEFORE cannot be run again.
    """
    compared = [name for name in pair.names if name not in report.random]
    judges = [_Judge(group, compared, report, budget) for group in grouped(pair, errors, runs, compared)]
    for each in judges:
        each.decide()
    if all(row.equal for each in judges for rows in each.rows.values() for row in rows):
        for each in judges:
            each.compare_levels()
            each.compare_ranges()
    report.rows += [row for each in judges for rows in each.rows.values() for row in rows]


@dataclass
class _Judge:
    """Judges the runs of one group, which are compared with the same BEFORE.

    Attributes:
        group: the runs.
        compared: outputs that are the same in each run of BEFORE.
        report: receives notes and the names of random outputs.
        budget: the CPU time for more draws.
        rows: the current judgement of each run.
        classes: class of rewrites -> indices of the compared outputs that are judged by rounding errors.
        approximation: case -> deviations of another implementation of approximating nodes.
        overflown: (case, output, whether AFTER ran in half precision) where BEFORE leaves the range of half precision,
            as AFTER does.
        allowed: case -> a multiple of the limit; a difference up to this multiple is inconclusive.
        nondeterministic: (case, output) for which runs of BEFORE differ.
        by_levels: runs of a quantized model with which BEFORE agrees if it takes AFTER's levels (`levels_agree`).
    """

    group: RunGroup
    compared: list[str]
    report: VerifyReport
    budget: Budget
    rows: dict[ComparedRun, Rows] = field(default_factory=dict)
    classes: dict[Numerics, list[int]] = field(default_factory=dict)
    approximation: dict[str, list[Deviation]] = field(default_factory=dict)
    overflown: set[tuple[str, str, bool]] = field(default_factory=set)
    allowed: dict[str, float] = field(default_factory=dict)
    nondeterministic: set[tuple[str, str]] = field(default_factory=set)
    by_levels: set[ComparedRun] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.pair, self.errors = self.group.pair, self.group.errors
        for name in self.compared:
            numerics = self.pair.rewritten.classes[name]
            if numerics != Numerics.EXACT and _for_output(self.pair.rtol, name) is None:
                self.classes.setdefault(numerics, []).append(self.pair.names.index(name))

    def update(self, run: ComparedRun) -> Rows:
        """Sets the rows of a run by the current measurements; returns the rows that differ."""
        self.rows[run] = self._rows_of(run)
        return [row for row in self.rows[run] if not row.equal]

    def _rows_of(self, run: ComparedRun) -> Rows:
        """Returns a row for each compared output; one row for all if AFTER did not run."""
        case, mode = run.case.name, run.mode.key
        if isinstance(run.found, str):
            return [row_without_error(self.pair.names[0], case, mode, f"AFTER cannot run: {run.found}")]
        rows = []
        for i, (name, found) in enumerate(zip(self.pair.names, run.found)):
            if name not in self.compared:
                continue
            numbers = found.max_abs, math.inf if found.structure else found.relative, found.snr_db, found.cosine
            row = OutputComparison(name, case, *mode, *numbers, **vars(self._judged(run, found, i)))
            if (row.case, row.name) in self.nondeterministic:
                continue
            if run in self.by_levels:
                row = replace(row, equal=True, reason="", slice="", slice_error=0.0)
            if (row.case, row.name, run.mode.in_half) in self.overflown:
                row = replace(row, equal=True, reason=NOISE, slice_error=0.0)
            excused = 1 < row.severity <= self.allowed.get(row.case, 1.0)
            rows.append(replace(row, equal=True, reason=NOISE) if excused else row)
        return rows

    def _judged(self, run: ComparedRun, found: Deviation, output: int) -> Judgement:
        """Judges one output of a run by the caller's limits, or by BEFORE's rounding errors."""
        name, case, pair = self.pair.names[output], run.case.name, self.pair
        limit, accepted = _for_output(pair.rtol, name), _for_output(pair.atol, name) or 0.0
        if limit is not None:
            equal = not found.structure and (found.relative <= limit or found.max_abs <= accepted)
            return Judgement(equal, found.structure or ("" if equal else "differs"), found.relative, limit, limit=limit)
        own = numerics = pair.rewritten.classes[name]
        if run.mode.provider != CPU or run.mode.optimized:
            # Other kernels may add in another order even without a rewrite.
            numerics = max(numerics, Numerics.REASSOCIATED)
        approximation = None
        if name in pair.rewritten.approximated and _has_kernels(pair, run):
            numerics = max(numerics, Numerics.APPROXIMATE)
            approximation = self.approximation[case][output] if case in self.approximation else None
        draws, fixed = self.errors.of(own, case, output), self.errors.fixed_of(own, case, output)
        judged = judge(found, numerics, draws, approximation, self.errors.shares(own, output), fixed)
        if not judged.equal and not found.structure and found.max_abs <= accepted:
            return replace(judged, equal=True, reason="", slice="", measure="largest", limit=0.0, unmeasured=False)
        if not judged.equal and run.mode.in_half:
            return replace(judged, reason=f"{judged.reason}, with every float16 result rounded to float16")
        return judged

    def decide(self) -> None:
        """Judges all runs."""
        given = self.group.runs
        for numerics, outputs in self.classes.items():
            doubtful = {run.case.name: run.case for run in given if run.is_doubtful(outputs)}
            self.errors.measure(numerics, doubtful.values(), DRAWS)
        different = [run for run in given if self.update(run)]
        # The approximation is measured only if runs differ: most models remain within rounding errors even with
        # approximating kernels.
        beyond = [run for run in different if _has_kernels(self.pair, run)] if self.pair.rewritten.approximated else []
        self.approximation |= _approximation(self.pair, list({r.case.name: r.case for r in beyond}.values()))
        for run in beyond:
            self.update(run)
        self._drop_runs_where_baseline_differs()
        self._measure_again()
        nondeterministic = {output for _, output in self.nondeterministic}
        self.report.random += [n for n in self.compared if n in nondeterministic and n not in self.report.random]
        for name in sorted({output for _, output, in_half in self.overflown if in_half}):
            case = next(case for case, output, in_half in self.overflown if in_half and output == name)
            self.report.notes.append(
                f"on '{case}' values that output '{name}' depends on exceed float16 in both models: they are "
                "infinite on a GPU, and finite on the CPU, where ONNX Runtime casts between nodes"
            )
        if self.group.choices:
            self._judge_choices()

    def _drop_runs_where_baseline_differs(self) -> None:
        """Drops runs if the runtime's optimizations change BEFORE's outputs as much as AFTER's differ.

        For example, ONNX Runtime up to 1.31 fuses a LayerNormalization with an epsilon of 1e-5 if the model's epsilon
        is the first operand of its addition.
        """
        bad = [run for run in self.rows if run.mode.optimized and not all(row.equal for row in self.rows[run])]
        if not bad:
            return
        original = run_isolated(self.pair.before.source, [run.case for run in bad], Mode(optimized=True))
        for run in bad:
            name = run.case.name
            itself = replace(run, found=deviations(self.errors.expected[name], original[name]))
            moved = {row.name: row for row in self._rows_of(itself)}
            pairs = [(row, moved.get(row.name)) for row in self.rows[run] if not row.equal]
            if all(b is not None and not b.equal and row.severity <= b.severity + 1 for row, b in pairs):
                del self.rows[run]
                self.report.notes.append(at_default_level(run.case, "its outputs change"))

    def _measure_again(self) -> None:
        """Measures cases that look different more precisely, the worst first, until one remains different."""
        again: set[str] = set()
        for run in sorted(self.rows, key=lambda run: max([0.0, *(r.severity for r in self.rows[run] if not r.equal)]))[
            ::-1
        ]:
            bad = self.update(run) if run.case.name in again else [r for r in self.rows[run] if not r.equal]
            if bad and _is_certain(bad):
                self._measure_fixed(run)
                bad = self.update(run)
            elif not bad:
                continue
            if self._agrees_by_levels(run):
                self.by_levels.add(run)
                self.update(run)
                continue
            if not (_is_certain(bad) and not self.errors.has_choices and not run.mode.in_half):
                self.overflown |= self._overflows(run, bad)
                decided = self._draw_again(run, self.budget if again else None)
                again.add(run.case.name)
                self.allowed[run.case.name] = 1.0 if decided else UNDECIDED
                bad = self.update(run)
            if bad:
                self.nondeterministic |= self._differs_from_itself(run)
                if self.update(run):
                    break
        measured = again | {case for case, _ in self.nondeterministic}
        for run in self.rows:
            if run.case.name in measured:
                self.update(run)

    def _agrees_by_levels(self, run: ComparedRun) -> bool:
        """Returns whether other levels of quantized values explain a difference completely (`levels_agree`)."""
        coarse = any(self.pair.rewritten.classes[name] > Numerics.APPROXIMATE for name in self.compared)
        if coarse or run.mode.optimized or run.mode.in_half or not has_levels(self.pair.before.model):
            return False
        return levels_agree(self.pair, run, self.compared)

    def _measure_fixed(self, run: ComparedRun) -> None:
        for numerics in self.classes:
            self.errors.measure_fixed(numerics, run.case)

    def _differs_from_itself(self, run: ComparedRun) -> set[tuple[str, str]]:
        """Runs BEFORE again; returns (case, output) of outputs that change, for example by uninitialized memory."""
        before, expected = runner_of_before(self.pair), self.errors.expected[run.case.name]
        others = list({r.case.name: r.case for r in self.rows if r.case is not run.case}.values())
        found = set()
        for turn, fill in enumerate(FILLS):
            for other in others[turn : turn + 1]:  # changes the contents of free memory
                before(other)
            with new_memory_filled(fill):
                itself = ComparedRun(self.pair.reference, run.case, deviations(expected, before(run.case)))
            found |= {(row.case, row.name) for row in self._rows_of(itself) if not row.equal}
        return found

    def _draw_again(self, run: ComparedRun, budget: Budget | None) -> bool:
        """Makes draws until the case is equal or certainly different; returns False if the budget ends before that."""

        def spend(draws: int, steps: float = 1.0) -> None:
            for numerics in self.classes:
                seconds = self.errors.measure(numerics, [run.case], draws, steps)
                if budget is not None:
                    budget.spent += seconds

        def may_end() -> bool:
            return budget is not None and budget.is_spent and all(row.severity <= UNDECIDED for row in bad)

        while True:
            drawn = max((self.errors.drawn(numerics, run.case) for numerics in self.classes), default=MOST_DRAWS)
            bad = self.update(run)
            if bad and drawn >= ENOUGH_DRAWS:
                self._measure_fixed(run)
                bad = self.update(run)
            # An infinite ratio is not certain: the limit of a discrete output is 0 until a draw changes the output.
            certain = all(CERTAIN_RATIO < r.severity < math.inf and math.isfinite(r.rel_rms) for r in bad)
            if not bad or drawn >= MOST_DRAWS or (certain and drawn >= ENOUGH_DRAWS):
                break
            if may_end():
                return False
            spend(min(max(1, drawn), MOST_DRAWS - drawn))
        for units in STEP_UNITS if self.classes and self.errors.has_steps else ():
            if not bad:
                break
            if may_end():
                return False
            spend(STEP_DRAWS, units)
            bad = self.update(run)
        return True

    def _overflows(self, run: ComparedRun, rows: Rows) -> set[tuple[str, str, bool]]:
        """Returns (case, output, whether AFTER ran in half precision) if AFTER may leave the range of that precision.

        On generated inputs with unusually large elements, AFTER may do so if BEFORE also does when it is rounded to
        AFTER's precision. If BEFORE's output is not finite, AFTER may do so if it agrees with a float32 run of BEFORE.
        """
        pair, found = self.pair, set()
        usual = pair.given or is_usual(run.case)
        single: list[bool] | None = None
        for row in rows:
            numerics, index = pair.rewritten.classes[row.name], pair.names.index(row.name)
            infinite = isinstance(run.found, list) and run.found[index].structure.startswith(("NaN", "infinities"))
            if not (infinite or run.mode.in_half) or numerics not in (Numerics.FP16, Numerics.BF16):
                continue
            moved = [] if usual else self.errors.overflows(numerics, run.case)
            if row.reason.startswith(NAN_EVERYWHERE):
                beyond = [d.structure == NAN_EVERYWHERE for d in moved]
            else:
                beyond = [bool(d.structure) or (not infinite and d.relative > row.limit) for d in moved]
            want = self.errors.expected[row.case][index]
            if not (beyond and beyond[index]) and isinstance(want, np.ndarray) and not np.isfinite(want).all():
                if single is None:
                    single = _agrees_in_single(pair, run)
                beyond = single
            if beyond and beyond[index]:
                found.add((row.case, row.name, run.mode.in_half))
        return found

    def _judge_choices(self) -> None:
        """Marks runs as different if BEFORE could not have made their choices, given its scores and rounding errors."""
        numerics = max(self.pair.rewritten.classes[name] for name in self.compared)
        for run, rows in self.rows.items():
            why, dependent = self.group.mistake(run, numerics)
            while why and self.errors.drawn(numerics, run.case) < ENOUGH_DRAWS:
                self.errors.measure(numerics, [run.case], DRAWS)
                why, dependent = self.group.mistake(run, numerics)
            if why and rows:
                worst = max(rows, key=lambda row: (row.name in dependent, row.severity))
                rows[rows.index(worst)] = replace(worst, equal=False, reason=why, slice="", slice_error=math.inf)

    def compare_levels(self) -> None:
        """Compares quantized intermediate values on cases with differences within the limits, the worst first."""
        single = max(self.pair.rewritten.classes.values(), default=Numerics.EXACT) <= Numerics.APPROXIMATE
        if not single or not has_levels(self.pair.before.model):
            return
        moved = [run for run, rows in self.rows.items() if not run.mode.optimized and any(r.max_abs for r in rows)]
        moved.sort(key=lambda run: max(row.severity for row in self.rows[run]), reverse=True)
        for tried, run in enumerate(moved[:LEVELS_CASES]):
            if tried and self.budget.is_spent:
                return
            began = time.process_time()
            why = level_difference(self.pair, run.mode, run.case)
            self.budget.spent += time.process_time() - began
            if why:
                rows = self.rows[run]
                worst = max(rows, key=lambda row: row.severity)
                rows[rows.index(worst)] = replace(worst, equal=False, reason=why)
                return

    def compare_ranges(self) -> None:
        """Compares ranges of intermediate values if both models are in float16 and their outputs look equal.

        ONNX Runtime computes most float16 nodes in float32 on the CPU. This hides values that exceed float16 only in
        AFTER.
        """
        pair = self.pair
        if not pair.before_halves or not pair.after_halves:
            return
        for case in with_largest_elements([run.case for run in self.rows], RANGE_CASES):
            try:
                before = largest_in_single(pair.before, pair.before_halves, case)
                after = largest_in_single(pair.after, pair.after_halves, case)
            except VerifyError:
                return
            beyond = {name: most for name, most in after.items() if most > LARGEST}
            if beyond and max(before.values(), default=0.0) <= LARGEST / MARGIN:
                rows = next(rows for run, rows in self.rows.items() if run.case is case)
                value, most = next(iter(beyond.items()))
                why = (
                    f"'{value}' reaches {most:.3g}, beyond float16's 65504, and no value of BEFORE comes near that: it "
                    "becomes infinite on GPUs, which compute in float16"
                )
                rows[:] = [replace(row, equal=False, reason=why, slice_error=math.inf) for row in rows[:1]]
                return


def _is_certain(rows: Rows) -> bool:
    return any(math.isfinite(r.rel_rms) and r.rel_rms > CERTAIN_RATIO * r.limit for r in rows)


def _agrees_in_single(pair: Pair, run: ComparedRun) -> list[bool]:
    """Runs both models, BEFORE in float32; returns whether each output agrees within the limit of float16."""
    got = run_case(open_session(pair.after.source, run.mode), run.case, half_io=pair.half_io)
    if isinstance(got, str):
        return []
    feeds = map_arrays(run.case.feeds, lambda a: a.astype(np.float32) if a.dtype.kind in "fV" else a)
    try:
        wide = run_case(open_session(widened(pair.before.whole)), Case(run.case.name, feeds))
    except VerifyError as error:
        wide = str(error)
    agrees = []
    for want, have in zip(wide, got) if not isinstance(wide, str) else ():
        # BEFORE's values beyond the range of a half-precision output of AFTER become infinite.
        arrays = isinstance(want, np.ndarray) and isinstance(have, np.ndarray)
        narrow = arrays and have.dtype.kind in "fV" and have.dtype.itemsize == 2
        with np.errstate(over="ignore"):
            found = deviation(want.astype(have.dtype) if narrow else want, have)
        agrees.append(not found.structure and found.relative <= LIMITS[Numerics.FP16])
    return agrees


def _approximation(pair: Pair, cases: Sequence[Case]) -> dict[str, list[Deviation]]:
    """Runs approximating nodes by Winograd's algorithm; returns case -> deviations from their function bodies."""
    if not cases:
        return {}
    mode = replace(BODIES, optimized=pair.reference.optimized)
    bodies = run_cases(pair.after.source, cases, mode)
    try:
        results = run_cases(with_winograd(pair.after.model), cases, mode)
    except VerifyError:
        return {}
    found = {}
    for name, want in bodies.items():
        compared = want if isinstance(want, str) else deviations(want, results[name])
        if not isinstance(compared, str):
            found[name] = compared
    return found


def _has_kernels(pair: Pair, run: ComparedRun) -> bool:
    """Returns whether our kernels may have computed one of the models."""
    return run.mode.library or pair.reference.library


def _for_output(tolerance: Tolerance | None, name: str) -> float | None:
    if isinstance(tolerance, Mapping):
        return tolerance.get(name, tolerance.get(""))
    return tolerance


# -- coverage ----------------------------------------------------------------------------------------------------------


def unmeasured_outputs(pair: Pair, report: VerifyReport, errors: RoundingErrors) -> list[str]:
    """Returns a sentence for each output that is judged by a fixed limit, because its rounding error is unknown."""
    sentences = []
    for name in pair.names:
        limits = {row.case: row.limit for row in report.rows if row.name == name and row.unmeasured}
        if limits:
            tried = len({row.case for row in report.rows})
            some = f"{len(limits)} of {tried} inputs" if len(limits) < tried else "every input tried"
            why = errors.why_not(pair.rewritten.classes[name], next(iter(limits)))
            sentences.append(
                f"the rounding error of output '{name}' could not be measured on {some} ({why}): a fixed limit was "
                f"used, {max(limits.values()):.0e} of its RMS, for the whole output only"
            )
    return sentences


def untested(
    pair: Pair, cases: Sequence[Case], errors: RoundingErrors, report: VerifyReport, effort: Effort
) -> list[str]:
    """Returns sentences on nodes that could return zeros unnoticed, and on changed table rows that no case reads."""
    budget = Budget(effort.seconds * UNTESTED_SHARE, spent=2 * pair.opening)
    judging = _Judge(RunGroup(pair, errors), [name for name in pair.names if name not in report.random], report, budget)

    def differs(case: Case, outputs: Outputs) -> bool:
        return bool(judging.update(ComparedRun(BODIES, case, deviations(errors.expected[case.name], outputs))))

    tables = [str(table) for table in pair.tables if not table.input]
    return untested_nodes(pair.after.model, cases, differs, budget, pair.running) + tables
