"""Times quantized models on an NVIDIA GPU beside their float16 forms, in one process.

    python scripts/gpu_quantized.py [--models FOLDER] [--only MODEL[:BATCH] ...] [--trace COUNT] [--prepare]

The models are those of the zoo, with BatchNormalization folded into convolutions. `onnxruntime.quantization` quantizes
them statically in QDQ format: uint8 activations, int8 weights with a scale for each channel. The calibration inputs are
normal draws. The files are kept in FOLDER, because calibration takes a minute of CPU time; `--prepare` only writes the
files, without a GPU.

Columns:

    steps      the largest difference from ONNX Runtime's CPU provider, in steps of the output's scale
    different  the fraction of outputs that differ by more than half a step
    on CPU     the number of nodes on the CPU
    copies     the number of Memcpy nodes
    groups     operators that run as one int8 kernel with their DequantizeLinear and QuantizeLinear nodes
    launches   kernels and copies of a captured run
    ms         medians of interleaved runs with inputs and outputs on the device
    ratio      the int8 time over the float16 time

`--trace COUNT` also prints the slowest kernels of a captured run, in int8 and in float16.
Fails if a row has nodes on the CPU or copies, differs by more than STEPS, or is slower than float16.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

import graphopt
from graphopt.runtime.discovery import CPU
from models import ZOO, feeds_of
from scripts.timing import heading, line

MODELS = ("resnet50", "mobilenet_v2")
BATCHES = (1, 32)
# The largest allowed `steps`: one different rounding in an early layer changes many outputs.
STEPS = 4.0
COLUMNS = "model, batch, steps, different, on CPU, copies, groups, launches, int8 ms, float16 ms, ratio, misses"


class Calibration(CalibrationDataReader):  # type: ignore[misc]
    """Four inputs of normal draws."""

    def __init__(self, model: onnx.ModelProto) -> None:
        rng = np.random.default_rng(1)
        shapes = {name: x.shape for name, x in feeds_of(model).items()}
        draws = [{name: rng.standard_normal(s).astype(np.float32) for name, s in shapes.items()} for _ in range(4)]
        self._feeds: Iterator[dict[str, Any]] = iter(draws)

    def get_next(self) -> dict[str, Any] | None:
        return next(self._feeds, None)


def quantized(name: str, folder: Path) -> Path:
    """Returns the file of the quantized model at batch 1, which is written unless the folder has it."""
    path = folder / f"{name}-qdq.onnx"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        model = ZOO[name]()
        with tempfile.TemporaryDirectory() as temporary:
            source, written = (Path(temporary) / f"{part}.onnx" for part in ("folded", "qdq"))
            folded, _ = graphopt.optimize(model, target="cpu", only=["fold_batch_norm"])
            onnx.save(folded, source)
            quantize_static(
                source,
                written,
                Calibration(model),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
            )
            path.write_bytes(written.read_bytes())
    return path


def with_batch(model: onnx.ModelProto, batch: int) -> onnx.ModelProto:
    """Returns the model with another size of the first dimension of its inputs and outputs."""
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = batch
    del model.graph.value_info[:]
    return model


def scale_of_output(model: onnx.ModelProto) -> float:
    """Returns the scale of the DequantizeLinear that computes the first output."""
    (last,) = (node for node in model.graph.node if model.graph.output[0].name in node.output)
    (scale,) = (x for x in model.graph.initializer if x.name == last.input[1])
    return float(numpy_helper.to_array(scale))


@dataclass
class QuantizedRow:
    """One quantized model at a batch size; times in milliseconds."""

    model: str
    batch: int
    steps: float
    different: float
    on_cpu: dict[str, int]
    copies: int
    groups: int
    launches: float
    int8: float
    float16: float

    def failures(self) -> list[str]:
        found = [f"on the CPU: {self.on_cpu}"] if self.on_cpu else []
        found += [f"{self.copies} copies"] if self.copies else []
        found += [f"{self.steps:.1f} steps"] if not self.steps <= STEPS else []
        return found + (["slower than float16"] if not self.int8 <= self.float16 else [])

    def markdown(self) -> str:
        errors = (f"{self.steps:.1f}", f"{self.different:.1%}")
        counts = (sum(self.on_cpu.values()), self.copies, self.groups, f"{self.launches:.0f}")
        times = (f"{self.int8:.3f}", f"{self.float16:.3f}", f"{self.int8 / self.float16:.2f}")
        return line([self.model, self.batch, *errors, *counts, *times, ", ".join(self.failures())])


def measure(name: str, batch: int, folder: Path, library: Path, traced: int) -> QuantizedRow:
    from scripts import gpu_session as gpu
    from scripts.device import bound

    exported = with_batch(onnx.load(quantized(name, folder)), batch)
    feeds = feeds_of(exported)
    (expected,) = ort.InferenceSession(exported.SerializeToString(), providers=[CPU]).run(None, feeds)
    int8, _ = graphopt.optimize(exported, target="cuda")
    _, on_cpu, copies = gpu.opened(int8, feeds, library)
    _, half, half_feeds = gpu.model_of(name, batch, "float16")
    works: dict[str, Callable[[], object]] = {}
    counts: dict[str, float] = {}
    steps = different = 0.0
    groups = 0
    for form, model, given in (("int8", int8, feeds), ("float16", half, half_feeds)):
        before = gpu.region_counts(library)
        session = gpu.session_of(model, library)
        for _ in range(4):  # launched, captured, replayed
            got = session.run(None, given)
            if form == "int8":
                difference = np.abs(got[0] - expected) / scale_of_output(exported)
                steps = max(steps, float(difference.max()))
                different = float((difference > 0.5).mean())
        if form == "int8":
            groups = gpu.events_since(before, library).get("fused", 0)
        works[form] = partial(session.run_with_iobinding, bound(session, given, got))
        for _ in range(4):  # captures the graph of the bound memory
            works[form]()
        kernels = gpu.kernels_of(works[form])
        counts[form] = sum(count for _, count in kernels.values())
        if traced:
            gpu.print_kernels(f"{name}, batch {batch}, {form}", kernels, traced)
    times = gpu.milliseconds(works)
    errors = (steps, different, on_cpu, copies)
    return QuantizedRow(name, batch, *errors, groups, counts["int8"], times["int8"], times["float16"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, default=Path("build/quantized"), metavar="FOLDER")
    parser.add_argument("--only", nargs="+", default=[], metavar="MODEL[:BATCH]")
    parser.add_argument("--trace", type=int, default=0, metavar="COUNT")
    parser.add_argument("--prepare", action="store_true")
    options = parser.parse_args()
    wanted = [(n, b) for n in MODELS for b in BATCHES if not options.only or {n, f"{n}:{b}"} & {*options.only}]
    if options.prepare:
        for name in dict.fromkeys(name for name, _ in wanted):
            print(quantized(name, options.models))
        return 0
    import torch

    from scripts.device import load_vendor_libraries
    from tests.hip.harness import build_for_cuda

    load_vendor_libraries(torch)
    library = build_for_cuda("graphopt").resolve()
    ort.register_execution_provider_library("graphopt", str(library))
    print(f"onnxruntime {ort.__version__}, {torch.cuda.get_device_name()}\n{heading(COLUMNS.split(', '))}", flush=True)
    rows = []
    for name, batch in wanted:
        rows.append(measure(name, batch, options.models, library, options.trace))
        print(rows[-1].markdown(), flush=True)
    return int(any(row.failures() for row in rows))


if __name__ == "__main__":
    sys.exit(main())
