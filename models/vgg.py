"""VGG-16 with BatchNorm (Simonyan and Zisserman, "Very Deep Convolutional Networks", 2014)."""

from __future__ import annotations

import onnx

from models.layers import Net


def vgg16_bn(batch: int = 1, small: bool = False, dynamic: bool = False, seed: int = 0) -> onnx.ModelProto:
    """Input [N, 3, 224, 224] -> logits [N, 1000]; small: [N, 3, 32, 32] -> [N, 10]."""
    net = Net("vgg16_bn", batch=batch, dynamic=dynamic, seed=seed)
    size, hidden, classes, divisor = (32, 32, 10, 8) if small else (224, 4096, 1000, 1)
    x = net.input("input", (net.batch, 3, size, size), features=3)
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            x = net.relu(net.batch_norm(net.conv(x, width // divisor, 3, bias=True)))
        x = net.max_pool(x, 2, 2)
    pixels = (size // 32) ** 2
    x = net.set_features(net.op("Flatten", x, axis=1), net.features(x) * pixels)
    x = net.relu(net.gemm(x, hidden, gain=2.0))
    x = net.relu(net.gemm(x, hidden, gain=2.0))
    net.output(net.gemm(x, classes), "logits", (net.batch, classes))
    return net.model()
