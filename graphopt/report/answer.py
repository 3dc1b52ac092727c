"""The answer in one line: how much faster, whether it is the same, how many nodes."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt.checking.judge import Verdict
from graphopt.checking.verify import VerifyReport
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


def equality(accuracy: VerifyReport) -> str:
    """The verdict and the difference, relative to the RMS of its output, that is worst for its limit."""
    worst = accuracy.worst
    if worst is None:
        return accuracy.verdict.value
    if accuracy.verdict == Verdict.EQUAL and all(row.rel_rms == 0 for row in accuracy.rows):
        return "equal (same bits)"
    return f"{accuracy.verdict.value} (worst {small(worst.rel_rms)})"


def nodes(before: ModelStats | None, after: ModelStats | None) -> str:
    """How many before and after."""
    if before is None or after is None:
        return ""
    a, b = sum(before.nodes.values()), sum(after.nodes.values())
    return f"{count(a, 'node')}, as before" if before.nodes == after.nodes else f"{a:,} -> {count(b, 'node')}"
