"""Runs whole models on an NVIDIA GPU with ONNX Runtime and the provider, against the fastest variant of PyTorch.

A row is a model at a batch size in float32 or float16. It has the error of the outputs against the exported model on
the CPU provider in float32. It has the nodes on the CPU, the copies between the CPU and the device (Memcpy nodes), and
the events of the model's regions. It also has medians of interleaved runs in one process, with inputs and outputs on
the device: ours, PyTorch eager, eager captured in a CUDA graph, and torch.compile(mode="reduce-overhead"). PyTorch's
convolutional models in float16 are channels last. Builds the library with nvcc first.

With `--json` rows are added to the file one by one, and rows that it already has are not measured again: a table may
combine several runs on the same kind of device. Prints the table of the file at the end. A row misses if it has nodes
on the CPU or copies, if its error is above the limit, or if the ratio of our time to the best of PyTorch is above
MAX_RATIOS. The run fails if a row misses. A variant of PyTorch that fails is named and also counts as a miss, because
the best of two is not the best of three. `--write FILE` writes the speed-up over the best of PyTorch at batch 1, for
scripts/pages.py. `--no-compile` skips torch.compile: its rows say "of 2", and without the option they are measured
again.

`--decoder`: times a decoder with 4-bit weights and a cache of 4,096 tokens, bound in place: one token after 1,000
tokens, and a prompt of 512 tokens in an empty cache. The outputs are compared with PyTorch in float32, the times with
PyTorch's captured graph with float16 weights.
`--without-libraries`: disables cuBLAS, cuBLASLt and cuDNN on our side, as on an AMD GPU without AMD's libraries.
`--trace`: prints host and device time of a run without regions, with regions but without capture, and captured; then
the host time for each node of a long chain. `--kernels` adds the kernels with the most device time in a captured run,
ours and those of PyTorch's captured graph.
`--sizes COUNT`: runs a detector with dynamic height and width on this many different random image sizes, and compares
the first run of a size with the second. It does this twice: with a memory limit that evicts plans, and with a larger
limit that all kept plans fit in. Fails if the ratio with the larger limit is above SIZES_RATIO, or if a session held
more device memory than its limit. Also fails if the memory of the driver and the vendor's libraries grew by more than
MOST_GROWTH.
GRAPHOPT_BUILT names the folder of another build of the library.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import TensorProto, numpy_helper

import graphopt
from graphopt.runtime.discovery import memory_of
from models import TITLES, ZOO, feeds_of
from models.decoder import Sizes, decoder
from models.prepared import relative_error
from models.pytorch.decoder import Decoder
from models.pytorch.twins import CONVOLUTIONAL, twin
from scripts.device import bound, load_vendor_libraries, statistics_of
from scripts.timing import Log, heading, interleaved, line, write_results
from tests.hip.harness import build_for_cuda
from tests.provider.worker import PROVIDER, placement_of

MODELS = tuple(ZOO)
BATCHES = (1, 8, 32)
DTYPES = ("float32", "float16")
ERROR_LIMIT = {"float32": 1e-4, "float16": 2e-2}
# The largest allowed ratio of our time to the best of PyTorch; other rows are only shown.
MAX_RATIOS = {
    "float32": dict.fromkeys(MODELS, 1.0)
    | dict.fromkeys(("mobilenet_v2", "unet", "yolo", "chess", "vgg16_bn", "gpt2"), 1.1),
    "float16": dict.fromkeys(("bert", "vit", "chess"), 1.0)
    | dict.fromkeys(("sd_block", "unet"), 1.1)
    | dict.fromkeys(("resnet18", "resnet50", "mobilenet_v2", "yolo"), 1.3)
    | {"decoder_token": 0.7, "decoder_prompt": 1.5},
}
# Rows of --decoder: the number of tokens in the cache, and of new tokens.
DECODER = {"decoder_token": (1000, 1), "decoder_prompt": (0, 512)}
# PyTorch's own error in float16 is 0.047 on a CPU: most of the cache is zeros, so its root mean square is low.
DECODER_ERROR_LIMIT = 6e-2
# In float16 without vendor libraries.
MAX_RATIOS_WITHOUT_LIBRARIES = dict.fromkeys(CONVOLUTIONAL, 2.0) | dict.fromkeys(("bert", "gpt2", "vit", "chess"), 1.6)
SIDES = ("eager", "graph", "compile")
# For --sizes: the largest allowed ratio of the first run of a size to the second; the largest allowed growth in bytes
# of the memory of the driver (mainly for graphs) and the vendor's libraries.
SIZES_RATIO = 1.3
MOST_GROWTH = 128 << 20
# The number of plans, one for each set of shapes, that a region keeps (kMaxPlans of
# native/runtime/provider/region_cache.h).
PLANS = 32


@dataclass
class Row:
    """One model at a batch size in one precision; times in milliseconds."""

    model: str
    batch: int
    dtype: str
    libraries: bool
    device: str
    error: float = 0.0
    on_cpu: dict[str, int] = field(default_factory=dict)
    copies: int = 0  # Memcpy nodes
    regions: dict[str, int] = field(default_factory=dict)
    ours: float = 0.0
    peers: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.model}:{self.batch}:{self.dtype} {'with' if self.libraries else 'without'} on {self.device}"

    @property
    def ratio(self) -> float:
        peers = [self.peers[side] for side in self.peers if side == "graph" or self.model not in DECODER]
        return self.ours / min(peers, default=float("nan"))

    @property
    def max_ratio(self) -> float | None:
        if self.libraries:
            return MAX_RATIOS[self.dtype].get(self.model)
        return MAX_RATIOS_WITHOUT_LIBRARIES.get(self.model) if self.dtype == "float16" else None

    @property
    def error_limit(self) -> float:
        return DECODER_ERROR_LIMIT if self.model in DECODER else ERROR_LIMIT[self.dtype]

    @property
    def speedup(self) -> float:
        """The ratio of the best time of PyTorch to ours."""
        return 1 / self.ratio

    def left_out(self) -> list[str]:
        """Returns the variants of PyTorch that were neither measured nor failed."""
        return [side for side in SIDES if side not in self.peers and side not in self.failed]

    def failures(self, sides: Sequence[str]) -> list[str]:
        """Returns the misses of the row, with these variants of PyTorch required."""
        found = [f"{side} failed" for side in self.failed if side in sides]
        found += [f"{side} left out" for side in self.left_out() if side in sides]
        if not self.error <= self.error_limit:
            found.append(f"error {self.error:.2g}")
        if self.on_cpu:
            found.append(f"on the CPU: {self.on_cpu}")
        if self.copies:
            found.append(f"{self.copies} copies")
        if self.max_ratio is not None and not self.ratio <= self.max_ratio:
            found.append(f"above {self.max_ratio}")
        return found

    def markdown(self, sides: Sequence[str]) -> str:
        peers = (f"{self.peers[side]:.3f}" if side in self.peers else "-" for side in SIDES)
        captured = "captured" if self.regions.get("captured") and not self.regions.get("refused") else "not captured"
        regions = f"{self.regions.get('compiled', 0)} {captured}"
        ratio = f"{self.ratio:.2f}" + (f" of {len(self.peers)}" if len(self.peers) < len(SIDES) else "")
        cells = (self.model, self.batch, self.dtype, f"{self.error:.1e}", self.copies, regions, f"{self.ours:.3f}")
        return line([*cells, *peers, ratio, ", ".join(self.failures(sides))])


COLUMNS = "model, batch, dtype, error, copies, regions, ours ms, eager, graph, compile, ours / best, misses"
HEAD = heading(COLUMNS.split(", "))


def to_float16(model: onnx.ModelProto) -> onnx.ModelProto:
    """Converts every float tensor and type of the model to float16."""
    half = onnx.ModelProto()
    half.CopyFrom(model)

    def convert(tensor: onnx.TensorProto) -> None:
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor)
            limit = np.finfo(np.float16).max
            tensor.CopyFrom(numpy_helper.from_array(np.clip(array, -limit, limit).astype(np.float16), tensor.name))

    scales = {node.input[2] for node in half.graph.node if node.op_type == "Resize"}  # float32 for any type of X
    for tensor in half.graph.initializer:
        if tensor.name not in scales:
            convert(tensor)
    for value in (*half.graph.input, *half.graph.output, *half.graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    for node in half.graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                convert(attribute.t)
            elif node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.FLOAT16
    return half


def session_of(model: onnx.ModelProto, library: Path, profile: str = "", **options: Any) -> Any:
    session_options = ort.SessionOptions()
    if profile:
        session_options.enable_profiling = True
        session_options.profile_file_prefix = profile
    session_options.log_severity_level = 3
    session_options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session_options.register_custom_ops_library(str(library))
    devices = [d for d in ort.get_ep_devices() if d.ep_name == PROVIDER]
    session_options.add_provider_for_devices(devices[:1], {key: str(value) for key, value in options.items()})
    return ort.InferenceSession(model.SerializeToString(), session_options)


def opened(model: onnx.ModelProto, feeds: dict[str, Any], library: Path) -> tuple[Any, dict[str, int], int]:
    """Creates a session and runs it once with a profile.

    Returns:
        the session, its nodes on other providers, and the number of copies (Memcpy nodes).
    """
    with tempfile.TemporaryDirectory() as folder:
        session = session_of(model, library, profile=str(Path(folder) / "profile"))
        session.run(None, feeds)
        placement = placement_of(session)
    copies = sum(n for ops in placement.values() for op, n in ops.items() if op.startswith("Memcpy"))
    elsewhere = sum((ops for provider, ops in placement.items() if provider != PROVIDER), Counter[str]())
    return session, {op: n for op, n in elsewhere.items() if not op.startswith("Memcpy")}, copies


def region_counts(library: Path) -> dict[str, int]:
    return {key: n for key, n in statistics_of("GraphoptRegions", library).items() if key != "planning_us"}


def events_since(before: dict[str, int], library: Path) -> dict[str, int]:
    return {key: n - before[key] for key, n in region_counts(library).items() if n != before[key]}


def milliseconds(works: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Returns medians of interleaved calls, fewer for a slow function; each call must wait for its work."""
    times = interleaved(works, warm_up=4, least=0.02, most_calls=50, most=0.4)
    return {name: 1e3 * found.median for name, found in times.items()}


