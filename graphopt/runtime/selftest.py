"""`doctor --selftest`: compares the com.graphopt kernels of this machine with references in float64."""

from __future__ import annotations

import math
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from graphopt.errors import ModelSaveError, RuntimeMissingError, one_line
from graphopt.ops import OPS, OpSpec
from graphopt.ops.case import NodeCase, mixed_model_of, model_of
from graphopt.ops.cases import FAMILIES, cases_of, family_of
from graphopt.runtime import selftest_record
from graphopt.runtime.discovery import (
    CPU,
    DEVICE_PROVIDER,
    Provider,
    default_providers,
    device_of,
    library_path,
    library_version,
    name_and_options,
    runtime_name,
)
from graphopt.runtime.machine import Device
from graphopt.runtime.routes import library_report
from graphopt.runtime.session_warnings import SELF_TESTED
from graphopt.runtime.sessions import session

OPSET = 17
# Options of sessions on a device. Idle threads of the runtime would take most of the self-test's time.
ON_DEVICE: dict[str, Any] = {"intra_op_num_threads": 1}
DTYPES = ("float32", "float16")


@dataclass(frozen=True)
class KernelResult:
    """Result of one operator in one element type.

    Attributes:
        cases: number of inputs tried.
        error: the largest error relative to the RMS of the reference; infinite without a result.
        limit: the largest allowed error.
        detail: why it failed, or "".
        implementation: name of the forced implementation; "" for the one that the operator selects.
        refused: why this implementation supports none of the inputs here, or "".

    """

    op: str
    dtype: str
    cases: int
    error: float
    limit: float
    detail: str
    implementation: str = field(default="", kw_only=True)
    refused: str = field(default="", kw_only=True)

    @property
    def passed(self) -> bool:
        return not self.detail

    def to_dict(self) -> dict[str, Any]:
        """Returns the result for JSON, which has no infinity: an infinite error becomes null."""
        error = self.error if math.isfinite(self.error) else None
        ratio = None if error is None else error / self.limit
        return {**asdict(self), "passed": self.passed, "error": error, "error_over_limit": ratio}


@dataclass(frozen=True)
class SessionResult:
    """Result of a session with our node between the runtime's nodes, to detect side effects of kernels.

    Attributes:
        family: family of our operator.
        nodes: all operators of the model, in order.
        error, limit, detail: as in `KernelResult`.

    """

    family: str
    dtype: str
    nodes: tuple[str, ...]
    error: float
    limit: float
    detail: str

    def to_dict(self) -> dict[str, Any]:
        error = self.error if math.isfinite(self.error) else None
        return {**asdict(self), "passed": not self.detail, "error": error}


@dataclass
class SelfTest:
    """Results of a self-test, with the provider, device, runtime and library.

    Attributes:
        skipped: operators and implementations that were not tested, because the time was over.
    """

    provider: str
    device: Device
    runtime: str
    library: str
    results: list[KernelResult] = field(default_factory=list)
    sessions: list[SessionResult] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)

    @property
    def failed_sessions(self) -> list[SessionResult]:
        return [s for s in self.sessions if s.detail]

    @property
    def failed(self) -> list[KernelResult]:
        return [r for r in self.results if not r.passed]

    def families(self) -> Iterator[tuple[str, str, list[KernelResult]]]:
        """Groups results by operator family, bfloat16 variant, implementation, element type and limit."""
        groups: dict[tuple[str, str, float], list[KernelResult]] = {}
        for result in self.results:
            if result.refused:
                continue
            group = _group(result.op, result.implementation)
            groups.setdefault((group, result.dtype, result.limit), []).append(result)
        for (family, dtype, _), results in groups.items():
            yield family, dtype, results

    def skipped_groups(self) -> Counter[str]:
        """Returns the number of skipped operators of each group of `families`."""
        return Counter(_group(op, implementation) for op, implementation in self.skipped)

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": 4,
            "provider": self.provider,
            "device": asdict(self.device),
            "runtime": self.runtime,
            "library": self.library,
            "results": [result.to_dict() for result in self.results],
            "sessions": [result.to_dict() for result in self.sessions],
            "skipped": [{"op": op, "implementation": implementation} for op, implementation in self.skipped],
        }


def _group(op: str, implementation: str) -> str:
    """Returns the operator's family, bfloat16 variant and implementation."""
    family = family_of(op) + ("Bf16" if op.endswith("Bf16") else "")
    return f"{family}: {implementation}" if implementation else family


