"""On CPUs a MaxPool after one of our operators becomes MaxPoolPlanes, which reads NCHW planes.

    WinogradConv -> MaxPool becomes WinogradConv -> MaxPoolPlanes

Why it is legal: the operator is defined as the same pool. ONNX Runtime would reorder the planes to its NCHWc layout for
its pool, and the result back to planes.

Conditions: two spatial axes, a 2 x 2 window with stride 2 and no pads, no indices, ceil_mode = 0; float32; one of our
operators produces X.

Where it is faster: always under these conditions (docs/measurements/forms_cpu.md). For other windows ONNX Runtime's
pool is as fast, and after its own convolutions the tensor is already in the NCHWc layout.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from graphopt.forms.pool import window_of
from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.metadata import Numerics
from graphopt.ops import DOMAIN
from graphopt.ops.max_pool import PLANES
from graphopt.passes.base import Pass
from graphopt.remarks import became

WINDOW = {"kernel_shape": (2, 2), "pads": (0,) * 4, "strides": (2, 2), "dilations": (1, 1)}


@dataclass(frozen=True)
class PlanesMatch:
    """A MaxPool and its input."""

    node: ir.Node
    X: ir.Value


class PoolPlanes(Pass[PlanesMatch, PlanesMatch]):
    name = "pool_planes"
    equation = "MaxPool(X) = MaxPoolPlanes(X), X produced by one of our operators"
    numerics = Numerics.EXACT
    anchors = frozenset({("", "MaxPool")})

    def match(self, node: ir.Node, editor: Editor) -> PlanesMatch | None:
        x = node.inputs[0]
        producer = x.producer() if x is not None else None
        if x is None or producer is None or producer.domain != DOMAIN or editor.target.device != "cpu":
            return None
        return PlanesMatch(node, x) if window_of(node) == WINDOW else None

    def legal(self, match: PlanesMatch, editor: Editor) -> PlanesMatch:
        editor.require_dtype(match.X, match.node, ir.DataType.FLOAT)
        editor.require_op(PLANES, match.X, match.node)
        return match

    def rewrite(self, plan: PlanesMatch, editor: Editor) -> str:
        new = Builder(editor, plan.node).emit(PLANES, [plan.X], WINDOW)
        editor.replace([plan.node], [new], {plan.node.outputs[0]: new.outputs[0]}, anchor=plan.node)
        return became(1, PLANES)
