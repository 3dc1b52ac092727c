"""Cases with misbehaving drivers; each function runs in a separate process (test_drivers.py)."""

from __future__ import annotations

import ctypes
import functools
import gc
import json
import os
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import onnx.parser
from onnx import helper

import graphopt
from graphopt.measure.bench import bound_runner
from graphopt.ops import DOMAIN, OPS
from graphopt.ops.case import model_of as case_model
from graphopt.ops.cases import cases_of
from graphopt.runtime import discovery, selftest_record, sessions
from graphopt.runtime.discovery import DEVICE_PROVIDER
from graphopt.runtime.selftest import selftest
from tests.provider.worker import Array, heap_bytes, model_of

X = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
Y = np.tanh(np.maximum(X, 0))
MODEL = model_of(
    [helper.make_node("Relu", ["x"], ["t"], "the_relu"), helper.make_node("Tanh", ["t"], ["y"], "the_tanh")],
    {"x": X},
    ["y"],
)
LOOP = onnx.parser.parse_model(
    """<ir_version: 9, opset_import: ["": 17]> g (float[N, M] x) => (float[N, M] y) {
        one = Constant <value = int64 {1}> ()
        yes = Constant <value = bool {1}> ()
        t = Relu (x)
        y = Loop (one, yes, t) <body = b (int64 i, bool go, float[N, M] s) => (bool on, float[N, M] u) {
            on = Identity (go)
            u = If (go) <
                then_branch = t () => (float[N, M] a) {a = Tanh (s)},
                else_branch = e () => (float[N, M] c) {c = Neg (s)}>
        }>
    }"""
).SerializeToString()
# Results of the driver: a failed launch (CUDA and HIP keep this error), a failed system call; -1 aborts the process.
DEVICE_LOST, CALL_FAILED, ABORT = 719, 304, -1


class Driver:
    """The stand-in driver that this process has loaded."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(os.environ["STAND_IN_DRIVER"])
        self._library.stand_in_fail.argtypes = [ctypes.c_long, ctypes.c_int]
        self._library.stand_in_memory.argtypes = [ctypes.c_size_t]
        self._library.stand_in_failures.restype = ctypes.c_long
        self._library.stand_in_waits.restype = ctypes.c_long
        for name in ("modules", "devices", "pinned", "copied"):
            getattr(self._library, f"stand_in_{name}").restype = ctypes.c_size_t

    def fail_after(self, calls: int, status: int = DEVICE_LOST) -> None:
        self._library.stand_in_fail(calls, status)

    def recover(self) -> None:
        self._library.stand_in_fail(-1, 0)

    def pause(self, seconds: float, in_wait: bool = False) -> None:
        """Pauses the next thread that adds work to a capture, for at most this many seconds.

        With `in_wait`, pauses the next thread that waits for a stream with work instead.
        """
        self._library.stand_in_pause(int(1000 * seconds), in_wait)

    def await_pause(self, seconds: float) -> bool:
        return bool(self._library.stand_in_await_pause(int(1000 * seconds)) & 1)

    def end_pause(self) -> None:
        self._library.stand_in_end_pause()

    def limit(self, more: int) -> None:
        """Leaves this many free bytes of device memory."""
        self._library.stand_in_memory(self.alive()[0] + more)

    def keeps_errors(self) -> bool:
        """Whether the driver keeps the last error of a thread: HIP does, CUDA's driver API does not."""
        return hasattr(self._library, "hipGetLastError")

    def failures(self) -> int:
        """Returns the number of calls that have returned an error so far."""
        return int(self._library.stand_in_failures())

    def last_error(self) -> int:
        """Returns the result that hipGetLastError would give in this thread."""
        return int(self._library.stand_in_last_error())

    def current(self) -> int:
        """Returns the current device of this thread."""
        return int(self._library.stand_in_current())

    def make_current(self, device: int) -> None:
        self._library.stand_in_set_current(device)

    def waits(self) -> int:
        """Returns the number of copies from unpinned memory, for which the host waits."""
        return int(self._library.stand_in_waits())

    def copied(self) -> int:
        """Returns the bytes of all copies, between host and device and on the device."""
        return int(self._library.stand_in_copied())

    def graphs(self) -> int:
        """Returns the number of live captured graphs, counting graphs and their executable forms."""
        return int(self._library.stand_in_graphs())

    def devices(self) -> int:
        return int(self._library.stand_in_devices())

    def pinned(self) -> int:
        """Returns the bytes of host memory that the driver has pinned."""
        return int(self._library.stand_in_pinned())

    def modules(self) -> int:
        return int(self._library.stand_in_modules())

    def alive(self) -> list[int]:
        """Returns the live bytes, streams and events."""
        counts = (ctypes.c_size_t * 3)()
        self._library.stand_in_alive(counts)
        return list(counts)


