"""How far outputs may move: the one table of limits. A model's metadata may name a class, never a number."""

from __future__ import annotations

from graphopt.metadata import Numerics

# Largest difference of an output, relative to the RMS of the reference output.
LIMITS: dict[Numerics, float] = {
    Numerics.EXACT: 0.0,
    Numerics.REASSOCIATED: 1e-5,
    Numerics.APPROXIMATE: 1e-3,  # F(4x4, 3x3) in float32, over a whole model
    Numerics.FP16: 2e-2,
    Numerics.BF16: 1e-1,
}

# A model amplifies rounding errors by its depth and by what it computes (a softmax over large logits, say). Where a
# limit above is exceeded, the model's own sensitivity decides: how far BEFORE moves when every weight moves by one unit
# in the last place, which is the error that any other order of summation makes at each layer. In half precision that is
# a unit of half precision, two to three times what a conversion does.
SENSITIVITY_FACTOR: dict[Numerics, float] = {
    Numerics.REASSOCIATED: 8.0,
    Numerics.APPROXIMATE: 8.0,
    Numerics.FP16: 1.0,
    Numerics.BF16: 1.0,
}
# A limit beyond this would let real faults pass: such an output says nothing for these inputs.
LARGEST_LIMIT: dict[Numerics, float] = {
    Numerics.REASSOCIATED: 0.02,
    Numerics.APPROXIMATE: 0.02,
    Numerics.FP16: 0.2,
    Numerics.BF16: 0.2,
}
