"""MatMulBf16 against ONNX Runtime's MatMul, products of two activations.

Both sides take turns in one process under ORT_ENABLE_ALL and are timed by the clock: the runtime's microseconds a call,
its GFLOP/s and ours, its time over ours by lower quartiles and medians, and whether `optimize` takes the product. A
shape is BATCHxMxKxN; with a T behind it B is stored as [N, K], and a Transpose, which becomes part of either side's
product, stands before it.

    python scripts/bench_matmul.py [--threads 1] [--repeats 30] [--only 12x512x64x512T ...]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import graphopt

# DeBERTa's scores and contexts, its relative positions, SAM's masks, windows of Swin, and what may not pay.
SHAPES = (
    "12x512x64x512T 12x512x512x64 12x128x64x128T 12x128x128x64 12x128x64x512T 12x512x64x1024T 1x512x512x512 "
    "1x1024x1024x1024 1x2048x512x2048T 8x4096x64x64 256x64x32x64T 256x64x64x32 1x64x256x64 1x4x32x65536 1x16x64x4096 "
    "12x32x64x32T 12x64x16x64 12x64x64x64T 64x32x32x32 12x16x64x512T"
).split()


def product(batch: int, M: int, K: int, N: int, transposed: bool) -> onnx.ModelProto:
    shapes = {"A": (batch, M, K), "B": (batch, N, K) if transposed else (batch, K, N), "Y": (batch, M, N)}
    a, b, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items())
    nodes = [helper.make_node("MatMul", ["A", "T" if transposed else "B"], ["Y"], "product")]
    if transposed:
        nodes.insert(0, helper.make_node("Transpose", ["B"], ["T"], "transpose", perm=[0, 2, 1]))
    graph = helper.make_graph(nodes, "product", [a, b], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def rounded(model: onnx.ModelProto, *, all_sites: bool) -> onnx.ModelProto:
    return graphopt.optimize(model, target="cpu", precision="bf16", all_sites=all_sites)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--only", nargs="*", default=SHAPES)
    arguments = parser.parse_args()
    print(f"onnxruntime {ort.__version__}, threads {arguments.threads}\n")
    print("| product | runtime, us | runtime, GFLOP/s | ours, GFLOP/s | lower quartile | median | taken |")
    print("|---|--:|--:|--:|--:|--:|---|")
    for shape in arguments.only:
        batch, M, K, N = (int(n) for n in shape.rstrip("T").split("x"))
        model = product(batch, M, K, N, shape.endswith("T"))
        taken = len(rounded(model, all_sites=False).functions) > 0
        sessions = [
            graphopt.session(m, ["CPUExecutionProvider"], intra_op_num_threads=arguments.threads, log_severity_level=3)
            for m in (model, rounded(model, all_sites=True))
        ]
        rng = np.random.default_rng(1)
        sizes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
        feeds = {name: rng.standard_normal(size, np.float32) for name, size in sizes.items()}
        times: list[list[float]] = [[], []]
        for i in range(arguments.repeats + 2):
            for each, seconds in zip(sessions, times, strict=True):
                start = time.perf_counter()
                each.run(None, feeds)
                if i >= 2:
                    seconds.append((time.perf_counter() - start) * 1e6)
        low, mid = ([sorted(t)[len(t) * part // 4] for t in times] for part in (1, 2))
        theirs, ours = (2e-3 * batch * M * K * N / t for t in low)
        print(
            f"| {shape} | {low[0]:.0f} | {theirs:.0f} | {ours:.0f} | {low[0] / low[1]:.2f} | {mid[0] / mid[1]:.2f} | "
            f"{'yes' if taken else 'no'} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
