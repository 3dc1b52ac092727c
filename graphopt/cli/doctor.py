"""`graphopt doctor`."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from graphopt.cli import screen
from graphopt.cli.root import Command, app
from graphopt.errors import OptionError, RuntimeMissingError
from graphopt.files import check_output_paths, write
from graphopt.strict_json import document


@app.command(cls=Command, name="doctor")
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
    selftest: Annotated[
        bool, typer.Option("--selftest", help="Run every com.graphopt kernel of this machine and compare with float64.")
    ] = False,
    bench: Annotated[
        Path | None,
        typer.Option(
            "--bench", metavar="FILE", help="With --selftest: time typical shapes; write all results to FILE."
        ),
    ] = None,
) -> None:
    """Show installed parts, routes to a GPU and missing parts.

    Exit code 1: the self-test, a timing or the soak test failed; 7: a part is missing or broken.
    """
    if bench is not None and not selftest:
        raise OptionError("--bench needs --selftest: times of wrong kernels have no meaning")
    from graphopt.report.tables import print_findings, print_kernel_bench, print_selftest
    from graphopt.runtime.doctor import examine

    findings = examine()
    tested = times = None
    if selftest and not findings.problems:
        from graphopt.measure.kernel_bench import SECONDS, SELFTEST_SECONDS, bench_kernels
        from graphopt.runtime.selftest import selftest as run_selftest

        check_output_paths({"--bench": bench})
        begin = time.perf_counter()
        with screen.working("testing kernels") if not as_json else nullcontext():
            tested = run_selftest(seconds=math.inf if bench is None else SELFTEST_SECONDS)
        if bench is not None:
            with screen.working("timing kernels") as progress:
                seconds = SECONDS - (time.perf_counter() - begin)
                times = bench_kernels(tested.provider, progress, seconds=seconds)
    data = findings.to_dict() | ({"selftest": tested.to_dict()} if tested else {})
    data |= {"bench": times.to_dict()} if times else {}
    if bench is not None:
        write(bench, document("doctor", data))
    if as_json:
        screen.print_json("doctor", data)
    else:
        console = screen.out()
        print_findings(findings, console)
        if tested is not None:
            print_selftest(tested, console)
        if times is not None:
            print_kernel_bench(times, console)
    if findings.problems:
        raise typer.Exit(RuntimeMissingError.exit_code)
    if tested is not None and (tested.failed or tested.failed_sessions or (times is not None and times.failed)):
        raise typer.Exit(1)
