"""Attention of ai.onnx, opset 23 and later, read as the function body of its specification defines it."""

from __future__ import annotations

import math
from dataclasses import replace

import onnx_ir as ir

from graphopt.graph.operators.arguments import ATTENTION_OPSETS, ATTENTION_PADS_MASK_OPSET
from graphopt.graph.shapes.sizes import Size
from graphopt.graph.view import GraphView, attribute_float, attribute_int
from graphopt.passes.attention.match import Attention, Condition, Operand, Prepared, Term, require_rank
from graphopt.remarks import Code, Refusal

# What is read here; qk_matmul_output_mode says what an output holds that nobody may read.
KNOWN = frozenset(
    ("is_causal", "kv_num_heads", "q_num_heads", "qk_matmul_output_mode", "scale", "softcap", "softmax_precision")
)
# How many keys before and behind its own a query sees; -1 for all. Attention-25 and later.
WINDOWS = ("left_window_size", "right_window_size")
# More keys than any sequence has.
ALL_KEYS = 2**31 - 1


def read_attention_node(node: ir.Node, graph: GraphView) -> Attention:
    """Reads Attention-23 to -26 as the function body of their specification defines them.

    The body gives 0 for rows that the mask hides wholly, which is what Guard makes of the NaN of a plain softmax.

    Raises:
        Refusal: for what FusedAttention has no words for.

    """
    q, k, v, mask, past_key, past_value, lengths = [*node.inputs, *[None] * 7][:7]
    _require_version(node, graph)
    _require_known_attributes(node)
    if q is None or k is None or v is None:
        raise Refusal(Code.UNSUPPORTED_OP, "Q, K or V is absent", node)
    if lengths is not None:
        raise Refusal(Code.UNSUPPORTED_OP, "the number of valid keys is an input", node)
    present_key, present_value, scores = (_read_output(node, i) for i in (1, 2, 3))
    cached = past_key is not None and past_value is not None
    if scores is not None or (not cached and (present_key or present_value)):
        raise Refusal(Code.ESCAPES, "the scores are an output, or keys and values are outputs without a cache", node)
    packed = _is_packed(node, (q, k, v), graph)
    _require_precision(node)

    heads = [attribute_int(node, f"{x}_num_heads", 0) if packed else None for x in ("q", "kv", "kv")]
    operands: list[Operand] = []
    prepared: list[Prepared] = []
    for x, n, past, present in zip((q, k, v), heads, (None, past_key, past_value), (None, present_key, present_value)):
        operand = Operand(x, (0, 1, 2, 3))
        if n is not None or past is not None:
            operand, made = _prepare(node, x, n, past, present, graph)
            prepared.append(made)
        operands.append(operand)
    q_operand, k_operand, v_operand = operands
    # Sizes before the cache joins, as causal masks count them: query i sees key j of the call if j <= i.
    rows, keys = (graph.shapes.dim(x, 1 if packed else 2) for x in (q, k))
    softcap = attribute_float(node, "softcap", 0.0)
    if softcap < 0.0:
        raise Refusal(Code.ATTRIBUTE, f"softcap is {softcap}", node)
    scale = _scale(node, graph.shapes.dim(q_operand.value, 3))
    causal, window = _seen_keys(node, rows, keys)
    k_perm = k_operand.perm
    found = Attention(
        softmax=node,
        scores=node,
        context=node,
        graph=graph,
        q=q_operand,
        k=Operand(k_operand.value, (*k_perm[:2], k_perm[3], k_perm[2])),
        v=v_operand,
        o_perm=(0, 2, 1, 3) if packed else (0, 1, 2, 3),
        output=node.outputs[0],
        inner=(node,),
        scale=scale,
        softcap=softcap or None,
        causal=causal,
        window=window,
        gqa=_heads(q_operand, graph) != _heads(k_operand, graph),
        prepared=tuple(prepared),
        packed=packed,
    )
    return found if mask is None else _masked(found, mask)


def _require_version(node: ir.Node, graph: GraphView) -> None:
    version = graph.opset(node)
    if version not in ATTENTION_OPSETS:
        raise Refusal(Code.OPSET, f"graphopt does not know Attention of opset {version}", node)


def _require_known_attributes(node: ir.Node) -> None:
    if unknown := sorted(node.attributes.keys() - KNOWN - {*WINDOWS}):
        raise Refusal(Code.ATTRIBUTE, f"graphopt does not know the attribute {unknown[0]} of Attention", node)


def _seen_keys(node: ir.Node, rows: Size, keys: Size) -> tuple[bool, tuple[int, int] | None]:
    """Whether later keys are hidden, or else the window of keys that a query sees, which then says that, too."""
    causal = attribute_int(node, "is_causal", 0) == 1
    window = _window(node, causal)
    if (causal or window is not None) and rows != keys:
        what = "causal" if causal else "a window"
        raise Refusal(Code.UNKNOWN_SHAPE, f"{what} counts from the top left, and nothing tells that S = T", node)
    return causal and window is None, window


