"""What a model declares of its inputs: their types, the sizes of their axes, and the symbols that stand for sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from graphopt.errors import VerifyError

# Words in the names of what a decoder keeps of earlier steps.
PAST = ("past", "cache", "prev", "history")
# Types of which the runtime takes no numpy arrays.
_NO_ARRAYS = frozenset(
    kind
    for name, kind in onnx.TensorProto.DataType.items()
    if name.startswith(("FLOAT4", "FLOAT6", "FLOAT8", "INT2", "INT4", "UINT2", "UINT4"))
)


def required_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The graph inputs that callers must give: not those with an initializer."""
    initializers = {t.name for t in model.graph.initializer}
    return [v for v in model.graph.input if v.name not in initializers]


def symbols(model: onnx.ModelProto) -> dict[str, str]:
    """The symbolic dimensions of the inputs and the role of each: "batch", "image" or "length".

    A symbol means one size wherever it stands; its first place decides the role. A sum of other symbols, as exporters
    write it ("past + sequence"), is no symbol of its own.
    """
    found: dict[str, str] = {}
    for value in required_inputs(model):
        dims = value.type.tensor_type.shape.dim
        for axis, dim in enumerate(dims):
            if not is_given(dim):
                image = len(dims) == 4 and axis >= 2 and not is_past(value.name)
                role = "batch" if axis == 0 else "image" if image else "length"
                found.setdefault(symbol_of(value, axis), role)
    return {s: role for s, role in found.items() if sum_of(s, {t: 0 for t in found if t != s}) is None}


def is_past(name: str) -> bool:
    """Whether an input, or a symbol, is called as what a decoder keeps of earlier steps."""
    return any(word in name.lower() for word in PAST)


def symbol_of(value: onnx.ValueInfoProto, axis: int) -> str:
    return value.type.tensor_type.shape.dim[axis].dim_param or unnamed(value.name, axis)


def unnamed(name: str | None, axis: int) -> str:
    """What a dimension of an input is called that has no name in the model: INPUT[AXIS]."""
    return f"{name}[{axis}]"


def sum_of(symbol: str, sizes: Mapping[str, int]) -> int | None:
    """The size of "a + b + 1" where all terms are known."""
    terms = [t.strip() for t in symbol.split("+")]
    if len(terms) < 2 or not all(t in sizes or t.isdecimal() for t in terms):
        return None
    return sum(sizes[t] if t in sizes else int(t) for t in terms)


def shape_of(value: onnx.ValueInfoProto, sizes: Mapping[str, int]) -> tuple[int, ...]:
    dims = value.type.tensor_type.shape.dim
    return tuple(d.dim_value if is_given(d) else size_of(symbol_of(value, i), sizes) for i, d in enumerate(dims))


def is_given(dim: onnx.TensorShapeProto.Dimension) -> bool:
    """Whether its size stands in the model; 0 is a size, -1 is none."""
    return dim.HasField("dim_value") and dim.dim_value >= 0


def size_of(symbol: str, sizes: Mapping[str, int]) -> int:
    size = sizes[symbol] if symbol in sizes else sum_of(symbol, sizes)
    assert size is not None, symbol
    return size


def is_float(value: onnx.ValueInfoProto) -> bool:
    return dtype_of(value).kind in "fV"


def is_image(value: onnx.ValueInfoProto) -> bool:
    return is_float(value) and len(value.type.tensor_type.shape.dim) == 4


def dtype_of(value: onnx.ValueInfoProto) -> np.dtype[Any]:
    if value.type.WhichOneof("value") != "tensor_type":
        raise VerifyError(f"input '{value.name}' is no tensor: give a value of your own with --inputs")
    kind = value.type.tensor_type.elem_type
    if kind in _NO_ARRAYS:
        name = onnx.TensorProto.DataType.Name(kind)
        raise VerifyError(
            f"input '{value.name}' holds {name}, and ONNX Runtime's Python interface takes no arrays of it: cut the "
            "model behind the node that reads it"
        )
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind))
