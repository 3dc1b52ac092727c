"""The emitted models against ONNX Runtime's own optimizer on the CPU.

    python scripts/bench_cpu.py                     # both runtimes; exits 1 when a number is past its limit
    .venv/bin/python scripts/bench_cpu.py --here    # this runtime alone
    python scripts/bench_cpu.py --precision bf16    # with products in bfloat16

The runtimes are those of .venv and .venv-ort, which scripts/setup makes where they are absent. Original and optimized
model run interleaved in one process, both under ORT_ENABLE_ALL with the same threads. One thread is timed by its own
processor time, which is wall time on an idle machine and blind to what else runs on a busy one; several by the clock.
The table gives medians, their spread (interquartile range over median), the ratio of medians, the errors of both sides
at batch 1 against float64 (largest and root mean square, over the RMS of the output), and the peak resident memory of
a process of its own for each side that loads the model and runs it twice.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
NOISE = 0.95  # "never slower": below this is a bug, not noise


@dataclass(frozen=True)
class Row:
    """One line of the issue's table."""

    name: str
    floor: float
    build: Callable[[int], onnx.ModelProto]
    batches: tuple[int, ...] = (1, 8)
    memory: float | None = None  # the most of the original's peak resident memory at batch 1
    bf16: float = NOISE  # the floor with products in bfloat16


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


ROWS = (
    Row("VGG16-BN 224", 1.5, _zoo("vgg16_bn"), memory=2.0),
    Row("U-Net 256", 1.3, _zoo("unet")),
    Row("ResNet-18 224", 1.25, _zoo("resnet18")),
    Row("ResNet-50 224", 1.08, _zoo("resnet50"), memory=1.5),
    Row("YOLO-style 416", 1.1, _zoo("yolo")),
    Row("NudeNet 320n", 1.1, _nudenet),
    Row("SD-UNet block 64x64", 1.5, _zoo("sd_block"), (1,)),
    Row("BERT-base S=512", 1.03, _bert(512), bf16=2.0),
    Row("ViT-B/16", 1.0, _zoo("vit"), bf16=1.7),
    Row("MobileNetV2", NOISE, _zoo("mobilenet_v2")),
    Row("BERT-base S=128", NOISE, _bert(128), bf16=2.0),
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


def _session(model: Path, threads: int) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    options.register_custom_ops_library(str(graphopt.library_path()))
    return ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


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


def _times(models: list[Path], feeds: dict[str, Any], threads: int, repeats: int) -> list[list[float]]:
    clock = time.process_time if threads == 1 else time.perf_counter
    sessions = [_session(model, threads) for model in models]
    times: list[list[float]] = [[] for _ in models]
    for session in sessions:
        session.run(None, feeds)
    for _ in range(repeats):
        for session, seconds in zip(sessions, times, strict=True):
            if threads > 1:
                time.sleep(0.01)  # the other session's threads spin for a while after its run
            start = clock()
            session.run(None, feeds)
            seconds.append(clock() - start)
    return times


def _bench(arguments: argparse.Namespace, cache: Path) -> int:
    """Measures on the runtime of this interpreter; the number of limits that are not kept."""
    table = Table(title=f"onnxruntime {ort.__version__}, CPU")
    for column in (
        "model", "batch", "threads", "original ms", "ours ms", "spread", "ratio", "floor",
        "error max / RMS", "original's", "MiB", "original's", "",
    ):  # fmt: skip
        table.add_column(column, justify="left" if column in ("model", "") else "right", no_wrap=True)
    failures = 0
    for row in ROWS:
        if arguments.only and arguments.only.lower() not in row.name.lower():
            continue
        for batch in arguments.batch or row.batches:
            if batch not in row.batches:
                continue
            before = row.build(batch)
            after, _ = graphopt.optimize(before, target="cpu", precision=arguments.precision)
            feeds = _feeds(before)
            models = [cache / "before.onnx", cache / "after.onnx"]
            onnx.save(before, models[0])
            onnx.save(after, models[1])
            np.savez(cache / "feeds.npz", **feeds)
            theirs, ours = (_peak_mebibytes(model, cache / "feeds.npz") for model in models)
            faults = []
            if row.memory and batch == 1 and ours > row.memory * theirs:
                faults.append(f"{ours / theirs:.2f}x the memory")
            errors = ["", ""]
            if batch == 1:
                want = _reference(row, before, feeds, cache)
                errors = [str(Errors.of(want, _session(model, 1).run(None, feeds))) for model in models]
            for threads in arguments.threads:
                times = _times(models, feeds, threads, max(arguments.repeats, MIN_REPEATS))
                a, b = (statistics.median(t) for t in times)
                floor = row.floor if arguments.precision is None else row.bf16
                slow = ["under the floor"] if a / b < floor else []
                failures += len(slow) + len(faults)
                table.add_row(
                    row.name,
                    str(batch),
                    str(threads),
                    f"{a * 1e3:.1f}",
                    f"{b * 1e3:.1f}",
                    f"{max(map(_spread, times)):.0%}",
                    f"{a / b:.2f}x",
                    f"{floor:.2f}x",
                    errors[1],
                    errors[0],
                    f"{ours:.0f}",
                    f"{theirs:.0f}",
                    ", ".join(slow + faults),
                )
                print(f"{row.name}, batch {batch}, {threads} thread(s): {a / b:.2f}x", file=sys.stderr, flush=True)
                faults, errors = [], ["", ""]
    Console(width=180).print(table)
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="rows whose name contains this")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--batch", type=int, nargs="*", help="only these of the row's batch sizes")
    parser.add_argument("--repeats", type=int, default=MIN_REPEATS)
    parser.add_argument("--precision", choices=["bf16"], help="in which ours computes products")
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