def _window(node: ir.Node, causal: bool) -> tuple[int, int] | None:
    """How many keys before and behind its own a query sees, what causality hides left out; None where there is none."""
    sizes = [attribute_int(node, name, -1) for name in WINDOWS]
    for name, size in zip(WINDOWS, sizes):
        if size < -1:
            raise Refusal(Code.ATTRIBUTE, f"{name} is {size}", node)
    left, right = (ALL_KEYS if size == -1 else min(size, ALL_KEYS) for size in sizes)
    if causal:
        right = 0
    return None if left == ALL_KEYS and (causal or right == ALL_KEYS) else (left, right)


def _is_packed(node: ir.Node, operands: tuple[ir.Value, ...], graph: GraphView) -> bool:
    """Whether the heads are packed into the last of three dimensions; there are four otherwise."""
    ranks = [require_rank(x, graph, node) for x in operands]
    if ranks not in ([4, 4, 4], [3, 3, 3]):
        raise Refusal(Code.WRONG_RANK, f"Q, K and V have ranks {ranks}", node)
    return ranks[0] == 3


def _require_precision(node: ir.Node) -> None:
    precision = attribute_int(node, "softmax_precision", ir.DataType.FLOAT)
    if precision not in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
        raise Refusal(Code.WRONG_DTYPE, f"softmax_precision is {ir.DataType(precision).name}", node)


def _scale(node: ir.Node, head_size: Size) -> float:
    if "scale" in node.attributes:
        scale = attribute_float(node, "scale", 0.0)
    else:
        if not head_size.value:
            raise Refusal(Code.UNKNOWN_SHAPE, "the scale depends on the head size, which is not known", node)
        scale = 1.0 / math.sqrt(head_size.value)
    if scale <= 0.0:
        raise Refusal(Code.ATTRIBUTE, f"scale is {scale}", node)
    return scale


def _masked(found: Attention, mask: ir.Value) -> Attention:
    node, graph = found.softmax, found.graph
    last = require_rank(mask, graph, node) - 1
    total = graph.shapes.dim(found.k.value, found.k.perm[-1])
    if graph.opset(node) >= ATTENTION_PADS_MASK_OPSET and (last < 0 or graph.shapes.dim(mask, last) != total):
        raise Refusal(Code.UNKNOWN_SHAPE, f"{mask.name} may be shorter than the keys, which pads it", node)
    dtype = graph.dtype(mask)
    if dtype is None:
        raise Refusal(Code.WRONG_DTYPE, f"the element type of {mask.name} is not known", node)
    if dtype == ir.DataType.BOOL:
        return replace(found, guard=True, conditions=(Condition(mask, node),), mask_value=-math.inf)
    return replace(found, guard=True, terms=(Term(mask, node),))


def _read_output(node: ir.Node, i: int) -> ir.Value | None:
    """Output i, if anybody reads it."""
    value = node.outputs[i] if i < len(node.outputs) else None
    return value if value is not None and (value.uses() or value.is_graph_output()) else None


def _heads(operand: Operand, graph: GraphView) -> Size:
    return graph.shapes.dim(operand.value, operand.perm[1])


def _prepare(
    node: ir.Node, x: ir.Value, heads: int | None, past: ir.Value | None, present: ir.Value | None, graph: GraphView
) -> tuple[Operand, Prepared]:
    """The operand that splitting heads and joining the cache will make of an input.

    Raises:
        Refusal: ATTRIBUTE when the heads do not divide the last dimension.

    """
    value = ir.Value(name=f"{x.name}/prepared", type=x.type)
    dims: list[Size | None] = [graph.shapes.dim(x, i) for i in range(3 if heads is not None else 4)]
    perm = (0, 1, 2, 3)
    if heads is not None:
        size = graph.shapes.dim(x, 2).divided_by(Size.of(heads)) if heads > 0 else None
        if size is None:
            raise Refusal(Code.ATTRIBUTE, f"{heads} heads do not divide the last dimension of {x.name}", node)
        dims = [*dims[:2], Size.of(heads), size]
        perm = (0, 2, 1, 3)
    if past is not None:
        cached, new = graph.shapes.dim(past, 2).value, graph.shapes.dim(x, 2 if heads is None else 1).value
        dims, perm = [dims[p] for p in perm], (0, 1, 2, 3)
        dims[2] = None if cached is None or new is None else Size.of(cached + new)
    graph.shapes.declare(value, dims)
    return Operand(value, perm), Prepared(value, x, heads, past, present)
