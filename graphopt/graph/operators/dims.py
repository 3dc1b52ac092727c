"""Rules for output dimensions, one for each operator; the tables are at the end.

A rule computes the dimensions of one output of a node as ONNX's operator specification defines them. Unknown
dimensions are None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from graphopt.graph.operators.arguments import spans
from graphopt.graph.operators.traits import BROADCASTING, REDUCTIONS, SAME_SHAPE
from graphopt.graph.shapes.facts import (
    EVERY,
    FIRST,
    MICROSOFT,
    Dims,
    NodeFacts,
    Rule,
    rule_for,
)
from graphopt.graph.shapes.sizes import ONE, ZERO, Size, product, total
from graphopt.ops import OPS
from graphopt.ops.schema import NUMPY_BROADCASTING_OPSET


def broadcast(shapes: Sequence[Dims]) -> list[Size | None]:
    """Returns the dimensions of the numpy broadcast of several shapes."""
    rank = max(map(len, shapes), default=0)
    result: list[Size | None] = []
    for axis in range(-rank, 0):
        large = {s[axis] for s in shapes if -axis <= len(s) and s[axis] != ONE}
        # If one dimension is an integer other than 1, it is the result: each other one must be 1 or equal to it.
        numbers = [size for size in large if size is not None and size.value is not None]
        result.append(numbers[0] if numbers else large.pop() if len(large) == 1 else None if large else ONE)
    return result


def _of_first_input(rule: Callable[[NodeFacts, tuple[Size, ...]], Dims | None]) -> Callable[[NodeFacts], Dims | None]:
    """Makes a rule that receives the dimensions of the first input, and infers nothing if they are unknown."""

    def infer(known: NodeFacts) -> Dims | None:
        dims = known.dims(0)
        return None if dims is None else rule(known, dims)

    return infer


def _like_first(known: NodeFacts) -> Dims | None:
    return known.dims(0)


def _elementwise(known: NodeFacts) -> Dims | None:
    if known.opset < NUMPY_BROADCASTING_OPSET and known.node.domain == "":
        return known.dims(0)
    shapes = known.all_dims()
    return None if not shapes else broadcast(shapes)


def _matmul(known: NodeFacts) -> Dims | None:
    a, b = known.dims(0), known.dims(1)
    if not a or not b:
        return None
    # A vector is a row on the left or a column on the right; the result does not have its axis of size 1.
    batch = broadcast([a[:-2], b[:-2]])
    return [*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ())]


def _gemm(known: NodeFacts) -> Dims | None:
    a, b = known.dims(0) or (None, None), known.dims(1) or (None, None)
    return [a[1 if known.attribute("transA", 0) else 0], b[0 if known.attribute("transB", 0) else 1]]


def _einsum(known: NodeFacts) -> Dims | None:
    equation = str(known.attribute("equation")).replace(" ", "")
    left, arrow, right = equation.partition("->")
    operands = left.split(",")
    if not arrow or "." in equation or len(operands) != len(known.node.inputs):
        return None
    sizes: dict[str, list[Size | None]] = {}
    for i, letters in enumerate(operands):
        dims = known.dims(i)
        for letter, size in zip(letters, dims or [None] * len(letters), strict=True):
            sizes.setdefault(letter, []).append(size)
    return [broadcast([[size] for size in sizes[letter]])[0] for letter in right]


def _transpose(known: NodeFacts) -> Dims | None:
    perm, dims = known.attribute("perm"), known.dims(0)
    if dims is None:
        return None if perm is None else [None] * len(perm)
    return [dims[axis] for axis in (perm if perm is not None else range(len(dims))[::-1])]


def _reshape(known: NodeFacts) -> Dims | None:
    """Infers a Reshape: 0 copies a dimension, -1 is the quotient of the element counts."""
    target, source = known.elements(1), known.dims(0)
    if target is None:
        length = known.length(1)
        return None if length is None else [None] * length
    result: list[Size | None] = []
    inferred: int | None = None
    for i, element in enumerate(target.items.flat):
        if element == Size.of(-1):
            inferred = i
        if element == ZERO and not known.attribute("allowzero", 0):
            result.append(source[i] if source is not None and i < len(source) else None)
        else:
            result.append(element if isinstance(element, Size) and element.never_negative else None)
    rest = [size for i, size in enumerate(result) if i != inferred]
    sizes = [size for size in rest if size is not None]
    if inferred is not None and source is not None and len(sizes) == len(rest):
        # Division by 0 leaves -1 unknown; symbols are assumed not to be 0.
        result[inferred] = product(source).divided_by(product(sizes))
    return result


def _flatten(known: NodeFacts) -> Dims | None:
    dims, axis = known.dims(0), known.attribute("axis", 1)
    if dims is None:
        return [None, None]
    axis = axis + len(dims) if axis < 0 else axis
    return [product(dims[:axis]), product(dims[axis:])]


def _unsqueeze(known: NodeFacts) -> Dims | None:
    dims, given = known.dims(0), known.integer_argument("axes")
    if dims is None or given is None:
        length = known.length(1) if len(known.node.inputs) > 1 else None
        return None if dims is None or length is None else [None] * (len(dims) + length)
    axes = known.axes(len(dims) + len(given))
    if axes is None:
        return None
    rest = iter(dims)
    return [ONE if axis in axes else next(rest) for axis in range(len(dims) + len(given))]


def _squeeze(known: NodeFacts, dims: tuple[Size, ...]) -> Dims | None:
    if not known.is_given("axes"):
        return None if any(d.value is None for d in dims) else [d for d in dims if d != ONE]
    axes = known.axes(len(dims))
    if axes is None:
        length = known.length(1)
        return None if length is None else [None] * (len(dims) - length)
    return [d for axis, d in enumerate(dims) if axis not in axes]


def _concat(known: NodeFacts) -> Dims | None:
    shapes = known.all_dims()
    if shapes is None:
        first = known.dims(0)
        if first is None:
            return None
        along = known.axis(len(first))
        return [None if axis == along else d for axis, d in enumerate(first)]
    along = known.axis(len(shapes[0]))
    return [total(s[axis] for s in shapes) if axis == along else d for axis, d in enumerate(shapes[0])]


def _split(known: NodeFacts, dims: tuple[Size, ...]) -> Dims | None:
    along, parts = known.axis(len(dims)), len(known.node.outputs)
    sizes = known.integer_argument("split")
    part: Size | None = None
    if sizes is not None:
        part = Size.of(sizes[known.index])
    elif known.input(1) is None:
        part = dims[along].divided_by(Size.of(parts))
        length = dims[along].value
        if part is None and length is not None and "num_outputs" in known.node.attributes:
            chunk = -(-length // parts)
            part = Size.of(max(min(chunk, length - chunk * known.index), 0))
    return [part if axis == along else d for axis, d in enumerate(dims)]


def _gather(known: NodeFacts) -> Dims | None:
    data, indices = known.dims(0), known.dims(1)
    if data is None or indices is None:
        return None
    axis = known.axis(len(data))
    return [*data[:axis], *indices, *data[axis + 1 :]]


def _gather_block_quantized(known: NodeFacts) -> Dims | None:
    """Infers a Gather; elements of 2 and 4 bits in uint8 are packed along the last axis."""
    data, indices, value = known.dims(0), known.dims(1), known.input(0)
    bits, axis = known.attribute("bits", 4), known.attribute("gather_axis", 0)
    if not data or indices is None or value is None or not -len(data) <= axis < len(data):
        return None
    if value.dtype is None or (value.dtype == ir.DataType.UINT8 and bits not in (2, 4, 8)):
        return None
    per_byte = 8 // bits if value.dtype == ir.DataType.UINT8 else 1
    sizes = [*data[:-1], product([data[-1], Size.of(per_byte)])]
    axis %= len(data)
    return [*sizes[:axis], *indices, *sizes[axis + 1 :]]


def _gather_nd(known: NodeFacts) -> Dims | None:
    data, indices, batch = known.dims(0), known.dims(1), known.attribute("batch_dims", 0)
    depth = indices[-1].value if indices else None
    return None if data is None or indices is None or depth is None else [*indices[:-1], *data[batch + depth :]]


def _slice(known: NodeFacts, dims: tuple[Size, ...]) -> Dims | None:
    cut = spans(known)
    if cut is None:
        length = None if known.is_given("axes") else known.length(1)
        return [None] * len(dims) if length is None else [*[None] * length, *dims[length:]]
    result: list[Size | None] = list(dims)
    for span in cut:
        axis = span.axis % len(dims) if -len(dims) <= span.axis < len(dims) else len(dims)
        size, taken = dims[axis].value, None
        if size is not None:
            taken = span.of(size)
            result[axis] = None if taken is None else Size.of(len(taken))
        elif not span.covers_axis:
            result[axis] = None
    return result


def _reduce(known: NodeFacts, dims: tuple[Size, ...]) -> Dims | None:
    keep = known.attribute("keepdims", 1)
    if not known.is_given("axes"):
        if known.attribute("noop_with_empty_axes", 0):
            return dims
        axes: list[int] | None = list(range(len(dims)))
    else:
        axes = known.axes(len(dims))
        if axes == [] and not known.attribute("noop_with_empty_axes", 0):
            axes = list(range(len(dims)))
    if axes is None:
        return [None] * len(dims) if keep else None
    return [ONE if axis in axes else d for axis, d in enumerate(dims) if keep or axis not in axes]


def _arg_reduce(known: NodeFacts, dims: tuple[Size, ...]) -> Dims | None:
    along, keep = known.axis(len(dims)), known.attribute("keepdims", 1)
    return [ONE if axis == along else d for axis, d in enumerate(dims) if keep or axis != along]


def _top_k(known: NodeFacts, dims: tuple[Size, ...]) -> Dims | None:
    along, k = known.axis(len(dims), -1), known.attribute("k")
    counts = known.integer_input(1) if k is None else [k]
    return [(Size.of(counts[0]) if counts else None) if axis == along else d for axis, d in enumerate(dims)]


def _one_hot(known: NodeFacts, dims: tuple[Size, ...]) -> Dims | None:
    depth, axis = known.integer_input(1), known.attribute("axis", -1)
    axis = axis + len(dims) + 1 if axis < 0 else axis
    return [*dims[:axis], Size.of(depth[0]) if depth else None, *dims[axis:]]


def _tile(known: NodeFacts, dims: tuple[Size, ...]) -> Dims | None:
    repeats = known.elements(1)
    if repeats is None or repeats.items.size != len(dims):
        return [None] * len(dims)
    return [d * r if isinstance(r, Size) and r.never_negative else None for d, r in zip(dims, repeats.items.flat)]


def _expand(known: NodeFacts, have: tuple[Size, ...]) -> Dims | None:
    target = known.elements(1)
    if target is None:
        length = known.length(1)
        return None if length is None else broadcast([have, [None] * length])
    wanted = [t if isinstance(t, Size) and t.never_negative else None for t in target.items.flat]
    return broadcast([have, wanted])


def _pad(known: NodeFacts, dims: tuple[Size, ...]) -> Dims | None:
    pads = known.integer_argument("pads")
    axes = known.axes(len(dims)) if known.is_given("axes") else list(range(len(dims)))
    if pads is None or axes is None or len(pads) != 2 * len(axes):
        return [None] * len(dims)
    grown: list[Size | None] = list(dims)
    for i, axis in enumerate(axes):
        size = dims[axis] + Size.of(pads[i] + pads[i + len(axes)])
        grown[axis] = size if size.never_negative else None
    return grown


def _windows(known: NodeFacts) -> Dims | None:
    """Infers batch, channels, and the number of windows along each spatial axis."""
    pool = known.node.op_type.endswith("Pool")
    dims, weight = known.dims(0), None if pool else known.dims(1)
    if dims is None or len(dims) < 3:
        return None
    axes = len(dims) - 2
    kernel = known.attribute("kernel_shape") or ([d.value for d in weight[2:]] if weight is not None else [None] * axes)
    channels = dims[1] if pool else weight[0] if weight is not None else None
    strides, dilations = (known.attribute(n) or [1] * axes for n in ("strides", "dilations"))
    pads, auto = known.attribute("pads") or [0] * (2 * axes), known.attribute("auto_pad", "NOTSET")
    result: list[Size | None] = [dims[0], channels]
    for i, size in enumerate(dims[2:]):
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            result.append((size + Size.of(strides[i] - 1)).floor_divided_by(strides[i]))
            continue
        if kernel[i] is None or known.attribute("ceil_mode", 0):
            result.append(None)
            continue
        padding = 0 if auto == "VALID" else pads[i] + pads[i + axes]
        steps = size + Size.of(padding - dilations[i] * (kernel[i] - 1) - 1)
        result.append(steps.floor_divided_by(strides[i]) + ONE)
    return result


def _transposed_windows(known: NodeFacts) -> Dims | None:
    """Infers batch, channels, and along each spatial axis the total size of the windows minus the padding."""
    dims, weight = known.dims(0), known.dims(1)
    if dims is None or len(dims) < 3:
        return None
    axes = len(dims) - 2
    kernel = known.attribute("kernel_shape") or ([d.value for d in weight[2:]] if weight is not None else [None] * axes)
    strides, dilations = (known.attribute(n) or [1] * axes for n in ("strides", "dilations"))
    output_padding, pads = (known.attribute(n) or [0] * k * axes for n, k in (("output_padding", 1), ("pads", 2)))
    auto, wanted = known.attribute("auto_pad", "NOTSET"), known.attribute("output_shape")
    channels = weight[1] * Size.of(known.attribute("group", 1)) if weight is not None else None
    result: list[Size | None] = [dims[0], channels]
    for i, size in enumerate(dims[2:]):
        if wanted:
            result.append(Size.of(wanted[i]) if len(wanted) == axes else None)
        elif auto in ("SAME_UPPER", "SAME_LOWER"):
            result.append(size * Size.of(strides[i]))
        elif kernel[i] is None:
            result.append(None)
        else:
            padding = 0 if auto == "VALID" else pads[i] + pads[i + axes]
            growth = dilations[i] * (kernel[i] - 1) + 1 + output_padding[i] - strides[i] - padding
            result.append(size * Size.of(strides[i]) + Size.of(growth))
    return result


def _depth_to_space(known: NodeFacts, dims: tuple[Size, ...]) -> Dims | None:
    block = Size.of(known.attribute("blocksize"))
    N, C, H, W = dims
    if known.node.op_type == "DepthToSpace":
        return [N, C.divided_by(block * block), H * block, W * block]
    return [N, C * block * block, H.divided_by(block), W.divided_by(block)]


def _shape_dims(known: NodeFacts) -> Dims | None:
    dims = known.dims(0)
    if dims is None:
        return [None]
    return [Size.of(len(dims[known.attribute("start", 0) : known.attribute("end", len(dims))]))]


def _filled_dims(known: NodeFacts) -> Dims | None:
    target = known.elements(0)
    if target is None:
        length = known.length(0)
        return None if length is None else [None] * length
    return [t if isinstance(t, Size) and t.never_negative else None for t in target.items.flat]


def _range_dims(known: NodeFacts) -> Dims | None:
    found = [known.elements(i) for i in range(3)]
    start, limit, step = (e.items.item() if e is not None and e.items.size == 1 else None for e in found)
    if not (isinstance(start, Size) and isinstance(limit, Size) and isinstance(step, Size)):
        return [None]
    distance, by = limit - start, step.value
    if distance.value is not None and by:
        return [Size.of(max(-(-distance.value // by), 0))]
    return [distance if by == 1 and distance.never_negative else None]


def _linear(known: NodeFacts, x: tuple[Size, ...]) -> Dims | None:
    w = known.dims(1)
    return [*x[:-1], w[-1] if w else None]


def _channels_last_windows(known: NodeFacts) -> Dims | None:
    """Infers the windows of QuantizedConv: X [N, H, W, C] and the weight, input 3."""
    x, weight = known.dims(0), known.dims(3)
    if x is None or weight is None:
        return None
    result: list[Size | None] = [x[0]]
    pads, strides, dilations = (known.attribute(name) for name in ("pads", "strides", "dilations"))
    for i in range(2):
        kernel = weight[2 + i].value
        if kernel is None:
            result.append(None)
            continue
        steps = x[1 + i] + Size.of(pads[i] + pads[2 + i] - dilations[i] * (kernel - 1) - 1)
        result.append(steps.floor_divided_by(strides[i]) + ONE)
    return [*result, weight[0]]


def _winograd(known: NodeFacts, x: tuple[Size, ...]) -> Dims | None:
    w, (top, left, bottom, right) = known.dims(1), known.attribute("pads")
    return [x[0], w[0] if w else None, x[2] + Size.of(top + bottom - 2), x[3] + Size.of(left + right - 2)]


# -- com.microsoft, and If ---------------------------------------------------------------------------------------------


def _grouped_attention(known: NodeFacts, dims: tuple[Size, ...]) -> Dims | None:
    """Infers the query's shape; a packed query also contains keys and values."""
    if known.input(1) is not None:
        return dims
    heads, keys, hidden = known.attribute("num_heads"), known.attribute("kv_num_heads"), dims[-1].value
    if hidden is None:
        return [*dims[:-1], None]
    return [*dims[:-1], Size.of(hidden // (heads + 2 * keys) * heads)]


def _heads_attention(known: NodeFacts) -> Dims | None:
    """Infers [B, S, v_hidden_size]; V is the third input."""
    q, v = known.dims(0), known.dims(2)
    if q is None or len(q) != 3:
        return None
    return [*q[:2], v[-1] if v is not None and len(v) == 3 else None]


def _if(known: NodeFacts) -> Dims | None:
    """Infers the dimensions that are equal in all branches."""
    branches = known.returned()
    if not branches or len(set(map(len, branches))) > 1:
        return None
    return [sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*branches, strict=True)]


# -- the last dimension of a tensor with unknown rank ------------------------------------------------------------------


def _last_of_matmul(known: NodeFacts) -> Size | None:
    b = known.dims(1)
    return b[-1] if b is not None and len(b) > 1 else None


def _last_elementwise(known: NodeFacts) -> Size | None:
    sizes = {known.last(i) for i, v in enumerate(known.node.inputs) if v is not None}
    numbers = [s for s in sizes if s is not None and s.value not in (None, 1)]
    return numbers[0] if len(numbers) == 1 and known.opset >= NUMPY_BROADCASTING_OPSET else None


# -- the tables --------------------------------------------------------------------------------------------------------

SAME_SHAPE_MICROSOFT = (
    "BiasAdd BiasGelu FastGelu Gelu GroupNorm QLinearLeakyRelu QLinearSigmoid QLinearSoftmax QuickGelu RotaryEmbedding "
    "Trilu".split()
)


def _own(like_first: Rule, others: Mapping[str, Rule]) -> dict[str, Rule]:
    """Returns operator name -> rule for our operators.

    Args:
        like_first: the rule of operators with `OpSpec.keeps_shape`.
        others: prefix of operator names -> rule.
    """
    rules = dict.fromkeys((spec.name for spec in OPS.values() if spec.keeps_shape), like_first)
    return rules | {name: rule for start, rule in others.items() for name in OPS if name.startswith(start)}


# Rules for the dimensions of outputs.
DIMS: dict[str, Rule] = {
    **dict.fromkeys(SAME_SHAPE, Rule(_like_first, dims=FIRST)),
    **dict.fromkeys(BROADCASTING, Rule(_elementwise, dims=EVERY)),
    **dict.fromkeys(REDUCTIONS, Rule(_of_first_input(_reduce), dims=FIRST, elements=(1,))),
    **dict.fromkeys(("ArgMax", "ArgMin"), Rule(_of_first_input(_arg_reduce), dims=FIRST)),
    **dict.fromkeys(("Conv", "AveragePool", "LpPool"), Rule(_windows, dims=(0, 1))),
    **dict.fromkeys(
        ("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"),
        Rule(_of_first_input(lambda _, dims: [*dims[:2], *[ONE] * (len(dims) - 2)]), dims=FIRST),
    ),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), Rule(_of_first_input(_depth_to_space), dims=FIRST)),
    **dict.fromkeys(
        ("RandomNormal", "RandomUniform"), Rule(lambda known: [Size.of(d) for d in known.attribute("shape")])
    ),
    "Concat": Rule(_concat, dims=EVERY),
    "ConstantOfShape": Rule(_filled_dims, dims=FIRST, elements=FIRST),
    "ConvTranspose": Rule(_transposed_windows, dims=(0, 1)),
    "Dropout": Rule(_like_first, dims=FIRST, every_output=True),
    "Einsum": Rule(_einsum, dims=EVERY),
    "Expand": Rule(_of_first_input(_expand), dims=(0, 1), elements=(1,)),
    "Flatten": Rule(_flatten, dims=FIRST),
    "Gather": Rule(_gather, dims=(0, 1)),
    "GatherElements": Rule(lambda known: known.dims(1), dims=(1,)),
    "GatherND": Rule(_gather_nd, dims=(0, 1)),
    "Gemm": Rule(_gemm, dims=(0, 1)),
    "If": Rule(_if, every_output=True, branches=True),
    "MatMul": Rule(_matmul, dims=(0, 1)),
    "MatMulInteger": Rule(_matmul, dims=(0, 1)),
    "MaxPool": Rule(_windows, dims=FIRST, every_output=True),
    "OneHot": Rule(_of_first_input(_one_hot), dims=FIRST, elements=(1,)),
    "Pad": Rule(_of_first_input(_pad), dims=FIRST, elements=(1, 3)),
    "Range": Rule(_range_dims, elements=EVERY),
    "Reshape": Rule(_reshape, dims=(0, 1), elements=(1,)),
    **dict.fromkeys(("Resize", "Upsample"), Rule(_of_first_input(lambda _, dims: [None] * len(dims)), dims=FIRST)),
    "Shape": Rule(_shape_dims, dims=FIRST),
    "Size": Rule(lambda _: []),
    "Slice": Rule(_of_first_input(_slice), dims=(0, 1), elements=(1, 2, 3, 4)),
    "Split": Rule(_of_first_input(_split), dims=FIRST, elements=(1,), every_output=True),
    "Squeeze": Rule(_of_first_input(_squeeze), dims=(0, 1), elements=(1,)),
    "Tile": Rule(_of_first_input(_tile), dims=FIRST, elements=(1,)),
    "TopK": Rule(_of_first_input(_top_k), dims=FIRST, elements=(1,), every_output=True),
    "Transpose": Rule(_transpose, dims=FIRST),
    **{f"{MICROSOFT}.{name}": Rule(_like_first, dims=FIRST) for name in SAME_SHAPE_MICROSOFT},
    **dict.fromkeys(
        (f"{MICROSOFT}.SkipLayerNormalization", f"{MICROSOFT}.SkipSimplifiedLayerNormalization"),
        # Outputs 0 and 3 (Y and the sum) have the shape of the input, 1 and 2 (statistics) one element for each row.
        Rule(
            _of_first_input(lambda known, dims: dims if known.index in (0, 3) else [*dims[:-1], ONE]),
            dims=FIRST,
            every_output=True,
        ),
    ),
    **dict.fromkeys(
        (f"{MICROSOFT}.DynamicQuantizeMatMul", f"{MICROSOFT}.MatMulIntegerToFloat"), Rule(_matmul, dims=(0, 1))
    ),
    f"{MICROSOFT}.GatherBlockQuantized": Rule(_gather_block_quantized, dims=(0, 1)),
    f"{MICROSOFT}.GroupQueryAttention": Rule(_of_first_input(_grouped_attention), dims=FIRST),
    f"{MICROSOFT}.MatMulNBits": Rule(
        _of_first_input(lambda known, dims: [*dims[:-1], Size.of(known.attribute("N"))]), dims=FIRST
    ),
    f"{MICROSOFT}.MultiHeadAttention": Rule(_heads_attention, dims=(0, 2)),
    "Unsqueeze": Rule(_unsqueeze, dims=(0, 1), elements=(1,)),
}
DIMS_OWN = _own(
    Rule(_like_first, dims=FIRST),
    {
        "DynamicQuantizedConv": Rule(_windows, dims=(0, 1)),
        "FusedConvTranspose": Rule(_transposed_windows, dims=(0, 1)),
        "FusedRotary": Rule(_transpose, dims=FIRST),
        "GatedHalves": Rule(_of_first_input(lambda _, dims: [*dims[:-1], dims[-1].divided_by(Size.of(2))]), dims=FIRST),
        "Linear": Rule(_of_first_input(_linear), dims=(0, 1)),
        "QuantizedConv": Rule(_channels_last_windows, dims=(0, 3)),
        "QuantizedLinear": Rule(_of_first_input(_linear), dims=(0, 1)),
        "WinogradConv": Rule(_of_first_input(_winograd), dims=(0, 1)),
    },
)

# Rules for the last dimension of an output of unknown rank. A Reshape to a shape of unknown length has an unknown rank,
# but a later MatMul has the last dimension of its weight.
LAST: dict[str, Rule] = {
    **dict.fromkeys(SAME_SHAPE, Rule(lambda known: known.last(0))),
    **dict.fromkeys(BROADCASTING, Rule(_last_elementwise)),
    "MatMul": Rule(_last_of_matmul, dims=(1,)),
}
LAST_OWN = _own(
    Rule(lambda known: known.last(0)), dict.fromkeys(("Linear", "QuantizedLinear"), Rule(_last_of_matmul, dims=(1,)))
)


def keeps_shape(node: ir.Node) -> bool:
    """Returns whether the first output has the shape of the first input."""
    rule = rule_for(node, DIMS, DIMS_OWN)
    return rule is not None and rule.infer is _like_first
