"""Quantized values: QLinearConv by its definition, and runs that are compared with AFTER's levels."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import graphopt
from graphopt.inputs.plan import Case
from graphopt.verification.choices import levels_agree, values_of
from graphopt.verification.compare import deviations
from graphopt.verification.modes import ComparedRun
from graphopt.verification.pair import Pair, paired
from graphopt.verification.run import BODIES, open_session, run_case
from graphopt.verification.variants import with_defined_convolutions
from tests.rewriting import Array, model_from_text

RNG = np.random.default_rng(3)
CASE = Case("normal", {"x": RNG.standard_normal((2000, 16)).astype(np.float32)})


def chain(w: float = 1.0, last: float = 1.0, change: str = "Identity(q1)") -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    values: dict[str, Array] = {
        "w": np.float32(w) * rng.standard_normal((16, 16)).astype(np.float32) / 4,
        "v": np.float32(last) * rng.standard_normal((16, 16)).astype(np.float32) / 4,
        "s": np.float32(0.03),
        "z": np.int8(0),
        "low": np.int8(-128),
        "high": np.int8(40),
    }
    text = f"""g (float[N, 16] x) => (float[N, 16] y) {{
        t = MatMul(x, w) q1 = QuantizeLinear(t, s, z) u = {change} d1 = DequantizeLinear(u, s, z)
        r = MatMul(d1, w) q2 = QuantizeLinear(r, s, z) d2 = DequantizeLinear(q2, s, z) y = MatMul(d2, v) }}"""
    return model_from_text(text, values)


@pytest.mark.parametrize(
    ("after", "agrees"),
    [
        (chain(w=1 + 2e-6), True),
        (chain(w=1.01), False),  # too many elements have other levels
        (chain(last=1.01), False),  # the output differs
        (chain(change="Clip(q1, low, high)"), False),  # the second value has levels that are far away
    ],
    ids=["rounding", "weight", "last weight", "clipped"],
)
def test_levels_agree(after: onnx.ModelProto, agrees: bool) -> None:
    pair = paired(chain(), after, None, None, [])
    assert isinstance(pair, Pair)
    outputs = [run_case(open_session(model.source), CASE) for model in (pair.before, pair.after)]
    assert not isinstance(outputs[0], str)
    found = deviations(outputs[0], outputs[1])
    assert not isinstance(found, str) and found[0].relative > 1e-4
    q1 = [values_of(model, BODIES, ["q1"], CASE)["q1"] for model in (pair.before, pair.after)]
    assert not agrees or not np.array_equal(*q1)
    assert levels_agree(pair, ComparedRun(BODIES, CASE, found), ["y"]) == agrees


def quantized_conv(opset: int, scales: int) -> onnx.ModelProto:
    values: dict[str, Array] = {
        "xs": np.float32(0.03),
        "xz": np.uint8(120),
        "w": RNG.integers(64, 193, (5, 3, 3, 3)).astype(np.uint8),
        "ws": RNG.uniform(0.002, 0.004, scales).astype(np.float32).reshape([scales] if scales > 1 else []),
        "wz": np.full([scales] if scales > 1 else [], 127, np.uint8),
        "ys": np.float32(0.05),
        "yz": np.uint8(130),
        "b": RNG.integers(-900, 900, 5).astype(np.int32),
    }
    text = """g (uint8[N, 3, 9, 8] x) => (uint8[N, 5, R, S] y) {
        y = QLinearConv<pads = [1, 0, 2, 1], strides = [2, 1]>(x, xs, xz, w, ws, wz, ys, yz, b) }"""
    return model_from_text(text, values, opset)


@pytest.mark.parametrize(("opset", "scales"), [(11, 1), (13, 1), (13, 5), (17, 5)])
def test_quantized_convolution_by_its_definition(opset: int, scales: int) -> None:
    model = ir.from_proto(quantized_conv(opset, scales))
    defined = with_defined_convolutions(model)
    assert defined is not None and [n.op_type for n in defined.graph if n.op_type.startswith("Q")] == ["QuantizeLinear"]
    feeds = {"x": RNG.integers(0, 256, (2, 3, 9, 8)).astype(np.uint8)}
    got = [run_case(open_session(ir.to_proto(m)), Case("random", feeds)) for m in (model, defined)]
    assert not isinstance(got[0], str) and not isinstance(got[1], str)
    moved = np.abs(got[0][0].astype(int) - got[1][0].astype(int))
    assert moved.max() <= 1 and (moved > 0).mean() < 1e-2


def test_scales_that_the_definition_cannot_have() -> None:
    assert with_defined_convolutions(ir.from_proto(quantized_conv(11, 5))) is None


def test_verify_compares_the_definition() -> None:
    before = quantized_conv(13, 5)
    after, _ = graphopt.optimize(before, target="cpu", ignore_cost_model=True)
    assert any(node.op_type == "QuantizedConv" for node in after.graph.node)
    report = graphopt.verify(before, after)
    assert report.equal and any("by its definition" in note for note in report.notes)
    wrong = onnx.ModelProto()
    wrong.CopyFrom(after)
    bias = next(t for t in wrong.graph.initializer if t.name.endswith("_bias"))
    bias.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(bias) + np.int32(400), bias.name))
    assert not graphopt.verify(before, wrong)
