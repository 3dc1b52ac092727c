"""Templates of the HTML pages, which escape every name and make control characters visible."""

from __future__ import annotations

import functools

import jinja2

from graphopt.report.answer import factor, interval
from graphopt.report.text import count, milliseconds, size, small, visible


@functools.cache
def templates() -> jinja2.Environment:
    """Returns the templates of `templates/` with their filters."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("graphopt.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    made.filters |= {"bytes": size, "ms": milliseconds, "small": small, "factor": factor, "interval": interval}
    # "->" becomes an arrow. Hyphens become non-breaking, because 1.27-1.31 and 1e-6 are one word each.
    made.filters["typeset"] = lambda text: visible(text).replace("->", "→").replace("-", "\u2011")
    made.globals["count"] = count
    return made
