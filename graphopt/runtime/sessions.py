"""Everything that needs ONNX Runtime: where our library is, and how a session gets it."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.metadata
import os
import platform
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
import onnx

import graphopt
from graphopt import shared_weights
from graphopt.errors import GraphoptError, OptionError, RuntimeMissingError, require_list, runtime_says
from graphopt.graph.messages import all_nodes, read_nodes
from graphopt.metadata import METADATA_NUMERICS, METADATA_TARGET, Numerics
from graphopt.ops.schema import DOMAIN
from graphopt.runtime import selftest_record
from graphopt.runtime.conditions import why_conditions_decide
from graphopt.runtime.machine import Device, cpu_name
from graphopt.runtime.routes import Reason, Route, describe, routes

LIBRARY_NAME = "libgraphopt.so"
# In its place where it could not be built: the reason.
_MISSING = "missing.txt"
RUNTIME_DISTRIBUTIONS = ("onnxruntime-rocm", "onnxruntime", "onnxruntime-gpu", "onnxruntime-migraphx")

# Providers that compile whole subgraphs and never run custom kernels: beside them the library stays unregistered, the
# runtime inlines our function bodies, and the provider sees plain ONNX.
COMPILING_PROVIDERS = frozenset({"MIGraphXExecutionProvider", "TensorrtExecutionProvider", "OpenVINOExecutionProvider"})

CPU = "CPUExecutionProvider"
ROCM = "ROCMExecutionProvider"

# Our own provider, which ONNX Runtime loads from the native library from this version on.
DEVICE_PROVIDER = "GraphoptExecutionProvider"
DEVICE_PROVIDER_SINCE = (1, 24)
DEVICE_MEMORY = "Graphopt"  # what the provider calls its memory

# The providers that run our GPU kernels.
SELF_TESTED = frozenset({DEVICE_PROVIDER, ROCM})

Provider = str | tuple[str, Mapping[str, Any]]

# The GPU vendors' libraries, and what may be chosen of each (docs/provider.md).
LIBRARIES = ("rocblas", "hipblaslt", "miopen", "cublas", "cublaslt", "cudnn")
LIBRARY_CHOICES = ("off", "on")
MIOPEN_CHOICES = ("build", "find")

P = ParamSpec("P")
R = TypeVar("R")

# The shape of each input of a model, by its name.
Shapes = Mapping[str, Sequence[int]]


def import_onnxruntime() -> Any:
    """The onnxruntime module.

    Raises:
        RuntimeMissingError: not installed, or two wheels that own the same module have overwritten each other.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise RuntimeMissingError(
            "this needs ONNX Runtime, which cannot be imported; install it with "
            f"'pip install graphopt[amd]', or graphopt[cpu] where there is no AMD GPU ({error})"
        ) from None
    if not hasattr(onnxruntime, "InferenceSession"):
        raise RuntimeMissingError(
            "the installed onnxruntime is incomplete: two of its wheels have overwritten each other; "
            "uninstall all of onnxruntime, onnxruntime-rocm and onnxruntime-gpu, then install one"
        )
    return onnxruntime


def installed_runtimes() -> dict[str, str]:
    """The installed distributions that own the onnxruntime module; more than one means a clobbered install."""
    found = {}
    for name in RUNTIME_DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def runtime_name() -> str:
    """The installed runtime and its version, for instance "onnxruntime-rocm 1.22.2".

    Raises:
        RuntimeMissingError: no runtime.
    """
    found = ", ".join(f"{name} {version}" for name, version in installed_runtimes().items())
    return found or f"onnxruntime {import_onnxruntime().__version__}"


_custom_ops: ContextVar[tuple[str, ...]] = ContextVar("custom_ops", default=())


@contextmanager
def registered_custom_ops(libraries: Sequence[str | os.PathLike[str]]) -> Iterator[None]:
    """Registers the user's own operator libraries in every session that graphopt makes in the block.

    So do processes that graphopt starts in the block. An inner block adds its libraries to those of the outer one.

    Raises:
        OptionError: there is no such file.
    """
    require_list("custom_ops", libraries)
    paths = [os.path.abspath(library) for library in libraries]
    for path in paths:
        if not os.path.isfile(path):
            raise OptionError(f"--custom-ops {path}: no such file; give a library that exports RegisterCustomOps")
    token = _custom_ops.set(tuple(dict.fromkeys([*_custom_ops.get(), *paths])))
    try:
        yield
    finally:
        _custom_ops.reset(token)


