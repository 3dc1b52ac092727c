"""FusedAttention[Bias][Mask][Causal][Gqa][Guard][Softcap]: O = softmax(scale Q K^T + ...) V in one node.

The perms are Transpose perms: q_perm takes Q to [B, H, S, D], k_perm takes K to [B, H, D, T], v_perm takes V to
[B, H, T, Dv], o_perm is applied to [B, H, S, Dv]. Rank 3 drops H, rank 2 drops B too. float and float16; the softmax
is computed in float32 at least. docs/architecture.md has the equations.
T. Dao et al., "FlashAttention", NeurIPS 2022; A. Vaswani et al., "Attention Is All You Need", NeurIPS 2017.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from graphopt.ops.schema import Array, OpSpec, widen

SUFFIXES = ("Bias", "Mask", "Causal", "Gqa", "Guard", "Softcap")


@dataclass(frozen=True)
class Variant:
    """Which of the optional steps a name has."""

    bias: bool = False
    mask: bool = False
    causal: bool = False
    gqa: bool = False
    guard: bool = False
    softcap: bool = False

    @property
    def name(self) -> str:
        flags = (self.bias, self.mask, self.causal, self.gqa, self.guard, self.softcap)
        return "FusedAttention" + "".join(s for s, on in zip(SUFFIXES, flags) if on)


def _body(v: Variant) -> str:
    lines = [
        "scale_f = Constant <value_float: float = @scale> ()",
        "scale_t = CastLike(scale_f, Q)",
        "q_heads = Transpose <perm: ints = @q_perm> (Q)",
        "q_scaled = Mul(q_heads, scale_t)",
        "k_heads = Transpose <perm: ints = @k_perm> (K)",
        "v_heads = Transpose <perm: ints = @v_perm> (V)",
    ]
    if v.gqa:
        # The query heads of one key/value head are consecutive, so they fold into the query rows.
        lines += [
            "q_batch = Shape <start: int = 0, end: int = 1> (q_scaled)",
            "q_head = Shape <start: int = 1, end: int = 2> (q_scaled)",
            "q_rows = Shape <start: int = 2, end: int = 3> (q_scaled)",
            "q_dim = Shape <start: int = 3, end: int = 4> (q_scaled)",
            "kv_head = Shape <start: int = 1, end: int = 2> (k_heads)",
            "kv_len = Shape <start: int = 3, end: int = 4> (k_heads)",
            "v_dim = Shape <start: int = 3, end: int = 4> (v_heads)",
            "folded_rows = Constant <value_ints: ints = [-1]> ()",
            "q_folded_shape = Concat <axis: int = 0> (q_batch, kv_head, folded_rows, q_dim)",
            "q_folded = Reshape(q_scaled, q_folded_shape)",
            "s_folded = MatMul(q_folded, k_heads)",
            "s_shape = Concat <axis: int = 0> (q_batch, q_head, q_rows, kv_len)",
            "s_dot = Reshape(s_folded, s_shape)",
        ]
    else:
        lines += ["s_dot = MatMul(q_scaled, k_heads)"]
    score = "s_dot"
    if v.softcap:
        lines += [
            "cap_f = Constant <value_float: float = @softcap> ()",
            f"cap = CastLike(cap_f, {score})",
            f"s_over_cap = Div({score}, cap)",
            "s_tanh = Tanh(s_over_cap)",
            "s_capped = Mul(s_tanh, cap)",
        ]
        score = "s_capped"
    if v.bias:
        lines += [f"s_biased = Add({score}, bias)"]
        score = "s_biased"
    if v.causal:
        lines += [
            "zero = Constant <value_int: int = 0> ()",
            "one = Constant <value_int: int = 1> ()",
            f"rows_1d = Shape <start: int = -2, end: int = -1> ({score})",
            f"cols_1d = Shape <start: int = -1> ({score})",
            "rows = Squeeze(rows_1d)",
            "cols = Squeeze(cols_1d)",
            "i = Range(zero, rows, one)",
            "j = Range(zero, cols, one)",
            "offset = Sub(cols, rows)",
            "last = Add(i, offset)",
            "last_column_axis = Constant <value_ints: ints = [1]> ()",
            "last_column = Unsqueeze(last, last_column_axis)",
            "visible = LessOrEqual(j, last_column)",
            "hidden_f = Constant <value_float: float = -inf> ()",
            f"hidden = CastLike(hidden_f, {score})",
            f"s_causal = Where(visible, {score}, hidden)",
        ]
        score = "s_causal"
    if v.mask:
        lines += [
            "masked_f = Constant <value_float: float = @mask_value> ()",
            f"masked = CastLike(masked_f, {score})",
            f"s_masked = Where(mask, {score}, masked)",
        ]
        score = "s_masked"
    lines += [f"s_float = Cast <to: int = 1> ({score})", "p_float = Softmax <axis: int = -1> (s_float)"]
    p = "p_float"
    if v.guard:
        lines += [
            "p_nan = IsNaN(p_float)",
            "p_zero = Constant <value_float: float = 0.0> ()",
            "p_guarded = Where(p_nan, p_zero, p_float)",
        ]
        p = "p_guarded"
    lines += [f"p = CastLike({p}, V)"]
    if v.gqa:
        lines += [
            "p_folded_shape = Concat <axis: int = 0> (q_batch, kv_head, folded_rows, kv_len)",
            "p_folded = Reshape(p, p_folded_shape)",
            "o_folded = MatMul(p_folded, v_heads)",
            "o_shape = Concat <axis: int = 0> (q_batch, q_head, q_rows, v_dim)",
            "o_heads = Reshape(o_folded, o_shape)",
        ]
    else:
        lines += ["o_heads = MatMul(p, v_heads)"]
    lines += ["O = Transpose <perm: ints = @o_perm> (o_heads)"]
    return "\n".join("  " + line for line in lines)


def _softmax(s: Array) -> Array:
    with np.errstate(invalid="ignore", over="ignore"):
        e = np.exp(s - s.max(axis=-1, keepdims=True, initial=-np.inf))
        return np.asarray(e / e.sum(axis=-1, keepdims=True))


def _spec(v: Variant) -> OpSpec:
    def reference(
        q: Array,
        k: Array,
        value: Array,
        *rest: Array,
        scale: float,
        q_perm: Sequence[int],
        k_perm: Sequence[int],
        v_perm: Sequence[int],
        o_perm: Sequence[int],
        mask_value: float = 0.0,
        softcap: float = 0.0,
    ) -> tuple[Array, ...]:
        extra = list(rest)
        bias = widen(extra.pop(0)) if v.bias else None
        mask = extra.pop(0) if v.mask else None
        q_heads = np.transpose(widen(q), q_perm) * scale
        k_heads = np.transpose(widen(k), k_perm)
        v_heads = np.transpose(widen(value), v_perm)
        if v.gqa:
            group = q_heads.shape[1] // k_heads.shape[1]
            k_heads = np.repeat(k_heads, group, axis=1)
            v_heads = np.repeat(v_heads, group, axis=1)
        s = q_heads @ k_heads
        if v.softcap:
            s = softcap * np.tanh(s / softcap)
        if bias is not None:
            s = s + bias
        if v.causal:
            rows, cols = s.shape[-2:]
            s = np.where(np.arange(cols) <= np.arange(rows)[:, None] + cols - rows, s, -np.inf)
        if mask is not None:
            s = np.where(mask, s, mask_value)
        p = _softmax(s)
        if v.guard:
            p = np.where(np.isnan(p), 0.0, p)
        return (np.transpose(p @ v_heads, o_perm),)

    attributes = {"scale": ir.AttributeType.FLOAT}
    attributes |= dict.fromkeys(("q_perm", "k_perm", "v_perm", "o_perm"), ir.AttributeType.INTS)
    if v.mask:
        attributes["mask_value"] = ir.AttributeType.FLOAT
    if v.softcap:
        attributes["softcap"] = ir.AttributeType.FLOAT
    return OpSpec(
        name=v.name,
        inputs=("Q", "K", "V", *(("bias",) if v.bias else ()), *(("mask",) if v.mask else ())),
        outputs=("O",),
        attributes=attributes,
        body=_body(v),
        reference=reference,
        summary="O = softmax(scale Q K^T + ...) V",
    )


SPECS = tuple(_spec(Variant(*flags)) for flags in itertools.product((False, True), repeat=len(SUFFIXES)))
