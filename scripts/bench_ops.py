"""Times single operators on a CPU: ONNX Runtime's nodes and their optimized form, interleaved in one process.

    .venv-ort/bin/python scripts/bench_ops.py winograd linear [--only 64x56x64] [--threads 1] [--rounds 21]
    .venv-ort/bin/python scripts/bench_ops.py linear --library OTHER/libgraphopt.so      # two builds of the library

A case (models/operators.py) is a chain of equal operators, with weights and tensors in cache or in memory as in a real
network. Ours is the file with every legal rewrite of the passes that the case does not skip, regardless of the cost
model. "becomes" names its operators, or those of the bfloat16 file if only that file differs from the original.
"default" shows whether `optimize` writes the operators of ours by default. Both sides run under ORT_ENABLE_ALL with
bound inputs and outputs. Times are lower quartiles for one operator of the chain; ratios are ONNX Runtime's time over
ours. With one thread the script measures the CPU time of the process, with several threads it measures wall time. The
error is the largest difference, over the RMS of the output.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import onnx
import onnxruntime as ort

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import graphopt
from models.operators import GROUPS, Array, Case
from models.prepared import relative_error
from scripts.timing import heading, interleaved, line
from tests.contrib.nodes import lowered


def bound(model: onnx.ModelProto, feeds: Mapping[str, Array], threads: int, library: Path) -> tuple[Any, Any]:
    """Returns a session and a binding with its inputs and outputs."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    options.register_custom_ops_library(str(library))
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    for output in session.get_outputs():
        binding.bind_output(output.name)
    return session, binding


def operators(model: onnx.ModelProto) -> list[str]:
    return sorted({n.op_type for n in model.graph.node} - {"Constant", "Identity"})


def measure(case: Case, threads: int, rounds: int, library: Path, other: Path | None) -> str:
    """Measures a case and returns its row; ours also runs with the build `other` of the library, if given."""
    model = case.model()
    standard, refused = lowered(model) if case.contrib else (model, [])
    assert not refused, refused
    feeds = case.inputs(model)
    wanted: dict[str, Literal["bf16"] | None] = {"ours": None} | ({"bf16": "bf16"} if case.bfloat16 else {})
    options: dict[str, Any] = {"target": "cpu", "skip": case.skip}
    files = {
        name: graphopt.optimize(standard, ignore_cost_model=True, precision=precision, **options)[0]
        for name, precision in wanted.items()
    }
    usual, _ = graphopt.optimize(standard, **options)
    sides = {name: bound(made, feeds, threads, library) for name, made in {"runtime": model, **files}.items()}
    if other is not None:
        sides["other library"] = bound(files["ours"], feeds, threads, other)
    works = {name: (lambda s=s, b=b: s.run_with_iobinding(b)) for name, (s, b) in sides.items()}
    clock = time.process_time if threads == 1 else time.perf_counter
    times = interleaved(works, rounds=rounds, warm_up=2, least=0.003, clock=clock)
    outputs = {name: binding.copy_outputs_to_cpu() for name, (_, binding) in sides.items()}
    theirs, ours = times["runtime"], times["ours"]
    shown = [f"{theirs.lower / ours.lower:.2f}", f"{theirs.median / ours.median:.2f}"]
    columns = ("bf16",) if other is None else ("bf16", "other library")
    shown += [f"{theirs.lower / times[name].lower:.2f}" if name in times else "" for name in columns]
    numbers = (f"{1e3 * t.lower / case.parts:.3f}" for t in (theirs, ours))
    error = max(map(relative_error, outputs["ours"], outputs["runtime"]))
    default = "yes" if operators(usual) == operators(files["ours"]) != operators(standard) else ""
    changed = [f for f in files.values() if operators(f) != operators(standard)] or [standard]
    return line([case.name, *numbers, *shown, f"{error:.1e}", default, ", ".join(operators(changed[0]))[:80]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", choices=[[], *GROUPS], help="groups of cases (default: all)")
    parser.add_argument("--only", default="", help="only cases with this in their name")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--library", type=Path, help="another libgraphopt.so to compare in an additional column")
    options = parser.parse_args()
    library = Path(graphopt.library_path())
    for group in options.groups or GROUPS:
        cases = [case for case in GROUPS[group]() if options.only in case.name]
        print(f"\n{group}: {GROUPS[group].__doc__}")
        print(f"onnxruntime {ort.__version__}, {options.threads} thread(s)\n")
        ratios = ["lower quartile", "median", "bf16", *(["other library"] if options.library else [])]
        print(heading([group, "runtime, ms", "ours, ms", *ratios, "error", "default", "becomes"]))
        for case in cases:
            try:
                print(measure(case, options.threads, options.rounds, library, options.library), flush=True)
            except Exception as error:  # mostly a node without a kernel in this runtime
                print(line([case.name, " ".join(str(error).split())[:90]]), flush=True)


if __name__ == "__main__":
    main()
