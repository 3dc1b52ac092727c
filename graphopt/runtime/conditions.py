"""Whether a model waits for its conditions more often than it has work for a device."""

from __future__ import annotations

import os
from collections.abc import Iterator

import onnx
from google.protobuf.message import DecodeError

from graphopt.graph.messages import bodies

CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})
# What a device is for; whatever else a model computes takes less time there than its launch.
DEVICE_WORK = frozenset(
    "Attention Conv ConvInteger ConvTranspose Einsum GRU Gemm LSTM MatMul MatMulInteger QLinearConv QLinearMatMul "
    "RNN".split()
)
# A larger model has work enough, and is not read twice for this.
MOST_BYTES = 16 << 20


def why_conditions_decide(model: str | bytes) -> str:
    """Why the model stays on the CPU unless a device is asked for; "" where conditions are no reason.

    Each If, Loop and Scan is walked by the host, which enters a session of its own for the body: tens of microseconds
    beside a device that needs 5 for a launch. A model with more of them than products (silero_vad: 25 and 16) is faster
    on the CPU: three times as fast as with 18 of its nodes on an H200.

    Args:
        model: a path, or a serialized model; what is neither is left to the runtime.
    """
    try:
        if (len(model) if isinstance(model, bytes) else os.path.getsize(model)) > MOST_BYTES:
            return ""
        proto = (
            onnx.load_model_from_string(model)
            if isinstance(model, bytes)
            else onnx.load(model, load_external_data=False)
        )
    except (DecodeError, OSError):
        return ""
    conditions = products = 0
    for node in _nodes(proto.graph):
        conditions += node.op_type in CONTROL_FLOW and node.domain in ("", "ai.onnx")
        # Operators of other domains do the work of several nodes.
        products += node.op_type in DEVICE_WORK or node.domain not in ("", "ai.onnx")
    return f"it has {conditions} conditions and {products} products" if conditions > products else ""


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for body in bodies(node):
            yield from _nodes(body)
