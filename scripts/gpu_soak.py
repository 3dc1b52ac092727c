"""Soak test: creates, runs and destroys sessions on GPUs; results must keep their bits, and no memory may leak.

    python scripts/gpu_soak.py [--seconds N] [--threads N] [--seed N] [--device N ...] [--folder EXPORTS]
                               [--models NAME ...]

Models: the zoo, small exports of models/pytorch/published.py, and torchvision and transformers models of full size, all
with random weights and symbolic sizes, in float32 and float16. `--models` selects others by their names in
models/prepared.py, for example swin_t-8-foreign. They are first exported and optimized, one process per core;
`--folder` keeps the exports for the next call. Then two phases follow, which take `--seconds` together:

1. Three rounds, on one thread: a session of every model is created, run and destroyed, of one model in float32, of the
   next in float16. The device's memory after the third round is compared with that after the second. The rounds have at
   most half of the time.
2. Threads create, run and destroy sessions at random. A session may have a memory limit, which is enough for the
   largest input. Inputs have several sizes and are in host memory or on the device. Two sessions of one model run at
   once, one session runs on two threads, and a session is destroyed by another thread. PyTorch computes and captures
   CUDA graphs on the same threads.

For each model, input, precision, device, and with or without a limit, the first output is compared with the CPU's.
Every later output equals the first one bit by bit, unless the library has reported another implementation on stderr.

The first failure stops the run and is printed with the seed and the operations before it. The same seed gives each
thread the same operations. operations.txt in the folder of the exports lists all of them, even if the process is
killed. The last line has the counts; the exit code is 1 after a failure.

compute-sanitizer needs `--show-backtrace device` (docs/measurements/soak_h200.md). Without a GPU the small models
of the zoo run on guarded host memory, with the kernels compiled for the CPU.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import os
import random
import re
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import onnxruntime as ort

import graphopt
from graphopt.runtime.discovery import CPU, DEVICE_PROVIDER, Provider, device_count, device_of
from models.prepared import ERROR_LIMIT, Array, Model, names, prepare_all, relative_error
from scripts.device import bound, install_for_cuda, load_vendor_libraries, statistics_of
from tests.provider.worker import heap_bytes, kernels_on_the_cpu

MOST_GROWTH = 64 << 20  # bytes, from round to round
LEAST_MODELS = 30
MOST_SESSIONS = 5  # per thread
STALLED = 300.0  # seconds without an operation that count as a deadlock
# Lines on stderr that report another implementation.
OTHER_IMPLEMENTATION = re.compile(rb"graphopt: .*(built-in kernel|falling back)")


# -- comparison --------------------------------------------------------------------------------------------------------


class SoakError(Exception):
    """A failure that the soak test itself has detected."""


def error_of(got: Sequence[Array], want: Sequence[Array], limit: float) -> str:
    """Describes the first difference above the limit; "" if there is none."""
    if [a.shape for a in got] != [a.shape for a in want]:
        return f"shapes {[a.shape for a in got]}, not {[a.shape for a in want]}"
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        if not np.issubdtype(w.dtype, np.floating):
            if not np.array_equal(g, w):
                return f"output {i}: {np.count_nonzero(g != w)} of {w.size} elements are wrong"
            continue
        finite = np.isfinite(w)
        if not np.array_equal(finite, np.isfinite(g)):
            return f"output {i}: {np.count_nonzero(finite != np.isfinite(g))} elements are not finite, or should not be"
        if (error := relative_error(g, w)) > limit:
            return f"output {i}: error {error:.1e} of the root mean square"
    return ""


def same_bits(a: Sequence[Array], b: Sequence[Array]) -> bool:
    return len(a) == len(b) and all(
        x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes() for x, y in zip(a, b)
    )


class Stderr:
    """Forwards the stderr of the process and counts the lines that report another implementation."""

    def __init__(self) -> None:
        self.count = 0
        self.original = os.dup(2)
        read, write = os.pipe()
        os.dup2(write, 2)
        os.close(write)
        threading.Thread(target=self._pass_on, args=(read,), daemon=True).start()

    def _pass_on(self, read: int) -> None:
        rest = b""
        while data := os.read(read, 1 << 16):
            os.write(self.original, data)
            *lines, rest = (rest + data).split(b"\n")
            self.count += sum(OTHER_IMPLEMENTATION.match(line) is not None for line in lines)


# -- sessions ----------------------------------------------------------------------------------------------------------


@dataclass
class Live:
    """An open session."""

    session: Any
    model: Model
    precision: str
    device: int
    limit: int  # bytes, 0: none
    bindings: dict[int, Any] = field(default_factory=dict)  # by input

    def __post_init__(self) -> None:
        # A limit fits one run at a time.
        self.turn: AbstractContextManager[object] = threading.Lock() if self.limit else nullcontext()

    def __str__(self) -> str:
        return f"{self.model.name} {self.precision} on {self.device}{', limited' if self.limit else ''}"


@dataclass
class Reference:
    """The reference outputs of one implementation."""

    outputs: list[Array]
    reports: int  # lines about another implementation until then
    operation: int


class Soak:
    """State shared by all threads: reference outputs, the log of operations, the first failure."""

    def __init__(
        self, models: Sequence[Model], devices: Sequence[int], seed: int, torch: Any, stderr: Stderr, operations: Path
    ) -> None:
        self.models, self.devices, self.seed, self.torch, self.stderr = models, devices, seed, torch, stderr
        self.file = operations.open("wb", buffering=0)
        self.references: dict[tuple[str, str, int, bool, int], list[Reference]] = {}
        self.limits: dict[tuple[str, str, int], int] = {}
        self.lock = threading.Lock()
        self.limiting = threading.Lock()
        self.using_torch = threading.Lock()  # PyTorch captures on one thread at a time
        self.torch_first: dict[tuple[str, int], Array] = {}
        self.log: deque[str] = deque(maxlen=40)
        self.operations = 0
        self.last = time.monotonic()
        self.counts: Counter[str] = Counter()
        self.stop = threading.Event()
        self.failure = ""

    def begin(self, what: str) -> int:
        """Logs an operation and returns its number."""
        with self.lock:
            self.operations += 1
            self.last = time.monotonic()
            self.counts[what.split()[0]] += 1
            line = f"{self.operations} {threading.current_thread().name}: {what}"
            self.log.append(line)
            self.file.write(f"{line}\n".encode())
            return self.operations

    def fail(self, error: BaseException) -> None:
        """Prints the first failure and stops all threads; later failures are usually its consequences."""
        with self.lock:
            if self.failure:
                return
            mine = [line for line in self.log if f" {threading.current_thread().name}: " in line]
            where = f"operation {mine[-1]}" if mine else f"after operation {self.operations}"
            self.failure = f"{where}: {type(error).__name__}: {error}"
            print(f"FAILED, seed {self.seed}, {self.failure}", flush=True)
            print("".join(traceback.format_exception(error)), end="", flush=True)
            print("operations before it:", *self.log, sep="\n  ", flush=True)
        self.stop.set()

    def open(self, model: Model, precision: str, device: int, limited: bool) -> Live:
        limit = self.limit_of(model, precision, device) if limited else 0
        self.begin(f"open {model.name} {precision} on {device}{f', limit {limit}' if limit else ''}")
        return self._open(model, precision, device, limit)

    def _open(self, model: Model, precision: str, device: int, limit: int) -> Live:
        # Small models would run on the CPU, because that is faster.
        options: dict[str, Any] = {"device": device, "min_nodes": 1} | ({"memory_limit": limit} if limit else {})
        providers: list[Provider] = [(DEVICE_PROVIDER, options), CPU]
        session = graphopt.session(str(model.files[precision]), providers, log_severity_level=3)
        if DEVICE_PROVIDER not in session.get_providers():
            raise SoakError(f"the session runs on {session.get_providers()}")
        return Live(session, model, precision, device, limit)

    def limit_of(self, model: Model, precision: str, device: int) -> int:
        """Returns 9/8 of the memory that a session needs for its largest input, and 4 MiB more, in bytes."""
        key = (model.name, precision, device)
        with self.limiting:
            if key not in self.limits:
                self.begin(f"measure {model.name} {precision} on {device}")
                most = 0
                for i, feeds in enumerate(model.inputs):
                    generous = (1 << 36) + (len(self.limits) << 10) + i  # unique: it identifies the pool
                    live = self._open(model, precision, device, generous)
                    live.session.run(None, feeds)
                    pools = statistics_of("GraphoptMemory")["pools"]
                    used = [pool["most"] for pool in pools if pool["limit"] == generous]
                    if not used:
                        raise SoakError(f"no pool of the device has the limit {generous}")
                    most = max(most, *used)
                self.limits[key] = most * 9 // 8 + (4 << 20)
            return self.limits[key]

    def run(self, live: Live, size: int) -> None:
        """Runs a session once with inputs and outputs in host memory."""
        self.begin(f"run {live}, input {size}")
        with live.turn:
            outputs = live.session.run(None, live.model.inputs[size])
        self.compare(live, size, outputs)

    def run_bound(self, live: Live, size: int, times: int, anew: bool) -> None:
        """Runs a session `times` times with inputs and outputs on the device, at new addresses if `anew`."""
        self.begin(f"bound {live}, input {size}, {times} times{', anew' if anew else ''}")
        with live.turn:
            if anew or size not in live.bindings:
                live.bindings[size] = bound(live.session, live.model.inputs[size], live.model.outputs[size])
            binding = live.bindings[size]
            values = binding.get_outputs()
            ort.copy_tensors([ort.OrtValue.ortvalue_from_numpy(y) for y in live.model.nothing[size]], values)
            for _ in range(times):
                live.session.run_with_iobinding(binding)
            outputs = binding.copy_outputs_to_cpu()
        self.compare(live, size, outputs)

    def compare(self, live: Live, size: int, outputs: Sequence[Array]) -> None:
        """Raises SoakError unless the outputs equal the first ones, or, if they are the first, match the CPU's."""
        key = (live.model.name, live.precision, size, live.limit > 0, live.device)
        with self.lock:
            self.counts["compared"] += 1
            reports, operation = self.stderr.count, self.operations
            known = list(self.references.get(key, ()))
        if any(same_bits(reference.outputs, outputs) for reference in known):
            return
        if wrong := error_of(outputs, live.model.outputs[size], live.model.limit(live.precision, size)):
            before = f", and was right in operation {known[-1].operation}" if known else ""
            raise SoakError(f"{live}, input {size}, differs from the CPU{before}: {wrong}")
        with self.lock:
            references = self.references.setdefault(key, [])
            if any(same_bits(reference.outputs, outputs) for reference in references):  # another thread was faster
                return
            if references and references[-1].reports == reports:
                reference = references[-1]
                worst = error_of(outputs, reference.outputs, 0.0)
                raise SoakError(
                    f"{live}, input {size}, has other bits than in operation {reference.operation}: {worst}"
                )
            if references:
                print(f"another implementation: {live}, input {size}", flush=True)
            references.append(Reference([np.array(y) for y in outputs], reports, operation))

    def compute(self, device: int, captures: bool) -> None:
        """Lets PyTorch compute, or capture and replay a CUDA graph, while other threads run sessions.

        Raises:
            SoakError: the result has other bits than the first one.
        """
        torch, what = self.torch, "captures" if captures else "computes"
        self.begin(f"torch {what} on {device}")
        with self.using_torch, torch.cuda.device(device), torch.no_grad():
            made = torch.Generator().manual_seed(0)
            x, w = (torch.randn(2, 16, 32, 32, generator=made).cuda() for _ in range(2))
            k = torch.randn(16, 16, 3, 3, generator=made).cuda()

            def step() -> Any:
                return (torch.nn.functional.conv2d(x, k, padding=1).relu() @ w).softmax(-1)

            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                y = step()
            stream.synchronize()
            if captures:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.stream(stream):
                    # torch.cuda.graph waits for the whole device first, which CUDA forbids while a session captures
                    # (docs/provider.md).
                    graph.capture_begin()
                    y = step()
                    graph.capture_end()
                    graph.replay()
                    graph.replay()
                stream.synchronize()
            got = y.cpu().numpy()
            first = self.torch_first.setdefault((what, device), got)
            if got.tobytes() != first.tobytes():
                raise SoakError(f"PyTorch {what} other bits on {device}: error {np.abs(got - first).max():.1e}")

    def release_idle(self) -> None:
        """Collects garbage and empties PyTorch's cache."""
        gc.collect()
        if self.torch is not None:
            with self.using_torch:
                self.torch.cuda.empty_cache()

    def memory(self) -> list[int]:
        """Returns the bytes in use on each device; without PyTorch the bytes that the library has allocated."""
        self.release_idle()
        if self.torch is None:
            return [int(statistics_of("GraphoptMemory")["bytes"])]
        with self.using_torch:
            return [total - free for free, total in map(self.torch.cuda.mem_get_info, self.devices)]

    def require_idle(self) -> None:
        """Raises SoakError if a block is in use or a captured graph exists while no session is open."""
        self.release_idle()
        found = statistics_of("GraphoptMemory")
        if found["recordings"] or any(pool["in_use"] for pool in found["pools"]):
            raise SoakError(f"no session is open, and the library says {found}")

    def rounds(self, until: float) -> list[list[int]]:
        """Creates, runs and destroys every model three times; returns the memory after each complete round."""
        after: list[list[int]] = []
        for number in range(3):
            for i, model in enumerate(self.models):
                if time.monotonic() > until or self.stop.is_set():
                    return after
                turn = i // len(self.devices)
                precision = [*ERROR_LIMIT][turn % len(ERROR_LIMIT)]
                live = self.open(model, precision, self.devices[i % len(self.devices)], False)
                size = turn // len(ERROR_LIMIT) % len(model.inputs)
                self.run(live, size)
                self.run_bound(live, size, 3, anew=True)
                self.begin(f"close {live}")
                del live
            after.append(self.memory())
            self.require_idle()
            print(f"round {number + 1}: {progress(self)}, in use {mib(after[-1])}", flush=True)
        return after


