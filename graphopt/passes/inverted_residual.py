"""On CPUs the three convolutions of an inverted residual block become one node.

    Conv(act(Conv(act(Conv(X, W1, B1)), W2, B2)), W3, B3) + R = InvertedResidual[Add]<act>(X, W1, B1, W2, B2, W3, B3, R)

The convolutions are 1x1, depthwise and 1x1, as in MobileNetV2 (M. Sandler et al., CVPR 2018) and its successors.

Why it is legal: the operator is defined by this equation. The kernel computes all three convolutions for a few rows at
a time, and sums in another order.

Conditions: float32; the 1x1 convolutions have one group, no stride and no pads, the depthwise one has no dilations and
no negative pads; the same activation with the same attributes follows the first two; no other node reads a value
between the convolutions; R is proven to have the shape of Y; weights and biases are constants. The kernel packs the
weights once.

Where it is faster: for 3x3 and 5x5 windows (except 3x3 with Relu) if the tensors between the convolutions do not fit
the caches and have at least four times as many channels as X (docs/measurements/inverted_residual_cpu.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from graphopt.forms.activation import Form, form_of
from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.view import is_op, other_input, require_one_graph, require_read_once, require_readers, sole_reader
from graphopt.metadata import Numerics
from graphopt.ops.activation import ACTIVATIONS
from graphopt.ops.inverted_residual import NAME
from graphopt.passes.base import Pass
from graphopt.passes.fused_conv import ConvMatch, bias_of, conv_at, require_conv
from graphopt.remarks import Code, Refusal, became
from graphopt.targets.cpu import inverted_residual_no_gain
from graphopt.targets.profit import Candidate


@dataclass(frozen=True)
class BlockMatch:
    """The three convolutions, the activations between them, and the residual sum after them."""

    convs: tuple[ConvMatch, ConvMatch, ConvMatch]
    forms: tuple[Form, Form]
    add: ir.Node | None

    @property
    def residual(self) -> ir.Value | None:
        return None if self.add is None else other_input(self.add, self.convs[2].node.outputs[0])

    @property
    def name(self) -> str:
        return f"{NAME}{'' if self.add is None else 'Add'}{self.forms[0].suffix}"

    @property
    def last(self) -> ir.Node:
        return self.convs[2].node if self.add is None else self.add


class InvertedResidual(Pass[BlockMatch, BlockMatch]):
    name = "inverted_residual"
    equation = "Conv(act(Conv(act(Conv(X))))) + R -> InvertedResidual[Add]<act>(X, .., R), the second one depthwise"
    numerics = Numerics.REASSOCIATED
    hides_from_bfloat16 = True
    anchors = frozenset({("", "Conv")})

    def match(self, node: ir.Node, editor: Editor) -> BlockMatch | None:
        if editor.target.device != "cpu" or (first := _pointwise(node, editor)) is None:
            return None
        # Most other convolutions are excluded here, because no depthwise convolution follows.
        act = form_of(node.outputs[0], editor)
        second = None if act is None else _only_conv(act.y, editor)
        if act is None or second is None or not second.depthwise or second.M != first.M or len(second.kernel) != 2:
            return None
        act2 = form_of(second.node.outputs[0], editor)
        third = None if act2 is None else _only_conv(act2.y, editor)
        if act2 is None or third is None or _pointwise(third.node, editor) is None:
            return None
        if act.suffix not in ACTIVATIONS or (act.suffix, act.attributes) != (act2.suffix, act2.attributes):
            return None
        return BlockMatch((first, second, third), (act, act2), _sum_after(third.node, editor))

    def legal(self, match: BlockMatch, editor: Editor) -> BlockMatch:
        editor.require_op(match.name, match.convs[0].W, match.convs[0].node)
        for conv in match.convs:
            require_conv(conv, editor)
            editor.require_dtype(conv.W, conv.node, ir.DataType.FLOAT)
            if conv.bias is not None and not editor.is_constant(conv.bias):
                editor.require_constant(conv.bias, "the bias", conv.node)
            require_one_graph([conv.node], match.last)
        editor.require_equal_types((match.convs[0].X, match.convs[0].W, match.residual), match.last)
        if match.convs[1].attributes["dilations"] != (1, 1):
            raise Refusal(
                Code.ATTRIBUTE, f"the dilations are {list(match.convs[1].attributes['dilations'])}", match.last
            )
        for conv, form in zip(match.convs, match.forms):
            form.require_closed()
            require_readers(conv.node.outputs[0], form.nodes, conv.node)
            require_read_once(form.y, conv.node)
        return match

    def candidate(self, plan: BlockMatch, editor: Editor) -> Candidate:
        first, second, third = plan.convs
        dims = editor.shapes.dims(first.X) or ()
        sizes = [d.value for d in dims[2:]]
        channels, strides = (first.C, first.M, third.M), second.attributes["strides"]
        no_gain = inverted_residual_no_gain(channels, second.kernel, strides, sizes, plan.forms[0].suffix)
        inputs = (first.X, first.W, second.W, third.W)
        return editor.candidate(plan.name, inputs, plan.last.outputs[0], plan.last, no_gain)

    def rewrite(self, plan: BlockMatch, editor: Editor) -> str:
        first, second, _ = plan.convs
        inputs = [first.X]
        for conv in plan.convs:
            inputs += [conv.W, bias_of(conv, editor)]
        if plan.residual is not None:
            inputs.append(plan.residual)
        window: dict[str, Any] = {name: second.attributes[name] for name in ("pads", "strides", "group")}
        new = Builder(editor, plan.last).emit(plan.name, inputs, {**window, **plan.forms[0].attributes})
        old = [plan.last, *(n for form in reversed(plan.forms) for n in form.nodes), *(c.node for c in plan.convs)]
        editor.replace(list(dict.fromkeys(old)), [new], {plan.last.outputs[0]: new.outputs[0]}, anchor=plan.last)
        return f"{first.C} to {first.M} channels, {'x'.join(map(str, second.kernel))}, {became(len(old), plan.name)}"


def _pointwise(node: ir.Node, editor: Editor) -> ConvMatch | None:
    """Returns the match of a 1x1 Conv over two axes with one group, no stride and no pads; None for other nodes."""
    if not is_op(node, "Conv"):
        return None
    sizes = editor.shapes.dims(node.inputs[1])
    if sizes is None or [size.value for size in sizes[2:]] != [1, 1]:
        return None
    conv = conv_at(node, editor)
    window: Mapping[str, Any] = conv.attributes
    plain = not any(window["pads"]) and set(window["strides"]) == {1} and window["group"] == 1
    return conv if plain else None


def _only_conv(value: ir.Value, editor: Editor) -> ConvMatch | None:
    """Returns the convolution that is the only reader of the value, or None."""
    readers = value.consumers()
    if len(readers) != 1 or not is_op(readers[0], "Conv") or readers[0].inputs[0] is not value:
        return None
    return conv_at(readers[0], editor)


def _sum_after(node: ir.Node, editor: Editor) -> ir.Node | None:
    """Returns the Add that is the only reader of the node's result and adds a value of the same shape, or None."""
    y = node.outputs[0]
    add = sole_reader(y, "Add")
    if add is None or add.graph is not node.graph:
        return None
    dims, other = editor.shapes.dims(y), editor.shapes.dims(other_input(add, y))
    return add if dims is not None and dims == other else None
