"""Recognises activations, as standard operators and written out.

Written-out forms are recognised by the function that they compute, not by their sequence of operators. The argument of
the inner function f is expressed as a polynomial in x, and the nodes after f as x (slope * f + offset).

    Gelu      x (erf(x / sqrt 2) + 1) / 2                                D. Hendrycks, K. Gimpel, 2016
    GeluTanh  x (tanh(sqrt(2 / pi) (x + 0.044715 x^3)) + 1) / 2          the same paper
    Silu      x sigmoid(x)                                               S. Elfwing et al., 2017
    HardSwish x clip(x / 6 + 1 / 2, 0, 1)                                A. Howard et al., ICCV 2019
    Mish      x tanh(ln(1 + exp(x))), Softplus or written out            D. Misra, 2019
    HardSigmoid clip(alpha x + beta, 0, 1);  LeakyRelu  x < 0 ? alpha x : x
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from graphopt.graph.editor import Editor
from graphopt.graph.operators.traits import ARITHMETIC
from graphopt.graph.view import (
    FLOATS,
    attribute_float,
    attribute_string,
    is_op,
    is_read_once,
    other_input,
    producer_of,
    require_contained,
    require_one_graph,
    sole_reader,
)
from graphopt.ops import DOMAIN
from graphopt.ops.fused_activation import FUSED

# Operators that can be the inner function of a written-out activation.
GATES = frozenset(
    ("", op) for op in ("Erf", "Tanh", "Sigmoid", "HardSigmoid", "Clip", "Max", "Min", "Relu", "Where", "PRelu")
)
# Operators that are an activation by themselves, standard ones and ours.
SIMPLE = frozenset(
    ("", op)
    for op in ("Relu", "LeakyRelu", "Clip", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Gelu", "Mish", "PRelu")
) | {(DOMAIN, f"Fused{suffix}") for suffix in FUSED}
_ARITHMETIC = frozenset(("", op) for op in ARITHMETIC | {"Pow", "Neg"})
# Operators between x and a gate, or between a gate and y.
_INNER_OPERATORS = _ARITHMETIC | {("", op) for op in ("Softplus", "Exp", "Log", "Max", "Min", "Relu")}
# The longest written-out form, GeluTanh, has nine nodes.
MAX_NODES = 12
MAX_DEPTH = 6  # the largest depth of nested nodes in a polynomial
SQRT_HALF = math.sqrt(0.5)
# Relative tolerance for the factor in Gelu's erf, which accepts 1.41421 for sqrt 2. A factor with this error changes
# Gelu by at most 0.3 * ERF_FACTOR_TOLERANCE, three times the effect of rounding the argument.
ERF_FACTOR_TOLERANCE = 3e-6
SQRT_2_PI = math.sqrt(2 / math.pi)


@dataclass(frozen=True)
class Form:
    """y = activation(x), computed by `nodes`.

    Attributes:
        suffix: a key of `graphopt.ops.activation.ACTIVATIONS`.
        attributes: attributes of the activation.
        x: the input.
        nodes: the nodes; the last one produces y.
    """

    suffix: str
    attributes: Mapping[str, float]
    x: ir.Value
    nodes: tuple[ir.Node, ...]

    @property
    def y(self) -> ir.Value:
        return self.nodes[-1].outputs[0]

    def require_closed(self) -> None:
        """Requires that only nodes of the form read the values between x and y.

        Raises:
            Refusal: GRAPH_OUTPUT, OTHER_USES or ESCAPES.
        """
        require_one_graph(self.nodes, self.nodes[-1])
        require_contained(self.nodes, self.y)


def simple_form(node: ir.Node, editor: Editor) -> Form | None:
    """Returns an operator of `SIMPLE` as an activation, or None.

    Raises:
        Refusal: an attribute refers to a parameter of the enclosing function.
    """
    x = node.inputs[0] if node.inputs else None
    if (node.domain, node.op_type) not in SIMPLE or x is None:
        return None
    op = node.op_type
    if node.domain == DOMAIN:
        return Form(op.removeprefix("Fused"), {}, x, (node,))
    if op in ("Relu", "Sigmoid", "Tanh", "HardSwish", "Mish"):
        return Form(op, {}, x, (node,))
    if op == "LeakyRelu":
        return Form(op, {"alpha": attribute_float(node, "alpha", 0.01)}, x, (node,))
    if op == "HardSigmoid":
        alpha, beta = attribute_float(node, "alpha", 0.2), attribute_float(node, "beta", 0.5)
        return Form(op, {"alpha": alpha, "beta": beta}, x, (node,))
    if op == "Gelu":
        return Form("Gelu" if attribute_string(node, "approximate", "none") == "none" else "GeluTanh", {}, x, (node,))
    if op == "PRelu":
        return _parametric(node, editor)
    bounds = _clip_bounds(node, editor)
    return None if bounds is None else Form("Clip", {"min": bounds[0], "max": bounds[1]}, x, (node,))


def written_form(gate: ir.Node, editor: Editor) -> Form | None:
    """Returns the written-out activation with the inner function `gate`, or None; `gate` must be one of `GATES`."""
    if (gate.domain, gate.op_type) not in GATES:
        return None
    if gate.op_type == "Where":
        return _where(gate, editor)
    if gate.op_type == "PRelu":
        return _parametric(gate, editor)
    if gate.op_type == "Max" and (form := _maximum(gate, editor)) is not None:
        return form
    return next(_gated(gate, editor), None) or _hard_sigmoid(gate, editor)


def form_of(x: ir.Value, editor: Editor) -> Form | None:
    """Returns the activation that reads x: a written-out form, or else an operator of `SIMPLE`; or None."""
    simple: Form | None = None
    work, seen = list(x.consumers()), 0
    while work and seen < MAX_NODES:
        node = work.pop(0)
        seen += 1
        form = written_form(node, editor)
        if form is not None and form.x is x:
            return form
        if simple is None and x in node.inputs:
            simple = simple_form(node, editor)
        if (node.domain, node.op_type) in _INNER_OPERATORS:
            work += node.outputs[0].consumers()[:4]
    return simple if simple is not None and simple.x is x else None


def form_around(node: ir.Node, editor: Editor) -> Form | None:
    """Returns the written-out activation that contains `node`, as the inner function or after it; or None."""
    work, seen = [node], 0
    while work and seen < MAX_NODES:
        candidate = work.pop(0)
        seen += 1
        form = written_form(candidate, editor)
        if form is not None and node in form.nodes:
            return form
        if (candidate.domain, candidate.op_type) in _INNER_OPERATORS:
            work += candidate.predecessors()
    return None


# -- constants -----------------------------------------------------------------------------------------------------


def _number(value: ir.Value | None, like: ir.Value | None, editor: Editor) -> float | None:
    """Returns the number in a scalar constant; None for other values and constants of a higher rank than `like`."""
    rank = editor.shapes.rank(value)
    if rank is None or (rank > 0 and (editor.shapes.rank(like) or 0) < rank):
        return None
    return editor.scalar(value)


def _near(a: float, b: float, x: ir.Value, editor: Editor) -> bool:
    """Returns whether two constants are equal within a relative tolerance that depends on x's type."""
    return math.isclose(a, b, rel_tol=1e-3 if editor.dtype(x) == ir.DataType.FLOAT16 else 2e-6)


