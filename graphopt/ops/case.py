"""One node with its inputs: what its outputs are compared with, and models that hold such nodes."""

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

# Relative to the root mean square of the reference. Winograd's transforms amplify rounding; a float16 body rounds
# after every step.
TOLERANCE = {"float32": 1e-5, "float16": 2e-2}
WINOGRAD_TOLERANCE = {"float32": 2e-4, "float16": 2e-2}
# A probability next to the middle between two numbers of bfloat16 becomes either, and kernels round the exponentials.
ROUNDED_SOFTMAX_TOLERANCE = {"float32": 1.5e-2}
# A result next to the middle between two numbers of bfloat16 becomes either; tests/test_bfloat16.py has the sums.
ROUNDED_TOLERANCE = {"float32": 3e-2}


@dataclass
class Case:
    """One node: an operator with inputs (float64 or bool) and attributes."""

    spec: OpSpec
    inputs: list[Array]
    attributes: dict[str, Any]
    constant_weights: bool = False  # all inputs but the first are initializers

    def cast(self, dtype: npt.DTypeLike) -> Case:
        inputs = [x if x.dtype == np.bool_ else x.astype(dtype) for x in self.inputs]
        return Case(self.spec, inputs, self.attributes, self.constant_weights)

    def error(self, outputs: Sequence[Array]) -> float:
        """The largest error relative to the RMS of the reference; infinite where shapes or NaNs differ."""
        worst = 0.0
        for want, got in zip(self._reference, outputs, strict=True):
            if got.shape != want.shape or not np.array_equal(np.isnan(got), np.isnan(want)):
                return float("inf")
            if want.size and not np.isnan(want).all():
                rms = float(np.sqrt(np.nanmean(want**2))) or 1.0
                worst = max(worst, float(np.nanmax(np.abs(got.astype(np.float64) - want))) / rms)
        return worst

    def tolerance(self, dtype: str) -> float:
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
        """Computed once: the self-test compares each implementation with it."""
        with np.errstate(all="ignore"):
            return self.spec.reference(*self.inputs, **self.attributes)


def model_of(cases: Sequence[Case], opset: int, *, bodies: bool) -> tuple[onnx.ModelProto, Mapping[str, Array]]:
    """One model with a node for each case, and its feeds. Without bodies only the library can run it."""
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
            if case.spec.X_types == ("bfloat16",) and value.ndim == 5:  # numpy has none
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
        dialect = Dialect(opset, ir.DataType.from_numpy(cases[0].inputs[0].dtype))
        model.functions.extend(spec.function_proto(dialect) for spec in used.values())
    return model, feeds


def mixed_model_of(case: Case, opset: int, *, bodies: bool) -> tuple[onnx.ModelProto, Mapping[str, Array]]:
    """The node of a case between nodes of standard ONNX, and its feeds; the outputs are the case's with another sign.

    The first input goes through Neg and a product with minus the identity matrix (a convolution where it has four
    axes), each output through Neg: element-wise kernels and the libraries for products and convolutions, all exact.
    """
    model, feeds = model_of([case], opset, bodies=bodies)
    own = list(model.graph.node)  # the node, and Casts around it
    x, name = case.inputs[0], own[0].input[0]
    channels = x.shape[1] if x.ndim == 4 else x.shape[-1]
    minus = -np.eye(channels, dtype=x.dtype)
    weights = numpy_helper.from_array(minus.reshape(channels, channels, 1, 1) if x.ndim == 4 else minus, "minus_one")
    negated, again = f"{name}_negated", f"{name}_again"
    before = [
        helper.make_node("Neg", [name], [negated], negated),
        helper.make_node("Conv" if x.ndim == 4 else "MatMul", [negated, weights.name], [again], again),
    ]
    own[0].input[0] = again
    after = []
    for node in own:
        for i, output in enumerate(node.output):
            if output in [value.name for value in model.graph.output]:
                node.output[i] = f"{output}_negated"
                after.append(helper.make_node("Neg", [node.output[i]], [output], output))
    nodes = [*before, *own, *after]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.append(weights)
    return model, feeds
