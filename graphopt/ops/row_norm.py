"""FusedLayerNorm, FusedAdaLayerNorm and FusedRmsNorm[Add[Sum]]: over the last axis, after a residual sum.

X and R [.., D], gamma and beta [D]; D > 1 for LayerNorm, since runtimes refuse rows of one number. With Add the sum
X + R is normalised; with Sum it is the second output. Of FusedAdaLayerNorm gamma and beta are those of each image:
[N or 1, 1, .., D] of X's rank, which is 2 or more.
float and float16, statistics in float32 at least.
J. L. Ba et al., "Layer Normalization", 2016; B. Zhang, R. Sennrich, "Root Mean Square Layer Normalization", 2019;
W. Peebles, S. Xie, "Scalable Diffusion Models with Transformers", 2023 (adaLN).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.ops.schema import Array, Dialect, OpSpec, attribute, cast_like, dim, ints, reduce_mean, reduce_sum, widen

LAYER_NORMALIZATION_OPSET = 17


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

    def body(dialect: Dialect) -> str:
        total = "S" if sum_output else ("sum" if add else "X")
        statements = f"{total} = Add(X, R)\n" if add else ""
        if not rms and dialect.opset >= LAYER_NORMALIZATION_OPSET:
            # Runtimes have a kernel for it, which is faster, and exact for rows of equal numbers. The mean goes first:
            # onnxruntime 1.22 takes the variance as E[x^2] - E[x]^2, which is NaN where rows are large and alike.
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
            return statements + cast_like("Y", "normalized", "X", dialect)
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
            return statements + cast_like("Y", "scaled", "X", dialect)
        statements += "beta_float = Cast <to: int = 1> (beta)\nshifted = Add(scaled, beta_float)\n"
        return statements + cast_like("Y", "shifted", "X", dialect)

    return OpSpec(
        name=f"{base}{'Add' if add else ''}{'Sum' if sum_output else ''}",
        inputs=("X", *(("R",) if add else ()), "gamma", *(() if rms else ("beta",))),
        outputs=("Y", "S") if sum_output else ("Y",),
        attributes={"epsilon": ir.AttributeType.FLOAT},
        body=body,
        min_opset=11,  # negative indices of Gather and ReduceSum
        reference=reference,
        summary="Y = norm(X + R) gamma + beta over the last axis" + (", gamma and beta of each image" if ada else ""),
        keeps_shape=True,
    )


SPECS = tuple(
    _spec(base, add, sum_output)
    for base in ("FusedLayerNorm", "FusedAdaLayerNorm", "FusedRmsNorm")
    for add, sum_output in ((False, False), (True, False), (True, True))
)
