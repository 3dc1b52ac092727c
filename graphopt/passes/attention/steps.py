"""What stands between the two products of an attention: found, read as a list of steps, and brought into one order.

A step is one node seen from the scores: a factor, a soft cap, an additive term, a mask, a Reshape. The fused node works
in the order scale, soft cap, additive terms, masks; steps in another order are moved by identities of real numbers, or
refused.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from graphopt.graph.editor import Editor, attribute_int, attribute_ints
from graphopt.graph.shapes.engine import Shapes
from graphopt.graph.shapes.sizes import Size
from graphopt.passes.attention.gate import condition_of, hidden_number, is_zero_or_one
from graphopt.passes.attention.match import (
    MAX_PATH,
    RANDOM,
    Attention,
    Condition,
    Step,
    Term,
    View,
    WayDown,
    data_readers,
    is_random,
    joined_values,
    same_dims,
    score_dims,
)
from graphopt.remarks import Code, Refusal

PRODUCTS = frozenset(("MatMul", "Einsum"))
# Operators that keep the nature of what goes through them, used only to tell a candidate from an unrelated Softmax.
PASSING = frozenset(
    "Add Cast DequantizeLinear Div Dropout Identity Mul QuantizeLinear Reshape Squeeze Sub Transpose Unsqueeze "
    "Where".split()
)
# The product that makes the scores, and the steps from there to the softmax.
ScorePath = tuple[ir.Node, list[Step]]
# How many values are looked at above one softmax, nearest first.
MAX_VISITS = 300


# -- from the softmax down ---------------------------------------------------------------------------------------------


def follow_down(softmax: ir.Node, editor: Editor, shapes: Shapes) -> WayDown | None:
    """Follows the probabilities to the product that they are an operand of; None when they reach none."""
    value = softmax.outputs[0]
    nodes: list[ir.Node] = []
    swapped = guard = False
    refusal: Refusal | None = None
    for _ in range(MAX_PATH):
        if value.is_graph_output() and refusal is None:
            refusal = Refusal(Code.GRAPH_OUTPUT, f"{value.name} is a graph output", softmax)
        readers = data_readers(value)
        consumers = list(dict.fromkeys(readers))
        guarded = _nan_guard(value, consumers, editor)
        if guarded is not None:
            nodes += consumers
            guard = True
            value = guarded
            continue
        if len(readers) > 1:
            on_the_way = [c for c in consumers if _leads_to_product(c)]
            if not on_the_way:
                return None
            if refusal is None:
                refusal = Refusal(Code.OTHER_USES, f"{value.name} has {len(readers)} readers", softmax)
            consumers = on_the_way[:1]
        if not consumers:
            return None
        node = consumers[0]
        if node.domain != "":
            return None
        index = next(use.idx for use in value.uses() if use.node is node)
        if node.op_type in PRODUCTS:
            return WayDown(nodes, node, index, swapped, guard, refusal)
        if node.op_type == "Transpose" and _swaps_last_two(node):
            swapped = not swapped
        elif node.op_type == "Dropout":
            refusal = refusal or _dropout_refusal(node, editor)
        elif node.op_type not in ("Identity", "Cast", "Reshape"):
            if not _leads_to_product(node):
                return None
            random = any(is_random(v) for v in node.inputs)
            code = Code.NON_DETERMINISTIC if random else _code_of(node.op_type)
            refusal = refusal or Refusal(code, f"{node.op_type} between the softmax and the product", node)
        nodes.append(node)
        value = node.outputs[0]
    return None


def _nan_guard(value: ir.Value, consumers: Sequence[ir.Node], editor: Editor) -> ir.Value | None:
    """The output of Where(IsNaN(p), 0, p) when these are all the readers of p."""
    if len(consumers) != 2 or value.is_graph_output():
        return None
    is_nan = next((c for c in consumers if c.op_type == "IsNaN"), None)
    where = next((c for c in consumers if c.op_type == "Where"), None)
    if is_nan is None or where is None or where.inputs[0] is not is_nan.outputs[0] or where.inputs[2] is not value:
        return None
    if is_nan.outputs[0].is_graph_output() or len(is_nan.outputs[0].uses()) != 1:
        return None
    zero = where.inputs[1]
    return where.outputs[0] if editor.scalar(zero) == 0.0 and (editor.shapes.rank(zero) or 0) <= 1 else None


def _leads_to_product(node: ir.Node, depth: int = 4) -> bool:
    if node.domain != "":
        return False
    if node.op_type in PRODUCTS:
        return True
    if depth == 0 or node.op_type not in PASSING or not node.outputs:
        return False
    return any(_leads_to_product(c, depth - 1) for c in node.outputs[0].consumers())


def _swaps_last_two(node: ir.Node) -> bool:
    perm = attribute_ints(node, "perm", ())
    rank = len(perm)
    return rank >= 2 and perm == (*range(rank - 2), rank - 1, rank - 2)


def _dropout_refusal(node: ir.Node, editor: Editor) -> Refusal | None:
    """None when the Dropout does nothing: inference, or a ratio of 0."""
    if editor.opset(node) < 7:
        inference = attribute_int(node, "is_test", 0) == 1
    elif editor.opset(node) < 12:
        inference = True
    else:
        mode = node.inputs[2] if len(node.inputs) > 2 else None
        ratio = node.inputs[1] if len(node.inputs) > 1 else None
        inference = mode is None or editor.scalar(mode) == 0.0 or (ratio is not None and editor.scalar(ratio) == 0.0)
    return None if inference else Refusal(Code.TRAINING_MODE, "Dropout drops values", node)


# -- from the softmax up -----------------------------------------------------------------------------------------------


def follow_up(value: ir.Value | None, shapes: Shapes) -> list[ScorePath]:
    """The products that the softmax's input may be read to come from, nearest first; none where it comes from none."""
    found: list[ScorePath] = []
    queue: deque[tuple[ir.Value | None, list[Step]]] = deque([(value, [])])
    visited: set[ir.Value] = set()
    while queue and len(visited) < MAX_VISITS:
        above, steps = queue.popleft()
        node = above.producer() if above is not None else None
        if above is None or node is None or above in visited or node.domain != "" or above is not node.outputs[0]:
            continue
        visited.add(above)
        if node.op_type in PRODUCTS:
            found.append((node, steps))
        elif len(steps) < MAX_PATH:
            queue.extend((main, [step, *steps]) for main, step in _readings(node, shapes))
    return found


