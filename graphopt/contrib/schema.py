"""What one operator of ONNX Runtime's domain `com.microsoft` is, in one place.

These operators are input: models that ONNX Runtime's own tools wrote are made of them. Each is described by the facts
of its schema and by a definition in standard ONNX. Tests compare that with a numpy reference, which was written from
the schema's text and not from the definition (tests/contrib/references).
Source of the facts: ONNX Runtime, docs/ContribOperators.md, and the schemas that its wheels carry.
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

# The value of an attribute that a node has to write.
REQUIRED = object()


@dataclass(frozen=True)
class Call(Generic[T]):
    """One node as its operator's schema reads it: over values of a graph, or over arrays.

    Attributes:
        inputs: the formal inputs that are there; of a variadic one a name each, "inputs0", "inputs1", ...
        attributes: all of the schema's, with their defaults; None where there is no default.
        outputs: the formal outputs that somebody asks for.
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

    def asks_for(self, output: str) -> bool:
        return output in self.outputs


Define = Callable[[Writer, Call[ir.Value]], Mapping[str, ir.Value]]


@dataclass(frozen=True)
class ContribOp:
    """One operator.

    Attributes:
        signature: the operator's name, its inputs and outputs, "Name(A, B?) -> Y, Z?"; "?" at the end of a formal name
            marks one that may be absent, "*" a variadic one.
        define: writes standard ONNX with `Writer`; gives the value of each output that is asked for.
        attributes: name -> default; None where the schema has none, REQUIRED where a node must write it.
        form: what passes read it as: an operator of ours, or standard ONNX that they know.
        refuses: what of the schema has no definition, for the documentation; "" where nothing.
        stays_on_cpu: why the runtime's own kernel is the better choice there; "" where the definition is.
        stays_on_gpu: the same for GPUs.
        on_provider: the folder of native/operators whose kernels compute a node that stays, on our provider; "" where
            there are none.
        quantized: it computes with integers where its definition has floats, so that a pass leaves it.
        domain: of the operator; runtimes have one in ONNX's own.
    """

    signature: str
    define: Define = field(repr=False)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    form: str = ""
    refuses: str = ""
    stays_on_cpu: str = ""
    stays_on_gpu: str = ""
    on_provider: str = ""
    quantized: bool = False
    domain: str = DOMAIN

    @cached_property
    def name(self) -> str:
        return self.signature.partition("(")[0]

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Formal names in order, with their marks."""
        return tuple(self.signature.partition("(")[2].partition(")")[0].split(", "))

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """As `inputs`."""
        return tuple(self.signature.partition(" -> ")[2].split(", "))

    @property
    def identifier(self) -> tuple[str, str]:
        return self.domain, self.name


def formal(name: str) -> str:
    """A formal name without its mark."""
    return name.rstrip("?*")
