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


@pytest.mark.parametrize("sites", [1, 2, 3])
def test_the_summary_counts_the_candidates_that_freezing_allows(sites: int) -> None:
    """Each candidate counts once, even if several passes refuse it. With frozen initializers all are rewritten."""
    rng = np.random.default_rng(0)
    shapes = {"s": [4], "b": [4], "m": [4], "v": [4], "w": [4, 4, 3, 3], "u": [4, 4, 1, 1]}
    arrays = {name: rng.uniform(0.5, 1.5, shape).astype(np.float32) for name, shape in shapes.items()}
    text = ["t = Conv (x, w)  n = BatchNormalization (t, s, b, m, v)"]
    text.append("p = Conv (n, u)  q = BatchNormalization (p, s, b, m, v)")
    text.append("r = Relu (q)  o = Conv (r, u)  z = BatchNormalization (o, s, b, m, v)")
    result = ["n", "q", "z"][sites - 1]
    model = model_from_text(
        f"g (float[N, 4, 8, 8] x) => (float[a, c, d, e] {result}) {{ {' '.join(text[:sites])} }}", arrays
    )
    for t in model.graph.initializer:
        model.graph.input.append(onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims))
    _, report = graphopt.optimize(model, target="portable")
    assert not report.changed
    said = [note for note in report.notes if "--freeze-initializers" in note]
    assert [note.split()[:2] for note in said] == [[str(sites), "candidates" if sites > 1 else "candidate"]]
    held = {r.nodes[0] for r in report.remarks if r.code == "OVERRIDABLE"}
    frozen, report = graphopt.optimize(model, target="portable", freeze_initializers=True)
    assert (
        sum(len(held & set(r.nodes)) for r in report.remarks if r.pass_name == "fold_batch_norm" and r.applied) == sites
    )
    assert not [r for r in report.remarks if r.code == "OVERRIDABLE"]
    assert_same_outputs(model, frozen, {"x": rng.normal(size=(2, 4, 8, 8)).astype(np.float32)})


@pytest.mark.parametrize(
    ("producer", "target", "site"),
    [
        ("Relu (x)", "cpu", False),
        ("MatMul (x, w)", "cpu", False),
        ("Mul (x, s)", "cpu", True),
        ("Conv (x, k)", "portable", True),
    ],
)
def test_a_bias_alone_is_no_candidate(producer: str, target: str, site: bool) -> None:
    """Keras's exporter listed every bias as an input: the note counts it only if a constant would be folded."""
    shapes = {"w": (4, 4), "s": (4, 1, 1), "k": (4, 4, 1, 1), "b": (4, 1, 1)}
    model = model_from_text(
        f"g (float[N, 4, 2, 4] x) => (float[a, c, d, e] y) {{ t = {producer}  y = Add (t, b) }}",
        {
            n: np.arange(1, 1 + np.prod(s), dtype=np.float32).reshape(s)
            for n, s in shapes.items()
            if n in producer + "b"
        },
    )
    model.graph.input.append(onnx.helper.make_tensor_value_info("b", 1, [4, 1, 1]))
    _, report = graphopt.optimize(model, target=target, ignore_cost_model=True)
    assert any("--freeze-initializers" in note for note in report.notes) == site
    assert ("OVERRIDABLE" in [r.code for r in report.remarks]) == site
    _, frozen = graphopt.optimize(model, target=target, ignore_cost_model=True, freeze_initializers=True)
    assert (sum(r.applied for r in frozen.remarks) > sum(r.applied for r in report.remarks)) == site


def test_a_model_with_nothing_else_to_do(legacy: onnx.ModelProto) -> None:
    del legacy.graph.node[1]
    legacy.graph.output[0].name = "t"
    frozen, _ = graphopt.optimize(legacy, target="portable", freeze_initializers=True)
    assert "w" not in [v.name for v in frozen.graph.input]
    assert graphopt.verify(legacy, frozen).equal
