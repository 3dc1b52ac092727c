"""Times the GPU kernels on an NVIDIA GPU against PyTorch (cuDNN), and prints their floors.

All times are medians over replays of a CUDA graph, ours and PyTorch's in the same process, without TF32.

    --attention      time only attention
    --products       only attention, GEMMs and convolutions
    --tiles          only GEMMs and channels-last convolutions in float16, also with each tile
    --norms          only GroupNorm in both layouts, and LayerNorm
    --standard       only the standard operators
    --only NAME ...  only the standard operators on 64 MiB with one of these in their name
"""

from __future__ import annotations

import ctypes
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.nn.functional as F  # noqa: N812

from scripts.gpu_check import open_device
from tests.hip import (
    activations,
    elementwise_cases,
    logic_cases,
    nonzero_cases,
    recurrent_cases,
    reduction_cases,
    resize_cases,
    scatter_cases,
    tiles,
    unary_cases,
    whole_cases,
)
from tests.hip.harness import Plan, int64s

CONVOLUTIONS = (
    (1, 64, 56, 64), (1, 128, 28, 128), (1, 256, 14, 256), (1, 512, 7, 512), (32, 64, 56, 64), (32, 128, 28, 128),
    (32, 256, 14, 256), (32, 512, 7, 512), (1, 64, 224, 64), (16, 64, 224, 64), (1, 320, 64, 320),
    (8, 320, 64, 320), (1, 640, 32, 640),
)  # fmt: skip

# M, N, K; batches
PRODUCTS = (
    (1024, 1024, 1024, 1), (4096, 4096, 4096, 1), (8192, 8192, 8192, 1), (3072, 768, 768, 1), (3072, 3072, 768, 1),
    (3072, 768, 3072, 1), (128, 768, 768, 1), (128, 3072, 768, 1), (128, 768, 3072, 1), (197, 768, 768, 1),
    (1024, 768, 768, 1), (1024, 3072, 768, 1), (1024, 768, 3072, 1), (1, 4096, 4096, 1),
    (384, 384, 64, 96), (1001, 1001, 1001, 1), (1576, 768, 768, 3), (1576, 3072, 768, 1), (1576, 768, 3072, 1),
    (6304, 768, 768, 3), (6304, 3072, 768, 1), (6304, 768, 3072, 1),
)  # fmt: skip

# The aligned tiles for dense operands, from the largest; `--tiles` times each.
ALIGNED = [tile.number for tile in (*tiles.DENSE_COPYING, *tiles.DENSE)]
# In channels-last layout: images, channels, height and width, filters, kernel, stride
LAST = (
    *((n, c, h, m, 3, 1) for n, c, h, m in CONVOLUTIONS),
    (8, 128, 56, 128, 3, 2), (8, 256, 28, 256, 3, 2), (8, 512, 14, 512, 3, 1), (8, 512, 14, 512, 3, 2),
    (8, 64, 56, 256, 1, 1), (8, 256, 56, 64, 1, 1), (8, 1024, 14, 256, 1, 1), (8, 256, 14, 1024, 1, 1),
    (8, 512, 7, 2048, 1, 1), (8, 256, 56, 512, 1, 2), (1, 1024, 14, 256, 1, 1), (1, 512, 7, 2048, 1, 1),
    (1, 64, 56, 256, 1, 1), (32, 8, 224, 64, 7, 2),
)  # fmt: skip

# B, H, S, D
ATTENTIONS = (
    (1, 12, 128, 64), (8, 12, 384, 64), (32, 12, 197, 64), (8, 8, 4096, 40), (1, 16, 1024, 128), (8, 16, 2048, 128),
    (256, 1, 64, 64),
)  # fmt: skip


def elapsed(work: Callable[[], object], rounds: int, before: Callable[[], object] = lambda: None) -> float:
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


def milliseconds(work: Callable[[], object], rounds: int = 15, cold: bool = False) -> float:
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


def eager_milliseconds(work: Callable[[], object], repeats: int = 10) -> float:
    """Returns the median time of repeated calls, for work that waits for the GPU and cannot be in a graph."""

    def calls() -> None:
        for _ in range(repeats):
            work()

    calls()
    return elapsed(calls, 15) / repeats


class Runner:
    """Runs plans on tensors."""

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
    ) -> Callable[[], object]:
        """Returns a function that enqueues the plan on the current stream."""
        workspace = [torch.empty(max(n, 16), dtype=torch.uint8, device="cuda") for n in plan.workspace]
        read, written, scratch = ([t.data_ptr() for t in tensors] for tensors in (inputs, outputs, workspace))
        prepared = weights.data_ptr() if weights is not None else 0

        def run(keep: object = (workspace, inputs, outputs, weights)) -> object:
            stream = torch.cuda.current_stream().cuda_stream
            self.device.run(plan, read, written, scratch, prepared, stream)
            return keep

        return run


def act_arguments(name: str) -> tuple[ctypes.c_int32, ctypes.c_float, ctypes.c_float]:
    kind, a, b = activations.parameters(name)
    return ctypes.c_int32(kind), ctypes.c_float(a), ctypes.c_float(b)


def copy_bandwidth() -> float:
    """Returns the bytes read and written by a copy of 1 GiB, in TB/s. (In a graph, copy_ would use a copy engine.)"""
    x = torch.randn(256 << 20, device="cuda")
    y = torch.empty_like(x)
    moved: int = 2 * x.nbytes
    return moved / elapsed(partial(y.copy_, x), 20) / 1e9


def bench_scale_shift(r: Runner, copy: float) -> None:
    print(f"\nScaleShift + LeakyRelu (floor 88 % of copy, {copy:.2f} TB/s)")
    for dtype in (torch.float32, torch.float16):
        for N, C, H, W in ((256, 64, 32, 32), (32, 256, 56, 56), (256, 256, 56, 56)):
            x = torch.randn(N, C, H, W, device="cuda").to(dtype)
            scale, shift = torch.rand(C, device="cuda").to(dtype), torch.rand(C, device="cuda").to(dtype)
            y = torch.empty_like(x)
            sizes = [ctypes.c_int64(v) for v in (N, C, H * W)]
            half = ctypes.c_int(dtype == torch.float16)
            plan = r.plan("scale_shift", half, *sizes, ctypes.c_int(0), *act_arguments("LeakyRelu"))
            ms = milliseconds(r.work(plan, [x, scale, shift], [y]))
            bandwidth = 2 * x.nbytes / ms / 1e9
            print(
                f"  {(N, C, H, W)!s:20} {dtype!s:14} {ms:.4f} ms  {x.nbytes >> 20} MiB  {bandwidth / copy:.0%} of copy"
            )


