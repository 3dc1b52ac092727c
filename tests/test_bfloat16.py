"""`--precision bf16`: results against rounded factors in float64, nodes kept in float32 with reasons, and `verify`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import pytest

import graphopt
from graphopt.errors import GraphoptError, OptionError
from graphopt.ops import DOMAIN
from graphopt.ops.fused_conv import convolution
from graphopt.precision.bfloat16_gain import bfloat16_warning
from graphopt.precision.rounded_weight import to_bfloat16
from graphopt.report.data import Report
from graphopt.runtime.discovery import bfloat16_gain
from graphopt.verification.verify import verify
from tests.rewriting import model_from_text, run

Array = npt.NDArray[Any]
LAYERS = """g (float[N, 96] x, float[N, 160] r) => (float[N, 160] y, float[N, 64] z) {
  first = MatMul(x, W) first_b = Add(first, b) h = Relu(first_b)
  second = MatMul(h, V) second_b = Add(second, b) y = Add(second_b, r)
  z = Gemm<transB = 1>(y, U, c)
}"""


def weight(*shape: int, seed: int = 0) -> Array:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape) / np.sqrt(shape[0]), np.float32)


def layers(opset: int = 17) -> onnx.ModelProto:
    weights = {"W": weight(96, 160), "b": weight(160, seed=1), "V": weight(160, 160, seed=2)}
    return model_from_text(LAYERS, {**weights, "U": weight(64, 160, seed=3), "c": weight(64, seed=4)}, opset)


def convert(model: onnx.ModelProto, **options: Any) -> tuple[onnx.ModelProto, Report]:
    return graphopt.optimize(model, target="cpu", precision="bf16", check=True, **options)


def refusals(report: Report) -> dict[str, str]:
    return {r.code: r.detail for r in report.remarks if r.pass_name.startswith("bfloat16") and not r.applied}


def names(model: onnx.ModelProto) -> list[str]:
    return [n.op_type for n in model.graph.node]


def rounded(x: Array) -> Array:
    """Rounds to bfloat16 by comparing distances to the neighbours: by definition, not by bits."""
    exponent = np.where(x == 0, 0.0, np.floor(np.log2(np.abs(np.where(x == 0, 1, x)))))
    unit = 2.0 ** (exponent - 7)
    return np.asarray(np.rint(x / unit) * unit)  # rint rounds ties to even


def weight_in(after: onnx.ModelProto, name: str, given: Array) -> Array:
    """Returns the file's replacement for a weight of the original, in float64.

    Asserts that each element is one of the two bfloat16 neighbours of the original, and, with `given` [M, terms..],
    that sums of the rounding errors of terms are smaller than with rounding to nearest.
    """
    tensor = next(t for t in after.graph.initializer if t.name.startswith(name) and t.name.endswith("_bf16"))
    got, want = onnx.numpy_helper.to_array(tensor).astype(np.float64), given.astype(np.float64)
    rows = got.T if got.ndim == 2 else got
    assert np.all(rounded(got) == got)
    assert np.all(np.abs(rows - want) < 2.0 ** (np.floor(np.log2(np.abs(want))) - 7))
    if want[0].size > 1:
        errors = [np.sqrt(np.mean((w - want).reshape(len(want), -1).sum(1) ** 2)) for w in (rounded(want), rows)]
        assert errors[1] < 0.5 * errors[0]
    return rows


@pytest.mark.parametrize("terms", [1, 2, 9, 300])
def test_weights_are_rounded_for_their_sums(terms: int) -> None:
    """At most one element would reduce (sum of errors)^2 + sum of squared errors by changing to its other neighbour."""
    w = np.random.default_rng(terms).standard_normal((70, terms)).astype(np.float32)
    w[w.shape[0] // 2 :] *= 1e-3
    got = to_bfloat16(w).astype(np.float64)
    assert np.all(rounded(got) == got)

    def cost(numbers: Array) -> Array:
        errors = numbers - w.astype(np.float64)
        return np.asarray(errors.sum(-1) ** 2 + (errors**2).sum(-1))

    unit = 2.0 ** (np.floor(np.log2(np.abs(w.astype(np.float64)))) - 7)
    below = np.floor(w / unit) * unit
    assert np.all((got == below) | (got == below + unit))
    assert np.all(cost(got) <= cost(rounded(w.astype(np.float64))))
    for i in range(terms):
        other = got.copy()
        other[:, i] = np.where(got[:, i] == below[:, i], below[:, i] + unit[:, i], below[:, i])
        assert np.all(cost(got) <= cost(other) * (1 + 1e-9))


def test_zeros_subnormals_and_non_finite_weights() -> None:
    largest = float(np.finfo(np.float32).max)
    w = np.array(
        [[0.0, -0.0, 1e-42, -1e-42], [np.inf, 1.001, -np.inf, 2], [np.nan, 1.001, 3, 4], [largest, 1.001, 1, 1]]
    )
    got = to_bfloat16(w.astype(np.float32))
    with np.errstate(over="ignore"):
        nearest = w.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(got[:, 0], nearest[:, 0])
    np.testing.assert_array_equal(np.signbit(got), np.signbit(nearest))
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(nearest))
    assert to_bfloat16(np.empty((0, 3), np.float32)).shape == (0, 3)
    assert to_bfloat16(np.empty((3, 0), np.float32)).shape == (3, 0)


def test_a_weight_that_layers_share_is_rounded_once() -> None:
    graph = """g (float[N, 96] x, bool more) => (float[N, 96] y) {
      a = MatMul(x, W) h = Relu(a)
      b = If(more) <
        then_branch = t () => (float[N, 96] c) { c = MatMul(h, W) },
        else_branch = e () => (float[N, 96] d) { d = Relu(h) }>
      y = MatMul(b, W)
    }"""
    before = model_from_text(graph, {"W": weight(96, 96)})
    after, _ = convert(before, ignore_cost_model=True)
    assert names(after).count("LinearBf16") + names(after).count("LinearReluBf16") == 2
    assert sum(list(t.dims) == [96, 96] for t in after.graph.initializer) == 1
    feeds = {"x": weight(5, 96, seed=2), "more": np.array(True)}
    want, got = run(before, feeds)[0], run(after, feeds)[0]
    assert np.abs(got - want).max() < 2e-2 * np.abs(want).max()


@pytest.mark.parametrize("library", [True, False])
def test_factors_are_rounded_and_nothing_else(library: bool) -> None:
    before = layers()
    after, report = convert(before)
    assert names(after) == ["LinearReluBf16", "LinearAddBf16", "LinearBf16"]
    assert report.numerics == "bf16"
    rng = np.random.default_rng(7)
    feeds = {"x": rng.standard_normal((17, 96)), "r": 1e3 * rng.standard_normal((17, 160))}
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    arrays = {t.name: onnx.numpy_helper.to_array(t).astype(np.float64) for t in before.graph.initializer}
    b, c, given = arrays["b"], arrays["c"], {"W": arrays["W"].T, "V": arrays["V"].T, "U": arrays["U"]}
    W, V, U = (weight_in(after, name, array) for name, array in given.items())
    h = np.maximum(rounded(feeds["x"].astype(np.float64)) @ W.T + b, 0)
    y, z = run(after, feeds, library=library)
    # The next layer rounds this computed result, hence a difference of one bfloat16 unit here does not matter.
    want = rounded(h.astype(np.float32).astype(np.float64)) @ V.T + b + feeds["r"]
    assert np.abs(y - want).max() < 1e-3 * np.abs(want - feeds["r"]).max()
    want = rounded(y.astype(np.float64)) @ U.T + c
    np.testing.assert_allclose(z, want, rtol=0, atol=1e-5 * np.sqrt(np.mean(want**2)))


def test_a_machine_without_gain_gets_a_warning(tmp_path: Path) -> None:
    onnx.save(layers(), tmp_path / "in.onnx")
    command = [sys.executable, "-m", "graphopt", "optimize", str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx")]
    command += ["--target=cpu", "--precision=bf16"]
    slow = {**os.environ, "GRAPHOPT_ISA": "baseline"}  # four elements at a time: slower than any runtime
    done = subprocess.run(command, env=slow, capture_output=True, text=True, check=True)
    first = done.stdout.splitlines()[0]
    assert re.fullmatch(
        r"\d+ -> \d+ nodes, slower here \(a layer in bfloat16 takes \d+\.\d\d times as long .*\)", first
    )
    # written as requested: it may be for other machines
    assert names(onnx.load(tmp_path / "out.onnx"))[0] == "LinearReluBf16"
    start = "import sys, graphopt; graphopt.session(sys.argv[1], ['CPUExecutionProvider'])"
    for name, told in (("out.onnx", True), ("in.onnx", False)):
        done = subprocess.run(
            [sys.executable, "-c", start, str(tmp_path / name)], env=slow, capture_output=True, text=True, check=True
        )
        assert ("this model rounds to bfloat16" in done.stderr) == told, done.stderr
    # The gain measured here agrees with the effect of the default instruction set.
    gain = bfloat16_gain()
    assert gain is not None and gain > 0
    assert bool(bfloat16_warning(gain)) == bool(convert(layers())[1].warning)
    assert not bfloat16_warning(None) and not bfloat16_warning(1.5)


def test_gain_is_unknown_without_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHOPT_DISABLE", "LinearBf16")
    assert bfloat16_gain.__wrapped__() is None


def test_bfloat16_only_on_request() -> None:
    after, report = graphopt.optimize(layers(), target="cpu")
    assert not any(name.endswith("Bf16") for name in names(after))
    assert report.numerics != "bf16"


def test_a_second_conversion_changes_nothing() -> None:
    once, _ = convert(layers())
    twice, report = convert(once)
    assert not report.changed
    assert twice.SerializeToString() == once.SerializeToString()


def test_verify_judges_by_bfloat16() -> None:
    before = layers()
    after, _ = convert(before)
    report = verify(before, after, effort="quick")
    assert report, report.summary
    assert report.numerics == "bf16"
    # The same file with a wrong weight: a deviation of an eighth is not rounding.
    for tensor in after.graph.initializer:
        if tensor.name == "V_bf16":
            wrong = onnx.numpy_helper.to_array(tensor) * np.float32(1.125)
            tensor.CopyFrom(onnx.numpy_helper.from_array(wrong, tensor.name))
    assert not verify(before, after, effort="quick")


def test_layers_that_are_kept() -> None:
    model = layers()
    for n, name in zip(model.graph.node, ("first", "", "", "second", "", "", "")):
        n.name = name
    after, report = convert(model, keep_float=["second", "Gemm"])
    assert [n for n in names(after) if n.startswith("Linear")] == ["LinearReluBf16"]
    assert refusals(report) == {"KEPT": "--keep-float names the node or its operator"}
    with pytest.raises(OptionError, match="cannot keep 'third' in float32: no node or operator"):
        convert(model, keep_float=["third"])


def test_the_most_sensitive_layers_keep_float32() -> None:
    model = layers()
    free = graphopt.limit_error(model, 1.0)
    assert free.keep == () and not free.sensitivities and free.errors == free.rounded
    assert set(free.errors) == {o.name for o in model.graph.output}
    worst = max(free.errors.values())
    limit = graphopt.limit_error(model, worst / 2)
    assert 0 < len(limit.keep) < len(limit.sensitivities) == 3
    assert list(limit.keep) == sorted(limit.sensitivities, key=lambda n: -limit.sensitivities[n])[: len(limit.keep)]
    assert max(limit.errors.values()) <= worst / 2 and limit.rounded == free.rounded
    after, report = convert(model, keep_float=limit.keep)
    assert sum(n.endswith("Bf16") for n in names(after)) == 3 - len(limit.keep)
    assert refusals(report)["KEPT"] == "--keep-float names the node or its operator"
    # All layers are kept: the remaining error is that of float32.
    assert len(graphopt.limit_error(model, 1e-5).keep) == 3
    graph = """g (float[1, 32, 18, 18] x) => (float[1, 32, 18, 18] y) {
      c = Conv(x, W) y = BatchNormalization(c, s, b, m, v)
    }"""
    numbers = {name: 1 + np.abs(weight(32, seed=i)) for i, name in enumerate("sbmv")}
    with pytest.raises(GraphoptError, match="with all layers in float32"):  # except for the folded normalization
        graphopt.limit_error(model_from_text(graph, {"W": weight(32, 32, 1, 1), **numbers}), 1e-12)
    kept = graphopt.Options(target="cpu", precision="bf16", keep_float=("Conv",))
    with pytest.raises(GraphoptError, match="with all layers in float32"):  # there is no layer to keep in float32
        graphopt.limit_error(model_from_text(graph, {"W": weight(32, 32, 1, 1), **numbers}), 1e-12, kept)


def test_an_invalid_limit_is_refused() -> None:
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(OptionError, match="positive number"):
            graphopt.limit_error(layers(), wrong)
    with pytest.raises(OptionError, match="precision bf16"):
        graphopt.limit_error(layers(), 0.1, graphopt.Options(precision="fp16"))


def test_limits_on_the_command_line(tmp_path: Path, graphopt_command: Any) -> None:
    onnx.save(layers(), tmp_path / "in.onnx")
    limit = max(graphopt.limit_error(layers(), 1.0).errors.values()) / 2
    done = graphopt_command(
        "optimize",
        tmp_path / "in.onnx",
        tmp_path / "out.onnx",
        "--target=cpu",
        "--precision=bf16",
        f"--max-error={limit}",
        "-v",
    )
    assert "of 3 layers keep float32" in done.stdout and "with all layers in bfloat16)" in done.stdout
    assert 0 < sum(n.endswith("Bf16") for n in names(onnx.load(tmp_path / "out.onnx"))) < 3


def test_refusals() -> None:
    assert "OPSET" in refusals(convert(layers(opset=12))[1])
    small = model_from_text("g (float[N, 8] x) => (float[N, 8] y) { y = MatMul(x, W) }", {"W": weight(8, 8)})
    assert "64 elements" in refusals(convert(small)[1])["NO_GAIN"]
    after, _ = convert(small, ignore_cost_model=True)
    assert names(after) == ["LinearBf16"]
    x = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    want = rounded(x.astype(np.float64)) @ weight_in(after, "W", weight(8, 8).T).T
    np.testing.assert_allclose(run(after, {"x": x})[0], want, atol=1e-5)
    half = model_from_text(
        "g (float16[N, 96] x) => (float16[N, 160] y) { y = MatMul(x, W) }", {"W": weight(96, 160).astype(np.float16)}
    )
    assert "WRONG_DTYPE" in refusals(convert(half)[1])
    free = model_from_text("g (float[N, 96] x, float[96, 160] W) => (float[N, 160] y) { y = MatMul(x, W) }")
    after, report = convert(free)  # a weight supplied by callers is not a constant, but a factor
    assert names(after) == ["MatMulBf16"] and not refusals(report)


def test_options_that_contradict() -> None:
    with pytest.raises(OptionError, match="bf16 is for CPUs"):
        graphopt.optimize(layers(), target="rocm", precision="bf16")
    with pytest.raises(OptionError, match="only with precision fp16"):
        convert(layers(), keep_io=False)
    with pytest.raises(OptionError, match="choose fp16 or bf16"):
        graphopt.optimize(layers(), target="cpu", precision="int8")  # type: ignore[call-overload]


def test_our_nodes_are_of_our_domain_and_define_themselves() -> None:
    after, _ = convert(layers())
    assert {n.domain for n in after.graph.node} == {DOMAIN}
    assert {f.name for f in after.functions} == set(names(after))


def test_convolutions_fuse_their_sums_and_activations() -> None:
    before = model_from_text(
        """g (float[N, 20, 9, 11] x) => (float[N, 33, 5, 6] y, float[N, 20, 9, 11] z) {
          a = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(x, W)
          p = Conv<strides = [2, 2]>(x, P, b)
          s = Add(a, p)
          y = Relu(s)
          d = Conv<group = 20, pads = [1, 1, 1, 1]>(x, D)
          g = Sigmoid(d)
          z = Mul(d, g)
        }""",
        {
            "W": weight(33, 20, 3, 3),
            "P": weight(33, 20, 1, 1, seed=1),
            "b": weight(33, seed=2),
            "D": weight(20, 1, 3, 3, seed=3),
        },
    )
    after, report = convert(before, ignore_cost_model=True)
    # The depthwise convolution is not converted to NCHW2c here: it stays in float32.
    assert sorted(names(after)) == ["FusedConvAddReluBf16", "FusedConvBf16", "FusedConvSilu"]
    assert report.numerics == "bf16"
    x = np.random.default_rng(0).standard_normal((2, 20, 9, 11)).astype(np.float32)
    bodies, kernels = run(after, {"x": x}, library=False), run(after, {"x": x}, library=True)
    for want, got in zip(bodies, kernels, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5 * np.sqrt(np.mean(want**2)))
    assert verify(before, after, effort="quick")


def test_winograd_is_kept_if_it_is_faster() -> None:
    graph = "g (float[1, 64, 56, 56] x) => (float[1, 64, 56, 56] y) { a = Conv<pads = [1, 1, 1, 1]>(x, W) y = Relu(a) }"
    model = model_from_text(graph, {"W": weight(64, 64, 3, 3)})
    after, report = convert(model)
    assert names(after) == ["WinogradConvRelu"]
    assert "Winograd" in refusals(report)["NO_GAIN"]
    after, _ = convert(model, ignore_cost_model=True)
    assert names(after) == ["FusedConvReluBf16"]


@pytest.mark.parametrize(
    ("inputs", "conv", "code"),
    [
        ("", "Conv<pads = [0, -1, 0, 0]>(x, W)", "ATTRIBUTE"),
        (", float[16, 16, 1, 1] free", "Conv(x, free)", "NOT_CONSTANT"),
    ],
)
def test_convolutions_that_are_kept(inputs: str, conv: str, code: str) -> None:
    graph = f"g (float[1, 16, 9, 9] x{inputs}) => (float[1, M, H, K] y) {{ y = {conv} }}"
    after, report = convert(model_from_text(graph, {"W": weight(16, 16, 2, 2)}))
    assert names(after) == ["Conv"]
    assert code in refusals(report)


def test_convolutions_next_to_depthwise_ones_are_kept() -> None:
    graph = """g (float[1, 32, 9, 9] x) => (float[1, 32, 9, 9] y) {
      a = Conv(x, W) b = Relu(a) c = Conv<group = 32, pads = [1, 1, 1, 1]>(b, D) d = Relu(c)
      p = GlobalAveragePool(d) q = Sigmoid(p) e = Mul(d, q) y = Conv(e, W)
    }"""
    after, report = convert(model_from_text(graph, {"W": weight(32, 32, 1, 1), "D": weight(32, 1, 3, 3)}))
    assert names(after) == ["Conv", "Relu", "Conv", "Relu", "GlobalAveragePool", "Sigmoid", "Mul", "Conv"]
    details = [r.detail for r in report.remarks if r.pass_name.startswith("bfloat16")]
    assert any("next to it" in d for d in details)


# The structure of MobileNetV2 and ResNet: depthwise convolutions between GEMMs, a residual sum, a strided and a grouped
# convolution.
CHAIN = """g (float[N, 3, 19, 23] x) => (float[N, 24, 10, 12] y, float[N, 13, 10, 12] odd) {
  a = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(x, A) b = Clip(a, zero, six)
  c = Conv<group = 40, pads = [1, 1, 1, 1]>(b, D) d = Sigmoid(c) e = Mul(c, d)
  f = Conv(e, F, f_bias)
  g = Conv<group = 3, pads = [1, 1, 1, 1]>(f, G) h = Relu(g)
  i = Conv(h, I) y = Add(i, f)
  odd = Conv(y, O)
}"""


def chain() -> onnx.ModelProto:
    shapes = {"A": (40, 3, 3, 3), "D": (40, 1, 3, 3), "F": (24, 40, 1, 1), "G": (48, 8, 3, 3), "I": (24, 48, 1, 1)}
    weights = {name: weight(*shape, seed=i) for i, (name, shape) in enumerate({**shapes, "O": (13, 24, 1, 1)}.items())}
    for name, array in weights.items():
        weights[name] = np.asarray(array / np.sqrt(np.prod(array.shape[1:]) / array.shape[0]), np.float32)
    numbers = {"zero": np.asarray(0, np.float32), "six": np.asarray(6, np.float32), "f_bias": weight(24, seed=9)}
    return model_from_text(CHAIN, {**weights, **numbers})


def test_tensors_between_convolutions_are_in_nchw2c() -> None:
    after, report = convert(chain(), ignore_cost_model=True)  # they are too small to be faster
    assert names(after) == [
        "FusedConvNchw2cClipBf16",
        "FusedConvNchw2cSiluBf16",
        "FusedConvNchw2cBf16",
        "FusedConvNchw2cReluBf16",
        "FusedConvNchw2cAddBf16",
        "FusedConvFromNchw2cBf16",
    ]
    written = [[kind for kind, o in zip(("float32", "nchw2c"), n.output) if o] for n in after.graph.node]
    both = ["float32", "nchw2c"]  # outputs of the model are not rounded
    assert written == [["nchw2c"], ["nchw2c"], ["nchw2c"], ["nchw2c"], both, ["float32"]]
    assert after.graph.node[4].input[3] == after.graph.node[2].output[1]
    assert report.numerics == "bf16"
    assert verify(chain(), after, effort="quick")
    twice, again = convert(after, ignore_cost_model=True)
    assert not again.changed and twice.SerializeToString() == after.SerializeToString()


@pytest.mark.parametrize("library", [True, False])
def test_nchw2c_tensors_have_the_rounded_values(library: bool) -> None:
    """The expected values are in float64; inputs of convolutions and the residual are rounded to bfloat16 when read."""
    x = np.random.default_rng(3).standard_normal((2, 3, 19, 23)).astype(np.float32)
    arrays = {t.name: onnx.numpy_helper.to_array(t).astype(np.float64) for t in chain().graph.initializer}
    after, _ = convert(chain(), ignore_cost_model=True)

    def conv(name: str, x: Array, pad: int = 0, stride: int = 1, group: int = 1) -> Array:
        read = rounded(x.astype(np.float32).astype(np.float64))
        W = weight_in(after, name, arrays[name])
        return convolution(read, W, [pad] * 4, [stride] * 2, [1, 1], group)

    b = np.clip(conv("A", x, pad=1, stride=2), 0, 6)
    c = conv("D", b, pad=1, group=40)
    f = conv("F", c / (1 + np.exp(-c))) + arrays["f_bias"].reshape(-1, 1, 1)
    y = conv("I", np.maximum(conv("G", f, pad=1, group=3), 0)) + rounded(f.astype(np.float32).astype(np.float64))
    for want, got in zip((y, conv("O", y)), run(after, {"x": x}, library=library), strict=True):
        # A value close to the middle between two bfloat16 values may round to either.
        assert np.abs(got - want).max() < 2e-2 * np.sqrt(np.mean(want**2))
        assert np.sqrt(np.mean((got - want) ** 2)) < 1e-3 * np.sqrt(np.mean(want**2))


@pytest.mark.parametrize(
    ("nodes", "kept"),
    [
        # Y is written for the interface; an additional NCHW2c copy would be more bytes, without another reader.
        ("a = Conv(x, V) b = Conv(x, W) c = Add(b, a) y = Conv(c, W) z = Neg(a)", True),
        ("a = Conv(x, V) b = Conv(x, W) c = Add(b, a) y = Conv(c, W) z = Neg(x)", False),
        # The sum is an output, and x is float32: no tensor of that node is NCHW2c.
        ("a = Conv(x, V) b = Conv(x, W) y = Add(b, a) z = Neg(x)", True),
        ("a = Conv(x, V) b = Conv(a, W) y = Add(b, a) z = Neg(x)", False),
    ],
)
def test_residuals_in_nchw2c_where_they_save_bytes(nodes: str, kept: bool) -> None:
    shape = "float[1, 16, 9, 9]"
    weights = {"V": weight(16, 16, 1, 1), "W": weight(16, 16, 1, 1, seed=1)}
    before = model_from_text(f"g ({shape} x) => ({shape} y, {shape} z) {{ {nodes} }}", weights)
    after, _ = convert(before, ignore_cost_model=True)
    (add,) = [n for n in after.graph.node if "Add" in n.op_type]
    (a,) = [n for n in after.graph.node if add.input[3] in n.output]
    assert list(a.output).index(add.input[3]) == (0 if kept else 1)
    assert verify(before, after, effort="quick")
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 16, 9, 9)).astype(np.float32)}
    for want, got in zip(run(after, feeds, library=False), run(after, feeds, library=True), strict=True):
        np.testing.assert_allclose(got, want, atol=2e-2 * np.sqrt(np.mean(want**2)))


@pytest.mark.parametrize(
    ("residual", "M", "said"),
    [
        ("float[1, 4, 5, 5, 2]", 8, "R [1,4,5,5,2] is of type float"),
        ("bfloat16[1, 8, 5, 5]", 8, "R [1,8,5,5] is of type bfloat16"),
        ("bfloat16[1, 3, 5, 5, 2]", 8, "R"),
        ("bfloat16[1, 3, 5, 5, 2]", 7, "do not divide"),
    ],
)
def test_a_residual_of_another_kind_is_refused(residual: str, M: int, said: str) -> None:
    window = "pads = [0, 0, 0, 0], strides = [1, 1], dilations = [1, 1], group = 1"
    bf16 = residual.startswith("bfloat16")
    inputs = f"float[1, 6, 5, 5] x, {residual.replace('bfloat16', 'float')} r, float[{M}, 6, 1, 1] w, float[{M}] b"
    text = f"""<ir_version: 8, opset_import: ["" : 17, "{DOMAIN}" : 1]> g ({inputs}) => (float[1, {M}, 5, 5] y) {{
      s = Cast <to = {16 if bf16 else 1}> (r)
      y, p = com.graphopt.FusedConvNchw2cAddBf16 <{window}> (x, w, b, s)
    }}"""
    model = onnx.parser.parse_model(text)
    feeds = {
        v.name: np.ones([d.dim_value for d in v.type.tensor_type.shape.dim], np.float32) for v in model.graph.input
    }
    session = graphopt.session(model.SerializeToString(), ["CPUExecutionProvider"])
    with pytest.raises(Exception, match=re.escape(said)):
        session.run(None, feeds)


POOL = """g (float[N, 6, 17, 21] x) => (float[N, 10, H, K] y, float[N, 8, H, K] z) {
  a = Conv(x, A) b = Relu(a) p = MaxPool<WINDOW>(b) y = Conv(p, B) z = Conv(p, C)
}"""


def pool(window: str, channels: int = 12, other: str = "") -> onnx.ModelProto:
    shapes = {"A": (channels, 6, 1, 1), "B": (10, channels, 1, 1), "C": (8, channels, 1, 1)}
    text = POOL.replace("WINDOW", window).replace("z = Conv(p, C)", other or "z = Conv(p, C)")
    return model_from_text(text, {name: weight(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())})


@pytest.mark.parametrize(
    "window",
    [
        "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]",
        "kernel_shape = [2, 3], pads = [0, 2, 1, 0], dilations = [2, 1]",
        'kernel_shape = [2, 2], auto_pad = "VALID"',
    ],
)
def test_pools_between_convolutions_are_in_nchw2c(window: str) -> None:
    before = pool(window)
    after, _ = convert(before, ignore_cost_model=True)
    kinds = ["FusedConvNchw2cReluBf16", "MaxPoolNchw2cBf16", "FusedConvFromNchw2cBf16", "FusedConvFromNchw2cBf16"]
    assert names(after) == kinds
    assert verify(before, after, effort="quick")
    assert convert(after, ignore_cost_model=True)[0].SerializeToString() == after.SerializeToString()
    x = {"x": np.random.default_rng(2).standard_normal((2, 6, 17, 21)).astype(np.float32)}
    for want, got in zip(run(after, x, library=False), run(after, x, library=True), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.sqrt(np.mean(want**2)))


@pytest.mark.parametrize(
    ("window", "channels", "other", "code"),
    [
        ("kernel_shape = [2, 2], ceil_mode = 1", 12, "", "ATTRIBUTE"),
        ('kernel_shape = [2, 2], auto_pad = "SAME_UPPER"', 12, "", "ATTRIBUTE"),
        ("kernel_shape = [2, 2]", 12, "z = Neg(p)", ""),  # it reads float32
        ("kernel_shape = [2, 2]", 12, "z = Neg(b)", "nchw2c"),  # and the convolution writes both layouts
        ("kernel_shape = [2, 2]", 11, "", ""),  # an odd number of channels
    ],
)
def test_pools_that_are_kept(window: str, channels: int, other: str, code: str) -> None:
    after, report = convert(pool(window, channels, other), ignore_cost_model=True)
    assert ("MaxPoolNchw2cBf16" in names(after)) == (code == "nchw2c")
    if code == "ATTRIBUTE":
        assert refusals(report)[code]


def test_odd_channels_are_not_stored_in_nchw2c() -> None:
    graph = "g (float[1, 8, 9, 9] x) => (float[1, 8, 9, 9] y) { a = Conv(x, V) y = Conv(a, W) }"
    after, _ = convert(
        model_from_text(graph, {"V": weight(7, 8, 1, 1), "W": weight(8, 7, 1, 1)}), ignore_cost_model=True
    )
    assert names(after) == ["FusedConvBf16", "FusedConvBf16"]


@pytest.mark.parametrize(
    ("size", "window", "refusal"),
    [
        (30, "kernel_shape = [3, 3], pads = [1, 1, 1, 1]", ""),
        (30, "kernel_shape = [5, 5], pads = [2, 2, 2, 2]", ""),
        (34, "kernel_shape = [5, 5], pads = [2, 2, 2, 2]", ""),
        (60, "kernel_shape = [5, 5], pads = [2, 2, 2, 2], strides = [2, 2]", ""),
        (30, "kernel_shape = [7, 7], pads = [3, 3, 3, 3]", "3x3 and 5x5 windows"),
        (30, "kernel_shape = [3, 3], pads = [2, 2, 2, 2], dilations = [2, 2]", "3x3 and 5x5 windows"),
        (20, "kernel_shape = [3, 3], pads = [1, 1, 1, 1]", "16000 elements"),
    ],
)
def test_depthwise_convolutions_in_nchw2c_where_they_are_faster(size: int, window: str, refusal: str) -> None:
    graph = f"""g (float[1, 24, {size}, {size}] x) => (float[1, 24, H, K] y) {{
      a = Conv(x, V) b = Relu(a) c = Conv<group = 40, {window}>(b, D) d = Relu(c) y = Conv(d, W)
    }}"""
    k = int(window.split("[")[1][0])
    weights = {"V": weight(40, 24, 1, 1), "D": weight(40, 1, k, k), "W": weight(24, 40, 1, 1)}
    after, report = convert(model_from_text(graph, weights))
    if not refusal:
        assert all(name.endswith("Bf16") for name in names(after)), names(after)
        return
    # Its neighbours keep ONNX Runtime's blocked layout as well.
    assert names(after) == ["Conv", "Relu", "Conv", "Relu", "Conv"]
    details = [r.detail for r in report.remarks if r.pass_name == "bfloat16_conv" and r.code == "NO_GAIN"]
    assert any(refusal in d for d in details) and any("next to it" in d for d in details)


def test_small_convolutions_are_kept() -> None:
    graph = "g (float[1, 32, N, N] x) => (float[1, 32, H, K] y) { y = Conv(x, W) }"
    for size, name in ((16, "Conv"), (18, "FusedConvBf16")):
        after, _ = convert(model_from_text(graph.replace("N", str(size)), {"W": weight(32, 32, 1, 1)}))
        assert names(after) == [name]


ATTENTION = """g (float[2, 3, 20, 24] q, float[2, 3, 33, 24] k, float[2, 3, 33, 40] v) => (float[2, 3, 20, 40] o) {
  kt = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, kt)
  scaled = Mul(s, c) p = Softmax<axis = -1>(scaled) o = MatMul(p, v)
}"""


def attention(scale: float = 0.2, **sizes: int) -> tuple[onnx.ModelProto, dict[str, Array]]:
    text = ATTENTION
    for name, size in sizes.items():
        text = text.replace(name, str(size))
    model = model_from_text(text, {"c": np.asarray(scale, np.float32)})
    rng = np.random.default_rng(5)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    return model, {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("library", [True, False])
def test_attention_rounds_the_operands_of_its_multiplications(library: bool) -> None:
    before, feeds = attention()
    after, report = convert(before)
    assert names(after) == ["FusedAttentionBf16"]
    assert report.numerics == "bf16"
    q, k, v = (feeds[n].astype(np.float64) for n in "qkv")
    scaled = (feeds["q"] * np.float32(0.2)).astype(np.float64)
    s = rounded(scaled) @ np.swapaxes(rounded(k), -1, -2)
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    (got,) = run(after, feeds, library=library)
    # The probabilities, or a multiple of them, are rounded as well.
    bound = 2.0**-8 * (p @ np.abs(rounded(v))) + 1e-5
    assert np.all(np.abs(got - p @ rounded(v)) <= bound)
    exact = np.exp(0.2 * q @ np.swapaxes(k, -1, -2))
    assert np.abs(got - exact / exact.sum(-1, keepdims=True) @ v).max() > 1e-4  # something is rounded
    assert verify(before, after, effort="quick")
    # A single key has probability 1, so the output shows the rounding of V exactly.
    one, few = attention(**{"33": 1})
    np.testing.assert_array_equal(
        run(convert(one)[0], few, library=library)[0], np.broadcast_to(rounded(few["v"]), (2, 3, 20, 40))
    )


def test_attention_that_is_kept() -> None:
    decode, _ = attention(**{"20": 1})
    after, report = convert(decode)
    assert names(after) == ["FusedAttention"] and "than 1 queries save" in refusals(report)["NO_GAIN"]
    after, report = convert(attention()[0], keep_float=["FusedAttention"])
    assert names(after) == ["FusedAttention"] and refusals(report) == {
        "KEPT": "--keep-float names the node or its operator"
    }
    capped = ATTENTION.replace(
        "p = Softmax<axis = -1>(scaled)", "t = Tanh(scaled) u = Mul(t, c) p = Softmax<axis = -1>(u)"
    )
    after, report = convert(model_from_text(capped, {"c": np.asarray(3.0, np.float32)}))
    assert names(after) == ["FusedAttentionSoftcap"] and "UNSUPPORTED_OP" in refusals(report)


PRODUCT = "g (float[2, 3, 64, 72] a, float[2, 3, 72, 80] b) => (float[N, M, H, K] y) { y = MatMul(a, b) }"
# Heads after tokens, moved to the front by Transposes, and a scale after the GEMM.
SCORES = """g (float[2, 70, 3, 72] q, float[2, 90, 3, 72] k) => (float[2, 3, 70, 90] y) {
  h = Transpose<perm = [0, 2, 1, 3]>(q) t = Transpose<perm = [0, 2, 3, 1]>(k) s = MatMul(h, t) y = Div(s, c)
}"""


def product(text: str = PRODUCT, **replaced: str) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Returns a model, and inputs of both signs, with zeros and large values."""
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    model = model_from_text(text, {"c": np.asarray(8.5, np.float32)} if "Div" in text else {})
    rng = np.random.default_rng(11)
    feeds = {}
    for value in model.graph.input:
        numbers = rng.standard_normal([d.dim_value for d in value.type.tensor_type.shape.dim])
        numbers.flat[::7], numbers.flat[::11] = 0, 1e3 * numbers.flat[::11]
        feeds[value.name] = numbers.astype(np.float32)
    return model, feeds


