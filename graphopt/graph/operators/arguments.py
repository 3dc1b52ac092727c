"""Arguments of ONNX's operators in each opset, by the names in onnx's schemas.

An argument may be an attribute in one opset and an input in another (axes of a reduction, bounds of a Clip).
`Arguments` looks the name up, and no other module compares opsets for that.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir

# Changes of meaning that no argument shows. From these opsets on:
# GroupNormalization has a scale of each channel, and not of each group.
GROUP_NORM_OF_CHANNELS_OPSET = 21
# Attention pads a mask that is shorter than the keys; versions that are known here.
ATTENTION_PADS_MASK_OPSET, ATTENTION_OPSETS = 24, range(23, 27)
# Max and Min take integers.
MAX_OF_INTEGERS_OPSET = 12
# DequantizeLinear has scales of each channel; of each block.
SCALES_OF_CHANNELS_OPSET, SCALES_OF_BLOCKS_OPSET = 13, 21


@dataclass(frozen=True)
class Signature:
    """An operator in one opset.

    Attributes:
        since: the opset that brought this form; 0 where there is no such operator.
        inputs: name -> position.
        attributes: name -> default, None where there is none.
    """

    since: int
    inputs: Mapping[str, int]
    attributes: Mapping[str, Any]

    def takes(self, name: str) -> bool:
        """Whether there is an argument of that name, an input or an attribute."""
        return name in self.inputs or name in self.attributes


@functools.cache
def signature(op_type: str, opset: int) -> Signature:
    """An operator of ONNX as an opset has it."""
    try:
        schema = onnx.defs.get_schema(op_type, max_inclusive_version=opset, domain="")
    except onnx.defs.SchemaError:
        return Signature(0, {}, {})
    places = {formal.name: place for place, formal in enumerate(schema.inputs)}
    return Signature(schema.since_version, places, {n: _default(a) for n, a in schema.attributes.items()})


def _default(attribute: Any) -> Any:
    if not attribute.default_value.type:
        return None
    value = onnx.helper.get_attribute_value(attribute.default_value)
    return value.decode() if isinstance(value, bytes) else value


@functools.cache
def first_opset(op_type: str) -> int:
    """The opset that introduced an operator of ONNX with the arguments that it has today."""
    form = signature(op_type, onnx.defs.onnx_opset_version())
    since = form.since
    while (older := signature(op_type, since - 1)).since and older.attributes.keys() == form.attributes.keys():
        since = older.since
    return since


def flattens(op_type: str, opset: int) -> bool:
    """Whether Softmax and its like work on a matrix, of all axes from `axis` on, and not along one axis."""
    return signature(op_type, opset).attributes.get("axis") == 1


def slices_by_attributes(opset: int) -> bool:
    """Whether the ends of a Slice are attributes, which have to be numbers."""
    return "starts" in signature("Slice", opset).attributes


class Arguments(abc.ABC):
    """A node's arguments, given what is known of its inputs.

    Attributes:
        node: none of its attributes refers to an attribute of a function.
    """

    node: ir.Node

    @property
    @abc.abstractmethod
    def opset(self) -> int:
        """The version of the node's domain."""

    @abc.abstractmethod
    def integers(self, i: int) -> list[int] | None:
        """The elements of input `i`, an integer tensor; None if unknown."""

    def attribute(self, name: str, default: Any = None) -> Any:
        attribute = self.node.attributes.data.get(name)
        return default if attribute is None else attribute.value

    def place(self, name: str) -> int | None:
        """The position of an input that is there."""
        place = signature(self.node.op_type, self.opset).inputs.get(name)
        inputs = self.node.inputs
        return place if place is not None and place < len(inputs) and inputs[place] is not None else None

    def is_given(self, name: str) -> bool:
        """Whether the node has the argument, as an input or an attribute."""
        return self.place(name) is not None or name in self.node.attributes.data

    def ints(self, name: str) -> list[int] | None:
        """An argument of integers; None if absent or unknown."""
        place = self.place(name)
        if place is not None:
            return self.integers(place)
        given = self.attribute(name)
        return given if given is None else list(given)

    def axes(self, rank: int) -> list[int] | None:
        """The argument `axes` counted from the front; None if absent or unknown.

        Raises:
            ValueError: an axis beyond the rank.
        """
        axes = self.ints("axes")
        if axes is None:
            return None
        if any(not -rank <= a < rank for a in axes):
            raise ValueError(axes)
        return [a % rank for a in axes]


@dataclass(frozen=True)
class Span:
    """The slice along one axis; None is an unknown number.

    Attributes:
        axis: as the node has it, which may be from the end.
    """

    axis: int
    start: int | None
    end: int | None
    step: int | None

    @property
    def is_whole(self) -> bool:
        """Whether it surely is all of an axis of any length: exporters write "to the end" as INT32_MAX or INT64_MAX."""
        if self.start is None or self.end is None or self.step not in (1, -1):
            return False
        if self.step == 1:
            return self.start == 0 and self.end >= 2**31 - 1
        return self.start in (-1, 2**31 - 1) and self.end <= -(2**31) + 1

    def of(self, size: int) -> range | None:
        """The elements of an axis of that size.

        None where ONNX Runtime and Python (and the specification) say different things: backward ONNX Runtime begins a
        slice that starts before the first element with that element, and takes an end of INT_MAX for "to the
        beginning".
        """
        start, end, step = self.start, self.end, self.step
        if start is None or end is None or not step or (step < 0 and (start < -size or end >= 2**31 - 1)):
            return None
        return range(*slice(start, end, step).indices(size))


def spans(arguments: Arguments) -> list[Span] | None:
    """The slices of a Slice, one for each of its axes; None if the axes are unknown."""
    starts, ends, steps = (arguments.ints(name) for name in ("starts", "ends", "steps"))
    axes: Sequence[int] | None = arguments.ints("axes")
    known = next((n for n in (axes, starts, ends, steps) if n is not None), None)
    if not arguments.is_given("axes") and known is not None:
        axes = range(len(known))
    if axes is None:
        return None
    count = len(axes)
    if not arguments.is_given("steps"):
        steps = [1] * count
    return [Span(axis, *(None if n is None else n[i] for n in (starts, ends, steps))) for i, axis in enumerate(axes)]
