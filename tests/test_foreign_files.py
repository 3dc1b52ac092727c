"""Faults found by files of other projects (docs/measurements/outside_files.md): the smallest model for each.

Every model is optimized or refused with a code, stays as valid as before, loads at ONNX Runtime's default level and
agrees.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper

import graphopt
from graphopt.errors import ModelLoadError
from graphopt.options import Precision
from graphopt.report.data import Report
from tests.rewriting import assert_runs, assert_same_outputs, run

Array = npt.NDArray[Any]
TARGETS = ("cpu", "rocm", "cuda", "migraphx", "portable")
rng = np.random.default_rng(7)


def draw(*shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def parse(
    text: str, header: str = '<ir_version: 8, opset_import: ["" : 17]>', **initializers: Array
) -> onnx.ModelProto:
    model: onnx.ModelProto = onnx.parser.parse_model(f"{header}\n{text}")
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in initializers.items())
    return model


def check(
    model: onnx.ModelProto,
    *feeds: dict[str, Array],
    precision: Precision | None = None,
) -> dict[str, tuple[onnx.ModelProto, Report]]:
    """Optimizes for every target and compares on all feeds; returns model and report of each target."""
    found = {}
    for target in TARGETS:
        after, report = graphopt.optimize(model, target=target, ignore_cost_model=True, check=True, precision=precision)
        if _is_valid(model):
            onnx.checker.check_model(after)
        for f in feeds:
            if precision is None:
                assert_same_outputs(model, after, f)
                continue
            assert_runs(model, after, f)
            # Intermediate values have other types.
            for want, got in zip(run(model, f), run(after, f), strict=True):
                np.testing.assert_allclose(got, want, rtol=2e-2, atol=2e-2 * np.abs(want).max())
        found[target] = after, report
    return found


def _is_valid(model: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError:
        return False
    return True


def operators(model: onnx.ModelProto) -> list[str]:
    return [n.op_type for n in model.graph.node]


# -- dimensions without information ------------------------------------------------------------------------------------

UNKNOWN_DIMS = ["-1", "-2", "0", "2147483647", "9223372036854775807", "'?'", "'-1'", "'None'", "'unknown'", "''"]


def declare(value: onnx.ValueInfoProto, *dims: str) -> None:
    """Sets dimensions: an integer, or a quoted symbol."""
    shape = value.type.tensor_type.shape
    del shape.dim[:]
    for text in dims:
        if text.startswith("'"):
            shape.dim.add(dim_param=text.strip("'"))
        else:
            shape.dim.add(dim_value=int(text))


@pytest.mark.parametrize("dim", UNKNOWN_DIMS)
def test_shapes_are_not_computed_from_a_wrong_dimension(dim: str) -> None:
    model = parse(
        "g (float[N,4] x) => (int64[1] y) { r = Relu(x)  s = Shape<start=0, end=1>(r)  y = Mul(s, ten) }",
        ten=np.array([10]),
    )
    model.graph.value_info.append(helper.make_tensor_value_info("r", 1, ["N", 4]))
    interface = model.graph.input[0]
    for changed in (model.graph.value_info[0], interface):
        declare(changed, dim, "4")
        check(model, *[{"x": draw(n, 4)} for n in rows(dim, changed is interface)])
    after, _ = graphopt.optimize(model, target="cpu")
    assert after.graph.input == model.graph.input  # the interface keeps its declared dimensions


def rows(dim: str, of_input: bool) -> tuple[int, ...]:
    """Returns the sizes that runtimes accept for a declared dimension; they only check inputs."""
    return (3, 1) if not of_input or not dim.isdecimal() else (0,) if dim == "0" else ()


@pytest.mark.parametrize("dim", UNKNOWN_DIMS)
def test_unknown_dimensions_are_not_equal(dim: str) -> None:
    """A residual of one row does not have the shape that FusedLayerNormAdd requires."""
    model = parse(
        "g (float[N,8] x, float[M,8] r) => (float[K,8] y) { s = Add(x, r)  y = LayerNormalization<axis=-1>(s, g, b) }",
        g=draw(8), b=draw(8),
    )  # fmt: skip
    for value in model.graph.input:
        declare(value, dim, "8")
    check(model, *[{"x": draw(n, 8), "r": draw(m, 8)} for n in rows(dim, True) for m in {n, min(n, 1)}])


def test_reshape_and_expand_by_such_a_shape() -> None:
    model = parse(
        """g (float[-1,4] x, float[1,4] z) => (float[a,2,2] y, float[b,4] e) {
        s = Shape<start=0, end=1>(x)  t = Concat<axis=0>(s, tail)  y = Reshape(x, t)  f = Shape(x)
        e = Expand(z, f) }""",
        tail=np.array([2, 2]),
    )
    declare(model.graph.input[0], "-1", "4")
    check(model, {"x": draw(3, 4), "z": draw(1, 4)}, {"x": draw(1, 4), "z": draw(1, 4)})


def test_an_output_with_an_unknown_dimension_may_be_of_our_operator() -> None:
    text = "g (float[N,4] x) => (float[N,4] y) { p = MatMul(x, w)  a = Add(p, b)  y = Relu(a) }"
    model = parse(text, w=draw(4, 4), b=draw(4))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = -1
    found = check(model, {"x": draw(3, 4)})
    assert operators(found["rocm"][0]) == operators(found["cuda"][0]) == ["LinearRelu"]
    assert all(m.graph.output[0].type.tensor_type.shape.dim[0].dim_value == -1 for m, _ in found.values())


def test_an_output_with_an_unknown_dimension_in_half_precision() -> None:
    """A Cast produces the output here; the norm's result is internal, and does not keep the output's declared shape."""
    model = parse(
        "g (float[N,8] x, float[M,8] r) => (float[K,8] y) { s = Add(x, r)  y = LayerNormalization<axis=-1>(s, g, b) }",
        g=draw(8), b=draw(8),
    )  # fmt: skip
    for value in (*model.graph.input, *model.graph.output):
        declare(value, "-1", "8")
    found = check(model, *({"x": draw(3, 8), "r": draw(m, 8)} for m in (1, 3)), precision="fp16")
    assert operators(found["rocm"][0])[-2:] == ["FusedLayerNorm", "Cast"]


def test_input_shapes_fix_an_unknown_dimension() -> None:
    model = parse(
        "g (float[N,4] x) => (int64[1] y) { s = Shape<start=0, end=1>(x)  y = Mul(s, ten) }", ten=np.array([10])
    )
    declare(model.graph.input[0], "-1", "4")
    after, _ = graphopt.optimize(model, target="cpu", input_shapes={"x": (3, 4)})
    assert_same_outputs(model, after, {"x": draw(3, 4)})


@pytest.mark.parametrize("batch", ["-1", "'N'", "''", "4"])
def test_outdated_shapes_of_intermediate_values(batch: str) -> None:
    """A tool that only changes the batch of the inputs leaves the old one on intermediate values and outputs."""
    model = parse(
        "g (float[1,4] x) => (float[1,4] y, int64[2] n) { r = Relu(x)  t = Tanh(r)  n = Shape(t)  y = Reshape(t, n) }"
    )
    model = onnx.shape_inference.infer_shapes(model)
    declare(model.graph.input[0], batch, "4")
    check(model, {"x": draw(4, 4)})


def test_declared_shapes_count_where_inference_finds_none() -> None:
    """After an operator without inference, declared shapes are the only information."""
    model = parse(
        """g (float[N,4,8] x) => (float[N,4,8] y) {
        q = com.microsoft.Pad(x, none)  s = Add(q, x)  y = LayerNormalization<axis=-1>(s, g, b) }""",
        '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>', g=draw(8), b=draw(8),
        none=np.zeros(6, np.int64),
    )  # fmt: skip
    model.graph.value_info.append(helper.make_tensor_value_info("q", 1, ["N", 4, 8]))
    after, _ = check(model, {"x": draw(2, 4, 8)})["cpu"]
    assert operators(after) == ["Pad", "FusedLayerNormAdd"]


# -- values without a type -------------------------------------------------------------------------------------------

MICROSOFT = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'


@pytest.mark.parametrize("untyped", [False, True])
def test_nodes_after_an_operator_that_onnx_does_not_know(untyped: bool) -> None:
    convolutions = parse(
        """g (float[N,16,8,8] x) => (float[N,16,8,8] y) { a = com.microsoft.Pad(x, none)
        p = Conv<pads=[1,1,1,1]>(a, w)  q = Tanh(p)  r = Conv<pads=[1,1,1,1]>(q, w)  y = Relu(r) }""",
        MICROSOFT, w=draw(16, 16, 3, 3), none=np.zeros(8, np.int64),
    )  # fmt: skip
    product = parse(
        """g (float[N,4,8] x) => (float[N,4,8] y) { a = com.microsoft.Pad(x, none)  m = MatMul(a, w)
        s = Add(m, b)  t = Relu(s)  y = Add(t, x) }""",
        MICROSOFT, w=draw(8, 8), b=draw(8), none=np.zeros(6, np.int64),
    )  # fmt: skip
    for model, x in ((convolutions, draw(2, 16, 8, 8)), (product, draw(2, 4, 8))):
        loadable = onnx.ModelProto()
        loadable.CopyFrom(model)
        if untyped:
            model.graph.value_info.append(onnx.ValueInfoProto(name="a"))
            model.graph.value_info[0].type.tensor_type.elem_type = TensorProto.UNDEFINED
        for target in TARGETS:
            after, report = graphopt.optimize(model, target=target, ignore_cost_model=True, check=True)
            if report.changed:
                assert all(v.type.tensor_type.elem_type for v in after.graph.value_info)
                assert_same_outputs(loadable, after, {"x": x}, tolerance=1e-4)  # two Winograd convolutions in a row


# -- the default domain ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "imports",
    [
        '"ai.onnx" : 13',
        '"" : 9, "ai.onnx" : 13',
        '"ai.onnx" : 9, "" : 13',
    ],
)
def test_the_default_domain_by_its_other_name(imports: str) -> None:
    header = f"<ir_version: 8, opset_import: [{imports}]>"
    squeeze = parse(
        "g (float[1,1] x) => (float[a,b] y) { c = Squeeze(k, zero)  s = Shape(c)  y = Expand(x, s) }",
        header, k=draw(1, 3, 2), zero=np.array([0]),
    )  # fmt: skip
    check(squeeze, {"x": draw(1, 1)})
    slices = parse("g (float[4,4] x) => (float[a,b] y) { y = Slice(x, s, e, a) }", header,
                   s=np.array([1]), e=np.array([3]), a=np.array([1]))  # fmt: skip
    check(slices, {"x": draw(4, 4)})
    named = parse("""g (float[N,3,8,8] x) => (float[a,b,c,d] y) {
        t = Conv(x, w)  u = ai.onnx.BatchNormalization(t, s, z, z, s)  y = Relu(u) }""",
                  header, w=draw(4, 3, 3, 3), s=np.abs(draw(4)) + 1, z=draw(4))  # fmt: skip
    named.graph.node[1].domain = "ai.onnx"
    for after, _ in check(named, {"x": draw(2, 3, 8, 8)}).values():
        assert "BatchNormalization" not in operators(after)


def test_the_default_domain_in_a_function() -> None:
    model = parse(
        """g (float[N,3,8,8] x) => (float[a,b,c,d] y) { y = local.f(x) }
        <domain: "local", opset_import: ["ai.onnx" : 17]> f (x) => (y) {
        w = Constant<value = float[1,3,1,1] {1.0, 2.0, 3.0}>()  o = Constant<value = float[1] {2.0}>()
        t = Conv(x, w)  y = BatchNormalization(t, o, o, o, o) }""",
        '<ir_version: 8, opset_import: ["ai.onnx" : 17, "local" : 1]>',
    )
    usual = onnx.ModelProto()
    usual.CopyFrom(model)
    usual.functions[0].opset_import[0].domain = ""  # runtimes do not accept the other name in a function
    for target in TARGETS:
        after, report = graphopt.optimize(model, target=target, ignore_cost_model=True, check=True)
        if report.changed:
            assert_same_outputs(usual, after, {"x": draw(2, 3, 8, 8)})


@pytest.mark.parametrize(
    "header", ['<ir_version: 8, opset_import: ["com.microsoft" : 1]>', '<ir_version: 8, opset_import: ["" : 0]>']
)
def test_no_version_of_the_default_domain(header: str) -> None:
    """The meaning of such a model's operators is undefined."""
    model = parse("g (float[N,4] x) => (float[N,4] y) { a = Identity(x)  b = Squeeze(a)  y = Slice(b) }", header)
    after, report = graphopt.optimize(model, target="cpu", precision="fp16")
    assert after == model
    assert any("is not rewritten" in note for note in report.notes)


