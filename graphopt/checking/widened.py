"""BEFORE without half precision: what its numbers would be where they leave that range."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from graphopt.checking.compare import deviation
from graphopt.checking.inputs import Case
from graphopt.checking.run import Outputs, open_session, run_case
from graphopt.checking.tolerances import LIMITS
from graphopt.errors import VerifyError
from graphopt.graph.messages import bodies, inlined
from graphopt.metadata import Numerics

HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
# Attributes that name an element type.
_TYPES = frozenset(("to", "dtype", "softmax_precision", "stash_type"))


def agree_in_single(model: onnx.ModelProto, case: Case, got: Outputs) -> list[bool]:
    """For each output of `got`, whether it is what the model gives in float32, as closely as half precision allows.

    Args:
        model: BEFORE, its weights inside.
        case: the inputs.
        got: AFTER's outputs.
    """
    feeds = {n: a.astype(np.float32) if a.dtype.kind in "fV" else a for n, a in case.feeds.items()}
    try:
        wide = run_case(open_session(widened(model), library=False), Case(case.name, feeds))
    except VerifyError:
        return [False] * len(got)
    if isinstance(wide, str):
        return [False] * len(got)
    agrees = []
    for want, have in zip(wide, got):
        # Beyond its range AFTER may be infinite as well as exact.
        arrays = isinstance(want, np.ndarray) and isinstance(have, np.ndarray)
        narrow = arrays and have.dtype.kind in "fV" and have.dtype.itemsize == 2
        with np.errstate(over="ignore"):
            found = deviation(want.astype(have.dtype) if narrow else want, have)
        agrees.append(not found.structure and found.relative <= LIMITS[Numerics.FP16])
    return agrees


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy with float32 in place of float16 and bfloat16."""
    copy = onnx.ModelProto()
    copy.CopyFrom(inlined(model))
    _widen(copy.graph)
    return copy


def _widen(graph: onnx.GraphProto) -> None:
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type in HALVES:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    del graph.value_info[:]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in _TYPES and attribute.i in HALVES:
                attribute.i = TensorProto.FLOAT
            if attribute.HasField("t"):
                _widen_tensor(attribute.t)
        for body in bodies(node):
            _widen(body)


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in HALVES:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
