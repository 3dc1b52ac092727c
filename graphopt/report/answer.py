"""The result in one line: speedup, verdict of `verify` and node counts; and a few lines of details."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from graphopt.report.data import Report
from graphopt.report.text import count, data_files, milliseconds, small
from graphopt.verification.report import NOISE, Verdict

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
    """Returns a line like "1.29x faster (1.27-1.31), equal (worst 1.2e-6), 464 -> 247 nodes, resnet50.opt.onnx".

    Args:
        report: the report of `optimize`.
        accuracy: the report of `verify`; None if not run.
        times: the report of `bench`; None if not run.
        written: the output file, named at the end; "" to omit it.
        failed: why the comparison of the outputs failed; "" if it did not fail, or was not requested.
    """
    measured = speed(times) if times is not None else ""
    shown = replace(report, warning="") if measured else report  # a measurement replaces the estimate
    verified = f"not verified ({textwrap.shorten(failed, REASON, placeholder=' ...')})" if failed else ""
    if accuracy is not None:
        verified = equality(accuracy)
    parts = [measured, verified]
    parts.insert(len(parts) if report.changed else 0, shown.outcome)
    return ", ".join(p for p in (*parts, written) if p)


def details(
    report: Report, times: BenchReport | None = None, written: str = "", *, everything: bool = False
) -> list[str]:
    """Returns at most `MOST_LINES` lines below the answer: file, weights, operators, rewrites, times, notes, target.

    Notes fill the remaining lines. The last line counts omitted notes and refusals.

    Args:
        report: the report of `optimize`.
        times: the report of `bench`; None if not run.
        written: the output file; "" if none was written.
        everything: omit notes, because tables follow.
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
    shown = [note for note in report.notes if not (report.obstacle and note.startswith(report.obstacle))]
    notes = shown[: MOST_LINES - 1 - len(lines)]
    rest = [(refused, "refusal"), (len(shown) - len(notes), "note")]
    left = " and ".join(count(n, what) for n, what in rest if n > 0)
    return [*lines, *notes, report.optimized_for + (f"; -v shows {left}" if left else "")]


def _times(row: BenchRow) -> str:
    """Returns the medians of one setting."""
    after = "" if row.after is None else f" -> {milliseconds(row.after.median_ms)}"
    return f"time: {milliseconds(row.before.median_ms)}{after} ms on {row.setting}"


def speed(times: BenchReport) -> str:
    """Returns how much faster or slower AFTER is than BEFORE; "" if only one model was timed."""
    rows = [row for row in times.rows if row.speedup is not None]
    if not rows:
        return ""
    if len(rows) == 1:
        return _of_row(rows[0])
    lowest, highest = (factor(f(rows, key=lambda r: r.speedup or 1.0)) for f in (min, max))
    verdicts = _verdicts(rows)
    return f"{lowest} to {highest}" + (f": {verdicts}" if verdicts else "")


def is_faster(times: BenchReport) -> bool:
    """Returns whether AFTER is faster in some setting and slower in none."""
    verdicts = {row.verdict for row in times.rows}
    return "faster" in verdicts and "slower" not in verdicts


def is_slower(times: BenchReport) -> bool:
    """Returns whether AFTER is slower in some setting."""
    return any(row.verdict == "slower" for row in times.rows)


def _of_row(row: BenchRow) -> str:
    if row.verdict == "within noise":
        return f"as fast within noise ({row.low:.2f}x-{row.high:.2f}x)"
    return f"{factor(row)} ({interval(row)})"


def factor(row: BenchRow) -> str:
    """Returns how many times faster or slower AFTER is, as a factor of at least 1; "" for a single model."""
    if row.speedup is None:
        return ""
    if row.verdict == "slower":
        return f"{1 / row.speedup:.2f}x slower"
    return f"{row.speedup:.2f}x faster" if row.verdict == "faster" else "as fast"


def interval(row: BenchRow) -> str:
    """Returns the 95 % interval of `factor`."""
    if row.low is None or row.high is None:
        return ""
    if row.verdict == "slower":
        return f"{1 / row.high:.2f}-{1 / row.low:.2f}"
    return f"{row.low:.2f}-{row.high:.2f}"


def _verdicts(rows: Sequence[BenchRow]) -> str:
    verdicts = [row.verdict for row in rows]
    if len(set(verdicts)) == 1:
        return count(len(rows), "setting")
    return f"{verdicts.count('faster')} of {len(rows)} settings faster"


# Above this error relative to RMS, an equal output consists mostly of elements near 0, and the error says little.
MAX_MEANINGFUL_ERROR = 0.5
# Characters of a reason in the first line.
REASON = 100
# Largest number of lines below the answer.
MOST_LINES = 5


def equality(accuracy: VerifyReport) -> str:
    """Returns the verdict with the error nearest to its limit, gaps in coverage, and rejected inputs if many."""
    parts = [word for word in (_error(accuracy), _refused(accuracy)) if word]
    gaps = len(accuracy.not_covered)
    verdict = accuracy.verdict.value
    if accuracy.equal and gaps:
        verdict = "partly verified: equal"
        parts.append(f"{gaps} not covered")
    return verdict + (f" ({'; '.join(parts)})" if parts else "")


def _error(accuracy: VerifyReport) -> str:
    from graphopt.verification.report import sort_key

    if accuracy.verdict == Verdict.EQUAL:
        if accuracy.rows and all(row.rel_rms == 0 for row in accuracy.rows):
            return "same bits"
        # Errors of inconclusive outputs may be large and are no evidence.
        rows = [row for row in accuracy.rows if row.reason != NOISE]
        worst = max(rows, key=sort_key, default=None)
        if worst is None:
            return "inconclusive: rounding decides" if accuracy.rows else ""
        if not worst.rel_rms <= MAX_MEANINGFUL_ERROR:
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
