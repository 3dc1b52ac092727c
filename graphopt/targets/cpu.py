"""Cost model of our CPU kernels: formulas fitted to measurements on one core of a Zen 5 server.

The measurements are in docs/measurements/winograd_cpu.md. `scripts/fit_cost_model.py` compares them with these formulas
and fits the constants, to that file or to the output of `scripts/bench_ops.py winograd` on another machine.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence

# Operations per microsecond of a GEMM at peak and of ONNX Runtime's direct convolution; a multiply-add counts as two.
RATE = 235e3
INT8_RATE = 4 * RATE  # operations per microsecond of 8-bit multiplications by VNNI: four in the place of a float
WEIGHT_RATE = 50e3  # bytes per microsecond of weights from memory or a shared last-level cache
TENSOR_RATE = 20e3  # bytes per microsecond of activations, read and written
CALL = 2.5  # microseconds to call a node
# Tile size -> microseconds of the transforms of F(tile x tile) per tile and channel, with the memory traffic.
TRANSFORM = {4: 9e-3, 2: 4e-3}
OVERHEAD = 1.125  # 12.5 % for work that does not overlap and for shared caches
# Relative to ONNX Runtime's Conv: the time of FusedConv's arithmetic, and FusedConv's speed in depthwise convolutions.
GEMM_OF_CONV, SPEED_ON_PLANES = 1.1, 0.6
# Relative to ONNX Runtime's kernels: the speed of InvertedResidual, and of depthwise convolutions in bfloat16, with the
# windows that they have no fast filters for (docs/measurements/inverted_residual_cpu.md, bfloat16_cpu.md).
SPEED_OF_OTHER_WINDOWS, SPEED_OF_OTHER_BFLOAT16_WINDOWS = 0.9, 0.5
# The smallest problems for which a rewrite is faster.
FEWEST_MULTIPLY_ADDS = 300_000  # in a bfloat16 convolution or MatMul: with fewer the call costs more than it saves
SMALLEST_MATMUL = 32**3  # multiply-adds of each matrix of a MatMul of two activations
FEWEST_TERMS = 64  # length K of the sums of such a MatMul: two AMX tiles; shorter sums gained nothing
LEAST_REUSE = 16  # uses of each packed element of such a MatMul that save the time of packing it
SMALLEST_WEIGHT = 64 * 128  # elements of a weight in bfloat16: with fewer the call costs more than it saves
FEWEST_QUERIES = 16  # rows of Q in bfloat16: with fewer, rounding K and V costs more than the multiplications save
FEWEST_TRANSPOSED = 100_000  # output elements of a transposed convolution
FEWEST_DEPTHWISE = 27_000  # output elements of a depthwise convolution
FEWEST_COLUMNS = 16  # elements after the axis of a Softmax: one vector
# Linear in float32 is faster from this depth K and these columns N on, because ONNX Runtime's GEMM splits K into blocks
# and reads and writes the partial sums of each block.
LINEAR_DEPTH, LINEAR_COLUMNS = 2048, 512
# It is also faster from these columns N and this depth K on.
WIDE_LINEAR_COLUMNS, WIDE_LINEAR_DEPTH = 3072, 768
# Strassen's algorithm makes it faster from these rows of X and this K and N on, if N is a multiple of
# STRASSEN_COLUMNS_OF and K of STRASSEN_DEPTH_OF (`fits_strassen` in native/operators/matmul/linear/strassen.h).
STRASSEN_ROWS, STRASSEN_SIDE = 128, 768
STRASSEN_COLUMNS_OF, STRASSEN_DEPTH_OF = 64, 32
# FusedConv without groups is faster with at most these output channels. The second limit applies where the runtime
# computes im2col and a GEMM.
FEW_OUTPUTS, FEW_OUTPUTS_OF_GEMM = 8, 32
# Elements of the window / product of strides, over several spatial axes and over one (a signal).
FEWEST_TAPS, FEWEST_TAPS_OF_SIGNAL = 8, 5
FEWEST_PIXELS = 100  # product of the result's spatial sizes, over several axes
# Over one axis: multiply-adds, and terms of each sum (input channels * elements of the window).
FEWEST_MULTIPLY_ADDS_OF_SIGNAL, FEWEST_TERMS_OF_SIGNAL = 100_000, 64
# With VNNI, QuantizedLinear is faster with at most FEW_QUANTIZED_ROWS rows of X. With AVX2 alone, ONNX Runtime's fused
# DynamicQuantizeMatMul is faster below FEWEST_ROWS_WITHOUT_VNNI rows, and if more than a share of MOST_LARGE_WORDS of
# the weight is multiplied in 16 bits: each such word costs LARGE_WORD_COST others, until QuantizedLinear multiplies all
# in 16 bits, at the speed SPEED_IN_16_BITS (docs/measurements/cpu_models.md).
FEW_QUANTIZED_ROWS, FEWEST_ROWS_WITHOUT_VNNI = 16, 3
MOST_LARGE_WORDS, LARGE_WORD_COST, SPEED_IN_16_BITS = 0.002, 15, 0.75
# On Zen 3: operations per microsecond of 8-bit multiplications by vpmaddubsw, and the microseconds that a call of
# QuantizedLinear takes longer than one of DynamicQuantizeMatMul.
INT8_RATE_WITHOUT_VNNI, QUANTIZED_CALL = 160e3, 1.0
# QuantizedConv is faster with at most these input channels and a window larger than 1x1, or for depthwise windows of
# at least these elements.
FEW_QUANTIZED_CHANNELS, QUANTIZED_DEPTHWISE_TAPS = 4, 25
# Multiply-adds for each element of Y, and pixels, up to which DynamicQuantizedConv is faster.
FEW_DYNAMIC_STEPS, FEW_DYNAMIC_PIXELS = 576, 64
FEWEST_HIDDEN = 27_000  # elements between the convolutions of an inverted residual block
# STFT as a Conv is faster up to LONGEST_FRAME samples. If the length of a frame is a power of two, it is faster up to
# LONGEST_FRAME_OF_TWO samples and with at least FEWEST_FRAMES frames.
LONGEST_FRAME, LONGEST_FRAME_OF_TWO, FEWEST_FRAMES = 1200, 512, 8
_LANES = 16  # elements of an AVX-512 vector; our kernels pad channels to whole vectors
# ONNX Runtime's NCHWc layout pads channels to whole vectors, of 16 elements with AVX-512 and of 8 with AVX2. A rule for
# 16 would be wrong with AVX2.
_LANES_OF_LAYOUT = 8


@functools.cache  # called for every convolution; a model has few different shapes
def winograd_gain(C: int, M: int, OH: int | None, OW: int | None) -> float:
    """Estimates the speedup of WinogradConv over ONNX Runtime's NCHWc direct convolution.

    The estimate is for float32, batch 1 and one thread, in a chain of convolutions where ONNX Runtime keeps its NCHWc
    layout and never reorders. It is within 35 % of the measurements, and below them with fewer than 16 channels, where
    the gain is small. The kernel chooses between F(4x4) and F(2x2) by the same formula (`refuse_f4x4` in
    native/operators/conv/winograd/op.cpp).

    Args:
        C: input channels.
        M: output channels.
        OH: height of the result; None counts as 56.
        OW: width of the result; None counts as 56.
    """
    OH, OW = OH or 56, OW or 56
    return direct_time(C, M, OH, OW) / winograd_time(C, M, OH, OW)


def direct_time(C: int, M: int, OH: int, OW: int) -> float:
    """Estimates the microseconds of ONNX Runtime's direct 3x3 convolution: arithmetic, weights, tensors."""
    products = 18 * C * _padded(M, _LANES_OF_LAYOUT) * OH * OW
    return products / RATE + 36 * C * M / WEIGHT_RATE + 4 * (C + M) * OH * OW / TENSOR_RATE


