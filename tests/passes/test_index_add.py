"""Scatters that add slices along one axis become IndexAdd: axes, forms of the indices, odd shapes, and refusals."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from graphopt import optimize
from graphopt.passes.index_add import IndexAdd
from tests.rewriting import Array, assert_same_outputs, model_from_text, rewrite, run

RNG = np.random.default_rng(50)
ADD = 'reduction = "add"'
SCATTER = f"y = ScatterElements <{ADD}> (d, e, u)"
BROADCAST = f"s = Shape(u) e = Expand(i, s) {SCATTER}"
EXPANDED = f"s = Shape(u) c = Unsqueeze(i, axes) e = Expand(c, s) y = ScatterElements <axis = {{}}, {ADD}> (d, e, u)"


def draw(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def model(
    body: str,
    d: str = "N, 40",
    u: str = "E, 40",
    i: str = "E",
    constants: Mapping[str, Array] | None = None,
    *,
    T: str = "float",
) -> onnx.ModelProto:
    """Returns a model with inputs d (data), u (updates), i (indices) and, unless given, the constant axes = [1]."""
    text = f"g ({T}[{d}] d, {T}[{u}] u, int64[{i}] i) => ({T}[{d}] y) {{ {body} }}"
    return model_from_text(text, {"axes": np.array([1]), **(constants or {})})


def check(before: onnx.ModelProto, d: Array, u: Array, i: Array) -> onnx.ModelProto:
    """Asserts that the scatter becomes IndexAdd and returns equal bits, also those of onnx's reference."""
    result = rewrite(before, [IndexAdd()], ignore_cost_model=True)
    assert "IndexAdd" in result.op_types and result.codes() == ["APPLIED"]
    assert not {"Expand", "ScatterElements", "ScatterND"} & set(result.op_types)
    assert rewrite(result.proto, [IndexAdd()]).proto == result.proto
    feeds = {"d": d, "u": u, "i": i}
    assert_same_outputs(before, result.proto, feeds, tolerance=0)
    (wanted,) = ReferenceEvaluator(before).run(None, feeds)
    np.testing.assert_array_equal(run(result.proto, feeds, library=True)[0], wanted)
    return result.proto


@pytest.mark.parametrize(
    ("axis", "axes", "d", "u"),
    [
        (0, [1], (7, 40), (90, 40)),
        (0, [1], (7, 40), (0, 40)),
        (0, [1], (3, 1), (4, 1)),
        (0, [1, 2], (6, 5, 3), (50, 5, 3)),
        (0, [1], (8, 20), (30, 17)),  # the last columns of data get no updates
        (1, [0, 2], (3, 6, 9), (3, 20, 9)),
        (1, [0, 2], (3, 6, 9), (2, 20, 4)),
        (-2, [0, 2], (4, 5, 8), (4, 1, 8)),
        (1, [0], (4, 9), (4, 30)),
        (-1, [0, 1], (2, 3, 7), (2, 3, 25)),
    ],
)
def test_becomes_index_add(axis: int, axes: list[int], d: tuple[int, ...], u: tuple[int, ...]) -> None:
    sizes = [", ".join(f"{name}{k}" for k in range(len(d))) for name in "du"]
    before = model(EXPANDED.format(axis), sizes[0], sizes[1], constants={"axes": np.array(axes)})
    i = RNG.integers(-d[axis], d[axis], u[axis])  # negative indices and duplicates
    after = check(before, draw(*d), draw(*u), i)
    assert [n.op_type for n in after.graph.node] == ["IndexAdd"]


def test_indices_without_axes_before_theirs() -> None:
    """Expand aligns shapes at the last axis."""
    body = f"s = Shape(u) e = Expand(i, s) y = ScatterElements <axis = -1, {ADD}> (d, e, u)"
    check(model(body, "A, 9", "A, E"), draw(4, 9), draw(4, 30), RNG.integers(0, 9, 30))


def test_reshaped_indices() -> None:
    constants = {"column": np.array([-1, 1]), "axes": np.array([0])}
    body = f"t = Unsqueeze(i, axes) c = Reshape(t, column) s = Shape(u) e = Expand(c, s) {SCATTER}"
    after = check(model(body, constants=constants), draw(5, 40), draw(12, 40), RNG.integers(0, 5, 12))
    assert [n.op_type for n in after.graph.node] == ["IndexAdd"]


