"""Data movement, reductions and matrix multiplications on the provider, alone in a graph, against float64."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from tests.hip import cumsum_cases, integer_elementwise_cases, quantize_cases, scatter_cases
from tests.hip.case import Case, compare, signed, tolerance_of
from tests.hip.reduction_cases import reduced_in_float64
from tests.provider.test_control_flow import run_on_cpu
from tests.provider.test_ops import ALONE, DTYPES
from tests.provider.worker import PROVIDER, Array, model_of, new_session, run

both = pytest.mark.parametrize("dtype", DTYPES)


def check(
    worker: ProcessPoolExecutor,
    node: Any,
    inputs: dict[str, Array],
    constants: dict[str, Array] | None = None,
    tolerance: float | None = None,
    opset: int = 18,
    out_type: int | None = None,
    expected: list[Array] | None = None,
) -> None:
    """Asserts that the node runs on the device and matches ONNX's reference in float64, or `expected` if given."""
    constants = constants or {}
    outputs = [name for name in node.output if name]
    types = {} if out_type is None else dict.fromkeys(outputs, out_type)
    dtype = next(iter(inputs.values())).dtype
    if expected is None:

        def widen(x: Array) -> Array:
            return x.astype(np.float64) if np.issubdtype(x.dtype, np.floating) else x

        # Resize requires scales in float32.
        wide = {k: v if node.op_type == "Resize" else widen(v) for k, v in constants.items()}
        graph_inputs = {k: widen(v) for k, v in inputs.items()}
        wide_types = {} if out_type is None else types
        reference = ReferenceEvaluator(_parse(model_of([node], graph_inputs, outputs, wide, opset, wide_types)))
        expected = [np.asarray(y) for y in reference.run(None, graph_inputs)]
    outcome = worker.submit(run, model_of([node], inputs, outputs, constants, opset, types), inputs, ALONE).result()
    assert outcome.on_device(node.op_type) == 1, outcome.placement
    limit = tolerance if tolerance is not None else tolerance_of(dtype)
    for got, wanted in zip(outcome.outputs, expected, strict=True):
        assert got.shape == wanted.shape
        message = compare(got, wanted.astype(got.dtype), limit)
        assert not message, message


def _parse(model: bytes) -> Any:
    import onnx

    return onnx.load_from_string(model)


def random(*shape: int, dtype: Any = np.float32, seed: int = 7) -> Array:
    return np.asarray(signed(np.random.default_rng([seed, *shape]), *shape, dtype=dtype))


@both
@pytest.mark.parametrize(
    ("shape", "perm"),
    [((2, 3, 5, 8), (0, 2, 3, 1)), ((2, 4, 3, 8), (0, 2, 1, 3)), ((5, 7), None), ((2, 3, 4, 5, 6), (4, 2, 0, 3, 1))],
)
def test_transpose(shape: Any, perm: Any, dtype: Any, worker: ProcessPoolExecutor) -> None:
    node = helper.make_node("Transpose", ["x"], ["y"], perm=perm)
    check(worker, node, {"x": random(*shape, dtype=dtype)}, tolerance=0)


WINDOWS = np.array([2, 2, 3, 2, 2, 3])


@pytest.mark.parametrize(
    ("node", "constants"),
    [
        (helper.make_node("Transpose", ["x"], ["y"], perm=[0, 1, 3, 2, 4, 5]), {}),
        (helper.make_node("Transpose", ["x"], ["y"], perm=[0, 5, 1, 3, 2, 4]), {}),
        (helper.make_node("Transpose", ["x"], ["y"], perm=[5, 3, 1, 0, 4, 2]), {}),
        (
            helper.make_node("Slice", ["x", "starts", "ends", "axes", "steps"], ["y"]),
            {"starts": [1, 2, 1], "ends": [2, -9, 3], "axes": [1, 2, -1], "steps": [1, -2, 1]},
        ),
        (helper.make_node("Expand", ["x", "s"], ["y"]), {"s": [3, 2, 2, 3, 2, 2, 3]}),
        (helper.make_node("Einsum", ["x"], ["y"], equation="nhwpqc->nchpwq"), {}),
    ],
    ids=lambda p: p.op_type if isinstance(p, onnx.NodeProto) else "",
)
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_six_axes(node: onnx.NodeProto, constants: dict[str, Any], dtype: Any, worker: ProcessPoolExecutor) -> None:
    """Transposes of six axes: windows of images, as in Swin and SAM, and patches that become pixels."""
    if node.op_type == "Einsum" and dtype == np.int64:
        return
    x = np.arange(WINDOWS.prod()).reshape(WINDOWS).astype(dtype)
    check(worker, node, {"x": x}, {k: np.array(v) for k, v in constants.items()}, tolerance=0)


@both
def test_expand(dtype: Any, worker: ProcessPoolExecutor) -> None:
    node = helper.make_node("Expand", ["x", "s"], ["y"])
    check(worker, node, {"x": random(3, 1, 5, dtype=dtype)}, {"s": np.array([2, 1, 4, 1])}, tolerance=0)


