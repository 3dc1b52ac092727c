"""Queries of a graph, and checks that raise a `Refusal`; they change nothing.

Names without a domain are ONNX's operators. Functions that find a node or value accept None and return None if there is
none, so calls can be chained.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any, TypeGuard

import onnx_ir as ir

from graphopt.graph.inference import RUNTIME_FLOATS
from graphopt.graph.operators.arguments import Arguments
from graphopt.graph.shapes.engine import Dim, Shapes
from graphopt.graph.shapes.sizes import Size
from graphopt.graph.traversal import own_graphs, tensor_array, tensor_dims
from graphopt.ops import DOMAIN, OPS
from graphopt.ops.schema import CAST_LIKE_OPSET, Array
from graphopt.remarks import Code, Refusal, node_label
from graphopt.targets.profit import Candidate, Estimates, Profit, Workload
from graphopt.targets.target import Target

# The metadata property with the element type of a function body; below CAST_LIKE_OPSET a body is valid for one type.
BODY_TYPE = "graphopt.T"
# The element types of our operators.
FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
# Element types that do not convert to a float.
NOT_REAL = (ir.DataType.STRING, ir.DataType.COMPLEX64, ir.DataType.COMPLEX128)
# `nodes` accepts this instead of an operator's name, for all operators of a domain except ONNX's own.
ANY = "*"


class GraphView:
    """A model with queries for passes.

    Queries are O(1) or linear in their result, except that `nodes` indexes the whole graph again after a change.
    """

    def __init__(self, model: ir.Model, target: Target, profit: Profit | None = None, *, half: bool = False) -> None:
        self.model = model
        self.target = target
        self.profit = profit or Estimates()
        self.shapes = Shapes(self)
        # Whether matrix multiplications will be computed in float16; this decides which rewrites are profitable.
        self.half = half and target.device != "cpu"
        # The list is complete throughout a run: passes create no bodies, and removed bodies are emptied.
        self._own_graphs = list(own_graphs(model))
        self._by_operator: defaultdict[tuple[str, str], list[tuple[int, ir.Node]]] | None = None

    def graphs(self) -> Iterator[ir.Graph]:
        """Yields the main graph, the user's functions, and all bodies in them; not our function bodies."""
        yield from self._own_graphs

    def nodes(self, operators: Collection[tuple[str, str]]) -> list[ir.Node]:
        """Returns all nodes of these operators (domain, op_type), in graph order; see `ANY` for a whole domain."""
        index = self._by_operator
        if index is None:
            self._by_operator = index = defaultdict(list)
            for position, node in enumerate(chain.from_iterable(self._own_graphs)):
                domain = node.domain
                index[domain, node.op_type].append((position, node))
                if domain:
                    index[domain, ANY].append((position, node))
        found = [index[o] for o in operators if o in index]
        return [node for _, node in sorted(chain.from_iterable(found), key=itemgetter(0))]

    def tensor(self, value: ir.Value | None) -> ir.TensorProtocol | None:
        """Returns the tensor of a constant value without reading its data; None otherwise.

        Initializers that callers can override are not constants.
        """
        if value is None:
            return None
        if (tensor := value.const_value) is not None:
            return None if value.is_graph_input() else tensor
        # A fast return, because passes query every input of every node.
        producer = value.producer()
        if producer is None or producer.op_type != "Constant" or producer.domain != "":
            return None
        attribute = producer.attributes.data.get("value")
        if attribute is not None and not attribute.is_ref():
            # onnx_ir's get_const_tensor would write the value's name into the tensor, which changes the file.
            return attribute.as_tensor()
        return ir.convenience.get_const_tensor(value)

    def is_constant(self, value: ir.Value | None) -> bool:
        return self.tensor(value) is not None

    def constant(self, value: ir.Value | None) -> Array | None:
        """Returns the elements of a constant value, or None."""
        tensor = self.tensor(value)
        return None if tensor is None else tensor_array(tensor)

    def require_constant(self, value: ir.Value | None, what: str, *nodes: ir.Node) -> Array:
        """Returns the elements of a constant value.

        Args:
            value: the value.
            what: its description in the refusal.
            nodes: the nodes of the refusal.

        Raises:
            Refusal: NOT_CONSTANT, QUANTIZED or OVERRIDABLE.
        """
        array = self.constant(value)
        if array is None:
            producer = value.producer() if value is not None else None
            if producer is not None and producer.op_type == "DequantizeLinear":  # also com.microsoft's
                raise Refusal(Code.QUANTIZED, f"{what} is dequantized", *nodes, producer)
            overridable = value is not None and value.is_initializer()
            code = Code.OVERRIDABLE if overridable else Code.NOT_CONSTANT
            if value is None:
                raise Refusal(code, f"{what} is absent", *nodes)
            problem = f"callers may override {what}" if overridable else f"{what} is not constant"
            raise Refusal(code, f"{problem}: {value.name}", *nodes)
        return array

    def scalar(self, value: ir.Value | None) -> float | None:
        """Returns the element of a constant of size 1; None for others, for strings and for complex numbers."""
        tensor = self.tensor(value)
        if tensor is None or math.prod(tensor_dims(tensor)) != 1 or tensor.dtype in NOT_REAL:
            return None
        return float(tensor_array(tensor).item())

    def require_dtype(self, value: ir.Value, node: ir.Node, *dtypes: ir.DataType) -> ir.DataType:
        """Returns the element type of a value.

        Raises:
            Refusal: WRONG_DTYPE if it is unknown or not in `dtypes` (by default FLOATS).
        """
        dtype = self.dtype(value)
        if dtype is None or dtype not in (dtypes or FLOATS):
            kind = "unknown" if dtype is None else dtype.name
            raise Refusal(Code.WRONG_DTYPE, f"the element type of {value.name} is {kind}", node)
        return dtype

    def require_dims(self, value: ir.Value, node: ir.Node, *, least: int = 0) -> tuple[Size, ...]:
        """Returns the dimensions of a value.

        Raises:
            Refusal: UNKNOWN_RANK, or WRONG_RANK if the rank is below `least`.
        """
        dims = self.shapes.dims(value)
        if dims is None:
            raise Refusal(Code.UNKNOWN_RANK, f"the rank of {value.name} is not known", node)
        if len(dims) < least:
            raise Refusal(Code.WRONG_RANK, f"{value.name} has rank {len(dims)}", node)
        return dims

    def known_types(self, values: Iterable[ir.Value | None]) -> set[ir.DataType]:
        """Returns the known element types of values."""
        return {dtype for value in values if (dtype := self.dtype(value)) is not None}

    def require_equal_types(self, values: Iterable[ir.Value | None], *nodes: ir.Node) -> None:
        """Checks that the known element types of the values are equal.

        Raises:
            Refusal: MIXED_DTYPE.
        """
        known = self.known_types(values)
        if len(known) > 1:
            raise Refusal(
                Code.MIXED_DTYPE, f"the operands have types {' and '.join(sorted(d.name for d in known))}", *nodes
            )

    def declared(self, value: ir.Value | None) -> tuple[Dim, ...] | None:
        """Returns the dimensions (int, symbol or None) that the model declares or onnx inferred; None without a shape.

        `shapes` has more precise dimensions.
        """
        if value is None:
            return None
        shape = value.shape
        if shape is None:
            tensor = self.tensor(value)
            return None if tensor is None else tensor_dims(tensor)
        # A list takes half the time of a generator.
        return tuple([d if isinstance(d, int) else d.value for d in shape.dims])

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        """Returns the element type of a value, or None if it is unknown."""
        if value is None:
            return None
        type_ = value.type
        if type_ is not None and (dtype := type_.dtype) != ir.DataType.UNDEFINED:
            return dtype
        tensor = self.tensor(value)
        return None if tensor is None else tensor.dtype

    def opset(self, node: ir.Node) -> int:
        """Returns the version of the node's domain in its graph; 0 if it is not imported."""
        return node.version if node.version is not None else self.opset_at(node, node.domain)

    def opset_at(self, node: ir.Node, domain: str = "") -> int:
        """Returns the version of a domain in the node's graph; 0 if it is not imported."""
        graph = node.graph
        while graph is not None:
            if (version := graph.opset_imports.get(domain)) is not None:
                return version
            parent = getattr(graph, "parent_node", None)
            graph = parent.graph if parent is not None else None
        return self.model.opset_imports.get(domain, 0)

    def arguments(self, node: ir.Node) -> Arguments:
        """Returns the node's arguments by name, for inputs and attributes."""
        return _Arguments(node, self)

    def candidate(
        self, op: str, inputs: Sequence[ir.Value], output: ir.Value, anchor: ir.Node, no_gain: str = ""
    ) -> Candidate:
        """Describes a rewrite that would insert `op`, for the cost model; see `Candidate`."""

        def describe() -> Workload:
            made = [v.producer() for v in inputs if not self.is_constant(v)]
            readers = sorted({u.node.op_type for u in output.uses()})
            dtype = next((d for v in (*inputs, output) if (d := self.dtype(v)) is not None), None)
            return Workload(
                node_label(anchor),
                op,
                "?" if dtype is None else dtype.name.lower(),
                tuple(self.declared(v) for v in inputs),
                tuple(n.op_type for n in made if n is not None),
                tuple(readers),
            )

        return Candidate(no_gain, describe)

    def require_op(self, name: str, like: ir.Value, anchor: ir.Node) -> None:
        """Checks that a com.graphopt operator can be emitted; passes call this in `legal`.

        Args:
            name: the operator.
            like: a value of the operator's element type.
            anchor: the new node will be inserted before it.

        Raises:
            Refusal: TARGET if the target supports none of our operators; OPSET if the function body cannot be written
                for the model's opset (runtimes inline a body under the model's opset, not under the function's).
        """
        self.require_custom_ops()
        opset = self.model.opset_imports.get("", 0)
        oldest = OPS[name].min_opset
        if opset < oldest:
            raise Refusal(Code.OPSET, f"{name} needs opset {oldest}, but the model has {opset}", anchor)
        dtype = self.dtype(like)
        if opset < CAST_LIKE_OPSET:
            if dtype not in FLOATS:
                raise Refusal(Code.OPSET, f"{name} with an unknown element type needs opset {CAST_LIKE_OPSET}", anchor)
            body = self.model.functions.get((DOMAIN, name, ""))
            if body is not None and body.metadata_props.get(BODY_TYPE, dtype.name) != dtype.name:
                detail = f"{name} with two element types needs opset {CAST_LIKE_OPSET}, but the model has {opset}"
                raise Refusal(Code.OPSET, detail, anchor)

    def require_custom_ops(self) -> None:
        """Checks that the target supports our operators.

        Raises:
            Refusal: TARGET.
        """
        if not self.target.custom_ops:
            raise Refusal(Code.TARGET, f"target {self.target} supports standard ONNX only")


