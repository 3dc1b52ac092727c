"""U-Net with BatchNorm after every Conv and ConvTranspose (Ronneberger et al., 2015, but with padding)."""

from __future__ import annotations

import onnx
import onnx_graphsurgeon as gs

from models.layers import Net


def _double_conv(net: Net, x: gs.Variable, out: int) -> gs.Variable:
    for _ in range(2):
        x = net.relu(net.batch_norm(net.conv(x, out, 3)))
    return x


def unet(batch: int = 1, small: bool = False, dynamic: bool = False, seed: int = 0) -> onnx.ModelProto:
    """Image [N, 3, 256, 256] -> mask [N, 2, 256, 256]; small: 32 x 32 and two levels."""
    net = Net("unet", batch=batch, dynamic=dynamic, seed=seed)
    size, width, levels = (32, 8, 2) if small else (256, 32, 4)
    x = net.input("image", (net.batch, 3, size, size), features=3)
    skips = []
    for level in range(levels):
        x = _double_conv(net, x, width << level)
        skips.append(x)
        x = net.max_pool(x, 2, 2)
    x = _double_conv(net, x, width << levels)
    for level in reversed(range(levels)):
        x = net.relu(net.batch_norm(net.conv_transpose(x, width << level, 2, 2)))
        x = net.set_features(net.op("Concat", skips[level], x, axis=1), 2 * (width << level))
        x = _double_conv(net, x, width << level)
    x = net.conv(x, 2, 1, bias=True, gain=1.0)
    net.output(net.op("Sigmoid", x), "mask", (net.batch, 2, size, size))
    return net.model()
