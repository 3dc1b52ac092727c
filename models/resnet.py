"""ResNet-18 and ResNet-50 v1.5 (He et al., "Deep Residual Learning for Image Recognition", 2015)."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx_graphsurgeon as gs

from models.layers import Net


def _shortcut(net: Net, x: gs.Variable, out: int, stride: int) -> gs.Variable:
    if stride == 1 and net.features(x) == out:
        return x
    return net.batch_norm(net.conv(x, out, 1, stride=stride, gain=1.0))


def _basic(net: Net, x: gs.Variable, width: int, stride: int) -> gs.Variable:
    y = net.relu(net.batch_norm(net.conv(x, width, 3, stride=stride)))
    y = net.batch_norm(net.conv(y, width, 3), gain=0.4)
    return net.relu(net.op("Add", y, _shortcut(net, x, width, stride)))


def _bottleneck(net: Net, x: gs.Variable, width: int, stride: int) -> gs.Variable:
    y = net.relu(net.batch_norm(net.conv(x, width, 1)))
    y = net.relu(net.batch_norm(net.conv(y, width, 3, stride=stride)))
    y = net.batch_norm(net.conv(y, 4 * width, 1), gain=0.4)
    return net.relu(net.op("Add", y, _shortcut(net, x, 4 * width, stride)))


def _resnet(
    net: Net, blocks: Sequence[int], *, bottleneck: bool, width: int, size: int, classes: int
) -> onnx.ModelProto:
    x = net.input("input", (net.batch, 3, size, size), features=3)
    y = net.relu(net.batch_norm(net.conv(x, width, 7, stride=2)))
    y = net.max_pool(y, 3, 2, (1, 1, 1, 1))
    block = _bottleneck if bottleneck else _basic
    for stage, count in enumerate(blocks):
        for i in range(count):
            y = block(net, y, width << stage, 2 if stage and not i else 1)
    y = net.op("Flatten", net.op("GlobalAveragePool", y), axis=1)
    net.output(net.gemm(y, classes), "logits", (net.batch, classes))
    return net.model()


def resnet18(batch: int = 1, small: bool = False, dynamic: bool = False, seed: int = 0) -> onnx.ModelProto:
    """Input [N, 3, 224, 224] -> logits [N, 1000]; small: [N, 3, 32, 32] -> [N, 10]."""
    net = Net("resnet18", batch=batch, dynamic=dynamic, seed=seed)
    if small:
        return _resnet(net, (1, 2), bottleneck=False, width=8, size=32, classes=10)
    return _resnet(net, (2, 2, 2, 2), bottleneck=False, width=64, size=224, classes=1000)


def resnet50(batch: int = 1, small: bool = False, dynamic: bool = False, seed: int = 0) -> onnx.ModelProto:
    """Input [N, 3, 224, 224] -> logits [N, 1000]; small: [N, 3, 32, 32] -> [N, 10]."""
    net = Net("resnet50", batch=batch, dynamic=dynamic, seed=seed)
    if small:
        return _resnet(net, (2, 2), bottleneck=True, width=8, size=32, classes=10)
    return _resnet(net, (3, 4, 6, 3), bottleneck=True, width=64, size=224, classes=1000)
