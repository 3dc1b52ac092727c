"""`tune`: measures on this machine which rewrites are faster.

The candidates of a class have the same operator, element type, shapes and neighbours. One candidate of each class is
cut out of the model with its surroundings. Estimates decide on the other rewrites in this cut-out model. Its inputs are
the values that the whole model computes there. It is timed with and without the rewrite on the provider of the target.
Finally the whole model is timed with three sets of rewrites: those that the measurements accept, those that the
estimates accept, and none of the measured classes.

Our provider has several implementations of a convolution. If a cache file is given, the provider measures these as well
and stores the results in a second file for later sessions (docs/provider.md, Measured choices).
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

import graphopt
from graphopt import files
from graphopt.errors import GraphoptError, ModelLoadError, naming_originals
from graphopt.graph import reading, writing
from graphopt.measure.bench import (
    NOISE_FLOOR,
    Setting,
    bound_runner,
    feeds_for,
    interleave,
    ratio,
    size_grid,
    trial_runner,
    verdict,
)
from graphopt.measure.measured_session import open_session
from graphopt.measure.profiling import Run
from graphopt.optimizer import optimize
from graphopt.options import Precision
from graphopt.progress import Progress, time_left
from graphopt.remarks import node_label
from graphopt.runtime.auto import provider_of, resolve_target
from graphopt.runtime.discovery import CPU, DEVICE_PROVIDER, device_of, memory_of, runtime_name
from graphopt.targets.profit import Candidate, Estimates, Profit, Workload
from graphopt.targets.target import Target, TargetName

CACHE_FORMAT = 1
# A candidate's surroundings reach these numbers of steps along the graph's edges. They include a convolution, its Add,
# its activation and the next convolution, because the runtime's layout changes between them belong to the cost.
NODES_BEFORE, NODES_AFTER = 2, 3
MAX_SECONDS_A_CLASS = 3.0
WHOLE_MODEL_SHARE = 0.25  # share of the option `seconds` for the times of the whole model


@dataclass(frozen=True)
class Measurement:
    """Measurement of one class of candidates.

    Attributes:
        speedup: time without the rewrite divided by time with it, for the candidate and its surroundings; median over
            rounds.
        low, high: 95 % interval of the speedup.
    """

    speedup: float
    low: float
    high: float

    @property
    def is_faster(self) -> bool | None:
        """Whether the rewrite is faster beyond noise; None if the interval is too wide to decide."""
        if verdict(self.speedup, self.low, self.high) == "faster":
            return True
        return False if self.high < 1 + NOISE_FLOOR else None


@dataclass(frozen=True)
class CacheKey:
    """Machine and versions of measurements; `precision` is the type that the model was converted to, "" for none."""

    device: str
    provider: str
    threads: int
    runtime: str
    library: str
    precision: str = ""


@dataclass
class TuningCache:
    """Measurements by machine and class of candidates, stored in a JSON file that can be distributed."""

    entries: dict[CacheKey, dict[str, Measurement]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> TuningCache:
        """Reads a cache file.

        Raises:
            ModelLoadError: the file cannot be read, or is not a tuning cache of a known format.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["format"] != CACHE_FORMAT:
                raise ModelLoadError(f"{path}: is a tuning cache of format {data['format']} instead of {CACHE_FORMAT}")
            return cls(
                {
                    CacheKey(**entry["machine"]): {name: Measurement(**m) for name, m in entry["measurements"].items()}
                    for entry in data["entries"]
                }
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelLoadError(f"{path}: cannot be read as a tuning cache: {error}") from None

    def write(self, path: Path) -> None:
        entries = [
            {"machine": asdict(key), "measurements": {name: asdict(m) for name, m in sorted(measurements.items())}}
            for key, measurements in self.entries.items()
        ]
        files.write(path, json.dumps({"format": CACHE_FORMAT, "entries": entries}, indent=2) + "\n")


class Measured:
    """Cost model of measurements. A class without a clear measurement is estimated."""

    def __init__(self, measurements: Mapping[str, Measurement], sizes: Mapping[str, int]) -> None:
        self._measurements, self._sizes = measurements, sizes

    def decline(self, candidate: Candidate) -> str:
        found = self._measurements.get(candidate.describe().key(self._sizes))
        if found is None or found.is_faster is None:
            return candidate.no_gain
        return "" if found.is_faster else f"measured here: {found.speedup:.2f}x ({found.low:.2f}-{found.high:.2f})"


class _DeclineAll:
    """Cost model that declines every candidate and collects them."""

    def __init__(self) -> None:
        self.seen: dict[str, Workload] = {}

    def decline(self, candidate: Candidate) -> str:
        workload = candidate.describe()
        self.seen.setdefault(workload.label, workload)
        return "left out for comparison"


class _OnlyCandidate:
    """Cost model of estimates, except for one candidate."""

    def __init__(self, label: str, *, rewrite: bool) -> None:
        self.label, self._rewrite = label, rewrite
        self.was_considered = False

    def decline(self, candidate: Candidate) -> str:
        if candidate.describe().label != self.label:
            return candidate.no_gain
        self.was_considered = True
        return "" if self._rewrite else "left out for comparison"


@dataclass
class Tuning:
    """Result of `tune`.

    Attributes:
        profit: cost model for the option `profit` of `optimize`.
        chosen: name of that cost model: "measurements", "estimates" or "none" (declines every candidate).
        machine: machine and versions of the measurements.
        measurements: class of candidates -> measurement, for this model.
        whole_model: name of each of the three cost models -> milliseconds of the whole model.
        record: file with the fastest implementations, for the option `measured` of our provider; None if none were
            measured.
        notes: classes that were not measured, with the reasons.
    """

    profit: Profit
    chosen: str
    machine: CacheKey
    measurements: dict[str, Measurement] = field(default_factory=dict)
    whole_model: dict[str, float] = field(default_factory=dict)
    record: Path | None = None
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {
            "chosen": self.chosen,
            "machine": asdict(self.machine),
            "measurements": {name: asdict(m) for name, m in self.measurements.items()},
            "whole_model_ms": self.whole_model,
            "record": None if self.record is None else str(self.record),
            "notes": self.notes,
        }


def tune(
    model: Any,
    *,
    target: TargetName | str = "auto",
    precision: Precision | None = None,
    threads: int = 0,
    sizes: Mapping[str, int] | None = None,
    seconds: float = 60.0,
    cache: Path | None = None,
    measure: bool = True,
    progress: Progress | None = None,
) -> Tuning:
    """Measures each class of candidates of a model, and then the whole model.

    Args:
        model: the model, in any form that `optimize` accepts.
        target: as for `optimize`; it must support our operators, and this machine must be able to run it.
        precision: as for `optimize`; candidates are measured in it.
        threads: threads of the runtime's pool; 0 leaves the choice to the runtime.
        sizes: symbolic dimension -> size to tune for; others have the defaults of `bench`.
        seconds: approximate seconds for all measurements; remaining classes are estimated.
        cache: file with earlier measurements; with `measure`, new ones are added. Our provider then also measures its
            implementations and stores the fastest in a second file with the suffix ".measured".
        measure: False uses measurements of `cache` only and runs nothing.
        progress: called with a line for each step.

    Returns:
        The measurements, and the cost model for `optimize`.

    Raises:
        ModelLoadError: the model or the cache cannot be read.
        OptionError: the target does not support our operators, or an unknown dimension.
        GraphoptError: the model does not run.
        RuntimeMissingError: no ONNX Runtime, or no native library.
    """
    say = progress or (lambda _: None)
    chosen, _ = resolve_target(target)
    provider = provider_of(chosen)
    name = device_of(provider).name
    machine = CacheKey(name, provider, threads, runtime_name(), graphopt.__version__, precision or "")
    store = TuningCache.read(cache) if cache is not None and (cache.exists() or not measure) else TuningCache()
    measurements = store.entries.setdefault(machine, {})

    record = None
    if measure and cache is not None and provider == DEVICE_PROVIDER:
        record = cache.with_name(f"{cache.name}.measured")

    with tempfile.TemporaryDirectory() as folder:
        work = _Work(Path(folder), model, chosen, provider, threads, dict(sizes or {}), precision, record)
        classes: dict[str, Workload] = {}
        for workload in work.candidates.values():
            classes.setdefault(workload.key(work.sizes), workload)
        tuning = Tuning(Measured(measurements, work.sizes), "measurements", machine)
        if measure:
            with naming_originals(work.copies):
                end = time.perf_counter() + seconds
                work.runner(work.plain, work.feeds)  # raises the error of a model that does not run
                _measure_classes(work, classes, measurements, seconds * (1 - WHOLE_MODEL_SHARE), tuning, say)
                if classes:
                    left = max(end - time.perf_counter(), seconds * WHOLE_MODEL_SHARE)
                    say(f"timing the whole model ({time_left(left)})")
                    _choose(work, tuning, left)
            if cache is not None:
                store.write(cache)
            if record is not None and record.exists():
                tuning.record = record
        tuning.measurements = {name: measurements[name] for name in classes if name in measurements}
        unclear = [name for name in classes if name not in measurements or measurements[name].is_faster is None]
        if unclear:
            tuning.notes.append(
                f"{len(unclear)} of {len(classes)} classes of candidates are estimated, without a clear measurement"
            )
    return tuning


class _Work:
    """The model without the rewrites that the cost model decides on, in its original precision, and its candidates."""

    def __init__(
        self,
        folder: Path,
        original: Any,
        target: Target,
        provider: str,
        threads: int,
        sizes: dict[str, int],
        precision: Precision | None = None,
        record: Path | None = None,
    ) -> None:
        self.folder, self.target, self.provider, self.threads = folder, str(target), provider, threads
        self._record = record
        self.copies: dict[str, str] = {}  # path of a copy -> the user's model, for error messages
        self._on_cpu = target.device == "cpu"
        self._original, self._precision = original, precision
        recorder = _DeclineAll()
        self.plain = self.rewritten(recorder, "plain")
        if precision is not None:  # candidates are cut out before the conversion and converted separately
            self.plain = self._write("unconverted", profit=_DeclineAll())
        self.candidates = recorder.seen
        self._proto = reading.read_proto(self.plain)
        (self.sizes,) = size_grid(self._proto, {s: (n,) for s, n in sizes.items()}, ())

    @cached_property
    def feeds(self) -> dict[str, Any]:
        """Inputs of the whole model."""
        return feeds_for(self.plain, self._proto, Setting(self.provider, self.threads, self.sizes, "host"))

    def rewritten(self, profit: Profit, name: str) -> Path:
        return self._write(name, profit=profit, precision=self._precision)

    def rewritten_cut(self, cut: onnx.ModelProto, profit: Profit) -> onnx.ModelProto:
        """Optimizes a cut-out candidate in the final precision; on a device with its inputs and outputs converted."""
        keep_io = self._precision is None or self._on_cpu
        side, _ = optimize(cut, target=self.target, profit=profit, precision=self._precision, keep_io=keep_io)
        return side

    def _write(self, name: str, **options: Any) -> Path:
        is_file = isinstance(self._original, str | Path)
        path = self.folder / name / (Path(self._original).name if is_file else "model.onnx")
        path.parent.mkdir(exist_ok=True)
        self.copies[str(path)] = str(self._original) if is_file else "the model"
        if is_file:
            optimize(self._original, path, target=self.target, **options)
        else:
            after, _ = optimize(self._original, target=self.target, **options)
            writing.save(reading.load(after).model, path)
        return path

    def runner(self, path: Path, feeds: dict[str, Any]) -> Run:
        """Returns a function that runs a model once.

        Raises:
            GraphoptError: the model does not run.
        """
        session = open_session(path, self.provider, self.threads, record=self._record)
        halves = {i.name for i in session.get_inputs() if i.type == "tensor(float16)"}
        feeds = {n: a.astype(np.float16) if n in halves else a for n, a in feeds.items()}
        failure = trial_runner(path, self.provider, self.threads, session)(feeds)
        if failure:
            sizes = ", ".join(f"{s}={n}" for s, n in self.sizes.items())
            raise GraphoptError(
                f"{path}: the model does not run with {sizes or 'fixed sizes'}: {failure}; give sizes that it accepts "
                "(--dim)"
            )
        if self.provider == CPU:
            return lambda: session.run(None, feeds)
        return bound_runner(session, feeds, memory_of(session))


def _measure_classes(
    work: _Work,
    classes: Mapping[str, Workload],
    measurements: dict[str, Measurement],
    seconds: float,
    tuning: Tuning,
    say: Progress,
) -> None:
    end = time.perf_counter() + seconds
    todo = [name for name in classes if name not in measurements or measurements[name].is_faster is None]
    for i, name in enumerate(todo):
        left = end - time.perf_counter()
        if left <= 0:
            return
        all_left = left + seconds * WHOLE_MODEL_SHARE / (1 - WHOLE_MODEL_SHARE)
        say(f"class {i + 1} of {len(todo)}: {name} ({time_left(all_left)})")
        try:
            found = _measure(work, classes[name], min(MAX_SECONDS_A_CLASS, left / (len(todo) - i)))
        except GraphoptError as error:
            tuning.notes.append(f"{name}: not measured: {error}")
        else:
            measurements[name] = found
            say(f"class {i + 1} of {len(todo)}: {name}: {found.speedup:.2f}x")


def _measure(work: _Work, workload: Workload, seconds: float) -> Measurement:
    cut, feeds = _cut_out(work, workload)
    runs = []
    for rewrite in (False, True):
        profit = _OnlyCandidate(workload.label, rewrite=rewrite)
        side = work.rewritten_cut(cut, profit)
        if not profit.was_considered:
            raise GraphoptError("the rewrite needs more of the model than the candidate's surroundings")
        path = work.folder / f"side_{rewrite}.onnx"
        onnx.save(side, path)
        runs.append(work.runner(path, feeds))
    return Measurement(*ratio(*interleave(runs, seconds)))


def _cut_out(work: _Work, workload: Workload) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Extracts the nodes around a candidate as a model, with the inputs that the whole model computes for them."""
    source = reading.load(work.plain)
    graph = source.model.graph
    anchor = next((n for n in graph if node_label(n) == workload.label), None)
    if anchor is None:
        raise GraphoptError("the candidate is inside a subgraph or a function")
    region = _surroundings(anchor)
    inputs = dict.fromkeys(v for n in region for v in n.inputs if v is not None and _comes_from_outside(v, region))
    inner = dict.fromkeys(o for n in region for o in n.outputs)
    outputs = [v for v in inner if v.is_graph_output() or any(u not in region for u in v.consumers())]
    names = [v.name or "" for v in inputs]
    values = _values(work, [n for n in names if n not in work.feeds]) | work.feeds
    cut = ir.Model(
        ir.convenience.extract(graph, list(inputs), outputs),
        ir_version=source.model.ir_version,
        functions=list(source.model.functions.values()),
    )
    for value in cut.graph.inputs:
        array = values[value.name or ""]
        value.shape = ir.Shape(array.shape)
        value.dtype = ir.DataType.from_numpy(array.dtype)
    ir.external_data.load_to_model(cut)
    return ir.serde.serialize_model(cut), {n: values[n] for n in names}


def _comes_from_outside(value: ir.Value, region: set[ir.Node]) -> bool:
    return not value.is_initializer() and value.producer() not in region


def _surroundings(anchor: ir.Node) -> set[ir.Node]:
    region = {anchor}
    for depth, neighbours in ((NODES_AFTER, ir.Node.successors), (NODES_BEFORE, ir.Node.predecessors)):
        wave = set(region)
        for _ in range(depth):
            wave = {m for n in wave for m in neighbours(n) if m.graph is anchor.graph} - region
            region |= wave
    return region


def _values(work: _Work, names: Sequence[str]) -> dict[str, Any]:
    """Computes intermediate values of the whole model, name -> array."""
    proto = onnx.load(work.plain, load_external_data=False)
    have = {o.name for o in proto.graph.output}
    proto.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in have)
    path = work.plain.with_name("values.onnx")  # beside the data files of `plain`
    onnx.save(proto, path)
    session = open_session(path, CPU, work.threads)
    return dict(zip(names, session.run(list(names), work.feeds), strict=True)) if names else {}


def _choose(work: _Work, tuning: Tuning, seconds: float) -> None:
    """Times the whole model with three cost models; chooses "measurements" unless another is faster beyond noise."""
    models: dict[str, Profit] = {"measurements": tuning.profit, "estimates": Estimates(), "none": _DeclineAll()}
    runs = {name: work.runner(work.rewritten(profit, name), work.feeds) for name, profit in models.items()}
    times = dict(zip(runs, interleave(list(runs.values()), seconds), strict=True))
    tuning.whole_model = {name: sorted(t)[len(t) // 2] * 1e3 for name, t in times.items()}
    tuning.chosen = fastest(times)
    tuning.profit = models[tuning.chosen]


def fastest(times: Mapping[str, Sequence[float]]) -> str:
    """Returns the first name, unless a later one is faster beyond noise.

    Args:
        times: name -> seconds of each round.
    """
    best, *others = times
    for name in others:
        if verdict(*ratio(times[best], times[name])) == "faster":
            best = name
    return best
