"""What callers see of two models: names, order, types and dimensions of inputs and outputs."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from graphopt.checking.declared import required_inputs, symbol_of


def interface_difference(before: onnx.ModelProto, after: onnx.ModelProto, *, half_io: bool = False) -> str:
    """The first contradiction, or "". `half_io`: AFTER may have float16 where BEFORE has float32.

    A symbolic dimension of BEFORE may be a number in AFTER (`--input-shape`), and either side may leave out what the
    other one says; two numbers, two symbols, two types or two ranks that differ are contradictions.
    """
    sides = (
        ("input", required_inputs(before), required_inputs(after)),
        ("output", before.graph.output, after.graph.output),
    )
    for what, old, new in sides:
        names, new_names = [v.name for v in old], [v.name for v in new]
        if names != new_names:
            return f"the {what}s are {new_names}, they were {names}"
        for a, b in zip(old, new, strict=True):
            found = _value_difference(a.type, b.type, half_io)
            if found:
                return f"{what} '{a.name}': {found}"
    old_defaults, new_defaults = ({v.name for v in m.graph.input} & _initializers(m) for m in (before, after))
    # Below IR version 4 every initializer had to be an input.
    if before.ir_version >= 4 and old_defaults != new_defaults:
        return f"overridable initializers are {sorted(new_defaults)}, they were {sorted(old_defaults)}"
    return ""


def without_overridable(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the interface that `--freeze-initializers` leaves: inputs that have a value are none."""
    frozen = onnx.ModelProto()
    frozen.CopyFrom(model)
    defaults = _initializers(model)
    del frozen.graph.input[:]
    frozen.graph.input.extend(v for v in model.graph.input if v.name not in defaults)
    return frozen


def fixed_sizes(before: onnx.ModelProto, after: onnx.ModelProto) -> dict[str, int]:
    """Symbols of BEFORE's inputs that are numbers in AFTER."""
    fixed = {}
    for a, b in zip(required_inputs(before), required_inputs(after), strict=True):
        dims, new_dims = a.type.tensor_type.shape.dim, b.type.tensor_type.shape.dim
        for axis, (old, new) in enumerate(zip(dims, new_dims)):
            if old.dim_value <= 0 < new.dim_value:
                fixed[symbol_of(a, axis)] = new.dim_value
    return fixed


def _initializers(model: onnx.ModelProto) -> set[str]:
    return {t.name for t in model.graph.initializer} | {t.values.name for t in model.graph.sparse_initializer}


def _value_difference(old: onnx.TypeProto, new: onnx.TypeProto, half_io: bool) -> str:
    kind, new_kind = old.WhichOneof("value"), new.WhichOneof("value")
    if kind != new_kind:
        return f"{kind} became {new_kind}"
    if kind != "tensor_type":
        return ""
    a, b = old.tensor_type, new.tensor_type
    halved = half_io and (a.elem_type, b.elem_type) == (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
    if a.elem_type != b.elem_type and not halved:
        name = onnx.TensorProto.DataType.Name
        return f"{name(a.elem_type)} became {name(b.elem_type)}"
    if not (a.HasField("shape") and b.HasField("shape")):
        return ""
    # Some exporters write 0 for a size that they do not know, so that it contradicts none.
    shapes = [[d.dim_value if d.dim_value > 0 else d.dim_param or None for d in t.shape.dim] for t in (a, b)]
    return "" if _compatible(*shapes) else f"dimensions {shapes[0]} became {shapes[1]}"


def _compatible(old: Sequence[int | str | None], new: Sequence[int | str | None]) -> bool:
    return len(old) == len(new) and all(
        a == b or a is None or b is None or (isinstance(a, str) and isinstance(b, int)) for a, b in zip(old, new)
    )
