"""`verify` detects wrong rewrites and accepts correct ones."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphopt
from graphopt.errors import OptionError, VerifyError
from graphopt.inputs.declared import symbols
from graphopt.inputs.plan import Case
from graphopt.metadata import Numerics
from graphopt.options import Precision
from graphopt.verification import modes, pair, run
from graphopt.verification.choices import level_difference
from graphopt.verification.compare import deviation, judge
from graphopt.verification.judge import STEP_UNITS
from graphopt.verification.noise import guessed, has_norms
from graphopt.verification.noise import with_noise as rounded
from graphopt.verification.pair import Pair, paired, rewritten
from graphopt.verification.report import NOISE
from graphopt.verification.rounding_error import RoundingErrors
from graphopt.verification.run import BODIES, Mode, open_session, run_cases
from graphopt.verification.variants import with_winograd
from graphopt.verification.verify import Verdict, verify
from models import ZOO
from models.pypi import TRAINED, fetch
from tests.contrib.nodes import RUNTIME
from tests.inputs.cases import make_cases
from tests.rewriting import Array, inferred, model_from_text
from tests.verification.planted.subjects import subjects


def feeds_of(model: onnx.ModelProto, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for value in model.graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            feeds[value.name] = rng.standard_normal(shape).astype(np.float32)
        else:
            feeds[value.name] = np.ones(shape, np.int64)
    return feeds


def test_an_output_that_is_no_number_on_any_input_is_not_compared(
    graphopt_command: Callable[..., Any], tmp_path: Path
) -> None:
    """NaN equals NaN, so such an output says nothing about AFTER."""
    text = "g (float[N, 4] x) => (float[N, 4] y, float[N, 4] z) { z = Abs(x) s = Sub(below, z) y = Sqrt(s) }"
    paths = [tmp_path / "before.onnx", tmp_path / "after.onnx"]
    for path, body in zip(paths, (text, text.replace("y = Sqrt(s)", "r = Sqrt(s) y = Neg(r)"))):
        onnx.save(model_from_text(body, {"below": np.float32(-1)}), path)
    assert graphopt_command("verify", *paths).exit_code == 0
    strict = graphopt_command("verify", *paths, "--strict", "--json")
    assert strict.exit_code == 9
    assert "output 'y': only the places of NaN" in json.loads(strict.stdout)["not_covered"][0]


EPSILON_FIRST = """g (float[N, 8] x) => (float[N, 8] y) {
    m = ReduceMean <axes: ints = [-1]> (x)
    d = Sub(x, m)
    square = Pow(d, two)
    v = ReduceMean <axes: ints = [-1]> (square)
    w = Add(epsilon, v)
    root = Sqrt(w)
    n = Div(d, root)
    scaled = Mul(n, g)
    y = Add(scaled, b) }"""


def test_differences_that_the_runtime_also_causes_in_before() -> None:
    """The LayerNormalization fusion of onnxruntime up to 1.31 reads an epsilon as 1e-5 if it is Add's first operand.

    `verify` must accept AFTER if BEFORE has the epsilon there as well, and reject AFTER if only AFTER has it there.
    """
    rng = np.random.default_rng(0)
    weights = {"g": rng.standard_normal(8, np.float32), "b": rng.standard_normal(8, np.float32)}
    weights |= {"two": np.array(2, np.float32), "epsilon": np.array(1e-12, np.float32)}
    first = model_from_text(EPSILON_FIRST, weights, 14)
    second = model_from_text(EPSILON_FIRST.replace("Add(epsilon, v)", "Add(v, epsilon)"), weights, 14)
    report = verify(first, first)
    assert report.equal, report.summary
    as_written = RUNTIME >= (1, 32)
    assert as_written or any("default optimization level" in note for note in report.notes)
    for after in (second, graphopt.optimize(first, target="cpu", ignore_cost_model=True)[0]):
        report = verify(first, after)
        assert report.equal, report.summary
    report = verify(second, first)
    assert report.equal == as_written
    assert as_written or (report.worst is not None and report.worst.optimized)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ZOO)
def test_no_false_alarm_on_the_zoo(name: str, seed: int) -> None:
    model = ZOO[name](small=True, dynamic=seed == 1, seed=seed)
    after, _ = graphopt.optimize(model, target="cpu", ignore_cost_model=True)
    report = verify(model, after, seed=seed)
    assert report.equal, report.summary
    assert {r.library for r in report.rows} >= {False}


def add_model(value: float, output: str = "y") -> onnx.ModelProto:
    text = f"g (float[N, 3] x) => (float[N, 3] {output}) {{ {output} = Add(x, c) }}"
    return model_from_text(text, {"c": np.float32(value)})


def test_the_exact_class_requires_equal_bits() -> None:
    before, after = add_model(1.0), add_model(1.0 + 2**-22)
    after.metadata_props.add(key="graphopt.numerics", value="exact")
    assert not verify(before, after).equal
    after.metadata_props[0].value = "reassociated"
    assert verify(before, after).equal


def test_metadata_cannot_contain_a_limit() -> None:
    after = add_model(1.01)
    after.metadata_props.add(key="graphopt.numerics", value="1.0")
    assert not verify(add_model(1.0), after).equal


def test_tolerances_of_the_caller() -> None:
    before, after = add_model(1.0), add_model(1.001)
    assert not verify(before, after).equal
    assert verify(before, after, rtol=1e-2).equal
    assert verify(before, after, rtol={"y": 1e-2}).equal
    assert not verify(before, after, rtol={"": 1e-6}).equal
    with pytest.raises(OptionError, match="no output 'z'"):
        verify(before, after, rtol={"z": 1e-2})
    assert verify(before, after, atol=0.01).equal


@pytest.mark.parametrize(
    ("want", "got", "words"),
    [
        (np.zeros(3, np.float32), np.zeros(3, np.float64), "type"),
        (np.zeros(3, np.float32), np.zeros((1, 3), np.float32), "shape"),
        (np.array([1, np.nan], np.float32), np.array([np.nan, 1], np.float32), "NaN"),
        (np.array([1, np.inf], np.float32), np.array([1, -np.inf], np.float32), "infinities"),
        (np.array([1, 2]), np.array([1, 3]), "values"),
        ([np.zeros(2)], [np.zeros(2), np.zeros(2)], "lengths"),
        (None, np.zeros(1), "absent"),
    ],
)
def test_structural_differences(want: Any, got: Any, words: str) -> None:
    found = deviation(want, got)
    assert words in (found.structure or "values" * (found.discrete and found.max_abs == 1))


def test_the_scale_of_a_distribution_is_that_of_its_rows() -> None:
    rows = np.zeros((2, 1000), np.float32)
    rows[0, 3], rows[1, 5:7] = 1, (0.6, 0.4)
    found = deviation(rows, rows)
    assert math.isclose(found.typical, math.sqrt((1 + 0.6**2 + 0.4**2) / 2), rel_tol=1e-5)
    for other in (2 * rows, rows - np.float32(1e-3)):
        assert math.isclose(deviation(other, other).typical, deviation(other, other).slices[0].scale[0])


def test_overridable_initializer_is_overridden() -> None:
    """A rewrite that uses the default value as a constant is correct on default inputs and wrong on others."""
    before = add_model(1.0)
    before.graph.input.append(helper.make_tensor_value_info("c", TensorProto.FLOAT, []))
    one = "one = Constant <value_float: float = 1.0> ()"
    text = f"g (float[N, 3] x, float c) => (float[N, 3] y) {{ {one}\n y = Add(x, one) }}"
    baked = model_from_text(text, {"c": np.float32(1.0)})
    report = verify(before, baked)
    assert not report.equal
    assert {r.case for r in report.rows if not r.equal} == {"overridden initializers"}


def test_padding_masks_are_tried() -> None:
    """AFTER ignores the mask, which shows only on padded inputs."""
    text = """g (float[B, 4] x, int64[B, 4] mask) => (float[B, 4] y) {{
        keep = Cast <to: int = 1> (mask)
        y = {} }}"""
    before = model_from_text(text.format("Mul(x, keep)"))
    after = model_from_text(text.format("Identity(x)"))
    report = verify(before, after)
    assert not report.equal
    caught = {r.case for r in report.rows if not r.equal}
    assert caught >= {"padded left", "padded right", "padded away", "padded both", "holes", "first row", "one key"}
    assert caught >= {"padded right, batch 1", "holes, batch 1"}
    assert not caught & {"normal, batch 1", "normal, batch 2", "zeros"}


def test_dropped_nan_guard_is_caught() -> None:
    """AFTER has no NaN guard, which shows only if a whole row is masked."""
    text = """g (float[B, 4, 4] s, int64[B, 4] mask) => (float[B, 4, 4] y) {{
        keep = Cast <to: int = 9> (mask)
        axis = Constant <value_ints: ints = [1]> ()
        keep3 = Unsqueeze(keep, axis)
        masked = Where(keep3, s, low)
        p = Softmax <axis: int = -1> (masked)
        nan = IsNaN(p)
        y = {} }}"""
    values = {"low": np.float32(-np.inf), "zero": np.float32(0.0)}
    before = model_from_text(text.format("Where(nan, zero, p)"), values)
    after = model_from_text(text.format("Identity(p)"), {"low": values["low"]})
    report = verify(before, after)
    assert not report.equal
    assert {r.case for r in report.rows if not r.equal} == {"padded away", "no key"}
    assert "NaN" in report.summary


def test_zeros_are_no_evidence_for_noise() -> None:
    """X W - X W' with nearly equal weights is rounding noise, and equal zeros must not count as evidence."""
    w = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    body = "a = MatMul(x, w)\n b = MatMul(x, w2)\n d = Sub(a, b)\n y = Mul(d, k)"
    text = f"g (float[N, 16] x) => (float[N, 16] y) {{ {body} }}"
    values = {"w": w, "w2": w * np.float32(1 - 1e-6), "k": np.float32(1.0)}
    with pytest.raises(VerifyError, match="rounding noise"):
        verify(model_from_text(text, values), model_from_text(text, {**values, "k": np.float32(1.3)}))


def test_token_ids_stay_inside_the_table() -> None:
    text = "g (int64[B, S] ids) => (float[B, S, 2] y) { y = Gather(table, ids) }"
    model = model_from_text(text, {"table": np.arange(10, dtype=np.float32).reshape(5, 2)})
    report = verify(model, model)
    assert report.equal
    assert not report.skipped


