"""What is known of a value, and what a rule is given to tell more."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from graphopt.graph.operators.arguments import Arguments
from graphopt.graph.shapes.sizes import Size
from graphopt.graph.traversal import bodies
from graphopt.ops import DOMAIN

# ONNX Runtime's operators, in the tables of rules by this name and their own: "com.microsoft.Gelu".
MICROSOFT = "com.microsoft"
# Only shapes, axes and scalars are followed, never weights.
MAX_ELEMENTS = 64
INTEGERS = frozenset({ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL})
# Bits of a whole number that the type holds, whatever it is.
EXACT_BITS = {ir.DataType.FLOAT16: 11, ir.DataType.FLOAT: 24, ir.DataType.DOUBLE: 53}

# Dimensions as a rule tells them; None is one that it does not know.
Dims = Sequence[Size | None]
# An element of a small tensor: exact when it is a Size or a Fraction, close when it is a float, None when not known.
Element = Size | Fraction | float | None
Items = npt.NDArray[np.object_]


@dataclass(frozen=True, eq=False, slots=True)
class Elements:
    """What is known of a small tensor's elements.

    Attributes:
        items: an array of `Element`, in the tensor's own shape.
        dtype: the tensor's element type, of INTEGERS or EXACT_BITS.
    """

    items: Items
    dtype: ir.DataType

    @property
    def integers(self) -> list[int] | None:
        """The elements in order, where all of them are known whole numbers."""
        numbers: list[int] = []
        for element in self.items.flat:
            if not isinstance(element, Size) or (number := element.value) is None:
                return None
            numbers.append(number)
        return numbers

    @property
    def array(self) -> npt.NDArray[Any] | None:
        """The tensor, where it holds integers or truth values and all of them are known."""
        numbers = self.integers if self.dtype in INTEGERS else None
        try:
            return None if numbers is None else np.array(numbers, self.dtype.numpy()).reshape(self.items.shape)
        except OverflowError:  # beyond the type: each runtime has an answer of its own
            return None


def items(elements: Sequence[Element], shape: Sequence[int] | None = None) -> Items:
    array = np.empty(len(elements), object)
    array[:] = elements
    return array if shape is None else array.reshape(tuple(shape))


def constant(tensor: ir.TensorProtocol) -> Elements | None:
    """The elements of a constant, unless it is large or of another type."""
    if tensor.size > MAX_ELEMENTS or not (tensor.dtype in INTEGERS or tensor.dtype in EXACT_BITS):
        return None
    return exact(tensor.numpy(), tensor.dtype)


def exact(array: npt.NDArray[Any], dtype: ir.DataType) -> Elements:
    numbers = array.reshape(-1).tolist()
    return Elements(items([as_element(n) for n in numbers], array.shape), dtype)


def as_element(number: float | Fraction) -> Element:
    """A number as an element: whole numbers are sizes."""
    if isinstance(number, float):
        if not math.isfinite(number):
            return number
        number = Fraction(number)
    return Size.of(int(number)) if number == int(number) else number


# What there is to know of a value. The last dimension may be known where the rank is not.
Fact = Literal["dims", "elements", "last"]
Facts = dict[Fact, dict[ir.Value, Any]]


@dataclass
class Known(Arguments):
    """One output of a node, and what is known of the node's inputs."""

    facts: Facts
    node: ir.Node
    index: int
    opset_of: Callable[[ir.Node], int]
    rule: Rule

    @property
    def opset(self) -> int:
        return self.opset_of(self.node)

    def input(self, i: int) -> ir.Value | None:
        return self.node.inputs[i] if i < len(self.node.inputs) else None

    def dims(self, i: int) -> tuple[Size, ...] | None:
        assert i in self.rule.dims or self.rule.dims is EVERY, (self.node.op_type, i)
        dims: tuple[Size, ...] | None = self._fact("dims", i)
        return dims

    def elements(self, i: int) -> Elements | None:
        assert i in self.rule.elements or self.rule.elements is EVERY, (self.node.op_type, i)
        elements: Elements | None = self._fact("elements", i)
        return elements

    def last(self, i: int) -> Size | None:
        last: Size | None = self._fact("last", i)
        return last

    def _fact(self, fact: Fact, i: int) -> Any:
        value = self.input(i)
        return None if value is None else self.facts[fact].get(value)

    def integers(self, i: int) -> list[int] | None:
        elements = self.elements(i)
        return None if elements is None else elements.integers

    def length(self, i: int) -> int | None:
        """How many elements a vector has."""
        elements = self.elements(i)
        if elements is not None:
            return elements.items.size
        dims = self.dims(i)
        return dims[0].value if dims is not None and len(dims) == 1 else None

    def all_dims(self) -> list[tuple[Size, ...]] | None:
        """Dimensions of every input that is present; None unless all are known."""
        return _all_known([self.dims(i) for i, v in enumerate(self.node.inputs) if v is not None])

    def returned(self) -> list[tuple[Size, ...]] | None:
        """Dimensions of what each branch returns as this output; None unless all are known."""
        assert self.rule.branches, self.node.op_type
        return _all_known([self.facts["dims"].get(v) for v in returned(self.node, self.index)])

    def axis(self, rank: int, default: int = 0) -> int:
        axis: int = self.attribute("axis", default)
        if not -rank <= axis < rank:
            raise ValueError(axis)
        return axis % rank


FIRST, EVERY = (0,), (-1,)


@dataclass(frozen=True)
class Rule:
    """How an output follows from the inputs.

    Attributes:
        tell: the rule itself.
        dims: inputs whose dimensions it reads, or EVERY.
        elements: inputs whose elements it reads, or EVERY.
        every_output: whether it speaks for all outputs of the node, and not for the first alone.
        branches: whether it reads the dimensions of what the node's branches return.
    """

    tell: Callable[[Known], Any]
    dims: tuple[int, ...] = ()
    elements: tuple[int, ...] = ()
    every_output: bool = False
    branches: bool = False


def _all_known(found: Sequence[tuple[Size, ...] | None]) -> list[tuple[Size, ...]] | None:
    known = [dims for dims in found if dims is not None]
    return known if len(known) == len(found) else None


def returned(node: ir.Node, index: int) -> list[ir.Value]:
    """What each branch of an If returns as the output of that index."""
    return [branch.outputs[index] for branch in bodies(node)]


def rule_for(node: ir.Node, standard: dict[str, Rule], own: dict[str, Rule]) -> Rule | None:
    """The rule for a node's operator, if there is one."""
    if node.domain in ("", MICROSOFT):
        return standard.get(f"{node.domain}.{node.op_type}" if node.domain else node.op_type)
    return own.get(node.op_type) if node.domain == DOMAIN else None
