"""Damaged model files give one line of error and a documented exit code, or a model; never a crash or a hang."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]
FILES, PER_PROCESS = 300, 150  # scripts/sweep runs 20,000


@pytest.mark.parametrize("first", range(0, FILES, PER_PROCESS))
def test_damaged_files(first: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile.worker", str(tmp_path), str(first), str(PER_PROCESS)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert not [line for line in lines if line.startswith("WRONG")]
    assert lines[-1] == "done 0", f"{lines[-1]} ended the process with {done.returncode}: {done.stderr[-500:]}"
