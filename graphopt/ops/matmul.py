"""MatMulBf16: Y = alpha A B, a matrix multiplication of two activations, rounded to bfloat16.

`a_perm` transposes A to [.., M, K] and `b_perm` transposes B to [.., K, N]. Both have rank 2 or more, and batch axes
broadcast as in MatMul. a_perm keeps A's last axis last, and b_perm keeps B's last axis among the last two.

A and B are rounded to nearest, ties to even. Their products are exact in float32 and are summed in float32. All tensors
are float. CPU only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from graphopt.ops.schema import CAST_BFLOAT16_OPSET, Array, Dialect, OpSpec, attribute, bfloat16, round_to_bfloat16


def _reference(a: Array, b: Array, *, alpha: float, a_perm: Sequence[int], b_perm: Sequence[int]) -> tuple[Array, ...]:
    return (alpha * (bfloat16(np.transpose(a, a_perm)) @ bfloat16(np.transpose(b, b_perm))),)


def _body(dialect: Dialect) -> str:
    return (
        attribute("factor", "alpha", dialect)
        + "A_permuted = Transpose <perm: ints = @a_perm> (A)\nB_permuted = Transpose <perm: ints = @b_perm> (B)\n"
        + round_to_bfloat16("A_rounded", "A_permuted")
        + round_to_bfloat16("B_rounded", "B_permuted")
        + "product = MatMul(A_rounded, B_rounded)\nY = Mul(product, factor)\n"
    )


SPECS = (
    OpSpec(
        name="MatMulBf16",
        inputs=("A", "B"),
        outputs=("Y",),
        attributes={
            "alpha": ir.AttributeType.FLOAT,
            "a_perm": ir.AttributeType.INTS,
            "b_perm": ir.AttributeType.INTS,
        },
        body=_body,
        min_opset=CAST_BFLOAT16_OPSET,
        reference=_reference,
        summary="Y = alpha A B in bfloat16",
        gpu_kernel=False,
        float32_only=True,
    ),
)
