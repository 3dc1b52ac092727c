"""Compares forecasts (`explain --provider graphopt` and `cpu`) with sessions: docs/measurements/placement.md.

The models are ONNX's node tests (with integer inputs, and with them as constants), the zoo, the trained models of
models/pypi.py, and the given files; each unchanged and, except for the node tests, optimized. Two sessions are created
for each model. In the session with all of ONNX Runtime's optimizers nodes may be fused or removed, and a node that is
forecast as constant must have disappeared. In the session without optimizers every other node must still exist.

Usage:

    .venv-ort/bin/python -m tests.provider.forecast_audit [--only nodes,zoo,trained] [--show 5] [MODEL_OR_FOLDER ...]

Prints for each part the number of nodes compared with a session, and each wrong line. The exit code is 1 if a line is
wrong. Needs ONNX Runtime 1.24 or newer.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import onnx.inliner

import graphopt
from graphopt.errors import one_line
from graphopt.ops import DOMAIN
from graphopt.placement import PlacedNode, forecast
from models import ZOO
from models.pypi import TRAINED, fetch
from tests.conformance.node_cases import node_cases
from tests.provider.test_onnx_node_tests import as_known, with_constant_integers
from tests.provider.worker import PROVIDER, new_session, start_worker

PARTS = ("nodes", "zoo", "trained")
# Provider names of sessions -> names in forecasts.
WORDS = {PROVIDER: "graphopt", "CPUExecutionProvider": "cpu"}


@dataclass
class Told:
    """The placement of a session's nodes.

    Attributes:
        where: node -> provider, for the nodes that still exist.
        inside: operator and provider of nodes from inlined definitions, which have no names.
        failed: the message if the session could not be created.
    """

    where: dict[str, str] = field(default_factory=dict)
    inside: Counter[tuple[str, str]] = field(default_factory=Counter)
    failed: str = ""


def session_of(model: bytes, ours: bool, optimize: bool) -> Told:
    """Creates the session, in the worker process."""
    try:
        session = new_session(model, devices=int(ours), assignment=True, optimize=optimize)
    except Exception as error:  # ONNX Runtime's exception classes have no public base
        return Told(failed=one_line(error))
    parts = session.get_provider_graph_assignment_info()
    placed = [(node, WORDS[part.ep_name]) for part in parts for node in part.get_nodes()]
    inside = Counter((node.op_type, provider) for node, provider in placed if not node.name)
    return Told({node.name: provider for node, provider in placed if node.name}, inside)


def nodes_of(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from nodes_of(attribute.g)


def named(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the model with inlined functions, as ONNX Runtime inlines them, and with unique node names."""
    model = onnx.inliner.inline_local_functions(model) if model.functions and not _ours(model) else model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for number, node in enumerate(nodes_of(copy.graph)):
        node.name = f"{node.op_type}_{number}"
    return copy


