"""What the inputs that were tried say nothing about: outputs, inputs, branches, and nodes of ours."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from graphopt.errors import VerifyError
from graphopt.graph.messages import inlined, opset_of
from graphopt.graph.operators.traits import CONTROL_FLOW
from graphopt.inputs.declared import is_given, required_inputs, symbol_of
from graphopt.inputs.plan import Case
from graphopt.ops import DOMAIN
from graphopt.verification.honest import Budget, types_of
from graphopt.verification.run import Model, Outputs, open_session, run_case

_PREFIX = "graphopt_coverage"
_GIVE = "give some with --inputs"
# How many dimensions with the same sizes, and inputs, a sentence names; and how many sizes.
NAMED, LISTED = 4, 16


def not_covered(
    model: Model, proto: onnx.ModelProto, cases: Sequence[Case], wanted: Mapping[str, Outputs]
) -> list[str]:
    """A sentence for each output, input and branch of BEFORE that was not put to the test."""
    return [*_outputs(proto, wanted), *_inputs(proto, cases), *_branches(model, proto, cases)]


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


def _branches(model: Model, proto: onnx.ModelProto, cases: Sequence[Case]) -> Iterator[str]:
    """Branches of an If that no case took, and Loops whose body never ran, in branches and bodies too."""
    whole = inlined(proto)
    if not any(node.op_type in CONTROL_FLOW for node in whole.graph.node):  # spares a copy of the weights
        return
    copy = onnx.ModelProto()
    copy.CopyFrom(whole)
    opset = opset_of(copy)
    watched = _Watch(opset).graph(copy.graph)
    if not watched:
        return
    del copy.graph.output[:]
    for name in watched:
        copy.graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.INT64, None))
    try:
        folder = model.parent if isinstance(model, Path) else None
        session = open_session(copy, library=False, folder=folder)
    except VerifyError:
        return
    seen = {name: np.zeros(2, np.int64) for name in watched}
    for case in cases:
        outputs = run_case(session, case)
        if not isinstance(outputs, str):
            for name, output in zip(watched, outputs):
                seen[name] += np.asarray(output).reshape(2)
    for watch, (kind, name) in watched.items():
        if kind == "Loop" and not seen[watch].any():
            yield f"the body of Loop '{name}' never ran"
        elif kind == "If":
            for branch, taken in zip(("then", "else"), seen[watch]):
                if not taken:
                    yield f"the {branch} branch of If '{name}' was never taken"


@dataclass
class _Watch:
    """Adds a value of two integers for each If (how often either branch was taken) and Loop (how often it ran, twice).

    What happens inside a branch comes out as one more output of it, which is zeros on the other side; inside the body
    of a Loop or Scan it is one more scan output, summed up.
    """

    opset: int
    made: Iterator[int] = field(default_factory=itertools.count)

    def graph(self, graph: onnx.GraphProto) -> dict[str, tuple[str, str]]:
        """Watched values of this graph -> (operator, name of the node)."""
        found: dict[str, tuple[str, str]] = {}
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            nodes.append(node)
            name = node.name or next(o for o in (*node.output, "") if o)
            if node.op_type == "If":
                taken = self._name()
                nodes.append(helper.make_node("Cast", [node.input[0]], [f"{taken}_then"], to=onnx.TensorProto.INT64))
                nodes.append(helper.make_node("Not", [node.input[0]], [f"{taken}_not"]))
                nodes.append(helper.make_node("Cast", [f"{taken}_not"], [f"{taken}_else"], to=onnx.TensorProto.INT64))
                flat = []
                for side in ("then", "else"):
                    flat.append(f"{taken}_{side}_1")
                    nodes += self._flat(f"{taken}_{side}", flat[-1])
                nodes.append(helper.make_node("Concat", flat, [taken], axis=0))
                found[taken] = ("If", name)
                found |= self._if(node)
            elif node.op_type in ("Loop", "Scan"):
                found |= self._loop(node, name, nodes)
        del graph.node[:]
        graph.node.extend(nodes)
        return found

    def _name(self) -> str:
        return f"{_PREFIX}_{next(self.made)}"

    def _flat(self, scalar: str, name: str) -> list[onnx.NodeProto]:
        """A condition may be a scalar or hold one element."""
        shape = f"{name}_shape"
        return [_constant(shape, [1]), helper.make_node("Reshape", [scalar, shape], [name])]

    def _if(self, node: onnx.NodeProto) -> dict[str, tuple[str, str]]:
        bodies = [next(a.g for a in node.attribute if a.name == f"{side}_branch") for side in ("then", "else")]
        inner = [self.graph(body) for body in bodies]
        found = {}
        for which, watched in enumerate(inner):
            for value, what in watched.items():
                outside = self._name()
                for i, body in enumerate(bodies):
                    here = value if i == which else self._name()
                    if i != which:
                        body.node.append(_constant(here, [0, 0]))
                    body.output.append(helper.make_tensor_value_info(here, onnx.TensorProto.INT64, [2]))
                node.output.append(outside)
                found[outside] = what
        return found

    def _loop(self, node: onnx.NodeProto, name: str, nodes: list[onnx.NodeProto]) -> dict[str, tuple[str, str]]:
        body = next(a.g for a in node.attribute if a.name == "body")
        watched = self.graph(body)
        if node.op_type == "Loop":
            ran = self._name()
            body.node.append(_constant(ran, [1, 1]))
            watched[ran] = ("Loop", name)
        own = len(body.output) - (node.op_type == "Loop")
        for i in range(own):
            if i >= len(node.output):
                node.output.append(self._name())
            elif not node.output[i]:
                node.output[i] = self._name()
        for attribute in node.attribute:
            if attribute.name in ("scan_output_axes", "scan_output_directions"):
                attribute.ints.extend([0] * len(watched))
        found = {}
        for value, what in watched.items():
            body.output.append(helper.make_tensor_value_info(value, onnx.TensorProto.INT64, [2]))
            turns, total = self._name(), self._name()
            node.output.append(turns)
            nodes += self._sum(turns, total)
            found[total] = what
        return found

    def _sum(self, turns: str, total: str) -> list[onnx.NodeProto]:
        if self.opset < 13:
            return [helper.make_node("ReduceSum", [turns], [total], axes=[0], keepdims=0)]
        axes = f"{total}_axes"
        return [_constant(axes, [0]), helper.make_node("ReduceSum", [turns, axes], [total], keepdims=0)]


def _constant(name: str, numbers: Sequence[int]) -> onnx.NodeProto:
    value = helper.make_tensor(name, onnx.TensorProto.INT64, [len(numbers)], numbers)
    return helper.make_node("Constant", [], [name], value=value)


# -- nodes of ours -----------------------------------------------------------------------------------------------------

_SWITCHES = "graphopt_unseen"
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)


def unseen(
    model: Model,
    proto: onnx.ModelProto,
    cases: Sequence[Case],
    moves: Callable[[Case, Outputs], bool],
    budget: Budget,
    a_run: float,
) -> list[str]:
    """A sentence for each node of ours in the main graph that could give zeros without moving any output.

    Nothing is said of nodes that the budget does not reach, nor of any where it would not reach half of them.

    Args:
        model: AFTER.
        proto: its message.
        cases: that both models take.
        moves: whether outputs of a case are farther from BEFORE's than rounding explains.
        budget: of what this may take.
        a_run: seconds of all processors that a quick run of AFTER takes.
    """
    ours = sum(node.domain == DOMAIN for node in proto.graph.node)
    if not ours or budget.spent + ours / 2 * a_run >= budget.seconds:
        return []
    began = time.process_time()
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    watched = _with_switches(copy)
    if not watched or not cases:
        return []
    try:
        session = open_session(copy, library=False, folder=model.parent if isinstance(model, Path) else None)
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


def _with_switches(model: onnx.ModelProto) -> list[str]:
    """Puts Where(switch, result, 0) behind each node of ours; the names of the switches."""
    graph = model.graph
    types = types_of(model)
    names: list[str] = []
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        nodes.append(node)
        if node.domain != DOMAIN or types.get(node.output[0]) not in _FLOATS:
            continue
        made, result = f"{_SWITCHES}_{len(names)}", node.output[0]
        node.output[0] = f"{made}_result"
        place = helper.make_tensor(f"{made}_place", TensorProto.INT64, [], [len(names)])
        zero = helper.make_tensor(f"{made}_zero", types[result], [], [0.0])
        graph.initializer.extend([place, zero])
        nodes.append(helper.make_node("Gather", [_SWITCHES, place.name], [f"{made}_keep"]))
        nodes.append(helper.make_node("Where", [f"{made}_keep", node.output[0], zero.name], [result]))
        names.append(f"{node.op_type} '{node.name or result}'")
    del graph.node[:]
    graph.node.extend(nodes)
    if names:
        graph.input.append(helper.make_tensor_value_info(_SWITCHES, TensorProto.BOOL, [len(names)]))
    return names
