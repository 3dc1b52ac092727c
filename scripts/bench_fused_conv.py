"""Chains of four equal convolutions on one thread: FusedConv, in float32 and in bfloat16, against ONNX Runtime's own.

    .venv-ort/bin/python scripts/bench_fused_conv.py

Original and ours run interleaved under ORT_ENABLE_ALL; times are lower quartiles of the process's own time. In a chain
the runtime keeps its blocked layout and converts at both ends only.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import graphopt

REPEATS = 21
LENGTH = 4
# Channels, size, kernel, group
SHAPES = (
    (64, 56, 1, 1),
    (256, 28, 1, 1),
    (512, 14, 1, 1),
    (512, 7, 1, 1),
    (32, 112, 3, 1),
    (64, 56, 3, 1),
    (128, 28, 3, 1),
    (256, 14, 3, 1),
    (144, 56, 3, 144),
    (192, 28, 5, 192),
    (576, 14, 3, 576),
    (64, 56, 3, 8),
)
ACTIVATIONS = {
    "Relu": "y{i} = Relu (c{i})",
    "Silu": "s{i} = Sigmoid (c{i}) y{i} = Mul (c{i}, s{i})",
    "HardSwish": "y{i} = HardSwish (c{i})",
    "Gelu": "y{i} = Gelu (c{i})",
}


def chain(C: int, size: int, kernel: int, group: int, activation: str) -> onnx.ModelProto:
    nodes = "\n".join(
        f"c{i} = Conv <pads = [{', '.join([str(kernel // 2)] * 4)}], group = {group}> (y{i - 1}, W{i})\n"
        + ACTIVATIONS[activation].format(i=i)
        for i in range(1, LENGTH + 1)
    )
    shape = f"float[1, {C}, {size}, {size}]"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 20]>\ng ({shape} y0) => ({shape} y{LENGTH}) {{\n{nodes}\n}}'
    )
    rng = np.random.default_rng(0)
    for i in range(1, LENGTH + 1):
        w = rng.standard_normal((C, C // group, kernel, kernel)) / np.sqrt(C // group * kernel * kernel)
        model.graph.initializer.append(onnx.numpy_helper.from_array(w.astype(np.float32), f"W{i}"))
    return model


def session(model: onnx.ModelProto) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.register_custom_ops_library(str(graphopt.library_path()))
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def microseconds(models: list[onnx.ModelProto], feeds: dict[str, Any]) -> list[float]:
    """The time of one convolution of each chain."""
    sessions = [session(model) for model in models]
    times: list[list[float]] = [[] for _ in models]
    for _ in range(REPEATS):
        for one, seconds in zip(sessions, times, strict=True):
            start = time.process_time()
            one.run(None, feeds)
            seconds.append(time.process_time() - start)
    return [1e6 * sorted(t)[len(t) // 4] / LENGTH for t in times]


def main() -> None:
    print("| channels, size, kernel, group | activation | runtime, us | float32 | bfloat16 |\n|---|---|--:|--:|--:|")
    for C, size, kernel, group in SHAPES:
        for activation in ACTIVATIONS:
            model = chain(C, size, kernel, group, activation)
            options: dict[str, Any] = {"target": "cpu", "all_sites": True}
            single, _ = graphopt.optimize(model, skip=["winograd_conv"], **options)
            brain, _ = graphopt.optimize(model, skip=["winograd_conv"], precision="bf16", **options)
            feeds = {"y0": np.random.default_rng(1).standard_normal((1, C, size, size), np.float32)}
            theirs, ours, rounded = microseconds([model, single, brain], feeds)
            print(
                f"| {C}, {size}x{size}, {kernel}x{kernel}, {group} | {activation} | {theirs:.0f} "
                f"| {theirs / ours:.2f}x | {theirs / rounded:.2f}x |",
                flush=True,
            )


if __name__ == "__main__":
    main()
