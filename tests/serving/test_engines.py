"""Real servers: many concurrent clients, mixed batches, two models, two versions, a killed worker, bad requests."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serving.engine import JSON_ALONE, PATIENCE, Engine, WaitsForEverError, ask, load, missing, wait_for
from tests.serving.zoo import questions, save, serve

# The default engines; scripts/sweep serving sets the others, which are too slow for every run.
NAMES = os.environ.get("GRAPHOPT_TEST_ENGINES", "mlserver litserve").split()
# KServe has revisions of a service instead of versions.
VERSIONED = {"mlserver", "litserve", "bentoml", "ray", "triton"}
RELOADING = {"mlserver", "triton"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Path]:
    folder = tmp_path_factory.mktemp("models")
    return {
        ("resnet", 1): save("resnet18", folder / "resnet.onnx"),
        ("resnet", 2): save("resnet18", folder / "resnet2.onnx", scale=2.0),
        ("bert", 1): save("bert", folder / "bert.onnx"),
    }


@pytest.fixture(scope="module", params=NAMES)
def engine(
    request: pytest.FixtureRequest, models: dict[tuple[str, int], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    name = request.param
    if gone := missing("pytriton" if name == "triton" else name, "tritonclient"):
        pytest.skip(f"{gone} is not installed: pip install '.[serving]'")
    folder = serve(models, name, tmp_path_factory.mktemp(name))
    with Engine(name, folder) as running:
        yield running


def test_many_clients(engine: Engine, models: dict[tuple[str, int], Path]) -> None:
    """With 16 clients answers equal session.run's: both models, both versions, requests of one to three rows."""
    asked = questions("bert", "bert", [models["bert", 1]])
    asked += questions("resnet18", "resnet", [models["resnet", 2]])
    if engine.name in VERSIONED:
        asked += questions("resnet18", "resnet", [models["resnet", 1]], version="1")
        asked += questions("resnet18", "resnet", [models["resnet", 2]], version="2")
    result = load(engine, asked, binary=engine.name not in JSON_ALONE)
    assert not result.errors
    assert not result.wrong
    assert result.right == 160


def infer(engine: Engine, body: Any, model: str = "resnet") -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://{engine.url}/v2/models/{model}/infer", data, {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def tensor(name: str, shape: list[int], datatype: str = "FP32", count: int | None = None) -> dict[str, Any]:
    data = [0] * (int(np.prod(shape)) if count is None else count)
    return {"name": name, "shape": shape, "datatype": datatype, "data": data}


BAD = {
    "no inputs": {"inputs": []},
    "not JSON": b"{",
    "another input": {"inputs": [tensor("images", [1, 3, 32, 32])]},
    "another type": {"inputs": [tensor("input", [1, 3, 32, 32], "INT64")]},
    "another shape": {"inputs": [tensor("input", [1, 3, 32, 31])]},
    "too few numbers": {"inputs": [tensor("input", [1, 3, 32, 32], count=7)]},
}


