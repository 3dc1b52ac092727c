"""What the documentation says is true: its examples run, and its tables list what there is."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest
from typer.testing import CliRunner

from graphopt.cli.root import app
from graphopt.ops import OPS
from graphopt.passes import PASSES
from graphopt.remarks import Code
from tests.hip.architectures import own_code

DOCS = Path(__file__).resolve().parent.parent / "docs"
EXAMPLES = [
    pytest.param(page, example, id=f"{page}-{i}")
    for page in ("usage.md", "guide.md", "measuring.md", "recipes.md")
    for i, example in enumerate(re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S))
]


@pytest.mark.parametrize(("page", "example"), EXAMPLES)
def test_example_runs(page: str, example: str) -> None:
    exec(compile(example, page, "exec"), {})


def test_every_operator_is_listed() -> None:
    rows = [line.split(" | ") for line in (DOCS / "ops.md").read_text().splitlines() if line.startswith("| ")][1:]
    listed = {
        name.removeprefix("| "): (inputs.split(", "), outputs.split(", "), attributes, oldest.removesuffix(" |"))
        for name, inputs, outputs, attributes, oldest in rows
    }
    actual = {
        spec.name: (
            list(spec.inputs),
            list(spec.outputs),
            ", ".join(f"{k}: {v.name.lower()}" for k, v in spec.attributes.items()) or "-",
            str(spec.min_opset),
        )
        for spec in OPS.values()
    }
    assert listed == actual


def test_every_refusal_code_has_a_page() -> None:
    index = (DOCS / "refusals" / "README.md").read_text()
    rows = [f"| [{c.name}]({c.name}.md) | {c.meaning} | {c.advice} |" for c in Code]
    assert [line for line in index.splitlines() if line.startswith("| [")] == rows
    assert {page.name for page in (DOCS / "refusals").iterdir()} == {f"{c.name}.md" for c in Code} | {"README.md"}


@pytest.mark.parametrize("code", Code, ids=lambda c: c.name)
def test_example_of_a_refusal(code: Code, tmp_path: Path) -> None:
    """The command on the page, over the model on the page, prints the line on the page."""
    page = DOCS.parent / code.page
    text = page.read_text()
    assert text.startswith(f"# {code.name}\n\nMeaning: {code.meaning}.\n")
    for heading in ("Example", "What decided", "What to do"):
        assert re.search(rf"^## {heading}\n\n.+", text, re.M)
    model, line = re.findall(r"^```\n(.*?)\n```", text, re.M | re.S)
    (command,) = re.findall(r"^`graphopt (.*)` prints$", text, re.M)
    onnx.save(onnx.parser.parse_model(model), tmp_path / "model.onnx")
    arguments = command.replace("model.onnx", str(tmp_path / "model.onnx")).split()
    shown = CliRunner().invoke(app, arguments).stdout.splitlines()
    assert line in [shown_line.strip() for shown_line in shown]
    assert f": {code.name}: " in line
    assert line.endswith(f"see graphopt explain {code.name}")


def test_every_pass_has_a_page() -> None:
    assert {p.name for p in PASSES} == {page.stem for page in (DOCS / "passes").glob("*.md")}


def test_links_lead_somewhere() -> None:
    root = DOCS.parent
    for page in [*DOCS.rglob("*.md"), *root.glob("*.md")]:
        prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", prose):
            assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_architecture_is_listed() -> None:
    (row,) = re.findall(r"^\| clang 22 \| (.*) \|$", (DOCS / "gpu.md").read_text(), re.MULTILINE)
    assert row.split(", ") == own_code()
