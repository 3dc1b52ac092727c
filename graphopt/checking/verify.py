"""`verify`: do two models compute the same?"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from graphopt.checking.compare import OutputComparison, difference, distribution_difference
from graphopt.checking.inputs import Case, given_cases, make_cases
from graphopt.checking.interface import fixed_sizes, interface_difference, without_overridable
from graphopt.checking.run import MAX_PERTURBED_BYTES, Outputs, perturbed, run_cases
from graphopt.checking.tolerances import LARGEST_LIMIT, LIMITS, SENSITIVITY_FACTOR
from graphopt.errors import OptionError, VerifyError
from graphopt.graph import model as models
from graphopt.metadata import METADATA_FROZEN, METADATA_NUMERICS, Numerics
from graphopt.ops import DOMAIN
from graphopt.runtime.sessions import CPU, provider_name

Tolerance = float | Mapping[str, float]


@dataclass
class VerifyReport:
    """Whether two models compute the same, and the evidence.

    Attributes:
        equal: no output of any case differs by more than its limit.
        numerics: the class of the rewrites that AFTER went through.
        rows: one for each output, case and way of running AFTER.
        skipped: cases that BEFORE itself refuses, with the runtime's message.
        fixed: symbolic dimensions of BEFORE that are numbers in AFTER.
        summary: a sentence.
    """

    equal: bool = True
    numerics: str = "exact"
    rows: list[OutputComparison] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    fixed: dict[str, int] = field(default_factory=dict)
    summary: str = ""

    def worst_outputs(self) -> list[OutputComparison]:
        """For each output its worst row: unequal ones first, then by difference relative to the limit."""
        worst: dict[str, OutputComparison] = {}
        for row in self.rows:
            if row.name not in worst or _severity(row) > _severity(worst[row.name]):
                worst[row.name] = row
        return list(worst.values())

    def to_dict(self) -> dict[str, Any]:
        return {"format": 1, **asdict(self)}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)


def _severity(row: OutputComparison) -> tuple[bool, float]:
    return not row.equal, row.rel_rms


def verify(
    before: Any,
    after: Any,
    *,
    inputs: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    rtol: Tolerance | None = None,
    atol: Tolerance | None = None,
    seed: int = 0,
    probe_nan: bool = False,
    provider: str | None = None,
) -> VerifyReport:
    """Runs two models on the same inputs, with all of the runtime's optimizations off, and compares every output.

    AFTER runs twice when it has nodes of ours: by its function bodies, and with the native library. With a provider it
    runs there as well; BEFORE always runs on the CPU.

    Args:
        before: the original, in any form that `optimize` takes.
        after: the rewritten model.
        inputs: a .npz file, a folder, or name -> array; None makes adversarial inputs from the model's own input types.
        rtol: limit of the difference relative to the RMS of the output, for all outputs or by name ("" for the others);
            None takes the limit of the class that AFTER's metadata names.
        atol: a difference of no more than this is accepted as well.
        seed: of the inputs that are made.
        probe_nan: also tries inputs with NaN and infinities. A rewrite may spread them further than the original
            without being wrong about numbers: one NaN fills a whole tile of a Winograd convolution.
        provider: "rocm", "graphopt", ... or a full name: where AFTER is to run too.

    Raises:
        OptionError: a tolerance for an output that there is not, or a provider that this runtime has not.
        ModelLoadError: a model cannot be read.
        VerifyError: they could not be compared: the runtime refuses a model, or every case.
        RuntimeMissingError: no ONNX Runtime, or no native library.
    """
    device = provider_name(provider) if provider is not None else CPU
    before_model, before_proto, _ = _runnable(before)
    after_model, after_proto, after_ir = _runnable(after)
    if any(p.key == METADATA_FROZEN for p in after_proto.metadata_props):
        before_proto = without_overridable(before_proto)
    numerics = _numerics(after_proto, before_proto)
    report = VerifyReport(numerics=numerics.name.lower())
    names = [o.name for o in before_proto.graph.output]
    for tolerance in (rtol, atol):
        unknown = set(tolerance) - {"", *names} if isinstance(tolerance, Mapping) else set()
        if unknown:
            raise OptionError(f"there is no output '{min(unknown)}'; the outputs are {', '.join(names)}")
    half_io = numerics == Numerics.FP16 and _interface_in_half(before_proto, after_proto)
    contradiction = interface_difference(before_proto, after_proto, half_io=half_io)
    if contradiction:
        report.equal = False
        report.summary = contradiction
        return report
    report.fixed = fixed_sizes(before_proto, after_proto)
    if inputs is None:
        cases = list(make_cases(before_proto, seed, fixed=report.fixed, probe_nan=probe_nan))
    else:
        cases = given_cases(inputs, before_proto)
    wanted = run_cases(before_model, cases, library=False)
    report.skipped = {name: r for name, r in wanted.items() if isinstance(r, str)}
    usable = [c for c in cases if c.name not in report.skipped]
    if not usable:
        raise VerifyError(f"BEFORE runs on none of the inputs: {next(iter(report.skipped.values()))}")
    has_ours = any(n.domain == DOMAIN for g in models.graphs(after_ir) for n in g)
    sensitivity = _Sensitivity(before_model, before_proto, usable, half=numerics == Numerics.FP16)
    ways = [(False, CPU), *([(True, CPU)] if has_ours else []), *([(True, device)] if device != CPU else [])]
    for library, where in ways:
        got = run_cases(after_model, usable, library=library, provider=where, half_io=half_io)
        kind = min(numerics, Numerics.REASSOCIATED) if not library and numerics == Numerics.APPROXIMATE else numerics
        if where != CPU:  # its kernels sum in an order of their own, also where nothing was rewritten
            kind = max(kind, Numerics.REASSOCIATED)
        for case in usable:
            want = wanted[case.name]
            assert not isinstance(want, str)
            report.rows += _compare(names, case, want, got[case.name], (library, where), kind, rtol, atol, sensitivity)
    report.equal = all(row.equal for row in report.rows)
    for name in names:
        rows = [r for r in report.rows if r.name == name]
        # Zeros that stay zeros prove nothing about an output that is noise elsewhere.
        evidence = [r for r in rows if not r.reason.startswith("inconclusive") and r.cosine != 0.0]
        if not evidence and any(r.reason.startswith("inconclusive") for r in rows):
            moved = min(r.noise for r in rows if r.reason.startswith("inconclusive"))
            worst = max(r.rel_rms for r in rows)
            unit = "one unit in the last place" + (" of half precision" if numerics == Numerics.FP16 else "")
            raise VerifyError(
                f"output '{name}' is rounding noise on every input tried: {unit} of every weight moves BEFORE by "
                f"{moved:.2g} of its RMS or more, and AFTER is at most {worst:.2g} away; give inputs with --inputs, or "
                "a limit with --rtol"
            )
    report.summary = _summary(report, len(usable)) + ("; AFTER's interface is float16" if half_io else "")
    return report


def _runnable(model: Any) -> tuple[Path | onnx.ModelProto, onnx.ModelProto, ir.Model]:
    """(what a session loads, the message without external data, the IR)."""
    source = models.load(model)
    if source.path is not None:
        return source.path, models.read_proto(source.path), source.model
    proto = model if isinstance(model, onnx.ModelProto) else ir.serde.serialize_model(source.model)
    return proto, proto, source.model


def _numerics(after: onnx.ModelProto, before: onnx.ModelProto) -> Numerics:
    """The class that AFTER names; half-precision models are compared as such whatever was done to them."""
    name = {p.key: p.value for p in after.metadata_props}.get(METADATA_NUMERICS, "reassociated").upper()
    numerics = Numerics[name] if name in Numerics.__members__ else Numerics.REASSOCIATED
    tensors = (t.data_type for m in (before, after) for t in m.graph.initializer)
    values = (v.type.tensor_type.elem_type for m in (before, after) for v in (*m.graph.input, *m.graph.output))
    types = {*tensors, *values}
    if numerics != Numerics.EXACT and onnx.TensorProto.BFLOAT16 in types:
        return Numerics.BF16
    return Numerics.FP16 if numerics != Numerics.EXACT and onnx.TensorProto.FLOAT16 in types else numerics


def _interface_in_half(before: onnx.ModelProto, after: onnx.ModelProto) -> bool:
    """Whether every float32 input and output of BEFORE is float16 in AFTER, as `keep_io=False` makes them."""
    overridable = {t.name for t in before.graph.initializer}
    pairs = zip((*before.graph.input, *before.graph.output), (*after.graph.input, *after.graph.output))
    types = [
        (a.type.tensor_type.elem_type, b.type.tensor_type.elem_type) for a, b in pairs if a.name not in overridable
    ]
    floats = [b for a, b in types if a == onnx.TensorProto.FLOAT]
    return bool(floats) and all(b == onnx.TensorProto.FLOAT16 for b in floats)


class _Sensitivity:
    """How far BEFORE's outputs move when its weights move by one unit in the last place; measured when first asked.

    Args:
        model, proto, cases: BEFORE, its message, and what it runs on.
        half: the unit is that of half precision.
    """

    def __init__(self, model: Path | onnx.ModelProto, proto: onnx.ModelProto, cases: list[Case], *, half: bool) -> None:
        self._model, self._proto, self._cases, self._half = model, proto, cases, half
        self._runs: list[dict[str, Outputs | str]] | None = None

    def of(self, case: Case, index: int, want: Any, measure: Callable[[Any, Any], float | None]) -> float:
        """The larger of two movements in this measure."""
        if self._runs is None:
            self._runs = self._measure()
        found = 0.0
        for results in self._runs:
            moved = results[case.name]
            if not isinstance(moved, str):
                relative = measure(want, moved[index])
                found = max(found, relative if relative is not None and math.isfinite(relative) else 0.0)
        return found

    def _measure(self) -> list[dict[str, Outputs | str]]:
        proto = self._proto
        if any(t.data_location == onnx.TensorProto.EXTERNAL for t in proto.graph.initializer):
            assert isinstance(self._model, Path)
            if sum(p.stat().st_size for p in self._model.parent.iterdir() if p.is_file()) > MAX_PERTURBED_BYTES:
                return []
            proto = onnx.load(self._model)
        return [run_cases(perturbed(proto, seed, half=self._half), self._cases, library=False) for seed in (1, 2)]


def _compare(
    names: list[str],
    case: Case,
    want: Outputs,
    got: Outputs | str,
    way: tuple[bool, str],
    numerics: Numerics,
    rtol: Tolerance | None,
    atol: Tolerance | None,
    sensitivity: _Sensitivity,
) -> list[OutputComparison]:
    if isinstance(got, str):
        reason = f"AFTER cannot run: {got}"
        return [OutputComparison(names[0], case.name, *way, math.inf, math.inf, -math.inf, 0.0, 0.0, False, reason)]
    rows = []
    for i, name in enumerate(names):
        structure, max_abs, rel_rms, snr_db, cosine = difference(want[i], got[i])
        own_limit = _for_output(rtol, name)
        limit = LIMITS[numerics] if own_limit is None else own_limit
        noise = 0.0
        accepted_abs = _for_output(atol, name) or 0.0
        reason = structure
        equal = not structure and (rel_rms <= limit or max_abs <= accepted_abs)
        if not equal and not structure and own_limit is None and numerics != Numerics.EXACT:
            factor, largest = SENSITIVITY_FACTOR[numerics], LARGEST_LIMIT[numerics]
            noise = sensitivity.of(case, i, want[i], lambda a, b: difference(a, b)[2]) * factor
            if noise > limit:
                limit = min(noise, largest)
                equal = rel_rms <= limit
                reason = "limit from the model's own sensitivity to rounding"
            by_row = distribution_difference(want[i], got[i]) if not equal and noise > largest else None
            if by_row is not None:
                rel_rms, noise = by_row, sensitivity.of(case, i, want[i], distribution_difference) * factor
                limit = max(LIMITS[numerics], min(noise, largest))
                equal = rel_rms <= limit
                reason = "a distribution: relative to the norm of its row"
            if not equal and noise > largest:
                equal, reason = True, "inconclusive: for these inputs the output is rounding noise"
        if not equal and not reason.startswith(("type", "shape", "NaN", "inf", "a distribution")):
            reason = "differs"
        rows.append(
            OutputComparison(name, case.name, *way, max_abs, rel_rms, snr_db, cosine, limit, equal, reason, noise)
        )
    return rows


def _for_output(tolerance: Tolerance | None, name: str) -> float | None:
    if isinstance(tolerance, Mapping):
        return tolerance.get(name, tolerance.get(""))
    return tolerance


def _summary(report: VerifyReport, cases: int) -> str:
    ours = any(r.library and r.provider == CPU for r in report.rows)
    ways = "with and without the library" if ours else "as standard ONNX"
    ways += "".join(f", on {p}" for p in sorted({r.provider for r in report.rows} - {CPU}))
    text = f"{cases} input sets, {ways}, class {report.numerics}"
    if report.fixed:
        text += ", with " + ", ".join(f"{s}={n}" for s, n in report.fixed.items()) + " as AFTER has it"
    if report.skipped:
        text += f"; {len(report.skipped)} input sets skipped, which BEFORE refuses"
    inconclusive = {r.case for r in report.rows if r.reason.startswith("inconclusive")}
    if inconclusive:
        text += f"; {len(inconclusive)} inconclusive"
    bad = [r for r in report.rows if not r.equal]
    if bad:
        r = max(bad, key=_severity)
        how = "with the library" if r.library else "without the library"
        how = how if r.provider == CPU else f"on {r.provider}"
        text += f"; worst: output '{r.name}' on '{r.case}', {how}: {r.reason}"
        text += f", {r.rel_rms:.3g} of RMS (limit {r.limit:.3g})" if math.isfinite(r.rel_rms) else ""
    return text


__all__ = ["OutputComparison", "VerifyReport", "verify"]
