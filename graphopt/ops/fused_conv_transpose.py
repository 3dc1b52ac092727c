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

from graphopt.ops.activation import ACTIVATIONS, Activation, with_slopes
from graphopt.ops.fused_conv import WINDOW
from graphopt.ops.schema import Array, Dialect, OpSpec, plus, widen


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


def _spec(activation: Activation, add: bool) -> OpSpec:
    def reference(
        x: Array,
        w: Array,
        b: Array,
        *residual: Array,
        pads: Sequence[int],
        strides: Sequence[int],
        dilations: Sequence[int],
        group: int,
        output_padding: Sequence[int],
        **attributes: float,
    ) -> tuple[Array, ...]:
        y = transposed_convolution(widen(x), widen(w), pads, strides, dilations, group, output_padding)
        y = y + widen(b).reshape(-1, *([1] * len(strides)))
        return (activation.reference(plus(y, residual), **attributes),)

    def body(dialect: Dialect) -> str:
        window = "pads: ints = @pads, strides: ints = @strides, dilations: ints = @dilations, group: int = @group"
        conv = f"conv = ConvTranspose <{window}, output_padding: ints = @output_padding> (X, W, B)\n"
        if add:
            return conv + "sum = Add(conv, R)\n" + activation.statements("sum", "Y", dialect)
        return conv + activation.statements("conv", "Y", dialect)

    return OpSpec(
        name=f"FusedConvTranspose{'Add' if add else ''}{activation.suffix}",
        inputs=("X", "W", "B", "R") if add else ("X", "W", "B"),
        outputs=("Y",),
        attributes={**WINDOW, "output_padding": ir.AttributeType.INTS, **activation.attribute_types},
        body=body,
        min_opset=activation.min_opset,
        reference=reference,
        summary=f"Y = {activation.suffix or 'id'}(conv_transpose(X, W) + B{' + R' if add else ''})",
    )


_WITHOUT_SLOPES = tuple(_spec(a, add) for add in (False, True) for a in ACTIVATIONS.values())
SPECS = (
    *_WITHOUT_SLOPES,
    *(with_slopes(s) for s in _WITHOUT_SLOPES if s.name in ("FusedConvTranspose", "FusedConvTransposeAdd")),
)
