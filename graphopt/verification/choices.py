"""Compares discrete intermediate values: the indices of TopK, ArgMax and NonMaxSuppression, and quantized values.

Scores that differ by less than their rounding error may be ordered differently in two correct runs. The chosen indices
then differ, and values that are gathered by them differ by whole rows. Therefore a copy of the original model (BEFORE)
takes the indices of the rewritten model (AFTER) as inputs, and two questions are answered:

- Could BEFORE have chosen these indices? They must be in order and must not leave out a higher score, up to the
  measured rounding error of the scores (`mistake`).
- With these indices, does BEFORE compute the outputs of AFTER: scores, gathered rows, indices of a second choice,
  labels? This comparison needs no allowance for choices.

In a quantized model, rounding may change an early value by one quantization level, which changes the outputs as much as
a fault may. But if a quantized value depends only on quantized values that are equal in both models, rounding changes
it by few levels (ROUNDING_LEVELS): the input of its quantization differs by a few units in the last place, and a level
is thousands of units wide (`level_difference`). If outputs look different, a copy of BEFORE takes AFTER's quantized
values as inputs. The copy must compute nearly the same levels, and the outputs of AFTER (`levels_agree`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from graphopt.errors import VerifyError
from graphopt.graph import inference
from graphopt.graph.build import Builder
from graphopt.graph.traversal import bodies
from graphopt.graph.view import GraphView, attribute_int, is_float, is_op
from graphopt.inputs.plan import Case
from graphopt.metadata import Numerics
from graphopt.runtime.discovery import CPU
from graphopt.targets.target import Target
from graphopt.verification.compare import FLOOR, LIMITS, deviations
from graphopt.verification.modes import ComparedRun
from graphopt.verification.pair import ComparedModel, Pair
from graphopt.verification.rounding_error import RoundingErrors
from graphopt.verification.run import (
    BODIES,
    MAX_WEIGHTS_READ,
    Mode,
    Outputs,
    open_session,
    run_case,
    run_isolated,
    weights_in_files,
)
from graphopt.verification.variants import editor_of_copy, with_float16_rounding, with_outputs

Array = npt.NDArray[Any]
# Operator -> position of its output of indices, and positions of its inputs of scores or boxes.
CHOOSE = {"ArgMax": (0, (0,)), "ArgMin": (0, (0,)), "NonMaxSuppression": (0, (0, 1)), "TopK": (1, (0,))}
OLDEST_OPSET = 11  # GatherElements, and TopK with `sorted`.
_PREFIX = "graphopt_choice"


@dataclass(frozen=True, eq=False)
class Choice:
    """A node of BEFORE that chooses, and its counterpart in AFTER.

    Attributes:
        node: the node of BEFORE.
        index: the position of AFTER's node in its graph.
        given: the input of the copy that holds AFTER's indices.
        reads: outputs of the copy, one for each input of the node: scores, boxes, counts and limits; "" if absent.
    """

    node: ir.Node
    index: int
    given: str
    reads: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"{self.node.op_type} '{self.node.name or next(y.name for y in self.node.outputs if y.name)}'"


def choices_of(before: ir.Model, after: ir.Model) -> list[Choice]:
    """Finds the nodes of BEFORE's main graph that select indices by floats, and their counterparts in AFTER.

    A counterpart produces a value of the same name. Without such names, nodes of one operator correspond by order, if
    both models have equally many. The list is empty if a node has no counterpart.
    """
    if before.opset_imports.get("", 0) < OLDEST_OPSET:
        return []
    nodes = list(after.graph)
    by_name = {y.name: i for i, node in enumerate(nodes) for y in node.outputs if y.name}
    found: list[Choice] = []
    for node in before.graph:
        if not _chooses(node):
            continue
        first = CHOOSE[node.op_type][0]
        values = (*node.outputs[first:], *node.outputs[:first])
        index = next((by_name[y.name] for y in values if y.name and y.name in by_name), None)
        if index is None or nodes[index].op_type not in CHOOSE:
            alike = [k for k, n in enumerate(nodes) if n.op_type == node.op_type]
            own = [n for n in before.graph if n.op_type == node.op_type]
            index = alike[own.index(node)] if len(alike) == len(own) else None
        if index is None:
            return []
        here = f"{_PREFIX}_{len(found)}"
        reads = tuple(f"{here}_input{k}" if value is not None else "" for k, value in enumerate(node.inputs))
        found.append(Choice(node, index, f"{here}_indices", reads))
    return found


def _chooses(node: ir.Node) -> bool:
    return is_op(node, *CHOOSE) and all(is_float(node.inputs[i]) for i in CHOOSE[node.op_type][1])


def with_choices_as_inputs(before: ir.Model, choices: Sequence[Choice]) -> ir.Model:
    """Returns a copy of BEFORE that takes the indices of choices as inputs.

    The copy also outputs the inputs of the nodes that choose.
    """
    editor = editor_of_copy(before)
    made = {_output_names(node): node for node in editor.model.graph}
    for choice in choices:
        node = made[_output_names(choice.node)]
        b = Builder(editor, node)
        given = editor.add_input(choice.given, ir.DataType.INT64)
        for value, name in zip(node.inputs, choice.reads):
            if value is not None:
                read = b.op("Identity", value)
                read.name = name
                editor.add_graph_output(editor.model.graph, read)
        index = CHOOSE[node.op_type][0]
        results: dict[ir.Value, ir.Value] = {}
        if len(node.outputs) > index and node.outputs[index].name:
            results[node.outputs[index]] = b.op("Identity", given)
        if node.op_type == "TopK" and node.outputs[0].name:
            axis = attribute_int(node, "axis", -1)
            results[node.outputs[0]] = b.op("GatherElements", node.inputs[0], given, axis=axis)
        editor.replace([node], b.nodes, results, anchor=node)
    return editor.model


def with_unused_choices(after: ir.Model, choices: Sequence[Choice]) -> ir.Model:
    """Returns a copy of AFTER with the inputs that `with_choices_as_inputs` adds to BEFORE. No node reads them."""
    editor = editor_of_copy(after)
    for choice in choices:
        editor.add_input(choice.given, ir.DataType.INT64)
    return editor.model


def with_choices_as_outputs(after: ir.Model, choices: Sequence[Choice]) -> ir.Model:
    """Returns a copy of AFTER that also outputs its indices, one output for each choice."""
    editor = editor_of_copy(after)
    graph = editor.model.graph
    nodes = list(graph)
    for choice in choices:
        node = nodes[choice.index]
        index = CHOOSE[node.op_type][0]
        while len(node.outputs) <= index:
            editor.add_output(node, ir.DataType.INT64).name = ""
        indices = node.outputs[index]
        indices.name = indices.name or editor.unique_name(choice.given)
        # The value may be an output of the graph already.
        b = Builder(editor, node)
        editor.add_graph_output(graph, b.op("Identity", indices, _dtype=ir.DataType.INT64))
        editor.add_after(indices, b.nodes)
    return editor.model


def dependent_outputs(model: ir.Model, choice: Choice) -> set[str]:
    """Finds the outputs of the copy of BEFORE that depend on the indices of a choice."""
    dependent = {value for value in model.graph.inputs if value.name == choice.given}
    for node in model.graph:
        inner = (n for body in bodies(node) for n in ir.traversal.RecursiveGraphIterator(body))
        if any(value in dependent for n in (node, *inner) for value in n.inputs):
            dependent.update(node.outputs)
    return {str(value.name) for value in model.graph.outputs if value in dependent}


def _output_names(node: ir.Node) -> tuple[str | None, ...]:
    return tuple(value.name for value in node.outputs)


# -- whether indices are right -----------------------------------------------------------------------------------------


def mistake(
    choice: Choice, indices: Array, read: Mapping[str, Array], draws: Sequence[Mapping[str, Array]], slack: float = 0.0
) -> str:
    """Describes indices that BEFORE could not have chosen; "" if it could have chosen all of them.

    Args:
        choice: the node.
        indices: the indices that AFTER chose.
        read: output of the copy of BEFORE -> the value of the node's input, computed with AFTER's choices.
        draws: `read` of runs with random rounding; empty if rounding could not be measured.
        slack: an additional tolerance: of scores relative to their RMS, and of the overlaps of boxes.
    """
    inputs = [read.get(name) for name in choice.reads]
    drawn = [[draw.get(name) for name in choice.reads] for draw in draws]
    if choice.node.op_type == "NonMaxSuppression":
        found = _suppression_mistake(choice.node, indices, inputs, drawn, slack)
    else:
        found = _order_mistake(choice.node, indices, inputs, drawn, slack)
    return f"{choice.label} {found}" if found else ""


def _order_mistake(
    node: ir.Node, indices: Array, inputs: Sequence[Array | None], drawn: Sequence[Sequence[Array | None]], slack: float
) -> str:
    """Checks the indices of a TopK, ArgMax or ArgMin, row by row."""
    scores = inputs[0]
    assert scores is not None
    is_top_k = node.op_type == "TopK"
    axis = attribute_int(node, "axis", -1 if is_top_k else 0) % max(scores.ndim, 1)
    sign = -1.0 if node.op_type == "ArgMin" or (is_top_k and not attribute_int(node, "largest", 1)) else 1.0
    if not is_top_k and not attribute_int(node, "keepdims", 1):
        indices = np.expand_dims(indices, axis)
    count = int(np.asarray(inputs[1]).item()) if is_top_k else 1
    if indices.shape != (*scores.shape[:axis], count, *scores.shape[axis + 1 :]):
        return f"chooses indices of shape {indices.shape} among {scores.shape}"
    if indices.size == 0:
        return ""
    rows, chosen, *moved = (
        np.moveaxis(x, axis, -1).reshape(-1, x.shape[axis])
        for x in (scores.astype(np.float64), indices, *(d[0].astype(np.float64) for d in drawn if d[0] is not None))
    )
    if chosen.min() < 0 or chosen.max() >= rows.shape[1]:
        return f"chooses an index beyond {rows.shape[1]} entries"
    noise = _noise(rows, moved, slack)
    return _first_mistake(sign * rows, chosen, noise, in_order=is_top_k and bool(attribute_int(node, "sorted", 1)))


def _first_mistake(rows: Array, chosen: Array, noise: Array, *, in_order: bool) -> str:
    """Describes the first row with wrong indices; the largest scores should be chosen.

    Args:
        rows: scores, [rows, scores]; rows with NaN are ignored.
        chosen: indices, [rows, chosen].
        noise: the rounding error of each score.
        in_order: whether the indices must be sorted by falling scores.
    """
    if not rows.size or not chosen.size:
        return ""
    best, left = np.take_along_axis(rows + noise, chosen, 1), rows - noise
    least = np.take_along_axis(left, chosen, 1)
    np.put_along_axis(left, chosen, -np.inf, 1)
    with np.errstate(invalid="ignore"):
        twice = (np.diff(np.sort(chosen, axis=1), axis=1) == 0).any(axis=1)
        too_early = best[:, :-1] < np.maximum.accumulate(least[:, ::-1], axis=1)[:, ::-1][:, 1:]
        too_early &= in_order
        wrong = twice | too_early.any(axis=1) | (best.min(axis=1) < left.max(axis=1))
    wrong &= ~np.isnan(rows).any(axis=1)
    if not wrong.any():
        return ""
    row = int(np.argmax(wrong))
    if twice[row]:
        return "chooses an entry twice"
    named = [f"entry {i} ({abs(rows[row, i]):.4g})" for i in chosen[row]]
    if too_early[row].any():
        index = int(np.argmax(too_early[row]))
        return f"places {named[index]} before {named[index + 1 + int(np.argmax(least[row, index + 1 :]))]}"
    other = int(np.argmax(left[row]))
    return f"chooses {named[int(np.argmin(best[row]))]} and leaves out entry {other} ({abs(rows[row, other]):.4g})"


def _noise(rows: Array, draws: Sequence[Array], slack: float) -> Array:
    """Estimates the rounding error of a score as the largest change of this score and its neighbours in sorted order.

    Args:
        rows: [rows, scores].
        draws: the same scores from runs with random rounding.
        slack: an additional tolerance, relative to the RMS of the scores.
    """
    finite = np.where(np.isfinite(rows), rows, 0.0)
    least = FLOOR * np.abs(finite) + slack * float(np.sqrt(np.mean(np.square(finite)))) if rows.size else finite
    if not draws or not rows.size:
        return np.asarray(least)
    with np.errstate(invalid="ignore"):
        moved = np.nan_to_num(np.max([np.abs(draw - rows) for draw in draws], axis=0), nan=0.0, posinf=0.0)
    order = np.argsort(rows, axis=1, kind="stable")
    smooth = np.take_along_axis(moved, order, 1)
    for step in (1, 2, 4, 8, 1):  # 16 neighbours on either side, because a draw may hardly change a score by chance
        wide = np.pad(smooth, ((0, 0), (step, step)), mode="edge")
        smooth = np.max([wide[:, : -2 * step], smooth, wide[:, 2 * step :]], axis=0)
    result = np.empty_like(moved)
    np.put_along_axis(result, order, smooth, 1)
    return np.asarray(result + least)


def _suppression_mistake(
    node: ir.Node, indices: Array, inputs: Sequence[Array | None], drawn: Sequence[Sequence[Array | None]], slack: float
) -> str:
    """Checks the indices of a NonMaxSuppression, [chosen, (batch, class, box)]."""
    boxes, scores = inputs[0], inputs[1]
    assert boxes is not None and scores is not None
    most, overlap, lowest = (
        float(np.asarray(x).item()) if x is not None else default
        for x, default in zip([*inputs[2:], None, None, None], (0.0, 0.0, -np.inf))
    )
    if indices.ndim != 2 or indices.shape[1] != 3:
        return f"chooses indices of shape {indices.shape}"
    bounds = (*scores.shape[:2], boxes.shape[1])
    if len(indices) and ((indices < 0).any() or (indices >= bounds).any()):
        return "chooses a box beyond the last one"
    groups = indices[:, 0] * scores.shape[1] + indices[:, 1]
    if (np.diff(groups) < 0).any():
        return "does not order its indices by batch and class"
    centred = bool(attribute_int(node, "center_point_box", 0))
    for batch, kind in np.ndindex(*scores.shape[:2]):
        row = scores[batch, kind].astype(np.float64)
        picked = indices[groups == batch * scores.shape[1] + kind, 2]
        moved_rows = [d[1][batch, kind].astype(np.float64)[None] for d in drawn if d[1] is not None]
        noise = _noise(row[None], moved_rows, slack)[0]
        if not len(picked) and not (row - noise > lowest).any():
            continue
        if len(np.unique(picked)) != len(picked):
            return "chooses a box twice"
        if len(picked) > most:
            return f"chooses {len(picked)} boxes of a class, and {most:g} are allowed"
        if (row[picked] + noise[picked] <= lowest).any():
            return f"chooses a box with a score below {lowest:g}"
        in_place = np.arange(len(picked))[None]
        if found := _first_mistake(row[picked][None], in_place, noise[picked][None], in_order=True):
            return found
        shared = _overlaps(boxes[batch], picked, centred)
        moved = [_overlaps(d[0][batch], picked, centred) for d in drawn if d[0] is not None]
        error = np.max([np.abs(m - shared) for m in moved], axis=0, initial=0.0) + FLOOR + slack
        if (np.triu((shared - error)[:, picked], 1) > overlap).any():
            return f"chooses two boxes that overlap by more than {overlap:g}"
        stronger = (row + noise)[picked][:, None] >= (row - noise)[None]
        covered = ((shared + error > overlap) & stronger).any(axis=0)
        full = len(picked) >= most
        left = (row - noise > lowest) & ~covered & ~(full & stronger.all(axis=0))
        left[picked] = False
        if left.any():
            box = int(np.argmax(np.where(left, row, -np.inf)))
            return f"leaves out box {box} ({row[box]:.4g}) of class {kind}, which no chosen box overlaps"
    return ""


def _overlaps(boxes: Array, picked: Array, centred: bool) -> Array:
    """Computes the intersection over union of picked boxes and all boxes, [picked, boxes]."""
    wide = boxes.astype(np.float64)
    if centred:
        wide = np.concatenate([wide[:, :2] - wide[:, 2:] / 2, wide[:, :2] + wide[:, 2:] / 2], axis=1)
    low, high = np.minimum(wide[:, :2], wide[:, 2:]), np.maximum(wide[:, :2], wide[:, 2:])
    area = np.prod(high - low, axis=1)
    sides = np.minimum(high[picked, None], high[None]) - np.maximum(low[picked, None], low[None])
    inside = np.prod(np.maximum(sides, 0.0), axis=2)
    union = area[picked, None] + area[None] - inside
    return np.asarray(np.where(union > 0, inside / np.where(union > 0, union, 1.0), 0.0))


# -- runs that follow AFTER --------------------------------------------------------------------------------------------


@dataclass
class RunGroup:
    """Runs of AFTER that are compared with the same copy of BEFORE.

    Attributes:
        pair: the models.
        errors: the rounding errors of this copy.
        runs: the runs of AFTER.
        choices: the choices that the copy takes from AFTER as inputs; empty if BEFORE makes its own choices.
    """

    pair: Pair
    errors: RoundingErrors
    runs: list[ComparedRun] = field(default_factory=list)
    choices: Sequence[Choice] = ()

    def mistake(self, run: ComparedRun, numerics: Numerics) -> tuple[str, set[str]]:
        """Describes a choice of AFTER that BEFORE could not have made; "" if there is none.

        Also returns the outputs that depend on this choice.
        """
        names, approximated = self.pair.names, self.pair.rewritten.approximated
        read = {n: np.asarray(o) for n, o in zip(names, self.errors.expected[run.case.name]) if n in self.errors.kept}
        draws = self.errors.values_of(numerics, run.case.name)
        # Draws do not contain the error of approximating kernels.
        slack = LIMITS[Numerics.APPROXIMATE] if approximated else 0.0
        slack = slack if draws else max(slack, LIMITS[numerics])
        for choice in self.choices:
            why = mistake(choice, np.asarray(run.case.feeds[choice.given]), read, draws, slack)
            if why:
                return why, dependent_outputs(self.pair.before.model, choice)
        return "", set()


def grouped(
    pair: Pair, errors: RoundingErrors, runs: Sequence[ComparedRun], compared: Collection[str]
) -> list[RunGroup]:
    """Groups runs by the copy of BEFORE that they are compared with.

    The first group is compared with BEFORE's own choices; it is left out if it has no runs and there are other groups.
    In each further group BEFORE takes the choices of AFTER. Runs of one case with different choices are in different
    groups.
    """
    plain = RunGroup(pair, errors)
    doubtful: set[ComparedRun] = set()
    if _makes_choices(pair) and any(pair.rewritten.classes[name] != Numerics.EXACT for name in compared):
        indices = [pair.names.index(name) for name in compared]
        doubtful = {run for run in runs if run.is_doubtful(indices)}
    following = _GivenChoices.of(pair) if doubtful else None
    groups: list[RunGroup] = []
    made: dict[str, list[bytes]] = {}
    for run in runs:
        followed = following.run(run) if following is not None and run in doubtful else None
        if following is None or followed is None:
            plain.runs.append(run)
            continue
        new, expected = followed
        chosen = b"".join(np.asarray(new.case.feeds[c.given]).tobytes() for c in following.choices)
        others = made.setdefault(run.case.name, [])
        if chosen not in others:
            others.append(chosen)
        turn = others.index(chosen)
        if turn == len(groups):
            groups.append(following.group(errors))
        groups[turn].errors.expected[run.case.name] = expected
        groups[turn].runs.append(new)
    return [plain, *groups] if plain.runs or not groups else groups


def _makes_choices(pair: Pair) -> bool:
    """Returns whether BEFORE runs on the CPU and has nodes that choose."""
    model = pair.before.model
    functions = (node for function in model.functions.values() for node in function)
    return pair.reference == BODIES and any(node.op_type in CHOOSE for node in (*model.graph, *functions))


class _GivenChoices:
    """The copies of both models for comparisons with AFTER's choices, and their sessions."""

    def __init__(self, pair: Pair, choices: Sequence[Choice]) -> None:
        self.choices = choices
        self.shown = with_choices_as_outputs(pair.after.model, choices)
        self.before = ComparedModel.of(with_choices_as_inputs(pair.before.whole, choices))
        self.outputs = len(pair.names)
        after = ComparedModel.of(with_unused_choices(pair.after.model, choices))
        self.pair = replace(pair, before=self.before, after=after)
        self.session = open_session(self.before.source)
        self.sessions: dict[Mode, Any] = {}

    @staticmethod
    def of(pair: Pair) -> _GivenChoices | None:
        """Creates the copies of both models.

        Returns None if no node of BEFORE chooses by scores, if the models' choices do not correspond, or if the models
        are too large.
        """
        if max(weights_in_files(pair.before.model), weights_in_files(pair.after.model)) > MAX_WEIGHTS_READ:
            return None
        try:
            choices = choices_of(pair.before.whole, pair.after.model)
            return _GivenChoices(pair, choices) if choices else None
        except VerifyError:
            return None

    def group(self, errors: RoundingErrors) -> RunGroup:
        kept = frozenset(name for choice in self.choices for name in choice.reads if name)
        own = RoundingErrors(self.before, {}, errors.rewritten, errors.half_io, kept=kept)
        return RunGroup(self.pair, own, choices=self.choices)

    def run(self, run: ComparedRun) -> tuple[ComparedRun, Outputs] | None:
        """Compares a run with BEFORE, which takes the run's choices as inputs; also returns BEFORE's outputs.

        Returns None if a model does not run.
        """
        got = self._after(run)
        if isinstance(got, str):
            return None
        shown = got[self.outputs :]
        given = {choice.given: np.asarray(indices, np.int64) for choice, indices in zip(self.choices, shown)}
        case = Case(run.case.name, {**run.case.feeds, **given})
        expected = run_case(self.session, case)
        if isinstance(expected, str):
            return None
        return ComparedRun(run.mode, case, deviations(expected[: self.outputs], got[: self.outputs])), expected

    def _after(self, run: ComparedRun) -> Outputs | str:
        """Returns AFTER's outputs, followed by its choices."""
        mode, half_io = run.mode, self.pair.half_io
        if mode.optimized and mode.provider == CPU:
            shown = ComparedModel.of(self.shown).source
            return run_isolated(shown, [run.case], mode, half_io=half_io)[run.case.name]
        if mode not in self.sessions:
            model = with_float16_rounding(self.shown) if mode.in_half else inference.clone(self.shown)
            self.sessions[mode] = open_session(model, mode)
        return run_case(self.sessions[mode], run.case, half_io=half_io)


