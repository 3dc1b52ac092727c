"""The NCHW2c bf16 layout, [N, C / 2, H, W, 2] in bfloat16: conversions in numpy and in function bodies."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.ops.schema import Array, dim, ints


def from_nchw2c(x: Array) -> Array:
    """Converts [N, C / 2, H, W, 2] to [N, C, H, W]."""
    N, pairs, H, W, _ = x.shape
    return np.asarray(x.transpose(0, 1, 4, 2, 3).reshape(N, 2 * pairs, H, W))


def to_nchw2c(y: Array) -> Array:
    """Converts [N, C, H, W] to [N, C / 2, H, W, 2]."""
    N, C, H, W = y.shape
    return np.asarray(y.reshape(N, C // 2, 2, H, W).transpose(0, 1, 3, 4, 2))


def channels_of(x: str) -> str:
    """Returns statements that compute x_float, float32 [N, C, H, W], from x in NCHW or NCHW2c layout.

    The statements use the values x_C (int64 [1], the number of channels) and `spatial` (int64 [2], 2 and 3).
    """
    return (
        dim(f"{x}_N", x, 0)
        + dim(f"{x}_depth", x, 1)
        + f"""{x}_each = Div({x}_C, {x}_depth)
    {x}_sizes = Gather({x}_N_shape, spatial)
    {x}_parts = Concat <axis: int = 0> ({x}_N, {x}_depth, {x}_sizes, {x}_each)
    {x}_whole = Concat <axis: int = 0> ({x}_N, {x}_C, {x}_sizes)
    {x}_split = Reshape({x}, {x}_parts)
    {x}_planes = Transpose <perm: ints = [0, 1, 4, 2, 3]> ({x}_split)
    {x}_plain = Reshape({x}_planes, {x}_whole)
    {x}_float = Cast <to: int = 1> ({x}_plain)
    """
    )


# Statements that compute P, in NCHW2c bf16 layout, from Y [N, C, H, W] and `spatial` (see channels_of).
NCHW2C_OF_Y = (
    dim("Y_N", "Y", 0)
    + dim("Y_C", "Y", 1)
    + ints("two", 2)
    + f"""Y_pairs = Div(Y_C, two)
    Y_sizes = Gather(Y_N_shape, spatial)
    Y_parts = Concat <axis: int = 0> (Y_N, Y_pairs, two, Y_sizes)
    Y_split = Reshape(Y, Y_parts)
    Y_together = Transpose <perm: ints = [0, 1, 3, 4, 2]> (Y_split)
    P = Cast <to: int = {int(ir.DataType.BFLOAT16)}> (Y_together)
    """
)
