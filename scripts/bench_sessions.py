"""What our library costs a session: CPU milliseconds until there is one, and the memory that each holds.

    python scripts/bench_sessions.py [--sessions 40]

Of one Relu, so that the runtime has nothing else to do: without the library, with the operators of a model registered
(`configure` with `model=`), and with all of them. Medians; sessions of the three kinds take turns.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import onnx.parser
import onnxruntime as ort

import graphopt
from graphopt.ops import DOMAIN
from graphopt.runtime.sessions import CPU

MODEL = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) {y = Relu (x)}'
)


def with_an_operator() -> onnx.ModelProto:
    """The same, and a function that nobody calls, with a node of ours."""
    model = onnx.ModelProto()
    model.CopyFrom(MODEL)
    model.functions.add(name="f", domain="mine").node.add(op_type="ScaleShiftRelu", domain=DOMAIN)
    return model


def resident_mebibytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / (1 << 20)


def make(configure: Callable[[ort.SessionOptions], Sequence[Any]]) -> ort.InferenceSession:
    options = ort.SessionOptions()
    return ort.InferenceSession(MODEL.SerializeToString(), options, providers=configure(options))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=40)
    count = parser.parse_args().sessions
    one = with_an_operator()
    kinds: dict[str, Callable[[ort.SessionOptions], Sequence[Any]]] = {
        "without the library": lambda _: [CPU],
        "operators of the model": lambda options: graphopt.configure(options, [CPU], model=one),
        "all operators": lambda options: graphopt.configure(options, [CPU]),
    }
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(count):
        for name, configure in kinds.items():
            begin = time.process_time()
            make(configure)
            times[name].append((time.process_time() - begin) * 1e3)
    print(f"onnxruntime {ort.__version__}: | session | CPU ms | MiB |")
    for name, configure in kinds.items():
        before = resident_mebibytes()
        held = [make(configure) for _ in range(count)]
        taken = (resident_mebibytes() - before) / len(held)
        print(f"| {name} | {statistics.median(times[name]):.2f} | {taken:.2f} |")


if __name__ == "__main__":
    main()
