"""Masks that are factors: s mask + c (1 - mask), as Megatron, GLM, minGPT and the first GPT-2 hide keys.

Where every number of the mask is 0 or 1 that is Where(mask, s, c), to the bit: s * 1 + c * 0 = s, and s * 0 + c = c for
every finite score. What a caller gives may be another number, so the mask must be made from booleans or constants.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.graph.editor import Editor, attribute_int
from graphopt.graph.shapes.engine import Shapes
from graphopt.graph.vocabulary import MOVES, made_by
from graphopt.ops.schema import Array
from graphopt.passes.attention.match import MAX_PATH, Condition, View

# Their results are numbers of their first operand, of another type perhaps, or 0.
_KEEP_OR_CLEAR = MOVES | {"Cast", "Trilu"}
# Their result is 0 or 1 where all operands are.
_CLOSED = frozenset("Concat Max Min Mul".split())


def is_zero_or_one(value: ir.Value | None, editor: Editor, budget: int = MAX_PATH) -> bool:
    """Whether every number of a value is 0 or 1, or true or false, for every input of the model."""
    if value is None or budget == 0:
        return False
    array = editor.constant(value)
    if array is not None:
        return array.dtype.kind in "biuf" and bool(np.isin(array, (0, 1)).all())
    if editor.dtype(value) == ir.DataType.BOOL:
        return True
    node = made_by(value)
    if node is None:
        return False
    if node.op_type in _KEEP_OR_CLEAR:
        return is_zero_or_one(node.inputs[0], editor, budget - 1)
    if node.op_type in _CLOSED:
        return all(is_zero_or_one(v, editor, budget - 1) for v in node.inputs)
    if node.op_type == "Where":
        return all(is_zero_or_one(v, editor, budget - 1) for v in node.inputs[1:])
    if node.op_type == "Sub":
        return editor.scalar(node.inputs[0]) == 1.0 and is_zero_or_one(node.inputs[1], editor, budget - 1)
    if node.op_type == "ConstantOfShape":
        filled = node.attributes.get("value")
        return filled is None or filled.as_tensor().numpy().reshape(-1)[0] in (0, 1)
    return False


def hidden_number(mask: ir.Value, bias: ir.Value, factor: float, shapes: Shapes) -> float | None:
    """The c of s mask + c (1 - mask); None where the term is something else.

    Args:
        mask: what the scores are multiplied by.
        bias: what is added behind, times `factor`.
        factor: 1, or -1.
        shapes: of the model.
    """
    editor = shapes.editor
    if shapes.rank(mask) is None or shapes.rank(mask) != shapes.rank(bias):
        return None
    stored, added = editor.constant(_origin(mask)), editor.constant(bias)
    if stored is not None and added is not None:
        if stored.shape != added.shape:
            return None
        ends: list[Array | None] = [added[stored == 0], added[stored == 1]]
    else:
        ends = [_at(bias, _origin(mask), number, editor, MAX_PATH) for number in (0, 1)]
    zeros, ones = ends
    if zeros is None or ones is None or np.any(ones) or zeros.size == 0 or np.any(zeros != zeros.reshape(-1)[0]):
        return None
    return factor * float(zeros.reshape(-1)[0])


def condition_of(mask: ir.Value, node: ir.Node, view: View | None, editor: Editor) -> Condition:
    """The mask of a factor: the booleans that it was made from where that is all that happened to them."""
    source = _origin(mask)
    if editor.dtype(source) == ir.DataType.BOOL:
        return Condition(source, node, view)
    return Condition(mask, node, view, numbers=True)


def _origin(value: ir.Value) -> ir.Value:
    """What a value is without Casts: 0 and 1 are the same numbers in every type."""
    for _ in range(MAX_PATH):
        node = made_by(value, "Cast", "Identity")
        if node is None or node.inputs[0] is None:
            break
        value = node.inputs[0]
    return value


def _at(value: ir.Value | None, mask: ir.Value, number: int, editor: Editor, budget: int) -> Array | None:
    """What a value computed from one mask and numbers is, where the mask is `number`; in its own type."""
    if value is None or budget == 0:
        return None
    dtype = editor.dtype(value)
    if _origin(value) is mask:
        return None if dtype is None else np.asarray(number, dtype.numpy())
    array = editor.constant(value)
    if array is not None:
        return array.reshape(()) if array.size == 1 else None
    node = made_by(value)
    if node is None:
        return None
    operands = [_at(v, mask, number, editor, budget - 1) for v in node.inputs]
    known = [o for o in operands if o is not None]
    if len(known) < len(operands) or not known:
        return None
    with np.errstate(all="ignore"):
        if node.op_type == "Cast":
            return known[0].astype(ir.DataType(attribute_int(node, "to", 0)).numpy())
        if node.op_type in ("Identity", "Neg"):
            return np.asarray(known[0] if node.op_type == "Identity" else -known[0])
        if node.op_type == "Not":
            return np.asarray(~known[0])
        if node.op_type == "Where":
            return known[1] if known[0] else known[2]
        if node.op_type in ("Add", "Sub", "Mul", "Div") and known[0].dtype.kind == "f":
            function = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}[node.op_type]
            return np.asarray(function(known[0], known[1]))
    return None
