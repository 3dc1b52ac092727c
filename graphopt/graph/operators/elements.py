"""Rules for the elements of small tensors, one for each operator; the table is at the end.

Operators that move elements move unknown elements as well. Integer arithmetic is exact, also with symbols. A result of
floating-point arithmetic is exact if the element type represents it exactly; otherwise it is a rounded float, and so
are all results computed from it. A rounded float never becomes an integer again, so no dimension depends on rounding.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from graphopt.graph.operators.evaluation import FoldableNode, evaluate
from graphopt.graph.shapes.facts import (
    EVERY,
    EXACT_BITS,
    FIRST,
    INTEGERS,
    MAX_ELEMENTS,
    Element,
    Elements,
    Items,
    NodeFacts,
    Rule,
    as_element,
    constant,
    exact,
    items,
)
from graphopt.graph.shapes.sizes import ONE, ZERO, Size, product, total
from graphopt.ops.schema import NUMPY_BROADCASTING_OPSET


def _move(known: NodeFacts, *, data: Sequence[int] | None = None) -> Elements | None:
    """Evaluates an operator that moves elements; those of the inputs `data` (by default all) may be unknown."""
    arrays: list[npt.NDArray[Any] | None] = []
    dtype: ir.DataType | None = None
    for i, value in enumerate(known.node.inputs):
        elements = known.elements(i) if value is not None else None
        if elements is None:
            if value is not None:
                return None
            arrays.append(None)
        elif data is None or i in data:
            dtype = dtype or elements.dtype
            arrays.append(elements.items)
        elif (array := elements.array) is not None:
            arrays.append(array)
        else:
            return None
    moved = evaluate(FoldableNode(known.node, tuple(arrays), known.opset, MAX_ELEMENTS))
    if dtype is None:
        return None
    return Elements(moved if moved.dtype == object else items(list(moved.flat), moved.shape), dtype)


def _move_first(known: NodeFacts) -> Elements | None:
    return _move(known, data=(0,))


def _concat(known: NodeFacts) -> Elements | None:
    """Concatenates vectors; a vector of known length contributes unknown elements."""
    parts: list[Items] = []
    dtype: ir.DataType | None = None
    for i in range(len(known.node.inputs)):
        elements, dims = known.elements(i), known.dims(i)
        length = dims[0].value if dims is not None and len(dims) == 1 else None
        if elements is not None:
            dtype = elements.dtype
            parts.append(elements.items)
        elif length is not None and length <= MAX_ELEMENTS:
            parts.append(items([None] * length))
        else:
            return None
    return None if dtype is None else Elements(np.concatenate(parts, axis=known.attribute("axis")), dtype)


def _compute(known: NodeFacts) -> Elements | None:
    """Evaluates a node if all its inputs are known integers or booleans."""
    arrays: list[npt.NDArray[Any] | None] = []
    for i, value in enumerate(known.node.inputs):
        elements = known.elements(i) if value is not None else None
        array = elements.array if elements is not None else None
        if array is None and value is not None:
            return None
        arrays.append(array)
    result = evaluate(FoldableNode(known.node, tuple(arrays), known.opset, MAX_ELEMENTS))
    dtype = ir.DataType.from_numpy(result.dtype)
    return exact(result, dtype) if dtype in INTEGERS else None


def _shape_elements(known: NodeFacts) -> Elements | None:
    dims = known.dims(0)
    if dims is None:
        return None
    taken = dims[known.attribute("start", 0) : known.attribute("end", len(dims))]
    return Elements(items(taken), ir.DataType.INT64)


def _size_elements(known: NodeFacts) -> Elements | None:
    dims = known.dims(0)
    return None if dims is None else Elements(items([product(dims)], ()), ir.DataType.INT64)


def _cast(known: NodeFacts) -> Elements | None:
    data, to = known.elements(0), ir.DataType(known.attribute("to"))
    if data is None or not (to in (ir.DataType.INT64, ir.DataType.INT32) or to in EXACT_BITS):
        return None
    return Elements(items([_cast_element(e, to) for e in data.items.flat], data.items.shape), to)


def _cast_element(element: Element, to: ir.DataType) -> Element:
    """Casts one element. Casts do not change symbols: tracers write Shape -> Cast to float -> Floor -> Cast to int."""
    if to in EXACT_BITS:
        return element if isinstance(element, Size) and element.value is None else _rounded(element, to)
    if isinstance(element, Fraction):
        return Size.of(int(element))
    # A rounded float is not cast, because the exact value may truncate to another integer.
    if not isinstance(element, Size):
        return None
    limit = 2**31 if to == ir.DataType.INT32 else 2**63
    return None if element.value is not None and not -limit <= element.value < limit else element


def _rounded(element: Element, dtype: ir.DataType) -> Element:
    """Returns an element of the type: exact if the type represents it, else a rounded float."""
    if isinstance(element, float) or element is None:
        return element
    exact = Fraction(element.value or 0) if isinstance(element, Size) else element
    odd = abs(exact.numerator) // (exact.numerator & -exact.numerator or 1)
    fits = odd.bit_length() <= EXACT_BITS[dtype] and exact.denominator & (exact.denominator - 1) == 0
    return element if fits else float(exact)


def _pairwise(operation: Callable[[Element, Element, ir.DataType], Element]) -> Callable[[NodeFacts], Elements | None]:
    def rule(known: NodeFacts) -> Elements | None:
        operands = [known.elements(i) for i in range(len(known.node.inputs))]
        if known.opset < NUMPY_BROADCASTING_OPSET or not operands:
            return None
        first = operands[0]
        if first is None:
            return None
        result = first.items
        for other in operands[1:]:
            if other is None:
                return None
            a, b = np.broadcast_arrays(result, other.items)
            if a.size > MAX_ELEMENTS:
                return None
            pairs = zip(a.flat, b.flat)
            result = items([operation(x, y, first.dtype) for x, y in pairs], a.shape)
        return Elements(result, first.dtype)

    return rule


def _as_number(element: Element) -> Fraction | float | None:
    if isinstance(element, Size):
        return None if element.value is None else Fraction(element.value)
    return element


def _arithmetic(operation: Callable[[Any, Any], Any]) -> Callable[[Element, Element, ir.DataType], Element]:
    """Makes an operation that adds, subtracts or multiplies two elements; it is exact for sizes."""

    def combine(a: Element, b: Element, dtype: ir.DataType) -> Element:
        if isinstance(a, Size) and isinstance(b, Size):
            size: Size = operation(a, b)
            return size
        return _apply(operation, a, b, dtype)

    return combine


def _divide(a: Element, b: Element, dtype: ir.DataType) -> Element:
    if isinstance(a, Size) and isinstance(b, Size):
        exact = a.divided_by(b)
        if exact is not None:
            return exact
        if dtype in INTEGERS:
            # ONNX truncates toward zero, which is floor for non-negative operands.
            by = b.value or 0
            return a.floor_divided_by(by) if a.never_negative and by > 0 else None
    return _apply(lambda x, y: x / y if y else None, a, b, dtype)


def _power(a: Element, b: Element, dtype: ir.DataType) -> Element:
    x, y = _as_number(a), _as_number(b)
    try:
        return None if x is None or y is None or dtype in INTEGERS else math.pow(x, y)
    except (OverflowError, ValueError):
        return None


def _apply(operation: Callable[[Any, Any], Any], a: Element, b: Element, dtype: ir.DataType) -> Element:
    """Applies an operation to two elements: exactly if both are exact and the type represents the result."""
    x, y = _as_number(a), _as_number(b)
    if x is None or y is None:
        return None
    try:
        result = operation(x, y)
    except OverflowError:
        return None
    if isinstance(result, Fraction):
        return _rounded(as_element(result), dtype) if dtype in EXACT_BITS else None
    return None if result is None else float(result)


def _extreme(exceeds: Callable[[Size, Size], bool]) -> Callable[[Element, Element, ir.DataType], Element]:
    """Makes the minimum or maximum of two sizes; None if the result depends on the model's inputs."""

    def choose(a: Element, b: Element, dtype: ir.DataType) -> Element:
        if isinstance(a, Size) and isinstance(b, Size) and dtype in INTEGERS:
            return a if a == b or exceeds(a, b) else b if exceeds(b, a) else None
        return None

    return choose


