"""Fixtures for the process that has registered the provider."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

from graphopt.runtime.discovery import loads_providers
from tests.provider.stand_in import StandIn, build_stand_ins
from tests.provider.worker import kernels_on_the_cpu, start_worker


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects tests that need the other kind of runtime: ONNX Runtime loads providers from 1.24 on."""
    others = {"old_runtime"} if loads_providers() else {"worker", "gpu", "kernels"}
    needing = [item for item in items if others & {*getattr(item, "fixturenames", ())}]
    config.hook.pytest_deselected(items=needing)
    gone = set(needing)
    items[:] = [item for item in items if item not in gone]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Builds the stand-ins before the first test, since compiling would exceed its time limit."""
    named = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    if "stand_in" in named and not session.config.option.collectonly:
        build_stand_ins()


@pytest.fixture(scope="session")
def worker() -> Iterator[ProcessPoolExecutor]:
    with start_worker() as executor:
        yield executor


@pytest.fixture(scope="session")
def kernels() -> str:
    return kernels_on_the_cpu()


@pytest.fixture(scope="session")
def stand_in() -> StandIn:
    return build_stand_ins()


@pytest.fixture(scope="session")
def gpu(stand_in: StandIn) -> StandIn:
    """The stand-in, for tests that need a runtime that loads providers."""
    return stand_in


@pytest.fixture(scope="session")
def old_runtime(stand_in: StandIn) -> StandIn:
    """The stand-in, for tests that need a runtime without support for providers."""
    return stand_in
