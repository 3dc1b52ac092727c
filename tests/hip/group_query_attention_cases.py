"""GroupQueryAttention on the GPU, with separate cases for new tokens, caches and the attention."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_float, c_int
from dataclasses import dataclass
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from tests.contrib.references.rotary import rotate_reference
from tests.hip.case import FLOATS, Case, signed, tolerance_of
from tests.hip.harness import Array, Harness, Plan, int64s

POSITIONS = 700


@dataclass(frozen=True)
class Setting:
    """One node. `held` is the number of cached tokens; `lengths` are the sequence lengths including the new tokens."""

    B: int
    S: int
    N: int
    G: int
    H: int
    length: int
    past_length: int
    lengths: tuple[int, ...]
    half: int = 0
    window: int = 0
    first: bool = False
    packed: bool = False
    causal: bool = True
    smooth: bool = False
    interleaved: bool = False
    ids: bool = False
    norms: bool = False
    sink: bool = False
    bias: tuple[int, int, int] = (0, 0, 0)
    softcap: float = 0.0
    epsilon: float = 0.0
    capacity: int = 0

    def plan(self, harness: Harness, facts: int, dtype: Any, part: int) -> Plan:
        sizes = [
            self.B,
            self.S,
            self.N,
            self.G,
            self.H,
            self.length,
            self.past_length,
            self.half,
            POSITIONS,
            self.window,
            self.capacity,
        ]
        flags = (
            self.first,
            self.packed,
            self.causal,
            self.smooth,
            self.interleaved,
            self.ids,
            self.norms,
            self.sink,
        )
        numbers = (c_float(1 / np.sqrt(self.H)), c_float(self.softcap), c_float(self.epsilon))
        options = (c_int(part), int64s([*sizes, *self.bias]), (c_int * 8)(*flags), *numbers)
        return harness.plan("gqa", facts, c_int(dtype == np.float16), *options)

    @property
    def changes_queries(self) -> bool:
        return self.half > 0 or self.norms

    @property
    def begins(self) -> list[int]:
        return [0 if self.first else n - self.S for n in self.lengths]


SETTINGS = (
    Setting(1, 4, 4, 2, 16, 4, 0, (4,), half=8, first=True),
    Setting(2, 1, 4, 2, 16, 8, 7, (8, 6), half=4, interleaved=True),
    Setting(2, 1, 6, 2, 32, 12, 12, (9, 5), half=16, ids=True, window=3),
    Setting(1, 3, 2, 2, 64, 700, 700, (600,), smooth=True),
    Setting(1, 5, 3, 1, 8, 9, 9, (7,), packed=True, half=4, softcap=2.0),
    Setting(2, 2, 2, 1, 128, 20, 20, (5, 19), sink=True, bias=(1, 2, 19)),
    Setting(1, 7, 8, 4, 256, 300, 293, (300,), bias=(1, 1, 300)),
    Setting(2, 3, 2, 1, 20, 3, 0, (3, 2), first=True, causal=False, packed=True),
    Setting(2, 1, 4, 2, 128, 12, 12, (9, 5), half=64, norms=True, epsilon=1e-6),
    Setting(1, 5, 3, 1, 20, 9, 7, (9,), packed=True, half=4, interleaved=True, norms=True, epsilon=0.1),
    Setting(2, 3, 4, 1, 64, 5, 0, (3, 2), first=True, norms=True, epsilon=1e-6),
    # Prompts with padding on the right.
    Setting(2, 5, 2, 1, 16, 5, 0, (5, 2), first=True),
    Setting(2, 5, 2, 2, 16, 9, 0, (5, 1), first=True, window=2),
    Setting(2, 5, 2, 2, 16, 9, 0, (5, 1), first=True, window=2, softcap=2.0),
    Setting(2, 5, 2, 2, 16, 9, 0, (5, 1), first=True, window=1, smooth=True),
    # Rows that are not entire vectors, and positions outside the tables.
    Setting(2, 3, 4, 2, 10, 12, 12, (9, 4), half=5),
    Setting(1, 2, 2, 1, 10, 7, 5, (7,), packed=True, half=3, interleaved=True, sink=True),
    Setting(2, 1, 2, 2, 6, 900, 900, (800, 3), half=3, norms=True, epsilon=1e-3),
    Setting(1, 1, 3, 3, 9, 5, 5, (1,), packed=True, window=2),
    Setting(2, 4, 2, 1, 34, 6, 6, (4, 2), first=True, half=17),
    Setting(1, 1, 4, 1, 26, 60, 60, (41,), half=13, interleaved=True, softcap=3.0),
    Setting(3, 1, 2, 1, 22, 30, 30, (30, 1, 17), half=4, ids=True, smooth=True),
    Setting(2, 2, 2, 2, 14, 9, 9, (9, 5), causal=False),
)
# More rows for each key head than the kernels for few rows accept: prompts, parts of prompts after others, and one
# token of many query heads, by size of a head.
MANY = (
    Setting(1, 70, 4, 2, 64, 70, 0, (70,), first=True),
    Setting(2, 33, 4, 1, 64, 200, 200, (33, 20), first=True, window=9),
    Setting(1, 40, 4, 2, 64, 300, 300, (290,)),
    Setting(1, 9, 2, 2, 64, 1200, 1200, (1100,), window=40),
    Setting(1, 9, 2, 1, 64, 1200, 1200, (700,), sink=True),
    Setting(3, 1, 7, 1, 64, 900, 900, (900, 1, 300)),
    Setting(2, 1, 16, 2, 64, 600, 600, (513, 64), window=100, smooth=True),
    Setting(1, 20, 8, 2, 128, 20, 0, (20,), first=True, sink=True),
    Setting(1, 40, 4, 2, 128, 150, 150, (90,)),
    Setting(2, 1, 8, 1, 128, 700, 700, (650, 12)),
    Setting(1, 30, 2, 2, 128, 600, 600, (600,), window=33, softcap=4.0),
    Setting(2, 1, 7, 1, 128, 640, 640, (640, 9), bias=(2, 7, 640), smooth=True),
    Setting(1, 24, 2, 1, 256, 60, 60, (50,)),
    Setting(2, 1, 8, 1, 256, 520, 520, (520, 3), sink=True),
)

# Windowed caches: before and after the first token is evicted, and with steps longer than the cache.
WINDOWED = (
    Setting(1, 1, 2, 2, 16, 5, 4, (4,), window=4, capacity=4, half=8),
    Setting(1, 1, 2, 2, 16, 5, 4, (5,), window=4, capacity=4),
    Setting(2, 1, 2, 1, 12, 8, 7, (30, 7), window=4, capacity=7, half=6),
    Setting(1, 3, 2, 2, 6, 10, 7, (10,), window=4, capacity=7, half=3),
    Setting(1, 9, 2, 1, 8, 14, 5, (14,), window=5, capacity=5),
    Setting(1, 9, 2, 1, 8, 14, 5, (9,), window=3, capacity=5, first=True, half=4),
    Setting(2, 2, 4, 2, 64, 302, 300, (1000, 299), window=256, capacity=300),
    Setting(1, 70, 1, 1, 4, 72, 2, (73,), window=1, capacity=2, half=2),
    Setting(3, 1, 2, 1, 5, 7, 6, (3, 6, 40), window=5, capacity=6),
    Setting(2, 4, 4, 2, 10, 13, 9, (13, 8), window=6, capacity=9, half=5),
    Setting(1, 17, 3, 3, 7, 40, 23, (90,), window=20, capacity=23),
)


def decode(H: int) -> Iterator[Setting]:
    """Makes one new token with one query head for each key head, then with several."""
    yield Setting(1, 1, 1, 1, H, 700, 700, (700,))
    yield Setting(2, 1, 2, 2, H, 90, 90, (3, 90))
    yield Setting(2, 1, 2, 2, H, 1100, 1100, (1030, 5), window=300)
    yield Setting(1, 1, 2, 2, H - 8, 40, 40, (33,), sink=True, softcap=5.0)
    yield Setting(3, 1, 1, 1, H, 530, 530, (1, 64, 530), smooth=True)
    yield Setting(1, 1, 2, 2, H, 1, 0, (1,), first=True)
    yield Setting(1, 1, 4, 1, H, 700, 700, (650,))
    yield Setting(2, 1, 8, 2, H, 300, 300, (300, 7), sink=True)
    yield Setting(2, 1, 6, 2, H, 600, 600, (600, 130), window=70, smooth=True)
    yield Setting(1, 2, 4, 2, H, 200, 200, (150,), causal=False)
    yield Setting(2, 1, 3, 1, H - 16, 1030, 1030, (1030, 257), softcap=3.0)
    yield Setting(1, 1, 2, 1, H, 513, 513, (258,), half=H // 2)


def lengths_of(s: Setting) -> Array:
    return np.array([n - 1 for n in s.lengths], np.int32)


def new(name: str, dtype: Any, s: Setting) -> Case:
    """Makes a case for the new tokens; the rest of the caches is not written."""
    rng = np.random.default_rng([s.B, s.S, s.H, 0])
    counts = (s.N, s.G, s.G)
    rows = signed(rng, s.B, s.S, (s.N + 2 * s.G) * s.H, dtype=dtype)
    inputs = [np.ascontiguousarray(x) for x in np.split(rows, [s.N * s.H, (s.N + s.G) * s.H], axis=-1)]
    cos, sin = (signed(rng, POSITIONS, max(s.half, 1), dtype=dtype) for _ in range(2))
    weights = [signed(rng, s.H, dtype=dtype) for _ in range(2)]
    begins = np.array(s.begins)
    at = rng.integers(0, POSITIONS, (s.B, s.S)) if s.ids else begins[:, None] + np.arange(s.S)
    inside = (at < POSITIONS)[..., None, None]
    wanted = []
    for part, (x, n) in enumerate(zip(inputs, counts)):
        heads = x.reshape(s.B, s.S, n, s.H).astype(np.float64)
        if s.norms and part < 2:
            heads = heads / np.sqrt((heads**2).mean(-1, keepdims=True) + s.epsilon) * weights[part]
        if s.half and part < 2:
            c, d = (table[np.minimum(at, POSITIONS - 1)].astype(np.float64) for table in (cos, sin))
            turned = rotate_reference(heads, c, d, s.interleaved)
            heads = np.where(inside, turned, 0.0)
        if part > 0:
            cache = np.full((s.B, n, s.length, s.H), np.nan)
            for b, begin in enumerate(begins):
                cache[b, :, begin : begin + s.S] = heads[b].transpose(1, 0, 2)
            heads = cache
        wanted.append(heads if part > 0 or s.changes_queries else np.full_like(heads, np.nan))
    if s.packed:
        inputs[0] = rows
    inputs += [cos, sin, lengths_of(s), at.astype(np.int64), *weights]
    return Case(name, "GroupQueryAttention", inputs, wanted, partial(s.plan, dtype=dtype, part=0), tolerance_of(dtype))


def past(name: str, dtype: Any, s: Setting) -> Case:
    """Makes a case for the past tokens and the zeros of the cache; the new tokens are not written."""
    rng = np.random.default_rng([s.B, s.S, s.H, 1])
    held = signed(rng, s.B, s.G, max(s.past_length, 1), s.H, dtype=dtype)
    y = np.zeros((s.B, s.G, s.length, s.H))
    for b, begin in enumerate(s.begins):
        y[b, :, :begin] = held[b, :, :begin]
        y[b, :, begin : begin + s.S] = np.nan
    plan = partial(s.plan, dtype=dtype, part=1)
    return Case(name, "GroupQueryAttention", [held, lengths_of(s)], [y], plan, tolerance_of(dtype))


def quantized(name: str, dtype: Any, s: Setting, channels: bool, is_float8: bool) -> Case:
    """Makes a case for a quantized cache: past tokens, new tokens, zeros, and their values; float8 as its bits."""
    rng = np.random.default_rng([s.B, s.S, s.H, 2])
    held = rng.integers(-128, 128, (s.B, s.G, max(s.past_length, 1), s.H)).astype(np.int8)
    scale = (0.01 + 0.02 * rng.random((1, s.G, 1, s.H) if channels else 1)).astype(np.float32)
    tokens = signed(rng, s.B, s.G, s.length, s.H, dtype=dtype)
    y = np.zeros((s.B, s.G, s.length, s.H), np.int8)
    if is_float8:
        held[held == -1] = held[held == 127] = 126  # not NaN
        scale /= 50  # from subnormal values to those that saturate
        new = np.clip(tokens.astype(np.float32) / scale, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.int8)
    else:
        new = np.clip(np.rint(tokens.astype(np.float32) / scale), -128, 127).astype(np.int8)
    for b, begin in enumerate(s.begins):
        y[b, :, :begin] = held[b, :, :begin]
        y[b, :, begin : begin + s.S] = new[b, :, begin : begin + s.S]
    z = (y.view(ml_dtypes.float8_e4m3fn) if is_float8 else y).astype(np.float64) * scale
    inputs = [held, lengths_of(s), scale, tokens]
    plan = partial(s.plan, dtype=dtype, part=(7 if is_float8 else 3) + channels)
    tolerance = tolerance_of(dtype)
    return Case(name, "GroupQueryAttention", inputs, [y, z], plan, tolerance, output_dtype=(np.int8, dtype))


def held_after(tokens: int, s: Setting) -> int:
    """Returns the number of tokens that a windowed cache holds, as the schema of ONNX Runtime defines it."""
    step = s.capacity - s.window + 1
    return tokens if tokens <= s.capacity else tokens - step * -(-(tokens - s.capacity) // step)


def windowed(name: str, dtype: Any, s: Setting, evicts: bool) -> Case:
    """Makes a case for a windowed cache: its tokens in front of the new ones, or the last tokens after these."""
    rng = np.random.default_rng([s.B, s.S, s.H, 3])
    rows = s.length if evicts else s.capacity
    held = signed(rng, s.B, s.G, rows, s.H, dtype=dtype)
    inputs, plan = [held, lengths_of(s)], partial(s.plan, dtype=dtype, part=6 if evicts else 5)
    y = np.zeros((s.B, s.G, s.capacity if evicts else s.length, s.H))
    ends, ids = np.zeros(s.B, np.int32), np.zeros((s.B, s.S), np.int64)
    for b, n in enumerate(s.lengths):
        before = held_after(s.begins[b], s)
        ends[b], ids[b] = before + s.S - 1, s.begins[b] + np.arange(s.S)
        after = held_after(n, s)
        first = before + s.S - after if evicts else 0
        count = after if evicts else before
        y[b, :, :count] = held[b, :, first : first + count]
    if evicts:
        return Case(name, "GroupQueryAttention", inputs, [y], plan, tolerance_of(dtype))
    y[:, :, s.capacity :] = np.nan
    wanted: list[Array] = [y, ends, ids] if s.half else [y, ends]  # without a rotation, positions are not needed
    kinds = (dtype, np.int32, np.int64)[: len(wanted)]
    return Case(name, "GroupQueryAttention", inputs, wanted, plan, tolerance_of(dtype), output_dtype=kinds)


def attention(name: str, dtype: Any, s: Setting) -> Case:
    """Makes a case for the attention; the cache is NaN behind the keys of each sequence."""
    rng = np.random.default_rng([s.B, s.S, s.H])
    row = (s.N + 2 * s.G if s.packed and not s.changes_queries else s.N) * s.H
    query = signed(rng, s.B, s.S, row, dtype=dtype)
    keys, values = (signed(rng, s.B, s.G, s.length, s.H, dtype=dtype) for _ in range(2))
    for b, n in enumerate(s.lengths):
        keys[b, :, n:] = values[b, :, n:] = np.nan
    bias = signed(rng, s.bias[0] or 1, s.bias[1] or 1, s.S, s.bias[2] or 1, dtype=dtype)
    sink = signed(rng, s.N, dtype=dtype)
    q = query.reshape(s.B, s.S, -1, s.H).astype(np.float64)
    y = np.zeros((s.B, s.S, s.N, s.H))
    for b, i, n in np.ndindex(s.B, s.S, s.N):
        position = s.begins[b] + i
        if s.softcap or s.sink or s.smooth:
            position = min(position, s.lengths[b] - 1)
        last = min(position + 1, s.lengths[b]) if s.causal else s.lengths[b]
        seen = slice(max(0, position - s.window + 1) if s.window else 0, last)
        if seen.start >= seen.stop:
            continue
        g = n * s.G // s.N
        scores = keys[b, g, seen].astype(np.float64) @ q[b, i, n] / np.sqrt(s.H)
        if s.softcap:
            scores = s.softcap * np.tanh(scores / s.softcap)
        if s.bias[2]:
            scores = scores + bias[b % s.bias[0], n % s.bias[1], i, seen]
        more = float(sink[n]) if s.sink else 0.0 if s.smooth else -np.inf
        top = max(scores.max(), more)
        e = np.exp(scores - top)
        y[b, i, n] = e / (e.sum() + np.exp(more - top)) @ values[b, g, seen].astype(np.float64)
    inputs = [query, keys, values, bias, np.zeros(1, bool), lengths_of(s), sink]
    plan = partial(s.plan, dtype=dtype, part=2)
    return Case(name, "GroupQueryAttention", inputs, [y], plan, tolerance_of(dtype))


def cases() -> Iterator[Case]:
    for suffix, dtype in FLOATS:
        for i, s in enumerate(SETTINGS):
            yield new(f"gqa_new_{suffix}-{i}", dtype, s)
            if not s.first or s.length > s.S:
                yield past(f"gqa_past_{suffix}-{i}", dtype, s)
            yield attention(f"gqa_{suffix}-{i}", dtype, s)
            yield quantized(f"gqa_int8_{suffix}-{i}", dtype, s, i % 2 == 1, is_float8=False)
            yield quantized(f"gqa_float8_{suffix}-{i}", dtype, s, i % 2 == 1, is_float8=True)
        for i, s in enumerate(WINDOWED):
            yield windowed(f"gqa_window_{suffix}-{i}", dtype, s, evicts=False)
            yield windowed(f"gqa_evict_{suffix}-{i}", dtype, s, evicts=True)
        for i, s in enumerate(MANY):
            yield attention(f"gqa_many_{suffix}-{i}", dtype, s)
        for H in (64, 128, 256) if dtype == np.float16 else (64, 128):
            for i, s in enumerate(decode(H)):
                yield attention(f"gqa_decode_{H}_{suffix}-{i}", dtype, s)
