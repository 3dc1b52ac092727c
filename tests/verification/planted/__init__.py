"""Faults that a rewriter could make, planted one at a time, and how far each really moves the outputs.

`registry` holds what a kind of fault is, the files beside it the kinds, `subjects` the models with their broad inputs,
`effect` the measure, `honest` the files that are no fault. None of it uses `graphopt.verification`: it is what
`verify` is held against.
"""

from tests.verification.planted import (
    bodies,
    branches,
    choices,
    exchanges,
    exporters,
    integers,
    masks,
    mutants,
    nodes,
    outputs,
    reach,
    tiles,
    values,
    weights,
)  # fmt: skip
from tests.verification.planted.registry import KINDS, Facts, Hints, plant

__all__ = [
    "KINDS", "Facts", "Hints", "bodies", "branches", "choices", "exchanges", "exporters", "integers", "masks",
    "mutants", "nodes", "outputs", "plant", "reach", "tiles", "values", "weights",
]  # fmt: skip
