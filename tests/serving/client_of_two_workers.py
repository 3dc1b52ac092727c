"""Queries a served folder while one of its two workers is killed; scripts/empty_machine.py runs it on its machine.

    python -m tests.serving.client_of_two_workers MODEL SERVED

16 clients send 1,008 requests of one to three rows to MLServer, and repeat a request that gets no answer. Exits 1
unless every answer equals MODEL's result in a plain session and the worker is replaced.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import onnxruntime

import graphopt
from tests.serving.engine import Engine, Question, load, wait_for

CLIENTS, EACH = 16, 63


def main(model: Path, served: Path) -> int:
    assert "site-packages" in graphopt.__file__, graphopt.__file__
    assert not [tool for tool in ("cc", "gcc", "g++", "clang", "cmake", "make", "sh") if shutil.which(tool)]
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    names, questions, rng = [o.name for o in session.get_outputs()], [], np.random.default_rng(0)
    for rows in (1, 2, 3, 1, 2, 3):
        feeds = {session.get_inputs()[0].name: rng.standard_normal((rows, 3, 64, 64)).astype(np.float32)}
        questions.append(Question("model", feeds, [dict(zip(names, session.run(None, feeds)))]))
    with Engine("mlserver", served.absolute()) as engine:
        before = engine.workers()
        victim = before[-1]
        result = load(
            engine, questions, clients=CLIENTS, requests=EACH, attempts=60, patience=1200,
            meanwhile=lambda: os.kill(victim, signal.SIGKILL),
        )  # fmt: skip
        back = wait_for(lambda: victim not in engine.workers() and len(engine.workers()) == len(before))
        print(f"{result.right} right, {len(result.wrong)} wrong, {len(result.errors)} repeated requests; "
              f"{len(before)} workers, after one was killed {len(engine.workers())}")  # fmt: skip
    return 0 if result.right == CLIENTS * EACH and not result.wrong and back else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