def is_loaded() -> bool:
    """Whether this process has loaded the driver."""
    return os.path.realpath(os.environ["STAND_IN_DRIVER"]) in Path("/proc/self/maps").read_text()


def check_thread(device: int = 0) -> None:
    """Asserts that our calls leave no error and no changed current device for other users of the GPU in this thread.

    ONNX Runtime's ROCm provider checks the last error after each kernel, PyTorch after each launch.
    """
    if not is_loaded():
        return
    driver = Driver()
    # Without a device every HIP call fails with the same error, and keeps it.
    if driver.keeps_errors() and driver.devices():
        assert driver.last_error() == 0, f"HIP error {driver.last_error()} is left to others"
    assert driver.current() == device, f"device {driver.current()} is left current"


def new_session(number: int = 0) -> Any:
    try:
        return graphopt.session(
            MODEL, [(DEVICE_PROVIDER, {"device": number})], require_device=True, log_severity_level=4
        )
    finally:
        check_thread()


def session_on_our_node() -> Any:
    """Opens a session on a single node of our domain."""
    names = (["x", "r", "g", "b"], ["y", "s"])
    node = helper.make_node("FusedLayerNormAddSum", *names, "the_norm", domain=DOMAIN, epsilon=1e-5)
    row = np.ones((1, 65536), np.float32)
    model = model_of([node], {"x": row, "r": row}, ["y", "s"], {"g": row[0], "b": row[0]})
    return graphopt.session(model, [(DEVICE_PROVIDER, {"min_nodes": 1})], require_device=True, log_severity_level=4)


def error_of(session: Any) -> float:
    try:
        return float(np.abs(session.run(None, {"x": X})[0] - Y).max())
    finally:
        check_thread()


def message_of(action: Any) -> str:
    try:
        action()
    except Exception as error:  # our exceptions, or ONNX Runtime's, which have no public base class
        return str(error)
    finally:
        check_thread()
    return ""


def devices() -> list[dict[str, str]]:
    """Returns the driver's description of each usable device."""
    return [{**d.ep_metadata} for d in discovery.our_devices()]


def runs() -> dict[str, Any]:
    return {"devices": devices(), "error": error_of(new_session())}


def late() -> dict[str, float]:
    """Returns the deviation from the CPU over three runs of control flow bodies, and of chains and GEMMs around them.

    With STAND_IN_LATE the driver executes work only when a call waits for it.
    """
    from tests.provider.test_control_flow import CASES, parsed

    models = {name: (parsed(text).SerializeToString(), feeds) for name, (text, feeds, _) in CASES.items()}
    models["chain"] = MODEL, {"x": X}
    errors = {}
    for name, (model, feeds) in models.items():
        want = graphopt.session(model, ["CPUExecutionProvider"]).run(None, feeds)
        session = graphopt.session(model, [(DEVICE_PROVIDER, {"min_nodes": 1})], log_severity_level=4)
        assert DEVICE_PROVIDER in session.get_providers()
        runs = [session.run(None, feeds) for _ in range(3)]
        errors[name] = max(
            float(np.abs(np.asarray(y, float) - w).max(initial=0))
            for got in runs
            for y, w in zip(got, want, strict=True)
        )
    return errors


def falls_back() -> dict[str, Any]:
    """Runs two sessions without a device, and returns the message when a device is required."""
    chosen = discovery.default_providers()
    errors = [error_of(graphopt.session(MODEL)) for _ in range(2)]
    return {"providers": chosen, "errors": errors, "required": message_of(new_session)}


def on_the_cpu() -> dict[str, Any]:
    """Runs a session that uses no device, and reports whether it has loaded the driver."""
    error = error_of(graphopt.session(MODEL, ["CPUExecutionProvider"]))
    return {"error": error, "driver": is_loaded()}


