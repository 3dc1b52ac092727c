"""Runs models that were not used in the development on an NVIDIA GPU, against the fastest variant of PyTorch.

    python scripts/gpu_zoo.py --json FILE [--only MODEL[:BATCH[:DTYPE]] ...] [--minutes N] [--trace COUNT]

The models are those of models/pytorch/foreign.py, in float32 and with precision="fp16", at batch 1 and 8, six of them
also at 32. First torch.compile fills its cache in parallel. Then a pool of processes exports and optimizes models,
while other processes measure the finished ones. Each measures the rows of one model, as scripts/gpu_session.py does. A
row also has the error of PyTorch's outputs. While one process measures times, no other process uses the GPU. PyTorch in
float16 runs models of images channels last.

The file has one line for each row, and the next call continues with the missing rows. `--again` optimizes and measures
rows of the file again, together with PyTorch's captured graph; the times of the other variants are kept if GPU and
PyTorch's version are the same. `--minutes` stops before a deadline. A process that crashes costs one row, which is
measured once more without torch.compile. `--prepare` only exports and optimizes, without a GPU, and prints the nodes
that the provider will not claim. `--trace COUNT` prints the slowest kernels of a captured run, ours and those of
PyTorch.

Prints the table of the file and the geometric means at the end. Fails if a row or a mean misses its limit, if a model
is slower in float16 than in float32, or if a model cannot be prepared.
"""

from __future__ import annotations

import argparse
import copy
import fcntl
import math
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

# Processes compile, export and optimize in parallel.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import onnx
import onnxruntime as ort
import torch

from graphopt.placement import forecast
from models.prepared import Model, prepare_each, relative_error
from models.pytorch.case import Case
from models.pytorch.foreign import LARGE, MODELS
from scripts.device import bound, load_vendor_libraries
from scripts.gpu_session import (
    SIDES,
    Row,
    events_since,
    is_wanted,
    kernels_of,
    milliseconds,
    on_device,
    opened,
    print_kernels,
    region_counts,
    session_of,
    variants_of,
)
from scripts.timing import Log, heading, line
from tests.hip.harness import build_for_cuda

# The largest ratio of our time to the best of PyTorch, of one row and of the geometric mean of all rows.
LIMITS = {("float16", 1): 1.05, ("float16", 8): 1.1, ("float32", 1): 0.95, ("float32", 8): 1.05}
MEANS = {("float16", 1): 0.85, ("float16", 8): 0.95}
# The largest ratio of our error to that of PyTorch on the same card.
ERRORS = 1.5
COLUMNS = "model, batch, dtype, error, PyTorch's, copies, ours ms, eager, graph, compile, ours / best, misses"
# The batches and precisions of a model in the order of measurement; the larger batches of LARGE follow all models.
FORMS = ((8, "float16"), (1, "float32"), (8, "float32"), (1, "float16"))
LARGE_FORMS = ((32, "float16"), (32, "float32"))
# Models that are measured at the same time, and the cores that the preparation leaves to them.
AT_ONCE = 6
SPARE_CORES = 4
SPAWN = multiprocessing.get_context("spawn")  # a forked process cannot use a GPU


@dataclass
class ForeignRow(Row):
    """A row with PyTorch's error and version; with `again`, eager and compile are times of an earlier run."""

    peer_error: float = 0.0
    torch: str = torch.__version__
    measured: float = 0.0  # seconds since 1970

    @property
    def max_ratio(self) -> float | None:
        return LIMITS.get((self.dtype, self.batch))

    @property
    def error_limit(self) -> float:
        return max(super().error_limit if self.dtype == "float32" else 0.0, ERRORS * self.peer_error)

    def markdown(self, sides: Sequence[str]) -> str:
        peers = (f"{self.peers[side]:.3f}" if side in self.peers else "-" for side in SIDES)
        errors = (f"{self.error:.1e}", f"{self.peer_error:.1e}")
        misses = ", ".join(self.failures(sides))
        cells = (self.model, self.batch, self.dtype, *errors, self.copies, f"{self.ours:.3f}")
        return line([*cells, *peers, f"{self.ratio:.2f}", misses])