def _clip_bounds(node: ir.Node, editor: Editor) -> tuple[float, float] | None:
    x = node.inputs[0]
    limits = np.finfo(np.float16 if editor.dtype(x) == ir.DataType.FLOAT16 else np.float32)
    bounds = [float(limits.min), float(limits.max)]
    arguments = editor.arguments(node)
    for i, name in enumerate(("min", "max")):
        index = arguments.position(name)
        number = arguments.attribute(name, bounds[i]) if index is None else editor.scalar(node.inputs[index])
        if number is None:
            return None
        bounds[i] = number
    return None if any(math.isnan(b) for b in bounds) else (bounds[0], bounds[1])


@dataclass(frozen=True)
class _Clamp:
    """min(max(x, low), high) with low <= high, computed by `nodes`."""

    x: ir.Value
    low: float
    high: float
    nodes: tuple[ir.Node, ...]


def _clamp(gate: ir.Node, editor: Editor) -> _Clamp | None:
    """Returns the clamp that ends in `gate`: a Clip, or a lower and an upper bound in either order; or None."""
    if gate.op_type == "Clip":
        bounds, x = _clip_bounds(gate, editor), gate.inputs[0]
        return None if bounds is None or x is None or bounds[0] > bounds[1] else _Clamp(x, *bounds, (gate,))
    outer = _bound(gate, editor)
    inner = None if outer is None else outer[0].producer()
    first = None if inner is None else _bound(inner, editor)
    if outer is None or inner is None or first is None or outer[1] == first[1]:
        return None
    low, high = (first[2], outer[2]) if first[1] == "Max" else (outer[2], first[2])
    return _Clamp(first[0], low, high, (inner, gate)) if low <= high else None


