"""Layered drawing of a small graph: rows by longest path, data flow from top to bottom, few edge crossings.

Method: Sugiyama, Tagawa, Toda, "Methods for Visual Understanding of Hierarchical System Structures", IEEE SMC 1981. An
edge that crosses rows has a bend in each of them. Sweeps order each row by the medians of neighbours, and then exchange
adjacent cells while this removes crossings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from graphopt.debug.diff import DiffNode
from graphopt.report.text import visible

MAX_DRAWN_NODES = 40
SWEEPS = 12
# In pixels: the height of a box; the distance of rows, the width of a letter, the gap between boxes, the margin, and
# the width of a dot.
BOX_HEIGHT = 24
_ROW, _LETTER, _GAP, _MARGIN, _DOT = 44, 6.7, 14, 8, 9
Point = tuple[float, float]


@dataclass(frozen=True)
class Box:
    """A node, or an external value (label "").

    Attributes:
        x, y: upper left corner in pixels.
        width: the width in pixels.
        label: text in the box.
        title: its name in the model.
    """

    x: float
    y: float
    width: float
    label: str
    title: str


@dataclass(frozen=True)
class Drawing:
    """Boxes, and edges as lists of points, each from a box to a lower one; sizes in pixels."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    edges: tuple[tuple[Point, ...], ...]


@dataclass
class _Cell:
    """A box, or the bend of an edge that crosses its row."""

    row: int
    width: float
    label: str = ""
    title: str = ""
    bend: bool = False
    x: float = 0.0  # its center


def draw(nodes: Sequence[DiffNode], shared: set[str]) -> Drawing:
    """Draws nodes in topological order.

    Args:
        nodes: the nodes; only the first `MAX_DRAWN_NODES` are drawn.
        shared: external values that are drawn as dots, one directly above each reader.
    """
    shown = nodes[:MAX_DRAWN_NODES]
    producer = {o: i for i, n in enumerate(shown) for o in n.outputs if o}
    cells: list[_Cell] = []
    links: list[tuple[int, int]] = []  # pairs of cells in adjacent rows
    chains: list[list[int]] = []
    for i, node in enumerate(shown):
        sources = list(dict.fromkeys(producer[v] for v in node.inputs if v in producer and producer[v] < i))
        row = 1 + max((cells[s].row for s in sources), default=0)
        cells.append(_Cell(row, _width(node.op_type), node.op_type, node.label))
    for i, node in enumerate(shown):
        for s in dict.fromkeys(producer[v] for v in node.inputs if v in producer and producer[v] < i):
            chain = [s]
            for row in range(cells[s].row + 1, cells[i].row):
                cells.append(_Cell(row, 2.0, bend=True))
                chain.append(len(cells) - 1)
            chains.append([*chain, i])
        for value in dict.fromkeys(v for v in node.inputs if v in shared and v not in producer):
            cells.append(_Cell(cells[i].row - 1, _DOT, "", value))
            chains.append([len(cells) - 1, i])
    for chain in chains:
        links += pairwise(chain)
    rows = _ordered(cells, links)
    _place(cells, rows, links)
    left = min((c.x - c.width / 2 for c in cells), default=0.0) - _MARGIN
    top = min((c.row for c in cells), default=0)
    for cell in cells:
        cell.x -= left
    width = max((c.x + c.width / 2 for c in cells), default=0.0) + _MARGIN
    height = (max((c.row for c in cells), default=0) - top) * _ROW + BOX_HEIGHT + 2 * _MARGIN

    def y(cell: _Cell) -> float:
        return _MARGIN + (cell.row - top) * _ROW

    boxes = tuple(Box(c.x - c.width / 2, y(c), c.width, c.label, c.title) for c in cells if not c.bend)
    edges = []
    for chain in chains:
        points: list[Point] = []
        for i, index in enumerate(chain):
            cell = cells[index]
            if cell.bend:
                points.append((cell.x, y(cell) + BOX_HEIGHT / 2))
            else:
                points.append((cell.x, y(cell) + (0 if i else BOX_HEIGHT)))
        edges.append(tuple(points))
    return Drawing(width, height, boxes, tuple(edges))


def _width(label: str) -> float:
    return 18 + _LETTER * len(visible(label))


def _ordered(cells: Sequence[_Cell], links: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Returns the cells of each row from left to right, in the order with the fewest crossings found."""
    above, below = defaultdict(list), defaultdict(list)
    for a, b in links:
        above[b].append(a)
        below[a].append(b)
    numbers = sorted({c.row for c in cells})
    rows = [[i for i, c in enumerate(cells) if c.row == row] for row in numbers]
    best, fewest = [list(r) for r in rows], _crossings(rows, below)
    for sweep in range(SWEEPS):
        neighbours = above if sweep % 2 == 0 else below
        for row in rows if sweep % 2 == 0 else reversed(rows):
            at = {i: position for r in rows for position, i in enumerate(r)}
            row.sort(key=lambda i: _median([at[n] for n in neighbours[i]], at[i]))
        _exchange(rows, below)
        found = _crossings(rows, below)
        if found < fewest:
            best, fewest = [list(r) for r in rows], found
        if not fewest:
            break
    return best


def _median(positions: list[int], default: int) -> float:
    if not positions:
        return default
    positions.sort()
    middle = len(positions) // 2
    return positions[middle] if len(positions) % 2 else (positions[middle - 1] + positions[middle]) / 2


def _exchange(rows: list[list[int]], below: dict[int, list[int]]) -> None:
    """Exchanges adjacent cells of a row while this removes crossings."""
    improved = True
    while improved:
        improved = False
        for row in rows:
            for position in range(len(row) - 1):
                now = _crossings(rows, below)
                row[position], row[position + 1] = row[position + 1], row[position]
                if _crossings(rows, below) < now:
                    improved = True
                else:
                    row[position], row[position + 1] = row[position + 1], row[position]


def _crossings(rows: Sequence[Sequence[int]], below: dict[int, list[int]]) -> int:
    total = 0
    for upper, lower in pairwise(rows):
        at = {i: position for position, i in enumerate(lower)}
        targets = [at[n] for i in upper for n in sorted(below[i], key=lambda n: at.get(n, 0)) if n in at]
        total += sum(a > b for k, a in enumerate(targets) for b in targets[k + 1 :])
    return total


def _place(cells: Sequence[_Cell], rows: Sequence[Sequence[int]], links: Sequence[tuple[int, int]]) -> None:
    """Sets the x of each cell: near its neighbours in other rows, in the order of its row, without overlap."""
    near = defaultdict(list)
    for a, b in links:
        near[a].append(b)
        near[b].append(a)
    for row in rows:
        x = 0.0
        for i in row:
            cells[i].x = x + cells[i].width / 2
            x += cells[i].width + _GAP
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 == 0 else list(rows)[::-1]:
            wanted = [sum(cells[n].x for n in near[i]) / len(near[i]) if near[i] else cells[i].x for i in row]
            distances = [(cells[a].width + cells[b].width) / 2 + _GAP for a, b in pairwise(row)]
            right, left = list(wanted), list(wanted)
            for k, gap in enumerate(distances):
                right[k + 1] = max(right[k + 1], right[k] + gap)
            for k in reversed(range(len(distances))):
                left[k] = min(left[k], left[k + 1] - distances[k])
            for i, low, high in zip(row, left, right, strict=True):
                cells[i].x = (low + high) / 2
