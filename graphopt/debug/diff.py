"""The structural difference of two models: removed and added nodes, grouped, and changed initializers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from graphopt.graph import reading
from graphopt.graph.traversal import own_graphs, own_nodes
from graphopt.remarks import node_label
from graphopt.report.data import ModelStats, model_stats


@dataclass(frozen=True)
class DiffNode:
    """A node that only one model has."""

    label: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Neighbourhood:
    """Nodes of BEFORE, and the nodes of AFTER that produce the same values."""

    removed: tuple[DiffNode, ...]
    added: tuple[DiffNode, ...]


@dataclass(frozen=True)
class ModelDiff:
    """The differences of two models.

    Attributes:
        before, after: statistics of each model.
        neighbourhoods: the nodes that only one model has, grouped.
        removed_initializers, added_initializers: names that only one model has. A constant with the same elements in
            both models is not listed, even if it is renamed, or is a Constant node in one model and an initializer in
            the other.
        changed_initializers: names that both models have, with different types, shapes or data.
    """

    before: ModelStats
    after: ModelStats
    neighbourhoods: tuple[Neighbourhood, ...]
    removed_initializers: tuple[str, ...]
    added_initializers: tuple[str, ...]
    changed_initializers: tuple[str, ...]

    @property
    def equal(self) -> bool:
        return not (
            self.neighbourhoods or self.removed_initializers or self.added_initializers or self.changed_initializers
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": 1,
            "equal": self.equal,
            "before": vars(self.before),
            "after": vars(self.after),
            "neighbourhoods": [
                {"removed": [vars(n) for n in h.removed], "added": [vars(n) for n in h.added]}
                for h in self.neighbourhoods
            ],
            "removed_initializers": list(self.removed_initializers),
            "added_initializers": list(self.added_initializers),
            "changed_initializers": list(self.changed_initializers),
        }


def diff(before: Any, after: Any) -> ModelDiff:
    """Compares two models by the names of their values, without running them.

    Nodes are the same if operator, attributes and names of inputs and outputs are equal. Other nodes belong to one
    group if a value that the other model lacks connects them, or if they produce the same value.

    Args:
        before: a model in any form that `optimize` accepts.
        after: the other model.

    Raises:
        ModelLoadError: a model cannot be read.
    """
    old, new = reading.load(before).model, reading.load(after).model
    old_weights, new_weights = _initializers(old), _initializers(new)
    removed = {n: t for n, t in old_weights.items() if n not in new_weights}
    added = {n: t for n, t in new_weights.items() if n not in old_weights}
    before = {_content(t) for t in [*removed.values(), *_constants(old)]}
    after = {_content(t) for t in [*added.values(), *_constants(new)]}
    return ModelDiff(
        model_stats(own_graphs(old)),
        model_stats(own_graphs(new)),
        tuple(h for h in neighbourhoods(old, new) if any(n.op_type != "Constant" for n in (*h.removed, *h.added))),
        tuple(n for n, t in removed.items() if _content(t) not in after),
        tuple(n for n, t in added.items() if _content(t) not in before),
        tuple(n for n, t in old_weights.items() if n in new_weights and _data(t) != _data(new_weights[n])),
    )


def neighbourhoods(old: ir.Model, new: ir.Model) -> Iterable[Neighbourhood]:
    """Finds the nodes that only one of two models has, and groups them by connections; ignores initializers."""
    old_nodes, new_nodes = list(own_nodes(old)), list(own_nodes(new))
    old_keys, new_keys = {_key(n) for n in old_nodes}, {_key(n) for n in new_nodes}
    removed = [n for n in old_nodes if _key(n) not in new_keys]
    added = [n for n in new_nodes if _key(n) not in old_keys]
    return _neighbourhoods(removed, added, _value_names(old_nodes), _value_names(new_nodes))


def _initializers(model: ir.Model) -> dict[str, ir.TensorProtocol | None]:
    return {name: v.const_value for g in own_graphs(model) for name, v in g.initializers.items()}


def _data(tensor: ir.TensorProtocol | None) -> Any:
    if tensor is None:
        return None
    if tensor.dtype == ir.DataType.STRING:
        return tensor.dtype, str(tensor.shape), tensor.numpy().tolist()
    return tensor.dtype, str(tensor.shape), tensor.tobytes()


def _constants(model: ir.Model) -> list[ir.TensorProtocol]:
    """Returns the tensors of all Constant nodes."""
    nodes = (n for n in own_nodes(model) if (n.domain, n.op_type) == ("", "Constant"))
    return [a.as_tensor() for n in nodes if (a := n.attributes.get("value")) is not None and not a.is_ref()]


def _content(tensor: ir.TensorProtocol | None) -> int:
    """Returns a hash of type, shape and data."""
    return hash(repr(_data(tensor)) if tensor is not None and tensor.dtype == ir.DataType.STRING else _data(tensor))


def _value_names(nodes: Iterable[ir.Node]) -> set[str]:
    return {o.name for n in nodes for o in n.outputs if o.name}


def _key(node: ir.Node) -> tuple[Any, ...]:
    attributes = []
    for a in sorted(node.attributes.values(), key=lambda a: a.name):
        if a.is_ref():
            value: Any = ("ref", a.ref_attr_name)
        elif a.type == ir.AttributeType.TENSOR:
            value = repr(_data(a.as_tensor()))
        elif a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            value = None  # the nodes inside are compared separately
        else:
            value = repr(a.value)
        attributes.append((a.name, value))
    inputs = tuple(v.name if v is not None else None for v in node.inputs)
    return node.domain, node.op_type, inputs, tuple(o.name for o in node.outputs), tuple(attributes)


def _neighbourhoods(
    removed: list[ir.Node], added: list[ir.Node], old_values: set[str], new_values: set[str]
) -> Iterable[Neighbourhood]:
    both = [*removed, *added]
    parent = list(range(len(both)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    owner: dict[tuple[str, str], int] = {}
    for i, node in enumerate(both):
        side, other = ("old", new_values) if i < len(removed) else ("new", old_values)
        for output in node.outputs:
            if output.name:
                # If both models compute a value, its producers belong to one group.
                key = ("both" if output.name in other else side, output.name)
                parent[root(i)] = root(owner.setdefault(key, i))
    for i, node in enumerate(both):
        side = "old" if i < len(removed) else "new"
        for value in node.inputs:
            producer = value.producer() if value is not None else None
            # A common constant does not connect nodes, because unrelated nodes may read the same constant.
            if value is None or producer is None or producer.op_type == "Constant":
                continue
            source = owner.get((side, value.name or ""))
            if source is not None:
                parent[root(i)] = root(source)
    groups: dict[int, tuple[list[DiffNode], list[DiffNode]]] = {}
    for i, node in enumerate(both):
        groups.setdefault(root(i), ([], []))[i >= len(removed)].append(_diff_node(node))
    return (Neighbourhood(tuple(r), tuple(a)) for r, a in groups.values())


def _diff_node(node: ir.Node) -> DiffNode:
    inputs = tuple((v.name or "") if v is not None else "" for v in node.inputs)
    return DiffNode(node_label(node), node.op_type, inputs, tuple(o.name or "" for o in node.outputs))