def test_inputs_of_the_caller(tmp_path: Path) -> None:
    before, after = add_model(1.0), add_model(2.0)
    x = np.ones((2, 3), np.float32)
    np.savez(tmp_path / "inputs.npz", x=x)
    assert not verify(before, after, inputs=tmp_path / "inputs.npz").equal
    assert not verify(before, after, inputs=tmp_path).equal
    folder = tmp_path / "test_data_set_0"
    folder.mkdir()
    (folder / "input_0.pb").write_bytes(onnx.numpy_helper.from_array(x, "x").SerializeToString())
    rows = verify(before, before, inputs=tmp_path).rows
    assert [r.case for r in rows if not r.optimized] == ["test_data_set_0", "inputs.npz"]
    (tmp_path / "broken.npz").write_bytes(b"no zip")
    with pytest.raises(VerifyError, match="cannot be read as inputs"):
        verify(before, after, inputs=tmp_path / "broken.npz")
    with pytest.raises(VerifyError, match="no such file or folder"):
        verify(before, after, inputs=tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(VerifyError, match="contains no inputs"):
        verify(before, after, inputs=tmp_path / "empty")


def test_model_that_does_not_run() -> None:
    text = "g (float[N] x) => (float[N] y) { y = Mystery(x) }"
    model = model_from_text(text, check=False)
    with pytest.raises(VerifyError, match=r"has no operator Mystery: .*--custom-ops"):
        verify(model, model)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("(float[N] x) => (float[N] y)", "(float[N] z) => (float[N] y)", "inputs are ['z'], they were ['x']"),
        ("(float[N] x) => (float[N] y)", "(float[N] x) => (float[N] z)", "outputs are ['z'], they were ['y']"),
        ("(float[N] x) => (float[N] y)", "(double[N] x) => (float[N] y)", "input 'x': FLOAT became DOUBLE"),
        ("(float[N] x) => (float[N] y)", "(float[M] x) => (float[M] y)", "dimensions ['N'] became ['M']"),
        ("(float[3] x) => (float[3] y)", "(float[N] x) => (float[3] y)", "dimensions [3] became ['N']"),
        ("(float[3] x) => (float[3] y)", "(float[3] x) => (float[4] y)", "output 'y': dimensions [3] became [4]"),
        ("(float[3] x) => (float[3] y)", "(float[3] x) => (float[3, 1] y)", "output 'y': dimensions [3] became [3, 1]"),
    ],
)
def test_interfaces_that_contradict_each_other(before: str, after: str, words: str) -> None:
    sides = []
    for text in (before, after):
        x, y = (part.strip(" ()").split()[-1] for part in text.split("=>"))
        sides.append(model_from_text(f"g {text} {{ {y} = Identity({x}) }}", check=False))
    report = verify(*sides)
    assert not report.equal
    assert words in report.summary


def test_lost_or_overridable_interface() -> None:
    before = add_model(1.0)
    before.graph.input.append(helper.make_tensor_value_info("c", TensorProto.FLOAT, []))
    assert "overridable" in verify(before, add_model(1.0)).summary
    unknown = add_model(1.0)
    unknown.graph.output[0].type.tensor_type.ClearField("shape")
    assert verify(add_model(1.0), unknown).equal


def test_sizes_that_after_fixes_are_kept() -> None:
    before = ZOO["resnet18"](small=True, dynamic=True)
    after, _ = graphopt.optimize(before, target="cpu", input_shapes={"input": (3, 3, 32, 32)})
    report = verify(before, after)
    assert report.equal
    assert report.fixed == {"batch": 3}
    assert "batch=3" in report.summary


def test_a_symbol_has_the_same_size_everywhere() -> None:
    text = """g (float[A, B] x, float[B, A] z, float[A, past, 2] p, float[A, "past + B", 2] q) => (float[A, A] y) {
        y = MatMul(x, z) unused = Concat <axis: int = 1> (p, q) }"""
    model = model_from_text(text)
    assert symbols(model) == {"A": "batch", "B": "length", "past": "length"}
    for case in make_cases(model, seed=0):
        A, B = case.feeds["x"].shape
        assert case.feeds["z"].shape == (B, A)
        assert case.feeds["q"].shape[1] == case.feeds["p"].shape[1] + B
    assert not verify(model, model).skipped
    cases = {c.name: c.feeds for c in make_cases(model, seed=0)}
    assert any(f["x"].shape[1] != f["p"].shape[1] for f in cases.values())
    assert cases["empty past"]["p"].shape[1] == 0
    assert cases["decode step"]["x"].shape[1] == 1
    assert {f["x"].shape[0] for f in cases.values()} >= {1, 2, 3, 4}
    assert {f["x"].shape[1] for f in cases.values()} >= {1, 2, 3, 7, 31, 32, 33, 63, 64, 65}


@pytest.mark.parametrize("tokens", ["1", "N"])
def test_a_mask_over_kept_and_new_steps(tokens: str) -> None:
    """Exporters give the mask of a decoder step its own symbol, so equal sizes for all symbols fail, except 0."""
    text = f"""g (int64[B, {tokens}] ids, int64[B, M] mask, float[B, 2, P, 4] past_key) => (float[B, 2, M, 4] key) {{
        k = Gather(table, ids)
        heads = Reshape(k, split)
        own = Transpose <perm: ints = [0, 2, 1, 3]> (heads)
        all = Concat <axis: int = 2> (past_key, own)
        f = Cast <to: int = 1> (mask)
        axes = Constant <value_ints: ints = [1, 3]> ()
        wide = Unsqueeze(f, axes)
        sized = Shape(all)
        two = Constant <value_ints: ints = [2]> ()
        three = Constant <value_ints: ints = [3]> ()
        length = Slice(sized, two, three)
        one = Constant <value_ints: ints = [1]> ()
        rest = Constant <value_ints: ints = [-1]> ()
        shape = Concat <axis: int = 0> (rest, one, length, one)
        fitted = Reshape(wide, shape)
        key = Mul(all, fitted) }}"""
    table = np.random.default_rng(0).standard_normal((16, 8), np.float32)
    weights = {"table": table, "split": np.array([0, 0, 2, 4])}
    model = model_from_text(text, weights)
    report = verify(model, model)
    assert report.not_covered == []
    assert {"normal, batch 2", "empty past", "padded right"} <= {row.case for row in report.rows}
    table[:, 3] = 0
    assert not verify(model, model_from_text(text, weights | {"table": table})).equal


def test_height_and_width_differ_in_one_case() -> None:
    text = "g (float[N, 1, H, W] x) => (float[{}] y) {{ t = Transpose <perm: ints = [0, 1, 3, 2]> (x) y = Shape({}) }}"
    text = text.replace("float[{}] y", "int64[4] y")
    before, after = (model_from_text(text.format(v)) for v in ("x", "t"))
    caught = {r.case for r in verify(before, after).rows if not r.equal}
    assert {"N=3, H=64, W=96", "N=4, H=96, W=64"} <= caught
    assert "normal, batch 1" not in caught


def test_probes_show_a_dropped_nan_guard() -> None:
    text = "g (float[N, 64] x) => (float[N, 64] y) {{ n = IsNaN(x) g = Where(n, zero, x) y = Relu({}) }}"
    values = {"zero": np.float32(0.0)}
    before, after = (model_from_text(text.format(v), values) for v in ("g", "x"))
    assert verify(before, after).equal
    report = verify(before, after, probe_nan=True)
    assert {r.case for r in report.rows if not r.equal} == {"NaN"}
    assert verify(before, before, probe_nan=True).equal


def test_padding_with_zeros_shows_on_negative_inputs() -> None:
    """Relu acts like a max pool over one element with a wrong padding value of 0: it shows only on negative inputs."""
    text = "g (float[1, 1, 4] x) => (float[1, 1, 4] y) { y = "
    before = model_from_text(text + "LeakyRelu <alpha: float = 0.1> (x) }")
    after = model_from_text(text + "Relu(x) }")
    assert "negative" in {r.case for r in verify(before, after).rows if not r.equal}
    assert all((c.feeds["x"] <= 0).all() for c in make_cases(before, 0) if c.name == "negative")


def test_noise_does_not_change_masks_and_integers() -> None:
    low = np.finfo(np.float32).min
    unit = 2.0**-20
    mask = np.array([0, low, -np.inf, np.inf, -low, 1.0, -2.0, -10000.0], np.float32)
    mixed = np.append(mask[:5], np.array([3e-20, -1.5e10 / 7, 0.3, 1.0], np.float32))
    for seed in (1, 2):
        rng = np.random.default_rng(seed)
        np.testing.assert_array_equal(rounded(mask, unit, rng), mask)
        once: Array = rounded(mixed, unit, rng)
        np.testing.assert_array_equal(once[:5], mixed[:5])
        assert (once[5:] != mixed[5:]).all()
        np.testing.assert_allclose(once[5:], mixed[5:], rtol=2 * unit)


def test_bfloat16() -> None:
    text = """g (bfloat16[N, 8] x) => (bfloat16[N, 8] y, float[N, 8] z) {{
        f = Cast <to: int = 1> (x) {} s = {} y = Cast <to: int = 16> (s) }}"""
    exact, rounded = "z = Mul(f, c)", "m = Mul(f, c) b = Cast <to: int = 16> (m) z = Cast <to: int = 1> (b)"
    before, close, wrong = (
        model_from_text(text.format(*bodies), {"c": np.float32(1.003)})
        for bodies in ((exact, "Sigmoid(z)"), (rounded, "Sigmoid(z)"), (exact, "Tanh(z)"))
    )
    report = verify(before, close)
    assert report.equal
    assert report.numerics == "bf16"
    assert {r.case for r in report.rows} >= {"large", "negative"}
    assert not verify(before, wrong).equal


@pytest.mark.parametrize("name", ["vit", "bert"])
def test_attention_in_bfloat16(name: str) -> None:
    """FusedAttentionBf16 also rounds V and the probabilities; with zero inputs nothing else is rounded."""
    before = ZOO[name](small=True, dynamic=True, seed=2)
    after, _ = graphopt.optimize(before, target="cpu", precision="bf16")
    attention = next(n for n in after.graph.node if n.op_type.startswith("FusedAttention"))
    assert attention.op_type.endswith("Bf16")
    report = verify(before, after, effort="quick")
    assert report.equal, report.summary
    scale = next(a for a in attention.attribute if a.name == "scale")
    scale.f *= 2
    assert not verify(before, after, effort="quick").equal


