"""ScaleShift[Add][act]: Y = act(X * scale + shift + R), a BatchNormalization at inference.

X [N, C, D1, ..., Dk]. scale and shift are [C, 1, ..., 1]: they have one dimension less than X and broadcast to it.
R like X. float and float16.
"""

from __future__ import annotations

from graphopt.ops.activation import ACTIVATIONS, Activation
from graphopt.ops.schema import Array, Dialect, OpSpec, plus, widen


def _spec(activation: Activation, add: bool) -> OpSpec:
    def reference(x: Array, scale: Array, shift: Array, *residual: Array, **attributes: float) -> tuple[Array, ...]:
        y = widen(x) * widen(scale) + widen(shift)
        return (activation.reference(plus(y, residual), **attributes),)

    def body(dialect: Dialect) -> str:
        total = "shifted = Add(scaled, shift)\nsum = Add(shifted, R)\n" if add else "sum = Add(scaled, shift)\n"
        return "scaled = Mul(X, scale)\n" + total + activation.statements("sum", "Y", dialect)

    return OpSpec(
        name=f"ScaleShift{'Add' if add else ''}{activation.suffix}",
        inputs=("X", "scale", "shift", "R") if add else ("X", "scale", "shift"),
        outputs=("Y",),
        attributes=activation.attribute_types,
        body=body,
        min_opset=activation.min_opset,
        reference=reference,
        summary=f"Y = {activation.suffix or 'id'}(X * scale + shift{' + R' if add else ''}), per channel",
        keeps_shape=True,
    )


SPECS = tuple(_spec(a, add) for add in (False, True) for a in ACTIVATIONS.values())
