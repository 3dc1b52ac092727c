"""Damaged com.microsoft nodes: our code neither crashes nor computes values that differ from ONNX Runtime's."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.hostile.test_native_nodes import ROOT

EXAMPLES = 12  # scripts/sweep runs 6,000


def agrees(examples: int, seed: int, *kernels: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile.contrib_worker", str(examples), str(seed), *kernels],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-1500:]
    word, refused, _, ran, _, ended, *_ = done.stdout.splitlines()[-1].split()
    assert (word, int(refused) + int(ran) + int(ended)) == ("done", examples) and int(ran) > 0


@pytest.mark.once
def test_malformed_contrib_nodes_are_refused_or_computed_as_by_the_runtime() -> None:
    agrees(EXAMPLES, 1)
