"""Malformed attributes, ranks, types and shapes of our operators, at load time and at run time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = 150  # scripts/sweep runs 50,000


def survives(examples: int, seed: int, *kernels: str, **environment: str) -> list[str]:
    """Runs the worker and returns its printed lines."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile.native_worker", str(examples), str(seed), *kernels],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"exit status {done.returncode} at {lines[-1:]}: {done.stderr[-1500:]}"
    _, refused, ran = lines[-1].split()
    assert int(refused) > examples / 10 and int(ran) > examples / 10, "the examples are all alike"
    return lines


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({}, id="best"),
        pytest.param({"GRAPHOPT_ISA": "baseline"}, id="baseline", marks=pytest.mark.once),
    ],
)
def test_malformed_nodes_do_not_crash_the_process(environment: dict[str, str]) -> None:
    survives(EXAMPLES, 1, **environment)


# Opens a session with a node that has no channels and group 0, and prints ONNX Runtime's error.
GROUP_0 = """
import sys
from onnx import TensorProto
from tests.hostile.native_worker import DOMAIN, ERRORS, Example, Input, model_of
from tests.hostile.session import open_session

F, U, S, I = TensorProto.FLOAT, TensorProto.UINT8, TensorProto.INT8, TensorProto.INT32
window = {"pads": [1] * 4, "strides": [1, 1], "group": 0}
quantized = [(U, (1, 4, 4, 0)), (F, ()), (U, ()), (S, (0, 1, 3, 3)), (F, (0,)), (F, ()), (U, ()), (I, (0,))]
residual = [(F, s) for s in ((1, 3, 8, 8), (0, 3, 1, 1), (0,), (0, 1, 3, 3), (0,), (4, 0, 1, 1), (4,))]
inputs = {"QuantizedConv": quantized, "InvertedResidual": residual}[sys.argv[1]]
attributes = {**window, "dilations": [1, 1]} if sys.argv[1] == "QuantizedConv" else window
model, feeds = model_of(Example(sys.argv[1], DOMAIN, tuple(Input(*i) for i in inputs), 1, attributes))
try:
    open_session(model, library=True, provider=False, threads=1, optimized=False).run(None, feeds)
except ERRORS as error:
    print(error)
"""


@pytest.mark.parametrize("op_type", ["InvertedResidual", "QuantizedConv"])
def test_group_0_is_refused(op_type: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", GROUP_0, op_type],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"exit status {done.returncode}: {done.stderr[-1500:]}"
    assert "attribute 'group' must be 1 or more" in done.stdout
