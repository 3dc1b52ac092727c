"""Draws the elements of an input by its type, its use in the model (`uses`) and the kind of the case."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from graphopt.errors import VerifyError
from graphopt.inputs.declared import Input
from graphopt.inputs.relations import Length
from graphopt.inputs.trees import rows_of
from graphopt.inputs.uses import Use

Array = npt.NDArray[Any]
Feeds = dict[str, Any]

# Kind of a case -> its description. The first five of VALUES and the first three of MASKS are tried first.
VALUES = {
    "zeros": "all floats are 0",
    "unit": "floats are uniform between 0 and 1",
    "large": "floats are normal, times 100",
    "tiny": "floats are normal, times 1e-4",
    "negative": "no float is above 0",
    "rows": "rows of floats have scales from 1e-2 to 1e2",
    "nearly constant": "floats are 3, give or take 1e-2",
    "equal rows": "floats are equal along the last axis (of images along the last two)",
    "one-hot": "each row of floats has a single 1",
    "pixels": "floats are integers from 0 to 255",
    "huge": "floats are normal, times 1000",
    "far from zero": "floats are normal, plus 20",
}
MASKS = {
    "padded left": "in every row except the first, a mask hides keys at the start",
    "padded right": "in every row except the first, a mask hides keys at the end",
    "padded away": "in every row except the first, a mask hides all keys",
    "padded both": "in every row except the first, a mask hides keys at both ends",
    "holes": "a mask hides keys at random positions",
    "first row": "a mask hides half of the first row",
    "one key": "in every row except the first, a mask leaves one key",
    "no key": "a mask hides all keys",
}
INTEGERS = {
    "last": "indices are the last rows of their tables",
    "negative ids": "some indices are negative and count from the end",
    "turning points": "elements are next to the constants of comparisons",
}
# Kinds for integer inputs whose uses show no limit (`is_free`). If the model limits them nevertheless, it refuses the
# case.
FREE_INTEGERS = {
    "large integers": "integers are up to a million",
    "negative integers": "integers are between minus a million and a million",
    "integers to the limits": "integers span the range of their type",
}
# Kinds of floats: operands of rounding that are integers or halfway between two integers; elements at tree thresholds.
TIES = "ties"
TREES = "tree thresholds"
# Kinds of masks that add HIDDEN_LOW instead of HIDDEN to scores -> the kind of `MASKS` with the same hidden keys.
LOW_MASKS = {"padded away, -1e9": "padded away", "holes, -1e9": "holes", "no key, -1e9": "no key"}
# For inputs that the model converts to a float and back: integers that this float does not represent exactly.
BEYOND_FLOATS = "integers beyond floats"
LARGE_INTEGER = 1 << 20
PROBES = {"NaN": "some floats are NaN", "infinite": "some floats are infinite"}
DESCRIPTIONS = {
    **VALUES,
    **MASKS,
    **INTEGERS,
    **FREE_INTEGERS,
    **PROBES,
    **{name: f"{MASKS[kind]}, by adding -1e9" for name, kind in LOW_MASKS.items()},
    BEYOND_FLOATS: "integers are too large for the float that the model converts them to",
    TIES: "operands of rounding are integers, or halfway between two integers",
    TREES: "elements are thresholds of tree ensembles and their neighbours",
}
# If a model refuses some indices of a table, indices are limited to the first 1 / n of its rows, for these n in turn.
NARROWER = (1, 4, 16)
# If there are at most this many rows of a table, or keys, an input contains each of them before one is repeated.
ALL_KEYS = 1 << 10
# How the elements of an input that is a size or a shape are chosen. The first cases find the fillings that the model
# accepts.
FILLINGS = ("as declared", "one", "two", "rows of another input", "shape of another input", "rest", "several", "three")
LARGEST_SIZE = 8
# Kind of floats -> the factor of its normally distributed elements; 1 for other kinds.
FACTORS = {"zeros": 0.0, "large": 100.0, "tiny": 1e-4, "huge": 1e3}
# Elements of additive masks at hidden keys. HIDDEN is low enough to hide a key, and finite in float16. HIDDEN_LOW is
# usual in float32 models.
HIDDEN, HIDDEN_LOW = -1e4, -1e9
# Trip counts of Loops. Most cases use USUAL_TRIP_COUNTS in turn. With TRIP_COUNTS most Loops end by their condition.
USUAL_TRIP_COUNTS, TRIP_COUNTS = (1, 2, 3, 5, 0, 9), (9, 33, 257)
# The largest product of an input's symbolic dimensions, and the most elements of a tensor that takes its shape from an
# input.
SYMBOLIC_ELEMENTS, SHAPED_ELEMENTS = 1 << 17, 1 << 20
# The most elements of an input: 8 GiB as float64. Some exporters write 2^31 - 1 for an unknown size, and runtimes
# allocate it.
LARGEST_INPUT = 1 << 30
# The most elements of an integer list that may be a shape.
LONGEST_SHAPE = 8


@dataclass(frozen=True)
class Kind:
    """The special elements of a case; an empty field selects usual elements.

    Attributes:
        values: kind of floats, a key of VALUES or PROBES.
        mask: kind of masks, a key of MASKS or LOW_MASKS.
        integers: kind of integers, a key of INTEGERS or FREE_INTEGERS, or BEYOND_FLOATS; TIES or TREES for floats.
        trip_count: the trip count of Loops.
    """

    values: str = ""
    mask: str = ""
    integers: str = ""
    trip_count: int | None = None

    @property
    def name(self) -> str:
        name = self.values or self.mask or self.integers
        return name if self.trip_count is None else ", ".join(filter(None, (name, f"{self.trip_count} iterations")))

    @property
    def about(self) -> str:
        """The description of the elements."""
        parts = [DESCRIPTIONS[name] for name in (self.values, self.mask, self.integers) if name]
        if self.trip_count is not None:
            parts.append(f"Loops run {self.trip_count} iterations")
        return "; ".join(parts)


NORMAL = Kind()


@dataclass(frozen=True)
class Attempt:
    """The parameters of one set of inputs.

    Attributes:
        number: number of the case, from 1; selects among alternatives.
        sizes: symbol -> size, for all symbols.
        kind: the special elements.
        narrow: indices are limited to the first 1 / narrow of a table's rows.
        filling: one of FILLINGS.
    """

    number: int
    sizes: Mapping[str, int] = field(default_factory=dict)
    kind: Kind = NORMAL
    narrow: int = NARROWER[0]
    filling: str = FILLINGS[0]


@dataclass
class Filler:
    """Draws the inputs of one model.

    Attributes:
        inputs: the inputs of the model.
        uses: input -> its uses in the model.
        ranges: input -> the lowest and the highest element, from the caller.
        hiding: masks that are known to hide keys where they are 1.
        lengths: inputs that hold the number of keys, in total or of each sequence.
        counted: masks with sums that are the numbers of keys of the sequences.
    """

    inputs: Sequence[Input]
    uses: Mapping[str, Use]
    ranges: Mapping[str, tuple[float, float]]
    hiding: frozenset[str] = frozenset()
    lengths: Mapping[str, Length] = field(default_factory=dict)
    counted: Mapping[str, Length] = field(default_factory=dict)

    def __post_init__(self) -> None:
        found = {id(trees): trees for v in self.inputs for trees in self.uses[v.name].trees}
        self.rows = rows_of(list(found.values()))

    @property
    def has_floats(self) -> bool:
        return any(v.is_float for v in self.inputs)

    @property
    def has_masks(self) -> bool:
        return any(map(self.is_mask, self.inputs))

    def first_kinds(self, *, probe_nan: bool) -> list[Kind]:
        """Returns the kinds of elements that are tried first."""
        kinds = [Kind(values=v) for v in [*VALUES][:5] if self.has_floats]
        kinds += [Kind(mask=m) for m in [*MASKS][:3] if self.has_masks]
        return kinds + [Kind(values=v) for v in PROBES if self.has_floats and probe_nan]

    def more_kinds(self, *, is_discontinuous: bool) -> list[Kind]:
        """Returns the other kinds of elements.

        Args:
            is_discontinuous: whether the model has comparisons, roundings, Mod, Where, If or Loop.
        """
        uses = self.uses.values()
        is_discontinuous = is_discontinuous or any(u.low is not None or u.thresholds for u in uses)
        kinds = [Kind(integers=BEYOND_FLOATS)] * any(map(self.is_cast_through_float, self.inputs))
        kinds += [Kind(integers=TIES)] * (self.has_floats and any(u.ties for u in uses))
        kinds += [Kind(integers=i) for i in INTEGERS if is_discontinuous]
        kinds += self.free_kinds()
        if any(u.is_trip_count or u.loops for u in uses):
            kinds += [Kind(values=v, trip_count=n) for n in TRIP_COUNTS for v in ("", "tiny", "unit")]
        kinds += [Kind(mask=m) for m in [*MASKS][3:] if self.has_masks]
        if any(self.uses[v.name].additive and self.is_mask(v) for v in self.inputs):
            kinds += [Kind(mask=m) for m in LOW_MASKS]
        skipped = "huge" if any(v.is_image for v in self.inputs) else "pixels"
        return kinds + [Kind(values=v) for v in [*VALUES][5:] if self.has_floats and v != skipped]

    def free_kinds(self) -> list[Kind]:
        """Returns the kinds of integers without a known limit."""
        return [Kind(integers=i) for i in FREE_INTEGERS if any(map(self.is_free, self.inputs))]

    def is_mask(self, value: Input) -> bool:
        use, dtype = self.uses[value.name], value.dtype
        if value.name in self.ranges or use.low is not None or use.keys or value.name in self.lengths:
            return False
        rank = len(value.dims)
        if dtype.kind in "fV":
            return use.additive or (use.mask and rank >= 1)
        if use.mask:
            return rank >= 1
        return rank >= 2 and (dtype.kind == "b" or dtype.itemsize > 1) and not use.thresholds

    def is_free(self, value: Input) -> bool:
        """Returns whether no known use limits the integers of an input."""
        use, dtype = self.uses[value.name], value.dtype
        bound = use.low is not None or use.size or use.mask or use.condition or use.divisor or use.loops or use.foreign
        bound = bound or value.name in (*self.ranges, *self.lengths, *self.counted)
        return dtype.kind in "iu" and dtype.itemsize > 1 and not bound

    def is_cast_through_float(self, value: Input) -> bool:
        """Returns whether the model converts an integer input to a float and back, which changes large integers."""
        bits = self.uses[value.name].bits
        return (
            bits is not None
            and self.is_free(value)
            and _largest_free(value) == LARGE_INTEGER
            and np.iinfo(value.dtype).max >= 1 << (bits + 1)
        )

    def keys_of(self, value: Input) -> int:
        """Returns the number of keys, or of rows of a table, that an input chooses from; 0 for none or too many."""
        use = self.uses[value.name]
        rows = use.high - max(use.low, 0) + 1 if use.low is not None and use.high is not None else 0
        count = max(len(use.keys), rows)
        return count if count <= ALL_KEYS else 0

    def feeds(self, attempt: Attempt, rng: np.random.Generator) -> Feeds:
        """Returns an array for each input.

        Raises:
            VerifyError: an input has an unsupported type, or is too large.
        """
        # Arithmetic on numpy arrays of rank 0 returns numpy scalars, which the runtime refuses.
        return {v.name: np.asarray(self._array(v, attempt, rng)) for v in self.inputs}

    def _array(self, value: Input, attempt: Attempt, rng: np.random.Generator) -> Array:
        dtype, shape, use, kind = value.dtype, value.shape(attempt.sizes), self.uses[value.name], attempt.kind
        if dtype.kind not in "iubfV":
            raise VerifyError(f"input '{value.name}' is a string tensor: give your own with --inputs")
        if math.prod(shape) > LARGEST_INPUT:
            held = f"of shape {[*shape]} has {math.prod(shape):.1e} elements"
            raise VerifyError(f"input '{value.name}' {held}: give your own with --inputs, or smaller sizes")
        given = self.ranges.get(value.name)
        if given is not None:
            low, high = given
            if dtype.kind in "iub":
                wide = np.uint64 if dtype.kind == "u" else np.int64
                return np.asarray(rng.integers(int(low), int(high), shape, wide, endpoint=True)).astype(dtype)
            return np.asarray(rng.uniform(low, high, shape)).astype(dtype)
        if value.name in self.lengths:
            return self.lengths[value.name].fill(shape, attempt.sizes, kind.mask, rng).astype(dtype)
        free = (kind.integers in FREE_INTEGERS and self.is_free(value)) or (
            kind.integers == BEYOND_FLOATS and self.is_cast_through_float(value)
        )
        if self.is_mask(value) and not free and not (use.additive and kind.values in ("unit", "tiny")):
            mask = _mask(shape, LOW_MASKS.get(kind.mask, kind.mask), rng) ^ (value.name in self.hiding)
            if value.name in self.counted and mask.ndim:
                mask = self.counted[value.name].filled_up(mask, attempt.sizes)
            hidden = HIDDEN_LOW if kind.mask in LOW_MASKS and dtype.itemsize > 2 else HIDDEN
            return np.where(mask, 0.0, hidden).astype(dtype) if use.additive else mask.astype(dtype)
        if dtype.kind == "b":
            return (np.full(shape, attempt.number % 2 == 0) if not shape else rng.random(shape) < 0.5).astype(bool)
        if use.low is not None or dtype.kind in "iu":
            return self._integers(value, shape, attempt, rng).astype(dtype)
        if kind.integers == TREES and self.rows:
            return self._tree_rows(value, shape, attempt, rng).astype(dtype)
        if kind.integers == TIES and use.ties:
            return _at_ties(use.ties, shape, rng).astype(dtype)
        if kind.integers == "turning points":
            thresholds = np.array(sorted(use.thresholds) or [0.0])
            return _near(thresholds[np.abs(thresholds) < 1e6], shape, rng).astype(dtype)
        if use.scale:
            pixels = np.arange(math.prod(shape)).reshape(shape) >= 2
            return np.where(pixels, (2.0, 1.0, 0.5, 1.5)[attempt.number % 4], 1.0).astype(dtype)
        return _floats(shape, kind.values, rng).astype(dtype)

    def _tree_rows(self, value: Input, shape: tuple[int, ...], attempt: Attempt, rng: np.random.Generator) -> Array:
        """Returns rows that reach decisions of tree ensembles. If not all fit into a batch, the next case continues."""
        array = np.asarray(rng.standard_normal(shape))
        if not array.size or not shape:
            return array
        rows = array.reshape(shape[0], -1)
        for i in range(len(rows)):
            wanted = self.rows[(attempt.number * len(rows) + i) % len(self.rows)]
            for (name, column), number in wanted.items():
                if name == value.name and column < rows.shape[1]:
                    rows[i, column] = number
        return array

    def _integers(self, value: Input, shape: tuple[int, ...], attempt: Attempt, rng: np.random.Generator) -> Array:
        """Returns integers of the input's type by its uses."""
        dtype, use, kind = value.dtype, self.uses[value.name], attempt.kind
        limits = np.iinfo(dtype) if dtype.kind in "iu" else np.iinfo(np.int32)
        if use.low is not None and use.high is not None:
            return _indices(shape, limits, use, attempt, rng)
        if (use.is_trip_count or use.loops) and kind.trip_count is not None:
            return np.full(shape, kind.trip_count)
        if use.axes:
            axes = np.arange(math.prod(shape)).reshape(shape)
            return axes if attempt.number % 2 or limits.min == 0 else -1 - axes
        if use.size:
            if use.is_trip_count:
                return np.full(shape, USUAL_TRIP_COUNTS[attempt.number % len(USUAL_TRIP_COUNTS)])
            return self._sizes(shape, use, attempt, rng)
        most = _largest_free(value)
        if kind.integers == BEYOND_FLOATS and self.is_cast_through_float(value):
            assert use.bits is not None
            odd = rng.integers(1 << use.bits, 1 << (use.bits + 1), shape) | 1
            return np.asarray(odd * rng.choice((1 if limits.min == 0 else -1, 1), shape))
        if kind.integers == "integers to the limits" and not use.condition and most == LARGE_INTEGER:
            return _to_the_limits(shape, limits, rng)
        if kind.integers in FREE_INTEGERS and not use.condition:
            numbers = np.rint(np.exp(rng.uniform(0, math.log(min(most, limits.max)), shape)))
            lowest = 0 if kind.integers == "large integers" or limits.min == 0 else -1
            return np.asarray(numbers * rng.choice((lowest, 1), shape))
        if use.keys:
            keys = np.array(sorted(k for k in use.keys if limits.min <= k <= limits.max) or [0])
            return keys[_each_in_turn(0, keys.size - 1, shape, rng)]
        if use.thresholds:
            return _around_thresholds(shape, limits, use, attempt, rng)
        if use.condition:
            return np.full(shape, attempt.number % 2)
        if dtype.itemsize == 1:
            return _with_limits(rng.integers(limits.min, limits.max + 1, shape), limits.min, limits.max, rng)
        if use.loops:
            return np.full(shape, USUAL_TRIP_COUNTS[attempt.number % len(USUAL_TRIP_COUNTS)])
        if use.divisor:
            return rng.integers(1, (9, min(1000, most))[attempt.number % 2], shape)
        # Probably time steps, counts or labels: 0 and 1, or integers below 1000 (as time steps of diffusion models).
        return rng.integers(0, (2, min(1000, most))[attempt.number % 2], shape)

    def _sizes(self, shape: tuple[int, ...], use: Use, attempt: Attempt, rng: np.random.Generator) -> Array:
        """Returns a size or a shape, small enough that the result has at most SYMBOLIC_ELEMENTS elements."""
        count, filling = math.prod(shape), attempt.filling
        others = [v.shape(attempt.sizes) for v in self.inputs if not self.uses[v.name].size]
        most = max((math.prod(other) for other in others), default=1)
        largest = int(min(LARGEST_SIZE, max(2.0, (SYMBOLIC_ELEMENTS / max(most, 1)) ** (1 / max(count, 1)))))
        if filling == "as declared":
            given = next((s for s in use.shapes if len(s) == count), None)
        elif filling == "shape of another input":
            given = next((s for s in others if len(s) == count), None)
        elif filling == "rows of another input":
            rows = next((s[0] for s in others if s), 1)
            given = (rows, *rng.integers(1, largest + 1, max(count - 1, 0))) if count > 1 else None
        elif filling == "rest":
            given = (*np.ones(count - 1, int), -1) if use.rest and count else None
        else:
            words = {"one": 1, "two": 2, "three": 3}
            given = (min(words[filling], largest),) * count if filling in words else None
        return np.reshape(given if given is not None else rng.integers(1, largest + 1, count), shape)


