"""A 3x3 convolution with stride 1 becomes WinogradConv if that is faster on the target.

    Conv(X, W, B) = WinogradConv(X, W, B);  the kernel computes Y = A^T [(G W G^T) * (B^T X B)] A for each tile

A. Lavin, S. Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016.

Why it is legal: WinogradConv is defined as the same convolution; its kernel needs fewer multiplications and rounds
differently (numerics: approximate).

Conditions: X has rank 4; kernel 3x3, strides, dilations and group are 1; auto_pad is resolved (SAME_UPPER and
SAME_LOWER of stride 1 both mean one row on each side); pads are not negative; the weight is not quantized, but need not
be a constant; the type is float32, and the rewrite is faster on the target. `--ignore-cost-model` also rewrites float16
and slower candidates.
"""

from __future__ import annotations

import onnx_ir as ir

from graphopt.graph.editor import Editor
from graphopt.graph.shapes.sizes import Size
from graphopt.graph.view import attribute_int, attribute_ints, require_input
from graphopt.metadata import Numerics
from graphopt.passes.base import Pass
from graphopt.passes.fused_conv import ConvMatch, emit_conv, require_floats, resolved_pads
from graphopt.remarks import Code, Refusal
from graphopt.targets.profit import Candidate, winograd_no_gain


class WinogradConv(Pass[ConvMatch, ConvMatch]):
    name = "winograd_conv"
    equation = "Conv 3x3, stride 1 -> WinogradConv: Y = A^T [(G W G^T) * (B^T X B)] A"
    numerics = Numerics.APPROXIMATE
    anchors = frozenset({("", "Conv"), ("", "QLinearConv"), ("", "ConvInteger")})

    def match(self, node: ir.Node, editor: Editor) -> ConvMatch | None:
        if node.op_type != "Conv":
            raise Refusal(Code.QUANTIZED, f"the node is a {node.op_type}", node)
        x, w = require_input(node, 0), require_input(node, 1)
        dims = editor.shapes.dims(w)
        kernel = attribute_ints(node, "kernel_shape", () if dims is None else _static(dims[2:]))
        if kernel != (3, 3):
            return None
        M, C = (None, None) if dims is None else (dims[0].value, dims[1].value)
        if M is None or C is None:
            raise Refusal(Code.UNKNOWN_SHAPE, f"the number of channels of {w.name} is not known", node)
        for name, default in (("strides", (1, 1)), ("dilations", (1, 1))):
            if attribute_ints(node, name, default) != (1, 1):
                raise Refusal(Code.ATTRIBUTE, f"the {name} are {list(attribute_ints(node, name, default))}", node)
        if attribute_int(node, "group", 1) != 1:
            raise Refusal(Code.ATTRIBUTE, f"the group is {attribute_int(node, 'group', 1)}", node)
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        ones = (1, 1)
        return ConvMatch(node, x, w, bias, M, C, kernel, {"pads": resolved_pads(node, kernel, ones, ones, editor)})

    def legal(self, match: ConvMatch, editor: Editor) -> ConvMatch:
        node = match.node
        editor.require_op("WinogradConv", match.W, node)
        producer = match.W.producer()
        if producer is not None and producer.op_type == "DequantizeLinear":
            raise Refusal(Code.QUANTIZED, f"{match.W.name} is dequantized", node, producer)
        if min(match.attributes["pads"], default=0) < 0:
            raise Refusal(Code.ATTRIBUTE, f"the pads are {list(match.attributes['pads'])}", node)
        require_floats(match, editor)
        return match

    def candidate(self, plan: ConvMatch, editor: Editor) -> Candidate:
        node = plan.node
        y = editor.shapes.dims(node.outputs[0])
        OH, OW = (None, None) if y is None or len(y) != 4 else (d.value for d in y[2:])
        if editor.half or (editor.dtype(plan.W) or editor.dtype(plan.X)) == ir.DataType.FLOAT16:
            no_gain = "float16 allows only the small tile F(2x2, 3x3), which gains little"
        else:
            no_gain = winograd_no_gain(editor.target, plan.C, plan.M, OH, OW)
        return editor.candidate("WinogradConv", (plan.X, plan.W), node.outputs[0], node, no_gain)

    def rewrite(self, plan: ConvMatch, editor: Editor) -> str:
        emit_conv("WinogradConv", plan, editor)
        return f"{plan.C} to {plan.M} channels"


def _static(dims: tuple[Size, ...]) -> tuple[int, ...]:
    return tuple(-1 if d.value is None else d.value for d in dims)
