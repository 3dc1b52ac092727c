"""Faults that a rewrite could introduce, planted one at a time, with their measured effect on the outputs.

`registry` defines how a kind of fault is registered, and other modules register kinds. `subjects` has the models and
their inputs, `effect` measures a fault, and `equivalent` makes files that differ by rounding only. Nothing here imports
`graphopt.verification`, which these faults test.
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
