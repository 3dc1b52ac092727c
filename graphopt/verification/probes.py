"""Copies of a model with additional outputs or inputs: they show value ranges, unused branches and untested nodes.

A probe is a scalar that is computed from the values of a node. A probe inside a branch becomes an additional output of
the If, which is 0 if the other branch runs. A probe inside the body of a Loop or Scan becomes an additional scan
output, which is reduced to a scalar.

`--precision fp16` and `verify` measure ranges: the smallest and largest element of every float32 value. The copy
outputs only scalars and shapes, so its runs take no more memory than runs of the model.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from graphopt.errors import GraphoptError, VerifyError
from graphopt.graph import traversal, writing
from graphopt.graph.build import Builder
from graphopt.graph.cost import installed_memory
from graphopt.graph.messages import inlined
from graphopt.graph.operators.traits import CONTROL_FLOW
from graphopt.graph.traversal import bodies
from graphopt.graph.view import FLOATS, is_op
from graphopt.inputs.given import given_cases
from graphopt.inputs.plan import FIRST_CASES, Case, InputOptions, map_arrays, plan
from graphopt.ops import DOMAIN
from graphopt.precision.float16.constants import LARGEST
from graphopt.precision.float16.ranges import ActivationRanges
from graphopt.report.multiply_adds import operands
from graphopt.runtime.discovery import import_onnxruntime
from graphopt.verification.pair import ComparedModel
from graphopt.verification.rounding_error import Budget
from graphopt.verification.run import MAX_WEIGHTS_READ, Outputs, open_session, run_case, weights_in_files
from graphopt.verification.variants import editor_of_copy, widened

FLOAT, INT64 = ir.DataType.FLOAT, ir.DataType.INT64


@dataclass(frozen=True)
class Probe:
    """A scalar of a graph.

    Attributes:
        about: the name of the measured value, or the sentence to report if the scalar is 0.
        op: ReduceMin, ReduceMax or ReduceSum, which combines the scalars of all iterations of a Loop.
        value: the scalar.
    """

    about: Any
    op: str
    value: ir.Value


class Prober:
    """Adds probes to a copy of a model.

    Attributes:
        outer_first: whether the probes of a node come before the probes of its bodies.
    """

    outer_first = False

    def __init__(self, model: ir.Model) -> None:
        self.editor = editor_of_copy(model)
        self.model = self.editor.model

    def at(self, b: Builder, node: ir.Node) -> list[Probe]:
        """Computes the probes of a node."""
        raise NotImplementedError

    def inside(self, node: ir.Node, body: ir.Graph) -> list[Probe]:
        """Computes additional probes of a whole body; `graph` adds the probes of the nodes in the body."""
        return []

    def graph(self, graph: ir.Graph) -> list[Probe]:
        """Adds the probes of a graph and of the bodies in it, and returns them in order."""
        found: list[Probe] = []
        for node in list(graph):
            b = Builder(self.editor, node)
            both = self.at(b, node), self._of_bodies(b, node)
            found += [*both[0], *both[1]] if self.outer_first else [*both[1], *both[0]]
            if b.nodes:
                self.editor.add_after(node.outputs[0], b.nodes)
        return found

    def constant(self, node: ir.Node, body: ir.Graph, number: float, dtype: ir.DataType) -> ir.Value:
        """Computes a constant scalar in a body of a node."""
        b = Builder(self.editor, node)
        value = b.op("Identity", b.number(number, dtype), _dtype=dtype)
        self.editor.append_nodes(body, b.nodes)
        return value

    def _of_bodies(self, b: Builder, node: ir.Node) -> list[Probe]:
        """Passes the probes of a node's bodies on to the graph that contains the node, and returns them."""
        if node.domain != "" or node.op_type not in CONTROL_FLOW:
            return []
        branches = bodies(node)
        inside = [(body, probe) for body in branches for probe in (*self.graph(body), *self.inside(node, body))]
        # A node may omit its last outputs. The body of a Loop has one more output: the condition, the first one.
        own = len(branches[0].outputs) - (node.op_type == "Loop")
        for value in node.outputs if inside else ():
            value.name = value.name or self.editor.unique_name(f"{b.label}_unread")
        while inside and len(node.outputs) < own:
            self._add_output(b, node, FLOAT).type = None
        for name in ("scan_output_axes", "scan_output_directions"):
            if (given := node.attributes.get(name)) is not None:
                self.editor.set_attribute(node, name, [*given.as_ints(), *[0] * len(inside)])
        found = []
        for branch, probe in inside:
            dtype = probe.value.dtype
            assert dtype is not None
            for body in branches:
                value = probe.value if body is branch else self.constant(node, body, 0, dtype)
                self.editor.add_graph_output(body, value)
            outer = self._add_output(b, node, dtype)
            if node.op_type != "If":  # one element for each iteration
                outer = b.op(probe.op, outer, keepdims=0, _dtype=dtype)
            found.append(replace(probe, value=outer))
        return found

    def _add_output(self, b: Builder, node: ir.Node, dtype: ir.DataType) -> ir.Value:
        value = self.editor.add_output(node, dtype)
        value.name = self.editor.unique_name(f"{b.label}_out{len(node.outputs) - 1}")
        return value