def test_indices_that_no_node_reshapes() -> None:
    after = check(model(BROADCAST, i="E, 1"), draw(5, 40), draw(12, 40), RNG.integers(0, 5, (12, 1)))
    assert [n.op_type for n in after.graph.node] == ["Reshape", "IndexAdd"]


@pytest.mark.parametrize("i", ["1", "1, 1"])
def test_one_index_for_all_updates(i: str) -> None:
    check(model(BROADCAST, i=i), draw(5, 40), draw(12, 40), np.array([-2]).reshape([1] * (i.count(",") + 1)))


def test_indices_of_one_column_without_expand() -> None:
    body = f"y = ScatterElements <{ADD}> (d, i, u)"
    check(model(body, "N, 1", "E, 1", "E, 1"), draw(5, 1), draw(300, 1), RNG.integers(0, 5, (300, 1)))


def test_constant_indices() -> None:
    """Constant folding stores expanded indices."""
    body = f"n = Neg(d) y = ScatterElements <axis = 1, {ADD}> (n, e, u)"
    line = RNG.integers(-6, 6, 20)
    e = np.broadcast_to(line[:, None], (3, 20, 9))
    after = check(
        model(body, "3, 6, 9", "3, 20, 9", constants={"e": e}), draw(3, 6, 9), draw(3, 20, 9), np.zeros(1, np.int64)
    )
    (stored,) = [onnx.numpy_helper.to_array(w) for w in after.graph.initializer if w.name != "axes"]
    np.testing.assert_array_equal(stored, line)


def test_int32_indices() -> None:
    body = f"j = Cast <to = 6> (i) c = Unsqueeze(j, axes) s = Shape(u) e = Expand(c, s) {SCATTER}"
    check(model(body), draw(5, 40), draw(12, 40), RNG.integers(-5, 5, 12))


@pytest.mark.parametrize("u", ["E, 40", "E, 3, 4"])
def test_scatter_nd(u: str) -> None:
    body = f"c = Unsqueeze(i, axes) y = ScatterND <{ADD}> (d, c, u)"
    rest = [int(n) for n in u.split(",")[1:]]
    after = check(model(body, u.replace("E", "N"), u), draw(5, *rest), draw(70, *rest), RNG.integers(-5, 5, 70))
    assert [n.op_type for n in after.graph.node] == ["IndexAdd"]


def test_expanded_indices_with_other_readers() -> None:
    body = EXPANDED.format(0) + " z = Neg(e)"
    before = model(body)
    before.graph.output.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.INT64, ["E", 40]))
    result = rewrite(before, [IndexAdd()])
    assert result.codes() == ["APPLIED"] and "Expand" in result.op_types
    feeds = {"d": draw(5, 40), "u": draw(12, 40), "i": RNG.integers(0, 5, 12)}
    assert_same_outputs(before, result.proto, feeds, tolerance=0)


def test_infinities_and_nan() -> None:
    d, u = draw(3, 40), draw(6, 40)
    d[0, 1], u[0, 2], u[1, 3], u[1, 4] = np.inf, np.nan, -np.inf, np.inf
    check(model(EXPANDED.format(0)), d, u, np.array([0, 0, 0, 2, 2, -1]))


@pytest.mark.parametrize("index", [5, -6, 2**40])
def test_an_index_out_of_range(index: int) -> None:
    after = rewrite(model(EXPANDED.format(0)), [IndexAdd()]).proto
    feeds = {"d": draw(5, 40), "u": draw(3, 40), "i": np.array([0, index, 1])}
    message = rf"IndexAdd.*index {index} is out of range for an axis of size 5"
    with pytest.raises(InvalidArgument, match=message):
        run(after, feeds, library=True)


@pytest.mark.parametrize(
    ("before", "code"),
    [
        (model(EXPANDED.format(0), "4, 8", "31, 8", "31"), "NO_GAIN"),
        (model(EXPANDED.format(0), T="double"), "WRONG_DTYPE"),
        (model(BROADCAST, i="E, K"), "UNKNOWN_SHAPE"),
        (model(BROADCAST, i="E, 40"), "WRONG_SHAPE"),
        (
            model(f"s = Shape(u) e = Expand(i, s) y = ScatterElements <axis = 1, {ADD}> (d, e, u)", i="E, 1"),
            "UNKNOWN_SHAPE",
        ),
    ],
)
def test_refusals(before: onnx.ModelProto, code: str) -> None:
    assert rewrite(before, [IndexAdd()]).codes() == [code]


