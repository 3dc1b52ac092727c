"""Fuses attention, softmax(scale Q K^T + ...) V, into one FusedAttention node.

Equation:
    MatMul(Softmax(f(MatMul(Q, K^T))), V) = FusedAttention(Q, K, V)

f is any combination of scaling, soft cap, additive terms and masks that FusedAttention can express (docs/ops.md).

The anchor is a Softmax, or a node of ONNX's operator Attention (attention/node.py). The nodes between the MatMul that
produces the Softmax's input (the scores) and the MatMul that reads its output (the context) are read as a list of
steps. The pass moves the steps into the order of the fused node. It does not look for fixed operator sequences or
model families.

Why it is legal: each step is rewritten by an identity of real numbers, or refused.
    - Scalar factors commute with MatMul, Transpose and Reshape; their product is `scale`.
    - a tanh(b s) = cap tanh(scale' s / cap) with cap = a, scale' = a b.
    - FusedAttention performs the Transposes of Q, K, V and the result itself: their perms compose.
    - Additive terms and masks keep their values. If there are several, new nodes before the fused node combine them.
    - s m + c (1 - m) = where(m, s, c) if every element of m is 0 or 1.
    - A constant term of zeros and a constant mask that keeps every score have no effect.
    - No kept node reads a removed value, and no removed value is a graph output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import numpy as np
import onnx_ir as ir

from graphopt.graph.build import Builder
from graphopt.graph.editor import Attribute, Editor
from graphopt.graph.operators.dims import keeps_shape
from graphopt.graph.operators.traits import BROADCASTING
from graphopt.graph.shapes.sizes import ONE, ZERO, Size, product
from graphopt.graph.view import FLOATS, GraphView, attribute_int, attribute_ints, is_op, producer_of
from graphopt.metadata import Numerics
from graphopt.ops.schema import Array
from graphopt.passes.attention.batches import FUSED_RANK, merge_batches, merged_perm, merged_shape
from graphopt.passes.attention.match import (
    MAX_PATH,
    Attention,
    Condition,
    ContextPath,
    ScoresView,
    Term,
    is_random,
    is_shape,
    score_dims,
    terms_and_conditions,
)
from graphopt.passes.attention.node import read_attention_node
from graphopt.passes.attention.operands import (
    absorb_operands,
    absorb_result,
    query_and_key,
    score_axes,
    value_and_result,
)
from graphopt.passes.attention.order import apply_steps, drop_zero_terms, find_causal, mask_values_refusal
from graphopt.passes.attention.paths import ScorePath, find_context, find_scores, path_cost, require_last_axis
from graphopt.passes.base import Pass
from graphopt.remarks import Code, Refusal, became
from graphopt.targets.profit import Candidate

MAX_GPU_HEAD = 256  # native/operators/attention/attention/shape.h
# In attention over channels, a head has more than WIDE_HEAD elements, and at least LEAST_RATIO times as many elements
# as the larger of the numbers of queries and keys. On an H200, FusedAttention then takes three times as long as two
# MatMuls and a Softmax.
WIDE_HEAD, LEAST_RATIO = 128, 4


class FuseAttention(Pass[Attention, Attention]):
    """Fuses attention; see the module's docstring.

    Source: A. Vaswani et al., "Attention Is All You Need", 2017; ONNX operator specification (Softmax, MatMul, Einsum).
    """

    name: ClassVar[str] = "fuse_attention"
    equation: ClassVar[str] = "softmax(scale Q K^T + bias, mask) V = FusedAttention(Q, K, V, bias, mask)"
    numerics: ClassVar[Numerics] = Numerics.REASSOCIATED
    anchors: ClassVar[frozenset[tuple[str, str]]] = frozenset({("", "Softmax"), ("", "Attention")})

    def match(self, node: ir.Node, editor: Editor) -> Attention | None:
        """Returns the attention of an Attention node or around a Softmax; None if a Softmax is not between two MatMuls.

        Raises:
            Refusal: the fused node cannot compute the Attention node, or the Softmax and the two MatMuls.
        """
        if node.op_type == "Attention":
            found = absorb_operands(read_attention_node(node, editor), editor)
            return _typed(drop_zero_terms(found if found.packed else absorb_result(found)), editor)
        context_path = find_context(node, editor)
        if context_path is None:
            return None
        paths = sorted(find_scores(node.inputs[0], editor), key=lambda path: path_cost(path, editor))
        if not paths:
            return None
        require_last_axis(node, editor)
        # Either term of a sum of two MatMuls can be the scores; any legal interpretation is correct.
        first: Refusal | None = None
        for path in paths:
            try:
                found = _read(node, path, context_path, editor)
                if len(paths) > 1:
                    self.legal(found, editor)
            except Refusal as refusal:
                first = first or refusal
            else:
                return found
        assert first is not None
        raise first

    def legal(self, match: Attention, editor: Editor) -> Attention:
        match = replace(match, axes=_shape_sources_of_removed_values(match))
        typed = next((v for v in (match.v.value, match.output, match.q.value) if editor.dtype(v) == match.dtype), None)
        editor.require_op(match.variant.name, typed or match.output, match.softmax)
        _require_same_heads(match)
        if editor.target.gpu_kernels:
            _require_head_size(match)
        base = score_dims(match)
        for term in terms_and_conditions(match):
            _require_broadcast(match, term, base)
        for terms in _by_view(match.terms):
            _placement(match, terms, base)
        for conditions in _by_view(match.conditions):
            _placement(match, conditions, base)
        if not math.isfinite(match.scale) or (match.softcap is not None and not math.isfinite(match.softcap)):
            raise Refusal(Code.NOT_FINITE, f"the scale is {match.scale}", match.scores)
        if match.softcap == 0.0:
            raise Refusal(Code.NOT_FINITE, "the soft cap is 0", match.scores)
        merge_batches(match)
        return match

    def candidate(self, plan: Attention, editor: Editor) -> Candidate:
        inputs = (plan.q.value, plan.k.value, plan.v.value)
        no_gain = _small_scores(plan) if editor.target.gpu_kernels else ""
        return editor.candidate(plan.variant.name, inputs, plan.output, plan.softmax, no_gain)

    def rewrite(self, plan: Attention, editor: Editor) -> str:
        _move_shape_readers(plan, editor)
        emission = _Emission(plan, editor)
        made = emission.prepared()
        q, k, v = (made.get(o.value, o.value) for o in (plan.q, plan.k, plan.v))
        perms = [plan.q.perm, plan.k.perm, plan.v.perm, plan.o_perm]
        batches = merge_batches(plan)
        if batches is not None:
            q, k, v = (emission.reshaped(x, shape) for x, shape in zip((q, k, v), batches.operands))
            perms = [merged_perm(perm) for perm in perms]
        inputs = [emission.cast_to_float(q), emission.cast_to_float(k), v]
        if plan.terms:
            inputs.append(emission.combined(plan.terms, emission.scaled_term, "Add", "bias"))
        if plan.conditions:
            inputs.append(emission.combined(plan.conditions, emission.keep_mask, "And", "mask"))
        attributes: dict[str, Attribute] = {
            "scale": plan.scale,
            **dict(zip(("q_perm", "k_perm", "v_perm", "o_perm"), perms)),
        }
        if plan.conditions:
            attributes["mask_value"] = plan.mask_value
        if plan.softcap is not None:
            attributes["softcap"] = plan.softcap
        if plan.window is not None:
            attributes["left"], attributes["right"] = plan.window
        fused = Builder(editor, plan.context).emit(plan.variant.name, inputs, attributes)
        old = [*plan.outer, *plan.inner]
        emission.nodes.append(fused)
        outputs = {p.present: made[p.value] for p in plan.prepared if p.present is not None}
        outputs[plan.output] = fused.outputs[0]
        if plan.packed:
            outputs[plan.output] = emission.merge_heads(fused.outputs[0])
        if batches is not None:
            outputs[plan.output] = emission.reshaped(fused.outputs[0], batches.output)
        editor.replace(old, emission.nodes, outputs, anchor=plan.context)
        return became(len(plan.inner), f"{plan.variant.name}, scale {plan.scale:.6g}")


def _read(softmax: ir.Node, path: ScorePath, context_path: ContextPath, graph: GraphView) -> Attention:
    """Reads the nodes between two MatMuls, along one path, as an attention.

    Raises:
        Refusal: the fused node cannot compute it.
    """
    scores, steps = path
    for step in steps:
        if step.refusal is not None:
            raise mask_values_refusal(steps, graph) or step.refusal
    if context_path.refusal is not None:
        raise context_path.refusal
    q, k = query_and_key(scores, graph)
    v, o_perm = value_and_result(context_path, graph)
    if len(o_perm) != max(len(q.perm), len(k.perm)):
        ranks = f"the scores have rank {max(len(q.perm), len(k.perm))}, and the result has {len(o_perm)}"
        raise Refusal(Code.WRONG_RANK, ranks, scores, context_path.context)
    found = Attention(
        softmax=softmax,
        scores=scores,
        context=context_path.context,
        graph=graph,
        q=q,
        k=k,
        v=v,
        o_perm=o_perm,
        output=context_path.context.outputs[0],
        inner=(scores, *(s.node for s in steps), softmax, *context_path.nodes, context_path.context),
        guard=context_path.guard,
    )
    found = absorb_operands(apply_steps(found, steps, context_path.nodes), graph)
    return _typed(find_causal(drop_zero_terms(absorb_result(found))), graph)


# -- legality ----------------------------------------------------------------------------------------------------------


def _shape_sources_of_removed_values(match: Attention) -> Mapping[ir.Value, Sequence[tuple[ir.Value, int]]]:
    """Returns, for each removed value that a Shape node reads, the values and axes with the same dimensions.

    Raises:
        Refusal: another node reads a removed value, or it is a graph output.
    """
    found = dict(match.axes)
    inner = set(match.inner)
    escaping: list[ir.Value] = []
    for node in match.inner:
        if node.graph is not match.context.graph:
            raise Refusal(Code.ESCAPES, "the nodes of the attention are in more than one graph", node)
        for value in node.outputs:
            if value is match.output or any(value is p.present for p in match.prepared):
                continue
            outside = [use.node for use in value.uses() if use.node not in inner]
            if outside and all(is_shape(n) and n.graph is node.graph for n in outside) and value not in found:
                axes = score_axes(match)
                scores = match.graph.shapes.dims(match.scores.outputs[0])
                if axes is not None and match.graph.shapes.dims(value) == scores:
                    found[value] = axes
            outside = [] if value in found else outside
            if value.is_graph_output() or outside:
                escaping.append(value)
    if not escaping:
        return found
    first = escaping[0]
    if len(escaping) > 1:
        names = ", ".join(str(v.name) for v in escaping)
        raise Refusal(Code.ESCAPES, f"{names} are read elsewhere or graph outputs", *(v.producer() for v in escaping))
    if first.is_graph_output():
        raise Refusal(Code.GRAPH_OUTPUT, f"{first.name} is a graph output", first.producer())
    raise Refusal(Code.OTHER_USES, f"{first.name} is read elsewhere", first.producer())


def _typed(match: Attention, graph: GraphView) -> Attention:
    """Returns the match with the element type of the fused node.

    Raises:
        Refusal: WRONG_DTYPE or MIXED_DTYPE.
    """
    scores = [match.scores.outputs[0], match.q.value, match.k.value]
    rest = [match.context.outputs[0], match.v.value, *(t.value for t in match.terms if t.mask is None)]
    if match.scores is match.context:
        scores, rest = scores[1:], rest[1:]
    first, second = graph.known_types(scores), graph.known_types(rest)
    known = first | second
    if not known:
        raise Refusal(Code.WRONG_DTYPE, "the element type is not known", match.scores)
    widened = first == {ir.DataType.FLOAT16} and second == {ir.DataType.FLOAT} and match.scores is not match.context
    unsupported = not known <= {*FLOATS}
    if unsupported or (len(known) > 1 and not widened):
        code = Code.WRONG_DTYPE if unsupported else Code.MIXED_DTYPE
        raise Refusal(code, f"the operands have types {' and '.join(sorted(d.name for d in known))}", match.scores)
    dtype = next(iter(second or known))
    for cast, node in match.casts:
        if cast not in (ir.DataType.FLOAT, dtype):
            raise Refusal(Code.MIXED_DTYPE, f"the probabilities are cast to {cast.name}", node)
    if match.wide_steps and dtype != ir.DataType.FLOAT:
        raise Refusal(Code.MIXED_DTYPE, "a bias or a mask is float32, and the scores are not", match.wide_steps[0])
    return replace(match, dtype=dtype, widened=widened)


def _require_same_heads(match: Attention) -> None:
    """Requires that the batch axes of Q, K and V are all heads, or all rows.

    A MatMul of Q stacked by head with K stacked by row runs only if there are as many rows as heads. It is probably a
    mistake in the model and is not rewritten.
    """
    kinds: dict[str, str] = {}
    for name, operand in (("Q", match.q), ("K", match.k), ("V", match.v)):
        if len(operand.perm) == 4:
            kind = _origin_of_axis(operand.value, operand.perm[1], match.graph)
            if kind is not None:
                kinds[name] = kind
    named = {name: kind for name, kind in kinds.items() if not kind.startswith("axis")}
    # Q, K and V that are model inputs may have different layouts, so different axes are not a mistake. If axes 1 and 2
    # of K have the same size, the layout cannot be recognised, and different batch axes are treated as a mistake.
    k_dims = match.graph.shapes.dims(match.k.value)
    if not named and len(kinds) == 3 and k_dims is not None and k_dims[1] == k_dims[2]:
        named = kinds
    if len(set(named.values())) > 1:
        detail = ", ".join(f"{name} by {kind}" for name, kind in named.items())
        why = f"Q, K and V are stacked over different axes, and their matrices do not correspond: {detail}"
        raise Refusal(Code.WRONG_PERM, why, match.scores, match.context)


def _require_head_size(match: Attention) -> None:
    """Requires heads of at most `MAX_GPU_HEAD` elements; with larger ones the GPU kernel would fail at run time."""
    for operand in (match.q, match.v):
        dims = match.graph.shapes.dims(operand.value)
        size = dims[operand.perm[-1]] if dims is not None else None
        if size is not None and size.value is not None and size.value > MAX_GPU_HEAD:
            detail = f"a head has {size.value} elements, and the GPU kernel supports at most {MAX_GPU_HEAD}"
            raise Refusal(Code.WRONG_SHAPE, detail, match.scores)


def _small_scores(match: Attention) -> str:
    """Returns why plain attention with few queries and keys for its head size is faster without fusion, or ""."""
    queries, keys = (size.value for size in score_dims(match)[-2:])
    head = match.graph.shapes.dim(match.q.value, match.q.perm[-1]).value
    if queries is None or keys is None or head is None or match.terms or match.conditions:
        return ""
    if match.softmax.op_type != "Softmax":
        return ""  # an Attention node, which would run in the same kernel
    if head <= WIDE_HEAD or head < LEAST_RATIO * max(queries, keys):
        return ""
    return f"{queries} queries and {keys} keys are few for heads of {head} elements"


def _origin_of_axis(value: ir.Value | None, axis: int, graph: GraphView) -> str | None:
    """Follows a batch axis to its source.

    Returns "row" or "head" if it is axis 1 or 2 of a Reshape from [B, S, heads * D] to [B, S, heads, D], "axis N" if it
    is axis N of a value that has no producer and is not constant, or None if unknown.
    """
    found: str | None = None
    pending = [(value, axis, MAX_PATH)]
    # (value, axis) -> the largest remaining budget of a visit. It prevents an exponential number of visits.
    followed: dict[tuple[ir.Value, int], int] = {}
    while pending:
        value, axis, budget = pending.pop()
        if value is None or graph.shapes.rank(value) != 4 or followed.get((value, axis), 0) >= budget:
            continue
        followed[value, axis] = budget
        node = value.producer()
        if node is None:
            found = found or (None if graph.is_constant(value) else f"axis {axis}")
            continue
        x = node.inputs[0] if node.inputs else None
        if is_op(node, "Transpose"):
            pending.append((x, attribute_ints(node, "perm", (3, 2, 1, 0))[axis], budget - 1))
        elif is_op(node, "Reshape"):
            before, after = graph.shapes.dims(x), graph.shapes.reshaped(node)
            splits = before is not None and after is not None and len(before) == 3 and after[:2] == before[:2]
            if splits and axis in (1, 2):
                return "row" if axis == 1 else "head"
        elif node.domain == "" and (node.op_type in BROADCASTING or node.op_type == "Concat"):
            pending += [(source, axis, budget - 1) for source in reversed(node.inputs)]
        elif keeps_shape(node) or is_op(node, "Slice", "Split"):
            pending.append((x, axis, budget - 1))
    return found


def _require_broadcast(match: Attention, term: Term | Condition, base: Sequence[Size]) -> None:
    """Requires that a term or condition does not broadcast the scores to a larger shape."""
    value, node = term.value, term.node
    if is_random(value):
        raise Refusal(Code.NON_DETERMINISTIC, f"{value.name} is random", node)
    scores = base if term.view is None else term.view.dims
    dims = match.graph.shapes.dims(value)
    if dims is None:
        raise Refusal(Code.UNKNOWN_RANK, f"the rank of {value.name} is not known", node)
    if len(dims) > len(scores):
        raise Refusal(
            Code.BROADCAST_GROWS, f"{value.name} has rank {len(dims)}, and the scores have {len(scores)}", node
        )
    for size, score in zip(reversed(dims), reversed(scores)):
        if size in (ONE, score):
            continue
        if size.value is not None or score.value == 1:
            raise Refusal(Code.BROADCAST_GROWS, f"{value.name} may make the scores larger", node)


# -- terms and conditions of reshaped scores --------------------------------------------------------------------------

TermT = TypeVar("TermT", Term, Condition)


def _by_view(terms: Sequence[TermT]) -> list[list[TermT]]:
    """Groups terms or conditions by view, in the order of their first use."""
    groups: dict[ScoresView | None, list[TermT]] = {}
    for term in terms:
        groups.setdefault(term.view, []).append(term)
    return list(groups.values())


@dataclass(frozen=True)
class _Placement:
    """The Expand, if needed, and the Reshape that give the combined terms of one view the shape of the scores.

    Attributes:
        expands: whether an Expand is needed.
        expand: the target shape of the Expand, without -1. None: that of the Reshape that creates the view.
        reshape: the target shape of the Reshape, with at most one -1. None: that of the model's Reshape that restores
            the shape of the scores.
    """

    expands: bool
    expand: tuple[int, ...] | None
    reshape: tuple[int, ...] | None


def _placement(match: Attention, group: Sequence[Term | Condition], base: Sequence[Size]) -> _Placement | None:
    """Returns the placement of a group; None if its terms have the shape of the scores, without a view.

    Raises:
        Refusal: UNKNOWN_SHAPE.
    """
    view = group[0].view
    if view is None:
        return None
    unknown = Refusal(Code.UNKNOWN_SHAPE, "the scores are reshaped, and the new shape is not known", view.reshape)
    pairs = _align(base, view.dims)
    if pairs is None:
        raise unknown
    own = [ONE] * len(view.dims)
    for term in group:
        dims = match.graph.shapes.dims(term.value) or ()
        for i in range(1, len(dims) + 1):
            if dims[-i] != ONE:
                own[-i] = dims[-i]
    expand: list[Size] = []
    reshape: list[Size] = []
    for at_base, at_view in pairs:
        sizes, full = own[at_view], list(view.dims[at_view])
        if all(size == ONE for size in sizes):
            expand += sizes
            reshape += [ONE] * len(base[at_base])
        else:
            # An axis that must grow gets its full size. All other axes get 1, with which Expand keeps the value's size.
            expand += [ONE if size == whole else whole for size, whole in zip(sizes, full)]
            reshape += base[at_base]
    expands = any(size != ONE for size in expand)
    numbers = tuple(size.value if size.value is not None else -1 for size in expand)
    back = tuple(size.value if size.value is not None else -1 for size in reshape)
    use_view = expands and -1 in numbers
    if use_view:
        target = match.graph.shapes.elements(view.reshape.inputs[1])
        if target is None or any(e in (ZERO, Size.of(-1)) for e in target.items.flat):
            raise unknown
    use_restoring = use_view or (back.count(-1) > 1 and reshape == list(base))
    if view not in match.restoring_reshapes if use_restoring else back.count(-1) > 1:
        raise unknown
    return _Placement(expands, None if use_view else numbers, None if use_restoring else back)


def _align(a: Sequence[Size], b: Sequence[Size]) -> list[tuple[slice, slice]] | None:
    """Splits two shapes of one tensor into the shortest axis ranges with provably equal products, or returns None."""
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
    """Makes Shape nodes of removed values read the operands of the fused node instead."""
    for value in match.axes:
        for node in list(dict.fromkeys(use.node for use in value.uses())):
            if not is_shape(node) or node.graph is None:
                continue
            axes = match.axes[value]
            start, end = attribute_int(node, "start", 0), attribute_int(node, "end", len(axes))
            wanted = [_trace(match, source) for source in axes[start:end]]
            sources = list(dict.fromkeys(v for v, _ in wanted))
            offsets = dict(zip(sources, np.cumsum([0, *(match.graph.shapes.rank(v) or 0 for v in sources)]).tolist()))
            label = node.name or "shape"
            b = Builder(editor, node, label)
            shapes = [b.op("Shape", v, _hint=label) for v in sources]
            every = shapes[0] if len(shapes) == 1 else b.op("Concat", *shapes, axis=0, _hint=label)
            index = np.asarray([offsets[v] + axis for v, axis in wanted], np.int64)
            y = b.op("Gather", every, b.initializer(index, "/axes"), axis=0, _hint=label)
            editor.replace([node], b.nodes, {node.outputs[0]: y}, anchor=node)


def _trace(match: Attention, source: tuple[ir.Value, int]) -> tuple[ir.Value, int]:
    """Follows an axis through removed values to a kept one."""
    value, axis = source
    while value in match.axes:
        value, axis = match.axes[value][axis]
    return value, axis


class _Emission(Builder):
    """Creates the nodes around the fused node."""

    def __init__(self, match: Attention, editor: Editor) -> None:
        super().__init__(editor, match.context, match.softmax.name or match.softmax.outputs[0].name)
        self.match = match
        self.base = score_dims(match)

    def node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value],
        hint: str,
        dtype: ir.DataType | None = None,
        **attributes: Any,
    ) -> ir.Value:
        """Adds a node. By default its output has the element type of the first input."""
        dtype = dtype or self.editor.dtype(inputs[0])
        return self.op(op_type, *inputs, _hint=f"{self.label}/{hint}", _dtype=dtype, **attributes)

    def constant(self, array: Array, hint: str) -> ir.Value:
        return self.initializer(array, f"/{hint}")

    def prepared(self) -> dict[ir.Value, ir.Value]:
        """Creates the prepared operands of an Attention node; returns placeholder -> created value."""
        made: dict[ir.Value, ir.Value] = {}
        for operand in self.match.prepared:
            value = operand.source
            if operand.heads is not None:
                size = self._dim(operand.value, 3)
                value = self.node("Reshape", [value, self._target((0, 0, operand.heads, size))], "heads")
            if operand.past is not None:
                if operand.heads is not None:
                    value = self.node("Transpose", [value], "heads_first", perm=(0, 2, 1, 3))
                value = self.node("Concat", [operand.past, value], "present", axis=2)
            made[operand.value] = value
        return made

    def merge_heads(self, value: ir.Value) -> ir.Value:
        """Reshapes [B, S, heads, Dv] to [B, S, heads * Dv]."""
        heads, size = self._dim(self.match.q.value, self.match.q.perm[1]), self._dim(self.match.v.value, 3)
        shape = self._target((0, 0, heads * size if size > 0 else -1))
        return self.op("Reshape", value, shape, _hint=f"{self.label}/packed")

    def _dim(self, value: ir.Value, axis: int) -> int:
        """Returns a dimension for the target shape of a Reshape; -1 if it is unknown."""
        size = self.match.graph.shapes.dim(value, axis).value
        return -1 if size is None else size

    def cast_to_float(self, value: ir.Value) -> ir.Value:
        if not self.match.widened:
            return value
        return self.node("Cast", [value], "float", ir.DataType.FLOAT, to=int(ir.DataType.FLOAT))

    def combined(self, terms: Sequence[TermT], make: Callable[[TermT], ir.Value], op: str, hint: str) -> ir.Value:
        """Combines all terms or conditions into one value by `op`; combines those of one view first."""
        total: ir.Value | None = None
        for group in _by_view(terms):
            part = self._merge_batch_axes(group[0], make(group[0]))
            for term in group[1:]:
                part = self.node(op, [part, self._merge_batch_axes(term, make(term))], hint)
            part = self._as_scores(part, group, hint)
            total = part if total is None else self.node(op, [total, part], hint)
        assert total is not None
        return total

    def scaled_term(self, term: Term) -> ir.Value:
        if term.mask is not None:
            hides, keeps = term.mask
            zero, hidden = (
                self.constant(np.asarray(n, self.match.dtype.numpy()), "masked") for n in (0.0, hides * term.factor)
            )
            pair = (zero, hidden) if keeps else (hidden, zero)
            return self.node("Where", [self._boolean(term), *pair], "bias", self.match.dtype)
        if term.factor == 1.0:
            return term.value
        if term.factor == -1.0:
            return self.node("Neg", [term.value], "bias")
        factor = self.constant(np.asarray(term.factor, self.match.dtype.numpy()), "factor")
        return self.node("Mul", [term.value, factor], "bias")

    def _boolean(self, term: Term | Condition) -> ir.Value:
        if not term.numeric:
            return term.value
        stored = self.editor.constant(term.value)
        if stored is not None:
            return self.constant(stored != 0, "mask")
        return self.node("Cast", [term.value], "mask", ir.DataType.BOOL, to=int(ir.DataType.BOOL))

    def keep_mask(self, condition: Condition) -> ir.Value:
        """Returns a condition as a boolean that is true where a score is kept."""
        value = self._boolean(condition)
        if condition.keeps:
            return value
        negated = producer_of(value, "Not")
        source = None if negated is None else negated.inputs[0]
        return source if source is not None else self.node("Not", [value], "mask")

    def _as_scores(self, value: ir.Value, group: Sequence[Term | Condition], hint: str) -> ir.Value:
        plan = _placement(self.match, group, self.base)
        view = group[0].view
        if plan is None or view is None:
            return value
        if plan.expands:
            shape = view.reshape.inputs[1] if plan.expand is None else self._target(plan.expand)
            assert shape is not None
            value = self.node("Expand", [value, shape], hint)
        restoring = self.match.restoring_reshapes
        shape = self._target(plan.reshape) if plan.reshape is not None else restoring[view].inputs[1]
        assert shape is not None
        return self.node("Reshape", [value, shape], hint)

    def _merge_batch_axes(self, term: Term | Condition, value: ir.Value) -> ir.Value:
        """Merges the batch axes of a bias or mask of an attention of rank 5."""
        shape = merged_shape(self.match, term) if len(self.base) > FUSED_RANK else None
        return value if shape is None else self.reshaped(value, shape)

    def reshaped(self, value: ir.Value, shape: Sequence[int]) -> ir.Value:
        return self.op("Reshape", value, self._target(shape), _hint=f"{self.label}/batches")

    def _target(self, sizes: Sequence[int]) -> ir.Value:
        return self.constant(np.asarray(sizes, np.int64), "shape")