def selftest(
    providers: Sequence[Provider] | None = None,
    progress: Callable[[str], None] | None = None,
    seconds: float = math.inf,
) -> SelfTest:
    """Tests every operator in float32 and float16 on edge cases.

    Also tests one operator of each family in a session with nodes of the runtime, and each implementation of an
    operator that has several. Results of a GPU are stored, and sessions disable the kernels that failed
    (`graphopt.configure`).

    Args:
        providers: as for `session`; None selects the best of this machine.
        progress: called with the name of each operator.
        seconds: after this time no further implementation is forced. The one that an operator selects is always tested.

    Raises:
        RuntimeMissingError: no runtime, or no native library.

    """
    end = time.perf_counter() + seconds
    # By default our provider leaves nodes to the CPU if it estimates that they are faster there.
    ours: Provider = (DEVICE_PROVIDER, {"min_nodes": 1})
    best = [ours if p == DEVICE_PROVIDER else p for p in default_providers()]
    chosen: list[Provider] = [*(best if providers is None else providers)]
    first = chosen[0] if isinstance(chosen[0], str) else chosen[0][0]
    report = SelfTest(first, device_of(chosen[0]), runtime_name(), library_version())
    before = selftest_record.failures(first, report.device, report.library)
    several = implementations(chosen[0]) if first == DEVICE_PROVIDER else {}
    cases_of_several: dict[str, dict[str, list[NodeCase]]] = {}
    specs = {name: spec for name, spec in OPS.items() if first == CPU or spec.gpu_kernel}
    finished = False

    def begin(name: str) -> None:
        if progress is not None:
            progress(name)
        # Stored in advance, because a kernel that crashes ends the process.
        _remember(report, {name: "the process ended while its kernel ran"})

    try:
        for name, spec in specs.items():
            begin(name)
            given = cases_of(spec)
            cases = {dtype: [case.cast(dtype) for case in given] for dtype in DTYPES if dtype in spec.dtypes}
            report.results += [_result(spec, dtype, c, chosen, first != CPU) for dtype, c in cases.items()]
            if name in several:
                cases_of_several[name] = cases
        if progress is not None:
            progress("sessions that mix our nodes with the runtime's")
        tested = {family_of(name) for name in specs}
        firsts = {family: first_of(family) for family in FAMILIES if family in tested}
        report.sessions = [
            _mixed_session(family, dtype, chosen) for family in firsts for dtype in firsts[family].dtypes
        ]
        for name, cases in cases_of_several.items():
            begin(name)
            for number, implementation in enumerate(several[name]):
                if time.perf_counter() > end:
                    report.skipped.append((name, implementation))
                    continue
                report.results += [
                    _forced_result(specs[name], dtype, c, chosen, number, implementation) for dtype, c in cases.items()
                ]
        finished = True
    finally:
        _remember(report, {}, None if finished else before)
    return report


def _remember(
    report: SelfTest, extra_failures: Mapping[str, str], replacement: Mapping[str, str] | None = None
) -> None:
    """Stores `replacement`, or the failures so far and `extra_failures`: operator -> reason."""
    if report.provider not in SELF_TESTED:
        return
    failed = replacement
    if failed is None:
        failed = {**{r.op: r.detail for r in report.failed}, **extra_failures}
    try:
        selftest_record.remember(report.provider, report.device, report.library, failed)
    except (OSError, ModelSaveError) as error:
        warnings.warn(f"the result of the self-test cannot be stored: {error}", stacklevel=3)


def _result(
    spec: OpSpec, dtype: str, cases: list[NodeCase], providers: list[Provider], on_device: bool
) -> KernelResult:
    limit = cases[0].tolerance(dtype)
    # Without function bodies only our kernels can run the model.
    model, feeds = model_of(cases, OPSET, bodies=False)
    threads = ON_DEVICE if on_device else {}
    try:
        created = session(
            model.SerializeToString(),
            providers,
            require_device=on_device,
            ignore_selftest=True,
            log_severity_level=4,
            **threads,
        )
        outputs = iter(created.run(None, dict(feeds)))
        errors = [case.error([next(outputs) for _ in case.spec.outputs]) for case in cases]
    except RuntimeMissingError:
        raise
    except Exception as error:  # ours, or the runtime's: the runtime's exception classes share no public base
        return KernelResult(spec.name, dtype, len(cases), math.inf, limit, one_line(error))
    worst = max(range(len(cases)), key=errors.__getitem__)
    detail = ""
    if not errors[worst] <= limit:
        detail = f"error / RMS {errors[worst]:.1e} for inputs of shapes {[x.shape for x in cases[worst].inputs]}"
    return KernelResult(spec.name, dtype, len(cases), errors[worst], limit, detail)


