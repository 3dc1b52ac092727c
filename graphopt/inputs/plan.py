"""Plans the inputs of a model that are likely to show a wrong rewrite.

Float elements are signed, negative, zero, large, tiny, pixels, ties, equal in rows or of different magnitude in rows;
on request, a few are NaN or infinite. Masks are padded, have holes, one key or no key. Integers cover the valid range
(`uses`). Further cases have elements at the thresholds of trees (`trees`), or other values for overridable
initializers.

The nodes of the model determine some sizes from the others (`relations`). The first sets have a batch of 3, a length of
1, the longest accepted length and their combinations. Steps of a decoder with a short and a long past, a list of sizes
and random sizes follow. The estimated cost of a set (`graph/cost.py`), not its time, decides whether it runs, so with
the same limits a model has the same sets on any machine.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir

from graphopt.graph.cost import Cost, Estimator
from graphopt.graph.operators.traits import COMPARISONS
from graphopt.graph.reading import FIRST_OVERRIDABLE_IR_VERSION
from graphopt.graph.shapes.sizes import Size
from graphopt.graph.traversal import tensor_array, tensors
from graphopt.inputs.declared import declared_size, deserialized, is_past, required_inputs, symbols
from graphopt.inputs.filling import (
    FILLINGS,
    LONGEST_SHAPE,
    NARROWER,
    NORMAL,
    SYMBOLIC_ELEMENTS,
    TREES,
    Attempt,
    Feeds,
    Filler,
    Kind,
)
from graphopt.inputs.relations import relations_of
from graphopt.inputs.uses import uses_of


class RoleSizes(NamedTuple):
    """The sizes of symbolic dimensions by role.

    The first axis of an input is a batch, the last two of four axes are an image, and all other axes are lengths.
    """

    batch: int
    height: int
    width: int
    length: int


# The sizes that are tried first.
FIRST, SECOND = RoleSizes(1, 64, 64, 7), RoleSizes(2, 96, 96, 16)
USUAL = RoleSizes(2, 64, 64, 16)
# If the model refuses FIRST and SECOND, `plan` tries at most MOST_NAMED lengths that are constants of the model. It
# then multiplies sizes by GROWTH, up to LONGEST_GROWN, and finally tries one size for all symbols.
MOST_NAMED, GROWTH, LONGEST_GROWN = 6, 2, 1 << 18
ONE_SIZE = (4, 2, 8, 16, 32, 64, 224, 3, 1, 0)
# The usual and the longest length of a model with grown sizes, as multiples of the first accepted one.
USUAL_GROWN, MOST_GROWN = 5, 33
# Image sizes are divided by up to MOST_DIVISOR if one set of the usual size would exceed the allowed memory, or if
# ALWAYS_TRIED such sets would exceed the allowed work.
MOST_DIVISOR, ALWAYS_TRIED = 8, 16
# Lengths that `accepted_sizes` combines with a recurrent state of batch 1.
LENGTHS_WITH_STATE = (128, 224, 576)
# Batches that are combined with the extreme lengths: kernels often have special paths for a single row.
CORNER_BATCHES = (1, 3)
# Further sizes. Some are larger than a tile of any kernel, some are smaller, some are no multiples of 8 or 32; some
# images are wide or high.
MORE_SIZES = (
    RoleSizes(3, 64, 96, 10),
    RoleSizes(1, 128, 128, 33),
    RoleSizes(4, 96, 64, 13),
    RoleSizes(2, 65, 63, 31),
    RoleSizes(1, 33, 47, 64),
    RoleSizes(3, 31, 33, 2),
    RoleSizes(2, 32, 32, 1),
    RoleSizes(1, 7, 9, 3),
    RoleSizes(2, 47, 33, 63),
    RoleSizes(1, 63, 65, 65),
    RoleSizes(3, 96, 96, 32),
)
# The kinds of masks that are used with MORE_SIZES and with random sizes, in turn.
MASKS_OF_SIZES = ("padded both", "holes", "", "padded right", "one key")
# The largest length that is tried: an audio frame. If its cost is not allowed, a shorter one is tried.
LONGEST = 576
# Long images of low cost.
LONG_IMAGES = tuple(RoleSizes(1, *size, 7) for size in ((64, 512), (512, 64), (64, 2048), (2048, 64)))
# Numbers of cached tokens in decoder steps with one new token.
PASTS = (17, 129, 1025)
# Random sizes: the largest batch and image, the largest product of all sizes, and the share of cases with one size for
# all symbols.
MOST_BATCH, MOST_IMAGE, MOST_POSITIONS, ALIKE = 70, 320, 1 << 13, 0.15
# If only batches are symbolic, the number of cases with random sizes is divided by this factor.
FEWER_BATCHES = 8
# Random sizes use at most DRAWN_SHARE of the allowed work. Of a decoder's random sizes, the share DECODING has one new
# token, and an equal share has a batch of one sequence.
DRAWN_SHARE, DECODING = 0.2, 0.3
# If a model refuses random sizes and accepts multiples of GRAIN, only multiples are drawn after that. After
# MOST_REFUSED refusals the sizes of a role are not drawn again.
GRAIN, MOST_REFUSED = 32, 3
# A batch that is large enough for rare cases: an entry of a table, an element near a threshold.
MANY_ROWS = 70
# The most rows for decisions of trees in one batch, and the most cases with such rows.
MOST_TREE_ROWS, TREE_CASES = 2048, 16
# Discontinuous operators: a small change of an input may change the result by a step.
DECISIONS = COMPARISONS | {"Ceil", "Floor", "If", "Loop", "Mod", "Round", "Where"}
# The types of inputs that may hide keys.
MASK_TYPES = frozenset(getattr(onnx.TensorProto, name) for name in ("BOOL", "INT32", "INT64", "FLOAT", "FLOAT16"))
# The most elements of all inputs together.
ELEMENTS = 1 << 24
# `verify` runs each set several times. These runs need MEMORY_OF_RUNS times the memory of one run of the original model
# (BEFORE), and MEMORY_OF_OUTPUTS times the bytes of its outputs. Copies of BEFORE with random rounding have several
# tensors for each tensor of BEFORE, sums in float64 take twice the bytes, and outputs are compared in float64.
MEMORY_OF_RUNS, MEMORY_OF_OUTPUTS = 4, 16


@dataclass(frozen=True)
class Case:
    """One set of inputs.

    Attributes:
        name: unique among the cases of a model.
        feeds: input -> array.
        about: a description of the elements; "" for normal ones.
        fits: whether the copies of BEFORE with random rounding stay within the allowed memory.
    """

    name: str
    feeds: Feeds
    about: str = ""
    fits: bool = True


def map_arrays(feeds: Mapping[str, Any], function: Callable[[Any], Any]) -> Feeds:
    """Applies a function to each array of some feeds, also to the elements of sequences; absent optionals are kept."""

    def mapped(value: Any) -> Any:
        if isinstance(value, list):
            return [mapped(element) for element in value]
        return function(value) if isinstance(value, np.ndarray | np.generic) else value

    return {name: mapped(value) for name, value in feeds.items()}


@dataclass(frozen=True)
class InputOptions:
    """The caller's choices for generated inputs.

    Attributes:
        seed: the seed of all random numbers.
        fixed: symbolic dimension -> its only size.
        sizes: symbolic dimension -> the sizes to try.
        batch: sizes to try for the first axes.
        ranges: input -> the lowest and the highest element.
        probe_nan: adds cases with a few NaN and infinite elements in each floating point input.
        elements: the most elements of all inputs of a case together.
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
    """The allowed cost of all sets of inputs of a model, as estimated by `graph/cost.py`.

    Attributes:
        work: multiply-adds of one run of each set, all sets together. The first few sets of each kind always run.
        bytes: memory of the runs of one set.
        draws: the number of cases with random sizes, in addition to the cases with listed sizes.
        longest: the longest length.
    """

    work: float = math.inf
    bytes: float = math.inf
    draws: int = 64
    longest: int = LONGEST


