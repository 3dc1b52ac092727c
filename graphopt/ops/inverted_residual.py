"""InvertedResidual[Add][act]: Y = conv(act(depthwise(act(conv(X, W1) + B1), W2) + B2), W3) + B3 + R.

X [N, C, H, W], W1 [M, C, 1, 1], B1 [M], W2 [M, 1, kh, kw], B2 [M], W3 [O, M, 1, 1], B3 [O], R like Y. The attributes
pads = [top, left, bottom, right] >= 0, strides and group (equal to M) are those of the depthwise convolution, as in
ONNX's Conv. float32, CPU only.
The block of MobileNetV2: M. Sandler et al., CVPR 2018.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from graphopt.ops.activation import ACTIVATIONS, Activation
from graphopt.ops.fused_conv import convolution
from graphopt.ops.schema import Array, Dialect, OpSpec, plus, widen

NAME = "InvertedResidual"


def _spec(activation: Activation, add: bool) -> OpSpec:
    def reference(
        x: Array,
        w1: Array,
        b1: Array,
        w2: Array,
        b2: Array,
        w3: Array,
        b3: Array,
        *residual: Array,
        pads: Sequence[int],
        strides: Sequence[int],
        group: int,
        **attributes: float,
    ) -> tuple[Array, ...]:
        def conv(y: Array, w: Array, b: Array, pads: Sequence[int], strides: Sequence[int], group: int) -> Array:
            return convolution(y, widen(w), pads, strides, (1, 1), group) + widen(b)[:, None, None]

        none, ones = (0, 0, 0, 0), (1, 1)
        y = activation.reference(conv(widen(x), w1, b1, none, ones, 1), **attributes)
        y = activation.reference(conv(y, w2, b2, pads, strides, group), **attributes)
        return (plus(conv(y, w3, b3, none, ones, 1), residual),)

    def body(dialect: Dialect) -> str:
        statements = "first = Conv(X, W1, B1)\n" + activation.statements("first", "hidden", dialect)
        window = "pads: ints = @pads, strides: ints = @strides, group: int = @group"
        statements += f"second = Conv <{window}> (hidden, W2, B2)\n"
        statements += activation.statements("second", "filtered", dialect).replace("act_", "act2_")
        if add:
            return statements + "third = Conv(filtered, W3, B3)\nY = Add(third, R)\n"
        return statements + "Y = Conv(filtered, W3, B3)\n"

    ints = ir.AttributeType.INTS
    f = activation.suffix or "id"
    return OpSpec(
        name=f"{NAME}{'Add' if add else ''}{activation.suffix}",
        inputs=("X", "W1", "B1", "W2", "B2", "W3", "B3", *(("R",) if add else ())),
        outputs=("Y",),
        attributes={"pads": ints, "strides": ints, "group": ir.AttributeType.INT, **activation.attribute_types},
        body=body,
        min_opset=activation.min_opset,
        reference=reference,
        summary=f"Y = conv({f}(depthwise({f}(conv(X, W1) + B1), W2) + B2), W3) + B3{' + R' if add else ''}",
        gpu_kernel=False,
        float32_only=True,
    )


SPECS = tuple(_spec(activation, add) for add in (False, True) for activation in ACTIVATIONS.values())
