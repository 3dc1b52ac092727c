"""`graphopt optimize-all --on ray`: interrupted, resumed, and with one damaged model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from graphopt.optimize_all import MANIFEST
from models import ZOO
from tests.serving.engine import PATIENT_RAY, ROOT, end, wait_for

MODELS = ("resnet18", "bert", "vit", "mobilenet_v2")


def names(out: Path) -> list[str]:
    """Returns the models named in the complete lines of the manifest."""
    manifest = out / MANIFEST
    lines = manifest.read_text().splitlines() if manifest.exists() else []
    return [json.loads(line)["name"] for line in lines if line.endswith("}")]


@pytest.mark.engines
def test_nothing_is_lost_when_killed(tmp_path: Path) -> None:
    if "ray" not in os.environ.get("GRAPHOPT_TEST_ENGINES", "").split():
        pytest.skip("GRAPHOPT_TEST_ENGINES selects another engine")
    folder, out = tmp_path / "models", tmp_path / "out"
    folder.mkdir()
    for name in MODELS:
        onnx.save(ZOO[name](small=True), folder / f"{name}.onnx")
    (folder / "damaged.onnx").write_bytes((folder / "bert.onnx").read_bytes()[:5000])
    command = [
        sys.executable,
        "-m",
        "graphopt",
        "optimize-all",
        str(folder),
        str(out),
        "--on",
        "ray",
        "--target",
        "cpu",
    ]
    environment = {**os.environ, **PATIENT_RAY, "PYTHONPATH": str(ROOT)}
    running = subprocess.Popen([*command, "--jobs", "1"], env=environment, start_new_session=True)
    try:
        assert wait_for(lambda: bool(names(out)) or running.poll() is not None, 900)
    finally:
        end(running, signal.SIGKILL)
    before = names(out)
    assert before and len(before) < len(MODELS) + 1
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "5 models: 4 optimized, 0 unchanged, 1 failed" in done.stdout
    assert sorted(names(out)) == sorted(path.name for path in folder.iterdir())  # no model was optimized twice
    failed = json.loads((out / "summary.json").read_text())["failures"]
    assert [(failure["name"], failure["exit_code"]) for failure in failed] == [("damaged.onnx", 3)]
    for name in MODELS:
        onnx.checker.check_model(str(out / f"{name}.onnx"))