def prepared_name(row: Row) -> str:
    return f"{row.model}-{row.batch}-foreign"


def case_of(row: Row) -> Case:
    return MODELS[row.model](row.batch)


def build(case: Case, dtype: str) -> tuple[Any, list[Any]]:
    """Returns a copy of the case's module and its arguments, on the GPU."""
    return on_device(copy.deepcopy(case.module), [*case.inputs.values()], dtype, channels_last=True)


@contextmanager
def gpu(folder: Path, alone: bool) -> Iterator[None]:
    """Waits until this process may use the GPU: either alone, or together with processes that do not need to be alone.

    The files in the folder are locks, which the system releases if a process crashes.
    """
    with (folder / "queue.lock").open("w") as queue, (folder / "gpu.lock").open("w") as device:
        fcntl.flock(queue, fcntl.LOCK_EX)  # later processes wait behind one that waits to be alone
        fcntl.flock(device, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(queue, fcntl.LOCK_UN)
        yield


def start(library: Path) -> None:
    load_vendor_libraries(torch)
    ort.register_execution_provider_library("graphopt", str(library))


def fill_cache(rows: Sequence[ForeignRow]) -> None:
    """Compiles modules, so that a later process finds their kernels in torch.compile's cache on disk."""
    torch.set_num_threads(1)
    load_vendor_libraries(torch)
    for row in rows:
        variants_of(*build(case_of(row), row.dtype), compiled=True, failed=row.failed)
        torch._dynamo.reset()


def set_up(row: ForeignRow, model: Model, case: Case, library: Path, compiled: bool) -> dict[str, Callable[[], object]]:
    """Adds errors and placement to the row; returns the functions to measure."""
    optimized = onnx.load(model.files[row.dtype])
    feeds, expected = model.inputs[0], model.outputs[0]
    session, row.on_cpu, row.copies = opened(optimized, feeds, library)
    for _ in range(4):  # launched, captured, replayed
        got = session.run(None, feeds)
        row.error = max(row.error, error_of(got, expected))
    module, arguments = build(case, row.dtype)
    with torch.inference_mode():
        outputs = module(*arguments)
    peer = [y.float().cpu().numpy() for y in (outputs if isinstance(outputs, tuple) else (outputs,))]
    row.peer_error = error_of(peer, expected)
    works: dict[str, Callable[[], object]] = {"ours": partial(session.run_with_iobinding, bound(session, feeds, got))}
    works |= variants_of(module, arguments, compiled, row.failed)
    if {*row.peers} - {"graph"}:  # kept from an earlier run
        works = {name: work for name, work in works.items() if name in ("ours", "graph")}
    return works


def error_of(got: Sequence[Any], expected: Sequence[Any]) -> float:
    pairs = zip(got, expected, strict=True)
    return max(relative_error(y, want) if np.isfinite(y).all() else math.inf for y, want in pairs)


def measure_rows(rows: Sequence[ForeignRow], folder: Path, library: Path, json: Path, compiled: bool) -> None:
    """Measures rows of one model and adds them to the file; runs in a separate process."""
    models = {row.batch: Model.read(prepared_name(row), folder) for row in rows}
    cases = {row.batch: case_of(row) for row in rows}
    with gpu(folder, alone=False):
        start(library)
    log = Log(json)
    sides = SIDES if compiled else SIDES[:2]
    for row in rows:
        before = region_counts(library)
        with gpu(folder, alone=False):
            missing = compiled and "compile" not in row.peers
            works = set_up(row, models[row.batch], cases[row.batch], library, missing)
        with gpu(folder, alone=True):
            times = milliseconds(works)
            works.clear()  # here, because freeing device memory waits for the work of all processes
            torch._dynamo.reset()
            torch.cuda.empty_cache()
        row.ours = times.pop("ours")
        row.peers |= times
        row.regions = events_since(before, library)
        row.measured = time.time()
        log.add(row.key, **asdict(row))
        print(row.markdown(sides), row.failed or "", row.regions, flush=True)


def join(process: Any, until: float) -> None:
    """Runs a process until the deadline."""
    process.start()
    process.join(max(until - time.monotonic(), 0) if until < math.inf else None)
    if process.is_alive():
        process.kill()
        process.join()


def measure_model(
    rows: list[ForeignRow], folder: Path, library: Path, json: Path, compiled: bool, until: float
) -> None:
    """Measures the rows of one model in a process; a row that crashes it is measured again without torch.compile."""
    begin = time.time()
    while rows and time.monotonic() < until:
        process = SPAWN.Process(target=measure_rows, args=(rows, folder, library, json, compiled))
        join(process, until)
        done = {key for key, row in Log(json).rows.items() if row["measured"] >= begin}
        rows = [row for row in rows if row.key not in done]
        if rows and time.monotonic() < until:
            print(f"{rows[0].key}: exit code {process.exitcode}", flush=True)
            if "compile" in rows[0].failed:
                rows = rows[1:]
            else:
                rows[0].failed["compile"] = f"exit code {process.exitcode}"


def trace(rows: Sequence[ForeignRow], folder: Path, library: Path, most: int, compiled: bool) -> None:
    start(library)
    for row in rows:
        model = Model.read(prepared_name(row), folder)
        session = session_of(onnx.load(model.files[row.dtype]), library)
        got = [session.run(None, model.inputs[0]) for _ in range(3)][-1]
        print(f"{row.model}, batch {row.batch}, {row.dtype}")
        run = partial(session.run_with_iobinding, bound(session, model.inputs[0], got))
        print_kernels("ours", kernels_of(run), most)
        works = variants_of(*build(case_of(row), row.dtype), compiled, row.failed)
        for side in ("graph", "compile"):
            if side in works:
                print_kernels(side, kernels_of(works[side]), most)
        sys.stdout.flush()
        torch._dynamo.reset()


def print_forecast(rows: Sequence[ForeignRow], folder: Path) -> bool:
    """Prints the nodes of each model that the provider will not claim; returns whether there are none."""
    fine = True
    for row in rows:
        found = forecast(onnx.load(Model.read(prepared_name(row), folder).files[row.dtype]))
        reasons = [f"{len(g.names)} {g.op}: {g.reason}" for g in found.groups() if g.provider in ("cpu", "none")]
        fine &= not reasons
        print(f"{row.model}:{row.batch}:{row.dtype}: {found.answer()}", *reasons, sep="\n    ", flush=True)
    return fine


def summary(rows: Sequence[ForeignRow], sides: Sequence[str]) -> bool:
    """Prints the table and the geometric means; returns whether all rows and means are within their limits."""
    print("\n".join(["", heading(COLUMNS.split(", ")), *(row.markdown(sides) for row in rows)]))
    fine = not any(row.failures(sides) for row in rows)
    for (dtype, batch), limit in LIMITS.items():
        ratios = [row.ratio for row in rows if (row.dtype, row.batch) == (dtype, batch) and row.ours and row.peers]
        if ratios:
            mean, most = statistics.geometric_mean(ratios), MEANS.get((dtype, batch), math.inf)
            above = sum(ratio > limit for ratio in ratios)
            print(f"{dtype}, batch {batch}: geometric mean {mean:.3f}, {above} of {len(ratios)} above {limit}")
            fine &= mean <= most
    times = {(row.model, row.batch, row.dtype): row.ours for row in rows}
    for (model, batch, dtype), ours in times.items():
        if dtype == "float16" and ours > times.get((model, batch, "float32"), math.inf):
            print(f"slower in float16 than in float32: {model}, batch {batch}")
            fine = False
    return fine


def rows_of(options: argparse.Namespace, known: dict[str, dict[str, Any]], device: str) -> list[list[ForeignRow]]:
    """Returns the rows to measure, by process; with `--again` those of the file too.

    These have the file's times of PyTorch, except of its captured graph, if they were measured with the same version.
    """
    groups = []
    for name, forms in [*((name, FORMS) for name in MODELS), *((name, LARGE_FORMS) for name in LARGE)]:
        rows = []
        for batch, dtype in forms:
            row = ForeignRow(name, batch, dtype, libraries=True, device=device)
            earlier = known.get(row.key)
            if not is_wanted(name, batch, dtype, options.only) or (earlier and not options.again):
                continue
            if earlier and earlier["torch"] == row.torch:
                row.peers = {side: t for side, t in earlier["peers"].items() if side != "graph"}
            rows.append(row)
        groups += [rows] if rows else []
    return groups


def run(options: argparse.Namespace) -> int:
    until = time.monotonic() + 60 * options.minutes
    options.folder.mkdir(parents=True, exist_ok=True)
    folder = options.folder.resolve()
    known = Log(options.json).rows
    device = "" if options.prepare else torch.cuda.get_device_name()
    groups = rows_of(options, known, device)
    rows = [row for group in groups for row in group]
    names = [*dict.fromkeys(map(prepared_name, rows))]
    if options.again:
        for name in names:
            (folder / f"{name}.npz").unlink(missing_ok=True)
    if options.prepare or options.trace:
        made = dict(prepare_each(names, folder, folder, "cuda"))
        rows = [row for row in rows if made[prepared_name(row)]]
        if options.prepare:
            return int(not print_forecast(rows, folder) or not all(made.values()))
        trace(rows, folder, build_for_cuda("graphopt").resolve(), options.trace, not options.no_compile)
        return 0
    library = build_for_cuda("graphopt").resolve()
    if not options.no_compile:
        with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2)) as threads:
            for group in groups:
                new = [row for row in group if "compile" not in row.peers]
                threads.submit(join, SPAWN.Process(target=fill_cache, args=(new,)), until)
    print(f"onnxruntime {ort.__version__}, torch {torch.__version__}, {device}")
    print(heading(COLUMNS.split(", ")), flush=True)
    fine = measure_groups(groups, names, folder, library, options, until)
    measured = [ForeignRow(**row) for row in Log(options.json).rows.values()]
    sides = SIDES[:2] if options.no_compile else SIDES
    return int(not summary([row for row in measured if row.device == device], sides) or not fine)


