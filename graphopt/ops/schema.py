"""The description of one operator of the domain `com.graphopt`, and helpers to write its function body."""

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
# Constant has value_float and value_int, which can refer to attributes of the function.
VALUE_OPSET = 12
AXES_INPUT_OPSET = 13  # Squeeze, Unsqueeze, Split and ReduceSum take axes or sizes as an input
REDUCE_AXES_INPUT_OPSET = 18  # the other reductions take axes as an input
CAST_BFLOAT16_OPSET = 13  # Cast converts from and to bfloat16
CAST_LIKE_OPSET = 15
AXIS_OF_SCALES_OPSET = 13  # DequantizeLinear has the attribute axis


@dataclass(frozen=True)
class Dialect:
    """The version of standard ONNX that a function body is written in.

    Runtimes inline a body under the model's default opset and ignore the function's imports (measured on onnxruntime
    1.22.2 and 1.31.1), so each body is written for its model. With opset CAST_LIKE_OPSET or newer, a body works for
    every element type; with an older opset, it is written for one type.

    Attributes:
        opset: the model's default opset.
        T: the element type of the node's inputs, FLOAT or FLOAT16.
    """

    opset: int
    T: ir.DataType = ir.DataType.FLOAT

    @property
    def follows_type(self) -> bool:
        """Whether a body works for every element type, because it uses CastLike."""
        return self.opset >= CAST_LIKE_OPSET


@dataclass(frozen=True)
class OpSpec:
    """One operator name of our domain.

    Attributes:
        name: the operator's name; a released name never changes its meaning.
        inputs: formal names; every input is required.
        outputs: formal names.
        attributes: name -> type; nodes always have every attribute.
        body: `body(dialect)` returns the statements of the function body in ONNX text syntax, over the formal names.
        min_opset: the oldest default opset that the body can be written for.
        reference: `reference(*inputs, **attributes)` computes the outputs in float64 with numpy.
        summary: the equation in one line.
        gpu_kernel: whether the library has GPU kernels; every operator has a CPU kernel.
        float32_only: whether its tensors are float32; they are float32 or float16 otherwise.
        keeps_shape: whether the first output always has the shape of the first input.
        bfloat16: formal names of bfloat16 outputs; a node of such an operator may omit the other outputs.
        X_types: element types of input X, if they differ from the other inputs'; R may then be bfloat16 as well.
        integers: formal names of inputs of integers, such as 8-bit weights and zero points.
        outputs_like_x: whether the outputs have the type of X, one of X_types.
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
    integers: tuple[str, ...] = ()
    outputs_like_x: bool = False

    def function_proto(self, dialect: Dialect) -> onnx.FunctionProto:
        """Returns the model-local function that defines the operator in standard ONNX."""
        assert dialect.opset >= self.min_opset
        attributes = f"<{', '.join(self.attributes)}>" if self.attributes else ""
        header = f'<domain: "{DOMAIN}", opset_import: ["" : {dialect.opset}]>'
        signature = f"{self.name} {attributes} ({', '.join(self.inputs)}) => ({', '.join(self.outputs)})"
        return onnx.parser.parse_function(f"{header} {signature} {{\n{self.body(dialect)}\n}}")

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The supported element types, as numpy names."""
        return ("float32",) if self.float32_only else ("float32", "float16")

    @cached_property
    def inputs_of_T(self) -> list[int]:
        """The indices of the inputs with the operator's element type.

        These are all except `mask`, `integers` and, if X_types is set, X and R.
        """
        others = ("mask", *self.integers, *(("X", "R") if self.X_types else ()))
        return [i for i, name in enumerate(self.inputs) if name not in others]

    def function(self, dialect: Dialect) -> ir.Function:
        """Returns the function of `function_proto` for onnx_ir's `Model.functions`."""
        return ir.serde.deserialize_function(self.function_proto(dialect))


# -- statements of function bodies ---------------------------------------------------------------------------------


def ints(name: str, *values: int) -> str:
    """Returns a statement for an int64 constant of rank 1."""
    return f"{name} = Constant <value: tensor = int64[{len(values)}] {{{', '.join(map(str, values))}}}> ()\n"


