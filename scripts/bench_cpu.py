"""Times models as `optimize` writes them, in float32 and bfloat16, against ONNX Runtime's own optimizer and OpenVINO.

    python scripts/bench_cpu.py                     # both runtimes; exits 1 when a number is past its limit
    .venv/bin/python scripts/bench_cpu.py --here    # this runtime alone

The runtimes are those of .venv and .venv-ort, which scripts/setup makes where they are absent. Original, ours in
float32, ours in bfloat16 and, where the package openvino is there, the original in OpenVINO, in float32 and by its
default (which is bfloat16 where the machine has it), run interleaved in one process with the same threads, ours and
the original under ORT_ENABLE_ALL. One thread is timed by its own processor time, which is wall time on an idle
machine and blind to what else runs on a busy one; several by the clock. The table gives medians of the original, how
many times faster the others are, the largest spread (interquartile range over median), the errors of all at batch 1
against float64 (largest and root mean square, over the RMS of the output), and the peak resident memory of a process
of its own for the original and ours in float32 that loads the model and runs it twice.

Several threads of one side must not meet those of another, which look for work for a while after their run. So a side
begins when no thread of the process runs any more; its first runs, in which its threads wake and find their processors,
do not count; and then it runs for a while, whose median run is one measurement. As many threads as processors have one
each, which is what the runtime does by default: two on one processor would wait for each other until the system moves
one, which takes longer than many a model. A spread of more than a tenth is measured again, up to three times in all;
the table has the try of the smallest spread.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
import onnxruntime as ort
from rich.console import Console
from rich.table import Table

import graphopt

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from models import ZOO, pypi
from scripts import float64

ROOT = Path(__file__).resolve().parent.parent

RUNTIMES = {"rocm": ".venv", "cpu": ".venv-ort"}  # scripts/setup's names for the two
MIN_REPEATS = 7
PAUSE = 0.002  # seconds: threads that have not run for so long sleep
WARM, BLOCK = 0.1, 0.1  # seconds of one side at a time, before they count and when they do
SPREAD, TRIES = 0.1, 3  # with several threads a larger spread is measured again, so many times in all
NOISE = 0.95  # "never slower": below this is a bug, not noise


@dataclass(frozen=True)
class Row:
    """One line of the table: floors are of one thread, several must not be slower than the runtime alone.

    `feeds` are what a model with symbolic dimensions is run on.
    """

    name: str
    floor: float
    build: Callable[[int], onnx.ModelProto]
    batches: tuple[int, ...] = (1, 8)
    memory: float | None = None  # the most of the original's peak resident memory at batch 1
    bf16: float = NOISE  # the floor with products in bfloat16, on a machine whose processor multiplies them
    feeds: Callable[[], dict[str, Any]] | None = None


def _zoo(name: str) -> Callable[[int], onnx.ModelProto]:
    return lambda batch: ZOO[name](batch=batch)


def _bert(length: int) -> Callable[[int], onnx.ModelProto]:
    def build(batch: int) -> onnx.ModelProto:
        model = ZOO["bert"](dynamic=True)
        for value in model.graph.input:
            for dim, size in zip(value.type.tensor_type.shape.dim, (batch, length), strict=True):
                dim.dim_value = size
        return model

    return build


def _nudenet(batch: int) -> onnx.ModelProto:
    model = onnx.load(pypi.fetch("nudenet"))
    for dim, size in zip(model.graph.input[0].type.tensor_type.shape.dim, (batch, 3, 320, 320), strict=True):
        dim.dim_value = size
    return model


def _trained(name: str, floor: float) -> Row:
    def build(batch: int) -> onnx.ModelProto:
        return onnx.load(pypi.fetch(name))

    def feeds() -> dict[str, Any]:
        return pypi.TRAINED[name].feeds[0](np.random.default_rng(0))

    return Row(f"trained {name}", floor, build, (1,), feeds=feeds)


ROWS = (
    Row("VGG16-BN 224", 1.5, _zoo("vgg16_bn"), memory=2.0, bf16=2.1),
    Row("U-Net 256", 1.3, _zoo("unet"), bf16=2.1),
    Row("ResNet-18 224", 1.25, _zoo("resnet18"), bf16=2.0),
    Row("ResNet-50 224", 1.25, _zoo("resnet50"), memory=1.5, bf16=1.9),
    Row("YOLO-style 416", 1.65, _zoo("yolo"), bf16=2.1),
    Row("NudeNet 320n", 1.4, _nudenet),
    Row("SD-UNet block 64x64", 1.5, _zoo("sd_block"), (1,), bf16=2.2),
    Row("BERT-base S=512", 1.03, _bert(512), bf16=2.0),
    Row("ViT-B/16", 1.1, _zoo("vit"), bf16=1.7),
    Row("MobileNetV2", 1.15, _zoo("mobilenet_v2"), bf16=1.6),
    Row("BERT-base S=128", 1.15, _bert(128), bf16=2.0),
    *(_trained(name, 1.5 if name == "ppocr_det" else 1.0) for name in pypi.TRAINED),
)


def _feeds(model: onnx.ModelProto) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    feeds: dict[str, Any] = {}
    for value in model.graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            feeds[value.name] = rng.standard_normal(shape, np.float32)
        elif "mask" in value.name:
            feeds[value.name] = np.ones(shape, np.int64)
        else:
            feeds[value.name] = rng.integers(0, 2, shape)
    return feeds


class Side(Protocol):
    """Runs a model."""

    def __call__(self, feeds: dict[str, Any]) -> list[np.ndarray]: ...


def _processors(threads: int) -> list[int]:
    """For each thread one of its own, where they are all that this process may use; else none."""
    usable = sorted(os.sched_getaffinity(os.getpid()))
    return usable if len(usable) == threads else []


def _runtime(model: Path, threads: int) -> Side:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    if threads > 1 and (processors := _processors(threads)):
        # Counted from 1; the thread that calls run is not among them.
        places = ";".join(str(processor + 1) for processor in processors[1:])
        options.add_session_config_entry("session.intra_op_thread_affinities", places)
    options.log_severity_level = 3
    options.register_custom_ops_library(str(graphopt.library_path()))
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
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


def _sides(models: Sequence[Path], threads: int) -> dict[str, Side]:
    """What runs in turn, by the name of its column; the models are the original, ours and ours in bfloat16."""
    original, single, brain = models
    sides = {name: _runtime(path, threads) for name, path in (("original", original), ("ours", single))}
    sides["ours bf16"] = _runtime(brain, threads)
    if importlib.util.find_spec("openvino") is not None:
        sides["OpenVINO f32"] = _openvino(original, threads, INFERENCE_PRECISION_HINT="f32")
        sides["OpenVINO"] = _openvino(original, threads)
    return sides


# A process of its own, which knows as little as possible beside the runtime. VmHWM, since ru_maxrss survives exec.
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


def _spread(times: list[float]) -> float:
    low, _, high = statistics.quantiles(times, n=4)
    return (high - low) / statistics.median(times)


def _largest_spread(times: dict[str, list[float]]) -> float:
    return max(map(_spread, times.values()))


@dataclass(frozen=True)
class Errors:
    """The worst output's, over the RMS of the output."""

    largest: float
    rms: float

    @classmethod
    def of(cls, want: list[np.ndarray], got: list[np.ndarray]) -> Errors:
        size = [np.sqrt(np.mean(np.square(w))) for w in want]
        difference = [np.abs(w - g) for w, g in zip(want, got, strict=True)]
        return cls(
            max(float(d.max() / s) for d, s in zip(difference, size, strict=True)),
            max(float(np.sqrt(np.mean(np.square(d))) / s) for d, s in zip(difference, size, strict=True)),
        )

    def __str__(self) -> str:
        return f"{self.largest:.1e} / {self.rms:.1e}"


