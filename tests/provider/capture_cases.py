"""Cases about captured graphs, streams and handles, each for a separate process (test_captures.py)."""

from __future__ import annotations

import ctypes
import gc
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
from onnx import helper

import graphopt
from graphopt.measure.bench import bound_runner
from graphopt.ops import DOMAIN
from graphopt.runtime import discovery
from graphopt.runtime.discovery import DEVICE_PROVIDER
from tests.provider.driver_cases import Driver, X, Y, message_of, new_session
from tests.provider.test_regions import dynamic
from tests.provider.worker import model_of

W = np.random.default_rng(1).standard_normal((64, 32)).astype(np.float32)
B = np.random.default_rng(2).standard_normal(32).astype(np.float32)
PRODUCT = helper.make_node("MatMul", ["x", "w"], ["t"])
TAIL = [helper.make_node("Add", ["t", "b"], ["u"]), helper.make_node("Relu", ["u"], ["y"])]
# How long the capturing thread waits at most for the other thread, which may itself wait for the end of the capture.
SECONDS = 1.0


def counts() -> dict[str, int]:
    """Returns counts of region events in this process."""
    describe = ctypes.CDLL(os.environ["STAND_IN_LIBRARY"]).GraphoptRegions
    describe.restype = ctypes.c_char_p
    found: dict[str, int] = json.loads(describe())
    return found


class Meanwhile:
    """Runs an action in another thread while this process captures a stream.

    The capturing thread pauses in the driver, without Python's lock, while it adds work to the capture; with `before`
    it pauses earlier, while it waits for the stream's work.
    """

    def __init__(self, action: Callable[[], object], before: bool = False) -> None:
        self._driver = Driver()
        self._driver.pause(SECONDS, in_wait=before)
        self._thread = ThreadPoolExecutor(1)
        self._raised = self._thread.submit(self._run, action)

    def _run(self, action: Callable[[], object]) -> str:
        if not self._driver.await_pause(60):
            return "no stream was captured"
        message = message_of(action)
        self._driver.end_pause()
        return message

    def end(self) -> str:
        """Returns the message of the action's exception, or an empty string."""
        return self._raised.result()


def error_of_runs(session: Any, count: int = 3) -> float:
    return max(float(np.abs(session.run(None, {"x": X})[0] - Y).max()) for _ in range(count))


def during_a_capture(action: Callable[[], object]) -> dict[str, Any]:
    """Runs a session three times. During the capture, in the second run, another thread runs the action."""
    session = new_session()
    session.run(None, {"x": X})
    before, meanwhile, error = counts(), Meanwhile(action), []
    in_run = message_of(lambda: error.append(error_of_runs(session)))
    raised = meanwhile.end()
    after = message_of(lambda: error.append(error_of_runs(session)))
    done = {key: n - before[key] for key, n in counts().items()}
    return {
        "messages": [m for m in (in_run, raised, after) if m],
        "error": max(error, default=None),
        "captured": done["captured"] > 0,
        "refused": done["refused"],
    }


def on_device() -> Any:
    """Returns a tensor in the memory of the session's device."""
    import onnxruntime as ort

    return ort.OrtValue.ortvalue_from_numpy(X, *discovery.memory_of(new_session()))


def pinned() -> Any:
    """Returns a tensor in memory pinned by the provider."""
    import onnxruntime as ort
    from onnxruntime.capi import onnxruntime_pybind11_state as binding_types

    info = discovery.our_devices()[0].memory_info(binding_types.OrtDeviceMemoryType.HOST_ACCESSIBLE)
    return ort.OrtValue.ortvalue_from_shape_and_type(X.shape, np.float32, memory_info=info)


def begins_with_weights() -> None:
    """Creates and runs a session with a constant in device memory."""
    w = np.ones((64, 32), np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["t"]), helper.make_node("Relu", ["t"], ["y"])]
    model = model_of(nodes, {"x": X}, ["y"], {"w": w})
    session = graphopt.session(model, [(DEVICE_PROVIDER, {"min_nodes": 1})], log_severity_level=4)
    got = session.run(None, {"x": X})[0]
    np.testing.assert_allclose(got, np.maximum(X @ w, 0), atol=1e-4)


def uses_the_null_stream_and_events() -> dict[str, Any]:
    """During a capture creates a session with weights; during another one runs a session, which copies its input."""
    session = new_session()
    actions = {"a session with weights begins": begins_with_weights, "a session runs": lambda: error_of_runs(session)}
    return {name: during_a_capture(action) for name, action in actions.items()}


