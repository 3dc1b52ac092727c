"""Times optimized models in float32 and bfloat16 against ONNX Runtime's optimizer and OpenVINO.

    python scripts/bench_cpu.py                     # both runtimes; exits 1 if a model misses a limit
    .venv/bin/python scripts/bench_cpu.py --here    # this runtime alone
    python scripts/bench_cpu.py --target cuda       # time on this CPU of a file optimized for a GPU
    .venv-ort/bin/python scripts/bench_cpu.py --here --roof --only ppocr    # each node's time against its bound

The runtimes are those of .venv and .venv-ort; scripts/setup makes missing ones. The compared sides are the original,
ours in float32 and ours in bfloat16. If the package openvino is installed, the original also runs in OpenVINO, in
float32 and in OpenVINO's default precision (bfloat16 if the machine has it). All sides run interleaved in one process
with the same number of threads; ours and the original use ORT_ENABLE_ALL. If a side has one thread in all, the
process's CPU time is measured. It equals wall time on an idle machine and ignores other load on a busy one. Otherwise
wall time is measured.

The table gives the median of the original, the speedups of the other sides, the largest spread (interquartile range
over median), and the peak resident memory. The memory is that of a separate process that loads the model and runs it
twice.

The floors (minimum speedups) of the rows are for a processor that gains by bfloat16 (`bfloat16_gain`), such as one with
AVX512-BF16. On other processors ours in float32 must not be slower than the original. A file made for another target
has no bfloat16 and may take 1.1 times as long as its original.

With several threads each side begins when all threads of the process sleep: the threads of another side spin for a
while after their run. The first runs of a side do not count. The median of its runs within a fixed time is one
measurement. If there are as many threads as processors, each thread is pinned to one, as ONNX Runtime does by default.
Measurements with a spread above 10 % are repeated, up to three times in all; the table has the measurement with the
smallest spread.

--sessions 2 runs two sessions of a side at the same time, each with its own --threads threads. If the threads of both
are as many as the processors, each session has its own half of the cores. A measurement is the mean time of the
sessions. OpenVINO is left out, because it chooses its processors itself. Without --sessions it is left out for models
that it cannot read.

--roof profiles ours in float32 with one thread and takes the shortest time of each node. A node's bound is the longer
of two times: its multiply-adds at the rate of FMA instructions, and its bytes at the rate of the cache level that holds
them. Both rates are measured (scripts/rates.cpp). A node's share is its bound over its time. The last row weights
shares by multiply-adds.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import graphopt
from graphopt.measure.profiling import RUNS, WARM_UP_RUNS, read_events
from graphopt.precision.bfloat16_gain import LEAST_GAIN
from graphopt.report.multiply_adds import multiply_adds
from graphopt.runtime.discovery import bfloat16_gain, runtime_name
from graphopt.runtime.machine import cpu_name
from graphopt.targets.target import parse_target
from models import TITLES, ZOO, feeds_of, pypi
from models.prepared import relative_error
from scripts.timing import ROOT, Times, heading, interleaved, line, write_results
from tests.verification.reference64 import run_in_float64

RUNTIMES = {"rocm": ".venv", "cpu": ".venv-ort"}  # runtime name of scripts/setup -> environment
MIN_REPEATS = 7
PAUSE = 0.002  # seconds; a thread that has not run for this long is asleep
LEAST = 0.2  # minimum total seconds of the original, so a small model is repeated often
WARM, BLOCK = 0.1, 0.1  # seconds of one side at a time, before and during the measurement
SPREAD, TRIES = 0.1, 3  # with several threads a larger spread is measured again, with at most this many tries
FILES = ORIGINAL, OURS, BF16 = "original", "ours", "ours bf16"
SPED_UP = (OURS, BF16, "OpenVINO f32", "OpenVINO")  # the columns of ratios
NOISE = 0.95  # lower than this means slower, not noise
OTHER_TARGET_FLOOR = 1 / 1.1  # the floor of a file made for another target
GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)  # attributes of control flow, whose nodes are profiled
MEMORY = 1.5  # the maximum of peak resident memory, relative to the original


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Floors are for one thread and AVX512-BF16; with several threads ours must not be slower than the original. `feeds`
    returns inputs for a model with symbolic dimensions.
    """

    name: str
    floor: float
    build: Callable[[int], onnx.ModelProto]
    batches: tuple[int, ...] = (1, 8)
    bf16: float = NOISE  # the floor with bfloat16 GEMMs
    feeds: Callable[[], dict[str, Any]] | None = None


