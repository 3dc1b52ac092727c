"""What BEFORE's own sums are off by: a copy in which they are computed in float64, or in parts where they cannot be.

A kernel that adds n numbers one by one rounds n times, and where these are alike, each time in the same direction:
a mean over the pixels of a constant image, a softmax of one large number and thousands of tiny ones, each of which is
lost beside it. Such an error is up to n units, the same in every run, so no draw of rounding shows it, and another
honest kernel, which adds in parts, has another one. But it can be measured. With E for what exact sums give,

    |AFTER - BEFORE| <= |AFTER - E| + |E - BEFORE|

whatever AFTER is, and the last term is no fault of AFTER's.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import onnx
from onnx import TensorProto, helper

from graphopt.graph.messages import all_nodes, bodies

# Operators that the CPU has in float64, too. Which of their inputs are summed, counted from 0.
IN_DOUBLE = {
    "CumSum": (0,),
    "Einsum": (0, 1, 2, 3),
    "Gemm": (0, 1, 2),
    "LogSoftmax": (0,),
    "LpNormalization": (0,),
    "MatMul": (0, 1),
    "ReduceL1": (0,),
    "ReduceL2": (0,),
    "ReduceLogSum": (0,),
    "ReduceLogSumExp": (0,),
    "ReduceMean": (0,),
    "ReduceSum": (0,),
    "ReduceSumSquare": (0,),
    "Softmax": (0,),
}
# Those that it has not, and that are written out: means over the pixels of each channel, or of groups of channels.
OF_PLANES = frozenset(("GlobalAveragePool", "GroupNormalization", "InstanceNormalization"))
# Over the last axis; the runtime has the second one among ONNX's own.
OF_ROWS = frozenset(("RMSNormalization", "SimplifiedLayerNormalization"))
# GroupNormalization has a scale for each channel, and not for each group; ReduceMean takes its axes as an input, and
# Split says how many parts it makes.
OPSET_OF_CHANNELS, OPSET_OF_AXES, OPSET_OF_PARTS = 21, 18, 18
# A convolution is that of so many parts of its channels, if they divide evenly, whose sum is exact.
MOST_PARTS = 8
EPSILON = 1e-5
_PREFIX = "graphopt_exact"


def has_sums(graph: onnx.GraphProto) -> bool:
    """Whether there is a sum that can be computed in float64, in bodies too."""
    return any(node.op_type == "Conv" or _is_sum(node) for node in all_nodes(graph.node))


def with_exact_sums(
    graph: onnx.GraphProto,
    types: Mapping[str, int],
    shapes: Mapping[str, tuple[int, ...]],
    made_in_single: str,
    opset: int,
) -> None:
    """Puts sums in float64 in the place of those in float32.

    Args:
        graph: is changed, and so are its bodies.
        types: element types of its values by name, bodies included.
        shapes: of constants by name.
        made_in_single: values whose names begin so have been added to the graph, in float32.
        opset: of the model.
    """
    _Exact(types, shapes, made_in_single, opset).graph(graph)


def _is_sum(node: onnx.NodeProto) -> bool:
    return node.domain in ("", "ai.onnx") and node.op_type in IN_DOUBLE.keys() | OF_PLANES | OF_ROWS


class _Nodes:
    """Nodes in the place of one, which are named after it."""

    def __init__(self, here: str, opset: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self._here, self._opset = here, opset

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{self._here}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def doubled(self, x: str) -> str:
        return self.add("Cast", x, to=TensorProto.DOUBLE)

    def single(self, x: str, name: str) -> list[onnx.NodeProto]:
        return [*self.nodes, helper.make_node("Cast", [x], [name], to=TensorProto.FLOAT)]

    def integers(self, *values: int) -> str:
        return self.add("Constant", value=helper.make_tensor("", TensorProto.INT64, [len(values)], values))

    def mean(self, x: str, axis: int) -> str:
        if self._opset >= OPSET_OF_AXES:
            return self.add("ReduceMean", x, self.integers(axis))
        return self.add("ReduceMean", x, axes=[axis])

    def split(self, x: str, parts: int) -> list[str]:
        """Along axis 1."""
        names = [f"{self._here}_{len(self.nodes)}_part{i}" for i in range(parts)]
        how: dict[str, Any] = {"num_outputs": parts} if self._opset >= OPSET_OF_PARTS else {}
        self.nodes.append(helper.make_node("Split", [x], names, axis=1, **how))
        return names

    def normal(self, x: str, axis: int, epsilon: float) -> str:
        """The numbers over the root of its mean square."""
        least = self.add("Constant", value=helper.make_tensor("", TensorProto.DOUBLE, [], [epsilon]))
        square = self.mean(self.add("Mul", x, x), axis)
        return self.add("Div", x, self.add("Sqrt", self.add("Add", square, least)))


class _Exact:
    def __init__(
        self, types: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]], made_in_single: str, opset: int
    ) -> None:
        self._types, self._shapes, self._made_in_single, self._opset = types, shapes, made_in_single, opset
        self._made = itertools.count()

    def graph(self, graph: onnx.GraphProto) -> None:
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            for body in bodies(node):
                self.graph(body)
            nodes += self._node(node)
        del graph.node[:]
        graph.node.extend(nodes)

    def _node(self, node: onnx.NodeProto) -> Iterable[onnx.NodeProto]:
        summed = IN_DOUBLE.get(node.op_type, (0, 1, 2))
        given = [node.input[i] for i in summed if i < len(node.input) and node.input[i]]
        attributes = {a.name: a for a in node.attribute}
        parts = self._parts(node, attributes)
        if not (_is_sum(node) or parts > 1) or any(node.output[1:]):
            return [node]
        if not all(map(self._is_single, (*given, node.output[0]))):
            return [node]
        new = _Nodes(f"{_PREFIX}_{next(self._made)}", self._opset)
        if parts > 1:
            return self._in_parts(new, node, parts)
        if node.op_type in OF_PLANES:
            return self._of_planes(new, node, attributes)
        if node.op_type in OF_ROWS:
            return self._of_rows(new, node, attributes)
        for i in summed:
            if i < len(node.input) and node.input[i]:
                node.input[i] = new.doubled(node.input[i])
        name, node.output[0] = node.output[0], f"{_PREFIX}_{next(self._made)}"
        new.nodes.append(node)
        return new.single(node.output[0], name)

    def _is_single(self, name: str) -> bool:
        default = TensorProto.FLOAT if name.startswith(self._made_in_single) else TensorProto.UNDEFINED
        return self._types.get(name, default) == TensorProto.FLOAT

    def _parts(self, node: onnx.NodeProto, attributes: Mapping[str, onnx.AttributeProto]) -> int:
        """Into how many parts the channels of a convolution fall; 1 where it stays as it is."""
        if node.op_type != "Conv" or node.domain not in ("", "ai.onnx") or node.input[1] not in self._shapes:
            return 1
        if "group" in attributes and attributes["group"].i != 1:
            return 1
        channels = self._shapes[node.input[1]][1]
        return max((n for n in range(1, MOST_PARTS + 1) if channels % n == 0), default=1)

    def _in_parts(self, new: _Nodes, node: onnx.NodeProto, parts: int) -> list[onnx.NodeProto]:
        sides = zip(new.split(node.input[0], parts), new.split(node.input[1], parts), strict=True)
        sums = []
        for x, w in sides:
            part = onnx.NodeProto()
            part.CopyFrom(node)
            del part.input[:], part.output[:]
            part.input.extend([x, w])
            part.output.append(f"{_PREFIX}_{next(self._made)}")
            part.name = part.output[0]
            new.nodes.append(part)
            sums.append(new.doubled(part.output[0]))
        if any(node.input[2:]):
            rank = len(self._shapes[node.input[1]])
            shape = new.integers(1, -1, *[1] * (rank - 2))
            sums.append(new.add("Reshape", new.doubled(node.input[2]), shape))
        return new.single(new.add("Sum", *sums), node.output[0])

    def _of_planes(
        self, new: _Nodes, node: onnx.NodeProto, attributes: Mapping[str, onnx.AttributeProto]
    ) -> list[onnx.NodeProto]:
        """Means, or normal numbers, of [N, channels or groups, all the rest]."""
        x = node.input[0]
        wide = new.doubled(x)
        planes = new.add("Reshape", wide, new.integers(0, 0, -1))
        if node.op_type == "GlobalAveragePool":
            shape = new.add("Shape", new.add("GlobalMaxPool", x))
            return new.single(new.add("Reshape", new.mean(planes, 2), shape), node.output[0])
        parts = planes
        if node.op_type == "GroupNormalization":
            parts = new.add("Reshape", wide, new.integers(0, attributes["num_groups"].i, -1))
        centred = new.add("Sub", parts, new.mean(parts, 2))
        normal = new.normal(centred, 2, _epsilon(attributes))
        if node.op_type == "GroupNormalization" and self._opset >= OPSET_OF_CHANNELS:
            normal = new.add("Reshape", normal, new.add("Shape", planes))
        scale, bias = (new.add("Reshape", new.doubled(name), new.integers(1, -1, 1)) for name in node.input[1:3])
        result = new.add("Add", new.add("Mul", normal, scale), bias)
        return new.single(new.add("Reshape", result, new.add("Shape", x)), node.output[0])

    def _of_rows(
        self, new: _Nodes, node: onnx.NodeProto, attributes: Mapping[str, onnx.AttributeProto]
    ) -> list[onnx.NodeProto]:
        if "axis" in attributes and attributes["axis"].i != -1:
            return [node]
        normal = new.normal(new.doubled(node.input[0]), -1, _epsilon(attributes))
        return new.single(new.add("Mul", normal, new.doubled(node.input[1])), node.output[0])


def _epsilon(attributes: Mapping[str, onnx.AttributeProto]) -> float:
    return attributes["epsilon"].f if "epsilon" in attributes else EPSILON
