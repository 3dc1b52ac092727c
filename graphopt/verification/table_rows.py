"""Rows of tables that two models do not share: too many to be met by chance, and known before anything runs.

A vocabulary has 30,000 rows, of which a few dozen inputs read a thousand. A row that was rounded, exchanged or lost is
found by comparing the tables, and shown by an input of its own that reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from graphopt.graph.inference import RUNTIME_FLOATS
from graphopt.graph.operators.traits import MOVES
from graphopt.graph.traversal import tensor_array
from graphopt.graph.view import attribute_int
from graphopt.inputs.plan import Case
from graphopt.inputs.uses import labels

# Relative to the table's largest number: as much as folding in another order changes, or rounding to bfloat16.
SAME_TYPE, OTHER_TYPE = 1e-5, 2.0**-7
# Rows, or inputs, that are named in a message.
NAMED = 3


@dataclass(frozen=True)
class OtherRows:
    """Rows of one table that AFTER has otherwise.

    Attributes:
        table: name of the initializer in both models, or of what a LabelEncoder makes.
        rows: which, or the keys of these.
        input: the integers that are counted in it; "" where the model computes them.
    """

    table: str
    rows: Sequence[int]
    input: str

    def __str__(self) -> str:
        named = ", ".join(map(str, self.rows[:NAMED]))
        more = f" and {len(self.rows) - NAMED} more" if len(self.rows) > NAMED else ""
        return f"row {named}{more} of '{self.table}', which AFTER has otherwise and no input reads"


def other_rows(before: ir.Model, after: ir.Model) -> list[OtherRows]:
    """Of tables that some, and not all, rows differ in."""
    others = after.graph.initializers
    found = {}
    for node in before.graph:
        table = node.inputs[0] if node.op_type == "Gather" else None
        name = "" if table is None else str(table.name)
        if table is None or name in found or attribute_int(node, "axis", 0) or not table.is_initializer():
            continue
        rows, size = _differing(table.const_value, others[name].const_value) if name in others else ([], 0)
        if 0 < len(rows) < size:
            found[name] = OtherRows(name, rows, _source(node.inputs[1]))
    made = {value.name: node for node in after.graph for value in node.outputs}
    for node in before.graph:
        name = str(node.outputs[0].name) if node.op_type == "LabelEncoder" else ""
        other = made.get(name) if name else None
        if name and other is not None and other.op_type == "LabelEncoder":
            has, gets = (labels(ir.serde.serialize_node(encoder)) for encoder in (node, other))
            keys = [key for key in has if isinstance(key, int) and not _same(has[key], gets.get(key))]
            if keys:
                found[name] = OtherRows(name, keys, _source(node.inputs[0]))
    return list(found.values())


def cases_that_read(tables: Sequence[OtherRows], cases: Sequence[Case]) -> Iterator[Case]:
    """A case for each table whose rows an input chooses: one that the model took, with these rows."""
    for table in tables:
        sizes = [(np.size(c.feeds.get(table.input, ())), c) for c in cases]
        case = next((c for least in (2, 1) for size, c in sizes if size >= least), None)
        if case is not None:
            ids = np.asarray(case.feeds[table.input])
            chosen = np.resize(np.asarray(table.rows), ids.shape).astype(ids.dtype)
            yield Case(f"rows of '{table.table}'", {**case.feeds, table.input: chosen})


def _source(value: ir.Value | None) -> str:
    """The input that is moved to a value; "" where there is none."""
    while value is not None and (node := value.producer()) is not None and node.op_type in MOVES | {"Cast"}:
        value = node.inputs[0]
    return str(value.name) if value is not None and value.is_graph_input() and not value.is_initializer() else ""


def _same(a: Any, b: Any) -> bool:
    """Two labels, which may be NaN."""
    return bool(a == b or (a != a and b != b))


def _differing(one: ir.TensorProtocol | None, two: ir.TensorProtocol | None) -> tuple[list[int], int]:
    """The rows that differ, and how many there are."""
    if one is None or two is None or not {one.dtype, two.dtype} <= RUNTIME_FLOATS:
        return [], 0
    a, b = tensor_array(one), tensor_array(two)
    if a.shape != b.shape or not a.ndim or (a.dtype == b.dtype and np.array_equal(a, b)):
        return [], 0
    wide: Sequence[npt.NDArray[Any]] = [x.astype(np.float32).reshape(len(x), -1) for x in (a, b)]
    most = float(np.abs(wide[0]).max(initial=0)) * (SAME_TYPE if a.dtype == b.dtype else OTHER_TYPE)
    with np.errstate(invalid="ignore"):
        return [int(i) for i in np.flatnonzero((np.abs(wide[0] - wide[1]) > most).any(axis=1))], len(a)
