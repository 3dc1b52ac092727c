"""Plans the inputs that are tried: such as are likely to show a wrong rewrite, made from the model's own inputs.

Signed, negative, zero, large and tiny values, pixels, rows of different size, values that hardly differ, NaN and
infinities where asked; masks padded at either end, with holes, of one key, of none; integers over the whole range that
their use allows (`uses`); sizes of symbolic dimensions, bound by their names: batches of 1 to 4, odd lengths and such
around powers of two, height other than width, the longest that the model takes, an empty past; other values for
overridable initializers.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from graphopt.checking.uses import Use, uses_of
from graphopt.errors import VerifyError

Array = npt.NDArray[Any]
Feeds = dict[str, Any]

# The first sizes of symbolic dimensions: a first axis is a batch, the last two of four are an image, the rest lengths.
FIRST, SECOND = (1, 64, 64, 7), (2, 96, 96, 16)  # batch, height, width, length
USUAL = (2, 64, 64, 16)
# Where these are refused, one size for all is tried.
ONE_SIZE = (4, 2, 8, 16, 32, 64, 224, 3, 1, 0)
# Lengths of what `taken_sizes` tries beside a state of one row.
BESIDE_A_STATE = (128, 224, 576)
# Past a tile of any kernel, not a multiple of 8 or 32, smaller than a tile; height and width differ both ways.
MORE_SIZES = (
    (3, 64, 96, 10),
    (1, 128, 128, 33),
    (4, 96, 64, 13),
    (2, 65, 63, 31),
    (1, 33, 47, 64),
    (3, 31, 33, 2),
    (2, 32, 32, 1),
    (1, 7, 9, 3),
    (2, 47, 33, 63),
    (1, 63, 65, 65),
    (3, 96, 96, 32),
)
LONGEST = (1, 128, 128, 576)  # as long as a frame of sound
PAST = ("past", "cache", "prev", "history")
VALUES = ("zeros", "unit", "large", "tiny", "negative", "rows", "nearly constant", "pixels", "huge", "far from zero")
MASKS = ("padded left", "padded right", "padded away", "padded both", "holes", "first row", "one key")
INTEGERS = ("last", "negative ids", "turning points")
# Cases for integers without a known limit; a model that does limit them refuses the case.
FREE_INTEGERS = ("large integers", "negative integers")
LARGE_INTEGER = 1 << 20
# Enough rows that what is rare is met: an entry of a table, a number near a threshold.
MANY_ROWS = 70
# Parts of the tables that indices may count in, where a model refuses indices into all of it.
NARROWER = (1, 4, 16)
# Ways to fill an input that says how large something is: which of them a model takes is learnt from the first cases.
FILLINGS = ("as declared", "one", "two", "rows of another input", "shape of another input", "rest", "several", "three")
LARGEST_SIZE = 8
# How often Loops run, beyond what most bodies need to reach their own condition.
TURNS = (9, 33)
PROBES = ("NaN", "infinite")
# Where a number next to an integer, or between two, decides.
DECISIONS = frozenset("Ceil Equal Floor Greater GreaterOrEqual If Less LessOrEqual Loop Mod Round Where".split())
FACTORS = {"zeros": 0.0, "large": 100.0, "tiny": 1e-4, "huge": 1e3}
# Low enough to hide, and still a number of float16.
HIDDEN = -1e4
# Types of which the runtime takes no numpy arrays.
_NO_ARRAYS = frozenset(
    kind
    for name, kind in onnx.TensorProto.DataType.items()
    if name.startswith(("FLOAT4", "FLOAT6", "FLOAT8", "INT2", "INT4", "UINT2", "UINT4"))
)
# Most elements of all inputs together, of one by its symbolic dimensions, and of a tensor whose shape is an input.
ELEMENTS, SYMBOLIC_ELEMENTS, SHAPED_ELEMENTS = 1 << 24, 1 << 17, 1 << 20
# Most elements of any input: 8 GiB where they are drawn. Some tools write 2^31 - 1 for any size, and the runtimes take
# that at its word.
LARGEST_INPUT = 1 << 30
# The longest that a list of integers is taken for a shape.
LONGEST_SHAPE = 8


@dataclass(frozen=True)
class Case:
    """One set of inputs and what is special about it."""

    name: str
    feeds: Feeds


@dataclass(frozen=True)
class Wishes:
    """What the caller says about the inputs that are made.

    Attributes:
        seed: of all random numbers.
        fixed: sizes of symbolic dimensions that are not to be varied.
        sizes: symbolic dimension -> the sizes to try.
        batch: sizes to try for the first axes.
        ranges: input -> the lowest and the highest number.
        probe_nan: adds cases with a few NaN and infinite elements in each floating point input.
        elements: of all inputs of a case together, at most.
    """

    seed: int = 0
    fixed: Mapping[str, int] = field(default_factory=dict)
    sizes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    batch: Sequence[int] = ()
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    probe_nan: bool = False
    elements: int = ELEMENTS


@dataclass(frozen=True)
class _Kind:
    """What is special about a case's numbers; "" is nothing."""

    values: str = ""
    mask: str = ""
    integers: str = ""
    turns: int | None = None


