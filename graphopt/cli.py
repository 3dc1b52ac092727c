"""The command line: parses, calls the API, prints. Exit codes: graphopt.errors, and 1 where `verify` differs."""

from __future__ import annotations

import atexit
import gc
import json
import logging
import signal
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import graphopt
from graphopt import files
from graphopt.__main__ import EXIT_INTERRUPTED
from graphopt.checking.verify import Verdict, VerifyReport
from graphopt.errors import (
    EXIT_NOT_COVERED,
    EXIT_RANDOM,
    GraphoptError,
    ModelSaveError,
    OptionError,
    RuntimeMissingError,
)
from graphopt.graph.reading import data_files
from graphopt.measure.bench import BenchReport
from graphopt.report.data import ModelStats, Report
from graphopt.report.tables import plain, print_bench, print_routes, print_selftest, print_tuning, size

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Ahead-of-time ONNX graph rewriter: optimize, verify, explain, bench.",
)
console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)

# Initializers with range problems that are printed; the JSON report has all.
MAX_RANGES = 20

InPath = Annotated[Path, typer.Argument(help="The model to read.", metavar="IN")]
OutPath = Annotated[Path | None, typer.Argument(help="The file to write.", metavar="OUT")]
TargetOption = Annotated[
    str, typer.Option(help="auto, cpu, rocm, rocm:ARCH, cuda, migraphx or portable: decides what pays.")
]
OnlyOption = Annotated[list[str] | None, typer.Option("--only", help="Run this pass alone (repeatable).")]
SkipOption = Annotated[list[str] | None, typer.Option("--skip", help="Leave this pass out (repeatable).")]
ProvidersOption = Annotated[
    str | None,
    typer.Option(metavar="A,B", help="Two providers, such as cpu,graphopt: the question is what lies between them."),
]
ShapeOption = Annotated[
    list[str] | None, typer.Option("--input-shape", help="NAME:1x3x224x224 fixes an input's shape (repeatable).")
]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"graphopt {graphopt.__version__}")
        raise typer.Exit


@app.callback()
def main_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


def parse_input_shapes(options: list[str] | None) -> dict[str, tuple[int, ...]]:
    """Reads NAME:1x3x224x224.

    Raises:
        OptionError: not of that form.
    """
    shapes = {}
    for option in options or []:
        name, colon, dims = option.rpartition(":")
        try:
            shape = tuple(int(d) for d in dims.split("x")) if dims else ()
        except ValueError:
            shape = (-1,)
        if not colon or not name or any(d < 0 for d in shape):
            raise OptionError(f"--input-shape '{option}' is not of the form NAME:1x3x224x224")
        shapes[name] = shape
    return shapes


