"""`doctor --selftest`: every kernel that this machine would run, against the definition of its operator in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import graphopt
from graphopt.errors import RuntimeMissingError, one_line
from graphopt.machine import device_name
from graphopt.ops import OPS
from graphopt.ops.cases import FAMILIES, Case, cases_of, model_of
from graphopt.runtime import DEVICE_PROVIDER, Provider, default_providers, runtime_name, session

CPU = "CPUExecutionProvider"
OPSET = 17
DTYPES = ("float32", "float16")


@dataclass(frozen=True)
class KernelResult:
    """One operator in one element type.

    Attributes:
        cases: how many inputs were tried.
        error: the largest, relative to the RMS of the reference.
        limit: what it may be.
        detail: why it failed, or "".

    """

    op: str
    dtype: str
    cases: int
    error: float
    limit: float
    detail: str

    @property
    def passed(self) -> bool:
        return not self.detail


@dataclass
class SelfTest:
    """What ran where, and how it went."""

    provider: str
    device: str
    runtime: str
    results: list[KernelResult] = field(default_factory=list)

    @property
    def failed(self) -> list[KernelResult]:
        return [r for r in self.results if not r.passed]

    def families(self) -> Iterator[tuple[str, str, list[KernelResult]]]:
        """Results by the first words of the operator's name and element type."""
        groups: dict[tuple[str, str], list[KernelResult]] = {}
        for result in self.results:
            family = next(prefix for prefix in FAMILIES if result.op.startswith(prefix))
            groups.setdefault((family, result.dtype), []).append(result)
        for (family, dtype), results in groups.items():
            yield family, dtype, results

    def to_dict(self) -> dict[str, Any]:
        return {"format": 1, "graphopt": graphopt.__version__, **asdict(self)}


def selftest(providers: Sequence[Provider] | None = None, progress: Callable[[str], None] | None = None) -> SelfTest:
    """Runs every operator in float32 and float16 on awkward inputs.

    Args:
        providers: as for `session`; None takes the best that this machine has.
        progress: called with the name of each operator.

    Raises:
        RuntimeMissingError: no runtime, or no native library.

    """
    # Our provider would leave nodes that have no neighbours to the CPU.
    ours: Provider = (DEVICE_PROVIDER, {"min_nodes": 1})
    best = [ours if p == DEVICE_PROVIDER else p for p in default_providers()]
    chosen: list[Provider] = [*(best if providers is None else providers)]
    first = chosen[0] if isinstance(chosen[0], str) else chosen[0][0]
    report = SelfTest(first, device_name(first), runtime_name())
    for name, spec in OPS.items():
        if progress is not None:
            progress(name)
        for dtype in DTYPES:
            cases = [case.cast(dtype) for case in cases_of(spec)]
            report.results.append(_result(cases, dtype, chosen, on_device=first != CPU))
    return report


def _result(cases: list[Case], dtype: str, providers: list[Provider], *, on_device: bool) -> KernelResult:
    name, limit = cases[0].spec.name, cases[0].tolerance(dtype)
    # Without the bodies in the model nothing but a kernel of ours can run it.
    model, feeds = model_of(cases, OPSET, bodies=False)
    try:
        created = session(model.SerializeToString(), providers, require_device=on_device, log_severity_level=4)
        outputs = iter(created.run(None, dict(feeds)))
    except RuntimeMissingError:
        raise
    except Exception as error:  # ours, or the runtime's: the runtime's exception classes share no public base
        return KernelResult(name, dtype, len(cases), float("inf"), limit, one_line(error))
    errors = [case.error([next(outputs) for _ in case.spec.outputs]) for case in cases]
    worst = max(range(len(cases)), key=errors.__getitem__)
    detail = ""
    if not errors[worst] <= limit:
        detail = f"off by {errors[worst]:.1e} of RMS for inputs of {[x.shape for x in cases[worst].inputs]}"
    return KernelResult(name, dtype, len(cases), errors[worst], limit, detail)