def _reference(row: Row, model: onnx.ModelProto, feeds: dict[str, Any], cache: Path) -> list[np.ndarray]:
    """Takes up to a minute, so the second runtime reads what the first one left."""
    path = cache / f"{row.name.replace('/', ' ')}.npz"
    if not path.exists():
        np.savez(path, *float64.run(model, feeds))
    with np.load(path) as arrays:
        return list(arrays.values())


def _rest() -> None:
    """Waits until no thread of this process runs, half a second at most."""
    for _ in range(int(0.5 / PAUSE)):
        before = time.process_time()
        time.sleep(PAUSE)
        if time.process_time() - before < 0.1 * PAUSE:
            return


def _one_thread(sides: dict[str, Side], feeds: dict[str, Any], repeats: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in sides}
    for run in sides.values():
        run(feeds)
    for _ in range(repeats):
        for name, run in sides.items():
            start = time.process_time()
            run(feeds)
            times[name].append(time.process_time() - start)
    return times


def _block(run: Side, feeds: dict[str, Any], seconds: float) -> list[float]:
    """Seconds of each run of so many seconds, one at least."""
    times: list[float] = []
    while not times or sum(times) < seconds:
        start = time.perf_counter()
        run(feeds)
        times.append(time.perf_counter() - start)
    return times


def _several_threads(
    sides: dict[str, Side], feeds: dict[str, Any], threads: int, repeats: int
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in sides}
    for run in sides.values():
        run(feeds)
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, _processors(threads)[:1] or everywhere)
    try:
        for _ in range(repeats):
            for name, run in sides.items():
                _rest()
                _block(run, feeds, WARM)
                times[name].append(statistics.median(_block(run, feeds, BLOCK)))
    finally:
        os.sched_setaffinity(0, everywhere)
    return times


