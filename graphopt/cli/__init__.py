"""The command line: parses, calls the API, prints; one file a command.

Exit codes: graphopt.errors, and 1 where `verify` differs. What takes time to import is imported late: for --version and
--help nothing is, for a usage error the parser and the command that it is about, and the rest by the command's work.
"""

from __future__ import annotations

import os
import sys

import graphopt
from graphopt.cli.overview import OVERVIEW


def main() -> None:
    """The entry point: failures become one line on stderr and their exit code."""
    first = "".join(sys.argv[1:2]) or "--help"
    if "_GRAPHOPT_COMPLETE" in os.environ:  # a shell asks the parser for completions, with nothing in argv
        first = ""
    said = {"--help": OVERVIEW, "--version": f"graphopt {graphopt.__version__}\n"}.get(first)
    if said is not None:
        try:
            sys.stdout.write(said)
            sys.stdout.flush()
            return
        except OSError:  # a full disk, a closed pipe: told in the way of all commands
            pass
    from graphopt.cli.run import run

    run()
