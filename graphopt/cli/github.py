"""`--github`: annotations and step summaries for GitHub Actions.

Workflow commands: https://docs.github.com/actions/reference/workflow-commands-for-github-actions
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from graphopt.remarks import Code
from graphopt.report.answer import answer, is_slower
from graphopt.report.text import visible

if TYPE_CHECKING:
    from graphopt.measure.bench import BenchReport
    from graphopt.report.data import Report
    from graphopt.verification.verify import VerifyReport


def annotate(
    report: Report, accuracy: VerifyReport | None, times: BenchReport | None, model: Path, out: Path | None
) -> None:
    """Prints an annotation, and appends a summary to the file `GITHUB_STEP_SUMMARY` if it is set.

    Args:
        report: the result of `optimize`.
        accuracy: the result of `verify`; None if it did not run.
        times: the result of `bench`; None if it did not run.
        model: the input file; annotations refer to it.
        out: the output file; None if not written.
    """
    message = answer(report, accuracy, times, "" if out is None else str(out))
    wrong = accuracy is not None and not accuracy.equal
    level = "error" if wrong else "warning" if times is not None and is_slower(times) else "notice"
    print(f"::{level} file={_property(str(model))},title=graphopt::{_data(message)}")
    if accuracy is not None and wrong:
        print(f"::error file={_property(str(model))},title=graphopt verify::{_data(accuracy.summary)}")
    if place := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(place).open("a", encoding="utf-8") as summary:
            summary.write(markdown(report, accuracy, times, model.name))


def markdown(report: Report, accuracy: VerifyReport | None, times: BenchReport | None, title: str) -> str:
    """Returns the summary of a step as Markdown."""
    lines = [f"### {_cell(title)}", "", f"**{_cell(answer(report, accuracy, times))}**", ""]
    before, after = report.before.nodes, report.after.nodes
    lines += ["| | before | after |", "|---|--:|--:|"]
    for op in sorted({*before, *after}):
        if before.get(op, 0) != after.get(op, 0):
            lines.append(f"| {_cell(op)} | {before.get(op, '-')} | {after.get(op, '-')} |")
    lines += [f"| **nodes** | {sum(before.values())} | {sum(after.values())} |", ""]
    if accuracy is not None:
        lines += ["| output | error / RMS | allowed | |", "|---|--:|--:|---|"]
        for row in accuracy.worst_outputs():
            verdict = "equal" if row.equal else _cell(row.reason)
            lines.append(f"| {_cell(row.name)} | {row.rel_rms:.2g} | {row.limit:.2g} | {verdict} |")
        lines.append("")
    refused = Counter(r.code for r in report.remarks if not r.applied and Code[r.code].advice != "nothing")
    if refused:
        lines += ["| refused | candidates | to do |", "|---|--:|---|"]
        lines += [f"| {code} | {n} | {_cell(Code[code].advice)} |" for code, n in refused.most_common()]
        lines.append("")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Escapes Markdown in the text of a table cell."""
    special = str.maketrans({c: f"\\{c}" for c in "\\`*_[]<>|#"})
    return visible(text).translate(special)


def _data(text: str) -> str:
    return visible(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
