"""Faults in integers: indices at the ends of a table, negative indices, time steps, narrow types, categories."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto

from tests.verification.planted.registry import (
    Facts,
    Patch,
    Sites,
    attribute,
    become,
    each,
    first_for_all,
    integer,
    integers,
    kind,
    set_attributes,
    set_constant,
    tap,
    times,
    where,
)  # fmt: skip


def _ids(facts: Facts, change: Callable[[Patch, str, int, int], str], *, suits: Callable[[int, int], bool]) -> Sites:
    """Yields a site for each index input whose range satisfies `suits`."""
    ids = facts.hints.ids
    return integers(
        facts, (n for n, r in ids.items() if suits(*r)), lambda patch, x, name: change(patch, x, *ids[name])
    )


def _bytes(facts: Facts, change: Callable[[Patch, str], str]) -> Sites:
    names = (n for n in facts.inputs if facts.elem_type(n) == TensorProto.UINT8)
    return integers(facts, names, lambda patch, x, _: change(patch, x))


@kind("ids: the last is read as the one before")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, x: str, low: int, high: int) -> str:
        return patch.op("Min", x, integer(patch, high - 1))

    return _ids(facts, change, suits=lambda low, high: high > low)


@kind("ids: above one are one")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, x: str, low: int, high: int) -> str:
        return patch.op("Min", x, integer(patch, 1))

    return _ids(facts, change, suits=lambda low, high: high > 1)


@kind("ids: modulo a power of two below the table")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, x: str, low: int, high: int) -> str:
        return patch.op("Mod", x, integer(patch, 1 << (high.bit_length() - 1)))

    return _ids(facts, change, suits=lambda low, high: low >= 0 and high > 3)


@kind("ids: negative ones are zero")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, x: str, low: int, high: int) -> str:
        return patch.op("Max", x, integer(patch, 0))

    return _ids(facts, change, suits=lambda low, high: low < 0)


@kind("ids: negative ones lose their sign")
def _(facts: Facts) -> Sites:
    return _ids(facts, lambda patch, x, low, high: patch.op("Abs", x), suits=lambda low, high: low < 0)


@kind("ids: ignored")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, x: str, low: int, high: int) -> str:
        return patch.op("Mul", x, integer(patch, 0))

    return _ids(facts, change, suits=lambda low, high: low <= 0 <= high)


@kind("ids: off by one in the upper half")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, x: str, low: int, high: int) -> str:
        upper = patch.op("Cast", patch.op("Greater", x, integer(patch, (low + high) // 2)), to=TensorProto.INT64)
        return patch.op("Sub", x, upper)

    return _ids(facts, change, suits=lambda low, high: high - low > 4)


@kind("ids: zero is read as one")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, x: str, low: int, high: int) -> str:
        return patch.op("Add", x, patch.op("Cast", patch.op("Equal", x, integer(patch, 0)), to=TensorProto.INT64))

    return _ids(facts, change, suits=lambda low, high: low <= 0 < high)


@kind("ids: the first position only")
def _(facts: Facts) -> Sites:
    """Every position uses the index at the first position."""
    return each(((name,) for name in facts.hints.ids if facts.rank(name) == 2), first_for_all)


@kind("one-hot: on and off exchanged")
def _(facts: Facts) -> Sites:
    for node in facts.nodes:
        if node.op_type == "OneHot" and node.input[2] in facts.constants:
            yield where(node), set_constant(node.input[2], facts.constants[node.input[2]][::-1])


@kind("one-hot: the last class is none")
def _(facts: Facts) -> Sites:
    for node in facts.nodes:
        if node.op_type == "OneHot":
            rank = facts.rank(node.output[0])
            classes = facts.dim(node.output[0], -1)
            if rank is not None and isinstance(classes, int):
                keep = np.ones(classes, facts.dtype(node.output[0]))
                keep[-1] = 0
                yield where(node), tap(node.output[0], times, keep, keep.dtype)


@kind("modulo with the sign of the other operand")
def _(facts: Facts) -> Sites:
    for node in facts.nodes:
        if node.op_type == "Mod":
            yield where(node), set_attributes(node, fmod=1 - attribute(node, "fmod", 0))


@kind("bytes above 127 are negative")
def _(facts: Facts) -> Sites:
    def change(patch: Patch, wide: str) -> str:
        high = patch.op("Cast", patch.op("Greater", wide, integer(patch, 127)), to=TensorProto.INT64)
        # Clamped at 0: the cast back to an unsigned byte would wrap to the original value.
        low = patch.op("Sub", wide, patch.op("Mul", high, integer(patch, 256)))
        return patch.op("Max", low, integer(patch, 0))

    return _bytes(facts, change)


@kind("bytes above 250 saturated")
def _(facts: Facts) -> Sites:
    return _bytes(facts, lambda patch, wide: patch.op("Min", wide, integer(patch, 250)))


@kind("scale of pixels off by one part in 255")
def _(facts: Facts) -> Sites:
    for node in facts.nodes:
        if node.op_type in ("Div", "Mul"):
            for name in node.input:
                array = facts.constants.get(name)
                if array is None or array.size != 1 or array.dtype.kind != "f":
                    continue
                value = float(array.reshape(-1)[0])
                if np.isclose(value, 255) or np.isclose(value, 1 / 255, rtol=1e-4):
                    wrong = array * (256 / 255 if value > 1 else 255 / 256)
                    yield name, set_constant(name, wrong)


@kind("a real number truncated before it was rounded")
def _(facts: Facts) -> Sites:
    for node in facts.nodes:
        if node.op_type in ("Round", "Floor", "Ceil"):
            other = "Floor" if node.op_type != "Floor" else "Ceil"
            yield where(node), become(node, other, list(node.input))


@kind("largest taken for smallest")
def _(facts: Facts) -> Sites:
    for node in facts.nodes:
        if node.op_type == "TopK":
            yield where(node), set_attributes(node, largest=1 - attribute(node, "largest", 1))
        if node.op_type in ("ArgMax", "ArgMin"):
            other = "ArgMin" if node.op_type == "ArgMax" else "ArgMax"
            same = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            yield where(node), become(node, other, list(node.input), **same)
