"""The GPU part of the library in real sessions: kernels compiled for the CPU replace a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphopt.ops import DOMAIN
from graphopt.runtime.discovery import library_path
from tests.hip import fused_attention_cases, row_norm_cases, scale_shift_cases, winograd_conv_cases
from tests.hip.case import Case, compare
from tests.hip.harness import build_for_tests

# op, its attributes, a case with inputs and a float64 reference, and indices of constant inputs
NODES: tuple[tuple[str, Mapping[str, Any], Case, tuple[int, ...]], ...] = (
    (
        "ScaleShiftAddRelu",
        {},
        scale_shift_cases.case("scale_shift", np.float32, 2, 5, (7, 9), "Relu", True),
        (1, 2),
    ),
    (
        "WinogradConvAddSilu",
        {"pads": [1, 1, 1, 1]},
        winograd_conv_cases.case("constant", np.float32, (2, 5, 9, 11, 7), (1, 1, 1, 1), "Silu", True),
        (1, 2),
    ),
    (
        "WinogradConv",
        {"pads": [0, 1, 1, 0]},
        winograd_conv_cases.case("weights_vary", np.float16, (1, 3, 9, 11, 7), (0, 1, 1, 0), "", False),
        (),
    ),
    (
        "FusedAttentionBiasMaskCausalGqaGuard",
        {
            "scale": 0.25,
            "q_perm": [0, 2, 1, 3],
            "k_perm": [0, 2, 3, 1],
            "v_perm": [0, 2, 1, 3],
            "o_perm": [0, 2, 1, 3],
            "mask_value": -1e4,
        },
        fused_attention_cases.case(
            "attention",
            np.float32,
            fused_attention_cases.Problem(
                9,
                21,
                16,
                B=2,
                heads=4,
                kv_heads=2,
                rows_first=True,
                bias="HST",
                mask="T",
                mask_value=-1e4,
                causal=True,
                guard=True,
                scale=0.25,
            ),
        ),
        (),
    ),
    (
        "FusedLayerNormAddSum",
        {"epsilon": 1e-3},
        row_norm_cases.case("sum", np.float32, 3, 64, False, True, True),
        (2, 3),
    ),
)


@pytest.fixture(scope="module")
def kernels() -> Path:
    folder = build_for_tests("hip_on_cpu_32")
    return folder / "libhip_on_cpu_32.so"


def model(op: str, attributes: Mapping[str, Any], case: Case, constants: tuple[int, ...]) -> bytes:
    inputs = list(case.inputs)
    if op.startswith("ScaleShift"):
        axes = (inputs[0].ndim - 2) * (1,)
        inputs[1], inputs[2] = (v.reshape(v.shape + axes) for v in inputs[1:3])
    element = helper.np_dtype_to_tensor_dtype(case.dtypes[0])
    names, outputs = [f"x{i}" for i in range(len(inputs))], [f"y{i}" for i in range(len(case.expected))]
    graph = helper.make_graph(
        [helper.make_node(op, names, outputs, "the_node", domain=DOMAIN, **attributes)],
        "g",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), [None] * x.ndim)
            for i, (n, x) in enumerate(zip(names, inputs))
            if i not in constants
        ],
        [helper.make_tensor_value_info(n, element, None) for n in outputs],
        [numpy_helper.from_array(inputs[i], names[i]) for i in constants],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    serialized: bytes = helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()
    return serialized


def run_twice(
    folder: Path, serialized: bytes, feeds: Mapping[str, Any], kernels: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs a model in a separate process, since the library chooses its device once; writes outputs.npz."""
    script = textwrap.dedent("""
        import sys
        import numpy as np
        import onnxruntime as ort
        options = ort.SessionOptions()
        options.register_custom_ops_library(sys.argv[1])
        session = ort.InferenceSession(sys.argv[2], options, providers=["CPUExecutionProvider"])
        feeds = dict(np.load(sys.argv[3]))
        for _ in range(2):
            outputs = session.run(None, feeds)
        np.savez(sys.argv[4], *outputs)
    """)
    (folder / "model.onnx").write_bytes(serialized)
    np.savez(folder / "feeds.npz", **feeds)
    command = [sys.executable, "-c", script, str(library_path())]
    command += [str(folder / name) for name in ("model.onnx", "feeds.npz", "outputs.npz")]
    environment = {**os.environ, "GRAPHOPT_HOST_KERNELS": str(kernels), **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(("op", "attributes", "case", "constants"), NODES, ids=[n[2].name for n in NODES])
def test_node_through_gpu_path(
    op: str, attributes: Mapping[str, Any], case: Case, constants: tuple[int, ...], kernels: Path, tmp_path: Path
) -> None:
    feeds: dict[str, Any] = {f"x{i}": x for i, x in enumerate(case.inputs) if i not in constants}
    done = run_twice(tmp_path, model(op, attributes, case, constants), feeds, kernels, GRAPHOPT_LOG="1")
    assert done.returncode == 0, done.stderr
    assert "the_node" in done.stderr and "cpu32" in done.stderr, done.stderr
    got = list(np.load(tmp_path / "outputs.npz").values())
    for actual, expected in zip(got, case.outputs(), strict=True):
        assert not compare(actual, expected, case.tolerance)


def test_missing_kernels_give_one_warning_and_run_on_the_cpu() -> None:
    script = textwrap.dedent("""
        import sys
        import onnxruntime as ort
        for _ in range(2):
            ort.SessionOptions().register_custom_ops_library(sys.argv[1])
    """)
    environment = {**os.environ, "GRAPHOPT_HOST_KERNELS": "/nonexistent.so"}
    command = [sys.executable, "-c", script, str(library_path())]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr.count("graphopt: no GPU kernels") == 1


def two_nodes() -> bytes:
    """Returns a ScaleShift called before and a FusedLayerNorm called after."""
    vector = np.ones(6, np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("ScaleShift", ["x", "v1", "v1"], ["h"], "before", domain=DOMAIN),
            helper.make_node("FusedLayerNorm", ["h", "v", "v"], ["y"], "after", domain=DOMAIN, epsilon=1e-5),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 6, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(vector, "v"), numpy_helper.from_array(vector.reshape(6, 1), "v1")],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    serialized: bytes = helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()
    return serialized


FEEDS = {"x": np.arange(72, dtype=np.float32).reshape(2, 6, 6)}


@pytest.fixture(scope="module")
def stand_ins() -> Path:
    return build_for_tests("stand_in_roctx", "stand_in_late_error")


def test_sync_pins_a_late_error_to_its_node(stand_ins: Path, tmp_path: Path) -> None:
    late_error = stand_ins / "libstand_in_late_error.so"
    assert run_twice(tmp_path, two_nodes(), FEEDS, late_error).returncode == 0
    done = run_twice(tmp_path, two_nodes(), FEEDS, late_error, GRAPHOPT_SYNC="1")
    assert done.returncode != 0
    assert "FusedLayerNorm (float) node 'after', inputs float[2,6,6]" in done.stderr, done.stderr
    assert "'before'" not in done.stderr


def test_nodes_are_marked_as_ranges_with_a_marker_library(kernels: Path, stand_ins: Path, tmp_path: Path) -> None:
    done = run_twice(tmp_path, two_nodes(), FEEDS, kernels, LD_LIBRARY_PATH=str(stand_ins))
    assert done.returncode == 0, done.stderr
    ranges = [line for line in done.stderr.splitlines() if line.startswith("range")]
    assert ranges == ["range before", "range ends", "range after", "range ends"] * 2
    assert "range" not in run_twice(tmp_path, two_nodes(), FEEDS, kernels).stderr
