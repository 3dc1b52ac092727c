"""`graphopt docs`: every page by name, without a network."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from pathlib import Path

import pytest

from graphopt.cli.docs import FOLDERS
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


def test_a_wheel_contains_the_pages_of_codes() -> None:
    """`explain NO_GAIN` failed in wheels, since it searched the pages in a folder that wheels do not have."""
    installed = {str(path) for path in importlib.metadata.files("graphopt") or ()}
    place = FOLDERS[0].relative_to(DOCS.parent)
    assert {f"{place}/refusals/{code.name}.md" for code in Code} <= installed


def test_no_such_page(graphopt_command: Callable[..., CommandResult]) -> None:
    done = graphopt_command("docs", "winograd")
    assert done.exit_code == 5
    assert "passes/winograd_conv" in done.stderr