def winograd_time(C: int, M: int, OH: int, OW: int) -> float:
    """Estimates the microseconds of WinogradConv with the better tile: GEMMs, weights, transforms of C + M channels."""
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


def fused_conv_no_gain(
    C: int, M: int, group: int, kernel: Sequence[int], strides: Sequence[int], sizes: Sequence[int | None]
) -> str:
    """Returns why FusedConv in float32 is slower than ONNX Runtime's Conv; "" if it is faster.

    ONNX Runtime's Conv runs at peak and fuses most activations, with two exceptions: the convolutions of
    `_conv_below_peak`, and groups that are not whole blocks of its NCHWc layout, which it runs one after the other
    (docs/measurements/fused_conv_cpu.md). A block is as long as a vector. With vectors of 8 elements FusedConv is also
    faster for windows of several taps in groups of 8 channels.

    Args:
        C: input channels of a group.
        M: output channels of a group.
        group: number of groups.
        kernel: sizes of the window.
        strides: strides of the window.
        sizes: sizes of the result's spatial axes; unknown sizes count as 56.
    """
    if group == 1:
        if _conv_below_peak(C, M, kernel, strides, sizes):
            return ""
    elif max(C, M) > 1:
        block = _LANES if math.prod(kernel) > 1 else _LANES_OF_LAYOUT
        if C % block != 0 or M % block != 0:
            return ""
    ours, theirs = fused_conv_times(C, M, group, kernel, strides, sizes)
    what = f"{C * group} to {M * group} channels of {'x'.join(str(n or '?') for n in sizes)}"
    groups = "" if group == 1 else f" in {group} groups"
    return f"FusedConv takes an estimated {ours:.1f} us for {what}{groups}, ONNX Runtime's Conv {theirs:.1f} us"


