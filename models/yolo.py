"""A one-stage detector in the style of YOLOv3-tiny (Redmon and Farhadi, 2018): LeakyReLU, two scales."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from models.layers import Net


def _block(net: Net, x: gs.Variable, out: int, kernel: int) -> gs.Variable:
    return net.leaky_relu(net.batch_norm(net.conv(x, out, kernel)), 0.1)


def yolo(batch: int = 1, small: bool = False, dynamic: bool = False, seed: int = 0) -> onnx.ModelProto:
    """Images [N, 3, 416, 416] -> coarse [N, 255, 13, 13], fine [N, 255, 26, 26]; small: 64 x 64, 21 channels."""
    net = Net("yolo", batch=batch, dynamic=dynamic, seed=seed)
    size, divisor, out = (64, 4, 21) if small else (416, 1, 255)
    x = net.input("images", (net.batch, 3, size, size), features=3)
    for width in (16, 32, 64, 128):
        x = net.max_pool(_block(net, x, width // divisor, 3), 2, 2)
    fine = _block(net, x, 256 // divisor, 3)
    x = _block(net, net.max_pool(fine, 2, 2), 512 // divisor, 3)
    # Darknet's stride-1 pool keeps the size by padding below and to the right.
    x = net.max_pool(x, 2, 1, (0, 0, 1, 1))
    x = _block(net, x, 1024 // divisor, 3)
    neck = _block(net, x, 256 // divisor, 1)
    coarse = net.conv(_block(net, neck, 512 // divisor, 3), out, 1, bias=True, gain=1.0)
    up = _block(net, neck, 128 // divisor, 1)
    roi, scales = gs.Variable.empty(), net.const(np.array([1, 1, 2, 2], np.float32))
    up = net.op(
        "Resize", up, roi, scales, mode="nearest", nearest_mode="floor", coordinate_transformation_mode="asymmetric"
    )
    x = net.set_features(net.op("Concat", up, fine, axis=1), 384 // divisor)
    fine = net.conv(_block(net, x, 256 // divisor, 3), out, 1, bias=True, gain=1.0)
    net.output(coarse, "coarse", (net.batch, out, size // 32, size // 32))
    net.output(fine, "fine", (net.batch, out, size // 16, size // 16))
    return net.model()
