"""Replaces an If with a constant condition by the branch that it runs."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.graph.editor import Editor


def take_branch(node: ir.Node, editor: Editor) -> bool:
    """Inlines the branch that runs; returns False if the condition is not constant.

    The nodes are inserted after the If, so a loop over the graph that has reached the If visits them next.
    """
    condition = editor.tensor(node.inputs[0]) if node.inputs else None
    if condition is None or condition.dtype != ir.DataType.BOOL or condition.size != 1:
        return False
    attribute = node.attributes.get("then_branch" if condition.numpy().item() else "else_branch")
    if attribute is None or attribute.is_ref() or attribute.type != ir.AttributeType.GRAPH or node.graph is None:
        return False
    branch = attribute.as_graph()
    if len(branch.outputs) != len(node.outputs):
        return False
    editor.inline_body(node, branch)
    return True