def runs_on_each() -> list[float]:
    return [error_of(new_session(n)) for n in range(discovery.device_count())]


def finds_devices_on_threads() -> list[int]:
    """Returns the number of devices that each of eight threads finds in the process's first, concurrent search."""
    library, begin = discovery.library_path(), threading.Barrier(8)

    def library_path() -> Path:
        time.sleep(0.01)  # the package's function reads files, which lets other threads run
        return library

    def count(_: int) -> int:
        begin.wait()
        return discovery.device_count()

    with patch.object(discovery, "library_path", library_path), ThreadPoolExecutor(8) as pool:
        return [*pool.map(count, range(8))]


def disables() -> dict[str, Any]:
    """Returns the operators on the device of a session that disables one of our operators."""
    import onnxruntime

    case = cases_of(OPS["FusedRmsNorm"])[0].cast("float32")
    model, feeds = case_model([case], 17, bodies=True)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    graphopt.configure(options, [DEVICE_PROVIDER], disable=["FusedRmsNorm"], require_device=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    parts = session.get_provider_graph_assignment_info()
    outputs = session.run(None, dict(feeds))
    return {
        "ran": sorted({node.op_type for part in parts for node in part.get_nodes()}),
        "close": bool(case.error(outputs) <= case.tolerance("float32")),
    }


def binds_on_each() -> list[dict[str, Any]]:
    """Returns where a session on each device expects inputs and outputs, and the results with tensors bound there."""
    found = []
    for n in range(discovery.device_count()):
        session = new_session(n)
        memory = discovery.memory_of(session)
        binding: Any = bound_runner(session, {"x": X}, memory)()
        (y,) = binding.copy_outputs_to_cpu()
        found.append({"memory": list(memory), "error": float(np.abs(y - Y).max())})
    return found


def binds_on_the_wrong_device() -> dict[str, Any]:
    """Binds an input, then an output, of the first device to a session on the second.

    Returns the two messages, and the errors of later runs with an input on the second device and with one in host
    memory that the first device has pinned.
    """
    import onnxruntime as ort
    from onnxruntime.capi.onnxruntime_pybind11_state import OrtDeviceMemoryType

    first, second = (discovery.memory_of(new_session(n)) for n in range(2))
    session = new_session(1)
    info = discovery.our_devices()[0].memory_info(OrtDeviceMemoryType.HOST_ACCESSIBLE)
    pinned = ort.OrtValue.ortvalue_from_shape_and_type(X.shape, X.dtype.type, memory_info=info)
    ctypes.memmove(pinned.data_ptr(), X.ctypes.data, X.nbytes)

    def bound(x: Any, place: tuple[Any, ...]) -> Array:
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", x)
        binding.bind_ortvalue_output("y", ort.OrtValue.ortvalue_from_shape_and_type(X.shape, X.dtype.type, *place))
        session.run_with_iobinding(binding)
        outputs: list[Array] = binding.copy_outputs_to_cpu()
        return outputs[0]

    there, here = (ort.OrtValue.ortvalue_from_numpy(X, *place) for place in (first, second))
    said = [message_of(lambda: bound(there, second)), message_of(lambda: bound(here, first))]
    return {"said": said, "errors": [float(np.abs(bound(x, second) - Y).max()) for x in (here, pinned)]}


def waits_between_streams() -> dict[str, Any]:
    """Runs a CPU node between nodes of the second device, while the first device is current.

    Returns the results' error, the live events after each run, and the number of failed driver calls.
    """
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Det", ["r"], ["d"], "on_the_cpu"),
        helper.make_node("Tanh", ["d"], ["t"]),
        helper.make_node("Add", ["r", "t"], ["y"]),
    ]
    x = X[:4, :4]
    session = graphopt.session(model_of(nodes, {"x": x}, ["y"]), [(DEVICE_PROVIDER, {"device": 1, "min_nodes": 1})])
    driver, r = Driver(), np.maximum(x, 0).astype(np.float64)
    events, errors, failures = [], [], driver.failures()
    for _ in range(3):
        (y,) = session.run(None, {"x": x})
        errors.append(float(np.abs(y - (r + np.tanh(np.linalg.det(r)))).max()))
        events.append(driver.alive()[2])
    return {"error": max(errors), "events": events, "failures": driver.failures() - failures}


