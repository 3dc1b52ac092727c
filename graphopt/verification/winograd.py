"""An honest Winograd convolution in standard ONNX: what F(4x4, 3x3) in float32 costs in exactness, on this model.

    Y = A^T [(G W G^T) * (B^T X B)] A

with the interpolation points 0, 1, -1, 2, -2 and infinity (A. Lavin, S. Gray, "Fast Algorithms for Convolutional Neural
Networks", CVPR 2016). The transforms of tiles are convolutions themselves: all 36 numbers of a tile of B^T X B are one
Conv with stride 4 over each channel alone, and A^T . A is one ConvTranspose.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from graphopt.graph import inference, traversal
from graphopt.graph.messages import all_nodes, opset_of
from graphopt.graph.operators.arguments import signature
from graphopt.ops import DOMAIN

WINOGRAD = "WinogradConv"
_CHECK_DOMAIN = "graphopt.check"
_BT = np.array(
    [
        [4, 0, -5, 0, 1, 0],
        [0, -4, -4, 1, 1, 0],
        [0, 4, -4, -1, 1, 0],
        [0, -2, -1, 2, 1, 0],
        [0, 2, -1, -2, 1, 0],
        [0, 4, 0, -5, 0, 1],
    ],
    np.float64,
)
_G = np.array(
    [
        [1 / 4, 0, 0],
        [-1 / 6, -1 / 6, -1 / 6],
        [-1 / 6, 1 / 6, -1 / 6],
        [1 / 24, 1 / 12, 1 / 6],
        [1 / 24, -1 / 12, 1 / 6],
        [0, 0, 1],
    ],
    np.float64,
)
_AT = np.array([[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]], np.float64)


def approximated(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which each WinogradConv node is defined by this algorithm, but where that cannot be written."""
    opset = opset_of(model)
    # Below, Slice has its ends as attributes, and the results' size must be known.
    dynamic = "starts" in signature("Slice", opset).inputs
    sizes = {} if dynamic else _sizes(model)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    definitions = {f.name: f for f in copy.functions if f.domain == DOMAIN}
    made = 0
    for node in all_nodes(copy.graph.node):
        if node.domain != DOMAIN or not node.op_type.startswith(WINOGRAD) or node.op_type not in definitions:
            continue
        if not dynamic and node.output[0] not in sizes:
            continue
        given = {a.name: a for a in node.attribute}
        size = sizes.get(node.output[0])
        function = copy.functions.add()
        function.CopyFrom(definitions[node.op_type])
        function.domain, function.name = _CHECK_DOMAIN, f"{node.op_type}_{made}"
        made += 1
        body = [
            n
            for old in function.node
            for n in (_convolution(old, _pads(old, given), size) if old.op_type == "Conv" else [old])
        ]
        del function.node[:]
        function.node.extend(body)
        node.domain, node.op_type = function.domain, function.name
    copy.opset_import.append(helper.make_opsetid(_CHECK_DOMAIN, 1))
    return copy


def _sizes(model: onnx.ModelProto) -> dict[str, tuple[int, int]]:
    """Height and width of each value of rank 4 for which they are known."""
    work = ir.serde.deserialize_model(model)
    inference.infer(work, model)
    found = {}
    for value in (v for graph in traversal.graphs(work) for node in graph for v in node.outputs):
        if value.name is not None and value.shape is not None and len(value.shape) == 4:
            height, width = value.shape[2:]
            if isinstance(height, int) and isinstance(width, int):
                found[value.name] = (height, width)
    return found


def _pads(conv: onnx.NodeProto, given: Mapping[str, onnx.AttributeProto]) -> list[int]:
    """What the body says: it is the definition, whatever the node's own attribute says that a kernel reads."""
    own = next((a for a in conv.attribute if a.name == "pads"), None)
    if own is None:
        return [0, 0, 0, 0]
    return list(given[own.ref_attr_name].ints if own.ref_attr_name else own.ints)


