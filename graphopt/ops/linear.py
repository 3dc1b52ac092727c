"""Linear[act] and LinearAdd: Y = act(X W + b + R), the fully connected layer of a feed-forward network.

X [.., K], W [K, N], b [N], R like Y [.., N]. float and float16.
The only family without a CPU kernel: there the body runs, which is what the runtime's own fusions look for.
"""

from __future__ import annotations

from graphopt.ops.activation import ACTIVATIONS, Activation
from graphopt.ops.schema import Array, Dialect, OpSpec, widen


def _spec(activation: Activation, add: bool = False) -> OpSpec:
    def reference(x: Array, w: Array, b: Array, *residual: Array, **attributes: float) -> tuple[Array, ...]:
        y = widen(x) @ widen(w) + widen(b)
        for r in residual:
            y = y + widen(r)
        return (activation.reference(y, **attributes),)

    def body(dialect: Dialect) -> str:
        total = "shifted = Add(product, b)\nsum = Add(shifted, R)\n" if add else "sum = Add(product, b)\n"
        return "product = MatMul(X, W)\n" + total + activation.statements("sum", "Y", dialect)

    return OpSpec(
        name=f"Linear{'Add' if add else ''}{activation.suffix}",
        inputs=("X", "W", "b", "R") if add else ("X", "W", "b"),
        outputs=("Y",),
        attributes=activation.attribute_types,
        body=body,
        min_opset=max(activation.min_opset, 9),  # ONNX Runtime has no float16 MatMul before
        reference=reference,
        summary=f"Y = {activation.suffix or 'id'}(X W + b{' + R' if add else ''})",
        cpu_kernel=False,
    )


# An activation and a residual sum do not meet in one layer.
SPECS = (
    *(_spec(ACTIVATIONS[suffix]) for suffix in ("", "Relu", "Silu", "Gelu", "GeluTanh", "Mish")),
    _spec(ACTIVATIONS[""], add=True),
)
