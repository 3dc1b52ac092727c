"""Attention: softmax(scale Q K^T + ...) V becomes one FusedAttention node.

Equation:
    MatMul(Softmax(f(MatMul(Q, K^T))), V) = FusedAttention(Q, K, V), where f is any mixture of scaling, soft cap,
    additive terms and masks that the node's own steps (docs/architecture.md) can be written as.

The anchor is the Softmax. Everything between the product that makes its input (the scores) and the product that takes
its output (the context) is grouped, whatever operators it is made of, and read as a list of steps; the list is then
brought into the order in which the fused node works. No operator path and no model family is ever asked for.

Why it is legal: each step is rewritten by an identity of real numbers, or refused.
    - Factors of one number commute with the products, with Transpose and with Reshape: they multiply up into `scale`.
    - a tanh(b s) = cap tanh(scale' s / cap) with cap = a, scale' = a b.
    - Transposes of Q, K, V and of the result are permutations that the node performs itself: their perms compose.
    - Additive terms and masks keep their values; sums of several are made outside, where they are smaller than s.
    - Nothing that is removed may be read by a node that stays, nor be a graph output.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeVar

import numpy as np
import onnx_ir as ir

from graphopt.ops.fused_attention import Variant
from graphopt.ops.schema import Array
from graphopt.passes.base import (
    Attribute,
    Editor,
    Numerics,
    Pass,
    attribute_float,
    attribute_int,
    attribute_ints,
    attribute_string,
)
from graphopt.passes.symbolic_shapes import BROADCASTING, ONE, Shapes, Size, keeps_shape, product
from graphopt.remarks import Code, Refusal

# Between the two products of a real attention stand at most a dozen nodes.
MAX_PATH = 24
RANDOM = frozenset("Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike".split())
PRODUCTS = frozenset(("MatMul", "Einsum"))


@dataclass(frozen=True)
class Operand:
    """transpose(value, perm) is what the fused node works on."""

    value: ir.Value
    perm: tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """One node between the scores and the softmax.

    `number` is a factor, or what a mask writes; `operand` is a tensor that joins: an additive term or a condition.
    """

    kind: str
    node: ir.Node
    number: float = 1.0
    operand: ir.Value | None = None
    keeps: bool = True
    refusal: Refusal | None = None


@dataclass
class View:
    """The scores under another shape: what a Reshape between the scores and the probabilities makes."""

    dims: tuple[Size, ...]
    there: ir.Node
    back: ir.Node | None = None


@dataclass(frozen=True)
class Term:
    """An additive term: factor * value, joined where the scores are seen as `view` (None: as they are).

    With `mask` = (c, keeps), value is boolean and the term is where(value, 0, c), or where(value, c, 0) unless `keeps`.
    """

    value: ir.Value
    node: ir.Node
    view: View | None = None
    factor: float = 1.0
    mask: tuple[float, bool] | None = None


@dataclass(frozen=True)
class Condition:
    """A boolean mask; `keeps` says whether true keeps the score or hides it."""

    value: ir.Value
    node: ir.Node
    view: View | None = None
    keeps: bool = True


@dataclass
class Attention:
    """One attention as the matcher found it."""

    softmax: ir.Node
    scores: ir.Node
    context: ir.Node
    shapes: Shapes
    q: Operand
    k: Operand
    v: Operand
    o_perm: tuple[int, ...]
    output: ir.Value
    # Removed with the fused node's making; none of their outputs but `output` may be read elsewhere.
    inner: list[ir.Node]
    # Removed when nobody else reads them.
    outer: list[ir.Node] = field(default_factory=list)
    scale: float = 1.0
    softcap: float | None = None
    terms: list[Term] = field(default_factory=list)
    conditions: list[Condition] = field(default_factory=list)
    mask_value: float = 0.0
    causal: bool = False
    guard: bool = False
    gqa: bool = False
    # Scores in float16, the rest in float32: Q and K are cast, and the node works in float32.
    widened: bool = False
    dtype: ir.DataType = ir.DataType.FLOAT
    # Where each dimension of a value that goes can be read instead, for the Shape nodes that read it.
    axes: dict[ir.Value, list[tuple[ir.Value, int]]] = field(default_factory=dict)
    # The types to which the probabilities are cast on their way.
    casts: list[tuple[ir.DataType, ir.Node]] = field(default_factory=list)
    # What joins after a cast to float32.
    wide_steps: list[ir.Node] = field(default_factory=list)

    @property
    def variant(self) -> Variant:
        return Variant(
            bias=bool(self.terms),
            mask=bool(self.conditions),
            causal=self.causal,
            gqa=self.gqa,
            guard=self.guard,
            softcap=self.softcap is not None,
        )


@dataclass
class _Down:
    """The way from the softmax to the context product."""

    nodes: list[ir.Node]
    context: ir.Node
    # Which operand of the context product the probabilities are, and whether they come transposed.
    index: int
    swapped: bool = False
    guard: bool = False
    refusal: Refusal | None = None


class FuseAttention(Pass[Attention]):
    """See the module's docstring.

    Source: A. Vaswani et al., "Attention Is All You Need", 2017; ONNX operator specification (Softmax, MatMul, Einsum).
    """

    name: ClassVar[str] = "fuse_attention"
    equation: ClassVar[str] = "softmax(scale Q K^T + bias, mask) V = FusedAttention(Q, K, V, bias, mask)"
    numerics: ClassVar[Numerics] = Numerics.REASSOCIATED
    anchors: ClassVar[frozenset[tuple[str, str]]] = frozenset({("", "Softmax"), ("", "Attention")})

    def match(self, node: ir.Node, editor: Editor) -> Attention | None:
        """The attention around a Softmax, or None when it does not stand between two products.

        Raises:
            Refusal: it does, but is not one that the fused node computes.

        """
        shapes = Shapes(editor)
        if node.op_type == "Attention":
            found = _attention_node(node, shapes)
            _absorb_operands(found, editor)
            _absorb_result(found)
            _set_dtype(found, editor)
            return found
        down = _down(node, editor, shapes)
        if down is None:
            return None
        paths = sorted(_up(node.inputs[0], shapes), key=lambda path: _cost(path, editor))
        if not paths:
            return None
        _require_last_axis(node, shapes, editor)
        # A sum of two products can be read both ways; any reading that is legal is right.
        first: Refusal | None = None
        for path in paths:
            try:
                found = _read(node, path, down, shapes)
                if len(paths) > 1:
                    self.legal(found, editor)
            except Refusal as refusal:
                first = first or refusal
            else:
                return found
        assert first is not None
        raise first

    def legal(self, match: Attention, editor: Editor) -> None:
        _require_no_escape(match)
        typed = next((v for v in (match.v.value, match.output, match.q.value) if editor.dtype(v) == match.dtype), None)
        editor.require_op(match.variant.name, typed or match.output, match.softmax)
        _require_same_heads(match)
        base = _score_dims(match)
        for joined in _joined(match):
            _require_broadcast(match, joined, base)
        for terms in _by_view(match.terms):
            _plan(match, terms, base)
        for conditions in _by_view(match.conditions):
            _plan(match, conditions, base)
        if not math.isfinite(match.scale) or (match.softcap is not None and not math.isfinite(match.softcap)):
            raise Refusal(Code.NOT_FINITE, f"the scale is {match.scale}", match.scores)
        if match.softcap == 0.0:
            raise Refusal(Code.NOT_FINITE, "the soft cap is 0", match.scores)

    def rewrite(self, match: Attention, editor: Editor) -> str:
        _move_shape_readers(match, editor)
        emission = _Emission(match, editor)
        inputs = [emission.widened(match.q.value), emission.widened(match.k.value), match.v.value]
        if match.terms:
            inputs.append(emission.bias())
        if match.conditions:
            inputs.append(emission.mask())
        attributes: dict[str, Attribute] = {
            "scale": match.scale,
            "q_perm": match.q.perm,
            "k_perm": match.k.perm,
            "v_perm": match.v.perm,
            "o_perm": match.o_perm,
        }
        if match.conditions:
            attributes["mask_value"] = match.mask_value
        if match.softcap is not None:
            attributes["softcap"] = match.softcap
        fused = editor.emit(match.variant.name, inputs, attributes, anchor=match.context)
        old = [*match.outer, *match.inner]
        new = [*emission.nodes, fused]
        editor.replace(old, new, {match.output: fused.outputs[0]}, anchor=match.context)
        return f"{len(match.inner)} nodes became {match.variant.name}, scale {match.scale:.6g}"


def _read(softmax: ir.Node, path: _Path, down: _Down, shapes: Shapes) -> Attention:
    """One reading of what stands between two products.

    Raises:
        Refusal: it is not what the fused node computes.

    """
    editor = shapes.editor
    scores, steps = path
    for step in steps:
        if step.refusal is not None:
            raise step.refusal
    if down.refusal is not None:
        raise down.refusal
    q, k = _factors(scores, shapes)
    v, o_perm = _values(down, shapes)
    if len(o_perm) != max(len(q.perm), len(k.perm)):
        ranks = f"the scores have rank {max(len(q.perm), len(k.perm))}, the result {len(o_perm)}"
        raise Refusal(Code.WRONG_RANK, ranks, scores, down.context)
    found = Attention(
        softmax=softmax,
        scores=scores,
        context=down.context,
        shapes=shapes,
        q=q,
        k=k,
        v=v,
        o_perm=o_perm,
        output=down.context.outputs[0],
        inner=[scores, *(s.node for s in steps), softmax, *down.nodes, down.context],
        guard=down.guard,
    )
    _apply_steps(found, steps, down.nodes)
    _absorb_operands(found, editor)
    _absorb_result(found)
    _find_causal(found)
    _set_dtype(found, editor)
    return found


# -- Attention of ai.onnx ----------------------------------------------------------------------------------------------


def _attention_node(node: ir.Node, shapes: Shapes) -> Attention:
    """Reads Attention-23 and -24 as the function body of their specification defines them.

    The body gives 0 for rows that the mask hides wholly, which is what Guard makes of the NaN of a plain softmax.

    Raises:
        Refusal: for what FusedAttention has no words for.

    """
    editor = shapes.editor
    version = editor.opset(node)
    if not 23 <= version <= 26:
        raise Refusal(Code.OPSET, f"Attention of opset {version}", node)
    inputs = [*node.inputs, *[None] * 7][:7]
    q, k, v, mask, past_key, past_value, lengths = inputs
    if q is None or k is None or v is None:
        raise Refusal(Code.UNSUPPORTED_OP, "Q, K or V is absent", node)
    if past_key is not None or past_value is not None or lengths is not None:
        raise Refusal(Code.UNSUPPORTED_OP, "the node keeps its own key/value cache", node)
    for extra in node.outputs[1:]:
        if extra.uses() or extra.is_graph_output():
            raise Refusal(Code.ESCAPES, f"{extra.name} is read", node)
    ranks = [_rank(x, shapes, node) for x in (q, k, v)]
    if ranks != [4, 4, 4]:
        raise Refusal(Code.WRONG_RANK, f"Q, K and V have ranks {ranks}; packed heads need Reshapes", node)
    precision = attribute_int(node, "softmax_precision", ir.DataType.FLOAT)
    if precision not in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
        raise Refusal(Code.WRONG_DTYPE, f"softmax_precision is {ir.DataType(precision).name}", node)
    q_dims, k_dims = [shapes.dim(q, i) for i in range(4)], [shapes.dim(k, i) for i in range(4)]
    softcap = attribute_float(node, "softcap", 0.0)
    if softcap < 0.0:
        raise Refusal(Code.ATTRIBUTE, f"softcap is {softcap}", node)
    if "scale" in node.attributes:
        scale = attribute_float(node, "scale", 0.0)
    else:
        if not q_dims[3].value:
            raise Refusal(Code.UNKNOWN_SHAPE, "the scale depends on the head size, which is not known", node)
        scale = 1.0 / math.sqrt(q_dims[3].value)
    if scale <= 0.0:
        raise Refusal(Code.ATTRIBUTE, f"scale is {scale}", node)
    causal = attribute_int(node, "is_causal", 0) == 1
    if causal and q_dims[2] != k_dims[2]:
        raise Refusal(Code.UNKNOWN_SHAPE, "causal from the top left, and S = T is not known", node)
    found = Attention(
        softmax=node,
        scores=node,
        context=node,
        shapes=shapes,
        q=Operand(q, (0, 1, 2, 3)),
        k=Operand(k, (0, 1, 3, 2)),
        v=Operand(v, (0, 1, 2, 3)),
        o_perm=(0, 1, 2, 3),
        output=node.outputs[0],
        inner=[node],
        scale=scale,
        softcap=softcap or None,
        causal=causal,
        gqa=q_dims[1] != k_dims[1],
    )
    if mask is not None:
        found.guard = True
        last = _rank(mask, shapes, node) - 1
        if version >= 24 and (last < 0 or shapes.dim(mask, last) != k_dims[2]):
            raise Refusal(Code.UNKNOWN_SHAPE, f"{mask.name} may be shorter than the keys, which pads it", node)
        dtype = editor.dtype(mask)
        if dtype is None:
            raise Refusal(Code.WRONG_DTYPE, f"the element type of {mask.name} is not known", node)
        if dtype == ir.DataType.BOOL:
            found.conditions.append(Condition(mask, node))
            found.mask_value = -math.inf
        else:
            found.terms.append(Term(mask, node))
    return found


# -- from the softmax down ---------------------------------------------------------------------------------------------


def _down(softmax: ir.Node, editor: Editor, shapes: Shapes) -> _Down | None:
    """Follows the probabilities to the product that they are an operand of; None when they reach none."""
    value = softmax.outputs[0]
    nodes: list[ir.Node] = []
    swapped = guard = False
    refusal: Refusal | None = None
    for _ in range(MAX_PATH):
        if value.is_graph_output() and refusal is None:
            refusal = Refusal(Code.GRAPH_OUTPUT, f"{value.name} is a graph output", softmax)
        readers = _readers(value)
        consumers = list(dict.fromkeys(readers))
        guarded = _nan_guard(value, consumers, editor)
        if guarded is not None:
            nodes += consumers
            guard = True
            value = guarded
            continue
        if len(readers) > 1:
            on_the_way = [c for c in consumers if _leads_to_product(c)]
            if not on_the_way:
                return None
            if refusal is None:
                refusal = Refusal(Code.OTHER_USES, f"{value.name} has {len(readers)} readers", softmax)
            consumers = on_the_way[:1]
        if not consumers:
            return None
        node = consumers[0]
        if node.domain != "":
            return None
        index = next(use.idx for use in value.uses() if use.node is node)
        if node.op_type in PRODUCTS:
            return _Down(nodes, node, index, swapped, guard, refusal)
        if node.op_type == "Transpose" and _swaps_last_two(node):
            swapped = not swapped
        elif node.op_type == "Dropout":
            refusal = refusal or _dropout_refusal(node, editor)
        elif node.op_type not in ("Identity", "Cast", "Reshape"):
            if not _leads_to_product(node):
                return None
            random = any(_is_random(v) for v in node.inputs)
            code = Code.NON_DETERMINISTIC if random else _code_of(node.op_type)
            refusal = refusal or Refusal(code, f"{node.op_type} between the softmax and the product", node)
        nodes.append(node)
        value = node.outputs[0]
    return None


def _readers(value: ir.Value) -> list[ir.Node]:
    """The nodes that read a value, once for each use; those that only ask for its shape can ask elsewhere."""
    return [use.node for use in value.uses() if not _is_shape(use.node)]


def _is_shape(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type == "Shape"


def _sole_reader(value: ir.Value) -> ir.Node | None:
    """The only node that reads a value's data, if there is one and the value is no graph output."""
    readers = _readers(value)
    return readers[0] if len(readers) == 1 and not value.is_graph_output() else None


