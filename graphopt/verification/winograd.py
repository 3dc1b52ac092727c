"""An honest Winograd convolution in standard ONNX: what F(4x4, 3x3) in float32 costs in exactness, on this model.

    Y = A^T [(G W G^T) * (B^T X B)] A

with the interpolation points 0, 1, -1, 2, -2 and infinity (A. Lavin, S. Gray, "Fast Algorithms for Convolutional Neural
Networks", CVPR 2016). The transforms of tiles are convolutions themselves: all 36 numbers of a tile of B^T X B are one
Conv with stride 4 over each channel alone, and A^T . A is one ConvTranspose.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from graphopt.graph import inference
from graphopt.graph.build import Builder, Dim
from graphopt.graph.editor import Editor
from graphopt.graph.operators.arguments import slices_by_attributes
from graphopt.graph.traversal import with_subgraphs
from graphopt.ops import DOMAIN
from graphopt.targets.target import Target

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


def approximated(model: ir.Model) -> ir.Model:
    """A copy in which each WinogradConv node is defined by this algorithm, but where that cannot be written.

    Args:
        model: types inferred.
    """
    copy = inference.clone(model)
    # Where the ends of a Slice are attributes the results' size must be known.
    dynamic = not slices_by_attributes(copy.opset_imports.get("", 0))
    definitions = {f.name: f for f in copy.functions.values() if f.domain == DOMAIN}
    defined: dict[ir.Function, tuple[ir.Node, tuple[int, int] | None]] = {}
    for node in (node for graph in with_subgraphs(copy.graph) for node in graph):
        size = None if dynamic else _size(node.outputs[0])
        if node.domain != DOMAIN or not node.op_type.startswith(WINOGRAD) or not (dynamic or size):
            continue
        if (definition := definitions.get(node.op_type)) is not None:
            name = f"{node.op_type}_{len(defined)}"
            attributes = list(definition.attributes.values())
            function = ir.Function(_CHECK_DOMAIN, name, graph=definition.graph.clone(), attributes=attributes)
            copy.functions[function.identifier()] = function
            node.domain, node.op_type = _CHECK_DOMAIN, name
            defined[function] = node, size
    copy.opset_imports[_CHECK_DOMAIN] = 1
    editor = Editor(copy, Target("cpu"))
    for function, (node, size) in defined.items():
        for conv in [inner for inner in function if inner.op_type == "Conv"]:
            b = Builder(editor, conv)
            y = _convolution(b, conv, _pads(conv, node), size)
            editor.replace([conv], b.nodes, {conv.outputs[0]: y}, anchor=conv)
    return copy


def _size(value: ir.Value) -> tuple[int, int] | None:
    """Height and width of a value of rank 4, if they are known."""
    dims = value.shape.dims if value.shape is not None and len(value.shape) == 4 else ()
    return (dims[2], dims[3]) if dims and isinstance(dims[2], int) and isinstance(dims[3], int) else None


def _pads(conv: ir.Node, node: ir.Node) -> list[int]:
    """What the body says: it is the definition, whatever the node's own attribute says that a kernel reads."""
    own = conv.attributes.get("pads")
    if own is not None and own.ref_attr_name is not None:
        own = node.attributes[own.ref_attr_name]
    return [0, 0, 0, 0] if own is None else list(own.as_ints())


def _convolution(b: Builder, conv: ir.Node, pads: list[int], size: tuple[int, int] | None) -> ir.Value:
    """What takes the place of a 3x3 Conv. X [N, C, H, W], W [M, C, 3, 3]; T tiles of 4x4 results an image.

    `size` is that of the results, where it is to be a number.
    """
    x, w, *bias = conv.inputs
    assert x is not None and w is not None
    top, left, bottom, right = pads

    def ints(*values: int) -> ir.Value:  # below opset 9 a Constant is no integer
        return b.cast(b.array(np.array(values, np.float64)), ir.DataType.INT64)

    def single(array: npt.NDArray[np.float64]) -> ir.Value:
        return b.array(array.reshape(36, 1, *array.shape[2:]).astype(np.float32))

    def reshape(value: ir.Value, *dims: ir.Value) -> ir.Value:
        return b.op("Reshape", value, b.concat(dims, 0))

    one, minus, parts = ints(1), ints(-1), ints(36)
    shape = b.op("Shape", x)
    n, c, h, width = (b.op("Gather", shape, ints(i)) for i in range(4))
    m = b.op("Gather", b.op("Shape", w), ints(0))
    # B^T X B of each channel alone, [N C, 36, tiles down, tiles across]; past the end tiles read zeros.
    tile = single(np.einsum("ai,bj->abij", _BT, _BT))
    reach = [top, left, bottom + 3, right + 3]
    tiles = b.op("Conv", reshape(x, minus, one, h, width), tile, strides=[4, 4], pads=reach)
    down, across = (b.op("Gather", b.op("Shape", tiles), ints(i)) for i in (2, 3))
    v = b.transpose(reshape(tiles, n, c, parts, minus), 0, 2, 1, 3)  # [N, 36, C, T]
    # G W G^T in float64, rounded once, [36, M, C]
    half = b.matmul(b.array(_G), b.cast(w, ir.DataType.DOUBLE))
    u = b.cast(b.matmul(half, b.array(np.ascontiguousarray(_G.T))), ir.DataType.FLOAT)
    product = b.matmul(b.transpose(reshape(u, m, c, parts), 2, 0, 1), v)  # [N, 36, M, T]
    product = reshape(b.transpose(product, 0, 2, 1, 3), minus, parts, down, across)
    y = b.op("ConvTranspose", product, single(np.einsum("ia,jb->abij", _AT, _AT)), strides=[4, 4])
    rows, columns = (b.mul(d, ints(4)) for d in (down, across))
    y = reshape(y, n, m, rows, columns)
    ends: Sequence[Dim]
    if size is None:
        ends = [b.add(d, ints(first + last - 2)) for d, first, last in ((h, top, bottom), (width, left, right))]
    else:
        ends = size
    for axis, end in enumerate(ends, start=2):
        y = b.slice(y, axis, 0, end)
    if not bias or bias[0] is None:
        return y
    return b.add(y, b.op("Reshape", bias[0], ints(1, -1, 1, 1)))