@app.command()
def optimize(
    model: InPath,
    out: OutPath = None,
    target: TargetOption = "auto",
    only: OnlyOption = None,
    skip: SkipOption = None,
    precision: Annotated[
        str | None, typer.Option(help="fp16 converts to half precision; statistics and the interface stay float32.")
    ] = None,
    fp16_io: Annotated[
        bool, typer.Option("--fp16-io", help="With --precision fp16: inputs and outputs become float16 too.")
    ] = False,
    fp16_keep: Annotated[
        list[str] | None,
        typer.Option(help="With --precision fp16: a node or operator that stays float32 (repeatable)."),
    ] = None,
    input_shape: ShapeOption = None,
    freeze_initializers: Annotated[
        bool, typer.Option("--freeze-initializers", help="Initializers stop being inputs that callers can override.")
    ] = False,
    all_sites: Annotated[bool, typer.Option("--all-sites", help="Also rewrite where it does not pay.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report only; write nothing.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Print every candidate site and why.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report as JSON.")] = None,
    verify: Annotated[bool, typer.Option("--verify/--no-verify", help="Compare outputs before and after.")] = False,
    bench: Annotated[bool, typer.Option("--bench", help="Time IN and OUT (--threads, --dim).")] = False,
    report_file: Annotated[Path | None, typer.Option("--report", help="Write the report as one HTML page.")] = None,
    external_data: Annotated[
        bool | None, typer.Option("--external-data/--no-external-data", help="Weights beside the file, or inside.")
    ] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="Allow OUT to be IN.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Check the invariants after each pass.")] = False,
    tune: Annotated[bool, typer.Option("--tune", help="Measure on this machine which rewrites pay.")] = False,
    tuning_cache: Annotated[
        Path | None, typer.Option(help="Measurements to use; --tune adds to the file what is missing.")
    ] = None,
    tune_seconds: Annotated[float, typer.Option(help="About how long --tune may measure.")] = 60.0,
    threads: Annotated[int, typer.Option(help="Threads to tune for; 0 is the runtime's own choice.")] = 0,
    dim: Annotated[list[str] | None, typer.Option(help="NAME=8: the size to tune for (repeatable).")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Rewrite IN into OUT."""
    if out is None and not dry_run:
        raise OptionError("optimize needs an output path (or --dry-run)")
    if (verify or bench) and out is not None and in_place and not dry_run:
        raise OptionError("--verify and --bench compare IN with OUT, so they cannot be combined with --in-place")
    reports = {"--json": json_file, "--report": report_file, "--tuning-cache": tuning_cache}
    _check_places(model, None if dry_run else out, reports)
    tuning = None
    if tune or tuning_cache is not None:
        with errors.status("") as status:
            tuning = graphopt.tune(
                model,
                target=target,
                precision=precision,
                threads=threads,
                sizes={name: only_size for name, (only_size, *_) in _sizes(dim).items()},
                seconds=tune_seconds,
                cache=tuning_cache,
                measure=tune,
                progress=lambda step: status.update(plain(step)),
            )
    with errors.status("") as status:
        _, report = graphopt.optimize(
            model,
            out,
            profit=tuning.profit if tuning is not None else None,
            target=target,
            only=only or (),
            skip=skip or (),
            precision=precision,
            keep_io=not fp16_io,
            keep_float=fp16_keep or (),
            input_shapes=parse_input_shapes(input_shape),
            freeze_initializers=freeze_initializers,
            all_sites=all_sites,
            check=check,
            external_data=external_data,
            in_place=in_place,
            dry_run=dry_run,
            progress=lambda step: status.update(plain(step)),
        )
    if tuning is not None:
        report.tuning = tuning.to_dict()
    if json_file is not None:
        files.write_report(json_file, report.to_json() + "\n")
    if not quiet:
        _print_report(report, explain=explain)
        if tuning is not None:
            print_tuning(tuning, console)
        if out is not None and not dry_run:
            console.print(f"[bold]{plain(str(out))}[/] written in {report.seconds:.2f} s", soft_wrap=True)
    written = out if not dry_run else None
    accuracy = graphopt.verify(model, written) if verify and written is not None else None
    times = None
    if bench and written is not None:
        with errors.status("timing"):
            times = graphopt.bench(model, written, threads=(threads,), sizes=_sizes(dim))
    if not quiet:
        if times is not None:
            print_bench(times, console)
        if accuracy is not None:
            _print_verify(accuracy)
    if report_file is not None:
        _write_page(report_file, report, model, written, accuracy, times)
    if accuracy is not None:
        _exit_with_verdict(accuracy)


def _check_places(model: Path, out: Path | None, reports: dict[str, Path | None]) -> None:
    """Before any work: no file that is asked for may take the place of the model, of its weights or of another one.

    Raises:
        ModelSaveError: one would, or cannot be written.
    """
    places = {what: path for what, path in reports.items() if path is not None and not files.is_stream(path)}
    reads = [model]
    if any(path.exists() for path in places.values()):
        reads += data_files(model)
    if out is not None:
        places["the weights of OUT"] = out.with_name(f"{out.name}.data")
        if not files.same(out, model):  # which `graphopt.optimize` judges
            places["OUT"] = out
    files.check_places(places, reads)


def _write_page(
    path: Path,
    report: Report,
    before: Path,
    after: Path | None,
    accuracy: VerifyReport | None,
    times: BenchReport | None,
) -> None:
    from graphopt.checking.diff import diff
    from graphopt.report.html import render

    difference = diff(before, after) if after is not None and not after.samefile(before) else None
    page = render(report, title=before.name, difference=difference, accuracy=accuracy, times=times)
    files.write_report(path, page)


@app.command(name="explain")
def explain_command(
    model: InPath,
    target: TargetOption = "auto",
    input_shape: ShapeOption = None,
    all_sites: Annotated[bool, typer.Option("--all-sites", help="As for optimize.")] = False,
) -> None:
    """Print every candidate site of IN: applied, or refused and why."""
    _, report = graphopt.optimize(
        model, target=target, input_shapes=parse_input_shapes(input_shape), all_sites=all_sites, dry_run=True
    )
    _print_remarks(report)


@app.command(name="verify")
def verify_command(
    before: Annotated[Path, typer.Argument(metavar="BEFORE")],
    after: Annotated[
        Path | None, typer.Argument(metavar="AFTER", help="BEFORE itself if only providers differ.")
    ] = None,
    inputs: Annotated[Path | None, typer.Option(help="A .npz file or a folder of inputs of your own.")] = None,
    rtol: Annotated[
        list[str] | None, typer.Option(help="1e-3, or OUTPUT:1e-3 for one output (repeatable); relative to RMS.")
    ] = None,
    atol: Annotated[list[str] | None, typer.Option(help="1e-6, or OUTPUT:1e-6 (repeatable).")] = None,
    seed: Annotated[int, typer.Option(help="Of the random inputs.")] = 0,
    probe_nan: Annotated[bool, typer.Option("--probe-nan", help="Also try NaN and infinite inputs.")] = False,
    provider: Annotated[
        str | None, typer.Option(help="rocm, graphopt, ...: run AFTER there as well; BEFORE runs on the CPU.")
    ] = None,
    effort: Annotated[str, typer.Option(help="quick, normal or thorough: how many inputs are tried.")] = "normal",
    dim: Annotated[
        list[str] | None, typer.Option(help="NAME=1,7,64: sizes of a symbolic dimension to try (repeatable).")
    ] = None,
    batch: Annotated[str, typer.Option(help="1,3,8: sizes of symbolic first axes to try.")] = "",
    range_: Annotated[
        list[str] | None, typer.Option("--range", help="NAME:LO:HI: what numbers an input is given (repeatable).")
    ] = None,
    providers: ProvidersOption = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit code 9 where something is not covered by the inputs tried.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q")] = False,
) -> None:
    """Compare the outputs of two models. Exit code 0: equal, 1: they differ, 2: could not be run, 8: random."""
    if after is None and providers is None:
        raise OptionError(
            "AFTER is missing; one model alone is compared with itself on two providers (--providers A,B)"
        )
    report = graphopt.verify(
        before,
        before if after is None else after,
        inputs=inputs,
        rtol=_tolerances(rtol, "--rtol") or None,
        atol=_tolerances(atol, "--atol") or None,
        seed=seed,
        probe_nan=probe_nan,
        provider=provider,
        effort=effort,
        sizes=_sizes(dim),
        batch=_numbers(batch, "--batch") if batch else (),
        ranges=_ranges(range_),
        providers=_names(providers),
    )
    if as_json:
        print(report.to_json())
    elif not quiet:
        _print_verify(report)
    _exit_with_verdict(report, strict=strict)


def _ranges(options: list[str] | None) -> dict[str, tuple[float, float]]:
    """NAME:LO:HI.

    Raises:
        OptionError: not of that form.
    """
    found = {}
    for option in options or []:
        name, _, ends = option.rpartition(":")
        name, _, low = name.rpartition(":")
        try:
            found[name] = (float(low), float(ends))
        except ValueError:
            name = ""
        if not name or found[name][0] > found[name][1]:
            raise OptionError(f"--range '{option}' is not of the form NAME:LO:HI")
    return found


def _names(text: str | None) -> list[str] | None:
    return [name.strip() for name in text.split(",")] if text is not None else None


def _tolerances(options: list[str] | None, what: str) -> dict[str, float]:
    """OUTPUT:value or value; the empty name stands for all outputs."""
    parsed = {}
    for option in options or []:
        name, _, number = option.rpartition(":")
        try:
            parsed[name] = float(number)
        except ValueError:
            raise OptionError(f"{what} '{option}' is not a number or OUTPUT:number") from None
    return parsed


def _print_verify(report: VerifyReport) -> None:
    table = Table(title="verify", title_justify="left")
    for column in ("output", "max abs", "rel. to RMS", "SNR dB", "limit", "worst slice", ""):
        table.add_column(column, justify="left" if column in ("output", "") else "right")
    for row in report.worst_outputs():
        verdict = "[green]equal[/]" if row.equal else f"[red]{plain(row.reason)}[/]"
        numbers = (f"{row.max_abs:.3g}", f"{row.rel_rms:.3g}", f"{row.snr_db:.1f}", f"{row.limit:.3g}")
        worst = f"{plain(row.slice)} {row.slice_error:.2g} of {row.slice_limit:.2g}" if row.slice else ""
        table.add_row(plain(row.name), *numbers, worst, verdict)
    console.print(table)
    colour = {Verdict.EQUAL: "green", Verdict.DIFFERENT: "red", Verdict.RANDOM: "yellow"}[report.verdict]
    console.print(f"[{colour}]{report.verdict.value}[/]: {plain(report.summary)}")
    for gap in report.not_covered:
        console.print(f"[yellow]not covered:[/] {plain(gap)}", soft_wrap=True)
    for note in report.notes:
        console.print(f"[yellow]note:[/] {plain(note)}", soft_wrap=True)


def _exit_with_verdict(report: VerifyReport, *, strict: bool = False) -> None:
    """Ends with the exit code of what was found; 0 returns."""
    code = {Verdict.EQUAL: 0, Verdict.DIFFERENT: 1, Verdict.RANDOM: EXIT_RANDOM}[report.verdict]
    if code == 0 and strict and report.not_covered:
        code = EXIT_NOT_COVERED
    if code:
        raise typer.Exit(code)


@app.command(name="diff")
def diff_command(
    before: Annotated[Path, typer.Argument(metavar="BEFORE")],
    after: Annotated[Path, typer.Argument(metavar="AFTER")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the difference as JSON.")] = False,
) -> None:
    """Show what differs between the graphs of two models. Exit code 0 whether they differ or not."""
    from graphopt.checking.diff import diff

    found = diff(before, after)
    if as_json:
        print(json.dumps(found.to_dict(), indent=2))
        return
    if found.equal:
        console.print("the same nodes and weights")
        return
    _print_before_after(found.before, found.after)
    table = Table(title="rewritten neighbourhoods", title_justify="left")
    for column in ("before", "after", "at"):
        table.add_column(column, overflow="fold")
    for h in found.neighbourhoods:
        removed, added = (", ".join(plain(n.op_type) for n in nodes) or "-" for nodes in (h.removed, h.added))
        table.add_row(removed, added, plain((h.added or h.removed)[-1].outputs[0]))
    console.print(table)
    weights = [len(w) for w in (found.removed_initializers, found.added_initializers, found.changed_initializers)]
    console.print("initializers: {} removed, {} added, {} changed".format(*weights))


@app.command(name="bench")
def bench_command(
    before: Annotated[Path, typer.Argument(metavar="A")],
    after: Annotated[Path | None, typer.Argument(metavar="B", help="The other side; without it A alone.")] = None,
    provider: Annotated[list[str] | None, typer.Option(help="cpu, rocm, migraphx, cuda, ... (repeatable).")] = None,
    threads: Annotated[str, typer.Option(help="1,2,...; 0 is the runtime's own choice.")] = "0",
    batch: Annotated[str, typer.Option(help="1,8,64: sizes of the symbolic first axis.")] = "",
    dim: Annotated[list[str] | None, typer.Option(help="NAME=64,128 binds a symbolic dimension (repeatable).")] = None,
    inputs: Annotated[Path | None, typer.Option(help="A .npz file or a folder, as for verify.")] = None,
    seconds: Annotated[float, typer.Option(help="How long to time each setting.")] = 2.0,
    memory: Annotated[bool, typer.Option("--memory/--no-memory", help="Measure peak memory.")] = True,
    profile: Annotated[bool, typer.Option("--profile/--no-profile", help="Time each node.")] = True,
    require_device: Annotated[
        bool, typer.Option("--require-device", help="Fail where a node of a GPU session runs on the CPU.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Measure A, or compare A with B: time, throughput, memory, nodes, placement."""
    with errors.status("") as status:
        report = graphopt.bench(
            before,
            after,
            providers=provider or (),
            threads=_numbers(threads, "--threads"),
            sizes=_sizes(dim),
            batch=_numbers(batch, "--batch") if batch else (),
            inputs=inputs,
            seconds=seconds,
            memory=memory,
            profile=profile,
            require_device=require_device,
            progress=lambda step: status.update(plain(step)),
        )
    if as_json:
        print(report.to_json())
    else:
        print_bench(report, console)


def _sizes(options: list[str] | None) -> dict[str, list[int]]:
    return {name: _numbers(numbers, "--dim") for name, _, numbers in (o.partition("=") for o in options or [])}


def _numbers(text: str, what: str) -> list[int]:
    parts = text.split(",")
    if not all(p.strip().isdecimal() for p in parts):
        raise OptionError(f"{what} '{text}' is not a list of numbers such as 1,8,64")
    return [int(p) for p in parts]


@app.command()
def bisect(
    before: InPath,
    out: Annotated[Path | None, typer.Option("--out", help="Write a minimal model around the site here.")] = None,
    target: TargetOption = "auto",
    all_sites: Annotated[bool, typer.Option("--all-sites", help="As for optimize.")] = False,
    inputs: Annotated[Path | None, typer.Option(help="As for verify.")] = None,
    seed: Annotated[int, typer.Option(help="Of the random inputs.")] = 0,
    providers: ProvidersOption = None,
) -> None:
    """Find the one rewrite of IN that breaks its numbers, or the first value at which two providers part.

    Exit code 0: none does, 1: found.
    """
    if providers is not None:
        _bisect_providers(before, out, providers, inputs, seed)
        return
    from graphopt.checking.bisect import bisect_file

    result = bisect_file(before, out, target=target, all_sites=all_sites, inputs=inputs, seed=seed)
    if result.culprit is None:
        console.print(f"[green]equal[/] after all {result.rewrites} rewrites: {plain(result.summary)}")
        return
    where = ", ".join(result.culprit.nodes) or "the whole model"
    console.print(
        f"[red]{result.culprit.pass_name}[/] at {plain(where)}: {plain(result.culprit.detail)}", soft_wrap=True
    )
    console.print(plain(result.summary), soft_wrap=True)
    if out is not None:
        console.print(f"{plain(str(out))} written" if result.minimal else "no minimal model could be cut out")
    raise typer.Exit(1)


def _bisect_providers(path: Path, out: Path | None, providers: str, inputs: Path | None, seed: int) -> None:
    from graphopt.checking.parting import first_parting_in_file

    result = first_parting_in_file(path, out, _names(providers) or [], inputs=inputs, seed=seed)
    if result.value is None:
        console.print(f"[green]equal[/]: {plain(result.summary)}")
        return
    console.print(f"[red]{plain(result.value)}[/] of {plain(result.node)}: {plain(result.summary)}", soft_wrap=True)
    if result.alone:
        console.print("it differs only while no other value is looked at: a provider computes it with its neighbours")
    if out is not None:
        console.print(f"{plain(str(out))} written" if result.minimal else "no minimal model could be cut out")
    raise typer.Exit(1)


@app.command()
def passes() -> None:
    """List the passes with their equations, in the order in which they run."""
    from graphopt.passes import PASSES

    table = Table()
    for column in ("pass", "equation", "numerics"):
        table.add_column(column, overflow="fold")
    for p in PASSES:
        table.add_row(p.name, escape(p.equation), p.numerics.name.lower())
    console.print(table)


@app.command()
def lower(model: InPath, out: Annotated[Path, typer.Argument(metavar="OUT")]) -> None:
    """Inline the function bodies of our operators, for runtimes without function support."""
    from graphopt.graph.lower import lower as lower_model

    count = lower_model(model, out)
    console.print(f"{count} nodes inlined, [bold]{plain(str(out))}[/] written")


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
    selftest: Annotated[
        bool, typer.Option("--selftest", help="Run every kernel that this machine would use, against float64.")
    ] = False,
    bench: Annotated[bool, typer.Option("--bench", help="With --selftest: measure times, too.")] = False,
) -> None:
    """Show versions, the native library, each way to a GPU, and what is missing; exit 1 when the self-test fails."""
    if bench and not selftest:
        raise OptionError("--bench is for --selftest")
    from graphopt.runtime.doctor import examine

    findings = examine()
    tested = None
    if selftest and not findings.problems:
        from graphopt.runtime.selftest import selftest as run_selftest

        with console.status("testing kernels") if not as_json else nullcontext():
            tested = run_selftest(bench=bench)
    if as_json:
        print(json.dumps(findings.to_dict() | ({"selftest": tested.to_dict()} if tested else {}), indent=2))
    else:
        table = Table(show_header=False)
        for name, value in findings.rows:
            table.add_row(name, plain(value))
        console.print(table)
        print_routes(findings.routes, console)
        for problem in findings.problems:
            console.print(f"[red]problem:[/] {plain(problem)}")
        if tested is not None:
            print_selftest(tested, console)
    if findings.problems:
        raise typer.Exit(RuntimeMissingError.exit_code)
    if tested is not None and (tested.failed or tested.failed_sessions):
        raise typer.Exit(1)