# -- ranges ------------------------------------------------------------------------------------------------------------

# The maximum number of generated cases, and the CPU seconds in runs after which no further case starts.
CASES, SECONDS = 3, 10.0
# Limit of one run in seconds. A longer run is terminated, and no further run begins.
MOST_SECONDS = 60.0
# Maximum number of elements of all inputs of a case; ranges depend little on sizes. The larger one is used if the
# model accepts no case within the smaller one.
ELEMENTS = (1 << 12, 1 << 16)
# A model with more bytes of weights in memory is not measured, because a session would copy them.
MOST_BYTES = 2 << 30


def ranges_of(
    model: ir.Model, inputs: str | os.PathLike[str] | Mapping[str, Any] | None = None
) -> ActivationRanges | str:
    """Measures the ranges of a model's float32 values; returns the reason if it cannot.

    Args:
        model: the model, with inferred types; it is not changed.
        inputs: the caller's inputs, as for `verify`; they run in addition to generated inputs.

    Raises:
        VerifyError: the caller's inputs cannot be read, or the model refuses them.
    """
    values = [v for node in ir.traversal.RecursiveGraphIterator(model.graph) for v in node.outputs]
    floats = {str(v.name) for v in (*values, *model.graph.inputs) if v.dtype == FLOAT and v.name}
    if not floats:
        return ActivationRanges()
    tensors = (value.const_value for value in model.graph.initializers.values())
    if sum(traversal.tensor_bytes(t) for t in tensors if t and not traversal.is_external(t)) > MOST_BYTES:
        return "the float32 model does not fit into this machine's memory"
    copy, scalars, shapes = with_ranges(model, floats, with_dims=True)
    try:
        session = _Bounded(open_session(copy))
    except GraphoptError as error:
        return f"the float32 model does not run here: {error}"
    return _Ranges(session, writing.to_message(copy), scalars, shapes).measure(inputs)


class _Bounded:
    """A session with runs that end after `MOST_SECONDS`."""

    def __init__(self, session: Any) -> None:
        self.get_inputs, self.get_outputs, self._run = session.get_inputs, session.get_outputs, session.run

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Any]) -> Any:
        options = import_onnxruntime().RunOptions()
        timer = threading.Timer(MOST_SECONDS, setattr, (options, "terminate", True))
        timer.daemon = True
        timer.start()
        try:
            return self._run(names, feeds, options)
        finally:
            timer.cancel()


