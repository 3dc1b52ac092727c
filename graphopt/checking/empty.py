"""An empty batch: what a detector that found nothing hands on to the model behind it.

Some kernels of the runtime end the process there, so AFTER runs on it beside the cases that run in a process of their
own, and BEFORE does in the same way, where AFTER's outputs are not as declared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from graphopt.checking.declared import is_given, required_inputs, symbol_of, symbols
from graphopt.checking.inputs import Case, Wishes
from graphopt.checking.run import Outputs

NAME = "empty batch"


def empty_batch(model: onnx.ModelProto, case: Case, wishes: Wishes) -> Case | None:
    """A case of BEFORE with its batch cut to nothing; None where that is a number, or the caller's choice."""
    asked = {*wishes.sizes, *wishes.fixed}
    batches = {s for s, role in symbols(model).items() if role == "batch" and not wishes.batch} - asked
    feeds = dict(case.feeds)
    for value in required_inputs(model):
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if not is_given(dim) and symbol_of(value, axis) in batches:
                feeds[value.name] = np.asarray(feeds[value.name])[(slice(None),) * axis + (slice(0),)]
    return Case(NAME, feeds) if batches else None


def is_as_declared(outputs: Sequence[onnx.ValueInfoProto], usual: Outputs, empty: Outputs) -> bool:
    """Whether outputs of an empty batch hold nothing, and are as large as BEFORE declares, or on another batch.

    Args:
        outputs: of BEFORE.
        usual: their values, of a batch that is not empty.
        empty: AFTER's.
    """
    return all(map(_is_as_declared, outputs, usual, empty))


def _is_as_declared(output: onnx.ValueInfoProto, usual: Any, empty: Any) -> bool:
    if not isinstance(usual, np.ndarray) or not isinstance(empty, np.ndarray):
        return False
    if empty.size or empty.ndim != usual.ndim or empty.dtype != usual.dtype:
        return False
    dims = output.type.tensor_type.shape.dim
    declared = [d.dim_value if is_given(d) else n for d, n in zip(dims, empty.shape)] or empty.shape
    return empty.shape == tuple(declared) and all(n in (0, was) for n, was in zip(empty.shape, usual.shape))