def test_operators_of_the_default_domain_that_the_model_defines() -> None:
    model = parse(
        """g (float[N,4] x) => (float[N,4] y) { a = Identity(x)  y = Identity(a) }
        <domain: "", opset_import: ["" : 17]> Identity (x) => (y) { y = Add(x, x) }"""
    )
    after, report = graphopt.optimize(model, target="cpu")
    assert after == model
    assert any("is not rewritten" in note for note in report.notes)


# -- bugs of ONNX Runtime's own rewrites ------------------------------------------------------------------------------


@pytest.mark.parametrize("perm", ["[1,0,2]", "[0,2,1]"])
@pytest.mark.parametrize("second", [False, True])
def test_half_precision_and_the_layout_of_a_product(perm: str, second: bool) -> None:
    """Transpose of float16, Cast, MatMul crashes onnxruntime 1.22.2 and 1.31.1 at the default level."""
    weight = draw(4, 3) if second else draw(8, 5)
    operands = "w, t" if second else "t, w"
    text = f"e = Gather(table, ids)  t = Transpose<perm={perm}>(e)  y = MatMul({operands})"
    if second or perm == "[0,2,1]":
        weight = draw(5, 4) if perm == "[1,0,2]" else draw(5, 8) if second else draw(3, 5)
    model = parse(f"g (int64[4,3] ids) => (float[a,b,c] y) {{ {text} }}", table=draw(9, 8), w=weight)
    check(model, {"ids": rng.integers(0, 9, (4, 3))}, precision="fp16")


