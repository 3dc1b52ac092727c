"""What the attention fusion finds: operands, steps, terms and masks of one softmax(...) V."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from graphopt.graph.operators.traits import RANDOM
from graphopt.graph.shapes.sizes import ONE, Size
from graphopt.graph.view import GraphView, is_op, made_by
from graphopt.ops.fused_attention import Variant
from graphopt.remarks import Code, Refusal

# Between the two products of a real attention stand at most a dozen nodes.
MAX_PATH = 24


@dataclass(frozen=True)
class Operand:
    """transpose(value, perm) is what the fused node works on."""

    value: ir.Value
    perm: tuple[int, ...]


@dataclass(frozen=True)
class Prepared:
    """An operand that the rewrite makes from an input of an Attention node; `value` stands for it until then.

    Packed heads are split off: [B, S, heads * D] is seen as [B, S, heads, D]. With a cache the heads come first and
    the cached rows before the new ones: [B, heads, P + S, D].

    Attributes:
        value: what the match refers to.
        source: the node's input.
        heads: how many are packed into the last dimension, or None.
        past: the cache, [B, heads, P, D], or None.
        present: the node's output that gives the rows of both, or None.
    """

    value: ir.Value
    source: ir.Value
    heads: int | None
    past: ir.Value | None
    present: ir.Value | None


@dataclass(frozen=True)
class ScoresView:
    """The scores under another shape: what a Reshape, `there`, between the scores and the probabilities makes."""

    dims: tuple[Size, ...]
    there: ir.Node


@dataclass(frozen=True)
class Term:
    """An additive term: factor * value, joined where the scores are seen as `view` (None: as they are).

    With `mask` = (c, keeps), value is boolean and the term is where(value, 0, c), or where(value, c, 0) unless `keeps`;
    `numbers` as for a condition.
    """

    value: ir.Value
    node: ir.Node
    view: ScoresView | None = None
    factor: float = 1.0
    mask: tuple[float, bool] | None = None
    numbers: bool = False


@dataclass(frozen=True)
class Condition:
    """A boolean mask; `keeps` says whether true keeps the score or hides it.

    With `numbers` it is of another type, and holds 0 and 1 alone.
    """

    value: ir.Value
    node: ir.Node
    view: ScoresView | None = None
    keeps: bool = True
    numbers: bool = False


@dataclass(frozen=True)
class ContextPath:
    """The way from the softmax to the context product."""

    nodes: tuple[ir.Node, ...]
    context: ir.Node
    # Which operand of the context product the probabilities are, and whether they come transposed.
    index: int
    swapped: bool = False
    guard: bool = False
    refusal: Refusal | None = None


@dataclass(frozen=True)
class Attention:
    """One attention, as far as it has been read: each part of the reading returns it with what it has found."""

    softmax: ir.Node
    scores: ir.Node
    context: ir.Node
    graph: GraphView
    q: Operand
    k: Operand
    v: Operand
    o_perm: tuple[int, ...]
    output: ir.Value
    # Removed with the fused node's making; none of their outputs but `output` may be read elsewhere.
    inner: tuple[ir.Node, ...]
    # Removed when nobody else reads them.
    outer: tuple[ir.Node, ...] = ()
    scale: float = 1.0
    softcap: float | None = None
    terms: tuple[Term, ...] = ()
    conditions: tuple[Condition, ...] = ()
    mask_value: float = 0.0
    # The Reshape that ends a view, where one does.
    back: Mapping[ScoresView, ir.Node] = field(default_factory=dict)
    causal: bool = False
    # How many keys before and behind its own place a query sees.
    window: tuple[int, int] | None = None
    guard: bool = False
    gqa: bool = False
    # Scores in float16, the rest in float32: Q and K are cast, and the node works in float32.
    widened: bool = False
    dtype: ir.DataType = ir.DataType.FLOAT
    # Where each dimension of a value that goes can be read instead, for the Shape nodes that read it.
    axes: Mapping[ir.Value, Sequence[tuple[ir.Value, int]]] = field(default_factory=dict)
    # The types to which the probabilities are cast on their way.
    casts: tuple[tuple[ir.DataType, ir.Node], ...] = ()
    # What joins after a cast to float32.
    wide_steps: tuple[ir.Node, ...] = ()
    # For an Attention node: the operands to make, and whether the heads of the result are packed again.
    prepared: tuple[Prepared, ...] = ()
    packed: bool = False

    @property
    def variant(self) -> Variant:
        return Variant(
            bias=bool(self.terms),
            mask=bool(self.conditions),
            causal=self.causal,
            gqa=self.gqa,
            guard=self.guard,
            softcap=self.softcap is not None,
            window=self.window is not None,
        )


def data_readers(value: ir.Value) -> list[ir.Node]:
    """The nodes that read a value, once for each use; those that only ask for its shape can ask elsewhere."""
    return [use.node for use in value.uses() if not is_shape(use.node)]


def is_shape(node: ir.Node) -> bool:
    return is_op(node, "Shape")


def sole_data_reader(value: ir.Value) -> ir.Node | None:
    """The only node that reads a value's data, if there is one and the value is no graph output."""
    readers = data_readers(value)
    return readers[0] if len(readers) == 1 and not value.is_graph_output() else None


def is_random(value: ir.Value | None) -> bool:
    return made_by(value, *RANDOM) is not None


def same_dims(a: Sequence[Size], b: Sequence[Size]) -> bool:
    """Whether two shapes of the same tensor are the same: one dimension that is not known follows from the others."""
    return len(a) == len(b) and sum(x != y for x, y in zip(a, b)) <= 1


def identity_perm(rank: int) -> tuple[int, ...]:
    return tuple(range(rank))


def require_rank(value: ir.Value | None, graph: GraphView, node: ir.Node) -> int:
    rank = graph.shapes.rank(value)
    if rank is None:
        raise Refusal(Code.UNKNOWN_RANK, f"the rank of {value.name if value else '?'} is not known", node)
    return rank


def score_dims(match: Attention) -> tuple[Size, ...]:
    """The dimensions of the scores, from Q and K."""
    shapes = match.graph.shapes
    q = [shapes.dim(match.q.value, axis) for axis in match.q.perm]
    k = [shapes.dim(match.k.value, axis) for axis in match.k.perm]
    batch = max(len(q), len(k)) - 2
    sizes: list[Size] = []
    for i in range(-batch - 2, -2):
        pair = [t[i] for t in (q, k) if -i <= len(t)]
        # With grouped heads those of Q count; otherwise the larger of two that broadcast.
        sizes.append(pair[0] if pair[0] != ONE or match.gqa else pair[-1])
    return (*sizes, q[-2], k[-1])


def joined_values(match: Attention) -> tuple[Term | Condition, ...]:
    return (*match.terms, *match.conditions)
