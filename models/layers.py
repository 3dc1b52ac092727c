"""Building blocks of the zoo: a graphsurgeon graph under construction, with deterministic weights.

Weights are drawn such that activations keep a variance near one from layer to layer (He et al., "Delving Deep into
Rectifiers", 2015). BatchNormalization statistics resemble those of a trained net: no mean is zero, no variance one, no
gamma one. Subgraphs have the form that exporters write at opset 17. For example, GroupNorm is Reshape -
InstanceNormalization - Reshape - Mul - Add, SiLU is Sigmoid - Mul, and attention is MatMul - Softmax - MatMul.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs

Array = npt.NDArray[Any]
Dim = int | str

IR_VERSION = 8
OPSET = 17


class Net:
    """One model under construction.

    Args:
        name: graph name; part of the seed, hence two models never share weights.
        batch: the static batch size, ignored if `dynamic`.
        dynamic: whether the batch dimension is the symbol "batch", and sequence lengths are "sequence".
        seed: seed of the weights.
    """

    def __init__(self, name: str, *, batch: int, dynamic: bool, seed: int) -> None:
        self.dynamic = dynamic
        self.batch: Dim = "batch" if dynamic else batch
        self._graph = gs.Graph(name=name, opset=OPSET)
        self._rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        self._count: dict[str, int] = {}
        self._features: dict[str, int] = {}

    # Graph

    def input(self, name: str, shape: Sequence[Dim], dtype: Any = np.float32, features: int = 0) -> gs.Variable:
        """A graph input. `features` is the size of its channel axis (images) or last axis (tokens)."""
        value = gs.Variable(name, dtype=dtype, shape=tuple(shape))
        self._graph.inputs.append(value)
        self._features[name] = features
        return value

    def output(self, value: gs.Variable, name: str, shape: Sequence[Dim], dtype: Any = np.float32) -> None:
        """Makes `value` a graph output called `name`."""
        value.name, value.shape, value.dtype = name, tuple(shape), dtype
        self._graph.outputs.append(value)

    def model(self) -> onnx.ModelProto:
        """The finished model, IR 8 and opset 17."""
        # graphsurgeon writes the newest IR that onnx knows, which no released runtime loads, and drops metadata_props.
        proto: onnx.ModelProto = gs.export_onnx(self._graph)
        proto.ir_version = IR_VERSION
        proto.producer_name = "graphopt-models"
        return proto

    def _name(self, kind: str) -> str:
        self._count[kind] = self._count.get(kind, 0) + 1
        return f"{kind}_{self._count[kind]}"

    def const(self, array: Array, name: str | None = None) -> gs.Constant:
        """An initializer."""
        return gs.Constant(name or self._name("const"), np.asarray(array, order="C"))

    def ints(self, *values: int) -> gs.Constant:
        """A rank-1 int64 initializer."""
        return self.const(np.array(values, np.int64))

    def scalar(self, value: float) -> gs.Constant:
        """A rank-0 float32 initializer."""
        return self.const(np.array(value, np.float32))

    def ops(self, op_type: str, *inputs: gs.Tensor, outputs: int = 1, **attrs: Any) -> list[gs.Variable]:
        """Appends a node with several outputs."""
        name = self._name(op_type)
        values = [gs.Variable(f"{name}.out{i}" if i else f"{name}.out") for i in range(outputs)]
        self._graph.nodes.append(gs.Node(op_type, name, attrs, list(inputs), list(values)))
        for value in values:
            self._features[value.name] = next((self._features.get(i.name, 0) for i in inputs), 0)
        return values

    def op(self, op_type: str, *inputs: gs.Tensor, **attrs: Any) -> gs.Variable:
        """Appends a node with one output, which takes over the feature count of the first input."""
        return self.ops(op_type, *inputs, **attrs)[0]

    def features(self, x: gs.Variable) -> int:
        """Size of the channel axis of an image value, or of the last axis of a token value."""
        return self._features[x.name]

    def set_features(self, x: gs.Variable, features: int) -> gs.Variable:
        """Records the feature count where it differs from the first input's."""
        self._features[x.name] = features
        return x

    # Weights

    def normal(self, shape: Sequence[int], std: float, mean: float = 0.0) -> Array:
        """float32 normal values."""
        draw: Array = self._rng.standard_normal(tuple(shape), dtype=np.float32)
        return np.asarray(draw * np.float32(std) + np.float32(mean))

    def uniform(self, shape: Sequence[int], low: float, high: float) -> Array:
        """float32 uniform values."""
        draw: Array = self._rng.random(tuple(shape), dtype=np.float32)
        return np.asarray(draw * np.float32(high - low) + np.float32(low))

    # Convolutional layers, X [N, C, H, W]

    def conv(
        self,
        x: gs.Variable,
        out: int,
        kernel: int,
        *,
        stride: int = 1,
        pad: int | None = None,
        group: int = 1,
        bias: bool = False,
        gain: float = 2.0,
    ) -> gs.Variable:
        """Conv with a square kernel, and "same" padding unless `pad` is given.

        The weights have the variance `gain` / (number of products in a sum); `gain` is 2 before a ReLU, else 1.
        """
        name = self._name("conv")
        channels = self.features(x) // group
        std = math.sqrt(gain / (channels * kernel * kernel))
        weights = [self.const(self.normal((out, channels, kernel, kernel), std), f"{name}.weight")]
        if bias:
            weights.append(self.const(self.normal((out,), 0.1), f"{name}.bias"))
        p = kernel // 2 if pad is None else pad
        attrs = {
            "kernel_shape": [kernel] * 2,
            "strides": [stride] * 2,
            "pads": [p] * 4,
            "dilations": [1, 1],
            "group": group,
        }
        return self.set_features(self.op("Conv", x, *weights, **attrs), out)

    def conv_transpose(self, x: gs.Variable, out: int, kernel: int, stride: int) -> gs.Variable:
        """ConvTranspose without padding or bias: H becomes (H - 1) stride + kernel."""
        name = self._name("conv_transpose")
        channels = self.features(x)
        std = math.sqrt(2.0 * stride * stride / (channels * kernel * kernel))
        weight = self.const(self.normal((channels, out, kernel, kernel), std), f"{name}.weight")
        y = self.op("ConvTranspose", x, weight, kernel_shape=[kernel] * 2, strides=[stride] * 2)
        return self.set_features(y, out)

    def batch_norm(self, x: gs.Variable, gain: float = 1.0) -> gs.Variable:
        """BatchNormalization; `gain` scales gamma and is small at the end of a residual branch."""
        name = self._name("bn")
        channels = (self.features(x),)
        weights = [
            self.const(np.float32(gain) * self.uniform(channels, 0.7, 1.3), f"{name}.weight"),
            self.const(self.normal(channels, 0.2), f"{name}.bias"),
            self.const(self.normal(channels, 0.3), f"{name}.running_mean"),
            self.const(self.uniform(channels, 0.5, 1.8), f"{name}.running_var"),
        ]
        return self.op("BatchNormalization", x, *weights, epsilon=1e-5)

    def max_pool(self, x: gs.Variable, kernel: int, stride: int, pads: Sequence[int] = (0, 0, 0, 0)) -> gs.Variable:
        """MaxPool, square kernel; pads = [top, left, bottom, right]."""
        return self.op("MaxPool", x, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=list(pads))

    def group_norm(self, x: gs.Variable, groups: int, size: int, epsilon: float = 1e-5) -> gs.Variable:
        """GroupNorm (Wu and He, 2018) of X [N, C, size, size], as exporters write it below opset 21."""
        name = self._name("group_norm")
        channels = self.features(x)
        ones = self.const(np.ones(groups, np.float32), f"{name}.ones")
        zeros = self.const(np.zeros(groups, np.float32), f"{name}.zeros")
        grouped = self.op("Reshape", x, self.ints(0, groups, -1))
        normed = self.op("InstanceNormalization", grouped, ones, zeros, epsilon=epsilon)
        back = self.set_features(self.op("Reshape", normed, self.ints(0, channels, size, size)), channels)
        gamma = self.const(self.uniform((channels, 1, 1), 0.7, 1.3), f"{name}.weight")
        beta = self.const(self.normal((channels, 1, 1), 0.2), f"{name}.bias")
        return self.op("Add", self.op("Mul", back, gamma), beta)

    # Token layers, X [B, S, D] or [B, D]

    def linear(self, x: gs.Variable, out: int, *, bias: bool = True, gain: float = 1.0) -> gs.Variable:
        """MatMul and Add, as exporters write a linear layer on rank 3."""
        name = self._name("linear")
        features = self.features(x)
        weight = self.const(self.normal((features, out), math.sqrt(gain / features)), f"{name}.weight")
        y = self.set_features(self.op("MatMul", x, weight), out)
        if bias:
            y = self.set_features(self.op("Add", self.const(self.normal((out,), 0.1), f"{name}.bias"), y), out)
        return y

    def gemm(self, x: gs.Variable, out: int, *, gain: float = 1.0) -> gs.Variable:
        """Gemm with transB = 1, as exporters write a linear layer on rank 2."""
        name = self._name("fc")
        features = self.features(x)
        weight = self.const(self.normal((out, features), math.sqrt(gain / features)), f"{name}.weight")
        bias = self.const(self.normal((out,), 0.1), f"{name}.bias")
        return self.set_features(self.op("Gemm", x, weight, bias, alpha=1.0, beta=1.0, transB=1), out)

    def layer_norm(self, x: gs.Variable, epsilon: float = 1e-5) -> gs.Variable:
        """LayerNormalization over the last axis."""
        name = self._name("layer_norm")
        features = self.features(x)
        gamma = self.const(self.uniform((features,), 0.7, 1.3), f"{name}.weight")
        beta = self.const(self.normal((features,), 0.2), f"{name}.bias")
        return self.op("LayerNormalization", x, gamma, beta, axis=-1, epsilon=epsilon)

    def heads(self, x: gs.Variable, heads: int, perm: Sequence[int]) -> gs.Variable:
        """X [B, S, D] to [B, S, heads, D / heads], transposed by `perm`."""
        features = self.features(x) // heads
        split = self.op("Reshape", x, self.ints(0, 0, heads, features))
        return self.set_features(self.op("Transpose", split, perm=list(perm)), features)

    def merge_heads(self, x: gs.Variable, features: int) -> gs.Variable:
        """X [B, heads, S, D / heads] to [B, S, D]."""
        back = self.op("Transpose", x, perm=[0, 2, 1, 3])
        return self.set_features(self.op("Reshape", back, self.ints(0, 0, features)), features)

    def attention(
        self,
        q: gs.Variable,
        k: gs.Variable,
        v: gs.Variable,
        heads: int,
        *,
        scale: str,
        bias: gs.Variable | None = None,
        causal: gs.Variable | None = None,
    ) -> gs.Variable:
        """Scaled dot-product attention (Vaswani et al., 2017) of Q [B, S, D], K and V [B, T, D].

        Args:
            q: queries.
            k: keys.
            v: values.
            heads: the number of heads; D is split among them.
            scale: where exporters put 1 / sqrt(d): "div" or "mul" on the scores, "qk" its root on both Q and K.
            bias: added to the scores.
            causal: boolean mask; scores at false positions become the lowest float32.
        """
        features = self.features(q)
        d = features // heads
        q = self.heads(q, heads, (0, 2, 1, 3))
        k = self.heads(k, heads, (0, 2, 3, 1))
        v = self.heads(v, heads, (0, 2, 1, 3))
        if scale == "qk":
            root = self.scalar(d**-0.25)
            scores = self.op("MatMul", self.op("Mul", q, root), self.op("Mul", k, root))
        elif scale == "div":
            scores = self.op("Div", self.op("MatMul", q, k), self.scalar(math.sqrt(d)))
        elif scale == "mul":
            scores = self.op("Mul", self.op("MatMul", q, k), self.scalar(1 / math.sqrt(d)))
        else:
            raise ValueError(f"scale is {scale!r}, not one of div, mul, qk")
        if causal is not None:
            scores = self.op("Where", causal, scores, self.scalar(float(np.finfo(np.float32).min)))
        if bias is not None:
            scores = self.op("Add", scores, bias)
        context = self.op("MatMul", self.op("Softmax", scores, axis=-1), v)
        return self.merge_heads(context, features)

    def embedding(self, ids: gs.Variable, rows: int, features: int) -> tuple[gs.Variable, gs.Constant]:
        """Gather from a table [rows, features]; returns the vectors and the table."""
        table = self.const(self.normal((rows, features), 1.0), f"{self._name('embedding')}.weight")
        return self.set_features(self.op("Gather", table, ids, axis=0), features), table

    def padding_bias(self, mask: gs.Variable) -> gs.Variable:
        """Converts a mask int64 [B, S] to float [B, 1, 1, S]: 1 becomes 0, and 0 becomes the lowest float32."""
        wide = self.op("Cast", self.op("Unsqueeze", mask, self.ints(1, 2)), to=onnx.TensorProto.FLOAT)
        dropped = self.op("Sub", self.scalar(1.0), wide)
        return self.op("Mul", dropped, self.scalar(float(np.finfo(np.float32).min)))

    def length(self, x: gs.Variable, axis: int) -> gs.Variable:
        """The size of one axis at run time, int64 [1]."""
        return self.op("Gather", self.op("Shape", x), self.ints(axis), axis=0)

    # Activations

    def relu(self, x: gs.Variable) -> gs.Variable:
        """max(x, 0)."""
        return self.op("Relu", x)

    def relu6(self, x: gs.Variable) -> gs.Variable:
        """min(max(x, 0), 6)."""
        return self.op("Clip", x, self.scalar(0.0), self.scalar(6.0))

    def leaky_relu(self, x: gs.Variable, alpha: float) -> gs.Variable:
        """Alpha x for negative x, otherwise x."""
        return self.op("LeakyRelu", x, alpha=alpha)

    def silu(self, x: gs.Variable) -> gs.Variable:
        """X sigmoid(x), as two nodes."""
        return self.op("Mul", x, self.op("Sigmoid", x))

    def mish(self, x: gs.Variable) -> gs.Variable:
        """X tanh(softplus(x)), as three nodes."""
        return self.op("Mul", x, self.op("Tanh", self.op("Softplus", x)))

    def gelu(self, x: gs.Variable) -> gs.Variable:
        """0.5 x (1 + erf(x / sqrt 2)), as five nodes."""
        erf = self.op("Erf", self.op("Div", x, self.scalar(math.sqrt(2.0))))
        return self.op("Mul", self.op("Mul", x, self.op("Add", erf, self.scalar(1.0))), self.scalar(0.5))

    def gelu_tanh(self, x: gs.Variable) -> gs.Variable:
        """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), as exports of GPT-2 write it."""
        cubic = self.op("Mul", self.op("Pow", x, self.scalar(3.0)), self.scalar(0.044715))
        inner = self.op("Mul", self.op("Add", x, cubic), self.scalar(math.sqrt(2.0 / math.pi)))
        gate = self.op("Add", self.op("Tanh", inner), self.scalar(1.0))
        return self.op("Mul", self.op("Mul", x, self.scalar(0.5)), gate)
