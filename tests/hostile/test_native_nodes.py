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
