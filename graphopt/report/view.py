"""Data of the live view: all nodes of both models, grouped by layer."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from graphopt.debug.diff import DiffNode, neighbourhoods
from graphopt.measure.profiling import TimedSubgraph
from graphopt.remarks import Code, Remark, node_label
from graphopt.report.account import Side
from graphopt.report.drawing import MAX_DRAWN_NODES, draw
from graphopt.report.layers import layer_path, pattern, where
from graphopt.report.multiply_adds import multiply_adds
from graphopt.report.page import templates
from graphopt.report.text import visible

# Number of nodes in a layer, and prefix of its name, if the names of nodes contain no layers.
CHUNK, UNNAMED = 50, "nodes "
# Metadata key of torch.onnx.export with the modules around a node, the outermost first.
NAME_SCOPES = "pkg.torch.onnx.name_scopes"
# Characters of a layer's name in the drawing.
LABEL = 30


@dataclass
class View:
    """Data of the page for two models.

    Attributes:
        title: names of the files.
        layers: names of the layers in the order of execution.
        before, after: the nodes of each model.
        map: drawing of the nodes of BEFORE, or of its layers with repeated layers as one box (`_map`).
    """

    title: str
    layers: list[str] = field(default_factory=list)
    before: list[dict[str, Any]] = field(default_factory=list)
    after: list[dict[str, Any]] = field(default_factory=list)
    map: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return vars(self)


def view(
    title: str, before: Side, after: Side, remarks: list[Remark], subgraphs: Mapping[str, TimedSubgraph] | None = None
) -> View:
    """Creates the data of the page.

    Args:
        title: title of the page.
        before: the original, with shapes.
        after: the rewritten model, with shapes.
        remarks: remarks of the passes; empty if AFTER is given as a file.
        subgraphs: name -> times of a node or a rewritten neighbourhood; None without measurements.
    """
    layers, layer_of = _layers(before, after)
    remarks_at: dict[str, list[str]] = defaultdict(list)
    for remark in remarks:
        for label in remark.nodes[:1]:
            remarks_at[label].append(visible(_sentence(remark)))
    region_of: dict[tuple[str, str], int] = {}
    labels: dict[int, str] = {}
    for number, region in enumerate(neighbourhoods(before.model, after.model)):
        labels[number] = (region.removed or region.added)[-1].label
        for side, nodes in (("before", region.removed), ("after", region.added)):
            region_of |= {(side, o): number for n in nodes for o in n.outputs if o}

    def rows(side: str, model: Side) -> list[dict[str, Any]]:
        number_of = {id(n): i for i, n in enumerate(model.nodes)}
        made = []
        for node in model.nodes:
            output = node.outputs[0].name or "" if node.outputs else ""
            region, label = region_of.get((side, output)), node_label(node)
            subgraph = (subgraphs or {}).get(label if region is None else labels[region])
            details = {
                "layer": layer_of.get(output, 0),
                "us": _time(subgraph, side),
                "place": region,
                "remarks": remarks_at[label],
            }
            made.append(_row(node, model, number_of) | details)
        return made

    named, original = [visible(name) for name in layers], rows("before", before)
    return View(title, named, original, rows("after", after), _map(named, original))


def _map(layers: list[str], nodes: list[dict[str, Any]]) -> dict[str, Any]:
    """Draws the nodes of a small model, or the layers of a large one with consecutive similar layers as one box."""
    few = [i for i, node in enumerate(nodes) if node["op"] != "Constant"]
    if len(few) <= MAX_DRAWN_NODES:
        box_of = {i: box for box, i in enumerate(few)}
        names = [(nodes[i]["name"], nodes[i]["op"]) for i in few]
        node_of: list[int | None] = [*few]
    else:
        boxes = _alike_in_a_row(layers)
        of_layer = {number: i for i, box in enumerate(boxes) for number in box}
        box_of = {i: of_layer[node["layer"]] for i, node in enumerate(nodes)}
        names = [(where([layers[n] for n in box]), _label(layers, box)) for box in boxes]
        node_of = [None] * len(names)
    sources: list[dict[str, None]] = [{} for _ in names]
    states, layer_of = ["same"] * len(names), [0] * len(names)
    for i, box in reversed(box_of.items()):
        node = nodes[i]
        sources[box] |= {str(box_of[producer]): None for producer in node["producers"] if producer in box_of}
        layer_of[box] = node["layer"]
        if node["place"] is not None:
            states[box] = "changed"
        elif states[box] == "same" and any(text.startswith("refused") for text in node["remarks"]):
            states[box] = "refused"
    shown = [DiffNode(*name, tuple(sources[i]), (str(i),)) for i, name in enumerate(names)]
    drawing = draw(shown, set())
    drawn = [
        {**vars(box), "title": visible(box.title), "layer": layer, "node": node, "state": state}
        for box, layer, node, state in zip(drawing.boxes, layer_of, node_of, states)
    ]
    size = {"width": drawing.width, "height": drawing.height}
    return {**size, "boxes": drawn, "edges": drawing.edges, "left_out": len(names) - len(drawn)}


def _alike_in_a_row(layers: list[str]) -> list[list[int]]:
    """Groups consecutive layers with names that differ only in numbers; returns their indices."""
    found: list[list[int]] = []
    for number, name in enumerate(layers):
        if found and not name.startswith(UNNAMED) and pattern(name) == pattern(layers[found[-1][0]]):
            found[-1].append(number)
        else:
            found.append([number])
    return found


def _label(layers: list[str], box: list[int]) -> str:
    """Returns the end of a layer's name, which is distinctive, and the number of repetitions."""
    name = where([layers[number] for number in box])
    short = name if len(name) <= LABEL else f"…{name[-LABEL:]}"
    return f"{short} ({len(box)} times)" if len(box) > 1 else short