def path_cost(path: ScorePath, editor: Editor) -> tuple[bool, bool, int, int]:
    """Readings that can be refused at once last, then projections, then long ones."""
    product_node, steps = path
    projection = any(editor.is_constant(v) for v in product_node.inputs)
    reshapes = sum(s.kind == "reshape" for s in steps)
    return any(s.refusal is not None for s in steps), projection, reshapes, len(steps)


def _readings(node: ir.Node, shapes: Shapes) -> Iterable[tuple[ir.Value | None, Step]]:
    """The ways to read a node as a step: which input the scores are, and what happens to them."""
    editor = shapes.editor
    x = node.inputs
    op = node.op_type
    if op == "Identity":
        yield x[0], Step("same", node)
    elif op == "Dropout":
        yield x[0], Step("same", node, refusal=_dropout_refusal(node, editor))
    elif op == "Cast":
        yield x[0], Step("cast", node)
    elif op == "Reshape":
        yield x[0], Step("reshape", node)
    elif op == "Tanh":
        yield x[0], Step("tanh", node)
    elif op == "Neg":
        yield x[0], Step("scale", node, number=-1.0)
    elif op in ("Mul", "Div"):
        if op == "Div":
            yield x[1], Step("refused", node, refusal=Refusal(Code.UNSUPPORTED_OP, "a Div by the scores", node))
        for main, other in ((x[0], x[1]), (x[1], x[0]))[: 1 if op == "Div" else 2]:
            number = shapes.number(other)
            if number is not None and op == "Div":
                number = 1.0 / number if number else math.inf
            if number is not None:
                yield main, Step("scale", node, number=number)
            elif not editor.is_constant(main):
                code = Code.PER_CHANNEL_SCALE if editor.is_constant(other) else Code.NOT_CONSTANT
                detail = f"the scores are multiplied by {other.name if other is not None else '?'}"
                factor = Step("refused" if op == "Div" else "gate", node, operand=other)
                known = op == "Mul" and is_zero_or_one(other, editor)
                yield main, factor if known else replace(factor, refusal=Refusal(code, detail, node))
    elif op == "Add":
        yield x[0], Step("add", node, operand=x[1])
        yield x[1], Step("add", node, operand=x[0])
    elif op == "Sub":
        yield x[0], Step("add", node, number=-1.0, operand=x[1])
        yield x[1], Step("refused", node, refusal=Refusal(Code.UNSUPPORTED_OP, "the scores are subtracted", node))
    elif op == "Where":
        for main, other, keeps in ((x[1], x[2], True), (x[2], x[1], False)):
            number, refusal = _mask_value(other, main, node, shapes)
            yield main, Step("where", node, number=number, operand=x[0], keeps=keeps, refusal=refusal)
    elif x:
        refusal = Refusal(_code_of(op), f"{op} between the product and the softmax", node)
        for value in x:
            yield value, Step("refused", node, refusal=refusal)


