"""Values that clean-up computes, nodes that it removes and merges, and nodes that it must not change."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx.reference
import onnx_ir as ir
import pytest

from graphopt.graph import inference
from graphopt.graph.editor import Editor
from graphopt.graph.invariants import Interface, check_against
from graphopt.graph.reading import load
from graphopt.passes.clean_up import CleanUp
from graphopt.targets.target import Target
from tests.rewriting import Array, assert_same_outputs, model_from_text, rewrite, run

RNG = np.random.default_rng(11)


def draw(*shape: int, dtype: type = np.float32) -> Array:
    return RNG.standard_normal(shape).astype(dtype)


def clean(model: onnx.ModelProto, feeds: dict[str, Array] | None = None, tolerance: float = 0.0) -> list[str]:
    """Returns the remaining operators; asserts bit-identical outputs and an unchanged interface."""
    after = rewrite(model, [CleanUp()])
    assert rewrite(after.proto, [CleanUp()]).proto == after.proto
    check_against(Interface.of(load(model).model), load(after.proto).model, "clean_up")
    assert [str(o) for o in after.proto.graph.output] == [str(o) for o in model.graph.output]
    if feeds is not None:
        assert_same_outputs(model, after.proto, feeds, tolerance)
    return after.op_types


# -- nodes that change nothing -------------------------------------------------------------------------------------

X = {"x": draw(2, 3, 4)}
X23 = {"x": draw(2, 3)}


@pytest.mark.parametrize(
    "node",
    [
        "Identity(x)",
        "Cast <to = 1> (x)",
        "CastLike(x, f)",
        "Transpose <perm = [0, 1, 2]> (x)",
        "Dropout(x)",
        "Dropout(x, r, no)",
        "Dropout(x, none, yes)",
        "Reshape(x, same)",
        "Reshape(x, zeros)",
        "Reshape(x, inferred)",
        "Concat <axis = 1> (x)",
        "Slice(x, s0, s9)",
        "Pad(x, p0)",
        "Expand(x, e1)",
        "Expand(x, e34)",
        "Mul(x, one)",
        "Mul(one1, x)",
        "Div(x, one)",
        "Max(x)",
    ],
)
@pytest.mark.parametrize(
    "place", ["t = {0}\n y = Relu(t)", "u = Relu(x)\n t = {0}\n y = Neg(t)", "u = Relu(x)\n y = {0}"]
)
def test_nodes_that_change_nothing(node: str, place: str) -> None:
    weights = {
        "f": np.float32(3),
        "r": np.float32(0.4),
        "none": np.float32(0),
        "no": np.array(False),
        "yes": np.array(True),
        "same": np.array([2, 3, 4]),
        "zeros": np.array([0, 0, 4]),
        "inferred": np.array([0, 3, -1]),
        "s0": np.array([0, 0]),
        "s9": np.array([2**31 - 1, 2**63 - 1]),
        "p0": np.zeros(6, np.int64),
        "e1": np.array([1, 1]),
        "e34": np.array([3, 4]),
        "one": np.float32(1),
        "one1": np.ones((1, 1), np.float32),
    }
    if "u =" in place:
        node = node.replace("(x", "(u").replace(", x", ", u")
    text = f"g (float[2, 3, 4] x) => (float[2, 3, 4] y) {{ {place.format(node)} }}"
    kept = ["Relu", "Neg"] if "Neg" in place else ["Relu"]
    assert clean(model_from_text(text, weights), X) == kept


@pytest.mark.parametrize(
    ("z", "starts", "axes", "kept"),
    [
        ("N, 4", [0, 0], [0, 1], False),
        ("N, 4", [0, 0], [-2, -1], False),
        ("4, N", [0, 0], [1, 0], False),
        ("M, 4", [0, 0], [0, 1], True),
        ("N, 4", [1, 0], [0, 1], True),
        ("N, 3", [0, 0], [0, 1], True),
    ],
)
def test_slices_to_the_sizes_of_a_value(z: str, starts: list[int], axes: list[int], kept: bool) -> None:
    text = f"g (float[N, 4] x, float[{z}] z) => (float[A, B] y) {{ s = Shape(z) t = Slice(x, i, s, a) y = Relu(t) }}"
    ops = clean(
        model_from_text(text, {"i": np.array(starts), "a": np.array(axes)}),
        {"x": draw(5, 4), "z": draw(*(4 if n.strip() == "4" else 3 if n.strip() == "3" else 5 for n in z.split(",")))},
    )
    assert ("Slice" in ops) == kept


@pytest.mark.parametrize(
    "node",
    [
        "Cast <to = 10> (x)",
        "Transpose <perm = [0, 2, 1]> (x)",
        "Reshape(x, swapped)",
        "Reshape(x, shifted)",
        "Expand(x, e5)",
        "Slice(x, s0, s1)",
        "Slice(x, s9, s0, a0, back)",
        "Pad(x, p1)",
        "Mul(x, ones4)",
        "Div(one, x)",
        "Dropout(x, r, yes)",
    ],
)
def test_nodes_that_change_something(node: str) -> None:
    weights = {
        "r": np.float32(0.4),
        "yes": np.array(True),
        "swapped": np.array([3, 2, 4]),
        "shifted": np.array([0, -1, 3]),
        "s0": np.array([0]),
        "a0": np.array([0]),
        "s1": np.array([1]),
        "s9": np.array([2**31 - 1]),
        "back": np.array([-1]),
        "p1": np.array([0, 0, 0, 0, 0, 1]),
        "e5": np.array([5, 1, 1, 1]),
        "one": np.float32(1),
        "ones4": np.ones((1, 1, 1, 1), np.float32),
    }
    text = f"g (float[2, 3, 4] x) => (float y) {{ t = {node}\n y = Relu(t) }}"
    model = model_from_text(text, weights, check=False)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    after = rewrite(model, [CleanUp()])
    assert after.op_types == [n.op_type for n in model.graph.node]


def test_dimensions_that_only_might_be_equal() -> None:
    text = """g (float[N, 4] x) => (float[P, Q] y, float[R, S] z) {
        t = Expand(x, three)
        y = Relu(t)
        u = Reshape(x, five)
        z = Relu(u) }"""
    model = model_from_text(text, {"three": np.array([3, 4]), "five": np.array([4, -1])})
    assert clean(model, {"x": draw(1, 4)}) == ["Expand", "Relu", "Reshape", "Relu"]


def test_two_reshapes_with_zeros() -> None:
    text = """g (float[4, 6] x) => (float[4, 2, 3] y) {
        t = Reshape(x, a)
        y = Reshape(t, b) }"""
    model = model_from_text(text, {"a": np.array([4, 3, 2]), "b": np.array([0, -1, 3])})
    assert clean(model, {"x": draw(4, 6)}) == ["Reshape", "Reshape"]


BACK = """g (float[N, L, 4, 6] x) => (float[A, B, C, D] y) {
    r = Relu(x)
    t = Reshape(r, a)
    u = Reshape(t, b)
    y = Neg(u) }"""


@pytest.mark.parametrize("flat", [[0, 0, 24], [0, -1, 24], [0, 0, -1]])
@pytest.mark.parametrize("back", [[0, 0, 4, 6], [0, 0, 4, -1], [0, -1, 4, 6]])
def test_a_second_reshape_restores_the_shape(flat: list[int], back: list[int]) -> None:
    """One Reshape merges the heads and the next one splits them, for any batch and length."""
    model = model_from_text(BACK, {"a": np.array(flat), "b": np.array(back)})
    assert clean(model, {"x": draw(2, 3, 4, 6)}) == ["Relu", "Neg"]


@pytest.mark.parametrize(("flat", "back"), [([0, 0, 24], [0, 0, 6, 4]), ([3, 2, 24], [0, 0, 4, 6])])
def test_a_second_reshape_gives_another_shape(flat: list[int], back: list[int]) -> None:
    """A 0 in `back` copies a dimension of the first Reshape's result, not of x."""
    model = model_from_text(BACK, {"a": np.array(flat), "b": np.array(back)})
    assert clean(model, {"x": draw(2, 3, 4, 6)}) == ["Relu", "Reshape", "Reshape", "Neg"]