def fused_conv_times(
    C: int, M: int, group: int, kernel: Sequence[int], strides: Sequence[int], sizes: Sequence[int | None]
) -> tuple[float, float]:
    """Estimates the microseconds of FusedConv and ONNX Runtime's Conv for convolutions that the latter runs at peak.

    The arguments are those of `fused_conv_no_gain`. The ratios are near those of docs/measurements/fused_conv_cpu.md,
    where planes of one channel stay in the caches.
    """
    taps, pixels = math.prod(kernel), math.prod(n or 56 for n in sizes)
    planes = max(C, M) == 1 and group > 1
    products = 2 * group * C * (M if planes else _padded(M, _LANES_OF_LAYOUT)) * taps * pixels / RATE
    of_x = 4 * group * C * pixels * math.prod(strides)
    tensors = (of_x + 4 * group * M * pixels) / (WEIGHT_RATE if planes else TENSOR_RATE)
    theirs = products + 4 * group * C * M * taps / WEIGHT_RATE + tensors
    if planes:
        return theirs / SPEED_ON_PLANES, theirs
    return theirs + products * (GEMM_OF_CONV - 1) + of_x / TENSOR_RATE, theirs


def _conv_below_peak(
    C: int, M: int, kernel: Sequence[int], strides: Sequence[int], sizes: Sequence[int | None]
) -> bool:
    """Returns whether FusedConv is faster than ONNX Runtime's Conv in one group.

    Over two axes the runtime computes whole blocks of 8 or 16 output channels; a single block of 8 has too few
    independent sums to hide the latency of FMA instructions. The runtime computes im2col and a GEMM over one or three
    axes, and over two axes if C exceeds a block and is not a multiple of 4. FusedConv packs X. If the window has few
    elements per step of the stride, packing costs more than FusedConv gains (docs/measurements/conv_peak_cpu.md).
    """
    taps, stride, pixels = math.prod(kernel), math.prod(strides), math.prod(n or 56 for n in sizes)
    if len(kernel) == 1:
        large = C * taps >= FEWEST_TERMS_OF_SIGNAL and C * M * taps * pixels >= FEWEST_MULTIPLY_ADDS_OF_SIGNAL
        return M <= FEW_OUTPUTS_OF_GEMM and taps >= FEWEST_TAPS_OF_SIGNAL * stride and large
    unblocked = len(kernel) == 2 and C > _LANES and C % 4 != 0
    most = FEW_OUTPUTS_OF_GEMM if unblocked else FEW_OUTPUTS
    return most >= M and taps >= FEWEST_TAPS * stride and pixels >= FEWEST_PIXELS


def _with_times(reason: str, ours: float, theirs: float) -> str:
    """Returns the reason with the estimated microseconds of our kernel and of ONNX Runtime's."""
    if ours == theirs:
        return f"{reason}; both take an estimated {ours:.1f} us"
    return f"{reason}; our kernel takes an estimated {ours:.1f} us, ONNX Runtime's {theirs:.1f} us"


