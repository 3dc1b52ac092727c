"""Claims about dimensions and small tensors hold in every run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import graphopt
from graphopt import pipeline
from graphopt.graph import inference
from graphopt.graph.editor import Editor
from graphopt.graph.reading import load
from graphopt.graph.shapes.engine import Shapes
from graphopt.graph.shapes.facts import Rule
from graphopt.graph.shapes.sizes import Size, product
from graphopt.graph.view import GraphView
from graphopt.passes.clean_up import CleanUp
from graphopt.passes.clean_up.constants import ConstantFolding
from graphopt.passes.fuse_attention import FuseAttention
from graphopt.targets.target import Target
from models.scale import SHAPES, tensorflow_blocks, transformer_blocks
from tests.fuzz.generator import generate
from tests.rewriting import Array, model_from_text, run

TEXT = """g (float[B, S, 24] x, float[T, 24] z, float[U, 1, 4] w) => (float[N] y) {
  shape = Shape(x)
  b = Shape <start = 0, end = 1> (x)
  s = Gather(shape, one)
  su = Unsqueeze(s, zero_1d)
  split = Concat <axis = 0> (b, su, minus, eight)
  heads = Reshape(x, split)
  turned = Transpose <perm = [0, 2, 1, 3]> (heads)
  folded = Reshape(turned, fold)
  both = Mul(su, b)
  flat_shape = Concat <axis = 0> (both, c24)
  flat = Reshape(x, flat_shape)
  again = Reshape(flat, split)
  kept = Reshape(x, keep)
  size = Slice(shape, two, three)
  size_f = Cast <to = 1> (size)
  root = Sqrt(size_f)
  scale = Div(one_f, root)
  product = MatMul(x, zt)
  zt = Transpose <perm = [1, 0]> (z)
  joined = Concat <axis = 1> (x, x)
  narrow = Unsqueeze(turned, two)
  wide_shape = Concat <axis = 0> (b, minus_one3, minus, minus)
  asked = Equal(wide_shape, minus)
  shape5 = Shape(wide_shape)
  ones = ConstantOfShape <value = int64[1] {1}> (shape5)
  chosen = Where(asked, ones, wide_shape)
  wide = Expand(narrow, chosen)
  merged = Reshape(wide, merge)
  tiled = Tile(w, times)
  sum = Add(tiled, w)
  half = Div(both, su)
  back = Squeeze(half, zero_1d)
  rows = Gather(z, picks)
  y = Flatten(x)
}"""
CONSTANTS: dict[str, Array] = {
    "one": np.asarray(1), "zero_1d": np.asarray([0]), "minus": np.asarray([-1]), "eight": np.asarray([8]),
    "fold": np.asarray([-1, 3, 8]), "c24": np.asarray([24]), "keep": np.asarray([0, -1, 12]), "two": np.asarray([2]),
    "three": np.asarray([3]), "one_f": np.asarray([1.0], np.float32), "minus_one3": np.asarray([3, 4]),
    "merge": np.asarray([0, 12, -1, 8]), "times": np.asarray([1, 5, 2]), "picks": np.asarray([[0, 1], [1, 0]]),
}  # fmt: skip


def values(B: int, S: int, T: int, U: int) -> dict[str, Array]:
    shapes = {"x": (B, S, 24), "z": (T, 24), "w": (U, 1, 4)}
    return {n: np.random.default_rng(1).standard_normal(d).astype(np.float32) for n, d in shapes.items()}


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    text = TEXT.replace("float[N] y", "float[B, N] y").replace("  product = MatMul(x, zt)\n", "")
    text = text.replace("  joined", "  product = MatMul(x, zt)\n  joined").replace("tiled, w)", "tiled, tiled)")
    return model_from_text(text, CONSTANTS)


def claims(model: onnx.ModelProto) -> GraphView:
    work = load(model).model
    inference.infer(work)
    return GraphView(work, Target("cpu"))


@pytest.mark.parametrize("sizes", [(2, 5, 3, 4), (1, 1, 2, 1), (3, 2, 7, 2)])
def test_inferred_shapes_equal_those_of_runs(model: onnx.ModelProto, sizes: tuple[int, int, int, int]) -> None:
    view = claims(model)
    shapes = view.shapes
    every = onnx.ModelProto()
    every.CopyFrom(model)
    del every.graph.output[:]
    every.graph.output.extend(onnx.ValueInfoProto(name=o) for n in model.graph.node for o in n.output)
    results = dict(zip((o.name for o in every.graph.output), run(every, values(*sizes)), strict=True))
    found: dict[str, int] = dict(zip("BSTU", sizes))
    for node in view.model.graph:
        value = node.outputs[0]
        assert value.name is not None
        real = results[value.name]
        dims = shapes.dims(value)
        if dims is not None:
            assert len(dims) == real.ndim, value.name
            for size, n in zip(dims, real.shape):
                assert_size(size, n, found)
        elements = shapes.elements(value)
        if elements is not None:
            assert elements.items.shape == real.shape
            for element, n in zip(elements.items.flat, real.reshape(-1), strict=True):
                if isinstance(element, Size):
                    assert_size(element, int(n), found)
                elif element is not None:
                    assert element == pytest.approx(float(n), rel=1e-6)


def assert_size(size: Size, real: int, found: Mapping[str, int]) -> None:
    """Asserts that a size over known symbols has its value in a run; other sizes can only equal themselves."""
    if all(symbol in found for symbols, _ in size.terms for symbol in symbols):
        assert sum(c * np.prod([found[s] for s in p], initial=1) for p, c in size.terms) == real


def test_shapes_of_exported_chains(model: onnx.ModelProto) -> None:
    """Results are not only right but also complete: exporters' chains become products of the inputs' symbols."""
    view = claims(model)
    shapes = view.shapes
    value = {n.outputs[0].name: n.outputs[0] for n in view.model.graph}
    B, S = Size.symbol("B"), Size.symbol("S")

    def n(i: int) -> Size:
        return Size.of(i)

    assert shapes.dims(value["heads"]) == (B, S, n(3), n(8))
    assert shapes.dims(value["turned"]) == (B, n(3), S, n(8))
    assert shapes.dims(value["folded"]) == (B * S, n(3), n(8))
    assert shapes.dims(value["again"]) == (B, S, n(3), n(8))
    assert shapes.dims(value["kept"]) == (B, n(2) * S, n(12))
    assert shapes.dims(value["product"]) == (B, S, Size.symbol("T"))
    assert shapes.dims(value["wide"]) == (B, n(3), n(4), S, n(8))
    assert shapes.dims(value["merged"]) == (B, n(12), S, n(8))
    assert shapes.dims(value["tiled"]) == (Size.symbol("U"), n(5), n(8))
    assert shapes.number(value["scale"]) == pytest.approx(24**-0.5)
    back = shapes.elements(value["back"])
    assert back is not None and back.items.shape == () and back.items.item() == B


def dims_of(model: onnx.ModelProto) -> dict[str, tuple[Size, ...] | None]:
    view = claims(model)
    shapes = view.shapes
    return {str(o.name): shapes.dims(o) for n in view.model.graph for o in n.outputs}


def test_negative_dimensions_are_unknown() -> None:
    """Several exporters write -1 for any size: it is not a number, and no two are equal."""
    model = model_from_text(
        """g (float[8, 4] x, float[8, 4] z) => (float[M, 4] y, int64[1] n) {
          a = Relu(x)  b = Relu(z)  y = Add(a, b)  s = Shape <start = 0, end = 1> (x)  n = Mul(s, ten) }""",
        {"ten": np.asarray([10])},
    )
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = -1
    view = claims(model)
    shapes = view.shapes
    value = {o.name: o for n in view.model.graph for o in n.outputs}
    a, b, y = (shapes.dims(value[name]) for name in "aby")
    assert a is not None and b is not None and y is not None
    assert a[0].value is b[0].value is y[0].value is None and a[1] == b[1] == Size.of(4)
    assert len({a[0], b[0]}) == 2
    tens = shapes.elements(value["n"])
    assert tens is not None and tens.integers is None
    after, _ = graphopt.optimize(model, target="cpu", ignore_cost_model=True)
    feeds = {n: np.ones((3, 4), np.float32) for n in "xz"}
    assert run(after, feeds)[1].tolist() == [30]


def test_unknown_sizes_are_never_equal() -> None:
    """Each unknown dimension is a unique symbol, whether it is named with a question mark or not named."""
    text = (
        "g (float[N, 4] x, float[N, 4] z) => (float[A, 4] y) { a = Abs(x)  b = Abs(z)  y = Concat <axis = 0> (a, b) }"
    )
    model = model_from_text(text)
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].dim_param = "?"
    found = dims_of(model)
    assert found["a"] != found["b"]
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].Clear()
    found = dims_of(model)
    assert found["a"] != found["b"]


def test_an_if_has_the_equal_dimensions_of_its_branches() -> None:
    """Each output is treated separately, also in nested Ifs and after a Reshape that onnx's inference cannot follow."""
    model = model_from_text(
        """g (bool c, float[B, 6] x) => (float[P] p, float[Q] q) {
          shape = Shape(x)
          b = Slice(shape, zero, one)
          y, z, w = If (c) <
            then_branch = t () => (y1, z1, w1) {
              y1 = If (c) <
                then_branch = tt () => (y11) { s11 = Concat <axis = 0> (b, two, three)  y11 = Reshape(x, s11) },
                else_branch = te () => (y12) { s12 = Concat <axis = 0> (b, two, minus)  y12 = Reshape(x, s12) }>
              zs1 = Concat <axis = 0> (two, minus)  z1 = Reshape(x, zs1)
              ws1 = Concat <axis = 0> (b, minus)  w1 = Reshape(x, ws1) },
            else_branch = e () => (y2, z2, w2) {
              s2 = Concat <axis = 0> (b, two, three)  y2 = Reshape(x, s2)
              zs2 = Concat <axis = 0> (three, minus)  z2 = Reshape(x, zs2)
              ws2 = Concat <axis = 0> (minus, two, three)  w2 = Reshape(x, ws2) }>
          ry = Relu(y)  rz = Relu(z)  rw = Relu(w)
          p = Reshape(ry, minus)  q = Reshape(rz, minus)
        }""",
        {n: np.asarray([i]) for n, i in {"zero": 0, "one": 1, "two": 2, "three": 3, "minus": -1}.items()},
    )
    found = dims_of(model)
    B, two, three = Size.symbol("B"), Size.of(2), Size.of(3)
    assert found["y"] == found["ry"] == (B, two, three)
    z = found["z"]
    assert z is not None and z[0].value is None  # 2 or 3, and half or a third of the elements
    assert z[0] not in (two, three) and z[1] not in (B * three, B * two) and len(z) == 2
    assert found["w"] is None  # not even the rank


