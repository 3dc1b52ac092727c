"""Checks that a rewritten model is valid and has the interface of the original."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from graphopt.errors import InvariantError, one_line
from graphopt.graph import inference
from graphopt.graph.defects import FUNCTIONS_IR_VERSION, defects
from graphopt.graph.reading import FIRST_OVERRIDABLE_IR_VERSION
from graphopt.graph.traversal import bodies
from graphopt.ops import DOMAIN, OPS

# The checker copies its input, so larger models are checked without weights.
MAX_CHECKED_BYTES = 16 * 1024 * 1024

ValueType = tuple[str | None, ir.DataType | None, tuple[int | str | None, ...] | None]


def _value_type(model: ir.Model, value: ir.Value) -> ValueType:
    type_, shape = inference.as_declared(model, value)
    dims = None if shape is None else tuple(d if isinstance(d, int) else d.value for d in shape)
    return value.name, None if type_ is None else type_.dtype, dims


@dataclass(frozen=True)
class Interface:
    """The parts of a model that callers depend on."""

    inputs: tuple[ValueType, ...]
    outputs: tuple[tuple[str | None, ir.DataType | None], ...]
    overridable: frozenset[str]
    metadata: frozenset[tuple[str, str]]
    functions: frozenset[ir.OperatorIdentifier]
    opsets: frozenset[tuple[str, int]]

    @staticmethod
    def of(model: ir.Model) -> Interface:
        graph = model.graph
        return Interface(
            inputs=tuple(_value_type(model, v) for v in graph.inputs),
            outputs=tuple(_value_type(model, v)[:2] for v in graph.outputs),
            overridable=frozenset(str(v.name) for v in graph.inputs if v.is_initializer()),
            metadata=frozenset((k, v) for k, v in model.metadata_props.items() if not k.startswith("graphopt.")),
            functions=frozenset(i for i, f in model.functions.items() if f.domain != DOMAIN),
            opsets=frozenset((d, v) for d, v in model.opset_imports.items() if d != DOMAIN),
        )


def check_against(before: Interface, model: ir.Model, after: str) -> None:
    """Checks the model after a rewrite.

    Args:
        before: the interface of the original.
        model: the rewritten model.
        after: the name of the rewrite, for messages.

    Raises:
        InvariantError: the interface has changed, or the graph is invalid.
    """
    now = Interface.of(model)
    for field in ("inputs", "outputs", "overridable", "metadata", "functions", "opsets"):
        a, b = getattr(before, field), getattr(now, field)
        if a != b:
            raise InvariantError(f"after {after}: the model's {field} changed from {a} to {b}; please report this")
    initializers = model.graph.initializers.data.values()
    if model.ir_version < FIRST_OVERRIDABLE_IR_VERSION and not all(v.is_graph_input() for v in initializers):
        raise InvariantError(
            f"after {after}: an initializer is not a graph input, which IR version {model.ir_version} requires"
        )
    if model.ir_version < FUNCTIONS_IR_VERSION and any(domain == DOMAIN for domain, _, _ in model.functions):
        raise InvariantError(f"after {after}: the model has functions, which IR version {model.ir_version} lacks")
    for graph in (model.graph, *(f.graph for f in model.functions.values())):
        _check_graph(graph, after)


def check_result(
    before: Callable[[], ir.Model], model: ir.Model, proto: onnx.ModelProto | None = None, data: bytes | None = None
) -> None:
    """Checks a result for defects, and runs ONNX's checker.

    Args:
        before: returns the original model.
        model: the rewritten model.
        proto: the message of `model`, which will be written; None if there is none.
        data: the bytes of the message, which save the checker a serialization; None if there are none.

    Raises:
        InvariantError: the result has a defect that the original did not have, or the checker refuses the result but
            not the original.
    """
    found = defects(proto) if proto is not None else set()
    new = found - defects(ir.serde.serialize_model(before())) if found else found
    if new:
        why = "; ".join(sorted(new))
        raise InvariantError(f"the result has defects that the original did not have: {why}; please report this")
    whole = proto if data is None else data
    if whole is not None:
        size = len(whole) if isinstance(whole, bytes) else whole.ByteSize()
        if size <= MAX_CHECKED_BYTES and not _checker_message(whole):
            return
    why = _checker_message(_without_weights(model, proto))
    if why and not _checker_message(_without_weights(before())):
        raise InvariantError(f"the result is not valid ONNX, but the original was: {why}; please report this")


def _without_weights(model: ir.Model, proto: onnx.ModelProto | None = None) -> onnx.ModelProto:
    """Returns the model's message without weights: the checker would need their files, and limits their size."""
    message = inference.without_weights(model, proto)
    for value in (*message.graph.input, *message.graph.output):
        if value.type.HasField("tensor_type"):
            # The checker refuses an absent shape, but accepts an empty one.
            value.type.tensor_type.shape.SetInParent()
    return message


def _checker_message(message: onnx.ModelProto | bytes) -> str:
    try:
        onnx.checker.check_model(message)
    except Exception as error:  # ValidationError, and others for unsupported text and integers
        return one_line(error) or type(error).__name__
    return ""


def _check_types(node: ir.Node, after: str) -> None:
    """Checks the types and shapes of a node of our domain."""
    inputs, outputs, spec = node.inputs, node.outputs, OPS[node.op_type]
    for value in outputs:
        # Graph outputs keep their declared shape, even if it is invalid.
        shape = None if value.is_graph_output() else value.shape
        if shape is not None and any(isinstance(d, int) and d < 0 for d in shape.dims):
            raise InvariantError(f"after {after}: '{value.name}' has a negative dimension; please report this")
    values = [inputs[i] for i in spec.inputs_of_T]
    if not spec.outputs_like_x:
        values += [v for v, name in zip(outputs, spec.outputs) if name not in spec.bfloat16]
    inner = [v for v in values if v is not None and not v.is_graph_output()]
    types = {d for v in inner if (d := v.dtype) is not None} - {ir.DataType.UNDEFINED}
    if len(types) > 1:
        names = " and ".join(sorted(t.name for t in types))
        raise InvariantError(f"after {after}: '{node.name}' has operands of {names}; please report this")


def _is_removed(value: ir.Value) -> bool:
    """Returns whether the producer of a value was removed from the graph."""
    producer = value.producer()
    return producer is not None and producer.graph is None


def _check_graph(graph: ir.Graph, after: str) -> None:
    """Checks order, names and types of a graph and its bodies in one loop over the nodes."""
    seen: set[ir.Node] = set()
    names: set[str] = set()
    for node in graph:
        if node.attributes.data:
            for body in bodies(node):
                _check_graph(body, after)
        for value in node.inputs:
            if value is None or (producer := value.producer()) in seen:
                continue
            if _is_removed(value):
                raise InvariantError(f"after {after}: '{node.name}' reads from a removed node")
            if producer is not None and producer.graph is graph:
                raise InvariantError(f"after {after}: '{node.name}' reads '{value.name}' before it exists")
        for output in node.outputs:
            name, type_ = output.name, output.type
            if name and name in names:
                raise InvariantError(f"after {after}: two values are called '{name}'")
            names.add(name or "")
            if type_ is not None and type_.dtype is ir.DataType.UNDEFINED and not output.is_graph_output():
                raise InvariantError(f"after {after}: '{name}' has the element type 0; please report this")
        if node.domain == DOMAIN and node.op_type in OPS:
            _check_types(node, after)
        seen.add(node)
    for output in graph.outputs:
        if _is_removed(output):
            raise InvariantError(f"after {after}: the output '{output.name}' comes from a removed node")
