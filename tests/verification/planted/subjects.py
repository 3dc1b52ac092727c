"""The models that faults are planted in: the zoo, trained and exported models, and additional heads."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, quantize_static

from models import ZOO, pypi
from models.layers import Net
from tests.rewriting import Array, model_from_text
from tests.verification.planted.registry import Hints

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Subject:
    """A model with the information that is needed to make its inputs.

    Attributes:
        name: unique name.
        build: makes the model.
        sizes: values of its symbolic dimensions, one dict for each input set.
        hints: the meaning of its inputs and outputs.
        feeds: makes fixed input sets, which replace random inputs.
        half: float16 and bfloat16 files are made from it as well.
        exact: inputs are only moved, compared and rounded to integers, so no correct rewrite rounds them.
    """

    name: str
    build: Callable[[], onnx.ModelProto]
    sizes: Sequence[Sizes] = ({},)
    hints: Hints = field(default_factory=Hints)
    feeds: Callable[[], list[dict[str, Array]]] | None = None
    half: bool = True
    exact: bool = False


BATCHES: Sequence[Sizes] = tuple({"batch": b} for b in (1, 2, 3, 4))
TEXTS: Sequence[Sizes] = tuple(
    {"batch": b, "sequence": s} for b, s in ((1, 1), (2, 7), (3, 16), (1, 31), (2, 32), (4, 20), (1, 13), (2, 9))
)
LONG: Sequence[Sizes] = tuple(
    {"batch": b, "sequence": s} for b, s in ((1, 1), (2, 7), (3, 16), (1, 31), (2, 65), (4, 20), (1, 130), (2, 9))
)
# (batch, new tokens, cached tokens).
STEPS = ((1, 1, 0), (2, 1, 7), (1, 5, 0), (2, 3, 33), (3, 1, 64))
IMAGES: Sequence[Sizes] = tuple(
    {"batch": b, "height": h, "width": w} for b, h, w in ((1, 64, 64), (2, 64, 96), (1, 96, 64), (3, 32, 32))
)


def _zoo(name: str) -> Callable[[], onnx.ModelProto]:
    return lambda: ZOO[name](small=True, dynamic=True)


TEXT_HINTS = {
    "bert": Hints(masks=("attention_mask",), ids={"input_ids": (0, 99), "token_type_ids": (0, 1)}),
    "gpt2": Hints(masks=("attention_mask",), ids={"input_ids": (0, 99)}),
}


# Detectors: boxes in pixels beside scores from 0 to 1.


def _detector(name: str, classes: int, columns_last: bool, objectness: bool) -> onnx.ModelProto:
    """A one-stage detector with two scales: boxes x, y, w, h in pixels, then scores.

    Images [N, 3, H, W], H and W multiples of 32 -> predictions [N, 4 + scores, A], or [N, A, 4 + scores].
    """
    net = Net(name, batch=1, dynamic=True, seed=0)
    scores = classes + objectness
    x = net.input("images", (net.batch, 3, "height", "width"), features=3)
    for width in (8, 12, 16):
        x = net.silu(net.batch_norm(net.conv(x, width, 3, stride=2)))
    fine = net.silu(net.batch_norm(net.conv(x, 16, 3)))
    coarse = net.silu(net.batch_norm(net.conv(fine, 24, 3, stride=2)))
    levels = []
    for feature, stride in ((fine, 8), (coarse, 16)):
        head = net.relu(net.batch_norm(net.conv(feature, 16, 3)))
        boxes = net.op("Sigmoid", net.conv(head, 4, 1, bias=True, gain=1.0))
        rates = net.op("Sigmoid", net.conv(head, scores, 1, bias=True, gain=1.0))
        # Box coordinates have the magnitude of image sizes, 0 to 2000 pixels.
        reach = net.const(np.array([1200, 800, 700, 500], np.float32).reshape(4, 1, 1))
        pixels = net.op("Mul", boxes, reach)
        pixels = net.op("Add", pixels, net.scalar(float(stride)))
        both = net.op("Concat", pixels, rates, axis=1)
        levels.append(net.op("Reshape", both, net.ints(0, 4 + scores, -1)))
    y = net.op("Concat", *levels, axis=2)
    if columns_last:
        y = net.op("Transpose", y, perm=[0, 2, 1])
    shape = (net.batch, "boxes", 4 + scores) if columns_last else (net.batch, 4 + scores, "boxes")
    net.output(y, "predictions", shape)
    return net.model()


# Integers


def _diffusion() -> onnx.ModelProto:
    """A denoising step: latents, and int64 timesteps [N] that pass through sines and an MLP."""
    net = Net("diffusion", batch=1, dynamic=True, seed=0)
    x = net.input("latents", (net.batch, 4, 16, 16), features=4)
    t = net.input("timesteps", (net.batch,), np.int64)
    steps = net.op("Unsqueeze", net.op("Cast", t, to=TensorProto.FLOAT), net.ints(1))
    frequencies = np.exp(-np.log(10000.0) * np.arange(8) / 8).astype(np.float32).reshape(1, 8)
    angles = net.op("Mul", steps, net.const(frequencies))
    waves = net.set_features(net.op("Concat", net.op("Sin", angles), net.op("Cos", angles), axis=1), 16)
    mixed = net.gemm(net.silu(net.gemm(waves, 32)), 16)
    scale = net.op("Unsqueeze", mixed, net.ints(2, 3))
    y = net.silu(net.group_norm(net.conv(x, 16, 3, bias=True), 4, 16))
    y = net.set_features(net.op("Add", y, scale), 16)
    y = net.op("Add", net.conv(net.silu(net.group_norm(y, 4, 16)), 16, 3, bias=True), y)
    net.output(net.conv(net.set_features(y, 16), 4, 3, bias=True), "noise", (net.batch, 4, 16, 16))
    return net.model()


def _noise_table() -> onnx.ModelProto:
    """Timesteps index a table of 1000 noise levels; the first level is a special case."""
    rng = np.random.default_rng(3)
    return model_from_text(
        """g (float[batch, 8] x, int64[batch] t) => (float[batch, 8] y, float[batch] level) {
            first = Equal(t, zero)
            row = Gather(table, t)
            picked = Where(first, one, row)
            level = Identity(picked)
            column = Unsqueeze(picked, last)
            scaled = Mul(x, column)
            hidden = MatMul(scaled, w)
            shifted = Add(hidden, b)
            y = Tanh(shifted)
        }""",
        {
            "zero": np.array(0, np.int64), "one": np.array(1, np.float32), "last": np.array([1], np.int64),
            "table": np.linspace(0.02, 1.5, 1000, dtype=np.float32),
            "w": rng.standard_normal((8, 8), np.float32) / np.float32(3), "b": rng.standard_normal(8, np.float32),
        },
    )  # fmt: skip


def _tabular(seed: int, table: int, classes: int, homes: int) -> onnx.ModelProto:
    """Categorical inputs with negative indices (counted from the end), a one-hot column and a hashed column."""
    rng = np.random.default_rng(seed)
    return model_from_text(
        """g (int64[batch, 3] categories, int64[batch] kind, int64[batch] user, float[batch, 6] x)
            => (float[batch, 4] scores) {
            rows = Gather(table, categories)
            flat = Reshape(rows, all)
            hot = OneHot(kind, depth, values)
            hashed = Mod(user, buckets)
            home = Gather(homes, hashed)
            part = Gemm <transB = 0> (x, w0, b0)
            open = Relu(part)
            joined = Concat <axis = 1> (flat, hot, home, open)
            scores = Gemm <transB = 1> (joined, w1, b1)
        }""",
        {
            "table": rng.standard_normal((table, 4), np.float32), "all": np.array([0, 12], np.int64),
            "depth": np.array(classes, np.int64), "values": np.array([0, 1], np.float32),
            "buckets": np.array(homes, np.int64), "homes": rng.standard_normal((homes, 3), np.float32),
            "w0": rng.standard_normal((6, 8), np.float32), "b0": rng.standard_normal(8, np.float32),
            "w1": rng.standard_normal((4, 23 + classes), np.float32) / np.float32(4),
            "b1": rng.standard_normal(4, np.float32),
        },
    )  # fmt: skip


def _signed() -> onnx.ModelProto:
    """Relative positions from -32 to 31 as indices (negative ones count from the end), and their signs."""
    rng = np.random.default_rng(6)
    return model_from_text(
        """g (int64[batch, sequence] offsets, float[batch, sequence, 8] x) => (float[batch, sequence, 8] y) {
            near = Gather(table, offsets)
            size = Abs(offsets)
            far = Gather(sizes, size)
            ahead = Less(offsets, zero)
            side = Where(ahead, minus, plus)
            wide = Unsqueeze(side, last)
            signed = Mul(far, wide)
            sum = Add(near, signed)
            gate = Mul(x, sum)
            hidden = MatMul(gate, w)
            y = Add(hidden, b)
        }""",
        {
            "table": rng.standard_normal((64, 8), np.float32), "sizes": rng.standard_normal((33, 8), np.float32),
            "zero": np.array(0, np.int64), "minus": np.array(-1, np.float32), "plus": np.array(1, np.float32),
            "last": np.array([2], np.int64), "w": rng.standard_normal((8, 8), np.float32),
            "b": rng.standard_normal(8, np.float32),
        },
    )  # fmt: skip


def _relative() -> onnx.ModelProto:
    """Attention with buckets of relative distances, clamped and compared; the lengths determine the integers."""
    rng = np.random.default_rng(7)
    return model_from_text(
        """g (float[batch, sequence, 8] x, int64[batch, sequence] shift) => (float[batch, sequence, 8] y) {
            shape = Shape(x)
            n = Gather(shape, one)
            range = Range(zero, n, one)
            row = Unsqueeze(range, first)
            column = Unsqueeze(range, second)
            distance0 = Sub(row, column)
            moved = Unsqueeze(shift, second)
            distance = Add(distance0, moved)
            size = Abs(distance)
            small = Less(size, eight)
            halved = Div(size, two)
            long = Add(halved, four)
            bucket0 = Where(small, size, long)
            bucket = Min(bucket0, top)
            bias = Gather(table, bucket)
            bias3 = Squeeze(bias, last)
            turned = Transpose <perm = [0, 2, 1]> (x)
            scores0 = MatMul(x, turned)
            scores1 = Mul(scores0, scale)
            scores = Add(scores1, bias3)
            p = Softmax <axis = -1> (scores)
            mixed = MatMul(p, x)
            y = MatMul(mixed, w)
        }""",
        {
            "zero": np.array(0, np.int64), "one": np.array(1, np.int64), "first": np.array([0], np.int64),
            "second": np.array([1], np.int64), "eight": np.array(8, np.int64), "two": np.array(2, np.int64),
            "four": np.array(4, np.int64), "top": np.array(15, np.int64), "last": np.array([3], np.int64),
            "table": rng.standard_normal((16, 1), np.float32), "scale": np.array(0.35, np.float32),
            "w": rng.standard_normal((8, 8), np.float32),
        },
    )  # fmt: skip


def _pixels(name: str, width: int, *, channels_last: bool) -> onnx.ModelProto:
    """Uint8 images, scaled by 1 / 255 and normalized, then convolutions to class scores and the best class."""
    net = Net(name, batch=1, dynamic=True, seed=0)
    shape = (net.batch, 16, 16, 3) if channels_last else (net.batch, 3, 16, 16)
    x = net.op("Cast", net.input("image", shape, np.uint8, features=3), to=TensorProto.FLOAT)
    if channels_last:
        x = net.op("Transpose", x, perm=[0, 3, 1, 2])
    x = net.op("Div", x, net.scalar(255.0))
    mean = net.const(np.array([0.485, 0.456, 0.406], np.float32).reshape(3, 1, 1))
    deviation = net.const(np.array([0.229, 0.224, 0.225], np.float32).reshape(3, 1, 1))
    x = net.set_features(net.op("Div", net.op("Sub", x, mean), deviation), 3)
    x = net.relu(net.batch_norm(net.conv(x, width, 3)))
    x = net.relu(net.batch_norm(net.conv(x, width, 3)))
    x = net.set_features(net.op("Flatten", net.op("GlobalAveragePool", x), axis=1), width)
    logits = net.gemm(x, 5)
    best = net.op("ArgMax", logits, axis=1, keepdims=0)
    net.output(logits, "logits", (net.batch, 5))
    net.output(best, "best", (net.batch,), np.int64)
    return net.model()


# Masks


def _encoder(name: str, kind: str, *, heads: int = 4, causal: bool = False) -> onnx.ModelProto:
    """Two layers of attention over float vectors; the mask is bool, float per key, or float added per head."""
    net = Net(name, batch=1, dynamic=True, seed=0)
    d = 32
    x = net.input("x", (net.batch, "sequence", d), features=d)
    bias = allowed = None
    if kind == "bool":
        mask = net.input("mask", (net.batch, "sequence"), np.bool_)
        wide = net.op("Unsqueeze", mask, net.ints(1, 2))
        bias = net.op("Where", wide, net.scalar(0.0), net.scalar(-10000.0))
    elif kind == "float":
        mask = net.input("mask", (net.batch, "sequence"), np.float32)
        wide = net.op("Unsqueeze", mask, net.ints(1, 2))
        bias = net.op("Mul", net.op("Sub", net.scalar(1.0), wide), net.scalar(-10000.0))
    elif kind == "added":
        bias = net.input("added_mask", (net.batch, heads, "sequence", "sequence"), np.float32)
    if causal:
        square = net.const(np.tril(np.ones((1, 1, 160, 160), np.bool_)), "causal")
        n = net.length(x, 1)
        rows = net.op("Slice", square, net.ints(0), n, net.ints(2))
        allowed = net.op("Slice", rows, net.ints(0), n, net.ints(3))
    for _ in range(2):
        y = net.layer_norm(x)
        q, k, v = net.linear(y, d, gain=2.0), net.linear(y, d, gain=2.0), net.linear(y, d)
        y = net.linear(net.attention(q, k, v, heads, scale="mul", bias=bias, causal=allowed), d)
        x = net.set_features(net.op("Add", y, x), d)
        y = net.linear(net.gelu_tanh(net.linear(net.layer_norm(x), 2 * d)), d)
        x = net.set_features(net.op("Add", y, x), d)
    y = net.layer_norm(x)
    if causal:
        last = net.set_features(net.op("Gather", y, net.const(np.array(-1, np.int64)), axis=1), d)
        net.output(net.gemm(last, 6), "next", (net.batch, 6))
    net.output(y, "y", (net.batch, "sequence", d))
    return net.model()


def _past() -> onnx.ModelProto:
    """A decoder step: one attention layer with a key-value cache, and positions from the cache length."""
    net = Net("past", batch=1, dynamic=True, seed=0)
    d, heads = 16, 2
    ids = net.input("input_ids", (net.batch, "sequence"), np.int64)
    pasts = [
        net.input(f"past_{n}", (net.batch, heads, "past", d // heads), features=d // heads) for n in ("key", "value")
    ]
    words, _ = net.embedding(ids, 60, d)
    table = net.const(net.normal((200, d), 0.5), "positions")
    before, here = net.length(pasts[0], 2), net.length(ids, 1)
    after = net.op("Add", before, here)
    places = net.op("Slice", table, before, after, net.ints(0))
    x = net.set_features(net.op("Add", words, places), d)
    q, k, v = (net.heads(net.linear(x, d), heads, (0, 2, 1, 3)) for _ in range(3))
    k = net.set_features(net.op("Concat", pasts[0], k, axis=2), d // heads)
    v = net.set_features(net.op("Concat", pasts[1], v, axis=2), d // heads)
    scores = net.op("MatMul", q, net.op("Transpose", k, perm=[0, 1, 3, 2]))
    scores = net.op("Mul", scores, net.scalar((d // heads) ** -0.5))
    one, zero = net.const(np.array(1, np.int64)), net.const(np.array(0, np.int64))
    queries = net.op("Range", net.op("Squeeze", before), net.op("Squeeze", after), one)
    keys = net.op("Range", zero, net.op("Squeeze", after), one)
    hidden = net.op("Greater", net.op("Unsqueeze", keys, net.ints(0)), net.op("Unsqueeze", queries, net.ints(1)))
    scores = net.op("Where", hidden, net.scalar(-10000.0), scores)
    y = net.merge_heads(net.op("MatMul", net.op("Softmax", scores, axis=-1), v), d)
    y = net.op("Add", net.linear(y, d), x)
    net.output(net.linear(net.layer_norm(net.set_features(y, d)), 60), "logits", (net.batch, "sequence", 60))
    net.output(k, "present_key", (net.batch, heads, "total", d // heads))
    net.output(v, "present_value", (net.batch, heads, "total", d // heads))
    return net.model()


# Branches, loops, recurrence


def _net_text(graph: str, weights: Mapping[str, Array]) -> Callable[[], onnx.ModelProto]:
    return lambda: model_from_text(graph, weights, 17)


def _w(seed: int, *shape: int, scale: float = 1.0) -> Array:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32) * np.float32(scale))


SWITCH = _net_text(
    """g (float[batch, 8] x, bool fast) => (float[batch, 8] y) {
        h0 = MatMul(x, w0)
        h1 = Add(h0, b0)
        h = Relu(h1)
        z = If (fast) <
            then_branch = a () => (float[batch, 8] t) {
                ta = Tanh(h)
                t = Mul(ta, scale)
            },
            else_branch = b () => (float[batch, 8] e) {
                ea = Sigmoid(h)
                half = Constant <value = float {0.25}> ()
                e = Add(ea, half)
            }
        >
        y0 = MatMul(z, w1)
        y = Add(y0, b0)
    }""",
    {"w0": _w(1, 8, 8), "b0": _w(2, 8), "w1": _w(3, 8, 8), "scale": _w(4, 8)},
)

LENGTH_SWITCH = _net_text(
    """g (float[batch, sequence, 8] x) => (float[batch, sequence, 8] y) {
        shape = Shape(x)
        n = Gather(shape, one)
        long = Greater(n, limit)
        h0 = MatMul(x, w0)
        h = Add(h0, b0)
        z = If (long) <
            then_branch = a () => (float[batch, sequence, 8] t) {
                factor = Constant <value = float {0.125}> ()
                ta = Tanh(h)
                t = Mul(ta, factor)
            },
            else_branch = b () => (float[batch, sequence, 8] e) { e = LeakyRelu <alpha = 0.1> (h) }
        >
        y = MatMul(z, w1)
    }""",
    {
        "one": np.array(1, np.int64),
        "limit": np.array(16, np.int64),
        "w0": _w(5, 8, 8),
        "b0": _w(6, 8),
        "w1": _w(7, 8, 8),
    },
)

VALUE_SWITCH = _net_text(
    """g (float[batch, 8] x, int64 mode) => (float[batch, 4] y) {
        two = Constant <value = int64 {2}> ()
        chosen = Equal(mode, two)
        h0 = Gemm(x, w0, b0)
        h = Relu(h0)
        y = If (chosen) <
            then_branch = a () => (float[batch, 4] t) {
                ta = MatMul(h, w1)
                t = Tanh(ta)
            },
            else_branch = b () => (float[batch, 4] e) {
                ea = MatMul(h, w2)
                e = Sigmoid(ea)
            }
        >
    }""",
    {"w0": _w(8, 8, 8), "b0": _w(9, 8), "w1": _w(10, 8, 4), "w2": _w(11, 8, 4)},
)

# The number of iterations is an input.
TURNS = """g (float[batch, 8] x, int64 turns) => (float[batch, 8] y) {
        go = Constant <value = bool {1}> ()
        y = Loop (turns, go, x) <
            body = b (int64 i, bool c, float[batch, 8] s) => (bool d, float[batch, 8] r) {
                d = Identity(c)
                p = MatMul(s, w)
                q = Add(p, x)
                half = Constant <value = float {FACTOR}> ()
                scaled = Mul(q, half)
                r = Tanh(scaled)
            }
        >
    }"""

# The number of iterations is an input, and the loop ends early at a large value.
UNTIL = """g (float[batch, 8] x, int64 most) => (float[batch, 8] y) {
        go = Constant <value = bool {1}> ()
        start = Abs(x)
        y = Loop (most, go, start) <
            body = b (int64 i, bool c, float[batch, 8] s) => (bool d, float[batch, 8] r) {
                p = MatMul(s, w)
                t = Tanh(p)
                step = Constant <value = float {0.7}> ()
                u = Mul(t, step)
                r = Add(s, u)
                size = ReduceMax <keepdims = 0> (r)
                limit = Constant <value = float {FACTOR}> ()
                d = Less(size, limit)
            }
        >
    }"""


def _looping(text: str, seed: int, factor: float) -> onnx.ModelProto:
    return model_from_text(text.replace("FACTOR", str(factor)), {"w": _w(seed, 8, 8, scale=0.4)})


SCAN = _net_text(
    """g (float[sequence, 8] x, float[8] start) => (float[8] last, float[sequence, 8] all) {
        last, all = Scan <num_scan_inputs = 1,
            body = b (float[8] s, float[8] e) => (float[8] r, float[8] o) {
                p = MatMul(s, w)
                q = Add(p, e)
                r = Tanh(q)
                two = Constant <value = float {1.7}> ()
                o = Mul(r, two)
            }
        > (start, x)
    }""",
    {"w": _w(14, 8, 8, scale=0.4)},
)


def _recurrent(kind: str, size: int) -> Callable[[], onnx.ModelProto]:
    """LSTM, GRU or RNN over [S, N, 6] with its initial state as an input, followed by a linear layer."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    cell = ", cell" if kind == "LSTM" else ""
    declared = f"float[1, batch, {size}] state" + (f", float[1, batch, {size}] cell" if cell else "")
    return _net_text(
        f"""g (float[sequence, batch, 6] x, {declared})
            => (float[sequence, batch, 4] y, float[1, batch, {size}] last) {{
            all, last = {kind} <hidden_size = {size}> (x, w, r, b, , state{cell})
            flat = Squeeze(all, one)
            mixed = MatMul(flat, m)
            y = Add(mixed, c)
        }}""",
        {
            "w": _w(15, 1, size * gates, 6, scale=0.6), "r": _w(16, 1, size * gates, size, scale=0.6),
            "b": _w(17, 1, 2 * size * gates, scale=0.3),
            "one": np.array([1], np.int64), "m": _w(18, size, 4), "c": _w(19, 4),
        },
    )  # fmt: skip


