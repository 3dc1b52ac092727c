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
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import onnx
from onnx import numpy_helper

from graphopt.checking.declared import (
    is_float,
    is_given,
    is_image,
    is_past,
    required_inputs,
    shape_of,
    size_of,
    symbol_of,
    symbols,
)
from graphopt.checking.filling import (
    BEYOND_FLOATS,
    FILLINGS,
    FREE_INTEGERS,
    INTEGERS,
    MASKS,
    NARROWER,
    PROBES,
    SYMBOLIC_ELEMENTS,
    VALUES,
    Attempt,
    Feeds,
    Filler,
    Kind,
    name_of,
)
from graphopt.checking.uses import uses_of

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
# Images that reach far one way and stay cheap; the last two where time is left.
LONG_IMAGES = ((1, 64, 512, 7), (1, 512, 64, 7), (1, 64, 2048, 7), (1, 2048, 64, 7))
# Enough rows that what is rare is met: an entry of a table, a number near a threshold.
MANY_ROWS = 70
# How often Loops run, beyond what most bodies need to reach their own condition.
TURNS = (9, 33)
# Where a number next to an integer, or between two, decides.
DECISIONS = frozenset("Ceil Equal Floor Greater GreaterOrEqual If Less LessOrEqual Loop Mod Round Where".split())
# Of inputs that may hide keys.
MASK_TYPES = frozenset(getattr(onnx.TensorProto, name) for name in ("BOOL", "INT32", "INT64", "FLOAT", "FLOAT16"))
# Most elements of all inputs together.
ELEMENTS = 1 << 24


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


def plan(
    model: onnx.ModelProto,
    wishes: Wishes,
    accepts: Callable[[Case], bool],
    exhausted: Callable[[float], bool],
    has_numbers: Callable[[str], bool] = lambda _: True,
    other: onnx.ModelProto | None = None,
) -> None:
    """Makes cases one after the other, most telling first, and learns from those that the model refuses.

    Args:
        model: its inputs are read, and what it does with them; functions inlined.
        wishes: of the caller.
        accepts: runs the model; whether it takes the case.
        exhausted: whether to stop; asked after the first few cases of each kind, with the seconds of all processors
            that the next case is likely to take beyond one like those before.
        has_numbers: whether each floating point output of a case that the model took, by name, has a finite number.
        other: what the model is compared with: where that one bounds or compares an input, numbers are tried, too.

    Raises:
        VerifyError: an input is of a type that is not made here, or too large.
    """
    _Plan(model, wishes, accepts, exhausted, has_numbers, other).run()