# Only the first few cases of each kind.
FIRST_CASES = Allowance(work=0, draws=0)


def plan(
    model: onnx.ModelProto,
    input_options: InputOptions,
    accepts: Callable[[Case], bool],
    allowance: Allowance,
    has_finite_elements: Callable[[str], bool] = lambda _: True,
    other: ir.Model | None = None,
) -> dict[str, str]:
    """Generates cases, the most useful ones for a comparison first; a refused case changes the cases after it.

    The same model, input options and allowance give the same cases on any machine.

    Args:
        model: the model, functions inlined.
        input_options: the caller's choices.
        accepts: runs the model; returns whether it accepts the case.
        allowance: the allowed cost of the cases.
        has_finite_elements: returns whether each float output of an accepted case, by name, has a finite element.
        other: the model that `model` is compared with; its comparisons, roundings and trees also determine elements.

    Returns:
        The sizes that were left out, and their estimated cost.

    Raises:
        VerifyError: an input has an unsupported type, or is too large.
    """
    found = _Plan(model, input_options, accepts, allowance, has_finite_elements, other)
    found.run()
    return found.left_out


@dataclass(frozen=True)
class _Trial:
    """A case to try.

    Attributes:
        name: name of the case; "" to name it by its sizes.
        size: sizes of the symbols by role.
        kind: the special elements.
        variation: 0 for equal lengths and equal batches. Above 0 lengths differ; if 3 modulo 4, batches differ as well.
        own: sizes of some symbols, which override the sizes by role.
    """

    name: str
    size: RoleSizes
    kind: Kind = NORMAL
    variation: int = 0
    own: Mapping[str, int] = field(default_factory=dict)


