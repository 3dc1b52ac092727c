"""On CPUs a convolution becomes FusedConv, which can fuse the residual sum and activation that follow.

    Conv(X, W, B) -> FusedConv(X, W, B)                     and then, in fuse_epilogue, FusedConv[Add]<act>

Why it is legal: the operator is defined by this equation; the kernel sums in another order.

Conditions: one to three spatial axes, float or float16, no negative pads (SAME_UPPER, SAME_LOWER and VALID are
resolved), a constant weight, which the kernel packs once.

Where it is faster: for groups with few channels, which ONNX Runtime runs one after the other, for few output channels,
and for channels that do not fill the runtime's NCHWc layout. ONNX Runtime runs other convolutions at the peak rate,
keeps that layout between them and fuses most activations (fused_conv_cpu.md and conv_peak_cpu.md in docs/measurements).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.view import FLOATS, attribute_int, attribute_ints, attribute_string, require_input
from graphopt.metadata import Numerics
from graphopt.passes.base import Pass
from graphopt.remarks import Code, Refusal
from graphopt.targets.cpu import fused_conv_no_gain
from graphopt.targets.profit import Candidate


@dataclass(frozen=True)
class ConvMatch:
    """A Conv.

    Attributes:
        M: output channels.
        C: input channels of a group.
        kernel: size of the window.
        attributes: pads, strides, dilations and group of FusedConv.
    """

    node: ir.Node
    X: ir.Value
    W: ir.Value
    bias: ir.Value | None
    M: int
    C: int
    kernel: tuple[int, ...]
    attributes: Mapping[str, Any]

    @property
    def depthwise(self) -> bool:
        """Whether there are several groups, each with one input channel."""
        return self.C == 1 and self.attributes["group"] > 1


class FusedConv(Pass[ConvMatch, ConvMatch]):
    name = "fused_conv"
    equation = "act(Conv(X, W, B) + R) -> FusedConv[Add]<act>(X, W, B, R)"
    numerics = Numerics.REASSOCIATED
    anchors = frozenset({("", "Conv")})
    fallback = True  # rewrites nodes that winograd_conv has refused

    def match(self, node: ir.Node, editor: Editor) -> ConvMatch | None:
        if editor.target.device != "cpu":
            return None
        return conv_at(node, editor)

    def legal(self, match: ConvMatch, editor: Editor) -> ConvMatch:
        editor.require_op("FusedConv", match.W, match.node)
        require_conv(match, editor)
        require_floats(match, editor)
        return match

    def candidate(self, plan: ConvMatch, editor: Editor) -> Candidate:
        group, strides = plan.attributes["group"], plan.attributes["strides"]
        sizes = [d.value for d in (editor.shapes.dims(plan.node.outputs[0]) or ())[2:]]
        no_gain = fused_conv_no_gain(plan.C, plan.M // group, group, plan.kernel, strides, sizes)
        return editor.candidate("FusedConv", (plan.X, plan.W), plan.node.outputs[0], plan.node, no_gain)

    def rewrite(self, plan: ConvMatch, editor: Editor) -> str:
        return emit_conv("FusedConv", plan, editor)


def conv_at(node: ir.Node, editor: Editor) -> ConvMatch:
    """Returns a Conv with its dimensions, pads and other window attributes.

    Raises:
        Refusal: WRONG_RANK, UNKNOWN_SHAPE or ATTRIBUTE.
    """
    x, w = require_input(node, 0), require_input(node, 1)
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    M, C, *kernel = weight_dims(node, editor)
    ones = (1,) * len(kernel)
    strides, dilations = attribute_ints(node, "strides", ones), attribute_ints(node, "dilations", ones)
    window = {
        "pads": resolved_pads(node, tuple(kernel), strides, dilations, editor),
        "strides": strides,
        "dilations": dilations,
        "group": attribute_int(node, "group", 1),
    }
    return ConvMatch(node, x, w, bias, M, C, tuple(kernel), window)


def weight_dims(node: ir.Node, editor: Editor) -> tuple[int, ...]:
    """Returns the dimensions of a convolution's weight, which has one to three spatial axes.

    Raises:
        Refusal: WRONG_RANK or UNKNOWN_SHAPE.
    """
    w = require_input(node, 1)
    sizes = editor.shapes.dims(w)
    rank = editor.shapes.rank(w) if sizes is None else len(sizes)
    if rank is None or not 3 <= rank <= 5:
        raise Refusal(Code.WRONG_RANK, f"{w.name} has rank {rank}", node)
    dims = tuple(n for d in sizes or () if (n := d.value) is not None)
    if len(dims) != rank:
        raise Refusal(Code.UNKNOWN_SHAPE, f"the dimensions of {w.name} are not known", node)
    return dims


def require_conv(match: ConvMatch, editor: Editor) -> None:
    """Requires a constant weight and non-negative pads.

    Raises:
        Refusal: NOT_CONSTANT, OVERRIDABLE, QUANTIZED or ATTRIBUTE.
    """
    if not editor.is_constant(match.W):
        editor.require_constant(match.W, "the weight", match.node)
    if min(match.attributes["pads"], default=0) < 0:
        raise Refusal(Code.ATTRIBUTE, f"the pads are {list(match.attributes['pads'])}", match.node)


def require_floats(match: ConvMatch, editor: Editor) -> None:
    """Requires a weight of float32 or float16, and X of the same type if its type is known.

    Raises:
        Refusal: WRONG_DTYPE.
    """
    dtype = editor.dtype(match.W) or editor.dtype(match.X)
    if dtype not in FLOATS:
        raise Refusal(
            Code.WRONG_DTYPE,
            f"the element type of {match.W.name} is {'unknown' if dtype is None else dtype.name}",
            match.node,
        )
    if editor.dtype(match.X) not in (None, dtype):
        raise Refusal(Code.WRONG_DTYPE, f"{match.X.name} and {match.W.name} have different element types", match.node)


def conv_node(name: str, match: ConvMatch, editor: Editor, rest: Sequence[ir.Value] = ()) -> ir.Node:
    """Creates a node of the operator `name`, with the inputs `rest` after the bias."""
    inputs = [match.X, match.W, bias_of(match, editor), *rest]
    return Builder(editor, match.node).emit(name, inputs, match.attributes)


def emit_conv(name: str, match: ConvMatch, editor: Editor, rest: Sequence[ir.Value] = ()) -> str:
    """Replaces the convolution by a node of the operator `name`; returns a text for the remark."""
    node, new = match.node, conv_node(name, match, editor, rest)
    editor.replace([node], [new], {node.outputs[0]: new.outputs[0]}, anchor=node)
    return f"{match.C} to {match.M} channels, {'x'.join(map(str, match.kernel))}"


def bias_of(match: ConvMatch, editor: Editor) -> ir.Value:
    """Returns the bias, or zeros if there is none, because our operators always have a bias."""
    if match.bias is not None:
        return match.bias
    dtype = editor.dtype(match.W) or editor.dtype(match.X) or ir.DataType.FLOAT
    return editor.initializer(match.node, np.zeros(match.M, dtype.numpy()), f"{match.W.name}_zero_bias")


def resolved_pads(
    node: ir.Node, kernel: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...], editor: Editor
) -> tuple[int, ...]:
    """Returns the pads [begin.., end..], computed from auto_pad if that is set.

    Raises:
        Refusal: ATTRIBUTE if auto_pad depends on an unknown size.
    """
    auto_pad = attribute_string(node, "auto_pad", "NOTSET")
    if auto_pad == "VALID":
        return (0,) * (2 * len(kernel))
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        return attribute_ints(node, "pads", (0,) * (2 * len(kernel)))
    totals = []
    sizes = [d.value for d in (editor.shapes.dims(node.inputs[0]) or ())[2:]]
    if len(sizes) != len(kernel):
        sizes = [None] * len(kernel)
    for size, k, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        span = (k - 1) * dilation + 1
        if stride == 1:
            totals.append(span - 1)
        elif size is None:
            why = f"auto_pad is {auto_pad} with a stride of {stride}, and the input size is not known"
            raise Refusal(Code.ATTRIBUTE, why, node)
        else:
            totals.append(max((-(-size // stride) - 1) * stride + span - size, 0))
    small, large = tuple(t // 2 for t in totals), tuple(t - t // 2 for t in totals)
    return (*small, *large) if auto_pad == "SAME_UPPER" else (*large, *small)
