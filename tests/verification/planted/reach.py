"""Faults that are visible only for certain sizes, iterations or rows, with inputs that make each fault visible.

The position and the condition of a fault are drawn from a seed made of the site number and the graph name,
independently of `verify`. The effect is measured on inputs made for the fault (`sets`), since the general inputs do not
show most of these faults.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from models.layers import Net
from tests.rewriting import Array
from tests.verification.planted.registry import Edit, Facts, Patch, Sites, attribute, integer, kind, tap, where
from tests.verification.planted.subjects import Subject, inputs

# The number of sites drawn for each kind and model, and the factor by which such a fault changes a value.
DRAWN, OFF = 6, 1.05
# The largest sizes that a fault may need; larger sizes take too long in some models.
LARGEST = {"batch": 64, "length": 500, "image": 256, "past": 1000}
TURNS = 40


def _symbols(model: onnx.ModelProto) -> dict[str, str]:
    """Returns the role of each symbolic input dimension; empty with an unknown symbol, which may depend on others."""
    constants = {t.name for t in model.graph.initializer}
    found: dict[str, str] = {}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        for axis, dim in enumerate(dims) if value.name not in constants else ():
            if dim.dim_param:
                image = len(dims) == 4 and axis > 1 and dim.dim_param in ("height", "width")
                role = "past" if dim.dim_param == "past" else "image" if image else "length"
                found.setdefault(dim.dim_param, "batch" if dim.dim_param == "batch" else role)
    known = {"batch", "sequence", "past", "height", "width"}
    return found if found.keys() <= known else {}


def _size(patch: Patch, model: onnx.ModelProto, symbol: str) -> str:
    """The size of a symbolic dimension as an int64 scalar."""
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_param == symbol:
                return patch.op("Gather", patch.op("Shape", value.name), integer(patch, axis))
    raise KeyError(symbol)


def _drawn_size(rng: np.random.Generator, role: str) -> int:
    if role == "image":
        return 32 * int(rng.integers(1, LARGEST["image"] // 32 + 1))
    return int(np.rint(np.exp(rng.uniform(0, math.log(LARGEST[role])))))


def _when(rng: np.random.Generator, sizes: Mapping[str, int]) -> tuple[str, Callable[[Patch, onnx.ModelProto], str]]:
    """A condition that the sizes satisfy, as text and as a function that adds its nodes."""
    names = list(sizes)

    def above(name: str) -> tuple[str, Callable[[Patch, onnx.ModelProto], str]]:
        least = int(rng.integers(sizes[name] // 2, sizes[name])) if sizes[name] > 1 else 0
        return f"{name} > {least}", lambda p, m: p.op("Greater", _size(p, m, name), integer(p, least))

    def below(name: str) -> tuple[str, Callable[[Patch, onnx.ModelProto], str]]:
        most = sizes[name] + int(rng.integers(1, sizes[name] + 2))
        return f"{name} < {most}", lambda p, m: p.op("Less", _size(p, m, name), integer(p, most))

    def rest(name: str) -> tuple[str, Callable[[Patch, onnx.ModelProto], str]]:
        by = int(rng.choice([2, 4, 8]))
        left = sizes[name] % by

        def nodes(p: Patch, m: onnx.ModelProto) -> str:
            size = p.op("Mod", _size(p, m, name), integer(p, by))
            return p.op("Not", p.op("Equal", size, integer(p, 0))) if left else p.op("Equal", size, integer(p, 0))

        return f"{name} is {'no ' if left else 'a '}multiple of {by}", nodes

    def product() -> tuple[str, Callable[[Patch, onnx.ModelProto], str]]:
        a, b = rng.choice(names, 2, replace=False)
        least = int(rng.integers(sizes[a] * sizes[b] // 2, sizes[a] * sizes[b]))

        def nodes(p: Patch, m: onnx.ModelProto) -> str:
            return p.op("Greater", p.op("Mul", _size(p, m, a), _size(p, m, b)), integer(p, least))

        return f"{a} * {b} > {least}", nodes

    first = rng.choice(names)
    forms = [lambda: above(first), lambda: below(first)]
    both: list[Callable[[], tuple[str, Callable[[Patch, onnx.ModelProto], str]]]] = []
    if len(names) > 1:
        second = rng.choice([n for n in names if n != first])
        both = [lambda: rest(first), lambda: above(second), lambda: below(second)]
        forms.append(product)
    words, nodes = forms[int(rng.integers(len(forms)))]()
    if both and rng.random() < 0.5:
        more, others = both[int(rng.integers(len(both)))]()
        return f"{words} and {more}", lambda p, m: p.op("And", nodes(p, m), others(p, m))
    return words, nodes


def _off_where(patch: Patch, x: str, condition: str, dtype: np.dtype[np.generic]) -> str:
    """X, multiplied by 1.05 where a condition holds."""
    factors = (patch.const(f, dtype) for f in (OFF, 1.0))
    return patch.op("Mul", x, patch.op("Where", condition, *factors))


def _sites(facts: Facts, name: str, draw: Callable[[np.random.Generator], dict[str, int]]) -> Sites:
    values = list(dict.fromkeys([*facts.values(2), *facts.values(3), *facts.values(4)]))
    model = facts.model
    if not values or not _symbols(model) or "Loop" in {n.op_type for n in facts.nodes}:
        return
    for number in range(DRAWN):
        rng = np.random.default_rng([zlib.crc32(f"{name}|{model.graph.name}".encode()), number])
        sizes = draw(rng)
        if not sizes:
            return
        value = str(rng.choice(values))
        words, nodes = _when(rng, sizes)

        def edit(patch: Patch, value: str = value, nodes: Callable[[Patch, onnx.ModelProto], str] = nodes) -> None:
            patch.tap(value, lambda x: _off_where(patch, x, nodes(patch, model), facts.dtype(value)))

        yield f"{value} where {words} {json.dumps(sizes)}", edit


@kind("size: 5 % off on some sizes")
def _(facts: Facts) -> Sites:
    roles = _symbols(facts.model)
    return _sites(facts, "size", lambda rng: {s: _drawn_size(rng, role) for s, role in roles.items()})


@kind("size: 5 % off on a decoder's step")
def _(facts: Facts) -> Sites:
    """Affects steps of one new token after a cache of a drawn length."""
    roles = _symbols(facts.model)

    def draw(rng: np.random.Generator) -> dict[str, int]:
        sizes = {s: _drawn_size(rng, role) for s, role in roles.items()}
        return {**sizes, "sequence": 1} if {"past", "sequence"} <= roles.keys() else {}

    return _sites(facts, "step", draw)


@kind("turns: 5 % off in late ones")
def _(facts: Facts) -> Sites:
    """Changes the first state of a Loop from a random iteration on."""
    for node in facts.nodes:
        if node.op_type != "Loop" or not node.input[0]:
            continue
        for number in range(DRAWN):
            rng = np.random.default_rng([zlib.crc32(facts.model.graph.name.encode()), number])
            yield f"{where(node)} from turn {(turn := int(rng.integers(4, TURNS - 2)))}", _late(node, turn)


def _late(node: onnx.NodeProto, turn: int) -> Edit:
    def edit(patch: Patch) -> None:
        body = next(a.g for a in patch.node(node).attribute if a.name == "body")
        state = body.output[1].name
        maker = next(n for n in body.node if state in n.output)
        maker.output[:] = [f"planted/{state}" if o == state else o for o in maker.output]
        late, off, one = (patch.const(v, t) for v, t in ((turn, np.int64), (OFF, np.float32), (1.0, np.float32)))
        body.node.extend(
            [
                helper.make_node("Greater", [body.input[0].name, late], ["planted/late"]),
                helper.make_node("Where", ["planted/late", off, one], ["planted/factor"]),
                helper.make_node("Mul", [f"planted/{state}", "planted/factor"], [state]),
            ]
        )

    return edit


def _rows(facts: Facts, condition: Callable[[Patch, str], str]) -> Sites:
    """Multiplies rows of float inputs by 1.05 if they satisfy a condition."""
    for name in facts.inputs:
        if facts.elem_type(name) == TensorProto.FLOAT and (facts.rank(name) or 0) >= 2 and "mask" not in name:
            yield name, tap(name, lambda patch, x: _off_where(patch, x, condition(patch, x), np.dtype(np.float32)))


def _over_rows(patch: Patch, op: str, x: str) -> str:
    return patch.op(op, x, axes=[-1], keepdims=1)


@kind("rows: 5 % off where all values are equal")
def _(facts: Facts) -> Sites:
    return _rows(facts, lambda p, x: p.op("Equal", _over_rows(p, "ReduceMax", x), _over_rows(p, "ReduceMin", x)))


@kind("rows: 5 % off where one value is 1 and the others are 0")
def _(facts: Facts) -> Sites:
    def condition(patch: Patch, x: str) -> str:
        one = patch.const(1.0, np.float32)
        largest = patch.op("Equal", _over_rows(patch, "ReduceMax", x), one)
        return patch.op("And", largest, patch.op("Equal", _over_rows(patch, "ReduceL1", x), one))

    return _rows(facts, condition)


@kind("mask: zero where no key is seen")
def _(facts: Facts) -> Sites:
    """Changes the probabilities after each Softmax for sequences that a mask [B, S] hides completely."""
    for name in facts.hints.masks:
        for node in facts.nodes:
            if node.op_type == "Softmax" and facts.rank(node.output[0]) == 4 and facts.rank(name) == 2:

                def change(patch: Patch, x: str, name: str = name) -> str:
                    seen = patch.op("Cast", name, to=TensorProto.FLOAT)
                    seen = patch.op("ReduceMax", seen, axes=[-1], keepdims=0)
                    shaped = patch.op("Reshape", seen, integer(patch, [-1, 1, 1, 1]))
                    return patch.op("Mul", x, shaped)

                yield where(node), tap(node.output[0], change)


# -- integers, ties and trees ----------------------------------------------------------------------------------------


def _narrowed(facts: Facts, through: int) -> Sites:
    for name in facts.inputs:
        to = facts.elem_type(name)
        if name.startswith("wide"):
            yield name, tap(name, lambda patch, x, to=to: patch.op("Cast", patch.op("Cast", x, to=through), to=to))


for _words, _type in (
    ("integers: through int32", TensorProto.INT32),
    ("integers: through uint32", TensorProto.UINT32),
    ("integers: through float", TensorProto.FLOAT),
    ("integers: through double", TensorProto.DOUBLE),
    ("integers: through int16", TensorProto.INT16),
):

    @kind(_words)
    def _(facts: Facts, through: int = _type) -> Sites:
        return _narrowed(facts, through)


@kind("ties: half away from zero")
def _(facts: Facts) -> Sites:
    for node in facts.nodes:
        if node.op_type == "Round":

            def edit(patch: Patch, node: onnx.NodeProto = node) -> None:
                x = node.input[0]
                patch.tap(node.output[0], lambda _: _away_from_zero(patch, x))

            yield where(node), edit


def _away_from_zero(patch: Patch, x: str) -> str:
    up = patch.op("Floor", patch.op("Add", patch.op("Abs", x), patch.const(0.5, np.float32)))
    return patch.op("Mul", up, patch.op("Sign", x))


@kind("ties: an integer is rounded up to the next")
def _(facts: Facts) -> Sites:
    for node in facts.nodes:
        if node.op_type == "Ceil":

            def edit(patch: Patch, node: onnx.NodeProto = node) -> None:
                one = patch.const(1.0, np.float32)
                patch.tap(node.output[0], lambda _: patch.op("Add", patch.op("Floor", node.input[0]), one))

            yield where(node), edit


def _tree_nodes(facts: Facts) -> Iterator[tuple[onnx.NodeProto, int]]:
    """Tree ensembles, each with a random selection of its decision nodes."""
    for node in facts.nodes:
        if node.op_type.startswith("TreeEnsemble"):
            inner = [i for i, mode in enumerate(attribute(node, "nodes_modes")) if mode != b"LEAF"]
            rng = np.random.default_rng(zlib.crc32(facts.model.graph.name.encode()))
            for place in rng.choice(inner, min(DRAWN, len(inner)), replace=False).tolist():
                yield node, place


def _tree_edit(node: onnx.NodeProto, name: str, place: int, value: object) -> Edit:
    values = list(attribute(node, name))
    values[place] = value
    return lambda patch: patch.attribute(node, **{name: values})


@kind("tree: a comparison without equality")
def _(facts: Facts) -> Sites:
    for node, place in _tree_nodes(facts):
        yield f"{where(node)} {place}", _tree_edit(node, "nodes_modes", place, b"BRANCH_LT")


@kind("tree: a threshold off by a thousandth")
def _(facts: Facts) -> Sites:
    for node, place in _tree_nodes(facts):
        threshold = attribute(node, "nodes_values")[place]
        yield f"{where(node)} {place}", _tree_edit(node, "nodes_values", place, threshold * 1.001)


@kind("tree: another feature")
def _(facts: Facts) -> Sites:
    for node, place in _tree_nodes(facts):
        features = attribute(node, "nodes_featureids")
        yield f"{where(node)} {place}", _tree_edit(node, "nodes_featureids", place, (features[place] + 1) % 4)


# -- inputs that show these faults -----------------------------------------------------------------------------------


def sets(subject: Subject, model: onnx.ModelProto, fault: str, site: str) -> list[dict[str, Array]]:
    """Returns inputs that show a fault of this module; none for other faults and models with fixed inputs."""
    if fault.startswith("size:"):
        sizes = json.loads(site[site.rindex("{") :])
        return inputs(replace(subject, sizes=[sizes, sizes]), model) if subject.feeds is None else []
    if subject.feeds is not None:
        return []
    made = inputs(subject, model)
    if fault.startswith("turns:"):
        for feeds in made:
            feeds.update({n: np.array(TURNS, a.dtype) for n, a in feeds.items() if n in ("turns", "most")})
        return made
    if fault.startswith("rows:"):
        return [{n: _special(a, one_hot="1" in fault) for n, a in feeds.items()} for feeds in made]
    if fault.startswith(("mask: zero where no key", "bound of a mask: 1e9")):
        for feeds in made:
            for name in subject.hints.masks:
                feeds[name][-1] = 0
        return made
    return []


def _special(array: Array, *, one_hot: bool) -> Array:
    """Changes every other row of a float input to a constant row or a one-hot row."""
    if array.dtype != np.float32 or array.ndim < 2:
        return array
    rows = array.reshape(-1, array.shape[-1]).copy()
    rows[::2] = np.eye(1, array.shape[-1]) if one_hot else rows[::2, :1]
    return np.asarray(rows.reshape(array.shape))


# -- models ----------------------------------------------------------------------------------------------------------


def _trees(seed: int, depth: int, trees: int) -> onnx.ModelProto:
    """An ensemble of complete trees of the given depth over 4 columns, with random thresholds."""
    rng = np.random.default_rng(seed)
    rows: dict[str, Any] = {
        f"nodes_{n}": [] for n in "treeids nodeids featureids values modes truenodeids falsenodeids".split()
    }
    leaves: dict[str, Any] = {f"target_{n}": [] for n in "treeids nodeids ids weights".split()}
    inner, count = (1 << depth) - 1, (1 << (depth + 1)) - 1
    for tree in range(trees):
        for place in range(count):
            leaf = place >= inner
            threshold = 0.0 if leaf else float(np.round(rng.standard_normal(), 2))
            feature = 0 if leaf else int(rng.integers(4))
            mode = "LEAF" if leaf else "BRANCH_LEQ"
            below = (0, 0) if leaf else (2 * place + 1, 2 * place + 2)
            for name, value in zip(rows, (tree, place, feature, threshold, mode, *below)):
                rows[name].append(value)
            if leaf:
                for name, value in zip(leaves, (tree, place, 0, float(rng.standard_normal()))):
                    leaves[name].append(value)
    node = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], "trees", domain="ai.onnx.ml", n_targets=1, **rows, **leaves
    )
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", w]) for n, w in (("x", 4), ("y", 1)))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph([node], f"trees_{seed}", [x], [y])
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _tree_feeds(seed: int, depth: int, trees: int) -> list[dict[str, Array]]:
    """Rows of thresholds, of values next to thresholds, and of random values."""
    model = _trees(seed, depth, trees)
    rng = np.random.default_rng(seed + 1)
    thresholds = np.array(attribute(model.graph.node[0], "nodes_values"), np.float32)
    exact = rng.choice(thresholds, (20000, 4))
    return [{"x": exact}, {"x": exact * np.float32(1.0005)}, {"x": rng.standard_normal((5000, 4)).astype(np.float32)}]


WIDE = {
    "timestamps": "g (int64[batch] wide) => (int64[batch] y) { y = Div(wide, a) }",
    "weekdays": "g (int64[batch] wide) => (float[batch, 4] y) { d = Div(wide, a) m = Mod(d, b) y = Gather(table, m) }",
    "hashes": "g (int64[batch, 3] wide) => (float[batch, 3, 4] y) { m = Mod(wide, b) y = Gather(table, m) }",
    "counters": "g (int32[batch, 8] wide) => (int64[batch] y) "
    "{ c = Cast <to: int = 7> (wide) y = ReduceSum <keepdims: int = 0> (c, one) }",
    "unsigned": "g (uint32[batch] wide) => (int64[batch] y) { y = Cast <to: int = 7> (wide) }",
    "bits": 'g (uint64[batch] wide) => (uint64[batch] y) { y = BitShift <direction: string = "RIGHT"> (wide, s) }',
}
ROUNDING = {
    "rounded": "g (float[batch, 8] x) => (float[batch, 8] y) { y = Round(x) }",
    "rounded_quarters": "g (float[batch, 8] x) => (float[batch, 8] y) { d = Mul(x, q) r = Round(d) y = Mul(r, q) }",
    "ceiled": "g (float[batch, 8] x) => (float[batch, 8] y) { y = Ceil(x) }",
}
# (kernel, stride) of each convolution, from Baevski et al., 2020.
SPEECH_CONVOLUTIONS = ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2))
SAMPLES = tuple({"batch": b, "samples": n} for b, n in ((1, 400), (2, 2000), (1, 5003), (3, 3333)))
CONSTANTS = {
    "a": np.array(86400),
    "b": np.array(7),
    "table": np.random.default_rng(0).standard_normal((7, 4)).astype(np.float32),
    "one": np.array([1]),
    "s": np.array(3, np.uint64),
    "q": np.float32(0.25),
}


def _speech() -> onnx.ModelProto:
    """Samples [B, N] -> frames [B, F, 32]: convolutions as in Wav2Vec2, which need 400 samples, and two layers."""
    net = Net("speech", batch=1, dynamic=True, seed=0)
    d, heads = 32, 4
    x = net.op("Unsqueeze", net.input("waves", (net.batch, "samples"), features=1), net.ints(1))
    x = net.set_features(x, 1)
    for kernel, stride in SPEECH_CONVOLUTIONS:
        weights = net.const(net.normal((d, net.features(x), kernel), (2 / (net.features(x) * kernel)) ** 0.5))
        x = net.op("Conv", x, weights, kernel_shape=[kernel], strides=[stride])
        x = net.gelu(net.set_features(x, d))
    x = net.layer_norm(net.set_features(net.op("Transpose", x, perm=[0, 2, 1]), d))
    for _ in range(2):
        q, k, v = (net.linear(x, d, gain=2.0) for _ in range(3))
        y = net.attention(q, k, v, heads, scale="mul")
        x = net.layer_norm(net.set_features(net.op("Add", net.linear(y, d), x), d))
        y = net.linear(net.gelu(net.linear(x, 2 * d)), d)
        x = net.layer_norm(net.set_features(net.op("Add", y, x), d))
    net.output(x, "hidden", (net.batch, "frames", d))
    return net.model()


def _of_text(name: str, text: str) -> Callable[[], onnx.ModelProto]:
    def build() -> onnx.ModelProto:
        model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
        model.graph.name = name
        read = {i for node in model.graph.node for i in node.input}
        model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in CONSTANTS.items() if n in read)
        return model

    return build


def _wide_feeds(build: Callable[[], onnx.ModelProto]) -> Callable[[], list[dict[str, Array]]]:
    """Values of every magnitude that the input type can hold."""

    def feeds() -> list[dict[str, Array]]:
        value = build().graph.input[0].type.tensor_type
        dtype = helper.tensor_dtype_to_np_dtype(value.elem_type)
        limits = np.iinfo(dtype)
        rng = np.random.default_rng(5)
        shape = (200, *(d.dim_value for d in value.shape.dim[1:]))
        signs = rng.choice([1] if limits.min == 0 else [-1, 1], shape)
        sizes = np.exp(rng.uniform(0, math.log(float(limits.max)) - 0.01, shape))
        return [{"wide": (signs * sizes).astype(dtype)}]

    return feeds


def _tie_feeds() -> list[dict[str, Array]]:
    rng = np.random.default_rng(6)
    return [{"x": (rng.integers(-40, 40, (30, 8)) / by).astype(np.float32)} for by in (1, 2, 0.5)]


def subjects() -> list[Subject]:
    """Returns models with wide integers, speech, rounding and tree ensembles."""
    models = {f"trees_{depth}": (seed, depth, trees) for seed, depth, trees in ((21, 3, 4), (22, 5, 8), (23, 6, 20))}
    return [
        *(
            Subject(n, b, feeds=_wide_feeds(b), half=False, exact=True)
            for n, t in WIDE.items()
            for b in [_of_text(n, t)]
        ),
        Subject("speech", _speech, SAMPLES),
        *(Subject(n, _of_text(n, t), feeds=_tie_feeds, half=False, exact=True) for n, t in ROUNDING.items()),
        *(
            Subject(n, partial(_trees, *t), feeds=partial(_tree_feeds, *t), half=False, exact=True)
            for n, t in models.items()
        ),
    ]
