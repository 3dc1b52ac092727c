"""LayerNorm and RMSNorm, decomposed and standard, with and without a residual; and refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx.reference import ReferenceEvaluator

from graphopt.passes.fuse_row_norm import FuseRowNorm
from tests.rewriting import Array, assert_same_outputs, model_from_text, rewrite, run

RNG = np.random.default_rng(4)
D = 24


def row(size: int = D, dtype: type = np.float32) -> Array:
    return RNG.standard_normal(size).astype(dtype)


LAYER_NORM = """
        two = Constant <value_float: float = 2.0> ()
        eps = Constant <value_float: float = 0.00001> ()
        m = ReduceMean <axes: ints = [-1]> (x)
        d = Sub(x, m)
        {square}
        v = ReduceMean <axes: ints = [-1]> (q)
        ve = Add(v, eps)
        std = Sqrt(ve)
        {divide}
"""
RMS_NORM = """
        two = Constant <value_float: float = 2.0> ()
        eps = Constant <value_float: float = 0.00001> ()
        q = Pow(x, two)
        v = ReduceMean <axes: ints = [-1]> (q)
        ve = Add(v, eps)
        std = Sqrt(ve)
        {divide}
"""
DIVIDE = {"layer": "n = Div(d, std)", "rms": "n = Div(x, std)"}
ONE_OVER = "one = Constant <value_float: float = 1.0> ()\n r = Div(one, std)\n n = Mul(%s, r)"
RECIPROCAL = {"layer": "r = Reciprocal(std)\n n = Mul(d, r)", "rms": "r = Reciprocal(std)\n n = Mul(x, r)"}


def layer_norm(opset: int = 17, square: str = "q = Mul(d, d)", divide: str = "n = Div(d, std)") -> onnx.ModelProto:
    body = LAYER_NORM.format(square=square, divide=divide)
    text = f"g (float[N, S, {D}] x) => (float[N, S, {D}] y) {{ {body} t = Mul(n, gamma)\n y = Add(t, beta) }}"
    return model_from_text(text, {"gamma": row(), "beta": row()}, opset=opset)


def rms_norm(divide: str = "n = Div(x, std)") -> onnx.ModelProto:
    text = f"g (float[N, S, {D}] x) => (float[N, S, {D}] y) {{ {RMS_NORM.format(divide=divide)} y = Mul(gamma, n) }}"
    return model_from_text(text, {"gamma": row()})


def rms_norm_half() -> onnx.ModelProto:
    """As in exported large language models: statistics in float32, everything else in float16."""
    body = RMS_NORM.format(divide="n32 = Div(x, std)\n n = Cast <to: int = 10> (n32)")
    text = f"""g (float16[N, S, {D}] x16) => (float16[N, S, {D}] y) {{
        x = Cast <to: int = 1> (x16) {body} y = Mul(gamma, n) }}"""
    return model_from_text(text, {"gamma": row(dtype=np.float16)})


def residual(reader: bool, op: str = "LayerNormalization") -> onnx.ModelProto:
    outputs = f"float[N, S, {D}] y" + (f", float[N, S, {D}] z" if reader else "")
    text = f"""g (float[N, S, {D}] x, float[N, S, {D}] r) => ({outputs}) {{
        s = Add(x, r)
        y = {op} <axis: int = -1, epsilon: float = 0.01> (s, gamma, beta)
        {"z = Neg(s)" if reader else ""}
    }}"""
    return model_from_text(text, {"gamma": row(), "beta": row()})


def feed(*shape: int) -> Array:
    return (RNG.standard_normal(shape) * 2 + 0.5).astype(np.float32)


STANDARD = ["ReduceMean", "Sub", "LayerNormalization"]
SQUARES = ("q = Mul(d, d)", "q = Pow(d, two)")
DIVISIONS = (DIVIDE["layer"], RECIPROCAL["layer"], ONE_OVER % "d")


@pytest.mark.parametrize("square", SQUARES)
@pytest.mark.parametrize("divide", DIVISIONS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_layer_norm_becomes_ours(square: str, divide: str, device: str) -> None:
    model = layer_norm(square=square, divide=divide)
    result = rewrite(model, [FuseRowNorm()], device=device)
    assert [t for t in result.op_types if t != "Constant"] == ["FusedLayerNorm"]
    assert_same_outputs(model, result.proto, {"x": feed(2, 5, D)})


@pytest.mark.parametrize("square", SQUARES)
@pytest.mark.parametrize("divide", DIVISIONS)
def test_layer_norm_becomes_standard(square: str, divide: str) -> None:
    model = layer_norm(square=square, divide=divide)
    result = rewrite(model, [FuseRowNorm()], device="portable", ignore_cost_model=True)
    assert [t for t in result.op_types if t != "Constant"] == STANDARD
    assert_same_outputs(model, result.proto, {"x": feed(2, 5, D)})
    # A target with our operators fuses the standard nodes into one, including the mean before them.
    again = rewrite(result.proto, [FuseRowNorm()])
    assert [t for t in again.op_types if t != "Constant"] == ["FusedLayerNorm"]
    assert_same_outputs(model, again.proto, {"x": feed(2, 5, D)})


def _fused_by_the_runtime(model: onnx.ModelProto, path: Path) -> bool:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 4
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return "Sqrt" not in [n.op_type for n in onnx.load(path).graph.node]


@pytest.mark.parametrize("square", SQUARES)
@pytest.mark.parametrize("divide", DIVISIONS)
def test_norms_that_the_runtime_fuses_are_kept(square: str, divide: str, tmp_path: Path) -> None:
    model = layer_norm(square=square, divide=divide)
    codes = rewrite(model, [FuseRowNorm()], device="portable").codes()
    assert (codes == ["NO_GAIN"]) == _fused_by_the_runtime(model, tmp_path / "optimized.onnx")


def layer_norm_half() -> onnx.ModelProto:
    body = LAYER_NORM.format(square="q = Pow(d, two)", divide="n32 = Div(d, std)\n n = Cast <to: int = 10> (n32)")
    text = f"""g (float16[N, S, {D}] x16) => (float16[N, S, {D}] y) {{
        x = Cast <to: int = 1> (x16) {body} t = Mul(n, gamma)\n y = Add(t, beta) }}"""
    return model_from_text(text, {"gamma": row(dtype=np.float16), "beta": row(dtype=np.float16)})


@pytest.mark.parametrize("device", ["cpu", "portable"])
def test_layer_norm_in_half_precision(device: str) -> None:
    model = layer_norm_half()
    result = rewrite(model, [FuseRowNorm()], device=device)
    kept = ["Cast", *STANDARD, "Cast"] if device == "portable" else ["FusedLayerNorm"]
    assert [t for t in result.op_types if t != "Constant"] == kept
    wide = {"x16": np.array([[[6e4, -6e4] * (D // 2), [3.0] * D, [1e-3] * (D // 2) + [2e-3] * (D // 2)]], np.float16)}
    for feeds in (wide, {"x16": feed(2, 5, D).astype(np.float16)}):
        assert_same_outputs(model, result.proto, feeds, tolerance=5e-3)


NEARLY_CONSTANT = {
    "far from zero": 100 + RNG.standard_normal((2, 5, D)),
    "alike": 5 + 1e-3 * RNG.standard_normal((2, 5, D)),
    "equal": 10 * np.broadcast_to(RNG.standard_normal((2, 5, 1)), (2, 5, D)),
}


@pytest.mark.parametrize("rows", NEARLY_CONSTANT)
@pytest.mark.parametrize("device", ["cpu", "rocm", "portable"])
@pytest.mark.parametrize("spelling", ["written out", "Keras"])
def test_rows_that_are_nearly_constant(spelling: str, device: str, rows: str) -> None:
    """LayerNormalization of onnxruntime 1.22 computes the variance as E[x^2] - E[x]^2, and is off by 4e-3, or NaN."""
    model = factored(f"r = Reciprocal(std)\n {SCALED}\n c = Sub(beta, b)\n y = Add(a, c)")
    if spelling == "written out":
        model = layer_norm()
    x = NEARLY_CONSTANT[rows].astype(np.float32)
    gamma, beta = (onnx.numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer[:2])
    centred = x.astype(np.float64) - x.mean(axis=-1, keepdims=True, dtype=np.float64)
    want = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5) * gamma + beta
    result = rewrite(model, [FuseRowNorm()], device=device, ignore_cost_model=True)
    assert "Sqrt" not in result.op_types
    error = float(np.max(np.abs(run(model, {"x": x})[0] - want)))
    for library in (False, True) if device != "portable" else (False,):
        (got,) = run(result.proto, {"x": x}, library=library)
        assert float(np.max(np.abs(got - want))) <= 2 * error + 1e-5, f"library={library}"


FACTORED = """
        eps = Constant <value_float: float = 0.00001> ()
        m = ReduceMean <axes: ints = [-1]> (x)
        d = Sub(x, m)
        q = Mul(d, d)
        v = ReduceMean <axes: ints = [-1]> (q)
        ve = Add(v, eps)
        std = Sqrt(ve)
