"""Compares the outputs of two runs: types, shapes and NaN positions first, then numbers.

Numbers are compared as a whole and by slices along each axis, since an output may hold things of different meaning:
boxes in pixels beside scores between 0 and 1. Two measures each: the largest error, which shows a fault in one place,
and the RMS of the error, which shows a small one everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

# A slice of fewer numbers is judged by several draws of rounding, or by those of other cases: one draw may miss it.
SMALL_SLICE = 8
MEASURES = ("largest", "rms")
NAN_EVERYWHERE = "NaN in every element, where BEFORE is finite"
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Slices:
    """An output's numbers by slices along one axis; axis None is the whole.

    Attributes:
        axis: of the output.
        members: how many numbers each has.
        scale: RMS of each slice of the reference.
        largest: largest error in each.
        rms: RMS of the error in each.
    """

    axis: int | None
    members: int
    scale: Numbers
    largest: Numbers
    rms: Numbers


@dataclass(frozen=True)
class Deviation:
    """How far one output is from its reference.

    Attributes:
        structure: a difference of type, shape or NaN positions, or "".
        slices: the whole first, then axes with few distinct groups; empty where there is nothing to measure.
        typical: what the output's size is judged by: its RMS, for a distribution that of the norms of its rows.
        discrete: integers and truth values: errors are 0 or 1.
        snr_db: signal to noise ratio; inf when bit-equal.
        cosine: of the two as vectors; 0 when one of them is all zeros.
    """

    structure: str
    slices: list[Slices] = field(default_factory=list)
    typical: float = 0.0
    discrete: bool = False
    snr_db: float = math.inf
    cosine: float = 1.0

    def has_slices_of(self, other: Deviation) -> bool:
        """Whether both have numbers to measure, of outputs of one shape."""
        if self.structure or not self.slices or len(self.slices) != len(other.slices):
            return False
        return all(a.scale.size == b.scale.size for a, b in zip(self.slices, other.slices))

    @property
    def max_abs(self) -> float:
        if self.structure:
            return math.inf
        return float(self.slices[0].largest[0]) if self.slices else 0.0

    @property
    def relative(self) -> float:
        """The largest error relative to the RMS of the reference."""
        scale = float(self.slices[0].scale[0]) if self.slices else 0.0
        return 0.0 if self.max_abs == 0 else self.max_abs / scale if scale > 0 else math.inf


def deviation(want: Any, got: Any) -> Deviation:
    """How far an output is from its reference: arrays, sequences of arrays, None for an absent optional, or strings."""
    if isinstance(want, list) or isinstance(got, list):
        return _of_sequences(want, got)
    if want is None or got is None:
        return Deviation("" if want is got else "one of them is absent")
    want, got = np.asarray(want), np.asarray(got)
    if want.dtype != got.dtype:
        return Deviation(f"type {want.dtype} became {got.dtype}")
    if want.shape != got.shape:
        return Deviation(f"shape {want.shape} became {got.shape}")
    if want.dtype.kind not in "fcVbiu":
        return Deviation("" if np.array_equal(want, got) else "values differ")
    if want.size == 0:
        return Deviation("")
    if want.dtype.kind in "biu":
        return Deviation("", _slices(np.ones(want.shape), (want != got).astype(np.float64)), 1.0, discrete=True)
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    with np.errstate(invalid="ignore", over="ignore"):
        a, b = want.astype(wide), got.astype(wide)
        if not np.array_equal(np.isnan(a), np.isnan(b)):
            everywhere = np.isnan(b).all() and np.isfinite(a).all()
            return Deviation(NAN_EVERYWHERE if everywhere else "NaN in other places")
        infinite = np.isinf(a) | np.isinf(b)
        if not np.array_equal(a[infinite], b[infinite]):
            return Deviation("infinities differ")
        if not np.isfinite(a).all():
            a, b = (np.where(np.isfinite(a), x, 0) for x in (a, b))
    error = np.abs(a - b)
    size = np.abs(a)
    slices = _slices(size, error)
    rms, noise = float(slices[0].scale[0]), float(slices[0].rms[0])
    snr = math.inf if noise == 0 else (20 * math.log10(rms / noise) if rms > 0 else -math.inf)
    # Not by BLAS, whose threads wait for one another longer than they compute.
    norms = math.sqrt(size.size) * rms * math.sqrt(float(np.sum(np.square(np.abs(b)))))
    cosine = float(np.sum((a.conj() * b).real)) / norms if norms > 0 else 0.0
    typical = rms * math.sqrt(want.shape[-1]) if _is_distribution(want) else rms
    return Deviation("", slices, typical, False, snr, cosine)


def difference(want: Any, got: Any) -> tuple[str, float, float, float, float]:
    """(structural difference or "", max abs, relative to RMS, SNR in dB, cosine)."""
    found = deviation(want, got)
    if found.structure:
        return found.structure, math.inf, math.inf, -math.inf, 0.0
    if found.discrete and found.max_abs:
        return "values differ", math.inf, math.inf, math.inf, 1.0
    return "", found.max_abs, found.relative, found.snr_db, found.cosine


def _slices(size: Numbers, error: Numbers) -> list[Slices]:
    found = [Slices(None, size.size, *(np.array([x]) for x in (_rms(size), float(error.max()), _rms(error))))]
    squares = np.square(size), np.square(error)
    for axis in range(size.ndim):
        groups = size.shape[axis]
        members = size.size // groups
        if groups < 2:
            continue
        others = tuple(i for i in range(size.ndim) if i != axis)
        scale, rms = (np.sqrt(np.mean(s, axis=others)) for s in squares)
        found.append(Slices(axis, members, scale, error.max(axis=others), rms))
    return found


def _rms(numbers: Numbers) -> float:
    return math.sqrt(float(np.mean(np.square(numbers))))


def _is_distribution(want: npt.NDArray[Any]) -> bool:
    """Whether the last axis holds probabilities: of thousands of classes nearly all are near 0, and so is their RMS."""
    if want.ndim == 0 or want.shape[-1] < 2 or want.dtype.kind != "f" or not np.isfinite(want).all():
        return False
    return bool((want >= 0).all()) and bool(np.abs(want.sum(axis=-1, dtype=np.float64) - 1).max() <= 1e-3)


def _of_sequences(want: Any, got: Any) -> Deviation:
    if not isinstance(want, Sequence) or not isinstance(got, Sequence) or len(want) != len(got):
        return Deviation("sequences of different lengths")
    found = [deviation(w, g) for w, g in zip(want, got)]
    broken = next((f for f in found if f.structure), None)
    return broken or max(found, key=lambda f: f.relative, default=Deviation(""))
