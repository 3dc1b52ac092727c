"""GRAPHOPT_SYNC and roctx ranges around standard operators; tests/runtime/test_gpu_in_sessions.py tests our own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from graphopt.runtime.discovery import library_path
from tests.hip.harness import build_for_tests


@pytest.fixture(scope="module")
def stand_ins() -> Path:
    return build_for_tests("hip_on_cpu_32", "stand_in_roctx", "stand_in_late_error")


def run(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a Relu named `before` and a LayerNormalization named `after` in a separate process."""
    script = textwrap.dedent("""
        import sys
        import numpy as np
        import onnxruntime as ort
        ort.register_execution_provider_library("graphopt", sys.argv[1])
        options = ort.SessionOptions()
        devices = [d for d in ort.get_ep_devices() if d.ep_name == "GraphoptExecutionProvider"]
        options.add_provider_for_devices(devices[:1], {"min_nodes": "2"})
        session = ort.InferenceSession(sys.argv[2], options)
        session.run(None, {"x": np.ones((4, 6), np.float32), "v": np.ones(6, np.float32)})
    """)
    graph = helper.make_graph(
        [
            helper.make_node("Relu", ["x"], ["h"], "before"),
            helper.make_node("LayerNormalization", ["h", "v", "v"], ["y"], "after"),
        ],
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [4, 6]), ("v", [6]))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 6])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    command = [sys.executable, "-c", script, str(library_path()), str(folder / "model.onnx")]
    return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)


def test_sync_pins_a_late_error_to_its_node(stand_ins: Path, tmp_path: Path, worker: ProcessPoolExecutor) -> None:
    late_error = str(stand_ins / "libstand_in_late_error.so")
    done = run(tmp_path, GRAPHOPT_HOST_KERNELS=late_error, GRAPHOPT_SYNC="1")
    assert done.returncode != 0
    assert "LayerNormalization (float) node 'after', inputs float[4,6]" in done.stderr, done.stderr
    assert "'before'" not in done.stderr


def test_nodes_are_ranges(stand_ins: Path, tmp_path: Path, worker: ProcessPoolExecutor) -> None:
    kernels = str(stand_ins / "libhip_on_cpu_32.so")
    done = run(tmp_path, GRAPHOPT_HOST_KERNELS=kernels, LD_LIBRARY_PATH=str(stand_ins))
    assert done.returncode == 0, done.stderr
    ranges = [line for line in done.stderr.splitlines() if line.startswith("range")]
    assert [r for r in ranges if "after" in r or "before" in r] == ["range before", "range after"]
    assert ranges.count("range ends") * 2 == len(ranges)
