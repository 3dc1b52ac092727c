"""The entry point of the console command and of `python -m graphopt`. Imports only the standard library.

Ctrl-C during the import of the command line prints one line without a traceback, as later (graphopt/cli/run.py).
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
    # A command handles one model and ends, so garbage collection would be wasted.
    gc.disable()
    atexit.register(gc.freeze)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # shells let background jobs ignore it
        signal.signal(signal.SIGINT, leave)
    for stream in ("stdin", "stdout", "stderr"):
        if getattr(sys, stream) is None:  # closed by the parent process
            setattr(sys, stream, open(os.devnull, "r" if stream == "stdin" else "w"))  # noqa: SIM115 (as long as we run)
    try:
        from graphopt.cli import main as run
    except Exception:  # Python's own exit code 1 means a difference
        import traceback

        from graphopt.errors import EXIT_INTERNAL

        traceback.print_exc()
        sys.exit(EXIT_INTERNAL)
    run()


def leave(_signal: int, _frame: FrameType | None) -> None:
    """Ends the process at once, until `graphopt.cli.run` installs its own handler."""
    # No work has begun, and an exception in the middle of an import may turn into another one.
    os.write(2, b"graphopt: interrupted\n")
    os._exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