@pytest.mark.parametrize("end", ["y = MatMul(t, w)", "m = MatMul(t, w)  a = Add(m, b)  y = Relu(a)"])
@pytest.mark.parametrize(("shape", "perm"), [((4, 3), "1,0,2"), ((2, 4, 3), "1,2,0,3")])
def test_float16_transpose_of_the_batch_becomes_one_after_the_matmul(
    shape: tuple[int, ...], perm: str, end: str
) -> None:
    """Float16 Transpose and MatMul without other nodes crash onnxruntime 1.31.1 on its CPU (tract's LSTMs)."""
    rows = ",".join("NMK"[: len(shape)])
    text = f"e = Gather(table, ids)  t = Transpose<perm=[{perm}]>(e)  {end}"
    model = parse(
        f"g (int64[{rows}] ids) => (float[{rows.lower()},d] y) {{ {text} }}", table=draw(9, 8), w=draw(8, 5), b=draw(5)
    )
    found = check(model, {"ids": rng.integers(0, 9, shape)}, precision="fp16")
    for target in ("rocm", "cuda", "portable"):
        names = operators(found[target][0])
        assert names.index("Transpose") > min(names.index(n) for n in names if n in ("MatMul", "LinearRelu"))


@pytest.mark.parametrize(
    ("w", "perm", "end"),
    [
        ((8, 9), "1,0,2", "y = MatMul(t, w)"),
        ((8, 8), "1,0,2", "m = MatMul(t, w)  a = Add(m, b)  q = Relu(t)  y = Add(a, q)"),
        ((2, 3, 8, 2), "1,0,2", "y = MatMul(t, w)"),
        ((5, 8), "1,2,0", "y = MatMul(w, t)"),
    ],
)
def test_float16_transpose_of_the_batch_before_a_matmul_gets_an_axis(w: tuple[int, ...], perm: str, end: str) -> None:
    """The transposed factor gets a leading axis: longer rows, a residual, a batched factor, or it is the second factor.

    Moving the Transpose behind the GEMM would cost more, or give another result. Such GEMMs crash onnxruntime 1.31.1.
    """
    model = parse(
        f"""g (int64[N,M] ids) => (float y) {{
        e = Gather(table, ids)  t = Transpose<perm=[{perm}]>(e)  {end} }}""",
        table=draw(9, 8), w=draw(*w), b=draw(8),
    )  # fmt: skip
    found = check(model, {"ids": rng.integers(0, 9, (4, 3))}, precision="fp16")
    names = operators(found["rocm"][0])
    assert (
        names.index("Transpose") < names.index("Unsqueeze") < names.index("LinearAdd" if "a = Add" in end else "MatMul")
    )
    again, _ = graphopt.optimize(found["rocm"][0], target="rocm", ignore_cost_model=True, precision="fp16")
    assert operators(again) == names