def _one_attention(projected: bool, mask: str) -> onnx.ModelProto:
    """Returns attention with 4 heads of size 16, projected inside the operator or by MatMul nodes before it."""
    rng = np.random.default_rng(0)
    masked = ", m" if mask else ""
    if projected:
        body = f"y = com.microsoft.Attention <num_heads = 4> (x, w, b{masked})"
        weights = {"w": rng.standard_normal((64, 192)) / 8, "b": rng.standard_normal(192)}
    else:
        body = "q = MatMul(x, a) k = MatMul(x, b) v = MatMul(x, c) "
        body += f"y = com.microsoft.MultiHeadAttention <num_heads = 4> (q, k, v{', ' if mask else ''}{masked})"
        weights = {name: rng.standard_normal((64, 64)) / 8 for name in "abc"}
    inputs = "float[B, S, 64] x" + (f", int32[{mask}] m" if mask else "")
    constants = {name: array.astype(np.float32) for name, array in weights.items()}
    model = model_from_text(f"g ({inputs}) => (float[B, S, 64] y) {{ {body} }}", constants, check=False)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model


@pytest.mark.parametrize("mask", ["", "B, S"])
@pytest.mark.parametrize("projected", [True, False])
def test_an_attention_of_one_operator_in_bfloat16(projected: bool, mask: str) -> None:
    """AFTER rounds values that have other names in BEFORE, or exist in BEFORE only inside an operator (probabilities).

    If scores are thousands apart, rounding decides which key wins; the first noise draw may agree with BEFORE.
    """
    before = _one_attention(projected, mask)
    after, _ = graphopt.optimize(before, target="cpu", precision="bf16")
    attention = next(n for n in after.graph.node if n.op_type.startswith("FusedAttention"))
    assert attention.op_type.endswith("Bf16")
    assert rewritten(inferred(before), inferred(after)).coarse >= ({"x"} if projected else {"q", "k", "v"})
    seen = np.array([[1] * 15 + [0], [0] * 16, [0, *[1] * 14, 0]], np.int32)
    x = np.random.default_rng(0).standard_normal((3, 16, 64)).astype(np.float32)
    for size in (1, 1000, 3000):
        given = {"x": size * x, **({"m": seen} if mask else {})}
        report = verify(before, after, inputs=given)
        assert report.equal, report.summary
    scale = next(a for a in attention.attribute if a.name == "scale")
    scale.f *= 1.3
    assert not verify(before, after, inputs={"x": x, **({"m": seen} if mask else {})})


LOOKED_UP = "g (int64[B, S] x) => (float[B, S, 4] y) { u = Unsqueeze(x, end) s = Squeeze(u, end) y = Gather(t, s) }"
POSITIONS = """g (float[B, S, 4] x) => (float[B, S, 4] y) {
    d = Shape(x) n = Gather(d, one) r = Range(zero, n, one) p = Gather(t, r) y = Add(x, p) }"""


@pytest.mark.parametrize("text", [LOOKED_UP, POSITIONS])
def test_a_row_of_a_large_table(text: str, tmp_path: Path) -> None:
    """Random inputs do not read the changed row: `verify` makes an input that does, or reports that none does."""
    table = np.random.default_rng(0).standard_normal((4000, 4)).astype(np.float32)
    moved = table.copy()
    moved[1234] += 1e-3
    paths = [tmp_path / f"{name}.onnx" for name in ("before", "after", "close", "half")]
    numbers = (table, moved, table * np.float32(1 + 2e-7), table.astype(np.float16).astype(np.float32))
    for path, rows in zip(paths, numbers):
        constants = {"t": rows, "end": np.array([-1]), "one": np.array(1), "zero": np.array(0)}
        model = model_from_text(text, {n: a for n, a in constants.items() if f" {n}" in text or f"({n}" in text})
        onnx.save(model, path, save_as_external_data=True, location=f"{path.stem}.data", size_threshold=1024)
    report = verify(*paths[:2])
    if text == LOOKED_UP:
        assert not report
        assert any(row.case == "rows of 't'" and not row.equal for row in report.rows)
    else:
        assert report.not_covered == ["row 1234 of 't' differs in AFTER, and no input reads it"]
    report = verify(paths[0], paths[2])
    assert report and not report.not_covered
    assert not verify(paths[0], paths[3])


def test_attention_operands_after_reshapes_in_bfloat16() -> None:
    """The operands of this attention are results of Reshape nodes, whose inputs are float32 in AFTER."""
    subject = next(s for s in subjects(trained=False) if s.name == "encoder_added_2")
    before = subject.build()
    after, _ = graphopt.optimize(before, target="cpu", precision="bf16")
    assert any(n.op_type == "FusedAttentionBiasBf16" for n in after.graph.node)
    report = verify(before, after, effort="quick")
    assert report.equal, report.summary


