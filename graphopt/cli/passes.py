"""`graphopt passes`."""

from __future__ import annotations

from graphopt.cli import screen
from graphopt.cli.root import Command, app


@app.command(cls=Command)
def passes() -> None:
    """List the passes with their equations, in the order in which they run."""
    from rich.markup import escape

    from graphopt.passes.plugins import installed

    console = screen.out()
    width = max(len(p.name) for p in installed())
    for p in installed():
        first, *rest = p.equation.split(";  ")
        console.print(f"[bold]{p.name:{width}}[/]  {escape(first)}")
        for line in rest:
            console.print(f"{'':{width}}  {escape(line)}")
        console.print(f"{'':{width}}  [dim]{p.numerics.name.lower()}[/]")
