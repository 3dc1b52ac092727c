"""The command line: parses, calls the API, prints; one file a command.

Exit codes: graphopt.errors, and 1 where `verify` differs. What takes time to import is imported late: for --version and
--help nothing is, for a usage error the parser and the command that it is about, and the rest by the command's work.
"""

from __future__ import annotations

import os
import sys

import graphopt

# What `graphopt --help` prints. The parser would say the same (a test compares them), but loading it takes ten times as
# long as Python itself.
OVERVIEW = """\
Usage: graphopt [OPTIONS] COMMAND [ARGS]...

  Ahead-of-time ONNX graph rewriter: optimize, verify, explain, bench.

Options:
  --version             Print the version and exit.
  --show-config         Print all options and exit.
  --install-completion  Install completion for this shell.
  --show-completion     Print the completion of this shell.
  --help                Show this message and exit.

Commands:
  optimize      Rewrite IN into OUT.
  verify        Compare the outputs of two models.
  bench         Time A, or compare A with B.
  explain       Account for all of IN: what is rewritten, what not, and why.
  view          Show MODEL and its rewrite side by side in the browser.
  diff          Show what differs between the graphs of two models.
  bisect        Find the one rewrite of IN that breaks its numbers.
  lower         Write our operators as standard ONNX, for other runtimes.
  optimize-all  Optimize every model of FOLDER into OUT.
  serve-config  Write a folder from which a server serves MODEL as it is.
  passes        List the passes with their equations, in their order.
  doctor        Show what is installed, the ways to a GPU, what is missing.
  docs          Show a page of the documentation, without a network.
"""


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
