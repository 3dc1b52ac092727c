"""Random valid graphs over the operators that passes touch.

A graph grows from its inputs: each step takes values that exist, in any order, so that weights and values get several
readers and outputs lie in the middle. Constants broadcast along every axis, lengths are odd, dims of 1 occur, batch is
symbolic or not, opsets range from 7 to 21.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.rewriting import Array

T = TypeVar("T")
OPSETS = (7, 9, 11, 13, 15, 17, 18, 21)


@dataclass
class Generated:
    """A model, and inputs for it."""

    model: onnx.ModelProto
    feeds: dict[str, Array]


@dataclass
class _Builder:
    rng: np.random.Generator
    opset: int
    dtype: type
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)
    # name -> shape, all with the batch first
    values: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def pick(self, *options: T) -> T:
        return options[int(self.rng.integers(len(options)))]

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def weight(self, array: Array, *, share: bool = True) -> str:
        array = np.asarray(array, self.dtype if array.dtype.kind == "f" else array.dtype)
        if share and self.chance(0.15):
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

    def value(self, rank: int | None = None) -> str | None:
        names = [n for n, s in self.values.items() if rank is None or len(s) == rank]
        # Later values more often, or nothing would ever become deep.
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
    """Nodes that change nothing, or little."""
    x = b.value()
    if x is None:
        return
    shape = b.values[x]
    kind = b.pick("Identity", "Cast", "Transpose", "perm")
    if kind == "Identity":
        b.node(kind, [x], shape)
    elif kind == "Cast":
        b.node(kind, [x], shape, to=int(TensorProto.FLOAT))
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
    if b.chance(0.6):
        dims = [d if b.chance(0.5) else 1 for d in (1, H, S, S)]
        s = b.node("Add", [s, b.weight(b.normal(*dims, scale=2.0))], (N, H, S, S))
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
    _attention,
    _norm,
)


def generate(seed: int) -> Generated:
    """The graph of one seed."""
    rng = np.random.default_rng(seed)
    b = _Builder(rng, OPSETS[int(rng.integers(len(OPSETS)))], np.float32)
    N = int(rng.integers(1, 4))
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
    dynamic = b.chance(0.5)
    infos = {}
    for name in ("x", "z", *outputs):
        shape: list[int | str] = list(b.values[name])
        if dynamic:
            shape[0] = "N"
        infos[name] = helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    tensors = [numpy_helper.from_array(w, name) for name, w in b.weights.items()]
    graph = helper.make_graph(b.nodes, "fuzz", [infos["x"], infos["z"]], [infos[o] for o in outputs], tensors)
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", b.opset)])
    feeds = {n: rng.standard_normal(b.values[n]).astype(np.float32) for n in ("x", "z")}
    return Generated(model, feeds)
