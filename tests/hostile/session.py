"""The sessions of the workers: without what the runtime would say, and with no more threads than a test needs."""

from __future__ import annotations

from typing import Any

import onnx
import onnxruntime as ort

from graphopt.runtime.discovery import CPU, library_path
from graphopt.runtime.sessions import configure

PROVIDER = "GraphoptExecutionProvider"


def register_provider() -> None:
    """Once in the process that opens sessions: the library refuses to be used in one that was forked behind it."""
    ort.register_execution_provider_library("graphopt", str(library_path()))


def open_session(model: onnx.ModelProto, *, library: bool, provider: bool, threads: int, optimized: bool) -> Any:
    """A session on our provider, which takes every node that it can, or on the CPU.

    Args:
        model: what to run.
        library: whether nodes of our domain run by our kernels.
        provider: whether it runs on our provider, which is registered.
        threads: how many compute a node.
        optimized: with the runtime's optimizations, which compute nodes of constants on the CPU.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if library:
        configure(options, [CPU], model=model)
    if not provider:
        return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    devices = [d for d in ort.get_ep_devices() if d.ep_name == PROVIDER]
    options.add_provider_for_devices(devices[:1], {"min_nodes": "1"})
    return ort.InferenceSession(model.SerializeToString(), options)
