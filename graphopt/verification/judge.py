"""Judges how far AFTER is from BEFORE by how far rounding alone moves BEFORE."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from graphopt.metadata import Numerics
from graphopt.verification.compare import MEASURES, NAN_EVERYWHERE, SMALL_SLICE, Deviation, Numbers
from graphopt.verification.tolerances import FACTOR, FLOOR, LARGEST_LIMIT, LIMITS

# Below this numbers of float32 lose bits, and kernels round them to zero.
UNDERFLOW = 1e-30
NOISE = "rounding noise"
# From so many draws on their spread is known, and with it what a rare one reaches: the mean of the logarithms plus so
# many deviations, at most so many times the largest that was seen. What is beyond ten honest errors is beyond that.
SPREAD_DRAWS, RARE, MOST_SPREAD = 6, 4.0, 2.0


class Verdict(Enum):
    """What became of a comparison."""

    EQUAL = "equal"
    DIFFERENT = "different"
    RANDOM = "random"


class Finding(Enum):
    """What one output of one case says."""

    EQUAL = "equal"
    DIFFERENT = "different"
    NOISE = "noise"


@dataclass(frozen=True)
class Judgement:
    """One output of one case.

    Attributes:
        finding: noise where the difference is within what rounding does, but that is too much to say anything.
        reason: why not equal, or a remark.
        error: of the slice that comes closest to its limit or exceeds it most, relative to the slice's RMS.
        limit: what the error may be.
        honest: how far rounding moves BEFORE there; NaN where that was not measured.
        where: that slice: "" for the whole output, else as an index, [:, 3].
        measure: "largest" or "rms".
        whole_limit: what the largest error of the whole output may be, relative to its RMS.
        unmeasured: no draw of rounding says anything: a fixed limit stood in, for the output as a whole alone.
    """

    finding: Finding
    reason: str = ""
    error: float = 0.0
    limit: float = 0.0
    honest: float = math.nan
    where: str = ""
    measure: str = "largest"
    whole_limit: float = 0.0
    unmeasured: bool = False

    @property
    def severity(self) -> float:
        return math.inf if self.limit == 0 < self.error else self.error / self.limit if self.limit else 0.0


@dataclass(frozen=True)
class Share:
    """What the slices along an axis show, by one measure, in all cases in which the axis is as long.

    Attributes:
        most: how far rounding moved each, relative to how far it moved the whole output in the same draw; the largest.
        draws: how many there were.
    """

    most: Numbers
    draws: int


Shares = Mapping[tuple[int, int, str], Share]  # By axis, its length, and measure.


def shares_of(draws: Iterable[Deviation]) -> Shares:
    """How far small slices are likely to move: one draw of rounding may happen to miss a slice's own numbers."""
    found: dict[tuple[int, int, str], Share] = {}
    for draw in draws:
        for slices in draw.slices[1:] if not draw.discrete else ():
            if slices.members >= SMALL_SLICE:
                continue
            for measure in MEASURES:
                whole = float(getattr(draw.slices[0], measure)[0])
                if whole > 0:
                    key = (slices.axis or 0, slices.scale.size, measure)
                    share = getattr(slices, measure) / whole
                    before = found.get(key, Share(share, 0))
                    found[key] = Share(np.maximum(before.most, share), before.draws + 1)
    return found


def is_beyond_doubt(found: Deviation) -> bool:
    """Whether the difference is so small that no honest error need be known."""
    return not found.structure and all(
        bool((getattr(s, measure) <= FLOOR * s.scale).all()) for s in found.slices for measure in MEASURES
    )


def judge(
    found: Deviation,
    numerics: Numerics,
    honest: Sequence[Deviation],
    approximation: Deviation | None = None,
    shares: Shares | None = None,
    fixed: Sequence[Deviation] = (),
) -> Judgement:
    """One output of one case.

    Args:
        found: of AFTER.
        numerics: the class of what was rewritten.
        honest: of BEFORE, rounding at random; FACTOR is in its noise. Empty where it could not be measured.
        approximation: of another honest implementation of what approximates, which comes on top.
        shares: what other cases' draws say about small slices.
        fixed: what is the same in every run, without FACTOR: how far BEFORE's own sums and norms are off.
    """
    if numerics == Numerics.EXACT:
        same = not found.structure and found.max_abs == 0
        error = math.inf if found.structure else found.relative
        return Judgement(Finding.EQUAL if same else Finding.DIFFERENT, found.structure or _differs(same), error, 0.0)
    if found.structure:
        # Where rounding alone changes how many boxes there are, or which are NaN, nothing can be said of them.
        alike = [h for h in honest if h.structure and h.structure[:3] == found.structure[:3]]
        if alike and (found.structure != NAN_EVERYWHERE or any(h.structure == NAN_EVERYWHERE for h in alike)):
            return Judgement(Finding.NOISE, NOISE, 0.0, 0.0)
        return Judgement(Finding.DIFFERENT, found.structure, math.inf, 0.0)
    if not found.slices:
        return Judgement(Finding.EQUAL)
    usable = [h for h in honest if h.has_slices_of(found)]
    fixed = [always for always in fixed if always.has_slices_of(found)]
    if approximation is not None and not approximation.has_slices_of(found):
        approximation = None
    if not usable:
        limit = LIMITS[numerics]
        equal = found.relative <= limit
        error = 0.0 if found.max_abs == 0 else found.relative
        finding = Finding.EQUAL if equal else Finding.DIFFERENT
        unmeasured = not is_beyond_doubt(found)
        return Judgement(finding, _differs(equal), error, limit, whole_limit=limit, unmeasured=unmeasured)
    judgements = _by_slices(found, numerics, usable, approximation, shares or {}, fixed)
    worst = max(judgements, key=_order)
    if worst.finding == Finding.NOISE and judgements[1].finding != Finding.NOISE:
        # A slice, or a few numbers, say nothing; the output's RMS error does.
        worst = replace(worst, finding=Finding.EQUAL, reason="")
    return replace(worst, whole_limit=judgements[0].limit)


