"""Gates that no exporter of test_exported_forms.py writes, and refusals."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphopt.passes.gate import Gate
from tests.rewriting import Array, assert_same_outputs, model_from_text, rewrite

RNG = np.random.default_rng(6)


def draw(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def gate(body: str, inputs: str = "float[N, 6] a, float[N, 6] b", outputs: str = "float[N, 6] y") -> onnx.ModelProto:
    return model_from_text(f"g ({inputs}) => ({outputs}) {{ {body} }}", opset=20, check=False)


def codes(model: onnx.ModelProto, device: str = "cpu") -> list[str]:
    result = rewrite(model, [Gate()], device=device)
    assert not any(op.startswith("Gated") for op in result.op_types)
    return result.codes()


@pytest.mark.parametrize("device", ["cpu", "rocm"])
@pytest.mark.parametrize(
    ("act", "name"),
    [
        ("t = Relu(a)", "Relu"),
        ("t = Sigmoid(a)", "Sigmoid"),
        ("s = Sigmoid(a) t = Mul(a, s)", "Silu"),
        ("t = Gelu(a)", "Gelu"),
        ('t = Gelu <approximate: string = "tanh"> (a)', "GeluTanh"),
    ],
)
def test_every_gate(act: str, name: str, device: str) -> None:
    model = gate(f"{act} y = Mul(b, t)")
    result = rewrite(model, [Gate()], device=device)
    assert result.op_types == [f"Gated{name}"]
    assert_same_outputs(model, result.proto, {"a": draw(4, 6) * 4, "b": draw(4, 6)})


@pytest.mark.parametrize("first", [True, False])
def test_halves_by_slices(first: bool) -> None:
    which = ("p", "q") if first else ("q", "p")
    model = gate(
        f"""p = Slice(x, zero, three, last) q = Slice(x, three, six, last)
            t = Relu({which[0]}) y = Mul(t, {which[1]})""",
        "float[N, 6] x",
        "float[N, 3] y",
    )
    for name, value in {"zero": 0, "three": 3, "six": 6, "last": -1}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([value]), name))
    result = rewrite(model, [Gate()])
    assert result.op_types == ["GatedHalvesRelu"]
    assert_same_outputs(model, result.proto, {"x": draw(4, 6)})


def test_halves_that_others_read_are_two_values() -> None:
    body = "p, q = Split <axis: int = -1, num_outputs: int = 2> (x) t = Relu(p) y = Mul(t, q) z = Neg(q)"
    model = gate(body, "float[N, 6] x", "float[N, 3] y, float[N, 3] z")
    result = rewrite(model, [Gate()])
    assert "GatedRelu" in result.op_types and "Split" in result.op_types
    assert_same_outputs(model, result.proto, {"x": draw(4, 6)})


def test_unequal_parts_are_no_halves() -> None:
    """Two of three equal parts are not the halves of a tensor: the gate reads them as two inputs."""
    body = "p, q, r = Split <axis: int = -1, num_outputs: int = 3> (x) t = Relu(p) y = Mul(t, q) z = Neg(r)"
    result = rewrite(gate(body, "float[N, 6] x", "float[N, 2] y, float[N, 2] z"), [Gate()])
    assert "GatedRelu" in result.op_types


@pytest.mark.parametrize(
    ("body", "inputs"),
    [
        ("t = Sigmoid(a) y = Mul(t, b)", "float[N, 6, 1, 1] a, float[N, 6, H, W] b"),  # squeeze and excitation
        ("t = Sigmoid(a) y = Mul(t, b)", "float[N, 6] a, float[6] b"),
        ("t = Sigmoid(a) y = Mul(t, t)", "float[N, 6] a"),
        ("t = Tanh(a) y = Mul(t, b)", "float[N, 6] a, float[N, 6] b"),
        ("t = Relu(a) y = Mul(t, b) z = Neg(t)", "float[N, 6] a, float[N, 6] b"),
    ],
)
def test_other_products_are_no_gates(body: str, inputs: str) -> None:
    outputs = "float y, float[N, 6] z" if "z =" in body else "float y"
    model = gate(body, inputs, outputs)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    assert codes(model) == []


def test_refuses_shapes_that_are_not_proven_alike() -> None:
    assert codes(gate("t = Relu(a) y = Mul(t, b)", "float[N, 6] a, float[M, 6] b", "float[K, 6] y")) == [
        "UNKNOWN_SHAPE"
    ]


def test_refuses_one_number() -> None:
    model = gate("t = Relu(a) y = Mul(t, b)", "float a, float b", "float y")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.SetInParent()
    assert codes(model) == ["WRONG_RANK"]


def test_refuses_double() -> None:
    assert codes(gate("t = Relu(a) y = Mul(t, b)", "double[N, 6] a, double[N, 6] b", "double[N, 6] y")) == [
        "WRONG_DTYPE"
    ]


def test_refuses_two_types() -> None:
    model = gate("t = Relu(a) y = Mul(t, b)", "float[N, 6] a, float16[N, 6] b")
    assert codes(model) == ["MIXED_DTYPE"]


@pytest.mark.parametrize(("more", "code"), [("z = Neg(s)", "OTHER_USES"), ("", "GRAPH_OUTPUT")])
def test_refuses_an_activation_with_other_readers_inside(more: str, code: str) -> None:
    outputs = "float[N, 6] y, float[N, 6] " + ("z" if more else "s")
    assert codes(gate(f"s = Sigmoid(a) t = Mul(a, s) y = Mul(t, b) {more}", outputs=outputs)) == [code]


def test_refuses_a_product_in_a_branch() -> None:
    body = """t = Relu(a)
        y = If (c) <then_branch = n () => (float[N, 6] p) { p = Mul(t, b) },
                    else_branch = e () => (float[N, 6] q) { q = Neg(a) }>"""
    assert codes(gate(body, "float[N, 6] a, float[N, 6] b, bool c")) == ["ESCAPES"]


def test_refuses_targets_without_our_operators() -> None:
    assert codes(gate("t = Relu(a) y = Mul(t, b)"), "portable") == ["TARGET"]


def test_refuses_halves_in_an_old_opset() -> None:
    body = "p, q = Split <axis: int = -1> (x) t = Relu(p) y = Mul(t, q)"
    text = f"g (float[N, 6] x) => (float[N, 3] y) {{ {body} }}"
    assert codes(model_from_text(text, opset=11)) == ["OPSET"]


def test_refuses_activations_that_the_runtime_fuses_into_its_convolution() -> None:
    body = "c = Conv(a, w) t = Sigmoid(c) y = Mul(t, b)"
    model = gate(body, "float[N, 6, 5, 5] a, float[N, 6, 5, 5] b", "float[N, 6, 5, 5] y")
    model.graph.initializer.append(onnx.numpy_helper.from_array(draw(6, 6, 1, 1), "w"))
    assert codes(model) == ["NO_GAIN"]
    assert "GatedSigmoid" in rewrite(model, [Gate()], ignore_cost_model=True).op_types