def has_readers(node: ir.Node) -> bool:
    """Returns whether a node or the caller of the model uses any of the node's outputs."""
    return any(map(is_read, node.outputs))  # faster than a generator


@dataclass
class _Arguments(Arguments):
    """The arguments of a node of a graph."""

    node: ir.Node
    graph: GraphView

    @property
    def opset(self) -> int:
        return self.graph.opset(self.node)

    def integer_input(self, i: int) -> list[int] | None:
        elements = self.graph.shapes.elements(self.node.inputs[i])
        return None if elements is None else elements.integers

    def attribute(self, name: str, default: Any = None) -> Any:
        attribute = _attribute(self.node, name)
        return default if attribute is None else attribute.value


def use_count(value: ir.Value) -> int:
    """Returns the number of node inputs that use the value, in its graph and in subgraphs.

    `Value.uses()` copies, which is quadratic for a constant with thousands of uses.
    """
    return len(value._uses)


def is_read(value: ir.Value) -> bool:
    """Returns whether a node or the caller of the model uses the value."""
    return bool(value._uses) or value.is_graph_output()


def is_read_once(value: ir.Value) -> bool:
    """Returns whether one node input uses the value (including captures), and it is not a graph output."""
    return use_count(value) == 1 and not value.is_graph_output()


def require_read_once(value: ir.Value, *nodes: ir.Node) -> None:
    """Checks that one node input uses the value, and it is not a graph output.

    Raises:
        Refusal: GRAPH_OUTPUT or OTHER_USES.
    """
    if value.is_graph_output():
        raise Refusal(Code.GRAPH_OUTPUT, f"{value.name} is a graph output", *nodes)
    if use_count(value) != 1:
        raise Refusal(Code.OTHER_USES, f"{value.name} has {use_count(value)} readers", *nodes)


