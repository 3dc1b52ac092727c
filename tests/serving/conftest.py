"""Servers run on the newest runtime only: the engines are installed there (scripts/setup cpu test,serving)."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphopt.runtime.sessions import loads_providers


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What runs in .venv-ort need not run in .venv."""
    if loads_providers():
        return
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    config.hook.pytest_deselected(items=here)
    items[:] = [item for item in items if item not in here]
