"""On CPUs a transposed convolution becomes FusedConvTranspose, which can fuse the sum and activation that follow.

    ConvTranspose(X, W, B) -> FusedConvTranspose(X, W, B)       and then, in fuse_epilogue, FusedConvTranspose[Add]<act>

Why it is legal: the operator is defined by this equation; the kernel sums in another order.

Conditions: one to three spatial axes, float or float16, no negative pads or output_padding (auto_pad and output_shape
are resolved), a constant weight, which the kernel packs once.

Why it is faster: ONNX Runtime computes a GEMM into columns and adds them to Y (col2im). Our kernel computes one
convolution for each remainder of the position modulo the stride (a phase) and writes its results as rows of Y. It is
faster if Y has many elements and X few channels, or few channels per group; otherwise ONNX Runtime's GEMM is faster
(docs/measurements/conv_transpose_cpu.md).
"""

from __future__ import annotations

import onnx_ir as ir

from graphopt.forms.activation import form_of
from graphopt.graph.editor import Editor
from graphopt.graph.view import attribute_int, attribute_ints, attribute_string, require_input
from graphopt.metadata import Numerics
from graphopt.passes.base import Pass
from graphopt.passes.fused_conv import ConvMatch, emit_conv, require_conv, require_floats, weight_dims
from graphopt.remarks import Code, Refusal
from graphopt.targets.cpu import fused_conv_transpose_no_gain
from graphopt.targets.profit import Candidate


class FusedConvTranspose(Pass[ConvMatch, ConvMatch]):
    name = "fused_conv_transpose"
    equation = "act(ConvTranspose(X, W, B) + R) -> FusedConvTranspose[Add]<act>(X, W, B, R)"
    numerics = Numerics.REASSOCIATED
    anchors = frozenset({("", "ConvTranspose")})

    def match(self, node: ir.Node, editor: Editor) -> ConvMatch | None:
        if editor.target.device != "cpu":
            return None
        x, w = require_input(node, 0), require_input(node, 1)
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        C, M, *kernel = weight_dims(node, editor)
        ones, zeros = (1,) * len(kernel), (0,) * len(kernel)
        group = attribute_int(node, "group", 1)
        if group < 1 or C % group:
            raise Refusal(Code.WRONG_SHAPE, f"{group} groups do not divide the {C} channels of the weight", node)
        output_padding = attribute_ints(node, "output_padding", zeros)
        window = {
            "pads": _resolved_pads(node, tuple(kernel), output_padding, editor),
            "strides": attribute_ints(node, "strides", ones),
            "dilations": attribute_ints(node, "dilations", ones),
            "group": group,
            "output_padding": output_padding,
        }
        return ConvMatch(node, x, w, bias, M * group, C // group, tuple(kernel), window)

    def legal(self, match: ConvMatch, editor: Editor) -> ConvMatch:
        editor.require_op("FusedConvTranspose", match.W, match.node)
        require_conv(match, editor)
        if min(match.attributes["output_padding"], default=0) < 0:
            raise Refusal(
                Code.ATTRIBUTE, f"the output_padding is {list(match.attributes['output_padding'])}", match.node
            )
        require_floats(match, editor)
        return match

    def candidate(self, plan: ConvMatch, editor: Editor) -> Candidate:
        node, group = plan.node, plan.attributes["group"]
        windows = [*zip(plan.kernel, plan.attributes["strides"], plan.attributes["dilations"], strict=True)]
        sizes = [d.value for d in (editor.shapes.dims(plan.X) or ())[2:]]
        activated = form_of(node.outputs[0], editor) is not None
        no_gain = fused_conv_transpose_no_gain(plan.C, plan.M // group, group, windows, sizes, activated)
        return editor.candidate("FusedConvTranspose", (plan.X, plan.W), node.outputs[0], node, no_gain)

    def rewrite(self, plan: ConvMatch, editor: Editor) -> str:
        return emit_conv("FusedConvTranspose", plan, editor)


def _resolved_pads(
    node: ir.Node, kernel: tuple[int, ...], output_padding: tuple[int, ...], editor: Editor
) -> tuple[int, ...]:
    """Returns the pads [begin.., end..], computed from auto_pad and output_shape if these are set.

    Raises:
        Refusal: ATTRIBUTE if they depend on an unknown size, contradict each other, or need negative pads.
    """
    axes = len(kernel)
    auto_pad, wanted = attribute_string(node, "auto_pad", "NOTSET"), attribute_ints(node, "output_shape", ())
    pads = attribute_ints(node, "pads", ())
    if auto_pad != "NOTSET" and pads:
        raise Refusal(Code.ATTRIBUTE, f"auto_pad is {auto_pad}, and pads are given as well: {list(pads)}", node)
    same = auto_pad in ("SAME_UPPER", "SAME_LOWER")
    if not wanted and not same:
        return pads or (0,) * (2 * axes)
    sizes = [d.value for d in (editor.shapes.dims(node.inputs[0]) or ())[2:]]
    if wanted and len(wanted) != axes:
        raise Refusal(Code.ATTRIBUTE, f"output_shape {list(wanted)} does not have {axes} elements", node)
    if wanted and (len(sizes) != axes or None in sizes):
        raise Refusal(Code.ATTRIBUTE, f"output_shape is {list(wanted)}, and the sizes of X are not known", node)
    strides, dilations = (attribute_ints(node, name, (1,) * axes) for name in ("strides", "dilations"))
    totals = []
    for i, (k, stride, dilation, extra) in enumerate(zip(kernel, strides, dilations, output_padding, strict=True)):
        # With SAME an output axis has stride * size elements, so the size cancels, and both terms can be 0.
        size = sizes[i] if wanted else 0
        goal = wanted[i] if wanted else 0
        assert size is not None
        totals.append(stride * (size - 1) + extra + (k - 1) * dilation + 1 - goal)
    if min(totals) < 0:
        raise Refusal(Code.ATTRIBUTE, f"auto_pad {auto_pad} and output_shape {list(wanted)} need negative pads", node)
    small, large = tuple(t // 2 for t in totals), tuple(t - t // 2 for t in totals)
    return (*small, *large) if auto_pad == "SAME_UPPER" else (*large, *small)
