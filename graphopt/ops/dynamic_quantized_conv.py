"""DynamicQuantizedConv[act]: Y = act(conv(Q(X) - x_zero, W - w_zero_point) x_scale w_scale + B), with 8-bit weights.

X [N, C, D1..Dk] of one to three axes, W [M, C / group, K1..Kk] and w_zero_point uint8, B and w_scale [M]; w_zero_point
has one element. The attributes are those of FusedConv. DynamicQuantizeLinear computes Q(X) (uint8), x_scale and x_zero
from the range of X. The padding is x_zero. The products are summed in 32-bit integers, without saturation. CPU only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from graphopt.ops.activation import ACTIVATIONS, Activation
from graphopt.ops.fused_conv import WINDOW, WINDOW_STATEMENT, convolution
from graphopt.ops.quantized_linear import DYNAMIC_QUANTIZE_OPSET, dynamically_quantized
from graphopt.ops.schema import Array, Dialect, OpSpec, ints, widen

STEM = "DynamicQuantizedConv"


def _spec(activation: Activation) -> OpSpec:
    def reference(
        x: Array, w: Array, b: Array, w_scale: Array, w_zero_point: Array, **attributes: Any
    ) -> tuple[Array, ...]:
        given = {name: attributes.pop(name) for name in WINDOW}
        integers, x_scale = dynamically_quantized(x)
        sums = convolution(integers.astype(np.float64), w.astype(np.float64) - float(w_zero_point.item()), **given)
        channel = (-1, *[1] * (sums.ndim - 2))
        scale = np.float64(x_scale) * widen(w_scale)
        return (activation.reference(sums * scale.reshape(channel) + widen(b).reshape(channel), **attributes),)

    def body(dialect: Dialect) -> str:
        return (
            "X_integers, x_scale, x_zero_point = DynamicQuantizeLinear(X)\n"
            f"sums = ConvInteger <{WINDOW_STATEMENT}> (X_integers, W, x_zero_point, w_zero_point)\n"
            f"sums_float = Cast <to: int = {int(ir.DataType.FLOAT)}> (sums)\n"
            # [M, 1, .., 1]
            + "shape = Shape(X)\nrank = Shape(shape)\n"
            + ints("minus_one", -1)
            + ints("two", 2)
            + "axes = Sub(rank, two)\nones = ConstantOfShape <value: tensor = int64[1] {1}> (axes)\n"
            + "channel = Concat <axis: int = 0> (minus_one, ones)\n"
            + "scale_row = Mul(x_scale, w_scale)\nscale = Reshape(scale_row, channel)\nbias = Reshape(B, channel)\n"
            + "product = Mul(sums_float, scale)\nsum = Add(product, bias)\n"
        ) + activation.statements("sum", "Y", dialect)

    return OpSpec(
        name=f"{STEM}{activation.suffix}",
        inputs=("X", "W", "B", "w_scale", "w_zero_point"),
        outputs=("Y",),
        attributes={**WINDOW, **activation.attribute_types},
        body=body,
        min_opset=max(activation.min_opset, DYNAMIC_QUANTIZE_OPSET),
        reference=reference,
        summary=f"Y = {activation.suffix or 'id'}(conv(Q(X), W) + B) in 8-bit integers",
        gpu_kernel=False,
        float32_only=True,
        integers=("W", "w_zero_point"),
    )


SPECS = tuple(_spec(activation) for activation in ACTIVATIONS.values())
