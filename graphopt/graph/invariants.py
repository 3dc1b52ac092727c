"""What must hold of a model before and after any rewrite (docs/architecture.md, Invariants)."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from graphopt.errors import InvariantError
from graphopt.graph.model import graphs
from graphopt.ops import DOMAIN

Signature = tuple[str | None, ir.DataType | None, tuple[int | str | None, ...] | None]


def _signature(value: ir.Value) -> Signature:
    dims = None if value.shape is None else tuple(d if isinstance(d, int) else d.value for d in value.shape)
    return value.name, value.dtype, dims


@dataclass(frozen=True)
class Interface:
    """What callers of a model see and rely on."""

    inputs: tuple[Signature, ...]
    outputs: tuple[tuple[str | None, ir.DataType | None], ...]
    overridable: frozenset[str]
    metadata: frozenset[tuple[str, str]]
    functions: frozenset[ir.OperatorIdentifier]
    opsets: frozenset[tuple[str, int]]

    @staticmethod
    def of(model: ir.Model) -> Interface:
        graph = model.graph
        return Interface(
            inputs=tuple(_signature(v) for v in graph.inputs),
            outputs=tuple((v.name, v.dtype) for v in graph.outputs),
            overridable=frozenset(str(v.name) for v in graph.inputs if v.is_initializer()),
            metadata=frozenset((k, v) for k, v in model.metadata_props.items() if not k.startswith("graphopt.")),
            functions=frozenset(i for i, f in model.functions.items() if f.domain != DOMAIN),
            opsets=frozenset((d, v) for d, v in model.opset_imports.items() if d != DOMAIN),
        )


def check_against(before: Interface, model: ir.Model, after: str) -> None:
    """Raises:
    InvariantError: what callers see has changed, or the graph is not in order.
    """
    now = Interface.of(model)
    for field in ("inputs", "outputs", "overridable", "metadata", "functions", "opsets"):
        a, b = getattr(before, field), getattr(now, field)
        if a != b:
            raise InvariantError(f"after {after}: the model's {field} changed from {a} to {b}; please report this")
    for graph in graphs(model):
        _check_order(graph, after)


def _check_order(graph: ir.Graph, after: str) -> None:
    seen: set[ir.Node] = set()
    names: set[str] = set()
    for node in graph:
        for value in node.inputs:
            producer = value.producer() if value is not None else None
            if value is None or producer is None:
                continue
            if producer.graph is graph and producer not in seen:
                raise InvariantError(f"after {after}: '{node.name}' reads '{value.name}' before it exists")
            if producer.graph is None:
                raise InvariantError(f"after {after}: '{node.name}' reads from a removed node")
        for output in node.outputs:
            if output.name and output.name in names:
                raise InvariantError(f"after {after}: two values are called '{output.name}'")
            names.add(output.name or "")
        seen.add(node)
    for output in graph.outputs:
        producer = output.producer()
        if producer is not None and producer.graph is None:
            raise InvariantError(f"after {after}: the output '{output.name}' comes from a removed node")
