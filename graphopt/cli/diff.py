"""`graphopt diff`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphopt.cli import screen, streams
from graphopt.cli.root import Command, app


@app.command(cls=Command, name="diff")
def diff_command(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="One model; - is stdin.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="The other model.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the difference as JSON.")] = False,
) -> None:
    """Show the differences between the graphs of two models.

    Exit code 0, even if they differ.
    """
    before, after = streams.read(before), streams.read(after)
    from graphopt.debug.diff import diff

    with screen.working("comparing"):
        found = diff(before, after)
    if as_json:
        screen.print_json("diff", found.to_dict())
        return
    from graphopt.report.tables import print_diff

    print_diff(found, screen.out())
