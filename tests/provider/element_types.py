"""Writes the element types that our provider supports for standard operators to docs/provider_reference.md.

    .venv/bin/python -m tests.provider.element_types

The library is queried with ONNX's node tests of each operator, once for each element type of the data input. An
operator supports a type if the provider claims one of these nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto
from onnx.numpy_helper import to_array

from graphopt.optimizer import NEWEST_KNOWN_OPSET
from graphopt.placement import ours
from tests.conformance.node_cases import node_cases
from tests.hostile.native_worker import taken_by_the_provider

PAGE = Path(__file__).resolve().parents[2] / "docs" / "provider_reference.md"
TYPES = {  # ONNX name -> heading in the table
    "float": "float", "float16": "half", "double": "double", "int8": "i8", "int16": "i16", "int32": "i32",
    "int64": "i64", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64", "bool": "bool",
    "int4": "i4", "uint4": "u4",
}  # fmt: skip
INTEGERS = "i8, i16, i32, i64, u8, u16, u32, u64"
RESULTS = {"QuantizeLinear": 2}  # index of the input with the type of the output
EXAMPLES = 12  # node tests for each operator; the first ones include all kinds


def examples() -> Iterator[tuple[str, onnx.ModelProto, list[Any]]]:
    """Yields ONNX's single-node tests with only tensor inputs."""
    for name, case in sorted(node_cases().items()):
        model = case.model
        if model is None or case.data_sets is None or len(model.graph.node) != 1 or model.graph.node[0].domain:
            continue
        data = [to_array(d) if isinstance(d, TensorProto) else d for d in case.data_sets[0][0]]
        if all(isinstance(d, np.ndarray | np.generic) and d.dtype.kind in "fiub" for d in data):
            yield name, model, [np.asarray(d) for d in data]


def taken(model: onnx.ModelProto, arrays: list[Any], dtype: str) -> bool | None:
    """Whether the provider claims the node with this type of its data input; None if the operator lacks the type."""
    node = model.graph.node[0]
    schema = onnx.defs.get_schema(
        node.op_type, max_inclusive_version=min(model.opset_import[0].version, NEWEST_KNOWN_OPSET)
    )
    allowed = {c.type_param_str: {t[7:-1] for t in c.allowed_type_strs} for c in schema.type_constraints}
    formals = (
        [*schema.inputs, *[schema.inputs[-1]] * max(0, len(node.input) - len(schema.inputs))] if schema.inputs else []
    )
    # The first input of Where and Compress is the condition.
    present = [i for i, name in enumerate(node.input) if name and i < len(formals)]
    data = next((i for i in present if allowed.get(formals[i].type_str) != {"bool"}), present[0] if present else None)
    data = RESULTS.get(node.op_type, data)
    if data is None or data not in present or dtype not in allowed.get(formals[data].type_str, set()):
        return None
    first = formals[data].type_str
    given = dict(zip([v.name for v in model.graph.input], arrays, strict=True))
    before = given[node.input[data]].dtype
    inputs: list[ir.Value | None] = []
    small: dict[ir.Value, Any] = {}
    for i, (name, formal) in enumerate(zip(node.input, formals, strict=False)):
        if not name:
            inputs.append(None)
            continue
        array = given[name]
        beside = array.dtype == before and before.kind == "f" and dtype in allowed.get(formal.type_str, set())
        if formal.type_str == first or beside:
            with np.errstate(all="ignore"):
                array = array.astype(ir.DataType[dtype.upper()].numpy())
        value = ir.Value(
            name=name, type=ir.TensorType(ir.DataType.from_numpy(array.dtype)), shape=ir.Shape(array.shape)
        )
        inputs.append(value)
        if i and array.dtype.kind in "iu" and array.size < 100:
            small[value] = array
    attributes = [ir.from_proto(a) for a in node.attribute]
    made = ir.Node("", node.op_type, inputs, attributes, num_outputs=len(node.output), name="node")
    for value, name, formal in zip(
        made.outputs, node.output, [*schema.outputs, *[schema.outputs[-1]] * 9], strict=False
    ):
        value.name = name or "none"
        shipped = next((o.type.tensor_type.elem_type for o in model.graph.output if o.name == name), 1)
        value.dtype = ir.DataType[dtype.upper()] if formal.type_str == first else ir.DataType(shipped)
    readers = []  # the provider does not claim a single node
    for value in made.outputs:
        reader = ir.node("Identity", [value])
        reader.outputs[0].name, reader.outputs[0].type = f"{value.name}_read", value.type
        readers.append(reader)
    versions = [schema.since_version, *[13] * len(readers)]
    said, _ = ours.place([made, *readers], versions, set(small), small, {}, None, [], set(), min_nodes=2)
    return said[0] == ""


def rows() -> list[str]:
    """Returns Markdown rows of operators with equal types: supported types, other types of ONNX, operators."""
    asked: dict[str, int] = {}
    found: dict[str, dict[str, bool]] = {}
    wanted = taken_by_the_provider()
    for _, model, arrays in examples():
        op = model.graph.node[0].op_type
        if op not in wanted or asked.get(op, 0) == EXAMPLES:
            continue
        asked[op] = asked.get(op, 0) + 1
        cells = found.setdefault(op, {})
        for dtype in TYPES:
            answer = taken(model, arrays, dtype)
            if answer is not None:
                cells[dtype] = cells.get(dtype, False) or answer
    groups: dict[str, list[str]] = {}
    for op, cells in sorted(found.items()):
        if any(cells.values()):
            columns = [", ".join(name for t, name in TYPES.items() if cells.get(t) is taken) for taken in (True, False)]
            groups.setdefault(" | ".join(columns).replace(INTEGERS, "integers"), []).append(op)
    return [f"| {types} | {', '.join(ops)} |" for types, ops in groups.items()]


def page() -> str:
    """Returns docs/provider_reference.md with the new table."""
    text = PAGE.read_text()
    head = "| element types | not supported | operators |\n|---|---|---|\n"
    before, _, rest = text.partition(head)
    after = rest
    while after.startswith("|"):
        after = after.partition("\n")[2]
    return before + head + "".join(f"{line}\n" for line in rows()) + after


if __name__ == "__main__":
    PAGE.write_text(page())
