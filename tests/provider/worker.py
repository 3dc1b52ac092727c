"""Runs sessions on the provider in a worker process, because a process chooses its device only once.

The device is the CPU, with the GPU kernels compiled for it. With GRAPHOPT_TEST_ON_GPU=1 it is this machine's GPU.
"""

from __future__ import annotations

import ctypes
import json
import os
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import helper, numpy_helper

from graphopt.ops import DOMAIN
from graphopt.runtime.discovery import CPU, library_path
from graphopt.runtime.sessions import configure
from tests.hip.harness import build_for_tests

Array = npt.NDArray[Any]
PROVIDER = "GraphoptExecutionProvider"


class _HeapStatistics(ctypes.Structure):
    """struct mallinfo2 of glibc 2.33 and newer."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


def heap_bytes() -> int | None:
    """Returns the bytes in blocks of malloc that are not freed; None without glibc 2.33.

    A leak increases them. Free blocks that glibc keeps for the threads increase only the resident memory.
    """
    try:
        statistics = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return None
    statistics.restype = _HeapStatistics
    found = statistics()
    return int(found.uordblks + found.hblkhd)


def kernels_on_the_cpu() -> str:
    """Builds the GPU kernels for the CPU and returns the path of the library."""
    folder = build_for_tests("hip_on_cpu_32")
    return str(folder / "libhip_on_cpu_32.so")


def start_worker() -> ProcessPoolExecutor:
    """Starts a process with the provider."""
    kernels = "" if os.environ.get("GRAPHOPT_TEST_ON_GPU") == "1" else kernels_on_the_cpu()
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_enter, initargs=(kernels,))


def _enter(kernels: str) -> None:
    if kernels:
        os.environ["GRAPHOPT_HOST_KERNELS"] = kernels
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()
    import onnxruntime as ort

    ort.register_execution_provider_library("graphopt", str(library_path()))


@dataclass
class Outcome:
    """Outputs of a run, and the number of nodes of each kind by provider."""

    outputs: list[Array]
    placement: dict[str, Counter[str]] = field(default_factory=dict)

    def on_device(self, op: str) -> int:
        return self.placement.get(PROVIDER, Counter())[op]

    @property
    def elsewhere(self) -> Counter[str]:
        """Returns the nodes on other providers, and copies."""
        found: Counter[str] = Counter()
        for provider, ops in self.placement.items():
            for op, n in ops.items():
                if provider != PROVIDER or op.startswith("Memcpy"):
                    found[op] += n
        return found


def new_session(
    model: bytes,
    options: Mapping[str, str] | None = None,
    profile: str = "",
    *,
    devices: int = 1,
    assignment: bool = False,
    optimize: bool = False,
) -> Any:
    import onnxruntime as ort

    session_options = ort.SessionOptions()
    session_options.log_severity_level = 3
    if not optimize:  # ONNX Runtime's optimizers would fold and fuse the tested nodes
        session_options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session_options.intra_op_num_threads = 1
    if profile:
        session_options.enable_profiling = True
        session_options.profile_file_prefix = profile
    configure(session_options, [CPU], model=model)
    if assignment or profile:
        session_options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    if devices:
        found = [d for d in ort.get_ep_devices() if d.ep_name == PROVIDER]
        # The CPU would be estimated to be faster for most of the tests' small graphs.
        session_options.add_provider_for_devices(found[:devices], {"min_nodes": "2"} | dict(options or {}))
    return ort.InferenceSession(model, session_options)


def run(model: bytes, feeds: Mapping[str, Array], options: Mapping[str, str] | None = None) -> Outcome:
    """Runs a session twice; returns the outputs and the placement of its nodes."""
    with tempfile.TemporaryDirectory() as folder:
        session = new_session(model, options, str(Path(folder) / "profile"))
        outputs = session.run(None, dict(feeds))
        again = session.run(None, dict(feeds))
        for first, second in zip(outputs, again, strict=True):
            np.testing.assert_array_equal(first, second)
        placement = placement_of(session)
    for ops in placement.values():
        for op in ops:
            ops[op] //= 2
    return Outcome(list(outputs), placement)


def placement_of(session: Any) -> dict[str, Counter[str]]:
    """Ends the profile and returns how often each provider ran each kind of node.

    A region counts as its nodes, so the session must have recorded the assignment of nodes to providers.
    """
    placement: dict[str, Counter[str]] = {}
    events = json.loads(Path(session.end_profiling()).read_text())
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            ops = placement.setdefault(event["args"]["provider"], Counter())
            ops[event["args"]["op_name"]] += 1
    ours = placement.get(PROVIDER, Counter())
    if any(op.startswith(PROVIDER) for op in ours):
        runs = sum(event.get("name") == "model_run" for event in events)
        parts = session.get_provider_graph_assignment_info()
        given = Counter(n.op_type for part in parts if part.ep_name == PROVIDER for n in part.get_nodes())
        copies = {op: n for op, n in ours.items() if op.startswith("Memcpy")}
        placement[PROVIDER] = Counter({op: n * runs for op, n in given.items()} | copies)
    return placement


def model_of(
    nodes: Sequence[Any],
    inputs: Mapping[str, Array],
    outputs: Sequence[str],
    constants: Mapping[str, Array] | None = None,
    opset: int = 17,
    out_types: Mapping[str, int] | None = None,
) -> bytes:
    """Returns a model of these nodes; inputs have the shapes and types of the given arrays."""
    element = {k: helper.np_dtype_to_tensor_dtype(v.dtype) for k, v in inputs.items()}
    first = next(iter(element.values()))
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(k, element[k], list(v.shape)) for k, v in inputs.items()],
        [helper.make_tensor_value_info(name, (out_types or {}).get(name, first), None) for name in outputs],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    serialized: bytes = helper.make_model(graph, opset_imports=imports, ir_version=9).SerializeToString()
    return serialized
