"""A model in float64, run by ONNX's reference evaluator: how far an output really moves."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from graphopt.checking.compare import difference
from tests.rewriting import Array


def in_float64(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which every float32 became float64: weights, constants, declared types and the targets of casts."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    constants = [a.t for n in copy.graph.node for a in n.attribute if a.type == onnx.AttributeProto.TENSOR]
    for tensor in (*copy.graph.initializer, *constants):
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for node in copy.graph.node:
        for a in node.attribute:
            if node.op_type == "Cast" and a.name == "to" and a.i == TensorProto.FLOAT:
                a.i = TensorProto.DOUBLE
    del copy.graph.value_info[:]
    for value in (*copy.graph.input, *copy.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    return copy


def run64(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """The outputs of `in_float64(model)`."""
    wide = {k: v.astype(np.float64) if v.dtype == np.float32 else v for k, v in feeds.items()}
    # Overflow and NaN are results here, not accidents.
    with np.errstate(all="ignore"):
        return list(ReferenceEvaluator(in_float64(model), new_ops=[MaxPool]).run(None, wide))


def probes(model: onnx.ModelProto, seed: int = 99) -> list[Mapping[str, Array]]:
    """Inputs for a model of the zoo: normal ones, and where there is a mask the same with the end padded."""
    rng = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for value in model.graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            feeds[value.name] = rng.standard_normal(shape).astype(np.float32)
        else:
            # Token and segment ids of 0 and 1 are in every table.
            feeds[value.name] = np.ones(shape, np.int64) if "mask" in value.name else rng.integers(0, 2, shape)
    padded = {n: a.copy() for n, a in feeds.items() if "mask" in n}
    for mask in padded.values():
        mask[-1, mask.shape[-1] // 2 :] = 0
    return [feeds, {**feeds, **padded}] if padded else [feeds]


def moved(wanted: list[list[Array]], faulty: onnx.ModelProto, feeds: list[Mapping[str, Array]]) -> float:
    """How far the farthest output moves, relative to its RMS, in float64; inf when NaN or shapes change."""
    found = 0.0
    for want, inputs in zip(wanted, feeds, strict=True):
        try:
            got = run64(faulty, inputs)
        except Exception:  # a fault that cannot be run shows
            return float("inf")
        found = max(found, *(difference(w, g)[2] for w, g in zip(want, got, strict=True)))
    return found


class MaxPool(OpRun):
    """The evaluator's own gives another shape for a window of 2 with stride 1 and padding on one side."""

    op_domain = ""

    def _run(self, x: Array, kernel_shape: list[int], pads: list[int], strides: list[int], **_: object) -> tuple[Array]:
        top, left, bottom, right = pads or [0, 0, 0, 0]
        padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=-np.inf)
        windows = np.lib.stride_tricks.sliding_window_view(padded, kernel_shape, axis=(2, 3))
        return (windows[:, :, :: strides[0], :: strides[1]].max(axis=(-2, -1)),)
