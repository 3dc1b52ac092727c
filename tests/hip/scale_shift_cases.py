"""ScaleShift[Add][act], BatchNormalization, and the epilogue of a convolution with PRelu, on the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_float, c_int, c_int32, c_int64
from typing import Any

import numpy as np

from tests.hip import activations
from tests.hip.case import FLOATS, Case, signed, tolerance_of
from tests.hip.harness import Harness, Plan

# N, C, spatial shape: one element, tails, planes that are not a multiple of a vector, planes that end inside vectors of
# many work-groups, aligned planes, rank 2.
SHAPES: tuple[tuple[int, int, tuple[int, ...]], ...] = (
    (1, 1, (1,)),
    (2, 3, (5, 7)),
    (1, 17, (9, 11)),
    (3, 5, (64, 67)),
    (2, 4, (32, 32)),
    (1, 6, (97, 33)),
    (5, 7, ()),
    (2, 130, (7, 7)),
    (1, 3, (2731,)),
    (4, 9, (1, 1, 19)),
    (1, 2, (128, 128)),
    (7, 33, (2,)),
)


def case(name: str, dtype: Any, N: int, C: int, spatial: tuple[int, ...], act: str, residual: bool) -> Case:
    rng = np.random.default_rng([N, C, *spatial, activations.NAMES.index(act)])
    x, scale, shift = (signed(rng, *s, dtype=dtype) for s in ((N, C, *spatial), (C,), (C,)))
    x[rng.random(x.shape) < 0.02] = 0
    x[rng.random(x.shape) < 0.02] *= 50
    inputs = [x, scale, shift] + ([signed(rng, N, C, *spatial, dtype=dtype)] if residual else [])
    wide = [i.astype(np.float64) for i in inputs]
    axis = (C, *(1 for _ in spatial))
    y = wide[0] * wide[1].reshape(axis) + wide[2].reshape(axis)
    if residual:
        y = y + wide[3]
    kind, a, b = activations.parameters(act)
    inner = int(np.prod(spatial, dtype=np.int64))

    def plan(harness: Harness, facts: int) -> Plan:
        sizes = (c_int64(N), c_int64(C), c_int64(inner))
        half = c_int(dtype == np.float16)
        return harness.plan("scale_shift", facts, half, *sizes, c_int(residual), c_int32(kind), c_float(a), c_float(b))

    return Case(name, "ScaleShift", inputs, [activations.apply(act, y)], plan, tolerance_of(dtype))


def shift_prelu(dtype: Any, N: int, C: int, spatial: tuple[int, ...], residual: bool) -> Case:
    rng = np.random.default_rng([N, C, *spatial])
    x, slope, shift = (signed(rng, *s, dtype=dtype) for s in ((N, C, *spatial), (C,), (C,)))
    x.flat[::37], slope[0] = np.inf, np.inf  # the slope must not affect values that are not negative
    x.flat[1::41] = np.nan
    inputs = [x, slope, shift] + ([signed(rng, N, C, *spatial, dtype=dtype)] if residual else [])
    wide = [i.astype(np.float64) for i in inputs]
    axis = (C, *(1 for _ in spatial))
    y = wide[0] + wide[2].reshape(axis) + (wide[3] if residual else 0)
    y = np.where(y < 0, np.multiply(y, wide[1].reshape(axis), where=y < 0, out=y.copy()), y)
    sizes = (c_int64(N), c_int64(C), c_int64(int(np.prod(spatial, dtype=np.int64))))

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan("shift_prelu", facts, c_int(dtype == np.float16), *sizes, c_int(residual))

    name = f"shift_prelu{'_add' if residual else ''}_{np.dtype(dtype).name}-{'x'.join(map(str, (N, C, *spatial)))}"
    return Case(name, "PRelu", inputs, [y], plan, tolerance_of(dtype))


def batch_norm(name: str, dtype: Any, of: Any, N: int, C: int, spatial: tuple[int, ...]) -> Case:
    rng = np.random.default_rng([N, C, *spatial])
    # A mean much larger than the deviations loses digits if it is scaled before it is subtracted.
    offset, epsilon = (300 if dtype == np.float32 else 3), 1e-3
    x = (signed(rng, N, C, *spatial) + offset).astype(dtype)
    scale, shift = (signed(rng, C, dtype=of) for _ in range(2))
    mean = (signed(rng, C) + offset).astype(of)
    variance = (0.1 + np.abs(signed(rng, C))).astype(of)
    axis = (C, *(1 for _ in spatial))
    s, b, m, v = (p.astype(np.float64).reshape(axis) for p in (scale, shift, mean, variance))
    y = (x.astype(np.float64) - m) * s / np.sqrt(v + float(np.float32(epsilon))) + b
    sizes = (c_int64(N), c_int64(C), c_int64(int(np.prod(spatial, dtype=np.int64))))

    def plan(harness: Harness, facts: int) -> Plan:
        kinds = (c_int(dtype == np.float16), c_int(of == np.float16))
        return harness.plan("batch_norm", facts, *kinds, *sizes, c_float(epsilon))

    return Case(name, "BatchNormalization", [x, scale, shift, mean, variance], [y], plan, tolerance_of(dtype))


def cases() -> Iterator[Case]:
    for dtype, of in ((np.float32, np.float32), (np.float16, np.float16), (np.float16, np.float32)):
        for i, (N, C, spatial) in enumerate(SHAPES[:9]):
            yield batch_norm(f"batch_norm_{np.dtype(dtype).name}_{np.dtype(of).name}-{i}", dtype, of, N, C, spatial)
    for dtype in (np.float32, np.float16):
        # Channels-last tensors have one element for each plane.
        for i, (N, C, spatial) in enumerate((*SHAPES[1:8], (600, 24, ()), (513, 17, ()))):
            yield shift_prelu(dtype, N, C, spatial, i % 2 == 1)
    for suffix, dtype in FLOATS:
        for i, act in enumerate(activations.NAMES):
            N, C, spatial = SHAPES[i % len(SHAPES)]
            size = "x".join(str(d) for d in (N, C, *spatial))
            residual = i % 2 == 1
            yield case(
                f"scale_shift{'_add' if residual else ''}_{act.lower() or 'none'}_{suffix}-{size}",
                dtype, N, C, spatial, act, residual,
            )  # fmt: skip
