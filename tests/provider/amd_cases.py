"""Properties of ROCm and of AMD machines; each function runs in a separate process (test_amd.py)."""

from __future__ import annotations

import ctypes
import gc
import os
import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper

import graphopt
from graphopt.measure.profiling import read_events
from graphopt.runtime import discovery, session_warnings
from graphopt.runtime.auto import resolve_target
from graphopt.runtime.discovery import DEVICE_PROVIDER, loads_providers
from tests.provider.capture_cases import counts
from tests.provider.driver_cases import (
    MODEL,
    Driver,
    X,
    Y,
    check_thread,
    devices,
    error_of,
    message_of,
    new_session,
    split_batch,
)
from tests.provider.worker import model_of

GENERATOR = np.random.default_rng(1)


def described() -> Any:
    """Returns the library's report about this machine (native/device/report.h)."""
    import json

    library = ctypes.CDLL(os.environ["STAND_IN_LIBRARY"])
    library.GraphoptDescribeDevices.restype = ctypes.c_char_p
    return json.loads(library.GraphoptDescribeDevices())


def facts() -> list[dict[str, Any]]:
    (route,) = (r for r in described()["routes"] if r["route"] == "hip")
    return [*route["devices"]]


def any_session() -> Any:
    """Opens a session that looks for a GPU; on ONNX Runtime 1.22 the registration of our operators does this."""
    return new_session() if loads_providers() else graphopt.session(MODEL)


def leaves_no_error() -> dict[str, Any]:
    """Opening and running a session makes no failing call, since HIP would keep the error."""
    error = error_of(any_session())
    driver = Driver()
    return {"error": error, "failures": driver.failures(), "last": driver.last_error()}


def leaves_the_current_device() -> list[int]:
    """A caller computes on device 1 before and after a session on device 0."""
    driver = Driver()
    driver.make_current(1)
    seen = []
    devices()
    seen.append(driver.current())
    session = graphopt.session(MODEL, [(DEVICE_PROVIDER, {"device": 0, "min_nodes": 1})], log_severity_level=4)
    seen.append(driver.current())
    session.run(None, {"x": X})
    seen.append(driver.current())
    del session
    seen.append(driver.current())
    driver.make_current(0)
    return seen


def opens_devices_when_used() -> list[int]:
    """Returns the number of loaded modules after the devices were listed, and after a session on one of two."""
    devices()
    driver = Driver()
    looked = driver.modules()
    error_of(new_session(1))
    return [looked, driver.modules()]


def splits_over() -> list[str]:
    """Returns the architectures that DataParallel chooses by default."""
    every = split_batch()
    numbers = [discovery.memory_of(session)[1] for session in every.sessions]
    archs = {int(d["graphopt.device"]): d["graphopt.arch"] for d in devices()}
    return [archs[n] for n in numbers]


def product() -> dict[str, Any]:
    """Runs a float32 matrix multiplication three times, and reports the calls of the vendor's library."""
    w = GENERATOR.standard_normal((64, 32)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["t"]), helper.make_node("Relu", ["t"], ["y"])]
    options: dict[str, Any] = {"min_nodes": 1}
    if "OPTION_LIBRARIES" in os.environ:
        options["libraries"] = os.environ["OPTION_LIBRARIES"]
    model = model_of(nodes, {"x": X}, ["y"], {"w": w})
    session = graphopt.session(model, [(DEVICE_PROVIDER, options)], log_severity_level=4)
    path = os.environ.get("STAND_IN_BLAS_LIBRARY")
    library = ctypes.CDLL(path) if path else None
    if library:
        library.stand_in_this_thread_runs()
    runs = [session.run(None, {"x": X})[0] for _ in range(3)]
    check_thread()
    expected = np.maximum(X.astype(np.float64) @ w, 0)
    return {
        "error": float(np.abs(runs[0] - expected).max()),
        "same": all(np.array_equal(runs[0], y) for y in runs),
        "by_library": library.stand_in_blas_products() if library else 0,
        "handles": library.stand_in_blas_handles() if library else 0,
        "waits_in_run": library.stand_in_waits_in_run() if library else 0,
    }