def test_attention_with_rows_before_heads() -> None:
    """PyTorch 1.8's Transformer: rows first, with sizes that no runtime infers, hence K's rank is unknown."""
    model = parse(
        """g (int64[S,N] ids) => (float[a,b,c] y) {
        e = Gather(table, ids)  shape = Shape(e)  one = Constant<value_ints=[1]>()  two = Constant<value_ints=[2]>()
        rows = Constant<value_ints=[-1]>()  width = Constant<value_ints=[4]>()
        n = Gather(shape, one)  heads = Mul(n, two)  split = Concat<axis=0>(rows, heads, width)
        qp = MatMul(e, wq)  kp = MatMul(e, wk)  vp = MatMul(e, wv)
        q = Reshape(qp, split)  k = Reshape(kp, split)  v = Reshape(vp, split)
        qt = Transpose<perm=[1,0,2]>(q)  kt = Transpose<perm=[1,2,0]>(k)  vt = Transpose<perm=[1,0,2]>(v)
        s = MatMul(qt, kt)  p = Softmax<axis=-1>(s)  o = MatMul(p, vt)  y = Transpose<perm=[1,0,2]>(o) }""",
        '<ir_version: 8, opset_import: ["" : 13]>',
        table=draw(9, 8), wq=draw(8, 8) / 4, wk=draw(8, 8) / 4, wv=draw(8, 8),
    )  # fmt: skip
    found = check(model, {"ids": rng.integers(0, 9, (5, 3))}, precision="fp16")
    assert "FusedAttention" in operators(found["rocm"][0])


