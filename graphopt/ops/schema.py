"""What one operator of the domain `com.graphopt` is, in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

DOMAIN = "com.graphopt"
DOMAIN_VERSION = 1
Array = npt.NDArray[Any]

NUMPY_BROADCASTING_OPSET = 7  # Element-wise operators broadcast as in numpy.
MIN_OPSET = NUMPY_BROADCASTING_OPSET
# Constant has the attributes value_float and value_int, which can refer to attributes of the function.
VALUE_OPSET = 12
AXES_INPUT_OPSET = 13  # Squeeze, Unsqueeze, Split and ReduceSum take axes or sizes as an input
REDUCE_AXES_INPUT_OPSET = 18  # so do the other reductions
CAST_BFLOAT16_OPSET = 13  # Cast takes and gives bfloat16.
CAST_LIKE_OPSET = 15


@dataclass(frozen=True)
class Dialect:
    """The standard ONNX that a body is written in.

    Runtimes inline a body under the model's default opset, whatever the function imports (measured on onnxruntime
    1.22.2 and 1.31.1), so a body is written for the model that it goes into. From CAST_LIKE_OPSET on it follows the
    type of its inputs; below, it is written for one.

    Attributes:
        opset: the model's default opset.
        T: the element type of the node's inputs: FLOAT or FLOAT16.
    """

    opset: int
    T: ir.DataType = ir.DataType.FLOAT

    @property
    def follows_type(self) -> bool:
        return self.opset >= CAST_LIKE_OPSET


@dataclass(frozen=True)
class OpSpec:
    """One operator name of our domain.

    Attributes:
        name: the operator's name; a released name never changes its meaning.
        inputs: formal names; every input is required.
        outputs: formal names.
        attributes: name -> type; every attribute is always written.
        body: `body(dialect)` gives the statements of the defining function in ONNX text syntax, over the formal names.
        min_opset: the oldest default opset in which the body can be written.
        reference: `reference(*inputs, **attributes)` computes the outputs in float64 with numpy.
        summary: the equation in a line.
        gpu_kernel: whether the library has kernels for GPUs, as it has one for CPUs.
        float32_only: its tensors are float32; float32 or float16 otherwise.
        keeps_shape: the first output has the shape of the first input, whatever that is.
        bfloat16: formal names of outputs in bfloat16; a node may leave the others of such an operator out.
        X_types: element types of input X, where it has others than the rest; R may be of bfloat16 then, too.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, ir.AttributeType]
    body: Callable[[Dialect], str] = field(repr=False)
    reference: Callable[..., tuple[Array, ...]] = field(repr=False)
    summary: str
    min_opset: int = MIN_OPSET
    gpu_kernel: bool = True
    float32_only: bool = False
    keeps_shape: bool = False
    bfloat16: tuple[str, ...] = ()
    X_types: tuple[str, ...] = ()

    def function_proto(self, dialect: Dialect) -> onnx.FunctionProto:
        """The model-local function that defines the operator in standard ONNX."""
        assert dialect.opset >= self.min_opset
        attributes = f"<{', '.join(self.attributes)}>" if self.attributes else ""
        header = f'<domain: "{DOMAIN}", opset_import: ["" : {dialect.opset}]>'
        signature = f"{self.name} {attributes} ({', '.join(self.inputs)}) => ({', '.join(self.outputs)})"
        return onnx.parser.parse_function(f"{header} {signature} {{\n{self.body(dialect)}\n}}")

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The element types that it takes, as numpy calls them."""
        return ("float32",) if self.float32_only else ("float32", "float16")

    @cached_property
    def inputs_of_T(self) -> list[int]:
        """The inputs that share the operator's element type: all but masks, which are boolean."""
        others = ("mask", "X", "R") if self.X_types else ("mask",)
        return [i for i, name in enumerate(self.inputs) if name not in others]

    def function(self, dialect: Dialect) -> ir.Function:
        """The same as an onnx_ir function, to be put into `Model.functions`."""
        return ir.serde.deserialize_function(self.function_proto(dialect))


# -- statements of bodies that differ between dialects -------------------------------------------------------------


