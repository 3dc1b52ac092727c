"""Test cases of our operators: a node, its inputs, its expected outputs, and models of such nodes."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from graphopt.ops import DOMAIN, DOMAIN_VERSION, OpSpec
from graphopt.ops.schema import Array, Dialect

# Tolerances are relative to the root mean square (RMS) of the reference. Winograd's transforms amplify rounding. A
# float16 function body rounds after every node.
TOLERANCE = {"float32": 1e-5, "float16": 2e-2}
WINOGRAD_TOLERANCE = {"float32": 2e-4, "float16": 2e-2}
# Kernels round the exponentials to bfloat16 instead of the probabilities, and a value near the midpoint of two bfloat16
# values may round to either.
ROUNDED_SOFTMAX_TOLERANCE = {"float32": 1.5e-2}
# A result near the midpoint of two bfloat16 values may round to either; tests/test_bfloat16.py checks the sums.
ROUNDED_TOLERANCE = {"float32": 3e-2}


@dataclass
class NodeCase:
    """One node: an operator with inputs and attributes. Inputs of floats are float64 until `cast`."""

    spec: OpSpec
    inputs: list[Array]
    attributes: dict[str, Any]
    constant_weights: bool = False  # all inputs but the first are initializers

    def cast(self, dtype: npt.DTypeLike) -> NodeCase:
        """Returns the case with all inputs of floats cast to `dtype`."""
        inputs = [x.astype(dtype) if x.dtype.kind == "f" else x for x in self.inputs]
        return NodeCase(self.spec, inputs, self.attributes, self.constant_weights)

    def error(self, outputs: Sequence[Array]) -> float:
        """Returns the largest error relative to the RMS of the reference; infinity if shapes or NaNs differ."""
        worst = 0.0
        for want, got in zip(self._reference, outputs, strict=True):
            if got.shape != want.shape or not np.array_equal(np.isnan(got), np.isnan(want)):
                return float("inf")
            if want.size and not np.isnan(want).all():
                rms = float(np.sqrt(np.nanmean(want**2))) or 1.0
                worst = max(worst, float(np.nanmax(np.abs(got.astype(np.float64) - want))) / rms)
        return worst

    def tolerance(self, dtype: str) -> float:
        """Returns the largest allowed `error` for inputs of this type, "float32" or "float16"."""
        name = self.spec.name
        if name.startswith("FusedAttention") and name.endswith("Bf16"):
            return ROUNDED_SOFTMAX_TOLERANCE[dtype]
        if self.spec.bfloat16:
            return ROUNDED_TOLERANCE[dtype]
        return (WINOGRAD_TOLERANCE if name.startswith("WinogradConv") else TOLERANCE)[dtype]

    def reference(self) -> tuple[Array, ...]:
        return self._reference

    @functools.cached_property
    def _reference(self) -> tuple[Array, ...]:
        """The expected outputs in float64, cached because the self-test compares several implementations with them."""
        with np.errstate(all="ignore"):
            return self.spec.reference(*self.inputs, **self.attributes)


def model_of(cases: Sequence[NodeCase], opset: int, *, bodies: bool) -> tuple[onnx.ModelProto, Mapping[str, Array]]:
    """Builds one model with a node for each case.

    Args:
        cases: the nodes.
        opset: the default opset.
        bodies: whether to add the function bodies; without them only the native library can run the model.

    Returns:
        The model and its feeds, name -> array.
    """
    nodes, inputs, outputs, initializers, feeds = [], [], [], [], {}
    for i, case in enumerate(cases):
        names = [f"{case.spec.name}_{i}_{formal}" for formal in case.spec.inputs]
        for position, (name, value) in enumerate(zip(names, case.inputs, strict=True)):
            if case.constant_weights and position > 0:
                initializers.append(numpy_helper.from_array(value, name))
            else:
                element_type = helper.np_dtype_to_tensor_dtype(value.dtype)
                inputs.append(helper.make_tensor_value_info(name, element_type, value.shape))
                feeds[name] = value
        results = [f"{case.spec.name}_{i}_{formal}" for formal in case.spec.outputs]
        own = [f"{r}_16" if f in case.spec.bfloat16 else r for r, f in zip(results, case.spec.outputs)]
        for position, value in enumerate(case.inputs):
            if case.spec.X_types == ("bfloat16",) and value.ndim == 5:  # numpy has no bfloat16
                rounded = f"{names[position]}_16"
                nodes.append(helper.make_node("Cast", [names[position]], [rounded], to=onnx.TensorProto.BFLOAT16))
                names[position] = rounded
        nodes.append(helper.make_node(case.spec.name, names, own, names[0], domain=DOMAIN, **case.attributes))
        nodes += [helper.make_node("Cast", [o], [r], to=onnx.TensorProto.FLOAT) for o, r in zip(own, results) if o != r]
        element_type = helper.np_dtype_to_tensor_dtype(case.inputs[0].dtype)
        outputs += [helper.make_tensor_value_info(name, element_type, None) for name in results]
    graph = helper.make_graph(nodes, "cases", inputs, outputs, initializers)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, DOMAIN_VERSION)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    if bodies:
        used = {case.spec.name: case.spec for case in cases}
        # QuantizedConv has the first input in integers and computes in float32.
        floats = next(x.dtype for case in cases for x in case.inputs if x.dtype.kind == "f")
        dialect = Dialect(opset, ir.DataType.from_numpy(floats))
        model.functions.extend(spec.function_proto(dialect) for spec in used.values())
    return model, feeds


def mixed_model_of(case: NodeCase, opset: int, *, bodies: bool) -> tuple[onnx.ModelProto, Mapping[str, Array]]:
    """Builds a model with the node of a case between nodes of standard ONNX.

    The first input passes through Neg and a MatMul with minus the identity matrix, or a Conv if it has rank 4. Each
    output passes through Neg. These nodes are exact, and run element-wise kernels and the vendor's GEMM or convolution.
    They compute with floats, which Casts convert from and to 8-bit integers.

    Returns:
        The model and its feeds, name -> array. The outputs are the negated outputs of the case.
    """
    model, feeds = model_of([case], opset, bodies=bodies)
    own = list(model.graph.node)  # the node and Casts of its inputs and outputs
    x, name = case.inputs[0], own[0].input[0]
    is_byte, dtype = x.dtype.kind in "iu", x.dtype if x.dtype.kind == "f" else np.dtype(np.float32)
    channels = x.shape[1] if x.ndim == 4 else x.shape[-1]
    minus = -np.eye(channels, dtype=dtype)
    weights = numpy_helper.from_array(minus.reshape(channels, channels, 1, 1) if x.ndim == 4 else minus, "minus_one")
    negated, again = f"{name}_negated", f"{name}_again"
    before = [
        helper.make_node("Neg", [name], [negated], negated),
        helper.make_node("Conv" if x.ndim == 4 else "MatMul", [negated, weights.name], [again], again),
    ]
    if is_byte:
        feeds = {**feeds, name: x.astype(dtype)}
        model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        before.append(helper.make_node("Cast", [again], [f"{again}_byte"], to=helper.np_dtype_to_tensor_dtype(x.dtype)))
        again = f"{again}_byte"
    own[0].input[0] = again
    after = []
    for node in own:
        for i, output in enumerate(node.output):
            if output in [value.name for value in model.graph.output]:
                node.output[i] = last = f"{output}_negated"
                if is_byte:
                    last = f"{output}_float"
                    after.append(helper.make_node("Cast", [node.output[i]], [last], to=onnx.TensorProto.FLOAT))
                after.append(helper.make_node("Neg", [last], [output], output))
    if is_byte:
        for value in model.graph.output:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    nodes = [*before, *own, *after]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.append(weights)
    return model, feeds
