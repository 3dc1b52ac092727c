"""The description of one operator of ONNX Runtime's domain `com.microsoft`.

These operators occur in models that ONNX Runtime's tools have written; graphopt reads and never emits them. Each is
described by its schema and by a definition in standard ONNX. Tests compare the definition with a numpy reference,
written from the schema's text independently of the definition (tests/contrib/references).
Source of the schemas: ONNX Runtime, docs/ContribOperators.md, and its wheels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar

import onnx_ir as ir

from graphopt.contrib.writer import Writer

DOMAIN = "com.microsoft"
T = TypeVar("T")

# The default of an attribute that every node must have.
REQUIRED = object()


@dataclass(frozen=True)
class Call(Generic[T]):
    """One node with its inputs, attributes and outputs by formal name. Inputs are graph values or arrays (T).

    Attributes:
        inputs: the present inputs. A variadic input has one name for each value: "inputs0", "inputs1", ...
        attributes: all attributes of the schema, with their defaults; None if there is no default.
        outputs: the formal names of the used outputs.
    """

    inputs: Mapping[str, T]
    attributes: Mapping[str, Any]
    outputs: frozenset[str]

    def __getitem__(self, name: str) -> T:
        return self.inputs[name]

    def get(self, name: str) -> T | None:
        return self.inputs.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self.inputs

    def attribute(self, name: str, absent: Any = None) -> Any:
        value = self.attributes[name]
        return absent if value is None else value

    def has_output(self, output: str) -> bool:
        return output in self.outputs


Define = Callable[[Writer, Call[ir.Value]], Mapping[str, ir.Value]]


@dataclass(frozen=True)
class ContribOp:
    """One operator.

    Attributes:
        signature: the operator's name, its inputs and outputs, "Name(A, B?) -> Y, Z?". "?" at the end of a formal name
            marks an input or output that may be absent; "*" marks a variadic input.
        define: writes standard ONNX with `Writer`; returns the value of each used output.
        attributes: name -> default; None if the schema has no default, REQUIRED if every node must have the attribute.
        form: the result of the passes on its definition, for the documentation: our operators or standard ONNX.
        refuses: the parts of the schema without a definition, for the documentation; "" if there are none.
        kept_on_cpu: why `optimize` keeps its nodes on CPUs; "" if the definition replaces them.
        kept_on_gpu: why `optimize` keeps its nodes on GPUs; "" if the definition replaces them.
        on_provider: the folder of native/operators with the kernels that compute kept nodes on our provider; "" if
            there are none.
        quantized: whether the operator computes with integers. The pass then keeps its nodes, except for the target
            `portable`.
        domain: the operator's domain; one contrib operator is in ONNX's own domain.
    """

    signature: str
    define: Define = field(repr=False)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    form: str = ""
    refuses: str = ""
    kept_on_cpu: str = ""
    kept_on_gpu: str = ""
    on_provider: str = ""
    quantized: bool = False
    domain: str = DOMAIN

    @cached_property
    def name(self) -> str:
        return self.signature.partition("(")[0]

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The formal input names in order, with their marks "?" and "*"."""
        return tuple(self.signature.partition("(")[2].partition(")")[0].split(", "))

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """The formal output names in order, with their marks."""
        return tuple(self.signature.partition(" -> ")[2].split(", "))

    @property
    def identifier(self) -> tuple[str, str]:
        return self.domain, self.name


def formal(name: str) -> str:
    """Removes the mark from a formal name."""
    return name.rstrip("?*")
