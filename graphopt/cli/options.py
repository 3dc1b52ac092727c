"""Options that several commands share, and parsers of their values.

typer calls a parser for each value. Parsers of repeatable options return (name, value) pairs for `dict`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from graphopt.errors import OptionError


def pass_names() -> list[str]:
    """Returns the completions of --only and --skip."""
    from graphopt.passes.plugins import installed

    return [p.name for p in installed()]


def target_names() -> list[str]:
    """Returns the completions of --target."""
    return ["auto", "cpu", "rocm", "cuda", "migraphx", "portable"]


class InputShape(NamedTuple):
    """An input and its shape."""

    name: str
    shape: tuple[int, ...]


class Sizes(NamedTuple):
    """A symbolic dimension and its sizes."""

    name: str
    sizes: list[int]


class Size(NamedTuple):
    """A symbolic dimension and its size."""

    name: str
    size: int


class Range(NamedTuple):
    """An input, and its smallest and largest value."""

    name: str
    bounds: tuple[float, float]


class Tolerance(NamedTuple):
    """An output, or "" for all outputs, and its tolerance."""

    output: str
    value: float


class Names(tuple[str, ...]):
    """Names separated by commas."""


class Numbers(tuple[int, ...]):
    """Integers separated by commas."""


def input_shape(text: str) -> InputShape:
    """Parses NAME:1x3x224x224.

    Raises:
        OptionError: the text has another form.
    """
    name, colon, dims = text.rpartition(":")
    parts = dims.split("x") if dims else []
    if not colon or not name or not all(d.strip().isdecimal() for d in parts):
        raise OptionError(f"--input-shape '{text}' is not of the form NAME:1x3x224x224")
    return InputShape(name, tuple(int(d) for d in parts))


def several_sizes(text: str) -> Sizes:
    """Parses NAME=64,128.

    Raises:
        OptionError: the text has another form.
    """
    name, equals, sizes = text.rpartition("=")
    parts = sizes.split(",")
    if not equals or not name or not all(p.strip().isdecimal() and int(p) for p in parts):
        raise OptionError(f"--dim '{text}' is not of the form NAME=8 or NAME=64,128 with positive sizes")
    return Sizes(name, [int(p) for p in parts])


def one_size(text: str) -> Size:
    """Parses NAME=8.

    Raises:
        OptionError: the text has another form, or several sizes.
    """
    name, (size, *others) = several_sizes(text)
    if others:
        raise OptionError(f"--dim {name}: this command takes one size, such as {name}={size}")
    return Size(name, size)


def value_range(text: str) -> Range:
    """Parses NAME:LO:HI.

    Raises:
        OptionError: the text has another form.
    """
    rest, _, high = text.rpartition(":")
    name, _, low = rest.rpartition(":")
    try:
        bounds = float(low), float(high)
    except ValueError:
        bounds = 1.0, 0.0
    if not name or not -math.inf < bounds[0] <= bounds[1] < math.inf:
        raise OptionError(f"--range '{text}' is not of the form NAME:LO:HI with finite numbers LO <= HI")
    return Range(name, bounds)


def tolerance_of(option: str) -> Callable[[str], Tolerance]:
    """Returns a parser of OUTPUT:NUMBER or NUMBER, which raises OptionError for other texts."""

    def tolerance(text: str) -> Tolerance:
        name, _, number = text.rpartition(":")
        try:
            return Tolerance(name, float(number))
        except ValueError:
            raise OptionError(f"{option} '{text}' is not of the form NUMBER or OUTPUT:NUMBER") from None

    return tolerance


def numbers_of(option: str) -> Callable[[str], Numbers]:
    """Returns a parser of 1,8,64, which raises OptionError for other texts."""

    def numbers(text: str) -> Numbers:
        parts = text.split(",") if text else []
        if not all(p.strip().isdecimal() for p in parts):
            raise OptionError(f"{option} '{text}' is not a list of integers such as 1,8,64")
        return Numbers(int(p) for p in parts)

    return numbers


def names(text: str) -> Names:
    """Parses A,B."""
    return Names(name.strip() for name in text.split(","))


InPath = Annotated[Path, typer.Argument(help="The model to read; - is stdin.", metavar="IN")]
TargetOption = Annotated[
    str,
    typer.Option(
        help="auto, cpu, rocm, rocm:ARCH, cuda, migraphx or portable: selects rewrites.", autocompletion=target_names
    ),
]
OnlyOption = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="PASS", help="Run only this pass (repeatable).", autocompletion=pass_names),
]
SkipOption = Annotated[
    list[str] | None,
    typer.Option("--skip", metavar="PASS", help="Do not run this pass (repeatable).", autocompletion=pass_names),
]
ProvidersOption = Annotated[
    Names | None,
    typer.Option(
        parser=names,
        metavar="A,B",
        help="Compare two providers, such as cpu,graphopt, and run nothing else.",
    ),
]
ShapeOption = Annotated[
    list[InputShape] | None,
    typer.Option(
        "--input-shape",
        parser=input_shape,
        metavar="NAME:DIMS",
        help="images:1x3x224x224 fixes an input's shape (repeatable).",
    ),
]
CostDimOption = Annotated[
    list[Size] | None,
    typer.Option("--dim", parser=one_size, metavar="NAME=8", help="Size of a dimension, for costs (repeatable)."),
]
ShareWeightsOption = Annotated[
    bool,
    typer.Option("--share-weights", help="OUT refers to IN's weight files, and is rejected if these change."),
]
CustomOpsOption = Annotated[
    list[Path] | None,
    typer.Option("--custom-ops", metavar="LIB", help="A library with your own operators (repeatable)."),
]
IgnoreCostModelOption = Annotated[
    bool, typer.Option("--ignore-cost-model", help="Also apply rewrites that may be slower.")
]
GithubOption = Annotated[
    bool, typer.Option("--github", help="Print annotations and write a step summary for GitHub Actions.")
]