def fused_conv_transpose_no_gain(
    C: int, M: int, group: int, windows: Sequence[tuple[int, int, int]], sizes: Sequence[int | None], activated: bool
) -> str:
    """Returns why FusedConvTranspose is slower than ONNX Runtime's ConvTranspose; "" if it is faster.

    The runtime's GEMM runs at peak. Its other work (col2im, activation) dominates with few channels and many elements,
    over three axes, and in groups, which it runs one after the other (docs/measurements/conv_transpose_cpu.md).

    Args:
        C: channels of X in a group.
        M: channels of Y in a group.
        group: number of groups.
        windows: kernel, stride and dilation of each spatial axis.
        sizes: sizes of X along these axes; None where unknown.
        activated: whether an activation follows, which the runtime computes separately.
    """
    known = [n for n in sizes if n is not None]
    if len(known) != len(windows):
        return "the sizes are not known, and ONNX Runtime's kernel is as fast for small sizes"
    disjoint, axes = all(kernel == stride for kernel, stride, _ in windows), len(windows)
    elements = group * M * math.prod(n * stride for n, (_, stride, _) in zip(known, windows, strict=True))
    reason = f"ONNX Runtime's kernel is as fast for {C} to {M} channels and {elements} elements"
    if not all(stride > 1 and kernel % stride == 0 and dilation == 1 for kernel, stride, dilation in windows):
        gains = False
        reason = "ONNX Runtime's kernel is as fast unless all strides exceed 1 and divide the window, without dilation"
    elif axes == 2 and group > 1:
        gains = not disjoint and C <= 8 and elements >= FEWEST_TRANSPOSED
    elif axes == 3:
        gains = group == 1 and C <= 32 and elements >= 2 * FEWEST_TRANSPOSED
    elif axes == 2 and disjoint:
        large = all(kernel >= 4 for kernel, _, _ in windows)
        gains = (large or activated) and 24 <= C <= 64 and M >= 16 and elements >= 20 * FEWEST_TRANSPOSED
    else:
        gains = axes == 2 and C <= 16 and M >= 8 and elements >= FEWEST_TRANSPOSED
    if gains:
        return ""
    time = _conv_transpose_time(C, M, group, math.prod(kernel for kernel, _, _ in windows), known, elements, activated)
    return _with_times(reason, time, time)


def _conv_transpose_time(
    C: int, M: int, group: int, taps: int, sizes: Sequence[int], elements: int, activated: bool
) -> float:
    """Estimates the microseconds of ONNX Runtime's ConvTranspose: GEMM, columns, weights, tensors, activation.

    Args:
        C: channels of X in a group.
        M: channels of Y in a group.
        group: number of groups.
        taps: elements of the window.
        sizes: sizes of X along the spatial axes.
        elements: elements of Y.
        activated: whether an activation follows, which reads and writes Y.
    """
    pixels = math.prod(sizes)
    moved = 2 * group * M * taps * pixels + group * C * pixels + (3 if activated else 1) * elements
    return 2 * group * C * M * taps * pixels / RATE + 4 * group * C * M * taps / WEIGHT_RATE + 4 * moved / TENSOR_RATE


def linear_is_faster(K: int, N: int, rows: int | None) -> bool:
    """Returns whether Linear in float32 is faster than ONNX Runtime's GEMM.

    For other measured weights both take the same time (docs/measurements/linear_cpu.md).

    Args:
        K: rows of the weight.
        N: columns of the weight.
        rows: rows of X. If None, Linear must be faster for any number of rows.
    """
    deep = K >= LINEAR_DEPTH and N >= LINEAR_COLUMNS
    if deep or (N >= WIDE_LINEAR_COLUMNS and K >= WIDE_LINEAR_DEPTH):
        return True
    large = rows is not None and rows >= STRASSEN_ROWS and min(K, N) >= STRASSEN_SIDE
    return large and K % STRASSEN_DEPTH_OF == 0 and N % STRASSEN_COLUMNS_OF == 0


def linear_time(K: int, N: int, rows: int) -> float:
    """Estimates the microseconds of ONNX Runtime's GEMM, and of Linear where it is not faster."""
    return 2 * rows * K * N / RATE + 4 * K * N / WEIGHT_RATE


def quantized_linear_no_gain(rows: int | None, K: int, N: int) -> str:
    """Returns why QuantizedLinear is slower than ONNX Runtime's nodes with VNNI; "" if it is faster.

    Args:
        rows: rows of X; None if unknown.
        K: rows of the weight.
        N: columns of the weight.
    """
    if rows is None:
        return "the number of rows is not known, and ONNX Runtime's kernels are at least as fast for many"
    if rows <= FEW_QUANTIZED_ROWS:
        return ""
    time = 2 * rows * K * N / INT8_RATE + K * N / WEIGHT_RATE + 4 * rows * (K + N) / TENSOR_RATE
    return _with_times(f"ONNX Runtime's kernels are at least as fast for {rows} rows of {K} to {N} columns", time, time)