def require_readers(value: ir.Value, readers: Collection[ir.Node], producer: ir.Node) -> None:
    """Checks that only `readers` use the value, an output of `producer`.

    Raises:
        Refusal: GRAPH_OUTPUT or OTHER_USES.
    """
    if value.is_graph_output():
        raise Refusal(Code.GRAPH_OUTPUT, f"{value.name} is a graph output", producer)
    for reader in value.consumers():
        if reader not in readers:
            raise Refusal(Code.OTHER_USES, f"{value.name} is also read by {reader.op_type}", producer, reader)


def require_contained(nodes: Sequence[ir.Node], *results: ir.Value) -> None:
    """Checks that `results` are the only outputs of `nodes` with uses outside of them.

    Raises:
        Refusal: GRAPH_OUTPUT or OTHER_USES.
    """
    inside, allowed = set(nodes), set(results)
    for node in nodes:
        for output in node.outputs:
            if output in allowed:
                continue
            if output.is_graph_output():
                raise Refusal(Code.GRAPH_OUTPUT, f"{output.name} is a graph output", node)
            outside = [u for u in output.consumers() if u not in inside]
            if outside:
                raise Refusal(Code.OTHER_USES, f"{output.name} is read by {outside[0].op_type}", node, outside[0])


def require_one_graph(nodes: Iterable[ir.Node], anchor: ir.Node) -> None:
    """Checks that all nodes are in the graph of `anchor`.

    Raises:
        Refusal: ESCAPES.
    """
    for node in nodes:
        if node.graph is not anchor.graph:
            raise Refusal(Code.ESCAPES, "a part of the candidate is in another graph", node)