def test_a_second_reshape_restores_the_shape_for_one_reader() -> None:
    text = BACK.replace("y) {", "y, float[E, F, G] z) {").replace("y = Neg(u)", "y = Neg(u)\n z = Abs(t)")
    model = model_from_text(text, {"a": np.array([0, 0, 24]), "b": np.array([0, 0, 4, 6])})
    assert sorted(clean(model, {"x": draw(2, 3, 4, 6)})) == ["Abs", "Neg", "Relu", "Reshape"]


def test_graph_outputs_keep_their_names() -> None:
    text = """g (float[2, 3] x) => (float[2, 3] y, float[2, 3] z, float[2, 3] w, float[2, 3] k) {
        y = Identity(x)
        t = Relu(x)
        z = Identity(t)
        w = Identity(t)
        k = Identity(c) }"""
    assert sorted(clean(model_from_text(text, {"c": draw(2, 3)}), {"x": draw(2, 3)})) == ["Identity"] * 4 + ["Relu"]


def test_an_identity_of_a_shared_weight() -> None:
    """TorchScript writes one Identity of a weight for each further use; a copy would enlarge the file."""
    text = "g (float[2, 3] x) => (float[2, 3] y) { v = Identity(w)\n t = MatMul(x, w)\n y = MatMul(t, v) }"
    model = model_from_text(text, {"w": draw(3, 3)})
    after = rewrite(model, [CleanUp()]).proto
    assert [i.name for i in after.graph.initializer] == ["w"]
    assert_same_outputs(model, after, {"x": draw(2, 3)})


