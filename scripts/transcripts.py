"""Writes docs/transcripts.md: the output of commands on a terminal of 80 columns, and the start-up time.

    .venv/bin/python scripts/transcripts.py

The commands of COMMANDS run on resnet50 of the zoo. `optimize` also runs on bert (BERT-base) of the zoo, on nudenet
from PyPI and on nine other models, one for each kind of result; `doctor` runs without a model. This takes some
minutes.
"""

from __future__ import annotations

import fcntl
import os
import pty
import resource
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import graphopt  # noqa: E402
from models import ZOO, pypi  # noqa: E402 - the zoo is beside this folder, not in the installed package

MAX_LINES = 24
STARTS = 11
COMMANDS = (
    "optimize {0}.onnx {0}.opt.onnx --target cpu --verify --bench --threads 1",
    "explain {0}.onnx --target cpu",
    "diff {0}.onnx {0}.opt.onnx",
)


def made_of(graph: str, weights: Mapping[str, Any] = MappingProxyType({})) -> Callable[[Path], None]:
    """Returns a function that writes a model in ONNX's text syntax to a path."""

    def write(path: Path) -> None:
        model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17, "acme" : 1]> {graph}')
        model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
        onnx.save(model, path)

    return write


def of_zoo(name: str) -> Callable[[Path], None]:
    """Returns a function that writes a model of the zoo to a path."""
    return lambda path: onnx.save(ZOO[name](dynamic=True), path)


WEIGHT = {"w": np.random.default_rng(0).normal(size=(4, 4, 3, 3)).astype(np.float32)}
THIN = "g (float[N, 4, 64, 64] x) => (float[N, 4, 64, 64] y) { y = Conv <pads = [1, 1, 1, 1]> (x, w) }"
BRANCH = """g (float[N, 4] x) => (float[N, 4] y) {
    z = Identity (x)  n = Constant <value_float = -1.0> ()
    a = Abs (z)  s = ReduceMin <keepdims = 0> (a)  c = Less (s, n)
    y = If (c) <then_branch = t () => (float[N, 4] u) { u = Neg (z) },
                else_branch = e () => (float[N, 4] v) { v = Exp (z) }>
}"""
ACME = "g (float[N, 4] x) => (float[N, 4] y) { t = Identity (x)  d = acme.Doubled (t)  y = Relu (d) }"
# The kind of result, the model, a function that writes the model, and the options of `optimize`.
KINDS: Sequence[tuple[str, str, Callable[[Path], object], str]] = (
    ("unchanged", "a convolution of four channels", made_of(THIN, WEIGHT), "--verify --bench"),
    (
        "slower",
        "the same, rewritten where it is not faster",
        made_of(THIN, WEIGHT),
        "--ignore-cost-model --bench --threads 1 --strict",
    ),
    ("partly verified", "a branch that no input takes", made_of(BRANCH), "--verify --strict"),
    ("not verified", "an operator that the runtime does not have", made_of(ACME), "--verify"),
    ("custom operators", "the same with the library that has it", made_of(ACME), "--custom-ops libacme.so --verify"),
    ("external data", "GPT-2 with its weights beside the file", of_zoo("gpt2"), "--external-data --verify"),
    ("float16", "ResNet-18 for an AMD GPU", of_zoo("resnet18"), "--precision fp16 --target rocm:gfx942 --verify"),
    ("bfloat16", "a vision transformer", of_zoo("vit"), "--precision bf16 --verify --bench --threads 1"),
    (
        "refused",
        "a page of HTML in the place of a model",
        lambda path: path.write_text("<!DOCTYPE html><html></html>"),
        "",
    ),
)


def on_a_terminal(arguments: list[str], folder: Path) -> list[str]:
    """Returns what the command prints on a terminal of 80 columns, its errors, and its exit code unless it is 0."""
    primary, secondary = pty.openpty()
    fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 80, 0, 0))
    environment = {**os.environ, "TERM": "dumb", "PYTHONPATH": str(ROOT)}
    environment.pop("COLUMNS", None)
    command = [sys.executable, "-m", "graphopt", *arguments]
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdin=secondary, stdout=secondary, stderr=subprocess.PIPE
    ) as process:
        os.close(secondary)
        text = b""
        try:
            while chunk := os.read(primary, 4096):
                text += chunk
        except OSError:  # the other end is closed
            pass
        assert process.stderr is not None
        errors = process.stderr.read().decode().splitlines()
    os.close(primary)
    lines = [line.rstrip() for line in text.decode().replace("\r\n", "\n").splitlines()]
    rest = len(lines) - MAX_LINES
    shown = lines if rest <= 1 else [*lines[:MAX_LINES], f"... ({rest} more lines)"]
    shown += [line for line in errors if line.startswith("graphopt: ")]
    return shown + [f"(exit code {process.returncode})"] * bool(process.returncode)


