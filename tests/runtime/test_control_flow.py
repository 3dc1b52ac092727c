"""A model with more control flow than GEMMs stays on the CPU by default, with a message."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from google.protobuf.message import DecodeError
from onnx import numpy_helper

import graphopt
from graphopt.graph.messages import read_nodes
from graphopt.runtime import control_flow, session_warnings, sessions
from graphopt.runtime.discovery import CPU, DEVICE_PROVIDER

CHOICE = """<ir_version: 8, opset_import: ["": 17]> g (float[4] x, bool c) => (float[4] y) {
    y = If (c) <then_branch = t () => (float[4] a) {a = Neg (x)}, else_branch = e () => (float[4] b) {b = Abs (x)}>
}"""
WORK = """<ir_version: 8, opset_import: ["": 17]> g (float[4, 4] x, bool c) => (float[4, 4] y) {
    y = If (c) <
        then_branch = t () => (float[4, 4] a) {a = MatMul (x, x)},
        else_branch = e () => (float[4, 4] b) {b = Abs (x)}>
}"""


def test_control_flow_without_layers_runs_on_the_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sessions, "default_providers", lambda: [DEVICE_PROVIDER, CPU])
    model = onnx.parser.parse_model(CHOICE)
    onnx.save(model, tmp_path / "model.onnx")
    for source in (model, tmp_path / "model.onnx"):
        session_warnings._said.clear()
        with pytest.warns(
            UserWarning, match=r"more If, Loop and Scan nodes \(1\) than .* convolutions \(0\)"
        ) as caught:
            session = graphopt.session(source)
        assert caught[0].filename == __file__
        assert session.get_providers() == [CPU]
        (y,) = session.run(None, {"x": np.ones(4, np.float32), "c": np.array(True)})
        assert (y == -1).all()


def test_models_with_many_layers_run_on_the_device() -> None:
    assert control_flow.why_control_flow_dominates(onnx.parser.parse_model(WORK)) == ""


def test_nodes_are_read_without_weights(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(WORK)
    model.functions.add(name="f", domain="mine").node.add(op_type="Neg", input=["a"], output=["b"])
    expected = onnx.ModelProto()
    expected.graph.node.extend(model.graph.node)
    expected.functions.extend(model.functions)
    model.graph.initializer.append(numpy_helper.from_array(np.ones(100_000, np.float32), "w"))
    model.model_version = -1  # a varint of ten bytes
    serialized = model.SerializeToString()
    (tmp_path / "model.json").write_bytes(serialized)  # the file name does not matter
    assert read_nodes(serialized) == expected
    assert read_nodes(tmp_path / "model.json") == expected
    # Protobuf merges a repeated field.
    both = expected.SerializeToString() * 2
    assert read_nodes(both) == onnx.ModelProto.FromString(both)


def test_unreadable_models_are_passed_to_the_runtime(tmp_path: Path) -> None:
    serialized = onnx.parser.parse_model(WORK).SerializeToString()
    (tmp_path / "empty.onnx").touch()
    for unread in (b"no", b"\x00", b"\x0b", b"\xff" * 11, tmp_path / "nothing.onnx", tmp_path, tmp_path / "empty.onnx"):
        assert read_nodes(unread) is None
    for size in range(len(serialized)):  # truncated
        read = read_nodes(serialized[:size])
        try:
            whole = onnx.ModelProto.FromString(serialized[:size])
        except DecodeError:
            assert read is None
        else:
            assert read is not None
            assert list(read.graph.node) == list(whole.graph.node)
