"""Compares values in between: the first that differs, and quantized ones, which show faults that outputs cannot show.

In a quantized model one level more or less of an early value is an honest effect of rounding, and moves the outputs as
far as a fault may. But where whatever was quantized before a value is equal on both sides, honest rounding moves it by
one level: the numbers that are quantized are off by a few units in the last place then, and a level is thousands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from graphopt.errors import VerifyError
from graphopt.graph.traversal import bodies
from graphopt.graph.view import GraphView, attribute_int
from graphopt.inputs.plan import Case
from graphopt.metadata import Numerics
from graphopt.targets.target import Target
from graphopt.verification.compare import Deviation, deviation
from graphopt.verification.honest import HonestErrors
from graphopt.verification.judge import Finding, judge
from graphopt.verification.pair import Pair, Side, Way
from graphopt.verification.run import open_session, run_case, with_outputs

# Two for DynamicQuantizeLinear, which rounds its zero point, too.
HONEST_LEVELS = {"QuantizeLinear": 1, "DynamicQuantizeLinear": 2}


def levels_part(pair: Pair, way: Way, case: Case) -> str:
    """The first quantized value, by its name in both models, that is more levels off than rounding explains; or "".

    Args:
        pair: both models.
        way: how AFTER runs.
        case: the inputs.
    """
    ours, theirs = (_quantizers(side.model) for side in (pair.before, pair.after))
    made = {value.name for node in pair.after.model.graph for value in node.outputs}
    shared = [name for name in ours if name in made]
    # A value of one name that the two quantize in different ways cannot be compared.
    if not shared or any(theirs.get(name, ours[name]) != ours[name] for name in shared):
        return ""
    try:
        want = _values_of(pair.before, pair.reference, shared, case)
        got = _values_of(pair.after, way, shared, case)
    except VerifyError:
        return ""
    moved = {name for name in shared if not _equal(want.get(name), got.get(name))}
    # What depends on a value that may differ; a quantized one that AFTER has under no such name is one.
    unsure: set[ir.Value] = set()
    for node in pair.before.model.graph:
        result = str(node.outputs[0].name) if node.outputs else ""
        if result in ours and result in made and result not in moved:
            continue
        inner = (n for body in bodies(node) for n in ir.traversal.RecursiveGraphIterator(body))
        doubtful = any(value in unsure for n in (node, *inner) for value in n.inputs)
        if result in moved and not doubtful:
            off = _most(want.get(result), got.get(result))
            if off > HONEST_LEVELS[node.op_type]:
                return f"quantized value '{result}' is up to {off} levels off, while all before it are equal"
        if doubtful or node.op_type in HONEST_LEVELS:
            unsure.update(node.outputs)
    return ""


def has_levels(model: ir.Model) -> bool:
    """Whether a node of the main graph quantizes."""
    return any(node.op_type in HONEST_LEVELS for node in model.graph)


def _quantizers(model: ir.Model) -> dict[str, tuple[Any, ...]]:
    """Output -> how it is quantized; without those whose scale or zero point the model computes."""
    view = GraphView(model, Target("cpu"))
    found: dict[str, tuple[Any, ...]] = {}
    for node in model.graph:
        if node.op_type in HONEST_LEVELS:
            numbers = [view.constant(value) for value in node.inputs[1:] if value is not None]
            known = [n for n in numbers if n is not None]
            if len(known) == len(numbers):
                how = ((n.shape, n.dtype, n.tobytes()) for n in known)
                found[str(node.outputs[0].name)] = (node.op_type, attribute_int(node, "axis", 1), *how)
    return found


def _values_of(side: Side, way: Way, names: Sequence[str], case: Case) -> Mapping[str, Any]:
    """Returns values of the main graph by name, from a run on the inputs of a case.

    Raises:
        VerifyError: the runtime refuses the model with these outputs, or the inputs.
    """
    session = open_session(with_outputs(side.model, names), library=way.library, provider=way.provider)
    outputs = run_case(session, case)
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


def first_difference(pair: Pair, way: Way, case: Case, honest: HonestErrors, numerics: Numerics) -> str:
    """Names the first differing value and its node in BEFORE; returns "" if no shared value differs.

    Args:
        pair: both models.
        way: how AFTER runs.
        case: inputs that make their outputs differ.
        honest: how far rounding moves BEFORE.
        numerics: the class of what was rewritten.
    """
    made = {value.name for node in pair.after.model.graph for value in node.outputs if value.name}
    nodes = {str(v.name): node for node in pair.before.model.graph for v in node.outputs if v.name in made}
    names = list(nodes)
    found = None
    while names:
        step = -(-len(names) // AT_ONCE)
        chosen = names[step - 1 :: step] if step > 1 else names
        try:
            apart = _first_apart(pair, way, chosen, case, honest, numerics)
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
    pair: Pair, way: Way, names: Sequence[str], case: Case, honest: HonestErrors, numerics: Numerics
) -> tuple[str, Deviation] | None:
    """The first of these values that differs, and how far."""
    want, got = _values_of(pair.before, pair.reference, names, case), _values_of(pair.after, way, names, case)
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