def _bound(node: ir.Node, editor: Editor) -> tuple[ir.Value, str, float] | None:
    """Returns (x, "Max" or "Min", c) if the node computes max(x, c) or min(x, c) with a scalar constant c, or None."""
    if not is_op(node, "Max", "Min", "Relu"):
        return None
    if node.op_type == "Relu":
        return None if node.inputs[0] is None else (node.inputs[0], "Max", 0.0)
    if len(node.inputs) != 2:
        return None
    for x, other in ((node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0])):
        number = _number(other, x, editor)
        if x is not None and number is not None and not editor.is_constant(x):
            return x, node.op_type, number
    return None


Polynomial = dict[int, float]


def _polynomial(
    value: ir.Value | None, x: ir.Value, editor: Editor, nodes: list[ir.Node], depth: int = 0
) -> Polynomial | None:
    """Returns `value` as a polynomial in x (power -> coefficient) and appends its nodes to `nodes`, or returns None."""
    if value is x:
        return {1: 1.0}
    number = _number(value, x, editor)
    if number is not None:
        return {0: number}
    node = None if value is None else value.producer()
    if node is None or (node.domain, node.op_type) not in _ARITHMETIC or depth > MAX_DEPTH:
        return None
    a = _polynomial(node.inputs[0], x, editor, nodes, depth + 1)
    if a is None:
        return None
    b: Polynomial | None = {}
    if len(node.inputs) > 1:
        b = _polynomial(node.inputs[1], x, editor, nodes, depth + 1)
    if b is None:
        return None
    result = _combine(node.op_type, a, b)
    if result is not None and node not in nodes:
        nodes.append(node)
    return result


def _combine(op: str, a: Polynomial, b: Polynomial) -> Polynomial | None:
    if op in ("Add", "Sub"):
        sign = 1.0 if op == "Add" else -1.0
        return {k: a.get(k, 0.0) + sign * b.get(k, 0.0) for k in a.keys() | b.keys()}
    if op == "Neg":
        return {k: -c for k, c in a.items()}
    if op == "Mul":
        product: Polynomial = {}
        for i, c in a.items():
            for j, d in b.items():
                product[i + j] = product.get(i + j, 0.0) + c * d
        return product
    if list(b) != [0]:
        return None
    if op == "Div":
        return {k: c / b[0] for k, c in a.items()} if b[0] else None
    if op == "Pow" and b[0] in (2.0, 3.0):
        square = _combine("Mul", a, a)
        return square if b[0] == 2.0 or square is None else _combine("Mul", square, a)
    return None


def _matches(polynomial: Polynomial | None, wanted: Polynomial, x: ir.Value, editor: Editor) -> bool:
    if polynomial is None:
        return False
    found = {k: c for k, c in polynomial.items() if c != 0.0}
    return found.keys() == wanted.keys() and all(_near(found[k], c, x, editor) for k, c in wanted.items())


# -- x times a function of x ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Product:
    """x (slope * gate + offset), computed by `nodes` after the gate."""

    x: ir.Value
    slope: float
    offset: float
    nodes: tuple[ir.Node, ...]


