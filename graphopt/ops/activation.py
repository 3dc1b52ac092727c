"""The activations at the end of our operators. Mirrors native/operators/activation.h.

Each adds a suffix to the operator's name, attributes to the node, and statements to the function body.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from graphopt.ops.schema import MIN_OPSET, VALUE_OPSET, Array, Dialect, OpSpec, attribute, number, widen


@dataclass(frozen=True)
class Activation:
    """One activation.

    Attributes:
        suffix: the suffix of the operator's name.
        attributes: names of its float attributes.
        body: `body(dialect)` returns statements that compute `{y}` from `{x}` in ONNX text syntax; temporaries start
            with `act_`.
        reference: computes the activation with numpy, from float64 to float64.
        min_opset: the oldest default opset with the operators of the body.
    """

    suffix: str
    attributes: tuple[str, ...]
    body: Callable[[Dialect], str] = field(repr=False)
    reference: Callable[..., Array] = field(repr=False)
    min_opset: int = MIN_OPSET

    @property
    def attribute_types(self) -> dict[str, ir.AttributeType]:
        return dict.fromkeys(self.attributes, ir.AttributeType.FLOAT)

    def statements(self, x: str, y: str, dialect: Dialect) -> str:
        """Returns the statements that compute value `y` from value `x`."""
        return self.body(dialect).replace("{x}", x).replace("{y}", y)


def sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(1.0 / (1.0 + np.exp(-x)))


def _softplus(x: Array) -> Array:
    return np.asarray(np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x))))


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _clip(dialect: Dialect) -> str:
    if dialect.opset < 11:
        return "{y} = Clip <min: float = @min, max: float = @max> ({x})\n"
    bounds = attribute("act_min", "min", dialect, "{x}") + attribute("act_max", "max", dialect, "{x}")
    if dialect.opset < VALUE_OPSET:
        return bounds + "act_low = Max({x}, act_min)\n{y} = Min(act_low, act_max)\n"
    return bounds + "{y} = Clip({x}, act_min, act_max)\n"


def _hard_swish(_: Dialect) -> str:
    return f"act_s = HardSigmoid <alpha: float = {1 / 6!r}, beta: float = 0.5> ({{x}})\n{{y}} = Mul({{x}}, act_s)\n"


def _gelu(dialect: Dialect) -> str:
    # ONNX Runtime fuses this form.
    numbers = {"act_r": math.sqrt(2.0), "act_one": 1.0, "act_half": 0.5}
    return "".join(number(n, v, "{x}", dialect) for n, v in numbers.items()) + (
        "act_z = Div({x}, act_r)\nact_e = Erf(act_z)\nact_p = Add(act_e, act_one)\n"
        "act_h = Mul({x}, act_half)\n{y} = Mul(act_h, act_p)\n"
    )


def _gelu_tanh(dialect: Dialect) -> str:
    numbers = {"act_c": 0.044715, "act_r": math.sqrt(2.0 / math.pi), "act_one": 1.0, "act_half": 0.5}
    return "".join(number(n, v, "{x}", dialect) for n, v in numbers.items()) + (
        "act_x2 = Mul({x}, {x})\nact_cx2 = Mul(act_x2, act_c)\nact_q = Add(act_cx2, act_one)\n"
        "act_xq = Mul({x}, act_q)\nact_z = Mul(act_xq, act_r)\nact_t = Tanh(act_z)\nact_p = Add(act_t, act_one)\n"
        "act_h = Mul({x}, act_half)\n{y} = Mul(act_h, act_p)\n"
    )


_BODIES: dict[str, Callable[[Dialect], str]] = {
    "": lambda _: "{y} = Identity({x})\n",
    "Relu": lambda _: "{y} = Relu({x})\n",
    "LeakyRelu": lambda _: "{y} = LeakyRelu <alpha: float = @alpha> ({x})\n",
    "Clip": _clip,
    "Sigmoid": lambda _: "{y} = Sigmoid({x})\n",
    "Silu": lambda _: "act_s = Sigmoid({x})\n{y} = Mul({x}, act_s)\n",
    "HardSigmoid": lambda _: "{y} = HardSigmoid <alpha: float = @alpha, beta: float = @beta> ({x})\n",
    "HardSwish": _hard_swish,
    "Tanh": lambda _: "{y} = Tanh({x})\n",
    "Gelu": _gelu,
    "GeluTanh": _gelu_tanh,
    "Mish": lambda _: "act_s = Softplus({x})\nact_t = Tanh(act_s)\n{y} = Mul({x}, act_t)\n",
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

_MIN_OPSETS = {"Gelu": 9}  # Erf
_ATTRIBUTES = {"LeakyRelu": ("alpha",), "Clip": ("min", "max"), "HardSigmoid": ("alpha", "beta")}

ACTIVATIONS: dict[str, Activation] = {
    suffix: Activation(
        suffix, _ATTRIBUTES.get(suffix, ()), body, _REFERENCES[suffix], _MIN_OPSETS.get(suffix, MIN_OPSET)
    )
    for suffix, body in _BODIES.items()
}


SLOPED = "PRelu"  # the suffix of operators with a last input `slope`, which has one element for each channel


def with_slopes(plain: OpSpec) -> OpSpec:
    """Makes NAME[Add]PRelu from NAME[Add], which has no activation: Y = PRelu(NAME[Add](..), slope).

    The slope is [C, 1, .., 1] for Y [N, C, D1, .., Dk]. It has one dimension less than Y and broadcasts to it.
    """

    def reference(*inputs: Array, **attributes: Any) -> tuple[Array, ...]:
        (y,) = plain.reference(*inputs[:-1], **attributes)
        return (np.where(y < 0, widen(inputs[-1]) * y, y),)

    def body(dialect: Dialect) -> str:
        return plain.body(dialect).replace("Y = Identity(", "before = Identity(") + "Y = PRelu(before, slope)\n"

    return replace(
        plain,
        name=plain.name + SLOPED,
        inputs=(*plain.inputs, "slope"),
        body=body,
        reference=reference,
        summary=f"{plain.summary.replace('id(', 'PRelu(', 1).removesuffix(')')}, slope), a slope for each channel",
    )
