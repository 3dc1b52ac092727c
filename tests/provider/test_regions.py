"""Regions of nodes: capture and replay, shapes, addresses, threads, memory, control flow, and the off switch.

The device is the CPU with kernels compiled for it. Its driver captures and replays launches and copies, and only the
driver can access device memory. tests/provider/test_drivers.py tests failing drivers.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import graphopt
from graphopt.ops import DOMAIN
from graphopt.ops.fused_activation import FUSED
from graphopt.runtime.discovery import library_path
from models import ZOO
from tests.hip.case import signed
from tests.provider.test_sessions import feeds_of
from tests.provider.worker import Array, model_of, new_session, run

Feeds = Mapping[str, Array]

ON_GPU = os.environ.get("GRAPHOPT_TEST_ON_GPU") == "1"
REASSOCIATED = 1e-5  # relative to RMS


def counts() -> dict[str, int]:
    """Returns counts of region events in this process so far."""
    describe = ctypes.CDLL(str(library_path())).GraphoptRegions
    describe.restype = ctypes.c_char_p
    found: dict[str, int] = json.loads(describe())
    del found["planning_us"]  # a duration, not an event
    return found


def memory(library: str | None = None) -> dict[str, Any]:
    """Returns the device memory of this process's pools, and of the whole library."""
    describe = ctypes.CDLL(library or str(library_path())).GraphoptMemory
    describe.restype = ctypes.c_char_p
    found: dict[str, Any] = json.loads(describe())
    return found


def since(before: Mapping[str, int]) -> dict[str, int]:
    return {key: n - before[key] for key, n in counts().items() if n != before[key]}


def runs(model: bytes, feeds: list[Feeds], options: Mapping[str, str]) -> tuple[list[list[Array]], dict[str, int]]:
    before = counts()
    session = new_session(model, options)
    outputs = [list(session.run(None, dict(given))) for given in feeds]
    return outputs, since(before)


def alike(a: Array, b: Array) -> bool:
    """Whether the bits are equal; on a GPU up to rounding, as a region runs layers of one input as one library GEMM."""
    if np.array_equal(a, b, equal_nan=True):
        return True
    if not ON_GPU or a.dtype != np.float32:
        return False
    return bool(np.max(np.abs(a - b)) <= REASSOCIATED * np.sqrt(np.mean(np.square(b))))


def both(model: bytes, feeds: list[Feeds], options: Mapping[str, str]) -> tuple[bool, dict[str, int]]:
    """Whether all runs give the same results with and without regions, and the events of the former."""
    wanted, _ = runs(model, feeds, {**options, "regions": "0"})
    got, events = runs(model, feeds, options)
    same = all(alike(a, b) for x, y in zip(got, wanted, strict=True) for a, b in zip(x, y, strict=True))
    return same, events


def dynamic(*ops: str) -> bytes:
    """Returns a chain of element-wise nodes on a matrix of any size."""
    names = ["x", *(f"t{i}" for i in range(len(ops) - 1)), "y"]
    nodes = [helper.make_node(op, [names[i]], [names[i + 1]], f"n{i}") for i, op in enumerate(ops)]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["a", "b"]) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    content: bytes = model.SerializeToString()
    return content


@pytest.mark.parametrize("name", ZOO)
def test_every_model_is_captured(name: str, worker: ProcessPoolExecutor) -> None:
    model = ZOO[name](small=True)
    feeds = feeds_of(model)
    optimized: Any = graphopt.optimize(model, target="cuda")[0]
    same, events = worker.submit(both, optimized.SerializeToString(), [feeds] * 4, {}).result()
    assert same
    assert events["compiled"] == events["planned"] == events["launched"] == 1
    assert events["captured"] >= 1 and events.get("replayed", 0) + events.get("copied", 0) == 3
    assert "refused" not in events


def shapes(*sizes: tuple[int, int]) -> list[Feeds]:
    rng = np.random.default_rng(0)
    return [{"x": signed(rng, *size)} for size in sizes]


def test_each_shape_has_its_graph(worker: ProcessPoolExecutor) -> None:
    feeds = shapes((4, 8), (16, 3), (4, 8), (16, 3), (0, 5), (0, 5), (1, 1), (4, 8), (16, 3))
    same, events = worker.submit(both, dynamic("Relu", "Softplus", "Tanh"), feeds, {}).result()
    assert same
    assert events["planned"] == 4 and events["launched"] == 4
    assert events.get("replayed", 0) + events.get("copied", 0) == 5


def test_without_capture(worker: ProcessPoolExecutor) -> None:
    same, events = worker.submit(both, dynamic("Relu", "Tanh"), shapes(*[(4, 8)] * 4), {"capture": "0"}).result()
    assert same and events == {"compiled": 1, "planned": 1, "launched": 4}


def test_without_regions(worker: ProcessPoolExecutor) -> None:
    _, events = worker.submit(runs, dynamic("Relu", "Tanh"), shapes((4, 8)), {"regions": "0"}).result()
    assert events == {}