def _times(sides: dict[str, Side], feeds: dict[str, Any], threads: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of a run of each side, so many times; with several threads those of the try of the smallest spread."""
    if threads == 1:
        return _one_thread(sides, feeds, repeats)
    best: dict[str, list[float]] = {}
    for _ in range(TRIES):
        times = _several_threads(sides, feeds, threads, repeats)
        if not best or _largest_spread(times) < _largest_spread(best):
            best = times
        if _largest_spread(best) <= SPREAD:
            break
    return best


def _bench(arguments: argparse.Namespace, cache: Path) -> int:
    """Measures on the runtime of this interpreter; the number of limits that are not kept."""
    table = Table(title=f"onnxruntime {ort.__version__}, CPU")
    columns = ["model", "batch", "threads", "original ms", "ours", "ours bf16", "OpenVINO f32", "OpenVINO", "spread"]
    for column in (*columns, "MiB", "original's", ""):
        table.add_column(column, justify="left" if column in ("model", "") else "right", no_wrap=True)
    errors_table = Table(title="largest / RMS error against float64, over the RMS of the output")
    for column in ("model", "original", *columns[4:8]):
        errors_table.add_column(column, justify="left" if column == "model" else "right", no_wrap=True)
    failures = 0
    for row in ROWS:
        if arguments.only and arguments.only.lower() not in row.name.lower():
            continue
        for batch in arguments.batch or row.batches:
            if batch not in row.batches:
                continue
            before = row.build(batch)
            models = [cache / name for name in ("before.onnx", "after.onnx", "bf16.onnx")]
            onnx.save(before, models[0])
            onnx.save(graphopt.optimize(before, target="cpu")[0], models[1])
            onnx.save(graphopt.optimize(before, target="cpu", precision="bf16")[0], models[2])
            feeds = row.feeds() if row.feeds else _feeds(before)
            np.savez(cache / "feeds.npz", **feeds)
            theirs, ours = (_peak_mebibytes(model, cache / "feeds.npz") for model in models[:2])
            faults = []
            if row.memory and batch == 1 and ours > row.memory * theirs:
                faults.append(f"{ours / theirs:.2f}x the memory")
            if batch == 1 and not arguments.skip_errors:
                want = _reference(row, before, feeds, cache)
                errors = {name: str(Errors.of(want, run(feeds))) for name, run in _sides(models, 1).items()}
                errors_table.add_row(row.name, *(errors.get(name, "") for name in ("original", *columns[4:8])))
            for threads in arguments.threads:
                times = _times(_sides(models, threads), feeds, threads, max(arguments.repeats, MIN_REPEATS))
                medians = {name: statistics.median(seconds) for name, seconds in times.items()}
                gains = {name: medians["original"] / median for name, median in medians.items()}
                floor, bf16 = (row.floor, row.bf16) if threads == 1 else (1.0, NOISE)
                floors = {"ours": floor, "ours bf16": max(bf16, gains.get("OpenVINO", 0.0))}
                slow = [f"{name} under {floor:.2f}x" for name, floor in floors.items() if gains[name] < floor]
                failures += len(slow) + len(faults)
                table.add_row(
                    row.name,
                    str(batch),
                    str(threads),
                    f"{medians['original'] * 1e3:.1f}",
                    *(f"{gains[name]:.2f}x" if name in gains else "" for name in columns[4:8]),
                    f"{_largest_spread(times):.0%}",
                    f"{ours:.0f}",
                    f"{theirs:.0f}",
                    ", ".join(slow + faults),
                )
                said = ", ".join(f"{name} {gain:.2f}x" for name, gain in gains.items() if name != "original")
                print(f"{row.name}, batch {batch}, {threads} thread(s): {said}", file=sys.stderr, flush=True)
                faults = []
    console = Console(width=180)
    console.print(table)
    console.print(errors_table)
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="rows whose name contains this")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--batch", type=int, nargs="*", help="only these of the row's batch sizes")
    parser.add_argument("--repeats", type=int, default=MIN_REPEATS)
    parser.add_argument("--skip-errors", action="store_true", help="no run in float64, which takes a minute a model")
    parser.add_argument("--here", action="store_true", help="this interpreter's runtime alone")
    parser.add_argument("--cache", type=Path, help="where the float64 results are kept from run to run")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cache = arguments.cache or Path(folder)
        cache.mkdir(parents=True, exist_ok=True)
        if arguments.here:
            return 1 if _bench(arguments, cache) else 0
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
