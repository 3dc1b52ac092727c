"""Server tests run only with the newest ONNX Runtime, which has the engines (scripts/setup cpu test,serving)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from graphopt.runtime.discovery import loads_providers
from graphopt.serving.shared import FOLDER

ENGINES = "GRAPHOPT_TEST_ENGINES"  # scripts/sweep serving sets it


@pytest.fixture(scope="package", autouse=True)
def weights(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Lets the workers share weights in a temporary folder; tests outside of this package do not see the variable."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(tmp_path_factory.mktemp("weights")))
        yield


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects server tests: all in .venv; in .venv-ort those marked `engines`, unless scripts/sweep runs them."""
    folder = f"{Path(__file__).parent}{os.sep}"
    here = [item for item in items if str(item.path).startswith(folder)]
    if loads_providers():
        here = [item for item in here if item.get_closest_marker("engines") and not os.environ.get(ENGINES)]
    config.hook.pytest_deselected(items=here)
    gone = set(here)
    items[:] = [item for item in items if item not in gone]
