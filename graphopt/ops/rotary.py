"""FusedRotary[Interleaved]: rotary position embedding, Y = Z cos + rotated(Z) sin with Z = Transpose(X, perm).

rotated(Z) = [-z2, z1] for the halves z1 and z2 of Z's last axis; Interleaved: (-z1, z0) for each adjacent pair z0, z1.
X has rank 2, 3 or 4 and an even last axis D, which perm keeps last. cos and sin [.., D] broadcast to the shape of Z.
float and float16.
J. Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from graphopt.ops.schema import AXES_INPUT_OPSET, Array, Dialect, OpSpec, dim, ints, widen


def _spec(interleaved: bool) -> OpSpec:
    def reference(x: Array, cos: Array, sin: Array, *, perm: Sequence[int]) -> tuple[Array, ...]:
        z = widen(x).transpose(perm)
        if interleaved:
            rotated = np.stack((-z[..., 1::2], z[..., ::2]), axis=-1).reshape(z.shape)
        else:
            first, second = np.split(z, 2, axis=-1)
            rotated = np.concatenate((-second, first), axis=-1)
        return (z * widen(cos) + rotated * widen(sin),)

    def body(dialect: Dialect) -> str:
        statements = "Z = Transpose <perm: ints = @perm> (X)\n" + dim("D", "Z", -1)
        statements += ints("last", -1) + ints("zero", 0) + ints("one", 1) + ints("two", 2)
        if interleaved:
            statements += "z0 = Slice(Z, zero, D, last, two)\nz1 = Slice(Z, one, D, last, two)\nn1 = Neg(z1)\n"
            for part in ("n1", "z0"):
                if dialect.opset < AXES_INPUT_OPSET:
                    statements += f"{part}_pair = Unsqueeze <axes: ints = [-1]> ({part})\n"
                else:
                    statements += f"{part}_pair = Unsqueeze({part}, last)\n"
            statements += "pairs = Concat <axis: int = -1> (n1_pair, z0_pair)\nshape = Shape(Z)\n"
            statements += "rotated = Reshape(pairs, shape)\n"
        else:
            statements += "half = Div(D, two)\nz0 = Slice(Z, zero, half, last)\nz1 = Slice(Z, half, D, last)\n"
            statements += "n1 = Neg(z1)\nrotated = Concat <axis: int = -1> (n1, z0)\n"
        return statements + "by_cos = Mul(Z, cos)\nby_sin = Mul(rotated, sin)\nY = Add(by_cos, by_sin)\n"

    return OpSpec(
        name=f"FusedRotary{'Interleaved' if interleaved else ''}",
        inputs=("X", "cos", "sin"),
        outputs=("Y",),
        attributes={"perm": ir.AttributeType.INTS},
        body=body,
        min_opset=11,  # negative axes of Concat and Unsqueeze
        reference=reference,
        summary="Y = Z cos + rotated(Z) sin, Z = Transpose(X, perm)",
    )


SPECS = tuple(_spec(interleaved) for interleaved in (False, True))
