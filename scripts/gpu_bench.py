"""Times the GPU kernels on an NVIDIA GPU against PyTorch (cuBLAS, cuDNN) and against the rate of a copy.

A row has a shape, the median time of our kernels, and TFLOP/s or the fraction of the copy's rate. For each variant of
PyTorch it has PyTorch's time over ours. Times are medians over replays of a CUDA graph, ours and PyTorch's in the same
process, without TF32. A row below the floor of its group ends in MISSES.

Without an option all parts are timed; the options select parts.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import c_double, c_float, c_int, c_int32, c_int64, c_uint64
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

from scripts.gpu_check import open_device
from tests.hip import (
    activations,
    elementwise_cases,
    integer_elementwise_cases,
    logic_cases,
    nonzero_cases,
    recurrent_cases,
    reduction_cases,
    resize_cases,
    scatter_cases,
    tiles,
    unary_cases,
)
from tests.hip.group_query_attention_cases import Setting
from tests.hip.harness import Plan, int64s
from tests.hip.integer_gemm_cases import Numbers

# Images, channels, height (equal to the width), filters of 3x3
CONVOLUTIONS = (
    (1, 64, 56, 64), (1, 128, 28, 128), (1, 256, 14, 256), (1, 512, 7, 512), (32, 64, 56, 64), (32, 128, 28, 128),
    (32, 256, 14, 256), (32, 512, 7, 512), (1, 64, 224, 64), (16, 64, 224, 64), (1, 320, 64, 320),
    (8, 320, 64, 320), (1, 640, 32, 640),
)  # fmt: skip
# M, N, K, number of matrices
GEMM_SIZES = (
    (1024, 1024, 1024, 1), (4096, 4096, 4096, 1), (8192, 8192, 8192, 1), (3072, 768, 768, 1), (3072, 3072, 768, 1),
    (3072, 768, 3072, 1), (128, 768, 768, 1), (128, 3072, 768, 1), (128, 768, 3072, 1), (197, 768, 768, 1),
    (1024, 768, 768, 1), (1024, 3072, 768, 1), (1024, 768, 3072, 1), (1, 4096, 4096, 1),
    (384, 384, 64, 96), (1001, 1001, 1001, 1), (1576, 768, 768, 3), (1576, 3072, 768, 1), (1576, 768, 3072, 1),
    (6304, 768, 768, 3), (6304, 3072, 768, 1), (6304, 768, 3072, 1),
)  # fmt: skip
# The aligned tiles for dense operands, from the largest; `--tiles` times each.
ALIGNED = [tile.number for tile in (*tiles.DENSE_COPYING, *tiles.DENSE)]
INT8 = [tile.number for tile in (*tiles.INT8_COPYING, *tiles.INT8)]
# Images, channels, height (equal to the width), filters, kernel, stride
CHANNELS_FIRST = (
    (32, 64, 56, 64, 3, 1), (32, 256, 56, 512, 1, 2), (32, 256, 28, 1024, 1, 1), (32, 3, 224, 64, 7, 2),
    (8, 128, 56, 128, 3, 2),
)  # fmt: skip
CHANNELS_LAST = (
    *((n, c, h, m, 3, 1) for n, c, h, m in CONVOLUTIONS),
    (8, 128, 56, 128, 3, 2), (8, 256, 28, 256, 3, 2), (8, 512, 14, 512, 3, 1), (8, 512, 14, 512, 3, 2),
    (8, 64, 56, 256, 1, 1), (8, 256, 56, 64, 1, 1), (8, 1024, 14, 256, 1, 1), (8, 256, 14, 1024, 1, 1),
    (8, 512, 7, 2048, 1, 1), (8, 256, 56, 512, 1, 2), (1, 1024, 14, 256, 1, 1), (1, 512, 7, 2048, 1, 1),
    (1, 64, 56, 256, 1, 1), (32, 8, 224, 64, 7, 2),
)  # fmt: skip
# N, C, H, W. In channels last, more sizes of Stable Diffusion's UNet and decoder are timed.
NORMS = ((256, 64, 32, 32), (32, 256, 56, 56), (1, 320, 64, 64), (8, 320, 64, 64))
NORMS_LAST = (*NORMS, (2, 640, 32, 32), (1, 1280, 8, 8), (8, 1280, 16, 16), (1, 128, 512, 512))
# B, H, S, D
ATTENTIONS = (
    (1, 12, 128, 64), (8, 12, 384, 64), (32, 12, 197, 64), (8, 8, 4096, 40), (1, 16, 1024, 128), (8, 16, 2048, 128),
    (256, 1, 64, 64),
)  # fmt: skip
FLOATS = (torch.float32, torch.float16)
NO, YES = c_int(0), c_int(1)

Work = Callable[[], object]


# -- timing ------------------------------------------------------------------------------------------------------------


def elapsed(work: Work, rounds: int, before: Work = lambda: None) -> float:
    """Returns the median milliseconds of `work` between two events; each round calls `before` first."""
    times: list[float] = []
    for _ in range(rounds):
        before()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def milliseconds(work: Work, rounds: int = 15, cold: bool = False) -> float:
    """Returns the median time of `work` in a CUDA graph of ten; `cold` flushes the L2 before each single call."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    stream.synchronize()
    repeats = 1 if cold else 10
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(repeats):
            work()
    if not cold:
        return elapsed(graph.replay, rounds) / repeats
    return elapsed(graph.replay, rounds, torch.empty(256 << 20, dtype=torch.uint8, device="cuda").zero_)


def eager_milliseconds(work: Work, repeats: int = 10) -> float:
    """Returns the median time of repeated calls, for work that waits for the GPU and cannot be in a graph."""

    def calls() -> None:
        for _ in range(repeats):
            work()

    calls()
    return elapsed(calls, 15) / repeats


def copy_bandwidth() -> float:
    """Returns the rate of a copy of 1 GiB in TB/s, reads and writes. (In a graph, copy_ would use a copy engine.)"""
    x = torch.randn(256 << 20, device="cuda")
    y = torch.empty_like(x)
    moved: int = 2 * x.nbytes
    return moved / elapsed(partial(y.copy_, x), 20) / 1e9


@dataclass(frozen=True)
class Row:
    """A shape to time.

    Attributes:
        name: the operator or the sizes.
        plan: the plan whose kernels are named.
        ours: enqueues our kernels.
        peers: name -> enqueues PyTorch's kernels.
        moved: bytes that must be read and written, for the fraction of the copy's rate; 0 shows none.
        flops: floating-point operations, for a rate; 0 shows none.
        timer: returns the milliseconds of our work.
        peer_timer: returns the milliseconds of PyTorch's work.
        cold: whether the ratio to the first peer is also shown with a flushed L2.
        with_tile: returns our work with a given tile, for `--tiles`.
        tiles: the tiles that `--tiles` times.
    """

    name: str
    plan: Plan
    ours: Work
    peers: Mapping[str, Work] = field(default_factory=dict)
    moved: int = 0
    flops: int = 0
    timer: Callable[[Work], float] = milliseconds
    peer_timer: Callable[[Work], float] = milliseconds
    cold: bool = False
    with_tile: Callable[[int], Work] | None = None
    tiles: Sequence[int] = tuple(ALIGNED)


