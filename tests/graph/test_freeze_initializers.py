"""`--freeze-initializers`: legacy files in which every weight is a graph input."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import graphopt
from tests.rewriting import assert_same_outputs, model_from_text


@pytest.fixture
def legacy() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    arrays = {"w": rng.normal(size=(4, 3, 3, 3)), "s": [1, 2, 3, 4], "b": [0, 1, 2, 3], "m": [1, 0, 1, 0], "v": [1] * 4}
    model = model_from_text(
        "g (float[N, 3, 8, 8] x) => (float[N, 4, 6, 6] y) { t = Conv (x, w)  y = BatchNormalization (t, s, b, m, v) }",
        {name: np.asarray(array, np.float32) for name, array in arrays.items()},
    )
    for t in model.graph.initializer:
        model.graph.input.append(onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims))
    return model


def test_weights_become_constants(legacy: onnx.ModelProto) -> None:
    kept, report = graphopt.optimize(legacy, target="portable")
    assert kept == legacy
    assert any("--freeze-initializers" in note and note.startswith("1 ") for note in report.notes)
    frozen, report = graphopt.optimize(legacy, target="portable", freeze_initializers=True)
    assert [n.op_type for n in frozen.graph.node] == ["Conv"]
    assert [v.name for v in frozen.graph.input] == ["x"]
    assert not any("--freeze-initializers" in note for note in report.notes)
    x = np.random.default_rng(1).normal(size=(2, 3, 8, 8)).astype(np.float32)
    assert_same_outputs(legacy, frozen, {"x": x})
    assert graphopt.verify(legacy, frozen).equal


def test_a_model_with_nothing_else_to_do(legacy: onnx.ModelProto) -> None:
    del legacy.graph.node[1]
    legacy.graph.output[0].name = "t"
    frozen, _ = graphopt.optimize(legacy, target="portable", freeze_initializers=True)
    assert "w" not in [v.name for v in frozen.graph.input]
    assert graphopt.verify(legacy, frozen).equal
