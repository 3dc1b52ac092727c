"""One transposed convolution with what follows it: FusedConvTranspose against ONNX Runtime's own nodes.

    .venv-ort/bin/python scripts/bench_fused_conv_transpose.py [--sweep] [--threads N] [--repeats N]

Original and ours run interleaved under ORT_ENABLE_ALL; times are lower quartiles, of the process's own time on one
thread, else of the clock. `--sweep` takes odd sizes from where on it pays by default.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import graphopt

ENOUGH = 3000  # microseconds: shorter runs are repeated within one measurement
TAILS = {
    "": "y = Identity (t)",
    "Relu": "y = Relu (t)",
    "LeakyRelu": "y = LeakyRelu <alpha = 0.1> (t)",
    "Sigmoid": "y = Sigmoid (t)",
    "Add, Relu": "s = Add (t, r) y = Relu (s)",
    "PRelu": "y = PRelu (t, slopes)",
}


@dataclass(frozen=True)
class Site:
    """A transposed convolution from C to M channels of all groups."""

    what: str
    C: int
    M: int
    size: tuple[int, ...]
    kernel: int
    stride: int
    pad: int = 0
    more: int = 0
    group: int = 1
    tail: str = ""

    def __str__(self) -> str:
        def sizes(*numbers: int) -> str:
            return "x".join(map(str, numbers))

        axes = len(self.size)
        text = f"{self.C} to {self.M}, {sizes(*self.size)}, {sizes(*[self.kernel] * axes)}, {self.stride}"
        text += f", pads {self.pad}" if self.pad else ""
        return text + (f", {self.group} groups" if self.group > 1 else "")

    def model(self) -> onnx.ModelProto:
        axes = len(self.size)
        grown = [(n - 1) * self.stride + self.kernel + self.more - 2 * self.pad for n in self.size]
        x, y = (f"float[1, {c}, {', '.join(map(str, size))}]" for c, size in ((self.C, self.size), (self.M, grown)))
        window = f"strides = {[self.stride] * axes}, pads = {[self.pad] * 2 * axes}, group = {self.group}"
        r = f", {y} r" if "Add" in self.tail else ""
        text = f'<ir_version: 8, opset_import: ["" : 17]>\ng ({x} x{r}) => ({y} y) {{\n'
        text += f"t = ConvTranspose <{window}, output_padding = {[self.more] * axes}> (x, W, b)\n{TAILS[self.tail]}\n}}"
        model = onnx.parser.parse_model(text)
        rng = np.random.default_rng(0)
        w = rng.standard_normal((self.C, self.M // self.group, *[self.kernel] * axes)) / math.sqrt(self.C)
        numbers = {"W": w, "b": rng.standard_normal(self.M), "slopes": rng.random((self.M, *[1] * axes))}
        for name in ("W", "b", "slopes"):
            if name in text:
                model.graph.initializer.append(onnx.numpy_helper.from_array(numbers[name].astype(np.float32), name))
        return model


SITES = (
    *(Site("U-Net", 2 * m, m, (n, n), 2, 2, tail="Relu") for m, n in ((512, 16), (256, 32), (128, 64), (64, 128))),
    Site("PP-OCR detection", 24, 24, (184, 184), 2, 2, tail="Relu"),
    Site("PP-OCR detection", 24, 1, (368, 368), 2, 2, tail="Sigmoid"),
    Site("mask head", 256, 256, (14, 14), 2, 2, tail="Relu"),
    Site("SAM's decoder", 256, 64, (64, 64), 2, 2),
    Site("SAM's decoder", 64, 32, (128, 128), 2, 2, tail="Relu"),
    *(Site("DCGAN", 2 * m, m, (n, n), 4, 2, 1, tail="Relu") for m, n in ((512, 4), (256, 8), (128, 16), (64, 32))),
    Site("pose head", 256, 256, (16, 12), 4, 2, 1, tail="Relu"),
    Site("CycleGAN", 256, 128, (64, 64), 3, 2, 1, 1, tail="Relu"),
    Site("U-Net with sums", 128, 64, (64, 64), 2, 2, tail="Add, Relu"),
    Site("face decoder", 64, 32, (56, 56), 4, 2, 1, tail="PRelu"),
    *(
        Site("HiFi-GAN", c, c // 2, (n,), k, s, (k - s) // 2, tail="LeakyRelu")
        for c, n, k, s in ((512, 100, 16, 8), (256, 800, 16, 8), (128, 6400, 4, 2), (64, 12800, 4, 2))
    ),
    *(Site("vocoder", 256, 128, (n,), 16, 8, 4) for n in (100, 200, 400, 800)),
    Site("Kokoro", 512, 256, (120,), 20, 10, 5),
    Site("EnCodec", 128, 64, (1000,), 10, 5, 2, 0),
    Site("bilinear, by channel", 21, 21, (64, 64), 4, 2, 1, group=21),
    Site("in groups", 64, 64, (28, 28), 4, 2, 1, group=8),
    Site("3-D U-Net", 64, 32, (12, 12, 12), 2, 2, tail="Relu"),
)


def sweep() -> Iterator[Site]:
    """Sizes around those from which on FusedConvTranspose is taken."""
    for (C, M), n, k in itertools.product(
        ((24, 16), (24, 40), (33, 17), (64, 32), (96, 96), (128, 64), (128, 20)), (70, 101, 184, 256), (2, 3, 4)
    ):
        yield Site("apart", C, M, (n, n), k, k)
    for (C, M), n, (k, s) in itertools.product(
        ((1, 8), (3, 16), (8, 8), (13, 30), (16, 9), (16, 64)), (14, 30, 56, 101), ((4, 2), (6, 2), (6, 3), (8, 4))
    ):
        yield Site("overlapping", C, M, (n, n), k, s, (k - s) // 2)
    for group, C, n, (k, s) in itertools.product((2, 5, 32), (1, 3, 8), (30, 57, 100), ((4, 2), (6, 3))):
        yield Site("in groups", group * C, group * C, (n, n), k, s, (k - s) // 2, group=group)
    for (C, M), n, k in itertools.product(((4, 4), (32, 16), (64, 32), (256, 128)), (5, 9, 13, 24), (2, 4)):
        yield Site("three axes", C, M, (n, n, n), k, 2, (k - 2) // 2)


def session(model: onnx.ModelProto, threads: int) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.register_custom_ops_library(str(graphopt.library_path()))
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def microseconds(models: list[onnx.ModelProto], threads: int, repeats: int) -> list[float]:
    clock = time.process_time if threads == 1 else time.perf_counter
    rng = np.random.default_rng(1)
    feeds = {
        value.name: rng.standard_normal([d.dim_value for d in value.type.tensor_type.shape.dim], np.float32)
        for value in models[0].graph.input
    }
    sessions = [session(model, threads) for model in models]
    counts = []
    for one in sessions:
        one.run(None, feeds)
        start = time.perf_counter()
        one.run(None, feeds)
        counts.append(max(1, math.ceil(ENOUGH / (1e6 * (time.perf_counter() - start)))))
    times: list[list[float]] = [[] for _ in models]
    for _ in range(repeats):
        for one, count, seconds in zip(sessions, counts, times, strict=True):
            start = clock()
            for _ in range(count):
                one.run(None, feeds)
            seconds.append((clock() - start) / count)
    return [1e6 * sorted(t)[len(t) // 4] for t in times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=21)
    arguments = parser.parse_args()
    print(
        "| where | channels, size, kernel, stride | behind it | runtime, us | ours | default |\n"
        "|---|---|---|--:|--:|---|"
    )
    for site in sweep() if arguments.sweep else SITES:
        model = site.model()
        after, _ = graphopt.optimize(model, target="cpu", all_sites=True)
        usual, _ = graphopt.optimize(model, target="cpu")
        taken = any(node.op_type.startswith("FusedConvTranspose") for node in usual.graph.node)
        if arguments.sweep and not taken:
            continue
        theirs, ours = microseconds([model, after], arguments.threads, arguments.repeats)
        print(
            f"| {site.what} | {site} | {site.tail} | {theirs:.0f} | {theirs / ours:.2f}x | {'ours' if taken else ''} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
