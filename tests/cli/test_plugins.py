"""Passes of other packages: the one of docs/recipes.md, installed like a package."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

import graphopt
from graphopt.errors import OptionError
from graphopt.passes import plugins
from graphopt.pipeline import MAX_ROUNDS
from tests.rewriting import model_from_text

pytestmark = pytest.mark.once

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "recipes.md").read_text()
TEXT = "g (float[N] x) => (float[N] y) { a = Neg (x)  y = Abs (a) }"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages that contains the recipe's package."""
    (tmp_path / "my_passes.py").write_text(re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)[-1])
    about = tmp_path / "my_passes-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-passes\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[graphopt.passes]\nabs_of_neg = my_passes:AbsOfNeg\n")
    monkeypatch.syspath_prepend(tmp_path)
    plugins.installed.cache_clear()
    yield tmp_path
    plugins.installed.cache_clear()
    sys.modules.pop("my_passes", None)


def test_a_pass_of_another_package(package: Path) -> None:
    optimized, report = graphopt.optimize(model_from_text(TEXT, {}), target="cpu")
    assert [n.op_type for n in optimized.graph.node] == ["Abs"]
    assert [(r.pass_name, r.detail) for r in report.remarks] == [("abs_of_neg", "without the Neg before it")]
    _, without = graphopt.optimize(model_from_text(TEXT, {}), target="cpu", skip=["abs_of_neg"])
    assert not without.changed
    foreign = model_from_text(TEXT.replace("Neg (x)", "mine.Neg (x)"), check=False)
    foreign.opset_import.append(onnx.helper.make_opsetid("mine", 1))
    assert not graphopt.optimize(foreign, target="cpu")[1].changed
    path = package / "in.onnx"
    onnx.save(model_from_text(TEXT, {}), path)
    code = f"import sys; sys.path.insert(0, {str(package)!r}); from graphopt.cli import main; main()"
    command = [sys.executable, "-c", code, "passes"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "abs_of_neg" in shown and "Abs(Neg(x)) -> Abs(x)" in shown


def test_it_visits_a_rewritten_node_again(package: Path) -> None:
    """Otherwise each Neg needs a round, and the rounds are limited."""
    nodes = [f"v{i + 1} = Neg (v{i})" for i in range(MAX_ROUNDS + 1)]
    text = f"g (float[N] v0) => (float[N] y) {{ {' '.join(nodes)} y = Abs (v{len(nodes)}) }}"
    optimized, report = graphopt.optimize(model_from_text(text), target="cpu")
    assert [n.op_type for n in optimized.graph.node] == ["Abs"] and not report.notes


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("my_passes:Nothing", "cannot be loaded: AttributeError"),
        ("no_such_module:Pass", "cannot be loaded: ModuleNotFoundError"),
        ("builtins:dict", "is not a subclass of graphopt.passes.Pass"),
        ("graphopt.passes.winograd_conv:WinogradConv", "has the name 'winograd_conv' of another pass"),
    ],
)
def test_a_package_that_is_wrong_is_named(package: Path, entry: str, words: str) -> None:
    (package / "my_passes-1.0.dist-info" / "entry_points.txt").write_text(f"[graphopt.passes]\nmine = {entry}\n")
    with pytest.raises(OptionError, match=re.escape(words)) as refused:
        graphopt.optimize(model_from_text(TEXT, {}), target="cpu")
    assert "the pass 'mine' of my-passes" in str(refused.value)
