"""The inference engine for ranks, dimensions and elements of small tensors.

    shapes.rank(x)       2
    shapes.dims(x)       (B, 2*S + 1)           sizes.py
    shapes.elements(x)   [B, S, 12, 64]         of a small tensor of integers or floats, such as the target of a Reshape

There are three sources of facts about a value, in order of preference: the shape that the model declares or onnx
inferred; its constant tensor; the rule of the operator that produces it (dims.py, elements.py). An unknown dimension
becomes a new symbol, which is equal only to itself.

Declared symbols are trusted as the ONNX IR specification defines them: in one graph, equal names mean equal sizes. The
symbols of onnx's inference have lower priority than rules. A negative dimension, which some exporters write, counts as
unknown.

Every fact is computed once. A worklist first computes the facts that a rule reads, so a query at the end of a deep
graph needs no recursion, and all queries together visit each value once. A rewrite transfers facts to the replacement
of a value (`replaced`). Facts about other values remain true, because a rewrite preserves their elements.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Protocol, TypeGuard

import onnx_ir as ir

from graphopt.graph.inference import GENERATED_SYMBOL, known_dim
from graphopt.graph.operators.dims import DIMS, DIMS_OWN, LAST, LAST_OWN
from graphopt.graph.operators.elements import ELEMENTS
from graphopt.graph.operators.evaluation import CannotEvaluateError
from graphopt.graph.shapes.facts import (
    EVERY,
    EXACT_BITS,
    MAX_ELEMENTS,
    Elements,
    Fact,
    Facts,
    NodeFacts,
    Rule,
    constant,
    returned,
    rule_for,
)
from graphopt.graph.shapes.sizes import Size, product

# Torch's dynamo exporter names dimensions by products of its own symbols, such as 4*s21.
PRODUCT = re.compile(r"(\d+|[A-Za-z_]\w*)(\*(\d+|[A-Za-z_]\w*))+")


Dim = int | str | None


class Graph(Protocol):
    """The queries that the engine needs (see `GraphView`)."""

    def declared(self, value: ir.Value | None) -> tuple[Dim, ...] | None: ...
    def tensor(self, value: ir.Value | None) -> ir.TensorProtocol | None: ...
    def scalar(self, value: ir.Value | None) -> float | None: ...
    def opset(self, node: ir.Node) -> int: ...


_RULES: dict[Fact, tuple[dict[str, Rule], dict[str, Rule]]] = {
    "dims": (DIMS, DIMS_OWN),
    "elements": (ELEMENTS, {}),
    "last": (LAST, LAST_OWN),
}
_Query = tuple[Fact, ir.Value]


class Shapes:
    """The facts about the values of one model, computed on demand and cached."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._found: Facts = {"dims": {}, "elements": {}, "last": {}}
        # The symbols of unknown dimensions.
        self._symbols: dict[tuple[ir.Value, int], Size] = {}
        # Declared dimensions -> sizes; a large graph has few different shapes.
        self._sizes: dict[tuple[Dim, ...], tuple[Size | None, ...]] = {}

    # -- queries -------------------------------------------------------------------------------------------------------

    def rank(self, value: ir.Value | None) -> int | None:
        """Returns the rank of a value, or None if it is unknown."""
        declared = self._graph.declared(value)
        if declared is not None:
            return len(declared)
        dims = self.dims(value)
        return None if dims is None else len(dims)

    def dims(self, value: ir.Value | None) -> tuple[Size, ...] | None:
        """Returns the dimensions of a value, or None if the rank is unknown."""
        found: tuple[Size, ...] | None = self._query("dims", value)
        return found

    def dim(self, value: ir.Value, axis: int) -> Size:
        """Returns one dimension, counted from the front; a new symbol if the rank is unknown."""
        dims = self.dims(value)
        return self._unknown(value, axis) if dims is None else dims[axis]

    def last(self, value: ir.Value | None) -> Size | None:
        """Returns the last dimension, which may be known although the rank is not; None if it is unknown."""
        dims = self.dims(value)
        if dims is not None:
            return dims[-1] if dims else None
        found: Size | None = self._query("last", value)
        return found

    def is_last(self, axis: int, value: ir.Value | None) -> bool:
        """Returns whether an axis, possibly counted from the end, is known to be the last."""
        rank = None if axis == -1 else self.rank(value)
        return axis == -1 or (rank is not None and axis == rank - 1)

    def elements(self, value: ir.Value | None) -> Elements | None:
        """Returns the elements of a small tensor, some of them possibly unknown; None if nothing is known."""
        found: Elements | None = self._query("elements", value)
        return found

    def number(self, value: ir.Value | None) -> float | None:
        """Returns the element of a tensor of size 1 if it is the same for every input of the model; None otherwise."""
        scalar = self._graph.scalar(value)
        if scalar is not None:
            return scalar
        elements = self.elements(value)
        element = elements.items.item() if elements is not None and elements.items.size == 1 else None
        number = element.value if isinstance(element, Size) else element
        return None if number is None else float(number)

    def reshaped(self, node: ir.Node) -> tuple[Size, ...] | None:
        """Returns a Reshape's output dimensions from its target only, not from the output's declared shape."""
        output, rule = node.outputs[0], self._rule("dims", node.outputs[0])
        if rule is None or len(node.inputs) < 2 or self.elements(node.inputs[1]) is None:
            return None
        self.dims(node.inputs[0])
        inferred = self._infer(output, *rule)
        return None if inferred is None else self._named(output, inferred)

    # -- changes -------------------------------------------------------------------------------------------------------

    def declare(self, value: ir.Value, dims: Sequence[Size | None]) -> None:
        """Sets the dimensions of a value; None is an unknown size."""
        self._found["dims"][value] = self._named(value, dims)

    def replaced(self, old: ir.Value, new: ir.Value, *, producer_changed: bool) -> None:
        """Transfers facts to a value that replaces another one.

        Args:
            old: the replaced value.
            new: its replacement, with the same elements.
            producer_changed: whether the producer of `new` is new or has changed.
        """
        for found in self._found.values():
            fact = found.pop(old, None)
            if producer_changed:
                found.pop(new, None)
                if fact is not None:
                    found[new] = fact

    def forget(self) -> None:
        """Removes all facts, after types and shapes were inferred again."""
        for found in self._found.values():
            found.clear()
        self._symbols.clear()

    # -- inference -----------------------------------------------------------------------------------------------------

    def _query(self, fact: Fact, value: ir.Value | None) -> Any:
        if value is None:
            return None
        found = self._found[fact]
        if value not in found:
            self._resolve(fact, value)
        return found[value]

    def _resolve(self, fact: Fact, value: ir.Value) -> None:
        stack: list[_Query] = [(fact, value)]
        # Queries with their prerequisites on the stack above them. In a cycle, which no valid graph has, a query uses
        # only the known facts.
        opened: dict[_Query, tuple[ir.Node, Rule]] = {}
        while stack:
            query = fact, value = stack[-1]
            found = self._found[fact]
            rule = opened.get(query)
            if value in found or (rule is None and self._find_without_rule(fact, value)):
                stack.pop()
                continue
            if rule is None:
                rule = self._rule(fact, value)
                if rule is not None and (missing := self._missing_facts(fact, value, *rule)):
                    opened[query] = rule
                    stack += missing
                    continue
            found[value] = self._combine(fact, value, rule)
            stack.pop()

    def _find_without_rule(self, fact: Fact, value: ir.Value) -> bool:
        """Stores a fact that can be found without a rule; returns whether the fact is known."""
        found = self._found[fact]
        if fact == "dims":
            declared = self._graph.declared(value)
            if declared is not None:
                sizes = self._known_sizes(declared)
                if _all_known(sizes):
                    found[value] = sizes
        elif fact == "elements":
            tensor = self._graph.tensor(value)
            if tensor is not None:
                found[value] = constant(tensor)
            elif not _may_be_small(value):
                found[value] = None
        else:
            dims = self._found["dims"].get(value)
            if dims is not None:
                found[value] = dims[-1] if dims else None
        return value in found

    def _known_sizes(self, declared: tuple[Dim, ...]) -> tuple[Size | None, ...]:
        """Converts declared dimensions to sizes, with None for unknown ones."""
        if declared not in self._sizes:
            self._sizes[declared] = tuple([None if _is_unknown(d) else _size(d) for d in declared])
        return self._sizes[declared]

    def _missing_facts(self, fact: Fact, value: ir.Value, node: ir.Node, rule: Rule) -> list[_Query]:
        """Returns the missing facts that a rule reads, as a stack."""
        missing: list[_Query] = []
        if rule.branches:
            found = self._found["dims"]
            missing += [("dims", x) for x in returned(node, value.index() or 0) if x not in found]
        inputs = node.inputs
        reads: tuple[tuple[Fact, tuple[int, ...]], ...] = (("dims", rule.dims), ("elements", rule.elements))
        for other, read in reads:
            if read:
                found = self._found[other]
                for x in inputs if read is EVERY else [inputs[i] for i in read if i < len(inputs)]:
                    if x is not None and x not in found:
                        missing.append((other, x))
        if fact == "last":
            for x in inputs:
                if x is not None and x not in self._found["last"]:
                    missing += [("last", x), ("dims", x)]
        return missing

    def _rule(self, fact: Fact, value: ir.Value) -> tuple[ir.Node, Rule] | None:
        node = value.producer()
        if node is None:
            return None
        rule = rule_for(node, *_RULES[fact])
        if rule is None or not (rule.every_output or value is node.outputs[0]):
            return None
        for attribute in node.attributes.data.values():
            if attribute.is_ref():
                return None  # an attribute of the enclosing function is unknown
        return node, rule

    def _infer(self, value: ir.Value, node: ir.Node, rule: Rule) -> Any:
        try:
            return rule.infer(NodeFacts(self._found, node, value.index() or 0, self._graph.opset, rule))
        except (CannotEvaluateError, ArithmeticError, ValueError, LookupError, TypeError):
            return None  # an invalid node, which the runtime reports

    def _combine(self, fact: Fact, value: ir.Value, rule: tuple[ir.Node, Rule] | None) -> Any:
        inferred = None if rule is None else self._infer(value, *rule)
        if fact == "elements":
            return None if inferred is None or inferred.items.size > MAX_ELEMENTS else inferred.bounded()
        if fact == "last":
            return inferred
        declared = self._graph.declared(value)
        if declared is None:
            return None if inferred is None else self._named(value, [_bounded(size) for size in inferred])
        if inferred is None or len(inferred) != len(declared):
            inferred = [None] * len(declared)
        pairs = zip(self._known_sizes(declared), inferred, strict=True)
        return self._named(value, [size if size is not None else _bounded(rule) for size, rule in pairs])

    def _named(self, value: ir.Value, dims: Sequence[Size | None]) -> tuple[Size, ...]:
        if _all_known(dims):
            return tuple(dims)
        return tuple([self._unknown(value, axis) if size is None else size for axis, size in enumerate(dims)])

    def _unknown(self, value: ir.Value, axis: int) -> Size:
        """Returns the symbol of an unknown dimension."""
        if (value, axis) not in self._symbols:
            declared = self._graph.declared(value)
            name = declared[axis] if declared is not None and axis < len(declared) else None
            is_generated = isinstance(name, str) and name.startswith(GENERATED_SYMBOL)
            self._symbols[value, axis] = _size(name) if is_generated else Size.symbol(f"?{len(self._symbols)}")
        return self._symbols[value, axis]


