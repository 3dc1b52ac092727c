"""float32 becomes float16 where that is safe (`--precision fp16`), with Casts where the two meet.

It runs once, after all other passes: weights are folded in float64 and rounded once, and statistics are inside fused
nodes, which keep them in float32 themselves.

Each node computes in one precision, decided in topological order as automatic mixed precision does (P. Micikevicius et
al., "Mixed Precision Training", ICLR 2018):

- Products (Conv, Gemm, MatMul, attention, recurrent nets) and nodes that keep their statistics in float32 by
  definition (`stash_type`, our operators) take float16.
- Statistics (Softmax, norms, sums, means) and what leaves the range quickly (Exp, Pow, ...) take float32, and so does
  arithmetic that only they or integers read.
- All others follow their inputs: float16, unless one of them is computed in float32.

Range: a node stays in float32 when one of its constants has numbers beyond 65504 or loses more than half precision by
underflow, so that masks of -3.4e38 and epsilons of 1e-12 keep their meaning. A bias of FusedAttention becomes a mask of
-65504 where it is lower, infinities excepted: a row that is masked everywhere stays an average. So does a node that
reads or makes activations near 65504, which a run of the float32 model shows (`ranges`). A matrix multiplication with
such a result takes float16 all the same where its weight can be divided by a power of two: x (W / 2^k), times 2^k in
float32.

What float16 a node may take is what the ONNX schema of its operator and version says. Bodies of If, Loop and Scan are
converted inside; their interfaces, the user's functions and foreign operators stay in float32, and so do graph inputs
and outputs unless asked otherwise. Integers are not touched.

On the CPU nothing gains from computing in float16 (ONNX Runtime has no kernels of standard operators for it and casts
around each node), so only the weights are stored in float16 there: matrices, filters and tables, with a Cast that
runtimes compute when they load the model.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from graphopt.errors import OptionError
from graphopt.graph.editor import Editor
from graphopt.ops.schema import MIN_OPSET
from graphopt.precision.float16.constants import range_of
from graphopt.precision.float16.conversion import NAME, Conversion, HalfPrecisionResult
from graphopt.precision.float16.ranges import ActivationRanges
from graphopt.remarks import Code, Remark, node_label


def convert(
    editor: Editor, *, keep_io: bool = True, keep: Collection[str] = (), ranges: ActivationRanges | None = None
) -> HalfPrecisionResult:
    """Converts the editor's model in place.

    Args:
        editor: the model, types inferred.
        keep_io: graph inputs and outputs stay float32.
        keep: nodes, by name or by operator, that stay float32.
        ranges: of the model's activations; None where they were not measured.

    Raises:
        OptionError: a name in `keep` that no node has.
    """
    require_known(editor, keep)
    opset = editor.model.opset_imports.get("", 0)
    if opset < MIN_OPSET:
        detail = f"the model has opset {opset}, float16 needs {MIN_OPSET}"
        return HalfPrecisionResult([Remark(NAME, Code.OPSET.name, (), detail)], [])
    work = Conversion(editor, keep_io, keep, ranges or ActivationRanges())
    work.convert(editor.model.graph)
    return work.result()


def require_known(editor: Editor, keep: Collection[str]) -> None:
    """Raises:
    OptionError: a name of what is to stay in float32 that no node and no operator has.
    """
    nodes = list(ir.traversal.RecursiveGraphIterator(editor.model.graph))
    unknown = set(keep) - {n.op_type for n in nodes} - {node_label(n) for n in nodes}
    if unknown:
        raise OptionError(f"no node and no operator has the name '{min(unknown)}', so none can stay in float32")


__all__ = ["NAME", "ActivationRanges", "HalfPrecisionResult", "convert", "range_of", "require_known"]
