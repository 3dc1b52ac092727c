"""Writes what pages of docs/ repeat of the code and of each other: operators, activations, architectures and codes.

.venv/bin/python scripts/pages.py      # tests/test_docs.py fails where it would change a page
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from graphopt.contrib import table as contrib  # noqa: E402
from graphopt.ops import OPS  # noqa: E402
from graphopt.ops.activation import ACTIVATIONS, SLOPED  # noqa: E402
from graphopt.remarks import Code  # noqa: E402
from tests.hip.architectures import own_code  # noqa: E402

DOCS = ROOT / "docs"


def with_rows(text: str, heading: str, rows: Sequence[str]) -> str:
    """The page with other rows in the table whose first column is called so.

    Raises:
        ValueError: no table of the page is, or several are.

    """
    head = re.compile(rf"(^\| {heading} \|.*\n\|[-|]+\|\n)(?:\|.*\n)*", re.MULTILINE)
    if len(head.findall(text)) != 1:
        raise ValueError(f"not one table has a first column called {heading!r}")
    return head.sub(lambda found: found[1] + "".join(f"{row}\n" for row in rows), text)


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def attributes_of(types: Mapping[str, ir.AttributeType]) -> str:
    return ", ".join(f"{name}: {kind.name.lower()}" for name, kind in types.items()) or "-"


def operators() -> list[str]:
    """Names that differ in their activation are one row, with the attributes and the opset of the one without."""
    families: dict[tuple[str, ...], list[str]] = {}
    for spec in OPS.values():
        name = spec.name.removesuffix("Bf16")
        act = "" if name.endswith(SLOPED) else max((a for a in ACTIVATIONS if name.endswith(a)), key=len)
        own = {k: v for k, v in spec.attributes.items() if k not in ACTIVATIONS[act].attributes}
        key = (name.removesuffix(act), spec.name[len(name) :], ", ".join(spec.inputs), ", ".join(spec.outputs))
        families.setdefault((*key, attributes_of(own)), []).append(act)
    rows = []
    for (base, tail, *columns), acts in families.items():
        some = "" if acts == [""] else f"[{', '.join(filter(None, acts))}]"
        suffix = "[act]" if len(acts) == len(ACTIVATIONS) else some
        oldest = {act: OPS[base + act + tail].min_opset for act in acts}
        least = min(oldest.values())
        assert all(oldest[act] == max(least, ACTIVATIONS[act].min_opset) for act in acts)
        rows.append(row(base + suffix + tail, *columns, str(least)))
    return rows


def activations(text: str) -> list[str]:
    """The last cell, the equation, is the page's own."""
    equations = dict(re.findall(r"^\| ([\w()]+) \| .* \| \d+ \| (.*) \|$", text, re.MULTILINE))
    rows = []
    for activation in ACTIVATIONS.values():
        name = activation.suffix or "(none)"
        attributes = attributes_of(activation.attribute_types)
        rows.append(row(name, attributes, str(activation.min_opset), equations.get(name, "")))
    return rows


def passes_that_say(code: Code) -> list[str]:
    """By the tables of codes on the pages of passes."""
    codes = {page.stem: re.findall(r"\b[A-Z][A-Z0-9_]+\b", page.read_text()) for page in DOCS.glob("passes/*.md")}
    return [name for name in sorted(codes) if code.name in codes[name]]


def refusal(text: str, code: Code) -> str:
    """The page with the code's meaning and the passes that use it; whatever else says so stays behind them."""
    text = re.sub(r"^Meaning: .*\.$", lambda _: f"Meaning: {code.meaning}.", text, count=1, flags=re.MULTILINE)
    said = re.search(r"^Passes that say so: (.*)\.$", text, re.MULTILINE)
    if said is None:
        return text
    others = [link for link in said[1].split(", ") if "(../passes/" not in link]
    links = [f"[{name}](../passes/{name}.md)" for name in passes_that_say(code)]
    return text.replace(said[0], f"Passes that say so: {', '.join(links + others)}.")


def pages() -> dict[Path, str]:
    """What each page that repeats something is to be."""
    texts = {page: page.read_text() for page in (DOCS / name for name in ("ops.md", "gpu.md", "contrib.md"))}
    ops, gpu, contribs = texts
    texts[ops] = with_rows(texts[ops], "name", operators())
    texts[ops] = with_rows(texts[ops], "act", activations(texts[ops]))
    targets = f"| clang 22 | {', '.join(own_code())} |"
    texts[gpu] = re.sub(r"^\| clang 22 \| .* \|$", targets, texts[gpu], flags=re.MULTILINE)
    texts[contribs] = with_rows(texts[contribs], "operator", contrib.rows())
    index = DOCS / "refusals" / "README.md"
    rows = [row(f"[{code.name}]({code.name}.md)", code.meaning, code.advice) for code in Code]
    texts[index] = with_rows(index.read_text(), "code", rows)
    for code in Code:
        page = ROOT / code.page
        texts[page] = refusal(page.read_text(), code)
    return texts


def main() -> None:
    for page, text in pages().items():
        if text != page.read_text():
            page.write_text(text)
            print(f"written: {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