def measure_groups(
    groups: Sequence[list[ForeignRow]],
    names: Sequence[str],
    folder: Path,
    library: Path,
    options: argparse.Namespace,
    until: float,
) -> bool:
    """Prepares all models and measures each group as soon as its models are ready; returns whether all are prepared."""
    made: dict[str, bool] = {}
    waiting = list(groups)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        tasks = []
        for name, is_made in prepare_each(names, folder, folder, "cuda", SPARE_CORES):
            made[name] = is_made
            if time.monotonic() > until:
                break
            ready = [group for group in waiting if all(prepared_name(row) in made for row in group)]
            waiting = [group for group in waiting if group not in ready]
            for group in ready:
                rows = [row for row in group if made[prepared_name(row)]]
                arguments = (rows, folder, library, options.json, not options.no_compile, until)
                tasks.append(threads.submit(measure_model, *arguments))
        for task in tasks:
            task.result()
    return sum(made.values()) == len(names)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="MODEL[:BATCH[:DTYPE]]")
    parser.add_argument("--json", type=Path, default=Path("build/zoo/rows.json"))
    parser.add_argument("--folder", type=Path, default=Path("build/zoo"), help="exports (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--trace", type=int, default=0, metavar="COUNT")
    parser.add_argument("--no-compile", action="store_true")
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
