"""A float64 version of a model, the reference for the errors of float32 results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun


def in_float64(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy with every float32 changed to float64: weights, constants, declared types and cast targets."""
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
            elif node.op_type == "Constant" and a.name == "value_float":
                a.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(np.float64(a.f))))
    del copy.graph.value_info[:]
    for value in (*copy.graph.input, *copy.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    return copy


def _windows(
    x: np.ndarray,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    fill: float,
) -> np.ndarray:
    """[N, C, OH, OW, KH, KW], a view of the padded x [N, C, H, W]."""
    x = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])), constant_values=fill)
    reach = tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True))
    view = np.lib.stride_tricks.sliding_window_view(x, reach, axis=(2, 3))
    return view[:, :, :: strides[0], :: strides[1], :: dilations[0], :: dilations[1]]


class Conv(OpRun):
    """A convolution over two dimensions with explicit pads."""

    def _run(
        self, X: Any, W: Any, B: Any = None, auto_pad: Any = None, dilations: Any = None, group: Any = None,
        kernel_shape: Any = None, pads: Any = None, strides: Any = None,
    ) -> tuple[np.ndarray]:  # fmt: skip
        assert auto_pad in (None, "NOTSET")
        group = group or 1
        windows = _windows(X, W.shape[2:], strides or (1, 1), dilations or (1, 1), pads or (0, 0, 0, 0), 0.0)
        parts = []
        for image in windows:
            for x, w in zip(np.split(image, group), np.split(W, group), strict=True):
                columns = x.transpose(0, 3, 4, 1, 2).reshape(w[0].size, -1)  # [C KH KW, OH OW]
                parts.append(w.reshape(len(w), -1) @ columns)
        y = np.concatenate(parts).reshape(len(X), len(W), *windows.shape[2:4])
        return (y if B is None else y + B[:, None, None],)


class MaxPool(OpRun):
    """A pool over two dimensions with explicit pads and without indices."""

    def _run(
        self, x: Any, auto_pad: Any = None, ceil_mode: Any = None, dilations: Any = None, kernel_shape: Any = None,
        pads: Any = None, storage_order: Any = None, strides: Any = None,
    ) -> tuple[np.ndarray]:  # fmt: skip
        assert auto_pad in (None, "NOTSET") and not ceil_mode
        windows = _windows(x, kernel_shape, strides or (1, 1), dilations or (1, 1), pads or (0, 0, 0, 0), -np.inf)
        return (windows.max(axis=(4, 5)),)


def run_in_float64(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of a model of standard operators by ONNX's reference evaluator, with every float32 as float64.

    Convolutions and pools are computed here with matrix products over windows: the evaluator's loops over pixels are
    slow.
    """
    wide = {k: v.astype(np.float64) if v.dtype == np.float32 else v for k, v in feeds.items()}
    outputs = ReferenceEvaluator(in_float64(model), new_ops=[Conv, MaxPool]).run(None, wide)
    assert isinstance(outputs, list)
    return outputs
