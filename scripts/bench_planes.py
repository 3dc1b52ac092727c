"""AxisSoftmax and MaxPoolPlanes against ONNX Runtime's Softmax and MaxPool, one node each, on one thread.

    .venv-ort/bin/python scripts/bench_planes.py

Both run interleaved; times are the smallest and the lower quartile of the clock. For a single pool the runtime turns
its input into blocks of channels and the result back, as it does between nodes of ours.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import graphopt
from graphopt.ops import DOMAIN

REPEATS = 41
# Shape, axis
SOFTMAXES = (
    ((1, 16, 4, 2100), 1), ((1, 21, 64, 64), 1), ((1, 21, 256, 256), 1), ((1, 2, 160, 160), 1), ((1, 80, 20, 20), 1),
    ((1, 150, 32, 32), 1), ((4, 512, 64), 1), ((2, 8, 128, 128), 2), ((2, 12, 197, 197), 2), ((1, 10, 10, 10), 1),
    ((1, 512, 32), 1), ((1, 16, 16), 1), ((1, 128, 128, 8), 2), ((1, 1000, 4), 1),
)  # fmt: skip
# Shape, window, stride, pad
POOLS = (
    ((1, 64, 224, 224), 2, 2, 0), ((1, 32, 208, 208), 2, 2, 0), ((1, 64, 104, 104), 2, 2, 0),
    ((1, 128, 52, 52), 2, 2, 0), ((1, 256, 26, 26), 2, 2, 0), ((1, 24, 56, 56), 2, 2, 0), ((1, 16, 8, 8), 2, 2, 0),
    ((1, 64, 112, 112), 3, 2, 1), ((1, 512, 13, 13), 5, 1, 2), ((1, 512, 13, 13), 2, 1, 0),
)  # fmt: skip


def session(op: str, attributes: Mapping[str, Any], shape: tuple[int, ...]) -> Any:
    domain = DOMAIN if op in graphopt.ops.OPS else ""
    node = helper.make_node(op, ["x"], ["y"], domain=domain, **attributes)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * len(shape))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets, ir_version=8)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.register_custom_ops_library(str(graphopt.library_path()))
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def race(label: str, theirs: str, ours: str, attributes: Mapping[str, Any], shape: tuple[int, ...]) -> None:
    """Prints one row: microseconds of both, and how many times as long the runtime takes."""
    feeds = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    sessions = [session(op, attributes, shape) for op in (theirs, ours)]
    want, got = (s.run(None, feeds)[0] for s in sessions)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)
    times: list[list[float]] = [[], []]
    for _ in range(REPEATS):
        for seconds, run in zip(times, sessions, strict=True):
            start = time.perf_counter()
            run.run(None, feeds)
            seconds.append(time.perf_counter() - start)
    (a, b), (c, d) = ((min(s), sorted(s)[REPEATS // 4]) for s in times)
    size = "x".join(map(str, shape))
    print(f"| {size}, {label} | {a * 1e6:.0f} | {c * 1e6:.0f} | {a / c:.2f} | {b / d:.2f} |", flush=True)


def main() -> None:
    print(f"onnxruntime {ort.__version__}\n| | runtime, us | ours, us | of the smallest | of the quartiles |")
    print("|---|--:|--:|--:|--:|")
    for shape, axis in SOFTMAXES:
        race(f"Softmax over axis {axis}", "Softmax", "AxisSoftmax", {"axis": axis}, shape)
    for shape, window, stride, pad in POOLS:
        both = {"kernel_shape": [window] * 2, "strides": [stride] * 2, "pads": [pad] * 4, "dilations": [1, 1]}
        race(f"MaxPool {window}x{window}, stride {stride}", "MaxPool", "MaxPoolPlanes", both, shape)


if __name__ == "__main__":
    main()