SLICES = (
    ([1, 2], [3, 100], None, None),
    ([-1, 0], [-100, 6], [1, 2], [-1, 2]),
    ([8], [0], [3], [-4]),
    ([0], [4], [-1], None),
    ([0, -1], [4, -(2**63)], [0, 2], [2**63 - 1, -(2**63)]),
)


@both
@pytest.mark.parametrize(("starts", "ends", "axes", "steps"), SLICES)
def test_slice(starts: Any, ends: Any, axes: Any, steps: Any, dtype: Any, worker: ProcessPoolExecutor) -> None:
    given = {"starts": starts, "ends": ends, "axes": axes, "steps": steps}
    constants = {k: np.array(v, np.int64) for k, v in given.items() if v is not None}
    if axes is None:
        constants.pop("steps", None)
    node = helper.make_node("Slice", ["x", *constants], ["y"])
    check(worker, node, {"x": random(4, 5, 7, 8, dtype=dtype)}, constants, tolerance=0)


@both
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat(axis: int, dtype: Any, worker: ProcessPoolExecutor) -> None:
    shapes = [[2, 3, 8] for _ in range(3)]
    shapes[1][axis], shapes[2][axis] = 1, 5
    inputs = {f"x{i}": random(*s, dtype=dtype) for i, s in enumerate(shapes)}
    check(worker, helper.make_node("Concat", list(inputs), ["y"], axis=axis), inputs, tolerance=0)


@both
@pytest.mark.parametrize("sizes", [None, [1, 2, 5]])
def test_split(sizes: Any, dtype: Any, worker: ProcessPoolExecutor) -> None:
    constants = {} if sizes is None else {"sizes": np.array(sizes)}
    extra: dict[str, Any] = {"num_outputs": 3} if sizes is None else {}
    node = helper.make_node("Split", ["x", *constants], ["a", "b", "c"], axis=1, **extra)
    check(worker, node, {"x": random(3, 8, 5, dtype=dtype)}, constants, tolerance=0)


@both
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("index", [np.array([[0, 2], [-1, 1]]), np.array(1), np.array([2, 0, 0], np.int32)])
def test_gather(index: Array, axis: int, dtype: Any, worker: ProcessPoolExecutor) -> None:
    node = helper.make_node("Gather", ["x", "i"], ["y"], axis=axis)
    check(worker, node, {"x": random(3, 5, 8, dtype=dtype), "i": index}, tolerance=0)


def test_gather_of_integers(worker: ProcessPoolExecutor) -> None:
    x = np.arange(12, dtype=np.int64).reshape(3, 4)
    check(worker, helper.make_node("Gather", ["x", "i"], ["y"]), {"x": x, "i": np.array([2, 0])}, tolerance=0)


@both
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_pad(mode: str, dtype: Any, worker: ProcessPoolExecutor) -> None:
    constants: dict[str, Array] = {"pads": np.array([0, 1, 2, 3, 1, 0, 1, 2])}
    if mode == "constant":
        constants["value"] = np.array(1.5, dtype)
    node = helper.make_node("Pad", ["x", *constants], ["y"], mode=mode)
    check(worker, node, {"x": random(2, 3, 4, 5, dtype=dtype)}, constants, tolerance=0)


@both
def test_pad_crops(dtype: Any, worker: ProcessPoolExecutor) -> None:
    node = helper.make_node("Pad", ["x", "pads"], ["y"])
    x = random(4, 6, dtype=dtype)
    y = np.zeros((4, 5))
    y[:3, 2:] = x[1:, :3]
    check(worker, node, {"x": x}, {"pads": np.array([-1, 2, 1, -3])}, tolerance=0, expected=[y])


RESIZES = (
    ("nearest", "asymmetric", "floor", (2.0, 3.0)),
    ("nearest", "half_pixel", "round_prefer_floor", (1.5, 0.6)),
    ("nearest", "align_corners", "round_prefer_ceil", (2.0, 2.0)),
    ("nearest", "pytorch_half_pixel", "ceil", (0.5, 1.7)),
    ("linear", "half_pixel", "floor", (2.0, 2.0)),
    ("linear", "align_corners", "floor", (1.5, 2.4)),
    ("linear", "asymmetric", "floor", (0.5, 3.0)),
)


@both
@pytest.mark.parametrize("by_size", [False, True])
@pytest.mark.parametrize(("mode", "coordinates", "nearest", "scales"), RESIZES)
def test_resize(
    mode: str, coordinates: str, nearest: str, scales: Any, by_size: bool, dtype: Any, worker: ProcessPoolExecutor
) -> None:
    x = random(2, 3, 6, 5, dtype=dtype)
    if by_size:
        sizes = [2, 3, int(6 * scales[0]), int(5 * scales[1])]
        constants, names = {"sizes": np.array(sizes)}, ["x", "", "", "sizes"]
    else:
        constants, names = {"scales": np.array([1, 1, *scales], np.float32)}, ["x", "", "scales"]
    node = helper.make_node(
        "Resize", names, ["y"], mode=mode, coordinate_transformation_mode=coordinates, nearest_mode=nearest
    )
    check(worker, node, {"x": x}, constants)


