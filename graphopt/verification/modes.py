"""Runs the original model (BEFORE) on each case, and the rewritten one (AFTER) in every mode on the accepted cases.

A case is a set of inputs. One case is an empty batch, which a detector without detections passes to the next model.
Some CPU kernels of ONNX Runtime crash on an empty batch. AFTER therefore runs this case in another process, together
with the cases at the default optimization level. BEFORE runs it there only if AFTER's outputs do not have the declared
types and sizes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx

from graphopt.errors import VerifyError, naming_model
from graphopt.graph.messages import all_nodes, inlined
from graphopt.graph.operators.traits import RANDOM
from graphopt.inputs.declared import dims_of, required_inputs, symbols
from graphopt.inputs.given import given_cases
from graphopt.inputs.plan import Allowance, Case, InputOptions, plan
from graphopt.metadata import Numerics
from graphopt.progress import Steps
from graphopt.runtime.discovery import CPU
from graphopt.verification.compare import Deviation, deviation, deviations, is_negligible
from graphopt.verification.pair import Pair
from graphopt.verification.report import OutputComparison, VerifyReport, row_without_error
from graphopt.verification.run import (
    BODIES,
    Mode,
    Outputs,
    open_session,
    require_loads_isolated,
    require_memory,
    run_case,
    run_isolated,
)
from graphopt.verification.variants import with_float16_rounding

# The number of cases that run at the runtime's default optimization level; the smallest ones are taken.
DEFAULT_LEVEL_CASES = 3
# The number of cases that run with every float16 result rounded. They are the cases with the largest elements; a case
# with elements of usual magnitude is added.
HALF_CASES = 2
# The relative weight of BEFORE's runs with random rounding in the reported progress.
RUNS = 5.0
# Operators with results that may differ in each run.
MAY_BE_RANDOM = RANDOM | {"Dropout"}
# At the default level, a larger relative difference is not explained by rounding.
FAR = 1e-3
# The most symbols or inputs, and the most sizes, that a sentence lists.
NAMED, LISTED = 4, 16
EMPTY = "empty batch"
_GIVE = "give other inputs with --inputs"


@dataclass(frozen=True, eq=False)
class ComparedRun:
    """AFTER on one case in one mode: the difference of each output, or the runtime's message."""

    mode: Mode
    case: Case
    found: list[Deviation] | str

    def is_doubtful(self, outputs: Iterable[int]) -> bool:
        """Returns whether one of these outputs has a difference that is not negligible (compare.is_negligible)."""
        return not isinstance(self.found, str) and not all(is_negligible(self.found[i]) for i in outputs)


def modes_on_one(pair: Pair, device: str) -> list[Mode]:
    """Returns the modes of AFTER if BEFORE runs on the CPU: function bodies, our library, another provider."""
    modes = [BODIES, *([Mode(True)] if pair.rewritten.has_graphopt_nodes else [])]
    return modes + ([Mode(True, device)] if device != CPU else [])


def steps_of(modes: Sequence[Mode], *, at_default_level: bool) -> list[tuple[str, float]]:
    """Returns the steps of `verify` with their relative weights."""
    return [
        ("BEFORE runs", 2),
        *((f"AFTER runs{' with the library' if mode.library else ''}", 1.0) for mode in modes),
        *([("AFTER runs with the runtime's optimizations", 1.0)] if at_default_level else []),
        ("BEFORE runs with random rounding", RUNS),
        ("looking for untested nodes", 1),
    ]


# -- BEFORE ------------------------------------------------------------------------------------------------------------


def run_before(
    pair: Pair, report: VerifyReport, inputs: Any, input_options: InputOptions, allowance: Allowance
) -> tuple[dict[str, Outputs], list[Case]]:
    """Runs BEFORE; returns its outputs by case, and the accepted cases.

    If BEFORE runs only after the runtime's optimizations have removed nodes without a kernel, these optimizations are
    enabled.
    """
    try:
        return _run_before(pair, report, inputs, input_options, allowance)
    except VerifyError as refused:
        report.skipped.clear()
        pair.reference = replace(pair.reference, optimized=True)
        try:
            found = _run_before(pair, report, inputs, input_options, allowance)
        except VerifyError:
            raise refused from None
    report.notes.append("BEFORE runs only at the runtime's default optimization level: both were compared there")
    return found


