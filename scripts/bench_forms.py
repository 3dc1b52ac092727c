"""What the passes for single forms gain on the CPU: blocks of real models with and without the pass.

    venv-torch/bin/python scripts/export_forms.py --blocks FOLDER
    .venv-ort/bin/python scripts/bench_forms.py FOLDER [--repeats 21] [--only llama_128]

A block as optimized for the CPU takes turns with itself as exported and as optimized without the passes of its form, in
one process on one thread. Times are CPU seconds, which other jobs on the machine disturb less than the clock.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import graphopt
from graphopt.runtime.sessions import library_path

# Block -> the passes of the forms that it has; those of one form are joined by +.
BLOCKS = {
    "sam_neck": ("fuse_row_norm",),
    "convnext_downsampling": ("fuse_row_norm",),
    "dit": ("ada_layer_norm",),
    "llama_128": ("fuse_rotary", "gate"),
    "llama_2": ("fuse_rotary", "gate"),
    "unet_transformer": ("gate",),
    "iresnet": ("prelu",),
    "swin_t": ("fuse_attention", "gather_rows+norm_windows"),
    "sam_window": ("gather_rows+gather_first+norm_windows",),
    "swinv2_t": ("fuse_attention",),
}


def runner(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> Callable[[], None]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.register_custom_ops_library(str(library_path()))
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, feeds)


def seconds(run: Callable[[], None], calls: int) -> float:
    start = time.process_time()
    for _ in range(calls):
        run()
    return (time.process_time() - start) / calls


def compare(first: Callable[[], None], second: Callable[[], None], repeats: int) -> tuple[float, float, float, float]:
    """Median of first's time over second's, the quartiles of that ratio, and the second's median, interleaved."""
    for run in (first, second):
        run()
    calls = max(1, int(0.03 / max(seconds(first, 2), 1e-6)))
    pairs = [(seconds(first, calls), seconds(second, calls)) for _ in range(repeats)]
    ratios = [a / b for a, b in pairs]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return middle, low, high, statistics.median(b for _, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--only", help="comma-separated names")
    arguments = parser.parse_args()
    print(f"onnxruntime {ort.__version__}")
    for name in arguments.only.split(",") if arguments.only else BLOCKS:
        model = onnx.load(arguments.folder / f"{name}-dynamo.onnx")
        rng = np.random.default_rng(0)
        feeds = {}
        for value in model.graph.input:
            shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
            whole = value.type.tensor_type.elem_type == onnx.TensorProto.INT64
            feeds[value.name] = rng.integers(1, 9, shape) if whole else rng.standard_normal(shape).astype(np.float32)
        after = runner(graphopt.optimize(model, target="cpu")[0], feeds)
        sides = {"ONNX Runtime": model}
        for one in BLOCKS[name]:
            sides[f"without {one}"] = graphopt.optimize(model, target="cpu", skip=one.split("+"))[0]
        for side, other in sides.items():
            middle, low, high, own = compare(runner(other, feeds), after, arguments.repeats)
            print(f"{name:24} {side:45} {middle:.2f} ({low:.2f}-{high:.2f})  {own * 1e3:.3f} ms", flush=True)


if __name__ == "__main__":
    main()
