"""Copies of a model with other arithmetic: exact sums, Winograd's algorithm, QLinearConv by its definition, float16.

Exact sums measure the rounding error of BEFORE's own sums, which is the same in every run. A kernel that adds n values
one by one rounds n times. If the values are alike, it may round in the same direction each time, for example in the
mean of a constant image or in a softmax of one large and thousands of tiny scores. The error is then up to n units in
the last place. Random rounding does not show this error, and a kernel that adds in parts has another error. With E for
the result of exact sums,

    |AFTER - BEFORE| <= |AFTER - E| + |E - BEFORE|

for any AFTER. The last term is BEFORE's error, and is therefore allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from graphopt.errors import VerifyError
from graphopt.graph import inference
from graphopt.graph.build import Builder, Dim
from graphopt.graph.editor import Editor
from graphopt.graph.operators.arguments import GROUP_NORM_OF_CHANNELS_OPSET, slices_by_attributes
from graphopt.graph.traversal import tensor_array, tensor_dims, with_subgraphs
from graphopt.graph.view import attribute_float, attribute_int
from graphopt.ops import DOMAIN
from graphopt.ops.schema import AXIS_OF_SCALES_OPSET
from graphopt.targets.target import Target

FLOAT, DOUBLE, HALF = ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16


def editor_of_copy(model: ir.Model) -> Editor:
    """Returns an editor of a copy of a model."""
    return Editor(inference.clone(model), Target("cpu"))


def with_outputs(model: ir.Model, names: Sequence[str]) -> ir.Model:
    """Returns a copy with these values of the main graph as outputs.

    Raises:
        VerifyError: there is no such value.
    """
    editor = editor_of_copy(model)
    made = {value.name: value for node in editor.model.graph for value in node.outputs}
    if unknown := set(names) - made.keys():
        raise VerifyError(f"the model has no value '{min(unknown)}'")
    editor.set_outputs([made[name] for name in names])
    return editor.model


# -- float16 -----------------------------------------------------------------------------------------------------------

NARROW = (HALF, ir.DataType.BFLOAT16)
# Attributes that name an element type.
_TYPES = frozenset(("to", "dtype", "softmax_precision", "stash_type"))


def values_in_half(model: ir.Model) -> frozenset[str]:
    """Returns the names of all results of nodes in float16, also in bodies, of a model with inferred types."""
    nodes = ir.traversal.RecursiveGraphIterator(model.graph)
    return frozenset(str(v.name) for n in nodes for v in n.outputs if v.dtype == HALF)


def with_float16_rounding(model: ir.Model) -> ir.Model:
    """Returns a copy that rounds every float16 result to float16 on the CPU, as GPUs do.

    ONNX Runtime has few CPU kernels for float16. It casts the inputs of a node to float32 and the result back, and then
    removes adjacent casts that cancel each other; the rounding to float16 is lost with them. Two Identity nodes after
    each result prevent this. A single Identity between two casts would become an Identity of float32.
    """
    editor = editor_of_copy(model)
    for graph in with_subgraphs(editor.model.graph):
        for node in list(graph):
            for value in node.outputs:
                if value.dtype == HALF:
                    b = Builder(editor, node)
                    again = b.op("Identity", b.op("Identity", value))
                    editor.interpose(value, b.nodes, again)
    return editor.model


def widened(model: ir.Model) -> ir.Model:
    """Returns a copy with float32 instead of float16 and bfloat16; functions must be inlined."""
    editor = editor_of_copy(model)
    for graph in with_subgraphs(editor.model.graph):
        for value in graph.initializers.values():
            if (tensor := value.const_value) is not None and tensor.dtype in NARROW:
                editor.set_data(value, tensor_array(tensor).astype(np.float32))
        for node in graph:
            for name, attribute in list(node.attributes.items()):
                if name in _TYPES and attribute.value in NARROW:
                    editor.set_attribute(node, name, int(FLOAT))
                elif attribute.type == ir.AttributeType.TENSOR and attribute.value.dtype in NARROW:
                    array = tensor_array(attribute.value).astype(np.float32)
                    editor.set_attribute(node, name, ir.Tensor(array))
        for value in (*graph.inputs, *graph.initializers.values(), *(v for node in graph for v in node.outputs)):
            if value.dtype in NARROW:
                inference.retype(editor.model, value, FLOAT)
    return editor.model


# -- quantized convolutions --------------------------------------------------------------------------------------------


def with_defined_convolutions(model: ir.Model) -> ir.Model | None:
    """Returns a copy with QLinearConv by its definition, Q(Conv(D(x), D(w), D(b))); None if there is no such node.

    ONNX Runtime's QLinearConv saturates sums of products on processors with AVX2 but without VNNI. Random rounding can
    change the input of a QuantizeLinear, but not the sums inside a QLinearConv.
    """
    editor = editor_of_copy(model)
    nodes = [node for node in editor.nodes({("", "QLinearConv")}) if _is_definable(node, editor)]
    for node in nodes:
        x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, *bias = node.inputs
        b = Builder(editor, node)
        axis: dict[str, Any] = {"axis": 0} if b.opset >= AXIS_OF_SCALES_OPSET else {}
        operands = [b.op("DequantizeLinear", x, x_scale, x_zero), b.op("DequantizeLinear", w, w_scale, w_zero, **axis)]
        if bias and bias[0] is not None:
            operands.append(b.op("DequantizeLinear", bias[0], b.op("Mul", x_scale, w_scale), **axis))
        attributes: dict[str, Any] = dict(node.attributes)
        sums = b.op("Conv", *operands, **attributes)
        y = b.op("QuantizeLinear", sums, y_scale, y_zero, _like=node.outputs[0])
        editor.replace([node], b.nodes, {node.outputs[0]: y}, anchor=node)
    return editor.model if nodes else None


def _is_definable(node: ir.Node, editor: Editor) -> bool:
    """Returns whether DequantizeLinear accepts the scales of a QLinearConv, which must be constants."""
    scales, zeros = editor.constant(node.inputs[4]), editor.constant(node.inputs[5])
    if scales is None or zeros is None or scales.shape != zeros.shape:
        return False
    return scales.size == 1 or editor.opset_at(node) >= AXIS_OF_SCALES_OPSET


# -- exact sums --------------------------------------------------------------------------------------------------------

# Operators with CPU kernels for float64 -> indices of the inputs that they sum.
FLOAT64_KERNELS: dict[str, tuple[int, ...]] = dict.fromkeys(
    "CumSum LogSoftmax LpNormalization ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMean ReduceSum "
    "ReduceSumSquare Softmax".split(),
    (0,),
) | {"DFT": (0,), "Einsum": (0, 1, 2, 3), "Gemm": (0, 1, 2), "MatMul": (0, 1), "STFT": (0, 2)}
# Operators without such kernels are written as elementary operators. PLANE_MEANS have means over the pixels of a
# channel or of a group of channels.
PLANE_MEANS = frozenset(("GlobalAveragePool", "GroupNormalization", "InstanceNormalization"))
# ROW_NORMS have means over the last axis. ONNX Runtime has SimplifiedLayerNormalization in ONNX's domain.
ROW_NORMS = frozenset(("RMSNormalization", "SimplifiedLayerNormalization"))
# The input channels of a convolution are split into at most this many equal parts. The convolutions of the parts run in
# float32, and their results are added in float64.
MOST_PARTS = 8
EPSILON = 1e-5


def has_sums(graph: ir.Graph) -> bool:
    """Returns whether a node, also in bodies, has a sum that can be computed in float64."""
    return any(node.op_type == "Conv" or _is_sum(node) for node in ir.traversal.RecursiveGraphIterator(graph))


def with_exact_sums(editor: Editor) -> None:
    """Replaces sums in float32 by sums in float64, in a model with inferred types."""
    for graph in list(editor.graphs()):
        for node in list(graph):
            b = Builder(editor, node)
            exact = _exact(b, node)
            if exact is not None:
                editor.replace([node], b.nodes, {node.outputs[0]: exact}, anchor=node)


def _is_sum(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type in FLOAT64_KERNELS.keys() | PLANE_MEANS | ROW_NORMS


def _exact(b: Builder, node: ir.Node) -> ir.Value | None:
    """Writes the first output of a node with exact sums; returns None if the node is kept."""
    parts = _parts(node)
    if not (_is_sum(node) or parts > 1) or any(y.name for y in node.outputs[1:]):
        return None
    summed = FLOAT64_KERNELS.get(node.op_type, (0, 1, 2))
    read = [v for i, v in enumerate(node.inputs) if v is not None and i in summed]
    if any(v.dtype != FLOAT for v in (*read, node.outputs[0])):
        return None
    if parts > 1:
        return _in_parts(b, node, parts)
    if node.op_type in PLANE_MEANS:
        return _plane_means(b, node)
    if node.op_type in ROW_NORMS:
        return _of_rows(b, node)
    inputs = [b.cast(v, DOUBLE) if v is not None and i in summed else v for i, v in enumerate(node.inputs)]
    return b.cast(b.copy(node, *inputs), FLOAT)


def _parts(node: ir.Node) -> int:
    """Returns the number of parts for the input channels of a convolution (MOST_PARTS); 1 if the node is kept."""
    weight = node.inputs[1] if node.op_type == "Conv" and node.domain == "" else None
    if weight is None or weight.const_value is None or attribute_int(node, "group", 1) != 1:
        return 1
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


def _plane_means(b: Builder, node: ir.Node) -> ir.Value:
    """Writes the means, or normalized values, of [N, channels or groups, pixels]."""
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
    normal = _normalized(b, centred, 2, node)
    if of_groups and b.opset >= GROUP_NORM_OF_CHANNELS_OPSET:
        normal = b.op("Reshape", normal, b.op("Shape", planes))
    scale, bias = (b.reshape(b.cast(v, DOUBLE), 1, -1, 1) for v in others if v is not None)
    return b.cast(b.op("Reshape", b.add(b.mul(normal, scale), bias), b.op("Shape", x)), FLOAT)


def _of_rows(b: Builder, node: ir.Node) -> ir.Value | None:
    x, scale = node.inputs[:2]
    if attribute_int(node, "axis", -1) != -1 or x is None or scale is None:
        return None
    return b.cast(b.mul(_normalized(b, b.cast(x, DOUBLE), -1, node), b.cast(scale, DOUBLE)), FLOAT)


def _normalized(b: Builder, x: ir.Value, axis: int, node: ir.Node) -> ir.Value:
    """Writes the values divided by the root of their mean square."""
    least = b.number(attribute_float(node, "epsilon", EPSILON), DOUBLE)
    return b.div(x, b.op("Sqrt", b.add(b.reduce("ReduceMean", b.mul(x, x), axis), least)))


# -- Winograd ----------------------------------------------------------------------------------------------------------

WINOGRAD = "WinogradConv"
_CHECK_DOMAIN = "graphopt.check"
# The matrices of F(4x4, 3x3) with the points 0, 1, -1, 2, -2 and infinity.
_BT = np.array([[4, 0, -5, 0, 1, 0], *([0, -4 * s, -4, s, 1, 0] for s in (1, -1))], np.float64)
_BT = np.vstack([_BT, *([[0, -2 * s, -1, 2 * s, 1, 0]] for s in (1, -1)), [[0, 4, 0, -5, 0, 1]]])
_G = np.array([[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]]) / 24
_AT = np.array([[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]], np.float64)


def with_winograd(model: ir.Model) -> ir.Model:
    """Returns a copy that computes WinogradConv nodes by Winograd's algorithm in standard ONNX.

        Y = A^T [(G W G^T) * (B^T X B)] A

    (A. Lavin, S. Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016). The copy shows the rounding
    error of F(4x4, 3x3) in float32. Nodes that the algorithm does not support keep their definition.

    Args:
        model: a model with inferred types.
    """
    copy = inference.clone(model)
    # If the ends of a Slice are attributes, the size of the result must be known.
    dynamic = not slices_by_attributes(copy.opset_imports.get("", 0))
    definitions = {f.name: f for f in copy.functions.values() if f.domain == DOMAIN}
    defined: dict[ir.Function, tuple[ir.Node, tuple[int, int] | None]] = {}
    for node in ir.traversal.RecursiveGraphIterator(copy.graph):
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
    """Returns the height and width of a value of rank 4, if they are known."""
    dims = value.shape.dims if value.shape is not None and len(value.shape) == 4 else ()
    return (dims[2], dims[3]) if dims and isinstance(dims[2], int) and isinstance(dims[3], int) else None


def _pads(conv: ir.Node, node: ir.Node) -> list[int]:
    """Returns the pads of the function body, which may differ from the node's attribute that a kernel reads."""
    own = conv.attributes.get("pads")
    if own is not None and own.ref_attr_name is not None:
        own = node.attributes[own.ref_attr_name]
    return [0, 0, 0, 0] if own is None else list(own.as_ints())