def runner_of_before(pair: Pair) -> Callable[[Case], Outputs | str]:
    """Returns a function that runs BEFORE on a case.

    On the CPU, BEFORE runs in another process if the runtime may crash: with the runtime's optimizations, or if BEFORE
    may divide integers by 0.

    Raises:
        VerifyError: the runtime refuses the model.
    """
    mode = pair.reference
    if mode.provider == CPU and (mode.optimized or pair.before.may_divide_by_zero):
        # Without this check, many sizes would be tried with a model that always fails.
        require_loads_isolated(pair.before.source, mode)
        return lambda case: run_isolated(pair.before.source, [case], mode)[case.name]
    return partial(run_case, open_session(pair.before.source, mode, reuse=not pair.large))


def _run_before(
    pair: Pair, report: VerifyReport, inputs: Any, input_options: InputOptions, allowance: Allowance
) -> tuple[dict[str, Outputs], list[Case]]:
    """Runs BEFORE in the mode `pair.reference` for `run_before`; also reports outputs that differ in a second run."""
    run, proto = runner_of_before(pair), pair.before.proto
    expected: dict[str, Outputs] = {}
    cases: list[Case] = []
    random: set[str] = set()
    nodes = all_nodes([*proto.graph.node, *(node for function in proto.functions for node in function.node)])
    repeat = math.inf if any(node.op_type in MAY_BE_RANDOM for node in nodes) else 1

    def accepts(case: Case) -> bool:
        outputs = run(case)
        if isinstance(outputs, str):
            report.skipped[case.name] = outputs
            return False
        report.skipped.pop(case.name, None)
        expected[case.name] = outputs
        cases.append(case)
        if len(cases) <= repeat and not isinstance(again := run(case), str):
            found = (deviation(a, b) for a, b in zip(outputs, again))
            random.update(name for name, d in zip(pair.names, found) if d.structure or d.max_abs)
        return True

    pair.given = inputs is not None
    if inputs is not None:
        for case in given_cases(inputs, proto):
            accepts(case)
    else:
        with naming_model(pair.called):
            whole, after = inlined(proto), pair.after.model
            report.left_out = plan(
                whole, input_options, accepts, allowance, lambda name: _has_finite_elements(expected[name]), after
            )
        for case in [*_cases_of_changed_rows(pair, cases)]:
            accepts(case)
    if not expected:
        kind, advice = ("generated", "; give valid inputs with --inputs") if inputs is None else ("given", "")
        reason = next(iter(report.skipped.values()))
        raise VerifyError(f"{pair.called} runs on none of the {kind} inputs: {reason}{advice}")
    report.random = [name for name in pair.names if name in random]
    report.cases = {case.name: case.about for case in cases if case.about}
    if inputs is None:
        report.sizes = _sizes_of(proto, cases)
        report.notes += _sizes_tried(report.sizes) + _left_out(report.left_out) + _values_tried(proto, cases)
    return expected, cases


def _has_finite_elements(outputs: Outputs) -> bool:
    """Returns whether each floating-point output has a finite element."""
    arrays = (o for o in outputs if isinstance(o, np.ndarray) and o.size)
    return all(np.isfinite(a).any() for a in arrays if _is_real(a))


def _is_real(array: npt.NDArray[Any]) -> bool:
    """Returns whether the type has NaN; numpy has a separate kind for bfloat16."""
    return array.dtype.kind in "fc" or array.dtype == ml_dtypes.bfloat16


def _cases_of_changed_rows(pair: Pair, cases: Sequence[Case]) -> Iterator[Case]:
    """Yields a case for each table with changed rows: an accepted case, with an input that selects these rows."""
    for table in pair.tables:
        sizes = [(np.size(c.feeds.get(table.input, ())), c) for c in cases]
        case = next((c for least in (2, 1) for size, c in sizes if size >= least), None)
        if case is not None:
            ids = np.asarray(case.feeds[table.input])
            chosen = np.resize(np.asarray(table.rows), ids.shape).astype(ids.dtype)
            yield Case(f"rows of '{table.table}'", {**case.feeds, table.input: chosen})


# -- tried inputs ------------------------------------------------------------------------------------------------------


def _sizes_of(proto: onnx.ModelProto, cases: Sequence[Case]) -> list[dict[str, int]]:
    """Returns the combinations of sizes of symbolic dimensions in cases."""
    found: dict[tuple[tuple[str, int], ...], None] = {}
    for case in cases:
        sizes: dict[str, int] = {}
        for value in required_inputs(proto):
            shape = np.shape(case.feeds[value.name]) if value.name in case.feeds else ()
            for dim, size in zip(value.dims, shape):
                if isinstance(dim, str):
                    sizes.setdefault(dim, size)
        if sizes:
            found[tuple(sizes.items())] = None
    return [dict(sizes) for sizes in found]


