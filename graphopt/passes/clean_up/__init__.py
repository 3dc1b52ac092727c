"""Clean-up: computes constants, removes identities, merges equal nodes, removes unused nodes.

    f(constants) = constant;  Shape(x)[i] = n for a static dimension;  id(x) = x;  f(x), f(x) = f(x) once
    If(true, f, g) = f

Why it is legal: the results are the same bits. Only operators whose results IEEE 754 and the ONNX operator
specification define exactly are computed (graph/operators/evaluation.py); dimensions are followed through integer
arithmetic only (graph/shapes).

Conditions:
- Random operators (Bernoulli too) are neither computed nor merged, a Dropout that drops numbers stays, quantization
  nodes are not merged (runtimes look for one pair for each reader), nodes of foreign domains are not merged or removed.
- Initializers that callers may override are not constants.
- Matrices and filters that are stored in float16 stay so: a Cast of them is not computed.
- A constant may not make the file larger: results have at most 64 KiB, or at most the bytes of inputs that go with
  them. Tile, Expand, ConstantOfShape and Transposes of shared weights stay where they would grow the file.
- Graph inputs and outputs keep names, order, types and dimensions; unused functions of others, opset imports,
  metadata and doc strings stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

import onnx_ir as ir

from graphopt.graph.editor import Editor
from graphopt.graph.view import is_op
from graphopt.metadata import Numerics
from graphopt.passes.base import ModelPass
from graphopt.passes.clean_up.branches import take_branch
from graphopt.passes.clean_up.cast_before_transpose import cast_before_transposing
from graphopt.passes.clean_up.constants import COMPUTED, ConstantFolding
from graphopt.passes.clean_up.equal_nodes import EqualNodes
from graphopt.passes.clean_up.identities import CANDIDATES, unchanged
from graphopt.passes.clean_up.unused import remove_unused, remove_unused_definitions


class CleanUp(ModelPass):
    name = "clean_up"
    equation = "f(constants) = constant;  id(x) = x;  f(x), f(x) = one f(x);  what nobody reads goes"
    # Node by node the bits are the same; but a runtime may sum a product otherwise once its weight is a constant.
    numerics = Numerics.REASSOCIATED

    def run(self, editor: Editor) -> list[str]:
        done: Counter[str] = Counter()
        contents: dict[ir.Value, Hashable] = {}
        tells_more = False
        for graph in list(editor.graphs()):
            tells_more |= _simplify(graph, editor, contents, done)
        for graph in list(editor.graphs()):
            remove_unused(graph, editor, done)
        if cast := cast_before_transposing(editor):
            done["Cast before a product, moved before its Transpose"] += cast
        if unread := remove_unused_definitions(editor):
            done["definition of an operator that no node uses, removed"] += unread
        if tells_more:
            # A shape that has become a constant tells inference more, as a second run would find out.
            editor.infer_afresh()
        editor.touched.clear()
        return [f"{what}: {count}" for what, count in done.items()]


def _simplify(graph: ir.Graph, editor: Editor, contents: dict[ir.Value, Hashable], done: Counter[str]) -> bool:
    """Simplifies a graph in one walk, in topological order; returns whether inference may find more afterwards."""
    constants, equal, inlined = ConstantFolding(editor), EqualNodes(editor, contents), False
    for node in graph:
        op_type = node.op_type  # read once: this loop takes the most time of a graph without anything to rewrite
        if op_type in COMPUTED and constants.compute(node):
            done[f"{op_type} of constants, computed"] += 1
        elif op_type == "If" and is_op(node) and take_branch(node, editor):
            done["If of a constant condition, its branch put in its place"] += 1
            inlined = True
        else:
            if op_type == "Range" and is_op(node) and constants.read_scalars(node):
                done["constants of a Range, made scalars"] += 1
            same = unchanged(node, editor) if op_type in CANDIDATES else None
            if same is not None and editor.bypass(node, same):
                done[f"{op_type} that changes nothing, removed"] += 1
            elif equal.merge(node):
                done[f"{op_type} that repeats another, merged"] += 1
    return inlined or constants.tell_more