def registering_custom_ops(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function with an argument `custom_ops`: these libraries are registered while it runs."""

    @functools.wraps(function)
    def registering(*args: P.args, **kwargs: P.kwargs) -> R:
        with registered_custom_ops(cast("Sequence[str]", kwargs.get("custom_ops", ()))):
            return function(*args, **kwargs)

    return registering


def custom_op_libraries() -> tuple[str, ...]:
    """The user's libraries that new sessions register."""
    return _custom_ops.get()


def session_options() -> Any:
    """Creates `SessionOptions` and registers the user's own operator libraries.

    Raises:
        OptionError: the runtime cannot load one of them.
    """
    options = import_onnxruntime().SessionOptions()
    for path in custom_op_libraries():
        try:
            options.register_custom_ops_library(path)
        except Exception as error:  # the runtime's exception classes share no public base
            raise OptionError(f"--custom-ops {path}: {runtime_name()} cannot load it: {runtime_says(error)}") from None
    return options


# ONNX Runtime's messages about an unknown operator: of a custom domain, of ONNX's domain.
_UNKNOWN = re.compile(r"(\S+?):(\S+)\(-?\d+\) is not a registered function/op")
_UNKNOWN_IN_ONNX = re.compile(r"No Op registered for (\S+) with domain_version")
_DOMAINS_OF_RUNTIMES = ("ai.onnx.ml", "com.microsoft", DOMAIN)


def _operator_of_user(error: Exception) -> str:
    """The operator that the runtime lacks; "" for other errors, and where a newer runtime may have it."""
    if (found := _UNKNOWN.search(str(error))) and found[1] not in _DOMAINS_OF_RUNTIMES:
        return f"{found[1]}:{found[2]}"
    if (found := _UNKNOWN_IN_ONNX.search(str(error))) and not onnx.defs.has(found[1]):
        return found[1]
    return ""


def cannot_load(model: str, error: Exception, provider: str = "") -> str:
    """The message for a model that the runtime refuses: the reason and the remedy."""
    if unknown := _operator_of_user(error):
        return (
            f"{model}: {runtime_name()} has no operator {unknown}: give the library that registers it with "
            "--custom-ops LIB (custom_ops= in Python)"
        )
    on = f" on {provider}" if provider else ""
    return (
        f"{model}: {runtime_name()} cannot load it{on}: {runtime_says(error)}; use a runtime that can, or export the "
        "model for this one (opset, IR version, types)"
    )


def loads_providers() -> bool:
    """Whether the installed runtime can load a provider such as ours from a library.

    Raises:
        RuntimeMissingError: no runtime.
    """
    version = tuple(int(part) for part in import_onnxruntime().__version__.split(".")[:2])
    return version >= DEVICE_PROVIDER_SINCE


@functools.cache  # the list of an installed package's files takes longer to read than a small model
def library_path() -> Path:
    """The native library, for `register_custom_ops_library` and for C++ and C# programs.

    Found in a wheel, in an editable install, and when a source tree shadows the installed package.

    Raises:
        RuntimeMissingError: the library is in none of these places.
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
    notes = [candidate.with_name(_MISSING) for candidate in candidates]
    notes += [Path(str(f.locate())) for f in files if f.name == _MISSING]
    why = next((f": {note.read_text().strip()}" for note in notes if note.is_file()), "")
    raise RuntimeMissingError(
        f"the native library {LIBRARY_NAME} is not installed{why}; install a wheel that has it, or g++ and then "
        "graphopt again ('pip install .' in the source tree). Models are rewritten all the same, and run by their "
        "definitions in an onnxruntime.InferenceSession of your own"
    )


def device_count() -> int:
    """How many devices our own provider has here; 0 on runtimes that load no providers.

    Raises:
        RuntimeMissingError: no runtime, or no native library.
    """
    return len(_devices())


def discrete_devices() -> list[int]:
    """The numbers of our provider's devices without those that are part of a processor, unless all are.

    Raises:
        RuntimeMissingError: no runtime, or no native library.
    """
    found = [d.ep_metadata.get("graphopt.integrated") == "1" for d in _devices()]
    return [n for n, integrated in enumerate(found) if not integrated] or [*range(len(found))]


def _devices() -> list[Any]:
    if not loads_providers():
        return []
    ort = import_onnxruntime()
    found = [d for d in ort.get_ep_devices() if d.ep_name == DEVICE_PROVIDER]
    if not found and library_path() not in _asked_for_devices:
        _asked_for_devices.add(library_path())
        ort.register_execution_provider_library("graphopt", str(library_path()))
        found = [d for d in ort.get_ep_devices() if d.ep_name == DEVICE_PROVIDER]
    return found


_asked_for_devices: set[Path] = set()


@functools.cache
def gpu_routes() -> tuple[Route, ...]:
    """Each way to the GPUs of this machine, and why those that can't be taken can't; looked for once in a process.

    Raises:
        RuntimeMissingError: no runtime, or no native library.
    """
    ort = import_onnxruntime()
    missing = None
    if not loads_providers():
        since = ".".join(map(str, DEVICE_PROVIDER_SINCE))
        missing = Reason(
            "old_onnxruntime",
            f"ONNX Runtime {ort.__version__} loads no providers: ours needs {since} or newer",
            f"pip uninstall {' '.join(installed_runtimes()) or 'onnxruntime'}; pip install 'onnxruntime>={since}'",
        )
        # The library must know the runtime to open the HIP runtime that the ROCm provider needs.
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
    """Why sessions run on the CPU although this machine has a GPU, or a runtime for one; None where it has neither.

    Raises:
        RuntimeMissingError: no runtime, or no native library.
    """
    meant = "onnxruntime-rocm" in installed_runtimes()
    by_name = {route.name: route for route in gpu_routes()}
    # NVIDIA's count where this library was built for them.
    cuda = by_name.get("cuda")
    if cuda is not None and cuda.code and cuda.devices and not cuda.ready:
        return cuda.why_not()
    amd = by_name.get("rocm" if meant else "graphopt")
    if amd is None or amd.ready:
        return None
    return amd.why_not() if amd.seen or meant else None


def memory_of(session: Any) -> tuple[Any, ...]:
    """Where a GPU session computes: what `OrtValue.ortvalue_from_numpy` takes after the array."""
    name = session.get_providers()[0]
    if name != DEVICE_PROVIDER:  # ONNX Runtime calls every GPU's memory "cuda", AMD's included
        return ("cuda", int(session.get_provider_options()[name].get("device_id", 0)))
    # Memory infos of inputs and outputs that the CPU reads or writes are of the CPU.
    for info in (*session.get_input_memory_infos(), *session.get_output_memory_infos()):
        if info.name == DEVICE_MEMORY:
            return ("gpu", info.device_id, info.device_vendor_id)
    return ("cpu", 0)


def device_of(provider: Provider) -> Device:
    """What a provider would run on.

    Raises:
        RuntimeMissingError: no runtime, or no native library.
        GraphoptError: the provider has no device of the number that its options give.
    """
    name, options = (provider, {}) if isinstance(provider, str) else provider
    if name == CPU:
        return Device(cpu_name(), platform.machine())
    if name == DEVICE_PROVIDER:
        told = _device(options).ep_metadata
        facts = {key: told[f"graphopt.{key}"] for key in ("name", "arch", "driver")}
        return Device(**facts, wave=int(told["graphopt.wave"]))
    shown = next((route.devices for route in gpu_routes() if route.provider == name), ())
    number = int(options.get("device_id", 0))
    if not 0 <= number < len(shown):
        return Device("unknown GPU", "")
    return Device(shown[number].name, shown[number].arch, shown[number].driver, shown[number].wave)


def _device(options: Mapping[str, Any]) -> Any:
    devices, number = _devices(), int(options.get("device", 0))
    if not 0 <= number < len(devices):
        reason = why_cpu() if not devices else None
        why = "" if reason is None else f": {reason}"
        raise GraphoptError(f"{DEVICE_PROVIDER} has {len(devices)} devices here, there is no number {number}{why}")
    return devices[number]


@functools.cache
def library_version() -> str:
    """The package's version and a digest of the native library.

    Raises:
        RuntimeMissingError: no native library.
    """
    digest = hashlib.sha256(library_path().read_bytes()).hexdigest()
    return f"{graphopt.__version__} {digest[:16]}"


def default_providers() -> list[str]:
    """The providers of this machine that run our kernels, best first."""
    if device_count():
        return [DEVICE_PROVIDER, CPU]
    # Compiled into its wheel, it is among the available ones whether or not there is a GPU.
    available = ROCM in import_onnxruntime().get_available_providers()
    return [ROCM, CPU] if available and any(r.provider == ROCM and r.ready for r in gpu_routes()) else [CPU]


def provider_name(text: str) -> str:
    """The full name of an available provider.

    Raises:
        OptionError: this runtime has none of that name.
    """
    ours = [DEVICE_PROVIDER] if device_count() else []
    # Once registered, ours may be among the runtime's, too, whether or not it has a device.
    registered: list[str] = import_onnxruntime().get_available_providers()
    available = [*ours, *(n for n in registered if n != DEVICE_PROVIDER)]
    for name in available:
        if text.lower() in (name.lower(), name.lower().removesuffix("executionprovider")):
            return name
    short = ", ".join(n.removesuffix("ExecutionProvider").lower() for n in available)
    raise OptionError(f"this runtime has no provider '{text}'; it has {short}")


def require_provider(created: Any, provider: str) -> None:
    """Refuses a session that fell back to other providers, which ONNX Runtime does with a warning at most.

    Raises:
        GraphoptError: the provider is none of the session's.
    """
    if provider not in created.get_providers():
        raise GraphoptError(f"{provider} was asked for, but the session runs on {', '.join(created.get_providers())}")


def configure(
    session_options: Any,
    providers: Sequence[Provider] | None = None,
    *,
    disable: Sequence[str] = (),
    libraries: Mapping[str, str] | None = None,
    require_device: bool = False,
    ignore_selftest: bool = False,
    model: onnx.ModelProto | str | os.PathLike[str] | bytes | None = None,
) -> list[Provider]:
    """Prepares session options for models of ours and returns the providers to pass on to `InferenceSession`.

    Registers the native library before any provider is chosen, but not beside a provider that compiles whole graphs
    (MIGraphX), for which the function bodies inside the model are better. Kernels that failed the last self-test on
    this GPU (`graphopt doctor --selftest`) are left out, with one warning, and their function bodies run.

    Args:
        session_options: an `onnxruntime.SessionOptions`.
        providers: as for `InferenceSession`; None takes the best that this machine has: the ROCm provider, our own
            (`DEVICE_PROVIDER`, docs/provider.md), or the CPU. Options of ours: `device`, `memory_limit`, `min_nodes`,
            `libraries`, `regions`, `capture`, `measured`.
            With our own provider the session options hold the choice, and what is returned is empty.
        disable: operators of ours whose function bodies are to run instead of the kernels. Applies to the whole
            process from the first registration on, like the environment variable GRAPHOPT_DISABLE.
        libraries: which of the GPU vendor's libraries our own provider uses, for instance {"miopen": "off"}: "off",
            "on" (also where it is off by default), and for "miopen" also "build" (also where it has to build its
            kernels) and "find" (it measures them, too); overrides the environment variable GRAPHOPT_LIBRARIES.
        require_device: fail rather than run on the CPU because there is no device. Nodes that the device leaves to
            the CPU are only known once there is a session: `session` lists them.
        ignore_selftest: run kernels that failed the self-test, too.
        model: what the session will load: a path, serialized bytes or `onnx.ModelProto`. Only the operators that it has
            are registered then: the runtime describes each of them anew in every session, which takes 45 ms for all.

    Raises:
        RuntimeMissingError: no runtime, or no native library.
        OptionError: no such library or choice.
        GraphoptError: the provider was asked for, or a device is required, and there is none.
    """
    import_onnxruntime()
    chosen: list[Provider] = list(providers) if providers is not None else list(default_providers())
    options = {p if isinstance(p, str) else p[0]: {} if isinstance(p, str) else dict(p[1]) for p in chosen}
    if disable:
        already = [name for name in os.environ.get("GRAPHOPT_DISABLE", "").split(",") if name]
        os.environ["GRAPHOPT_DISABLE"] = ",".join(dict.fromkeys([*already, *disable]))
    if providers is None and chosen == [CPU] and (reason := why_cpu()) is not None and not require_device:
        _say_once(f"this session runs on the CPU: {reason}")
    if require_device and not options.keys() - {CPU}:
        reason = why_cpu()
        why = "" if reason is None else f": {reason}"
        raise GraphoptError(
            f"a device is required, but this machine has none that ONNX Runtime would run our kernels on{why}"
        )
    if DEVICE_PROVIDER in options and not loads_providers():
        since = ".".join(map(str, DEVICE_PROVIDER_SINCE))
        version = import_onnxruntime().__version__
        raise GraphoptError(f"{DEVICE_PROVIDER} needs ONNX Runtime {since} or newer, this is {version}")
    avoided = [] if ignore_selftest else _failed_on_device(options)
    if not options.keys() & COMPILING_PROVIDERS:
        operators = None if model is None else operators_of(model)
        if operators is not None:
            session_options.add_session_config_entry("graphopt.operators", ",".join(sorted(operators)))
        with _disabled(avoided):
            session_options.register_custom_ops_library(str(library_path()))
    if DEVICE_PROVIDER not in options:
        return chosen
    ours = {key: str(value) for key, value in options[DEVICE_PROVIDER].items() if key != "device"}
    if avoided:
        ours["disable"] = ",".join([*avoided, *filter(None, [ours.get("disable")])])
    wanted = ",".join(filter(None, [ours.get("libraries"), *(f"{k}={v}" for k, v in (libraries or {}).items())]))
    if wanted:
        ours["libraries"] = _checked(wanted)
    session_options.add_provider_for_devices([_device(options[DEVICE_PROVIDER])], ours)
    return []


def _checked(libraries: str) -> str:
    """A list NAME=CHOICE: ONNX Runtime would log what is wrong with it, and go on without the provider."""
    for item in libraries.split(","):
        name, _, choice = item.partition("=")
        choices = LIBRARY_CHOICES + (MIOPEN_CHOICES if name == "miopen" else ())
        if name not in LIBRARIES:
            raise OptionError(f"libraries: there is no '{name}'; known are {', '.join(LIBRARIES)}")
        if choice not in choices:
            raise OptionError(f"libraries: {name} may be {', '.join(choices)}, not '{choice}'")
    return libraries


def _failed_on_device(options: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Operators of ours that the self-test found wrong on the GPU that was chosen; says so once for each GPU."""
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
            f"{device.name} ({device.arch}) failed the self-test of {count}: definitions run there instead of our "
            f"kernels; 'graphopt doctor --selftest' tests again. {reasons}{others}",
            stacklevel=4,
        )
    return [*failed]


