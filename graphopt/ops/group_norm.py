"""FusedGroupNorm[act]: Y = act(gamma * (X - mean) / sqrt(var + epsilon) + beta), statistics per image and group.

X [N, C, D1, ..., Dk] with k >= 1, gamma and beta [C], C a multiple of num_groups. float and float16, statistics in
float32 at least. Y. Wu, K. He, "Group Normalization", ECCV 2018.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.ops.activation import ACTIVATIONS, Activation
from graphopt.ops.schema import Array, OpSpec, widen


def _spec(activation: Activation) -> OpSpec:
    def reference(
        x: Array, gamma: Array, beta: Array, /, *, num_groups: int, epsilon: float, **attributes: float
    ) -> tuple[Array, ...]:
        grouped = widen(x).reshape(x.shape[0], num_groups, -1)
        mean = grouped.mean(axis=2, keepdims=True)
        normalized = (grouped - mean) / np.sqrt(grouped.var(axis=2, keepdims=True) + epsilon)
        per_channel = (-1,) + (1,) * (x.ndim - 2)
        y = normalized.reshape(x.shape) * widen(gamma).reshape(per_channel) + widen(beta).reshape(per_channel)
        return (activation.reference(y, **attributes),)

    body = """  groups = Constant <value_int: int = @num_groups> ()
  axis0 = Constant <value_ints: ints = [0]> ()
  groups_1d = Unsqueeze(groups, axis0)
  keep = Constant <value_ints: ints = [0]> ()
  rest = Constant <value_ints: ints = [-1]> ()
  grouped_shape = Concat <axis: int = 0> (keep, groups_1d, rest)
  x_float = Cast <to: int = 1> (X)
  grouped = Reshape(x_float, grouped_shape)
  axis2 = Constant <value_ints: ints = [2]> ()
  count_1d = Shape <start: int = 2, end: int = 3> (grouped)
  count = Cast <to: int = 1> (count_1d)
  total = ReduceSum <keepdims: int = 1> (grouped, axis2)
  mean = Div(total, count)
  centred = Sub(grouped, mean)
  squares = Mul(centred, centred)
  total_squares = ReduceSum <keepdims: int = 1> (squares, axis2)
  variance = Div(total_squares, count)
  eps = Constant <value_float: float = @epsilon> ()
  variance_eps = Add(variance, eps)
  deviation = Sqrt(variance_eps)
  normalized = Div(centred, deviation)
  x_shape = Shape(X)
  channels_shape = Constant <value_ints: ints = [0, 0, -1]> ()
  ungrouped = Reshape(normalized, x_shape)
  by_channel = Reshape(ungrouped, channels_shape)
  axis1 = Constant <value_ints: ints = [1]> ()
  gamma_column = Unsqueeze(gamma, axis1)
  beta_column = Unsqueeze(beta, axis1)
  gamma_float = Cast <to: int = 1> (gamma_column)
  beta_float = Cast <to: int = 1> (beta_column)
  scaled = Mul(by_channel, gamma_float)
  shifted = Add(scaled, beta_float)
  y_float = Reshape(shifted, x_shape)
  y_affine = CastLike(y_float, X)
"""
    return OpSpec(
        name=f"FusedGroupNorm{activation.suffix}",
        inputs=("X", "gamma", "beta"),
        outputs=("Y",),
        attributes={
            "num_groups": ir.AttributeType.INT,
            "epsilon": ir.AttributeType.FLOAT,
            **activation.attribute_types,
        },
        body=body + activation.statements("y_affine", "Y"),
        reference=reference,
        summary=f"Y = {activation.suffix or 'id'}(gamma (X - mean) / sqrt(var + epsilon) + beta), per group",
    )


SPECS = tuple(_spec(a) for a in ACTIVATIONS.values())
