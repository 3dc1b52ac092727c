"""TopK, ArgMax and NonMaxSuppression: correct float16 versions are equal, planted faults are different."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

import graphopt
from graphopt.verification.choices import Choice, mistake
from graphopt.verification.verify import Verdict, verify
from tests.verification.planted.choices import CLASSES, ENTRIES, HEADS, head

Array = npt.NDArray[Any]


@functools.cache
def in_half(name: str) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Returns BEFORE and its float16 version made by `optimize`."""
    before = head(name)
    after, _ = graphopt.optimize(before, target="rocm", precision="fp16")
    return before, after


@pytest.mark.parametrize("name", HEADS)
def test_correct_float16_versions_are_equal(name: str) -> None:
    before, after = in_half(name)
    report = verify(before, after)
    assert report.equal, report.summary
    inconclusive = {row.case for row in report.rows if row.reason}
    assert len(inconclusive) <= 2, inconclusive


def copied(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def through(model: onnx.ModelProto, name: str, make: Callable[[str, str], list[onnx.NodeProto]]) -> None:
    """Inserts nodes between the node that computes a value and all its users."""
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        nodes.append(node)
        for i, output in enumerate(node.output):
            if output == name:
                node.output[i] = f"{name}_right"
                nodes += make(node.output[i], name)
    assert len(nodes) > len(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def reordered(order: Sequence[int]) -> Callable[[str, str], list[onnx.NodeProto]]:
    def make(source: str, result: str) -> list[onnx.NodeProto]:
        constant = numpy_helper.from_array(np.array(order), f"{result}_order")
        return [
            helper.make_node("Constant", [], [constant.name], value=constant),
            helper.make_node("Gather", [source, constant.name], [result], axis=1),
        ]

    return make


def moved_by(place: int, step: int) -> Callable[[str, str], list[onnx.NodeProto]]:
    def make(source: str, result: str) -> list[onnx.NodeProto]:
        array = np.zeros((1, ENTRIES), np.int64)
        array[0, place] = step
        constant = numpy_helper.from_array(array, f"{result}_step")
        return [
            helper.make_node("Constant", [], [constant.name], value=constant),
            helper.make_node("Sub", [source, constant.name], [result]),
        ]

    return make


TURNED = (*range(1, ENTRIES), 0)
NEXT = (1, 0, *range(2, ENTRIES))
REVERSED = tuple(reversed(range(ENTRIES)))
# Boxes reordered against scores, exchanged neighbours, labels; everything in ascending order; one distant index.
FAULTS = [
    ("two stages", "chosen", reordered(TURNED)),
    ("two stages", "chosen", reordered(NEXT)),
    ("two stages", "kind", reordered(NEXT)),
    ("two stages", "found", reordered(REVERSED)),
    ("two stages", "place", reordered(REVERSED)),
    ("two stages", "place", moved_by(20, CLASSES)),
    ("decoded", "boxes", reordered(NEXT)),
    ("decoded", "place", reordered(TURNED)),
]


@pytest.mark.once
@pytest.mark.parametrize(("name", "value", "make"), FAULTS)
def test_faults_after_a_choice_are_different(
    name: str, value: str, make: Callable[[str, str], list[onnx.NodeProto]]
) -> None:
    before, after = in_half(name)
    after = copied(after)
    through(after, value, make)
    assert verify(before, after).verdict == Verdict.DIFFERENT


@pytest.mark.parametrize("which", [0, -1])
def test_the_smallest_instead_of_the_largest_entries_are_different(which: int) -> None:
    before, after = in_half("two stages")
    after = copied(after)
    node = [n for n in after.graph.node if n.op_type == "TopK"][which]
    node.attribute.append(helper.make_attribute("largest", 0))
    report = verify(before, after)
    assert report.verdict == Verdict.DIFFERENT
    assert "TopK" in report.summary


# -- which indices are right -------------------------------------------------------------------------------------------

SCORES = np.array([[0.9, 0.5, 0.7, 0.7001, 0.1, 0.4999]], np.float32)
# Rounding changes each score by at most 0.0002.
MOVED = SCORES + np.float32(0.0002) * np.array([[1, -1, 1, -1, 1, -1]], np.float32)


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ([0, 3, 2, 1], ""),
        ([0, 2, 3, 1], ""),  # neighbours within rounding
        ([0, 3, 2, 5], ""),  # a tie with the last
        ([0, 3, 1, 2], "places entry 1"),
        ([1, 2, 3, 0], "places entry 1"),
        ([0, 3, 2, 4], "leaves out entry 1"),
        ([0, 3, 3, 2], "twice"),
        ([0, 3, 2, 9], "beyond 6 entries"),
        ([0, 3, 2], "indices of shape"),
    ],
)
def test_indices_of_top_k(chosen: list[int], said: str) -> None:
    node = ir.node("TopK", [], {"axis": 1}, num_outputs=2, name="top")
    choice = Choice(node, 0, "given", ("scores", "count"))
    read = {"scores": SCORES, "count": np.array([4])}
    found = mistake(choice, np.array([chosen]), read, [{**read, "scores": MOVED}])
    assert (said in found) if said else not found


def test_only_near_entries_may_change_places() -> None:
    """The steps are smaller than the rounding: neighbours may change places, distant entries may not."""
    scores = np.linspace(0, 1, 200, dtype=np.float32)[None]
    node = ir.node("TopK", [], {"axis": 1}, num_outputs=2, name="top")
    choice = Choice(node, 0, "given", ("scores", "count"))
    read = {"scores": scores, "count": np.array([200])}
    draws = [{**read, "scores": scores + np.float32(0.006)}]
    assert mistake(choice, np.arange(200)[None], read, draws)
    pairs = np.arange(200)[::-1].reshape(100, 2)[:, ::-1].reshape(1, 200)
    assert not mistake(choice, pairs, read, draws)


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ([0, 2], ""),
        ([0, 3], "leaves out box 2"),
        ([2, 0], "places entry"),
        ([0, 1, 2], "overlap"),
        ([0], "leaves out box 2"),
        ([0, 2, 4], "below 0.25"),
    ],
)
def test_indices_of_non_max_suppression(kept: list[int], said: str) -> None:
    """Boxes 0 and 1 are nearly equal, and so are 2 and 3."""
    boxes = np.array([[[0, 0, 1, 1], [0, 0, 1, 0.95], [2, 2, 3, 3], [2, 2, 3, 2.95], [5, 5, 6, 6]]], np.float32)
    scores = np.array([[[0.9, 0.8, 0.7, 0.4, 0.1]]], np.float32)
    node = ir.node("NonMaxSuppression", [], name="kept")
    choice = Choice(node, 0, "given", ("boxes", "scores", "most", "overlap", "lowest"))
    read = {
        "boxes": boxes,
        "scores": scores,
        "most": np.array([4]),
        "overlap": np.array([0.5]),
        "lowest": np.array([0.25]),
    }
    found = mistake(choice, np.array([[0, 0, box] for box in kept]), read, [])
    assert (said in found) if said else not found
