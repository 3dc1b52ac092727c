"""Products of float16 behind a Transpose, spelled so that runtimes run them.

onnxruntime 1.31.1 computes a float16 product in float32 on its CPU. Its rewrite that takes a Transpose into a product
(at the default level) moves the Cast that lies between the two to the front, finds that a batch was moved and that the
factors differ in rank, and leaves a graph that is half changed: the process ends. A leading axis moves no number, on no
device, and a batch behind one is nothing that the rewrite looks for. Ranks that the runtime cannot infer count as
different to it (1.22.2 and 1.32.0 alike): they are declared where they are the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from graphopt.graph import inference
from graphopt.graph.editor import Editor
from graphopt.graph.view import attribute_ints, made_by
from graphopt.ops import DOMAIN, OPS
from graphopt.ops.schema import AXES_INPUT_OPSET
from graphopt.remarks import node_label

FLOAT, HALF = ir.DataType.FLOAT, ir.DataType.FLOAT16
MATRIX_PRODUCTS = [("", "MatMul"), *((DOMAIN, name) for name in OPS if name.startswith("Linear"))]
ATTENTIONS = [(DOMAIN, name) for name in OPS if name.startswith("FusedAttention")]
RESIDUAL = 3  # the input of LinearAdd that has the rank of the result


def keep_ranks_apart(editor: Editor) -> None:
    """Gives a factor whose batch a Transpose moves a leading axis, where the other factor has another rank.

    Where both have one rank, it is declared, also for the operands of attention, whose body holds such products.
    """
    for node in editor.nodes(MATRIX_PRODUCTS):
        for i in (0,) if node.domain else (0, 1):
            factor, other = node.inputs[i], editor.shapes.rank(node.inputs[1 - i])
            cast = made_by(factor, "Cast")
            transpose = made_by(factor if cast is None else cast.inputs[0], "Transpose")
            if transpose is None or editor.dtype(factor) != HALF:
                continue
            perm = attribute_ints(transpose, "perm", ())
            rank = len(perm)
            if not _moves_batch(perm):
                continue
            if rank == other:
                for value in (*node.inputs[:2], node.outputs[0]):
                    _declare(editor, value, rank)
            elif cast is not None:
                continue
            elif other is None:
                _transpose_in_float(editor, transpose, node, i)
            else:
                node = _raise_rank(editor, node, i, max(1, other - rank), lower=other < rank)

    for node in editor.nodes(ATTENTIONS):
        perms = [attribute_ints(node, name, ()) for name in ("q_perm", "k_perm", "v_perm")]
        if editor.dtype(node.inputs[0]) == HALF and any(map(_moves_batch, perms)):
            for value, perm in zip(node.inputs, perms):
                _declare(editor, value, len(perm))


def _declare(editor: Editor, value: ir.Value | None, rank: int) -> None:
    """Writes down a rank that the runtime may not find: two that it does not know differ, too."""
    if value is not None and value.producer() is not None and not value.is_graph_output():
        value.shape = value.shape or ir.Shape([None] * rank)
        inference.declare(editor.model, value)


def _moves_batch(perm: Sequence[int]) -> bool:
    """Whether a Transpose brings the first axis behind a batch, and leaves the last one among the last two."""
    rank = len(perm)
    return rank > 2 and tuple(perm[:-2]) == (*range(1, rank - 1),) and rank - 1 in perm[-2:]


def _raise_rank(editor: Editor, node: ir.Node, i: int, count: int, *, lower: bool) -> ir.Node:
    """Gives factor `i` of a product leading axes, which the result loses again if it is to be `lower`."""

    def change(op_type: str, value: ir.Value, like: ir.Value, ones: int) -> ir.Node:
        label = f"{node_label(node)}/{op_type.lower()}"
        if editor.opset_at(node) < AXES_INPUT_OPSET:
            return typed(editor.node(op_type, [value], {"axes": range(count)}, hint=label), like, ones)
        axes = editor.initializer(node, np.arange(count), f"{label}_axes")
        return typed(editor.node(op_type, [value, axes], hint=label), like, ones)

    def typed(new: ir.Node, like: ir.Value, ones: int) -> ir.Node:
        result = new.outputs[0]
        result.type = ir.TensorType(HALF)
        result.shape = None if like.shape is None else ir.Shape([*(1,) * ones, *like.shape])
        if new.domain:
            inference.declare(editor.model, result)
        return new

    y, operands, raised = node.outputs[0], list(node.inputs), []
    for k in (i, RESIDUAL):
        if k < len(operands) and (value := operands[k]) is not None:
            raised.append(change("Unsqueeze", value, value, count))
            operands[k] = raised[-1].outputs[0]
    attributes = {a.name: a.value for a in node.attributes.values()}
    hint = f"{node_label(node)}/product"
    product = editor.node(node.op_type, operands, attributes, hint=hint, domain=node.domain)
    typed(product, y, count if lower else 0)
    lowered = [change("Squeeze", product.outputs[0], y, 0)] if lower else []
    editor.replace([node], [*raised, product, *lowered], {y: [product, *lowered][-1].outputs[0]}, anchor=node)
    return product


def _transpose_in_float(editor: Editor, transpose: ir.Node, node: ir.Node, i: int) -> None:
    """Where the other rank is not known, the Transpose works in float32, and no Cast follows it that could move."""
    x, factor, label = transpose.inputs[0], node.inputs[i], node_label(node)
    assert x is not None
    assert factor is not None
    wide = editor.node("Cast", [x], {"to": int(FLOAT)}, hint=f"{label}/wide")
    perm = {"perm": attribute_ints(transpose, "perm", ())}
    moved = editor.node("Transpose", wide.outputs, perm, hint=f"{label}/transpose")
    narrow = editor.node("Cast", moved.outputs, {"to": int(HALF)}, hint=f"{label}/narrow")
    for new, dtype, like in ((wide, FLOAT, x), (moved, FLOAT, factor), (narrow, HALF, factor)):
        new.outputs[0].type, new.outputs[0].shape = ir.TensorType(dtype), like.shape
    graph = node.graph
    assert graph is not None
    graph.insert_before(node, [wide, moved, narrow])
    operands = list(node.inputs)
    operands[i] = narrow.outputs[0]
    editor.rewire(node, operands)