def _convolution(b: Builder, conv: ir.Node, pads: list[int], size: tuple[int, int] | None) -> ir.Value:
    """Writes a 3x3 Conv, X [N, C, H, W], W [M, C, 3, 3], with T tiles of 4x4 results for each image.

    Args:
        b: the builder.
        conv: the node.
        pads: top, left, bottom, right.
        size: height and width of the result; None if they follow from the input at run time.
    """
    x, w, *bias = conv.inputs
    assert x is not None and w is not None
    top, left, bottom, right = pads

    def ints(*values: int) -> ir.Value:  # below opset 9 there are no integer Constants
        return b.cast(b.array(np.array(values, np.float64)), ir.DataType.INT64)

    def kernel(array: npt.NDArray[np.float64]) -> ir.Value:
        return b.array(array.reshape(36, 1, *array.shape[2:]).astype(np.float32))

    def reshape(value: ir.Value, *dims: ir.Value) -> ir.Value:
        return b.op("Reshape", value, b.concat(dims, 0))

    one, minus, parts = ints(1), ints(-1), ints(36)
    shape = b.op("Shape", x)
    n, c, h, width = (b.op("Gather", shape, ints(i)) for i in range(4))
    m = b.op("Gather", b.op("Shape", w), ints(0))
    # One Conv with stride 4 over each channel computes all 36 elements of B^T X B, [N C, 36, tiles down, tiles across].
    tile = kernel(np.einsum("ai,bj->abij", _BT, _BT))
    reach = [top, left, bottom + 3, right + 3]
    tiles = b.op("Conv", reshape(x, minus, one, h, width), tile, strides=[4, 4], pads=reach)
    down, across = (b.op("Gather", b.op("Shape", tiles), ints(i)) for i in (2, 3))
    v = b.transpose(reshape(tiles, n, c, parts, minus), 0, 2, 1, 3)  # [N, 36, C, T]
    # G W G^T in float64, rounded once, [36, M, C].
    half = b.matmul(b.array(_G), b.cast(w, DOUBLE))
    u = b.cast(b.matmul(half, b.array(np.ascontiguousarray(_G.T))), FLOAT)
    sums = b.matmul(b.transpose(reshape(u, m, c, parts), 2, 0, 1), v)  # [N, 36, M, T]
    sums = reshape(b.transpose(sums, 0, 2, 1, 3), minus, parts, down, across)
    # One ConvTranspose computes the multiplication by A^T from the left and by A from the right.
    y = b.op("ConvTranspose", sums, kernel(np.einsum("ia,jb->abij", _AT, _AT)), strides=[4, 4])
    rows, columns = (b.mul(d, ints(4)) for d in (down, across))
    y = reshape(y, n, m, rows, columns)
    sizes: Sequence[Dim] = size or [
        b.add(d, ints(first + last - 2)) for d, first, last in ((h, top, bottom), (width, left, right))
    ]
    for axis, length in enumerate(sizes, start=2):
        y = b.slice(y, axis, 0, length)
    if not bias or bias[0] is None:
        return y
    return b.add(y, b.op("Reshape", bias[0], ints(1, -1, 1, 1)))
