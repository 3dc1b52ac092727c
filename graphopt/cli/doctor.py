"""`graphopt doctor`."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated

import typer

from graphopt.cli import screen
from graphopt.cli.root import Command, app
from graphopt.errors import OptionError, RuntimeMissingError


@app.command(cls=Command, name="doctor")
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
    selftest: Annotated[
        bool, typer.Option("--selftest", help="Run every kernel of this machine and compare with float64.")
    ] = False,
    bench: Annotated[bool, typer.Option("--bench", help="With --selftest: also measure times.")] = False,
) -> None:
    """Show installed parts, routes to a GPU and missing parts.

    Exit code 1 if the self-test fails.
    """
    if bench and not selftest:
        raise OptionError("--bench times the self-test: add --selftest")
    from graphopt.report.tables import print_findings, print_selftest
    from graphopt.runtime.doctor import examine

    findings = examine()
    tested = None
    if selftest and not findings.problems:
        from graphopt.runtime.selftest import selftest as run_selftest

        with screen.working("testing kernels") if not as_json else nullcontext():
            tested = run_selftest(bench=bench)
    if as_json:
        data = findings.to_dict() | ({"selftest": tested.to_dict()} if tested else {})
        screen.print_json("doctor", data)
    else:
        console = screen.out()
        print_findings(findings, console)
        if tested is not None:
            print_selftest(tested, console)
    if findings.problems:
        raise typer.Exit(RuntimeMissingError.exit_code)
    if tested is not None and (tested.failed or tested.failed_sessions):
        raise typer.Exit(1)
