"""Test inputs for every operator of our domain: odd sizes, batches, empty batches, large values, every layout."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphopt.ops import OPS, OpSpec
from graphopt.ops.case import NodeCase
from graphopt.ops.fused_activation import FUSED
from graphopt.ops.schema import Array

ACTIVATION_ATTRIBUTES = {
    "LeakyRelu": {"alpha": 0.1},
    "Clip": {"min": -0.5, "max": 0.9},
    "HardSigmoid": {"alpha": 0.3, "beta": 0.4},
}


def _activation_attributes(name: str) -> dict[str, float]:
    for suffix, attributes in ACTIVATION_ATTRIBUTES.items():
        if name.removesuffix("Bf16").endswith(suffix):
            return dict(attributes)
    return {}


def _scale_shift(spec: OpSpec, rng: np.random.Generator) -> Iterator[NodeCase]:
    for shape in [(1, 1), (3, 7), (2, 5, 9), (2, 3, 5, 7), (1, 4, 33, 31), (2, 3, 2, 2, 3), (0, 3, 4), (2, 3, 0)]:
        per_channel = (shape[1],) + (1,) * (len(shape) - 2)
        inputs = [rng.normal(size=shape), rng.normal(size=per_channel), rng.normal(size=per_channel)]
        if "R" in spec.inputs:
            inputs.append(rng.normal(size=shape))
        yield NodeCase(spec, inputs, _activation_attributes(spec.name))


def _winograd_conv(spec: OpSpec, rng: np.random.Generator) -> Iterator[NodeCase]:
    geometries = [
        ((4, 1, 3, 3), 1, (0, 0, 0, 0)),
        ((2, 5, 7, 9), 3, (1, 1, 1, 1)),
        ((1, 16, 14, 14), 17, (1, 1, 1, 1)),
        ((3, 3, 6, 11), 8, (0, 2, 1, 0)),
        ((1, 4, 1, 1), 2, (1, 1, 1, 1)),
        ((1, 2, 2, 13), 4, (3, 0, 2, 5)),
        ((0, 3, 8, 8), 4, (1, 1, 1, 1)),
    ]
    for i, (shape, m, pads) in enumerate(geometries):
        n, c, h, w = shape
        top, left, bottom, right = pads
        inputs = [rng.normal(size=shape), rng.normal(size=(m, c, 3, 3)) / np.sqrt(9 * c), rng.normal(size=m)]
        if "R" in spec.inputs:
            inputs.append(rng.normal(size=(n, m, h + top + bottom - 2, w + left + right - 2)))
        if "slope" in spec.inputs:
            inputs.append(rng.normal(size=(m, 1, 1)))
        yield NodeCase(
            spec, inputs, {"pads": list(pads), **_activation_attributes(spec.name)}, constant_weights=i % 2 == 1
        )


@dataclass(frozen=True)
class Layout:
    """Shapes and permutations of attention operands; FusedAttention defines the permutations."""

    q: Sequence[int]
    k: Sequence[int]
    v: Sequence[int]
    q_perm: Sequence[int]
    k_perm: Sequence[int]
    v_perm: Sequence[int]
    o_perm: Sequence[int]
    scores: Sequence[int]  # the shape of Q K^T


def _layouts(gqa: bool) -> Iterator[Layout]:
    bnsh, bsnh = (0, 1, 2, 3), (0, 2, 1, 3)
    kv = 2 if gqa else 4
    yield Layout((2, 4, 5, 8), (2, kv, 7, 8), (2, kv, 7, 6), bnsh, (0, 1, 3, 2), bnsh, bnsh, (2, 4, 5, 7))
    yield Layout((2, 9, 4, 16), (2, 9, kv, 16), (2, 9, kv, 16), bsnh, (0, 2, 3, 1), bsnh, bsnh, (2, 4, 9, 9))
    # K is already transposed, the batch shares keys and values, and there are more queries than keys.
    yield Layout((3, 4, 6, 5), (1, kv, 5, 2), (1, kv, 2, 3), bnsh, bnsh, bnsh, bsnh, (3, 4, 6, 2))
    yield Layout((1, 4, 1, 40), (1, kv, 37, 40), (1, kv, 37, 40), bnsh, (0, 1, 3, 2), bnsh, bsnh, (1, 4, 1, 37))
    yield Layout((0, 4, 3, 8), (0, kv, 3, 8), (0, kv, 3, 8), bnsh, (0, 1, 3, 2), bnsh, bnsh, (0, 4, 3, 3))
    if not gqa:
        same = (0, 1, 2)
        yield Layout((3, 5, 8), (3, 7, 8), (3, 7, 4), same, (0, 2, 1), same, same, (3, 5, 7))
        yield Layout((5, 3, 8), (7, 3, 8), (7, 3, 4), (1, 0, 2), (1, 2, 0), (1, 0, 2), (1, 0, 2), (3, 5, 7))
        yield Layout((5, 8), (7, 8), (7, 4), (0, 1), (1, 0), (0, 1), (1, 0), (5, 7))
        # Operands of different ranks broadcast as in MatMul: the first axis of a rank 3 operand is for the heads.
        yield Layout((2, 4, 5, 8), (4, 7, 8), (7, 6), bnsh, (0, 2, 1), (0, 1), bnsh, (2, 4, 5, 7))
        yield Layout((5, 8), (1, 7, 8), (2, 3, 7, 6), (0, 1), (0, 2, 1), bnsh, bnsh, (1, 5, 7))


def _broadcasts(shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yields shapes that broadcast to `shape`: itself, its last two axes, one row, one column, one element."""
    yield tuple(shape)
    yield tuple(shape[-2:])
    yield (*([1] * (len(shape) - 1)), shape[-1])
    yield (*shape[:-1], 1)
    yield (1,)