def _sizes_tried(combinations: Sequence[Mapping[str, int]]) -> list[str]:
    """Returns a sentence with the tried sizes of each symbolic dimension; the verdict is valid for these only."""
    tried: dict[str, set[int]] = {}
    for sizes in combinations:
        for symbol, size in sizes.items():
            tried.setdefault(symbol, set()).add(size)
    by_values: dict[tuple[int, ...], list[str]] = {}
    for symbol, values in tried.items():
        by_values.setdefault(tuple(sorted(values)), []).append(symbol)
    groups = [
        f"{', '.join(symbols[:NAMED])}{', ...' * (len(symbols) > NAMED)} {_listed(values)}"
        for values, symbols in by_values.items()
    ]
    together = f" in {len(combinations)} combinations" if len(tried) > 1 else ""
    more = f" ({'--json lists them, ' if together else ''}--dim tries others)"
    return [f"sizes tried: {'; '.join(groups)}{together}{more}"] if groups else []


def _listed(values: Sequence[int]) -> str:
    """Returns the integers as text; a long list is cut to the first ones and the last."""
    if len(values) <= LISTED:
        return ", ".join(map(str, values))
    return f"{', '.join(map(str, values[: LISTED - 1]))} and {len(values) - LISTED} more to {values[-1]}"


def _left_out(sizes: Mapping[str, str]) -> list[str]:
    """Returns a sentence with the sizes that exceed the limits on the memory or work of a case."""
    if not sizes:
        return []
    named = "; ".join(f"{size} ({cost})" for size, cost in [*sizes.items()][:NAMED])
    more = f" and {len(sizes) - NAMED} more" if len(sizes) > NAMED else ""
    advice = "(--effort thorough allows more work; --dim sets other sizes)"
    return [f"sizes left out, with their estimated cost: {named}{more} {advice}"]


def _values_tried(proto: onnx.ModelProto, cases: Sequence[Case]) -> list[str]:
    """Returns a sentence with the lowest and highest element of each input that is not boolean."""
    ranges = []
    for value in required_inputs(proto):
        given = (case.feeds[value.name] for case in cases if value.name in case.feeds)
        finite = (a[np.isfinite(a)] for a in given if isinstance(a, np.ndarray) and a.dtype.kind in "fiu")
        bounds = [bound for a in finite if a.size for bound in (float(a.min()), float(a.max()))]
        if bounds:
            ranges.append(f"{value.name} {min(bounds):.4g} to {max(bounds):.4g}")
    more = ", ..." * (len(ranges) > NAMED)
    return [f"values tried: {', '.join(ranges[:NAMED])}{more} (--range tries others)"] if ranges else []


def uncovered_outputs(proto: onnx.ModelProto, expected: Mapping[str, Outputs]) -> Iterator[str]:
    """Yields a sentence for each output of BEFORE that is empty, has no finite element, or is constant."""
    for i, output in enumerate(proto.graph.output):
        arrays = [np.asarray(o[i]) for o in expected.values() if isinstance(o[i], np.ndarray)]
        if not arrays:
            continue
        if not any(a.size for a in arrays):
            yield f"output '{output.name}': only its type and shape were compared: it is always empty; {_GIVE}"
            continue
        if _is_real(arrays[0]) and not any(np.isfinite(a).any() for a in arrays):
            yield (
                f"output '{output.name}': only the places of NaN and infinity were compared, because BEFORE has no "
                f"finite value on any input tried; {_GIVE}"
            )
            continue
        first = next(a.reshape(-1)[0] for a in arrays if a.size)
        several = max(a.size for a in arrays) > 1 or len(arrays) > 1
        if several and all(np.array_equal(a, np.full_like(a, first)) for a in arrays):
            yield f"output '{output.name}' is {first} everywhere on every input tried"


def uncovered_inputs(proto: onnx.ModelProto, cases: Sequence[Case]) -> Iterator[str]:
    """Yields a sentence for each input with the same value in all cases."""
    if len(cases) < 2:
        if required_inputs(proto):
            yield "one set of inputs was tried"
        return
    for value in required_inputs(proto):
        given = [case.feeds[value.name] for case in cases if value.name in case.feeds]
        if given and all(_same(given[0], other) for other in given[1:]):
            yield f"input '{value.name}' was the same in every case"


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return bool(np.array_equal(a, b))
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return a is b


# -- AFTER -------------------------------------------------------------------------------------------------------------