def ints(name: str, *values: int) -> str:
    """An int64 constant of rank 1."""
    return f"{name} = Constant <value: tensor = int64[{len(values)}] {{{', '.join(map(str, values))}}}> ()\n"


def number(name: str, value: float, like: str, dialect: Dialect) -> str:
    """A scalar constant of the type of `like`, an input or what was computed from one in its type."""
    return _typed(name, f"Constant <value: tensor = float {{{value!r}}}> ()\n", like, dialect)


def attribute(name: str, attribute_name: str, dialect: Dialect, like: str | None = None) -> str:
    """A float attribute of the node as a tensor of size 1, of the type of `like` (see `number`) or float32."""
    setup = ""
    literal = f"Constant <value_float: float = @{attribute_name}> ()\n"
    if dialect.opset < VALUE_OPSET:
        # Constant cannot refer to a float attribute yet; Gemm's alpha can: alpha * 1 * 1 + 0.
        setup = f"{name}_one = Constant <value: tensor = float[1, 1] {{1.0}}> ()\n"
        setup += f"{name}_zero = Constant <value: tensor = float[1, 1] {{0.0}}> ()\n"
        literal = f"Gemm <alpha: float = @{attribute_name}> ({name}_one, {name}_one, {name}_zero)\n"
    return setup + (f"{name} = {literal}" if like is None else _typed(name, literal, like, dialect))


def _typed(name: str, literal: str, like: str, dialect: Dialect) -> str:
    if not dialect.follows_type and dialect.T == ir.DataType.FLOAT:
        return f"{name} = {literal}"
    return f"{name}_f = {literal}" + cast_like(name, f"{name}_f", like, dialect)


def cast_like(y: str, x: str, like: str, dialect: Dialect) -> str:
    """x, a float32, in the type of `like` (see `number`)."""
    if dialect.follows_type:
        return f"{y} = CastLike({x}, {like})\n"
    return f"{y} = Cast <to: int = {int(dialect.T)}> ({x})\n"


def reduce_sum(y: str, x: str, axis: int, dialect: Dialect) -> str:
    """The sum along one axis, kept as a dimension of 1."""
    return _reduce("ReduceSum", y, x, axis, dialect)


def reduce_mean(y: str, x: str, axis: int, dialect: Dialect) -> str:
    """The mean along one axis, kept as a dimension of 1."""
    return _reduce("ReduceMean", y, x, axis, dialect)


def _reduce(op_type: str, y: str, x: str, axis: int, dialect: Dialect) -> str:
    if dialect.opset < (AXES_INPUT_OPSET if op_type == "ReduceSum" else REDUCE_AXES_INPUT_OPSET):
        return f"{y} = {op_type} <axes: ints = [{axis}], keepdims: int = 1> ({x})\n"
    return ints(f"{y}_axis", axis) + f"{y} = {op_type} <keepdims: int = 1> ({x}, {y}_axis)\n"


def round_to_bfloat16(y: str, x: str) -> str:
    """x, a float32, rounded to bfloat16 (to nearest, ties to even) and as float32 again."""
    brain, single = int(ir.DataType.BFLOAT16), int(ir.DataType.FLOAT)
    return f"{y}_16 = Cast <to: int = {brain}> ({x})\n{y} = Cast <to: int = {single}> ({y}_16)\n"


def dim(name: str, x: str, axis: int) -> str:
    """One dimension of x as an int64 tensor of shape [1]."""
    return f"{name}_shape = Shape({x})\n" + ints(f"{name}_at", axis) + f"{name} = Gather({name}_shape, {name}_at)\n"


def widen(array: Array) -> Array:
    """float64 for floating point inputs, unchanged otherwise: references are computed in float64."""
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def plus(y: Array, residual: Sequence[Array]) -> Array:
    """The y of a reference with its residual R, where there is one."""
    return y + widen(residual[0]) if residual else y


def bfloat16(array: Array) -> Array:
    """The nearest numbers of bfloat16, ties to even, as float64; what is beyond its range is infinite."""
    bits = array.astype(np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1)).astype(np.uint32)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(array), np.nan, rounded.view(np.float32)).astype(np.float64)
