"""A Softmax between 8-bit integers: results, types and refusals."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphopt import optimize
from graphopt.passes.quantized_softmax import QuantizedSoftmax
from tests.rewriting import Array, model_from_text, rewrite, run

RNG = np.random.default_rng(53)
STEP = np.float32(1 / 256)  # of the quantized probabilities
BECOMES = ["Cast", "Mul", "Softmax", "QuantizeLinear"]


def softmax(
    dtype: str = "uint8",
    *,
    inputs: str = "x, s, z",
    axis: int = -1,
    declared: str = "",
    outputs: str = "",
    opset: int = 17,
    **changed: Array,
) -> onnx.ModelProto:
    numpy_type = np.dtype(dtype)
    constants = {"s": np.float32(0.07), "z": np.array(5, numpy_type), "step": STEP, "zero": np.uint8(0)} | changed
    used = {name: array for name, array in constants.items() if name in [*inputs.split(", "), "step", "zero"]}
    text = f"""g ({dtype}[2, 3, N] x{declared}) => (uint8[2, 3, N] y{outputs}) {{
        f = DequantizeLinear({inputs})
        p = Softmax <axis = {axis}> (f)
        y = QuantizeLinear(p, step, zero) }}"""
    return model_from_text(text, used, opset=opset)


def expected(x: Array, scale: float) -> Array:
    """Returns the probabilities in steps, by the definition in float64; the zero point does not change them."""
    e = np.exp((x.astype(np.float64) - x.max(axis=-1, keepdims=True)) * scale)
    result: Array = e / e.sum(axis=-1, keepdims=True) / STEP
    return result


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("scale", [0.001, 0.07, 1.5])
@pytest.mark.parametrize("inputs", ["x, s, z", "x, s"])
def test_result(dtype: str, scale: float, inputs: str) -> None:
    info = np.iinfo(dtype)
    x = RNG.integers(info.min, info.max + 1, (2, 3, 37)).astype(dtype)
    result = rewrite(softmax(dtype, inputs=inputs, s=np.float32(scale)), [QuantizedSoftmax()])
    assert result.op_types == BECOMES and result.codes() == ["APPLIED"]
    (y,) = run(result.proto, {"x": x})
    wanted = expected(x, float(np.float32(scale)))
    np.testing.assert_allclose(y, np.minimum(wanted, 255), rtol=0, atol=0.5 + 1e-3)


@pytest.mark.parametrize("length", [0, 1])
def test_few_elements(length: int) -> None:
    (y,) = run(rewrite(softmax(), [QuantizedSoftmax()]).proto, {"x": np.zeros((2, 3, length), np.uint8)})
    np.testing.assert_array_equal(y, np.full((2, 3, length), 255))


def test_a_softmax_over_flattened_axes() -> None:
    """Below opset 13 a Softmax covers all axes from `axis` on."""
    x = RNG.integers(0, 256, (2, 3, 9)).astype(np.uint8)
    result = rewrite(softmax(axis=1, opset=11), [QuantizedSoftmax()])
    assert result.op_types == BECOMES
    (y,) = run(result.proto, {"x": x})
    wanted = expected(x.reshape(2, 27), float(np.float32(0.07))).reshape(x.shape)
    np.testing.assert_allclose(y, np.minimum(wanted, 255), rtol=0, atol=0.5 + 1e-3)


def test_part_of_optimize() -> None:
    after, _ = optimize(softmax(), target="cpu")
    assert [n.op_type for n in after.graph.node] == BECOMES


REFUSED = {
    "NOT_CONSTANT": softmax(inputs="x, v, z", declared=", float v"),
    "OVERRIDABLE": softmax(declared=", float s"),
    "PER_CHANNEL_SCALE": softmax(axis=-1, s=np.full(3, 0.1, np.float32), z=np.zeros(3, np.uint8)),
    "NOT_FINITE": softmax(s=np.float32(1e36)),
    "WRONG_DTYPE": softmax("int32", z=np.int32(0)),
}


@pytest.mark.parametrize("code", REFUSED)
def test_refusals(code: str) -> None:
    assert rewrite(REFUSED[code], [QuantizedSoftmax()]).codes() == [code]


def test_a_float16_scale() -> None:
    text = """g (uint8[4, N] x) => (uint8[4, N] y) {
        f = DequantizeLinear(x, s) p = Softmax(f) y = QuantizeLinear(p, step, zero) }"""
    constants = {"s": np.float16(0.1), "step": np.float16(1 / 256), "zero": np.uint8(0)}
    assert rewrite(model_from_text(text, constants, opset=21), [QuantizedSoftmax()]).codes() == ["WRONG_DTYPE"]


@pytest.mark.parametrize("device", ["portable", "rocm", "cuda"])
def test_other_targets_keep_the_integers(device: str) -> None:
    assert rewrite(softmax(), [QuantizedSoftmax()], device=device).codes() == []


def test_a_softmax_with_another_reader() -> None:
    """ONNX Runtime does not fuse it."""
    assert rewrite(softmax(outputs=", float[2, 3, N] p"), [QuantizedSoftmax()]).codes() == []
