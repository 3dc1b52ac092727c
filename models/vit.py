"""ViT-B/16 (Dosovitskiy et al., "An Image is Worth 16x16 Words", 2020)."""

from __future__ import annotations

import numpy as np
import onnx

from models.layers import Net


def vit(batch: int = 1, small: bool = False, dynamic: bool = False, seed: int = 0) -> onnx.ModelProto:
    """pixel_values [N, 3, 224, 224] -> logits [N, 1000]; small: [N, 3, 32, 32] -> [N, 10]."""
    net = Net("vit", batch=batch, dynamic=dynamic, seed=seed)
    layers, d, heads, size, patch, classes = (2, 32, 4, 32, 8, 10) if small else (12, 768, 12, 224, 16, 1000)
    tokens = (size // patch) ** 2
    x = net.input("pixel_values", (net.batch, 3, size, size), features=3)
    x = net.conv(x, d, patch, stride=patch, pad=0, bias=True, gain=1.0)
    x = net.op("Transpose", net.op("Reshape", x, net.ints(0, d, tokens)), perm=[0, 2, 1])
    token = net.const(net.normal((1, 1, d), 1.0), "cls_token")
    tail = (net.ints(1), net.ints(d))
    shape = net.op("Concat", net.length(x, 0), *tail, axis=0) if dynamic else net.ints(batch, 1, d)
    x = net.set_features(net.op("Concat", net.op("Expand", token, shape), x, axis=1), d)
    x = net.op("Add", x, net.const(net.normal((1, tokens + 1, d), 0.5), "position_embedding"))
    for _ in range(layers):
        y = net.layer_norm(x, epsilon=1e-6)
        q, k, v = net.linear(y, d, gain=2.0), net.linear(y, d, gain=2.0), net.linear(y, d)
        x = net.op("Add", net.linear(net.attention(q, k, v, heads, scale="qk"), d), x)
        y = net.layer_norm(x, epsilon=1e-6)
        x = net.op("Add", net.linear(net.gelu(net.linear(y, 4 * d)), d), x)
    x = net.layer_norm(x, epsilon=1e-6)
    first = net.set_features(net.op("Gather", x, net.const(np.array(0, np.int64)), axis=1), d)
    net.output(net.gemm(first, classes), "logits", (net.batch, classes))
    return net.model()