def waits_for_the_device() -> dict[str, Any]:
    """Performs typical actions of a server's other threads, each during a capture."""
    import onnxruntime as ort

    kept = {"tensor": on_device(), "pinned tensor": pinned(), "session": new_session()}
    kept["session"].run(None, {"x": X})
    host = ort.OrtValue.ortvalue_from_numpy(np.zeros_like(X))
    tensor = on_device()
    limited = graphopt.session(
        dynamic("Relu", "Exp", "Tanh"),
        [(DEVICE_PROVIDER, {"memory_limit": 1 << 19, "min_nodes": 1})],
        log_severity_level=4,
    )

    def drop(name: str) -> Callable[[], object]:
        return lambda: (kept.pop(name), gc.collect())

    def change_sizes() -> None:
        for size in range(64, 320, 32):
            limited.run(None, {"x": np.zeros((size, 64), np.float32)})

    actions = {
        "a tensor is copied": lambda: ort.copy_tensors([tensor], [host]),
        "a tensor is freed": drop("tensor"),
        "a pinned tensor is freed": drop("pinned tensor"),
        "a session ends": drop("session"),
        "a session begins": lambda: new_session().run(None, {"x": X}),
        "a session at its limit": change_sizes,
    }
    return {name: during_a_capture(action) for name, action in actions.items()}


def fails_in_a_capture() -> dict[str, Any]:
    """Runs a session. During its first capture another library waits for the device, which ends the capture."""
    driver = ctypes.CDLL(os.environ["STAND_IN_DRIVER"])

    def wait() -> None:
        if hasattr(driver, "hipDeviceSynchronize"):
            driver.hipDeviceSynchronize()
            driver.hipGetLastError()
        else:
            driver.cuCtxSynchronize()

    session = new_session()
    session.run(None, {"x": X})
    before, meanwhile = counts(), Meanwhile(wait)
    error: list[float] = []
    messages = [message_of(lambda: error.append(error_of_runs(session, 1))) for _ in range(6)]
    meanwhile.end()
    done = {key: n - before[key] for key, n in counts().items()}
    return {
        "messages": [m for m in messages if m],
        "error": max(error, default=None),
        "captured": done["captured"],
        "refused": done["refused"],
    }


def uploads_before_a_capture() -> list[float]:
    """Runs a session. Before its first capture, while its input is copied, another one runs with another input."""
    sessions, inputs, errors = [new_session(), new_session()], [X, -X], []

    def run(i: int) -> None:
        (y,) = sessions[i].run(None, {"x": inputs[i]})
        errors.append(float(np.abs(y - np.tanh(np.maximum(inputs[i], 0))).max()))

    run(0)
    run(1)
    meanwhile = Meanwhile(lambda: run(1), before=True)
    run(0)
    assert not meanwhile.end()
    return errors


