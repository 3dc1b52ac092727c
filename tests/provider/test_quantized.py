"""Quantized operators on the provider, against the runtime's CPU kernels: the same whole numbers, bit for bit."""

from __future__ import annotations

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
    ("MatMulInteger", [u8(3, 5, 40), i8(40, 33), u8(), i8(33)], {}),
    ("MatMulInteger", [u8(3, 5, 40), u8(3, 40, 33), u8(1), u8(1)], {}),
    ("MatMulInteger", [i8(40), i8(2, 40, 33)], {}),
    ("QLinearMatMul", [u8(2, 5, 40), scale(), u8(), i8(40, 33), scale(33), i8(33), scale(of=40), u8()], {}),
    ("QLinearMatMul", [i8(2, 5, 40), scale(), i8(), i8(2, 40, 33), scale(), i8(), scale(of=40), i8()], {}),
    ("ConvInteger", [u8(*IMAGE), u8(6, 4, 3, 3), u8(), u8()], {"pads": [1, 1, 1, 1], "strides": [2, 1]}),
    ("ConvInteger", [u8(*IMAGE), i8(*FILTERS), u8()], {"group": 2, "auto_pad": "SAME_UPPER", "strides": [2, 1]}),
    (
        "QLinearConv",
        [u8(*IMAGE), scale(), u8(), i8(*FILTERS), scale(6), np.zeros(6, np.int8), scale(of=20), u8(), i32(6)],
        {"group": 2, "dilations": [1, 2]},
    ),
    ("QLinearConv", [i8(2, 4, 9), scale(), i8(), i8(6, 4, 3), scale(), i8(), scale(of=20), i8()], {}),
    ("MatMul", [np.abs(i32(2, 5, 7)), i32(7, 9)], {}),
    ("MatMul", [i32(2, 5, 7).astype(np.int64) << 40, i32(7, 9).astype(np.int64)], {}),
    ("MatMul", [i32(2, 5, 7).astype(np.uint32), i32(7).astype(np.uint32)], {}),
    ("DequantizeLinear", [i32(2, 3), scale(1), np.asarray(0, np.int32)], {}),
    ("QuantizeLinear", [real(2, 3), scale(1), u8()], {}),
]
CONTRIB: list[tuple[str, Inputs, dict[str, Any]]] = [
    ("MatMulIntegerToFloat", [u8(2, 5, 40), i8(40, 33), scale(), scale(33), u8(), i8(33), real(33)], {}),
    ("DynamicQuantizeMatMul", [real(2, 5, 40), i8(40, 33), scale(33), None, real(33)], {}),
    ("DynamicQuantizeMatMul", [real(5, 40), u8(40, 33), scale(1), u8(1)], {}),
    (
        "QGemm",
        [u8(5, 40), scale(), u8(), i8(33, 40), scale(33), np.zeros(33, np.int8), i32(33), scale(of=40), u8()],
        {"transB": 1},
    ),
    ("QGemm", [u8(5, 40), scale(), u8(), u8(40, 33), scale(), u8()], {"alpha": 0.5}),
]


def model_of(op: str, inputs: Inputs, attributes: dict[str, Any], domain: str) -> tuple[bytes, dict[str, Array]]:
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(inputs)]
    feeds = {name: x for name, x in zip(names, inputs, strict=True) if x is not None}
    outputs = [f"y{i}" for i in range(3 if op == "DynamicQuantizeLinear" else 1)]
    node = helper.make_node(op, names, outputs, domain=domain, **attributes)
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), [f"{n}_{d}" for d in range(x.ndim)])
        for n, x in feeds.items()
    ]
    graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name=y) for y in outputs])
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
    model, feeds = model_of(op, inputs, attributes, domain)
    outcome = worker.submit(run, model, feeds, ALONE).result()
    assert outcome.on_device(op) == 1
    for got, wanted in zip(outcome.outputs, worker.submit(on_cpu, model, feeds).result(), strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    ("op", "inputs", "message"),
    [
        ("MatMulInteger", [u8(5, 40), u8(40, 3), u8(), u8(2)], "neither one number nor 3"),
        ("MatMulInteger", [u8(5, 40), u8(40, 3), u8(5)], "neither one number nor 1"),
        ("MatMulInteger", [u8(5, 40), u8(41, 3)], "do not fit"),
        ("QLinearConv", [u8(*IMAGE), scale(), u8(), u8(6, 3, 3, 3), scale(), u8(), scale(), u8()], "do not fit"),
    ],
)
def test_what_does_not_fit_is_an_error(op: str, inputs: Inputs, message: str, worker: ProcessPoolExecutor) -> None:
    model, feeds = model_of(op, inputs, {}, "")
    with pytest.raises(Exception, match=message):
        worker.submit(run, model, feeds, ALONE).result()


def quantized(kind: str, folder: str) -> tuple[bytes, dict[str, Array]]:
    """A small model as the runtime's own quantizer writes it, and inputs."""
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
        quantize_dynamic(*paths)
    else:

        class Reader(CalibrationDataReader):  # type: ignore[misc]
            left = 2

            def get_next(self) -> dict[str, Array] | None:
                self.left -= 1
                return feeds if self.left >= 0 else None

        quantize_static(*paths, Reader(), quant_format=QuantFormat[kind], per_channel=True)
    return Path(paths[1]).read_bytes(), feeds


@pytest.mark.filterwarnings("ignore")  # the quantizer's own
@pytest.mark.parametrize("kind", ["dynamic", "QDQ"])
def test_no_node_of_a_quantized_model_is_left_to_the_cpu(
    kind: str, tmp_path: Path, worker: ProcessPoolExecutor
) -> None:
    """Made by the runtime's quantizer, which is none of ours."""
    model, feeds = quantized(kind, str(tmp_path))
    outcome = worker.submit(run, model, feeds, {"regions": "0"}).result()
    assert not [op for op in outcome.elsewhere if not op.startswith("Memcpy")]
    for got, wanted in zip(outcome.outputs, worker.submit(on_cpu, model, feeds).result(), strict=True):
        # Where float arithmetic of another order meets a step of 8 bits, one number is another.
        np.testing.assert_allclose(got, wanted, atol=0.05 * np.abs(wanted).max())
