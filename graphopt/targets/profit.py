"""Which legal rewrites pay: asked once for each candidate, answered by estimates or by measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from graphopt.targets.cpu import winograd_gain
from graphopt.targets.target import Target

# What a swap must promise on a CPU. Of few channels the estimate is good to about a tenth; from so many on it promises
# less than was measured on either machine, most of all for small planes (docs/measurements/winograd_cpu.md).
WINOGRAD_MIN_GAIN = 1.1
WINOGRAD_SURE_CHANNELS = 32
# On GPUs the tile transforms cost as much as they save below this many channels. Derived from arithmetic intensity; not
# measured on AMD.
WINOGRAD_MIN_CHANNELS = 32


@dataclass(frozen=True)
class Workload:
    """Where a rewrite would stand, and what it would put there.

    Attributes:
        label: the node in whose place the new one would stand.
        op: the operator of ours that it would put in.
        dtype: of the inputs.
        shapes: of the inputs; None where not even the rank is known.
        before, after: operators that make the inputs and that read the output, "" for the model's own boundary.
    """

    label: str
    op: str
    dtype: str
    shapes: tuple[tuple[int | str | None, ...] | None, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]

    def key(self, sizes: Mapping[str, int]) -> str:
        """What sites have in common that cost the same. `sizes` replaces symbolic dimensions."""

        def size(d: int | str | None) -> str:
            return str(d if isinstance(d, int) else sizes.get(d or "", "?"))

        shapes = " ".join("?" if shape is None else "x".join(map(size, shape)) for shape in self.shapes)
        before, after = ("+".join(ops) or "-" for ops in (self.before, self.after))
        # A size that only the runtime knows still depends on those of the inputs.
        bound = " with " + ",".join(f"{s}={n}" for s, n in sorted(sizes.items())) if "?" in shapes else ""
        return f"{self.op} {self.dtype} {shapes} between {before} and {after}{bound}"


@dataclass(frozen=True)
class Candidate:
    """A legal rewrite whose profit depends on sizes, on its surroundings and on the machine.

    Attributes:
        no_gain: why the estimate says that it does not pay; "" when it pays.
        describe: the site as the graph is now, for profit models that measure: estimates look at the no_gain alone.
    """

    no_gain: str
    describe: Callable[[], Workload]


class Profit(Protocol):
    """Decides for each candidate."""

    def decline(self, candidate: Candidate) -> str:
        """Why the rewrite is not worth it; "" when it is."""
        ...


class Estimates:
    """The default: what was measured elsewhere and put into formulas and thresholds."""

    def decline(self, candidate: Candidate) -> str:
        return candidate.no_gain


class EveryLegalCandidate:
    """Rewrites whatever is legal.

    Attributes:
        overruled: whether the estimate says of any candidate that it does not pay.
    """

    def __init__(self) -> None:
        self.overruled = False

    def decline(self, candidate: Candidate) -> str:
        self.overruled |= bool(candidate.no_gain)
        return ""


def winograd_pays(target: Target, C: int, M: int, OH: int | None, OW: int | None) -> bool:
    """Whether WinogradConv from C to M channels with an OH x OW result is faster than Conv on `target`.

    Sizes that are not known count as large: the kernel itself falls back where tiles are few.
    """
    if target.device == "cpu":
        return winograd_gain(C, M, OH, OW) > (WINOGRAD_MIN_GAIN if min(C, M) < WINOGRAD_SURE_CHANNELS else 1.0)
    return C >= WINOGRAD_MIN_CHANNELS and M >= WINOGRAD_MIN_CHANNELS
