"""Checks two GPUs in one process: sessions on both while PyTorch computes, and a batch split between them.

    python scripts/gpu_data_parallel.py

Builds the library with nvcc into graphopt/lib first and prints a line for each check. A check fails if bits differ, if
an error is above LIMIT, or if the speedup of ResNet-50 is below 1.7. The exit code is 1 if a check fails, or with fewer
than two devices.
scripts/gpu_soak.py is the soak test for both devices.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import onnx
import onnxruntime as ort
import torch

import graphopt
from graphopt import DataParallel
from graphopt.runtime.discovery import DEVICE_PROVIDER, device_count, memory_of
from models import ZOO, feeds_of
from models.prepared import relative_error
from scripts.device import bound, install_for_cuda, load_vendor_libraries, statistics_of
from scripts.timing import interleaved

LIMIT = 1e-5  # largest error over the root mean square of an output
BATCHES = {"resnet50": 64, "bert": 64}
LEAST_SPEEDUP = {"resnet50": 1.7}
RUNS = 5  # at the same addresses: the last ones replay a captured graph


def optimized(name: str, small: bool = False) -> onnx.ModelProto:
    model, _ = graphopt.optimize(ZOO[name](small=small, dynamic=True), target="cuda")
    return model


def session_on(model: onnx.ModelProto, device: int) -> Any:
    ours = (DEVICE_PROVIDER, {"device": device, "min_nodes": 1})  # a small model would run on the CPU
    return graphopt.session(model, [ours, "CPUExecutionProvider"], log_severity_level=3)


def in_use(device: int) -> int:
    return sum(int(pool["in_use"]) for pool in statistics_of("GraphoptMemory")["pools"] if pool["device"] == device)


def require(condition: bool, why: str) -> None:
    if not condition:
        raise AssertionError(why)


def require_same(got: Sequence[Any], want: Sequence[Any], what: str) -> None:
    """Raises AssertionError unless all bits are equal."""
    require(all(g.tobytes() == w.tobytes() for g, w in zip(got, want, strict=True)), f"{what}: other bits")


def run_on_device(session: Any, feeds: dict[str, Any], like: Sequence[Any]) -> list[Any]:
    """Runs a session RUNS times with inputs and outputs in the memory of its device; returns the last outputs."""
    binding = bound(session, feeds, like)
    for _ in range(RUNS):
        session.run_with_iobinding(binding)
    outputs: list[Any] = binding.copy_outputs_to_cpu()
    return outputs


def beside_pytorch() -> str:
    """Creates, runs and closes sessions on the second device while PyTorch computes on the first, the current one."""
    torch.cuda.set_device(0)
    model = optimized("resnet18")
    first = session_on(model, 0)
    feeds = feeds_of(model, 4)
    want = first.run(None, feeds)
    x = torch.randn(1024, 1024, device="cuda:0", generator=torch.Generator("cuda:0").manual_seed(0))
    expected = (x @ x).cpu()
    stop = threading.Event()
    wrong: list[str] = []

    def compute() -> None:
        torch.cuda.set_device(0)
        with torch.cuda.stream(torch.cuda.Stream(0)):
            while not stop.is_set():
                if not torch.equal((x @ x).cpu(), expected):
                    wrong.append("PyTorch has computed something else")
                    return

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        for _ in range(5):
            second = session_on(model, 1)
            require(torch.cuda.current_device() == 0, "a new session has changed the current device")
            require_same(second.run(None, feeds), want, "the second device")
            require_same(run_on_device(second, feeds, want), want, "the second device, from its memory")
            require(torch.cuda.current_device() == 0, "a run has changed the current device")
            del second
            require(torch.cuda.current_device() == 0, "the end of a session has changed the current device")
    finally:
        stop.set()
        thread.join()
    require(not wrong, "".join(wrong))
    require(torch.equal((x @ x).cpu(), expected), "PyTorch computes something else")
    return "same bits on both devices, the current device is the caller's"


def alternate_devices() -> str:
    """Runs sessions of one model alternately on both devices, then one of them after the other is closed."""
    model = optimized("resnet50")
    before = [in_use(device) for device in range(2)]
    sessions = [session_on(model, device) for device in range(2)]
    held = [in_use(device) - before[device] for device in range(2)]
    require(min(held) > model.ByteSize() // 2, f"the weights are not on both devices: {held} bytes")
    inputs = [feeds_of(model, batch) for batch in (1, 5)]
    wanted = [sessions[0].run(None, feeds) for feeds in inputs]
    graphs = statistics_of("GraphoptMemory")["recordings"]
    for _ in range(3):
        for i, session in enumerate(sessions):
            for feeds, want in zip(inputs, wanted):
                require_same(run_on_device(session, feeds, want), want, f"device {i}")
    captured = statistics_of("GraphoptMemory")["recordings"] - graphs
    require(captured >= 4, f"{captured} captured graphs, not one for each device and batch")
    del sessions[0], session
    require(in_use(0) <= before[0], f"{in_use(0) - before[0]} bytes of the first device are still in use")
    for feeds, want in zip(inputs, wanted):
        require_same(sessions[0].run(None, feeds), want, "the second device alone")
        require_same(run_on_device(sessions[0], feeds, want), want, "the second device alone, from its memory")
    return f"{captured} captured graphs; {held[0] >> 20} and {held[1] >> 20} MiB held"


def wrong_device() -> str:
    """Binds tensors of the first device to a session on the second."""
    model = optimized("resnet18", small=True)
    places = [memory_of(session_on(model, device)) for device in range(2)]
    session = session_on(model, 1)
    feeds = feeds_of(model, 2)
    want = session.run(None, feeds)
    (name,), (output,) = feeds, session.get_outputs()

    def run(input_on: int, output_on: int) -> Any:
        binding = session.io_binding()
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(feeds[name], *places[input_on]))
        y = ort.OrtValue.ortvalue_from_shape_and_type(want[0].shape, np.float32, *places[output_on])
        binding.bind_ortvalue_output(output.name, y)
        session.run_with_iobinding(binding)
        return binding.copy_outputs_to_cpu()

    messages = []
    for input_on, output_on in ((0, 1), (1, 0)):
        try:
            run(input_on, output_on)
        except Exception as error:  # ONNX Runtime's exception classes have no public base
            messages.append(str(error).strip().splitlines()[-1])
        else:
            raise AssertionError(f"no error for an input on device {input_on} and an output on device {output_on}")
        require("device 0" in messages[-1] and "device 1" in messages[-1], messages[-1])
    require_same(run(1, 1), want, "on the right device afterwards")
    return "; ".join(messages)


def split_batch(name: str) -> str:
    """Compares a batch over all devices with a session on one, and times both."""
    batch = BATCHES[name]
    model = optimized(name)
    one, every = session_on(model, 0), DataParallel(model, log_severity_level=3)
    feeds = feeds_of(model, batch)
    wanted, got = one.run(None, feeds), every.run(None, feeds)
    error = max(relative_error(g, w) if np.isfinite(g).all() else np.inf for g, w in zip(got, wanted, strict=True))
    parts = {key: np.array_split(x, len(every.sessions)) for key, x in feeds.items()}
    pieces = [one.run(None, {key: x[i] for key, x in parts.items()}) for i in range(len(every.sessions))]
    require_same(got, [np.concatenate(piece) for piece in zip(*pieces, strict=True)], "the parts on one device")
    times = interleaved({"one": partial(one.run, None, feeds), "all": partial(every.run, None, feeds)})
    a, b = (1e3 * times[side].median for side in ("one", "all"))
    result = f"batch {batch}: one device {a:.1f} ms, all {b:.1f} ms, speedup {a / b:.2f}, error {error:.1e}"
    require(error <= LIMIT, result)
    require(a / b >= LEAST_SPEEDUP.get(name, 0.0), result)
    return result


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    load_vendor_libraries(torch)
    install_for_cuda()
    print(f"{device_count()} devices: {torch.cuda.get_device_name()}", flush=True)
    if device_count() < 2:
        return 1
    checks: dict[str, Callable[[], str]] = {
        "beside PyTorch": beside_pytorch,
        "alternate devices": alternate_devices,
        **{f"DataParallel, {name}": lambda name=name: split_batch(name) for name in BATCHES},  # type: ignore[misc]
        "wrong device": wrong_device,
    }
    failed = 0
    for name, check in checks.items():
        try:
            print(f"{name}: {check()}", flush=True)
        except Exception as error:  # the other checks still run
            failed += 1
            print(f"{name}: FAILED: {type(error).__name__}: {error}", flush=True)
    print(f"{len(checks)} checks, {failed} failures")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
