"""`verify`: do two models compute the same?

Three parts: plan the probes (`inputs`), run both sides on them (`run`, `default_level`), judge what differs (`judge`)
by how far rounding alone moves the original (`honest`).
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from graphopt.checking.compare import Deviation, deviation
from graphopt.checking.coverage import is_real, not_covered, numbers_tried, sizes_tried
from graphopt.checking.declared import dtype_of, required_inputs, symbols
from graphopt.checking.default_level import run_optimized
from graphopt.checking.empty import NAME as EMPTY
from graphopt.checking.empty import empty_batch, is_as_declared
from graphopt.checking.given import given_cases
from graphopt.checking.halves import farthest, kept_in_half, values_in_half
from graphopt.checking.honest import Budget, HonestErrors
from graphopt.checking.inputs import Case, Wishes, masks_of, plan
from graphopt.checking.interface import fixed_sizes, interface_difference, without_overridable
from graphopt.checking.judge import NOISE, Finding, Judgement, Verdict, is_beyond_doubt, judge
from graphopt.checking.keyless import differing, only_where_hidden
from graphopt.checking.levels import Side, has_levels, levels_part
from graphopt.checking.rewritten import Rewritten, rewritten
from graphopt.checking.run import Model, Outputs, open_session, require_memory, run_case, run_cases
from graphopt.checking.tables import OtherRows, cases_that_read, other_rows
from graphopt.checking.unseen import unseen
from graphopt.checking.widened import agree_in_single
from graphopt.checking.winograd import approximated
from graphopt.contrib.group_query_attention import WINDOW_AS_DEFINED, has_window
from graphopt.errors import OptionError, VerifyError, about
from graphopt.graph import inference, reading, traversal, writing
from graphopt.graph.messages import bodies, inlined
from graphopt.graph.vocabulary import RANDOM
from graphopt.metadata import METADATA_FROZEN, Numerics
from graphopt.progress import Progress, Steps
from graphopt.runtime.sessions import CPU, import_onnxruntime, provider_name

Tolerance = float | Mapping[str, float]

# Random draws of rounding for each case, and for one that looks different: then twice as many, and again.
DRAWS, MOST_DRAWS = 1, 24
# Units by which what decides a step is moved where a case still looks different, and draws of each: one step of a
# quantized value, another choice of a TopK is an honest effect, however large.
STEP_UNITS, STEP_DRAWS = (16.0, 256.0), 4
# Where the budget ends before a case is decided, this many limits are no finding: the largest of few draws is too
# small a limit, and what is beyond ten honest errors is beyond this.
UNDECIDED = 2.0
# A difference of so many limits, of the output as a whole or after more draws, is no matter of luck.
BEYOND_LUCK, ENOUGH_DRAWS = 20.0, 6
# How often BEFORE runs again on a case that looks different.
SAME_RUNS = 3
# On so many cases quantized values in between are compared, where outputs look equal.
LEVELS_CASES = 3
# How many cases run at the runtime's default optimization level, the smallest of them.
DEFAULT_LEVEL_CASES = 3
# How many cases run with every number of float16 rounded to it, those with the largest inputs.
HALF_CASES = 2
# Their results may be others at every run.
MAY_BE_RANDOM = RANDOM | {"Dropout"}


@dataclass(frozen=True)
class Effort:
    """How much to try beyond one draw of the first few cases of each kind.

    Attributes:
        seconds: of all processors, about, for all runs of both models on further cases, and for more draws of cases
            that look different. The case that looks worst is decided whatever it takes.
        cases: the share of further cases.
        elements: of all inputs of a case together, at most.
    """

    seconds: float
    cases: float
    elements: int


EFFORTS = {
    "quick": Effort(2.0, 0.0, 1 << 22),
    "normal": Effort(5.0, 0.5, 1 << 24),
    "thorough": Effort(120.0, 0.75, 1 << 26),
}
# The share of the budget that is added to it for nodes of ours that could give zeros.
UNSEEN_SHARE = 0.2
# What a case costs beside a run of BEFORE: AFTER once or twice, and BEFORE rounding at random.
RUNS = 5.0


@dataclass(frozen=True)
class OutputComparison:
    """One output of one case, run in one way.

    Attributes:
        name, case: which output, under which inputs.
        library: whether AFTER ran with our kernels (False: its function bodies).
        provider: of the session that ran AFTER, its first.
        optimized: whether the runtime's own optimizations were on, as they are by default.
        max_abs: largest absolute difference.
        rel_rms: the same relative to the RMS of BEFORE's output.
        snr_db: signal to noise ratio; inf when bit-equal.
        cosine: of the two outputs as vectors; 0 when one of them is all zeros.
        limit: what rel_rms may be.
        equal: every slice is within its limit.
        reason: why not equal, or a remark.
        slice: the slice that comes closest to its limit or exceeds it most: "" for the whole, else like "[:, 3]".
        measure: of its error: "largest", or "rms" for the RMS of the error.
        slice_error: its error relative to its own RMS.
        slice_limit: what that may be.
        noise: how far rounding alone moves BEFORE there, relative to the same; None where that was not measured.
        unmeasured: it was asked for and could not be: a fixed limit stood in, and no slice was compared by itself.
    """

    name: str
    case: str
    library: bool
    provider: str
    optimized: bool
    max_abs: float
    rel_rms: float
    snr_db: float
    cosine: float
    limit: float
    equal: bool
    reason: str
    slice: str = ""
    measure: str = "largest"
    slice_error: float = 0.0
    slice_limit: float = 0.0
    noise: float | None = None
    unmeasured: bool = False

    @property
    def severity(self) -> float:
        """The error over its limit."""
        if self.slice_error == 0:
            return 0.0
        return self.slice_error / self.slice_limit if self.slice_limit else math.inf


@dataclass
class VerifyReport:
    """Whether two models compute the same, and the evidence. True where they do.

    Attributes:
        verdict: equal, different, or random where BEFORE differs from itself and nothing else was found.
        numerics: the class of the rewrites that AFTER went through.
        rows: one for each output, case and way of running AFTER.
        skipped: cases that BEFORE itself refuses, with the runtime's message.
        fixed: symbolic dimensions of BEFORE that are numbers in AFTER.
        random: outputs that differ from one run of BEFORE to the next; they are not compared.
        not_covered: what no input that was tried has put to the test, and outputs whose honest error could not be
            measured.
        notes: what else there is to know.
        summary: a sentence.
        feeds: the inputs on which the outputs differ most; empty where they do not. Not in the JSON.
    """

    verdict: Verdict = Verdict.EQUAL
    numerics: str = "exact"
    rows: list[OutputComparison] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    fixed: dict[str, int] = field(default_factory=dict)
    random: list[str] = field(default_factory=list)
    not_covered: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    summary: str = ""
    feeds: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def equal(self) -> bool:
        return self.verdict == Verdict.EQUAL

    def __bool__(self) -> bool:
        return self.equal

    def worst_outputs(self) -> list[OutputComparison]:
        """For each output its worst row: unequal ones first, then by difference relative to the limit."""
        worst: dict[str, OutputComparison] = {}
        for row in self.rows:
            if row.name not in worst or _severity(row) > _severity(worst[row.name]):
                worst[row.name] = row
        return list(worst.values())

    @property
    def worst(self) -> OutputComparison | None:
        """The row that is furthest beyond its limit or nearest to it; None where nothing was compared.

        Not the largest difference: where an output is nothing but rounding, that is large and says nothing.
        """
        return max(self.rows, key=_severity, default=None)

    def to_dict(self) -> dict[str, Any]:
        found = {"format": 2, "equal": self.equal, **asdict(replace(self, feeds={})), "verdict": self.verdict.value}
        del found["feeds"]
        return found

    def to_json(self) -> str:
        return json.dumps(_without_infinities(self.to_dict()), indent=2, allow_nan=False)


def _without_infinities(value: Any) -> Any:
    """JSON has no infinities: they become words."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {k: _without_infinities(v) for k, v in value.items()}
    return [_without_infinities(v) for v in value] if isinstance(value, list) else value


