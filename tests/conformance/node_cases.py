"""ONNX's node tests.

The package onnx computes them with its reference, which takes seconds; later processes read them from build/.
"""

from __future__ import annotations

import functools
import os
import pickle
import warnings
from pathlib import Path

import numpy as np
import onnx
from onnx.backend.test import loader
from onnx.backend.test.case.test_case import TestCase


@functools.cache
def node_cases() -> dict[str, TestCase]:
    """Returns name -> model, inputs and outputs."""
    kept = Path(__file__).parents[2] / "build" / f"node-cases-{onnx.__version__}-{np.__version__}.pickle"
    if kept.is_file():
        found: dict[str, TestCase] = pickle.loads(kept.read_bytes())
        return found
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # generating the cases overflows and divides by zero intentionally
        found = {case.name: case for case in loader.load_model_tests(kind="node")}
    kept.parent.mkdir(exist_ok=True)
    beside = kept.with_suffix(f".{os.getpid()}")
    beside.write_bytes(pickle.dumps(found))
    beside.replace(kept)
    return found