def copies_without_a_stream() -> list[float]:
    """Copies a result to the host without a stream while the run is still queued; returns deviations from the CPU."""
    import onnxruntime as ort

    session = new_session()
    memory = discovery.memory_of(session)
    options = ort.RunOptions()
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    errors = []
    for _ in range(2):
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(X, *memory))
        y = ort.OrtValue.ortvalue_from_shape_and_type(X.shape, X.dtype.type, *memory)
        binding.bind_ortvalue_output("y", y)
        session.run_with_iobinding(binding, options)
        host = ort.OrtValue.ortvalue_from_numpy(np.zeros_like(X))
        ort.copy_tensors([y], [host])
        errors.append(float(np.abs(host.numpy() - Y).max()))
    return errors


def split_batch() -> graphopt.DataParallel:
    """Returns the model with a dynamic batch, distributed over all devices."""
    proto = onnx.load_from_string(MODEL)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.ClearField("shape")
        value.type.tensor_type.shape.dim.add(dim_param="N")
        value.type.tensor_type.shape.dim.add(dim_value=64)
    return graphopt.DataParallel(proto.SerializeToString(), require_device=True)


def splits_a_batch() -> float:
    every = split_batch()
    return max(float(np.abs(every.run(None, {"x": X})[0] - Y).max()) for _ in range(3))


def out_of_memory() -> dict[str, Any]:
    driver, session = Driver(), new_session()
    driver.limit(X.nbytes * 3 // 2)  # enough for the input, but not for the result of the first node
    in_run = message_of(lambda: session.run(None, {"x": X}))
    driver.limit(1 << 30)
    survived = error_of(session)
    ours, row = session_on_our_node(), np.ones((1, 65536), np.float32)
    driver.limit(row.nbytes * 5 // 2)
    in_our_node = message_of(lambda: ours.run(None, {"x": row, "r": row}))
    driver.limit(1000)
    weights = np.ones((64, 4096), np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["t"]), helper.make_node("Relu", ["t"], ["y"])]
    model = model_of(nodes, {"x": X}, ["y"], {"w": weights})
    at_start = message_of(lambda: graphopt.session(model, [(DEVICE_PROVIDER, {"min_nodes": 1})], log_severity_level=4))
    return {"in_run": in_run, "in_our_node": in_our_node, "survived": survived, "at_start": at_start}


def runs_on_memory_of_the_pool() -> float:
    """Runs a session while all free device memory is in the shared pool, where a closed session left it."""
    driver = Driver()
    error_of(new_session())
    gc.collect()
    driver.limit(0)
    options = {"memory_limit": 1 << 20}
    return error_of(graphopt.session(MODEL, [(DEVICE_PROVIDER, options)], require_device=True, log_severity_level=4))


def vanishes() -> dict[str, Any]:
    driver, lost = Driver(), [new_session()]
    error_of(lost[0])
    driver.fail_after(0)
    in_run = message_of(lambda: error_of(lost[0]))
    again = message_of(lambda: error_of(lost[0]))
    at_start = message_of(new_session)
    lost.clear()  # the session is destroyed while its device is lost
    driver.recover()
    return {"in_run": in_run, "again": again, "at_start": at_start, "later": message_of(new_session)}


def vanishes_at_every_call() -> dict[str, Any]:
    """Creates, runs (launched, captured, replayed) and destroys a session; the driver fails after 0, 1, ... calls."""

    def life() -> None:
        session = new_session()
        for _ in range(3):
            if not error_of(session) < 1e-6:
                raise AssertionError("a wrong result")

    driver, messages = Driver(), []
    life()
    for calls in range(1000):
        driver.fail_after(calls, CALL_FAILED)
        message = message_of(life)
        driver.recover()
        if not message:
            break
        messages.append(message)
    return {"messages": messages, "later": error_of(new_session())}


def keeps_blocks_of_failed_copies() -> dict[str, Any]:
    """Runs a session; the driver fails after 0, 1, ... calls.

    Returns the bytes of pinned memory before each failure, and the error of the last run.
    """
    session = new_session()
    for _ in range(3):
        error_of(session)
    driver, pinned = Driver(), []
    for calls in range(100):
        pinned.append(driver.pinned())
        driver.fail_after(calls, CALL_FAILED)
        message = message_of(lambda: error_of(session))
        driver.recover()
        later = error_of(session)
        if not message:
            break
    return {"pinned": pinned, "later": later}


def records() -> dict[str, Any]:
    """Runs a session on a GEMM, a convolution and element-wise nodes; returns errors and region events."""
    rng = np.random.default_rng(0)
    x, v, w = (rng.standard_normal(s).astype(np.float32) for s in ((1, 4, 8, 8), (8, 16), (4, 4, 3, 3)))
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["m"]),
        helper.make_node("Tanh", ["m"], ["y"]),
    ]
    model = model_of(nodes, {"x": x}, ["y"], {"w": w, "v": v})
    cpu = graphopt.session(model, ["CPUExecutionProvider"])
    library = ctypes.CDLL(os.environ["STAND_IN_LIBRARY"])
    library.GraphoptRegions.restype = ctypes.c_char_p
    options = json.loads(os.environ.get("STAND_IN_OPTIONS", "{}"))
    session = graphopt.session(model, [(DEVICE_PROVIDER, options)], require_device=True, log_severity_level=4)
    errors = []
    for i in range(8):  # inputs differ, since stale memory holds the values of the previous run
        feeds = {"x": x + np.float32(i / 8)}
        errors.append(float(np.abs(session.run(None, feeds)[0] - cpu.run(None, feeds)[0]).max()))
        check_thread()
        library.GraphoptFinishLoading()
    session = None
    gc.collect()
    regions = json.loads(library.GraphoptRegions())
    return {"error": max(errors), "regions": regions, "graphs": Driver().graphs(), "streams": Driver().alive()[1]}


