"""The text of `graphopt --help`."""

from __future__ import annotations

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
