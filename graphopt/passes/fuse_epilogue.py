"""Fuses one of our nodes with the residual sum and the activation that follow it.

    act(ScaleShift(X) + R) = ScaleShiftAdd<act>(X, R);  act(WinogradConv(X) + R) = WinogradConvAdd<act>(X, R)
    act(FusedConv(X) + R) = FusedConvAdd<act>(X, R), also in bfloat16; FusedConvTranspose likewise
    PRelu(WinogradConv(X) + R, s) = WinogradConvAddPRelu(X, R, s), s for each channel; FusedConv[Transpose] likewise
    act(FusedGroupNorm(X)) = FusedGroupNorm<act>(X)

Why it is legal: the fused operators are defined by these equations; the kernel applies the sum and the activation to
each element before it stores the element.

Conditions: only the sum or the activation reads the node's result (SiLU reads it twice), and it is not a graph output;
R is proven to have the same shape, so nothing broadcasts; the Add is before the activation; bounds of Clip are
constants; slopes of PRelu are constants [C, 1, .., 1] or [1, C, 1, .., 1] (a single slope is a LeakyRelu). R cannot
depend on the node, because no other node reads the node's result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from graphopt.forms.activation import Form, form_of
from graphopt.forms.affine import column_of_channels
from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.shapes.sizes import shape_text
from graphopt.graph.view import (
    attribute_int,
    is_op,
    other_input,
    require_input,
    require_one_graph,
    require_readers,
    use_count,
)
from graphopt.metadata import Numerics
from graphopt.ops import DOMAIN, OPS
from graphopt.ops.activation import ACTIVATIONS, SLOPED
from graphopt.ops.schema import Array
from graphopt.passes.base import Pass
from graphopt.remarks import Code, Refusal

BASES = ("ScaleShift", "WinogradConv", "FusedConv", "FusedConvTranspose")
# Operator -> whether it can fuse a residual sum. Each can fuse an activation, and fuses nothing after the activation.
CAN_FUSE_SUM = dict.fromkeys(BASES, True) | {f"{base}Add": False for base in BASES} | {"FusedGroupNorm": False}
CAN_FUSE_SUM |= {"FusedConvBf16": True, "FusedConvAddBf16": False}
CAN_FUSE_PRELU = frozenset(name for name in CAN_FUSE_SUM if name + SLOPED in OPS)


@dataclass(frozen=True)
class EpilogueMatch:
    """One of our nodes and the node that it fuses: exactly one of activation, PRelu and residual sum.

    Attributes:
        slope: slopes of the PRelu in the shape that the fused node needs; set by `legal`.
    """

    node: ir.Node
    form: Form | None = None
    prelu: ir.Node | None = None
    add: ir.Node | None = None
    slope: Array | None = None

    @property
    def residual(self) -> ir.Value | None:
        """The value that the sum adds to the node's result."""
        if self.add is None:
            return None
        return other_input(self.add, self.node.outputs[0])

    @property
    def name(self) -> str:
        """The fused operator."""
        base = self.node.op_type.removesuffix("Bf16")
        precision = self.node.op_type[len(base) :]
        if self.form is not None:
            return base + self.form.suffix + precision
        return base + ("Add" if self.prelu is None else SLOPED) + precision


