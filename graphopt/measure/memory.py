"""Memory of one session, measured in a separate process: the peak on the host, the final use on AMD GPUs."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from graphopt.errors import GraphoptError
from graphopt.measure.measured_session import open_session
from graphopt.runtime.child import environment
from graphopt.runtime.custom_ops import custom_op_libraries, registered_custom_ops
from graphopt.runtime.machine import device_memory_used

RUNS = 3


@dataclass(frozen=True)
class PeakMemory:
    """Memory that a session adds to a process with Python and the runtime.

    Attributes:
        host: the peak, in bytes, from the high-water mark of the resident set.
        device: not a peak: bytes in use on all AMD GPUs after the runs minus bytes in use before the session; None
            without an AMD GPU.
    """

    host: int
    device: int | None


def peak_memory(model: Path, provider: str, threads: int, feeds: dict[str, Any]) -> PeakMemory:
    """Starts a process that runs `model` in a session, and returns the memory that the session adds.

    Args:
        model: the model file.
        provider: full name of the provider.
        threads: threads of the runtime's pool; 0 leaves the choice to the runtime.
        feeds: input name -> array.

    Raises:
        GraphoptError: the process failed; the message is the last line of its stderr.
    """
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder) / "inputs.pickle"
        with inputs.open("wb") as file:
            pickle.dump(feeds, file, pickle.HIGHEST_PROTOCOL)  # protocol 5 loads arrays without a second copy
        request = {
            "model": str(model),
            "provider": provider,
            "threads": threads,
            "inputs": str(inputs),
            "custom_ops": custom_op_libraries(),
        }
        done = subprocess.run(
            [sys.executable, "-c", "from graphopt.measure.memory import answer; answer()"],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            env=environment(),
        )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise GraphoptError(f"the process that measures memory failed: {lines[-1]}")
    return PeakMemory(**json.loads(done.stdout.splitlines()[-1]))


def _measure(request: dict[str, Any]) -> PeakMemory:
    with Path(request["inputs"]).open("rb") as file:
        feeds = pickle.load(file)
    host_before, device_before = _status("VmRSS"), device_memory_used()
    with registered_custom_ops(request["custom_ops"]):
        session = open_session(Path(request["model"]), request["provider"], request["threads"])
    for _ in range(RUNS):
        session.run(None, feeds)
    device_after = device_memory_used()
    device = None if device_after is None or device_before is None else device_after - device_before
    # getrusage would report a maximum that is inherited from the parent process.
    return PeakMemory(max(_status("VmHWM") - host_before, 0), device)


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise GraphoptError(f"/proc/self/status has no {field}")


def answer() -> None:
    """Entry point of the process: reads a request from stdin and prints `PeakMemory` as JSON."""
    try:
        print(json.dumps(asdict(_measure(json.load(sys.stdin)))))
    except GraphoptError as error:
        sys.exit(str(error))
