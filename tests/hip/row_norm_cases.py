"""FusedLayerNorm, FusedAdaLayerNorm and FusedRmsNorm[Add[Sum]], and normalization with windows, on the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_float, c_int, c_int64
from typing import Any

import numpy as np

from graphopt.ops import OPS
from tests.hip.case import FLOATS, Case, signed, tolerance_of
from tests.hip.harness import Array, Harness, Plan

# rows, D: whole vectors in one wave or several, and rows that are unaligned or too long for registers.
SHAPES = (
    (1, 8), (3, 64), (5, 768), (2, 1032), (1, 4096), (7, 24), (2, 16384), (4, 520), (9, 312),
    (1, 1), (3, 77), (2, 1023), (1, 40000), (5, 3), (2, 2049), (3, 333), (1, 16386),
)  # fmt: skip


def case(
    name: str, dtype: Any, rows: int, D: int, rms: bool, residual: bool, writes_sum: bool, equal: bool = False,
    images: int = 1, statistics: bool = False,
) -> Case:  # fmt: skip
    """Makes a case.

    With `equal` all elements of a row are equal, so the output must be beta for any epsilon. `images` is the number of
    rows of gamma and beta, each for rows / images rows. With `statistics` each row's mean and inverse standard
    deviation are outputs after the sum.
    """
    rng = np.random.default_rng([rows, D])
    x = (signed(rng, rows, D) + (0 if rms or residual else 5)).astype(dtype)
    if equal:
        x[:] = x[:, :1]
    inputs = [x]
    total = x
    if residual:
        inputs.append(signed(rng, rows, D, dtype=dtype))
        if equal:
            inputs[1][:] = inputs[1][:, :1]
        total = (x.astype(np.float64) + inputs[1].astype(np.float64)).astype(dtype)  # the Add rounds to T
    shape = (D,) if images == 1 else (images, D)
    gamma, beta = (signed(rng, *shape, dtype=dtype) for _ in range(2))
    inputs += [gamma] if rms else [gamma, beta]
    epsilon = 1e-12 if equal else 1e-3
    wide = total.astype(np.float64)
    centred = wide if rms else wide - wide.mean(-1, keepdims=True)
    inverse = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + float(np.float32(epsilon)))
    y = centred * inverse * _of_rows(gamma, rows)
    if not rms:
        y = y + _of_rows(beta, rows)

    def plan(harness: Harness, facts: int) -> Plan:
        flags = (c_int(rms), c_int(residual), c_int(writes_sum))
        half = c_int(dtype == np.float16)
        return harness.plan(
            "row_norm",
            facts,
            half,
            c_int64(rows),
            c_int64(D),
            c_float(epsilon),
            *flags,
            c_int64(images),
            c_int(statistics),
        )

    expected = [y, wide] if writes_sum else [y]
    op = "FusedRmsNorm" if rms else "FusedLayerNorm" if images == 1 else "FusedAdaLayerNorm"
    if not statistics:
        return Case(name, op, inputs, expected, plan, tolerance_of(dtype))
    mean = np.zeros_like(inverse) if rms else wide.mean(-1, keepdims=True)
    types = (dtype, dtype, np.float32)
    found = np.stack([mean, inverse])[..., 0]
    return Case(name, op, inputs, [y, wide, found], plan, tolerance_of(dtype), output_dtype=types, by_row=True)


def windows_case(name: str, dtype: Any, images: int, sizes: tuple[int, ...], D: int) -> Case:
    """Makes a case of the operator `name`; `sizes` are height and width of an image, a window and the shift."""
    spec, into = OPS[name], name.endswith("IntoWindows")
    rng = np.random.default_rng([images, D, *sizes])
    H, W, h, w, _, _ = sizes
    windows = images * -(-H // h) * -(-W // w)
    x = (signed(rng, images, H * W, D) + 5).astype(dtype)
    residual = "R" in spec.inputs
    if residual:
        r = signed(rng, *x.shape, dtype=dtype) if into else signed(rng, windows, h * w, D, dtype=dtype)
    inputs = [x, *([r] if residual else []), *(signed(rng, D, dtype=dtype) for _ in range(2))]
    attributes = {
        "image": sizes[:2], "window": sizes[2:4], "shift": sizes[4:], "epsilon": float(np.float32(1e-3)),
    }  # fmt: skip
    expected = list(spec.reference(*inputs, **attributes))
    if residual:  # the Add rounds to T
        total = expected[1].astype(dtype)
        expected = [spec.reference(total, np.zeros_like(r), *inputs[2:], **attributes)[0], total.astype(np.float64)]

    def plan(harness: Harness, facts: int) -> Plan:
        return harness.plan(
            "row_norm_windows",
            facts,
            c_int(dtype == np.float16),
            c_int64(images),
            c_int64(D),
            c_float(1e-3),
            c_int(residual),
            c_int(into),
            (c_int64 * 6)(*sizes),
        )

    kind = f"layer_norm_{'add_sum_' if residual else ''}{'into' if into else 'from'}_windows"
    label = f"{kind}_{np.dtype(dtype).name}-{'x'.join(map(str, (images, *sizes, D)))}"
    return Case(label, spec.name, inputs, expected, plan, tolerance_of(dtype))


def _of_rows(parameters: Array, rows: int) -> Array:
    wide = np.atleast_2d(parameters).astype(np.float64)
    return np.repeat(wide, rows // len(wide), axis=0)


def cases() -> Iterator[Case]:
    for suffix, dtype in FLOATS:
        for i, (rows, D) in enumerate(SHAPES):
            rms, residual, writes_sum = i % 2 == 1, i % 3 != 0, i % 3 == 2
            kind = ("rms" if rms else "layer") + "_norm" + ("_add" if residual else "") + ("_sum" if writes_sum else "")
            yield case(f"{kind}_{suffix}-{rows}x{D}", dtype, rows, D, rms, residual, writes_sum)
        for rows, D in ((6, 768), (5, 333), (3, 16386)):
            rms = rows == 5
            name = f"{'rms' if rms else 'layer'}_norm_add_sum_{suffix}-statistics-{rows}x{D}"
            yield case(name, dtype, rows, D, rms, True, True, statistics=True)
        for n, sizes, D in (
            (2, (4, 6, 2, 3, 0, 0), 32),
            (1, (8, 8, 4, 4, 2, 2), 96),
            (3, (5, 7, 3, 2, 1, 1), 77),
            (1, (3, 2, 4, 5, 2, 0), 8),
            (2, (3, 3, 2, 2, 1, 0), 16386),
            (2, (2, 4, 2, 2, 1, 3), 33),
            (1, (6, 4, 3, 2, 2, 0), 57),
            (1, (4, 2, 2, 2, 1, 1), 192),
            (1, (2, 4, 2, 2, 0, 0), 768),
            (1, (2, 2, 1, 2, 0, 1), 3000),
        ):
            yield windows_case("FusedLayerNormIntoWindows", dtype, n, sizes, D)
            yield windows_case("FusedLayerNormAddSumFromWindows", dtype, n, sizes, D)
            if sizes[0] % sizes[2] == sizes[1] % sizes[3] == 0:
                yield windows_case("FusedLayerNormAddSumIntoWindows", dtype, n, sizes, D)
        for rows, D, images in ((6, 768, 3), (8, 77, 2), (5, 64, 5), (4, 16386, 2)):
            residual = D % 2 == 0
            name = f"ada_layer_norm_{suffix}-{rows}x{D}-{images}"
            yield case(name, dtype, rows, D, False, residual, D == 64, images=images)
        for rows, D in ((6, 768), (5, 333)):
            for residual in (False, True):
                kind = "layer_norm_add" if residual else "layer_norm"
                yield case(f"{kind}_{suffix}-equal-{rows}x{D}", dtype, rows, D, False, residual, False, equal=True)
