"""What BEFORE's own sums are off by: a copy in which they are computed in float64, or in parts where they cannot be.

A kernel that adds n numbers one by one rounds n times, and where these are alike, each time in the same direction:
a mean over the pixels of a constant image, a softmax of one large number and thousands of tiny ones, each of which is
lost beside it. Such an error is up to n units, the same in every run, so no draw of rounding shows it, and another
honest kernel, which adds in parts, has another one. But it can be measured. With E for what exact sums give,

    |AFTER - BEFORE| <= |AFTER - E| + |E - BEFORE|

whatever AFTER is, and the last term is no fault of AFTER's.
"""

from __future__ import annotations

import onnx_ir as ir

from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.operators.arguments import GROUP_NORM_OF_CHANNELS_OPSET
from graphopt.graph.traversal import tensor_dims, with_subgraphs
from graphopt.graph.view import attribute_float, attribute_int

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
# A convolution is that of so many parts of its channels, if they divide evenly, whose sum is exact.
MOST_PARTS = 8
EPSILON = 1e-5
FLOAT, DOUBLE = ir.DataType.FLOAT, ir.DataType.DOUBLE


def has_sums(graph: ir.Graph) -> bool:
    """Whether there is a sum that can be computed in float64, in bodies too."""
    return any(node.op_type == "Conv" or _is_sum(node) for inner in with_subgraphs(graph) for node in inner)


def with_exact_sums(editor: Editor) -> None:
    """Puts sums in float64 in the place of those in float32; types are inferred."""
    for graph in list(editor.graphs()):
        for node in list(graph):
            b = Builder(editor, node)
            exact = _exact(b, node)
            if exact is not None:
                editor.replace([node], b.nodes, {node.outputs[0]: exact}, anchor=node)


def _is_sum(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type in IN_DOUBLE.keys() | OF_PLANES | OF_ROWS


def _exact(b: Builder, node: ir.Node) -> ir.Value | None:
    """What takes the place of the first result of a node; None where it stays as it is."""
    parts = _parts(node)
    if not (_is_sum(node) or parts > 1) or any(y.name for y in node.outputs[1:]):
        return None
    summed = IN_DOUBLE.get(node.op_type, (0, 1, 2))
    read = [v for i, v in enumerate(node.inputs) if v is not None and i in summed]
    if any(v.dtype != FLOAT for v in (*read, node.outputs[0])):
        return None
    if parts > 1:
        return _in_parts(b, node, parts)
    if node.op_type in OF_PLANES:
        return _of_planes(b, node)
    if node.op_type in OF_ROWS:
        return _of_rows(b, node)
    inputs = [b.cast(v, DOUBLE) if v is not None and i in summed else v for i, v in enumerate(node.inputs)]
    return b.cast(b.copy(node, *inputs), FLOAT)


def _parts(node: ir.Node) -> int:
    """Into how many parts the channels of a convolution fall; 1 where it stays as it is."""
    weight = node.inputs[1] if node.op_type == "Conv" and node.domain == "" else None
    if weight is None or not weight.is_initializer() or attribute_int(node, "group", 1) != 1:
        return 1
    assert weight.const_value is not None
    channels = tensor_dims(weight.const_value)[1]
    return max((n for n in range(1, MOST_PARTS + 1) if channels % n == 0), default=1)


def _in_parts(b: Builder, node: ir.Node, parts: int) -> ir.Value:
    x, w, *bias = node.inputs
    assert x is not None and w is not None and w.const_value is not None
    dims = tensor_dims(w.const_value)
    sizes = [dims[1] // parts] * parts
    sides = zip(b.split(x, sizes, 1), b.split(w, sizes, 1), strict=True)
    sums = [b.cast(b.copy(node, *side), DOUBLE) for side in sides]
    if bias and bias[0] is not None:
        sums.append(b.reshape(b.cast(bias[0], DOUBLE), 1, -1, *[1] * (len(dims) - 2)))
    return b.cast(b.op("Sum", *sums), FLOAT)


def _of_planes(b: Builder, node: ir.Node) -> ir.Value:
    """Means, or normal numbers, of [N, channels or groups, all the rest]."""
    x, *others = node.inputs
    assert x is not None
    wide = b.cast(x, DOUBLE)
    planes = b.reshape(wide, 0, 0, -1)
    if node.op_type == "GlobalAveragePool":
        mean = b.reduce("ReduceMean", planes, 2)
        return b.cast(b.op("Reshape", mean, b.op("Shape", b.op("GlobalMaxPool", x))), FLOAT)
    of_groups = node.op_type == "GroupNormalization"
    parts = b.reshape(wide, 0, attribute_int(node, "num_groups", 1), -1) if of_groups else planes
    centred = b.sub(parts, b.reduce("ReduceMean", parts, 2))
    normal = _normal(b, centred, 2, node)
    if of_groups and b.opset >= GROUP_NORM_OF_CHANNELS_OPSET:
        normal = b.op("Reshape", normal, b.op("Shape", planes))
    scale, bias = (b.reshape(b.cast(v, DOUBLE), 1, -1, 1) for v in others if v is not None)
    return b.cast(b.op("Reshape", b.add(b.mul(normal, scale), bias), b.op("Shape", x)), FLOAT)


def _of_rows(b: Builder, node: ir.Node) -> ir.Value | None:
    x, scale = node.inputs[:2]
    if attribute_int(node, "axis", -1) != -1 or x is None or scale is None:
        return None
    return b.cast(b.mul(_normal(b, b.cast(x, DOUBLE), -1, node), b.cast(scale, DOUBLE)), FLOAT)


def _normal(b: Builder, x: ir.Value, axis: int, node: ir.Node) -> ir.Value:
    """The numbers over the root of their mean square."""
    least = b.number(attribute_float(node, "epsilon", EPSILON), DOUBLE)
    return b.div(x, b.op("Sqrt", b.add(b.reduce("ReduceMean", b.mul(x, x), axis), least)))
