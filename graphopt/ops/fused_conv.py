"""FusedConv[Add][act][Bf16]: Y = act(conv(X, W) + B + R), a convolution with what follows it.

X [N, C, D1..Dk] of one to three axes, W [M, C / group, K1..Kk], B [M], R like Y; pads = [begin.., end..] >= 0, strides,
dilations and group as of ONNX's Conv. float and float16.

Bf16: X and W are rounded to bfloat16, to nearest and ties to even; their products are exact in float32, in which they
are added. All tensors are float. For CPUs alone, where AVX512-BF16 multiplies twice as fast as float32.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from graphopt.ops.activation import ACTIVATIONS, Activation
from graphopt.ops.schema import (
    CAST_BFLOAT16_OPSET,
    Array,
    Dialect,
    OpSpec,
    bfloat16,
    round_to_bfloat16,
    widen,
)


def convolution(
    x: Array, w: Array, pads: Sequence[int], strides: Sequence[int], dilations: Sequence[int], group: int
) -> Array:
    """ONNX's Conv in float64, as a sum over the taps of the window."""
    axes = len(strides)
    x = np.pad(x, ((0, 0), (0, 0), *zip(pads[:axes], pads[axes:])))
    kernel = w.shape[2:]
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
    sizes = [(n - s) // stride + 1 for n, s, stride in zip(x.shape[2:], spans, strides)]
    N, M, C = x.shape[0], w.shape[0], w.shape[1]
    y = np.zeros((N, group, M // group, *sizes))
    for tap in itertools.product(*map(range, kernel)):
        at = tuple(slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, n, s in zip(tap, dilations, sizes, strides))
        every = (slice(None), slice(None))
        part = x[every + at].reshape(N, group, C, math.prod(sizes))
        weight = w[every + tap].reshape(group, M // group, C)
        y += np.einsum("ngcp,gmc->ngmp", part, weight, optimize=True).reshape(y.shape)
    return y.reshape(N, M, *sizes)


def _spec(activation: Activation, add: bool, brain: bool) -> OpSpec:
    def reference(
        x: Array,
        w: Array,
        b: Array,
        *residual: Array,
        pads: Sequence[int],
        strides: Sequence[int],
        dilations: Sequence[int],
        group: int,
        **attributes: float,
    ) -> tuple[Array, ...]:
        x, w = (bfloat16(x), bfloat16(w)) if brain else (widen(x), widen(w))
        y = convolution(x, w, pads, strides, dilations, group)
        y = y + widen(b).reshape(-1, *([1] * len(strides)))
        for r in residual:
            y = y + widen(r)
        return (activation.reference(y, **attributes),)

    def body(dialect: Dialect) -> str:
        window = "pads: ints = @pads, strides: ints = @strides, dilations: ints = @dilations, group: int = @group"
        conv = f"conv = Conv <{window}> (X, W, B)\n"
        if brain:
            conv = round_to_bfloat16("X_rounded", "X") + round_to_bfloat16("W_rounded", "W")
            conv += f"conv = Conv <{window}> (X_rounded, W_rounded, B)\n"
        if add:
            return conv + "sum = Add(conv, R)\n" + activation.statements("sum", "Y", dialect)
        return conv + activation.statements("conv", "Y", dialect)

    ints = ir.AttributeType.INTS
    conv = f"conv(X, W){' in bfloat16' if brain else ''}"
    return OpSpec(
        name=f"FusedConv{'Add' if add else ''}{activation.suffix}{'Bf16' if brain else ''}",
        inputs=("X", "W", "B", "R") if add else ("X", "W", "B"),
        outputs=("Y",),
        attributes={
            "pads": ints,
            "strides": ints,
            "dilations": ints,
            "group": ir.AttributeType.INT,
            **activation.attribute_types,
        },
        body=body,
        min_opset=max(activation.min_opset, CAST_BFLOAT16_OPSET) if brain else activation.min_opset,
        reference=reference,
        summary=f"Y = {activation.suffix or 'id'}({conv} + B{' + R' if add else ''})",
        gpu_kernel=not brain,
        float32_only=brain,
    )


SPECS = tuple(_spec(a, add, brain) for brain in (False, True) for add in (False, True) for a in ACTIVATIONS.values())
