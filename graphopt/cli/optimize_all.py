"""`graphopt optimize-all`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphopt.cli import screen
from graphopt.cli.root import Command, app


@app.command(
    cls=Command, name="optimize-all", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True}
)
def optimize_all(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Every .onnx file below it is read.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder of models, reports, manifest and summary.")],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="OPTIONS_OF_OPTIMIZE", help="--verify, --target cpu, ...")
    ] = None,
    jobs: Annotated[int, typer.Option(min=0, help="Number of models at the same time, each in its own process.")] = 1,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds for one model; 0 sets no limit.")] = 0.0,
    on: Annotated[str, typer.Option(help="ray: run on a Ray cluster with access to both folders.")] = "",
) -> None:
    """Optimize every model of FOLDER into OUT.

    A second run continues the first. Exit code 1: some models failed.
    """
    from graphopt.optimize_all import PAGE, Outcome, summary
    from graphopt.optimize_all import optimize_all as run
    from graphopt.report.text import count, plain

    def show(outcome: Outcome, done: int, total: int) -> None:
        what = plain(outcome.answer) if outcome.succeeded else f"[red]{plain(outcome.message)}[/]"
        screen.out().print(f"{done}/{total} {plain(outcome.name)}: {what}", soft_wrap=True)

    found = summary(run(folder, out, options=options or (), jobs=jobs, timeout=timeout, on=on, progress=show))
    screen.out().print(
        f"{count(found['models'], 'model')}: {found['optimized']} optimized, {found['unchanged']} unchanged, "
        f"{found['failed']} failed\nsummary: {plain(str(out / PAGE))}",
        soft_wrap=True,
    )
    if found["failed"]:
        raise typer.Exit(1)