def _compared(a: Element, b: Element) -> int | None:
    """Returns the sign of a - b if it is the same for every input; None otherwise."""
    if isinstance(a, Size) and isinstance(b, Size):
        return 0 if a == b else 1 if a.exceeds(b) else -1 if b.exceeds(a) else None
    x, y = _as_number(a), _as_number(b)
    return (x > y) - (x < y) if isinstance(x, Fraction) and isinstance(y, Fraction) else None


def _comparison(holds: Callable[[int], bool]) -> Callable[[NodeFacts], Elements | None]:
    def operation(a: Element, b: Element, _: ir.DataType) -> Element:
        sign = _compared(a, b)
        return None if sign is None else Size.of(int(holds(sign)))

    pairs = _pairwise(operation)

    def rule(known: NodeFacts) -> Elements | None:
        found = pairs(known)
        return None if found is None else Elements(found.items, ir.DataType.BOOL)

    return rule


def _where(known: NodeFacts) -> Elements | None:
    condition, x, y = (known.elements(i) for i in range(3))
    if condition is None or x is None or y is None:
        return None
    shape = np.broadcast_shapes(condition.items.shape, x.items.shape, y.items.shape)
    if math.prod(shape) > MAX_ELEMENTS:
        return None
    columns = [np.broadcast_to(e.items, shape).flat for e in (condition, x, y)]
    chosen = [a if c == ONE or (a is not None and a == b) else b if c == ZERO else None for c, a, b in zip(*columns)]
    return Elements(items(chosen, shape), x.dtype)


