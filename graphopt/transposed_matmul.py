"""Works around a crash of ONNX Runtime's optimizer at float16 matrix multiplications after a Transpose.

onnxruntime 1.31.1 computes a float16 matrix multiplication in float32 on the CPU. Its default optimizer fuses a
Transpose into the multiplication and moves the Cast between them to the front. If the Transpose moves a batch axis and
the operands differ in rank, the optimizer stops with a partly changed graph, and the process crashes. A leading axis of
size 1 prevents this fusion without moving any element. The runtime treats ranks that it cannot infer as different
(1.22.2 and 1.32.0), so equal ranks are declared.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from graphopt.graph import inference
from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.view import attribute_ints, producer_of
from graphopt.ops import DOMAIN, OPS
from graphopt.remarks import node_label

FLOAT, HALF = ir.DataType.FLOAT, ir.DataType.FLOAT16
MATMULS = [("", "MatMul"), *((DOMAIN, name) for name in OPS if name.startswith("Linear"))]
ATTENTIONS = [(DOMAIN, name) for name in OPS if name.startswith("FusedAttention")]
RESIDUAL = 3  # index of LinearAdd's residual input, which has the rank of the result


def prevent_transpose_fusion(editor: Editor) -> None:
    """Prevents the fusion of a Transpose that moves a batch axis into a float16 matrix multiplication.

    Declares the ranks of the operands if they are equal. If they differ, adds leading axes to the transposed operand;
    if the rank of the other operand is unknown, computes the Transpose in float32. Also declares the ranks of
    attention's operands, because attention's function body contains such multiplications.
    """
    for node in editor.nodes(MATMULS):
        for i in (0,) if node.domain else (0, 1):
            factor, other = node.inputs[i], editor.shapes.rank(node.inputs[1 - i])
            cast = producer_of(factor, "Cast")
            transpose = producer_of(factor if cast is None else cast.inputs[0], "Transpose")
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
    """Declares a rank that the runtime may not infer; the runtime treats unknown ranks as different."""
    if value is not None and value.producer() is not None and not value.is_graph_output():
        value.shape = value.shape or ir.Shape([None] * rank)
        inference.declare(editor.model, value)


def _moves_batch(perm: Sequence[int]) -> bool:
    """Returns whether a permutation begins with axes 1, 2, .. and has the last axis among its last two."""
    rank = len(perm)
    return rank > 2 and tuple(perm[:-2]) == (*range(1, rank - 1),) and rank - 1 in perm[-2:]


def _raise_rank(editor: Editor, node: ir.Node, i: int, count: int, *, lower: bool) -> ir.Node:
    """Adds `count` leading axes to operand `i` of a node; `lower` removes them from the result."""
    label = node_label(node)
    b = Builder(editor, node, label)

    def typed(value: ir.Value, like: ir.Value, ones: int) -> ir.Value:
        value.type = ir.TensorType(HALF)
        value.shape = None if like.shape is None else ir.Shape([*(1,) * ones, *like.shape])
        return value

    y, operands = node.outputs[0], list(node.inputs)
    for k in (i, RESIDUAL):
        if k < len(operands) and (value := operands[k]) is not None:
            operands[k] = typed(b.unsqueeze(value, *range(count)), value, count)
    attributes = {a.name: a.value for a in node.attributes.values()}
    result = b.op(node.op_type, *operands, _hint=f"{label}/product", _domain=node.domain, **attributes)
    gemm = b.nodes[-1]
    typed(result, y, count if lower else 0)
    if node.domain:
        inference.declare(editor.model, result)
    if lower:
        result = typed(b.squeeze(result, *range(count)), y, 0)
    editor.replace([node], b.nodes, {y: result}, anchor=node)
    return gemm


def _transpose_in_float(editor: Editor, transpose: ir.Node, node: ir.Node, i: int) -> None:
    """Computes the Transpose in float32: the runtime then finds no Cast between it and the multiplication to move."""
    x, factor, label = transpose.inputs[0], node.inputs[i], node_label(node)
    assert x is not None
    assert factor is not None
    b, perm = Builder(editor, node, label), attribute_ints(transpose, "perm", ())
    wide = b.op("Cast", x, to=int(FLOAT), _hint=f"{label}/wide", _like=x, _dtype=FLOAT)
    moved = b.op("Transpose", wide, perm=perm, _hint=f"{label}/transpose", _like=factor, _dtype=FLOAT)
    narrow = b.op("Cast", moved, to=int(HALF), _hint=f"{label}/narrow", _like=factor, _dtype=HALF)
    editor.add_before(node, b.nodes)
    operands = list(node.inputs)
    operands[i] = narrow
    editor.rewire(node, operands)