# -- constants -------------------------------------------------------------------------------------------------


def test_the_known_part_of_a_dynamic_shape() -> None:
    """Flattening as tracers write it: Shape, Gather, Unsqueeze, Concat, with only the channel count static."""
    text = """g (float[N, 3, H, W] x) => (float[P, Q, R] y) {
        s = Shape(x)
        n = Gather(s, i0)
        c = Gather(s, i1)
        n1 = Unsqueeze(n, a0)
        c1 = Unsqueeze(c, a0)
        t = Concat <axis = 0> (n1, c1, m1)
        y = Reshape(x, t) }"""
    weights = {"i0": np.array(0), "i1": np.array(1), "a0": np.array([0]), "m1": np.array([-1])}
    ops = clean(model_from_text(text, weights), {"x": draw(2, 3, 4, 5)})
    assert ops == ["Shape", "Gather", "Unsqueeze", "Concat", "Reshape"]


def test_a_static_shape_folds_whole() -> None:
    text = """g (float[2, 3, 4, 5] x) => (float[2, 60] y) {
        s = Shape(x)
        n = Slice(s, i0, i1)
        r = Slice(s, i1, i9)
        q = ReduceProd <keepdims = 1> (r)
        t = Concat <axis = 0> (n, q)
        y = Reshape(x, t) }"""
    weights = {"i0": np.array([0]), "i1": np.array([1]), "i9": np.array([2**62])}
    assert clean(model_from_text(text, weights), {"x": draw(2, 3, 4, 5)}) == ["Reshape"]


def test_a_shape_that_only_clean_up_determines() -> None:
    """Inference does not compute ConstantOfShape; a second run knows the Reshape's shape, so the first one must too."""
    text = """g (float[6] x) => (float[P, Q] y) {
        s = ConstantOfShape <value = int64[1] {1}> (two)
        t = Mul(s, three)
        u = Sub(t, one)
        r = Concat <axis = 0> (threes, c)
        k = Where(less, u, r)
        a = Reshape(x, k)
        b = Expand(a, k)
        y = Neg(b) }"""
    weights = {
        "two": np.array([2]),
        "three": np.array([3]),
        "one": np.array([0, 1]),
        "threes": np.array([3]),
        "c": np.array([2]),
        "less": np.array([True, False]),
    }
    assert clean(model_from_text(text, weights), {"x": draw(6)}) == ["Reshape", "Neg"]


def test_a_reshape_to_its_own_dynamic_shape() -> None:
    text = """g (float[N, 3, H] x) => (float[N, 3, H] y) {
        s = Shape(x)
        a = Reshape(x, s)
        y = Relu(a) }"""
    assert clean(model_from_text(text), {"x": draw(2, 3, 4)}) == ["Relu"]


def test_a_zero_bias_made_at_run_time() -> None:
    """Torch's exporter writes an absent bias as a zero that is expanded at run time."""
    text = """g (float[N, 4] x) => (float[N, 6] y) {
        z = CastLike(zero, x)
        s = Shape <start = 0, end = 1> (W)
        b = Expand(z, s)
        y = Gemm <transB = 1> (x, W, b) }"""
    model = model_from_text(text, {"zero": np.array(0), "W": draw(6, 4)})
    assert clean(model, {"x": draw(2, 4)}) == ["Gemm"]


