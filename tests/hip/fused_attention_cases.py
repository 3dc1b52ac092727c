"""FusedAttention[Bias][Mask][Causal][Gqa][Guard][Softcap] and its variants with a window on the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_float, c_int, c_int64
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tests.hip.case import FLOATS, Case, signed, tolerance_of
from tests.hip.harness import Array, Harness, Plan


@dataclass(frozen=True)
class Problem:
    """Shapes and options of one node.

    Attributes:
        heads: heads of Q; kv_heads: heads of K and V, 0 for the same number.
        rows_first: the memory layout is BSNH instead of BNSH.
        key_major: K is stored as [B, N, D, T].
        bias, mask: their axes of B, H, S, T, such as "BHST" or "T"; "" for none.
        sink: offset of the first key's scores above the others; the other keys have larger values.
        bad: number of infinite or NaN elements of V; hidden_rows: rows that the mask hides completely.
    """

    S: int
    T: int
    D: int
    Dv: int = 0
    B: int = 1
    heads: int = 1
    kv_heads: int = 0
    rows_first: bool = False
    key_major: bool = False
    bias: str = ""
    mask: str = ""
    mask_value: float = float("-inf")
    causal: bool = False
    window: tuple[int, int] | None = None
    guard: bool = False
    softcap: float = 0.0
    scale: float = 0.0
    sink: float = 0.0
    bad: int = 0
    hidden_rows: int = 0

    def __post_init__(self) -> None:
        assert self.window is None or min(self.window) >= 0, "docs/ops.md: else a row may see no key"


def strides(x: Array, axes: str = "BHST") -> list[int]:
    """Returns the element strides of a [B, H, rows, columns] view, with 0 for broadcast axes."""
    return [s // x.itemsize if n > 1 and a in axes else 0 for s, n, a in zip(x.strides, x.shape, "BHST")]


def operand(rng: np.random.Generator, p: Problem, heads: int, rows: int, columns: int, dtype: Any) -> Array:
    """Draws a [B, H, rows, columns] view of a contiguous array."""
    if p.rows_first:
        rows_first: Array = signed(rng, p.B, rows, heads, columns, dtype=dtype).transpose(0, 2, 1, 3)
        return rows_first
    return signed(rng, p.B, heads, rows, columns, dtype=dtype)


def memory(x: Array) -> Array:
    """Returns the contiguous array behind a view made by `operand`."""
    base = x if x.base is None else x.base
    return np.asarray(base)


def reference(p: Problem, q: Array, k: Array, v: Array, bias: Array | None, mask: Array | None, scale: float) -> Array:
    """Computes the definition of docs/ops.md in float64; K is [B, H, T, D] here."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    s = scale * (q @ k.swapaxes(-1, -2))
    if p.softcap:
        s = p.softcap * np.tanh(s / p.softcap)
    if bias is not None:
        s = s + bias.astype(np.float64)
    if p.causal:
        s = np.where(np.arange(p.T) <= np.arange(p.S)[:, None] + p.T - p.S, s, -np.inf)
    if mask is not None:
        s = np.where(mask, s, p.mask_value)
    if p.window:
        behind = np.arange(p.T) - (np.arange(p.S)[:, None] + p.T - p.S)
        s = np.where((behind >= -p.window[0]) & (behind <= p.window[1]), s, -np.inf)
    with np.errstate(invalid="ignore"):
        e = np.exp(s - s.max(axis=-1, keepdims=True, initial=-np.inf))
        weights = e / e.sum(axis=-1, keepdims=True)
        if p.guard:
            weights = np.where(np.isnan(weights), 0.0, weights)
        return np.asarray(weights @ v)