def run_after(
    pair: Pair, modes: Sequence[Mode], cases: Sequence[Case], expected: Mapping[str, Outputs], steps: Steps
) -> list[ComparedRun]:
    """Runs AFTER on all cases in these modes.

    Raises:
        VerifyError: the runtime refuses the model.
        MemoryError: the machine has too little memory for AFTER.
    """
    runs: list[ComparedRun] = []
    for mode in modes:
        steps.begin(f"on {len(cases)} sets of inputs")
        runs += _run_mode(pair, mode, cases, expected)
    return runs


def _run_mode(pair: Pair, mode: Mode, cases: Sequence[Case], expected: Mapping[str, Outputs]) -> Iterator[ComparedRun]:
    """Yields the runs of one mode; only one session, and the outputs of one case, are in memory at a time."""
    if mode.provider == CPU and (mode.optimized or pair.after.may_divide_by_zero):
        got = _isolated(pair, mode, cases)
        yield from (ComparedRun(mode, case, deviations(expected[case.name], got[case.name])) for case in cases)
        return
    began = time.process_time()
    session = open_session(pair.after.source, mode, reuse=not pair.large)
    pair.opening = time.process_time() - began
    for case in cases:
        began = time.process_time()
        outputs = run_case(session, case, half_io=pair.half_io)
        require_memory(outputs)
        pair.running = min(pair.running, time.process_time() - began)
        yield ComparedRun(mode, case, deviations(expected[case.name], outputs))


def _isolated(pair: Pair, mode: Mode, cases: Sequence[Case]) -> dict[str, Outputs | str]:
    """Runs AFTER in another process."""
    got = run_isolated(pair.after.source, cases, mode, half_io=pair.half_io)
    for outputs in got.values():
        require_memory(outputs)
    return got


def run_in_half(pair: Pair, cases: Sequence[Case], expected: Mapping[str, Outputs]) -> list[ComparedRun]:
    """Runs AFTER on a few cases and rounds every float16 result, which CPU kernels may keep in float32."""
    if pair.reference.optimized or not pair.halves or Numerics.FP16 not in pair.rewritten.classes.values():
        return []
    try:
        session = open_session(with_float16_rounding(pair.after.model))
    except VerifyError:  # the copy exceeds the 2 GiB of a protobuf message
        return []
    chosen = with_largest_elements(cases, HALF_CASES)
    chosen += [case for case in cases if is_usual(case) and case not in chosen][:1]
    got = [run_case(session, case, half_io=pair.half_io) for case in chosen]
    mode = Mode(in_half=True)
    return [ComparedRun(mode, case, deviations(expected[case.name], o)) for case, o in zip(chosen, got)]


# The largest absolute values of usual inputs. Larger integers are probably times or hashes, not indices of a table.
USUAL_FLOAT, USUAL_INTEGER = 8.0, 1 << 20


def is_usual(case: Case) -> bool:
    """Returns whether all elements are as small as normally distributed floats, or as indices of a table."""
    for array in _arrays(case):
        if array.dtype.kind in "fViu":
            wide = array.astype(np.float64)
            limit = USUAL_INTEGER if array.dtype.kind in "iu" else USUAL_FLOAT
            if np.abs(wide[np.isfinite(wide)]).max(initial=0.0) > limit:
                return False
    return True


def _arrays(case: Case) -> list[npt.NDArray[Any]]:
    """Returns the arrays of a case, with the elements of sequences."""
    values = (v for value in case.feeds.values() for v in (value if isinstance(value, list) else [value]))
    return [np.asarray(value) for value in values if value is not None]


def with_largest_elements(cases: Sequence[Case], count: int) -> list[Case]:
    """Returns the cases with the largest elements.

    Cases are sorted by the sum of the decimal exponents of their inputs' largest elements. Of cases with an equal sum,
    only the one with the fewest elements is returned.
    """
    best: dict[int, tuple[int, Case]] = {}
    for case in cases:
        arrays = _arrays(case)
        numbers = [np.abs(a[np.isfinite(a)].astype(np.float32)) for a in arrays if a.dtype.kind in "fViu"]
        power = sum(math.floor(math.log10(max(1.0, float(a.max(initial=0))))) for a in numbers)
        size = sum(a.size for a in arrays)
        if power not in best or size < best[power][0]:
            best[power] = (size, case)
    return [best[power][1] for power in sorted(best, reverse=True)[:count]]


# -- the default optimization level ------------------------------------------------------------------------------------


