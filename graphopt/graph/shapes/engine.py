"""What is known of ranks, dimensions and small tensors before a model runs: the one engine that answers.

    shapes.rank(x)       2
    shapes.dims(x)       (B, 2*S + 1)           sizes.py
    shapes.elements(x)   [B, S, 12, 64]         of a small tensor of integers or floats, such as the target of a Reshape

Three sources, the better first: what the model declares and onnx's inference found; the constant behind a value; the
rule of the operator that makes it (dims.py, elements.py). What nothing tells of a dimension becomes a symbol of its
own, so that it is equal to itself and to nothing else.

Declared symbols are trusted as the ONNX IR specification defines them: one name, one value in a graph. Those that
inference invents are symbols too, but rules are asked first. A negative dimension, as some exporters write "dynamic",
is not known.

Every fact is found once, by a worklist and not by recursion: the facts that a rule reads come first, so that a question
about the end of a graph of any depth walks it from the front, and all questions together cost one visit for each value.
A rewrite moves facts over to what takes a value's place (`replaced`); facts about other values stay true, since a
rewrite keeps what they hold.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Protocol

import onnx_ir as ir

from graphopt.graph.inference import MADE_SYMBOL, known_dim
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
    Known,
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
    """What the engine asks of a graph (see `GraphView`)."""

    def declared(self, value: ir.Value | None) -> tuple[Dim, ...] | None: ...
    def tensor(self, value: ir.Value | None) -> ir.TensorProtocol | None: ...
    def scalar(self, value: ir.Value | None) -> float | None: ...
    def opset(self, node: ir.Node) -> int: ...


_RULES: dict[Fact, tuple[dict[str, Rule], dict[str, Rule]]] = {
    "dims": (DIMS, DIMS_OWN),
    "elements": (ELEMENTS, {}),
    "last": (LAST, LAST_OWN),
}
_Question = tuple[Fact, ir.Value]


class Shapes:
    """Answers for the values of one model, and remembers."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._found: Facts = {"dims": {}, "elements": {}, "last": {}}
        # Symbols for dimensions that nothing tells.
        self._own: dict[tuple[ir.Value, int], Size] = {}
        # Declared dimensions as sizes: few different ones in a large graph.
        self._settled: dict[tuple[Dim, ...], tuple[Size | None, ...]] = {}

    # -- questions -----------------------------------------------------------------------------------------------------

    def rank(self, value: ir.Value | None) -> int | None:
        """How many dimensions a value has."""
        declared = self._graph.declared(value)
        if declared is not None:
            return len(declared)
        dims = self.dims(value)
        return None if dims is None else len(dims)

    def dims(self, value: ir.Value | None) -> tuple[Size, ...] | None:
        """Every dimension, or None when the rank is not known."""
        found: tuple[Size, ...] | None = self._ask("dims", value)
        return found

    def dim(self, value: ir.Value, axis: int) -> Size:
        """One dimension, counted from the front; a symbol of its own where not even the rank is known."""
        dims = self.dims(value)
        return self._unknown(value, axis) if dims is None else dims[axis]

    def last(self, value: ir.Value | None) -> Size | None:
        """The last dimension, which may be known where the rank is not."""
        dims = self.dims(value)
        if dims is not None:
            return dims[-1] if dims else None
        found: Size | None = self._ask("last", value)
        return found

    def is_last(self, axis: int, value: ir.Value | None) -> bool:
        """Whether an axis, which may be counted from the end, is known to be the last one."""
        rank = None if axis == -1 else self.rank(value)
        return axis == -1 or (rank is not None and axis == rank - 1)

    def elements(self, value: ir.Value | None) -> Elements | None:
        """The elements of a small tensor, each known or not; None when nothing is known of them."""
        found: Elements | None = self._ask("elements", value)
        return found

    def number(self, value: ir.Value | None) -> float | None:
        """The number that a tensor of one element holds for every input of the model, or None."""
        scalar = self._graph.scalar(value)
        if scalar is not None:
            return scalar
        elements = self.elements(value)
        element = elements.items.item() if elements is not None and elements.items.size == 1 else None
        number = element.value if isinstance(element, Size) else element
        return None if number is None else float(number)

    def reshaped(self, node: ir.Node) -> tuple[Size, ...] | None:
        """The dimensions that a Reshape makes by its target, whatever is declared of its output."""
        output, rule = node.outputs[0], self._rule("dims", node.outputs[0])
        if rule is None or len(node.inputs) < 2 or self.elements(node.inputs[1]) is None:
            return None
        self.dims(node.inputs[0])
        told = self._tell(output, *rule)
        return None if told is None else self._named(output, told)

    # -- what changes --------------------------------------------------------------------------------------------------

    def declare(self, value: ir.Value, dims: Sequence[Size | None]) -> None:
        """What is known of a value that no node makes yet; None is a size that is not."""
        self._found["dims"][value] = self._named(value, dims)

    def replaced(self, old: ir.Value, new: ir.Value, *, made_anew: bool) -> None:
        """Another value takes a value's place.

        Args:
            old: what was read.
            new: what is read instead; it holds the same.
            made_anew: whether its node is new, or computes something else than before.
        """
        for found in self._found.values():
            fact = found.pop(old, None)
            if made_anew:
                found.pop(new, None)
                if fact is not None:
                    found[new] = fact

    def forget(self) -> None:
        """Types and shapes have been inferred anew."""
        for found in self._found.values():
            found.clear()
        self._own.clear()

    # -- finding out ---------------------------------------------------------------------------------------------------

    def _ask(self, fact: Fact, value: ir.Value | None) -> Any:
        if value is None:
            return None
        found = self._found[fact]
        if value not in found:
            self._work(fact, value)
        return found[value]

    def _work(self, fact: Fact, value: ir.Value) -> None:
        stack: list[_Question] = [(fact, value)]
        # Questions whose own questions are on the stack above them. One that comes back to itself, which no valid graph
        # does, is answered with what is there.
        opened: dict[_Question, tuple[ir.Node, Rule]] = {}
        while stack:
            question = fact, value = stack[-1]
            found = self._found[fact]
            if value in found or self._at_once(fact, value):
                stack.pop()
                continue
            rule = opened.get(question)
            if rule is None:
                rule = self._rule(fact, value)
                if rule is not None and (first := self._first(fact, value, *rule)):
                    opened[question] = rule
                    stack += first
                    continue
            found[value] = self._conclude(fact, value, rule)
            stack.pop()

    def _at_once(self, fact: Fact, value: ir.Value) -> bool:
        """Answers what needs no rule."""
        found = self._found[fact]
        if fact == "dims":
            declared = self._graph.declared(value)
            if declared is not None:
                settled = self._settle(declared)
                if None not in settled:
                    found[value] = settled
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

    def _settle(self, declared: tuple[Dim, ...]) -> tuple[Size | None, ...]:
        """Declared dimensions, with None for those that tell nothing."""
        if declared not in self._settled:
            self._settled[declared] = tuple([None if _is_open(d) else _size(d) for d in declared])
        return self._settled[declared]

    def _first(self, fact: Fact, value: ir.Value, node: ir.Node, rule: Rule) -> list[_Question]:
        """What has to be known before a rule is asked, the last of it first."""
        first: list[_Question] = []
        if rule.branches:
            found = self._found["dims"]
            first += [("dims", x) for x in returned(node, value.index() or 0) if x not in found]
        inputs = node.inputs
        reads: tuple[tuple[Fact, tuple[int, ...]], ...] = (("dims", rule.dims), ("elements", rule.elements))
        for other, read in reads:
            if read:
                found = self._found[other]
                for x in inputs if read is EVERY else [inputs[i] for i in read if i < len(inputs)]:
                    if x is not None and x not in found:
                        first.append((other, x))
        if fact == "last":
            for x in inputs:
                if x is not None and x not in self._found["last"]:
                    first += [("last", x), ("dims", x)]
        return first

    def _rule(self, fact: Fact, value: ir.Value) -> tuple[ir.Node, Rule] | None:
        node = value.producer()
        if node is None:
            return None
        rule = rule_for(node, *_RULES[fact])
        if rule is None or not (rule.every_output or value is node.outputs[0]):
            return None
        for attribute in node.attributes.data.values():
            if attribute.is_ref():
                return None  # a parameter of the function around the node tells nothing
        return node, rule

    def _tell(self, value: ir.Value, node: ir.Node, rule: Rule) -> Any:
        try:
            return rule.tell(Known(self._found, node, value.index() or 0, self._graph.opset, rule))
        except (CannotEvaluateError, ArithmeticError, ValueError, LookupError, TypeError):
            return None  # an invalid node: runtimes say so better

    def _conclude(self, fact: Fact, value: ir.Value, rule: tuple[ir.Node, Rule] | None) -> Any:
        told = None if rule is None else self._tell(value, *rule)
        if fact == "elements":
            return told if told is None or told.items.size <= MAX_ELEMENTS else None
        if fact == "last":
            return told
        declared = self._graph.declared(value)
        if declared is None:
            return None if told is None else self._named(value, told)
        if told is None or len(told) != len(declared):
            told = [None] * len(declared)
        pairs = zip(self._settle(declared), told, strict=True)
        return self._named(value, [size if size is not None else rule for size, rule in pairs])

    def _named(self, value: ir.Value, dims: Sequence[Size | None]) -> tuple[Size, ...]:
        if None not in dims:
            return tuple(dims)  # type: ignore[arg-type]  # mypy does not follow `in`
        return tuple([self._unknown(value, axis) if size is None else size for axis, size in enumerate(dims)])

    def _unknown(self, value: ir.Value, axis: int) -> Size:
        """The symbol of a dimension that nothing tells."""
        if (value, axis) not in self._own:
            declared = self._graph.declared(value)
            name = declared[axis] if declared is not None and axis < len(declared) else None
            made = isinstance(name, str) and name.startswith(MADE_SYMBOL)
            self._own[value, axis] = _size(name) if made else Size.symbol(f"?{len(self._own)}")
        return self._own[value, axis]


def _is_open(declared: Dim) -> bool:
    """Whether a declared dimension tells nothing: absent, negative, a word for any size, or inference's own name."""
    if isinstance(declared, int):
        return declared < 0
    return declared is None or declared.startswith(MADE_SYMBOL) or known_dim(declared) is None


def _may_be_small(value: ir.Value) -> bool:
    shape = value.shape
    if shape is None:
        return True
    # Among floats only scalars and vectors are ever asked for.
    if len(shape) > 1 and value.dtype in EXACT_BITS:
        return False
    return math.prod(d for d in shape if isinstance(d, int) and d > 0) <= MAX_ELEMENTS


def _size(declared: Dim) -> Size:
    assert declared is not None
    if isinstance(declared, int):
        return Size.of(declared)
    if PRODUCT.fullmatch(declared):
        return product([Size.of(int(f)) if f.isdigit() else Size.symbol(f) for f in declared.split("*")])
    # Names with one question mark in front are ours.
    return Size.symbol(f"?{declared}" if declared.startswith("?") else declared)
