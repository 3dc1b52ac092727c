"""What one operator of ONNX Runtime's domain `com.microsoft` is, in one place.

These operators are input: models that ONNX Runtime's own tools wrote are made of them. Each is described by the facts
of its schema, by a definition in standard ONNX, and by a numpy reference that was written from the schema's text and
not from the definition, so that a mistake in one shows.
Source of the facts: ONNX Runtime, docs/ContribOperators.md, and the schemas that its wheels carry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import onnx_ir as ir

from graphopt.contrib.writer import Writer
from graphopt.ops.schema import Array

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


@dataclass
class Case:
    """A drawn node: what the definition is tested with.

    Attributes:
        inputs: formal name -> array, in the types that the node has.
        attributes: those that the node writes.
        outputs: the formal outputs that it has.
        constants: inputs that are initializers.
        dims: what the model declares of inputs' dimensions; symbols of their own where it says nothing.
        tolerance: relative to the RMS of each output, where the operator rounds more than float32 does.
        steps: of a quantized output: how far it may be off (its rounding is where the last bits of the sum decide).
        kernel: the first release known to compute it as the schema says; None where the runtime's own kernel reads what
            is not there, and is not asked.
        valid: output -> which of its elements mean something; all where nothing is said.
    """

    inputs: dict[str, Array]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    constants: frozenset[str] = frozenset()
    tolerance: float = 1e-5
    steps: int = 0
    dims: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    valid: Mapping[str, Array] = field(default_factory=dict)
    kernel: tuple[int, int] | None = (0, 0)


@dataclass(frozen=True)
class ContribOp:
    """One operator.

    Attributes:
        name: of the operator.
        inputs: formal names in order; "?" at the end marks one that may be absent, "*" a variadic one.
        outputs: the same.
        attributes: name -> default; None where the schema has none, REQUIRED where a node must write it.
        define: writes standard ONNX with `Writer`; gives the value of each output that is asked for.
        reference: the outputs in float64 with numpy, from the schema's text.
        draw: a random node, with odd sizes, and optional inputs and attributes there or not.
        form: what passes read it as: an operator of ours, or standard ONNX that they know.
        refuses: what of the schema has no definition, for the documentation; "" where nothing.
        stays_on_cpu: why the runtime's own kernel is the better choice there; "" where the definition is.
        stays_on_gpu: the same for GPUs.
        on_provider: the folder of native/operators whose kernels compute a node that stays, on our provider; "" where
            there are none.
        quantized: it computes with integers where its definition has floats, so that a pass leaves it.
        domain: of the operator; runtimes have one in ONNX's own.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    define: Callable[[Writer, Call[ir.Value]], Mapping[str, ir.Value]] = field(repr=False)
    reference: Callable[[Call[Array]], Mapping[str, Array]] = field(repr=False)
    draw: Callable[[np.random.Generator], Case] = field(repr=False)
    form: str = ""
    refuses: str = ""
    stays_on_cpu: str = ""
    stays_on_gpu: str = ""
    on_provider: str = ""
    quantized: bool = False
    domain: str = DOMAIN

    @property
    def identifier(self) -> tuple[str, str]:
        return self.domain, self.name

    def call(self, case: Case) -> Call[Array]:
        """A drawn node as the reference reads it: floats in float64."""
        inputs = {k: v.astype(np.float64) if v.dtype.kind == "f" else v for k, v in case.inputs.items()}
        attributes = {k: v for k, v in self.attributes.items() if v is not REQUIRED} | case.attributes
        return Call(inputs, attributes, frozenset(case.outputs))


def formal(name: str) -> str:
    """A formal name without its mark."""
    return name.rstrip("?*")


def either(rng: np.random.Generator, *choices: Any) -> Any:
    return choices[rng.integers(len(choices))]


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> Array:
    """Signed numbers of float32, some of them zero."""
    array = rng.normal(size=shape) * scale
    return np.where(rng.random(shape) < 0.02, 0.0, array).astype(np.float32)
