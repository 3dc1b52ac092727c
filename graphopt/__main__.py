"""The entry point of the console command and of `python -m graphopt`. Imports nothing that takes time.

Importing the command line takes most of a second. Ctrl-C meanwhile shows one line and no traceback, as it does later
(graphopt/cli/__init__.py).
"""

from __future__ import annotations

import os
import signal
from types import FrameType

EXIT_INTERRUPTED = 130


def main() -> None:
    """Runs the command line."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # a background job of a shell stays one
        signal.signal(signal.SIGINT, leave)
    from graphopt.cli import main as run

    run()


def leave(_signal: int, _frame: FrameType | None) -> None:
    """Ends the process at once, until `graphopt.cli.main` takes interrupts itself."""
    # Nothing has begun; an exception in the middle of an import may come out as another one.
    os.write(2, b"graphopt: interrupted\n")
    os._exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
