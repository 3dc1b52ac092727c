"""FusedAttention[Bias][Mask][Causal][Gqa][Guard][Softcap]: O = softmax(scale Q K^T + ...) V in one node.

FusedAttention[BiasGuard][MaskGuard][Gqa][Softcap]Window: each query attends to its own position, `left` keys before it
and `right` keys after it. As in Causal, the last query is at the position of the last key. A `left` or `right` longer
than the sequence excludes no key. Causal is equivalent to right = 0 and a `left` longer than the sequence.

FusedAttention[Bias][Mask][Causal][Guard]Bf16, CPU only: the operands of both matrix multiplications (scale Q, K, the
probabilities, V) are rounded to bfloat16, to nearest, ties to even. Products, sums, the softmax and all tensors are
float. A kernel may round the exponentials instead of the probabilities; they differ by one factor for each row.

The perms are those of Transpose: q_perm transposes Q to [B, H, S, D], k_perm K to [B, H, D, T], v_perm V to
[B, H, T, Dv]; o_perm is applied to [B, H, S, Dv]. Rank 3 has no H; rank 2 has neither B nor H. Tensors are float or
float16; scores and softmax are computed at least in float32. docs/ops.md has the equations.
T. Dao et al., "FlashAttention", NeurIPS 2022; A. Vaswani et al., "Attention Is All You Need", NeurIPS 2017.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from graphopt.ops.schema import (
    CAST_BFLOAT16_OPSET,
    VALUE_OPSET,
    Array,
    Dialect,
    OpSpec,
    attribute,
    bfloat16,
    cast_like,
    dim,
    ints,
    round_to_bfloat16,
    widen,
)

MIN_ATTENTION_OPSET = 11  # Range, and Softmax along a negative axis
SUFFIXES = ("Bias", "Mask", "Causal", "Gqa", "Guard", "Softcap", "Window")


@dataclass(frozen=True)
class Variant:
    """The optional steps in an operator's name."""

    bias: bool = False
    mask: bool = False
    causal: bool = False
    gqa: bool = False
    guard: bool = False
    softcap: bool = False
    window: bool = False
    bf16: bool = False

    @property
    def name(self) -> str:
        flags = (self.bias, self.mask, self.causal, self.gqa, self.guard, self.softcap, self.window)
        return "FusedAttention" + "".join(s for s, on in zip(SUFFIXES, flags) if on) + ("Bf16" if self.bf16 else "")