class Worker(threading.Thread):
    """A thread with random operations that depend on the seed and its number only."""

    def __init__(self, soak: Soak, number: int) -> None:
        super().__init__(name=f"thread {number}", daemon=True)
        self.soak = soak
        self.rng = random.Random(f"{soak.seed} {number}")
        self.live: list[Live] = []

    def run(self) -> None:
        try:
            while not self.soak.stop.is_set():
                self.step()
            self.live.clear()
        except BaseException as error:
            self.soak.fail(error)

    def step(self) -> None:
        rng, soak = self.rng, self.soak
        work: list[tuple[Callable[[], None], int]] = [
            (self.open, 5 if len(self.live) < MOST_SESSIONS else 0),
            (self.use, 12 if self.live else 0),
            (self.close, 4 if self.live else 0),
            (self.run_on_two_threads, 2 if self.live else 0),
            (self.run_two_sessions, 2),
        ]
        if soak.torch is not None:
            work.append((lambda: soak.compute(rng.choice(soak.devices), captures=False), 2))
            work.append((lambda: soak.compute(rng.choice(soak.devices), captures=True), 1))
        actions, weights = zip(*work)
        rng.choices(actions, weights)[0]()

    def open_random(self, model: Model | None = None, precision: str = "", device: int | None = None) -> Live:
        rng = self.rng
        return self.soak.open(
            model or rng.choice(self.soak.models),
            precision or rng.choice([*ERROR_LIMIT]),
            rng.choice(self.soak.devices) if device is None else device,
            rng.random() < 0.3,
        )

    def open(self) -> None:
        self.live.append(self.open_random())
        self.use_one(self.live[-1])

    def use(self) -> None:
        self.use_one(self.rng.choice(self.live))

    def use_one(self, live: Live) -> None:
        size = self.rng.randrange(len(live.model.inputs))
        if self.rng.random() < 0.5:
            self.soak.run(live, size)
        else:
            self.soak.run_bound(live, size, self.rng.randint(1, 6), self.rng.random() < 0.3)

    def close(self) -> None:
        live = self.live.pop(self.rng.randrange(len(self.live)))
        self.soak.begin(f"close {live}")
        if self.rng.random() < 0.5:  # on a thread without a current device
            gone = [live]
            del live
            self.run_threads(gone.clear)

    def run_on_two_threads(self) -> None:
        """Runs one session on two threads."""
        live = self.rng.choice(self.live)
        sizes = [self.rng.randrange(len(live.model.inputs)) for _ in range(2)]
        self.run_threads(*(lambda size=size: self.soak.run(live, size) for size in sizes))

    def run_two_sessions(self) -> None:
        """Runs two sessions of one model on two threads, and on two devices if there are two."""
        model, precision = self.rng.choice(self.soak.models), self.rng.choice([*ERROR_LIMIT])
        first = self.rng.randrange(len(self.soak.devices))
        devices = [self.soak.devices[(first + i) % len(self.soak.devices)] for i in range(2)]
        size = self.rng.randrange(len(model.inputs))
        pair = [self.open_random(model, precision, device) for device in devices]

        def both(live: Live) -> None:
            self.soak.run(live, size)
            self.soak.run_bound(live, size, 3, anew=True)

        self.run_threads(*(lambda live=live: both(live) for live in pair))
        self.soak.begin(f"close two of {model.name} {precision}")

    def run_threads(self, *works: Callable[[], None]) -> None:
        """Runs each function on a new thread and raises the first error."""
        with ThreadPoolExecutor(len(works), f"{self.name}, part") as pool:
            for done in [pool.submit(work) for work in works]:
                done.result()