def _nan_guard(value: ir.Value, consumers: Sequence[ir.Node], editor: Editor) -> ir.Value | None:
    """The output of Where(IsNaN(p), 0, p) when these are all the readers of p."""
    if len(consumers) != 2 or value.is_graph_output():
        return None
    is_nan = next((c for c in consumers if c.op_type == "IsNaN"), None)
    where = next((c for c in consumers if c.op_type == "Where"), None)
    if is_nan is None or where is None or where.inputs[0] is not is_nan.outputs[0] or where.inputs[2] is not value:
        return None
    if is_nan.outputs[0].is_graph_output() or len(is_nan.outputs[0].uses()) != 1:
        return None
    zero = where.inputs[1]
    return where.outputs[0] if editor.scalar(zero) == 0.0 and (editor.rank(zero) or 0) <= 1 else None


def _leads_to_product(node: ir.Node, depth: int = 4) -> bool:
    if node.domain != "":
        return False
    if node.op_type in PRODUCTS:
        return True
    if depth == 0 or node.op_type not in PASSING or not node.outputs:
        return False
    return any(_leads_to_product(c, depth - 1) for c in node.outputs[0].consumers())


# Operators that keep the nature of what goes through them, used only to tell a candidate from an unrelated Softmax.
PASSING = frozenset(
    "Add Cast DequantizeLinear Div Dropout Identity Mul QuantizeLinear Reshape Squeeze Sub Transpose Unsqueeze "
    "Where".split()
)