def convolution() -> dict[str, Any]:
    """Runs a float16 ConvTranspose and a float32 Conv four times, and lets kernels finish loading after each run."""
    w = GENERATOR.standard_normal((4, 4, 3, 3)).astype(np.float32)
    wt = w.astype(np.float16)
    x = GENERATOR.standard_normal((1, 4, 8, 8)).astype(np.float32)
    xh = x.astype(np.float16)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1]),
        helper.make_node("ConvTranspose", ["xh", "wt"], ["t"], strides=[2, 2]),
        helper.make_node("Cast", ["t"], ["yh"], to=1),
    ]
    model = model_of(nodes, {"x": x, "xh": xh}, ["y", "yh"], {"w": w, "wt": wt}, opset=11)
    session = graphopt.session(model, [(DEVICE_PROVIDER, {"min_nodes": 1})], require_device=True, log_severity_level=4)
    cpu = graphopt.session(model_of(nodes[:1], {"x": x}, ["y"], {"w": w}, opset=11), ["CPUExecutionProvider"])
    expected = cpu.run(None, {"x": x})[0]
    expected_t = np.zeros((1, 4, 17, 17))
    for i, j in np.ndindex(8, 8):
        patch = np.einsum("c,cmkl->mkl", xh[0, :, i, j].astype(np.float64), wt.astype(np.float64))
        expected_t[0, :, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3] += patch
    library = os.environ.get("STAND_IN_DNN_LIBRARY")
    if library:
        ctypes.CDLL(library).stand_in_this_thread_runs()
    counts = []
    runs = []
    finish = ctypes.CDLL(os.environ["STAND_IN_LIBRARY"]).GraphoptFinishLoading
    for _ in range(4):
        runs.append(session.run(None, {"x": x, "xh": xh}))
        check_thread()
        if os.environ.get("STAND_IN_DNN") == "builds":
            ctypes.CDLL(library).stand_in_let_builds_end()
        finish()
        counts.append(ctypes.CDLL(library).stand_in_convolutions() if library else 0)
    scale = np.sqrt(np.mean(expected_t**2))
    return {
        "error": max(float(np.abs(y - expected).max()) for y, _ in runs),
        "error_transposed": max(float(np.abs(yh - expected_t).max() / scale) for _, yh in runs),
        "same": all(np.array_equal(runs[-1][0], y) and np.array_equal(runs[-1][1], yh) for y, yh in runs[-2:]),
        "by_library": counts,
        "waits_in_run": ctypes.CDLL(library).stand_in_waits_in_run() if library else 0,
        "slow": ctypes.CDLL(library).stand_in_slow_convolutions() if library else 0,
    }


def counts_calls_after_a_failure() -> dict[str, Any]:
    """Counts the library calls of each run; in the first run rocBLAS fails once, after MIOpen's kernels are loaded."""
    w = GENERATOR.standard_normal((4, 4, 3, 3)).astype(np.float32)
    m = GENERATOR.standard_normal((8, 8)).astype(np.float32)
    x = GENERATOR.standard_normal((1, 4, 8, 8)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("MatMul", ["c", "m"], ["y"]),
    ]
    model = model_of(nodes, {"x": x}, ["y"], {"w": w, "m": m})
    where = [(DEVICE_PROVIDER, {"capture": 0})]  # without capture no additional run verifies a graph
    session = graphopt.session(model, where, require_device=True, log_severity_level=4)
    expected = graphopt.session(model, ["CPUExecutionProvider"]).run(None, {"x": x})[0]
    blas = ctypes.CDLL(os.environ["STAND_IN_BLAS_LIBRARY"])
    dnn = ctypes.CDLL(os.environ["STAND_IN_DNN_LIBRARY"])
    finish = ctypes.CDLL(os.environ["STAND_IN_LIBRARY"]).GraphoptFinishLoading
    blas.stand_in_blas_fails_once_after(finish)
    runs = []
    errors = []
    for _ in range(3):
        before = blas.stand_in_blas_products(), dnn.stand_in_convolutions()
        errors.append(float(np.abs(session.run(None, {"x": x})[0] - expected).max()))
        runs.append([blas.stand_in_blas_products() - before[0], dnn.stand_in_convolutions() - before[1]])
    return {"runs": runs, "error": max(errors)}


