"""The report as one self-contained HTML page without network access or data in scripts; all names are escaped."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from graphopt.debug.diff import DiffNode, ModelDiff
from graphopt.measure.bench import BenchReport, Profile
from graphopt.measure.profiling import TimedSubgraph, by_operators
from graphopt.remarks import Code, Remark
from graphopt.report.answer import answer, equality, is_faster, is_slower, speed
from graphopt.report.data import Report
from graphopt.report.drawing import Drawing, draw
from graphopt.report.layers import grouped, layer_path, where
from graphopt.report.page import templates
from graphopt.report.text import count, milliseconds, operators, small

if TYPE_CHECKING:
    from graphopt.verification.verify import VerifyReport

MAX_CARDS = 5
MAX_STAGES = 16
MAX_BARS = 20
RUNTIME = "(runtime)"


@dataclass(frozen=True)
class Provenance:
    """Origin of a report.

    Attributes:
        date: date and time with the time zone.
        command: the command line.
        versions: package -> version.
        host: description of the machine.
        files: name, size in bytes and SHA-256 of each model file.
    """

    date: str
    command: str
    versions: dict[str, str]
    host: str
    files: list[tuple[str, int, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Tile:
    """One of the results at the top; `state` is good, bad, noise, plain or none."""

    title: str
    text: str
    detail: str
    state: str


@dataclass(frozen=True)
class Stage:
    """A section of the model in the order of execution.

    Attributes:
        name: the layer of its nodes, or its first and last layer.
        before, after: milliseconds in all nodes.
        before_rewritten, after_rewritten: milliseconds in rewritten nodes.
    """

    name: str
    before: float
    after: float
    before_rewritten: float
    after_rewritten: float


@dataclass(frozen=True)
class Card:
    """A kind of rewrite with one drawing.

    Attributes:
        title: operators before and after.
        subgraphs: names of all rewritten subgraphs of this kind.
        where: one pattern for these names.
        passes: names of the passes.
        before, after: drawings of the first subgraph.
        before_ms, after_ms: milliseconds of all these subgraphs; None if not timed.
    """

    title: tuple[str, str]
    subgraphs: tuple[str, ...]
    where: str
    passes: tuple[str, ...]
    before: Drawing
    after: Drawing
    before_ms: float | None
    after_ms: float | None


@dataclass(frozen=True)
class Refusals:
    """All candidates that were refused with one code.

    Attributes:
        candidates: the number of candidates.
        places: (pass, pattern of names, detail) of candidates that are shown together.
    """

    code: Code
    candidates: int
    places: list[tuple[str, str, str]]


def render(
    report: Report,
    *,
    title: str,
    difference: ModelDiff | None = None,
    accuracy: VerifyReport | None = None,
    times: BenchReport | None = None,
    order: Sequence[str] = (),
    provenance: Provenance | None = None,
) -> str:
    """Returns the page as HTML.

    Args:
        report: result of `optimize`.
        title: usually the model's file name.
        difference: adds drawings of the most important changes.
        accuracy: adds the verdict, and a row for each output.
        times: adds measured times, and the overview of the whole model.
        order: names of the nodes of BEFORE in the order of execution, for the overview.
        provenance: adds the origin of the report.
    """
    profile = next(iter(times.profiles), None) if times is not None else None
    found = [] if difference is None else cards(difference, report.remarks, profile)
    refused = refusals(report.remarks)
    return (
        templates()
        .get_template("report.html")
        .render(
            title=title,
            report=report,
            headline=answer(report, accuracy, times),
            tiles=_tiles(report, accuracy, times),
            stages=[] if profile is None or profile.after is None else stages(profile.subgraphs, order),
            setting="" if profile is None else str(profile.setting),
            operators=_operators(report),
            codes=sorted(Counter(r.code for r in report.remarks).items()),
            meanings={c.name: c for c in Code},
            cards=found[:MAX_CARDS],
            more=found[MAX_CARDS:],
            to_do=[r for r in refused if r.code != Code.NO_GAIN and not r.code.advice.startswith("nothing")],
            no_gain=[r for r in refused if r.code == Code.NO_GAIN],
            nothing_to_do=[r for r in refused if r.code.advice.startswith("nothing")],
            accuracy=accuracy,
            times=times,
            bars=[] if times is None else [(str(p.setting), _bars(p.subgraphs)) for p in times.profiles],
            provenance=provenance,
        )
    )


def _tiles(report: Report, accuracy: VerifyReport | None, times: BenchReport | None) -> list[Tile]:
    if times is None or not speed(times):
        fast = Tile("Speed", "not timed", "--bench times both models", "none")
    else:
        state = "good" if is_faster(times) else "bad" if is_slower(times) else "noise"
        row = times.rows[0]
        detail = ""
        if row.after is not None:
            detail = f"{milliseconds(row.before.median_ms)} → {milliseconds(row.after.median_ms)} ms, "
        detail += "95 % interval in brackets" if len(times.rows) == 1 else count(len(times.rows), "setting")
        fast = Tile("Speed", speed(times), detail, state)
    if accuracy is None:
        same = Tile("Result", "not compared", "--verify compares the outputs", "none")
    else:
        worst = accuracy.worst
        allowed = (
            f"error / RMS allowed at {worst.name}: {small(worst.limit)}" if worst is not None else accuracy.summary
        )
        state = "good" if accuracy.equal else "bad"
        same = Tile("Result", equality(accuracy), allowed, state)
    rewrites = sum(p.applied for p in report.passes)
    graph = Tile("Graph", replace(report, warning="").outcome, count(rewrites, "rewrite"), "plain")
    return [fast, same, graph]


def _operators(report: Report) -> list[tuple[str, int, int]]:
    before, after = report.before.nodes, report.after.nodes
    rows = [(op, before.get(op, 0), after.get(op, 0)) for op in sorted(before.keys() | after.keys())]
    return [row for row in rows if row[1] != row[2]]


def stages(subgraphs: Sequence[TimedSubgraph], order: Sequence[str]) -> list[Stage]:
    """Divides the model into at most `MAX_STAGES` sections in the order of its nodes, by layer or by equal time.

    Args:
        subgraphs: times of nodes and rewritten subgraphs.
        order: names of the nodes in the order of execution.
    """
    at = {name: i for i, name in enumerate(order)}
    ordered = sorted((s for s in subgraphs if s.name != RUNTIME), key=lambda s: at.get(s.name, len(at)))
    by_name: list[list[TimedSubgraph]] = []
    for subgraph in ordered:
        if by_name and layer_path(subgraph.name) and layer_path(by_name[-1][0].name) == layer_path(subgraph.name):
            by_name[-1].append(subgraph)
        else:
            by_name.append([subgraph])
    if len(by_name) > MAX_STAGES:
        by_name = _equal(by_name)
    found = [_stage(part) for part in by_name]
    return found + [_stage([s]) for s in subgraphs if s.name == RUNTIME]


def _equal(parts: Sequence[list[TimedSubgraph]]) -> list[list[TimedSubgraph]]:
    """Merges adjacent sections until each takes about the same time."""
    total = sum(s.before_us for part in parts for s in part)
    joined: list[list[TimedSubgraph]] = [[]]
    spent = 0.0
    for part in parts:
        time = sum(s.before_us for s in part)
        if joined[-1] and spent + time / 2 > total * len(joined) / MAX_STAGES and len(joined) < MAX_STAGES:
            joined.append([])
        joined[-1] += part
        spent += time
    return joined


def _stage(subgraphs: Sequence[TimedSubgraph]) -> Stage:
    def total(times: Iterable[float | None]) -> float:
        return sum(t or 0.0 for t in times) / 1e3

    changed = [s for s in subgraphs if s.before_ops != s.after_ops]
    names = list(dict.fromkeys(layer_path(s.name) or s.name for s in subgraphs))
    return Stage(
        names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}",
        total(s.before_us for s in subgraphs),
        total(s.after_us for s in subgraphs),
        total(s.before_us for s in changed),
        total(s.after_us for s in changed),
    )


@dataclass(frozen=True)
class Bar:
    """Total time of subgraphs with the same operators; shares are percentages of the longest bar."""

    before: str
    after: str
    count: int
    before_ms: float
    after_ms: float
    before_share: float
    after_share: float


def _bars(subgraphs: Sequence[TimedSubgraph]) -> list[Bar]:
    bars = []
    kinds = by_operators(subgraphs)
    longest = max((max(k.before_us, k.after_us) for k in kinds), default=0.0) or 1.0
    for kind in kinds[:MAX_BARS]:
        shares = (100 * kind.before_us / longest, 100 * kind.after_us / longest)
        in_ms = (kind.before_us / 1e3, kind.after_us / 1e3)
        bars.append(Bar(kind.before_ops, kind.after_ops, kind.count, *in_ms, *shares))
    return bars


def cards(difference: ModelDiff, remarks: Sequence[Remark], profile: Profile | None) -> list[Card]:
    """Returns a card for each kind of changed subgraph, the largest saving of time first.

    Subgraphs with equal operators and connections are of one kind. Cards with equal savings, also all cards without
    measurements, are sorted by frequency.

    Args:
        difference: the differences of the two models.
        remarks: remarks of the passes.
        profile: measured times; None without measurements.
    """
    groups: dict[Any, list[Any]] = defaultdict(list)
    for h in difference.neighbourhoods:
        before, after = _shape_of(h.removed), _shape_of(h.added)
        if before != after:  # otherwise only names or constants changed
            groups[before, after].append(h)
    by_label: dict[str, list[str]] = defaultdict(list)
    for remark in remarks:
        if remark.applied and remark.nodes:
            by_label[remark.nodes[0]].append(remark.pass_name)
    timed = {s.name: s for s in profile.subgraphs} if profile is not None and profile.after is not None else {}
    found = []
    for alike in groups.values():
        first = alike[0]
        shared = {v for n in first.removed for v in n.inputs} & {v for n in first.added for v in n.inputs}
        subgraphs = tuple((h.added or h.removed)[-1].label for h in alike)
        labels = [n.label for h in alike for n in (*h.removed, *h.added)]
        measured = [timed[label] for h in alike if (label := (h.removed or h.added)[-1].label) in timed]
        found.append(
            Card(
                (_listed(first.removed), _listed(first.added)),
                subgraphs,
                where(subgraphs),
                tuple(dict.fromkeys(name for label in labels for name in by_label[label])),
                draw(first.removed, shared),
                draw(first.added, shared),
                sum(s.before_us for s in measured) / 1e3 if measured else None,
                sum(s.after_us or 0.0 for s in measured) / 1e3 if measured else None,
            )
        )
    return sorted(found, key=lambda c: (-((c.before_ms or 0.0) - (c.after_ms or 0.0)), -len(c.subgraphs)))


def _listed(nodes: Sequence[DiffNode]) -> str:
    return operators((n.op_type for n in nodes), " + ") or "nothing"


def _shape_of(nodes: Sequence[DiffNode]) -> tuple[Any, ...]:
    producer = {o: i for i, n in enumerate(nodes) for o in n.outputs if o}
    return tuple((n.op_type, tuple(producer.get(v, -1) for v in n.inputs)) for n in nodes)


def refusals(remarks: Sequence[Remark]) -> list[Refusals]:
    """Groups refusals by code, the most frequent first.

    Candidates of one pass with equal details are shown together, with one pattern for their names.
    """
    by_code: dict[str, list[Remark]] = defaultdict(list)
    for remark in remarks:
        if not remark.applied:
            by_code[remark.code].append(remark)
    found = []
    for code, alike in sorted(by_code.items(), key=lambda item: -len(item[1])):
        kinds = grouped(alike, kind=lambda r: (r.pass_name, r.detail), name=lambda r: r.nodes[0] if r.nodes else "")
        found.append(Refusals(Code[code], len(alike), [(k.kind[0], k.where, k.kind[1]) for k in kinds]))
    return found
