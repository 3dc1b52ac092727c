"""A 3x3 convolution with stride 1 becomes WinogradConv, where that pays on the target.

    Conv(X, W, B) = WinogradConv(X, W, B),  the kernel computes Y = A^T [(G W G^T) * (B^T X B)] A tile by tile

A. Lavin, S. Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016.

Why it is legal: WinogradConv is defined as the same convolution; its kernel takes fewer multiplications and rounds
differently (numerics: approximate).

Conditions: X has rank 4; kernel 3x3, strides, dilations and group are 1; auto_pad is resolved (SAME_UPPER and
SAME_LOWER of stride 1 both mean one row on each side); pads are not negative; float32, or float16 with all_sites; the
weight is not quantized (it may be a constant or not); the target gains (`--all-sites` asks for every legal site).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from graphopt.graph.editor import Editor, attribute_int, attribute_ints, attribute_string
from graphopt.graph.shapes.sizes import Size
from graphopt.metadata import Numerics
from graphopt.passes.base import Pass
from graphopt.remarks import Code, Refusal
from graphopt.targets.profit import Candidate, winograd_pays


@dataclass(frozen=True)
class WinogradMatch:
    """A 3x3 Conv.

    Attributes:
        node: the Conv.
        M: output channels.
        C: input channels.

    """

    node: ir.Node
    X: ir.Value
    W: ir.Value
    bias: ir.Value | None
    pads: tuple[int, ...]
    M: int
    C: int


class WinogradConv(Pass[WinogradMatch]):
    name = "winograd_conv"
    equation = "Conv 3x3, stride 1 -> WinogradConv: Y = A^T [(G W G^T) * (B^T X B)] A"
    numerics = Numerics.APPROXIMATE
    anchors = frozenset({("", "Conv"), ("", "QLinearConv"), ("", "ConvInteger")})

    def match(self, node: ir.Node, editor: Editor) -> WinogradMatch | None:
        if node.op_type != "Conv":
            raise Refusal(Code.QUANTIZED, f"it is a {node.op_type}", node)
        x, w = node.inputs[0], node.inputs[1]
        assert x is not None and w is not None
        dims = editor.shapes.dims(w)
        kernel = attribute_ints(node, "kernel_shape", () if dims is None else _static(dims[2:]))
        if kernel != (3, 3):
            return None
        M, C = (None, None) if dims is None else (dims[0].value, dims[1].value)
        if M is None or C is None:
            raise Refusal(Code.UNKNOWN_SHAPE, f"the channels of {w.name}", node)
        for name, default in (("strides", (1, 1)), ("dilations", (1, 1))):
            if attribute_ints(node, name, default) != (1, 1):
                raise Refusal(Code.ATTRIBUTE, f"{name} {list(attribute_ints(node, name, default))}", node)
        if attribute_int(node, "group", 1) != 1:
            raise Refusal(Code.ATTRIBUTE, f"group {attribute_int(node, 'group', 1)}", node)
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        return WinogradMatch(node, x, w, bias, _pads(node), M, C)

    def legal(self, match: WinogradMatch, editor: Editor) -> None:
        node = match.node
        editor.require_op("WinogradConv", match.W, node)
        producer = match.W.producer()
        if producer is not None and producer.op_type == "DequantizeLinear":
            raise Refusal(Code.QUANTIZED, f"{match.W.name} is dequantized", node, producer)
        if any(p < 0 for p in match.pads):
            raise Refusal(Code.ATTRIBUTE, f"pads {list(match.pads)}", node)
        dtype = editor.dtype(match.W) or editor.dtype(match.X)
        if dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
            raise Refusal(Code.WRONG_DTYPE, f"{match.W.name} is {dtype}", node)

    def candidate(self, match: WinogradMatch, editor: Editor) -> Candidate:
        node = match.node
        doubt = ""
        y = editor.shapes.dims(node.outputs[0])
        OH, OW = (None, None) if y is None or len(y) != 4 else (d.value for d in y[2:])
        if editor.half or (editor.dtype(match.W) or editor.dtype(match.X)) == ir.DataType.FLOAT16:
            doubt = "float16 allows only the small tile F(2x2, 3x3)"
        elif not winograd_pays(editor.target, match.C, match.M, OH, OW):
            size = f"{OH or '?'}x{OW or '?'}"
            doubt = f"{match.C} to {match.M} channels of {size} on {editor.target}"
        return editor.candidate("WinogradConv", (match.X, match.W), node.outputs[0], node, doubt)

    def rewrite(self, match: WinogradMatch, editor: Editor) -> str:
        node, bias = match.node, match.bias
        if bias is None:
            dtype = editor.dtype(match.W) or editor.dtype(match.X) or ir.DataType.FLOAT
            bias = editor.initializer(node, np.zeros(match.M, dtype.numpy()), f"{match.W.name}_zero_bias")
        new = editor.emit("WinogradConv", [match.X, match.W, bias], {"pads": match.pads}, anchor=node)
        editor.replace([node], [new], {node.outputs[0]: new.outputs[0]}, anchor=node)
        return f"{match.C} to {match.M} channels"


def _static(dims: tuple[Size, ...]) -> tuple[int, ...]:
    return tuple(-1 if d.value is None else d.value for d in dims)


def _pads(node: ir.Node) -> tuple[int, ...]:
    """[top, left, bottom, right]."""
    auto_pad = attribute_string(node, "auto_pad", "NOTSET")
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        return (1, 1, 1, 1)
    if auto_pad == "VALID":
        return (0, 0, 0, 0)
    return attribute_ints(node, "pads", (0, 0, 0, 0))
