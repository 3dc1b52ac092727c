"""The only code that changes a graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from graphopt.graph import inference
from graphopt.graph.traversal import bodies, tensor_dims, with_subgraphs
from graphopt.graph.view import ANY, BODY_TYPE, FLOATS, GraphView, has_readers, is_read, use_count
from graphopt.ops import DOMAIN, DOMAIN_VERSION, OPS
from graphopt.ops.schema import Array, Dialect
from graphopt.targets.profit import Profit
from graphopt.targets.target import Target

# Indices of the first loop-carried value of a Loop. (In the outputs of the Loop it is 0: they have no condition.)
FIRST_STATE = 2  # in the inputs of the Loop and of its body
FIRST_STATE_OUTPUT = 1  # in the outputs of the body
Attribute = int | float | str | Sequence[int] | Sequence[float]


class Editor(GraphView):
    """A model that is being rewritten.

    Attributes:
        touched: the nodes around each change; the pipeline visits them again instead of scanning the graph.
        removed: the removed nodes.
        needs_inference: whether another shape inference may find more shapes, and so more candidates. It is set when a
            value with an incomplete shape is replaced by another value, and by passes whose new node has a more precise
            shape than the replaced node.
    """

    def __init__(self, model: ir.Model, target: Target, profit: Profit | None = None, *, half: bool = False) -> None:
        super().__init__(model, target, profit, half=half)
        self.touched: list[ir.Node] = []
        self.removed: list[ir.Node] = []
        self.needs_inference = False
        self._names: set[str] = set()
        self._node_names: set[str] = set()
        for function in model.functions.values():
            if function.domain == DOMAIN:
                self._collect_names(with_subgraphs(function.graph))
        self._collect_names(self._own_graphs)
        # The number of values and of nodes with each name, counted when the first body is inlined.
        self._counted: Counter[str] = Counter()
        self._counted_nodes: Counter[str] = Counter()
        self._functions = {f.graph for f in model.functions.values()}

    def _collect_names(self, graphs: Iterable[ir.Graph]) -> None:
        for graph in graphs:
            self._names.update(v.name for v in graph.inputs if v.name)
            self._names.update(graph.initializers.data)
            for node in graph:
                self._names.update([name for v in node.outputs if (name := v.name)])
                if name := node.name:
                    self._node_names.add(name)

    def changed(self) -> None:
        """Drops the index of nodes, after nodes were added or removed."""
        self._by_operator = None

    def infer_again(self) -> None:
        """Infers types and shapes again, after changes that allow more precise results."""
        inference.infer_again(self.model)
        self.shapes.forget()
        self.needs_inference = False

    def unique_name(self, hint: str) -> str:
        """Returns a new name for a value."""
        return self._unique(hint, self._names)

    def unique_node_name(self, hint: str) -> str:
        """Returns a new name for a node."""
        return self._unique(hint, self._node_names)

    def _unique(self, hint: str, taken: set[str]) -> str:
        name, n = hint, 0
        while name in taken:
            n += 1
            name = f"{hint}_{n}"
        taken.add(name)
        return name

    def initializer(self, anchor: ir.Node, data: Array | ir.LazyTensor, hint: str) -> ir.Value:
        """Creates a constant in the graph of `anchor`: an initializer, or a Constant node in a function."""
        name = self._unique(hint, self._names)
        tensor = ir.Tensor(np.asarray(data, order="C")) if isinstance(data, np.ndarray | np.generic) else data
        tensor.name = name
        graph = anchor.graph
        assert graph is not None
        if graph in self._functions:
            self.changed()
            node = ir.Node(
                "", "Constant", [], [ir.AttrTensor("value", tensor)], name=self._unique(name, self._node_names)
            )
            node.outputs[0].name = name
            node.outputs[0].dtype, node.outputs[0].shape = tensor.dtype, tensor.shape
            graph.insert_before(anchor, node)
            return node.outputs[0]
        return self._register(graph, tensor)

    def initializer_like(self, value: ir.Value, tensor: ir.TensorProtocol, suffix: str) -> ir.Value:
        """Creates an initializer in the graph of the constant `value`, with a name derived from its name."""
        assert value.graph is not None
        tensor.name = self.unique_name(f"{value.name}_{suffix}")
        return self._register(value.graph, tensor)

    def _register(self, graph: ir.Graph, tensor: ir.TensorProtocol) -> ir.Value:
        shape = tensor.shape
        assert isinstance(shape, ir.Shape)
        value = ir.Value(name=tensor.name, shape=shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
        graph.initializers.add(value)
        return value

    def rewire(
        self,
        node: ir.Node,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Attribute] | None = None,
        *,
        op_type: str | None = None,
    ) -> None:
        """Replaces the inputs of a node in the graph, and optionally attributes and the operator.

        Producers and initializers that became unused are removed. If the elements of the node's outputs change, also
        pass the node to `replace` in `new`.
        """
        self.changed()
        dropped = [v for v in node.inputs if v not in inputs]
        if len(inputs) != len(node.inputs):
            node.resize_inputs(len(inputs))
        for i, value in enumerate(inputs):
            if node.inputs[i] is not value:
                node.replace_input_with(i, value)
        if attributes:
            for attribute in ir.convenience.convert_attributes(attributes):
                node.attributes.add(attribute)
        node.op_type = op_type or node.op_type
        neighbours: dict[ir.Node, None] = {node: None}
        self.remove_unused(self._released(dropped, neighbours), neighbours)
        self.touched += [n for n in neighbours if n.graph is not None]

    def import_op(self, name: str, inputs: Sequence[ir.Value], anchor: ir.Node) -> None:
        """Adds a com.graphopt operator: its function body, and our opset in the model and in the anchor's function."""
        if (DOMAIN, name, "") not in self.model.functions:
            known = [d for v in inputs if (d := self.dtype(v)) in FLOATS]
            self.define(name, known[0] if known else ir.DataType.FLOAT)
        self.model.opset_imports.setdefault(DOMAIN, DOMAIN_VERSION)
        if anchor.graph in self._functions:
            for f in self.model.functions.values():
                if f.graph is anchor.graph:
                    f.opset_imports.setdefault(DOMAIN, DOMAIN_VERSION)
        # Functions are part of the format from IR version 8 on; never raise the version further.
        self.model.ir_version = max(self.model.ir_version, 8)

    def define(self, name: str, T: ir.DataType) -> None:
        """Adds or replaces an operator's function body; below CAST_LIKE_OPSET it is valid only for T."""
        dialect = Dialect(self.model.opset_imports[""], T)
        function = OPS[name].function(dialect)
        if not dialect.follows_type:
            function.metadata_props[BODY_TYPE] = dialect.T.name
        self.model.functions[function.identifier()] = function

    def remove_unused_definitions(self) -> None:
        """Removes the function bodies of our operators that no node uses."""
        functions = self.model.functions
        used = {node.op_type for node in self.nodes({(DOMAIN, ANY)})}
        for identifier in [i for i, f in functions.items() if f.domain == DOMAIN and f.name not in used]:
            del functions[identifier]

    def set_input(self, node: ir.Node, i: int, value: ir.Value | None) -> None:
        """Replaces input `i` of a node; keeps the producer of the old value even if it is unused."""
        node.replace_input_with(i, value)

    def set_attribute(self, node: ir.Node, name: str, value: Attribute | ir.TensorProtocol) -> None:
        """Adds or replaces an attribute of a node."""
        (attribute,) = ir.convenience.convert_attributes({name: value})
        node.attributes.add(attribute)

    def add_output(self, node: ir.Node, dtype: ir.DataType) -> ir.Value:
        """Appends an output to a node."""
        node.resize_outputs(len(node.outputs) + 1)
        node.outputs[-1].type = ir.TensorType(dtype)
        return node.outputs[-1]

    def set_data(self, value: ir.Value, data: Array) -> None:
        """Replaces the data of an initializer by an array of the same shape."""
        value.const_value = ir.Tensor(np.asarray(data, order="C"), name=value.name)

    def add_input(self, name: str, dtype: ir.DataType, shape: ir.Shape | None = None) -> ir.Value:
        """Appends an input to the model; its name is made unique."""
        value = ir.Value(name=self.unique_name(name), type=ir.TensorType(dtype), shape=shape)
        self.model.graph.inputs.append(value)
        return value

    def add_graph_output(self, graph: ir.Graph, value: ir.Value) -> None:
        """Appends a value of a graph to the graph's outputs."""
        graph.outputs.append(value)

    def set_outputs(self, values: Sequence[ir.Value]) -> None:
        """Replaces the outputs of the model by values of its main graph."""
        self.model.graph.outputs.clear()
        self.model.graph.outputs.extend(values)

    def add_before(self, anchor: ir.Node, nodes: Sequence[ir.Node]) -> None:
        """Inserts new nodes before `anchor`."""
        assert anchor.graph is not None
        self.changed()
        anchor.graph.insert_before(anchor, nodes)

    def append_nodes(self, graph: ir.Graph, nodes: Sequence[ir.Node]) -> None:
        """Appends nodes to a graph."""
        self.changed()
        graph.extend(nodes)

    def add_after(self, value: ir.Value, nodes: Sequence[ir.Node]) -> None:
        """Inserts consumers of a value directly after its producer; at the start of the graph if it has none."""
        graph, producer = value.graph, value.producer()
        assert graph is not None
        self.changed()
        if producer is not None:
            graph.insert_after(producer, nodes)
        else:
            graph.insert_before(next(iter(graph)), nodes)

    def replace(
        self, old: Sequence[ir.Node], new: Sequence[ir.Node], outputs: Mapping[ir.Value, ir.Value], *, anchor: ir.Node
    ) -> None:
        """Replaces nodes.

        Args:
            old: the replaced nodes; nodes that are still used are kept.
            new: their replacement. New nodes are inserted before `anchor`. Nodes that are in the graph already (see
                `rewire`) keep their position and their inputs.
            outputs: replaced value -> its replacement. A replacement that a node of `new` produces takes over the
                name, type and shape, which preserves the graph's outputs.
            anchor: a node of the graph.
        """
        graph = anchor.graph
        assert graph is not None
        self.changed()
        if fresh := [n for n in new if n.graph is None]:
            graph.insert_before(anchor, fresh)
        neighbours: dict[ir.Node, None] = dict.fromkeys(new)
        for old_value, new_value in outputs.items():
            uses, producer = old_value.uses(), new_value.producer()
            neighbours.update([(use.node, None) for use in uses])
            producer_changed = producer is not None and producer in new
            ours = producer is not None and producer.domain == DOMAIN and producer_changed
            if not self.needs_inference and not inference.is_certain(old_value.shape):
                # The output of a com.graphopt node gets exactly the type and shape of the old value.
                as_before = ours and old_value.type is not None and old_value.shape is not None
                alike = not producer_changed and inference.have_equal_dims(old_value.shape, new_value.shape)
                self.needs_inference = not (as_before or alike)
            if producer_changed:
                new_value.type = old_value.type or new_value.type
                new_value.shape = old_value.shape or new_value.shape
                new_value.doc_string = old_value.doc_string
                if old_value.metadata_props:
                    new_value.metadata_props.update(old_value.metadata_props)
                if ours and not old_value.is_graph_output():
                    # onnx's inference does not follow the Reshapes of our function bodies.
                    inference.declare(self.model, new_value)
                else:
                    inference.declare_like(self.model, new_value, old_value)
                new_value.name, old_value.name = old_value.name, new_value.name
            self.shapes.replaced(old_value, new_value, producer_changed=producer_changed)
            kept = [use for use in uses if use.node in new]
            old_value.replace_all_uses_with(new_value, replace_graph_outputs=True)
            for use in kept:
                use.node.replace_input_with(use.idx, old_value)
        self.remove_unused(old, neighbours)
        for node in new:
            neighbours.update(dict.fromkeys(node.predecessors()))
        self.touched += [n for n in neighbours if n.graph is not None]

    def interpose(self, value: ir.Value, nodes: Sequence[ir.Node], result: ir.Value) -> None:
        """Inserts `nodes`, which read `value`, after its producer; the other readers of `value` get `result` instead.

        `value` and `result` exchange their names.
        """
        self.add_after(value, nodes)
        self.replace([], nodes, {value: result}, anchor=nodes[0])

    def bypass(self, node: ir.Node, x: ir.Value) -> bool:
        """Replaces the first output of `node` by its input `x`, and removes the node.

        Returns:
            False, without a change, if the output is a graph output and `x` cannot take its name, or has other uses.
            With other uses the graph output would have readers, and a runtime may fuse its producer into a reader.
        """
        y, producer = node.outputs[0], x.producer()
        if not y.is_graph_output():
            self.replace([node], [], {y: x}, anchor=node)
            return True
        if producer is None or producer.graph is not node.graph or x.is_graph_output() or use_count(x) > 1:
            return False
        self.needs_inference |= not inference.is_certain(x.shape)
        self.replace([node], [producer], {y: x}, anchor=node)
        return True

    def remove(self, node: ir.Node) -> None:
        """Removes an unused node and empties its bodies, which may use values of the graph."""
        assert node.graph is not None
        self.changed()
        for body in bodies(node):
            _empty(body)
        node.graph.remove(node, safe=True)

    def remove_initializer(self, value: ir.Value) -> None:
        """Removes an unused initializer."""
        assert value.graph is not None and value.name is not None
        del value.graph.initializers[value.name]

    def inline_body(self, node: ir.Node, body: ir.Graph) -> None:
        """Replaces a node by the nodes of one of its bodies."""
        graph = node.graph
        assert graph is not None
        if not self._counted:
            self._count_names()
        results = list(body.outputs)
        body.outputs.clear()
        moved = list(body)
        body.remove(moved)
        for inner in moved:
            self._rename_repeated(inner)
        for name, value in list(body.initializers.data.items()):
            del body.initializers[name]
            if (tensor := value.const_value) is not None:
                constant = self.initializer(node, _as_lazy(tensor), name)
                value.replace_all_uses_with(constant)
                results = [constant if v is value else v for v in results]
        outputs: dict[ir.Value, ir.Value] = {}
        for old, new in zip(node.outputs, results):
            free = new.producer() in moved and new not in outputs.values() and not use_count(new)
            if old.is_graph_output() and not free:
                # The graph output keeps its name, and gets no additional uses (see `bypass`).
                copy = ir.node("Identity", [new], name=self.unique_node_name(f"{old.name}/branch"))
                new = copy.outputs[0]
                new.name = self.unique_name(f"{copy.name}_out")
                moved.append(copy)
            outputs[old] = new
        graph.insert_after(node, moved)
        self.replace([], moved, outputs, anchor=node)
        self.remove(node)

    def remove_loop_states(self, node: ir.Node, states: Sequence[int]) -> None:
        """Removes loop-carried values that no iteration changes; the body reads their initial values instead.

        Args:
            node: the Loop.
            states: indices of the values in ascending order; some outputs of the Loop must remain.
        """
        attribute = node.attributes.pop("body")  # a removed node empties its bodies
        body = attribute.as_graph()
        initial: dict[int, ir.Value] = {}
        for i in reversed(states):
            value = node.inputs[FIRST_STATE + i]
            assert value is not None
            initial[i] = value
            body.outputs.pop(FIRST_STATE_OUTPUT + i)
            body.inputs.pop(FIRST_STATE + i).replace_all_uses_with(value)
        inputs = [x for k, x in enumerate(node.inputs) if k - FIRST_STATE not in initial]
        attributes = [*node.attributes.values(), attribute]
        name = self.unique_node_name(node.name or node.op_type)
        loop = ir.Node("", "Loop", inputs, attributes, num_outputs=len(node.outputs) - len(initial), name=name)
        for output in loop.outputs:
            output.name = self.unique_name(f"{name}_out")
        results = iter(loop.outputs)
        replaced = {y: initial[i] if i in initial else next(results) for i, y in enumerate(node.outputs)}
        self.replace([node], [loop], replaced, anchor=node)

    def _count_names(self) -> None:
        for graph in self.graphs():
            self._counted.update(str(v.name) for v in graph.inputs)
            self._counted.update(list(graph.initializers.data))
            for node in graph:
                self._counted.update(str(o.name) for o in node.outputs)
                self._counted_nodes[node.name or ""] += 1

    def _rename_repeated(self, node: ir.Node) -> None:
        """Renames a node and its outputs if other nodes or values have the same name.

        Two branches may use the same name, but a graph and its body may not.
        """
        for value in node.outputs:
            if value.name and self._counted[value.name] > 1:
                value.name = self.unique_name(value.name)
        if node.name and self._counted_nodes[node.name] > 1:
            node.name = self.unique_node_name(node.name)

    def remove_unused(self, nodes: Iterable[ir.Node], neighbours: dict[ir.Node, None] | None = None) -> None:
        """Removes unused nodes of `nodes`, and then producers that became unused; consumers first.

        Producers of the removed nodes' inputs that are still used are added to `neighbours`.
        """
        work = list(nodes)
        dead: dict[ir.Node, ir.Graph] = {}
        while work:
            node = work.pop()
            graph = node.graph
            if graph is None or node in dead or has_readers(node):
                continue
            if bodies(node):
                continue  # its bodies use values; the clean-up pass removes such nodes
            assert isinstance(graph, ir.Graph)
            dead[node] = graph
            inputs = dict.fromkeys(node.inputs)
            node.resize_inputs(0)
            work += self._released(inputs, neighbours)
        # One call for each graph, because `Graph.remove` copies the outputs of the graph.
        for graph in set(dead.values()):
            graph.remove([node for node, of in dead.items() if of is graph])
        self.removed += dead

    def _released(
        self, values: Iterable[ir.Value | None], neighbours: dict[ir.Node, None] | None = None
    ) -> list[ir.Node]:
        """Deletes unused initializers and returns producers that became unused."""
        producers: list[ir.Node] = []
        for value in values:
            if value is None:
                continue
            producer = value.producer()
            if is_read(value) or value.is_graph_input():
                if producer is not None and neighbours is not None:
                    neighbours[producer] = None
            elif producer is not None:
                producers.append(producer)
            elif value.is_initializer():
                self.remove_initializer(value)
        return producers


def _as_lazy(tensor: ir.TensorProtocol) -> ir.LazyTensor:
    """Returns a copy of a tensor that can be renamed; the caller's model may share the original."""
    return ir.LazyTensor(lambda: tensor, tensor.dtype, ir.Shape(tensor_dims(tensor)))


def _empty(body: ir.Graph) -> None:
    """Removes the nodes and initializers of a body, which ends its uses of outer values."""
    body.outputs.clear()
    for node in reversed(body):
        for inner in bodies(node):
            _empty(inner)
        body.remove(node, safe=True)
    body.initializers.clear()
