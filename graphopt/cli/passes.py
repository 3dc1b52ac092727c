"""`graphopt passes`."""

from __future__ import annotations

from graphopt.cli import screen
from graphopt.cli.root import Command, app


@app.command(cls=Command, name="passes")
def passes() -> None:
    """List the passes with their equations, in order."""
    from graphopt.metadata import Numerics
    from graphopt.passes.plugins import installed
    from graphopt.report.layout import say
    from graphopt.report.text import plain

    console = screen.out()
    width = max(len(p.name) for p in installed()) + 2
    for p in installed():
        name = f"[bold]{p.name}[/]".ljust(width + len("[bold][/]"))
        for i, equation in enumerate(p.equation.split(";  ")):
            say(plain(equation), console, label=" " * width if i else name)
        say(f"[dim]{p.numerics.name.lower()}[/]", console, label=" " * width)
    console.print()
    for numerics, meaning in (
        (Numerics.EXACT, "equal bits"),
        (Numerics.REASSOCIATED, "the same terms, multiplied and added in another order"),
        (Numerics.APPROXIMATE, "another algorithm with fewer multiplications and different rounding"),
    ):
        if any(p.numerics == numerics for p in installed()):
            say(f"[dim]{numerics.name.lower()}: {meaning}[/]", console)
