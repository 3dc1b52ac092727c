"""The only way in which passes read and change a graph."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter

import numpy as np
import onnx_ir as ir

from graphopt.graph import inference
from graphopt.graph.shapes.engine import Shapes
from graphopt.graph.traversal import bodies, tensor_array, tensor_dims, with_subgraphs
from graphopt.ops import DOMAIN, DOMAIN_VERSION, OPS
from graphopt.ops.schema import CAST_LIKE_OPSET, Array, Dialect
from graphopt.remarks import Code, Refusal, node_label
from graphopt.targets.profit import Candidate, Estimates, Profit, Site
from graphopt.targets.target import Target

# Below CAST_LIKE_OPSET a body is written for one element type, and says so here.
BODY_TYPE = "graphopt.T"
BODY_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
# In the place of an operator's name: every operator of a domain other than ONNX's own.
ANY = "*"
Dim = int | str | None
Attribute = int | float | str | Sequence[int] | Sequence[float]


class Editor:
    """A model that is being rewritten: what passes may ask of it and do to it.

    Every question is O(1) or linear in the answer. `touched` collects the nodes around each change, which is how the
    pipeline knows where to look again without scanning the graph; `removed` collects those that went.
    """

    def __init__(self, model: ir.Model, target: Target, profit: Profit | None = None, *, half: bool = False) -> None:
        self.model = model
        self.target = target
        self.profit = profit or Estimates()
        self.shapes = Shapes(self)
        # Products will be computed in float16 (half_precision/), which decides what pays.
        self.half = half and target.device != "cpu"
        self.touched: list[ir.Node] = []
        self.removed: list[ir.Node] = []
        # A change may tell inference more and so open further sites: a node took the place of one whose shape was not
        # known, or a value took a declared shape. Passes set it where their node says more than what it replaces.
        self.shapes_may_follow = False
        # Passes make no bodies, and a body that goes is emptied, so that this list stays right.
        self._own_graphs = list(with_subgraphs(model.graph))
        self._names: set[str] = set()
        self._node_names: set[str] = set()
        for function in model.functions.values():
            graphs = list(with_subgraphs(function.graph))
            if function.domain != DOMAIN:
                self._own_graphs += graphs
            else:
                self._collect_names(graphs)
        self._collect_names(self._own_graphs)
        self._functions = {f.graph for f in model.functions.values()}
        self._by_operator: defaultdict[tuple[str, str], list[tuple[int, ir.Node]]] | None = None

    def _collect_names(self, graphs: Iterable[ir.Graph]) -> None:
        for graph in graphs:
            self._names.update(v.name for v in graph.inputs if v.name)
            self._names.update(graph.initializers.data)
            for node in graph:
                for value in node.outputs:
                    if value.name:
                        self._names.add(value.name)
                if node.name:
                    self._node_names.add(node.name)

    # -- questions ---------------------------------------------------------------------------------------------

    def graphs(self) -> Iterator[ir.Graph]:
        """The main graph, its subgraphs and the user's functions with theirs; never the bodies of our own domain."""
        yield from self._own_graphs

    def nodes(self, operators: Collection[tuple[str, str]]) -> list[ir.Node]:
        """All nodes of these operators (domain, op_type), in the order of the graphs; see `ANY` for a whole domain."""
        index = self._by_operator
        if index is None:
            self._by_operator = index = defaultdict(list)
            for place, node in enumerate(chain.from_iterable(self._own_graphs)):
                domain = node.domain
                index[domain, node.op_type].append((place, node))
                if domain:
                    index[domain, ANY].append((place, node))
        found = [index[o] for o in operators if o in index]
        return [node for _, node in sorted(chain.from_iterable(found), key=itemgetter(0))]

    def changed(self) -> None:
        """Whoever adds or removes nodes without `replace` says so."""
        self._by_operator = None

    def tensor(self, value: ir.Value | None) -> ir.TensorProtocol | None:
        """The constant behind a value without reading its data, or None; overridable initializers are not constants."""
        if value is None:
            return None
        if (tensor := value.const_value) is not None:
            return None if value.is_graph_input() else tensor
        # Asked of every input of every node: only the output of a Constant has more to it.
        producer = value.producer()
        if producer is None or producer.op_type != "Constant" or producer.domain != "":
            return None
        attribute = producer.attributes.data.get("value")
        if attribute is not None and not attribute.is_ref():
            # Not by onnx_ir's function, which writes the value's name into the tensor: a look would change the file.
            return attribute.as_tensor()
        return ir.convenience.get_const_tensor(value)

    def is_constant(self, value: ir.Value | None) -> bool:
        return self.tensor(value) is not None

    def constant(self, value: ir.Value | None) -> Array | None:
        """The data of a constant value, or None."""
        tensor = self.tensor(value)
        return None if tensor is None else tensor_array(tensor)

    def require_constant(self, value: ir.Value | None, what: str, *nodes: ir.Node) -> Array:
        """The data of a constant value.

        Raises:
            Refusal: NOT_CONSTANT, QUANTIZED or OVERRIDABLE.

        """
        array = self.constant(value)
        if array is None:
            producer = value.producer() if value is not None else None
            if producer is not None and producer.op_type == "DequantizeLinear":  # of com.microsoft, too
                raise Refusal(Code.QUANTIZED, f"{what} is dequantized", *nodes, producer)
            overridable = value is not None and value.is_initializer()
            code = Code.OVERRIDABLE if overridable else Code.NOT_CONSTANT
            raise Refusal(code, f"{what} is {value.name if value is not None else 'absent'}", *nodes)
        return array

    def scalar(self, value: ir.Value | None) -> float | None:
        """The number that a constant of size 1 holds, or None."""
        tensor = self.tensor(value)
        if tensor is None or math.prod(tensor_dims(tensor)) != 1 or tensor.dtype == ir.DataType.STRING:
            return None
        return float(tensor_array(tensor).item())

    def only_use(self, value: ir.Value) -> bool:
        """True when exactly one node input reads the value (captures by subgraphs count) and it is no graph output."""
        return use_count(value) == 1 and not value.is_graph_output()

    def require_one_type(self, values: Iterable[ir.Value], *nodes: ir.Node) -> None:
        """Raises:
        Refusal: MIXED_DTYPE unless all values have one element type.
        """
        types = {self.dtype(value) for value in values}
        if len(types) > 1:
            raise Refusal(Code.MIXED_DTYPE, " and ".join(sorted(str(t) for t in types)), *nodes)

    def known_types(self, values: Iterable[ir.Value | None]) -> set[ir.DataType]:
        """The element types of those values of which one is known."""
        return {dtype for value in values if (dtype := self.dtype(value)) is not None}

    def require_alike(self, values: Iterable[ir.Value | None], *nodes: ir.Node) -> None:
        """Raises:
        Refusal: MIXED_DTYPE where the element types that are known are several.
        """
        known = self.known_types(values)
        if len(known) > 1:
            raise Refusal(Code.MIXED_DTYPE, " and ".join(sorted(d.name for d in known)), *nodes)

    def require_only_use(self, value: ir.Value, *nodes: ir.Node) -> None:
        """Raises:
        Refusal: GRAPH_OUTPUT or OTHER_USES unless exactly one node input reads the value.
        """
        if value.is_graph_output():
            raise Refusal(Code.GRAPH_OUTPUT, f"{value.name} is a graph output", *nodes)
        if use_count(value) != 1:
            raise Refusal(Code.OTHER_USES, f"{value.name} has {use_count(value)} readers", *nodes)

    def require_readers(self, value: ir.Value, readers: Collection[ir.Node], maker: ir.Node) -> None:
        """Raises:
        Refusal: GRAPH_OUTPUT or OTHER_USES unless nothing but `readers` reads what `maker` gives.
        """
        if value.is_graph_output():
            raise Refusal(Code.GRAPH_OUTPUT, f"{value.name} is a graph output", maker)
        for reader in value.consumers():
            if reader not in readers:
                raise Refusal(Code.OTHER_USES, f"{value.name} is also read by {reader.op_type}", maker, reader)

    def require_contained(self, nodes: Sequence[ir.Node], result: ir.Value) -> None:
        """Raises:
        Refusal: GRAPH_OUTPUT or OTHER_USES unless `result` is the only value of `nodes` that anything else reads.
        """
        for node in nodes:
            for output in node.outputs:
                if output is result:
                    continue
                if output.is_graph_output():
                    raise Refusal(Code.GRAPH_OUTPUT, f"{output.name} is a graph output", node)
                outside = [u for u in output.consumers() if u not in nodes]
                if outside:
                    raise Refusal(Code.OTHER_USES, f"{output.name} is read by {outside[0].op_type}", node, outside[0])

    def declared(self, value: ir.Value | None) -> tuple[Dim, ...] | None:
        """Dimensions as the model and inference have them: int, symbol or None; None without a rank.

        What is known of a value is more than that: passes ask `shapes`.
        """
        if value is None:
            return None
        if value.shape is None:
            tensor = self.tensor(value)
            return None if tensor is None else tensor_dims(tensor)
        # A list: a generator takes twice as long, and every candidate asks for several.
        return tuple([d if isinstance(d, int) else d.value for d in value.shape])

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        if value is None:
            return None
        type_ = value.type
        if type_ is not None and (dtype := type_.dtype) != ir.DataType.UNDEFINED:
            return dtype
        tensor = self.tensor(value)
        return None if tensor is None else tensor.dtype

    def opset(self, node: ir.Node) -> int:
        """The version of the node's domain that holds where the node stands (0 when it is not imported)."""
        return node.version if node.version is not None else self.opset_at(node, node.domain)

    def opset_at(self, node: ir.Node, domain: str = "") -> int:
        """The version of a domain that holds where the node stands (0 when it is not imported)."""
        graph = node.graph
        while graph is not None:
            if domain in graph.opset_imports:
                return graph.opset_imports[domain]
            parent = getattr(graph, "parent_node", None)
            graph = parent.graph if parent is not None else None
        return self.model.opset_imports.get(domain, 0)

    def candidate(
        self, op: str, inputs: Sequence[ir.Value], output: ir.Value, anchor: ir.Node, doubt: str = ""
    ) -> Candidate:
        """What a profit model is told about a rewrite that would put in `op`; see `Candidate`."""

        def describe() -> Site:
            made = [v.producer() for v in inputs if not self.is_constant(v)]
            readers = sorted({u.node.op_type for u in output.uses()})
            dtype = next((d for v in (*inputs, output) if (d := self.dtype(v)) is not None), None)
            return Site(
                node_label(anchor),
                op,
                "?" if dtype is None else dtype.name.lower(),
                tuple(self.declared(v) for v in inputs),
                tuple(n.op_type for n in made if n is not None),
                tuple(readers),
            )

        return Candidate(doubt, describe)

    # -- changes -----------------------------------------------------------------------------------------------

    def infer_afresh(self) -> None:
        """Has types and shapes inferred once more, after changes that tell more."""
        inference.infer_afresh(self.model)
        self.shapes.forget()
        self.shapes_may_follow = False

    def unique_name(self, hint: str) -> str:
        """A name that no value of the model has."""
        return self._unique(hint, self._names)

    def unique_node_name(self, hint: str) -> str:
        """A name that no node of the model has."""
        return self._unique(hint, self._node_names)

    def _unique(self, hint: str, taken: set[str]) -> str:
        name, n = hint, 0
        while name in taken:
            n += 1
            name = f"{hint}_{n}"
        taken.add(name)
        return name

    def initializer(self, anchor: ir.Node, data: Array | ir.LazyTensor, hint: str) -> ir.Value:
        """A new constant beside `anchor`: an initializer of its graph, or a Constant node in a function's body."""
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
        value = ir.Value(name=name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
        graph.register_initializer(value)
        return value

    def node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Attribute] | None = None,
        *,
        hint: str,
        outputs: int = 1,
        domain: str = "",
    ) -> ir.Node:
        """A new node, not yet in a graph. `hint` names it; the name is made unique."""
        name = self._unique(hint, self._node_names)
        node = ir.node(op_type, inputs, attributes, domain=domain, num_outputs=outputs, name=name)
        for i, output in enumerate(node.outputs):
            output.name = self._unique(f"{name}_out{i}" if outputs > 1 else f"{name}_out", self._names)
        return node

    def rewire(
        self,
        node: ir.Node,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Attribute] | None = None,
        *,
        op_type: str | None = None,
    ) -> None:
        """Gives a node of the graph other inputs where it stands; what only it read goes.

        For `replace` it counts as a new node: values that it makes are others now.
        """
        self.changed()
        dropped = [v for v in node.inputs if v is not None and v not in inputs]
        if len(inputs) != len(node.inputs):
            node.resize_inputs(len(inputs))
        for i, value in enumerate(inputs):
            if node.inputs[i] is not value:
                node.replace_input_with(i, value)
        if attributes:
            for attribute in ir.convenience.convert_attributes(attributes):
                node.attributes.add(attribute)
        node.op_type = op_type or node.op_type
        self.remove_unused(self._released(dropped))

    def emit(
        self, name: str, inputs: Sequence[ir.Value], attributes: Mapping[str, Attribute], *, anchor: ir.Node
    ) -> ir.Node:
        """A new node of our domain, named after `anchor`; its function body joins the model.

        Whether the model may have it is asked before, in `legal`, by `require_op`.
        """
        spec = OPS[name]
        assert len(inputs) == len(spec.inputs), f"{name} takes {spec.inputs}"
        assert attributes.keys() == spec.attributes.keys(), f"{name} has attributes {list(spec.attributes)}"
        typed = [ir.Attr(k, spec.attributes[k], v) for k, v in attributes.items()]
        label = anchor.name or anchor.outputs[0].name or name
        node = ir.Node(
            DOMAIN,
            name,
            inputs,
            typed,
            num_outputs=len(spec.outputs),
            name=self._unique(f"{label}/{name}", self._node_names),
        )
        for i, output in enumerate(node.outputs):
            output.name = self._unique(f"{node.name}_out{i}", self._names)
            brain = spec.outputs[i] in spec.bfloat16
            output.type = ir.TensorType(ir.DataType.BFLOAT16) if brain else self._type_of(name, inputs)
        if (DOMAIN, name, "") not in self.model.functions:
            known = [d for v in inputs if (d := self.dtype(v)) in BODY_TYPES]
            self.define(name, known[0] if known else ir.DataType.FLOAT)
        self.model.opset_imports.setdefault(DOMAIN, DOMAIN_VERSION)
        graph = anchor.graph
        if graph in self._functions:
            for f in self.model.functions.values():
                if f.graph is graph:
                    f.opset_imports.setdefault(DOMAIN, DOMAIN_VERSION)
        # Functions are part of the format from IR version 8 on; never raise it further (docs/architecture.md).
        self.model.ir_version = max(self.model.ir_version, 8)
        return node

    def _type_of(self, name: str, inputs: Sequence[ir.Value]) -> ir.TensorType | None:
        """What T is for an operator of ours, as any of its inputs tells; None where none does."""
        for i in OPS[name].inputs_of_T:
            if (dtype := self.dtype(inputs[i])) is not None:
                return ir.TensorType(dtype)
        return None

    def define(self, name: str, T: ir.DataType) -> None:
        """Gives the model the function body of an operator of ours, in place of one that it may have.

        Below CAST_LIKE_OPSET it is written for inputs of type T.
        """
        dialect = Dialect(self.model.opset_imports[""], T)
        function = OPS[name].function(dialect)
        if not dialect.follows_type:
            function.metadata_props[BODY_TYPE] = dialect.T.name
        self.model.functions[function.identifier()] = function

    def require_op(self, name: str, like: ir.Value, anchor: ir.Node) -> None:
        """Passes call this in `legal` for every operator of ours that they may emit.

        Args:
            name: the operator.
            like: a value of the type that the operator is to have.
            anchor: where it is to stand.

        Raises:
            Refusal: TARGET when the target takes no node of ours; OPSET when the operator's body cannot be written in
                the model's opset (runtimes inline a body under the model's opset, not under the function's own).
        """
        self.require_custom_ops()
        opset = self.model.opset_imports.get("", 0)
        oldest = OPS[name].min_opset
        if opset < oldest:
            raise Refusal(Code.OPSET, f"{name} needs opset {oldest}, the model has {opset}", anchor)
        dtype = self.dtype(like)
        if opset < CAST_LIKE_OPSET:
            if dtype not in BODY_TYPES:
                raise Refusal(Code.OPSET, f"{name} of an unknown type needs opset {CAST_LIKE_OPSET}", anchor)
            body = self.model.functions.get((DOMAIN, name, ""))
            if body is not None and body.metadata_props.get(BODY_TYPE, dtype.name) != dtype.name:
                detail = f"{name} of two element types needs opset {CAST_LIKE_OPSET}, the model has {opset}"
                raise Refusal(Code.OPSET, detail, anchor)

    def require_custom_ops(self) -> None:
        """Raises:
        Refusal: TARGET when the target takes no node of ours.
        """
        if not self.target.custom_ops:
            raise Refusal(Code.TARGET, f"target {self.target} takes standard ONNX only")

    def replace(
        self, old: Sequence[ir.Node], new: Sequence[ir.Node], outputs: Mapping[ir.Value, ir.Value], *, anchor: ir.Node
    ) -> None:
        """Puts `new` before `anchor`, redirects readers of `outputs`' keys to its values, and removes `old`.

        A value of `new` that takes the place of an old one takes its name, type and shape too, so that graph outputs
        keep theirs. Every node of `old` must be unused afterwards; a node that still has readers stays. Nodes of `new`
        that stand in the graph (see `rewire`) stay where they are, and go on reading what they read.
        """
        graph = anchor.graph
        assert graph is not None
        self.changed()
        if fresh := [n for n in new if n.graph is None]:
            graph.insert_before(anchor, fresh)
        neighbours: dict[ir.Node, None] = dict.fromkeys(new)
        for old_value, new_value in outputs.items():
            neighbours.update(dict.fromkeys(old_value.consumers()))
            producer = new_value.producer()
            ours = producer is not None and producer.domain == DOMAIN and producer in new
            # A node of ours says of its output what was known of the old value, and no more.
            as_before = ours and old_value.type is not None and old_value.shape is not None
            self.shapes_may_follow |= not (as_before or inference.is_certain(old_value.shape))
            if producer is not None and producer in new:
                new_value.type = old_value.type or new_value.type
                new_value.shape = old_value.shape or new_value.shape
                new_value.doc_string = old_value.doc_string
                new_value.metadata_props.update(old_value.metadata_props)
                if ours and not old_value.is_graph_output():
                    # onnx's inference does not follow shapes through the Reshapes of our bodies.
                    inference.declare(self.model, new_value)
                else:
                    inference.declare_like(self.model, new_value, old_value)
                new_value.name, old_value.name = old_value.name, new_value.name
            self.shapes.replaced(old_value, new_value, made_anew=producer is not None and producer in new)
            kept = [use for use in old_value.uses() if use.node in new]
            old_value.replace_all_uses_with(new_value, replace_graph_outputs=True)
            for use in kept:
                use.node.replace_input_with(use.idx, old_value)
        self.remove_unused(old, neighbours)
        neighbours.update({p: None for n in new for p in n.predecessors()})
        self.touched.extend(n for n in neighbours if n.graph is not None)

    def bypass(self, node: ir.Node, x: ir.Value) -> bool:
        """Lets the readers of `node`'s first output read its input `x` instead, and removes it.

        False, and nothing is done, when the output is a graph output whose name `x` cannot take, or which others read:
        the runtimes' own rewrites forget at times that a value which they fold into its reader is a graph output, too.
        """
        y, producer = node.outputs[0], x.producer()
        if not y.is_graph_output():
            self.replace([node], [], {y: x}, anchor=node)
            return True
        if producer is None or producer.graph is not node.graph or x.is_graph_output() or use_count(x) > 1:
            return False
        self.shapes_may_follow |= not inference.is_certain(x.shape)
        self.replace([node], [producer], {y: x}, anchor=node)
        return True

    def remove_unused(self, nodes: Iterable[ir.Node], neighbours: dict[ir.Node, None] | None = None) -> None:
        """Removes those of `nodes` that nobody reads, and then whatever only they read; consumers first."""
        work = list(nodes)
        while work:
            node = work.pop()
            if node.graph is None or is_read(node):
                continue
            if bodies(node):
                continue  # its bodies read values too; clean-up takes them apart
            inputs = dict.fromkeys(v for v in node.inputs if v is not None)
            node.graph.remove(node, safe=True)
            self.removed.append(node)
            work += self._released(inputs, neighbours)

    def _released(self, values: Iterable[ir.Value], neighbours: dict[ir.Node, None] | None = None) -> list[ir.Node]:
        """What a node no longer reads: initializers that nobody reads go; returns makers of what nobody reads."""
        makers: list[ir.Node] = []
        for value in values:
            producer = value.producer()
            if use_count(value) or value.is_graph_output() or value.is_graph_input():
                if producer is not None and neighbours is not None:
                    neighbours[producer] = None
            elif producer is not None:
                makers.append(producer)
            elif value.is_initializer():
                assert value.graph is not None and value.name is not None
                del value.graph.initializers[value.name]
        return makers


