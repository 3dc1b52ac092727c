"""The page of each refusal code: docs/refusals in the source tree, a folder of the package in a wheel."""

from __future__ import annotations

from pathlib import Path

from graphopt.remarks import Code

_PLACES = (Path(__file__).parent / "refusals", Path(__file__).parents[2] / "docs" / "refusals")


def page(code: Code) -> str:
    """The page in Markdown.

    Raises:
        FileNotFoundError: the package is incomplete.
    """
    place = next((p for p in _PLACES if (p / f"{code.name}.md").is_file()), _PLACES[0])
    return (place / f"{code.name}.md").read_text(encoding="utf-8")
