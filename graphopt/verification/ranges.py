"""Measures the range of every float32 value of a model on a few inputs (`--precision fp16`, and `verify`'s reports).

A copy of the model reduces each value to its smallest and largest element beside the node that makes it, in bodies of
If, Loop and Scan too. Only these scalars leave a run, so it takes the memory of a plain one.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from graphopt.errors import GraphoptError, VerifyError
from graphopt.graph import traversal, writing
from graphopt.graph.build import Builder
from graphopt.graph.messages import inlined
from graphopt.inputs.cost import installed_memory
from graphopt.inputs.filling import Feeds
from graphopt.inputs.given import given_cases
from graphopt.inputs.plan import FIRST_CASES, Case, Wishes, plan
from graphopt.precision.float16.constants import LARGEST
from graphopt.precision.float16.ranges import ActivationRanges
from graphopt.report.multiply_adds import operands
from graphopt.runtime.discovery import import_onnxruntime
from graphopt.verification.halves import widened
from graphopt.verification.pair import Side
from graphopt.verification.probes import Probe, Prober
from graphopt.verification.run import MAX_WEIGHTS_READ, open_session, run_case, weights_in_files

FLOAT = ir.DataType.FLOAT
# The number of input sets that are made, and the processor seconds after which no further set runs.
SETS, SECONDS = 3, 10.0
# Seconds after which a run is ended, and no other one begins.
MOST_SECONDS = 60.0
# Most elements of all inputs of a set, since ranges depend little on sizes; the second if a model takes no such set.
ELEMENTS = (1 << 12, 1 << 16)
# Weights in memory beyond this are not copied into a session.
MOST_BYTES = 2 << 30


def ranges_of(
    model: ir.Model, inputs: str | os.PathLike[str] | Mapping[str, Any] | None = None
) -> ActivationRanges | str:
    """Measures the ranges of a model's float32 values; returns the reason if it cannot.

    Args:
        model: types inferred; it is not changed.
        inputs: of the caller, as for `verify`; they run beside those that are made.

    Raises:
        VerifyError: the caller's inputs cannot be read, or the model refuses them.
    """
    values = [v for graph in traversal.with_subgraphs(model.graph) for node in graph for v in node.outputs]
    floats = {str(v.name) for v in (*values, *model.graph.inputs) if v.dtype == FLOAT and v.name}
    if not floats:
        return ActivationRanges()
    tensors = (value.const_value for value in model.graph.initializers.values())
    if sum(traversal.tensor_bytes(t) for t in tensors if t and not traversal.is_external(t)) > MOST_BYTES:
        return "the float32 model does not fit into this machine's memory"
    copy, scalars, shapes = observed(model, floats, products=True)
    try:
        session = _Bounded(open_session(copy, library=False))
    except GraphoptError as error:
        return f"the float32 model does not run here: {error}"
    return _Measured(session, writing.to_message(copy), scalars, shapes).ranges(inputs)


class _Bounded:
    """A session whose runs end after `MOST_SECONDS`."""

    def __init__(self, session: Any) -> None:
        self.get_inputs, self.get_outputs, self._run = session.get_inputs, session.get_outputs, session.run

    def run(self, names: Sequence[str] | None, feeds: Feeds) -> Any:
        options = import_onnxruntime().RunOptions()
        timer = threading.Timer(MOST_SECONDS, setattr, (options, "terminate", True))
        timer.daemon = True
        timer.start()
        try:
            return self._run(names, feeds, options)
        finally:
            timer.cancel()


class _Measured:
    """Runs a copy made by `observed` and keeps the largest magnitudes."""

    def __init__(
        self,
        session: Any,
        copy: onnx.ModelProto,
        scalars: Mapping[str, Sequence[str]],
        shapes: Mapping[str, str],
    ) -> None:
        self.session, self.copy, self.scalars, self.shapes = session, copy, scalars, shapes
        self.names = [o.name for o in copy.graph.output]
        self.largest: dict[str, float] = {}
        self.dims: dict[str, tuple[int, ...]] = {}
        self.refused = ""
        self.made = 0
        self.began = time.monotonic()
        self.spent = 0.0

    def ranges(self, inputs: str | os.PathLike[str] | Mapping[str, Any] | None) -> ActivationRanges | str:
        if inputs is not None:
            for case in given_cases(inputs, self.copy):
                if not self.take(case):
                    raise VerifyError(f"the float32 model refuses the inputs '{case.name}': {self.refused}")
        plain = inlined(self.copy)
        for elements in ELEMENTS:
            if not self.made:
                try:
                    first = replace(FIRST_CASES, bytes=installed_memory() // 4)
                    plan(plain, Wishes(elements=elements), self._take_normal, first)
                except VerifyError as error:  # inputs of a type that is not made up
                    self.refused = str(error)
        if not self.made and inputs is None:
            return (
                f"the float32 model runs on none of the inputs that were made up: {self.refused}; give some that it "
                "takes with --inputs"
            )
        return ActivationRanges(self.largest, self.dims)

    def _take_normal(self, case: Case) -> bool:
        """Takes only inputs of usual size: inputs a thousand times as large leave the range in any layer."""
        late = time.monotonic() - self.began > MOST_SECONDS or (self.made and self.spent > SECONDS)
        enough = late or self.made >= SETS
        if enough or not case.name.startswith("normal") or not self.take(case):
            return False
        self.made += 1
        return True

    def take(self, case: Case) -> bool:
        began = time.process_time()
        outputs = run_case(self.session, case)
        self.spent += time.process_time() - began
        if isinstance(outputs, str):
            self.refused = outputs
            return False
        for name, most in largest_of(dict(zip(self.names, outputs)), self.scalars).items():
            self.largest[name] = max(most, self.largest.get(name, 0.0))
        if not self.dims:
            found = dict(zip(self.names, outputs))
            self.dims = {name: tuple(int(n) for n in found[shape]) for name, shape in self.shapes.items()}
        return True


def largest_of(outputs: Mapping[str, Any], scalars: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Returns the largest finite magnitude of each value from the outputs of a copy made by `observed`."""
    found = {}
    for name, ends in scalars.items():
        finite = [abs(float(outputs[end])) for end in ends if math.isfinite(outputs[end])]
        found[name] = max(finite, default=0.0)
    return found