def plan(
    model: onnx.ModelProto,
    wishes: Wishes,
    accepts: Callable[[Case], bool],
    exhausted: Callable[[float], bool],
    has_numbers: Callable[[str], bool] = lambda _: True,
) -> None:
    """Makes cases one after the other, most telling first, and learns from those that the model refuses.

    Args:
        model: its inputs are read, and what it does with them; functions inlined.
        wishes: of the caller.
        accepts: runs the model; whether it takes the case.
        exhausted: whether to stop; asked after the first few cases of each kind, with the seconds of all processors
            that the next case is likely to take beyond one like those before.
        has_numbers: whether each floating point output of a case that the model took, by name, has a finite number.

    Raises:
        VerifyError: an input is of a type that is not made here, or too large.
    """
    _Plan(model, wishes, accepts, exhausted, has_numbers).run()


class _Plan:
    def __init__(
        self,
        model: onnx.ModelProto,
        wishes: Wishes,
        accepts: Callable[[Case], bool],
        exhausted: Callable[[float], bool],
        has_numbers: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self.model, self.wishes, self.accepts, self.exhausted = model, wishes, accepts, exhausted
        self.has_numbers = has_numbers
        self.inputs = required_inputs(model)
        self.uses = uses_of(model)
        self.roles = {s: role for s, role in symbols(model).items() if s not in wishes.fixed}
        self.one_size: int | None = None
        self.longest: int | None = None
        self.made = 0
        # By the name of a case and its sizes: what one size refuses another may take.
        self.tried: dict[tuple[object, ...], bool] = {}
        self.seconds = 0.0
        self.narrow = NARROWER[0]
        self.filling = FILLINGS[0]
        self.floats = any(_is_float(v) for v in self.inputs)
        self.masks = any(self._is_mask(v) for v in self.inputs)
        self.hiding: frozenset[str] = frozenset()
        self.totals = self._totals()
        self.linked = False
        decides = any(n.op_type in DECISIONS for n in model.graph.node)
        self.indexed = decides or any(u.low is not None or u.turning for u in self.uses.values())
        self.free = any(self._is_free(v) for v in self.inputs)
        self.turns = any(u.turns for u in self.uses.values())

    def run(self) -> None:
        usual = self._kinds(self._first())
        self._overridden(usual)
        self._longest()
        self._many_rows()
        for more in itertools.zip_longest(self._more_kinds(usual), self._more_sizes(usual)):
            for case in more:
                if case is not None:
                    if self.exhausted(0.0):
                        return
                    case()

    # -- which cases -------------------------------------------------------------------------------------------------

    def _first(self) -> tuple[int, int, int, int]:
        """Sizes that the model takes at all; some of them."""
        for linked in (False, True) if self.totals else (False,):
            self.linked = linked
            if self._try("normal, batch 1", FIRST):
                self._learn_masks("normal, batch 1", FIRST)
                self._try("normal, batch 2", SECOND)
                return FIRST
            if self._try("normal, batch 2", SECOND):
                self._learn_masks("normal, batch 2", SECOND)
                return SECOND
        self.linked = False
        for size in ONE_SIZE if self.roles else ():
            self.one_size = size
            if self._try(f"normal, all sizes {size}", FIRST):
                self._learn_masks(f"normal, all sizes {size}", FIRST)
                return FIRST
        self.one_size = None
        return FIRST

    def _learn_masks(self, name: str, size: tuple[int, int, int, int]) -> None:
        """Finds the masks that hide where they are 1, as PyTorch's padding masks do.

        A mask of ones hides every key there: a softmax over nothing is NaN, and such a case says nothing.
        """
        masks = [v.name for v in self.inputs if self._is_mask(v) and not self.uses[v.name].additive]
        if not masks or self.has_numbers(name):
            return
        for hiding in (masks, *([m] for m in masks if len(masks) > 1)):
            self.hiding = frozenset(hiding)
            other = f"{name}, 1 hides in {', '.join(hiding)}"
            if self._try(other, size) and self.has_numbers(other):
                return
        self.hiding = frozenset()

    def _kinds(self, first: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
        """Kinds of numbers at one size, `first` where the usual one is refused; the size."""
        kinds = [_Kind(values=v) for v in VALUES[:5] if self.floats]
        kinds += [_Kind(mask=m) for m in MASKS[:3] if self.masks]
        kinds += [_Kind(values=v) for v in PROBES if self.floats and self.wishes.probe_nan]
        usual = USUAL
        for kind in kinds:
            if not self._try(_name(kind), usual, kind) and usual == USUAL and self._try(_name(kind), first, kind):
                usual = first
        return usual

    def _more_kinds(self, usual: tuple[int, int, int, int]) -> Iterator[Callable[[], object]]:
        images = any(_is_image(v) for v in self.inputs)
        kinds = [_Kind(integers=i) for i in INTEGERS if self.indexed]
        kinds += [_Kind(integers=i) for i in FREE_INTEGERS if self.free]
        kinds += [_Kind(values=v, turns=n) for n in TURNS for v in ("", "tiny", "unit") if self.turns]
        kinds += [_Kind(mask=m) for m in MASKS[3:] if self.masks]
        kinds += [
            _Kind(values=v)
            for v in VALUES[5:]
            if self.floats and (v not in ("pixels", "huge") or images == (v == "pixels"))
        ]
        tried = [(_name(kind), usual, kind) for kind in kinds]
        if self.masks:
            alone = (1, *usual[1:])
            tried += [(f"{mask}, batch 1", alone, _Kind(mask=mask)) for mask in ("padded right", "holes")]
        if not self.roles:
            tried += [(f"normal, draw {i}", usual, _Kind()) for i in (2, 3, 4)]
        for case in tried:
            yield partial(self._try, *case)

    def _many_rows(self) -> None:
        if "batch" not in self.roles.values() or self.wishes.batch:
            return
        first = (MANY_ROWS, *FIRST[1:])
        kinds = [_Kind(), _Kind(values="large", integers="last")]
        kinds += [_Kind(integers=i) for i in FREE_INTEGERS if self.free]
        for kind in kinds:
            if not self.exhausted(self.seconds * MANY_ROWS):
                self._try(", ".join(filter(None, (_name(kind), f"batch {MANY_ROWS}"))), first, kind)

    def _overridden(self, usual: tuple[int, int, int, int]) -> None:
        names = {v.name for v in self.model.graph.input}
        tensors = [t for t in self.model.graph.initializer if self.model.ir_version >= 4 and t.name in names]
        if not tensors:
            return
        rng = np.random.default_rng([self.wishes.seed, 30])
        given = {}
        for tensor in tensors:
            array = numpy_helper.to_array(tensor)
            if array.dtype.kind == "f":
                given[tensor.name] = np.asarray(array * 1.1 + rng.normal(0, 0.1, array.shape)).astype(array.dtype)
        self._try("overridden initializers", usual, extra=given)

    def _more_sizes(self, usual: tuple[int, int, int, int]) -> Iterator[Callable[[], object]]:
        if not self.roles:
            return
        if usual != USUAL:  # a model that is exported with its example's length may still take any batch
            for batch in (2, 3, 4):
                yield partial(self._try, f"normal, batch {batch}", (batch, *usual[1:]))
        masks = itertools.cycle(("padded both", "holes", "", "padded right", "one key")) if self.masks else None
        lists = [len(sizes) for sizes in (*self.wishes.sizes.values(), self.wishes.batch)]
        sizes = [*MORE_SIZES, *[USUAL] * (max(lists, default=0) - len(MORE_SIZES))]
        for i, (batch, height, width, length) in enumerate(sizes):
            kind = _Kind(mask=next(masks)) if masks else _Kind()
            yield partial(self._try, "", (batch, height, width, min(length, self.longest or length)), kind, turn=i + 1)
        for name, past, length in (("empty past", 0, 7), ("decode step", 7, 1)):
            own = dict.fromkeys(self._pasts(), past)
            if own:
                own |= {s: length for s, role in self.roles.items() if role == "length" and s not in own}
                yield partial(self._try, name, USUAL, own=own)

    def _longest(self) -> None:
        """The longest sequence that the model takes, up to a bound: a table of positions ends somewhere."""
        if "length" not in self.roles.values():
            if "image" in self.roles.values():
                self._try("", LONGEST)
            return
        longest = LONGEST[3]
        if self._try("", LONGEST):
            return
        taken, refused = USUAL[3], longest
        while refused - taken > 1 and not self.exhausted(0.0):
            middle = taken * 2 if taken * 2 < refused else (taken + refused) // 2
            if self._try("", (*LONGEST[:3], middle)):
                taken = self.longest = middle
            else:
                refused = middle

    def _try(
        self,
        name: str,
        size: tuple[int, int, int, int],
        kind: _Kind | None = None,
        *,
        turn: int = 0,
        own: Mapping[str, int] | None = None,
        extra: Feeds | None = None,
    ) -> bool:
        self.made += 1
        sizes = self._together(self._bounded({**self._sizes(size, turn), **(own or {})}))
        name = name or ", ".join(
            [*(f"{s}={n}" for s, n in sizes.items()), *([_name(kind)] if kind and kind.mask else [])]
        )
        key = (name, *sizes.items())
        if key in self.tried:
            return self.tried[key]
        kind = kind or _Kind()
        for narrow, filling in self._attempts():
            self.narrow, self.filling = narrow, filling
            rng = np.random.default_rng([self.wishes.seed, self.made])
            feeds = {v.name: self._array(v, sizes, kind, rng) for v in self.inputs}
            began = time.process_time()
            self.tried[key] = self.accepts(Case(name, {**feeds, **(extra or {})}))
            if self.tried[key]:
                self.seconds = self.seconds or time.process_time() - began
                break
        return self.tried[key]

    def _attempts(self) -> list[tuple[int, str]]:
        """Parts of tables, and fillings of sizes, to try one after the other.

        What a model computes from an index may be another table's, and a size may have to fit something else: the first
        cases say which it takes.
        """
        usual = (self.narrow, self.filling)
        indexed = any(u.low is not None for u in self.uses.values())
        sized = any(self.uses[v.name].size and not self.uses[v.name].turns for v in self.inputs)
        if self.seconds > 0:
            other = FILLINGS[self.made % len(FILLINGS)] if sized else self.filling
            return [usual] if other == self.filling else [(self.narrow, other), usual]
        found = [(narrow, self.filling) for narrow in (NARROWER if indexed else (self.narrow,))]
        return found + [(self.narrow, filling) for filling in FILLINGS[1:] if sized]

    # -- sizes -------------------------------------------------------------------------------------------------------

    def _sizes(self, size: tuple[int, int, int, int], turn: int) -> dict[str, int]:
        """A size for each symbol; with a turn above 0 lengths, and first axes of other names, differ."""
        batch, height, width, length = size
        found: dict[str, int] = {}
        seen = {"batch": 0, "image": 0, "length": 0}
        for symbol, role in self.roles.items():
            number = seen[role]
            seen[role] += 1
            if self.one_size is not None:
                found[symbol] = self.one_size
            elif role == "batch":
                found[symbol] = batch + (number if turn % 4 == 3 else 0)
            elif role == "image":
                found[symbol] = height if number % 2 == 0 else width
            else:
                found[symbol] = length + (3 * number if turn else 0)
                if self.longest is not None:
                    found[symbol] = min(found[symbol], self.longest)
            asked = self.wishes.sizes.get(symbol, self.wishes.batch if role == "batch" else ())
            if asked:
                found[symbol] = asked[(self.made - 1) % len(asked)]
        found |= self.wishes.fixed
        return found

    def _pasts(self) -> list[str]:
        """Symbols that say how many steps a decoder keeps."""
        of_inputs = {
            _symbol(v, i)
            for v in self.inputs
            if _is_past(v.name)
            for i, dim in enumerate(v.type.tensor_type.shape.dim)
            if i > 0 and not _is_given(dim)
        }
        return [s for s, role in self.roles.items() if role == "length" and (s in of_inputs or _is_past(s))]

    def _totals(self) -> dict[str, tuple[str, str | int]]:
        """Symbols of masks over all steps of a decoder -> those of the steps that it keeps, and of the new ones."""
        pasts = self._pasts()
        masks = [v for v in self.inputs if "mask" in v.name.lower() or self.uses[v.name].mask]
        tokens = next((v for v in self.inputs if v not in masks and not _is_past(v.name)), None)
        if not pasts or tokens is None or len(tokens.type.tensor_type.shape.dim) < 2:
            return {}
        dims = tokens.type.tensor_type.shape.dim
        new = dims[1].dim_value if _is_given(dims[1]) else _symbol(tokens, 1)
        lasts = [_symbol(m, len(m.type.tensor_type.shape.dim) - 1) for m in masks if m.type.tensor_type.shape.dim]
        return {s: (pasts[0], new) for s in lasts if s in self.roles and s not in (new, *pasts)}

    def _together(self, sizes: dict[str, int]) -> dict[str, int]:
        """The sizes with those of `_totals` as sums, where the model takes no others."""
        asked = {*self.wishes.fixed, *self.wishes.sizes} if self.linked else {*self.totals}
        sums = {s: sizes[p] + (_size(n, sizes) if isinstance(n, str) else n) for s, (p, n) in self.totals.items()}
        return {**sizes, **{s: n for s, n in sums.items() if s not in asked}}

    def _bounded(self, sizes: dict[str, int]) -> dict[str, int]:
        """The largest of our own choice halved until the inputs are small enough."""
        asked = {*self.wishes.fixed, *self.wishes.sizes}
        while self._is_too_large(sizes):
            largest = max((s for s in sizes if s not in asked), key=lambda s: sizes[s], default=None)
            if largest is None or sizes[largest] <= 1:
                break
            sizes = {**sizes, largest: max(1, sizes[largest] // 2)}
        return sizes

    def _is_too_large(self, sizes: Mapping[str, int]) -> bool:
        shapes = [_shape(v, sizes) for v in self.inputs]
        symbolic = (
            math.prod(n for n, d in zip(shape, v.type.tensor_type.shape.dim) if not _is_given(d))
            for shape, v in zip(shapes, self.inputs)
        )
        return sum(map(math.prod, shapes)) > self.wishes.elements or max(symbolic, default=0) > SYMBOLIC_ELEMENTS

    # -- numbers -----------------------------------------------------------------------------------------------------

    def _is_mask(self, value: onnx.ValueInfoProto) -> bool:
        use, dtype = self.uses[value.name], _dtype(value)
        if value.name in self.wishes.ranges or use.low is not None:
            return False
        rank = len(value.type.tensor_type.shape.dim)
        if dtype.kind in "fV":
            return use.additive or (use.mask and rank >= 1)
        if use.mask:
            return rank >= 1
        return rank >= 2 and (dtype.kind == "b" or dtype.itemsize > 1) and not use.turning

    def _is_free(self, value: onnx.ValueInfoProto) -> bool:
        """Whether an integer may be any, as far as is known."""
        use, dtype = self.uses[value.name], _dtype(value)
        bound = use.low is not None or use.size or use.mask or use.condition or value.name in self.wishes.ranges
        return dtype.kind in "iu" and dtype.itemsize > 1 and not bound

    def _array(
        self, value: onnx.ValueInfoProto, sizes: Mapping[str, int], kind: _Kind, rng: np.random.Generator
    ) -> Any:
        dtype, shape, use = _dtype(value), _shape(value, sizes), self.uses[value.name]
        if dtype.kind not in "iubfV":
            raise VerifyError(f"input '{value.name}' holds strings: give some of your own with --inputs")
        if math.prod(shape) > LARGEST_INPUT:
            held = f"of {[*shape]} holds {math.prod(shape):.1e} numbers"
            raise VerifyError(f"input '{value.name}' {held}: give some of your own with --inputs, or smaller sizes")
        given = self.wishes.ranges.get(value.name)
        if given is not None:
            low, high = given
            numbers: Array = (
                rng.integers(int(low), int(high) + 1, shape) if dtype.kind in "iub" else rng.uniform(low, high, shape)
            )
            return np.asarray(numbers).astype(dtype)
        free = kind.integers in FREE_INTEGERS and self._is_free(value)
        if self._is_mask(value) and not free and not (use.additive and kind.values in ("unit", "tiny")):
            mask = _mask(shape, kind.mask, rng) ^ (value.name in self.hiding)
            return np.where(mask, 0.0, HIDDEN).astype(dtype) if use.additive else mask.astype(dtype)
        if use.low is not None or (use.turning and dtype.kind in "iu") or dtype.kind in "iub":
            axes = value.type.tensor_type.shape.dim
            may_be_a_shape = len(axes) == 1 and _is_given(axes[0]) and 1 < axes[0].dim_value <= LONGEST_SHAPE
            most = int(SHAPED_ELEMENTS ** (1 / axes[0].dim_value)) if may_be_a_shape else LARGE_INTEGER
            return self._integers(dtype, shape, use, kind, sizes, rng, most)
        if kind.integers == "turning points":
            points = np.array(sorted(use.turning) or [0.0])
            return np.asarray(
                rng.choice(points[np.abs(points) < 1e6] if (np.abs(points) < 1e6).any() else [0.0], shape)
                + rng.integers(-5, 6, shape) / 2
            ).astype(dtype)
        if use.scale:
            pixels = np.arange(math.prod(shape)).reshape(shape) >= 2
            return np.where(pixels, (2.0, 1.0, 0.5, 1.5)[self.made % 4], 1.0).astype(dtype)
        return _floats(shape, kind.values, rng).astype(dtype)

    def _sizes_in(self, shape: tuple[int, ...], use: Use, sizes: Mapping[str, int], rng: np.random.Generator) -> Array:
        """Sizes, a few of them or a whole shape; what is made of them stays within the elements of an input."""
        count = math.prod(shape)
        others = [_shape(v, sizes) for v in self.inputs if not self.uses[v.name].size]
        most = max((math.prod(other) for other in others), default=1)
        largest = int(min(LARGEST_SIZE, max(2.0, (SYMBOLIC_ELEMENTS / max(most, 1)) ** (1 / max(count, 1)))))
        if self.filling == "as declared":
            given = next((s for s in use.shapes if len(s) == count), None)
        elif self.filling == "shape of another input":
            given = next((s for s in others if len(s) == count), None)
        elif self.filling == "rows of another input":
            rows = next((s[0] for s in others if s), 1)
            given = (rows, *rng.integers(1, largest + 1, max(count - 1, 0))) if count > 1 else None
        elif self.filling == "rest":
            given = (*np.ones(count - 1, int), -1) if use.rest and count else None
        else:
            words = {"one": 1, "two": 2, "three": 3}
            given = (min(words[self.filling], largest),) * count if self.filling in words else None
        return np.reshape(given if given is not None else rng.integers(1, largest + 1, count), shape)

    def _integers(
        self,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        use: Use,
        kind: _Kind,
        sizes: Mapping[str, int],
        rng: np.random.Generator,
        most: int,
    ) -> Array:
        """most: of numbers that nothing is known of."""
        if dtype.kind == "b":
            return (np.full(shape, self.made % 2 == 0) if not shape else rng.random(shape) < 0.5).astype(bool)
        limits = np.iinfo(dtype) if dtype.kind in "iu" else np.iinfo(np.int32)
        if use.low is not None and use.high is not None:
            low, high = max(use.low, limits.min), min(max(use.high, use.low), limits.max)
            high = low + (high - low) // self.narrow
            if kind.integers == "negative ids" and use.negative and limits.min < 0:
                least = -(use.reach or high + 1) // self.narrow
                return _with_ends(rng.integers(least, high + 1, shape), least, -1, rng).astype(dtype)
            if kind.integers == "last":
                return rng.integers(max(low, high - 2), high + 1, shape).astype(dtype)
            low = max(low, 0) if high >= 0 else low
            return _with_ends(rng.integers(low, high + 1, shape), low, high, rng).astype(dtype)
        if use.turns and kind.turns is not None:
            return np.full(shape, kind.turns).astype(dtype)
        if use.axes:
            axes = np.arange(math.prod(shape)).reshape(shape)
            return (axes if self.made % 2 or limits.min == 0 else -1 - axes).astype(dtype)
        if use.size:
            if use.turns:
                return np.full(shape, (1, 2, 3, 5, 0, 9)[self.made % 6]).astype(dtype)
            return self._sizes_in(shape, use, sizes, rng).astype(dtype)
        if kind.integers in FREE_INTEGERS and not use.condition:
            numbers = np.rint(np.exp(rng.uniform(0, math.log(min(most, limits.max)), shape)))
            lowest = 0 if kind.integers == "large integers" or limits.min == 0 else -1
            return np.asarray(numbers * rng.choice((lowest, 1), shape)).astype(dtype)
        if use.turning:
            points = sorted({math.floor(t) + step for t in use.turning if abs(t) < 2**31 for step in (-1, 0, 1)})
            points = [p for p in points if limits.min <= p <= limits.max] or [0, 1]
            if not shape:
                # In turn each number that is asked for, then its neighbours.
                exact = sorted(int(t) for t in use.turning if float(t).is_integer() and limits.min <= t <= limits.max)
                choices = [*exact, *(p for p in points if p not in exact)]
                return np.asarray(choices[(self.made - 1) % len(choices)]).astype(dtype)
            if kind.integers == "turning points" or self.made % 2:
                return rng.choice(points, shape).astype(dtype)
            return rng.integers(points[0] - 1 if points[0] > limits.min else points[0], points[-1] + 1, shape).astype(
                dtype
            )
        if use.condition:
            return np.full(shape, self.made % 2).astype(dtype)
        if dtype.itemsize == 1:
            return _with_ends(rng.integers(limits.min, limits.max + 1, shape), limits.min, limits.max, rng).astype(
                dtype
            )
        # A time step, a count, a label: small ones, and such as diffusion models take.
        return rng.integers(0, (2, min(1000, most))[self.made % 2], shape).astype(dtype)


def _name(kind: _Kind) -> str:
    name = kind.values or kind.mask or kind.integers
    return name if kind.turns is None else ", ".join(filter(None, (name, f"{kind.turns} turns")))


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
    if kind == "rows" and shape:
        axis = next((i for i, n in enumerate(shape[:-1]) if n > 1), 0)
        scales = np.geomspace(1e-2, 1e2, shape[axis]) if shape[axis] > 1 else np.ones(shape[axis])
        values = values * rng.permutation(scales).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    if kind in PROBES and values.size:
        # Few enough that most outputs stay numbers.
        where = rng.choice(values.size, max(1, values.size // 1000), replace=False)
        values.reshape(-1)[where] = np.nan if kind == "NaN" else np.inf * rng.choice((-1.0, 1.0), where.size)
    return np.asarray(values * FACTORS.get(kind, 1.0))


def _with_ends(array: Array, low: int, high: int, rng: np.random.Generator) -> Array:
    """The same with both ends of the range in it."""
    if array.size >= 2:
        places = rng.choice(array.size, 2, replace=False)
        array.reshape(-1)[places] = low, high
    return array


def _mask(shape: tuple[int, ...], kind: str, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Keys along the last axis; true keeps."""
    mask = np.ones(shape, bool)
    if not mask.size or not shape or shape[-1] < 2:
        return mask
    rows = mask.reshape(-1, shape[-1])
    length = shape[-1]
    if kind == "first row":
        rows[0, : length // 2] = False
        return mask
    # One row stays whole beside others, so that rows that were exchanged show.
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
            # A row of nothing but padding is where NaN guards and kinds of masks differ.
            row[:] = False
    return mask


# -- a graph's inputs ----------------------------------------------------------------------------------------------


def normal_feeds(model: onnx.ModelProto, sizes: Mapping[str, int], seed: int = 0) -> Feeds:
    """Normal values, full masks and valid token ids, with every symbol of `symbols(model)` at its size."""
    made = _Plan(model, Wishes(seed), lambda _: True, lambda _: True)
    made.made = 1
    rng = np.random.default_rng([seed, 0])
    return {v.name: made._array(v, sizes, _Kind(), rng) for v in made.inputs}


def taken_feeds(model: onnx.ModelProto, sizes: Mapping[str, int], takes: Callable[[Feeds], bool]) -> Feeds | None:
    """The first feeds that a model takes: `normal_feeds`, or such as `plan` makes. None where it takes none.

    Args:
        model: its inputs are read, and what it does with them; functions inlined.
        sizes: of every symbol.
        takes: runs the model.
    """
    first = normal_feeds(model, sizes)
    if takes(first):
        return first
    found: list[Feeds] = []

    def accepts(case: Case) -> bool:
        if not found and takes(case.feeds):
            found.append(case.feeds)
        return bool(found)

    plan(model, Wishes(fixed=sizes), accepts, lambda _: True)
    return found[0] if found else None


def taken_sizes(
    model: onnx.ModelProto, sizes: Mapping[str, int], given: Collection[str], takes: Callable[[Feeds], bool]
) -> dict[str, int]:
    """Sizes that a model takes: `sizes`, with as few others as `plan` finds where it refuses those.

    Args:
        model: its inputs are read, and what it does with them; functions inlined.
        sizes: of every symbol.
        given: symbols whose size must stay.
        takes: runs the model.
    """
    found: dict[str, int] = {}

    def accepts(case: Case) -> bool:
        if not found and takes(case.feeds):
            for value in required_inputs(model):
                for axis, dim in enumerate(value.type.tensor_type.shape.dim):
                    if not _is_given(dim):
                        found[_symbol(value, axis)] = case.feeds[value.name].shape[axis]
        return bool(found)

    if taken_feeds(model, sizes, takes) is not None:
        return dict(sizes)
    free = sizes.keys() - given
    plan(model, Wishes(fixed={name: sizes[name] for name in given}), accepts, lambda _: True)
    others = {name: size for name, size in found.items() if name in sizes and size != sizes[name]}
    tries = [{**sizes, name: size} for name, size in others.items()] + [{**sizes, **others}] * bool(others)
    # A state has the batch's size in the middle of its shape, where other inputs have their length.
    tries += [{**sizes, **dict.fromkeys(free, n), name: 1} for n in BESIDE_A_STATE for name in sorted(free)]
    return next((tried for tried in tries if takes(normal_feeds(model, tried))), {**sizes, **others})


def required_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The graph inputs that callers must give: not those with an initializer."""
    initializers = {t.name for t in model.graph.initializer}
    return [v for v in model.graph.input if v.name not in initializers]


def symbols(model: onnx.ModelProto) -> dict[str, str]:
    """The symbolic dimensions of the inputs and the role of each: "batch", "image" or "length".

    A symbol means one size wherever it stands; its first place decides the role. A dimension without a name is called
    INPUT[AXIS]. A sum of other symbols, as exporters write it ("past + sequence"), is no symbol of its own.
    """
    found: dict[str, str] = {}
    for value in required_inputs(model):
        dims = value.type.tensor_type.shape.dim
        for axis, dim in enumerate(dims):
            if not _is_given(dim):
                image = len(dims) == 4 and axis >= 2 and not _is_past(value.name)
                role = "batch" if axis == 0 else "image" if image else "length"
                found.setdefault(_symbol(value, axis), role)
    return {s: role for s, role in found.items() if _sum_of(s, {t: 0 for t in found if t != s}) is None}


def _is_past(name: str) -> bool:
    """Whether an input, or a symbol, is called as what a decoder keeps of earlier steps."""
    return any(word in name.lower() for word in PAST)


def _symbol(value: onnx.ValueInfoProto, axis: int) -> str:
    return value.type.tensor_type.shape.dim[axis].dim_param or f"{value.name}[{axis}]"


def _sum_of(symbol: str, sizes: Mapping[str, int]) -> int | None:
    """The size of "a + b + 1" where all terms are known."""
    terms = [t.strip() for t in symbol.split("+")]
    if len(terms) < 2 or not all(t in sizes or t.isdecimal() for t in terms):
        return None
    return sum(sizes[t] if t in sizes else int(t) for t in terms)


def _shape(value: onnx.ValueInfoProto, sizes: Mapping[str, int]) -> tuple[int, ...]:
    dims = value.type.tensor_type.shape.dim
    return tuple(d.dim_value if _is_given(d) else _size(_symbol(value, i), sizes) for i, d in enumerate(dims))


def _is_given(dim: onnx.TensorShapeProto.Dimension) -> bool:
    """Whether its size stands in the model; 0 is a size, -1 is none."""
    return dim.HasField("dim_value") and dim.dim_value >= 0


def _size(symbol: str, sizes: Mapping[str, int]) -> int:
    size = sizes[symbol] if symbol in sizes else _sum_of(symbol, sizes)
    assert size is not None, symbol
    return size


def _is_float(value: onnx.ValueInfoProto) -> bool:
    return _dtype(value).kind in "fV"


def _is_image(value: onnx.ValueInfoProto) -> bool:
    return _is_float(value) and len(value.type.tensor_type.shape.dim) == 4


def _dtype(value: onnx.ValueInfoProto) -> np.dtype[Any]:
    if value.type.WhichOneof("value") != "tensor_type":
        raise VerifyError(f"input '{value.name}' is no tensor: give a value of your own with --inputs")
    kind = value.type.tensor_type.elem_type
    if kind in _NO_ARRAYS:
        name = onnx.TensorProto.DataType.Name(kind)
        raise VerifyError(
            f"input '{value.name}' holds {name}, and ONNX Runtime's Python interface takes no arrays of it: cut the "
            "model behind the node that reads it"
        )
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind))