def test_bad_requests_fail_alone(engine: Engine, models: dict[tuple[str, int], Path]) -> None:
    """A malformed request gets an HTTP error from 400 to 499, and all other requests get right answers."""
    seen: dict[str, tuple[int, Any]] = {}

    def mistakes() -> None:
        seen.update({name: infer(engine, body) for name, body in BAD.items()})
        seen["no such model"] = infer(engine, {"inputs": [tensor("input", [1, 3, 32, 32])]}, "vgg")

    result = load(engine, questions("resnet18", "resnet", [models["resnet", 2]]), requests=6, meanwhile=mistakes)
    assert not result.errors + result.wrong
    statuses = dict.fromkeys([*BAD, "no such model"], 4)
    if engine.name == "triton":  # Triton reports requests that it cannot parse as server errors
        statuses |= {"not JSON": 5, "too few numbers": 5}
    assert {name: status // 100 for name, (status, _) in seen.items()} == statuses, seen
    assert "[1,3,32,31]" in str(seen["another shape"][1]).replace(" ", "")


def test_an_absent_model_is_not_ready(engine: Engine) -> None:
    """Clients wait for models before they send requests: an absent model must be reported as not ready."""
    client = engine.client()
    assert client.is_server_ready()
    assert [client.is_model_ready(name) for name in ("resnet", "vgg")] == [True, False]
    if engine.name in VERSIONED:
        assert [client.is_model_ready("resnet", version) for version in ("1", "7")] == [True, False]


def kill_worker(engine: Engine, models: dict[tuple[str, int], Path], patience: float = PATIENCE) -> None:
    before = engine.workers()
    victim = next(pid for pid in before if pid != engine.process.pid)
    asked = questions("resnet18", "resnet", [models["resnet", 2]])
    if engine.name == "triton":  # Triton's workers run one model each
        asked += questions("resnet18", "resnet", [models["resnet", 1]], version="1")
        asked += questions("bert", "bert", [models["bert", 1]])
    result = load(
        engine,
        asked,
        requests=12,
        meanwhile=lambda: os.kill(victim, signal.SIGKILL),
        attempts=200,
        patience=patience,
    )
    assert not result.wrong
    assert result.right == 16 * 12
    if engine.name == "triton":  # Triton restarts an instance only when it is told to load the model
        for name in ("resnet", "bert"):
            engine.client().load_model(name)
    # Triton keeps the other instance of the killed one's model until that instance ends.
    assert wait_for(lambda: victim not in engine.workers() and len(engine.workers()) >= len(before))


def test_killed_worker(engine: Engine, models: dict[tuple[str, int], Path]) -> None:
    """Requests of a killed worker fail or are repeated; no answer is wrong, and a new worker starts."""
    if engine.name == "kserve":
        pytest.skip("a KServe predictor is one process, which Kubernetes starts again")
    if engine.name != "mlserver":
        kill_worker(engine, models)
        return
    # MLServer's processes share queues; a process that dies while it holds a queue's lock blocks all others forever.
    for last in (False, False, True):
        with Engine(engine.name, engine.folder) as own:
            try:
                kill_worker(own, models, patience=70)
                return
            except WaitsForEverError:
                if last:
                    raise


def test_model_replaced_under_load(engine: Engine, models: dict[tuple[str, int], Path], tmp_path: Path) -> None:
    """MLServer and Triton reload a model on request: each answer is the old or the new model's, the last the new's."""
    if engine.name not in RELOADING:
        pytest.skip("no engine but MLServer and Triton loads a model again")
    new = save("resnet18", tmp_path / "new.onnx", scale=-3.0)

    def replace() -> None:
        serve({("resnet", 2): new}, engine.name, engine.folder)
        engine.client().load_model("resnet")

    asked = questions("resnet18", "resnet", [models["resnet", 2], new], version="2")
    result = load(engine, asked, requests=12, meanwhile=replace)
    assert not result.errors + result.wrong
    (only_new,) = questions("resnet18", "resnet", [new], count=1, version="2")
    assert not only_new.difference(ask(engine.client(), "resnet", only_new.feeds, "2"))


@pytest.mark.engines
def test_model_replaced_worker_by_worker(engine: Engine, models: dict[tuple[str, int], Path], tmp_path: Path) -> None:
    """Workers are ended one after the other after the file was replaced, with engines that restart workers."""
    if engine.name in {*RELOADING, "kserve"}:
        pytest.skip("MLServer and Triton load a model again, and a KServe predictor is one process")
    new = save("resnet18", tmp_path / "new.onnx", scale=-3.0)

    def replace() -> None:
        serve({("resnet", 2): new}, engine.name, engine.folder)
        before = [pid for pid in engine.workers() if pid != engine.process.pid]

        def back(victim: int) -> bool:
            now = [pid for pid in engine.workers() if pid != engine.process.pid]
            return victim not in now and len(now) >= len(before)

        for victim in before:
            with suppress(ProcessLookupError):  # the engine has already ended it
                os.kill(victim, signal.SIGKILL)
            assert wait_for(partial(back, victim), 120)

    asked = questions("resnet18", "resnet", [models["resnet", 2], new], version="2")
    result = load(engine, asked, requests=40, meanwhile=replace, attempts=200, patience=600)
    assert not result.wrong
    assert result.right == 16 * 40
    (only_new,) = questions("resnet18", "resnet", [new], count=1, version="2")
    for _ in range(20):  # each request may reach a different worker
        assert not only_new.difference(ask(engine.client(), "resnet", only_new.feeds, "2"))
