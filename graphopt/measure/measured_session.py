"""The session that is measured, by `bench`, by `tune` and in the process that measures memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphopt.errors import GraphoptError
from graphopt.runtime.custom_ops import cannot_load, session_options
from graphopt.runtime.discovery import CPU, DEVICE_PROVIDER, import_onnxruntime
from graphopt.runtime.session_warnings import require_provider
from graphopt.runtime.sessions import configure

# What a provider needs to be at its best; a baseline without it would flatter us. Tuning happens in the warm-up.
PROVIDER_OPTIONS: dict[str, dict[str, str]] = {
    "ROCMExecutionProvider": {
        "miopen_conv_exhaustive_search": "1",
        "tunable_op_enable": "1",
        "tunable_op_tuning_enable": "1",
    },
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
    """A session with all of the runtime's optimizations, our library, the provider at its best.

    Args:
        model: the file.
        provider: by the name that the runtime has for it.
        threads: of the runtime's pool; 0 leaves the choice to the runtime.
        options: attributes to set on the `SessionOptions`.
        record: for our own provider: where it remembers which implementation of a convolution is the fastest.
        regions: for our own provider: whether it runs neighbouring nodes as one, as it does for users; a profile of
            single nodes needs them one by one.

    Raises:
        GraphoptError: the runtime refuses the model, or falls back to another provider.
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
    elif provider == DEVICE_PROVIDER and (options or {}).get("enable_profiling"):  # whose nodes a region has
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
