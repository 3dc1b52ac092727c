"""`bench`: times one model, or compares two, on the providers of this machine.

Both models run interleaved in one process with all of the runtime's optimizations, so other load on the machine affects
both. The speedup is the median of the ratios of all rounds, with an interval. Peak memory is measured in a
separate process for each model.
"""

from __future__ import annotations

import itertools
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import graphopt
from graphopt.debug.diff import ModelDiff, diff
from graphopt.errors import (
    GraphoptError,
    OptionError,
    did_you_mean,
    naming_model,
    naming_originals,
    one_line,
    require_list,
    runtime_message,
)
from graphopt.graph import reading, writing
from graphopt.graph.messages import inlined
from graphopt.inputs.declared import required_inputs, symbols
from graphopt.inputs.given import given_cases
from graphopt.inputs.plan import Case, accepted_feeds, accepted_sizes, normal_feeds
from graphopt.measure.measured_session import PROVIDER_OPTIONS, open_session
from graphopt.measure.memory import PeakMemory, peak_memory
from graphopt.measure.profiling import (
    NodeTime,
    Placement,
    Run,
    TimedSubgraph,
    nodes_of_regions,
    placement,
    profile_sides,
    subgraph_names,
    timed_subgraphs,
)
from graphopt.progress import Progress, time_left
from graphopt.runtime.custom_ops import registering_custom_ops
from graphopt.runtime.discovery import (
    CPU,
    DEVICE_PROVIDER,
    default_providers,
    device_of,
    import_onnxruntime,
    memory_of,
    provider_name,
    runtime_name,
    why_no_device,
)
from graphopt.runtime.sessions import COMPILING_PROVIDERS
from graphopt.strict_json import dumps
from graphopt.verification.pair import may_divide_by_zero
from graphopt.verification.run import Mode, run_isolated

WARM_UP_RUNS = 3
MIN_ROUNDS, MAX_ROUNDS = 9, 1000
# The times of two sessions of the same file differ by up to this share, because of their memory addresses
# (docs/measuring.md).
NOISE_FLOOR = 0.02
# The share of the best throughput that the smallest recommended batch must reach.
KNEE = 0.95
# Default sizes of symbolic dimensions by role (`symbols` in graphopt/inputs/declared.py).
DEFAULT_SIZES = {"batch": 1, "image": 224, "length": 128}


@dataclass(frozen=True)
class Setting:
    """Conditions of one measurement.

    Attributes:
        provider: the first provider of the sessions; the CPU runs nodes that it does not support.
        threads: threads of the runtime's intra-op pool; 0 leaves the choice to the runtime.
        sizes: symbolic dimension -> size.
        io: "host" if inputs and outputs are numpy arrays, "device" if they are bound on the device (IOBinding).
    """

    provider: str
    threads: int
    sizes: Mapping[str, int]
    io: str

    def __str__(self) -> str:
        sizes = ", ".join(f"{s}={n}" for s, n in self.sizes.items())
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}" if self.threads else "default threads"
        return ", ".join(p for p in (self.provider, threads, sizes, f"{self.io} I/O") if p)


@dataclass(frozen=True)
class Timing:
    """Times of one model under one setting.

    Attributes:
        rounds: number of timed runs.
        median_ms, p95_ms: median and 95th percentile of one run, in milliseconds.
        spread: interquartile range divided by the median.
        throughput: items of the batch per second at the median.
        memory: peak memory; None if not measured.
    """

    rounds: int
    median_ms: float
    p95_ms: float
    spread: float
    throughput: float
    memory: PeakMemory | None = None


@dataclass(frozen=True)
class BenchRow:
    """Times of one or both models under one setting.

    Attributes:
        speedup: time of BEFORE divided by time of AFTER, median over rounds; None for a single model.
        low, high: 95 % interval of that median.
        verdict: "faster", "slower" or "within noise", about AFTER; "" for a single model.
    """

    setting: Setting
    before: Timing
    after: Timing | None = None
    speedup: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: str = ""

    def __str__(self) -> str:
        times = [side.median_ms for side in (self.before, self.after) if side is not None]
        text = f"{' -> '.join(f'{ms:.3f}' for ms in times)} ms on {self.setting}"
        if self.speedup is None:
            return text
        return f"{text}: {self.verdict}, ratio {self.speedup:.2f} ({self.low:.2f}-{self.high:.2f})"