def _fused_attention(spec: OpSpec, rng: np.random.Generator) -> Iterator[NodeCase]:
    for i, layout in enumerate(_layouts("Gqa" in spec.name)):
        inputs: list[Array] = [rng.normal(size=shape) for shape in (layout.q, layout.k, layout.v)]
        attributes: dict[str, Any] = {
            "scale": [0.35, -1.0, 3.0][i % 3],
            "q_perm": list(layout.q_perm),
            "k_perm": list(layout.k_perm),
            "v_perm": list(layout.v_perm),
            "o_perm": list(layout.o_perm),
        }
        shapes = list(_broadcasts(layout.scores))
        if "bias" in spec.inputs:
            inputs.append(rng.normal(size=shapes[i % len(shapes)]) * 3)
        if "mask" in spec.inputs:
            mask = rng.random(shapes[(i + 1) % len(shapes)]) > 0.4
            if mask.ndim > 1 and i % 2 == 1:
                mask[..., :1, :] = False  # rows without any key
            inputs.append(mask)
            attributes["mask_value"] = [-10000.0, float("-inf"), -3.0][i % 3]
        if "softcap" in spec.attributes:
            attributes["softcap"] = [2.0, 30.0][i % 2]
        if "left" in spec.attributes:
            attributes["left"], attributes["right"] = [(2, 0), (0, 1), (1, 3), (2**31 - 1, 0)][i % 4]
        yield NodeCase(spec, inputs, attributes)


def _group_norm(spec: OpSpec, rng: np.random.Generator) -> Iterator[NodeCase]:
    for shape, groups in [
        ((1, 1, 5), 1),
        ((2, 6, 7, 5), 3),
        ((3, 4, 9), 4),
        ((1, 6, 2, 3, 4), 1),
        ((2, 32, 17, 3), 32),
    ]:
        inputs = [rng.normal(size=shape) + 1.5, rng.normal(size=shape[1]), rng.normal(size=shape[1])]
        yield NodeCase(
            spec, inputs, {"num_groups": groups, "epsilon": 1e-5, **_activation_attributes(spec.name)}, groups == 4
        )


def _row_norm(spec: OpSpec, rng: np.random.Generator) -> Iterator[NodeCase]:
    if spec.name.endswith("Windows"):
        yield from _windows(spec, rng)
        return
    for shape in [
        (5,),
        (3, 1 if "beta" not in spec.inputs else 2),
        (2, 3, 33),
        (1, 7, 768),
        (2, 2, 2, 2, 5),
        (0, 3, 8),
    ]:
        inputs = [rng.normal(size=shape) + 0.5]
        if "R" in spec.inputs:
            inputs.append(rng.normal(size=shape))
        row = shape[-1:]
        if "Ada" in spec.name:
            shape = shape if len(shape) > 1 else (3, *shape)
            inputs = [rng.normal(size=shape) + 0.5 for _ in inputs]
            row = (shape[0] if shape[1] != 7 else 1, *(1 for _ in shape[1:-1]), shape[-1])
        inputs += [rng.normal(size=row) for name in spec.inputs if name in ("gamma", "beta")]
        yield NodeCase(spec, inputs, {"epsilon": 1e-5 if len(shape) % 2 else 1e-2})