# N, C, H, W. For channels-last layout also further sizes of Stable Diffusion's UNet, and of its decoder.
NORMS = ((256, 64, 32, 32), (32, 256, 56, 56), (1, 320, 64, 64), (8, 320, 64, 64))
NORMS_LAST = (*NORMS, (2, 640, 32, 32), (1, 1280, 8, 8), (8, 1280, 16, 16), (1, 128, 512, 512))


def bench_group_norm(r: Runner, copy: float) -> None:
    print("\nGroupNorm(32) + SiLU (floor 60 % of copy at the large shapes, 2x PyTorch at (1,320,64,64))")
    for dtype in (torch.float32, torch.float16):
        for sizes in NORMS:
            bench_one_group_norm(r, copy, dtype, *sizes, last=False)
    print("in channels last")
    for sizes in NORMS_LAST:
        bench_one_group_norm(r, copy, torch.float16, *sizes, last=True)


def bench_one_group_norm(
    r: Runner, copy: float, dtype: torch.dtype, N: int, C: int, H: int, W: int, *, last: bool
) -> None:
    x = torch.randn(N, C, H, W, device="cuda").to(dtype)
    if last:
        x = x.to(memory_format=torch.channels_last)
    gamma, beta = torch.rand(C, device="cuda").to(dtype), torch.rand(C, device="cuda").to(dtype)
    y = torch.empty_like(x)
    sizes = [ctypes.c_int64(v) for v in (N, C, H * W, 32)]
    types = (ctypes.c_int(dtype == torch.float16), ctypes.c_int(last))
    plan = r.plan("group_norm", *types, *sizes, ctypes.c_float(1e-5), *act_arguments("Silu"))
    ms = milliseconds(r.work(plan, [x, gamma, beta], [y]))
    peer = milliseconds(lambda: F.silu(F.group_norm(x, 32, gamma, beta)))
    kernel = plan.launches[0]["kernel"]
    print(
        f"  {(N, C, H, W)!s:20} {dtype!s:14} {ms:.4f} ms  PyTorch {peer:.4f}  {peer / ms:.1f}x  "
        f"{2 * x.nbytes / ms / 1e9 / copy:.0%} of copy  {kernel}"
    )


def bench_row_norm(r: Runner, copy: float) -> None:
    print("\nLayerNorm with residual and sum")
    for dtype in (torch.float32, torch.float16):
        for rows, D in ((8192, 768), (4096, 4096), (32768, 1024)):
            x, residual = (torch.randn(rows, D, device="cuda").to(dtype) for _ in range(2))
            gamma, beta = torch.rand(D, device="cuda").to(dtype), torch.rand(D, device="cuda").to(dtype)
            y, s = torch.empty_like(x), torch.empty_like(x)
            half = ctypes.c_int(dtype == torch.float16)
            sizes = (ctypes.c_int64(rows), ctypes.c_int64(D), ctypes.c_float(1e-5))
            flags = (ctypes.c_int(0), ctypes.c_int(1), ctypes.c_int(1))
            plan = r.plan("row_norm", half, *sizes, *flags, ctypes.c_int64(1), ctypes.c_int(0))
            ms = milliseconds(r.work(plan, [x, residual, gamma, beta], [y, s]))
            peer = milliseconds(lambda: F.layer_norm(x + residual, (D,), gamma, beta))  # noqa: B023
            print(
                f"  {(rows, D)!s:20} {dtype!s:14} {ms:.4f} ms  PyTorch {peer:.4f}  {peer / ms:.1f}x  "
                f"{4 * x.nbytes / ms / 1e9 / copy:.0%} of copy"
            )


def bench_products(r: Runner, dtype: torch.dtype) -> None:
    """Times the kernels that are used if cuBLAS is not installed: for information, without a floor."""
    print(f"\nMatMul, {dtype}, B plain and transposed")
    for M, N, K, batch in PRODUCTS:
        cells = []
        for transpose in (False, True):
            a = torch.randn(batch, M, K, device="cuda").to(dtype)
            b = torch.randn(batch, *((N, K) if transpose else (K, N)), device="cuda").to(dtype)
            y = torch.empty(batch, M, N, device="cuda", dtype=dtype)
            sizes = (ctypes.c_int64(M), ctypes.c_int64(N), ctypes.c_int64(K), ctypes.c_int(0), ctypes.c_int(transpose))
            epilogue = (ctypes.c_float(1), ctypes.c_float(0), ctypes.c_int(0), ctypes.c_int64(0), ctypes.c_int(0),
                        *act_arguments(""))  # fmt: skip
            batches = (ctypes.c_int64 * 4)(1, batch, 1, batch)
            fixed = (ctypes.c_int(dtype == torch.float16), *sizes, *epilogue, batches, ctypes.c_int(1))

            def ours(tile: int = -1, fixed: Any = fixed) -> Plan:
                return r.plan("gemm", *fixed, ctypes.c_int32(tile))

            plan = ours()
            theirs = partial(torch.matmul, a, b.mT if transpose else b)
            ms, peer = milliseconds(r.work(plan, [a, b], [y])), milliseconds(theirs)
            rate = 2e-9 * batch * M * N * K / ms
            cells.append(f"{ms:.4f} ms {rate:.0f} TFLOP/s  cuBLAS {peer:.4f} {peer / ms:.2f}x")
            if "--tiles" in sys.argv and dtype == torch.float16:
                times = (milliseconds(r.work(ours(tile), [a, b], [y]), rounds=7) for tile in ALIGNED)
                cells[-1] += f" [{' '.join(f'{t:.4f}' for t in times)}]"
        names = f"{plan.launches[0]['kernel']} {len(plan.launches)} launches"
        print(f"  {(M, N, K, batch)!s:24} {cells[0]}  |  {cells[1]}  {names}")


