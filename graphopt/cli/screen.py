"""Consoles of the command line: results on stdout, progress and errors on stderr.

On a terminal, tables are cut to its width and texts are wrapped. A pipe or a file gets complete lines.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

# Columns of a console that is not a terminal: more than any line has.
UNLIMITED = 100_000

_diverted = False


def reset() -> None:
    """Recreates the consoles for the current stdout and stderr. Each run of the command line calls this first."""
    global _diverted
    _diverted = False
    out.cache_clear()
    errors.cache_clear()


def divert() -> None:
    """Redirects results to stderr, because a model or a report is written to stdout."""
    global _diverted
    _diverted = True
    out.cache_clear()


@functools.cache
def out() -> Console:
    """Returns the console for results."""
    return _console(stderr=_diverted)


@functools.cache
def errors() -> Console:
    """Returns the console for progress and errors."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    if stream.isatty():
        return Console(stderr=stderr, highlight=False)
    return Console(stderr=stderr, highlight=False, width=UNLIMITED, height=25)


@contextmanager
def working(what: str = "") -> Iterator[Callable[[str], None]]:
    """Shows progress on a terminal; yields a function that sets the current step."""
    if not sys.stderr.isatty():  # saves loading rich
        yield lambda step: None
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from graphopt.report.text import plain

    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=errors(), transient=True) as progress:
        task = progress.add_task(plain(what), total=None)
        yield lambda step: progress.update(task, description=plain(step))


def print_json(command: str, data: dict[str, Any]) -> None:
    """Prints a command's result as JSON on stdout, even if other output is redirected."""
    from graphopt.strict_json import document

    print(document(command, data))
