"""Bad input gives one clear line on stderr, a documented exit code, and no output file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphopt.errors import runtime_message
from graphopt.targets.target import parse_target

Command = Callable[..., Any]


@pytest.mark.parametrize(
    ("runtime", "ours"),
    [
        (
            "[ONNXRuntimeError] : 1 : FAIL : Load model from /tmp/a b.onnx failed:"
            "/onnxruntime_src/onnxruntime/core/graph/model.cc:256 onnxruntime::Model::Model(onnx::ModelProto&&, "
            "const onnxruntime::PathString&, const onnxruntime::logging::Logger&) "
            "Unsupported model IR version: 14, max supported IR version: 13",
            "Unsupported model IR version: 14, max supported IR version: 13",
        ),
        (
            "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Unsqueeze node. Name:'up' "
            "Status Message: /onnxruntime_src/onnxruntime/core/providers/common.h:31 int64_t "
            "onnxruntime::HandleNegativeAxis(int64_t, int64_t) IsAxisInRange(axis, "
            "tensor_rank) was false. axis 87 is not in valid range [-2,1]",
            "Unsqueeze 'up': axis 87 is not in valid range [-2,1]",
        ),
        (
            "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Resize node. Name:'' "
            "Status Message: upsamplebase.h:579 ScalesValidation 'Cubic' mode only supports: * 2-D inputs",
            "Resize: 'Cubic' mode only supports: * 2-D inputs",
        ),
        (
            "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running Add node. "
            "Name:'a' Status Message: /onnxruntime_src/onnxruntime/core/framework/bfc_arena.cc:376 void* "
            "onnxruntime::BFCArena::AllocateRawInternal(size_t, bool, onnxruntime::Stream*) Failed to allocate memory "
            "for requested buffer of size 8",
            "Add 'a': Failed to allocate memory for requested buffer of size 8",
        ),
        (
            "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Got invalid dimensions for input: x for the following "
            "indices index: 0 Got: 7 Expected: 0 Please fix either the inputs/outputs or the model.",
            "Got invalid dimensions for input: x for the following indices index: 0 Got: 7 Expected: 0",
        ),
        (
            "Required inputs (['x']) are missing from input feed ([]).",
            "Required inputs (['x']) are missing from input feed ([]).",
        ),
    ],
)
def test_runtime_messages_are_shortened(runtime: str, ours: str) -> None:
    """Messages of ONNX Runtime 1.22 and 1.31 are shown without status, repeated file name and source location."""
    assert runtime_message(RuntimeError(runtime)) == ours


def relu_model() -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], name="relu")], "g", [x], [y])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def external_model(folder: Path, location: str = "w.data", data_bytes: int = 4096, length: int | None = None) -> Path:
    """Writes Y = x + w with the 1024 floats of w in a data file, and returns its path."""
    (folder / "w.data").write_bytes(np.arange(data_bytes // 4, dtype=np.float32).tobytes())
    w = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1024], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, "offset": "0", "length": str(length or 4096)}.items():
        w.external_data.add(key=key, value=value)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1024])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1024])
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], initializer=[w])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def refused(command: Command, folder: Path, path: Path, code: int, words: str, *options: str) -> None:
    out = folder / "out.onnx"
    before = sorted(os.listdir(folder))
    result = command("optimize", path, out, *options)
    assert result.exit_code == code, result.stderr
    assert result.stderr.startswith("graphopt: ")
    assert len(result.stderr.strip().splitlines()) == 1
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert sorted(os.listdir(folder)) == before


def test_missing_file(graphopt_command: Command, tmp_path: Path) -> None:
    refused(graphopt_command, tmp_path, tmp_path / "none.onnx", 3, "no such file")


def test_folder_as_input(graphopt_command: Command, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    refused(graphopt_command, tmp_path, tmp_path / "folder", 3, "a folder: pass an .onnx file")


@pytest.mark.parametrize("content", [b"", b"hello, world", b"\x00" * 100, bytes(range(256))])
def test_not_onnx(graphopt_command: Command, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "in.onnx"
    path.write_bytes(content)
    refused(graphopt_command, tmp_path, path, 3, "not an ONNX model")


def test_truncated(graphopt_command: Command, tmp_path: Path) -> None:
    path = tmp_path / "in.onnx"
    data = relu_model().SerializeToString()
    path.write_bytes(data[: len(data) - 20])
    refused(graphopt_command, tmp_path, path, 3, "not an ONNX model")


def test_dangling_name(graphopt_command: Command, tmp_path: Path) -> None:
    model = relu_model()
    model.graph.node[0].input[0] = "nowhere"
    path = tmp_path / "in.onnx"
    path.write_bytes(model.SerializeToString())
    refused(graphopt_command, tmp_path, path, 3, "nowhere")


def test_cycle(graphopt_command: Command, tmp_path: Path) -> None:
    model = relu_model()
    model.graph.node.extend(
        [helper.make_node("Add", ["a", "x"], ["b"]), helper.make_node("Relu", ["b"], ["a"], name="back")]
    )
    path = tmp_path / "in.onnx"
    path.write_bytes(model.SerializeToString())
    refused(graphopt_command, tmp_path, path, 3, "cycle")


def test_duplicate_output(graphopt_command: Command, tmp_path: Path) -> None:
    model = relu_model()
    model.graph.node.extend([helper.make_node("Relu", ["x"], ["y"], name="again")])
    path = tmp_path / "in.onnx"
    path.write_bytes(model.SerializeToString())
    refused(graphopt_command, tmp_path, path, 3, "y")


def test_unknown_pass(graphopt_command: Command, tmp_path: Path) -> None:
    path = tmp_path / "in.onnx"
    path.write_bytes(relu_model().SerializeToString())
    refused(graphopt_command, tmp_path, path, 5, "unknown pass 'nonsense'", "--only", "nonsense")


@pytest.mark.parametrize("target", ["tpu", "rocm:", "rocm:gfx1", "rocm:sm_90", "cuda:gfx942", "cpu:avx2"])
def test_unknown_target(graphopt_command: Command, tmp_path: Path, target: str) -> None:
    path = tmp_path / "in.onnx"
    path.write_bytes(relu_model().SerializeToString())
    refused(graphopt_command, tmp_path, path, 5, f"unknown target '{target}'", "--target", target)


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942:sramecc+:xnack-", "gfx10-3-generic", "gfx11-generic"])
def test_names_of_architectures(arch: str) -> None:
    assert str(parse_target(f"rocm:{arch}")) == f"rocm:{arch}"


@pytest.mark.parametrize(
    ("option", "words"),
    [("x:2x4", "does not fit"), ("x:2x3x1", "does not fit"), ("z:2x3", "no input 'z'"), ("x=2", "not of the form")],
)
def test_wrong_input_shape(graphopt_command: Command, tmp_path: Path, option: str, words: str) -> None:
    path = tmp_path / "in.onnx"
    path.write_bytes(relu_model().SerializeToString())
    refused(graphopt_command, tmp_path, path, 5, words, "--input-shape", option)


def test_missing_external_data(graphopt_command: Command, tmp_path: Path) -> None:
    path = external_model(tmp_path)
    (tmp_path / "w.data").unlink()
    refused(graphopt_command, tmp_path, path, 3, "is missing")


@pytest.mark.parametrize("location", ["../w.data", "/etc/passwd", "a/../../w.data"])
def test_external_data_outside(graphopt_command: Command, tmp_path: Path, location: str) -> None:
    refused(graphopt_command, tmp_path, external_model(tmp_path, location), 3, "outside the model's folder")


def test_external_data_symlink_outside(graphopt_command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(b"\0" * 4096)
    path = external_model(folder, "link.data")
    (folder / "link.data").symlink_to(tmp_path / "secret")
    refused(graphopt_command, folder, path, 3, "outside the model's folder")


def test_external_data_too_short(graphopt_command: Command, tmp_path: Path) -> None:
    refused(graphopt_command, tmp_path, external_model(tmp_path, data_bytes=2048), 3, "ends beyond")


def test_external_data_wrong_length(graphopt_command: Command, tmp_path: Path) -> None:
    refused(graphopt_command, tmp_path, external_model(tmp_path, length=2048), 3, "need 4096")


def test_initializer_bytes_do_not_match(graphopt_command: Command, tmp_path: Path) -> None:
    model = relu_model()
    w = numpy_helper.from_array(np.ones(3, np.float32), "w")
    w.raw_data = b"\0" * 5
    model.graph.initializer.append(w)
    model.graph.node[0].op_type = "Add"
    model.graph.node[0].input.append("w")
    path = tmp_path / "in.onnx"
    path.write_bytes(model.SerializeToString())
    refused(graphopt_command, tmp_path, path, 3, "'w'")


@pytest.mark.parametrize(
    ("indices", "dims", "words"),
    [
        ([7], [3], "out of bounds"),
        ([-1], [3], "an index is negative"),
        ([0, 1], [3], "cannot be read"),
        ([0], [1 << 40], "does not fit"),
    ],
)
def test_an_invalid_sparse_initializer_is_refused(
    graphopt_command: Command, tmp_path: Path, indices: list[int], dims: list[int], words: str
) -> None:
    model = relu_model()
    sparse = model.graph.sparse_initializer.add(dims=dims)
    sparse.values.CopyFrom(numpy_helper.from_array(np.ones(3, np.float32), "w"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.array(indices * 3, np.int64)[: 2 * len(indices) + 1], "i"))
    path = tmp_path / "in.onnx"
    path.write_bytes(model.SerializeToString())
    refused(graphopt_command, tmp_path, path, 3, words)


def test_unsupported_fields_are_refused(graphopt_command: Command, tmp_path: Path) -> None:
    """Models with fields that onnx_ir would drop are refused."""
    path = tmp_path / "in.onnx"
    model = relu_model()
    model.training_info.add().algorithm.name = "sgd"
    path.write_bytes(model.SerializeToString())
    refused(graphopt_command, tmp_path, path, 3, "training_info")


def test_complex_constants_are_kept(graphopt_command: Command, tmp_path: Path) -> None:
    """ONNX allows no complex tensors in these operators, but passes look for their scalar operands."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.COMPLEX64, [2, 2]) for name in "xy")
    constants = [
        numpy_helper.from_array(np.eye(2, dtype=np.complex64), "w"),
        numpy_helper.from_array(np.array(2 + 1j, np.complex64), "c"),
    ]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Mul", ["m", "c"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    opsets = [helper.make_opsetid("", 17)]
    (tmp_path / "in.onnx").write_bytes(helper.make_model(graph, ir_version=8, opset_imports=opsets).SerializeToString())
    result = graphopt_command("optimize", tmp_path / "in.onnx", tmp_path / "out.onnx")
    assert result.exit_code == 0, result.stderr
    assert [n.op_type for n in onnx.load(tmp_path / "out.onnx").graph.node] == ["MatMul", "Mul"]


