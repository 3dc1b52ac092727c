"""Compares values in between: the first that differs, and quantized ones, which show faults that outputs cannot show.

In a quantized model one level more or less of an early value is an honest effect of rounding, and moves the outputs as
far as a fault may. But where whatever was quantized before a value is equal on both sides, honest rounding moves it by
one level: the numbers that are quantized are off by a few units in the last place then, and a level is thousands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from graphopt.errors import VerifyError
from graphopt.graph.messages import all_nodes
from graphopt.inputs.plan import Case
from graphopt.metadata import Numerics
from graphopt.verification.compare import Deviation, deviation
from graphopt.verification.honest import HonestErrors
from graphopt.verification.judge import Finding, judge
from graphopt.verification.run import Model, open_session, run_case

# Two for DynamicQuantizeLinear, which rounds its zero point, too.
HONEST_LEVELS = {"QuantizeLinear": 1, "DynamicQuantizeLinear": 2}


@dataclass(frozen=True)
class Side:
    """One of two models, and how it runs.

    Attributes:
        model: what a session loads.
        proto: its message.
        library, provider: as for `open_session`.
    """

    model: Model
    proto: onnx.ModelProto
    library: bool
    provider: str


def levels_part(before: Side, after: Side, case: Case) -> str:
    """The first quantized value, by its name in both models, that is more levels off than rounding explains; or ""."""
    ours, theirs = (_quantizers(side.proto) for side in (before, after))
    made = {name for node in after.proto.graph.node for name in node.output}
    shared = [name for name in ours if name in made]
    # A value of one name that the two quantize in different ways cannot be compared.
    if not shared or any(theirs.get(name, ours[name]) != ours[name] for name in shared):
        return ""
    try:
        want, got = (values_of(side, shared, case) for side in (before, after))
    except VerifyError:
        return ""
    moved = {name for name in shared if not _equal(want.get(name), got.get(name))}
    # What depends on a value that may differ; a quantized one that AFTER has under no such name is one.
    unsure: set[str] = set()
    for node in before.proto.graph.node:
        result = node.output[0] if node.output else ""
        if result in shared and result not in moved:
            continue
        doubtful = any(name in unsure for inner in all_nodes([node]) for name in inner.input)
        if result in moved and not doubtful:
            off = _most(want.get(result), got.get(result))
            if off > HONEST_LEVELS[node.op_type]:
                return f"quantized value '{result}' is up to {off} levels off, while all before it are equal"
        if doubtful or node.op_type in HONEST_LEVELS:
            unsure.update(node.output)
    return ""


def has_levels(proto: onnx.ModelProto) -> bool:
    """Whether a node of the main graph quantizes."""
    return any(node.op_type in HONEST_LEVELS for node in proto.graph.node)


def _quantizers(proto: onnx.ModelProto) -> dict[str, tuple[Any, ...]]:
    """Output -> how it is quantized; without those whose scale or zero point the model computes."""
    constants = {t.name: t for t in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type == "Constant":
            constants.update((node.output[0], a.t) for a in node.attribute if a.name == "value")
    overridable = {v.name for v in proto.graph.input}
    found: dict[str, tuple[Any, ...]] = {}
    for node in proto.graph.node:
        given = [name for name in node.input[1:] if name]
        if node.op_type in HONEST_LEVELS and all(n in constants and n not in overridable for n in given):
            numbers = (numpy_helper.to_array(constants[name]) for name in given)
            axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
            found[node.output[0]] = (node.op_type, axis, *((n.shape, n.dtype, n.tobytes()) for n in numbers))
    return found


def values_of(side: Side, names: Sequence[str], case: Case) -> Mapping[str, Any]:
    """Returns values of the main graph by name, from a run on the inputs of a case.

    Raises:
        VerifyError: the runtime refuses the model with these outputs, or the inputs.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(side.proto)
    del copy.graph.output[:]
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    folder = None if isinstance(side.model, onnx.ModelProto) else side.model.parent
    outputs = run_case(open_session(copy, library=side.library, provider=side.provider, folder=folder), case)
    if isinstance(outputs, str):
        raise VerifyError(outputs)
    return dict(zip(names, outputs))


def _equal(want: Any, got: Any) -> bool:
    return isinstance(want, np.ndarray) and isinstance(got, np.ndarray) and np.array_equal(want, got)


def _most(want: Any, got: Any) -> int:
    if not isinstance(want, np.ndarray) or not isinstance(got, np.ndarray):
        return 0
    if want.dtype.kind not in "iu" or want.dtype != got.dtype or want.shape != got.shape or not want.size:
        return 0
    return int(np.abs(want.astype(np.int64) - got.astype(np.int64)).max())


# -- the first difference ----------------------------------------------------------------------------------------------

# How many values are outputs at once: of more, as many at even distances, and then those between two of them.
AT_ONCE = 32


def first_difference(before: Side, after: Side, case: Case, honest: HonestErrors, numerics: Numerics) -> str:
    """Names the first differing value and its node in BEFORE; returns "" if no shared value differs.

    Args:
        before: the original.
        after: the rewritten one.
        case: inputs that make their outputs differ.
        honest: how far rounding moves BEFORE.
        numerics: the class of what was rewritten.
    """
    made = {name for node in after.proto.graph.node for name in node.output if name}
    nodes = {name: node for node in before.proto.graph.node for name in node.output if name in made}
    names = list(nodes)
    found = None
    while names:
        step = -(-len(names) // AT_ONCE)
        chosen = names[step - 1 :: step] if step > 1 else names
        try:
            apart = _first_apart(before, after, chosen, case, honest, numerics)
        except VerifyError:
            break
        if apart is None:
            break
        found = apart
        if step == 1:
            break
        end = names.index(apart[0])
        names = names[max(0, end - step + 1) : end]
    if found is None:
        return ""
    name, far = found
    node = nodes[name]
    label = f"{node.op_type} '{node.name}'" if node.name else node.op_type
    how = far.structure or f"{far.relative:.2g} of its RMS"
    return f"on '{case.name}' the first value of both models that differs is '{name}', which {label} makes: {how}"


def _first_apart(
    before: Side, after: Side, names: Sequence[str], case: Case, honest: HonestErrors, numerics: Numerics
) -> tuple[str, Deviation] | None:
    """The first of these values that differs, and how far."""
    want, got = (values_of(side, names, case) for side in (before, after))
    moved = honest.values(numerics, names, case) if case.fits else None
    for name in names:
        a, b = want.get(name), got.get(name)
        if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
            continue
        if a.dtype != b.dtype and a.dtype.kind in "fV" and b.dtype.kind in "fV":
            b = b.astype(a.dtype)
        far = deviation(a, b)
        draws = [deviation(a, moved[name])] if moved is not None and name in moved else []
        judged = judge(far, numerics if a.dtype.kind in "fV" else Numerics.REASSOCIATED, draws)
        if judged.finding == Finding.DIFFERENT:
            return name, far
    return None
