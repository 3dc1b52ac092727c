"""Formats text and numbers for users."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence


def visible(text: str) -> str:
    """Escapes control and bidirectional characters, because names come from untrusted files."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def plain(text: str) -> str:
    """Escapes a text like `visible`, and rich markup as well."""
    from rich.markup import escape

    return escape(visible(text))


def size(n: int) -> str:
    """Formats a number of bytes: "44.6 MiB"."""
    amount = float(n)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.2f} GiB"


def data_files(written: Mapping[str, int], shared: Mapping[str, int]) -> list[str]:
    """Returns lines about weights outside the model file.

    Args:
        written: path -> bytes of each written file, the model first.
        shared: path -> bytes of each shared data file.
    """
    model, *data = written
    lines = [f"weights in {path} ({size(written[path])})" for path in data]
    if shared:
        names = ", ".join(f"{path} ({size(n)})" for path, n in shared.items())
        lines.append(f"shares the weights of {names}: {model} is rejected if they change")
    return lines


def count(n: int, what: str) -> str:
    """Formats a count: "1 node", "2 nodes"."""
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def fitted(items: Sequence[str], width: int = 72) -> str:
    """Joins items up to a width in characters, at least the first, and adds the number of omitted ones."""
    for kept in range(len(items), 0, -1):
        rest = len(items) - kept
        text = ", ".join([*items[:kept], *([f"{rest} more"] if rest else [])])
        if len(text) <= width:
            break
    return text


def operators(op_types: Iterable[str], joined: str = ", ") -> str:
    """Counts operators: "Conv, 2 Relu"; "" without any."""
    return joined.join(op if n == 1 else f"{n} {op}" for op, n in Counter(op_types).items())


def amount(n: float) -> str:
    """Formats a large number with three digits: "1.81 G"."""
    for unit in ("", " k", " M", " G"):
        if abs(n) < 999.5:
            return f"{n:.3g}{unit}"
        n /= 1000
    return f"{n:.3g} T"


def milliseconds(n: float) -> str:
    """Formats milliseconds with three digits, or all integer digits: "0.300", "17.5", "1,212"."""
    return f"{n:#.3g}".rstrip(".") if abs(n) < 999.5 else f"{n:,.0f}"


def small(x: float, digits: int = 2) -> str:
    """Formats a number with a few digits and without zeros in its exponent: "1.2e-6"."""
    return re.sub(r"e([-+])0+", r"e\1", f"{x:.{digits}g}")
