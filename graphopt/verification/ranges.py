"""Measures the range of every float32 value of a model on a few inputs (`--precision fp16`, and `verify`'s reports).

A copy of the model reduces each value to its smallest and largest element beside the node that makes it, in bodies of
If, Loop and Scan too. Only these scalars leave a run, so it takes the memory of a plain one.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from graphopt.errors import GraphoptError, VerifyError
from graphopt.graph import traversal
from graphopt.graph.messages import all_nodes, bodies, inlined
from graphopt.graph.operators.traits import CONTROL_FLOW
from graphopt.inputs.cost import installed_memory
from graphopt.inputs.declared import required_inputs
from graphopt.inputs.filling import Feeds
from graphopt.inputs.given import given_cases
from graphopt.inputs.plan import FIRST_CASES, Case, Wishes, plan
from graphopt.precision.float16.constants import LARGEST
from graphopt.precision.float16.ranges import ActivationRanges
from graphopt.report.multiply_adds import operands
from graphopt.runtime.discovery import import_onnxruntime
from graphopt.verification.halves import widened
from graphopt.verification.honest import self_contained
from graphopt.verification.run import Model, open_session, run_case

Array = npt.NDArray[Any]
# The number of input sets that are made, and the processor seconds after which no further set runs.
SETS, SECONDS = 3, 10.0
# Seconds after which a run is ended, and no other one begins.
MOST_SECONDS = 60.0
# Most elements of all inputs of a set, since ranges depend little on sizes; the second if a model takes no such set.
ELEMENTS = (1 << 12, 1 << 16)
# A tensor of so many bytes is given to the session beside the message.
LARGE_TENSOR = 1 << 16
# Weights in memory beyond this are not copied into a session.
MOST_BYTES = 2 << 30
_PREFIX = "graphopt_range"


def ranges_of(
    model: ir.Model, folder: Path | None, inputs: str | os.PathLike[str] | Mapping[str, Any] | None = None
) -> ActivationRanges | str:
    """Measures the ranges of a model's float32 values; returns the reason if it cannot.

    Args:
        model: types inferred; it is not changed.
        folder: of its external data.
        inputs: of the caller, as for `verify`; they run beside those that are made.

    Raises:
        VerifyError: the caller's inputs cannot be read, or the model refuses them.
    """
    values = [v for graph in traversal.with_subgraphs(model.graph) for node in graph for v in node.outputs]
    single = ir.TensorType(ir.DataType.FLOAT)
    floats = {str(v.name) for v in (*values, *model.graph.inputs) if v.type == single and v.name}
    if not floats:
        return ActivationRanges()
    try:
        with _large_tensors_outside(model, folder) as weights:
            copy, scalars, shapes = observed(ir.serde.serialize_model(model), floats, products=True)
            session = _Bounded(open_session(copy, library=False, folder=folder, weights=weights))
    except MemoryError:
        return "the float32 model does not fit into this machine's memory"
    except GraphoptError as error:
        return f"the float32 model does not run here: {error}"
    return _Measured(session, copy, scalars, shapes).ranges(inputs)


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


def largest_in_single(model: Model, proto: onnx.ModelProto, values: Collection[str], case: Case) -> dict[str, float]:
    """Runs a float16 model in float32; returns the largest magnitude of each value in the order of the nodes.

    Args:
        model: the file or message that a session loads.
        proto: its message.
        values: names of values.
        case: the inputs.

    Raises:
        VerifyError: the model does not run in float32, or its weights do not fit into a message.
    """
    proto = self_contained(model, proto)
    if any(t.data_location == TensorProto.EXTERNAL for t in proto.graph.initializer):
        raise VerifyError("the weights do not fit into a message")
    copy, scalars, _ = observed(widened(proto), values)
    feeds = {n: a.astype(np.float32) if a.dtype == np.float16 else a for n, a in case.feeds.items()}
    outputs = run_case(open_session(copy, library=False), Case(case.name, feeds))
    if isinstance(outputs, str):
        raise VerifyError(outputs)
    return largest_of(dict(zip((o.name for o in copy.graph.output), outputs)), scalars)


def first_beyond_half(
    model: Model, proto: onnx.ModelProto, values: Collection[str], case: Case
) -> tuple[onnx.NodeProto, str, float] | None:
    """Finds the first node with a result beyond float16: the node, the result and its largest magnitude.

    Arguments and errors are those of `largest_in_single`.
    """
    for name, most in largest_in_single(model, proto, values, case).items():
        if most > LARGEST:
            node = next((n for n in all_nodes(proto.graph.node) if name in n.output), None)
            if node is not None:
                return node, name, most
    return None


def observed(
    model: onnx.ModelProto, floats: Collection[str], *, products: bool = False
) -> tuple[onnx.ModelProto, dict[str, list[str]], dict[str, str]]:
    """Makes a copy that outputs the smallest and the largest element of each of these values, and nothing else.

    Args:
        model: its functions are not looked into.
        floats: names of float32 values, those in bodies included; one name in several bodies is one value.
        products: also gives the dimensions of operands and results of matrix multiplications of the main graph.

    Returns:
        The copy; value -> its outputs; value -> the output that holds its dimensions.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    inner = _Observer(floats).graph(graph, [v.name for v in required_inputs(copy)])
    shapes: dict[str, str] = {}
    for node in list(graph.node) if products else ():
        if indices := operands(node.domain, node.op_type):
            for name in (*(node.input[i] for i in indices if i < len(node.input)), node.output[0]):
                if name not in shapes:
                    shapes[name] = f"{_PREFIX}_shape_{len(shapes)}"
                    graph.node.append(helper.make_node("Shape", [name], [shapes[name]]))
    del graph.output[:]
    ends = [end for _, *both in inner for end in both]
    graph.output.extend(helper.make_tensor_value_info(end, TensorProto.FLOAT, None) for end in ends)
    graph.output.extend(helper.make_tensor_value_info(s, TensorProto.INT64, None) for s in shapes.values())
    scalars: dict[str, list[str]] = {}
    for name, low, high in inner:
        scalars.setdefault(name, []).extend((low, high))
    return copy, scalars, shapes


