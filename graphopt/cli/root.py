"""The command itself: what holds for all of its subcommands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import graphopt
from graphopt.cli import config

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


def _show_config(context: typer.Context, wanted: bool) -> None:
    if wanted:
        path, found = _configured(context)
        print(config.shown(path, found, _commands(context)))
        raise typer.Exit


@app.callback()
def main_options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    show_config: Annotated[
        bool, typer.Option("--show-config", callback=_show_config, is_eager=True, help="Print all options and exit.")
    ] = False,
) -> None:
    if context.resilient_parsing:  # a shell asks for completions
        return
    _, context.default_map = _configured(context)


def _configured(context: typer.Context) -> tuple[Path | None, dict[str, config.Options]]:
    commands = _commands(context)
    found = config.find(Path.cwd())
    if found is None:
        return None, {name: {} for name in commands}
    return found[0], config.defaults(*found, commands)


def _commands(context: typer.Context) -> dict[str, object]:
    return dict(getattr(context.command, "commands"))  # noqa: B009  (typer's type for groups has no such name)
