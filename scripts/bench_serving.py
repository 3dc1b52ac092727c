"""Throughput and latency of models behind an engine, before and after optimization: the table of docs/serving.md.

    .venv-ort/bin/python scripts/bench_serving.py --engine mlserver --engine litserve
    .venv-engines/bin/python scripts/bench_serving.py --engine kserve --engine bentoml --engine ray
    .venv-triton/bin/python scripts/bench_serving.py --engine triton

Both sides are served by the same runtime of ours, so that only the file differs; rounds of the two sides alternate. The
table has medians of rounds, and percentiles over all requests. CPU is the processor time of all processes of the engine
for a request, which other work on the machine changes little.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import graphopt
from graphopt.serving.write import write
from models import ZOO
from tests.serving.engine import JSON_ALONE, Engine, Question, load

SIZES = {"resnet18": (3, 224, 224), "resnet50": (3, 224, 224)}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", action="append")
    parser.add_argument("--model", choices=SIZES, action="append")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--requests", type=int, default=10, help="of each client in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--instances", type=int, default=1)
    arguments = parser.parse_args()
    print("| engine | model | file | requests/s | p50 ms | p99 ms | CPU ms a request |\n|---|---|---|--:|--:|--:|--:|")
    for name in arguments.model or ["resnet18"]:
        model = ZOO[name](dynamic=True)
        optimized, _ = graphopt.optimize(model, target="cpu")
        for engine in arguments.engine or ["mlserver"]:
            with tempfile.TemporaryDirectory() as folder:
                for side, proto in (("before", model), ("after", optimized)):
                    onnx.save(proto, Path(folder) / f"{side}.onnx")
                measure(name, engine, Path(folder), arguments)


def measure(name: str, engine: str, folder: Path, arguments: argparse.Namespace) -> None:
    """Prints the rows of one engine."""
    for side in ("before", "after"):
        write(folder / f"{side}.onnx", folder / "served", engine, instances=arguments.instances, threads=1)
    session = graphopt.session(folder / "before.onnx", ["CPUExecutionProvider"])
    feeds = {session.get_inputs()[0].name: np.random.default_rng(0).random((1, *SIZES[name]), np.float32)}
    answer = dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))
    rates: dict[str, list[float]] = {"before": [], "after": []}
    cpu: dict[str, list[float]] = {"before": [], "after": []}
    seconds: dict[str, list[float]] = {"before": [], "after": []}
    with Engine(engine, folder / "served") as running:
        for round_ in range(arguments.rounds + 1):
            for side in rates:
                begin, began = time.perf_counter(), running.cpu_seconds()
                result = load(
                    running,
                    [Question(side, feeds, [answer])],
                    clients=arguments.clients,
                    requests=arguments.requests,
                    binary=engine not in JSON_ALONE,
                    patience=1200,
                )
                assert not result.errors + result.wrong, (result.errors + result.wrong)[0]
                if round_:  # the first warms up
                    rates[side].append(result.right / (time.perf_counter() - begin))
                    cpu[side].append(1000 * (running.cpu_seconds() - began) / result.right)
                    seconds[side] += result.seconds
    for side, of_rounds in rates.items():
        p50, p99 = 1000 * np.percentile(seconds[side], [50, 99])
        cells = f"{np.median(of_rounds):.1f} | {p50:.0f} | {p99:.0f} | {np.median(cpu[side]):.1f}"
        print(f"| {engine} | {name} | {side} | {cells} |", flush=True)
    ratios = [after / before for before, after in zip(rates["before"], rates["after"], strict=True)]
    spread = f"{min(ratios):.2f}-{max(ratios):.2f}"
    cheaper = np.median(cpu["before"]) / np.median(cpu["after"])
    print(f"| {engine} | {name} | times | {np.median(ratios):.2f} ({spread}) | | | {cheaper:.2f} |", flush=True)


if __name__ == "__main__":
    main()
