"""What an optimized model says of itself: keys of its metadata_props, and the numerics class that one of them holds."""

from __future__ import annotations

import enum

METADATA_TARGET = "graphopt.target"
METADATA_NUMERICS = "graphopt.numerics"
METADATA_VERSION = "graphopt.version"
# Callers could override initializers before, which are constants now.
METADATA_FROZEN = "graphopt.frozen"


class Numerics(enum.IntEnum):
    """How far a rewrite may move numbers (verification/tolerances.py); a model has the largest class of its passes."""

    EXACT = 0
    REASSOCIATED = 1
    APPROXIMATE = 2
    FP16 = 3
    BF16 = 4
