"""Times operators of com.microsoft on one thread of a CPU, as they are and as our passes write them.

    .venv-ort/bin/python scripts/bench_contrib.py

Interleaved medians of ONNX Runtime with all its optimizations, in ms, and the ratio; above 1 ours is faster. The nodes
have sizes of BERT-base, GPT-2 and ResNet-50. docs/measurements/contrib_cpu.md holds what was measured.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime as ort

import graphopt
from graphopt.ops.schema import Array
from graphopt.runtime.sessions import library_path

rng = np.random.default_rng(0)
HEADER = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>\n'
B, S, D = 1, 128, 768


def draw(*shape: int) -> Array:
    return (rng.normal(size=shape) * 0.1).astype(np.float32)


X = f"float[{B}, {S}, {D}]"
NORM = {"g": draw(D), "b": draw(D)}
QKV = f"{X} q, {X} k, {X} v"


def rotary(rows: int, inputs: str) -> tuple[str, Mapping[str, Array]]:
    """Of queries, or of queries and keys, which share their angles."""
    kind = f"float[{B}, {rows}, {D}]"
    given, outputs = ", ".join(f"{kind} {x}" for x in inputs), ", ".join(f"{kind} {x}2" for x in inputs)
    nodes = " ".join(f"{x}2 = com.microsoft.RotaryEmbedding<num_heads=12>({x}, p, c, s)" for x in inputs)
    text = f"g ({given}, int64[{B}, {rows}] p) => ({outputs}) {{ {nodes} }}"
    return text, {"c": draw(1024, 32), "s": draw(1024, 32)}


CASES: Mapping[str, tuple[str, Mapping[str, Array]]] = {
    "SkipLayerNormalization": (
        f"g ({X} x, {X} r) => ({X} y) {{ y = com.microsoft.SkipLayerNormalization(x, r, g, b) }}",
        NORM,
    ),
    "SkipSimplifiedLayerNormalization": (
        f"g ({X} x, {X} r) => ({X} y) {{ y = com.microsoft.SkipSimplifiedLayerNormalization(x, r, g) }}",
        {"g": draw(D)},
    ),
    "SimplifiedLayerNormalization": (
        f"g ({X} x) => ({X} y) {{ y = SimplifiedLayerNormalization<axis=-1>(x, g) }}",
        {"g": draw(D)},
    ),
    "Gelu": (f"g ({X} x) => ({X} y) {{ y = com.microsoft.Gelu(x) }}", {}),
    "FastGelu": (f"g ({X} x) => ({X} y) {{ y = com.microsoft.FastGelu(x) }}", {}),
    "QuickGelu": (f"g ({X} x) => ({X} y) {{ y = com.microsoft.QuickGelu(x) }}", {}),
    "BiasGelu": (f"g ({X} x) => ({X} y) {{ y = com.microsoft.BiasGelu(x, c) }}", {"c": draw(D)}),
    "MultiHeadAttention S=128": (
        f"g ({QKV}) => ({X} y) {{ y = com.microsoft.MultiHeadAttention<num_heads=12>(q, k, v) }}",
        {},
    ),
    "MultiHeadAttention S=512": (
        f"g ({QKV}) => ({X} y) {{ y = com.microsoft.MultiHeadAttention<num_heads=12>(q, k, v) }}".replace("128", "512"),
        {},
    ),
    "Attention S=128": (
        f"g ({X} x) => ({X} y) {{ y = com.microsoft.Attention<num_heads=12>(x, w, c) }}",
        {"w": draw(D, 3 * D), "c": draw(3 * D)},
    ),
    "FusedMatMul": (
        f"g ({X} x) => (float[1, 128, 3072] y) {{ y = com.microsoft.FusedMatMul<transB=1, alpha=0.5>(x, w) }}",
        {"w": draw(3072, D)},
    ),
    "FusedConv 3x3": (
        "g (float[1, 64, 56, 56] x) => (float[1, 64, 56, 56] y) {"
        ' y = com.microsoft.FusedConv<pads=[1, 1, 1, 1], kernel_shape=[3, 3], activation="Relu">(x, w, c) }',
        {"w": draw(64, 64, 3, 3), "c": draw(64)},
    ),
    "RotaryEmbedding S=1": rotary(1, "x"),
    "RotaryEmbedding S=128": rotary(128, "x"),
    "RotaryEmbedding S=1024": rotary(1024, "x"),
    "two RotaryEmbedding S=1": rotary(1, "xz"),
    "two RotaryEmbedding S=128": rotary(128, "xz"),
    "two RotaryEmbedding S=1024": rotary(1024, "xz"),
    "EmbedLayerNormalization": (
        f"g (int32[{B}, {S}] i) => ({X} y) {{ y, m = com.microsoft.EmbedLayerNormalization(i, , e, p, , g, b) }}",
        {"e": draw(30000, D), "p": draw(512, D), **NORM},
    ),
}


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.register_custom_ops_library(str(library_path()))
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def main() -> None:
    print(f"onnxruntime {ort.__version__}, one thread, B={B} S={S} D={D}\n")
    print("| operator | as it is, ms | ours, ms | ratio | becomes |\n|---|--:|--:|--:|---|")
    for name, (text, weights) in CASES.items():
        model = onnx.parser.parse_model(HEADER + text)
        model.graph.initializer.extend(onnx.numpy_helper.from_array(w, n) for n, w in weights.items())
        after, _ = graphopt.optimize(model, target="cpu", all_sites=True)
        feeds = {}
        for value in model.graph.input:
            dims = [d.dim_value for d in value.type.tensor_type.shape.dim]
            whole = value.type.tensor_type.elem_type != onnx.TensorProto.FLOAT
            dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            feeds[value.name] = rng.integers(0, S, dims).astype(dtype) if whole else draw(*dims)
        pair = [session(model), session(after)]
        times: list[list[float]] = [[], []]
        for _ in range(60):
            for times_of, one in zip(times, pair):
                start = time.process_time()
                one.run(None, feeds)
                times_of.append(time.process_time() - start)
        before, ours = (statistics.median(t) * 1e3 for t in times)
        ops = ", ".join(n.op_type for n in after.graph.node if n.op_type != "Constant")
        print(f"| {name} | {before:.3f} | {ours:.3f} | {before / ours:.2f} | {ops} |", flush=True)


if __name__ == "__main__":
    main()
