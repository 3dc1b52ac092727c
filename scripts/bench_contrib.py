"""Times operators of com.microsoft on one thread of a CPU, as they are and as our passes write them.

    .venv-ort/bin/python scripts/bench_contrib.py [OPERATOR ...]

Interleaved medians of ONNX Runtime with all its optimizations, in ms, and the ratio; above 1 ours is faster. The nodes
have sizes of BERT-base, GPT-2 and ResNet-50. Ours is what optimize makes of the definition, also
of a node that it leaves. docs/measurements/contrib_cpu.md holds what was measured.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import graphopt
from graphopt.ops.schema import Array
from graphopt.runtime.sessions import library_path
from tests.contrib.nodes import lowered

rng = np.random.default_rng(0)
HEADER = '<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]>\n'
B, S, D = 1, 128, 768


def draw(*shape: int) -> Array:
    return (rng.normal(size=shape) * 0.1).astype(np.float32)


X = f"float[{B}, {S}, {D}]"
NORM = {"g": draw(D), "b": draw(D)}
QKV = f"{X} q, {X} k, {X} v"


@dataclass(frozen=True)
class Node:
    """A model of one node.

    Attributes:
        text: its graph.
        weights: its constants.
        feeds: inputs whose numbers mean something; the others are drawn.
        opset: of standard ONNX; from 21 on there are weights of 4 bits.
    """

    text: str
    weights: Mapping[str, Array] = field(default_factory=dict)
    feeds: Mapping[str, Array] = field(default_factory=dict)
    opset: int = 17

    @property
    def operator(self) -> str:
        return str(onnx.parser.parse_graph(self.text).node[0].op_type)


def rotary(rows: int, inputs: str) -> Node:
    """Of queries, or of queries and keys, which share their angles."""
    kind = f"float[{B}, {rows}, {D}]"
    given, outputs = ", ".join(f"{kind} {x}" for x in inputs), ", ".join(f"{kind} {x}2" for x in inputs)
    nodes = " ".join(f"{x}2 = com.microsoft.RotaryEmbedding<num_heads=12>({x}, p, c, s)" for x in inputs)
    text = f"g ({given}, int64[{B}, {rows}] p) => ({outputs}) {{ {nodes} }}"
    return Node(text, {"c": draw(1024, 32), "s": draw(1024, 32)})


CASES: dict[str, Node] = {
    "SkipLayerNormalization": Node(
        f"g ({X} x, {X} r) => ({X} y) {{ y = com.microsoft.SkipLayerNormalization(x, r, g, b) }}",
        NORM,
    ),
    "SkipSimplifiedLayerNormalization": Node(
        f"g ({X} x, {X} r) => ({X} y) {{ y = com.microsoft.SkipSimplifiedLayerNormalization(x, r, g) }}",
        {"g": draw(D)},
    ),
    "SimplifiedLayerNormalization": Node(
        f"g ({X} x) => ({X} y) {{ y = SimplifiedLayerNormalization<axis=-1>(x, g) }}",
        {"g": draw(D)},
    ),
    "Gelu": Node(f"g ({X} x) => ({X} y) {{ y = com.microsoft.Gelu(x) }}", {}),
    "FastGelu": Node(f"g ({X} x) => ({X} y) {{ y = com.microsoft.FastGelu(x) }}", {}),
    "QuickGelu": Node(f"g ({X} x) => ({X} y) {{ y = com.microsoft.QuickGelu(x) }}", {}),
    "BiasGelu": Node(f"g ({X} x) => ({X} y) {{ y = com.microsoft.BiasGelu(x, c) }}", {"c": draw(D)}),
    "MultiHeadAttention S=128": Node(
        f"g ({QKV}) => ({X} y) {{ y = com.microsoft.MultiHeadAttention<num_heads=12>(q, k, v) }}",
        {},
    ),
    "MultiHeadAttention S=512": Node(
        f"g ({QKV}) => ({X} y) {{ y = com.microsoft.MultiHeadAttention<num_heads=12>(q, k, v) }}".replace("128", "512"),
        {},
    ),
    "Attention S=128": Node(
        f"g ({X} x) => ({X} y) {{ y = com.microsoft.Attention<num_heads=12>(x, w, c) }}",
        {"w": draw(D, 3 * D), "c": draw(3 * D)},
    ),
    "FusedMatMul": Node(
        f"g ({X} x) => (float[1, 128, 3072] y) {{ y = com.microsoft.FusedMatMul<transB=1, alpha=0.5>(x, w) }}",
        {"w": draw(3072, D)},
    ),
    "FusedConv 3x3": Node(
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
    "EmbedLayerNormalization": Node(
        f"g (int32[{B}, {S}] i) => ({X} y) {{ y, m = com.microsoft.EmbedLayerNormalization(i, , e, p, , g, b) }}",
        {"e": draw(30000, D), "p": draw(512, D), **NORM},
    ),
}


# Scale and zero point of what is read and of what is written.
STEPS: Mapping[str, Array] = {
    "s": np.array(0.05, np.float32),
    "z": np.array(120, np.uint8),
    "t": np.array(0.06, np.float32),
    "o": np.array(128, np.uint8),
}


def quantized(call: str, shape: str, *inputs: str, made: str = "") -> Node:
    """Of tensors of bytes."""
    given = ", ".join(f"uint8[{shape}] {x}" for x in inputs)
    return Node(f"g ({given}) => (uint8[{made or shape}] y) {{ y = com.microsoft.{call} }}", STEPS)


def product(call: str, rows: int, kind: str, made: str) -> Node:
    """Of rows and a constant square matrix."""
    weights: dict[str, Array] = {
        **STEPS,
        "b": rng.integers(-64, 64, (D, D)).astype(np.int16 if kind == "int16" else np.int8),
        "u": np.array(0.02, np.float32),
        "v": np.array(0, np.int8),
        "c": rng.integers(-900, 900, D).astype(np.int32),
    }
    return Node(f"g ({kind}[{rows}, {D}] x) => ({made}[{rows}, {D}] y) {{ y = com.microsoft.{call} }}", weights)


def step(past: int) -> Node:
    """A token after `past` of them, 12 heads that read 4."""
    cache = f"float[1, 4, {past}, 64]"
    text = f"""g (float[1, 1, 768] q, float[1, 1, 256] k, float[1, 1, 256] v, {cache} c, {cache} d, int32[1] n, int32 t)
        => (float[1, 1, 768] y, float[a, b, e, f] c2, float[h, i, j, l] d2) {{
        y, c2, d2 = com.microsoft.GroupQueryAttention<num_heads=12, kv_num_heads=4>(q, k, v, c, d, n, t) }}"""
    return Node(text, feeds={"n": np.array([past], np.int32), "t": np.array(past + 1, np.int32)})


def masked(past: int) -> Node:
    """The same with as many heads of keys, into a cache that has room for it."""
    cache = f"float[1, 12, {past + 1}, 64]"
    text = f"""g (float[1, 1, 768] q, float[1, 1, 768] k, float[1, 1, 768] v, {cache} c, {cache} d, int32[1] n)
        => (float[1, 1, 768] y, float[a, b, e, f] c2, float[h, i, j, l] d2) {{
        y, c2, d2 = com.microsoft.DecoderMaskedMultiHeadAttention<num_heads=12, past_present_share_buffer=1>(
            q, k, v, , , c, d, n) }}"""
    return Node(text, feeds={"n": np.array([past], np.int32)})


def packed(rows: int) -> Node:
    """Of weights of 4 bits, 2048 x 2048."""
    text = f"""g (float[{rows}, 2048] x) => (float[{rows}, 2048] y) {{
        y = com.microsoft.MatMulNBits<K=2048, N=2048, bits=4, block_size=32>(x, w, k) }}"""
    weights: dict[str, Array] = {
        "w": rng.integers(0, 256, (2048, 64, 16)).astype(np.uint8),
        "k": np.full((2048, 64), 0.02, np.float32),
    }
    return Node(text, weights, opset=21)


def crops(mode: str) -> Node:
    text = f"""g (float[1, 64, 56, 56] x, float[16, 4] r) => (float[a, b, c, d] y) {{
        y = com.microsoft.CropAndResize<mode="{mode}">(x, r, i, n) }}"""
    weights = {"i": np.zeros(16, np.int32), "n": np.array([14, 14], np.int32)}
    return Node(text, weights, {"r": np.sort(rng.random((16, 4)).astype(np.float32))})


IMAGE, WIDE, LONG = "1, 64, 56, 56", "1, 256, 14, 14", f"{B}, {S}, {D}"
for shape in (IMAGE, LONG):
    CASES |= {
        f"QLinearAdd [{shape}]": quantized("QLinearAdd(a, s, z, b, s, z, t, o)", shape, "a", "b"),
        f"QLinearMul [{shape}]": quantized("QLinearMul(a, s, z, b, s, z, t, o)", shape, "a", "b"),
        f"QLinearSigmoid [{shape}]": quantized("QLinearSigmoid(x, s, z, t, o)", shape, "x"),
        f"QLinearLeakyRelu [{shape}]": quantized("QLinearLeakyRelu(x, s, z, t, o)", shape, "x"),
        f"QLinearWhere [{shape}]": Node(
            f"g (bool[{shape}] c, uint8[{shape}] a, uint8[{shape}] b) => (uint8[{shape}] y) "
            "{ y = com.microsoft.QLinearWhere(c, a, s, z, b, s, z, t, o) }",
            STEPS,
        ),
    }
for shape, double in ((IMAGE, "1, 128, 56, 56"), (WIDE, "1, 512, 14, 14")):
    channels, size = shape.split(", ")[1:3]
    CASES |= {
        f"QLinearConcat [{shape}]": quantized(
            "QLinearConcat<axis=1>(t, o, a, s, z, b, s, z)", shape, "a", "b", made=double
        ),
        f"QLinearAveragePool 3x3 [{shape}]": quantized(
            "QLinearAveragePool<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(x, s, z, t, o)", shape, "x"
        ),
        f"QLinearGlobalAveragePool [{shape}]": quantized(
            "QLinearGlobalAveragePool(x, s, z, t, o)", shape, "x", made=f"1, {channels}, 1, 1"
        ),
        f"QLinearConv 3x3 [{shape}]": Node(
            f"g (uint8[{shape}] x) => (uint8[{shape}] y) "
            "{ y = com.microsoft.QLinearConv<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(x, s, z, w, u, v, t, o, c) }",
            {
                **STEPS,
                "w": rng.integers(-64, 64, (int(channels), int(channels), 3, 3)).astype(np.int8),
                "u": np.array(0.02, np.float32),
                "v": np.array(0, np.int8),
                "c": rng.integers(-900, 900, int(channels)).astype(np.int32),
            },
        ),
    }
for shape in ("12, 16, 16", "12, 128, 128"):
    CASES[f"QLinearSoftmax [{shape}]"] = Node(
        f"g (uint8[{shape}] x) => (uint8[{shape}] y) {{ y = com.microsoft.QLinearSoftmax<opset=13>(x, s, z, t, o) }}",
        {**STEPS, "t": np.array(1 / 256, np.float32), "o": np.array(0, np.uint8)},
    )
for rows in (1, 16, 128):
    CASES |= {
        f"DynamicQuantizeMatMul {rows} rows": product("DynamicQuantizeMatMul(x, b, u, v)", rows, "float", "float"),
        f"MatMulIntegerToFloat {rows} rows": product("MatMulIntegerToFloat(x, b, s, u, z, v)", rows, "uint8", "float"),
        f"MatMulInteger16 {rows} rows": product("MatMulInteger16(x, b)", rows, "int16", "int32"),
        f"QGemm {rows} rows": product("QGemm(x, s, z, b, u, v, c, t, o)", rows, "uint8", "uint8"),
        f"MatMulNBits {rows} rows": packed(rows),
    }
for tokens in (127, 1023):
    CASES |= {
        f"GroupQueryAttention after {tokens} tokens": step(tokens),
        f"DecoderMaskedMultiHeadAttention after {tokens} tokens": masked(tokens),
    }
CASES |= {f"CropAndResize {mode}": crops(mode) for mode in ("bilinear", "nearest")}
for shape in ("64, 4, 4", "8, 16, 16"):
    CASES[f"Inverse [{shape}]"] = Node(f"g (float[{shape}] x) => (float[{shape}] y) {{ y = com.microsoft.Inverse(x) }}")
for shape in ("12, 128, 128", "1, 1024, 1024"):
    CASES[f"Trilu [{shape}]"] = Node(f"g (float[{shape}] x) => (float[{shape}] y) {{ y = com.microsoft.Trilu(x) }}")


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.register_custom_ops_library(str(library_path()))
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def draw_input(value: onnx.ValueInfoProto) -> Array:
    dims = [d.dim_value for d in value.type.tensor_type.shape.dim]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    if dtype.kind == "f":
        return draw(*dims)
    return rng.integers(0, 2 if dtype.kind == "b" else S, dims).astype(dtype)


def main() -> None:
    asked = set(sys.argv[1:])
    if unknown := asked - {node.operator for node in CASES.values()}:
        sys.exit(f"no case of {', '.join(sorted(unknown))}")
    print(f"onnxruntime {ort.__version__}, one thread, B={B} S={S} D={D}\n")
    print("| operator | as it is, ms | ours, ms | ratio | becomes |\n|---|--:|--:|--:|---|")
    for name, node in CASES.items():
        if asked and node.operator not in asked:
            continue
        model = onnx.parser.parse_model(HEADER.format(opset=node.opset) + node.text)
        model.graph.initializer.extend(onnx.numpy_helper.from_array(w, n) for n, w in node.weights.items())
        standard, refused = lowered(model)
        assert not refused, refused
        after, _ = graphopt.optimize(standard, target="cpu", all_sites=True)
        feeds = {v.name: node.feeds[v.name] if v.name in node.feeds else draw_input(v) for v in model.graph.input}
        try:
            pair = [session(model), session(after)]
        except Exception as error:  # this runtime has no kernel
            print(f"| {name} | {str(error).splitlines()[0][:90]} |", flush=True)
            continue
        times: list[list[float]] = [[], []]
        for _ in range(60):
            for times_of, one in zip(times, pair):
                start = time.process_time()
                one.run(None, feeds)
                times_of.append(time.process_time() - start)
        before, ours = (statistics.median(t) * 1e3 for t in times)
        ops = [n.op_type for n in after.graph.node if n.op_type != "Constant"]
        said = ", ".join(ops[:9]) + (f", .. ({len(ops)})" if len(ops) > 9 else "")
        print(f"| {name} | {before:.3f} | {ours:.3f} | {before / ours:.2f} | {said} |", flush=True)


if __name__ == "__main__":
    main()
