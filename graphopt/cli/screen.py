"""Where the command line prints: answers on stdout, progress and errors on stderr.

A terminal gets lines of its width, with what is too long cut; a pipe or a file gets all of it, a line each.
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

# The width where there is no terminal: enough that nothing is cut.
UNLIMITED = 100_000

_diverted = False


def reset() -> None:
    """Looks afresh at where stdout and stderr lead; each run of the command line begins with it."""
    global _diverted
    _diverted = False
    out.cache_clear()
    errors.cache_clear()


def divert() -> None:
    """What is printed goes to stderr from now on: stdout is for a model or for a report."""
    global _diverted
    _diverted = True
    out.cache_clear()


@functools.cache
def out() -> Console:
    """For answers."""
    return _console(stderr=_diverted)


@functools.cache
def errors() -> Console:
    """For progress and errors."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    if stream.isatty():
        return Console(stderr=stderr, highlight=False)
    return Console(stderr=stderr, highlight=False, width=UNLIMITED, height=25)


@contextmanager
def working(what: str = "") -> Iterator[Callable[[str], None]]:
    """Shows on a terminal that work is going on, and with what; yields the function that says with what."""
    if not sys.stderr.isatty():  # nobody looks, and rich takes its time to load
        yield lambda step: None
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from graphopt.report.text import plain

    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=errors(), transient=True) as progress:
        task = progress.add_task(plain(what), total=None)
        yield lambda step: progress.update(task, description=plain(step))


def print_json(command: str, data: dict[str, Any]) -> None:
    """What a command found, on stdout, wherever else is printed."""
    from graphopt.strict_json import document

    print(document(command, data))
