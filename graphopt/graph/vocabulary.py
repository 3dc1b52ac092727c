"""The words in which passes read a graph: which operator a node is, what made a value, who reads it, what else goes in.

Names without a domain are operators of ONNX's own. Each question takes None for "there is none", so that they chain.
"""

from __future__ import annotations

from typing import TypeGuard

import onnx_ir as ir

from graphopt.graph.editor import Editor, attribute_int, use_count
from graphopt.remarks import Code, Refusal

# -- operator traits

# Their results are others at every run; so are those of a Dropout that trains.
RANDOM = frozenset("Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike".split())
# They take a sum of products of two tensors.
PRODUCTS = frozenset(("MatMul", "Einsum"))
# Their results are numbers of their first operand as they are, or copies of these.
MOVES = frozenset("Expand Flatten Gather Identity Reshape Slice Split Squeeze Tile Transpose Unsqueeze".split())
# They map numbers to whole ones of few bits, and back.
QUANTIZATION = frozenset(("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"))


def is_op(node: ir.Node | None, *op_types: str) -> TypeGuard[ir.Node]:
    """Whether there is a node and it is one of these operators; of any, without names."""
    return node is not None and (not op_types or node.op_type in op_types) and node.domain == ""


def made_by(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """The node that makes a value, if it is one of these operators; of any, without names."""
    node = None if value is None else value.producer()
    return node if is_op(node, *op_types) else None


def sole_reader(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """The node that alone reads a value, with one input, if it is one of these operators; of any, without names.

    A graph output is read by callers, too.
    """
    if value is None or use_count(value) != 1 or value.is_graph_output():
        return None
    (use,) = value.uses()
    return use.node if is_op(use.node, *op_types) else None


def other_input(node: ir.Node, value: ir.Value | None) -> ir.Value | None:
    """The other one of two inputs: not this value."""
    return node.inputs[1] if node.inputs[0] is value else node.inputs[0]


def drops_nothing(node: ir.Node, editor: Editor) -> bool:
    """Whether a Dropout gives its input as it is: outside of training, or where its ratio is 0."""
    if editor.opset(node) < 7:
        return attribute_int(node, "is_test", 0) == 1
    if editor.opset(node) < 12:
        return True
    ratio, training = [*node.inputs[1:3], None, None][:2]
    return training is None or editor.scalar(training) == 0.0 or (ratio is not None and editor.scalar(ratio) == 0.0)


def require_input(node: ir.Node, index: int) -> ir.Value:
    """An input that the operator cannot do without.

    Raises:
        Refusal: UNSUPPORTED_OP where it is left out, which makes the model invalid.

    """
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None:
        raise Refusal(Code.UNSUPPORTED_OP, f"input {index} of {node.op_type} is absent", node)
    return value
