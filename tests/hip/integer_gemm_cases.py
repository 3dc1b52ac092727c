"""GEMMs and convolutions of 8-bit integers: packed operands, operands of the epilogue, and products."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_float, c_int, c_int32
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tests.hip import tiles
from tests.hip.activations import apply, parameters
from tests.hip.case import Case
from tests.hip.channels_last_cases import DEPTHWISE, square_depthwise
from tests.hip.convolution_cases import convolve
from tests.hip.harness import Array, Harness, Plan, element_type, int64s
from tests.hip.integer_matmul_cases import PAIRS, random, wide, zero_points

INT32, FLOAT = np.dtype(np.int32), np.dtype(np.float32)
OUTPUTS: tuple[Any, ...] = (np.int32, np.float32, np.int8, np.uint8)
COLUMN_PACK = 8  # kIntegerPack
ROUNDED, EXACT = 1, 2  # IntegerResidual


def packed(x: Array) -> Array:
    """Returns signed rows with zeros up to a multiple of 16 elements; unsigned elements become x - 128."""
    signed = (x.astype(np.int16) - (128 if x.dtype == np.uint8 else 0)).astype(np.int8)
    return np.ascontiguousarray(np.pad(signed, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % 16)]))


@dataclass(frozen=True)
class Numbers:
    """The zero points, scales and bias of a product of A and B; the zero points of B are those of its columns."""

    left: Any
    right: Any
    output: Any
    left_zero: Array
    right_zero: Array
    left_scale: Array
    right_scale: Array
    y_scale: Array
    y_zero: Array
    bias: Array
    kinds: tuple[int, int]
    alpha: float = 1
    act: str = ""
    table: Array | None = None
    # Kind of the residual, factors of the result and the residual, shift, least sum.
    added: tuple[int, float, float, float, float] = (0, 0, 0, 0, 0)

    @property
    def scaled(self) -> bool:
        return bool(np.dtype(self.output) != INT32)

    @property
    def requantized(self) -> bool:
        return bool(np.dtype(self.output).itemsize == 1)

    @classmethod
    def draw(
        cls, rng: np.random.Generator, left: Any, right: Any, output: Any, N: int, K: int, i: int, act: str = ""
    ) -> Numbers:
        kinds = (i % 2, i % 3)
        if np.dtype(output) == FLOAT:
            bias = rng.standard_normal(N if i % 2 else 1).astype(np.float32)
        else:
            bias = rng.integers(-9999, 9999, N if i % 2 else 1).astype(np.int32)
        left_scale, right_scale, y_scale = (
            ((1 + rng.random(size)) * factor).astype(np.float32)
            for size, factor in ((1, 0.02), (N if i % 4 < 2 else 1, 0.01), (1, 0.02 * (K + 1) ** 0.5))
        )
        return cls(
            left, right, output,
            left_zero=zero_points(rng, left, kinds[0], 1),
            right_zero=zero_points(rng, right, kinds[1], N),
            left_scale=left_scale, right_scale=right_scale, y_scale=y_scale,
            y_zero=random(rng, output, 1) if np.dtype(output).itemsize == 1 else np.zeros(1, np.int8),
            bias=bias, kinds=kinds, alpha=1 if i % 5 else 0.5, act=act,
        )  # fmt: skip

    def inputs(self, sums: Array) -> list[Array]:
        """Returns the inputs of integer_columns."""
        scales = [self.left_scale, self.right_scale, self.y_scale]
        return [sums, self.bias, self.left_zero, self.right_zero, *scales, self.y_zero]

    def plan_numbers(self, matrices: int, N: int, K: int) -> list[int]:
        act, _, _ = parameters(self.act)
        types = (element_type(dtype).value for dtype in (self.left, self.right, self.output))
        flags = (self.scaled, self.right_scale.size > 1, True, self.bias.size > 1, self.requantized)
        return [matrices, N, K, *types, *self.kinds, *flags, act]

    def floats(self) -> Any:
        _, a, b = parameters(self.act)
        return (c_float * 9)(self.alpha, a, b, self.table is not None, *self.added)

    def scale(self) -> Array:
        """Returns the factor of the sums of each column, in the arithmetic of ONNX Runtime."""
        scale = np.float32(self.alpha) * self.left_scale * self.right_scale
        return np.asarray(scale / self.y_scale if self.requantized and self.act in ("", "Relu") else scale)

    def columns(self, sums: Array, K: int) -> Array:
        """Returns the operands of the epilogue: [matrices, 5, padded N] after a header of 8 words."""
        matrices, N = sums.shape
        signed = [
            wide(zero) - (128 if dtype == np.uint8 else 0)
            for zero, dtype in ((self.left_zero, self.left), (self.right_zero, self.right))
        ]
        words = np.zeros((matrices, 5, -(-N // COLUMN_PACK) * COLUMN_PACK), np.int32)
        words[:, 0, :N] = (self.scale() if self.scaled else np.ones(1, np.float32) * np.float32(self.alpha)).view(
            np.int32
        )
        is_float = np.dtype(self.output) == FLOAT
        if is_float:
            words[:, 1, :N] = self.bias.view(np.int32)
        words[:, 3, :N] = signed[1]
        for array, zero in ((2, signed[0]), (4, wide(self.left_zero))):
            offset = zero * (K * signed[1] - sums) + (0 if is_float else self.bias)
            words[:, array, :N] = offset.astype(np.int32)
        header = np.zeros(8, np.int32)
        header[:4] = np.full(16, self.left_zero[0]).view(np.int32)
        header[4:6] = np.array([self.y_scale[0] if self.requantized else 1, self.y_zero[0]], np.float32).view(np.int32)
        return np.concatenate((header, words.ravel()))

    def result(self, sums: Array, residual: Array | None = None) -> Array:
        """Returns the output for exact sums [.., N] and a residual of the same shape."""
        if np.dtype(self.output) == FLOAT:
            return np.asarray(sums * self.scale().astype(np.float64) + self.bias)
        sums = (sums + self.bias).astype(np.int32)
        if not self.scaled:
            return sums
        reals = (sums.astype(np.float32) * self.scale()).astype(np.float64)
        if self.act:
            reals = apply(self.act, reals) / (1 if self.act == "Relu" else self.y_scale)
        ends = np.iinfo(self.output)
        kind, left, right, shift, least = self.added
        if kind != EXACT:
            reals = np.clip(np.rint(reals) + self.y_zero, ends.min, ends.max)
            if self.table is not None:
                reals = wide(self.table[reals.astype(self.output).view(np.uint8)])
        if kind:
            assert residual is not None
            total = (reals * left + (wide(residual) * right + shift)).astype(np.float32)
            reals = np.clip(np.maximum(np.rint(total), least), ends.min, ends.max)
        return np.asarray(reals)


# Matrices, lines, K.
LINES = ((1, 1, 1), (1, 5, 16), (2, 64, 64), (3, 70, 33), (1, 3, 100), (1, 130, 16), (2, 7, 128), (1, 65, 200))


def lines(name: str, i: int, across: bool, dtype: Any) -> Case:
    matrices, count, K = LINES[i]
    x = random(np.random.default_rng([i, across]), dtype, matrices, count, K)
    taps = 1 if across or K % 4 else 4
    rows = packed(x.reshape(matrices, count, taps, K // taps)).reshape(matrices, count, -1)
    given = x.swapaxes(1, 2) if across else x.reshape(matrices, count, taps, -1).swapaxes(2, 3)
    numbers = int64s([matrices, count, K // taps, taps, across, dtype == np.int8])

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("integer_lines", facts, numbers)

    expected = [rows, wide(rows).sum(-1)]
    return Case(
        name, "MatMulInteger", [np.ascontiguousarray(given)], expected, plan, 0, output_dtype=(np.int8, np.int32)
    )


def columns(name: str, i: int, output: Any) -> Case:
    rng = np.random.default_rng([i, 5])
    matrices, N, K = LINES[i]
    left, right = PAIRS[i % len(PAIRS)]
    numbers = Numbers.draw(rng, left, right, output, N, K, i, "Silu" if i % 4 == 3 else "")
    sums = rng.integers(-9999, 9999, (matrices, N)).astype(np.int32)

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("integer_columns", facts, int64s(numbers.plan_numbers(*LINES[i])), numbers.floats())

    expected = numbers.columns(sums, K)
    return Case(name, "QLinearMatMul", numbers.inputs(sums), [expected], plan, 0, output_dtype=np.int32)


# M, N, K, batches of both operands.
PRODUCTS: tuple[tuple[int, int, int, tuple[int, ...], tuple[int, ...]], ...] = (
    (1, 1, 1, (), ()), (33, 40, 64, (), ()), (65, 70, 33, (), ()), (4, 130, 16, (2,), (1,)),
    (64, 64, 256, (2, 1), (1, 3)), (7, 3, 100, (5,), (5,)), (130, 24, 144, (), ()), (17, 12, 2080, (), (2,)),
)  # fmt: skip


def product(name: str, i: int, sizes: tuple[Any, ...], output: Any, tile: int = -1) -> Case:
    M, N, K, a_batch, b_batch = sizes
    rng = np.random.default_rng([M, N, K, i])
    left, right = PAIRS[(i + OUTPUTS.index(output)) % len(PAIRS)]
    a, b = random(rng, left, *a_batch, M, K), random(rng, right, *b_batch, N, K)
    numbers = Numbers.draw(rng, left, right, output, N, K, i, "Relu" if i % 4 == 2 else "")
    exact = np.matmul(wide(a) - wide(numbers.left_zero), (wide(b) - wide(numbers.right_zero)[:, None]).swapaxes(-1, -2))
    right_rows = packed(b).reshape(-1, N, -(-K // 16) * 16)
    operands = numbers.columns(wide(right_rows).sum(-1), K)
    has_row_sums = numbers.kinds[1] > 0 or right == np.uint8
    row_sums = wide(packed(a)).sum(-1).astype(np.int32)
    raw = K % 16 == 0
    dims = [M, N, K, len(a_batch), *a_batch, len(b_batch), *b_batch]

    def plan(harness: Harness, facts: int) -> Plan:
        given = int64s(numbers.plan_numbers(len(right_rows), N, K))
        unsigned = raw and left == np.uint8
        flags = (c_int(has_row_sums), c_int(unsigned), c_int32(tile))
        return harness.plan("integer_gemm", facts, int64s(dims), given, numbers.floats(), *flags)

    inputs = [a if raw else packed(a), right_rows, operands, row_sums]
    tolerance = 1e-6 if output == np.float32 else 0
    return Case(name, "QLinearMatMul", inputs, [numbers.result(exact)], plan, tolerance, output_dtype=output)


# N, channels, filters, size of X, size of Y, kernel, strides, dilations, leading pads.
CONVOLUTIONS: tuple[tuple[Any, ...], ...] = (
    (1, 16, 5, (1, 1), (1, 1), (1, 1), (1, 1), (1, 1), (0, 0)),
    (2, 16, 32, (5, 7), (5, 7), (3, 3), (1, 1), (1, 1), (1, 1)),
    (1, 32, 70, (9, 8), (5, 3), (3, 2), (2, 3), (1, 1), (1, 0)),
    (3, 48, 24, (6, 5), (6, 5), (1, 1), (1, 1), (1, 1), (0, 0)),
    (1, 16, 40, (12, 33), (6, 17), (7, 7), (2, 2), (1, 1), (3, 3)),
    (1, 80, 9, (4, 20), (4, 20), (1, 5), (1, 1), (1, 2), (0, 4)),
    (2, 160, 12, (3, 3), (3, 3), (3, 3), (1, 1), (1, 1), (1, 1)),
    (1, 16, 130, (10, 9), (8, 7), (3, 3), (1, 1), (1, 1), (0, 0)),
)  # fmt: skip


# The same with groups that need no merging, and their number.
GROUPED: tuple[tuple[tuple[Any, ...], int], ...] = (
    ((2, 96, 120, (5, 7), (5, 7), (3, 3), (1, 1), (1, 1), (1, 1)), 3),
    ((1, 64, 128, (9, 8), (5, 4), (1, 1), (2, 2), (1, 1), (0, 0)), 4),
    ((1, 32, 96, (4, 20), (4, 20), (1, 5), (1, 1), (1, 2), (0, 4)), 2),
)


def conv(name: str, i: int, sizes: tuple[Any, ...], output: Any, tile: int = -1, groups: int = 1) -> Case:
    """Makes a convolution in channels last. With None as number of filters, each channel has one filter.

    `tile`: -1 the planned one, -2 integer_conv_direct.
    """
    N, C, filters, size, out, kernel, strides, dilations, pads = sizes
    groups, M, of_filter = (groups, filters, C // groups) if filters else (C, C, 1)
    rng = np.random.default_rng([i, C, M])
    left = PAIRS[(i + OUTPUTS.index(output)) % len(PAIRS)][0]
    x, w = random(rng, left, N, C, *size), random(rng, np.int8, M, of_filter, *kernel)
    K = w[0].size
    # Zero points of the filters are 0: kinds[1] is 0 for a multiple of 3.
    numbers = Numbers.draw(rng, left, np.int8, output, M, K, 3 * i + 3, "HardSwish" if i % 4 == 2 else "")
    exact = convolve(wide(x) - wide(numbers.left_zero), wide(w), groups, strides, dilations, pads, out)
    residual = np.zeros((N, *out, M), np.int8)
    if numbers.requantized:
        # Sums of multiples of 1/8 are exact, so that they round equally in float and in double.
        kind = i % 3 if filters is None else (i + OUTPUTS.index(output)) % 3
        added = (kind, 1 if kind == EXACT else 0.625, 0.875, -3.125, float(numbers.y_zero[0]) if i % 2 else -np.inf)
        table = None if kind == EXACT or i % 2 else random(rng, output, 256)
        numbers = replace(numbers, added=added, table=table, act="" if kind == EXACT else numbers.act)
        residual = random(rng, output, *residual.shape)
    expected = numbers.result(np.moveaxis(exact, 1, -1).astype(np.int64), residual)
    taps = w.reshape(M, of_filter, -1).swapaxes(1, 2)
    rows = packed(taps[..., 0].T if filters is None else taps)
    operands = numbers.columns(wide(w).reshape(1, M, -1).sum(-1), K)
    axes = [(1, 1, 1, 1, 1, 0), *zip(size, out, kernel, strides, dilations, pads, strict=True)]
    given = int64s([N, groups, of_filter, M // groups, *(v for axis in axes for v in axis)])

    def plan(harness: Harness, facts: int) -> Plan:
        of_columns = int64s(numbers.plan_numbers(1, M, K))
        return harness.plan("integer_conv", facts, given, of_columns, numbers.floats(), c_int32(tile))

    table = numbers.table if numbers.table is not None else np.zeros(256, np.int8)
    inputs = [np.ascontiguousarray(np.moveaxis(x, 1, -1)), rows, operands, residual, table]
    tolerance = 1e-6 if output == np.float32 else 0
    return Case(name, "QLinearConv", inputs, [expected], plan, tolerance, output_dtype=output)


# N, channels, size of X, size of Y, kernel, strides, leading pads. A block has at most 16 elements.
BLOCKED: tuple[tuple[Any, ...], ...] = (
    (1, 3, (8, 8), (4, 4), (7, 7), (2, 2), (3, 3)),
    (2, 3, (9, 7), (5, 4), (3, 3), (2, 2), (1, 1)),
    (1, 1, (12, 16), (3, 4), (4, 4), (4, 4), (0, 0)),
    (3, 4, (5, 6), (3, 3), (2, 2), (2, 2), (0, 0)),
    (1, 1, (1, 33), (1, 3), (1, 11), (1, 11), (0, 0)),
    (2, 2, (10, 3), (4, 3), (5, 1), (3, 1), (2, 0)),
)


def blocks(name: str, i: int, dtype: Any, channels_last: bool) -> Case:
    """Makes the image whose channels are the pixels of a block; the zero point stands for pixels outside of X."""
    N, C, size, out, kernel, strides, pads = BLOCKED[i]
    rng = np.random.default_rng([i, channels_last, 7])
    x, zero = random(rng, dtype, N, C, *size), random(rng, dtype, 1)
    down, across = (-(-n // stride) for n, stride in zip(size, strides, strict=True))
    whole = np.full((N, C, down * strides[0], across * strides[1]), zero[0], dtype)
    whole[:, :, : size[0], : size[1]] = x
    pixels = whole.reshape(N, C, down, strides[0], across, strides[1]).transpose(0, 2, 4, 3, 5, 1)
    expected = np.full((N, down, across, 16), zero[0], dtype)
    expected[..., : C * strides[0] * strides[1]] = pixels.reshape(N, down, across, -1)
    header = np.zeros(8, np.int32)
    header[:4] = np.full(16, zero[0]).view(np.int32)
    axes = [(1, 1, 1, 1, 1, 0), *zip(size, out, kernel, strides, (1, 1), pads, strict=True)]
    given = int64s([N, 1, C, 8, *(v for axis in axes for v in axis)])

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("integer_blocks", facts, given, c_int32(channels_last))

    image = np.ascontiguousarray(np.moveaxis(x, 1, -1)) if channels_last else x
    return Case(name, "QLinearConv", [image, header], [wide(expected)], plan, 0, output_dtype=dtype)


def convolutions() -> Iterator[Case]:
    for i, sizes in enumerate(CONVOLUTIONS):
        for output in OUTPUTS:
            yield conv(f"integer_conv_{np.dtype(output).name}-{i}", i, sizes, output)
        yield conv(f"integer_conv_direct-{i}", i, sizes, OUTPUTS[(i + 1) % len(OUTPUTS)], -2)
        fewer = (sizes[0], sizes[1] - 8, *sizes[2:])
        yield conv(f"integer_conv_direct_padded-{i}", i, fewer, OUTPUTS[i % len(OUTPUTS)], -2)
    for i, (sizes, groups) in enumerate(GROUPED):
        for output in OUTPUTS:
            yield conv(f"integer_conv_grouped_{np.dtype(output).name}-{i}", i, sizes, output, -1, groups)
            yield conv(f"integer_conv_direct_grouped_{np.dtype(output).name}-{i}", i, sizes, output, -2, groups)
    for i, (N, C, H, W, kernel, strides, dilations, pads, out, *_) in enumerate(DEPTHWISE):
        sizes = (N, C, None, (H, W), out, kernel, strides, dilations, pads)
        yield conv(f"integer_depthwise-{i}", i, sizes, OUTPUTS[i % len(OUTPUTS)])
    for side, stride in ((3, 1), (3, 2), (5, 1), (5, 2)):
        for i, (N, C, H, W, kernel, strides, dilations, pads, out, *_) in enumerate(square_depthwise(side, stride)):
            sizes = (N, C, None, (H, W), out, kernel, strides, dilations, pads)
            name = f"integer_depthwise_{side}x{side}" + ("_stride_2" if stride == 2 else "")
            yield conv(f"{name}-{i}", i, sizes, OUTPUTS[i % len(OUTPUTS)])


def tiled(tile: tiles.Tile) -> Iterator[Case]:
    """Makes the products and convolutions of a tile."""
    for i, sizes in enumerate(PRODUCTS):
        yield product(f"integer_gemm_{tile.size}_i8-{i}", i, sizes, OUTPUTS[i % len(OUTPUTS)], tile.number)
    for i, sizes in enumerate(CONVOLUTIONS):
        yield conv(f"integer_conv_{tile.size}_i8-{i}", i, sizes, OUTPUTS[i % len(OUTPUTS)], tile.number)
    for i, (sizes, groups) in enumerate(GROUPED):
        yield conv(f"integer_conv_{tile.size}_grouped-{i}", i, sizes, OUTPUTS[2 + i % 2], tile.number, groups)
    # Whole packs of bytes, which are stored from registers: without a residual and with one.
    for output in OUTPUTS[2:]:
        for i in (1, 3):
            name = f"integer_conv_{tile.size}_{np.dtype(output).name}-{i}"
            yield conv(name, i, CONVOLUTIONS[i], output, tile.number)


# Problems of warpgroups. The number of a product selects its types, its zero points and Relu; see product.
WARPGROUP_PRODUCTS: tuple[tuple[int, tuple[Any, ...]], ...] = (
    (0, (1, 16, 16, (), ())),
    (3, (129, 80, 144, (), ())),
    (6, (300, 64, 256, (), ())),
    (12, (70, 32, 336, (), ())),
    (15, (64, 160, 48, (), ())),
    (27, (40, 48, 33, (), ())),
)
WARPGROUP_CONVOLUTIONS: tuple[tuple[Any, ...], ...] = (
    (2, 16, 32, (5, 7), (5, 7), (3, 3), (1, 1), (1, 1), (1, 1)),
    (3, 64, 144, (6, 9), (6, 9), (1, 1), (1, 1), (1, 1), (0, 0)),
    (1, 48, 80, (9, 8), (5, 3), (3, 2), (2, 3), (1, 1), (1, 0)),
    (1, 160, 64, (20, 13), (20, 13), (1, 1), (1, 1), (1, 1), (0, 0)),
    (3, 32, 16, (7, 7), (7, 7), (3, 3), (1, 1), (2, 2), (2, 2)),
    (7, 16, 48, (6, 6), (3, 3), (1, 1), (2, 2), (1, 1), (0, 0)),
)


def warpgroups(tile: tiles.Tile) -> Iterator[Case]:
    """Yields the products and convolutions that warpgroups support."""
    for output in OUTPUTS[2:]:
        kind = np.dtype(output).name
        for i, sizes in WARPGROUP_PRODUCTS:
            if PAIRS[(i + OUTPUTS.index(output)) % len(PAIRS)][1] == np.int8:
                yield product(f"integer_warpgroups_gemm_{tile.size}_{kind}-{i}", i, sizes, output, tile.number)
        # Odd numbers: without a table.
        for i in (1, 3, 5):
            if (i + OUTPUTS.index(output)) % 3 == EXACT:
                continue
            for at, sizes in enumerate(WARPGROUP_CONVOLUTIONS):
                name = f"integer_warpgroups_conv_{tile.size}_{kind}_{i}-{at}"
                yield conv(name, i, sizes, output, tile.number)


def cases() -> Iterator[Case]:
    yield from convolutions()
    for i in range(len(BLOCKED)):
        for dtype in (np.int8, np.uint8):
            for channels_last in (False, True):
                yield blocks(f"integer_blocks_{np.dtype(dtype).name}_{channels_last}-{i}", i, dtype, channels_last)
    for i in range(len(LINES)):
        for dtype in (np.int8, np.uint8):
            for across in (False, True):
                yield lines(f"integer_lines_{np.dtype(dtype).name}_{across}-{i}", i, across, dtype)
        for output in OUTPUTS:
            yield columns(f"integer_columns_{np.dtype(output).name}-{i}", i, output)
    for i, sizes in enumerate(PRODUCTS):
        for output in OUTPUTS:
            yield product(f"integer_gemm_{np.dtype(output).name}-{i}", i, sizes, output)
    for tile in tiles.INT8:
        yield from tiled(tile)
    yield from warpgroups(tiles.INTEGER_WARPGROUP[-1])
