"""On CPUs the int8 weight of a ConvInteger becomes uint8.

    ConvInteger(X, W, x_zero, w_zero) = ConvInteger(X, W + 128, x_zero, w_zero + 128)

Why it is legal: ConvInteger subtracts the zero point from W before it multiplies, so both sides multiply the same
integers.

Conditions: W and w_zero are constants; no other node reads W, because the file would then store it twice.

Where it is faster: on every processor. ONNX Runtime's fast kernel is for uint8 weights. With int8 weights, ONNX Runtime
1.32.0 takes 2.5 to 7.6 times as long (docs/passes/unsigned_conv.md), and ONNX Runtime 1.22.2 has no kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from graphopt.graph.editor import Editor
from graphopt.graph.view import require_input, require_read_once
from graphopt.metadata import Numerics
from graphopt.ops.schema import Array
from graphopt.passes.base import Pass

OFFSET = 128  # from int8 to uint8


@dataclass(frozen=True)
class UnsignedConvPlan:
    """A ConvInteger with its weight and zero point as uint8."""

    node: ir.Node
    weight: Array
    zero_point: Array


class UnsignedConv(Pass[ir.Node, UnsignedConvPlan]):
    name = "unsigned_conv"
    equation = "ConvInteger(X, W, x_zero, w_zero) = ConvInteger(X, W + 128, x_zero, w_zero + 128) for int8 W"
    numerics = Numerics.EXACT
    anchors = frozenset({("", "ConvInteger")})

    def match(self, node: ir.Node, editor: Editor) -> ir.Node | None:
        is_signed = editor.dtype(require_input(node, 1)) is ir.DataType.INT8
        return node if is_signed and editor.target.device == "cpu" else None

    def legal(self, match: ir.Node, editor: Editor) -> UnsignedConvPlan:
        W = require_input(match, 1)
        w_zero = match.inputs[3] if len(match.inputs) > 3 else None
        weight = editor.require_constant(W, "the weight", match)
        zero = np.int8(0) if w_zero is None else editor.require_constant(w_zero, "the zero point of the weight", match)
        require_read_once(W, match)
        return UnsignedConvPlan(match, unsigned(weight), unsigned(np.asarray(zero)))

    def rewrite(self, plan: UnsignedConvPlan, editor: Editor) -> str:
        node = plan.node
        name = require_input(node, 1).name
        weight = editor.initializer(node, plan.weight, f"{name}_uint8")
        zero_point = editor.initializer(node, plan.zero_point, f"{name}_zero_point_uint8")
        x_zero = node.inputs[2] if len(node.inputs) > 2 else None
        editor.rewire(node, [node.inputs[0], weight, x_zero, zero_point])
        return "the weight became uint8"


def unsigned(array: Array) -> Array:
    """Returns int8 elements as uint8, plus 128."""
    return (array.astype(np.int16) + OFFSET).astype(np.uint8)
