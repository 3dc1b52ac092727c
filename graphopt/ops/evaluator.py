"""Makes the numpy references available to onnx's ReferenceEvaluator.

    ReferenceEvaluator(model, new_ops=reference_ops())

Without them onnx's evaluator runs our function bodies, and fails on some attribute references in them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from onnx.reference.op_run import OpRun

from graphopt.ops import OPS
from graphopt.ops.schema import DOMAIN, Array, OpSpec


def _operator(spec: OpSpec) -> type[OpRun]:
    def run(self: OpRun, *inputs: Array, **attributes: Any) -> tuple[Array, ...]:
        given = {name: attributes[name] for name in spec.attributes}
        dtypes: Iterable[npt.DTypeLike] = itertools.repeat(np.asarray(inputs[0]).dtype)
        if spec.bfloat16:
            dtypes = [ml_dtypes.bfloat16 if name in spec.bfloat16 else np.float32 for name in spec.outputs]
        return tuple(np.asarray(y).astype(dtype) for y, dtype in zip(spec.reference(*inputs, **given), dtypes))

    return type(spec.name, (OpRun,), {"op_domain": DOMAIN, "_run": run})


def reference_ops() -> list[type[OpRun]]:
    """Returns one class for each operator name. It computes in float64 and rounds to the type of the first input.

    Bfloat16 outputs have type ml_dtypes.bfloat16; other outputs of such operators are float32.
    """
    return [_operator(spec) for spec in OPS.values()]
