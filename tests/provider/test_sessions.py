"""Sessions on the provider: whole models, threads, lifetimes, memory, and the ways to request it."""

from __future__ import annotations

import threading
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import graphopt
from graphopt.errors import GraphoptError
from graphopt.runtime.discovery import library_path
from models import ZOO
from tests.hip.case import signed
from tests.provider.test_ops import ALONE
from tests.provider.worker import Array, model_of, new_session, run

# In these models every node between input and output runs on the device.
ON_DEVICE = ("resnet18", "resnet50", "vgg16_bn", "mobilenet_v2", "yolo", "bert", "vit", "gpt2", "sd_block", "chess")


def feeds_of(model: onnx.ModelProto) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    feeds: dict[str, Array] = {}
    for value in model.graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        floats = np.issubdtype(dtype, np.floating)
        feeds[value.name] = signed(rng, *shape) if floats else rng.integers(0, 2, shape).astype(dtype)
        if "mask" in value.name:
            feeds[value.name] = np.ones(shape, dtype)
    return feeds


@pytest.mark.parametrize("name", ON_DEVICE)
def test_models_run_on_the_device_alone(name: str, worker: ProcessPoolExecutor) -> None:
    import onnxruntime as ort

    model = ZOO[name](small=True)
    feeds = feeds_of(model)
    optimized: Any = graphopt.optimize(model, target="cuda")
    optimized = optimized[0] if isinstance(optimized, tuple) else optimized
    outcome = worker.submit(run, optimized.SerializeToString(), feeds).result()
    assert not outcome.elsewhere
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for got, wanted in zip(outcome.outputs, session.run(None, feeds), strict=True):
        scale = np.sqrt(np.mean(wanted.astype(np.float64) ** 2))
        assert np.abs(got - wanted).max() <= 5e-5 * scale


def chain(*ops: str) -> bytes:
    names = ["x", *(f"t{i}" for i in range(len(ops) - 1)), "y"]
    nodes = [helper.make_node(op, [names[i]], [names[i + 1]], f"n{i}") for i, op in enumerate(ops)]
    return model_of(nodes, {"x": np.zeros((64, 64), np.float32)}, ["y"])


def test_a_node_without_kernel_costs_two_copies(worker: ProcessPoolExecutor) -> None:
    x = signed(np.random.default_rng(0), 64, 64)
    outcome = worker.submit(run, chain("Relu", "Neg", "Sinh", "Abs", "Sqrt"), {"x": x}).result()
    assert outcome.elsewhere == {"Sinh": 1, "MemcpyToHost": 1, "MemcpyFromHost": 1}
    np.testing.assert_allclose(outcome.outputs[0], np.sqrt(np.abs(np.sinh(-np.maximum(x, 0)))), atol=1e-6)


def test_one_node_is_not_worth_a_copy(worker: ProcessPoolExecutor) -> None:
    x = signed(np.random.default_rng(0), 64, 64)
    outcome = worker.submit(run, chain("Sinh", "Relu", "Sinh"), {"x": x}).result()
    assert outcome.on_device("Relu") == 0


def test_an_input_that_is_an_output_costs_no_copy(worker: ProcessPoolExecutor) -> None:
    """An input that is also an output, such as token ids: an Identity on the CPU would cost the other nodes a copy."""
    x = signed(np.random.default_rng(0), 64, 64)
    others = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["b"])]
    others += [helper.make_node("Abs", ["b"], ["y"]), helper.make_node("Identity", ["x"], ["z"])]
    outcome = worker.submit(run, model_of(others, {"x": x}, ["y", "z"]), {"x": x}).result()
    assert not outcome.elsewhere, outcome.placement
    np.testing.assert_array_equal(outcome.outputs[1], x)


def test_a_node_before_a_reader_on_the_host_runs_on_the_host(worker: ProcessPoolExecutor) -> None:
    x = signed(np.random.default_rng(0), 64, 64)
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["b"])]
    nodes += [helper.make_node("Abs", ["b"], ["y"]), helper.make_node("Neg", ["x"], ["c"])]
    nodes += [helper.make_node("Sinh", ["c"], ["z"])]
    outcome = worker.submit(run, model_of(nodes, {"x": x}, ["y", "z"]), {"x": x}).result()
    assert outcome.elsewhere == {"Neg": 1, "Sinh": 1, "MemcpyFromHost": 1}, outcome.placement
    np.testing.assert_allclose(outcome.outputs[1], np.sinh(-x), atol=1e-6)


