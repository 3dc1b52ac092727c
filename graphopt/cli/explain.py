"""`graphopt explain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphopt.cli import screen, streams
from graphopt.cli.options import (
    CostDimOption,
    IgnoreCostModelOption,
    OnlyOption,
    ShapeOption,
    SkipOption,
    TargetOption,
)
from graphopt.cli.root import Command, app
from graphopt.errors import OptionError, did_you_mean
from graphopt.remarks import Code


def _codes() -> list[str]:
    """Returns the completions of --code."""
    return list(Code.__members__)


def _no_code(name: str, what: str) -> OptionError:
    codes = ", ".join(Code.__members__)
    return OptionError(f"there is no {what} '{name}'{did_you_mean(name, Code.__members__)}; the codes are {codes}")


@app.command(cls=Command, name="explain")
def explain_command(
    model: Annotated[
        Path,
        typer.Argument(help="A model; - is stdin. Or a refusal code or a pass, to print its page.", metavar="IN|CODE"),
    ],
    target: TargetOption = "auto",
    only: OnlyOption = None,
    skip: SkipOption = None,
    code: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CODE",
            help="Show only refusals with this code (repeatable).",
            autocompletion=_codes,
        ),
    ] = None,
    input_shape: ShapeOption = None,
    dim: CostDimOption = None,
    ignore_cost_model: IgnoreCostModelOption = False,
    provider: Annotated[
        str | None,
        typer.Option(
            help="Predict which nodes this provider runs: graphopt, cpu, migraphx or hip-ep.",
            autocompletion=lambda: ["graphopt", "cpu", "migraphx", "hip-ep"],
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Show for each part of IN whether it is rewritten, and why.

    Groups of nodes are listed with their shares of multiply-adds and of bytes.
    """
    if not model.suffix and not model.exists() and model.name == str(model):
        from graphopt.cli.docs import pages, show

        known = pages()
        if page := known.get(f"refusals/{model}") or known.get(f"passes/{model}"):
            show(page)
            return
        if str(model).isupper():
            raise _no_code(str(model), "file or code")
    if provider is not None:
        if only or skip or code or dim or ignore_cost_model:
            raise OptionError("--provider can be combined with --input-shape and --json only")
        _print_forecast(model, provider, dict(input_shape or ()), as_json)
        return
    codes = code or []
    for name in codes:
        if name not in Code.__members__:
            raise _no_code(name, "code")
    from graphopt.report.account import account
    from graphopt.report.tables import print_account

    with screen.working() as say:
        found = account(
            streams.read(model),
            target=target,
            only=only or (),
            skip=skip or (),
            input_shapes=dict(input_shape or ()),
            sizes=dict(dim or ()),
            ignore_cost_model=ignore_cost_model,
            progress=say,
        )
    if codes:
        found.groups = [g for g in found.groups if any(r.code in codes for s in g.subgraphs for r in s.remarks)]
    if as_json:
        screen.print_json("explain", found.to_dict())
    else:
        print_account(found, screen.out())


def _print_forecast(model: Path, provider: str, shapes: dict[str, tuple[int, ...]], as_json: bool) -> None:
    from graphopt.placement import forecast
    from graphopt.report.tables import print_forecast

    with screen.working():
        found = forecast(streams.read(model), provider, input_shapes=shapes)
    if as_json:
        screen.print_json("explain --provider", found.to_dict())
    else:
        print_forecast(found, screen.out())