# -- quantized values --------------------------------------------------------------------------------------------------

# Operator -> largest change of its result by rounding, in levels. DynamicQuantizeLinear also rounds its zero point.
ROUNDING_LEVELS = {"QuantizeLinear": 1, "DynamicQuantizeLinear": 2}
# Rounding changes at most this share of a value's elements, each by one level: most sums have an error of a few units
# in the last place, and a level is thousands of units wide.
LEVELS_MOVED = 1e-3


def has_levels(model: ir.Model) -> bool:
    """Returns whether a node of the main graph quantizes."""
    return any(node.op_type in ROUNDING_LEVELS for node in model.graph)


def level_difference(pair: Pair, mode: Mode, case: Case) -> str:
    """Describes the first quantized value with a larger difference than rounding explains; returns "" if none.

    Args:
        pair: both models.
        mode: the mode of AFTER.
        case: the inputs.
    """
    before, shared = _shared_levels(pair)
    if not shared:
        return ""
    made = {value.name for node in pair.after.model.graph for value in node.outputs}
    try:
        want = values_of(pair.before, pair.reference, shared, case)
        got = values_of(pair.after, mode, shared, case)
    except VerifyError:
        return ""
    moved = {name for name in shared if not np.array_equal(want[name], got[name])}
    # Quantized values that differ or cannot be compared, and all values that depend on them.
    unsure: set[ir.Value] = set()
    for node in pair.before.model.graph:
        result = str(node.outputs[0].name) if node.outputs else ""
        if result in before and result in made and result not in moved:
            continue
        inner = (n for body in bodies(node) for n in ir.traversal.RecursiveGraphIterator(body))
        doubtful = any(value in unsure for n in (node, *inner) for value in n.inputs)
        if result in moved and not doubtful:
            off = _levels(want[result], got[result])
            if off > ROUNDING_LEVELS[node.op_type]:
                return f"quantized value '{result}' is up to {off} levels off, while all before it are equal"
        if doubtful or node.op_type in ROUNDING_LEVELS:
            unsure.update(node.outputs)
    return ""


