"""Runs a command: what holds from its first argument to its exit code."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

import typer

from graphopt.__main__ import EXIT_INTERRUPTED
from graphopt.cli import screen, streams
from graphopt.cli.root import app
from graphopt.cli.startup import sympy_when_needed
from graphopt.errors import GraphoptError, ModelSaveError

# The base of what typer raises for wrong usage, wherever it keeps it.
_USAGE: type[Exception] = typer.BadParameter.__mro__[1]


def run() -> None:
    """Runs the command of `sys.argv`: failures become one line on stderr and their exit code."""
    sympy_when_needed()
    screen.reset()
    try:
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, _leave)
        signal.signal(signal.SIGTERM, _leave)
        code = app(prog_name="graphopt", standalone_mode=False)
        if code == EXIT_INTERRUPTED:  # typer makes an exit code of a KeyboardInterrupt
            raise KeyboardInterrupt
        sys.stdout.flush()
        sys.exit(code)
    except _USAGE as error:
        sys.exit(_show_usage(error))
    except GraphoptError as error:
        _fail(str(error), error.exit_code)
    except MemoryError as error:
        what = f" ({error})" if str(error) else ""
        _fail(f"not enough memory{what}: give smaller sizes (--dim, --input-shape) or more", GraphoptError.exit_code)
    except BrokenPipeError:  # who read has read enough, as typer has it
        _let_go_of_stdout()
        sys.exit(1)
    except OSError as error:  # a report, a cache: models have messages of their own
        _let_go_of_stdout()
        _fail(str(error), ModelSaveError.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        print("graphopt: interrupted", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
    finally:
        # The work is done or undone: an interrupt while Python takes itself apart would end it by the signal.
        for late in (signal.SIGINT, signal.SIGALRM):
            signal.signal(late, signal.SIG_IGN)
        streams.reset()


def _let_go_of_stdout() -> None:
    """Where it takes no more, as on a full disk, what is left goes nowhere: Python would try again at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, code: int) -> None:
    from graphopt.report.text import visible

    color = False if "NO_COLOR" in os.environ else None  # None: where stderr is a terminal
    typer.secho("graphopt: ", fg=typer.colors.RED, nl=False, err=True, color=color)
    print(visible(streams.named(message)), file=sys.stderr)
    sys.exit(code)


def _show_usage(error: Exception) -> int:
    """One line that says what is wrong and where help is."""
    context, message = getattr(error, "ctx", None), error.format_message()  # type: ignore[attr-defined]  # of all usage errors
    path = context.command_path if context is not None else "graphopt"
    print(f"graphopt: {' '.join(message.split()).rstrip('.')} (see {path} --help)", file=sys.stderr)
    return int(getattr(error, "exit_code", 2))


def _leave(number: int, frame: FrameType | None) -> None:
    """Ends the work by an exception, so that what is half-written goes; while a module is imported, in a moment."""
    if _importing(frame):
        signal.signal(signal.SIGALRM, lambda _alarm, later: _leave(number, later))
        signal.setitimer(signal.ITIMER_REAL, 0.01)
    elif number == signal.SIGINT:
        raise KeyboardInterrupt
    else:
        sys.exit(128 + number)


def _importing(frame: FrameType | None) -> bool:
    """Whether `run` has begun an import that a frame belongs to: compiled modules crash on an exception in it."""
    while frame is not None and frame.f_code is not run.__code__:
        if frame.f_code.co_filename.startswith("<frozen importlib."):
            return True
        frame = frame.f_back
    return False
