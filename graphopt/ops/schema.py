"""What one operator of the domain `com.graphopt` is, in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

DOMAIN = "com.graphopt"
DOMAIN_VERSION = 1
Array = npt.NDArray[Any]

MIN_OPSET = 7  # From 7 on element-wise operators broadcast as in numpy.
VALUE_FLOAT_OPSET = 12  # Constant has the attribute value_float, which can refer to a float attribute of the function.
AXES_INPUT_OPSET = 13  # ReduceSum takes its axes as an input.
CAST_LIKE_OPSET = 15


@dataclass(frozen=True)
class OpSpec:
    """One operator name of our domain.

    Attributes:
        name: the operator's name; a released name never changes its meaning.
        inputs: formal names; every input is required.
        outputs: formal names.
        attributes: name -> type; every attribute is always written.
        body: `body(opset)` gives the statements of the defining function in ONNX text syntax, over the formal names,
            in operators that `opset` has.
        min_opset: the oldest default opset in which the body can be written.
        reference: `reference(*inputs, **attributes)` computes the outputs in float64 with numpy.
        summary: the equation in a line.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, ir.AttributeType]
    body: Callable[[int], str] = field(repr=False)
    reference: Callable[..., tuple[Array, ...]] = field(repr=False)
    summary: str
    min_opset: int = MIN_OPSET

    def function_proto(self, opset: int) -> onnx.FunctionProto:
        """The model-local function that defines the operator in standard ONNX, for a model of default opset `opset`."""
        assert opset >= self.min_opset
        attributes = f"<{', '.join(self.attributes)}>" if self.attributes else ""
        header = f'<domain: "{DOMAIN}", opset_import: ["" : {opset}]>'
        signature = f"{self.name} {attributes} ({', '.join(self.inputs)}) => ({', '.join(self.outputs)})"
        return onnx.parser.parse_function(f"{header} {signature} {{\n{self.body(opset)}\n}}")

    def function(self, opset: int) -> ir.Function:
        """The same as an onnx_ir function, to be put into `Model.functions`."""
        return ir.serde.deserialize_function(self.function_proto(opset))


# -- statements of bodies that differ between opsets ---------------------------------------------------------------
#
# Runtimes inline a body under the model's default opset, whatever the function imports (measured on onnxruntime 1.22.2
# and 1.31.1), so a body is written for the model that it goes into. Below CAST_LIKE_OPSET a body cannot follow the type
# of its inputs, and T is float32.


def ints(name: str, *values: int) -> str:
    """An int64 constant of rank 1."""
    return f"{name} = Constant <value: tensor = int64[{len(values)}] {{{', '.join(map(str, values))}}}> ()\n"


def number(name: str, value: float, like: str, opset: int) -> str:
    """A scalar constant of the type of `like`."""
    literal = f"Constant <value: tensor = float {{{value!r}}}> ()\n"
    if opset < CAST_LIKE_OPSET:
        return f"{name} = {literal}"
    return f"{name}_f = {literal}{name} = CastLike({name}_f, {like})\n"


def attribute(name: str, attribute_name: str, like: str, opset: int) -> str:
    """A float attribute of the node as a tensor of size 1 and of the type of `like`."""
    if opset < VALUE_FLOAT_OPSET:
        # Constant cannot refer to a float attribute yet; Gemm's alpha can: alpha * 1 * 1 + 0.
        one = f"{name}_one = Constant <value: tensor = float[1, 1] {{1.0}}> ()\n"
        zero = f"{name}_zero = Constant <value: tensor = float[1, 1] {{0.0}}> ()\n"
        return f"{one}{zero}{name} = Gemm <alpha: float = @{attribute_name}> ({name}_one, {name}_one, {name}_zero)\n"
    constant = f"Constant <value_float: float = @{attribute_name}> ()\n"
    if opset < CAST_LIKE_OPSET:
        return f"{name} = {constant}"
    return f"{name}_f = {constant}{name} = CastLike({name}_f, {like})\n"


def cast_like(y: str, x: str, like: str, opset: int) -> str:
    """x, a float32, in the type of `like`."""
    return f"{y} = Identity({x})\n" if opset < CAST_LIKE_OPSET else f"{y} = CastLike({x}, {like})\n"


def reduce_sum(y: str, x: str, axis: int, opset: int) -> str:
    """The sum along one axis, kept as a dimension of 1."""
    if opset < AXES_INPUT_OPSET:
        return f"{y} = ReduceSum <axes: ints = [{axis}], keepdims: int = 1> ({x})\n"
    return ints(f"{y}_axis", axis) + f"{y} = ReduceSum <keepdims: int = 1> ({x}, {y}_axis)\n"


def dim(name: str, x: str, axis: int) -> str:
    """One dimension of x as an int64 tensor of shape [1]."""
    return f"{name}_shape = Shape({x})\n" + ints(f"{name}_at", axis) + f"{name} = Gather({name}_shape, {name}_at)\n"


def widen(array: Array) -> Array:
    """float64 for floating point inputs, unchanged otherwise: references are computed in float64."""
    return array.astype(np.float64) if array.dtype.kind == "f" else array