def levels_agree(pair: Pair, run: ComparedRun, compared: Collection[str]) -> bool:
    """Returns whether BEFORE, given AFTER's quantized values, computes AFTER's quantized values and outputs.

    A share of LEVELS_MOVED of a value's elements may differ by one level.

    Args:
        pair: both models.
        run: a run of AFTER.
        compared: names of outputs.
    """
    _, shared = _shared_levels(pair)
    if not shared or isinstance(run.found, str):
        return False
    try:
        given = values_of(pair.after, run.mode, shared, run.case)
        feeds = {f"{_PREFIX}_{i}": given[name] for i, name in enumerate(shared)}
        types = {name: ir.DataType.from_numpy(given[name].dtype) for name in shared}
        session = open_session(with_levels_as_inputs(pair.before.model, types))
        got = run_case(session, Case(run.case.name, {**run.case.feeds, **feeds}))
        after = run_case(open_session(pair.after.source, run.mode), run.case, half_io=pair.half_io)
    except VerifyError:
        return False
    if isinstance(got, str) or isinstance(after, str):
        return False
    outputs, levels = got[: len(pair.names)], got[len(pair.names) :]
    for name, want in zip(shared, levels, strict=True):
        moved = np.count_nonzero(want != given[name]) if want.shape == given[name].shape else want.size
        if _levels(want, given[name]) > 1 or moved > max(1, LEVELS_MOVED * want.size):
            return False
    found = deviations(outputs, after)
    if isinstance(found, str):
        return False
    limits = {name: LIMITS[pair.rewritten.classes[name]] for name in compared}
    return all(not d.structure and d.relative <= limits.get(name, math.inf) for name, d in zip(pair.names, found))


