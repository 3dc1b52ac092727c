"""`doctor --selftest --bench`: times the implementations of typical shapes, and tests captured graphs."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from graphopt.errors import RuntimeMissingError, one_line
from graphopt.measure.bench import bound_runner
from graphopt.ops import DOMAIN, DOMAIN_VERSION
from graphopt.ops.schema import Array
from graphopt.runtime.discovery import (
    CPU,
    DEVICE_PROVIDER,
    Provider,
    gpu_routes,
    import_onnxruntime,
    library_path,
    memory_of,
    name_and_options,
)
from graphopt.runtime.routes import library_report
from graphopt.runtime.selftest import DTYPES, OPSET, REFUSAL, implementations
from graphopt.runtime.sessions import session

# A report takes less than five minutes: SECONDS for the self-test and all shapes, then SOAK_SECONDS.
SECONDS = 240.0
SELFTEST_SECONDS = 120.0
SECONDS_PER_SHAPE = 0.25
MIN_RUNS = 5
SOAK_SECONDS = 30.0
# A model repeats its node, up to MAX_REPEATS times, until it has WORK operations (a multiply-add counts as two). A run
# has an overhead of about 0.05 ms.
WORK = 4e9
MAX_REPEATS = 8
# The CPU skips shapes with more operations.
MAX_CPU_WORK = 5e9


@dataclass(frozen=True)
class Shape:
    """One node with random inputs.

    Attributes:
        name: operator and sizes.
        op: operator; `domain` is its domain, "" for ONNX's.
        inputs: shapes of the inputs; the first `variable` ones are inputs of the model, the others constant.
        flops: operations of one run; a multiply-add counts as two.
        attributes: the attributes of the node.
    """

    name: str
    op: str
    inputs: tuple[tuple[int, ...], ...]
    variable: int
    output: tuple[int, ...]
    flops: float
    attributes: tuple[tuple[str, Any], ...] = ()
    domain: str = ""

    def bytes(self, dtype: str) -> float:
        """Returns the bytes of all inputs and outputs, each counted once."""
        return float(sum(map(np.prod, (*self.inputs, self.output)))) * np.dtype(dtype).itemsize


def matmul(M: int, K: int, N: int) -> Shape:
    """Returns a matrix multiplication with constant weights, [M, K] x [K, N]."""
    return Shape(f"MatMul {M}x{K}x{N}", "MatMul", ((M, K), (K, N)), 1, (M, N), 2.0 * M * K * N)


def convolution(N: int, C: int, H: int, M: int, op: str = "Conv", kernel: int = 3) -> Shape:
    """Returns a convolution of [N, C, H, H] with M filters and zero padding, by Conv or WinogradConv."""
    pad = kernel // 2
    inputs = ((N, C, H, H), (M, C, kernel, kernel), (M,))
    attributes = (("pads", [pad] * 4),)
    work = 2.0 * N * M * H * H * C * kernel**2
    domain = "" if op == "Conv" else DOMAIN
    name = f"{op} {kernel}x{kernel} {N}x{C}x{H}x{H} to {M}"
    return Shape(name, op, inputs, 1, (N, M, H, H), work, attributes, domain)


def attention(B: int, H: int, S: int, D: int) -> Shape:
    """Returns FusedAttention of [B, H, S, D]."""
    perms = tuple((f"{x}_perm", [0, 1, 3, 2] if x == "k" else [0, 1, 2, 3]) for x in "qkvo")
    one, work = (B, H, S, D), 4.0 * B * H * S * S * D
    name = f"FusedAttention {B}x{H}x{S}x{D}"
    return Shape(name, "FusedAttention", (one,) * 3, 3, one, work, (("scale", D**-0.5), *perms), DOMAIN)


def layer_norm(N: int, D: int) -> Shape:
    """Returns FusedLayerNorm of N rows of D elements, which is limited by memory bandwidth."""
    inputs, attributes = ((N, D), (D,), (D,)), (("epsilon", 1e-5),)
    return Shape(f"FusedLayerNorm {N}x{D}", "FusedLayerNorm", inputs, 1, (N, D), 8.0 * N * D, attributes, DOMAIN)


_CONVOLUTIONS = ((1, 64, 56, 64), (1, 128, 28, 128), (1, 256, 14, 256), (8, 32, 56, 32), (8, 128, 28, 128))
SHAPES = (
    matmul(4096, 4096, 4096),
    matmul(3072, 768, 3072),
    matmul(197, 768, 768),
    matmul(1, 4096, 4096),
    matmul(1001, 1001, 1001),
    *(convolution(*sizes, op=op) for sizes in _CONVOLUTIONS for op in ("Conv", "WinogradConv")),
    convolution(8, 256, 56, 64, kernel=1),
    attention(8, 12, 384, 64),
    attention(1, 16, 1024, 128),
    layer_norm(16384, 1024),
)


@dataclass(frozen=True)
class ShapeTime:
    """Time of one node.

    Attributes:
        implementation: the forced implementation; "" for the one that the planner chose.
        milliseconds: median time of the node; None if it did not run, for the reason `refused`.
        share: the achieved share of the peak that limits the node, operations or memory; None if the peaks are unknown.
    """

    name: str
    op: str
    dtype: str
    inputs: tuple[tuple[int, ...], ...]
    implementation: str
    milliseconds: float | None
    share: float | None = None
    refused: str = ""


@dataclass(frozen=True)
class Peaks:
    """A device's peaks: operations per second for each type, and bytes per second of its memory."""

    flops: dict[str, float]
    bytes: float

    def share(self, shape: Shape, dtype: str, seconds: float) -> float | None:
        """Returns the least possible time by the peaks, divided by the measured time."""
        if not self.bytes or not self.flops.get(dtype):
            return None
        return max(shape.flops / self.flops[dtype], shape.bytes(dtype) / self.bytes) / seconds