@pytest.mark.parametrize("unknown", ["d", "i"])
def test_refuses_unknown_ranks(unknown: str) -> None:
    text = f"""g (float[N, 40] d0, float[E, 40] u, int64[E, 1] i0, int64[K] t) => (float[N, 40] y) {{
        d = {"Reshape(d0, t)" if unknown == "d" else "Identity(d0)"}
        i = {"Reshape(i0, t)" if unknown == "i" else "Identity(i0)"}
        s = Shape(u) e = Expand(i, s) r = ScatterElements <{ADD}> (d, e, u) two = Constant <value_ints = [-1, 40]> ()
        y = Reshape(r, two) }}"""
    assert rewrite(model_from_text(text), [IndexAdd()]).codes() == ["UNKNOWN_RANK"]


def test_refuses_attributes_of_functions() -> None:
    before = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
        g (float[N, 40] d, float[E, 40] u, int64[E, 1] i) => (float[N, 40] y) {{ y = mine.f <a = 0> (d, u, i) }}
        <domain: "mine", opset_import: ["" : 17]>
        f <a> (d, u, i) => (y) {{
            s = Shape(u) e = Expand(i, s) y = ScatterElements <axis: int = @a, {ADD}> (d, e, u) }}""")
    assert rewrite(before, [IndexAdd()]).codes() == ["FUNCTION_ATTRIBUTE"]


@pytest.mark.parametrize(
    "body",
    [
        "s = Shape(u) c = Unsqueeze(i, axes) e = Expand(c, s) y = ScatterElements(d, e, u)",
        's = Shape(u) c = Unsqueeze(i, axes) e = Expand(c, s) y = ScatterElements <reduction = "mul"> (d, e, u)',
        f"c = Unsqueeze(i, axes) p = Concat <axis = 1> (c, c) w = ReduceSum <keepdims = 0> (u, axes) "
        f"y = ScatterND <{ADD}> (d, p, w)",
        f"s = Shape(u) c = Unsqueeze(i, axes) z = Expand(c, s) e = Neg(z) y = ScatterElements <{ADD}> (d, e, u)",
        f"y = ScatterElements <{ADD}> (d, e, u)",
    ],
)
def test_is_no_candidate(body: str) -> None:
    """Another reduction, elements instead of slices, and indices that differ within a slice."""
    constants = {"e": RNG.integers(0, 5, (12, 40))} if "Expand" not in body and "Concat" not in body else {}
    before = model(body, "5, 40", "12, 40", "12", constants)
    result = rewrite(before, [IndexAdd()])
    assert result.codes() == [] and "IndexAdd" not in result.op_types


@pytest.mark.parametrize("device", ["portable", "rocm", "cuda"])
def test_other_targets_keep_the_scatter(device: str) -> None:
    result = rewrite(model(EXPANDED.format(0)), [IndexAdd()], device=device)
    assert "ScatterElements" in result.op_types and result.codes() == []


def test_scatter_add_as_pytorch_exports_it() -> None:
    """PyTorch slices the updates to the shape of the indices, which has no effect here."""
    before = model_from_text(
        """g (float[N, 3] x, int64[2, E] edges, float[E, 64] messages) => (float[N, 64] y) {
            n = Shape(x) n0 = Gather(n, first) size = Concat <axis = 0> (n0, columns)
            d = ConstantOfShape(size) i = Gather <axis = 0> (edges, second) c = Unsqueeze(i, one)
            s = Shape(messages) e = Expand(c, s) ends = Shape(e) u = Slice(messages, starts, ends)
            y = ScatterElements <axis = 0, reduction = "add"> (d, e, u) }""",
        {
            "first": np.array([0]),
            "second": np.array(1),
            "one": np.array([1]),
            "columns": np.array([64]),
            "starts": np.array([0, 0]),
        },
        check=False,
    )
    after, _ = optimize(before, target="cpu")
    assert not {"Slice", "Expand", "ScatterElements"} & {n.op_type for n in after.graph.node}
    edges = RNG.integers(0, 6, (2, 50))
    assert_same_outputs(before, after, {"x": draw(6, 3), "edges": edges, "messages": draw(50, 64)}, tolerance=0)
