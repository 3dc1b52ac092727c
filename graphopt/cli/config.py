"""Defaults of options from a file: [tool.graphopt] in pyproject.toml, or graphopt.toml.

The nearest file in the working directory or its parents is used. A table with a command's name contains options of that
command by their long names. Options outside such tables apply to every command that has them. The command line
overrides the file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from graphopt.errors import OptionError

# Parameter -> value, for options only; a file cannot set positional arguments.
Options = dict[str, Any]


def find(start: Path) -> tuple[Path, dict[str, Any]] | None:
    """Returns the nearest file with a configuration, and the configuration; None if there is none.

    Raises:
        OptionError: a file is not valid TOML, or its configuration is not a table.
    """
    for folder in (start, *start.parents):
        for name, keys in (("graphopt.toml", ()), ("pyproject.toml", ("tool", "graphopt"))):
            path = folder / name
            if not path.is_file():
                continue
            table = _read(path)
            for key in keys:
                table = table.get(key, {})
                if not isinstance(table, dict):
                    raise OptionError(f"{path}: '{key}' is not a table")
            if table or not keys:
                return path, table
    return None


def defaults(path: Path, table: Mapping[str, Any], commands: Mapping[str, Any]) -> dict[str, Options]:
    """Returns command -> parameter -> value for the parser.

    Args:
        path: the configuration file, for messages.
        table: the configuration.
        commands: name -> command of the parser.

    Raises:
        OptionError: a command or option is unknown, or a value has the wrong type.
    """
    # `verify` is both a command and an option of other commands; a table configures the command.
    shared = {key: value for key, value in table.items() if key not in commands or not isinstance(value, dict)}
    found: dict[str, Options] = {name: {} for name in commands}
    for key, value in shared.items():
        having = [name for name, command in commands.items() if key in _options(command)]
        if isinstance(value, dict) or not having:
            kind = "command" if isinstance(value, dict) else "option"
            raise OptionError(f"{path}: there is no {kind} '{key}'; graphopt --show-config lists all")
        for name in having:
            option = _options(commands[name])[key]
            found[name][option.name] = _checked(value, option, f"{path}: {key}")
    for name in table.keys() - shared.keys():
        options = _options(commands[name])
        for key, value in table[name].items():
            if key not in options:
                raise OptionError(f"{path}: graphopt {name} has no option '{key}'; it has {', '.join(options)}")
            found[name][options[key].name] = _checked(value, options[key], f"{path}: {name}.{key}")
    return found


def shown(path: Path | None, found: Mapping[str, Options], commands: Mapping[str, Any]) -> str:
    """Returns all options with their values in the form of a configuration file, with unset options as comments."""
    import json

    lines = [f"# from {path}" if path is not None else "# no graphopt.toml, and no [tool.graphopt] in pyproject.toml"]
    for name, command in commands.items():
        options = _options(command)
        if not options:
            continue
        lines += ["", f"[{name}]"]
        for key, option in options.items():
            value = found[name].get(option.name, option.default)
            set_here = option.name in found[name]
            text = json.dumps([] if option.multiple and value is None else value, default=str)
            lines.append(f"{'' if set_here else '# '}{key} = {text if text != 'null' else '...'}")
    return "\n".join(lines)


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise OptionError(f"{path}: cannot be read: {error}") from None
    if path.name == "pyproject.toml" and "graphopt" not in text:  # saves loading the TOML parser
        return {}
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        table: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise OptionError(f"{path}: cannot be read: {error}") from None
    return table


def _options(command: Any) -> dict[str, Any]:
    """Returns long name -> option, for options that a file may set."""
    options = {}
    for option in command.params:
        names = [o.removeprefix("--") for o in _names(option) if o.startswith("--")]
        if names and names[0] not in ("help", "version", "show-config", "install-completion", "show-completion"):
            options[names[0]] = option
    return options


def _names(option: Any) -> Iterable[str]:
    return option.opts if option.param_type_name == "option" else ()


def _checked(value: Any, option: Any, where: str) -> Any:
    if option.is_flag or option.secondary_opts:
        fits, kind = isinstance(value, bool), "true or false"
    elif option.multiple:
        fits, kind = isinstance(value, list) and all(isinstance(v, str) for v in value), 'a list such as ["..."]'
    else:
        fits, kind = isinstance(value, str | int | float) and not isinstance(value, bool), "a string or a number"
    if not fits:
        import json

        raise OptionError(f"{where} is {json.dumps(value, default=str)}, not {kind}")
    return value
