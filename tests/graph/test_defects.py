"""Each defect of a written model is refused, unless the input model had it."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from graphopt.errors import InvariantError
from graphopt.graph.defects import defects
from graphopt.graph.invariants import check_result
from graphopt.graph.reading import load

TEXT = """
<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
g (float[N, 4] x, bool c) => (float[N, 4] y, float[N, 4] z) <float[4] w = {1, 2, 3, 4}, float[N, 4] a, float[N, 4] b> {
    [first] a = own.F(x)
    [second] b = Mul(a, w)
    [choice] y = If (c) <
        then_branch = then () => (float[N, 4] p) { [inner] p = Relu(b) },
        else_branch = other () => (float[N, 4] q) { q = Neg(b) }>
    z = Identity(b)
}
<domain: "own", opset_import: ["" : 17]> F (x) => (y) { t = Relu(x)  y = Neg(t) }
"""
Change = Callable[[onnx.ModelProto], object]


def body(model: onnx.ModelProto) -> onnx.GraphProto:
    graph: onnx.GraphProto = model.graph.node[2].attribute[0].g
    return graph


def dims(value: onnx.ValueInfoProto) -> onnx.TensorShapeProto:
    return value.type.tensor_type.shape


def set_(thing: object, name: str, value: object) -> None:
    setattr(thing, name, value)


def swap(nodes: list[onnx.NodeProto], i: int, j: int) -> None:
    a, b = onnx.NodeProto(), onnx.NodeProto()
    a.CopyFrom(nodes[i])
    b.CopyFrom(nodes[j])
    nodes[i].CopyFrom(b)
    nodes[j].CopyFrom(a)


CHANGES: dict[str, tuple[Change, str]] = {
    "a size below zero": (lambda m: set_(dims(m.graph.value_info[0]).dim[1], "dim_value", -1), "'a' .* negative dimen"),
    "a size below zero in a body": (
        lambda m: set_(dims(body(m).output[0]).dim[0], "dim_value", -3),
        "'p' in the body of 'choice' has a negative dimension",
    ),
    "a size below zero of an input": (
        lambda m: set_(dims(m.graph.input[0]).dim[0], "dim_value", -1),
        "'x' .* negative",
    ),
    "a size below zero in a sequence": (
        lambda m: m.graph.value_info.append(
            helper.make_value_info("s", helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, [-1])))
        ),
        "'s' .* negative dimension",
    ),
    "a weight of a size below zero": (lambda m: m.graph.initializer[0].dims.__setitem__(0, -4), "'w' has a negative"),
    "element type 0": (lambda m: set_(m.graph.value_info[1].type.tensor_type, "elem_type", 0), "'b' .* element type 0"),
    "element type 0 in a body": (
        lambda m: set_(body(m).output[0].type.tensor_type, "elem_type", 0),
        "'p' in the body of 'choice' has the element type 0",
    ),
    "element type 0 of a weight": (lambda m: set_(m.graph.initializer[0], "data_type", 0), "'w' has the element type"),
    "a value named like another": (lambda m: m.graph.node[1].output.__setitem__(0, "a"), "two values of the graph"),
    "a value named like an input": (lambda m: m.graph.node[1].output.__setitem__(0, "x"), "two values .* called 'x'"),
    "a value named like a weight": (lambda m: m.graph.node[3].output.__setitem__(0, "w"), "two values .* called 'w'"),
    "a value named like another in a body": (
        lambda m: body(m).node.append(helper.make_node("Neg", ["b"], ["p"])),
        "two values of the body of 'choice' are called 'p'",
    ),
    "two weights of a name": (
        lambda m: m.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])),
        "two initializers .* called 'w'",
    ),
    "two inputs of a name": (lambda m: m.graph.input.append(m.graph.input[0]), "two inputs .* called 'x'"),
    "two nodes of a name": (lambda m: set_(m.graph.node[1], "name", "first"), "two nodes .* called 'first'"),
    "nodes in another order": (lambda m: swap(m.graph.node, 0, 1), "'a' is used in the graph before"),
    "nodes in another order in a function": (
        lambda m: swap(m.functions[0].node, 0, 1),
        "'t' is used in the function own.F before",
    ),
    "an operand without a producer": (lambda m: m.graph.node[1].input.__setitem__(1, "v"), "'v' is used .* before"),
    "an operand in a body without a producer": (
        lambda m: body(m).node[0].input.__setitem__(0, "v"),
        "'v' is used in the body of 'choice' before",
    ),
    "an operand in a body that comes later": (lambda m: body(m).node[0].input.__setitem__(0, "z"), "'z' is used in"),
    "an output without a producer": (
        lambda m: set_(m.graph.output[1], "name", "v"),
        "the graph has an output 'v' without",
    ),
    "an output of a body without a producer": (
        lambda m: set_(body(m).output[0], "name", "v"),
        "the body of 'choice' has an output 'v' without a producer",
    ),
    "an output of a function without a producer": (
        lambda m: m.functions[0].output.__setitem__(0, "v"),
        "the function own.F has an output 'v' without a producer",
    ),
    "an attribute that a function has not": (
        lambda m: m.functions[0].node[0].attribute.add(name="alpha", type=1, ref_attr_name="slope"),
        "the function own.F reads an attribute 'slope'",
    ),
    "an IR version without weights": (
        lambda m: set_(m, "ir_version", 3),
        "an initializer is not a graph input, which IR version 3 requires",
    ),
    "an IR version without functions": (
        lambda m: set_(m, "ir_version", 7),
        "the model has functions, which IR version 7 lacks",
    ),
    "no opset of a domain": (lambda m: m.opset_import.pop(1), "no opset of 'own' is imported"),
    "no opset of ONNX": (lambda m: m.opset_import.pop(0), "no opset of '' is imported for the graph"),
    "no opset in a function": (
        lambda m: m.functions[0].opset_import.pop(0),
        "no opset of '' is imported for the function own.F",
    ),
    "an opset twice": (lambda m: m.opset_import.add(domain="ai.onnx", version=13), "opset of '' is imported twice"),
    "a function twice": (lambda m: m.functions.append(m.functions[0]), "there are two functions own.F"),
}


# Models with these defects are read and left unchanged.
KEPT = """a size below zero, a size below zero in a body, a size below zero of an input, element type 0,
    element type 0 in a body, two inputs of a name, two nodes of a name, an operand in a body that comes later,
    an attribute that a function has not, an IR version without functions, no opset of a domain, no opset of ONNX,
    no opset in a function"""


def changed(name: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(TEXT)
    assert not defects(model)
    CHANGES[name][0](model)
    return model


@pytest.mark.once
@pytest.mark.parametrize("name", CHANGES)
def test_each_defect_is_refused(name: str) -> None:
    before = load(onnx.parser.parse_model(TEXT)).model
    with pytest.raises(InvariantError, match=CHANGES[name][1]):
        check_result(lambda: before, before, changed(name))


@pytest.mark.once
@pytest.mark.parametrize("name", [name.strip() for name in KEPT.replace("\n", " ").split(",")])
def test_defects_of_the_original_are_no_error(name: str) -> None:
    came = changed(name)
    result = ir.serde.serialize_model(load(came).model)
    check_result(lambda: load(came).model, load(came).model, result)
    result.graph.node.append(helper.make_node("Neg", ["nowhere"], ["other"]))
    with pytest.raises(InvariantError, match="have: 'nowhere' is used in the graph before it is produced; please"):
        check_result(lambda: load(came).model, load(came).model, result)
