"""Writes the parts of pages that repeat code or data: operators, activations, architectures, codes and results.

.venv/bin/python scripts/pages.py      # tests/test_docs.py fails where it would change a page
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from graphopt.ops import OPS  # noqa: E402
from graphopt.ops.activation import ACTIVATIONS, SLOPED  # noqa: E402
from graphopt.remarks import Code  # noqa: E402
from tests.contrib import table as contrib  # noqa: E402
from tests.hip.architectures import own_code  # noqa: E402

DOCS = ROOT / "docs"
# Results of scripts/bench_cpu.py and scripts/gpu_session.py by machine: the columns of the table of results.
RESULTS = {
    "Zen 3": "cpu_zen3.json",
    "Zen 4": "cpu_zen4.json",
    "Sapphire Rapids": "cpu_amx.json",
    "H200": "gpu_h200.json",
}
CHART = DOCS / "results.svg"
# Suffixes of operators that have one meaning in all names.
OPTIONAL_WORDS = ("Add", "Sum", "Bias", "Mask", "Causal", "Gqa", "Guard", "Softcap", "Interleaved")


def with_rows(text: str, heading: str, rows: Sequence[str], columns: Sequence[str] = ()) -> str:
    """Returns the page with new rows, and new columns if given, in the table that has this heading in its first column.

    Raises:
        ValueError: the page has no such table, or several.
    """
    head = re.compile(rf"(^\| {heading} \|.*\n\|[-:|]+\|\n)(?:\|.*\n)*", re.MULTILINE)
    if len(head.findall(text)) != 1:
        raise ValueError(f"exactly one table must have a first column called {heading!r}")
    named = f"{row(heading, *columns)}\n|---|{'--:|' * len(columns)}\n" if columns else ""
    return head.sub(lambda found: (named or found[1]) + "".join(f"{row}\n" for row in rows), text)


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def attributes_of(types: Mapping[str, ir.AttributeType]) -> str:
    return ", ".join(f"{name}: {kind.name.lower()}" for name, kind in types.items()) or "-"


def with_optional_words(names: Sequence[str]) -> list[str]:
    """Combines names that differ in one optional word: Name and NameAdd become Name[Add]."""
    split = dict.fromkeys(tuple(re.findall(r"\[.*?\]|<.*?>|[A-Z0-9][a-z0-9]*", name)) for name in names)
    for word in OPTIONAL_WORDS:
        for name in [name for name in split if word in name]:
            i = name.index(word)
            if (shorter := name[:i] + name[i + 1 :]) in split:
                del split[shorter]
                combined = (*name[:i], f"[{word}]", *name[i + 1 :])
                split = dict.fromkeys(combined if n == name else n for n in split)
    return ["".join(name) for name in split]


def operators() -> list[str]:
    """Returns one row for each oldest opset, with its operators. NAME[act] stands for NAME with any activation."""
    acts_of: dict[tuple[str, str], list[str]] = {}
    for spec in OPS.values():
        name = spec.name.removesuffix("Bf16")
        act = "" if name.endswith(SLOPED) else max((a for a in ACTIVATIONS if name.endswith(a)), key=len)
        acts_of.setdefault((name.removesuffix(act), spec.name[len(name) :]), []).append(act)
    rows: dict[int, list[str]] = {}
    for (base, tail), acts in acts_of.items():
        listed_acts = ", ".join(filter(None, acts))
        listed_acts = "" if not listed_acts else f"[{listed_acts}]" if "" in acts else f"<{listed_acts}>"
        suffix = "[act]" if len(acts) == len(ACTIVATIONS) else listed_acts
        oldest = {act: OPS[base + act + tail].min_opset for act in acts}
        least = min(oldest.values())
        assert all(oldest[act] == max(least, ACTIVATIONS[act].min_opset) for act in acts)
        rows.setdefault(least, []).append(base + suffix + tail)
    names = {least: [f"`{name}`" for name in with_optional_words(rows[least])] for least in sorted(rows)}
    return [row(str(least), ", ".join(named)) for least, named in names.items()]


def attribute_types() -> list[str]:
    """Returns one row for each type, with the names of all attributes that have it."""
    types: dict[str, set[ir.AttributeType]] = {}
    for spec in OPS.values():
        for name, kind in spec.attributes.items():
            types.setdefault(name, set()).add(kind)
    assert all(len(kinds) == 1 for kinds in types.values()), "an attribute has different types"
    rows: dict[str, list[str]] = {}
    for name in sorted(types):
        (kind,) = types[name]
        rows.setdefault(kind.name.lower(), []).append(name)
    return [row(kind, ", ".join(rows[kind])) for kind in sorted(rows)]


def activations(text: str) -> list[str]:
    """Returns the rows of activations; the last cell, the equation, is kept from the page."""
    equations = dict(re.findall(r"^\| ([\w()]+) \| .* \| \d+ \| (.*) \|$", text, re.MULTILINE))
    rows = []
    for activation in ACTIVATIONS.values():
        name = activation.suffix or "(none)"
        attributes = attributes_of(activation.attribute_types)
        rows.append(row(name, attributes, str(activation.min_opset), equations.get(name, "")))
    return rows


def passes_with_code(code: Code) -> list[str]:
    """Returns the passes with this code in the tables of their pages."""
    codes = {page.stem: re.findall(r"\b[A-Z][A-Z0-9_]+\b", page.read_text()) for page in DOCS.glob("passes/*.md")}
    return [name for name in sorted(codes) if code.name in codes[name]]


def refusal(text: str, code: Code) -> str:
    """Returns the page with the code's meaning and the passes that use it; further links are kept after them."""
    text = re.sub(r"^Meaning: .*\.$", lambda _: f"Meaning: {code.meaning}.", text, count=1, flags=re.MULTILINE)
    used_by = re.search(r"^Used by: (.*)\.$", text, re.MULTILINE)
    if used_by is None:
        return text
    others = [link for link in used_by[1].split(", ") if "(../passes/" not in link]
    links = [f"[{name}](../passes/{name}.md)" for name in passes_with_code(code)]
    return text.replace(used_by[0], f"Used by: {', '.join(links + others)}.")


