"""Measures the differences between outputs of two runs, and judges them by rounding errors or fixed limits.

Types, shapes and the places of NaN are compared first, then values: as a whole, and by slices along each axis, because
an output may hold values of different kinds (boxes in pixels beside scores from 0 to 1). Each slice has two measures:
the largest error, which shows a local fault, and the RMS of the error, which shows a small fault everywhere.

The original model is BEFORE, the rewritten one AFTER. A draw is a run of BEFORE with all values rounded at random
(`noise.py`), by FACTOR times the unit of their precision. The limit of an output or slice is estimated from its changes
in the draws, which are FACTOR times its *measured rounding error*. It is at least FLOOR. A difference within its limit
but beyond LARGEST_LIMIT is inconclusive. LIMITS replace rounding errors that cannot be measured. All limits are
relative to the RMS of the output or slice. A model's metadata may name a class of rewrites, but contains no limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from graphopt.metadata import Numerics
from graphopt.verification.report import NOISE, excess

# The ratio of the limit to the measured rounding error. With four draws for each of the zoo's small models and of six
# seeds, rewrites changed an output by at most 0.31 of its limit, and a slice by at most 0.55.
FACTOR = 4.0
# Eight units in the last place of float32: kernels that do two additions in another order may differ by this much.
FLOOR = 1e-6


@dataclass(frozen=True)
class Rounding:
    """The precision of random rounding.

    Attributes:
        unit: largest noise relative to a value; includes FACTOR.
        floor: the noise of x is unit * (|x| + floor), because the errors of values below floor do not shrink further.
        coarse: whether elementwise operators are rounded as well.
        dtype: numpy's name of the type if `coarse` is set; else "".
    """

    unit: float
    floor: float = 0.0
    coarse: bool = False
    dtype: str = ""


# Rounding to nearest changes a result by at most half a unit in the last place.
SINGLE = Rounding(FACTOR * 2.0**-24)
# Values of float16 below 2**-14 are 2**-24 apart.
HALF = Rounding(FACTOR * 2.0**-11, floor=2.0**-14, coarse=True, dtype="float16")
BRAIN = Rounding(FACTOR * 2.0**-9, coarse=True, dtype="bfloat16")


def stored(rounding: Rounding) -> Rounding:
    """Returns the rounding of weights: a conversion may change them by a whole unit in the last place, not by half.

    With noise for half a unit, a MobileNet with every weight changed by one unit reached 1.9 of its limit.
    """
    return replace(rounding, unit=2 * rounding.unit)


# Noise for the partial sums of both models: this many units in the last place, times the root of the number of terms.
# Without it, folded BatchNormalizations in the zoo's YOLO reached 1.8 of their limit; with it 0.5.
PARTIAL_SUMS = 0.7
# Polynomials for tanh, erf, exp, ... have errors of units in the last place of 1, even where the results are small.
FUNCTION_FLOOR = FACTOR * 2.0**-22
# Functions inside recurrent layers also have such errors: values of an almost closed gate are 2**-24 apart.
# Without this floor, states of 1e-4 in silero_vad reached 1.3 of their limit when inputs changed by a twelfth of the
# noise.
GATE_FLOOR = FACTOR * 2.0**-24

# Limits of the largest error if the rounding error cannot be measured.
LIMITS: dict[Numerics, float] = {
    Numerics.EXACT: 0.0,
    Numerics.REASSOCIATED: 1e-5,
    Numerics.APPROXIMATE: 1e-3,  # F(4x4, 3x3) in float32, over a whole model
    Numerics.FP16: 2e-2,
    Numerics.BF16: 1e-1,
}
# The largest measured limits that prove anything: larger limits would accept real faults.
LARGEST_LIMIT: dict[Numerics, float] = {
    Numerics.REASSOCIATED: 0.02,
    Numerics.APPROXIMATE: 0.02,
    Numerics.FP16: 0.2,
    Numerics.BF16: 0.2,
}

# A slice with fewer elements may hardly change in one draw by chance: its limit is larger after few draws, and the
# draws of other input sets count as well.
SMALL_SLICE = 8
MEASURES = ("largest", "rms")
NAN_EVERYWHERE = "NaN in every element, where BEFORE is finite"
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Slices:
    """The slices of an output along an axis.

    Attributes:
        axis: axis of the output; None for one slice that is the whole output.
        members: elements of each slice.
        scale: RMS of each slice of the reference, [slices].
        largest: largest error of each slice, [slices].
        rms: RMS of the error of each slice, [slices].
    """

    axis: int | None
    members: int
    scale: Numbers
    largest: Numbers
    rms: Numbers


@dataclass(frozen=True)
class Deviation:
    """The difference of an output from its reference.

    Attributes:
        structure: a difference of type, shape or NaN positions, or "".
        slices: the whole output first, then each axis of size 2 or more; empty if there are no values to compare.
        typical: the size that LARGEST_LIMIT refers to: the output's RMS, for probabilities the RMS of the rows' norms.
        discrete: whether the values are integers or booleans; the error of an element is then 0 or 1.
        snr_db: signal to noise ratio in dB; inf if all bits are equal.
        cosine: cosine of the angle between output and reference as vectors; 0 if one is all zeros.
    """

    structure: str
    slices: list[Slices] = field(default_factory=list)
    typical: float = 0.0
    discrete: bool = False
    snr_db: float = math.inf
    cosine: float = 1.0

    def has_slices_of(self, other: Deviation) -> bool:
        """Returns whether both deviations have slices, of outputs of the same shape."""
        if self.structure or not self.slices or len(self.slices) != len(other.slices):
            return False
        return all(a.scale.size == b.scale.size for a, b in zip(self.slices, other.slices))

    @property
    def max_abs(self) -> float:
        """The largest error; inf if the structure differs."""
        if self.structure:
            return math.inf
        return float(self.slices[0].largest[0]) if self.slices else 0.0

    @property
    def relative(self) -> float:
        """The largest error relative to the RMS of the reference."""
        scale = float(self.slices[0].scale[0]) if self.slices else 0.0
        return 0.0 if self.max_abs == 0 else self.max_abs / scale if scale > 0 else math.inf


def deviation(want: Any, got: Any) -> Deviation:
    """Measures the difference of an output from its reference.

    Args:
        want: the reference: an array, a sequence of arrays, strings, or None for an absent optional.
        got: the output.
    """
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
    slices = _slices(np.abs(a), np.abs(a - b))
    rms, noise = float(slices[0].scale[0]), float(slices[0].rms[0])
    snr = math.inf if noise == 0 else (20 * math.log10(rms / noise) if rms > 0 else -math.inf)
    # Without BLAS, because waiting for its threads takes longer than the computation.
    norms = math.sqrt(a.size) * rms * math.sqrt(float(np.sum(np.square(np.abs(b)))))
    cosine = float(np.sum((a.conj() * b).real)) / norms if norms > 0 else 0.0
    typical = rms * math.sqrt(want.shape[-1]) if _is_distribution(want) else rms
    return Deviation("", slices, typical, False, snr, cosine)


def deviations(want: Sequence[Any], got: Sequence[Any] | str) -> list[Deviation] | str:
    """Measures the difference of each output; returns the runtime's message if `got` is one."""
    return got if isinstance(got, str) else [deviation(w, g) for w, g in zip(want, got)]