def is_read(node: ir.Node) -> bool:
    """Whether a node input or a graph output reads any of the node's outputs."""
    for output in node.outputs:  # noqa: SIM110 no generator: asked of every node several times
        if use_count(output) or output.is_graph_output():
            return True
    return False


def use_count(value: ir.Value) -> int:
    """How many node inputs read the value, in this graph and in subgraphs.

    `Value.uses()` copies, which is quadratic for a constant that thousands of nodes share.
    """
    return len(value._uses)


def attribute_int(node: ir.Node, name: str, default: int) -> int:
    """An INT attribute or its default.

    Raises:
        Refusal: FUNCTION_ATTRIBUTE when it refers to a parameter of the function around the node.

    """
    attribute = _attribute(node, name)
    return default if attribute is None else attribute.as_int()


def attribute_float(node: ir.Node, name: str, default: float) -> float:
    """A FLOAT attribute or its default; raises as `attribute_int`."""
    attribute = _attribute(node, name)
    return default if attribute is None else attribute.as_float()


def attribute_ints(node: ir.Node, name: str, default: Sequence[int]) -> tuple[int, ...]:
    """An INTS attribute or its default; raises as `attribute_int`."""
    attribute = _attribute(node, name)
    return tuple(default if attribute is None else attribute.as_ints())


def attribute_string(node: ir.Node, name: str, default: str) -> str:
    """A STRING attribute or its default; raises as `attribute_int`."""
    attribute = _attribute(node, name)
    return default if attribute is None else attribute.as_string()


def _attribute(node: ir.Node, name: str) -> ir.Attr | None:
    # `.data`, since the container itself raises and catches an exception for an attribute that is absent.
    attribute = node.attributes.data.get(name)
    if attribute is not None and attribute.is_ref():
        raise Refusal(Code.FUNCTION_ATTRIBUTE, f"{attribute.name} refers to {attribute.ref_attr_name}", node)
    return attribute
