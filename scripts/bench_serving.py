"""Throughput and latency of models behind an engine, before and after optimization: the table of docs/serving.md.

    .venv-ort/bin/python scripts/bench_serving.py --engine mlserver

Both sides are served by the same runtime of ours, so that only the file differs; rounds of the two sides alternate.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np
import onnx

import graphopt
from graphopt.serving.write import write
from models import ZOO
from tests.serving.engine import Engine, Question, load

SIZES = {"resnet18": (3, 224, 224), "resnet50": (3, 224, 224)}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="mlserver")
    parser.add_argument("--model", choices=SIZES, action="append")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--requests", type=int, default=10, help="of each client in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--instances", type=int, default=1)
    arguments = parser.parse_args()
    print("| model | file | requests/s | p50 ms | p99 ms |\n|---|---|--:|--:|--:|")
    for name in arguments.model or ["resnet18"]:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder)
            model = ZOO[name](dynamic=True)
            optimized, _ = graphopt.optimize(model, target="cpu")
            for side, proto in (("before", model), ("after", optimized)):
                onnx.save(proto, out / f"{side}.onnx")
                write(out / f"{side}.onnx", out / "served", arguments.engine, instances=arguments.instances, threads=1)
            feeds = {model.graph.input[0].name: np.random.default_rng(0).random((1, *SIZES[name]), np.float32)}
            session = graphopt.session(out / "before.onnx", ["CPUExecutionProvider"])
            names = [o.name for o in session.get_outputs()]
            answer = dict(zip(names, session.run(None, feeds), strict=True))
            rates: dict[str, list[float]] = {"before": [], "after": []}
            seconds: dict[str, list[float]] = {"before": [], "after": []}
            with Engine(arguments.engine, out / "served") as engine:
                for _ in range(arguments.rounds):
                    for side in rates:
                        begin = os.times().elapsed
                        question = Question(side, feeds, [answer])
                        result = load(
                            engine,
                            [question],
                            clients=arguments.clients,
                            requests=arguments.requests,
                            binary=arguments.engine == "mlserver",
                        )
                        assert not result.errors + result.wrong, (result.errors + result.wrong)[0]
                        rates[side].append(result.right / (os.times().elapsed - begin))
                        seconds[side] += result.seconds
            for side, of_rounds in rates.items():
                p50, p99 = 1000 * np.percentile(seconds[side], [50, 99])
                print(f"| {name} | {side} | {np.median(of_rounds):.1f} | {p50:.0f} | {p99:.0f} |", flush=True)


if __name__ == "__main__":
    main()