def takes_idle_arenas() -> float:
    """Runs a session while all free device memory is in the arena of another, idle session."""
    from tests.provider.test_regions import dynamic

    driver, x = Driver(), np.ones((4096, 64), np.float32)
    sessions = [
        graphopt.session(dynamic("Relu", "Exp", "Tanh"), [(DEVICE_PROVIDER, {"min_nodes": 1})]) for _ in range(2)
    ]
    sessions[1].run(None, {"x": x[:1]})  # creates its stream and its constants
    sessions[0].run(None, {"x": x})
    driver.limit(0)
    (y,) = sessions[1].run(None, {"x": x})
    return float(np.abs(y - np.tanh(np.exp(1.0))).max())


def keeps_a_limit() -> dict[str, Any]:
    """Runs many sizes with a memory_limit; returns the driver's peak, and whether the library's count agrees."""
    from tests.provider.test_regions import dynamic, memory

    driver, limit = Driver(), 256 * 256 * 4 * 5
    before, most, counted = driver.alive()[0], 0, True
    options = {"memory_limit": limit}
    model = dynamic("Relu", "Exp", "Tanh")
    session = graphopt.session(model, [(DEVICE_PROVIDER, options)], require_device=True, log_severity_level=4)
    for size in np.random.default_rng(6).integers(16, 257, (150, 2)):
        for _ in range(2):
            session.run(None, {"x": np.zeros(size, np.float32)})
            check_thread()
            told = memory(os.environ["STAND_IN_LIBRARY"])
            counted = counted and told["bytes"] == driver.alive()[0] and told["recordings"] == driver.graphs()
            most = max(most, driver.alive()[0] - before)
    session = None
    gc.collect()
    return {"limit": limit, "most": most, "counted": counted, "left": driver.alive()[0] - before}


