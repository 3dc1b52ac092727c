"""What a CPU gains from our kernels: formulas fitted to measurements on one core of a Zen 5 server.

The measurements are in docs/measurements/winograd_cpu.md; `scripts/fit_cost_model.py` sets them beside these formulas
and fits the constants again, to that file or to what `scripts/bench_ops.py winograd` printed on another machine.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

RATE = 235e3  # operations a microsecond of a matrix product at full speed, and of ONNX Runtime's direct convolution
WEIGHT_RATE = 50e3  # bytes a microsecond of weights from memory or a shared last-level cache
TENSOR_RATE = 20e3  # bytes a microsecond of activations, in and out
TRANSFORM = {4: 9e-3, 2: 4e-3}  # microseconds a tile and channel of F(tile x tile), with the memory traffic
OVERHEAD = 1.125  # what is not overlapped and the caches that others use cost an eighth
FEWEST_PRODUCTS = 300_000  # multiply-adds of a convolution in bfloat16, above which a call of it is paid for
SMALLEST_MATMUL = 32**3  # multiply-adds of each matrix of a product of two activations
FEWEST_TERMS = 64  # of a sum of such a product: two tiles of AMX; fewer gained nothing
PRODUCTS_FOR_PACKING = 16  # multiply-adds of such a product that pay for a number of either factor to be packed
FEWEST_TRANSPOSED = 100_000  # of what a transposed convolution gives, where anything is gained
FEWEST_NUMBERS = 27_000  # of what a depthwise one gives, for the same reason
FEWEST_COLUMNS = 16  # numbers behind the axis of a Softmax: a vector of them
# Linear in float32: from how many products for each output the runtime, which goes over its sums once for some of
# them, is slower; and for how many columns at least.
LINEAR_DEPTH, LINEAR_COLUMNS = 2048, 512
# Or from how many columns, and products for each.
WIDE_LINEAR_COLUMNS, WIDE_LINEAR_DEPTH = 3072, 768
# Or by Strassen's algorithm, which asks for the multiples (`fits_halves` in native/operators/matmul/linear/strassen.h).
STRASSEN_ROWS, STRASSEN_SIDE = 128, 768
STRASSEN_COLUMNS_OF, STRASSEN_DEPTH_OF = 64, 32
FEWEST_HIDDEN = 27_000  # numbers between the convolutions of an inverted residual block
_LANES = 16  # channels are padded to whole vectors
# The runtime's blocked layout pads to vectors, too, and those of AVX2 are half as long: a rule that counted on longer
# ones would be wrong there.
_LANES_OF_LAYOUT = 8


@functools.cache  # asked of every convolution, of which a model has few different ones
def winograd_gain(C: int, M: int, OH: int | None, OW: int | None) -> float:
    """Estimated time of ONNX Runtime's NCHWc direct convolution over that of WinogradConv; above 1 WinogradConv pays.

    For float32, batch 1 and one thread, from C to M channels with an OH x OW result in a chain of convolutions, where
    ONNX Runtime keeps its blocked layout and pays for no reorder. Sizes that are not known count as 56. Within 35 % of
    the measurements, and below them for fewer than 16 channels, where little is to be gained. The kernel itself chooses
    between F(4x4) and F(2x2) in the same way (`refuse_f4x4` in native/operators/conv/winograd/op.cpp).
    """
    OH, OW = OH or 56, OW or 56
    return direct_time(C, M, OH, OW) / winograd_time(C, M, OH, OW)


def direct_time(C: int, M: int, OH: int, OW: int) -> float:
    """Microseconds of ONNX Runtime's direct 3x3 convolution: products, weights, and tensors read and written once."""
    products = 18 * C * _padded(M, _LANES_OF_LAYOUT) * OH * OW
    return products / RATE + 36 * C * M / WEIGHT_RATE + 4 * (C + M) * OH * OW / TENSOR_RATE


def winograd_time(C: int, M: int, OH: int, OW: int) -> float:
    """Microseconds of WinogradConv with the better tile: products, weights, and the transforms of C + M channels."""
    return min(_tile_time(C, M, OH, OW, tile) for tile in TRANSFORM)


