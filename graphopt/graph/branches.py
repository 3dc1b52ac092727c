"""Puts the branch that always runs in the place of its If."""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir

from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.traversal import bodies, tensor_dims
from graphopt.graph.view import use_count


class Branches:
    """The branches of a model's Ifs."""

    def __init__(self, editor: Editor) -> None:
        self._editor = editor
        # How many values and nodes of the model have a name; counted when the first branch moves.
        self._values: Counter[str] = Counter()
        self._nodes: Counter[str] = Counter()

    def take(self, node: ir.Node) -> bool:
        """Puts the nodes of the branch that runs behind its If, and removes the If; False where both may run.

        Behind and not before, so that a walk over the graph that stands at the If meets them next.
        """
        condition = self._editor.tensor(node.inputs[0]) if node.inputs else None
        if condition is None or condition.dtype != ir.DataType.BOOL or condition.size != 1:
            return False
        attribute = node.attributes.get("then_branch" if condition.numpy().item() else "else_branch")
        graph = node.graph
        if attribute is None or attribute.is_ref() or attribute.type != ir.AttributeType.GRAPH or graph is None:
            return False
        branch = attribute.as_graph()
        if len(branch.outputs) != len(node.outputs):
            return False
        self._count_names()
        results = list(branch.outputs)
        branch.outputs.clear()
        moved = list(branch)
        branch.remove(moved)
        for inner in moved:
            self._rename(inner)
        for name, value in list(branch.initializers.data.items()):
            del branch.initializers[name]
            if (tensor := value.const_value) is not None:
                constant = self._editor.initializer(node, _same(tensor), name)
                value.replace_all_uses_with(constant)
                results = [constant if v is value else v for v in results]
        outputs: dict[ir.Value, ir.Value] = {}
        for old, new in zip(node.outputs, results):
            free = new.producer() in moved and new not in outputs.values() and not use_count(new)
            if old.is_graph_output() and not free:
                # It keeps its name, and gets no readers that it did not have (see `Editor.bypass`).
                builder = Builder(self._editor, node)
                new = builder.op("Identity", new, _hint=f"{old.name}/branch")
                moved += builder.nodes
            outputs[old] = new
        graph.insert_after(node, moved)
        self._editor.replace([], moved, outputs, anchor=node)
        for body in bodies(node):
            take_apart(body)
        graph.remove(node, safe=True)
        return True

    def _count_names(self) -> None:
        if self._values:
            return
        for graph in self._editor.graphs():
            self._values.update(str(v.name) for v in graph.inputs)
            self._values.update(list(graph.initializers.data))
            for node in graph:
                self._values.update(str(o.name) for o in node.outputs)
                self._nodes[node.name or ""] += 1

    def _rename(self, node: ir.Node) -> None:
        """Bodies beside each other may use the same names, a graph and a body in it may not."""
        for value in node.outputs:
            if value.name and self._values[value.name] > 1:
                value.name = self._editor.unique_name(value.name)
        if node.name and self._nodes[node.name] > 1:
            node.name = self._editor.unique_node_name(node.name)


def _same(tensor: ir.TensorProtocol) -> ir.LazyTensor:
    """A tensor that can be given a name: the model that was handed in may share the one it is made of."""
    return ir.LazyTensor(lambda: tensor, tensor.dtype, ir.Shape(tensor_dims(tensor)))


def take_apart(body: ir.Graph) -> None:
    """Removes the nodes of a body, so that the values that they read outside are no longer read."""
    body.outputs.clear()
    for node in reversed(body):
        for inner in bodies(node):
            take_apart(inner)
        body.remove(node, safe=True)
