"""Finds the first value that two models both have, and that differs by more than rounding explains."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphopt.checking.compare import Deviation, deviation
from graphopt.checking.honest import HonestErrors
from graphopt.checking.inputs import Case
from graphopt.checking.judge import Finding, judge
from graphopt.checking.levels import Side, values_of
from graphopt.errors import VerifyError
from graphopt.metadata import Numerics

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