def _severity(row: OutputComparison) -> tuple[bool, float]:
    return not row.equal, row.severity


@dataclass(frozen=True)
class _Way:
    """A way to run AFTER; `in_half`: with every number of float16 rounded to it, as on a GPU (`halves`)."""

    library: bool
    provider: str = CPU
    optimized: bool = False
    in_half: bool = False


@dataclass(frozen=True, eq=False)
class _Run:
    """AFTER on one case in one way: how far each output is from BEFORE's, or the runtime's message."""

    way: _Way
    case: Case
    found: list[Deviation] | str


@dataclass
class _Pair:
    """Both models, and what decides how they are compared."""

    before: Model
    before_proto: onnx.ModelProto
    after: Model
    after_proto: onnx.ModelProto
    rewritten: Rewritten
    half_io: bool
    rtol: Tolerance | None
    atol: Tolerance | None
    reference: _Way
    notes: list[str]
    tables: list[OtherRows]
    halves: frozenset[str]
    # Seconds of all processors that a session of AFTER takes, and its quickest run.
    opening: float = 0.0
    running: float = math.inf

    @property
    def names(self) -> list[str]:
        return [o.name for o in self.before_proto.graph.output]

    @property
    def numerics(self) -> str:
        """The largest class of what was rewritten."""
        approximated = [Numerics.APPROXIMATE] if self.rewritten.approximated else []
        return max([*self.rewritten.classes.values(), *approximated], default=Numerics.EXACT).name.lower()

    @property
    def called(self) -> str:
        """BEFORE in a message: its file, if it is one."""
        return str(self.before) if isinstance(self.before, Path) else "BEFORE"


