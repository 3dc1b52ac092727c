"""Runs a command: signals, error messages and exit codes."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from types import FrameType

import typer

from graphopt.cli import screen, streams
from graphopt.cli.root import app
from graphopt.cli.startup import delay_slow_imports
from graphopt.errors import EXIT_INTERNAL, GraphoptError, ModelSaveError

# The exit code of shells for an interrupted command.
EXIT_INTERRUPTED = 128 + signal.SIGINT
# The base class of typer's usage errors; its module differs between versions.
_USAGE: type[Exception] = typer.BadParameter.__mro__[1]


# Whether the command has finished or rolled back its work; interrupts are then ignored.
_ended = False


def run() -> None:
    """Runs the command of `sys.argv` and exits. A failure prints one line on stderr and sets its exit code."""
    global _ended
    _ended = False
    delay_slow_imports()
    screen.reset()
    code = EXIT_INTERRUPTED
    try:
        try:
            _install_signal_handlers()
            code = _exit_code()
        finally:
            # Python handles signals only at calls and backward jumps: none between a command's end and this line.
            _ended = True
    except KeyboardInterrupt:
        print("graphopt: interrupted", file=sys.stderr)
    except SystemExit as terminated:
        code = int(terminated.code or 0)
    finally:
        # Python's shutdown removes signal handlers; without this, a signal would then kill the process.
        for late in (signal.SIGINT, signal.SIGALRM):
            signal.signal(late, signal.SIG_IGN)
        streams.reset()
    sys.exit(code)


def _exit_code() -> int:
    """Runs the command, prints the error of a failure, and returns the exit code.

    Raises:
        KeyboardInterrupt: the command was interrupted.
        SystemExit: the command was terminated.
    """
    try:
        code = app(prog_name="graphopt", standalone_mode=False)
        if code == EXIT_INTERRUPTED:  # typer converts KeyboardInterrupt to an exit code
            raise KeyboardInterrupt
        sys.stdout.flush()
        return int(code or 0)
    except _USAGE as error:
        return _show_usage(error)
    except GraphoptError as error:
        return _fail(str(error), error.exit_code)
    except MemoryError as error:
        what = f" ({error})" if str(error) else ""
        advice = "give smaller sizes (--dim, --input-shape) or use a machine with more memory"
        return _fail(f"not enough memory{what}: {advice}", GraphoptError.exit_code)
    except BrokenPipeError:  # returns the exit code of a process that SIGPIPE ended
        _discard_stdout()
        return 128 + signal.SIGPIPE
    except OSError as error:  # writing a report or a cache failed; errors of models are GraphoptErrors
        _discard_stdout()
        return _fail(str(error), ModelSaveError.exit_code)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except Exception:
        traceback.print_exc()
        return _fail("internal error (a bug of graphopt): please report the lines above", EXIT_INTERNAL)


def _discard_stdout() -> None:
    """If stdout cannot be flushed, redirects it to /dev/null, because Python flushes it again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, code: int) -> int:
    """Prints an error on stderr and returns the exit code."""
    from graphopt.report.text import visible

    is_plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    color = False if is_plain else None  # None: colored if stderr is a terminal
    typer.secho("graphopt: ", fg=typer.colors.RED, nl=False, err=True, color=color)
    print(visible(streams.restore_paths(message)), file=sys.stderr)
    return code


def _show_usage(error: Exception) -> int:
    """Prints a usage error and the command for help in one line, and returns the exit code."""
    context, message = getattr(error, "ctx", None), error.format_message()  # type: ignore[attr-defined]  # all usage errors have it
    path = context.command_path if context is not None else "graphopt"
    print(f"graphopt: {' '.join(message.split()).rstrip('.')} (see {path} --help)", file=sys.stderr)
    return int(getattr(error, "exit_code", 2))


def _install_signal_handlers() -> None:
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # ignored in background jobs of a shell
        signal.signal(signal.SIGINT, _leave)
    signal.signal(signal.SIGTERM, _leave)
    sys.unraisablehook = _unraisable


def _leave(number: int, frame: FrameType | None) -> None:
    """Handles a signal by an exception, which removes unfinished files; during an import, tries again later."""
    if _ended:
        return
    if _importing(frame):
        _exit_later(number)
    elif number == signal.SIGINT:
        raise KeyboardInterrupt
    else:
        sys.exit(128 + number)


def _exit_later(number: int) -> None:
    signal.signal(signal.SIGALRM, lambda _alarm, later: _leave(number, later))
    signal.setitimer(signal.ITIMER_REAL, 0.01)


def _unraisable(lost: sys.UnraisableHookArgs) -> None:
    """Repeats an interrupt if Python discarded its exception, for instance in a finalizer."""
    if isinstance(lost.exc_value, KeyboardInterrupt):
        _exit_later(signal.SIGINT)
    elif isinstance(lost.exc_value, SystemExit):
        _exit_later(signal.SIGTERM)
    else:
        sys.__unraisablehook__(lost)


def _importing(frame: FrameType | None) -> bool:
    """Returns whether a frame is part of an import that `run` started; an exception there can crash native modules."""
    while frame is not None and frame.f_code is not run.__code__:
        if frame.f_code.co_filename.startswith("<frozen importlib."):
            return True
        frame = frame.f_back
    return False
