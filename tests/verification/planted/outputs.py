"""Faults that affect part of an output, or the name of an output."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto, helper

from tests.verification.planted.registry import FLOATS, DType, Facts, Patch, Sites, each, kind, plus, times


def _columns(facts: Facts, change: Callable[[Patch, str, int, int, DType], str]) -> Sites:
    """Yields sites at detector outputs; `change` gets the output, its column axis and the number of box columns."""
    return each(((name, *columns, facts.dtype(name)) for name, columns in facts.hints.boxes.items()), change)


def _split(patch: Patch, x: str, axis: int, at: int) -> tuple[str, str]:
    """Splits the columns at `at`, which may be negative to count from the end."""
    zero, here, far, along = (patch.const([v], np.int64) for v in (0, at, 2**31, axis))
    return patch.op("Slice", x, zero, here, along), patch.op("Slice", x, here, far, along)


def _scores(facts: Facts, edit: Callable[[Patch, str, float, DType], str], by: float, *, last: bool = False) -> Sites:
    """Applies `edit` with the value `by` to all class scores, or to those of the last class."""

    def change(patch: Patch, x: str, axis: int, boxes: int, dtype: DType) -> str:
        head, scores = _split(patch, x, axis, -1 if last else boxes)
        return patch.op("Concat", head, edit(patch, scores, by, dtype), axis=axis)

    return _columns(facts, change)


@kind("detector: all class scores are zero")
def _(facts: Facts) -> Sites:
    return _scores(facts, times, 0.0)


@kind("detector: the last class is zero")
def _(facts: Facts) -> Sites:
    return _scores(facts, times, 0.0, last=True)


@kind("detector: one class off by 5 %")
def _(facts: Facts) -> Sites:
    return _scores(facts, times, 1.05, last=True)


@kind("detector: scores off by 0.01")
def _(facts: Facts) -> Sites:
    return _scores(facts, plus, 0.01)


@kind("detector: two classes exchanged")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, x: str, axis: int, boxes: int, dtype: DType) -> str:
        head, last = _split(patch, x, axis, -1)
        front, previous = _split(patch, head, axis, -1)
        return patch.op("Concat", front, last, previous, axis=axis)

    return _columns(facts, change)


@kind("detector: scores above a half are one")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, x: str, axis: int, boxes: int, dtype: DType) -> str:
        head, scores = _split(patch, x, axis, boxes)
        high = patch.op("Greater", scores, patch.const(0.5, dtype))
        return patch.op("Concat", head, patch.op("Where", high, patch.const(1, dtype), scores), axis=axis)

    return _columns(facts, change)


@kind("detector: boxes moved by half a pixel")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, x: str, axis: int, boxes: int, dtype: DType) -> str:
        head, scores = _split(patch, x, axis, boxes)
        return patch.op("Concat", plus(patch, head, 0.5, dtype), scores, axis=axis)

    return _columns(facts, change) if not facts.half else iter(())


@kind("detector: x and y of boxes exchanged")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, x: str, axis: int, boxes: int, dtype: DType) -> str:
        first, rest = _split(patch, x, axis, 1)
        second, rest = _split(patch, rest, axis, 1)
        return patch.op("Concat", second, first, rest, axis=axis)

    return _columns(facts, change)


@kind("detector: widths of boxes off by 1 %")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, x: str, axis: int, boxes: int, dtype: DType) -> str:
        head, rest = _split(patch, x, axis, 2)
        widths, rest = _split(patch, rest, axis, 2)
        return patch.op("Concat", head, times(patch, widths, 1.01, dtype), rest, axis=axis)

    return _columns(facts, change)


@kind("detector: scores of the last box are zero")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, x: str, axis: int, boxes: int, dtype: DType) -> str:
        other = 1 if axis == 2 else 2
        head, scores = _split(patch, x, axis, boxes)
        most, last = _split(patch, scores, other, -1)
        gone = times(patch, last, 0.0, dtype)
        return patch.op("Concat", head, patch.op("Concat", most, gone, axis=other), axis=axis)

    return _columns(facts, change)


def _outputs(facts: Facts) -> list[tuple[str, DType]]:
    return [(o, facts.dtype(o)) for o in facts.outputs if facts.elem_type(o) in FLOATS and (facts.rank(o) or 0) >= 2]


@kind("output: its last entry is zero")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, x: str, dtype: DType) -> str:
        head, last = _split(patch, x, -1, -1)
        return patch.op("Concat", head, times(patch, last, 0.0, dtype), axis=-1)

    return each(_outputs(facts), change)


@kind("output: off by a constant")
def _(facts: Facts) -> Sites:
    return each(_outputs(facts), lambda patch, x, dtype: plus(patch, x, 0.03, dtype))


@kind("output: negative values lost")
def _(facts: Facts) -> Sites:
    return each(_outputs(facts), lambda patch, x, dtype: patch.op("Relu", x))


@kind("output: one of several is zero")
def _(facts: Facts) -> Sites:
    several = _outputs(facts)[1:] if len(facts.outputs) > 1 else []
    return each(several, lambda patch, x, dtype: times(patch, x, 0, dtype))


@kind("output: another name")
def _(facts: Facts) -> Sites:
    def edit(patch: Patch) -> None:
        old = patch.graph.output[0].name
        patch.graph.output[0].name = f"{old}_renamed"
        patch.graph.node.append(helper.make_node("Identity", [old], [f"{old}_renamed"]))

    yield facts.outputs[0], edit


@kind("output: another order")
def _(facts: Facts) -> Sites:
    def edit(patch: Patch) -> None:
        outputs = list(patch.graph.output)[::-1]
        del patch.graph.output[:]
        patch.graph.output.extend(outputs)

    if len(facts.outputs) > 1:
        yield facts.outputs[0], edit


@kind("output: one more axis")
def _(facts: Facts) -> Sites:
    def edit(patch: Patch) -> None:
        name = patch.graph.output[0].name
        patch.tap(name, lambda x: patch.op("Unsqueeze", x, patch.const([0], np.int64)))
        patch.graph.output[0].type.tensor_type.ClearField("shape")

    yield facts.outputs[0], edit


@kind("output: another element type")
def _(facts: Facts) -> Sites:
    def edit(patch: Patch) -> None:
        output = patch.graph.output[0]
        patch.tap(output.name, lambda x: patch.op("Cast", x, to=TensorProto.DOUBLE))
        output.type.tensor_type.elem_type = TensorProto.DOUBLE

    if facts.elem_type(facts.outputs[0]) == TensorProto.FLOAT:
        yield facts.outputs[0], edit