@pytest.mark.once
def test_large_models_one_side_at_a_time(tmp_path: Path) -> None:
    """Each side has 96 MiB of weights and a packed copy of them: only one side is in memory at a time."""
    width = 5016
    model = model_from_text(
        f"g (float[N, {width}] x) => (float[N, {width}] y) {{ y = MatMul(x, w) }}",
        {"w": np.full((width, width), 1e-3, np.float32)},
    )
    paths = [tmp_path / "a.onnx", tmp_path / "b.onnx"]
    for path in paths:
        onnx.save(model, path, save_as_external_data=True, location=path.stem + ".data")
    status = "[int(s.split()[1]) for s in open('/proc/self/status') if s.startswith('VmHWM')][0]"
    code = f"""
import sys
from pathlib import Path
import graphopt, graphopt.verification.verify
from graphopt.runtime.discovery import import_onnxruntime
import_onnxruntime()
before = {status}
assert graphopt.verify(*map(Path, sys.argv[1:])).equal
print({status} - before)"""
    done = subprocess.run([sys.executable, "-c", code, *map(str, paths)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 2.5 * 96 * 1024


def test_freed_tensors_return_to_the_system() -> None:
    """Frees tensors of 12 MiB below a used one, after a block of 30 MiB has made glibc raise its mmap threshold.

    The test uses a separate process, since the heap of this process may have free blocks that fit a tensor.
    """
    code = """
import os
from pathlib import Path
import numpy as np
import graphopt.verification.run
resident = lambda: int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
graphopt.verification.run._map_large_tensors()
del [np.ones(30 << 20, np.uint8)][:]
tensors = [np.ones(12 << 20, np.uint8) for _ in range(8)]
before = resident()
del tensors[:-1]
print(before - resident())"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 80 << 20


def test_large_weights_live_until_the_session_exists() -> None:
    """A session of an ir.Model gets large weights outside the message, here 48 MiB for a chain of GEMMs."""
    rng = np.random.default_rng(0)
    values = {f"w{i}": rng.standard_normal((256, 256)).astype(np.float32) / 16 for i in range(192)}
    chain = "".join(f"x{i + 1} = MatMul(x{i}, w{i}) " for i in range(192))
    model = model_from_text(f"g (float[2, 256] x0) => (float[2, 256] x192) {{ {chain} }}", values)
    feeds = {"x0": rng.standard_normal((2, 256)).astype(np.float32)}
    (got,) = open_session(ir.serde.deserialize_model(model)).run(None, feeds)
    np.testing.assert_array_equal(got, open_session(model).run(None, feeds)[0])


def test_one_session_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """BEFORE, AFTER by its function bodies, and AFTER with the library: each session is freed before the next opens."""
    sessions: list[weakref.ref[Any]] = []

    def opened(*args: Any, **options: Any) -> Any:
        assert [session() for session in sessions] == [None] * len(sessions)
        session = open_session(*args, **options)
        sessions.append(weakref.ref(session))
        return session

    text = "g (float[1, 8, 9, 9] x) => (float[1, 16, 9, 9] y) { y = Conv <pads: ints = [1, 1, 1, 1]> (x, w) }"
    before = model_from_text(text, {"w": np.ones((16, 8, 3, 3), np.float32)})
    after, _ = graphopt.optimize(before, target="cpu", ignore_cost_model=True)
    monkeypatch.setattr(modes, "open_session", opened)
    assert verify(before, after, effort="quick")
    assert len(sessions) == 3


@pytest.mark.parametrize("allowed", [1 << 10, 1 << 30])
def test_sessions_of_large_models_reuse_no_buffers(monkeypatch: pytest.MonkeyPatch, allowed: int) -> None:
    """An input of [1, 64, 64] floats fits only into the larger memory budget, but runs with both."""
    asked = []

    def opened(*args: Any, **options: Any) -> Any:
        asked.append(options.get("reuse", True))
        return open_session(*args, **options)

    monkeypatch.setattr(modes, "open_session", opened)
    monkeypatch.setattr(pair, "MEMORY_OF_A_SET", allowed)
    model = model_from_text("g (float[1, 64, 64] x) => (float[1, 64, 64] y) { y = Relu(x) }")
    assert verify(model, model, effort="quick")
    assert asked[:2] == [allowed == 1 << 30] * 2


def test_command(graphopt_command: Callable[..., Any], tmp_path: Path) -> None:
    a, b = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(add_model(1.0), a)
    onnx.save(add_model(1.5), b)
    assert graphopt_command("verify", a, a).exit_code == 0
    different = graphopt_command("verify", a, b, "--json")
    assert different.exit_code == 1
    assert json.loads(different.stdout)["equal"] is False
    assert graphopt_command("verify", a, b, "--rtol", "y:10").exit_code == 0
    missing = graphopt_command("verify", a, tmp_path / "c.onnx")
    assert missing.exit_code == 3
    assert "no such file" in missing.stderr


# -- comparisons and limits -----------------------------------------------------------------------------------------


def with_attribute(model: onnx.ModelProto, op: str, name: str, factor: float) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    changed = [a for n in copy.graph.node if n.op_type.startswith(op) for a in n.attribute if a.name == name]
    assert changed
    for attribute in changed:
        attribute.f *= factor
    return copy


def detector() -> onnx.ModelProto:
    """Boxes of up to 1200 pixels beside scores of a few percent in one output [N, anchors, 4 + 3]."""
    rng = np.random.default_rng(3)
    text = """g (float[N, 50, 16] x) => (float[N, 50, 7] y) {
        b = MatMul(x, boxes) e = Sigmoid(b) p = Mul(e, pixels)
        c = MatMul(x, classes) d = Add(c, prior) s = Sigmoid(d)
        y = Concat <axis: int = 2> (p, s) }"""
    values: dict[str, Any] = {
        "boxes": (0.3 * rng.standard_normal((16, 4))).astype(np.float32),
        "classes": (0.2 * rng.standard_normal((16, 3))).astype(np.float32),
        "prior": np.full(3, -4.0, np.float32),
        "pixels": np.float32(1200),
    }
    return model_from_text(text, values)


@pytest.mark.parametrize("precision", [None, "fp16"])
def test_scores_beside_boxes(precision: Precision | None) -> None:
    before = detector()
    after, _ = graphopt.optimize(before, target="cuda", precision=precision)
    report = verify(before, after)
    assert report.equal, report.summary
    nodes = [n for n in after.graph.node if n.op_type == "Concat"]
    scores = nodes[0].input[1]
    zeroed = onnx.ModelProto()
    zeroed.CopyFrom(after)
    at = [n.op_type for n in zeroed.graph.node].index("Concat")
    zeroed.graph.node.insert(at, helper.make_node("Sub", [scores, scores], ["no_scores"]))
    zeroed.graph.node[at + 1].input[1] = "no_scores"
    report = verify(before, zeroed)
    assert not report
    assert max((r for r in report.rows), key=lambda r: r.severity).slice in ("[:, :, 4]", "[:, :, 5]", "[:, :, 6]")


@pytest.mark.parametrize("given", [True, False], ids=["one set of inputs", "many"])
def test_a_small_score_beside_large_coordinates(given: bool) -> None:
    """Four box coordinates and a score are a slice each; the score of a few percent is off by a fraction of 1e-4."""
    rng = np.random.default_rng(3)
    text = """g (float[1, 16] x) => (float[1, 5] y) {
        b = MatMul(x, boxes) p = Mul(b, pixels)
        c = MatMul(x, classes) d = Sigmoid(c) s = Mul(d, factor)
        y = Concat <axis: int = 1> (p, s) }"""
    values: dict[str, Any] = {
        "boxes": (0.3 * rng.standard_normal((16, 4))).astype(np.float32),
        "classes": (0.2 * rng.standard_normal((16, 1))).astype(np.float32),
        "pixels": np.float32(1200),
        "factor": np.float32(0.05),
    }
    before = model_from_text(text, values)
    inputs = {"x": rng.standard_normal((1, 16)).astype(np.float32)} if given else None
    near = values | {n: values[n] * np.float32(1 + 1e-7) for n in ("boxes", "classes")}
    assert verify(before, model_from_text(text, near), inputs=inputs)
    assert not verify(before, model_from_text(text, values | {"factor": np.float32(0.050005)}), inputs=inputs)


@pytest.mark.parametrize("name", ["vit", *(pytest.param(n, marks=pytest.mark.once) for n in ("bert", "gpt2"))])
def test_scale_of_attention_in_half_precision(name: str) -> None:
    before = ZOO[name](small=True, dynamic=True)
    after, _ = graphopt.optimize(before, target="cuda", precision="fp16", ignore_cost_model=True)
    assert verify(before, after)
    assert not verify(before, with_attribute(after, "FusedAttention", "scale", 1.5))


@pytest.mark.once
def test_scale_of_attention_of_an_exported_bert_in_half_precision() -> None:
    """Three layers of MiniLM as PyTorch exports them, on one input set."""
    before, feeds = onnx.load(fetch("paraphrase")), TRAINED["paraphrase"].feeds[0](np.random.default_rng(5))
    after, _ = graphopt.optimize(before, target="cuda", precision="fp16", ignore_cost_model=True)
    assert verify(before, after, inputs=feeds)
    assert not verify(before, with_attribute(after, "FusedAttention", "scale", 1.5), inputs=feeds)


def test_a_winograd_convolution_that_is_slightly_off() -> None:
    before = ZOO["resnet18"](small=True)
    after, _ = graphopt.optimize(before, target="cpu", ignore_cost_model=True)
    assert verify(before, after).numerics == "approximate"
    node = next(n for n in after.graph.node if n.op_type.startswith("WinogradConv"))
    weight = next(t for t in after.graph.initializer if t.name == node.input[1])
    weight.CopyFrom(
        onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight) * np.float32(1 + 3e-4), weight.name)
    )
    assert not verify(before, after)


@pytest.mark.parametrize(
    ("opset", "sizes", "results"),
    [
        (17, "H, W", "P, Q"),
        pytest.param(10, "H, W", "P, Q", marks=pytest.mark.once),
        *(pytest.param(n, "15, 18", "14, 19", marks=pytest.mark.once) for n in (9, 7)),
    ],
)
def test_winograd_in_standard_onnx_has_the_rounding_of_the_kernel(opset: int, sizes: str, results: str) -> None:
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((16, 8, 3, 3)).astype(np.float32), "b": np.ones(16, np.float32)}
    text = f"""g (float[N, 8, {sizes}] x) => (float[N, 16, {results}] y) {{
        y = Conv <pads: ints = [1, 2, 0, 1]> (x, w, b) }}"""
    model, _ = graphopt.optimize(model_from_text(text, weights, opset), target="cpu", ignore_cost_model=True)
    other = with_winograd(inferred(model))
    cases = list(make_cases(model, 0))
    wanted, got = run_cases(model, cases), run_cases(other, cases)
    errors = []
    for case in cases:
        if isinstance(wanted[case.name], str):  # smaller than the kernel
            assert isinstance(got[case.name], str)
            continue
        for want, have in zip(wanted[case.name], got[case.name]):
            found = deviation(want, have)
            assert not found.structure, found.structure
            errors.append(found.relative)
    assert 1e-7 < max(errors) < 1e-4


def test_winograd_where_large_weights_meet_padding_at_an_old_opset() -> None:
    """The last kernel column is large. Results where it reads padding are small, but share their tile's rounding."""
    rng = np.random.default_rng(0)
    w = (rng.standard_normal((4, 4, 3, 3)) / 12).astype(np.float32) * np.array([1, 1, 100], np.float32)
    text = "g (float[N,4,13,13] x) => (float[N,4,13,13] y) { y = Conv <pads: ints = [1,1,1,1]> (x, w) }"
    before = model_from_text(text, {"w": w}, opset=9)
    after, _ = graphopt.optimize(before, target="cpu", ignore_cost_model=True)
    assert verify(before, after)
    weight = onnx.numpy_helper.from_array(w * np.float32(1 + 3e-3), after.graph.initializer[0].name)
    after.graph.initializer[0].CopyFrom(weight)
    assert not verify(before, after)


@pytest.mark.parametrize(("target", "layers", "seed"), [("cpu", 1, 5), ("rocm", 2, 7)])
def test_weights_stored_in_half_precision_before_a_quantization(target: str, layers: int, seed: int) -> None:
    """Rounding the weights changes a quantized value that decides a softmax; only few draws of noise change it."""
    rng = np.random.default_rng(seed)
    numbers = (rng.standard_normal((layers, 8, 8, 3, 1)) / 5).astype(np.float32)
    body = ""
    for i in range(layers):
        body += f"""c{i} = Conv <pads: ints = [1, 0, 1, 0]> ({f"d{i - 1}" if i else "x"}, w{i})
            q{i}, s{i}, z{i} = DynamicQuantizeLinear(c{i}) d{i} = DequantizeLinear(q{i}, s{i}, z{i}) """
    text = f"""g (float[N, 8, 12, 1] x) => (float[N, 8, 12, 1] y) {{
        {body} e = Mul(d{layers - 1}, k) y = Softmax <axis: int = 1> (e) }}"""

    def model(factor: float) -> onnx.ModelProto:
        weights = {f"w{i}": w * np.float32(factor) for i, w in enumerate(numbers)}
        return model_from_text(text, weights | {"k": np.array(60, np.float32)})

    before = model(1)
    # The fault is 32 times the largest rounding error of a weight.
    after, fault = (
        graphopt.optimize(model(factor), target=target, precision="fp16", ignore_cost_model=True)[0]
        for factor in (1, 1 + 2**-6)
    )
    report = verify(before, after)
    assert report.equal, report.summary
    assert not verify(before, fault)


def test_a_model_that_runs_only_at_the_default_level() -> None:
    """The runtime has no float64 Erf kernel; at its default level it needs only the shape of this Erf."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((8, 8)).astype(np.float32), "b": np.ones(8, np.float32)}
    text = """g (float[4, 8] x, double[4, 8] u) => (float[4, 8] y, int64[2] s) {
        p = Erf(u) s = Shape(p)
        m = MatMul(x, w) a = Add(m, b) y = Tanh(a) }"""
    before = model_from_text(text, weights)
    with pytest.raises(VerifyError, match="cannot load"):
        run_cases(before, [])
    report = verify(before, model_from_text(text.replace("Add(m, b)", "Add(b, m)"), weights))
    assert report and all(row.optimized for row in report.rows)
    assert any("only at the runtime's default optimization level" in note for note in report.notes)
    assert "at the runtime's default level" in report.summary
    other = model_from_text(text, weights | {"b": np.full(8, 1.001, np.float32)})
    assert verify(before, other).verdict == Verdict.DIFFERENT


def test_no_sizes_are_searched_for_a_model_that_no_level_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime has no float64 Erf kernel."""
    before = model_from_text("g (double[A, B, C] x) => (double[A, B, C] y) { y = Erf(x) }")
    monkeypatch.setattr(modes, "plan", lambda *_: pytest.fail("sizes were searched"))
    with pytest.raises(VerifyError, match="cannot load"):
        verify(before, before)


def test_one_level_of_a_quantized_value_is_equal() -> None:
    """For one of about a hundred images a Winograd convolution changes a quantized value, which must be accepted."""
    rng = np.random.default_rng(0)
    values: dict[str, Any] = {
        "w": (rng.standard_normal((16, 16, 3, 3)) / 12).astype(np.float32),
        "b": rng.standard_normal(16).astype(np.float32),
        "scale": np.float32(0.031),
        "zero": np.int8(3),
        "w2": (rng.standard_normal((16, 16, 3, 3)) / 12).astype(np.float32),
    }
    text = """g (float[N, 16, 12, 12] x) => (float[N, 16, 12, 12] y{}) {{
        c = Conv <pads: ints = [1, 1, 1, 1]> (x, w, b)
        q = QuantizeLinear(c, scale, zero) d = DequantizeLinear(q, scale, zero)
        y = Conv <pads: ints = [1, 1, 1, 1]> (d, w2, b) }}"""
    before = model_from_text(text.format(""), values)
    after, _ = graphopt.optimize(before, target="cpu", ignore_cost_model=True)
    assert sum(n.op_type.startswith("WinogradConv") for n in after.graph.node) == 2
    distances: dict[str, float] = {}
    while not distances:  # which image it is depends on the rounding of the processor
        cases = [Case(str(i), {"x": rng.standard_normal((1, 16, 12, 12)).astype(np.float32)}) for i in range(96)]
        watched = run_cases(model_from_text(text.format(", float[N, 16, 12, 12] c"), values), cases)
        got = run_cases(after, cases, Mode(library=True))
        for case in cases:
            wanted, found = watched[case.name], got[case.name]
            assert isinstance(wanted, list)
            if deviation(wanted[0], found[0]).relative > 1e-4:
                distances[case.name] = float(np.abs(wanted[1].astype(np.float64) / 0.031 % 1 - 0.5).min())
    farthest = next(c for c in cases if c.name == max(distances, key=lambda name: distances[name]))
    report = verify(before, after, inputs=farthest.feeds)
    assert report.equal, report.summary
    for name, wrong in (("scale", np.float32(0.0313)), ("zero", np.int8(4))):
        faulty = onnx.ModelProto()
        faulty.CopyFrom(after)
        node = next(n for n in faulty.graph.node if n.op_type == "DequantizeLinear")
        node.input[1 if name == "scale" else 2] = "wrong"
        faulty.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(wrong), "wrong"))
        assert not verify(before, faulty, inputs=farthest.feeds), name