def _body(v: Variant, dialect: Dialect) -> str:
    # Scores are float32: attention over pixels exceeds float16's range, and rounding a score of 50 to float16 changes
    # its exponential by up to 1.6 %.
    body = (
        attribute("scale_t", "scale", dialect)
        + "q_heads = Transpose <perm: ints = @q_perm> (Q)\nq_float = Cast <to: int = 1> (q_heads)\n"
        + "q_scaled = Mul(q_float, scale_t)\n"
        + "k_transposed = Transpose <perm: ints = @k_perm> (K)\nk_heads = Cast <to: int = 1> (k_transposed)\n"
        + "v_heads = Transpose <perm: ints = @v_perm> (V)\n"
    )
    if v.gqa:
        # The query heads of one key/value head are consecutive and are folded into the query rows.
        body += "".join(dim(f"q_{i}", "q_scaled", i) for i in range(4))
        body += dim("kv_heads", "k_heads", 1) + dim("kv_len", "k_heads", 3) + dim("v_dim", "v_heads", 3)
        # The number of rows is computed, because Reshape cannot infer -1 for an empty batch.
        body += "q_rows = Mul(q_1, q_2)\nall_rows = Div(q_rows, kv_heads)\n"
        body += "q_folded_shape = Concat <axis: int = 0> (q_0, kv_heads, all_rows, q_3)\n"
        body += "q_folded = Reshape(q_scaled, q_folded_shape)\ns_folded = MatMul(q_folded, k_heads)\n"
        body += "s_shape = Concat <axis: int = 0> (q_0, q_1, q_2, kv_len)\ns_dot = Reshape(s_folded, s_shape)\n"
    elif v.bf16:
        body += round_to_bfloat16("q_rounded", "q_scaled") + round_to_bfloat16("k_rounded", "k_heads")
        body += round_to_bfloat16("v_rounded", "v_heads") + "s_dot = MatMul(q_rounded, k_rounded)\n"
    else:
        body += "s_dot = MatMul(q_scaled, k_heads)\n"
    score = "s_dot"
    if v.softcap:
        body += attribute("cap", "softcap", dialect)
        body += f"s_over_cap = Div({score}, cap)\ns_tanh = Tanh(s_over_cap)\ns_capped = Mul(s_tanh, cap)\n"
        score = "s_capped"
    if v.bias:
        body += f"bias_float = Cast <to: int = 1> (bias)\ns_biased = Add({score}, bias_float)\n"
        score = "s_biased"
    if v.causal or v.window:
        # The position of each query among the keys.
        body += dim("rows_1d", score, -2) + dim("cols_1d", score, -1) + ints("column", -1, 1)
        body += "rows = Squeeze(rows_1d)\ncols = Squeeze(cols_1d)\n"
        body += "zero = Constant <value: tensor = int64 {0}> ()\none = Constant <value: tensor = int64 {1}> ()\n"
        body += "i = Range(zero, rows, one)\nj = Range(zero, cols, one)\noffset = Sub(cols, rows)\n"
        body += "last = Add(i, offset)\nlast_column = Reshape(last, column)\n"
        body += "minus_inf = Constant <value: tensor = float {-inf}> ()\n"
    if v.causal:
        body += f"is_future = Greater(j, last_column)\ns_causal = Where(is_future, minus_inf, {score})\n"
        score = "s_causal"
    if v.mask:
        # Cast from V's type: a mask_value of the lowest float is -inf in float16.
        body += attribute("masked_t", "mask_value", dialect, "V") + "masked = Cast <to: int = 1> (masked_t)\n"
        body += f"s_masked = Where(mask, {score}, masked)\n"
        score = "s_masked"
    if v.window:
        body += "left_t = Constant <value_int: int = @left> ()\nright_t = Constant <value_int: int = @right> ()\n"
        body += "from = Sub(last_column, left_t)\nto = Add(last_column, right_t)\n"
        body += "before = Less(j, from)\nafter = Greater(j, to)\noutside = Or(before, after)\n"
        body += f"s_window = Where(outside, minus_inf, {score})\n"
        score = "s_window"
    body += f"p_float = Softmax <axis: int = -1> ({score})\n"
    p = "p_float"
    if v.guard:
        body += "p_nan = IsNaN(p_float)\np_zero = Constant <value: tensor = float {0.0}> ()\n"
        body += "p_guarded = Where(p_nan, p_zero, p_float)\n"
        p = "p_guarded"
    if v.bf16:
        body += round_to_bfloat16("p_rounded", p) + "o_heads = MatMul(p_rounded, v_rounded)\n"
        return body + "O = Transpose <perm: ints = @o_perm> (o_heads)"
    body += cast_like("p", p, "V", dialect)
    if v.gqa:
        body += "p_folded_shape = Concat <axis: int = 0> (q_0, kv_heads, all_rows, kv_len)\n"
        body += "p_folded = Reshape(p, p_folded_shape)\no_folded = MatMul(p_folded, v_heads)\n"
        body += "o_shape = Concat <axis: int = 0> (q_0, q_1, q_2, v_dim)\no_heads = Reshape(o_folded, o_shape)\n"
    else:
        body += "o_heads = MatMul(p, v_heads)\n"
    return body + "O = Transpose <perm: ints = @o_perm> (o_heads)"


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
        left: int = 0,
        right: int = 0,
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
        if v.bf16:
            q_heads, k_heads, v_heads = (bfloat16(x) for x in (q_heads, k_heads, v_heads))
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
        if v.window:
            rows, cols = s.shape[-2:]
            position = np.arange(rows)[:, None] + cols - rows
            s = np.where((np.arange(cols) >= position - left) & (np.arange(cols) <= position + right), s, -np.inf)
        p = _softmax(s)
        if v.guard:
            p = np.where(np.isnan(p), 0.0, p)
        if v.bf16:
            p = bfloat16(p)
        return (np.transpose(p @ v_heads, o_perm),)

    attributes = {"scale": ir.AttributeType.FLOAT}
    attributes |= dict.fromkeys(("q_perm", "k_perm", "v_perm", "o_perm"), ir.AttributeType.INTS)
    if v.mask:
        attributes["mask_value"] = ir.AttributeType.FLOAT
    if v.softcap:
        attributes["softcap"] = ir.AttributeType.FLOAT
    if v.window:
        attributes |= dict.fromkeys(("left", "right"), ir.AttributeType.INT)
    return OpSpec(
        name=v.name,
        inputs=("Q", "K", "V", *(("bias",) if v.bias else ()), *(("mask",) if v.mask else ())),
        outputs=("O",),
        attributes=attributes,
        body=lambda dialect: _body(v, dialect),
        min_opset=max(MIN_ATTENTION_OPSET, CAST_BFLOAT16_OPSET if v.bf16 else 0, VALUE_OPSET if v.window else 0),
        reference=reference,
        summary=f"O = softmax(scale Q K^T + ...) V{' with products in bfloat16' if v.bf16 else ''}",
        gpu_kernel=not v.bf16,
        float32_only=v.bf16,
    )


def _has_name(v: Variant) -> bool:
    """Returns whether a variant exists: Window excludes Causal (right = 0), and has Guard iff it has Bias or Mask."""
    return not v.window or (not v.causal and v.guard == (v.bias or v.mask))


ALL = (Variant(*flags) for flags in itertools.product((False, True), repeat=len(SUFFIXES)))
VARIANTS = tuple(sorted(filter(_has_name, ALL), key=lambda v: v.window))
SPECS = tuple(
    _spec(v) for v in (*VARIANTS, *(replace(v, bf16=True) for v in VARIANTS if not (v.gqa or v.softcap or v.window)))
)
