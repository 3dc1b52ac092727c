"""WinogradConv[Add][act]: Y = act(conv3x3(X, W) + B + R) with strides, dilations and group 1.

X [N, C, H, W], W [M, C, 3, 3] (the original OIHW weights; the kernel transforms them once), B [M], R like Y,
pads = [top, left, bottom, right] >= 0. float and float16.
WinogradConv[Add]PRelu: Y = PRelu(conv3x3(X, W) + B + R, slope) with a slope for each channel, [M, 1, 1].
A. Lavin, S. Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from graphopt.ops.activation import with_slopes
from graphopt.ops.fused_conv import convolution_specs
from graphopt.ops.schema import Array


def _convolution(x: Array, w: Array, pads: Sequence[int]) -> Array:
    top, left, bottom, right = pads
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    y: Array = np.einsum("nchwij,mcij->nmhw", windows, w, optimize=True)
    return y


_PLAIN = convolution_specs(
    "WinogradConv",
    "conv3x3(X, W)",
    {"pads": ir.AttributeType.INTS},
    _convolution,
    "conv = Conv <pads: ints = @pads, kernel_shape = [3, 3]> (X, W, B)\n",
)
SPECS = (*_PLAIN, *(with_slopes(s) for s in _PLAIN if s.name in ("WinogradConv", "WinogradConvAdd")))