def is_float(value: ir.Value | None) -> TypeGuard[ir.Value]:
    """Returns whether the elements of a value are floating point; False if their type is unknown."""
    return value is not None and value.dtype in RUNTIME_FLOATS


def is_op(node: ir.Node | None, *op_types: str) -> TypeGuard[ir.Node]:
    """Returns whether a node is of one of these ONNX operators; without names, of any."""
    return node is not None and (not op_types or node.op_type in op_types) and node.domain == ""


def producer_of(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """Returns the producer of a value if it is of one of these ONNX operators; without names, of any."""
    node = None if value is None else value.producer()
    return node if is_op(node, *op_types) else None


def sole_reader(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """Returns the node with the only use of a value, if it is of one of these ONNX operators; without names, of any.

    A graph output has another use: the caller.
    """
    if value is None or not is_read_once(value):
        return None
    (use,) = value.uses()
    return use.node if is_op(use.node, *op_types) else None


def other_input(node: ir.Node, value: ir.Value | None) -> ir.Value | None:
    """Returns the input of a node with two inputs that is not `value`."""
    return node.inputs[1] if node.inputs[0] is value else node.inputs[0]


def require_input(node: ir.Node, index: int) -> ir.Value:
    """Returns an input that the operator requires.

    Raises:
        Refusal: UNSUPPORTED_OP if it is absent, which makes the model invalid.
    """
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None:
        raise Refusal(Code.UNSUPPORTED_OP, f"input {index} of {node.op_type} is absent", node)
    return value


def attribute_int(node: ir.Node, name: str, default: int) -> int:
    """Returns an INT attribute or its default.

    Raises:
        Refusal: FUNCTION_ATTRIBUTE if it refers to an attribute of the enclosing function.
    """
    attribute = _attribute(node, name)
    return default if attribute is None else attribute.as_int()


def attribute_float(node: ir.Node, name: str, default: float) -> float:
    """Returns a FLOAT attribute or its default; raises as `attribute_int`."""
    attribute = _attribute(node, name)
    return default if attribute is None else attribute.as_float()


def attribute_ints(node: ir.Node, name: str, default: Sequence[int]) -> tuple[int, ...]:
    """Returns an INTS attribute or its default; raises as `attribute_int`."""
    attribute = _attribute(node, name)
    return tuple(default if attribute is None else attribute.as_ints())


def to_channels_last(rank: int) -> tuple[int, ...]:
    """Returns the permutation that moves axis 1 behind the last axis."""
    return (0, *range(2, rank), 1)


def to_channels_first(rank: int) -> tuple[int, ...]:
    """Returns the permutation that moves the last axis to position 1."""
    return (0, rank - 1, *range(1, rank - 1))


def attribute_string(node: ir.Node, name: str, default: str) -> str:
    """Returns a STRING attribute or its default; raises as `attribute_int`."""
    attribute = _attribute(node, name)
    return default if attribute is None else attribute.as_string()


def _attribute(node: ir.Node, name: str) -> ir.Attr | None:
    # `.data`, because the container raises and catches an exception for an absent attribute.
    attribute = node.attributes.data.get(name)
    if attribute is not None and attribute.is_ref():
        what = f"{attribute.name} is the function's parameter {attribute.ref_attr_name}"
        raise Refusal(Code.FUNCTION_ATTRIBUTE, what, node)
    return attribute
