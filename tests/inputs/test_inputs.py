"""The inputs that `verify` makes cover what rewrites break: sizes, masks, integer ranges, magnitudes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphopt.errors import OptionError, VerifyError
from graphopt.inputs.declared import deserialized
from graphopt.inputs.given import load_inputs
from graphopt.inputs.plan import Allowance, Case, InputOptions, plan
from graphopt.inputs.uses import uses_of
from graphopt.verification.verify import verify
from tests.inputs.cases import make_cases
from tests.rewriting import Array, model_from_text

ENDS = range(-(1 << 63), 1 << 63)
TABLE = {"table": np.arange(40, dtype=np.float32).reshape(20, 2)}


def values(model: onnx.ModelProto, name: str) -> list[Array]:
    return [np.asarray(case.feeds[name]) for case in make_cases(model, seed=0)]


def seen(model: onnx.ModelProto, name: str) -> set[Any]:
    return {n for array in values(model, name) for n in array.reshape(-1).tolist()}


def test_no_elements_is_a_size() -> None:
    """An axis of 0 elements is a fixed size, not a size to choose; the same holds for a mask."""
    text = "g (float[2, 0, N] x, bool[2, 0, 4] m) => (float[2, M, N] y) { y = Sin(x) z = Not(m) }"
    model = model_from_text(text, {})
    assert {array.shape[:2] for name in "xm" for array in values(model, name)} == {(2, 0)}


def test_a_list_that_may_be_a_shape_is_small() -> None:
    """Any int64[3] input might be a shape, so its product stays small: 700 x 700 x 900 floats are 1.8 GB."""
    text = "g (float[2, 2, 3] x, int64[3] s) => (float[A, B, C] y) { f = Cast <to: int = 1> (s) y = Add(x, f) }"
    products = [int(np.abs(array).prod()) for array in values(model_from_text(text, {}, opset=18), "s")]
    assert max(products) > 1000 and max(products) <= 1 << 20


@pytest.mark.parametrize(
    ("type_", "node", "words"),
    [
        ("string[2]", "Identity(x)", "is a string tensor: give your own with --inputs"),
        ("float8e5m2[2]", "Shape(x)", "has type FLOAT8E5M2, and ONNX Runtime's Python interface has no arrays of that"),
        (
            "seq(float[2])",
            "SequenceLength(x)",
            "is no tensor: give a value of your own with --inputs",
        ),
        (
            "float[2147483647]",
            "Shape(x)",
            "of shape [2147483647] has 2.1e+09 elements: give your own with --inputs, or smaller sizes",
        ),
        (
            "bool[2147483647, 2147483647]",
            "Shape(x)",
            "of shape [2147483647, 2147483647] has 4.6e+18 elements: give your own with --inputs, or smaller",
        ),
    ],
)
def test_inputs_that_cannot_be_generated(type_: str, node: str, words: str, tmp_path: Path) -> None:
    """The message names the file, the input and the remedy."""
    path = tmp_path / "odd.onnx"
    text = f'<ir_version: 10, opset_import: ["": 21]> g ({type_} x) => (int64[N] y) {{ y = {node} }}'
    model = onnx.parser.parse_model(text)
    model.graph.output[0].type.CopyFrom(onnx.helper.make_tensor_type_proto(7, None))
    if "string" in type_:
        model.graph.output[0].type.CopyFrom(model.graph.input[0].type)
    onnx.save(model, path)
    with pytest.raises(VerifyError) as caught:
        verify(path, path)
    assert str(caught.value).startswith(f"{path}: input 'x' {words}")


@pytest.mark.parametrize(
    ("type_", "body", "wanted", "allowed"),
    [
        ("int64[B, S]", "y = Gather(table, x)", {0, 19, 18, -1, -20}, range(-20, 20)),
        ("int64[B, S]", "i = Add(x, two) y = Gather(table, i)", {17, 0}, range(-2, 18)),
        ("int32[B]", "i = Cast <to: int = 7> (x) j = Sub(i, two) y = Gather(table, j)", {2, 21}, range(2, 22)),
        ("float[B]", "i = Cast <to: int = 7> (x) y = Gather(table, i)", {0, 19, -1}, range(-20, 20)),
        ("int64[B, S]", "i = Mod(x, seven) y = Gather(table, i)", {-7, -1, 0, 6, 7, 13, 14}, None),
        ("int64[B, S]", "i = Clip(x, two, seven) y = Gather(table, i)", {1, 2, 7, 8}, None),
        ("int64[B, S]", "y = OneHot <axis: int = -1> (x, seven, two_values)", {0, 6, -7}, range(-7, 7)),
        ("uint8[B, 4, 4]", "f = Cast <to: int = 1> (x) y = Sqrt(f)", {0, 255, 128}, range(256)),
        ("int8[B, 4, 4]", "f = Cast <to: int = 1> (x) y = Abs(f)", {-128, 127}, range(-128, 128)),
        (
            "int64[B]",
            "f = Cast <to: int = 1> (x) y = Sin(f)",
            {0, 1, -(1 << 63), (1 << 63) - 1},
            range(-(1 << 63), 1 << 63),
        ),
        ("int64[B, S]", "i = Abs(x) y = Gather(table, i)", {0, 19, -19}, range(-19, 20)),
        ("int64[B, S]", "a = Abs(x) i = Min(a, seven) y = Gather(table, i)", {0, 1}, None),
        ("int64[B, S]", "f = Less(x, seven) y = Cast <to: int = 1> (f)", {6, 7, 8}, None),
    ],
)
def test_integers_are_made_for_their_use(type_: str, body: str, wanted: set[int], allowed: range | None) -> None:
    constants = {"two": np.array(2), "seven": np.array(7), "two_values": np.array([0.0, 1.0], np.float32)}
    model = model_from_text(
        f"g ({type_} x) => (float[*] y) {{ {body} }}".replace("float[*]", "float"), constants | TABLE
    )
    found = seen(model, "x")
    assert wanted <= found
    assert allowed is None or all(n in allowed for n in found)


@pytest.mark.parametrize("body", ["i = Mod(x, seven) y = Gather(table, i)", "y = Cast <to: int = 1> (x)"])
def test_unlimited_integers_have_all_magnitudes(body: str) -> None:
    model = model_from_text(f"g (int64[B, S] x) => (float y) {{ {body} }}", {"seven": np.array(7)} | TABLE)
    found = seen(model, "x")
    assert {0, 1} <= found
    for low in (8, 100, 1000, 100_000):
        assert any(low < n <= 10 * low for n in found)
        assert any(low < -n <= 10 * low for n in found)


def test_refused_indices_are_limited_to_fewer_rows() -> None:
    """The values read from `squares` index `table`, which has 200 rows: only indices up to 14 are valid."""
    squares: dict[str, Array] = {
        "squares": np.arange(60) ** 2,
        "table": np.arange(200, dtype=np.float32).reshape(200, 1),
    }
    text = "g (int64[B, S] x) => (float[B, S, 1] y) { i = Gather(squares, x) y = Gather(table, i) }"
    report = verify(model_from_text(text, squares), model_from_text(text, squares))
    assert len({r.case for r in report.rows}) > 10


def test_two_inputs_that_share_an_index_stay_inside_the_table() -> None:
    model = model_from_text(
        "g (int64[S] a, int64[S] b) => (float[S, 2] y) { i = Add(a, b) y = Gather(table, i) }", TABLE
    )
    for case in make_cases(model, seed=0):
        assert ((case.feeds["a"] + case.feeds["b"]) < 20).all()


def test_an_input_that_is_added_to_itself() -> None:
    """The factors of one input are summed, so a long chain of such additions takes no exponential time."""
    sums = " ".join(f"x{i + 1} = Add(x{i}, x{i})" for i in range(1100))
    few = f"g (int64[S] x0) => (float[S, 2] y) {{ {sums} y = Gather(table, x3) }}"
    use = uses_of(deserialized(model_from_text(few, TABLE)))["x0"]
    assert (use.low, use.high) == (0, 2)  # 8 x has to be below 20
    floats = f"g (float[S, 2] x0) => (float[S, 2] y) {{ {sums} y = Neg(x1100) }}"
    assert not uses_of(deserialized(model_from_text(floats)))["x0"].mask
    shifted = f"g (int64[S] x) => (float[S, 2] y) {{ x0 = Add(x, one) {sums} y = Gather(table, x1100) }}"
    assert uses_of(deserialized(model_from_text(shifted, {**TABLE, "one": np.array(1)})))["x"].low is None


def test_a_time_step_is_no_flag() -> None:
    model = model_from_text("g (int64[1] t) => (float[1] y) { f = Cast <to: int = 1> (t) y = Sin(f) }")
    assert max(seen(model, "t")) > 100


def test_a_flag_gets_each_compared_integer() -> None:
    body = """g (int64 flag, float[2] x) => (float[2] y) {
        on = Equal(flag, two)
        y = If (on) <
            then_branch = t () => (float[2] a) { a = Neg(x) },
            else_branch = e () => (float[2] b) { b = Abs(x) }>
    }"""
    model = model_from_text(body, {"two": np.array(2)})
    assert 2 in seen(model, "flag")
    assert seen(model, "flag") != {2}
    assert verify(model, model).not_covered == []


MASKED = """g (float[B, T, T] s, {type} mask) => (float[B, T, T] y) {{
    f = Cast <to: int = 1> (mask)
    d = Sub(one, f)
    bias = Mul(d, low)
    axes = Constant <value_ints: ints = [1]> ()
    wide = Unsqueeze(bias, axes)
    z = Add(s, wide)
    y = Softmax <axis: int = -1> (z) }}"""


@pytest.mark.parametrize("type_", ["int64[B, T]", "float[B, T]", "bool[B, T]"])
def test_masks_have_every_pattern(type_: str) -> None:
    model = model_from_text(MASKED.format(type=type_), {"one": np.float32(1), "low": np.float32(-10000)})
    assert uses_of(deserialized(model))["mask"].mask
    masks = {case.name: case.feeds["mask"].astype(bool) for case in make_cases(model, seed=0)}
    assert masks["normal, batch 2"].all()
    left, right, both = (masks[f"padded {side}"][1] for side in ("left", "right", "both"))
    assert (left[0], left[-1]) == (False, True)
    assert (right[0], right[-1]) == (True, False)
    assert (both[0], both[-1], both.any()) == (False, False, True)
    assert masks["first row"][1].all()
    assert not masks["first row"][0].all()
    assert masks["one key"][1].sum() == 1
    assert not masks["padded away"][1].any()
    assert len(masks["holes, batch 1"]) == 1
    assert not masks["holes, batch 1"].all()
    assert max(mask.shape[1] for mask in masks.values() if not mask.all()) > 32


HIDING = """g (float[B, T, 4] q, float[B, T, 4] v, bool[B, T] padding{more}) => (float[B, T, 4] y) {{
    kt = Transpose <perm: ints = [0, 2, 1]> (q)
    s = MatMul(q, kt)
    scores = Reshape(s, sevens)
    axes = Constant <value_ints: ints = [1]> ()
    hidden = Unsqueeze(padding, axes)
    z = Where(hidden, low, scores)
    {body}
    y = MatMul(p, w) }}"""
KEEPING = "kept = Unsqueeze(keeps, axes) x = Where(kept, z, low) p = Softmax <axis: int = -1> (x)"


@pytest.mark.parametrize(
    ("more", "body"), [("", "p = Softmax <axis: int = -1> (z)"), (", bool[B, T] keeps", KEEPING)], ids=["one", "two"]
)
def test_a_mask_that_hides_where_it_is_1(more: str, body: str) -> None:
    """A PyTorch padding mask: a row of ones hides every key, and the softmax of that row is NaN.

    The scores are reshaped to a fixed length of 7, so the model refuses most sizes.
    """
    text = HIDING.format(more=more, body=f"{body} w = Identity(v)")
    given = {"low": np.float32(-np.inf), "sevens": np.array([-1, 7, 7])}
    model = model_from_text(text, given)
    report = verify(model, model)
    assert report.not_covered == []
    cases = {row.case for row in report.rows}
    assert {"zeros", "large", "padded right", "B=3, T=7"} <= cases
    other = model_from_text(text.replace("Identity(v)", "Mul(v, f)"), {**given, "f": np.float32(1.001)})
    assert not verify(model, other).equal


def test_an_added_float_mask_hides() -> None:
    text = "g (float[B, T, 4] q, float[B, 1, T] m) => (float[B, T, T] y) { k = Transpose <perm: ints = [0, 2, 1]> (q) "
    model = model_from_text(text + "s = MatMul(q, k) z = Add(s, m) y = Softmax <axis: int = -1> (z) }")
    assert {0.0, -1e4} <= seen(model, "m")
    assert len(seen(model, "m")) > 2


def test_magnitudes() -> None:
    model = model_from_text("g (float[N, 3, H, W] x) => (float[N, 3, H, W] y) { y = Relu(x) }")
    cases = {case.name: case.feeds["x"] for case in make_cases(model, seed=0)}
    assert cases["pixels"].min() >= 0
    assert 250 <= cases["pixels"].max() <= 255
    rows = np.abs(cases["rows"]).mean(axis=(1, 2, 3))
    assert rows.max() / rows.min() > 1000
    near = cases["nearly constant"]
    assert 0 < near.std() < 0.01 * abs(near.mean())
    vector = model_from_text("g (float[N, 8] x) => (float[N, 8] y) { y = Relu(x) }")
    assert np.abs(np.concatenate([v.reshape(-1) for v in values(vector, "x")])).max() > 1000


def test_the_longest_that_the_model_takes() -> None:
    text = """g (float[B, S] x) => (float[B, S] y) {
        shape = Shape <start: int = 1> (x) zero = Constant <value_ints: ints = [0]> ()
        axes = Constant <value_ints: ints = [0]> ()
        p = Slice(positions, zero, shape, axes) y = Add(x, p) }"""
    positions = np.arange(24, dtype=np.float32)
    before = model_from_text(text, {"positions": positions})
    wrong = np.where(positions == 23, np.float32(0), positions)
    report = verify(before, model_from_text(text, {"positions": wrong}))
    assert not report
    assert any("24" in r.case for r in report.rows if not r.equal)


@pytest.mark.parametrize("axis", [2, 3])
def test_distant_pixels_are_tried(axis: int) -> None:
    """One tried image is as long as a photograph is wide; the report states the largest size that was tried."""
    text = """g (float[N, 3, H, W] x) => (float[N, 3, H, W] y) {
        s = Shape(x) n = Gather(s, axis) r = Range(zero, n, one) f = Less(r, most) c = Cast <to: int = 1> (f)
        u = Unsqueeze(c, sides) y = Mul(x, u) }"""
    numbers = {"axis": np.array(axis), "zero": np.array(0), "one": np.array(1)}
    numbers["sides"] = np.array([0, 1, 3 if axis == 2 else 2])
    before, after = (model_from_text(text, {**numbers, "most": np.array(most)}) for most in (1 << 40, 500))
    report = verify(before, after)
    assert not report
    assert {row["H" if axis == 2 else "W"] for row in verify(before, before).sizes} >= {1, 7, 64, 512, 2048}


@pytest.mark.parametrize("bound", ["y = Clip(x, low, high)", "l = Greater(x, high) y = Where(l, high, x)"])
def test_bounds_that_only_after_has_are_tried(bound: str) -> None:
    """Values next to either bound are tried, however large the bound is."""
    before, after = (
        model_from_text(
            f"g (float[N, 8] x) => (float[N, 8] y) {{ {bound} }}",
            {"low": np.array(-1e9, np.float32), "high": np.array(high, np.float32)},
        )
        for high in (1e9, 5000)
    )
    report = verify(before, before)
    assert report and any(note.startswith("values tried: x -") for note in report.notes), report.notes
    assert not verify(before, after)
    assert not verify(model_from_text("g (float[N, 8] x) => (float[N, 8] y) { y = Identity(x) }", {}), after)


SIZED = {
    "a whole shape": ("float[N, C, H] x, int64[3] n", "y = CenterCropPad(x, n)"),
    "one that must keep the elements": ("float[2, 6] x, int64[2] n", "y = Reshape(x, n)"),
    "one with another input's rows": (
        "float[N, 1] x, int64[2] n",
        "c = ConstantOfShape(n) r = ReduceSum(c, one) y = Concat <axis: int = 1> (x, r)",
    ),
    "the product of two": ("int64[1] x, int64[1] n", "p = Mul(x, n) y = ConstantOfShape(p)"),
    "out of a branch": (
        "float[N] x, int64[3] n",
        """t = Size(n) c = Equal(t, two) s = If(c) <
            then_branch = first () => (int64[3] a) { a = Identity(n) },
            else_branch = second () => (int64[3] b) { d = Add(n, n) b = Max(d, n) }
        > y = ConstantOfShape(s)""",
    ),
    "scales": ("float[1, 1, 4, 4] x, float[4] n", "y = Resize(x, , n)"),
    "parts of a sequence": (
        "float[4, 6] x, int64 n",
        "s = SplitToSequence(x, n) y = ConcatFromSequence <axis: int = 0> (s)",
    ),
    "the axis of a sum": ("float[4, 6] x, int64 n", "y = CumSum(x, n)"),
    "bounds and axes": (
        "float[4, 5] x, int64[2] n, int64[2] ends, int64[2] axes",
        "y = Slice(x, n, ends, axes)",
    ),
}


@pytest.mark.parametrize("which", SIZED)
def test_inputs_that_are_sizes_are_small(which: str) -> None:
    """A size drawn from 0 to 999 makes outputs of gigabytes, and a size that does not fit tests nothing."""
    inputs, body = SIZED[which]
    constants = {"one": np.array([1]), "two": np.array(2)}
    model = model_from_text(f"g ({inputs}) => (float y) {{ {body} }}", constants, opset=20)
    assert np.max(values(model, "n")[0]) <= 8
    report = verify(model, model)
    assert report
    assert len({row.case for row in report.rows}) > len(report.skipped)


def test_an_empty_list_of_axes() -> None:
    model = model_from_text("g (float[4, 5] x, int64[A] axes) => (float y) { y = ReduceSum(x, axes) }", opset=18)
    model.graph.input[1].type.tensor_type.shape.dim[0].dim_value = 0
    assert verify(model, model)


def test_many_unknown_dimensions() -> None:
    dims = ", ".join(f"d{i}" for i in range(9))
    model = model_from_text(f"g (float[{dims}] x) => (float[{dims}] y) {{ y = Relu(x) }}")
    assert verify(model, model)


@pytest.mark.parametrize("size", [4, 32, 3])
def test_one_size_where_others_are_refused(size: int) -> None:
    """Unnamed dimensions must be equal to each other and to a dimension of a weight."""
    model = model_from_text("g (float[A, B] x) => (float[A, B] y) { y = MatMul(x, w) z = Add(x, c) }", check=False)
    del model.graph.node[:]
    model.graph.node.append(helper.make_node("MatMul", ["x", "w"], ["y"]))
    model.graph.initializer.append(numpy_helper.from_array(np.eye(size, dtype=np.float32), "w"))
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            dim.Clear()
    assert verify(model, model)


def test_dimensions_of_minus_one() -> None:
    model = model_from_text("g (float[A, 4] x) => (float[A, 4] y) { y = Relu(x) }")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = -1
    assert {v.shape[0] for v in values(model, "x")} >= {1, 2, 3, 4}


def test_input_options() -> None:
    text = "g (float[N, L] x, int64[N, L] i) => (float[N, L] y) { f = Cast <to: int = 1> (i) y = Add(x, f) }"
    model = model_from_text(text)
    cases: list[Case] = []

    def accepts(case: Case) -> bool:
        cases.append(case)
        return True

    input_options = InputOptions(sizes={"L": (1, 7, 640)}, batch=(5,), ranges={"i": (3, 9), "x": (-2.0, 2.0)})
    plan(model, input_options, accepts, Allowance())
    assert {c.feeds["x"].shape[1] for c in cases} == {1, 7, 640}
    assert {c.feeds["x"].shape[0] for c in cases} == {5}
    assert {n for c in cases for n in c.feeds["i"].reshape(-1).tolist()} == set(range(3, 10))
    assert all(np.abs(c.feeds["x"]).max() <= 2 for c in cases)
    with pytest.raises(OptionError, match="no symbolic dimension 'M'; there are N, L"):
        verify(model, model, sizes={"M": (1,)})
    with pytest.raises(OptionError, match="no input 'z'"):
        verify(model, model, ranges={"z": (0, 1)})


@pytest.mark.parametrize(
    ("dtype", "ends", "said"),
    [
        ("int32", (0, 1e30), ", which is beyond int32"),
        ("int64", (0, 2.0**63), ", which is beyond int64"),
        ("uint8", (-1, 3), ", which is beyond uint8"),
        ("float16", (0, 1e6), ", which is beyond float16"),
        ("bfloat16", (0, 1e39), ", which is beyond bfloat16"),
        ("float", (0, np.inf), "two finite numbers"),
        ("float", (2, 1), "the lower first"),
    ],
)
def test_a_range_beyond_the_type_is_refused(dtype: str, ends: tuple[float, float], said: str) -> None:
    model = model_from_text(f"g ({dtype}[N] x) => ({dtype}[N] y) {{ y = Identity(x) }}")
    with pytest.raises(OptionError, match=said):
        verify(model, model, ranges={"x": ends})


def test_a_range_to_the_end_of_the_type() -> None:
    text = "g (uint64[N] x, int8[N] z) => (uint64[N] y, int8[N] t) { y = Identity(x) t = Identity(z) }"
    model = model_from_text(text)
    assert verify(model, model, ranges={"x": (0, 2.0**64 - 2048), "z": (-128, 127)})
    with pytest.raises(OptionError, match="no effort 'some'"):
        verify(model, model, effort="some")


def test_effort() -> None:
    model = model_from_text("g (float[N, L] x) => (float[N, L] y) { y = Relu(x) }")
    few, many = (len(verify(model, model, effort=effort).rows) for effort in ("quick", "normal"))
    assert few < many


def test_options_of_the_command(graphopt_command: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "a.onnx"
    onnx.save(model_from_text("g (float[N, L] x) => (float[N, L] y) { y = Relu(x) }"), path)
    done = graphopt_command(
        "verify", path, path, "--dim", "L=5", "--batch", "2", "--range", "x:0:1", "--effort", "quick"
    )
    assert done.exit_code == 0
    assert graphopt_command("verify", path, path, "--range", "x:3:1").exit_code == 5
    assert graphopt_command("verify", path, path, "--range", "x=3").exit_code == 5


def test_data_in_the_layout_of_onnx(tmp_path: Path) -> None:
    """Sequences, optionals and strings are read from files."""
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [None])
    inputs = [
        helper.make_value_info("parts", helper.make_sequence_type_proto(tensor)),
        helper.make_value_info("maybe", helper.make_optional_type_proto(tensor)),
        helper.make_tensor_value_info("words", TensorProto.STRING, [2]),
    ]
    outputs = [
        helper.make_tensor_value_info("joined", TensorProto.FLOAT, [None]),
        helper.make_tensor_value_info("there", TensorProto.BOOL, []),
        helper.make_tensor_value_info("same", TensorProto.STRING, [2]),
    ]
    nodes = [
        helper.make_node("ConcatFromSequence", ["parts"], ["joined"], axis=0),
        helper.make_node("OptionalHasElement", ["maybe"], ["there"]),
        helper.make_node("Identity", ["words"], ["same"]),
    ]
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(helper.make_graph(nodes, "g", inputs, outputs), opset_imports=opsets, ir_version=8)
    with pytest.raises(VerifyError, match="--inputs"):
        verify(model, model)
    folder = tmp_path / "test_data_set_0"
    folder.mkdir()
    one, two = np.ones(2, np.float32), np.zeros(3, np.float32)
    files = (
        numpy_helper.from_list([one, two], "parts"),
        numpy_helper.from_optional(one, "maybe"),
        numpy_helper.from_array(np.array(["a", "bc"], object), "words"),
    )
    for i, message in enumerate(files):
        assert isinstance(message, onnx.TensorProto | onnx.SequenceProto | onnx.OptionalProto)
        (folder / f"input_{i}.pb").write_bytes(message.SerializeToString())
    (case,) = load_inputs(tmp_path, model)
    assert [a.shape for a in case.feeds["parts"]] == [(2,), (3,)]
    report = verify(model, model, inputs=tmp_path)
    assert report.equal, report.summary
    assert {row.name for row in report.rows} == {"joined", "there", "same"}
    assert "one set of inputs was tried" in report.not_covered


@pytest.mark.parametrize(("float_", "bits"), [(1, 24), (10, 11), (11, 53)], ids=["float32", "float16", "float64"])
def test_integers_that_a_float_on_their_way_does_not_hold(float_: int, bits: int) -> None:
    """If either model casts integers to a float type, some of the tried integers are rounded by that cast."""
    before = model_from_text("g (int64[N, 8] x) => (int64[N, 8] y) { y = Add(x, one) }", {"one": np.array(1)})
    through = f"f = Cast <to: int = {float_}> (x) r = Floor(f) i = Cast <to: int = 7> (r)"
    text = f"g (int64[N, 8] x) => (int64[N, 8] y) {{ {through} y = Add(i, one) }}"
    after = model_from_text(text, {"one": np.array(1)})
    assert uses_of(deserialized(before))["x"].bits is None
    assert uses_of(deserialized(after))["x"].bits == bits
    assert not verify(before, after)
    assert verify(before, before) and verify(after, after)


def test_integers_that_become_floats_are_not_large() -> None:
    """A time step becomes an angle, whose sine is not compared at a million: no larger integers are tried."""
    model = model_from_text("g (int64[N, 8] x) => (float[N, 8] y) { f = Cast <to: int = 1> (x) y = Sin(f) }")
    assert uses_of(deserialized(model))["x"].bits is None


def _encoder(labels: list[str], dims: str) -> onnx.ModelProto:
    node = helper.make_node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", default_string="none")
    node.attribute.append(helper.make_attribute("keys_int64s", [3 * i for i in range(len(labels))]))
    node.attribute.append(helper.make_attribute("values_strings", labels))
    shape: list[str | int] = [int(d) if d.isdecimal() else d for d in dims.split(",")]
    x, y = (
        helper.make_tensor_value_info(n, t, shape) for n, t in (("x", TensorProto.INT64), ("y", TensorProto.STRING))
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("dims", ["N", "N,8", "1"])
def test_one_label_of_a_thousand(dims: str) -> None:
    """A batch holds every key; if the batch is too small, only rows where the two encoders differ are tried."""
    labels = [f"label {i}" for i in range(1000)]
    before = _encoder(labels, dims)
    assert verify(before, before)
    report = verify(before, _encoder([*labels[:913], "other", *labels[914:]], dims))
    assert not report
    assert report.worst is not None and report.worst.case == ("rows of 'y'" if dims == "1" else report.worst.case)
    if dims != "1":
        assert seen(before, "x") >= {3 * i for i in range(1000)}


def test_each_row_of_a_small_table() -> None:
    """Every row is tried, also if the other model has no table of that name."""
    rng = np.random.default_rng(0)
    table, weight = (rng.standard_normal(shape).astype(np.float32) for shape in ((600, 8), (8, 4)))
    text = "g (int64[N] x) => (float[N, 4] y) { t = Gather(table, x) y = MatMul(t, w) }"
    before = model_from_text(text, {"table": table, "w": weight})
    folded = table @ weight
    for row, equal in ((None, True), (417, False)):  # "thorough", so that all rows fit in the time limit
        other = folded.copy()
        if row is not None:
            other[row] *= 1.01
        after = model_from_text("g (int64[N] x) => (float[N, 4] y) { y = Gather(both, x) }", {"both": other})
        assert verify(before, after, effort="thorough").equal == equal
