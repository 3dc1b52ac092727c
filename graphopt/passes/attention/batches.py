"""Attention of rank 5: the rewrite merges the first two axes, because operands of the fused node have at most four."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphopt.graph.shapes.sizes import ONE, Size
from graphopt.passes.attention.match import Attention, Condition, Operand, Term, score_dims, terms_and_conditions
from graphopt.remarks import Code, Refusal

# The largest rank of the fused node's operands, and the rank of an attention with one more batch axis.
FUSED_RANK, MERGED_RANK = 4, 5


@dataclass(frozen=True)
class MergedBatches:
    """The target shapes of the Reshapes around the fused node.

    Attributes:
        operands: the merged shapes of Q, K and V.
        output: the shape of the result with both batch axes.
    """

    operands: tuple[tuple[int, ...], ...]
    output: tuple[int, ...]


def merged_perm(perm: Sequence[int]) -> tuple[int, ...]:
    """Returns the perm after the first two axes are merged into axis 0."""
    return (0, *(axis - 1 for axis in perm[2:]))


def merge_batches(match: Attention) -> MergedBatches | None:
    """Returns the shapes for the Reshapes around the fused node; None if the attention has at most four axes.

    Raises:
        Refusal: the batch axes are not the first two or differ between operands, those of a bias or mask cannot be
            merged, or more than one dimension is not known.
    """
    if len(match.o_perm) < MERGED_RANK:
        return None
    operands = (match.q, match.k, match.v)
    node = match.scores
    if any(perm[:2] != (0, 1) for perm in (match.o_perm, *(o.perm for o in operands))):
        raise Refusal(Code.WRONG_PERM, "in an attention of rank 5 the batch axes must be the first two axes", node)
    dims = [_dims(match, operand) for operand in operands]
    if any(len(d) != MERGED_RANK or d[:2] != dims[0][:2] for d in dims):
        raise Refusal(Code.WRONG_SHAPE, "in an attention of rank 5 the batch axes of Q, K and V must be equal", node)
    for term in terms_and_conditions(match):
        merged_shape(match, term)
    heads = [d[o.perm[2]] for d, o in zip(dims, operands)]
    result = [
        *dims[0][:2],
        next((h for h in heads if h != ONE), ONE),
        dims[0][match.q.perm[3]],
        dims[2][match.v.perm[4]],
    ]
    output = tuple(_target_size(result[axis]) for axis in match.o_perm)
    shapes = tuple((-1, *(_target_size(size) for size in d[2:])) for d in dims)
    if any(shape.count(-1) > 1 for shape in (output, *shapes)):
        raise Refusal(Code.UNKNOWN_SHAPE, "more than one dimension of an attention of rank 5 is not known", node)
    return MergedBatches(shapes, output)


def merged_shape(match: Attention, term: Term | Condition) -> tuple[int, ...] | None:
    """Returns the shape of a bias or mask with merged batch axes; None if it has no batch axes.

    Raises:
        Refusal: the term broadcasts along one of the two axes only, belongs to reshaped scores, or has an unknown
            shape.
    """
    name, node = term.value.name, term.node
    dims = match.graph.shapes.dims(term.value)
    if term.view is not None or dims is None:
        raise Refusal(Code.UNKNOWN_SHAPE, f"{name} belongs to reshaped scores of rank 5", node)
    batches, sizes = dims[:-3], [_target_size(size) for size in dims[-3:]]
    if not batches:
        return None
    if all(size == ONE for size in batches):
        shape = tuple(sizes)
    elif (ONE, *batches)[-2:] == score_dims(match)[:2]:
        shape = (-1, *sizes)
    else:
        raise Refusal(Code.WRONG_SHAPE, f"{name} broadcasts along one of the two batch axes", node)
    if shape.count(-1) > 1:
        raise Refusal(Code.UNKNOWN_SHAPE, f"more than one dimension of {name} is not known", node)
    return shape


def _dims(match: Attention, operand: Operand) -> tuple[Size, ...]:
    dims = match.graph.shapes.dims(operand.value)
    if dims is None:
        raise Refusal(Code.UNKNOWN_SHAPE, f"the shape of {operand.value.name} is not known", match.scores)
    return tuple(dims)


def _target_size(size: Size) -> int:
    return -1 if size.value is None else size.value
