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

from graphopt.ops.activation import ACTIVATIONS, Activation, with_slopes
from graphopt.ops.schema import Array, Dialect, OpSpec, plus, widen


def _spec(activation: Activation, add: bool) -> OpSpec:
    def reference(
        x: Array, w: Array, b: Array, *residual: Array, pads: Sequence[int], **attributes: float
    ) -> tuple[Array, ...]:
        top, left, bottom, right = pads
        padded = np.pad(widen(x), ((0, 0), (0, 0), (top, bottom), (left, right)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
        y = np.einsum("nchwij,mcij->nmhw", windows, widen(w), optimize=True) + widen(b)[:, None, None]
        return (activation.reference(plus(y, residual), **attributes),)

    def body(dialect: Dialect) -> str:
        conv = "conv = Conv <pads: ints = @pads, kernel_shape = [3, 3]> (X, W, B)\n"
        if add:
            return conv + "sum = Add(conv, R)\n" + activation.statements("sum", "Y", dialect)
        return conv + activation.statements("conv", "Y", dialect)

    return OpSpec(
        name=f"WinogradConv{'Add' if add else ''}{activation.suffix}",
        inputs=("X", "W", "B", "R") if add else ("X", "W", "B"),
        outputs=("Y",),
        attributes={"pads": ir.AttributeType.INTS, **activation.attribute_types},
        body=body,
        min_opset=activation.min_opset,
        reference=reference,
        summary=f"Y = {activation.suffix or 'id'}(conv3x3(X, W) + B{' + R' if add else ''})",
    )


_WITHOUT_SLOPES = tuple(_spec(a, add) for add in (False, True) for a in ACTIVATIONS.values())
SPECS = (*_WITHOUT_SLOPES, *(with_slopes(s) for s in _WITHOUT_SLOPES if s.name in ("WinogradConv", "WinogradConvAdd")))
