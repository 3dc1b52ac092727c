"""`graphopt optimize`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

import graphopt
from graphopt import files
from graphopt.cli import screen, streams
from graphopt.cli.options import (
    CustomOpsOption,
    GithubOption,
    IgnoreCostModelOption,
    InPath,
    OnlyOption,
    ShapeOption,
    ShareWeightsOption,
    Sizes,
    SkipOption,
    TargetOption,
    several_sizes,
)
from graphopt.cli.root import Command, app
from graphopt.cli.verify import exit_with_verdict
from graphopt.errors import EXIT_SLOWER, GraphoptError, OptionError

if TYPE_CHECKING:
    from graphopt.measure.bench import BenchReport
    from graphopt.measure.tune import Tuning
    from graphopt.options import Options, Precision
    from graphopt.precision.limit_error import ErrorLimit
    from graphopt.report.data import Report
    from graphopt.report.html import Provenance
    from graphopt.verification.verify import VerifyReport

OutPath = Annotated[Path | None, typer.Argument(help="The file to write; - is stdout.", metavar="OUT")]
PrecisionOption = Annotated[
    str | None,
    typer.Option(help="fp16 converts to half precision; bf16, for CPUs, rounds operands of GEMMs to bfloat16."),
]
Fp16IoOption = Annotated[
    bool, typer.Option("--fp16-io", help="With --precision fp16: also convert inputs and outputs.")
]
KeepFloatOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="With --precision: keep this node or operator in float32 (repeatable)."),
]
InputsOption = Annotated[
    Path | None,
    typer.Option(
        "--inputs",
        help="With --precision fp16: a .npz file or a folder of inputs for the range of activations.",
    ),
]
MaxErrorOption = Annotated[
    float | None,
    typer.Option(
        metavar="0.005",
        help="With --precision bf16: limit of RMS error / RMS of an output; keeps sensitive layers in float32.",
    ),
]
FreezeOption = Annotated[
    bool, typer.Option("--freeze-initializers", help="Remove initializers from inputs; callers cannot override them.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Report only; write nothing.")]
ExplainOption = Annotated[bool, typer.Option("--explain", help="Print every rewrite and refusal.")]
JsonOption = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the report as JSON; - is stdout.")
]
VerifyOption = Annotated[bool | None, typer.Option("--verify/--no-verify", help="Compare outputs before and after.")]
BenchOption = Annotated[bool | None, typer.Option("--bench/--no-bench", help="Time IN and OUT (--threads, --dim).")]
ReportOption = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="Write an HTML page; also verifies and times.")
]
ExternalDataOption = Annotated[
    bool | None, typer.Option("--external-data/--no-external-data", help="Store weights in OUT.data, or in OUT.")
]
InPlaceOption = Annotated[bool, typer.Option("--in-place", help="Allow OUT to be IN.")]
CheckOption = Annotated[bool, typer.Option("--check", help="Check the invariants after each pass.")]
TuneOption = Annotated[bool, typer.Option("--tune", help="Measure on this machine which rewrites are faster.")]
TuningCacheOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Measurements to use; --tune adds missing ones.")
]
TuneSecondsOption = Annotated[float, typer.Option(min=0, help="Approximate duration of --tune.")]
ThreadsOption = Annotated[int, typer.Option(min=0, help="Threads for tuning and timing; 0: the runtime decides.")]
DimOption = Annotated[
    list[Sizes] | None,
    typer.Option(parser=several_sizes, metavar="NAME=8", help="Size for tuning and timing (repeatable)."),
]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Exit code 9 if OUT is only partly verified, 11 if it is slower.")
]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Print tables of all results.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")]


# Below, `shown` is OUT as the user gave it, and `written` is the file to write, a temporary one for stdout.
@app.command(cls=Command, name="optimize")
def optimize(
    model: InPath,
    out: OutPath = None,
    target: TargetOption = "auto",
    only: OnlyOption = None,
    skip: SkipOption = None,
    precision: PrecisionOption = None,
    fp16_io: Fp16IoOption = False,
    keep_float: KeepFloatOption = None,
    inputs: InputsOption = None,
    max_error: MaxErrorOption = None,
    input_shape: ShapeOption = None,
    freeze_initializers: FreezeOption = False,
    ignore_cost_model: IgnoreCostModelOption = False,
    dry_run: DryRunOption = False,
    explain: ExplainOption = False,
    json_file: JsonOption = None,
    verify: VerifyOption = None,
    bench: BenchOption = None,
    report_file: ReportOption = None,
    external_data: ExternalDataOption = None,
    share_weights: ShareWeightsOption = False,
    in_place: InPlaceOption = False,
    check: CheckOption = False,
    tune: TuneOption = False,
    tuning_cache: TuningCacheOption = None,
    tune_seconds: TuneSecondsOption = 60.0,
    threads: ThreadsOption = 0,
    dim: DimOption = None,
    custom_ops: CustomOpsOption = None,
    github: GithubOption = False,
    strict: StrictOption = False,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
) -> None:
    """Rewrite IN into OUT.

    Exit code 0: done, 1: outputs differ, 2: not verified, 8: outputs are random.
    """
    _check_outputs(out, json_file, report_file, dry_run=dry_run)
    shown = out if not dry_run else None
    verify, bench = _comparisons(verify, bench, report_file, shown, in_place=in_place)
    timing = _Timing(threads, dict(dim or ()))
    if not (bench or tune or tuning_cache is not None or max_error is not None):
        timing.require_unused()
    options = graphopt.Options(
        target=target,
        only=only or (),
        skip=skip or (),
        precision=cast("Precision | None", precision),
        keep_io=not fp16_io,
        keep_float=keep_float or (),
        inputs=inputs,
        input_shapes=dict(input_shape or ()),
        freeze_initializers=freeze_initializers,
        ignore_cost_model=ignore_cost_model,
        check=check,
        external_data=False if shown == streams.DASH else external_data,
        share_weights=share_weights,
        in_place=in_place,
        dry_run=dry_run,
        custom_ops=custom_ops or (),
    )
    model, written = streams.read(model), None if shown is None else streams.write(shown)
    if streams.DASH in (json_file, report_file):
        screen.divert()
    _check_output_paths(model, written, {"--json": json_file, "--report": report_file, "--tuning-cache": tuning_cache})

    with _working(options, out if written == out else None, json_file, report_file):
        tuning = _tune(model, options, timing, tuning_cache, tune_seconds, measure=tune)
        limit = _limit_error(model, options, timing, tuning, max_error)
        found = _Found(_run_optimize(model, written or out, shown, options, tuning, limit))
        _compare(found, model, written, timing, verify=verify, bench=bench)
        _write_reports(report_file, json_file, found, model, written)
    streams.flush(shown, written)
    if not quiet:
        _print(found, tuning, shown, explain=explain, verbose=verbose)
    if github:
        _annotate(found, model, shown)
    _end(found, strict=strict)


@dataclass
class _Found:
    """The results of rewriting, verifying and timing.

    Attributes:
        report: the result of the rewrite.
        accuracy: the result of verification; None if it was not requested or raised an error.
        times: the result of timing; None if it was not requested or raised an error.
        unverified: the error that verification raised, or None.
        untimed: the error that timing raised, or None.
    """

    report: Report
    accuracy: VerifyReport | None = None
    times: BenchReport | None = None
    unverified: GraphoptError | None = None
    untimed: GraphoptError | None = None


def _annotate(found: _Found, model: Path, shown: Path | None) -> None:
    from graphopt.cli.github import annotate

    annotate(found.report, found.accuracy, found.times, model, shown)


def _end(found: _Found, *, strict: bool) -> None:
    """Ends with the exit code of the results, or raises the error of a failed comparison."""
    if found.accuracy is not None:
        exit_with_verdict(found.accuracy.verdict, uncovered=strict and bool(found.accuracy.not_covered))
    if (failure := found.unverified or found.untimed) is not None:
        raise failure
    if strict and found.times is not None:
        from graphopt.report.answer import is_slower

        if is_slower(found.times):
            raise typer.Exit(EXIT_SLOWER)


@dataclass(frozen=True)
class _Timing:
    """Threads and sizes for tuning and timing; tuning uses the first of several sizes."""

    threads: int
    sizes: dict[str, list[int]]

    def require_unused(self) -> None:
        """Rejects --dim and --threads.

        Raises:
            OptionError: one of them was given.
        """
        given = [option for option, value in (("--dim", self.sizes), ("--threads", self.threads)) if value]
        if given:
            why = "; --input-shape fixes sizes in the model" if self.sizes else ""
            raise OptionError(f"{given[0]} needs --tune, --bench or --report{why}")


def _comparisons(
    verify: bool | None, bench: bool | None, page: Path | None, shown: Path | None, *, in_place: bool
) -> tuple[bool, bool]:
    """Returns whether OUT is verified and whether it is timed; a page needs both unless they are disabled.

    Raises:
        OptionError: IN is replaced, so there is nothing to compare with.
    """
    if page is not None and shown is not None and not in_place:
        verify, bench = verify is not False, bench is not False
    if (verify or bench) and shown is not None and in_place:
        raise OptionError("--verify and --bench compare IN with OUT, so they cannot be combined with --in-place")
    return bool(verify), bool(bench)


def _check_outputs(out: Path | None, json_file: Path | None, page: Path | None, *, dry_run: bool) -> None:
    """Checks that there is an output, and that at most one goes to stdout.

    Raises:
        OptionError: there is no OUT, or several outputs go to stdout.
    """
    if out is None and not dry_run:
        raise OptionError("optimize needs an output path (or --dry-run)")
    if [out, json_file, page].count(streams.DASH) > 1:
        raise OptionError("only one of OUT, --json and --report can go to stdout")


def _tune(
    model: Path, options: Options, timing: _Timing, cache: Path | None, seconds: float, *, measure: bool
) -> Tuning | None:
    if not measure and cache is None:
        return None
    with screen.working() as say:
        return graphopt.tune(
            model,
            target=options.target,
            precision=options.precision,
            threads=timing.threads,
            sizes={name: first for name, (first, *_) in timing.sizes.items()},
            seconds=seconds,
            cache=cache,
            measure=measure,
            progress=say,
        )


def _limit_error(
    model: Path, options: Options, timing: _Timing, tuning: Tuning | None, max_error: float | None
) -> ErrorLimit | None:
    if max_error is None:
        return None
    with screen.working() as say:
        return graphopt.limit_error(
            model,
            max_error,
            options if tuning is None else replace(options, profit=tuning.profit),
            sizes={name: first for name, (first, *_) in timing.sizes.items()},
            progress=say,
        )


def _run_optimize(
    model: Path, out: Path | None, shown: Path | None, options: Options, tuning: Tuning | None, limit: ErrorLimit | None
) -> Report:
    profit = tuning.profit if tuning is not None else None
    if limit is not None:
        options = replace(options, keep_float=(*options.keep_float, *limit.keep))
    with screen.working() as say:
        _, report = graphopt.optimize(model, out, options, profit=profit, progress=say)
    if shown == streams.DASH:  # the file is a temporary one
        report.files = {}
    if tuning is not None:
        report.tuning = tuning.to_dict()
    if limit is not None:
        report.notes.insert(0, "; ".join(limit.lines()))
    return report


def _compare(found: _Found, model: Path, written: Path | None, timing: _Timing, *, verify: bool, bench: bool) -> None:
    """Verifies and times OUT; stores an error, which `_end` raises after everything else is printed.

    An unchanged model is not timed: both files are the same.
    """
    if written is None:
        return
    if verify:
        with screen.working("verifying") as say:
            try:
                found.accuracy = graphopt.verify(model, written, progress=say)
            except GraphoptError as error:
                found.unverified = error
    if bench and (found.report.changed or found.report.inputs_changed):
        with screen.working("timing") as say:
            try:
                found.times = graphopt.bench(
                    model, written, threads=(timing.threads,), sizes=timing.sizes, progress=say
                )
            except GraphoptError as error:
                found.untimed = error


def _data(found: _Found) -> dict[str, object]:
    from graphopt.report.answer import answer

    return {
        "answer": answer(found.report, found.accuracy, found.times, failed=str(found.unverified or "")),
        **found.report.to_dict(),
        "verify": found.accuracy.to_dict() if found.accuracy is not None else None,
        "bench": found.times.to_dict() if found.times is not None else None,
    }


def _check_output_paths(model: Path, out: Path | None, reports: dict[str, Path | None]) -> None:
    """Checks in advance that no output overwrites the model, its weights or another output.

    Raises:
        ModelSaveError: an output overwrites one of these files, or cannot be written.
    """
    outputs = {
        what: path
        for what, path in reports.items()
        if path is not None and path != streams.DASH and not files.is_stream(path)
    }
    inputs = [model]
    if any(path.exists() for path in outputs.values()):
        from graphopt.graph.reading import data_files

        inputs += data_files(model)
    if out is not None:
        from graphopt.graph.writing import data_file

        if not files.same(out, model):  # `graphopt.optimize` checks this case
            outputs |= {"OUT": out, "the data file of OUT": data_file(out)}
    files.check_output_paths(outputs, inputs)


@contextmanager
def _working(options: Options, out: Path | None, *reports: Path | None) -> Iterator[None]:
    """Registers custom operators; if a report cannot be written, restores OUT, its data file and the other report."""
    from graphopt.graph.writing import data_file
    from graphopt.runtime.custom_ops import registered_custom_ops

    with registered_custom_ops(options.custom_ops), ExitStack() as undoing:
        if out is not None and any(reports):
            for path in (data_file(out), out):
                undoing.enter_context(files.restored_on_failure(path))
        for report in reports:
            if report is not None and report != streams.DASH and not files.is_stream(report):
                undoing.enter_context(files.restored_on_failure(report))
        yield


def _write_reports(
    page: Path | None,
    data: Path | None,
    found: _Found,
    model: Path,
    written: Path | None,
) -> None:
    if page is not None:
        _write_page(page, found, model, written)
    if data is not None:
        from graphopt.strict_json import document

        streams.write_text(data, document("optimize", _data(found)) + "\n")


def _write_page(path: Path, found: _Found, before: Path, after: Path | None) -> None:
    from graphopt.debug.diff import diff
    from graphopt.graph.reading import read_proto
    from graphopt.report.html import render

    difference = diff(before, after) if after is not None and not after.samefile(before) else None
    order = [n.name or n.output[0] for n in read_proto(before).graph.node if n.output]
    page = render(
        found.report,
        title=before.name,
        difference=difference,
        accuracy=found.accuracy,
        times=found.times,
        order=order,
        provenance=_provenance([p for p in (before, after) if p is not None]),
    )
    streams.write_text(path, page)


def _provenance(shown: list[Path]) -> Provenance:
    import platform
    import shlex
    from datetime import datetime

    from graphopt.report.html import Provenance
    from graphopt.runtime.discovery import installed_runtimes
    from graphopt.runtime.machine import cpu_name

    versions = {"graphopt": graphopt.__version__, "Python": platform.python_version(), **installed_runtimes()}
    sums = [(path.name, path.stat().st_size, files.sha256(path)) for path in shown]
    now = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    host = f"{platform.node()}, {cpu_name()}, {os.cpu_count()} processors, {platform.system()} {platform.release()}"
    return Provenance(now, shlex.join(["graphopt", *sys.argv[1:]]), versions, host, sums)


def _out_text(shown: Path | None) -> str:
    """Returns how messages call OUT; "" if nothing is written."""
    if shown is None:
        return ""
    return "stdout" if shown == streams.DASH else str(shown)


def _print(found: _Found, tuning: Tuning | None, shown: Path | None, *, explain: bool, verbose: bool) -> None:
    """Prints the result in one line, details in a few lines, and on request all tables."""
    from graphopt.report import tables
    from graphopt.report.answer import answer, details, is_faster, is_slower
    from graphopt.report.layout import say
    from graphopt.report.text import plain

    console, report, accuracy, times = screen.out(), found.report, found.accuracy, found.times
    bad = (accuracy is not None and not accuracy.equal) or (times is not None and is_slower(times))
    bad = bad or found.unverified is not None
    good = times is not None and is_faster(times)
    style = "bold red" if bad else "bold green" if good else "bold"
    line = answer(report, accuracy, times, failed=str(found.unverified or ""))
    say(f"[{style}]{plain(line)}[/]", console)
    for line in details(report, times, _out_text(shown), everything=verbose):
        say(plain(line), console)
    if explain:
        tables.print_remarks(report.remarks, console)
    if verbose:
        tables.print_all(report, accuracy, times, tuning, console)
