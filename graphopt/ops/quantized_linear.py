"""QuantizedLinear[act]: Y = act((Q(X) - x_zero) (W - w_zero_point) x_scale w_scale + b), a layer with 8-bit weights.

X [.., K], W [K, N], w_scale, w_zero_point and b [N], Y [.., N]. W and w_zero_point are int8 or uint8, the others float.
DynamicQuantizeLinear computes Q(X) (uint8), x_scale and x_zero from the range of X. The products are summed in 32-bit
integers, without saturation. CPU only.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.ops.activation import ACTIVATIONS, Activation
from graphopt.ops.schema import Array, Dialect, OpSpec, widen

STEM = "QuantizedLinear"
DYNAMIC_QUANTIZE_OPSET = 11


def dynamically_quantized(x: Array) -> tuple[Array, np.float32]:
    """Returns X quantized, minus its zero point, and its scale. Computes in float32, to round as kernels do."""
    x = x.astype(np.float32)
    least, most = x.min(initial=0), x.max(initial=0)
    scale = np.float32(1) if most == least else (most - least) / np.float32(255)
    zero = np.rint(np.clip(-least / scale, 0, 255))
    return np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.int64) - np.int64(zero), scale


def _spec(activation: Activation) -> OpSpec:
    def reference(x: Array, w: Array, w_scale: Array, w_zero_point: Array, b: Array) -> tuple[Array, ...]:
        integers, x_scale = dynamically_quantized(x)
        sums = integers @ (w.astype(np.int64) - w_zero_point.astype(np.int64))
        return (activation.reference(sums * (np.float64(x_scale) * widen(w_scale)) + widen(b)),)

    def body(dialect: Dialect) -> str:
        return (
            "X_integers, x_scale, x_zero_point = DynamicQuantizeLinear(X)\n"
            "sums = MatMulInteger(X_integers, W, x_zero_point, w_zero_point)\n"
            f"sums_float = Cast <to: int = {int(ir.DataType.FLOAT)}> (sums)\n"
            "scale = Mul(x_scale, w_scale)\nproduct = Mul(sums_float, scale)\nsum = Add(product, b)\n"
        ) + activation.statements("sum", "Y", dialect)

    return OpSpec(
        name=f"{STEM}{activation.suffix}",
        inputs=("X", "W", "w_scale", "w_zero_point", "b"),
        outputs=("Y",),
        attributes=activation.attribute_types,
        body=body,
        min_opset=max(activation.min_opset, DYNAMIC_QUANTIZE_OPSET),
        reference=reference,
        summary=f"Y = {activation.suffix or 'id'}(Q(X) W + b) in 8-bit integers",
        gpu_kernel=False,
        float32_only=True,
        integers=("W", "w_zero_point"),
    )


SPECS = tuple(_spec(ACTIVATIONS[suffix]) for suffix in ("", "Relu", "Silu", "Gelu", "GeluTanh", "Mish"))