def test_out_is_in(graphopt_command: Command, tmp_path: Path) -> None:
    path = tmp_path / "in.onnx"
    data = relu_model().SerializeToString()
    path.write_bytes(data)
    result = graphopt_command("optimize", path, path)
    assert result.exit_code == 4
    assert "--in-place" in result.stderr
    assert path.read_bytes() == data


def test_out_folder_missing(graphopt_command: Command, tmp_path: Path) -> None:
    path = tmp_path / "in.onnx"
    path.write_bytes(relu_model().SerializeToString())
    result = graphopt_command("optimize", path, tmp_path / "no" / "out.onnx")
    assert result.exit_code == 4
    assert "does not exist" in result.stderr


def test_newer_opset_passes_through(graphopt_command: Command, tmp_path: Path) -> None:
    model = relu_model()
    model.opset_import[0].version = 99
    path, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    path.write_bytes(model.SerializeToString())
    result = graphopt_command("optimize", path, out)
    assert result.exit_code == 0
    assert "newer than any" in result.stdout
    assert out.read_bytes() == path.read_bytes()


def test_an_unchanged_model_is_written_byte_for_byte(graphopt_command: Command, tmp_path: Path) -> None:
    path, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    path.write_bytes(relu_model().SerializeToString())
    result = graphopt_command("optimize", path, out)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("unchanged: no pass finds anything to rewrite\n")
    assert out.read_bytes() == path.read_bytes()


def test_control_characters_are_escaped(graphopt_command: Command, tmp_path: Path) -> None:
    model = relu_model()
    model.graph.node[0].input[0] = "bad\x1b[31m\nname"
    path = tmp_path / "in.onnx"
    path.write_bytes(model.SerializeToString())
    refused(graphopt_command, tmp_path, path, 3, "bad\\x1b[31m\\nname")
