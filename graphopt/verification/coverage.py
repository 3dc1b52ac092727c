"""What the inputs that were tried say nothing about: outputs, inputs, branches, and nodes of ours."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from graphopt.errors import VerifyError
from graphopt.graph import inference
from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.operators.traits import CONTROL_FLOW
from graphopt.graph.view import FLOATS, is_op
from graphopt.inputs.declared import is_given, required_inputs, symbol_of
from graphopt.inputs.plan import Case
from graphopt.ops import DOMAIN
from graphopt.targets.target import Target
from graphopt.verification.honest import Budget
from graphopt.verification.pair import Side
from graphopt.verification.probes import Probe, Prober
from graphopt.verification.run import Outputs, open_session, run_case

INT64 = ir.DataType.INT64
_SWITCHES = "graphopt_unseen"
_GIVE = "give some with --inputs"
# How many dimensions with the same sizes, and inputs, a sentence names; and how many sizes.
NAMED, LISTED = 4, 16


def not_covered(side: Side, cases: Sequence[Case], wanted: Mapping[str, Outputs]) -> list[str]:
    """A sentence for each output, input and branch of BEFORE that was not put to the test."""
    return [*_outputs(side.proto, wanted), *_inputs(side.proto, cases), *_branches(side, cases)]


def sizes_of(proto: onnx.ModelProto, cases: Sequence[Case]) -> dict[str, dict[str, int]]:
    """By case the size of each symbolic dimension of the inputs."""
    found: dict[str, dict[str, int]] = {}
    for case in cases:
        sizes = found.setdefault(case.name, {})
        for value in required_inputs(proto):
            shape = np.shape(case.feeds[value.name]) if value.name in case.feeds else ()
            for axis, (dim, size) in enumerate(zip(value.type.tensor_type.shape.dim, shape)):
                if not is_given(dim):
                    sizes.setdefault(symbol_of(value, axis), size)
    return found


def sizes_tried(combinations: Sequence[Mapping[str, int]]) -> list[str]:
    """A sentence with the sizes of each symbolic dimension that were tried; nothing is known beyond these."""
    tried: dict[str, set[int]] = {}
    for sizes in combinations:
        for symbol, size in sizes.items():
            tried.setdefault(symbol, set()).add(size)
    by_values: dict[tuple[int, ...], list[str]] = {}
    for symbol, values in tried.items():
        by_values.setdefault(tuple(sorted(values)), []).append(symbol)
    said = [
        f"{', '.join(symbols[:NAMED])}{', ...' * (len(symbols) > NAMED)} {_listed(values)}"
        for values, symbols in by_values.items()
    ]
    together = f" in {len(combinations)} combinations" if len(tried) > 1 else ""
    more = f" ({'--json lists them, ' if together else ''}--dim tries others)"
    return [f"sizes tried: {'; '.join(said)}{together}{more}"] if said else []


def _listed(values: Sequence[int]) -> str:
    """Numbers in order; of many the first ones and the last."""
    if len(values) <= LISTED:
        return ", ".join(map(str, values))
    return f"{', '.join(map(str, values[: LISTED - 1]))} and {len(values) - LISTED} more to {values[-1]}"


def left_out(sizes: Mapping[str, str]) -> list[str]:
    """A sentence with the sizes that exceed the memory or work of a set."""
    if not sizes:
        return []
    named = "; ".join(f"{size} ({what})" for size, what in [*sizes.items()][:NAMED])
    more = f" and {len(sizes) - NAMED} more" if len(sizes) > NAMED else ""
    advice = "(--effort thorough allows more work, --dim other sizes)"
    return [f"sizes left out, with their estimated cost: {named}{more} {advice}"]


def numbers_tried(proto: onnx.ModelProto, cases: Sequence[Case]) -> list[str]:
    """A sentence with the lowest and the highest number that each input was given, but for truth values."""
    said = []
    for value in required_inputs(proto):
        given = (case.feeds[value.name] for case in cases if value.name in case.feeds)
        finite = (a[np.isfinite(a)] for a in given if isinstance(a, np.ndarray) and a.dtype.kind in "fiu")
        ends = [end for a in finite if a.size for end in (float(a.min()), float(a.max()))]
        if ends:
            said.append(f"{value.name} {min(ends):.4g} to {max(ends):.4g}")
    more = ", ..." * (len(said) > NAMED)
    return [f"numbers tried: {', '.join(said[:NAMED])}{more} (--range tries others)"] if said else []


def _outputs(proto: onnx.ModelProto, wanted: Mapping[str, Outputs]) -> Iterator[str]:
    for i, output in enumerate(proto.graph.output):
        arrays = [np.asarray(o[i]) for o in wanted.values() if isinstance(o[i], np.ndarray)]
        if not arrays:
            continue
        if not any(a.size for a in arrays):
            yield f"output '{output.name}' was not compared: it is empty on every input tried; {_GIVE}"
            continue
        if is_real(arrays[0]) and not any(np.isfinite(a).any() for a in arrays):
            yield f"output '{output.name}' was not compared: it has no finite number on any input tried; {_GIVE}"
            continue
        first = next(a.reshape(-1)[0] for a in arrays if a.size)
        several = max(a.size for a in arrays) > 1 or len(arrays) > 1
        if several and all(np.array_equal(a, np.full_like(a, first)) for a in arrays):
            yield f"output '{output.name}' is {first} everywhere on every input tried"


def is_real(array: npt.NDArray[Any]) -> bool:
    """Whether it may hold NaN; numpy calls bfloat16 a kind of its own."""
    return array.dtype.kind in "fc" or array.dtype == ml_dtypes.bfloat16


def _inputs(proto: onnx.ModelProto, cases: Sequence[Case]) -> Iterator[str]:
    if len(cases) < 2:
        if required_inputs(proto):
            yield "one set of inputs was tried"
        return
    for value in required_inputs(proto):
        given = [case.feeds[value.name] for case in cases if value.name in case.feeds]
        if given and all(_same(given[0], other) for other in given[1:]):
            yield f"input '{value.name}' was the same in every case"


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.shape == b.shape and bool(np.array_equal(a, b))
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return a is b


def _branches(side: Side, cases: Sequence[Case]) -> Iterator[str]:
    """Branches of an If that no case took, and Loops whose body never ran, in branches and bodies too."""
    if not any(node.op_type in CONTROL_FLOW for node in side.whole.graph):
        return
    watch = _Watch(side.whole)
    probes = watch.graph(watch.model.graph)
    if not probes:
        return
    watch.editor.set_outputs([probe.value for probe in probes])
    try:
        session = open_session(watch.model, library=False)
    except VerifyError:
        return
    ran = [outputs for case in cases if not isinstance(outputs := run_case(session, case), str)]
    for i, probe in enumerate(probes):
        if not any(outputs[i] for outputs in ran):
            yield probe.about


class _Watch(Prober):
    """Counts how often each branch of an If was taken, and how often each body of a Loop ran."""

    outer_first = True

    def at(self, b: Builder, node: ir.Node) -> list[Probe]:
        taken = node.inputs[0] if is_op(node, "If") else None
        if taken is None:
            return []
        counts = {"then": b.cast(taken, INT64), "else": b.cast(b.op("Not", taken), INT64)}
        return [
            Probe(
                f"the {branch} branch of If '{_name(node)}' was never taken",
                "ReduceSum",
                # A condition may be a scalar or hold one element.
                b.op("ReduceSum", count, keepdims=0, _dtype=INT64),
            )
            for branch, count in counts.items()
        ]

    def inside(self, node: ir.Node, body: ir.Graph) -> list[Probe]:
        if node.op_type != "Loop":
            return []
        ran = self.constant(node, body, 1, INT64)
        return [Probe(f"the body of Loop '{_name(node)}' never ran", "ReduceSum", ran)]


def _name(node: ir.Node) -> str:
    return node.name or next((str(o.name) for o in node.outputs if o.name), "")


# -- nodes of ours -----------------------------------------------------------------------------------------------------


def unseen(
    side: Side, cases: Sequence[Case], moves: Callable[[Case, Outputs], bool], budget: Budget, a_run: float
) -> list[str]:
    """A sentence for each node of ours in the main graph that could give zeros without moving any output.

    Nothing is said of nodes that the budget does not reach, nor of any where it would not reach half of them.

    Args:
        side: AFTER.
        cases: that both models take.
        moves: whether outputs of a case are farther from BEFORE's than rounding explains.
        budget: of what this may take.
        a_run: seconds of all processors that a quick run of AFTER takes.
    """
    ours = sum(node.domain == DOMAIN for node in side.model.graph)
    if not ours or budget.spent + ours / 2 * a_run >= budget.seconds:
        return []
    began = time.process_time()
    model, watched = _with_switches(side.model)
    if not watched or not cases:
        return []
    try:
        session = open_session(model, library=False)
    except VerifyError:
        return []
    budget.spent += time.process_time() - began
    said: list[str] = []
    for k, name in enumerate(watched):
        keep = np.arange(len(watched)) != k
        for case in cases:
            if budget.is_spent:
                return said
            began = time.process_time()
            outputs = run_case(session, Case(case.name, {**case.feeds, _SWITCHES: keep}))
            budget.spent += time.process_time() - began
            if isinstance(outputs, str) or moves(case, outputs):
                break
        else:
            said.append(f"{name} could give zeros: no input tried shows what it computes")
    return said


def _with_switches(model: ir.Model) -> tuple[ir.Model, list[str]]:
    """A copy with Where(switch, result, 0) behind each node of ours, and the nodes of the switches."""
    editor = Editor(inference.clone(model), Target("cpu"))
    ours = [n for n in editor.model.graph if n.domain == DOMAIN and n.outputs[0].dtype in FLOATS]
    switches = editor.add_input(_SWITCHES, ir.DataType.BOOL, ir.Shape([len(ours)]))
    names = []
    for i, node in enumerate(ours):
        b, result = Builder(editor, node), node.outputs[0]
        names.append(f"{node.op_type} '{node.name or result.name}'")
        assert result.dtype is not None
        keep = b.op("Gather", switches, b.number(i, INT64))
        kept = b.op("Where", keep, result, b.number(0, result.dtype))
        editor.interpose(result, b.nodes, kept)
    return editor.model, names
