"""A written-out PRelu becomes the operator PRelu.

    Relu(X) + s Relu(-X) = PRelu(X, -s);  Relu(X) - s Relu(-X) = PRelu(X, s)

tf2onnx writes the PReLU layer of Keras in this form (K. He et al., "Delving Deep into Rectifiers", ICCV 2015).

Why it is legal: one of the two summands is 0 for every X, and s is finite, so nothing is rounded twice. Infinities and
NaN give the same results.

Conditions: the conditions of prelu.py hold; no other node reads a value between X and the result. With a single slope X
may have any rank, and the PRelu becomes a LeakyRelu (activations.py).

Why it is faster: five nodes become one PRelu. A preceding convolution fuses the PRelu (fuse_epilogue.py); otherwise it
becomes three nodes on CPUs (prelu.py). On targets without our operators ONNX Runtime's PRelu would be slower than the
five nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.view import producer_of, require_contained, require_input, require_one_graph
from graphopt.metadata import Numerics
from graphopt.ops.schema import NUMPY_BROADCASTING_OPSET, Array
from graphopt.passes.base import Pass
from graphopt.passes.prelu import slope_of_channels
from graphopt.remarks import Code, Refusal, became


@dataclass(frozen=True)
class WrittenPReluMatch:
    """A written-out PRelu: its input, its slope and its nodes. The last node produces the result."""

    X: ir.Value
    slope: Array
    nodes: tuple[ir.Node, ...]


class WrittenPRelu(Pass[WrittenPReluMatch, WrittenPReluMatch]):
    name = "written_prelu"
    equation = "Relu(X) + s Relu(-X) = PRelu(X, -s) with a slope -s for each channel"
    numerics = Numerics.EXACT
    anchors = frozenset({("", "Add"), ("", "Sub")})

    def match(self, node: ir.Node, editor: Editor) -> WrittenPReluMatch | None:
        orders = [node.inputs] if node.op_type == "Sub" else [node.inputs, node.inputs[::-1]]
        for positive_term, negative_term in orders:
            relu, scaled = producer_of(positive_term, "Relu"), producer_of(negative_term, "Mul")
            if relu is None or scaled is None:
                continue
            for negative, s in (scaled.inputs, scaled.inputs[::-1]):
                negative_part = producer_of(negative, "Relu")
                negation = None if negative_part is None else producer_of(negative_part.inputs[0], "Neg")
                if negative_part is None or negation is None or negation.inputs[0] is not relu.inputs[0]:
                    continue
                slope = editor.require_constant(s, "the slope", node)
                nodes = (negation, negative_part, scaled, relu, node)
                return WrittenPReluMatch(
                    require_input(relu, 0), slope if node.op_type == "Sub" else np.negative(slope), nodes
                )
        return None

    def legal(self, match: WrittenPReluMatch, editor: Editor) -> WrittenPReluMatch:
        last = match.nodes[-1]
        require_contained(match.nodes, last.outputs[0])
        if editor.opset(last) < NUMPY_BROADCASTING_OPSET:
            raise Refusal(Code.OPSET, f"PRelu broadcasts its slope from opset {NUMPY_BROADCASTING_OPSET} on", last)
        require_one_graph(match.nodes, last)
        slope = slope_of_channels(match.X, match.slope, last, editor)
        if match.slope.size > 1 and not editor.target.custom_ops:
            raise Refusal(Code.NO_GAIN, "ONNX Runtime's PRelu is slower than these nodes", last)
        return replace(match, slope=slope)

    def rewrite(self, plan: WrittenPReluMatch, editor: Editor) -> str:
        last = plan.nodes[-1]
        builder = Builder(editor, last)
        y = builder.op("PRelu", plan.X, builder.initializer(np.ascontiguousarray(plan.slope), "_slope"))
        editor.replace(list(plan.nodes), builder.nodes, {last.outputs[0]: y}, anchor=last)
        return became(len(plan.nodes), "PRelu")