def _is_random(value: ir.Value | None) -> bool:
    producer = value.producer() if value is not None else None
    return producer is not None and producer.op_type in RANDOM


def _swaps_last_two(node: ir.Node) -> bool:
    perm = attribute_ints(node, "perm", ())
    rank = len(perm)
    return rank >= 2 and perm == (*range(rank - 2), rank - 1, rank - 2)


def _dropout_refusal(node: ir.Node, editor: Editor) -> Refusal | None:
    """None when the Dropout does nothing: inference, or a ratio of 0."""
    if editor.opset(node) < 7:
        inference = attribute_int(node, "is_test", 0) == 1
    elif editor.opset(node) < 12:
        inference = True
    else:
        mode = node.inputs[2] if len(node.inputs) > 2 else None
        ratio = node.inputs[1] if len(node.inputs) > 1 else None
        inference = mode is None or editor.scalar(mode) == 0.0 or (ratio is not None and editor.scalar(ratio) == 0.0)
    return None if inference else Refusal(Code.TRAINING_MODE, "Dropout drops values", node)


# -- from the softmax up -----------------------------------------------------------------------------------------------


# The product that makes the scores, and the steps from there to the softmax.
_Path = tuple[ir.Node, list[Step]]
# How many values are looked at above one softmax, nearest first.
MAX_VISITS = 300


def _up(value: ir.Value | None, shapes: Shapes) -> list[_Path]:
    """The products that the softmax's input may be read to come from, nearest first; none where it comes from none."""
    found: list[_Path] = []
    queue: deque[tuple[ir.Value | None, list[Step]]] = deque([(value, [])])
    visited: set[ir.Value] = set()
    while queue and len(visited) < MAX_VISITS:
        above, steps = queue.popleft()
        node = above.producer() if above is not None else None
        if above is None or node is None or above in visited or node.domain != "" or above is not node.outputs[0]:
            continue
        visited.add(above)
        if node.op_type in PRODUCTS:
            found.append((node, steps))
        elif len(steps) < MAX_PATH:
            queue.extend((main, [step, *steps]) for main, step in _readings(node, shapes))
    return found


def _cost(path: _Path, editor: Editor) -> tuple[bool, bool, int, int]:
    """Readings that can be refused at once last, then projections, then long ones."""
    product_node, steps = path
    projection = any(editor.is_constant(v) for v in product_node.inputs)
    reshapes = sum(s.kind == "reshape" for s in steps)
    return any(s.refusal is not None for s in steps), projection, reshapes, len(steps)


def _readings(node: ir.Node, shapes: Shapes) -> Iterable[tuple[ir.Value | None, Step]]:
    """The ways to read a node as a step: which input the scores are, and what happens to them."""
    editor = shapes.editor
    x = node.inputs
    op = node.op_type
    if op == "Identity":
        yield x[0], Step("same", node)
    elif op == "Dropout":
        yield x[0], Step("same", node, refusal=_dropout_refusal(node, editor))
    elif op == "Cast":
        yield x[0], Step("cast", node)
    elif op == "Reshape":
        yield x[0], Step("reshape", node)
    elif op == "Tanh":
        yield x[0], Step("tanh", node)
    elif op == "Neg":
        yield x[0], Step("scale", node, number=-1.0)
    elif op in ("Mul", "Div"):
        if op == "Div":
            yield x[1], Step("refused", node, refusal=Refusal(Code.UNSUPPORTED_OP, "a Div by the scores", node))
        for main, other in ((x[0], x[1]), (x[1], x[0]))[: 1 if op == "Div" else 2]:
            number = shapes.number(other)
            if number is not None and op == "Div":
                number = 1.0 / number if number else math.inf
            if number is not None:
                yield main, Step("scale", node, number=number)
            elif not editor.is_constant(main):
                code = Code.PER_CHANNEL_SCALE if editor.is_constant(other) else Code.NOT_CONSTANT
                detail = f"the scores are multiplied by {other.name if other is not None else '?'}"
                yield main, Step("refused", node, refusal=Refusal(code, detail, node))
    elif op == "Add":
        yield x[0], Step("add", node, operand=x[1])
        yield x[1], Step("add", node, operand=x[0])
    elif op == "Sub":
        yield x[0], Step("add", node, number=-1.0, operand=x[1])
        yield x[1], Step("refused", node, refusal=Refusal(Code.UNSUPPORTED_OP, "the scores are subtracted", node))
    elif op == "Where":
        for main, other, keeps in ((x[1], x[2], True), (x[2], x[1], False)):
            number, refusal = _mask_value(other, main, node, shapes)
            yield main, Step("where", node, number=number, operand=x[0], keeps=keeps, refusal=refusal)
    elif x:
        refusal = Refusal(_code_of(op), f"{op} between the product and the softmax", node)
        for value in x:
            yield value, Step("refused", node, refusal=refusal)


def _code_of(op_type: str) -> Code:
    if op_type in RANDOM:
        return Code.NON_DETERMINISTIC
    return Code.QUANTIZED if op_type in ("QuantizeLinear", "DequantizeLinear") else Code.UNSUPPORTED_OP


