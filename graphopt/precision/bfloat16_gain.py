"""Measures in 0.1 s whether matrix multiplications in bfloat16 are faster on this machine.

CPU flags are not sufficient: AVX512-BF16 of Intel has half the speed of AMD's, and a virtual machine may hide AMX,
which is fast.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from graphopt.ops import DOMAIN, DOMAIN_VERSION

# The least speedup of a single cached layer; in a whole model the speedup is smaller.
LEAST_GAIN = 1.1
_ROWS, _K, _N = 128, 512, 512
_REPEATS = 9


def measure_gain(ort: Any, library: str, provider: str) -> float:
    """Measures the speedup of LinearBf16 over the runtime's float32 Gemm, on one thread.

    Args:
        ort: the module onnxruntime.
        library: the path of our library.
        provider: the name of the CPU execution provider.

    Returns:
        The ratio of the shortest thread times, float32 over bfloat16.
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
            # With one thread the session computes in the calling thread: other processes do not count in its CPU time.
            start = time.thread_time()
            session.run(None, feeds)
            fastest[i] = min(fastest[i], time.thread_time() - start)
    return fastest[0] / fastest[1]


def bfloat16_warning(gain: float | None) -> str:
    """Returns a warning if this speedup is too small; "" if bfloat16 is faster or the speedup is unknown."""
    if gain is None or gain >= LEAST_GAIN:
        return ""
    if gain > 1.0:
        return f"no faster here (a layer in bfloat16 takes {1 / gain:.2f} times as long as in float32)"
    return f"slower here (a layer in bfloat16 takes {1 / gain:.2f} times as long as in float32)"