class _Ranges:
    """Runs a copy made by `with_ranges` and keeps the largest magnitudes."""

    def __init__(
        self, session: Any, copy: onnx.ModelProto, scalars: Mapping[str, Sequence[str]], shapes: Mapping[str, str]
    ) -> None:
        self.session, self.copy, self.scalars, self.shapes = session, copy, scalars, shapes
        self.names = [o.name for o in copy.graph.output]
        self.largest: dict[str, float] = {}
        self.dims: dict[str, tuple[int, ...]] = {}
        self.refused = ""
        self.taken = 0
        self.began = time.monotonic()
        self.spent = 0.0

    def measure(self, inputs: str | os.PathLike[str] | Mapping[str, Any] | None) -> ActivationRanges | str:
        for case in given_cases(inputs, self.copy) if inputs is not None else ():
            if not self.run(case):
                raise VerifyError(f"the float32 model refuses the inputs '{case.name}': {self.refused}")
        plain = inlined(self.copy)
        for elements in ELEMENTS:
            if not self.taken:
                try:
                    first = replace(FIRST_CASES, bytes=installed_memory() // 4)
                    plan(plain, InputOptions(elements=elements), self._accepts, first)
                except VerifyError as error:  # inputs of a type that cannot be generated
                    self.refused = str(error)
        if not self.taken and inputs is None:
            return (
                f"the float32 model runs on none of the generated inputs: {self.refused}; give valid inputs "
                "with --inputs"
            )
        return ActivationRanges(self.largest, self.dims)

    def _accepts(self, case: Case) -> bool:
        """Runs a case and returns whether the model accepts it.

        Returns False without a run if enough cases have run, or if the case has unusual magnitudes: inputs 1,000 times
        as large would make the results of any layer exceed float16.
        """
        late = time.monotonic() - self.began > MOST_SECONDS or (self.taken and self.spent > SECONDS)
        enough = late or self.taken >= CASES
        if enough or not case.name.startswith("normal") or not self.run(case):
            return False
        self.taken += 1
        return True

    def run(self, case: Case) -> bool:
        """Runs a case and merges its ranges; returns whether the model accepts it."""
        began = time.process_time()
        outputs = run_case(self.session, case)
        self.spent += time.process_time() - began
        if isinstance(outputs, str):
            self.refused = outputs
            return False
        found = dict(zip(self.names, outputs))
        for name, most in largest_of(found, self.scalars).items():
            self.largest[name] = max(most, self.largest.get(name, 0.0))
        if not self.dims:
            self.dims = {name: tuple(int(n) for n in found[shape]) for name, shape in self.shapes.items()}
        return True


def largest_of(outputs: Mapping[str, Any], scalars: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Returns the largest finite magnitude of each value from the outputs of a copy made by `with_ranges`."""
    extremes = {name: [abs(float(outputs[scalar])) for scalar in both] for name, both in scalars.items()}
    return {name: max(filter(math.isfinite, both), default=0.0) for name, both in extremes.items()}


def largest_in_single(model: ComparedModel, values: Collection[str], case: Case) -> dict[str, float]:
    """Runs a float16 model in float32; returns the largest magnitude of each value, in the nodes' order.

    Args:
        model: the model.
        values: names of values.
        case: the inputs.

    Raises:
        VerifyError: the model does not run in float32, or its weights do not fit into memory.
    """
    if weights_in_files(model.model) > MAX_WEIGHTS_READ:
        raise VerifyError("the weights do not fit into memory")
    copy, scalars, _ = with_ranges(widened(model.whole), values)
    names = [str(o.name) for o in copy.graph.outputs]
    feeds = map_arrays(case.feeds, lambda a: a.astype(np.float32) if a.dtype == np.float16 else a)
    outputs = run_case(open_session(copy), Case(case.name, feeds))
    if isinstance(outputs, str):
        raise VerifyError(outputs)
    return largest_of(dict(zip(names, outputs)), scalars)


def first_beyond_half(model: ComparedModel, values: Collection[str], case: Case) -> tuple[ir.Node, str, float] | None:
    """Finds the first node with a result beyond float16: the node, the result and its largest magnitude.

    Arguments and errors are those of `largest_in_single`.
    """
    nodes = ir.traversal.RecursiveGraphIterator(model.model.graph)
    producers = {value.name: node for node in nodes for value in node.outputs}
    beyond = {name: most for name, most in largest_in_single(model, values, case).items() if most > LARGEST}
    return next(((producers[name], name, most) for name, most in beyond.items() if name in producers), None)


def with_ranges(
    model: ir.Model, floats: Collection[str], *, with_dims: bool = False
) -> tuple[ir.Model, dict[str, list[str]], dict[str, str]]:
    """Makes a copy that outputs only the smallest and the largest element of each of these values.

    Args:
        model: the model; its functions are ignored.
        floats: names of float32 values, also in bodies; values of the same name in several bodies count as one.
        with_dims: also outputs the dimensions of operands and results of matrix multiplications of the main graph.

    Returns:
        The copy; value -> its outputs; value -> the output that holds its dimensions.
    """
    observer = _Observer(model, floats)
    graph, editor = observer.model.graph, observer.editor
    nodes = list(graph)
    probes = observer.given() + observer.graph(graph)
    shapes: dict[str, ir.Value] = {}
    for node in nodes if with_dims else ():
        b = Builder(editor, node)
        indices = operands(node.domain, node.op_type) or ()
        for value in (*(node.inputs[i] for i in indices if i < len(node.inputs)), *node.outputs[: bool(indices)]):
            if value is not None and value.name not in shapes:
                shapes[str(value.name)] = b.op("Shape", value, _dtype=INT64)
        editor.append_nodes(graph, b.nodes)
    editor.set_outputs([*(probe.value for probe in probes), *shapes.values()])
    scalars: dict[str, list[str]] = {}
    for probe in probes:
        scalars.setdefault(probe.about, []).append(str(probe.value.name))
    return observer.model, scalars, {name: str(value.name) for name, value in shapes.items()}


class _Observer(Prober):
    """Reduces values to their smallest and largest element."""

    def __init__(self, model: ir.Model, floats: Collection[str]) -> None:
        super().__init__(model)
        self.floats = floats

    def given(self) -> list[Probe]:
        """Computes the probes of inputs."""
        first = next(iter(self.model.graph), None)
        if first is None:
            return []
        b = Builder(self.editor, first)
        found = self._range_probes(b, [value for value in self.model.graph.inputs if not value.is_initializer()])
        self.editor.add_before(first, b.nodes)
        return found

    def at(self, b: Builder, node: ir.Node) -> list[Probe]:
        return self._range_probes(b, node.outputs)

    def _range_probes(self, b: Builder, values: Sequence[ir.Value]) -> list[Probe]:
        return [
            Probe(value.name, op, b.op(op, value, keepdims=0, _dtype=FLOAT))
            for value in values
            if value.name in self.floats
            for op in ("ReduceMin", "ReduceMax")
        ]


# -- branches ----------------------------------------------------------------------------------------------------------


def unused_branches(model: ir.Model, cases: Sequence[Case]) -> Iterator[str]:
    """Yields a sentence for each branch of an If that no case took, and each Loop without an iteration."""
    if not any(node.op_type in CONTROL_FLOW for node in model.graph):
        return
    counter = _Counter(model)
    probes = counter.graph(counter.model.graph)
    if not probes:
        return
    counter.editor.set_outputs([probe.value for probe in probes])
    try:
        session = open_session(counter.model)
    except VerifyError:
        return
    ran = [outputs for case in cases if not isinstance(outputs := run_case(session, case), str)]
    for i, probe in enumerate(probes):
        if not any(outputs[i] for outputs in ran):
            yield probe.about


class _Counter(Prober):
    """Counts the runs of branches and of bodies of Loops."""

    outer_first = True

    def at(self, b: Builder, node: ir.Node) -> list[Probe]:
        taken = node.inputs[0] if is_op(node, "If") else None
        if taken is None:
            return []
        probes = []
        for branch, flag in (("then", taken), ("else", b.op("Not", taken))):
            # A condition may be a scalar or hold one element.
            count = b.op("ReduceSum", b.cast(flag, INT64), keepdims=0, _dtype=INT64)
            probes.append(Probe(f"the {branch} branch of If '{_name(node)}' was never taken", "ReduceSum", count))
        return probes

    def inside(self, node: ir.Node, body: ir.Graph) -> list[Probe]:
        if node.op_type != "Loop":
            return []
        return [Probe(f"the body of Loop '{_name(node)}' never ran", "ReduceSum", self.constant(node, body, 1, INT64))]


def _name(node: ir.Node) -> str:
    return node.name or next((str(o.name) for o in node.outputs if o.name), "")


# -- our nodes ---------------------------------------------------------------------------------------------------------

_SWITCHES_INPUT = "graphopt_untested"


def untested_nodes(
    after: ir.Model, cases: Sequence[Case], differs: Callable[[Case, Outputs], bool], budget: Budget, seconds: float
) -> list[str]:
    """Returns a sentence for each of our nodes in the main graph that could return zeros unnoticed.

    When the budget is spent, the remaining nodes are not tested. If it suffices for less than half of the nodes, none
    is tested.

    Args:
        after: the rewritten model (AFTER).
        cases: the cases that both models accept.
        differs: returns whether outputs of a case differ from the original model's (BEFORE) by more than rounding.
        budget: the CPU time for this test.
        seconds: CPU seconds of AFTER's quickest run.
    """
    ours = sum(node.domain == DOMAIN for node in after.graph)
    if not ours or budget.spent + ours / 2 * seconds >= budget.seconds:
        return []
    began = time.process_time()
    model, names = _with_switches(after)
    if not names or not cases:
        return []
    try:
        session = open_session(model)
    except VerifyError:
        return []
    budget.spent += time.process_time() - began
    sentences: list[str] = []
    for k, name in enumerate(names):
        keep = np.arange(len(names)) != k
        for case in cases:
            if budget.is_spent:
                return sentences
            began = time.process_time()
            outputs = run_case(session, Case(case.name, {**case.feeds, _SWITCHES_INPUT: keep}))
            budget.spent += time.process_time() - began
            if isinstance(outputs, str) or differs(case, outputs):
                break
        else:
            sentences.append(f"{name} could give zeros unnoticed: no output depends on it for the inputs tried")
    return sentences


def _with_switches(model: ir.Model) -> tuple[ir.Model, list[str]]:
    """Returns a copy with Where(switch, result, 0) after each of our nodes, and their names."""
    editor = editor_of_copy(model)
    ours = [n for n in editor.model.graph if n.domain == DOMAIN and n.outputs[0].dtype in FLOATS]
    names = [f"{node.op_type} '{_name(node)}'" for node in ours]
    switches = editor.add_input(_SWITCHES_INPUT, ir.DataType.BOOL, ir.Shape([len(ours)]))
    for i, node in enumerate(ours):
        b, result = Builder(editor, node), node.outputs[0]
        assert result.dtype is not None
        keep = b.op("Gather", switches, b.number(i, INT64))
        kept = b.op("Where", keep, result, b.number(0, result.dtype))
        editor.interpose(result, b.nodes, kept)
    return editor.model, names
