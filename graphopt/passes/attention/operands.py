"""Reads the axes of the operands and the result of an attention, and fuses nodes around them.

MatMuls are read in Einsum notation, so a layout is a permutation of axes, and permutations compose. The fused node
includes Transposes, scalar factors and repetitions of key/value heads of the operands, and Transposes of the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from graphopt.graph.shapes.sizes import ONE, Size
from graphopt.graph.view import GraphView, attribute_ints, attribute_string, is_op, is_read_once, producer_of, use_count
from graphopt.passes.attention.batches import MERGED_RANK
from graphopt.passes.attention.match import (
    Attention,
    ContextPath,
    Operand,
    identity_perm,
    require_rank,
    same_dims,
    sole_data_reader,
)
from graphopt.remarks import Code, Refusal


def _einsum_axes(node: ir.Node, graph: GraphView) -> tuple[str, str, str]:
    """Returns the axes of both operands and of the result of a MatMul or Einsum, in Einsum notation.

    Raises:
        Refusal: UNKNOWN_RANK, WRONG_RANK, or UNSUPPORTED_OP for an Einsum that is not a plain matrix multiplication.
    """
    if len(node.inputs) != 2:
        raise Refusal(Code.UNSUPPORTED_OP, f"{node.op_type} has {len(node.inputs)} operands", node)
    if node.op_type == "Einsum":
        equation = attribute_string(node, "equation", "").replace(" ", "")
        left, arrow, out = equation.partition("->")
        a, comma, b = left.partition(",")
        plain = arrow and comma and all(len(set(t)) == len(t) and t.isalpha() for t in (a, b, out))
        if not plain:
            raise Refusal(Code.UNSUPPORTED_OP, f"Einsum '{equation}' is not a plain matrix multiplication", node)
        return a, b, out
    rank_a, rank_b = require_rank(node.inputs[0], graph, node), require_rank(node.inputs[1], graph, node)
    if not 2 <= min(rank_a, rank_b) <= max(rank_a, rank_b) <= MERGED_RANK:
        raise Refusal(Code.WRONG_RANK, f"the operands have ranks {rank_a} and {rank_b}", node)
    batch = "abh"[MERGED_RANK - max(rank_a, rank_b) :]
    return batch[len(batch) - rank_a + 2 :] + "ik", batch[len(batch) - rank_b + 2 :] + "kj", batch + "ij"


def _operand(value: ir.Value | None, axes: str, batch: str, matrix: str, node: ir.Node) -> Operand:
    """Returns the operand as a stack of matrices with the axes `matrix`; its other axes must be the last of `batch`."""
    own = "".join(c for c in batch if c in axes)
    if set(axes) != set(own + matrix) or not batch.endswith(own) or value is None or len(axes) > MERGED_RANK:
        raise Refusal(Code.UNSUPPORTED_OP, f"an operand has the axes {axes} and not {batch + matrix}", node)
    return Operand(value, tuple(axes.index(c) for c in own + matrix))


def query_and_key(node: ir.Node, graph: GraphView) -> tuple[Operand, Operand]:
    """Returns Q as [.., i, k] and K as [.., k, j] of the MatMul that produces the scores [.., i, j]."""
    a, b, out = _einsum_axes(node, graph)
    batch, i, j = out[:-2], out[-2:-1], out[-1:]
    first = 0 if i in a and j in b else 1
    q, k = (a, b) if first == 0 else (b, a)
    summed = [c for c in q if c in k and c not in out]
    if i not in q or j not in k or i in k or j in q or len(summed) != 1:
        raise Refusal(Code.UNSUPPORTED_OP, f"the scores are computed as {a},{b}->{out}", node)
    c = summed[0]
    return (
        _operand(node.inputs[first], q, batch, i + c, node),
        _operand(node.inputs[1 - first], k, batch, c + j, node),
    )


def value_and_result(context_path: ContextPath, graph: GraphView) -> tuple[Operand, tuple[int, ...]]:
    """Returns V as [.., T, Dv], and the perm from [.., S, Dv] to the result of the context MatMul."""
    node = context_path.context
    a, b, out = _einsum_axes(node, graph)
    p, v = (a, b) if context_path.index == 0 else (b, a)
    if context_path.swapped:
        p = p[:-2] + p[-1] + p[-2]
    batch, i, t = p[:-2], p[-2:-1], p[-1:]
    d = "".join(c for c in v if c not in p)
    result = batch + i + d
    if len(d) != 1 or i in v or t not in v or set(result) != set(out) or len(out) > MERGED_RANK:
        raise Refusal(
            Code.WRONG_PERM, f"the context is computed as {a},{b}->{out} and not as a sum over the keys", node
        )
    operand = _operand(node.inputs[1 - context_path.index], v, batch, t + d, node)
    return operand, tuple(result.index(c) for c in out)


def _swap_last(perm: tuple[int, ...]) -> tuple[int, ...]:
    return (*perm[:-2], perm[-1], perm[-2])


def absorb_operands(found: Attention, graph: GraphView) -> Attention:
    """Fuses Transposes, scalar factors and repeated heads of Q, K and V."""
    absorbed = _Absorbed(found, graph)
    q = absorbed.absorb(found.q, scaled=True)
    k = absorbed.absorb(found.k, scaled=True)
    v = absorbed.absorb(found.v, scaled=False)
    groups = _before_repeating(q, k, v, found.graph)
    if groups is not None:
        k, v, nodes = groups
        absorbed.nodes += nodes
        k, v = absorbed.absorb(k, scaled=True), absorbed.absorb(v, scaled=False)
    gqa = found.gqa or groups is not None
    outer = tuple(absorbed.nodes)
    return replace(found, q=q, k=k, v=v, gqa=gqa, scale=absorbed.scale, axes=absorbed.axes, outer=outer)


def _before_repeating(
    q: Operand, k: Operand, v: Operand, graph: GraphView
) -> tuple[Operand, Operand, tuple[ir.Node, ...]] | None:
    """Returns K and V before the nodes that repeat their heads for groups of query heads, and these nodes, or None."""
    if {len(q.perm), len(k.perm), len(v.perm)} != {4}:
        return None
    k_perm = k.perm
    keys, values = _match_repeat_and_reshape(k.value, graph), _match_repeat_and_reshape(v.value, graph)
    if keys is None and (flat := _flat_transpose(k.value, graph)) is not None:
        keys = _match_repeat(flat.value, flat.dims, flat.nodes, graph)
        k_perm = tuple((0, 1, 3, 2)[p] for p in k_perm)
    if keys is None or values is None or keys.groups != values.groups:
        return None
    if k_perm[1] != keys.axis or v.perm[1] != values.axis:
        return None
    return Operand(keys.value, k_perm), Operand(values.value, v.perm), (*keys.nodes, *values.nodes)


@dataclass(frozen=True)
class _Repeat:
    """`value` with each slice along `axis` repeated `groups` times; the copies are adjacent."""

    value: ir.Value
    axis: int
    groups: Size
    nodes: tuple[ir.Node, ...]


def _match_repeat_and_reshape(value: ir.Value, graph: GraphView) -> _Repeat | None:
    """Matches Reshape(Expand or Tile(Unsqueeze(x, axis + 1))) as a repetition, or returns None."""
    merge = producer_of(value, "Reshape")
    if merge is None or not is_read_once(value):
        return None
    merged = graph.shapes.reshaped(merge)
    return None if merged is None else _match_repeat(merge.inputs[0], merged, (merge,), graph)


def _match_repeat(
    wide: ir.Value | None, merged: Sequence[Size], following: tuple[ir.Node, ...], graph: GraphView
) -> _Repeat | None:
    """Returns the repetition if `wide` is an Expand or Tile along a new axis and is reshaped to `merged`, or None."""
    expand = producer_of(wide, "Expand", "Tile")
    if wide is None or expand is None:
        return None
    narrow = expand.inputs[0]
    split = producer_of(narrow, "Unsqueeze", "Reshape")
    if narrow is None or split is None:
        return None
    source = split.inputs[0]
    if source is None or not is_read_once(wide) or not is_read_once(narrow):
        return None
    before, after, x = graph.shapes.dims(narrow), graph.shapes.dims(wide), graph.shapes.dims(source)
    if before is None or after is None or x is None or len(before) != len(after):
        return None
    expanded = [i for i, (a, b) in enumerate(zip(before, after)) if a != b]
    if len(expanded) != 1 or expanded[0] == 0 or before[expanded[0]] != ONE:
        return None
    g = expanded[0]
    # Without the new axis, the shape must be that of x. Merged with the axis before it, the shape must be `merged`.
    if not same_dims(x, (*before[:g], *before[g + 1 :])):
        return None
    if not same_dims(merged, (*after[: g - 1], after[g - 1] * after[g], *after[g + 1 :])):
        return None
    return _Repeat(source, g - 1, after[g], (split, expand, *following))


class _Absorbed:
    """Collects the fused nodes, the scale, and for each axis of a removed value the equal axis of its source."""

    def __init__(self, found: Attention, graph: GraphView) -> None:
        self._view, self._graph = found.graph, found.scores.graph
        self.scale = found.scale
        self.nodes = list(found.outer)
        self.axes = dict(found.axes)

    def absorb(self, operand: Operand, *, scaled: bool) -> Operand:
        """Fuses the Identities and Transposes before an operand; also scalar factors if `scaled` is set."""
        value, perm = operand.value, operand.perm
        while sole_data_reader(value) is not None:
            node = producer_of(value)
            if node is None or node.graph is not self._graph or node.inputs[0] is None:
                break
            own = identity_perm(len(perm))
            if node.op_type == "Identity":
                source = node.inputs[0]
            elif node.op_type == "Transpose":
                own = attribute_ints(node, "perm", tuple(reversed(own)))
                source = node.inputs[0]
            elif scaled and (factor := factor_of(node, self._view)) is not None:
                self.scale *= factor[1]
                source = factor[0]
            elif (flat := _flat_transpose(value, self._view)) is not None:
                if not same_dims(flat.dims, self._view.shapes.dims(flat.value) or ()):
                    break
                own, source = _swap_last(own), flat.value
            else:
                break
            self.axes[value] = [(source, axis) for axis in own]
            perm = tuple(own[p] for p in perm)
            value = source
            self.nodes.append(node)
        return Operand(value, perm)


def factor_of(node: ir.Node, graph: GraphView) -> tuple[ir.Value, float] | None:
    """Returns (x, c) if the node computes c x for a finite scalar c and keeps the shape of x, or None."""
    if node.op_type not in ("Mul", "Div"):
        return None
    for main, other in ((node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0])):
        number = graph.shapes.number(other)
        rank_main, rank_other = graph.shapes.rank(main), graph.shapes.rank(other)
        if number is None or main is None or rank_other is None or rank_other > (1 if rank_main is None else rank_main):
            if node.op_type == "Div":
                return None
            continue
        if node.op_type == "Div":
            number = 1.0 / number if number else math.inf
        return (main, number) if math.isfinite(number) else None
    return None


@dataclass(frozen=True)
class _FlatTranspose:
    """Reshape(Transpose(Reshape(value), [0, 2, 1])): swaps the last two axes of `value` in the shape `dims`."""

    value: ir.Value
    dims: tuple[Size, ...]
    nodes: tuple[ir.Node, ...]


def _flat_transpose(value: ir.Value, graph: GraphView) -> _FlatTranspose | None:
    """Matches nodes that flatten the leading dimensions, transpose the last two and restore the leading ones."""
    outer = producer_of(value, "Reshape")
    transpose = None if outer is None else producer_of(outer.inputs[0], "Transpose")
    if outer is None or transpose is None or not is_read_once(transpose.outputs[0]):
        return None
    inner = producer_of(transpose.inputs[0], "Reshape")
    if inner is None or not is_read_once(inner.outputs[0]) or inner.inputs[0] is None:
        return None
    if attribute_ints(transpose, "perm", ()) != (0, 2, 1):
        return None
    source, flat, result = (
        graph.shapes.dims(inner.inputs[0]),
        graph.shapes.reshaped(inner),
        graph.shapes.reshaped(outer),
    )
    if source is None or flat is None or result is None or min(len(source), len(result)) < 3:
        return None
    rows, columns = source[-2:]
    if flat[1:] != (rows, columns) or result[-2:] != (columns, rows):
        return None
    return _FlatTranspose(inner.inputs[0], (*result[:-2], rows, columns), (inner, transpose, outer))


def absorb_result(found: Attention) -> Attention:
    """Fuses Transposes and Reshapes to the same shape, while such a node is the only reader of the result."""
    while (node := sole_data_reader(found.output)) is not None:
        if not is_op(node) or node.graph is not found.context.graph:
            return found
        if node.op_type == "Transpose":
            own = attribute_ints(node, "perm", tuple(reversed(range(len(found.o_perm)))))
        elif node.op_type == "Reshape":
            before, after = found.graph.shapes.dims(found.output), found.graph.shapes.reshaped(node)
            if before is None or after is None or not same_dims(before, after):
                return found
            own = identity_perm(len(found.o_perm))
        else:
            return found
        if sorted(own) != list(range(len(found.o_perm))):
            return found  # the model is invalid, because this is not a permutation of the axes
        axes = found.axes
        if use_count(found.output) > 1:
            read = _result_axes(found)
            if read is None:
                return found
            axes = {**axes, found.output: [read[p] for p in found.o_perm]}
        o_perm = tuple(found.o_perm[p] for p in own)
        found = replace(found, axes=axes, o_perm=o_perm, inner=(*found.inner, node), output=node.outputs[0])
    return found


def _batch_axes(found: Attention, *operands: Operand) -> list[tuple[ir.Value, int]] | None:
    """Returns, for each batch axis of a MatMul, an operand and its axis with the full size; None if unknown."""
    result: list[tuple[ir.Value, int]] = []
    for i in range(-max(len(o.perm) for o in operands), -2):
        candidates = [(o.value, o.perm[i]) for o in operands if -i <= len(o.perm)]
        sizes = [found.graph.shapes.dim(*c) for c in candidates]
        large = [c for c, size in zip(candidates, sizes) if size != ONE]
        if len({size for size in sizes if size != ONE}) > 1:
            return None
        result.append((large or candidates)[0])
    return result


def score_axes(found: Attention) -> list[tuple[ir.Value, int]] | None:
    """Returns a value and an axis for each dimension [.., S, T] of the scores, or None."""
    q, k = found.q, found.k
    batch = _batch_axes(found, q) if found.gqa else _batch_axes(found, q, k)
    return None if batch is None else [*batch, (q.value, q.perm[-2]), (k.value, k.perm[-1])]


def _result_axes(found: Attention) -> list[tuple[ir.Value, int]] | None:
    """Returns a value and an axis for each dimension [.., S, Dv] of the result before o_perm, or None."""
    q, k, v = found.q, found.k, found.v
    batch = _batch_axes(found, q) if found.gqa else _batch_axes(found, q, k, v)
    return None if batch is None else [*batch, (q.value, q.perm[-2]), (v.value, v.perm[-1])]