def test_float16_matmul_after_our_operator() -> None:
    """ONNX Runtime's CPU provider computes a float16 MatMul and its Transpose in float32, but not after our kernel."""
    model = parse(
        """g (float16[2,3,4,8] x) => (float16 y) {
        c = Conv(x, f)  a = Add(c, b)  t = Transpose<perm=[1,2,0,3]>(a)  y = MatMul(t, w) }""",
        f=draw(3, 3, 1, 1).astype(np.float16), b=draw(3, 1, 1).astype(np.float16), w=draw(8, 9).astype(np.float16),
    )  # fmt: skip
    feeds = {"x": draw(2, 3, 4, 8).astype(np.float16)}
    for target in TARGETS:
        after, _ = graphopt.optimize(model, target=target, ignore_cost_model=True, check=True)
        assert_runs(model, after, feeds)
    assert "FusedConv" in operators(graphopt.optimize(model, target="cpu", ignore_cost_model=True)[0])


def test_a_float32_matmul_after_a_float16_transpose() -> None:
    """A GEMM keeps float32 because of its range; the model for a GPU target also runs on the CPU."""
    model = parse(
        "g (float[4,3,8] x) => (float[a,b,c] y) { m = MatMul(x, v)  t = Transpose<perm=[1,0,2]>(m)  y = MatMul(t, w) }",
        v=draw(8, 8), w=draw(8, 5) * np.float32(1e6),
    )  # fmt: skip
    check(model, {"x": draw(4, 3, 8)}, precision="fp16")