def _slices(size: Numbers, error: Numbers) -> list[Slices]:
    squares = np.square(size), np.square(error)
    whole = (np.array([x]) for x in (_root_mean(squares[0]), float(error.max()), _root_mean(squares[1])))
    found = [Slices(None, size.size, *whole)]
    for axis, groups in enumerate(size.shape):
        if groups >= 2:
            others = tuple(i for i in range(size.ndim) if i != axis)
            scale, rms = (np.sqrt(np.mean(s, axis=others)) for s in squares)
            found.append(Slices(axis, size.size // groups, scale, error.max(axis=others), rms))
    return found


def _root_mean(squares: Numbers) -> float:
    return math.sqrt(float(np.mean(squares)))


def _is_distribution(want: npt.NDArray[Any]) -> bool:
    """Returns whether the last axis holds probabilities; with thousands of classes their RMS is almost 0."""
    if want.ndim == 0 or want.shape[-1] < 2 or want.dtype.kind != "f" or not np.isfinite(want).all():
        return False
    return bool((want >= 0).all()) and bool(np.abs(want.sum(axis=-1, dtype=np.float64) - 1).max() <= 1e-3)


def _of_sequences(want: Any, got: Any) -> Deviation:
    if not isinstance(want, Sequence) or not isinstance(got, Sequence) or len(want) != len(got):
        return Deviation("sequences of different lengths")
    found = [deviation(w, g) for w, g in zip(want, got)]
    broken = next((f for f in found if f.structure), None)
    return broken or max(found, key=lambda f: f.relative, default=Deviation(""))


# -- judgement ---------------------------------------------------------------------------------------------------------

# Errors below this are accepted: intermediate results of such small values underflow in float32.
UNDERFLOW = 1e-30
# With SPREAD_DRAWS or more draws, the limit is the estimate of a rare draw: RARE standard deviations above the mean of
# the logarithms, but at most MOST_SPREAD times the largest draw. This is at most MOST_SPREAD * FACTOR = 8 rounding
# errors, so a difference of ten is still found.
SPREAD_DRAWS, RARE, MOST_SPREAD = 6, 4.0, 2.0


@dataclass(frozen=True)
class Judgement:
    """The judgement of one output of one case; `OutputComparison` explains the attributes.

    If `equal` is true and the reason is NOISE, rounding may explain the difference, but the rounding error is too large
    to prove that the models compute the same.
    """

    equal: bool
    reason: str = ""
    slice_error: float = 0.0
    slice_limit: float = 0.0
    noise: float | None = None
    slice: str = ""
    measure: str = "largest"
    limit: float = 0.0
    unmeasured: bool = False

    @property
    def is_noise(self) -> bool:
        return self.reason == NOISE


# (axis, its size, measure) -> the largest share of each slice, and the number of draws. A share is the error of a slice
# divided by the error of the whole output in the same draw.
Shares = Mapping[tuple[int, int, str], tuple[Numbers, int]]


def shares_of(draws: Iterable[Deviation]) -> Shares:
    """Measures how much rounding changes small slices; a single draw may hardly change a slice by chance."""
    found: dict[tuple[int, int, str], tuple[Numbers, int]] = {}
    for draw in draws:
        for slices in draw.slices[1:] if not draw.discrete else ():
            for measure in MEASURES if slices.members < SMALL_SLICE else ():
                whole = float(getattr(draw.slices[0], measure)[0])
                if whole > 0:
                    key = (slices.axis or 0, slices.scale.size, measure)
                    share = getattr(slices, measure) / whole
                    most, count = found.get(key, (share, 0))
                    found[key] = np.maximum(most, share), count + 1
    return found


def is_negligible(found: Deviation) -> bool:
    """Returns whether the difference is within FLOOR; BEFORE's rounding error need not be measured then."""
    return not found.structure and all(
        bool((getattr(s, measure) <= FLOOR * s.scale).all()) for s in found.slices for measure in MEASURES
    )


def judge(
    found: Deviation,
    numerics: Numerics,
    draws: Sequence[Deviation],
    approximation: Deviation | None = None,
    shares: Shares | None = None,
    fixed: Sequence[Deviation] = (),
) -> Judgement:
    """Judges one output of one case.

    Args:
        found: the deviation of AFTER from BEFORE.
        numerics: the class of the rewrites.
        draws: deviations of BEFORE with random rounding, which include FACTOR; empty if there are none.
        approximation: deviation of another implementation of the approximating nodes; it is added to the limit.
        shares: how much rounding changes small slices in all cases (`shares_of`).
        fixed: deviations of a copy of BEFORE with exact sums and with norms as elementary operators, the same in every
            run (`RoundingErrors.measure_fixed`); without FACTOR.
    """
    if numerics == Numerics.EXACT:
        same = not found.structure and found.max_abs == 0
        error = math.inf if found.structure else found.relative
        return Judgement(same, found.structure or _differs(same), error)
    if found.structure:
        # Rounding alone may change the number of boxes, or which of them are NaN.
        alike = [h for h in draws if h.structure and h.structure[:3] == found.structure[:3]]
        if alike and (found.structure != NAN_EVERYWHERE or any(h.structure == NAN_EVERYWHERE for h in alike)):
            return Judgement(True, NOISE)
        return Judgement(False, found.structure, math.inf)
    if not found.slices:
        return Judgement(True)
    usable = [draw for draw in draws if draw.has_slices_of(found)]
    if not usable:
        limit = LIMITS[numerics]
        equal = found.relative <= limit
        unmeasured = not is_negligible(found)
        return Judgement(equal, _differs(equal), found.relative, limit, limit=limit, unmeasured=unmeasured)
    fixed = [always for always in fixed if always.has_slices_of(found)]
    if approximation is not None and not approximation.has_slices_of(found):
        approximation = None
    judgements = _by_slices(found, numerics, usable, approximation, shares or {}, fixed)
    worst = max(judgements, key=lambda j: (not j.equal, j.is_noise, excess(j.slice_error, j.slice_limit)))
    if worst.is_noise and not judgements[1].is_noise:
        # judgements[1], the RMS of the whole output's error, is evidence, although another measure or slice is noise.
        worst = replace(worst, reason="")
    return replace(worst, limit=judgements[0].slice_limit)


def _differs(equal: bool) -> str:
    return "" if equal else "differs"


def _median_ratio(limit: Numbers, scale: Numbers) -> float:
    """Returns the lower median of an axis' limits relative to the RMS of their slices.

    It is the least limit of every slice, because after few draws the own limit of a slice may be too small.
    """
    known = scale > 0
    return float(np.quantile(limit[known] / scale[known], 0.5, method="lower")) if known.any() else 0.0


def _largest(draws: Numbers) -> Numbers:
    """Estimates the largest change of each slice by rounding from several draws, [draws, slices]."""
    most = draws.max(axis=0)
    if len(draws) < SPREAD_DRAWS:
        return np.asarray(most)
    logs = np.log(np.maximum(draws, UNDERFLOW))
    rare = np.exp(logs.mean(axis=0) + RARE * logs.std(axis=0, ddof=1))
    return np.asarray(np.where((draws > 0).all(axis=0), np.clip(rare, most, MOST_SPREAD * most), most))


def _by_slices(
    found: Deviation,
    numerics: Numerics,
    draws: Sequence[Deviation],
    approximation: Deviation | None,
    shares: Shares,
    fixed: Sequence[Deviation],
) -> list[Judgement]:
    """Judges the whole output and each axis by both measures. The worst slice decides the judgement of an axis."""
    judgements = []
    whole = float(found.slices[0].scale[0])
    distribution = found.typical / whole if whole > 0 else 1.0
    moved: dict[str, float] = {}
    for i, slices in enumerate(found.slices):
        for measure in MEASURES:
            error = getattr(slices, measure)
            most = np.array([getattr(draw.slices[i], measure) for draw in draws])
            limit = _largest(most)
            for always in fixed:
                limit = limit + (FACTOR - 1) * getattr(always.slices[i], measure)
            if i == 0:
                moved[measure] = float(limit[0])
            elif slices.members < SMALL_SLICE:
                share, count = shares.get((slices.axis or 0, slices.scale.size, measure), (np.zeros(1), 0))
                limit = np.maximum(limit, share * moved[measure])
                limit = limit * (1 + SMALL_SLICE / (slices.members * max(len(draws), count)))
            if approximation is not None:
                largest = LIMITS[Numerics.APPROXIMATE] * slices.scale
                limit = limit + np.minimum(FACTOR * getattr(approximation.slices[i], measure), largest)
            measured = limit / FACTOR
            # A slice of zeros has no scale: one unit in the last place of the whole output's RMS is negligible there.
            least = np.where(slices.scale > 0, FLOOR * slices.scale, np.finfo(np.float32).eps * whole)
            least = np.maximum(least, _median_ratio(limit, slices.scale) * slices.scale)
            limit = np.maximum(limit, least + UNDERFLOW)
            if found.discrete:
                limit = most.max(axis=0)
            largest = LARGEST_LIMIT[numerics] * slices.scale * distribution
            positive = slices.scale > 0
            if i == 0:
                relative = float(limit[0]) / whole if whole > 0 else 0.0
            else:
                # If the limit of a slice is too large to be evidence, the relative limit of the whole output is more
                # reliable.
                limit = np.where((limit > largest) & positive, np.maximum(limit, relative * slices.scale), limit)
            # If rounding changes a slice by more than its RMS, the slice consists of rounding errors in both models.
            limit = np.where((limit > slices.scale) & positive, 2 * limit, limit)
            ratio = np.where(error > 0, error / np.maximum(limit, np.finfo(float).tiny), 0.0)
            # Slices beyond their limit come first, then slices within a limit that is too large to be evidence.
            noise = (error > largest) & (error <= limit) & positive
            worst = int(np.argmax(np.where(noise & (ratio <= 1), ratio + 1, np.where(ratio > 1, ratio + 10, ratio))))
            scale = float(slices.scale[worst]) or whole or 1.0
            equal = not ratio[worst] > 1
            reason = NOISE if equal and noise[worst] else _differs(equal)
            where = "" if slices.axis is None else "[" + ":, " * slices.axis + f"{worst}]"
            off, allowed, moves = (float(x[worst]) / scale for x in (error, limit, measured))
            judgements.append(Judgement(equal, reason, off, allowed, moves, where, measure))
    return judgements