def warms_up_convolutions() -> dict[str, int]:
    """Counts MIOpen's convolutions, and the waits for it, in the first run after a warm-up."""
    w = GENERATOR.standard_normal((4, 4, 3, 3)).astype(np.float32)
    x = GENERATOR.standard_normal((1, 4, 8, 8)).astype(np.float32)
    model = model_of([helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])], {"x": x}, ["y"], {"w": w})
    library = ctypes.CDLL(os.environ["STAND_IN_DNN_LIBRARY"])
    where = [(DEVICE_PROVIDER, {"min_nodes": 1})]
    session = graphopt.session(model, where, warm_up={"x": x.shape}, log_severity_level=4)
    library.stand_in_this_thread_runs()
    before = library.stand_in_convolutions()
    session.run(None, {"x": x})
    return {"by_library": library.stand_in_convolutions() - before, "waits": library.stand_in_waits_in_run()}


def each_session_chooses() -> dict[str, Any]:
    """Counts the library's matrix multiplications for different options; collects the errors of wrong options."""
    w = GENERATOR.standard_normal((64, 32)).astype(np.float32)
    model = model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": X}, ["y"], {"w": w})
    library = ctypes.CDLL(os.environ["STAND_IN_BLAS_LIBRARY"])

    def session(choice: str) -> Any:
        where = [(DEVICE_PROVIDER, {"min_nodes": 1, "libraries": choice})]
        return graphopt.session(model, where, log_severity_level=4)

    def products(of: Any) -> int:
        before = library.stand_in_blas_products()
        assert np.abs(of.run(None, {"x": X})[0] - X.astype(np.float64) @ w).max() < 1e-4
        return int(library.stand_in_blas_products() - before)

    sessions = {choice: session(choice) for choice in ("", "rocblas=off", "miopen=off", "rocblas=on")}
    found: dict[str, Any] = {choice: products(of) for choice, of in sessions.items()}
    found["again"] = products(sessions["rocblas=off"]) + products(sessions[""])
    found["by keyword"] = products(
        graphopt.session(
            model, [(DEVICE_PROVIDER, {"min_nodes": 1})], libraries={"rocblas": "off"}, log_severity_level=4
        )
    )
    found["wrong"] = [message_of(lambda c=choice: session(c)) for choice in ("rocblas=of", "rocm=off", "cudnn=build")]
    return found


def properties_of_hip_5() -> dict[str, Any]:
    """Returns the devices, and a session's error, with the properties in the layout of HIP 5."""
    return {"devices": facts(), "error": error_of(any_session())}


def binds_pinned_memory() -> dict[str, Any]:
    """Binds inputs in memory pinned by the provider; returns the memory's name and the number of waits for copies."""
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as binding_types

    driver, session = Driver(), new_session()
    error_of(session)
    info = discovery.our_devices()[0].memory_info(binding_types.OrtDeviceMemoryType.HOST_ACCESSIBLE)
    before = driver.pinned(), driver.waits()
    errors, places = [], set()
    for i in range(4):
        value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(X.shape, np.float32, memory_info=info)
        x = X + np.float32(i / 8)
        ctypes.memmove(value.data_ptr(), x.ctypes.data, x.nbytes)
        places.add(value.data_ptr())
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", value)
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        y = binding.copy_outputs_to_cpu()[0]
        errors.append(float(np.abs(y - np.tanh(np.maximum(x, 0))).max()))
        del binding, value
        gc.collect()
    check_thread()
    return {
        "name": info.name,
        "error": max(errors),
        "places": len(places),
        "pinned": driver.pinned() - before[0],
        "waits": driver.waits() - before[1],
    }


