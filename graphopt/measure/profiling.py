"""Profiles sessions: the time and provider of each node, and the part of the model files that it computes.

Times are compared by subgraph. A subgraph is a node that both files have, or one changed part: the nodes of BEFORE and
of AFTER in one `Neighbourhood` of graphopt/debug/diff.py. It is not the body of an If or Loop.
"""

from __future__ import annotations

import json
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx

from graphopt.debug.diff import ModelDiff
from graphopt.graph.operators.traits import CONTROL_FLOW
from graphopt.runtime.discovery import CPU, DEVICE_PROVIDER

WARM_UP_RUNS = 2
RUNS = 9


@dataclass(frozen=True)
class NodeTime:
    """One node that the runtime ran, after its own optimizer.

    Attributes:
        name, op_type, provider: name, operator and provider of the node.
        microseconds: median time in one run.
        output_bytes: bytes of its outputs in one run.
        subgraph: the subgraph that it belongs to, by its name (`subgraph_names`); "" if unknown.
        on_device: whether `microseconds` is the time of GPU kernels. Otherwise it is time on the host: for a node on a
            GPU, only the time of the launch.
    """

    name: str
    op_type: str
    provider: str
    microseconds: float
    output_bytes: int
    subgraph: str = ""
    on_device: bool = False


@dataclass
class Placement:
    """Providers of the nodes of one model.

    Attributes:
        nodes: provider -> number of nodes.
        copies: number of copies between host and device.
        copied_bytes: bytes of these copies in one run.
        on_cpu: names of the nodes that a device provider left to the CPU.
        line: summary in one line.
        file_nodes: number of nodes in the file, before the runtime's own fusions.
    """

    nodes: dict[str, int] = field(default_factory=dict)
    copies: int = 0
    copied_bytes: int = 0
    on_cpu: list[str] = field(default_factory=list)
    line: str = ""
    file_nodes: int = 0


@dataclass(frozen=True)
class TimedSubgraph:
    """The times of a subgraph in both models.

    Attributes:
        name: the name of the common node, or the label of the changed part's last node in BEFORE (in AFTER if BEFORE
            has none).
        before_ops, after_ops: operators in the two files.
        before_us: microseconds of one run of BEFORE.
        after_us: microseconds of one run of AFTER; None if only BEFORE was run.
    """

    name: str
    before_ops: str
    after_ops: str
    before_us: float
    after_us: float | None


@dataclass(frozen=True)
class TimedOperators:
    """All subgraphs with the same operators: their number, and the microseconds of one run of all of them."""

    before_ops: str
    after_ops: str
    count: int
    before_us: float
    after_us: float


def by_operators(subgraphs: Iterable[TimedSubgraph]) -> list[TimedOperators]:
    """Groups subgraphs by their operators, the groups with the longest time in either model first."""
    kinds: dict[tuple[str, str], list[TimedSubgraph]] = {}
    for s in subgraphs:
        kinds.setdefault((s.before_ops or s.name, s.after_ops or s.name), []).append(s)
    found = [
        TimedOperators(*ops, len(alike), sum(s.before_us for s in alike), sum(s.after_us or 0.0 for s in alike))
        for ops, alike in kinds.items()
    ]
    return sorted(found, key=lambda kind: -max(kind.before_us, kind.after_us))


Run = Callable[[], object]


def profile_sides(
    open_side: Sequence[Callable[[Mapping[str, Any]], tuple[Any, Run]]],
    folder: Path,
    subgraphs: Sequence[Mapping[str, str]],
) -> list[list[NodeTime]]:
    """Profiles sessions that run alternately.

    Args:
        open_side: for each model, a function that takes `SessionOptions` attributes and values. It returns a session
            and a function that runs the session once.
        folder: folder for the runtime's files.
        subgraphs: for each model, value name -> subgraph.

    Returns:
        The times of each model's nodes.
    """
    opened = []
    for i, open_one in enumerate(open_side):
        graph = folder / f"side_{i}.onnx"
        options = {"enable_profiling": True, "profile_file_prefix": str(folder / f"side_{i}")}
        try:
            session, run = open_one({**options, "optimized_model_filepath": str(graph)})
        except Exception:  # a provider that compiles subgraphs cannot save them; names then determine the subgraphs
            session, run = open_one(options)
        opened.append((session, run, graph))
    for _ in range(WARM_UP_RUNS + RUNS):
        for _, run, _ in opened:
            run()
    times = []
    for (session, _, graph), side_subgraphs in zip(opened, subgraphs, strict=True):
        file = Path(session.end_profiling())
        nodes = node_times(read_events(file.read_text(encoding="utf-8", errors="replace")))
        optimized = onnx.load(graph, load_external_data=False) if graph.exists() else None
        times.append(assign_subgraphs(nodes, optimized, side_subgraphs))
    return times


