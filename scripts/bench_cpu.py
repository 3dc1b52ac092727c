"""The emitted models against ONNX Runtime's own optimizer on the CPU.

    .venv/bin/python scripts/bench_cpu.py            # this runtime; exits 1 when a model is under its floor
    .venv-ort/bin/python scripts/bench_cpu.py

Original and optimized model run interleaved in one process, both under ORT_ENABLE_ALL with the same threads; the table
gives medians, their spread (interquartile range over median), the ratio of medians, and how far the outputs are apart
relative to RMS.
"""

from __future__ import annotations

import argparse
import statistics
import sys
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

MIN_REPEATS = 7
NOISE = 0.95  # "never slower": below this is a bug, not noise


@dataclass(frozen=True)
class Row:
    """One line of the issue's table."""

    name: str
    floor: float
    build: Callable[[int], onnx.ModelProto]
    batches: tuple[int, ...] = (1, 8)


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
    Row("VGG16-BN 224", 1.5, _zoo("vgg16_bn")),
    Row("U-Net 256", 1.3, _zoo("unet")),
    Row("ResNet-18 224", 1.25, _zoo("resnet18")),
    Row("ResNet-50 224", 1.08, _zoo("resnet50")),
    Row("YOLO-style 416", 1.1, _zoo("yolo")),
    Row("NudeNet 320n", 1.1, _nudenet),
    Row("SD-UNet block 64x64", 1.5, _zoo("sd_block"), (1,)),
    Row("BERT-base S=512", 1.03, _bert(512)),
    Row("ViT-B/16", 1.0, _zoo("vit")),
    Row("MobileNetV2", NOISE, _zoo("mobilenet_v2")),
    Row("BERT-base S=128", NOISE, _bert(128)),
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


def _session(model: onnx.ModelProto, threads: int, library: bool) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    if library:
        options.register_custom_ops_library(str(graphopt.library_path()))
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _spread(times: list[float]) -> float:
    low, _, high = statistics.quantiles(times, n=4)
    return (high - low) / statistics.median(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="rows whose name contains this")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--batch", type=int, nargs="*", help="these batch sizes instead of each row's own")
    parser.add_argument("--repeats", type=int, default=MIN_REPEATS)
    arguments = parser.parse_args()

    table = Table(title=f"onnxruntime {ort.__version__}, CPU")
    for column in ("model", "batch", "threads", "original ms", "ours ms", "spread", "ratio", "floor", "max/RMS", ""):
        table.add_column(column, justify="left" if column in ("model", "") else "right")
    under = 0
    for row in ROWS:
        if arguments.only and arguments.only.lower() not in row.name.lower():
            continue
        for batch in arguments.batch or row.batches:
            before = row.build(batch)
            after, _ = graphopt.optimize(before, target="cpu")
            feeds = _feeds(before)
            for threads in arguments.threads:
                sessions = [_session(before, threads, False), _session(after, threads, True)]
                outputs = [s.run(None, feeds) for s in sessions]  # warms up, too
                times: list[list[float]] = [[], []]
                for _ in range(max(arguments.repeats, MIN_REPEATS)):
                    for session, seconds in zip(sessions, times, strict=True):
                        start = time.perf_counter()
                        session.run(None, feeds)
                        seconds.append(time.perf_counter() - start)
                a, b = (statistics.median(t) for t in times)
                error = max(
                    float(np.abs(w - g).max() / np.sqrt(np.mean(w.astype(np.float64) ** 2)))
                    for w, g in zip(*outputs, strict=True)
                )
                bad = a / b < row.floor
                under += bad
                table.add_row(
                    row.name,
                    str(batch),
                    str(threads),
                    f"{a * 1e3:.1f}",
                    f"{b * 1e3:.1f}",
                    f"{max(map(_spread, times)):.0%}",
                    f"{a / b:.2f}x",
                    f"{row.floor:.2f}x",
                    f"{error:.1e}",
                    "[red]under the floor[/]" if bad else "",
                )
    Console(width=130).print(table)
    return 1 if under else 0


if __name__ == "__main__":
    sys.exit(main())