@pytest.mark.parametrize("op", ["Identity(t)", "Cast<to=1>(t)", "Dropout(t)"])
def test_a_value_that_is_read_does_not_become_a_graph_output(op: str) -> None:
    model = parse(
        f"""g (float[4,3] a, float[5,3] b) => (float[5,5] y, float[3,4] z) {{
        t = Transpose(a)  u = Transpose(b)  y = Gemm<transA=1>(t, u)  z = {op} }}"""
    )
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 4
    check(model, {"a": draw(4, 3), "b": draw(5, 3)})


def test_a_graph_output_gets_no_other_readers() -> None:
    model = parse(
        """g (float[4,3] a, float[5,3] b) => (float[4,5] y, float[3,4] z) {
        z = Transpose(a)  t = Transpose(a)  u = Transpose(b)  y = Gemm<transA=1>(t, u) }"""
    )
    check(model, {"a": draw(4, 3), "b": draw(5, 3)})


def test_an_identity_that_is_the_only_reader_is_removed() -> None:
    model = parse("g (float[4,3] a) => (float[4,3] z) { t = Relu(a)  z = Identity(t) }")
    assert [operators(after) for after, _ in check(model, {"a": draw(4, 3)}).values()] == [["Relu"]] * len(TARGETS)


# -- versions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ir_version", [3, 4, 7])
def test_ir_version_and_initializers(ir_version: int) -> None:
    model = parse(
        """g (float[N,3,8,8] x, float[4,3,3,3] w, float[4,1,1] b) => (float[a,4,6,6] y) {
        c = Conv(x, w)  y = Add(c, b) }""",
        f'<ir_version: {ir_version}, opset_import: ["" : 9]>', w=draw(4, 3, 3, 3), b=draw(4, 1, 1),
    )  # fmt: skip
    if ir_version > 3:
        del model.graph.input[1:]
    onnx.checker.check_model(model)
    for after, _ in check(model, {"x": draw(2, 3, 8, 8)}).values():
        assert after.ir_version == (
            8 if any(n.domain == "com.graphopt" for n in after.graph.node) else max(ir_version, 4)
        )


def test_a_model_without_rewrites_is_returned_unchanged() -> None:
    model = parse("g (float[N,4] x, float[4] b) => (float[N,4] y) { y = Add(x, b) }",
                  '<ir_version: 3, opset_import: ["" : 9]>', b=draw(4))  # fmt: skip
    after, _ = graphopt.optimize(model, target="portable")
    assert after == model


