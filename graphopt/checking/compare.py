"""Compares the outputs of two runs: names and order first, then types, shapes and NaN positions, then numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class OutputComparison:
    """One output of one case.

    Attributes:
        name, case: which output, under which inputs.
        library: whether AFTER ran with our kernels (False: its function bodies).
        provider: of the session that ran AFTER, its first.
        max_abs: largest absolute difference.
        rel_rms: the same relative to the RMS of BEFORE's output, or what the reason names instead.
        snr_db: signal to noise ratio; inf when bit-equal.
        cosine: of the two outputs as vectors; 0 when one of them is all zeros.
        limit: what rel_rms may be.
        equal: within the limit, or inconclusive.
        reason: why not equal, or a remark.
        noise: how far BEFORE moves in the same measure when its weights move by one unit in the last place; 0 where
            that was not asked.
    """

    name: str
    case: str
    library: bool
    provider: str
    max_abs: float
    rel_rms: float
    snr_db: float
    cosine: float
    limit: float
    equal: bool
    reason: str
    noise: float = 0.0


def difference(want: Any, got: Any) -> tuple[str, float, float, float, float]:
    """(structural difference or "", max abs, relative to RMS, SNR in dB, cosine)."""
    if isinstance(want, list) or isinstance(got, list):
        return _sequence_difference(want, got)
    if want is None or got is None:
        return ("" if want is got else "one of them is absent"), 0.0, 0.0, math.inf, 1.0
    want, got = np.asarray(want), np.asarray(got)
    if want.dtype != got.dtype:
        return f"type {want.dtype} became {got.dtype}", math.inf, math.inf, -math.inf, 0.0
    if want.shape != got.shape:
        return f"shape {want.shape} became {got.shape}", math.inf, math.inf, -math.inf, 0.0
    if want.dtype.kind not in "fcV":
        same = bool(np.array_equal(want, got))
        return ("" if same else "values differ"), 0.0 if same else math.inf, 0.0 if same else math.inf, math.inf, 1.0
    if want.size == 0:
        return "", 0.0, 0.0, math.inf, 1.0
    a, b = want.astype(np.float64).reshape(-1), got.astype(np.float64).reshape(-1)
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return "NaN in other places", math.inf, math.inf, -math.inf, 0.0
    infinite = np.isinf(a) | np.isinf(b)
    if not np.array_equal(a[infinite], b[infinite]):
        return "infinities differ", math.inf, math.inf, -math.inf, 0.0
    finite = np.isfinite(a)
    a, b = a[finite], b[finite]
    if a.size == 0:
        return "", 0.0, 0.0, math.inf, 1.0
    error = np.abs(a - b)
    rms = math.sqrt(float(np.mean(a * a)))
    noise = math.sqrt(float(np.mean(error * error)))
    worst = float(error.max())
    relative = 0.0 if worst == 0 else (worst / rms if rms > 0 else math.inf)
    snr = math.inf if noise == 0 else (20 * math.log10(rms / noise) if rms > 0 else -math.inf)
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    cosine = float(a @ b) / norms if norms > 0 else 0.0
    return "", worst, relative, snr, cosine


def distribution_difference(want: Any, got: Any) -> float | None:
    """The largest difference of a probability relative to the norm of its row; None unless `want` is distributions.

    Where few of thousands of classes have a chance, the RMS over all of them is far below every number that counts.
    """
    want = np.asarray(want) if not isinstance(want, list) else None
    if want is None or want.dtype.kind != "f" or want.ndim == 0 or want.size == 0 or want.shape[-1] < 2:
        return None
    rows = want.astype(np.float64)
    if not np.isfinite(rows).all() or (rows < 0).any() or np.abs(rows.sum(axis=-1) - 1).max() > 1e-3:
        return None
    norms = np.sqrt((rows * rows).sum(axis=-1, keepdims=True))
    return float((np.abs(np.asarray(got).astype(np.float64) - rows) / norms).max())


def _sequence_difference(want: Any, got: Any) -> tuple[str, float, float, float, float]:
    if not isinstance(want, Sequence) or not isinstance(got, Sequence) or len(want) != len(got):
        return "sequences of different lengths", math.inf, math.inf, -math.inf, 0.0
    worst = ("", 0.0, 0.0, math.inf, 1.0)
    for w, g in zip(want, got):
        found = difference(w, g)
        if found[0]:
            return found
        worst = max(worst, found, key=lambda d: d[2])
    return worst