def _all_known(dims: Sequence[Size | None]) -> TypeGuard[Sequence[Size]]:
    return len([size for size in dims if size is not None]) == len(dims)  # `None in dims` would call `Size.__eq__`


def _bounded(size: Size | None) -> Size | None:
    return size if size is not None and size.is_bounded else None


def _is_unknown(declared: Dim) -> bool:
    """Returns whether a declared dimension is unknown: absent, negative, a word for any size, or onnx's symbol."""
    if isinstance(declared, int):
        return declared < 0
    return declared is None or declared.startswith(GENERATED_SYMBOL) or known_dim(declared) is None


def _may_be_small(value: ir.Value) -> bool:
    shape = value.shape
    if shape is None:
        return True
    # Only scalars and vectors of floats are used in shape computations.
    if len(shape) > 1 and value.dtype in EXACT_BITS:
        return False
    return math.prod(d for d in shape if isinstance(d, int) and d > 0) <= MAX_ELEMENTS


def _size(declared: Dim) -> Size:
    assert declared is not None
    if isinstance(declared, int):
        return Size.of(declared)
    if PRODUCT.fullmatch(declared):
        return product([Size.of(int(f)) if f.isdigit() else Size.symbol(f) for f in declared.split("*")])
    # Our own symbols start with one question mark, so a declared name that starts with one gets a second one.
    return Size.symbol(f"?{declared}" if declared.startswith("?") else declared)
