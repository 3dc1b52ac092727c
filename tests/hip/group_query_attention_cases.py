"""GroupQueryAttention on the GPU: the cache update and the attention, with a separate case for each launch."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_float, c_int
from dataclasses import dataclass
from functools import partial
from typing import Any

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
)


def lengths_of(s: Setting) -> Array:
    return np.array([n - 1 for n in s.lengths], np.int32)


def heads(name: str, dtype: Any, s: Setting, part: int) -> Case:
    """Makes a case for part 0, the normalized and rotated queries, or 1 and 2, the cache of keys and of values."""
    rng = np.random.default_rng([s.B, s.S, s.H, part])
    n = s.N if part == 0 else s.G
    before = (0, s.N, s.N + s.G)[part] if s.packed else 0
    row = s.N + 2 * s.G if s.packed else n
    x = signed(rng, s.B, s.S, row * s.H, dtype=dtype)
    past = signed(rng, s.B, s.G, max(s.past_length, 1), s.H, dtype=dtype)
    cos, sin = (signed(rng, POSITIONS, max(s.half, 1), dtype=dtype) for _ in range(2))
    weight = signed(rng, s.H, dtype=dtype)
    begins = np.array(s.begins)
    at = rng.integers(0, POSITIONS, (s.B, s.S)) if s.ids else begins[:, None] + np.arange(s.S)
    new = x.reshape(s.B, s.S, row, s.H)[:, :, before : before + n].astype(np.float64)
    if s.norms and part != 2:
        new = new / np.sqrt((new**2).mean(-1, keepdims=True) + s.epsilon) * weight
    if s.half and part != 2:
        new = rotate_reference(new, cos[at].astype(np.float64), sin[at].astype(np.float64), s.interleaved)
    new = new.transpose(0, 2, 1, 3)
    if part == 0:
        y = new
    else:
        y = np.zeros((s.B, n, s.length, s.H))
        for b, begin in enumerate(begins):
            y[b, :, :begin] = past[b, :, :begin]
            y[b, :, begin : begin + s.S] = new[b]
    inputs = [x, past, cos, sin, lengths_of(s), at.astype(np.int64), weight]
    plan = partial(s.plan, dtype=dtype, part=part)
    return Case(name, "GroupQueryAttention", inputs, [y], plan, tolerance_of(dtype))


def attention(name: str, dtype: Any, s: Setting) -> Case:
    rng = np.random.default_rng([s.B, s.S, s.H])
    row = (s.N + 2 * s.G if s.packed else s.N) * s.H
    query = signed(rng, s.B, s.S, row, dtype=dtype)
    keys, values = (signed(rng, s.B, s.G, s.length, s.H, dtype=dtype) for _ in range(2))
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
    inputs = [query, keys, values, lengths_of(s), bias, sink]
    plan = partial(s.plan, dtype=dtype, part=3)
    return Case(name, "GroupQueryAttention", inputs, [y], plan, tolerance_of(dtype))


def cases() -> Iterator[Case]:
    for suffix, dtype in FLOATS:
        for i, s in enumerate(SETTINGS):
            for part, what in enumerate(("queries", "keys", "values")):
                if part or s.half or s.norms:
                    yield heads(f"gqa_{what}_{suffix}-{i}", dtype, s, part)
            yield attention(f"gqa_{suffix}-{i}", dtype, s)
