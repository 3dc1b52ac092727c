"""BERT-base (Devlin et al., 2018)."""

from __future__ import annotations

import numpy as np
import onnx

from models.layers import Net


def bert(batch: int = 1, small: bool = False, dynamic: bool = False, seed: int = 0) -> onnx.ModelProto:
    """input_ids, attention_mask, token_type_ids int64 [B, S] -> last_hidden_state [B, S, D], pooler_output [B, D].

    S = 128, D = 768, 12 layers; small: S = 16, D = 32, 2 layers.
    """
    net = Net("bert", batch=batch, dynamic=dynamic, seed=seed)
    layers, d, heads, vocabulary, length = (2, 32, 4, 100, 16) if small else (12, 768, 12, 30522, 128)
    positions = 32 if small else 512
    s = "sequence" if dynamic else length
    ids = net.input("input_ids", (net.batch, s), np.int64)
    mask = net.input("attention_mask", (net.batch, s), np.int64)
    types = net.input("token_type_ids", (net.batch, s), np.int64)

    words, _ = net.embedding(ids, vocabulary, d)
    kinds, _ = net.embedding(types, 2, d)
    table = net.const(net.normal((1, positions, d), 1.0), "position_embedding.weight")
    end = net.length(ids, 1) if dynamic else net.ints(length)
    places = net.op("Slice", table, net.ints(0), end, net.ints(1))
    x = net.layer_norm(net.op("Add", net.op("Add", words, kinds), places), epsilon=1e-12)
    bias = net.padding_bias(mask)
    for _ in range(layers):
        q, k, v = net.linear(x, d, gain=2.0), net.linear(x, d, gain=2.0), net.linear(x, d)
        y = net.linear(net.attention(q, k, v, heads, scale="div", bias=bias), d)
        x = net.layer_norm(net.op("Add", y, x), epsilon=1e-12)
        y = net.linear(net.gelu(net.linear(x, 4 * d)), d, gain=2.0)
        x = net.layer_norm(net.op("Add", y, x), epsilon=1e-12)
    first = net.set_features(net.op("Gather", x, net.const(np.array(0, np.int64)), axis=1), d)
    net.output(x, "last_hidden_state", (net.batch, s, d))
    net.output(net.op("Tanh", net.gemm(first, d)), "pooler_output", (net.batch, d))
    return net.model()
