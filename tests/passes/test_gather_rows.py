"""Rolls, windows and patches: row movements become one Gather, and refusals."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from graphopt import optimize
from graphopt.forms.row_moves import MAX_ELEMENTS, MAX_ROWS, MOST_NODES
from graphopt.passes.gather_rows import GatherRows
from tests.rewriting import Array, assert_same_outputs, model_from_text, rewrite

RNG = np.random.default_rng(33)
FOLDER = Path(__file__).parent / "exported"
# torch.roll by three: the rows or columns from the fourth on, then the first three.
ROLL = """{1} = Slice(x{0}, three, many, {2}) {1}b = Slice(x{0}, zero, three, {2})
    x{1} = Concat <axis = {3}> ({1}, {1}b)"""
WINDOWS = """w = Reshape(xd, windows) t = Transpose <perm = [0, 1, 3, 2, 4, 5]> (w) y = Reshape(t, tokens)"""
NUMBERS = {name: np.array([n], np.int64) for name, n in (("zero", 0), ("one", 1), ("two", 2), ("three", 3))}
NUMBERS["many"] = np.array([2**63 - 1], np.int64)


def moves(
    body: str,
    dims: str = "N, 8, 12, 16",
    constants: Mapping[str, Sequence[int]] | None = None,
    *,
    T: str = "float",
    opset: int = 17,
) -> onnx.ModelProto:
    """Returns a model with input x and output y."""
    text = f"g ({T}[{dims}] x) => ({T} y) {{ {body} }}"
    return model_from_text(text, NUMBERS | {k: np.array(v, np.int64) for k, v in (constants or {}).items()}, opset)


def shifted_windows(dims: str = "N, 8, 12, 16", T: str = "float") -> onnx.ModelProto:
    roll = ROLL.format("", "c", "one", 1) + ROLL.format("c", "d", "two", 2)
    return moves(roll + WINDOWS, dims, {"windows": [-1, 2, 4, 3, 4, 16], "tokens": [-1, 16, 16]}, T=T)


def reverse(dims: str, crop: bool) -> onnx.ModelProto:
    """Returns the inverse of `shifted_windows`, after an operation on windows; `crop` removes the padding of images."""
    back = """u = Reshape(x, tokens) v = Relu(u) w = Reshape(v, windows)
        t = Transpose <perm = [0, 1, 3, 2, 4, 5]> (w) xr = Reshape(t, image) """
    roll = ROLL.format("r", "c", "one", 1) + ROLL.format("c", "d", "two", 2)
    last = "y = Slice(xd, zero, seven, one)" if crop else "y = Identity(xd)"
    shapes = {"tokens": [-1, 16, 16], "windows": [-1, 2, 3, 4, 4, 16], "image": [-1, 8, 12, 16], "seven": [7]}
    return moves(back + roll + last, dims, shapes)


def draw(*shape: int, T: str = "float") -> Array:
    drawn = RNG.standard_normal(shape) * 100
    return drawn.astype({"float": np.float32, "float16": np.float16, "int64": np.int64, "bool": np.bool_}[T])


def check(model: onnx.ModelProto, *inputs: Array, device: str = "cpu") -> list[str]:
    result = rewrite(model, [GatherRows()], device=device)
    for x in inputs:
        assert_same_outputs(model, result.proto, {"x": x}, tolerance=0)
    return result.op_types


@pytest.mark.parametrize("device", ["cpu", "rocm"])
@pytest.mark.parametrize("dims", ["N, 8, 12, 16", "1, 8, 12, 16", "3, 8, 12, 16"])
def test_shifted_windows(dims: str, device: str) -> None:
    batches = (1, 3) if dims[0] == "N" else (int(dims[0]),)
    ops = check(shifted_windows(dims), *(draw(n, 8, 12, 16) for n in batches), device=device)
    assert ops == ["Reshape", "Gather", "Reshape"]


@pytest.mark.parametrize("T", ["float16", "int64"])
def test_other_types(T: str) -> None:
    assert "Gather" in check(shifted_windows(T=T), draw(2, 8, 12, 16, T=T))


def test_short_rows_are_kept() -> None:
    """Rows of an image are long enough for a Gather; rows of one token (16 bytes) are not."""
    ops = check(shifted_windows(T="bool"), draw(2, 8, 12, 16, T="bool"))
    assert ops.count("Gather") == 1 and "Transpose" in ops


@pytest.mark.parametrize("crop", [False, True])
@pytest.mark.parametrize("dims", ["N, 6, 16, 16", "1, 6, 16, 16", "4, 6, 16, 16"])
def test_reverse(dims: str, crop: bool) -> None:
    batches = (1, 3) if dims[0] == "N" else (int(dims[0]),)
    ops = check(reverse(dims, crop), *(draw(n, 6, 16, 16) for n in batches))
    assert [op for op in ops if op != "Identity"] == ["Reshape", "Relu", "Reshape", "Gather", "Reshape"]


def test_merging_patches() -> None:
    """Swin's patch merging: every second row and column, and their neighbours, concatenated over channels."""
    parts = [
        f"a{i}{j} = Slice(x, {'one' if i else 'zero'}, many, one, two) "
        f"b{i}{j} = Slice(a{i}{j}, {'one' if j else 'zero'}, many, two, two) "
        for j in range(2)
        for i in range(2)
    ]
    body = "".join(parts) + "c = Concat <axis = -1> (b00, b10, b01, b11) y = Reshape(c, tokens)"
    assert check(moves(body, constants={"tokens": [-1, 24, 64]}), draw(2, 8, 12, 16)) == [
        "Reshape",
        "Gather",
        "Reshape",
    ]