def exact(x: Array) -> Array:
    return rounded(x.astype(np.float64))


@pytest.mark.parametrize("library", [True, False])
def test_products_of_activations_round_both(library: bool) -> None:
    before, feeds = product()
    after, report = convert(before)
    assert names(after) == ["MatMulBf16"]
    assert report.numerics == "bf16"
    want = exact(feeds["a"]) @ exact(feeds["b"])
    (got,) = run(after, feeds, library=library)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.sqrt(np.mean(want**2)))
    assert verify(before, after, effort="quick")
    twice, again = convert(after)
    assert not again.changed and twice.SerializeToString() == after.SerializeToString()


@pytest.mark.parametrize("library", [True, False])
def test_matmuls_of_activations_fuse_transposes_and_a_factor(library: bool) -> None:
    before, feeds = product(SCORES)
    after, _ = convert(before)
    assert names(after) == ["MatMulBf16"]
    assert [list(a.ints) for a in after.graph.node[0].attribute if a.ints] == [[0, 2, 1, 3], [0, 2, 3, 1]]
    want = np.einsum("bshd,bthd->bhst", exact(feeds["q"]), exact(feeds["k"])) / 8.5
    (got,) = run(after, feeds, library=library)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.sqrt(np.mean(want**2)))
    assert verify(before, after, effort="quick")