def _zoo(name: str, floor: float, batches: tuple[int, ...] = (1, 8), bf16: float = NOISE) -> Row:
    return Row(TITLES[name], floor, lambda batch: ZOO[name](batch=batch), batches, bf16)


def _bert(length: int) -> Callable[[int], onnx.ModelProto]:
    def build(batch: int) -> onnx.ModelProto:
        return _with_sizes(ZOO["bert"](dynamic=True), batch, length)

    return build


def _nudenet(batch: int) -> onnx.ModelProto:
    return _with_sizes(onnx.load(pypi.fetch("nudenet")), batch, 3, 320, 320)


def _with_sizes(model: onnx.ModelProto, *sizes: int) -> onnx.ModelProto:
    for value in model.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, sizes, strict=True):
            dim.dim_value = size
    return model


def _trained(name: str, floor: float) -> Row:
    def build(batch: int) -> onnx.ModelProto:
        return onnx.load(pypi.fetch(name))

    def feeds() -> dict[str, Any]:
        return pypi.MODELS[name].feeds[0](np.random.default_rng(0))

    return Row(f"{'drawn' if name in pypi.DRAWN else 'trained'} {name}", floor, build, (1,), feeds=feeds)


ROWS = {
    "zoo models": (
        _zoo("vgg16_bn", 1.5, bf16=2.1),
        _zoo("unet", 1.3, bf16=2.1),
        _zoo("resnet18", 1.25, bf16=2.0),
        _zoo("resnet50", 1.25, bf16=1.9),
        _zoo("yolo", 1.65, bf16=2.1),
        Row("NudeNet 320n", 1.4, _nudenet),
        _zoo("sd_block", 1.5, (1,), bf16=2.2),
        Row("BERT-base S=512", 1.03, _bert(512), bf16=2.0),
        _zoo("vit", 1.1, bf16=1.7),
        _zoo("mobilenet_v2", 1.15, bf16=1.6),
        Row("BERT-base S=128", 1.15, _bert(128), bf16=2.0),
        _zoo("chess", 1.0),
    ),
    "trained models": tuple(_trained(name, 1.5 if name == "ppocr_det" else 1.0) for name in pypi.TRAINED),
    "models drawn by lot": tuple(_trained(name, 1.0) for name in pypi.DRAWN),
}


Side = Callable[[dict[str, Any]], list[np.ndarray]]  # a function that runs a model


def _siblings(processor: int) -> str:
    """Returns the processors that share the core of this one, as Linux writes them; empty if Linux does not say."""
    path = Path(f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list")
    return path.read_text() if path.exists() else ""


def _processors(threads: int, sessions: int) -> list[list[int]]:
    """Returns the processors of each session; empty lists unless the process has one processor for each thread."""
    usable = sorted(os.sched_getaffinity(0), key=lambda processor: (_siblings(processor), processor))
    if len(usable) != threads * sessions:
        return [[]] * sessions
    return [usable[first : first + threads] for first in range(0, len(usable), threads)]


def _session(model: Path, threads: int, processors: Sequence[int] = (), **settings: Any) -> ort.InferenceSession:
    options = ort.SessionOptions()
    for name, value in settings.items():
        setattr(options, name, value)
    options.intra_op_num_threads = threads
    if len(processors) > 1:
        # Processors are counted from 1; the thread that calls run is not in the list.
        places = ";".join(str(processor + 1) for processor in processors[1:])
        options.add_session_config_entry("session.intra_op_thread_affinities", places)
    options.log_severity_level = 3
    options.register_custom_ops_library(str(graphopt.library_path()))
    return ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def _runtime(model: Path, threads: int, processors: Sequence[int]) -> Side:
    session = _session(model, threads, processors)
    return lambda feeds: list(session.run(None, feeds))


def _openvino(model: Path, threads: int, **options: Any) -> Side:
    import openvino

    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, **options}
    compiled = openvino.Core().compile_model(str(model), "CPU", settings)
    request = compiled.create_infer_request()

    def run(feeds: dict[str, Any]) -> list[np.ndarray]:
        request.infer(feeds)
        return [request.get_output_tensor(i).data for i in range(len(compiled.outputs))]

    return run