def copies_of_runs() -> dict[str, Any]:
    """Runs sessions with inputs and outputs in ordinary and in pinned memory, run launch by launch.

    Returns, for each provider option and kind of memory, the bytes that the driver copies for one run, or the message
    of a failed run, and the largest error.
    """
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as binding_types

    driver = Driver()
    info = discovery.our_devices()[0].memory_info(binding_types.OrtDeviceMemoryType.HOST_ACCESSIBLE)
    copied, errors = {}, []

    def tensor(memory: str, content: Any) -> Any:
        if memory == "ordinary":
            return onnxruntime.OrtValue.ortvalue_from_numpy(content)
        value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(X.shape, np.float32, memory_info=info)
        ctypes.memmove(value.data_ptr(), content.ctypes.data, content.nbytes)
        return value

    for option in (
        {},
        {"host_memory": 1},
        {"host_memory": 1, "memory_limit": 1 << 20},
        {"host_memory": 1, "regions": 0},
    ):
        ours = {"capture": 0, "min_nodes": 1, **option}
        session = graphopt.session(MODEL, [(DEVICE_PROVIDER, ours)], require_device=True, log_severity_level=4)
        error_of(session)
        for memory in ("ordinary", "pinned"):
            before = driver.copied()
            x, y = tensor(memory, X), tensor(memory, np.zeros_like(X))
            binding = session.io_binding()
            binding.bind_ortvalue_input("x", x)
            binding.bind_ortvalue_output("y", y)
            message = message_of(partial(session.run_with_iobinding, binding))
            copied[f"{memory} {option}"] = message or driver.copied() - before
            if message:
                continue
            content = (ctypes.c_float * X.size).from_address(y.data_ptr())
            errors.append(float(np.abs(np.array(content).reshape(X.shape) - Y).max()))
            del binding, x, y
            gc.collect()
    check_thread()
    return {"copied": copied, "error": max(errors)}


def profiles() -> dict[str, Any]:
    """Profiles a region and single nodes on the device.

    Returns for each the events of kernels as (name, operator, parent, microseconds), sorted, the names of the runtime's
    nodes, and the region events of the profiled runs and of the runs after the profile.
    """
    found: dict[str, Any] = {}
    for regions in (1, 0):
        session = graphopt.session(
            MODEL,
            [(DEVICE_PROVIDER, {"regions": regions, "min_nodes": 1})],
            require_device=True,
            enable_profiling=True,
            profile_file_prefix=str(Path(tempfile.mkdtemp()) / "profile"),
            log_severity_level=4,
        )
        start = counts()
        errors = [error_of(session) for _ in range(3)]
        profiled = counts()
        events = read_events(Path(session.end_profiling()).read_text())
        errors += [error_of(session) for _ in range(3)]
        after = counts()
        kernels = [event for event in events if event["cat"] == "Kernel"]
        found["region" if regions else "nodes"] = {
            "kernels": sorted([e["name"], e["args"]["op_name"], e["args"]["parent_name"], e["dur"]] for e in kernels),
            "nodes": sorted({e["name"] for e in events if e["cat"] == "Node"}),
            "within": all(e["ts"] >= 0 for e in kernels),
            "graphs": [profiled["captured"] - start["captured"], after["captured"] - profiled["captured"]],
            "error": max(errors),
        }
    check_thread()
    return found


def waits_for_inputs() -> dict[str, Any]:
    """Returns the largest error of ten runs with different inputs, and how many copies the host waited for."""
    session = new_session()
    error_of(session)
    driver = Driver()
    before = driver.waits()
    errors = []
    for i in range(10):
        x = X + np.float32(i / 8)
        y = session.run(None, {"x": x})[0]
        errors.append(float(np.abs(y - np.tanh(np.maximum(x, 0))).max()))
    return {"waits": driver.waits() - before, "error": max(errors)}


