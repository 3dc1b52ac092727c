"""Starts the examples of examples/serving/ as their README says, and sends requests (scripts/sweep serving)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.hip.harness import ROOT
from tests.serving.engine import PATIENT_RAY, SECONDS_TO_START, end, free_port
from tests.serving.zoo import feeds_of, run, save

# Arguments, path, and whether the server speaks the Open Inference Protocol.
EXAMPLES = {
    "litserve": (("litserve_app.py", "model.onnx"), "/predict", False),
    "bentoml": (
        ("-m", "bentoml", "serve", "bentoml_app:Model", "--host", "127.0.0.1", "--port", "PORT"),
        "/predict",
        False,
    ),
    "kserve": (("kserve_app.py", "--http_port", "PORT", "--enable_grpc", "false"), "/v2/models/model/infer", True),
    # `serve run` always uses port 8000.
    "ray": (("-m", "ray.serve.scripts", "run", "ray_app:app"), "/", False),
}
NAMES = os.environ.get("GRAPHOPT_TEST_ENGINES", "").split()


@pytest.mark.engines
@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str, tmp_path: Path) -> None:
    if name not in NAMES:
        pytest.skip("GRAPHOPT_TEST_ENGINES selects another engine")
    command, path, protocol = EXAMPLES[name]
    port = "8000" if name == "ray" else str(free_port())
    source = (ROOT / "examples" / "serving" / f"{name}_app.py").read_text()
    (tmp_path / f"{name}_app.py").write_text(source.replace("port=8000", f"port={port}"))
    shutil.copy(save("resnet18", tmp_path / "small.onnx"), tmp_path / "model.onnx")
    feeds = feeds_of("resnet18", 2, 0)
    (wanted,) = run(tmp_path / "model.onnx", feeds).values()
    body: dict[str, Any] = {"x": feeds["input"].tolist()}
    if protocol:
        numbers = feeds["input"].reshape(-1).tolist()
        body = {"inputs": [{"name": "input", "shape": [2, 3, 32, 32], "datatype": "FP32", "data": numbers}]}
    server = subprocess.Popen(
        [sys.executable, *(port if word == "PORT" else word for word in command)],
        cwd=tmp_path,
        env={**os.environ, **PATIENT_RAY, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    try:
        answer = ask(server, f"http://127.0.0.1:{port}{path}", body)
    finally:
        end(server, signal.SIGINT if name == "ray" else signal.SIGTERM)
    if protocol:
        answer = np.reshape(answer["outputs"][0]["data"], answer["outputs"][0]["shape"])
    elif isinstance(answer, dict):
        answer = answer["y"]
    np.testing.assert_allclose(answer, wanted, atol=1e-5 * float(np.abs(wanted).max()))


def ask(server: subprocess.Popen[bytes], url: str, body: Any) -> Any:
    """Repeats the request until there is an answer."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    deadline = time.monotonic() + SECONDS_TO_START
    while True:
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            if error.code not in (404, 503):  # sent by a proxy before its application is ready
                raise AssertionError(error.read().decode()) from None
        except OSError:
            pass
        assert server.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.2)
