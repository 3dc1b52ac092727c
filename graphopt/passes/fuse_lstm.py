"""Replaces the unrolled time steps of an LSTM, written with elementary operators, by ONNX's operator LSTM.

    h_t, c_t = cell(x_t, h_{t-1}, c_{t-1}) for t = 0 .. T-1 -> LSTM(X, W, R, B, h_{-1}, c_{-1})

The equations of a step are in `graphopt/forms/lstm_cell.py`. A loop over LSTMCell in PyTorch, and Keras' LSTM with
`unroll=True`, export one copy of these nodes for each step.

Why it is legal: LSTM with its default activations has the same equations. If x_t is row t of a tensor, or row T-1-t,
the node reads the tensor itself, with direction forward or reverse. Otherwise the pass concatenates the inputs.

Conditions: all steps have the same constant weights; the gates of a step read one input and the hidden state of the
step before; other nodes read only hidden states and the last cell state; no node reads a hidden state before the last
input is computed. All values are float32 matrices with the same batch size.

Where it is faster: from two steps on. ONNX Runtime multiplies the inputs of all steps together, so it reads their
weight once instead of T times, and starts one node instead of about twelve for each step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from graphopt.forms.lstm_cell import Gate, LstmCell, Part, cell_of, gate_of, total
from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.operators.arguments import spans
from graphopt.graph.shapes.sizes import ONE, Size, shape_text
from graphopt.graph.view import attribute_int, is_op, producer_of, require_contained, sole_reader, use_count
from graphopt.metadata import Numerics
from graphopt.ops.schema import Array
from graphopt.passes.base import Pass
from graphopt.remarks import Code, Refusal, became
from graphopt.targets.profit import Candidate

MIN_OPSET = 7  # LSTM of earlier opsets has the attribute output_sequence
MIN_STEPS = 2


@dataclass(frozen=True)
class GateWeights:
    """The constants of a gate: weights of the input and of the hidden state, and biases."""

    input_weights: tuple[Part, ...]
    state_weights: tuple[Part, ...]
    biases: tuple[Part, ...]

    def equals(self, other: GateWeights) -> bool:
        """Returns whether both have the same addends in any order."""
        own_addends, other_addends = ((w.input_weights, w.state_weights, w.biases) for w in (self, other))
        return all(Counter(a) == Counter(b) for a, b in zip(own_addends, other_addends))


@dataclass(frozen=True)
class Row:
    """One row along an axis of a tensor of rank 3: the input of a time step."""

    source: ir.Value
    axis: int
    index: int


@dataclass(frozen=True)
class Stack:
    """A Concat of all hidden states along a new axis; `order` has the step of each of its inputs."""

    concat: ir.Node
    axis: int
    order: tuple[int, ...]


@dataclass(frozen=True)
class UnrolledLstm:
    """The time steps of one LSTM.

    Attributes:
        cells: the steps.
        nodes: the nodes to remove, consumers first.
        inputs: x_t of each step.
        rows: the rows, if the inputs are consecutive rows of one tensor; otherwise None.
        hidden_size: the number of hidden units.
        weights: the constants of each gate, in ONNX's order.
        initial: h and c before the first step; None for zeros.
        stack: the Concat of all hidden states, or None.
        anchor: the node before which the LSTM is inserted.
    """

    cells: tuple[LstmCell, ...]
    nodes: tuple[ir.Node, ...]
    inputs: tuple[ir.Value, ...]
    rows: tuple[Row, ...] | None
    hidden_size: int
    weights: tuple[GateWeights, ...]
    initial: tuple[ir.Value | None, ir.Value | None]
    stack: Stack | None
    anchor: ir.Node


class FuseLstm(Pass[tuple[LstmCell, ...], UnrolledLstm]):
    name = "fuse_lstm"
    equation = "h_t, c_t = cell(x_t, h_{t-1}, c_{t-1}) -> LSTM"
    numerics = Numerics.REASSOCIATED
    anchors = frozenset({("", "Tanh")})
    emits_unknown_types = True

    def match(self, node: ir.Node, editor: Editor) -> tuple[LstmCell, ...] | None:
        cell = cell_of(node)
        if cell is None or _cell_with_state(cell.previous_c) is not None:
            return None
        cells = [cell]
        while (following := _following(cells[-1])) is not None:
            cells.append(following)
        return tuple(cells)

    def legal(self, match: tuple[LstmCell, ...], editor: Editor) -> UnrolledLstm:
        first = match[0].nodes[0]
        if editor.opset(first) < MIN_OPSET:
            raise Refusal(Code.OPSET, f"LSTM needs opset {MIN_OPSET}, but the model has {editor.opset(first)}", first)
        editor.require_dtype(match[0].h, first, ir.DataType.FLOAT)
        steps = [tuple(gate_of(value, editor) for value in cell.gates) for cell in match]
        sizes = {gate.size for gates in steps for gate in gates}
        if len(sizes) != 1:
            raise Refusal(Code.WRONG_SHAPE, f"the gates of the LSTM have {sorted(sizes)} columns", first)
        inputs, weights, h = _weights(match, steps, editor)
        nodes = tuple(
            dict.fromkeys([n for c in match for n in c.nodes] + [n for s in steps for g in s for n in g.nodes])
        )
        require_contained(_dependents(match, nodes), *(cell.h for cell in match), match[-1].c)
        initial = (_state(h, match[0], editor), _state(match[0].previous_c, match[0], editor))
        for x, cell in zip(inputs, match):
            _require_batch(x, cell, editor)
        rows = _consecutive_rows(inputs, editor)
        sources = [rows[0].source] if rows else inputs
        anchor = _insertion_point(match, nodes, [*sources, *initial])
        return UnrolledLstm(match, nodes, inputs, rows, sizes.pop(), weights, initial, _stack(match, editor), anchor)

    def candidate(self, plan: UnrolledLstm, editor: Editor) -> Candidate:
        few = len(plan.cells) < MIN_STEPS
        no_gain = "for one time step, LSTM takes as long as the nodes it replaces" if few else ""
        last = plan.cells[-1]
        return editor.candidate("LSTM", plan.inputs[:1], last.h, last.nodes[1], no_gain)

    def rewrite(self, plan: UnrolledLstm, editor: Editor) -> str:
        b = Builder(editor, plan.anchor, plan.cells[0].nodes[0].name)
        backwards = plan.rows is not None and plan.rows[-1].index < plan.rows[0].index
        outputs = self._lstm(plan, b, backwards)
        T = len(plan.cells)
        y = b.squeeze(outputs[0], 1)
        # A following layer finds its inputs as rows of y.
        editor.shapes.declare(y, [Size.of(T), *(editor.shapes.dims(plan.cells[0].h) or ())])
        place = [T - 1 - t if backwards else t for t in range(T)]
        replaced: dict[ir.Value, ir.Value] = {}
        removed = list(plan.nodes)
        stack = plan.stack
        if stack is not None:
            order = [place[t] for t in stack.order]
            stacked = y if order == list(range(T)) else b.op("Gather", y, b.ints(*order), axis=0)
            perm = [1, 2]
            perm.insert(stack.axis, 0)
            replaced[stack.concat.outputs[0]] = b.transpose(stacked, *perm) if stack.axis else stacked
            removed += [stack.concat, *stack.concat.predecessors()]
        inside = {*removed}
        for t, cell in enumerate(plan.cells):
            if cell.h.is_graph_output() or any(reader not in inside for reader in cell.h.consumers()):
                index = b.number(place[t], ir.DataType.INT64)
                replaced[cell.h] = b.op("Gather", y, index, axis=0, _like=cell.h)
        if len(outputs) > 1:
            replaced[plan.cells[-1].c] = b.squeeze(outputs[2], 0)
        editor.replace(removed, b.nodes, replaced, anchor=plan.anchor)
        return became(len(plan.nodes), f"LSTM of {T} {'step' if T == 1 else 'steps'}")

    def _lstm(self, plan: UnrolledLstm, b: Builder, backwards: bool) -> Sequence[ir.Value]:
        """Writes the LSTM; returns Y, and also Y_h and Y_c if the last cell state has other readers."""
        editor, last = b.editor, plan.cells[-1]

        H = plan.hidden_size
        input_weights, state_weights, biases = (
            [total(parts, editor) for parts in kind]
            for kind in zip(*((g.input_weights, g.state_weights, g.biases) for g in plan.weights))
        )
        W = b.initializer(_concatenated(input_weights, (0, H)), "/W")
        R = b.initializer(_concatenated(state_weights, (0, H)), "/R")
        B = b.initializer(_concatenated([*biases, *[None] * 4], (H,)), "/B")
        X = _input_sequence(plan, b)
        initial = [None if state is None else b.unsqueeze(state, 0) for state in plan.initial]
        inputs = [X, W, R, B, *([None, *initial] if any(initial) else [])]
        readers = set(last.c.consumers()) - set(last.nodes)
        count = 3 if readers or last.c.is_graph_output() else 1
        direction = "reverse" if backwards else "forward"
        outputs = b.outputs("LSTM", *inputs, _count=count, hidden_size=H, direction=direction)
        for output in outputs:
            output.type = ir.TensorType(ir.DataType.FLOAT)
        return outputs


def _concatenated(gates: Sequence[Array | None], shape: tuple[int, ...]) -> Array:
    """Returns LSTM's W, R or B for one direction from the arrays of the gates; absent gates become zeros of `shape`."""
    return np.concatenate([np.zeros(shape, np.float32) if gate is None else gate for gate in gates])[None]


