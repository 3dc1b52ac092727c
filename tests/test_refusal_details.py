"""Details of refusals are read without the code: each is a sentence, with a verb."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import graphopt

pytestmark = pytest.mark.once
ROOT = Path(graphopt.__file__).parent
VERBS = frozenset(
    "adds are be belongs broadcasts can cannot computes contains count counts covers depends differ divide divides do "
    "does drops fit follows forbids fuses go has have holds interpret interprets is join lacks leaves lose make may "
    "multiplied multiplies multiply names need needs normalises reach reaches read reads refers requires say see stays "
    "supports take takes tells transposes varies was write writes".split()
)


def details() -> Iterator[tuple[str, ast.expr]]:
    """Yields the expression after each code: Refusal(Code.X, DETAIL), refuse(Code.X, DETAIL), (Code.X, DETAIL)."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call | ast.Tuple):
                continue
            parts = node.args if isinstance(node, ast.Call) else node.elts
            for code, detail in pairwise(parts):
                if isinstance(code, ast.Attribute) and ast.unparse(code.value) == "Code" and code.attr.isupper():
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", detail


def words(detail: ast.expr) -> set[str]:
    """Returns the words of a text, or those outside the fields of an f-string."""
    parts = detail.values if isinstance(detail, ast.JoinedStr) else [detail]
    texts = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    return {*re.findall(r"[a-z]+", " ".join(texts).lower())}


def test_each_detail_is_a_sentence() -> None:
    found = [(place, d) for place, d in details() if isinstance(d, ast.Constant | ast.JoinedStr)]
    assert len(found) > 200
    assert not [f"{place}: {ast.unparse(d)}" for place, d in found if not words(d) & VERBS]
