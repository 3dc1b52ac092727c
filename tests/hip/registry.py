"""All cases; those of an operator are in NAME_cases.py."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from tests.hip.case import Case

MODULES = [import_module(f"tests.hip.{path.stem}") for path in sorted(Path(__file__).parent.glob("*_cases.py"))]


def all_cases() -> Iterator[Case]:
    for module in MODULES:
        yield from module.cases()
