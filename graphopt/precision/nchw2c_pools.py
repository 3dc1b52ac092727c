"""A MaxPool between bfloat16 convolutions reads and writes the NCHW2c bf16 layout (nchw2c_convolutions).

    FusedConv..Bf16 -> MaxPool -> FusedConv..Bf16
    becomes FusedConvNchw2c..Bf16 -> MaxPoolNchw2cBf16 -> FusedConvFromNchw2c..Bf16

Why it is legal: every reader rounds its input to bfloat16, and rounding is monotonic: the maximum of rounded elements
is the rounded maximum. The runtime's pool would reorder planes to NCHWc blocks and back, with twice the bytes.

Conditions: two spatial axes, no indices, ceil_mode = 0; the convolution before the pool can write NCHW2c
(`can_write_nchw2c`), and only bfloat16 convolutions, which can read it, read the result.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from graphopt.forms.pool import Window, window_of
from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.metadata import Numerics
from graphopt.ops import DOMAIN
from graphopt.ops.max_pool import NCHW2C, PLANES
from graphopt.passes.base import Pass
from graphopt.precision.nchw2c_convolutions import (
    CANNOT_WRITE,
    ConvToNchw2c,
    add_nchw2c,
    can_read_nchw2c,
    can_write_nchw2c,
    describe_nchw2c,
    read_nchw2c,
)
from graphopt.remarks import Code, Refusal


@dataclass(frozen=True)
class PoolMatch:
    """A pool, the convolution before it, and the convolutions that read it."""

    pool: ir.Node
    producer: ir.Node
    readers: tuple[ir.Node, ...]


@dataclass(frozen=True)
class PoolPlan(PoolMatch):
    """A legal match, with the attributes of the new pool."""

    window: Window


class MaxPoolToNchw2c(Pass[PoolMatch, PoolPlan]):
    name = "bfloat16_pools"
    equation = "FusedConv..Bf16 -> MaxPool -> FusedConv..Bf16 becomes .. FusedConvNchw2c -> MaxPoolNchw2cBf16 -> .."
    numerics = Numerics.BF16
    anchors = frozenset({("", "MaxPool"), (DOMAIN, PLANES)})

    def match(self, node: ir.Node, editor: Editor) -> PoolMatch | None:
        x, y = node.inputs[0], node.outputs[0]
        producer = x.producer() if x is not None else None
        if producer is None or not ConvToNchw2c.is_anchor(producer) or x is not producer.outputs[0]:
            return None
        if producer.graph is not node.graph or editor.shapes.rank(producer.inputs[1]) != 4 or y.is_graph_output():
            return None
        readers = tuple(use.node for use in y.uses() if use.idx == 0 and ConvToNchw2c.is_anchor(use.node))
        inside = all(r.graph is node.graph and can_read_nchw2c(r, editor) for r in readers)
        return PoolMatch(node, producer, readers) if readers and inside and len(readers) == len(y.uses()) else None

    def legal(self, match: PoolMatch, editor: Editor) -> PoolPlan:
        node = match.pool
        if not can_write_nchw2c(match.producer, editor):
            raise Refusal(Code.WRONG_SHAPE, CANNOT_WRITE, match.producer)
        window = window_of(node)
        if window is None:
            why = "MaxPool has indices, ceil_mode or auto_pad, or does not have two spatial axes"
            raise Refusal(Code.ATTRIBUTE, why, node)
        spans = [(k - 1) * d + 1 for k, d in zip(window["kernel_shape"], window["dilations"])]
        if not all(0 <= pad < span for pad, span in zip(window["pads"], 2 * spans)):
            raise Refusal(Code.ATTRIBUTE, "the pads are negative or as large as the window", node)
        editor.require_op(NCHW2C, match.producer.outputs[0], node)
        return PoolPlan(**vars(match), window=window)

    def rewrite(self, plan: PoolPlan, editor: Editor) -> str:
        node, y = plan.pool, plan.pool.outputs[0]
        x = plan.producer.outputs[1] if len(plan.producer.outputs) > 1 else add_nchw2c(plan.producer, editor)
        new = Builder(editor, node).emit(NCHW2C, [x], plan.window)
        nchw2c = new.outputs[0]
        describe_nchw2c(nchw2c, y, editor)
        editor.replace([], [new], {}, anchor=node)
        read_nchw2c(plan.readers, nchw2c, plan.producer, editor)
        return f"{len(plan.readers)} readers"


__all__ = ["MaxPoolToNchw2c"]
