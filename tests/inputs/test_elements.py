"""Element values that `verify` tries: ends of types, tree thresholds, ties, constant rows, full masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphopt
from graphopt.inputs.declared import deserialized
from graphopt.inputs.filling import DESCRIPTIONS
from graphopt.inputs.plan import Case
from graphopt.inputs.trees import Column, Decision, Ensemble, rows_of
from graphopt.inputs.uses import only_compared, uses_of
from tests.inputs.cases import make_cases
from tests.rewriting import Array, model_from_text


def _feeds(model: onnx.ModelProto, name: str) -> list[Array]:
    return [np.asarray(case.feeds[name]) for case in make_cases(model, seed=0)]


def _by_name(model: onnx.ModelProto) -> dict[str, Case]:
    return {case.name: case for case in make_cases(model, seed=0)}


# -- integers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint32", "uint64", "int16"])
def test_integers_reach_the_limits_of_their_type(dtype: str) -> None:
    model = model_from_text(f"g ({dtype}[N] x) => (int64[N] y) {{ y = Cast <to: int = 7> (x) }}")
    values = np.concatenate([a.reshape(-1) for a in _feeds(model, "x")])
    limits = np.iinfo(dtype)
    assert limits.min in values and limits.max in values
    lengths = {abs(int(n)).bit_length() for n in values}
    assert len(lengths) > limits.bits - 6


def test_a_timestamp_that_is_narrowed() -> None:
    day = {"k": np.array(86400), "narrow": np.array(86400, np.int32)}
    before = model_from_text("g (int64[N] t) => (int64[N] y) { y = Div(t, k) }", {"k": day["k"]})
    after = model_from_text(
        "g (int64[N] t) => (int64[N] y) { c = Cast <to: int = 6> (t) d = Div(c, narrow) y = Cast <to: int = 7> (d) }",
        {"narrow": day["narrow"]},
    )
    assert not graphopt.verify(before, after, effort="quick")


@pytest.mark.parametrize(
    ("body", "most"),
    [
        ("y = Gather(table, x)", 20),
        ("m = Mod(x, seven) y = Gather(table, m)", None),
        ("q = Div(ten, x) y = Gather(table, q)", 1000),
    ],
)
def test_integers_with_a_limit_keep_it(body: str, most: int | None) -> None:
    constants = {"table": np.ones((20, 2), np.float32), "seven": np.array(7), "ten": np.array(10)}
    used = {n: a for n, a in constants.items() if n in body}
    model = model_from_text(f"g (int64[N] x) => (float y) {{ {body} }}", used)
    values = np.concatenate([a.reshape(-1) for a in _feeds(model, "x")])
    assert (np.abs(values.astype(float)).max() > 1e18) if most is None else int(np.abs(values).max()) <= most
    if "Div" in body:
        assert values.min() > 0  # an integer division by 0 kills the process


def test_a_comparison_with_a_large_integer() -> None:
    model = model_from_text("g (int64[N] x) => (bool[N] y) { y = Less(x, far) }", {"far": np.array(1 << 40)})
    values = np.concatenate([a.reshape(-1) for a in _feeds(model, "x")])
    assert {(1 << 40) - 1, 1 << 40, (1 << 40) + 1} <= set(values.tolist())


WHILE = """g (float[N, 4] x, int64 n) => (float[N, 4] y) {
    zero = Constant <value_int: int = 0> () some = Less(zero, n)
    y = Loop(, some, x) < body = b (int64 i, bool c, float[N, 4] a) => (bool d, float[N, 4] e) {
        e = Tanh(a) one = Constant <value_int: int = 1> () j = Add(i, one) d = Less(j, n) } > }"""


def test_loops_end() -> None:
    """An integer that bounds a loop is not drawn from its whole range: 2^63 iterations never end."""
    model = model_from_text(WHILE)
    assert uses_of(deserialized(model))["n"].loops
    turns = {int(a.item()) for a in _feeds(model, "n")}
    assert {0, 1, 257} <= turns and max(turns) <= 257


# -- trees -----------------------------------------------------------------------------------------------------------


def _tree(**changes: Any) -> onnx.ModelProto:
    """x0 <= 0.5 ? 1 : x1 <= 3.25 ? 2 : 4, after a Scaler that doubles x1."""
    given: dict[str, Any] = {
        "nodes_treeids": [0] * 5,
        "nodes_nodeids": [0, 1, 2, 3, 4],
        "nodes_featureids": [0, 0, 1, 0, 0],
        "nodes_values": [0.5, 0.0, 3.25, 0.0, 0.0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 3, 0, 0],
        "nodes_falsenodeids": [2, 0, 4, 0, 0],
        "target_treeids": [0] * 3,
        "target_nodeids": [1, 3, 4],
        "target_ids": [0] * 3,
        "target_weights": [1.0, 2.0, 4.0],
        "n_targets": 1,
    }
    node = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", **{**given, **changes})
    return _of_node(node, 3)


def _tree_of_version_5(split: float, mode: int) -> onnx.ModelProto:
    """x1 <= split ? 2 : 4, with the leaves stored separately."""
    node = helper.make_node(
        "TreeEnsemble",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        n_targets=1,
        aggregate_function=1,
        post_transform=0,
        nodes_featureids=[1],
        nodes_modes=numpy_helper.from_array(np.array([mode], np.uint8), "modes"),
        nodes_splits=numpy_helper.from_array(np.array([split], np.float32), "splits"),
        nodes_truenodeids=[0],
        nodes_trueleafs=[1],
        nodes_falsenodeids=[1],
        nodes_falseleafs=[1],
        tree_roots=[0],
        leaf_targetids=[0, 0],
        leaf_weights=numpy_helper.from_array(np.array([2, 4], np.float32), "weights"),
    )
    return _of_node(node, 5)


def _of_node(node: onnx.NodeProto, version: int) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 1])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", version)]
    return helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets, ir_version=9)


@pytest.mark.parametrize(
    "changes",
    [
        {"nodes_values": [0.5, 0.0, 3.251, 0.0, 0.0]},
        {"nodes_modes": ["BRANCH_LEQ", "LEAF", "BRANCH_LT", "LEAF", "LEAF"]},
    ],
    ids=["threshold", "comparison"],
)
def test_a_decision_deep_in_a_tree(changes: dict[str, Any]) -> None:
    before = _tree()
    assert only_compared(deserialized(before)) == {"x"}
    report = graphopt.verify(before, _tree(**changes), effort="quick")
    assert not report and report.worst is not None and report.worst.case == "tree thresholds"
    assert graphopt.verify(before, before, effort="quick")


@pytest.mark.parametrize("other", [(3.251, 0), (3.25, 1)], ids=["threshold", "comparison"])
def test_a_decision_of_the_newer_operator(other: tuple[float, int]) -> None:
    rows = _by_name(_tree_of_version_5(3.25, 0))["tree thresholds"].feeds["x"][:, 1]
    assert {3.25, float(np.nextafter(np.float32(3.25), np.float32(9)))} <= set(rows.tolist())
    assert not graphopt.verify(_tree_of_version_5(3.25, 0), _tree_of_version_5(*other), effort="quick")


@pytest.mark.parametrize("holds", [False, True])
def test_decisions_without_an_order_restrict_no_element(holds: bool) -> None:
    """The split of BRANCH_MEMBER has no meaning, because the operator compares with a list of values."""
    columns = {0: Column("x", 0), 1: Column("x", 1)}
    decision = Decision(1, 2.0, "BRANCH_LEQ", ((0, "BRANCH_MEMBER", 3.0, holds),))
    rows = rows_of([Ensemble(columns, [decision])])
    assert len(rows) == 3 and all(row.keys() == {("x", 1)} for row in rows)


def test_a_decision_with_a_threshold_of_nan_gets_no_row() -> None:
    """NaN occurs as the split of BRANCH_MEMBER, and no element is next to it."""
    decisions = [Decision(0, float("nan"), "BRANCH_MEMBER", ()), Decision(0, 2.0, "BRANCH_LEQ", ())]
    rows = rows_of([Ensemble({0: Column("x", 0)}, decisions)])
    near = {float(np.nextafter(np.float32(2), np.float32(limit))) for limit in (-9, 9)}
    assert {row["x", 0] for row in rows} == {2.0, *near}


@pytest.mark.parametrize("path", ["Scaler", "Concat", "Sub"])
def test_thresholds_of_trees_after_other_operators(path: str) -> None:
    """x1 reaches 3.25 through a Scaler, a Concat of columns or a difference in front of the tree."""
    model = _tree()
    tree = model.graph.node[0]
    if path == "Concat":
        del model.graph.input[:]
        for name in ("a", "x1"):
            model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 1]))
        node = helper.make_node("Concat", ["a", "x1"], ["c"], axis=1)
    elif path == "Scaler":
        node = helper.make_node("Scaler", ["x"], ["c"], domain="ai.onnx.ml", offset=[0.0, 1.0], scale=[1.0, 2.0])
    else:
        model.graph.initializer.append(numpy_helper.from_array(np.array([0.0, 1.0], np.float32), "means"))
        node = helper.make_node("Sub", ["x", "means"], ["c"])
    tree.input[0] = "c"
    del model.graph.node[:]
    model.graph.node.extend([node, tree])
    feeds = _by_name(model)["tree thresholds"].feeds
    column = feeds["x1"][:, 0] if path == "Concat" else feeds["x"][:, 1]
    assert {"Concat": 3.25, "Scaler": 2.625, "Sub": 4.25}[path] in column.tolist()


# -- floats ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "factor", "offset"),
    [
        ("y = Round(x)", 1, 0.5),
        ("d = Div(x, four) y = Round(d)", 0.25, 0.5),
        ("y = Floor(x)", 1, 0),
        ("i = Cast <to: int = 7> (x) y = Cast <to: int = 1> (i)", 1, 0),
    ],
)
def test_ties(body: str, factor: float, offset: float) -> None:
    model = model_from_text(f"g (float[N, 6] x) => (float[N, 6] y) {{ {body} }}", {"four": np.float32(4)})
    array = _by_name(model)["ties"].feeds["x"].astype(np.float64) * factor - offset
    assert (array == np.rint(array)).all() and array.min() < 0 < array.max()


def test_half_to_even_is_not_half_away_from_zero() -> None:
    before = model_from_text("g (float[N, 6] x) => (float[N, 6] y) { y = Round(x) }")
    after = model_from_text(
        "g (float[N, 6] x) => (float[N, 6] y) { a = Abs(x) e = Add(a, h) f = Floor(e) s = Sign(x) y = Mul(f, s) }",
        {"h": np.float32(0.5)},
    )
    report = graphopt.verify(before, after)
    assert not report and report.worst is not None and report.worst.case == "ties"


def test_rows_of_one_value_and_one_hot() -> None:
    cases = _by_name(model_from_text("g (float[N, L, 8] x) => (float[N, L, 8] y) { y = Relu(x) }"))
    rows, hot = (cases[name].feeds["x"] for name in ("equal rows", "one-hot"))
    assert (rows == rows[..., :1]).all() and len(np.unique(rows[..., 0])) > 1
    assert (np.sort(hot, axis=-1) == [0] * 7 + [1]).all()
    image = _by_name(model_from_text("g (float[N, 3, H, W] x) => (float[N, 3, H, W] y) { y = Relu(x) }"))
    planes = image["equal rows"].feeds["x"]
    assert (planes == planes[..., :1, :1]).all()


def test_masks_that_hide_every_key_by_either_number() -> None:
    text = """g (float[B, T, 4] q, float[B, 1, T] m) => (float[B, T, T] y) {
        k = Transpose <perm: ints = [0, 2, 1]> (q) s = MatMul(q, k) z = Add(s, m) y = Softmax <axis: int = -1> (z) }"""
    cases = _by_name(model_from_text(text))
    for name, number in (("no key", -1e4), ("no key, -1e9", -1e9), ("padded away, -1e9", -1e9)):
        assert (cases[name].feeds["m"][1:] == np.float32(number)).all()


KEYS = """g (float[N, S, 8] x, int64[N, S] mask) => (float[N, 8] y) {{
    f = Cast <to: int = 1> (mask) i = Sub(one, f) bias = Mul(i, low) s = MatMul(x, v) t = Squeeze(s, two)
    l = Add(t, bias) p = Softmax <axis: int = 1> (l) u = Unsqueeze(p, two) q = Mul(u, x) {end} }}"""


def test_zero_where_no_key_is_seen() -> None:
    constants = {
        "one": np.float32(1),
        "low": np.float32(-1e9),
        "v": np.linspace(-1, 1, 8, dtype=np.float32).reshape(8, 1),
        "two": np.array([2]),
        "first": np.array([1]),
    }
    before = model_from_text(KEYS.format(end="y = ReduceSum <keepdims: int = 0> (q, first)"), constants, opset=18)
    guarded = "r = ReduceSum <keepdims: int = 0> (q, first) n = ReduceMax(f, first) y = Mul(r, n)"
    assert not graphopt.verify(before, model_from_text(KEYS.format(end=guarded), constants, opset=18))


def test_the_report_names_inconclusive_outputs() -> None:
    """For small x, (x + 1e6) - 1e6 consists of the rounding of the sum."""
    text = "g (float[N, 8] x) => (float[N, 8] y) { s = Add(x, far) y = Sub(s, far) }"
    before = model_from_text(text, {"far": np.full(8, 1e6, np.float32)})
    after = model_from_text(text, {"far": np.full(8, 1.5e6, np.float32)})
    report = graphopt.verify(before, after)
    noise = {row.case for row in report.rows if row.reason == "rounding noise"}
    assert noise
    assert any(n.startswith("output 'y' is inconclusive on '") and "rounding alone moves" in n for n in report.notes)


def test_each_name_of_a_case_has_a_meaning() -> None:
    text = "g (float[N, L, 8] x, int64[N, L] i, bool[N, L] m) => (float[N, L, 8] y, int64[N, L] j, bool[N, L] k) "
    model = model_from_text(text + "{ y = Round(x) j = Neg(i) k = Not(m) }")
    for case in make_cases(model, seed=0):
        kind = case.name.split(", ")[0]
        assert case.about or kind.startswith(("normal", "N=", "batch"))
        assert kind not in DESCRIPTIONS or DESCRIPTIONS[kind] in case.about
