"""The command itself: what holds for all of its subcommands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.completion import get_completion_inspect_parameters, install_callback, show_callback
from typer.core import TyperCommand, TyperGroup

import graphopt
from graphopt.cli import config


class Commands(TyperGroup):
    """Lists the commands as people need them: what one begins with, what one looks at, what is there besides."""

    def list_commands(self, ctx: Any) -> list[str]:
        order = (
            "optimize verify bench explain view diff bisect lower optimize-all serve-config passes doctor docs".split()
        )
        return sorted(super().list_commands(ctx), key=lambda name: order.index(name) if name in order else len(order))


# Help without boxes: at 80 columns nothing folds, and rich, which takes as long as all else, is not loaded for it.
app = typer.Typer(
    cls=Commands,
    # Reading an option without a default loads pydantic, which takes as long as all else: --help gets one here, and the
    # options of completion, which are typer's, get theirs below.
    context_settings={"default_map": {"help": False}},
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Ahead-of-time ONNX graph rewriter: optimize, verify, explain, bench.",
)
get_completion_inspect_parameters()  # the shells that are known, which is what it is called for here


class Command(TyperCommand):
    """Says what is missing and what is no number before it reads what is there, for which typer loads pydantic."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        if not given.get("help") and not ctx.resilient_parsing:
            hints = get_type_hints(self.callback)
            for param in self.params:
                text = given.get(param.name)
                if param.required and text is None:
                    ctx.fail(f"Missing {param.param_type_name} '{param.metavar or param.name}'.")
                number = _number(hints.get(param.name or ""))
                if number is not None and isinstance(text, str) and not _reads(text, number):
                    what = "whole number" if number is int else "number"
                    ctx.fail(f"Invalid value for '{param.opts[0]}': '{text}' is no {what}.")
        return super().parse_args(ctx, args)


def _number(hint: Any) -> type[int] | type[float] | None:
    """The type of a parameter that is a number."""
    return next((t for t in (int, float) if t in (hint, *get_args(hint))), None)


def _reads(text: str, number: type[int] | type[float]) -> bool:
    try:
        number(text)
    except ValueError:
        return False
    return True


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
    install_completion: Annotated[
        bool,
        typer.Option(
            "--install-completion", callback=install_callback, is_eager=True, help="Install completion for this shell."
        ),
    ] = False,
    show_completion: Annotated[
        bool,
        typer.Option(
            "--show-completion", callback=show_callback, is_eager=True, help="Print the completion of this shell."
        ),
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
