"""Faults that a rewriter could make, planted into a model one at a time; `verify` must catch each that can show."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import numpy_helper

from tests.rewriting import Array

SCALE_FAULT = 1e-3
STRUCTURAL = ("swapped outputs", "renamed output")
# What hides a position is at least this large, in the exporters' spellings.
LOW = 1e4


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def _weights(model: onnx.ModelProto) -> Iterator[tuple[int, Array]]:
    for i, tensor in enumerate(model.graph.initializer):
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) >= 2 and np.prod(tensor.dims) > 8:
            yield i, numpy_helper.to_array(tensor)


def _with_weight(model: onnx.ModelProto, index: int, array: Array) -> onnx.ModelProto:
    faulty = _copy(model)
    name = faulty.graph.initializer[index].name
    faulty.graph.initializer[index].CopyFrom(numpy_helper.from_array(array.astype(np.float32), name))
    return faulty


def planted(model: onnx.ModelProto, *, every: int = 1) -> Iterator[tuple[str, onnx.ModelProto]]:
    """(description, faulty model) pairs; `every` takes each n-th weight only."""
    for index, weight in list(_weights(model))[::every]:
        name = model.graph.initializer[index].name
        flipped = weight.copy()
        largest = np.unravel_index(np.abs(weight).argmax(), weight.shape)
        flipped[largest] = -flipped[largest]
        yield f"sign of the largest weight of {name}", _with_weight(model, index, flipped)
        yield f"scale of {name} off by {SCALE_FAULT}", _with_weight(model, index, weight * (1 + SCALE_FAULT))
    softmax_inputs = {n.input[0] for n in model.graph.node if n.op_type == "Softmax"}
    for i, node in enumerate(model.graph.node):
        for description, change in (*_node_faults(node), *_mask_faults(node, softmax_inputs)):
            faulty = _copy(model)
            faulty.graph.node[i].CopyFrom(change)
            yield f"{description} of {node.name or node.op_type}", faulty
    for index, tensor in enumerate(model.graph.initializer):
        for description, array in _constant_mask_faults(numpy_helper.to_array(tensor)):
            faulty = _copy(model)
            faulty.graph.initializer[index].CopyFrom(numpy_helper.from_array(array, tensor.name))
            yield f"{description} of {tensor.name}", faulty
    outputs = model.graph.output
    if len(outputs) >= 2:
        faulty = _copy(model)
        first, second = _copy(model).graph.output[:2]
        faulty.graph.output[0].CopyFrom(second)
        faulty.graph.output[1].CopyFrom(first)
        yield "swapped outputs", faulty
    renamed = _copy(model)
    old = renamed.graph.output[0].name
    renamed.graph.output[0].name = old + "_renamed"
    renamed.graph.node.append(onnx.helper.make_node("Identity", [old], [old + "_renamed"]))
    yield "renamed output", renamed


def _node_faults(node: onnx.NodeProto) -> Iterator[tuple[str, onnx.NodeProto]]:
    attributes = {a.name: a for a in node.attribute}
    changed = onnx.NodeProto()
    if node.op_type in ("Conv", "MaxPool") and "pads" in attributes and len(attributes["pads"].ints) == 4:
        top, left, bottom, right = attributes["pads"].ints
        if top:
            changed.CopyFrom(node)
            next(a for a in changed.attribute if a.name == "pads").ints[:] = [top - 1, left, bottom + 1, right]
            yield "pad off by one", changed
    if node.op_type == "Softmax":
        changed.CopyFrom(node)
        del changed.attribute[:]
        changed.attribute.append(onnx.helper.make_attribute("axis", -2))
        yield "axis off by one", changed
    if node.op_type == "LeakyRelu":
        changed.CopyFrom(node)
        del changed.attribute[:]
        changed.attribute.append(onnx.helper.make_attribute("alpha", attributes["alpha"].f * 1.1))
        yield "alpha", changed
    if node.op_type in ("Relu", "Tanh", "Sigmoid", "Erf"):
        changed.CopyFrom(onnx.helper.make_node("Identity", node.input, node.output, name=node.name))
        yield "missing activation", changed
    if node.op_type == "Where" and len(node.input) == 3:
        changed.CopyFrom(onnx.helper.make_node("Identity", [node.input[1]], node.output, name=node.name))
        yield "mask or guard dropped", changed
        changed = onnx.NodeProto()
        changed.CopyFrom(node)
        changed.input[1], changed.input[2] = node.input[2], node.input[1]
        yield "mask inverted", changed
    if node.op_type in ("BatchNormalization", "LayerNormalization", "InstanceNormalization"):
        changed.CopyFrom(node)
        for a in changed.attribute:
            if a.name == "epsilon":
                a.f = max(a.f * 100, 1e-2)
        yield "epsilon", changed
    if node.op_type == "Add":
        changed.CopyFrom(onnx.helper.make_node("Sub", node.input, node.output, name=node.name))
        yield "sign", changed


def _mask_faults(node: onnx.NodeProto, softmax_inputs: set[str]) -> Iterator[tuple[str, onnx.NodeProto]]:
    """Faults of the additive masks before a Softmax, and of what makes them from the model's own input."""
    if node.op_type == "Add" and node.output[0] in softmax_inputs:
        for side, what in enumerate(("second summand", "first summand")):
            dropped = onnx.helper.make_node("Identity", [node.input[side]], node.output, name=node.name)
            yield f"{what} before Softmax dropped", dropped
    if node.op_type == "Sub":
        changed = onnx.NodeProto()
        changed.CopyFrom(node)
        changed.input[:] = reversed(node.input)
        yield "operands exchanged", changed
        yield "complement dropped", onnx.helper.make_node("Identity", [node.input[1]], node.output, name=node.name)


def _constant_mask_faults(array: Array) -> Iterator[tuple[str, Array]]:
    """Faults of constants that hide positions: a bound that hides too little, a causal triangle that is off by one."""
    if array.dtype.kind == "f" and array.size == 1 and abs(float(array.reshape(-1)[0])) >= LOW:
        yield "bound of a mask, as 1", np.asarray(np.sign(array)).astype(array.dtype)
        yield "bound of a mask, with the other sign", -array
    square = array.ndim >= 2 and array.shape[-1] == array.shape[-2] > 1
    if square and array.dtype.kind in "bu":
        yield "mask transposed", np.ascontiguousarray(np.swapaxes(array, -1, -2))
        yield "mask shifted by a key", np.roll(array, 1, axis=-1)
        yield "mask shifted by a query", np.roll(array, 1, axis=-2)
        yield "mask that keeps everything", np.ones_like(array)
    if square and array.dtype.kind == "f" and float(np.abs(array[np.isfinite(array)]).max(initial=0.0)) >= LOW:
        yield "mask transposed", np.ascontiguousarray(np.swapaxes(array, -1, -2))
        yield "mask that keeps everything", np.zeros_like(array)