def case(name: str, dtype: Any, p: Problem, rows: int = -1) -> Case:
    """Makes a case; `rows` is an AttentionRows (operators/attention/attention/shape.h), -1 for the plan's choice."""
    p = replace(p, Dv=p.Dv or p.D, kv_heads=p.kv_heads or p.heads)
    rng = np.random.default_rng([p.S, p.T, p.D, p.heads])
    scale = float(np.float32(p.scale or 1 / np.sqrt(max(p.D, 1))))
    q = operand(rng, p, p.heads, p.S, p.D, dtype)
    k = operand(rng, p, p.kv_heads, p.T, p.D, dtype)
    v = operand(rng, p, p.kv_heads, p.T, p.Dv, dtype)
    if p.sink:
        q[..., 0], k[..., 0] = 4, 0
        k[..., 0, 0] = p.sink / (4 * scale)
        v += dtype(1)
        v[..., 0, :] = 0
    for i in range(p.bad):
        v[rng.integers(p.B), rng.integers(p.kv_heads), rng.integers(p.T), rng.integers(p.Dv)] = (np.inf, np.nan)[i % 2]
    k_memory, k_strides = memory(k), strides(k)
    if p.key_major:
        k_memory = np.ascontiguousarray(k.swapaxes(-1, -2))
        k_strides = strides(k_memory.swapaxes(-1, -2))
    inputs = [memory(q), k_memory, memory(v)]
    shape = (p.B, p.heads, p.S, p.T)
    bias = mask = None
    bias_strides = mask_strides = [0, 0, 0, 0]
    if p.bias:
        bias = signed(rng, *(n if a in p.bias else 1 for n, a in zip(shape, "BHST")), dtype=dtype)
        bias_strides = strides(bias)
        inputs.append(bias)
    if p.mask:
        mask = rng.random([n if a in p.mask else 1 for n, a in zip(shape, "BHST")]) < 0.7
        mask[..., : p.hidden_rows, :] = False
        mask_strides = strides(mask)
        inputs.append(mask)
    o = reference(p, q, k, v, bias, mask, scale)
    o_strides = strides(np.empty((p.B, p.heads, p.S, p.Dv), dtype))
    if p.rows_first:
        o = np.ascontiguousarray(o.transpose(0, 2, 1, 3))
        o_strides = strides(o.astype(dtype).transpose(0, 2, 1, 3))
    sizes = [p.B, p.heads, p.S, p.T, p.D, p.Dv, p.heads // p.kv_heads]
    for s in (strides(q), k_strides, strides(v), o_strides, bias_strides, mask_strides):
        sizes += s
    sizes += p.window or (0, 0)
    flags = bool(p.bias) | bool(p.mask) << 1 | p.causal << 2 | p.guard << 3 | bool(p.window) << 4

    def plan(harness: Harness, facts: int) -> Plan:
        half, values = c_int(dtype == np.float16), (c_int64 * len(sizes))(*sizes)
        settings = (c_float(scale), c_float(p.softcap), c_float(p.mask_value), c_int(rows))
        return harness.plan("fused_attention", facts, half, values, c_int(flags), *settings)

    return Case(name, "FusedAttention", inputs, [o], plan, tolerance_of(dtype))


# One row, one key, partial blocks, heads not divisible by the vector length, different heads of K and of V, every
# option alone and combined, rows and work-groups without visible keys, and non-finite values of V hidden by the causal
# mask.
BY_HEAD: dict[int, tuple[Problem, ...]] = {
    64: (
        Problem(1, 1, 64),
        Problem(7, 5, 40, B=2, heads=3, rows_first=True),
        Problem(64, 64, 64, heads=2, causal=True),
        Problem(65, 131, 64, Dv=48, bias="HST", heads=2),
        Problem(70, 67, 24, B=2, heads=2, mask="BT", mask_value=-1e4),
        Problem(33, 97, 19, Dv=37, softcap=3.0, scale=0.9),
        Problem(5, 77, 64, heads=6, kv_heads=2, causal=True, rows_first=True),
        Problem(40, 24, 32, causal=True, guard=True, bad=3),
        Problem(66, 129, 56, mask="ST", guard=True, hidden_rows=5, bad=2),
        Problem(130, 140, 8, heads=2, bias="BT", mask="S", causal=True, scale=-0.3),
        Problem(20, 70, 64, key_major=True, Dv=16),
        Problem(40, 64, 16, causal=True, mask="ST", mask_value=-3.0, bad=2),
        Problem(70, 400, 16, sink=12.0),
        Problem(90, 90, 32, heads=2, window=(7, 0)),
        Problem(40, 700, 16, heads=4, kv_heads=2, window=(130, 2**31 - 1), softcap=4.0),
        Problem(33, 50, 24, window=(0, 3), mask="ST", guard=True, hidden_rows=4, bad=2),
        Problem(70, 1200, 8, heads=2, window=(20, 5), bad=3),
        Problem(60, 40, 16, window=(2, 1), bias="HST", guard=True, bad=2),
        Problem(20, 1100, 16, window=(40, 60), bad=1),
        Problem(70, 132, 64, B=2, heads=2, bias="HST", mask="BT", mask_value=-65504.0, guard=True),
        Problem(66, 128, 40, mask="ST", guard=True, hidden_rows=5, bad=2, causal=True),
    ),
    128: (
        Problem(17, 45, 128),
        Problem(66, 70, 72, Dv=128, B=2, causal=True, rows_first=True),
        Problem(3, 200, 80, heads=4, kv_heads=2, bias="ST", softcap=20.0),
        Problem(49, 51, 99, Dv=101, mask="HST", hidden_rows=2, heads=2),
        Problem(80, 64, 128, Dv=64, causal=True, bad=4),
        Problem(64, 33, 120, bias="BHST", mask="T", mask_value=-100.0, guard=True, B=2),
        Problem(1, 90, 128, heads=8, kv_heads=1, guard=True),
        Problem(31, 65, 96, key_major=True),
        Problem(129, 16, 104, rows_first=True, heads=2),
        Problem(2, 3, 65),
        Problem(30, 100, 112, B=2, causal=True, guard=True, bad=2),
        Problem(50, 30, 128, heads=2, kv_heads=1, mask="BHST", mask_value=-2.0, causal=True),
        Problem(18, 66, 88, bias="S", rows_first=True, scale=0.5),
        Problem(13, 37, 70, Dv=90, bias="T", mask="ST", softcap=1.5, guard=True, hidden_rows=1),
        Problem(67, 35, 128, mask="T", key_major=True),
        Problem(66, 600, 72, heads=2, window=(30, 0), rows_first=True),
        Problem(40, 33, 128, window=(4, 2), mask="T", mask_value=-1e4, guard=True),
        Problem(130, 40, 72, causal=True, guard=True, bad=2),
        Problem(130, 40, 72, causal=True, guard=True, bad=2, softcap=5.0),
        Problem(50, 100, 128, bias="ST", mask="ST", guard=True, hidden_rows=3, bad=2),
    ),
    256: (
        Problem(5, 9, 256),
        Problem(35, 40, 160, causal=True, heads=2),
        Problem(66, 19, 200, Dv=136, bias="T"),
        Problem(16, 48, 129, mask="ST", guard=True, hidden_rows=3),
        Problem(9, 70, 192, heads=4, kv_heads=2, rows_first=True, B=2),
        Problem(20, 33, 136, Dv=256, softcap=5.0),
        Problem(40, 41, 256, causal=True, guard=True, bad=3),
        Problem(3, 64, 150, key_major=True, bias="ST"),
        Problem(65, 17, 248, Dv=256),
        Problem(2, 50, 131, rows_first=True, heads=3),
        Problem(17, 18, 256, bias="HST", mask="T", heads=2, causal=True),
        Problem(33, 16, 144, mask="BS", B=2, mask_value=-7.0),
        Problem(8, 31, 224, Dv=160, scale=-0.1),
        Problem(10, 65, 256, softcap=50.0, guard=True, causal=True, heads=2, kv_heads=1),
        Problem(20, 70, 144, window=(9, 1), heads=2, kv_heads=1),
        Problem(20, 72, 144, bias="HST", mask="ST", mask_value=-9.0, guard=True, heads=2),
        Problem(130, 40, 136, causal=True, guard=True, bad=2),
        Problem(130, 40, 136, causal=True, guard=True, bad=2, softcap=5.0),
    ),
}
# Few rows and many keys: the keys are split.
SPLIT = (
    Problem(1, 600, 64),
    Problem(3, 515, 40, guard=True, mask="ST", hidden_rows=2, bad=2),
    Problem(9, 1100, 32, heads=2, causal=True, rows_first=True),
    Problem(2, 640, 64, heads=4, kv_heads=2, bias="HST", causal=True, bad=3),
    Problem(1, 777, 128, mask="T", mask_value=-50.0),
    Problem(20, 530, 72, Dv=24, softcap=2.0),
    Problem(1, 520, 256, guard=True, rows_first=True, heads=2),
    Problem(40, 513, 136, Dv=8, causal=True, guard=True),
    Problem(600, 560, 8, causal=True, guard=True, bad=2),
    Problem(2, 1500, 16, sink=12.0),
    Problem(1, 1300, 32, heads=2, window=(300, 0)),
    Problem(3, 2100, 16, window=(600, 0), mask="ST", guard=True, hidden_rows=1, bad=2),
    Problem(8, 1100, 8, heads=4, kv_heads=2, window=(5, 2**31 - 1), bad=1),
)
# At most four rows and no option between the GEMMs, by head size: fewer keys than a group of work-items reads at once,
# partial splits, heads that share keys, several batch entries, small values.
FEW = {
    64: (
        Problem(1, 1, 64), Problem(1, 700, 64), Problem(4, 33, 40, heads=2), Problem(1, 130, 64, heads=6, kv_heads=2),
        Problem(2, 257, 24, Dv=48, B=2, rows_first=True), Problem(3, 1100, 8), Problem(1, 64, 56, Dv=16, scale=0.7),
        Problem(2, 300, 64, heads=4, kv_heads=2, B=2), Problem(1, 600, 32, sink=12.0),
    ),
    128: (
        Problem(1, 1, 128), Problem(1, 700, 128), Problem(4, 33, 80, heads=2), Problem(1, 90, 128, heads=8, kv_heads=2),
        Problem(2, 257, 96, Dv=128, B=2, rows_first=True), Problem(3, 540, 72), Problem(1, 64, 120, Dv=8, scale=0.7),
        Problem(2, 40, 128, heads=4, kv_heads=2, B=2),
    ),
    256: (
        Problem(1, 3, 256), Problem(1, 600, 256), Problem(4, 33, 160), Problem(1, 50, 256, heads=4, kv_heads=2),
        Problem(2, 100, 136, Dv=256, B=2, rows_first=True), Problem(3, 540, 200), Problem(1, 64, 248, Dv=8, scale=0.7),
        Problem(2, 40, 256, heads=4, kv_heads=2, B=2),
    ),
}  # fmt: skip


def empty_cases() -> Iterator[Case]:
    """No keys, and heads without elements."""
    for dtype in (np.float32, np.float16):
        for i, p in enumerate(
            (Problem(12, 0, 16), Problem(12, 0, 16, guard=True, causal=True), Problem(9, 33, 0, Dv=3))
        ):
            yield case(f"attention_empty_{np.dtype(dtype)}-{i}", dtype, p)


def cases() -> Iterator[Case]:
    for suffix, dtype in FLOATS:
        for head, problems in (*BY_HEAD.items(), (0, SPLIT)):
            for i, p in enumerate(problems):
                name = f"attention_{'split' if head == 0 else head}_{suffix}-{i}_s{p.S}_t{p.T}_d{p.D}"
                yield case(name, dtype, p, rows=0)
        for head, problems in FEW.items():
            for i, p in enumerate(problems if head < 256 or dtype == np.float16 else ()):
                yield case(f"attention_few_{head}_{suffix}-{i}_s{p.S}_t{p.T}_d{p.D}", dtype, p)
    for i, p in enumerate((*BY_HEAD[64], *BY_HEAD[128], *SPLIT)):
        yield case(f"attention_many_f32-{i}_s{p.S}_t{p.T}_d{p.D}", np.float32, p, rows=1)