def test_slices_with_attributes() -> None:
    body = """a = Slice <starts = [3], ends = [8], axes = [1]> (x) b = Slice <starts = [0], ends = [3], axes = [1]> (x)
      y = Concat <axis = 1> (a, b)"""
    assert "Gather" in check(moves(body, opset=9), draw(2, 8, 12, 16))


def test_the_first_axis_of_a_known_batch() -> None:
    body = "t = Transpose <perm = [1, 0, 2, 3]> (x) y = Slice(t, one, three, zero)"
    assert "Gather" in check(moves(body, "2, 8, 12, 16"), draw(2, 8, 12, 16))


def test_rows_after_a_gather_are_merged() -> None:
    body = "a = Gather <axis = 1> (x, order) y = Transpose <perm = [0, 2, 1, 3]> (a)"
    model = moves(body, constants={"order": [7, -1, 0, 3, 3, 2]})
    assert check(model, draw(2, 8, 12, 16)).count("Gather") == 1


def test_a_negative_axis_counts_from_the_end_of_the_data() -> None:
    """The result of the Gather has more axes than its data: axis -4 is the first one of the data."""
    body = """order = Constant <value = int64[2, 3] {1, 0, 0, 1, 1, 0}> ()
        a = Gather <axis = -4> (x, order) y = Transpose <perm = [0, 2, 1, 3, 4]> (a)"""
    assert "Transpose" not in check(moves(body, "4, 2, 3, 16"), draw(4, 2, 3, 16))