@dataclass
class Soak:
    """Result of sessions that are created, run and destroyed on two threads.

    Attributes:
        captured: runs that replayed a captured graph.
        wrong: a description of each error, and of each difference between the outputs of a captured graph and of
            separate launches; the first one ends the test.
        growth: the increase in device memory that the library holds, in bytes, since the first sessions ended.
    """

    sessions: int = 0
    runs: int = 0
    captured: int = 0
    growth: int = 0
    wrong: list[str] = field(default_factory=list)


@dataclass
class KernelBench:
    """Times of all shapes, and the soak test."""

    peaks: Peaks
    shapes: list[ShapeTime] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    soak: Soak | None = None

    @property
    def failed(self) -> bool:
        unmeasured = any(time.milliseconds is None and not time.implementation for time in self.shapes)
        return unmeasured or (self.soak is not None and bool(self.soak.wrong))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def bench_kernels(
    provider: Provider,
    progress: Callable[[str], None] | None = None,
    *,
    shapes: Sequence[Shape] | None = None,
    seconds: float = SECONDS,
    soak_seconds: float = SOAK_SECONDS,
) -> KernelBench:
    """Times each shape with each implementation, then compares captured graphs with separate launches.

    Args:
        provider: where to run.
        progress: called with the name of each shape.
        shapes: what to time, the most important first; None for SHAPES.
        seconds: shapes and implementations that are not reached in this time are skipped.
        soak_seconds: duration of the comparison; only our provider has captured graphs.

    Raises:
        RuntimeMissingError: no runtime, or no native library.
    """
    name, options = name_and_options(provider)
    found = KernelBench(peaks_of(provider))
    several = implementations(provider) if name == DEVICE_PROVIDER else {}
    end = time.perf_counter() + seconds
    for shape in SHAPES if shapes is None else shapes:
        for dtype in DTYPES:
            if name == CPU and (dtype == "float16" or shape.flops > MAX_CPU_WORK):
                found.skipped.append(f"{shape.name} {dtype}")
                continue
            if progress is not None:
                progress(f"{shape.name} {dtype}")
            for number, implementation in enumerate(["", *several.get(shape.op, ())]):
                if time.perf_counter() > end:
                    found.skipped.append(f"{shape.name} {dtype}")
                    break
                where: Provider = provider
                if name == DEVICE_PROVIDER:
                    forced = {"implementation": number - 1} if implementation else {}
                    where = (name, {**options, "min_nodes": 1, **forced})
                found.shapes.append(_time(shape, dtype, where, implementation, found.peaks))
    if name == DEVICE_PROVIDER and soak_seconds:
        if progress is not None:
            progress("captured graphs")
        found.soak = soak((name, options), soak_seconds)
    return found


def peaks_of(provider: Provider) -> Peaks:
    """Returns the peaks of a provider's device; zeros if they are unknown, as for a CPU."""
    name, options = name_and_options(provider)
    number = int(options.get("device" if name == DEVICE_PROVIDER else "device_id", 0))
    for route in gpu_routes():
        for device in route.devices if route.provider == name else ():
            if device.number == number and route.ready:
                return Peaks(
                    {"float32": device.float32_flops, "float16": device.float16_flops}, device.bytes_per_second
                )
    return Peaks({}, 0.0)


