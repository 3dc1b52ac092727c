"""The command line: parses arguments, calls the API and prints results; one file for each command.

Exit codes are in graphopt.errors; 1 means that `verify` found a difference. Slow imports are delayed: --version and
--help import neither the parser nor a command; a usage error imports only the parser and the command it is about.
"""

from __future__ import annotations

import os
import sys

import graphopt
from graphopt.cli.overview import OVERVIEW


def main() -> None:
    """Runs the command line. A failure prints one line on stderr and sets its exit code."""
    first = "".join(sys.argv[1:2]) or "--help"
    if "_GRAPHOPT_COMPLETE" in os.environ:  # a shell requests completions with an empty argv
        first = ""
    text = {"--help": OVERVIEW, "--version": f"graphopt {graphopt.__version__}\n"}.get(first)
    if text is not None:
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
            return
        except OSError:  # a full disk or a closed pipe: `run` reports it
            pass
    from graphopt.cli.run import run

    run()
