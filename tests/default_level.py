"""Runs models as users do: at the runtime's default optimization level, where its own rewrites may fail or crash.

In a process of its own, which serves many models and is started again when one ends it.
"""

from __future__ import annotations

import atexit
import functools
import pickle
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
import onnx

from graphopt.ops import DOMAIN
from graphopt.runtime.sessions import library_path

Feeds = Mapping[str, npt.NDArray[Any]]


class Loader:
    """The process."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def why_not(self, model: bytes, feeds: Feeds, *, library: bool) -> str:
        """Why the runtime does not run a model; "" when it does."""
        if self._process is None:
            command = [sys.executable, "-m", "tests.default_level", str(library_path())]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            pickle.dump((model, dict(feeds), library), process.stdin)
            process.stdin.flush()
            answer = process.stdout.readline().decode()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self._process = None
            return f"the runtime ended the process with {process.wait()}"
        return answer.strip()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@functools.cache
def loader() -> Loader:
    made = Loader()
    atexit.register(made.close)
    return made


def assert_runs(before: onnx.ModelProto, after: onnx.ModelProto, feeds: Feeds) -> None:
    """AFTER runs at the default level, with the library and without it, unless BEFORE does not either."""
    ours = any(n.domain == DOMAIN for n in after.graph.node)
    message = after.SerializeToString()
    for library in (False, True) if ours else (False,):
        why = loader().why_not(message, feeds, library=library)
        if why:
            assert loader().why_not(before.SerializeToString(), feeds, library=False), f"library={library}: {why}"


def _serve(path: str) -> None:
    import onnxruntime as ort

    def options(library: bool) -> ort.SessionOptions:
        made = ort.SessionOptions()
        made.log_severity_level = 4
        made.intra_op_num_threads = 1
        if library:
            made.register_custom_ops_library(path)
        return made

    with_library = {library: options(library) for library in (False, True)}
    while True:
        try:
            model, feeds, library = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            session = ort.InferenceSession(model, with_library[library], providers=["CPUExecutionProvider"])
            made = session.run(None, feeds)
            answer = "an output has no value" if any(y is None for y in made) else ""
        except Exception as error:
            answer = " ".join(str(error).split())[:300] or repr(error)
        print(answer, flush=True, file=_answers)


if __name__ == "__main__":
    # The runtime prints to stdout where a provider fails.
    _answers, sys.stdout = sys.stdout, sys.stderr
    _serve(sys.argv[1])