@dataclass
class _Plan:
    """The state of `plan`; the first fields are its arguments.

    Attributes:
        first: the first accepted sizes.
        one_size: the size of all symbols, if the model accepts nothing else.
        longest: the longest accepted length.
        grown: the factor of the first accepted sizes (GROWTH, GROWTH^2, ...), if the model refuses smaller ones.
        divisor: the divisor of all image sizes.
        grain: the divisor of random lengths and image sizes.
        refused: role -> number of refused draws.
        work, drawn: multiply-adds of all sets, and of the sets with random sizes.
        cheapest: the least work of a set.
        must_fit: bytes of the first set, which always runs.
        made: the number of cases so far.
        tried: name and sizes of a case -> whether the model accepts it.
        has_result: whether a case was accepted, so that valid parts of tables and fillings of sizes are known.
        attempt: the last parameters of the filler.
        left_out: the result of `plan`.
    """

    message: onnx.ModelProto
    input_options: InputOptions
    accepts: Callable[[Case], bool]
    allowance: Allowance
    has_finite_elements: Callable[[str], bool]
    other: ir.Model | None
    first: RoleSizes = FIRST
    one_size: int | None = None
    longest: int | None = None
    grown: int | None = None
    divisor: int = 1
    grain: int = 1
    refused: dict[str, int] = field(default_factory=dict)
    work: float = 0.0
    drawn: float = 0.0
    cheapest: float = math.inf
    must_fit: int = 0
    made: int = 0
    tried: dict[tuple[object, ...], bool] = field(default_factory=dict)
    has_result: bool = False
    attempt: Attempt = field(default_factory=partial(Attempt, 0))
    left_out: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        input_options = self.input_options
        self.inputs = required_inputs(self.message)
        self.model = deserialized(self.message)
        self.uses = uses_of(self.model)
        for name, use in uses_of(self.other).items() if self.other is not None else ():
            if name in self.uses:
                self.uses[name].add(use)
        self.roles = {s: role for s, role in self._roles().items() if s not in input_options.fixed}
        chosen = [s for s in self.roles if s not in input_options.sizes]
        self.relations = found = relations_of(self.message, chosen, self.model)
        self.linked = bool(found.sums)
        self.filler = Filler(self.inputs, self.uses, input_options.ranges, lengths=found.lengths, counted=found.counted)
        self.estimator = Estimator(self.model)

    def run(self) -> None:
        self.first = first = self._first()
        usual = self._usual_sizes(first)
        kinds = self.filler.first_kinds(probe_nan=self.input_options.probe_nan)
        self._try_extreme_sizes(usual, reserved=len(kinds) * self._cost_at(usual).work)
        usual = self._try_kinds(kinds, usual, first)
        self._try_overridden_initializers(usual)
        self._try_many_rows()
        self._try_tree_rows()
        for more in itertools.zip_longest(self._more_kinds(usual), self._more_sizes(usual)):
            for case in more:
                if case is not None:
                    case()

    # -- which cases -------------------------------------------------------------------------------------------------

    def _first(self) -> RoleSizes:
        """Returns the first sizes that the model accepts; FIRST if it accepts none."""
        self._reduce_images()
        while True:
            for linked in (True, False) if self.relations.sums else (False,):
                self.linked = linked
                for name, size in (("normal, batch 1", FIRST), ("normal, batch 2", SECOND)):
                    # One set must run at any cost, unless the caller chose its sizes.
                    if self._take_first(name, size, must=size == FIRST and not self._has_input_options()):
                        if size == FIRST:
                            self._try(_Trial("normal, batch 2", SECOND))
                        return size
            if self.divisor == 1 and not self._link_masks():
                break
            self.divisor = max(1, self.divisor // 2)
        self.linked = bool(self.relations.sums)
        varied = {"image", "length"} & {*self.roles.values()}
        for length in self._named_lengths() if "length" in varied else ():
            if self._take_first(f"normal, length {length}", size := FIRST._replace(length=length)):
                return size
        factor = GROWTH
        while varied and SECOND.length * factor <= LONGEST_GROWN:
            size = RoleSizes(1, USUAL.height * factor, USUAL.width * factor, SECOND.length * factor)
            if self._exceeds_share(self._case_sizes(size)):
                break
            grown = size.length if "length" in varied else size.height
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
        cached = self._cached_symbols()
        masks = [v for v in self.inputs if "mask" in v.name.lower() or self.uses[v.name].mask]
        caches = [v for v in self.inputs if is_past(v.name) or self.uses[v.name].cache]
        tokens = next((v for v in self.inputs if v not in masks and v not in caches), None)
        if not cached or tokens is None or len(tokens.dims) < 2:
            return False
        new = declared_size(tokens.dims[1])
        free = {str(m.dims[-1]) for m in masks if m.dims} & {*self._free_symbols()} - {*cached, str(new)}
        self.relations.sums |= {symbol: Size.symbol(cached[0]) + new for symbol in free}
        return bool(free)

    def _cached_symbols(self) -> list[str]:
        """Returns the symbols of cached steps of a decoder."""
        return self.relations.cached or [s for s, role in self.roles.items() if role == "length" and is_past(s)]

    def _lengths(self) -> list[str]:
        """Returns the lengths that may be chosen."""
        return [s for s in self._free_symbols() if self.roles[s] == "length"]

    def _reduce_images(self) -> None:
        """Reduces images if the usual ones would exceed their share of the allowed cost."""
        if "image" not in self.roles.values() or not self.allowance.work:
            return
        while self.divisor < MOST_DIVISOR:
            cost = self._cost_at(USUAL)
            if self._fits(cost) and cost.work * ALWAYS_TRIED <= self.allowance.work:
                return
            self.divisor *= 2

    def _has_input_options(self) -> bool:
        """Returns whether the caller chose any sizes."""
        return bool(self.input_options.sizes or self.input_options.batch)

    def _take_first(self, name: str, size: RoleSizes, *, must: bool = False) -> bool:
        taken = self._try(_Trial(name, size), must=must)
        if taken:
            self._find_inverted_masks(name, size)
        return taken

    def _named_lengths(self) -> list[int]:
        """Returns the lengths in small constants: a model that was exported for one length may reshape to it."""
        named = (
            n
            for t in tensors([self.model.graph])
            if t.dtype == ir.DataType.INT64 and 0 < t.size <= LONGEST_SHAPE
            for n in tensor_array(t).reshape(-1).tolist()
        )
        others = (FIRST.length, SECOND.length)
        return [n for n in dict.fromkeys(named) if 2 < n <= LONGEST and n not in others][:MOST_NAMED]

    def _usual_sizes(self, first: RoleSizes) -> RoleSizes:
        """Returns the sizes of cases with special elements: larger than the smallest accepted sizes, if possible."""
        if self.grown is None:
            return USUAL if self.one_size is not None or first in (FIRST, SECOND) else first._replace(batch=2)
        usual = RoleSizes(2, 2 * first.height, 2 * first.width, USUAL_GROWN * first.length)
        return first._replace(batch=2) if self._exceeds_share(self._case_sizes(usual)) else usual

    def _find_inverted_masks(self, name: str, size: RoleSizes) -> None:
        """Finds the masks that hide where they are 1, as PyTorch's padding masks do.

        A mask of ones then hides every key. The Softmax over no keys is NaN, so the case compares nothing.
        """
        masks = [v.name for v in self.inputs if self.filler.is_mask(v) and not self.uses[v.name].additive]
        if not masks or self.has_finite_elements(name):
            return
        for hiding in (masks, *([m] for m in masks if len(masks) > 1)):
            self.filler.hiding = frozenset(hiding)
            other = f"{name}, 1 hides in {', '.join(hiding)}"
            if self._try(_Trial(other, size)) and self.has_finite_elements(other):
                return
        self.filler.hiding = frozenset()

    def _try_extreme_sizes(self, usual: RoleSizes, reserved: float) -> None:
        """Tries length 1, batch 3, the longest length and their combinations, and steps of a decoder.

        Args:
            usual: sizes of all other dimensions.
            reserved: the work to leave for cases that always run.
        """
        lengths = self._lengths()
        batches = CORNER_BATCHES if "batch" in self.roles.values() else (usual.batch,)
        sizes = [usual._replace(batch=batch) for batch in batches]
        self._try_if_affordable(_Trial("", sizes[-1], own=dict.fromkeys(lengths, usual.length)))
        shortest = [dict.fromkeys(lengths, self._least_length)] if lengths else []
        shortest += [{s: self._least_length} for s in lengths if len(lengths) > 1]
        for own in shortest:
            for size in sizes:
                self._try_if_affordable(_Trial("", size, own=own))
        for name, own in self._decode_steps():
            for size in sizes:
                named = name if size is sizes[0] else f"{name}, batch {size.batch}"
                self._try_if_affordable(_Trial(named, size, own=own), reserved)
        if lengths:
            self.longest = longest = self._find_longest(lengths, usual, reserved)
            for size in sizes[1:]:
                self._try_if_affordable(_Trial("", size, own=dict.fromkeys(lengths, longest)), reserved)
        if "image" in self.roles.values():
            for size in (RoleSizes(1, 1, 1, usual.length), *LONG_IMAGES):
                self._try_if_affordable(_Trial("", size), reserved)

    def _decode_steps(self) -> Iterator[tuple[str, dict[str, int]]]:
        """Yields names and sizes of decoder steps with a short and a long past."""
        cached, lengths = self._cached_symbols(), self._lengths()
        new = [s for s in self.relations.new if s in lengths] or [s for s in lengths if s not in cached]
        for past, length in ((0, FIRST.length), (FIRST.length, 1), *((p, 1) for p in PASTS)) if cached else ():
            name = "empty past" if past == 0 else "decode step" if past == FIRST.length else f"decode step, past {past}"
            yield name, {**dict.fromkeys(cached, past), **dict.fromkeys(new, length)}

    def _find_longest(self, lengths: Sequence[str], usual: RoleSizes, reserved: float) -> int:
        """Returns the longest length that the model accepts within the allowed work."""
        most = self.allowance.longest if self.grown is None else MOST_GROWN * USUAL.length * self.grown
        size = usual._replace(batch=1)
        left = self._work_left() - reserved

        def cost(length: int) -> Cost:
            return self._cost_of(self._case_sizes(size, own=dict.fromkeys(lengths, length)))

        def is_accepted(length: int) -> bool:
            return self._try_if_affordable(_Trial("", size, own=dict.fromkeys(lengths, length)), reserved)

        if (many := cost(most)).work > left:  # the cost is convex, so it is below the line between two of its points
            few = cost(usual.length).work
            share = max(0.0, (left - few) / max(many.work - few, 1))
            most = usual.length + int(share * (most - usual.length))
        while most > usual.length and ((found := cost(most)).work > left or not self._fits(found)):
            most = usual.length + (most - usual.length) * 7 // 8
        if most <= usual.length or is_accepted(most):
            return max(most, usual.length)
        taken, refused = usual.length, most
        # The limit is usually the number of rows of a table.
        weights = [v.shape or () for v in self.model.graph.initializers.values()]
        tables = {n for shape in weights for n in shape if isinstance(n, int) and taken < n < refused}
        for length in sorted(tables, reverse=True)[:MOST_NAMED]:
            if is_accepted(length):
                taken, refused = length, min(refused, length + 1)
                break
        while refused - taken > 1 and self._work_left() > reserved:
            middle = taken * 2 if taken * 2 < refused else (taken + refused) // 2
            taken, refused = (middle, refused) if is_accepted(middle) else (taken, middle)
        return taken

    def _try_kinds(self, kinds: Sequence[Kind], usual: RoleSizes, first: RoleSizes) -> RoleSizes:
        """Tries kinds of elements at `usual`, or at `first` if the model refuses these sizes; returns the sizes."""
        size = usual
        for kind in kinds:
            if not self._try(_Trial(kind.name, size, kind)) and size != first:
                size = first if self._try(_Trial(kind.name, first, kind)) else size
        return size

    def _more_kinds(self, usual: RoleSizes) -> Iterator[Callable[[], object]]:
        is_discontinuous = any(n.op_type in DECISIONS for n in self.model.graph)
        trials = [_Trial(kind.name, usual, kind) for kind in self.filler.more_kinds(is_discontinuous=is_discontinuous)]
        if self.filler.has_masks and self.filler.has_floats:
            # Scores of this magnitude show a mask that adds -1000 instead of -10000.
            trials.append(_Trial("large, holes", usual, Kind(values="large", mask="holes")))
        if self.filler.has_masks:
            alone = usual._replace(batch=1)
            trials += [_Trial(f"{mask}, batch 1", alone, Kind(mask=mask)) for mask in ("padded right", "holes")]
        if not self.roles:
            trials += [_Trial(f"normal, draw {i}", usual) for i in (2, 3, 4)]
        for trial in trials:
            yield partial(self._try_if_affordable, trial)

    def _try_many_rows(self) -> None:
        if "batch" not in self.roles.values() or self.input_options.batch:
            return
        kinds = [NORMAL, Kind(values="large", integers="last")]
        tried = [(MANY_ROWS, kind) for kind in [*kinds, *self.filler.free_kinds()]]
        if (rows := self._rows_for_all_keys()) > MANY_ROWS:
            tried.append((rows, NORMAL))
        for rows, kind in tried:
            name = ", ".join(filter(None, (kind.name, f"batch {rows}")))
            self._try_if_affordable(_Trial(name, self.first._replace(batch=rows), kind))

    def _try_tree_rows(self) -> None:
        """Tries rows for the decisions of tree ensembles: all in one batch, or a few in each case."""
        count = len(self.filler.rows)
        batch = min(count, MOST_TREE_ROWS) if "batch" in self.roles.values() and not self.input_options.batch else 1
        for variation in range(min(-(-count // batch), TREE_CASES) if count else 0):
            name = TREES + (f", {variation + 1}" if variation else "")
            self._try_if_affordable(_Trial(name, USUAL._replace(batch=batch), Kind(integers=TREES)))

    def _rows_for_all_keys(self) -> int:
        """Returns a batch size that fits all keys, or all rows of a small table, into an input."""
        sizes = self._case_sizes(FIRST)
        rows = [
            self.filler.keys_of(v) / max(1, math.prod(v.shape(sizes)))
            for v in self.inputs
            if v.dims and self.roles.get(str(v.dims[0])) == "batch"
        ]
        return math.ceil(max(rows, default=0))

    def _try_overridden_initializers(self, usual: RoleSizes) -> None:
        """Tries other elements of overridable initializers of float type."""
        values = [v for v in self.model.graph.initializers.values() if v.is_graph_input()]
        if not values or self.model.ir_version < FIRST_OVERRIDABLE_IR_VERSION:
            return
        rng = np.random.default_rng([self.input_options.seed, 30])
        given = {}
        for value in values:
            if value.const_value is not None and (array := tensor_array(value.const_value)).dtype.kind == "f":
                given[str(value.name)] = np.asarray(array * 1.1 + rng.normal(0, 0.1, array.shape)).astype(array.dtype)
        self._try(_Trial("overridden initializers", usual), extra=given)

    def _more_sizes(self, usual: RoleSizes) -> Iterator[Callable[[], object]]:
        """Yields trials of a list of sizes, then of random sizes."""
        if not self.roles:
            return
        if usual != USUAL:  # a model for one length may still accept any batch
            for batch in (2, 3, 4):
                yield partial(self._try_if_affordable, _Trial(f"normal, batch {batch}", usual._replace(batch=batch)))
        masks = itertools.cycle(MASKS_OF_SIZES if self.filler.has_masks else ("",))
        counts = [len(sizes) for sizes in (*self.input_options.sizes.values(), self.input_options.batch)]
        listed = MORE_SIZES if self.grown is None else ()
        for i, size in enumerate([*listed, *[usual] * (max(counts) - len(listed))]):
            kind = Kind(mask=next(masks))
            size = size._replace(length=min(size.length, self.longest or size.length))
            yield partial(self._try_if_affordable, _Trial("", size, kind, variation=i + 1))
        rng = np.random.default_rng([self.input_options.seed, 44])
        if self.one_size is not None or not self._free_symbols():
            return
        alone = all(self.roles[s] == "batch" for s in self._free_symbols())
        for _ in range(self.allowance.draws // (FEWER_BATCHES if alone else 1)):
            yield partial(self._try_random_sizes, rng, Kind(mask=next(masks)), usual)

    def _try_random_sizes(self, rng: np.random.Generator, kind: Kind, usual: RoleSizes) -> None:
        """Tries random sizes; the largest ones are halved until all are within the allowed memory and work."""
        if self._work_left() < self.cheapest:
            return
        own = self._draw_sizes(rng, usual)
        left = max((self.allowance.work * DRAWN_SHARE - self.drawn) / 4, 0.0)
        sizes = self._case_sizes(usual, own=own)
        most = MOST_POSITIONS * (MOST_IMAGE if "image" in self.roles.values() else 1)
        least = {s: self._least_length if self.roles[s] == "length" else 1 for s in own}
        while own and (math.prod(own.values()) > most * self._least_length or self._cost_of(sizes).work > left):
            largest = max(own, key=lambda s: own[s] / least[s])
            if own[largest] <= least[largest]:
                return
            own[largest] = max(least[largest], own[largest] // 2)
            sizes = self._case_sizes(usual, own=own)
        self.drawn += self._cost_of(sizes).work
        trial = _Trial("", usual, kind, own=own)
        if not own or self._try_if_affordable(trial) or self._work_left() <= 0:
            return
        varied = {self.roles[s] for s in own}
        rough = {s: -(-n // GRAIN) * GRAIN if self.roles[s] != "batch" else n for s, n in own.items()}
        if rough != own and self._try_if_affordable(replace(trial, own=rough)):
            self.grain = GRAIN
            return
        alone = {s: n for s, n in own.items() if self.roles[s] == "batch"}
        if alone and alone != own and self._try_if_affordable(replace(trial, own=alone)):
            varied.discard("batch")
        for role in varied:
            self.refused[role] = self.refused.get(role, 0) + 1

    def _draw_sizes(self, rng: np.random.Generator, usual: RoleSizes) -> dict[str, int]:
        """Draws sizes of the symbols that may be chosen: uniform in the logarithm, or next to a power of two."""
        free = [s for s in self._free_symbols() if self.refused.get(self.roles[s], 0) < MOST_REFUSED]
        shortest = self._least_length
        longest = max(self.longest or usual.length, shortest)
        alike = int(rng.integers(2, 65)) if rng.random() < ALIKE else None
        own = {}
        for symbol in free:
            role = self.roles[symbol]
            low, high = {"batch": (1, MOST_BATCH), "image": (1, MOST_IMAGE), "length": (self._least_length, longest)}[
                role
            ]
            size = int(np.rint(np.exp(rng.uniform(math.log(low), math.log(high)))))
            power = (1 << int(rng.integers(0, max(high.bit_length(), 1)))) + int(rng.integers(-1, 2))
            size = power if rng.random() < 0.5 else size
            if role == "image":
                # Networks that halve images several times need multiples of a power of two.
                if rng.random() >= 0.4 or self.grain > 1:
                    size = GRAIN * int(rng.integers(1, high // GRAIN + 1))
            elif role == "length" and self.grain > 1:
                size = -(-size // self.grain) * self.grain
            if alike is not None and low <= alike <= high:
                size = alike
            own[symbol] = min(max(size, low), high)
        if self.relations.cached and (chance := rng.random()) < 2 * DECODING:
            # One new token, or one sequence: some kernels support several tokens after a past only for a single
            # sequence.
            one = self.relations.new if chance < DECODING else [s for s in own if self.roles[s] == "batch"]
            own |= {s: 1 for s in one if s in own}
        return own

    # -- one case ----------------------------------------------------------------------------------------------------

    def _try_if_affordable(self, trial: _Trial, reserved: float = 0.0) -> bool:
        """Tries a case if the remaining work allows it; records it in `left_out` if it needs over half of all work."""
        left = self._work_left() - reserved
        if left < self.cheapest:
            return False
        sizes = self._case_sizes(trial.size, trial.variation, trial.own)
        work = self._cost_of(sizes).work
        if work <= left:
            return self._try(trial)
        if self.allowance.work and work > self.allowance.work / 2:
            self._leave_out(sizes, f"{work:.1e} multiply-adds")
        return False

    def _try(self, trial: _Trial, *, extra: Feeds | None = None, must: bool = False) -> bool:
        """Returns whether the model accepts a case.

        Args:
            trial: the case.
            extra: more feeds.
            must: whether it runs at any cost.
        """
        self.made += 1
        kind = trial.kind
        sizes = self._case_sizes(trial.size, trial.variation, trial.own)
        cost = self._cost_of(sizes)
        self.must_fit = max(self.must_fit, cost.bytes) if must or not self.roles else self.must_fit
        if not self._fits(cost):
            self._leave_out(sizes, f"{MEMORY_OF_RUNS * cost.bytes / 2**30:.1f} GiB")
            return False
        name = trial.name or ", ".join([*(f"{s}={n}" for s, n in sizes.items()), *([kind.name] if kind.mask else [])])
        key = (name, *sizes.items())
        if key in self.tried:
            return self.tried[key]
        fits = MEMORY_OF_RUNS * cost.bytes <= self.allowance.bytes
        for attempt in self._attempts(kind, sizes):
            self.attempt = attempt
            feeds = self.filler.feeds(attempt, np.random.default_rng([self.input_options.seed, self.made]))
            self.work += cost.work
            self.cheapest = min(self.cheapest, cost.work)
            self.tried[key] = self.accepts(Case(name, {**feeds, **(extra or {})}, kind.about, fits))
            if self.tried[key]:
                self.has_result = True
                break
        return self.tried[key]

    def _work_left(self) -> float:
        return self.allowance.work - self.work

    def _leave_out(self, sizes: Mapping[str, int], cost: str) -> None:
        self.left_out[", ".join(f"{s}={n}" for s, n in sizes.items())] = cost

    def _cost_of(self, sizes: Mapping[str, int]) -> Cost:
        return self.estimator.of({v.name: v.shape(sizes) for v in self.inputs})

    def _cost_at(self, size: RoleSizes) -> Cost:
        return self._cost_of(self._case_sizes(size))

    def _fits(self, cost: Cost) -> bool:
        memory = MEMORY_OF_RUNS * cost.bytes + MEMORY_OF_OUTPUTS * cost.outputs
        return cost.bytes <= self.must_fit or memory <= self.allowance.bytes

    def _exceeds_share(self, sizes: Mapping[str, int]) -> bool:
        """Returns whether a set of sizes exceeds its share of the allowed cost."""
        cost = self._cost_of(sizes)
        return not self._fits(cost) or cost.work > max(self.allowance.work, 1e9) / 4

    def _attempts(self, kind: Kind, sizes: Mapping[str, int]) -> list[Attempt]:
        """Returns the parameters to try for a case.

        Until a case is accepted, the range of indices and the filling of sizes vary: the model may also use an index
        for a smaller table, and a size may have to match another size. Once a case was accepted, another filling of
        sizes is tried before the accepted parameters.
        """
        usual = replace(self.attempt, number=self.made, sizes=sizes, kind=kind)
        indexed = any(u.low is not None for u in self.uses.values())
        sized = any(self.uses[v.name].size and not self.uses[v.name].is_trip_count for v in self.inputs)
        if self.has_result:
            other = FILLINGS[self.made % len(FILLINGS)] if sized else usual.filling
            return [usual] if other == usual.filling else [replace(usual, filling=other), usual]
        found = [replace(usual, narrow=narrow) for narrow in (NARROWER if indexed else (usual.narrow,))]
        return found + [replace(usual, filling=filling) for filling in FILLINGS[1:] if sized]

    # -- sizes -------------------------------------------------------------------------------------------------------

    def _roles(self) -> dict[str, str]:
        """Returns the role of each symbol; axes of caches and of MatMul operands are lengths, not images."""
        kept = {
            dim
            for v in self.inputs
            for dim in v.dims
            if self.uses[v.name].cache
            or (self.uses[v.name].multiplied and sum(isinstance(d, str) for d in v.dims[2:]) == 1)
        }
        return {s: "length" if role == "image" and s in kept else role for s, role in symbols(self.message).items()}

    def _case_sizes(self, size: RoleSizes, variation: int = 0, own: Mapping[str, int] | None = None) -> dict[str, int]:
        """Returns all sizes of a case, including determined ones, reduced until the inputs are small enough."""
        free = {s: n for s, n in (own or {}).items() if not self._is_chosen_by_caller(s)}
        return self._reduced(self._completed({**self._sizes(size, variation), **free}))

    @property
    def _least_length(self) -> int:
        """The smallest length."""
        return 1 if self.grown is None else USUAL.length * self.grown

    def _free_symbols(self) -> list[str]:
        """Returns the symbols that are neither chosen by the caller nor determined by others."""
        decided = self.relations.sums if self.linked else {}
        return [s for s in self.roles if s not in decided and not self._is_chosen_by_caller(s)]

    def _is_chosen_by_caller(self, symbol: str) -> bool:
        """Returns whether the caller chose the sizes of a symbol."""
        return symbol in self.input_options.sizes or bool(
            self.input_options.batch and self.roles.get(symbol) == "batch"
        )

    def _sizes(self, size: RoleSizes, variation: int) -> dict[str, int]:
        """Returns a size for each symbol; see `_Trial.variation`."""
        found: dict[str, int] = {}
        seen = {"batch": 0, "image": 0, "length": 0}
        for symbol, role in self.roles.items():
            i = seen[role]
            seen[role] += 1
            wished = self.input_options.sizes.get(symbol, self.input_options.batch if role == "batch" else ())
            if wished:
                found[symbol] = wished[(self.made - 1) % len(wished)]
            elif self.one_size is not None:
                found[symbol] = self.one_size
            elif role == "batch":
                found[symbol] = size.batch + (i if variation % 4 == 3 else 0)
            elif role == "image":
                found[symbol] = max(1, (size.width if i % 2 else size.height) // self.divisor)
            else:
                length = size.length + (3 * i if variation else 0)
                found[symbol] = length if self.longest is None else min(length, self.longest)
        return {**found, **self.input_options.fixed}

    def _completed(self, sizes: dict[str, int]) -> dict[str, int]:
        """Replaces the sizes that relations determine, except sizes that the caller chose."""
        if not self.linked or self.one_size is not None:
            return sizes
        wished = {*self.input_options.fixed, *self.input_options.sizes}
        return {s: sizes[s] if s in wished else n for s, n in self.relations.completed(sizes).items()}

    def _reduced(self, sizes: dict[str, int]) -> dict[str, int]:
        """Halves the largest size that may be chosen until the inputs are small enough."""
        given = {*self.input_options.fixed, *self.input_options.sizes, *(self.relations.sums if self.linked else ())}
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
        return sum(map(math.prod, shapes)) > self.input_options.elements or max(symbolic, default=0) > SYMBOLIC_ELEMENTS


def masks_of(model: onnx.ModelProto) -> list[str]:
    """Returns the inputs that are known to hide keys; functions inlined."""
    inputs = [v for v in required_inputs(model) if v.type.HasField("tensor_type")]
    filler = Filler(inputs, uses_of(deserialized(model)), {})
    return [v.name for v in inputs if v.type.tensor_type.elem_type in MASK_TYPES and filler.is_mask(v)]


def normal_feeds(model: onnx.ModelProto, sizes: Mapping[str, int], seed: int = 0) -> Feeds:
    """Returns normal floats, full masks and valid indices, with each symbol of `symbols(model)` at its size."""
    filler = Filler(required_inputs(model), uses_of(deserialized(model)), {})
    return filler.feeds(Attempt(1, sizes), np.random.default_rng([seed, 0]))


def accepted_feeds(
    model: onnx.ModelProto, sizes: Mapping[str, int], is_accepted: Callable[[Feeds], bool]
) -> Feeds | None:
    """Returns the first feeds of `normal_feeds` and `plan` that a model accepts; None if it accepts none.

    Args:
        model: the model, functions inlined.
        sizes: the size of every symbol.
        is_accepted: runs the model; returns whether it accepts the feeds.
    """
    first = normal_feeds(model, sizes)
    return first if is_accepted(first) else _first_accepted(model, sizes, is_accepted)


def _first_accepted(
    model: onnx.ModelProto, fixed: Mapping[str, int], is_accepted: Callable[[Feeds], bool]
) -> Feeds | None:
    """Returns the first feeds of `plan` that a model accepts."""
    found: list[Feeds] = []

    def accepts(case: Case) -> bool:
        if not found and is_accepted(case.feeds):
            found.append(case.feeds)
        return bool(found)

    plan(model, InputOptions(fixed=fixed), accepts, FIRST_CASES)
    return found[0] if found else None


def accepted_sizes(
    model: onnx.ModelProto, sizes: Mapping[str, int], given: Collection[str], is_accepted: Callable[[Feeds], bool]
) -> dict[str, int]:
    """Returns sizes that a model accepts: `sizes`, if necessary with a few changes from `plan`.

    Args:
        model: the model, functions inlined.
        sizes: the size of every symbol.
        given: symbols that keep their sizes.
        is_accepted: runs the model; returns whether it accepts the feeds.
    """
    if accepted_feeds(model, sizes, is_accepted) is not None:
        return dict(sizes)
    free = sizes.keys() - given
    feeds = _first_accepted(model, {name: sizes[name] for name in given}, is_accepted) or {}
    dims = [zip(v.dims, np.shape(feeds[v.name])) for v in required_inputs(model) if v.name in feeds]
    found = {dim: size for dim, size in itertools.chain(*dims) if isinstance(dim, str)}
    others = {name: size for name, size in found.items() if sizes.get(name, size) != size}
    tries = [{**sizes, name: size} for name, size in others.items()] + [{**sizes, **others}] * bool(others)
    # A recurrent state may have its batch on an axis that counts as a length: try 1 for one symbol, n for all others.
    tries += [{**sizes, **dict.fromkeys(free, n), name: 1} for n in LENGTHS_WITH_STATE for name in sorted(free)]
    return next((tried for tried in tries if is_accepted(normal_feeds(model, tried))), {**sizes, **others})