def with_levels_as_inputs(before: ir.Model, types: Mapping[str, ir.DataType]) -> ir.Model:
    """Returns a copy of BEFORE that reads quantized values from new inputs, and outputs its own quantized values.

    Args:
        before: the model.
        types: name of a quantized value -> its type.
    """
    editor = editor_of_copy(before)
    made = {value.name: value for node in editor.model.graph for value in node.outputs}
    for i, (name, dtype) in enumerate(types.items()):
        value = made[name]
        producer = value.producer()
        assert producer is not None
        b = Builder(editor, producer)
        own = b.op("Identity", value, _dtype=dtype)
        given = b.op("Identity", editor.add_input(f"{_PREFIX}_{i}", dtype), _dtype=dtype)
        editor.interpose(value, b.nodes, given)
        editor.add_graph_output(editor.model.graph, own)
    return editor.model


def _shared_levels(pair: Pair) -> tuple[dict[str, tuple[Any, ...]], list[str]]:
    """Returns BEFORE's quantized values, and the names of the quantized values in both models.

    No name is returned if the models quantize a value differently, because its levels cannot be compared.
    """
    before, after = (_quantizers(model.model) for model in (pair.before, pair.after))
    made = {value.name for node in pair.after.model.graph for value in node.outputs}
    shared = [name for name in before if name in made]
    return before, shared if all(after.get(name, before[name]) == before[name] for name in shared) else []