def run_at_default_level(
    pair: Pair, cases: Sequence[Case], expected: Mapping[str, Outputs], report: VerifyReport, empty: Case | None
) -> tuple[list[ComparedRun], list[OutputComparison]]:
    """Runs AFTER at the runtime's default optimization level, as users do, on a few cases and on an empty batch.

    A run is left out if the runtime's optimizations also change the outputs of BEFORE. All runs are left out if BEFORE
    runs only with these optimizations.

    Returns:
        The runs, and report rows for the outputs of the empty batch.
    """
    if pair.reference.optimized:
        return [], []
    few = sorted(cases, key=lambda case: sum(getattr(a, "size", 1) for a in case.feeds.values()))[:DEFAULT_LEVEL_CASES]
    mode = Mode(pair.rewritten.has_graphopt_nodes, optimized=True)
    got = _isolated(pair, mode, [*few, *([empty] if empty is not None else [])])
    runs = [ComparedRun(mode, case, deviations(expected[case.name], got[case.name])) for case in few]
    far = [run for run in runs if _is_beyond_rounding(run.found)]
    original = run_isolated(pair.before.source, few, Mode(optimized=True)) if far else {}
    for run in far:
        found = deviations(expected[run.case.name], original[run.case.name])
        if _is_beyond_rounding(found):
            report.notes.append(at_default_level(run.case, found if isinstance(found, str) else "its outputs change"))
            runs.remove(run)
    rows = [] if empty is None else _rows_of_empty(pair, mode, empty, expected[cases[0].name], got[EMPTY], report)
    return runs, rows


def at_default_level(case: Case, event: str) -> str:
    """Returns a note on BEFORE at the runtime's default optimization level."""
    return f"BEFORE at the runtime's default optimization level, on '{case.name}': {event}"


def _is_beyond_rounding(found: list[Deviation] | str) -> bool:
    return isinstance(found, str) or any(d.structure or d.relative > FAR for d in found)


def _rows_of_empty(
    pair: Pair, mode: Mode, empty: Case, usual: Outputs, got: Outputs | str, report: VerifyReport
) -> list[OutputComparison]:
    """Returns a report row for each output that differs in size or type between BEFORE and AFTER on an empty batch.

    If AFTER refuses the empty batch, the empty batch is reported as not covered. This is not a difference, because two
    exports of one module may accept different inputs.

    Args:
        pair: the models.
        mode: the mode of AFTER.
        empty: the case.
        usual: BEFORE's outputs for another batch.
        got: AFTER's outputs.
        report: receives sentences about missing coverage.
    """
    if not isinstance(got, str) and all(map(_is_as_declared, pair.before.proto.graph.output, usual, got)):
        return []
    want = run_isolated(pair.before.source, [empty], Mode(optimized=True))[EMPTY]
    if isinstance(want, str):
        return []
    if isinstance(got, str):
        report.not_covered.append(f"an empty batch was not compared: BEFORE accepts it, and AFTER does not: {got}")
        return []
    # Only types and sizes are compared, because some kernels leave their output uninitialized if their input is empty.
    found = zip(pair.names, (deviation(w, g).structure for w, g in zip(want, got)))
    return [row_without_error(n, EMPTY, mode.key, words) for n, words in found if words.startswith(("shape", "type"))]


def empty_batch(model: onnx.ModelProto, case: Case, input_options: InputOptions) -> Case | None:
    """Cuts a case of BEFORE to an empty batch; returns None if the caller or the model fixes the batch size."""
    fixed = {*input_options.sizes, *input_options.fixed}
    batches = {s for s, role in symbols(model).items() if role == "batch" and not input_options.batch} - fixed
    feeds = dict(case.feeds)
    for value in required_inputs(model):
        for axis, dim in enumerate(value.dims):
            if dim in batches:
                feeds[value.name] = np.asarray(feeds[value.name])[(slice(None),) * axis + (slice(0),)]
    return Case(EMPTY, feeds) if batches else None


def _is_as_declared(output: onnx.ValueInfoProto, usual: Any, empty: Any) -> bool:
    """Returns whether an output is empty and has the declared sizes, and each dimension is 0 or as large as usual."""
    if not isinstance(usual, np.ndarray) or not isinstance(empty, np.ndarray):
        return False
    if empty.size or empty.ndim != usual.ndim or empty.dtype != usual.dtype:
        return False
    declared = [d if isinstance(d, int) else n for d, n in zip(dims_of(output), empty.shape)] or empty.shape
    return empty.shape == tuple(declared) and all(n in (0, was) for n, was in zip(empty.shape, usual.shape))
