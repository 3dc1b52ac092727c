"""PRelu as decomposed by Keras and tf2onnx, after convolutions and alone, and refusals."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphopt import optimize
from graphopt.passes.written_prelu import WrittenPRelu
from tests.rewriting import Array, assert_same_outputs, model_from_text, rewrite, run

RNG = np.random.default_rng(12)
BODY = "a = Relu(x) m = Neg(x) r = Relu(m) q = Mul(r, s) y = Add(a, q)"


def draw(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def written(
    body: str = BODY, x: str = "N, 3, H, W", slope: Array | None = None, outputs: str = "", opset: int = 17
) -> onnx.ModelProto:
    text = f"g (float[{x}] x) => (float[{x}] y{outputs}) {{ {body} }}"
    return model_from_text(text, {"s": draw(1, 3, 1, 1) if slope is None else slope}, opset, check=False)


def codes(model: onnx.ModelProto, device: str = "cpu") -> list[str]:
    result = rewrite(model, [WrittenPRelu()], device=device)
    assert result.op_types == [n.op_type for n in model.graph.node]
    return result.codes()


@pytest.mark.parametrize(
    "body",
    [
        BODY,
        "a = Relu(x) m = Neg(x) r = Relu(m) q = Mul(s, r) y = Add(q, a)",
        "a = Relu(x) m = Neg(x) r = Relu(m) q = Mul(r, s) y = Sub(a, q)",
    ],
)
@pytest.mark.parametrize("slope", [(1, 3, 1, 1), (3, 1, 1)])
def test_every_number_is_the_same(body: str, slope: tuple[int, ...]) -> None:
    model = written(body, slope=draw(*slope))
    result = rewrite(model, [WrittenPRelu()])
    assert result.op_types == ["PRelu"] and result.codes() == ["APPLIED"]
    feed = draw(2, 3, 5, 7)
    feed.flat[:3] = [0.0, -1e38, 1e38]
    np.testing.assert_array_equal(run(result.proto, {"x": feed})[0], run(model, {"x": feed})[0])
    # Infinities and NaN are tested with our operator only: onnxruntime 1.22's PRelu gives NaN for infinities.
    feed.flat[3:6] = [np.inf, -np.inf, np.nan]
    after, _ = optimize(model, target="cpu")
    assert "ScaleShiftRelu" in {n.op_type for n in after.graph.node}
    np.testing.assert_array_equal(run(after, {"x": feed}, library=True)[0], run(model, {"x": feed})[0])


def test_a_convolution_fuses_the_prelu() -> None:
    body = "x = Conv<pads = [1, 1, 1, 1]>(i, w, b) " + BODY
    weights = {"w": draw(64, 64, 3, 3) / 16, "b": draw(64), "s": draw(1, 64, 1, 1)}
    model = model_from_text(f"g (float[1, 64, 28, 28] i) => (float[1, 64, 28, 28] y) {{ {body} }}", weights)
    after, report = optimize(model, target="cpu")
    assert [n.op_type for n in after.graph.node] == ["WinogradConvPRelu"]
    assert "written_prelu" in {r.pass_name for r in report.remarks if r.applied}
    assert_same_outputs(model, after, {"i": draw(1, 64, 28, 28)}, tolerance=1e-4)


@pytest.mark.parametrize(("device", "op"), [("cpu", "LeakyRelu"), ("portable", "LeakyRelu"), ("migraphx", "LeakyRelu")])
def test_one_slope_is_a_leaky_relu_everywhere(device: str, op: str) -> None:
    model = written(x="N, A, B", slope=np.array([0.25], np.float32))
    after, _ = optimize(model, target=device)
    assert [n.op_type for n in after.graph.node] == [op]
    assert after.graph.node[0].attribute[0].f == -0.25
    assert_same_outputs(model, after, {"x": draw(2, 3, 4)})


@pytest.mark.parametrize(
    ("model", "code"),
    [
        (written("a = Relu(x) m = Neg(x) r = Relu(m) q = Mul(r, s) y = Add(a, q) z = Exp(q)"), "OTHER_USES"),
        (written(outputs=", float[N, 3, H, W] q"), "GRAPH_OUTPUT"),
        (written(x="N, C, H, W"), "UNKNOWN_SHAPE"),
        (written(x="N, 3, 4, 5", slope=draw(3, 4, 5)), "WRONG_SHAPE"),
        (written(x="3, 4, 5", slope=draw(1, 1, 1, 1)), "WRONG_SHAPE"),
        (written(slope=np.array([1, np.inf, 2], np.float32).reshape(3, 1, 1)), "NOT_FINITE"),
        (written(slope=np.array(np.nan, np.float32)), "NOT_FINITE"),
        (written(opset=6), "OPSET"),
        (written("a = Relu(x) m = Neg(x) r = Relu(m) t = Sin(s) q = Mul(r, t) y = Add(a, q)"), "NOT_CONSTANT"),
    ],
    ids=range(9),
)
def test_refusals(model: onnx.ModelProto, code: str) -> None:
    assert codes(model) == [code]


def test_refuses_a_slope_that_callers_may_override() -> None:
    text = f"g (float[N, 3, H, W] x, float[1, 3, 1, 1] s) => (float[N, 3, H, W] y) {{ {BODY} }}"
    assert codes(model_from_text(text, {"s": draw(1, 3, 1, 1)})) == ["OVERRIDABLE"]


def test_refuses_double() -> None:
    text = f"g (double[N, 3, H, W] x) => (double[N, 3, H, W] y) {{ {BODY} }}"
    assert codes(model_from_text(text, {"s": draw(1, 3, 1, 1).astype(np.float64)})) == ["WRONG_DTYPE"]


def test_refuses_targets_without_our_operators() -> None:
    assert codes(written(), "portable") == ["NO_GAIN"]


def test_refuses_parts_in_another_graph() -> None:
    text = """g (float[N, 3, H, W] x, bool c) => (float[N, 3, H, W] y) {
        a = Relu(x)
        y = If (c) <
            then_branch = t () => (float[N, 3, H, W] p) { m = Neg(x) r = Relu(m) q = Mul(r, s) p = Add(a, q) },
            else_branch = e () => (float[N, 3, H, W] n) { n = Neg(x) }> }"""
    result = rewrite(model_from_text(text, {"s": draw(1, 3, 1, 1)}), [WrittenPRelu()])
    assert result.codes() == ["ESCAPES"]


def test_other_sums_are_no_candidates() -> None:
    for body in (
        "a = Relu(x) m = Neg(a) r = Relu(m) q = Mul(r, s) y = Add(a, q)",
        "a = Relu(x) m = Neg(x) r = Relu(m) q = Mul(r, s) y = Sub(q, a)",
        "a = Relu(x) r = Relu(x) q = Mul(r, s) y = Add(a, q)",
    ):
        assert codes(written(body)) == []