@pytest.mark.parametrize(
    ("node", "inputs"),
    [
        ("Add(a, b)", {"a": draw(3, 1), "b": draw(4)}),
        ("Sub(a, b)", {"a": draw(3, 1, dtype=np.float16), "b": draw(4, dtype=np.float16)}),
        ("Mul(a, b)", {"a": np.array([2**62, 3]), "b": np.array([4, -5])}),
        ("Div(a, b)", {"a": np.array([7, -7, 7, -7, 6]), "b": np.array([2, 2, -2, -2, 3])}),
        ("Div(a, b)", {"a": np.array([-(2**63), -(2**63), -(2**63) + 1]), "b": np.array([2, -3, -1])}),
        ("Div(a, b)", {"a": np.array([-(2**31)], np.int32), "b": np.array([3, 1], np.int32)}),
        ("Div(a, b)", {"a": draw(5), "b": np.array([0, -0.0, 1, 3, np.inf], np.float32)}),
        ("Mod(a, b)", {"a": np.array([7, -7, 7, -7]), "b": np.array([3, 3, -3, -3])}),
        ("Mod <fmod = 1> (a, b)", {"a": np.array([7, -7, 7, -7]), "b": np.array([3, 3, -3, -3])}),
        ("Sqrt(a)", {"a": np.array([0, 2, -1, np.inf], np.float32)}),
        ("Neg(a)", {"a": draw(3)}),
        ("Floor(a)", {"a": draw(3)}),
        ("Cast <to = 7> (a)", {"a": np.array([1.5, -1.5, 2.5], np.float32)}),
        ("Cast <to = 10> (a)", {"a": np.array([1e-8, 70000.0, 0.1], np.float32)}),
        ("Cast <to = 9> (a)", {"a": np.array([0, 0.5, np.nan], np.float32)}),
        ("Less(a, b)", {"a": draw(3, 1), "b": draw(4)}),
        ("Where(c, a, b)", {"c": np.array([True, False, True]), "a": draw(3), "b": draw(2, 1)}),
        ("Range(a, b, c)", {"a": np.array(7), "b": np.array(-3), "c": np.array(-4)}),
        ("ConstantOfShape(a)", {"a": np.array([2, 3])}),
        ("ConstantOfShape <value = int64[1] {5}> (a)", {"a": np.array([2])}),
        ("Expand(a, b)", {"a": draw(3, 1), "b": np.array([2, 1, 4])}),
        ("Tile(a, b)", {"a": draw(2, 3), "b": np.array([2, 2])}),
        ("Transpose(a)", {"a": draw(2, 3, 4)}),
        ("Transpose <perm = [1, 2, 0]> (a)", {"a": draw(2, 3, 4)}),
        ("Gather <axis = -1> (a, b)", {"a": draw(2, 3), "b": np.array([[-1, 0]])}),
        (
            "Slice(a, b, c, d, e)",
            {"a": draw(5, 6), "b": np.array([-3]), "c": np.array([2**62]), "d": np.array([1]), "e": np.array([2])},
        ),
        *(
            ("Slice(a, b, c, d, e)", dict(zip("abcde", (draw(4, 3), *([n] for n in bounds)))))
            for bounds in (
                (-1, -(2**63) + 1, 0, -1),
                (3, 0, 0, -2),
                (2**63 - 1, -9, 0, -3),
                (1, 2, 0, -1),
                (-9, 9, 1, 5),
            )
        ),
        ("Squeeze(a, b)", {"a": draw(1, 3, 1), "b": np.array([-1])}),
        ("Squeeze(a)", {"a": draw(1, 3, 1)}),
        ("Unsqueeze(a, b)", {"a": draw(3), "b": np.array([-1, 0])}),
        ("Flatten <axis = -1> (a)", {"a": draw(2, 3, 4)}),
        ("Trilu <upper = 0> (a, b)", {"a": draw(4, 5), "b": np.array(1)}),
        ("ReduceSum(a, b)", {"a": np.arange(12).reshape(3, 4), "b": np.array([-1])}),
        ("ReduceMax <axes = [0], keepdims = 0> (a)", {"a": np.arange(12).reshape(3, 4)}),
        ("Max(a, b)", {"a": np.array([1, 5]), "b": np.array([4])}),
        ("Equal(a, b)", {"a": np.array([1, 5]), "b": np.array([1])}),
        ("Size(a)", {"a": draw(3, 4)}),
    ],
)
def test_computed_as_the_runtime_does(node: str, inputs: dict[str, Array]) -> None:
    model = model_from_text(
        f"g () => (float[...] y) {{ t = {node}\n y = Identity(t) }}".replace("[...]", ""), inputs, check=False
    )
    model = onnx.shape_inference.infer_shapes(model)
    inferred = next(v.type for v in model.graph.value_info if v.name == "t")
    model.graph.output[0].type.CopyFrom(inferred)
    # The Identity is kept: a graph output that is constant still needs a node that produces it.
    after = rewrite(model, [CleanUp()])
    assert after.op_types == ["Identity"]
    (want,), (got,) = run(model, {}), run(after.proto, {})
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