def read_events(profile: str) -> list[dict[str, Any]]:
    """Parses the events of a profile, one on each line; the runtime does not escape the names of nodes."""
    events = []
    for line in re.split(r",?\n(?=\{\"cat\")", profile.strip().removeprefix("[").removesuffix("]")):
        found = re.fullmatch(r'(\{.*?"name" :")(.*)("\s*,\s*"args" :.*\})\s*', line, re.S)
        if found is not None:
            start, name, end = found.groups()
            events.append(json.loads(start + json.dumps(name)[1:-1] + end))
    return events


def node_times(events: Iterable[Mapping[str, Any]]) -> list[NodeTime]:
    """Returns the median time of each node over the runs after the warm-up.

    Control-flow nodes are left out: their time is the sum of their inner nodes, which have their own events.
    """
    nodes: dict[str, Mapping[str, Any]] = {}
    host: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    device: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    written: dict[str, int] = defaultdict(int)
    run = 0
    ordered = sorted(events, key=lambda e: (e.get("ts", 0) + e.get("dur", 0), e.get("ts", 0)))
    for event in ordered:  # a run's own event ends after the events of its nodes
        if event.get("cat") == "Session" and event.get("name") == "model_run":
            run += 1
        arguments = event.get("args", {})
        if run < WARM_UP_RUNS:
            continue
        if event.get("cat") == "Kernel" and "parent_name" in arguments:
            device[str(arguments["parent_name"]).removesuffix("_kernel_time")][run] += float(event["dur"])
        name = str(event.get("name", ""))
        if event.get("cat") != "Node" or not name.endswith("_kernel_time"):
            continue
        if arguments.get("op_name") in CONTROL_FLOW:
            continue
        name = name.removesuffix("_kernel_time")
        nodes.setdefault(name, arguments)
        host[name][run] += float(event["dur"])
        written[name] += int(arguments.get("output_size", 0))
    runs = max(run - WARM_UP_RUNS, 1)
    found = []
    for name, arguments in nodes.items():
        provider = str(arguments.get("provider", ""))
        # If the profile has GPU kernels, a node without one (Reshape) takes no time on the device.
        on_device = bool(device) and provider != CPU
        times = (device if on_device else host)[name]
        median = statistics.median([*times.values(), *[0.0] * (runs - len(times))])
        op_type = str(arguments.get("op_name", ""))
        found.append(NodeTime(name, op_type, provider, median, written[name] // runs, on_device=on_device))
    return found


def assign_subgraphs(
    nodes: list[NodeTime], optimized: onnx.ModelProto | None, subgraphs: Mapping[str, str]
) -> list[NodeTime]:
    """Assigns a subgraph to each node.

    The runtime renames and fuses nodes, but keeps the names of remaining values, and names a convolution in the blocked
    layout (NCHWc) after its output. Nodes that it inserts (layout changes, Reshape) belong to the subgraph of their
    reader.

    Args:
        nodes: the profiled nodes.
        optimized: the model after the runtime's optimizer; None if it was not saved.
        subgraphs: value name -> subgraph.
    """
    outputs = {n.name: list(n.output) for n in optimized.graph.node} if optimized is not None else {}
    readers: dict[str, list[str]] = defaultdict(list)
    for node in optimized.graph.node if optimized is not None else ():
        for value in node.input:
            readers[value].append(node.name)

    def own(name: str) -> str:
        values = [*outputs.get(name, ()), name.removesuffix("_nchwc")]
        return next((subgraphs[v] for v in values if v in subgraphs), "")

    def subgraph_of(name: str) -> str:
        seen, wave = {name}, [name]
        while wave:
            for candidate in wave:
                if own(candidate):
                    return own(candidate)
            wave = [r for c in wave for v in outputs.get(c, ()) for r in readers[v] if r not in seen]
            seen.update(wave)
        return ""

    return [replace(n, subgraph=subgraph_of(n.name)) for n in nodes]


def nodes_of_regions(session: Any, run: Run) -> list[NodeTime]:
    """Returns all nodes of a session with our provider, including nodes on other providers and copies (Memcpy).

    A profile shows a region of our provider as one node. Here the nodes inside a region are returned instead, with time
    0, because their times are unknown.

    Args:
        session: a session with profiling enabled; its profiling ends.
        run: runs the session once.
    """
    for _ in range(WARM_UP_RUNS + 1):
        run()
    ran = node_times(read_events(Path(session.end_profiling()).read_text(encoding="utf-8", errors="replace")))
    given = [part for part in session.get_provider_graph_assignment_info() if part.ep_name == DEVICE_PROVIDER]
    nodes = [NodeTime(n.name, n.op_type, DEVICE_PROVIDER, 0.0, 0) for part in given for n in part.get_nodes()]
    return nodes + [n for n in ran if n.provider != DEVICE_PROVIDER or n.op_type.startswith("Memcpy")]


def placement(nodes: Sequence[NodeTime], provider: str) -> Placement:
    """Counts the nodes and copies of each provider; `provider` is the requested one."""
    found = Placement(line=placement_line(nodes, provider))
    for node in nodes:
        if node.op_type.startswith("Memcpy"):
            found.copies += 1
            found.copied_bytes += node.output_bytes
            continue
        found.nodes[node.provider] = found.nodes.get(node.provider, 0) + 1
        if node.provider == CPU != provider:
            found.on_cpu.append(node.name)
    return found


def placement_line(nodes: Sequence[NodeTime], provider: str) -> str:
    """Returns a summary in one line: "412 of 415 nodes on X; CPU: 3 (If 2: a, b; TopK 1: c)"."""
    ran = [n for n in nodes if not n.op_type.startswith("Memcpy")]
    there = [n for n in ran if n.provider == provider]
    line = f"{len(there)} of {len(ran)} nodes on {provider}"
    for other in sorted({n.provider for n in ran} - {provider}):
        kinds: dict[str, list[str]] = defaultdict(list)
        for n in ran:
            if n.provider == other:
                kinds[n.op_type].append(n.name)
        groups = [f"{op} {len(v)}: {', '.join(v[:3])}{', ..' * (len(v) > 3)}" for op, v in kinds.items()]
        line += f"; {other.removesuffix('ExecutionProvider')}: {sum(map(len, kinds.values()))} ({'; '.join(groups)})"
    copies = len(nodes) - len(ran)
    return line + (f"; {copies} {'copy' if copies == 1 else 'copies'} between host and device" if copies else "")


def subgraph_names(found: ModelDiff, before: onnx.ModelProto, after: onnx.ModelProto) -> tuple[dict[str, str], ...]:
    """Returns one mapping per model, from value name to the name of the subgraph that produces the value."""
    sides = []
    for model, nodes_of in ((before, "removed"), (after, "added")):
        names = {o: n.name or n.output[0] for n in model.graph.node for o in n.output if o}
        for h in found.neighbourhoods:
            label = (h.removed or h.added)[-1].label
            names |= {o: label for n in getattr(h, nodes_of) for o in n.outputs}
        sides.append(names)
    return tuple(sides)


def timed_subgraphs(
    found: ModelDiff, before: onnx.ModelProto, before_times: list[NodeTime], after_times: list[NodeTime] | None
) -> list[TimedSubgraph]:
    """Adds up the times of both models by subgraph, the largest first.

    Nodes of no subgraph are counted as the subgraph "(runtime)".
    """
    ops = {n.name or n.output[0]: (n.op_type, n.op_type) for n in before.graph.node if n.output}
    for h in found.neighbourhoods:
        label = (h.removed or h.added)[-1].label
        removed, added = (", ".join(n.op_type for n in nodes) for nodes in (h.removed, h.added))
        ops[label] = (removed, added)
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for side, times in enumerate((before_times, after_times or [])):
        for t in sorted(times, key=lambda t: -t.microseconds):
            label = t.subgraph or "(runtime)"
            same = ops.get(label)
            if label not in sums and same is not None and same[0] == same[1] != t.op_type:
                # The runtime has fused this node into another one and reports the time there.
                ops[label] = (f"{same[0]} in {t.op_type}",) * 2
            sums[label][side] += t.microseconds
    rows = [
        TimedSubgraph(name, *ops.get(name, ("", "")), a, None if after_times is None else b)
        for name, (a, b) in sums.items()
    ]
    return sorted(rows, key=lambda s: -max(s.before_us, s.after_us or 0.0))
