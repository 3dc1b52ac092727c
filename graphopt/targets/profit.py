"""The cost model: decides for each legal candidate whether the rewrite is faster, by estimates or measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from graphopt.targets.cpu import direct_time, winograd_gain, winograd_time
from graphopt.targets.target import Target

# The smallest estimated speedup that selects WinogradConv on a CPU below WINOGRAD_SURE_CHANNELS channels. There the
# estimate is accurate to about 10 %. With more channels the estimate is below the measured speedup on both measured
# machines, most of all for small planes (docs/measurements/winograd_cpu.md).
WINOGRAD_MIN_GAIN = 1.1
WINOGRAD_SURE_CHANNELS = 32
# With fewer channels the tile transforms on a GPU cost as much as they save. Derived from arithmetic intensity; not
# measured on AMD GPUs.
WINOGRAD_MIN_CHANNELS = 32


@dataclass(frozen=True)
class Workload:
    """The operator that a rewrite would insert, with its inputs and neighbours.

    Attributes:
        label: name of the node that the rewrite would replace.
        op: the operator that it would insert.
        dtype: element type of the inputs.
        shapes: shapes of the inputs; None for an unknown rank.
        before, after: operators that produce the inputs and that read the output; empty at the model's boundary.
    """

    label: str
    op: str
    dtype: str
    shapes: tuple[tuple[int | str | None, ...] | None, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]

    def key(self, sizes: Mapping[str, int]) -> str:
        """Returns a text that is equal for workloads of equal cost. `sizes` replaces symbolic dimensions."""

        def size(d: int | str | None) -> str:
            return str(d if isinstance(d, int) else sizes.get(d or "", "?"))

        shapes = " ".join("?" if shape is None else "x".join(map(size, shape)) for shape in self.shapes)
        before, after = ("+".join(ops) or "-" for ops in (self.before, self.after))
        # A size that is known only at run time still depends on the sizes of the inputs.
        bound = " with " + ",".join(f"{s}={n}" for s, n in sorted(sizes.items())) if "?" in shapes else ""
        return f"{self.op} {self.dtype} {shapes} between {before} and {after}{bound}"


@dataclass(frozen=True)
class Candidate:
    """A legal rewrite; whether it is faster depends on sizes, neighbours and the machine.

    Attributes:
        no_gain: the estimate's reason why the rewrite is not faster; "" if it is.
        describe: returns the workload in the current graph. Only cost models that measure call it.
    """

    no_gain: str
    describe: Callable[[], Workload]


class Profit(Protocol):
    """A cost model."""

    def decline(self, candidate: Candidate) -> str:
        """Returns why the candidate is not rewritten; "" to rewrite it."""
        ...


class Estimates:
    """The default cost model: formulas and thresholds fitted to measurements."""

    def decline(self, candidate: Candidate) -> str:
        return candidate.no_gain


class EveryLegalCandidate:
    """Rewrites every legal candidate.

    Attributes:
        has_declined: whether the estimate declined any of them.
    """

    def __init__(self) -> None:
        self.has_declined = False

    def decline(self, candidate: Candidate) -> str:
        self.has_declined |= bool(candidate.no_gain)
        return ""


def winograd_is_faster(target: Target, C: int, M: int, OH: int | None, OW: int | None) -> bool:
    """Returns whether WinogradConv from C to M channels with an OH x OW result is faster than Conv on `target`.

    Unknown sizes count as large, because the kernel uses another algorithm for few tiles.
    """
    if target.device == "cpu":
        return winograd_gain(C, M, OH, OW) > (WINOGRAD_MIN_GAIN if min(C, M) < WINOGRAD_SURE_CHANNELS else 1.0)
    return C >= WINOGRAD_MIN_CHANNELS and M >= WINOGRAD_MIN_CHANNELS


def winograd_no_gain(target: Target, C: int, M: int, OH: int | None, OW: int | None) -> str:
    """Returns why WinogradConv is not faster, with both estimated times on a CPU; "" if it is."""
    if winograd_is_faster(target, C, M, OH, OW):
        return ""
    what = f"{C} to {M} channels of {OH or '?'}x{OW or '?'}"
    if target.device != "cpu":
        return f"{what} are too little work for WinogradConv on {target}"
    ours, theirs = (time(C, M, OH or 56, OW or 56) for time in (winograd_time, direct_time))
    least = f"; below {WINOGRAD_SURE_CHANNELS} channels it must be {WINOGRAD_MIN_GAIN} times faster"
    times = f"WinogradConv takes an estimated {ours:.1f} us for {what}, ONNX Runtime's Conv {theirs:.1f} us"
    return times + (least if ours < theirs else "")