def model_of(name: str, batch: int, dtype: str) -> tuple[onnx.ModelProto, onnx.ModelProto, dict[str, Any]]:
    """Returns the exported float32 model, the model optimized in `dtype`, and feeds for the latter."""
    exported = ZOO[name](batch=batch)
    feeds = feeds_of(exported)
    if dtype == "float32":
        source = exported
    else:
        source = to_float16(exported)
        feeds = {k: v.astype(np.float16) if v.dtype == np.float32 else v for k, v in feeds.items()}
    optimized, _ = graphopt.optimize(source, target="cuda")
    return exported, optimized, feeds


def peers_of(row: Row, feeds: dict[str, Any], compiled: bool) -> dict[str, Callable[[], object]]:
    """Returns the variants of the zoo's model in PyTorch; failures are noted in the row."""
    module, names = twin(row.model)
    arguments = [torch.from_numpy(feeds[name]) for name in names]
    module, arguments = on_device(module, arguments, row.dtype, row.model in CONVOLUTIONAL)
    return variants_of(module, arguments, compiled, row.failed)


def on_device(module: Any, arguments: Sequence[Any], dtype: str, channels_last: bool) -> tuple[Any, list[Any]]:
    """Returns the module and its arguments on the GPU in `dtype`; in float16 optionally channels last."""
    wanted = getattr(torch, dtype)
    module = module.eval().cuda().to(wanted)
    arguments = [a.cuda().to(wanted) if a.is_floating_point() else a.cuda() for a in arguments]
    if dtype == "float16" and channels_last:
        module = module.to(memory_format=torch.channels_last)
        arguments = [a.to(memory_format=torch.channels_last) if a.dim() == 4 else a for a in arguments]
    return module, arguments