def _one_by_one(operation: Callable[[Element, ir.DataType], Element]) -> Callable[[NodeFacts], Elements | None]:
    def rule(known: NodeFacts) -> Elements | None:
        data = known.elements(0)
        if data is None:
            return None
        return Elements(items([operation(e, data.dtype) for e in data.items.flat], data.items.shape), data.dtype)

    return rule


def _negate(element: Element, _: ir.DataType) -> Element:
    return -element if isinstance(element, Size | Fraction | float) else None


def _absolute(element: Element, _: ir.DataType) -> Element:
    if isinstance(element, Size):
        return element if element.never_negative else -element if (-element).never_negative else None
    return -element if element is not None and element < 0 else element


def _round_with(rounds: Callable[[Any], int]) -> Callable[[Element, ir.DataType], Element]:
    def operation(element: Element, _: ir.DataType) -> Element:
        if isinstance(element, Fraction):
            return Size.of(rounds(element))
        return float(rounds(element)) if isinstance(element, float) and math.isfinite(element) else element

    return operation


def _square_root(element: Element, dtype: ir.DataType) -> Element:
    number = _as_number(element)
    if number is None or not number >= 0:
        return None
    root = math.sqrt(number)
    exact = isinstance(number, Fraction) and math.isfinite(root) and Fraction(root) ** 2 == number
    return _rounded(as_element(root), dtype) if exact and dtype in EXACT_BITS else root


def _reduced(combine: Callable[[list[Size]], Size]) -> Callable[[NodeFacts], Elements | None]:
    """Makes a rule that reduces a vector of sizes."""

    def rule(known: NodeFacts) -> Elements | None:
        data = known.elements(0)
        if data is None or data.items.ndim != 1 or data.dtype not in INTEGERS:
            return None
        axes, named = known.axes(1), known.is_given("axes")
        if (named and axes != [0]) or (not named and known.attribute("noop_with_empty_axes", 0)):
            return None
        sizes = [e for e in data.items if isinstance(e, Size)]
        if len(sizes) != data.items.size:
            return None
        return Elements(items([combine(sizes)], (1,) if known.attribute("keepdims", 1) else ()), data.dtype)

    return rule


