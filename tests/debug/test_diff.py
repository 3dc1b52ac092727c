"""`diff` groups the nodes that replace each other and misses no change."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import graphopt
from graphopt.debug.diff import diff
from models import ZOO
from tests.rewriting import model_from_text

BEFORE = "g (float[2, 3] x) => (float[2, 3] y) { a = Relu(x)  b = Neg(a)  c = Abs(b)  y = Add(c, w) }"
AFTER = "g (float[2, 3] x) => (float[2, 3] y) { a = Sigmoid(x)  c = Exp(a)  y = Add(c, w) }"
W = np.ones((2, 3), np.float32)


def test_equal_models() -> None:
    model = ZOO["resnet18"](small=True)
    assert diff(model, model).equal


def test_adjacent_rewrites_are_separate_groups() -> None:
    found = diff(model_from_text(BEFORE, {"w": W}), model_from_text(AFTER, {"w": W}))
    groups = [([n.op_type for n in h.removed], [n.op_type for n in h.added]) for h in found.neighbourhoods]
    assert groups == [(["Relu"], ["Sigmoid"]), (["Neg", "Abs"], ["Exp"])]
    assert not found.changed_initializers


def test_a_changed_weight_with_the_same_name_is_detected() -> None:
    found = diff(model_from_text(BEFORE, {"w": W}), model_from_text(BEFORE, {"w": -W}))
    assert not found.equal
    assert not found.neighbourhoods
    assert found.changed_initializers == ("w",)


def test_every_node_of_the_difference_is_in_one_neighbourhood() -> None:
    before = ZOO["bert"](small=True)
    after, report = graphopt.optimize(before, target="cpu", ignore_cost_model=True)
    found = diff(before, after)
    assert report.changed
    balance = sum(len(h.added) - len(h.removed) for h in found.neighbourhoods)
    assert balance == len(after.graph.node) - len(before.graph.node)


def test_command(graphopt_command: Callable[..., Any], tmp_path: Path) -> None:
    paths = [tmp_path / "a.onnx", tmp_path / "b.onnx"]
    for path, text in zip(paths, (BEFORE, AFTER)):
        onnx.save(model_from_text(text, {"w": W}), path)
    shown = graphopt_command("diff", *paths)
    assert shown.exit_code == 0
    assert "Sigmoid" in shown.stdout
    data = json.loads(graphopt_command("diff", *paths, "--json").stdout)
    assert len(data["neighbourhoods"]) == 2


def test_constants_that_moved_are_left_out() -> None:
    before = model_from_text(
        "g (float[2] x) => (float[2] y) { c = Constant <value = float[2] {3, 4}> ()  t = Add (x, w)  y = Mul (t, c) }",
        {"w": np.array([1, 2], np.float32)},
    )
    weights = {"other": np.array([1, 2], np.float32), "c": np.array([3, 4], np.float32)}
    after = model_from_text("g (float[2] x) => (float[2] y) { t = Add (x, other)  y = Mul (t, c) }", weights)
    found = diff(before, after)
    assert (found.removed_initializers, found.added_initializers) == ((), ())
    assert [[n.op_type for n in h.removed] for h in found.neighbourhoods] == [["Add"]]
    changed = model_from_text(
        "g (float[2] x) => (float[2] y) { t = Add (x, other)  y = Mul (t, c) }", {**weights, "other": weights["c"] + 9}
    )
    assert diff(before, changed).added_initializers == ("other",)