def pair_of(before: onnx.ModelProto, after: onnx.ModelProto) -> Pair:
    found = paired(before, after, None, None, [])
    assert isinstance(found, Pair)
    return found


def quantized_chain(change: str = "Identity(q1)", middle: str = "u", scale: float = 0.01) -> onnx.ModelProto:
    values = {
        "w": np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32) / 4,
        "s": np.float32(scale),
        "z": np.int8(0),
        "low": np.int8(-128),
        "one_less": np.int8(126),
        "seven_less": np.int8(120),
    }
    text = f"""g (float[N, 16] x) => (float[N, 16] y) {{
        t = MatMul(x, w) q1 = QuantizeLinear(t, s, z) {middle} = {change} d1 = DequantizeLinear({middle}, s, z)
        r = Relu(d1) q2 = QuantizeLinear(r, s, z) d2 = DequantizeLinear(q2, s, z)
        y = MatMul(d2, w) }}"""
    return model_from_text(text, values)


@pytest.mark.parametrize(
    ("after", "named"),
    [
        (quantized_chain("Clip(q1, low, seven_less)"), "q2"),  # wrong after q1, so reported at the next quantized value
        (quantized_chain("Clip(q1, low, one_less)"), ""),  # off by one level, as after rounding
        (quantized_chain("Clip(q1, low, seven_less)", scale=0.011), ""),  # another scale, so levels are not compared
        (onnx.ModelProto(), "q1"),
    ],
)
def test_quantized_intermediate_values_are_compared(after: onnx.ModelProto, named: str) -> None:
    before = quantized_chain()
    if not after.graph.node:  # q1 itself is wrong, so values after it are not reported
        after.CopyFrom(quantized_chain("Clip(q1, low, seven_less)", middle="q1_"))
        after.graph.node[1].output[0], after.graph.node[2].input[0] = "whole", "whole"
        after.graph.node[2].output[0], after.graph.node[3].input[0] = "q1", "q1"
    case = Case("normal", {"x": np.random.default_rng(1).standard_normal((4, 16)).astype(np.float32)})
    found = level_difference(pair_of(before, after), BODIES, case)
    assert found.startswith(f"quantized value '{named}' is up to 7 levels off") if named else not found


def test_the_numerics_class_depends_on_the_nodes() -> None:
    """Neither an unused initializer nor the metadata decides the numerics class."""
    before, after = add_model(1.0), add_model(1.005)
    after.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(4, np.float16), "unread"))
    for numerics in ("fp16", "bf16", "approximate"):
        del after.metadata_props[:]
        after.metadata_props.add(key="graphopt.numerics", value=numerics)
        report = verify(before, after)
        assert not report
        assert report.numerics == "reassociated"


def test_a_report_of_two_outputs_is_true_if_both_are_equal() -> None:
    assert verify(add_model(1.0), add_model(1.0))
    assert not verify(add_model(1.0), add_model(2.0))


RANDOM_MODELS = {
    "Dropout in training mode": "t = Constant <value: tensor = bool {1}> () r = Constant <value_float: float = 0.5> () "
    "y = Dropout(x, r, t)",
    "behind Identity": "a = Identity(x) n = RandomNormalLike(a) b = Identity(n) y = Add(x, b)",
    "with a seed": "n = RandomUniformLike <seed: float = 3.0> (x) y = Mul(x, n)",
}


@pytest.mark.parametrize("body", RANDOM_MODELS.values(), ids=RANDOM_MODELS)
def test_a_model_that_differs_from_itself_is_random(
    body: str, graphopt_command: Callable[..., Any], tmp_path: Path
) -> None:
    model = model_from_text(f"g (float[N, 64] x) => (float[N, 64] y, float[N, 64] z) {{ {body} z = Relu(x) }}")
    report = verify(model, model)
    # A random output may happen to be the same each time.
    assert report.verdict != Verdict.DIFFERENT
    assert {row.name for row in report.rows} == {"z"}
    assert not report
    path = tmp_path / "random.onnx"
    onnx.save(model, path)
    assert graphopt_command("verify", path, path).exit_code == 8
    other = model_from_text(f"g (float[N, 64] x) => (float[N, 64] y, float[N, 64] z) {{ {body} z = Neg(x) }}")
    assert verify(model, other).verdict == Verdict.DIFFERENT


def test_not_covered_parts_are_reported(graphopt_command: Callable[..., Any], tmp_path: Path) -> None:
    text = """g (float[N, 4] x, int64[1] k) => (float[N, 4] y, float[N, 4] zero, float[N, 4] looped) {
        never = Constant <value: tensor = bool {0}> ()
        y = If (never) <
            then_branch = t () => (float[N, 4] a) { a = Neg(x) },
            else_branch = e () => (float[N, 4] b) { b = Abs(x) }>
        zero = Mul(x, nothing)
        turns = Constant <value: tensor = int64 {0}> ()
        looped = Loop (turns, , x) <body = l (int64 i, bool c, float[N, 4] v) => (bool d, float[N, 4] w) {
            d = Identity(c) w = Neg(v) }>
    }"""
    model = model_from_text(text, {"nothing": np.float32(0)})
    report = verify(model, model)
    assert report.equal, report.summary
    said = " ".join(report.not_covered)
    assert "the then branch of If" in said
    assert "else branch" not in said
    assert "the body of Loop" in said
    assert "output 'zero' is 0.0 everywhere" in said or "output 'zero' is -0.0 everywhere" in said
    path = tmp_path / "gaps.onnx"
    onnx.save(model, path)
    assert graphopt_command("verify", path, path).exit_code == 0
    strict = graphopt_command("verify", path, path, "--strict", "--json")
    assert strict.exit_code == 9
    assert json.loads(strict.stdout)["not_covered"] == report.not_covered


@pytest.mark.once
def test_a_body_without_its_bias_is_different() -> None:
    """A finding, not a traceback, although the reference Winograd convolution is built from the faulty body."""
    before = ZOO["resnet18"](small=True)
    after, _ = graphopt.optimize(before, target="cpu", ignore_cost_model=True)
    function = next(f for f in after.functions if f.name.startswith("WinogradConv"))
    conv = next(n for n in function.node if n.op_type == "Conv")
    del conv.input[2:]
    assert not verify(before, after)


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("case", ["far from zero", "whole numbers", "nearly constant"])
def test_a_runtimes_norm_by_the_difference_of_squares(case: str, skip: bool) -> None:
    """AFTER, in standard operators, is more accurate than the runtime's norm kernel in BEFORE."""
    rng = np.random.default_rng(0)
    values: dict[str, Any] = {n: rng.uniform(0.7, 1.3, 32).astype(np.float32) for n in ("scale", "bias")}
    values |= {"least": np.float32(1e-5)}
    before = model_from_text(
        "g (float[N, 32] x) => (float[N, 32] y) { y = LayerNormalization <axis: int = -1> (x, scale, bias) }", values
    )
    after = model_from_text(
        """g (float[N, 32] x) => (float[N, 32] y) {
            m = ReduceMean <axes: ints = [-1]> (x) c = Sub(x, m) s = Mul(c, c)
            v = ReduceMean <axes: ints = [-1]> (s) e = Add(v, least) r = Sqrt(e) n = Div(c, r)
            w = Mul(n, scale) y = Add(w, bias) }""",
        values,
    )
    x = rng.standard_normal((40, 32)).astype(np.float32)
    # Integers are exact, so no rounding of the input hides the error of the kernel.
    rows = {
        "far from zero": 20 + x,
        "whole numbers": np.rint(1000 + 10 * x),
        "nearly constant": 3 + np.float32(1e-2) * x,
    }
    inputs = {"x": rows[case]}
    if skip:
        sums = "z = Mul(x, half)", "o = Add(x, z)"
        for model, at in ((before, 1), (after, 2)):
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(-0.5), "half"))
            added = onnx.parser.parse_graph(f"g (float[N, 32] x) => (float[N, 32] o) {{ {' '.join(sums[:at])} }}").node
            nodes = [*added, *model.graph.node]
            if model is after:
                for node in nodes[at:]:
                    node.input[:] = ["o" if name == "x" else name for name in node.input]
            else:
                norm = nodes[-1]
                norm.CopyFrom(
                    helper.make_node("SkipLayerNormalization", ["x", "z", "scale", "bias"], ["y", "", "", "o"])
                )
                norm.domain = "com.microsoft"
                norm.attribute.append(helper.make_attribute("epsilon", 1e-5))
                model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
            del model.graph.node[:]
            model.graph.node.extend(nodes)
            model.graph.output.append(helper.make_tensor_value_info("o", TensorProto.FLOAT, ["N", 32]))
    report = verify(before, after, inputs=inputs)
    assert report.equal, report.summary


