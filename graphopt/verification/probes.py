"""Brings numbers of single nodes out of a model, from bodies of If, Loop and Scan too.

A probe is a scalar that is computed beside a node. A branch hands it on as one more output of its If, which is 0 where
the other branch runs; the body of a Loop or Scan as one more scan output, reduced to a scalar again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir

from graphopt.graph import inference
from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.operators.traits import CONTROL_FLOW
from graphopt.graph.traversal import bodies
from graphopt.targets.target import Target


@dataclass(frozen=True)
class Probe:
    """A scalar of a graph.

    Attributes:
        about: what it tells.
        op: ReduceMin, ReduceMax or ReduceSum: what makes one scalar of those of all turns of a Loop.
        value: of the graph, on its way out.
    """

    about: Any
    op: str
    value: ir.Value


class Prober:
    """Adds probes to a copy of a model.

    Attributes:
        outer_first: probes of a node come before those of its bodies.
    """

    outer_first = False

    def __init__(self, model: ir.Model) -> None:
        self.editor = Editor(inference.clone(model), Target("cpu"))

    @property
    def model(self) -> ir.Model:
        return self.editor.model

    def at(self, b: Builder, node: ir.Node) -> list[Probe]:
        """Computes the probes of a node."""
        raise NotImplementedError

    def graph(self, graph: ir.Graph) -> list[Probe]:
        """Adds the probes of a graph and of the bodies in it, and returns them in order."""
        found: list[Probe] = []
        for node in list(graph):
            b = Builder(self.editor, node)
            both = self.at(b, node), self._of_bodies(b, node)
            found += [*both[0], *both[1]] if self.outer_first else [*both[1], *both[0]]
            if b.nodes:
                self.editor.put_behind(node.outputs[0], b.nodes)
        return found

    def inside(self, node: ir.Node, body: ir.Graph) -> list[Probe]:
        """Computes the probes of a body of a node, beside those of the nodes in it."""
        return []

    def constant(self, node: ir.Node, body: ir.Graph, number: float, dtype: ir.DataType) -> ir.Value:
        """A scalar that a body of a node makes."""
        b = Builder(self.editor, node)
        value = b.op("Identity", b.number(number, dtype), _dtype=dtype)
        self.editor.put_last(body, b.nodes)
        return value

    def _of_bodies(self, b: Builder, node: ir.Node) -> list[Probe]:
        """Hands the probes of the bodies of a node on to its graph."""
        if node.domain != "" or node.op_type not in CONTROL_FLOW:
            return []
        branches = bodies(node)
        inside = [(body, probe) for body in branches for probe in (*self.graph(body), *self.inside(node, body))]
        # A node may leave out its last outputs; those of a Loop's body begin with the condition.
        own = len(branches[0].outputs) - (node.op_type == "Loop")
        for value in node.outputs if inside else ():
            value.name = value.name or self.editor.unique_name(f"{b.label}_unread")
        while inside and len(node.outputs) < own:
            self._add_output(b, node, ir.DataType.FLOAT).type = None
        for name in ("scan_output_axes", "scan_output_directions"):
            if (given := node.attributes.get(name)) is not None:
                self.editor.set_attribute(node, name, [*given.as_ints(), *[0] * len(inside)])
        found = []
        for branch, probe in inside:
            dtype = probe.value.dtype
            assert dtype is not None
            for body in branches:
                value = probe.value if body is branch else self.constant(node, body, 0, dtype)
                self.editor.add_graph_output(body, value)
            outer = self._add_output(b, node, dtype)
            if node.op_type != "If":  # an element for each turn
                outer = b.op(probe.op, outer, keepdims=0, _dtype=dtype)
            found.append(replace(probe, value=outer))
        return found

    def _add_output(self, b: Builder, node: ir.Node, dtype: ir.DataType) -> ir.Value:
        value = self.editor.add_output(node, dtype)
        value.name = self.editor.unique_name(f"{b.label}_out{len(node.outputs) - 1}")
        return value
