"""Quantized operators on the provider, against ONNX Runtime's CPU kernels: the same integers, bit for bit."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from models import ZOO
from tests.provider.test_ops import ALONE
from tests.provider.worker import Array, new_session, run

RNG = np.random.default_rng(0)
MICROSOFT = "com.microsoft"


def u8(*dims: int) -> Array:
    return np.asarray(RNG.integers(0, 256, dims), np.uint8)


def i8(*dims: int) -> Array:
    return np.asarray(RNG.integers(-128, 128, dims), np.int8)


def i7(*dims: int) -> Array:
    """Draws 7-bit values for use with uint8: without VNNI, ONNX Runtime saturates sums of two products at 16 bits."""
    return np.asarray(RNG.integers(-64, 64, dims), np.int8)


def i32(*dims: int) -> Array:
    return np.asarray(RNG.integers(-5000, 5000, dims), np.int32)


def real(*dims: int) -> Array:
    return np.asarray(RNG.standard_normal(dims), np.float32)


def scale(*dims: int, of: float = 1) -> Array:
    return np.asarray(of * (0.01 + 0.02 * RNG.random(dims)), np.float32)


Inputs = list[Array | None]
IMAGE, FILTERS = (2, 4, 9, 8), (6, 2, 3, 3)
# Operator, inputs, attributes.
CASES: list[tuple[str, Inputs, dict[str, Any]]] = [
    ("DynamicQuantizeLinear", [real(3, 70)], {}),
    ("DynamicQuantizeLinear", [np.zeros((3, 7), np.float32)], {}),
    ("MatMulInteger", [u8(3, 5, 40), i7(40, 33), u8(), i8(33)], {}),
    ("MatMulInteger", [u8(3, 5, 40), u8(3, 40, 33), u8(1), u8(1)], {}),
    ("MatMulInteger", [i8(40), i8(2, 40, 33)], {}),
    (
        "QLinearMatMul",
        [u8(2, 5, 48), scale(), u8(), i7(48, 33), scale(33), np.zeros(33, np.int8), scale(of=40), u8()],
        {},
    ),
    ("QLinearMatMul", [u8(2, 5, 40), scale(), u8(), i7(40, 33), scale(33), i8(33), scale(of=40), u8()], {}),
    ("QLinearMatMul", [i8(2, 5, 40), scale(), i8(), i8(2, 40, 33), scale(), i8(), scale(of=40), i8()], {}),
    ("ConvInteger", [u8(*IMAGE), u8(6, 4, 3, 3), u8(), u8()], {"pads": [1, 1, 1, 1], "strides": [2, 1]}),
    ("ConvInteger", [u8(*IMAGE), i7(*FILTERS), u8()], {"group": 2, "auto_pad": "SAME_UPPER", "strides": [2, 1]}),
    (
        "QLinearConv",
        [u8(*IMAGE), scale(), u8(), i7(*FILTERS), scale(6), np.zeros(6, np.int8), scale(of=20), u8(), i32(6)],
        {"group": 2, "dilations": [1, 2]},
    ),
    ("QLinearConv", [i8(2, 4, 9), scale(), i8(), i8(6, 4, 3), scale(), i8(), scale(of=20), i8()], {}),
    (
        "QLinearConv",
        [u8(2, 5, 9, 8), scale(), u8(), i7(6, 5, 3, 3), scale(6), np.zeros(6, np.int8), scale(of=20), u8(), i32(6)],
        {"pads": [1, 0, 1, 2], "strides": [2, 1]},
    ),
    ("ConvInteger", [u8(2, 16, 9, 8), i7(20, 16, 1, 1), u8()], {"pads": [1, 1, 0, 0]}),
    ("ConvInteger", [u8(2, 19, 9), i7(8, 19, 4), u8()], {"dilations": [2], "pads": [1, 2]}),
    (
        "QLinearConv",
        [i8(2, 16, 9, 8), scale(), i8(), i8(16, 1, 3, 3), scale(), np.zeros(1, np.int8), scale(of=10), i8(), i32(16)],
        {"group": 16, "pads": [1, 1, 1, 1]},
    ),
    (
        "QLinearConv",
        [i8(1, 64, 9, 8), scale(), i8(), i8(64, 4, 3, 3), scale(64), np.zeros(64, np.int8), scale(of=20), i8()],
        {"group": 16, "pads": [1, 1, 1, 1]},
    ),
    (
        "QLinearConv",
        [u8(2, 64, 19), scale(), u8(), i7(96, 32, 3), scale(), np.zeros(1, np.int8), scale(of=40), u8()],
        {"group": 2, "strides": [2]},
    ),
    ("MatMul", [np.abs(i32(2, 5, 7)), i32(7, 9)], {}),
    ("MatMul", [i32(2, 5, 7).astype(np.int64) << 40, i32(7, 9).astype(np.int64)], {}),
    ("MatMul", [i32(2, 5, 7).astype(np.uint32), i32(7).astype(np.uint32)], {}),
    ("DequantizeLinear", [i32(2, 3), scale(1), np.asarray(0, np.int32)], {}),
    ("QuantizeLinear", [real(2, 3), scale(1), u8()], {}),
    ("MaxPool", [u8(*IMAGE)], {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [2, 1]}),
    ("MaxPool", [i8(2, 3, 9)], {"kernel_shape": [2], "ceil_mode": 1, "strides": [2]}),
]
CONTRIB: list[tuple[str, Inputs, dict[str, Any]]] = [
    ("MatMulIntegerToFloat", [u8(2, 5, 40), i7(40, 33), scale(), scale(33), u8(), i8(33), real(33)], {}),
    ("DynamicQuantizeMatMul", [real(2, 5, 40), i7(40, 33), scale(33), None, real(33)], {}),
    ("DynamicQuantizeMatMul", [real(5, 40), u8(40, 33), scale(1), u8(1)], {}),
    (
        "QGemm",
        [u8(5, 40), scale(), u8(), i7(33, 40), scale(33), np.zeros(33, np.int8), i32(33), scale(of=40), u8()],
        {"transB": 1},
    ),
    ("QGemm", [u8(5, 40), scale(), u8(), u8(40, 33), scale(), u8()], {"alpha": 0.5}),
    (
        "QLinearConv",
        [u8(2, 9, 8, 5), scale(), u8(), i7(6, 5, 3, 3), scale(6), np.zeros(6, np.int8), scale(of=20), u8(), i32(6)],
        {"pads": [1, 0, 1, 2], "channels_last": 1},
    ),
    (
        "QLinearConv",
        [u8(2, 9, 8, 4), scale(), u8(), i7(6, 2, 3, 3), scale(), np.zeros(1, np.int8), scale(of=20), u8()],
        {"group": 2, "channels_last": 1},
    ),
    ("QLinearAdd", [u8(3, 7, 64), scale(), u8(), u8(3, 7, 64), scale(), u8(), scale(of=2), u8()], {}),
    ("QLinearAdd", [i8(3, 1, 17), scale(), i8(), i8(5, 1), scale(), i8(), scale(of=2), i8()], {}),
    ("QLinearMul", [u8(3, 7, 64), scale(), u8(), u8(64), scale(), u8(), scale(of=2), u8()], {}),
    ("QLinearMul", [i8(4099), scale(), i8(), i8(1), scale(), i8(), scale(of=2), i8()], {}),
    ("QLinearSigmoid", [u8(3, 700), scale(of=4), u8(), np.asarray(1 / 256, np.float32), np.asarray(0, np.uint8)], {}),
    ("QLinearSigmoid", [i8(3, 700), scale(of=4), i8(), np.asarray(1 / 256, np.float32), np.asarray(-128, np.int8)], {}),
    ("QLinearLeakyRelu", [u8(3, 700), scale(), u8(), scale(), u8()], {"alpha": 0.2}),
    ("QLinearLeakyRelu", [i8(3, 700), scale(), i8(), scale(1), None], {}),
    (
        "QLinearSoftmax",
        [u8(5, 1000), scale(of=4), u8(), np.asarray(1 / 256, np.float32), np.asarray(0, np.uint8)],
        {"opset": 13},
    ),
    (
        "QLinearSoftmax",
        [u8(5, 7, 2, 3), scale(of=4), None, np.asarray(1 / 255, np.float32), np.asarray(3, np.uint8)],
        {"opset": 13, "axis": 1},
    ),
    (
        "QLinearSoftmax",
        [i8(3, 5, 7), scale(of=4), i8(), np.asarray(1 / 256, np.float32), np.asarray(-128, np.int8)],
        {"opset": 12, "axis": 1},
    ),
    ("QLinearGlobalAveragePool", [u8(2, 5, 9, 8), scale(), u8(), scale(), u8()], {}),
    ("QLinearGlobalAveragePool", [i8(2, 9, 8, 5), scale(), i8(), scale(), i8()], {"channels_last": 1}),
    ("QLinearAveragePool", [u8(*IMAGE), scale(), u8(), scale(), u8()], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    (
        "QLinearAveragePool",
        [i8(2, 9, 8, 5), np.asarray(0.5, np.float32), i8(), np.asarray(0.5, np.float32), i8()],
        {"kernel_shape": [2, 2], "strides": [2, 1], "channels_last": 1, "ceil_mode": 1},
    ),
    (
        "QLinearAveragePool",
        [u8(2, 3, 9), scale(), u8(), scale(), u8()],
        {"kernel_shape": [4], "auto_pad": "SAME_UPPER", "count_include_pad": 1},
    ),
    ("QLinearAveragePool", [u8(*IMAGE), scale(), u8(), scale(), u8()], {"kernel_shape": [9, 8]}),
    ("QLinearConcat", [scale(), u8(), u8(2, 3, 5), scale(), u8(), u8(2, 4, 5), scale(), u8()], {"axis": 1}),
    (
        "QLinearConcat",
        [np.asarray(0.1, np.float32), i8(), i8(7, 16), np.asarray(0.1, np.float32), i8(), i8(2, 16), scale(), i8()],
        {"axis": 0},
    ),
    (
        "QLinearWhere",
        [real(4, 1, 9) > 0, u8(4, 3, 9), scale(), u8(), u8(3, 1), scale(), u8(), scale(), u8()],
        {},
    ),
]


def model_of(
    op: str, inputs: Inputs, attributes: dict[str, Any], domain: str, constant: bool = False
) -> tuple[bytes, dict[str, Array]]:
    """Returns a model of one node, and its feeds. `constant`: all inputs but the first are initializers."""
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(inputs)]
    feeds = {name: x for name, x in zip(names, inputs, strict=True) if x is not None}
    outputs = [f"y{i}" for i in range(3 if op == "DynamicQuantizeLinear" else 1)]
    node = helper.make_node(op, names, outputs, domain=domain, **attributes)
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), [f"{n}_{d}" for d in range(x.ndim)])
        for n, x in feeds.items()
    ]
    rest = [onnx.numpy_helper.from_array(feeds.pop(i.name), i.name) for i in infos[1:]] if constant else []
    infos = infos[: len(feeds)]
    graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name=y) for y in outputs], rest)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString(), feeds


def on_cpu(model: bytes, feeds: dict[str, Array]) -> list[Array]:
    outputs: list[Array] = new_session(model, devices=0).run(None, feeds)
    return outputs


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "domain"),
    [(*case, "") for case in CASES] + [(*case, MICROSOFT) for case in CONTRIB],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_the_numbers_of_the_cpu(
    op: str, inputs: Inputs, attributes: dict[str, Any], domain: str, worker: ProcessPoolExecutor
) -> None:
    for constant in (False, True):
        model, feeds = model_of(op, inputs, attributes, domain, constant)
        outcome = worker.submit(run, model, feeds, ALONE).result()
        assert outcome.on_device(op) == 1
        for got, wanted in zip(outcome.outputs, worker.submit(on_cpu, model, feeds).result(), strict=True):
            assert got.dtype == wanted.dtype
            np.testing.assert_array_equal(got, wanted)


def drawn(rng: np.random.Generator) -> tuple[str, Inputs, dict[str, Any]]:
    """Draws a product or convolution of integers with random sizes, types, zero points and scales."""
    left = np.uint8 if rng.integers(2) else np.int8

    def integers(dtype: Any, *dims: int) -> Array:
        ends = (-64, 64) if dtype == np.int8 else (0, 256)
        return np.asarray(rng.integers(*ends, dims), dtype)

    def scales(*dims: int) -> Array:
        return np.asarray(0.01 + 0.02 * rng.random(dims), np.float32)

    K, N = (int(n) for n in rng.integers(1, 80, 2))
    zero, each = integers(left), (N,) if rng.integers(2) else ()
    point = np.zeros(each, np.int8) if rng.integers(3) else integers(np.int8, *each)
    y = [np.asarray(scales() * np.float32(K**0.5)), integers(left)]
    if rng.integers(2):
        a, b = integers(left, *rng.integers(1, 40, int(rng.integers(1, 3))), K), integers(np.int8, K, N)
        if rng.integers(3) == 0:
            return "MatMulInteger", [a, b, zero, point], {}
        return "QLinearMatMul", [a, scales(), zero, b, scales(*each), point, *y], {}
    group = int(rng.choice((1, 1, N)))
    kernel, strides, dilations = (rng.integers(1, most, 2).tolist() for most in (4, 3, 3))
    attributes = {"group": group, "strides": strides, "dilations": dilations, "pads": rng.integers(0, 3, 4).tolist()}
    x = integers(left, int(rng.integers(1, 3)), K if group == 1 else N, *rng.integers(7, 14, 2))
    w = integers(np.int8, N, K if group == 1 else 1, *kernel)
    if rng.integers(3) == 0:
        return "ConvInteger", [x, w, zero], attributes
    bias = rng.integers(-5000, 5000, N).astype(np.int32)
    return "QLinearConv", [x, scales(), zero, w, scales(*each), np.zeros(each, np.int8), *y, bias], attributes


@pytest.mark.parametrize("seed", range(int(os.environ.get("GRAPHOPT_QUANTIZED_NODES", "6"))))
def test_the_numbers_of_the_cpu_for_drawn_nodes(seed: int, worker: ProcessPoolExecutor) -> None:
    test_the_numbers_of_the_cpu(*drawn(np.random.default_rng(seed)), "", worker)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.uint64])
def test_gemm_of_integers(dtype: Any, worker: ProcessPoolExecutor) -> None:
    """ONNX Runtime has no integer Gemm; the sums wrap around."""
    a, b = (RNG.integers(0, 2**31 - 1, dims).astype(dtype) for dims in ((7, 5), (7, 9)))
    for c in (None, RNG.integers(0, 99, (9,)).astype(dtype), RNG.integers(0, 99, (5, 1)).astype(dtype)):
        model, feeds = model_of("Gemm", [a, b, c][: 2 if c is None else 3], {"transA": 1}, "")
        outcome = worker.submit(run, model, feeds, ALONE).result()
        assert outcome.on_device("Gemm") == 1
        with np.errstate(over="ignore"):
            wanted = a.T @ b if c is None else a.T @ b + c
        np.testing.assert_array_equal(outcome.outputs[0], wanted)


@pytest.mark.parametrize("number", ["INT4", "UINT4", "INT16", "UINT16"])
@pytest.mark.parametrize("block", [0, 2])
def test_numbers_of_4_and_16_bits(number: str, block: int, worker: ProcessPoolExecutor) -> None:
    """Quantizes activations and weights of odd sizes, in blocks along an axis or with one scale for each index."""
    code = getattr(onnx.TensorProto, number)
    ends = np.iinfo(number.lower().replace("t4", "t8"))
    least, most = (ends.min, ends.max) if "16" in number else (-8, 7) if ends.min else (0, 15)
    shape = (3, 5, 7)
    dims = (3, 3, 7) if block else (5,)
    scales = helper.make_tensor("scales", onnx.TensorProto.FLOAT, dims, scale(*dims, of=10).ravel())
    points = helper.make_tensor("points", code, dims, RNG.integers(least // 2, most // 2, dims).ravel())
    weights = helper.make_tensor("weights", code, shape, RNG.integers(least, most + 1, shape).ravel())
    first = helper.make_tensor("first", onnx.TensorProto.INT64, (1,), [0])
    quantization: dict[str, Any] = {"axis": 1, "block_size": block} if block else {"axis": 1}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scales", "points"], ["q"], **quantization),
        helper.make_node("DequantizeLinear", ["q", "scales", "points"], ["y"], **quantization),
        helper.make_node("DequantizeLinear", ["weights", "scales", "points"], ["w"], **quantization),
        helper.make_node("Add", ["y", "w"], ["sum"]),
    ]
    views = [
        helper.make_node("Unsqueeze", ["q", "first"], ["more"]),
        helper.make_node("Squeeze", ["more", "first"], ["r"]),
    ]
    viewed = helper.make_node("DequantizeLinear", ["r", "scales", "points"], ["y"], **quantization)
    infos = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, shape) for n in ("x", "y", "sum")]

    def model(nodes: list[onnx.NodeProto]) -> bytes:
        graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], [scales, points, weights, first])
        imports = [helper.make_opsetid("", 21)]
        written: bytes = helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()
        return written

    feeds = {"x": 3 * real(*shape)}
    wanted = worker.submit(on_cpu, model(nodes), feeds).result()
    # ONNX Runtime has no CPU kernels for Squeeze and Unsqueeze of 4-bit types.
    for form, regions in ((nodes, "0"), (nodes, "1"), ([nodes[0], *views, viewed, *nodes[2:]], "1")):
        outcome = worker.submit(run, model(form), feeds, {**ALONE, "regions": regions}).result()
        assert not outcome.elsewhere
        for got, right in zip(outcome.outputs, wanted, strict=True):
            np.testing.assert_array_equal(got, right)


@pytest.mark.parametrize(
    ("op", "inputs", "message"),
    [
        ("MatMulInteger", [u8(5, 40), u8(40, 3), u8(), u8(2)], "has neither one element nor 3"),
        ("MatMulInteger", [u8(5, 40), u8(40, 3), u8(5)], "has neither one element nor 1"),
        ("MatMulInteger", [u8(5, 40), u8(41, 3)], "inner dimensions"),
        ("QLinearConv", [u8(*IMAGE), scale(), u8(), u8(6, 3, 3, 3), scale(), u8(), scale(), u8()], "do not fit"),
    ],
)
def test_wrong_operands_are_an_error(op: str, inputs: Inputs, message: str, worker: ProcessPoolExecutor) -> None:
    model, feeds = model_of(op, inputs, {}, "")
    with pytest.raises(Exception, match=message):
        worker.submit(run, model, feeds, ALONE).result()


def quantized(kind: str, folder: str) -> tuple[bytes, dict[str, Array]]:
    """Returns a small model quantized by ONNX Runtime's quantizer, and its inputs."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_dynamic, quantize_static

    name = "bert" if kind == "dynamic" else "resnet50"
    model, paths = ZOO[name](small=True), [str(Path(folder) / f) for f in ("in.onnx", "out.onnx")]
    onnx.save(model, paths[0])
    feeds: dict[str, Array] = {}
    for x in model.graph.input:
        dims = [d.dim_value or 2 for d in x.type.tensor_type.shape.dim]
        whole = x.type.tensor_type.elem_type != onnx.TensorProto.FLOAT
        feeds[x.name] = RNG.integers(0, 2, dims) if whole else real(*dims)
    if kind == "dynamic":
        quantize_dynamic(*paths, reduce_range=True)  # for the same reason as i7
    else:

        class Reader(CalibrationDataReader):  # type: ignore[misc]
            left = 2

            def get_next(self) -> dict[str, Array] | None:
                self.left -= 1
                return feeds if self.left >= 0 else None

        quantize_static(*paths, Reader(), quant_format=QuantFormat[kind], per_channel=True, reduce_range=True)
    return Path(paths[1]).read_bytes(), feeds


@pytest.mark.filterwarnings("ignore")  # warnings of the quantizer
@pytest.mark.parametrize("kind", ["dynamic", "QDQ", "QOperator"])
def test_no_node_of_a_quantized_model_is_left_to_the_cpu(
    kind: str, tmp_path: Path, worker: ProcessPoolExecutor
) -> None:
    """ONNX Runtime's quantizer makes the model."""
    model, feeds = quantized(kind, str(tmp_path))
    outcome = worker.submit(run, model, feeds, {"regions": "0"}).result()
    assert not [op for op in outcome.elsewhere if not op.startswith("Memcpy")]
    for got, wanted in zip(outcome.outputs, worker.submit(on_cpu, model, feeds).result(), strict=True):
        # A different summation order can change a value by one 8-bit step.
        np.testing.assert_allclose(got, wanted, atol=0.05 * np.abs(wanted).max())
