"""FusedLayerNorm, FusedAdaLayerNorm and FusedRmsNorm[Add[Sum]]: normalization over the last axis, after a residual sum.
FusedLayerNorm[AddSum]IntoWindows and FusedLayerNormAddSumFromWindows also convert between image and window order.

X and R [.., D], gamma and beta [D]; D > 1 for LayerNorm, because runtimes refuse rows of one element. Add normalizes
the sum X + R; Sum makes the sum S the second output. FusedAdaLayerNorm has gamma and beta for each image:
[N or 1, 1, .., D] with the rank of X, which is at least 2.

IntoWindows: X [N, H, W, D] or [N, H W, D] contains images of size `image` = (H, W). Each is padded with zeros at its
end to a multiple of `window` = (h, w), rolled by -`shift` (row shift[0] and column shift[1] come first), and
partitioned into windows. Y [N windows, h w, D] is the norm of X in window order, 0 in the padding. With AddSum there is
no padding, and X, R and S are [N, H W, D]. FromWindows: R [N windows, h w, D] is in window order; X, the sum S and its
norm Y are in image order, without padding.
float and float16, statistics in float32 at least.
J. L. Ba et al., "Layer Normalization", 2016; B. Zhang, R. Sennrich, "Root Mean Square Layer Normalization", 2019;
W. Peebles, S. Xie, "Scalable Diffusion Models with Transformers", 2023 (adaLN); Z. Liu et al., "Swin Transformer",
2021 (windows).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from graphopt.ops.schema import (
    VALUE_OPSET,
    Array,
    Dialect,
    OpSpec,
    attribute,
    cast_like,
    dim,
    ints,
    reduce_mean,
    reduce_sum,
    widen,
)

LAYER_NORMALIZATION_OPSET = 17


def _norm(base: str, add: bool, sum_output: bool, dialect: Dialect, *, R: str = "R", Y: str = "Y") -> str:
    rms, ada = base == "FusedRmsNorm", base == "FusedAdaLayerNorm"
    total = "S" if sum_output else ("sum" if add else "X")
    statements = f"{total} = Add(X, {R})\n" if add else ""
    if not rms and dialect.opset >= LAYER_NORMALIZATION_OPSET:
        # Runtimes have a faster kernel for LayerNormalization, which is exact for constant rows. The mean is subtracted
        # first: onnxruntime 1.22 computes the variance as E[x^2] - E[x]^2, which is NaN for rows of large, nearly equal
        # elements.
        statements += f"s_float = Cast <to: int = 1> ({total})\n" + reduce_mean("mean", "s_float", -1, dialect)
        statements += "centred = Sub(s_float, mean)\n"
        statements += "gamma_float = Cast <to: int = 1> (gamma)\nbeta_float = Cast <to: int = 1> (beta)\n"
        attributes = "<axis: int = -1, epsilon: float = @epsilon>"
        if ada:  # LayerNormalization has one gamma for all rows
            statements += dim("columns", "s_float", -1)
            statements += "ones = ConstantOfShape <value: tensor = float[1] {1.0}> (columns)\n"
            statements += f"standard = LayerNormalization {attributes} (centred, ones)\n"
            statements += "scaled = Mul(standard, gamma_float)\nnormalized = Add(scaled, beta_float)\n"
        else:
            statements += f"normalized = LayerNormalization {attributes} (centred, gamma_float, beta_float)\n"
        return statements + cast_like(Y, "normalized", "X", dialect)
    statements += (
        f"s_float = Cast <to: int = 1> ({total})\n"
        + dim("count_1d", "s_float", -1)
        + "count = Cast <to: int = 1> (count_1d)\n"
    )
    if rms:
        statements += "centred = Identity(s_float)\n"
    else:
        statements += reduce_sum("total", "s_float", -1, dialect)
        statements += "mean = Div(total, count)\ncentred = Sub(s_float, mean)\n"
    statements += (
        "squares = Mul(centred, centred)\n"
        + reduce_sum("total_squares", "squares", -1, dialect)
        + "variance = Div(total_squares, count)\n"
        + attribute("eps_any_rank", "epsilon", dialect)
        + ints("one_dim", 1)
        + "eps = Reshape(eps_any_rank, one_dim)\n"
        + "variance_eps = Add(variance, eps)\ndeviation = Sqrt(variance_eps)\n"
        + "normalized = Div(centred, deviation)\ngamma_float = Cast <to: int = 1> (gamma)\n"
        + "scaled = Mul(normalized, gamma_float)\n"
    )
    if rms:
        return statements + cast_like(Y, "scaled", "X", dialect)
    statements += "beta_float = Cast <to: int = 1> (beta)\nshifted = Add(scaled, beta_float)\n"
    return statements + cast_like(Y, "shifted", "X", dialect)


def _spec(base: str, add: bool, sum_output: bool) -> OpSpec:
    rms, ada = base == "FusedRmsNorm", base == "FusedAdaLayerNorm"

    def reference(x: Array, *rest: Array, epsilon: float) -> tuple[Array, ...]:
        extra = [widen(r) for r in rest]
        s = widen(x) + extra.pop(0) if add else widen(x)
        centred = s if rms else s - s.mean(axis=-1, keepdims=True)
        y = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + epsilon) * extra[0]
        if not rms:
            y = y + extra[1]
        return (y, s) if sum_output else (y,)

    return OpSpec(
        name=f"{base}{'Add' if add else ''}{'Sum' if sum_output else ''}",
        inputs=("X", *(("R",) if add else ()), "gamma", *(() if rms else ("beta",))),
        outputs=("Y", "S") if sum_output else ("Y",),
        attributes={"epsilon": ir.AttributeType.FLOAT},
        body=lambda dialect: _norm(base, add, sum_output, dialect),
        min_opset=11,  # negative indices of Gather and ReduceSum
        reference=reference,
        summary="Y = norm(X + R) gamma + beta over the last axis" + (", gamma and beta for each image" if ada else ""),
        keeps_shape=True,
    )


def window_rows(image: Sequence[int], window: Sequence[int], shift: Sequence[int]) -> Array:
    """Returns the index in the flattened image of each element of the windows, [windows, h w]; -1 for padding.

    Args:
        image: (H, W).
        window: (h, w).
        shift: the image row and column that come first.
    """
    (H, W), (h, w) = image, window
    rows: Array = np.full((-(-H // h) * h, -(-W // w) * w), -1)
    rows[:H, :W] = np.arange(H * W).reshape(H, W)
    rows = np.roll(rows, (-shift[0], -shift[1]), (0, 1)).reshape(-(-H // h), h, -(-W // w), w)
    return np.asarray(rows.transpose(0, 2, 1, 3).reshape(-1, h * w))


def _sizes() -> str:
    """Returns statements that compute the sizes of images and windows: int64 vectors [2], and their elements [1]."""
    text = "".join(f"{n} = Constant <value_ints: ints = @{n}> ()\n" for n in ("image", "window", "shift"))
    text += ints("one", 1) + "wider = Add(image, window)\nup_to = Sub(wider, one)\ncounts = Div(up_to, window)\n"
    text += "padded = Mul(counts, window)\n" + dim("images", "X", 0) + dim("columns", "X", -1)
    for i in (0, 1):
        text += ints(f"at_{i}", i)
        text += "".join(f"{n}_{i} = Gather({n}, at_{i})\n" for n in ("image", "window", "shift", "counts", "padded"))
    text += "windows_of_image = Mul(counts_0, counts_1)\nwindows = Mul(images, windows_of_image)\n"
    return text + "rows_of_window = Mul(window_0, window_1)\n"


def _rolled(x: str, y: str, axis: int, length: str, by: str) -> str:
    """Returns statements that roll x by -`by` along `axis` and keep the first `length` rows or columns."""
    text = (
        f"{y}_zero = Constant <value: tensor = int64 {{0}}> ()\n{y}_one = Constant <value: tensor = int64 {{1}}> ()\n"
    )
    text += f"{y}_end = Squeeze({length})\n{y}_places = Range({y}_zero, {y}_end, {y}_one)\n"
    text += f"{y}_moved = Add({y}_places, {by})\n{y}_at = Mod({y}_moved, padded_{axis - 1})\n"
    return text + f"{y} = Gather <axis: int = {axis}> ({x}, {y}_at)\n"


def _into_windows(x: str, y: str) -> str:
    text = "image_shape = Concat <axis: int = 0> (images, image, columns)\n"
    text += f"x_float = Cast <to: int = 1> ({x})\nx_image = Reshape(x_float, image_shape)\n"
    text += "extra = Sub(padded, image)\n" + ints("zeros", 0, 0, 0, 0, 0) + ints("zero_1d", 0)
    text += "pads = Concat <axis: int = 0> (zeros, extra, zero_1d)\nx_padded = Pad(x_image, pads)\n"
    text += _rolled("x_padded", "x_lines", 1, "padded_0", "shift_0")
    text += _rolled("x_lines", "x_turned", 2, "padded_1", "shift_1")
    text += "cut = Concat <axis: int = 0> (images, counts_0, window_0, counts_1, window_1, columns)\n"
    text += "x_cut = Reshape(x_turned, cut)\nx_windows = Transpose <perm: ints = [0, 1, 3, 2, 4, 5]> (x_cut)\n"
    text += "windows_shape = Concat <axis: int = 0> (windows, rows_of_window, columns)\n"
    return text + f"{y} = Reshape(x_windows, windows_shape)\n"


def _out_of_windows(y: str) -> str:
    text = "cut = Concat <axis: int = 0> (images, counts, window, columns)\nr_cut = Reshape(R, cut)\n"
    text += "r_joined = Transpose <perm: ints = [0, 1, 3, 2, 4, 5]> (r_cut)\n"
    text += (
        "padded_shape = Concat <axis: int = 0> (images, padded, columns)\nr_image = Reshape(r_joined, padded_shape)\n"
    )
    text += "back = Sub(padded, shift)\nback_0 = Gather(back, at_0)\nback_1 = Gather(back, at_1)\n"
    text += _rolled("r_image", "r_lines", 1, "image_0", "back_0")
    text += _rolled("r_lines", "r_turned", 2, "image_1", "back_1")
    return text + f"x_shape = Shape(X)\n{y} = Reshape(r_turned, x_shape)\n"


def _windows_spec(of: OpSpec, into: bool) -> OpSpec:
    """Makes the variant of FusedLayerNorm or FusedLayerNormAddSum with Y (`into`) or R in window order."""
    add = "R" in of.inputs

    def reference(
        x: Array, *rest: Array, image: Sequence[int], window: Sequence[int], shift: Sequence[int], epsilon: float
    ) -> tuple[Array, ...]:
        rows, D = window_rows(image, window, shift), x.shape[-1]
        if not into:
            residual, *parameters = rest
            windows = residual.reshape(-1, rows.size, D)
            back = np.argsort(rows.reshape(-1), kind="stable")[np.count_nonzero(rows < 0) :]
            return of.reference(x, windows[:, back].reshape(x.shape), *parameters, epsilon=epsilon)
        y, *sums = of.reference(x, *rest, epsilon=epsilon)
        y = np.concatenate([y.reshape(-1, image[0] * image[1], D), np.zeros((len(x), 1, D))], axis=1)
        return (y[:, rows].reshape(-1, rows.shape[1], D), *sums)

    def body(dialect: Dialect) -> str:
        if not into:
            return _sizes() + _out_of_windows("R_images") + _norm("FusedLayerNorm", True, True, dialect, R="R_images")
        norm = _norm("FusedLayerNorm", add, add, dialect, Y="Y_images")
        return norm + _sizes() + _into_windows("Y_images", "Y_windows") + cast_like("Y", "Y_windows", "X", dialect)

    return replace(
        of,
        name=f"{of.name}{'Into' if into else 'From'}Windows",
        attributes={**of.attributes, **dict.fromkeys(("image", "window", "shift"), ir.AttributeType.INTS)},
        body=body,
        min_opset=VALUE_OPSET,
        reference=reference,
        summary=f"Y = norm(X{' + R' if add else ''}) gamma + beta, {'Y' if into else 'R'} in window order",
        keeps_shape=not into,
    )


NORMS = tuple(
    _spec(base, add, sum_output)
    for base in ("FusedLayerNorm", "FusedAdaLayerNorm", "FusedRmsNorm")
    for add, sum_output in ((False, False), (True, False), (True, True))
)
_PLAIN = {of.name: of for of in NORMS}
SPECS = (
    *NORMS,
    _windows_spec(_PLAIN["FusedLayerNorm"], into=True),
    _windows_spec(_PLAIN["FusedLayerNormAddSum"], into=True),
    _windows_spec(_PLAIN["FusedLayerNormAddSum"], into=False),
)
