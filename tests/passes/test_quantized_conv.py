"""Quantized convolutions in both forms: geometries, types, activations, other readers, refusals."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphopt.passes.quantized_conv import QuantizedConv
from tests import rewriting
from tests.rewriting import Array, Rewritten, assert_same_outputs, model_from_text

RNG = np.random.default_rng(51)
C, M = 3, 5
X = {"x": RNG.normal(size=(2, C, 9, 8)).astype(np.float32)}
QUANTIZE = "q = QuantizeLinear(x, xs, xz)  "
DEQUANTIZE = "d = DequantizeLinear(q, xs, xz)  w = DequantizeLinear<axis = 0>(wi, ws, wz)  "
BIAS = "b = DequantizeLinear<axis = 0>(bi, bs)  "
STORE = "r = QuantizeLinear(c, ys, yz)  y = DequantizeLinear(r, ys, yz)"
QDQ = QUANTIZE + DEQUANTIZE + BIAS + "c = Conv<pads = [1, 1, 1, 1]>(d, w, b)  " + STORE


def rewrite(before: onnx.ModelProto, *, device: str = "cpu", ignore_cost_model: bool = True) -> Rewritten:
    return rewriting.rewrite(before, [QuantizedConv()], device=device, ignore_cost_model=ignore_cost_model)


def parameters(
    byte: str = "uint8", group: int = 1, kernel: tuple[int, int] = (3, 3), channels: int = C
) -> dict[str, Array]:
    """Scales are powers of two: float32 is then exact, so both models round the same values. W has 7 bits."""
    m = channels if group > 1 else M
    middle = 0 if byte == "int8" else 128
    ws = (2.0 ** RNG.integers(-9, -6, m)).astype(np.float32)
    return {
        "xs": np.float32(2**-5),
        "xz": np.array(middle - 9, byte),
        "wi": RNG.integers(-64, 65, (m, channels // group, *kernel)).astype(np.int8),
        "ws": ws,
        "wz": np.zeros(m, np.int8),
        "ys": np.float32(2**-3),
        "yz": np.array(middle + 4, byte),
        "bi": RNG.integers(-900, 900, m).astype(np.int32),
        "bs": np.float32(2**-5) * ws,
    }


def model(
    body: str, given: dict[str, Array] | None = None, *, x: str = f"float[B, {C}, 9, 8]", opset: int = 17
) -> onnx.ModelProto:
    given = parameters() if given is None else given
    used = {name: array for name, array in given.items() if f"{name})" in body or f"{name}," in body}
    return model_from_text(f"g ({x} x) => (float[P, Q, R, S] y) {{ {body} }}", used, opset)


def assert_rewritten(before: onnx.ModelProto, name: str, feeds: dict[str, Array] | None = None) -> Rewritten:
    result = rewrite(before)
    assert result.op_types == ["QuantizeLinear", "Transpose", name, "Transpose", "DequantizeLinear"]
    assert result.codes() == ["APPLIED"]
    assert_same_outputs(before, result.proto, X if feeds is None else feeds, tolerance=0)
    assert rewrite(result.proto).proto == result.proto
    return result


@pytest.mark.parametrize("byte", ["uint8", "int8"])
@pytest.mark.parametrize("group", [1, C])
def test_types_and_groups(byte: str, group: int) -> None:
    body = QDQ.replace("<pads", f"<group = {group}, pads")
    assert_rewritten(model(body, parameters(byte, group)), "QuantizedConv")


@pytest.mark.parametrize(
    "window",
    [
        "",
        '<auto_pad = "SAME_UPPER">',
        "<strides = [2, 1], pads = [0, 2, 1, 0]>",
        "<dilations = [2, 3]>",
        "<kernel_shape = [3, 3]>",
    ],
)
def test_windows(window: str) -> None:
    assert_rewritten(model(QDQ.replace("<pads = [1, 1, 1, 1]>", window)), "QuantizedConv")


@pytest.mark.parametrize(
    ("activation", "suffix"),
    [
        ("a = Relu(c)  ", "Relu"),
        ("l = Constant<value = float {-1.0}>()  h = Constant<value = float {2.5}>()  a = Clip(c, l, h)  ", "Clip"),
    ],
)
@pytest.mark.parametrize("byte", ["uint8", "int8"])
def test_activations(activation: str, suffix: str, byte: str) -> None:
    body = QDQ.replace("r = QuantizeLinear(c", f"{activation} r = QuantizeLinear(a")
    before = model(body, parameters(byte))
    result = rewrite(before)
    assert f"QuantizedConv{suffix}" in result.op_types and "Conv" not in result.op_types
    assert_same_outputs(before, result.proto, X, tolerance=0)


def test_no_bias_scalar_scale_and_zero_point() -> None:
    given = {**parameters(), "ws": np.float32(2**-8), "wz": np.int8(0)}
    assert_rewritten(model(QDQ.replace(BIAS, "").replace("(d, w, b)", "(d, w)"), given), "QuantizedConv")


def test_weight_of_uint8_with_zero_points() -> None:
    given = parameters()
    given |= {
        "wi": (given["wi"].astype(np.int16) + 128).astype(np.uint8),
        "wz": RNG.integers(120, 136, M).astype(np.uint8),
    }
    assert_rewritten(model(QDQ, given), "QuantizedConv")


@pytest.mark.parametrize("bias", [", bi", ""])
def test_qlinear_conv(bias: str) -> None:
    body = f"r = QLinearConv<pads = [1, 1, 1, 1]>(q, xs, xz, wi, ws, wz, ys, yz{bias})  y = DequantizeLinear(r, ys, yz)"
    assert_rewritten(model(QUANTIZE + body), "QuantizedConv")


def test_other_readers_of_the_input_keep_it() -> None:
    body = QDQ.replace("y = Dequ", "e = Dequ") + "  s = ReduceMean<axes = [1]>(d)  y = Add(e, s)"
    before = model(body)
    result = rewrite(before)
    assert "QuantizedConv" in result.op_types and result.op_types.count("DequantizeLinear") == 2
    assert_same_outputs(before, result.proto, X, tolerance=0)


@pytest.mark.parametrize(
    "body",
    [
        QDQ.replace("r = QuantizeLinear(c", "t = Tanh(c)  r = QuantizeLinear(t"),
        QDQ.replace("r = Quant", "t = Tanh(c)  r = Quant").replace("y = Dequ", "e = Dequ") + "  y = Add(e, t)",
        QDQ.replace("Conv<pads = [1, 1, 1, 1]>(d,", "Conv<pads = [1, 1, 1, 1]>(x,"),
        QDQ.replace(BIAS, "b = Cast<to = 1>(bi)  "),
    ],
)
def test_no_candidates(body: str) -> None:
    result = rewrite(model(body))
    assert "Conv" in result.op_types and result.codes() == []


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"xs": np.full(C, 0.1, np.float32), "xz": np.zeros(C, np.uint8)}, "PER_CHANNEL_SCALE"),
        ({"yz": np.int8(3)}, "WRONG_DTYPE"),
        ({"wi": np.full((M, C, 3, 3), 127, np.int8), "wz": np.full(M, -9, np.int8)}, "WRONG_DTYPE"),
        ({"bs": np.full(M, 0.5, np.float32)}, "PER_CHANNEL_SCALE"),
        ({"bi": np.ones(1, np.int32), "bs": np.full(1, 0.5, np.float32)}, "WRONG_SHAPE"),
    ],
)
def test_parameters_that_do_not_fit(changed: dict[str, Array], code: str) -> None:
    body = QDQ
    if "xs" in changed:
        body = body.replace("DequantizeLinear(q", "DequantizeLinear<axis = 1>(q").replace(
            "QuantizeLinear(x", "QuantizeLinear<axis = 1>(x"
        )
    result = rewrite(model(body, {**parameters(), **changed}))
    assert "Conv" in result.op_types and result.codes() == [code]


def test_scales_of_another_axis() -> None:
    body = QDQ.replace("<axis = 0>(wi", "<axis = 2>(wi")
    given = {
        **parameters(),
        "wi": np.ones((3, C, 3, 3), np.int8),
        "ws": np.ones(3, np.float32),
        "wz": np.zeros(3, np.int8),
    }
    given |= {"bi": np.ones(3, np.int32), "bs": np.full(3, 2**-5, np.float32)}
    assert rewrite(model(body, given)).codes() == ["WRONG_AXIS"]


@pytest.mark.parametrize(
    ("window", "given", "code"),
    [
        ("<group = 3, pads = [1, 1, 1, 1]>", {"wi": np.ones((6, 1, 3, 3), np.int8)}, "ATTRIBUTE"),
        ("<pads = [1, 1, 1, -1]>", {}, "ATTRIBUTE"),
    ],
)
def test_windows_that_do_not_fit(window: str, given: dict[str, Array], code: str) -> None:
    given = {**parameters(), **given}
    if len(given["wi"]) != M:
        given |= {"ws": np.ones(6, np.float32), "wz": np.zeros(6, np.int8)}
        given |= {"bi": np.ones(6, np.int32), "bs": np.full(6, 2**-5, np.float32)}
    assert rewrite(model(QDQ.replace("<pads = [1, 1, 1, 1]>", window), given)).codes() == [code]


def test_one_spatial_axis() -> None:
    body = QDQ.replace("<pads = [1, 1, 1, 1]>", "")
    given = {**parameters(), "wi": np.ones((M, C, 3), np.int8)}
    before = model_from_text(f"g (float[B, {C}, 9] x) => (float[P, Q, R] y) {{ {body} }}", given)
    assert rewrite(before).codes() == ["WRONG_RANK"]


@pytest.mark.parametrize("name", ["xs", "ws", "wi", "ys", "bi"])
@pytest.mark.parametrize("code", ["NOT_CONSTANT", "OVERRIDABLE"])
def test_parameters_that_are_inputs(name: str, code: str) -> None:
    given = parameters()
    types = {"xs": "float", "ws": f"float[{M}]", "wi": f"int8[{M}, {C}, 3, 3]", "ys": "float", "bi": f"int32[{M}]"}
    constants = {key: array for key, array in given.items() if key != name or code == "OVERRIDABLE"}
    text = f"g (float[B, {C}, 9, 8] x, {types[name]} {name}) => (float[P, Q, R, S] y) {{ {QDQ} }}"
    assert rewrite(model_from_text(text, constants)).codes() == [code]


def test_old_opsets() -> None:
    given = {**parameters(), "ws": np.float32(2**-8), "wz": np.int8(0)}
    body = QUANTIZE + "r = QLinearConv(q, xs, xz, wi, ws, wz, ys, yz)  y = DequantizeLinear(r, ys, yz)"
    assert rewrite(model(body, given, opset=11)).codes() == ["OPSET"]


def test_other_targets_keep_the_nodes() -> None:
    for device in ("cuda", "rocm", "portable"):
        result = rewrite(model(QDQ), device=device)
        assert "Conv" in result.op_types and result.codes() == []


@pytest.mark.parametrize(
    ("channels", "group", "kernel", "code"),
    [
        (3, 1, (3, 3), "APPLIED"),
        (64, 64, (5, 5), "APPLIED"),
        (64, 64, (3, 3), "NO_GAIN"),
        (64, 1, (3, 3), "NO_GAIN"),
        (3, 1, (1, 1), "NO_GAIN"),
    ],
)
def test_is_faster_with_few_channels(channels: int, group: int, kernel: tuple[int, int], code: str) -> None:
    body = QDQ.replace("<pads = [1, 1, 1, 1]>", f"<group = {group}>")
    before = model(body, parameters("uint8", group, kernel, channels), x=f"float[B, {channels}, 9, 8]")
    assert rewrite(before, ignore_cost_model=False).codes() == [code]


@pytest.mark.parametrize("byte", ["uint8", "int8"])
def test_no_zero_points(byte: str) -> None:
    """The type of X is that of its value. QuantizeLinear without a zero point returns uint8."""
    body = QDQ.replace("(q, xs, xz)", "(q, xs)")
    if byte == "uint8":
        body = (
            body.replace("(x, xs, xz)", "(x, xs)").replace("(c, ys, yz)", "(c, ys)").replace("(r, ys, yz)", "(r, ys)")
        )
    given = parameters(byte) | {"xz": np.zeros((), byte)}
    assert_rewritten(model(body, given), "QuantizedConv")
    body = body.replace("(c, ys, yz)", "(c, ys)").replace("(r, ys, yz)", "(r, ys)")
    assert rewrite(model(body, given)).codes() == ["APPLIED" if byte == "uint8" else "WRONG_DTYPE"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("DequantizeLinear<axis = 0>(wi", "DequantizeLinear<axis = 1, block_size = 3>(wi"),
        ("QuantizeLinear(c, ys, yz)", "QuantizeLinear<output_dtype = 2>(c, ys, yz)"),
    ],
)
def test_blocks_and_types_as_attributes(old: str, new: str) -> None:
    given = parameters()
    if "block_size" in new:
        given |= {name: np.broadcast_to(given[name][:, None, None, None], (M, 1, 3, 3)).copy() for name in ("ws", "wz")}
        given["bs"] = np.full(M, 2**-5, np.float32)
    assert rewrite(model(QDQ.replace(old, new), given, opset=21)).codes() == ["ATTRIBUTE"]


def test_adjacent_convolutions_share_channels_last() -> None:
    given = parameters() | {
        "vi": RNG.integers(-64, 65, (4, M, 3, 3)).astype(np.int8),
        "vs": np.float32(2**-8),
        "vz": np.int8(0),
    }
    second = "  e = DequantizeLinear(r, ys, yz)  v = DequantizeLinear(vi, vs, vz)  f = Conv(e, v)  "
    body = QDQ.replace("  y = DequantizeLinear(r, ys, yz)", second)
    body += "s = QuantizeLinear(f, ys, yz)  y = DequantizeLinear(s, ys, yz)"
    before = model(body, given)
    result = rewrite(before)
    assert result.op_types.count("Transpose") == 2 and result.op_types.count("QuantizedConv") == 2
    assert_same_outputs(before, result.proto, X, tolerance=0)


@pytest.mark.parametrize(("others", "code"), [(0, "NO_GAIN"), (1, "APPLIED")])
def test_pools_need_a_convolution_of_the_runtime(others: int, code: str) -> None:
    given = parameters() | {"vi": np.ones((64, 64, 3, 3), np.int8), "vs": np.float32(2**-8), "vz": np.int8(0)}
    given |= {"u": np.ones((64, M, 1, 1), np.float32)}
    body = QDQ.replace("y = Dequ", "e = Dequ") + "  p = MaxPool<kernel_shape = [2, 2]>(e)  "
    if others:
        body += (
            "h = Conv(p, u)  hq = QuantizeLinear(h, ys, yz)  hd = DequantizeLinear(hq, ys, yz)  "
            "v = DequantizeLinear(vi, vs, vz)  f = Conv(hd, v)  y = Relu(f)"
        )
    else:
        body += "y = Relu(p)"
    assert rewrite(model(body, given), ignore_cost_model=False).codes()[0] == code