def _decisions(rounding: str, limits: tuple[int, int, int]) -> onnx.ModelProto:
    """Comparisons at integers: thresholds, buckets, and rounding of values exactly on a boundary."""
    low, limit, high = limits
    return model_from_text(
        f"""g (int64[batch, 6] counts, float[batch, 6] x) => (float[batch, 6] y) {{
            many = Greater(counts, limit)
            some = Less(counts, low)
            most = LessOrEqual(counts, high)
            a = Where(many, x, b0)
            b = Where(some, c0, a)
            c = Where(most, b, d0)
            whole = Cast <to = 1> (counts)
            quarter = Mul(whole, step)
            level = {rounding}(quarter)
            y0 = Add(c, level)
            y = Mul(y0, w)
        }}""",
        {
            "limit": np.array(limit, np.int64), "low": np.array(low, np.int64), "high": np.array(high, np.int64),
            "b0": _w(20, 6), "c0": _w(21, 6), "d0": _w(22, 6), "w": _w(23, 6), "step": np.array(0.3, np.float32),
        },
    )  # fmt: skip


def _pools(name: str, width: int, alpha: float) -> onnx.ModelProto:
    """Average pooling with padding, depthwise convolutions, clipped activations, global averages over H x W."""
    net = Net(name, batch=1, dynamic=True, seed=0)
    x = net.input("image", (net.batch, 3, "height", "width"), features=3)
    x = net.relu6(net.batch_norm(net.conv(x, width, 3)))
    x = net.op("AveragePool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    x = net.relu6(net.batch_norm(net.conv(x, width, 3, group=width)))
    x = net.leaky_relu(net.batch_norm(net.conv(x, 12, 1)), alpha)
    first, second = net.ops("Split", x, net.ints(6, 6), outputs=2, axis=1)
    net.set_features(first, 6)
    net.set_features(second, 6)
    first = net.op("AveragePool", first, kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1])
    x = net.set_features(net.op("Concat", net.op("HardSwish", first), net.op("Tanh", second), axis=1), 12)
    y = net.conv(x, 4, 3, bias=True)
    x = net.set_features(net.op("Flatten", net.op("GlobalAveragePool", x), axis=1), 12)
    net.output(net.gemm(x, 6), "logits", (net.batch, 6))
    net.output(net.op("Sigmoid", y), "heat", (net.batch, 4, "down", "across"))
    return net.model()


