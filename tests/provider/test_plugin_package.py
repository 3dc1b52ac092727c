"""The package follows ONNX Runtime's guidance for provider packages; programs need only three of its functions."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from packaging.requirements import Requirement

import graphopt
from models import ZOO
from tests.hip.case import signed
from tests.provider.worker import Array

PROGRAM = """
import sys
import graphopt
library, names = graphopt.get_library_path(), graphopt.get_ep_names()
assert graphopt.get_ep_name() == names[0]
assert not any(module.startswith("onnxruntime") for module in sys.modules)

import numpy
import onnxruntime
model, feeds, results, how = sys.argv[1:]
options = onnxruntime.SessionOptions()
options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
options.register_custom_ops_library(library)
onnxruntime.register_execution_provider_library("any name", library)
devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name in names]
assert devices
if how == "devices":
    options.add_provider_for_devices(devices[:1], {"min_nodes": "2"})
else:
    options.add_session_config_entry("ep.graphoptexecutionprovider.min_nodes", "2")
    options.set_provider_selection_policy_delegate(lambda all_devices, model, runtime, most: devices[:1])
session = onnxruntime.InferenceSession(model, options)
outputs = session.run(None, dict(numpy.load(feeds)))
numpy.savez(results, *outputs)
print(",".join({part.ep_name for part in session.get_provider_graph_assignment_info()}))
del session
onnxruntime.unregister_execution_provider_library("any name")
"""


@pytest.mark.once
def test_no_dependency_on_a_runtime() -> None:
    required = [Requirement(line) for line in importlib.metadata.requires("graphopt") or []]
    always = {r.name for r in required if r.marker is None or r.marker.evaluate({"extra": ""})}
    assert "onnx" in always
    assert not any(name.startswith("onnxruntime") for name in always)


@pytest.mark.parametrize("how", ["devices", "policy"])
def test_a_program_of_stock_onnxruntime(how: str, kernels: str, tmp_path: Path) -> None:
    model = ZOO["resnet18"](small=True)
    feeds = {model.graph.input[0].name: _like_the_input(model)}
    optimized, _ = graphopt.optimize(model, target="cuda")
    onnx.save(optimized, tmp_path / "model.onnx")
    np.savez(tmp_path / "feeds.npz", allow_pickle=False, **feeds)
    arguments = [str(tmp_path / name) for name in ("model.onnx", "feeds.npz", "results.npz")]
    environment = os.environ | {"GRAPHOPT_HOST_KERNELS": kernels}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments, how], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == graphopt.get_ep_name()
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    with np.load(tmp_path / "results.npz") as results:
        for got, wanted in zip(results.values(), session.run(None, feeds), strict=True):
            np.testing.assert_allclose(got, wanted, atol=5e-5 * float(np.abs(wanted).max()))


def _like_the_input(model: onnx.ModelProto) -> Array:
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    return signed(np.random.default_rng(0), *shape)