@pytest.mark.parametrize(
    ("node", "inputs"),
    [
        ("Div(a, b)", {"a": np.array([7]), "b": np.array([0])}),
        ("Div(a, b)", {"a": np.array([-(2**63)]), "b": np.array([-1])}),
        ("Concat(a, b)", {"a": draw(2, 2), "b": draw(2, 2)}),  # no axis, which had a default below opset 4
        ("Cast <to = 7> (a)", {"a": np.array([1e30, np.nan], np.float32)}),
        ("Pow(a, b)", {"a": draw(3), "b": draw(3)}),
        ("Exp(a)", {"a": draw(3)}),
        ("RandomNormal <shape = [3]> ()", {}),
        ("RandomNormalLike(a)", {"a": draw(3)}),
        ("Bernoulli(a)", {"a": np.full(3, 0.5, np.float32)}),
        ("Dropout(a, r, yes)", {"a": draw(3), "r": np.float32(0.5), "yes": np.array(True)}),
        ("Expand(a, b)", {"a": draw(1), "b": np.array([300, 300])}),
        ("Tile(a, b)", {"a": draw(1), "b": np.array([90000])}),
        ("ConstantOfShape(a)", {"a": np.array([300, 300])}),
        ("Mul(a, b)", {"a": draw(300, 1), "b": draw(1, 300)}),
        ("Cast <to = 11> (a)", {"a": draw(200, 200)}),
        ("Range(a, b, c)", {"a": np.array(0), "b": np.array(2**40), "c": np.array(1)}),
        # Runtimes start the first Slice at element 0, and let the second one run to the beginning.
        ("Slice(a, b, c, d, e)", dict(zip("abcde", (draw(3), [-9], [-10], [0], [-1])))),
        ("Slice(a, b, c, d, e)", dict(zip("abcde", (draw(3), [2], [2**63 - 1], [0], [-1])))),
    ],
)
def test_not_computed(node: str, inputs: dict[str, Array]) -> None:
    model = model_from_text(f"g () => (float y) {{ t = {node}\n y = Identity(t) }}", inputs, check=False)
    after = rewrite(model, [CleanUp()])
    assert node.split("(")[0].split()[0] in after.op_types


def test_a_shared_weight_is_not_stored_twice() -> None:
    text = """g (float[N, 200] x) => (float[N, 200] y, float[N, 200] z) {
        t = Transpose(W)
        y = MatMul(x, t)
        z = MatMul(x, W) }"""
    assert clean(model_from_text(text, {"W": draw(200, 200)}), {"x": draw(2, 200)}) == ["Transpose", "MatMul", "MatMul"]
    text = "g (float[N, 200] x) => (float[N, 300] y) { t = Transpose(W)\n y = MatMul(x, t) }"
    # The tolerance is needed because ONNX Runtime sums in another order if a factor is constant.
    assert clean(model_from_text(text, {"W": draw(300, 200)}), {"x": draw(2, 200)}, 1e-5) == ["MatMul"]


def test_an_overridable_initializer_is_no_constant() -> None:
    text = "g (float[3] x, float[3] w) => (float[3] y) { n = Neg(w)\n y = Add(x, n) }"
    model = model_from_text(text, {"w": draw(3)})
    assert clean(model, {"x": draw(3), "w": draw(3)}) == ["Neg", "Add"]


# -- equal nodes, and nodes without readers ----------------------------------------------------------------------------


def test_equal_nodes_are_merged() -> None:
    text = """g (float[2, 3] x) => (float[2, 3] y, float[2, 3] z) {
        a = Reshape(x, s)
        b = Reshape(x, t)
        c = Softmax <axis = 1> (a)
        d = Softmax <axis = 1> (b)
        e = Softmax <axis = 0> (b)
        y = Sub(c, d)
        z = Add(c, e) }"""
    model = model_from_text(text.replace("2, 3] x", "3, 2] x"), {"s": np.array([2, 3]), "t": np.array([2, 3])})
    assert clean(model, {"x": draw(3, 2)}) == ["Reshape", "Softmax", "Softmax", "Sub", "Add"]