_warned_of: set[tuple[str, Device]] = set()


def _say_once(line: str) -> None:
    """A warning that a process gets once; it is about the caller of a public function."""
    if line not in _said:
        _said.add(line)
        warnings.warn(line, stacklevel=4)


_said: set[str] = set()


@contextmanager
def _disabled(names: Sequence[str]) -> Iterator[None]:
    """The library leaves these operators out while it is registered."""
    before = os.environ.get("GRAPHOPT_DISABLE")
    if names:
        os.environ["GRAPHOPT_DISABLE"] = ",".join([*filter(None, [before]), *names])
    try:
        yield
    finally:
        if before is not None:
            os.environ["GRAPHOPT_DISABLE"] = before
        elif names:
            del os.environ["GRAPHOPT_DISABLE"]


def session(
    model: Any,
    providers: Sequence[Provider] | None = None,
    *,
    libraries: Mapping[str, str] | None = None,
    require_device: bool = False,
    ignore_selftest: bool = False,
    warm_up: Shapes | Sequence[Shapes] = (),
    custom_ops: Sequence[str | os.PathLike[str]] = (),
    **options: Any,
) -> Any:
    """An `InferenceSession` over a model of ours (or any other), with the native library as `configure` registers it.

    Args:
        model: a path, serialized bytes, `onnx.ModelProto` or `onnx_ir.Model`.
        providers: as for `configure`; None leaves a model with more conditions (If, Loop, Scan) than products to
            the CPU, with a warning that says so.
        libraries: as for `configure`.
        require_device: fail when a node would run on the CPU; the message lists these nodes. ONNX Runtime 1.22 does not
            say where nodes run: there only a missing device is noticed.
        ignore_selftest: run kernels that failed the self-test, too.
        warm_up: the shape of every input, or several such sets: the session runs for each on zeros, so that GPU
            libraries have loaded what they need for a shape (MIOpen its kernels) before the first request; one line on
            stderr says how long it took. What they need for an architecture is loaded with the session in any case. No
            run compiles anything, with or without `warm_up`.
        custom_ops: libraries with operators of your own, which are registered beside ours.
        options: attributes to set on the `SessionOptions`, for instance `intra_op_num_threads=4`.

    Raises:
        RuntimeMissingError: no runtime, or no native library.
        OptionError: as for `configure`, or a library of `custom_ops` that cannot be loaded.
        ModelLoadError: the model shares weights that are missing or have changed.
        GraphoptError: the runtime refuses the model, with the runtime's message; or a device is required; or the
            shapes of `warm_up` do not fit.
    """
    ort = import_onnxruntime()
    if providers is not None:
        require_list("providers", providers)
    source = _loadable(model)
    nodes = read_nodes(source)
    if nodes is not None and isinstance(source, str):
        shared_weights.check(Path(source), {p.key: p.value for p in nodes.metadata_props})
    if providers is None and not require_device and nodes is not None:
        providers = _on_cpu_for_conditions(nodes)
    with registered_custom_ops(custom_ops):
        made = session_options()
    for name, value in options.items():
        setattr(made, name, value)
    chosen = configure(
        made,
        providers,
        libraries=libraries,
        require_device=require_device,
        ignore_selftest=ignore_selftest,
        model=nodes,
    )
    if require_device:
        made.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    try:
        created = ort.InferenceSession(source, made, providers=chosen)
    except Exception as error:  # the runtime's exception classes share no public base
        if _operator_of_user(error):
            raise GraphoptError(cannot_load(source if isinstance(source, str) else "the model", error)) from error
        raise GraphoptError(f"ONNX Runtime cannot load the model: {str(error).strip()}") from error
    if require_device and hasattr(created, "get_provider_graph_assignment_info"):
        _refuse_cpu_nodes(created)
    _warn_of_fallback(created, providers or ())
    _warn_of_other_target(created)
    _warn_of_slow_bfloat16(created)
    if warm_up:
        _warm_up(created, [warm_up] if isinstance(warm_up, Mapping) else warm_up)
    return created