def quantized_linear_no_gain_without_vnni(
    rows: int | None, K: int, N: int, large_words: Callable[[], float], *, only_reader: bool
) -> str:
    """Returns why QuantizedLinear is slower without VNNI than ONNX Runtime's kernels; "" if it is faster.

    Args:
        rows: rows of X; None if unknown.
        K: rows of the weight.
        N: columns of the weight.
        large_words: returns the share of the weight that QuantizedLinear multiplies in 16 bits.
        only_reader: whether only this layer reads the quantized X. ONNX Runtime then has one kernel for the layer.
    """
    if rows is None:
        return "the number of rows is not known, and ONNX Runtime's kernel is faster for few"
    time = 2 * rows * K * N / INT8_RATE_WITHOUT_VNNI + K * N / WEIGHT_RATE + CALL
    what = f"ONNX Runtime's kernel is faster without VNNI for {rows} rows of {K} to {N} columns"
    share = large_words()
    if share > MOST_LARGE_WORDS:
        ours = time * min(1 + LARGE_WORD_COST * share, 1 / SPEED_IN_16_BITS)
        return _with_times(f"{what}, because sums with {share:.1%} of the weights exceed 16 bits", ours, time)
    if only_reader and rows < FEWEST_ROWS_WITHOUT_VNNI:
        return _with_times(what, time + QUANTIZED_CALL, time)
    return ""


def dynamic_quantized_conv_no_gain(
    C: int, M: int, group: int, kernel: Sequence[int], strides: Sequence[int], pixels: Sequence[int | None]
) -> str:
    """Returns why DynamicQuantizedConv is not faster than ONNX Runtime's nodes; "" if it is.

    The limits are from docs/passes/dynamic_quantized_conv.md. Both kernels multiply 16-bit integers. The runtime copies
    windows, and quantizes and scales in separate nodes, which takes a large part of the time for few multiply-adds. Our
    kernel packs X slowly for strides above 1.

    Args:
        C: input channels of a group.
        M: output channels.
        group: the number of groups.
        kernel: the window.
        strides: strides along the axes of the window.
        pixels: sizes of the result's spatial axes; unknown sizes count as 56.
    """
    count = math.prod(n or 56 for n in pixels)
    steps = C * math.prod(kernel)
    few_steps = len(kernel) > 1 and steps <= FEW_DYNAMIC_STEPS and M >= C
    if all(stride == 1 for stride in strides) and (group > 1 or count <= FEW_DYNAMIC_PIXELS or few_steps):
        return ""
    time = steps * M * count / RATE + 4 * (C * group + M) * count / TENSOR_RATE  # two integers replace a float
    return _with_times(
        f"ONNX Runtime's kernel is as fast for {C} to {M} channels, a window of {list(kernel)} and strides of "
        f"{list(strides)}",
        time,
        time,
    )


def stft_no_gain(length: int, frames: int | None) -> str:
    """Returns why a Conv is slower than ONNX Runtime's STFT; "" if it is faster.

    Args:
        length: samples of a frame.
        frames: number of frames; None if unknown.
    """
    if length & (length - 1):
        return "" if length <= LONGEST_FRAME else f"frames of {length} samples are too long for a convolution"
    if length > LONGEST_FRAME_OF_TWO:
        return f"ONNX Runtime's fast Fourier transform is faster for frames of {length} samples"
    few = frames is not None and frames < FEWEST_FRAMES
    return f"{frames} frames are too few" if few else ""


def quantized_conv_no_gain(C: int, M: int, group: int, taps: int, pixels: Sequence[int | None]) -> str:
    """Returns why QuantizedConv is not faster than ONNX Runtime's QLinearConv; "" if it is.

    The limits are from docs/measurements/cpu_models.md. Smaller depthwise windows gain with VNNI only.

    Args:
        C: input channels of a group.
        M: output channels.
        group: the number of groups.
        taps: elements of the window.
        pixels: sizes of the result's spatial axes; unknown sizes count as 56.
    """
    gains = taps >= QUANTIZED_DEPTHWISE_TAPS if group > 1 else taps > 1 and C <= FEW_QUANTIZED_CHANNELS
    if gains:
        return ""
    count = math.prod(n or 56 for n in pixels)
    time = 2 * C * M * taps * count / INT8_RATE + C * M * taps / WEIGHT_RATE + (C * group + M) * count / TENSOR_RATE
    return _with_times(f"ONNX Runtime's kernel is as fast for {C} to {M} channels and a window of {taps}", time, time)