def _layers(before: Side, after: Side) -> tuple[dict[str, int], dict[str, int]]:
    """Returns layer name -> index, and value name -> index of the layer that computes it."""
    layers: dict[str, int] = {}
    layer_of: dict[str, int] = {}
    readers = _readers_of_constants(before.nodes)
    for i, node in enumerate(before.nodes):
        reader = readers.get(node, node)
        name = _module_of(reader) or layer_path(reader.name or "")
        name = name or f"{UNNAMED}{i // CHUNK * CHUNK + 1} to {(i // CHUNK + 1) * CHUNK}"
        layer = layers.setdefault(name, len(layers))
        layer_of |= {o.name or "": layer for o in node.outputs}
    layer = 0
    for node in after.nodes:
        # A new node belongs to the layer of the value that it replaces, or of the node before it.
        layer = next((layer_of[o.name or ""] for o in node.outputs if (o.name or "") in layer_of), layer)
        for o in node.outputs:
            layer_of.setdefault(o.name or "", layer)
    return layers, layer_of


def _module_of(node: ir.Node) -> str:
    """Returns the module of PyTorch that the exporter noted: the outermost one with a number, else the outermost."""
    try:
        *modules, _ = ast.literal_eval(node.metadata_props.get(NAME_SCOPES, "[]"))
    except (ValueError, SyntaxError, TypeError):
        return ""
    names = [name for name in modules if isinstance(name, str) and name and not name.startswith("_")]
    return next((name for name in names if any(part.isdecimal() for part in name.split("."))), "".join(names[:1]))


def _readers_of_constants(nodes: Sequence[ir.Node]) -> dict[ir.Node, ir.Node]:
    """Returns node -> reader for nodes with constant results, which belong to the layer of their reader."""
    constant: set[ir.Node] = set()
    for node in nodes:
        producers = [v.producer() for v in node.inputs if v is not None and not v.is_initializer()]
        if all(n is not None and n in constant for n in producers):
            constant.add(node)
    found: dict[ir.Node, ir.Node] = {}
    for node in reversed(nodes):
        reader = next((n for o in node.outputs for n in o.consumers()), None)
        if node in constant and reader is not None:
            found[node] = found.get(reader, reader)
    return found


def _row(node: ir.Node, model: Side, number_of: Mapping[int, int]) -> dict[str, Any]:
    """Returns the properties of a node, and the indices of its neighbours."""
    producers = [number_of.get(id(v.producer())) for v in node.inputs if v is not None]
    readers = [number_of.get(id(n)) for o in node.outputs for n in o.consumers()]
    return {
        "name": visible(node_label(node)),
        "op": visible(node.op_type),
        "shape": _shape(node.outputs[0]) if node.outputs else "",
        "adds": multiply_adds(node) or 0,
        "bytes": model.bytes_of(node) or 0,
        "producers": [m for m in dict.fromkeys(producers) if m is not None],
        "readers": [r for r in dict.fromkeys(readers) if r is not None],
    }


def _time(subgraph: TimedSubgraph | None, side: str) -> float | None:
    if subgraph is None:
        return None
    return subgraph.before_us if side == "before" else subgraph.after_us


def page(nonce: str) -> str:
    """Returns the page as HTML, which requests the data from its server.

    Args:
        nonce: nonce of the Content-Security-Policy for its script.
    """
    return templates().get_template("view.html").render(nonce=nonce)


def _sentence(remark: Remark) -> str:
    if remark.applied:
        return f"applied {remark.pass_name}: {remark.detail}"
    code = Code[remark.code]
    return f"refused {remark.pass_name}: {remark.code}: {code.meaning} ({remark.detail}); to do: {code.advice}"


def _shape(value: ir.Value) -> str:
    dims = "?" if value.shape is None else ", ".join("?" if d is None else str(d) for d in value.shape)
    return f"{value.dtype.name.lower() if value.dtype is not None else '?'} [{dims}]"
