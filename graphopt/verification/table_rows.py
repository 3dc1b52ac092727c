"""Rows of tables that two models do not share: too many to be met by chance, and known before anything runs.

A vocabulary has 30,000 rows, of which a few dozen inputs read a thousand. A row that was rounded, exchanged or lost is
found by comparing the tables, and shown by an input of its own that reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from graphopt.graph.operators.traits import MOVES
from graphopt.inputs.plan import Case
from graphopt.inputs.uses import labels
from graphopt.verification.noise import FLOATS

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


def other_rows(
    before: onnx.ModelProto, after: onnx.ModelProto, folders: tuple[Path | None, Path | None]
) -> list[OtherRows]:
    """Of tables that some, and not all, rows differ in. `folders`: where weights outside of either message lie."""
    tables, others = ({t.name: t for t in m.graph.initializer} for m in (before, after))
    inputs = {value.name for value in before.graph.input} - tables.keys()
    makers = {name: node for node in before.graph.node for name in node.output}
    found = {}
    for node in before.graph.node:
        name = node.input[0] if node.op_type == "Gather" else ""
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        if name in found or axis or name not in tables or name not in others:
            continue
        rows = _differing(*((t, str(f or "")) for t, f in zip((tables[name], others[name]), folders)))
        if 0 < len(rows) < tables[name].dims[0]:
            found[name] = OtherRows(name, rows, _source(node.input[1], makers, inputs))
    made = {output: node for node in after.graph.node for output in node.output}
    for node in before.graph.node:
        name = node.output[0] if node.op_type == "LabelEncoder" else ""
        if name in made and made[name].op_type == "LabelEncoder":
            has, gets = labels(node), labels(made[name])
            rows = [key for key in has if isinstance(key, int) and not _same(has[key], gets.get(key))]
            if rows:
                found[name] = OtherRows(name, rows, _source(node.input[0], makers, inputs))
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


def _source(name: str, makers: dict[str, onnx.NodeProto], inputs: set[str]) -> str:
    while name not in inputs and name in makers and makers[name].op_type in MOVES | {"Cast"}:
        name = makers[name].input[0]
    return name if name in inputs else ""


def _same(a: Any, b: Any) -> bool:
    """Two labels, which may be NaN."""
    return bool(a == b or (a != a and b != b))


def _differing(one: tuple[onnx.TensorProto, str], two: tuple[onnx.TensorProto, str]) -> list[int]:
    tensors = one[0], two[0]
    if tensors[0].dims != tensors[1].dims or not {t.data_type for t in tensors} <= FLOATS or not tensors[0].dims:
        return []
    a, b = (numpy_helper.to_array(tensor, folder) for tensor, folder in (one, two))
    if a.dtype == b.dtype and np.array_equal(a, b):
        return []
    wide: Sequence[npt.NDArray[Any]] = [x.astype(np.float32).reshape(len(x), -1) for x in (a, b)]
    most = float(np.abs(wide[0]).max(initial=0)) * (SAME_TYPE if a.dtype == b.dtype else OTHER_TYPE)
    with np.errstate(invalid="ignore"):
        return [int(i) for i in np.flatnonzero((np.abs(wide[0] - wide[1]) > most).any(axis=1))]