def test_a_node_that_no_input_shows() -> None:
    """A convolution result multiplied by 1e-12 is invisible in the output, so that node could give zeros."""
    rng = np.random.default_rng(0)
    values: dict[str, Any] = {
        "w": (rng.standard_normal((8, 8, 3, 3)) / 12).astype(np.float32),
        "b": rng.standard_normal(8).astype(np.float32),
        "little": np.float32(1e-12),
    }
    text = """g (float[N, 8, 16, 16] x) => (float[N, 8, 16, 16] y) {
        seen = Conv <pads: ints = [1, 1, 1, 1]> (x, w, b)
        n = Neg(x) hidden = Conv <pads: ints = [1, 1, 1, 1]> (n, w, b)
        h = Mul(hidden, little) y = Add(seen, h) }"""
    before = model_from_text(text, values)
    after, _ = graphopt.optimize(before, target="cpu", ignore_cost_model=True, only=["winograd_conv"])
    report = verify(before, after)
    assert report.equal, report.summary
    assert len(report.not_covered) == 1
    assert "'hidden/WinogradConv' could give zeros" in report.not_covered[0]


NESTED = """g (float[N, 4] x, bool a, int64[1] turns) => (float[N, 4] y, float[N, 4] z) {
    y = If (a) <
        then_branch = t () => (float[N, 4] p) {
            never = Constant <value: tensor = bool {0}> ()
            p = If (never) <
                then_branch = tt () => (float[N, 4] q) { q = Neg(x) },
                else_branch = te () => (float[N, 4] r) { r = Abs(x) }> },
        else_branch = e () => (float[N, 4] s) { s = Identity(x) }>
    go = Constant <value: tensor = bool {1}> ()
    z = Loop (turns, go, x) <body = l (int64 i, bool c, float[N, 4] v) => (bool d, float[N, 4] w) {
        d = Identity(c)
        none = Constant <value: tensor = int64 {0}> ()
        five = Constant <value: tensor = int64 {5}> ()
        late = Less(five, i)
        u = Loop (none, d, v) <body = ll (int64 j, bool e, float[N, 4] f) => (bool h, float[N, 4] k) {
            h = Identity(e) k = Neg(f) }>
        w = If (late) <
            then_branch = lt () => (float[N, 4] m) { m = Neg(u) },
            else_branch = le () => (float[N, 4] n) { n = Abs(u) }> }>
}"""


@pytest.mark.parametrize("opset", [11, 17])
def test_branches_and_loops_inside_others(opset: int) -> None:
    model = model_from_text(NESTED, {}, opset)
    report = verify(model, model)
    assert report.equal, report.summary
    said = [s for s in report.not_covered if "If" in s or "Loop" in s]
    assert said == ["the then branch of If 'p' was never taken", "the body of Loop 'u' never ran"]


