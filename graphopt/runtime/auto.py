"""Selects the target of this machine, and the provider of a target."""

from __future__ import annotations

from graphopt.errors import OptionError, RuntimeMissingError
from graphopt.runtime.discovery import (
    CPU,
    DEVICE_PROVIDER,
    default_providers,
    device_count,
    device_of,
    gpu_routes,
    provider_name,
    why_cpu,
)
from graphopt.runtime.machine import lacks_vnni
from graphopt.runtime.routes import Reason, no_code_at_all, rebuild_command
from graphopt.targets.target import Target, parse_target

_PROVIDERS = {"cpu": CPU, "rocm": "ROCMExecutionProvider", "cuda": "CUDAExecutionProvider"}
_DEVICES = {"gfx": "rocm", "sm_": "cuda"}
_CDNA = ("gfx908", "gfx90a", "gfx94", "gfx95")


def resolve_target(text: str) -> tuple[Target, str]:
    """Parses a target; "auto" selects the target of the default provider, with the GPU's architecture.

    Returns:
        The target and a reason: why "auto" selected it, or which device code a named target lacks here ("" for none).

    Raises:
        OptionError: the target is unknown.
    """
    if text != "auto":
        target = parse_target(text)
        return _cpu_target() if target.device == "cpu" else target, _without_kernels(target)
    try:
        provider = default_providers()[0]
        if provider != CPU:
            device = device_of(provider)
            kind = _DEVICES.get(device.arch[:3])
            if kind is not None:
                return Target(kind, device.arch), f"{provider} runs on {device.name} here"
        reason = why_cpu()
    except RuntimeMissingError as error:
        return _cpu_target(), str(error)
    return _cpu_target(), "our kernels support no GPU of this machine" if reason is None else reason.text


def _cpu_target() -> Target:
    """Returns the target of this machine's processor."""
    return Target("cpu", vnni=not lacks_vnni())


def _without_kernels(target: Target) -> str:
    """Returns doctor's message if the library has no device code for the target's GPU; else ""."""
    if not target.arch:
        return ""
    try:
        code = next((r.code for r in gpu_routes() if r.name == target.device), ())
    except RuntimeMissingError:
        return ""
    arch = target.arch.partition(":")[0]
    # Code for gfx11-generic runs on gfx1103, and code for gfx9-4-generic on gfx942 and gfx950.
    # CDNA does not run code for gfx9-generic.
    families = {name.removesuffix("-generic").replace("-", "") for name in code if name.endswith("-generic")}
    families |= {"gfx95"} if "gfx94" in families else set()
    if arch.startswith(_CDNA):
        families.discard("gfx9")
    if arch in code or any(arch.startswith(family) for family in families):
        return ""
    amd = target.device == "rocm"
    if not code:
        return str(no_code_at_all(arch, amd=amd))
    return str(Reason("no_code", f"this library has no device code for {arch}", rebuild_command(arch) if amd else ""))


def provider_of(target: Target) -> str:
    """Returns the provider of this machine that runs models optimized for a target.

    Raises:
        OptionError: the target supports none of our operators, or this runtime has no such provider.
        RuntimeMissingError: no runtime, or no native library.
    """
    if target.device not in _PROVIDERS:
        raise OptionError(f"target {target.device} supports standard ONNX only: there is nothing to tune")
    if target.gpu_kernels and device_count():
        return DEVICE_PROVIDER
    return provider_name(_PROVIDERS[target.device])