def _products(gate: ir.Node, editor: Editor) -> Iterator[_Product]:
    """Yields every `_Product` that nodes after the gate compute: for each reader of the gate, the shortest first."""
    # The gate may have other readers. The form is still matched, and then refused with a reason.
    for reader in gate.outputs[0].consumers()[:4]:
        yield from _products_through(reader, gate.outputs[0], editor)


def _products_through(node: ir.Node, value: ir.Value, editor: Editor) -> Iterator[_Product]:
    slope, offset = 1.0, 0.0
    nodes: list[ir.Node] = []
    factors: list[tuple[ir.Value, float, tuple[ir.Node, ...]]] = []
    while len(nodes) < MAX_NODES:
        if not is_op(node, "Mul", "Div", "Add", "Sub") or len(node.inputs) != 2:
            return
        left = node.inputs[0] is value
        other = node.inputs[1] if left else node.inputs[0]
        number = _number(other, value, editor)
        if number is not None and node.op_type == "Mul":
            slope, offset = slope * number, offset * number
        elif number is not None and node.op_type == "Div" and left and number:
            slope, offset = slope / number, offset / number
        elif number is not None and not factors and node.op_type in ("Add", "Sub"):
            if node.op_type == "Sub" and not left:
                slope, offset = -slope, number - offset
            else:
                offset += number if node.op_type == "Add" else -number
        elif number is None and node.op_type == "Mul" and not factors and other is not None:
            factors = list(_factors(other, editor))
        else:
            return
        nodes.append(node)
        value = node.outputs[0]
        for x, factor, extra in factors:
            yield _Product(x, slope * factor, offset * factor, (*extra, *nodes))
        reader = sole_reader(value)
        if reader is None:
            return
        node = reader


def _factors(value: ir.Value, editor: Editor) -> Iterator[tuple[ir.Value, float, tuple[ir.Node, ...]]]:
    """Yields (x, scalar, nodes) with `value` = x * scalar: (`value`, 1), then from the Mul or Div that produces it."""
    yield value, 1.0, ()
    node = producer_of(value, "Mul", "Div")
    if node is None:
        return
    for x, other in ((node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0])):
        number = _number(other, x, editor)
        if x is not None and number:
            yield x, number if node.op_type == "Mul" else 1.0 / number, (node,)
        if node.op_type == "Div":
            return


def _gated(gate: ir.Node, editor: Editor) -> Iterator[Form]:
    for product in _products(gate, editor):
        argument: list[ir.Node] = []
        suffix = _GATED[gate.op_type](gate, product, argument, editor)
        if suffix is not None:
            nodes = dict.fromkeys([*argument, gate, *product.nodes])
            yield Form(suffix, {}, product.x, tuple(nodes))


def _half_sum(product: _Product, editor: Editor) -> bool:
    return _near(product.slope, 0.5, product.x, editor) and _near(product.offset, 0.5, product.x, editor)


def _plain(product: _Product, editor: Editor) -> bool:
    return product.offset == 0.0 and _near(product.slope, 1.0, product.x, editor)


def _erf(gate: ir.Node, product: _Product, nodes: list[ir.Node], editor: Editor) -> str | None:
    slope = _erf_slope(gate, product, nodes, editor)
    if slope is None:
        return None
    near = _near(slope, SQRT_HALF, product.x, editor) or math.isclose(slope, SQRT_HALF, rel_tol=ERF_FACTOR_TOLERANCE)
    return "Gelu" if near else None


def _erf_slope(gate: ir.Node, product: _Product, nodes: list[ir.Node], editor: Editor) -> float | None:
    """Returns the factor a if the product is x (erf(a x) + 1) / 2, or None."""
    if not _half_sum(product, editor):
        return None
    polynomial = _polynomial(gate.inputs[0], product.x, editor, nodes)
    found = {k: c for k, c in (polynomial or {}).items() if c != 0.0}
    return found[1] if found.keys() == {1} else None