def _mask_value(
    value: ir.Value | None, scores: ir.Value | None, node: ir.Node, shapes: Shapes
) -> tuple[float, Refusal | None]:
    """The one number that a Where writes where it hides a score."""
    editor = shapes.editor
    array = editor.constant(value)
    if array is None:
        number = shapes.number(value)
        if number is not None:
            return number, None
        name = value.name if value is not None else "absent"
        return 0.0, Refusal(Code.NOT_CONSTANT, f"what the mask writes, {name}, is not a constant", node)
    if array.size == 0 or not (array == array.reshape(-1)[0]).all():
        return 0.0, Refusal(Code.UNSUPPORTED_OP, "the mask writes different numbers", node)
    rank = shapes.rank(scores)
    if array.size > 1 or array.ndim > 1:
        dims = shapes.dims(scores)
        if rank is None or dims is None:
            return 0.0, Refusal(Code.UNKNOWN_RANK, "the rank of the scores is not known", node)
        grows = array.ndim > rank or any(n != 1 and Size(n) != d for n, d in zip(reversed(array.shape), reversed(dims)))
        if grows:
            return 0.0, Refusal(Code.BROADCAST_GROWS, f"what the mask writes has shape {array.shape}", node)
    return float(array.reshape(-1)[0]), None


def _require_last_axis(softmax: ir.Node, shapes: Shapes, editor: Editor) -> None:
    opset = editor.opset(softmax)
    axis = attribute_int(softmax, "axis", -1 if opset >= 13 else 1)
    if axis == -1:
        return
    rank = shapes.rank(softmax.inputs[0])
    if rank is None:
        raise Refusal(Code.UNKNOWN_RANK, "the rank of the softmax is not known", softmax)
    if axis % rank != rank - 1:
        code = Code.WRONG_AXIS if opset >= 13 else Code.FLATTENED_SOFTMAX
        raise Refusal(code, f"Softmax over axis {axis} of rank {rank}", softmax)


# -- steps -------------------------------------------------------------------------------------------------------------


def _apply_steps(found: Attention, steps: Sequence[Step], below: Sequence[ir.Node]) -> None:
    """Brings the steps into the order scale, soft cap, additive terms, masks.

    Args:
        found: takes what the steps come to.
        steps: from the scores to the softmax.
        below: the nodes from the softmax to the context product.

    Raises:
        Refusal: when that would change the numbers.

    """
    editor = found.shapes.editor
    dtype = editor.dtype(found.scores.outputs[0])
    compute = dtype
    view: View | None = None
    for step in steps:
        node = step.node
        if step.kind == "cast":
            compute = ir.DataType(attribute_int(node, "to", 0))
            if compute not in (dtype, ir.DataType.FLOAT):
                raise Refusal(Code.MIXED_DTYPE, f"scores are cast to {compute.name}", node)
        elif step.kind == "scale":
            _apply_scale(found, step.number, node)
        elif step.kind == "tanh":
            if found.softcap is not None or found.terms or found.conditions:
                raise Refusal(Code.UNSUPPORTED_OP, "Tanh after a mask, a bias or another Tanh", node)
            found.softcap = 1.0
        elif step.kind == "add":
            assert step.operand is not None
            _masks_to_terms(found, node)
            if compute != dtype:
                found.wide_steps.append(node)
            found.terms.append(Term(step.operand, node, view, step.number))
        elif step.kind == "where":
            assert step.operand is not None
            if found.conditions and found.mask_value != step.number:
                raise Refusal(Code.UNSUPPORTED_OP, "two masks write different numbers", node)
            if compute != dtype:
                found.wide_steps.append(node)
            found.mask_value = step.number
            found.conditions.append(Condition(step.operand, node, view, step.keeps))
        elif step.kind == "reshape":
            view = _next_view(found, node, view)
    base = found.shapes.dims(found.scores.outputs[0])
    if view is not None and (base is None or view.dims[-1] != base[-1]):
        raise Refusal(Code.WRONG_AXIS, "the last axis of the softmax is not that of the keys", view.there)
    swapped: ir.Node | None = None
    for node in below:
        if node.op_type == "Cast":
            found.casts.append((ir.DataType(attribute_int(node, "to", 0)), node))
        elif node.op_type == "Transpose":
            swapped = node
        elif node.op_type == "Reshape":
            if swapped is not None:
                raise Refusal(Code.UNSUPPORTED_OP, "the probabilities are transposed, then reshaped", swapped, node)
            view = _next_view(found, node, view)
        if swapped is not None and view is not None:
            raise Refusal(Code.UNSUPPORTED_OP, "the probabilities are reshaped, then transposed", node)
    if view is not None:
        raise Refusal(Code.WRONG_SHAPE, "the probabilities do not have the shape of the scores", view.there)


def _masks_to_terms(found: Attention, node: ir.Node) -> None:
    """A mask before a bias becomes a bias itself: where(m, s, c) + b = s + where(m, 0, c) + b.

    For float32 scores below 1e30 that is exact, not only close, when c is -inf or so large that adding s does not
    change it.
    """
    if not found.conditions:
        return
    dtype = found.shapes.editor.dtype(found.scores.outputs[0])
    if found.mask_value > -1e38 or dtype != ir.DataType.FLOAT:
        raise Refusal(Code.UNSUPPORTED_OP, f"a bias is added after a mask that writes {found.mask_value}", node)
    for c in found.conditions:
        found.terms.append(Term(c.value, c.node, c.view, mask=(found.mask_value, c.keeps)))
    found.conditions = []


def _find_causal(found: Attention) -> None:
    """A constant that hides exactly the keys after each query becomes the node's own Causal step.

    Every query sees a key, so no row is hidden wholly. -inf then says the same as a step of the node does. Another
    very low number does so where it is the only thing that joins: beside others, a row whose visible keys they hide
    would average over the keys hidden here as well.
    """
    base = _score_dims(found)
    rows, keys = base[-2].value, base[-1].value
    if rows is None or keys is None or keys < rows:
        return
    alone = len(found.terms) + len(found.conditions) == 1
    visible = np.tri(rows, keys, keys - rows) > 0
    for joined in _joined(found):
        array = found.shapes.editor.constant(joined.value) if joined.view is None else None
        if array is None or array.ndim < 2 or array.shape[-2:] != (rows, keys) or array.size != rows * keys:
            continue
        matrix = array.reshape(rows, keys)
        if isinstance(joined, Condition):
            hidden = np.full(1, found.mask_value)
            same = np.array_equal(matrix == joined.keeps, visible)
        else:
            hidden = matrix[~visible]
            same = joined.factor == 1.0 and joined.mask is None and not matrix[visible].any()
        if same and (hidden <= (-1e30 if alone else -np.inf)).all():
            found.causal = True
            found.terms = [t for t in found.terms if t is not joined]
            found.conditions = [c for c in found.conditions if c is not joined]
            return


def _next_view(found: Attention, node: ir.Node, view: View | None) -> View | None:
    base = found.shapes.dims(found.scores.outputs[0])
    dims = found.shapes.reshaped(node)
    if base is None or dims is None or not dims:
        raise Refusal(Code.UNKNOWN_SHAPE, "the scores are reshaped, to what is not known", node)
    if not _same_dims(dims, base):
        return View(dims, node)
    if view is not None:
        view.back = node
    return None


def _same_dims(a: Sequence[Size], b: Sequence[Size]) -> bool:
    """Whether two shapes of the same tensor are the same: one dimension that is not known follows from the others."""
    return len(a) == len(b) and sum(x != y for x, y in zip(a, b)) <= 1