def _write(before: onnx.ModelProto, target: str, folder: Path) -> dict[str, Path]:
    """Writes the original and the optimized models; returns column name -> file."""
    models = {ORIGINAL: before, OURS: graphopt.optimize(before, target=target)[0]}
    if parse_target(target).device == "cpu":
        models[BF16] = graphopt.optimize(before, target=target, precision="bf16")[0]
    paths = {name: folder / f"{name}.onnx" for name in models}
    for name, model in models.items():
        onnx.save(model, paths[name])
    return paths


def _sides(models: Mapping[str, Path], threads: int, sessions: int) -> dict[str, list[Side]]:
    """Returns column name -> a function for each session of that side, which runs it."""
    processors = _processors(threads, sessions)
    sides = {name: [_runtime(path, threads, own) for own in processors] for name, path in models.items()}
    original = models[ORIGINAL]
    if sessions == 1 and importlib.util.find_spec("openvino") is not None:
        with suppress(RuntimeError):  # OpenVINO cannot read the model
            sides["OpenVINO f32"] = [_openvino(original, threads, INFERENCE_PRECISION_HINT="f32")]
            sides["OpenVINO"] = [_openvino(original, threads)]
    return sides


# Runs in a separate process that imports as little as possible. VmHWM is used since ru_maxrss survives exec.
_PEAK = """
import re, sys
import numpy as np
import onnxruntime as ort
options = ort.SessionOptions()
options.intra_op_num_threads = 1
options.log_severity_level = 3
options.register_custom_ops_library(sys.argv[2])
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
feeds = dict(np.load(sys.argv[3]))
for _ in range(2):
    session.run(None, feeds)
print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read()).group(1))
"""


def _peak_mebibytes(model: Path, feeds: Path) -> float:
    command = [sys.executable, "-c", _PEAK, str(model), str(graphopt.library_path()), str(feeds)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) / 1024


def _largest_spread(times: Mapping[str, Times]) -> float:
    return max(found.spread for found in times.values())


def _errors(want: list[np.ndarray], got: list[np.ndarray]) -> str:
    """Returns the largest and the RMS error of the worst output, over the RMS of the output."""
    rms = (np.sqrt(np.mean(np.square(w - g)) / np.mean(np.square(w))) for w, g in zip(want, got, strict=True))
    return f"{max(map(relative_error, got, want)):.1e} / {max(rms):.1e}"


def _reference(row: Row, model: onnx.ModelProto, feeds: dict[str, Any], cache: Path) -> list[np.ndarray]:
    """Returns float64 outputs, from a file if one runtime has stored them: they take up to a minute."""
    path = cache / f"{row.name.replace('/', ' ')}.npz"
    if not path.exists():
        np.savez(path, *run_in_float64(model, feeds))
    with np.load(path) as arrays:
        return list(arrays.values())


def _wait_until_idle() -> None:
    """Waits until no thread of this process runs, for at most half a second."""
    for _ in range(int(0.5 / PAUSE)):
        before = time.process_time()
        time.sleep(PAUSE)
        if time.process_time() - before < 0.1 * PAUSE:
            return


def _block(run: Side, feeds: dict[str, Any], seconds: float) -> list[float]:
    """Runs a side for this many seconds, at least once, and returns the duration of each run."""
    times: list[float] = []
    while not times or sum(times) < seconds:
        start = time.perf_counter()
        run(feeds)
        times.append(time.perf_counter() - start)
    return times


def _wall_times(
    sides: dict[str, list[Side]], feeds: dict[str, Any], threads: int, sessions: int, repeats: int
) -> dict[str, Times]:
    processors = _processors(threads, sessions)
    warm = threading.Barrier(sessions)

    def measure(run: Side, own: Sequence[int]) -> float:
        if own:
            os.sched_setaffinity(0, own[:1])  # of this thread, which belongs to the pool below
        _block(run, feeds, WARM)
        warm.wait()
        return statistics.median(_block(run, feeds, BLOCK))

    times: dict[str, list[float]] = {name: [] for name in sides}
    with ThreadPoolExecutor(sessions) as pool:
        for _ in range(repeats):
            for name, runs in sides.items():
                _wait_until_idle()
                times[name].append(statistics.fmean(pool.map(measure, runs, processors)))
    return {name: Times(tuple(seconds)) for name, seconds in times.items()}


