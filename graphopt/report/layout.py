"""Prints text and tables in the width of a terminal. Output to a file is never cut."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

# Least width of cut text, in characters.
LEAST_TEXT = 8


def table(columns: Sequence[str]) -> Table:
    """Creates a table without lines; a leading ">" in a column's name aligns the column to the right."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        right = column.startswith(">")
        made.add_column(column.removeprefix(">"), justify="right" if right else "left", no_wrap=True)
    return made


def width(made: Table) -> int:
    """Returns the width of a table without cut cells, in characters."""
    return sum(_widths(made)) + 2 * (len(made.columns) - 1)


def show(made: Table, console: Console) -> None:
    """Prints a table. If it is wider than the terminal, the widest texts are cut, but no numbers."""
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
    """Prints a text with rich markup; on a terminal it is wrapped, and later lines are indented.

    Args:
        text: the text; words longer than a line lose their middle.
        console: the console.
        label: text with markup before the first line; later lines are indented by its width.
        indent: indentation of later lines without a label.
    """
    before = Text.from_markup(label)
    indent = before.cell_len or indent
    columns = max(console.width - indent, LEAST_TEXT)
    lines = _fitted(Text.from_markup(text), columns).wrap(console, columns)
    for i, line in enumerate(lines or [Text()]):
        line.rstrip()
        console.print((Text(" " * indent) if i else before) + line, soft_wrap=True)


def say_facts(facts: Iterable[tuple[str, str]], console: Console) -> None:
    """Prints names and values with markup in two columns."""
    rows = list(facts)
    longest = max((Text.from_markup(name).cell_len for name, _ in rows), default=0)
    for name, value in rows:
        gap = " " * (longest - Text.from_markup(name).cell_len + 2)
        say(value, console, label=f"{name}{gap}")


def _fitted(text: Text, columns: int) -> Text:
    """Replaces the middle of words that are longer than a line by an ellipsis."""
    parts, end = [], 0
    for word in re.finditer(rf"\S{{{columns + 1},}}", text.plain):
        head = (columns - 1) // 2
        parts += [text[end : word.start() + head], Text("…")]
        end = word.end() - (columns - 1 - head)
    return Text.assemble(*parts, text[end:]) if parts else text
