"""Which nodes of ours no input says anything about: those whose results might as well be zeros."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from graphopt.checking.honest import Budget, types_of
from graphopt.checking.inputs import Case
from graphopt.checking.run import Model, Outputs, open_session, run_case
from graphopt.errors import VerifyError
from graphopt.ops import DOMAIN

_PREFIX = "graphopt_unseen"
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)


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
            outputs = run_case(session, Case(case.name, {**case.feeds, _PREFIX: keep}))
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
        if node.domain != DOMAIN or types.get(node.output[0]) not in FLOATS:
            continue
        made, result = f"{_PREFIX}_{len(names)}", node.output[0]
        node.output[0] = f"{made}_result"
        place = helper.make_tensor(f"{made}_place", TensorProto.INT64, [], [len(names)])
        zero = helper.make_tensor(f"{made}_zero", types[result], [], [0.0])
        graph.initializer.extend([place, zero])
        nodes.append(helper.make_node("Gather", [_PREFIX, place.name], [f"{made}_keep"]))
        nodes.append(helper.make_node("Where", [f"{made}_keep", node.output[0], zero.name], [result]))
        names.append(f"{node.op_type} '{node.name or result}'")
    del graph.node[:]
    graph.node.extend(nodes)
    if names:
        graph.input.append(helper.make_tensor_value_info(_PREFIX, TensorProto.BOOL, [len(names)]))
    return names