def _resizer(name: str, width: int) -> onnx.ModelProto:
    """Nearest and linear resizing, a residual, a transposed convolution and a norm over channels."""
    net = Net(name, batch=1, dynamic=True, seed=0)
    x = net.input("image", (net.batch, 3, "height", "width"), features=3)
    x = net.relu(net.conv(x, width, 3, bias=True))
    low = net.max_pool(x, 2, 2)
    none = net.const(np.zeros(0, np.float32))
    up = net.op("Resize", low, none, net.const(np.array([1, 1, 2, 2], np.float32)), mode="nearest")
    smooth = net.op("Resize", low, none, net.const(np.array([1, 1, 2, 2], np.float32)), mode="linear")
    x = net.set_features(net.op("Add", net.op("Add", x, up), smooth), width)
    x = net.op("Add", net.relu(net.batch_norm(net.conv(x, width, 3))), x)
    x = net.conv_transpose(net.set_features(x, width), 6, 2, 2)
    net.output(x, "image_out", (net.batch, 6, "height2", "width2"))
    return net.model()


def _rms() -> onnx.ModelProto:
    """RMSNorm in standard operators (x / sqrt(mean(x^2) + epsilon)), gated SiLU, a softmax over classes."""
    net = Net("rms", batch=1, dynamic=True, seed=0)
    d = 24
    x = net.input("x", (net.batch, "sequence", d), features=d)
    for _ in range(2):
        square = net.op("ReduceMean", net.op("Pow", x, net.scalar(2.0)), axes=[-1], keepdims=1)
        root = net.op("Sqrt", net.op("Add", square, net.scalar(1e-5)))
        y = net.set_features(net.op("Div", x, root), d)
        y = net.set_features(net.op("Mul", y, net.const(net.uniform((d,), 0.7, 1.3))), d)
        gate, up = net.silu(net.linear(y, 40, bias=False)), net.linear(y, 40, bias=False)
        y = net.linear(net.set_features(net.op("Mul", gate, up), 40), d, bias=False)
        x = net.set_features(net.op("Add", x, y), d)
    net.output(net.op("Softmax", net.linear(x, 10), axis=-1), "classes", (net.batch, "sequence", 10))
    return net.model()


