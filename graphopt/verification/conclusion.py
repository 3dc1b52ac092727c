"""The verdict, and a sentence with the reasons.

It says where differences are a matter of choice: in queries of which a mask hides every key. A softmax over nothing has
no meaning of its own. Where an exporter adds a lowest number to hide keys, such a query gets their mean; where it adds
minus infinity, NaN, or 0 behind a guard. Two exports of one module may differ there, and only there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from graphopt.errors import VerifyError
from graphopt.graph.messages import inlined
from graphopt.inputs.plan import Case, masks_of
from graphopt.inputs.uses import HIDES
from graphopt.metadata import Numerics
from graphopt.runtime.discovery import CPU
from graphopt.verification.judge import NOISE, Verdict
from graphopt.verification.pair import Pair
from graphopt.verification.ranges import first_beyond_half
from graphopt.verification.report import OutputComparison, VerifyReport, severity
from graphopt.verification.run import Outputs, open_session, run_case
from graphopt.verification.tolerances import LARGEST_LIMIT


def conclude(pair: Pair, report: VerifyReport, cases: Sequence[Case], wanted: Mapping[str, Outputs]) -> None:
    if not all(row.equal for row in report.rows):
        report.verdict = Verdict.DIFFERENT
    elif report.random:
        report.verdict = Verdict.RANDOM
    if report.verdict == Verdict.DIFFERENT:
        bad = [row for row in report.rows if not row.equal]
        report.notes += _where_hidden(pair, bad, cases, wanted) + _where_beyond_half(pair, report, cases)
    else:
        noise = [row for row in report.rows if row.reason == NOISE]
        far = [row for row in noise if row.rel_rms > LARGEST_LIMIT[Numerics.REASSOCIATED]]
        report.notes += _where_hidden(pair, far, cases, wanted)
    report.summary = _summary(report, len(cases)) + ("; AFTER's interface is float16" if pair.half_io else "")
    if report.verdict == Verdict.DIFFERENT:
        farthest = max((r for r in report.rows if not r.equal), key=severity).case
        report.feeds = next(dict(case.feeds) for case in cases if case.name == farthest)
        return
    for name in pair.names:
        rows = [r for r in report.rows if r.name == name]
        # Zeros that stay zeros prove nothing about an output that is noise elsewhere.
        noise = [r for r in rows if r.reason == NOISE]
        evidence = [r for r in rows if r.reason != NOISE and r.cosine != 0.0]
        if noise and not evidence:
            moved = min((r.noise for r in noise if r.noise is not None), default=math.inf)
            worst = max(r.slice_error for r in noise)
            raise VerifyError(
                f"{pair.called}: output '{name}' is rounding noise on every input tried: rounding alone moves BEFORE "
                f"by {moved:.2g} of its RMS or more, and AFTER is at most {worst:.2g} away; give inputs with --inputs, "
                "or a limit with --rtol"
            )


def _where_hidden(
    pair: Pair, rows: Sequence[OutputComparison], cases: Sequence[Case], wanted: Mapping[str, Outputs]
) -> list[str]:
    """Says where AFTER is far off only in queries that see no key; `rows` are those that are far off."""
    masks = masks_of(inlined(pair.before.proto)) if rows else []
    ways = [[row for row in rows if row.optimized == level] for level in (False, True)]
    bad, optimized = ({(row.case, row.name): row for row in of_way} for of_way in ways)
    if not masks or not bad or optimized.keys() - bad.keys():
        return []
    row = next(iter(bad.values()))
    session = open_session(pair.after.source, library=row.library, provider=row.provider)
    found = []
    for case in (case for case in cases if any(name == case.name for name, _ in bad)):
        got = run_case(session, case, half_io=pair.half_io)
        for want, other, name in zip(wanted[case.name], got, pair.names) if not isinstance(got, str) else ():
            if (case.name, name) in bad:
                limit = min(bad[case.name, name].limit, LARGEST_LIMIT[Numerics.REASSOCIATED])
                flags = differing(want, other, limit)
                if flags is None:
                    return []
                found.append((flags, {mask: np.asarray(case.feeds[mask]) for mask in masks}))
    why = only_where_hidden(found)
    return [why] if why else []


def _where_beyond_half(pair: Pair, report: VerifyReport, cases: Sequence[Case]) -> list[str]:
    """Names the first node of AFTER with values beyond float16, if there is one."""
    row = max((r for r in report.rows if not r.equal), key=severity)
    case = next((case for case in cases if case.name == row.case), None)
    if case is None or not pair.after_halves:
        return []
    try:
        found = first_beyond_half(pair.after, pair.after_halves, case)
    except VerifyError:
        return []
    if found is None:
        return []
    node, value, most = found
    label = node.name or f"{node.op_type}->{value.removesuffix('_half')}"
    said = f"on '{case.name}' values of {node.op_type} '{label}' reach {most:.3g}, beyond float16's 65504"
    if not pair.before_halves:
        said += (
            f": optimize --precision fp16 --keep-float '{label}' keeps it in float32, and --inputs finds such nodes by "
            "inputs of your own"
        )
    return [said]


def _summary(report: VerifyReport, cases: int) -> str:
    ours = any(r.library and r.provider == CPU for r in report.rows)
    ways = "with and without the library" if ours else "as standard ONNX"
    ways += ", at the runtime's default level" if all(r.optimized for r in report.rows) else ""
    ways += "".join(f", on {p}" for p in sorted({r.provider for r in report.rows} - {CPU}))
    text = f"{cases} input set{'s' * (cases != 1)}, {ways}, class {report.numerics}"
    if report.fixed:
        text += ", with " + ", ".join(f"{s}={n}" for s, n in report.fixed.items()) + " as AFTER has it"
    if report.skipped:
        text += f"; {len(report.skipped)} input set{'s' * (len(report.skipped) != 1)} skipped, which BEFORE refuses"
    if report.random:
        text += f"; BEFORE differs from itself in {', '.join(report.random)}, which it makes at random"
    noise = {r.case for r in report.rows if r.reason == NOISE}
    if noise:
        text += f"; {len(noise)} inconclusive, where rounding decides"
    if report.not_covered:
        text += f"; {len(report.not_covered)} not covered"
    bad = [r for r in report.rows if not r.equal]
    if bad:
        r = max(bad, key=severity)
        how = "with the library" if r.library else "without the library"
        how = how if r.provider == CPU else f"on {r.provider}"
        how += ", at the runtime's default level" if r.optimized else ""
        text += f"; worst: output '{r.name}{r.slice}' on '{r.case}', {how}: {r.reason}"
        what = "RMS of the error" if r.measure == "rms" else "largest error"
        if math.isfinite(r.slice_error):
            text += f", {what} {r.slice_error:.3g} of RMS (limit {r.slice_limit:.3g})"
    return text


# -- queries that see no key -------------------------------------------------------------------------------------------

Flags = npt.NDArray[np.bool_]


def differing(want: Any, got: Any, limit: float) -> Flags | None:
    """Which numbers of an output differ by more than `limit` of its RMS; None where the two are no arrays of one shape.

    A sequence is a list.
    """
    if not isinstance(want, np.ndarray) or not isinstance(got, np.ndarray):
        return None
    if want.shape != got.shape or want.ndim == 0 or want.dtype.kind not in "fV":
        return None
    a, b = want.astype(np.float64), got.astype(np.float64)
    with np.errstate(invalid="ignore"):
        finite = np.isfinite(a)
        rms = float(np.sqrt(np.mean(a[finite] ** 2))) if finite.any() else 0.0
        return np.asarray((np.abs(a - b) > limit * rms) | (np.isnan(a) != np.isnan(b)))


def hides_all(mask: npt.NDArray[Any]) -> Flags:
    """[B] or [B, S]: sequences, or queries of them, for which a mask [B, T] or [B, ..., S, T] hides every key.

    A mask is 0 where it hides, or a low number where it is added to scores, of floats.
    """
    shown = mask > -HIDES if mask.dtype.kind in "fV" and (mask < 0).any() else mask != 0
    seen = shown.any(axis=-1)
    queries = seen if seen.ndim == 1 else np.any(seen, axis=tuple(range(1, seen.ndim - 1)))
    return np.logical_not(queries)


def hides_all_before(mask: npt.NDArray[Any]) -> Flags:
    """[B, T]: queries of a causal model that see no key up to their own, by a mask [B, T]."""
    return ~np.logical_or.accumulate(mask != 0, axis=-1)


def only_where_hidden(found: Iterable[tuple[Flags, Mapping[str, npt.NDArray[Any]]]]) -> str:
    """A sentence where all differences are such; "" where one is not.

    Args:
        found: of each case which numbers of an output differ, and the masks among its inputs.
    """
    said: list[str] | None = None
    for flags, masks in found:
        here = [why for name, mask in masks.items() for why in _reasons(flags, name, mask)]
        said = here if said is None else [why for why in said if why in here]
        if not said:
            return ""
    return f"the outputs differ only {said[0]}: a softmax over no key has no meaning" if said else ""


def _reasons(flags: Flags, name: str, mask: npt.NDArray[Any]) -> list[str]:
    hidden = {f"where '{name}' hides every key": hides_all(mask)} if mask.ndim > 1 else {}
    if mask.ndim == 2:
        hidden[f"where '{name}' hides every key up to the query"] = hides_all_before(mask)
    return [why for why, queries in hidden.items() if queries.any() and _lie_in(flags, queries)]


def _lie_in(flags: Flags, queries: Flags) -> bool:
    """Whether what differs belongs to these sequences or queries: axis 0 is the batch, another one the position."""
    queries = queries[: len(flags)]  # a mask may have rows that nothing reads
    if len(queries) < len(flags):
        return False
    if queries.ndim == 1 or queries.shape[1] == 1:
        return not flags[~queries.reshape(-1)].any()
    axis = next((i for i in (1, 2) if i < flags.ndim and flags.shape[i] == queries.shape[1]), None)
    return axis is not None and not np.moveaxis(flags, axis, 1)[~queries].any()
