"""Activations and residual sums after nodes of ours."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphopt.passes.fuse_epilogue import FuseEpilogue
from graphopt.passes.fuse_group_norm import FuseGroupNorm
from graphopt.passes.fused_conv import FusedConv
from graphopt.passes.scale_shift import ScaleShift
from graphopt.passes.winograd_conv import WinogradConv
from tests.rewriting import Array, assert_same_outputs, model_from_text, rewrite, run

RNG = np.random.default_rng(13)
PASSES = [ScaleShift(), WinogradConv(), FuseEpilogue()]
NODES = {
    "ScaleShift": "t = BatchNormalization (x, g, b, m, v)",
    "WinogradConv": "t = Conv <pads = [1, 1, 1, 1]> (x, W, b)",
}
CONSTANTS = {
    "zero": 0.0,
    "one": 1.0,
    "half": 0.5,
    "three": 3.0,
    "six": 6.0,
    "r2": 2**0.5,
    "k": 0.044715,
    "c": 0.7978845608,
}


def draw(*shape: int, dtype: type = np.float32) -> Array:
    return RNG.standard_normal(shape).astype(dtype)


def weights(dtype: type = np.float32) -> dict[str, Array]:
    constants: dict[str, Array] = {n: np.asarray(v, dtype) for n, v in CONSTANTS.items()}
    statistics = {n: draw(6, dtype=dtype) for n in ("g", "b", "m")} | {"v": RNG.uniform(0.5, 2, 6).astype(dtype)}
    constants |= {"m3": np.asarray(-3, dtype), "m1": np.asarray(-1, dtype), "slopes": draw(6, 1, 1, dtype=dtype)}
    constants |= {"slopes4": draw(1, 6, 1, 1, dtype=dtype), "columns": draw(5, dtype=dtype)}
    constants |= {"pixels": draw(6, 7, 5, dtype=dtype), "Wg": (draw(6, 3, 3, 3) / 4).astype(dtype)}
    return constants | statistics | {"W": (draw(6, 6, 3, 3) / 4).astype(dtype)}


def model(node: str, body: str, opset: int = 17, outputs: str = "XT y", dtype: str = "float") -> onnx.ModelProto:
    text = f"g (XT x, XT r) => ({outputs}) {{ {NODES[node]}\n {body} }}".replace("XT", f"{dtype}[N, 6, 7, 5]")
    numpy_type = np.float32 if dtype == "float" else np.float16
    return model_from_text(text, weights(numpy_type), opset)


ACTIVATIONS = [
    ("y = Relu({0})", "Relu", 17),
    ("y = LeakyRelu <alpha: float = 0.2> ({0})", "LeakyRelu", 17),
    ("y = Clip({0}, zero, six)", "Clip", 17),
    ("y = Clip({0}, , six)", "Clip", 17),
    ("y = Clip({0}, zero)", "Clip", 17),
    ("y = Sigmoid({0})", "Sigmoid", 17),
    ("s = Sigmoid({0})\n y = Mul(s, {0})", "Silu", 17),
    ("y = HardSigmoid <alpha: float = 0.3> ({0})", "HardSigmoid", 17),
    ("y = HardSwish({0})", "HardSwish", 17),
    ("s = Add({0}, three)\n u = Clip(s, zero, six)\n w = Mul({0}, u)\n y = Div(w, six)", "HardSwish", 13),
    ("y = Tanh({0})", "Tanh", 17),
    ("z = Div({0}, r2)\n e = Erf(z)\n p = Add(e, one)\n h = Mul({0}, half)\n y = Mul(h, p)", "Gelu", 17),
    ("y = Gelu({0})", "Gelu", 20),
    ('y = Gelu <approximate = "tanh"> ({0})', "GeluTanh", 20),
    (
        "q = Pow({0}, three)\n d = Mul(q, k)\n s = Add({0}, d)\n z = Mul(s, c)\n e = Tanh(z)\n p = Add(e, one)\n"
        " h = Mul({0}, half)\n y = Mul(h, p)",
        "GeluTanh",
        17,
    ),
    ("s = Softplus({0})\n u = Tanh(s)\n y = Mul({0}, u)", "Mish", 17),
    ("y = Mish({0})", "Mish", 18),
    ("n = Mul({0}, half)\n y = Max({0}, n)", "LeakyRelu", 17),
]


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize(("body", "suffix", "opset"), ACTIVATIONS)
@pytest.mark.parametrize("add", ["", "a = Add(t, r)\n", "a = Add(r, t)\n"])
def test_absorbed(node: str, body: str, suffix: str, opset: int, add: str) -> None:
    before = model(node, add + body.format("a" if add else "t"), opset)
    after = rewrite(before, PASSES, ignore_cost_model=True)
    assert after.op_types == [f"{node}{'Add' if add else ''}{suffix}"]
    feeds = {"x": draw(2, 6, 7, 5), "r": draw(2, 6, 7, 5)}
    assert_same_outputs(before, after.proto, feeds, 1e-3 if node == "WinogradConv" else 1e-5)
    assert rewrite(after.proto, PASSES, ignore_cost_model=True).proto == after.proto


@pytest.mark.parametrize("node", NODES)
def test_half_precision(node: str) -> None:
    before = model(node, "a = Add(t, r)\n y = Clip(a, , six)", dtype="float16")
    after = rewrite(before, PASSES, ignore_cost_model=True)
    assert after.op_types == [f"{node}AddClip"]
    feeds = {"x": draw(2, 6, 7, 5, dtype=np.float16), "r": draw(2, 6, 7, 5, dtype=np.float16)}
    assert_same_outputs(before, after.proto, feeds, 2e-2)


@pytest.mark.parametrize(("body", "suffix"), [("s = Sigmoid(t)\n y = Mul(s, t)", "Silu"), ("y = Relu(t)", "Relu")])
def test_an_activation_after_a_group_norm_is_fused(body: str, suffix: str) -> None:
    norm = "t = GroupNormalization <num_groups = 2> (x, a, c)"
    text = f"g (float[N, 6, 7, 5] x) => (float[N, 6, 7, 5] y) {{ {norm}\n {body} }}"
    before = model_from_text(text, {"a": draw(6), "c": draw(6)}, opset=21)
    after = rewrite(before, [FuseGroupNorm(), FuseEpilogue()])
    assert after.op_types == [f"FusedGroupNorm{suffix}"]
    assert_same_outputs(before, after.proto, {"x": draw(2, 6, 7, 5)})


def test_two_residual_branches_become_one_each() -> None:
    """A downsampling block: the sum of two convolutions is fused into one of them."""
    body = "u = Conv <pads = [1, 1, 1, 1]> (r, W)\n a = Add(t, u)\n y = Relu(a)"
    before = model("WinogradConv", body)
    after = rewrite(before, PASSES, ignore_cost_model=True)
    assert sorted(after.op_types) == ["WinogradConv", "WinogradConvAddRelu"]
    assert_same_outputs(before, after.proto, {"x": draw(2, 6, 7, 5), "r": draw(2, 6, 7, 5)}, 1e-3)


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("u = Relu(t)\n y = Add(u, r)", ["{0}Relu", "Add"]),
        ("u = Relu(t)\n y = Sigmoid(u)", ["{0}Relu", "Sigmoid"]),
        ("u = Clip(t, m3, m1)\n y = Relu(u)", ["{0}Clip", "Relu"]),
        ("u = Add(t, r)\n w = Add(u, r)\n y = Relu(w)", ["{0}Add", "Add", "Relu"]),
        ("y = Exp(t)", ["{0}", "Exp"]),
        ("y = Mul(t, r)", ["{0}", "Mul"]),
        ("u = Relu(t)\n y = PRelu(u, slopes)", ["{0}Relu", "PRelu"]),
    ],
)
def test_one_sum_and_one_activation_are_fused(node: str, body: str, left: list[str]) -> None:
    before = model(node, body)
    after = rewrite(before, PASSES, ignore_cost_model=True)
    assert after.op_types == [name.format(node) for name in left]
    assert_same_outputs(before, after.proto, {"x": draw(2, 6, 7, 5), "r": draw(2, 6, 7, 5)}, 1e-3)


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize(
    ("code", "body", "outputs"),
    [
        ("GRAPH_OUTPUT", "y = Relu(t)", "XT y, XT t"),
        ("GRAPH_OUTPUT", "y = Add(t, r)", "XT y, XT t"),
        ("GRAPH_OUTPUT", "s = Sigmoid(t)\n y = Mul(t, s)", "XT y, XT s"),
        ("OTHER_USES", "y = Relu(t)\n z = Exp(t)", "XT y, XT z"),
        ("OTHER_USES", "y = Add(t, r)\n z = Exp(t)", "XT y, XT z"),
        ("OTHER_USES", "y = Add(t, t)", "XT y"),
        ("OTHER_USES", "s = Sigmoid(t)\n y = Mul(t, s)\n z = Exp(s)", "XT y, XT z"),
        ("OTHER_USES", "s = Sigmoid(t)\n y = Mul(t, s)\n z = Exp(t)", "XT y, XT z"),
        ("UNKNOWN_SHAPE", "y = Add(t, o)", "XT y"),
        ("WRONG_SHAPE", "y = Add(t, n)", "XT y"),
        ("WRONG_SHAPE", "y = Add(t, w)", "float[1, N, 6, 7, 5] y"),
        ("MIXED_DTYPE", "y = Add(t, u)", "XT y"),
    ],
)
def test_refused(node: str, code: str, body: str, outputs: str) -> None:
    others = "float[N, 6, H, 5] o, float[6, 7, 1] n, float[1, 1, 6, 7, 5] w, uint8[N, 6, 7, 5] u"
    text = f"g (XT x, XT r, {others}) => ({outputs}) {{ {NODES[node]}\n {body} }}"
    before = model_from_text(text.replace("XT", "float[N, 6, 7, 5]"), weights(), check=False)
    after = rewrite(before, PASSES, ignore_cost_model=True)
    assert [r.code for r in after.remarks if r.pass_name == "fuse_epilogue"] == [code]


@pytest.mark.parametrize(
    ("attributes", "fused"),
    [
        ("pads = [1, 1, 1, 1]", True),
        ('auto_pad = "SAME_LOWER"', True),
        ("pads = [2, 2, 2, 2], dilations = [2, 2]", True),
        ("pads = [1, 0, 1, 2]", True),
        ("pads = [1, 1, 1, 0]", False),
        ("pads = [1, 1, 1, 1], dilations = [2, 2]", False),
    ],
)
def test_a_residual_around_convolutions_of_any_size(attributes: str, fused: bool) -> None:
    """H and W are unknown, but a convolution keeps them if its padding makes up for its kernel."""
    text = f"""g (float[N, 6, H, K] x) => (float[P, 6, Q, S] y) {{
        i = Relu(x)
        d = Conv <{attributes}> (i, W, b)
        r = Sigmoid(d)
        t = Conv <pads = [1, 1, 1, 1]> (r, W, b)
        y = Add(i, t) }}"""
    before = model_from_text(text, weights())
    after = rewrite(before, PASSES, ignore_cost_model=True)
    assert ("WinogradConvAdd" in after.op_types) == fused
    if fused:
        assert_same_outputs(before, after.proto, {"x": draw(2, 6, 9, 8)}, 1e-3)
    else:
        assert "UNKNOWN_SHAPE" in after.codes()


CONVOLUTIONS = {
    "WinogradConv": NODES["WinogradConv"],
    "FusedConv": "t = Conv <group = 2, pads = [1, 1, 1, 1]> (x, Wg, b)",
}
WITH_SLOPES = [ScaleShift(), WinogradConv(), FusedConv(), FuseEpilogue()]


@pytest.mark.parametrize("node", CONVOLUTIONS)
@pytest.mark.parametrize("slope", ["slopes", "slopes4"])
@pytest.mark.parametrize("dtype", ["float", "float16"])
@pytest.mark.parametrize("add", ["", "a = Add(t, r)\n"])
def test_prelu_of_each_channel(node: str, slope: str, dtype: str, add: str) -> None:
    text = f"g (XT x, XT r) => (XT y) {{ {CONVOLUTIONS[node]}\n {add} y = PRelu({'a' if add else 't'}, {slope}) }}"
    numpy_type = np.float32 if dtype == "float" else np.float16
    before = model_from_text(text.replace("XT", f"{dtype}[N, 6, 7, 5]"), weights(numpy_type))
    after = rewrite(before, WITH_SLOPES, ignore_cost_model=True)
    assert after.op_types == [f"{node}{'Add' if add else ''}PRelu"]
    feeds = {"x": draw(2, 6, 7, 5, dtype=numpy_type), "r": draw(2, 6, 7, 5, dtype=numpy_type)}
    assert_same_outputs(before, after.proto, feeds, 1e-3 if dtype == "float" else 2e-2)
    assert rewrite(after.proto, WITH_SLOPES, ignore_cost_model=True).proto == after.proto


def test_non_negative_values_are_not_multiplied_by_the_slope() -> None:
    """A multiplication by an infinite slope would turn 0 into NaN."""
    text = (
        "g (float[1, 3, 5, 4] x) => (float[1, 3, 5, 4] y) { t = Conv <pads = [1, 1, 1, 1]> (x, W)\n y = PRelu(t, s) }"
    )
    slope = np.array([np.inf, np.nan, 2], np.float32).reshape(3, 1, 1)
    held = {"W": np.full((3, 1, 3, 3), -1, np.float32) * np.eye(3, 3, dtype=np.float32)[..., None, None], "s": slope}
    after = rewrite(model_from_text(text, held), WITH_SLOPES, ignore_cost_model=True)
    assert after.op_types == ["WinogradConvPRelu"]
    x = np.zeros((1, 3, 5, 4), np.float32)
    x[0, 2, 2, 1] = 1
    (y,) = run(after.proto, {"x": x}, library=True)
    want = np.zeros_like(x)
    want[0, 2, 1:4, 0:3] = -2
    np.testing.assert_allclose(y, want, atol=1e-5)


@pytest.mark.parametrize(
    ("code", "body", "outputs"),
    [
        ("GRAPH_OUTPUT", "y = PRelu(t, slopes)", "XT y, XT t"),
        ("OTHER_USES", "y = PRelu(t, slopes)\n z = Exp(t)", "XT y, XT z"),
        ("NOT_CONSTANT", "u = Neg(given)\n y = PRelu(t, u)", "XT y"),
        ("OVERRIDABLE", "y = PRelu(t, given)", "XT y"),
        ("QUANTIZED", "u = DequantizeLinear(whole, six)\n y = PRelu(t, u)", "XT y"),
        ("WRONG_SHAPE", "y = PRelu(t, columns)", "XT y"),
        ("WRONG_SHAPE", "y = PRelu(t, pixels)", "XT y"),
        (
            "ESCAPES",
            """y = If (q) <then_branch = p () => (XT i) { i = PRelu(t, slopes) },
                        else_branch = e () => (XT j) { j = Neg(x) }>""",
            "XT y",
        ),
    ],
)
def test_refused_slopes(code: str, body: str, outputs: str) -> None:
    text = f"g (bool q, XT x, float[6, 1, 1] given) => ({outputs}) {{ {CONVOLUTIONS['WinogradConv']}\n {body} }}"
    held = {"whole": np.ones((6, 1, 1), np.int8)} | ({"given": draw(6, 1, 1)} if code == "OVERRIDABLE" else {})
    before = model_from_text(text.replace("XT", "float[N, 6, 7, 5]"), weights() | held, check=False)
    after = rewrite(before, WITH_SLOPES, ignore_cost_model=True)
    assert [r.code for r in after.remarks if r.pass_name == "fuse_epilogue"] == [code]


def test_an_activation_in_a_branch_is_refused() -> None:
    text = f"""g (bool q, XT x) => (XT y) {{ {NODES["ScaleShift"]}
        y = If (q) <then_branch = p () => (XT i) {{ i = Relu(t) }}, else_branch = e () => (XT j) {{ j = Neg(x) }}> }}"""
    before = model_from_text(text.replace("XT", "float[N, 6, 7, 5]"), weights())
    after = rewrite(before, PASSES)
    assert [r.code for r in after.remarks if r.pass_name == "fuse_epilogue"] == ["ESCAPES"]


def test_function_bodies_are_written_for_the_opset_of_the_model() -> None:
    before = model("ScaleShift", "y = Clip(t, zero, six)", opset=11)
    after = rewrite(before, PASSES)
    assert_same_outputs(before, after.proto, {"x": draw(2, 6, 7, 5), "r": draw(2, 6, 7, 5)})
