"""What the inputs that were tried say nothing about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from graphopt.checking.inputs import Case, required_inputs
from graphopt.checking.run import Model, Outputs, open_session, run_case
from graphopt.errors import VerifyError

_PREFIX = "graphopt_coverage"


def not_covered(
    model: Model, proto: onnx.ModelProto, cases: Sequence[Case], wanted: Mapping[str, Outputs]
) -> list[str]:
    """A sentence for each output, input and branch of BEFORE that was not put to the test."""
    return [*_outputs(proto, wanted), *_inputs(proto, cases), *_branches(model, proto, cases)]


def _outputs(proto: onnx.ModelProto, wanted: Mapping[str, Outputs]) -> Iterator[str]:
    for i, output in enumerate(proto.graph.output):
        arrays = [np.asarray(o[i]) for o in wanted.values() if isinstance(o[i], np.ndarray)]
        if not arrays:
            continue
        if not any(a.size for a in arrays):
            yield f"output '{output.name}' is empty on every input tried"
            continue
        first = next(a.reshape(-1)[0] for a in arrays if a.size)
        if all(np.array_equal(a, np.full_like(a, first), equal_nan=a.dtype.kind in "fc") for a in arrays):
            if max(a.size for a in arrays) > 1 or len(arrays) > 1:
                yield f"output '{output.name}' is {first} everywhere on every input tried"
        elif not any(np.isfinite(a).any() for a in arrays if a.dtype.kind in "fc") and arrays[0].dtype.kind in "fc":
            yield f"output '{output.name}' has no finite number on any input tried"


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
    """Branches of an If in the main graph that no case took, and Loops whose body never ran."""
    interesting = [n for n in proto.graph.node if n.op_type in ("If", "Loop")]
    if not interesting:
        return
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    watched: dict[str, tuple[str, str]] = {}
    for i, node in enumerate(n for n in copy.graph.node if n.op_type in ("If", "Loop")):
        name = node.name or node.output[0]
        if node.op_type == "If":
            watched[f"{_PREFIX}_{i}"] = ("If", name)
            copy.graph.node.append(helper.make_node("Identity", [node.input[0]], [f"{_PREFIX}_{i}"]))
        else:
            body = next(a.g for a in node.attribute if a.name == "body")
            if len(node.output) != len(body.output) - 1:
                continue
            # One more scan output: as long as the loop ran often.
            watched[f"{_PREFIX}_{i}"] = ("Loop", name)
            body.node.append(helper.make_node("Identity", [body.input[0].name], [f"{_PREFIX}_{i}_count"]))
            body.output.append(helper.make_tensor_value_info(f"{_PREFIX}_{i}_count", onnx.TensorProto.INT64, []))
            node.output.append(f"{_PREFIX}_{i}")
    del copy.graph.output[:]
    for name, (kind, _) in watched.items():
        type_ = onnx.TensorProto.BOOL if kind == "If" else onnx.TensorProto.INT64
        copy.graph.output.append(helper.make_tensor_value_info(name, type_, None))
    try:
        folder = model.parent if isinstance(model, Path) else None
        session = open_session(copy, library=False, folder=folder)
    except VerifyError:
        return
    seen: dict[str, list[Any]] = {name: [] for name in watched}
    for case in cases:
        outputs = run_case(session, case)
        if not isinstance(outputs, str):
            for name, output in zip(watched, outputs):
                seen[name].append(output)
    for watch, (kind, name) in watched.items():
        values = seen[watch]
        if kind == "Loop" and not any(np.size(v) for v in values):
            yield f"the body of Loop '{name}' never ran"
        elif kind == "If":
            taken = {bool(np.all(v)) for v in values}
            for branch, condition in (("then", True), ("else", False)):
                if condition not in taken:
                    yield f"the {branch} branch of If '{name}' was never taken"
