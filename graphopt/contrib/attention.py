"""Attention, MultiHeadAttention and DecoderMaskedMultiHeadAttention.

    O = softmax(scale Q K^T + attention_bias + mask) V for each head; the default scale is 1 / sqrt(head size)

Q, K and V are [batch, sequence, heads * head size]. Attention projects its input to them; the other operators take them
as inputs. A mask has one element for each key, has one for each query and key, or contains sequence lengths. The
operators add `mask_filter_value` to the scores of masked keys. `past` keys and values precede the new ones.
A. Vaswani et al., "Attention Is All You Need", NeurIPS 2017.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from graphopt.contrib.schema import REQUIRED, Call, ContribOp
from graphopt.contrib.writer import Writer
from graphopt.graph.shapes.sizes import Size
from graphopt.remarks import Code

MASK_FILTER = -10000.0
INT64 = ir.DataType.INT64


# -- the steps of a definition -----------------------------------------------------------------------------------------


def split_heads(w: Writer, x: ir.Value, n: int) -> ir.Value:
    """Reshapes x from [B, S, n H] to [B, n, S, H]."""
    return w.transpose(w.reshape(x, 0, 0, n, -1), 0, 2, 1, 3)


def merge_heads(w: Writer, x: ir.Value, hidden: int | None) -> ir.Value:
    """Reshapes x from [B, N, S, H] to [B, S, N H]; `hidden` is N H if known."""
    return w.reshape(w.transpose(x, 0, 2, 1, 3), 0, 0, -1 if hidden is None else hidden)


def scale_of(call: Call[Any], head_size: int | None) -> float | None:
    """Returns the factor of Q K^T, or None if it depends on an unknown head size. Attribute 0 means the default."""
    given = call.attribute("scale", 0.0)
    return given or (None if head_size is None else 1.0 / math.sqrt(head_size))


def lengths_mask(w: Writer, end: ir.Value, start: ir.Value | None, total: ir.Value) -> ir.Value:
    """Returns a boolean mask [B, total] of the keys from `start` (0 if None) up to `end`, each int32 [B]."""
    position = w.unsqueeze(w.arange(total), 0)
    visible = w.op("Less", position, w.unsqueeze(w.cast(end, INT64), 1))
    if start is None:
        return visible
    return w.op("And", visible, w.op("Not", w.op("Less", position, w.unsqueeze(w.cast(start, INT64), 1))))


def additive_mask(
    w: Writer, mask: ir.Value, batch: ir.Value, total: ir.Value, T: ir.DataType, masked_term: float
) -> ir.Value:
    """Converts a mask to a term for scores [B, N, S, total]: `masked_term` for masked keys, 0 elsewhere.

    Args:
        w: writes the nodes.
        mask: [B, total] or [B, S, total], 0 where masked; or [B] lengths; [2 B] ends and starts; [3 B + 2], where the
            first B elements are lengths.
        batch: a value with B as its first dimension.
        total: the number of keys, int64 [1].
        T: the element type of the scores.
        masked_term: the term of masked keys.

    Raises:
        Refusal: another rank, or a vector of unknown length.
    """
    rank = w.rank(mask)
    if rank == 1:
        count, B = w.editor.shapes.dims(mask), w.editor.shapes.dims(batch)
        if count is None or B is None:
            raise w.refuse(Code.UNKNOWN_SHAPE, f"the length of mask {mask.name} or the batch size is not known")
        if count[0] == B[0]:
            visible = lengths_mask(w, mask, None, total)
        elif count[0] in (B[0] + B[0], B[0] + B[0] + B[0] + Size.of(2)):
            size = w.dim(batch, 0)
            end = w.slice(mask, 0, w.ints(0), size)
            start = w.slice(mask, 0, size, None) if count[0] == B[0] + B[0] else None
            visible = lengths_mask(w, end, start, total)
        else:
            raise w.refuse(
                Code.UNKNOWN_SHAPE, f"mask {mask.name} has length {count[0]}; the definition needs B, 2 B or 3 B + 2"
            )
    elif rank in (2, 3):
        visible = w.op("Greater", mask, w.number(0, ir.DataType.INT32))
    else:
        raise w.refuse(Code.WRONG_RANK, f"the mask has rank {rank}")
    visible = w.unsqueeze(visible, 1) if rank == 3 else w.unsqueeze(visible, 1, 2)
    return w.op("Where", visible, w.number(0.0, T), w.number(masked_term, T))


def causal_mask(w: Writer, queries: ir.Value, total: ir.Value, T: ir.DataType) -> ir.Value:
    """Returns the causal term [S, total] of the scores: -inf for later keys. The last row is the newest query."""
    row = w.unsqueeze(w.add(w.arange(queries), w.sub(total, queries)), 1)
    is_later = w.op("Greater", w.unsqueeze(w.arange(total), 0), row)
    return w.op("Where", is_later, w.number(-math.inf, T), w.number(0.0, T))


def append_to_past(w: Writer, past: ir.Value, new: ir.Value, length: ir.Value | None) -> tuple[ir.Value, ir.Value]:
    """Concatenates past and new keys or values along axis 2.

    Args:
        w: writes the nodes.
        past: [B, N, past, H]; a buffer with `length` valid rows if `length` is given.
        new: [B, N, S, H].
        length: the number of valid rows of `past`, int32 with one element; None: all.

    Returns:
        The keys or values for this call, and the cache for the next one.
    """
    if length is None:
        present = w.concat([past, new], 2)
        return present, present
    valid = w.op("Reshape", w.cast(length, INT64), w.ints(1))
    used = w.concat([w.slice(past, 2, w.ints(0), valid), new], 2)
    return used, w.concat([used, w.slice(past, 2, w.dim(used, 2), None)], 2)


def _transpose_keys(w: Writer, k: ir.Value) -> ir.Value:
    """Transposes k from [B, N, T, H] to [B, N, H, T]. If a Transpose from [B, T, N, H] made k, merges both."""
    node = k.producer()
    if node in w.nodes and node.op_type == "Transpose" and tuple(node.attributes["perm"].as_ints()) == (0, 2, 1, 3):
        source = node.inputs[0]
        assert source is not None
        return w.transpose(source, 0, 2, 3, 1)
    return w.transpose(k, 0, 1, 3, 2)


def attend(
    w: Writer, q: ir.Value, k: ir.Value, v: ir.Value, scale: float, terms: Sequence[ir.Value], T: ir.DataType
) -> tuple[ir.Value, ir.Value]:
    """Writes softmax(scale q k^T + sum of `terms`) v for q, k and v [B, N, .., H] of element type T.

    Returns:
        The context [B, N, S, H], and the scores before the softmax.
    """
    scores = w.mul(w.matmul(q, _transpose_keys(w, k)), w.number(scale, T))
    for term in terms:
        scores = w.add(scores, term)
    return w.matmul(w.softmax(scores), v), scores


# -- definitions -------------------------------------------------------------------------------------------------------


def project(w: Writer, call: Call[ir.Value]) -> tuple[list[ir.Value], list[int]]:
    """Projects the input: returns Q, K and V, and their last dimensions."""
    x, weights, bias = call["input"], call["weights"], call.get("bias")
    sizes = call.attribute("qkv_hidden_sizes")
    if sizes is None:
        sizes = [w.require_size(weights, 1) // 3] * 3
    y = w.matmul(x, weights)
    return list(w.split(y if bias is None else w.add(y, bias), list(sizes), -1)), list(sizes)


def _define_attention(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    if call.attribute("do_rotary"):
        raise w.refuse(Code.ATTRIBUTE, "do_rotary has no definition")
    if call.attribute("past_present_share_buffer") and "past_sequence_length" not in call:
        raise w.refuse(Code.UNSUPPORTED_OP, "past_present_share_buffer is set, but past_sequence_length is absent")
    N, T = call.attribute("num_heads"), w.dtype(call["input"], call["weights"])
    values, sizes = project(w, call)
    q, k, v = (split_heads(w, x, N) for x in values)
    new_k, new_v = k, v
    if "past" in call:
        pasts = [w.squeeze(p, 0) for p in w.split(call["past"], (1, 1), 0)]
        length = call.get("past_sequence_length") if call.attribute("past_present_share_buffer") else None
        (k, new_k), (v, new_v) = append_to_past(w, pasts[0], k, length), append_to_past(w, pasts[1], v, length)
    scale = scale_of(call, sizes[0] // N)
    assert scale is not None
    context, _ = attend(w, q, k, v, scale, _score_terms(w, call, "mask_index", q, k, call["input"], T), T)
    outputs = {"output": merge_heads(w, context, sizes[2])}
    if call.has_output("present"):
        outputs["present"] = w.concat([w.unsqueeze(new_k, 0), w.unsqueeze(new_v, 0)], 0)
    return outputs


def _score_terms(
    w: Writer, call: Call[ir.Value], mask: str, q: ir.Value, k: ir.Value, batch: ir.Value, T: ir.DataType
) -> list[ir.Value]:
    terms = []
    if "attention_bias" in call:
        terms.append(call["attention_bias"])
    if mask in call:
        masked_term = call.attribute("mask_filter_value", MASK_FILTER)
        terms.append(additive_mask(w, call[mask], batch, w.dim(k, 2), T, masked_term))
    if call.attributes.get("unidirectional"):
        terms.append(causal_mask(w, w.dim(q, 2), w.dim(k, 2), T))
    return terms


def _define_multi_head(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    N, query, key = call.attribute("num_heads"), call["query"], call.get("key")
    T = w.dtype(query, key, call.get("bias"))
    biases: list[ir.Value | None] = [None] * 3
    rank = w.rank(query)
    hidden = _hidden_sizes(w, call)
    if "bias" in call:
        if None in hidden:
            raise w.refuse(
                Code.UNKNOWN_SHAPE, "the bias cannot be split: a last dimension of query, key or value is not known"
            )
        biases = list(w.split(call["bias"], [n for n in hidden if n is not None], 0))
    if rank == 5:  # packed: [B, S, N, 3, H]
        q, k, v = (w.transpose(w.squeeze(x, 3), 0, 2, 1, 3) for x in w.split(query, (1, 1, 1), 3))
        q, k, v = (_add_bias_to_heads(w, x, b, N) for x, b in zip((q, k, v), biases))
    elif key is None:  # packed: [B, 1, 3 N H]
        sizes = [n for n in hidden if n is not None]
        if len(sizes) != 3:
            raise w.refuse(Code.UNKNOWN_SHAPE, f"the last dimension of {query.name} is not known")
        parts = w.split(query, sizes, -1)
        q, k, v = (split_heads(w, _add_bias(w, x, b), N) for x, b in zip(parts, biases))
    else:
        q = split_heads(w, _add_bias(w, query, biases[0]), N)
        key_rank = w.rank(key)
        if key_rank == 5:
            k, v = (w.transpose(w.squeeze(x, 3), 0, 2, 1, 3) for x in w.split(key, (1, 1), 3))
            k, v = (_add_bias_to_heads(w, x, b, N) for x, b in zip((k, v), biases[1:]))
        elif key_rank == 4:  # cached keys and values of a cross attention, already with bias
            k, v = key, call["value"]
        else:
            k, v = (split_heads(w, _add_bias(w, x, b), N) for x, b in zip((key, call["value"]), biases[1:]))
    new_k, new_v = k, v
    if "past_key" in call:
        length = call.get("past_sequence_length")
        (k, new_k), (v, new_v) = (
            append_to_past(w, call["past_key"], k, length),
            append_to_past(w, call["past_value"], v, length),
        )
    if "cache_indirection" in call and "past_key" in call:  # the beams of a cross attention share their keys
        k, v = (_select_beams(w, x, call["cache_indirection"]) for x in (k, v))
    mask = "key_padding_mask" if "key_padding_mask" in call else "mask_index"
    size = hidden[0] // N if hidden[0] is not None else None
    scale = scale_of(call, size)
    if scale is None:
        raise w.refuse(Code.UNKNOWN_SHAPE, "the head size is not known")
    context, scores = attend(w, q, k, v, scale, _score_terms(w, call, mask, q, k, query, T), T)
    return {"output": merge_heads(w, context, hidden[2]), "present_key": new_k, "present_value": new_v, "qk": scores}


def _hidden_sizes(w: Writer, call: Call[ir.Value]) -> list[int | None]:
    """Returns the last dimensions N H of Q, K and V; None if unknown."""
    N, query, key = call.attribute("num_heads"), call["query"], call.get("key")
    if w.rank(query) == 5:
        size = w.size(query, 4)
        return [None if size is None else size * N] * 3
    last = w.size(query, -1)
    if key is None:
        return [None if last is None else last // 3] * 3
    if w.rank(key) == 5:
        return [last] * 3
    value = w.size(call["value"], -1)
    if w.rank(key) == 4:
        return [last, last, None if value is None else value * N]
    return [last, last, value]


def _add_bias(w: Writer, x: ir.Value, bias: ir.Value | None) -> ir.Value:
    return x if bias is None else w.add(x, bias)


def _add_bias_to_heads(w: Writer, x: ir.Value, bias: ir.Value | None, N: int) -> ir.Value:
    """Adds a bias [N H] to x [B, N, S, H]."""
    return x if bias is None else w.add(x, w.reshape(bias, N, 1, -1))


def _select_beams(w: Writer, x: ir.Value, indirection: ir.Value) -> ir.Value:
    """Gathers the keys or values of each beam.

    Args:
        w: writes the nodes.
        x: keys or values [B W, N, T, H] for W beams.
        indirection: [B, W, max T]; position t of beam w is stored in the row of beam indirection[b, w, t]. The newest
            position is always stored in the row of the beam itself.
    """
    total, rows = w.dim(x, 2), w.dim(x, 0)
    beams = w.dim(indirection, 1)
    old = w.sub(total, w.ints(1))
    chosen = w.cast(w.slice(indirection, 2, w.ints(0), old), INT64)  # [B, W, T - 1]
    own = w.expand(w.reshape(w.arange(beams), 1, -1, 1), w.dim(indirection, 0), beams, 1)
    chosen = w.concat([chosen, own], 2)
    first_row = w.mul(w.reshape(w.arange(w.dim(indirection, 0)), -1, 1, 1), beams)
    row = w.reshape(w.add(chosen, first_row), rows, total)
    flat = w.add(w.mul(row, total), w.unsqueeze(w.arange(total), 0))  # indices into [B W T, N, H]
    by_token = w.transpose(x, 0, 2, 1, 3)
    table = w.op("Reshape", by_token, w.shape([-1, w.dim(x, 1), w.dim(x, 3)]))
    return w.transpose(w.op("Gather", table, flat, axis=0), 0, 2, 1, 3)


def _define_decoder(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    shared = dict(call.inputs)
    if not call.attribute("past_present_share_buffer"):
        shared.pop("past_sequence_length", None)
    return _define_multi_head(w, Call(shared, call.attributes, call.outputs))


SPECS = (
    ContribOp(
        "Attention(input, weights, bias?, mask_index?, past?, attention_bias?, past_sequence_length?) -> output, "
        "present?",
        _define_attention,
        {
            "do_rotary": None,
            "mask_filter_value": None,
            "num_heads": REQUIRED,
            "past_present_share_buffer": None,
            "qkv_hidden_sizes": None,
            "rotary_embedding_dim": None,
            "scale": None,
            "unidirectional": 0,
        },
        form="MatMul, FusedAttention",
        refuses="masks of rank 4; do_rotary",
    ),
    ContribOp(
        "MultiHeadAttention(query, key?, value?, bias?, key_padding_mask?, attention_bias?, past_key?, "
        "past_value?, past_sequence_length?, cache_indirection?) -> output, present_key?, present_value?, qk?",
        _define_multi_head,
        {"mask_filter_value": None, "num_heads": REQUIRED, "scale": None, "unidirectional": 0},
        form="FusedAttention",
    ),
    ContribOp(
        "DecoderMaskedMultiHeadAttention(query, key?, value?, mask_index?, attention_bias?, past_key?, "
        "past_value?, past_sequence_length?, beam_width?, cache_indirection?, bias?) -> output, present_key?, "
        "present_value?, qk?",
        _define_decoder,
        {
            "mask_filter_value": None,
            "num_heads": REQUIRED,
            "output_qk": None,
            "past_present_share_buffer": None,
            "scale": None,
        },
        kept_on_cpu="its kernel writes into the cache, and the definition copies it",
        form="FusedAttention",
    ),
)
