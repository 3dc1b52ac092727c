"""The report as one self-contained page: no network, no data in scripts, every name escaped."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

from graphopt.checking.diff import DiffNode, ModelDiff
from graphopt.checking.verify import VerifyReport
from graphopt.measure.bench import BenchReport, describe
from graphopt.measure.profiling import Site
from graphopt.remarks import Code
from graphopt.report.data import Report
from graphopt.report.text import size, visible

MAX_DRAWINGS = 24
MAX_DRAWN_NODES = 48
MAX_BARS = 20
# Of a drawing, in pixels.
_BOX_HEIGHT, _ROW, _LETTER, _GAP, _MARGIN = 22, 40, 6.6, 10, 8


@dataclass(frozen=True)
class Box:
    """A node, or a value from outside (label "")."""

    x: float
    y: float
    width: float
    label: str
    title: str


@dataclass(frozen=True)
class Drawing:
    """One side of a neighbourhood: boxes in rows, data flowing down."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    edges: tuple[tuple[float, float, float, float], ...]


@dataclass(frozen=True)
class RewriteKind:
    """Neighbourhoods that look alike, drawn once."""

    sites: tuple[str, ...]
    before: Drawing
    after: Drawing


def render(
    report: Report,
    *,
    title: str,
    difference: ModelDiff | None = None,
    accuracy: VerifyReport | None = None,
    times: BenchReport | None = None,
) -> str:
    """The page as HTML.

    Args:
        report: what `optimize` did.
        title: usually the model's file name.
        difference: adds drawings of the rewritten neighbourhoods.
        accuracy: adds a row for each output.
        times: adds measured times, and bars for each kind of site.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("graphopt.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.filters["bytes"] = size
    kinds = [] if difference is None else rewrite_kinds(difference)
    return environment.get_template("report.html").render(
        title=title,
        report=report,
        operators=_operators(report),
        codes=sorted(Counter(r.code for r in report.remarks).items()),
        meanings={c.name: c for c in Code},
        kinds=kinds[:MAX_DRAWINGS],
        undrawn=len(kinds[MAX_DRAWINGS:]),
        accuracy=accuracy,
        times=times,
        bars=[] if times is None else [(describe(p.setting), _bars(p.sites)) for p in times.profiles],
    )


def _operators(report: Report) -> list[tuple[str, int, int]]:
    if report.before is None or report.after is None:
        return []
    before, after = report.before.nodes, report.after.nodes
    rows = [(op, before.get(op, 0), after.get(op, 0)) for op in sorted(before.keys() | after.keys())]
    return [row for row in rows if row[1] != row[2]]


@dataclass(frozen=True)
class Bar:
    """Sites of one kind, added up; shares are percentages of the longest bar."""

    before: str
    after: str
    count: int
    before_ms: float
    after_ms: float
    before_share: float
    after_share: float


def _bars(sites: Sequence[Site]) -> list[Bar]:
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for site in sites:
        group = sums[site.before_ops or site.name, site.after_ops or site.name]
        group[0] += 1
        group[1] += site.before_us / 1e3
        group[2] += (site.after_us or 0.0) / 1e3
    longest = max((max(g[1:]) for g in sums.values()), default=0.0) or 1.0
    ordered = sorted(sums.items(), key=lambda item: -max(item[1][1:]))[:MAX_BARS]
    return [Bar(a, b, int(n), x, y, 100 * x / longest, 100 * y / longest) for (a, b), (n, x, y) in ordered]


def rewrite_kinds(difference: ModelDiff) -> list[RewriteKind]:
    """Neighbourhoods grouped by operators and wiring, the most frequent first."""
    groups: dict[Any, list[Any]] = defaultdict(list)
    for h in difference.neighbourhoods:
        groups[_shape_of(h.removed), _shape_of(h.added)].append(h)
    kinds = []
    for alike in sorted(groups.values(), key=len, reverse=True):
        first = alike[0]
        shared = {v for n in first.removed for v in n.inputs} & {v for n in first.added for v in n.inputs}
        labels = tuple((h.added or h.removed)[-1].label for h in alike)
        kinds.append(RewriteKind(labels, draw(first.removed, shared), draw(first.added, shared)))
    return kinds


def _shape_of(nodes: Sequence[DiffNode]) -> tuple[Any, ...]:
    maker = {o: i for i, n in enumerate(nodes) for o in n.outputs if o}
    return tuple((n.op_type, tuple(maker.get(v, -1) for v in n.inputs)) for n in nodes)


def draw(nodes: Sequence[DiffNode], shared: set[str]) -> Drawing:
    """Rows by longest path; values that both sides read are dots above their readers, other inputs are left out."""
    shown = nodes[:MAX_DRAWN_NODES]
    maker = {o: i for i, n in enumerate(shown) for o in n.outputs if o}
    depth: dict[int, int] = {}
    above: dict[str, int] = {}
    rows: dict[int, list[tuple[str, str, str | int]]] = defaultdict(list)
    for i, node in enumerate(shown):  # the file's order is topological
        depth[i] = 1 + max((depth.get(maker[v], 0) for v in node.inputs if v in maker), default=0)
        rows[depth[i]].append((node.op_type, node.label, i))
        for value in node.inputs:
            if value in shared and value not in maker:
                above[value] = min(above.get(value, depth[i] - 1), depth[i] - 1)
    for value, row in above.items():
        rows[row].append(("", value, value))
    widths = {row: sum(_box_width(label) + _GAP for label, _, _ in items) - _GAP for row, items in rows.items()}
    width = max(widths.values(), default=0.0) + 2 * _MARGIN
    boxes, centre = [], {}
    for row, items in sorted(rows.items()):
        x = (width - widths[row]) / 2
        y = _MARGIN + row * _ROW
        for label, title, key in items:
            boxes.append(Box(x, y, _box_width(label), label, title))
            centre[key] = (x + _box_width(label) / 2, y)
            x += _box_width(label) + _GAP
    edges = []
    for i, node in enumerate(shown):
        x, y = centre[i]
        for value in dict.fromkeys(node.inputs):
            source = centre.get(maker.get(value, value))
            if source is not None:
                edges.append((source[0], source[1] + _BOX_HEIGHT, x, y))
    height = 2 * _MARGIN + max(rows, default=0) * _ROW + _BOX_HEIGHT
    return Drawing(width, height, tuple(boxes), tuple(edges))


def _box_width(label: str) -> float:
    return 2 * _GAP + _LETTER * len(visible(label)) if label else 10.0
