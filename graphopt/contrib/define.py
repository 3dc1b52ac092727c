"""Expands a node of a model into its definition in standard ONNX."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import onnx_ir as ir

from graphopt.contrib.schema import REQUIRED, Call, ContribOp, formal
from graphopt.contrib.writer import Writer
from graphopt.graph.editor import Editor
from graphopt.graph.view import use_count
from graphopt.remarks import Code, Refusal


def call_of(op: ContribOp, node: ir.Node) -> Call[ir.Value]:
    """Binds a node's inputs, attributes and outputs to the names of the operator's schema.

    Raises:
        Refusal: FUNCTION_ATTRIBUTE for a reference to a function's attribute; ATTRIBUTE for an unknown or missing
            attribute; UNSUPPORTED_OP for missing or surplus inputs or outputs.
    """
    attributes: dict[str, Any] = {}
    for name, attribute in node.attributes.items():
        if name not in op.attributes:
            raise Refusal(Code.ATTRIBUTE, f"graphopt does not know the attribute {name} of {op.name}", node)
        if attribute.is_ref():
            what = f"{name} is the function's parameter {attribute.ref_attr_name}"
            raise Refusal(Code.FUNCTION_ATTRIBUTE, what, node)
        attributes[name] = attribute.value
    for name, default in op.attributes.items():
        if name not in attributes and default is REQUIRED:
            raise Refusal(Code.ATTRIBUTE, f"the attribute {name} is missing", node)
        attributes.setdefault(name, default)
    inputs = dict(_named(op.inputs, node.inputs, node))
    missing = [n for n in op.inputs if n[-1] not in "?*" and n not in inputs]
    if missing:
        raise Refusal(Code.UNSUPPORTED_OP, f"input {missing[0]} is absent", node)
    used = [v if use_count(v) or v.is_graph_output() else None for v in node.outputs]
    return Call(inputs, attributes, frozenset(dict(_named(op.outputs, used, node))))


def _named(formals: Sequence[str], values: Sequence[ir.Value | None], node: ir.Node) -> Iterator[tuple[str, ir.Value]]:
    for i, value in enumerate(values):
        if value is None:
            continue
        if i < len(formals) and not formals[i].endswith("*"):
            yield formal(formals[i]), value
        elif formals[-1].endswith("*"):
            yield f"{formal(formals[-1])}{i - len(formals) + 1}", value
        else:
            raise Refusal(Code.UNSUPPORTED_OP, f"{node.op_type} has more inputs or outputs than its schema", node)


def define(op: ContribOp, node: ir.Node, editor: Editor) -> tuple[Writer, dict[ir.Value, ir.Value]]:
    """Writes a node's definition.

    Returns:
        The writer with the nodes, which are not in the graph yet, and the replacement of each used output.

    Raises:
        Refusal: the node has no definition, or a required shape or type is unknown.
    """
    call = call_of(op, node)
    writer = Writer(editor, node)
    try:
        values = op.define(writer, call)
        outputs = {}
        for i, output in enumerate(node.outputs):
            name = formal(op.outputs[i])
            if name in call.outputs:
                if name not in values:
                    raise Refusal(Code.UNSUPPORTED_OP, f"output {name} has no definition", node)
                outputs[output] = values[name]
    except BaseException:
        writer.discard()
        raise
    writer.prune(outputs.values())
    return writer, outputs
