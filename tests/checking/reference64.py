"""A model in float64: how far an output really moves."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper


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