def _is_valid(model: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return bool(model.opset_import)


def _ours(model: onnx.ModelProto) -> bool:
    return all(f.domain == DOMAIN for f in model.functions)


def _reads_what_is_not_folded(model: onnx.ModelProto, name: str, said: dict[str, PlacedNode], told: Told) -> bool:
    """Whether an input of the node was forecast as constant, but this session computes it on our device.

    A shape that is computed from such an input is not available on the host.
    """
    folded = {
        output
        for node in nodes_of(model.graph)
        if node.name in said and said[node.name].provider == "constant" and told.where.get(node.name) == "graphopt"
        for output in node.output
    }
    return any(not folded.isdisjoint(node.input) for node in nodes_of(model.graph) if node.name == name)


def differences(model: onnx.ModelProto, provider: str, worker: ProcessPoolExecutor) -> tuple[int, list[str]]:
    """Returns the number of nodes compared with sessions, and the differences."""
    said = {n.name: n for n in forecast(model, provider, min_nodes=2).nodes}
    wrong, held = [], 0
    for optimize in (True, False):
        told = worker.submit(session_of, model.SerializeToString(), provider == "graphopt", optimize).result()
        # An unknown operator version, a shape that ONNX Runtime infers differently, or a locale missing on this machine
        # prevents a placement.
        if any(word in told.failed for word in ("INVALID_GRAPH", "ShapeInferenceError", "Failed to construct locale")):
            continue
        nowhere = [n for n in said.values() if n.provider == "none"]
        if told.failed or nowhere:
            held += 1
            if not told.failed:
                wrong.append(f"{nowhere[0].name} foretold nowhere ({nowhere[0].reason}), and there is a session")
            elif not nowhere:
                wrong.append(f"no session: {told.failed[:160]}")
            continue
        expected = Counter((n.op, n.provider) for n in said.values() if "/" in n.name)
        if not optimize and provider == "graphopt":
            held += expected.total()
            wrong += [f"{op} of a definition foretold on {p}: {n}" for (op, p), n in (expected - told.inside).items()]
        for name, node in said.items():
            if "/" in name:
                continue
            real = told.where.get(name)
            if node.provider == "constant":
                # Without the optimizers no node is folded.
                if optimize:
                    held += 1
                    if real:
                        wrong.append(f"{name} foretold to be computed once, is on {real}")
            elif real is not None:
                held += 1
                if real != node.provider and (optimize or not _reads_what_is_not_folded(model, name, said, told)):
                    wrong.append(f"{name} foretold on {node.provider} ({node.reason}), is on {real}")
            elif not optimize and "by its definition" not in node.reason:
                held += 1
                wrong.append(f"{name} foretold on {node.provider}, and there is no such node")
    return held, wrong


def asked(part: str, files: Sequence[Path]) -> Iterator[tuple[str, onnx.ModelProto]]:
    if part == "nodes":
        for case in node_cases().values():
            model = as_known(case.model)
            if not _is_valid(model):  # an opset that ONNX Runtime does not know
                continue
            yield case.name, model
            for inputs, _ in (case.data_sets or ())[:1]:
                fixed = with_constant_integers(model, inputs)[0]
                if len(fixed.graph.input) < len(model.graph.input):
                    yield f"{case.name}, integers constant", fixed
        return
    if part == "zoo":
        found = (
            (f"{name}{', symbolic' * dynamic}", build(small=True, dynamic=dynamic))
            for name, build in ZOO.items()
            for dynamic in (False, True)
        )
    elif part == "trained":
        found = ((name, onnx.load(fetch(name))) for name in TRAINED)
    else:
        found = ((file.stem, onnx.load(file)) for file in files)
    for name, model in found:
        yield name, model
        yield f"{name}, optimized", graphopt.optimize(model, target="rocm")[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--only", help="parts, separated by commas: " + ", ".join(PARTS))
    parser.add_argument("--show", type=int, default=3, help="lines that differ, of each model")
    arguments = parser.parse_args()
    files = [f for path in arguments.files for f in (sorted(path.glob("*.onnx")) if path.is_dir() else [path])]
    parts = (arguments.only.split(",") if arguments.only else [] if files else list(PARTS)) + ["files"] * bool(files)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    total = 0
    with start_worker() as worker:
        for part in parts:
            models, held, lines = 0, Counter[str](), Counter[str]()
            for name, model in asked(part, files):
                models += 1
                for provider in ("graphopt", "cpu"):
                    try:
                        nodes, wrong = differences(named(model), provider, worker)
                    except Exception as error:  # continue with the other models
                        nodes, wrong = 1, [f"{type(error).__name__}: {one_line(error)[:200]}"]
                    held[provider] += nodes
                    lines[provider] += len(wrong)
                    for line in wrong[: arguments.show]:
                        print(f"{name}, {provider}: {line}", flush=True)
            said = "; ".join(f"{p}: {held[p]} lines, {lines[p]} otherwise" for p in held)
            print(f"{part}: {models} models; {said}", flush=True)
            total += lines.total()
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
