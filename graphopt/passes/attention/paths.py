"""Finds the paths from a softmax to the MatMul of its scores and to the MatMul of its context."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import onnx_ir as ir

from graphopt.graph.operators.arguments import flattens, signature
from graphopt.graph.operators.traits import CONTRACTIONS
from graphopt.graph.view import GraphView, attribute_int, attribute_ints, is_op, producer_of, sole_reader
from graphopt.passes.attention.match import MAX_PATH, ContextPath, data_readers, is_random
from graphopt.passes.attention.readings import Reshape, Step, code_of, dropout_refusal, readings
from graphopt.remarks import Code, Refusal

# Operators between a softmax and its MatMul, used only to distinguish candidates from unrelated Softmax nodes.
PASS_THROUGH = frozenset(
    "Add Cast DequantizeLinear Div Dropout Identity Mul QuantizeLinear Reshape Squeeze Sub Transpose Unsqueeze "
    "Where".split()
)
# The MatMul that produces the scores, and the steps from there to the softmax.
ScorePath = tuple[ir.Node, list[Step]]
# The largest number of values that the search for one softmax visits; it visits the nearest values first.
MAX_VISITS = 300


# -- from the softmax to the context -----------------------------------------------------------------------------------


def find_context(softmax: ir.Node, graph: GraphView) -> ContextPath | None:
    """Follows the probabilities to the MatMul that reads them; returns None if there is no such MatMul."""
    value = softmax.outputs[0]
    nodes: list[ir.Node] = []
    swapped = guard = False
    refusal: Refusal | None = None
    for _ in range(MAX_PATH):
        if value.is_graph_output() and refusal is None:
            refusal = Refusal(Code.GRAPH_OUTPUT, f"{value.name} is a graph output", softmax)
        readers = data_readers(value)
        consumers = list(dict.fromkeys(readers))
        guarded = _nan_guard(value, consumers, graph)
        if guarded is not None:
            nodes += consumers
            guard = True
            value = guarded
            continue
        if len(readers) > 1:
            toward_matmul = [c for c in consumers if _leads_to_matmul(c)]
            if not toward_matmul:
                return None
            if refusal is None:
                refusal = Refusal(Code.OTHER_USES, f"{value.name} has {len(readers)} readers", softmax)
            consumers = toward_matmul[:1]
        if not consumers:
            return None
        node = consumers[0]
        if not is_op(node):
            return None
        index = next(use.idx for use in value.uses() if use.node is node)
        if node.op_type in CONTRACTIONS:
            return ContextPath(tuple(nodes), node, index, swapped, guard, refusal)
        if node.op_type == "Transpose" and _swaps_last_two(node):
            swapped = not swapped
        elif node.op_type == "Dropout":
            refusal = refusal or dropout_refusal(node, graph)
        elif node.op_type not in ("Identity", "Cast", "Reshape"):
            if not _leads_to_matmul(node):
                return None
            random = any(is_random(v) for v in node.inputs)
            code = Code.NON_DETERMINISTIC if random else code_of(node.op_type)
            refusal = refusal or Refusal(code, f"{node.op_type} is between the softmax and the MatMul with V", node)
        nodes.append(node)
        value = node.outputs[0]
    return None


def _nan_guard(value: ir.Value, consumers: Sequence[ir.Node], graph: GraphView) -> ir.Value | None:
    """Returns the output of Where(IsNaN(p), 0, p) if these are the only readers of p, or None."""
    if len(consumers) != 2 or value.is_graph_output():
        return None
    is_nan = next((c for c in consumers if is_op(c, "IsNaN")), None)
    where = None if is_nan is None else sole_reader(is_nan.outputs[0], "Where")
    if where is None or where not in consumers or where.inputs[2] is not value:
        return None
    zero = where.inputs[1]
    return where.outputs[0] if graph.scalar(zero) == 0.0 and (graph.shapes.rank(zero) or 0) <= 1 else None


def _leads_to_matmul(node: ir.Node, depth: int = 4) -> bool:
    if not is_op(node):
        return False
    if node.op_type in CONTRACTIONS:
        return True
    if depth == 0 or node.op_type not in PASS_THROUGH or not node.outputs:
        return False
    return any(_leads_to_matmul(c, depth - 1) for c in node.outputs[0].consumers())


def _swaps_last_two(node: ir.Node) -> bool:
    perm = attribute_ints(node, "perm", ())
    rank = len(perm)
    return rank >= 2 and perm == (*range(rank - 2), rank - 1, rank - 2)


# -- from the softmax to the scores ------------------------------------------------------------------------------------


def find_scores(value: ir.Value | None, graph: GraphView) -> list[ScorePath]:
    """Returns the MatMuls that may produce the softmax's input, nearest first, with the steps from each."""
    found: list[ScorePath] = []
    queue: deque[tuple[ir.Value | None, list[Step]]] = deque([(value, [])])
    visited: set[ir.Value] = set()
    while queue and len(visited) < MAX_VISITS:
        above, steps = queue.popleft()
        node = producer_of(above)
        if above is None or node is None or above in visited or above is not node.outputs[0]:
            continue
        visited.add(above)
        if node.op_type in CONTRACTIONS:
            found.append((node, steps))
        elif len(steps) < MAX_PATH:
            queue.extend((main, [step, *steps]) for main, step in readings(node, graph))
    return found


def path_cost(path: ScorePath, graph: GraphView) -> tuple[bool, bool, int, int]:
    """Returns a sort key: whether a step is refused, whether the MatMul reads a constant, the Reshapes, the steps."""
    matmul, steps = path
    projection = any(graph.is_constant(v) for v in matmul.inputs)
    reshapes = sum(isinstance(s, Reshape) for s in steps)
    return any(s.refusal is not None for s in steps), projection, reshapes, len(steps)


def require_last_axis(softmax: ir.Node, graph: GraphView) -> None:
    opset = graph.opset(softmax)
    axis = attribute_int(softmax, "axis", signature("Softmax", opset).attributes["axis"])
    if axis == -1:
        return
    rank = graph.shapes.rank(softmax.inputs[0])
    if rank is None:
        raise Refusal(Code.UNKNOWN_RANK, "the rank of the softmax's input is not known", softmax)
    if axis % rank != rank - 1:
        code = Code.FLATTENED_SOFTMAX if flattens("Softmax", opset) else Code.WRONG_AXIS
        raise Refusal(code, f"the Softmax is over axis {axis} of rank {rank}", softmax)