@pytest.mark.parametrize(
    ("replaced", "kinds"),
    [
        # A's rows would not be contiguous, and B neither by rows nor by columns.
        ({"[0, 2, 1, 3]": "[0, 2, 3, 1]", "70, 3, 72": "72, 3, 70"}, ["Transpose", "MatMulBf16"]),
        ({"[0, 2, 3, 1]": "[0, 3, 2, 1]", "90, 3, 72": "90, 72, 3"}, ["Transpose", "MatMulBf16"]),
        # Intermediate values have other readers.
        ({"=> (": "=> (float[2, 3, 72, 90] t, "}, ["Transpose", "MatMulBf16"]),
        ({"=> (": "=> (float[2, 3, 70, 90] s, "}, ["MatMulBf16", "Div"]),
        ({"Div(s, c)": "Mul(s, s)"}, ["MatMulBf16", "Mul"]),
    ],
)
def test_nodes_that_matmuls_of_activations_do_not_fuse(replaced: dict[str, str], kinds: list[str]) -> None:
    before, feeds = product(SCORES, **replaced)
    after, _ = convert(before)
    assert names(after) == kinds
    assert verify(before, after, effort="quick")
    for want, got in zip(run(after, feeds, library=False), run(after, feeds, library=True), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.sqrt(np.mean(want**2)))


