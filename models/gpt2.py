"""A decoder in the style of GPT-2 (Radford et al., 2019): joint QKV, causal mask, GELU by tanh, tied output weights."""

from __future__ import annotations

import numpy as np
import onnx

from models.layers import Net


def gpt2(batch: int = 1, small: bool = False, dynamic: bool = False, seed: int = 0) -> onnx.ModelProto:
    """input_ids, attention_mask int64 [B, S] -> logits [B, S, vocabulary].

    S = 128, D = 768, 12 layers, 50257 tokens; small: S = 16, D = 32, 2 layers, 100 tokens.
    """
    net = Net("gpt2", batch=batch, dynamic=dynamic, seed=seed)
    layers, d, heads, vocabulary, length = (2, 32, 4, 100, 16) if small else (12, 768, 12, 50257, 128)
    positions = 32 if small else 1024
    s = "sequence" if dynamic else length
    ids = net.input("input_ids", (net.batch, s), np.int64)
    mask = net.input("attention_mask", (net.batch, s), np.int64)

    words, table = net.embedding(ids, vocabulary, d)
    end = net.length(ids, 1) if dynamic else net.ints(length)
    places = net.const(net.normal((1, positions, d), 0.5), "position_embedding.weight")
    x = net.op("Add", words, net.op("Slice", places, net.ints(0), end, net.ints(1)))
    bias = net.padding_bias(mask)
    triangle = net.const(np.tril(np.ones((1, 1, positions, positions), np.bool_)), "causal_mask")
    two = net.op("Concat", end, end, axis=0)
    causal = net.op("Slice", triangle, net.ints(0, 0), two, net.ints(2, 3))
    for _ in range(layers):
        joint = net.linear(net.layer_norm(x), 3 * d, gain=1.5)
        q, k, v = (net.set_features(part, d) for part in net.ops("Split", joint, net.ints(d, d, d), outputs=3, axis=2))
        y = net.attention(q, k, v, heads, scale="mul", bias=bias, causal=causal)
        x = net.op("Add", net.linear(y, d), x)
        y = net.linear(net.gelu_tanh(net.linear(net.layer_norm(x), 4 * d)), d)
        x = net.op("Add", x, y)
    x = net.op("Mul", net.layer_norm(x), net.scalar(d**-0.5))
    logits = net.op("MatMul", x, net.op("Transpose", table, perm=[1, 0]))
    net.output(logits, "logits", (net.batch, s, vocabulary))
    return net.model()
