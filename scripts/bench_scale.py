"""Measures time and memory of optimizing large graphs and a model of 2.35 GB, with graphopt and other tools.

    .venv/bin/python scripts/bench_scale.py                    # ours, and onnx_ir alone
    .venv/bin/python scripts/bench_scale.py --peers --nodes 1000 10000 --timeout 120
    .venv/bin/python scripts/bench_scale.py --against main --nodes 10000        # this tree and a commit in turns

Each cell, `seconds of CPU / peak MB`, is measured in a separate process that reads a file, optimizes it and writes a
file; imports are not counted. --peers installs the other tools into temporary environments.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from models.scale import SHAPES, large_weights
from scripts.timing import ROOT, check_out, heading, line

TURNS = 7

MEASURE = """
import os, re, resource, sys, time
resource.setrlimit(resource.RLIMIT_CPU, ({seconds}, {seconds}))
{imports}
source, out = sys.argv[1:]
before, wall = os.times(), time.perf_counter()
{optimize}
after = os.times()
cpu = after.user + after.system - before.user - before.system
# The peak of this program alone: the number of getrusage would include the process before exec.
peak = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read()).group(1)) / 1024
print(cpu, time.perf_counter() - wall, peak)
"""

# Optimizes the model for each line received, and answers with the CPU seconds.
TURN = """
import sys, time, graphopt
source, out = sys.argv[1:]
for _ in sys.stdin:
    start = time.process_time()
    graphopt.optimize(source, out, target='cpu')
    print(time.process_time() - start, flush=True)
"""

# Name -> packages, imports, and code that optimizes `source` into `out`.
TOOLS = {
    "graphopt": ("", "import graphopt; graphopt.optimize", "graphopt.optimize(source, out, target='cpu')"),
    "onnx_ir, load and save": ("", "import onnx_ir", "onnx_ir.save(onnx_ir.load(source), out)"),
    "onnxruntime 1.31.1, basic": (
        "onnxruntime==1.31.1",
        "import onnxruntime as ort",
        "o = ort.SessionOptions(); o.log_severity_level = 3; o.optimized_model_filepath = out\n"
        "o.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC\n"
        "o.add_session_config_entry('session.optimized_model_external_initializers_file_name', 'ort.data')\n"
        "ort.InferenceSession(source, o, providers=['CPUExecutionProvider'])",
    ),
    "onnxsim 0.8.1": (
        "onnxsim==0.8.1 onnxruntime==1.31.1",
        "import onnx, onnxsim",
        "m, _ = onnxsim.simplify(source); onnx.save(m, out, save_as_external_data=m.ByteSize() > 1 << 30)",
    ),
    "onnxslim 0.1.98": ("onnxslim==0.1.98", "import onnxslim", "onnxslim.slim(source, out)"),
}


def interpreter(tool: str, folder: Path) -> Path:
    """Returns the Python of an environment with the tool; ours runs from this tree."""
    packages = TOOLS[tool][0]
    if not packages:
        return Path(sys.executable)
    place = folder / tool.split()[0]
    python = place / "bin" / "python"
    if not python.exists():
        venv.create(place, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--quiet", *packages.split()], check=True)
    return python


def measure(tool: str, python: Path, model: Path, out: Path, seconds: int) -> str:
    """Measures one cell of the table."""
    _, imports, optimize = TOOLS[tool]
    script = MEASURE.format(imports=imports, optimize=optimize, seconds=seconds)
    done = subprocess.run([python, "-c", script, model, out], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"over {seconds} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["failed"])[-1][:40]
    cpu, _, memory = map(float, done.stdout.split()[-3:])
    return f"{cpu:.2f} s / {memory:.0f} MB"


def turn_by_turn(trees: list[Path], model: Path) -> list[list[float]]:
    """Returns CPU seconds for each tree and turn but the first. Each tree has a process; the processes run in turns."""
    command = [sys.executable, "-c", TURN, str(model), str(model.with_suffix(".out.onnx"))]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [
        subprocess.Popen(command, cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)}, **pipes) for tree in trees
    ]
    seconds: list[list[float]] = [[] for _ in trees]
    for turn in range(TURNS + 1):
        for process, found in zip(processes, seconds, strict=True):
            assert process.stdin is not None and process.stdout is not None
            print(file=process.stdin, flush=True)
            took = float(process.stdout.readline())
            if turn:
                found.append(took)
    for process in processes:
        process.communicate()
    return seconds


def compare(commit: str, nodes: list[int]) -> None:
    """Compares this tree with a commit on the same graphs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        before = folder / "before"
        check_out(commit, before)
        print(heading([f"median of {TURNS}", commit, "this tree", "ratio", "ratio in each turn"]))
        for shape, build in SHAPES.items():
            for n in nodes:
                path = folder / "model.onnx"
                path.write_bytes(build(n).SerializeToString())
                old, new = turn_by_turn([before, ROOT], path)
                ratios = sorted(b / a for a, b in zip(old, new, strict=True))
                a, b = statistics.median(old), statistics.median(new)
                each = f"{ratios[0]:.2f} to {ratios[-1]:.2f}, median {statistics.median(ratios):.2f}"
                print(line([f"{shape}, {n:,} nodes", f"{a:.2f} s", f"{b:.2f} s", f"{b / a:.2f}", each]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="*", default=[1000, 10_000, 50_000, 100_000])
    parser.add_argument("--peers", action="store_true", help="also measure the other tools")
    parser.add_argument("--no-large", action="store_true", help="skip the model of 2.35 GB")
    parser.add_argument("--timeout", type=int, default=300, help="CPU seconds for one cell")
    parser.add_argument("--against", metavar="COMMIT", help="compare this tree with a commit")
    arguments = parser.parse_args()
    if arguments.against:
        compare(arguments.against, arguments.nodes)
        return
    tools = [tool for tool, (packages, _, _) in TOOLS.items() if arguments.peers or not packages]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows: list[tuple[str, Path]] = []
        for shape, build in SHAPES.items():
            for nodes in arguments.nodes:
                path = folder / f"{shape}-{nodes}.onnx"
                path.write_bytes(build(nodes).SerializeToString())
                rows.append((f"{shape}, {nodes:,} nodes", path))
        if not arguments.no_large:
            for batch_norm, title in ((False, "2.35 GB, no weight touched"), (True, "2.35 GB, one of 784 MB folded")):
                place = folder / ("folded" if batch_norm else "untouched")
                place.mkdir()
                rows.append((title, large_weights(place, batch_norm=batch_norm)))
        pythons = {tool: interpreter(tool, folder) for tool in tools}
        print(heading(["model", *tools]))
        over_limit: set[tuple[str, str]] = set()
        for title, path in rows:
            cells = []
            for tool in tools:
                out = path.with_suffix(".out.onnx")
                shape = title.split(",")[0]
                # A tool that exceeded the limit for a graph is not measured on a larger graph of that shape.
                skipped = (tool, shape) in over_limit
                cell = "-" if skipped else measure(tool, pythons[tool], path, out, arguments.timeout)
                if cell.startswith("over"):
                    over_limit.add((tool, shape))
                cells.append(cell)
                for written in path.parent.glob("*"):
                    if written.is_file() and written not in [p for _, p in rows] and written.name != "weights.data":
                        written.unlink()
            print(line([title, *cells]), flush=True)


if __name__ == "__main__":
    main()