def cpu_seconds(starts: list[list[str]], folder: Path) -> list[float]:
    """Returns the median of user plus system seconds for each list of arguments of Python. The runs are interleaved.

    Compiled files exist, as after an installation.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def once(arguments: list[str]) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return [statistics.median(times) for times in zip(*([once(a) for a in starts] for _ in range(STARTS)))]


def start_up(folder: Path) -> Iterator[str]:
    """Yields the section about the start of a process."""
    command = ["-m", "graphopt"]
    starts = {
        "Python alone (`python -c pass`)": ["-c", "pass"],
        "--version": [*command, "--version"],
        "--help": [*command, "--help"],
        "help of a command (`optimize --help`)": [*command, "optimize", "--help"],
        "an unknown option (`optimize --nonsense`)": [*command, "optimize", "--nonsense"],
        "a missing argument (`verify`)": [*command, "verify"],
        "no number (`optimize in.onnx --threads many`)": [*command, "optimize", "in.onnx", "--threads", "many"],
        "`optimize` of a file that is not there": [*command, "optimize", "none.onnx", "out.onnx", "-q"],
        "`optimize` until it reads the model (a file that is none)": [
            *command,
            "optimize",
            "bad.onnx",
            "o.onnx",
            "-q",
        ],
    }
    yield "## Start-up\n"
    yield f"CPU seconds of a process (user and system), median of {STARTS}, taken in turns:\n"
    yield "| command | seconds | times those of Python alone |\n|---|---|---|"
    (folder / "bad.onnx").write_text("no model")
    alone, *_ = seconds = cpu_seconds(list(starts.values()), folder)
    for title, taken in zip(starts, seconds, strict=True):
        yield f"| {title} | {taken:.3f} | {taken / alone:.1f} |"


def transcript(line: str, folder: Path) -> str:
    print(line, flush=True)
    return "\n".join(["\n```", f"$ graphopt {line}", *on_a_terminal(line.split(), folder), "```"])


def sections(folder: Path) -> Iterator[str]:
    yield "# Transcripts\n"
    yield "What the commands print on a terminal of 80 columns, made by `scripts/transcripts.py`."
    yield f"Of long outputs only the first {MAX_LINES} lines are shown."
    yield f"Load of the machine at the start: {os.getloadavg()[0]:.0f} on {os.cpu_count()} processors.\n"
    yield from start_up(folder)
    for name in ("resnet50", "bert", "nudenet"):
        if name == "nudenet":
            shutil.copy(pypi.fetch(name), folder / f"{name}.onnx")
        else:
            of_zoo(name)(folder / f"{name}.onnx")
        yield f"\n## {name}"
        for command in COMMANDS if name == "resnet50" else COMMANDS[:1]:
            yield transcript(command.format(name), folder)
    yield "\n## optimize, for each kind of result"
    library = ["g++", "-std=c++20", "-shared", "-fPIC", f"-I{ROOT}/native", f"{ROOT}/tests/cli/custom_op.cpp"]
    subprocess.run([*library, "-o", folder / "libacme.so"], check=True)
    for kind, what, write, options in KINDS:
        file = f"{kind.replace(' ', '_')}.onnx"
        write(folder / file)
        yield f"\n{kind[0].upper()}{kind[1:]}: {what}."
        target = "" if "--target" in options else " --target cpu"
        yield transcript(f"optimize {file} out.onnx{target} {options}".rstrip(), folder)
    yield "\n## Without a model"
    yield transcript("doctor", folder)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        text = "\n".join(sections(Path(name)))
    library = graphopt.library_path().resolve()
    for place, shown in (
        (library, "~/graphopt/graphopt/lib/libgraphopt.so"),
        (Path.home(), "~"),
        (ROOT, "~/graphopt"),
        (sys.prefix, "~/graphopt/.venv"),
    ):
        text = text.replace(str(place), shown)
    (ROOT / "docs" / "transcripts.md").write_text(text + "\n")


if __name__ == "__main__":
    main()