def _filled(known: NodeFacts) -> Elements | None:
    shape = known.integer_input(0)
    fill = known.attribute("value")
    one = Elements(items([ZERO]), ir.DataType.FLOAT) if fill is None else constant(fill)
    if shape is None or one is None or min(shape, default=0) < 0 or math.prod(shape) > MAX_ELEMENTS:
        return None
    return Elements(items(list(one.items.flat) * math.prod(shape), shape), one.dtype)


def _split(known: NodeFacts) -> Elements | None:
    """Returns the part of a vector in one output of a Split."""
    data = known.elements(0)
    sizes = known.integer_argument("split")
    if data is None or data.items.ndim != 1:
        return None
    if sizes is None:
        if known.input(1) is not None:
            return None
        chunk = -(-data.items.size // len(known.node.outputs))
        return Elements(data.items[chunk * known.index : chunk * (known.index + 1)], data.dtype)
    first = sum(sizes[: known.index])
    return Elements(data.items[first : first + sizes[known.index]], data.dtype)


# -- the table --------------------------------------------------------------------------------------------------------

# Rules for the elements of small outputs.
ELEMENTS: dict[str, Rule] = {
    **dict.fromkeys("And Mod Not Or Range ReduceMax ReduceMin Trilu Xor".split(), Rule(_compute, elements=EVERY)),
    **dict.fromkeys("Expand Gather Reshape Slice Squeeze Tile Unsqueeze".split(), Rule(_move_first, elements=EVERY)),
    **dict.fromkeys("Flatten Identity Transpose".split(), Rule(_move, elements=EVERY)),
    "Abs": Rule(_one_by_one(_absolute), elements=FIRST),
    "Add": Rule(_pairwise(_arithmetic(operator.add)), elements=EVERY),
    "Cast": Rule(_cast, elements=FIRST),
    "Ceil": Rule(_one_by_one(_round_with(math.ceil)), elements=FIRST),
    "ConstantOfShape": Rule(_filled, elements=FIRST),
    "Concat": Rule(_concat, dims=EVERY, elements=EVERY),
    "Div": Rule(_pairwise(_divide), elements=EVERY),
    "Equal": Rule(_comparison(lambda sign: sign == 0), elements=EVERY),
    "Floor": Rule(_one_by_one(_round_with(math.floor)), elements=FIRST),
    "Greater": Rule(_comparison(lambda sign: sign > 0), elements=EVERY),
    "GreaterOrEqual": Rule(_comparison(lambda sign: sign >= 0), elements=EVERY),
    "Less": Rule(_comparison(lambda sign: sign < 0), elements=EVERY),
    "LessOrEqual": Rule(_comparison(lambda sign: sign <= 0), elements=EVERY),
    "Max": Rule(_pairwise(_extreme(Size.exceeds)), elements=EVERY),
    "Min": Rule(_pairwise(_extreme(lambda a, b: b.exceeds(a))), elements=EVERY),
    "Mul": Rule(_pairwise(_arithmetic(operator.mul)), elements=EVERY),
    "Neg": Rule(_one_by_one(_negate), elements=FIRST),
    "Pow": Rule(_pairwise(_power), elements=EVERY),
    "Reciprocal": Rule(_one_by_one(lambda element, dtype: _divide(ONE, element, dtype)), elements=FIRST),
    "ReduceProd": Rule(_reduced(product), elements=(0, 1)),
    "ReduceSum": Rule(_reduced(total), elements=(0, 1)),
    "Shape": Rule(_shape_elements, dims=FIRST),
    "Size": Rule(_size_elements, dims=FIRST),
    "Split": Rule(_split, elements=(0, 1), every_output=True),
    "Sqrt": Rule(_one_by_one(_square_root), elements=FIRST),
    "Sub": Rule(_pairwise(_arithmetic(operator.sub)), elements=EVERY),
    "Where": Rule(_where, elements=EVERY),
}
