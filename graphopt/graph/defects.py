"""Finds validity errors of a model, including some that onnx.checker misses. Tools interpret such models differently.

onnx.checker stops at the first error, so an error of the original model would hide errors of a rewrite. Here each
defect is one sentence, and the caller can subtract the defects of the original.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator
from typing import TypeVar

import onnx
from onnx import TypeProto

from graphopt.graph import messages
from graphopt.graph.reading import FIRST_OVERRIDABLE_IR_VERSION, ONNX_DOMAIN

# The first IR versions with functions, and with overloads of functions.
FUNCTIONS_IR_VERSION, OVERLOADS_IR_VERSION = 8, 10

Item = TypeVar("Item", bound=Hashable)


def defects(model: onnx.ModelProto) -> set[str]:
    """Returns one sentence for each defect; does not read weights."""
    found = set(_of_version(model))
    opsets = {_domain(o.domain) for o in model.opset_import}
    found |= set(_of_graph(model.graph, frozenset(), opsets, "the graph"))
    for f in model.functions:
        where = f"the function {f.domain}.{f.name}"
        if _domain(f.domain) not in opsets:
            found.add(f"the model defines functions of '{f.domain}' without an opset import")
        own = {_domain(o.domain) for o in f.opset_import}
        found |= set(_of_nodes(f.node, f.output, {*f.input}, own, where))
        known = {*f.attribute, *(a.name for a in f.attribute_proto)}
        found |= {f"{where} reads an attribute '{name}' that it does not have" for name in _referred(f.node) - known}
        found |= set(_of_values(f.value_info, where))
    twice = _duplicates([(f.domain, f.name, f.overload) for f in model.functions])
    return found | {f"there are two functions {domain}.{name}" for domain, name, _ in twice}


def _of_version(model: onnx.ModelProto) -> Iterator[str]:
    version = model.ir_version
    listed = {value.name for value in model.graph.input} if version < FIRST_OVERRIDABLE_IR_VERSION else set()
    if version < FIRST_OVERRIDABLE_IR_VERSION and any(t.name not in listed for t in model.graph.initializer):
        yield f"an initializer is not a graph input, which IR version {version} requires"
    if version < FUNCTIONS_IR_VERSION and model.functions:
        yield f"the model has functions, which IR version {version} lacks"
    if version < OVERLOADS_IR_VERSION and any(f.overload for f in model.functions):
        yield f"the model has overloads of functions, which IR version {version} lacks"
    for domain in _duplicates([_domain(o.domain) for o in model.opset_import]):
        yield f"the opset of '{domain}' is imported twice"


def _of_graph(graph: onnx.GraphProto, outer: Collection[str], opsets: Collection[str], where: str) -> Iterator[str]:
    inputs = [value.name for value in graph.input]
    initializers = [*(t.name for t in graph.initializer), *(t.values.name for t in graph.sparse_initializer)]
    yield from (f"two inputs of {where} are called '{name}'" for name in _duplicates(inputs))
    yield from (f"two initializers of {where} are called '{name}'" for name in _duplicates(initializers))
    own = {*inputs, *initializers}
    yield from _of_nodes(graph.node, [value.name for value in graph.output], own, opsets, where, outer)
    yield from _of_values((*graph.input, *graph.output, *graph.value_info), where)
    for tensor in graph.initializer:
        if tensor.data_type == 0:
            yield f"'{tensor.name}' has the element type 0"
        if (dims := tensor.dims[:]) and min(dims) < 0:
            yield f"'{tensor.name}' has a negative dimension"


def _of_nodes(
    nodes: Iterable[onnx.NodeProto],
    results: Iterable[str],
    given: Collection[str],
    opsets: Collection[str],
    where: str,
    outer: Collection[str] = (),
) -> Iterator[str]:
    """Checks order, names, domains and bodies in one loop over the nodes."""
    visible = {*given, *outer, ""}
    made, names = [*given], []
    domains = set()
    for node in nodes:
        inputs, outputs = node.input[:], node.output[:]  # copies: lists iterate faster than protobuf's containers
        if not visible.issuperset(inputs):
            yield from (f"'{n}' is used in {where} before it is produced" for n in inputs if n not in visible)
        domains.add(node.domain)
        names.append(node.name)
        for body in messages.bodies(node):
            yield from _of_graph(body, visible, opsets, f"the body of '{node.name or node.op_type}'")
        made += outputs
        visible.update(outputs)
    for domain in domains:
        if _domain(domain) not in opsets:
            yield f"no opset of '{domain}' is imported for {where}"
    yield from (f"{where} has an output '{name}' without a producer" for name in {*results} - visible)
    yield from (f"two values of {where} are called '{name}'" for name in _duplicates(made) if name)
    yield from (f"two nodes of {where} are called '{name}'" for name in _duplicates(names) if name)


def _of_values(values: Iterable[onnx.ValueInfoProto], where: str) -> Iterator[str]:
    for value in values:
        tensor = value.type.tensor_type
        if tensor.elem_type == 0:  # also true of a value that is not a tensor
            inner = _tensor_type(value.type)
            if inner is None:
                continue
            if inner.elem_type == 0:
                yield f"'{value.name}' in {where} has the element type 0"
            tensor = inner
        for dim in tensor.shape.dim:
            if dim.dim_value < 0:
                yield f"'{value.name}' in {where} has a negative dimension"
                break


def _tensor_type(type_: TypeProto) -> TypeProto.Tensor | None:
    """Returns the tensor type of a value, or of the elements of a sequence or optional; None if there is none."""
    kind = type_.WhichOneof("value")
    while kind in ("sequence_type", "optional_type"):
        type_ = getattr(type_, kind).elem_type
        kind = type_.WhichOneof("value")
    return type_.tensor_type if kind == "tensor_type" else None


def _referred(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    """Returns the names of a function's attributes that its nodes use."""
    attributes = (attribute for node in messages.all_nodes(nodes) for attribute in node.attribute)
    return {attribute.ref_attr_name for attribute in attributes if attribute.ref_attr_name}


def _duplicates(items: Collection[Item]) -> list[Item]:
    return [item for item, count in Counter(items).items() if count > 1] if len({*items}) < len(items) else []


def _domain(name: str) -> str:
    return "" if name == ONNX_DOMAIN else name