def _print_before_after(before: ModelStats, after: ModelStats) -> None:
    table = Table(title="before / after", title_justify="left")
    table.add_column("")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    for op in sorted(before.nodes.keys() | after.nodes.keys()):
        a, b = before.nodes.get(op, 0), after.nodes.get(op, 0)
        if a != b:
            table.add_row(plain(op), str(a or "-"), str(b or "-"))
    table.add_row("nodes", str(sum(before.nodes.values())), str(sum(after.nodes.values())), style="bold")
    table.add_row("weights", size(before.initializer_bytes), size(after.initializer_bytes))
    if before.multiply_adds is not None and after.multiply_adds is not None:
        table.add_row("multiply-adds", f"{before.multiply_adds:,}", f"{after.multiply_adds:,}")
    console.print(table)


def _print_report(report: Report, *, explain: bool) -> None:
    assert report.before is not None
    assert report.after is not None
    _print_before_after(report.before, report.after)
    table = Table(title="passes", title_justify="left")
    for column in ("pass", "seconds", "applied", "refused"):
        table.add_column(column, justify="left" if column == "pass" else "right")
    for p in report.passes:
        table.add_row(p.name, f"{p.seconds:.3f}", str(p.applied), str(p.refused))
    console.print(table)
    if explain:
        _print_remarks(report)
    else:
        codes = Counter(r.code for r in report.remarks if not r.applied)
        if codes:
            summary = ", ".join(f"{code} {n}" for code, n in codes.most_common())
            console.print(f"refused: {summary} (--explain shows each site)")
    _print_ranges(report)
    for note in report.notes:
        console.print(plain(note), soft_wrap=True)


