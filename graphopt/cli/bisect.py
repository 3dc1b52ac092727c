"""`graphopt bisect`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphopt.cli import screen, streams
from graphopt.cli.options import CustomOpsOption, IgnoreCostModelOption, InPath, ProvidersOption, TargetOption
from graphopt.cli.root import Command, app
from graphopt.cli.verify import exit_with_verdict

if TYPE_CHECKING:
    import onnx_ir as ir


@app.command(cls=Command, name="bisect")
def bisect(
    before: InPath,
    out: Annotated[Path | None, typer.Option("--out", help="Write a minimal model around the rewrite here.")] = None,
    target: TargetOption = "auto",
    ignore_cost_model: IgnoreCostModelOption = False,
    inputs: Annotated[Path | None, typer.Option(help="A .npz file or a folder, as for verify.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random inputs.")] = 0,
    providers: ProvidersOption = None,
    custom_ops: CustomOpsOption = None,
) -> None:
    """Find the rewrite that makes the outputs of IN wrong.

    With --providers: find the first value that differs between two providers.

    Exit code 0: none, 1: found, 8: the outputs are random, so none can be found.
    """
    from graphopt.debug.bisect import bisect as find_rewrite
    from graphopt.graph import reading, writing
    from graphopt.report.layout import say
    from graphopt.report.tables import verdict
    from graphopt.report.text import plain

    before = streams.read(before)
    if out is not None:
        writing.check_output_path("--out", out, [before, *reading.data_files(before)])
    if providers is not None:
        _bisect_providers(before, out, providers, inputs, seed, custom_ops or ())
        return
    with screen.working("looking for the rewrite"):
        result = find_rewrite(
            before,
            target=target,
            ignore_cost_model=ignore_cost_model,
            inputs=inputs,
            seed=seed,
            custom_ops=custom_ops or (),
        )
    console = screen.out()
    if result.culprit is None:
        done = "its one rewrite" if result.rewrites == 1 else f"all {result.rewrites} rewrites"
        say(f"{verdict(result.verdict)} after {done}: {plain(result.summary)}", console)
        exit_with_verdict(result.verdict)
        return
    where = ", ".join(result.culprit.nodes) or "the whole model"
    say(f"[red]{result.culprit.pass_name}[/] at {plain(where)}: {plain(result.culprit.detail)}", console)
    say(plain(result.summary), console)
    _write_minimal(result.minimal, out)
    raise typer.Exit(1)


def _bisect_providers(
    path: Path,
    out: Path | None,
    providers: Sequence[str],
    inputs: Path | None,
    seed: int,
    custom_ops: Sequence[Path],
) -> None:
    from graphopt.debug.first_difference import first_difference
    from graphopt.report.layout import say
    from graphopt.report.tables import verdict
    from graphopt.report.text import plain

    with screen.working("looking for the value"):
        result = first_difference(path, providers, inputs=inputs, seed=seed, custom_ops=custom_ops)
    console = screen.out()
    if result.value is None:
        say(f"{verdict(result.verdict)}: {plain(result.summary)}", console)
        exit_with_verdict(result.verdict)
        return
    say(f"[red]{plain(result.value)}[/] of {plain(result.node)}: {plain(result.summary)}", console)
    if result.alone:
        say("it differs only as the model's single output: more outputs prevent a fusion with earlier nodes", console)
    _write_minimal(result.minimal, out)
    raise typer.Exit(1)


def _write_minimal(model: ir.Model | None, out: Path | None) -> None:
    from graphopt.graph import writing
    from graphopt.report.text import visible

    if out is not None and model is not None:
        writing.save(model, out)
    if out is not None:
        print(f"written to {visible(str(out))}" if model is not None else "no minimal model could be cut out")
