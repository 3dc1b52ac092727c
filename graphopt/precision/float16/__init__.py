"""Converts float32 to float16 where that is safe (`--precision fp16`), with Casts at the boundaries.

The conversion runs once, after all other passes. Weights are then already folded in float64, and statistics are inside
fused nodes, which compute them in float32.

Each node computes in one precision, chosen in topological order as in automatic mixed precision (P. Micikevicius et
al., "Mixed Precision Training", ICLR 2018):

- Matrix multiplications (Conv, Gemm, MatMul, attention, recurrent networks) and nodes that by definition compute their
  statistics in float32 (`stash_type`, our operators) take float16.
- Statistics (Softmax, norms, sums, means) and operators with a large range (Exp, Pow, ...) take float32. So does
  arithmetic with results that only statistics or casts to integers read. Global average pooling before a matrix
  multiplication is not a statistic, even if it is written as ReduceMean.
- All other nodes follow their inputs: float16, unless an input is computed in float32.

Range: a node keeps float32 if a constant has elements beyond 65504, or if underflow adds more error than rounding to
float16. Masks of -3.4e38 and epsilons of 1e-12 therefore keep their effect. A node also keeps float32 if its
activations come near 65504 in a run of the float32 model (`ranges`). A matrix multiplication with such a result still
takes float16 if its weight can be divided by a power of two: x (W / 2^k), times 2^k in float32. A FusedAttention bias
with finite elements below -65504 becomes a mask with the value -65504, so a fully masked row still gives an average.

The ONNX schema of a node's operator and version decides which inputs and outputs may be float16. Bodies of If, Loop and
Scan are converted, but their inputs and outputs keep float32. So do functions of the user, operators of other domains
and, by default, graph inputs and outputs. Integers do not change.

On CPUs computing in float16 gains nothing: ONNX Runtime has few float16 kernels there, and inserts Casts around other
nodes. Only matrices, filters and tables are stored in float16, with a Cast that runtimes constant-fold when they load
the model.
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
    """Converts the editor's model to float16, in place.

    Args:
        editor: the model, with inferred types.
        keep_io: whether graph inputs and outputs keep float32.
        keep: names of nodes and operators that keep float32.
        ranges: measured ranges of the activations; None if they were not measured.

    Returns:
        Remarks, initializers with range problems, and notes for the report.

    Raises:
        OptionError: a name in `keep` is the name of no node or operator.
    """
    require_known(editor, keep)
    opset = editor.model.opset_imports.get("", 0)
    if opset < MIN_OPSET:
        detail = f"the model has opset {opset}, and float16 needs opset {MIN_OPSET}"
        return HalfPrecisionResult([Remark(NAME, Code.OPSET.name, (), detail)], [])
    work = Conversion(editor, keep_io, keep, ranges or ActivationRanges())
    work.convert(editor.model.graph)
    return work.result()


def require_known(editor: Editor, keep: Collection[str]) -> None:
    """Checks that each name in `keep` is the name of a node or an operator of the model.

    Raises:
        OptionError: a name is not.
    """
    nodes = list(ir.traversal.RecursiveGraphIterator(editor.model.graph))
    unknown = set(keep) - {n.op_type for n in nodes} - {node_label(n) for n in nodes}
    if unknown:
        raise OptionError(f"cannot keep '{min(unknown)}' in float32: no node or operator has this name")


__all__ = ["NAME", "ActivationRanges", "HalfPrecisionResult", "convert", "range_of", "require_known"]
