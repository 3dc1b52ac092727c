"""Models are accepted in several forms (classes): the argument is not modified, the result has the same form."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnx_ir as ir
import pytest

import graphopt
from graphopt.errors import ModelLoadError
from graphopt.graph.reading import load
from models import ZOO
from tests.rewriting import assert_same_outputs, model_from_text
from tests.verification.test_verify import feeds_of


@pytest.fixture
def model() -> onnx.ModelProto:
    return ZOO["resnet18"](small=True)


def assert_optimized(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    assert "BatchNormalization" not in {n.op_type for n in after.graph.node}
    assert_same_outputs(before, after, feeds_of(before, 1), 1e-3)


def test_path(model: onnx.ModelProto, tmp_path: Path) -> None:
    path, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(model, path)
    data = path.read_bytes()
    for given in (path, str(path)):
        returned, report = graphopt.optimize(given, out, target="cpu", ignore_cost_model=True)
        assert returned == out
        assert report.changed
        assert path.read_bytes() == data
        assert_optimized(model, onnx.load(out))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.onnx", "out.onnx"]


def test_in_place(model: onnx.ModelProto, tmp_path: Path) -> None:
    path = tmp_path / "in.onnx"
    onnx.save(model, path)
    graphopt.optimize(path, path, target="cpu", ignore_cost_model=True, in_place=True)
    assert_optimized(model, onnx.load(path))


def test_model_proto(model: onnx.ModelProto) -> None:
    given = copy.deepcopy(model)
    after, _ = graphopt.optimize(given, target="cpu", ignore_cost_model=True)
    assert isinstance(after, onnx.ModelProto)
    assert given == model
    assert_optimized(model, after)


def test_initializers_are_declared_once() -> None:
    """The tensor of an initializer declares it; onnx_ir would repeat each in value_info, even if it is an output."""
    text = """g (float[N, 3, 4] x) => (float[N, 3, 4] y, float[3, 1] scale) {
        t = Mul (x, scale)
        y = Add (t, shift) }"""
    column = np.array([[1.0], [-2.0], [3.0]], np.float32)
    before = model_from_text(text, {"scale": column, "shift": column[::-1]}, check=False)
    after, report = graphopt.optimize(before, target="cpu", ignore_cost_model=True)
    assert report.changed
    assert [v.name for v in after.graph.value_info] == ["scale"]
    assert list(after.graph.output) == list(before.graph.output)
    assert_same_outputs(before, after, {"x": np.ones((2, 3, 4), np.float32)})


def test_a_described_initializer_keeps_its_type(model: onnx.ModelProto) -> None:
    """A doc string or a property of an initializer needs a declaration, which includes type and shape."""
    described = [w.name for w in model.graph.initializer if w.name.startswith("fc")]
    for name in described:
        weight = next(w for w in model.graph.initializer if w.name == name)
        info = model.graph.value_info.add()
        info.CopyFrom(onnx.helper.make_tensor_value_info(name, weight.data_type, weight.dims))
        info.doc_string = "what it is"
    after, _ = graphopt.optimize(model, target="cpu", ignore_cost_model=True)
    found = {v.name: v for v in after.graph.value_info if v.name in described}
    assert sorted(found) == sorted(described) and described
    assert all(v.type.tensor_type.elem_type and v.type.tensor_type.shape.dim for v in found.values())


def test_onnx_ir(model: onnx.ModelProto) -> None:
    given = ir.serde.deserialize_model(model)
    after, _ = graphopt.optimize(given, target="cpu", ignore_cost_model=True)
    assert isinstance(after, ir.Model)
    assert after is not given
    assert ir.serde.serialize_model(given) == ir.serde.serialize_model(ir.serde.deserialize_model(model))
    assert_optimized(model, ir.serde.serialize_model(after))


def test_export_program(model: onnx.ModelProto) -> None:
    """Torch is not a dependency: any object with an onnx_ir.Model as `.model` is accepted."""

    class Program:
        def __init__(self, inner: ir.Model) -> None:
            self.model = inner
            self.exported_program = "kept"

    given = Program(ir.serde.deserialize_model(model))
    inner = given.model
    after, _ = graphopt.optimize(given, target="cpu", ignore_cost_model=True)
    assert isinstance(after, Program)
    assert after is not given
    assert given.model is inner
    assert after.exported_program == "kept"
    assert_optimized(model, ir.serde.serialize_model(after.model))


def test_graphsurgeon(model: onnx.ModelProto) -> None:
    given = gs.import_onnx(model)
    count = len(given.nodes)
    after, _ = graphopt.optimize(given, target="cpu", ignore_cost_model=True)
    assert isinstance(after, gs.Graph)
    assert len(given.nodes) == count
    assert "BatchNormalization" not in {n.op for n in after.nodes}
    exported = gs.export_onnx(after)
    exported.ir_version = 8
    assert_optimized(model, exported)


def test_other_objects_are_refused() -> None:
    with pytest.raises(ModelLoadError, match="a list is not a model"):
        graphopt.optimize([1, 2, 3])


def test_dry_run_writes_nothing(model: onnx.ModelProto, tmp_path: Path) -> None:
    path = tmp_path / "in.onnx"
    onnx.save(model, path)
    _, report = graphopt.optimize(path, target="cpu", dry_run=True)
    assert report.changed
    assert [p.name for p in tmp_path.iterdir()] == ["in.onnx"]


def test_input_shape_is_fixed_in_the_result() -> None:
    model = ZOO["resnet18"](small=True, dynamic=True)
    name = model.graph.input[0].name
    dims = model.graph.input[0].type.tensor_type.shape.dim
    fixed = [3, *(d.dim_value for d in dims[1:])]
    after, _ = graphopt.optimize(model, target="cpu", input_shapes={name: fixed})
    assert [d.dim_value for d in after.graph.input[0].type.tensor_type.shape.dim] == fixed


def test_ir_version_3_initializers_leave_the_inputs() -> None:
    """In IR version 3 every initializer is also listed as an input, and runtimes treat it as a constant."""
    model = ZOO["resnet18"](small=True)
    model.ir_version = 3
    for tensor in model.graph.initializer:
        model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    after, _ = graphopt.optimize(model, target="cpu", ignore_cost_model=True)
    assert len(after.graph.input) == 1
    assert after.ir_version == 8
    assert "BatchNormalization" not in {n.op_type for n in after.graph.node}


def test_external_data_option(model: onnx.ModelProto, tmp_path: Path) -> None:
    path, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(model, path)
    graphopt.optimize(path, out, target="cpu", ignore_cost_model=True, external_data=True)
    assert (tmp_path / "out.onnx.data").is_file()
    assert_optimized(model, onnx.load(out))
    inside = tmp_path / "inside.onnx"
    graphopt.optimize(out, inside, target="cpu", ignore_cost_model=True, external_data=False)
    assert not any(
        t.data_location == onnx.TensorProto.EXTERNAL
        for t in onnx.load(inside, load_external_data=False).graph.initializer
    )
    assert_optimized(model, onnx.load(inside))


def test_lower_leaves_standard_nodes_only(
    model: onnx.ModelProto, graphopt_command: Callable[..., Any], tmp_path: Path
) -> None:
    path, out, lowered = (tmp_path / f"{n}.onnx" for n in ("in", "out", "lowered"))
    onnx.save(model, path)
    assert graphopt_command("optimize", path, out, "--target", "cpu", "--ignore-cost-model", "-q").exit_code == 0
    assert graphopt_command("lower", out, lowered).exit_code == 0
    result = onnx.load(lowered)
    assert {n.domain for n in result.graph.node} == {""}
    assert not result.functions
    onnx.checker.check_model(result, full_check=True)
    assert_same_outputs(model, result, feeds_of(model, 2))


def test_command_line(model: onnx.ModelProto, graphopt_command: Callable[..., Any], tmp_path: Path) -> None:
    path, out, report = tmp_path / "in.onnx", tmp_path / "out.onnx", tmp_path / "report.json"
    onnx.save(model, path)
    done = graphopt_command("optimize", path, out, "--target", "cpu", "--verify", "--json", report, "--explain")
    assert done.exit_code == 0, done.stderr
    assert "fold_batch_norm" in done.stdout
    assert "equal" in done.stdout
    data = json.loads(report.read_text())
    assert data["before"]["nodes"]["BatchNormalization"] > 0
    assert "BatchNormalization" not in data["after"]["nodes"]
    assert {r["code"] for r in data["remarks"]} >= {"APPLIED"}
    quiet = graphopt_command("optimize", path, out, "-q")
    assert (quiet.exit_code, quiet.stdout, quiet.stderr) == (0, "", "")
    assert "fold_batch_norm" in graphopt_command("passes").stdout
    assert graphopt_command("--version").stdout == f"graphopt {graphopt.__version__}\n"
    explained = graphopt_command("explain", path, "--target", "cpu")
    assert "refused winograd_conv" in explained.stdout
    assert graphopt_command("doctor").exit_code == 0
    assert json.loads(graphopt_command("doctor", "--json").stdout)["problems"] == []


def test_session_and_configure(model: onnx.ModelProto) -> None:
    import onnxruntime as ort

    after, _ = graphopt.optimize(model, target="cpu", ignore_cost_model=True)
    session = graphopt.session(after.SerializeToString(), ["CPUExecutionProvider"], intra_op_num_threads=1)
    feeds = feeds_of(model, 4)
    assert np.isfinite(session.run(None, feeds)[0]).all()
    # With a provider that compiles graphs the library is not registered, so registering it later works.
    options = ort.SessionOptions()
    assert graphopt.configure(options, ["MIGraphXExecutionProvider"]) == ["MIGraphXExecutionProvider"]
    options.register_custom_ops_library(str(graphopt.library_path()))
    ort.InferenceSession(after.SerializeToString(), options, providers=["CPUExecutionProvider"])


def test_session_warns_of_another_target(model: onnx.ModelProto) -> None:
    after, _ = graphopt.optimize(model, target="rocm:gfx942", ignore_cost_model=True)
    with pytest.warns(UserWarning, match="optimized for rocm:gfx942, but it runs on the CPU"):
        graphopt.session(after.SerializeToString(), ["CPUExecutionProvider"])


def test_loading_does_not_change_the_argument(model: onnx.ModelProto) -> None:
    before = model.SerializeToString(deterministic=True)
    load(model)
    assert model.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("number", ["INT4", "UINT4", "FLOAT4E2M1", "INT2", "UINT2"])
@pytest.mark.parametrize("size", [1, 4, 5])
def test_packed_elements_in_a_typed_field(number: str, size: int) -> None:
    data_type = getattr(onnx.TensorProto, number, None)
    if data_type is None:
        pytest.skip("this onnx has no such type")
    weight = onnx.helper.make_tensor("w", data_type, [size], [1] * size)
    assert weight.int32_data and not weight.raw_data
    node = onnx.helper.make_node("Identity", ["w"], ["y"])
    output = onnx.helper.make_tensor_value_info("y", data_type, [size])
    graph = onnx.helper.make_graph([node], "g", [], [output], [weight])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 25)])
    loaded = load(model).model.graph.initializers["w"].const_value
    assert loaded is not None
    np.testing.assert_array_equal(loaded.numpy().astype(float), 1)