# -- the process -------------------------------------------------------------------------------------------------------


def mib(sizes: Sequence[int]) -> str:
    return " and ".join(f"{size / 2**20:.0f}" for size in sizes) + " MiB"


def progress(soak: Soak) -> str:
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    live = heap_bytes()
    counts = soak.counts
    runs = counts["run"] + counts["bound"]
    host = mib([resident]) + (f", {mib([live])} allocated" if live is not None else "")
    return f"{soak.operations} operations, {counts['open']} sessions, {runs} runs, host memory {host}"


def import_torch() -> Any:
    """Returns PyTorch, or None if it is not installed or has no GPU."""
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def choose_device(torch: Any) -> bool:
    """Builds the library for the GPU, or selects host memory if there is none; returns whether there is a GPU.

    Must be called before the library is loaded.
    """
    if "GRAPHOPT_HOST_KERNELS" in os.environ:
        return False
    if torch is None and not Path("/dev/kfd").exists():
        os.environ["GRAPHOPT_HOST_KERNELS"] = kernels_on_the_cpu()
        os.environ["GRAPHOPT_GUARD_MEMORY"] = "1"
        return False
    if torch is not None and torch.version.cuda is not None:
        install_for_cuda()
    return True


def watch(soak: Soak) -> None:
    """Prints the progress every 20 seconds, and ends the process after STALLED seconds without an operation."""
    said = time.monotonic()
    while True:
        time.sleep(1.0)
        now = time.monotonic()
        if now - said > 20:
            said = now
            print(progress(soak), flush=True)
        if now - soak.last > STALLED:
            faulthandler.dump_traceback(soak.stderr.original)
            soak.fail(SoakError(f"no operation in {STALLED:.0f} seconds: the stacks are on stderr"))
            os._exit(1)


