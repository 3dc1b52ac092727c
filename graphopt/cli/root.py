"""The command itself: what holds for all of its subcommands."""

from __future__ import annotations

from typing import Annotated

import typer

import graphopt

# Help without boxes: at 80 columns nothing folds, and rich, which takes as long as all else, is not loaded for it.
app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Ahead-of-time ONNX graph rewriter: optimize, verify, explain, bench.",
)


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