def _code_of(op_type: str) -> Code:
    if op_type in RANDOM:
        return Code.NON_DETERMINISTIC
    return Code.QUANTIZED if op_type in ("QuantizeLinear", "DequantizeLinear") else Code.UNSUPPORTED_OP


def _mask_value(
    value: ir.Value | None, scores: ir.Value | None, node: ir.Node, shapes: Shapes
) -> tuple[float, Refusal | None]:
    """The one number that a Where writes where it hides a score."""
    editor = shapes.editor
    array = editor.constant(value)
    if array is None:
        number = shapes.number(value)
        if number is not None:
            return number, None
        name = value.name if value is not None else "absent"
        return 0.0, Refusal(Code.NOT_CONSTANT, f"what the mask writes, {name}, is not a constant", node)
    if array.size == 0 or not (array == array.reshape(-1)[0]).all():
        return 0.0, Refusal(Code.UNSUPPORTED_OP, "the mask writes different numbers", node)
    rank = shapes.rank(scores)
    if array.size > 1 or array.ndim > 1:
        dims = shapes.dims(scores)
        if rank is None or dims is None:
            return 0.0, Refusal(Code.UNKNOWN_RANK, "the rank of the scores is not known", node)
        grows = array.ndim > rank or any(
            n != 1 and Size.of(n) != d for n, d in zip(reversed(array.shape), reversed(dims))
        )
        if grows:
            return 0.0, Refusal(Code.BROADCAST_GROWS, f"what the mask writes has shape {array.shape}", node)
    return float(array.reshape(-1)[0]), None


def require_last_axis(softmax: ir.Node, shapes: Shapes, editor: Editor) -> None:
    opset = editor.opset(softmax)
    axis = attribute_int(softmax, "axis", -1 if opset >= 13 else 1)
    if axis == -1:
        return
    rank = shapes.rank(softmax.inputs[0])
    if rank is None:
        raise Refusal(Code.UNKNOWN_RANK, "the rank of the softmax is not known", softmax)
    if axis % rank != rank - 1:
        code = Code.WRONG_AXIS if opset >= 13 else Code.FLATTENED_SOFTMAX
        raise Refusal(code, f"Softmax over axis {axis} of rank {rank}", softmax)


# -- steps -------------------------------------------------------------------------------------------------------------


def apply_steps(found: Attention, steps: Sequence[Step], below: Sequence[ir.Node]) -> None:
    """Brings the steps into the order scale, soft cap, additive terms, masks.

    Args:
        found: takes what the steps come to.
        steps: from the scores to the softmax.
        below: the nodes from the softmax to the context product.

    Raises:
        Refusal: when that would change the numbers.

    """
    editor = found.shapes.editor
    dtype = editor.dtype(found.scores.outputs[0])
    compute = dtype
    view: View | None = None
    gate: Step | None = None
    for step in steps:
        node = step.node
        if gate is not None and step.kind != "same":
            number = hidden_number(gate, step, found.shapes) if step.kind == "add" else None
            if number is None:
                break
            if compute != dtype:
                found.wide_steps.append(node)
            _hide(found, number, condition_of(gate, view, editor))
            gate = None
        elif step.kind == "gate":
            gate = step
        elif step.kind == "cast":
            compute = ir.DataType(attribute_int(node, "to", 0))
            if compute not in (dtype, ir.DataType.FLOAT):
                raise Refusal(Code.MIXED_DTYPE, f"scores are cast to {compute.name}", node)
        elif step.kind == "scale":
            _apply_scale(found, step.number, node)
        elif step.kind == "tanh":
            if found.softcap is not None or found.terms or found.conditions:
                raise Refusal(Code.UNSUPPORTED_OP, "Tanh after a mask, a bias or another Tanh", node)
            found.softcap = 1.0
        elif step.kind == "add":
            assert step.operand is not None
            _masks_to_terms(found, node)
            if compute != dtype:
                found.wide_steps.append(node)
            found.terms.append(Term(step.operand, node, view, step.number))
        elif step.kind == "where":
            assert step.operand is not None
            if compute != dtype:
                found.wide_steps.append(node)
            _hide(found, step.number, Condition(step.operand, node, view, step.keeps))
        elif step.kind == "reshape":
            view = _next_view(found, node, view)
    if gate is not None:
        name = gate.operand.name if gate.operand is not None else "?"
        raise Refusal(Code.PER_CHANNEL_SCALE, f"the scores are multiplied by {name}", gate.node)
    base = found.shapes.dims(found.scores.outputs[0])
    if view is not None and (base is None or view.dims[-1] != base[-1]):
        if base is None or None in (view.dims[-1].value, base[-1].value):
            raise Refusal(Code.UNKNOWN_SHAPE, "whether the softmax is over the keys is not known", view.there)
        raise Refusal(Code.WRONG_AXIS, "the last axis of the softmax is not that of the keys", view.there)
    swapped: ir.Node | None = None
    for node in below:
        if node.op_type == "Cast":
            found.casts.append((ir.DataType(attribute_int(node, "to", 0)), node))
        elif node.op_type == "Transpose":
            swapped = node
        elif node.op_type == "Reshape":
            if swapped is not None:
                raise Refusal(Code.UNSUPPORTED_OP, "the probabilities are transposed, then reshaped", swapped, node)
            view = _next_view(found, node, view)
        if swapped is not None and view is not None:
            raise Refusal(Code.UNSUPPORTED_OP, "the probabilities are reshaped, then transposed", node)
    if view is not None:
        raise Refusal(Code.WRONG_SHAPE, "the probabilities do not have the shape of the scores", view.there)


