"""Whether a model waits for its conditions more often than it has work for a device."""

from __future__ import annotations

import onnx

from graphopt.graph.messages import all_nodes
from graphopt.graph.operators.traits import CONTROL_FLOW

# What a device is for; whatever else a model computes takes less time there than its launch.
DEVICE_WORK = frozenset(
    "Attention Conv ConvInteger ConvTranspose Einsum GRU Gemm LSTM MatMul MatMulInteger QLinearConv QLinearMatMul "
    "RNN".split()
)


def why_conditions_decide(model: onnx.ModelProto) -> str:
    """Why the model stays on the CPU unless a device is asked for; "" where conditions are no reason.

    Each If, Loop and Scan is walked by the host, which enters a session of its own for the body: tens of microseconds
    beside a device that needs 5 for a launch. A model with more of them than products (silero_vad: 25 and 16) is faster
    on the CPU: three times as fast as with 18 of its nodes on an H200.
    """
    conditions = products = 0
    for node in all_nodes(model.graph.node):
        conditions += node.op_type in CONTROL_FLOW and node.domain in ("", "ai.onnx")
        # Operators of other domains do the work of several nodes.
        products += node.op_type in DEVICE_WORK or node.domain not in ("", "ai.onnx")
    return f"it has {conditions} conditions and {products} products" if conditions > products else ""