CASTS = (
    (np.float32, TensorProto.FLOAT16),
    (np.float16, TensorProto.FLOAT),
    (np.int64, TensorProto.FLOAT),
    (np.int32, TensorProto.FLOAT16),
    (np.bool_, TensorProto.FLOAT),
    (np.float32, TensorProto.INT64),
    (np.float32, TensorProto.BOOL),
    (np.int64, TensorProto.INT32),
    (np.int64, TensorProto.BOOL),
    (np.uint8, TensorProto.FLOAT),
)


@pytest.mark.parametrize(("dtype", "to"), CASTS)
def test_cast(dtype: Any, to: int, worker: ProcessPoolExecutor) -> None:
    x = (10 * random(3, 5, 7)).astype(np.int64)
    x[0, 0] = 0
    x = np.abs(x) if dtype == np.uint8 else x
    expected = x.astype(dtype).astype(helper.tensor_dtype_to_np_dtype(to))
    node = helper.make_node("Cast", ["x"], ["y"], to=to)
    check(worker, node, {"x": x.astype(dtype)}, tolerance=0, out_type=to, expected=[expected])


@pytest.mark.parametrize("op", ["Softmax", "LayerNormalization"])
def test_last_axis_of_an_unknown_rank(op: str, worker: ProcessPoolExecutor) -> None:
    constants = {"scale": random(8), "shift": random(8)} if op == "LayerNormalization" else {}
    nodes = [helper.make_node("Neg", ["x"], ["n"]), helper.make_node(op, ["n", *constants], ["y"], axis=-1)]
    model = onnx.load_from_string(model_of(nodes, {"x": random(8)}, ["y"], constants))
    model.graph.input[0].type.tensor_type.ClearField("shape")
    x = random(2, 3, 8)
    outcome = worker.submit(run, model.SerializeToString(), {"x": x}).result()
    assert outcome.on_device(op) == 1
    n = -x.astype(np.float64)
    if op == "Softmax":
        e = np.exp(n - n.max(-1, keepdims=True))
        wanted = e / e.sum(-1, keepdims=True)
    else:
        centred = n - n.mean(-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        wanted = centred / deviation * constants["scale"] + constants["shift"]
    np.testing.assert_allclose(outcome.outputs[0], wanted, rtol=1e-5, atol=1e-5)


@both
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("shape", [(3, 5, 7), (2, 1000), (4, 1), (2, 4, 33, 64)])
def test_softmax(op: str, shape: Any, dtype: Any, worker: ProcessPoolExecutor) -> None:
    x = (5 * random(*shape) + 3).astype(dtype)
    wide = x.astype(np.float64) - x.astype(np.float64).max(-1, keepdims=True)
    y = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    expected = [y if op == "LogSoftmax" else np.exp(y)]
    check(worker, helper.make_node(op, ["x"], ["y"]), {"x": x}, expected=expected)


@both
def test_layer_normalization(dtype: Any, worker: ProcessPoolExecutor) -> None:
    x, scale, shift = random(3, 5, 24, dtype=dtype), random(24, dtype=dtype, seed=1), random(24, dtype=dtype, seed=2)
    node = helper.make_node("LayerNormalization", ["x", "scale", "shift"], ["y"], epsilon=1e-3)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    y = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-3) * scale + shift
    check(worker, node, {"x": x}, {"scale": scale, "shift": shift}, expected=[y])


@both
@pytest.mark.parametrize(("op", "axis", "opset"), [("Softmax", 1, 18), ("LogSoftmax", -3, 13), ("Softmax", 1, 11)])
def test_softmax_over_any_axis(op: str, axis: int, opset: int, dtype: Any, worker: ProcessPoolExecutor) -> None:
    """Below opset 13 softmax runs over all axes from `axis` on."""
    x = (3 * random(2, 5, 7, 6)).astype(dtype)
    axes = (1, 2, 3) if opset < 13 else (axis,)
    wide = x.astype(np.float64) - x.astype(np.float64).max(axes, keepdims=True)
    y = wide - np.log(np.exp(wide).sum(axes, keepdims=True))
    node = helper.make_node(op, ["x"], ["y"], axis=axis)
    check(worker, node, {"x": x}, opset=opset, expected=[y if op == "LogSoftmax" else np.exp(y)])


ORDERED = (np.float32, np.float16, np.int64, np.uint8)  # test_types.py tests the others


