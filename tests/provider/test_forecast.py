"""`explain --provider` predicts the placement of a later session."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import graphopt
from graphopt.placement import forecast, ours
from models import ZOO
from tests.conformance.node_cases import node_cases
from tests.hostile.native_worker import taken_by_the_provider
from tests.provider import forecast_audit
from tests.provider.test_onnx_node_tests import as_known
from tests.provider.worker import PROVIDER, new_session
from tests.rewriting import model_from_text

Placed = dict[str, str]


def placed(model: bytes) -> Placed:
    """Returns node -> provider in a session with all of ONNX Runtime's optimizations."""
    session = new_session(model, assignment=True, optimize=True)
    parts = session.get_provider_graph_assignment_info()
    return {node.name: part.ep_name for part in parts for node in part.get_nodes()}


def given(model: bytes, min_nodes: str = "2") -> Placed:
    """Returns operator -> provider in a session without ONNX Runtime's optimizations."""
    parts = new_session(model, {"min_nodes": min_nodes}, assignment=True).get_provider_graph_assignment_info()
    words = {PROVIDER: "graphopt", "CPUExecutionProvider": "cpu"}
    return {node.op_type: words[part.ep_name] for part in parts for node in part.get_nodes()}


def differences(model: onnx.ModelProto, truth: Placed) -> list[str]:
    """Describes the wrong forecasts for the nodes that exist in the session."""
    said = forecast(model, "graphopt", min_nodes=2)
    words = {PROVIDER: "graphopt", "CPUExecutionProvider": "cpu"}
    return [
        f"{n.name} ({n.op}): said {n.provider} ({n.reason}), is {truth[n.name]}"
        for n in said.nodes
        if n.name in truth and n.provider != words[truth[n.name]]
    ]


# scripts/sweep tests all operators, also with static shapes.
EVERY = os.environ.get("GRAPHOPT_TEST_EVERY_OPERATOR") == "1"


@pytest.mark.parametrize("dynamic", [False, True] if EVERY else [True])
@pytest.mark.parametrize("name", list(ZOO) if EVERY else ["resnet18", "bert", "gpt2", "sd_block"])
def test_forecasts_match_sessions(name: str, dynamic: bool, worker: ProcessPoolExecutor) -> None:
    original = ZOO[name](small=True, dynamic=dynamic)
    optimized, _ = graphopt.optimize(original, target="cuda")
    for model in (original, optimized):
        truth = worker.submit(placed, model.SerializeToString()).result()
        assert len(truth) > 5
        assert differences(model, truth) == []


@pytest.mark.parametrize(("size", "provider"), [(8, "cpu"), (256, "graphopt")])
def test_groups_are_placed_by_their_estimated_times(size: int, provider: str, worker: ProcessPoolExecutor) -> None:
    text = f"""g (float[1, 64, {size}, {size}] x) => (float[1, 64, {size}, {size}] z) {{
        y = Conv <pads = [1, 1, 1, 1]> (x, w)  z = Relu (y) }}"""
    model = model_from_text(text, {"w": np.ones((64, 64, 3, 3), np.float32)})
    said = forecast(model, "graphopt")
    assert {n.provider for n in said.nodes} == {provider}
    assert set(worker.submit(given, model.SerializeToString(), "0").result().values()) == {provider}
    if provider == "graphopt":
        [group] = said.claimed
        assert group.nodes == 2 and group.cpu is not None and 0 < group.device < group.cpu
    else:
        assert not said.claimed and "2 adjacent nodes take an estimated" in said.nodes[0].reason


def test_nodes_of_inlined_definitions(worker: ProcessPoolExecutor) -> None:
    """ONNX Runtime offers the nodes of a definition after the nodes around them were compiled into a region."""
    text = """g (float[N, 4] x) => (float[N, 4] y) {
        c = CastLike (k, x)  s = Add (x, c)  y = Relu (s) }"""
    model = model_from_text(text, {"k": np.ones(4, np.int32)}, opset=20)
    assert {n.op: n.provider for n in forecast(model, "graphopt", min_nodes=2).nodes} == dict.fromkeys(
        ("Cast", "Add", "Relu"), "graphopt"
    )
    assert worker.submit(given, model.SerializeToString()).result() == dict.fromkeys(
        ("Cast", "Add", "Relu"), "graphopt"
    )