@pytest.mark.once
@pytest.mark.parametrize("layers", [24, 120])
def test_shapes_are_followed_through_any_number_of_layers(layers: int) -> None:
    """TensorFlow's BERT: every shape is computed from the preceding layer, here without onnx's inference."""
    nodes = len(tensorflow_blocks(1).graph.node)
    work = load(tensorflow_blocks(nodes * layers)).model
    for node in work.graph:
        if node.op_type == "MatMul":
            node.outputs[0].dtype = ir.DataType.FLOAT
    editor = Editor(work, Target("cpu"))
    # The last value is queried first: its shape depends on the shapes of all others.
    B, S = Size.symbol("batch"), Size.symbol("sequence")
    assert editor.shapes.dims(list(work.graph)[-1].outputs[0]) == (B, S, Size.of(16))
    result = pipeline.run(editor, [FuseAttention()])
    assert result.passes["fuse_attention"].applied == layers
    assert result.passes["fuse_attention"].refused == 0


# Each result contains its operand more than once.
DOUBLING = {
    "product": "d{new} = Mul(d{old}, d{old})",
    "sums": "e{new} = Add(d{old}, s0) d{new} = Mul(e{new}, d{old})",
    "volume": "t{new} = Expand(one_1d, d{old}) e{new} = Concat <axis = 0> (d{old}, d{old}) "
    "w{new} = Expand(one_1d, e{new}) n{new} = Size(w{new}) d{new} = Unsqueeze(n{new}, zero_1d)",
    "quotient": "e{new} = Add(d{old}, s{old}) s{new} = Identity(d{old}) d{new} = Div(e{new}, three)",
    "float": "f{new} = Mul(f{old}, f{old})",
}


