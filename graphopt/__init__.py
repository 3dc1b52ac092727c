"""graphopt: an ahead-of-time ONNX graph rewriter with its own ONNX Runtime operators.

import graphopt

graphopt.optimize("in.onnx", "out.onnx")
options = onnxruntime.SessionOptions()
providers = graphopt.configure(options, model="out.onnx")
session = onnxruntime.InferenceSession("out.onnx", options, providers=providers)
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing would double the start-up time of Python
if TYPE_CHECKING:
    from typing import Any

    from graphopt.errors import (
        GraphoptError,
        InvariantError,
        ModelLoadError,
        ModelSaveError,
        OptionError,
        RuntimeMissingError,
        UnknownOptionError,
        VerifyError,
    )
    from graphopt.measure.bench import BenchReport, bench
    from graphopt.measure.tune import Tuning, tune
    from graphopt.optimizer import optimize
    from graphopt.options import Options
    from graphopt.precision.limit_error import ErrorLimit, limit_error
    from graphopt.report.data import Report
    from graphopt.runtime.data_parallel import DataParallel
    from graphopt.runtime.discovery import library_path
    from graphopt.runtime.plugin import get_ep_name, get_ep_names, get_library_path
    from graphopt.runtime.sessions import configure, session
    from graphopt.verification.verify import VerifyReport, verify

__version__ = "0.1.0"

__all__ = [
    "BenchReport",
    "DataParallel",
    "ErrorLimit",
    "GraphoptError",
    "InvariantError",
    "ModelLoadError",
    "ModelSaveError",
    "OptionError",
    "Options",
    "Report",
    "RuntimeMissingError",
    "Tuning",
    "UnknownOptionError",
    "VerifyError",
    "VerifyReport",
    "__version__",
    "bench",
    "configure",
    "get_ep_name",
    "get_ep_names",
    "get_library_path",
    "library_path",
    "limit_error",
    "optimize",
    "session",
    "tune",
    "verify",
]

# Public name -> module. Modules are imported at first use, to keep `import graphopt` fast.
_MODULES = {
    "BenchReport": "graphopt.measure.bench",
    "DataParallel": "graphopt.runtime.data_parallel",
    "ErrorLimit": "graphopt.precision.limit_error",
    "GraphoptError": "graphopt.errors",
    "InvariantError": "graphopt.errors",
    "ModelLoadError": "graphopt.errors",
    "ModelSaveError": "graphopt.errors",
    "OptionError": "graphopt.errors",
    "Options": "graphopt.options",
    "Report": "graphopt.report.data",
    "RuntimeMissingError": "graphopt.errors",
    "Tuning": "graphopt.measure.tune",
    "UnknownOptionError": "graphopt.errors",
    "VerifyError": "graphopt.errors",
    "VerifyReport": "graphopt.verification.verify",
    "bench": "graphopt.measure.bench",
    "configure": "graphopt.runtime.sessions",
    "get_ep_name": "graphopt.runtime.plugin",
    "get_ep_names": "graphopt.runtime.plugin",
    "get_library_path": "graphopt.runtime.plugin",
    "library_path": "graphopt.runtime.discovery",
    "limit_error": "graphopt.precision.limit_error",
    "optimize": "graphopt.optimizer",
    "session": "graphopt.runtime.sessions",
    "tune": "graphopt.measure.tune",
    "verify": "graphopt.verification.verify",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'graphopt' has no attribute '{name}'")
    import importlib

    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__} - {"TYPE_CHECKING"})