def largest_in_single(side: Side, values: Collection[str], case: Case) -> dict[str, float]:
    """Runs a float16 model in float32; returns the largest magnitude of each value in the order of the nodes.

    Args:
        side: the model.
        values: names of values.
        case: the inputs.

    Raises:
        VerifyError: the model does not run in float32, or its weights do not fit into memory.
    """
    if weights_in_files(side.model) > MAX_WEIGHTS_READ:
        raise VerifyError("the weights do not fit into memory")
    copy, scalars, _ = observed(widened(side.whole), values)
    names = [str(o.name) for o in copy.graph.outputs]
    feeds = {n: a.astype(np.float32) if a.dtype == np.float16 else a for n, a in case.feeds.items()}
    outputs = run_case(open_session(copy, library=False), Case(case.name, feeds))
    if isinstance(outputs, str):
        raise VerifyError(outputs)
    return largest_of(dict(zip(names, outputs)), scalars)


def first_beyond_half(side: Side, values: Collection[str], case: Case) -> tuple[ir.Node, str, float] | None:
    """Finds the first node with a result beyond float16: the node, the result and its largest magnitude.

    Arguments and errors are those of `largest_in_single`.
    """
    nodes = (node for graph in traversal.with_subgraphs(side.model.graph) for node in graph)
    makers = {value.name: node for node in nodes for value in node.outputs}
    beyond = {name: most for name, most in largest_in_single(side, values, case).items() if most > LARGEST}
    return next(((makers[name], name, most) for name, most in beyond.items() if name in makers), None)


def observed(
    model: ir.Model, floats: Collection[str], *, products: bool = False
) -> tuple[ir.Model, dict[str, list[str]], dict[str, str]]:
    """Makes a copy that outputs the smallest and the largest element of each of these values, and nothing else.

    Args:
        model: its functions are not looked into.
        floats: names of float32 values, those in bodies included; one name in several bodies is one value.
        products: also gives the dimensions of operands and results of matrix multiplications of the main graph.

    Returns:
        The copy; value -> its outputs; value -> the output that holds its dimensions.
    """
    observer = _Observer(model, floats)
    graph, editor = observer.model.graph, observer.editor
    nodes = list(graph)
    probes = observer.given() + observer.graph(graph)
    shapes: dict[str, ir.Value] = {}
    for node in nodes if products else ():
        b = Builder(editor, node)
        indices = operands(node.domain, node.op_type) or ()
        for value in (*(node.inputs[i] for i in indices if i < len(node.inputs)), *node.outputs[: bool(indices)]):
            if value is not None and value.name not in shapes:
                shapes[str(value.name)] = b.op("Shape", value, _dtype=ir.DataType.INT64)
        editor.put_last(graph, b.nodes)
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
        """The probes of inputs."""
        graph = self.model.graph
        inputs = [value for value in graph.inputs if not value.is_initializer()]
        first = next(iter(graph), None)
        if first is None:
            return []
        b = Builder(self.editor, first)
        found = self._of(b, inputs)
        self.editor.put_before(first, b.nodes)
        return found

    def at(self, b: Builder, node: ir.Node) -> list[Probe]:
        return self._of(b, node.outputs)

    def _of(self, b: Builder, values: Sequence[ir.Value]) -> list[Probe]:
        return [
            Probe(value.name, op, b.op(op, value, keepdims=0, _dtype=FLOAT))
            for value in values
            if value.name in self.floats
            for op in ("ReduceMin", "ReduceMax")
        ]