def _differs(equal: bool) -> str:
    return "" if equal else "differs"


def _order(judgement: Judgement) -> tuple[int, float]:
    return [Finding.EQUAL, Finding.NOISE, Finding.DIFFERENT].index(judgement.finding), judgement.severity


def _usual(limit: Numbers, scale: Numbers) -> float:
    """The median of an axis' limits relative to their slices, the lower of two: a few draws may miss a slice."""
    known = scale > 0
    return float(np.quantile(limit[known] / scale[known], 0.5, method="lower")) if known.any() else 0.0


def _largest(draws: Numbers) -> Numbers:
    """How far rounding moves each slice at most, by what it did in several draws (the first axis)."""
    most = draws.max(axis=0)
    if len(draws) < SPREAD_DRAWS:
        return np.asarray(most)
    logs = np.log(np.maximum(draws, UNDERFLOW))
    rare = np.exp(logs.mean(axis=0) + RARE * logs.std(axis=0, ddof=1))
    return np.asarray(np.where((draws > 0).all(axis=0), np.clip(rare, most, MOST_SPREAD * most), most))


def _by_slices(
    found: Deviation,
    numerics: Numerics,
    honest: Sequence[Deviation],
    approximation: Deviation | None,
    shares: Shares,
    fixed: Sequence[Deviation],
) -> list[Judgement]:
    judgements = []
    whole = float(found.slices[0].scale[0])
    moved: dict[str, float] = {}
    for i, slices in enumerate(found.slices):
        distribution = found.typical / whole if whole > 0 else 1.0
        for measure in MEASURES:
            error = getattr(slices, measure)
            limit = _largest(np.array([getattr(h.slices[i], measure) for h in honest]))
            for always in fixed:
                limit = limit + (FACTOR - 1) * getattr(always.slices[i], measure)
            if i == 0:
                moved[measure] = float(limit[0])
            elif slices.members < SMALL_SLICE:
                share = shares.get((slices.axis or 0, slices.scale.size, measure))
                if share is not None:
                    limit = np.maximum(limit, share.most * moved[measure])
                draws = max(len(honest), share.draws if share is not None else 0)
                limit = limit * (1 + SMALL_SLICE / (slices.members * draws))
            if approximation is not None:
                most = LIMITS[Numerics.APPROXIMATE] * slices.scale
                limit = limit + np.minimum(FACTOR * getattr(approximation.slices[i], measure), most)
            measured = limit / FACTOR
            # A slice of zeros has no scale: there a unit of the whole output is nothing.
            least = np.where(slices.scale > 0, FLOOR * slices.scale, np.finfo(np.float32).eps * whole)
            least = np.maximum(least, _usual(limit, slices.scale) * slices.scale)
            limit = np.maximum(limit, least + UNDERFLOW)
            if found.discrete:
                limit = np.max([getattr(h.slices[i], measure) for h in honest], axis=0)
            largest = LARGEST_LIMIT[numerics] * slices.scale * distribution
            if i == 0:
                relative = float(limit[0]) / whole if whole > 0 else 0.0
            else:
                # Where rounding decides, a slice's few draws say less of how much than all of the output's do.
                limit = np.where(
                    (limit > largest) & (slices.scale > 0), np.maximum(limit, relative * slices.scale), limit
                )
            # What rounding moves by more than its size is made of rounding, on either side.
            limit = np.where((limit > slices.scale) & (slices.scale > 0), 2 * limit, limit)
            ratio = np.where(error > 0, error / np.maximum(limit, np.finfo(float).tiny), 0.0)
            # The slice to report is one beyond its limit; else one that only a limit so large as to say nothing allows.
            noise = (error > largest) & (error <= limit) & (slices.scale > 0)
            worst = int(np.argmax(np.where(noise & (ratio <= 1), ratio + 1, np.where(ratio > 1, ratio + 10, ratio))))
            scale = float(slices.scale[worst]) or whole or 1.0
            finding = Finding.DIFFERENT if ratio[worst] > 1 else Finding.NOISE if noise[worst] else Finding.EQUAL
            reason = {Finding.DIFFERENT: "differs", Finding.NOISE: NOISE, Finding.EQUAL: ""}[finding]
            where = "" if slices.axis is None else "[" + ":, " * slices.axis + f"{worst}]"
            of_scale, allowed, honestly = (float(x[worst]) / scale for x in (error, limit, measured))
            judgements.append(Judgement(finding, reason, of_scale, allowed, honestly, where, measure))
    return judgements