def _bfloat16_times(count: int, cost: int) -> tuple[float, float]:
    """Estimates the microseconds of a node in bfloat16 and in float32, which multiplies at half the rate.

    Args:
        count: the multiply-adds.
        cost: the multiply-adds for which bfloat16 saves as much time as rounding and packing take.
    """
    return CALL + (count + cost) / RATE, CALL + 2 * count / RATE


def bfloat16_no_gain(C: int, M: int, taps: int, pixels: Sequence[int | None], winograd: bool) -> str:
    """Returns why a convolution is not faster in bfloat16; "" if it is (docs/measurements/bfloat16_cpu.md).

    Args:
        C: input channels of a group.
        M: output channels.
        taps: elements of the window.
        pixels: sizes of the result's spatial axes; unknown sizes count as 56.
        winograd: whether the convolution is a WinogradConv, not a Conv or FusedConv.
    """
    count = C * M * taps * math.prod(n or 56 for n in pixels)
    if count < FEWEST_MULTIPLY_ADDS:
        reason = f"{count} multiply-adds are too few: the call costs more than bfloat16 saves"
        return _with_times(reason, *_bfloat16_times(count, FEWEST_MULTIPLY_ADDS))
    if not winograd or len(pixels) != 2:
        return ""
    OH, OW = (n or 56 for n in pixels)
    products = 9 * _padded(C) * _padded(M) * OH * OW / RATE + 18 * C * M / WEIGHT_RATE
    time = OVERHEAD * (products + 6 * (C + M) * OH * OW / TENSOR_RATE)
    theirs = winograd_time(C, M, OH, OW)
    if time < theirs:
        return ""
    times = f"an estimated {time:.1f} us without it in bfloat16, and {theirs:.1f} us in float32"
    return f"Winograd's algorithm is faster for {C} to {M} channels: {times}"


def bfloat16_linear_no_gain(rows: int | None, weight: int) -> str:
    """Returns why a layer is not faster in bfloat16; "" if it is (docs/measurements/bfloat16_cpu.md).

    Args:
        rows: rows of X; an unknown number counts as 56.
        weight: elements of the weight.
    """
    if weight >= SMALLEST_WEIGHT:
        return ""
    rows = rows or 56
    reason = f"a weight of {weight} elements is too small: the call costs more than bfloat16 saves"
    return _with_times(reason, *_bfloat16_times(rows * weight, rows * SMALLEST_WEIGHT))


def bfloat16_attention_no_gain(queries: int | None, keys: int | None) -> str:
    """Returns why attention is not faster in bfloat16; "" if it is.

    Args:
        queries: rows of Q; None if unknown.
        keys: elements of K; an unknown number counts as 56 rows of 64.
    """
    if queries is None or queries >= FEWEST_QUERIES:
        return ""
    # Each query multiplies all elements of K and of V.
    multiply_adds = 2 * (keys or 56 * 64)
    reason = f"rounding the keys and values costs more than {queries} queries save"
    return _with_times(reason, *_bfloat16_times(queries * multiply_adds, FEWEST_QUERIES * multiply_adds))


def bfloat16_matmul_no_gain(A: Sequence[int | None], B: Sequence[int | None]) -> str:
    """Returns why a MatMul of two activations is not faster in bfloat16, which packs both; "" if it is.

    The limits are from docs/measurements/bfloat16_xeon.md. Unknown sizes count as 56.

    Args:
        A: shape of the first operand, [.., M, K].
        B: shape of the second operand, [.., K, N].
    """
    M, K, N = A[-2] or 56, A[-1] or 56, B[-1] or 56
    batches = itertools.zip_longest(reversed(A[:-2]), reversed(B[:-2]), fillvalue=1)
    matrices = math.prod(max(m or 56, n or 56) for m, n in batches)
    if all(n == 1 for n in B[:-2]):
        M, matrices = M * matrices, 1  # one B for all rows
    matrix = M * K * N
    if matrix < SMALLEST_MATMUL or matrix * matrices < FEWEST_MULTIPLY_ADDS:
        cost = max(SMALLEST_MATMUL * matrices, FEWEST_MULTIPLY_ADDS)
        reason = f"{matrix * matrices} multiply-adds, {matrix} per matrix, are too few: the call costs more"
    elif K < FEWEST_TERMS:
        cost = matrices * M * N * FEWEST_TERMS
        reason = f"each sum has only {K} terms: writing the result costs more"
    elif M * N < LEAST_REUSE * (M + N):
        cost = matrices * K * LEAST_REUSE * (M + N)
        reason = f"the result has {M} rows and {N} columns: rounding the operands costs more"
    else:
        return ""
    return _with_times(f"{reason} than bfloat16 saves", *_bfloat16_times(matrix * matrices, cost))