def test_size_arithmetic_for_the_host_runs_on_the_host(worker: ProcessPoolExecutor) -> None:
    """Arithmetic on a size that is an input and on a number of axes runs on the host, although device kernels exist."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Mul", ["size", "two"], ["doubled"]),
        helper.make_node("Concat", ["doubled", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["a", "shape"], ["b"]),
        helper.make_node("Shape", ["size"], ["count"]),
        helper.make_node("Squeeze", ["count"], ["n"]),
        helper.make_node("Range", ["zero", "n", "one"], ["axes"]),
        helper.make_node("Unsqueeze", ["b", "axes"], ["c"]),
        helper.make_node("Neg", ["c"], ["y"]),
    ]
    constants = {name: np.array(value) for name, value in (("two", [2]), ("rest", [-1]), ("zero", 0), ("one", 1))}
    feeds = {"x": signed(np.random.default_rng(0), 6, 8), "size": np.array([6])}
    outcome = worker.submit(run, model_of(nodes, feeds, ["y"], constants), feeds).result()
    assert [outcome.on_device(op) for op in ("Relu", "Reshape", "Unsqueeze", "Neg")] == [1, 1, 1, 1]
    assert not [op for op in outcome.elsewhere if op.startswith("Memcpy")], outcome.placement
    np.testing.assert_array_equal(outcome.outputs[0], -np.maximum(feeds["x"], 0).reshape(1, 12, 4))


def test_masks_and_positions_that_shapes_give_are_made_on_the_device(worker: ProcessPoolExecutor) -> None:
    """Positions after a cache and their cosines are computed on the device; the plan uploads the cache's length."""
    numbers = helper.make_tensor("value", TensorProto.INT64, [1], [1])
    nodes = [
        helper.make_node("Shape", ["past"], ["past_shape"]),
        helper.make_node("Gather", ["past_shape", "zero"], ["P"]),
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Shape", ["a"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["S"]),
        helper.make_node("Range", ["zero", "S", "one"], ["steps"]),
        helper.make_node("Add", ["steps", "P"], ["positions"]),
        helper.make_node("Cast", ["positions"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["floats", "axis"], ["column"]),
        helper.make_node("Cos", ["column"], ["cos"]),
        helper.make_node("Mul", ["a", "cos"], ["turned"]),
        helper.make_node("Unsqueeze", ["S", "zeros"], ["rows"]),
        helper.make_node("ConstantOfShape", ["rows"], ["ones"], value=numbers),
        helper.make_node("Concat", ["rows", "rest"], ["to"], axis=0),
        helper.make_node("Reshape", ["turned", "to"], ["b"]),
        helper.make_node("Concat", ["past", "b"], ["y"], axis=0),
        helper.make_node("Cast", ["ones"], ["z"], to=TensorProto.FLOAT),
    ]
    values = {"zero": 0, "one": 1, "axis": [1], "zeros": [0], "rest": [2, 2]}
    feeds = {"past": signed(np.random.default_rng(0), 3, 2, 2), "x": signed(np.random.default_rng(1), 5, 4)}
    model = model_of(nodes, feeds, ["y", "z"], {k: np.array(v) for k, v in values.items()})
    outcome = worker.submit(run, model, feeds).result()
    assert not outcome.elsewhere, outcome.placement
    turned = np.maximum(feeds["x"], 0) * np.cos(np.arange(3, 8, dtype=np.float32))[:, None]
    np.testing.assert_allclose(outcome.outputs[0], np.concatenate([feeds["past"], turned.reshape(5, 2, 2)]), atol=1e-6)
    np.testing.assert_array_equal(outcome.outputs[1], np.ones(5))


def test_shape_nodes_need_no_copy(worker: ProcessPoolExecutor) -> None:
    """Shape of a CPU result, or of an input without readers on the device, runs on the CPU and needs no copy."""
    nodes = [
        helper.make_node("Sinh", ["x"], ["a"]),
        helper.make_node("Shape", ["a"], ["s"]),
        helper.make_node("Relu", ["w"], ["b"]),
        helper.make_node("Reshape", ["b", "s"], ["c"]),
        helper.make_node("Shape", ["u"], ["t"]),
        helper.make_node("Expand", ["c", "t"], ["y"]),
    ]
    feeds = {name: signed(np.random.default_rng(0), *shape) for name, shape in (("x", (3, 2)), ("w", (6,)))}
    feeds["u"] = np.zeros((4, 3, 2), np.float32)
    outcome = worker.submit(run, model_of(nodes, feeds, ["y"]), feeds).result()
    assert outcome.elsewhere == {"Sinh": 1, "Shape": 2}
    np.testing.assert_array_equal(
        outcome.outputs[0], np.broadcast_to(np.maximum(feeds["w"], 0).reshape(3, 2), (4, 3, 2))
    )


def _threads_and_sessions(model: bytes, x: Array) -> list[float]:
    sessions = [new_session(model) for _ in range(2)]
    errors: list[float] = []

    def work(session: Any, factor: float) -> None:
        for _ in range(20):
            (y,) = session.run(None, {"x": factor * x})
            errors.append(float(np.abs(y - np.tanh(np.maximum(factor * x, 0))).max()))

    threads = [threading.Thread(target=work, args=(sessions[i % 2], 1.0 + i)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def _plans(model: bytes, xs: list[Array], limits: list[Array]) -> bool:
    """Runs four threads; each run has different shapes or limits than the one before it."""
    session = new_session(model, {"regions": "0"})
    right = [False] * 4

    def work(t: int) -> None:
        order = np.random.default_rng(t).integers(0, len(xs), 60)
        pairs = [(xs[i], limits[(i + t + k) % len(limits)]) for k, i in enumerate(order)]
        got = [session.run(None, {"x": x, "low": low})[0] for x, low in pairs]
        right[t] = all(np.array_equal(y, np.maximum(np.abs(x), low)) for y, (x, low) in zip(got, pairs, strict=True))

    threads = [threading.Thread(target=work, args=(t,)) for t in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return all(right)


def test_plans_are_kept_by_shapes_and_host_values(worker: ProcessPoolExecutor) -> None:
    """Clip reads its limits during planning, and there are more shapes than a node keeps plans."""
    rng = np.random.default_rng(5)
    xs = [rng.standard_normal((1 + i % 4, 1 + i)).astype(np.float32) for i in range(12)]
    limits = [np.asarray(v, np.float32) for v in (-1, 0.25, 2)]
    nodes = [helper.make_node("Abs", ["x"], ["a"]), helper.make_node("Clip", ["a", "low"], ["y"])]
    model = onnx.load_model_from_string(model_of(nodes, {"x": xs[0], "low": limits[0]}, ["y"]))
    for axis, dim in enumerate(model.graph.input[0].type.tensor_type.shape.dim):
        dim.dim_param = f"d{axis}"
    assert worker.submit(_plans, model.SerializeToString(), xs, limits).result()


def test_two_sessions_in_four_threads(worker: ProcessPoolExecutor) -> None:
    x = signed(np.random.default_rng(1), 64, 64)
    errors = worker.submit(_threads_and_sessions, chain("Relu", "Tanh"), x).result()
    assert len(errors) == 80
    assert max(errors) < 1e-6


def _out_of_memory(model: bytes) -> tuple[str, float]:
    # The limit fits the input, but not the result of the first node as well.
    session = new_session(model, {"memory_limit": str(3 << 19)})
    message = ""
    try:
        session.run(None, {"x": np.ones((512, 512), np.float32)})
    except Exception as error:
        message = str(error)
    small = np.ones((8, 8), np.float32)
    (y,) = session.run(None, {"x": small})
    return message, float(np.abs(y - np.tanh(small)).max())


def test_out_of_device_memory_names_node_and_bytes_and_the_session_survives(worker: ProcessPoolExecutor) -> None:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["t"], "the_relu"), helper.make_node("Tanh", ["t"], ["y"], "the_tanh")],
        "g",
        [helper.make_tensor_value_info("x", 1, ["a", "b"])],
        [helper.make_tensor_value_info("y", 1, ["a", "b"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    message, error = worker.submit(_out_of_memory, model).result()
    assert str(512 * 512 * 4) in message and "the_relu" in message, message
    assert error < 1e-6


def _one_after_another(model: bytes, elements: int, limit: int) -> float:
    new_session(model).run(None, {"x": np.ones((2, elements), np.float32)})
    x = np.linspace(-3, 3, elements, dtype=np.float32).reshape(1, -1)
    (y,) = new_session(model, {"memory_limit": str(limit), "regions": "0"}).run(None, {"x": x})
    return float(np.abs(y - np.tanh(np.maximum(x, 0))).max())


def test_a_limit_holds_whatever_other_sessions_have_left(worker: ProcessPoolExecutor) -> None:
    """Another session leaves blocks of twice the size; a reused block must not count in full against the limit."""
    values = [helper.make_tensor_value_info(name, 1, ["a", "b"]) for name in ("x", "y")]
    nodes = [helper.make_node("Relu", ["x"], ["t"]), helper.make_node("Tanh", ["t"], ["y"])]
    model = helper.make_model(
        helper.make_graph(nodes, "g", values[:1], values[1:]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
    ).SerializeToString()
    elements = 11 << 15
    error = worker.submit(_one_after_another, model, elements, elements * 4 * 3).result()
    assert error < 1e-6


def _configured(model: bytes, x: Array, require: bool) -> tuple[list[str], Array]:
    session = graphopt.session(model, require_device=require)
    return session.get_providers(), session.run(None, {"x": x})[0]


def test_session_runs_on_the_device(worker: ProcessPoolExecutor) -> None:
    x = signed(np.random.default_rng(3), 64, 64)
    providers, y = worker.submit(_configured, chain("Relu", "Tanh"), x, True).result()
    assert providers[0] == "GraphoptExecutionProvider"
    np.testing.assert_allclose(y, np.tanh(np.maximum(x, 0)), atol=1e-6)


def test_require_device_lists_the_nodes_on_the_cpu(worker: ProcessPoolExecutor) -> None:
    x = signed(np.random.default_rng(3), 64, 64)
    future = worker.submit(_configured, chain("Relu", "Neg", "Sinh", "Abs", "Sqrt"), x, True)
    with pytest.raises(GraphoptError, match=r"1 nodes .*n2 \(Sinh\)"):
        future.result()


def test_required_device_without_one() -> None:
    import onnxruntime as ort

    with pytest.raises(GraphoptError, match="a device is required"):
        graphopt.configure(ort.SessionOptions(), ["CPUExecutionProvider"], require_device=True)


def _second_registration() -> str:
    import onnxruntime as ort

    try:
        ort.register_execution_provider_library("graphopt", str(library_path()))
    except Exception as error:
        return str(error)
    return ""


def test_second_registration_is_an_error_that_harms_nothing(worker: ProcessPoolExecutor) -> None:
    assert "already" in worker.submit(_second_registration).result()
    x = signed(np.random.default_rng(4), 64, 64)
    assert worker.submit(run, chain("Relu", "Tanh"), {"x": x}).result().on_device("Tanh") == 1


def _wrong_order(model: bytes, x: Array) -> Array:
    import onnxruntime as ort

    options = ort.SessionOptions()
    devices = [d for d in ort.get_ep_devices() if d.ep_name == "GraphoptExecutionProvider"]
    options.add_provider_for_devices(devices[:1], {"min_nodes": "2"})
    options.register_custom_ops_library(str(library_path()))
    result: Array = ort.InferenceSession(model, options).run(None, {"x": x})[0]
    return result


def test_library_after_the_provider(worker: ProcessPoolExecutor) -> None:
    x = signed(np.random.default_rng(5), 64, 64)
    y = worker.submit(_wrong_order, chain("Relu", "Tanh"), x).result()
    np.testing.assert_allclose(y, np.tanh(np.maximum(x, 0)), atol=1e-6)


def test_a_value_that_one_node_reads_on_the_host_and_on_the_device(worker: ProcessPoolExecutor) -> None:
    """ONNX Runtime passes device memory to a node that reads a value on host and device: it runs on the CPU."""
    limit = np.asarray(0.5, np.float32)
    nodes = [
        helper.make_node("Clip", ["limit", "", "limit"], ["half"]),
        helper.make_node("Clip", ["x", "", "limit"], ["low"]),
        helper.make_node("Mul", ["low", "half"], ["y"]),
    ]
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    outcome = worker.submit(run, model_of(nodes, {"x": x}, ["y"], {"limit": limit}), {"x": x}, ALONE).result()
    np.testing.assert_array_equal(outcome.outputs[0], np.minimum(x, limit) * limit)
    assert outcome.on_device("Clip") == 1 and outcome.elsewhere["Clip"] == 1
