"""The entry point of the console command and of `python -m graphopt`. Imports nothing that takes time.

Ctrl-C while the command line is imported shows one line and no traceback, as it does later (graphopt/cli/run.py).
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from types import FrameType

EXIT_INTERRUPTED = 128 + signal.SIGINT  # as shells do


def main() -> None:
    """Runs the command line."""
    # One command handles one model and ends: collecting what it leaves behind is work for nobody.
    gc.disable()
    atexit.register(gc.freeze)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # a background job of a shell stays one
        signal.signal(signal.SIGINT, leave)
    for stream in ("stdin", "stdout", "stderr"):
        if getattr(sys, stream) is None:  # closed by who started this
            setattr(sys, stream, open(os.devnull, "r" if stream == "stdin" else "w"))  # noqa: SIM115 (as long as we run)
    try:
        from graphopt.cli import main as run
    except Exception:  # 1, which Python ends with, stands for a difference
        import traceback

        from graphopt.errors import EXIT_INTERNAL

        traceback.print_exc()
        sys.exit(EXIT_INTERNAL)
    run()


def leave(_signal: int, _frame: FrameType | None) -> None:
    """Ends the process at once, until `graphopt.cli.run` takes interrupts itself."""
    # Nothing has begun; an exception in the middle of an import may come out as another one.
    os.write(2, b"graphopt: interrupted\n")
    os._exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
