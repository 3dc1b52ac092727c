"""Attention of ai.onnx, opset 23 and later, read as the function body of its specification defines it."""

from __future__ import annotations

import math

import onnx_ir as ir

from graphopt.passes.attention_match import Attention, Condition, Operand, Term, require_rank
from graphopt.passes.base import attribute_float, attribute_int
from graphopt.passes.symbolic_shapes import Shapes
from graphopt.remarks import Code, Refusal


def read_attention_node(node: ir.Node, shapes: Shapes) -> Attention:
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
    ranks = [require_rank(x, shapes, node) for x in (q, k, v)]
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
        last = require_rank(mask, shapes, node) - 1
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
