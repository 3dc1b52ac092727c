"""What must hold of a model that passes have changed."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from graphopt.errors import InvariantError
from graphopt.graph.invariants import checked
from tests.rewriting import model_from_text


@pytest.mark.once
def test_an_output_without_a_shape_hides_no_fault() -> None:
    proto = model_from_text("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    before, after = (ir.serde.deserialize_model(proto) for _ in range(2))
    checked(lambda: pytest.fail("a valid model needs no second look"), after)
    after.graph.node(0).op_type = "Rulu"
    with pytest.raises(InvariantError, match="not valid ONNX"):
        checked(lambda: before, after)