def _trained(name: str) -> Callable[[], onnx.ModelProto]:
    return lambda: onnx.load(pypi.fetch(name))


def _trained_feeds(name: str) -> Callable[[], list[dict[str, Array]]]:
    rng = np.random.default_rng(11)
    return lambda: [make(rng) for make in pypi.TRAINED[name].feeds]


def _paraphrase() -> list[dict[str, Array]]:
    rng = np.random.default_rng(12)
    sets = []
    for batch, length, kind in ((2, 24, 1), (1, 9, 2), (3, 17, 3), (2, 40, 4)):
        mask = draw_mask(rng, (batch, length), kind).astype(np.int64)
        sets.append({"input_ids": rng.integers(0, 30000, (batch, length)), "attention_mask": mask})
    return sets


def _boxes(axis: int, boxes: int = 4) -> Hints:
    return Hints(boxes={"predictions": (axis, boxes)})


class _Calibration(CalibrationDataReader):  # type: ignore[misc]  # the runtime has no types
    def __init__(self, model: onnx.ModelProto) -> None:
        rng = np.random.default_rng(8)
        shapes = {v.name: [d.dim_value or 2 for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
        self._feeds = iter([{n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}])

    def get_next(self) -> dict[str, Array] | None:
        return next(self._feeds, None)


def _quantized(name: str) -> onnx.ModelProto:
    """Quantized by ONNX Runtime's tool: int8 between QuantizeLinear and DequantizeLinear."""
    model = _zoo(name)()
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        onnx.save(model, source)
        quantize_static(source, target, _Calibration(model), per_channel=True)
        return onnx.load(target)


def subjects(exports: Path | None = None, trained: bool = True) -> list[Subject]:
    """All subjects; `exports` is a folder of files written by scripts/export.py."""
    found = [
        Subject(name, _zoo(name), BATCHES)
        for name in ("resnet18", "resnet50", "vgg16_bn", "mobilenet_v2", "unet", "yolo", "vit", "chess")
    ]
    found += [Subject(name, _zoo(name), TEXTS, hints) for name, hints in TEXT_HINTS.items()]
    found += [Subject("sd_block", _zoo("sd_block"), TEXTS)]
    found += [
        Subject("detector_rows", lambda: _detector("detector_rows", 5, False, False), IMAGES, _boxes(1)),
        Subject("detector_columns", lambda: _detector("detector_columns", 3, True, True), IMAGES, _boxes(2)),
        Subject("detector_many", lambda: _detector("detector_many", 20, False, False), IMAGES, _boxes(1)),
        *(
            Subject(name, partial(_pools, name, width, alpha), (*IMAGES, {"batch": 2, "height": 33, "width": 47}))
            for name, width, alpha in (("pools", 8, 0.2), ("pools_wide", 16, 0.01), ("pools_narrow", 4, 0.3))
        ),
        *(
            Subject(name, partial(_resizer, name, width), IMAGES)
            for name, width in (("resizer", 8), ("resizer_wide", 16), ("resizer_narrow", 4))
        ),
        *(
            Subject(f"{name}_int8", partial(_quantized, name), BATCHES, half=False)
            for name in ("resnet18", "mobilenet_v2", "vit")
        ),
        Subject("rms", _rms, LONG),
        Subject("diffusion", _diffusion, BATCHES, Hints(ids={"timesteps": (0, 999)})),
        Subject("noise_table", _noise_table, BATCHES, Hints(ids={"t": (0, 999)})),
        *(
            Subject(
                name, partial(_tabular, seed, table, classes, homes), BATCHES,
                Hints(ids={"categories": (-table, table - 1), "kind": (-classes, classes - 1), "user": (-100, 1000)}),
            )
            for name, seed, table, classes, homes in (
                ("tabular", 4, 50, 5, 23), ("tabular_wide", 5, 300, 12, 101), ("tabular_small", 6, 7, 3, 10)
            )
        ),
        Subject("signed", _signed, LONG, Hints(ids={"offsets": (-32, 31)})),
        Subject("relative", _relative, LONG, Hints(ids={"shift": (-20, 20)})),
        Subject("pixels", lambda: _pixels("pixels", 8, channels_last=False), BATCHES),
        Subject("pixels_last", lambda: _pixels("pixels_last", 8, channels_last=True), BATCHES),
        Subject("pixels_wide", lambda: _pixels("pixels_wide", 12, channels_last=True), BATCHES),
        *(
            Subject(f"decisions_{r.lower()}", partial(_decisions, r, limits), BATCHES, Hints(ids={"counts": (0, top)}))
            for r, limits, top in (("Round", (2, 4, 9), 12), ("Floor", (0, 5, 7), 10), ("Ceil", (10, 40, 90), 120))
        ),
        Subject("encoder_bool", lambda: _encoder("encoder_bool", "bool"), LONG, Hints(masks=("mask",))),
        Subject("encoder_float", lambda: _encoder("encoder_float", "float"), LONG, Hints(masks=("mask",))),
        Subject("encoder_added", lambda: _encoder("encoder_added", "added"), LONG),
        Subject("encoder_added_2", lambda: _encoder("encoder_added_2", "added", heads=2), LONG),
        Subject("encoder_added_8", lambda: _encoder("encoder_added_8", "added", heads=8), LONG),
        Subject("encoder_causal", lambda: _encoder("encoder_causal", "none", causal=True), LONG),
        Subject("encoder_both", lambda: _encoder("encoder_both", "bool", causal=True), LONG, Hints(masks=("mask",))),
        Subject(
            "past", _past,
            tuple({"batch": b, "sequence": s, "past": p} for b, s, p in STEPS),
            Hints(ids={"input_ids": (0, 59)}),
        ),
        Subject("switch", SWITCH, BATCHES),
        Subject("length_switch", LENGTH_SWITCH, LONG),
        Subject("value_switch", VALUE_SWITCH, BATCHES, Hints(ids={"mode": (0, 4)})),
        *(
            Subject(f"turns_{factor}", partial(_looping, TURNS, seed, factor), BATCHES, Hints(ids={"turns": (0, 8)}))
            for seed, factor in ((12, 0.5), (13, 0.8), (14, 0.3))
        ),
        *(
            Subject(f"until_{factor}", partial(_looping, UNTIL, seed, factor), BATCHES, Hints(ids={"most": (0, 8)}))
            for seed, factor in ((15, 4.0), (16, 2.5), (17, 6.0))
        ),
        Subject("scan", SCAN, ({"sequence": 1}, {"sequence": 5}, {"sequence": 33})),
        *(
            Subject(f"{kind.lower()}_{size}", _recurrent(kind, size), LONG)
            for kind, size in (("LSTM", 5), ("LSTM", 12), ("GRU", 5), ("RNN", 5))
        ),
    ]  # fmt: skip
    if trained:
        found += [
            Subject("nudenet", _trained("nudenet"), hints=Hints(boxes={"output0": (1, 4)}), feeds=_nudenet_feeds),
            Subject("paraphrase", _trained("paraphrase"), hints=PARAPHRASE, feeds=_paraphrase),
            Subject("ppocr_cls", _trained("ppocr_cls"), feeds=_trained_feeds("ppocr_cls")),
            Subject("magika", _trained("magika"), hints=Hints(ids={"bytes": (0, 256)}), feeds=_trained_feeds("magika")),
            Subject("silero_vad", _trained("silero_vad"), feeds=_trained_feeds("silero_vad"), half=False),
        ]
    if exports is not None:
        for path in sorted(exports.glob("*.onnx")):
            found.append(_export(path))
    return found


PARAPHRASE = Hints(masks=("attention_mask",), ids={"input_ids": (0, 30521)})


def _nudenet_feeds() -> list[dict[str, Array]]:
    rng = np.random.default_rng(13)
    return [{"images": rng.random((n, 3, h, w), np.float32)} for n, h, w in ((1, 160, 160), (2, 128, 96))]


# The axes of the inputs of exported models, by input name: exporters choose the names of the symbols.
EXPORTED_AXES = {
    "input_ids": ("batch", "length"),
    "attention_mask": ("batch", "total"),
    "decoder_input_ids": ("batch", "target"),
    "decoder_attention_mask": ("batch", "target"),
    "q": ("batch", "", "rows"),
    "k": ("batch", "", "keys"),
    "v": ("batch", "", "keys"),
    "past": ("batch", "", "past"),
}
EXPORTED_SIZES: Sequence[Sizes] = (
    {"batch": 2, "length": 7, "target": 5, "past": 7, "rows": 7, "keys": 9},
    {"batch": 1, "length": 20, "target": 11, "past": 20, "rows": 3, "keys": 18},
    {"batch": 3, "length": 9, "target": 4, "past": 9, "rows": 9, "keys": 9},
)


def _export(path: Path) -> Subject:
    inputs = onnx.load(path).graph.input
    names = [i.name for i in inputs]
    masks = tuple(n for n in names if n.endswith("attention_mask"))
    ids = {n: (0, 49) for n in names if n.endswith("input_ids")}
    sets: list[dict[str, int]] = []
    for sizes in EXPORTED_SIZES:
        total = sizes["past"] + 1 if any(n.startswith("past") for n in names) else sizes["length"]
        known = {**sizes, "total": total}
        symbols: dict[str, int] = {}
        for value in inputs:
            axes = EXPORTED_AXES.get(value.name, EXPORTED_AXES["past"] if value.name.startswith("past") else ("batch",))
            for axis, dim in zip(axes, value.type.tensor_type.shape.dim):
                if dim.dim_param:
                    symbols.setdefault(dim.dim_param, known[axis])
        # Symbols of the other inputs, such as the length of a separate mask.
        sets.append({**known, **symbols})
    return Subject(f"export_{path.stem}", lambda: onnx.load(path), sets, Hints(masks, ids))


# Inputs


def draw_mask(rng: np.random.Generator, shape: Sequence[int], pattern: int) -> Array:
    """Draws a mask [B, S], true keeps: all, right, left, two-sided padding, holes, only row 0 padded, only one key."""
    mask = np.ones(shape, np.bool_)
    rows, length = shape
    if length < 2:
        return mask
    for row in range(rows):
        left = int(rng.integers(1, length // 2 + 1))
        right = int(rng.integers(1, length // 2 + 1))
        if pattern == 1:
            mask[row, length - right :] = False
        elif pattern == 2:
            mask[row, :left] = False
        elif pattern == 3 and left + right < length:
            mask[row, :left] = False
            mask[row, length - right :] = False
        elif pattern == 4:
            mask[row] = rng.random(length) > 0.4
            mask[row, int(rng.integers(length))] = True
        elif pattern == 5 and row == 0:
            mask[row, length // 2 :] = False
        elif pattern == 6:
            mask[row] = False
            mask[row, int(rng.integers(length))] = True
    return mask


def inputs(subject: Subject, model: onnx.ModelProto, seed: int = 99) -> list[dict[str, Array]]:
    """Returns general input sets: several sizes, every padding pattern, whole index ranges, several magnitudes."""
    if subject.feeds is not None:
        return subject.feeds()
    rng = np.random.default_rng(seed)
    constants = {t.name for t in model.graph.initializer}
    sets = []
    # Each size once with normal values and once with extreme values.
    for turn, sizes in enumerate((*subject.sizes, *subject.sizes)):
        feeds: dict[str, Array] = {}
        for value in model.graph.input:
            if value.name in constants:
                continue
            tensor = value.type.tensor_type
            shape = [d.dim_value or sizes.get(d.dim_param, 1) for d in tensor.shape.dim]
            feeds[value.name] = _draw(rng, subject.hints, value.name, tensor.elem_type, shape, turn, len(subject.sizes))
        sets.append(feeds)
    return sets


def _draw(
    rng: np.random.Generator, hints: Hints, name: str, elem_type: int, shape: list[int], turn: int, count: int
) -> Array:
    dtype = helper.tensor_dtype_to_np_dtype(elem_type)
    if name in hints.masks:
        return draw_mask(rng, shape, turn % 7).astype(dtype)
    if name in hints.ids:
        low, high = hints.ids[name]
        drawn = rng.integers(low, high + 1, shape)
        # Half of the sets contain both ends of the range.
        flat = drawn.reshape(-1)
        if turn % 2:
            flat[-1] = high
            flat[0] = low if flat.size > 1 or turn % 4 == 1 else high
        return drawn.astype(dtype)
    if elem_type == TensorProto.BOOL:
        return np.asarray(rng.random(shape) > (0.5 if shape else (turn % 2) - 0.5))
    if dtype.kind in "iu":
        return np.asarray(rng.integers(0, 256 if dtype == np.uint8 else 2, shape)).astype(dtype)
    if "mask" in name:
        added = rng.standard_normal(shape)
        added[rng.random(shape) < 0.2] = -1e4
        return added.astype(dtype)
    numbers = rng.standard_normal(shape)
    if turn >= count:
        how = turn % 4
        if how == 0:
            numbers = numbers * 30
        elif how == 1:
            numbers = numbers * 1e-2
        elif how == 2:
            numbers = numbers + 20
        else:
            numbers = rng.random(shape) * 255
    return numbers.astype(dtype)


def weights_of(model: onnx.ModelProto) -> Iterator[tuple[int, Array]]:
    """Float initializers of the model."""
    for i, tensor in enumerate(model.graph.initializer):
        if tensor.data_type in (TensorProto.FLOAT, TensorProto.FLOAT16):
            yield i, numpy_helper.to_array(tensor)