def operators_of(model: onnx.ModelProto | str | os.PathLike[str] | bytes) -> set[str] | None:
    """The operators of ours that a model has, in its functions and bodies, too; None for what is no model."""
    proto = model if isinstance(model, onnx.ModelProto) else read_nodes(model)
    if proto is None:
        return None
    graphs = (proto.graph, *proto.functions)
    return {node.op_type for graph in graphs for node in all_nodes(graph.node) if node.domain == DOMAIN}


def _on_cpu_for_conditions(model: onnx.ModelProto) -> list[Provider] | None:
    """The CPU, which is said, for a model whose conditions cost more on a device than its work there saves."""
    if default_providers() == [CPU] or not (reason := why_conditions_decide(model)):
        return None
    _say_once(f"this model stays on the CPU, since {reason}: providers=['{DEVICE_PROVIDER}'] runs it on the device")
    return [CPU]


def _loadable(model: Any) -> str | bytes:
    """What the runtime takes: a path, or bytes with all weights inside.

    Raises:
        OptionError: it is no model.
        GraphoptError: the weights are too large to be handed over in memory.
    """
    if isinstance(model, bytes):
        return model
    if isinstance(model, str | os.PathLike):
        return str(os.fspath(model))
    import onnx
    import onnx_ir as ir

    if not isinstance(model, ir.Model | onnx.ModelProto):
        kind = type(model).__name__
        raise OptionError(f"cannot run a {kind}: give a path, bytes, onnx.ModelProto or onnx_ir.Model")
    try:
        if isinstance(model, ir.Model):
            proto: onnx.ModelProto = ir.to_proto(ir.external_data.load_to_model(model.clone()))
        else:
            proto = model
        return bytes(proto.SerializeToString())
    except ValueError as error:  # protobuf's limit of 2 GiB
        raise GraphoptError(f"the model is too large to be run from memory, write it to a file: {error}") from None


