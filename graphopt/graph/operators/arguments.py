"""Arguments of ONNX's operators in each opset, by the names in onnx's schemas.

An argument may be an attribute in one opset and an input in another (axes of a reduction, bounds of a Clip).
`Arguments` finds it by name, so other modules do not compare opsets for this.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir

# The opsets of Attention that graphopt supports.
ATTENTION_OPSETS = range(23, 27)
# Opsets that changed the meaning of an argument, but not its name. From this one on, scale and bias of
# GroupNormalization have an element for each channel instead of each group.
GROUP_NORM_OF_CHANNELS_OPSET = 21
# From this opset on, Attention pads a mask that is shorter than the keys.
ATTENTION_PADS_MASK_OPSET = 24
# From this opset on, Max and Min support integers.
MAX_OF_INTEGERS_OPSET = 12
# From these opsets on, DequantizeLinear supports a scale for each channel, and for each block.
SCALES_OF_CHANNELS_OPSET, SCALES_OF_BLOCKS_OPSET = 13, 21
# Inputs with these names hold axes, or sizes and counts, in every ONNX operator.
AXES_ARGUMENTS = frozenset(("axes", "axis"))
SIZE_ARGUMENTS = frozenset(
    "M block_shape delta depth dft_length ends frame_length frame_step image_shape limit max_output_boxes_per_class "
    "num_mel_bins output_shape pads repeats shape size sizes split start starts steps".split()
)
# Operator -> an input that is a size or count although its name is not in SIZE_ARGUMENTS.
OTHER_SIZES = {"ConstantOfShape": "input", "TopK": "K"}


@dataclass(frozen=True)
class Signature:
    """An operator in one opset.

    Attributes:
        since: the opset that introduced this version; 0 if there is no such operator.
        inputs: name -> position.
        attributes: name -> default; None if there is none.
    """

    since: int
    inputs: Mapping[str, int]
    attributes: Mapping[str, Any]

    def has_argument(self, name: str) -> bool:
        """Returns whether the operator has an input or attribute of that name."""
        return name in self.inputs or name in self.attributes


@functools.cache
def signature(op_type: str, opset: int) -> Signature:
    """Returns the arguments of an ONNX operator in an opset."""
    try:
        schema = onnx.defs.get_schema(op_type, max_inclusive_version=opset, domain="")
    except onnx.defs.SchemaError:
        return Signature(0, {}, {})
    positions = {formal.name: index for index, formal in enumerate(schema.inputs)}
    return Signature(schema.since_version, positions, {n: _default(a) for n, a in schema.attributes.items()})


def _default(attribute: Any) -> Any:
    if not attribute.default_value.type:
        return None
    value = onnx.helper.get_attribute_value(attribute.default_value)
    return value.decode() if isinstance(value, bytes) else value


@functools.cache
def argument_name(op_type: str, opset: int, index: int) -> str:
    """Returns the name of an input of an ONNX operator; "" if the operator has no such input."""
    return next((name for name, i in signature(op_type, opset).inputs.items() if i == index), "")


def is_size(op_type: str, argument: str) -> bool:
    """Returns whether an input of an ONNX operator is a size or a count."""
    return argument in SIZE_ARGUMENTS or (argument != "" and OTHER_SIZES.get(op_type) == argument)


@functools.cache
def first_opset(op_type: str) -> int:
    """Returns the opset that introduced an ONNX operator with its current attributes."""
    form = signature(op_type, onnx.defs.onnx_opset_version())
    since = form.since
    while (older := signature(op_type, since - 1)).since and older.attributes.keys() == form.attributes.keys():
        since = older.since
    return since


def flattens(op_type: str, opset: int) -> bool:
    """Returns whether Softmax and similar operators flatten all axes from `axis` on, instead of using one axis."""
    return signature(op_type, opset).attributes.get("axis") == 1


def slices_by_attributes(opset: int) -> bool:
    """Returns whether the bounds of a Slice are attributes, and so must be constants."""
    return "starts" in signature("Slice", opset).attributes


class Arguments(abc.ABC):
    """The arguments of a node, by name.

    Attributes:
        node: the node; its attributes must not refer to attributes of a function.
    """

    node: ir.Node

    @property
    @abc.abstractmethod
    def opset(self) -> int:
        """The version of the node's domain."""

    @abc.abstractmethod
    def integer_input(self, i: int) -> list[int] | None:
        """The elements of input `i`, an integer tensor; None if unknown."""

    def attribute(self, name: str, default: Any = None) -> Any:
        """Returns the value of an attribute, or `default` if the node does not have it."""
        attribute = self.node.attributes.data.get(name)
        return default if attribute is None else attribute.value

    def position(self, name: str) -> int | None:
        """Returns the position of a present input, or None."""
        index = signature(self.node.op_type, self.opset).inputs.get(name)
        inputs = self.node.inputs
        return index if index is not None and index < len(inputs) and inputs[index] is not None else None

    def is_given(self, name: str) -> bool:
        """Returns whether the node has the argument, as an input or an attribute."""
        return self.position(name) is not None or name in self.node.attributes.data

    def integer_argument(self, name: str) -> list[int] | None:
        """Returns an input or attribute of integers by its name; None if it is absent or unknown."""
        index = self.position(name)
        if index is not None:
            return self.integer_input(index)
        given = self.attribute(name)
        return given if given is None else list(given)

    def axes(self, rank: int) -> list[int] | None:
        """Returns the argument `axes`, counted from the front; None if it is absent or unknown.

        Raises:
            ValueError: an axis beyond the rank.
        """
        axes = self.integer_argument("axes")
        if axes is None:
            return None
        if any(not -rank <= a < rank for a in axes):
            raise ValueError(axes)
        return [a % rank for a in axes]


@dataclass(frozen=True)
class Span:
    """The slice along one axis of a Slice node.

    Attributes:
        axis: the node's axis, possibly counted from the end.
        start, end, step: as the node gives them; None if unknown.
    """

    axis: int
    start: int | None
    end: int | None
    step: int | None

    @property
    def covers_axis(self) -> bool:
        """Whether the slice contains the whole axis at any length.

        Exporters write INT32_MAX or INT64_MAX for an end that is the end of the axis.
        """
        if self.start is None or self.end is None or self.step not in (1, -1):
            return False
        if self.step == 1:
            return self.start == 0 and self.end >= 2**31 - 1
        return self.start in (-1, 2**31 - 1) and self.end <= -(2**31) + 1

    def of(self, size: int) -> range | None:
        """Returns the indices that the span selects on an axis of that size.

        None if the span is unknown, or if ONNX Runtime differs from the specification. With a negative step, ONNX
        Runtime clamps a start before the first element to that element, and interprets an end of INT_MAX as "to the
        beginning".
        """
        start, end, step = self.start, self.end, self.step
        if start is None or end is None or not step or (step < 0 and (start < -size or end >= 2**31 - 1)):
            return None
        return range(*slice(start, end, step).indices(size))


def spans(arguments: Arguments) -> list[Span] | None:
    """Returns the slice along each axis of a Slice node; None if the axes are unknown."""
    starts, ends, steps = (arguments.integer_argument(name) for name in ("starts", "ends", "steps"))
    axes: Sequence[int] | None = arguments.integer_argument("axes")
    known = next((n for n in (axes, starts, ends, steps) if n is not None), None)
    if not arguments.is_given("axes") and known is not None:
        axes = range(len(known))
    if axes is None:
        return None
    count = len(axes)
    if not arguments.is_given("steps"):
        steps = [1] * count
    return [Span(axis, *(None if n is None else n[i] for n in (starts, ends, steps))) for i, axis in enumerate(axes)]
