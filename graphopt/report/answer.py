"""The answer in one line: how much faster, whether it is the same, how many nodes."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from graphopt.report.data import Report
from graphopt.report.text import count, data_files, milliseconds, small
from graphopt.verification.judge import NOISE, Verdict

if TYPE_CHECKING:
    from graphopt.measure.bench import BenchReport, BenchRow
    from graphopt.verification.verify import VerifyReport


def answer(
    report: Report,
    accuracy: VerifyReport | None = None,
    times: BenchReport | None = None,
    written: str = "",
    failed: str = "",
) -> str:
    """The result in one line: "1.29x faster (1.27-1.31), equal (worst 1.2e-6), 464 -> 247 nodes, resnet50.opt.onnx".

    Args:
        report: of `optimize`.
        accuracy: of `verify`.
        times: of `bench`.
        written: the output file, to be named at the end.
        failed: why the outputs could not be compared.
    """
    measured = speed(times) if times is not None else ""
    shown = replace(report, doubt="") if measured else report  # a measurement, not an estimate beside it
    verified = f"not verified ({textwrap.shorten(failed, REASON, placeholder=' ...')})" if failed else ""
    if accuracy is not None:
        verified = equality(accuracy)
    parts = [measured, verified]
    parts.insert(len(parts) if report.changed else 0, shown.outcome)
    return ", ".join(p for p in (*parts, written) if p)


def details(
    report: Report, times: BenchReport | None = None, written: str = "", *, everything: bool = False
) -> list[str]:
    """At most five lines below the answer: file, operators, weights, rewrites, times, target.

    Notes take the room that these leave; with `everything` they are left to the tables. The last line says what is
    left out.
    """
    files = [f"written to {written}"] if written else []
    if report.weights:
        files.append(report.weights)
    if report.files:
        files += data_files(report.files, report.shared_files)
    lines = [", ".join(files)] if files else []
    lines += report.details()
    if times is not None and times.rows:
        lines.append(_times(times.rows[0]) + (f"; {len(times.rows) - 1} more settings" if len(times.rows) > 1 else ""))
    if everything:
        return [*lines, report.optimized_for]
    refused = sum(not r.applied for r in report.remarks) if report.changed else 0
    said = [note for note in report.notes if not (report.obstacle and note.startswith(report.obstacle))]
    notes = said[: MOST_LINES - 1 - len(lines)]
    rest = [(refused, "refusal"), (len(said) - len(notes), "note")]
    left = " and ".join(count(n, what) for n, what in rest if n > 0)
    return [*lines, *notes, report.optimized_for + (f"; -v shows {left}" if left else "")]


def _times(row: BenchRow) -> str:
    """Medians of one setting."""
    after = "" if row.after is None else f" -> {milliseconds(row.after.median_ms)}"
    return f"time: {milliseconds(row.before.median_ms)}{after} ms on {row.setting}"


def speed(times: BenchReport) -> str:
    """How much faster AFTER is than BEFORE; "" where one side alone was timed."""
    rows = [row for row in times.rows if row.speedup is not None]
    if not rows:
        return ""
    if len(rows) == 1:
        return _of_row(rows[0])
    lowest, highest = (factor(f(rows, key=lambda r: r.speedup or 1.0)) for f in (min, max))
    verdicts = _verdicts(rows)
    return f"{lowest} to {highest}" + (f": {verdicts}" if verdicts else "")


def is_faster(times: BenchReport) -> bool:
    """Faster somewhere and slower nowhere."""
    verdicts = {row.verdict for row in times.rows}
    return "faster" in verdicts and "slower" not in verdicts


def is_slower(times: BenchReport) -> bool:
    """Slower somewhere."""
    return any(row.verdict == "slower" for row in times.rows)


def _of_row(row: BenchRow) -> str:
    if row.verdict == "within noise":
        return f"as fast within noise ({row.low:.2f}x-{row.high:.2f}x)"
    return f"{factor(row)} ({interval(row)})"


def factor(row: BenchRow) -> str:
    """How many times faster or slower AFTER is, never below 1."""
    if row.speedup is None:
        return ""
    if row.verdict == "slower":
        return f"{1 / row.speedup:.2f}x slower"
    return f"{row.speedup:.2f}x faster" if row.verdict == "faster" else "as fast"


def interval(row: BenchRow) -> str:
    """The interval of `factor`."""
    if row.low is None or row.high is None:
        return ""
    if row.verdict == "slower":
        return f"{1 / row.high:.2f}-{1 / row.low:.2f}"
    return f"{row.low:.2f}-{row.high:.2f}"


def _verdicts(rows: Sequence[BenchRow]) -> str:
    said = [row.verdict for row in rows]
    if len(set(said)) == 1:
        return count(len(rows), "setting")
    return f"{said.count('faster')} of {len(rows)} settings faster"


# A larger error relative to the RMS of the output says little of an equal one: most of its elements are near 0.
MEANINGFUL = 0.5
# Letters of a reason in the first line.
REASON = 100
# Lines below it.
MOST_LINES = 5


def equality(accuracy: VerifyReport) -> str:
    """The verdict and the error nearest to its limit; what was not compared; whether BEFORE refused most inputs."""
    said = [word for word in (_error(accuracy), _refused(accuracy)) if word]
    gaps = len(accuracy.not_covered)
    verdict = accuracy.verdict.value
    if accuracy.equal and gaps:
        verdict = "partly verified: equal"
        said.append(f"{gaps} not covered")
    return verdict + (f" ({'; '.join(said)})" if said else "")


def _error(accuracy: VerifyReport) -> str:
    from graphopt.verification.report import severity

    if accuracy.verdict == Verdict.EQUAL:
        if accuracy.rows and all(row.rel_rms == 0 for row in accuracy.rows):
            return "same bits"
        # An inconclusive output may be far off, and says nothing.
        rows = [row for row in accuracy.rows if row.reason != NOISE]
        worst = max(rows, key=severity, default=None)
        if worst is None:
            return "inconclusive: rounding decides" if accuracy.rows else ""
        if not worst.rel_rms <= MEANINGFUL:
            return f"worst {worst.severity:.0%} of its limit"
        return f"worst {small(worst.rel_rms)}"
    worst = accuracy.worst
    if worst is None:
        return ""
    if math.isfinite(worst.rel_rms) and math.isfinite(worst.slice_error):
        return f"worst {small(worst.rel_rms)}"
    return textwrap.shorten(worst.reason, REASON, placeholder=" ...")


def _refused(accuracy: VerifyReport) -> str:
    taken = len({row.case for row in accuracy.rows})
    refused = len(accuracy.skipped)
    return f"BEFORE refuses {refused} of {taken + refused} input sets" if refused > taken else ""
