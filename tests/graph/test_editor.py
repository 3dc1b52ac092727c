"""Queries of the editor, which change nothing, and removed nodes."""

from __future__ import annotations

import gc
import weakref

import onnx_ir as ir
import pytest

from graphopt.graph.editor import Editor
from graphopt.targets.target import Target
from tests.rewriting import model_from_text


@pytest.mark.once
@pytest.mark.parametrize("attribute", ["value = float[2] named {1, 2}", "value_floats = [1.0, 2.0]"])
def test_constants_are_read_and_left_as_they_are(attribute: str) -> None:
    model = ir.serde.deserialize_model(
        model_from_text(f"g (float[2] x) => (float[2] y) {{ c = Constant <{attribute}> () y = Add(x, c) }}")
    )
    before = ir.serde.serialize_model(model).SerializeToString(deterministic=True)
    editor = Editor(model, Target("cpu"))
    constant = model.graph.node(1).inputs[1]
    array = editor.constant(constant)
    assert array is not None and array.tolist() == [1, 2]
    assert ir.serde.serialize_model(model).SerializeToString(deterministic=True) == before


@pytest.mark.once
def test_rewired_nodes_and_producers_of_dropped_inputs_are_visited_again() -> None:
    model = ir.serde.deserialize_model(
        model_from_text(
            "g (float[2] x) => (float[2] y, float[2] z) { a = Neg(x) b = Abs(a) y = Add(a, b) z = Relu(a) }"
        )
    )
    editor = Editor(model, Target("cpu"))
    neg, absolute, add, _ = model.graph
    editor.rewire(add, [neg.inputs[0], neg.inputs[0]])
    assert editor.touched == [add, neg]
    assert editor.removed == [absolute]


@pytest.mark.once
def test_removed_nodes_are_freed() -> None:
    model = ir.serde.deserialize_model(
        model_from_text("g (float[2] x) => (float[2] y) { a = Neg(x) b = Abs(a) c = Identity(x) y = Relu(c) }")
    )
    editor = Editor(model, Target("cpu"))
    removed = [weakref.ref(model.graph.node(i)) for i in range(3)]
    editor.remove_unused([model.graph.node(1)])
    editor.bypass(model.graph.node(0), model.graph.inputs[0])
    editor.removed.clear()
    editor.touched.clear()
    gc.collect()
    assert [node() for node in removed] == [None] * 3
    assert [node.op_type for node in model.graph] == ["Relu"]