def _quantizers(model: ir.Model) -> dict[str, tuple[Any, ...]]:
    """Returns the quantization of each quantized value; values with a computed scale or zero point are left out."""
    view = GraphView(model, Target("cpu"))
    found: dict[str, tuple[Any, ...]] = {}
    for node in model.graph:
        if node.op_type in ROUNDING_LEVELS:
            parameters = [view.constant(value) for value in node.inputs[1:] if value is not None]
            known = [(n.shape, n.dtype, n.tobytes()) for n in parameters if n is not None]
            if len(known) == len(parameters):
                found[str(node.outputs[0].name)] = (node.op_type, attribute_int(node, "axis", 1), *known)
    return found


def values_of(model: ComparedModel, mode: Mode, names: Sequence[str], case: Case) -> Mapping[str, Any]:
    """Runs a model; returns values of its main graph by name.

    Raises:
        VerifyError: the runtime refuses the model with these outputs, or the inputs.
    """
    outputs = run_case(open_session(with_outputs(model.model, names), replace(mode, optimized=False)), case)
    if isinstance(outputs, str):
        raise VerifyError(outputs)
    return dict(zip(names, outputs))


def _levels(want: Array, got: Array) -> int:
    """Returns the largest difference of two integer tensors; 0 if they cannot be compared."""
    if want.dtype.kind not in "iu" or want.dtype != got.dtype or want.shape != got.shape:
        return 0
    return int(np.abs(want.astype(np.int64) - got.astype(np.int64)).max(initial=0))
