"""ScaleShift with each activation against memcpy of the same tensor, on the CPU.

    .venv-ort/bin/python scripts/bench_scale_shift.py

One thread, a tensor far beyond the caches; node and copy take turns in one process, both from the same input to the
same output. Exits with 1 where the median ratio is under 0.9.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import graphopt
from graphopt.ops.activation import ACTIVATIONS

SHAPE = (8, 64, 256, 256)
FLOOR = 0.9
ATTRIBUTES = {"alpha": 0.1, "beta": 0.5, "min": -1.0, "max": 3.0}


def measure(suffix: str, attributes: tuple[str, ...], repeats: int, library: Path | None) -> tuple[float, float, float]:
    """Medians of memcpy and of the node in seconds, and of their ratio."""
    shape = ", ".join(map(str, SHAPE))
    values = ", ".join(f"{name} = {ATTRIBUTES[name]}" for name in attributes)
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17, "com.graphopt" : 1]> g '
        f"(float[{shape}] x, float[64, 1, 1] s, float[64, 1, 1] h) => (float[{shape}] y) "
        f"{{ y = com.graphopt.ScaleShift{suffix} {f'<{values}>' if values else ''} (x, s, h) }}"
    )
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    if library:
        options.register_custom_ops_library(str(library))
    else:
        graphopt.configure(options, ["CPUExecutionProvider"])
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    x = np.resize(2 * rng.standard_normal(1 << 20, np.float32), SHAPE)
    y = np.zeros(SHAPE, np.float32)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_cpu_input("s", np.full((64, 1, 1), 1.1, np.float32))
    binding.bind_cpu_input("h", np.full((64, 1, 1), 0.1, np.float32))
    binding.bind_output("y", "cpu", 0, np.float32, SHAPE, y.ctypes.data)
    copies, nodes = [], []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        np.copyto(y, x)
        copied = time.perf_counter()
        session.run_with_iobinding(binding)
        nodes.append(time.perf_counter() - copied)
        copies.append(copied - start)
    del copies[0], nodes[0]
    return statistics.median(copies), statistics.median(nodes), statistics.median(map(float.__truediv__, copies, nodes))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--library", type=Path, help="another libgraphopt.so")
    arguments = parser.parse_args()
    print(f"onnxruntime {ort.__version__}\n\n| activation | memcpy ms | node ms | ratio |\n|---|--:|--:|--:|")
    below = 0
    for act in ACTIVATIONS.values():
        copy, node, ratio = measure(act.suffix, act.attributes, arguments.repeats, arguments.library)
        below += ratio < FLOOR
        print(f"| {act.suffix or 'none'} | {copy * 1e3:.2f} | {node * 1e3:.2f} | {ratio:.2f} |", flush=True)
    return int(below > 0)


if __name__ == "__main__":
    sys.exit(main())