def _warm_up(created: Any, sets: Sequence[Shapes]) -> None:
    library = ctypes.CDLL(str(library_path()))
    finish_loading = library.GraphoptFinishLoading
    finish_loading.restype = ctypes.c_size_t
    begin, loaded = time.perf_counter(), 0
    for shapes in sets:
        feeds = {}
        for given in created.get_inputs():
            if given.name not in shapes:
                raise GraphoptError(f"warm_up has no shape for input '{given.name}'")
            name = given.type.removeprefix("tensor(").removesuffix(")")
            dtype = {"float": "float32", "double": "float64", "string": "object"}.get(name, name)
            feeds[given.name] = np.zeros(tuple(shapes[given.name]), dtype)
        # What a library loads or builds beside a run is used by the next, which may ask for more.
        for _ in range(_MOST_WARM_UPS):
            try:
                created.run(None, feeds)
            except Exception as error:  # the runtime's exception classes share no public base
                raise GraphoptError(f"warm_up: {str(error).strip()}") from error
            more = finish_loading()
            loaded += more
            if not more:
                break
    seconds = time.perf_counter() - begin
    kernels = f", {loaded} kernels of the GPU's libraries are loaded" if loaded else ""
    shown = f"{len(sets)} set{'s' * (len(sets) != 1)} of shapes"
    print(f"graphopt: ran once for {shown} in {seconds:.2f} s{kernels}", file=sys.stderr)