def _apply_scale(found: Attention, number: float, node: ir.Node) -> None:
    if not math.isfinite(number):
        raise Refusal(Code.NOT_FINITE, f"the scores are multiplied by {number}", node)
    found.scale *= number
    if found.softcap is not None:
        found.softcap *= number
    found.terms = [replace(t, factor=t.factor * number) for t in found.terms]
    if found.conditions:
        found.mask_value = float(np.float32(found.mask_value) * np.float32(number))


# -- operands ----------------------------------------------------------------------------------------------------------


def _identity(rank: int) -> tuple[int, ...]:
    return tuple(range(rank))


def _rank(value: ir.Value | None, shapes: Shapes, node: ir.Node) -> int:
    rank = shapes.rank(value)
    if rank is None:
        raise Refusal(Code.UNKNOWN_RANK, f"the rank of {value.name if value else '?'} is not known", node)
    return rank


def _swap_last(perm: tuple[int, ...]) -> tuple[int, ...]:
    return (*perm[:-2], perm[-1], perm[-2])


def _letters(node: ir.Node, shapes: Shapes) -> tuple[str, str, str]:
    """A product of two tensors in Einsum's notation: the axes of its operands and of its result.

    Raises:
        Refusal: UNKNOWN_RANK, or UNSUPPORTED_OP for an equation that is not a plain product.

    """
    if len(node.inputs) != 2:
        raise Refusal(Code.UNSUPPORTED_OP, f"{node.op_type} of {len(node.inputs)} tensors", node)
    if node.op_type == "Einsum":
        equation = attribute_string(node, "equation", "").replace(" ", "")
        left, arrow, out = equation.partition("->")
        a, comma, b = left.partition(",")
        plain = arrow and comma and all(len(set(t)) == len(t) and t.isalpha() for t in (a, b, out))
        if not plain:
            raise Refusal(Code.UNSUPPORTED_OP, f"Einsum '{equation}' is not a plain product", node)
        return a, b, out
    rank_a, rank_b = _rank(node.inputs[0], shapes, node), _rank(node.inputs[1], shapes, node)
    if not 2 <= min(rank_a, rank_b) <= max(rank_a, rank_b) <= 4:
        raise Refusal(Code.WRONG_RANK, f"the operands have ranks {rank_a} and {rank_b}", node)
    batch = "bh"[4 - max(rank_a, rank_b) :]
    return batch[len(batch) - rank_a + 2 :] + "ik", batch[len(batch) - rank_b + 2 :] + "kj", batch + "ij"


def _operand(value: ir.Value | None, letters: str, batch: str, matrix: str, node: ir.Node) -> Operand:
    """The operand as a stack of matrices with axes `matrix` over the last of the axes `batch`."""
    own = "".join(c for c in batch if c in letters)
    if set(letters) != set(own + matrix) or not batch.endswith(own) or value is None or len(letters) > 4:
        raise Refusal(Code.UNSUPPORTED_OP, f"an operand has axes {letters}, not {batch + matrix}", node)
    return Operand(value, tuple(letters.index(c) for c in own + matrix))


def _factors(node: ir.Node, shapes: Shapes) -> tuple[Operand, Operand]:
    """Q as [.., i, k] and K as [.., k, j] of the product that makes the scores [.., i, j]."""
    a, b, out = _letters(node, shapes)
    batch, i, j = out[:-2], out[-2:-1], out[-1:]
    first = 0 if i in a and j in b else 1
    q, k = (a, b) if first == 0 else (b, a)
    summed = [c for c in q if c in k and c not in out]
    if i not in q or j not in k or i in k or j in q or len(summed) != 1:
        raise Refusal(Code.UNSUPPORTED_OP, f"scores are {a},{b}->{out}", node)
    c = summed[0]
    return (
        _operand(node.inputs[first], q, batch, i + c, node),
        _operand(node.inputs[1 - first], k, batch, c + j, node),
    )


def _values(down: _Down, shapes: Shapes) -> tuple[Operand, tuple[int, ...]]:
    """V as [.., T, Dv], and the perm that takes [.., S, Dv] to what the context product returns."""
    node = down.context
    a, b, out = _letters(node, shapes)
    p, v = (a, b) if down.index == 0 else (b, a)
    if down.swapped:
        p = p[:-2] + p[-1] + p[-2]
    batch, i, t = p[:-2], p[-2:-1], p[-1:]
    d = "".join(c for c in v if c not in p)
    result = batch + i + d
    if len(d) != 1 or i in v or t not in v or set(result) != set(out) or len(out) > 4:
        raise Refusal(Code.WRONG_PERM, f"the context is {a},{b}->{out}, not a sum over the keys", node)
    operand = _operand(node.inputs[1 - down.index], v, batch, t + d, node)
    return operand, tuple(result.index(c) for c in out)


def _absorb_operands(found: Attention, editor: Editor) -> None:
    found.q = _absorb(found, found.q, editor, scaled=True)
    found.k = _absorb(found, found.k, editor, scaled=True)
    found.v = _absorb(found, found.v, editor, scaled=False)
    _absorb_groups(found, editor)


def _absorb_groups(found: Attention, editor: Editor) -> None:
    """Key/value heads that are repeated for groups of query heads become the node's own grouping."""
    if {len(found.q.perm), len(found.k.perm), len(found.v.perm)} != {4}:
        return
    k_perm = found.k.perm
    k, v = _repeated(found.k.value, found.shapes, editor), _repeated(found.v.value, found.shapes, editor)
    if k is None and (flat := _flat(found.k.value, found.shapes, editor)) is not None:
        k = _spread(flat.value, flat.dims, flat.nodes, found.shapes, editor)
        k_perm = tuple((0, 1, 3, 2)[p] for p in k_perm)
    if k is None or v is None or k.groups != v.groups or k_perm[1] != k.axis or found.v.perm[1] != v.axis:
        return
    found.gqa = True
    found.outer += [*k.nodes, *v.nodes]
    found.k = _absorb(found, Operand(k.value, k_perm), editor, scaled=True)
    found.v = _absorb(found, Operand(v.value, found.v.perm), editor, scaled=False)


@dataclass(frozen=True)
class _Repeat:
    """value with each slice of `axis` repeated `groups` times, copies side by side."""

    value: ir.Value
    axis: int
    groups: Size
    nodes: tuple[ir.Node, ...]


def _repeated(value: ir.Value, shapes: Shapes, editor: Editor) -> _Repeat | None:
    """Reads Reshape(Expand or Tile(Unsqueeze(x, axis + 1))) as a repetition; None when it is none."""
    merge = value.producer()
    if merge is None or merge.domain != "" or merge.op_type != "Reshape" or not editor.only_use(value):
        return None
    merged = shapes.reshaped(merge)
    return None if merged is None else _spread(merge.inputs[0], merged, (merge,), shapes, editor)


