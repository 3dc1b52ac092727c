"""On GPUs a small linear layer over axis 1, between two transpositions, becomes a pointwise convolution.

    moved_back(moved(X) W + b) = Conv(X, W^T, b),   `moved` moves axis 1 behind the last

Attention that mixes its heads before and after the softmax has such layers over the heads (H. Touvron et al., "Going
deeper with Image Transformers", 2021; N. Shazeer et al., "Talking-Heads Attention", 2020).

Why it is legal: both sides are the same sums. A pointwise Conv multiplies each vector of channels, which are along axis
1, by one matrix.

Conditions: W and b are constants; one to three axes follow axis 1; no other node reads the layer; float32 or float16.

Where it is faster: for small matrices on GPUs with our kernels. Both transpositions move every element, which takes
longer than the few multiplications. With many channels a layer multiplies rows faster than a convolution multiplies
planes. On CPUs neither form is always faster.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.view import (
    attribute_ints,
    other_input,
    producer_of,
    require_input,
    sole_reader,
    to_channels_first,
    to_channels_last,
)
from graphopt.metadata import Numerics
from graphopt.ops.schema import Array
from graphopt.passes.base import Pass
from graphopt.remarks import Code, Refusal, became
from graphopt.targets.profit import Candidate

RANKS = (3, 4, 5)  # of a Conv with one to three spatial axes
MOST_CHANNELS = 16


@dataclass(frozen=True)
class AxisLayer:
    """A linear layer between two Transposes.

    Attributes:
        x: the input of the first Transpose.
        nodes: the Transpose that moves axis 1 behind the last, MatMul, Add if any, the Transpose that moves it back.
        weight: W [K, N].
        bias: b [N], or None.
    """

    x: ir.Value
    nodes: tuple[ir.Node, ...]
    weight: Array
    bias: Array | None


class AxisLinear(Pass[AxisLayer, AxisLayer]):
    name = "axis_linear"
    equation = "moved_back(moved(X) W + b) = Conv(X, W^T, b), axis 1 is moved behind the last"
    numerics = Numerics.REASSOCIATED
    anchors = frozenset({("", "MatMul")})

    def match(self, node: ir.Node, editor: Editor) -> AxisLayer | None:
        before = producer_of(node.inputs[0], "Transpose")
        last = sole_reader(node.outputs[0], "Add", "Transpose")
        if before is None or last is None or not editor.target.gpu_kernels:
            return None
        added = last if last.op_type == "Add" else None
        after = last if added is None else sole_reader(added.outputs[0], "Transpose")
        x = require_input(before, 0)
        rank = editor.shapes.rank(x)
        if after is None or after.graph is not node.graph or rank not in RANKS:
            return None
        perms = [attribute_ints(transpose, "perm", ()) for transpose in (before, after)]
        if perms != [to_channels_last(rank), to_channels_first(rank)]:
            return None
        weight = editor.require_constant(node.inputs[1], "the matrix", node)
        if weight.ndim != 2:
            raise Refusal(Code.WRONG_RANK, f"the matrix has rank {weight.ndim}", node)
        if added is None:
            return AxisLayer(x, (before, node, after), weight, None)
        bias = editor.require_constant(other_input(added, node.outputs[0]), "the bias", added)
        if bias.shape[-1:] != weight.shape[1:] or bias.ndim > rank or bias.size != weight.shape[1]:
            raise Refusal(Code.WRONG_SHAPE, f"the bias {list(bias.shape)} does not have one element per column", added)
        return AxisLayer(x, (before, node, added, after), weight, bias.reshape(-1))

    def legal(self, match: AxisLayer, editor: Editor) -> AxisLayer:
        editor.require_dtype(match.x, match.nodes[1], ir.DataType.FLOAT, ir.DataType.FLOAT16)
        return match

    def candidate(self, plan: AxisLayer, editor: Editor) -> Candidate:
        K, N = plan.weight.shape
        large = max(K, N) > MOST_CHANNELS
        no_gain = f"a matrix of {K} x {N} has more than {MOST_CHANNELS} channels" if large else ""
        return editor.candidate("Conv", (plan.x,), plan.nodes[-1].outputs[0], plan.nodes[1], no_gain)

    def rewrite(self, plan: AxisLayer, editor: Editor) -> str:
        b, (K, N), last = Builder(editor, plan.nodes[1]), plan.weight.shape, plan.nodes[-1]
        spatial = [1] * (len(attribute_ints(last, "perm", ())) - 2)
        weight = b.initializer(plan.weight.T.reshape(N, K, *spatial), "/filters")
        inputs = [plan.x, weight] if plan.bias is None else [plan.x, weight, b.initializer(plan.bias, "/bias")]
        y = b.op("Conv", *inputs, kernel_shape=spatial)
        editor.replace(plan.nodes, b.nodes, {last.outputs[0]: y}, anchor=last)
        return became(len(plan.nodes), "Conv")