def test_a_definition_next_to_a_node_on_the_cpu(worker: ProcessPoolExecutor) -> None:
    """A single Max is left to the CPU: Mish is expanded later, when a region with Max would be refused."""
    model = model_from_text(
        "g (float[N, 4] x, float[N, 4] y) => (float[N, 4] z) { m = Mish (x)  z = Max (m, y) }", opset=18
    )
    wanted = {**dict.fromkeys(("Softplus", "Tanh", "Mul"), "graphopt"), "Max": "cpu"}
    assert {n.op: n.provider for n in forecast(model, "graphopt", min_nodes=2).nodes} == wanted
    assert worker.submit(given, model.SerializeToString()).result() == wanted


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            "test_attention_4d_causal_nonpad_continued_prefill", id="a definition of a node without some inputs"
        ),
        pytest.param("test_attention_local_window_ext_cache_rank3_head_mask", id="and of one without some outputs"),
        pytest.param("test_range_float_type_positive_delta_expanded", id="a body whose inputs have no types"),
        pytest.param("test_relu_expanded_ver18", id="a definition beside a node that the CPU has"),
        pytest.param("test_sce_NCd1d2d3d4d5_none_no_weight", id="a rank that follows from another input's shape"),
    ],
)
def test_node_tests_that_are_hard_to_foretell(name: str, worker: ProcessPoolExecutor) -> None:
    model = forecast_audit.named(as_known(node_cases()[name].model))
    for provider in ("graphopt", "cpu"):
        held, wrong = forecast_audit.differences(model, provider, worker)
        assert not wrong
        assert held or provider == "cpu"  # with `cpu` only nodes from definitions can remain


@pytest.mark.parametrize("provider", ["graphopt", "cpu"])
def test_a_shape_computed_from_a_part_of_another(provider: str, worker: ProcessPoolExecutor) -> None:
    """ONNX Runtime computes [2, 4] as a constant only if it knows all sizes of x, also the size that is not read."""
    text = """g (float[{x}] x) => (float[a, b] y, int64[2] z) {{
        sizes = Shape (x)
        few = Gather (sizes, ends)
        made = ConstantOfShape <value = float[1] {{1.0}}> (few)
        again = Shape (made)
        z = Neg (again)
        y = Relu (made)
    }}"""
    for x, once in (("2, n, 4", set()), ("2, 3, 4", {"Shape", "Gather", "ConstantOfShape", "Neg", "Relu"})):
        model = forecast_audit.named(model_from_text(text.format(x=x), {"ends": np.array([0, 2])}))
        said = forecast(model, provider).nodes
        assert {n.op for n in said if n.provider == "constant"} == once
        held, wrong = forecast_audit.differences(model, provider, worker)
        assert held > 0 and wrong == []


def test_a_loop_over_a_sequence(worker: ProcessPoolExecutor) -> None:
    model = node_cases()["test_loop13_seq"].model or onnx.ModelProto()
    said = {n.op: n.provider for n in forecast(model, "graphopt", min_nodes=2).nodes}
    assert said["Loop"] == "cpu"
    assert worker.submit(given, model.SerializeToString()).result() == said


def test_the_page_lists_the_operators_of_the_provider() -> None:
    """The table of docs/provider_reference.md lists exactly the ONNX operators that the provider has."""
    names = sorted({schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""})
    nodes = [ir.node(name, []) for name in names]
    # No operator has a version 0, so the provider refuses the operators that it has for their version.
    said, _ = ours.place(nodes, [0] * len(nodes), set(), {}, {}, None, [], set())
    has = {name for name, why in zip(names, said, strict=True) if why != "no kernel for this operator"}
    assert has == taken_by_the_provider()