def bench_plain_conv(r: Runner, dtype: torch.dtype) -> None:
    """Times the kernels that are used if cuDNN is not installed: for information, without a floor."""
    print(f"\nConv, {dtype}")
    for n, c, h, m, kernel, stride in ((32, 64, 56, 64, 3, 1), (32, 256, 56, 512, 1, 2), (32, 256, 28, 1024, 1, 1),
                                       (32, 3, 224, 64, 7, 2), (8, 128, 56, 128, 3, 2)):  # fmt: skip
        pad = kernel // 2
        out = (h + 2 * pad - kernel) // stride + 1
        x = torch.randn(n, c, h, h, device="cuda").to(dtype)
        w = (torch.randn(m, c, kernel, kernel, device="cuda") / (c * kernel * kernel) ** 0.5).to(dtype)
        y = torch.empty(n, m, out, out, device="cuda", dtype=dtype)
        numbers = (n, 1, c, h, h, m, out, out, kernel, kernel, stride, stride, 1, 1, pad, pad)
        values = (ctypes.c_int64 * len(numbers))(*numbers)
        half = ctypes.c_int(dtype == torch.float16)
        plan = r.plan("conv", half, ctypes.c_int(0), values, ctypes.c_int32(-1))
        theirs = partial(F.conv2d, x, w, stride=stride, padding=pad)
        ms, peer = milliseconds(r.work(plan, [x, w], [y])), milliseconds(theirs)
        rate = 2e-9 * n * m * out * out * c * kernel * kernel / ms
        print(
            f"  {(n, c, h, m, kernel, stride)!s:30} {ms:.4f} ms {rate:.0f} TFLOP/s  cuDNN {peer:.4f} {peer / ms:.2f}x  "
            f"{plan.launches[0]['kernel']}"
        )


# The minimum fraction of a copy's rate for memory-bound operators, and the maximum multiple of PyTorch's time for
# others.
LEAST_OF_COPY, MOST_OF_PYTORCH = 0.5, 2.0


def bench_last(r: Runner) -> None:
    """Times channels-last convolutions, which a region runs if cuDNN is not installed, against cuDNN's."""
    print("\nConv in channels last, torch.float16 (floor 0.8x at 3x3)")
    ratios = []
    for n, c, h, m, kernel, stride in LAST:
        pad = kernel // 2
        out = (h + 2 * pad - kernel) // stride + 1
        x, w = torch.randn(n, c, h, h, device="cuda").half(), torch.randn(m, c, kernel, kernel, device="cuda").half()
        x, w = (t.to(memory_format=torch.channels_last) for t in (x, w / (c * kernel * kernel) ** 0.5))
        bias, y = torch.randn(m, device="cuda").half(), torch.empty(n, out, out, m, device="cuda").half()
        numbers = int64s([n, c, m, *(h, out, kernel, stride, 1, pad) * 2])
        has = (ctypes.c_int * 2)(1, 0)

        def ours(tile: int = -1, numbers: Any = numbers, has: Any = has) -> Plan:
            last = (has, *act_arguments(""), ctypes.c_int32(tile), ctypes.c_int(0))
            return r.plan("conv_last", ctypes.c_int(0), numbers, *last)

        theirs = partial(F.conv2d, x, w, bias, stride=stride, padding=pad)
        plan = ours()
        ms, peer = milliseconds(r.work(plan, [x, w, bias], [y])), milliseconds(theirs)
        if kernel == 3 and stride == 1:
            ratios.append(peer / ms)
        rate = 2e-9 * n * m * out * out * c * kernel * kernel / ms
        by_tile = ""
        if "--tiles" in sys.argv:
            times = (milliseconds(r.work(ours(tile), [x, w, bias], [y]), rounds=7) for tile in ALIGNED)
            by_tile = f" [{' '.join(f'{t:.4f}' for t in times)}]"
        print(
            f"  {(n, c, h, m, kernel, stride)!s:28} {ms:.4f} ms {rate:.0f} TFLOP/s  cuDNN {peer:.4f} {peer / ms:.2f}x"
            f"  {plan.launches[0]['kernel']} {len(plan.launches)} launches{by_tile}"
        )
    print(f"  3x3: geometric mean {statistics.geometric_mean(ratios):.2f}x, least {min(ratios):.2f}x")


Step = tuple[Plan, list[torch.Tensor], list[torch.Tensor]]


@dataclass(frozen=True)
class Row:
    """An operator: its plans with their inputs and outputs, and the bytes that must be read and written."""

    name: str
    steps: list[Step]
    moved: int


