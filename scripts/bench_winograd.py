"""WinogradConv against ONNX Runtime's own convolution, shape by shape.

    python scripts/bench_winograd.py [--threads N] [--batch N] [--shapes 64x56x64 ...] [--repeats N] [--library PATH]

Each row is a chain of 3x3 Conv+Relu nodes under ORT_ENABLE_ALL, so that ONNX Runtime keeps its blocked layout from one
to the next, against the same chain of WinogradConvRelu; runs are interleaved in one process. One thread is timed by
its own processor time, which other processes disturb least, several by the clock. C x H x M is a convolution
from C to M channels on H x H pixels. Prints a Markdown table with the time of one convolution, its effective rate
(floating-point operations of the direct convolution over time) and the error against float64, relative to the root
mean square. docs/measurements/winograd_cpu.md has the results that the cost models rest on.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from graphopt.runtime.sessions import library_path

SHAPES = (
    "64x224x64 64x112x64 128x112x128 64x56x64 256x56x256 128x28x128 512x28x512 256x14x256 512x14x512 512x7x512 "
    "320x64x320 640x32x640 1280x16x1280 3x224x64 8x112x8 16x112x16 32x112x32 32x56x32 32x28x32 64x28x64 64x14x64 "
    "128x14x128 128x7x128 256x7x256"
).split()
CHAIN = 4


def chain(C: int, H: int, M: int, N: int, winograd: bool) -> tuple[bytes, list[np.ndarray]]:
    """The model and its weights. Channels go C, M, C, M; from fewer than 8 input channels there is one node."""
    generator = np.random.default_rng(0)
    nodes, initializers, weights = [], [], []
    name, channels = "x", C
    for i in range(1 if C < 8 else CHAIN):
        outputs = M if channels == C else C
        w = generator.standard_normal((outputs, channels, 3, 3)) * np.sqrt(2 / (9 * channels))
        weights.append(w.astype(np.float32))
        initializers.append(numpy_helper.from_array(weights[-1], f"w{i}"))
        initializers.append(numpy_helper.from_array(np.zeros(outputs, np.float32), f"b{i}"))
        inputs = [name, f"w{i}", f"b{i}"]
        if winograd:
            node = helper.make_node("WinogradConvRelu", inputs, [f"y{i}"], domain="com.graphopt", pads=[1, 1, 1, 1])
            nodes.append(node)
        else:
            nodes.append(helper.make_node("Conv", inputs, [f"c{i}"], pads=[1, 1, 1, 1]))
            nodes.append(helper.make_node("Relu", [f"c{i}"], [f"y{i}"]))
        name, channels = f"y{i}", outputs
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [N, C, H, H])],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [N, channels, H, H])],
        initializers,
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.graphopt", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString(), weights


def reference(x: np.ndarray, weights: list[np.ndarray]) -> np.ndarray:
    """The chain in float64."""
    y = x.astype(np.float64)
    for w in weights:
        padded = np.pad(y, ((0, 0), (0, 0), (1, 1), (1, 1)))
        H, W = y.shape[2:]
        y = np.zeros((y.shape[0], w.shape[0], H, W))
        for i in range(3):
            for j in range(3):
                window = padded[:, :, i : i + H, j : j + W]
                y += np.einsum("mc,nchw->nmhw", w[:, :, i, j].astype(np.float64), window, optimize=True)
        y = np.maximum(y, 0)
    return y


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--shapes", nargs="+", default=SHAPES)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--library", type=Path)
    arguments = parser.parse_args()
    library = arguments.library or library_path()
    now = time.thread_time if arguments.threads == 1 else time.perf_counter

    print(f"onnxruntime {onnxruntime.__version__}, {arguments.threads} thread(s), batch {arguments.batch}\n")
    print("| C x H x M | ORT ms | ours ms | ORT GFLOP/s | ours GFLOP/s | ratio of medians | of minima | error |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for shape in arguments.shapes:
        C, H, M = (int(n) for n in shape.split("x"))
        runs = []
        for winograd in (False, True):
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = arguments.threads
            options.register_custom_ops_library(str(library))
            model, weights = chain(C, H, M, arguments.batch, winograd)
            session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
            x = np.random.default_rng(1).standard_normal((arguments.batch, C, H, H)).astype(np.float32)
            binding = session.io_binding()
            binding.bind_cpu_input("x", x)
            binding.bind_output(session.get_outputs()[0].name, "cpu")
            runs.append((session, binding))
        times: list[list[float]] = [[], []]
        for repeat in range(arguments.repeats + 2):
            for kind, (session, binding) in enumerate(runs):
                start = now()
                session.run_with_iobinding(binding)
                if repeat >= 2:
                    times[kind].append((now() - start) / len(weights))
        y = runs[1][1].copy_outputs_to_cpu()[0]
        flop = 2 * 9 * C * M * H * H * arguments.batch
        error = "-"
        if flop < 1e9:
            expected = reference(x, weights)
            error = f"{np.abs(y - expected).max() / np.sqrt((expected**2).mean()):.1e}"
        ort, ours = (statistics.median(t) for t in times)
        print(
            f"| {shape} | {ort * 1e3:.3f} | {ours * 1e3:.3f} | {flop / ort / 1e9:.0f} | {flop / ours / 1e9:.0f} "
            f"| {ort / ours:.2f} | {min(times[0]) / min(times[1]):.2f} | {error} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
