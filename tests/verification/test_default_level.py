"""The death of the process that runs models at the runtime's default level must not print errors at exit."""

from __future__ import annotations

import subprocess
import sys

import pytest

DIES = """
import os, signal
from graphopt.verification import run

process = run._running()
os.kill(process.pid, signal.SIGKILL)
process.wait()
process.stdin.write(b"half of a request")
"""


@pytest.mark.once
def test_a_crash_during_a_request_prints_nothing_at_exit() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "default::ResourceWarning", "-c", DIES], capture_output=True, text=True, check=True
    )
    assert not done.stderr