_MOST_WARM_UPS = 5


def _warn_of_fallback(created: Any, providers: Sequence[Provider]) -> None:
    """ONNX Runtime goes on without a provider that cannot be used, and only logs it."""
    asked = [p if isinstance(p, str) else p[0] for p in providers]
    missing = [name for name in asked if name not in created.get_providers()]
    if missing:
        reason = next((r.why_not() for r in gpu_routes() if r.provider == missing[0]), None)
        why = "" if reason is None else f": {reason}"
        _say_once(f"{missing[0]} was asked for, but the session runs on {', '.join(created.get_providers())}{why}")


def _refuse_cpu_nodes(created: Any) -> None:
    on_cpu = [
        f"{node.name or '(unnamed)'} ({node.op_type})"
        for part in created.get_provider_graph_assignment_info()
        if part.ep_name == CPU
        for node in part.get_nodes()
    ]
    if on_cpu:
        raise GraphoptError(f"{len(on_cpu)} nodes would run on the CPU: {', '.join(on_cpu)}")


def _warn_of_other_target(created: Any) -> None:
    """A file runs everywhere, but one tuned for another device may be slower than one tuned for this."""
    target = created.get_modelmeta().custom_metadata_map.get(METADATA_TARGET, "")
    names = created.get_providers()
    # Our own provider runs what was tuned for either kind of GPU.
    on_gpu = DEVICE_PROVIDER in names or ROCM in names
    runs_on = "gpu" if on_gpu else "cpu"
    device = target.partition(":")[0]
    if device in ("cpu", "rocm", "cuda") and (device != "cpu") != on_gpu:
        warnings.warn(f"this model was tuned for {target} and runs on {runs_on}", stacklevel=3)


@functools.cache
def bfloat16_gain() -> float | None:
    """How many times faster bfloat16 is here (see `measure_gain`); None without a runtime or our library."""
    from graphopt.precision.bfloat16_gain import measure_gain

    try:
        return measure_gain(import_onnxruntime(), str(library_path()), CPU)
    except GraphoptError:
        return None


def _warn_of_slow_bfloat16(created: Any) -> None:
    """What rounds to bfloat16 runs everywhere, and is slower where the processor does not multiply it faster."""
    if created.get_providers() != [CPU]:
        return
    if created.get_modelmeta().custom_metadata_map.get(METADATA_NUMERICS) != Numerics.BF16.name.lower():
        return
    from graphopt.precision.bfloat16_gain import LEAST_GAIN

    gain = bfloat16_gain()
    if gain is not None and gain < LEAST_GAIN:
        warnings.warn(
            f"this model rounds to bfloat16, in which a layer takes {1 / gain:.2f} times what it takes in float32 "
            "on this machine: optimize the original without --precision bf16 for it",
            stacklevel=3,
        )
