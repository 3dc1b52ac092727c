"""Test input rows that reach the decisions of a tree ensemble, at their thresholds and next to them.

A decision is an inner node of a tree, which compares an element with a threshold. Random rows rarely reach a deep
decision, because they must satisfy all decisions above it. Each row here satisfies the decisions above one decision.
The element that this decision compares is the threshold, one of its two neighbours in float32, or a value halfway to
the next threshold of either model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from graphopt.graph.operators.traits import ARITHMETIC
from graphopt.graph.traversal import tensor_array
from graphopt.graph.view import attribute_int

# Inputs with more columns get no rows for decisions.
MOST_COLUMNS = 4096
# The most decisions with rows; if there are more, every nth one gets rows.
MOST_DECISIONS = 512
# Modes by their integer value in TreeEnsemble (ai.onnx.ml 5).
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
_BELOW = frozenset(("BRANCH_LEQ", "BRANCH_LT"))
_ABOVE = frozenset(("BRANCH_GTE", "BRANCH_GT"))


@dataclass(frozen=True)
class Column:
    """A column of a value, as factor * x + offset of column x (`index`) of an input."""

    input: str
    index: int
    factor: float = 1.0
    offset: float = 0.0

    def scaled(self, factor: float, shift: float = 0.0) -> Column:
        return replace(self, factor=factor * self.factor, offset=factor * self.offset + shift)

    def solve(self, number: float) -> float:
        """Solves factor * x + offset = number for x."""
        return (number - self.offset) / self.factor if self.factor else 0.0


Columns = Sequence[Column]
# The decisions above a node, from the root on: (feature, mode, threshold, whether the comparison holds).
Conditions = tuple[tuple[int, str, float, bool], ...]


class _Node(NamedTuple):
    """A node of a tree; `yes` and `no` are its children, None for leaves."""

    feature: int
    mode: str
    threshold: float
    yes: int | None
    no: int | None


@dataclass(frozen=True)
class Decision:
    """A node of a tree, with the decisions above it.

    Attributes:
        feature: the compared column.
        threshold: the other operand.
        mode: one of MODES.
        path: the decisions above it.
    """

    feature: int
    threshold: float
    mode: str
    path: Conditions


@dataclass(frozen=True, eq=False)
class Ensemble:
    """The decisions of a tree ensemble.

    Attributes:
        columns: feature -> its column of an input.
        decisions: the decisions of all trees.
    """

    columns: Mapping[int, Column]
    decisions: Sequence[Decision]


def columns_of(value: ir.Value) -> Columns:
    """Returns the columns of an input of rank 2 and known width, or the one column of an input of rank 1; else none."""
    dims = value.shape.dims if value.shape is not None else ()
    width = 1 if len(dims) == 1 else dims[1] if len(dims) == 2 else 0
    if not isinstance(width, int) or width > MOST_COLUMNS:
        return []
    return [Column(str(value.name), i) for i in range(width)]


def output_columns(node: ir.Node, columns: Sequence[Columns], constant: npt.NDArray[Any] | None) -> Columns | None:
    """Returns the columns of a node's output.

    Args:
        node: the node.
        columns: the columns of each of its inputs; empty if unknown.
        constant: the elements of its second input.

    Returns:
        None if the node does not scale, select or concatenate known columns.
    """
    first, op = columns[0], node.op_type
    if op in ("Cast", "Identity", "Imputer") or (op in ("Reshape", "Unsqueeze") and len(first) == 1):
        return first
    if op in ("Concat", "FeatureVectorizer") and all(columns):
        return list(chain.from_iterable(columns))
    if op == "Scaler" and first:
        given = attributes_of(node)
        offsets, scales = (_as_long(given.get(k, [d]), len(first)) for k, d in (("offset", 0.0), ("scale", 1.0)))
        return [c.scaled(s, -o * s) for c, o, s in zip(first, offsets, scales)]
    if not first or constant is None:
        return None
    if op in ("ArrayFeatureExtractor", "Gather"):
        chosen = constant.tolist()
        inside = all(isinstance(i, int) and -len(first) <= i < len(first) for i in chosen)
        along = op != "Gather" or attribute_int(node, "axis", 0) in (1, -1)
        return [first[i] for i in chosen] if inside and along else None
    if op in ARITHMETIC and len(columns) == 2:
        constants = _as_long(constant.astype(float).tolist(), len(first))
        if op == "Div" and 0.0 in constants:
            return None
        return [c.scaled(*_factor_and_shift(op, n)) for c, n in zip(first, constants)]
    return None


def _factor_and_shift(op: str, number: float) -> tuple[float, float]:
    """Returns arithmetic with a constant as second operand as (factor, shift)."""
    if op in ("Add", "Sub"):
        return 1.0, number if op == "Add" else -number
    return (number if op == "Mul" else 1 / number), 0.0


def _as_long(numbers: Sequence[float], length: int) -> Sequence[float]:
    return numbers if len(numbers) == length else [numbers[0] if numbers else 0.0] * length


def attributes_of(node: ir.Node) -> dict[str, Any]:
    """Returns the attributes of a node by name; tensors as flat lists."""
    return {
        a.name: tensor_array(a.value).reshape(-1).tolist() if a.type == ir.AttributeType.TENSOR else a.value
        for a in node.attributes.values()
    }


def ensemble(node: ir.Node, columns: Columns) -> Ensemble:
    """Returns the decisions of a TreeEnsemble, TreeEnsembleClassifier or TreeEnsembleRegressor on these columns."""
    given = attributes_of(node)
    decisions = _decisions_from_roots(given) if node.op_type == "TreeEnsemble" else _decisions_by_id(given)
    used = {d.feature for d in decisions}
    return Ensemble({f: columns[f] for f in used if f < len(columns)}, decisions)


def _decisions_by_id(given: Mapping[str, Any]) -> Sequence[Decision]:
    """Reads TreeEnsembleClassifier and TreeEnsembleRegressor, where (tree, number) identifies a node or leaf."""
    values = given.get("nodes_values") or given.get("nodes_values_as_tensor") or []
    keys = list(zip(given.get("nodes_treeids", ()), given.get("nodes_nodeids", ())))
    modes, features, yes, no = (
        given.get(f"nodes_{n}", ()) for n in ("modes", "featureids", "truenodeids", "falsenodeids")
    )
    places = {key: i for i, key in enumerate(keys)}
    nodes = {
        i: _Node(features[i], modes[i], values[i], places.get((tree, yes[i])), places.get((tree, no[i])))
        for i, (tree, _) in enumerate(keys)
        if modes[i] != "LEAF"
    }
    children = {child for node in nodes.values() for child in (node.yes, node.no)}
    return _decisions(nodes, [i for i in nodes if i not in children])


def _decisions_from_roots(given: Mapping[str, Any]) -> Sequence[Decision]:
    """Reads TreeEnsemble of ai.onnx.ml 5: leaves have separate indices, and roots are listed."""
    names = "featureids modes splits truenodeids trueleafs falsenodeids falseleafs".split()
    rows = zip(*(given.get(f"nodes_{name}", ()) for name in names))
    nodes = {
        i: _Node(feature, MODES[mode], split, None if yes_leaf else yes, None if no_leaf else no)
        for i, (feature, mode, split, yes, yes_leaf, no, no_leaf) in enumerate(rows)
    }
    return _decisions(nodes, given.get("tree_roots", ()))


def _decisions(nodes: Mapping[int, _Node], roots: Sequence[int]) -> Sequence[Decision]:
    """Returns the decisions below these roots, each once."""
    found: list[Decision] = []
    seen: set[int] = set()
    waiting: list[tuple[int | None, Conditions]] = [(root, ()) for root in roots]
    while waiting:
        index, path = waiting.pop()
        if index is None or index not in nodes or index in seen:
            continue
        seen.add(index)
        node = nodes[index]
        found.append(Decision(node.feature, node.threshold, node.mode, path))
        step = (node.feature, node.mode, node.threshold)
        waiting += [(node.no, (*path, (*step, False))), (node.yes, (*path, (*step, True)))]
    return found


def rows_of(ensembles: Sequence[Ensemble]) -> list[dict[tuple[str, int], float]]:
    """Returns test rows: three or more for each of at most `MOST_DECISIONS` decisions of these ensembles.

    Decisions on unknown columns, and decisions with a threshold of NaN, get no rows.

    Returns:
        For each row, (input, column) -> element; the caller draws the other elements.
    """
    every = [
        (trees, decision)
        for trees in ensembles
        for decision in trees.decisions
        if decision.feature in trees.columns and not math.isnan(decision.threshold)
    ]
    thresholds: dict[tuple[str, int], set[float]] = {}
    for trees, decision in every:
        column = trees.columns[decision.feature]
        thresholds.setdefault((column.input, column.index), set()).add(column.solve(decision.threshold))
    ordered = {feature: sorted(numbers) for feature, numbers in thresholds.items()}
    chosen = every[:: max(1, math.ceil(len(every) / MOST_DECISIONS))]
    rows = []
    for trees, decision in chosen:
        column = trees.columns[decision.feature]
        feature = (column.input, column.index)
        base = _on_path(trees, decision)
        for number in _around(column.solve(decision.threshold), ordered[feature]):
            rows.append({**base, feature: number})
    return rows


def _around(number: float, thresholds: Sequence[float]) -> Sequence[float]:
    """Returns a threshold, its neighbours in float32, and the values halfway to the next thresholds."""
    single = np.float32(number)
    near = [float(np.nextafter(single, np.float32(limit))) for limit in (-np.inf, np.inf)]
    index = thresholds.index(number)
    halfway = [(number + thresholds[i]) / 2 for i in (index - 1, index + 1) if 0 <= i < len(thresholds)]
    return [float(single), *near, *halfway]


def _on_path(trees: Ensemble, decision: Decision) -> dict[tuple[str, int], float]:
    """Returns elements that satisfy the comparisons of the decisions above this one: (input, column) -> element.

    Ignores BRANCH_MEMBER, a BRANCH_EQ that must fail and a BRANCH_NEQ that must hold: they list or exclude values.
    """
    bounds: dict[int, tuple[float, float]] = {}
    exact: dict[int, float] = {}
    for feature, mode, threshold, holds in decision.path:
        low, high = bounds.get(feature, (-math.inf, math.inf))
        if mode in _BELOW | _ABOVE:
            below = (mode in _BELOW) == holds
            bounds[feature] = (low, min(high, threshold)) if below else (max(low, threshold), high)
        elif (mode, holds) in (("BRANCH_EQ", True), ("BRANCH_NEQ", False)):
            exact[feature] = threshold
    row = {}
    for feature, column in trees.columns.items():
        if feature in exact or feature in bounds:
            number = exact[feature] if feature in exact else _between(*bounds[feature])
            row[column.input, column.index] = column.solve(number)
    return row


def _between(low: float, high: float) -> float:
    if math.isinf(low):
        return high - max(1.0, abs(high) / 2) if math.isfinite(high) else 0.0
    return (low + high) / 2 if math.isfinite(high) else low + max(1.0, abs(low) / 2)
