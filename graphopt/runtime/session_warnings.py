"""Warnings and errors about sessions with another provider, target or precision than intended."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from graphopt.errors import GraphoptError
from graphopt.metadata import METADATA_NUMERICS, METADATA_TARGET, Numerics
from graphopt.runtime import selftest_record
from graphopt.runtime.discovery import (
    CPU,
    DEVICE_PROVIDER,
    ROCM,
    Provider,
    bfloat16_gain,
    device_of,
    gpu_routes,
    library_version,
    why_no_device,
)
from graphopt.runtime.machine import Device

# The providers that run our GPU kernels.
SELF_TESTED = frozenset({DEVICE_PROVIDER, ROCM})


def require_provider(created: Any, provider: str) -> None:
    """Rejects a session that fell back to other providers, since ONNX Runtime only warns about it, if at all.

    Raises:
        GraphoptError: the session does not have the provider.
    """
    if provider not in created.get_providers():
        why, got = why_no_device(provider), ", ".join(created.get_providers())
        raise GraphoptError(f"{provider} was requested, but the session runs on {got}" + (f": {why}" if why else ""))


def failed_on_device(options: Mapping[str, dict[str, Any]]) -> list[str]:
    """Returns our operators that failed the self-test on the selected GPU; warns once for each GPU."""
    name = next((p for p in options if p in SELF_TESTED), None)
    if name is None:
        return []
    device = device_of((name, options[name]))
    failed = selftest_record.failures(name, device, library_version())
    if failed and (name, device) not in _warned_of:
        _warned_of.add((name, device))
        count = "1 operator" if len(failed) == 1 else f"{len(failed)} operators"
        reasons = "; ".join(f"{op}: {why}" for op, why in [*failed.items()][:3])
        others = f"; and {', '.join([*failed][3:])}" if len(failed) > 3 else ""
        warnings.warn(
            f"{device.name} ({device.arch}) failed the self-test of {count}: function bodies run instead of our "
            f"kernels; 'graphopt doctor --selftest' tests again. {reasons}{others}",
            stacklevel=4,
        )
    return [*failed]


_warned_of: set[tuple[str, Device]] = set()


def warn_once(line: str) -> None:
    """Issues a warning once in a process, attributed to the caller of a public function."""
    if line not in _said:
        _said.add(line)
        warnings.warn(line, stacklevel=4)


_said: set[str] = set()


def warn_of_fallback(created: Any, providers: Sequence[Provider]) -> None:
    """Warns if a requested provider is missing, since ONNX Runtime only logs that and continues without it."""
    requested = [p if isinstance(p, str) else p[0] for p in providers]
    missing = [name for name in requested if name not in created.get_providers()]
    if missing:
        reason = next((r.why_not() for r in gpu_routes() if r.provider == missing[0]), None)
        why = "" if reason is None else f": {reason}"
        warn_once(f"{missing[0]} was requested, but the session runs on {', '.join(created.get_providers())}{why}")


def refuse_cpu_nodes(created: Any) -> None:
    on_cpu = [
        f"{node.name or '(unnamed)'} ({node.op_type})"
        for part in created.get_provider_graph_assignment_info()
        if part.ep_name == CPU
        for node in part.get_nodes()
    ]
    if on_cpu:
        raise GraphoptError(f"{len(on_cpu)} nodes would run on the CPU: {', '.join(on_cpu)}")


def warn_of_other_target(created: Any) -> None:
    """Warns if the model was optimized for another kind of device, because it may be slower here."""
    target = created.get_modelmeta().custom_metadata_map.get(METADATA_TARGET, "")
    names = created.get_providers()
    # Our own provider runs on GPUs of both vendors.
    on_gpu = DEVICE_PROVIDER in names or ROCM in names
    runs_on = "gpu" if on_gpu else "cpu"
    device = target.partition(":")[0]
    if device in ("cpu", "rocm", "cuda") and (device != "cpu") != on_gpu:
        warnings.warn(f"this model was optimized for {target}, but it runs on the {runs_on.upper()}", stacklevel=3)


def warn_of_slow_bfloat16(created: Any) -> None:
    """Warns if the model rounds to bfloat16 and this CPU does not compute faster in bfloat16 than in float32."""
    if created.get_providers() != [CPU]:
        return
    if created.get_modelmeta().custom_metadata_map.get(METADATA_NUMERICS) != Numerics.BF16.name.lower():
        return
    from graphopt.precision.bfloat16_gain import LEAST_GAIN

    gain = bfloat16_gain()
    if gain is not None and gain < LEAST_GAIN:
        warnings.warn(
            f"this model rounds to bfloat16, which takes {1 / gain:.2f} times as long as float32 on this machine: "
            "optimize the original without --precision bf16",
            stacklevel=3,
        )
