"""DFT on the GPU, along one axis or over overlapping frames, against numpy in float64."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_int
from typing import Any

import numpy as np

from tests.hip.case import Case, signed, tolerance_of
from tests.hip.harness import Array, Harness, Plan, int64s

# outer, size of the axis, inner, length of the transform; complex, inverse, one-sided
LINES: tuple[tuple[tuple[int, int, int, int], tuple[bool, bool, bool]], ...] = (
    ((2, 8, 3, 8), (True, False, False)), ((1, 400, 1, 400), (False, False, True)),
    ((3, 7, 1, 7), (True, True, False)), ((5, 9, 2, 16), (False, False, False)), ((1, 30, 1, 11), (True, False, True)),
    ((1, 1, 6, 1), (False, False, False)),
    ((1, 257, 1, 300), (True, True, False)),
)  # fmt: skip
# B, T, frame length, step, complex, one-sided, with a window
FRAMES = ((2, 100, 16, 5, False, True, True), (1, 700, 400, 160, False, True, True), (3, 33, 9, 4, True, False, False))


def dft(name: str, dtype: Any, x: Array, places: list[int], y: Array, window: Array, *flags: bool) -> Case:
    complex_, inverse, windowed = flags

    def plan(harness: Harness, facts: int) -> Plan:
        codes = (c_int(f) for f in (complex_, inverse, windowed))
        return harness.plan("dft", facts, c_int(dtype == np.float16), int64s(places), *codes)

    expected = np.stack([y.real, y.imag], -1)
    return Case(name, "DFT", [x, window], [expected], plan, tolerance_of(dtype))


def numbers_of(x: Array, complex_: bool) -> Array:
    wide = x.astype(np.float64)
    return np.asarray(wide[..., 0] + 1j * wide[..., 1] if complex_ else wide[..., 0])


def along(name: str, dtype: Any, sizes: tuple[int, int, int, int], flags: tuple[bool, bool, bool]) -> Case:
    outer, size, inner, L = sizes
    complex_, inverse, onesided = flags
    width = 2 if complex_ else 1
    x = signed(np.random.default_rng(sizes), outer, size, inner, width, dtype=dtype)
    y = (np.fft.ifft if inverse else np.fft.fft)(numbers_of(x, complex_), L, axis=1)
    K = L // 2 + 1 if onesided else L
    from_, to = [size * inner * width, width, inner * width], [K * inner * 2, 2, inner * 2]
    places = [outer * inner, inner, min(size, L), L, K, *from_, *to]
    return dft(name, dtype, x, places, y[:, :K], np.ones(1, dtype), complex_, inverse, False)


def framed(name: str, dtype: Any, B: int, T: int, L: int, step: int, *flags: bool) -> Case:
    complex_, onesided, windowed = flags
    width, frames, K = (2 if complex_ else 1), (T - L) // step + 1, L // 2 + 1 if onesided else L
    rng = np.random.default_rng([B, T, L])
    x, window = signed(rng, B, T, width, dtype=dtype), signed(rng, L, dtype=dtype)
    signal, weights = numbers_of(x, complex_), window.astype(np.float64) if windowed else np.ones(L)
    y = np.stack([np.fft.fft(signal[:, f * step : f * step + L] * weights) for f in range(frames)], 1)[..., :K]
    places = [B * frames, frames, L, L, K, T * width, step * width, width, frames * K * 2, K * 2, 2]
    return dft(name, dtype, x, places, y, window, complex_, False, windowed)


def cases() -> Iterator[Case]:
    for dtype in (np.float32, np.float16):
        kind = np.dtype(dtype).name
        for i, (sizes, flags) in enumerate(LINES):
            yield along(f"dft_{kind}-{'x'.join(map(str, sizes))}-{i}", dtype, sizes, flags)
        for i, frames in enumerate(FRAMES):
            yield framed(f"stft_{kind}-{i}", dtype, *frames)