@pytest.mark.parametrize(
    ("a", "b", "y"),
    [
        ("3, 1, 64, 72", "5, 72, 80", "3, 5, 64, 80"),
        ("64, 72", "7, 72, 80", "7, 64, 80"),  # one A for all matrices
        # one B for all matrices: the few rows of each combine to many rows of one GEMM
        ("7, 9, 8, 72", "72, 80", "7, 9, 8, 80"),
        ("N, M, 64, 72", "N, M, 72, 80", "N, M, 64, 80"),
    ],
)
def test_products_of_activations_broadcast(a: str, b: str, y: str) -> None:
    before = model_from_text(f"g (float[{a}] a, float[{b}] b) => (float[{y}] y) {{ y = MatMul(a, b) }}")
    after, _ = convert(before)
    assert names(after) == ["MatMulBf16"]
    feeds = {}
    for name, sizes in (("a", a), ("b", b)):
        shape = [{"N": 2, "M": 3}.get(n) or int(n) for n in sizes.split(", ")]
        feeds[name] = np.random.default_rng(ord(name)).standard_normal(shape).astype(np.float32)
    want = exact(feeds["a"]) @ exact(feeds["b"])
    for library in (True, False):
        (got,) = run(after, feeds, library=library)
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.sqrt(np.mean(want**2)))


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (PRODUCT.replace("float[2", "float16[2").replace("float[N", "float16[N"), "WRONG_DTYPE", "a is"),
        ("g (float[64, 72] a, float[72] b) => (float[64] y) { y = MatMul(a, b) }", "WRONG_RANK", "b is a vector"),
        (PRODUCT.replace("64", "4"), "NO_GAIN", "23040 per matrix"),
        (PRODUCT.replace("2, 3, 64", "48").replace("2, 3, 72", "72"), "NO_GAIN", "276480 multiply-adds"),
        (PRODUCT.replace("64", "18"), "NO_GAIN", "18 rows and 80 columns"),
        (PRODUCT.replace("72", "15"), "NO_GAIN", "each sum has only 15 terms"),
    ],
)
def test_matmuls_of_activations_that_are_refused(text: str, code: str, said: str) -> None:
    after, report = convert(product(text)[0])
    assert names(after) == ["MatMul"]
    assert said in refusals(report)[code]


