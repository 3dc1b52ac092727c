"""`bisect` finds a planted fault: the pass, the site and a minimal model around it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import onnx_ir as ir
import pytest

from graphopt.debug.bisect import bisect
from graphopt.debug.first_difference import first_difference
from graphopt.errors import EXIT_RANDOM
from graphopt.graph.editor import Editor
from graphopt.metadata import Numerics
from graphopt.passes.base import Pass
from graphopt.passes.registry import PASSES
from graphopt.verification.verify import Verdict
from models import ZOO
from tests.rewriting import model_from_text, run
from tests.verification.test_verify import feeds_of


class WrongAtOneSite(Pass[ir.Node, ir.Node]):
    """Replaces every MaxPool by a copy of itself; the copy of the second MaxPool has a smaller window."""

    name = "wrong_at_one_site"
    equation = "none"
    numerics = Numerics.EXACT
    anchors = frozenset({("", "MaxPool")})

    def match(self, node: ir.Node, editor: Editor) -> ir.Node | None:
        return None if "seen" in node.metadata_props else node

    def legal(self, match: ir.Node, editor: Editor) -> ir.Node:
        return match

    def rewrite(self, plan: ir.Node, editor: Editor) -> str:
        wrong = plan.name == "MaxPool_2"
        changes = {"kernel_shape": [1, 1]} if wrong else {}
        editor.rewire(plan, plan.inputs, changes)
        plan.metadata_props["seen"] = "yes"
        plan.name = f"{plan.name}_new"
        editor.replace([], [plan], {}, anchor=plan)
        return "planted" if wrong else "harmless"


def test_finds_the_planted_fault() -> None:
    model = ZOO["vgg16_bn"](small=True)
    assert [n.name for n in model.graph.node if n.op_type == "MaxPool"][1] == "MaxPool_2"
    result = bisect(model, target="cpu", ignore_cost_model=True, passes=[*PASSES[:5], WrongAtOneSite(), *PASSES[5:]])
    assert result.culprit is not None
    assert result.culprit.pass_name == "wrong_at_one_site"
    assert result.culprit.nodes == ("MaxPool_2",)
    assert result.culprit.detail == "planted"
    assert result.minimal is not None
    minimal = ir.serde.serialize_model(result.minimal)
    assert [n.op_type for n in minimal.graph.node] == ["MaxPool"]
    onnx.checker.check_node(minimal.graph.node[0])


def test_a_model_that_runs_only_at_the_default_level() -> None:
    """The runtime has no float64 Erf kernel; at its default level it removes this Erf, since only its shape is read."""
    pool = "MaxPool <kernel_shape: ints = [3, 3], pads: ints = [1, 1, 1, 1]>"
    model = model_from_text(
        f"""g (float[1, 2, 8, 8] x, double[4, 8] u) => (float[1, 2, H, W] y, int64[2] s) {{
            e = Erf(u) s = Shape(e) a = {pool} (x) y = {pool} (a) }}"""
    )
    for i, node in enumerate(node for node in model.graph.node if node.op_type == "MaxPool"):
        node.name = f"MaxPool_{i + 1}"
    result = bisect(model, target="cpu", passes=[WrongAtOneSite()])
    assert result.culprit is not None and result.culprit.nodes == ("MaxPool_2",), result.summary
    assert "at the runtime's default level" in result.summary
    assert result.minimal is not None


def test_random_outputs_are_not_the_culprit() -> None:
    """One output is random: the culprit is still found, and a comparison of providers reports a random model."""
    pool = "MaxPool <kernel_shape: ints = [3, 3]>"
    model = model_from_text(
        f"""g (float[1, 2, 8, 8] x) => (float[1, 2, H, W] y, float[1, 2, 8, 8] r) {{
            r = RandomNormalLike(x) a = {pool} (x) y = {pool} (a) }}"""
    )
    for i, node in enumerate(node for node in model.graph.node if node.op_type == "MaxPool"):
        node.name = f"MaxPool_{i + 1}"
    result = bisect(model, target="cpu", passes=[WrongAtOneSite()])
    assert result.culprit is not None and result.culprit.nodes == ("MaxPool_2",), result.summary
    found = first_difference(model, ["cpu", "cpu"])
    assert (found.verdict, found.value) == (Verdict.RANDOM, None)


def test_healthy_model_has_no_culprit(graphopt_command: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "in.onnx"
    model = ZOO["resnet18"](small=True)
    onnx.save(model, path)
    result = graphopt_command("bisect", path, "--target", "cpu", "--ignore-cost-model")
    assert result.exit_code == 0
    assert "equal" in result.stdout
    assert run(model, feeds_of(model, 0))


def test_a_random_model_has_no_culprit(graphopt_command: Callable[..., Any], tmp_path: Path) -> None:
    """If the original differs from itself, no rewrite can be blamed."""
    text = "g (float[4, 4] x) => (float[4, 4] y) { n = RandomNormalLike (x)  t = Identity (n)  y = Add (t, x) }"
    onnx.save(model_from_text(text, {}), tmp_path / "in.onnx")
    result = graphopt_command("bisect", tmp_path / "in.onnx", "--target", "cpu")
    assert (result.exit_code, result.stderr) == (EXIT_RANDOM, "")
    assert result.stdout.startswith("random after its one rewrite: ")
    result = graphopt_command("bisect", tmp_path / "in.onnx", "--providers", "cpu,cpu")
    assert (result.exit_code, result.stderr) == (EXIT_RANDOM, "") and result.stdout.startswith("random: ")


def test_a_difference_by_fusion_is_not_blamed_on_an_equal_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only b differs, and only with a and b's node fused; the nodes of the other output come later."""

    def verify(before: Any, after: Any, **options: Any) -> Any:
        model = before if isinstance(before, ir.Model) else ir.serde.deserialize_model(before)
        names = [value.name for value in model.graph.outputs]
        wrong = names in (["b"], ["b", "f"])
        rows = [SimpleNamespace(name=name, equal=not (wrong and name == "b")) for name in names]
        verdict = Verdict.DIFFERENT if wrong else Verdict.EQUAL
        return SimpleNamespace(verdict=verdict, rows=rows, summary="", feeds={})

    monkeypatch.setattr("graphopt.debug.first_difference.verify", verify)
    text = """g (float[2] x) => (float[2] b, float[2] f) {
        a = Abs (x)  b = Neg (a)  c = Exp (x)  d = Neg (c)  e = Exp (d)  f = Neg (e) }"""
    found = first_difference(model_from_text(text), ["cpu", "cpu"])
    assert (found.value, found.alone) == ("b", True)