def listed(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in the form of IR version 3, which requires every initializer to be a graph input."""
    model.ir_version = 3
    model.graph.input.extend(
        helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in model.graph.initializer
    )
    return model


@pytest.mark.parametrize(("opset", "ir_version"), [(7, 8), (9, 3), (9, 8), (11, 3), (13, 8), (21, 8), (22, 8)])
def test_rounding_errors_are_measured_in_every_version(opset: int, ir_version: int) -> None:
    """Runtimes have no uniform random numbers from opset 22 on, and IR version 3 lists initializers as inputs."""
    make = listed if ir_version == 3 else lambda model: model
    rng = np.random.default_rng(0)
    text = "g (float[N, 64] x) => (float[N, 64] y) { a = MatMul(x, w) b = Tanh(a) y = MatMul(b, v) }"
    values = {n: rng.standard_normal((64, 64)).astype(np.float32) / np.float32(8) for n in ("w", "v")}
    model = make(model_from_text(text, values, opset))
    close = make(model_from_text(text, {**values, "v": values["v"] * np.float32(1 + 1e-7)}, opset))
    report = verify(model, close)
    assert report.equal, report.summary
    assert any(row.noise is not None for row in report.rows) and report.not_covered == []
    far = make(model_from_text(text, {**values, "v": values["v"] * np.float32(1 + 5e-6)}, opset))
    assert not verify(model, far)


# Case -> (body, opset, reported reason why it cannot be measured).
UNMEASURED = {
    "opset 6": ("y = MatMul(x, by)", 6, "rounding needs opset 7"),
    "a root of zero": (  # rounding makes half of the zeros under the root negative
        "z = MatMul(x, by) a = Mul(z, z) b = Abs(z) c = Mul(b, b) e = Sub(a, c) r = Sqrt(e) y = Add(z, r)",
        17,
        "rounding alone changes its shape, or where it has NaN",
    ),
}


@pytest.mark.parametrize("what", UNMEASURED)
def test_a_fixed_limit_is_reported(what: str, graphopt_command: Callable[..., Any], tmp_path: Path) -> None:
    text, opset, reason = UNMEASURED[what]
    files = [tmp_path / "before.onnx", tmp_path / "after.onnx"]
    for by, file in zip((1, 1 + 1.5e-6), files):
        graph = f"g (float[N, 16] x) => (float[N, 16] y) {{ {text} }}"
        onnx.save(model_from_text(graph, {"by": by * np.eye(16, dtype=np.float32)}, opset), file)
    report = verify(*files)
    assert report.equal, report.summary
    # In the case "one-hot" the single 1 of each row may give no negative number in any draw.
    far = [row for row in report.rows if row.slice_error > 1.2e-6 and row.case != "one-hot"]
    assert len(far) > 3 and all(row.unmeasured for row in far), report.rows
    said = [gap for gap in report.not_covered if "could not be measured" in gap]
    assert len(said) == 1 and "output 'y'" in said[0] and reason in said[0] and "1e-05" in said[0], report.not_covered
    assert not any(row.unmeasured for row in verify(files[0], files[0]).rows)  # equal outputs need no measurement
    strict = graphopt_command("verify", *files, "--strict")
    assert strict.exit_code == 9 and "could not be measured" in " ".join(strict.stdout.split())
    assert graphopt_command("verify", *files).exit_code == 0


@pytest.mark.parametrize(
    ("after", "equal"),
    [
        ("s = Mul(x, little) z = MatMul(s, w) y = Transpose(z)", True),
        ("s = Mul(x, little) z = MatMul(s, w) p = Add(z, z) q = Mul(p, most) y = Transpose(q)", False),
        (
            "z = MatMul(x, w) u = Transpose(z) t = Flatten(u) s = Mul(t, little) c = Cast <to: int = 1> (s) "
            "l = IsInf(c) o = Sub(w, w) y = Where(l, o, s)",
            False,
        ),
    ],
    ids=["as in float32", "a tenth too much", "zeros"],
)
def test_numbers_where_before_leaves_the_range_of_half_precision(after: str, equal: bool, tmp_path: Path) -> None:
    """Products of pixels exceed 65504: scaling before the product is more accurate, so it is accepted."""
    rng = np.random.default_rng(0)
    values = {"w": rng.uniform(0.5, 1, (64, 64)), "little": np.float16(1e-3), "most": np.float16(0.55)}
    values = {name: np.float16(value) for name, value in values.items()}
    graph = "g (float16[64, 64] x) => (float16[64, 64] y) {{ {} }}"
    before = model_from_text(
        graph.format("z = MatMul(x, w) u = Transpose(z) t = Flatten(u) y = Mul(t, little)"), values
    )
    np.savez(tmp_path / "small.npz", x=rng.standard_normal((64, 64)).astype(np.float16))
    np.savez(tmp_path / "pixels.npz", x=rng.integers(0, 4000, (64, 64)).astype(np.float16))
    report = verify(before, model_from_text(graph.format(after), values), inputs=tmp_path)
    assert report.equal == equal, report.summary
    (row,) = (row for row in report.rows if "pixels" in row.case and not row.optimized)
    assert row.reason == ("rounding noise" if equal else "infinities differ")


@pytest.mark.parametrize("move", ["Transpose", "Flatten", "Expand({}, shape)"])
def test_half_precision_in_which_nothing_is_computed_is_an_error(move: str) -> None:
    """A float16 value that is only moved loses half of its digits without any gain."""
    values = {"shape": np.array([1, 1])}
    graph = "g (float[N, 64] x) => (float[M, K] y) {{ a = Tanh(x) {} }}"
    moved = move if "{}" in move else move + "({})"
    before = model_from_text(graph.format(f"y = {moved.format('a')}"), values)
    after = f"h = Cast <to: int = 10> (a) m = {moved.format('h')} y = Cast <to: int = 1> (m)"
    assert verify(before, before)
    assert not verify(before, model_from_text(graph.format(after), values))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_large_weights_outside_the_message_get_the_same_noise(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that are large enough to be kept outside the message get the same noise, so the limits are equal."""
    rng = np.random.default_rng(0)
    name = {np.float32: "float", np.float16: "float16", np.float64: "double"}[dtype]
    text = f"g ({name}[N, 200] x) => ({name}[N, 200] y) {{ a = MatMul(x, w) y = Tanh(a) }}"
    w = rng.standard_normal((200, 200)).astype(dtype) / dtype(14)
    pair = [model_from_text(text, {"w": w * dtype(factor)}) for factor in (1, 1 + np.finfo(dtype).eps)]
    limits = []
    for large in (run.LARGE, 1 << 30):
        monkeypatch.setattr(run, "LARGE", large)
        report = verify(*pair)
        assert report.equal and not report.not_covered, (report.summary, report.not_covered)
        limits.append([row.slice_limit for row in report.rows])
    assert limits[0] == limits[1]


def test_rounding_errors_do_not_depend_on_the_random_operators() -> None:
    """Noise is uniform below opset 22 and made of random bits from 22 on, also for norms and float64."""
    rng = np.random.default_rng(0)
    text = (
        "g (float16[N, 64] x) => (float16[N, 64] y, double[N, 64] z) { a = LayerNormalization(x, s) y = MatMul(a, w) "
        "b = Cast <to = 11> (x) z = MatMul(b, v) }"
    )
    values: dict[str, Any] = {"s": np.ones(64, np.float16), "v": rng.standard_normal((64, 64))}
    w = rng.standard_normal((64, 64)) / 8
    limits = []
    for opset in (21, 22):
        model = model_from_text(text, {**values, "w": w.astype(np.float16)}, opset)
        report = verify(model, model_from_text(text, {**values, "w": (w * 1.02).astype(np.float16)}, opset))
        assert not report
        limits.append({(r.case, r.name): r.slice_limit for r in report.rows if r.noise is not None})
    assert len(limits[0]) > 5 and limits[0].keys() == limits[1].keys()
    ratios = [limits[1][key] / limits[0][key] for key in limits[0]]
    assert 0.8 < np.median(ratios) < 1.25, ratios


def test_a_crash_of_the_runtime_is_different() -> None:
    """A Cast between Transpose and MatMul crashes the runtime at its default level, which changes layouts."""
    rng = np.random.default_rng(0)
    values: dict[str, Any] = {
        "table": rng.standard_normal((20, 8)).astype(np.float32),
        "half": rng.standard_normal((20, 8)).astype(np.float16),
        "w": rng.standard_normal((8, 8)).astype(np.float32),
    }
    text = "g (int64[4, S] ids) => (float[S, 4, 8] y) {{ {} y = MatMul(t, w) }}"
    move = "Transpose <perm: ints = [1, 0, 2]>"
    before = model_from_text(text.format(f"e = Gather(table, ids) t = {move}(e)"), values)
    after = model_from_text(
        text.format(f"e = Gather(half, ids) h = {move}(e) t = Cast <to: int = 1> (h)"),
        {**values, "half": values["table"].astype(np.float16)},
    )
    report = verify(before, after)
    assert not report
    bad = [row for row in report.rows if not row.equal]
    assert all(row.optimized for row in bad)
    assert "crashes (signal" in bad[0].reason
    assert verify(before, before)  # a new process runs the following models


def test_rounding_errors_of_evenly_increasing_weights() -> None:
    """The rounding errors of ramp weights form a pattern, which adds up where noise does not."""
    graph = """g (float[N, 256] x) => (float[N, 64] y) {
        h = LayerNormalization(x, one, one)  a = com.microsoft.QuickGelu(h)  b = MatMul(a, w)
        m = ReduceMean<axes = [-1]>(b)  y = Sub(b, m)
    }"""
    ramp = np.linspace(0, 1, 256 * 64, dtype=np.float32).reshape(256, 64)
    before = model_from_text(graph, {"one": np.ones(256, np.float32), "w": ramp}, 16, check=False)
    before.opset_import.add(domain="com.microsoft", version=1)
    after, _ = graphopt.optimize(before, target="cpu", precision="fp16")
    report = verify(before, after, effort="quick")
    assert report.equal, report.summary


def test_types_without_a_schema_are_guessed() -> None:
    """LayerNormalization below opset 17 belongs to the runtime: the type of its output is needed to round it."""
    graph = "g (float[N, 8] x) => (float[N, 8] y) { h = LayerNormalization(x, s)  y = com.microsoft.QuickGelu(h) }"
    model = model_from_text(graph, {"s": np.linspace(1, 2, 8, dtype=np.float32)}, 16, check=False)
    found = guessed(inferred(model).graph)
    assert {value.name: dtype for value, dtype in found.items()} == {"h": ir.DataType.FLOAT}


@pytest.mark.parametrize(
    ("draws", "times", "wanted"),
    [
        ((1.0, 1.01, 0.99, 1.0, 0.98, 1.02), 1.1, (False, "differs")),  # similar draws bound the error
        ((0.2, 0.5, 1.0, 0.3, 0.7, 0.25), 1.5, (True, "")),  # widely different draws may miss the largest error
        ((0.2, 0.5, 1.0, 0.3, 0.7, 0.25), 2.1, (False, "differs")),
        ((0.2, 0.5, 1.0, 0.3, 0.7), 1.1, (False, "differs")),  # too few draws to measure the spread
    ],
)
def test_the_limit_follows_from_the_spread_of_draws(
    draws: tuple[float, ...], times: float, wanted: tuple[bool, str]
) -> None:
    rng = np.random.default_rng(0)
    want, noise = rng.standard_normal((16, 16)), rng.uniform(-1e-4, 1e-4, (16, 16))
    drawn = [deviation(want, want + draw * noise) for draw in draws]
    judged = judge(deviation(want, want + times * noise), Numerics.REASSOCIATED, drawn)
    assert (judged.equal, judged.reason) == wanted


@pytest.mark.parametrize(("times", "fixed", "wanted"), [
    (1.1, False, (False, "differs")), (1.1, True, (True, "")), (4.2, True, (False, "differs"))
])  # fmt: skip
def test_fixed_errors_are_multiplied_by_the_factor(times: float, fixed: bool, wanted: tuple[bool, str]) -> None:
    """The draws already include FACTOR; `fixed`, the error of BEFORE's own norms, does not, so it is multiplied."""
    rng = np.random.default_rng(0)
    want, away = rng.standard_normal((2, 16, 16))
    drawn = [deviation(want, want + 1e-4 * (away + 1e-3 * rng.standard_normal((16, 16)))) for _ in range(8)]
    still = [deviation(want, want + 1e-4 * away)] if fixed else []
    judged = judge(deviation(want, want + 1e-4 * times * away), Numerics.REASSOCIATED, drawn, fixed=still)
    assert (judged.equal, judged.reason) == wanted


@pytest.mark.parametrize(("times", "wanted"), [(1.5, (True, NOISE)), (4.0, (False, "differs"))])
def test_rounding_noise_is_inconclusive(times: float, wanted: tuple[bool, str]) -> None:
    rng = np.random.default_rng(0)
    want, other = rng.standard_normal((2, 16, 16))
    drawn = [deviation(want, want + 2 * other)]
    judged = judge(deviation(want, want + 2 * times * other), Numerics.FP16, drawn)
    assert (judged.equal, judged.reason) == wanted


def test_weights_in_files_of_a_model_in_memory(tmp_path: Path) -> None:
    """`optimize` leaves weights in their file; a session of serialized bytes looks in the current folder."""
    path = tmp_path / "m.onnx"
    model = model_from_text(
        "g (float[N, 64] x) => (float[N, 64] y) { t = MatMul (x, w)  u = Identity (t)  y = Relu (u) }",
        {"w": np.ones((64, 64), np.float32)},
    )
    onnx.save(model, path, save_as_external_data=True, location="m.weights", size_threshold=64)
    after, report = graphopt.optimize(path)
    assert report.changed
    compared = graphopt.verify(path, after, effort="quick")
    assert compared.equal, compared.summary
    tensor = after.graph.initializers["w"].const_value
    assert isinstance(tensor, ir.ExternalTensor)  # the weights stay in their file


def test_a_report_is_true_if_the_models_are_equal() -> None:
    before = model_from_text("g (float[N, 3] x) => (float[N, 3] y) { y = Tanh(x) }")
    after = model_from_text("g (float[N, 3] x) => (float[N, 3] y) { y = Sigmoid(x) }")
    assert verify(before, before, effort="quick")
    assert not verify(before, after, effort="quick")


@pytest.mark.once
def test_too_little_memory_is_an_error_and_no_difference() -> None:
    """AFTER computes x times n as a sum over n elements, more than the address space holds."""
    size = 1 << 46
    before = model_from_text("g (float[1] x) => (float[1] y) { y = Mul(x, n) }", {"n": np.float32(size)})
    text = "g (float[1] x) => (float[1] y) { e = Expand(x, n) y = ReduceSum(e) }"
    after = model_from_text(text, {"n": np.array([size])})
    with pytest.raises(MemoryError, match="Expand"):
        graphopt.verify(before, after)


def search(operator: str, seed: int, scale: float = 1.0) -> onnx.ModelProto:
    """Returns a model that generates up to 16 tokens; the decoder is the body of an operator unknown to onnx."""
    rng = np.random.default_rng(seed)
    body = onnx.parser.parse_graph(
        """decoder (int32[B, S] input_ids, int32[B, S] position_ids, int32[B, T] attention_mask,
            float[2, B, 1, P, 4] past_0) => (float[B, S, 12] logits, float[2, B, 1, T, 4] present_0) {
            embedded = Gather(table, input_ids) hidden = MatMul(embedded, square) normal = Tanh(hidden)
            logits = MatMul(normal, classes)
            axes = Constant <value_ints: ints = [0, 2]> () key = Unsqueeze(embedded, axes)
            both = Concat <axis: int = 0> (key, key) present_0 = Concat <axis: int = 3> (past_0, both) }"""
    )
    for name, shape in (("table", (12, 4)), ("square", (4, 4)), ("classes", (4, 12))):
        numbers = rng.standard_normal(shape) * (scale if name == "square" else 1)
        body.initializer.append(onnx.numpy_helper.from_array(numbers.astype(np.float32), name))
    model = model_from_text("g (int32[B, S] ids) => (int32[B, L] y) { y = Identity(ids) }")
    del model.graph.node[:]
    inputs, outputs = ["ids", "longest"], ["y"]
    if operator == "BeamSearch":
        inputs, outputs = [*inputs, "one", "two", "one", "penalty"], ["y", "scores"]
        model.graph.output[0].type.tensor_type.shape.dim.add(dim_param="N")
        model.graph.output.append(helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["B", "N"]))
    given = {"longest": np.int32(16), "one": np.int32(1), "two": np.int32(2), "penalty": np.float32(1)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.array([n]), name) for name, n in given.items())
    attributes: dict[str, Any] = {
        "eos_token_id": 11,
        "pad_token_id": 11,
        "decoder_start_token_id": -1,
        "no_repeat_ngram_size": 0,
    }
    node = helper.make_node(operator, inputs, outputs, domain="com.microsoft", model_type=0, decoder=body, **attributes)
    model.graph.node.append(node)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model


def test_scores_of_a_search_are_rounded() -> None:
    before = search("BeamSearch", 5)
    after, _ = graphopt.optimize(before, precision="fp16", ignore_cost_model=True)
    report = verify(before, after, effort="quick")
    assert report and not report.not_covered, report.not_covered
    assert not verify(before, search("BeamSearch", 5, scale=1.1), effort="quick")


def test_scores_of_a_search_may_have_other_readers() -> None:
    """The logits also have a reader inside the body, as the first output of a T5 encoder has."""
    before = search("BeamSearch", 5)
    body = next(a.g for a in before.graph.node[0].attribute if a.name == "decoder")
    body.node.add(op_type="Identity", input=["logits"], output=["again"])
    after, _ = graphopt.optimize(before, precision="fp16", ignore_cost_model=True)
    both = pair_of(before, after)
    case = Case("ids", {"ids": np.array([[3, 1, 4], [1, 5, 9]], np.int32)})
    wanted = run_cases(before, [case])[case.name]
    assert isinstance(wanted, list)
    errors = RoundingErrors(both.before, {case.name: wanted}, both.rewritten, half_io=False)
    for steps in (1.0, *STEP_UNITS):
        errors.measure(Numerics.FP16, [case], 1, steps)
    assert len(errors.of(Numerics.FP16, case.name, 1)) == 1 + len(STEP_UNITS)


def test_uninitialized_memory_is_random() -> None:
    """If every row ends early, GreedySearch leaves the rest of its output uninitialized."""
    before = search("GreedySearch", 0)
    report = verify(before, graphopt.optimize(before, precision="fp16", ignore_cost_model=True)[0])
    # The uninitialized part may happen to be the same each time.
    assert report.verdict != Verdict.DIFFERENT


