"""graphopt: an ahead-of-time ONNX graph rewriter with its own ONNX Runtime operators.

import graphopt

graphopt.optimize("in.onnx", "out.onnx")
options = onnxruntime.SessionOptions()
providers = graphopt.configure(options)
session = onnxruntime.InferenceSession("out.onnx", options, providers=providers)
"""

from __future__ import annotations

__version__ = "0.1.0"

# A function takes the name of its module, which `from graphopt.verify import ...` still finds.
from graphopt.bench import BenchReport, bench
from graphopt.data_parallel import DataParallel
from graphopt.errors import GraphoptError
from graphopt.optimizer import optimize
from graphopt.report import Report
from graphopt.runtime import configure, library_path, session
from graphopt.tune import Tuning, tune
from graphopt.verify import VerifyReport, verify

__all__ = [
    "BenchReport",
    "DataParallel",
    "GraphoptError",
    "Report",
    "Tuning",
    "VerifyReport",
    "__version__",
    "bench",
    "configure",
    "library_path",
    "optimize",
    "session",
    "tune",
    "verify",
]
