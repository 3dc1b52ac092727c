"""Integers of every width on the provider, against ONNX's reference implementation."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

from tests.provider import element_types
from tests.provider.test_ops import ALONE
from tests.provider.worker import Array, model_of, run

WHOLE = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64)


def nodes_of(dtype: Any) -> tuple[list[NodeProto], dict[str, Array]]:
    """Returns nodes that read x and z, and their constants."""
    bits, is_signed = np.iinfo(dtype).bits, np.iinfo(dtype).min < 0
    kind = int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    constants: dict[str, Array] = {
        "low": np.array(2, dtype),
        "high": np.array(np.iinfo(dtype).max // 3, dtype),
        "one": np.array([1], np.int64),
        "axis": np.array(1, np.int64),
        "two": np.array([2], np.int64),
        "reps": np.array([1, 2, 1], np.int64),
        "pads": np.array([0, 1, 0, 1, 0, 0], np.int64),
        "index": np.array([[[3, 0, 1, 1, 2]]] * 3, np.int64),
        "rows": np.array([2, 0, 0], np.int64),
        "chosen": np.array([True, False, True]),
        "depth": np.array(4, dtype),
        "hot": np.array([3, 0, 5], dtype),
        "scales": np.array([1, 2, 1], np.float32),
        "shape": np.array([3, -1], np.int64),
    }
    wanted: list[tuple[str, list[str], dict[str, Any]]] = [
        *((op, ["x", "z"], {}) for op in ("Add", "Sub", "Mul", "Max", "Min", "Equal", "Less", "LessOrEqual")),
        *((op, ["x", "z"], {}) for op in ("Greater", "GreaterOrEqual", "Div", "Mod", "BitwiseAnd")),
        ("Clip", ["x", "low", "high"], {}),
        ("Clip", ["x", "", "high"], {}),
        ("Clip", ["x", "low"], {}),
        ("Sign", ["x"], {}),
        ("Where", ["c", "x", "z"], {}),
        ("Transpose", ["x"], {"perm": [2, 0, 1]}),
        ("Concat", ["x", "z"], {"axis": 1}),
        ("Slice", ["x", "one", "two", "one"], {}),
        ("Gather", ["x", "rows"], {"axis": 2}),
        ("GatherElements", ["x", "index"], {"axis": 1}),
        ("ScatterElements", ["x", "index", "u"], {"axis": 1}),
        ("Tile", ["x", "reps"], {}),
        ("Pad", ["x", "pads", "high"], {}),
        ("Trilu", ["x"], {}),
        ("OneHot", ["hot", "depth", "values"], {}),
        ("TopK", ["x", "two"], {"axis": 1}),
        ("TopK", ["x", "two"], {"axis": 1, "largest": 0}),
        ("ArgMax", ["x"], {"axis": 1}),
        ("ArgMin", ["x"], {"axis": 1}),
        ("NonZero", ["x"], {}),
        ("Compress", ["x", "chosen"], {"axis": 0}),
        ("Resize", ["x", "", "scales"], {"mode": "nearest"}),
        ("Reshape", ["x", "shape"], {}),
        ("Cast", ["x"], {"to": TensorProto.FLOAT}),
        ("Cast", ["x"], {"to": TensorProto.INT64}),
        ("Cast", ["f"], {"to": kind}),
    ]
    if is_signed:
        wanted += [("Relu", ["x"], {}), ("Neg", ["x"], {}), ("Abs", ["x"], {})]
    else:
        wanted += [
            ("BitShift", ["x", "low"], {"direction": "RIGHT"}),
            ("BitShift", ["x", "low"], {"direction": "LEFT"}),
        ]
    if bits != 16:
        wanted += [("ReduceMax", ["x", "one"], {}), ("ReduceMin", ["x", "two"], {"keepdims": 0})]
    if bits >= 32:
        wanted += [(f"Reduce{how}", ["x", "one"], {}) for how in ("L1", "Prod", "Sum", "SumSquare")]
        wanted.append(("CumSum", ["x", "axis"], {}))
    nodes = []
    for i, (op, inputs, attributes) in enumerate(wanted):
        outputs = [f"y{i}"] + ([f"w{i}"] if op == "TopK" else [])
        nodes.append(helper.make_node(op, inputs, outputs, **attributes))
    return nodes, constants


@pytest.mark.parametrize("dtype", WHOLE)
def test_every_integer_operator(dtype: Any, worker: ProcessPoolExecutor) -> None:
    rng, ends = np.random.default_rng(3), np.iinfo(dtype)

    def values(*dims: int) -> Array:
        """Draws from the full range and small values, without 0 because of divisions."""
        wide = rng.integers(ends.min, ends.max, dims, dtype, endpoint=True)
        return np.where((rng.random(dims) < 0.5) | (wide == 0), rng.integers(1, 9, dims).astype(dtype), wide)

    nodes, constants = nodes_of(dtype)
    feeds: dict[str, Array] = {
        "x": values(3, 4, 5),
        "z": values(3, 4, 5),
        "u": values(3, 1, 5),
        "values": values(2),
        "c": rng.random((3, 4, 5)) < 0.5,
        "f": (100 * rng.random((3, 4, 5))).astype(np.float32),
    }
    feeds["z"][feeds["z"] == dtype(-1 if ends.min < 0 else 0)] = 3  # dividing the least value by it would overflow
    outputs = [name for node in nodes for name in node.output]
    model = model_of(nodes, feeds, outputs, constants, 21)
    typed = onnx.ModelProto.FromString(model)
    for value in typed.graph.output:  # the type that the operators produce
        value.ClearField("type")
    with np.errstate(over="ignore"):
        expected = ReferenceEvaluator(typed).run(None, feeds)
    outcome = worker.submit(run, typed.SerializeToString(), feeds, ALONE).result()
    assert not outcome.elsewhere, outcome.placement
    names = [f"{node.op_type} {name}" for node in nodes for name in node.output]
    for name, got, wanted in zip(names, outcome.outputs, expected, strict=True):
        if name.startswith("Resize"):  # the reference computes it in float64
            wanted = np.repeat(feeds["x"], 2, 1)
        # The reference's sums of int32 are int64.
        np.testing.assert_array_equal(got, np.asarray(wanted).astype(got.dtype), name)


def test_a_remainder_of_floats(worker: ProcessPoolExecutor) -> None:
    a = [7.5, -7.5, 7.5, -7.5, 5.5, 1e30, 3e38, -0.0, 1, np.inf, np.nan, 3, 1e-40, 3, -6]
    b = [2, 2, -2, -2, 5.5, 0.7, 1.5e-45, 3, 0, 2, 2, np.inf, 3e-45, np.nan, 3]
    for dtype in (np.float32, np.float16):
        with np.errstate(over="ignore", invalid="ignore"):
            feeds = {"a": np.array(a, dtype), "b": np.array(b, dtype)}
            expected = np.fmod(feeds["a"], feeds["b"])
        model = model_of([helper.make_node("Mod", ["a", "b"], ["y"], fmod=1)], feeds, ["y"])
        outcome = worker.submit(run, model, feeds, ALONE).result()
        assert outcome.on_device("Mod") == 1
        np.testing.assert_array_equal(outcome.outputs[0], expected)
        numbers = ~np.isnan(expected)  # the sign of NaN depends on the machine
        np.testing.assert_array_equal(np.signbit(outcome.outputs[0][numbers]), np.signbit(expected[numbers]))


@pytest.mark.once
def test_the_page_lists_the_element_types_of_the_library() -> None:
    assert element_types.page() == element_types.PAGE.read_text(), "run python -m tests.provider.element_types"