@pytest.mark.parametrize("op", ["RandomNormalLike", "RandomUniformLike", "Bernoulli", "Dropout"])
def test_random_nodes_are_not_merged(op: str) -> None:
    extra = ", r, yes" if op == "Dropout" else ""
    text = f"""g (float[2, 3] x) => (float[2, 3] y) {{
        a = {op}(x{extra})
        b = {op}(x{extra})
        y = Sub(a, b) }}"""
    model = model_from_text(text, {"r": np.float32(0.5), "yes": np.array(True)} if extra else {})
    assert rewrite(model, [CleanUp()]).op_types == [op, op, "Sub"]


def test_quantization_pairs_are_not_merged() -> None:
    text = """g (float[2, 3] x) => (float[2, 3] y) {
        q = QuantizeLinear(x, s)
        a = DequantizeLinear(q, s)
        b = DequantizeLinear(q, s)
        y = Mul(a, b) }"""
    assert clean(model_from_text(text, {"s": np.float32(0.1)}), {"x": draw(2, 3)}) == [
        "QuantizeLinear",
        "DequantizeLinear",
        "DequantizeLinear",
        "Mul",
    ]


def test_unused_nodes_are_removed_except_unknown_operators() -> None:
    text = """g (float[2, 3] x) => (float[2, 3] y) {
        a = Neg(x)
        b = Exp(a)
        c = other.Thing(x)
        y = Relu(x) }"""
    model = model_from_text(text, {"w": draw(3)}, check=False)
    model.opset_import.append(onnx.helper.make_opsetid("other", 3))
    model.opset_import.append(onnx.helper.make_opsetid("unused", 2))
    after = rewrite(model, [CleanUp()])
    assert after.op_types == ["Thing", "Relu"]
    assert not after.proto.graph.initializer
    assert {(o.domain, o.version) for o in after.proto.opset_import} == {("", 17), ("other", 3), ("unused", 2)}


def test_optional_outputs_of_a_training_norm_are_kept() -> None:
    text = """g (float[2, 3, 4] x) => (float[2, 3, 4] y, float[3] n) {
        y, n, o = BatchNormalization <training_mode = 1> (x, g, g, g, g) }"""
    assert clean(model_from_text(text, {"g": np.ones(3, np.float32)}), {"x": draw(2, 3, 4)}) == ["BatchNormalization"]


def test_bodies_and_their_outer_values() -> None:
    text = """g (bool c, float[2, 3] x) => (float[2, 3] y) {
        k = Add(w, w)
        i = Identity(x)
        u = If (c) <then_branch = p () => (float[2, 3] a) { n = Identity(i)\n a = Mul(n, k) },
                    else_branch = q () => (float[2, 3] b) { b = Identity(i) }>
        d = If (c) <then_branch = r () => (float[2, 3] e) { e = Neg(x) },
                    else_branch = s () => (float[2, 3] f) { f = Neg(i) }>
        y = Relu(u) }"""
    model = model_from_text(text, {"w": draw(3)})
    after = rewrite(model, [CleanUp()])
    assert after.op_types == ["If", "Relu"]
    branches = {a.name: [n.op_type for n in a.g.node] for a in after.proto.graph.node[0].attribute}
    assert branches == {"then_branch": ["Mul"], "else_branch": ["Identity"]}
    for taken in (True, False):
        assert_same_outputs(model, after.proto, {"c": np.array(taken), "x": draw(2, 3)}, 0.0)


# -- branches that always run --------------------------------------------------------------------------------------


def test_a_constant_condition_replaces_the_if_by_its_branch() -> None:
    text = """g (float[2, 3] x) => (float[2, 3] y, float[2, 3] z) {
        n = Size(x)
        c = Equal(n, six)
        y, z, inner = If (c) <
            then_branch = p () => (float[2, 3] a, float[2, 3] b, float[2, 3] d) {
                s = Neg(x)  a = Add(s, k)  b = Mul(a, x)  d = Exp(b) },
            else_branch = q () => (float[2, 3] a, float[2, 3] s, float[2, 3] s) {
                a = Relu(x)  s = Sin(x) }>
        not = Not(c)
        w = If (not) <then_branch = r () => (float[2, 3] s) { s = Cos(inner) },
                      else_branch = t () => (float[2, 3] e) { s = Abs(inner)
                          e = If (c) <then_branch = u () => (float[2, 3] k) { k = Sqrt(s) },
                                      else_branch = v () => (float[2, 3] k) { k = Log(s) }> }>
        last = Neg(w) }"""
    model = model_from_text(text, {"six": np.array(6)}, check=False)
    branch = model.graph.node[2].attribute[0].g
    branch.initializer.append(onnx.numpy_helper.from_array(draw(3), "k"))
    del model.graph.node[-1]
    model.graph.output.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [2, 3]))
    left = clean(model, X23)
    assert Counter(left) == Counter("Neg Add Mul Exp Abs Sqrt".split()) + Counter({"Identity": 2})