def _hide(found: Attention, number: float, condition: Condition) -> None:
    if found.conditions and found.mask_value != number:
        raise Refusal(Code.UNSUPPORTED_OP, "two masks write different numbers", condition.node)
    found.mask_value = number
    found.conditions.append(condition)


def _masks_to_terms(found: Attention, node: ir.Node) -> None:
    """A mask before a bias becomes a bias itself: where(m, s, c) + b = s + where(m, 0, c) + b.

    For float32 scores below 1e30 that is exact, not only close, when c is -inf or so large that adding s does not
    change it.
    """
    if not found.conditions:
        return
    dtype = found.shapes.editor.dtype(found.scores.outputs[0])
    if found.mask_value > -1e38 or dtype != ir.DataType.FLOAT:
        raise Refusal(Code.MASK_ORDER, f"a bias is added after a mask that writes {found.mask_value:g}", node)
    for c in found.conditions:
        found.terms.append(Term(c.value, c.node, c.view, mask=(found.mask_value, c.keeps), numbers=c.numbers))
    found.conditions = []


def _apply_scale(found: Attention, number: float, node: ir.Node) -> None:
    if not math.isfinite(number):
        raise Refusal(Code.NOT_FINITE, f"the scores are multiplied by {number}", node)
    found.scale *= number
    if found.softcap is not None:
        found.softcap *= number
    found.terms = [replace(t, factor=t.factor * number) for t in found.terms]
    if found.conditions:
        found.mask_value = float(np.float32(found.mask_value) * np.float32(number))


def _next_view(found: Attention, node: ir.Node, view: View | None) -> View | None:
    base = found.shapes.dims(found.scores.outputs[0])
    dims = found.shapes.reshaped(node)
    if base is None or dims is None or not dims:
        raise Refusal(Code.UNKNOWN_SHAPE, "the scores are reshaped, to what is not known", node)
    if not same_dims(dims, base):
        return View(dims, node)
    if view is not None:
        view.back = node
    return None


def find_causal(found: Attention) -> None:
    """A constant that hides exactly the keys after each query becomes the node's own Causal step.

    Every query sees a key, so no row is hidden wholly. -inf then says the same as a step of the node does. Another
    very low number does so where it is the only thing that joins: beside others, a row whose visible keys they hide
    would average over the keys hidden here as well.
    """
    base = score_dims(found)
    rows, keys = base[-2].value, base[-1].value
    if rows is None or keys is None or keys < rows:
        return
    alone = len(found.terms) + len(found.conditions) == 1
    visible = np.tri(rows, keys, keys - rows) > 0
    for joined in joined_values(found):
        array = found.shapes.editor.constant(joined.value) if joined.view is None else None
        if array is None or array.ndim < 2 or array.shape[-2:] != (rows, keys) or array.size != rows * keys:
            continue
        matrix = array.reshape(rows, keys)
        if isinstance(joined, Condition):
            hidden = np.full(1, found.mask_value)
            same = np.array_equal(matrix == joined.keeps, visible)
        else:
            hidden = matrix[~visible]
            same = joined.factor == 1.0 and joined.mask is None and not matrix[visible].any()
        if same and (hidden <= (-1e30 if alone else -np.inf)).all():
            found.causal = True
            found.terms = [t for t in found.terms if t is not joined]
            found.conditions = [c for c in found.conditions if c is not joined]
            return