def _indices(
    shape: tuple[int, ...], limits: np.iinfo[Any], use: Use, attempt: Attempt, rng: np.random.Generator
) -> Array:
    """Returns indices of the table, or of the first rows that the attempt allows."""
    assert use.low is not None and use.high is not None
    low, high = max(use.low, limits.min), min(max(use.high, use.low), limits.max)
    high = low + (high - low) // attempt.narrow
    if attempt.kind.integers == "negative ids" and use.negative and limits.min < 0:
        least = -(use.reach or high + 1) // attempt.narrow
        return _with_limits(rng.integers(least, high + 1, shape), least, -1, rng)
    if attempt.kind.integers == "last":
        return rng.integers(max(low, high - 2), high + 1, shape)
    low = max(low, 0) if high >= 0 else low
    return _each_in_turn(low, high, shape, rng)


def _each_in_turn(low: int, high: int, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Returns integers of a range, including its limits; in a small range none repeats before all are used."""
    rows = high - low + 1
    if rows > ALL_KEYS:
        return _with_limits(rng.integers(low, high + 1, shape), low, high, rng)
    numbers = rng.permutation(np.resize(low + rng.permutation(rows), math.prod(shape))).reshape(shape)
    return numbers if numbers.size >= rows else _with_limits(numbers, low, high, rng)


def _around_thresholds(
    shape: tuple[int, ...], limits: np.iinfo[Any], use: Use, attempt: Attempt, rng: np.random.Generator
) -> Array:
    """Returns integers at and next to thresholds."""
    near = sorted({math.floor(t) + step for t in use.thresholds if abs(t) < 2**62 for step in (-1, 0, 1)})
    near = [n for n in near if limits.min <= n <= limits.max] or [0, 1]
    if not shape:
        # Successive cases use the thresholds first, then their neighbours.
        exact = sorted(int(t) for t in use.thresholds if float(t).is_integer() and limits.min <= t <= limits.max)
        choices = [*exact, *(n for n in near if n not in exact)]
        return np.asarray(choices[(attempt.number - 1) % len(choices)])
    if attempt.kind.integers == "turning points" or attempt.number % 2:
        return rng.choice(near, shape)
    return rng.integers(near[0] - 1 if near[0] > limits.min else near[0], near[-1] + 1, shape)


def _near(thresholds: Array, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Returns elements near these thresholds and, if the array has enough elements, each threshold."""
    thresholds = thresholds if thresholds.size else np.zeros(1)
    # Floats represent integers and halves exactly, so rounding does not change a comparison with them.
    parts = 1 if (thresholds == np.rint(thresholds)).all() else 2
    numbers = np.asarray(rng.choice(thresholds, shape) + rng.integers(-5, 6, shape) / parts)
    if exact := thresholds[: numbers.size // 2].tolist():
        numbers.reshape(-1)[rng.choice(numbers.size, len(exact), replace=False)] = exact
    return numbers


def _to_the_limits(shape: tuple[int, ...], limits: np.iinfo[Any], rng: np.random.Generator) -> Array:
    """Returns integers of all bit lengths and both signs, including the limits of the type."""
    bits = _each_in_turn(1, limits.bits - (limits.min < 0), shape, rng)
    most = [2 ** int(n) - 1 for n in np.reshape(bits, -1)]
    drawn = [int(rng.integers(m // 2, m, dtype=np.uint64, endpoint=True)) for m in most]
    signs = rng.choice((1,) if limits.min == 0 else (-1, 1), len(drawn)).tolist()
    array = np.array([s * n for s, n in zip(signs, drawn)], limits.dtype).reshape(shape)
    return _with_limits(array, limits.min, limits.max, rng)


def _at_ties(ties: Collection[tuple[float, float, float]], shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Solves factor * x + offset = integer + tie; if x is inexact, two thirds of the elements are neighbours of x."""
    chosen = np.array(sorted(ties))[rng.integers(0, len(ties), shape)]
    factor, offset, tie = (chosen[..., i] for i in range(3))
    exact = np.asarray((rng.integers(-9, 9, shape) + tie - offset) / factor)
    if all(math.frexp(f)[0] in (0.5, -0.5) for f, _, _ in ties):
        return exact  # powers of two: the elements are exact ties
    single = exact.astype(np.float32)
    steps = rng.choice((0.0, 1.0, -1.0), shape)
    return np.asarray(
        np.where(steps == 0, single, np.nextafter(single, np.float32(np.inf) * np.where(steps < 0, -1, 1)))
    )


def _largest_free(value: Input) -> int:
    """Returns the largest element for an integer input without a known limit; small if the input may be a shape."""
    length = value.dims[0] if len(value.dims) == 1 else None
    if isinstance(length, int) and 1 < length <= LONGEST_SHAPE:
        return int(SHAPED_ELEMENTS ** (1 / length))
    return LARGE_INTEGER


def _floats(shape: tuple[int, ...], kind: str, rng: np.random.Generator) -> Array:
    values = np.asarray(rng.standard_normal(shape))
    if kind == "unit":
        values = np.asarray(rng.random(shape))
    if kind == "negative":
        values = -np.abs(values)
    if kind == "pixels":
        values = np.floor(256 * rng.random(shape))
    if kind == "nearly constant":
        values = 3 + 1e-2 * values
    if kind == "far from zero":
        values = 20 + values
    if kind in ("equal rows", "one-hot") and shape and values.size:
        values = _patterned(values, kind, rng)
    if kind == "rows" and shape:
        axis = next((i for i, n in enumerate(shape[:-1]) if n > 1), 0)
        scales = np.geomspace(1e-2, 1e2, shape[axis]) if shape[axis] > 1 else np.ones(shape[axis])
        values = values * rng.permutation(scales).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    if kind in PROBES and values.size:
        # One element in 1000: most outputs remain finite.
        where = rng.choice(values.size, max(1, values.size // 1000), replace=False)
        values.reshape(-1)[where] = np.nan if kind == "NaN" else np.inf * rng.choice((-1.0, 1.0), where.size)
    return np.asarray(values * FACTORS.get(kind, 1.0))


def _patterned(values: Array, kind: str, rng: np.random.Generator) -> Array:
    """Returns rows of one value each, or with a single 1."""
    if kind == "equal rows":
        first = values[..., :1, :1] if values.ndim == 4 else values[..., :1]
        # The squares must add up exactly; otherwise a variance computed as E[x^2] - E[x]^2 may be negative and its root
        # NaN.
        return np.array(np.broadcast_to(np.round(8 * first) / 8, values.shape))
    places = rng.integers(0, values.shape[-1], values.shape[:-1])
    return np.asarray(np.arange(values.shape[-1]) == places[..., None]).astype(np.float64)


def _with_limits(array: Array, low: int, high: int, rng: np.random.Generator) -> Array:
    """Writes both limits of a range at random positions of an array."""
    if array.size >= 2:
        positions = rng.choice(array.size, 2, replace=False)
        array.reshape(-1)[positions] = low, high
    return array


def _mask(shape: tuple[int, ...], kind: str, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Returns a mask of keys along the last axis; true keeps a key."""
    mask = np.ones(shape, bool)
    if not mask.size or not shape or shape[-1] < 2:
        return mask
    rows = mask.reshape(-1, shape[-1])
    length = shape[-1]
    if kind == "no key":
        rows[:] = False
        return mask
    if kind == "first row":
        rows[0, : length // 2] = False
        return mask
    # The first of several rows is not masked, so that an exchange of rows changes the result.
    for row in rows[1:] if len(rows) > 1 else rows:
        n = int(rng.integers(1, length))
        if kind == "padded left":
            row[:n] = False
        elif kind == "padded right":
            row[n:] = False
        elif kind == "padded both":
            row[: n // 2] = False
            row[n // 2 + max(1, (length - n // 2) // 2) :] = False
        elif kind == "holes":
            row[rng.random(length) < 0.4] = False
            row[n], row[(n + 1) % length] = True, False
        elif kind == "one key":
            row[np.arange(length) != n] = False
        elif kind == "padded away":
            # A NaN guard or the value of hidden scores matters only if a row has no key.
            row[:] = False
    return mask
