"""A decoder like those of onnxruntime-genai's builder: com.microsoft operators, weights of 2, 4 or 8 bits, a cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Sizes:
    """Sizes of a decoder. `head`: elements of a head; `positions`: rows of the tables of rotary angles."""

    hidden: int = 64
    heads: int = 4
    key_heads: int = 2
    head: int = 16
    feed_forward: int = 128
    vocabulary: int = 96
    positions: int = 256


class _Net:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def const(self, name: str, array: npt.NDArray[Any]) -> str:
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def op(self, op: str, inputs: list[str], outputs: list[str], domain: str = "", **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, outputs, outputs[0], domain=domain, **attributes))
        return outputs[0]

    def linear(self, name: str, x: str, K: int, N: int, bits: int) -> str:
        """MatMulNBits with blocks of 32 and zero points."""
        blocks, per_byte = K // 32, 8 // bits
        packed = self.const(f"{name}.weight", self.rng.integers(0, 256, (N, blocks, 32 // per_byte), np.uint8))
        scale = (self.rng.uniform(0.5, 1.5, (N, blocks)) * 4 / 2**bits / np.sqrt(K)).astype(np.float32)
        scales = self.const(f"{name}.scales", scale)
        # The middle of the range, or one less.
        middle = self.rng.integers(2 ** (bits - 1) - 1, 2 ** (bits - 1) + 1, (N, -(-blocks // per_byte) * per_byte))
        points = sum(middle[:, i::per_byte] << (bits * i) for i in range(per_byte))
        zero = self.const(f"{name}.zero_points", np.asarray(points).astype(np.uint8))
        inputs = [x, packed, scales, zero]
        return self.op("MatMulNBits", inputs, [name], MICROSOFT, K=K, N=N, bits=bits, block_size=32)


def decoder(layers: int = 2, seed: int = 0, bits: int = 4, sizes: Sizes = Sizes()) -> onnx.ModelProto:
    """input_ids [B, S], attention_mask [B, P + S], past_key_values.*.key|value -> logits [B, S, vocabulary], present.*.

    The query heads share key heads and have rotary positions; the feed-forward is gated.
    """
    net, D, N, G, H = _Net(seed), sizes.hidden, sizes.heads, sizes.key_heads, sizes.head
    wide, vocabulary = sizes.feed_forward, sizes.vocabulary
    angle = np.arange(sizes.positions)[:, None] / 10000 ** (np.arange(H // 2) * 2 / H)
    cos, sin = (net.const(n, f(angle).astype(np.float32)) for n, f in (("cos", np.cos), ("sin", np.sin)))
    axis, one = net.const("axis", np.array([1])), net.const("one", np.array([1]))
    lengths = net.op("ReduceSum", ["attention_mask", axis], ["lengths"], keepdims=0)
    net.op("Cast", [net.op("Sub", [lengths, one], ["last"])], ["seqlens_k"], to=TensorProto.INT32)
    net.op("Shape", ["attention_mask"], ["mask_shape"])
    total = net.op("Gather", ["mask_shape", net.const("second", np.array(1))], ["total"])
    net.op("Cast", [total], ["total_sequence_length"], to=TensorProto.INT32)
    table = net.const("embed", net.rng.normal(size=(vocabulary, D)).astype(np.float32))
    stream = net.op("Gather", [table, "input_ids"], ["embedded"])
    gamma = net.const("norm", net.rng.uniform(0.5, 1.5, D).astype(np.float32))
    x = net.op("SimplifiedLayerNormalization", [stream, gamma], ["normed"], axis=-1, epsilon=1e-5)
    cached = []
    for i in range(layers):
        q, k, v = (net.linear(f"l{i}.{n}", x, D, count * H, bits) for n, count in (("q", N), ("k", G), ("v", G)))
        past = [f"past_key_values.{i}.{n}" for n in ("key", "value")]
        present = [f"present.{i}.{n}" for n in ("key", "value")]
        cached += past
        inputs = [q, k, v, *past, "seqlens_k", "total_sequence_length", cos, sin]
        heads = {"num_heads": N, "kv_num_heads": G, "do_rotary": 1}
        o = net.op("GroupQueryAttention", inputs, [f"l{i}.attention", *present], MICROSOFT, **heads)
        o = net.linear(f"l{i}.o", o, N * H, D, bits)
        x, stream = _add_and_norm(net, o, stream, gamma, f"l{i}.before")
        gate, up = (net.linear(f"l{i}.{n}", x, D, wide, bits) for n in ("gate", "up"))
        silu = net.op("Mul", [gate, net.op("Sigmoid", [gate], [f"l{i}.sigmoid"])], [f"l{i}.silu"])
        down = net.linear(f"l{i}.down", net.op("Mul", [silu, up], [f"l{i}.gated"]), wide, D, bits)
        x, stream = _add_and_norm(net, down, stream, gamma, f"l{i}.after")
    net.linear("logits", x, D, vocabulary, bits)
    kinds = {"input_ids": ["B", "S"], "attention_mask": ["B", "T"]}
    inputs_of = [helper.make_tensor_value_info(n, TensorProto.INT64, d) for n, d in kinds.items()]
    inputs_of += [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["B", G, "P", H]) for n in cached]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["B", "S", vocabulary])]
    names = [n.replace("past_key_values", "present") for n in cached]
    outputs += [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["B", G, "T", H]) for n in names]
    graph = helper.make_graph(net.nodes, "decoder", inputs_of, outputs, net.initializers)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _add_and_norm(net: _Net, x: str, stream: str, gamma: str, name: str) -> tuple[str, str]:
    outputs = [name, "", "", f"{name}.sum"]
    net.op("SkipSimplifiedLayerNormalization", [x, stream, gamma], outputs, MICROSOFT, epsilon=1e-5)
    return name, outputs[3]