def convolutions() -> dict[str, Any]:
    """Runs each convolution in a new session.

    Returns the errors as multiples of the tolerance, the number of expected GEMMs, and the library's calls and live
    objects.
    """
    from tests.hip.case import tolerance_of
    from tests.hip.convolution_cases import CONVOLUTIONS, TRANSPOSED, Sizes, convolution

    def after(sizes: Sizes, transposed: bool) -> list[int]:
        """Padding at the end; negative if an output has elements beyond the last window."""
        spans = [(k - 1) * d + 1 for k, d in zip(sizes.kernel, sizes.dilations, strict=True)]
        windows, whole = (sizes.size, sizes.out) if transposed else (sizes.out, sizes.size)
        each = zip(windows, whole, sizes.strides, spans, sizes.pads, strict=True)
        return [(n - 1) * stride + span - size - pad for n, size, stride, span, pad in each]

    library = ctypes.CDLL(os.environ["STAND_IN_DNN_LIBRARY"])
    finish_loading = ctypes.CDLL(os.environ["STAND_IN_LIBRARY"]).GraphoptFinishLoading
    errors, by_library = [], 0
    for sizes, transposed in (*((s, False) for s in CONVOLUTIONS), *((s, True) for s in TRANSPOSED)):
        for dtype in (np.float32, np.float16):
            case = convolution("", dtype, sizes, transposed, bias=True)
            ends = after(sizes, transposed)
            attributes: dict[str, Any] = {"strides": sizes.strides, "dilations": sizes.dilations}
            attributes |= {"group": sizes.groups, "pads": [*sizes.pads, *(max(n, 0) for n in ends)]}
            if transposed:
                attributes["output_padding"] = [max(-n, 0) for n in ends]
            feeds = dict(zip("xwb", case.inputs, strict=True))
            model = model_of([helper.make_node(case.op, [*feeds], ["y"], **attributes)], feeds, ["y"], opset=22)
            session = graphopt.session(model, [(DEVICE_PROVIDER, {"min_nodes": 1})], require_device=True)
            scale = np.sqrt(np.mean(case.expected[0] ** 2))
            worst = 0.0
            for _ in range(2):  # the first run uses our kernels, while the library loads its own
                before = library.stand_in_convolutions()
                error = np.abs(session.run(None, feeds)[0] - case.expected[0]).max()
                worst = max(worst, float(error / scale / tolerance_of(dtype)))
                finish_loading()
            errors.append(worst)
            by_library += library.stand_in_convolutions() - before
            del session
    gc.collect()
    products = 2 * sum(set(s.kernel) == {1} and s.groups == 1 and not any(s.pads) for s in CONVOLUTIONS)
    return {
        "errors": errors,
        "products": products,
        "by_library": by_library,
        "alive": library.stand_in_dnn_alive(),
    }


def channels_last() -> dict[str, Any]:
    """Runs each graph in a new session; returns errors relative to RMS, copies between layouts, and library calls."""
    import onnxruntime as ort

    from tests.provider import test_channels_last

    libraries = [ctypes.CDLL(os.environ[f"STAND_IN_{name}_LIBRARY"]) for name in ("DNN", "BLAS_LT")]
    library = ctypes.CDLL(os.environ["STAND_IN_LIBRARY"])
    describe = library.GraphoptRegions
    describe.restype = ctypes.c_char_p
    options = {"min_nodes": 1} | json.loads(os.environ.get("STAND_IN_OPTIONS", "{}"))
    feeds, found = test_channels_last.feeds(), {}
    for name in test_channels_last.GRAPHS:
        cpu = graphopt.session(test_channels_last.model_of(name, np.float32), ["CPUExecutionProvider"])
        wanted = cpu.run(None, {key: value.astype(np.float32) for key, value in feeds.items()})
        converted = json.loads(describe())["converted"]
        model = test_channels_last.model_of(name, np.float16)
        # The runtime's optimizer would cancel pairs of Transposes.
        level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = graphopt.session(
            model, [(DEVICE_PROVIDER, options)], require_device=True, graph_optimization_level=level
        )
        errors = []
        for _ in range(3):
            for y, w in zip(session.run(None, feeds), wanted, strict=True):
                errors.append(float(np.abs(y - w).max() / np.sqrt(np.mean(w**2))))
            library.GraphoptFinishLoading()
        found[name] = {"error": max(errors), "converted": json.loads(describe())["converted"] - converted}
        del session
    gc.collect()
    dnn, blas_lt = libraries
    return {
        "found": found,
        "by_libraries": [dnn.stand_in_convolutions(), blas_lt.stand_in_products()],
        "alive": dnn.stand_in_dnn_alive(),
    }