def _many_shapes(model: bytes, sizes: list[tuple[int, int]], limit: int) -> tuple[float, dict[str, int]]:
    before = counts()
    session = new_session(model, {"memory_limit": str(limit)})
    worst = 0.0
    for i, size in enumerate(sizes):
        x = np.full(size, float(i % 7) - 3, np.float32)
        for _ in range(2):
            y = session.run(None, {"x": x})[0]
            wanted = np.tanh(np.exp(np.maximum(x, 0))) + np.maximum(x, 0)
            worst = max(worst, float(np.abs(y - wanted).max()))
    return worst, since(before)


# A value computed from the shape on the host and read on the device gives each plan its own memory: 512 bytes.
OF_THE_SHAPE = [
    helper.make_node("Shape", ["x"], ["s"]),
    helper.make_node("Cast", ["s"], ["f"], to=TensorProto.FLOAT),
    helper.make_node("ReduceMin", ["f"], ["m"], keepdims=0),
    helper.make_node("Mul", ["m", "zero"], ["z"]),
    helper.make_node("Add", ["x", "z"], ["q"]),
]


@pytest.mark.parametrize("more", [[], OF_THE_SHAPE], ids=["plans", "plans with memory of their own"])
def test_unused_plans_are_evicted_when_memory_is_short(more: list[onnx.NodeProto], worker: ProcessPoolExecutor) -> None:
    nodes = [
        *more,
        helper.make_node("Relu", ["q" if more else "x"], ["r"]),
        helper.make_node("Exp", ["r"], ["e"]),
        helper.make_node("Tanh", ["e"], ["t"]),
        helper.make_node("Add", ["t", "r"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["a", "b"]) for n in ("x", "y")]
    zero = onnx.numpy_helper.from_array(np.zeros((), np.float32), "zero")
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [zero] if more else [])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    rng = np.random.default_rng(3)
    sizes = [(int(a), int(b)) for a, b in rng.integers(1, 129, (60, 2))]
    # After the graph of the largest size, too little memory is left for the output of a smaller size.
    sizes += [(96, 96), (127, 127), (89, 95), (128, 128), (60, 60), (127, 128), (110, 110)]
    # Two and a half tensors of the largest size, in addition to input and output.
    limit = 128 * 128 * 4 * 9 // 2
    worst, events = worker.submit(_many_shapes, model.SerializeToString(), sizes, limit).result()
    assert worst < 1e-5
    assert events["dropped"] >= len({*sizes}) - 32
    # Some of the largest sizes are not captured: they leave no memory for copies of input and output.
    assert events["captured"] >= len({*sizes}) * 3 // 4


def _held(model: bytes, sizes: list[tuple[int, int]], limit: int) -> dict[str, Any]:
    """Returns the device memory of a limited session while it runs each size twice, and after its end."""
    gc.collect()
    before = memory()
    session = new_session(model, {"memory_limit": str(limit)})
    held, grown, recordings = [], 0, 0
    for size in sizes:
        for _ in range(2):
            session.run(None, {"x": np.zeros(size, np.float32)})
            now = memory()
            (pool,) = (p for p in now["pools"] if p["limit"] == limit)
            held.append(pool["in_use"] + pool["kept"])
            grown = max(grown, now["bytes"] - before["bytes"])
            recordings = max(recordings, now["recordings"] - before["recordings"])
    del session
    gc.collect()
    after = memory()
    return {
        "held": held,
        "most": pool["most"],
        "grown": grown,
        "recordings": recordings,
        "left": after["bytes"] - before["bytes"],
        "pools": len(after["pools"]) - len(before["pools"]),
    }


@pytest.mark.skipif(ON_GPU, reason="the vendor's libraries have memory of their own there")
def test_a_limit_counts_free_blocks(worker: ProcessPoolExecutor) -> None:
    """Runs of many sizes leave free blocks of many sizes, which count against the limit."""
    rng = np.random.default_rng(6)
    sizes = [(int(a), int(b)) for a, b in rng.integers(16, 257, (150, 2))]
    limit = 256 * 256 * 4 * 5
    found = worker.submit(_held, dynamic("Relu", "Exp", "Tanh"), sizes, limit).result()
    assert max(found["held"]) <= found["most"] <= limit
    assert found["grown"] <= limit
    assert max(found["held"]) > limit // 2  # large enough that blocks had to be freed
    assert 1 <= found["recordings"] <= 2 * 32 * 3
    assert found["left"] == found["pools"] == 0


def _in_use(model: bytes, sizes: list[tuple[int, int]]) -> int:
    """Returns the bytes in use after a session without a limit has run each size three times."""

    def in_use() -> int:
        return sum(int(pool["in_use"]) for pool in memory()["pools"])

    gc.collect()
    before = in_use()
    session = new_session(model)
    for size in sizes:
        for _ in range(3):
            session.run(None, {"x": np.zeros(size, np.float32)})
    return in_use() - before