def _print_ranges(report: Report) -> None:
    """The initializers that float16 holds badly, the worst first."""
    if not report.initializer_ranges:
        return
    table = Table(title="initializers in float16", title_justify="left")
    for column in ("initializer", "numbers", "beyond 65504", "subnormal", "zero", "share", "stored as"):
        table.add_column(column, justify="left" if column in ("initializer", "stored as") else "right")
    worst = sorted(report.initializer_ranges, key=lambda r: r.error, reverse=True)
    for r in worst[:MAX_RANGES]:
        counts = (str(n) for n in (r.size, r.overflow, r.subnormal, r.zero))
        table.add_row(plain(r.name), *counts, f"{r.share:.1%}", "float16" if r.converted else "float32")
    console.print(table)
    if len(worst) > MAX_RANGES:
        console.print(f"and {len(worst) - MAX_RANGES} more, with smaller errors (--json lists all)")


def _print_remarks(report: Report) -> None:
    from graphopt.remarks import Code

    for remark in report.remarks:
        where = ", ".join(plain(n) for n in remark.nodes)
        if remark.applied:
            console.print(f"[green]applied[/] {remark.pass_name}: {where}: {plain(remark.detail)}", soft_wrap=True)
        else:
            code = Code[remark.code]
            console.print(
                f"[yellow]refused[/] {remark.pass_name}: {where}: {remark.code}: {code.meaning} "
                f"({plain(remark.detail)}); to do: {code.advice}; see {code.page}",
                soft_wrap=True,
            )
    if not report.remarks:
        console.print("no candidate sites")


def _leave(number: int, _frame: object) -> None:
    """Ends the process as the signal would have, once what is half-written is gone."""
    sys.exit(128 + number)


def main() -> None:
    """The entry point: failures of ours become one line on stderr and their exit code."""
    # One command handles one model and ends: collecting what it leaves behind is work for nobody.
    gc.disable()
    atexit.register(gc.freeze)
    # What onnx_ir warns of while it reads a file, `load` refuses with a line of its own.
    logging.getLogger("onnx_ir").setLevel(logging.CRITICAL)
    try:
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, _leave)
        app()
    except GraphoptError as error:
        errors.print(f"[red]graphopt:[/] {plain(str(error))}", soft_wrap=True)
        sys.exit(error.exit_code)
    except OSError as error:  # a report, a cache: models have messages of their own
        errors.print(f"[red]graphopt:[/] {plain(str(error))}", soft_wrap=True)
        sys.exit(ModelSaveError.exit_code)
    except KeyboardInterrupt:
        errors.print("graphopt: interrupted")
        sys.exit(EXIT_INTERRUPTED)
    finally:
        # The work is done or undone: an interrupt while Python takes itself apart would end it by the signal.
        signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    main()
