"""A model with every number of float16 rounded to it, and one with float32 in its place.

The CPU's runtime has few kernels of float16: it casts to float32 before a node and back behind it, and removes casts
that meet, so that between two such nodes nothing is rounded, and nothing is beyond the range. On a GPU it is.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from graphopt.errors import VerifyError
from graphopt.graph import traversal
from graphopt.graph.messages import bodies, inlined
from graphopt.inputs.plan import Case
from graphopt.metadata import Numerics
from graphopt.verification.compare import deviation
from graphopt.verification.run import Outputs, open_session, run_case
from graphopt.verification.tolerances import LIMITS

_PREFIX = "graphopt_half"
# The largest magnitudes in inputs of usual size. Larger integers are times or hashes rather than rows of a table.
USUAL_FLOAT, USUAL_INTEGER = 8.0, 1 << 20


def values_in_half(model: ir.Model) -> frozenset[str]:
    """Names of results of nodes in float16, those of bodies too; types inferred."""
    nodes = (node for graph in traversal.with_subgraphs(model.graph) for node in graph)
    return frozenset(str(v.name) for n in nodes for v in n.outputs if v.dtype == ir.DataType.FLOAT16)


def kept_in_half(model: onnx.ModelProto, names: Collection[str]) -> onnx.ModelProto:
    """A copy with two Identities behind each of these values, where casts no longer meet.

    Of one alone that stands between two casts the runtime makes one of float32.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    _keep(copy.graph, names)
    return copy


def _keep(graph: onnx.GraphProto, names: Collection[str]) -> None:
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        for body in bodies(node):
            _keep(body, names)
        nodes.append(node)
        for i, name in enumerate(node.output):
            if name in names:
                node.output[i] = f"{_PREFIX}_{name}"
                nodes.append(helper.make_node("Identity", [node.output[i]], [f"{_PREFIX}_again_{name}"]))
                nodes.append(helper.make_node("Identity", [f"{_PREFIX}_again_{name}"], [name]))
    del graph.node[:]
    graph.node.extend(nodes)


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

HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
# Attributes that name an element type.
_TYPES = frozenset(("to", "dtype", "softmax_precision", "stash_type"))


def agree_in_single(model: onnx.ModelProto, case: Case, got: Outputs) -> list[bool]:
    """For each output of `got`, whether it is what the model gives in float32, as closely as half precision allows.

    Args:
        model: BEFORE, its weights inside.
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


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy with float32 in place of float16 and bfloat16."""
    copy = onnx.ModelProto()
    copy.CopyFrom(inlined(model))
    _widen(copy.graph)
    return copy


def _widen(graph: onnx.GraphProto) -> None:
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type in HALVES:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    del graph.value_info[:]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in _TYPES and attribute.i in HALVES:
                attribute.i = TensorProto.FLOAT
            if attribute.HasField("t"):
                _widen_tensor(attribute.t)
        for body in bodies(node):
            _widen(body)


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in HALVES:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