def linear() -> dict[str, Any]:
    """Runs every Linear.

    Returns whether it ran on the device, its error as a multiple of the tolerance, and the library's calls and waits.
    """
    from tests.provider.worker import placement_of

    on_device = [(DEVICE_PROVIDER, {"min_nodes": 1})]
    worst, ran = {}, {}
    for name in (name for name, spec in OPS.items() if name.startswith("Linear") and spec.gpu_kernel):
        for dtype in ("float32", "float16"):
            cases = [case.cast(dtype) for case in cases_of(OPS[name])]
            proto, feeds = case_model(cases, 17, bodies=True)
            with tempfile.TemporaryDirectory() as folder:
                profile: dict[str, Any] = {"enable_profiling": True, "profile_file_prefix": f"{folder}/profile"}
                session = graphopt.session(
                    proto.SerializeToString(), on_device, require_device=True, log_severity_level=3, **profile
                )
                library = ctypes.CDLL(os.environ["STAND_IN_BLAS_LT_LIBRARY"])
                library.stand_in_this_thread_runs()
                outputs = session.run(None, dict(feeds))
                ran[f"{name} {dtype}"] = placement_of(session)[DEVICE_PROVIDER][name] == len(cases)
            errors = [case.error([y]) / case.tolerance(dtype) for case, y in zip(cases, outputs, strict=True)]
            worst[f"{name} {dtype}"] = max(errors)
    products, waits = library.stand_in_products(), library.stand_in_waits_in_run()
    return {"ran": ran, "errors": worst, "products": products, "waits_in_run": waits}


def one_linear() -> dict[str, float]:
    """Runs one Linear; returns its error and the number of the library's products in the run."""
    case = cases_of(OPS["Linear"])[0].cast("float32")
    proto, feeds = case_model([case], 17, bodies=False)
    session = graphopt.session(proto.SerializeToString(), [(DEVICE_PROVIDER, {"min_nodes": 1})], log_severity_level=3)
    library = ctypes.CDLL(os.environ["STAND_IN_BLAS_LT_LIBRARY"])
    before = library.stand_in_products()
    error = case.error(session.run(None, dict(feeds)))
    return {"error": error, "products": library.stand_in_products() - before}


def dies_in_the_selftest() -> None:
    """Runs a self-test in which the second operator aborts the process."""
    few = {name: OPS[name] for name in ("FusedRmsNorm", "FusedLayerNorm", "ScaleShift")}
    with patch.dict(OPS, few, clear=True):
        selftest(progress=lambda name: Driver().fail_after(0, ABORT) if name == "FusedLayerNorm" else None)


def after_the_selftest() -> dict[str, str]:
    """Returns the self-test failures that this later process reads from the record."""
    return selftest_record.failures(DEVICE_PROVIDER, discovery.device_of(DEVICE_PROVIDER), discovery.library_version())


def many_sessions() -> dict[str, Any]:
    import onnxruntime

    driver, states, heaps, found = Driver(), [], [], discovery.our_devices()
    # Models with Loops are included, since ONNX Runtime creates a nested session and kernels for these.
    for i in range(1000):
        # Without our custom operators: their registration takes most of a session's creation time.
        options = onnxruntime.SessionOptions()
        options.add_provider_for_devices(found[:1], {"min_nodes": "1"})
        error_of(onnxruntime.InferenceSession(LOOP if i % 4 == 0 else MODEL, options))
        if i in (199, 999):
            states.append(driver.alive())
            gc.collect()
            heap = heap_bytes()
            assert heap is not None
            heaps.append(heap)
    return {"alive": states, "grown": (heaps[1] - heaps[0]) / 800}


def refuses_old_runtimes() -> str:
    """Returns the error of CreateEpFactories in this environment's runtime."""
    import onnxruntime

    (path,) = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*")
    base = ctypes.CDLL(str(path)).OrtGetApiBase
    base.restype = ctypes.POINTER(ctypes.c_void_p)
    create = ctypes.CDLL(os.environ["STAND_IN_LIBRARY"]).CreateEpFactories
    create.restype = ctypes.c_void_p
    factory, count = ctypes.c_void_p(), ctypes.c_size_t(7)
    status = create(b"graphopt", base(), None, ctypes.byref(factory), ctypes.c_size_t(1), ctypes.byref(count))
    assert not factory and count.value == 0
    # OrtApiBase begins with GetApi; slot 2 of the returned table is GetErrorMessage.
    table = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint32)(base()[0])(1)
    message: bytes = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)(table[2])(status)
    return message.decode()


def run_case(functions: dict[str, Any], name: str) -> None:
    """Runs the function of this name and prints its result as JSON."""
    library = Path(os.environ["STAND_IN_LIBRARY"])
    for module in (discovery, sessions):
        vars(module)["library_path"] = functools.cache(lambda: library)
    value = functions[name]()
    check_thread()
    print(json.dumps(value))