def results() -> dict[str, dict[str, Any]]:
    """Returns machine -> its measurements, if there are any."""
    places = {name: DOCS / "measurements" / file for name, file in RESULTS.items()}
    return {name: json.loads(place.read_text()) for name, place in places.items() if place.exists()}


def result_table(measured: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Returns a row for each model, and the title of each column: a machine and a precision."""
    columns = {
        f"{machine}, {title}": {model["model"]: model[kind] for model in data["models"] if kind in model}
        for machine, data in measured.items()
        for kind, title in data["columns"].items()
    }
    order = {model["model"]: model["float32"] for model in measured["Zen 4"]["models"]}
    models = dict.fromkeys(
        [*sorted(order, key=lambda m: -order[m]), *(m for ratios in columns.values() for m in ratios)]
    )
    rows = [row(m, *(f"{ratios[m]:.2f}" if m in ratios else "" for ratios in columns.values())) for m in models]
    return rows, [*columns]


def conditions() -> list[str]:
    """Returns a row for each processor: place and time of its measurements."""
    rows = []
    for name, data in results().items():
        when = f"{data['date']}" + (f", commit {data['commit']}" if data["commit"] else "")
        link = f"[{data['page'].partition('#')[0]}]({data['page']})"
        note = data["note"] or "-"
        rows.append(row(name, data["instructions"], data["machine"], data["runtime"], when, note, link))
    return rows


def chart() -> str:
    """Returns the ratios on Zen 4 as bars, in one SVG that follows the reader's light or dark theme."""
    zen4 = results()["Zen 4"]
    scale, left, step = 150.0, 190, 40
    height = step * len(zen4["models"]) + 64
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {height}" width="720" height="{height}" role="img" '
        'aria-label="times as fast as ONNX Runtime">',
        "<style>text{font:13px system-ui,sans-serif;fill:#172033}.soft{fill:#5c6880}.a{fill:#0f8a6d}.b{fill:#6d5bd0}"
        ".one{stroke:#5c6880;stroke-dasharray:3 3}@media(prefers-color-scheme:dark){text{fill:#e7ebf2}"
        ".soft{fill:#9aa6ba}.a{fill:#3fbf97}.b{fill:#a596ff}.one{stroke:#9aa6ba}}</style>",
        f'<rect class="a" x="{left}" y="8" width="12" height="12"/><text x="{left + 18}" y="19">float32</text>',
        f'<rect class="b" x="{left + 90}" y="8" width="12" height="12"/><text x="{left + 108}" y="19">bfloat16</text>',
    ]
    for i, measured in enumerate(sorted(zen4["models"], key=lambda m: -m["float32"])):
        y = 34 + step * i
        lines.append(f'<text x="{left - 8}" y="{y + 20}" text-anchor="end">{measured["model"]}</text>')
        for kind, style, offset in (("float32", "a", 0), ("bfloat16", "b", 15)):
            wide = measured[kind] * scale
            lines.append(f'<rect class="{style}" x="{left}" y="{y + offset}" width="{wide:.0f}" height="13"/>')
            lines.append(f'<text x="{left + wide + 6:.0f}" y="{y + offset + 11}">{measured[kind]:.2f}</text>')
    lines.append(f'<line class="one" x1="{left + scale:.0f}" x2="{left + scale:.0f}" y1="28" y2="{height - 28}"/>')
    caption = f"times as fast as {zen4['runtime']}: one thread, batch 1, Zen 4; the dotted line is ONNX Runtime"
    lines.append(f'<text class="soft" x="8" y="{height - 8}">{caption}</text>')
    return "\n".join([*lines, "</svg>", ""])


def pages() -> dict[Path, str]:
    """Returns page -> its new text, for all pages with generated parts."""
    texts = {page: page.read_text() for page in (DOCS / name for name in ("ops.md", "gpu.md", "contrib.md"))}
    ops, gpu, contribs = texts
    texts[ops] = with_rows(texts[ops], "oldest opset", operators())
    texts[ops] = with_rows(texts[ops], "type", attribute_types())
    texts[ops] = with_rows(texts[ops], "act", activations(texts[ops]))
    targets = f"| clang 22 | {', '.join(own_code())} |"
    texts[gpu] = re.sub(r"^\| clang 22 \| .* \|$", targets, texts[gpu], flags=re.MULTILINE)
    texts[contribs] = with_rows(texts[contribs], "operator", contrib.rows())
    texts[CHART] = chart()
    for page in (ROOT / "README.md", DOCS / "index.md", DOCS / "measurements" / "current.md"):
        texts[page] = with_rows(page.read_text(), "model", *result_table(results()))
    texts[page] = with_rows(texts[page], "processor", conditions())
    index = DOCS / "refusals" / "README.md"
    rows = [row(f"[{code.name}]({code.name}.md)", code.meaning, code.advice) for code in Code]
    texts[index] = with_rows(index.read_text(), "code", rows)
    for code in Code:
        page = ROOT / code.page
        texts[page] = refusal(page.read_text(), code)
    return texts


def main() -> None:
    for page, text in pages().items():
        if not page.exists() or text != page.read_text():
            page.write_text(text)
            print(f"written: {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
