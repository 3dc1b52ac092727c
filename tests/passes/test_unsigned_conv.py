"""The int8 weight of ConvInteger becomes uint8: integers, parameters, refusals."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from graphopt import optimize
from graphopt.passes.unsigned_conv import UnsignedConv
from tests.rewriting import Array, model_from_text, rewrite, run

RNG = np.random.default_rng(52)
C, M = 4, 6
LOWEST, HIGHEST = np.iinfo(np.int8).min, np.iinfo(np.int8).max


def convolution(
    inputs: str = "x, w, xz, wz",
    window: str = "<pads = [1, 1, 1, 1]>",
    *,
    more: str = "",
    declared: str = "",
    **changed: Array,
) -> onnx.ModelProto:
    weight = RNG.integers(LOWEST, HIGHEST + 1, (M, C, 3, 3)).astype(np.int8)
    weight[0, 0, 0, :2] = LOWEST, HIGHEST
    constants = {"w": weight, "xz": np.uint8(120), "wz": np.int8(-3)} | changed
    used = {name: array for name, array in constants.items() if name in f"{inputs}, {more}".split(", ")}
    body = f"{more} y = ConvInteger{window} ({inputs})"
    return model_from_text(f"g (uint8[N, {C}, 8, 7] x{declared}) => (int32[N, {M}, P, Q] y) {{ {body} }}", used)


def centred(model: onnx.ModelProto) -> Array:
    """Returns the weight of the ConvInteger minus its zero point, [output channels, ..]."""
    constants = {t.name: onnx.numpy_helper.to_array(t).astype(np.int64) for t in model.graph.initializer}
    (node,) = [n for n in model.graph.node if n.op_type == "ConvInteger"]
    zero = constants[node.input[3]] if len(node.input) > 3 else np.zeros((), np.int64)
    result: Array = constants[node.input[1]] - zero.reshape(-1, *[1] * 3)
    return result


@pytest.mark.parametrize("inputs", ["x, w, xz, wz", "x, w, xz", "x, w", "x, w, , wz"])
@pytest.mark.parametrize("zero", [np.int8(-3), np.array([7], np.int8), RNG.integers(-128, 128, M).astype(np.int8)])
def test_integers_are_equal(inputs: str, zero: Array) -> None:
    before = convolution(inputs, wz=zero)
    result = rewrite(before, [UnsignedConv()])
    assert result.codes() == ["APPLIED"]
    np.testing.assert_array_equal(centred(result.proto), centred(before))
    types = {t.name: t.data_type for t in result.proto.graph.initializer}
    (node,) = result.proto.graph.node
    assert types[node.input[1]] == types[node.input[3]] == onnx.TensorProto.UINT8
    assert node.attribute == before.graph.node[0].attribute and node.input[0] == "x"
    assert len(types) == len(set(node.input) - {"x", ""})  # the old weight is removed


@pytest.mark.parametrize(
    "window", ["<pads = [1, 1, 1, 1]>", "<strides = [2, 1]>", "<dilations = [2, 2]>", "<group = 2>"]
)
def test_result(window: str) -> None:
    """Of onnx's reference, because ONNX Runtime 1.22 has no kernel for int8 weights."""
    C_of_group = C // 2 if "group" in window else C
    before = convolution(window=window, w=RNG.integers(-128, 128, (M, C_of_group, 3, 3)).astype(np.int8))
    x = RNG.integers(0, 256, (2, C, 8, 7)).astype(np.uint8)
    (wanted,) = ReferenceEvaluator(before).run(None, {"x": x})
    (y,) = run(rewrite(before, [UnsignedConv()]).proto, {"x": x})
    np.testing.assert_array_equal(y, wanted)


def test_part_of_optimize() -> None:
    after, _ = optimize(convolution(), target="cpu")
    assert onnx.TensorProto.UINT8 in {t.data_type for t in after.graph.initializer if len(t.dims) == 4}


REFUSED = {
    "NOT_CONSTANT": convolution("x, v, xz, wz", declared=f", int8[{M}, {C}, 3, 3] v"),
    "OVERRIDABLE": convolution(declared=f", int8[{M}, {C}, 3, 3] w"),
    "OTHER_USES": convolution(more="z = ConvInteger<pads = [1, 1, 1, 1]>(x, w, xz, wz)"),
}


@pytest.mark.parametrize("code", sorted(REFUSED))
def test_refusals(code: str) -> None:
    result = rewrite(REFUSED[code], [UnsignedConv()])
    assert set(result.codes()) == {code}
    assert [n.input for n in result.proto.graph.node] == [n.input for n in REFUSED[code].graph.node]


def test_a_zero_point_that_is_an_input() -> None:
    before = convolution("x, w, xz, v", declared=", int8 v")
    assert rewrite(before, [UnsignedConv()]).codes() == ["NOT_CONSTANT"]


def test_a_weight_that_is_a_graph_output() -> None:
    before = convolution()
    before.graph.output.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.INT8, [M, C, 3, 3]))
    assert rewrite(before, [UnsignedConv()]).codes() == ["GRAPH_OUTPUT"]


def test_no_candidates() -> None:
    unsigned = convolution(w=np.full((M, C, 3, 3), 9, np.uint8), wz=np.uint8(3))
    assert rewrite(unsigned, [UnsignedConv()]).codes() == []
    for device in ("cuda", "rocm", "portable"):
        assert rewrite(convolution(), [UnsignedConv()], device=device).codes() == []
