"""Clean-up: computes constants, removes identities, merges equal nodes, removes unused nodes.

    f(constants) = constant;  Shape(x)[i] = n for a static dimension;  id(x) = x;  two nodes f(x) = one node f(x)
    If(true, f, g) = f;  a Loop whose state s never changes reads the initial s

Why it is legal: the results are equal bit for bit. Only operators that IEEE 754 and the ONNX operator specification
define exactly are computed (graph/operators/evaluation.py). Integers that follow from dimensions are exact, because
none depends on a rounded float (graph/shapes).

Conditions:
- Random operators, including Bernoulli, are neither computed nor merged. A Dropout in training mode is kept. Nodes that
  quantize or dequantize are not merged, because runtimes expect one pair of them for each reader. Nodes of domains
  other than ONNX's, com.microsoft and ours are kept, because they may have side effects.
- Initializers that callers may override are not constants.
- Casts of float16 matrices and filters are not computed, because the file would grow.
- A computed constant is at most as large as the inputs that become unused, or at most 64 KiB. Tile, Expand,
  ConstantOfShape and Transposes of shared weights are kept if their results are larger, because the file would grow.
- Graph inputs and outputs keep names, order, types and dimensions. Unused functions of the model, opset imports,
  metadata and doc strings are kept.
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
from graphopt.passes.clean_up.loop_states import remove_constant_states
from graphopt.passes.clean_up.unused import remove_unused


class CleanUp(ModelPass):
    name = "clean_up"
    equation = "f(constants) = constant;  id(x) = x;  two nodes f(x) = one node f(x);  unused nodes are removed"
    # Each node gives the same bits, but a runtime may sum in another order if a weight is a constant.
    numerics = Numerics.REASSOCIATED

    def run(self, editor: Editor) -> list[str]:
        done: Counter[str] = Counter()
        contents: dict[ir.Value, Hashable] = {}
        has_new_constants = False
        for graph in list(editor.graphs()):
            has_new_constants |= _simplify(graph, editor, contents, done)
        for graph in list(editor.graphs()):
            remove_unused(graph, editor, done)
        if cast := cast_before_transposing(editor):
            done["Cast between Transpose and MatMul, moved before the Transpose"] += cast
        if has_new_constants:
            # Inference may find more shapes with the new constants; otherwise only a second run would find them.
            editor.infer_again()
        editor.touched.clear()
        return [f"{what}: {count}" for what, count in done.items()]


def _simplify(graph: ir.Graph, editor: Editor, contents: dict[ir.Value, Hashable], done: Counter[str]) -> bool:
    """Simplifies a graph's nodes in topological order; returns whether inference may find more types or shapes."""
    constants, equal, inlined = ConstantFolding(editor), EqualNodes(editor, contents), False
    for node in graph:
        op_type = node.op_type  # read once: a graph without rewrites spends most of its time in this loop
        if op_type in COMPUTED and constants.compute(node):
            done[f"{op_type} of constants, computed"] += 1
        elif op_type == "If" and is_op(node) and take_branch(node, editor):
            done["If with a constant condition, replaced by its branch"] += 1
            inlined = True
        elif op_type == "Loop" and is_op(node) and (removed := remove_constant_states(node, editor)):
            done["constant states of Loop, removed"] += removed
            inlined = True
        else:
            if op_type == "Range" and is_op(node) and constants.replace_by_scalars(node):
                done["one-element constants of Range, reshaped to scalars"] += 1
            same = unchanged(node, editor) if op_type in CANDIDATES else None
            if same is not None and editor.bypass(node, same):
                done[f"{op_type} without effect, removed"] += 1
            elif equal.merge(node):
                done[f"{op_type} that repeats another, merged"] += 1
    return inlined or constants.enables_inference
