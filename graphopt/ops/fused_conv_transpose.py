"""FusedConvTranspose[Add][act]: Y = act(conv_transpose(X, W) + B + R), with residual sum and activation.

X [N, C, D1..Dk] of one to three axes, W [C, M / group, K1..Kk], B [M], R like Y; pads = [begin.., end..] >= 0, strides,
dilations, group and output_padding as in ONNX's ConvTranspose. float and float16.

FusedConvTranspose[Add]PRelu: Y = PRelu(conv_transpose(X, W) + B + R, slope), a slope for each channel, [M, 1, .., 1].
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from graphopt.ops.activation import with_slopes
from graphopt.ops.fused_conv import WINDOW, WINDOW_STATEMENT, convolution_specs
from graphopt.ops.schema import Array


def transposed_convolution(
    x: Array,
    w: Array,
    pads: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    group: int,
    output_padding: Sequence[int],
) -> Array:
    """Computes ONNX's ConvTranspose: each tap adds its products to every stride-th element; the pads are then cropped.

    Args:
        x: float64 [N, C, D1..Dk].
        w: float64 [C, M / group, K1..Kk].
        pads: k begins, then k ends; not negative.
        strides: k integers.
        dilations: k integers.
        group: the number of groups.
        output_padding: k integers, elements added at the ends.

    Returns:
        float64 [N, M, E1..Ek].
    """
    axes = len(strides)
    kernel = w.shape[2:]
    whole = [
        stride * (n - 1) + more + (k - 1) * dilation + 1
        for stride, n, more, k, dilation in zip(strides, x.shape[2:], output_padding, kernel, dilations)
    ]
    N, C, M = x.shape[0], x.shape[1] // group, w.shape[1]
    y = np.zeros((N, group * M, *whole))
    every = (slice(None), slice(None))
    for tap in itertools.product(*map(range, kernel)):
        at = tuple(slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, n, s in zip(tap, dilations, x.shape[2:], strides))
        weight = w[every + tap].reshape(group, C, M)
        part = np.einsum("ngcp,gcm->ngmp", x.reshape(N, group, C, math.prod(x.shape[2:])), weight, optimize=True)
        y[every + at] += part.reshape(N, group * M, *x.shape[2:])
    inside = [slice(begin, size - end) for begin, size, end in zip(pads[:axes], whole, pads[axes:])]
    return y[every + tuple(inside)]


_PLAIN = convolution_specs(
    "FusedConvTranspose",
    "conv_transpose(X, W)",
    {**WINDOW, "output_padding": ir.AttributeType.INTS},
    transposed_convolution,
    f"conv = ConvTranspose <{WINDOW_STATEMENT}, output_padding: ints = @output_padding> (X, W, B)\n",
)
SPECS = (*_PLAIN, *(with_slopes(s) for s in _PLAIN if s.name in ("FusedConvTranspose", "FusedConvTransposeAdd")))
