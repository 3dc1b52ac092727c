"""Operators with output sizes that depend on values, and ConstantOfShape, on the provider."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.hip.nonzero_cases import sparse
from tests.provider.together import Alone, check_together
from tests.provider.worker import PROVIDER, Array, model_of, new_session

INT64 = int(TensorProto.INT64)


def test_nonzero(worker: ProcessPoolExecutor) -> None:
    nodes = []
    for dtype in (np.bool_, np.float16, np.float32, np.int64, np.int32, np.uint8, np.int8):
        for dims, part in (((7,), 0.5), ((3, 5, 4), 0.3), ((70, 91), 0.02), ((2, 3), 0.0), ((2, 0, 3), 1.0)):
            x = sparse(dims, part, dtype)
            nodes.append(Alone("NonZero", {"x": x}, [np.stack(np.nonzero(x))], types=[INT64], tolerance=0))
    nodes += [
        Alone("NonZero", {"x": np.array(v, np.float32)}, [np.zeros((1, n))], types=[INT64]) for v, n in ((0, 0), (5, 1))
    ]
    check_together(worker, nodes, opset=18)


def test_compress(worker: ProcessPoolExecutor) -> None:
    """Tests Compress, also with a condition that is shorter than the axis."""
    nodes = []
    rng = np.random.default_rng(1)
    for dtype in (np.float16, np.float32, np.int64, np.int32):
        for shape, axis, count in (
            ((4, 6, 5), 1, 6),
            ((4, 6, 5), -1, 3),
            ((3, 7), 0, 3),
            ((4, 6), None, 24),
            ((9,), None, 4),
        ):
            x = (20 * rng.standard_normal(shape)).astype(dtype)
            given = rng.random(count) < 0.5
            attributes = {} if axis is None else {"axis": axis}
            y = np.compress(given, x, axis)
            nodes.append(Alone("Compress", {"x": x, "c": given}, [y], attributes, tolerance=0))
    x = np.ones((2, 3), np.float32)
    nodes.append(Alone("Compress", {"x": x, "c": np.zeros(3, bool)}, [np.ones((2, 0))], {"axis": 1}))
    check_together(worker, nodes, opset=18)


def test_constant_of_shape(worker: ProcessPoolExecutor) -> None:
    nodes = []
    for dtype, value in (
        (np.float32, -2.5),
        (np.float16, 1.5),
        (np.int64, -(2**40)),
        (np.int32, 7),
        (np.uint8, 3),
        (np.bool_, 1),
    ):
        element = int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
        attribute = {"value": helper.make_tensor("v", element, [1], [value])}
        for shape in ((3, 4, 5), (2, 0), (), (1,)):
            dims = np.array(shape, np.int64)
            y = np.full(shape, value).astype(dtype)
            nodes.append(Alone("ConstantOfShape", {"s": dims}, [y], attribute, types=[element], tolerance=0))
    zeros = Alone("ConstantOfShape", {"s": np.array([2, 3])}, [np.zeros((2, 3))], types=[int(TensorProto.FLOAT)])
    check_together(worker, [*nodes, zeros], opset=18)


def sizes_of_many_runs(model: bytes, feeds: list[dict[str, Array]]) -> tuple[list[list[Array]], Mapping[str, int]]:
    session = new_session(model, {"min_nodes": "1"}, assignment=True)
    parts = session.get_provider_graph_assignment_info()
    placed = Counter(n.op_type for part in parts if part.ep_name == PROVIDER for n in part.get_nodes())
    return [session.run(None, one) for one in feeds], placed


def test_a_size_that_changes_with_each_run_bounds_the_regions(worker: ProcessPoolExecutor) -> None:
    """Shapes are equal but values differ: a plan or graph for one number of elements is not reused for another."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Mul", ["a", "a"], ["b"]),
        helper.make_node("NonZero", ["b"], ["places"]),
        helper.make_node("Transpose", ["places"], ["rows"]),
        helper.make_node("GatherND", ["b", "rows"], ["numbers"]),
        helper.make_node("Sqrt", ["numbers"], ["root"]),
        helper.make_node("Add", ["root", "root"], ["y"]),
    ]
    rng = np.random.default_rng(1)
    feeds: list[dict[str, Any]] = []
    for part in (0.1, 0.9, 0.1, 0.0, 1.0, 0.5):
        x = np.abs(rng.standard_normal((6, 7))).astype(np.float32) + 0.1
        feeds.append({"x": np.where(rng.random((6, 7)) < part, x, -x)})
    model = model_of(nodes, feeds[0], ["y"], opset=18)
    outputs, placed = worker.submit(sizes_of_many_runs, model, feeds + feeds).result()
    assert placed == Counter(n.op_type for n in nodes)
    for one, (y,) in zip(feeds + feeds, outputs, strict=True):
        np.testing.assert_allclose(y, 2 * one["x"][one["x"] > 0], rtol=1e-5)


def reduced_ranks(shapes: list[tuple[int, ...]]) -> tuple[list[Array], Mapping[str, int]]:
    """Runs ReduceMean over the last axis and ReduceSum over all axes of a tensor of unknown rank."""
    inputs = {"x": np.arange(24, dtype=np.float32), "s": np.array([2, 12])}
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Reshape", ["a", "s"], ["b"]),
        helper.make_node("ReduceMean", ["b", "axes"], ["y"], keepdims=0),
        helper.make_node("ReduceSum", ["b"], ["z"], keepdims=1),
    ]
    model = onnx.ModelProto.FromString(model_of(nodes, inputs, ["y", "z"], {"axes": np.array([-1])}, opset=18))
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].dim_param = value.name
    session = new_session(model.SerializeToString(), {"min_nodes": "1"}, assignment=True)
    parts = session.get_provider_graph_assignment_info()
    placed = Counter(n.op_type for part in parts if part.ep_name == PROVIDER for n in part.get_nodes())
    outputs = []
    for shape in shapes:
        x = np.arange(int(np.prod(shape)), dtype=np.float32)
        outputs += session.run(None, {"x": x, "s": np.array(shape, np.int64)})
    return outputs, placed


def test_a_reduction_does_not_need_to_know_the_rank(worker: ProcessPoolExecutor) -> None:
    """When such reductions ran on the CPU, PP-OCR's recognition model waited for ten copies to the host."""
    shapes = [(2, 12), (24,), (2, 3, 4), (1, 2, 3, 4, 1, 5)]
    outputs, placed = worker.submit(reduced_ranks, shapes).result()
    assert placed == Counter(Relu=1, Reshape=1, ReduceMean=1, ReduceSum=1)
    for shape, y, z in zip(shapes, outputs[::2], outputs[1::2], strict=True):
        x = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
        np.testing.assert_allclose(y, x.mean(-1), rtol=1e-6)
        np.testing.assert_allclose(z, x.sum(keepdims=True), rtol=1e-6)