def _tile_time(C: int, M: int, OH: int, OW: int, tile: int) -> float:
    C, M = _padded(C), _padded(M)
    points = (tile + 2) ** 2
    tiles = -(-OH // tile) * -(-OW // tile)
    return OVERHEAD * (
        2 * points * tiles * C * M / RATE + 4 * points * C * M / WEIGHT_RATE + TRANSFORM[tile] * tiles * (C + M)
    )


def _padded(channels: int, lanes: int = _LANES) -> int:
    return -(-channels // lanes) * lanes


def fused_conv_no_gain(C: int, M: int, group: int, taps: int) -> str:
    """Why FusedConv in float32, from C to M channels of a group, is slower than the runtime's Conv; "" when it is not.

    The runtime's is as fast as the processor and takes most activations along; only groups that are not whole blocks of
    its layout it runs one by one (docs/measurements/fused_conv_cpu.md). Blocks are as long as vectors, and windows of
    several taps pay in groups of 8 channels even where vectors are no longer.
    """
    if group == 1:
        return "ONNX Runtime's kernel, with the operators fused into it, is faster here"
    if max(C, M) == 1:
        return "ONNX Runtime's kernel is faster on planes of one channel"
    block = _LANES if taps > 1 else _LANES_OF_LAYOUT
    return "ONNX Runtime's kernel is faster: the groups are blocks of its layout" if C % block == M % block == 0 else ""


def fused_conv_transpose_no_gain(
    C: int, M: int, group: int, windows: Sequence[tuple[int, int, int]], sizes: Sequence[int | None], activated: bool
) -> str:
    """Why FusedConvTranspose, from C to M channels of a group, is slower than the runtime's ConvTranspose.

    The runtime's product is as fast as the processor; what it does beside it counts where channels are few and numbers
    many, over three axes, and in groups, which it takes one by one.

    Args:
        C: channels of X in a group.
        M: channels of Y in a group.
        group: of the convolution.
        windows: kernel, stride and dilation of each axis of space.
        sizes: of X along these axes.
        activated: an activation follows, which the runtime computes in a pass of its own.

    Returns:
        "" when it is faster (docs/measurements/conv_transpose_cpu.md).
    """
    known = [n for n in sizes if n is not None]
    if len(known) != len(windows):
        return "sizes are not known, and ONNX Runtime's kernel is as fast on small ones"
    if not all(stride > 1 and kernel % stride == 0 and dilation == 1 for kernel, stride, dilation in windows):
        return "ONNX Runtime's kernel is as fast where the window is no multiple of the stride"
    apart, axes = all(kernel == stride for kernel, stride, _ in windows), len(windows)
    numbers = group * M * math.prod(n * stride for n, (_, stride, _) in zip(known, windows, strict=True))
    if axes == 2 and group > 1:
        gains = not apart and C <= 8 and numbers >= FEWEST_TRANSPOSED
    elif axes == 3:
        gains = group == 1 and C <= 32 and numbers >= 2 * FEWEST_TRANSPOSED
    elif axes == 2 and apart:
        large = all(kernel >= 4 for kernel, _, _ in windows)
        gains = (large or activated) and 24 <= C <= 64 and M >= 16 and numbers >= 20 * FEWEST_TRANSPOSED
    else:
        gains = axes == 2 and C <= 16 and M >= 8 and numbers >= FEWEST_TRANSPOSED
    return "" if gains else f"ONNX Runtime's kernel is as fast for {C} to {M} channels and {numbers} elements"


def linear_pays(K: int, N: int, rows: int | None) -> bool:
    """Whether Linear in float32 with a weight of K x N is faster than the runtime's product.

    On the other weights that were measured it takes as long (docs/measurements/linear_cpu.md).

    Args:
        K: rows of the weight.
        N: its columns.
        rows: of X; None where they are not known, so that it must be faster whatever they are.
    """
    deep = K >= LINEAR_DEPTH and N >= LINEAR_COLUMNS
    if deep or (N >= WIDE_LINEAR_COLUMNS and K >= WIDE_LINEAR_DEPTH):
        return True
    large = rows is not None and rows >= STRASSEN_ROWS and min(K, N) >= STRASSEN_SIDE
    return large and K % STRASSEN_DEPTH_OF == 0 and N % STRASSEN_COLUMNS_OF == 0


def bfloat16_no_gain(C: int, M: int, taps: int, pixels: Sequence[int | None], winograd: bool) -> str:
    """Why a convolution from C channels of a group to M is slower in bfloat16 than what is there; "" when it is not.

    Sizes that are not known count as 56. The measurements are in docs/measurements/bfloat16_cpu.md.
    """
    count = C * M * taps * math.prod(n or 56 for n in pixels)
    if count < FEWEST_PRODUCTS:
        return f"{count} multiply-adds are so few that a call costs what bfloat16 saves"
    if not winograd or len(pixels) != 2:
        return ""
    OH, OW = (n or 56 for n in pixels)
    products = 9 * _padded(C) * _padded(M) * OH * OW / RATE + 18 * C * M / WEIGHT_RATE
    time = OVERHEAD * (products + 6 * (C + M) * OH * OW / TENSOR_RATE)
    return "" if time < winograd_time(C, M, OH, OW) else f"Winograd's algorithm is faster for {C} to {M} channels"


def bfloat16_matmul_no_gain(A: Sequence[int | None], B: Sequence[int | None]) -> str:
    """Why a product of two activations is slower in bfloat16, which packs both; "" when it is not.

    By docs/measurements/bfloat16_xeon.md. Sizes that are not known count as 56.

    Args:
        A: sizes, [.., M, K].
        B: likewise [.., K, N].
    """
    M, K, N = A[-2] or 56, A[-1] or 56, B[-1] or 56
    batches = itertools.zip_longest(reversed(A[:-2]), reversed(B[:-2]), fillvalue=1)
    matrices = math.prod(max(m or 56, n or 56) for m, n in batches)
    if all(n == 1 for n in B[:-2]):
        M, matrices = M * matrices, 1  # one B for the rows of all
    matrix = M * K * N
    if matrix < SMALLEST_MATMUL or matrix * matrices < FEWEST_PRODUCTS:
        return f"{matrix * matrices} multiply-adds, {matrix} a matrix, are so few that a call costs what bfloat16 saves"
    if K < FEWEST_TERMS:
        return f"each sum has {K} products only, so writing the sums costs more"
    if M * N < PRODUCTS_FOR_PACKING * (M + N):
        return f"rounding the factors of {M} rows and {N} columns costs what bfloat16 saves"
    return ""


def bfloat16_depthwise_no_gain(
    kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], sizes: Sequence[int | None]
) -> str:
    """Why a depthwise convolution between others is slower in pairs of channels than in the runtime's blocked layout.

    Args:
        kernel: of the window.
        strides: likewise.
        dilations: likewise.
        sizes: channels, height and width of what it gives; with one that is not known it counts as large.

    Returns:
        "" when it is not slower.
    """
    square = tuple(kernel) in ((3, 3), (5, 5)) and tuple(strides) in ((1, 1), (2, 2))
    if not square or any(d != 1 for d in dilations):
        return "ONNX Runtime's kernel is faster: graphopt has fast filters for windows of 3x3 and 5x5 without gaps"
    if None not in sizes and (numbers := math.prod(n or 0 for n in sizes)) < FEWEST_NUMBERS:
        return f"{numbers} elements are so few that a call costs what bfloat16 saves"
    return ""


def inverted_residual_no_gain(
    C: int, M: int, kernel: Sequence[int], sizes: Sequence[int | None], activation: str
) -> str:
    """Why InvertedResidual over M channels between its convolutions is slower than the runtime's three.

    Args:
        C: channels of X.
        M: channels between the convolutions.
        kernel: of the depthwise one.
        sizes: height and width of X; those that are not known count as 56.
        activation: between the convolutions.

    Returns:
        "" when it is not slower.
    """
    if tuple(kernel) == (3, 3) and activation == "Relu":
        return "ONNX Runtime's kernels are as fast: they compute Relu at no cost"
    if tuple(kernel) not in ((3, 3), (5, 5)):
        return "ONNX Runtime's kernels are faster: graphopt has fast filters for windows of 3x3 and 5x5"
    if M < 4 * C:
        return f"there are {M} channels between the convolutions and {C} before them, too few to gain"
    numbers = M * math.prod(n or 56 for n in sizes)
    return f"the {numbers} elements between the convolutions fit the caches" if numbers < FEWEST_HIDDEN else ""