class _Observer:
    """Adds reductions to a graph and its bodies, and hands the results of bodies on to the graph around them."""

    def __init__(self, floats: Collection[str]) -> None:
        self.floats = floats
        self.made = itertools.count()

    def graph(self, graph: onnx.GraphProto, given: Collection[str] = ()) -> list[tuple[str, str, str]]:
        """Adds reductions; returns (value, name of its smallest element, name of its largest element)."""
        found: list[tuple[str, str, str]] = []
        nodes: list[onnx.NodeProto] = []
        for name in given:
            if name in self.floats:
                found.append((name, *self._reduced(name, name, nodes)))
        for node in graph.node:
            nodes.append(node)
            found += self._of_bodies(node, nodes)
            for name in node.output:
                if name in self.floats:
                    found.append((name, *self._reduced(name, name, nodes)))
        del graph.node[:]
        graph.node.extend(nodes)
        return found

    def _reduced(self, low: str, high: str, nodes: list[onnx.NodeProto]) -> tuple[str, str]:
        made = f"{_PREFIX}_{next(self.made)}"
        ends = (f"{made}_low", f"{made}_high")
        for op, source, end in (("ReduceMin", low, ends[0]), ("ReduceMax", high, ends[1])):
            nodes.append(helper.make_node(op, [source], [end], keepdims=0))
        return ends

    def _of_bodies(self, node: onnx.NodeProto, nodes: list[onnx.NodeProto]) -> list[tuple[str, str, str]]:
        """Adds the reductions of the bodies of an If, Loop or Scan to the outputs of the node."""
        if node.domain not in ("", "ai.onnx") or node.op_type not in CONTROL_FLOW:
            return []
        if any(a.name.startswith("scan_output_") for a in node.attribute):  # they say something of each output
            return []
        branches = list(bodies(node))
        # A node may leave out its last outputs; those of a Loop's body begin with the condition.
        own = len(branches[0].output) - (node.op_type == "Loop")
        node.output.extend(f"{_PREFIX}_{next(self.made)}" for _ in range(own - len(node.output)))
        inside = [self.graph(body) for body in branches]
        found: list[tuple[str, str, str]] = []
        for i, of_branch in enumerate(inside):
            for name, *ends in of_branch:
                outer = [f"{_PREFIX}_{next(self.made)}" for _ in ends]
                for end, result in zip(ends, outer):
                    node.output.append(result)
                    for k, body in enumerate(branches):
                        here = end
                        if k != i:  # the other branch of an If has no such value
                            here = f"{_PREFIX}_{next(self.made)}"
                            zero = helper.make_tensor("", TensorProto.FLOAT, [], [0.0])
                            body.node.append(helper.make_node("Constant", [], [here], value=zero))
                        body.output.append(helper.make_tensor_value_info(here, TensorProto.FLOAT, []))
                if node.op_type == "If":
                    found.append((name, outer[0], outer[1]))
                else:  # an element for each turn
                    found.append((name, *self._reduced(outer[0], outer[1], nodes)))
        return found


@contextmanager
def _large_tensors_outside(model: ir.Model, folder: Path | None) -> Iterator[dict[str, Array]]:
    """Takes large initializers out of a model, except those in files of `folder`, yields them and puts them back.

    Raises:
        MemoryError: they are larger than `MOST_BYTES`.
    """
    kept: dict[ir.Value, ir.TensorProtocol] = {}
    weights: dict[str, Array] = {}
    try:
        for value in model.graph.initializers.values():
            tensor = value.const_value
            if tensor is None or tensor.nbytes < LARGE_TENSOR or value.is_graph_input():
                continue
            if traversal.is_external(tensor) and folder is not None and Path(tensor.base_dir) == folder:
                continue
            if sum(w.nbytes for w in weights.values()) + tensor.nbytes > MOST_BYTES:
                raise MemoryError
            array, name = tensor.numpy(), str(value.name)
            if array.dtype.kind not in "fiu":  # a type that sessions take in messages alone
                continue
            kept[value], weights[name] = tensor, np.ascontiguousarray(array)
            value.const_value = ir.ExternalTensor(
                name, 0, tensor.nbytes, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=name, base_dir=""
            )
        yield weights
    finally:
        for value, tensor in kept.items():
            value.const_value = tensor
