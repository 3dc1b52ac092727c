"""Optimizes damaged files in a process with bounded memory, and checks the visible result of each.

Run as `python -m tests.hostile.worker FOLDER FIRST COUNT`. Prints each seed before it runs, so the parent knows which
seed ended the process.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path

import onnx

from graphopt import cli
from tests.hostile.limits import bound_memory, bound_processor
from tests.hostile.mutation import damaged, originals

MEMORY = 4 * 2**30
SECONDS = 20
DOCUMENTED = {0, 2, 3, 4, 5, 6, 7}


def run(*arguments: str) -> tuple[int, str, str]:
    """Runs `graphopt ARGUMENTS` and returns exit code, stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["graphopt", *arguments]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main()
            code = 0
        except SystemExit as exit_:
            code = int(exit_.code or 0)
    return code, out.getvalue(), err.getvalue()


def check(folder: Path, data: bytes) -> str:
    """Optimizes a file of these bytes and describes a violated guarantee of the command line; "" if there is none."""
    path, out = folder / "in.onnx", folder / "out.onnx"
    path.write_bytes(data)
    out.unlink(missing_ok=True)
    code, stdout, stderr = run("optimize", str(path), str(out), "--target", "cpu", "--ignore-cost-model", "--explain")
    if code not in DOCUMENTED or code == 6:
        return f"exit code {code}: {stderr.strip()}"
    if path.read_bytes() != data:
        return "the input changed"
    if sorted(os.listdir(folder)) != (["in.onnx"] if code else ["in.onnx", "out.onnx"]):
        return f"files {sorted(os.listdir(folder))} after exit code {code}"
    if any(not c.isprintable() and c != "\n" for c in stdout + stderr):
        return "control characters in the output"
    if code == 0:
        onnx.ModelProto.FromString(out.read_bytes())
    elif len(stderr.strip().splitlines()) != 1 or not stderr.startswith("graphopt: "):
        return f"no single line of error: {stderr!r}"
    return ""


def main() -> int:
    folder, first, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    bound_memory(MEMORY)
    models = originals()
    failures = 0
    for seed in range(first, first + count):
        print("seed", seed, flush=True)
        bound_processor(SECONDS)
        try:
            wrong = check(folder, damaged(seed, models))
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        bound_processor(0)
        if wrong:
            failures += 1
            print("WRONG", seed, wrong[:600].replace("\n", " "), flush=True)
    print("done", failures, flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