@pytest.mark.parametrize("threshold", [2, 2.5, -0.5])
def test_a_comparison_at_its_threshold(threshold: float) -> None:
    """Multiples of 1/2 are exact, so inputs equal to the threshold must be tried, where the two operators differ."""
    number = {"k": np.array(threshold, np.float32)}
    before, after = (
        model_from_text(f"g (float[N, 8] x) => (bool[N, 8] y) {{ y = {op}(x, k) }}", number)
        for op in ("Greater", "GreaterOrEqual")
    )
    assert verify(before, before)
    assert not verify(before, after)


EMPTY = "g (float[N, 8] x) => (float[M, 8] y) {{ {0} }}"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("r = Reshape(x, rest) t = Tanh(r) s = Shape(x) y = Reshape(t, s)", ""),
        ("t = Tanh(x) p = Pad(t, pads) n = Shape <end: int = 1> (x) y = Slice(p, axis, n, axis)", ""),
        (
            "t = Tanh(x) p = Pad(t, pads) s = Shape <end: int = 1> (x) n = Max(s, one) y = Slice(p, axis, n, axis)",
            "shape (0, 8) became (1, 8)",
        ),
    ],
    ids=["does not run", "runs", "one row of nothing"],
)
def test_an_empty_batch(body: str, words: str) -> None:
    """A detector that finds nothing makes an empty batch: another size is a difference, a failed run is reported."""
    numbers = {"rest": [0, 4, -1], "pads": [0, 0, 1, 0], "one": [1], "axis": [0]}
    constants = {name: np.array(given) for name, given in numbers.items() if f" {name}" in body}
    before = model_from_text(EMPTY.format("y = Tanh(x)"), opset=18)
    after = model_from_text(EMPTY.format(body), constants, opset=18)
    report = verify(before, after)
    assert report.equal == (not words), report.summary
    if words:
        assert report.worst is not None and report.worst.case == "empty batch"
        assert words in report.worst.reason
        assert any("only on an empty batch" in note for note in report.notes)
        assert report.feeds["x"].shape == (0, 8)
        assert verify(before, after, batch=[1, 2, 4])
    refused = [line for line in report.not_covered if line.startswith("an empty batch was not compared")]
    assert len(refused) == ("rest" in body)


def test_an_empty_batch_that_ends_the_process() -> None:
    """An Einsum over 0 rows divides by 0, which kills the runtime's process; verify survives and accepts AFTER."""
    text = 'g (float[N, 4, 8] x) => (float[N, 4, 4] y) { y = Einsum <equation: string = "nij,nkj->nik"> (x, x) }'
    model = model_from_text(text)
    assert verify(model, model)


@pytest.mark.parametrize(("x", "z"), [(1, 0), (-(2**63), -1)], ids=["zero", "overflow"])
def test_integer_divisions_that_end_the_process(x: int, z: int) -> None:
    """ONNX Runtime's Div faults (SIGFPE); verify reports which model fails, and compares the other inputs."""
    head = "g (int64[2] x, int64[2] z) => (int64[2] y) "
    before = model_from_text(head + "{ y = Div(x, z) }")
    crashes = {"x": np.full(2, x), "z": np.array([2, z])}
    with pytest.raises(VerifyError, match=r"BEFORE runs on none of the given inputs: .*(SIGFPE|by zero)"):
        verify(before, before, inputs=crashes)
    after = model_from_text(head + "{ q = Sub(z, three) y = Div(x, q) }", {"three": np.array(3)})
    report = verify(before, after, inputs={"x": crashes["x"], "z": crashes["z"] + 3})
    assert report.verdict is Verdict.DIFFERENT
    assert (report.feeds["z"] == crashes["z"] + 3).all()


def test_numbers_beyond_half_precision_between_its_nodes() -> None:
    """Between float16 nodes the CPU provider keeps float32 values, a GPU rounds them: AFTER must be right on both."""
    text = "g (float[N, 8] x) => (float[N, 8] y) { q = Mul(x, a) y = Mul(q, b) }"
    half = """g (float[N, 8] x) => (float[N, 8] y) {
        h = Cast <to: int = 10> (x) q = Mul(h, a) r = Mul(q, b) y = Cast <to: int = 1> (r) }"""

    def pair(factor: float) -> tuple[onnx.ModelProto, onnx.ModelProto]:
        numbers = {"a": factor, "b": 1 / factor}
        before = {name: np.float32(n) for name, n in {"a": 0.5, "b": 2.0}.items()}
        return model_from_text(text, before), model_from_text(half, {n: np.float16(x) for n, x in numbers.items()})

    assert verify(*pair(0.5))
    assert verify(*pair(4.0))
    report = verify(*pair(1024.0))
    assert not report
    assert "with every float16 result rounded to float16" in report.summary


def test_values_beyond_float16_in_both_models_are_a_note() -> None:
    """Values beyond the range of float16 that BEFORE has too are a note: every float16 version has them."""
    text = "g (float[N, 8] x) => (float[N, 8] y) { q = Mul(x, x) y = Mul(q, x) }"
    half = """g (float[N, 8] x) => (float[N, 8] y) {
        h = Cast <to: int = 10> (x) q = Mul(h, h) r = Mul(q, h) y = Cast <to: int = 1> (r) }"""
    report = verify(model_from_text(text), model_from_text(half))
    assert report
    assert any("exceed float16" in note for note in report.notes)


def test_norms_in_bodies_are_found() -> None:
    """The effect of rounding in a subgraph norm is measured as for a norm in the main graph."""
    branch = "g{0} () => (float[N, 4] a{0}) {{ a{0} = {1} }}"
    head = "g (bool c, float[N, 4] x, float[4] s) => (float[N, 4] y)"
    for op, found in (("LayerNormalization(x, s)", True), ("Relu(x)", False)):
        branches = f"<then_branch = {branch.format(0, op)}, else_branch = {branch.format(1, 'Neg(x)')}>"
        assert has_norms(inferred(model_from_text(f"{head} {{ y = If {branches} (c) }}")).graph) == found


# -- beyond rounding ---------------------------------------------------------------------------------------


def test_not_a_number_everywhere_is_different() -> None:
    """NaN everywhere is a difference, even if rounding alone makes some elements NaN (roots of values near 0)."""
    graph = (
        "g (float[N, 8] x) => (float[N, 8] y) {{ c = MatMul(x, w)  d = Sub(c, c)  e = Add(d, one)  y = Mul(e, {}) }}"
    )
    constants = {"w": np.eye(8, dtype=np.float32), "one": np.float32(1), "nan": np.float32(np.nan)}
    before = model_from_text(graph.format("one"), {n: constants[n] for n in ("w", "one")})
    after = model_from_text(graph.format("nan"), constants)
    report = verify(before, after)
    assert report.verdict == Verdict.DIFFERENT
    assert "NaN in every element" in report.summary


def with_large_sums() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Sums beyond the range of float16 with a norm at the end; AFTER computes them in float16 anyway."""
    graph = """g (int64[B, S] ids) => (float[B, S, 16] y) {
        h = Gather(table, ids)  p = MatMul(h, w)  s = Add(h, p)
        q = Mul(s, s)  v = ReduceMean<axes = [-1]>(q)  r = Sqrt(v)  n = Div(s, r)  y = MatMul(n, u)
    }"""
    rng = np.random.default_rng(0)
    table, w, u = (rng.standard_normal(shape).astype(np.float32) for shape in ((20, 16), (16, 16), (16, 16)))
    before = model_from_text(graph, {"table": table, "w": 9000 * w, "u": u})
    after, _ = graphopt.optimize(
        model_from_text(graph, {"table": table, "w": w, "u": u}), target="rocm", precision="fp16"
    )
    weight = next(t for t in after.graph.initializer if t.name == "w")
    weight.CopyFrom(numpy_helper.from_array((9000 * w).astype(np.float16), "w"))
    return before, after


def test_values_beyond_float16_on_usual_inputs_are_different_and_named() -> None:
    before, after = with_large_sums()
    report = verify(before, after)
    assert report.verdict == Verdict.DIFFERENT
    (note,) = [n for n in report.notes if "beyond float16" in n]
    assert "MatMul 'MatMul->p'" in note
    assert "--keep-float 'MatMul->p'" in note


def test_values_beyond_float16_in_after_alone_are_different() -> None:
    """Both files are float16; the CPU provider computes in float32 between nodes, which hides the overflow."""
    graph = "g (float16[N, 8] x) => (float16[N, 8] y) { m = Mul(x, a)  y = Mul(m, b) }"
    one = np.ones(8, np.float16)
    large = np.array([1] * 7 + [2000], np.float16)
    before = model_from_text(graph, {"a": one, "b": one})
    after = model_from_text(graph, {"a": large, "b": (1 / large).astype(np.float16)})
    assert verify(before, before).equal
    report = verify(before, after)
    assert report.verdict == Verdict.DIFFERENT
    assert "'m' reaches" in report.summary


def test_outputs_of_another_shape_with_approximated_convolutions() -> None:
    graph = """g (float[B, 8, H, W] x) => (float[B, 8, P, Q] y) {
        t = MaxPool<kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 0>(x)
        c = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(t, w)  y = LeakyRelu(c)
    }"""
    weight = np.random.default_rng(0).standard_normal((8, 8, 3, 3)).astype(np.float32) / 8
    before = model_from_text(graph, {"w": weight}, opset=18)
    after, _ = graphopt.optimize(before, target="cpu", ignore_cost_model=True)
    assert any(n.op_type.startswith("WinogradConv") for n in after.graph.node)
    pool = next(n for n in after.graph.node if n.op_type == "MaxPool")
    del pool.attribute[:]
    pool.attribute.extend(
        helper.make_attribute(n, v) for n, v in (("kernel_shape", [3, 3]), ("strides", [2, 2]), ("ceil_mode", 1))
    )
    report = verify(before, after)
    assert report.verdict == Verdict.DIFFERENT
    assert "shape" in report.summary


def test_an_internal_error_is_no_difference(
    graphopt_command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ValueError("operands could not be broadcast")

    path = tmp_path / "a.onnx"
    onnx.save(add_model(1.0), path)
    monkeypatch.setattr("graphopt.verification.verify._conclude", fails)
    done = graphopt_command("verify", path, path)
    assert done.exit_code == 10
    assert "internal error" in done.stderr and "could not be broadcast" in done.stderr
