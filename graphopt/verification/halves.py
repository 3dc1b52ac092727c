"""A model with every number of float16 rounded to it, and one with float32 in its place.

The CPU's runtime has few kernels of float16: it casts to float32 before a node and back behind it, and removes casts
that meet, so that between two such nodes nothing is rounded, and nothing is beyond the range. On a GPU it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from graphopt.errors import VerifyError
from graphopt.graph import inference, traversal
from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.inputs.plan import Case
from graphopt.metadata import Numerics
from graphopt.targets.target import Target
from graphopt.verification.compare import deviation
from graphopt.verification.run import Outputs, open_session, run_case
from graphopt.verification.tolerances import LIMITS

HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
# Attributes that name an element type.
_TYPES = frozenset(("to", "dtype", "softmax_precision", "stash_type"))
# The largest magnitudes in inputs of usual size. Larger integers are times or hashes rather than rows of a table.
USUAL_FLOAT, USUAL_INTEGER = 8.0, 1 << 20


def values_in_half(model: ir.Model) -> frozenset[str]:
    """Names of results of nodes in float16, those of bodies too; types inferred."""
    nodes = (node for graph in traversal.with_subgraphs(model.graph) for node in graph)
    return frozenset(str(v.name) for n in nodes for v in n.outputs if v.dtype == ir.DataType.FLOAT16)


def kept_in_half(model: ir.Model) -> ir.Model:
    """A copy with two Identities behind each result of a node in float16, where casts no longer meet.

    Of one alone that stands between two casts the runtime makes one of float32.
    """
    editor = Editor(inference.clone(model), Target("cpu"))
    for graph in traversal.with_subgraphs(editor.model.graph):
        for node in list(graph):
            for value in node.outputs:
                if value.dtype == ir.DataType.FLOAT16:
                    b = Builder(editor, node)
                    again = b.op("Identity", b.op("Identity", value))
                    editor.interpose(value, b.nodes, again)
    return editor.model


def is_usual(case: Case) -> bool:
    """Whether the inputs of a case are of usual size: no larger than normal draws, or indices of a table."""
    for array in map(np.asarray, case.feeds.values()):
        limit = USUAL_INTEGER if array.dtype.kind in "iu" else USUAL_FLOAT
        if array.dtype.kind in "fViu" and array.size:
            wide = array.astype(np.float64)
            if np.abs(wide[np.isfinite(wide)]).max(initial=0.0) > limit:
                return False
    return True


def farthest(cases: Sequence[Case], count: int) -> list[Case]:
    """The cases with the largest numbers, by the powers of ten of each input; of several alike the smallest case."""
    best: dict[int, tuple[int, Case]] = {}
    for case in cases:
        arrays = [np.asarray(a) for a in case.feeds.values()]
        numbers = [np.abs(a[np.isfinite(a)].astype(np.float32)) for a in arrays if a.dtype.kind in "fViu"]
        power = sum(math.floor(math.log10(max(1.0, float(a.max(initial=0))))) for a in numbers)
        size = sum(a.size for a in arrays)
        if power not in best or size < best[power][0]:
            best[power] = (size, case)
    return [best[power][1] for power in sorted(best, reverse=True)[:count]]


# -- in float32 --------------------------------------------------------------------------------------------------------


def agree_in_single(model: ir.Model, case: Case, got: Outputs) -> list[bool]:
    """For each output of `got`, whether it is what the model gives in float32, as closely as half precision allows.

    Args:
        model: BEFORE, functions inlined.
        case: the inputs.
        got: AFTER's outputs.
    """
    feeds = {n: a.astype(np.float32) if a.dtype.kind in "fV" else a for n, a in case.feeds.items()}
    try:
        wide = run_case(open_session(widened(model), library=False), Case(case.name, feeds))
    except VerifyError:
        return [False] * len(got)
    if isinstance(wide, str):
        return [False] * len(got)
    agrees = []
    for want, have in zip(wide, got):
        # Beyond its range AFTER may be infinite as well as exact.
        arrays = isinstance(want, np.ndarray) and isinstance(have, np.ndarray)
        narrow = arrays and have.dtype.kind in "fV" and have.dtype.itemsize == 2
        with np.errstate(over="ignore"):
            found = deviation(want.astype(have.dtype) if narrow else want, have)
        agrees.append(not found.structure and found.relative <= LIMITS[Numerics.FP16])
    return agrees


def widened(model: ir.Model) -> ir.Model:
    """A copy with float32 in place of float16 and bfloat16.

    Args:
        model: functions inlined.
    """
    editor = Editor(inference.clone(model), Target("cpu"))
    for graph in traversal.with_subgraphs(editor.model.graph):
        for value in graph.initializers.values():
            if (tensor := value.const_value) is not None and tensor.dtype in HALVES:
                editor.set_data(value, traversal.tensor_array(tensor).astype(np.float32))
        for node in graph:
            for name, attribute in list(node.attributes.items()):
                if name in _TYPES and attribute.value in HALVES:
                    editor.set_attribute(node, name, int(ir.DataType.FLOAT))
                elif attribute.type == ir.AttributeType.TENSOR and attribute.value.dtype in HALVES:
                    array = traversal.tensor_array(attribute.value).astype(np.float32)
                    editor.set_attribute(node, name, ir.Tensor(array))
        for value in (*graph.inputs, *graph.initializers.values(), *(v for node in graph for v in node.outputs)):
            if value.dtype in HALVES:
                inference.retype(editor.model, value, ir.DataType.FLOAT)
    return editor.model
