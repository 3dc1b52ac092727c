"""On CPUs a Softmax between 8-bit integers reads its input without the zero point.

    Softmax(DequantizeLinear(X, s, z)) = Softmax(Cast(X) * s) before QuantizeLinear

Why it is legal: a Softmax does not change if a constant is added to all its inputs, and s z is such a constant. s and z
are scalars. The result differs by the rounding of one multiplication, s * X instead of s * (X - z).

Conditions: X is int8 or uint8; s and z are constant scalars; s is float32; only a QuantizeLinear reads the Softmax.

Where it is faster: from a few thousand elements on (docs/passes/quantized_softmax.md). ONNX Runtime would
fuse the three nodes into QLinearSoftmax, which is not vectorized; Cast, Mul, Softmax and QuantizeLinear are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.view import producer_of, require_input, sole_reader
from graphopt.metadata import Numerics
from graphopt.ops.schema import Array
from graphopt.passes.base import Pass
from graphopt.remarks import Code, Refusal, became

INTEGERS = (ir.DataType.INT8, ir.DataType.UINT8)  # other types are not fused by ONNX Runtime
LARGEST_SCALE = 1e30  # X * s is finite for scales of smaller absolute value


@dataclass(frozen=True)
class QuantizedSoftmaxPlan:
    """A Softmax, the integers that it reads, and their scale, a scalar."""

    softmax: ir.Node
    dequantize: ir.Node
    X: ir.Value
    scale: Array


class QuantizedSoftmax(Pass[tuple[ir.Node, ir.Node], QuantizedSoftmaxPlan]):
    name = "quantized_softmax"
    equation = "Softmax(DequantizeLinear(X, s, z)) = Softmax(Cast(X) * s) before QuantizeLinear"
    numerics = Numerics.REASSOCIATED
    anchors = frozenset({("", "Softmax")})
    fallback = True  # rewrites nodes that fuse_attention has refused

    def match(self, node: ir.Node, editor: Editor) -> tuple[ir.Node, ir.Node] | None:
        dequantize = producer_of(require_input(node, 0), "DequantizeLinear")
        if editor.target.device != "cpu" or dequantize is None:
            return None
        return None if sole_reader(node.outputs[0], "QuantizeLinear") is None else (node, dequantize)

    def legal(self, match: tuple[ir.Node, ir.Node], editor: Editor) -> QuantizedSoftmaxPlan:
        softmax, dequantize = match
        X = require_input(dequantize, 0)
        editor.require_dtype(X, dequantize, *INTEGERS)
        scale = editor.require_constant(require_input(dequantize, 1), "the scale", dequantize)
        if len(dequantize.inputs) > 2 and dequantize.inputs[2] is not None:
            editor.require_constant(dequantize.inputs[2], "the zero point", dequantize)
        if scale.size != 1:
            raise Refusal(Code.PER_CHANNEL_SCALE, f"the scale has {scale.size} elements", dequantize)
        if scale.dtype != np.float32:
            raise Refusal(Code.WRONG_DTYPE, f"the scale is {scale.dtype}", dequantize)
        if not abs(scale.item()) < LARGEST_SCALE:
            raise Refusal(Code.NOT_FINITE, f"the scale is {scale.item():g}", dequantize)
        return QuantizedSoftmaxPlan(softmax, dequantize, X, scale.reshape(()))

    def rewrite(self, plan: QuantizedSoftmaxPlan, editor: Editor) -> str:
        b = Builder(editor, plan.softmax)
        x = b.op("Cast", plan.X, to=ir.DataType.FLOAT, _dtype=ir.DataType.FLOAT)
        scaled = b.op("Mul", x, b.initializer(plan.scale, "scale"), _like=plan.softmax.inputs[0])
        y = b.copy(plan.softmax, scaled)
        editor.replace([plan.softmax], b.nodes, {plan.softmax.outputs[0]: y}, anchor=plan.softmax)
        return became(2, "Cast, Mul and Softmax")