@dataclass(frozen=True)
class Group:
    """Rows under a title, with floors for each row: the fraction of a copy's rate, and PyTorch's time over ours."""

    title: str
    rows: Iterator[Row]
    of_copy: float = 0.0
    of_peer: float = 0.0

    def show(self, copy: float, only: Sequence[str], by_tile: bool) -> None:
        """Times and prints the rows with one of `only` in their name, and means over the rows for each peer."""
        print(f"\n{self.title}")
        ratios: dict[str, list[float]] = {}
        for row in self.rows:
            if not any(name in row.name for name in only):
                continue
            ms = row.timer(row.ours)
            cells, misses = [f"{row.name:40} {ms:.4f} ms"], False
            if row.flops:
                cells.append(f"{row.flops / ms / 1e9:.1f} TFLOP/s")
            if row.moved:
                part = row.moved / ms / 1e9 / copy
                cells.append(f"{part:.0%} of copy")
                misses |= part < self.of_copy
            for peer, work in row.peers.items():
                theirs = row.peer_timer(work)
                cells.append(f"{peer} {theirs:.4f} {theirs / ms:.2f}x")
                ratios.setdefault(peer, []).append(theirs / ms)
                misses |= theirs / ms < self.of_peer
            if row.cold:
                first = next(iter(row.peers.values()))
                ratio = milliseconds(first, cold=True) / milliseconds(row.ours, cold=True)
                cells.append(f"cold {ratio:.2f}x")
                ratios.setdefault("the first, cold", []).append(ratio)
            if by_tile and row.with_tile is not None:
                times = (milliseconds(row.with_tile(tile), rounds=7) for tile in row.tiles)
                cells.append(f"[{' '.join(f'{t:.4f}' for t in times)}]")
            kernels = dict.fromkeys(launch["kernel"] for launch in row.plan.launches)
            cells.append(f"{' '.join(kernels)}, {len(row.plan.launches)} launches")
            print("  " + "  ".join([*cells, *["MISSES"] * misses]), flush=True)
        for peer, found in ratios.items():
            print(f"  against {peer}: geometric mean {statistics.geometric_mean(found):.2f}x, least {min(found):.2f}x")


