"""Runs models at the runtime's default optimization level, in a process of its own: a crash there is a finding.

One such process serves all calls; after a crash the next call starts another.
"""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import onnx

from graphopt.checking.inputs import Case
from graphopt.checking.run import Model, Outputs, open_session, run_case
from graphopt.errors import GraphoptError
from graphopt.runtime.child import environment
from graphopt.runtime.custom_ops import custom_op_libraries, registered_custom_ops

_process: subprocess.Popen[bytes] | None = None


def run_optimized(
    model: Model, cases: Sequence[Case], *, library: bool, half_io: bool = False, threads: int = 0
) -> dict[str, Outputs | str]:
    """As `run_cases`, with the runtime's optimizations on. A crash is a message for its case and those behind it.

    `threads` is how many compute a node; 0 leaves that to the runtime.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = model
        if isinstance(model, onnx.ModelProto):
            path = Path(folder) / "model.onnx"
            path.write_bytes(model.SerializeToString())
        assert isinstance(path, Path)
        request = (str(path.resolve()), list(cases), library, half_io, threads, custom_op_libraries())
        process = _running()
        assert process.stdin is not None and process.stdout is not None
        results: dict[str, Outputs | str] = {}
        try:
            pickle.dump(request, process.stdin)
            process.stdin.flush()
            refused = pickle.load(process.stdout)
            for case in cases if refused is None else ():
                results[case.name] = pickle.load(process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError):
            code = _stop(process)
            how = f"crashes (signal {-code})" if code < 0 else f"ends with code {code}"
            message = f"the runtime {how} at its default optimization level"
            return {case.name: results.get(case.name, message) for case in cases}
    if refused is not None:
        return {case.name: f"at the runtime's default optimization level: {refused}" for case in cases}
    return results


def _running() -> subprocess.Popen[bytes]:
    global _process
    if _process is None or _process.poll() is not None:
        _process = subprocess.Popen(
            [sys.executable, "-c", "from graphopt.checking.default_level import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(),
        )
        atexit.register(_stop, _process)
    return _process


def _stop(process: subprocess.Popen[bytes]) -> int:
    """Ends the process, which may have died with a request half written; its exit code."""
    assert process.stdin is not None and process.stdout is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
    code = process.wait()
    process.stdout.close()
    return code


def serve() -> None:
    """The other process: requests on stdin, answers on what was stdout."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    requests: IO[bytes] = sys.stdin.buffer
    while True:
        try:
            path, cases, library, half_io, threads, custom_ops = pickle.load(requests)
        except EOFError:
            return
        with registered_custom_ops(custom_ops):
            for answer in _answers(Path(path), cases, library, half_io, threads):
                pickle.dump(answer, answers)
                answers.flush()


def _answers(path: Path, cases: Sequence[Case], library: bool, half_io: bool, threads: int) -> Iterator[Any]:
    """Why there is no session, or None and the outputs of each case."""
    try:
        session = open_session(path, library=library, optimized=True, threads=threads)
    except GraphoptError as error:
        yield str(error).removeprefix(f"{path} ")
        return
    yield None
    for case in cases:
        yield run_case(session, case, half_io=half_io)