def test_sizes_that_grow_keep_few_arenas(worker: ProcessPoolExecutor) -> None:
    """Each size is captured with an arena of its own, which would be twice as large with copies of input and output."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Transpose", ["r"], ["t"]),
        helper.make_node("Exp", ["t"], ["e"]),
        helper.make_node("Transpose", ["e"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["a", "b"]) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    model, sizes = proto.SerializeToString(), [(128 * i, 64) for i in range(1, 33)]
    largest = worker.submit(_in_use, model, sizes[-1:]).result()
    assert largest > 0
    assert worker.submit(_in_use, model, sizes).result() <= 4 * largest


def _bound(model: bytes, pairs: Sequence[tuple[int, int]]) -> tuple[float, dict[str, int]]:
    """Runs with inputs and outputs bound on the device: a pair is the index of the input and that of the output."""
    import onnxruntime as ort

    before = counts()
    session = new_session(model)
    device = next(d for d in ort.get_ep_devices() if d.ep_name == "GraphoptExecutionProvider")
    memory = device.memory_info(ort.OrtDeviceMemoryType.DEFAULT)
    where = ("gpu", memory.device_id, memory.device_vendor_id)
    rng = np.random.default_rng(5)
    xs = [signed(rng, 8, 8) for _ in range(3)]
    inputs = [ort.OrtValue.ortvalue_from_numpy(x, *where) for x in xs]
    outputs = [ort.OrtValue.ortvalue_from_shape_and_type((8, 8), np.float32, *where) for _ in range(3)]
    worst = 0.0
    for pair in pairs:
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", inputs[pair[0]])
        binding.bind_ortvalue_output("y", outputs[pair[1]])
        session.run_with_iobinding(binding)
        x = xs[pair[0]]
        wanted = np.tanh(np.log1p(np.exp(np.maximum(x, 0))))
        worst = max(worst, float(np.abs(outputs[pair[1]].numpy() - wanted).max()))
    # An output that overwrites its input.
    binding = session.io_binding()
    for _ in range(3):
        shared = ort.OrtValue.ortvalue_from_numpy(xs[0], *where)
        binding.bind_ortvalue_input("x", shared)
        binding.bind_ortvalue_output("y", shared)
        session.run_with_iobinding(binding)
        worst = max(worst, float(np.abs(shared.numpy() - np.tanh(np.log1p(np.exp(np.maximum(xs[0], 0))))).max()))
    return worst, since(before)


def test_addresses_of_callers(worker: ProcessPoolExecutor) -> None:
    pairs = [(0, 0)] * 4 + [(1, 1)] * 3 + [(i % 3, i % 2) for i in range(12)]
    worst, events = worker.submit(_bound, dynamic("Relu", "Softplus", "Tanh"), pairs).result()
    assert worst < 1e-6
    assert events["launched"] == 1
    # The first and the second pair of addresses get a graph each; runs at other addresses use a third, with copies.
    assert events["captured"] == 3
    assert events["replayed"] >= 5 and events["copied"] >= 8


def test_two_pairs_of_addresses_in_turn(worker: ProcessPoolExecutor) -> None:
    worst, events = worker.submit(_bound, dynamic("Relu", "Softplus", "Tanh"), [(0, 0), (1, 1)] * 6).result()
    assert worst < 1e-6
    # The second run is captured with copies. Then both pairs get a graph, which the following runs replay.
    assert events["replayed"] >= 10


def _threads(model: bytes) -> tuple[float, dict[str, int]]:
    before = counts()
    session = new_session(model)
    errors: list[float] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(25):
            x = signed(rng, int(rng.integers(1, 4)), 16)
            y = session.run(None, {"x": x})[0]
            errors.append(float(np.abs(y - np.tanh(np.log1p(np.exp(np.maximum(x, 0))))).max()))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 100
    return max(errors), since(before)


def test_threads_over_one_session(worker: ProcessPoolExecutor) -> None:
    worst, events = worker.submit(_threads, dynamic("Relu", "Softplus", "Tanh")).result()
    assert worst < 1e-6
    assert events["captured"] >= 3


VIEWS = {
    # name: (nodes, outputs)
    "a view as an output": ([("Relu", ["x"], ["a"]), ("Flatten", ["a"], ["y"])], ["y"]),
    "a value and its view as outputs": ([("Relu", ["x"], ["a"]), ("Flatten", ["a"], ["y"])], ["a", "y"]),
    "a view of the input": ([("Flatten", ["x"], ["a"]), ("Relu", ["a"], ["y"])], ["y"]),
    "a view of a view of the input": (
        [("Flatten", ["x"], ["a"]), ("Identity", ["a"], ["b"]), ("Relu", ["b"], ["c"]), ("Add", ["b", "c"], ["y"])],
        ["y"],
    ),
    "the input itself": ([("Identity", ["x"], ["y"]), ("Relu", ["x"], ["z"])], ["y", "z"]),
    "views of views as outputs": (
        [("Neg", ["x"], ["a"]), ("Identity", ["a"], ["b"]), ("Identity", ["b"], ["y"]), ("Relu", ["b"], ["z"])],
        ["b", "y", "z"],
    ),
    "over a value that is read later": (
        [("Neg", ["x"], ["a"]), ("Relu", ["a"], ["b"]), ("Tanh", ["b"], ["c"]), ("Add", ["a", "c"], ["y"])],
        ["y"],
    ),
    "over a value that a view still shows": (
        [("Neg", ["x"], ["a"]), ("Identity", ["a"], ["v"]), ("Relu", ["a"], ["b"]), ("Add", ["v", "b"], ["y"])],
        ["y"],
    ),
    "over an output": ([("Neg", ["x"], ["a"]), ("Relu", ["a"], ["b"]), ("Tanh", ["b"], ["y"])], ["a", "b", "y"]),
    "the same value twice": ([("Neg", ["x"], ["a"]), ("Add", ["a", "a"], ["b"]), ("Mul", ["b", "b"], ["y"])], ["y"]),
    "what nobody reads": ([("Neg", ["x"], ["a"]), ("Relu", ["x"], ["b"]), ("Tanh", ["b"], ["y"])], ["y"]),
}


@pytest.mark.parametrize("name", VIEWS)
def test_tensors_that_share_memory(name: str, worker: ProcessPoolExecutor) -> None:
    nodes, outputs = VIEWS[name]
    x = signed(np.random.default_rng(1), 6, 10)
    model = model_of([helper.make_node(*node) for node in nodes], {"x": x}, outputs)
    feeds: list[Feeds] = [{"x": x}, {"x": -x}, {"x": 2 * x}]
    same, events = worker.submit(both, model, feeds, {"min_nodes": "1"}).result()
    assert same and events["compiled"] == 1


# Slice reads rows [begin, end), SliceColumns columns; the rows of x have 256 bytes, which is the alignment of parts.
PARTS: Mapping[str, tuple[list[tuple[Any, ...]], list[str]]] = {
    # name: (nodes, outputs)
    "two parts": (
        [("Neg", "x", "a"), ("Slice", "a", "p", 0, 2), ("Slice", "a", "q", 2, 6), ("Relu", "q", "r"),
         ("Concat", "p r", "y")],
        ["y"],
    ),
    "a part of a part": (
        [("Neg", "x", "a"), ("Slice", "a", "p", 1, 5), ("Slice", "p", "q", 2, 4), ("Tanh", "q", "y")], ["y"],
    ),
    "parts as outputs": (
        [("Neg", "x", "a"), ("Slice", "a", "p", 0, 2), ("Slice", "a", "y", 0, 6), ("Relu", "p", "z")],
        ["a", "p", "y", "z"],
    ),
    "a view of a part as an output": (
        [("Neg", "x", "a"), ("Slice", "a", "p", 2, 6), ("Flatten", "p", "y"), ("Slice", "a", "q", 0, 3),
         ("Flatten", "q", "z"), ("Relu", "a", "b")],
        ["y", "z", "b"],
    ),
    "a part of an output": ([("Neg", "x", "a"), ("Slice", "a", "p", 3, 6), ("Relu", "p", "y")], ["a", "y"]),
    "over a part": (
        [("Neg", "x", "a"), ("Slice", "a", "p", 0, 3), ("Relu", "p", "b"), ("Concat", "a b", "y")], ["y"],
    ),
    "over a value that a part still shows": (
        [("Neg", "x", "a"), ("Slice", "a", "p", 3, 6), ("Relu", "a", "b"), ("Concat", "b p", "y")], ["y"],
    ),
    "parts of the input": (
        [("Slice", "x", "p", 0, 3), ("Slice", "x", "q", 3, 6), ("Add", "p q", "y"), ("Relu", "p", "z")], ["y", "z"],
    ),
    "columns": (
        [("Neg", "x", "a"), ("SliceColumns", "a", "p", 0, 32), ("SliceColumns", "a", "q", 32, 64), ("Add", "p q", "y")],
        ["y"],
    ),
    "rows that are not aligned": (
        [("SliceColumns", "x", "c", 0, 63), ("Slice", "c", "p", 1, 3), ("Slice", "c", "q", 3, 5), ("Add", "p q", "y")],
        ["y"],
    ),
    "parts of Gather": (
        [("Neg", "x", "a"), ("Gather", "a", "p", 2), ("Gather", "a", "q", 5), ("Add", "p q", "y"), ("Relu", "q", "z")],
        ["y", "z"],
    ),
    "parts of Split": (
        [("Neg", "x", "a"), ("Split", "a", "p q r"), ("Add", "p q", "b"), ("Mul", "b r", "y"), ("Relu", "q", "z")],
        ["y", "z"],
    ),
    "an empty part": ([("Neg", "x", "a"), ("Slice", "a", "p", 3, 3), ("Concat", "p a", "y")], ["y"]),
}  # fmt: skip


def nodes_of_parts(name: str) -> tuple[list[onnx.NodeProto], dict[str, Array]]:
    """Returns the nodes of an entry of PARTS, and their constants."""
    nodes, constants = [], {f"number {i}": np.asarray([i], np.int64) for i in range(65)}
    for op, inputs, outputs, *span in PARTS[name][0]:
        given = inputs.split() + [f"number {i}" for i in span]
        if op.startswith("Slice"):
            given.append(f"number {int(op == 'SliceColumns')}")
        attributes: dict[str, Any] = {"axis": 0} if op in ("Concat", "Split") else {}
        nodes.append(helper.make_node(op.removesuffix("Columns"), given, outputs.split(), **attributes))
    read = {name for node in nodes for name in node.input}
    return nodes, {name: array for name, array in constants.items() if name in read}


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_tensors_share_memory(name: str, worker: ProcessPoolExecutor) -> None:
    nodes, constants = nodes_of_parts(name)
    x = signed(np.random.default_rng(1), 6, 64)
    model = model_of(nodes, {"x": x}, PARTS[name][1], constants)
    feeds: list[Feeds] = [{"x": x}, {"x": -x}, {"x": 2 * x}]
    wanted = new_session(model, devices=0)
    got, events = worker.submit(runs, model, feeds, {"min_nodes": "1"}).result()
    assert events["compiled"] == 1
    for given, outputs in zip(feeds, got, strict=True):
        for a, b in zip(outputs, wanted.run(None, dict(given)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)


def test_layers_with_other_attributes_are_not_computed_together(worker: ProcessPoolExecutor) -> None:
    """The provider computes layers with the same X in one launch, with the attributes of one of them."""
    rng = np.random.default_rng(5)
    x, slopes = signed(rng, 4, 16), (0.1, 0.5)
    constants = {f"{name}{i}": signed(rng, *dims) for i in range(2) for name, dims in (("w", (16, 16)), ("b", (16,)))}
    nodes, expected = [], []
    for i, slope in enumerate(slopes):
        inputs = ["x", f"w{i}", f"b{i}"]
        nodes.append(helper.make_node("LinearLeakyRelu", inputs, [f"h{i}"], domain=DOMAIN, alpha=slope))
        nodes.append(helper.make_node("Tanh", [f"h{i}"], [f"y{i}"]))
        h = x.astype(np.float64) @ constants[f"w{i}"] + constants[f"b{i}"]
        expected.append(np.tanh(np.where(h < 0, slope * h, h)))
    model = model_of(nodes, {"x": x}, ["y0", "y1"], constants)
    got = worker.submit(run, model, {"x": x}, {"min_nodes": "1"}).result().outputs
    for y, want in zip(got, expected, strict=True):
        np.testing.assert_allclose(y, want, atol=1e-5)


def test_constants_are_kept_by_the_region(worker: ProcessPoolExecutor) -> None:
    """Constants on the device and on the host: with two readers, read through a view, and without elements."""
    rng = np.random.default_rng(2)
    constants = {"w": signed(rng, 8, 8), "half": np.asarray(0.5, np.float32), "none": np.zeros((0, 8), np.float32)}
    constants["shape"] = np.asarray([8, 8], np.int64)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Clip", ["a", "", "half"], ["b"]),
        helper.make_node("Reshape", ["w", "shape"], ["v"]),
        helper.make_node("Add", ["b", "v"], ["c"]),
        helper.make_node("Concat", ["c", "none"], ["d"], axis=0),
        helper.make_node("MatMul", ["d", "w"], ["y"]),
    ]
    x = signed(rng, 8, 8)
    model = model_of(nodes, {"x": x}, ["y"], constants)
    same, events = worker.submit(both, model, [{"x": x}, {"x": -x}, {"x": x}], {}).result()
    assert same and events["compiled"] == 1


def test_control_flow_splits_regions_and_bodies_have_their_own(worker: ProcessPoolExecutor) -> None:
    def body(name: str, *ops: str) -> onnx.GraphProto:
        names = ["r", *(f"{name}{i}" for i in range(len(ops)))]
        nodes = [helper.make_node(op, [names[i]], [names[i + 1]]) for i, op in enumerate(ops)]
        nodes.append(helper.make_node("MatMul", [names[-1], "w"], [f"{name}out"]))
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(f"{name}out", 1, [8, 8])])

    nodes = [
        helper.make_node("Neg", ["x"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("If", ["c"], ["f"], then_branch=body("t", "Exp", "Tanh"), else_branch=body("e", "Neg", "Abs")),
        helper.make_node("Add", ["f", "r"], ["s"]),
        helper.make_node("Tanh", ["s"], ["y"]),
    ]
    rng = np.random.default_rng(4)
    x, w = signed(rng, 8, 8), signed(rng, 8, 8)
    feeds: list[Feeds] = [{"x": x, "c": np.asarray(i % 3 == 0)} for i in range(9)]
    model = model_of(nodes, feeds[0], ["y"], {"w": w})
    same, events = worker.submit(both, model, feeds, {}).result()
    assert same and events["compiled"] == 4


def mapped(nested: bool) -> bytes:
    """Returns a SequenceMap with a body of two nodes, or of an If with such bodies."""

    def body(name: str, *inputs: str) -> onnx.GraphProto:
        nodes = [helper.make_node("Exp", ["t"], [f"{name}0"]), helper.make_node("Tanh", [f"{name}0"], [name])]
        return helper.make_graph(nodes, name, [value(i) for i in inputs], [value(name)])

    def value(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4])

    choice = helper.make_node("If", ["c"], ["f"], then_branch=body("a"), else_branch=body("b"))
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["s"]),
        helper.make_node(
            "SequenceMap",
            ["s"],
            ["m"],
            body=helper.make_graph([choice], "i", [value("t")], [value("f")]) if nested else body("f", "t"),
        ),
        helper.make_node("ConcatFromSequence", ["m"], ["y"], axis=0),
    ]
    return model_of(nodes, {"x": np.zeros((4, 4), np.float32), "c": np.asarray(True)}, ["y"])


def test_bodies_of_nodes_that_are_expanded_later_are_not_compiled(worker: ProcessPoolExecutor) -> None:
    """ONNX Runtime moves SequenceMap's body into a Loop, which does not import the domain of compiled nodes."""
    feeds: Feeds = {"x": signed(np.random.default_rng(12), 4, 4), "c": np.asarray(True)}
    same, _ = worker.submit(both, mapped(nested=False), [feeds] * 3, {}).result()
    assert same
    # For an If inside a SequenceMap, ONNX Runtime does not tell the provider which node contains it, so the bodies are
    # compiled and loading fails.
    assert worker.submit(runs, mapped(nested=True), [feeds], {"regions": "0"}).result()[0]
    with pytest.raises(Exception, match="INVALID_GRAPH"):
        worker.submit(runs, mapped(nested=True), [feeds], {}).result()


