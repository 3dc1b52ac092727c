"""Linear against ONNX Runtime's Gemm, weight by weight, on one thread.

Each model has a few layers of the same input with weights of their own, which come from memory as they do in a network.
Both sides take turns in one process under ORT_ENABLE_ALL and are timed by its own processor time: the runtime's
microseconds a layer, its time over ours by lower quartiles and medians, and whether `optimize` takes the layer.

    python scripts/bench_linear.py [--repeats 15] [--only 128x3072x768 ...]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import graphopt

# Rows of X, its columns, columns of the weight.
SHAPES = (
    "128x3072x768 197x3072x768 512x3072x768 256x4096x1024 512x2048x512 64x3072x768 32x3072x768 16x3072x768 8x3072x768 "
    "4x3072x768 1x3072x768 1x2048x1000 1x4096x4096 128x768x3072 197x768x3072 512x768x3072 16x768x3072 "
    "8x768x3072 1x768x3072 50x1024x512 1024x1280x320 128x768x768 197x768x768 512x768x768 197x768x2304 257x1024x1024 "
    "128x1024x1024 4096x768x768 77x1280x5120 77x5120x1280"
).split()
WEIGHTS = 96 << 20  # bytes of all layers: more than caches hold
MOST_LAYERS = 12


def layers(rows: int, K: int, N: int) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    count = max(2, min(MOST_LAYERS, WEIGHTS // (4 * K * N)))
    nodes, weights, outputs = [], [], []
    for i in range(count):
        weights.append(numpy_helper.from_array(rng.standard_normal((K, N), np.float32) / np.float32(K**0.5), f"W{i}"))
        weights.append(numpy_helper.from_array(rng.standard_normal(N, np.float32), f"b{i}"))
        nodes.append(helper.make_node("Gemm", ["X", f"W{i}", f"b{i}"], [f"Y{i}"], f"layer{i}"))
        outputs.append(helper.make_tensor_value_info(f"Y{i}", onnx.TensorProto.FLOAT, (rows, N)))
    x = helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, (rows, K))
    graph = helper.make_graph(nodes, "layers", [x], outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.register_custom_ops_library(str(graphopt.library_path()))
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def linear(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same with every Gemm as Linear."""
    ours = onnx.ModelProto()
    ours.CopyFrom(model)
    for node in ours.graph.node:
        node.op_type, node.domain = "Linear", "com.graphopt"
    ours.opset_import.append(helper.make_opsetid("com.graphopt", 1))
    return ours


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--only", nargs="*", default=SHAPES)
    arguments = parser.parse_args()
    print(
        f"onnxruntime {ort.__version__}\n\n| rows | K | N | runtime, us | GFLOP/s | lower quartile | median | taken |"
    )
    print("|--:|--:|--:|--:|--:|--:|--:|---|")
    for shape in arguments.only:
        rows, K, N = (int(n) for n in shape.split("x"))
        model = layers(rows, K, N)
        count = len(model.graph.node)
        taken = any(node.op_type == "Linear" for node in graphopt.optimize(model, target="cpu")[0].graph.node)
        feeds = {"X": np.random.default_rng(1).standard_normal((rows, K), np.float32)}
        times: list[list[float]] = [[], []]
        sessions = [session(model), session(linear(model))]
        for i in range(arguments.repeats + 2):
            for each, seconds in zip(sessions, times, strict=True):
                start = time.process_time()
                each.run(None, feeds)
                if i >= 2:
                    seconds.append((time.process_time() - start) * 1e6 / count)
        low, mid = ([sorted(t)[len(t) * part // 4] for t in times] for part in (1, 2))
        rate = 2e-3 * rows * K * N / low[0]
        print(
            f"| {rows} | {K} | {N} | {low[0]:.0f} | {rate:.0f} | {low[0] / low[1]:.2f} | {mid[0] / mid[1]:.2f} | "
            f"{'yes' if taken else 'no'} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