def first_of(family: str) -> OpSpec:
    """Returns the operator that represents a family in mixed sessions."""
    return next(spec for name, spec in OPS.items() if family_of(name) == family)


def _mixed_session(family: str, dtype: str, providers: list[Provider]) -> SessionResult:
    """Runs a session with our node between the runtime's twice: the second run detects side effects of the first."""
    spec = first_of(family)
    # The MatMul before our node would spread infinities and NaN.
    fit = (c for c in cases_of(spec) if c.inputs[0].ndim > 1 and np.isfinite(c.inputs[0]).all())
    case = max(fit, key=lambda c: c.inputs[0].size).cast(dtype)
    limit = case.tolerance(dtype)
    model, feeds = mixed_model_of(case, OPSET, bodies=False)
    nodes = tuple(node.op_type for node in model.graph.node)
    try:
        threads = ON_DEVICE if providers[0] != CPU else {}
        created = session(model.SerializeToString(), providers, ignore_selftest=True, log_severity_level=4, **threads)
        errors = [case.error([-y for y in created.run(None, dict(feeds))]) for _ in range(2)]
    except RuntimeMissingError:
        raise
    except Exception as error:  # ours, or the runtime's: the runtime's exception classes share no public base
        return SessionResult(family, dtype, nodes, math.inf, limit, one_line(error))
    worst = max(errors)
    return SessionResult(family, dtype, nodes, worst, limit, "" if worst <= limit else f"error / RMS {worst:.1e}")


def implementations(provider: Provider) -> dict[str, list[str]]:
    """Returns operator -> names of its implementations in order of preference, for operators with several."""
    _, options = name_and_options(provider)
    return library_report(library_path(), "GraphoptImplementations", int(options.get("device", 0)))


REFUSAL = " refuses this call: "  # native/operators/implementations.h


def _refusals(error: str, op: str) -> dict[int, str]:
    """Returns the reasons for the refused nodes of `model_of` that an error lists: number of the case -> reason."""
    found = re.findall(rf"'{op}_(\d+)_.*{REFUSAL}(.*)", error)
    return {int(number): " ".join(why.split()) for number, why in found}


def _forced_result(
    spec: OpSpec, dtype: str, cases: list[NodeCase], providers: list[Provider], number: int, name: str
) -> KernelResult:
    """Tests one implementation on the inputs that it supports; skips empty inputs, for which no kernel runs."""
    name_of, options = (providers[0], {}) if isinstance(providers[0], str) else providers[0]
    where: list[Provider] = [(name_of, {**options, "implementation": number}), *providers[1:]]
    cases = [case for case in cases if all(x.size for x in case.inputs)]
    limit = cases[0].tolerance(dtype)

    def run(cases: list[NodeCase]) -> Iterator[Any]:
        model, feeds = model_of(cases, OPSET, bodies=False)
        created = session(model.SerializeToString(), where, ignore_selftest=True, log_severity_level=4, **ON_DEVICE)
        return iter(created.run(None, dict(feeds)))

    tested, worst, detail, refused = 0, 0.0, "", ""
    # One session runs all inputs, because creating a session takes longer than the runs. A failed run lists the refused
    # inputs, so a second session can run the others. After any other error, each input gets its own session.
    todo = [cases]
    while todo:
        together = todo.pop()
        try:
            outputs = run(together)
        except Exception as error:  # as in _result
            if reasons := _refusals(str(error), spec.name):
                refused = reasons[max(reasons)]
                rest = [case for i, case in enumerate(together) if i not in reasons]
                todo += [rest] if rest else []
            elif len(together) > 1:
                todo += [[case] for case in reversed(together)]
            else:
                detail = one_line(error)
            continue
        for case in together:
            tested += 1
            error_of_case = case.error([next(outputs) for _ in case.spec.outputs])
            if not error_of_case <= limit:
                detail = f"error / RMS {error_of_case:.1e} for inputs of shapes {[x.shape for x in case.inputs]}"
            worst = max(worst, error_of_case)
    return KernelResult(
        spec.name,
        dtype,
        tested,
        worst if tested else math.inf,
        limit,
        detail,
        implementation=name,
        refused="" if tested or detail else refused,
    )
