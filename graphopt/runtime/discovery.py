"""Finds ONNX Runtime, our native library, providers and devices of this machine."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import platform
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import graphopt
from graphopt.errors import GraphoptError, OptionError, RuntimeMissingError, did_you_mean
from graphopt.runtime.machine import Device, cpu_name
from graphopt.runtime.routes import Reason, Route, describe, routes

LIBRARY_NAME = "libgraphopt.so"
# This file replaces a library that could not be built; it contains the reason.
_BUILD_ERROR_FILE = "missing.txt"
RUNTIME_DISTRIBUTIONS = ("onnxruntime-rocm", "onnxruntime", "onnxruntime-gpu", "onnxruntime-migraphx")

CPU = "CPUExecutionProvider"
ROCM = "ROCMExecutionProvider"

# Our own provider. ONNX Runtime loads it from the native library since version 1.24.
DEVICE_PROVIDER = "GraphoptExecutionProvider"
DEVICE_PROVIDER_SINCE = (1, 24)
DEVICE_MEMORY = "Graphopt"  # name of the provider's memory

Provider = str | tuple[str, dict[str, Any]]


def import_onnxruntime() -> Any:
    """Imports the onnxruntime module.

    Raises:
        RuntimeMissingError: it is not installed, or two wheels have overwritten each other's files.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise RuntimeMissingError(
            "this needs ONNX Runtime, which cannot be imported; install it with "
            f"'pip install graphopt[amd]', or graphopt[cpu] without an AMD GPU ({error})"
        ) from None
    if not hasattr(onnxruntime, "InferenceSession"):
        raise RuntimeMissingError(
            "the installed onnxruntime is incomplete: two of its wheels have overwritten each other; "
            "uninstall all of onnxruntime, onnxruntime-rocm and onnxruntime-gpu, then install one"
        )
    return onnxruntime


def installed_runtimes() -> dict[str, str]:
    """Returns the installed distributions with an onnxruntime module and their versions; several are a conflict."""
    found = {}
    for name in RUNTIME_DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def runtime_name() -> str:
    """Returns the installed runtime and its version, for instance "onnxruntime-rocm 1.22.2".

    Raises:
        RuntimeMissingError: no runtime.
    """
    found = ", ".join(f"{name} {version}" for name, version in installed_runtimes().items())
    return found or f"onnxruntime {import_onnxruntime().__version__}"


def loads_providers() -> bool:
    """Returns whether the installed runtime can load plugin providers from a library.

    Raises:
        RuntimeMissingError: no runtime.
    """
    version = tuple(int(part) for part in import_onnxruntime().__version__.split(".")[:2])
    return version >= DEVICE_PROVIDER_SINCE


@functools.cache  # reading the list of the installed package's files takes longer than reading a small model
def library_path() -> Path:
    """Returns the path of the native library, for `register_custom_ops_library` and for C++ and C# programs.

    Searches the package's folder and the files of the installed distribution, which a source tree may shadow.

    Raises:
        RuntimeMissingError: the library is in neither place.
    """
    candidates = [Path(folder) / "lib" / LIBRARY_NAME for folder in graphopt.__path__]
    try:
        files = importlib.metadata.files("graphopt") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    candidates += [Path(str(f.locate())) for f in files if f.name == LIBRARY_NAME]
    for candidate in candidates:
        if candidate.is_file():
            return candidate.resolve()
    notes = [candidate.with_name(_BUILD_ERROR_FILE) for candidate in candidates]
    notes += [Path(str(f.locate())) for f in files if f.name == _BUILD_ERROR_FILE]
    why = next((f": {note.read_text().strip()}" for note in notes if note.is_file()), "")
    raise RuntimeMissingError(
        f"the native library {LIBRARY_NAME} is not installed{why}; install a wheel that has it, or g++ and then "
        "graphopt again ('pip install .' in the source tree). Without it graphopt still rewrites models, and an "
        "onnxruntime.InferenceSession runs our operators by their function bodies"
    )


