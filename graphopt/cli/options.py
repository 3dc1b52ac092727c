"""What several commands take: the types of their options, and the readers of those that have a form of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphopt.errors import OptionError


def pass_names() -> list[str]:
    """For the completion of --only and --skip."""
    from graphopt.passes.plugins import installed

    return [p.name for p in installed()]


def target_names() -> list[str]:
    """For the completion of --target."""
    return ["auto", "cpu", "rocm", "cuda", "migraphx", "portable"]


InPath = Annotated[Path, typer.Argument(help="The model to read; - is stdin.", metavar="IN")]
TargetOption = Annotated[
    str,
    typer.Option(
        help="auto, cpu, rocm, rocm:ARCH, cuda, migraphx or portable: decides what pays.", autocompletion=target_names
    ),
]
OnlyOption = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="PASS", help="Run this pass alone (repeatable).", autocompletion=pass_names),
]
SkipOption = Annotated[
    list[str] | None,
    typer.Option("--skip", metavar="PASS", help="Leave this pass out (repeatable).", autocompletion=pass_names),
]
ProvidersOption = Annotated[
    str | None,
    typer.Option(metavar="A,B", help="Two providers, such as cpu,graphopt: the question is what lies between them."),
]
ShapeOption = Annotated[
    list[str] | None,
    typer.Option("--input-shape", metavar="NAME:DIMS", help="images:1x3x224x224 fixes an input's shape (repeatable)."),
]
AllSitesOption = Annotated[bool, typer.Option("--all-sites", help="Also rewrite where it does not pay.")]
GithubOption = Annotated[
    bool, typer.Option("--github", help="Annotations and a step summary for a workflow of GitHub Actions.")
]


def parse_input_shapes(options: list[str] | None) -> dict[str, tuple[int, ...]]:
    """Reads NAME:1x3x224x224.

    Raises:
        OptionError: not of that form.
    """
    shapes = {}
    for option in options or []:
        name, colon, dims = option.rpartition(":")
        try:
            shape = tuple(int(d) for d in dims.split("x")) if dims else ()
        except ValueError:
            shape = (-1,)
        if not colon or not name or any(d < 0 for d in shape):
            raise OptionError(f"--input-shape '{option}' is not of the form NAME:1x3x224x224")
        shapes[name] = shape
    return shapes


def parse_sizes(options: list[str] | None) -> dict[str, list[int]]:
    """Reads NAME=64,128.

    Raises:
        OptionError: not of that form.
    """
    sizes = {}
    for option in options or []:
        name, equals, text = option.rpartition("=")
        parts = text.split(",")
        if not equals or not name or not all(p.strip().isdecimal() and int(p) for p in parts):
            raise OptionError(f"--dim '{option}' is not of the form NAME=8 or NAME=64,128, with sizes from 1 on")
        sizes[name] = [int(p) for p in parts]
    return sizes


def parse_one_size(options: list[str] | None) -> dict[str, int]:
    """Reads NAME=8.

    Raises:
        OptionError: not of that form, or several sizes.
    """
    sizes = parse_sizes(options)
    for name, several in sizes.items():
        if len(several) > 1:
            raise OptionError(f"--dim {name} takes one size here, such as {name}={several[0]}")
    return {name: size for name, (size,) in sizes.items()}


def parse_numbers(text: str, what: str) -> list[int]:
    """Reads 1,8,64.

    Raises:
        OptionError: not of that form.
    """
    parts = text.split(",")
    if not all(p.strip().isdecimal() for p in parts):
        raise OptionError(f"{what} '{text}' is not a list of numbers such as 1,8,64")
    return [int(p) for p in parts]


def parse_threads(number: int) -> int:
    """One number of threads.

    Raises:
        OptionError: it is negative.
    """
    if number < 0:
        raise OptionError(f"--threads {number} is no number of threads: give 1, 2, ..., or 0 for the runtime's choice")
    return number


def parse_ranges(options: list[str] | None) -> dict[str, tuple[float, float]]:
    """Reads NAME:LO:HI.

    Raises:
        OptionError: not of that form.
    """
    found = {}
    for option in options or []:
        name, _, ends = option.rpartition(":")
        name, _, low = name.rpartition(":")
        try:
            found[name] = (float(low), float(ends))
        except ValueError:
            name = ""
        if not name or found[name][0] > found[name][1]:
            raise OptionError(f"--range '{option}' is not of the form NAME:LO:HI")
    return found


def parse_names(text: str | None) -> list[str] | None:
    """Reads A,B."""
    return [name.strip() for name in text.split(",")] if text is not None else None


def parse_tolerances(options: list[str] | None, what: str) -> dict[str, float]:
    """Reads OUTPUT:value or value; the empty name stands for all outputs.

    Raises:
        OptionError: not of that form.
    """
    parsed = {}
    for option in options or []:
        name, _, number = option.rpartition(":")
        try:
            parsed[name] = float(number)
        except ValueError:
            raise OptionError(f"{what} '{option}' is not a number or OUTPUT:number") from None
    return parsed