def variants_of(
    module: Any, arguments: Sequence[Any], compiled: bool, failed: dict[str, str]
) -> dict[str, Callable[[], object]]:
    """Returns the variants of a module on the GPU; each call waits for its work. Failures are added to `failed`."""

    def eager() -> None:
        with torch.inference_mode():
            module(*arguments)
        torch.cuda.synchronize()

    works: dict[str, Callable[[], object]] = {"eager": eager}
    # PyTorch 2.11 captures all graphs on one stream. A destroyed graph frees the cuBLAS workspace of that stream,
    # although other graphs use it (pytorch issue 193402). So graphs of earlier rows must be destroyed before a capture.
    gc.collect()
    try:
        stream = torch.cuda.Stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            for _ in range(3):
                module(*arguments)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            kept = module(*arguments)

        def replay(kept: object = kept) -> None:
            graph.replay()
            torch.cuda.synchronize()

        works["graph"] = replay
    except Exception as error:  # PyTorch's exceptions have no common base
        failed["graph"] = str(error)[:200]
    if compiled:
        try:
            fast = torch.compile(module, mode="reduce-overhead", dynamic=False)

            def run_compiled() -> None:
                torch.compiler.cudagraph_mark_step_begin()
                with torch.no_grad():
                    fast(*arguments)
                torch.cuda.synchronize()

            for _ in range(3):
                run_compiled()
            works["compile"] = run_compiled
        except Exception as error:
            failed["compile"] = str(error)[:200]
    return works