def device_count() -> int:
    """Returns the number of our provider's devices; 0 if the runtime loads no plugin providers.

    Raises:
        RuntimeMissingError: no runtime, or no native library.
    """
    return len(our_devices())


def discrete_devices() -> list[int]:
    """Returns the indices of our provider's discrete GPUs, or of all its devices if all are integrated.

    Raises:
        RuntimeMissingError: no runtime, or no native library.
    """
    found = [d.ep_metadata.get("graphopt.integrated") == "1" for d in our_devices()]
    return [n for n, integrated in enumerate(found) if not integrated] or [*range(len(found))]


def our_devices() -> list[Any]:
    if not loads_providers():
        return []
    ort = import_onnxruntime()
    found = [d for d in ort.get_ep_devices() if d.ep_name == DEVICE_PROVIDER]
    if found:
        return found
    with _registering:  # another thread may be registering the library
        if library_path() not in _registered_libraries:
            _registered_libraries.add(library_path())
            ort.register_execution_provider_library("graphopt", str(library_path()))
    return [d for d in ort.get_ep_devices() if d.ep_name == DEVICE_PROVIDER]


_registering = threading.Lock()
_registered_libraries: set[Path] = set()


@functools.cache
def gpu_routes() -> tuple[Route, ...]:
    """Returns the routes from ONNX Runtime to GPUs, with the reasons why some cannot be used; cached in the process.

    Raises:
        RuntimeMissingError: no runtime, or no native library.
    """
    ort = import_onnxruntime()
    missing = None
    if not loads_providers():
        since = ".".join(map(str, DEVICE_PROVIDER_SINCE))
        missing = Reason(
            "old_onnxruntime",
            f"ONNX Runtime {ort.__version__} cannot load our provider, which needs {since} or newer",
            f"pip uninstall {' '.join(installed_runtimes()) or 'onnxruntime'}; pip install 'onnxruntime>={since}'",
        )
        # Registration gives the library the folder of ONNX Runtime, where it reads which HIP runtime the ROCm provider
        # needs.
        ort.SessionOptions().register_custom_ops_library(str(library_path()))
    has_rocm = ROCM in ort.get_available_providers()
    rocm_provider = Path(ort.__file__).parent / "capi" / "libonnxruntime_providers_rocm.so" if has_rocm else None
    found = routes(
        describe(library_path()),
        provider=DEVICE_PROVIDER,
        provider_missing=missing,
        rocm_provider=rocm_provider,
    )
    return tuple(found)


def why_cpu() -> Reason | None:
    """Returns why sessions run on the CPU although a GPU, or a runtime for one, is present; None otherwise.

    Raises:
        RuntimeMissingError: no runtime, or no native library.
    """
    rocm_wheel = "onnxruntime-rocm" in installed_runtimes()
    by_name = {route.name: route for route in gpu_routes()}
    # NVIDIA GPUs matter only if this library was built for them.
    cuda = by_name.get("cuda")
    if cuda is not None and cuda.code and cuda.devices and not cuda.ready:
        return cuda.why_not()
    amd = by_name.get("rocm" if rocm_wheel else "graphopt")
    if amd is None or amd.ready:
        return None
    return amd.why_not() if amd.seen or rocm_wheel else None


def why_no_device(provider: str = "") -> str:
    """Returns why no session can run on a GPU and the remedy, as printed by `graphopt doctor`; "" if one can.

    Args:
        provider: the requested provider; "" for any.

    Raises:
        RuntimeMissingError: no runtime, or no native library.
    """
    routes = [route for route in gpu_routes() if provider in ("", route.provider)]
    reason = (why_cpu() if not provider else None) or next((r.why_not() for r in routes if not r.ready), None)
    return f"{reason}; graphopt doctor shows every route to a GPU" if reason is not None else ""


