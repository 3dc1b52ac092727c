"""The activations that an operator of ours may end with. Mirrors native/ops/activation.h.

Each adds a suffix to the operator's name, its attributes to the node, and statements to the body.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from graphopt.ops.schema import Array


@dataclass(frozen=True)
class Activation:
    """One activation.

    Attributes:
        suffix: what the operator's name ends with.
        attributes: names of its float attributes.
        body: statements that compute `{y}` from `{x}` in ONNX text syntax; temporaries start with `act_`.
        reference: numpy, float64 in and out.

    """

    suffix: str
    attributes: tuple[str, ...]
    body: str
    reference: Callable[..., Array] = field(repr=False)

    @property
    def attribute_types(self) -> dict[str, ir.AttributeType]:
        return dict.fromkeys(self.attributes, ir.AttributeType.FLOAT)

    def statements(self, x: str, y: str) -> str:
        return self.body.replace("{x}", x).replace("{y}", y)


def sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(1.0 / (1.0 + np.exp(-x)))


def _softplus(x: Array) -> Array:
    return np.asarray(np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x))))


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _constant(name: str, value: str, like: str) -> str:
    """A scalar of the type of `like`; `value` is a literal or an attribute reference."""
    return f"  {name}_f = Constant <value_float: float = {value}> ()\n  {name} = CastLike({name}_f, {like})\n"


_BODIES = {
    "": "  {y} = Identity({x})",
    "Relu": "  {y} = Relu({x})",
    "LeakyRelu": "  {y} = LeakyRelu <alpha: float = @alpha> ({x})",
    "Clip": _constant("act_min", "@min", "{x}")
    + _constant("act_max", "@max", "{x}")
    + "  {y} = Clip({x}, act_min, act_max)",
    "Sigmoid": "  {y} = Sigmoid({x})",
    "Silu": "  act_s = Sigmoid({x})\n  {y} = Mul({x}, act_s)",
    "HardSigmoid": "  {y} = HardSigmoid <alpha: float = @alpha, beta: float = @beta> ({x})",
    "HardSwish": "  {y} = HardSwish({x})",
    "Tanh": "  {y} = Tanh({x})",
    "Gelu": _constant("act_r", "0.70710678118654752440", "{x}")
    + _constant("act_one", "1.0", "{x}")
    + _constant("act_half", "0.5", "{x}")
    + "  act_z = Mul({x}, act_r)\n  act_e = Erf(act_z)\n  act_p = Add(act_e, act_one)\n"
    + "  act_h = Mul({x}, act_half)\n  {y} = Mul(act_h, act_p)",
    "GeluTanh": _constant("act_c", "0.044715", "{x}")
    + _constant("act_r", "0.79788456080286535588", "{x}")
    + _constant("act_one", "1.0", "{x}")
    + _constant("act_half", "0.5", "{x}")
    + "  act_x2 = Mul({x}, {x})\n  act_cx2 = Mul(act_x2, act_c)\n  act_q = Add(act_cx2, act_one)\n"
    + "  act_xq = Mul({x}, act_q)\n  act_z = Mul(act_xq, act_r)\n  act_t = Tanh(act_z)\n  act_p = Add(act_t, act_one)\n"
    + "  act_h = Mul({x}, act_half)\n  {y} = Mul(act_h, act_p)",
    "Mish": "  act_s = Softplus({x})\n  act_t = Tanh(act_s)\n  {y} = Mul({x}, act_t)",
}

_REFERENCES: dict[str, Callable[..., Array]] = {
    "": lambda x: x,
    "Relu": lambda x: np.maximum(x, 0.0),
    "LeakyRelu": lambda x, alpha: np.where(x < 0, alpha * x, x),
    "Clip": lambda x, min, max: np.minimum(np.maximum(x, min), max),
    "Sigmoid": sigmoid,
    "Silu": lambda x: x * sigmoid(x),
    "HardSigmoid": lambda x, alpha, beta: np.clip(alpha * x + beta, 0.0, 1.0),
    "HardSwish": lambda x: x * np.clip(x / 6.0 + 0.5, 0.0, 1.0),
    "Tanh": np.tanh,
    "Gelu": lambda x: 0.5 * x * (1.0 + _erf(x * math.sqrt(0.5))),
    "GeluTanh": lambda x: 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))),
    "Mish": lambda x: x * np.tanh(_softplus(x)),
}

_ATTRIBUTES = {"LeakyRelu": ("alpha",), "Clip": ("min", "max"), "HardSigmoid": ("alpha", "beta")}

ACTIVATIONS: dict[str, Activation] = {
    suffix: Activation(suffix, _ATTRIBUTES.get(suffix, ()), body, _REFERENCES[suffix])
    for suffix, body in _BODIES.items()
}
