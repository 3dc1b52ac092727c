"""NonMaxSuppression on the GPU, against its definition."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_float, c_int
from typing import Any

import numpy as np

from tests.hip.case import Case, signed
from tests.hip.harness import Array, Harness, Plan, int64s

# B, C, N, maximum output; whether boxes are centred, score threshold, overlap threshold
SELECTIONS = (
    ((1, 1, 6, 6), False, 0.4, 0.5), ((2, 3, 50, 10), False, None, 0.3), ((1, 4, 300, 300), True, -0.5, 0.5),
    ((3, 1, 17, 1), False, 0.0, 0.0), ((1, 2, 1, 1), True, None, 1.0), ((2, 2, 600, 40), False, None, 0.7),
    ((1, 300, 9, 4), False, 0.1, 0.4), ((1, 1, 40, 40), True, 50.0, 0.5),
)  # fmt: skip


def overlaps(box: Array, others: Array) -> Array:
    """Returns the overlap of one box with each of the others."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    both = np.where((sides > 0).all(axis=1), np.prod(sides, axis=1), 0)
    areas = np.prod(others[:, 2:] - others[:, :2], axis=1) + np.prod(box[2:] - box[:2])
    found: Array = np.divide(both, areas - both, out=np.zeros(len(others)), where=both > 0)
    return found


def selected(boxes: Array, scores: Array, most: int, centred: bool, least: float | None, limit: float) -> Array:
    rows = []
    for b, c in np.ndindex(*scores.shape[:2]):
        corners = boxes[b].astype(np.float64)
        if centred:
            corners = np.concatenate([corners[:, :2] - corners[:, 2:] / 2, corners[:, :2] + corners[:, 2:] / 2], 1)
        else:
            first, second = corners[:, :2], corners[:, 2:]
            corners = np.concatenate([np.minimum(first, second), np.maximum(first, second)], 1)
        kept: list[int] = []
        for i in np.argsort(-scores[b, c], kind="stable"):
            if len(kept) == most or (least is not None and not scores[b, c, i] > np.float32(least)):
                break
            if (overlaps(corners[i], corners[kept]) <= limit).all():
                kept.append(int(i))
        rows += [[b, c, i] for i in kept]
    return np.asarray(rows, np.float64).reshape(-1, 3)


def cases() -> Iterator[Case]:
    for i, ((B, C, N, most), centred, least, limit) in enumerate(SELECTIONS):
        rng = np.random.default_rng([B, C, N])
        boxes = signed(rng, B, N, 4)
        boxes[..., 2:] = np.abs(boxes[..., 2:]) + 0.1 if centred else boxes[..., :2] + boxes[..., 2:]
        scores = np.round(signed(rng, B, C, N), 1)  # many are equal
        rows = selected(boxes, scores, most, centred, least, limit)
        numbers = int64s([B, C, N, most])
        codes = c_int(centred), c_float(limit), c_float(least or 0), c_int(least is not None)

        def plan(harness: Harness, facts: int, numbers: Any = numbers, codes: Any = codes) -> Plan:
            return harness.plan("nms", facts, numbers, *codes)

        count = np.array([len(rows)], np.float64)
        yield Case(f"nms-{i}", "NonMaxSuppression", [boxes, scores], [count, rows], plan, 0, output_dtype=np.int64)
