"""Pairs of channels, [N, C / 2, H, W, 2] in bfloat16: how the bodies of operators say it, and in numpy."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.ops.schema import Array, dim, ints


def from_pairs(x: Array) -> Array:
    """[N, C / 2, H, W, 2] as [N, C, H, W]."""
    N, pairs, H, W, _ = x.shape
    return np.asarray(x.transpose(0, 1, 4, 2, 3).reshape(N, 2 * pairs, H, W))


def to_pairs(y: Array) -> Array:
    """[N, C, H, W] as [N, C / 2, H, W, 2]."""
    N, C, H, W = y.shape
    return np.asarray(y.reshape(N, C // 2, 2, H, W).transpose(0, 1, 3, 4, 2))


def channels_of(x: str) -> str:
    """x, which has x_C channels, as x_float: in float32 and with an axis of channels, whichever way it lies.

    `spatial` is the int64 tensor [2, 3].
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


# P from Y, with the same `spatial`.
PAIRS_OF_Y = (
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