# -- operands of two types -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [11, 16])
@pytest.mark.parametrize("residual", [False, True])
def test_the_runtimes_own_layer_normalization(opset: int, residual: bool) -> None:
    """Below opset 17 it is ONNX Runtime's own operator, which accepts a float32 scale with float16 data."""
    first = "s = Add(a, b)" if residual else "s = Mul(a, b)"
    model = parse(
        f"""g (float16[N,4,8] a, float16[N,4,8] b) => (float[N,4,8] y) {{
        {first}  y = LayerNormalization<axis=-1>(s, g) }}""",
        f'<ir_version: 8, opset_import: ["" : {opset}]>', g=draw(8),
    )  # fmt: skip
    a = draw(2, 4, 8).astype(np.float16)
    for after, report in check(model, {"a": a, "b": a[::-1].copy()}).values():
        assert "LayerNormalization" in operators(after)
        assert "MIXED_DTYPE" in {r.code for r in report.remarks}


# -- operands of another rank ----------------------------------------------------------------------------------------


def test_slice_with_scalars() -> None:
    """Neither the runtimes nor the specification allow scalars as bounds of Slice: such nodes are left unchanged."""
    model = parse(
        "g (float[4,4] x) => (float[a,b] y) { z = Relu(x)  y = Slice(z, s, e) }", s=np.array(0), e=np.array(2**62)
    )
    check(model)


@pytest.mark.parametrize("op", ["Unsqueeze(x, n)", "Squeeze(x, n)", "Expand(x, n)", "Reshape(x, n)", "Tile(x, n)",
                                "Pad(x, n)", "ReduceSum(x, n)", "Slice(x, n, n, n, n)", "Slice(x, m, n)",
                                "Gather(x, n)", "ConstantOfShape(n)", "Range(m, m, m)", "Resize(x, m, m)",
                                "Split(x, n)", "TopK(x, n)", "OneHot(n, n, x)", "Clip(x, v, v)",
                                "Trilu(x, m)"])  # fmt: skip
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_no_traceback_for_operands_of_another_rank(op: str, rank: int) -> None:
    n = np.zeros((1,) * rank, np.int64)
    model = parse(
        f"g (float[1,4] x) => (float[a,b] y) {{ t = {op}  u = Shape(t)  v0 = Squeeze(u, m)  y = Reshape(x, u) }}",
        n=n, m=np.zeros((1, 1), np.int64), v=draw(1),
    )  # fmt: skip
    constants = parse(
        f"g (float[1,4] z) => (float[a,b] y) {{ t = {op}  u = Shape(t)  y = Reshape(z, u) }}",
        n=n, m=np.zeros((1, 1), np.int64), v=draw(1), x=draw(1, 4),
    )  # fmt: skip
    for m in (model, constants):
        for target in ("cpu", "portable"):
            graphopt.optimize(m, target=target, ignore_cost_model=True, check=True)


# -- element types without names --------------------------------------------------------------------------------------


@pytest.mark.parametrize("nested", [False, True])
def test_maps_are_not_supported(nested: bool) -> None:
    model = parse("g (float[N,2] x) => (float[N,2] y) { y = Identity(x) }")
    model.opset_import.add(domain="ai.onnx.ml", version=3)
    model.graph.node.append(helper.make_node("ZipMap", ["x"], ["z"], domain="ai.onnx.ml", classlabels_int64s=[0, 1]))
    entry = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    kind = helper.make_sequence_type_proto(entry) if nested else entry
    model.graph.output.append(helper.make_value_info("z", kind))
    with pytest.raises(ModelLoadError, match=r"^the model: has values of map type, .*; export it without ZipMap"):
        graphopt.optimize(model, target="cpu")


def test_an_output_that_is_listed_twice() -> None:
    model = parse("g (float[2,8] x) => (float[2,8] y) { t = MatMul(x, w)  y = Relu(t) }", w=draw(8, 8))
    model.graph.output.append(model.graph.output[0])
    for precision in (None, "fp16"):
        for after, _ in check(model, {"x": draw(2, 8)}, precision=precision).values():
            assert [v.name for v in after.graph.output] == ["y", "y"]