def _time(shape: Shape, dtype: str, provider: Provider, implementation: str, peaks: Peaks) -> ShapeTime:
    repeats = int(min(MAX_REPEATS, max(1.0, WORK // shape.flops)))
    own = (shape.name, shape.op, dtype, shape.inputs, implementation)
    try:
        run = _runner(shape, dtype, provider, repeats)
        run()
        times: list[float] = []
        end = time.perf_counter() + SECONDS_PER_SHAPE
        while len(times) < MIN_RUNS or time.perf_counter() < end:
            start = time.perf_counter()
            run()
            times.append((time.perf_counter() - start) / repeats)
    except RuntimeMissingError:
        raise
    except Exception as error:  # ours, or the runtime's: the runtime's exception classes share no public base
        why = " ".join(str(error).split(REFUSAL)[-1].split()) if REFUSAL in str(error) else one_line(error)
        return ShapeTime(*own, None, refused=why)
    median = statistics.median(times)
    return ShapeTime(*own, 1e3 * median, peaks.share(shape, dtype, median))


def _runner(shape: Shape, dtype: str, provider: Provider, repeats: int) -> Callable[[], Any]:
    """Returns a function that runs the node `repeats` times, with inputs and outputs in the provider's memory."""
    generator = np.random.default_rng(0)
    names = [f"x{i}" for i in range(len(shape.inputs))]
    # The division keeps sums of many products in float16's range.
    values = [(generator.standard_normal(s) / 16).astype(dtype) for s in shape.inputs]
    nodes = [
        helper.make_node(shape.op, names, [f"y{i}"], domain=shape.domain, **dict(shape.attributes))
        for i in range(repeats)
    ]
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs = [helper.make_tensor_value_info(n, element, s) for n, s in zip(names, shape.inputs)][: shape.variable]
    outputs = [helper.make_tensor_value_info(f"y{i}", element, shape.output) for i in range(repeats)]
    constants = [numpy_helper.from_array(v, n) for v, n in zip(values, names)][shape.variable :]
    made = _session(helper.make_graph(nodes, "shape", inputs, outputs, constants), provider)
    feeds = dict(zip(names[: shape.variable], values))
    return (lambda: made.run(None, feeds)) if provider == CPU else bound_runner(made, feeds, memory_of(made))


def _session(graph: Any, provider: Provider) -> Any:
    """Creates a session where the runtime does not merge equal nodes."""
    imports = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, DOMAIN_VERSION)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    kept = import_onnxruntime().GraphOptimizationLevel.ORT_DISABLE_ALL
    return session(
        model.SerializeToString(),
        [provider] if provider == CPU else [provider, CPU],
        require_device=provider != CPU,
        ignore_selftest=True,
        log_severity_level=4,
        graph_optimization_level=kept,
    )


def soak(provider: tuple[str, dict[str, Any]], seconds: float) -> Soak:
    """Creates, runs and destroys sessions on two threads; captured graphs must give the same bits as launches."""
    found, lock = Soak(), threading.Lock()
    _soak_round(provider, np.random.default_rng(0))  # the first sessions also load code and reserve memory
    replays, memory = _replays_and_memory()
    end = time.perf_counter() + seconds

    def work(seed: int) -> None:
        generator = np.random.default_rng(seed)
        while time.perf_counter() < end and not found.wrong:
            try:
                wrong, runs = _soak_round(provider, generator)
            except Exception as error:  # ours, or the runtime's: the runtime's exception classes share no public base
                wrong, runs = [one_line(error)], 0
            with lock:
                found.sessions += 2
                found.runs += runs
                found.wrong += wrong

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    replays_after, memory_after = _replays_and_memory()
    found.captured, found.growth = replays_after - replays, memory_after - memory
    return found


def _soak_round(provider: tuple[str, dict[str, Any]], generator: np.random.Generator) -> tuple[list[str], int]:
    """Runs a network with and without captured graphs for several batch sizes; returns the differences and the runs."""
    name, options = provider
    graph, width = _network()
    by = [_session(graph, (name, {**options, "capture": capture})) for capture in (1, 0)]
    wrong, runs = [], 0
    for batch in (3, 3, 1, 3, 2, 1, 3, 3):
        x = generator.standard_normal((batch, width)).astype(np.float32)
        captured, launched = (made.run(None, {"x": x})[0] for made in by)
        runs += 1
        if not np.array_equal(captured, launched):
            wrong.append(f"batch {batch}: a captured graph differs by {np.abs(captured - launched).max():.1e}")
    return wrong, runs


def _network() -> tuple[Any, int]:
    """Returns the graph of a network of matrix multiplications, normalizations and activations, and its width."""
    generator, width, layers = np.random.default_rng(0), 256, 6
    nodes, constants, value = [], [], "x"
    for i in range(layers):
        weights: dict[str, Array] = {f"w{i}": generator.standard_normal((width, width)) / 16}
        weights |= {f"g{i}": np.ones(width), f"b{i}": np.zeros(width)}
        constants += [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
        nodes += [
            helper.make_node("MatMul", [value, f"w{i}"], [f"m{i}"]),
            helper.make_node("FusedLayerNorm", [f"m{i}", f"g{i}", f"b{i}"], [f"n{i}"], domain=DOMAIN, epsilon=1e-5),
            helper.make_node("Tanh", [f"n{i}"], [f"t{i}"]),
        ]
        value = f"t{i}"
    x, y = (helper.make_tensor_value_info(name, 1, ("N", width)) for name in ("x", value))
    return helper.make_graph(nodes, "network", [x], [y], constants), width


def _replays_and_memory() -> tuple[int, int]:
    """Returns the replays of captured graphs in this process, and the bytes of device memory that the library holds.

    The library counts a replay as `replayed` if the graph was captured for the addresses of this run, and as `copied`
    if inputs and outputs were copied to and from the addresses of the graph.
    """
    library = library_path()
    regions, memory = (library_report(library, name) for name in ("GraphoptRegions", "GraphoptMemory"))
    return regions.get("replayed", 0) + regions.get("copied", 0), memory.get("bytes", 0)
