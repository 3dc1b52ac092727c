"""Conv, ConvTranspose and pools with one to three axes on the provider: all attributes that move the window."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from tests.hip.case import signed
from tests.hip.convolution_cases import convolve, transpose_convolve
from tests.provider.test_more_ops import both, check, random
from tests.provider.test_ops import ALONE
from tests.provider.worker import Array, model_of, new_session

CPU = "CPUExecutionProvider"

# X, W, attributes; by the specification: padding at the beginning and the spatial axes of Y
CONVS: tuple[tuple[Any, Any, dict[str, Any], Any, Any], ...] = (
    ((2, 4, 17), (6, 4, 5), {"pads": [2, 1], "strides": [3]}, (2,), (6,)),
    ((2, 3, 5, 6, 7), (5, 3, 3, 3, 3), {"pads": [1] * 6}, (1, 1, 1), (5, 6, 7)),
    (
        (1, 4, 6, 5, 9),
        (6, 2, 2, 3, 1),
        {"group": 2, "dilations": [3, 1, 2], "strides": [1, 2, 3]},
        (0, 0, 0),
        (3, 2, 3),
    ),
    ((1, 4, 5, 7, 6), (4, 1, 3, 3, 2), {"group": 4, "pads": [0, 2, 1, 1, 0, 0]}, (0, 2, 1), (4, 7, 6)),
    ((1, 2, 7, 8, 9), (3, 2, 3, 2, 4), {"auto_pad": "SAME_UPPER", "strides": [2, 2, 2]}, (1, 0, 1), (4, 4, 5)),
    ((1, 2, 7, 8, 9), (3, 2, 3, 2, 4), {"auto_pad": "SAME_LOWER", "strides": [1, 1, 1]}, (1, 1, 2), (7, 8, 9)),
    ((1, 2, 7, 8, 9), (3, 2, 3, 2, 4), {"auto_pad": "VALID", "kernel_shape": [3, 2, 4]}, (0, 0, 0), (5, 7, 6)),
)
TRANSPOSED: tuple[tuple[Any, Any, dict[str, Any], Any, Any], ...] = (
    ((2, 3, 9), (3, 5, 4), {"strides": [2], "pads": [1, 1]}, (1,), (18,)),
    ((1, 6, 7), (6, 1, 8), {"strides": [4], "pads": [2, 2], "group": 3}, (2,), (28,)),
    ((2, 3, 5, 7), (3, 4, 3, 3), {}, (0, 0), (7, 9)),
    ((2, 9, 5, 7), (9, 10, 3, 3), {"strides": [2, 2], "pads": [1] * 4, "output_padding": [1, 1]}, (1, 1), (10, 14)),
    ((1, 3, 4, 5), (3, 2, 3, 2), {"strides": [3, 2], "pads": [0, 1, 2, 0], "output_padding": [2, 0]}, (0, 1), (12, 9)),
    ((1, 4, 4, 5), (4, 3, 3, 2), {"dilations": [2, 3], "group": 2, "strides": [1, 2]}, (0, 0), (8, 12)),
    ((1, 2, 4, 5), (2, 3, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, (0, 0), (8, 10)),
    ((1, 2, 4, 5), (2, 3, 3, 3), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}, (1, 1), (8, 10)),
    ((1, 2, 4, 5), (2, 3, 3, 3), {"auto_pad": "VALID", "strides": [2, 2]}, (0, 0), (9, 11)),
    ((1, 2, 4, 5), (2, 3, 3, 3), {"output_shape": [8, 10], "strides": [2, 2]}, (1, 1), (8, 10)),
    (
        (1, 2, 4, 5),
        (2, 3, 3, 3),
        {"output_shape": [10, 8], "strides": [3, 2], "output_padding": [1, 1]},
        (2, 2),
        (10, 8),
    ),
    ((1, 2, 4, 5), (2, 3, 2, 2), {"output_shape": [8, 15], "strides": [2, 3]}, (0, 0), (8, 15)),
    ((1, 3, 4, 5), (3, 2, 1, 2), {"strides": [3, 4]}, (0, 0), (10, 18)),  # some outputs are B alone
    # Windows that do not overlap: computed as GEMMs.
    ((2, 3, 7), (3, 4, 4), {"strides": [4]}, (0,), (28,)),
    ((2, 5, 3, 4), (5, 6, 2, 2), {"strides": [2, 2]}, (0, 0), (6, 8)),
    ((3, 9, 4, 5), (9, 4, 2, 3), {"strides": [2, 3]}, (0, 0), (8, 15)),
    ((2, 4, 3, 4, 5), (4, 9, 3, 2, 4), {"strides": [2, 2, 1], "pads": [1, 0, 1, 1, 0, 2]}, (1, 0, 1), (5, 8, 5)),
    (
        (1, 4, 3, 2, 5),
        (4, 2, 2, 3, 2),
        {"group": 4, "strides": [2, 1, 3], "dilations": [1, 2, 2]},
        (0, 0, 0),
        (6, 6, 15),
    ),
)
CASES = [("Conv", *case) for case in CONVS] + [("ConvTranspose", *case) for case in TRANSPOSED]


@both
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("op", "x", "w", "attributes", "pads", "out"), CASES)
def test_convolution(
    op: str, x: Any, w: Any, attributes: Any, pads: Any, out: Any, bias: bool, dtype: Any, worker: ProcessPoolExecutor
) -> None:
    given, filters = random(*x, dtype=dtype), random(*w, dtype=dtype, seed=9)
    axes = len(x) - 2
    numbers = [attributes.get(name, [1] * axes) for name in ("strides", "dilations")]
    reference: Any = convolve if op == "Conv" else transpose_convolve
    y = reference(given, filters, attributes.get("group", 1), *numbers, pads, out)
    constants = {"w": filters}
    if bias:
        constants["b"] = random(y.shape[1], dtype=dtype)
        y += constants["b"].astype(np.float64).reshape(-1, *[1] * axes)
    node = helper.make_node(op, ["x", *constants], ["y"], **attributes)
    check(worker, node, {"x": given}, constants, expected=[y], opset=22 if dtype == np.float16 else 11)
    if dtype == np.float32:  # the specification and ONNX Runtime agree
        session = ort.InferenceSession(model_of([node], {"x": given}, ["y"], constants, 22), providers=[CPU])
        (on_cpu,) = session.run(None, {"x": given})
        np.testing.assert_allclose(on_cpu, y, rtol=1e-4, atol=1e-4)


def _message(model: bytes, feeds: dict[str, Array]) -> str:
    try:
        new_session(model, ALONE).run(None, feeds)
    except Exception as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("op", "x", "w", "attributes", "said"),
    [
        ("Conv", (1, 3, 4, 4, 4), (2, 3, 5, 1, 1), {}, "larger than the padded input"),
        ("ConvTranspose", (1, 3, 4, 4), (3, 2, 2, 2), {"pads": [3] * 4}, "larger than the padded input"),
        ("ConvTranspose", (1, 3, 4, 4), (4, 2, 2, 2), {}, "do not fit"),
        ("ConvTranspose", (1, 3, 4, 4), (3, 2, 2, 2), {"group": 2}, "does not divide into the groups"),
        ("ConvTranspose", (1, 3, 4, 4), (3, 2, 2, 2), {"kernel_shape": [2, 3]}, "kernel_shape"),
        ("ConvTranspose", (1, 3, 4, 4), (3, 2, 2, 2), {"output_padding": [1]}, "1 values, expected 2"),
    ],
)
def test_wrong_shapes_are_an_error(
    op: str, x: Any, w: Any, attributes: Any, said: str, worker: ProcessPoolExecutor
) -> None:
    node = helper.make_node(op, ["x", "w"], ["y"], "the_node", **attributes)
    inputs = {"x": np.ones(x, np.float32), "w": np.ones(w, np.float32)}
    model = model_of([helper.make_node("Neg", ["x"], ["n"]), node], inputs, ["y"])
    proto = onnx.load_from_string(model)
    for value in proto.graph.input:  # only the run supplies the shapes
        for i, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.dim_param = f"{value.name}{i}"
    message = worker.submit(_message, proto.SerializeToString(), inputs).result()
    assert said in message and "the_node" in message, message


POOLS: tuple[tuple[str, Any, dict[str, Any]], ...] = (
    ("MaxPool", (11,), {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}),
    ("AveragePool", (11,), {"kernel_shape": [4], "strides": [3], "pads": [1, 2], "count_include_pad": 1}),
    ("MaxPool", (7, 8), {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ("AveragePool", (7, 8), {"kernel_shape": [4, 3], "strides": [2, 1], "auto_pad": "SAME_LOWER"}),
    ("MaxPool", (7, 8), {"kernel_shape": [4, 3], "auto_pad": "VALID"}),
    ("MaxPool", (5, 6, 7), {"kernel_shape": [2, 3, 3], "strides": [2, 1, 2], "pads": [0, 1, 1, 1, 1, 0]}),
    ("MaxPool", (7, 6, 8), {"kernel_shape": [3, 2, 2], "strides": [2, 2, 3], "ceil_mode": 1}),
    ("MaxPool", (9, 6, 8), {"kernel_shape": [3, 2, 2], "dilations": [2, 3, 1]}),
    ("AveragePool", (5, 6, 7), {"kernel_shape": [2, 3, 3], "pads": [1, 1, 0, 0, 1, 1]}),
    ("AveragePool", (5, 6, 7), {"kernel_shape": [3, 3, 3], "pads": [1] * 6, "count_include_pad": 1}),
    # Windows larger than an axis: one window, or none.
    ("MaxPool", (1, 8), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ("MaxPool", (1, 8), {"kernel_shape": [3, 2], "strides": [2, 2]}),
    ("MaxPool", (2, 9), {"kernel_shape": [5, 2], "strides": [2, 3], "ceil_mode": 1}),
)


@both
@pytest.mark.parametrize(("op", "size", "attributes"), POOLS)
def test_pool(op: str, size: Any, attributes: Any, dtype: Any, worker: ProcessPoolExecutor) -> None:
    """Compares with ONNX Runtime's CPU provider in float32: maxima, and averages of few values."""
    x = signed(np.random.default_rng(size), 2, 3, *size, dtype=dtype)
    node = helper.make_node(op, ["x"], ["y"], **attributes)
    wide = {"x": x.astype(np.float32)}
    (y,) = ort.InferenceSession(model_of([node], wide, ["y"], None, 19), providers=[CPU]).run(None, wide)
    check(worker, node, {"x": x}, expected=[y], opset=19)
