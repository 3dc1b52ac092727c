"""InvertedResidual against ONNX Runtime's three convolutions: blocks in a chain, on one thread.

Each model has a 1x1 convolution of the runtime's at both ends, so that what turns its blocked layout into planes and
back counts. Lower quartiles of interleaved runs, by the process's own time: the runtime's time over ours.

    python scripts/bench_inverted_residual.py [--repeats 30] [--activation Silu]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import graphopt

# Channels of X, between and of Y, height and width of X, kernel, stride; how many blocks.
SHAPES = [
    (16, 96, 24, 112, 3, 2, 1),
    (24, 144, 24, 56, 3, 1, 2),
    (32, 192, 32, 28, 3, 1, 2),
    (64, 384, 64, 14, 3, 1, 2),
    (96, 576, 160, 14, 3, 2, 1),
    (160, 960, 160, 7, 3, 1, 2),
    (24, 72, 24, 80, 3, 1, 1),
    (16, 16, 16, 56, 3, 1, 1),
    (8, 32, 8, 40, 3, 1, 2),
    (16, 64, 16, 20, 3, 1, 2),
    (16, 96, 16, 10, 3, 1, 2),
    (32, 64, 32, 7, 3, 1, 2),
    (40, 120, 40, 28, 5, 1, 2),
    (96, 576, 96, 14, 5, 1, 2),
    (24, 144, 40, 56, 5, 2, 1),
    (24, 144, 24, 56, 5, 1, 1),
    (24, 144, 24, 56, 7, 1, 1),
]


def block_model(
    C: int,
    M: int,
    O: int,  # noqa: E741
    H: int,
    kernel: int,
    stride: int,
    count: int,
    activation: str,
) -> onnx.ModelProto:
    """So many blocks, with residual sums where shapes allow."""
    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def conv(x: str, outputs: int, inputs: int, k: int = 1, s: int = 1, group: int = 1) -> str:
        name = f"c{len(nodes)}"
        w = rng.normal(size=(outputs, inputs // group, k, k)) / np.sqrt(inputs // group * k * k)
        weights.append(numpy_helper.from_array(w.astype(np.float32), f"{name}_W"))
        weights.append(numpy_helper.from_array(rng.normal(size=outputs).astype(np.float32), f"{name}_B"))
        window: dict[str, Any] = {"pads": [k // 2] * 4, "strides": [s, s], "group": group}
        nodes.append(helper.make_node("Conv", [x, f"{name}_W", f"{name}_B"], [name], name, **window))
        return name

    def act(x: str) -> str:
        name = f"a{len(nodes)}"
        if activation == "Silu":
            nodes.append(helper.make_node("Sigmoid", [x], [f"{name}_s"]))
            nodes.append(helper.make_node("Mul", [x, f"{name}_s"], [name]))
        elif activation == "Clip":
            nodes.append(helper.make_node("Clip", [x, "low", "high"], [name]))
        else:
            nodes.append(helper.make_node(activation, [x], [name]))
        return name

    weights += [numpy_helper.from_array(np.array(v, np.float32), n) for n, v in (("low", 0), ("high", 6))]
    y = conv("x", C, C)
    for _ in range(count):
        x = y
        y = conv(act(conv(act(conv(x, M, C)), M, M, kernel, stride, M)), O, M)
        if C == O and stride == 1:
            nodes.append(helper.make_node("Add", [x, y], [f"sum{len(nodes)}"]))
            y = nodes[-1].output[0]
    y = conv(y, O, O)
    x_info = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, C, H, H])
    y_info = helper.make_tensor_value_info(y, onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "blocks", [x_info], [y_info], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.register_custom_ops_library(str(graphopt.library_path()))
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--activation", default="Clip", choices=("Clip", "Relu", "Silu", "HardSwish"))
    arguments = parser.parse_args()
    print(f"onnxruntime {ort.__version__}, {arguments.activation}")
    for shape in SHAPES:
        model = block_model(*shape, arguments.activation)
        ours, _ = graphopt.optimize(model, target="cpu", all_sites=True, skip=("fused_conv",))
        taken = sum(node.op_type.startswith("InvertedResidual") for node in ours.graph.node)
        assert taken == shape[-1], f"{taken} of {shape[-1]} blocks are ours"
        sessions = [session(model), session(ours)]
        x = {"x": np.random.default_rng(1).normal(size=(1, shape[0], shape[3], shape[3])).astype(np.float32)}
        times: list[list[float]] = [[], []]
        for i in range(arguments.repeats + 3):
            for each, taken_times in zip(sessions, times, strict=True):
                start = time.process_time()
                each.run(None, x)
                if i >= 3:
                    taken_times.append((time.process_time() - start) * 1e6)
        low, mid = ([sorted(t)[len(t) * part // 4] for t in times] for part in (1, 2))
        print(f"{shape}: {low[0]:.0f} us, {low[0] / low[1]:.2f}x, medians {mid[0] / mid[1]:.2f}x", flush=True)


if __name__ == "__main__":
    main()
