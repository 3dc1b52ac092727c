"""Faults in values chosen by TopK, NonMaxSuppression and ArgMax, and small detection heads with these operators."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx

from tests.rewriting import Array, model_from_text
from tests.verification.planted.registry import Facts, Patch, Sites, integer, kind, nodes, set_constant, tap, where
from tests.verification.planted.subjects import Subject

# -- models ------------------------------------------------------------------------------------------------------------

CLASSES, ENTRIES = 6, 24
BACKBONE = """
    f1 = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(x, w1)  r1 = Relu(f1)
    f2 = Conv<pads = [1, 1, 1, 1]>(r1, w2)  r2 = Relu(f2)  cells = Conv(r2, w3)
    rows = Reshape(cells, as_rows)  anchors = Transpose<perm = [0, 2, 1]>(rows)
"""
# Anchors are chosen first, then their classes; boxes use the quotient of the flat index, labels its remainder.
IN_TWO_STAGES = f"""g (float[B, 3, 24, 24] x) => (float[B, {ENTRIES}, 6] found) {{ {BACKBONE}
    box, logit = Split<axis = 2>(anchors, parts)  score = Sigmoid(logit)
    best = ReduceMax<axes = [2], keepdims = 0>(score)  best_k, anchor = TopK<axis = 1>(best, entries)
    anchor1 = Unsqueeze(anchor, two)  of_box = Tile(anchor1, box_tile)  of_score = Tile(anchor1, score_tile)
    box_k = GatherElements<axis = 1>(box, of_box)  score_k = GatherElements<axis = 1>(score, of_score)
    flat = Reshape(score_k, as_flat)  value, place = TopK<axis = 1>(flat, entries)
    row = Div(place, kinds)  kind = Mod(place, kinds)  row1 = Unsqueeze(row, two)  of_row = Tile(row1, box_tile)
    chosen = GatherElements<axis = 1>(box_k, of_row)
    value1 = Unsqueeze(value, two)  kind_f = Cast<to = 1>(kind)  kind1 = Unsqueeze(kind_f, two)
    found = Concat<axis = 2>(chosen, value1, kind1)
}}"""
# Queries are gathered from the best anchors, and a decoder computes boxes and classes from them.
DECODED = f"""g (float[B, 3, 24, 24] x) => (int64[B, {ENTRIES}] labels, float[B, {ENTRIES}, 4] boxes,
                                          float[B, {ENTRIES}] scores) {{ {BACKBONE}
    guess = MatMul(anchors, w_guess)  best = ReduceMax<axes = [2], keepdims = 0>(guess)
    best_k, anchor = TopK<axis = 1>(best, queries)  anchor1 = Unsqueeze(anchor, two)  wide = Tile(anchor1, row_tile)
    query = GatherElements<axis = 1>(anchors, wide)  h1 = MatMul(query, w_hidden)  h2 = Relu(h1)
    raw = MatMul(h2, w_box)  box = Sigmoid(raw)  logit = MatMul(h2, w_kind)  score = Sigmoid(logit)
    flat = Reshape(score, as_flat)  scores, place = TopK<axis = 1>(flat, entries)
    row = Div(place, kinds)  begin = Mul(row, kinds)  labels = Sub(place, begin)
    row1 = Unsqueeze(row, two)  of_row = Tile(row1, box_tile)  boxes = GatherElements<axis = 1>(box, of_row)
}}"""
SUPPRESSED = f"""g (float[B, 3, 24, 24] x) => (int64[N, 3] kept) {{ {BACKBONE}
    raw, logit = Split<axis = 2>(anchors, parts)  box = Sigmoid(raw)
    score = Sigmoid(logit)  by_kind = Transpose<perm = [0, 2, 1]>(score)
    kept = NonMaxSuppression(box, by_kind, most, overlap, lowest)
}}"""
LABELLED = f"""g (float[B, 3, 24, 24] x) => (int64[B, 144] kind) {{ {BACKBONE}
    kind = ArgMax<axis = 2, keepdims = 0>(anchors)
}}"""
HEADS = {"two stages": IN_TWO_STAGES, "decoded": DECODED, "suppressed": SUPPRESSED, "labelled": LABELLED}


def head(name: str) -> onnx.ModelProto:
    rng = np.random.default_rng(0)

    def weight(*shape: int, of: int, scale: float = 1.5) -> Array:
        return np.asarray(scale * rng.standard_normal(shape) / np.sqrt(of), np.float32)

    channels = 4 + CLASSES
    constants: dict[str, Any] = {
        "w1": weight(12, 3, 3, 3, of=27),
        "w2": weight(16, 12, 3, 3, of=108),
        "w3": weight(channels, 16, 1, 1, of=16, scale=2),
        "w_guess": weight(channels, CLASSES, of=channels, scale=2),
        "w_hidden": weight(channels, 16, of=channels),
        "w_box": weight(16, 4, of=16),
        "w_kind": weight(16, CLASSES, of=16, scale=2),
        "as_rows": np.array([0, channels, -1]),
        "as_flat": np.array([0, -1]),
        "parts": np.array([4, CLASSES]),
        "entries": np.array([ENTRIES]),
        "queries": np.array([ENTRIES + 8]),
        "two": np.array([2]),
        "kinds": np.int64(CLASSES),
        "box_tile": np.array([1, 1, 4]),
        "score_tile": np.array([1, 1, CLASSES]),
        "row_tile": np.array([1, 1, channels]),
        "most": np.array([20]),
        "overlap": np.float32(0.5),
        "lowest": np.float32(0.3),
    }
    text = HEADS[name]
    return model_from_text(text, {n: c for n, c in constants.items() if n in text}, opset=17)


def subjects() -> list[Subject]:
    """Returns the heads with inputs of the only image size that they accept."""
    sizes = tuple({"B": batch} for batch in (1, 2, 3, 4))
    return [Subject(f"head_{name.replace(' ', '_')}", partial(head, name), sizes) for name in HEADS]


# -- kinds -------------------------------------------------------------------------------------------------------------


def _reordered(patch: Patch, x: str, pick: Callable[[str], str], axis: int) -> str:
    """Gathers entries along an axis; `pick` returns the indices for a given number of entries."""
    count = patch.op("Gather", patch.op("Shape", x), integer(patch, axis))
    return patch.op("Gather", x, pick(count), axis=axis)


def _places(patch: Patch, count: str) -> str:
    return patch.op("Range", integer(patch, 0), count, integer(patch, 1))


def _turned(patch: Patch, count: str) -> str:
    return patch.op("Mod", patch.op("Add", _places(patch, count), integer(patch, 1)), count)


def _reversed(patch: Patch, count: str) -> str:
    return patch.op("Sub", patch.op("Sub", count, integer(patch, 1)), _places(patch, count))


def _neighbours(patch: Patch, count: str) -> str:
    """Returns the order 1, 0, 3, 2, ...; the last index is unchanged if the count is odd."""
    places = _places(patch, count)
    odd = patch.op("Mod", places, integer(patch, 2))
    step = patch.op("Sub", integer(patch, 1), patch.op("Add", odd, odd))
    return patch.op("Min", patch.op("Add", places, step), patch.op("Sub", count, integer(patch, 1)))


def _last_twice(patch: Patch, count: str) -> str:
    last = patch.op("Sub", count, integer(patch, 1))
    return patch.op("Min", patch.op("Add", _places(patch, count), integer(patch, 1)), last)


def _distant(patch: Patch, count: str) -> str:
    """Returns the indices in order, with the first one replaced by the last one."""
    places = _places(patch, count)
    first = patch.op("Equal", places, integer(patch, 0))
    return patch.op("Where", first, patch.op("Sub", count, integer(patch, 1)), places)


def _chosen(facts: Facts, pick: Callable[[Patch, str], str], outputs: tuple[int, ...]) -> Sites:
    """Reorders outputs of each TopK in the same way: output 0 holds the values, output 1 the indices."""
    for node in nodes(facts, "TopK"):
        axis = -1 if (rank := facts.rank(node.input[0])) is None else rank - 1
        axis = next((a.i for a in node.attribute if a.name == "axis"), axis)

        def edit(patch: Patch, node: onnx.NodeProto = node, axis: int = axis) -> None:
            for i in outputs:
                if i < len(node.output) and node.output[i]:
                    patch.tap(node.output[i], lambda x: _reordered(patch, x, partial(pick, patch), axis))

        yield where(node), edit


for _words, _pick, _outputs in (
    ("choice: entries permuted against scores", _turned, (1,)),
    ("choice: each two neighbours exchanged against scores", _neighbours, (1,)),
    ("choice: one distant index", _distant, (1,)),
    ("choice: ascending order", _reversed, (0, 1)),
    ("choice: the best is left out", _last_twice, (0, 1)),
):

    @kind(_words)
    def _(facts: Facts, pick: Callable[[Patch, str], str] = _pick, outputs: tuple[int, ...] = _outputs) -> Sites:
        return _chosen(facts, pick, outputs)


@kind("choice: boxes of an output permuted against its scores")
def _(facts: Facts) -> Sites:
    """Reorders the rows of one operand of the last Concat, or of one of several outputs."""
    names = [n for n in facts.outputs if (facts.rank(n) or 0) > 1]
    joined = [n for n in nodes(facts, "Concat") if n.output[0] in names]
    values = [name for node in joined for name in node.input] + (names if len(facts.outputs) > 1 else [])
    for name in values:
        if name in facts.producer and any(n.op_type == "TopK" for n in facts.nodes):

            def edit(patch: Patch, name: str = name) -> None:
                patch.tap(name, lambda x: _reordered(patch, x, partial(_turned, patch), 1))

            yield name, edit


@kind("choice: one box of a suppression is another")
def _(facts: Facts) -> Sites:
    for node in nodes(facts, "NonMaxSuppression"):

        def change(patch: Patch, x: str) -> str:
            """For [N, 3]: replaces the box index of the first row by that of the last row."""
            head = patch.op("Slice", x, integer(patch, [0]), integer(patch, [2]), integer(patch, [1]))
            box = patch.op("Slice", x, integer(patch, [2]), integer(patch, [3]), integer(patch, [1]))
            return patch.op("Concat", head, _reordered(patch, box, partial(_distant, patch), 0), axis=1)

        yield where(node), tap(node.output[0], change)


@kind("choice: suppression in ascending order")
def _(facts: Facts) -> Sites:
    for node in nodes(facts, "NonMaxSuppression"):

        def edit(patch: Patch, node: onnx.NodeProto = node) -> None:
            patch.tap(node.output[0], lambda x: _reordered(patch, x, partial(_reversed, patch), 0))

        yield where(node), edit


@kind("choice: the overlap of a suppression off by a tenth")
def _(facts: Facts) -> Sites:
    for node in nodes(facts, "NonMaxSuppression"):
        name = node.input[3]
        if name in facts.constants:
            yield name, set_constant(name, facts.constants[name] * np.float32(0.9))


@kind("choice: one label is the next")
def _(facts: Facts) -> Sites:
    """Changes the first index along the last axis of each ArgMax or ArgMin."""
    for node in nodes(facts, "ArgMax", "ArgMin"):
        name = node.output[0]
        if (rank := facts.rank(name)) is None or rank < 2:
            continue

        def change(patch: Patch, x: str) -> str:
            count = patch.op("Gather", patch.op("Shape", x), integer(patch, -1))
            first = patch.op("Equal", _places(patch, count), integer(patch, 0))
            other = patch.op("Sub", integer(patch, 1), patch.op("Min", x, integer(patch, 1)))
            return patch.op("Where", first, other, x)

        yield where(node), tap(name, change)
