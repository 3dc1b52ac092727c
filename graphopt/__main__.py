"""The entry point of the console command and of `python -m graphopt`. Imports only the standard library.

Ctrl-C prints one line without a traceback: `leave` handles it while the command line is imported, and
graphopt/cli/run.py handles it while a command runs.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from types import FrameType

EXIT_INTERRUPTED = 128 + signal.SIGINT  # the exit code of shells


def main() -> None:
    """Runs the command line."""
    # Most commands end soon, so garbage collection would only cost time; gc.freeze shortens the one at exit.
    gc.disable()
    atexit.register(gc.freeze)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # ignored in background jobs of a shell
        signal.signal(signal.SIGINT, leave)
    for stream in ("stdin", "stdout", "stderr"):
        if getattr(sys, stream) is None:  # closed by the parent process
            setattr(sys, stream, open(os.devnull, "r" if stream == "stdin" else "w"))  # noqa: SIM115 (kept open)
    try:
        from graphopt.cli import main as run
    except Exception:  # Python would exit with 1, the code of `verify` for different outputs
        import traceback

        from graphopt.errors import EXIT_INTERNAL

        traceback.print_exc()
        sys.exit(EXIT_INTERNAL)
    run()


def leave(_signal: int, _frame: FrameType | None) -> None:
    """Handles SIGINT until `graphopt.cli.run` installs its own handler: ends the process at once."""
    # There is nothing to clean up yet, and an import may turn a raised exception into another one.
    os.write(2, b"graphopt: interrupted\n")
    os._exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