def bfloat16_depthwise_no_gain(
    kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], sizes: Sequence[int | None]
) -> str:
    """Returns why a depthwise convolution is slower in the NCHW2c bf16 layout than in ONNX Runtime's NCHWc layout.

    Args:
        kernel: sizes of the window.
        strides: strides of the window.
        dilations: dilations of the window.
        sizes: channels, height and width of the result; a result with an unknown size counts as large.

    Returns:
        The reason, or "" if it is not slower.
    """
    square = tuple(kernel) in ((3, 3), (5, 5)) and tuple(strides) in ((1, 1), (2, 2))
    _, theirs = fused_conv_times(1, 1, sizes[0] or 56, kernel, strides, sizes[1:])
    if not square or any(d != 1 for d in dilations):
        reason = "ONNX Runtime's kernel is faster: graphopt has fast filters for 3x3 and 5x5 windows without dilation"
        return _with_times(reason, theirs / SPEED_OF_OTHER_BFLOAT16_WINDOWS, theirs)
    if None not in sizes and (elements := math.prod(n or 0 for n in sizes)) < FEWEST_DEPTHWISE:
        # The arithmetic takes half the time. The conversions take the time that it saves at the limit.
        ours = theirs / 2 * (1 + FEWEST_DEPTHWISE / max(elements, 1))
        reason = f"{elements} elements are too few: the call costs more than bfloat16 saves"
        return _with_times(reason, CALL + ours, CALL + theirs)
    return ""


def inverted_residual_no_gain(
    channels: tuple[int, int, int],
    kernel: Sequence[int],
    strides: Sequence[int],
    sizes: Sequence[int | None],
    activation: str,
) -> str:
    """Returns why InvertedResidual is slower than ONNX Runtime's three convolutions; "" if it is not.

    Args:
        channels: channels of X, between the convolutions, and of the result.
        kernel: window of the depthwise convolution.
        strides: its strides.
        sizes: height and width of X; unknown sizes count as 56.
        activation: the activation between the convolutions.
    """
    C, M, _ = channels
    elements, speed = M * math.prod(n or 56 for n in sizes), 1.0
    if tuple(kernel) == (3, 3) and activation == "Relu":
        reason = "ONNX Runtime's kernels are as fast: they fuse Relu"
    elif tuple(kernel) not in ((3, 3), (5, 5)):
        reason = "ONNX Runtime's kernels are faster: graphopt has fast filters for 3x3 and 5x5 windows"
        speed = SPEED_OF_OTHER_WINDOWS
    elif M < 4 * C:
        reason = f"there are {M} channels between the convolutions and {C} before them, too few to gain"
    elif elements < FEWEST_HIDDEN:
        reason = f"the {elements} elements between the convolutions fit the caches"
    else:
        return ""
    theirs = _inverted_residual_time(channels, kernel, strides, sizes)
    return _with_times(reason, theirs / speed, theirs)


def _inverted_residual_time(
    channels: tuple[int, int, int], kernel: Sequence[int], strides: Sequence[int], sizes: Sequence[int | None]
) -> float:
    """Estimates the microseconds of the three convolutions of `inverted_residual_no_gain` in ONNX Runtime."""
    C, M, outputs = channels
    before = [n or 56 for n in sizes]
    after = [-(-n // stride) for n, stride in zip(before, strides)]
    point = (1,) * len(kernel)
    convolutions = (
        (C, M, 1, point, point, before),
        (1, 1, M, tuple(kernel), tuple(strides), after),
        (M, outputs, 1, point, point, after),
    )
    return sum(fused_conv_times(*convolution)[1] for convolution in convolutions)
