"""AxisSoftmax: Y = Softmax(X) over an axis before the last, as ONNX's Softmax-13.

X and Y [.., D, ..], float or float16, computed in float32; `axis` may be negative. CPU only.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.ops.schema import AXES_INPUT_OPSET, Array, OpSpec, widen

NAME = "AxisSoftmax"


def _reference(x: Array, axis: int) -> tuple[Array, ...]:
    x = widen(x)
    e = np.exp(x - x.max(axis=axis, keepdims=True, initial=-np.inf))
    return (e / e.sum(axis=axis, keepdims=True),)


SPECS = (
    OpSpec(
        name=NAME,
        inputs=("X",),
        outputs=("Y",),
        attributes={"axis": ir.AttributeType.INT},
        body=lambda _: "Y = Softmax <axis: int = @axis> (X)\n",
        min_opset=AXES_INPUT_OPSET,  # Softmax-13 is the first over a single axis
        reference=_reference,
        summary="Y = Softmax(X) over an axis before the last",
        keeps_shape=True,
        gpu_kernel=False,
    ),
)