"""
INVERSE = ("r = Reciprocal(std)", "one = Constant <value_float: float = 1.0> ()\n r = Div(one, std)")
SCALED = "f = Mul(r, gamma)\n a = Mul(x, f)\n b = Mul(m, f)"


def factored(tail: str, parameters: dict[str, Array] | None = None, *, mean_first: bool = False) -> onnx.ModelProto:
    statistics = FACTORED.replace("Sub(x, m)", "Sub(m, x)") if mean_first else FACTORED
    text = f"g (float[N, S, {D}] x) => (float[N, S, {D}] y) {{ {statistics} {tail} }}"
    return model_from_text(text, {"gamma": row(), "beta": row()} | (parameters or {}))


@pytest.mark.parametrize("inverse", INVERSE)
@pytest.mark.parametrize(
    "tail",
    [
        SCALED + "\n c = Sub(beta, b)\n y = Add(a, c)",
        SCALED + "\n c = Sub(beta, b)\n y = Add(c, a)",
        SCALED + "\n y = Sub(a, b)",
        "a = Mul(r, x)\n b = Mul(m, r)\n c = Sub(beta, b)\n y = Add(a, c)",
    ],
)
def test_layer_norm_as_keras_writes_it(inverse: str, tail: str) -> None:
    for mean_first in (False, True):  # TensorFlow's optimizer sorts the operands of squared_difference
        model = factored(f"{inverse}\n {tail}", mean_first=mean_first)
        result = rewrite(model, [FuseRowNorm()], device="portable")
        assert [t for t in result.op_types if t != "Constant"] == STANDARD
        assert_same_outputs(model, result.proto, {"x": feed(2, 5, D)})


def test_refuses_the_mean_as_first_operand_of_a_divided_difference() -> None:
    """If the difference is divided, its sign matters: -(X - mean(X)) / deviation is not a LayerNorm."""
    model = factored("y = Div(d, std)", mean_first=True)
    result = rewrite(model, [FuseRowNorm()], ignore_cost_model=True)
    assert "FusedLayerNorm" not in result.op_types
    assert_same_outputs(model, result.proto, {"x": feed(2, 5, D)})


@pytest.mark.parametrize(
    "tail",
    [
        "f = Mul(r, gamma)\n a = Mul(x, f)\n b = Mul(v, f)\n c = Sub(beta, b)\n y = Add(a, c)",  # not the mean
        SCALED + "\n c = Sub(b, beta)\n y = Add(a, c)",  # the other sign
        SCALED + "\n c = Sub(beta, b)\n y = Sub(a, c)",
        "f = Mul(r, gamma)\n a = Mul(d, f)\n b = Mul(m, f)\n c = Sub(beta, b)\n y = Add(a, c)",  # subtracted twice
    ],
)
def test_similar_forms_are_not_norms(tail: str) -> None:
    model = factored(f"r = Reciprocal(std)\n {tail}")
    result = rewrite(model, [FuseRowNorm()], device="portable")
    assert "LayerNormalization" not in result.op_types
    assert_same_outputs(model, result.proto, {"x": feed(2, 5, D)})


@pytest.mark.parametrize(
    ("code", "parameters"),
    [("WRONG_SHAPE", {"gamma": row(D)[:, None]}), ("BROADCAST_GROWS", {"beta": row(D)[None, None, None]})],
)
def test_refuses_parameters_of_the_factored_form(code: str, parameters: dict[str, Array]) -> None:
    model = factored(f"r = Reciprocal(std)\n {SCALED}\n c = Sub(beta, b)\n y = Add(a, c)", parameters)
    assert rewrite(model, [FuseRowNorm()], device="portable").codes() == [code]


def test_layer_norm_below_opset_17_becomes_ours() -> None:
    model = layer_norm(opset=13)
    result = rewrite(model, [FuseRowNorm()])
    assert "FusedLayerNorm" in result.op_types
    assert_same_outputs(model, result.proto, {"x": feed(2, 5, D)})


@pytest.mark.parametrize("divide", [DIVIDE["rms"], RECIPROCAL["rms"], ONE_OVER % "x"])
def test_rms_norm(divide: str) -> None:
    model = rms_norm(divide)
    result = rewrite(model, [FuseRowNorm()])
    assert "FusedRmsNorm" in result.op_types
    assert "Sqrt" not in result.op_types
    assert_same_outputs(model, result.proto, {"x": feed(2, 5, D)})


def test_rms_norm_in_half_precision_includes_the_casts() -> None:
    model = rms_norm_half()
    result = rewrite(model, [FuseRowNorm()])
    assert "FusedRmsNorm" in result.op_types
    assert "Cast" not in result.op_types
    assert_same_outputs(model, result.proto, {"x16": feed(2, 5, D).astype(np.float16)}, tolerance=5e-3)


@pytest.mark.parametrize("reader", [False, True])
def test_residual_on_a_gpu(reader: bool) -> None:
    model = residual(reader)
    result = rewrite(model, [FuseRowNorm()], device="rocm")
    assert ("FusedLayerNormAddSum" if reader else "FusedLayerNormAdd") in result.op_types
    assert "Add" not in result.op_types
    assert_same_outputs(model, result.proto, {"x": feed(2, 5, D), "r": feed(2, 5, D)})


def test_second_run_changes_nothing() -> None:
    once = rewrite(rms_norm(), [FuseRowNorm()])
    assert rewrite(once.proto, [FuseRowNorm()]).proto == once.proto


def refusal(model: onnx.ModelProto, device: str = "cpu") -> str:
    result = rewrite(model, [FuseRowNorm()], device=device)
    assert not any(t.startswith("Fused") for t in result.op_types)
    (remark,) = result.remarks
    return remark.code


def standard() -> onnx.ModelProto:
    text = (
        f"g (float[N, S, {D}] x) => (float[N, S, {D}] y) {{ y = LayerNormalization <axis: int = -1> (x, gamma, beta) }}"
    )
    return model_from_text(text, {"gamma": row(), "beta": row()})


def test_a_standard_node_becomes_ours_on_the_cpu() -> None:
    for model, op, feeds in (
        (standard(), "FusedLayerNorm", {"x": feed(2, 3, D)}),
        (residual(False), "FusedLayerNormAdd", {"x": feed(1, 3, D), "r": feed(1, 3, D)}),
        (residual(True), "FusedLayerNormAddSum", {"x": feed(1, 3, D), "r": feed(1, 3, D)}),
    ):
        result = rewrite(model, [FuseRowNorm()])
        assert op in result.op_types
        assert_same_outputs(model, result.proto, feeds)


def test_refuses_a_standard_node_without_residual_on_a_gpu() -> None:
    assert refusal(standard(), "rocm") == "NO_GAIN"
    assert "FusedLayerNorm" in rewrite(standard(), [FuseRowNorm()], device="rocm", ignore_cost_model=True).op_types


def test_refuses_portable_target() -> None:
    assert refusal(rms_norm(), device="portable") == "TARGET"


def test_refuses_double() -> None:
    model = rms_norm()
    text = onnx.printer.to_text(model).replace("float[N", "double[N")
    model = onnx.parser.parse_model(text)
    for i, tensor in enumerate(model.graph.initializer):
        wide = onnx.numpy_helper.to_array(tensor).astype(np.float64)
        model.graph.initializer[i].CopyFrom(onnx.numpy_helper.from_array(wide, tensor.name))
    assert refusal(model) == "WRONG_DTYPE"


def test_refuses_unknown_last_dimension() -> None:
    text = onnx.printer.to_text(rms_norm()).replace(f"float[N,S,{D}]", "float[N,S,E]")
    assert refusal(onnx.parser.parse_model(text)) == "UNKNOWN_SHAPE"


def test_refuses_unknown_rank() -> None:
    model = residual(False)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    assert refusal(model, "rocm") == "UNKNOWN_SHAPE"
    next(a for a in model.graph.node[1].attribute if a.name == "axis").i = 2
    assert refusal(model, "rocm") == "UNKNOWN_RANK"


def test_refuses_another_axis() -> None:
    model = residual(False)
    next(a for a in model.graph.node[1].attribute if a.name == "axis").i = 1
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.ones((5, D), np.float32), "gamma"))
    assert refusal(model, "rocm") == "WRONG_AXIS"


def test_refuses_when_the_mean_is_read() -> None:
    model = residual(False)
    model.graph.node[1].output.append("mean")
    model.graph.output.append(onnx.helper.make_tensor_value_info("mean", onnx.TensorProto.FLOAT, None))
    assert refusal(model, "rocm") == "ESCAPES"


def test_refuses_non_constant_scale() -> None:
    text = f"""g (float[N, {D}] x, float[{D}] gamma) => (float[N, {D}] y) {{
        y = LayerNormalization (x, gamma) }}"""
    assert refusal(model_from_text(text), "rocm") == "NOT_CONSTANT"


def test_refuses_overridable_scale() -> None:
    text = f"g (float[N, {D}] x, float[{D}] gamma) => (float[N, {D}] y) {{ y = LayerNormalization (x, gamma) }}"
    assert refusal(model_from_text(text, {"gamma": row()}), "rocm") == "OVERRIDABLE"


def test_refuses_scale_of_another_shape() -> None:
    text = f"g (float[N, {D}] x) => (float[N, {D}] y) {{ y = LayerNormalization (x, gamma) }}"
    assert refusal(
        model_from_text(text, {"gamma": RNG.standard_normal((1, D, 1)).astype(np.float32)}, check=False), "rocm"
    ) == ("WRONG_SHAPE")


def test_refuses_rows_of_one_number() -> None:
    text = """g (float[N, 1] x) => (float[N, 1] y) {
        two = Constant <value: tensor = float {2.0}> ()
        epsilon = Constant <value: tensor = float {0.01}> ()
        mean = ReduceMean <axes: ints = [-1]> (x) d = Sub (x, mean) p = Pow (d, two)
        v = ReduceMean <axes: ints = [-1]> (p) e = Add (v, epsilon) s = Sqrt (e) y = Div (d, s) }"""
    assert refusal(model_from_text(text)) == "WRONG_SHAPE"


def test_refuses_statistics_outside_float32() -> None:
    model = residual(False)
    model.graph.node[1].attribute.append(onnx.helper.make_attribute("stash_type", 16))
    assert refusal(model, "rocm") == "ATTRIBUTE"


def test_refuses_a_float32_result_of_a_float16_norm() -> None:
    body = RMS_NORM.format(divide="n = Div(x, std)")
    text = f"g (float16[N, {D}] x16) => (float[N, {D}] y) {{ x = Cast <to: int = 1> (x16) {body} y = Mul(gamma, n) }}"
    assert refusal(model_from_text(text, {"gamma": row()})) == "MIXED_DTYPE"


def test_leaves_a_sum_of_two_element_types() -> None:
    """No runtime accepts such a model, but a graph input may be declared wrongly."""
    text = f"""g (float[N, S, {D}] x, uint8[N, S, {D}] r) => (float[N, S, {D}] y) {{
        s = Add(x, r)
        y = LayerNormalization <axis: int = -1> (s, gamma, beta)
    }}"""
    model = model_from_text(text, {"gamma": row(), "beta": row()}, check=False)
    assert rewrite(model, [FuseRowNorm()], device="rocm").op_types[0] == "Add"


def test_refuses_deviation_that_is_read_elsewhere() -> None:
    model = rms_norm()
    model.graph.node.append(onnx.helper.make_node("Neg", ["std"], ["z"]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, None))
    assert refusal(model) == "OTHER_USES"


def test_refuses_deviation_that_is_an_output() -> None:
    model = rms_norm()
    model.graph.output.append(onnx.helper.make_tensor_value_info("std", onnx.TensorProto.FLOAT, None))
    assert refusal(model) == "GRAPH_OUTPUT"


def test_a_scale_that_enlarges_the_shape_is_not_fused() -> None:
    """Case T20 of docs/conformance.md: gamma of shape [4, 1, 1, D] would make the result larger than x."""
    body = RMS_NORM.format(divide=DIVIDE["rms"])
    text = f"g (float[N, S, {D}] x) => (float[4, N, S, {D}] y) {{ {body} y = Mul(n, gamma) }}"
    model = model_from_text(text, {"gamma": RNG.standard_normal((4, 1, 1, D)).astype(np.float32)})
    result = rewrite(model, [FuseRowNorm()])
    assert "Mul" in result.op_types
    assert_same_outputs(model, result.proto, {"x": feed(2, 3, D)})


def test_refuses_the_statistics_of_an_instance_norm() -> None:
    body = LAYER_NORM.format(square="q = Mul(d, d)", divide="y = Div(d, std)").replace("[-1]", "[1, 2]")
    model = model_from_text(f"g (float[N, S, {D}] x) => (float[N, S, {D}] y) {{ {body} }}")
    assert rewrite(model, [FuseRowNorm()]).codes() == ["WRONG_AXIS"]


def test_refuses_a_deviation_that_divides_something_else() -> None:
    body = LAYER_NORM.format(square="q = Mul(d, d)", divide="y = Div(x, std)")
    model = model_from_text(f"g (float[N, S, {D}] x) => (float[N, S, {D}] y) {{ {body} }}")
    assert rewrite(model, [FuseRowNorm()]).codes() == ["UNSUPPORTED_OP"]


def test_a_cast_with_other_readers_is_kept() -> None:
    body = RMS_NORM.format(divide="n32 = Div(x, std)\n n = Cast <to: int = 10> (n32)")
    text = f"""g (float16[N, S, {D}] x16) => (float16[N, S, {D}] y, float[N, S, {D}] z) {{
        x = Cast <to: int = 1> (x16) {body} y = Mul(gamma, n)  z = Neg(x) }}"""
    model = model_from_text(text, {"gamma": row(dtype=np.float16)})
    result = rewrite(model, [FuseRowNorm()])
    assert [t for t in result.op_types if t != "Constant"] == ["Cast", "FusedRmsNorm", "Neg"]
    assert_same_outputs(model, result.proto, {"x16": feed(2, 5, D).astype(np.float16)}, tolerance=5e-3)


@pytest.mark.parametrize("made", ["t = MatMul(a, w)  x = Add(t, u)", "t = MatMul(a, w)  r = Relu(t)  x = Add(u, r)"])
def test_the_last_dimension_is_known_without_the_rank(made: str) -> None:
    body = LAYER_NORM.format(square="q = Mul(d, d)", divide="n = Div(d, std)")
    text = f"""g (float[N, S, 8] a, float[A, B] b, int64[K] shape) => (float[P, Q, {D}] y) {{
        u = Reshape(b, shape)  {made}  {body}  t2 = Mul(n, gamma)  y = Add(t2, beta) }}"""
    constants = {"w": RNG.standard_normal((8, D)).astype(np.float32), "gamma": row(), "beta": row()}
    model = model_from_text(text, constants)
    result = rewrite(model, [FuseRowNorm()])
    assert any(t.startswith("FusedLayerNorm") for t in result.op_types)
    feeds = {"a": feed(2, 5, 8), "b": feed(10, D), "shape": np.array([2, 5, D])}
    assert_same_outputs(model, result.proto, feeds)


@pytest.mark.parametrize("form", ["rms", "mean first"])
def test_the_rank_of_a_difference_is_not_the_rank_of_its_first_operand(form: str) -> None:
    """In x = a - b, a has rank 2 and b has an unknown rank: axis 1 may not be the last axis of x."""
    if form == "rms":
        body = RMS_NORM.format(divide="n = Div(x, std)\n y = Mul(n, gamma)")
    else:
        body = FACTORED.replace("Sub(x, m)", "Sub(m, x)") + f"r = Reciprocal(std)\n {SCALED}\n y = Sub(a, b)"
    text = f"""g (float[4, 8] first, float[N] z, int64[K] shape) => (float y) {{
        second = Reshape(z, shape)  x = Sub(first, second)  {body.replace("[-1]", "[1]")} }}"""
    model = model_from_text(text, {"gamma": row(8)})
    model.graph.output[0].type.tensor_type.ClearField("shape")
    for device in ("portable", "cpu"):
        result = rewrite(model, [FuseRowNorm()], device=device, ignore_cost_model=True)
        assert not any("Norm" in op for op in result.op_types)
    for shape in ((4, 8), (3, 4, 8)):
        feeds = {"first": feed(4, 8), "z": feed(*shape).reshape(-1), "shape": np.array(shape)}
        assert_same_outputs(model, result.proto, feeds)


def test_rms_norm_becomes_standard_for_a_runtime_without_our_operators() -> None:
    # From opset 18 on, the axes of ReduceMean are an input.
    body = RMS_NORM.format(divide="n = Div(x, std)").replace(
        "ReduceMean <axes: ints = [-1]> (q)", "ReduceMean (q, axes)"
    )
    text = f"g (float[N, S, {D}] x) => (float[N, S, {D}] y) {{ {body} y = Mul(gamma, n) }}"
    for opset, left in ((22, "Sqrt"), (23, "RMSNormalization")):
        model = model_from_text(text, {"gamma": row(), "axes": np.array([-1])}, opset=opset)
        result = rewrite(model, [FuseRowNorm()], device="portable")
        assert left in result.op_types
        assert result.codes()[0] == ("TARGET" if left == "Sqrt" else "APPLIED")
    x = feed(2, 5, D)
    (got,) = map(np.asarray, ReferenceEvaluator(result.proto).run(None, {"x": x}))
    wide = x.astype(np.float64)
    gamma = onnx.numpy_helper.to_array(model.graph.initializer[0])
    want = wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + 1e-5) * gamma
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_a_rank_that_only_the_centred_value_shows() -> None:
    """The rank of X may be unknown although X - mean(X) has a declared rank: it must not become an RMSNorm."""
    body = LAYER_NORM.format(square="q = Mul(d, d)", divide="y = Div(d, std)")
    text = f"g (float[N] z, int64[K] s) => (float[2, 3, {D}] y, float[2, 3, {D}] d) {{ x = Reshape(z, s) {body} }}"
    result = rewrite(model_from_text(text, {}), [FuseRowNorm()])
    assert "FusedRmsNorm" not in result.op_types
    assert result.codes() == ["UNKNOWN_SHAPE"]