def test_in_a_branch_and_in_a_function() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
        g (bool c, float[2, 8, 12, 16] x) => (float[2, 12, 5, 16] y) {
            y = If (c) <then_branch = p () => (float[2, 12, 5, 16] a) { a = mine.f(x) },
                        else_branch = q () => (float[2, 12, 5, 16] b) {
                s = Constant <value = int64[1] {1}> () e = Constant <value = int64[1] {6}> ()
                t = Slice(x, s, e, s) b = Transpose <perm = [0, 2, 1, 3]> (t) }> }
        <domain: "mine", opset_import: ["" : 17]>
        f (x) => (y) {
            s = Constant <value = int64[1] {2}> () e = Constant <value = int64[1] {7}> ()
            o = Constant <value = int64[1] {1}> ()
            t = Slice(x, s, e, o) y = Transpose <perm = [0, 2, 1, 3]> (t) }
    """)
    after, _ = optimize(model, target="cpu")
    bodies = [a.g.node for a in after.graph.node[-1].attribute]
    assert sum(n.op_type == "Gather" for body in bodies for n in body) >= 1
    for taken in (True, False):
        feeds = {"c": np.array(taken), "x": draw(2, 8, 12, 16)}
        assert_same_outputs(model, after, feeds, tolerance=0)


@pytest.mark.parametrize("target", ["cpu", "rocm"])
@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
def test_exported_swin(exporter: str, target: str) -> None:
    """TorchScript reads a shape between the roll and the partition into windows."""
    before = onnx.load(FOLDER / f"swin-{exporter}.onnx")
    after, _ = optimize(before, target=target, skip=["norm_windows"])
    assert [n.attribute[0].i for n in after.graph.node if n.op_type == "Gather"].count(1) == 2
    assert not any(n.op_type == "Slice" for n in after.graph.node)
    for batch in (1, 3):
        feeds = {before.graph.input[0].name: RNG.standard_normal((batch, 64, 16)).astype(np.float32)}
        assert_same_outputs(before, after, feeds)


def test_moves_drawn_at_random() -> None:
    """Three to six movements in a row, each of any kind."""
    applied = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        dims, lines, constants = [int(d) for d in rng.integers(2, 6, 3)] + [16], [], {}
        fixed, x = list(dims), "x"
        for i in range(int(rng.integers(3, 7))):
            y, axis = f"v{i}", int(rng.integers(1, len(dims) - 1))
            kind = rng.choice(["Transpose", "Roll", "Slice", "Split", "Gather"])
            if kind == "Transpose":
                perm = [0, *(1 + rng.permutation(len(dims) - 2)).tolist(), len(dims) - 1]
                dims = [dims[p] for p in perm]
                lines.append(f"{y} = Transpose <perm = {perm}> ({x})")
            elif kind == "Split" and dims[axis] % 2 == 0:
                dims[axis : axis + 1] = [2, dims[axis] // 2]
                constants[f"s{i}"] = [-1, *dims[1:]]
                lines.append(f"{y} = Reshape({x}, s{i})")
            elif kind == "Gather":
                constants[f"s{i}"] = rng.integers(-dims[axis], dims[axis], int(rng.integers(1, 7))).tolist()
                dims[axis] = len(constants[f"s{i}"])
                lines.append(f"{y} = Gather <axis = {axis}> ({x}, s{i})")
            else:
                at = int(rng.integers(1, dims[axis])) if dims[axis] > 1 else 0
                constants[f"s{i}"], constants[f"a{i}"] = [at], [axis]
                lines.append(f"{y}a = Slice({x}, s{i}, many, a{i}) {y}b = Slice({x}, zero, s{i}, a{i})")
                lines.append(f"{y} = Concat <axis = {axis}> ({y}a, {y}b)")
            x = y if lines[-1].startswith(f"{y} =") else x
        model = moves("\n".join(lines) + f" y = Identity({x})", f"N, {str(fixed[1:])[1:-1]}", constants)
        applied += "APPLIED" in rewrite(model, [GatherRows()]).codes()
        check(model, RNG.standard_normal((2, *fixed[1:])).astype(np.float32))
    assert applied > 40


def test_values_with_other_readers_are_kept() -> None:
    for other in ("z = Relu(xc)", "z = Identity(xc)"):
        body = ROLL.format("", "c", "one", 1) + "y = Transpose <perm = [0, 2, 1, 3]> (xc) " + other
        text = f"g (float[N, 8, 12, 16] x) => (float y, float z) {{ {body} }}"
        model = model_from_text(text, NUMBERS)
        result = rewrite(model, [GatherRows()])
        assert "Transpose" in result.op_types  # only the roll becomes a Gather
        assert_same_outputs(model, result.proto, {"x": draw(2, 8, 12, 16)}, tolerance=0)


def test_rows_of_two_values_are_kept() -> None:
    text = """g (float[N, 8, 16] x, float[N, 8, 16] z) => (float y) {
        a = Slice(x, three, many, one) b = Slice(z, zero, three, one) y = Concat <axis = 1> (a, b) }"""
    assert rewrite(model_from_text(text, NUMBERS), [GatherRows()]).remarks == []


def test_a_gather_with_computed_indices_is_kept() -> None:
    text = """g (float[N, 8, 12, 16] x, int64[5] i) => (float y) {
        a = Transpose <perm = [0, 2, 1, 3]> (x) y = Gather <axis = 1> (a, i) }"""
    assert rewrite(model_from_text(text), [GatherRows()]).remarks == []


def test_long_chains_are_cut() -> None:
    """Long chains are replaced in parts, in linear time, and the results are equal."""
    names = ["x", *(f"v{i}" for i in range(2 * MOST_NODES)), "y"]
    body = " ".join(f"{b} = Transpose <perm = [0, 2, 1, 3]> ({a})" for a, b in itertools.pairwise(names))
    assert check(moves(body), draw(2, 8, 12, 16)).count("Gather") == 1


# Each token changes its place twice.
TURNS = "t = Transpose <perm = [0, 2, 1, 3]> (x) u = Concat <axis = 1> (t, t) y = Transpose <perm = [0, 2, 1, 3]> (u)"
REFUSED = {
    # The size of an image row is unknown.
    "UNKNOWN_SHAPE": moves(ROLL.format("", "c", "one", 1) + "y = Identity(xc)", "N, 8, W, 16"),
    "UNSUPPORTED_OP": moves(
        # ONNX Runtime and the specification disagree about a start before the first element.
        "a = Slice(x, before, end, one, back) y = Transpose <perm = [0, 2, 1, 3]> (a)",
        constants={"before": [-20], "end": [-30], "back": [-1]},
    ),
    "WRONG_SHAPE": moves(TURNS, f"N, 2, {MAX_ROWS // 2 + 1}, 16"),
    # The result contains the rows from the fourth on twice.
    "NO_GAIN": moves("a = Slice(x, three, many, one) y = Concat <axis = 1> (a, x)"),
}  # fmt: skip


@pytest.mark.parametrize("code", REFUSED)
def test_refused(code: str) -> None:
    result = rewrite(REFUSED[code], [GatherRows()])
    assert set(result.codes()) == {code}
    assert result.op_types == [n.op_type for n in REFUSED[code].graph.node]


def test_the_batch_of_windows_is_not_cut() -> None:
    """Along an axis of unknown length the positions of elements are unknown."""
    body = "t = Transpose <perm = [0, 2, 1, 3]> (x) y = Slice(t, zero, one, zero)"
    assert rewrite(moves(body), [GatherRows()]).codes() == ["UNKNOWN_SHAPE"]


def test_images_that_are_too_large() -> None:
    """Larger images are refused, since the pass computes the position of every element."""
    model = moves(TURNS, f"N, 2, {MAX_ELEMENTS // 32 + 1}, 16")
    assert set(rewrite(model, [GatherRows()]).codes()) == {"WRONG_SHAPE"}


def test_a_reshape_of_an_old_opset() -> None:
    body = """a = Slice <starts = [3], ends = [8], axes = [1]> (x) b = Slice <starts = [0], ends = [3], axes = [1]> (x)
      y = Concat <axis = 1> (a, b)"""
    assert rewrite(moves(body, opset=4), [GatherRows()]).codes() == ["OPSET"]