class _Plan:
    def __init__(
        self,
        model: onnx.ModelProto,
        wishes: Wishes,
        accepts: Callable[[Case], bool],
        exhausted: Callable[[float], bool],
        has_numbers: Callable[[str], bool],
        other: onnx.ModelProto | None,
    ) -> None:
        self.model, self.wishes, self.accepts, self.exhausted = model, wishes, accepts, exhausted
        self.has_numbers = has_numbers
        self.inputs = required_inputs(model)
        self.uses = uses_of(model)
        for name, use in uses_of(other).items() if other is not None else ():
            if name in self.uses:
                self.uses[name].add(use)
        self.filler = Filler(self.inputs, self.uses, wishes.ranges)
        self.roles = {s: role for s, role in symbols(model).items() if s not in wishes.fixed}
        self.one_size: int | None = None
        self.longest: int | None = None
        self.made = 0
        # By the name of a case and its sizes: what one size refuses another may take.
        self.tried: dict[tuple[object, ...], bool] = {}
        self.seconds = 0.0
        self.attempt = Attempt(0)
        self.floats = any(is_float(v) for v in self.inputs)
        self.masks = any(self.filler.is_mask(v) for v in self.inputs)
        self.totals = self._totals()
        self.linked = False
        decides = any(n.op_type in DECISIONS for n in model.graph.node)
        self.indexed = decides or any(u.low is not None or u.turning for u in self.uses.values())
        self.free = any(self.filler.is_free(v) for v in self.inputs)
        self.passes_floats = any(self.filler.passes_floats(v) for v in self.inputs)
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
        """The first sizes of ours that the model takes; those of FIRST where it takes none."""
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
        masks = [v.name for v in self.inputs if self.filler.is_mask(v) and not self.uses[v.name].additive]
        if not masks or self.has_numbers(name):
            return
        for hiding in (masks, *([m] for m in masks if len(masks) > 1)):
            self.filler.hiding = frozenset(hiding)
            other = f"{name}, 1 hides in {', '.join(hiding)}"
            if self._try(other, size) and self.has_numbers(other):
                return
        self.filler.hiding = frozenset()

    def _kinds(self, first: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
        """Kinds of numbers at one size, `first` where the usual one is refused; the size."""
        kinds = [Kind(values=v) for v in VALUES[:5] if self.floats]
        kinds += [Kind(mask=m) for m in MASKS[:3] if self.masks]
        kinds += [Kind(values=v) for v in PROBES if self.floats and self.wishes.probe_nan]
        usual = USUAL
        for kind in kinds:
            if not self._try(name_of(kind), usual, kind) and usual == USUAL and self._try(name_of(kind), first, kind):
                usual = first
        return usual

    def _more_kinds(self, usual: tuple[int, int, int, int]) -> Iterator[Callable[[], object]]:
        images = any(is_image(v) for v in self.inputs)
        kinds = [Kind(integers=BEYOND_FLOATS)] if self.passes_floats else []
        kinds += [Kind(integers=i) for i in INTEGERS if self.indexed]
        kinds += [Kind(integers=i) for i in FREE_INTEGERS if self.free]
        kinds += [Kind(values=v, turns=n) for n in TURNS for v in ("", "tiny", "unit") if self.turns]
        kinds += [Kind(mask=m) for m in MASKS[3:] if self.masks]
        kinds += [
            Kind(values=v)
            for v in VALUES[5:]
            if self.floats and (v not in ("pixels", "huge") or images == (v == "pixels"))
        ]
        tried = [(name_of(kind), usual, kind) for kind in kinds]
        if self.masks and self.floats:
            # What a mask adds to hide is seen where scores lie as far apart: -1000 in place of -10000.
            tried.append(("large, holes", usual, Kind(values="large", mask="holes")))
        if self.masks:
            alone = (1, *usual[1:])
            tried += [(f"{mask}, batch 1", alone, Kind(mask=mask)) for mask in ("padded right", "holes")]
        if not self.roles:
            tried += [(f"normal, draw {i}", usual, Kind()) for i in (2, 3, 4)]
        for case in tried:
            yield partial(self._try, *case)

    def _many_rows(self) -> None:
        if "batch" not in self.roles.values() or self.wishes.batch:
            return
        kinds = [Kind(), Kind(values="large", integers="last")]
        kinds += [Kind(integers=i) for i in FREE_INTEGERS if self.free]
        tried = [(MANY_ROWS, kind) for kind in kinds]
        if (rows := self._rows_for_all_keys()) > MANY_ROWS:
            tried.append((rows, Kind()))
        for rows, kind in tried:
            if not self.exhausted(self.seconds * rows):
                self._try(", ".join(filter(None, (name_of(kind), f"batch {rows}"))), (rows, *FIRST[1:]), kind)

    def _rows_for_all_keys(self) -> int:
        """How large a batch must be to hold each key, or row of a small table, that inputs choose from."""
        sizes = self._sizes((1, *FIRST[1:]), 0)
        rows = [
            self.filler.keys_of(v) / max(1, math.prod(shape_of(v, sizes)))
            for v in self.inputs
            if v.type.tensor_type.shape.dim and self.roles.get(symbol_of(v, 0)) == "batch"
        ]
        return math.ceil(max(rows, default=0))

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
            kind = Kind(mask=next(masks)) if masks else Kind()
            yield partial(self._try, "", (batch, height, width, min(length, self.longest or length)), kind, turn=i + 1)
        for size in LONG_IMAGES[2:] if "image" in self.roles.values() else ():
            yield partial(self._try, "", size)
        for name, past, length in (("empty past", 0, 7), ("decode step", 7, 1)):
            own = dict.fromkeys(self._pasts(), past)
            if own:
                own |= {s: length for s, role in self.roles.items() if role == "length" and s not in own}
                yield partial(self._try, name, USUAL, own=own)

    def _longest(self) -> None:
        """The longest sequence that the model takes, up to a bound: a table of positions ends somewhere."""
        if "length" not in self.roles.values():
            for size in LONG_IMAGES[:2] if "image" in self.roles.values() else ():
                self._try("", size)
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
        kind: Kind | None = None,
        *,
        turn: int = 0,
        own: Mapping[str, int] | None = None,
        extra: Feeds | None = None,
    ) -> bool:
        self.made += 1
        sizes = self._together(self._bounded({**self._sizes(size, turn), **(own or {})}))
        name = name or ", ".join(
            [*(f"{s}={n}" for s, n in sizes.items()), *([name_of(kind)] if kind and kind.mask else [])]
        )
        key = (name, *sizes.items())
        if key in self.tried:
            return self.tried[key]
        for attempt in self._attempts(kind or Kind()):
            self.attempt = attempt
            rng = np.random.default_rng([self.wishes.seed, self.made])
            feeds = self.filler.feeds(sizes, attempt, rng)
            began = time.process_time()
            self.tried[key] = self.accepts(Case(name, {**feeds, **(extra or {})}))
            if self.tried[key]:
                self.seconds = self.seconds or time.process_time() - began
                break
        return self.tried[key]

    def _attempts(self, kind: Kind) -> list[Attempt]:
        """Parts of tables, and fillings of sizes, to try one after the other.

        What a model computes from an index may be another table's, and a size may have to fit something else: the first
        cases say which it takes.
        """
        usual = replace(self.attempt, number=self.made, kind=kind)
        indexed = any(u.low is not None for u in self.uses.values())
        sized = any(self.uses[v.name].size and not self.uses[v.name].turns for v in self.inputs)
        if self.seconds > 0:
            other = FILLINGS[self.made % len(FILLINGS)] if sized else usual.filling
            return [usual] if other == usual.filling else [replace(usual, filling=other), usual]
        found = [replace(usual, narrow=narrow) for narrow in (NARROWER if indexed else (usual.narrow,))]
        return found + [replace(usual, filling=filling) for filling in FILLINGS[1:] if sized]

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
            symbol_of(v, i)
            for v in self.inputs
            if is_past(v.name)
            for i, dim in enumerate(v.type.tensor_type.shape.dim)
            if i > 0 and not is_given(dim)
        }
        return [s for s, role in self.roles.items() if role == "length" and (s in of_inputs or is_past(s))]

    def _totals(self) -> dict[str, tuple[str, str | int]]:
        """Symbols of masks over all steps of a decoder -> those of the steps that it keeps, and of the new ones."""
        pasts = self._pasts()
        masks = [v for v in self.inputs if "mask" in v.name.lower() or self.uses[v.name].mask]
        tokens = next((v for v in self.inputs if v not in masks and not is_past(v.name)), None)
        if not pasts or tokens is None or len(tokens.type.tensor_type.shape.dim) < 2:
            return {}
        dims = tokens.type.tensor_type.shape.dim
        new = dims[1].dim_value if is_given(dims[1]) else symbol_of(tokens, 1)
        lasts = [symbol_of(m, len(m.type.tensor_type.shape.dim) - 1) for m in masks if m.type.tensor_type.shape.dim]
        return {s: (pasts[0], new) for s in lasts if s in self.roles and s not in (new, *pasts)}

    def _together(self, sizes: dict[str, int]) -> dict[str, int]:
        """The sizes with those of `_totals` as sums, where the model takes no others."""
        asked = {*self.wishes.fixed, *self.wishes.sizes} if self.linked else {*self.totals}
        sums = {s: sizes[p] + (size_of(n, sizes) if isinstance(n, str) else n) for s, (p, n) in self.totals.items()}
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
        shapes = [shape_of(v, sizes) for v in self.inputs]
        symbolic = (
            math.prod(n for n, d in zip(shape, v.type.tensor_type.shape.dim) if not is_given(d))
            for shape, v in zip(shapes, self.inputs)
        )
        return sum(map(math.prod, shapes)) > self.wishes.elements or max(symbolic, default=0) > SYMBOLIC_ELEMENTS


def masks_of(model: onnx.ModelProto) -> list[str]:
    """Inputs that hide keys, as far as is known; functions inlined."""
    tensors = [v for v in required_inputs(model) if v.type.HasField("tensor_type")]
    filler = Filler(tensors, uses_of(model), {})
    return [v.name for v in tensors if v.type.tensor_type.elem_type in MASK_TYPES and filler.is_mask(v)]


def normal_feeds(model: onnx.ModelProto, sizes: Mapping[str, int], seed: int = 0) -> Feeds:
    """Normal values, full masks and valid token ids, with every symbol of `symbols(model)` at its size."""
    filler = Filler(required_inputs(model), uses_of(model), {})
    return filler.feeds(sizes, Attempt(1), np.random.default_rng([seed, 0]))


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
                    if not is_given(dim):
                        found[symbol_of(value, axis)] = case.feeds[value.name].shape[axis]
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
