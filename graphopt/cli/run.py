"""Runs a command: what holds from its first argument to its exit code."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from types import FrameType

import typer

from graphopt.cli import screen, streams
from graphopt.cli.root import app
from graphopt.cli.startup import sympy_when_needed
from graphopt.errors import EXIT_INTERNAL, GraphoptError, ModelSaveError

# As shells do.
EXIT_INTERRUPTED = 128 + signal.SIGINT
# The base of what typer raises for wrong usage, wherever it keeps it.
_USAGE: type[Exception] = typer.BadParameter.__mro__[1]


# Whether the command has done its work, or undone it: an interrupt has nothing left to end.
_ended = False


def run() -> None:
    """Runs the command of `sys.argv` and exits: failures are one line on stderr and their exit code."""
    global _ended
    _ended = False
    sympy_when_needed()
    screen.reset()
    code = EXIT_INTERRUPTED
    try:
        try:
            _take_interrupts()
            code = _exit_code()
        finally:
            _ended = True  # Python looks for signals at calls and at jumps back: none comes between the work and this
    except KeyboardInterrupt:
        print("graphopt: interrupted", file=sys.stderr)
    except SystemExit as terminated:
        code = int(terminated.code or 0)
    finally:
        # While Python takes itself apart it has no handlers any more, and the signal would end it.
        for late in (signal.SIGINT, signal.SIGALRM):
            signal.signal(late, signal.SIG_IGN)
        streams.reset()
    sys.exit(code)


def _exit_code() -> int:
    """Does the work and tells of its failure.

    Raises:
        KeyboardInterrupt: It was interrupted.
        SystemExit: It was terminated.
    """
    try:
        code = app(prog_name="graphopt", standalone_mode=False)
        if code == EXIT_INTERRUPTED:  # typer makes an exit code of a KeyboardInterrupt
            raise KeyboardInterrupt
        sys.stdout.flush()
        return int(code or 0)
    except _USAGE as error:
        return _show_usage(error)
    except GraphoptError as error:
        return _fail(str(error), error.exit_code)
    except MemoryError as error:
        what = f" ({error})" if str(error) else ""
        advice = "give smaller sizes (--dim, --input-shape) or more"
        return _fail(f"not enough memory{what}: {advice}", GraphoptError.exit_code)
    except BrokenPipeError:  # as if the signal had ended it
        _let_go_of_stdout()
        return 128 + signal.SIGPIPE
    except OSError as error:  # a report, a cache: models have messages of their own
        _let_go_of_stdout()
        return _fail(str(error), ModelSaveError.exit_code)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except Exception:
        traceback.print_exc()
        return _fail("internal error, which is a bug of graphopt: please report the lines above", EXIT_INTERNAL)


def _let_go_of_stdout() -> None:
    """Where it takes no more, as on a full disk, what is left goes nowhere: Python would try again at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, code: int) -> int:
    """Says what failed on stderr; the exit code."""
    from graphopt.report.text import visible

    is_plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    color = False if is_plain else None  # None: where stderr is a terminal
    typer.secho("graphopt: ", fg=typer.colors.RED, nl=False, err=True, color=color)
    print(visible(streams.named(message)), file=sys.stderr)
    return code


def _show_usage(error: Exception) -> int:
    """One line that says what is wrong and where help is."""
    context, message = getattr(error, "ctx", None), error.format_message()  # type: ignore[attr-defined]  # of all usage errors
    path = context.command_path if context is not None else "graphopt"
    print(f"graphopt: {' '.join(message.split()).rstrip('.')} (see {path} --help)", file=sys.stderr)
    return int(getattr(error, "exit_code", 2))


def _take_interrupts() -> None:
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # a background job of a shell stays one
        signal.signal(signal.SIGINT, _leave)
    signal.signal(signal.SIGTERM, _leave)
    sys.unraisablehook = _unraisable


def _leave(number: int, frame: FrameType | None) -> None:
    """Ends the work by an exception, so that what is half-written goes; while a module is imported, in a moment."""
    if _ended:
        return
    if _importing(frame):
        _leave_later(number)
    elif number == signal.SIGINT:
        raise KeyboardInterrupt
    else:
        sys.exit(128 + number)


def _leave_later(number: int) -> None:
    signal.signal(signal.SIGALRM, lambda _alarm, later: _leave(number, later))
    signal.setitimer(signal.ITIMER_REAL, 0.01)


def _unraisable(lost: sys.UnraisableHookArgs) -> None:
    """Where Python drops an interrupt, as in a finalizer, it comes again."""
    if isinstance(lost.exc_value, KeyboardInterrupt):
        _leave_later(signal.SIGINT)
    elif isinstance(lost.exc_value, SystemExit):
        _leave_later(signal.SIGTERM)
    else:
        sys.__unraisablehook__(lost)


def _importing(frame: FrameType | None) -> bool:
    """Whether `run` has begun an import that a frame belongs to: compiled modules crash on an exception in it."""
    while frame is not None and frame.f_code is not run.__code__:
        if frame.f_code.co_filename.startswith("<frozen importlib."):
            return True
        frame = frame.f_back
    return False
