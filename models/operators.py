"""Small models of single operators, for `scripts/bench_ops.py`: chains with the sizes of well-known networks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

Array = npt.NDArray[Any]
rng = np.random.default_rng(0)
LOWEST = float(np.finfo(np.float32).min)


def normal(*shape: int, over: float = 1.0) -> Array:
    """Draws float32 values divided by the square root of `over`, the number of summed terms."""
    drawn: Array = (rng.standard_normal(shape) / over**0.5).astype(np.float32)
    return drawn


@dataclass(frozen=True)
class Case:
    """A model to time.

    Attributes:
        name: name of the row.
        graph: the graph in ONNX's text form.
        weights: the graph's constants.
        feeds: inputs that need particular values; the others are drawn.
        parts: number of equal operators in the graph; the reported times are for one.
        skip: passes to skip, which lets another pass rewrite the operator.
        bfloat16: whether the optimized model is also timed in bfloat16.
        contrib: whether the nodes belong to com.microsoft; their definitions in standard ONNX are then optimized.
        opset: version of standard ONNX.
    """

    name: str
    graph: str
    weights: Mapping[str, Array] = field(default_factory=dict)
    feeds: Mapping[str, Array] = field(default_factory=dict)
    parts: int = 1
    skip: tuple[str, ...] = ()
    bfloat16: bool = False
    contrib: bool = False
    opset: int = 17

    def model(self) -> onnx.ModelProto:
        opsets = f'["" : {self.opset}, "com.microsoft" : 1]' if self.contrib else f'["" : {self.opset}]'
        model = onnx.parser.parse_model(f"<ir_version: 10, opset_import: {opsets}>\n{self.graph}")
        model.graph.initializer.extend(onnx.numpy_helper.from_array(w, n) for n, w in self.weights.items())
        return model

    def inputs(self, model: onnx.ModelProto) -> dict[str, Array]:
        found: dict[str, Array] = {}
        for value in model.graph.input:
            dims = [d.dim_value for d in value.type.tensor_type.shape.dim]
            dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            drawn = normal(*dims) if dtype.kind == "f" else rng.integers(0, 2 if dtype.kind == "b" else 100, dims)
            found[value.name] = self.feeds.get(value.name, drawn.astype(dtype))
        return found


def tensor(*shape: int) -> str:
    return f"float[{', '.join(map(str, shape))}]"


ACTIVATIONS = {
    "Relu": "{y} = Relu ({x})",
    "Clip": "{y} = Clip ({x}, low, high)",
    "Silu": "{y}_s = Sigmoid ({x}) {y} = Mul ({x}, {y}_s)",
    "HardSwish": "{y} = HardSwish ({x})",
    "Gelu": "{y} = Gelu ({x})",
    "LeakyRelu": "{y} = LeakyRelu <alpha = 0.1> ({x})",
    "Sigmoid": "{y} = Sigmoid ({x})",
    "": "{y} = Identity ({x})",
}
LIMITS = {"low": np.array(0, np.float32), "high": np.array(6, np.float32)}


SCATTER = '{1} = ScatterElements <axis = 0, reduction = "add"> ({0}, e, x)'


def act(name: str, x: str, y: str) -> str:
    return ACTIVATIONS[name].format(x=x, y=y)


# -- convolutions ------------------------------------------------------------------------------------------------------


def winograd() -> Iterator[Case]:
    """CxHxM: chains of 3x3 convolutions with Relu from C to M channels, back to C, ..., on H x H pixels."""
    shapes = (
        "64x224x64 64x112x64 128x112x128 64x56x64 256x56x256 128x28x128 512x28x512 256x14x256 512x14x512 512x7x512 "
        "320x64x320 640x32x640 1280x16x1280 3x224x64 8x112x8 16x112x16 32x112x32 32x56x32 32x28x32 64x28x64 64x14x64 "
        "128x14x128 128x7x128 256x7x256"
    )
    for name in shapes.split():
        C, H, M = map(int, name.split("x"))
        widths = [C, M] if C < 8 else [C, M, C, M, C]
        yield conv_chain(name, widths, H, 3, 1, "Relu", skip=("fused_conv",))


def fused_conv() -> Iterator[Case]:
    """Chains of four equal convolutions with each activation, in float32 and bfloat16."""
    shapes = (
        *((64, 56, 1, 1), (256, 28, 1, 1), (512, 14, 1, 1), (512, 7, 1, 1), (32, 112, 3, 1), (64, 56, 3, 1)),
        *((128, 28, 3, 1), (256, 14, 3, 1), (144, 56, 3, 144), (192, 28, 5, 192), (576, 14, 3, 576), (64, 56, 3, 8)),
    )
    for (C, H, k, group), activation in itertools.product(shapes, ("Relu", "Silu", "HardSwish", "Gelu")):
        name = f"{C}, {H}x{H}, {k}x{k}, {group} {activation}"
        yield conv_chain(name, [C] * 5, H, k, group, activation, skip=("winograd_conv",), bfloat16=True)


def conv_chain(name: str, widths: list[int], H: int, k: int, group: int, activation: str, **more: Any) -> Case:
    body: list[str] = []
    weights: dict[str, Array] = {}
    for i, (C, M) in enumerate(itertools.pairwise(widths)):
        window = f"pads = {[k // 2] * 4}, kernel_shape = {[k, k]}, group = {group}"
        body.append(f"c{i} = Conv <{window}> (y{i}, w{i}, b{i}) {act(activation, f'c{i}', f'y{i + 1}')}")
        weights |= {f"w{i}": normal(M, C // group, k, k, over=C // group * k * k), f"b{i}": normal(M)}
    x, y = tensor(1, widths[0], H, H), tensor(1, widths[-1], H, H)
    graph = f"g ({x} y0) => ({y} y{len(body)}) {{ {' '.join(body)} }}"
    return Case(name, graph, weights, parts=len(body), opset=20, **more)


def inverted_residual() -> Iterator[Case]:
    """Inverted residual blocks between two 1x1 convolutions: channels of X, inside and of Y; size, kernel, stride."""
    shapes = (
        *(
            (16, 96, 24, 112, 3, 2, 1),
            (24, 144, 24, 56, 3, 1, 2),
            (32, 192, 32, 28, 3, 1, 2),
            (64, 384, 64, 14, 3, 1, 2),
        ),
        *(
            (96, 576, 160, 14, 3, 2, 1),
            (160, 960, 160, 7, 3, 1, 2),
            (24, 72, 24, 80, 3, 1, 1),
            (16, 16, 16, 56, 3, 1, 1),
        ),
        *(
            (40, 120, 40, 28, 5, 1, 2),
            (96, 576, 96, 14, 5, 1, 2),
            (24, 144, 40, 56, 5, 2, 1),
            (24, 144, 24, 56, 7, 1, 1),
        ),
    )
    for C, M, O, H, k, stride, count in shapes:  # noqa: E741
        body: list[str] = []
        weights: dict[str, Array] = dict(LIMITS)

        def conv(x: str, inner: int, outer: int, k: int = 1, s: int = 1, group: int = 1) -> str:
            n = len(body)  # noqa: B023
            weights.update({f"w{n}": normal(outer, inner // group, k, k, over=k * k * inner / group)})  # noqa: B023
            weights[f"b{n}"] = normal(outer)  # noqa: B023
            window = f"pads = {[k // 2] * 4}, strides = {[s, s]}, group = {group}"
            body.append(f"c{n} = Conv <{window}> ({x}, w{n}, b{n})")  # noqa: B023
            return f"c{n}"

        def clip(x: str) -> str:
            body.append(act("Clip", x, f"a{len(body)}"))  # noqa: B023
            return f"a{len(body) - 1}"  # noqa: B023

        y = conv("x", C, C)
        for _ in range(count):
            x, y = y, conv(clip(conv(clip(conv(y, C, M)), M, M, k, stride, M)), M, O)
            if C == O and stride == 1:
                body.append(f"s{len(body)} = Add ({x}, {y})")
                y = f"s{len(body) - 1}"
        y = conv(y, O, O)
        size = (H - 1) // stride + 1
        graph = f"g ({tensor(1, C, H, H)} x) => ({tensor(1, O, size, size)} {y}) {{ {' '.join(body)} }}"
        name = f"{C}, {M}, {O}, {H}x{H}, {k}x{k}, stride {stride}"
        yield Case(name, graph, weights, parts=count, skip=("fused_conv",))


def conv_transpose() -> Iterator[Case]:
    """Transposed convolutions: channels, sizes, kernel, stride, pad, padding of the output, groups, activation."""
    sites: tuple[tuple[int, int, tuple[int, ...], int, int, int, int, int, str], ...] = (
        *((2 * m, m, (n, n), 2, 2, 0, 0, 1, "Relu") for m, n in ((512, 16), (256, 32), (128, 64), (64, 128))),
        *((2 * m, m, (n, n), 4, 2, 1, 0, 1, "Relu") for m, n in ((512, 4), (256, 8), (128, 16), (64, 32))),
        (24, 24, (184, 184), 2, 2, 0, 0, 1, "Relu"), (24, 1, (368, 368), 2, 2, 0, 0, 1, "Sigmoid"),
        (256, 64, (64, 64), 2, 2, 0, 0, 1, ""), (256, 128, (64, 64), 3, 2, 1, 1, 1, "Relu"),
        (512, 256, (100,), 16, 8, 4, 0, 1, "LeakyRelu"), (64, 32, (12800,), 4, 2, 1, 0, 1, "LeakyRelu"),
        (21, 21, (64, 64), 4, 2, 1, 0, 21, ""), (64, 64, (28, 28), 4, 2, 1, 0, 8, ""),
        (64, 32, (12, 12, 12), 2, 2, 0, 0, 1, "Relu"),
    )  # fmt: skip
    for C, M, size, k, s, pad, more, group, activation in sites:
        axes = len(size)
        grown = [(n - 1) * s + k + more - 2 * pad for n in size]
        window = f"strides = {[s] * axes}, pads = {[pad] * 2 * axes}, group = {group}, output_padding = {[more] * axes}"
        body = f"t = ConvTranspose <{window}> (x, w, b) {act(activation, 't', 'y')}"
        graph = f"g ({tensor(1, C, *size)} x) => ({tensor(1, M, *grown)} y) {{ {body} }}"
        weights = {"w": normal(C, M // group, *[k] * axes, over=C), "b": normal(M)}
        yield Case(f"{C} to {M}, {'x'.join(map(str, size))}, {k}, stride {s}, groups {group}", graph, weights)


# -- matrix multiplications --------------------------------------------------------------------------------------------


def linear() -> Iterator[Case]:
    """ROWSxKxN: layers with a common input and weights that exceed the caches; float32 and bfloat16."""
    shapes = (
        "128x3072x768 197x3072x768 512x3072x768 256x4096x1024 512x2048x512 64x3072x768 16x3072x768 4x3072x768 "
        "1x3072x768 1x2048x1000 128x768x3072 512x768x3072 16x768x3072 1x768x3072 128x768x768 512x768x768 197x768x2304 "
        "4096x768x768 77x1280x5120"
    )
    for name in shapes.split():
        rows, K, N = map(int, name.split("x"))
        count = max(2, min(12, (96 << 20) // (4 * K * N)))
        body = " ".join(f"y{i} = Gemm (x, w{i}, b{i})" for i in range(count))
        outputs = ", ".join(f"{tensor(rows, N)} y{i}" for i in range(count))
        weights = {f"w{i}": normal(K, N, over=K) for i in range(count)} | {f"b{i}": normal(N) for i in range(count)}
        graph = f"g ({tensor(rows, K)} x) => ({outputs}) {{ {body} }}"
        yield Case(name, graph, weights, parts=count, bfloat16=True)


def matmul() -> Iterator[Case]:
    """BATCHxMxKxN: multiplications of two activations, in bfloat16; with the suffix T, B is stored as [N, K]."""
    shapes = (
        "12x512x64x512T 12x512x512x64 12x128x64x128T 12x128x128x64 12x512x64x1024T 1x512x512x512 1x1024x1024x1024 "
        "8x4096x64x64 256x64x32x64T 256x64x64x32 1x64x256x64 1x16x64x4096 12x32x64x32T 12x64x16x64"
    )
    for name in shapes.split():
        batch, M, K, N = map(int, name.rstrip("T").split("x"))
        B, body = tensor(batch, K, N), "y = MatMul (a, b)"
        if name.endswith("T"):
            B, body = tensor(batch, N, K), "t = Transpose <perm = [0, 2, 1]> (b) y = MatMul (a, t)"
        graph = f"g ({tensor(batch, M, K)} a, {B} b) => ({tensor(batch, M, N)} y) {{ {body} }}"
        yield Case(name, graph, bfloat16=True)


def attention() -> Iterator[Case]:
    """MatMul, Mul, mask, Softmax, MatMul: "bare", or "heads", with Transposes from [B, S, H, D] to [B, H, S, D]."""
    shapes = [(1, 8, 512, 512, D, mask, "bare") for D in (40, 64, 128) for mask in ("none", "add", "bool", "causal")]
    shapes += [(1, 4, 4096, 4096, D, "none", "bare") for D in (40, 64, 128)] + [(64, 3, 49, 49, 32, "bias", "bare")]
    shapes += [(1, 8, 1024, 77, 40, "none", "heads"), (1, 8, 4096, 4096, 40, "none", "heads")]
    for S in (16, 49, 77, 128, 197, 384):
        shapes += [(B, H, S, S, 64, "add", "heads") for B, H in ((1, 1), (1, 12), (8, 12))]
    shapes += [(B, 12, 1, T, 64, "none", "heads") for T in (16, 128, 512, 2048) for B in (1, 8)]
    masks = {
        "none": ("", "s0"),
        "add": ("s = Add (s0, m)", "s"),
        "bias": ("s = Add (s0, m)", "s"),
        "bool": ("s = Where (m, s0, lowest)", "s"),
        "causal": ("s = Add (s0, hidden)", "s"),
    }
    for B, H, S, T, D, mask, layout in shapes:
        heads = layout == "heads"
        Q, O = ((B, S, H, D),) * 2 if heads else ((B, H, S, D),) * 2  # noqa: E741
        K, V = ((B, T, H, D),) * 2 if heads else ((B, H, D, T), (B, H, T, D))
        split = """q = Transpose <perm = [0, 2, 1, 3]> (Q) k = Transpose <perm = [0, 2, 3, 1]> (K)
            v = Transpose <perm = [0, 2, 1, 3]> (V)"""
        q, k, v, o = "qkvo" if heads else ("Q", "K", "V", "O")
        masking, scores = masks[mask]
        body = f"""{split if heads else ""} d = MatMul ({q}, {k}) s0 = Mul (d, scale) {masking}
            p = Softmax <axis = -1> ({scores}) {o} = MatMul (p, {v})
            {"O = Transpose <perm = [0, 2, 1, 3]> (o)" if heads else ""}"""
        given = f"{tensor(*Q)} Q, {tensor(*K)} K, {tensor(*V)} V"
        feeds: dict[str, Array] = {}
        if mask in ("add", "bias", "bool"):
            shape = {"add": (B, 1, 1, T), "bias": (1, H, S, T), "bool": (B, 1, S, T)}[mask]
            seen = rng.random(shape) < 0.9
            seen[..., 0] = True
            kind = "bool" if mask == "bool" else "float"
            given += f", {kind}[{', '.join(map(str, shape))}] m"
            feeds["m"] = normal(*shape) if mask == "bias" else seen
            if mask == "add":
                feeds["m"] = np.where(seen, 0, LOWEST).astype(np.float32)
        weights = {"scale": np.array(D**-0.5, np.float32), "lowest": np.array(LOWEST, np.float32)}
        if mask == "causal":
            weights["hidden"] = np.triu(np.full((S, T), -np.inf, np.float32), T - S + 1)
        used = {name: w for name, w in weights.items() if name in body}
        graph = f"g ({given}) => ({tensor(*O)} O) {{ {body} }}"
        yield Case(f"B{B} H{H} S{S} T{T} D{D} {mask} {layout}", graph, used, feeds, bfloat16=True)


# -- norms, planes, com.microsoft --------------------------------------------------------------------------------------

GROUP_NORM = """shape = Constant <value_ints = [0, 32, -1]> () g = Reshape (x, shape)
    i = InstanceNormalization <epsilon = 0.00001> (g, one, zero) xs = Shape (x) u = Reshape (i, xs)
    m = Mul (u, gamma) n = Add (m, beta) s = Sigmoid (n) y = Mul (n, s)"""
LAYER_NORM = """two = Constant <value_float = 2.0> () e = Constant <value_float = 0.00001> ()
    a = ReduceMean <axes = [-1]> (x) d = Sub (x, a) q = Pow (d, two) v = ReduceMean <axes = [-1]> (q)
    ve = Add (v, e) w = Sqrt (ve) n = Div (d, w) m = Mul (n, gamma) y = Add (m, beta)"""
RMS_NORM = """two = Constant <value_float = 2.0> () e = Constant <value_float = 0.00001> () q = Pow (x, two)
    v = ReduceMean <axes = [-1]> (q) ve = Add (v, e) w = Sqrt (ve) n = Div (x, w) y = Mul (n, gamma)"""
STANDARD = "y = LayerNormalization <axis = -1, epsilon = 0.00001> (x, gamma, beta)"


def norms() -> Iterator[Case]:
    """GroupNorm with SiLU as in Stable Diffusion; row norms decomposed and as nodes, some with a residual sum."""
    shapes = ((1, 320, 64), (2, 320, 64), (1, 640, 32), (1, 1280, 16), (1, 1280, 8), (1, 128, 256))
    for N, C, H in shapes:
        graph = f"g ({tensor(N, C, H, H)} x) => ({tensor(N, C, H, H)} y) {{ {GROUP_NORM} }}"
        weights = {"one": np.ones(32, np.float32), "zero": np.zeros(32, np.float32)}
        weights |= {"gamma": normal(C, 1, 1), "beta": normal(C, 1, 1)}
        yield Case(f"GroupNorm + SiLU, {N} x {C} x {H} x {H}", graph, weights)
    forms = {"LayerNorm written out": LAYER_NORM, "LayerNormalization": STANDARD, "RMSNorm written out": RMS_NORM}
    for (S, D), (name, body), residual in itertools.product(
        ((128, 768), (512, 768), (197, 1024)), forms.items(), (False, True)
    ):
        x = tensor(1, S, D)
        given, first = (f"{x} left, {x} right", "x = Add (left, right)") if residual else (f"{x} x", "")
        weights = {"gamma": np.sign(normal(D)), "beta": normal(D)}
        weights = {key: w for key, w in weights.items() if key in body}
        title = f"{'residual + ' if residual else ''}{name}, {S} x {D}"
        yield Case(title, f"g ({given}) => ({x} y) {{ {first} {body} }}", weights)


def planes() -> Iterator[Case]:
    """Softmax over another axis than the last, MaxPool, scale and shift with activations."""
    for shape, axis in (
        *(((1, 16, 4, 2100), 1), ((1, 21, 64, 64), 1), ((1, 21, 256, 256), 1), ((1, 80, 20, 20), 1), ((4, 512, 64), 1)),
        *(((2, 8, 128, 128), 2), ((2, 12, 197, 197), 2), ((1, 16, 16), 1), ((1, 1000, 4), 1)),
    ):
        graph = f"g ({tensor(*shape)} x) => ({tensor(*shape)} y) {{ y = Softmax <axis = {axis}> (x) }}"
        yield Case(f"Softmax over axis {axis}, {'x'.join(map(str, shape))}", graph)
    for C, H, k, s, pad in ((64, 224, 2, 2, 0), (256, 26, 2, 2, 0), (64, 112, 3, 2, 1), (512, 13, 5, 1, 2)):
        size = (H + 2 * pad - k) // s + 1
        window = f"kernel_shape = {[k, k]}, strides = {[s, s]}, pads = {[pad] * 4}"
        graph = f"g ({tensor(1, C, H, H)} x) => ({tensor(1, C, size, size)} y) {{ y = MaxPool <{window}> (x) }}"
        yield Case(f"MaxPool {k}x{k}, stride {s}, {C}x{H}x{H}", graph)
    x = tensor(8, 64, 128, 128)
    for name in ("", "Relu", "LeakyRelu", "Silu", "HardSwish", "Sigmoid"):
        body = f"m = Mul (x, scale) t = Add (m, shift) {act(name, 't', 'y')}"
        graph = f"g ({x} x) => ({x} y) {{ {body} }}"
        yield Case(f"ScaleShift {name}, 8x64x128x128", graph, {"scale": normal(64, 1, 1), "shift": normal(64, 1, 1)})


def index_add() -> Iterator[Case]:
    """Sums of the messages of a graph network, as PyTorch exports scatter_add: nodes, edges, columns."""
    for N, E, F in (
        *((4, 8, 4), (16, 64, 1), (16, 64, 8), (16, 64, 64), (16, 64, 288), (100, 512, 1), (100, 512, 64)),
        *((600, 5120, 1), (600, 5120, 8), (600, 5120, 64), (600, 5120, 288)),
    ):
        graph = f"""g ({tensor(N, F)} d, int64[{E}] i, {tensor(E, F)} x) => ({tensor(N, F)} y) {{
            c = Unsqueeze (i, one) s = Shape (x) e = Expand (c, s)
            {SCATTER.format("d", "y0")} {" ".join(SCATTER.format(f"y{k}", f"y{k + 1}") for k in range(7))}
            y = Identity (y7) }}"""
        feeds = {"i": rng.integers(0, N, E)}
        yield Case(f"{E} of {N} x {F}", graph, {"one": np.array([1])}, feeds, parts=8)
    d, x = tensor(8, 64, 100), tensor(8, 64, 1000)
    graph = f"""g ({d} d, int64[1000] i, {x} x) => ({d} y) {{
        s = Shape (x) e = Expand (i, s) y = ScatterElements <axis = 2, reduction = "add"> (d, e, x) }}"""
    yield Case("1000 of 100 along the last axis, 8x64", graph, feeds={"i": rng.integers(0, 100, 1000)})
    graph = f"""g ({tensor(600, 64)} d, int64[5120] i, {tensor(5120, 64)} x) => ({tensor(600, 64)} y) {{
        c = Unsqueeze (i, one) y = ScatterND <reduction = "add"> (d, c, x) }}"""
    yield Case("ScatterND, 5120 of 600 x 64", graph, {"one": np.array([1])}, {"i": rng.integers(0, 600, 5120)})


def contrib() -> Iterator[Case]:
    """Nodes of com.microsoft and their definitions, with the sizes of BERT-base, GPT-2 and ResNet-50."""
    x, D = tensor(1, 128, 768), 768
    norm = {"g": normal(D), "b": normal(D)}
    step = {"s": np.float32(0.05), "z": np.uint8(120), "t": np.float32(0.06), "o": np.uint8(128)}
    small = {"u": np.float32(0.02), "v": np.int8(0), "c": rng.integers(-900, 900, D).astype(np.int32)}
    b = {"b": rng.integers(-64, 64, (D, D)).astype(np.int8)}
    image = "uint8[1, 64, 56, 56]"
    qkv = f"{x} q, {x} k, {x} v"
    rows: list[tuple[str, str, dict[str, Any]]] = [
        (f"{x} x, {x} r", f"{x} y = SkipLayerNormalization (x, r, g, b)", norm),
        (f"{x} x, {x} r", f"{x} y = SkipSimplifiedLayerNormalization (x, r, g)", {"g": norm["g"]}),
        *((f"{x} x", f"{x} y = {name} (x)", {}) for name in ("Gelu", "FastGelu", "QuickGelu")),
        (f"{x} x", f"{x} y = BiasGelu (x, b)", {"b": norm["b"]}),
        (qkv, f"{x} y = MultiHeadAttention <num_heads = 12> (q, k, v)", {}),
        (
            f"{x} x", f"{x} y = Attention <num_heads = 12> (x, w, c)",
            {"w": normal(D, 3 * D, over=D), "c": normal(3 * D)},
        ),
        (f"{x} x", f"{tensor(1, 128, 3072)} y = FusedMatMul <transB = 1> (x, w)", {"w": normal(3072, D, over=D)}),
        (
            f"{tensor(1, 64, 56, 56)} x",
            f'{tensor(1, 64, 56, 56)} y = FusedConv <pads = [1, 1, 1, 1], activation = "Relu"> (x, w, c)',
            {"w": normal(64, 64, 3, 3, over=576), "c": normal(64)},
        ),
        (
            f"{x} x, int64[1, 128] p", f"{x} y = RotaryEmbedding <num_heads = 12> (x, p, c, s)",
            {"c": normal(1024, 32), "s": normal(1024, 32)},
        ),
        (f"{image} a, {image} b", f"{image} y = QLinearAdd (a, s, z, b, s, z, t, o)", step),
        (f"{image} a", f"{image} y = QLinearSigmoid (a, s, z, t, o)", step),
        (f"{image} a", "uint8[1, 64, 1, 1] y = QLinearGlobalAveragePool (a, s, z, t, o)", step),
        (
            image + " a", f"{image} y = QLinearConv <pads = [1, 1, 1, 1]> (a, s, z, w, u, v, t, o)",
            {**step, "u": small["u"], "v": small["v"], "w": rng.integers(-64, 64, (64, 64, 3, 3)).astype(np.int8)},
        ),
    ]  # fmt: skip
    for n in (1, 16, 128):
        y = tensor(n, D)
        rows += [
            (f"{y} x", f"{y} y = DynamicQuantizeMatMul (x, b, u, v)", {**b, "u": small["u"], "v": small["v"]}),
            (
                f"uint8[{n}, {D}] x", f"{y} y = MatMulIntegerToFloat (x, b, s, u, z, v)",
                {**b, "s": step["s"], "z": step["z"], "u": small["u"], "v": small["v"]},
            ),
            (f"uint8[{n}, {D}] x", f"uint8[{n}, {D}] y = QGemm (x, s, z, b, u, v, c, t, o)", {**step, **small, **b}),
            (
                f"{tensor(n, 2048)} x",
                f"{tensor(n, 2048)} y = MatMulNBits <K = 2048, N = 2048, bits = 4, block_size = 32> (x, w, k)",
                {"w": rng.integers(0, 255, (2048, 64, 16)).astype(np.uint8), "k": normal(2048, 64, over=2048)},
            ),
            (
                f"int64[{n}] x",
                f"{tensor(n, 2048)} y = GatherBlockQuantized <block_size = 32> (w, x, k)",
                {"w": rng.integers(0, 255, (4096, 1024)).astype(np.uint8), "k": normal(4096, 64, over=2048)},
            ),
        ]  # fmt: skip
    for given, node, weights in rows:
        kind, call = node.split(" y = ")
        used = {name: np.asarray(w) for name, w in weights.items()}
        graph = f"g ({given}) => ({kind} y) {{ y = com.microsoft.{call} }}"
        sizes = given.partition("]")[0].partition("[")[2]
        options: dict[str, Any] = {"contrib": True, "opset": 21 if "NBits" in call or "BlockQ" in call else 17}
        yield Case(f"{call.split()[0]} [{sizes}]", graph, used, **options)


# -- 8-bit integers ----------------------------------------------------------------------------------------------------


def quantized_conv() -> Iterator[Case]:
    """Quantized convolutions (QDQ, uint8, int8 weights) before a global average: channels of X and Y, size, window."""
    for C, M, H, k, stride, group in (
        *((3, 64, 224, 7, 2, 1), (3, 32, 224, 3, 2, 1), (3, 16, 416, 3, 1, 1), (16, 32, 208, 3, 1, 1)),
        *((64, 64, 56, 3, 1, 1), (256, 256, 14, 3, 1, 1), (64, 256, 56, 1, 1, 1), (1024, 256, 14, 1, 1, 1)),
        *((96, 96, 112, 3, 2, 96), (144, 144, 56, 3, 1, 144), (384, 384, 14, 3, 1, 384), (120, 120, 28, 5, 1, 120)),
    ):
        name = f"{C} to {M}, {H}x{H}, {k}x{k}, stride {stride}, {group} groups"
        x_scale, w_scale = np.float32(0.02), rng.uniform(0.005, 0.01, M).astype(np.float32)
        weights = {
            "s": x_scale,
            "z": np.uint8(120),
            "ws": w_scale,
            "wz": np.zeros(M, np.int8),
            "bs": x_scale * w_scale,
            "t": np.float32(0.02 * (C // group * k * k) ** 0.5),
            "w": rng.integers(-127, 128, (M, C // group, k, k)).astype(np.int8),
            "b": rng.integers(-900, 900, M).astype(np.int32),
        }
        graph = f"""g (uint8[1, {C}, {H}, {H}] x) => (uint8[1, {M}, 1, 1] y) {{
            d = DequantizeLinear (x, s, z) v = DequantizeLinear <axis = 0> (w, ws, wz)
            a = DequantizeLinear <axis = 0> (b, bs)
            c = Conv <pads = {[k // 2] * 4}, strides = {[stride] * 2}, group = {group}> (d, v, a)
            q = QuantizeLinear (c, t, z) e = DequantizeLinear (q, t, z)
            p = GlobalAveragePool (e) y = QuantizeLinear (p, t, z) }}"""
        yield Case(name, graph, weights)


CONVOLUTIONS = (winograd, fused_conv, inverted_residual, conv_transpose)
GROUPS: dict[str, Callable[[], Iterator[Case]]] = {
    group.__name__: group
    for group in (*CONVOLUTIONS, linear, matmul, attention, norms, planes, index_add, contrib, quantized_conv)
}
