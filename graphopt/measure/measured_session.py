"""The sessions that `bench`, `tune` and the memory measurement use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphopt.errors import GraphoptError
from graphopt.runtime.custom_ops import cannot_load, session_options
from graphopt.runtime.discovery import CPU, DEVICE_PROVIDER, import_onnxruntime
from graphopt.runtime.session_warnings import require_provider
from graphopt.runtime.sessions import configure

# Options for the best performance of each provider; without them the comparison would favour our provider. The ROCm and
# CUDA providers try their implementations during the warm-up.
PROVIDER_OPTIONS: dict[str, dict[str, str]] = {
    "ROCMExecutionProvider": {
        "miopen_conv_exhaustive_search": "1",
        "tunable_op_enable": "1",
        "tunable_op_tuning_enable": "1",
    },
    # All nodes run on this provider, even if the CPU is estimated to be faster.
    DEVICE_PROVIDER: {"min_nodes": "1"},
    "CUDAExecutionProvider": {"cudnn_conv_algo_search": "EXHAUSTIVE", "use_tf32": "0"},
}


def open_session(
    model: Path,
    provider: str,
    threads: int,
    options: Mapping[str, Any] | None = None,
    *,
    record: Path | None = None,
    regions: bool = True,
) -> Any:
    """Creates a session with all of the runtime's optimizations, our library and the provider's best options.

    Args:
        model: the model file.
        provider: full name of the provider.
        threads: threads of the runtime's pool; 0 leaves the choice to the runtime.
        options: attributes to set on the `SessionOptions`.
        record: file in which our provider stores the fastest implementation of each convolution; None for no
            measurement.
        regions: whether our provider compiles adjacent nodes into regions, its default. A profile of single nodes needs
            nodes that are not compiled into regions.

    Raises:
        GraphoptError: the runtime rejects the model, or falls back to another provider.
    """
    ort = import_onnxruntime()
    made = session_options()
    made.intra_op_num_threads = threads
    made.log_severity_level = 4
    for name, value in (options or {}).items():
        setattr(made, name, value)
    given = dict(PROVIDER_OPTIONS.get(provider, {}))
    if provider == DEVICE_PROVIDER and not regions:
        given["regions"] = "0"
    elif provider == DEVICE_PROVIDER and (options or {}).get("enable_profiling"):  # for the nodes of each region
        made.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    if provider == DEVICE_PROVIDER and record is not None:
        given["measured"] = str(record)
    device = [] if provider == CPU else [(provider, given)]
    try:
        chosen = configure(made, [*device, CPU], model=model)
        session = ort.InferenceSession(str(model), made, providers=chosen)
    except GraphoptError:
        raise
    except Exception as error:  # the runtime's exception classes share no public base
        raise GraphoptError(cannot_load(str(model), error, provider)) from None
    require_provider(session, provider)
    return session