def _input_sequence(plan: UnrolledLstm, b: Builder) -> ir.Value:
    """Writes the inputs of all time steps [steps, batch, inputs], ordered by their rows."""
    if plan.rows is None:
        return b.concat([b.unsqueeze(x, 0) for x in plan.inputs], 0)
    (source, axis), T = (plan.rows[0].source, plan.rows[0].axis), len(plan.rows)
    start = min(row.index for row in plan.rows)
    whole = b.editor.shapes.dim(source, axis).value == T
    rows = source if whole else b.slice(source, axis, start, start + T)
    return rows if axis == 0 else b.transpose(rows, 1, 0, 2)


def _cell_with_state(c: ir.Value) -> LstmCell | None:
    """Returns the time step that produces the cell state `c`."""
    cells = (cell_of(reader) for reader in c.consumers() if is_op(reader, "Tanh"))
    return next((cell for cell in cells if cell is not None), None)


def _following(cell: LstmCell) -> LstmCell | None:
    """Returns the time step that reads the cell state of `cell`."""
    for mul in cell.c.consumers():
        if is_op(mul, "Mul"):
            for total in mul.outputs[0].consumers():
                found = _cell_with_state(total.outputs[0]) if is_op(total, "Add") else None
                if found is not None and found.previous_c is cell.c:
                    return found
    return None