def random_phase(soak: Soak, threads: int, until: float) -> None:
    """Runs the threads until the time is over or one fails."""
    workers = [Worker(soak, number) for number in range(threads)]
    for worker in workers:
        worker.start()
    soak.stop.wait(max(until - time.monotonic(), 0.0))
    soak.stop.set()
    for worker in workers:
        worker.join()


def judge(after: Sequence[Sequence[int]]) -> str:
    """Describes the memory after the rounds; raises SoakError if the third round has added more than MOST_GROWTH."""
    if len(after) < 3:
        return f"memory not compared: {len(after)} of 3 rounds"
    said = f"memory after the second round {mib(after[1])}, after the third {mib(after[2])}"
    if any(third > second + MOST_GROWTH for second, third in zip(after[1], after[2], strict=True)):
        raise SoakError(said)
    return said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", type=int, nargs="+", help="default: all")
    parser.add_argument(
        "--folder", type=Path, default=Path("build/soak"), help="folder of the exports (default: %(default)s)"
    )
    parser.add_argument("--models", nargs="+", metavar="NAME")
    options = parser.parse_args()
    torch = import_torch()
    on_gpu = choose_device(torch)
    if torch is not None:
        load_vendor_libraries(torch)
    devices = options.device or [*range(device_count())]
    stderr = Stderr()
    faulthandler.enable(stderr.original)
    arch = device_of((DEVICE_PROVIDER, {"device": devices[0]})).arch
    begin = time.monotonic()
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        target = "rocm" if arch.startswith("gfx") else "cuda"
        selected = options.models or names(small=not on_gpu)
        models = prepare_all(selected, options.folder.resolve(), Path(folder), target)
        took = time.monotonic() - begin
        print(f"{len(models)} models in {took:.0f} s, devices {devices} ({arch}), seed {options.seed}", flush=True)
        soak = Soak(models, devices, options.seed, torch, stderr, options.folder / "operations.txt")
        threading.Thread(target=watch, args=(soak,), daemon=True).start()
        begin = time.monotonic()
        said = ""
        try:
            if on_gpu and len(models) < min(LEAST_MODELS, len(selected)):
                raise SoakError(f"only {len(models)} of {len(selected)} models could be prepared")
            after = soak.rounds(begin + options.seconds / 2)
            said = judge(after)
            random_phase(soak, options.threads, begin + options.seconds)
            if not soak.failure:
                soak.require_idle()
        except Exception as error:
            soak.fail(error)
        kinds = ", ".join(f"{kind} {n}" for kind, n in soak.counts.most_common())
        result = f"failed, {soak.failure}" if soak.failure else f"0 failures, {said}"
        print(f"soak: {time.monotonic() - begin:.0f} s, seed {options.seed}, {len(models)} models, {kinds}: {result}")
        sys.stdout.flush()
        if soak.failure:  # a lost device may block destructors forever
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
