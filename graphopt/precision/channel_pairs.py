"""Between two convolutions in bfloat16 a tensor lies as the second one multiplies it: in pairs of channels.

    FusedConv..Bf16(X, W, B) -> Y -> FusedConv..Bf16(Y, V, C)
    becomes FusedConvPairs..Bf16(X, W, B) -> P -> FusedConvFromPairs..Bf16(P, V, C)

It has half the bytes, and nothing is left to convert. Why it is legal: every convolution that reads P rounds what it
reads to bfloat16 anyway, so it computes the same numbers. Who does not round it, such as the interface, goes on reading
Y in float32, beside P.

    FusedConvPairsAdd..Bf16(X, W, B, Y) becomes FusedConvPairsAdd..Bf16(X, W, B, P)

A residual is read from P, too, where P is there anyway or Y is needed no more: a chain of residual sums then moves half
the bytes. This one rounds a number that was not rounded before, once, as bfloat16 allows.

Conditions: two spatial axes and an even number of channels, in each group that has more than one.
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

PAIRS = "FusedConvPairs"  # from whatever there is to pairs
FROM_PAIRS = "FusedConvFromPairs"  # from pairs to float32
SUFFIX = "_pairs"  # of the names of tensors that lie so
MAX_ACTIVATION = 3  # nodes of a written-out activation
RESIDUAL = 3  # among the inputs of a convolution with a residual sum
# Those of ours; a transposed one has neither bfloat16 nor pairs.
CONVOLUTIONS = frozenset(n for n in OPS if n.startswith(("FusedConv", "WinogradConv")) and "Transpose" not in n)


@dataclass(frozen=True)
class PairsMatch:
    """A convolution, those that read its result, and those that add it."""

    node: ir.Node
    readers: tuple[ir.Node, ...]
    sums: tuple[ir.Node, ...] = ()


class PairsOfChannels(Pass[PairsMatch, PairsMatch]):
    name = "bfloat16_pairs"
    equation = "FusedConv..Bf16 -> Y -> FusedConv..Bf16 becomes FusedConvPairs..Bf16 -> P -> FusedConvFromPairs..Bf16"
    numerics = Numerics.BF16
    anchors = frozenset((DOMAIN, s.name) for s in OPS.values() if s.name.startswith("FusedConv") and "Bf16" in s.name)

    def match(self, node: ir.Node, editor: Editor) -> PairsMatch | None:
        y = node.outputs[0]
        if editor.shapes.rank(node.inputs[1]) != 4:
            return None
        uses = [(use.node, use.idx) for use in y.uses() if use.node.graph is node.graph and self.is_anchor(use.node)]
        readers = tuple(reader for reader, i in uses if i == 0 and takes_pairs(reader, editor))
        sums = tuple(reader for reader, i in uses if i == RESIDUAL and adds_pairs(reader, editor))
        is_there = bool(readers) or len(node.outputs) > 1
        if not is_there and (len(sums) < use_count(y) or y.is_graph_output()):
            return None  # Y has to be written, and P would be as many bytes more
        return PairsMatch(node, readers, sums) if readers or sums else None

    def legal(self, match: PairsMatch, editor: Editor) -> PairsMatch:
        w = match.node.inputs[1]
        assert w is not None
        if not gives_pairs(match.node, editor):
            raise Refusal(Code.WRONG_SHAPE, "the number of channels is odd", match.node)
        editor.require_op(_named(PAIRS, match.node), w, match.node)
        return match

    def rewrite(self, plan: PairsMatch, editor: Editor) -> str:
        node = plan.node
        pairs = node.outputs[1] if len(node.outputs) > 1 else add_pairs(node, editor)
        for reader in plan.sums:
            editor.rewire(reader, [*reader.inputs[:RESIDUAL], pairs])
        read_pairs(plan.readers, pairs, node, editor)
        return f"{len(plan.readers)} readers, {len(plan.sums)} sums"


def read_pairs(readers: Sequence[ir.Node], pairs: ir.Value, maker: ir.Node, editor: Editor) -> None:
    """Has convolutions read pairs of channels, of what `maker` gives or of what was made of it."""
    for reader in readers:
        # Runtimes that inline a body want as many outputs as it has, and files end with one that has a name: where
        # only Y is wanted, it is an operator of its own.
        kind = PAIRS if len(reader.outputs) > 1 else FROM_PAIRS
        _rename(reader, kind, [pairs, *reader.inputs[1:]], editor)
    y = maker.outputs[0]
    if not use_count(y) and not y.is_graph_output():
        y.name = ""


def add_pairs(node: ir.Node, editor: Editor) -> ir.Value:
    """The second result of a convolution, which it is made to give."""
    y = node.outputs[0]
    _rename(node, PAIRS, node.inputs, editor)
    pairs = editor.add_output(node, ir.DataType.BFLOAT16)
    describe_pairs(pairs, y, editor)
    return pairs


def describe_pairs(pairs: ir.Value, y: ir.Value, editor: Editor) -> None:
    """Names what holds y in pairs of channels after y, and says its shape where the channels of y are known."""
    pairs.name = editor.unique_name(f"{y.name}{SUFFIX}")
    if y.shape is not None and isinstance(M := y.shape[1], int):
        pairs.shape = ir.Shape([y.shape[0], M // 2, y.shape[2], y.shape[3], 2])
        inference.declare(editor.model, pairs)


def _named(kind: str, node: ir.Node) -> str:
    behind = node.op_type
    for prefix in (PAIRS, FROM_PAIRS, "FusedConv"):
        behind = behind.removeprefix(prefix)
    return kind + behind


def _rename(node: ir.Node, kind: str, inputs: Sequence[ir.Value | None], editor: Editor) -> None:
    name = _named(kind, node)
    if (DOMAIN, name, "") not in editor.model.functions:
        editor.define(name, ir.DataType.FLOAT)
    editor.rewire(node, inputs, op_type=name)


def _channels(node: ir.Node, editor: Editor) -> tuple[int, int, int] | None:
    """The channels that come out of and go into each group, and the number of groups."""
    dims = editor.shapes.dims(node.inputs[1])
    group = attribute_int(node, "group", 1)
    M, C = (d.value for d in dims[:2]) if dims is not None else (None, None)
    return None if M is None or C is None else (M // group, C, group)


def takes_pairs(node: ir.Node, editor: Editor) -> bool:
    """Whether a convolution can read pairs of channels."""
    found = _channels(node, editor)
    return found is not None and (found[1] % 2 == 0 or _is_plane_by_plane(*found))


def adds_pairs(node: ir.Node, editor: Editor) -> bool:
    """Whether a convolution, one that reads or gives pairs of channels already, can add pairs of channels."""
    return node.op_type.startswith((PAIRS, FROM_PAIRS)) and gives_pairs(node, editor)


def gives_pairs(node: ir.Node, editor: Editor) -> bool:
    """Whether it can leave pairs of channels."""
    found = _channels(node, editor)
    return found is not None and (_is_plane_by_plane(*found) if found[1] == 1 else found[0] % 2 == 0)


def _is_plane_by_plane(M: int, C: int, group: int) -> bool:
    return M == 1 and C == 1 and group % 2 == 0


def result_of(node: ir.Node, editor: Editor) -> ir.Value:
    """What a convolution gives behind its activation."""
    form = form_of(node.outputs[0], editor)
    return node.outputs[0] if form is None else form.y


def is_convolution(node: ir.Node) -> bool:
    """The standard's, or one of ours."""
    return node.op_type in CONVOLUTIONS if node.domain == DOMAIN else node.op_type == "Conv"


def convolution_before(value: ir.Value | None) -> ir.Node | None:
    """The convolution that makes a value, with an activation behind it or without."""
    for _ in range(MAX_ACTIVATION + 1):
        producer = value.producer() if value is not None else None
        if producer is None or is_convolution(producer):
            return producer
        value = producer.inputs[0] if producer.inputs else None
    return None


def between_convolutions(node: ir.Node, editor: Editor) -> bool:
    """Whether a convolution of single planes reads one, with its activation, and is read by others only."""
    if editor.shapes.rank(node.inputs[1]) != 4 or not gives_pairs(node, editor):
        return False
    y = result_of(node, editor)
    if y.is_graph_output() or not all(is_convolution(r) and r.inputs[0] is y for r in y.consumers()):
        return False
    before = convolution_before(node.inputs[0])
    return before is not None and result_of(before, editor) is node.inputs[0]


__all__ = ["PairsOfChannels", "between_convolutions"]
