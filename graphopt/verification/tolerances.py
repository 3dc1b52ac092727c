"""How far outputs may move: the one table of numbers. A model's metadata may name a class, never a number.

The limit of an output, or of a slice of it, is the honest error there: how far the original itself moves when it rounds
at random (`noise.py`) by FACTOR times the unit of its precision; never less than FLOOR, and what moves by
more than LARGEST_LIMIT says nothing. All are relative to the RMS of what is judged. LIMITS are for what cannot be
measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from graphopt.metadata import Numerics

# The limit over the honest error. With four draws each, over the zoo's small models and six seeds, a rewrite moved
# outputs by at most 0.31 of this limit as a whole, and by at most 0.55 in the slice that moved most.
FACTOR = 4.0
# Eight units in the last place of float32: kernels that are equal in all but the order of two additions reach it.
FLOOR = 1e-6


@dataclass(frozen=True)
class Rounding:
    """A precision: its unit relative to a number, and the size below which the unit shrinks no further.

    Attributes:
        unit: of the noise; FACTOR is in it.
        floor: noise is unit * (|x| + floor).
        coarse: so coarse that each elementwise operator counts.
        dtype: of coarse ones.
    """

    unit: float
    floor: float = 0.0
    coarse: bool = False
    dtype: str = ""


# Half a unit in the last place, up or down: all results are rounded to nearest.
SINGLE = Rounding(FACTOR * 2.0**-24)
# Below 2**-14 numbers of float16 are 2**-24 apart.
HALF = Rounding(FACTOR * 2.0**-11, floor=2.0**-14, coarse=True, dtype="float16")
BRAIN = Rounding(FACTOR * 2.0**-9, coarse=True, dtype="bfloat16")


def stored(rounding: Rounding) -> Rounding:
    """The rounding of weights: another way to compute or convert one is off by a whole unit, not by half a one.

    At half a unit MobileNet with every weight one unit off stood at up to 1.9 of its limit.
    """
    return replace(rounding, unit=2 * rounding.unit)


# In units, times the root of the number of terms: what rounding a sum's partial sums costs, on both sides. Without
# it folded BatchNormalizations in the zoo's YOLO stood at up to 1.8 of their limit, with it at 0.5.
PARTIAL_SUMS = 0.7
# Polynomials for tanh, erf, exp, ... are exact to units of 1, not of the smaller numbers that they approach.
FUNCTION_FLOOR = FACTOR * 2.0**-22
# Those inside recurrent layers, where a gate that is nearly shut comes in steps of 2**-24. Without it states of 1e-4 in
# silero_vad, whose inputs had moved by a twelfth of what noise moves them, stood at 1.3 of their limit.
GATE_FLOOR = FACTOR * 2.0**-24

# Where the honest error cannot be measured: the largest difference of an output, relative to its RMS.
LIMITS: dict[Numerics, float] = {
    Numerics.EXACT: 0.0,
    Numerics.REASSOCIATED: 1e-5,
    Numerics.APPROXIMATE: 1e-3,  # F(4x4, 3x3) in float32, over a whole model
    Numerics.FP16: 2e-2,
    Numerics.BF16: 1e-1,
}
# A limit beyond this would let real faults pass: such an output says nothing for these inputs.
LARGEST_LIMIT: dict[Numerics, float] = {
    Numerics.REASSOCIATED: 0.02,
    Numerics.APPROXIMATE: 0.02,
    Numerics.FP16: 0.2,
    Numerics.BF16: 0.2,
}
