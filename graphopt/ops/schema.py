"""What one operator of the domain `com.graphopt` is, in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

DOMAIN = "com.graphopt"
DOMAIN_VERSION = 1
# A body's opset may differ from the model's. 17 has every operator that the bodies use, and they use none whose meaning
# changes later (no ReduceMean, whose axes become an input in 18), so that bodies can be inlined into newer models.
BODY_OPSET = 17

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class OpSpec:
    """One operator name of our domain.

    Attributes:
        name: the operator's name; a released name never changes its meaning.
        inputs: formal names; every input is required.
        outputs: formal names.
        attributes: name -> type; every attribute is always written.
        body: the statements of the defining function in ONNX text syntax, over the formal names.
        reference: `reference(*inputs, **attributes)` computes the outputs in float64 with numpy.
        summary: the equation in a line.

    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, ir.AttributeType]
    body: str
    reference: Callable[..., tuple[Array, ...]] = field(repr=False)
    summary: str

    def function_proto(self) -> onnx.FunctionProto:
        """The model-local function that defines the operator in standard ONNX."""
        attributes = f"<{', '.join(self.attributes)}>" if self.attributes else ""
        text = (
            f'<domain: "{DOMAIN}", opset_import: ["" : {BODY_OPSET}]>\n'
            f"{self.name} {attributes} ({', '.join(self.inputs)}) => ({', '.join(self.outputs)}) {{\n{self.body}\n}}"
        )
        return onnx.parser.parse_function(text)

    def function(self) -> ir.Function:
        """The same as an onnx_ir function, to be put into `Model.functions`."""
        return ir.serde.deserialize_function(self.function_proto())


def widen(array: Array) -> Array:
    """float64 for floating point inputs, unchanged otherwise: references are computed in float64."""
    return array.astype(np.float64) if array.dtype.kind == "f" else array
