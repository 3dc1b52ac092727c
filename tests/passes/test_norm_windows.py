"""Norms that write windows and read them: padding, rotation, partition into windows and back; and refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from graphopt import optimize
from graphopt.forms.row_moves import MAX_ELEMENTS
from graphopt.ops.row_norm import window_rows
from graphopt.passes.clean_up import CleanUp
from graphopt.passes.fuse_row_norm import FuseRowNorm
from graphopt.passes.gather_rows import GatherRows
from graphopt.passes.norm_windows import NormWindows, _windows_of
from tests.rewriting import Array, assert_same_outputs, model_from_text, rewrite

RNG = np.random.default_rng(35)
FOLDER = Path(__file__).parent / "exported"
PASSES = [CleanUp(), FuseRowNorm(), GatherRows(), NormWindows()]
INTO, OUT_OF = "FusedLayerNormIntoWindows", "FusedLayerNormAddSumFromWindows"
D = 32
# Both models round, and elements are up to eight times as large as the RMS.
TOLERANCE = {"float": 1e-5, "float16": 1e-2}


def draw(*shape: int, T: str = "float") -> Array:
    return RNG.standard_normal(shape).astype({"float": np.float32, "float16": np.float16}[T])


def roll(x: str, y: str, down: int, right: int) -> str:
    """Returns torch.roll by constants of these names; a shift of 0 adds no nodes."""
    text = ""
    for axis, by in (("one", down), ("two", right)):
        if by:
            text += f"{y}{axis}_a = Slice({x}, n{by}, many, {axis}) {y}{axis}_b = Slice({x}, n0, n{by}, {axis}) "
            text += f"{y}{axis} = Concat <axis = {1 if axis == 'one' else 2}> ({y}{axis}_a, {y}{axis}_b) "
            x = f"{y}{axis}"
    return text + f"{y} = Identity({x}) "


def constants(image: tuple[int, int], window: tuple[int, int], shift: tuple[int, int]) -> dict[str, list[int]]:
    (H, W), (h, w), (rows, columns) = image, window, (-(-image[0] // window[0]), -(-image[1] // window[1]))
    back = [rows * h - shift[0], columns * w - shift[1]]
    numbers = {f"n{n}": [n] for n in {0, H, W, *shift, *back}} | {"one": [1], "two": [2], "many": [2**31 - 1]}
    return numbers | {
        "pads": [0, 0, 0, 0, 0, rows * h - H, columns * w - W, 0],
        "cut": [-1, rows, h, columns, w, D],
        "windows": [-1, h * w, D],
        "padded": [-1, rows * h, columns * w, D],
        "as_image": [-1, H, W, D],
    }


def model(
    body: str, dims: str, numbers: dict[str, list[int]], T: str = "float", opset: int = 17, more: str = ""
) -> onnx.ModelProto:
    text = f"g ({T}[{dims}] x{more}) => ({T} y{', ' + T + ' z' if more else ''}) {{ {body} }}"
    of_type = {name: draw(D, T=T) for name in ("gamma", "beta")}
    return model_from_text(text, {k: np.array(v, np.int64) for k, v in numbers.items()} | of_type, opset)


NORM = "LayerNormalization <axis = -1, epsilon = 1e-5>"
# Image, window, shift.
GEOMETRIES = (
    ((4, 6), (2, 3), (0, 0)),
    ((8, 8), (4, 4), (2, 2)),
    ((5, 7), (3, 2), (1, 1)),
    ((6, 6), (4, 4), (0, 0)),
    ((3, 4), (1, 4), (2, 0)),
)


def into(image: tuple[int, int], window: tuple[int, int], shift: tuple[int, int], dims: str, T: str) -> onnx.ModelProto:
    padded = any(n % m for n, m in zip(image, window))
    body = f"n = {NORM} (x, gamma, beta) i = Reshape(n, as_image) p = {'Pad(i, pads)' if padded else 'Identity(i)'} "
    body += roll("p", "r", *shift) + "c = Reshape(r, cut) t = Transpose <perm = [0, 1, 3, 2, 4, 5]> (c) "
    return model(body + "v = Reshape(t, windows) y = Relu(v)", dims, constants(image, window, shift), T)


def out_of(
    image: tuple[int, int], window: tuple[int, int], shift: tuple[int, int], dims: str, T: str
) -> onnx.ModelProto:
    numbers = constants(image, window, shift)
    (H, W), back = image, [numbers["padded"][i + 1] - shift[i] if shift[i] else 0 for i in (0, 1)]
    body = "u = Relu(w) c = Reshape(u, cut) t = Transpose <perm = [0, 1, 3, 2, 4, 5]> (c) i = Reshape(t, padded) "
    body += roll("i", "r", *back) + f"h = Slice(r, n0, n{H}, one) k = Slice(h, n0, n{W}, two) v = Reshape(k, like) "
    body += f"z = Add(x, v) y = {NORM} (z, gamma, beta)"
    numbers["cut"] = [-1, *(numbers["cut"][i] for i in (1, 3, 2, 4, 5))]
    numbers["like"] = [-1, H, W, D] if dims.count(",") == 3 else [-1, H * W, D]
    count = numbers["cut"][1] * numbers["cut"][2]
    windows = f"{T}[{dims.split(',')[0]}, {count}, {window[0] * window[1]}, {D}] w"
    return model(body, dims, numbers, T, more=f", {windows}")


@pytest.mark.parametrize("T", ["float", "float16"])
@pytest.mark.parametrize(("image", "window", "shift"), GEOMETRIES)
@pytest.mark.parametrize("batch", ["N", "1", "3"])
def test_into_windows(
    batch: str, image: tuple[int, int], window: tuple[int, int], shift: tuple[int, int], T: str
) -> None:
    H, W = image
    for dims in (f"{batch}, {H}, {W}, {D}", f"{batch}, {H * W}, {D}"):
        before = into(image, window, shift, dims, T)
        after = rewrite(before, PASSES)
        # Several window geometries may give the same order of rows. A Reshape to the image's shape may remain.
        assert [op for op in after.op_types if op not in ("Identity", "Reshape")] == [INTO, "Relu"]
        for n in (1, 3) if batch == "N" else (int(batch),):
            shape = (n, *(int(d) for d in dims.split(",")[1:]))
            assert_same_outputs(before, after.proto, {"x": draw(*shape, T=T)}, TOLERANCE[T])


@pytest.mark.parametrize("T", ["float", "float16"])
@pytest.mark.parametrize(("image", "window", "shift"), GEOMETRIES)
@pytest.mark.parametrize("batch", ["N", "1", "3"])
def test_out_of_windows(
    batch: str, image: tuple[int, int], window: tuple[int, int], shift: tuple[int, int], T: str
) -> None:
    H, W = image
    for dims in (f"{batch}, {H}, {W}, {D}", f"{batch}, {H * W}, {D}"):
        before = out_of(image, window, shift, dims, T)
        after = rewrite(before, PASSES)
        assert [op for op in after.op_types if op not in ("Identity", "Reshape")] == ["Relu", OUT_OF]
        count = -(-H // window[0]) * -(-W // window[1])
        for n in (1, 3) if batch == "N" else (int(batch),):
            shape = (n, *(int(d) for d in dims.split(",")[1:]))
            feeds = {"x": draw(*shape, T=T), "w": draw(n, count, window[0] * window[1], D, T=T)}
            assert_same_outputs(before, after.proto, feeds, TOLERANCE[T])


def sum_into(geometry: tuple[tuple[int, int], ...], dims: str, T: str = "float") -> onnx.ModelProto:
    """Returns a residual sum that is also an output, and its norm cut into windows."""
    image, window, shift = geometry
    padded = any(n % m for n, m in zip(image, window))
    body = f"z = Add(x, w) n = {NORM} (z, gamma, beta) i = Reshape(n, as_image) "
    body += f"p = {'Pad(i, pads)' if padded else 'Identity(i)'} " + roll("p", "r", *shift)
    body += "c = Reshape(r, cut) t = Transpose <perm = [0, 1, 3, 2, 4, 5]> (c) v = Reshape(t, windows) y = Relu(v)"
    return model(body, dims, constants(image, window, shift), T, more=f", {T}[{dims}] w")


@pytest.mark.parametrize("T", ["float", "float16"])
@pytest.mark.parametrize("geometry", [g for g in GEOMETRIES if g[0][0] % g[1][0] == g[0][1] % g[1][1] == 0])
@pytest.mark.parametrize("batch", ["N", "1", "3"])
def test_a_sum_into_windows(batch: str, geometry: tuple[tuple[int, int], ...], T: str) -> None:
    H, W = geometry[0]
    for dims in (f"{batch}, {H}, {W}, {D}", f"{batch}, {H * W}, {D}"):
        before = sum_into(geometry, dims, T)
        after = rewrite(before, PASSES)
        ours = [op for op in after.op_types if op not in ("Identity", "Reshape")]
        assert ours == ["FusedLayerNormAddSumIntoWindows", "Relu"]
        for n in (1, 3) if batch == "N" else (int(batch),):
            shape = (n, *(int(d) for d in dims.split(",")[1:]))
            feeds = {"x": draw(*shape, T=T), "w": draw(*shape, T=T)}
            assert_same_outputs(before, after.proto, feeds, TOLERANCE[T])


def test_a_sum_of_padded_images() -> None:
    before = sum_into(GEOMETRIES[2], f"N, 5, 7, {D}")
    assert [r.code for r in rewrite(before, PASSES).remarks if r.pass_name == "norm_windows"] == ["WRONG_SHAPE"]


def test_a_residual_that_was_padded() -> None:
    """The padded residual has zeros in positions that the operator would read from the last window."""
    body = f"""u = Relu(w) s = Slice(u, n0, three, one) p = Pad(s, last) c = Reshape(p, cut)
        t = Transpose <perm = [0, 1, 3, 2, 4, 5]> (c) v = Reshape(t, like) z = Add(x, v) y = {NORM} (z, gamma, beta)"""
    numbers = FOUR_BY_SIX | {"three": [3], "last": [0, 0, 0, 0, 0, 1, 0, 0], "like": [-1, 24, D], "n0": [0]}
    numbers["cut"] = [-1, 2, 2, 2, 3, D]
    before = model(body, f"N, 24, {D}", numbers, more=f", float[N, 4, 6, {D}] w")
    after = rewrite(before, PASSES)
    assert OUT_OF not in after.op_types
    assert_same_outputs(before, after.proto, {"x": draw(2, 24, D), "w": draw(2, 4, 6, D)})


@pytest.mark.parametrize("target", ["cpu", "rocm"])
@pytest.mark.parametrize("name", ["swin-dynamo", "sam-dynamo"])
def test_exported(name: str, target: str) -> None:
    """There is no copy between the norm and the GEMM, and in Swin none after the attention."""
    before = onnx.load(FOLDER / f"{name}.onnx")
    after, _ = optimize(before, target=target)
    ops = [n.op_type for n in after.graph.node]
    behind = ops[ops.index(INTO) + 1 :]
    assert not {"Transpose", "Gather", "Pad", "Slice"} & set(
        behind[: next(i for i, op in enumerate(behind) if "Mat" in op or "Lin" in op)]
    )
    assert (OUT_OF in ops) == ("swin" in name)
    shape = (64, 16) if "swin" in name else (6, 6, 32)
    for batch in (1, 3):
        assert_same_outputs(before, after, {before.graph.input[0].name: draw(batch, *shape)}, tolerance=5e-5)


def test_windows_are_found_from_rows() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        image = (int(rng.integers(1, 13)), int(rng.integers(1, 13)))
        window = tuple(int(rng.integers(1, n + 1)) for n in image)
        shift = tuple(int(rng.integers(0, n)) for n in image)
        rows = window_rows(image, window, shift).reshape(-1)
        found = _windows_of(rows, image[0] * image[1])
        assert found is not None
        np.testing.assert_array_equal(window_rows(*found.sizes).reshape(-1), rows)


def test_other_nodes_after_norms_are_no_candidates() -> None:
    """A Transpose to channels first, a split into heads and a flat Reshape leave no remark."""
    for moves, numbers in (
        ("y = Transpose <perm = [0, 3, 1, 2]> (n)", {}),
        ("r = Reshape(n, heads) y = Transpose <perm = [0, 3, 1, 2, 4]> (r)", {"heads": [-1, 4, 6, 2, 16]}),
        ("y = Reshape(n, flat)", {"flat": [-1, D]}),
    ):
        before = model(f"n = {NORM} (x, gamma, beta) {moves}", f"N, 4, 6, {D}", numbers)
        assert [r.code for r in rewrite(before, PASSES).remarks if r.pass_name == "norm_windows"] == []


def test_values_with_other_readers_are_kept() -> None:
    image, window, shift = GEOMETRIES[0]
    for other in ("z = Relu(n)", "z = Relu(t)", "z = Identity(n)"):
        body = f"n = {NORM} (x, gamma, beta) c = Reshape(n, cut) t = Transpose <perm = [0, 1, 3, 2, 4, 5]> (c) {other} "
        body += "v = Reshape(t, windows) y = Relu(v)"
        before = model(body, f"N, 4, 6, {D}", constants(image, window, shift), more=", float[1] w")
        after = rewrite(before, PASSES)
        assert "Transpose" in after.op_types or other == "z = Relu(t)"
        assert_same_outputs(before, after.proto, {"x": draw(2, 4, 6, D), "w": draw(1)})


CUT = "c = Reshape(n, cut) t = Transpose <perm = [0, 1, 3, 2, 4, 5]> (c) y = Reshape(t, windows)"
FOUR_BY_SIX = constants(*GEOMETRIES[0])
SIX_BY_SIX = constants(*GEOMETRIES[3])
REFUSED = {
    "WRONG_PERM": (
        f"n = {NORM} (x, gamma, beta) y = Gather <axis = 1> (n, order)", {"order": [3, 1, 0, 2]}, f"N, 4, {D}", 17,
    ),
    "UNKNOWN_SHAPE": (f"n = {NORM} (x, gamma, beta) y = Transpose <perm = [0, 2, 1, 3]> (n)", {}, f"N, H, W, {D}", 17),
    "PADDED": (
        f"n = {NORM} (x, gamma, beta) p = Pad <mode = \"edge\"> (n, pads) c = Reshape(p, cut) "
        "t = Transpose <perm = [0, 1, 3, 2, 4, 5]> (c) y = Reshape(t, windows)",
        SIX_BY_SIX, f"N, 6, 6, {D}", 17,
    ),
    "UNSUPPORTED_OP": (
        f"n = {NORM} (x, gamma, beta) y = Slice(n, before, end, one, back)",
        {"before": [-20], "end": [-30], "one": [1], "back": [-1]}, f"N, 4, 6, {D}", 17,
    ),
    "WRONG_SHAPE": (
        f"n = {NORM} (x, gamma, beta) y = Transpose <perm = [0, 2, 1, 3]> (n)", {},
        f"N, 2, {MAX_ELEMENTS // D // 2 + 1}, {D}", 17,
    ),
}  # fmt: skip


@pytest.mark.parametrize("code", REFUSED)
def test_refused(code: str) -> None:
    body, numbers, dims, opset = REFUSED[code]
    result = rewrite(model(body, dims, numbers, opset=opset), [FuseRowNorm(), NormWindows()])
    assert [r.code for r in result.remarks if r.pass_name == "norm_windows"] == [code]
    assert result.op_types[0] == "FusedLayerNorm"


def test_an_opset_without_attributes_as_constants() -> None:
    body = """m = ReduceMean <axes = [-1], keepdims = 1> (x) d = Sub(x, m) square = Constant <value = float {2.0}> ()
        q = Pow(d, square) s = ReduceMean <axes = [-1], keepdims = 1> (q) e = Constant <value = float {1e-5}> ()
        a = Add(s, e) r = Sqrt(a) f = Div(d, r) g = Mul(f, gamma) n = Add(g, beta) """
    before = model(body + CUT, f"N, 4, 6, {D}", FOUR_BY_SIX, opset=11)
    assert [r.code for r in rewrite(before, PASSES).remarks if r.pass_name == "norm_windows"] == ["OPSET"]


def test_a_target_without_operators_of_ours() -> None:
    before = model(f"n = {NORM} (x, gamma, beta) " + CUT, f"N, 4, 6, {D}", FOUR_BY_SIX)
    assert [r.code for r in rewrite(before, PASSES, device="portable").remarks if r.pass_name == "norm_windows"] == [
        "TARGET"
    ]


@pytest.mark.parametrize("change", ["axis = 1", "stash_type = 16"])
def test_other_norms(change: str) -> None:
    """On GPUs a LayerNormalization with another axis or stash_type does not write windows."""
    norm = f"LayerNormalization <{change}>"
    before = model(f"n = {norm} (x, gamma, beta) " + CUT, f"N, 4, 6, {D}", FOUR_BY_SIX)
    if change == "axis = 1":
        for constant in before.graph.initializer:
            if constant.name in ("gamma", "beta"):
                constant.CopyFrom(onnx.numpy_helper.from_array(draw(4, 6, D), constant.name))
    assert "FusedLayerNormIntoWindows" not in rewrite(before, [NormWindows()], device="cuda").op_types
