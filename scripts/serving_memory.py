"""Memory of the workers of one machine, with and without weights that they share: the table of docs/serving.md.

    .venv-ort/bin/python scripts/serving_memory.py --model vgg16_bn --model bert --workers 8

Each worker is a process that serves the model, on one thread, and has run once. PSS counts a page that n processes map
as an nth of it for each; anonymous memory is shared by none.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import graphopt
from graphopt.serving.write import write
from models import ZOO

PLAIN = """
import onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1] + "/model.onnx", options, providers=["CPUExecutionProvider"])
run = lambda feeds: session.run(None, feeds)
"""
SERVED = """
from graphopt.serving.served import Served
run = Served(sys.argv[1]).run
"""
WORKER = """
import sys, time, numpy as np
{opens}
from graphopt.serving.deployment import DATATYPES, read_deployment
sizes = [1, *[128] * 8]
feeds = dict((t.name, np.zeros([n if n > 0 else size for n, size in zip(t.shape, sizes)], DATATYPES[t.datatype]))
             for t in read_deployment(sys.argv[1]).inputs)
run(feeds)
begin = time.process_time()
run(feeds)
print("ready", time.process_time() - begin, flush=True)
sys.stdin.read()
"""


def memory(pid: int) -> dict[str, float]:
    """MiB by the kernel's names."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return {name: int(kib) / 1024 for name, kib in re.findall(r"^(\w+): +(\d+) kB", text, re.MULTILINE)}


def measure(opens: str, folder: Path, workers: int, **environment: str) -> tuple[float, float, float]:
    """PSS and anonymous memory of all workers in MiB, and the seconds of a run of one."""
    processes = []
    try:
        for _ in range(workers):
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", WORKER.format(opens=opens), str(folder)],
                    env=os.environ | environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            assert processes[-1].stdout is not None
            ready = processes[-1].stdout.readline().split()
            assert ready[:1] == ["ready"], "a worker ended"
        found = [memory(process.pid) for process in processes]
        return sum(m["Pss"] for m in found), sum(m["Anonymous"] for m in found), float(ready[1])
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=ZOO, action="append", required=True)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--shared-only", action="store_true", help="the other cases take n times the memory of one")
    parser.add_argument("--folder", type=Path, help="with models that an earlier run has left")
    arguments = parser.parse_args()
    n = arguments.workers
    print(f"| model | | 1 worker | {n} workers | ratio | anonymous, each of {n} | ms a run |")
    print("|---|---|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        for name in arguments.model:
            for side in ("original", "optimized"):
                if not (folder / side / name / "1").exists():
                    model = ZOO[name]()
                    if side == "optimized":
                        model, _ = graphopt.optimize(model, target="cpu")
                    onnx.save(model, folder / "model.onnx")
                    write(folder / "model.onnx", folder / side, "litserve", name=name, threads=1, max_batch=1)
            shared = folder / "weights"
            shared.mkdir(mode=0o700, exist_ok=True)
            for what, opens, side, weights in (
                ("original, plain session", PLAIN, "original", "off"),
                ("optimized, each its own", SERVED, "optimized", "off"),
                ("optimized, shared", SERVED, "optimized", str(shared)),
            ):
                if arguments.shared_only and what != "optimized, shared":
                    continue
                place = folder / side / name / "1"
                measure(opens, place, 1, GRAPHOPT_WEIGHTS=weights)  # the first one writes
                one, _, _ = measure(opens, place, 1, GRAPHOPT_WEIGHTS=weights)
                all_, anonymous, seconds = measure(opens, place, n, GRAPHOPT_WEIGHTS=weights)
                cells = f"{one:.0f} | {all_:.0f} | {all_ / one:.2f} | {anonymous / n:.0f} | {1000 * seconds:.0f}"
                print(f"| {name} | {what} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
