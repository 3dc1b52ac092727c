"""Starts processes without one second of imports each: a server imports the modules once, and forks.

The loader reads LD_LIBRARY_PATH once, so there is one server for each value. In all else a forked process is like a new
process: it has the given environment, no library of ours loaded, and only the threads that the imports start.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

MODULES = (
    "tests.provider.driver_cases",
    "tests.provider.amd_cases",
    "tests.provider.capture_cases",
    "tests.provider.graph_cases",
    "tests.provider.sequence_cases",
)


class ForkServer:
    """Runs functions of MODULES, each in a process that finds libraries by `library_path`."""

    def __init__(self, library_path: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.provider.fork_server"],
            env={**os.environ, "LD_LIBRARY_PATH": library_path},
            cwd=Path(__file__).resolve().parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, module: str, name: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Runs a function and returns its finished process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            said, complained = Path(folder) / "stdout", Path(folder) / "stderr"
            request = [module, name, dict(environment), str(said), str(complained)]
            print(json.dumps(request), file=self._process.stdin, flush=True)
            code = int(self._process.stdout.readline())
            return subprocess.CompletedProcess([module, name], code, said.read_text(), complained.read_text())

    def close(self) -> None:
        self._process.communicate()


@functools.cache
def fork_server(library_path: str) -> ForkServer:
    """Returns a server shared by many tests; it ends when this process closes its standard input."""
    return ForkServer(library_path)


def serve() -> None:
    """Runs the server. In a forked process the function returns, so this process exits normally."""
    from tests.provider.driver_cases import run_case

    functions = {name: vars(importlib.import_module(name)) for name in MODULES}
    gc.freeze()  # otherwise the garbage collection at exit would touch, and so copy, all imported objects
    for line in sys.stdin:
        module, name, environment, said, complained = json.loads(line)
        child = os.fork()
        if child == 0:
            for stream, path in enumerate((os.devnull, said, complained)):
                os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), stream)
            environment["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
            os.environ.clear()
            os.environ.update(environment)
            run_case(functions[module], name)
            return
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