def measure(name: str, batch: int, dtype: str, library: Path, libraries: bool, compiled: bool) -> Row:
    exported, model, feeds = model_of(name, batch, dtype)
    cpu = ort.InferenceSession(exported.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = cpu.run(None, {k: v.astype(np.float32) if v.dtype == np.float16 else v for k, v in feeds.items()})
    del cpu
    row = Row(name, batch, dtype, libraries, torch.cuda.get_device_name())
    before = region_counts(library)
    session, row.on_cpu, row.copies = opened(model, feeds, library)
    binding = checked(row, session, feeds, expected)
    add_times(row, session, binding, peers_of(row, feeds, compiled))
    row.regions = events_since(before, library)
    return row


def checked(row: Row, session: Any, feeds: dict[str, Any], expected: Sequence[Any]) -> Any:
    """Adds the error of the session's outputs to the row; returns a binding with inputs and outputs on the device."""
    for _ in range(4):  # launched, captured, replayed
        got = session.run(None, feeds)
        for actual, wanted in zip(got, expected, strict=True):
            error = relative_error(actual, wanted) if np.isfinite(actual).all() else float("inf")
            row.error = max(row.error, error)
    return bound(session, feeds, got)


def add_times(row: Row, session: Any, binding: Any, peers: dict[str, Callable[[], object]]) -> None:
    row.peers = milliseconds({"ours": partial(session.run_with_iobinding, binding), **peers})
    row.ours = row.peers.pop("ours")
    torch._dynamo.reset()
    torch.cuda.empty_cache()


class DecoderRows:
    """Measures the rows of --decoder: one session with 16 layers of Llama 3.2 1B's sizes, and a smaller vocabulary."""

    LAYERS, SIZES = 16, Sizes(2048, 32, 8, 64, 8192, 32_000, 4096)

    def __init__(self, library: Path) -> None:
        self.library = library
        self.source = to_float16(decoder(self.LAYERS, sizes=self.SIZES))
        model, _ = graphopt.optimize(self.source, target="cuda")
        self.before = region_counts(library)
        self.session, self.on_cpu, self.copies = opened(model, self.feeds(*DECODER["decoder_token"]), library)

    def feeds(self, start: int, count: int) -> dict[str, Any]:
        """Returns `count` tokens after `start` tokens in the cache."""
        sizes, rng = self.SIZES, np.random.default_rng(0)
        cache = np.zeros((self.LAYERS, 2, 1, sizes.key_heads, sizes.positions, sizes.head), np.float16)
        cache[..., :start, :] = rng.standard_normal(cache[..., :start, :].shape, dtype=np.float32)
        ids, mask = rng.integers(0, sizes.vocabulary, (1, count)), np.ones((1, start + count), np.int64)
        names = [value.name for value in self.source.graph.input if value.name.startswith("past_")]
        return {"input_ids": ids, "attention_mask": mask, **dict(zip(names, cache.reshape(-1, *cache.shape[2:])))}

    def measure(self, name: str, libraries: bool, compiled: bool) -> Row:
        start, count = DECODER[name]
        row, feeds = Row(name, 1, "float16", libraries, torch.cuda.get_device_name()), self.feeds(start, count)
        row.on_cpu, row.copies = self.on_cpu, self.copies
        pasts = [key for key in feeds if key.startswith("past_")]
        cache = torch.from_numpy(np.stack([feeds[key] for key in pasts])).cuda().float()
        layers = cache.unflatten(0, (self.LAYERS, 2))
        module = Decoder(self.source, self.LAYERS, self.SIZES, layers, start).eval()
        with torch.inference_mode():
            logits = module(torch.from_numpy(feeds["input_ids"]).cuda())
        binding = checked(row, self.session, feeds, [logits.cpu().numpy(), *module.cache.flatten(0, 1).cpu().numpy()])
        for past in pasts:  # present and past share a buffer
            shared = ort.OrtValue.ortvalue_from_numpy(feeds[past], *memory_of(self.session))
            binding.bind_ortvalue_input(past, shared)
            binding.bind_ortvalue_output(past.replace("past_key_values", "present"), shared)
        module, arguments = on_device(module, [torch.from_numpy(feeds["input_ids"])], row.dtype, False)
        add_times(row, self.session, binding, variants_of(module, arguments, compiled, row.failed))
        row.regions = events_since(self.before, self.library)
        return row


def results(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Returns for each model its speed-up at batch 1 with the vendor's libraries, by precision."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row.batch == 1 and row.libraries and row.peers and row.model in TITLES:
            title = TITLES[row.model]
            found.setdefault(title, {"model": title})[row.dtype] = round(row.speedup, 2)
    return list(found.values())


def kernels_of(run: Callable[[], object], rounds: int = 20) -> dict[str, tuple[float, float]]:
    """Returns microseconds and launches of each kernel and copy in one run, by name."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(rounds):
            run()
        torch.cuda.synchronize()
    kernels: dict[str, tuple[float, float]] = {}
    for event in found.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            spent, count = kernels.get(event.name, (0.0, 0.0))
            kernels[event.name] = (spent + event.time_range.elapsed_us() / rounds, count + 1 / rounds)
    return kernels


def print_kernels(title: str, kernels: dict[str, tuple[float, float]], most: int) -> None:
    total = sum(spent for spent, _ in kernels.values())
    print(f"{title}: {total:.1f} us in {sum(count for _, count in kernels.values()):.0f} launches and copies")
    for name, (spent, count) in sorted(kernels.items(), key=lambda item: -item[1][0])[:most]:
        print(f"    {spent:8.1f} us  {count:5.1f} x {spent / count:7.2f}  {name[:110]}")


def works_by_options(model: onnx.ModelProto, feeds: dict[str, Any], library: Path) -> dict[str, Callable[[], object]]:
    """Returns runs of the model without regions, with regions, and captured."""
    given: dict[str, dict[str, Any]] = {"node by node": {"regions": 0}, "regions": {"capture": 0}, "captured": {}}
    works: dict[str, Callable[[], object]] = {}
    for name, options in given.items():
        session = session_of(model, library, **options)
        got = [session.run(None, feeds) for _ in range(3)][-1]
        works[name] = partial(session.run_with_iobinding, bound(session, feeds, got))
    return works


def trace(rows: list[tuple[str, int, str]], library: Path, most_kernels: int) -> None:
    print(heading(["model", "batch", "dtype", "nodes", "how", "run, ms", "device busy, ms", "launches and copies"]))
    for name, batch, dtype in rows:
        _, model, feeds = model_of(name, batch, dtype)
        works = works_by_options(model, feeds, library)
        for how, wall in milliseconds(works).items():
            kernels = kernels_of(works[how])
            device = sum(spent for spent, _ in kernels.values()) / 1e3
            count = sum(count for _, count in kernels.values())
            cells = (f"{wall:.3f}", f"{device:.3f}", f"{count:.0f}")
            print(line([name, batch, dtype, len(model.graph.node), how, *cells]), flush=True)
        if most_kernels:
            print_kernels("ours", kernels, most_kernels)
            row = Row(name, batch, dtype, True, torch.cuda.get_device_name())
            peers = peers_of(row, feeds, compiled=False)
            print_kernels("PyTorch, captured", kernels_of(peers.get("graph", peers["eager"])), most_kernels)
            sys.stdout.flush()
    # A chain of nodes with negligible device time.
    nodes = 400
    body = " ".join(f"t{i + 1} = {'Relu' if i % 2 else 'Neg'} (t{i})" for i in range(nodes))
    graph = f"chain (float[1] t0) => (float[1] t{nodes}) {{ {body} }}"
    chain = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}')
    for how, wall in milliseconds(works_by_options(chain, {"t0": np.ones(1, np.float32)}, library)).items():
        each = f"{wall:.3f}: {wall / nodes * 1e3:.2f} us a node with its launch"
        print(line(["chain", "", "", nodes, how, each, "", ""]), flush=True)


def sizes_of_images(count: int) -> list[tuple[int, int]]:
    """Returns different heights and widths for the detector: multiples of 32, with at most 1,572,864 pixels.

    The largest sizes need about 120 MiB for intermediate tensors, and all share 29 MiB of weights. A limit of 256 MiB
    therefore fits one such size, but not two.

    Raises:
        ValueError: there are fewer sizes than `count`.
    """
    sides = range(4, 65)
    each = [(32 * h, 32 * w) for h in sides for w in sides if h * w <= 48 * 32]
    return [each[i] for i in np.random.default_rng(0).choice(len(each), count, replace=False)]


@dataclass
class SizesRun:
    """Many sizes in one session: times in milliseconds, device memory in bytes."""

    limit: int
    first: list[float] = field(default_factory=list)
    second: list[float] = field(default_factory=list)
    replayed: list[float] = field(default_factory=list)
    # Device memory in use by all programs: before the session, with it, after the first size, and the maximum after it.
    before: int = 0
    with_session: int = 0
    after_first: int = 0
    most: int = 0
    # Memory outside of our library: after the first size, and the maximum afterwards.
    others_after_first: int = 0
    others_most: int = 0
    held: int = 0  # maximum of the session, as counted by the library
    outside_session: int = 0  # by the library outside of the session: shared weights, workspaces
    recordings: int = 0  # maximum
    fewest: int = 0  # minimum of kept plans, once there were as many as a region keeps
    planning: float = 0.0  # milliseconds of planning on the host
    events: dict[str, int] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        return statistics.median(a / b for a, b in zip(self.first, self.second, strict=True))

    def misses(self, evicts: bool) -> list[str]:
        """Describes the missed limits. With `evicts` the memory limit must evict plans, and times are not checked."""
        found = []
        if self.held > self.limit:
            found.append(f"the session held {mib(self.held)}, above its limit of {mib(self.limit)}")
        grown = self.others_most - self.others_after_first
        if grown > MOST_GROWTH:
            found.append(f"the driver and the vendor's libraries grew by {mib(grown)}, above {mib(MOST_GROWTH)}")
        if evicts and self.fewest >= PLANS:
            found.append("the limit evicted no plan")
        if not evicts and not self.ratio <= SIZES_RATIO:
            found.append(f"ratio {self.ratio:.2f}, above {SIZES_RATIO}")
        return found

    def text(self) -> str:
        first, second, replayed = (statistics.median(kept) for kept in (self.first, self.second, self.replayed))
        return (
            f"limit {mib(self.limit)}, {len(self.first)} sizes: first run {first:.2f} ms, with "
            f"{self.planning:.2f} ms of planning; second run, with the capture, {second:.2f} ms; third run "
            f"{replayed:.2f} ms; median of first over second {self.ratio:.2f}\n"
            f"  device memory in use: {mib(self.before)} before the session, {mib(self.with_session)} with it, "
            f"{mib(self.after_first)} after its first size, {mib(self.most)} at most over all sizes\n"
            f"  of that the session at most {mib(self.held)}, the library outside the session "
            f"{mib(self.outside_session)}; the driver, the vendor's libraries and PyTorch "
            f"{mib(self.others_after_first)} after the first size, "
            f"{mib(self.others_most)} at most; up to {self.recordings} graphs\n"
            f"  plans kept, of {PLANS}: at least {self.fewest}; {self.events}"
        )


def mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"


def device_memory(library: Path) -> tuple[int, dict[str, Any]]:
    """Returns the bytes of device memory in use by all, and our library's statistics."""
    free, total = torch.cuda.mem_get_info()
    return total - free, statistics_of("GraphoptMemory", library)


def random_sizes(count: int, library: Path) -> bool:
    """Returns whether different sizes run within the memory limits, and first runs are about as fast as second runs."""
    model, _ = graphopt.optimize(dynamic_detector(), target="cuda")
    fine = True
    for limit, evicts in ((256 << 20, True), (1 << 30, False)):
        run = run_sizes(sizes_of_images(count), model, library, limit)
        misses = run.misses(evicts)
        print(f"{run.text()}\n  misses: {'; '.join(misses) or 'none'}", flush=True)
        fine &= not misses
    return fine


def run_sizes(sizes: list[tuple[int, int]], model: onnx.ModelProto, library: Path, limit: int) -> SizesRun:
    run = SizesRun(limit, before=device_memory(library)[0], fewest=PLANS)
    session = session_of(model, library, memory_limit=limit)
    run.with_session = device_memory(library)[0]
    rng = np.random.default_rng(0)
    begin = statistics_of("GraphoptRegions", library)
    for i, (h, w) in enumerate(sizes):
        # The first and the second run both follow the drawing of their image, and so have the same pause before them.
        for kept, is_drawn in ((run.first, True), (run.second, True), (run.replayed, False)):
            if is_drawn:
                feeds = {"images": rng.standard_normal((1, 3, h, w), dtype=np.float32)}
            start = time.perf_counter()
            got = session.run(None, feeds)
            kept.append((time.perf_counter() - start) * 1e3)
        assert all(np.isfinite(y).all() for y in got)
        taken, ours = device_memory(library)
        if i == 0:
            run.after_first, run.others_after_first = taken, taken - ours["bytes"]
        run.most = max(run.most, taken)
        run.others_most = max(run.others_most, taken - ours["bytes"])
        run.recordings = max(run.recordings, ours["recordings"])
        run.events = {k: n - begin[k] for k, n in statistics_of("GraphoptRegions", library).items()}
        if i >= PLANS:
            run.fewest = min(run.fewest, run.events["planned"] - run.events["dropped"])
    (pool,) = (pool for pool in ours["pools"] if pool["limit"] == limit)
    run.held = pool["most"]
    run.outside_session = ours["bytes"] - pool["in_use"] - pool["kept"]
    run.planning = run.events.pop("planning_us") / 1e3 / run.events["planned"]
    return run


def dynamic_detector() -> onnx.ModelProto:
    """Returns the zoo's detector for images of any size."""
    model = ZOO["yolo"]()
    for value, rows in ((model.graph.input[0], "h"), *((o, f"h{i}") for i, o in enumerate(model.graph.output))):
        dims = value.type.tensor_type.shape.dim
        dims[2].dim_param, dims[3].dim_param = rows, rows.replace("h", "w")
    del model.graph.value_info[:]
    return model


def is_wanted(name: str, batch: int, dtype: str, only: Sequence[str]) -> bool:
    """Returns whether `only` is empty or names the row: MODEL, MODEL:BATCH, MODEL:BATCH:DTYPE or MODEL::DTYPE."""
    return not only or bool({name, f"{name}:{batch}", f"{name}:{batch}:{dtype}", f"{name}::{dtype}"} & {*only})


def rows_of(only: list[str]) -> list[tuple[str, int, str]]:
    rows = [(name, batch, dtype) for name in MODELS for batch in BATCHES for dtype in DTYPES]
    return [row for row in rows if is_wanted(*row, only)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="MODEL[:BATCH[:DTYPE]]")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write", type=Path, metavar="FILE", help="write a JSON file for scripts/pages.py")
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--kernels", type=int, default=0, metavar="COUNT")
    parser.add_argument("--sizes", nargs="?", type=int, const=1000)
    parser.add_argument("--decoder", action="store_true")
    parser.add_argument("--without-libraries", action="store_true")
    parser.add_argument("--no-compile", action="store_true")
    options = parser.parse_args()
    if options.without_libraries:
        os.environ["GRAPHOPT_LIBRARIES"] = "cublas=off,cublaslt=off,cudnn=off"
    load_vendor_libraries(torch)
    library = build_for_cuda("graphopt").resolve()
    ort.register_execution_provider_library("graphopt", str(library))
    print(f"onnxruntime {ort.__version__}, torch {torch.__version__}, {torch.cuda.get_device_name()}")
    if options.trace:
        trace(rows_of(options.only), library, options.kernels)
        return 0
    if options.sizes:
        return int(not random_sizes(options.sizes, library))
    log, device, libraries = Log(options.json), torch.cuda.get_device_name(), not options.without_libraries
    sides = SIDES[:2] if options.no_compile else SIDES
    kept = {key: Row(**row) for key, row in log.rows.items()}
    known = {key for key, row in kept.items() if not {*row.left_out()} & {*sides}}
    print(HEAD, flush=True)
    decoders = DecoderRows(library) if options.decoder else None
    for name, batch, dtype in [(n, 1, "float16") for n in DECODER] if decoders else rows_of(options.only):
        key = Row(name, batch, dtype, libraries, device).key
        if key not in known:
            if decoders:
                row = decoders.measure(name, libraries, not options.no_compile)
            else:
                row = measure(name, batch, dtype, library, libraries, not options.no_compile)
            kept[key] = row
            log.add(key, **asdict(row))
            print(row.markdown(sides), row.failed or "", row.regions, flush=True)
    if known:
        print("\n".join(["", HEAD, *(row.markdown(sides) for row in kept.values())]))
    if options.write is not None:
        rows = [row for row in kept.values() if row.device == device]
        runtime = f"onnxruntime {ort.__version__}, PyTorch {torch.__version__}"
        columns = {dtype: dtype for dtype in DTYPES}
        write_results(options.write, results(rows), columns, machine=device, runtime=runtime)
    if options.no_compile:
        print('"of 2": the better of eager and a captured graph; torch.compile was left out')
    return int(any(row.failures(sides) for row in kept.values()))


if __name__ == "__main__":
    sys.exit(main())
