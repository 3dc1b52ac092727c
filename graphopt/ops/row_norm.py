"""FusedLayerNorm[Add[Sum]] and FusedRmsNorm[Add[Sum]]: normalisation over the last axis, after a residual sum.

X and R [.., D], gamma and beta [D]. With Add the sum X + R is normalised; with Sum it is the second output.
float and float16, statistics in float32 at least.
J. L. Ba et al., "Layer Normalization", 2016; B. Zhang, R. Sennrich, "Root Mean Square Layer Normalization", 2019.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.ops.schema import Array, OpSpec, widen


def _spec(rms: bool, add: bool, sum_output: bool) -> OpSpec:
    def reference(x: Array, *rest: Array, epsilon: float) -> tuple[Array, ...]:
        extra = [widen(r) for r in rest]
        s = widen(x) + extra.pop(0) if add else widen(x)
        centred = s if rms else s - s.mean(axis=-1, keepdims=True)
        y = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + epsilon) * extra[0]
        if not rms:
            y = y + extra[1]
        return (y, s) if sum_output else (y,)

    total = "S" if sum_output else ("sum" if add else "X")
    lines = [f"{total} = Add(X, R)"] if add else []
    lines += [
        f"s_float = Cast <to: int = 1> ({total})",
        "last_axis = Constant <value_ints: ints = [-1]> ()",
        "count_1d = Shape <start: int = -1> (s_float)",
        "count = Cast <to: int = 1> (count_1d)",
    ]
    if rms:
        lines += ["centred = Identity(s_float)"]
    else:
        lines += [
            "total = ReduceSum <keepdims: int = 1> (s_float, last_axis)",
            "mean = Div(total, count)",
            "centred = Sub(s_float, mean)",
        ]
    lines += [
        "squares = Mul(centred, centred)",
        "total_squares = ReduceSum <keepdims: int = 1> (squares, last_axis)",
        "variance = Div(total_squares, count)",
        "eps = Constant <value_float: float = @epsilon> ()",
        "variance_eps = Add(variance, eps)",
        "deviation = Sqrt(variance_eps)",
        "normalized = Div(centred, deviation)",
        "gamma_float = Cast <to: int = 1> (gamma)",
        "scaled = Mul(normalized, gamma_float)",
    ]
    if rms:
        lines += ["Y = CastLike(scaled, X)"]
    else:
        lines += [
            "beta_float = Cast <to: int = 1> (beta)",
            "shifted = Add(scaled, beta_float)",
            "Y = CastLike(shifted, X)",
        ]
    return OpSpec(
        name=f"Fused{'RmsNorm' if rms else 'LayerNorm'}{'Add' if add else ''}{'Sum' if sum_output else ''}",
        inputs=("X", *(("R",) if add else ()), "gamma", *(() if rms else ("beta",))),
        outputs=("Y", "S") if sum_output else ("Y",),
        attributes={"epsilon": ir.AttributeType.FLOAT},
        body="\n".join("  " + line for line in lines),
        reference=reference,
        summary="Y = norm(X + R) gamma + beta over the last axis",
    )


SPECS = tuple(
    _spec(rms, add, sum_output)
    for rms in (False, True)
    for add, sum_output in ((False, False), (True, False), (True, True))
)