def almost_gelu(gate: ir.Node, editor: Editor) -> float | None:
    """Returns the factor a if the Erf `gate` is part of x (erf(a x) + 1) / 2 and a is near 1 / sqrt 2, or None.

    The relative tolerance is 1 %.
    """
    slopes = (_erf_slope(gate, product, [], editor) for product in _products(gate, editor))
    return next((a for a in slopes if a is not None and math.isclose(a, SQRT_HALF, rel_tol=1e-2)), None)


def _tanh(gate: ir.Node, product: _Product, nodes: list[ir.Node], editor: Editor) -> str | None:
    argument = gate.inputs[0]
    softplus: list[ir.Node] = []
    if _is_softplus(argument, product.x, softplus, editor):
        nodes += softplus
        return "Mish" if _plain(product, editor) else None
    if not _half_sum(product, editor):
        return None
    polynomial = _polynomial(argument, product.x, editor, nodes)
    return "GeluTanh" if _matches(polynomial, {1: SQRT_2_PI, 3: SQRT_2_PI * 0.044715}, product.x, editor) else None


def _is_softplus(value: ir.Value | None, x: ir.Value, nodes: list[ir.Node], editor: Editor) -> bool:
    """Returns whether `value` is ln(1 + exp(x)), and appends its nodes to `nodes`."""
    last = producer_of(value, "Softplus", "Log")
    if last is None:
        return False
    if last.op_type == "Softplus":
        nodes.append(last)
        return last.inputs[0] is x
    exps = [e for n in last.predecessors() for e in n.predecessors() if is_op(e, "Exp")]
    if len(exps) != 1 or exps[0].inputs[0] is not x:
        return False
    nodes.append(exps[0])
    matches = _matches(_polynomial(last.inputs[0], exps[0].outputs[0], editor, nodes), {1: 1.0, 0: 1.0}, x, editor)
    nodes.append(last)
    return matches


def _sigmoid(gate: ir.Node, product: _Product, nodes: list[ir.Node], editor: Editor) -> str | None:
    return "Silu" if gate.inputs[0] is product.x and _plain(product, editor) else None


def quick_gelu_slope(gate: ir.Node, editor: Editor) -> float | None:
    """Returns alpha if the Sigmoid `gate` is part of x sigmoid(alpha x) (CLIP's Gelu: alpha = 1.702), or None."""
    for reader in gate.outputs[0].consumers():
        if is_op(reader, "Mul"):
            x = other_input(reader, gate.outputs[0])
            found = _multiple(gate.inputs[0], x, editor)
            if found is not None:
                return found[0]
    return None


def _hard_gate(gate: ir.Node, product: _Product, nodes: list[ir.Node], editor: Editor) -> str | None:
    alpha, beta = attribute_float(gate, "alpha", 0.2), attribute_float(gate, "beta", 0.5)
    sixth = _near(alpha, 1 / 6, product.x, editor) and _near(beta, 0.5, product.x, editor)
    return "HardSwish" if gate.inputs[0] is product.x and sixth and _plain(product, editor) else None


def _clipped(gate: ir.Node, product: _Product, nodes: list[ir.Node], editor: Editor) -> str | None:
    clamp = _clamp(gate, editor)
    if clamp is None or clamp.low != 0.0 or product.offset != 0.0:
        return None
    if not _near(product.slope * clamp.high, 1.0, product.x, editor):
        return None
    polynomial = _polynomial(clamp.x, product.x, editor, nodes)
    nodes += clamp.nodes[:-1]
    wanted = {1: 1 / 6 / product.slope, 0: 0.5 / product.slope}
    return "HardSwish" if _matches(polynomial, wanted, product.x, editor) else None


_GATED: dict[str, Callable[[ir.Node, _Product, list[ir.Node], Editor], str | None]] = {
    "Erf": _erf,
    "Tanh": _tanh,
    "Sigmoid": _sigmoid,
    "HardSigmoid": _hard_gate,
    "Clip": _clipped,
    "Max": _clipped,
    "Min": _clipped,
    "Relu": _clipped,
}


# -- other forms ----------------------------------------------------------------------------------------------------


