"""`graphopt docs`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import graphopt
from graphopt.cli import screen
from graphopt.cli.root import Command, app
from graphopt.errors import OptionError, did_you_mean

# The folder of pages in a wheel, and in the source tree.
FOLDERS = (Path(graphopt.__file__).parent / "docs", Path(graphopt.__file__).parents[1] / "docs")


def pages() -> dict[str, Path]:
    """Returns name -> file of all pages: "usage", "passes/winograd_conv", "refusals/NO_GAIN"."""
    folder = next((f for f in FOLDERS if (f / "index.md").is_file()), FOLDERS[0])
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.md"))}


def page_names() -> list[str]:
    """Returns the completions of PAGE."""
    return [*pages()]


@app.command(cls=Command, name="docs")
def docs(
    page: Annotated[
        str, typer.Argument(metavar="PAGE", help="usage, serving, NO_GAIN, ...", autocompletion=page_names)
    ] = "index",
    listed: Annotated[bool, typer.Option("--list", help="Print the names of all pages.")] = False,
) -> None:
    """Show a page of the documentation offline."""
    known = pages()
    if listed:
        print("\n".join(known))
        return
    wanted = page.removesuffix(".md").lower()
    # Pages in different folders may have equal names; a full name takes precedence.
    found = [path for name, path in known.items() if wanted == name.lower()]
    found += [path for name, path in known.items() if wanted == name.rpartition("/")[2].lower()]
    if not found:
        raise OptionError(f"there is no page '{page}'{did_you_mean(wanted, known)}; --list prints all names")
    show(found[0])


def show(page: Path) -> None:
    """Shows a page in a pager on a terminal; otherwise prints its Markdown."""
    text = page.read_text(encoding="utf-8")
    out = screen.out()
    if not out.is_terminal:
        print(text, end="")
        return
    from rich.markdown import Markdown

    with out.pager(styles=True):
        out.print(Markdown(text))
