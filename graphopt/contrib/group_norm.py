"""GroupNorm and SkipGroupNorm: Y = act(gamma (S - mean) / sqrt(var + epsilon) + beta), S = X + skip + bias.

act is SiLU or the identity. X is [N, H, W, C] unless channels_last is 0.
Y. Wu, K. He, "Group Normalization", ECCV 2018.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from graphopt.contrib.schema import REQUIRED, Call, ContribOp
from graphopt.contrib.writer import Writer


def _define(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    x, outputs = call["X"], {}
    if "skip" in call:
        x = _sum(w, call)
        outputs["S"] = x
    channels_last, groups = bool(call.attribute("channels_last")), call.attribute("groups")
    if channels_last:
        x = w.transpose(x, 0, 3, 1, 2)
    T = w.dtype(call["X"])
    grouped = w.reshape(x, 0, groups, -1)
    one, zero = (w.array(np.full(groups, n, T.numpy())) for n in (1, 0))
    normalized = w.op("InstanceNormalization", grouped, one, zero, epsilon=call.attribute("epsilon"))
    y = w.op("Reshape", normalized, w.op("Shape", x))
    for name, op in (("gamma", "Mul"), ("beta", "Add")):
        parameter = call[name] if w.dtype(call[name]) == T else w.cast(call[name], T)
        y = w.op(op, y, w.unsqueeze(parameter, 1, 2))
    if call.attribute("activation"):
        y = w.mul(y, w.op("Sigmoid", y))
    outputs["Y"] = w.transpose(y, 0, 2, 3, 1) if channels_last else y
    return outputs


def _sum(w: Writer, call: Call[ir.Value]) -> ir.Value:
    channels_last = bool(call.attribute("channels_last"))
    skip, bias = call["skip"], call.get("bias")
    if w.rank(skip) == 2:
        skip = w.unsqueeze(skip, *((1, 2) if channels_last else (2, 3)))
    x = w.add(call["X"], skip)
    return x if bias is None else w.add(x, bias if channels_last else w.unsqueeze(bias, 1, 2))


_ATTRIBUTES = {"activation": REQUIRED, "channels_last": 1, "epsilon": 1e-5, "groups": REQUIRED}
SPECS = (
    ContribOp("GroupNorm(X, gamma, beta) -> Y", _define, _ATTRIBUTES, form="FusedGroupNorm[Silu]"),
    ContribOp(
        "SkipGroupNorm(X, gamma, beta, skip, bias?) -> Y, S?", _define, _ATTRIBUTES, form="Add, FusedGroupNorm[Silu]"
    ),
)