def memory_of(session: Any) -> tuple[Any, ...]:
    """Returns the memory of a GPU session, as the last arguments of `OrtValue.ortvalue_from_numpy`."""
    name = session.get_providers()[0]
    if name != DEVICE_PROVIDER:  # ONNX Runtime calls the memory of every GPU "cuda", including AMD's
        return ("cuda", int(session.get_provider_options()[name].get("device_id", 0)))
    # Inputs and outputs of CPU nodes have memory infos of the CPU.
    for info in (*session.get_input_memory_infos(), *session.get_output_memory_infos()):
        if info.name == DEVICE_MEMORY:
            return ("gpu", info.device_id, info.device_vendor_id)
    return ("cpu", 0)


def name_and_options(provider: Provider) -> tuple[str, dict[str, Any]]:
    return (provider, {}) if isinstance(provider, str) else provider


def device_of(provider: Provider) -> Device:
    """Returns the device on which a provider runs.

    Raises:
        RuntimeMissingError: no runtime, or no native library.
        GraphoptError: the provider has no device with the index in its options.
    """
    name, options = name_and_options(provider)
    if name == CPU:
        return Device(cpu_name(), platform.machine())
    if name == DEVICE_PROVIDER:
        described = device_with_index(options).ep_metadata
        facts = {key: described[f"graphopt.{key}"] for key in ("name", "arch", "driver")}
        return Device(**facts, wave=int(described["graphopt.wave"]))
    shown = next((route.devices for route in gpu_routes() if route.provider == name), ())
    number = int(options.get("device_id", 0))
    if not 0 <= number < len(shown):
        return Device("unknown GPU", "")
    return Device(shown[number].name, shown[number].arch, shown[number].driver, shown[number].wave)


def device_with_index(options: Mapping[str, Any]) -> Any:
    devices, number = our_devices(), int(options.get("device", 0))
    if not 0 <= number < len(devices):
        reason = why_cpu() if not devices else None
        why = "" if reason is None else f": {reason}"
        raise GraphoptError(
            f"{DEVICE_PROVIDER} has {len(devices)} devices here, so device {number} does not exist{why}"
        )
    return devices[number]


@functools.cache
def library_version() -> str:
    """Returns the package's version and a digest of the native library.

    Raises:
        RuntimeMissingError: no native library.
    """
    digest = hashlib.sha256(library_path().read_bytes()).hexdigest()
    return f"{graphopt.__version__} {digest[:16]}"


def default_providers() -> list[str]:
    """Returns the providers of this machine that run our kernels, best first."""
    if device_count():
        return [DEVICE_PROVIDER, CPU]
    # The ROCm provider is compiled into its wheel and therefore available even without a GPU.
    available = ROCM in import_onnxruntime().get_available_providers()
    return [ROCM, CPU] if available and any(r.provider == ROCM and r.ready for r in gpu_routes()) else [CPU]


def provider_name(text: str) -> str:
    """Returns the full name of an available provider.

    Args:
        text: the full or short name in any case: "cpu", "rocm", "graphopt".

    Raises:
        OptionError: this runtime has no such provider.
    """
    ours = [DEVICE_PROVIDER] if device_count() else []
    # After registration the runtime also lists our provider, even if it has no device.
    registered: list[str] = import_onnxruntime().get_available_providers()
    available = [*ours, *(n for n in registered if n != DEVICE_PROVIDER)]
    for name in available:
        if text.lower() in (name.lower(), name.lower().removesuffix("executionprovider")):
            return name
    short = ", ".join(n.removesuffix("ExecutionProvider").lower() for n in available)
    requested = next((r.provider for r in gpu_routes() if text in (r.name, r.provider)), "")
    why = f": {why_no_device(requested)}" if requested else did_you_mean(text, short.split(", "))
    raise OptionError(f"this runtime has no provider '{text}'{why}; it has {short}")


@functools.cache
def bfloat16_gain() -> float | None:
    """Returns the speedup of bfloat16 over float32 on this CPU (see `measure_gain`).

    None without a runtime, our library or its kernel of LinearBf16.
    """
    from graphopt.precision.bfloat16_gain import measure_gain

    try:
        return measure_gain(import_onnxruntime(), str(library_path()), CPU)
    except Exception:  # ours, or the runtime's: the runtime's exception classes share no public base
        return None
