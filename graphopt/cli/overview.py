"""The text of `graphopt --help`."""

from __future__ import annotations

# This text is a constant, because importing the parser takes ten times as long as starting Python. A test compares it
# with the parser's text.
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
  explain       Show for each part of IN whether it is rewritten, and why.
  view          Show MODEL and its rewrite side by side in the browser.
  diff          Show the differences between the graphs of two models.
  bisect        Find the rewrite that makes the outputs of IN wrong.
  lower         Write our operators as standard ONNX, for other runtimes.
  optimize-all  Optimize every model of FOLDER into OUT.
  serve-config  Write a folder with MODEL and the files of a model server.
  passes        List the passes with their equations, in order.
  doctor        Show installed parts, routes to a GPU and missing parts.
  docs          Show a page of the documentation offline.
"""