def _windows(spec: OpSpec, rng: np.random.Generator) -> Iterator[NodeCase]:
    for n, image, window, shift, D in (
        (2, (4, 6), (2, 3), (0, 0), 33),
        (1, (8, 8), (4, 4), (2, 2), 8),
        (2, (5, 7), (3, 2), (1, 1), 12),
        (1, (3, 2), (4, 5), (2, 0), 7),
        (3, (1, 1), (1, 1), (0, 0), 2),
        (0, (4, 4), (2, 2), (1, 1), 8),
    ):
        flat = (n, image[0] * image[1], D)
        windows = -(-image[0] // window[0]) * -(-image[1] // window[1])
        if spec.name == "FusedLayerNormAddSumIntoWindows":
            if image[0] % window[0] or image[1] % window[1]:
                continue
            x, r = rng.normal(size=flat) + 0.5, [rng.normal(size=flat)]
        else:
            x = rng.normal(size=(n, *image, D) if D % 2 else flat) + 0.5
            r = [rng.normal(size=(n * windows, window[0] * window[1], D))] if "R" in spec.inputs else []
        attributes = {"epsilon": 1e-5, "image": list(image), "window": list(window), "shift": list(shift)}
        yield NodeCase(spec, [x, *r, rng.normal(size=D), rng.normal(size=D)], attributes)


def _layer_norm_2d(spec: OpSpec, rng: np.random.Generator) -> Iterator[NodeCase]:
    for i, shape in enumerate(
        [(2, 3, 5, 7), (1, 40, 9), (3, 1, 4), (2, 70, 33, 31), (1, 2, 2, 3, 2), (0, 3, 4, 4), (5, 8)]
    ):
        inputs = [rng.normal(size=shape) + 0.5, rng.normal(size=shape[1]), rng.normal(size=shape[1])]
        yield NodeCase(spec, inputs, {"epsilon": 1e-6 if i % 2 else 1e-2}, constant_weights=i % 2 == 1)


def _fused_activation(spec: OpSpec, rng: np.random.Generator) -> Iterator[NodeCase]:
    for shape in [(2, 3, 64), (5,), (7, 2, 1100), (2, 2, 2, 9), (0, 3, 8)]:
        yield NodeCase(spec, [rng.normal(size=shape) * 3], {})


def _gated(spec: OpSpec, rng: np.random.Generator) -> Iterator[NodeCase]:
    for i, shape in enumerate([(2, 3, 64), (5,), (7, 1100), (2, 2, 2, 9), (0, 3, 8), (3, 0)]):
        if spec.inputs == ("X",):
            yield NodeCase(spec, [rng.normal(size=(*shape[:-1], 2 * shape[-1])) * 3], {"gate": i % 2})
        else:
            yield NodeCase(spec, [rng.normal(size=shape) * 3, rng.normal(size=shape)], {})


def _rotary(spec: OpSpec, rng: np.random.Generator) -> Iterator[NodeCase]:
    # X, perm, cos and sin
    for x, perm, angles in (
        ((2, 3, 5, 8), (0, 1, 2, 3), (2, 1, 5, 8)),
        ((2, 5, 3, 64), (0, 2, 1, 3), (1, 1, 5, 64)),
        ((1, 7, 4, 34), (0, 1, 2, 3), (7, 1, 34)),
        ((3, 5, 6), (1, 0, 2), (3, 6)),
        ((9, 2), (0, 1), (2,)),
        ((0, 4, 3, 8), (0, 2, 1, 3), (1, 1, 4, 8)),
    ):
        inputs = [rng.normal(size=x), rng.uniform(-1, 1, size=angles), rng.uniform(-1, 1, size=angles)]
        yield NodeCase(spec, inputs, {"perm": list(perm)})


def _linear(spec: OpSpec, rng: np.random.Generator) -> Iterator[NodeCase]:
    for i, shape in enumerate([(1, 1), (3, 7), (9,), (2, 5, 64), (2, 3, 4, 33), (0, 3, 8), (37, 70)]):
        N = [5, 1, 64, 32, 40, 6, 49][i]
        inputs = [rng.normal(size=shape), rng.normal(size=(shape[-1], N)) / np.sqrt(shape[-1]), rng.normal(size=N)]
        if "R" in spec.inputs:
            inputs.append(rng.normal(size=(*shape[:-1], N)))
        yield NodeCase(
            spec, inputs, _activation_attributes(spec.name), constant_weights=i % 2 == 1 and "R" not in spec.inputs
        )


def _quantized_linear(spec: OpSpec, rng: np.random.Generator) -> Iterator[NodeCase]:
    # ONNX Runtime's MatMulInteger saturates sums of two products on some processors, so W has 7 bits.
    shapes = [(1, 1), (3, 7), (9,), (2, 5, 64), (2, 3, 4, 33), (0, 3, 8), (37, 70), (4, 300)]
    for i, (shape, N) in enumerate(zip(shapes, [5, 1, 64, 32, 40, 6, 49, 130], strict=True)):
        x = rng.normal(size=shape) * [1, 1e-3, 1e4, 1][i % 4]
        if i in (2, 6):
            x = np.abs(x) if i == 2 else np.full(shape, -0.7)
        if i == 7:
            x[:] = 0
        signed = i % 3 != 1
        byte, middle = (np.int8, 0) if signed else (np.uint8, 128)
        w = (rng.integers(-64, 65, (shape[-1], N)) + middle).astype(byte)
        zeros = (rng.integers(-9, 10, N) * (i % 2) + middle).astype(byte)
        scales: Array = 10 ** rng.uniform(-4, -1, N)
        inputs: list[Array] = [x, w, scales, zeros, rng.normal(size=N)]
        yield NodeCase(spec, inputs, {}, constant_weights=i % 2 == 1)


def _dynamic_quantized_conv(spec: OpSpec, rng: np.random.Generator) -> Iterator[NodeCase]:
    for i, case in enumerate(_fused_conv(spec, rng)):
        x, w, b = case.inputs
        middle = (128, 3, 250)[i % 3]
        bytes_of_w = np.clip(rng.integers(-128, 128, w.shape) + middle, 0, 255).astype(np.uint8)
        x = x * [1, 1e-3, 1e4][i % 3] + i % 2
        scales: Array = 10 ** rng.uniform(-4, -1, len(w))
        inputs: list[Array] = [x, bytes_of_w, b, scales, np.asarray(np.uint8(middle))]
        yield NodeCase(spec, inputs, case.attributes, constant_weights=i % 2 == 1)


def _quantized_conv(spec: OpSpec, rng: np.random.Generator) -> Iterator[NodeCase]:
    # N, H, W, C; M, group, KH, KW; pads, stride, dilation. Weights have 7 bits, because ONNX Runtime saturates sums.
    geometries = [
        ((1, 5, 6, 4), (7, 1, 1, 1), (0, 0, 0, 0), 1, 1),
        ((2, 9, 11, 3), (16, 1, 3, 3), (1, 1, 1, 1), 2, 1),
        ((1, 8, 9, 10), (10, 10, 3, 3), (1, 1, 1, 1), 1, 1),
        ((1, 13, 12, 70), (70, 70, 5, 5), (2, 2, 2, 2), 2, 1),
        ((1, 10, 7, 33), (40, 1, 3, 2), (0, 1, 2, 0), 1, 2),
        ((0, 4, 4, 8), (8, 1, 1, 1), (0, 0, 0, 0), 1, 1),
    ]
    for i, (shape, (M, group, *kernel), pads, stride, dilation) in enumerate(geometries):
        byte = (np.uint8, np.int8)[i % 2]
        limits = np.iinfo(byte)
        C = shape[3] // group
        zeros = rng.integers(limits.min, limits.max + 1, 2).astype(byte)
        # Scales are powers of two. Float32 is then exact, and kernel, body and reference round the same values.
        scales: Array = 2.0 ** rng.integers(-13, -9, M)
        y_scale = 2.0 ** np.rint(np.log2(0.002 * np.sqrt(C * np.prod(kernel))))
        inputs: list[Array] = [
            rng.integers(limits.min, limits.max + 1, shape).astype(byte),
            np.array(0.25),
            np.asarray(zeros[0]),
            rng.integers(-64, 65, (M, C, *kernel)).astype(np.int8),
            scales,
            np.array(y_scale),
            np.asarray(zeros[1]),
            rng.integers(-3000, 3000, M).astype(np.int32),
        ]
        attributes = {"pads": list(pads), "strides": [stride] * 2, "dilations": [dilation] * 2, "group": group}
        attributes |= _activation_attributes(spec.name)
        yield NodeCase(spec, inputs, attributes, constant_weights=i % 2 == 1)


def _matmul(spec: OpSpec, rng: np.random.Generator) -> Iterator[NodeCase]:
    # A, a_perm, B, b_perm
    for i, (a, a_perm, b, b_perm) in enumerate(
        (
            ((1, 1), (0, 1), (1, 1), (0, 1)),
            ((2, 3, 17, 33), (0, 1, 2, 3), (2, 3, 33, 29), (0, 1, 2, 3)),
            ((2, 19, 3, 24), (0, 2, 1, 3), (2, 41, 3, 24), (0, 2, 3, 1)),  # attention layout [B, S, H, D]
            ((5, 31, 7), (0, 1, 2), (70, 7), (1, 0)),  # one B for all batches
            ((37, 6), (0, 1), (4, 3, 6, 1), (0, 1, 2, 3)),  # one A for all batches
            ((3, 1, 2, 9), (0, 1, 2, 3), (1, 4, 5, 9), (0, 1, 3, 2)),
            ((2, 4, 5, 7), (1, 0, 2, 3), (1, 2, 7, 6), (0, 1, 2, 3)),
            ((16, 40, 70), (0, 1, 2), (16, 70, 33), (0, 1, 2)),
            ((3, 0), (0, 1), (0, 5), (0, 1)),
            ((0, 4, 8), (0, 1, 2), (0, 8, 2), (0, 1, 2)),
        )
    ):
        inputs = [rng.normal(size=a), rng.normal(size=b) / np.sqrt(max(a[-1], 1))]
        yield NodeCase(
            spec, inputs, {"alpha": 1.0 if i % 2 else -0.125, "a_perm": list(a_perm), "b_perm": list(b_perm)}
        )


def _fused_conv(spec: OpSpec, rng: np.random.Generator) -> Iterator[NodeCase]:
    # X, W, pads, strides, dilations, group
    geometries: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], int]]
    geometries = [
        ((2, 5, 7, 9), (3, 5, 3, 3), (1, 1, 1, 1), (1, 1), (1, 1), 1),
        ((1, 33, 13, 6), (37, 33, 1, 1), (0, 0, 0, 0), (2, 2), (1, 1), 1),
        ((2, 3, 17, 21), (18, 3, 5, 3), (2, 0, 1, 3), (2, 3), (1, 2), 1),
        ((2, 6, 9, 35), (6, 1, 3, 3), (1, 1, 1, 1), (1, 2), (1, 1), 6),
        ((1, 6, 5, 7), (8, 3, 2, 3), (0, 1, 1, 0), (1, 1), (2, 1), 2),
        ((3, 4, 19), (7, 4, 4), (2, 1), (3,), (2,), 1),
        ((1, 3, 5, 4, 6), (5, 3, 2, 3, 2), (1, 0, 1, 0, 1, 0), (1, 2, 1), (1, 1, 2), 1),
        ((1, 20, 8, 8), (33, 20, 1, 1), (0, 0, 0, 0), (1, 1), (1, 1), 1),
        ((0, 3, 8, 8), (4, 3, 1, 1), (0, 0, 0, 0), (1, 1), (1, 1), 1),
    ]
    if spec.X_types:  # NCHW2c needs two axes and an even number of channels
        geometries = [g for g in geometries if len(g[3]) == 2 and (g[5] if g[1][1] == 1 else g[1][0] // g[5]) % 2 == 0]
        geometries.append(((2, 6, 15, 17), (40, 6, 3, 3), (1, 1, 1, 1), (2, 2), (1, 1), 1))
    x_is_nchw2c = spec.X_types == ("bfloat16",)
    if x_is_nchw2c:
        geometries = [g for g in geometries if g[1][1] == 1 or g[1][1] % 2 == 0]
    # All activations share one implementation; only these operators run every geometry.
    every = spec.name.removesuffix("Bf16") in (
        *(f"FusedConv{kind}{add}" for kind in ("", "Nchw2c", "FromNchw2c") for add in ("", "Add")),
        "FusedConvAddPRelu",  # because it has an additional input
        "DynamicQuantizedConv",
    )
    chosen = range(len(geometries)) if every else range(len(spec.name) % min(4, len(geometries)), len(geometries), 4)
    for i in chosen:
        x, w, pads, strides, dilations, group = geometries[i]
        window = {"pads": list(pads), "strides": list(strides), "dilations": list(dilations), "group": group}
        first = rng.normal(size=(x[0], x[1] // 2, *x[2:], 2) if x_is_nchw2c else x)
        inputs = [first, rng.normal(size=w) / np.sqrt(np.prod(w[1:])), rng.normal(size=w[0])]
        if "R" in spec.inputs:
            axes = len(strides)
            padded = [n + a + b for n, a, b in zip(x[2:], pads[:axes], pads[axes:])]
            spans = [(k - 1) * d + 1 for k, d in zip(w[2:], dilations)]
            size = [(n - span) // s + 1 for n, span, s in zip(padded, spans, strides)]
            inputs.append(rng.normal(size=(x[0], w[0], *size)))
            if x_is_nchw2c and w[0] % 2 == 0 and i % 2 == 0:
                inputs[-1] = rng.normal(size=(x[0], w[0] // 2, *size, 2))
        if "slope" in spec.inputs:
            inputs.append(rng.normal(size=(w[0], *(1 for _ in strides))))
        yield NodeCase(spec, inputs, {**window, **_activation_attributes(spec.name)}, constant_weights=i % 2 == 1)


def _fused_conv_transpose(spec: OpSpec, rng: np.random.Generator) -> Iterator[NodeCase]:
    # X, W, pads, strides, dilations, group, output_padding
    Ints = tuple[int, ...]
    geometries: list[tuple[Ints, Ints, Ints, Ints, Ints, int, Ints]] = [
        ((2, 5, 7, 9), (5, 3, 2, 2), (0, 0, 0, 0), (2, 2), (1, 1), 1, (0, 0)),  # windows without overlap
        ((1, 33, 6, 13), (33, 17, 4, 4), (1, 1, 1, 1), (2, 2), (1, 1), 1, (0, 0)),
        ((2, 4, 5, 7), (4, 9, 3, 3), (1, 1, 1, 1), (2, 2), (1, 1), 1, (1, 1)),
        ((2, 6, 9, 5), (6, 1, 4, 4), (1, 1, 1, 1), (2, 2), (1, 1), 6, (0, 0)),  # depthwise
        ((1, 6, 5, 7), (6, 4, 2, 3), (0, 1, 1, 2), (1, 3), (2, 1), 2, (0, 2)),
        ((3, 4, 19), (4, 7, 16), (4, 4), (8,), (1,), 1, (0,)),
        ((1, 3, 4, 3, 5), (3, 5, 2, 3, 4), (1, 0, 2, 0, 1, 1), (1, 2, 2), (1, 1, 1), 1, (0, 1, 0)),
        ((2, 3, 5, 6), (3, 8, 3, 2), (0, 0, 0, 0), (4, 3), (1, 1), 1, (0, 0)),  # elements that no tap reaches
        ((1, 2, 11), (2, 5, 3), (9, 7), (2,), (3,), 1, (1,)),  # a pad larger than the dilated kernel
        ((2, 7, 4, 3), (7, 20, 5, 3), (2, 1, 2, 1), (1, 1), (1, 1), 1, (0, 0)),
        ((0, 3, 4, 4), (3, 4, 2, 2), (0, 0, 0, 0), (2, 2), (1, 1), 1, (0, 0)),
    ]
    # All activations share one implementation; only these operators run every geometry.
    every = spec.name in ("FusedConvTranspose", "FusedConvTransposeAdd", "FusedConvTransposeAddPRelu")
    chosen = range(len(geometries)) if every else range(len(spec.name) % 4, len(geometries), 4)
    for i in chosen:
        x, w, pads, strides, dilations, group, more = geometries[i]
        M = group * w[1]
        inputs = [rng.normal(size=x), rng.normal(size=w) / np.sqrt(w[0]), rng.normal(size=M)]
        if "R" in spec.inputs:
            axes = zip(strides, x[2:], more, w[2:], dilations, pads, pads[len(strides) :])
            size = [s * (n - 1) + p + (k - 1) * d + 1 - begin - end for s, n, p, k, d, begin, end in axes]
            inputs.append(rng.normal(size=(x[0], M, *size)))
        if "slope" in spec.inputs:
            inputs.append(rng.normal(size=(M, *(1 for _ in strides))))
        window = {"pads": list(pads), "strides": list(strides), "dilations": list(dilations), "group": group}
        attributes = {**window, "output_padding": list(more), **_activation_attributes(spec.name)}
        yield NodeCase(spec, inputs, attributes, constant_weights=i % 2 == 1)


def _inverted_residual(spec: OpSpec, rng: np.random.Generator) -> Iterator[NodeCase]:
    # X, M, O, kernel, pads, strides
    geometries: list[tuple[tuple[int, ...], int, int, tuple[int, int], tuple[int, ...], tuple[int, int]]]
    geometries = [
        ((2, 5, 7, 9), 37, 11, (3, 3), (1, 1, 1, 1), (1, 1)),
        ((1, 24, 14, 15), 48, 24, (3, 3), (1, 1, 1, 1), (2, 2)),
        ((1, 3, 19, 21), 33, 40, (5, 5), (2, 2, 2, 2), (1, 1)),
        ((2, 17, 12, 11), 16, 8, (5, 5), (1, 2, 2, 2), (2, 2)),
        ((1, 4, 9, 13), 7, 5, (2, 3), (0, 1, 2, 0), (3, 2)),
        ((1, 8, 61, 40), 96, 17, (3, 3), (1, 1, 1, 1), (1, 1)),  # computed in bands of rows
        ((2, 6, 70, 36), 80, 3, (3, 3), (0, 1, 1, 1), (2, 2)),
        ((1, 2, 150, 9), 130, 2, (1, 2), (0, 0, 0, 1), (2, 1)),
        ((1, 1, 1, 1), 1, 1, (3, 3), (1, 1, 1, 1), (1, 1)),
        ((0, 3, 8, 8), 4, 2, (3, 3), (1, 1, 1, 1), (1, 1)),
    ]
    every = spec.name in ("InvertedResidualClip", "InvertedResidualAddSilu")
    for i, (x, M, O, kernel, pads, strides) in enumerate(geometries):  # noqa: E741 (O channels of Y)
        if not every and i % 5 != len(spec.name) % 5:
            continue
        inputs = [rng.normal(size=x)]
        for shape in ((M, x[1], 1, 1), (M, 1, *kernel), (O, M, 1, 1)):
            inputs += [rng.normal(size=shape) / np.sqrt(np.prod(shape[1:])), rng.normal(size=shape[0])]
        if "R" in spec.inputs:
            padded = (x[2] + pads[0] + pads[2], x[3] + pads[1] + pads[3])
            size = [(n - k) // s + 1 for n, k, s in zip(padded, kernel, strides)]
            inputs.append(rng.normal(size=(x[0], O, *size)))
        window = {"pads": list(pads), "strides": list(strides), "group": M}
        constant = i % 2 == 1 and "R" not in spec.inputs
        yield NodeCase(spec, inputs, {**window, **_activation_attributes(spec.name)}, constant_weights=constant)


def _max_pool(spec: OpSpec, rng: np.random.Generator) -> Iterator[NodeCase]:
    # X in NCHW2c, kernel_shape, pads, strides, dilations
    for x, kernel_shape, pads, strides, dilations in (
        ((2, 3, 9, 35, 2), (3, 3), (1, 1, 1, 1), (2, 2), (1, 1)),
        ((1, 5, 8, 6, 2), (2, 2), (0, 0, 0, 0), (2, 2), (1, 1)),
        ((1, 2, 13, 40, 2), (5, 5), (2, 2, 2, 2), (1, 1), (1, 1)),
        ((2, 1, 11, 17, 2), (2, 3), (1, 0, 0, 2), (3, 4), (1, 1)),
        ((1, 2, 9, 9, 2), (3, 2), (2, 1, 0, 1), (1, 2), (2, 3)),
        ((1, 1, 1, 1, 2), (1, 1), (0, 0, 0, 0), (1, 1), (1, 1)),
        ((0, 3, 4, 4, 2), (2, 2), (0, 0, 0, 0), (2, 2), (1, 1)),
        ((2, 2, 1, 37, 2), (2, 2), (0, 0, 0, 0), (2, 2), (1, 1)),  # windows that are larger than an axis
        ((2, 2, 19, 1, 2), (2, 3), (0, 1, 0, 0), (2, 2), (1, 1)),
        # An output of size 0. Not in NCHW2c: Reshape in its function body would copy the input's size for a 0.
        *([] if spec.X_types else [((2, 2, 1, 6, 2), (3, 2), (0, 0, 0, 0), (2, 2), (1, 1))]),
    ):
        window = {"kernel_shape": kernel_shape, "pads": pads, "strides": strides, "dilations": dilations}
        size = x if spec.X_types else x[:-1]
        yield NodeCase(spec, [rng.normal(size=size)], {name: list(numbers) for name, numbers in window.items()})


def _axis_softmax(spec: OpSpec, rng: np.random.Generator) -> Iterator[NodeCase]:
    shapes = [((2, 5, 7), 1), ((1, 16, 4, 33), 1), ((3, 1, 64), -2), ((4, 2, 9, 150), 2), ((70, 3), 0), ((0, 3, 8), 1)]
    for i, (shape, axis) in enumerate(shapes):
        x = rng.normal(size=shape) * 10
        if i == 3:
            x[0, 0, :, :3] = -np.inf
            x[1, 1, 2:5] = -np.inf
            x[2, 0, 4, 7], x[3, 1, 1, 9] = np.inf, np.nan
        yield NodeCase(spec, [x], {"axis": axis})


def _index_add(spec: OpSpec, rng: np.random.Generator) -> Iterator[NodeCase]:
    # data, updates, number of indices, axis
    for i, (data, updates, count, axis) in enumerate(
        (
            ((7, 5), (40, 5), 40, 0),
            ((2, 9, 33), (2, 30, 33), 30, 1),
            ((3, 4, 6), (3, 4, 50), 50, -1),
            ((11,), (64,), 64, 0),
            ((6, 8, 10, 3), (6, 5, 10, 3), 5, -3),
            ((9, 70), (300, 70), 300, 0),
            ((5, 4, 7), (3, 12, 6), 12, 1),  # updates that are smaller than data
            ((4, 3, 5, 2), (9, 2, 5, 2), 9, 0),
            ((4, 3), (6, 3), 1, 0),  # one index for all updates
            ((4, 3), (0, 3), 0, 0),
            ((4, 3), (0, 3), 1, 0),
            ((0, 3), (0, 3), 0, 0),
            ((3, 4, 5), (3, 6, 0), 6, 1),
            ((200, 600), (90, 600), 90, 0),  # for several threads
        )
    ):
        indices = rng.integers(-data[axis], max(data[axis], 1), count).astype((np.int64, np.int32)[i % 2])
        yield NodeCase(spec, [rng.normal(size=data), indices, rng.normal(size=updates)], {"axis": axis})


FAMILIES = {
    "AxisSoftmax": _axis_softmax,
    "IndexAdd": _index_add,
    "MaxPool": _max_pool,
    "DynamicQuantizedConv": _dynamic_quantized_conv,
    "FusedConv": _fused_conv,
    "FusedConvTranspose": _fused_conv_transpose,
    "ScaleShift": _scale_shift,
    "WinogradConv": _winograd_conv,
    "FusedAttention": _fused_attention,
    "FusedGroupNorm": _group_norm,
    "FusedLayerNorm": _row_norm,
    "FusedAdaLayerNorm": _row_norm,
    "FusedLayerNorm2d": _layer_norm_2d,
    "Gated": _gated,
    **{f"Fused{suffix}": _fused_activation for suffix in FUSED},
    "FusedRotary": _rotary,
    "FusedRmsNorm": _row_norm,
    "Linear": _linear,
    "MatMul": _matmul,
    "QuantizedConv": _quantized_conv,
    "QuantizedLinear": _quantized_linear,
    "InvertedResidual": _inverted_residual,
}


def family_of(name: str) -> str:
    """Returns the family of an operator: the longest key of FAMILIES that its name starts with."""
    return max((prefix for prefix in FAMILIES if name.startswith(prefix)), key=len)


def cases_of(spec: OpSpec) -> list[NodeCase]:
    """Returns the cases of one operator, the same on every run."""
    return list(FAMILIES[family_of(spec.name)](spec, np.random.default_rng(zlib.crc32(spec.name.encode()))))


def all_cases(limit: int | None = None, dtype: str = "float32") -> list[NodeCase]:
    """Returns the cases of all operators with this element type, cast to it; at most `limit` of each operator."""
    specs = [spec for spec in OPS.values() if dtype in spec.dtypes]
    return [case.cast(dtype) for spec in specs for case in cases_of(spec)[:limit]]
