"""Products round their factors to bfloat16 where that pays (`--precision bf16`, for CPUs with AVX512-BF16).

    act(MatMul(X, W) + b) -> Linear<act>Bf16(X, W, b);  MatMul(X, W) + b + R -> LinearAddBf16(X, W, b, R)     and Gemm

It runs after all other passes, and only when asked for. Tensors stay float32, in the file and between nodes: a node
rounds its own factors, their products are exact in float32, and so are sums as far as float32 is. Statistics,
residual sums, activations and the interface lose nothing, and there is no range to leave: bfloat16 has float32's.

Conditions: as in `feed_forward`, float32 only, and a body needs opset 13. Attention keeps its products in float32.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

import onnx_ir as ir

from graphopt import pipeline
from graphopt.graph.editor import Editor
from graphopt.half_precision import require_known
from graphopt.metadata import Numerics
from graphopt.passes.feed_forward import FeedForward, LinearMatch, layer_at, what_fits
from graphopt.remarks import Code, Refusal, node_label
from graphopt.targets.profit import Candidate

NAME = "bfloat16"
SUFFIX = "Bf16"
# Of a weight: below, a call costs more than the product (docs/measurements/bfloat16_cpu.md).
SMALLEST_WEIGHT = 64 * 128


class Products(FeedForward):
    """Fully connected layers. `keep`: nodes and operators that stay in float32."""

    name = NAME
    equation = "act(MatMul(X, W) + b) -> Linear<act>Bf16;  MatMul(X, W) + b + R -> LinearAddBf16"
    numerics = Numerics.BF16

    def __init__(self, keep: Collection[str]) -> None:
        self.keep = frozenset(keep)

    def match(self, node: ir.Node, editor: Editor) -> LinearMatch | None:
        found = layer_at(node, editor)
        return None if found is None else what_fits(replace(found, precision=SUFFIX), editor)

    def legal(self, match: LinearMatch, editor: Editor) -> None:
        if self.keep & {n for node in match.nodes for n in (node_label(node), node.op_type)}:
            raise Refusal(Code.KEPT, "as asked", match.product)
        dtype = editor.dtype(match.product.inputs[1])
        if dtype != ir.DataType.FLOAT:
            raise Refusal(Code.WRONG_DTYPE, f"the weight is {dtype}", match.product)
        super().legal(match, editor)

    def candidate(self, match: LinearMatch, editor: Editor) -> Candidate:
        dims = editor.shapes.dims(match.product.inputs[1]) or ()
        size = math.prod(d.value for d in dims if d.value is not None)
        doubt = f"a weight of {size} numbers: a call costs what bfloat16 saves" if size < SMALLEST_WEIGHT else ""
        return replace(super().candidate(match, editor), doubt=doubt)


def convert(editor: Editor, keep: Collection[str] = ()) -> pipeline.PipelineResult:
    """Converts the editor's model in place.

    Args:
        editor: the model, types inferred; its target is a CPU.
        keep: nodes, by name or by operator, that stay float32.

    Raises:
        OptionError: a name in `keep` that no node has.
    """
    require_known(editor, keep)
    return pipeline.run(editor, [Products(keep)])


__all__ = ["NAME", "convert"]
