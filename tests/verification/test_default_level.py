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
def test_its_death_with_half_of_a_request_is_no_noise_at_the_end() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "default::ResourceWarning", "-c", DIES], capture_output=True, text=True, check=True
    )
    assert not done.stderr
