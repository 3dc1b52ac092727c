"""Whether this machine gains anything by products in bfloat16, measured in a tenth of a second.

Instruction sets do not tell: Intel's AVX512-BF16 has the same names as AMD's and half the speed, and a virtual machine
may hide AMX, which is fast.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from graphopt.ops import DOMAIN, DOMAIN_VERSION

# What a single layer in the cache must gain at least: in a whole model it gains less.
LEAST_GAIN = 1.1
_ROWS, _K, _N = 128, 512, 512
_REPEATS = 9


def measure_gain(ort: Any, library: str, provider: str) -> float:
    """Returns how many times faster a layer of ours in bfloat16 is than the runtime's own in float32, on one thread.

    Args:
        ort: the module onnxruntime.
        library: the path of our library.
        provider: that of CPUs.
    """
    rng = np.random.default_rng(0)
    weights = {"W": rng.standard_normal((_K, _N), np.float32), "b": rng.standard_normal(_N, np.float32)}
    initializers = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (_ROWS, n)) for name, n in (("X", _K), ("Y", _N)))
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, DOMAIN_VERSION)]
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.register_custom_ops_library(library)
    sessions = []
    for node in (
        helper.make_node("Gemm", ["X", "W", "b"], ["Y"]),
        helper.make_node("LinearBf16", ["X", "W", "b"], ["Y"], domain=DOMAIN),
    ):
        graph = helper.make_graph([node], "layer", [x], [y], initializers)
        model = helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()
        sessions.append(ort.InferenceSession(model, options, providers=[provider]))
    feeds = {"X": rng.standard_normal((_ROWS, _K), np.float32)}
    fastest = [float("inf")] * len(sessions)
    for _ in range(_REPEATS):
        for i, session in enumerate(sessions):
            # One thread computes where it is called, so that its own time says nothing of what else runs here.
            start = time.thread_time()
            session.run(None, feeds)
            fastest[i] = min(fastest[i], time.thread_time() - start)
    return fastest[0] / fastest[1]


def bfloat16_warning(gain: float | None) -> str:
    """Says that bfloat16 does not pay on a machine with this gain; "" where it does."""
    if gain is None or gain >= LEAST_GAIN:
        return ""
    if gain > 1.0:
        return f"no faster here (a layer in bfloat16 takes {1 / gain:.2f} times as long as in float32)"
    return f"slower here (a layer in bfloat16 takes {1 / gain:.2f} times as long as in float32)"