def _spread(
    wide: ir.Value | None, merged: Sequence[Size], below: tuple[ir.Node, ...], shapes: Shapes, editor: Editor
) -> _Repeat | None:
    """The repetition that shows when `wide`, an Expand or Tile along a new axis, is reshaped to `merged`."""
    spread = wide.producer() if wide is not None else None
    if wide is None or spread is None or spread.domain != "" or spread.op_type not in ("Expand", "Tile"):
        return None
    narrow = spread.inputs[0]
    split = narrow.producer() if narrow is not None else None
    if narrow is None or split is None or split.domain != "" or split.op_type not in ("Unsqueeze", "Reshape"):
        return None
    source = split.inputs[0]
    if source is None or not editor.only_use(wide) or not editor.only_use(narrow):
        return None
    before, after, x = shapes.dims(narrow), shapes.dims(wide), shapes.dims(source)
    if before is None or after is None or x is None or len(before) != len(after):
        return None
    grown = [i for i, (a, b) in enumerate(zip(before, after)) if a != b]
    if len(grown) != 1 or grown[0] == 0 or before[grown[0]] != ONE:
        return None
    g = grown[0]
    # Taking the new axis of 1 out again must give x, and merging it into the axis before must give the result.
    if not _same_dims(x, (*before[:g], *before[g + 1 :])):
        return None
    if not _same_dims(merged, (*after[: g - 1], after[g - 1] * after[g], *after[g + 1 :])):
        return None
    return _Repeat(source, g - 1, after[g], (split, spread, *below))


def _absorb(found: Attention, operand: Operand, editor: Editor, *, scaled: bool) -> Operand:
    """Takes Transposes, and where `scaled` factors of one number, off an operand."""
    value, perm = operand.value, operand.perm
    while _sole_reader(value) is not None:
        node = value.producer()
        if node is None or node.domain != "" or node.graph is not found.scores.graph or node.inputs[0] is None:
            break
        own = _identity(len(perm))
        if node.op_type == "Identity":
            source = node.inputs[0]
        elif node.op_type == "Transpose":
            own = attribute_ints(node, "perm", tuple(reversed(own)))
            source = node.inputs[0]
        elif scaled and (factor := _factor(node, found.shapes)) is not None:
            found.scale *= factor[1]
            source = factor[0]
        elif (flat := _flat(value, found.shapes, editor)) is not None:
            if not _same_dims(flat.dims, found.shapes.dims(flat.value) or ()):
                break
            own, source = _swap_last(own), flat.value
        else:
            break
        found.axes[value] = [(source, axis) for axis in own]
        perm = tuple(own[p] for p in perm)
        value = source
        found.outer.append(node)
    return Operand(value, perm)


def _factor(node: ir.Node, shapes: Shapes) -> tuple[ir.Value, float] | None:
    """(x, c) when the node computes c x for one finite number c without changing x's shape."""
    if node.op_type not in ("Mul", "Div"):
        return None
    for main, other in ((node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0])):
        number = shapes.number(other)
        rank_main, rank_other = shapes.rank(main), shapes.rank(other)
        if number is None or main is None or rank_other is None or rank_other > (1 if rank_main is None else rank_main):
            if node.op_type == "Div":
                return None
            continue
        if node.op_type == "Div":
            number = 1.0 / number if number else math.inf
        return (main, number) if math.isfinite(number) else None
    return None


@dataclass(frozen=True)
class _Flat:
    """Reshape(Transpose(Reshape(value), [0, 2, 1])): swaps the last two axes of `value` seen as `dims`."""

    value: ir.Value
    dims: tuple[Size, ...]
    nodes: tuple[ir.Node, ...]


def _flat(value: ir.Value, shapes: Shapes, editor: Editor) -> _Flat | None:
    """Reads the leading dimensions flattened, the last two transposed, and the leading ones restored."""
    outer = value.producer()
    if outer is None or outer.domain != "" or outer.op_type != "Reshape" or outer.inputs[0] is None:
        return None
    transpose = outer.inputs[0].producer()
    if transpose is None or transpose.op_type != "Transpose" or not editor.only_use(transpose.outputs[0]):
        return None
    if attribute_ints(transpose, "perm", ()) != (0, 2, 1) or transpose.inputs[0] is None:
        return None
    inner = transpose.inputs[0].producer()
    if inner is None or inner.op_type != "Reshape" or not editor.only_use(inner.outputs[0]) or inner.inputs[0] is None:
        return None
    source, flat, result = shapes.dims(inner.inputs[0]), shapes.reshaped(inner), shapes.reshaped(outer)
    if source is None or flat is None or result is None or min(len(source), len(result)) < 3:
        return None
    rows, columns = source[-2:]
    if flat[1:] != (rows, columns) or result[-2:] != (columns, rows):
        return None
    return _Flat(inner.inputs[0], (*result[:-2], rows, columns), (inner, transpose, outer))


def _absorb_result(found: Attention) -> None:
    """A Transpose, or a Reshape to the same shape, that alone reads the result becomes part of the node."""
    while (node := _sole_reader(found.output)) is not None:
        if node.domain != "" or node.graph is not found.context.graph:
            return
        if node.op_type == "Transpose":
            own = attribute_ints(node, "perm", tuple(reversed(range(len(found.o_perm)))))
        elif node.op_type == "Reshape":
            before, after = found.shapes.dims(found.output), found.shapes.reshaped(node)
            if before is None or after is None or not _same_dims(before, after):
                return
            own = _identity(len(found.o_perm))
        else:
            return
        if found.output.uses() and len(found.output.uses()) > 1:
            axes = _result_axes(found)
            if axes is None:
                return
            found.axes[found.output] = [axes[p] for p in found.o_perm]
        found.o_perm = tuple(found.o_perm[p] for p in own)
        found.inner.append(node)
        found.output = node.outputs[0]


def _batch_axes(found: Attention, *operands: Operand) -> list[tuple[ir.Value, int]] | None:
    """For each batch axis of a product, a value that has it in full; None when that is not known."""
    result: list[tuple[ir.Value, int]] = []
    for i in range(-max(len(o.perm) for o in operands), -2):
        candidates = [(o.value, o.perm[i]) for o in operands if -i <= len(o.perm)]
        sizes = [found.shapes.dim(*c) for c in candidates]
        large = [c for c, size in zip(candidates, sizes) if size != ONE]
        if len({size for size in sizes if size != ONE}) > 1:
            return None
        result.append((large or candidates)[0])
    return result


def _score_axes(found: Attention) -> list[tuple[ir.Value, int]] | None:
    """Where each dimension of the scores can be read: [.., S, T]."""
    q, k = found.q, found.k
    batch = _batch_axes(found, q) if found.gqa else _batch_axes(found, q, k)
    return None if batch is None else [*batch, (q.value, q.perm[-2]), (k.value, k.perm[-1])]


def _result_axes(found: Attention) -> list[tuple[ir.Value, int]] | None:
    """Where each dimension of the result before o_perm can be read: [.., S, Dv]."""
    q, k, v = found.q, found.k, found.v
    batch = _batch_axes(found, q) if found.gqa else _batch_axes(found, q, k, v)
    return None if batch is None else [*batch, (q.value, q.perm[-2]), (v.value, v.perm[-1])]


# -- legality ----------------------------------------------------------------------------------------------------------


def _require_no_escape(match: Attention) -> None:
    """Nothing that goes may be needed. Who only asks for the shape of the scores can ask Q and K."""
    inner = set(match.inner)
    escaping: list[ir.Value] = []
    for node in match.inner:
        if node.graph is not match.context.graph:
            raise Refusal(Code.ESCAPES, "the attention reaches over more than one graph", node)
        for value in node.outputs:
            if value is match.output:
                continue
            outside = [use.node for use in value.uses() if use.node not in inner]
            if outside and all(_is_shape(n) and n.graph is node.graph for n in outside) and value not in match.axes:
                axes = _score_axes(match)
                if axes is not None and match.shapes.dims(value) == match.shapes.dims(match.scores.outputs[0]):
                    match.axes[value] = axes
            outside = [] if value in match.axes else outside
            if value.is_graph_output() or outside:
                escaping.append(value)
    if not escaping:
        return
    first = escaping[0]
    if len(escaping) > 1:
        names = ", ".join(str(v.name) for v in escaping)
        raise Refusal(Code.ESCAPES, f"{names} are read elsewhere", *(v.producer() for v in escaping))
    if first.is_graph_output():
        raise Refusal(Code.GRAPH_OUTPUT, f"{first.name} is a graph output", first.producer())
    raise Refusal(Code.OTHER_USES, f"{first.name} is read elsewhere", first.producer())


