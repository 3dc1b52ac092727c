"""`graphopt lower`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphopt.cli import screen, streams
from graphopt.cli.options import InPath
from graphopt.cli.root import app


@app.command()
def lower(
    model: InPath, out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write; - is stdout.")]
) -> None:
    """Inline the function bodies of our operators, for runtimes without function support."""
    from graphopt.graph.lower import lower as lower_model
    from graphopt.report.tables import plain
    from graphopt.report.text import count

    written = streams.write(out)
    inlined = lower_model(streams.read(model), written)
    streams.flush(out, written)
    screen.out().print(f"{count(inlined, 'node')} inlined, [bold]{plain(str(out))}[/] written")
