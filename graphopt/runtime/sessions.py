"""Sessions with optimized models: configuration, creation, warm-up."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from graphopt import shared_weights
from graphopt.errors import GraphoptError, OptionError, require_list
from graphopt.graph.messages import all_nodes, read_nodes
from graphopt.ops.schema import DOMAIN
from graphopt.runtime.control_flow import why_control_flow_dominates
from graphopt.runtime.custom_ops import cannot_load, operator_of_user, registered_custom_ops, session_options
from graphopt.runtime.discovery import (
    CPU,
    DEVICE_PROVIDER,
    DEVICE_PROVIDER_SINCE,
    Provider,
    default_providers,
    device_with_index,
    import_onnxruntime,
    library_path,
    loads_providers,
    why_cpu,
    why_no_device,
)
from graphopt.runtime.session_warnings import (
    failed_on_device,
    refuse_cpu_nodes,
    warn_of_fallback,
    warn_of_other_target,
    warn_of_slow_bfloat16,
    warn_once,
)

# Providers that compile subgraphs and never call custom kernels. Without our library the runtime inlines the function
# bodies, and these providers get standard ONNX.
COMPILING_PROVIDERS = frozenset({"MIGraphXExecutionProvider", "TensorrtExecutionProvider", "OpenVINOExecutionProvider"})

# Libraries of GPU vendors, and the settings of each (docs/provider_reference.md).
LIBRARIES = ("rocblas", "hipblaslt", "miopen", "cublas", "cublaslt", "cudnn")
LIBRARY_CHOICES = ("off", "on")
MIOPEN_CHOICES = ("build", "find")

# Input name -> shape.
Shapes = Mapping[str, Sequence[int]]


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
    """Prepares session options for optimized models and returns the providers for `InferenceSession`.

    Registers the native library, unless a provider compiles whole graphs (such as MIGraphX) and therefore needs the
    function bodies of the model. Disables kernels that failed the last self-test on this GPU (`graphopt doctor
    --selftest`) with one warning; their function bodies run instead.

    Args:
        session_options: an `onnxruntime.SessionOptions`.
        providers: as for `InferenceSession`. None selects the best provider of this machine: our own
            (`DEVICE_PROVIDER`, docs/provider.md), else the ROCm provider, else the CPU. Our provider has the options
            `device`, `memory_limit`, `host_memory`, `min_nodes`, `libraries`, `regions`, `capture` and `measured`. If
            it is used, it is added to the session options, and the returned list is empty.
        disable: our operators that run by their function bodies instead of kernels. The names are added to the
            environment variable GRAPHOPT_DISABLE, so they also apply to all later sessions of the process.
        libraries: settings of the GPU vendor's libraries for our provider, for instance {"miopen": "off"}: "off" or
            "on" (even if the default is off). "miopen" also accepts "build" (may compile kernels) and "find" (also
            measures them). Overrides the environment variable GRAPHOPT_LIBRARIES.
        require_device: fail if there is no device, instead of running on the CPU; run nodes on the device even if the
            CPU is estimated to be faster. `session` also rejects nodes that the device leaves to the CPU, which are
            known only once the session exists.
        ignore_selftest: run kernels that failed the self-test as well.
        model: the model of the session: a path, serialized bytes or `onnx.ModelProto`. If it is given, only its
            operators are registered. The runtime creates their schemas in every session, which takes 45 ms for all.

    Returns:
        The `providers` argument of `InferenceSession`; empty with our own provider.

    Raises:
        RuntimeMissingError: no runtime, or no native library.
        OptionError: an unknown library or setting.
        GraphoptError: the requested provider or required device does not exist.
    """
    import_onnxruntime()
    chosen: list[Provider] = list(providers) if providers is not None else list(default_providers())
    options = {p if isinstance(p, str) else p[0]: {} if isinstance(p, str) else dict(p[1]) for p in chosen}
    if disable:
        already = [name for name in os.environ.get("GRAPHOPT_DISABLE", "").split(",") if name]
        os.environ["GRAPHOPT_DISABLE"] = ",".join(dict.fromkeys([*already, *disable]))
    if providers is None and chosen == [CPU] and (reason := why_cpu()) is not None and not require_device:
        warn_once(f"this session runs on the CPU: {reason}")
    if require_device and not options.keys() - {CPU}:
        raise GraphoptError(
            f"a device is required, but this machine has none on which ONNX Runtime can run our kernels: "
            f"{why_no_device()}"
        )
    if DEVICE_PROVIDER in options and not loads_providers():
        since = ".".join(map(str, DEVICE_PROVIDER_SINCE))
        version = import_onnxruntime().__version__
        raise GraphoptError(f"{DEVICE_PROVIDER} needs ONNX Runtime {since} or newer, but this is version {version}")
    avoided = [] if ignore_selftest else failed_on_device(options)
    if not options.keys() & COMPILING_PROVIDERS:
        operators = None if model is None else operators_of(model)
        if operators is not None:
            session_options.add_session_config_entry("graphopt.operators", ",".join(sorted(operators)))
        with _disabled(avoided):
            session_options.register_custom_ops_library(str(library_path()))
    if DEVICE_PROVIDER not in options:
        return chosen
    # A caller that requires the device wants it for small models too, which the CPU would run faster.
    ours = {"min_nodes": "1"} if require_device else {}
    ours |= {key: str(value) for key, value in options[DEVICE_PROVIDER].items() if key != "device"}
    if avoided:
        ours["disable"] = ",".join([*avoided, *filter(None, [ours.get("disable")])])
    wanted = ",".join(filter(None, [ours.get("libraries"), *(f"{k}={v}" for k, v in (libraries or {}).items())]))
    if wanted:
        ours["libraries"] = _checked(wanted)
    session_options.add_provider_for_devices([device_with_index(options[DEVICE_PROVIDER])], ours)
    return []


def _checked(libraries: str) -> str:
    """Checks a list NAME=CHOICE,.., since ONNX Runtime only logs an invalid one and continues without the provider."""
    for item in libraries.split(","):
        name, _, choice = item.partition("=")
        choices = LIBRARY_CHOICES + (MIOPEN_CHOICES if name == "miopen" else ())
        if name not in LIBRARIES:
            raise OptionError(f"libraries: unknown library '{name}'; choose from {', '.join(LIBRARIES)}")
        if choice not in choices:
            raise OptionError(f"libraries: {name} may be {', '.join(choices)}, not '{choice}'")
    return libraries


@contextmanager
def _disabled(names: Sequence[str]) -> Iterator[None]:
    """Makes registrations of the library in this block omit the named operators."""
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
    """Creates an `InferenceSession` of any model, with the native library registered as by `configure`.

    Args:
        model: a path, serialized bytes, `onnx.ModelProto` or `onnx_ir.Model`.
        providers: as for `configure`, with one exception: if it is None, and the model has more control-flow nodes (If,
            Loop, Scan) than matrix multiplications and convolutions, the session runs on the CPU, with a warning.
        libraries: as for `configure`.
        require_device: fail if a node would run on the CPU; the message lists these nodes. ONNX Runtime 1.22 does not
            report the placement of nodes, so only a missing device is detected there.
        ignore_selftest: run kernels that failed the self-test as well.
        warm_up: the shape of every input, or several such mappings. For each, the session runs on zeros until GPU
            libraries such as MIOpen have loaded their kernels for these shapes, at most 5 times. One line on stderr
            reports the time. No run compiles kernels, unless `libraries` sets "miopen" to "build" or "find".
        custom_ops: your own operator libraries, which are registered as well.
        options: attributes to set on the `SessionOptions`, for instance `intra_op_num_threads=4`.

    Returns:
        The `onnxruntime.InferenceSession`.

    Raises:
        RuntimeMissingError: no runtime, or no native library.
        OptionError: as for `configure`, or a library of `custom_ops` cannot be loaded.
        ModelLoadError: the model shares weights that are missing or have changed.
        GraphoptError: the runtime rejects the model, with its message; a node would run on the CPU although a device is
            required; or the shapes of `warm_up` do not fit.
    """
    ort = import_onnxruntime()
    if providers is not None:
        require_list("providers", providers)
    source = _loadable(model)
    nodes = read_nodes(source)
    if nodes is not None and isinstance(source, str):
        shared_weights.check(Path(source), {p.key: p.value for p in nodes.metadata_props})
    if providers is None and not require_device and nodes is not None:
        providers = _cpu_for_control_flow(nodes)
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
        if operator_of_user(error):
            raise GraphoptError(cannot_load(source if isinstance(source, str) else "the model", error)) from error
        raise GraphoptError(f"ONNX Runtime cannot load the model: {str(error).strip()}") from error
    if require_device and hasattr(created, "get_provider_graph_assignment_info"):
        refuse_cpu_nodes(created)
    warn_of_fallback(created, providers or ())
    warn_of_other_target(created)
    warn_of_slow_bfloat16(created)
    if warm_up:
        _warm_up(created, [warm_up] if isinstance(warm_up, Mapping) else warm_up)
    return created


def operators_of(model: onnx.ModelProto | str | os.PathLike[str] | bytes) -> set[str] | None:
    """Returns the types of our operators in a model, its functions and subgraphs; None if it cannot be read."""
    proto = model if isinstance(model, onnx.ModelProto) else read_nodes(model)
    if proto is None:
        return None
    graphs = (proto.graph, *proto.functions)
    return {node.op_type for graph in graphs for node in all_nodes(graph.node) if node.domain == DOMAIN}


def _cpu_for_control_flow(model: onnx.ModelProto) -> list[Provider] | None:
    """Returns the CPU provider, with a warning, for a model with too much control flow for a device; else None."""
    if default_providers() == [CPU] or not (reason := why_control_flow_dominates(model)):
        return None
    warn_once(f"this model runs on the CPU, since {reason}: providers=['{DEVICE_PROVIDER}'] runs it on the device")
    return [CPU]


def _loadable(model: Any) -> str | bytes:
    """Converts a model to a form that the runtime loads: a path, or bytes that contain all weights.

    Raises:
        OptionError: `model` has an unsupported type.
        GraphoptError: the weights are too large for a message in memory.
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
        raise GraphoptError(f"the model is too large to be run from memory: write it to a file ({error})") from None


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
        # Libraries load kernels in the background. The next run uses them and may request more.
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
    kernels = f"; the GPU's libraries loaded {loaded} kernels" if loaded else ""
    shown = f"{len(sets)} set{'s' * (len(sets) != 1)} of shapes"
    print(f"graphopt: warm-up with {shown} took {seconds:.2f} s{kernels}", file=sys.stderr)


_MOST_WARM_UPS = 5
