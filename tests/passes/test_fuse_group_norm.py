"""GroupNorm in every exported form, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from graphopt.passes.fuse_group_norm import FuseGroupNorm
from tests.rewriting import assert_same_outputs, model_from_text, rewrite

RNG = np.random.default_rng(3)
C, G = 6, 3


def parameters(shape: tuple[int, ...] = (C, 1, 1)) -> dict[str, Any]:
    return {
        "s": np.ones(G, np.float32),
        "b": np.zeros(G, np.float32),
        "gamma": RNG.standard_normal(shape).astype(np.float32),
        "beta": RNG.standard_normal(shape).astype(np.float32),
    }


def instance_norm_form(
    x: str = f"float[N, {C}, H, W]", first: str = f"0, {G}, -1", second: str | None = None, affine: bool = True
) -> onnx.ModelProto:
    restore = "shape = Shape(x)" if second is None else f"shape = Constant <value_ints: ints = [{second}]> ()"
    tail = "t = Mul(ungrouped, gamma)\n y = Add(t, beta)" if affine else "y = Identity(ungrouped)"
    text = f"""g ({x} x) => (float[N, {C}, H, W] y) {{
        grouping = Constant <value_ints: ints = [{first}]> ()
        grouped = Reshape(x, grouping)
        n = InstanceNormalization <epsilon: float = 0.001> (grouped, s, b)
        {restore}
        ungrouped = Reshape(n, shape)
        {tail}
    }}"""
    values = parameters()
    if not affine:
        del values["gamma"], values["beta"]
    return model_from_text(text, values)


def written_out(axes: str = "2", square: str = "q = Mul(d, d)") -> onnx.ModelProto:
    text = f"""g (float[N, {C}, H, W] x) => (float[N, {C}, H, W] y) {{
        grouping = Constant <value_ints: ints = [0, {G}, -1]> ()
        two = Constant <value_float: float = 2.0> ()
        eps = Constant <value_float: float = 0.00001> ()
        grouped = Reshape(x, grouping)
        m = ReduceMean <axes: ints = [{axes}], keepdims: int = 1> (grouped)
        d = Sub(grouped, m)
        {square}
        v = ReduceMean <axes: ints = [{axes}], keepdims: int = 1> (q)
        ve = Add(v, eps)
        std = Sqrt(ve)
        n = Div(d, std)
        shape = Shape(x)
        ungrouped = Reshape(n, shape)
        t = Mul(gamma, ungrouped)
        y = Add(t, beta)
    }}"""
    return model_from_text(text, parameters())


def standard(opset: int) -> onnx.ModelProto:
    size = G if opset < 21 else C
    scale = RNG.standard_normal(size).astype(np.float32)
    text = f"""g (float[N, {C}, H, W] x) => (float[N, {C}, H, W] y) {{
        y = GroupNormalization <num_groups: int = {G}, epsilon: float = 0.01> (x, scale, bias)
    }}"""
    # The checker calls version 18 deprecated, but such files exist.
    return model_from_text(text, {"scale": scale, "bias": scale[::-1].copy()}, opset=opset, check=opset >= 21)


def with_per_group_parameters() -> onnx.ModelProto:
    model = instance_norm_form()
    for i, tensor in enumerate(model.graph.initializer):
        if tensor.name in ("s", "b"):
            values = RNG.standard_normal(G).astype(np.float32)
            model.graph.initializer[i].CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    return model


FORMS: dict[str, Callable[[], onnx.ModelProto]] = {
    "instance_norm": instance_norm_form,
    "no_affine": lambda: instance_norm_form(affine=False),
    "constant_shape": lambda: instance_norm_form(f"float[2, {C}, 5, 7]", second=f"2, {C}, 5, 7"),
    "copied_batch": lambda: instance_norm_form(second=f"0, {C}, 5, 7", x=f"float[N, {C}, 5, 7]"),
    "per_group_parameters": with_per_group_parameters,
    "written_out": written_out,
    "written_out_pow": lambda: written_out(square="q = Pow(d, two)"),
    "standard_21": lambda: standard(21),
}


@pytest.mark.parametrize("form", FORMS)
def test_becomes_one_node(form: str) -> None:
    model = FORMS[form]()
    result = rewrite(model, [FuseGroupNorm()])
    assert "FusedGroupNorm" in result.op_types
    assert not {"InstanceNormalization", "GroupNormalization", "Sqrt", "Reshape"} & set(result.op_types)
    for shape in ((2, C, 5, 7), (1, C, 5, 7)) if form != "constant_shape" else ((2, C, 5, 7),):
        assert_same_outputs(model, result.proto, {"x": (RNG.standard_normal(shape) * 3 + 1).astype(np.float32)})


def test_opset_18_scale_per_group() -> None:
    """Version 18 has one scale per group; the older runtime cannot run it, so the numpy definition is the reference."""
    model = standard(18)
    result = rewrite(model, [FuseGroupNorm()])
    assert result.op_types == ["FusedGroupNorm"]
    scale = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}["scale"]
    gamma = onnx.numpy_helper.to_array(result.proto.graph.initializer[0])
    np.testing.assert_array_equal(gamma, np.repeat(scale, C // G))


def test_second_run_changes_nothing() -> None:
    once = rewrite(instance_norm_form(), [FuseGroupNorm()])
    twice = rewrite(once.proto, [FuseGroupNorm()])
    assert twice.proto == once.proto


def refusal(model: onnx.ModelProto, device: str = "cpu") -> str:
    result = rewrite(model, [FuseGroupNorm()], device=device)
    assert "FusedGroupNorm" not in result.op_types
    (remark,) = result.remarks
    return remark.code


@pytest.mark.parametrize("device", ["portable", "migraphx"])
def test_the_exported_form_is_kept_on_standard_targets(device: str) -> None:
    assert refusal(instance_norm_form(), device=device) == "TARGET"


@pytest.mark.parametrize("device", ["portable", "migraphx"])
@pytest.mark.parametrize("dims", [("H", "W"), (5, "W"), (5, 4), ("H",)])
def test_the_standard_operator_becomes_the_exported_form(dims: tuple[int | str, ...], device: str) -> None:
    model = standard(21)
    for value in (model.graph.input[0], model.graph.output[0]):
        del value.type.tensor_type.shape.dim[2:]
        for d in dims:
            value.type.tensor_type.shape.dim.add(**{"dim_param" if isinstance(d, str) else "dim_value": d})
    result = rewrite(model, [FuseGroupNorm()], device=device)
    shape = ["Shape"] if dims == ("H", "W") else []
    assert result.op_types == ["Reshape", "InstanceNormalization", *shape, "Reshape", "Mul", "Add"]
    x = RNG.standard_normal((2, C, *(d if isinstance(d, int) else 7 for d in dims))).astype(np.float32)
    assert_same_outputs(model, result.proto, {"x": x})
    assert rewrite(result.proto, [FuseGroupNorm()], device=device).proto == result.proto


def test_the_standard_operator_in_float16_keeps_its_statistics() -> None:
    model = standard(21)
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    for tensor in model.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor).astype(np.float16)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    assert refusal(model, device="portable") == "WRONG_DTYPE"


def test_refuses_groups_that_do_not_divide() -> None:
    model = standard(21)
    model.graph.node[0].attribute[0].i = 4
    assert refusal(model) == "WRONG_SHAPE"


def test_refuses_wrong_dtype() -> None:
    model = standard(21)
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.elem_type = onnx.TensorProto.BFLOAT16
    for tensor in model.graph.initializer:
        array = np.zeros(C, np.uint16)
        tensor.CopyFrom(onnx.TensorProto(name=tensor.name, dims=[C], data_type=16, raw_data=array.tobytes()))
    assert refusal(model) == "WRONG_DTYPE"


def test_refuses_unknown_rank() -> None:
    model = standard(21)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    assert refusal(model) == "UNKNOWN_RANK"


def test_refuses_unknown_channels() -> None:
    model = standard(21)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "C"
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "C"
    assert refusal(model) == "UNKNOWN_SHAPE"


def test_refuses_rank_2() -> None:
    text = f"g (float[N, {C}] x) => (float[N, {C}] y) {{ y = GroupNormalization <num_groups: int = {G}> (x, s, b) }}"
    values = {"s": np.ones(C, np.float32), "b": np.ones(C, np.float32)}
    assert refusal(model_from_text(text, values, opset=21)) == "WRONG_RANK"


def test_refuses_non_constant_scale() -> None:
    text = f"""g (float[N, {C}, H] x, float[{C}] s) => (float[N, {C}, H] y) {{
        y = GroupNormalization <num_groups: int = {G}> (x, s, b)
    }}"""
    assert refusal(model_from_text(text, {"b": np.ones(C, np.float32)}, opset=21)) == "NOT_CONSTANT"


def test_refuses_overridable_scale() -> None:
    model = standard(21)
    model.graph.input.append(onnx.helper.make_tensor_value_info("scale", onnx.TensorProto.FLOAT, [C]))
    assert refusal(model) == "OVERRIDABLE"


def test_refuses_statistics_outside_float32() -> None:
    model = standard(21)
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("stash_type", 11))
    assert refusal(model) == "ATTRIBUTE"


def test_refuses_reshape_that_mixes_images() -> None:
    assert refusal(instance_norm_form(first=f"-1, {G}, 20")) == "UNKNOWN_SHAPE"


def test_refuses_intermediate_that_is_read_elsewhere() -> None:
    model = instance_norm_form()
    model.graph.node.append(onnx.helper.make_node("ReduceMax", ["grouped"], ["z"], keepdims=0))
    model.graph.output.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, []))
    assert refusal(model) == "OTHER_USES"


def test_refuses_intermediate_that_is_an_output() -> None:
    model = instance_norm_form()
    model.graph.output.append(onnx.helper.make_tensor_value_info("n", onnx.TensorProto.FLOAT, None))
    assert refusal(model) == "GRAPH_OUTPUT"


def test_layer_norms_are_no_candidates() -> None:
    model = written_out(axes="1, 2")
    result = rewrite(model, [FuseGroupNorm()])
    assert result.remarks == []
