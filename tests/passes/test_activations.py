"""Decomposed activations become standard operators; similar graphs are not rewritten."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphopt.passes.activations import Activations
from tests.rewriting import Array, assert_same_outputs, model_from_text, rewrite, run

RNG = np.random.default_rng(12)
CONSTANTS = {
    "zero": 0.0,
    "one": 1.0,
    "half": 0.5,
    "two": 2.0,
    "three": 3.0,
    "six": 6.0,
    "quick": 1.702,
    "sixth": 1 / 6,
    "a": 0.1,
    "r2": 2**0.5,
    "r2_five": 1.41421,
    "r2_four": 1.414,
    "r12": 0.5**0.5,
    "c": (2 / np.pi) ** 0.5,
    "k": 0.044715,
    "ck": 0.044715 * (2 / np.pi) ** 0.5,
}


def model(body: str, opset: int = 20, dtype: str = "float", extra: dict[str, Array] | None = None) -> onnx.ModelProto:
    numpy_type = {"float": np.float32, "float16": np.float16, "double": np.float64}[dtype]
    constants = {n: np.asarray(v, numpy_type) for n, v in CONSTANTS.items()} | (extra or {})
    used = {n: v for n, v in constants.items() if any(n == w.strip("(), ") for w in body.replace("(", " ").split())}
    return model_from_text(f"g ({dtype}[2, 5, 40] x) => ({dtype}[2, 5, 40] y) {{ {body} }}", used, opset)


def values(dtype: type = np.float32) -> Array:
    x: Array = (RNG.standard_normal((2, 5, 40)) * 4).astype(dtype)
    x[0, 0, :6] = [0.0, -0.0, 30.0, -30.0, 3.0, -3.0]
    return x


FORMS = [
    ("d = Div(x, r2_five)\n e = Erf(d)\n p = Add(e, one)\n m = Mul(x, p)\n y = Mul(m, half)", "Gelu"),
    ("t = Greater(x, zero)\n n = Mul(a, x)\n y = Where(t, x, n)", "LeakyRelu"),
    ("t = GreaterOrEqual(x, zero)\n n = Mul(x, a)\n y = Where(t, x, n)", "LeakyRelu"),
    ("t = Less(x, zero)\n n = Mul(x, two)\n y = Where(t, n, x)", "LeakyRelu"),
    ("t = Less(zero, x)\n n = Mul(x, a)\n y = Where(t, x, n)", "LeakyRelu"),
    ("n = Mul(x, a)\n y = Max(n, x)", "LeakyRelu"),
    ("n = Div(x, six)\n y = Max(x, n)", "LeakyRelu"),
    ("y = PRelu(x, a)", "LeakyRelu"),
    ("y = PRelu(x, slopes)", "LeakyRelu"),
    ("s = Add(x, three)\n t = Clip(s, zero, six)\n y = Div(t, six)", "HardSigmoid"),
    ("s = Add(three, x)\n t = Clip(s, zero, six)\n y = Mul(t, sixth)", "HardSigmoid"),
    ("m = Mul(x, a)\n s = Add(m, half)\n y = Clip(s, zero, one)", "HardSigmoid"),
    ("s = Add(x, three)\n t = Clip(s, zero, six)\n u = Mul(x, t)\n y = Div(u, six)", "HardSwish"),
    ("s = Add(x, three)\n t = Clip(s, zero, six)\n u = Div(t, six)\n y = Mul(u, x)", "HardSwish"),
    ("y = HardSigmoid <alpha: float = 0.16666667, beta: float = 0.5> (x)", None),
    ("t = HardSigmoid <alpha: float = 0.16666667, beta: float = 0.5> (x)\n y = Mul(x, t)", "HardSwish"),
    ("s = Add(x, three)\n t = Min(six, s)\n w = Max(zero, t)\n u = Mul(x, w)\n y = Div(u, six)", "HardSwish"),
    ("s = Add(three, x)\n t = Max(s, zero)\n w = Min(t, six)\n u = Div(w, six)\n y = Mul(u, x)", "HardSwish"),
    ("s = Add(x, three)\n t = Max(zero, s)\n w = Min(six, t)\n u = Mul(w, sixth)\n y = Mul(x, u)", "HardSwish"),
    ("s = Add(x, three)\n t = Min(s, six)\n w = Relu(t)\n v = Mul(x, sixth)\n y = Mul(w, v)", "HardSwish"),
    ("s = Add(x, three)\n t = Relu(s)\n w = Min(t, six)\n v = Div(x, six)\n y = Mul(v, w)", "HardSwish"),
    ("m = Mul(x, sixth)\n s = Add(m, half)\n t = Min(s, one)\n w = Max(t, zero)\n y = Mul(x, w)", "HardSwish"),
    ("m = Div(x, six)\n s = Add(half, m)\n w = Clip(s, zero, one)\n y = Mul(w, x)", "HardSwish"),
    ("s = Sub(x, m3)\n w = Clip(s, zero, six)\n v = Div(x, six)\n y = Mul(w, v)", "HardSwish"),
    ("s = Add(x, three)\n t = Min(s, six)\n w = Max(t, zero)\n y = Div(w, six)", "HardSigmoid"),
    ("s = Add(x, three)\n t = Relu(s)\n w = Min(six, t)\n y = Mul(sixth, w)", "HardSigmoid"),
    ("m = Mul(x, a)\n s = Add(m, half)\n t = Max(zero, s)\n y = Min(one, t)", "HardSigmoid"),
    ("s = Softplus(x)\n t = Tanh(s)\n y = Mul(x, t)", "Mish"),
    ("e = Exp(x)\n p = Add(e, one)\n l = Log(p)\n t = Tanh(l)\n y = Mul(x, t)", "Mish"),
    ("e = Exp(x)\n p = Add(one, e)\n l = Log(p)\n t = Tanh(l)\n y = Mul(t, x)", "Mish"),
    ("z = Div(x, r2)\n e = Erf(z)\n p = Add(e, one)\n h = Mul(x, half)\n y = Mul(h, p)", "Gelu"),
    ("z = Mul(x, r12)\n e = Erf(z)\n p = Add(one, e)\n h = Mul(x, p)\n y = Mul(half, h)", "Gelu"),
    ("z = Mul(r12, x)\n e = Erf(z)\n p = Add(e, one)\n h = Mul(p, half)\n y = Mul(h, x)", "Gelu"),
    ("z = Div(x, r2)\n e = Erf(z)\n p = Add(e, one)\n h = Mul(x, p)\n y = Div(h, two)", "Gelu"),
    ("z = Div(x, r2)\n e = Erf(z)\n p = Mul(e, half)\n h = Add(p, half)\n y = Mul(h, x)", "Gelu"),
    (
        "q = Pow(x, three)\n m = Mul(q, k)\n s = Add(x, m)\n z = Mul(s, c)\n e = Tanh(z)\n"
        " p = Add(e, one)\n h = Mul(x, half)\n y = Mul(h, p)",
        "Gelu",
    ),
    (
        "q = Mul(x, x)\n m = Mul(q, k)\n s = Add(m, one)\n v = Mul(x, c)\n z = Mul(v, s)\n e = Tanh(z)\n"
        " p = Add(e, one)\n h = Mul(x, p)\n y = Mul(h, half)",
        "Gelu",
    ),
    (
        "q = Mul(x, x)\n w = Mul(q, x)\n m = Mul(w, ck)\n v = Mul(x, c)\n z = Add(v, m)\n e = Tanh(z)\n"
        " p = Add(e, one)\n h = Mul(x, p)\n y = Mul(h, half)",
        "Gelu",
    ),
]


@pytest.mark.parametrize(("body", "op"), FORMS)
@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_forms(body: str, op: str | None, dtype: str) -> None:
    numpy_type = np.float32 if dtype == "float" else np.float16
    before = model(body, dtype=dtype, extra={"slopes": np.full((5, 1), -0.25, numpy_type), "m3": numpy_type(-3)})
    after = rewrite(before, [Activations()])
    assert after.op_types == ([op] if op else [n.op_type for n in before.graph.node])
    assert_same_outputs(before, after.proto, {"x": values(numpy_type)}, 1e-5 if dtype == "float" else 5e-3)
    assert rewrite(after.proto, [Activations()]).proto == after.proto


@pytest.mark.parametrize(
    "body",
    [
        "n = Mul(x, two)\n y = Max(n, x)",  # for a slope above 1, Max selects the other branch
        "n = Mul(x, zero)\n y = Max(n, x)",
        "t = Greater(x, a)\n n = Mul(x, a)\n y = Where(t, x, n)",
        "t = Greater(x, zero)\n n = Mul(x, a)\n y = Where(t, n, x)",
        "t = Greater(x, zero)\n n = Add(x, a)\n y = Where(t, x, n)",
        "y = PRelu(x, slopes)",
        "y = Clip(x, zero, six)",
        "s = Add(x, three)\n y = Clip(s, one, six)",
        "s = Sigmoid(x)\n y = Mul(x, s)",
        "m = Add(x, two)\n s = Sigmoid(m)\n y = Mul(x, s)",
        "m = Mul(x, two)\n s = Sigmoid(m)\n y = Add(x, s)",
        "z = Mul(x, half)\n e = Erf(z)\n p = Add(e, one)\n h = Mul(x, half)\n y = Mul(h, p)",
        "z = Mul(x, r12)\n e = Erf(z)\n p = Add(e, one)\n y = Mul(x, p)",
        "z = Mul(x, r12)\n e = Erf(z)\n p = Add(e, two)\n h = Mul(x, half)\n y = Mul(h, p)",
        "z = Mul(x, c)\n e = Tanh(z)\n p = Add(e, one)\n h = Mul(x, half)\n y = Mul(h, p)",
        "n = Neg(x)\n z = Mul(n, r12)\n e = Erf(z)\n p = Add(e, one)\n h = Mul(x, half)\n m = Mul(h, p)\n y = Abs(m)",
        "s = Add(x, three)\n t = Min(s, zero)\n w = Max(t, six)\n u = Mul(x, w)\n y = Div(u, six)",  # w is always 6
        "s = Add(x, three)\n t = Min(s, six)\n w = Min(t, zero)\n u = Mul(x, w)\n y = Div(u, six)",
        "s = Add(x, three)\n t = Max(s, one)\n w = Min(t, six)\n u = Mul(x, w)\n y = Div(u, six)",
        "s = Add(x, two)\n t = Max(s, zero)\n w = Min(t, six)\n u = Mul(x, w)\n y = Mul(u, u)",
        "s = Add(x, three)\n t = Max(s, x)\n w = Min(t, six)\n u = Mul(x, w)\n y = Div(u, six)",
        "t = Max(x, zero)\n y = Min(t, six)",
        "e = Exp(x)\n p = Add(e, two)\n l = Log(p)\n t = Tanh(l)\n y = Mul(x, t)",
        "n = Neg(x)\n e = Exp(n)\n p = Add(e, one)\n l = Log(p)\n t = Tanh(l)\n y = Mul(x, t)",
        "e = Exp(x)\n l = Log(e)\n t = Tanh(l)\n y = Mul(x, t)",
        "t = Clip(x, m3, m1)\n y = Relu(t)",
        "t = Clip(x, m3, m1)\n y = Clip(t, one, three)",
    ],
)
def test_similar_forms_are_no_candidates(body: str) -> None:
    extra = {"slopes": RNG.standard_normal((5, 1)).astype(np.float32), "m3": np.float32(-3), "m1": np.float32(-1)}
    before = model(body, extra=extra)
    after = rewrite(before, [Activations()])
    assert after.remarks == []
    assert after.op_types == [n.op_type for n in before.graph.node]


@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_mish_where_exp_overflows(dtype: str) -> None:
    """Where exp overflows, ln(1 + exp(x)) is Inf and its tanh 1, as for softplus(x): the rewrite adds no Inf or NaN."""
    numpy_type = np.float32 if dtype == "float" else np.float16
    x = np.full((2, 5, 40), 1.0, numpy_type)
    largest = float(np.finfo(numpy_type).max)
    x[0, 0, :9] = [11.0, 12.0, 88.0, 90.0, 1000.0, largest, -largest, np.inf, np.nan]
    before = model("e = Exp(x)\n p = Add(e, one)\n l = Log(p)\n t = Tanh(l)\n y = Mul(x, t)", dtype=dtype)
    (want,), (got,) = run(before, {"x": x}), run(rewrite(before, [Activations()]).proto, {"x": x})
    np.testing.assert_allclose(got, want, rtol=1e-5 if dtype == "float" else 5e-3)


def test_hard_swish_before_there_was_one() -> None:
    before = model("s = Add(x, three)\n t = Clip(s, zero, six)\n u = Mul(x, t)\n y = Div(u, six)", opset=13)
    after = rewrite(before, [Activations()])
    assert after.op_types == ["HardSigmoid", "Mul"]
    assert_same_outputs(before, after.proto, {"x": values()})
    again = rewrite(after.proto, [Activations()])
    assert (again.proto, again.codes()) == (after.proto, [])


def test_constants_that_make_the_result_larger() -> None:
    extra = {"big": np.full((1, 1, 1, 1), 0.1, np.float32)}
    before = model_from_text(
        "g (float[2, 5, 40] x) => (float[1, 2, 5, 40] y) { n = Mul(x, big)\n y = Max(n, x) }", extra
    )
    assert rewrite(before, [Activations()]).remarks == []


CLAMPED = "s = Add(x, three)\n t = Min(s, six)\n w = Max(t, zero)\n u = Mul(x, w)\n y = Div(u, six)"
LOGARITHM = "e = Exp(x)\n p = Add(e, one)\n l = Log(p)\n t = Tanh(l)\n y = Mul(x, t)"
ALMOST_GELU = "d = Div(x, r2_four)\n e = Erf(d)\n p = Add(e, one)\n m = Mul(x, p)\n y = Mul(m, half)"
MISH = "s = Softplus(x)\n t = Tanh(s)\n y = Mul(x, t)"


@pytest.mark.parametrize(
    ("code", "text", "opset", "device"),
    [
        ("OPSET", "(XT x) => (XT y) { " + MISH + " }", 17, "cpu"),
        ("TARGET", "(XT x) => (XT y) { " + MISH + " }", 18, "migraphx"),
        ("GRAPH_OUTPUT", "(XT x) => (XT y, XT t) { " + MISH + " }", 18, "cpu"),
        ("OTHER_USES", "(XT x) => (XT y, XT z) { " + MISH + "\n z = Neg(t) }", 18, "cpu"),
        ("OTHER_USES", "(XT x) => (XT y, XT z) { " + CLAMPED + "\n z = Neg(t) }", 18, "cpu"),
        ("GRAPH_OUTPUT", "(XT x) => (XT y, XT t) { " + CLAMPED + " }", 18, "cpu"),
        ("OPSET", "(XT x) => (XT y) { " + LOGARITHM + " }", 17, "cpu"),
        ("TARGET", "(XT x) => (XT y) { " + LOGARITHM + " }", 18, "migraphx"),
        ("OTHER_USES", "(XT x) => (XT y, XT z) { " + LOGARITHM + "\n z = Neg(p) }", 18, "cpu"),
        ("ATTRIBUTE", "(XT x) => (XT y) { " + ALMOST_GELU + " }", 20, "cpu"),
        ("NO_GAIN", "(XT x) => (XT y) { m = Mul(quick, x)\n s = Sigmoid(m)\n y = Mul(x, s) }", 18, "cpu"),
        ("NO_GAIN", "(XT x) => (XT y) { m = Mul(x, quick)\n s = Sigmoid(m)\n y = Mul(s, x) }", 20, "rocm"),
        ("WRONG_DTYPE", "(double[3] x) => (double[3] y) { " + MISH + " }", 18, "cpu"),
    ],
)
def test_refused(code: str, text: str, opset: int, device: str) -> None:
    constants = {n: np.float32(CONSTANTS[n]) for n in CONSTANTS if f"{n})" in text or f"({n}," in text}
    before = model_from_text("g " + text.replace("XT", "float[2, 3]"), constants, opset=opset, check=False)
    assert rewrite(before, [Activations()], device=device).codes() == [code]


def test_cost_on_a_long_chain() -> None:
    """The match inspects a bounded number of nodes, however long the chain before the activation."""
    chain = "\n".join(f"t{i + 1} = Add(t{i}, t{i})" for i in range(3000))
    text = f"g (float[2] t0) => (float[2] y) {{ {chain}\n e = Erf(t3000)\n p = Add(e, one)\n y = Mul(p, t3000) }}"
    assert rewrite(model_from_text(text, {"one": np.float32(0.5)}), [Activations()]).remarks == []