def verify(
    before: Any,
    after: Any,
    *,
    inputs: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    rtol: Tolerance | None = None,
    atol: Tolerance | None = None,
    seed: int = 0,
    probe_nan: bool = False,
    provider: str | None = None,
    effort: str = "normal",
    sizes: Mapping[str, Sequence[int]] | None = None,
    batch: Sequence[int] = (),
    ranges: Mapping[str, tuple[float, float]] | None = None,
    providers: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Runs two models on the same inputs, with all of the runtime's optimizations off, and compares every output.

    AFTER runs twice when it has nodes of ours: by its function bodies, and with the native library. With a provider it
    runs there as well; BEFORE always runs on the CPU. A few cases also run at the runtime's default optimization level,
    in a process of their own. Where BEFORE runs at that level alone, both run at it (a note says so).

    With two `providers` BEFORE runs on the first and AFTER (which may be the same model) on the second, and nothing
    else runs. On the CPU, nodes of ours then run by their function bodies.

    Args:
        before: the original, in any form that `optimize` takes.
        after: the rewritten model.
        inputs: a .npz file, a folder, or name -> array; None makes adversarial inputs from the model's own input types.
        rtol: limit of the largest difference relative to the RMS of the output, for all outputs or by name ("" for the
            others); None judges by how far rounding moves BEFORE itself, output by output and slice by slice.
        atol: a difference of no more than this is accepted as well.
        seed: of the inputs that are made.
        probe_nan: also tries inputs with NaN and infinities. A rewrite may spread them further than the original
            without being wrong about numbers: one NaN fills a whole tile of a Winograd convolution.
        provider: "rocm", "graphopt", ... or a full name: where AFTER is to run too.
        effort: "quick", "normal" or "thorough" (`EFFORTS`).
        sizes: symbolic dimension -> the sizes to try.
        batch: sizes to try for symbolic first axes.
        ranges: input -> the lowest and the highest number that it is given.
        providers: two of them, where BEFORE and where AFTER is to run.
        progress: called with a line when a step starts.

    Raises:
        OptionError: an unknown name, a range beyond an input's type, a provider that is not there, not two `providers`.
        ModelLoadError: a model cannot be read.
        VerifyError: they could not be compared: the runtime refuses a model, or every case.
        MemoryError: AFTER needs more than this machine has.
        RuntimeMissingError: no ONNX Runtime, or no native library.
    """
    device = provider_name(provider) if provider is not None else CPU
    two = _two_ways(providers, provider)
    pair = _paired(before, after, rtol, atol, two)
    if isinstance(pair, str):
        return VerifyReport(Verdict.DIFFERENT, summary=pair)
    report = VerifyReport(numerics=pair.numerics, fixed=fixed_sizes(pair.before_proto, pair.after_proto))
    report.notes += pair.notes
    wishes = _wishes(pair.before_proto, Wishes(seed, report.fixed, sizes or {}, batch, ranges or {}, probe_nan), effort)
    budget = Budget(EFFORTS[effort].seconds)
    ways = two[1:] or _ways_on_one(pair, device)
    steps = Steps(progress, _steps(ways, at_default_level=not two))
    steps.begin()
    wanted, cases = _run_before(pair, report, inputs, wishes, budget, EFFORTS[effort].cases)
    at_default_level = pair.reference.optimized
    honest = HonestErrors(pair.before, pair.before_proto, wanted, pair.rewritten, pair.half_io, at_default_level)
    runs = _run_every_way(pair, [replace(w, optimized=at_default_level) for w in ways], cases, wanted, steps)
    empty = empty_batch(pair.before_proto, cases[0], wishes) if inputs is None else None
    if not two:
        steps.begin()
    wrong = [] if two or at_default_level else _run_beside(pair, cases, wanted, report, empty, runs)
    steps.begin()
    _judge(pair, runs, honest, report, budget)
    steps.begin()
    report.not_covered += _unmeasured(pair, report, honest) + not_covered(pair.before, pair.before_proto, cases, wanted)
    more = _with_rows(report, wrong, empty)
    if not two and all(row.equal for row in report.rows):
        report.not_covered += _unseen(pair, cases, wanted, honest, report, EFFORTS[effort])
    _conclude(pair, report, [*cases, *more], wanted)
    return report


def _ways_on_one(pair: _Pair, device: str) -> list[_Way]:
    """How AFTER runs beside BEFORE on the CPU: by its bodies, by the native library, and on another provider."""
    ways = [_Way(False), *([_Way(True)] if pair.rewritten.has_ours else [])]
    return ways + ([_Way(True, device)] if device != CPU else [])


def _two_ways(providers: Sequence[str] | None, provider: str | None) -> list[_Way]:
    """How BEFORE and AFTER run on two providers; empty where that is not the question."""
    if providers is None:
        return []
    if len(providers) != 2 or isinstance(providers, str):
        raise OptionError(f"two providers are compared, not {len(providers)}: name BEFORE's and AFTER's")
    if provider is not None:
        raise OptionError("provider says where AFTER runs too, providers where each of them runs: give one of the two")
    return [_Way(name != CPU, name) for name in map(provider_name, providers)]


# -- planning ------------------------------------------------------------------------------------------------------


def _paired(
    before: Any, after: Any, rtol: Tolerance | None, atol: Tolerance | None, two: Sequence[_Way]
) -> _Pair | str:
    """Both models, read; or in what their interfaces contradict each other.

    Raises:
        OptionError: a tolerance of an output that is not there.
        ModelLoadError: a model cannot be read.
    """
    before_model, before_proto, before_ir = _runnable(before)
    after_model, after_proto, after_ir = _runnable(after)
    if any(p.key == METADATA_FROZEN for p in after_proto.metadata_props):
        before_proto = without_overridable(before_proto)
    names = [o.name for o in before_proto.graph.output]
    for tolerance in (rtol, atol):
        unknown = set(tolerance) - {"", *names} if isinstance(tolerance, Mapping) else set()
        if unknown:
            raise OptionError(f"there is no output '{min(unknown)}'; the outputs are {', '.join(names)}")
    half_io = _interface_in_half(before_proto, after_proto)
    if contradiction := interface_difference(before_proto, after_proto, half_io=half_io):
        return contradiction
    inference.infer(before_ir)
    inference.infer(after_ir)
    change = rewritten(before_ir, after_ir)
    if two:  # another provider adds in an order of its own, also where nothing was rewritten
        change = replace(change, classes={n: max(c, Numerics.REASSOCIATED) for n, c in change.classes.items()})
    reference = two[0] if two else _Way(False)
    notes = _windows(before_ir, after_ir)
    before_folder, after_folder = (m.parent if isinstance(m, Path) else None for m in (before_model, after_model))
    tables = other_rows(before_proto, after_proto, (before_folder, after_folder))
    sides = before_model, before_proto, after_model, after_proto
    # Where BEFORE has such numbers, too, its own run on the CPU is no reference for AFTER's rounding.
    halves = values_in_half(after_ir) if not values_in_half(before_ir) else frozenset[str]()
    return _Pair(*sides, change, half_io, rtol, atol, reference, notes, tables, halves)


def _steps(ways: Sequence[_Way], *, at_default_level: bool) -> list[tuple[str, float]]:
    """What is done, one behind the other, and about how long each takes."""
    return [
        ("BEFORE runs", 2),
        *((f"AFTER runs{' with the library' if way.library else ''}", 1.0) for way in ways),
        *([("AFTER runs with the runtime's optimizations", 1.0)] if at_default_level else []),
        ("BEFORE runs with its rounding at random", RUNS),
        ("looking for what no input showed", 1),
    ]


def _wishes(model: onnx.ModelProto, asked: Wishes, effort: str) -> Wishes:
    """What is asked of the inputs of BEFORE, with as many elements as the effort allows."""
    if effort not in EFFORTS:
        raise OptionError(f"there is no effort '{effort}'; choose one of {', '.join(EFFORTS)}")
    for what, named, known in (
        ("symbolic dimension", asked.sizes, list(symbols(model))),
        ("input", asked.ranges, [v.name for v in required_inputs(model)]),
    ):
        unknown = set(named) - set(known)
        if unknown:
            raise OptionError(f"there is no {what} '{min(unknown)}'; there are {', '.join(known) or 'none'}")
    _require_numbers({v.name: v for v in required_inputs(model)}, asked.ranges)
    return replace(asked, elements=EFFORTS[effort].elements)


def _require_numbers(inputs: Mapping[str, onnx.ValueInfoProto], ranges: Mapping[str, tuple[float, float]]) -> None:
    """Refuses ranges of which an input's type holds no numbers.

    Raises:
        OptionError: an end is not finite or beyond the type, or the lowest number is above the highest.
        VerifyError: an input is no tensor.
    """
    for name, (low, high) in ranges.items():
        dtype = dtype_of(inputs[name])
        if not -math.inf < low <= high < math.inf:
            raise OptionError(f"the range of '{name}' is {low} to {high}: it wants two finite numbers, the lower first")
        if dtype.kind in "iu":
            holds = np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max
        else:
            with np.errstate(over="ignore"):
                holds = bool(np.isfinite(np.array([low, high]).astype(dtype).astype(np.float64)).all())
        if not holds:
            raise OptionError(f"the range of '{name}' is {low:g} to {high:g}, which {dtype} does not hold")


def _runnable(model: Any) -> tuple[Path | onnx.ModelProto, onnx.ModelProto, ir.Model]:
    """(what a session loads, the message without external data, the IR).

    Raises:
        VerifyError: weights of a model in memory lie in files, and do not fit into a message.
    """
    source = reading.load(model)
    if source.path is not None:
        return source.path, source.proto or reading.read_proto(source.path), source.model
    outside = sum(tensor.nbytes for tensor in traversal.external_tensors(traversal.graphs(source.model)))
    if outside > writing.MAX_EMBEDDED_BYTES:
        raise VerifyError(f"the model in memory has {outside >> 20} MiB of weights in files: write it to a file first")
    if outside:  # a session of a message would look for them in the current folder
        ir.external_data.load_to_model(source.model)
    elif isinstance(model, onnx.ModelProto):
        return model, model, source.model
    proto = ir.serde.serialize_model(source.model)
    return proto, proto, source.model


def _interface_in_half(before: onnx.ModelProto, after: onnx.ModelProto) -> bool:
    """Whether every float32 input and output of BEFORE is float16 in AFTER, as `keep_io=False` makes them."""
    overridable = {t.name for t in before.graph.initializer}
    pairs = zip((*before.graph.input, *before.graph.output), (*after.graph.input, *after.graph.output))
    types = [
        (a.type.tensor_type.elem_type, b.type.tensor_type.elem_type) for a, b in pairs if a.name not in overridable
    ]
    floats = [b for a, b in types if a == onnx.TensorProto.FLOAT]
    return bool(floats) and all(b == onnx.TensorProto.FLOAT16 for b in floats)


# -- running -------------------------------------------------------------------------------------------------------


def _run_before(
    pair: _Pair, report: VerifyReport, inputs: Any, wishes: Wishes, budget: Budget, share: float
) -> tuple[dict[str, Outputs], list[Case]]:
    """BEFORE's outputs, and the cases that it takes.

    Some models hold nodes that no kernel takes, and that the runtime's own optimizations remove: they run with these.
    """
    try:
        return _tried(pair, report, inputs, wishes, budget, share)
    except VerifyError as refused:
        report.skipped.clear()
        pair.reference = replace(pair.reference, optimized=True)
        try:
            found = _tried(pair, report, inputs, wishes, budget, share)
        except VerifyError:
            raise refused from None
    report.notes.append("BEFORE runs at the runtime's default optimization level alone: both were compared there")
    return found


def _runs_before(pair: _Pair) -> Callable[[Case], Outputs | str]:
    """Runs BEFORE on a case; with the runtime's optimizations in a process of its own.

    Raises:
        VerifyError: the runtime refuses the model.
    """
    library, provider = pair.reference.library, pair.reference.provider
    if pair.reference.optimized and provider == CPU:
        return lambda case: run_optimized(pair.before, [case], library=library)[case.name]
    return partial(
        run_case, open_session(pair.before, library=library, provider=provider, optimized=pair.reference.optimized)
    )


def _tried(
    pair: _Pair, report: VerifyReport, inputs: Any, wishes: Wishes, budget: Budget, share: float
) -> tuple[dict[str, Outputs], list[Case]]:
    """BEFORE's outputs, and the cases that it takes; notes outputs that a second run changes."""
    run = _runs_before(pair)
    wanted: dict[str, Outputs] = {}
    cases: list[Case] = []
    random: set[str] = set()
    repeat = math.inf if _has_random_operators(pair.before_proto) else 1
    spent, paid = 0.0, math.inf

    def accepts(case: Case) -> bool:
        nonlocal spent
        began = time.process_time()
        outputs = run(case)
        spent += time.process_time() - began
        if isinstance(outputs, str):
            report.skipped[case.name] = outputs
            return False
        report.skipped.pop(case.name, None)
        wanted[case.name] = outputs
        cases.append(case)
        if len(cases) <= repeat:
            again = run(case)
            if not isinstance(again, str):
                found = (deviation(a, b) for a, b in zip(outputs, again))
                random.update(name for name, d in zip(pair.names, found) if d.structure or d.max_abs)
        return True

    def exhausted(next_one: float) -> bool:
        nonlocal paid
        paid = min(paid, spent)
        budget.spent = (spent - paid) * RUNS
        return budget.spent + next_one * RUNS >= budget.seconds * share

    if inputs is not None:
        for case in given_cases(inputs, pair.before_proto):
            accepts(case)
    else:
        with about(pair.called):
            before, after = inlined(pair.before_proto), pair.after_proto
            plan(before, wishes, accepts, exhausted, lambda case: _has_numbers(wanted[case]), after)
        for case in [*cases_that_read(pair.tables, cases)]:
            accepts(case)
    if not wanted:
        tried = "that were made up: {}; give some that it takes with --inputs" if inputs is None else "given: {}"
        raise VerifyError(
            f"{pair.called} runs on none of the inputs {tried.format(next(iter(report.skipped.values())))}"
        )
    report.random = [name for name in pair.names if name in random]
    if inputs is None:
        report.notes += sizes_tried(pair.before_proto, cases) + numbers_tried(pair.before_proto, cases)
    return wanted, cases


def _has_numbers(outputs: Outputs) -> bool:
    """Whether each floating point output has a finite number."""
    arrays = (o for o in outputs if isinstance(o, np.ndarray) and o.size)
    return all(np.isfinite(a).any() for a in arrays if is_real(a))


def _has_random_operators(model: onnx.ModelProto) -> bool:
    waiting = [model.graph.node, *(f.node for f in model.functions)]
    while waiting:
        for node in waiting.pop():
            if node.op_type in MAY_BE_RANDOM:
                return True
            waiting += [body.node for body in bodies(node)]
    return False


def _run_every_way(
    pair: _Pair, ways: Sequence[_Way], cases: Sequence[Case], wanted: Mapping[str, Outputs], steps: Steps
) -> list[_Run]:
    runs = []
    for way in ways:
        steps.begin(f"on {len(cases)} sets of inputs")
        runs += _run_after(pair, way, cases, wanted)
    return runs


def _run_after(pair: _Pair, way: _Way, cases: Sequence[Case], wanted: Mapping[str, Outputs]) -> list[_Run]:
    if way.optimized and way.provider == CPU:
        got = _optimized(pair, way, cases)
        return [_Run(way, case, _compared(wanted[case.name], got[case.name])) for case in cases]
    began = time.process_time()
    session = open_session(pair.after, library=way.library, provider=way.provider, optimized=way.optimized)
    pair.opening = time.process_time() - began
    runs = []
    for case in cases:
        began = time.process_time()
        result = run_case(session, case, half_io=pair.half_io)
        require_memory(result)
        pair.running = min(pair.running, time.process_time() - began)
        runs.append(_Run(way, case, _compared(wanted[case.name], result)))
    return runs


def _optimized(pair: _Pair, way: _Way, cases: Sequence[Case]) -> dict[str, Outputs | str]:
    """AFTER with the runtime's optimizations."""
    got = run_optimized(pair.after, cases, library=way.library, half_io=pair.half_io)
    for outputs in got.values():
        require_memory(outputs)
    return got


def _compared(want: Outputs, got: Outputs | str) -> list[Deviation] | str:
    return got if isinstance(got, str) else [deviation(w, g) for w, g in zip(want, got)]


def _run_beside(
    pair: _Pair,
    cases: Sequence[Case],
    wanted: Mapping[str, Outputs],
    report: VerifyReport,
    empty: Case | None,
    runs: list[_Run],
) -> list[OutputComparison]:
    """Appends runs at the default level and in half precision; rows of what is wrong with an empty batch."""
    more, wrong = _run_at_default_level(pair, cases, wanted, report, empty)
    runs += more + _run_in_half(pair, cases, wanted)
    return wrong


def _with_rows(report: VerifyReport, wrong: Sequence[OutputComparison], empty: Case | None) -> list[Case]:
    """Adds rows of an empty batch to the others; it, if there are any."""
    if not wrong or empty is None:
        return []
    if all(row.equal for row in report.rows):
        report.notes.append("the outputs differ on an empty batch alone, which --batch with other sizes leaves out")
    report.rows += wrong
    return [empty]


def _run_in_half(pair: _Pair, cases: Sequence[Case], wanted: Mapping[str, Outputs]) -> list[_Run]:
    """A few cases with every number of float16 rounded to it."""
    if not pair.halves or Numerics.FP16 not in pair.rewritten.classes.values():
        return []
    folder = pair.after.parent if isinstance(pair.after, Path) else None
    model = kept_in_half(pair.after_proto, pair.halves)
    try:
        session = open_session(model, library=False, folder=folder)
    except VerifyError:  # larger than a message may be
        return []
    runs = []
    for case in farthest(cases, HALF_CASES):
        got = run_case(session, case, half_io=pair.half_io)
        runs.append(_Run(_Way(False, in_half=True), case, _compared(wanted[case.name], got)))
    return runs


def _run_at_default_level(
    pair: _Pair, cases: Sequence[Case], wanted: Mapping[str, Outputs], report: VerifyReport, empty: Case | None
) -> tuple[list[_Run], list[OutputComparison]]:
    """A few cases as users run them, and rows of what is wrong with an empty batch.

    What the runtime's optimizations do to BEFORE as well is not AFTER's fault.
    """
    few = sorted(cases, key=lambda case: sum(getattr(a, "size", 1) for a in case.feeds.values()))[:DEFAULT_LEVEL_CASES]
    way = _Way(pair.rewritten.has_ours, optimized=True)
    got = _optimized(pair, way, [*few, *([empty] if empty is not None else [])])
    runs = [_Run(way, case, _compared(wanted[case.name], got[case.name])) for case in few]
    wrong = (
        [] if empty is None else _wrong_on_empty(pair, _Run(way, empty, ""), wanted[cases[0].name], got[EMPTY], report)
    )
    return _without_what_both_do(pair, runs, few, wanted, report), wrong


def _wrong_on_empty(
    pair: _Pair, run: _Run, usual: Outputs, got: Outputs | str, report: VerifyReport
) -> list[OutputComparison]:
    """A row for each output that has another size on an empty batch; where AFTER does not take one, it is not covered.

    Two exports of one module differ in what they refuse, so that alone is no finding.

    Args:
        pair: the models.
        run: AFTER's, whose outputs are yet to be judged.
        usual: BEFORE's on another batch.
        got: AFTER's.
        report: is told what is not covered.
    """
    if not isinstance(got, str) and is_as_declared(pair.before_proto.graph.output, usual, got):
        return []
    want = run_optimized(pair.before, [run.case], library=False)[EMPTY]
    if isinstance(want, str):
        return []
    way = (run.way.library, run.way.provider, run.way.optimized)
    if isinstance(got, str):
        report.not_covered.append(f"an empty batch was not compared: BEFORE takes it, and AFTER does not: {got}")
        return []
    # Sizes alone: where nothing is read, some kernels of the runtime leave what they make as it was in memory.
    found = zip(pair.names, (deviation(w, g).structure for w, g in zip(want, got)))
    return [_broken(name, EMPTY, way, words) for name, words in found if words.startswith(("shape", "type"))]


def _without_what_both_do(
    pair: _Pair, runs: list[_Run], few: Sequence[Case], wanted: Mapping[str, Outputs], report: VerifyReport
) -> list[_Run]:
    """The runs but those of cases on which BEFORE breaks at this level, too."""
    broken = [r for r in runs if isinstance(r.found, str) or any(_is_far(d) for d in r.found)]
    if not broken:
        return runs
    original = run_optimized(pair.before, few, library=False)
    kept = []
    for run in runs:
        found = _compared(wanted[run.case.name], original[run.case.name])
        if run in broken and (isinstance(found, str) or any(_is_far(d) for d in found)):
            report.notes.append(_at_default_level(run.case, found if isinstance(found, str) else "its outputs change"))
        else:
            kept.append(run)
    return kept


def _at_default_level(case: Case, what: str) -> str:
    return f"BEFORE at the runtime's default optimization level, on '{case.name}': {what}"


def _windows(before: ir.Model, after: ir.Model) -> list[str]:
    """What is to be known where one side has windows of attention that this runtime computes in another way."""
    counts = [sum(has_window(node) for graph in traversal.graphs(m) for node in graph) for m in (before, after)]
    version = import_onnxruntime().__version__
    if counts[0] == counts[1] or tuple(int(n) for n in version.split(".")[:2]) >= WINDOW_AS_DEFINED:
        return []
    return [
        f"GroupQueryAttention with local_window_size n sees n keys in onnxruntime 1.31 and n + 1 in 1.22; this is "
        f"{version}, and BEFORE has {counts[0]} of them where AFTER has {counts[1]}: they may differ by that key"
    ]


def _is_far(found: Deviation) -> bool:
    return bool(found.structure) or found.relative > 1e-3


# -- judging -------------------------------------------------------------------------------------------------------


def _approximation(pair: _Pair, cases: Sequence[Case]) -> dict[str, list[Deviation]]:
    """By case: how far another honest implementation of what our kernels approximate is from the function bodies."""
    if not cases:
        return {}
    after = pair.after_proto if isinstance(pair.after, onnx.ModelProto) else onnx.load(pair.after)
    other = approximated(after)
    optimized = pair.reference.optimized
    bodies = run_cases(pair.after, cases, library=False, optimized=optimized)
    try:
        results = run_cases(other, cases, library=False, optimized=optimized)
    except VerifyError:
        return {}
    found = {}
    for name, got in results.items():
        want = bodies[name]
        compared = got if isinstance(want, str) else _compared(want, got)
        if not isinstance(compared, str):
            found[name] = compared
    return found


def _has_kernels(pair: _Pair, run: _Run) -> bool:
    """Whether kernels of ours may have computed one side."""
    return run.way.library or pair.reference.library


@dataclass
class _Measure:
    """What rows are judged by: it grows while cases that look different are measured again.

    Attributes:
        compared: outputs that BEFORE does not make at random.
        classes: class -> the compared outputs of it that honest errors judge, by number.
        approximation: by case; see `_approximation`.
        overflown: (case, output, whether AFTER ran in half) where BEFORE leaves that range, too.
        allowed: by case, how many limits are no finding.
        unsteady: (case, output) where BEFORE differs from itself.
    """

    pair: _Pair
    honest: HonestErrors
    compared: list[str]
    classes: dict[Numerics, list[int]] = field(default_factory=dict)
    approximation: dict[str, list[Deviation]] = field(default_factory=dict)
    overflown: set[tuple[str, str, bool]] = field(default_factory=set)
    allowed: dict[str, float] = field(default_factory=dict)
    unsteady: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        for name in self.compared:
            numerics = self.pair.rewritten.classes[name]
            if numerics != Numerics.EXACT and _for_output(self.pair.rtol, name) is None:
                self.classes.setdefault(numerics, []).append(self.pair.names.index(name))

    def draw(self, runs: Sequence[_Run]) -> None:
        """Lets rounding move BEFORE where a class of outputs leaves a doubt."""
        for numerics, outputs in self.classes.items():
            doubtful = {
                r.case.name: r.case
                for r in runs
                if not isinstance(r.found, str) and any(not is_beyond_doubt(r.found[i]) for i in outputs)
            }
            self.honest.measure(numerics, doubtful.values(), DRAWS)

    def rows_of(self, run: _Run) -> list[OutputComparison]:
        rows = (r for r in self._measured(run) if (r.case, r.name) not in self.unsteady)
        return [self._forgiven(r, in_half=run.way.in_half) for r in rows]

    def _measured(self, run: _Run) -> list[OutputComparison]:
        return _rows(self.pair, run, self.honest, self.approximation.get(run.case.name), self.compared)

    def _forgiven(self, row: OutputComparison, *, in_half: bool) -> OutputComparison:
        if (row.case, row.name, in_half) in self.overflown:
            row = replace(row, equal=True, reason=NOISE, slice_error=0.0)
        return replace(row, equal=True, reason=NOISE) if 1 < row.severity <= self.allowed.get(row.case, 1.0) else row


Rows = dict[_Run, list[OutputComparison]]


def _judge(
    pair: _Pair,
    runs: Sequence[_Run],
    honest: HonestErrors,
    report: VerifyReport,
    budget: Budget,
) -> None:
    """Appends the rows."""
    measure = _Measure(pair, honest, [name for name in pair.names if name not in report.random])
    measure.draw(runs)
    rows = {run: measure.rows_of(run) for run in runs}
    # Most models stay within what rounding does even with kernels that approximate.
    if pair.rewritten.approximated:
        beyond = [r for r in runs if _has_kernels(pair, r) and not all(row.equal for row in rows[r])]
        measure.approximation |= _approximation(pair, list({r.case.name: r.case for r in beyond}.values()))
        rows |= {run: measure.rows_of(run) for run in beyond}
    runs = _without_what_befalls_before(measure, runs, rows, report)
    _measure_again(measure, runs, rows, budget)
    report.random += [name for name in measure.compared if any(name == output for _, output in measure.unsteady)]
    if all(row.equal for run in runs for row in rows[run]):
        _compare_levels(pair, runs, rows, budget)
    for run in runs:
        report.rows += rows[run]
    for name in sorted({output for _, output, in_half in measure.overflown if in_half}):
        case = next(case for case, output, in_half in measure.overflown if in_half and output == name)
        report.notes.append(
            f"on '{case}' numbers behind output '{name}' are beyond float16, BEFORE's in that precision, too: a GPU "
            "makes infinities of them, and the CPU's runtime, which casts between nodes, does not"
        )


def _without_what_befalls_before(
    measure: _Measure, runs: Sequence[_Run], rows: Rows, report: VerifyReport
) -> Sequence[_Run]:
    """The runs but those in which the runtime's own optimizations take BEFORE as far from itself as AFTER.

    Up to 1.31 its fusion of a LayerNormalization, for one, takes 1e-5 for an epsilon that is the first operand of its
    sum.
    """
    bad = [run for run in runs if run.way.optimized and not all(row.equal for row in rows[run])]
    if not bad:
        return runs
    original = run_optimized(measure.pair.before, [run.case for run in bad], library=False)
    dropped = set()
    for run in bad:
        itself = replace(run, found=_compared(measure.honest.wanted[run.case.name], original[run.case.name]))
        moved = {row.name: row for row in measure.rows_of(itself)}
        pairs = [(row, moved.get(row.name)) for row in rows[run] if not row.equal]
        if all(b is not None and not b.equal and row.severity <= b.severity + 1 for row, b in pairs):
            dropped.add(run)
            report.notes.append(_at_default_level(run.case, "its outputs change"))
    return [run for run in runs if run not in dropped]


def _measure_again(measure: _Measure, runs: Sequence[_Run], rows: Rows, budget: Budget) -> None:
    """Cases that look different are measured again, the worst first, until one stays so."""
    worst = sorted(runs, key=lambda run: max((r.severity for r in rows[run] if not r.equal), default=0.0))
    again: set[str] = set()
    for run in reversed(worst):
        if run.case.name in again:
            rows[run] = measure.rows_of(run)
        bad = [r for r in rows[run] if not r.equal]
        if not bad:
            continue
        beyond_luck = any(math.isfinite(r.rel_rms) and r.rel_rms > BEYOND_LUCK * r.limit for r in bad)
        if beyond_luck and not measure.honest.has_choices and not run.way.in_half:
            if _is_steady(measure, run, runs, rows):
                break
            continue
        measure.overflown |= _overflown(measure.pair, run, measure.honest, bad)
        decided = _drawn_again(run, measure, budget if again else None)
        again.add(run.case.name)
        measure.allowed[run.case.name] = 1.0 if decided else UNDECIDED
        rows[run] = measure.rows_of(run)
        if any(not r.equal for r in rows[run]) and _is_steady(measure, run, runs, rows):
            break
    measured = again | {case for case, _ in measure.unsteady}
    for run in runs:
        if run.case.name in measured:
            rows[run] = measure.rows_of(run)


def _is_steady(measure: _Measure, run: _Run, runs: Sequence[_Run], rows: Rows) -> bool:
    """Whether what looks different does so without what BEFORE makes another way each time."""
    measure.unsteady |= _unsteady(measure, run, runs)
    rows[run] = measure.rows_of(run)
    return any(not r.equal for r in rows[run])


def _unsteady(measure: _Measure, run: _Run, runs: Sequence[_Run]) -> set[tuple[str, str]]:
    """(case, output) where BEFORE itself looks different from one run to the next: of memory that nobody wrote to."""
    reference, before = measure.pair.reference, _runs_before(measure.pair)
    others = list({r.case.name: r.case for r in runs if r.case is not run.case}.values())
    found = set()
    for turn in range(SAME_RUNS):
        # What another case left in memory.
        for other in others[turn : turn + 1]:
            before(other)
        itself = _Run(reference, run.case, _compared(measure.honest.wanted[run.case.name], before(run.case)))
        found |= {(row.case, row.name) for row in measure.rows_of(itself) if not row.equal}
    return found


def _compare_levels(pair: _Pair, runs: Sequence[_Run], rows: Rows, budget: Budget) -> None:
    """Looks at quantized values in between, on cases whose outputs differ and look equal, the worst first."""
    single = max(pair.rewritten.classes.values(), default=Numerics.EXACT) <= Numerics.APPROXIMATE
    if not single or not has_levels(pair.before_proto):
        return
    moved = [run for run in runs if not run.way.optimized and any(row.max_abs for row in rows[run])]
    moved.sort(key=lambda run: max(row.severity for row in rows[run]), reverse=True)
    for tried, run in enumerate(moved[:LEVELS_CASES]):
        if tried and budget.is_spent:
            return
        began = time.process_time()
        before = Side(pair.before, pair.before_proto, pair.reference.library, pair.reference.provider)
        after = Side(pair.after, pair.after_proto, run.way.library, run.way.provider)
        why = levels_part(before, after, run.case)
        budget.spent += time.process_time() - began
        if why:
            worst = max(rows[run], key=lambda row: row.severity)
            rows[run] = [replace(r, equal=False, reason=why) if r is worst else r for r in rows[run]]
            return


def _drawn_again(run: _Run, measure: _Measure, budget: Budget | None) -> bool:
    """Draws until the case no longer looks different, or surely is; False where the budget ends before."""
    classes, honest, rows_of = measure.classes, measure.honest, measure.rows_of

    def spend(draws: int, steps: float = 1.0) -> None:
        for numerics in classes:
            seconds = honest.measure(numerics, [run.case], draws, steps)
            if budget is not None:
                budget.spent += seconds

    while True:
        drawn = max((honest.drawn(numerics, run.case) for numerics in classes), default=MOST_DRAWS)
        bad = [r for r in rows_of(run) if not r.equal]
        if bad and drawn >= ENOUGH_DRAWS:
            for numerics in classes:
                honest.measure_fixed(numerics, run.case)
            bad = [r for r in rows_of(run) if not r.equal]
        # A choice that no draw made has no limit to be beyond.
        surely = all(BEYOND_LUCK < r.severity < math.inf and math.isfinite(r.rel_rms) for r in bad)
        if not bad or drawn >= MOST_DRAWS or (surely and drawn >= ENOUGH_DRAWS):
            break
        if budget is not None and budget.is_spent:
            return False
        spend(min(max(1, drawn), MOST_DRAWS - drawn))
    for units in STEP_UNITS if bad and classes and honest.has_steps else ():
        if budget is not None and budget.is_spent:
            return False
        spend(STEP_DRAWS, units)
        if all(r.equal for r in rows_of(run)):
            break
    return True


def _overflown(
    pair: _Pair, run: _Run, honest: HonestErrors, rows: Sequence[OutputComparison]
) -> set[tuple[str, str, bool]]:
    """(case, output, whether AFTER ran in half) where one side leaves the range of half precision.

    AFTER may where BEFORE would have some, too, in AFTER's precision. Where BEFORE has them itself, AFTER may have the
    numbers that BEFORE gives in float32.
    """
    found = set()
    single: list[bool] | None = None
    for row in rows:
        numerics, place = pair.rewritten.classes[row.name], pair.names.index(row.name)
        infinite = isinstance(run.found, list) and run.found[place].structure.startswith(("NaN", "infinities"))
        if not (infinite or run.way.in_half) or numerics not in (Numerics.FP16, Numerics.BF16):
            continue
        moved = honest.overflows(numerics, run.case)
        beyond = [bool(d.structure) or (not infinite and d.relative > row.limit) for d in moved]
        want = honest.wanted[row.case][place]
        if not (beyond and beyond[place]) and isinstance(want, np.ndarray) and not np.isfinite(want).all():
            if single is None:
                way = run.way
                session = open_session(pair.after, library=way.library, provider=way.provider, optimized=way.optimized)
                got = run_case(session, run.case, half_io=pair.half_io)
                single = [] if isinstance(got, str) else agree_in_single(honest.whole, run.case, got)
            beyond = single
        if beyond and beyond[place]:
            found.add((row.case, row.name, run.way.in_half))
    return found


def _rows(
    pair: _Pair, run: _Run, honest: HonestErrors, approximation: list[Deviation] | None, compared: Sequence[str]
) -> list[OutputComparison]:
    way, case = (run.way.library, run.way.provider, run.way.optimized), run.case.name
    if isinstance(run.found, str):
        return [_broken(pair.names[0], case, way, f"AFTER cannot run: {run.found}")]
    rows = []
    for i, name in enumerate(pair.names):
        if name not in compared:
            continue
        found = run.found[i]
        numerics = pair.rewritten.classes[name]
        if run.way.provider != CPU or run.way.optimized:
            numerics = max(numerics, Numerics.REASSOCIATED)  # sums in an order of its own, also where nothing changed
        approximates = name in pair.rewritten.approximated and _has_kernels(pair, run)
        other = approximation[i] if approximation and approximates else None
        if approximates:
            numerics = max(numerics, Numerics.APPROXIMATE)
        own_limit = _for_output(pair.rtol, name)
        accepted = _for_output(pair.atol, name) or 0.0
        if own_limit is not None:
            equal = not found.structure and (found.relative <= own_limit or found.max_abs <= accepted)
            finding = Finding.EQUAL if equal else Finding.DIFFERENT
            judged = Judgement(finding, found.structure or ("" if equal else "differs"), found.relative, own_limit)
        else:
            own = pair.rewritten.classes[name]
            judged = judge(
                found, numerics, honest.of(own, case, i), other, honest.shares(own, i), honest.fixed_of(own, case, i)
            )
            if judged.finding == Finding.DIFFERENT and run.way.in_half:
                judged = replace(judged, reason=f"{judged.reason}, with every number of float16 rounded to it")
            if judged.finding == Finding.DIFFERENT and not found.structure and found.max_abs <= accepted:
                judged = Judgement(Finding.EQUAL, "", judged.error, judged.limit, judged.honest)
        numbers = (found.max_abs, math.inf if found.structure else found.relative, found.snr_db, found.cosine)
        rows.append(
            OutputComparison(
                name,
                case,
                *way,
                *numbers,
                judged.whole_limit if own_limit is None else own_limit,
                judged.finding != Finding.DIFFERENT,
                judged.reason,
                judged.where,
                judged.measure,
                judged.error,
                judged.limit,
                None if math.isnan(judged.honest) else judged.honest,
                judged.unmeasured,
            )
        )
    return rows


def _broken(name: str, case: str, way: tuple[bool, str, bool], reason: str) -> OutputComparison:
    """A row of what no numbers say."""
    nothing = (math.inf, math.inf, -math.inf, 0.0, 0.0)
    return OutputComparison(name, case, *way, *nothing, False, reason, slice_error=math.inf)


def _for_output(tolerance: Tolerance | None, name: str) -> float | None:
    if isinstance(tolerance, Mapping):
        return tolerance.get(name, tolerance.get(""))
    return tolerance


def _unmeasured(pair: _Pair, report: VerifyReport, honest: HonestErrors) -> list[str]:
    """A sentence for each output that a fixed limit judged, since nothing says how far rounding moves it."""
    said = []
    for name in pair.names:
        limits = {row.case: row.limit for row in report.rows if row.name == name and row.unmeasured}
        if limits:
            tried = len({row.case for row in report.rows})
            some = f"{len(limits)} of {tried} inputs" if len(limits) < tried else "every input tried"
            why = honest.why_not(pair.rewritten.classes[name], next(iter(limits)))
            said.append(
                f"how far rounding moves output '{name}' could not be measured on {some} ({why}): a fixed limit stands "
                f"in, {max(limits.values()):.0e} of its RMS, and none of its slices was compared by itself"
            )
    return said


def _unseen(
    pair: _Pair,
    cases: Sequence[Case],
    wanted: Mapping[str, Outputs],
    honest: HonestErrors,
    report: VerifyReport,
    effort: Effort,
) -> list[str]:
    """Nodes of ours that could give zeros, and tables that could hold others, without any row that says so."""
    compared = [name for name in pair.names if name not in report.random]

    def moves(case: Case, outputs: Outputs) -> bool:
        run = _Run(_Way(False), case, _compared(wanted[case.name], outputs))
        return not all(row.equal for row in _rows(pair, run, honest, None, compared))

    part = Budget(effort.seconds * UNSEEN_SHARE, spent=2 * pair.opening)
    tables = [str(table) for table in pair.tables if not table.input]
    return unseen(pair.after, pair.after_proto, cases, moves, part, pair.running) + tables


# -- concluding ----------------------------------------------------------------------------------------------------


def _conclude(pair: _Pair, report: VerifyReport, cases: Sequence[Case], wanted: Mapping[str, Outputs]) -> None:
    if not all(row.equal for row in report.rows):
        report.verdict = Verdict.DIFFERENT
    elif report.random:
        report.verdict = Verdict.RANDOM
    if report.verdict == Verdict.DIFFERENT:
        report.notes += _where_hidden(pair, report, cases, wanted)
    report.summary = _summary(report, len(cases)) + ("; AFTER's interface is float16" if pair.half_io else "")
    if report.verdict == Verdict.DIFFERENT:
        farthest = max((r for r in report.rows if not r.equal), key=_severity).case
        report.feeds = next(dict(case.feeds) for case in cases if case.name == farthest)
        return
    for name in pair.names:
        rows = [r for r in report.rows if r.name == name]
        # Zeros that stay zeros prove nothing about an output that is noise elsewhere.
        noise = [r for r in rows if r.reason == NOISE]
        evidence = [r for r in rows if r.reason != NOISE and r.cosine != 0.0]
        if noise and not evidence:
            moved = min((r.noise for r in noise if r.noise is not None), default=math.inf)
            worst = max(r.slice_error for r in noise)
            raise VerifyError(
                f"{pair.called}: output '{name}' is rounding noise on every input tried: rounding alone moves BEFORE "
                f"by {moved:.2g} of its RMS or more, and AFTER is at most {worst:.2g} away; give inputs with --inputs, "
                "or a limit with --rtol"
            )


def _where_hidden(pair: _Pair, report: VerifyReport, cases: Sequence[Case], wanted: Mapping[str, Outputs]) -> list[str]:
    """A sentence where AFTER differs in nothing but queries that see no key."""
    masks = masks_of(inlined(pair.before_proto))
    ways = [[row for row in report.rows if not row.equal and row.optimized == level] for level in (False, True)]
    bad, optimized = ({(row.case, row.name): row for row in rows} for rows in ways)
    if not masks or not bad or optimized.keys() - bad.keys():
        return []
    row = next(iter(bad.values()))
    session = open_session(pair.after, library=row.library, provider=row.provider)
    found = []
    for case in (case for case in cases if any(name == case.name for name, _ in bad)):
        got = run_case(session, case, half_io=pair.half_io)
        for want, other, name in zip(wanted[case.name], got, pair.names) if not isinstance(got, str) else ():
            if (case.name, name) in bad:
                flags = differing(want, other, bad[case.name, name].limit)
                if flags is None:
                    return []
                found.append((flags, {mask: np.asarray(case.feeds[mask]) for mask in masks}))
    why = only_where_hidden(found)
    return [why] if why else []


def _summary(report: VerifyReport, cases: int) -> str:
    ours = any(r.library and r.provider == CPU for r in report.rows)
    ways = "with and without the library" if ours else "as standard ONNX"
    ways += ", at the runtime's default level" if all(r.optimized for r in report.rows) else ""
    ways += "".join(f", on {p}" for p in sorted({r.provider for r in report.rows} - {CPU}))
    text = f"{cases} input set{'s' * (cases != 1)}, {ways}, class {report.numerics}"
    if report.fixed:
        text += ", with " + ", ".join(f"{s}={n}" for s, n in report.fixed.items()) + " as AFTER has it"
    if report.skipped:
        text += f"; {len(report.skipped)} input set{'s' * (len(report.skipped) != 1)} skipped, which BEFORE refuses"
    if report.random:
        text += f"; BEFORE differs from itself in {', '.join(report.random)}, which it makes at random"
    noise = {r.case for r in report.rows if r.reason == NOISE}
    if noise:
        text += f"; {len(noise)} inconclusive, where rounding decides"
    if report.not_covered:
        text += f"; {len(report.not_covered)} not covered"
    bad = [r for r in report.rows if not r.equal]
    if bad:
        r = max(bad, key=_severity)
        how = "with the library" if r.library else "without the library"
        how = how if r.provider == CPU else f"on {r.provider}"
        how += ", at the runtime's default level" if r.optimized else ""
        text += f"; worst: output '{r.name}{r.slice}' on '{r.case}', {how}: {r.reason}"
        what = "RMS of the error" if r.measure == "rms" else "largest error"
        if math.isfinite(r.slice_error):
            text += f", {what} {r.slice_error:.3g} of RMS (limit {r.slice_limit:.3g})"
    return text


__all__ = ["OutputComparison", "Verdict", "VerifyReport", "verify"]