def _set_dtype(match: Attention, editor: Editor) -> None:
    """Finds the node's element type."""
    scores = [match.scores.outputs[0], match.q.value, match.k.value]
    rest = [match.context.outputs[0], match.v.value, *(t.value for t in match.terms if t.mask is None)]
    if match.scores is match.context:
        scores, rest = scores[1:], rest[1:]
    first = {d for v in scores if (d := editor.dtype(v)) is not None}
    second = {d for v in rest if (d := editor.dtype(v)) is not None}
    known = first | second
    if not known:
        raise Refusal(Code.WRONG_DTYPE, "the element type is not known", match.scores)
    if not known <= {ir.DataType.FLOAT, ir.DataType.FLOAT16}:
        raise Refusal(Code.WRONG_DTYPE, " and ".join(sorted(d.name for d in known)), match.scores)
    if first == {ir.DataType.FLOAT16} and second == {ir.DataType.FLOAT} and match.scores is not match.context:
        match.widened = True
    elif len(known) > 1:
        raise Refusal(Code.MIXED_DTYPE, " and ".join(sorted(d.name for d in known)), match.scores)
    match.dtype = next(iter(second or known))
    for dtype, node in match.casts:
        if dtype not in (ir.DataType.FLOAT, match.dtype):
            raise Refusal(Code.MIXED_DTYPE, f"the probabilities are cast to {dtype.name}", node)
    if match.wide_steps and match.dtype != ir.DataType.FLOAT:
        raise Refusal(Code.MIXED_DTYPE, "a bias or mask joins in float32", match.wide_steps[0])


def _require_same_heads(match: Attention) -> None:
    """Q, K and V must be split into heads along the axis that each is stacked over.

    A product of Q by head with K by row runs where there are as many rows as heads, and is never what was meant: it is
    left as it is.
    """
    kinds: dict[str, str] = {}
    for name, operand in (("Q", match.q), ("K", match.k), ("V", match.v)):
        if len(operand.perm) == 4:
            kind = _origin(operand.value, operand.perm[1], match.shapes, MAX_PATH)
            if kind is not None:
                kinds[name] = kind
    named = {name: kind for name, kind in kinds.items() if not kind.startswith("axis")}
    # Inputs of the model that are stacked over different axes may well have different layouts, unless they cannot be
    # told apart: then the odd one out is taken for a mistake.
    k_dims = match.shapes.dims(match.k.value)
    if not named and len(kinds) == 3 and k_dims is not None and k_dims[1] == k_dims[2]:
        named = kinds
    if len(set(named.values())) > 1:
        detail = ", ".join(f"{name} by {kind}" for name, kind in named.items())
        raise Refusal(Code.WRONG_PERM, f"stacks of matrices do not correspond: {detail}", match.scores, match.context)


def _origin(value: ir.Value | None, axis: int, shapes: Shapes, budget: int) -> str | None:
    """Where a batch axis comes from: "head" or "row" of the Reshape that splits heads, "axis N" of an input."""
    if value is None or shapes.rank(value) != 4 or budget == 0:
        return None
    node = value.producer()
    if node is None:
        return f"axis {axis}" if not shapes.editor.is_constant(value) else None
    x = node.inputs[0] if node.inputs else None
    if node.op_type == "Transpose" and node.domain == "":
        perm = attribute_ints(node, "perm", (3, 2, 1, 0))
        return _origin(x, perm[axis], shapes, budget - 1)
    if node.op_type == "Reshape" and node.domain == "":
        before, after = shapes.dims(x), shapes.reshaped(node)
        if before is None or after is None or len(before) != 3 or after[:2] != before[:2]:
            return None
        return {1: "row", 2: "head"}.get(axis)
    several = node.domain == "" and (node.op_type in BROADCASTING or node.op_type == "Concat")
    found: str | None = None
    if several or keeps_shape(node) or (node.domain == "" and node.op_type in ("Slice", "Split")):
        for source in node.inputs if several else [x]:
            kind = _origin(source, axis, shapes, budget - 1)
            if kind in ("head", "row"):
                return kind
            found = found or kind
    return found


def _score_dims(match: Attention) -> tuple[Size, ...]:
    """The dimensions of the scores, from Q and K."""
    shapes = match.shapes
    q = [shapes.dim(match.q.value, axis) for axis in match.q.perm]
    k = [shapes.dim(match.k.value, axis) for axis in match.k.perm]
    batch = max(len(q), len(k)) - 2
    sizes: list[Size] = []
    for i in range(-batch - 2, -2):
        pair = [t[i] for t in (q, k) if -i <= len(t)]
        # With grouped heads those of Q count; otherwise the larger of two that broadcast.
        sizes.append(pair[0] if pair[0] != ONE or match.gqa else pair[-1])
    return (*sizes, q[-2], k[-1])


def _joined(match: Attention) -> list[Term | Condition]:
    return [*match.terms, *match.conditions]


def _require_broadcast(match: Attention, joined: Term | Condition, base: Sequence[Size]) -> None:
    """What joins the scores must not make them larger."""
    value, node = joined.value, joined.node
    if _is_random(value):
        raise Refusal(Code.NON_DETERMINISTIC, f"{value.name} is random", node)
    scores = base if joined.view is None else joined.view.dims
    dims = match.shapes.dims(value)
    if dims is None:
        raise Refusal(Code.UNKNOWN_RANK, f"the rank of {value.name} is not known", node)
    if len(dims) > len(scores):
        raise Refusal(Code.BROADCAST_GROWS, f"{value.name} has rank {len(dims)}, the scores {len(scores)}", node)
    for size, score in zip(reversed(dims), reversed(scores)):
        if size in (ONE, score):
            continue
        if size.value is not None or score.value == 1:
            raise Refusal(Code.BROADCAST_GROWS, f"{value.name} may make the scores larger", node)


# -- terms and conditions under other views ----------------------------------------------------------------------------

JoinedT = TypeVar("JoinedT", Term, Condition)


def _by_view(joined: Sequence[JoinedT]) -> list[list[JoinedT]]:
    """Groups what joins under the same view, in order."""
    groups: dict[int, list[JoinedT]] = {}
    for j in joined:
        groups.setdefault(0 if j.view is None else id(j.view), []).append(j)
    return list(groups.values())


@dataclass(frozen=True)
class _Plan:
    """How the sum of a group comes to the shape of the scores: Expand where needed, then Reshape.

    Each step goes by numbers (with at most one -1), or by the shape that the graph itself computed for the scores.
    """

    expands: bool
    expand: tuple[int, ...] | None
    reshape: tuple[int, ...] | None