@dataclass(frozen=True)
class Profile:
    """Times of all nodes under one setting.

    Attributes:
        subgraphs: times of each subgraph in both models.
        before, after: all nodes that the runtime ran, after its own optimizer.
        before_placement, after_placement: providers of these nodes.
    """

    setting: Setting
    subgraphs: list[TimedSubgraph]
    before: list[NodeTime]
    before_placement: Placement
    after: list[NodeTime] | None = None
    after_placement: Placement | None = None


@dataclass
class BenchReport:
    """Results of `bench`.

    Attributes:
        conditions: versions, devices and options common to all rows.
        rows: one for each setting.
        profiles: one for each provider, at its first setting.
        knees: for each series of batch sizes, the smallest batch within 5 % of the best throughput.
        notes: settings that could not be measured, with the reasons.
    """

    conditions: list[str] = field(default_factory=list)
    rows: list[BenchRow] = field(default_factory=list)
    profiles: list[Profile] = field(default_factory=list)
    knees: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join([*map(str, self.rows), *self.notes])

    def to_dict(self) -> dict[str, Any]:
        return {"format": 1, **asdict(self)}

    def to_json(self) -> str:
        return dumps(self.to_dict())


@registering_custom_ops
def bench(
    before: Any,
    after: Any = None,
    *,
    providers: Sequence[str] = (),
    threads: Sequence[int] = (0,),
    sizes: Mapping[str, Sequence[int]] | None = None,
    batch: Sequence[int] = (),
    inputs: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    seconds: float = 2.0,
    memory: bool = True,
    profile: bool = True,
    require_device: bool = False,
    custom_ops: Sequence[str | os.PathLike[str]] = (),
    progress: Progress | None = None,
) -> BenchReport:
    """Measures one model or compares two.

    Args:
        before: the model, in any form that `optimize` accepts.
        after: a second model with the same inputs; None measures `before` alone.
        providers: "cpu", "rocm", "migraphx", "cuda" or full names; empty for the best provider of this machine.
        threads: numbers of threads to try; 0 leaves the choice to the runtime.
        sizes: symbolic dimension -> sizes to try; the settings are all combinations.
        batch: sizes for the symbolic first axis of the inputs.
        inputs: input data as for `verify` (the first set of a folder), instead of `sizes` and `batch`.
        seconds: approximate seconds to time each setting.
        memory: measure peak memory, in separate processes.
        profile: time each node at each provider's first setting.
        require_device: fail if a node of a device provider's session runs on the CPU.
        custom_ops: your own operator libraries, which ONNX Runtime registers.
        progress: called with a line when a setting starts.

    Raises:
        ModelLoadError: a model cannot be read.
        OptionError: an unknown provider or dimension, or sizes together with inputs.
        VerifyError: the inputs cannot be read, or cannot be generated because some are strings or sequences.
        GraphoptError: a session cannot be created or uses another provider, or (`require_device`) nodes are on the CPU.
        RuntimeMissingError: no ONNX Runtime.
    """
    for what, value in (("providers", providers), ("threads", threads), ("batch", batch), *(sizes or {}).items()):
        require_list(what, value)
    say = progress or (lambda _: None)
    names = [provider_name(p) for p in providers] or [default_providers()[0]]
    report = BenchReport(conditions=_conditions(names))
    with _files([m for m in (before, after) if m is not None]) as paths:
        protos = [reading.read_proto(p) for p in paths]
        _check_inputs(protos)
        if inputs is not None and (sizes or batch):
            raise OptionError("inputs determine the sizes: give either inputs, or sizes and batch")
        given = None if inputs is None else given_cases(inputs, protos[0])[0].feeds
        grid: list[dict[str, int]] = [{}]
        if given is None:
            grid = size_grid(protos[0], dict(sizes or {}), batch)
            grid = _usable(paths[0], protos[0], grid, {*(sizes or {})}, Setting(names[0], threads[0], grid[0], "host"))
        # A single model needs no diff.
        found = diff(*paths) if profile and len(paths) == 2 else None
        count = sum(len(grid) * len(threads) * (1 if name == CPU else 2) for name in names)
        done = 0
        for provider in names:
            for i, (bound, n) in enumerate(itertools.product(grid, threads)):
                feeds = feeds_for(paths[0], protos[0], Setting(provider, n, bound, "host")) if given is None else given
                if i == 0 and (profile or require_device):
                    say(f"profiling on {provider} ({time_left((count - done) * seconds)})")
                    profiled = _profile(paths, protos, found, Setting(provider, n, bound, "host"), feeds)
                    report.profiles.append(profiled)
                    if any(t.provider != CPU and not t.on_device for t in profiled.before):
                        report.notes.append(f"times of nodes on {provider} are launches on the host, not kernels")
                    if require_device:
                        _require_device(profiled)
                for io in ("host",) if provider == CPU else ("host", "device"):
                    setting = Setting(provider, n, bound, io)
                    say(f"{setting} ({done + 1} of {count}, {time_left((count - done) * seconds)})")
                    done += 1
                    try:
                        report.rows.append(_measure(paths, setting, feeds, seconds, memory and io == "host"))
                    except _CannotBindError as error:
                        report.notes.append(f"{setting}: not measured: {error}")
    report.knees = _knees(report.rows, protos[0])
    return report


