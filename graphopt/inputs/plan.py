"""Plans the inputs that are tried: such as are likely to show a wrong rewrite, made from the model's own inputs.

Signed, negative, zero, large and tiny values, pixels, rows of different size or of one value, ties, NaN and infinities
where asked; masks padded at either end, with holes, of one key, of none; integers over the whole range that their use
allows (`uses`), thresholds of trees (`trees`); other values for overridable initializers.

Sizes of symbolic dimensions follow from the nodes where those bind them (`relations`). A batch of 3, a length of 1, the
longest that the model takes and their combinations come first, then a decoder's step with a short and a long past, then
sizes of a list and drawn ones. What a set costs is estimated before it runs (`cost`), so that the same model gets the
same sets on any machine.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

import numpy as np
import onnx
import onnx_ir as ir

from graphopt.graph.cost import Cost, Estimator
from graphopt.graph.reading import FIRST_OVERRIDABLE_IR_VERSION
from graphopt.graph.shapes.sizes import Size
from graphopt.graph.traversal import tensor_array, tensors
from graphopt.inputs.declared import Input, deserialized, is_past, required_inputs, symbols
from graphopt.inputs.filling import (
    BEYOND_FLOATS,
    FILLINGS,
    FREE_INTEGERS,
    INTEGERS,
    LONGEST_SHAPE,
    LOW_MASKS,
    MASKS,
    NARROWER,
    PROBES,
    SYMBOLIC_ELEMENTS,
    TIES,
    TREES,
    VALUES,
    Attempt,
    Feeds,
    Filler,
    Kind,
    about,
    name_of,
)
from graphopt.inputs.relations import declared_sizes, relations_of
from graphopt.inputs.uses import uses_of

# The first sizes of symbolic dimensions: a first axis is a batch, the last two of four are an image, the rest lengths.
FIRST, SECOND = (1, 64, 64, 7), (2, 96, 96, 16)  # batch, height, width, length
USUAL = (2, 64, 64, 16)
# Where these are refused, lengths that the model's own constants name are tried, then larger and larger sizes, then one
# size for all.
MOST_NAMED, GROWTH, LONGEST_GROWN = 6, 2, 1 << 18
ONE_SIZE = (4, 2, 8, 16, 32, 64, 224, 3, 1, 0)
Size4 = tuple[int, int, int, int]  # batch, height, width, length
# Usual, and longest, where sizes had to grow: so many times the first that was taken.
USUAL_GROWN, MOST_GROWN = 5, 33
# Image sizes are divided by up to MOST_DIVISOR if ALWAYS_TRIED sets of the usual size would exceed the allowed work.
MOST_DIVISOR, ALWAYS_TRIED = 8, 16
# Lengths of what `taken_sizes` tries beside a state of one row.
BESIDE_A_STATE = (128, 224, 576)
# Batches that are tried first, with each length: kernels often have special paths for a single row.
CORNER_BATCHES = (1, 3)
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
# As long as a frame of sound; the longest that is affordable is tried.
LONGEST = 576
# Images that reach far one way and stay cheap.
LONG_IMAGES = ((1, 64, 512, 7), (1, 512, 64, 7), (1, 64, 2048, 7), (1, 2048, 64, 7))
# Cached tokens of a decoder when one more token arrives.
PASTS = (17, 129, 1025)
# Drawn sizes: up to so large a batch and an image, so many batches times lengths, and how many of them are the same for
# all symbols. Where a batch is all that may be chosen, one in so many is drawn.
MOST_BATCH, MOST_IMAGE, MOST_POSITIONS, ALIKE = 70, 320, 1 << 13, 0.15
FEWER_BATCHES = 8
# The share of all work that drawn sizes take at most, and of drawn sizes those of a decoder's step.
DRAWN_SHARE, DECODING = 0.2, 0.3
# Where a drawn size is refused, multiples are tried; a kind of size that is refused so often is drawn no more.
GRAIN, MOST_REFUSED = 32, 3
# Enough rows that what is rare is met: an entry of a table, a number near a threshold.
MANY_ROWS = 70
# Rows for decisions of trees, in one batch and in several cases.
MOST_TREE_ROWS, TREE_CASES = 2048, 16
# How often Loops run, beyond what most bodies need to reach their own condition.
TURNS = (9, 33, 257)
# Where a number next to an integer, or between two, decides.
DECISIONS = frozenset("Ceil Equal Floor Greater GreaterOrEqual If Less LessOrEqual Loop Mod Round Where".split())
# Of inputs that may hide keys.
MASK_TYPES = frozenset(getattr(onnx.TensorProto, name) for name in ("BOOL", "INT32", "INT64", "FLOAT", "FLOAT16"))
# Most elements of all inputs together.
ELEMENTS = 1 << 24
# How many times a run's own memory all runs together take at once, one after the other: BEFORE rounding at random has
# several tensors for each of BEFORE's, sums in float64 twice its bytes, and outputs are compared in float64.
MEMORY_OF_RUNS, MEMORY_OF_OUTPUTS = 4, 16


@dataclass(frozen=True)
class Case:
    """One set of inputs.

    Attributes:
        name: of the case, unique among those of a model.
        feeds: input -> array.
        about: a description of the elements; "" for normal ones.
        fits: whether the copies of BEFORE that round at random stay within the allowed memory.
    """

    name: str
    feeds: Feeds
    about: str = ""
    fits: bool = True


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
class Allowance:
    """What all sets of inputs of a model may cost, by the estimates of `cost`.

    Attributes:
        work: multiply-adds of one run of each set, all sets together. The first few of each kind run in any case.
        bytes: memory of the runs of one set.
        draws: sets of drawn sizes beside those that are always tried.
        longest: of a length.
    """

    work: float = math.inf
    bytes: float = math.inf
    draws: int = 64
    longest: int = LONGEST


# The first few cases of each kind alone.
FIRST_CASES = Allowance(work=0, draws=0)


def plan(
    model: onnx.ModelProto,
    wishes: Wishes,
    accepts: Callable[[Case], bool],
    allowance: Allowance,
    has_numbers: Callable[[str], bool] = lambda _: True,
    other: onnx.ModelProto | None = None,
) -> dict[str, str]:
    """Makes cases one after the other, most telling first, and learns from those that the model refuses.

    The same model, wishes and allowance give the same cases, on any machine.

    Args:
        model: its inputs are read, and what it does with them; functions inlined.
        wishes: of the caller.
        accepts: runs the model; whether it takes the case.
        allowance: what the cases may cost.
        has_numbers: whether each floating point output of a case that the model took, by name, has a finite number.
        other: what the model is compared with: where that one bounds or compares an input, numbers are tried, too.

    Returns:
        The sizes that were left out, and what they would have cost.

    Raises:
        VerifyError: an input is of a type that is not made here, or too large.
    """
    found = _Plan(model, wishes, accepts, allowance, has_numbers, other)
    found.run()
    return found.left_out


class _Plan:
    def __init__(
        self,
        model: onnx.ModelProto,
        wishes: Wishes,
        accepts: Callable[[Case], bool],
        allowance: Allowance,
        has_numbers: Callable[[str], bool],
        other: onnx.ModelProto | None,
    ) -> None:
        self.wishes, self.accepts, self.allowance, self.has_numbers = wishes, accepts, allowance, has_numbers
        self.inputs = required_inputs(model)
        self.model = deserialized(model)
        self.uses = uses_of(self.model)
        for name, use in uses_of(deserialized(other)).items() if other is not None else ():
            if name in self.uses:
                self.uses[name].add(use)
        self.roles = {s: role for s, role in self._roles(symbols(model)).items() if s not in wishes.fixed}
        chosen = [s for s in self.roles if s not in wishes.sizes]
        self.relations = relations_of(model, chosen, self.model)
        found = self.relations
        self.filler = Filler(self.inputs, self.uses, wishes.ranges, lengths=found.lengths, counted=found.counted)
        self.estimator = Estimator(self.model)
        self.work = self.drawn = 0.0
        self.cheapest = math.inf  # work of a set
        self.must_fit = 0  # bytes of the first set, which runs whatever it takes
        self.left_out: dict[str, str] = {}
        self.first = FIRST
        self.one_size: int | None = None
        self.longest: int | None = None
        self.grown: int | None = None  # the first length that is taken, where smaller ones are refused
        self.refused: dict[str, int] = {}  # role -> how often drawn sizes of it were refused
        self.grain = 1
        self.divisor = 1  # reduces the image sizes that are always tried
        self.made = 0
        # By the name of a case and its sizes: what one size refuses another may take.
        self.tried: dict[tuple[object, ...], bool] = {}
        self.learnt = False  # which parts of tables, and fillings of sizes, the model takes
        self.attempt = Attempt(0)
        self.floats = any(v.is_float for v in self.inputs)
        self.masks = any(self.filler.is_mask(v) for v in self.inputs)
        self.linked = bool(self.relations.sums)
        decides = any(n.op_type in DECISIONS for n in self.model.graph)
        self.indexed = decides or any(u.low is not None or u.turning for u in self.uses.values())
        self.free = any(self.filler.is_free(v) for v in self.inputs)
        self.passes_floats = any(self.filler.passes_floats(v) for v in self.inputs)
        self.turns = any(u.turns or u.loops for u in self.uses.values())

    def run(self) -> None:
        self.first = first = self._first()
        usual = self._usual(first)
        kinds = self._first_kinds()
        self._corners(usual, reserved=len(kinds) * self._cost_at(usual).work)
        usual = self._kinds(kinds, usual, first)
        self._overridden(usual)
        self._many_rows()
        self._tree_rows()
        for more in itertools.zip_longest(self._more_kinds(usual), self._more_sizes(usual)):
            for case in more:
                if case is not None:
                    case()

    # -- which cases -------------------------------------------------------------------------------------------------

    def _first(self) -> Size4:
        """The first sizes of ours that the model takes; those of FIRST where it takes none."""
        self._reduce_images()
        while True:
            for linked in (True, False) if self.relations.sums else (False,):
                self.linked = linked
                for name, size in (("normal, batch 1", FIRST), ("normal, batch 2", SECOND)):
                    # One set has to run, whatever it takes, unless the caller chose its sizes.
                    if self._try(name, size, must=size == FIRST and not self._asked()):
                        self._learn_masks(name, size)
                        if size == FIRST:
                            self._try("normal, batch 2", SECOND)
                        return size
            if self.divisor == 1 and not self._link_masks():
                break
            self.divisor = max(1, self.divisor // 2)
        self.linked = bool(self.relations.sums)
        varied = {"image", "length"} & {*self.roles.values()}
        for length in self._named_lengths() if "length" in varied else ():
            if self._take_first(f"normal, length {length}", (*FIRST[:3], length)):
                return (*FIRST[:3], length)
        factor = GROWTH
        while varied and SECOND[3] * factor <= LONGEST_GROWN:
            size = (1, USUAL[1] * factor, USUAL[2] * factor, SECOND[3] * factor)
            if self._is_over(self._chosen(size)):
                break
            grown = size[3] if "length" in varied else size[1]
            if self._take_first(f"normal, size {grown}", size):
                self.grown = factor
                return size
            factor *= GROWTH
        for one in ONE_SIZE if self.roles else ():
            self.one_size = one
            if self._take_first(f"normal, all sizes {one}", FIRST):
                return FIRST
        self.one_size = None
        return FIRST

    def _link_masks(self) -> bool:
        """Makes masks as long as cached and new steps together; returns whether that adds a relation."""
        kept = self.relations.kept or [s for s, role in self.roles.items() if role == "length" and is_past(s)]
        masks = [v for v in self.inputs if "mask" in v.name.lower() or self.uses[v.name].mask]
        tokens = next((v for v in self.inputs if v not in masks and not self._is_kept(v)), None)
        if not kept or tokens is None or len(tokens.dims) < 2:
            return False
        new = declared_sizes(tokens.dims)[1]
        lasts = {str(m.dims[-1]) for m in masks if m.dims}
        free = lasts & {*self._free()} - {*kept, str(new)}
        self.relations.sums |= {symbol: Size.symbol(kept[0]) + new for symbol in free}
        return bool(free)

    def _is_kept(self, value: Input) -> bool:
        return is_past(value.name) or self.uses[value.name].cache

    def _reduce_images(self) -> None:
        """Smaller images where the usual ones would take more than their part of the allowance."""
        if "image" not in self.roles.values() or not self.allowance.work:
            return
        while self.divisor < MOST_DIVISOR:
            cost = self._cost_at(USUAL)
            if self._fits(cost) and cost.work * ALWAYS_TRIED <= self.allowance.work:
                return
            self.divisor *= 2

    def _asked(self) -> bool:
        """Whether the caller chose any sizes."""
        return bool(self.wishes.sizes or self.wishes.batch)

    def _take_first(self, name: str, size: Size4) -> bool:
        if not self._try(name, size):
            return False
        self._learn_masks(name, size)
        return True

    def _named_lengths(self) -> list[int]:
        """Lengths that small constants of the model name: one that came with its example's length reshapes to it."""
        named = (
            n
            for t in tensors([self.model.graph])
            if t.dtype == ir.DataType.INT64 and 0 < t.size <= LONGEST_SHAPE
            for n in tensor_array(t).reshape(-1).tolist()
        )
        return [n for n in dict.fromkeys(named) if 2 < n <= LONGEST and n not in (FIRST[3], SECOND[3])][:MOST_NAMED]

    def _usual(self, first: Size4) -> Size4:
        """Returns the sizes for kinds of elements: larger than the smallest accepted ones."""
        if self.grown is None:
            return USUAL if self.one_size is not None or first in (FIRST, SECOND) else (2, *first[1:])
        usual = (2, 2 * first[1], 2 * first[2], USUAL_GROWN * first[3])
        return (2, *first[1:]) if self._is_over(self._chosen(usual)) else usual

    def _learn_masks(self, name: str, size: Size4) -> None:
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

    def _corners(self, usual: Size4, reserved: float) -> None:
        """Length 1, batch 3, the longest case and their combinations; a step of a decoder with a short and a long past.

        Args:
            usual: sizes of all other dimensions.
            reserved: work of the cases that run in any case.
        """
        lengths = [s for s in self._free() if self.roles[s] == "length"]
        batches = CORNER_BATCHES if "batch" in self.roles.values() else usual[:1]
        self._within("", (batches[-1], *usual[1:]), own=dict.fromkeys(lengths, usual[3]))
        ends = [dict.fromkeys(lengths, self._least)] if lengths else []
        ends += [{s: self._least} for s in lengths if len(lengths) > 1]
        for own in ends:
            for batch in batches:
                self._within("", (batch, *usual[1:]), own=own)
        for name, own in self._decode_steps():
            for batch in batches:
                named = name if batch == batches[0] else f"{name}, batch {batch}"
                self._within(named, (batch, *usual[1:]), reserved, own=own)
        if lengths:
            self.longest = longest = self._find_longest(lengths, usual, reserved)
            for batch in batches[1:]:
                self._within("", (batch, *usual[1:]), reserved, own=dict.fromkeys(lengths, longest))
        if "image" in self.roles.values():
            for size in ((1, 1, 1, usual[3]), *LONG_IMAGES):
                self._within("", size, reserved)

    def _decode_steps(self) -> Iterator[tuple[str, dict[str, int]]]:
        kept = self.relations.kept or [s for s, role in self.roles.items() if role == "length" and is_past(s)]
        if not kept:
            return
        new = self.relations.new
        lengths = [s for s in self._free() if self.roles[s] == "length"]
        new = [s for s in new if s in lengths] or [s for s in lengths if s not in kept]
        for past, length in ((0, FIRST[3]), (FIRST[3], 1), *((p, 1) for p in PASTS)):
            name = "empty past" if past == 0 else "decode step" if past == FIRST[3] else f"decode step, past {past}"
            yield name, {**dict.fromkeys(kept, past), **dict.fromkeys(new, length)}

    def _find_longest(self, lengths: Sequence[str], usual: Size4, reserved: float) -> int:
        """The longest that the model takes and the work allows: a table of positions ends somewhere."""
        most = self.allowance.longest if self.grown is None else MOST_GROWN * USUAL[3] * self.grown
        sizes = (1, *usual[1:])
        room = self._room() - reserved

        def cost(length: int) -> Cost:
            return self._cost_of(self._chosen(sizes, own=dict.fromkeys(lengths, length)))

        if (many := cost(most)).work > room:  # a convex cost is below the line between its ends
            few = cost(usual[3]).work
            share = max(0.0, (room - few) / max(many.work - few, 1))
            most = usual[3] + int(share * (most - usual[3]))
        while most > usual[3] and ((found := cost(most)).work > room or not self._fits(found)):
            most = usual[3] + (most - usual[3]) * 7 // 8
        if most <= usual[3] or self._within("", sizes, reserved, own=dict.fromkeys(lengths, most)):
            return max(most, usual[3])
        taken, refused = usual[3], most
        # What ends there is a table of the model, as a rule.
        sizes_of_weights = chain.from_iterable(v.shape or () for v in self.model.graph.initializers.values())
        tables = {n for n in sizes_of_weights if isinstance(n, int) and taken < n < refused}
        for length in sorted(tables, reverse=True)[:MOST_NAMED]:
            if self._within("", sizes, reserved, own=dict.fromkeys(lengths, length)):
                taken = length
                refused = min(refused, length + 1)
                break
        while refused - taken > 1 and self._room() > reserved:
            middle = taken * 2 if taken * 2 < refused else (taken + refused) // 2
            if self._within("", sizes, reserved, own=dict.fromkeys(lengths, middle)):
                taken = middle
            else:
                refused = middle
        return taken

    def _first_kinds(self) -> list[Kind]:
        kinds = [Kind(values=v) for v in [*VALUES][:5] if self.floats]
        kinds += [Kind(mask=m) for m in [*MASKS][:3] if self.masks]
        return kinds + [Kind(values=v) for v in PROBES if self.floats and self.wishes.probe_nan]

    def _kinds(self, kinds: Sequence[Kind], usual: Size4, first: Size4) -> Size4:
        """Kinds of numbers at one size, `first` where the usual one is refused; the size."""
        found = usual
        for kind in kinds:
            if not self._try(name_of(kind), found, kind) and found != first and self._try(name_of(kind), first, kind):
                found = first
        return found

    def _more_kinds(self, usual: Size4) -> Iterator[Callable[[], object]]:
        images = any(v.is_image for v in self.inputs)
        ties = any(u.ties for u in self.uses.values())
        kinds = [Kind(integers=BEYOND_FLOATS)] if self.passes_floats else []
        kinds += [Kind(integers=TIES)] if ties and self.floats else []
        kinds += [Kind(integers=i) for i in INTEGERS if self.indexed]
        kinds += [Kind(integers=i) for i in FREE_INTEGERS if self.free]
        kinds += [Kind(values=v, turns=n) for n in TURNS for v in ("", "tiny", "unit") if self.turns]
        kinds += [Kind(mask=m) for m in [*MASKS][3:] if self.masks]
        if any(self.uses[v.name].additive and self.filler.is_mask(v) for v in self.inputs):
            kinds += [Kind(mask=m) for m in LOW_MASKS]
        kinds += [
            Kind(values=v)
            for v in [*VALUES][5:]
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
        for name, size, kind in tried:
            yield partial(self._within, name, size, 0.0, kind)

    def _many_rows(self) -> None:
        if "batch" not in self.roles.values() or self.wishes.batch:
            return
        kinds = [Kind(), Kind(values="large", integers="last")]
        kinds += [Kind(integers=i) for i in FREE_INTEGERS if self.free]
        tried = [(MANY_ROWS, kind) for kind in kinds]
        if (rows := self._rows_for_all_keys()) > MANY_ROWS:
            tried.append((rows, Kind()))
        for rows, kind in tried:
            name = ", ".join(filter(None, (name_of(kind), f"batch {rows}")))
            self._within(name, (rows, *self.first[1:]), 0.0, kind)

    def _tree_rows(self) -> None:
        """Rows for the decisions of tree ensembles: all in one batch, or a few in each case."""
        count = len(self.filler.rows)
        batch = min(count, MOST_TREE_ROWS) if "batch" in self.roles.values() and not self.wishes.batch else 1
        for turn in range(min(-(-count // batch), TREE_CASES) if count else 0):
            name = TREES + (f", {turn + 1}" if turn else "")
            self._within(name, (batch, *USUAL[1:]), 0.0, Kind(integers=TREES), turn=0)

    def _rows_for_all_keys(self) -> int:
        """How large a batch must be to hold each key, or row of a small table, that inputs choose from."""
        sizes = self._chosen((1, *FIRST[1:]))
        rows = [
            self.filler.keys_of(v) / max(1, math.prod(v.shape(sizes)))
            for v in self.inputs
            if v.dims and self.roles.get(str(v.dims[0])) == "batch"
        ]
        return math.ceil(max(rows, default=0))

    def _overridden(self, usual: Size4) -> None:
        values = [v for v in self.model.graph.initializers.values() if v.is_graph_input()]
        if not values or self.model.ir_version < FIRST_OVERRIDABLE_IR_VERSION:
            return
        rng = np.random.default_rng([self.wishes.seed, 30])
        given = {}
        for value in values:
            if value.const_value is not None and (array := tensor_array(value.const_value)).dtype.kind == "f":
                given[str(value.name)] = np.asarray(array * 1.1 + rng.normal(0, 0.1, array.shape)).astype(array.dtype)
        self._try("overridden initializers", usual, extra=given)

    def _more_sizes(self, usual: Size4) -> Iterator[Callable[[], object]]:
        """Sizes of a list, then drawn ones."""
        if not self.roles:
            return
        if usual != USUAL:  # a model that is exported with its example's length may still take any batch
            for batch in (2, 3, 4):
                yield partial(self._within, f"normal, batch {batch}", (batch, *usual[1:]))
        masks = itertools.cycle(("padded both", "holes", "", "padded right", "one key")) if self.masks else None
        lists = [len(sizes) for sizes in (*self.wishes.sizes.values(), self.wishes.batch)]
        listed = MORE_SIZES if self.grown is None else ()
        sizes = [*listed, *[usual] * (max(lists, default=0) - len(listed))]
        for i, (batch, height, width, length) in enumerate(sizes):
            kind = Kind(mask=next(masks)) if masks else Kind()
            size = (batch, height, width, min(length, self.longest or length))
            yield partial(self._within, "", size, 0.0, kind, turn=i + 1)
        rng = np.random.default_rng([self.wishes.seed, 44])
        if self.one_size is not None or not self._free():
            return
        alone = all(self.roles[s] == "batch" for s in self._free())
        for _ in range(self.allowance.draws // (FEWER_BATCHES if alone else 1)):
            yield partial(self._drawn, rng, Kind(mask=next(masks)) if masks else Kind(), usual)

    def _drawn(self, rng: np.random.Generator, kind: Kind, usual: Size4) -> None:
        """A set of drawn sizes: as large as memory and the rest of the work allow, each halved until then."""
        if self._room() < self.cheapest:
            return
        own = self._draw(rng, usual)
        room = max((self.allowance.work * DRAWN_SHARE - self.drawn) / 4, 0.0)
        sizes = self._chosen(usual, own=own)
        most = MOST_POSITIONS * (MOST_IMAGE if "image" in self.roles.values() else 1)
        least = {s: self._least if self.roles[s] == "length" else 1 for s in own}
        while own and (math.prod(own.values()) > most * self._least or self._cost_of(sizes).work > room):
            largest = max(own, key=lambda s: own[s] / least[s])
            if own[largest] <= least[largest]:
                return
            own[largest] = max(least[largest], own[largest] // 2)
            sizes = self._chosen(usual, own=own)
        self.drawn += self._cost_of(sizes).work
        if not own or self._within("", usual, 0.0, kind, own=own) or self._room() <= 0:
            return
        varied = {self.roles[s] for s in own}
        rough = {s: -(-n // GRAIN) * GRAIN if self.roles[s] != "batch" else n for s, n in own.items()}
        if rough != own and self._within("", usual, 0.0, kind, own=rough):
            self.grain = GRAIN
            return
        alone = {s: n for s, n in own.items() if self.roles[s] == "batch"}
        if alone and alone != own and self._within("", usual, 0.0, kind, own=alone):
            varied.discard("batch")
        for role in varied:
            self.refused[role] = self.refused.get(role, 0) + 1

    def _draw(self, rng: np.random.Generator, usual: Size4) -> dict[str, int]:
        """Sizes of the symbols that may be chosen: next to powers of two, or any, small ones as often as large ones."""
        free = [s for s in self._free() if self.refused.get(self.roles[s], 0) < MOST_REFUSED]
        longest = max(self.longest or usual[3], self._least)
        alike = int(rng.integers(2, 65)) if rng.random() < ALIKE else None
        own = {}
        for symbol in free:
            role = self.roles[symbol]
            low, high = {"batch": (1, MOST_BATCH), "image": (1, MOST_IMAGE), "length": (self._least, longest)}[role]
            number = int(np.rint(np.exp(rng.uniform(math.log(low), math.log(high)))))
            power = (1 << int(rng.integers(0, max(high.bit_length(), 1)))) + int(rng.integers(-1, 2))
            number = power if rng.random() < 0.5 else number
            if role == "image":  # networks that halve images several times need multiples
                number = (
                    number
                    if rng.random() < 0.4 and self.grain == 1
                    else GRAIN * int(rng.integers(1, high // GRAIN + 1))
                )
            elif role == "length" and self.grain > 1:
                number = -(-number // self.grain) * self.grain
            if alike is not None and low <= alike <= high:
                number = alike
            own[symbol] = min(max(number, low), high)
        if self.relations.kept and (chance := rng.random()) < 2 * DECODING:
            # One new token, or one sequence: some kernels take several tokens behind others of a single one.
            one = self.relations.new if chance < DECODING else [s for s in own if self.roles[s] == "batch"]
            own |= {s: 1 for s in one if s in own}
        return own

    # -- one case ----------------------------------------------------------------------------------------------------

    def _within(
        self,
        name: str,
        size: Size4,
        reserved: float = 0.0,
        kind: Kind | None = None,
        *,
        turn: int = 0,
        own: Mapping[str, int] | None = None,
    ) -> bool:
        """Tries a case if the remaining work allows it; lists it if it takes more than half of all work."""
        if self._room() - reserved < self.cheapest:
            return False
        sizes = self._chosen(size, turn, own)
        cost = self._cost_of(sizes)
        if cost.work > self._room() - reserved:
            if self.allowance.work and cost.work > self.allowance.work / 2:
                self._leave_out(sizes, f"{cost.work:.1e} multiply-adds")
            return False
        return self._try(name, size, kind, turn=turn, own=own)

    def _try(
        self,
        name: str,
        size: Size4,
        kind: Kind | None = None,
        *,
        turn: int = 0,
        own: Mapping[str, int] | None = None,
        extra: Feeds | None = None,
        must: bool = False,
    ) -> bool:
        self.made += 1
        kind = kind or Kind()
        sizes = self._chosen(size, turn, own)
        cost = self._cost_of(sizes)
        self.must_fit = max(self.must_fit, cost.bytes) if must or not self.roles else self.must_fit
        if not self._fits(cost):
            self._leave_out(sizes, f"{MEMORY_OF_RUNS * cost.bytes / 2**30:.1f} GiB")
            return False
        name = name or ", ".join([*(f"{s}={n}" for s, n in sizes.items()), *([name_of(kind)] if kind.mask else [])])
        key = (name, *sizes.items())
        if key in self.tried:
            return self.tried[key]
        fits = MEMORY_OF_RUNS * cost.bytes <= self.allowance.bytes
        for attempt in self._attempts(kind):
            self.attempt = attempt
            rng = np.random.default_rng([self.wishes.seed, self.made])
            feeds = self.filler.feeds(sizes, attempt, rng)
            self.work += cost.work
            self.cheapest = min(self.cheapest, cost.work)
            self.tried[key] = self.accepts(Case(name, {**feeds, **(extra or {})}, about(kind), fits))
            if self.tried[key]:
                self.learnt = True
                break
        return self.tried[key]

    def _room(self) -> float:
        """Work that is left."""
        return self.allowance.work - self.work

    def _leave_out(self, sizes: Mapping[str, int], what: str) -> None:
        self.left_out[", ".join(f"{s}={n}" for s, n in sizes.items())] = what

    def _cost_of(self, sizes: Mapping[str, int]) -> Cost:
        return self.estimator.of({v.name: v.shape(sizes) for v in self.inputs})

    def _cost_at(self, size: Size4) -> Cost:
        return self._cost_of(self._chosen(size))

    def _fits(self, cost: Cost) -> bool:
        return (
            cost.bytes <= self.must_fit
            or MEMORY_OF_RUNS * cost.bytes + MEMORY_OF_OUTPUTS * cost.outputs <= self.allowance.bytes
        )

    def _is_over(self, sizes: Mapping[str, int]) -> bool:
        """Whether a set of sizes needs more than its part of the allowance."""
        cost = self._cost_of(sizes)
        return not self._fits(cost) or cost.work > max(self.allowance.work, 1e9) / 4

    def _attempts(self, kind: Kind) -> list[Attempt]:
        """Parts of tables, and fillings of sizes, to try one after the other.

        What a model computes from an index may be another table's, and a size may have to fit something else: the first
        cases say which it takes.
        """
        usual = replace(self.attempt, number=self.made, kind=kind)
        indexed = any(u.low is not None for u in self.uses.values())
        sized = any(self.uses[v.name].size and not self.uses[v.name].turns for v in self.inputs)
        if self.learnt:
            other = FILLINGS[self.made % len(FILLINGS)] if sized else usual.filling
            return [usual] if other == usual.filling else [replace(usual, filling=other), usual]
        found = [replace(usual, narrow=narrow) for narrow in (NARROWER if indexed else (usual.narrow,))]
        return found + [replace(usual, filling=filling) for filling in FILLINGS[1:] if sized]

    # -- sizes -------------------------------------------------------------------------------------------------------

    def _roles(self, declared: Mapping[str, str]) -> dict[str, str]:
        """Returns the role of each symbol; axes of caches and of MatMul operands are lengths, not images."""
        kept = {
            dim
            for v in self.inputs
            for dim in v.dims
            if self.uses[v.name].cache
            or (self.uses[v.name].multiplied and sum(isinstance(d, str) for d in v.dims[2:]) == 1)
        }
        return {s: "length" if role == "image" and s in kept else role for s, role in declared.items()}

    def _chosen(self, size: Size4, turn: int = 0, own: Mapping[str, int] | None = None) -> dict[str, int]:
        """All sizes of a case: those that follow from others in place, and small enough together."""
        free = {s: n for s, n in (own or {}).items() if not self._is_asked(s)}
        return self._bounded(self._completed({**self._sizes(size, turn), **free}))

    @property
    def _least(self) -> int:
        """The smallest length."""
        return 1 if self.grown is None else USUAL[3] * self.grown

    def _free(self) -> list[str]:
        """Returns the symbols that are neither chosen by the caller nor determined by others."""
        decided = self.relations.sums if self.linked else {}
        return [s for s in self.roles if s not in decided and not self._is_asked(s)]

    def _is_asked(self, symbol: str) -> bool:
        """Whether the caller chose the sizes of a symbol."""
        return symbol in self.wishes.sizes or bool(self.wishes.batch and self.roles.get(symbol) == "batch")

    def _sizes(self, size: Size4, turn: int) -> dict[str, int]:
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
                found[symbol] = max(1, (height if number % 2 == 0 else width) // self.divisor)
            else:
                found[symbol] = length + (3 * number if turn else 0)
                if self.longest is not None:
                    found[symbol] = min(found[symbol], self.longest)
            asked = self.wishes.sizes.get(symbol, self.wishes.batch if role == "batch" else ())
            if asked:
                found[symbol] = asked[(self.made - 1) % len(asked)]
        found |= self.wishes.fixed
        return found

    def _completed(self, sizes: dict[str, int]) -> dict[str, int]:
        """The sizes that follow from others in place, but for those that the caller chose."""
        if not self.linked or self.one_size is not None:
            return sizes
        asked = {*self.wishes.fixed, *self.wishes.sizes}
        return {s: sizes[s] if s in asked else n for s, n in self.relations.completed(sizes).items()}

    def _bounded(self, sizes: dict[str, int]) -> dict[str, int]:
        """The largest of our own choice halved until the inputs are small enough."""
        given = {*self.wishes.fixed, *self.wishes.sizes, *(self.relations.sums if self.linked else ())}
        while self._is_too_large(sizes):
            largest = max((s for s in sizes if s not in given), key=lambda s: sizes[s], default=None)
            if largest is None or sizes[largest] <= 1:
                break
            sizes = self._completed({**sizes, largest: max(1, sizes[largest] // 2)})
        return sizes

    def _is_too_large(self, sizes: Mapping[str, int]) -> bool:
        shapes = [v.shape(sizes) for v in self.inputs]
        symbolic = (
            math.prod(n for n, dim in zip(shape, v.dims) if isinstance(dim, str))
            for shape, v in zip(shapes, self.inputs)
        )
        return sum(map(math.prod, shapes)) > self.wishes.elements or max(symbolic, default=0) > SYMBOLIC_ELEMENTS


def masks_of(model: onnx.ModelProto) -> list[str]:
    """Inputs that hide keys, as far as is known; functions inlined."""
    tensors = [v for v in required_inputs(model) if v.type.HasField("tensor_type")]
    filler = Filler(tensors, uses_of(deserialized(model)), {})
    return [v.name for v in tensors if v.type.tensor_type.elem_type in MASK_TYPES and filler.is_mask(v)]


def normal_feeds(model: onnx.ModelProto, sizes: Mapping[str, int], seed: int = 0) -> Feeds:
    """Normal values, full masks and valid token ids, with every symbol of `symbols(model)` at its size."""
    filler = Filler(required_inputs(model), uses_of(deserialized(model)), {})
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

    plan(model, Wishes(fixed=sizes), accepts, FIRST_CASES)
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
                shape = case.feeds[value.name].shape
                found.update((dim, size) for dim, size in zip(value.dims, shape) if isinstance(dim, str))
        return bool(found)

    if taken_feeds(model, sizes, takes) is not None:
        return dict(sizes)
    free = sizes.keys() - given
    plan(model, Wishes(fixed={name: sizes[name] for name in given}), accepts, FIRST_CASES)
    others = {name: size for name, size in found.items() if name in sizes and size != sizes[name]}
    tries = [{**sizes, name: size} for name, size in others.items()] + [{**sizes, **others}] * bool(others)
    # A state has the batch's size in the middle of its shape, where other inputs have their length.
    tries += [{**sizes, **dict.fromkeys(free, n), name: 1} for n in BESIDE_A_STATE for name in sorted(free)]
    return next((tried for tried in tries if takes(normal_feeds(model, tried))), {**sizes, **others})