def test_matmuls_of_activations_that_the_caller_keeps() -> None:
    before, _ = product()
    after, report = convert(before, keep_float=["MatMul"])
    assert names(after) == ["MatMul"] and refusals(report) == {"KEPT": "--keep-float names the node or its operator"}
    assert "OPSET" in refusals(convert(model_from_text(PRODUCT, opset=12))[1])
    text = """g (float[64, 72] a, float[72, 80] b, int64[K] n) => (float y) {
      r = Reshape(b, n) m = MatMul(a, r) y = ReduceSum<keepdims = 0>(m)
    }"""
    after, report = convert(model_from_text(text))
    assert "MatMul" in names(after) and "UNKNOWN_RANK" in refusals(report)
    text = """g (uint8[2, 3, 64, 72] q, float s, uint8 z, float[2, 3, 72, 80] b) => (float[2, 3, 64, 80] y) {
      a = DequantizeLinear(q, s, z) y = MatMul(a, b)
    }"""
    after, report = convert(model_from_text(text))
    assert "MatMul" in names(after) and "QUANTIZED" in refusals(report)
    assert len(graphopt.limit_error(before, 1e-6).keep) == 1  # one layer of several


def test_angles_of_rotary_positions_are_not_rounded() -> None:
    text = "g (float[1, 32, 1] f, float[1, 1, 65536] p) => (float[1, 32, 65536] y) { a = MatMul(f, p) y = Cos(a) }"
    after, report = convert(model_from_text(text), ignore_cost_model=True)
    assert names(after) == ["MatMul", "Cos"] and not refusals(report)
