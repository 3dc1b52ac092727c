"""Invariants of a model changed by passes: each refuses a result that one careless pass broke."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import graphopt
from graphopt.errors import InvariantError
from graphopt.graph.invariants import Interface, check_against, check_result
from graphopt.ops import DOMAIN
from tests.rewriting import model_from_text

TEXT = """g (float[N, 4] x, float[4] o) => (float[N, 4] y) {
    a = com.graphopt.LinearRelu(x, u, o)  b = Add(a, o)  c = Mul(b, w)  y = Relu(c) }"""


def legacy_or_not(ir_version: int) -> tuple[ir.Model, Interface]:
    proto = model_from_text(TEXT, {"u": np.ones((4, 4), np.float32), "w": np.ones(4, np.float32)}, check=False)
    proto.ir_version = ir_version
    proto.opset_import.add(domain=DOMAIN, version=1)
    if ir_version < 4:
        for tensor in proto.graph.initializer:
            proto.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, 1, tensor.dims))
    proto.metadata_props.add(key="author", value="somebody")
    model = ir.serde.deserialize_model(proto)
    for value in (v for node in model.graph for v in node.outputs):
        value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(["N", 4])
    return model, Interface.of(model)


def node(model: ir.Model, i: int) -> ir.Node:
    return model.graph.node(i)


def read_later(model: ir.Model) -> None:
    node(model, 0).replace_input_with(0, node(model, 2).outputs[0])


def read_removed(model: ir.Model) -> None:
    model.graph.remove(node(model, 0))


def give_removed(model: ir.Model) -> None:
    model.graph.remove(node(model, 3))


def name_twice(model: ir.Model) -> None:
    node(model, 1).outputs[0].name = "a"


def forget_type(model: ir.Model) -> None:
    node(model, 1).outputs[0].type = ir.TensorType(ir.DataType.UNDEFINED)


def size_below_zero(model: ir.Model) -> None:
    node(model, 0).outputs[0].shape = ir.Shape([-1, 4])


def mix_types(model: ir.Model) -> None:
    node(model, 0).outputs[0].type = ir.TensorType(ir.DataType.FLOAT16)


def another_input_shape(model: ir.Model) -> None:
    model.graph.inputs[0].shape = ir.Shape([2, 4])


def drop_input(model: ir.Model) -> None:
    node(model, 1).replace_input_with(1, model.graph.initializers["w"])
    model.graph.inputs.pop(1)


def another_output_type(model: ir.Model) -> None:
    model.graph.outputs[0].type = ir.TensorType(ir.DataType.FLOAT16)


def drop_metadata(model: ir.Model) -> None:
    model.metadata_props.clear()


def raise_opset(model: ir.Model) -> None:
    model.opset_imports[""] = 21


def fix_initializer(model: ir.Model) -> None:
    model.graph.inputs.append(model.graph.initializers["w"])


def add_function(model: ir.Model) -> None:
    x, y = ir.Value(name="x"), ir.Value(name="y")
    relu = ir.Node("", "Relu", [x], outputs=[y])
    graph = ir.Graph([x], [y], nodes=[relu], opset_imports={"": 17})
    function = ir.Function(DOMAIN, "LinearRelu", graph=graph, attributes=[])
    model.functions[function.identifier()] = function


def add_foreign_function(model: ir.Model) -> None:
    add_function(model)
    for function in list(model.functions.values()):
        del model.functions[function.identifier()]
        function.domain = "somebody"
        model.functions[function.identifier()] = function


def list_initializer_no_longer(model: ir.Model) -> None:
    extra = ir.Value(name="v", const_value=ir.tensor(np.ones(1, np.float32)))
    model.graph.register_initializer(extra)


@pytest.mark.once
@pytest.mark.parametrize(
    ("break_it", "words", "ir_version"),
    [
        (read_later, "reads 'c' before it exists", 8),
        (read_removed, "reads from a removed node", 8),
        (give_removed, "comes from a removed node", 8),
        (name_twice, "two values are called 'a'", 8),
        (forget_type, "'b' has the element type 0", 8),
        (size_below_zero, "'a' has a negative dimension", 8),
        (mix_types, "has operands of", 8),
        (another_input_shape, "the model's inputs changed", 8),
        (drop_input, "the model's inputs changed", 8),
        (another_output_type, "the model's outputs changed", 8),
        (drop_metadata, "the model's metadata changed", 8),
        (raise_opset, "the model's opsets changed", 8),
        (fix_initializer, "the model's inputs changed", 8),
        (add_foreign_function, "the model's functions changed", 8),
        (add_function, "the model has functions, which IR version 7 lacks", 7),
        (list_initializer_no_longer, "an initializer is not a graph input, which IR version 3 requires", 3),
    ],
)
def test_each_invariant_refuses(break_it: Callable[[ir.Model], None], words: str, ir_version: int) -> None:
    model, before = legacy_or_not(ir_version)
    check_against(before, model, "nothing")
    break_it(model)
    with pytest.raises(InvariantError, match=f"after some pass: .*{words}"):
        check_against(before, model, "some pass")


@pytest.mark.parametrize("declared", [onnx.TensorProto.UINT8, onnx.TensorProto.UNDEFINED])
def test_a_wrong_declared_output_type_is_no_fault_of_a_rewrite(declared: int) -> None:
    """ONNX Runtime has a better error message for it."""
    model = model_from_text(
        "g (float[N, 8, 9, 9] x) => (float[N, 8, 9, 9] y) { c = Conv <pads = [1, 1, 1, 1]> (x, W)  y = Relu(c) }",
        {"W": np.ones((8, 8, 3, 3), np.float32)},
    )
    model.graph.output[0].type.tensor_type.elem_type = declared
    after, _ = graphopt.optimize(model, target="cpu", ignore_cost_model=True)
    assert [node.op_type for node in after.graph.node] == ["WinogradConvRelu"]
    assert after.graph.output[0].type.tensor_type.elem_type == declared


@pytest.mark.once
def test_an_output_without_a_shape_hides_no_fault() -> None:
    proto = model_from_text("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    before, after = (ir.serde.deserialize_model(proto) for _ in range(2))
    check_result(lambda: pytest.fail("a valid model needs no second look"), after)
    after.graph.node(0).op_type = "Rulu"
    with pytest.raises(InvariantError, match="not valid ONNX"):
        check_result(lambda: before, after)
