"""Fused<act>: Y = act(X), for activations that models write out in several nodes. X of any shape; float and float16."""

from __future__ import annotations

from graphopt.ops.activation import ACTIVATIONS, Activation
from graphopt.ops.schema import Array, Dialect, OpSpec, widen

FUSED = ("HardSwish", "Gelu", "GeluTanh", "Mish")


def _spec(activation: Activation) -> OpSpec:
    def reference(x: Array) -> tuple[Array, ...]:
        return (activation.reference(widen(x)),)

    def body(dialect: Dialect) -> str:
        return activation.statements("X", "Y", dialect)

    return OpSpec(
        name=f"Fused{activation.suffix}",
        inputs=("X",),
        outputs=("Y",),
        attributes={},
        body=body,
        min_opset=activation.min_opset,
        reference=reference,
        summary=f"Y = {activation.suffix}(X)",
        keeps_shape=True,
    )


SPECS = tuple(_spec(ACTIVATIONS[suffix]) for suffix in FUSED)