def number(name: str, value: float, like: str, dialect: Dialect) -> str:
    """Returns statements for a scalar constant with the element type of `like`, which is dialect.T."""
    return _typed(name, f"Constant <value: tensor = float {{{value!r}}}> ()\n", like, dialect)


def attribute(name: str, attribute_name: str, dialect: Dialect, like: str | None = None) -> str:
    """Returns statements for a float attribute as a tensor of one element, of the type of `like` or float32."""
    setup = ""
    literal = f"Constant <value_float: float = @{attribute_name}> ()\n"
    if dialect.opset < VALUE_OPSET:
        # Below VALUE_OPSET Constant cannot refer to an attribute, but Gemm's alpha can: alpha * 1 * 1 + 0.
        setup = f"{name}_one = Constant <value: tensor = float[1, 1] {{1.0}}> ()\n"
        setup += f"{name}_zero = Constant <value: tensor = float[1, 1] {{0.0}}> ()\n"
        literal = f"Gemm <alpha: float = @{attribute_name}> ({name}_one, {name}_one, {name}_zero)\n"
    return setup + (f"{name} = {literal}" if like is None else _typed(name, literal, like, dialect))


def _typed(name: str, literal: str, like: str, dialect: Dialect) -> str:
    if not dialect.follows_type and dialect.T == ir.DataType.FLOAT:
        return f"{name} = {literal}"
    return f"{name}_f = {literal}" + cast_like(name, f"{name}_f", like, dialect)


def cast_like(y: str, x: str, like: str, dialect: Dialect) -> str:
    """Returns a statement that casts the float32 value x to the type of `like`, which is dialect.T."""
    if dialect.follows_type:
        return f"{y} = CastLike({x}, {like})\n"
    return f"{y} = Cast <to: int = {int(dialect.T)}> ({x})\n"


def reduce_sum(y: str, x: str, axis: int, dialect: Dialect) -> str:
    """Returns statements for the sum along one axis, which is kept with size 1."""
    return _reduce("ReduceSum", y, x, axis, dialect)


def reduce_mean(y: str, x: str, axis: int, dialect: Dialect) -> str:
    """Returns statements for the mean along one axis, which is kept with size 1."""
    return _reduce("ReduceMean", y, x, axis, dialect)


def _reduce(op_type: str, y: str, x: str, axis: int, dialect: Dialect) -> str:
    if dialect.opset < (AXES_INPUT_OPSET if op_type == "ReduceSum" else REDUCE_AXES_INPUT_OPSET):
        return f"{y} = {op_type} <axes: ints = [{axis}], keepdims: int = 1> ({x})\n"
    return ints(f"{y}_axis", axis) + f"{y} = {op_type} <keepdims: int = 1> ({x}, {y}_axis)\n"


def round_to_bfloat16(y: str, x: str) -> str:
    """Returns statements that round the float32 value x to bfloat16 (to nearest, ties to even), as float32."""
    bf16, single = int(ir.DataType.BFLOAT16), int(ir.DataType.FLOAT)
    return f"{y}_16 = Cast <to: int = {bf16}> ({x})\n{y} = Cast <to: int = {single}> ({y}_16)\n"


def dim(name: str, x: str, axis: int) -> str:
    """Returns statements for one dimension of x as an int64 tensor of shape [1]."""
    return f"{name}_shape = Shape({x})\n" + ints(f"{name}_at", axis) + f"{name} = Gather({name}_shape, {name}_at)\n"


def widen(array: Array) -> Array:
    """Casts floating-point arrays to float64, the type of references; returns others unchanged."""
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def plus(y: Array, residual: Sequence[Array]) -> Array:
    """Adds the residual R to y, if there is one."""
    return y + widen(residual[0]) if residual else y


def bfloat16(array: Array) -> Array:
    """Rounds to bfloat16 (to nearest, ties to even), as float64; values beyond its range become infinite."""
    bits = array.astype(np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1)).astype(np.uint32)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(array), np.nan, rounded.view(np.float32)).astype(np.float64)