class FuseEpilogue(Pass[EpilogueMatch, EpilogueMatch]):
    name = "fuse_epilogue"
    equation = "act(ScaleShift(X) + R) -> ScaleShiftAdd<act>;  act(WinogradConv(X) + R) -> WinogradConvAdd<act>"
    numerics = Numerics.REASSOCIATED
    anchors = frozenset((DOMAIN, name) for name in CAN_FUSE_SUM)

    def match(self, node: ir.Node, editor: Editor) -> EpilogueMatch | None:
        y = node.outputs[0]
        form = form_of(y, editor)
        if form is not None and form.suffix in ACTIVATIONS:
            return EpilogueMatch(node, form=form)
        for reader in y.consumers():
            if node.op_type in CAN_FUSE_PRELU and is_op(reader, "PRelu") and reader.inputs[0] is y:
                return EpilogueMatch(node, prelu=reader)
        if not CAN_FUSE_SUM[node.op_type]:
            return None
        for reader in y.consumers():
            if is_op(reader, "Add") and not any(editor.is_constant(v) for v in reader.inputs):
                return EpilogueMatch(node, add=reader)
        return None

    def legal(self, match: EpilogueMatch, editor: Editor) -> EpilogueMatch:
        node, y = match.node, match.node.outputs[0]
        x = require_input(node, 0)
        editor.require_op(match.name, y if editor.dtype(y) is not None else x, node)
        if match.form is not None:
            match.form.require_closed()
            require_one_graph(match.form.nodes, node)
            require_readers(y, match.form.nodes, node)
            return match
        if match.prelu is not None:
            require_readers(y, (match.prelu,), node)
            require_one_graph([match.prelu], node)
            return replace(match, slope=_slope_of_each_channel(match.prelu, node, editor))
        add, residual = match.add, match.residual
        assert add is not None
        require_readers(y, (add,), node)
        require_one_graph([add], node)
        if use_count(y) != 1:
            raise Refusal(Code.OTHER_USES, f"{y.name} is added to itself", add)
        dims, other = editor.shapes.dims(y), editor.shapes.dims(residual)
        shapes = f"{y.name} has shape {shape_text(dims)}, and {residual and residual.name} has {shape_text(other)}"
        if dims is None or other is None:
            raise Refusal(Code.UNKNOWN_SHAPE, shapes, add)
        if other != dims:
            static = all(d.value is not None for d in (*dims, *other))
            code = Code.WRONG_SHAPE if static or len(dims) != len(other) else Code.UNKNOWN_SHAPE
            raise Refusal(code, shapes, add)
        editor.require_equal_types((y, residual), add)
        return match

    def rewrite(self, plan: EpilogueMatch, editor: Editor) -> str:
        node = plan.node
        inputs = [v for v in node.inputs if v is not None]
        attributes: dict[str, float | tuple[int, ...]] = {
            a.name: tuple(a.as_ints()) if a.type == ir.AttributeType.INTS else a.value for a in node.attributes.values()
        }
        if plan.form is not None:
            attributes |= plan.form.attributes
            nodes = plan.form.nodes
        elif plan.prelu is not None:
            assert plan.slope is not None
            inputs.append(_as_initializer(plan.slope, plan.prelu, editor))
            nodes = (plan.prelu,)
        else:
            assert plan.add is not None and plan.residual is not None
            inputs.append(plan.residual)
            nodes = (plan.add,)
        last = nodes[-1]
        new = Builder(editor, last).emit(plan.name, inputs, attributes)
        editor.replace([*nodes, node], [new], {last.outputs[0]: new.outputs[0]}, anchor=last)
        return f"{plan.name} includes {' and '.join(n.op_type for n in nodes)}"


def _slope_of_each_channel(prelu: ir.Node, conv: ir.Node, editor: Editor) -> Array:
    """Returns the slopes [M, 1, .., 1] of a PRelu after a convolution with M output channels.

    Raises:
        Refusal: NOT_CONSTANT, OVERRIDABLE, UNKNOWN_SHAPE or WRONG_SHAPE.
    """
    slope = editor.require_constant(prelu.inputs[1], "the slope", prelu)
    weight = require_input(conv, 1)
    dims = editor.shapes.dims(weight)
    transposed = conv.op_type.startswith("FusedConvTranspose")
    if dims is None or (M := dims[1 if transposed else 0].value) is None:
        raise Refusal(Code.UNKNOWN_SHAPE, f"the number of output channels of {weight.name} is not known", prelu)
    M *= attribute_int(conv, "group", 1) if transposed else 1
    return column_of_channels(slope, M, len(dims), prelu)


def _as_initializer(slope: Array, prelu: ir.Node, editor: Editor) -> ir.Value:
    """Returns the PRelu's own slope if it has the shape of `slope`, or else a new initializer."""
    own = require_input(prelu, 1)
    if own.shape is not None and own.shape.is_static() and tuple(own.shape.numpy()) == slope.shape:
        return own
    return editor.initializer(prelu, np.ascontiguousarray(slope), f"{own.name}_of_each_channel")