@pytest.mark.parametrize("kind", DOUBLING)
def test_a_size_that_grows_in_each_node_is_limited(kind: str) -> None:
    """The first sizes are known; without a limit the last ones would have 2^200 symbols, digits or characters."""
    nodes = " ".join(DOUBLING[kind].format(old=i, new=i + 1) for i in range(200))
    start = "d0 = Shape <start = 0, end = 1> (x) s0 = Shape <start = 1> (x) f0 = Identity(four)"
    last = "f200" if kind == "float" else "d200"
    text = (
        f"g (float[B, S] x) => (float[B, S] y, float[N] z) {{ {start} {nodes} y = Neg(x) z = Cast <to = 1> ({last}) }}"
    )
    numbers = {"one_1d": np.ones(1, np.float32), "zero_1d": np.array([0]), "three": np.array([3])}
    model = model_from_text(text, {**numbers, "four": np.array([4.0], np.float32)})
    editor = Editor(load(model).model, Target("cpu"))
    found = [
        editor.shapes.elements(v) for n in editor.model.graph for v in n.outputs if n.op_type in ("Mul", "Size", "Div")
    ]
    elements = [None if e is None else e.items.item() for e in found]
    assert all(e is not None for e in elements[:2])
    assert all(len(str(e)) < 100_000 for e in elements)
    graphopt.optimize(model, target="cpu")


