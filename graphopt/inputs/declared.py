"""The declared inputs of a model: types, dimensions, and the symbols of sizes that may vary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from graphopt.errors import VerifyError
from graphopt.graph.reading import ONNX_DOMAIN
from graphopt.graph.shapes.sizes import Size, total
from graphopt.graph.traversal import is_external

# Words in the names of inputs and symbols of a decoder's cache.
PAST = ("past", "cache", "prev", "history")
# Element types without numpy arrays in ONNX Runtime.
_NO_ARRAYS = frozenset(
    kind
    for name, kind in onnx.TensorProto.DataType.items()
    if name.startswith(("FLOAT4", "FLOAT6", "FLOAT8", "INT2", "INT4", "UINT2", "UINT4"))
)


@dataclass(frozen=True, eq=False)
class Input:
    """A graph input that callers must give.

    Attributes:
        name: its name.
        type: its declared type.
        dims: see `dims_of`.
    """

    name: str
    type: onnx.TypeProto
    dims: tuple[int | str, ...]

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The element type.

        Raises:
            VerifyError: the input is no tensor, or ONNX Runtime has no numpy arrays of its type.
        """
        if self.type.WhichOneof("value") != "tensor_type":
            raise VerifyError(f"input '{self.name}' is no tensor: give a value of your own with --inputs")
        kind = self.type.tensor_type.elem_type
        if kind in _NO_ARRAYS:
            name = onnx.TensorProto.DataType.Name(kind)
            raise VerifyError(
                f"input '{self.name}' has type {name}, and ONNX Runtime's Python interface has no arrays of that type: "
                "cut the model after the node that reads it"
            )
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind))

    @property
    def is_float(self) -> bool:
        return self.dtype.kind in "fV"

    @property
    def is_image(self) -> bool:
        return self.is_float and len(self.dims) == 4

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Returns the shape for these sizes of the symbols."""
        shape = [dim if isinstance(dim, int) else size_of(dim, sizes) for dim in self.dims]
        assert None not in shape, self.dims
        return tuple(size for size in shape if size is not None)


def required_inputs(model: onnx.ModelProto) -> list[Input]:
    """Returns the graph inputs without an initializer."""
    initializers = {t.name for t in model.graph.initializer}
    return [Input(v.name, v.type, dims_of(v)) for v in model.graph.input if v.name not in initializers]


def dims_of(value: onnx.ValueInfoProto) -> tuple[int | str, ...]:
    """Returns the size or symbol of each axis; an empty tuple for an unknown rank.

    An axis without size and symbol gets the symbol of `unnamed`. A negative size counts as missing, a size of 0 does
    not.
    """
    dims = value.type.tensor_type.shape.dim
    return tuple(
        d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else d.dim_param or unnamed(value.name, axis)
        for axis, d in enumerate(dims)
    )


def unnamed(name: str | None, axis: int) -> str:
    """Returns the symbol INPUT[AXIS] of an axis without a size or symbol in the model."""
    return f"{name}[{axis}]"


def symbols(model: onnx.ModelProto) -> dict[str, str]:
    """Returns the symbols of the inputs and their roles: "batch", "image" or "length".

    The first axis with a symbol decides the role. Sums of other symbols ("past + sequence") are not included.
    """
    found: dict[str, str] = {}
    for value in required_inputs(model):
        for axis, dim in enumerate(value.dims):
            if isinstance(dim, str):
                image = len(value.dims) == 4 and axis >= 2 and not is_past(value.name)
                found.setdefault(dim, "batch" if axis == 0 else "image" if image else "length")
    return {s: role for s, role in found.items() if size_of(s, {t: 0 for t in found if t != s}) is None}


def is_past(name: str) -> bool:
    """Returns whether an input or symbol has the name of a decoder's cache."""
    return any(word in name.lower() for word in PAST)


def declared_size(dim: int | str) -> Size:
    """Converts a declared dimension to a size; "a + b + 1" is a sum."""
    if isinstance(dim, int):
        return Size.of(dim)
    terms = [t.strip() for t in dim.split("+")]
    if len(terms) == 1:
        return Size.symbol(dim)
    return total(Size.of(int(t)) if t.isdecimal() else Size.symbol(t) for t in terms)


def size_of(symbol: str, sizes: Mapping[str, int]) -> int | None:
    """Returns the size of a symbol or of a sum of symbols; None if a symbol is missing."""
    return sizes[symbol] if symbol in sizes else declared_size(symbol).evaluate(sizes)


def deserialized(message: onnx.ModelProto) -> ir.Model:
    """Converts a message for queries of its graph. Initializers in files keep only their shapes."""
    model = ir.serde.deserialize_model(message)
    model.opset_imports.setdefault("", model.opset_imports.get(ONNX_DOMAIN, 0))
    for value in model.graph.initializers.values():
        if is_external(value.const_value):
            value.shape, value.const_value = value.const_value.shape, None
    return model
