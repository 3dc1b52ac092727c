"""What is claimed of dimensions and small tensors holds in every run."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest

from graphopt.graph import inference
from graphopt.graph.editor import Editor
from graphopt.graph.model import load
from graphopt.graph.symbolic_shapes import Shapes, Size, product
from graphopt.targets.target import Target
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


def claims(model: onnx.ModelProto) -> Shapes:
    work = load(model).model
    inference.infer(work)
    return Shapes(Editor(work, Target("cpu")))


@pytest.mark.parametrize("sizes", [(2, 5, 3, 4), (1, 1, 2, 1), (3, 2, 7, 2)])
def test_claims_hold(model: onnx.ModelProto, sizes: tuple[int, int, int, int]) -> None:
    shapes = claims(model)
    every = onnx.ModelProto()
    every.CopyFrom(model)
    del every.graph.output[:]
    every.graph.output.extend(onnx.ValueInfoProto(name=o) for n in model.graph.node for o in n.output)
    results = dict(zip((o.name for o in every.graph.output), run(every, values(*sizes)), strict=True))
    found: dict[str, int] = dict(zip("BSTU", sizes))
    for node in shapes.editor.model.graph:
        value = node.outputs[0]
        assert value.name is not None
        real = results[value.name]
        dims = shapes.dims(value)
        if dims is not None:
            assert len(dims) == real.ndim, value.name
            for size, n in zip(dims, real.shape):
                assert_size(size, n, found)
        small = shapes.small(value)
        if small is not None:
            assert small.rank == real.ndim
            for element, n in zip(small.elements, real.reshape(-1), strict=True):
                if isinstance(element, Size):
                    assert_size(element, int(n), found)
                elif element is not None:
                    assert element == pytest.approx(float(n), rel=1e-6)


def assert_size(size: Size, real: int, found: Mapping[str, int]) -> None:
    """A size over known symbols is a number for each run; atoms of values are only equal to themselves."""
    if all(a in found for a in size.atoms):
        assert size.coefficient * np.prod([found[a] for a in size.atoms], initial=1) == real


def test_what_is_found(model: onnx.ModelProto) -> None:
    """Not only right but also known: chains as exporters write them come out as products of the inputs' symbols."""
    shapes = claims(model)
    value = {n.outputs[0].name: n.outputs[0] for n in shapes.editor.model.graph}
    B, S = Size(1, ("B",)), Size(1, ("S",))

    def n(i: int) -> Size:
        return Size(i)

    assert shapes.dims(value["heads"]) == (B, S, n(3), n(8))
    assert shapes.dims(value["turned"]) == (B, n(3), S, n(8))
    assert shapes.dims(value["folded"]) == (B * S, n(3), n(8))
    assert shapes.dims(value["again"]) == (B, S, n(3), n(8))
    assert shapes.dims(value["kept"]) == (B, n(2) * S, n(12))
    assert shapes.dims(value["product"]) == (B, S, Size(1, ("T",)))
    assert shapes.dims(value["wide"]) == (B, n(3), n(4), S, n(8))
    assert shapes.dims(value["merged"]) == (B, n(12), S, n(8))
    assert shapes.dims(value["tiled"]) == (Size(1, ("U",)), n(5), n(8))
    assert shapes.number(value["scale"]) == pytest.approx(24**-0.5)
    small = shapes.small(value["back"])
    assert small is not None and small.rank == 0 and small.elements == (B,)


def test_sizes() -> None:
    a, b = Size(2, ("a",)), Size(3, ("b",))
    assert (a * b).divided_by(a) == b
    assert a.divided_by(b) is None
    assert Size(7).divided_by(Size(2)) is None
    assert Size(7).divided_by(Size(0)) is None
    assert product([]) == Size(1)
    assert Size(0, ("a",)).value == 0
    assert a.value is None
