"""Removes unused nodes and initializers."""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir

from graphopt.graph.editor import Editor
from graphopt.graph.view import has_readers, is_read
from graphopt.ops import DOMAIN

# Domains of operators without side effects.
PURE_DOMAINS = frozenset({"", "ai.onnx.ml", "com.microsoft", DOMAIN})


def remove_unused(graph: ir.Graph, editor: Editor, done: Counter[str]) -> None:
    """Removes unused nodes, the last first, and unused initializers of a graph; counts them in `done`."""
    for node in reversed(graph):
        if not has_readers(node) and node.domain in PURE_DOMAINS and node.outputs:
            editor.remove(node)
            done[f"unused {node.op_type}, removed"] += 1
    for value in list(graph.initializers.data.values()):
        if not (is_read(value) or value.is_graph_input()):
            editor.remove_initializer(value)
            done["unused initializer, removed"] += 1
