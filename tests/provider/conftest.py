"""The process that has the provider."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.provider.worker import start_worker, supported


@pytest.fixture(scope="session")
def worker() -> Iterator[ProcessPoolExecutor]:
    if not supported():
        pytest.skip("this runtime loads no providers")
    with start_worker() as executor:
        yield executor