def _convolution(conv: onnx.NodeProto, pads: list[int], size: tuple[int, int] | None) -> Iterator[onnx.NodeProto]:
    """The nodes that take the place of a 3x3 Conv. X [N, C, H, W], W [M, C, 3, 3]; T tiles of 4x4 results an image.

    `size` is that of the results, where it is to be a number.
    """
    x, w, *bias = conv.input
    made = iter(range(1000))

    def node(op: str, *inputs: str, **attributes: Any) -> tuple[str, onnx.NodeProto]:
        name = f"winograd_{next(made)}"
        return name, helper.make_node(op, list(inputs), [name], **attributes)

    def constant(array: npt.NDArray[np.generic]) -> tuple[str, onnx.NodeProto]:
        return node("Constant", value=numpy_helper.from_array(array))

    top, left, bottom, right = pads
    nodes = []

    def add(step: tuple[str, onnx.NodeProto]) -> str:
        nodes.append(step[1])
        return step[0]

    def ints(*values: int) -> tuple[str, onnx.NodeProto]:  # below opset 9 a Constant is no integer
        return node("Cast", add(constant(np.array(values, np.float64))), to=onnx.TensorProto.INT64)

    one, minus = add(ints(1)), add(ints(-1))
    shape = add(node("Shape", x))
    n, c, h, width = (add(node("Gather", shape, add(ints(i)))) for i in range(4))
    m = add(node("Gather", add(node("Shape", w)), add(ints(0))))
    # B^T X B of each channel alone, [N C, 36, tiles down, tiles across]; past the end tiles read zeros.
    alone = add(node("Reshape", x, add(node("Concat", minus, one, h, width, axis=0))))
    tile = np.einsum("ai,bj->abij", _BT, _BT).reshape(36, 1, 6, 6).astype(np.float32)
    reach = [top, left, bottom + 3, right + 3]
    tiles = add(node("Conv", alone, add(constant(tile)), strides=[4, 4], pads=reach))
    tiles_shape = add(node("Shape", tiles))
    down, across = (add(node("Gather", tiles_shape, add(ints(i)))) for i in (2, 3))
    v = add(node("Reshape", tiles, add(node("Concat", n, c, add(ints(36)), minus, axis=0))))
    v = add(node("Transpose", v, perm=[0, 2, 1, 3]))  # [N, 36, C, T]
    # G W G^T in float64, rounded once, [36, M, C]
    wide = add(node("Cast", w, to=onnx.TensorProto.DOUBLE))
    half = add(node("MatMul", add(constant(_G)), wide))
    u = add(node("MatMul", half, add(constant(np.ascontiguousarray(_G.T)))))
    u = add(node("Cast", u, to=onnx.TensorProto.FLOAT))
    u = add(node("Reshape", u, add(node("Concat", m, c, add(ints(36)), axis=0))))
    product = add(node("MatMul", add(node("Transpose", u, perm=[2, 0, 1])), v))  # [N, 36, M, T]
    product = add(node("Transpose", product, perm=[0, 2, 1, 3]))
    grid = add(node("Concat", minus, add(ints(36)), down, across, axis=0))
    product = add(node("Reshape", product, grid))
    back = np.einsum("ia,jb->abij", _AT, _AT).reshape(36, 1, 4, 4).astype(np.float32)
    y = add(node("ConvTranspose", product, add(constant(back)), strides=[4, 4]))
    rows, columns = (add(node("Mul", d, add(ints(4)))) for d in (down, across))
    y = add(node("Reshape", y, add(node("Concat", n, m, rows, columns, axis=0))))
    if size is None:
        ends = [add(node("Add", d, add(ints(a + b - 2)))) for d, a, b in ((h, top, bottom), (width, left, right))]
        end = add(node("Concat", *ends, axis=0))
        y = add(node("Slice", y, add(ints(0, 0)), end, add(ints(2, 3))))
    else:
        y = add(node("Slice", y, axes=[2, 3], starts=[0, 0], ends=list(size)))
    if not bias or not bias[0]:
        nodes.append(helper.make_node("Identity", [y], conv.output))
        return iter(nodes)
    b = add(node("Reshape", bias[0], add(ints(1, -1, 1, 1))))
    nodes.append(helper.make_node("Add", [y, b], conv.output))
    return iter(nodes)
