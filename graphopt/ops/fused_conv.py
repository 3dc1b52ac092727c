"""FusedConv[Add][act][Bf16]: Y = act(conv(X, W) + B + R), a convolution with residual sum and activation.

X [N, C, D1..Dk] of one to three axes, W [M, C / group, K1..Kk], B [M], R like Y; pads = [begin.., end..] >= 0, strides,
dilations and group as in ONNX's Conv. float and float16.

FusedConv[Add]PRelu: Y = PRelu(conv(X, W) + B + R, slope) with a slope for each channel, [M, 1, .., 1].

Bf16: X and W are rounded to bfloat16, to nearest, ties to even. Their products are exact in float32 and are summed in
float32. All tensors are float. CPU only.

FusedConvNchw2c[Add][act]Bf16: the same over two axes, with the NCHW2c bf16 layout [N, C / 2, H, W, 2]. X may have this
layout if C is even; R may have it, with the shape of P. Outputs: Y as above, which may be omitted, and P, which is Y
rounded to bfloat16 in NCHW2c. Each group has an even number of output channels, or one input and one output channel
with an even number of groups.
FusedConvFromNchw2c[Add][act]Bf16: X is NCHW2c, R is NCHW or NCHW2c, and Y is NCHW. M may be odd unless R is NCHW2c.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from graphopt.ops.activation import ACTIVATIONS, Activation, with_slopes
from graphopt.ops.nchw2c import NCHW2C_OF_Y, channels_of, from_nchw2c, to_nchw2c
from graphopt.ops.schema import (
    CAST_BFLOAT16_OPSET,
    MIN_OPSET,
    Array,
    Dialect,
    OpSpec,
    bfloat16,
    dim,
    ints,
    plus,
    round_to_bfloat16,
    widen,
)

# The attributes of a window, as in ONNX's Conv.
WINDOW = {**dict.fromkeys(("pads", "strides", "dilations"), ir.AttributeType.INTS), "group": ir.AttributeType.INT}
WINDOW_STATEMENT = "pads: ints = @pads, strides: ints = @strides, dilations: ints = @dilations, group: int = @group"


def convolution(
    x: Array, w: Array, pads: Sequence[int], strides: Sequence[int], dilations: Sequence[int], group: int
) -> Array:
    """Computes ONNX's Conv as a sum over the taps of the window.

    Args:
        x: float64 [N, C, D1..Dk].
        w: float64 [M, C / group, K1..Kk].
        pads: k begins, then k ends; not negative.
        strides: k integers.
        dilations: k integers.
        group: the number of groups.

    Returns:
        float64 [N, M, E1..Ek].
    """
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


_PLAIN_X = (
    dim("W_C", "W", 1)
    + "groups = Constant <value_int: int = @group> ()\nX_C = Mul(W_C, groups)\n"
    + ints("spatial", 2, 3)
    + channels_of("X")
)
_PLAIN_R = dim("R_C", "W", 0) + channels_of("R")


def _accept_nchw2c(plain: OpSpec) -> OpSpec:
    """Makes a FusedConv with X and R in NCHW or NCHW2c bf16 layout."""

    def body(dialect: Dialect) -> str:
        statements = plain.body(dialect).replace("(X)", "(X_float)").replace("(conv, R)", "(conv, R_float)")
        return _PLAIN_X + (_PLAIN_R if "R" in plain.inputs else "") + statements

    def reference(x: Array, w: Array, b: Array, *residual: Array, **attributes: Any) -> tuple[Array, ...]:
        x, *residual_plain = (from_nchw2c(bfloat16(a)) if a.ndim == 5 else a for a in (x, *residual))
        return plain.reference(x, w, b, *residual_plain, **attributes)

    return replace(plain, body=body, reference=reference)


def _spec_to_nchw2c(plain: OpSpec) -> OpSpec:
    """Makes FusedConvNchw2c[Add][act]Bf16, with the second output P in NCHW2c bf16 layout."""
    accepting = _accept_nchw2c(plain)

    def reference(*inputs: Array, **attributes: Any) -> tuple[Array, ...]:
        (y,) = accepting.reference(*inputs, **attributes)
        return y, bfloat16(to_nchw2c(y))

    return replace(
        plain,
        name=plain.name.replace("FusedConv", "FusedConvNchw2c"),
        outputs=("Y", "P"),
        body=lambda dialect: accepting.body(dialect) + NCHW2C_OF_Y,
        reference=reference,
        summary=f"{plain.summary}; P = Y in NCHW2c bf16 layout, which X may have",
        bfloat16=("P",),
        X_types=("float32", "bfloat16"),
    )


def _spec_from_nchw2c(plain: OpSpec) -> OpSpec:
    """Makes FusedConvFromNchw2c[Add][act]Bf16, with X in NCHW2c bf16 layout."""
    return replace(
        _accept_nchw2c(plain),
        name=plain.name.replace("FusedConv", "FusedConvFromNchw2c"),
        summary=f"{plain.summary}, X in NCHW2c bf16 layout",
        X_types=("bfloat16",),
    )


def convolution_specs(
    name: str,
    formula: str,
    attributes: Mapping[str, ir.AttributeType],
    convolve: Callable[..., Array],
    statements: str,
    *,
    suffix: str = "",
    min_opset: int = MIN_OPSET,
    **properties: Any,
) -> tuple[OpSpec, ...]:
    """Makes NAME[Add][act] with every activation: Y = act(conv(X, W) + B + R).

    Args:
        name: the name without residual and activation.
        formula: the convolution in the summary.
        attributes: the attributes of the convolution, without the activation's.
        convolve: computes conv(X, W) in float64, with these attributes by name.
        statements: statements of the function body that define `conv`, the convolution with its bias.
        suffix: the end of the name.
        min_opset: the oldest default opset that the statements can be written for.
        properties: further members of `OpSpec`.
    """

    def spec(activation: Activation, add: bool) -> OpSpec:
        def reference(x: Array, w: Array, b: Array, *residual: Array, **given: Any) -> tuple[Array, ...]:
            y = convolve(widen(x), widen(w), **{name: given.pop(name) for name in attributes})
            y = y + widen(b).reshape(-1, *([1] * (y.ndim - 2)))
            return (activation.reference(plus(y, residual), **given),)

        def body(dialect: Dialect) -> str:
            total, more = ("sum", "sum = Add(conv, R)\n") if add else ("conv", "")
            return statements + more + activation.statements(total, "Y", dialect)

        return OpSpec(
            name=f"{name}{'Add' if add else ''}{activation.suffix}{suffix}",
            inputs=("X", "W", "B", "R") if add else ("X", "W", "B"),
            outputs=("Y",),
            attributes={**attributes, **activation.attribute_types},
            body=body,
            min_opset=max(activation.min_opset, min_opset),
            reference=reference,
            summary=f"Y = {activation.suffix or 'id'}({formula} + B{' + R' if add else ''})",
            **properties,
        )

    return tuple(spec(activation, add) for add in (False, True) for activation in ACTIVATIONS.values())


def _rounded_convolution(x: Array, w: Array, **window: Any) -> Array:
    return convolution(bfloat16(x), bfloat16(w), **window)


_STATEMENT = f"conv = Conv <{WINDOW_STATEMENT}> (X, W, B)\n"
_ROUNDED = round_to_bfloat16("X_rounded", "X") + round_to_bfloat16("W_rounded", "W")
_PLAIN = convolution_specs("FusedConv", "conv(X, W)", WINDOW, convolution, _STATEMENT)
_BF16 = convolution_specs(
    "FusedConv",
    "conv(X, W) in bfloat16",
    WINDOW,
    _rounded_convolution,
    _ROUNDED + _STATEMENT.replace("(X, W, B)", "(X_rounded, W_rounded, B)"),
    suffix="Bf16",
    min_opset=CAST_BFLOAT16_OPSET,
    gpu_kernel=False,
    float32_only=True,
)
SPECS = (
    *_PLAIN,
    *_BF16,
    *(with_slopes(spec) for spec in _PLAIN if spec.name in ("FusedConv", "FusedConvAdd")),
    *(make(spec) for make in (_spec_to_nchw2c, _spec_from_nchw2c) for spec in _BF16),
)