class Standard:
    """A tensor x [P, H, W] of 64 MiB, and rows of standard operators on it; None for an unsupported type."""

    H = W = 64

    def __init__(self, r: Runner, dtype: torch.dtype) -> None:
        self.plan, self.dtype, self.half = r.plan, dtype, ctypes.c_int(dtype == torch.float16)
        self.bytes = dtype.itemsize
        self.type = ctypes.c_int32(10 if dtype == torch.float16 else 1)  # as ONNX type codes
        self.P = (64 << 20) // (self.bytes * self.H * self.W)
        self.x = torch.randn(self.P, self.H, self.W, device="cuda").to(dtype)
        self.total = self.x.numel()
        self.shape = [3, self.P, self.H, self.W]

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda").to(self.dtype)

    def row(self, name: str, plan: Plan, inputs: list[torch.Tensor], written: int) -> Row:
        """Returns a row of one plan that reads its inputs once and writes this many bytes once."""
        y = torch.empty(written, dtype=torch.uint8, device="cuda")
        return Row(name, [(plan, inputs, [y])], sum(t.nbytes for t in inputs) + written)

    def rows(self) -> Iterator[Row | None]:
        yield from self.of_elements()
        yield from self.of_whole_numbers()
        yield from self.of_places()
        yield from self.counted()
        yield from self.converted()
        yield from self.reduced()
        yield from self.normalized()
        yield from self.pooled()

    def of_elements(self) -> Iterator[Row | None]:
        zero, no, size = ctypes.c_float(0), ctypes.c_int(0), self.x.nbytes

        def elementwise(op: str, b: list[int] | None = None) -> Plan:
            code = ctypes.c_int32(elementwise_cases.OPS.index(op))
            binary = ctypes.c_int(b is not None)
            dims = int64s([*self.shape, *self.shape, *(b or [0]), 0])
            return self.plan("elementwise", self.half, code, zero, zero, binary, no, dims)

        def logic(op: str, operands: int) -> Plan:
            code = ctypes.c_int32(list(logic_cases.OPS).index(op))
            dims = int64s([*self.shape * (operands + 1), 0, 0])
            return self.plan("logic", self.type, code, ctypes.c_int(operands == 2), dims)

        other, sin = torch.randn_like(self.x), ctypes.c_int32(list(unary_cases.OPS).index("Sin"))
        yield self.row("Add", elementwise("Add", self.shape), [self.x, other], size)
        yield self.row("Add, one row", elementwise("Add", [1, self.W]), [self.x, self.random(self.W)], size)
        yield self.row("Erf", elementwise("Erf"), [self.x], size)
        unary = self.plan("unary", self.half, sin, zero, ctypes.c_int64(self.total), ctypes.c_int(1))
        yield self.row("Sin", unary, [self.x], size)
        yield self.row("Less", logic("Less", 2), [self.x, other], self.total)
        yield self.row("IsNaN", logic("IsNaN", 1), [self.x], self.total)

    def of_whole_numbers(self) -> Iterator[Row | None]:
        """Rows for bool and int64, which are only measured together with float32."""
        if self.dtype == torch.float16:
            yield from [None] * 3
            return
        P, H, W = self.P, self.H, self.W
        i32, of = ctypes.c_int32, [3, P // 2, H, W]

        def whole_numbers(op: str) -> Plan:
            code = i32(whole_cases.OPS.index(op))
            return self.plan("whole", ctypes.c_int64(8), i32(1), code, i32(2), int64s([0, 0]), int64s([*of * 3, 0]))

        truth = torch.randint(0, 2, (4 * P, H, W), device="cuda", dtype=torch.uint8)
        dims = int64s([*[3, 4 * P, H, W] * 3, 0, 0])
        both = self.plan("logic", i32(9), i32(list(logic_cases.OPS).index("And")), ctypes.c_int(1), dims)
        yield self.row("And", both, [truth, truth.clone()], truth.nbytes)
        a, b = torch.randint(-99, 99, (2, P // 2, H, W), device="cuda")
        yield self.row("Add, int64", whole_numbers("Add"), [a, b], a.nbytes)
        yield self.row("Mod, int64", whole_numbers("Mod"), [a, b.clamp(1)], a.nbytes)

    def of_places(self) -> Iterator[Row | None]:
        """Rows for data movement, and for tensors generated from scalars and indices."""
        P, H, W, x, size, no = self.P, self.H, self.W, self.x, self.x.nbytes, ctypes.c_int(0)
        i32, i64, wide = ctypes.c_int32, ctypes.c_int64, ctypes.c_int64(self.bytes)

        def copied(name: str, shape: list[int], strides: list[int], read: torch.Tensor) -> Row:
            to = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
            made = self.plan("strided_copy", wide, int64s([len(shape), *shape, *strides, *to, 0, 0]))
            return self.row(name, made, [read], math.prod(shape) * self.bytes)

        yield self.row("Transpose 0 2 1", self.plan("swap_planes", i64(P), i64(H), i64(W), wide), [x], size)
        yield copied("Transpose 1 0 2", [H, P, W], [W, H * W, 1], x)
        # [P / 4, H, 2, W, 2] from [2, 2, P / 4, H, W], and [2, 2, P, H / 2, W / 2] from [P, H / 2, 2, W / 2, 2]
        blocks = [H * W, W, P // 2 * H * W, 1, P // 4 * H * W]
        yield copied("DepthToSpace", [P // 4, H, 2, W, 2], blocks, x)
        yield copied("SpaceToDepth", [2, 2, P, H // 2, W // 2], [W, 1, H * W, 2 * W, 2], x)
        yield copied("Tile, 2 x 2", [P // 4, 2, H, 2, W], [H * W, 0, W, 0, 1], x[: P // 4])
        padded = int64s([*self.shape, 0, 0, 0, 0, 0, W])
        yield self.row("Pad", self.plan("pad", wide, i32(0), ctypes.c_uint64(0), padded), [x], 2 * size)
        index, within = torch.randperm(P, device="cuda"), torch.randint(0, H, (P, H, W), device="cuda")
        gather = self.plan("gather", wide, no, i64(1), i64(P), i64(H * W), i64(P))
        yield self.row("Gather", gather, [x, index], size)
        elements = self.plan("gather_elements", wide, no, int64s([*self.shape, *self.shape, 1]))
        yield self.row("GatherElements", elements, [x, within], size)
        tuples = torch.stack([torch.randint(0, n, (P * H,), device="cuda") for n in (P, H)], 1)
        yield self.row("GatherND", self.plan("gather_nd", wide, int64s([1, P * H, W, 2, P, H])), [x, tuples], size)
        triangle = self.plan("trilu", *map(i64, (P, H, W, 0, self.bytes)), ctypes.c_int(1))
        yield self.row("Trilu", triangle, [x], size)
        filled = self.plan("fill", i64(self.total), wide, ctypes.c_uint64(0x3C00))
        yield self.row("ConstantOfShape", filled, [], size)
        if self.dtype == torch.float16:
            yield None
        else:
            numbers = self.plan("range", i32(1), ctypes.c_double(0), ctypes.c_double(1), i64(self.total))
            yield self.row("Range", numbers, [], size)
        hot = self.plan("one_hot", i64(P * H), i64(W), i64(1), i32(0), wide)  # int64 indices
        places = torch.randint(0, W, (P * H,), device="cuda")
        yield self.row("OneHot", hot, [places, torch.tensor([0.0, 1.0], device="cuda").to(self.dtype)], size)

    def counted(self) -> Iterator[Row | None]:
        """Rows that read their conditions twice, since the host allocates the outputs between counting and writing."""
        i64, no, yes = ctypes.c_int64, ctypes.c_int(0), ctypes.c_int(1)
        found = torch.empty(1, dtype=torch.int64, device="cuda")

        def steps(x: torch.Tensor, is_float: ctypes.c_int, all_: int) -> tuple[list[Step], torch.Tensor]:
            starts = torch.empty(-(-x.numel() // nonzero_cases.PART), dtype=torch.int32, device="cuda")
            places = torch.empty(x.dim(), all_, dtype=torch.int64, device="cuda")
            kind = (i64(x.itemsize), is_float)
            count = self.plan("nonzero_count", i64(x.numel()), *kind)
            find = self.plan("nonzero_places", int64s([x.dim(), *x.shape]), *kind, i64(all_))
            return [(count, [x], [found, starts]), (find, [x, starts], [places])], places

        sparse = self.x * (torch.rand_like(self.x) < 0.25)
        nonzero, places = steps(sparse, yes, int(torch.count_nonzero(sparse)))
        yield Row("NonZero, a quarter", nonzero, 2 * sparse.nbytes + places.nbytes)
        holds = torch.rand(self.P, device="cuda") < 0.5
        kept = int(torch.count_nonzero(holds))
        compress, places = steps(holds, no, kept)
        y = torch.empty(kept, self.H, self.W, dtype=self.dtype, device="cuda")
        inner = i64(self.H * self.W)
        gather = self.plan("gather", i64(self.bytes), no, i64(1), i64(self.P), inner, i64(kept))
        yield Row("Compress, half of the rows", [*compress, (gather, [self.x, places], [y])], 2 * y.nbytes)

    def converted(self) -> Iterator[Row | None]:
        x, no, i32 = self.x, ctypes.c_int(0), ctypes.c_int32
        scale = torch.tensor([0.1], device="cuda").to(self.dtype)
        small = torch.randint(-99, 99, x.shape, device="cuda", dtype=torch.int8)

        def quantize(back: int) -> Plan:
            one = int64s([1, self.total, 1, -1])
            return self.plan("quantize", i32(3), self.half, no, ctypes.c_int(back), no, one)

        yield self.row("QuantizeLinear", quantize(0), [x, scale], self.total)
        yield self.row("DequantizeLinear", quantize(1), [small, scale], x.nbytes)
        cast = self.plan("cast", ctypes.c_int64(self.total), self.type, i32(11 - self.type.value), ctypes.c_int(1))
        yield self.row("Cast to the other", cast, [x], self.total * (6 - self.bytes))

    def reduced(self) -> Iterator[Row | None]:
        P, H, W, x, i64 = self.P, self.H, self.W, self.x, ctypes.c_int64
        no, b = ctypes.c_int(0), self.bytes
        rows, columns = int64s([2, P, H * W, 0, 1]), int64s([3, 64, P // 64, H * W, 0, 1, 0])

        def softmax(D: int, inner: int) -> Plan:
            return self.plan("softmax", self.half, i64(P), i64(D), i64(inner), no)

        def reduce(how: str, numbers: Any) -> Plan:
            return self.plan("reduce", self.type, ctypes.c_int32(reduction_cases.REDUCTIONS.index(how)), numbers)

        def arg(smallest: int, *sizes: int) -> Plan:
            order = ctypes.c_int32(self.half.value)
            return self.plan("arg", *map(i64, sizes), order, ctypes.c_int(smallest), no)

        yield self.row("Softmax, rows of 4096", softmax(H * W, 1), [x], x.nbytes)
        yield self.row("Softmax, columns", softmax(H, W), [x], x.nbytes)
        for how in ("Mean", "Prod", "L1", "L2", "SumSquare"):
            yield self.row(f"Reduce{how}, rows of 4096", reduce(how, rows), [x], b * P)
            yield self.row(f"Reduce{how}, columns", reduce(how, columns), [x], b * 64 * H * W)
        outer = reduce("LogSumExp", int64s([*self.shape, 1, 0, 1]))
        yield self.row("ReduceLogSumExp, first and last", outer, [x], b * H)
        for smallest, name in enumerate(("ArgMax", "ArgMin")):
            yield self.row(f"{name}, rows of 4096", arg(smallest, P, H * W, 1), [x], 8 * P)
            yield self.row(f"{name}, columns", arg(smallest, 64, P // 64, H * W), [x], 8 * 64 * H * W)

    def normalized(self) -> Iterator[Row | None]:
        x, size, i64, epsilon = self.x, self.x.nbytes, ctypes.c_int64, ctypes.c_float(1e-5)
        pixels, no, yes = self.H * self.W, ctypes.c_int(0), ctypes.c_int(1)
        N, C = 64, self.P // 64
        images = (i64(N), i64(C), i64(pixels))
        gamma, beta, mean, variance = torch.rand(4, C, device="cuda").to(self.dtype)
        batch = self.plan("batch_norm", self.half, self.half, *images, epsilon)
        yield self.row("BatchNormalization", batch, [x, gamma, beta, mean, variance], size)
        for name, groups in (("InstanceNormalization", C), ("GroupNormalization, 32", 32)):
            made = self.plan("group_norm", self.half, no, *images, i64(groups), epsilon, *act_arguments(""))
            yield self.row(name, made, [x, gamma, beta], size)
        rms = self.plan("row_norm", self.half, i64(self.P), i64(pixels), epsilon, yes, no, no, i64(1), no)
        yield self.row("RMSNormalization, rows of 4096", rms, [x, self.random(pixels)], size)
        numbers = (ctypes.c_float(1e-4), ctypes.c_float(0.75), ctypes.c_float(1))
        yield self.row("LRN, 5", self.plan("lrn", self.half, *images, i64(5), *numbers), [x], size)
        lengths = self.plan("softmax", self.half, i64(self.P), i64(pixels), i64(1), ctypes.c_int32(3))
        yield self.row("LpNormalization, rows of 4096", lengths, [x], size)
        for channels in (96, 256, 768):
            count = self.P // channels
            part = x[: count * channels]
            made = self.plan("layer_norm_2d", self.half, i64(count), i64(channels), i64(pixels), epsilon)
            both = [*torch.rand(2, channels, device="cuda").to(self.dtype)]
            yield self.row(f"FusedLayerNorm2d, {channels} channels", made, [part, *both], part.nbytes)
        S, heads, D = 1024, 16, 128
        B = self.total // (S * heads * D)
        turn = self.plan("rotary", self.half, int64s([B, S, heads, D, D // 2, S]), (ctypes.c_int * 3)(1, 0, 0))
        ids = torch.arange(S, device="cuda").repeat(B)
        yield self.row("RotaryEmbedding", turn, [x, ids, self.random(S, D // 2), self.random(S, D // 2)], size)

    def pooled(self) -> Iterator[Row | None]:
        P, H, W, i32, i64 = self.P, self.H, self.W, ctypes.c_int32, ctypes.c_int64
        windows = int64s([P, *(1, 1, 1, 1, 0, 1, 1), *(H // 2, H, 2, 2, 0, 1, H), *(W // 2, W, 2, 2, 0, 1, W)])
        pool = self.plan("pool", self.type, i32(0), windows, i64(0))
        yield self.row("MaxPool 2x2", pool, [self.x], self.x.nbytes // 4)
        linear, two = i32(resize_cases.WAYS_OF_IMAGES.index("linear")), ctypes.c_float(2)
        sizes = int64s([P // 4, H, W, 2 * H, 2 * W])
        resize = self.plan("resize", self.half, i32(0), linear, sizes, two, two, i64(0), i64(0))
        yield self.row("Resize, linear, 2x", resize, [self.x[: P // 4]], self.x.nbytes)


def bench_standard(r: Runner, copy: float, only: Sequence[str] = ("",)) -> None:
    """Compares the provider's kernels for standard operators, on 64 MiB read and written once, with a copy's rate."""
    print(f"\nStandard operators, 64 MiB, float32 and float16: fraction of copy (floor {LEAST_OF_COPY:.0%})")
    both = (Standard(r, torch.float32), Standard(r, torch.float16))
    for columns in zip(*(given.rows() for given in both), strict=True):
        cells, missed = [], ""
        first = next(row for row in columns if row is not None)
        if not any(name in first.name for name in only):
            continue
        for row in columns:
            if row is None:
                cells.append(f"{'':15}")
                continue
            works = [r.work(*step) for step in row.steps]
            ms = milliseconds(lambda: [work() for work in works])  # noqa: B023
            part = row.moved / ms / 1e9 / copy
            missed = missed or ("  MISSES" if part < LEAST_OF_COPY else "")
            cells.append(f"{ms:.4f} ms {part:5.0%}")
        kernel = first.steps[-1][0].launches[0]["kernel"]
        print(f"  {first.name:32} {'  '.join(cells)}  {kernel}{missed}", flush=True)


def print_beside(name: str, made: Plan, ms: float, peer: float) -> None:
    missed = "  MISSES" if ms > MOST_OF_PYTORCH * peer else ""
    print(f"  {name:40} {ms:.4f} ms  PyTorch {peer:.4f}  {ms / peer:.2f}  {made.launches[0]['kernel']}{missed}")


def bench_ranked(r: Runner) -> None:
    """Compares operators that are not purely memory-bound with PyTorch's time."""
    floor = f"{MOST_OF_PYTORCH:.0f} times its time"
    print(f"\nTopK, CumSum, Scatter*, ArgMax, ArgMin, float32, beside PyTorch (floor {floor})")
    i64, i32, no = ctypes.c_int64, ctypes.c_int32, ctypes.c_int(0)
    rows: list[tuple[str, Plan, list[torch.Tensor], list[torch.Tensor], Callable[[], object]]] = []

    for lines, length, K in ((32, 1000, 5), (8, 50257, 50), (1, 268800, 300)):
        x = torch.randn(lines, length, device="cuda")
        made = r.plan("top_k", i64(lines), i64(length), i64(1), i64(K), i32(0), no)
        out = [torch.empty(lines, K, device="cuda"), torch.empty(lines, K, dtype=torch.int64, device="cuda")]
        rows.append((f"TopK {lines} x {length}, {K}", made, [x], out, partial(torch.topk, x, K)))
    for outer, length, inner in ((1, 1 << 20, 1), (4096, 4096, 1), (64, 1024, 256)):
        x = torch.randn(outer, length, inner, device="cuda")
        made = r.plan("cumsum", i32(1), i64(outer), i64(length), i64(inner), no, no)
        rows.append((f"CumSum {outer} x {length} x {inner}", made, [x], [torch.empty_like(x)],
                     partial(torch.cumsum, x, 1)))  # fmt: skip
    for smallest, theirs in enumerate((torch.argmax, torch.argmin)):
        for outer, length, inner in ((1, 1 << 20, 1), (4096, 4096, 1), (64, 1024, 256)):
            x = torch.randn(outer, length, inner, device="cuda")
            made = r.plan("arg", i64(outer), i64(length), i64(inner), i32(0), ctypes.c_int(smallest), no)
            out = [torch.empty(outer, inner, dtype=torch.int64, device="cuda")]
            name = f"{('ArgMax', 'ArgMin')[smallest]} {outer} x {length} x {inner}"
            rows.append((name, made, [x], out, partial(theirs, x, 1)))
    for how, many, length, most in (
        ("none", 4096, 4096, 4096),
        ("add", 4096, 4096, 1024),
        ("add", 1, 1 << 20, 1 << 18),
    ):
        x, updates = torch.randn(many, length, device="cuda"), torch.randn(many, most, device="cuda")
        index = torch.stack([torch.randperm(length, device="cuda")[:most] for _ in range(min(many, 64))])
        index = index.repeat(max(1, many // 64), 1) if how == "none" else torch.randint_like(index, length).repeat(
            max(1, many // 64), 1)  # fmt: skip
        code = list(scatter_cases.HOW).index(how)
        sizes = int64s([2, many, length, 2, many, most, 1, 1])
        theirs = x.scatter if how == "none" else x.scatter_add
        rows.append((f"ScatterElements {how} {many} x {most} of {length}",
                     r.plan("scatter", i32(1), i64(4), no, i32(code), sizes),
                     [x, index, updates], [torch.empty_like(x)], partial(theirs, 1, index, updates)))  # fmt: skip
    for how, length, most, inner in (
        ("none", 50000, 8192, 768),
        ("add", 50000, 8192, 768),
        ("none", 1 << 20, 1 << 18, 1),
    ):
        x, updates = torch.randn(length, inner, device="cuda"), torch.randn(most, inner, device="cuda")
        index = torch.randint(0, length, (most,), device="cuda") if how == "add" else torch.randperm(
            length, device="cuda")[:most]  # fmt: skip
        code = list(scatter_cases.HOW).index(how)
        sizes = int64s([1, length, 2, most, 1, inner, -1])
        rows.append((f"ScatterND {how} {most} of {length} x {inner}",
                     r.plan("scatter", i32(1), i64(4), no, i32(code), sizes), [x, index[:, None], updates],
                     [torch.empty_like(x)], partial(x.index_put, (index,), updates, how == "add")))  # fmt: skip
    for name, made, inputs, outputs, theirs in rows:
        print_beside(name, made, milliseconds(r.work(made, inputs, outputs)), milliseconds(theirs))


def bench_composed(r: Runner) -> None:
    """Compares sampling, recurrence and selection with PyTorch's time, LSTM, GRU and RNN with cuDNN's."""
    floor = f"{MOST_OF_PYTORCH:.0f} times its time"
    print(f"\nGridSample, LSTM, GRU, RNN, NonMaxSuppression, float32, beside PyTorch (floor {floor})")
    no = ctypes.c_int(0)
    for N, C, H, W in ((1, 3, 512, 512), (8, 64, 64, 64), (4, 256, 100, 152)):
        x, grid = torch.randn(N, C, H, W, device="cuda"), 2 * torch.rand(N, H, W, 2, device="cuda") - 1
        made = r.plan("grid_sample", no, int64s([N, C, H * W, 2, H, W]), ctypes.c_int(2), ctypes.c_int32(0), no)
        theirs = partial(F.grid_sample, x, grid, align_corners=False)
        ms = milliseconds(r.work(made, [x, grid], [torch.empty_like(x)]))
        print_beside(f"GridSample {N} x {C} x {H} x {W}", made, ms, milliseconds(theirs))
    for kind, module, gates in (("LSTM", torch.nn.LSTM, 4), ("GRU", torch.nn.GRU, 3), ("RNN", torch.nn.RNN, 1)):
        for S, B, H in ((128, 1, 256), (100, 16, 512), (512, 32, 128)):
            layer = module(H, H).cuda().requires_grad_(False)
            x, w = torch.randn(S, B, H, device="cuda"), torch.randn(H, gates * H, device="cuda") / H**0.5
            weights, bias = torch.randn(1, gates * H, H, device="cuda") / H**0.5, torch.zeros(1, 2 * gates * H).cuda()
            none, state = torch.zeros(1, 3 * H, device="cuda"), torch.zeros(1, B, H, device="cuda")
            lengths = torch.full((B,), S, dtype=torch.int32, device="cuda")
            product = torch.empty(S, B, gates * H, device="cuda")
            states = 2 if kind == "LSTM" else 1
            out = [torch.empty(S, 1, B, H, device="cuda"), *(torch.empty_like(state) for _ in range(states))]
            made = r.plan("recurrent", no, ctypes.c_int32(recurrent_cases.KINDS.index(kind)),
                        int64s([1, B, S, H, 0, 0, 1, 0, 0, 0, 0]), ctypes.c_float(0), ctypes.c_int(-1))  # fmt: skip
            steps = r.work(made, [product, weights, bias, none, lengths, state, state], out)

            def ours(x: torch.Tensor = x, w: torch.Tensor = w, product: torch.Tensor = product,
                     steps: Callable[[], object] = steps) -> None:  # fmt: skip
                torch.matmul(x, w, out=product)
                steps()

            print_beside(f"{kind} {S} x {B} x {H}", made, milliseconds(ours), eager_milliseconds(partial(layer, x)))
    try:
        from torchvision.ops import batched_nms
    except ImportError:
        print("  NonMaxSuppression: no torchvision to set it beside")
        return
    for B, C, N in ((1, 1, 1000), (1, 80, 1000), (8, 1, 5000)):
        corner = torch.rand(B, N, 2, device="cuda")
        boxes, scores = torch.cat([corner, corner + 0.1], 2), torch.rand(B, C, N, device="cuda")
        made = r.plan("nms", int64s([B, C, N, N]), no, ctypes.c_float(0.5), ctypes.c_float(0), no)
        out = [torch.empty(1, dtype=torch.int64, device="cuda"), torch.empty(B * C * N, 3, dtype=torch.int64).cuda()]
        flat = boxes[:, None].expand(B, C, N, 4).reshape(-1, 4)
        classes = torch.arange(B * C, device="cuda").repeat_interleave(N)
        ms = eager_milliseconds(r.work(made, [boxes, scores], out), repeats=3)
        peer = eager_milliseconds(partial(batched_nms, flat, scores.reshape(-1), classes, 0.5), repeats=3)
        print_beside(f"NonMaxSuppression {B} x {C} x {N}", made, ms, peer)


def bench_spectra(r: Runner) -> None:
    """Times DFT by definition, as a GEMM of each line with a table: compute-bound, and for information."""
    print("\nDFT and STFT, beside PyTorch (cuFFT), without a floor")
    rows: list[tuple[str, list[int], bool, int, Callable[[], object], list[torch.Tensor]]] = []
    for lines, L in ((4096, 512), (65536, 64)):
        x = torch.randn(lines, L, 2, device="cuda")
        places = [lines, 1, L, L, L, 2 * L, 2, 2, 2 * L, 2, 2]
        fft = partial(torch.fft.fft, torch.view_as_complex(x))
        rows.append((f"DFT {lines} x {L}", places, True, 8 * lines * L * L, fft, [x, x[0, 0]]))
    for B, T, L, step in ((1, 480000, 400, 160), (16, 160000, 512, 128)):
        x, window = torch.randn(B, T, device="cuda"), torch.hann_window(L, device="cuda")
        frames, K = (T - L) // step + 1, L // 2 + 1
        places = [B * frames, frames, L, L, K, T, step, 1, frames * K * 2, K * 2, 2]
        stft = partial(torch.stft, x, L, step, L, window, center=False, return_complex=True)
        rows.append((f"STFT {B} x {T}, {L} by {step}", places, False, 4 * B * frames * L * K, stft, [x, window]))
    for name, places, is_complex, flops, theirs, inputs in rows:
        flags = (ctypes.c_int(is_complex), ctypes.c_int(0), ctypes.c_int(not is_complex))
        made = r.plan("dft", ctypes.c_int(0), int64s(places), *flags)
        y = torch.empty(places[0], places[4], 2, device="cuda")
        ms, peer = milliseconds(r.work(made, inputs, [y])), eager_milliseconds(theirs)
        print(f"  {name:40} {ms:.4f} ms {flops / ms / 1e9:.1f} TFLOP/s  PyTorch {peer:.4f}  {ms / peer:.2f}")


def bench_conv(r: Runner, dtype: torch.dtype, floor: str) -> None:
    print(f"\n3x3 convolution, pad 1, {dtype} (floor {floor})")
    ratios, cold_ratios = [], []
    for size in CONVOLUTIONS:
        n, c, h, k = size
        x = torch.randn(n, c, h, h, device="cuda").to(dtype)
        w = (torch.randn(k, c, 3, 3, device="cuda") / (9 * c) ** 0.5).to(dtype)
        bias = torch.randn(k, device="cuda").to(dtype)
        arguments = (ctypes.c_int(dtype == torch.float16), int64s([n, c, h, h, k, 1, 1, 1, 1]), ctypes.c_int(0),
                     *act_arguments(""), ctypes.c_int32(-1), ctypes.c_int32(-1), ctypes.c_int64(-1))  # fmt: skip
        plan, prepare = (r.plan("winograd_conv", *arguments, ctypes.c_int(prepares)) for prepares in (0, 1))
        weights = torch.empty(prepare.weights, dtype=torch.uint8, device="cuda")
        r.work(prepare, [x, w], [], weights)()
        torch.cuda.synchronize()
        work = r.work(plan, [x, w, bias], [torch.empty(n, k, h, h, device="cuda", dtype=dtype)], weights)
        theirs = partial(F.conv2d, x, w, bias, padding=1)
        peer, ms = milliseconds(theirs), milliseconds(work)
        cold = milliseconds(theirs, cold=True) / milliseconds(work, cold=True)
        ratios.append(peer / ms)
        cold_ratios.append(cold)
        names = [launch["kernel"] for launch in plan.launches]
        kernels = f"{names[0]} {names[min(1, len(names) - 1)]} {len(names)} launches"
        print(f"  {size!s:20} {ms:.4f} ms  cuDNN {peer:.4f}  {peer / ms:.2f}x  cold {cold:.2f}x  {kernels}")
    print(
        f"  geometric mean {statistics.geometric_mean(ratios):.2f}x, least {min(ratios):.2f}x, "
        f"cold {statistics.geometric_mean(cold_ratios):.2f}x"
    )


def attention_plan(r: Runner, qkvo: Sequence[torch.Tensor], bias: torch.Tensor | None, causal: bool) -> Plan:
    """Returns a plan for Q, K, V and the output, [B, H, rows, columns] with any strides."""
    q, k, v, _ = qkvo
    B, H, S, D = q.shape
    sizes = [B, H, S, k.shape[2], D, v.shape[3], H // k.shape[1]]
    for x in qkvo:
        sizes += x.stride()
    sizes += (
        [0 if n == 1 else step for n, step in zip(bias.shape, bias.stride(), strict=True)]
        if bias is not None
        else [0] * 4
    )
    sizes += [0] * 4
    flags = (bias is not None) | causal << 2
    settings = (ctypes.c_float(D**-0.5), ctypes.c_float(0), ctypes.c_float(0), ctypes.c_int(-1))
    half = ctypes.c_int(q.dtype == torch.float16)
    return r.plan("fused_attention", half, int64s(sizes), ctypes.c_int(flags), *settings)


def bench_attention(r: Runner, dtype: torch.dtype, floor: str) -> None:
    print(f"\nFusedAttention, {dtype} (floor {floor})")
    ratios, unfused_ratios = [], []
    for B, H, S, D in ATTENTIONS:
        q, k, v = (torch.randn(B, H, S, D, device="cuda").to(dtype) for _ in range(3))
        o = torch.empty_like(q)
        plan = attention_plan(r, (q, k, v, o), None, False)
        kt, scaled = k.transpose(-1, -2), q * D**-0.5
        ms = milliseconds(r.work(plan, [q, k, v], [o]))
        peer = milliseconds(partial(F.scaled_dot_product_attention, q, k, v))
        unfused = milliseconds(lambda: torch.softmax(scaled @ kt, dim=-1) @ v)  # noqa: B023
        ratios.append(peer / ms)
        if S >= 1024:
            unfused_ratios.append(unfused / ms)
        print(
            f"  {(B, H, S, D)!s:20} {ms:.4f} ms  SDPA {peer:.4f} {peer / ms:.2f}x  three nodes {unfused:.4f} "
            f"{unfused / ms:.2f}x  {4 * B * H * S * S * D / ms / 1e9:.0f} TFLOP/s  {len(plan.launches)} launches"
        )
    print(
        f"  geometric mean against SDPA {statistics.geometric_mean(ratios):.2f}x, against three nodes (S >= 1024) "
        f"{statistics.geometric_mean(unfused_ratios):.2f}x"
    )


def bench_attention_options(r: Runner) -> None:
    print("\nFusedAttention, torch.float16, options")
    B, H, S, D = 8, 16, 2048, 128
    for name in ("causal", "bias", "grouped", "BSNH", "one query", "one query, many keys"):
        kv_heads = 2 if name == "grouped" else H
        T = 16384 if name == "one query, many keys" else S
        shapes = [(B, H, 1 if "one query" in name else S, D), (B, kv_heads, T, D), (B, kv_heads, T, D)]
        if name == "BSNH":
            q, k, v = (torch.randn(b, s, h, d, device="cuda").half().transpose(1, 2) for b, h, s, d in shapes)
        else:
            q, k, v = (torch.randn(shape, device="cuda").half() for shape in shapes)
        o = torch.empty_like(q)
        bias = torch.randn(B, 1, S, S, device="cuda").half() if name == "bias" else None
        causal = name == "causal"
        plan = attention_plan(r, (q, k, v, o), bias, causal)
        grouped = name == "grouped"
        sdpa = partial(F.scaled_dot_product_attention, q, k, v, attn_mask=bias, is_causal=causal, enable_gqa=grouped)
        inputs = [q, k, v] + ([bias] if bias is not None else [])
        ms, peer = milliseconds(r.work(plan, inputs, [o])), milliseconds(sdpa)
        print(f"  {name:20} {ms:.4f} ms  SDPA {peer:.4f} {peer / ms:.2f}x  {len(plan.launches)} launches")


def main() -> None:
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    r = Runner()
    copy = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}, copy {copy:.2f} TB/s")
    if "--only" in sys.argv:
        bench_standard(r, copy, sys.argv[sys.argv.index("--only") + 1 :])
        return
    if "--standard" in sys.argv:
        bench_standard(r, copy)
        bench_ranked(r)
        bench_composed(r)
        bench_spectra(r)
        return
    if "--tiles" in sys.argv:
        bench_products(r, torch.float16)
        bench_last(r)
        return
    if "--norms" in sys.argv:
        bench_group_norm(r, copy)
        bench_row_norm(r, copy)
        return
    bench_attention(r, torch.float16, "0.35x SDPA, 2x three nodes")
    bench_attention(r, torch.float32, "1x SDPA")
    bench_attention_options(r)
    if "--attention" in sys.argv:
        return
    for dtype in (torch.float32, torch.float16):
        bench_products(r, dtype)
        bench_plain_conv(r, dtype)
    bench_last(r)
    if "--products" in sys.argv:
        return
    bench_scale_shift(r, copy)
    bench_group_norm(r, copy)
    bench_row_norm(r, copy)
    bench_standard(r, copy)
    bench_ranked(r)
    bench_composed(r)
    bench_spectra(r)
    bench_conv(r, torch.float32, "1.4x, none under 0.95x")
    bench_conv(r, torch.float16, "0.7x, with cuDNN kept where ours loses")


if __name__ == "__main__":
    main()
