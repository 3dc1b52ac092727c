"""Stores tensors between bfloat16 convolutions in the NCHW2c bf16 layout, which the next convolution reads.

    FusedConv..Bf16(X, W, B) -> Y -> FusedConv..Bf16(Y, V, C)
    becomes FusedConvNchw2c..Bf16(X, W, B) -> P -> FusedConvFromNchw2c..Bf16(P, V, C)

P is [N, C / 2, H, W, 2] in bfloat16: element [n, c, h, w, i] is channel 2 c + i. It has half the bytes of Y and needs
no conversion.

Why it is legal: every convolution that reads P rounds its input to bfloat16 anyway, so the results are the same. Other
readers, such as graph outputs, read Y in float32, which the convolution then writes as well.

    FusedConvNchw2cAdd..Bf16(X, W, B, Y) becomes FusedConvNchw2cAdd..Bf16(X, W, B, P)

A residual is also read from P, if P exists anyway or Y has no other reader: a chain of residual sums then moves half
the bytes. This rounds the residual once more, as `--precision bf16` allows.

Conditions: two spatial axes. A convolution that writes P has, in each group, an even number of output channels and more
than one input channel. A convolution that reads P has an even number of input channels in each group. A depthwise
convolution, with one input and one output channel in each group, needs an even number of groups instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from graphopt.forms.activation import form_of
from graphopt.graph import inference
from graphopt.graph.editor import Editor
from graphopt.graph.view import attribute_int, use_count
from graphopt.metadata import Numerics
from graphopt.ops import DOMAIN, OPS
from graphopt.passes.base import Pass
from graphopt.remarks import Code, Refusal

NCHW2C = "FusedConvNchw2c"  # reads either layout, writes NCHW2c bf16 as its second output
FROM_NCHW2C = "FusedConvFromNchw2c"  # reads NCHW2c bf16, writes float32
SUFFIX = "_nchw2c"  # end of the names of NCHW2c tensors
MAX_ACTIVATION = 3  # the most nodes of a written-out activation
RESIDUAL = 3  # index of the residual among a convolution's inputs
# The detail of a refusal if `can_write_nchw2c` returns False.
CANNOT_WRITE = (
    "the number of channels is not known, or NCHW2c does not support it: each group must have several input channels "
    "and an even number of output channels, or the convolution must be depthwise with an even number of channels"
)
# Our convolutions; transposed ones have no bfloat16 kernels.
CONVOLUTIONS = frozenset(n for n in OPS if n.startswith(("FusedConv", "WinogradConv")) and "Transpose" not in n)


@dataclass(frozen=True)
class Nchw2cMatch:
    """A convolution, the convolutions that read its result as X, and the convolutions that add it as a residual."""

    node: ir.Node
    readers: tuple[ir.Node, ...]
    sums: tuple[ir.Node, ...] = ()


class ConvToNchw2c(Pass[Nchw2cMatch, Nchw2cMatch]):
    name = "bfloat16_nchw2c"
    equation = "FusedConv..Bf16 -> Y -> FusedConv..Bf16 becomes FusedConvNchw2c..Bf16 -> P -> FusedConvFromNchw2c..Bf16"
    numerics = Numerics.BF16
    anchors = frozenset((DOMAIN, s.name) for s in OPS.values() if s.name.startswith("FusedConv") and "Bf16" in s.name)

    def match(self, node: ir.Node, editor: Editor) -> Nchw2cMatch | None:
        y = node.outputs[0]
        if editor.shapes.rank(node.inputs[1]) != 4:
            return None
        uses = [(use.node, use.idx) for use in y.uses() if use.node.graph is node.graph and self.is_anchor(use.node)]
        readers = tuple(reader for reader, i in uses if i == 0 and can_read_nchw2c(reader, editor))
        sums = tuple(reader for reader, i in uses if i == RESIDUAL and can_add_nchw2c(reader, editor))
        has_nchw2c = bool(readers) or len(node.outputs) > 1
        if not has_nchw2c and (len(sums) < use_count(y) or y.is_graph_output()):
            return None  # Y must be written anyway, so P would only add bytes
        return Nchw2cMatch(node, readers, sums) if readers or sums else None

    def legal(self, match: Nchw2cMatch, editor: Editor) -> Nchw2cMatch:
        w = match.node.inputs[1]
        assert w is not None
        if not can_write_nchw2c(match.node, editor):
            raise Refusal(Code.WRONG_SHAPE, CANNOT_WRITE, match.node)
        editor.require_op(_named(NCHW2C, match.node), w, match.node)
        return match

    def rewrite(self, plan: Nchw2cMatch, editor: Editor) -> str:
        node = plan.node
        nchw2c = node.outputs[1] if len(node.outputs) > 1 else add_nchw2c(node, editor)
        for reader in plan.sums:
            editor.rewire(reader, [*reader.inputs[:RESIDUAL], nchw2c])
        read_nchw2c(plan.readers, nchw2c, node, editor)
        return f"{len(plan.readers)} readers, {len(plan.sums)} sums"


def read_nchw2c(readers: Sequence[ir.Node], nchw2c: ir.Value, producer: ir.Node, editor: Editor) -> None:
    """Makes convolutions read an NCHW2c tensor: an output of `producer`, or the result of a pool that reads it."""
    for reader in readers:
        # A runtime that inlines a function body needs a node with all outputs of the body, but onnx_ir does not save
        # unnamed outputs at the end of the list. A convolution that writes only Y is therefore a separate operator.
        kind = NCHW2C if len(reader.outputs) > 1 else FROM_NCHW2C
        _rename(reader, kind, [nchw2c, *reader.inputs[1:]], editor)
    y = producer.outputs[0]
    if not use_count(y) and not y.is_graph_output():
        y.name = ""


def add_nchw2c(node: ir.Node, editor: Editor) -> ir.Value:
    """Adds the NCHW2c output to a convolution and returns it."""
    y = node.outputs[0]
    _rename(node, NCHW2C, node.inputs, editor)
    nchw2c = editor.add_output(node, ir.DataType.BFLOAT16)
    describe_nchw2c(nchw2c, y, editor)
    return nchw2c


def describe_nchw2c(nchw2c: ir.Value, y: ir.Value, editor: Editor) -> None:
    """Names the NCHW2c form of y after y, and declares its shape if the channels of y are known."""
    nchw2c.name = editor.unique_name(f"{y.name}{SUFFIX}")
    if y.shape is not None and isinstance(M := y.shape[1], int):
        nchw2c.shape = ir.Shape([y.shape[0], M // 2, y.shape[2], y.shape[3], 2])
        inference.declare(editor.model, nchw2c)


def _named(kind: str, node: ir.Node) -> str:
    suffix = node.op_type
    for prefix in (NCHW2C, FROM_NCHW2C, "FusedConv"):
        suffix = suffix.removeprefix(prefix)
    return kind + suffix


def _rename(node: ir.Node, kind: str, inputs: Sequence[ir.Value | None], editor: Editor) -> None:
    name = _named(kind, node)
    if (DOMAIN, name, "") not in editor.model.functions:
        editor.define(name, ir.DataType.FLOAT)
    editor.rewire(node, inputs, op_type=name)


def _channels(node: ir.Node, editor: Editor) -> tuple[int, int, int] | None:
    """Returns the output channels and input channels of each group, and the number of groups; None if unknown."""
    dims = editor.shapes.dims(node.inputs[1])
    group = attribute_int(node, "group", 1)
    M, C = (d.value for d in dims[:2]) if dims is not None else (None, None)
    return None if M is None or C is None else (M // group, C, group)


def can_read_nchw2c(node: ir.Node, editor: Editor) -> bool:
    """Returns whether a convolution can read the NCHW2c layout."""
    found = _channels(node, editor)
    return found is not None and (found[1] % 2 == 0 or _is_even_depthwise(*found))


def can_add_nchw2c(node: ir.Node, editor: Editor) -> bool:
    """Returns whether a convolution that already reads or writes the NCHW2c layout can add a residual in it."""
    return node.op_type.startswith((NCHW2C, FROM_NCHW2C)) and can_write_nchw2c(node, editor)


def can_write_nchw2c(node: ir.Node, editor: Editor) -> bool:
    """Returns whether a convolution can write the NCHW2c layout."""
    found = _channels(node, editor)
    return found is not None and (_is_even_depthwise(*found) if found[1] == 1 else found[0] % 2 == 0)


def _is_even_depthwise(M: int, C: int, group: int) -> bool:
    return M == 1 and C == 1 and group % 2 == 0


def result_of(node: ir.Node, editor: Editor) -> ir.Value:
    """Returns the result of a convolution, after its activation if it has one."""
    form = form_of(node.outputs[0], editor)
    return node.outputs[0] if form is None else form.y


def is_convolution(node: ir.Node) -> bool:
    """Returns whether a node is a standard Conv or one of our convolutions."""
    return node.op_type in CONVOLUTIONS if node.domain == DOMAIN else node.op_type == "Conv"


def convolution_before(value: ir.Value | None) -> ir.Node | None:
    """Returns the convolution before a value: its producer, or a node found from there along first inputs.

    At most MAX_ACTIVATION nodes may be between them. The caller checks with `result_of` that they are an activation.
    """
    for _ in range(MAX_ACTIVATION + 1):
        producer = value.producer() if value is not None else None
        if producer is None or is_convolution(producer):
            return producer
        value = producer.inputs[0] if producer.inputs else None
    return None


def between_convolutions(node: ir.Node, editor: Editor) -> bool:
    """Returns whether a depthwise convolution reads a convolution, and only convolutions read its result.

    Both convolutions may have an activation.
    """
    if editor.shapes.rank(node.inputs[1]) != 4 or not can_write_nchw2c(node, editor):
        return False
    y = result_of(node, editor)
    if y.is_graph_output() or not all(is_convolution(r) and r.inputs[0] is y for r in y.consumers()):
        return False
    before = convolution_before(node.inputs[0])
    return before is not None and result_of(before, editor) is node.inputs[0]


__all__ = ["ConvToNchw2c", "between_convolutions"]
