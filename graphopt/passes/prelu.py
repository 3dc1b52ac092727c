"""On CPUs a PRelu with one slope for each channel becomes two ScaleShift nodes and a Relu.

    PRelu(X, s) = Relu(X) + s min(X, 0) = ScaleShiftAdd(ScaleShiftRelu(X, -1, 0), -s, 0, Relu(X))

K. He et al., "Delving Deep into Rectifiers", ICCV 2015.

Why it is legal: min(X, 0) = -Relu(-X). One of the two summands is 0, so nothing is rounded twice. Infinities and
NaN give the same results as in PRelu.

Conditions: X is [N, C, ..] with three axes or more and static C; the slope is a finite constant [C, 1, .., 1] or
[1, C, 1, .., 1]; float or float16. A PRelu with a single slope becomes a LeakyRelu (activations.py).

Where it is faster: on CPUs. Without the rewrite a block of IResNet takes 1.56 times as long on ONNX Runtime 1.31.1, and
the same time on 1.22.2 (docs/measurements/forms_cpu.md). On GPUs our provider has a kernel for PRelu.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from graphopt.forms.affine import column_of_channels
from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.shapes.sizes import shape_text
from graphopt.graph.view import require_input
from graphopt.metadata import Numerics
from graphopt.ops.schema import Array
from graphopt.passes.base import Pass
from graphopt.remarks import Code, Refusal, became
from graphopt.targets.profit import Candidate


@dataclass(frozen=True)
class PReluMatch:
    """A PRelu, its input and its constant slopes."""

    node: ir.Node
    X: ir.Value
    slope: Array


class PRelu(Pass[PReluMatch, PReluMatch]):
    name = "prelu"
    equation = "PRelu(X, s) = Relu(X) + s min(X, 0) with a slope s for each channel"
    numerics = Numerics.EXACT
    anchors = frozenset({("", "PRelu")})

    def match(self, node: ir.Node, editor: Editor) -> PReluMatch | None:
        slope = editor.require_constant(require_input(node, 1), "the slope", node)
        return None if slope.size == 1 else PReluMatch(node, require_input(node, 0), slope)

    def legal(self, match: PReluMatch, editor: Editor) -> PReluMatch:
        slope = slope_of_channels(match.X, match.slope, match.node, editor)
        editor.require_op("ScaleShiftAdd", match.X, match.node)
        return replace(match, slope=slope)

    def candidate(self, plan: PReluMatch, editor: Editor) -> Candidate:
        no_gain = "" if editor.target.device == "cpu" else "our provider has a kernel for PRelu"
        return editor.candidate("ScaleShiftAdd", (plan.X,), plan.node.outputs[0], plan.node, no_gain)

    def rewrite(self, plan: PReluMatch, editor: Editor) -> str:
        node, x, slope = plan.node, plan.X, plan.slope
        builder = Builder(editor, node)
        minus_one = builder.initializer(-np.ones_like(slope), "_minus_one")
        zero = builder.initializer(np.zeros_like(slope), "_zero")
        negative = builder.initializer(-slope, "_minus_slope")
        below = builder.emit("ScaleShiftRelu", [x, minus_one, zero], {})
        above = builder.op("Relu", x, _dtype=editor.dtype(x))
        new = builder.emit("ScaleShiftAdd", [below.outputs[0], negative, zero, above], {})
        editor.replace([node], builder.nodes, {node.outputs[0]: new.outputs[0]}, anchor=node)
        return became(1, "ScaleShiftRelu, Relu and ScaleShiftAdd")


def slope_of_channels(x: ir.Value, slope: Array, node: ir.Node, editor: Editor) -> Array:
    """Returns the slopes of a PRelu of x [N, C, ..] as [C, 1, .., 1]. A single slope becomes [1] for x of any rank.

    Args:
        x: the input of the PRelu.
        slope: its slopes.
        node: the node that a refusal names.
        editor: the model.

    Raises:
        Refusal: UNKNOWN_SHAPE, WRONG_SHAPE, NOT_FINITE or WRONG_DTYPE.
    """
    dims, one = editor.shapes.dims(x), slope.size == 1
    C = 1 if one else dims[1].value if dims is not None and len(dims) > 1 else None
    if dims is None or C is None:
        raise Refusal(Code.UNKNOWN_SHAPE, f"the number of channels of {x.name} is not known", node)
    if slope.ndim > len(dims) if one else len(dims) < 3:
        raise Refusal(
            Code.WRONG_SHAPE, f"the slope has shape {list(slope.shape)}, and the data has {shape_text(dims)}", node
        )
    slope = slope.reshape(1) if one else column_of_channels(slope, C, len(dims), node)
    if not np.isfinite(slope).all():
        raise Refusal(Code.NOT_FINITE, "a slope is not finite, and its product with 0 would be NaN", node)
    editor.require_dtype(x, node)
    return slope
