"""Gated<act>: Y = act(A) B. GatedHalves<act>: A and B are the halves of X's last axis; `gate` is A's index, 0 or 1.

A and B have the same shape; X is [.., 2 D]. float and float16.
N. Shazeer, "GLU Variants Improve Transformer", 2020: SwiGLU (Silu), GEGLU (Gelu, GeluTanh), ReGLU, GLU (Sigmoid).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.ops.activation import ACTIVATIONS, Activation
from graphopt.ops.schema import VALUE_OPSET, Array, Dialect, OpSpec, dim, ints, widen

GATES = ("Relu", "Sigmoid", "Silu", "Gelu", "GeluTanh")


def _spec(activation: Activation) -> OpSpec:
    def reference(a: Array, b: Array) -> tuple[Array, ...]:
        return (activation.reference(widen(a)) * widen(b),)

    def body(dialect: Dialect) -> str:
        return activation.statements("A", "activated", dialect) + "Y = Mul(activated, B)\n"

    return OpSpec(
        name=f"Gated{activation.suffix}",
        inputs=("A", "B"),
        outputs=("Y",),
        attributes={},
        body=body,
        min_opset=activation.min_opset,
        reference=reference,
        summary=f"Y = {activation.suffix}(A) B",
        keeps_shape=True,
    )


def _halves_spec(activation: Activation) -> OpSpec:
    def reference(x: Array, *, gate: int) -> tuple[Array, ...]:
        halves = np.split(widen(x), 2, axis=-1)
        return (activation.reference(halves[gate]) * halves[1 - gate],)

    def body(dialect: Dialect) -> str:
        return (
            dim("columns", "X", -1)
            + ints("last", -1)
            + ints("one", 1)
            + ints("two", 2)
            + "D = Div(columns, two)\n"
            + "gate_any_rank = Constant <value_int: int = @gate> ()\ngate = Reshape(gate_any_rank, one)\n"
            + "first = Mul(gate, D)\nend = Add(first, D)\nA = Slice(X, first, end, last)\n"
            + "other = Sub(one, gate)\nother_first = Mul(other, D)\nother_end = Add(other_first, D)\n"
            + "B = Slice(X, other_first, other_end, last)\n"
            + activation.statements("A", "activated", dialect)
            + "Y = Mul(activated, B)\n"
        )

    return OpSpec(
        name=f"GatedHalves{activation.suffix}",
        inputs=("X",),
        outputs=("Y",),
        attributes={"gate": ir.AttributeType.INT},
        body=body,
        min_opset=VALUE_OPSET,
        reference=reference,
        summary=f"Y = {activation.suffix}(A) B of the halves A and B of X",
    )


SPECS = tuple(make(ACTIVATIONS[suffix]) for make in (_spec, _halves_spec) for suffix in GATES)
