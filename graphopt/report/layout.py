"""Sentences and tables of a terminal's width; what is too long for it is cut, and nothing is on its way to a file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

# No text is cut below so many letters.
LEAST_TEXT = 8


def table(columns: Sequence[str]) -> Table:
    """A table without lines. Columns whose name begins with ">" are right-aligned; what is too long is cut."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        right = column.startswith(">")
        made.add_column(column.removeprefix(">"), justify="right" if right else "left", no_wrap=True)
    return made


def width(made: Table) -> int:
    """How wide a table is where nothing is cut."""
    return sum(_widths(made)) + 2 * (len(made.columns) - 1)


def show(made: Table, console: Console) -> None:
    """Prints a table; where it is wider than a terminal the widest texts are cut, and never a number."""
    widths = _widths(made)
    texts = [i for i, column in enumerate(made.columns) if column.justify == "left"]
    gaps = 2 * (len(widths) - 1)
    while texts and sum(widths) + gaps > console.width and max(widths[i] for i in texts) > LEAST_TEXT:
        widths[max(texts, key=lambda i: widths[i])] -= 1
    for column, wide in zip(made.columns, widths, strict=True):
        column.width = wide
    console.print(made)


def _widths(made: Table) -> list[int]:
    return [
        max(Text.from_markup(str(cell)).cell_len for cell in (column.header, *column.cells)) for column in made.columns
    ]


def say(text: str, console: Console, *, label: str = "", indent: int = 2) -> None:
    """A sentence (markup); on a terminal that is too narrow for it its later lines are indented.

    Args:
        text: the sentence; of a word that is longer than a line the middle is left out.
        console: where to.
        label: what stands before it (markup); later lines begin below its end.
        indent: of later lines, where there is no label.
    """
    before = Text.from_markup(label)
    indent = before.cell_len or indent
    room = max(console.width - indent, LEAST_TEXT)
    lines = _fitted(Text.from_markup(text), room).wrap(console, room)
    for i, line in enumerate(lines or [Text()]):
        line.rstrip()
        console.print((Text(" " * indent) if i else before) + line, soft_wrap=True)


def say_facts(facts: Iterable[tuple[str, str]], console: Console) -> None:
    """Names, and beside them what there is to say of each (markup)."""
    rows = list(facts)
    longest = max((Text.from_markup(name).cell_len for name, _ in rows), default=0)
    for name, value in rows:
        gap = " " * (longest - Text.from_markup(name).cell_len + 2)
        say(value, console, label=f"{name}{gap}")


def _fitted(text: Text, room: int) -> Text:
    """The text without the middles of words that are longer than a line."""
    parts, end = [], 0
    for word in re.finditer(rf"\S{{{room + 1},}}", text.plain):
        head = (room - 1) // 2
        parts += [text[end : word.start() + head], Text("…")]
        end = word.end() - (room - 1 - head)
    return Text.assemble(*parts, text[end:]) if parts else text