class OtherLibrary:
    """Captures a private stream in the mode `global`, as PyTorch does, in a separate thread."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL(os.environ["STAND_IN_DRIVER"])
        self._is_hip = hasattr(self._driver, "hipMalloc")
        self._thread = ThreadPoolExecutor(1)
        self._stream = ctypes.c_void_p()
        self._call("hipStreamCreateWithFlags" if self._is_hip else "cuStreamCreate", ctypes.byref(self._stream), 1)

    def _call(self, name: str, *arguments: Any) -> int:
        return int(self._thread.submit(getattr(self._driver, name), *arguments).result())

    def begin(self) -> None:
        status = self._call("hipStreamBeginCapture" if self._is_hip else "cuStreamBeginCapture_v2", self._stream, 0)
        assert status == 0, status

    def end(self) -> int:
        """Returns the status: 0, or an error if the capture was lost."""
        name, graph = "hipStreamEndCapture" if self._is_hip else "cuStreamEndCapture", ctypes.c_void_p()
        status = self._call(name, self._stream, ctypes.byref(graph))
        if status == 0:
            self._call("hipGraphDestroy" if self._is_hip else "cuGraphDestroy", graph)
        else:  # an empty capture recovers the stream
            self.begin()
            self._call(name, self._stream, ctypes.byref(graph))
        return status


def beside_another_library() -> dict[str, Any]:
    """Returns errors and messages of session operations during another library's capture, and the capture's status."""
    other, found, kept = OtherLibrary(), {}, {"session": new_session()}

    def begin() -> float:
        return error_of_runs(new_session())

    def at_another_size() -> float:
        session = graphopt.session(dynamic("Relu", "Tanh"), [(DEVICE_PROVIDER, {"min_nodes": 1})], log_severity_level=4)
        return max(
            float(np.abs(session.run(None, {"x": X[:n]})[0] - Y[:n]).max()) for n in (64, 64, 64, 32, 32, 32, 16)
        )

    def bind() -> float:
        binding: Any = bound_runner(kept["session"], {"x": X}, discovery.memory_of(kept["session"]))()
        return float(np.abs(binding.copy_outputs_to_cpu()[0] - Y).max())

    def bind_pinned() -> float:
        value = pinned()
        assert value.data_ptr(), "no pinned memory"
        ctypes.memmove(value.data_ptr(), X.ctypes.data, X.nbytes)
        binding = kept["session"].io_binding()
        binding.bind_ortvalue_input("x", value)
        binding.bind_output("y")
        kept["session"].run_with_iobinding(binding)
        return float(np.abs(binding.copy_outputs_to_cpu()[0] - Y).max())

    def end() -> float:
        kept.clear()
        gc.collect()
        return 0.0

    actions = {
        "a session begins": begin,
        "a session runs at other sizes": at_another_size,
        "tensors on the device": bind,
        "tensors in pinned memory": bind_pinned,
        "a session ends": end,
    }
    for name, action in actions.items():
        error: list[float] = []
        other.begin()
        message = message_of(lambda a=action, e=error: e.append(a()))
        found[name] = {"message": message, "error": max(error, default=None), "status": other.end()}
    return found


def destroys_handles() -> dict[str, Any]:
    """Exhausts memory during a capture; an idle handle of a closed session is destroyed to free memory."""
    import onnxruntime as ort

    driver, rocblas = Driver(), ctypes.CDLL(os.environ["STAND_IN_BLAS_LIBRARY"])
    other = new_session()  # during_a_capture's session gets the stream of this one, which has no handle
    other.run(None, {"x": X})
    place = discovery.memory_of(other)
    session = graphopt.session(
        dynamic_model([PRODUCT, *TAIL]), [(DEVICE_PROVIDER, {"min_nodes": 1})], log_severity_level=4
    )
    session.run(None, {"x": X})
    session = None
    gc.collect()
    other = None
    gc.collect()
    handles = [rocblas.stand_in_blas_handles()]
    said = []

    def exhaust() -> None:
        driver.limit(0)
        said.append(message_of(lambda: ort.OrtValue.ortvalue_from_numpy(np.zeros(1 << 24, np.float32), *place)))
        driver.limit(1 << 30)

    found = during_a_capture(exhaust)
    handles.append(rocblas.stand_in_blas_handles())
    return {"run": found, "said": said, "handles": handles}


def products(model: bytes, sizes: Sequence[int]) -> dict[str, Any]:
    """Computes GEMMs with these numbers of rows in one session, three times each. Returns errors and region events."""
    session = graphopt.session(model, [(DEVICE_PROVIDER, {"min_nodes": 1})], require_device=True, log_severity_level=4)
    before, errors, message = counts(), [], ""
    for size in sizes:
        x = np.resize(X, (size, 64))

        def run(x: Any = x) -> None:
            y = session.run(None, {"x": x})[0]
            errors.append(float(np.abs(y - np.maximum(x.astype(np.float64) @ W + B, 0)).max()))

        message = message or next(filter(None, (message_of(run) for _ in range(3))), "")
    done = {key: n - before[key] for key, n in counts().items()}
    return {"error": max(errors), "message": message, "captured": done["captured"], "refused": done["refused"]}


def grows_a_workspace() -> dict[str, Any]:
    """Runs a matrix multiplication, a larger one that may need more scratch memory, and then replays the first."""
    return products(dynamic_model([PRODUCT, *TAIL]), (32, 256, 32))


def dynamic_model(nodes: Sequence[Any]) -> bytes:
    """Returns a model with a dynamic number of rows in x, weights w and bias b."""
    proto = onnx.load_from_string(model_of(nodes, {"x": X}, ["y"], {"w": W, "b": B}))
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    return bytes(proto.SerializeToString())


LINEAR = [helper.make_node("LinearRelu", ["x", "w", "b"], ["y"], "the_linear", domain=DOMAIN)]


def linear_session() -> Any:
    """Opens a session on a GEMM with an epilogue, which cuBLASLt or hipBLASLt computes."""
    where = [(DEVICE_PROVIDER, {"min_nodes": 1})]
    return graphopt.session(dynamic_model(LINEAR), where, require_device=True, log_severity_level=4)


def error_of_linear(session: Any) -> float:
    return float(np.abs(session.run(None, {"x": X})[0] - np.maximum(X.astype(np.float64) @ W + B, 0)).max())


def epilogues() -> Any:
    return ctypes.CDLL(os.environ["STAND_IN_BLAS_LT_LIBRARY"])


def makes_a_handle() -> dict[str, Any]:
    """During a capture, creates the first session that uses hipBLASLt, then a second session on another stream."""
    first = during_a_capture(lambda: error_of_linear(linear_session()))
    return {"first": first, "second": during_a_capture(lambda: error_of_linear(linear_session()))}


def two_streams() -> dict[str, Any]:
    """Alternates GEMMs of two sessions, and counts the handles that are alive afterwards; does both twice."""
    library = epilogues()
    error, done, handles = 0.0, [], []
    for _ in range(2):
        sessions = [linear_session(), linear_session()]
        before = library.stand_in_products()
        error = max(error, *(error_of_linear(session) for _ in range(4) for session in sessions))
        done.append(library.stand_in_products() - before)
        sessions.clear()
        gc.collect()
        handles.append(library.stand_in_blas_lt_handles())
    return {"error": error, "products": done, "shared": library.stand_in_shared_handles(), "handles": handles}


def layers_of_one_input() -> dict[str, Any]:
    """Runs pairs of GEMMs with a common input in three sessions; a 32 MiB constant separates some of their operands."""
    rng = np.random.default_rng(3)
    weights = {f"w{i}": rng.standard_normal((64, 64)).astype(np.float32) / 8 for i in range(3)}
    zero, b = np.zeros(64, np.float32), rng.standard_normal(64).astype(np.float32)
    table = np.zeros((1 << 17, 64), np.float32)  # 32 MiB
    nodes = [
        helper.make_node("Linear", ["x", "w0", "zero"], ["h"], domain=DOMAIN),
        helper.make_node("Clip", ["h", "lo", "hi"], ["c"]),
        helper.make_node("Cast", ["c"], ["ids"], to=7),
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("ReduceSum", ["rows", "axes"], ["r"], keepdims=0),
        helper.make_node("Add", ["h", "r"], ["s"]),
        helper.make_node("Neg", ["s"], ["n"]),
    ]
    used = {"s1": ("s", "w1", "zero"), "s2": ("s", "w2", "b"), "n1": ("n", "w1", "b"), "n2": ("n", "w2", "zero")}
    for name, inputs in used.items():
        nodes.append(helper.make_node("Linear", [*inputs], [name], domain=DOMAIN))
        nodes.append(helper.make_node("Relu", [name], [f"y_{name}"]))
    bounds = {"lo": np.float32(0), "hi": np.float32(1), "axes": np.array([1])}
    feeds, constants = {"x": X}, {**weights, **bounds, "zero": zero, "b": b, "table": table}
    model = model_of(nodes, feeds, [f"y_{name}" for name in used], constants)
    values = {"s": X.astype(np.float64) @ weights["w0"]}
    values["n"] = -values["s"]
    wanted = [np.maximum(values[x] @ constants[w] + constants[c], 0) for x, w, c in used.values()]
    errors, messages = [], []
    for _ in range(3):
        session = graphopt.session(
            model, [(DEVICE_PROVIDER, {"min_nodes": 1})], require_device=True, log_severity_level=4
        )
        got: list[Any] = []
        messages.append(message_of(lambda s=session, g=got: g.extend(s.run(None, feeds))))
        errors += [float(np.abs(y - w).max()) for y, w in zip(got, wanted, strict=False)]
    return {"error": max(errors, default=None), "messages": [m for m in messages if m]}


def refuses_once() -> dict[str, Any]:
    """Returns the number of GEMMs by the library in a session whose GEMM is refused, and in the next session."""
    library = epilogues()
    errors, done = [], []
    for refusals in (100, 0):
        session = linear_session()
        library.stand_in_refuse_products(refusals)
        before = library.stand_in_products()
        errors.append(error_of_linear(session))
        done.append(library.stand_in_products() - before)
    return {"error": max(errors), "products": done}
