"""FusedLayerNorm2d: Y = gamma (X - mean) / sqrt(var + epsilon) + beta, over the channels (axis 1) of each pixel.

X [N, C, D1, ..., Dk], gamma and beta [C]. float and float16, statistics in float32.
LayerNorm2d of SAM and timm; Z. Liu et al., "A ConvNet for the 2020s", 2022.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.ops.schema import Array, Dialect, OpSpec, attribute, cast_like, ints, reduce_mean, widen


def _reference(x: Array, gamma: Array, beta: Array, *, epsilon: float) -> tuple[Array, ...]:
    channel = (-1,) + (1,) * (x.ndim - 2)
    centred = widen(x) - widen(x).mean(axis=1, keepdims=True)
    y = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + epsilon)
    return (y * widen(gamma).reshape(channel) + widen(beta).reshape(channel),)


def _body(dialect: Dialect) -> str:
    return (
        "x = Cast <to: int = 1> (X)\n"
        + reduce_mean("mean", "x", 1, dialect)
        + "centred = Sub(x, mean)\nsquares = Mul(centred, centred)\n"
        + reduce_mean("variance", "squares", 1, dialect)
        + attribute("eps_any_rank", "epsilon", dialect)
        + ints("one_dim", 1)
        + "eps = Reshape(eps_any_rank, one_dim)\n"
        + "variance_eps = Add(variance, eps)\ndeviation = Sqrt(variance_eps)\nnormalized = Div(centred, deviation)\n"
        # [1, C, 1, ..., 1]
        + "shape = Shape(X)\nrank = Shape(shape)\n"
        + ints("minus_one", -1)
        + ints("two", 2)
        + "axes_behind = Sub(rank, two)\n"
        + "ones_behind = ConstantOfShape <value: tensor = int64[1] {1}> (axes_behind)\n"
        + "channel = Concat <axis: int = 0> (one_dim, minus_one, ones_behind)\n"
        + "gamma_float = Cast <to: int = 1> (gamma)\ngamma_channel = Reshape(gamma_float, channel)\n"
        + "beta_float = Cast <to: int = 1> (beta)\nbeta_channel = Reshape(beta_float, channel)\n"
        + "scaled = Mul(normalized, gamma_channel)\nshifted = Add(scaled, beta_channel)\n"
        + cast_like("Y", "shifted", "X", dialect)
    )


SPECS = (
    OpSpec(
        name="FusedLayerNorm2d",
        inputs=("X", "gamma", "beta"),
        outputs=("Y",),
        attributes={"epsilon": ir.AttributeType.FLOAT},
        body=_body,
        min_opset=9,  # ConstantOfShape
        reference=_reference,
        summary="Y = norm(X) gamma + beta over axis 1",
        keeps_shape=True,
    ),
)