def test_a_branch_that_gives_one_value_twice() -> None:
    text = """g (float[3] x) => (float[3] y, float[3] z) {
        y, z = If (c) <then_branch = p () => (float[3] a, float[3] a) { a = Neg(x) },
                       else_branch = q () => (float[3] b, float[3] b) { b = Abs(x) }> }"""
    after = rewrite(model_from_text(text, {"c": np.array(True)}), [CleanUp()])
    assert after.op_types == ["Neg", "Identity"]
    x = draw(3)
    # Run by ONNX's evaluator, because ONNX Runtime 1.22.2 leaves one of the two outputs uninitialized.
    for got in onnx.reference.ReferenceEvaluator(after.proto).run(None, {"x": x}):
        np.testing.assert_array_equal(got, -x)


@pytest.mark.parametrize("taken", [False, True])
def test_a_branch_that_gives_a_constant(taken: bool) -> None:
    text = """g (float[3] x) => (float[3] y) {
        m = If (c) <then_branch = p () => (float[3] a) { a = Constant <value_floats = [1.0, 2.0, 3.0]> () },
                    else_branch = q () => (float[3] b) { }>
        y = Add(x, m) }"""
    model = model_from_text(text, {"c": np.array([taken])}, check=False)
    initializer = onnx.numpy_helper.from_array(draw(3), "b")
    model.graph.node[0].attribute[1].g.initializer.append(initializer)
    assert set(clean(model, {"x": draw(3)})) <= {"Add", "Constant"}


def test_a_condition_that_callers_may_override_keeps_both_branches() -> None:
    text = """g (float[3] x, bool c) => (float[3] y) {
        y = If (c) <then_branch = p () => (float[3] a) { a = Neg(x) },
                    else_branch = q () => (float[3] b) { b = Abs(x) }> }"""
    model = model_from_text(text, {"c": np.array(True)})
    assert clean(model, {"x": draw(3)}) == ["If"]
    assert_same_outputs(model, rewrite(model, [CleanUp()]).proto, {"x": draw(3), "c": np.array(False)}, 0.0)