def _dependents(cells: Sequence[LstmCell], nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """Returns the nodes that depend on a time step. The remaining nodes may have other readers."""
    inside, found = set(nodes), dict[ir.Node, None]()
    work = [value for cell in cells for value in (cell.h, cell.c)]
    while work:
        readers = [r for r in work.pop().consumers() if r in inside and r not in found]
        found.update(dict.fromkeys(readers))
        work += [output for reader in readers for output in reader.outputs]
    return list(found)


def _weights(
    cells: Sequence[LstmCell], steps: Sequence[Sequence[Gate]], editor: Editor
) -> tuple[tuple[ir.Value, ...], tuple[GateWeights, ...], ir.Value | None]:
    """Returns the input of each step, the constants of the gates, and the hidden state before the first step.

    The hidden state is None if the first step does not multiply it. It is then zero.
    """
    states = [_initial_state(steps, cells), *(cell.h for cell in cells[:-1])]
    inputs: list[ir.Value] = []
    weights: list[tuple[GateWeights, ...]] = []
    for cell, gates, state in zip(cells, steps, states):
        node = cell.nodes[0]
        read = {value for gate in gates for value, _ in gate.matmuls if value is not state}
        if len(read) != 1:
            text = f"the gates of a time step read {len(read)} inputs besides the hidden state"
            raise Refusal(Code.UNSUPPORTED_OP, text, node)
        inputs += read
        weights.append(tuple(_gate_weights(gate, state) for gate in gates))
        if any(not g.input_weights or (state is not None and not g.state_weights) for g in weights[-1]):
            raise Refusal(Code.UNSUPPORTED_OP, "a gate does not read both the input and the hidden state", node)
    expected = weights[-1]
    for cell, found, state in zip(cells, weights, states):
        pairs = zip(found, expected)
        same = _without_state_equal(found, expected, editor) if state is None else all(a.equals(b) for a, b in pairs)
        if not same:
            text = "the weights of a time step differ from those of the last one"
            raise Refusal(Code.WRONG_SHAPE, text, cell.nodes[0])
    return tuple(inputs), expected, states[0]


def _gate_weights(gate: Gate, state: ir.Value | None) -> GateWeights:
    input_weights = tuple(part for value, part in gate.matmuls if value is not state)
    state_weights = tuple(part for value, part in gate.matmuls if value is state)
    return GateWeights(input_weights, state_weights, gate.biases)


def _initial_state(steps: Sequence[Sequence[Gate]], cells: Sequence[LstmCell]) -> ir.Value | None:
    """Returns the hidden state before the first step.

    The state is recognised by its weight. With one step, this weight has as many rows as there are hidden units. With
    several steps, it is the weight that the second step multiplies by the hidden state of the first.
    """
    first = steps[0][0].matmuls
    if len(steps) == 1:
        sized = (
            value for value, part in first if part.rows is not None and part.rows[1] - part.rows[0] == steps[0][0].size
        )
        return next(sized, None)
    recurrent = {part for value, part in steps[1][0].matmuls if value is cells[0].h}
    return next((value for value, part in first if part in recurrent), None)


def _without_state_equal(found: Sequence[GateWeights], expected: Sequence[GateWeights], editor: Editor) -> bool:
    """Compares the weights of a step without hidden state. Constant folding may have added up its biases."""
    for a, b in zip(found, expected):
        bias, expected_bias = (total(biases, editor) for biases in (a.biases, b.biases))
        if Counter(a.input_weights) != Counter(b.input_weights) or (bias is None) != (expected_bias is None):
            return False
        if bias is not None and expected_bias is not None and not np.allclose(bias, expected_bias, rtol=1e-6, atol=0):
            return False
    return True


def _state(state: ir.Value | None, cell: LstmCell, editor: Editor) -> ir.Value | None:
    """Returns an initial state; None if its elements are zero."""
    if state is None or _is_zero(state, editor):
        return None
    _require_batch(state, cell, editor)
    return state


def _is_zero(value: ir.Value, editor: Editor) -> bool:
    node = producer_of(value, "ConstantOfShape", "Expand")
    if node is not None and node.op_type == "ConstantOfShape":
        fill = node.attributes.get_tensor("value")
        return fill is None or not fill.numpy().any()
    stored = editor.constant(value if node is None else node.inputs[0])
    return stored is not None and not stored.any()


def _require_batch(value: ir.Value, cell: LstmCell, editor: Editor) -> None:
    """Requires that `value` and the hidden state are matrices with the same number of rows."""
    node = cell.nodes[0]
    dims, state = (editor.require_dims(v, node) for v in (value, cell.h))
    if len(state) != 2 or len(dims) != 2:
        raise Refusal(Code.WRONG_RANK, f"{value.name} has rank {len(dims)}, the hidden state {len(state)}", node)
    if dims[0] != state[0]:
        known = dims[0].value is not None and state[0].value is not None
        text = f"{value.name} has shape {shape_text(dims)}, the hidden state {shape_text(state)}"
        raise Refusal(Code.WRONG_SHAPE if known else Code.UNKNOWN_SHAPE, text, node)


def _consecutive_rows(inputs: Sequence[ir.Value], editor: Editor) -> tuple[Row, ...] | None:
    """Returns the inputs as rows of one tensor if their indices ascend or descend by one, or None."""
    rows = [_row_of(x, editor) for x in inputs]
    first = rows[0]
    found = tuple(row for row in rows if row is not None and first is not None)
    if first is None or len(found) < max(len(rows), 2) or first.axis > 1:
        return None
    step = found[1].index - found[0].index
    as_expected = [Row(first.source, first.axis, first.index + t * step) for t in range(len(found))]
    return found if abs(step) == 1 and list(found) == as_expected else None


def _row_of(x: ir.Value, editor: Editor) -> Row | None:
    """Returns the row that Gather, or Squeeze after Slice or Split, selects from a tensor of rank 3."""
    node = producer_of(x, "Gather", "Squeeze")
    source = None if node is None else node.inputs[0]
    index: int | None = None
    if node is None or source is None:
        return None
    if node.op_type == "Gather":
        axis = attribute_int(node, "axis", 0)
        chosen = editor.constant(node.inputs[1])
        index = None if chosen is None or chosen.ndim else int(chosen)
    else:
        axes = editor.arguments(node).axes(3)
        part = producer_of(source, "Slice", "Split")
        if axes is None or len(axes) != 1 or part is None or editor.shapes.rank(source) != 3:
            return None
        (axis,) = axes
        dims = editor.shapes.dims(source)
        if dims is None or dims[axis] != ONE:
            return None
        index = _part_start(part, source, axis, editor)
        source = part.inputs[0]
    dims = editor.shapes.dims(source)
    if index is None or source is None or dims is None or len(dims) != 3:
        return None
    axis, size = axis % 3, dims[axis].value
    if index < 0:
        index = -1 if size is None else index + size
    return None if index < 0 else Row(source, axis, index)


def _part_start(node: ir.Node, value: ir.Value, axis: int, editor: Editor) -> int | None:
    """Returns the first index along an axis of an output of Split, or of a Slice of this axis only."""
    if node.op_type == "Slice":
        found = spans(editor.arguments(node))
        return found[0].start if found is not None and len(found) == 1 and found[0].axis % 3 == axis else None
    if attribute_int(node, "axis", 0) % 3 != axis:
        return None
    before = [dims[axis].value for v in node.outputs[: value.index()] if (dims := editor.shapes.dims(v)) is not None]
    return None if None in before or len(before) != value.index() else sum(n for n in before if n is not None)


def _insertion_point(
    cells: Sequence[LstmCell], nodes: Iterable[ir.Node], sources: Iterable[ir.Value | None]
) -> ir.Node:
    """Returns the insertion point of the LSTM: the last node of the time steps, or an earlier reader of their results.

    Raises:
        Refusal: OTHER_USES if a source is computed after that node; ESCAPES if a reader is in another graph.
    """
    inside, last = set(nodes), cells[-1].nodes[0]
    graph = last.graph
    assert graph is not None
    positions = {node: place for place, node in enumerate(graph)}
    readers = {r for value in (*(c.h for c in cells), cells[-1].c) for r in value.consumers() if r not in inside}
    for reader in readers:
        if reader.graph is not graph:
            raise Refusal(Code.ESCAPES, f"{reader.op_type} in another graph reads a hidden state", last, reader)
    anchor = min((last, *readers), key=positions.__getitem__)
    for source in sources:
        producer = None if source is None else source.producer()
        if producer is not None and (producer in inside or positions.get(producer, -1) >= positions[anchor]):
            text = f"{anchor.op_type} reads a hidden state before {producer.op_type} computes an input"
            raise Refusal(Code.OTHER_USES, text, anchor, producer)
    return anchor


def _stack(cells: Sequence[LstmCell], editor: Editor) -> Stack | None:
    """Returns the Concat of all hidden states along a new axis."""
    steps = {cell.h: t for t, cell in enumerate(cells)}
    for reader in cells[0].h.consumers():
        concat = sole_reader(reader.outputs[0], "Concat") if is_op(reader, "Unsqueeze") else None
        if concat is None or len(concat.inputs) != len(cells):
            continue
        made = [producer_of(value, "Unsqueeze") for value in concat.inputs]
        order = [steps.get(node.inputs[0]) for node in made if node is not None and node.inputs[0] is not None]
        axes = {tuple(editor.arguments(node).axes(3) or ()) for node in made if node is not None}
        axis = attribute_int(concat, "axis", 0) % 3
        if axes == {(axis,)} and sorted(t for t in order if t is not None) == list(range(len(cells))):
            read_once = all(node is not None and use_count(node.outputs[0]) == 1 for node in made)
            if read_once and not any(node is not None and node.outputs[0].is_graph_output() for node in made):
                return Stack(concat, axis, tuple(t for t in order if t is not None))
    return None


__all__ = ["FuseLstm"]
