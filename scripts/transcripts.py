"""Writes docs/transcripts.md: the output of each command on a terminal of 80 columns, and the start-up time.

    .venv/bin/python scripts/transcripts.py [MODEL...]

The models are resnet50 and bert (BERT-base) of the zoo, and nudenet from PyPI; all of them take some minutes.
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
from pathlib import Path

import onnx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from models import ZOO, pypi  # noqa: E402 - the zoo lies beside this folder, not in the installed package

MAX_LINES = 32
STARTS = 11
COMMANDS = (
    "optimize {0}.onnx {0}.opt.onnx --target cpu --verify --bench --threads 1",
    "explain {0}.onnx --target cpu",
    "verify {0}.onnx {0}.opt.onnx --effort quick",
    "diff {0}.onnx {0}.opt.onnx",
    "bench {0}.onnx {0}.opt.onnx --threads 1 --no-profile",
)


def on_a_terminal(arguments: list[str], folder: Path) -> list[str]:
    """Returns the lines that the command prints on a terminal of 80 columns without colours."""
    primary, secondary = pty.openpty()
    fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 80, 0, 0))
    environment = {**os.environ, "TERM": "dumb", "PYTHONPATH": str(ROOT)}
    environment.pop("COLUMNS", None)
    command = [sys.executable, "-m", "graphopt", *arguments]
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdin=secondary, stdout=secondary, stderr=subprocess.DEVNULL
    ):
        os.close(secondary)
        text = b""
        try:
            while chunk := os.read(primary, 4096):
                text += chunk
        except OSError:  # the other end is closed
            pass
    os.close(primary)
    lines = [line.rstrip() for line in text.decode().replace("\r\n", "\n").splitlines()]
    rest = len(lines) - MAX_LINES
    return lines if rest <= 1 else [*lines[:MAX_LINES], f"... ({rest} more lines)"]


def cpu_seconds(starts: list[list[str]], folder: Path) -> list[float]:
    """Returns medians of user plus system seconds for arguments of Python, interleaved.

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


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "bad.onnx").write_text("no model")
        models = sys.argv[1:] or ["resnet50", "bert", "nudenet"]
        for model in models:
            if model == "nudenet":
                shutil.copy(pypi.fetch("nudenet"), folder / "nudenet.onnx")
            else:
                onnx.save(ZOO[model](dynamic=True), folder / f"{model}.onnx")
        page = [
            "# Transcripts",
            "",
            "What the commands print on a terminal of 80 columns, made by `scripts/transcripts.py`.",
            "Long outputs are cut here, not there.",
            f"Load of the machine when they began: {os.getloadavg()[0]:.0f} on {os.cpu_count()} processors.",
            "",
            "## Start-up",
            "",
            f"CPU seconds of a process (user and system), median of {STARTS}, taken in turns; a busy machine makes "
            "all of them longer:",
            "",
            "| command | seconds | times those of Python alone |",
            "|---|---|---|",
        ]
        starts = {
            "Python alone (`python -c pass`)": ["-c", "pass"],
            "--version": ["-m", "graphopt", "--version"],
            "--help": ["-m", "graphopt", "--help"],
            "help of a command (`optimize --help`)": ["-m", "graphopt", "optimize", "--help"],
            "an unknown option (`optimize --nonsense`)": ["-m", "graphopt", "optimize", "--nonsense"],
            "a missing argument (`verify`)": ["-m", "graphopt", "verify"],
            "no number (`optimize in.onnx --threads many`)": [
                *("-m", "graphopt", "optimize", "in.onnx", "--threads", "many")
            ],
            "`optimize` of a file that is not there": ["-m", "graphopt", "optimize", "none.onnx", "out.onnx", "-q"],
            "`optimize` until it reads the model (a file that is none)": [
                *("-m", "graphopt", "optimize", "bad.onnx", "out.onnx", "-q")
            ],
        }
        alone, *_ = seconds = cpu_seconds(list(starts.values()), folder)
        page += [f"| {title} | {taken:.3f} | {taken / alone:.1f} |" for title, taken in zip(starts, seconds)]
        for model in models:
            page += ["", f"## {model}"]
            for command in COMMANDS:
                line = command.format(model)
                print(line, flush=True)
                page += ["", "```", f"$ graphopt {line}", *on_a_terminal(line.split(), folder), "```"]
        page += ["", "## Without a model"]
        for line in ("passes", "doctor"):
            page += ["", "```", f"$ graphopt {line}", *on_a_terminal([line], folder), "```"]
    text = (
        "\n".join(page)
        .replace(str(Path.home()), "~")
        .replace(str(ROOT), "~/graphopt")
        .replace(sys.prefix, "~/graphopt/.venv")
    )
    (ROOT / "docs" / "transcripts.md").write_text(text + "\n")


if __name__ == "__main__":
    main()
