"""Random graphs with all rewrites applied, on our provider: claimed nodes must give the original's values."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

import onnx
import pytest

from tests.fuzz.check import check
from tests.provider.worker import new_session
from tests.rewriting import Array

GRAPHS, PER_TEST = 40, 20


def _on_device(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    outputs: list[Array] = new_session(model.SerializeToString(), {"min_nodes": "1"}).run(None, feeds)
    return outputs


def check_all(first: int, graphs: int) -> int:
    return sum(check(seed, _on_device) for seed in range(first, first + graphs))


@pytest.mark.parametrize("first", range(1_000_000, 1_000_000 + GRAPHS, PER_TEST))
def test_random_graphs(first: int, worker: ProcessPoolExecutor) -> None:
    assert worker.submit(check_all, first, PER_TEST).result() >= PER_TEST // 2
