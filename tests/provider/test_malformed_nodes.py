"""Malformed nodes on the provider: of our operators, and of every supported standard operator."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from graphopt.placement import ours
from tests.hostile import test_contrib_nodes
from tests.hostile.native_worker import taken_by_the_provider
from tests.hostile.test_native_nodes import survives
from tests.provider.test_ops import ALONE
from tests.provider.worker import Array, model_of, run

EXAMPLES = 150  # scripts/sweep runs 50,000
WITH_BODIES = {"If", "Loop", "Scan"}  # tested by test_control_flow.py, since a body is not an attribute to damage
# ONNX has no node tests of these operators; test_wrong_random_numbers tests them.
RANDOM = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}


def test_malformed_nodes_do_not_crash_the_process(kernels: str) -> None:
    lines = survives(EXAMPLES, 1, kernels)
    count = int(lines[0].split()[0])
    assert count == len(taken_by_the_provider() - WITH_BODIES - RANDOM) > 50, "an operator without a test of ONNX's own"


def test_malformed_contrib_nodes_are_refused_or_computed_as_by_the_runtime(kernels: str) -> None:
    test_contrib_nodes.agrees(test_contrib_nodes.EXAMPLES, 1, kernels)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"shape": [2, -3]}, "the shape has an invalid size"),
        ({"shape": [2**40]}, "the shape has an invalid size"),
        ({"shape": [2], "dtype": TensorProto.DOUBLE}, "the type is neither float nor float16"),
        ({"shape": [2], "dtype": 99}, "the type is neither float nor float16"),
        ({"shape": [2], "seed": float("nan")}, ""),
        ({"shape": [2], "seed": -1e30, "scale": float("inf")}, ""),
    ],
)
def test_wrong_random_numbers(attributes: dict[str, Any], reason: str) -> None:
    node = ir.node("RandomNormal", [], attributes)
    node.outputs[0].name, node.outputs[0].dtype = "x", ir.DataType.FLOAT
    reader = [ir.node("Neg", [node.outputs[0]]), ir.node("Relu", [node.outputs[0]])]
    said, _ = ours.place([node, *reader], [22, 13, 14], set(), {}, {}, None, [], set(), min_nodes=2)
    assert said[0] == reason


def test_gemm_refuses_a_bias_that_does_not_broadcast(worker: ProcessPoolExecutor) -> None:
    inputs = {"a": np.ones((3, 7), np.float32), "b": np.ones((7, 3), np.float32), "c": np.ones((2, 3, 3), np.float32)}
    model = model_of([helper.make_node("Gemm", ["a", "b", "c"], ["y"])], inputs, ["y"])
    with pytest.raises(Exception, match="does not broadcast to"):
        worker.submit(run, model, inputs, ALONE).result()


@pytest.mark.parametrize(
    ("sizes", "outputs", "reason"),
    [
        ([2, 3], 2, "smaller than the axis"),
        ([2, 5], 2, "larger than the axis"),
        ([7, -1], 2, "larger than the axis"),
        ([2**63 - 1, 2**63 - 1], 2, "larger than the axis"),
        ([6], 2, "got 1 for 2"),
        ([2, 2, 2], 2, "got 3 for 2"),
    ],
)
def test_split_refuses_sizes_that_are_not_those_of_its_outputs(
    sizes: list[int], outputs: int, reason: str, worker: ProcessPoolExecutor
) -> None:
    inputs: dict[str, Array] = {"x": np.ones((6, 2), np.float32), "sizes": np.array(sizes)}
    names = [f"y{i}" for i in range(outputs)]
    model = model_of([helper.make_node("Split", ["x", "sizes"], names)], inputs, names)
    with pytest.raises(Exception, match=reason):
        worker.submit(run, model, inputs, ALONE).result()


def test_split_refuses_another_number_of_outputs_than_it_names(worker: ProcessPoolExecutor) -> None:
    inputs = {"x": np.ones((6, 2), np.float32)}
    model = model_of([helper.make_node("Split", ["x"], ["y", "z"], num_outputs=3)], inputs, ["y", "z"], opset=18)
    with pytest.raises(Exception, match="num_outputs"):
        worker.submit(run, model, inputs, ALONE).result()


def test_slice_refuses_an_axis_that_is_named_twice(worker: ProcessPoolExecutor) -> None:
    inputs: dict[str, Array] = {"x": np.ones((6, 2), np.float32), "a": np.array([1, 1]), "b": np.array([5, 2])}
    inputs["axes"] = np.array([0, -2])
    model = model_of([helper.make_node("Slice", ["x", "a", "b", "axes"], ["y"])], inputs, ["y"])
    with pytest.raises(Exception, match="names an axis twice"):
        worker.submit(run, model, inputs, ALONE).result()


@pytest.mark.parametrize("target", [[-2, -2], [-1, -4, -1], [-1, -1]])
def test_reshape_refuses_a_target_with_negative_dims(target: list[int], worker: ProcessPoolExecutor) -> None:
    inputs: dict[str, Array] = {"x": np.ones(4, np.float32), "shape": np.array(target)}
    model = model_of([helper.make_node("Reshape", ["x", "shape"], ["y"])], inputs, ["y"])
    with pytest.raises(Exception, match="has a negative dim"):
        worker.submit(run, model, inputs, ALONE).result()


@pytest.mark.parametrize("axis", [3, -3, 2**63 - 1, -(2**63)])
def test_flatten_refuses_an_axis_beyond_the_rank(axis: int, worker: ProcessPoolExecutor) -> None:
    inputs = {"x": np.ones((2, 3), np.float32)}
    model = model_of([helper.make_node("Flatten", ["x"], ["y"], axis=axis)], inputs, ["y"])
    with pytest.raises(Exception, match="axis"):
        worker.submit(run, model, inputs, ALONE).result()


@pytest.mark.parametrize(("axis", "shape"), [(0, (1, 6)), (2, (6, 1)), (-1, (2, 3))])
def test_flatten_at_its_ends(axis: int, shape: tuple[int, int], worker: ProcessPoolExecutor) -> None:
    inputs = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
    model = model_of([helper.make_node("Flatten", ["x"], ["y"], axis=axis)], inputs, ["y"])
    outcome = worker.submit(run, model, inputs, ALONE).result()
    assert outcome.on_device("Flatten") == 1
    np.testing.assert_array_equal(outcome.outputs[0], inputs["x"].reshape(shape))


@pytest.mark.parametrize("op", ["Unsqueeze", "Reshape"])
@pytest.mark.parametrize("rank", [17, 40_000])
def test_a_result_of_too_many_axes_is_refused(op: str, rank: int, worker: ProcessPoolExecutor) -> None:
    """Node shapes hold at most 16 axes."""
    axes: Array = np.arange(1, rank) if op == "Unsqueeze" else np.ones(rank, np.int64)
    inputs: dict[str, Array] = {"x": np.ones(1, np.float32), "axes": axes}
    model = model_of([helper.make_node(op, ["x", "axes"], ["y"])], inputs, ["y"])
    with pytest.raises(Exception, match=f"rank {rank}"):
        worker.submit(run, model, inputs, ALONE).result()