class _CannotBindError(Exception):
    pass


@contextmanager
def _files(originals: Sequence[Any]) -> Iterator[list[Path]]:
    """Writes models to temporary files if they are not files, or have nodes without names, which profiles need.

    Raises:
        GraphoptError: the error of the body, with the caller's paths instead of temporary ones.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths, copies = [], {}
        for i, original in enumerate(originals):
            source = reading.load(original)
            unnamed = [n for n in source.model.graph if not n.name]
            if source.path is not None and not unnamed:
                paths.append(source.path)
                continue
            for node in unnamed:
                node.name = f"{node.op_type}->{next((o.name for o in node.outputs if o.name), '?')}"
            path = Path(folder) / str(i) / (source.path.name if source.path is not None else "model.onnx")
            path.parent.mkdir()
            writing.save(source.model, path)
            paths.append(path)
            copies[str(path)] = str(source.path or "the model")
        with naming_originals(copies):
            yield paths


def _check_inputs(protos: Sequence[onnx.ModelProto]) -> None:
    inputs = [[v.name for v in required_inputs(p)] for p in protos]
    if len(inputs) == 2 and set(inputs[0]) != set(inputs[1]):
        raise OptionError(f"the models have different inputs: {', '.join(inputs[0])} and {', '.join(inputs[1])}")


def size_grid(model: onnx.ModelProto, sizes: dict[str, Sequence[int]], batch: Sequence[int]) -> list[dict[str, int]]:
    """Returns all combinations of sizes for the symbolic dimensions of a model's inputs.

    Args:
        model: the model.
        sizes: symbolic dimension -> sizes; others have a default by role.
        batch: sizes of the symbolic first axis; empty for the default.

    Returns:
        Mappings from symbolic dimension to size.

    Raises:
        OptionError: the inputs have no such dimension.
    """
    roles = symbols(model)
    if batch:
        first = next((s for s, role in roles.items() if role == "batch"), None)
        if first is None:
            raise OptionError(
                "no input has a symbolic first axis: export the model with one, or leave out the batch sizes"
            )
        sizes = {**sizes, first: batch}
    unknown = sizes.keys() - roles.keys()
    if unknown:
        known = ", ".join(roles) or "none"
        raise OptionError(
            f"the inputs have no symbolic dimension '{min(unknown)}'{did_you_mean(min(unknown), roles)}; "
            f"they have: {known}"
        )
    choices = [sizes.get(s, (DEFAULT_SIZES[role],)) for s, role in roles.items()]
    return [dict(zip(roles, values, strict=True)) for values in itertools.product(*choices)]


def _usable(
    path: Path, proto: onnx.ModelProto, grid: list[dict[str, int]], given: set[str], setting: Setting
) -> list[dict[str, int]]:
    """Replaces default image sizes and lengths in the grid by sizes that the model accepts."""
    free = {s for s, role in symbols(proto).items() if role != "batch"} - given
    if not free:
        return grid
    with naming_model(str(path)):
        is_accepted = _accepts(path, setting)
        found = accepted_sizes(inlined(proto), setting.sizes, setting.sizes.keys() - free, is_accepted)
    return [{name: found[name] if name in free else size for name, size in point.items()} for point in grid]


def trial_runner(path: Path, provider: str, threads: int, session: Any) -> Callable[[Mapping[str, Any]], str]:
    """Returns a function that runs a model once on given inputs, before it is timed.

    The function returns the runtime's message if it refuses the inputs; otherwise "". On the CPU, a model that may
    divide integers by 0 runs in another process, because the runtime may crash there.

    Args:
        path: the model file.
        provider: full name of the provider.
        threads: threads of the runtime's pool; 0 leaves the choice to the runtime.
        session: a session of the model, from `open_session`.
    """
    if provider == CPU and may_divide_by_zero(path):
        mode = Mode(library=True, optimized=True)

        def run_elsewhere(feeds: Mapping[str, Any]) -> str:
            (outputs,) = run_isolated(path, [Case("trial", dict(feeds))], mode, threads=threads).values()
            return outputs if isinstance(outputs, str) else ""

        return run_elsewhere

    def run(feeds: Mapping[str, Any]) -> str:
        try:
            session.run(None, feeds)
        except Exception as error:  # the runtime's exception classes share no public base
            return runtime_message(error)
        return ""

    return run


def _accepts(path: Path, setting: Setting) -> Callable[[dict[str, Any]], bool]:
    session = open_session(path, setting.provider, setting.threads)
    run = trial_runner(path, setting.provider, setting.threads, session)
    return lambda tried: not run(tried)  # `_runner` reports the reason


def _conditions(providers: Sequence[str]) -> list[str]:
    versions = f"{runtime_name()}, graphopt {graphopt.__version__}"
    lines = [f"{versions}; all of the runtime's optimizations; models interleaved"]
    for provider in providers:
        line = f"{provider} on {device_of(provider).name}"
        if provider in COMPILING_PROVIDERS:
            line += "; without our library (the provider compiles the function bodies)"
        if provider in PROVIDER_OPTIONS:
            options = ", ".join(f"{k}={v}" for k, v in PROVIDER_OPTIONS[provider].items())
            line += f"; both models with {options}, tuned in the warm-up"
        lines.append(line)
    return lines


def _measure(paths: Sequence[Path], setting: Setting, feeds: dict[str, Any], seconds: float, memory: bool) -> BenchRow:
    runs = [_runner(p, open_session(p, setting.provider, setting.threads), setting, feeds) for p in paths]
    times = interleave(runs, seconds)
    peaks = [peak_memory(p, setting.provider, setting.threads, feeds) if memory else None for p in paths]
    items = next((len(a) for a in feeds.values() if isinstance(a, np.ndarray) and a.ndim), 1)  # a sequence is a list
    sides = [_timing(t, items, peak) for t, peak in zip(times, peaks, strict=True)]
    if len(sides) == 1:
        return BenchRow(setting, sides[0])
    speedup, low, high = ratio(times[0], times[1])
    return BenchRow(setting, sides[0], sides[1], speedup, low, high, verdict(speedup, low, high))


def feeds_for(path: Path, proto: onnx.ModelProto, setting: Setting) -> dict[str, Any]:
    """Returns generated inputs that the model accepts, name -> array.

    Inputs of integers or of unknown rank are found by trial runs.

    Raises:
        VerifyError: an input has a type that is not a tensor of numbers.
    """
    with naming_model(str(path)):
        kinds = [v.type.tensor_type for v in required_inputs(proto)]
        feeds = normal_feeds(proto, setting.sizes)
        if all(k.elem_type == onnx.TensorProto.FLOAT and k.shape.dim for k in kinds):
            return feeds
        return accepted_feeds(inlined(proto), setting.sizes, _accepts(path, setting)) or feeds


def _runner(path: Path, session: Any, setting: Setting, feeds: dict[str, Any]) -> Run:
    failure = trial_runner(path, setting.provider, setting.threads, session)(feeds)
    if failure:
        raise GraphoptError(
            f"{path}: {setting}: the model does not run: {failure}; give sizes or inputs that it accepts (--dim, "
            "--inputs)"
        )
    if setting.io == "host":
        return lambda: session.run(None, feeds)
    return bound_runner(session, feeds, memory_of(session))


def bind(session: Any, feeds: Mapping[str, Any], like: Sequence[Any], memory: tuple[Any, ...]) -> Any:
    """Returns a binding with inputs, and with outputs of the shapes and types of `like`, in the memory of a device."""
    value = import_onnxruntime().OrtValue
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, value.ortvalue_from_numpy(array, *memory))
    for output, array in zip(session.get_outputs(), like, strict=True):
        made = value.ortvalue_from_shape_and_type(array.shape, array.dtype.type, *memory)
        binding.bind_ortvalue_output(output.name, made)
    return binding


def bound_runner(session: Any, feeds: Mapping[str, Any], memory: tuple[Any, ...]) -> Run:
    """Returns a function that runs a session with inputs and outputs bound on the device.

    Args:
        session: the session.
        feeds: input name -> array.
        memory: memory of the session (`runtime.discovery.memory_of`).

    Raises:
        _CannotBindError: the session does not accept the binding.
    """
    outputs = session.run(None, feeds)
    try:
        binding = bind(session, feeds, outputs, memory)
    except Exception as error:  # the runtime's exception classes share no public base
        raise _CannotBindError(one_line(error)) from None

    def run() -> Any:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        return binding

    return run


def interleave(runs: Sequence[Run], seconds: float) -> list[list[float]]:
    """Times functions alternately, and reverses their order in every round.

    Args:
        runs: the functions.
        seconds: approximate total duration after the warm-up.

    Returns:
        For each function the seconds of each round.
    """
    for _ in range(WARM_UP_RUNS):
        for run in runs:
            run()
    times: list[list[float]] = [[] for _ in runs]
    end = time.perf_counter() + seconds
    order = list(range(len(runs)))
    while len(times[0]) < MIN_ROUNDS or (time.perf_counter() < end and len(times[0]) < MAX_ROUNDS):
        for side in order:
            start = time.perf_counter()
            runs[side]()
            times[side].append(time.perf_counter() - start)
        order.reverse()
    return times


def _timing(times: Sequence[float], items: int, memory: PeakMemory | None) -> Timing:
    low, median, high = statistics.quantiles(times, n=4, method="inclusive")
    p95 = statistics.quantiles(times, n=20, method="inclusive")[-1]
    return Timing(len(times), median * 1e3, p95 * 1e3, (high - low) / median, items / median, memory)


def ratio(before: Sequence[float], after: Sequence[float]) -> tuple[float, float, float]:
    """Returns the median of the ratios of all rounds, and its 95 % interval.

    The interval consists of order statistics, by inversion of the sign test.

    Args:
        before: seconds of the first model in each round.
        after: seconds of the second model.

    Returns:
        Median, lower end and upper end.
    """
    ratios = sorted(a / b for a, b in zip(before, after, strict=True))
    n = len(ratios)
    # The largest k for which n fair coins show fewer than k heads with a probability of at most 2.5 %.
    tail, k = 0.0, 0
    while k < n // 2 and (tail := tail + math.comb(n, k) / 2**n) <= 0.025:
        k += 1
    index = max(k - 1, 0)
    return statistics.median(ratios), ratios[index], ratios[n - 1 - index]


def verdict(speedup: float, low: float, high: float) -> str:
    """Returns "faster" or "slower"; "within noise" if the interval contains 1 or the difference is below 2 %."""
    if low <= 1.0 <= high or abs(speedup - 1.0) < NOISE_FLOOR:
        return "within noise"
    return "faster" if speedup > 1.0 else "slower"


def _profile(
    paths: Sequence[Path],
    protos: Sequence[onnx.ModelProto],
    found: ModelDiff | None,
    setting: Setting,
    feeds: dict[str, Any],
) -> Profile:

    def opener(path: Path, *, regions: bool) -> Callable[[Mapping[str, Any]], tuple[Any, Run]]:
        def open_one(options: Mapping[str, Any]) -> tuple[Any, Run]:
            session = open_session(path, setting.provider, setting.threads, options, regions=regions)
            return session, _runner(path, session, setting, feeds)

        return open_one

    same = found or diff(protos[0], protos[0])
    subgraphs = subgraph_names(same, protos[0], protos[-1])
    with tempfile.TemporaryDirectory() as folder:
        times = profile_sides([opener(p, regions=False) for p in paths], Path(folder), subgraphs[: len(paths)])
        ran = times
        if setting.provider == DEVICE_PROVIDER:
            options = {"enable_profiling": True, "profile_file_prefix": str(Path(folder) / "regions")}
            ran = [nodes_of_regions(*opener(p, regions=True)(options)) for p in paths]
    counts = [sum(side.nodes.values()) for side in (same.before, same.after)]
    placed = [
        replace(placement(nodes, setting.provider), file_nodes=n)
        for nodes, n in zip(ran, counts[: len(ran)], strict=True)
    ]
    after, placed_after = (times[1], placed[1]) if len(times) == 2 else (None, None)
    timed = timed_subgraphs(same, protos[0], times[0], after)
    return Profile(setting, timed, times[0], placed[0], after, placed_after)


def _require_device(profiled: Profile) -> None:
    if profiled.setting.provider == CPU:
        why = why_no_device()
        raise OptionError(f"--require-device needs a provider other than the CPU{f': {why}' if why else ''}")
    for side, placed in (("BEFORE", profiled.before_placement), ("AFTER", profiled.after_placement)):
        if placed is not None and placed.on_cpu:
            some = ", ".join(placed.on_cpu[:5]) + (", ..." if len(placed.on_cpu) > 5 else "")
            raise GraphoptError(
                f"{side}: {len(placed.on_cpu)} nodes run on the CPU instead of {profiled.setting.provider}: {some}"
            )


def _knees(rows: Sequence[BenchRow], model: onnx.ModelProto) -> list[dict[str, Any]]:
    symbol = next((s for s, role in symbols(model).items() if role == "batch"), None)
    series: dict[str, list[tuple[int, Timing, Timing | None]]] = {}
    for row in rows:
        if symbol is not None and symbol in row.setting.sizes:
            rest = {s: n for s, n in row.setting.sizes.items() if s != symbol}
            key = str(Setting(row.setting.provider, row.setting.threads, rest, row.setting.io))
            series.setdefault(key, []).append((row.setting.sizes[symbol], row.before, row.after))
    found = []
    for key, timings in series.items():
        if len(timings) > 1:
            before = knee([(n, b.throughput) for n, b, _ in timings])
            after = knee([(n, a.throughput) for n, _, a in timings if a is not None])
            found.append({"setting": key, "before": before, "after": after})
    return found


def knee(throughputs: Sequence[tuple[int, float]]) -> int | None:
    """Returns the smallest batch with a throughput within 5 % of the best; None without throughputs.

    Args:
        throughputs: (batch size, items per second) each.
    """
    best = max((throughput for _, throughput in throughputs), default=0.0)
    return min((batch for batch, throughput in throughputs if throughput >= KNEE * best), default=None)


__all__ = ["BenchReport", "BenchRow", "Profile", "Setting", "Timing", "bench"]
