"""Linear[act][Bf16] and LinearAdd[Bf16]: Y = act(X W + b + R), the fully connected layer of a feed-forward network.

X [.., K], W [K, N], b [N], R like Y [.., N]. float and float16; sums are in float32.

Bf16: X and W are rounded to bfloat16, to nearest, ties to even. Their products are exact in float32 and are summed in
float32. All tensors are float. CPU only.
"""

from __future__ import annotations

from graphopt.ops.activation import ACTIVATIONS, Activation
from graphopt.ops.schema import (
    CAST_BFLOAT16_OPSET,
    Array,
    Dialect,
    OpSpec,
    bfloat16,
    plus,
    round_to_bfloat16,
    widen,
)


def _spec(activation: Activation, add: bool = False, bf16: bool = False) -> OpSpec:
    def reference(x: Array, w: Array, b: Array, *residual: Array, **attributes: float) -> tuple[Array, ...]:
        x, w = (bfloat16(x), bfloat16(w)) if bf16 else (widen(x), widen(w))
        y = x @ w + widen(b)
        return (activation.reference(plus(y, residual), **attributes),)

    def body(dialect: Dialect) -> str:
        total = "shifted = Add(product, b)\nsum = Add(shifted, R)\n" if add else "sum = Add(product, b)\n"
        factors = round_to_bfloat16("X_rounded", "X") + round_to_bfloat16("W_rounded", "W") if bf16 else ""
        product = "product = MatMul(X_rounded, W_rounded)\n" if bf16 else "product = MatMul(X, W)\n"
        return factors + product + total + activation.statements("sum", "Y", dialect)

    rounded = " in bfloat16" if bf16 else ""
    return OpSpec(
        name=f"Linear{'Add' if add else ''}{activation.suffix}{'Bf16' if bf16 else ''}",
        inputs=("X", "W", "b", "R") if add else ("X", "W", "b"),
        outputs=("Y",),
        attributes=activation.attribute_types,
        body=body,
        # ONNX Runtime has no float16 MatMul before 9.
        min_opset=max(activation.min_opset, CAST_BFLOAT16_OPSET if bf16 else 9),
        reference=reference,
        summary=f"Y = {activation.suffix or 'id'}(X W{rounded} + b{' + R' if add else ''})",
        gpu_kernel=not bf16,
        float32_only=bf16,
    )


# Models have no layer with both an activation and a residual sum.
SPECS = (
    *(_spec(activation, bf16=bf16) for bf16 in (False, True) for activation in ACTIVATIONS.values()),
    *(_spec(ACTIVATIONS[""], add=True, bf16=bf16) for bf16 in (False, True)),
)
