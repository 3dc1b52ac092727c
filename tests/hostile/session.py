"""Sessions for the workers, without log output and with few threads."""

from __future__ import annotations

from typing import Any

import onnx
import onnxruntime as ort

from graphopt.runtime.discovery import CPU, library_path
from graphopt.runtime.sessions import configure

PROVIDER = "GraphoptExecutionProvider"


def register_provider() -> None:
    """Registers the provider. Call it in the process that opens sessions: the library does not work after a fork."""
    ort.register_execution_provider_library("graphopt", str(library_path()))


def open_session(model: onnx.ModelProto, *, library: bool, provider: bool, threads: int, optimized: bool) -> Any:
    """Opens a session on our provider, which claims every supported node, or on the CPU provider.

    Args:
        model: the model to run.
        library: whether to register our custom operators.
        provider: whether to use our provider, which must be registered.
        threads: intra-op threads.
        optimized: whether to use ONNX Runtime's optimizations, which compute constant nodes on the CPU.
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
