"""ONNX's Attention and RotaryEmbedding on the provider, against float64."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.contrib.nodes import RUNTIME
from tests.hip.case import signed
from tests.provider.test_more_ops import both
from tests.provider.together import Alone, check_together
from tests.provider.worker import Array

B, S, T, P, H = 2, 5, 7, 3, 8


def attention(
    dtype: Any,
    *,
    heads: tuple[int, int] = (4, 4),
    flat: bool = False,
    mask: Array | None = None,
    past: int = 0,
    presents: bool = False,
    keys: int = T,
    **attributes: Any,
) -> Alone:
    """Returns a case: `heads` of Q and of K, `keys` new keys after `past` cached ones; `flat`: Q is [B, S, N H]."""
    n, g = heads
    rng = np.random.default_rng([n, g, past, keys, *map(ord, "".join(attributes))])
    q, k, v = (signed(rng, B, h, t, H, dtype=dtype) for h, t in ((n, S), (g, keys), (g, keys)))
    inputs: dict[str, Array | None] = {"q": q, "k": k, "v": v}
    if flat:
        inputs = {
            name: np.ascontiguousarray(x.swapaxes(1, 2)).reshape(B, x.shape[2], -1) for name, x in zip("qkv", (q, k, v))
        }
        attributes |= {"q_num_heads": n, "kv_num_heads": g}
    inputs |= {"mask": mask if mask is None or mask.dtype == bool else mask.astype(dtype)}
    if past:
        old = [signed(rng, B, g, past, H, dtype=dtype) for _ in range(2)]
        inputs |= {"pk": old[0], "pv": old[1]}
        k, v = (np.concatenate(pair, 2) for pair in zip(old, (k, v)))
    wide = [x.astype(np.float64) for x in (q, k.repeat(n // g, 1), v.repeat(n // g, 1))]
    scores = attributes.get("scale", H**-0.5) * wide[0] @ wide[1].swapaxes(2, 3)
    cap = attributes.get("softcap", 0)
    scores = cap * np.tanh(scores / cap) if cap else scores
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask.astype(dtype).astype(float)
    behind = np.arange(past + keys) - past - np.arange(S)[:, None]
    if attributes.get("is_causal"):
        scores = np.where(behind <= 0, scores, -np.inf)
    if (left := attributes.get("left_window_size", -1)) >= 0:
        scores = np.where(behind >= -left, scores, -np.inf)
    if (right := attributes.get("right_window_size", -1)) >= 0:
        scores = np.where(behind <= right, scores, -np.inf)
    p = np.exp(scores - np.maximum(scores.max(-1, keepdims=True), -1e300))
    y = p / np.maximum(p.sum(-1, keepdims=True), 1e-300) @ wide[2]
    expected: list[Array] = [np.ascontiguousarray(y.swapaxes(1, 2)).reshape(B, S, -1) if flat else y]
    return Alone("Attention", inputs, expected + ([k, v] if presents else []), attributes)


@pytest.mark.skipif(RUNTIME < (1, 32), reason="its schema has no windows")
@both
def test_windows(dtype: Any, worker: ProcessPoolExecutor) -> None:
    """Windows of opset 25: with a cache, and with as many keys as queries, more and fewer."""
    seen = np.random.default_rng(4).random((S, P + S)) < 0.6
    check_together(
        worker,
        [
            attention(dtype, keys=S, left_window_size=1),
            attention(dtype, keys=S, left_window_size=2, right_window_size=1, heads=(4, 2), flat=True),
            attention(dtype, left_window_size=1, right_window_size=1),
            attention(dtype, right_window_size=0),
            attention(dtype, keys=3, left_window_size=1, is_causal=1),
            attention(dtype, past=P, keys=S, left_window_size=2, is_causal=1, presents=True),
            attention(dtype, past=P, keys=S, left_window_size=2, right_window_size=3, is_causal=1, mask=seen),
            attention(dtype, past=P, keys=S, right_window_size=1, softcap=2.0),
        ],
        opset=25,
    )


@both
def test_attention(dtype: Any, worker: ProcessPoolExecutor) -> None:
    rng = np.random.default_rng(3)
    seen = rng.random((S, T)) < 0.6
    seen[1] = False  # a query that attends to no key
    bias = signed(rng, B, 1, S, T)
    check_together(
        worker,
        [
            attention(dtype),
            attention(dtype, flat=True, scale=0.5),
            attention(dtype, heads=(4, 2), mask=seen),
            attention(dtype, heads=(6, 1), flat=True, mask=bias),
            attention(dtype, is_causal=1),  # some keys have no query that attends to them
            attention(dtype, is_causal=1, keys=S, mask=seen[:, :S]),
            attention(dtype, past=P, presents=True),
            attention(dtype, past=P, presents=True, is_causal=1, keys=S, flat=True, heads=(4, 2)),
            attention(dtype, past=P, is_causal=1, mask=np.ones((S, P + T), bool)),
            attention(dtype, presents=True, flat=True),
            attention(dtype, softcap=2.0, mask=seen),
        ],
        opset=24,
    )


def rotary(dtype: Any, *, flat: bool, ids: bool, half: int = H // 2, interleaved: int = 0) -> Alone:
    rng = np.random.default_rng([flat, ids, half, interleaved])
    x = signed(rng, B, 4, S, H, dtype=dtype)
    angles = rng.uniform(-3, 3, (20, half) if ids else (B, S, half))
    cos, sin = np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)
    places = rng.integers(0, 20, (B, S))
    c, s = (np.asarray(t[places] if ids else t, np.float64)[:, None] for t in (cos, sin))
    turned = x[..., : 2 * half].astype(np.float64)
    first, second = (turned[..., ::2], turned[..., 1::2]) if interleaved else np.split(turned, 2, -1)
    pair = (first * c - second * s, first * s + second * c)
    turned = np.stack(pair, -1).reshape(turned.shape) if interleaved else np.concatenate(pair, -1)
    y = np.concatenate([turned, x[..., 2 * half :]], -1)
    if flat:
        x, y = (np.ascontiguousarray(t.swapaxes(1, 2)).reshape(B, S, -1) for t in (x, y))
    attributes: dict[str, Any] = {"interleaved": interleaved} | ({"num_heads": 4} if flat else {})
    if 2 * half < H:
        attributes["rotary_embedding_dim"] = 2 * half
    inputs: dict[str, Array | None] = {"x": x, "cos": cos, "sin": sin}
    if ids:
        inputs["ids"] = places
    return Alone("RotaryEmbedding", inputs, [y], attributes)


@both
def test_rotary_embedding(dtype: Any, worker: ProcessPoolExecutor) -> None:
    nodes = [rotary(dtype, flat=flat, ids=ids) for flat in (False, True) for ids in (False, True)]
    nodes += [rotary(dtype, flat=flat, ids=not flat, half=2, interleaved=1) for flat in (False, True)]
    check_together(worker, nodes, opset=23)