class Runner:
    """Makes plans, and functions that run them on tensors."""

    def __init__(self) -> None:
        self.harness, self.device = open_device()

    def plan(self, op: str, *arguments: Any) -> Plan:
        return self.harness.plan(op, self.device.facts, *arguments)

    def work(
        self,
        plan: Plan,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        weights: torch.Tensor | None = None,
    ) -> Work:
        """Returns a function that enqueues the plan on the current stream."""
        workspace = [torch.empty(max(n, 16), dtype=torch.uint8, device="cuda") for n in plan.workspace]
        read, written, scratch = ([t.data_ptr() for t in tensors] for tensors in (inputs, outputs, workspace))
        prepared = weights.data_ptr() if weights is not None else 0

        def run(keep: object = (workspace, inputs, outputs, weights)) -> object:
            stream = torch.cuda.current_stream().cuda_stream
            self.device.run(plan, read, written, scratch, prepared, stream)
            return keep

        return run

    def row(
        self, name: str, plan: Plan, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], **more: Any
    ) -> Row:
        return Row(name, plan, self.work(plan, inputs, outputs), **more)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def uniform(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.rand(shape, device="cuda").to(dtype)


def is_half(dtype: torch.dtype) -> c_int:
    return c_int(dtype == torch.float16)


def text(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def activation(name: str) -> tuple[c_int32, c_float, c_float]:
    kind, a, b = activations.parameters(name)
    return c_int32(kind), c_float(a), c_float(b)


# -- norms -------------------------------------------------------------------------------------------------------------


def scale_shifts(r: Runner) -> Iterator[Row]:
    for dtype in FLOATS:
        for N, C, H, W in ((256, 64, 32, 32), (32, 256, 56, 56), (256, 256, 56, 56)):
            x, scale, shift = normal(N, C, H, W, dtype=dtype), uniform(C, dtype=dtype), uniform(C, dtype=dtype)
            sizes = map(c_int64, (N, C, H * W))
            plan = r.plan("scale_shift", is_half(dtype), *sizes, NO, *activation("LeakyRelu"))
            name = f"{(N, C, H, W)} {text(dtype)}"
            yield r.row(name, plan, [x, scale, shift], [torch.empty_like(x)], moved=2 * x.nbytes)


def group_norms(r: Runner, dtype: torch.dtype, shapes: Sequence[tuple[int, ...]], last: bool) -> Iterator[Row]:
    for N, C, H, W in shapes:
        x = normal(N, C, H, W, dtype=dtype)
        if last:
            x = x.to(memory_format=torch.channels_last)
        gamma, beta = uniform(C, dtype=dtype), uniform(C, dtype=dtype)
        sizes = map(c_int64, (N, C, H * W, 32))
        plan = r.plan("group_norm", is_half(dtype), c_int(last), *sizes, c_float(1e-5), *activation("Silu"))
        peers = {"PyTorch": partial(lambda x, gamma, beta: F.silu(F.group_norm(x, 32, gamma, beta)), x, gamma, beta)}
        yield r.row(
            str((N, C, H, W)), plan, [x, gamma, beta], [torch.empty_like(x)], peers=peers, moved=2 * x.nbytes
        )  # fmt: skip


def row_norms(r: Runner) -> Iterator[Row]:
    for dtype in FLOATS:
        for rows, D in ((8192, 768), (4096, 4096), (32768, 1024)):
            x, residual = (normal(rows, D, dtype=dtype) for _ in range(2))
            gamma, beta = uniform(D, dtype=dtype), uniform(D, dtype=dtype)
            outputs = [torch.empty_like(x), torch.empty_like(x)]
            sizes = (c_int64(rows), c_int64(D), c_float(1e-5), NO, YES, YES, c_int64(1), NO)
            plan = r.plan("row_norm", is_half(dtype), *sizes)
            norm = partial(lambda x, b, D, g, s: F.layer_norm(x + b, (D,), g, s), x, residual, D, gamma, beta)
            name = f"{(rows, D)} {text(dtype)}"
            inputs = [x, residual, gamma, beta]
            yield r.row(name, plan, inputs, outputs, peers={"PyTorch": norm}, moved=4 * x.nbytes)


def norms(r: Runner) -> Iterator[Group]:
    yield Group("ScaleShift + LeakyRelu (floor 88 % of copy)", scale_shifts(r), of_copy=0.88)
    floors = "floor 60 % of copy at the large shapes, 2x PyTorch at (1, 320, 64, 64)"
    for dtype in FLOATS:
        yield Group(f"GroupNorm(32) + SiLU, {text(dtype)} ({floors})", group_norms(r, dtype, NORMS, last=False))
    rows = group_norms(r, torch.float16, NORMS_LAST, last=True)
    yield Group("GroupNorm(32) + SiLU, float16 in channels last", rows)
    yield Group("LayerNorm with residual and sum", row_norms(r))


# -- GEMMs and convolutions --------------------------------------------------------------------------------------------


def matmuls(r: Runner, dtype: torch.dtype, transpose: bool) -> Iterator[Row]:
    for M, N, K, batch in GEMM_SIZES:
        a = normal(batch, M, K, dtype=dtype)
        b = normal(batch, *((N, K) if transpose else (K, N)), dtype=dtype)
        y = torch.empty(batch, M, N, device="cuda", dtype=dtype)
        sizes = (*map(c_int64, (M, N, K)), NO, c_int(transpose), c_float(1), c_float(0), NO, c_int64(0), NO)
        fixed = (is_half(dtype), *sizes, *activation(""), int64s([1, batch, 1, batch]), YES)

        def with_tile(tile: int, fixed: Any = fixed, a: Any = a, b: Any = b, y: Any = y) -> Work:
            return r.work(r.plan("gemm", *fixed, c_int32(tile)), [a, b], [y])

        peers = {"cuBLAS": partial(torch.matmul, a, b.mT if transpose else b)}
        plan, flops = r.plan("gemm", *fixed, c_int32(-1)), 2 * batch * M * N * K
        yield r.row(str((M, N, K, batch)), plan, [a, b], [y], peers=peers, flops=flops, with_tile=with_tile)


def integer_matmuls(r: Runner) -> Iterator[Row]:
    """Times uint8 activations and packed int8 weights with scales and a bias for each column; the output is uint8."""
    for M, N, K, batch in GEMM_SIZES:
        if batch > 1 or K % 16:
            continue
        a, b = (torch.randint(-100, 100, size, device="cuda", dtype=torch.int8) for size in ((M, K), (N, K)))
        numbers = Numbers.draw(np.random.default_rng(0), np.uint8, np.int8, np.uint8, N, K, 3)
        operands = torch.from_numpy(numbers.columns(np.zeros((1, N), np.int64), K)).cuda()
        y = torch.empty(M, N, device="cuda", dtype=torch.uint8)
        fixed = (int64s([M, N, K, 0, 0]), int64s(numbers.plan_numbers(1, N, K)), numbers.floats(), NO, YES)

        def with_tile(tile: int, fixed: Any = fixed, a: Any = a, b: Any = b, c: Any = operands, y: Any = y) -> Work:
            return r.work(r.plan("integer_gemm", *fixed, c_int32(tile)), [a, b, c, a], [y])

        half = [normal(M, K).half(), normal(N, K).half()]
        peers = {"cuBLAS float16": partial(torch.matmul, half[0], half[1].T)}
        if M > 16 and N % 8 == 0:
            peers["cuBLAS int8 to int32"] = partial(torch._int_mm, a, b.T)
        plan = r.plan("integer_gemm", *fixed, c_int32(-1))
        yield r.row(
            str((M, N, K)),
            plan,
            [a, b, operands, a],
            [y],
            peers=peers,
            flops=2 * M * N * K,
            with_tile=with_tile,
            tiles=INT8,
        )


def convolutions(r: Runner, dtype: torch.dtype) -> Iterator[Row]:
    for n, c, h, m, kernel, stride in CHANNELS_FIRST:
        pad = kernel // 2
        out = (h + 2 * pad - kernel) // stride + 1
        x, w = normal(n, c, h, h, dtype=dtype), normal(m, c, kernel, kernel, dtype=dtype) / (c * kernel**2) ** 0.5
        numbers = int64s([n, 1, c, h, h, m, out, out, kernel, kernel, stride, stride, 1, 1, pad, pad])
        plan = r.plan("conv", is_half(dtype), NO, numbers, c_int32(-1))
        peers = {"cuDNN": partial(F.conv2d, x, w, stride=stride, padding=pad)}
        y, flops = torch.empty(n, m, out, out, device="cuda", dtype=dtype), 2 * n * m * out**2 * c * kernel**2
        yield r.row(str((n, c, h, m, kernel, stride)), plan, [x, w], [y], peers=peers, flops=flops)


def convolutions_last(r: Runner, shapes: Sequence[tuple[int, ...]]) -> Iterator[Row]:
    for n, c, h, m, kernel, stride in shapes:
        pad = kernel // 2
        out = (h + 2 * pad - kernel) // stride + 1
        x, w = normal(n, c, h, h).half(), normal(m, c, kernel, kernel).half()
        x, w = (t.to(memory_format=torch.channels_last) for t in (x, w / (c * kernel * kernel) ** 0.5))
        bias, y = normal(m).half(), torch.empty(n, out, out, m, device="cuda", dtype=torch.float16)
        fixed = (NO, int64s([n, c, m, *(h, out, kernel, stride, 1, pad) * 2]), (c_int * 2)(1, 0), *activation(""))
        inputs = [x, w, bias]

        def with_tile(tile: int, fixed: Any = fixed, inputs: Any = inputs, y: Any = y) -> Work:
            return r.work(r.plan("channels_last_conv", *fixed, c_int32(tile), NO), inputs, [y])

        peers = {"cuDNN": partial(F.conv2d, x, w, bias, stride=stride, padding=pad)}
        plan, flops = r.plan("channels_last_conv", *fixed, c_int32(-1), NO), 2 * n * m * out**2 * c * kernel**2
        name = str((n, c, h, m, kernel, stride))
        yield r.row(name, plan, inputs, [y], peers=peers, flops=flops, with_tile=with_tile)


def integer_convolutions(r: Runner) -> Iterator[Row]:
    """Times uint8 images and packed int8 filters with scales and a bias for each filter; the output is uint8."""
    for n, c, h, m, kernel, stride in CHANNELS_LAST:
        if c % 16:
            continue
        out, K = (h + 2 * (kernel // 2) - kernel) // stride + 1, c * kernel**2
        x, w = (torch.randint(-9, 9, size, device="cuda", dtype=torch.int8) for size in ((n, h, h, c), (m, K)))
        numbers = Numbers.draw(np.random.default_rng(0), np.uint8, np.int8, np.uint8, m, K, 3)
        operands = torch.from_numpy(numbers.columns(np.zeros((1, m), np.int64), K)).cuda()
        axis, y = (h, out, kernel, stride, 1, kernel // 2), torch.empty(n, out, out, m, device="cuda", dtype=torch.int8)
        sizes = int64s([n, 1, c, m, 1, 1, 1, 1, 1, 0, *axis, *axis])
        plan = r.plan("integer_conv", sizes, int64s(numbers.plan_numbers(1, m, K)), numbers.floats(), c_int32(-1))
        half = [normal(n, c, h, h).half(), normal(m, c, kernel, kernel).half()]
        half = [t.to(memory_format=torch.channels_last) for t in half]
        peers = {"cuDNN float16": partial(F.conv2d, *half, stride=stride, padding=kernel // 2)}
        name, flops = str((n, c, h, m, kernel, stride)), 2 * n * m * out**2 * K
        yield r.row(name, plan, [x, w, operands], [y], peers=peers, flops=flops)


def winograds(r: Runner, dtype: torch.dtype) -> Iterator[Row]:
    for size in CONVOLUTIONS:
        n, c, h, k = size
        x, w, bias = (normal(*s, dtype=dtype) for s in ((n, c, h, h), (k, c, 3, 3), (k,)))
        w /= (9 * c) ** 0.5
        choices = (c_int32(-1), c_int32(-1), c_int64(-1))
        arguments = (is_half(dtype), int64s([n, c, h, h, k, 1, 1, 1, 1]), NO, *activation(""), *choices)
        plan, prepare = (r.plan("winograd_conv", *arguments, prepares) for prepares in (NO, YES))
        weights = torch.empty(prepare.weights, dtype=torch.uint8, device="cuda")
        r.work(prepare, [x, w], [], weights)()
        torch.cuda.synchronize()
        ours = r.work(plan, [x, w, bias], [torch.empty(n, k, h, h, device="cuda", dtype=dtype)], weights)
        yield Row(str(size), plan, ours, {"cuDNN": partial(F.conv2d, x, w, bias, padding=1)}, cold=True)


def tiled(r: Runner) -> Iterator[Group]:
    """Yields GEMMs and convolutions in float16 and int8, which can be timed with each tile."""
    for transpose in (False, True):
        title = f"MatMul, float16{', B transposed' if transpose else ''}"
        yield Group(title, matmuls(r, torch.float16, transpose))
    yield Group("QLinearMatMul, uint8 and int8", integer_matmuls(r))
    unit = [shape for shape in CHANNELS_LAST if shape[4:] == (3, 1)]
    yield Group("Conv in channels last, float16, 3x3 (floor 0.8x)", convolutions_last(r, unit))
    others = [shape for shape in CHANNELS_LAST if shape not in unit]
    yield Group("Conv in channels last, float16, other sizes and strides", convolutions_last(r, others))
    yield Group("QLinearConv in channels last, uint8 and int8", integer_convolutions(r))


def gemms(r: Runner) -> Iterator[Group]:
    """Yields GEMMs and convolutions. Kernels that run only without cuBLAS and cuDNN mostly have no floor."""
    for transpose in (False, True):
        title = f"MatMul, float32{', B transposed' if transpose else ''}"
        yield Group(title, matmuls(r, torch.float32, transpose))
    yield from tiled(r)
    for dtype in FLOATS:
        yield Group(f"Conv, {text(dtype)}", convolutions(r, dtype))
    title = "3x3 convolution, pad 1"
    yield Group(f"{title}, float32 (floor 1.4x, none under 0.95x)", winograds(r, torch.float32))
    yield Group(f"{title}, float16 (floor 0.7x, with cuDNN where ours is slower)", winograds(r, torch.float16))


# -- attention ---------------------------------------------------------------------------------------------------------


def attention_plan(r: Runner, qkvo: Sequence[torch.Tensor], bias: torch.Tensor | None, causal: bool) -> Plan:
    """Returns a plan for Q, K, V and the output, [B, H, rows, columns] with any strides."""
    q, k, v, _ = qkvo
    B, H, S, D = q.shape
    sizes = [B, H, S, k.shape[2], D, v.shape[3], H // k.shape[1]]
    for x in qkvo:
        sizes += x.stride()
    if bias is None:
        sizes += [0] * 4
    else:
        sizes += [0 if n == 1 else step for n, step in zip(bias.shape, bias.stride(), strict=True)]
    sizes += [0] * 6  # neither mask nor window
    flags = c_int((bias is not None) | causal << 2)
    settings = (c_float(D**-0.5), c_float(0), c_float(0), c_int(-1))
    return r.plan("fused_attention", is_half(q.dtype), int64s(sizes), flags, *settings)


def three_nodes(scaled: torch.Tensor, kt: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(scaled @ kt, dim=-1) @ v


def attentions(r: Runner, dtype: torch.dtype) -> Iterator[Row]:
    for B, H, S, D in ATTENTIONS:
        q, k, v = (normal(B, H, S, D, dtype=dtype) for _ in range(3))
        o = torch.empty_like(q)
        peers = {"SDPA": partial(F.scaled_dot_product_attention, q, k, v)}
        if S >= 1024:
            peers["three nodes"] = partial(three_nodes, q * D**-0.5, k.transpose(-1, -2), v)
        plan = attention_plan(r, (q, k, v, o), None, False)
        yield r.row(str((B, H, S, D)), plan, [q, k, v], [o], peers=peers, flops=4 * B * H * S * S * D)


def attention_options(r: Runner) -> Iterator[Row]:
    B, H, S, D = 8, 16, 2048, 128
    for name in ("causal", "bias", "grouped", "BSNH", "one query", "one query, many keys"):
        grouped, causal = name == "grouped", name == "causal"
        T = 16384 if name == "one query, many keys" else S
        keys = (B, 2 if grouped else H, T, D)
        shapes = [(B, H, 1 if "one query" in name else S, D), keys, keys]
        if name == "BSNH":
            q, k, v = (normal(b, s, h, d).half().transpose(1, 2) for b, h, s, d in shapes)
        else:
            q, k, v = (normal(*shape).half() for shape in shapes)
        o = torch.empty_like(q)
        bias = normal(B, 1, S, S).half() if name == "bias" else None
        sdpa = partial(F.scaled_dot_product_attention, q, k, v, attn_mask=bias, is_causal=causal, enable_gqa=grouped)
        inputs = [q, k, v] + ([bias] if bias is not None else [])
        yield r.row(name, attention_plan(r, (q, k, v, o), bias, causal), inputs, [o], peers={"SDPA": sdpa})


def attention(r: Runner) -> Iterator[Group]:
    yield Group("FusedAttention, float16 (floor 0.35x SDPA, 2x three nodes)", attentions(r, torch.float16))
    yield Group("FusedAttention, float32 (floor 1x SDPA)", attentions(r, torch.float32))
    yield Group("FusedAttention, float16, options", attention_options(r))


# -- language models ---------------------------------------------------------------------------------------------------


def alternating(works: Sequence[Work]) -> Work:
    """Returns a function that enqueues another one of `works` in each call, so their weights are not in the L2."""
    turns = itertools.cycle(works)
    return lambda: next(turns)()


def packed_gemms(r: Runner, bits: int, *rows: int) -> Iterator[Row]:
    """Times MatMulNBits with blocks of 32 and zero points. Calls alternate between weights of 256 MiB in all."""
    K, N, size, memory = 4096, 14336, 32, 256 << 20
    for M in rows:
        a, y, none = normal(M, K).half(), torch.empty(M, N, dtype=torch.float16, device="cuda"), normal(16)
        numbers, flags = (c_int64(M), c_int64(N), c_int64(K), c_int(bits), c_int64(size)), (1, 1, 0, 0, 1)
        plan = r.plan("matmul_nbits", c_int(1), *numbers, (c_int * 5)(*flags), c_int32(-1))
        works = []
        for _ in range(-(-memory * 8 // (N * K * bits))):
            b, points = (torch.randint(256, (N, n * bits // 8), device="cuda").byte() for n in (K, K // size))
            works.append(r.work(plan, [a, b, uniform(N, K // size).half(), points, none, none], [y]))
        dense = [partial(torch.mm, a, normal(N, K).half().T) for _ in range(-(-memory // (N * K * 2)))]
        peers, moved = {"cuBLAS float16": alternating(dense)}, N * K * bits // 8 if M <= 8 else 0
        yield Row(f"{M} x {N} x {K}, {bits} bits", plan, alternating(works), peers, moved, 2 * M * N * K)


def grouped_query(r: Runner, tokens: int, keys: int, held: int) -> tuple[Plan, Work, tuple[torch.Tensor, ...]]:
    """Returns GroupQueryAttention with a cache for `held` tokens, which contains `keys` tokens with the new ones.

    Returns:
        The plan of the attention; the work, which also appends to the cache; Q, K and V for PyTorch.
    """
    s = Setting(1, tokens, N=32, G=8, H=128, length=held, past_length=held, lengths=(keys,), first=tokens == keys)
    query, key, value = (normal(1, tokens, n * s.H).half() for n in (s.N, s.G, s.G))
    cache = [normal(1, s.G, held, s.H).half() for _ in range(2)]
    none, output = torch.empty(16, device="cuda"), torch.empty_like(query)
    lengths = torch.tensor([keys - 1], dtype=torch.int32, device="cuda")
    append, attend = (s.plan(r.harness, r.device.facts, np.float16, part) for part in (0, 2))
    appended = r.work(append, [query, key, value, none, none, lengths, none, none, none], [none, *cache])
    attended = r.work(attend, [query, *cache, none, none, lengths, none], [output])
    q = query.view(1, tokens, s.N, s.H).transpose(1, 2)
    return attend, lambda: (appended(), attended()), (q, *(x[:, :, :keys] for x in cache))


def attend_with(backend: SDPBackend, qkv: tuple[torch.Tensor, ...], causal: bool) -> torch.Tensor:
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(*qkv, is_causal=causal, enable_gqa=True)


def grouped_queries(r: Runner, prompts: bool, *lengths: int) -> Iterator[Row]:
    backends = {"flash": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}
    for keys in lengths:
        tokens = keys if prompts else 1
        plan, ours, qkv = grouped_query(r, tokens, keys, keys)
        peers = {name: partial(attend_with, backend, qkv, prompts) for name, backend in backends.items()}
        flops, moved = (2 * 32 * 128 * keys**2, 0) if prompts else (0, 2 * 2 * 8 * 128 * keys)
        yield Row(f"{tokens:,} over {keys:,} keys", plan, ours, peers, moved=moved, flops=flops)


def long_buffer(r: Runner) -> Iterator[Row]:
    _, small, _ = grouped_query(r, 1, 1000, 1024)
    plan, ours, _ = grouped_query(r, 1, 1000, 131_072)
    yield Row("1 over 1,000 keys in a buffer of 131,072", plan, ours, {"buffer of 1,024": small})


def grouped_query_attentions(r: Runner) -> Iterator[Group]:
    """Yields attention with the heads of Llama 3 8B: 32 query heads and 8 key heads of 128 elements."""
    title = "GroupQueryAttention, float16, 32 and 8 heads of 128"
    yield Group(f"{title}, one token (floor 0.67x)", grouped_queries(r, False, 1000), of_peer=1 / 1.5)
    yield Group(f"{title}, one token (floor 0.83x)", grouped_queries(r, False, 16_000, 128_000), of_peer=1 / 1.2)
    yield Group(f"{title}, buffers (floor 0.91x)", long_buffer(r), of_peer=1 / 1.1)
    yield Group(f"{title}, prompts (floor 0.59x)", grouped_queries(r, True, 512, 4096), of_peer=1 / 1.7)


def language(r: Runner) -> Iterator[Group]:
    title = "MatMulNBits, float16, blocks of 32"
    yield Group(f"{title} (floor 55 % of copy)", packed_gemms(r, 4, 1), of_copy=0.55)
    yield Group(f"{title} (floor 40 % of copy)", packed_gemms(r, 4, 8), of_copy=0.4)
    yield Group(f"{title} (floor 1.25x)", packed_gemms(r, 4, 16), of_peer=1.25)
    yield Group(f"{title} (floor 0.5x)", packed_gemms(r, 4, 256, 1024), of_peer=0.5)
    for bits in (2, 8):
        yield Group(title, packed_gemms(r, bits, 1, 8, 16, 64, 256, 1024))
    yield from grouped_query_attentions(r)


# -- standard operators ------------------------------------------------------------------------------------------------


class Standard:
    """A tensor x [P, H, W] of 64 MiB, and rows of standard operators that read it once."""

    H = W = 64

    def __init__(self, r: Runner, dtype: torch.dtype) -> None:
        self.r, self.plan, self.dtype, self.half = r, r.plan, dtype, is_half(dtype)
        self.bytes = dtype.itemsize
        self.type = c_int32(10 if dtype == torch.float16 else 1)  # as ONNX type codes
        self.P = (64 << 20) // (self.bytes * self.H * self.W)
        self.x = normal(self.P, self.H, self.W, dtype=dtype)
        self.total = self.x.numel()
        self.shape = [3, self.P, self.H, self.W]

    def row(self, name: str, plan: Plan, inputs: list[torch.Tensor], written: int) -> Row:
        """Returns a row of one plan that reads its inputs once and writes this many bytes once."""
        y = torch.empty(written, dtype=torch.uint8, device="cuda")
        return self.r.row(name, plan, inputs, [y], moved=sum(t.nbytes for t in inputs) + written)

    def rows(self) -> Iterator[Row]:
        yield from self.elementwise_rows()
        if self.dtype == torch.float32:
            yield from self.integer_rows()
        yield from self.movement_rows()
        yield from self.data_dependent_rows()
        yield from self.conversion_rows()
        yield from self.reduction_rows()
        yield from self.normalization_rows()
        yield from self.pooling_rows()

    def elementwise_rows(self) -> Iterator[Row]:
        zero, size = c_float(0), self.x.nbytes

        def elementwise(op: str, b: list[int] | None = None) -> Plan:
            code = c_int32(elementwise_cases.OPS.index(op))
            dims = int64s([*self.shape, *self.shape, *(b or [0]), 0])
            return self.plan("elementwise", self.half, code, zero, zero, c_int(b is not None), NO, dims)

        def logic(op: str, operands: int) -> Plan:
            code = c_int32(list(logic_cases.OPS).index(op))
            dims = int64s([*self.shape * (operands + 1), 0, 0])
            return self.plan("logic", self.type, code, c_int(operands == 2), dims)

        other, sin = torch.randn_like(self.x), c_int32(list(unary_cases.OPS).index("Sin"))
        one = normal(self.W, dtype=self.dtype)
        yield self.row("Add", elementwise("Add", self.shape), [self.x, other], size)
        yield self.row("Add, one row", elementwise("Add", [1, self.W]), [self.x, one], size)
        yield self.row("Erf", elementwise("Erf"), [self.x], size)
        yield self.row("Sin", self.plan("unary", self.half, sin, zero, c_int64(self.total), YES), [self.x], size)
        yield self.row("Less", logic("Less", 2), [self.x, other], self.total)
        yield self.row("IsNaN", logic("IsNaN", 1), [self.x], self.total)

    def integer_rows(self) -> Iterator[Row]:
        """Yields rows for bool and int64."""
        P, H, W = self.P, self.H, self.W
        of = [3, P // 2, H, W]

        def integer_plan(op: str) -> Plan:
            code = c_int32(integer_elementwise_cases.OPS.index(op))
            dims = int64s([*of * 3, 0])
            return self.plan("integer_elementwise", c_int64(8), c_int32(1), code, c_int32(2), int64s([0, 0]), dims)

        truth = torch.randint(0, 2, (4 * P, H, W), device="cuda", dtype=torch.uint8)
        dims = int64s([*[3, 4 * P, H, W] * 3, 0, 0])
        both = self.plan("logic", c_int32(9), c_int32(list(logic_cases.OPS).index("And")), YES, dims)
        yield self.row("And", both, [truth, truth.clone()], truth.nbytes)
        a, b = torch.randint(-99, 99, (2, P // 2, H, W), device="cuda")
        yield self.row("Add, int64", integer_plan("Add"), [a, b], a.nbytes)
        yield self.row("Mod, int64", integer_plan("Mod"), [a, b.clamp(1)], a.nbytes)

    def movement_rows(self) -> Iterator[Row]:
        """Yields rows for data movement, and for tensors generated from scalars and indices."""
        P, H, W, x, size = self.P, self.H, self.W, self.x, self.x.nbytes
        wide = c_int64(self.bytes)

        def copied(name: str, shape: list[int], strides: list[int], read: torch.Tensor) -> Row:
            to = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
            made = self.plan("strided_copy", wide, int64s([len(shape), *shape, *strides, *to, 0, 0]))
            return self.row(name, made, [read], math.prod(shape) * self.bytes)

        yield self.row("Transpose 0 2 1", self.plan("transpose_planes", *map(c_int64, (P, H, W)), wide), [x], size)
        yield copied("Transpose 1 0 2", [H, P, W], [W, H * W, 1], x)
        # [P / 4, H, 2, W, 2] from [2, 2, P / 4, H, W], and [2, 2, P, H / 2, W / 2] from [P, H / 2, 2, W / 2, 2]
        blocks = [H * W, W, P // 2 * H * W, 1, P // 4 * H * W]
        yield copied("DepthToSpace", [P // 4, H, 2, W, 2], blocks, x)
        yield copied("SpaceToDepth", [2, 2, P, H // 2, W // 2], [W, 1, H * W, 2 * W, 2], x)
        yield copied("Tile, 2 x 2", [P // 4, 2, H, 2, W], [H * W, 0, W, 0, 1], x[: P // 4])
        padded = int64s([*self.shape, 0, 0, 0, 0, 0, W])
        yield self.row("Pad", self.plan("pad", wide, c_int32(0), c_uint64(0), padded), [x], 2 * size)
        index, within = torch.randperm(P, device="cuda"), torch.randint(0, H, (P, H, W), device="cuda")
        gather = self.plan("gather", wide, NO, *map(c_int64, (1, P, H * W, P)))
        yield self.row("Gather", gather, [x, index], size)
        elements = self.plan("gather_elements", wide, NO, int64s([*self.shape, *self.shape, 1]))
        yield self.row("GatherElements", elements, [x, within], size)
        tuples = torch.stack([torch.randint(0, n, (P * H,), device="cuda") for n in (P, H)], 1)
        yield self.row("GatherND", self.plan("gather_nd", wide, int64s([1, P * H, W, 2, P, H])), [x, tuples], size)
        yield self.row("Trilu", self.plan("trilu", *map(c_int64, (P, H, W, 0, self.bytes)), YES), [x], size)
        filled = self.plan("fill", c_int64(self.total), wide, c_uint64(0x3C00))
        yield self.row("ConstantOfShape", filled, [], size)
        if self.dtype == torch.float32:
            numbers = self.plan("range", c_int32(1), c_double(0), c_double(1), c_int64(self.total))
            yield self.row("Range", numbers, [], size)
        hot = self.plan("one_hot", *map(c_int64, (P * H, W, 1)), c_int32(0), wide)  # int64 indices
        places = torch.randint(0, W, (P * H,), device="cuda")
        yield self.row("OneHot", hot, [places, torch.tensor([0.0, 1.0], device="cuda").to(self.dtype)], size)

    def data_dependent_rows(self) -> Iterator[Row]:
        """Yields operators that read their conditions twice: to count the results, and to write them."""
        found = torch.empty(1, dtype=torch.int64, device="cuda")

        def steps(x: torch.Tensor, is_float: c_int, all_: int) -> tuple[Plan, list[Work], torch.Tensor]:
            starts = torch.empty(-(-x.numel() // nonzero_cases.PART), dtype=torch.int32, device="cuda")
            places = torch.empty(x.dim(), all_, dtype=torch.int64, device="cuda")
            kind = (c_int64(x.itemsize), is_float)
            count = self.plan("nonzero_count", c_int64(x.numel()), *kind)
            find = self.plan("nonzero_indices", int64s([x.dim(), *x.shape]), *kind, c_int64(all_))
            works = [self.r.work(count, [x], [found, starts]), self.r.work(find, [x, starts], [places])]
            return find, works, places

        def in_turn(works: Sequence[Work]) -> None:
            for work in works:
                work()

        sparse = self.x * (torch.rand_like(self.x) < 0.25)
        find, works, places = steps(sparse, YES, int(torch.count_nonzero(sparse)))
        yield Row("NonZero, a quarter nonzero", find, partial(in_turn, works), moved=2 * sparse.nbytes + places.nbytes)
        holds = torch.rand(self.P, device="cuda") < 0.5
        kept = int(torch.count_nonzero(holds))
        _, works, places = steps(holds, NO, kept)
        y = torch.empty(kept, self.H, self.W, dtype=self.dtype, device="cuda")
        gather = self.plan("gather", c_int64(self.bytes), NO, *map(c_int64, (1, self.P, self.H * self.W, kept)))
        works = [*works, self.r.work(gather, [self.x, places], [y])]
        yield Row("Compress, half of the rows", gather, partial(in_turn, works), moved=2 * y.nbytes)

    def conversion_rows(self) -> Iterator[Row]:
        x, scale = self.x, torch.tensor([0.1], device="cuda").to(self.dtype)
        small = torch.randint(-99, 99, x.shape, device="cuda", dtype=torch.int8)

        def quantize(back: c_int) -> Plan:
            return self.plan("quantize", c_int32(3), self.half, NO, back, NO, int64s([1, self.total, 1, -1]))

        yield self.row("QuantizeLinear", quantize(NO), [x, scale], self.total)
        yield self.row("DequantizeLinear", quantize(YES), [small, scale], x.nbytes)
        cast = self.plan("cast", c_int64(self.total), self.type, c_int32(11 - self.type.value), YES)
        yield self.row("Cast between float32 and float16", cast, [x], self.total * (6 - self.bytes))

    def reduction_rows(self) -> Iterator[Row]:
        P, H, W, x, b = self.P, self.H, self.W, self.x, self.bytes
        rows, columns = int64s([2, P, H * W, 0, 1]), int64s([3, 64, P // 64, H * W, 0, 1, 0])

        def softmax(D: int, inner: int) -> Plan:
            return self.plan("softmax", self.half, *map(c_int64, (P, D, inner)), NO)

        def reduce(how: str, numbers: Any) -> Plan:
            return self.plan("reduce", self.type, c_int32(reduction_cases.REDUCTIONS.index(how)), numbers)

        def arg(smallest: int, *sizes: int) -> Plan:
            return self.plan("arg", *map(c_int64, sizes), c_int32(self.half.value), c_int(smallest), NO)

        yield self.row("Softmax, rows of 4096", softmax(H * W, 1), [x], x.nbytes)
        yield self.row("Softmax, columns", softmax(H, W), [x], x.nbytes)
        for how in ("Mean", "Prod", "L1", "L2", "SumSquare"):
            yield self.row(f"Reduce{how}, rows of 4096", reduce(how, rows), [x], b * P)
            yield self.row(f"Reduce{how}, columns", reduce(how, columns), [x], b * 64 * H * W)
        outer = reduce("LogSumExp", int64s([*self.shape, 1, 0, 1]))
        yield self.row("ReduceLogSumExp, first and last axis", outer, [x], b * H)
        for smallest, name in enumerate(("ArgMax", "ArgMin")):
            yield self.row(f"{name}, rows of 4096", arg(smallest, P, H * W, 1), [x], 8 * P)
            yield self.row(f"{name}, columns", arg(smallest, 64, P // 64, H * W), [x], 8 * 64 * H * W)

    def normalization_rows(self) -> Iterator[Row]:
        x, size, epsilon = self.x, self.x.nbytes, c_float(1e-5)
        pixels, N, C = self.H * self.W, 64, self.P // 64
        images = [*map(c_int64, (N, C, pixels))]
        gamma, beta, mean, variance = uniform(4, C, dtype=self.dtype)
        batch = self.plan("batch_norm", self.half, self.half, *images, epsilon)
        yield self.row("BatchNormalization", batch, [x, gamma, beta, mean, variance], size)
        for name, groups in (("InstanceNormalization", C), ("GroupNormalization, 32", 32)):
            made = self.plan("group_norm", self.half, NO, *images, c_int64(groups), epsilon, *activation(""))
            yield self.row(name, made, [x, gamma, beta], size)
        rows = (c_int64(self.P), c_int64(pixels))
        rms = self.plan("row_norm", self.half, *rows, epsilon, YES, NO, NO, c_int64(1), NO)
        yield self.row("RMSNormalization, rows of 4096", rms, [x, normal(pixels, dtype=self.dtype)], size)
        numbers = map(c_float, (1e-4, 0.75, 1))
        yield self.row("LRN, 5", self.plan("lrn", self.half, *images, c_int64(5), *numbers), [x], size)
        lengths = self.plan("softmax", self.half, *rows, c_int64(1), c_int32(3))
        yield self.row("LpNormalization, rows of 4096", lengths, [x], size)
        for channels in (96, 256, 768):
            count = self.P // channels
            part = x[: count * channels]
            made = self.plan("layer_norm_2d", self.half, *map(c_int64, (count, channels, pixels)), epsilon)
            inputs = [part, *uniform(2, channels, dtype=self.dtype)]
            yield self.row(f"FusedLayerNorm2d, {channels} channels", made, inputs, part.nbytes)
        S, heads, D = 1024, 16, 128
        B = self.total // (S * heads * D)
        turn = self.plan("rotary", self.half, int64s([B, S, heads, D, D // 2, S]), (c_int * 3)(1, 0, 0))
        ids, tables = torch.arange(S, device="cuda").repeat(B), normal(2, S, D // 2, dtype=self.dtype)
        yield self.row("RotaryEmbedding", turn, [x, ids, *tables], size)

    def pooling_rows(self) -> Iterator[Row]:
        P, H, W = self.P, self.H, self.W
        windows = int64s([P, *(1, 1, 1, 1, 0, 1, 1), *(H // 2, H, 2, 2, 0, 1, H), *(W // 2, W, 2, 2, 0, 1, W)])
        pool = self.plan("pool", self.type, c_int32(0), windows, c_int64(0))
        yield self.row("MaxPool 2x2", pool, [self.x], self.x.nbytes // 4)
        linear, two = c_int32(resize_cases.WAYS_OF_IMAGES.index("linear")), c_float(2)
        sizes = int64s([P // 4, H, W, 2 * H, 2 * W])
        resize = self.plan("resize", self.half, c_int32(0), linear, sizes, two, two, c_int64(0), c_int64(0))
        yield self.row("Resize, linear, 2x", resize, [self.x[: P // 4]], self.x.nbytes)


def ranked(r: Runner) -> Iterator[Row]:
    for lines, length, K in ((32, 1000, 5), (8, 50257, 50), (1, 268800, 300)):
        x = normal(lines, length)
        made = r.plan("top_k", *map(c_int64, (lines, length, 1, K)), c_int32(0), NO)
        out = [torch.empty(lines, K, device="cuda"), torch.empty(lines, K, dtype=torch.int64, device="cuda")]
        yield r.row(f"TopK {lines} x {length}, {K}", made, [x], out, peers={"PyTorch": partial(torch.topk, x, K)})
    for outer, length, inner in ((1, 1 << 20, 1), (4096, 4096, 1), (64, 1024, 256)):
        x, sizes, name = normal(outer, length, inner), (outer, length, inner), f"{outer} x {length} x {inner}"
        made = r.plan("cumsum", c_int32(1), *map(c_int64, sizes), NO, NO)
        peers = {"PyTorch": partial(torch.cumsum, x, 1)}
        yield r.row(f"CumSum {name}", made, [x], [torch.empty_like(x)], peers=peers)
        for smallest, (kind, theirs) in enumerate({"ArgMax": torch.argmax, "ArgMin": torch.argmin}.items()):
            made = r.plan("arg", *map(c_int64, sizes), c_int32(0), c_int(smallest), NO)
            y = torch.empty(outer, inner, dtype=torch.int64, device="cuda")
            yield r.row(f"{kind} {name}", made, [x], [y], peers={"PyTorch": partial(theirs, x, 1)})


def scattered(r: Runner) -> Iterator[Row]:
    def plan(how: str, sizes: Sequence[int]) -> Plan:
        code = c_int32(list(scatter_cases.HOW).index(how))
        return r.plan("scatter", c_int32(1), c_int64(4), NO, code, int64s(sizes))

    for how, many, length, most in (
        ("none", 4096, 4096, 4096), ("add", 4096, 4096, 1024), ("add", 1, 1 << 20, 1 << 18),
    ):  # fmt: skip
        x, updates = normal(many, length), normal(many, most)
        if how == "none":
            index = torch.stack([torch.randperm(length, device="cuda")[:most] for _ in range(64)])
            index = index.repeat(many // 64, 1)
        else:
            index = torch.randint(0, length, (many, most), device="cuda")
        peers = {"PyTorch": partial(x.scatter if how == "none" else x.scatter_add, 1, index, updates)}
        made = plan(how, [2, many, length, 2, many, most, 1, 1])
        name = f"ScatterElements {how} {many} x {most} of {length}"
        yield r.row(name, made, [x, index, updates], [torch.empty_like(x)], peers=peers)
    for how, length, most, inner in (
        ("none", 50000, 8192, 768), ("add", 50000, 8192, 768), ("none", 1 << 20, 1 << 18, 1),
    ):  # fmt: skip
        x, updates = normal(length, inner), normal(most, inner)
        index = torch.randperm(length, device="cuda")[:most]
        if how == "add":
            index = torch.randint(0, length, (most,), device="cuda")
        peers = {"PyTorch": partial(x.index_put, (index,), updates, how == "add")}
        made = plan(how, [1, length, 2, most, 1, inner, -1])
        name = f"ScatterND {how} {most} of {length} x {inner}"
        yield r.row(name, made, [x, index[:, None], updates], [torch.empty_like(x)], peers=peers)


def sampled(r: Runner) -> Iterator[Row]:
    for N, C, H, W in ((1, 3, 512, 512), (8, 64, 64, 64), (4, 256, 100, 152)):
        x, grid = normal(N, C, H, W), 2 * uniform(N, H, W, 2) - 1
        made = r.plan("grid_sample", NO, int64s([N, C, H * W, 2, H, W]), c_int(2), c_int32(0), NO)
        peers = {"PyTorch": partial(F.grid_sample, x, grid, align_corners=False)}
        yield r.row(f"GridSample {N} x {C} x {H} x {W}", made, [x, grid], [torch.empty_like(x)], peers=peers)
    try:
        from torchvision.ops import batched_nms
    except ImportError:
        print("  NonMaxSuppression: no torchvision to compare it with")
        return
    for B, C, N in ((1, 1, 1000), (1, 80, 1000), (8, 1, 5000)):
        corner = uniform(B, N, 2)
        boxes, scores = torch.cat([corner, corner + 0.1], 2), uniform(B, C, N)
        made = r.plan("nms", int64s([B, C, N, N]), NO, c_float(0.5), c_float(0), NO)
        out = [torch.empty(1, dtype=torch.int64, device="cuda"), torch.empty(B * C * N, 3, dtype=torch.int64).cuda()]
        flat = boxes[:, None].expand(B, C, N, 4).reshape(-1, 4)
        classes = torch.arange(B * C, device="cuda").repeat_interleave(N)
        peers = {"PyTorch": partial(batched_nms, flat, scores.reshape(-1), classes, 0.5)}
        timer = partial(eager_milliseconds, repeats=3)
        name = f"NonMaxSuppression {B} x {C} x {N}"
        yield r.row(name, made, [boxes, scores], out, peers=peers, timer=timer, peer_timer=timer)


def recurrent(r: Runner) -> Iterator[Row]:
    """Yields LSTM, GRU and RNN. On both sides PyTorch computes the GEMM of the input and its weights."""
    for kind, module, gates in (("LSTM", torch.nn.LSTM, 4), ("GRU", torch.nn.GRU, 3), ("RNN", torch.nn.RNN, 1)):
        for S, B, H in ((128, 1, 256), (100, 16, 512), (512, 32, 128)):
            layer = module(H, H).cuda().requires_grad_(False)
            x, w = normal(S, B, H), normal(H, gates * H) / H**0.5
            weights, bias = normal(1, gates * H, H) / H**0.5, torch.zeros(1, 2 * gates * H, device="cuda")
            none, state = torch.zeros(1, 3 * H, device="cuda"), torch.zeros(1, B, H, device="cuda")
            lengths = torch.full((B,), S, dtype=torch.int32, device="cuda")
            gate_inputs = torch.empty(S, B, gates * H, device="cuda")
            states = 2 if kind == "LSTM" else 1
            out = [torch.empty(S, 1, B, H, device="cuda"), *(torch.empty_like(state) for _ in range(states))]
            sizes, code = int64s([1, B, S, H, 0, 0, 1, 0, 0, 0, 0]), c_int32(recurrent_cases.KINDS.index(kind))
            made = r.plan("recurrent", NO, code, sizes, c_float(0), c_int(-1))
            steps = r.work(made, [gate_inputs, weights, bias, none, lengths, state, state], out)

            def ours(x: Any = x, w: Any = w, gate_inputs: Any = gate_inputs, steps: Work = steps) -> None:
                torch.matmul(x, w, out=gate_inputs)
                steps()

            peers = {"PyTorch": partial(layer, x)}
            yield Row(f"{kind} {S} x {B} x {H}", made, ours, peers, peer_timer=eager_milliseconds)


def fourier_transforms(r: Runner) -> Iterator[Row]:
    """Yields DFT and STFT, which our kernel computes by definition: a GEMM of each line with a table."""

    def row(name: str, places: list[int], flops: int, inputs: list[torch.Tensor], theirs: Work) -> Row:
        is_complex = name.startswith("DFT")
        made = r.plan("dft", NO, int64s(places), c_int(is_complex), NO, c_int(not is_complex))
        y, peers = torch.empty(places[0], places[4], 2, device="cuda"), {"PyTorch": theirs}
        return r.row(name, made, inputs, [y], peers=peers, flops=flops, peer_timer=eager_milliseconds)

    for lines, L in ((4096, 512), (65536, 64)):
        x = normal(lines, L, 2)
        places = [lines, 1, L, L, L, 2 * L, 2, 2, 2 * L, 2, 2]
        fft = partial(torch.fft.fft, torch.view_as_complex(x))
        yield row(f"DFT {lines} x {L}", places, 8 * lines * L * L, [x, x[0, 0]], fft)
    for B, T, L, step in ((1, 480000, 400, 160), (16, 160000, 512, 128)):
        x, window = normal(B, T), torch.hann_window(L, device="cuda")
        frames, K = (T - L) // step + 1, L // 2 + 1
        places = [B * frames, frames, L, L, K, T, step, 1, frames * K * 2, K * 2, 2]
        stft = partial(torch.stft, x, L, step, L, window, center=False, return_complex=True)
        yield row(f"STFT {B} x {T}, {L} by {step}", places, 4 * B * frames * L * K, [x, window], stft)


def standard(r: Runner) -> Iterator[Group]:
    for dtype in FLOATS:
        title = f"Standard operators, 64 MiB, {text(dtype)} (floor 50 % of copy)"
        yield Group(title, Standard(r, dtype).rows(), of_copy=0.5)
    floor = "float32 (floor 0.5x PyTorch)"
    yield Group(f"TopK, CumSum, ArgMax and ArgMin, {floor}", ranked(r), of_peer=0.5)
    yield Group(f"ScatterElements and ScatterND, {floor}", scattered(r), of_peer=0.5)
    yield Group(f"GridSample and NonMaxSuppression, {floor}", sampled(r), of_peer=0.5)
    yield Group(f"LSTM, GRU and RNN, {floor}", recurrent(r), of_peer=0.5)
    yield Group("DFT and STFT, float32, against cuFFT", fourier_transforms(r))


# Option -> the groups that it times.
PARTS: dict[str, Callable[[Runner], Iterator[Group]]] = {
    "--attention": attention,
    "--gemms": gemms,
    "--norms": norms,
    "--language": language,
    "--standard": standard,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, part in PARTS.items():
        parser.add_argument(option, action="append_const", dest="parts", const=part)
    parser.add_argument(
        "--tiles", action="store_true", help="the GEMMs and convolutions with each tile, in float16 and int8"
    )
    parser.add_argument("--only", nargs="+", default=[""], metavar="NAME", help="rows with one of these in their name")
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    r, copy = Runner(), copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}, copy {copy:.2f} TB/s")
    for part in [tiled] if options.tiles else options.parts or PARTS.values():
        for group in part(r):
            group.show(copy, options.only, options.tiles)


if __name__ == "__main__":
    main()
