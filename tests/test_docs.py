"""What the documentation says is true: its examples run, and its tables list what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from graphopt.ops import OPS
from graphopt.passes import PASSES
from graphopt.remarks import Code

DOCS = Path(__file__).resolve().parent.parent / "docs"
EXAMPLES = [
    pytest.param(page, example, id=f"{page}-{i}")
    for page in ("usage.md", "guide.md", "measuring.md")
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


def test_every_refusal_code_is_listed() -> None:
    text = (DOCS / "refusals.md").read_text()
    for code in Code:
        assert f"| {code.name} | {code.meaning} | {code.advice} |" in text
        assert f"\n## {code.name}\n" in text


def test_every_pass_has_a_page() -> None:
    assert {p.name for p in PASSES} == {page.stem for page in (DOCS / "passes").glob("*.md")}


def test_links_lead_somewhere() -> None:
    root = DOCS.parent
    for page in [*DOCS.rglob("*.md"), *root.glob("*.md")]:
        prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", prose):
            assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"
