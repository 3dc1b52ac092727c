"""Words and numbers for people."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence


def visible(text: str) -> str:
    """Names come from files: control characters, those that turn the direction of text too, become visible."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def plain(text: str) -> str:
    """`visible`, and rich markup loses its meaning."""
    from rich.markup import escape

    return escape(visible(text))


def size(n: int) -> str:
    """Bytes."""
    amount = float(n)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.2f} GiB"


def data_files(written: Mapping[str, int], shared: Mapping[str, int]) -> list[str]:
    """Sentences about the weights that are not inside a model: path -> bytes of files, the model first."""
    model, *data = written
    lines = [f"weights in {path} ({size(written[path])})" for path in data]
    if shared:
        names = ", ".join(f"{path} ({size(n)})" for path, n in shared.items())
        lines.append(f"shares the weights of {names}: {model} is refused when they change")
    return lines


def count(n: int, what: str) -> str:
    """1 node, 2 nodes."""
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def fitted(items: Sequence[str], room: int = 72) -> str:
    """The items that fit into so many letters, the first in any case, and how many are left out."""
    for kept in range(len(items), 0, -1):
        rest = len(items) - kept
        text = ", ".join([*items[:kept], *([f"{rest} more"] if rest else [])])
        if len(text) <= room:
            break
    return text


def operators(op_types: Iterable[str], joined: str = ", ") -> str:
    """Conv, 2 Relu; "" where there are none."""
    return joined.join(op if n == 1 else f"{n} {op}" for op, n in Counter(op_types).items())


def amount(n: float) -> str:
    """A large number in three digits: 1.81 G."""
    for unit in ("", " k", " M", " G"):
        if abs(n) < 999.5:
            return f"{n:.3g}{unit}"
        n /= 1000
    return f"{n:.3g} T"


def milliseconds(n: float) -> str:
    """Three digits, and all before the point: 0.300, 17.5, 1,212."""
    return f"{n:#.3g}".rstrip(".") if abs(n) < 999.5 else f"{n:,.0f}"


def small(x: float, digits: int = 2) -> str:
    """A number of any size in a few digits, with no zeros in its exponent: 1.2e-6."""
    return re.sub(r"e([-+])0+", r"e\1", f"{x:.{digits}g}")
