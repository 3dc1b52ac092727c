"""The result of `verify`: the verdict, and the error of each output for each input set and mode of AFTER."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

from graphopt.report.text import fitted
from graphopt.strict_json import dumps

# The reason of rows that prove nothing, because rounding alone changes BEFORE too much.
NOISE = "rounding noise"


class Verdict(Enum):
    """The result of a comparison; RANDOM if runs of BEFORE differ and there is no other difference."""

    EQUAL = "equal"
    DIFFERENT = "different"
    RANDOM = "random"


@dataclass(frozen=True)
class OutputComparison:
    """One output for one input set, with AFTER in one mode.

    Attributes:
        name: the output.
        case: name of the input set.
        library: whether our kernels ran AFTER's nodes, instead of the nodes' function bodies.
        provider: the first provider of AFTER's session.
        optimized: whether the runtime's own optimizations were on, the runtime's default.
        max_abs: largest absolute difference.
        rel_rms: `max_abs` relative to the RMS of BEFORE's output.
        snr_db: signal to noise ratio in dB; inf if all bits are equal.
        cosine: cosine of the angle between the outputs as vectors; 0 if one of them is all zeros.
        limit: limit of `rel_rms`.
        equal: whether every slice is within its limit.
        reason: why the outputs are different, or a remark.
        slice: the slice with the largest error relative to its limit: "" for the whole output, or an index, "[:, 3]".
        measure: what `slice_error` is: "largest" for the largest absolute error, or "rms" for the RMS of the error.
        slice_error: that error, relative to the slice's RMS.
        slice_limit: limit of `slice_error`.
        noise: the measured rounding error of BEFORE in that slice, relative to the slice's RMS; None if it is unknown.
        unmeasured: whether a fixed limit of the whole output replaced a rounding error that could not be measured.
    """

    name: str
    case: str
    library: bool
    provider: str
    optimized: bool
    max_abs: float
    rel_rms: float
    snr_db: float
    cosine: float
    limit: float
    equal: bool
    reason: str
    slice: str = ""
    measure: str = "largest"
    slice_error: float = 0.0
    slice_limit: float = 0.0
    noise: float | None = None
    unmeasured: bool = False

    @property
    def severity(self) -> float:
        """The error divided by its limit."""
        return excess(self.slice_error, self.slice_limit)


def excess(error: float, limit: float) -> float:
    """Returns an error divided by its limit; inf for an error above a limit of 0."""
    return 0.0 if error == 0 else error / limit if limit else math.inf


@dataclass
class VerifyReport:
    """The verdict on two models, and the evidence. As a boolean it is True if the models compute the same.

    Attributes:
        verdict: equal, different or random.
        numerics: the least exact class of the rewrites between the models.
        rows: one for each output, input set and mode of AFTER.
        skipped: input sets that BEFORE refuses, with the runtime's message.
        cases: name of an input set -> what is special about its elements; no entry for usual ones.
        sizes: the combinations of symbolic dimensions that were tried.
        left_out: sizes that were not tried, with their estimated memory or work.
        fixed: symbolic dimensions of BEFORE that are integers in AFTER.
        random: outputs that differ between two runs of BEFORE; they are not compared.
        not_covered: the parts of the models that no input set tests, and outputs without a measured rounding error.
        notes: other remarks.
        summary: the verdict in a sentence.
        feeds: the inputs with the largest difference; empty if the models are equal. Not in the JSON.
        outputs: BEFORE's outputs for `feeds`, by name. Not in the JSON.
    """

    verdict: Verdict = Verdict.EQUAL
    numerics: str = "exact"
    rows: list[OutputComparison] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    cases: dict[str, str] = field(default_factory=dict)
    sizes: list[dict[str, int]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    fixed: dict[str, int] = field(default_factory=dict)
    random: list[str] = field(default_factory=list)
    not_covered: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    summary: str = ""
    feeds: dict[str, Any] = field(default_factory=dict, repr=False)
    outputs: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def equal(self) -> bool:
        return self.verdict == Verdict.EQUAL

    def __str__(self) -> str:
        return f"{self.verdict.value}: {self.summary}"

    def __bool__(self) -> bool:
        return self.equal

    def worst_outputs(self) -> list[OutputComparison]:
        """Returns the worst row of each output, as in `worst`."""
        names = dict.fromkeys(row.name for row in self.rows)
        return [max((row for row in self.rows if row.name == name), key=sort_key) for name in names]

    @property
    def worst(self) -> OutputComparison | None:
        """The row with the largest ratio of error to limit; None without rows. Rows that differ take precedence.

        A row that does not differ may have a larger ratio, if rounding alone changes BEFORE as much.
        """
        return max(self.rows, key=sort_key, default=None)

    def to_dict(self) -> dict[str, Any]:
        found = asdict(replace(self, feeds={}, outputs={})) | {"verdict": self.verdict.value}
        del found["feeds"], found["outputs"]
        return {"format": 2, "equal": self.equal, **found}

    def to_json(self) -> str:
        return dumps(self.to_dict())


def row_without_error(name: str, case: str, mode: tuple[bool, str, bool], reason: str) -> OutputComparison:
    """Returns the row of a difference without a numeric error, such as a failed run or another shape."""
    nothing = (math.inf, math.inf, -math.inf, 0.0, 0.0)
    return OutputComparison(name, case, *mode, *nothing, False, reason, slice_error=math.inf)


def sort_key(row: OutputComparison) -> tuple[bool, float]:
    """Returns a sort key of rows: equal rows come before different ones, then the ratio of error to limit decides."""
    return not row.equal, row.severity


def inconclusive(rows: Sequence[OutputComparison]) -> list[str]:
    """Returns a sentence for each output that is inconclusive on some input set."""
    notes = []
    for name in dict.fromkeys(row.name for row in rows if row.reason == NOISE):
        noise = [row for row in rows if row.name == name and row.reason == NOISE]
        cases = dict.fromkeys(row.case for row in noise)
        moved = [row.noise for row in noise if row.noise is not None]
        how = f" by up to {max(moved):.2g} of its RMS" if moved else ""
        named = fitted([f"'{case}'" for case in cases])
        notes.append(f"output '{name}' is inconclusive on {named}: rounding alone moves BEFORE{how} there")
    return notes
