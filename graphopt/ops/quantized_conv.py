"""QuantizedConv[act]: a convolution over two axes of 8-bit values with channels last.

    Y = Q(act(conv(D(X), D(W)) + D(B)))        D: DequantizeLinear, Q: QuantizeLinear

X [N, H, W, C] and Y [N, OH, OW, M] are both int8 or both uint8, with a scalar scale and zero point each. W is int8 [M,
C / group, KH, KW] with scales [M] and zero points of 0. B is int32 [M], in units of x_scale w_scale. Either there is
one group, or each channel is a group with one filter. The attributes are those of FusedConv. act: none, Relu or Clip.
The products are summed in 32-bit integers, without saturation. CPU only.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graphopt.ops.activation import ACTIVATIONS, Activation
from graphopt.ops.fused_conv import WINDOW, WINDOW_STATEMENT, convolution
from graphopt.ops.schema import AXIS_OF_SCALES_OPSET, Array, Dialect, OpSpec, widen

STEM = "QuantizedConv"
ACTIVATION_SUFFIXES = ("", "Relu", "Clip")


def _spec(activation: Activation) -> OpSpec:
    def reference(
        x: Array,
        x_scale: Array,
        x_zero_point: Array,
        w: Array,
        w_scale: Array,
        y_scale: Array,
        y_zero_point: Array,
        b: Array,
        **attributes: Any,
    ) -> tuple[Array, ...]:
        given = {name: attributes.pop(name) for name in WINDOW}
        centred = np.moveaxis(x, 3, 1).astype(np.float64) - float(x_zero_point.item())
        sums = np.moveaxis(convolution(centred, w.astype(np.float64), **given), 1, 3) + b
        y = activation.reference(sums * (widen(x_scale) * widen(w_scale)), **attributes)
        limits = np.iinfo(y_zero_point.dtype)
        return (np.clip(np.rint(y / widen(y_scale)) + float(y_zero_point.item()), limits.min, limits.max),)

    def body(dialect: Dialect) -> str:
        return (
            "X_integers = Transpose <perm: ints = [0, 3, 1, 2]> (X)\n"
            "x = DequantizeLinear(X_integers, x_scale, x_zero_point)\n"
            "w = DequantizeLinear <axis: int = 0> (W, w_scale)\n"
            "b_scale = Mul(x_scale, w_scale)\n"
            "b = DequantizeLinear <axis: int = 0> (B, b_scale)\n"
            f"conv = Conv <{WINDOW_STATEMENT}> (x, w, b)\n"
            + activation.statements("conv", "y", dialect)
            + "Y_integers = QuantizeLinear(y, y_scale, y_zero_point)\n"
            "Y = Transpose <perm: ints = [0, 2, 3, 1]> (Y_integers)\n"
        )

    return OpSpec(
        name=f"{STEM}{activation.suffix}",
        inputs=("X", "x_scale", "x_zero_point", "W", "w_scale", "y_scale", "y_zero_point", "B"),
        outputs=("Y",),
        attributes={**WINDOW, **activation.attribute_types},
        body=body,
        min_opset=max(activation.min_opset, AXIS_OF_SCALES_OPSET),
        reference=reference,
        summary=f"Y = {activation.suffix or 'id'}(conv(X, W) + B) in 8-bit integers with channels last",
        gpu_kernel=False,
        float32_only=True,
        X_types=("uint8", "int8"),
        integers=("x_zero_point", "W", "y_zero_point", "B"),
        outputs_like_x=True,
    )


SPECS = tuple(_spec(ACTIVATIONS[suffix]) for suffix in ACTIVATION_SUFFIXES)
