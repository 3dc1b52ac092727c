"""Captured graphs on drivers with faulty replays; each function runs in a separate process (test_graphs.py)."""

from __future__ import annotations

import ctypes
import json
import os
from typing import Any

import numpy as np
from onnx import helper

import graphopt
from graphopt.measure.bench import bound_runner
from graphopt.runtime import discovery
from graphopt.runtime.discovery import DEVICE_PROVIDER
from tests.provider.capture_cases import counts
from tests.provider.driver_cases import X, check_thread
from tests.provider.worker import model_of

NODES = 400
CHAIN = ["Tanh" if i % 100 == 0 else "Neg" for i in range(NODES)]


def reference(x: Any) -> Any:
    y = x.astype(np.float64)
    for op in CHAIN:
        y = np.tanh(y) if op == "Tanh" else -y
    return y


def runs() -> dict[str, Any]:
    """Runs a long chain on different inputs, in host memory and bound on the device; returns errors and events."""
    names = ["x", *(f"t{i}" for i in range(1, NODES)), "y"]
    nodes = [helper.make_node(op, [names[i]], [names[i + 1]]) for i, op in enumerate(CHAIN)]
    options = json.loads(os.environ.get("STAND_IN_OPTIONS", "{}"))
    session = graphopt.session(
        model_of(nodes, {"x": X}, ["y"]), [(DEVICE_PROVIDER, options)], require_device=True, log_severity_level=4
    )
    inputs = [X + np.float32(i) for i in range(6)]
    errors = []
    for x in inputs:
        errors.append(np.abs(session.run(None, {"x": x})[0] - reference(x)).max())
        check_thread()
    for x in inputs[:2]:
        run: Any = bound_runner(session, {"x": x}, discovery.memory_of(session))
        errors += [np.abs(run().copy_outputs_to_cpu()[0] - reference(x)).max() for _ in range(3)]
    done = counts()
    return {
        "error": float(max(errors)),
        "most_nodes": int(ctypes.CDLL(os.environ["STAND_IN_DRIVER"]).stand_in_most_nodes()),
        **{key: done[key] for key in ("captured", "replayed", "copied", "refused")},
    }
