"""Detects models that spend more on control flow than they gain on a device."""

from __future__ import annotations

import onnx

from graphopt.graph.messages import all_nodes
from graphopt.graph.operators.traits import CONTROL_FLOW

# Operators with enough work for a device. Other kernels take less time than their launch.
DEVICE_WORK = frozenset(
    "Attention Conv ConvInteger ConvTranspose Einsum GRU Gemm LSTM MatMul MatMulInteger QLinearConv QLinearMatMul "
    "RNN".split()
)


def why_control_flow_dominates(model: onnx.ModelProto) -> str:
    """Returns why a model runs on the CPU by default; "" if control flow is no reason.

    The host executes each If, Loop and Scan and enters a separate session state for its body, which takes tens of
    microseconds; a kernel launch takes 5 microseconds. A model with more of these nodes than matrix multiplications and
    convolutions is therefore faster on the CPU. silero_vad has 25 control-flow nodes, and 16 matrix multiplications and
    convolutions; on the CPU it is three times as fast as with 18 of its nodes on an H200.
    """
    control_flow = layers = 0
    for node in all_nodes(model.graph.node):
        control_flow += node.op_type in CONTROL_FLOW and node.domain in ("", "ai.onnx")
        # An operator of another domain usually replaces several nodes.
        layers += node.op_type in DEVICE_WORK or node.domain not in ("", "ai.onnx")
    if control_flow <= layers:
        return ""
    return (
        f"it has more If, Loop and Scan nodes ({control_flow}) than matrix multiplications and convolutions ({layers})"
    )