def _times(
    sides: dict[str, list[Side]], feeds: dict[str, Any], threads: int, sessions: int, repeats: int
) -> dict[str, Times]:
    """Measures each side `repeats` times; with several threads, returns the try with the smallest spread."""
    if threads * sessions == 1:
        works = {name: partial(run, feeds) for name, (run,) in sides.items()}
        return interleaved(works, rounds=repeats, total=LEAST, clock=time.process_time)
    return min(_tries(sides, feeds, threads, sessions, repeats), key=_largest_spread)


def _tries(
    sides: dict[str, list[Side]], feeds: dict[str, Any], threads: int, sessions: int, repeats: int
) -> Iterator[dict[str, Times]]:
    for _ in range(TRIES):
        yield (times := _wall_times(sides, feeds, threads, sessions, repeats))
        if _largest_spread(times) <= SPREAD:
            return


def _floors(row: Row, target: str, threads: int) -> dict[str, float]:
    """Returns the minimum speedups by column name."""
    if parse_target(target).device != "cpu":
        return {OURS: OTHER_TARGET_FLOOR}
    if (bfloat16_gain() or 0.0) < LEAST_GAIN:
        return {OURS: 1.0}
    return {OURS: row.floor, BF16: row.bf16} if threads == 1 else {OURS: 1.0, BF16: NOISE}


def _too_slow(floors: Mapping[str, float], gains: Mapping[str, float]) -> list[str]:
    slow = []
    for name, floor in floors.items():
        # OpenVINO's default also uses bfloat16.
        least = max(floor, gains.get("OpenVINO", 0.0)) if name == BF16 else floor
        if gains[name] < least:
            slow.append(f"{name} under {least:.2f}x")
    return slow


def _too_large(peaks: Mapping[str, float]) -> list[str]:
    ratios = {name: peak / peaks[ORIGINAL] for name, peak in peaks.items()}
    return [f"{name} {ratio:.2f}x the memory" for name, ratio in ratios.items() if ratio > MEMORY]


def _rates() -> tuple[float, dict[int, float]]:
    """Returns the multiply-adds per second of one thread, and buffer size in bytes -> bytes read per second."""
    sizes = [2**n for n in (14, 17, 19, 22, 24, 28)]
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/rates"
        source = Path(__file__).with_name("rates.cpp")
        subprocess.run(["g++", "-std=c++17", "-O3", "-march=native", "-o", program, source], check=True)
        output = subprocess.run([program, *map(str, sizes)], check=True, capture_output=True, text=True).stdout
    fma, *rates = map(float, output.split())
    return fma, dict(zip(sizes, rates, strict=True))


