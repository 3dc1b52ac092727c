"""The facts about values, and the arguments of rules that infer them."""

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
from graphopt.graph.shapes.sizes import MAX_BITS, Size
from graphopt.graph.traversal import bodies
from graphopt.ops import DOMAIN

# The domain of ONNX Runtime's operators; a key in the tables of rules is, for example, "com.microsoft.Gelu".
MICROSOFT = "com.microsoft"
# Elements are inferred for tensors of at most this size: shapes, axes and scalars, but not weights.
MAX_ELEMENTS = 64
INTEGERS = frozenset({ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL})
# Floating-point type -> n: the type represents every integer of at most n bits exactly.
EXACT_BITS = {ir.DataType.FLOAT16: 11, ir.DataType.FLOAT: 24, ir.DataType.DOUBLE: 53}

# The dimensions that a rule returns; None is an unknown one.
Dims = Sequence[Size | None]
# An element of a small tensor: a Size or a Fraction is exact, a float is rounded, None is unknown.
Element = Size | Fraction | float | None
Items = npt.NDArray[np.object_]


@dataclass(frozen=True, eq=False, slots=True)
class Elements:
    """The known elements of a small tensor.

    Attributes:
        items: an array of `Element` with the tensor's shape.
        dtype: the tensor's element type, of INTEGERS or EXACT_BITS.
    """

    items: Items
    dtype: ir.DataType

    @property
    def integers(self) -> list[int] | None:
        """The elements in order if all are known integers; None otherwise."""
        numbers: list[int] = []
        for element in self.items.flat:
            if not isinstance(element, Size) or (number := element.value) is None:
                return None
            numbers.append(number)
        return numbers

    @property
    def array(self) -> npt.NDArray[Any] | None:
        """The tensor if its elements are integers or booleans and all are known; None otherwise."""
        numbers = self.integers if self.dtype in INTEGERS else None
        try:
            return None if numbers is None else np.array(numbers, self.dtype.numpy()).reshape(self.items.shape)
        except OverflowError:  # beyond the type's range, where runtimes differ
            return None

    def bounded(self) -> Elements:
        """Returns the elements, with None in place of elements that are too large."""
        if all(map(_is_bounded, self.items.flat)):
            return self
        return Elements(items([e if _is_bounded(e) else None for e in self.items.flat], self.items.shape), self.dtype)


def _is_bounded(element: Element) -> bool:
    if isinstance(element, Size):
        return element.is_bounded
    return not isinstance(element, Fraction) or max(map(int.bit_length, element.as_integer_ratio())) <= MAX_BITS


def items(elements: Sequence[Element], shape: Sequence[int] | None = None) -> Items:
    """Makes an array of elements, by default a vector."""
    array = np.empty(len(elements), object)
    array[:] = elements
    return array if shape is None else array.reshape(tuple(shape))


def constant(tensor: ir.TensorProtocol) -> Elements | None:
    """Returns the elements of a constant; None if it is large or its type is in neither INTEGERS nor EXACT_BITS."""
    if tensor.size > MAX_ELEMENTS or not (tensor.dtype in INTEGERS or tensor.dtype in EXACT_BITS):
        return None
    return exact(tensor.numpy(), tensor.dtype)


def exact(array: npt.NDArray[Any], dtype: ir.DataType) -> Elements:
    """Converts an array of known elements."""
    numbers = array.reshape(-1).tolist()
    return Elements(items([as_element(n) for n in numbers], array.shape), dtype)


def as_element(number: float | Fraction) -> Element:
    """Converts a finite number to a Size if it is an integer, else to a Fraction."""
    if isinstance(number, float):
        if not math.isfinite(number):
            return number
        number = Fraction(number)
    return Size.of(int(number)) if number == int(number) else number


# The kinds of facts. The last dimension may be known although the rank is not.
Fact = Literal["dims", "elements", "last"]
Facts = dict[Fact, dict[ir.Value | None, Any]]


@dataclass
class NodeFacts(Arguments):
    """The argument of a rule: one output of a node, with the facts about the node's inputs.

    Attributes:
        facts: all known facts.
        node: the node.
        index: the index of the output.
        opset_of: returns the version of a node's domain.
        rule: the rule; it may read only the facts that it lists.
    """

    facts: Facts
    node: ir.Node
    index: int
    opset_of: Callable[[ir.Node], int]
    rule: Rule

    @property
    def opset(self) -> int:
        return self.opset_of(self.node)

    def input(self, i: int) -> ir.Value | None:
        inputs = self.node.inputs
        return inputs[i] if i < len(inputs) else None

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
        inputs = self.node.inputs
        return self.facts[fact].get(inputs[i]) if i < len(inputs) else None

    def integer_input(self, i: int) -> list[int] | None:
        elements = self.elements(i)
        return None if elements is None else elements.integers

    def length(self, i: int) -> int | None:
        """Returns the number of elements of a vector, or None if it is unknown."""
        elements = self.elements(i)
        if elements is not None:
            return elements.items.size
        dims = self.dims(i)
        return dims[0].value if dims is not None and len(dims) == 1 else None

    def all_dims(self) -> list[tuple[Size, ...]] | None:
        """Returns the dimensions of every present input; None unless all are known."""
        return _all_known([self.dims(i) for i, v in enumerate(self.node.inputs) if v is not None])

    def returned(self) -> list[tuple[Size, ...]] | None:
        """Returns the dimensions of this output in each branch; None unless all are known."""
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
    """An inference rule for the outputs of an operator.

    Attributes:
        infer: the function that infers the fact.
        dims: indices of the inputs of which the rule reads the dimensions, or EVERY.
        elements: indices of the inputs of which the rule reads the elements, or EVERY.
        every_output: whether the rule applies to all outputs of the node, instead of the first only.
        branches: whether the rule reads the dimensions of the outputs of the node's branches.
    """

    infer: Callable[[NodeFacts], Any]
    dims: tuple[int, ...] = ()
    elements: tuple[int, ...] = ()
    every_output: bool = False
    branches: bool = False


def _all_known(found: Sequence[tuple[Size, ...] | None]) -> list[tuple[Size, ...]] | None:
    known = [dims for dims in found if dims is not None]
    return known if len(known) == len(found) else None


def returned(node: ir.Node, index: int) -> list[ir.Value]:
    """Returns output `index` of each branch of an If."""
    return [branch.outputs[index] for branch in bodies(node)]


def rule_for(node: ir.Node, standard: dict[str, Rule], own: dict[str, Rule]) -> Rule | None:
    """Returns the rule for a node's operator, or None."""
    if node.domain in ("", MICROSOFT):
        return standard.get(f"{node.domain}.{node.op_type}" if node.domain else node.op_type)
    return own.get(node.op_type) if node.domain == DOMAIN else None
