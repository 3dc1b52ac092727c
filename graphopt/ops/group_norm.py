"""FusedGroupNorm[act]: Y = act(gamma * (X - mean) / sqrt(var + epsilon) + beta), statistics per image and group.

X [N, C, D1, ..., Dk] with k >= 1, gamma and beta [C], C a multiple of num_groups. float and float16, statistics in
float32 at least. Y. Wu, K. He, "Group Normalization", ECCV 2018.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.ops.activation import ACTIVATIONS, Activation
from graphopt.ops.schema import (
    VALUE_OPSET,
    Array,
    Dialect,
    OpSpec,
    attribute,
    cast_like,
    dim,
    ints,
    reduce_sum,
    widen,
)


def _groups(dialect: Dialect) -> str:
    """Returns statements that write num_groups to groups_1d, an int64 tensor of shape [1]."""
    reshape = ints("one_dim", 1) + "groups_1d = Reshape(groups, one_dim)\n"
    if dialect.opset >= VALUE_OPSET:
        return "groups = Constant <value_int: int = @num_groups> ()\n" + reshape
    # Below VALUE_OPSET Constant cannot refer to an attribute, but EyeLike can: it writes a 1 into a row of C + 1 zeros
    # at index num_groups <= C.
    return (
        dim("channels", "X", 1)
        + ints("one", 1)
        + "columns = Add(channels, one)\nrow_shape = Concat <axis: int = 0> (one, columns)\n"
        + "row = ConstantOfShape(row_shape)\nat_groups = EyeLike <k: int = @num_groups> (row)\n"
        + "groups = ArgMax <axis: int = 1> (at_groups)\n"
        + reshape
    )


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

    def body(dialect: Dialect) -> str:
        return (
            _groups(dialect)
            + ints("keep", 0)
            + ints("rest", -1)
            + "grouped_shape = Concat <axis: int = 0> (keep, groups_1d, rest)\n"
            + "x_float = Cast <to: int = 1> (X)\ngrouped = Reshape(x_float, grouped_shape)\n"
            + dim("count_1d", "grouped", 2)
            + "count = Cast <to: int = 1> (count_1d)\n"
            + reduce_sum("total", "grouped", 2, dialect)
            + "mean = Div(total, count)\ncentred = Sub(grouped, mean)\nsquares = Mul(centred, centred)\n"
            + reduce_sum("total_squares", "squares", 2, dialect)
            + "variance = Div(total_squares, count)\n"
            + attribute("eps", "epsilon", dialect)
            + "variance_eps = Add(variance, eps)\ndeviation = Sqrt(variance_eps)\n"
            + "normalized = Div(centred, deviation)\n"
            + "x_shape = Shape(X)\nungrouped = Reshape(normalized, x_shape)\n"
            + ints("by_channel_shape", 0, 0, -1)
            + "by_channel = Reshape(ungrouped, by_channel_shape)\n"
            + ints("column", -1, 1)
            + "gamma_column = Reshape(gamma, column)\ngamma_float = Cast <to: int = 1> (gamma_column)\n"
            + "beta_column = Reshape(beta, column)\nbeta_float = Cast <to: int = 1> (beta_column)\n"
            + "scaled = Mul(by_channel, gamma_float)\nshifted = Add(scaled, beta_float)\n"
            + "y_float = Reshape(shifted, x_shape)\n"
            + cast_like("y_affine", "y_float", "X", dialect)
            + activation.statements("y_affine", "Y", dialect)
        )

    return OpSpec(
        name=f"FusedGroupNorm{activation.suffix}",
        inputs=("X", "gamma", "beta"),
        outputs=("Y",),
        attributes={
            "num_groups": ir.AttributeType.INT,
            "epsilon": ir.AttributeType.FLOAT,
            **activation.attribute_types,
        },
        body=body,
        min_opset=9,  # ConstantOfShape, EyeLike
        reference=reference,
        summary=f"Y = {activation.suffix or 'id'}(gamma (X - mean) / sqrt(var + epsilon) + beta), per group",
        keeps_shape=True,
    )


SPECS = tuple(_spec(a) for a in ACTIVATIONS.values())
