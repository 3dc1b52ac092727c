"""Convolutions and transposed convolutions with one to three axes on the GPU: the kernels in channels first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ctypes import c_int
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.hip.case import FLOATS, Case, signed, tolerance_of
from tests.hip.harness import Array, Harness, Plan, int64s


def at_end(index: Sequence[Any]) -> Any:
    """Returns the index of the last axes."""
    return (..., *index)


def convolve(
    x: Array, w: Array, groups: int, strides: Sequence[int], dilations: Sequence[int], pads: Sequence[int], out: Any
) -> Array:
    """Computes Conv in float64 by definition; `pads` are leading, `out` the spatial axes of Y."""
    N, axes = x.shape[0], range(2, x.ndim)
    M, C, *kernel = w.shape
    spans = [(out[i - 2] - 1) * strides[i - 2] + (kernel[i - 2] - 1) * dilations[i - 2] + 1 for i in axes]
    after = [max(spans[i - 2] - pads[i - 2] - x.shape[i], 0) for i in axes]
    padded = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *zip(pads, after, strict=True)])
    y = np.zeros((N, groups, M // groups, *out))
    taps = w.astype(np.float64).reshape(groups, M // groups, C, *kernel)
    for tap in np.ndindex(*kernel):
        first = [t * d for t, d in zip(tap, dilations, strict=True)]
        window = [slice(None), slice(None)]
        window += [slice(f, f + (n - 1) * s + 1, s) for f, n, s in zip(first, out, strides, strict=True)]
        patch = padded[tuple(window)].reshape(N, groups, C, *out)
        y += np.einsum("ngc...,gmc->ngm...", patch, taps[at_end(tap)])
    return y.reshape(N, M, *out)


def transpose_convolve(
    x: Array, w: Array, groups: int, strides: Sequence[int], dilations: Sequence[int], pads: Sequence[int], out: Any
) -> Array:
    """Computes ConvTranspose in float64: adds every element of X, times W, to its window of Y."""
    N, channels, *size = x.shape
    _, M, *kernel = w.shape
    C = channels // groups
    whole = [
        max((i - 1) * s + (k - 1) * d + 1, p + o)
        for i, s, k, d, p, o in zip(size, strides, kernel, dilations, pads, out, strict=True)
    ]
    y = np.zeros((N, groups, M, *whole))
    wide = x.astype(np.float64).reshape(N, groups, C, *size)
    taps = w.astype(np.float64).reshape(groups, C, M, *kernel)
    for tap in np.ndindex(*kernel):
        first = [t * d for t, d in zip(tap, dilations, strict=True)]
        window = [slice(f, f + (i - 1) * s + 1, s) for f, i, s in zip(first, size, strides, strict=True)]
        y[at_end(window)] += np.einsum("ngc...,gcm->ngm...", wide, taps[at_end(tap)])
    crop = [slice(p, p + o) for p, o in zip(pads, out, strict=True)]
    cropped: Array = y[at_end(crop)]
    return cropped.reshape(N, groups * M, *out)


@dataclass(frozen=True)
class Sizes:
    """C and M are per group; `pads` are leading; `out` may extend beyond the last window."""

    N: int
    groups: int
    C: int
    M: int
    size: tuple[int, ...]
    out: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]


CONVOLUTIONS = (
    Sizes(2, 1, 3, 5, (5, 6, 7), (5, 6, 7), (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1)),
    Sizes(1, 2, 3, 9, (9, 5, 11), (4, 5, 6), (3, 1, 5), (2, 1, 2), (1, 1, 1), (0, 0, 2)),
    Sizes(2, 4, 1, 1, (7, 8, 9), (5, 6, 5), (2, 2, 3), (1, 1, 1), (2, 2, 2), (0, 0, 0)),
    Sizes(1, 1, 17, 12, (4, 33), (2, 17), (3, 3), (2, 2), (1, 1), (1, 1)),
    Sizes(1, 1, 2, 3, (40,), (13,), (4,), (3,), (1,), (1,)),
    Sizes(1, 1, 6, 2, (3, 7, 5), (3, 3, 5), (1, 3, 3), (1, 2, 1), (1, 1, 1), (0, 0, 1)),
    Sizes(2, 1, 5, 9, (3, 7, 5), (3, 7, 5), (1, 1, 1), (1, 1, 1), (1, 1, 1), (0, 0, 0)),
    Sizes(3, 1, 7, 4, (9, 8), (5, 3), (1, 1), (2, 3), (1, 1), (0, 0)),
)
# Batch, channels, filters, spatial axes, whether work-items compute vectors of pixels.
FEW_CHANNELS: tuple[tuple[int, int, int, tuple[int, ...], bool], ...] = (
    (1, 4, 4, (14, 14), True),
    (2, 16, 16, (6, 10), True),
    (3, 1, 5, (12,), True),
    (1, 13, 1, (2, 3, 8), True),
    (2, 3, 16, (9, 4), True),
    (1, 16, 7, (1, 4), True),
    (2, 7, 12, (20, 31), True),
    (5, 2, 2, (33, 4), True),
    (1, 4, 4, (13, 11), False),
    (2, 16, 16, (6, 10), False),
    (3, 1, 5, (17,), False),
    (1, 13, 1, (2, 3, 5), False),
    (2, 3, 16, (9, 5), True),  # planes are not multiples of a vector
    (1, 16, 7, (1, 1), True),
    (9, 7, 12, (20, 7), False),
    (4, 2, 2, (1, 129), True),
)
TRANSPOSED = (
    Sizes(2, 1, 3, 5, (5, 7), (5, 7), (3, 3), (1, 1), (1, 1), (1, 1)),
    Sizes(2, 1, 9, 8, (6, 5), (12, 10), (4, 4), (2, 2), (1, 1), (1, 1)),
    Sizes(1, 2, 4, 3, (5, 6), (10, 19), (3, 2), (2, 3), (1, 2), (1, 0)),
    Sizes(1, 1, 3, 2, (4, 5), (13, 20), (2, 3), (3, 4), (1, 1), (0, 0)),  # outputs that no tap reaches
    Sizes(1, 3, 2, 1, (7,), (28,), (8,), (4,), (1,), (2,)),
    Sizes(1, 1, 5, 20, (9,), (21,), (3,), (2,), (4,), (2,)),
    Sizes(2, 1, 4, 10, (3, 4, 5), (6, 8, 10), (4, 2, 3), (2, 2, 2), (1, 1, 1), (1, 0, 1)),
    Sizes(2, 5, 1, 1, (6, 7), (12, 14), (4, 4), (2, 2), (1, 1), (1, 1)),
    Sizes(1, 1, 4, 3, (2, 3, 4), (4, 3, 9), (2, 3, 3), (2, 1, 2), (1, 1, 1), (0, 1, 0)),
    Sizes(1, 2, 3, 4, (3, 2, 6), (3, 6, 7), (1, 3, 2), (1, 2, 1), (1, 2, 1), (0, 1, 0)),
)


def numbers_of(sizes: Sizes) -> list[int]:
    """Returns the argument of plans of convolutions."""
    axes = [*zip(sizes.size, sizes.out, sizes.kernel, sizes.strides, sizes.dilations, sizes.pads, strict=True)]
    ones = [(1, 1, 1, 1, 1, 0)] * (3 - len(axes))
    return [sizes.N, sizes.groups, sizes.C, sizes.M, *(v for axis in (*ones, *axes) for v in axis)]


def few_channels(
    name: str, dtype: Any, N: int, C: int, M: int, size: tuple[int, ...], vectors: bool, bias: bool
) -> Case:
    rng = np.random.default_rng([N, C, M, *size])
    one = (1,) * len(size)
    sizes = Sizes(N, 1, C, M, size, size, one, one, one, (0,) * len(size))
    inputs = [signed(rng, N, C, *size, dtype=dtype), signed(rng, M, C, *one, dtype=dtype)]
    y = convolve(inputs[0], inputs[1], 1, one, one, sizes.pads, size)
    if bias:
        inputs.append(signed(rng, M, dtype=dtype))
        y += inputs[2].astype(np.float64).reshape(-1, *one)

    def plan(harness: Harness, facts: int) -> Plan:
        flags = (c_int(dtype == np.float16), c_int(bias))
        return harness.plan("few_channels", facts, *flags, int64s(numbers_of(sizes)), c_int(vectors))

    return Case(name, "Conv", inputs, [y], plan, tolerance_of(dtype))


def convolution(name: str, dtype: Any, sizes: Sizes, transposed: bool, bias: bool) -> Case:
    rng = np.random.default_rng([sizes.N, sizes.C, sizes.M, *sizes.size])
    x = signed(rng, sizes.N, sizes.groups * sizes.C, *sizes.size, dtype=dtype)
    filters = (sizes.groups * sizes.C, sizes.M) if transposed else (sizes.groups * sizes.M, sizes.C)
    w = signed(rng, *filters, *sizes.kernel, dtype=dtype)
    reference = transpose_convolve if transposed else convolve
    y = reference(x, w, sizes.groups, sizes.strides, sizes.dilations, sizes.pads, sizes.out)
    inputs = [x, w]
    if bias:
        inputs.append(signed(rng, y.shape[1], dtype=dtype))
        y += inputs[2].astype(np.float64).reshape(-1, *[1] * len(sizes.size))

    def plan(harness: Harness, facts: int) -> Plan:
        flags = (c_int(dtype == np.float16), c_int(transposed), c_int(bias))
        return harness.plan("convolution", facts, *flags, int64s(numbers_of(sizes)))

    return Case(name, "ConvTranspose" if transposed else "Conv", inputs, [y], plan, tolerance_of(dtype))


def cases() -> Iterator[Case]:
    for suffix, dtype in FLOATS:
        for table, transposed in ((CONVOLUTIONS, False), (TRANSPOSED, True)):
            for i, sizes in enumerate(table):
                kind = "transposed" if transposed else "convolution"
                name = f"{kind}_{suffix}-{'x'.join(map(str, (*sizes.size, *sizes.kernel)))}"
                yield convolution(name, dtype, sizes, transposed, i % 2 == 0)
        for i, few in enumerate(FEW_CHANNELS):
            yield few_channels(f"few_channels_{suffix}-{i}", dtype, *few, i % 3 != 1)
