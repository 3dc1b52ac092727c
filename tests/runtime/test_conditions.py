"""A small model with more conditions than products stays on the CPU by default, and that is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import graphopt
from graphopt.graph.messages import read_if_small
from graphopt.runtime import conditions, sessions

CHOICE = """<ir_version: 8, opset_import: ["": 17]> g (float[4] x, bool c) => (float[4] y) {
    y = If (c) <then_branch = t () => (float[4] a) {a = Neg (x)}, else_branch = e () => (float[4] b) {b = Abs (x)}>
}"""
WORK = """<ir_version: 8, opset_import: ["": 17]> g (float[4, 4] x, bool c) => (float[4, 4] y) {
    y = If (c) <
        then_branch = t () => (float[4, 4] a) {a = MatMul (x, x)},
        else_branch = e () => (float[4, 4] b) {b = Abs (x)}>
}"""


def test_conditions_without_work_stay_on_the_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sessions, "default_providers", lambda: [sessions.DEVICE_PROVIDER, sessions.CPU])
    model = onnx.parser.parse_model(CHOICE)
    onnx.save(model, tmp_path / "model.onnx")
    for source in (model, tmp_path / "model.onnx"):
        sessions._said.clear()
        with pytest.warns(UserWarning, match="1 conditions and 0 products") as caught:
            session = graphopt.session(source)
        assert caught[0].filename == __file__
        assert session.get_providers() == [sessions.CPU]
        (y,) = session.run(None, {"x": np.ones(4, np.float32), "c": np.array(True)})
        assert (y == -1).all()


def test_what_has_work_is_left_alone() -> None:
    assert conditions.why_conditions_decide(onnx.parser.parse_model(WORK)) == ""


def test_what_is_no_small_model_is_left_to_the_runtime(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(WORK)
    serialized = model.SerializeToString()
    (tmp_path / "model.json").write_bytes(serialized)  # whatever it is called
    assert read_if_small(serialized, len(serialized)) == model
    assert read_if_small(tmp_path / "model.json", len(serialized)) == model
    for unread in (serialized, tmp_path / "model.json", b"no", tmp_path / "nothing.onnx", tmp_path):
        assert read_if_small(unread, len(serialized) - 1) is None
