"""The command line's root: options and behaviour common to all subcommands."""

from __future__ import annotations

import importlib
from collections import UserDict
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.completion import get_completion_inspect_parameters, install_callback, show_callback
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command_from_info

import graphopt
from graphopt.cli import config
from graphopt.cli.overview import OVERVIEW

# Subcommands in the order of the help. Each is a module of this package.
NAMES = "optimize verify bench explain view diff bisect lower optimize-all serve-config passes doctor docs".split()


class Loaded(UserDict[str, Any]):
    """Name -> command; imports a command at its first use."""

    def __getitem__(self, name: str) -> Any:
        if self.data.get(name) is None and name in NAMES:
            importlib.import_module(f"graphopt.cli.{name.replace('-', '_')}")
            info = next(i for i in app.registered_commands if i.name == name)
            self.data[name] = get_command_from_info(info, pretty_exceptions_short=False, rich_markup_mode=None)
        return self.data[name]


class Commands(TyperGroup):
    """A group that imports only the called command, and prints its own help without importing any command."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.commands: Any = Loaded({**dict.fromkeys(NAMES), **self.commands})

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def get_help(self, ctx: Any) -> str:
        return OVERVIEW.rstrip()


# Help without boxes fits into 80 columns, and does not load rich, which would double the start-up time.
app = typer.Typer(
    cls=Commands,
    # typer loads pydantic for options without a default, which would double the start-up time. This map gives --help
    # a default; `main_options` gives one to each of the other options, including completion.
    context_settings={"default_map": {"help": False}},
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Ahead-of-time ONNX graph rewriter: optimize, verify, explain, bench.",
)
get_completion_inspect_parameters()  # registers the shells for completion


class Command(TyperCommand):
    """Reports missing parameters and invalid numbers first, because typer's own parsing loads pydantic."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        if not given.get("help") and not ctx.resilient_parsing:
            hints = get_type_hints(self.callback)
            for param in self.params:
                text = given.get(param.name)
                if param.required and text is None:
                    name = param.opts[0] if param.param_type_name == "option" else param.metavar or param.name
                    ctx.fail(f"Missing {param.param_type_name} '{name}'.")
                number = _number(hints.get(param.name or ""))
                if number is not None and isinstance(text, str) and not _parses(text, number):
                    kind = "an integer" if number is int else "a number"
                    ctx.fail(f"Invalid value for '{param.opts[0]}': '{text}' is not {kind}.")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        import logging

        # onnx_ir warns of problems that `load` reports as one error.
        logging.getLogger("onnx_ir").setLevel(logging.CRITICAL)
        return super().invoke(ctx)


def _number(hint: Any) -> type[int] | type[float] | None:
    """Returns int or float if a parameter has that type, else None."""
    return next((t for t in (int, float) if t in (hint, *get_args(hint))), None)


def _parses(text: str, number: type[int] | type[float]) -> bool:
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
        commands = _commands(context)
        path, found = _configured(context)
        print(config.shown(path, found or {name: {} for name in commands}, commands))
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
    if context.resilient_parsing:  # completion in a shell
        return
    _, context.default_map = _configured(context)


def _configured(context: typer.Context) -> tuple[Path | None, dict[str, config.Options]]:
    found = config.find(Path.cwd())
    if found is None:  # returns without importing commands
        return None, {}
    return found[0], config.defaults(*found, _commands(context))


def _commands(context: typer.Context) -> dict[str, object]:
    return dict(getattr(context.command, "commands"))  # noqa: B009  (typer's type of a command declares no `commands`)