@pytest.mark.once
def test_every_attention_of_a_deep_model_is_fused() -> None:
    """The whole optimizer on 110 layers as exported by torch."""
    nodes = len(transformer_blocks(1).graph.node)
    _, report = graphopt.optimize(transformer_blocks(110 * nodes), target="cpu", ignore_cost_model=True)
    attention = [r for r in report.remarks if r.pass_name == "fuse_attention"]
    assert len(attention) == 110 and all(r.applied for r in attention)


@pytest.mark.once
def test_a_query_visits_each_value_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts are computed once for all callers, and a rewrite keeps those about other values."""
    work = load(tensorflow_blocks(2000)).model
    shapes = Editor(work, Target("cpu")).shapes
    asked = Counter[tuple[str, int]]()
    tell = Shapes._infer

    def counted(self: Shapes, value: ir.Value, node: ir.Node, rule: Rule) -> object:
        asked[str(value.name), id(rule)] += 1
        return tell(self, value, node, rule)

    monkeypatch.setattr(Shapes, "_infer", counted)
    nodes = list(work.graph)
    for node in (*reversed(nodes), *nodes):
        shapes.dims(node.outputs[0])
        shapes.elements(node.outputs[0])
    assert set(asked.values()) == {1}
    shapes.replaced(nodes[50].outputs[0], nodes[49].outputs[0], producer_changed=False)
    for node in nodes[51:]:
        shapes.dims(node.outputs[0])
    assert set(asked.values()) == {1}


def test_rounded_floats_determine_no_size() -> None:
    """Shape arithmetic in floats is only followed if it is exact."""
    model = model_from_text(
        """g (float[6, 7] x) => (int64[2] half, int64[2] third) {
          s = Shape(x)  f = Cast <to = 1> (s)  h = Mul(f, h5)  hf = Floor(h)  half = Cast <to = 7> (hf)
          t = Mul(f, h3)  tf = Floor(t)  third = Cast <to = 7> (tf) }""",
        {"h5": np.float32(0.5), "h3": np.float32(1 / 3)},
    )
    view = claims(model)
    shapes = view.shapes
    value = {o.name: o for n in view.model.graph for o in n.outputs}
    half, third = shapes.elements(value["half"]), shapes.elements(value["third"])
    assert half is not None and half.integers == [3, 3]
    assert third is None or third.integers is None


def test_sizes() -> None:
    a, b, n = Size.symbol("a"), Size.symbol("b"), Size.of
    assert (a * b).divided_by(a) == b
    assert a.divided_by(b) is None
    assert n(7).divided_by(n(2)) is None
    assert n(7).divided_by(n(0)) is None
    assert product([]) == n(1)
    assert (n(0) * a).value == 0
    assert a.value is None
    assert (a + b) * (a + b) == a * a + n(2) * a * b + b * b
    assert (a * a - b * b).divided_by(a - b) == a + b
    assert (a * a - b * b).divided_by(a + n(1)) is None
    assert a + n(1) - a == n(1)
    assert (n(2) * a + n(5)).floor_divided_by(2) == a + n(2)
    assert (n(3) * a + n(4)).floor_divided_by(2) == a + n(2) + a.floor_divided_by(2)
    assert (n(-1)).floor_divided_by(2) == n(-1)
    assert (a + n(1)).exceeds(a) and not a.exceeds(b) and not (a + b).exceeds(a)
    assert a.exceeds(n(-1)) and not a.exceeds(n(0))
    assert str(n(2) * a * b + n(1) + a) == "1 + a + 2*a*b"


def reshaped_to_a_computed_constant() -> onnx.ModelProto:
    text = """g (float[N, M] x, float[Z] z) => (float[J, K] out, int64[1, L] places) {
      target = Max(a, b)
      y = Reshape(x, target)
      found = NonZero(z)
      gate = Sigmoid(y)
      silu = Mul(y, gate)
      out = Neg(silu)
      places = Neg(found)
    }"""
    return model_from_text(text, {"a": np.asarray([2, -1]), "b": np.asarray([1, -1])})


def test_repeated_inference_creates_no_equal_symbols() -> None:
    """Two unknown sizes stay different when clean-up computes a constant and shapes are inferred again."""
    work = load(reshaped_to_a_computed_constant()).model
    inference.infer(work)
    CleanUp().run(Editor(work, Target("cpu")))
    made = {str(node.outputs[0].name): node.outputs[0].shape for node in work.graph}
    flat, found = made["y"], made["found"]
    assert flat is not None and found is not None
    assert flat[0] == 2 and flat[1] != found[1]


def test_no_invented_name_is_written() -> None:
    """A file whose two sizes share a name that inference made up would claim that they are equal."""
    model, _ = graphopt.optimize(tensorflow_blocks(150), target="cuda", ignore_cost_model=True, precision="fp16")
    written = [*model.graph.value_info, *model.graph.input, *model.graph.output]
    names = {dim.dim_param for info in written for dim in info.type.tensor_type.shape.dim}
    assert not {name for name in names if name.startswith("unk__")}


@pytest.mark.parametrize("graph", [*SHAPES, "reshaped", *range(12)])
def test_inference_is_left_out_only_where_it_finds_nothing(graph: str | int, monkeypatch: pytest.MonkeyPatch) -> None:
    if isinstance(graph, int):
        model = generate(graph).model
    else:
        model = SHAPES[graph](400) if graph in SHAPES else reshaped_to_a_computed_constant()

    def optimized() -> bytes:
        data: bytes = graphopt.optimize(model, target="cpu", ignore_cost_model=True)[0].SerializeToString(
            deterministic=True
        )
        return data

    once = optimized()
    monkeypatch.setattr(ConstantFolding, "enables_inference", True)
    monkeypatch.setattr(inference, "have_equal_dims", lambda a, b: False)
    assert optimized() == once
