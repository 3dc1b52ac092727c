"""What `verify` returns: a verdict, and for each output, case and way of running AFTER how far it is from BEFORE."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from graphopt.verification.judge import NOISE, Verdict

# How many cases a sentence names.
NAMED_CASES = 4


@dataclass(frozen=True)
class OutputComparison:
    """One output of one case, run in one way.

    Attributes:
        name, case: which output, under which inputs.
        library: whether AFTER ran with our kernels (False: its function bodies).
        provider: of the session that ran AFTER, its first.
        optimized: whether the runtime's own optimizations were on, as they are by default.
        max_abs: largest absolute difference.
        rel_rms: the same relative to the RMS of BEFORE's output.
        snr_db: signal to noise ratio; inf when bit-equal.
        cosine: of the two outputs as vectors; 0 when one of them is all zeros.
        limit: what rel_rms may be.
        equal: every slice is within its limit.
        reason: why not equal, or a remark.
        slice: the slice that comes closest to its limit or exceeds it most: "" for the whole, else like "[:, 3]".
        measure: of its error: "largest", or "rms" for the RMS of the error.
        slice_error: its error relative to its own RMS.
        slice_limit: what that may be.
        noise: how far rounding alone moves BEFORE there, relative to the same; None where that was not measured.
        unmeasured: it was asked for and could not be: a fixed limit stood in, and no slice was compared by itself.
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
        """The error over its limit."""
        if self.slice_error == 0:
            return 0.0
        return self.slice_error / self.slice_limit if self.slice_limit else math.inf


@dataclass
class VerifyReport:
    """Whether two models compute the same, and the evidence. True where they do.

    Attributes:
        verdict: equal, different, or random where BEFORE differs from itself and nothing else was found.
        numerics: the class of the rewrites that AFTER went through.
        rows: one for each output, case and way of running AFTER.
        skipped: cases that BEFORE itself refuses, with the runtime's message.
        cases: descriptions of the elements of cases, by name.
        sizes: the sizes of symbolic dimensions that were tried, one combination each.
        left_out: sizes that were not tried, with the memory or the work that they would take.
        fixed: symbolic dimensions of BEFORE that are numbers in AFTER.
        random: outputs that differ from one run of BEFORE to the next; they are not compared.
        not_covered: what no input that was tried has put to the test, and outputs whose honest error could not be
            measured.
        notes: what else there is to know.
        summary: a sentence.
        feeds: the inputs on which the outputs differ most; empty where they do not. Not in the JSON.
        outputs: BEFORE's on these, by name. Not in the JSON.
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
        """For each output its worst row: unequal ones first, then by difference relative to the limit."""
        worst: dict[str, OutputComparison] = {}
        for row in self.rows:
            if row.name not in worst or severity(row) > severity(worst[row.name]):
                worst[row.name] = row
        return list(worst.values())

    @property
    def worst(self) -> OutputComparison | None:
        """The row that is furthest beyond its limit or nearest to it; None where nothing was compared.

        Not the largest difference: where an output is nothing but rounding, that is large and says nothing.
        """
        return max(self.rows, key=severity, default=None)

    def to_dict(self) -> dict[str, Any]:
        found = {
            "format": 2,
            "equal": self.equal,
            **asdict(replace(self, feeds={}, outputs={})),
            "verdict": self.verdict.value,
        }
        del found["feeds"], found["outputs"]
        return found

    def to_json(self) -> str:
        return json.dumps(_without_infinities(self.to_dict()), indent=2, allow_nan=False)


def _without_infinities(value: Any) -> Any:
    """JSON has no infinities: they become words."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {k: _without_infinities(v) for k, v in value.items()}
    return [_without_infinities(v) for v in value] if isinstance(value, list) else value


def broken(name: str, case: str, way: tuple[bool, str, bool], reason: str) -> OutputComparison:
    """A row of what no numbers say."""
    nothing = (math.inf, math.inf, -math.inf, 0.0, 0.0)
    return OutputComparison(name, case, *way, *nothing, False, reason, slice_error=math.inf)


def severity(row: OutputComparison) -> tuple[bool, float]:
    return not row.equal, row.severity


def inconclusive(rows: Sequence[OutputComparison]) -> list[str]:
    """A sentence for each output that rounding decides on some case."""
    said = []
    for name in dict.fromkeys(row.name for row in rows if row.reason == NOISE):
        noise = [row for row in rows if row.name == name and row.reason == NOISE]
        cases = list(dict.fromkeys(row.case for row in noise))
        moved = [row.noise for row in noise if row.noise is not None]
        how = f" by up to {max(moved):.2g} of RMS" if moved else ""
        named = ", ".join(f"'{case}'" for case in cases[:NAMED_CASES])
        more = f" and {len(cases) - NAMED_CASES} more" if len(cases) > NAMED_CASES else ""
        said.append(f"output '{name}' is inconclusive on {named}{more}: rounding alone moves BEFORE{how} there")
    return said