def _real_outputs(weight: np.ndarray) -> float:
    """Returns the share of the output channels of a blocked (NCHWc) weight that are not padding, that is, not zero."""
    block = 16 if "avx512f" in Path("/proc/cpuinfo").read_text() else 8
    return float(np.mean(np.any(weight.reshape(len(weight) // block, -1, block), axis=1)))


def _profiled(model: Path, feeds: dict[str, Any]) -> Iterator[tuple[ir.Node, float, float, int]]:
    """Profiles a model; yields each node of the runtime's graph, its seconds, its multiply-adds and its bytes."""
    optimized = model.with_name("optimized.onnx")
    files: dict[str, Any] = {
        "profile_file_prefix": str(model.with_name("roof")),
        "optimized_model_filepath": str(optimized),
    }
    session = _session(model, 1, enable_profiling=True, **files)
    for _ in range(WARM_UP_RUNS + RUNS):
        session.run(None, feeds)
    events = read_events(Path(session.end_profiling()).read_text())
    seconds: dict[str, float] = {}  # the shortest run of each node, which other load disturbs least
    last = {}
    for event in events:
        name, _, kind = event["name"].rpartition("_kernel_")
        if kind == "time":
            seconds[name] = min(event["dur"] * 1e-6, seconds.get(name, math.inf))
            last[name] = event["args"]
    dims = {name: array.shape for name, array in feeds.items()}
    for node in ir.load(optimized).graph.all_nodes():
        if node.name not in seconds or any(a.type in GRAPHS for a in node.attributes.values()):
            continue
        arguments = last[node.name]
        for value, shape in zip(node.outputs, arguments["output_type_shape"], strict=False):
            dims[value.name or ""] = tuple(*shape.values())
        weights = [v.const_value for v in node.inputs if v is not None and v.const_value is not None]
        real = 1.0
        if (node.domain, node.op_type) == ("com.microsoft.nchwc", "Conv"):
            node.domain, real = "", _real_outputs(weights[0].numpy())
        moved = int(arguments["activation_size"]) + int(arguments["output_size"]) + sum(w.nbytes for w in weights)
        yield node, seconds[node.name], real * (multiply_adds(node, dims) or 0), moved


def _roof(model: Path, feeds: dict[str, Any]) -> str:
    """Returns a table: the nodes that take 1 % of the time or have 5 million multiply-adds, and the model."""
    fma, rates = _rates()
    rows = []
    for node, seconds, adds, moved in _profiled(model, feeds):
        rate = rates[min((size for size in rates if size >= moved), default=max(rates))]
        rows.append((seconds, adds, moved, max(adds / fma, moved / rate), f"{node.op_type} {node.name}"))
    total, all_adds = sum(row[0] for row in rows), sum(row[1] for row in rows)
    weighted = sum(adds * bound / seconds for seconds, adds, _, bound, _ in rows) / max(all_adds, 1)
    table = [heading(["node", "ms", "M multiply-adds", "MiB", "bound, ms", "share"])]
    for seconds, adds, moved, bound, name in sorted(rows, reverse=True):
        if seconds >= 0.01 * total or adds >= 5e6:
            numbers = f"{1e3 * seconds:.3f}", f"{adds / 1e6:.2f}", f"{moved / 2**20:.2f}", f"{1e3 * bound:.3f}"
            table.append(line([name, *numbers, f"{bound / seconds:.0%}"]))
    sums = f"{1e3 * total:.3f}", f"{all_adds / 1e6:.2f}", "", ""
    return "\n".join([*table, line(["weighted by multiply-adds", *sums, f"{weighted:.0%}"])])


class Bench:
    """Measures rows on the runtime of this interpreter and prints the results."""

    def __init__(self, target: str, sessions: int, repeats: int, skip_errors: bool, cache: Path) -> None:
        self.target = target
        self.sessions = sessions
        self.repeats = repeats
        self.skip_errors = skip_errors
        self.cache = cache
        self.failures = 0  # number of exceeded limits
        self._rows: list[tuple[str, int, int, dict[str, float]]] = []  # model, batch, threads, ratios
        self._gains: dict[tuple[str, int, int], list[dict[str, float]]] = {}  # by group, batch and threads
        memory = (f"{name} MiB" for name in FILES)
        columns = ("model", "batch", "threads", "original ms", *SPED_UP, "spread", *memory, "misses")
        self._times = [f"onnxruntime {ort.__version__}, CPU, files for {target}\n", heading(columns)]
        self._errors = ["\nLargest / RMS error against float64, over the RMS of the output\n"]
        self._errors.append(heading(["model", ORIGINAL, *SPED_UP]))

    def measure(self, group: str, row: Row, batch: int, threads: list[int]) -> None:
        before = row.build(batch)
        models = _write(before, self.target, self.cache)
        feeds = row.feeds() if row.feeds else feeds_of(before)
        np.savez(self.cache / "feeds.npz", **feeds)
        peaks = {name: _peak_mebibytes(path, self.cache / "feeds.npz") for name, path in models.items()}
        faults = _too_large(peaks)
        if batch == 1 and not self.skip_errors:
            want = _reference(row, before, feeds, self.cache)
            errors = {name: _errors(want, run(feeds)) for name, (run,) in _sides(models, 1, 1).items()}
            self._errors.append(line([row.name, *(errors.get(name, "") for name in (ORIGINAL, *SPED_UP))]))
        for count in threads:
            sides = _sides(models, count, self.sessions)
            times = _times(sides, feeds, count, self.sessions, self.repeats)
            medians = {name: found.median for name, found in times.items()}
            gains = {name: medians[ORIGINAL] / median for name, median in medians.items() if name != ORIGINAL}
            self._gains.setdefault((group, batch, count), []).append(gains)
            self._rows.append((row.name, batch, count, gains))
            faults += _too_slow(_floors(row, self.target, count), gains)
            self.failures += len(faults)
            cells = [row.name, batch, self._threads(count), f"{medians[ORIGINAL] * 1e3:.1f}"]
            cells += [f"{gains[name]:.2f}x" if name in gains else "" for name in SPED_UP]
            cells.append(f"{_largest_spread(times):.0%}")
            cells += [f"{peaks[name]:.0f}" if name in peaks else "" for name in FILES]
            self._times.append(line([*cells, ", ".join(faults)]))
            print(self._times[-1], file=sys.stderr, flush=True)
            faults = []

    def _threads(self, count: int) -> str:
        return f"{self.sessions} x {count}" if self.sessions > 1 else str(count)

    def results(self, threads: int) -> list[dict[str, Any]]:
        """Returns the ratios at batch 1 for each model."""
        kinds = {"float32": OURS, "bfloat16": BF16}
        return [
            {"model": name, **{kind: round(gains[side], 2) for kind, side in kinds.items() if side in gains}}
            for name, batch, count, gains in self._rows
            if (batch, count) == (1, threads)
        ]

    def show(self) -> None:
        for (group, batch, threads), rows in self._gains.items():
            columns = {name: [gains[name] for gains in rows if name in gains] for name in SPED_UP}
            means = {name: statistics.geometric_mean(ratios) for name, ratios in columns.items() if ratios}
            cells = (f"{means[name]:.2f}x" if name in means else "" for name in SPED_UP)
            rest = [""] * (len(FILES) + 2)
            title = f"geometric mean, {len(rows)} {group}"
            self._times.append(line([title, batch, self._threads(threads), "", *cells, *rest]))
        print(*self._times, *self._errors, sep="\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only rows with this in their name")
    parser.add_argument("--target", default="cpu", help="the target of the optimized files")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--sessions", type=int, default=1, help="sessions of a side that run at the same time")
    parser.add_argument("--batch", type=int, nargs="*", help="only these batch sizes")
    parser.add_argument("--repeats", type=int, default=MIN_REPEATS)
    parser.add_argument("--skip-errors", action="store_true", help="skip the float64 run (a minute per model)")
    parser.add_argument("--here", action="store_true", help="use only this interpreter's runtime")
    parser.add_argument("--write", type=Path, help="write a JSON file for scripts/pages.py; needs --here")
    parser.add_argument("--roof", action="store_true", help="compare each node's time with its bound; needs --here")
    parser.add_argument("--cache", type=Path, help="a folder that keeps the float64 results between runs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cache = arguments.cache or Path(folder)
        cache.mkdir(parents=True, exist_ok=True)
        if arguments.here:
            repeats = max(arguments.repeats, MIN_REPEATS)
            bench = Bench(arguments.target, arguments.sessions, repeats, arguments.skip_errors, cache)
            found = [(g, row) for g, rows in ROWS.items() for row in rows if arguments.only.lower() in row.name.lower()]
            for _, row in found if arguments.roof else ():
                before = row.build(1)
                ours = _write(before, arguments.target, cache)[OURS]
                print(f"\n{row.name}\n\n{_roof(ours, row.feeds() if row.feeds else feeds_of(before))}")
            for group, row in found if not arguments.roof else ():
                for batch in sorted(set(row.batches) & set(arguments.batch or row.batches)):
                    bench.measure(group, row, batch, arguments.threads)
            if not arguments.roof:
                bench.show()
            if arguments.write is not None:
                ratios = bench.results(arguments.threads[0])
                columns = {"float32": "float32", "bfloat16": "bf16"}
                facts = {"machine": cpu_name(), "runtime": runtime_name(), "threads": arguments.threads[0]}
                write_results(arguments.write, ratios, columns, **facts)
            return 1 if bench.failures else 0
        status = 0
        for runtime, environment in RUNTIMES.items():
            python = ROOT / environment / "bin" / "python"
            if not python.exists():
                subprocess.run([ROOT / "scripts" / "setup", runtime], check=True)
            command = [str(python), __file__, *sys.argv[1:], "--here", "--cache", str(cache)]
            status = max(status, subprocess.run(command, check=False).returncode)
        return status


if __name__ == "__main__":
    sys.exit(main())