def test_a_model_without_outputs() -> None:
    model = parse("g (float[2,8] x) => () { y = Relu(x) }")
    after, _ = graphopt.optimize(model, target="cpu")
    assert after == model


def test_an_output_that_is_half_already() -> None:
    model = parse("g (float[2,8] x) => (float16[2,8] y) { t = MatMul(x, w)  y = Cast<to=10>(t) }", w=draw(8, 8))
    check(model, {"x": draw(2, 8)}, precision="fp16")


@pytest.mark.parametrize("precision", [None, "fp16"])
def test_outer_values_in_bodies_of_foreign_operators_keep_their_types(precision: Precision | None) -> None:
    """BeamSearch creates a session of its body, and takes the types of outer values from the body's value_info."""
    body = onnx.parser.parse_graph("b (float[N,8] p) => (float[N,8] q) { t = MatMul(p, w)  q = MatMul(t, r) }")
    for name in ("w", "r"):
        body.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, 8]))
    model = parse("g (float[8,8] x) => (float[a,b] y) { i = Identity(x)  r = Relu(i) }", MICROSOFT, w=draw(8, 8))
    model.graph.node.append(helper.make_node("Search", ["x"], ["y"], domain="com.microsoft", decoder=body))
    after, report = graphopt.optimize(model, target="cpu", precision=precision, check=True)
    assert report.changed
    (left,) = (a.g for a in after.graph.node[-1].attribute)
    read = {name for node in left.node for name in node.input} - {"p", *(o for n in left.node for o in n.output)}
    assert {v.name for v in left.value_info if v.type.tensor_type.elem_type == TensorProto.FLOAT} >= read
    assert len({v.name for v in left.value_info}) == len(left.value_info)


def test_a_declared_type_that_contradicts_the_node() -> None:
    """ConstantOfShape gives float32, the output declares int64: neither runtime loads it, which must stay so."""
    model = parse("g () => (int64[2,3] y) { y = ConstantOfShape(n) }", n=np.array([2, 3]))
    check(model, precision="fp16")


# -- lost information -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("default", [True, False])
def test_a_matmul_with_an_input_as_weight_leaves_a_remark(default: bool) -> None:
    model = parse(
        "g (float[N,8] x, float[8,8] w) => (float[N,8] y) { m = MatMul(x, w)  s = Add(m, b)  y = Relu(s) }", b=draw(8)
    )
    if default:
        model.graph.initializer.append(onnx.numpy_helper.from_array(draw(8, 8), "w"))
    _, report = graphopt.optimize(model, target="cuda", ignore_cost_model=True)
    codes = [r.code for r in report.remarks if r.pass_name == "feed_forward"]
    assert codes == ["OVERRIDABLE" if default else "NOT_CONSTANT"]


@pytest.mark.parametrize(
    ("b", "scales", "zp"), [((4, 2, 8), (4,), (4,)), ((4, 1, 8), (8,), (4,)), ((4, 1, 8), (4, 1), (4, 2))]
)
def test_packed_weights_of_another_size(b: tuple[int, ...], scales: tuple[int, ...], zp: tuple[int, ...]) -> None:
    """MatMulNBits of onnxruntime 1.22 runs with operands that are too long (from MIGraphX's negative tests)."""
    header = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'
    text = "com.microsoft.MatMulNBits<K = 16, N = 4, bits = 4, block_size = 16>(a, b, s, z)"
    inputs = (("float", "a", (2, 16)), ("uint8", "b", b), ("float", "s", scales), ("uint8", "z", zp))
    declared = ", ".join(f"{dtype}[{','.join(map(str, shape))}] {name}" for dtype, name, shape in inputs)
    model = parse(f"g ({declared}) => (float[2,4] y) {{ y = {text} }}", header)
    for target in TARGETS:
        after, report = graphopt.optimize(model, target=target, ignore_cost_model=True, check=True)
        assert after == model
        assert "WRONG_SHAPE" in {r.code for r in report.remarks}
