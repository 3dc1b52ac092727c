"""Queries on a protobuf message agree with onnx_ir's reading of it."""

from __future__ import annotations

import onnx
import onnx_ir as ir
from onnx import AttributeProto, helper

from graphopt.graph import messages, traversal


def test_bodies_are_those_that_onnx_ir_reads() -> None:
    """A malformed attribute is read by its declared type, references are empty, and of equal names the last is read."""

    def body(name: str) -> onnx.GraphProto:
        return helper.make_graph([], name, [], [])

    number = AttributeProto(name="number", type=AttributeProto.INT, i=3, g=body("of a number"))
    several = AttributeProto(name="several", type=AttributeProto.GRAPHS, g=body("beside several"))
    several.graphs.extend([body("first"), body("second")])
    reference = AttributeProto(name="reference", type=AttributeProto.GRAPH, ref_attr_name="other")
    one = AttributeProto(name="one", type=AttributeProto.GRAPH, g=body("one"))
    node = helper.make_node("Op", [], ["y"], domain="other")
    replaced = AttributeProto(name="several", type=AttributeProto.GRAPH, g=body("replaced"))
    node.attribute.extend([replaced, number, several, reference, one])
    graph = ir.serde.deserialize_graph(helper.make_graph([node], "g", [], []))
    read = [graph.name for graph in traversal.bodies(graph[0])]
    assert [graph.name for graph in messages.bodies(node)] == read == ["first", "second", "one"]