def test_a_shape_from_outside_splits_a_region(worker: ProcessPoolExecutor) -> None:
    nodes = [
        helper.make_node("Neg", ["x"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("Reshape", ["r", "shape"], ["v"]),
        helper.make_node("Exp", ["v"], ["e"]),
        helper.make_node("Tanh", ["e"], ["y"]),
    ]
    x = signed(np.random.default_rng(6), 4, 6)
    feeds: list[Feeds] = [{"x": x, "shape": np.asarray(s, np.int64)} for s in ([6, 4], [3, 8], [6, 4], [24, 1], [6, 4])]
    model = model_of(nodes, feeds[0], ["y"])
    same, events = worker.submit(both, model, feeds, {}).result()
    assert same and events["compiled"] == 2


def _errors(model: bytes, bad: Feeds, good: Feeds) -> tuple[str, bool]:
    session = new_session(model)
    message = ""
    try:
        session.run(None, dict(bad))
    except Exception as error:
        message = str(error)
    return message, all(np.isfinite(session.run(None, dict(good))[0]).all() for _ in range(3))


def test_an_error_names_the_node(worker: ProcessPoolExecutor) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"], "first"), helper.make_node("MatMul", ["a", "z"], ["y"], "second")]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["a", "b"]) for n in ("x", "z", "y")]
    graph = helper.make_graph(nodes, "g", values[:2], values[2:])
    for value in graph.input:
        value.type.tensor_type.shape.dim[0].dim_param = f"{value.name}0"
        value.type.tensor_type.shape.dim[1].dim_param = f"{value.name}1"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    x, z = np.ones((2, 3), np.float32), np.ones((4, 5), np.float32)
    bad, good = {"x": x, "z": z}, {"x": x, "z": z[:3]}
    message, survived = worker.submit(_errors, model.SerializeToString(), bad, good).result()
    assert "MatMul (float) node 'second', inputs float[2,3] float[4,5]: " in message and survived


def conv(*more: tuple[Any, ...]) -> list[Any]:
    """Returns a convolution of x, and the nodes after it."""
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv", pads=[1, 1, 1, 1])]
    return [*nodes, *(helper.make_node(op, ins, outs, **(attrs[0] if attrs else {})) for op, ins, outs, *attrs in more)]


TAILS = {
    # name: (nodes, outputs, number of convolutions fused with their tail)
    "Relu": (conv(("Relu", ["c"], ["y"])), ["y"], 1),
    "LeakyRelu": (conv(("LeakyRelu", ["c"], ["y"], {"alpha": 0.3})), ["y"], 1),
    "Clip": (conv(("Clip", ["c", "", "one"], ["y"])), ["y"], 1),
    "Silu": (conv(("Sigmoid", ["c"], ["s"]), ("Mul", ["s", "c"], ["y"])), ["y"], 1),
    "HardSwish": (conv(("HardSwish", ["c"], ["y"])), ["y"], 1),
    "Gelu": (conv(("Gelu", ["c"], ["y"])), ["y"], 1),
    "Gelu by tanh": (conv(("Gelu", ["c"], ["y"], {"approximate": "tanh"})), ["y"], 1),
    **{f"Fused{suffix}": (conv((f"Fused{suffix}", ["c"], ["y"], {"domain": DOMAIN})), ["y"], 1) for suffix in FUSED},
    "HardSigmoid": (conv(("HardSigmoid", ["c"], ["y"], {"alpha": 0.3})), ["y"], 1),
    "Tanh": (conv(("Tanh", ["c"], ["y"])), ["y"], 1),
    "a sum with the input": (conv(("Add", ["c", "x"], ["y"])), ["y"], 1),
    "a sum and Relu": (conv(("Add", ["x", "c"], ["s"]), ("Relu", ["s"], ["y"])), ["y"], 1),
    "a sum of two convolutions": (
        [
            helper.make_node("Conv", ["x", "w"], ["d"], pads=[1, 1, 1, 1]),
            *conv(("Add", ["c", "d"], ["s"]), ("Relu", ["s"], ["y"])),
        ],
        ["y"],
        1,
    ),
    "a sum with a constant": (conv(("Add", ["c", "whole"], ["s"]), ("Relu", ["s"], ["y"])), ["y"], 1),
    "PRelu": (conv(("PRelu", ["c", "b1"], ["y"])), ["y"], 1),
    "a sum and PRelu": (conv(("Add", ["x", "c"], ["s"]), ("PRelu", ["s", "b4"], ["y"])), ["y"], 1),
    "PRelu of one number": (conv(("PRelu", ["c", "half"], ["y"])), ["y"], 1),
    "PRelu of slopes that are computed": (
        conv(("GlobalMaxPool", ["x"], ["m"]), ("ReduceMax", ["m", "first"], ["p"]), ("PRelu", ["c", "p"], ["y"])),
        ["y"],
        1,
    ),
    **{
        f"a transposed one and {name}": (
            [helper.make_node("ConvTranspose", ["x", "w", "b"], ["c"], pads=[1] * 4), *conv(*more)[1:]],
            ["y"],
            1,
        )
        for name, more in {
            "Silu": [("Sigmoid", ["c"], ["s"]), ("Mul", ["c", "s"], ["y"])],
            "a sum": [("Add", ["c", "x"], ["y"])],
            "a sum and HardSwish": [("Add", ["c", "x"], ["s"]), ("HardSwish", ["s"], ["y"])],
            "Sigmoid": [("Sigmoid", ["c"], ["y"])],
            "PRelu": [("PRelu", ["c", "b1"], ["y"])],
        }.items()
    },
    **{
        f"windows that lie apart and {name}": (
            [helper.make_node("ConvTranspose", ["x", "w2", "b3"], ["c"], strides=[2, 3]), *conv(*more)[1:]],
            ["y"],
            1,
        )
        for name, more in {
            "Relu": [("Relu", ["c"], ["y"])],
            "PRelu": [("PRelu", ["c", "s3"], ["y"])],
        }.items()
    },
    "two in a row": (
        [
            *conv(("Relu", ["c"], ["r"])),
            helper.make_node("ConvTranspose", ["r", "w"], ["t"], pads=[1, 1, 1, 1]),
            helper.make_node("Add", ["t", "r"], ["u"]),
            helper.make_node("LeakyRelu", ["u"], ["y"]),
        ],
        ["y"],
        2,
    ),
    # Tails that must not be fused.
    "a sum that is broadcast": (conv(("Add", ["c", "b1"], ["s"]), ("Relu", ["s"], ["y"])), ["y"], 0),
    "a sum with itself": (conv(("Add", ["c", "c"], ["s"]), ("Relu", ["s"], ["y"])), ["y"], 0),
    "an output between": (conv(("Relu", ["c"], ["y"])), ["c", "y"], 0),
    "another reader between": (conv(("Relu", ["c"], ["r"]), ("Mul", ["r", "c"], ["y"])), ["y"], 0),
    "another reader of the gate": (
        conv(("Sigmoid", ["c"], ["s"]), ("Mul", ["c", "s"], ["m"]), ("Add", ["m", "s"], ["y"])),
        ["y"],
        0,
    ),
    "a slope for each column": (conv(("PRelu", ["c", "columns"], ["y"])), ["y"], 0),
    "a slope for each row": (conv(("PRelu", ["c", "rows"], ["y"])), ["y"], 0),
    "a slope for each image and channel": (conv(("PRelu", ["c", "images"], ["y"])), ["y"], 0),
    "a slope for each number": (conv(("PRelu", ["c", "whole"], ["y"])), ["y"], 0),
    "PRelu of something else": (conv(("PRelu", ["x", "c"], ["y"])), ["y"], 0),
    "another reader beside PRelu": (conv(("PRelu", ["c", "b1"], ["p"]), ("Mul", ["p", "c"], ["y"])), ["y"], 0),
    "a limit that is computed": (
        conv(("ReduceMax", ["x"], ["l"], {"keepdims": 0}), ("Clip", ["c", "", "l"], ["m"]), ("Abs", ["m"], ["y"])),
        ["y"],
        0,
    ),
}


SIZES: dict[str, tuple[list[tuple[Any, ...]], int]] = {
    # name: (nodes after a convolution of x with stride 2, number of convolutions fused with their tails)
    "back to the size of its input": (
        [
            ("Conv", ["c", "w"], {"pads": [1] * 4}),
            ("Relu", ["0"]),
            ("Conv", ["1", "w"], {"pads": [1] * 4}),
            ("Add", ["2", "c"]),
        ],
        2,
    ),
    "two ways to half the size": ([("Conv", ["x", "v"], {"strides": [2, 2]}), ("Add", ["0", "c"]), ("Relu", ["1"])], 1),
    "scaled on the way": (
        [("Mul", ["c", "scale"]), ("Conv", ["0", "v"]), ("Add", ["1", "c"])],
        1,
    ),
    "another padding": ([("Conv", ["x", "v"], {"strides": [2, 2], "pads": [0, 0, 1, 1]}), ("Add", ["0", "c"])], 0),
}


def check_fused(model: bytes, feeds: list[Feeds], count: int, worker: ProcessPoolExecutor) -> None:
    """Asserts the number of fused convolutions, and that each run equals the CPU's."""
    wanted = new_session(model, devices=0)
    got, events = worker.submit(runs, model, feeds, {"min_nodes": "1"}).result()
    assert events.get("fused", 0) == count
    for given, (y,) in zip(feeds, got, strict=True):
        z = wanted.run(None, given)[0]
        assert np.abs(y - z).max() <= REASSOCIATED * np.sqrt(np.mean(np.square(z)))


@pytest.mark.parametrize("name", SIZES)
def test_fused_sums_of_images_with_symbolic_sizes(name: str, worker: ProcessPoolExecutor) -> None:
    more, count = SIZES[name]
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4, strides=[2, 2])]
    for i, (op, ins, *attrs) in enumerate(more):
        out = "y" if i == len(more) - 1 else str(i)
        nodes.append(helper.make_node(op, ins, [out], **(attrs[0] if attrs else {})))
    rng = np.random.default_rng(9)
    weights = {"w": signed(rng, 4, 4, 3, 3), "v": signed(rng, 4, 4, 1, 1), "scale": signed(rng, 4, 1, 1)}
    held = [onnx.numpy_helper.from_array(w, n) for n, w in weights.items() if any(n in node.input for node in nodes)]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4, "h", "w"])
    graph = helper.make_graph(nodes, "g", [x], [onnx.ValueInfoProto(name="y")], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    # With the odd sizes below, the trailing pads of "another padding" have no effect.
    feeds: list[Feeds] = [{"x": signed(rng, *shape)} for shape in ((2, 4, 5, 7), (1, 4, 9, 5), (2, 4, 5, 7))]
    check_fused(model, feeds, count, worker)


@pytest.mark.parametrize(("batch", "count"), [("n", 1), ("m", 0)])
def test_a_fused_sum_of_images_with_a_symbolic_batch(batch: str, count: int, worker: ProcessPoolExecutor) -> None:
    """Equal symbols mean equal sizes, so the sum is fused. Sizes of different symbols may differ: it is not fused."""
    nodes = conv(("Add", ["c", "r"], ["s"]), ("Relu", ["s"], ["y"]))
    rng = np.random.default_rng(8)
    weights = {"w": signed(rng, 4, 4, 3, 3), "b": signed(rng, 4)}
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [n, 4, 5, 7]) for name, n in (("x", "n"), ("r", batch))
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        inputs,
        [onnx.ValueInfoProto(name="y")],
        [onnx.numpy_helper.from_array(w, n) for n, w in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    feeds: list[Feeds] = [{"x": signed(rng, n, 4, 5, 7), "r": signed(rng, n, 4, 5, 7)} for n in (2, 3, 2)]
    check_fused(model, feeds, count, worker)


def test_a_sum_of_images_of_unknown_numbers_of_channels(worker: ProcessPoolExecutor) -> None:
    """Two unknown numbers of filters may differ: the sum of 4 channels and 1 broadcasts."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node("Conv", ["x", "v"], ["d"], pads=[1] * 4),
        helper.make_node("Add", ["c", "d"], ["y"]),
    ]
    dims: dict[str, list[str | int | None]] = {"x": ["n", 4, 5, 7], "w": [None, 4, 3, 3], "v": [None, 4, 3, 3]}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in dims.items()]
    graph = helper.make_graph(nodes, "g", inputs, [onnx.ValueInfoProto(name="y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    rng = np.random.default_rng(8)
    feeds: list[Feeds] = [
        {"x": signed(rng, n, 4, 5, 7), "w": signed(rng, 4, 4, 3, 3), "v": signed(rng, m, 4, 3, 3)}
        for n, m in ((2, 1), (3, 4), (1, 1))
    ]
    check_fused(model, feeds, 0, worker)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("name", TAILS)
def test_a_convolution_with_its_tail(name: str, dtype: Any, worker: ProcessPoolExecutor) -> None:
    nodes, outputs, count = TAILS[name]
    rng = np.random.default_rng(7)
    x, whole = (signed(rng, 2, 4, 5, 7).astype(dtype) for _ in range(2))
    constants = {"w": signed(rng, 4, 4, 3, 3).astype(dtype), "b": signed(rng, 4).astype(dtype), "whole": whole}
    constants |= {"b1": signed(rng, 4, 1, 1).astype(dtype), "one": np.asarray(1, dtype)}
    more = {"b4": (1, 4, 1, 1), "half": (1,), "columns": (7,), "rows": (5, 1), "images": (2, 4, 1, 1)}
    more |= {"w2": (4, 3, 2, 3), "b3": (3,), "s3": (3, 1, 1)}
    constants |= {name: signed(rng, *shape).astype(dtype) for name, shape in more.items()}
    constants["s3"] /= 4
    constants["first"] = np.zeros(1, np.int64)
    model = model_of(nodes, {"x": x}, outputs, constants, opset=20)
    wanted, _ = worker.submit(runs, model, [{"x": x}], {"regions": "0", "min_nodes": "1"}).result()
    got, events = worker.submit(runs, model, [{"x": x}] * 3, {"min_nodes": "1"}).result()
    assert events.get("fused", 0) == count
    for outcome in got:
        for y, z in zip(outcome, wanted[0], strict=True):
            scale = np.sqrt(np.mean(z.astype(np.float64) ** 2))
            assert np.abs(y.astype(np.float64) - z).max() <= (1e-5 if dtype == np.float32 else 4e-3) * scale
