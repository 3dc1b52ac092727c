"""Sizes that `verify` tries: they follow from the nodes, grow after refusals and fit into memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import graphopt
from graphopt.graph.cost import Estimator, installed_memory
from graphopt.inputs.declared import deserialized
from graphopt.inputs.plan import Allowance, Case, InputOptions, plan
from graphopt.inputs.relations import relations_of
from tests.inputs.cases import make_cases
from tests.rewriting import model_from_text

# A decoder step whose input names say nothing about the roles of the inputs.
STEP = """g (float[A, 2, S, 8] q, float[A, 2, P, 8] c, float[A, 2, S, 8] k, float[A, 1, S, T] w)
    => (float[A, 2, S, 8] y, float[A, 2, U, 8] n) {
    n = Concat <axis: int = 2> (c, k) t = Transpose <perm: ints = [0, 1, 3, 2]> (n) s = MatMul(q, t)
    z = Add(s, w) p = Softmax <axis: int = -1> (z) y = MatMul(p, n) }"""
ATTENTION = """g (float[b, s, 16] x, float[b, 1, s, t] m, float[b, 2, p, 4] pk, float[b, 2, p, 4] pv)
    => (float[b, s, 16] y, float[b, 2, u, 4] nk, float[b, 2, u, 4] nv) {
    k = MatMul(x, w) y, nk, nv = Attention <q_num_heads: int = 4, kv_num_heads: int = 2> (x, k, k, m, pk, pv) }"""
GROUPED = """g (float[b, s, 32] x, float[b, 2, p, 8] ck, float[b, 2, p, 8] cv, {more})
    => (float[b, s, 32] y, float[b, 2, u, 8] nk, float[b, 2, u, 8] nv) {{
    k = MatMul(x, w) {ends}
    y, nk, nv = com.microsoft.GroupQueryAttention <num_heads: int = 4, kv_num_heads: int = 2>
        (x, k, k, ck, cv, ends, total) }}"""
COUNTED = """sums = ReduceSum <keepdims: int = 0> (m, one) less = Sub(sums, one) ends = Cast <to: int = 6> (less)
    shape = Shape(m) length = Gather(shape, place) total = Cast <to: int = 6> (length)"""
WEIGHTS = {"w": np.ones((32, 16), np.float32), "one": np.array([1]), "place": np.array(1)}


def _grouped(more: str, ends: str = "") -> onnx.ModelProto:
    text = GROUPED.format(more=more, ends=ends)
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18, "com.microsoft": 1]> {text}')


def _with_constants(model: onnx.ModelProto) -> onnx.ModelProto:
    named = {name for node in model.graph.node for name in node.input}
    tensors = (onnx.numpy_helper.from_array(a, n) for n, a in WEIGHTS.items() if n in named)
    model.graph.initializer.extend(tensors)
    return model


def _related(model: onnx.ModelProto) -> dict[str, str]:
    symbols = dict.fromkeys(d.dim_param for v in model.graph.input for d in v.type.tensor_type.shape.dim if d.dim_param)
    return {s: str(size) for s, size in relations_of(model, list(symbols)).sums.items()}


def test_a_mask_is_as_long_as_the_kept_and_the_new_steps() -> None:
    assert _related(model_from_text(STEP)) == {"T": "P + S"}
    attention = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 23]> {ATTENTION}')
    attention.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((16, 8), np.float32), "w"))
    assert _related(attention) == {"t": "p + s"}
    assert _related(_with_constants(_grouped("int64[b, t] m", COUNTED))) == {"t": "p + s"}


def test_a_size_that_a_weight_decides() -> None:
    model = model_from_text(
        "g (float[N, K] x, float[M, H] z) => (float[N, 3] y) { a = MatMul(x, w) b = Add(a, z) y = Relu(b) }",
        {"w": np.ones((5, 3), np.float32)},
    )
    assert _related(model) == {"K": "5", "M": "N", "H": "3"}


def test_frames_of_a_mask_follow_from_samples() -> None:
    """The output size of a convolution is a floor division, evaluated for each size."""
    model = model_from_text(
        "g (float[N, 1, L] x, float[N, 1, F] m) => (float[N, 1, F] y) "
        "{ c = Conv <strides: ints = [4]> (x, w) y = Mul(c, m) }",
        {"w": np.ones((1, 1, 10), np.float32)},
    )
    sizes = relations_of(model, ["N", "L", "F"]).completed({"N": 2, "L": 33, "F": 7})
    assert sizes == {"N": 2, "L": 33, "F": 6}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("S,", "1,"),
        ("n = Concat <axis: int = 2> (c, k)", "i = Identity(c) n = Concat <axis: int = 2> (i, k)"),
    ],
)
def test_one_new_token_after_a_long_past(old: str, new: str) -> None:
    cases = make_cases(model_from_text(STEP.replace(old, new) if old else STEP), seed=0)
    steps = {(c.feeds["q"].shape[2], c.feeds["c"].shape[2]) for c in cases}
    assert {(1, 17), (1, 129), (1, 1025)} <= steps
    assert all(c.feeds["w"].shape[3] == c.feeds["q"].shape[2] + c.feeds["c"].shape[2] for c in cases)


def test_lengths_of_grouped_attention() -> None:
    """Drawn lengths fit the size of the cache; a mask whose ones are counted keeps at least as many keys as are new."""
    given = make_cases(_with_constants(_grouped("int32[b] ends, int32 total")), seed=0)
    for case in given:
        kept, new = case.feeds["ck"].shape[2], case.feeds["x"].shape[1]
        assert case.feeds["total"] == kept + new
        assert (case.feeds["ends"] < kept + new).all() and (case.feeds["ends"] + 1 >= (new if kept else 1)).all()
    counted = make_cases(_with_constants(_grouped("int64[b, t] m", COUNTED)), seed=0)
    for case in counted:
        kept, new = case.feeds["ck"].shape[2], case.feeds["x"].shape[1]
        assert (case.feeds["m"].sum(axis=1) >= (new if kept else 1)).all()


def _sizes(cases: list[Case], name: str) -> set[tuple[int, int]]:
    return {case.feeds[name].shape for case in cases}


def test_extreme_and_random_sizes() -> None:
    model = model_from_text("g (float[N, L] x) => (float[N, L] y) { y = Relu(x) }")
    found = _sizes(make_cases(model, seed=0), "x")
    assert {(1, 1), (3, 1), (3, 16), (1, 576), (3, 576)} <= found
    assert any(n > 4 and s > 32 for n, s in found)
    assert any(n > 1 and 64 < s < 480 for n, s in found)
    assert any(s > 256 and s % 2 for n, s in found)
    assert any(n * s > 1024 for n, s in found)
    assert any(n == s > 1 for n, s in found)
    assert any(4 < n < 70 and n % 2 for n, s in found)
    assert found == _sizes(make_cases(model, seed=0), "x")


def test_sizes_grow_until_the_model_accepts_them() -> None:
    """A speech feature extractor refuses fewer than 400 samples, and 512 samples give its attention one frame."""
    taken: list[int] = []

    def accepts(case: Case) -> bool:
        length: int = case.feeds["x"].shape[1]
        if length >= 400:
            taken.append(length)
        return length >= 400

    model = model_from_text("g (float[N, L] x) => (float[N, L] y) { y = Relu(x) }")
    plan(model, InputOptions(), accepts, Allowance())
    assert len({n for n in taken if n > 5 * 400}) > 5
    assert min(taken) < 800


def test_the_length_of_an_example() -> None:
    """A model traced with 50 tokens reshapes to 50."""
    model = model_from_text(
        "g (float[N, L] x) => (float[N, M] y) { r = Reshape(x, shape) y = Relu(r) }", {"shape": np.array([-1, 50])}
    )
    taken: list[Case] = []

    def accepts(case: Case) -> bool:
        fits = bool(case.feeds["x"].shape[1] == 50)
        taken.extend([case] * fits)
        return fits

    plan(model, InputOptions(), accepts, Allowance())
    assert len(taken) > 10


# -- the cost of a set ------------------------------------------------------------------------------------------------

TOKENS = """g (float[B, 16, H, W] x) => (float[B, 16, H, W] y) {
    f = Reshape(x, flat) t = Transpose <perm: ints = [0, 2, 1]> (f) s = MatMul(t, f) p = Softmax <axis: int = -1> (s)
    c = MatMul(p, t) u = Transpose <perm: ints = [0, 2, 1]> (c) shape = Shape(x) y = Reshape(u, shape) }"""


def _tokens() -> onnx.ModelProto:
    return model_from_text(TOKENS, {"flat": np.array([0, 16, -1])})


def test_estimates_of_attention_over_pixels() -> None:
    """Two tensors of (H W)^2 scores are alive at once; a score is a sum of 16 products, a result a sum of H W."""
    cost = Estimator(deserialized(_tokens())).of({"x": (2, 16, 32, 64)})
    tokens = 32 * 64
    scores = 2 * tokens * tokens
    assert 2 * 4 * scores <= cost.bytes < 2.2 * 4 * scores
    assert 2 * 16 * scores < cost.work < 2 * 16 * scores + 100 * 3 * scores
    assert cost.outputs == 4 * 2 * 16 * tokens


def test_estimates_of_a_convolution_and_a_recurrence() -> None:
    model = model_from_text(
        "g (float[N, 8, H, W] x) => (float[N, 4, H, W] y) { y = Conv <pads: ints = [1, 1, 1, 1]> (x, w) }",
        {"w": np.ones((4, 8, 3, 3), np.float32)},
    )
    few, many = (Estimator(deserialized(model)).of({"x": (1, 8, n, n)}).work for n in (64, 128))
    sums = 4 * 8 * 9 * 64 * 64
    assert sums < few < 2 * sums + 1e6
    assert 3.5 < many / few < 4.1


@pytest.mark.parametrize("given", ["x, , scales", "x, , , sizes"])
def test_estimates_after_a_resize(given: str) -> None:
    """Shape inference ignores fractional scales; the estimate uses them."""
    model = model_from_text(
        f"g (float[N, 1, H, W] x) => (float[N, 1, A, B] y) {{ r = Resize({given}) y = Relu(r) }}",
        {"scales": np.array([1, 1, 2.5, 4], np.float32), "sizes": np.array([2, 1, 25, 80])},
    )
    assert Estimator(deserialized(model)).of({"x": (2, 1, 10, 20)}).outputs == 4 * 2 * 25 * 80


def test_sets_beyond_memory_are_left_out() -> None:
    cases: list[Case] = []

    def accepts(case: Case) -> bool:
        cases.append(case)
        return True

    left_out = plan(_tokens(), InputOptions(), accepts, Allowance(bytes=1 << 28))
    estimator = Estimator(deserialized(_tokens()))
    assert cases and all(4 * estimator.of({"x": c.feeds["x"].shape}).bytes <= 1 << 28 for c in cases)
    assert any("GiB" in what for what in left_out.values())
    assert any(c.feeds["x"].shape[2:] != (64, 64) for c in cases)


def test_work_decides_how_many_sets_run() -> None:
    """The work decides, not the elapsed time: the same model gets the same sets on every machine."""
    model = model_from_text(
        "g (float[N, L, 256] x) => (float[N, L, 256] y) { a = MatMul(x, w) b = MatMul(a, w) y = MatMul(b, w) }",
        {"w": np.eye(256, dtype=np.float32)},
    )

    def names(work: float) -> list[str]:
        found: list[str] = []

        def accepts(case: Case) -> bool:
            found.append(case.name)
            return True

        plan(model, InputOptions(), accepts, Allowance(work=work))
        return found

    assert len(names(0)) < len(names(1e9)) < len(names(1e11))
    assert names(1e9) == names(1e9)


@pytest.mark.parametrize("equation", ["...ij,...jk->...ik", "b...ij,b...jk->b...ik", "bhij,bhjk->bhik"])
def test_work_of_an_einsum(equation: str) -> None:
    """It is that of a MatMul, except for the traffic of a result with an unknown shape."""
    text = f"""g (float[2, 3, 50, 70] x, float[2, 3, 70, 90] w) => (float[a, b, c, d] y) {{
        y = Einsum <equation: string = "{equation}"> (x, w) }}"""
    plain = "g (float[2, 3, 50, 70] x, float[2, 3, 70, 90] w) => (float[2, 3, 50, 90] y) { y = MatMul (x, w) }"
    einsum, matmul = (Estimator(deserialized(model_from_text(t))).of({}).work for t in (text, plain))
    assert abs(einsum - matmul) < 2 * 3 * 50 * 70 * 90 / 4


def test_memory_of_this_machine() -> None:
    assert 1 << 28 < installed_memory() < 1 << 50


# -- the report ------------------------------------------------------------------------------------------------------


def test_the_report_lists_sizes(tmp_path: Path) -> None:
    model = model_from_text("g (float[N, L] x) => (float[N, L] y) { y = Relu(x) }")
    report = graphopt.verify(model, model, effort="quick")
    assert {"N": 3, "L": 1} in report.sizes and {"N": 1, "L": 576} in report.sizes
    assert any(note.startswith("sizes tried: N 1, 2, 3") and "combinations" in note for note in report.notes)
    assert report.cases["tiny"] == "floats are normal, times 1e-4"


@pytest.mark.parametrize("count", [32, 33, 64, 65, 98])
def test_a_difference_of_the_last_value_is_located(count: int) -> None:
    """Values are compared in groups; the last group may be smaller."""
    chain = " ".join(f"v{i + 1} = {'Tanh' if i % 2 else 'Softsign'}(v{i})" for i in range(count - 1))
    texts = (f"g (float[2] v0) => (float[2] last) {{ {chain} last = {op}(v{count - 1}) }}" for op in ("Exp", "Cosh"))
    report = graphopt.verify(*map(model_from_text, texts), effort="quick")
    assert any("the first value of both models that differs is 'last'" in note for note in report.notes), report.notes


def test_a_difference_is_saved_and_located(tmp_path: Path) -> None:
    before = model_from_text("g (float[N, 4] x) => (float[N, 4] y) { a = Tanh(x) b = Exp(a) y = Sqrt(b) }")
    after = model_from_text("g (float[N, 4] x) => (float[N, 4] y) { a = Tanh(x) b = Cosh(a) y = Sqrt(b) }")
    report = graphopt.verify(before, after, save_inputs=tmp_path)
    assert any("the first value of both models that differs is 'b', the result of Exp" in n for n in report.notes)
    assert (tmp_path / "test_data_set_0" / "output_0.pb").is_file()
    again = graphopt.verify(before, after, inputs=tmp_path, save_inputs=tmp_path)
    assert not again and {row.case for row in again.rows} == {"test_data_set_0"}
    assert (tmp_path / "test_data_set_1" / "input_0.pb").is_file()


def test_nothing_is_saved_where_nothing_differs(tmp_path: Path) -> None:
    model = model_from_text("g (float[N, 4] x) => (float[N, 4] y) { y = Tanh(x) }")
    assert graphopt.verify(model, model, save_inputs=tmp_path / "made", effort="quick")
    assert not (tmp_path / "made").exists()
