"""The references of all contrib operators, one module for each one of graphopt/contrib."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules

import numpy as np

from graphopt.contrib.schema import ContribOp
from graphopt.ops.schema import Array
from tests.contrib.case import Case, Reference, call_of

REFERENCES: dict[tuple[str, str], Reference] = {}
for _module in iter_modules(__path__):
    REFERENCES |= getattr(import_module(f"{__name__}.{_module.name}"), "REFERENCES", {})


def draw(op: ContribOp, seed: int) -> Case:
    """Draws a random node of the operator."""
    return REFERENCES[op.identifier].draw(np.random.default_rng(seed))


def reference(op: ContribOp, case: Case) -> Mapping[str, Array]:
    """Computes the outputs of a random node in float64."""
    return REFERENCES[op.identifier].compute(call_of(op, case))
