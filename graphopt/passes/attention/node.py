"""Reads the ai.onnx operator Attention, opset 23 and later."""

from __future__ import annotations

import math
from dataclasses import replace

import onnx_ir as ir

from graphopt.graph.operators.arguments import ATTENTION_OPSETS, ATTENTION_PADS_MASK_OPSET
from graphopt.graph.shapes.sizes import Size
from graphopt.graph.view import GraphView, attribute_float, attribute_int
from graphopt.passes.attention.match import Attention, Condition, Operand, Prepared, Term, require_rank
from graphopt.remarks import Code, Refusal

# The supported attributes. qk_matmul_output_mode affects only the output of scores, which must be unused.
KNOWN_ATTRIBUTES = frozenset(
    ("is_causal", "kv_num_heads", "q_num_heads", "qk_matmul_output_mode", "scale", "softcap", "softmax_precision")
)
# Attributes of Attention-25 and later: the number of keys that a query sees before and after its own; -1 for all.
WINDOW_ATTRIBUTES = ("left_window_size", "right_window_size")
# A window size above any sequence length.
ALL_KEYS = 2**31 - 1


def read_attention_node(node: ir.Node, graph: GraphView) -> Attention:
    """Reads Attention-23 to -26 as defined by the function body of their specification.

    The function body gives 0 for fully masked rows. A mask therefore selects the Guard variant, which replaces NaN
    probabilities by 0.

    Raises:
        Refusal: FusedAttention cannot express the node.
    """
    q, k, v, mask, past_key, past_value, lengths = [*node.inputs, *[None] * 7][:7]
    _require_version(node, graph)
    _require_known_attributes(node)
    if q is None or k is None or v is None:
        raise Refusal(Code.UNSUPPORTED_OP, "the node does not have Q, K and V", node)
    if lengths is not None:
        raise Refusal(Code.UNSUPPORTED_OP, "the number of valid keys is an input", node)
    present_key, present_value, scores = (_read_output(node, i) for i in (1, 2, 3))
    cached = past_key is not None and past_value is not None
    if scores is not None or (not cached and (present_key or present_value)):
        why = "the output of scores is used, or the outputs of keys and values are used without a cache"
        raise Refusal(Code.ESCAPES, why, node)
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
    # The numbers of queries and keys of this call, without the cache. A causal mask shows key j to query i if j <= i.
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
    if unknown := sorted(node.attributes.keys() - KNOWN_ATTRIBUTES - {*WINDOW_ATTRIBUTES}):
        raise Refusal(Code.ATTRIBUTE, f"graphopt does not know the attribute {unknown[0]} of Attention", node)


def _seen_keys(node: ir.Node, rows: Size, keys: Size) -> tuple[bool, tuple[int, int] | None]:
    """Returns whether the mask is causal, and the window of keys. If there is a window, it replaces the causal mask."""
    causal = attribute_int(node, "is_causal", 0) == 1
    window = _window(node, causal)
    if (causal or window is not None) and rows != keys:
        what = "is_causal" if causal else "the window"
        why = f"{what} counts from the first key, and it is not proven that there are as many queries as keys"
        raise Refusal(Code.UNKNOWN_SHAPE, why, node)
    return causal and window is None, window


def _window(node: ir.Node, causal: bool) -> tuple[int, int] | None:
    """Returns the number of keys that a query sees before and after its own (0 after it if causal); None: no window."""
    sizes = [attribute_int(node, name, -1) for name in WINDOW_ATTRIBUTES]
    for name, size in zip(WINDOW_ATTRIBUTES, sizes):
        if size < -1:
            raise Refusal(Code.ATTRIBUTE, f"{name} is {size}", node)
    left, right = (ALL_KEYS if size == -1 else min(size, ALL_KEYS) for size in sizes)
    if causal:
        right = 0
    return None if left == ALL_KEYS and (causal or right == ALL_KEYS) else (left, right)


def _is_packed(node: ir.Node, operands: tuple[ir.Value, ...], graph: GraphView) -> bool:
    """Returns whether Q, K and V have rank 3, with the heads packed into the last dimension, instead of rank 4."""
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
        raise Refusal(Code.UNKNOWN_SHAPE, f"{mask.name} may have fewer keys than K, so the node may pad it", node)
    dtype = graph.dtype(mask)
    if dtype is None:
        raise Refusal(Code.WRONG_DTYPE, f"the element type of {mask.name} is not known", node)
    if dtype == ir.DataType.BOOL:
        return replace(found, guard=True, conditions=(Condition(mask, node),), mask_value=-math.inf)
    return replace(found, guard=True, terms=(Term(mask, node),))


def _read_output(node: ir.Node, i: int) -> ir.Value | None:
    """Returns output i if it is used, or None."""
    value = node.outputs[i] if i < len(node.outputs) else None
    return value if value is not None and (value.uses() or value.is_graph_output()) else None


def _heads(operand: Operand, graph: GraphView) -> Size:
    return graph.shapes.dim(operand.value, operand.perm[1])


def _prepare(
    node: ir.Node, x: ir.Value, heads: int | None, past: ir.Value | None, present: ir.Value | None, graph: GraphView
) -> tuple[Operand, Prepared]:
    """Returns the operand that the rewrite creates from an input by splitting heads and concatenating the cache.

    Raises:
        Refusal: ATTRIBUTE if the heads do not divide the last dimension.
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