def _hard_sigmoid(gate: ir.Node, editor: Editor) -> Form | None:
    """Matches clamp(a x + b, 0, c) / c with b > 0."""
    clamp = _clamp(gate, editor)
    if clamp is None or clamp.low != 0.0 or clamp.high <= 0.0:
        return None
    x = clamp.x
    nodes: list[ir.Node] = list(clamp.nodes)
    while (node := x.producer()) is not None and len(nodes) < MAX_DEPTH and is_read_once(x):
        step = next((v for v in node.inputs if v is not None and not editor.is_constant(v)), None)
        if step is None or not is_op(node, "Mul", "Add", "Sub", "Div"):
            break
        if _polynomial(x, step, editor, []) is None:
            break
        nodes.insert(0, node)
        x = step
    line = _polynomial(clamp.x, x, editor, [])
    if line is None or not line.keys() <= {0, 1} or not line.get(0, 0.0) > 0.0 or not line.get(1, 0.0):
        return None
    factor = 1.0
    if not _near(clamp.high, 1.0, x, editor):
        value = gate.outputs[0]
        last = sole_reader(value)
        if last is None:
            return None
        scaled = _polynomial(last.outputs[0], value, editor, [])
        if scaled is None or not _matches(scaled, {1: 1.0 / clamp.high}, x, editor):
            return None
        nodes.append(last)
        factor = 1.0 / clamp.high
    return Form("HardSigmoid", {"alpha": line[1] * factor, "beta": line[0] * factor}, x, tuple(nodes))


def _multiple(value: ir.Value | None, x: ir.Value | None, editor: Editor) -> tuple[float, ir.Node] | None:
    """Returns (alpha, node) if one node computes `value` = alpha x, or None."""
    node = None if value is None else value.producer()
    if node is None or x is None or value is x:
        return None
    nodes: list[ir.Node] = []
    polynomial = _polynomial(value, x, editor, nodes)
    if polynomial is None or polynomial.keys() != {1} or nodes != [node] or not math.isfinite(polynomial[1]):
        return None
    return polynomial[1], node


def _where(gate: ir.Node, editor: Editor) -> Form | None:
    """Matches Where(x > 0, x, alpha x) and its variants with swapped operands."""
    condition, yes, no = gate.inputs
    test = producer_of(condition)
    if test is None or len(test.inputs) != 2:
        return None
    sign = {"Greater": 1, "GreaterOrEqual": 1, "Less": -1, "LessOrEqual": -1}.get(test.op_type)
    x, zero = test.inputs
    if sign is None or x is None or zero is None:
        return None
    if editor.is_constant(x):
        x, zero, sign = zero, x, -sign
    if _number(zero, x, editor) != 0.0:
        return None
    positive, negative = (yes, no) if sign > 0 else (no, yes)
    multiple = _multiple(negative, x, editor)
    if positive is not x or multiple is None:
        return None
    return Form("LeakyRelu", {"alpha": multiple[0]}, x, (test, multiple[1], gate))


def _maximum(gate: ir.Node, editor: Editor) -> Form | None:
    """Matches Max(x, alpha x) with 0 < alpha <= 1; alpha = 0 is excluded because 0 times an infinite x is NaN."""
    if len(gate.inputs) != 2:
        return None
    for x, other in ((gate.inputs[0], gate.inputs[1]), (gate.inputs[1], gate.inputs[0])):
        multiple = _multiple(other, x, editor)
        if multiple is not None and x is not None and 0.0 < multiple[0] <= 1.0:
            return Form("LeakyRelu", {"alpha": multiple[0]}, x, (multiple[1], gate))
    return None


def _parametric(gate: ir.Node, editor: Editor) -> Form | None:
    """Matches a PRelu with a single slope for all channels, as a LeakyRelu."""
    x, slope = gate.inputs
    tensor = editor.tensor(slope)
    if x is None or tensor is None or tensor.dtype not in FLOATS or tensor.size == 0:
        return None
    numbers = tensor.numpy().reshape(-1)
    if not np.all(numbers == numbers[0]) or not np.isfinite(numbers[0]):
        return None
    return Form("LeakyRelu", {"alpha": float(numbers[0])}, x, (gate,))
