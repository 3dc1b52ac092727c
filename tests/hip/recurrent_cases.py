"""LSTM, GRU and RNN on the GPU after the GEMM of their inputs, against the specification in float64."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_float, c_int, c_int32
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.hip.case import Case, signed, tolerance_of
from tests.hip.harness import Array, Harness, Plan, int64s

KINDS = ("RNN", "GRU", "GRU_reset", "LSTM")
GATES = {"RNN": 1, "GRU": 3, "GRU_reset": 3, "LSTM": 4}


@dataclass(frozen=True)
class Sizes:
    """Directions, sequences, steps and hidden units, and the options of a case."""

    D: int
    B: int
    S: int
    H: int
    backward: bool = False
    batch_first: bool = False
    bias: bool = True
    peepholes: bool = False
    lengths: bool = False
    states: bool = False
    clip: float = 0
    at_once: bool = True


SIZES = (
    Sizes(1, 1, 3, 5), Sizes(2, 3, 4, 17, states=True), Sizes(1, 5, 2, 40, backward=True, lengths=True),
    Sizes(2, 9, 3, 33, lengths=True, states=True, batch_first=True), Sizes(1, 2, 2, 64, bias=False, peepholes=True),
    Sizes(1, 4, 2, 8, clip=0.3, peepholes=True, states=True), Sizes(2, 1, 5, 1), Sizes(1, 2, 0, 7, states=True),
    # More units than LSTM keeps weights for in registers; GRU and RNN have fewer gates and keep them.
    Sizes(2, 3, 3, 65, lengths=True, states=True, backward=True), Sizes(1, 2, 4, 128), Sizes(1, 1, 3, 100, clip=0.4),
    Sizes(1, 2, 2, 120, batch_first=True, lengths=True),
    # A launch for each step.
    Sizes(1, 1, 3, 40, at_once=False), Sizes(2, 10, 2, 9, lengths=True, states=True, at_once=False),
    Sizes(1, 9, 2, 35, batch_first=True, at_once=False),
    Sizes(1, 3, 2, 5, peepholes=True, bias=False, backward=True, at_once=False),
    # Weights in packs, with more packs than a wave has work-items.
    Sizes(1, 3, 2, 264, at_once=False), Sizes(1, 2, 2, 136, states=True),
)  # fmt: skip


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def recurrence(
    kind: str, p: Sizes, lengths: Array, product: Array, r: Array, bias: Array, peepholes: Array, h: Array, c: Array
) -> tuple[Array, Array, Array]:
    """Returns Y [S, D, B, H] and the last states [D, B, H]; `product` is [S, B, D, G H]."""
    G = GATES[kind]
    y = np.zeros((p.S, p.D, p.B, p.H))
    h, c = h.copy(), c.copy()

    def clip(x: Array) -> Array:
        return np.clip(x, -p.clip, p.clip) if p.clip else x

    for d in range(p.D):
        R = r[d].reshape(G, p.H, p.H)
        wb, rb = bias[d].reshape(2, G, p.H)
        pi, po, pf = peepholes[d].reshape(3, p.H)
        for b in range(p.B):
            n = int(lengths[b])
            for s in range(n):
                t = n - 1 - s if d > 0 or p.backward else s
                x = product[t, b, d].reshape(G, p.H) + wb
                before = h[d, b]
                u = R @ before + rb
                if kind == "RNN":
                    after = np.tanh(clip(x[0] + u[0]))
                elif kind == "LSTM":
                    i, f = sigmoid(clip(x[0] + u[0] + pi * c[d, b])), sigmoid(clip(x[2] + u[2] + pf * c[d, b]))
                    c[d, b] = f * c[d, b] + i * np.tanh(clip(x[3] + u[3]))
                    after = sigmoid(clip(x[1] + u[1] + po * c[d, b])) * np.tanh(c[d, b])
                else:
                    z, reset = sigmoid(clip(x[0] + u[0])), sigmoid(clip(x[1] + u[1]))
                    hidden = reset * u[2] if kind == "GRU" else R[2] @ (reset * before) + rb[2]
                    after = (1 - z) * np.tanh(clip(x[2] + hidden)) + z * before
                h[d, b] = after
                y[t, d, b] = after
    return y, h, c


def recurrent(name: str, dtype: Any, kind: str, p: Sizes) -> Case:
    rng = np.random.default_rng([p.D, p.B, p.S, p.H])
    G, lstm = GATES[kind], kind == "LSTM"
    product = signed(rng, p.S, p.B, p.D, G * p.H, dtype=dtype)
    r = (signed(rng, p.D, G * p.H, p.H) / np.sqrt(p.H)).astype(dtype)
    bias = signed(rng, p.D, 2 * G * p.H, dtype=dtype) * dtype(p.bias)
    peepholes = signed(rng, p.D, 3 * p.H, dtype=dtype) * dtype(p.peepholes and lstm)
    lengths = rng.integers(0, p.S + 1, p.B).astype(np.int32) if p.lengths else np.full(p.B, p.S, np.int32)
    h, c = (signed(rng, p.D, p.B, p.H, dtype=dtype) * dtype(p.states) for _ in range(2))
    wide = [x.astype(np.float64) for x in (product, r, bias, peepholes, h, c)]
    y, last_h, last_c = recurrence(kind, p, lengths, *wide)
    if p.batch_first:
        product, y = np.swapaxes(product, 0, 1), y.transpose(2, 0, 1, 3)
        h, c, last_h, last_c = (np.swapaxes(s, 0, 1) for s in (h, c, last_h, last_c))
    numbers = int64s(
        [p.D, p.B, p.S, p.H, p.backward, p.batch_first, p.bias, p.peepholes and lstm, p.lengths, p.states, p.states]
    )

    def plan(harness: Harness, facts: int) -> Plan:
        half, code = c_int(dtype == np.float16), c_int32(KINDS.index(kind))
        return harness.plan("recurrent", facts, half, code, numbers, c_float(p.clip), c_int(p.at_once))

    inputs = [np.ascontiguousarray(x) for x in (product, r, bias, peepholes, lengths, h, c)]
    outputs = [y, last_h, last_c] if lstm else [y, last_h]
    tolerance = tolerance_of(dtype)
    return Case(name, "LSTM", inputs, outputs, plan, tolerance)


def cases() -> Iterator[Case]:
    for dtype in (np.float32, np.float16):
        for i, sizes in enumerate(SIZES):
            for kind in KINDS if i < 4 or sizes.H in (65, 128) else (KINDS[i % 4], KINDS[3 - i % 2]):
                size = f"{sizes.D}x{sizes.B}x{sizes.S}x{sizes.H}"
                yield recurrent(f"recurrent_{kind}_{np.dtype(dtype).name}-{size}-{i}", dtype, kind, sizes)
