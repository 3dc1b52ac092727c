"""Malformed attributes, ranks, types and shapes of our operators, at load and at run time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = 500


@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("isa", ["", "baseline"])
def test_a_malformed_node_never_takes_the_process_along(seed: int, isa: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile.native_worker", str(EXAMPLES), str(seed)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **({"GRAPHOPT_ISA": isa} if isa else {})},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"exit status {done.returncode} at {lines[-1:]}: {done.stderr[-1500:]}"
    _, refused, ran = lines[-1].split()
    assert int(refused) > EXAMPLES / 10 and int(ran) > EXAMPLES / 10, "the examples are all alike"
