"""Metadata of an optimized model: keys of its metadata_props, and the classes of numerics."""

from __future__ import annotations

import enum

METADATA_TARGET = "graphopt.target"
METADATA_NUMERICS = "graphopt.numerics"
METADATA_VERSION = "graphopt.version"
# Set if initializers that callers could override were made constant.
METADATA_FROZEN = "graphopt.frozen"


class Numerics(enum.IntEnum):
    """How much a rewrite may change results (verification/compare.py). A model has its rewrites' largest class."""

    EXACT = 0
    REASSOCIATED = 1
    APPROXIMATE = 2
    FP16 = 3
    BF16 = 4
