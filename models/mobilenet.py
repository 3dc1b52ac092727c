"""MobileNetV2 (Sandler et al., "Inverted Residuals and Linear Bottlenecks", 2018)."""

from __future__ import annotations

import onnx
import onnx_graphsurgeon as gs

from models.layers import Net

# expansion, channels, blocks, stride of the first block (table 2 of the paper)
_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
_SMALL = ((1, 8, 1, 1), (4, 8, 2, 2), (4, 16, 2, 1))


def _inverted_residual(net: Net, x: gs.Variable, expansion: int, out: int, stride: int) -> gs.Variable:
    features = net.features(x)
    hidden = features * expansion
    y = x
    if expansion != 1:
        y = net.relu6(net.batch_norm(net.conv(y, hidden, 1)))
    y = net.relu6(net.batch_norm(net.conv(y, hidden, 3, stride=stride, group=hidden)))
    residual = stride == 1 and features == out
    y = net.batch_norm(net.conv(y, out, 1), gain=0.5 if residual else 1.0)
    return net.op("Add", x, y) if residual else y


def mobilenet_v2(batch: int = 1, small: bool = False, dynamic: bool = False, seed: int = 0) -> onnx.ModelProto:
    """Input [N, 3, 224, 224] -> logits [N, 1000]; small: [N, 3, 32, 32] -> [N, 10]."""
    net = Net("mobilenet_v2", batch=batch, dynamic=dynamic, seed=seed)
    size, stem, head, classes = (32, 8, 32, 10) if small else (224, 32, 1280, 1000)
    x = net.input("input", (net.batch, 3, size, size), features=3)
    y = net.relu6(net.batch_norm(net.conv(x, stem, 3, stride=2)))
    for expansion, out, blocks, stride in _SMALL if small else _STAGES:
        for i in range(blocks):
            y = _inverted_residual(net, y, expansion, out, 1 if i else stride)
    y = net.relu6(net.batch_norm(net.conv(y, head, 1)))
    y = net.op("Flatten", net.op("GlobalAveragePool", y), axis=1)
    net.output(net.gemm(y, classes), "logits", (net.batch, classes))
    return net.model()
