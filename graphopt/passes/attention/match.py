"""A matched attention softmax(...) V: its operands, additive terms and masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from graphopt.graph.operators.traits import RANDOM
from graphopt.graph.shapes.sizes import ONE, Size
from graphopt.graph.view import GraphView, is_op, producer_of
from graphopt.ops.fused_attention import Variant
from graphopt.remarks import Code, Refusal

# The largest number of nodes on a path. Real models have at most a dozen nodes between the two MatMuls.
MAX_PATH = 24


@dataclass(frozen=True)
class Operand:
    """An operand of the fused node: transpose(value, perm)."""

    value: ir.Value
    perm: tuple[int, ...]


@dataclass(frozen=True)
class Prepared:
    """An operand that the rewrite creates from an input of an Attention node; until then `value` is a placeholder.

    Packed heads are split: [B, S, heads * D] becomes [B, S, heads, D]. With a cache the result is [B, heads, P + S, D]:
    heads before rows, and cached rows before new rows.

    Attributes:
        value: the placeholder.
        source: the node's input.
        heads: the number of heads packed into the last dimension, or None.
        past: the cache, [B, heads, P, D], or None.
        present: the node's output with the cached and the new rows, or None.
    """

    value: ir.Value
    source: ir.Value
    heads: int | None
    past: ir.Value | None
    present: ir.Value | None


@dataclass(frozen=True)
class ScoresView:
    """A reshaped view of the scores, created by the Reshape `reshape` between the scores and the probabilities."""

    dims: tuple[Size, ...]
    reshape: ir.Node


@dataclass(frozen=True)
class Term:
    """An additive term, factor * value, that `node` adds to the scores in the shape of `view` (None: their own shape).

    With `mask` = (c, keeps) the value is boolean, and the term is where(value, 0, c) if `keeps`, otherwise
    where(value, c, 0). For `numeric` see `Condition`.
    """

    value: ir.Value
    node: ir.Node
    view: ScoresView | None = None
    factor: float = 1.0
    mask: tuple[float, bool] | None = None
    numeric: bool = False


@dataclass(frozen=True)
class Condition:
    """A boolean mask that `node` applies to the scores; true keeps a score if `keeps` is set, and hides it otherwise.

    With `numeric` the value is not boolean, and every element is 0 or 1.
    """

    value: ir.Value
    node: ir.Node
    view: ScoresView | None = None
    keeps: bool = True
    numeric: bool = False


@dataclass(frozen=True)
class ContextPath:
    """The path from the softmax to the MatMul that produces the context.

    Attributes:
        nodes: the nodes between the two.
        context: the MatMul.
        index: the index of the probabilities among its operands.
        swapped: whether the probabilities are transposed.
        guard: whether the path replaces NaN by 0.
        refusal: why the path cannot be fused.
    """

    nodes: tuple[ir.Node, ...]
    context: ir.Node
    index: int
    swapped: bool = False
    guard: bool = False
    refusal: Refusal | None = None


@dataclass(frozen=True)
class Attention:
    """One attention. Each step of the matching returns a copy with more fields set."""

    # The Softmax, and the MatMuls that produce the scores and the context. An Attention node is all three.
    softmax: ir.Node
    scores: ir.Node
    context: ir.Node
    graph: GraphView
    q: Operand
    k: Operand
    v: Operand
    o_perm: tuple[int, ...]
    output: ir.Value
    # Nodes that are always removed; other nodes may read none of their outputs except `output`.
    inner: tuple[ir.Node, ...]
    # Nodes that are removed if no other node reads them.
    outer: tuple[ir.Node, ...] = ()
    scale: float = 1.0
    softcap: float | None = None
    terms: tuple[Term, ...] = ()
    conditions: tuple[Condition, ...] = ()
    mask_value: float = 0.0
    # View -> the model's Reshape that restores the shape of the scores, if there is one.
    restoring_reshapes: Mapping[ScoresView, ir.Node] = field(default_factory=dict)
    causal: bool = False
    # The number of keys that a query sees before and after its own position.
    window: tuple[int, int] | None = None
    guard: bool = False
    gqa: bool = False
    # Q and K are float16, and all other operands are float32. The rewrite casts Q and K to float32.
    widened: bool = False
    dtype: ir.DataType = ir.DataType.FLOAT
    # Removed value -> for each of its axes, an equal axis of another value. Shape nodes read these axes instead.
    axes: Mapping[ir.Value, Sequence[tuple[ir.Value, int]]] = field(default_factory=dict)
    # Casts of the probabilities, and their target types.
    casts: tuple[tuple[ir.DataType, ir.Node], ...] = ()
    # Nodes that add a term or a mask after a Cast to float32.
    wide_steps: tuple[ir.Node, ...] = ()
    # For an Attention node: the operands to create, and whether the heads of the result are packed.
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
    """Returns the readers of a value, once for each use, without Shape nodes: these can read another value instead."""
    return [use.node for use in value.uses() if not is_shape(use.node)]


def is_shape(node: ir.Node) -> bool:
    return is_op(node, "Shape")


def sole_data_reader(value: ir.Value) -> ir.Node | None:
    """Returns the only reader of a value's data; None if there are several or the value is a graph output."""
    readers = data_readers(value)
    return readers[0] if len(readers) == 1 and not value.is_graph_output() else None


def is_random(value: ir.Value | None) -> bool:
    return producer_of(value, *RANDOM) is not None


def same_dims(a: Sequence[Size], b: Sequence[Size]) -> bool:
    """Returns whether two shapes of one tensor agree. One pair of sizes may differ: the other sizes determine it."""
    return len(a) == len(b) and sum(x != y for x, y in zip(a, b)) <= 1


def identity_perm(rank: int) -> tuple[int, ...]:
    return tuple(range(rank))


def require_rank(value: ir.Value | None, graph: GraphView, node: ir.Node) -> int:
    rank = graph.shapes.rank(value)
    if rank is None:
        raise Refusal(Code.UNKNOWN_RANK, f"the rank of {value.name if value else '?'} is not known", node)
    return rank


def score_dims(match: Attention) -> tuple[Size, ...]:
    """Returns the dimensions of the scores, computed from Q and K."""
    shapes = match.graph.shapes
    q = [shapes.dim(match.q.value, axis) for axis in match.q.perm]
    k = [shapes.dim(match.k.value, axis) for axis in match.k.perm]
    batch = max(len(q), len(k)) - 2
    sizes: list[Size] = []
    for i in range(-batch - 2, -2):
        sizes_of_axis = [t[i] for t in (q, k) if -i <= len(t)]
        # The size of Q if heads are grouped; otherwise the result of broadcasting.
        sizes.append(sizes_of_axis[0] if sizes_of_axis[0] != ONE or match.gqa else sizes_of_axis[-1])
    return (*sizes, q[-2], k[-1])


def terms_and_conditions(match: Attention) -> tuple[Term | Condition, ...]:
    return (*match.terms, *match.conditions)
