"""`graphopt docs`: every page by its name, without a network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from graphopt.remarks import Code
from tests.conftest import CommandResult

pytestmark = pytest.mark.once
DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_pages(graphopt_command: Callable[..., CommandResult]) -> None:
    listed = graphopt_command("docs", "--list").stdout.split()
    assert listed == sorted(path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md"))
    for argument, page in {
        "": "index",
        "serving": "serving",
        "no_gain": "refusals/NO_GAIN",
        "usage.md": "usage",
    }.items():
        shown = graphopt_command("docs", *filter(None, [argument]))
        assert shown.stdout == (DOCS / f"{page}.md").read_text()
    assert {f"refusals/{code.name}" for code in Code} <= set(listed)


def test_no_such_page(graphopt_command: Callable[..., CommandResult]) -> None:
    done = graphopt_command("docs", "winograd")
    assert done.exit_code == 5
    assert "passes/winograd_conv" in done.stderr