@pytest.mark.parametrize(("largest", "axis", "k"), [(1, -1, 4), (0, 1, 2), (1, 0, 0)])
@pytest.mark.parametrize("dtype", ORDERED)
def test_top_k(dtype: Any, largest: int, axis: int, k: int, worker: ProcessPoolExecutor) -> None:
    x = np.random.default_rng(3).integers(0, 9, (3, 5, 8)).astype(dtype)  # many values are equal
    order = np.argsort(x.astype(np.float64) * (-1 if largest else 1), axis=axis, kind="stable")
    which = np.take(order, np.arange(k), axis=axis)
    node = helper.make_node("TopK", ["x", "k"], ["y", "i"], axis=axis, largest=largest)
    constants = {"k": np.array([k])}
    types = {"y": helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), "i": TensorProto.INT64}
    outcome = worker.submit(run, model_of([node], {"x": x}, ["y", "i"], constants, 18, types), {"x": x}, ALONE).result()
    assert outcome.on_device("TopK") == 1
    np.testing.assert_array_equal(outcome.outputs[0], np.take_along_axis(x, which, axis))
    np.testing.assert_array_equal(outcome.outputs[1], which)


@pytest.mark.parametrize(("op", "last"), [("ArgMax", 0), ("ArgMax", 1), ("ArgMin", 0), ("ArgMin", 1)])
@pytest.mark.parametrize("dtype", ORDERED)
def test_arg(dtype: Any, op: str, last: int, worker: ProcessPoolExecutor) -> None:
    x = np.random.default_rng(4).integers(0, 5, (3, 20, 4)).astype(dtype)
    axis = 1 if last else -1
    find = np.argmax if op == "ArgMax" else np.argmin
    y = x.shape[axis] - 1 - find(np.flip(x, axis), axis) if last else find(x, axis)
    node = helper.make_node(op, ["x"], ["y"], axis=axis, keepdims=last, select_last_index=last)
    expected = [np.expand_dims(y, axis) if last else y]
    check(worker, node, {"x": x}, tolerance=0, out_type=TensorProto.INT64, expected=expected)


def test_sizes_that_top_k_and_arg_max_refuse(worker: ProcessPoolExecutor) -> None:
    feeds: dict[str, Array] = {"x": np.ones((2, 3), np.float32), "k": np.array([4])}
    model = model_of([helper.make_node("TopK", ["x", "k"], ["y", "i"])], feeds, ["y"])
    with pytest.raises(Exception, match="K is 4, but the axis has 3 elements"):
        worker.submit(run, model, feeds, ALONE).result()
    none = np.ones((2, 0), np.float32)
    model = model_of([helper.make_node("ArgMax", ["x"], ["y"], axis=1)], {"x": none}, ["y"], out_types={"y": 7})
    with pytest.raises(Exception, match="no largest"):
        worker.submit(run, model, {"x": none}, ALONE).result()


# ONNX's tests of these use double or one axis.
MORE_REDUCTIONS = ("Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp")


@pytest.mark.parametrize("axes", [[0, 2], [1]])
@pytest.mark.parametrize("how", MORE_REDUCTIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.int64])
def test_more_reductions(dtype: Any, how: str, axes: Any, worker: ProcessPoolExecutor) -> None:
    integer = np.issubdtype(dtype, np.integer)
    if integer and how == "LogSumExp":
        return  # ONNX Runtime computes it
    x = np.random.default_rng(5).integers(1, 3, (2, 3, 4, 2)).astype(dtype) if integer else random(2, 3, 4, 2)
    x = (np.abs(x) + 0.5 if how == "LogSum" else x).astype(dtype)
    node = helper.make_node("Reduce" + how, ["x", "axes"], ["y"], keepdims=int(axes != [1]))
    y = reduced_in_float64(x, tuple(axes), how)
    y = y if axes == [1] else np.asarray(np.expand_dims(y, axes))
    check(worker, node, {"x": x}, {"axes": np.array(axes)}, tolerance=0 if integer else None, expected=[y])


