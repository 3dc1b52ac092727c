"""The answer in one line: how much faster, whether it is the same, how many nodes."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from graphopt.checking.judge import NOISE, Verdict
from graphopt.checking.verify import VerifyReport
from graphopt.checking.verify.report import severity
from graphopt.measure.bench import BenchReport, BenchRow
from graphopt.report.data import ModelStats, Report
from graphopt.report.text import count, small


def answer(
    report: Report, accuracy: VerifyReport | None = None, times: BenchReport | None = None, written: str = ""
) -> str:
    """For instance "1.29x faster (1.27-1.31), equal (worst 1.2e-6), 464 -> 247 nodes, resnet50.opt.onnx"."""
    parts = [speed(times) if times is not None else "", equality(accuracy) if accuracy is not None else ""]
    parts.append(nodes(report.before, report.after))
    parts.append(written)
    return ", ".join(p for p in parts if p)


def speed(times: BenchReport) -> str:
    """How much faster AFTER is than BEFORE; "" where one side alone was timed."""
    rows = [row for row in times.rows if row.speedup is not None]
    if not rows:
        return ""
    if len(rows) == 1:
        return _of_row(rows[0])
    lowest, highest = (_factor(f(rows, key=lambda r: r.speedup or 1.0)) for f in (min, max))
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
    assert row.speedup is not None and row.low is not None and row.high is not None
    if row.verdict == "faster":
        return f"{row.speedup:.2f}x faster ({row.low:.2f}-{row.high:.2f})"
    if row.verdict == "slower":
        return f"{1 / row.speedup:.2f}x slower ({1 / row.high:.2f}-{1 / row.low:.2f})"
    return f"as fast within noise ({row.low:.2f}x-{row.high:.2f}x)"


def _factor(row: BenchRow) -> str:
    assert row.speedup is not None
    if row.verdict == "slower":
        return f"{1 / row.speedup:.2f}x slower"
    return f"{row.speedup:.2f}x faster" if row.verdict == "faster" else "as fast"


def _verdicts(rows: Sequence[BenchRow]) -> str:
    said = [row.verdict for row in rows]
    if len(set(said)) == 1:
        return count(len(rows), "setting")
    return f"{said.count('faster')} of {len(rows)} settings faster"


# A larger error relative to the RMS of the output says little of an equal one: most of its elements are near 0.
MEANINGFUL = 0.5
# Letters of a reason in the first line.
REASON = 100


def equality(accuracy: VerifyReport) -> str:
    """The verdict and the error nearest to its limit; and whether BEFORE refused most of the inputs."""
    said = [word for word in (_error(accuracy), _refused(accuracy)) if word]
    return accuracy.verdict.value + (f" ({'; '.join(said)})" if said else "")


def _error(accuracy: VerifyReport) -> str:
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


def nodes(before: ModelStats | None, after: ModelStats | None) -> str:
    """How many before and after."""
    if before is None or after is None:
        return ""
    a, b = sum(before.nodes.values()), sum(after.nodes.values())
    return f"{count(a, 'node')}, as before" if before.nodes == after.nodes else f"{a:,} -> {count(b, 'node')}"