def forks() -> dict[str, str]:
    """Forks a process that has used the GPU; returns the messages of an inherited and a new session in the child."""
    session = any_session()
    error_of(session)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        told = message_of(lambda: session.run(None, {"x": X})) + "|" + message_of(new_session)
        os.write(write, told.encode())
        os._exit(0)
    os.waitpid(child, 0)
    in_run, _, at_start = os.read(read, 1 << 16).decode().partition("|")
    return {"in_run": in_run, "at_start": at_start, "parent": str(error_of(session))}


def warms_up() -> dict[str, str]:
    """Runs a session with a warm-up; returns the error of a warm-up that names an input the model does not have."""
    session = graphopt.session(
        MODEL, [(DEVICE_PROVIDER, {"min_nodes": 1})], warm_up={"x": (64, 64)}, log_severity_level=4
    )
    assert error_of(session) < 1e-6
    missing = message_of(
        lambda: graphopt.session(MODEL, [(DEVICE_PROVIDER, {"min_nodes": 1})], warm_up=[{"z": (64, 64)}])
    )
    return {"missing": missing}


def runtime_library() -> dict[str, Any]:
    """Returns the HIP runtimes loaded in the process, and the library's report about them."""
    if not loads_providers():
        graphopt.session(MODEL)
    told = described()
    maps = open("/proc/self/maps").read()  # noqa: SIM115
    loaded = sorted({line.split()[-1] for line in maps.splitlines() if "libamdhip64" in line})
    (route,) = (r for r in told["routes"] if r["route"] == "hip")
    return {"loaded": loaded, "route": route}


def runtime_of_a_gpu() -> Any:
    """Returns the library's report about the runtime on a machine with a GPU."""
    with tempfile.TemporaryDirectory() as folder:
        _machine(Path(folder), {**GPU, **NODES})
        return runtime_library()["route"]


def _machine(folder: Path, files: dict[str, str]) -> None:
    """Makes the system show these files; a file with the text UNOPENABLE is a device node that cannot be opened."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text == UNOPENABLE:
            path.mkdir()
        else:
            path.write_text(text)
    ctypes.CDLL(os.environ["STAND_IN_LIBRARY"]).stand_in_system_root(str(folder).encode())
    discovery.gpu_routes.cache_clear()
    session_warnings._said.clear()


UNOPENABLE = "a folder"
GPU = {"sys/bus/pci/devices/0000:03:00.0/vendor": "0x1002\n", "sys/bus/pci/devices/0000:03:00.0/class": "0x030000\n"}
NODES = {"dev/kfd": "", "dev/dri/renderD128": ""}
WSL = {"proc/sys/kernel/osrelease": "5.15.153.1-microsoft-standard-WSL2\n", "dev/dxg": ""}
MACHINES: dict[str, dict[str, str]] = {
    "no GPU": {},
    "no driver": GPU,
    "container": {**GPU, ".dockerenv": ""},
    "kfd": {**GPU, **NODES, "dev/kfd": UNOPENABLE},
    "render node": {**GPU, **NODES, "dev/dri/renderD128": UNOPENABLE},
    "old driver": {**GPU, **NODES},
    "wsl": WSL,
}


def why_no_gpu() -> dict[str, Any]:
    """Returns the target `auto`, the session's warnings and each route's reason on machines without a visible GPU."""
    found = {}
    for name, files in MACHINES.items():
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            _machine(Path(folder), files)
            providers = graphopt.session(MODEL, log_severity_level=4).get_providers()
            target, why = resolve_target("auto")
            codes = {r.name: r.reason.code for r in discovery.gpu_routes() if r.reason}
            found[name] = {
                "providers": providers,
                "said": [str(w.message) for w in said],
                "target": str(target),
                "why": why,
                "codes": codes,
            }
    return found


def auto_on_wsl() -> list[str]:
    """On WSL ROCm finds GPUs through /dev/dxg; there is no /dev/kfd."""
    with tempfile.TemporaryDirectory() as folder:
        _machine(Path(folder), WSL)
        target, why = resolve_target("auto")
        return [str(target), why, *new_session().get_providers()]
