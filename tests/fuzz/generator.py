"""Random valid graphs of the operators that passes rewrite.

A graph grows from its inputs: each step reads existing values in random order, so weights and values get several
readers, and some outputs have readers as well. Constants broadcast along every axis, lengths are odd, dimensions of 0
and 1 occur, batch and sizes are symbolic or static, floats have 32 or 16 bits, opsets range from 7 to 23. Some
consecutive nodes may become the branches of an If that captures their inputs, or the body of a function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.rewriting import Array

T = TypeVar("T")
OPSETS = tuple(range(7, 24))
FUNCTION_DOMAIN = "fuzz"
FLOAT_TYPES = {np.float32: TensorProto.FLOAT, np.float16: TensorProto.FLOAT16}


@dataclass
class Generated:
    """A model and its inputs."""

    model: onnx.ModelProto
    feeds: dict[str, Array]
    half: bool = False


@dataclass
class _Builder:
    rng: np.random.Generator
    opset: int
    dtype: type[np.floating[Any]]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)
    # name -> shape, with the batch as first dimension
    values: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def pick(self, *options: T) -> T:
        return options[int(self.rng.integers(len(options)))]

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def weight(self, array: Array, *, share: bool = True) -> str:
        array = np.asarray(array, self.dtype if array.dtype.kind == "f" else array.dtype)
        if share and array.dtype == self.dtype and self.chance(0.15):
            for name, old in self.weights.items():
                if old.shape == array.shape and old.dtype == array.dtype:
                    return name
        name = f"w{len(self.weights)}"
        self.weights[name] = array
        return name

    def normal(self, *shape: int, scale: float = 1.0) -> Array:
        return self.rng.standard_normal(shape) * scale

    def node(self, op: str, inputs: list[str], shape: tuple[int, ...], **attributes: Any) -> str:
        name = f"v{len(self.values)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=f"n{len(self.nodes)}", **attributes))
        self.values[name] = shape
        return name

    def hidden(self, op: str, inputs: list[str], **attributes: Any) -> str:
        """Adds a node with a result that the other steps must not read: a shape, an index, masked scores."""
        name = f"{'scores' if op == 'Where' else 'shape'}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=f"n{len(self.nodes)}", **attributes))
        return name

    def axes(self, inputs: list[str], axes: list[int], first: int) -> tuple[list[str], dict[str, list[int]]]:
        """Returns inputs and attributes of an operator that has axes as an input from opset `first` on."""
        if self.opset < first:
            return inputs, {"axes": axes}
        return [*inputs, self.weight(np.array(axes))], {}

    def value(self, rank: int | None = None) -> str | None:
        """Returns a value of any shape, or one of this rank without empty axes after the batch."""
        names = [n for n, s in self.values.items() if rank is None or (len(s) == rank and 0 not in s[1:])]
        # Prefer later values; otherwise graphs would stay shallow.
        return names[int(len(names) * self.rng.random() ** 0.4)] if names else None


def _conv(b: _Builder) -> None:
    x = b.value(4)
    if x is None:
        return
    N, C, H, W = b.values[x]
    kernel = b.pick(1, 3, 3, 3, 5)
    group = C if b.chance(0.15) else 1
    M = C if group > 1 else int(b.rng.integers(1, 20))
    pads = [int(p) for p in (b.rng.integers(0, 2, 4) if b.chance(0.5) else [kernel // 2] * 4)]
    stride = 2 if b.chance(0.15) else 1
    OH, OW = ((s + pads[i] + pads[i + 2] - kernel) // stride + 1 for i, s in enumerate((H, W)))
    if OH < 1 or OW < 1 or OH * OW > 4000:
        return
    scale = (C // group * kernel * kernel) ** -0.5
    inputs = [x, b.weight(b.normal(M, C // group, kernel, kernel, scale=scale))]
    if b.chance(0.5):
        inputs.append(b.weight(b.normal(M)))
    b.node("Conv", inputs, (N, M, OH, OW), pads=pads, strides=[stride] * 2, group=group, kernel_shape=[kernel] * 2)


def _conv_transpose(b: _Builder) -> None:
    x = b.value(4)
    if x is None or b.values[x][2] * b.values[x][3] > 400:
        return
    N, C, H, W = b.values[x]
    group = 2 if C % 2 == 0 and b.chance(0.4) else 1
    M = int(b.rng.integers(1, 6))
    w = b.weight(b.normal(C, M, 2, 2, scale=C**-0.5))
    b.node("ConvTranspose", [x, w], (N, M * group, 2 * H, 2 * W), strides=[2, 2], group=group, kernel_shape=[2, 2])


def _batch_norm(b: _Builder) -> None:
    x = b.value()
    if x is None or len(b.values[x]) < 2:
        return
    C = b.values[x][1]
    inputs = [x, *(b.weight(b.normal(C)) for _ in range(3)), b.weight(b.rng.uniform(0.3, 2.0, C), share=False)]
    b.node("BatchNormalization", inputs, b.values[x], epsilon=b.pick(1e-5, 1e-2))


def _elementwise(b: _Builder) -> None:
    x = b.value()
    if x is None:
        return
    shape = b.values[x]
    op = b.pick("Mul", "Add", "Sub", "Div", "Mul", "Add")
    keep = int(b.rng.integers(1, len(shape) + 1))
    dims = tuple(d if b.chance(0.4) else 1 for d in shape[len(shape) - keep :]) if b.chance(0.9) else ()
    constant = b.normal(*dims)
    if op == "Div":
        constant = np.sign(constant) * (np.abs(constant) + 0.3) if constant.size else constant
    c = b.weight(np.asarray(constant), share=False)
    b.node(op, [c, x] if op in ("Mul", "Add") and b.chance(0.3) else [x, c], shape)


def _residual(b: _Builder) -> None:
    x = b.value()
    same = [n for n, s in b.values.items() if x is not None and s == b.values[x]]
    if x is not None and same:
        b.node("Add", [x, same[int(b.rng.integers(len(same)))]], b.values[x])


def _activation(b: _Builder) -> None:
    x = b.value()
    if x is None:
        return
    kind = b.pick("Relu", "LeakyRelu", "Sigmoid", "Tanh", "silu", "HardSigmoid", "clip", "max", "Softplus", "gelu")
    shape = b.values[x]
    if kind == "LeakyRelu":
        b.node(kind, [x], shape, alpha=b.pick(0.0, 0.1, -0.3, 1.5))
    elif kind == "HardSigmoid":
        b.node(kind, [x], shape, alpha=0.3, beta=0.4)
    elif kind == "silu":
        b.node("Mul", [x, b.node("Sigmoid", [x], shape)], shape)
    elif kind == "clip":
        low, high = sorted(b.rng.standard_normal(2))
        if b.opset < 11:
            b.node("Clip", [x], shape, min=float(low), max=float(high))
        else:
            b.node("Clip", [x, b.weight(np.float32(low)), b.weight(np.float32(high))], shape)
    elif kind == "max":
        b.node("Max", [x, b.node("Mul", [x, b.weight(np.float32(b.rng.uniform(-0.5, 1.5)))], shape)], shape)
    elif kind == "gelu":
        if b.opset >= 9:
            z = b.node("Erf", [b.node("Div", [x, b.weight(np.float32(2**0.5))], shape)], shape)
            p = b.node("Add", [z, b.weight(np.float32(1))], shape)
            b.node("Mul", [b.node("Mul", [x, p], shape), b.weight(np.float32(0.5))], shape)
    else:
        b.node(kind, [x], shape)


def _pool(b: _Builder) -> None:
    x = b.value(4)
    if x is None or min(b.values[x][2:]) < 3:
        return
    N, C, H, W = b.values[x]
    b.node("MaxPool", [x], (N, C, H - 2, W - 2), kernel_shape=[3, 3])


def _gemm(b: _Builder) -> None:
    x = b.value(2)
    if x is None:
        return
    N, K = b.values[x]
    M = int(b.rng.integers(1, 12))
    transposed = b.chance(0.5)
    w = b.weight(b.normal(*((M, K) if transposed else (K, M)), scale=K**-0.5))
    if b.chance(0.5):
        b.node("MatMul", [x, b.weight(b.normal(K, M, scale=K**-0.5))], (N, M))
        return
    bias = b.weight(b.normal(*(M,) if b.chance(0.6) else (1, M) if b.chance(0.5) else (1,)))
    alpha, beta = (float(v) for v in b.rng.uniform(0.5, 2, 2))
    b.node("Gemm", [x, w, bias], (N, M), alpha=alpha, beta=beta, transB=int(transposed))


def _flatten(b: _Builder) -> None:
    x = b.value(4)
    if x is not None and int(np.prod(b.values[x][1:])) <= 400:
        b.node("Flatten", [x], (b.values[x][0], int(np.prod(b.values[x][1:]))), axis=1)


def _noise(b: _Builder) -> None:
    """Adds a node that changes nothing or little."""
    x = b.value()
    if x is None:
        return
    shape = b.values[x]
    kind = b.pick("Identity", "Cast", "Transpose", "perm")
    if kind == "Identity":
        b.node(kind, [x], shape)
    elif kind == "Cast":
        b.node(kind, [x], shape, to=int(FLOAT_TYPES[b.dtype]))
    elif kind == "Transpose":
        b.node("Transpose", [x], shape, perm=list(range(len(shape))))
    else:
        perm = [0, *(1 + int(i) for i in b.rng.permutation(len(shape) - 1))]
        b.node("Transpose", [x], tuple(shape[i] for i in perm), perm=perm)


def _attention(b: _Builder) -> None:
    x = b.value(4)
    if x is None or b.opset < 11 or int(np.prod(b.values[x])) > 6000:
        return
    N, H, S, D = b.values[x]
    k, scale = x, b.weight(np.float32(b.rng.uniform(0.1, 1.0)))
    if b.chance(0.5):
        k = b.node("Mul", [x, b.weight(b.normal(1, H, 1, D))], (N, H, S, D))
    q = b.node("Mul", [x, scale], (N, H, S, D)) if b.chance(0.5) else x
    kt = b.node("Transpose", [k], (N, H, D, S), perm=[0, 1, 3, 2])
    s = b.node("MatMul", [q, kt], (N, H, S, S))
    if b.chance(0.5):
        s = b.node(b.pick("Mul", "Div"), [s, scale], (N, H, S, S))
    dims = [d if b.chance(0.5) else 1 for d in (1, H, S, S)]
    if b.chance(0.5):
        s = b.node("Add", [s, b.weight(b.normal(*dims, scale=2.0))], (N, H, S, S))
    elif b.chance(0.4):
        mask = b.weight(np.tri(S, dtype=bool) if b.chance(0.5) else b.rng.random(dims) < 0.7)
        lowest = b.weight(np.float32(b.pick(-1e4, -3.0, float(np.finfo(b.dtype).min))))
        s = b.hidden("Where", [mask, s, lowest])
    axis = -1 if b.chance(0.85) else 2
    p = b.node("Softmax", [s], (N, H, S, S), axis=axis)
    if b.chance(0.1):
        b.node("Neg", [p], (N, H, S, S))
    o = b.node("MatMul", [p, k if b.chance(0.5) else x], (N, H, S, D))
    if b.chance(0.5):
        b.node("Transpose", [o], (N, S, H, D), perm=[0, 2, 1, 3])


def _norm(b: _Builder) -> None:
    x = b.value(4)
    if x is None:
        return
    N, C, H, W = b.values[x]
    groups = b.pick(*[g for g in range(1, C + 1) if C % g == 0])
    if C // groups * H * W < 2:
        return
    shape = (N, groups, C // groups * H * W)
    y = b.node("Reshape", [x, b.weight(np.array([0, groups, -1]), share=False)], shape)
    ones, zeros = b.weight(np.ones(groups), share=False), b.weight(np.zeros(groups), share=False)
    y = b.node("InstanceNormalization", [y, ones, zeros], shape, epsilon=1e-3)
    y = b.node("Reshape", [y, b.weight(np.array([0, C, H, W]), share=False)], (N, C, H, W))
    if b.chance(0.8):
        y = b.node("Mul", [y, b.weight(b.normal(C, 1, 1))], (N, C, H, W))
        b.node("Add", [y, b.weight(b.normal(C, 1, 1))], (N, C, H, W))


def _row_norm(b: _Builder) -> None:
    """LayerNormalization or RMSNorm over the last axis, fused or decomposed, some with a residual sum before them."""
    x = b.value()
    if x is None:
        return
    shape = b.values[x]
    D, reduced = shape[-1], (*shape[:-1], 1)
    if b.chance(0.4):
        x = b.node("Add", [x, b.pick(*[n for n, s in b.values.items() if s == shape])], shape)
    epsilon = b.pick(1e-5, 1e-2)
    if b.opset >= 17 and b.chance(0.3):
        inputs = [x, b.weight(b.normal(D)), *([b.weight(b.normal(D))] if b.chance(0.6) else [])]
        b.node("LayerNormalization", inputs, shape, epsilon=epsilon)
        return
    if b.opset >= 23 and b.chance(0.3):
        b.node("RMSNormalization", [x, b.weight(b.normal(D))], shape, epsilon=epsilon)
        return

    def mean(value: str) -> str:
        inputs, attributes = b.axes([value], [-1 if b.opset >= 11 else len(shape) - 1], 18)
        return b.node("ReduceMean", inputs, reduced, **attributes)

    layer = b.chance(0.5)
    y = b.node("Sub", [x, mean(x)], shape) if layer else x
    square = (
        b.node("Mul", [y, y], shape)
        if b.chance(0.5)
        else b.node("Pow", [y, b.weight(np.float32(2), share=False)], shape)
    )
    deviation = b.node(
        "Sqrt", [b.node("Add", [mean(square), b.weight(np.float32(epsilon), share=False)], reduced)], reduced
    )
    if b.chance(0.5):
        y = b.node("Div", [y, deviation], shape)
    else:
        y = b.node("Mul", [y, b.node("Reciprocal", [deviation], reduced)], shape)
    if b.chance(0.8):
        y = b.node("Mul", [y, b.weight(b.normal(D))], shape)
        if layer and b.chance(0.8):
            b.node("Add", [y, b.weight(b.normal(D))], shape)


def _reshape(b: _Builder) -> None:
    """A Reshape by Shape arithmetic, in the form that exporters write."""
    x = b.value(4)
    if x is None:
        return
    N, C, H, W = b.values[x]
    shape = b.hidden("Shape", [x])
    parts = []
    for i in (0, 3):
        size = b.hidden("Gather", [shape, b.weight(np.array(i))], axis=0)
        inputs, attributes = b.axes([size], [0], 13)
        parts.append(b.hidden("Unsqueeze", inputs, **attributes))
    middle = b.weight(np.array([C * H if b.chance(0.5) else -1]))
    target = b.hidden("Concat", [parts[0], middle, parts[1]], axis=0)
    b.node("Reshape", [x, target], (N, C * H, W))


def _slice(b: _Builder) -> None:
    """A slice of an axis, sometimes all of it, sometimes empty."""
    x = b.value()
    if x is None:
        return
    shape = list(b.values[x])
    axis = int(b.rng.integers(1, len(shape)))
    start = int(b.rng.integers(0, shape[axis] + 1)) if b.chance(0.7) else 0
    end = shape[axis] if start < shape[axis] or b.chance(0.2) else start + 1
    if b.chance(0.3):
        start, end = 0, 2**31 - 1
    length = max(0, min(end, shape[axis]) - start)
    if length == 0 and not b.chance(0.1):
        return
    shape[axis] = length
    if b.opset < 10:
        b.node("Slice", [x], tuple(shape), starts=[start], ends=[end], axes=[axis])
        return
    b.node("Slice", [x, *(b.weight(np.array([v])) for v in (start, end, axis))], tuple(shape))


def _concat(b: _Builder) -> None:
    x = b.value()
    if x is None or b.values[x][1] > 40:
        return
    N, C, *rest = b.values[x]
    other = b.pick(*[n for n, s in b.values.items() if s == b.values[x]])
    b.node("Concat", [x, other], (N, 2 * C, *rest), axis=1)


def _pad(b: _Builder) -> None:
    x = b.value(4)
    if x is None:
        return
    N, C, H, W = b.values[x]
    top, left, bottom, right = (int(n) for n in b.rng.integers(0, 2, 4))
    pads, shape = [0, 0, top, left, 0, 0, bottom, right], (N, C, H + top + bottom, W + left + right)
    if b.opset < 11:
        b.node("Pad", [x], shape, pads=pads)
    else:
        b.node("Pad", [x, b.weight(np.array(pads))], shape)


STEPS = (
    *(_conv,) * 5,
    _conv_transpose,
    *(_batch_norm,) * 3,
    *(_elementwise,) * 4,
    *(_residual,) * 2,
    *(_activation,) * 5,
    _pool,
    *(_gemm,) * 2,
    _flatten,
    *(_noise,) * 2,
    *(_attention,) * 2,
    _norm,
    *(_row_norm,) * 2,
    _reshape,
    _slice,
    _concat,
    _pad,
)


def generate(seed: int) -> Generated:
    """Generates the graph of one seed."""
    rng = np.random.default_rng(seed)
    b = _Builder(rng, OPSETS[int(rng.integers(len(OPSETS)))], np.float16 if rng.random() < 0.15 else np.float32)
    N = 0 if b.chance(0.03) else int(rng.integers(1, 4))
    C, H, W = (int(rng.integers(1, n)) for n in (17, 22, 22))
    b.values["x"] = (N, C, H, W)
    b.values["z"] = (N, int(rng.integers(1, 12)))
    for _ in range(int(rng.integers(2, 18))):
        STEPS[int(rng.integers(len(STEPS)))](b)
    read = {name for node in b.nodes for name in node.input}
    outputs = [n for n in b.values if n not in read and n not in ("x", "z")]
    outputs += [n for n in b.values if n in read and n not in ("x", "z") and b.chance(0.05)]
    if not outputs:
        outputs = [b.node("Relu", ["x"], b.values["x"])]
    feeds: dict[str, Array] = {n: rng.standard_normal(b.values[n]).astype(b.dtype) for n in ("x", "z")}
    infos = _infos(b, ("x", "z", *outputs))
    inputs = [infos["x"], infos["z"]]
    nodes: list[onnx.NodeProto] = b.nodes
    functions: list[onnx.FunctionProto] = []
    if b.chance(0.2):
        inputs.append(helper.make_tensor_value_info("condition", TensorProto.BOOL, []))
        feeds["condition"] = np.array(b.chance(0.5))
        nodes = _with_branches(b, nodes, outputs)
    elif b.chance(0.25):
        nodes, functions = _with_function(b, nodes, outputs)
    tensors = [numpy_helper.from_array(w, name) for name, w in b.weights.items()]
    graph = helper.make_graph(nodes, "fuzz", inputs, [infos[o] for o in outputs], tensors)
    imports = _imports(b, functions)
    model = helper.make_model(graph, ir_version=11 if b.opset > 21 else 8, opset_imports=imports, functions=functions)
    return Generated(model, feeds, half=b.dtype is np.float16)


def _infos(b: _Builder, names: Sequence[str]) -> dict[str, onnx.ValueInfoProto]:
    """Declares inputs and outputs with static dimensions, a symbolic batch, or all but the channels symbolic."""
    symbolic = b.pick(0, 1, 1, 2)
    infos = {}
    for name in names:
        dims: list[int | str | None] = list(b.values[name])
        if symbolic:
            dims[0] = "N"
        if symbolic == 2:
            for i in range(2, len(dims)):
                dims[i] = f"{name}_{i}" if name == "x" else None
        infos[name] = helper.make_tensor_value_info(name, FLOAT_TYPES[b.dtype], dims)
    return infos


def _imports(b: _Builder, functions: Sequence[onnx.FunctionProto]) -> list[onnx.OperatorSetIdProto]:
    return [helper.make_opsetid("", b.opset), *([helper.make_opsetid(FUNCTION_DOMAIN, 1)] if functions else [])]


def _cut(b: _Builder, nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> tuple[slice, list[str], list[str]]:
    """Returns a range of consecutive nodes, the outer values that they read, and the results that others read."""
    first = int(b.rng.integers(len(nodes)))
    place = slice(first, int(b.rng.integers(first + 1, len(nodes) + 1)))
    made = [name for node in nodes[place] for name in node.output]
    captured = dict.fromkeys(name for node in nodes[place] for name in node.input if name not in made)
    elsewhere = {name for node in (*nodes[: place.start], *nodes[place.stop :]) for name in node.input} | {*outputs}
    return place, list(captured), [name for name in made if name in elsewhere]


def _renamed(nodes: Sequence[onnx.NodeProto], names: Mapping[str, str], prefix: str) -> list[onnx.NodeProto]:
    """Copies nodes with renamed values, and puts `prefix` before the node names."""
    copies = []
    for node in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name = prefix + node.name
        copy.input[:] = [names.get(name, name) for name in node.input]
        copy.output[:] = [names.get(name, name) for name in node.output]
        copies.append(copy)
    return copies


def _with_branches(b: _Builder, nodes: list[onnx.NodeProto], outputs: Sequence[str]) -> list[onnx.NodeProto]:
    """Moves some of the nodes into both branches of an If."""
    place, _, results = _cut(b, nodes, outputs)
    inside = nodes[place]
    made = [name for node in inside for name in node.output]
    branches = {}
    for branch in ("then_branch", "else_branch"):
        names = {name: f"{branch}_{name}" for name in made}
        # Declare the type alone: a shape would give inference information that an If hides.
        element = {n: TensorProto.INT64 if n.startswith("shape") else FLOAT_TYPES[b.dtype] for n in results}
        infos_inside = [helper.make_tensor_value_info(names[n], element[n], None) for n in results]
        branches[branch] = helper.make_graph(_renamed(inside, names, f"{branch}_"), branch, [], infos_inside)
    node = helper.make_node("If", ["condition"], results, "if", **branches)
    return [*nodes[: place.start], node, *nodes[place.stop :]]


def _with_function(
    b: _Builder, nodes: list[onnx.NodeProto], outputs: Sequence[str]
) -> tuple[list[onnx.NodeProto], list[onnx.FunctionProto]]:
    """Moves some of the nodes into a function, which gets weights as inputs or keeps them as Constant nodes."""
    place, captured, results = _cut(b, nodes, outputs)
    kept = [name for name in captured if name in b.weights and b.chance(0.6)]
    inputs = [name for name in captured if name not in kept]
    constants = [
        helper.make_node("Constant", [], [name], f"constant_{name}", value=numpy_helper.from_array(b.weights[name]))
        for name in kept
    ]
    imports = [helper.make_opsetid("", b.opset)]
    body = [*constants, *_renamed(nodes[place], {}, "body_")]
    function = helper.make_function(FUNCTION_DOMAIN, "Part", inputs, results, body, imports)
    node = helper.make_node("Part", inputs, results, "call", domain=FUNCTION_DOMAIN)
    return [*nodes[: place.start], node, *nodes[place.stop :]], [function]