def test_a_branch_in_a_function_of_the_user() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
        g (float[2, 3] x) => (float[2, 3] y) { y = mine.f(x) }
        <domain: "mine", opset_import: ["" : 17]>
        f (a) => (b) {
            one = Constant <value_int = 1> ()
            c = Cast <to = 9> (one)
            b = If (c) <then_branch = p () => (d) { h = Constant <value_float = 0.5> () d = Mul(a, h) },
                        else_branch = q () => (e) { e = Neg(a) }> }
    """)
    after = rewrite(model, [CleanUp()]).proto
    assert [n.op_type for n in after.functions[0].node if n.op_type != "Constant"] == ["Mul"]
    assert_same_outputs(model, after, {"x": draw(2, 3)}, 0.0)


LOOP = """g (float[2, 2] x, float[2, 2] w) => ({outputs}) {{
    y, last, other, rows = Loop (count, go, x, w, u) <body = b ({inputs}) => ({results}) {{ {body} }}>
    sum = Add(last, y) }}"""
ONLY = "float[2, 2] sum, float[5, 2, 2] rows"


def clean_loop(body: str, states: str = "s v z", results: str = "t v2 z2 row", outputs: str = ONLY) -> onnx.NodeProto:
    """Cleans a Loop with five iterations, whose initial states are x, w and the constant u; returns the Loop."""
    inputs, returned = (", ".join(f"float[2, 2] {name}" for name in names.split()) for names in (states, results))
    parts = {"inputs": f"int64 i, bool k, {inputs}", "results": f"bool k, {returned}"}
    constants = {"count": np.array(5), "go": np.array(True), "u": draw(2, 2)}
    model = model_from_text(LOOP.format(outputs=outputs, body=body, **parts), constants, check=False)
    after = rewrite(model, [CleanUp()]).proto
    assert rewrite(after, [CleanUp()]).proto == after
    assert_same_outputs(model, after, {"x": draw(2, 2), "w": draw(2, 2)}, 0.0)
    (loop,) = (n for n in after.graph.node if n.op_type == "Loop")
    assert isinstance(loop, onnx.NodeProto)
    return loop


def test_a_loop_reads_its_constant_states_from_outside() -> None:
    loop = clean_loop(
        "m = MatMul(s, v) t = Add(m, z) row = Neg(t) v1 = Identity(v) v2 = Identity(v1)", results="t v2 z row"
    )
    assert list(loop.input) == ["count", "go", "x"]
    assert list(loop.output) == ["y", "rows"]


@pytest.mark.parametrize(
    ("results", "body", "outputs"),
    [
        ("t v2 z2 row", "v2 = Add(v, z) z2 = Neg(z)", ONLY),
        ("t z v row", "", ONLY),
        ("t v v row", "", ONLY),
        ("t v z2 row", "z2 = Neg(z)", f"{ONLY}, float[2, 2] last"),
    ],
    ids=["changes", "exchanged", "returned twice", "graph output"],
)
def test_states_that_a_loop_keeps(results: str, body: str, outputs: str) -> None:
    assert len(clean_loop(f"t = MatMul(s, v) row = Neg(t) {body}", results=results, outputs=outputs).input) == 5


def test_an_initial_value_that_has_the_name_of_another_state() -> None:
    loop = clean_loop("t = Add(s, v) row = Mul(t, w) w2 = Neg(w)", states="s v w", results="t v w2 row")
    assert len(loop.input) == 5


def test_an_initial_value_that_has_the_name_of_its_state() -> None:
    loop = clean_loop("t = Add(s, w) row = Mul(t, z) z2 = Neg(z)", states="s w z", results="t w z2 row")
    assert len(loop.input) == 4


def test_a_range_of_constants_reads_scalars() -> None:
    """Runtimes accept computed one-element tensors as inputs of Range, but require constants to be scalars."""
    text = """g (float[3] x) => (float[n] y) {
        last = Sqrt(nine)
        r = Range(first, last, step)
        y = Neg(r) }"""
    constants = {"first": np.float32(0), "nine": np.array([9], np.float32), "step": np.float32(0.5)}
    model = model_from_text(text, constants, check=False)
    assert clean(model, {"x": draw(3)}) == ["Range", "Neg"]


def test_functions_of_the_user_are_visited_and_kept() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
        g (float[2, 3] x) => (float[2, 3] y) { y = mine.f(x) }
        <domain: "mine", opset_import: ["" : 17]>
        f (a) => (b) { i = Identity(a) two = Constant <value_float = 2.0> () four = Mul(two, two) b = Mul(i, four) }
        <domain: "mine", opset_import: ["" : 17]>
        unused (a) => (b) { b = Neg(a) }
    """)
    after = rewrite(model, [CleanUp()])
    assert {f.name: [n.op_type for n in f.node] for f in after.proto.functions} == {
        "f": ["Constant", "Mul"],
        "unused": ["Neg"],
    }
    assert_same_outputs(model, after.proto, {"x": draw(2, 3)}, 0.0)


def test_metadata_and_doc_strings_are_kept() -> None:
    text = "g (float[2, 3] x, float[4] unused) => (float[2, 3] y) { t = Identity(x)\n y = Relu(t) }"
    model = model_from_text(text)
    model.doc_string, model.graph.doc_string, model.graph.node[1].doc_string = "model", "graph", "node"
    onnx.helper.set_model_props(model, {"author": "somebody"})
    after = rewrite(model, [CleanUp()]).proto
    assert (after.doc_string, after.graph.doc_string, after.graph.node[0].doc_string) == ("model", "graph", "node")
    assert {p.key: p.value for p in after.metadata_props} == {"author": "somebody"}
    assert [i.name for i in after.graph.input] == ["x", "unused"]


@pytest.mark.once
def test_cost_is_linear() -> None:
    """A third of a chain of 20,000 nodes is removed; a pass that rescanned the graph would take minutes."""
    graph = "\n".join(f"t{i + 1} = {('Identity', 'Relu', 'Neg')[i % 3]}(t{i})" for i in range(20_000))
    model = model_from_text(f"g (float[2] t0) => (float[2] y) {{ {graph}\n y = Neg(t20000) }}", check=False)
    work = load(model).model
    inference.infer(work)
    steps = 0
    original = ir.Value.uses

    def counted(self: ir.Value) -> object:
        nonlocal steps
        steps += 1
        return original(self)

    ir.Value.uses = counted  # type: ignore[method-assign,assignment]
    try:
        CleanUp().run(Editor(work, Target("cpu")))
    finally:
        ir.Value.uses = original  # type: ignore[method-assign]
    assert len(list(work.graph)) == 13_334
    assert steps < 15 * 20_000