@pytest.mark.parametrize("how", ["L2", "LogSum"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_roots_and_logarithms_of_integers(dtype: Any, how: str, worker: ProcessPoolExecutor) -> None:
    """Results are rounded like those of ONNX Runtime's kernel."""
    x = np.random.default_rng(7).integers(1, 9000, (50, 20)).astype(dtype)
    feeds = {"x": x}
    model = model_of([helper.make_node("Reduce" + how, ["x"], ["y"], axes=[1])], feeds, ["y"])
    outcome = worker.submit(run, model, feeds, ALONE).result()
    assert outcome.on_device("Reduce" + how) == 1
    (wanted,) = worker.submit(run_on_cpu, model, feeds).result()
    np.testing.assert_array_equal(outcome.outputs[0], wanted)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_log_sum_exp_of_integers_runs_on_the_cpu(dtype: Any, worker: ProcessPoolExecutor) -> None:
    """ONNX Runtime's kernel gives 3, since it counts only the largest values; the exact result is 4.43."""
    feeds = {"x": np.array([3, 3, 2, 2, 2, 2, 2, 2], dtype)}
    model = model_of([helper.make_node("ReduceLogSumExp", ["x"], ["y"], keepdims=0)], feeds, ["y"])
    outcome = worker.submit(run, model, feeds, ALONE).result()
    assert outcome.on_device("ReduceLogSumExp") == 0 and outcome.outputs[0] == 3


REDUCTIONS = (([-1], 1), ([2, 3], 1), ([1], 0), ([0, 1], 0), (None, 1), ([1, 2, 3], 0), ([0, 2], 1), ([1, 3], 0))


@both
@pytest.mark.parametrize("op", ["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"])
@pytest.mark.parametrize(("axes", "keepdims"), REDUCTIONS)
def test_reduce(op: str, axes: Any, keepdims: int, dtype: Any, worker: ProcessPoolExecutor) -> None:
    x = random(3, 4, 9, 35, dtype=dtype)
    constants = {} if axes is None else {"axes": np.array(axes)}
    node = helper.make_node(op, ["x", *constants], ["y"], keepdims=keepdims)
    functions: dict[str, Any] = {
        "ReduceMean": np.mean,
        "ReduceSum": np.sum,
        "ReduceMax": np.max,
        "ReduceMin": np.min,
    }
    y = functions[op](x.astype(np.float64), axis=None if axes is None else tuple(axes), keepdims=bool(keepdims))
    # A sum of cancelling values is small compared to them.
    scale = 1e-4 if dtype == np.float32 else 2e-2
    check(worker, node, {"x": x}, constants, tolerance=scale, expected=[np.asarray(y)])


@both
@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize(
    ("op", "value"), [("ReduceMean", np.nan), ("ReduceSum", 0), ("ReduceMax", -np.inf), ("ReduceMin", np.inf)]
)
def test_reduction_over_no_elements(op: str, value: float, axis: int, dtype: Any, worker: ProcessPoolExecutor) -> None:
    x = np.empty((2, 0, 3) if axis == 1 else (2, 3, 0), dtype)
    node = helper.make_node(op, ["x", "axes"], ["y"], keepdims=0)
    check(worker, node, {"x": x}, {"axes": np.array([axis])}, expected=[np.full((2, 3), value)])


@both
@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool"])
def test_global_pool(op: str, dtype: Any, worker: ProcessPoolExecutor) -> None:
    check(worker, helper.make_node(op, ["x"], ["y"]), {"x": random(2, 5, 7, 7, dtype=dtype)}, tolerance=1e-2)


POOLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ("MaxPool", {"kernel_shape": [2, 3], "strides": [2, 1], "ceil_mode": 1}),
    ("MaxPool", {"kernel_shape": [3, 3], "dilations": [2, 2], "pads": [2, 2, 2, 2]}),
    ("AveragePool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ("AveragePool", {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "count_include_pad": 1}),
    ("AveragePool", {"kernel_shape": [2, 2], "strides": [2, 2]}),
)


@both
@pytest.mark.parametrize(("op", "attributes"), POOLS)
def test_pool(op: str, attributes: dict[str, Any], dtype: Any, worker: ProcessPoolExecutor) -> None:
    node = helper.make_node(op, ["x"], ["y"], **attributes)
    check(worker, node, {"x": random(2, 3, 9, 11, dtype=dtype)})


MATRICES = (
    ((3, 5), (5, 7)),
    ((2, 3, 70, 33), (33, 40)),
    ((2, 3, 5, 16), (2, 3, 16, 9)),
    ((4, 1, 5, 16), (3, 16, 9)),
    ((5,), (2, 5, 3)),
    ((2, 3, 5), (5,)),
    ((5,), (5,)),
    ((2, 1, 3, 1, 4, 5), (1, 4, 1, 2, 5, 6)),
)


@both
@pytest.mark.parametrize(("a", "b"), MATRICES)
def test_matmul(a: Any, b: Any, dtype: Any, worker: ProcessPoolExecutor) -> None:
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    check(worker, node, {"a": random(*a, dtype=dtype), "b": random(*b, dtype=dtype, seed=8)})


@both
@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("c", [None, (9,), (6, 1), (6, 9), ()])
def test_gemm(c: Any, trans_a: int, trans_b: int, dtype: Any, worker: ProcessPoolExecutor) -> None:
    inputs = {
        "a": random(*((20, 6) if trans_a else (6, 20)), dtype=dtype),
        "b": random(*((9, 20) if trans_b else (20, 9)), dtype=dtype),
    }
    if c is not None:
        inputs["c"] = random(*c, dtype=dtype)
    node = helper.make_node("Gemm", list(inputs), ["y"], transA=trans_a, transB=trans_b, alpha=0.5, beta=-2.0)
    check(worker, node, inputs)


CONVS: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    ((2, 3, 9, 11), (5, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((2, 3, 19, 21), (8, 3, 7, 7), {"strides": [2, 2], "pads": [3, 3, 3, 3]}),
    ((1, 6, 9, 8), (4, 6, 1, 1), {}),
    ((3, 7, 5, 7), (33, 7, 1, 1), {}),
    ((3, 7, 9, 8), (5, 7, 1, 1), {"strides": [2, 3]}),
    ((2, 6, 1, 5), (4, 6, 1, 1), {"strides": [2, 1]}),
    ((2, 6, 9), (4, 6, 1), {"strides": [2]}),
    ((2, 6, 4, 5), (4, 3, 1, 1), {"group": 2}),
    ((2, 6, 9, 8), (6, 1, 3, 3), {"group": 6, "pads": [1, 1, 1, 1], "strides": [2, 1]}),
    ((1, 4, 12, 12), (6, 2, 3, 2), {"group": 2, "dilations": [2, 3], "pads": [0, 1, 2, 3]}),
    ((1, 3, 7, 7), (4, 3, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((2, 4, 17), (6, 4, 5), {"pads": [2, 1], "strides": [3]}),
)


@both
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("x", "w", "attributes"), CONVS)
def test_conv(x: Any, w: Any, attributes: Any, bias: bool, dtype: Any, worker: ProcessPoolExecutor) -> None:
    constants = {"w": random(*w, dtype=dtype, seed=9)}
    if bias:
        constants["b"] = random(w[0], dtype=dtype)
    node = helper.make_node("Conv", ["x", *constants], ["y"], **attributes)
    check(worker, node, {"x": random(*x, dtype=dtype)}, constants)


@both
@pytest.mark.parametrize("repeats", [(2, 1, 3), (1, 1, 1), (2, 3, 2), (0, 2, 1)])
def test_tile(repeats: tuple[int, ...], dtype: Any, worker: ProcessPoolExecutor) -> None:
    node = helper.make_node("Tile", ["x", "r"], ["y"])
    check(worker, node, {"x": random(2, 3, 5, dtype=dtype)}, {"r": np.array(repeats)}, tolerance=0)


def test_tile_of_many_axes(worker: ProcessPoolExecutor) -> None:
    node = helper.make_node("Tile", ["x", "r"], ["y"])
    x = np.arange(2 * 3 * 2 * 2 * 3).reshape(2, 3, 2, 2, 3)
    check(worker, node, {"x": x, "r": np.array([2, 3, 2, 2, 2])}, tolerance=0)


@both
@pytest.mark.parametrize("op", ["DepthToSpace DCR", "DepthToSpace CRD", "SpaceToDepth"])
def test_blocks_of_pixels(op: str, dtype: Any, worker: ProcessPoolExecutor) -> None:
    name, _, mode = op.partition(" ")
    attributes: dict[str, Any] = {"mode": mode} if mode else {}
    node = helper.make_node(name, ["x"], ["y"], blocksize=2, **attributes)
    check(worker, node, {"x": random(2, 12, 4, 6, dtype=dtype)}, tolerance=0)
    if dtype == np.float32:
        check(worker, node, {"x": random(2, 12, 4, 6).astype(np.int64)}, tolerance=0)


@pytest.mark.parametrize("op", ["GatherElements", "GatherND"])
def test_gather_by_element_and_by_tuple(op: str, worker: ProcessPoolExecutor) -> None:
    """An out-of-range index gives zeros, as in Gather."""
    index = np.array([[0, 2, -1], [1, 0, 9]]) if op == "GatherElements" else np.array([[0, 2], [1, -1], [1, 9]])
    for x in (random(2, 3), np.arange(6).reshape(2, 3), np.arange(6, dtype=np.uint8).reshape(2, 3)):
        attributes: dict[str, Any] = {"axis": 1} if op == "GatherElements" else {}
        y = np.array([[x[0, 0], x[0, 2], x[0, 2]], [x[1, 1], x[1, 0], 0]], x.dtype)
        expected = [y if op == "GatherElements" else np.array([x[0, 2], x[1, 2], 0], x.dtype)]
        check(worker, helper.make_node(op, ["x", "i"], ["y"], **attributes), {"x": x, "i": index}, expected=expected)


@pytest.mark.parametrize(
    "case", [c for c in scatter_cases.cases() if c.name.endswith(("float32", "float32-1", "int64-3"))]
)
def test_scatter(case: Case, worker: ProcessPoolExecutor) -> None:
    x, index, updates = case.inputs
    how = case.name.split("_")[2]
    attributes: dict[str, Any] = {"reduction": how}
    for x_dims, dims, axis in scatter_cases.ELEMENTS:
        if (case.op, x_dims, dims) == ("ScatterElements", x.shape, index.shape):
            attributes["axis"] = axis
    node = helper.make_node(case.op, ["x", "i", "u"], ["y"], **attributes)
    check(worker, node, {"x": x, "i": index, "u": updates}, expected=case.outputs())


def test_a_sum_of_scattered_floats_is_the_same_in_any_order(worker: ProcessPoolExecutor) -> None:
    """1e8 and -1e8 absorb smaller summands unless the sum uses a common unit."""
    x, updates = np.zeros(3, np.float32), np.array([1e8, 1, -1e8, 2, 0.5, 3e38, 3e38, -3e38], np.float32)
    index = np.array([0, 0, 0, 0, 1, 2, 2, 2])
    node = helper.make_node("ScatterElements", ["x", "i", "u"], ["y"], reduction="add")
    for order in (range(8), reversed(range(8)), (3, 0, 1, 6, 2, 4, 5, 7)):
        chosen = list(order)
        feeds = {"x": x, "i": index[chosen], "u": updates[chosen]}
        check(worker, node, feeds, tolerance=0, expected=[np.array([3, 0.5, 3e38], np.float32)])


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_cumsum(axis: int, worker: ProcessPoolExecutor) -> None:
    for x in (random(3, 40, 5), random(3, 40, 5, dtype=np.float16), np.arange(24).reshape(2, 3, 4)):
        for reverse, exclusive in ((0, 0), (1, 0), (0, 1), (1, 1)):
            node = helper.make_node("CumSum", ["x", "a"], ["y"], reverse=reverse, exclusive=exclusive)
            expected = [cumsum_cases.sums(x, axis, bool(reverse), bool(exclusive))]
            check(worker, node, {"x": x}, {"a": np.array(axis)}, expected=expected)


@pytest.mark.parametrize(
    "op", [op for op in integer_elementwise_cases.OPS if not op.startswith(("Fmod", "Shift", "Clip"))]
)
def test_integers_with_broadcasting(op: str, worker: ProcessPoolExecutor) -> None:
    """With broadcasting; test_types.py tests all types."""
    for dtype in (np.int64, np.int8) if op == "Neg" else (np.int64, np.uint8):
        mask = (2, 1, 7) if op == "Where" else ()
        case = integer_elementwise_cases.case(
            op, dtype, op, (3, 2, 5, 7), () if op in integer_elementwise_cases.UNARY else (5, 1), mask
        )
        feeds = dict(zip("abm", case.inputs))
        node = helper.make_node(op, ["m", "a", "b"] if op == "Where" else list(feeds), ["y"])
        kind = int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
        model = model_of([node], feeds, ["y"], opset=18, out_types={"y": kind})
        outcome = worker.submit(run, model, feeds, ALONE).result()
        assert outcome.on_device(op) == 1, outcome.placement
        np.testing.assert_array_equal(outcome.outputs[0], case.expected[0])


def test_shifts_and_remainders(worker: ProcessPoolExecutor) -> None:
    a, b = np.array([1, 200, 255, 7], np.uint8), np.array([7, 1, 3, 0], np.uint8)
    for direction, expected in (("LEFT", a << b), ("RIGHT", a >> b)):
        node = helper.make_node("BitShift", ["a", "b"], ["y"], direction=direction)
        check(worker, node, {"a": a, "b": b}, tolerance=0, expected=[expected])
    c, d = np.array([-7, 7, -7, 5, 3]), np.array([3, -3, -3, 5, -1])
    for fmod, remainders in ((0, np.mod(c, d)), (1, np.fmod(c, d))):
        node = helper.make_node("Mod", ["a", "b"], ["y"], fmod=fmod)
        check(worker, node, {"a": c, "b": d}, tolerance=0, expected=[remainders])


def test_a_division_by_zero_ends_no_process(worker: ProcessPoolExecutor) -> None:
    least = np.iinfo(np.int64).min
    feeds = {"a": np.array([5, least, least]), "b": np.array([0, -1, 0])}
    check(worker, helper.make_node("Div", ["a", "b"], ["y"]), feeds, tolerance=0, expected=[np.array([0, least, 0])])


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("sizes", [quantize_cases.SIZES[i] for i in (0, 2, 5)])
def test_quantization(sizes: tuple[int, int, int, int], back: bool, worker: ProcessPoolExecutor) -> None:
    """One scale, one scale for each index along an axis, and one for each block."""
    for dtype in DTYPES:
        for name in ["uint8", "int8", "uint16", "int16"] + ["int32"] * back:
            number = quantize_cases.Number(name)
            case = quantize_cases.case("q", dtype, number, sizes, back, has_zero=name != "int32")
            attributes: dict[str, Any] = {"axis": 1} if sizes[3] >= 0 else {}
            if sizes[3] > 0:
                attributes["block_size"] = sizes[3]
            feeds = dict(zip("xsz", case.inputs))
            node = helper.make_node(case.op, list(feeds), ["y"], **attributes)
            kind = int(helper.np_dtype_to_tensor_dtype(case.dtypes[0]))
            tolerance = tolerance_of(dtype) if back else 0
            check(worker, node, feeds, None, tolerance, 21, kind, case.outputs())


def test_quantization_cuts_off_and_rounds_halves_to_even(worker: ProcessPoolExecutor) -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, 1e9, -1e9, np.inf, -np.inf, 127.4, 127.5], np.float32)
    y = np.array([0, 2, 2, 0, 127, -128, 127, -128, 127, 127], np.int8)
    feeds: dict[str, Array] = {"x": x, "s": np.array(1, np.float32), "z": np.array(0, np.int8)}
    check(worker, helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"]), feeds, None, 0, 21, TensorProto.INT8, [y])


@pytest.mark.parametrize("numbers", [(0, 5, 1), (10, -3, -3), (3, 3, 1), (5, 0, 2), (1, 9, 3)])
def test_range(numbers: tuple[int, int, int], worker: ProcessPoolExecutor) -> None:
    for dtype in (np.float32, np.int32, np.int64):
        feeds: dict[str, Array] = {name: np.array(n, dtype) for name, n in zip("abc", numbers)}
        check(
            worker,
            helper.make_node("Range", ["a", "b", "c"], ["y"]),
            feeds,
            tolerance=0,
            expected=[np.arange(*numbers)],
        )


@pytest.mark.parametrize(
    "numbers",
    [
        (2**53, 2**53 + 3, 1),
        (0, 2**62 + 1, 2**61),
        (-(2**63), 2**63 - 1, 2**62),
        (2**63 - 1, -(2**63), -(2**62)),
        (9, 0, -(2**63)),
        (0, 9, -(2**63)),
    ],
)
def test_ranges_that_no_double_counts(numbers: tuple[int, int, int], worker: ProcessPoolExecutor) -> None:
    feeds: dict[str, Array] = {name: np.array(n) for name, n in zip("abc", numbers)}
    node = helper.make_node("Range", ["a", "b", "c"], ["y"])
    check(worker, node, feeds, tolerance=0, expected=[np.array(range(*numbers), np.int64)])


@pytest.mark.parametrize("upper", [0, 1])
def test_triangles(upper: int, worker: ProcessPoolExecutor) -> None:
    for x in (random(2, 5, 7), random(3, 3, dtype=np.float16), np.arange(16).reshape(4, 4), np.ones((4, 6), bool)):
        for k in (None, -2, 0, 3, 2**40):
            node = helper.make_node("Trilu", ["x"] if k is None else ["x", "k"], ["y"], upper=upper)
            constants: dict[str, Array] = {} if k is None else {"k": np.array(k)}
            cut = np.triu if upper else np.tril
            expected = [cut(x, max(-9, min(9, k or 0)))]
            check(worker, node, {"x": x}, constants, 0, expected=expected)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_one_hot(axis: int, worker: ProcessPoolExecutor) -> None:
    node = helper.make_node("OneHot", ["i", "d", "v"], ["y"], axis=axis)
    for dtype in (np.float32, np.int64, np.uint8):
        kind = int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
        feeds: dict[str, Array] = {"i": np.array([[0, 2, -1], [4, -5, 1]]), "v": np.array([3, 7], dtype)}
        check(worker, node, feeds, {"d": np.array(4)}, 0, out_type=kind)


def test_dropout_at_inference_has_no_effect(worker: ProcessPoolExecutor) -> None:
    x = random(3, 5)
    check(
        worker,
        helper.make_node("Dropout", ["x", "r"], ["y"]),
        {"x": x},
        {"r": np.array(0.3, np.float32)},
        0,
        expected=[x],
    )
    constants: dict[str, Array] = {"r": np.array(0.3, np.float32), "t": np.array(True)}
    model = model_of([helper.make_node("Dropout", ["x", "r", "t"], ["y"])], {"x": x}, ["y"], constants)
    assert worker.submit(run, model, {"x": 0 * x}, ALONE).result().on_device("Dropout") == 0


@pytest.mark.parametrize("op", ["RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"])
def test_random_numbers(op: str, worker: ProcessPoolExecutor) -> None:
    """The same seed gives the values of ONNX Runtime's kernel; only the shape of the input is used."""
    import onnxruntime as ort

    like = op.endswith("Like")
    given: dict[str, Any] = {"mean": 2.0, "scale": 3.0} if "Normal" in op else {"low": -1.0, "high": 5.0}
    given |= {} if like else {"shape": [3, 40]}
    drawn = helper.make_node(op, ["a"] if like else [], ["r"], seed=7.0, dtype=TensorProto.FLOAT, **given)
    nodes = [helper.make_node("Neg", ["x"], ["a"]), drawn, helper.make_node("Mul", ["r", "a"], ["y"])]
    feeds = {"x": random(3, 40)}
    model = model_of(nodes, feeds, ["y"])
    outputs, taken = worker.submit(_draws, model, feeds).result()
    assert taken == {"Neg": 1, op: 1, "Mul": 1}
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    for got in outputs:  # consecutive runs
        np.testing.assert_array_equal(got, session.run(None, feeds)[0])


def _draws(model: bytes, feeds: dict[str, Array]) -> tuple[list[Array], dict[str, int]]:
    session = new_session(model, assignment=True)
    parts = session.get_provider_graph_assignment_info()
    given = {node.op_type: 1 for part in parts if part.ep_name == PROVIDER for node in part.get_nodes()}
    return [session.run(None, feeds)[0] for _ in range(2)], given