def _plan(match: Attention, group: Sequence[Term | Condition], base: Sequence[Size]) -> _Plan | None:
    """None when the group joins the scores as they are.

    Raises:
        Refusal: UNKNOWN_SHAPE.

    """
    view = group[0].view
    if view is None:
        return None
    unknown = Refusal(Code.UNKNOWN_SHAPE, "the scores are reshaped, to what is not known", view.there)
    pairs = _align(base, view.dims)
    if pairs is None:
        raise unknown
    own = [ONE] * len(view.dims)
    for joined in group:
        dims = match.shapes.dims(joined.value) or ()
        for i in range(1, len(dims) + 1):
            if dims[-i] != ONE:
                own[-i] = dims[-i]
    expand: list[Size] = []
    reshape: list[Size] = []
    for at_base, at_view in pairs:
        mine, full = own[at_view], list(view.dims[at_view])
        if all(size == ONE for size in mine):
            expand += mine
            reshape += [ONE] * len(base[at_base])
        else:
            # Only axes that must grow are named: Expand broadcasts both ways.
            expand += [ONE if size == whole else whole for size, whole in zip(mine, full)]
            reshape += base[at_base]
    expands = any(size != ONE for size in expand)
    numbers = tuple(size.value if size.value is not None else -1 for size in expand)
    back = tuple(size.value if size.value is not None else -1 for size in reshape)
    by_view = expands and -1 in numbers
    if by_view:
        target = match.shapes.small(view.there.inputs[1])
        if target is None or any(e in (Size(0), Size(-1)) for e in target.elements):
            raise unknown
    by_back = by_view or (back.count(-1) > 1 and reshape == list(base))
    if (by_back and view.back is None) or (not by_back and back.count(-1) > 1):
        raise unknown
    return _Plan(expands, None if by_view else numbers, None if by_back else back)


def _align(a: Sequence[Size], b: Sequence[Size]) -> list[tuple[slice, slice]] | None:
    """Pairs runs of dimensions of two shapes of one tensor that have the same product, each as short as it can be."""
    pairs: list[tuple[slice, slice]] = []
    i, j = len(a), len(b)
    while i or j:
        end_a, end_b = i, j
        i, j = max(i - 1, 0), max(j - 1, 0)
        while product(a[i:end_a]) != product(b[j:end_b]):
            left, right = product(a[i:end_a]), product(b[j:end_b])
            if j and left.divided_by(right) is not None:
                j -= 1
            elif i and right.divided_by(left) is not None:
                i -= 1
            else:
                return None
        pairs.append((slice(i, end_a), slice(j, end_b)))
    return pairs[::-1]


# -- emission ----------------------------------------------------------------------------------------------------------


def _move_shape_readers(match: Attention, editor: Editor) -> None:
    """Shape nodes that read a value which goes read the operands of the fused node instead."""
    for value in match.axes:
        for node in list(dict.fromkeys(use.node for use in value.uses())):
            if not _is_shape(node) or node.graph is None:
                continue
            axes = match.axes[value]
            start, end = attribute_int(node, "start", 0), attribute_int(node, "end", len(axes))
            wanted = [_trace(match, source) for source in axes[start:end]]
            sources = list(dict.fromkeys(v for v, _ in wanted))
            offsets = dict(zip(sources, np.cumsum([0, *(match.shapes.rank(v) or 0 for v in sources)]).tolist()))
            label = node.name or "shape"
            new = [editor.node("Shape", [v], hint=label) for v in sources]
            last = new[0].outputs[0]
            if len(sources) > 1:
                new.append(editor.node("Concat", [n.outputs[0] for n in new], {"axis": 0}, hint=label))
                last = new[-1].outputs[0]
            index = np.asarray([offsets[v] + axis for v, axis in wanted], np.int64)
            picks = editor.initializer(node, index, f"{label}/axes")
            new.append(editor.node("Gather", [last, picks], {"axis": 0}, hint=label))
            editor.replace([node], new, {node.outputs[0]: new[-1].outputs[0]}, anchor=node)


def _trace(match: Attention, source: tuple[ir.Value, int]) -> tuple[ir.Value, int]:
    """Follows an axis through values that go too."""
    value, axis = source
    while value in match.axes:
        value, axis = match.axes[value][axis]
    return value, axis


class _Emission:
    """The nodes that a rewrite makes beside the fused one."""

    def __init__(self, match: Attention, editor: Editor) -> None:
        self.match = match
        self.editor = editor
        self.nodes: list[ir.Node] = []
        self.base = _score_dims(match)
        self.label = match.softmax.name or match.softmax.outputs[0].name or "attention"

    def node(self, op_type: str, inputs: Sequence[ir.Value], hint: str) -> ir.Value:
        node = self.editor.node(op_type, inputs, hint=f"{self.label}/{hint}")
        node.outputs[0].dtype = self.editor.dtype(inputs[0]) or ir.DataType.UNDEFINED
        self.nodes.append(node)
        return node.outputs[0]

    def constant(self, array: Array, hint: str) -> ir.Value:
        return self.editor.initializer(self.match.context, array, f"{self.label}/{hint}")

    def widened(self, value: ir.Value) -> ir.Value:
        if not self.match.widened:
            return value
        cast = self.editor.node("Cast", [value], {"to": int(ir.DataType.FLOAT)}, hint=f"{self.label}/float")
        cast.outputs[0].dtype = ir.DataType.FLOAT
        self.nodes.append(cast)
        return cast.outputs[0]

    def bias(self) -> ir.Value:
        """The sum of the additive terms."""
        total: ir.Value | None = None
        for group in _by_view(self.match.terms):
            part: ir.Value | None = None
            for term in group:
                value = self._factored(term)
                part = value if part is None else self.node("Add", [part, value], "bias")
            assert part is not None
            part = self._as_scores(part, group, "bias")
            total = part if total is None else self.node("Add", [total, part], "bias")
        assert total is not None
        return total

    def _factored(self, term: Term) -> ir.Value:
        if term.mask is not None:
            hides, keeps = term.mask
            zero, hidden = (
                self.constant(np.asarray(n, self.match.dtype.numpy()), "masked") for n in (0.0, hides * term.factor)
            )
            pair = (zero, hidden) if keeps else (hidden, zero)
            where = self.node("Where", [term.value, *pair], "bias")
            where.dtype = self.match.dtype
            return where
        if term.factor == 1.0:
            return term.value
        if term.factor == -1.0:
            return self.node("Neg", [term.value], "bias")
        factor = self.constant(np.asarray(term.factor, self.match.dtype.numpy()), "factor")
        return self.node("Mul", [term.value, factor], "bias")

    def mask(self) -> ir.Value:
        """The conjunction of the conditions, true where a score is kept."""
        total: ir.Value | None = None
        for group in _by_view(self.match.conditions):
            part: ir.Value | None = None
            for condition in group:
                value = condition.value
                if not condition.keeps:
                    producer = value.producer()
                    negated = producer is not None and producer.domain == "" and producer.op_type == "Not"
                    source = producer.inputs[0] if producer is not None and negated else None
                    value = source if source is not None else self.node("Not", [value], "mask")
                part = value if part is None else self.node("And", [part, value], "mask")
            assert part is not None
            part = self._as_scores(part, group, "mask")
            total = part if total is None else self.node("And", [total, part], "mask")
        assert total is not None
        return total

    def _as_scores(self, value: ir.Value, group: Sequence[Term | Condition], hint: str) -> ir.Value:
        plan = _plan(self.match, group, self.base)
        view = group[0].view
        if plan is None or view is None:
            return value
        if plan.expands:
            shape = view.there.inputs[1] if plan.expand is None else self._shape(plan.expand)
            assert shape is not None
            value = self.node("Expand", [value, shape], hint)
        back = view.back.inputs[1] if view.back is not None and plan.reshape is None else None
        shape = self._shape(plan.reshape) if plan.reshape is not None else back
        assert shape is not None
        return self.node("Reshape", [value, shape], hint)

    def _shape(self, sizes: Sequence[int]) -> ir.Value:
        return self.constant(np.asarray(sizes, np.int64), "shape")
