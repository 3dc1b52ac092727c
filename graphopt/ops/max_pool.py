"""MaxPoolPlanes: Y = MaxPool(X) over H and W. MaxPoolNchw2cBf16: P = MaxPool(X) in NCHW2c bf16 layout.

X and Y [N, C, H, W], float or float16; in NCHW2c X and P [N, C / 2, H, W, 2], bfloat16. kernel_shape, strides and
dilations have two elements, pads = [top, left, bottom, right] >= 0 are smaller than the window, as in ONNX's MaxPool
with ceil_mode = 0. CPU only.

Output sizes are ONNX Runtime's: (padded size - window) / stride + 1 with the quotient truncated toward zero. A window
that exceeds the padded size by less than one stride gives size 1. If it exceeds the padded size by at least one stride,
but less than two, the size is 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from graphopt.ops.nchw2c import NCHW2C_OF_Y, channels_of, from_nchw2c, to_nchw2c
from graphopt.ops.schema import CAST_BFLOAT16_OPSET, Array, Dialect, OpSpec, bfloat16, dim, ints, widen

PLANES = "MaxPoolPlanes"
NCHW2C = "MaxPoolNchw2cBf16"
WINDOW = ("kernel_shape", "pads", "strides", "dilations")
DILATIONS_OPSET = 10  # the first opset with dilations in MaxPool
_POOL = f"MaxPool <{', '.join(f'{name}: ints = @{name}' for name in WINDOW)}>"


def _planes(
    x: Array, kernel_shape: Sequence[int], pads: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[Array, ...]:
    spans = [(k - 1) * d + 1 for k, d in zip(kernel_shape, dilations)]
    remaining = [n + sum(pads[i::2]) - s for i, (n, s) in enumerate(zip(x.shape[2:], spans))]
    sizes = [int(n / stride) + 1 for n, stride in zip(remaining, strides)]  # toward zero; see above
    after = [pad + max(-n, 0) for pad, n in zip(pads[2:], remaining)]
    x = np.pad(widen(x), ((0, 0), (0, 0), *zip(pads[:2], after)), constant_values=-np.inf)
    y = np.full((*x.shape[:2], *sizes), -np.inf)
    for tap in itertools.product(*map(range, kernel_shape)):
        at = [slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, n, s in zip(tap, dilations, sizes, strides)]
        y = np.maximum(y, x[:, :, at[0], at[1]])
    return (y,)


def _max_pool_nchw2c(x: Array, **window: Sequence[int]) -> tuple[Array, ...]:
    return (to_nchw2c(_planes(from_nchw2c(bfloat16(x)), **window)[0]),)


def _nchw2c_body(_: Dialect) -> str:
    return (
        ints("spatial", 2, 3)
        + dim("half", "X", 1)
        + ints("both", 2)
        + "X_C = Mul(half, both)\n"
        + channels_of("X")
        + f"Y = {_POOL} (X_float)\n"
        + NCHW2C_OF_Y
    )


SPECS = (
    OpSpec(
        name=PLANES,
        inputs=("X",),
        outputs=("Y",),
        attributes=dict.fromkeys(WINDOW, ir.AttributeType.INTS),
        body=lambda _: f"Y = {_POOL} (X)\n",
        min_opset=DILATIONS_OPSET,
        reference=_planes,
        summary="Y = MaxPool(X)",
        gpu_kernel=False,
    ),
    OpSpec(
        name=NCHW2C,
        inputs=("X",),
        outputs=("P",),
        attributes=dict.fromkeys(WINDOW, ir.AttributeType.INTS),
        body=_nchw2c_body,
        min_opset=CAST_BFLOAT16_OPSET,
        reference=_max_pool_nchw2c,
        summary="P = MaxPool(X), both in NCHW2c bf16 layout",
        gpu_kernel=False,
        float32_only=True,
        bfloat16=("P",),
        X_types=("bfloat16",),
    ),
)
