"""Follows a new user's steps on a machine with only Python: installs the wheel, optimizes, verifies, serves, queries.

    .venv/bin/python scripts/empty_machine.py release/graphopt-*.whl
    .venv/bin/python scripts/empty_machine.py release/graphopt-*.whl --docker examples/docker/Dockerfile.cpu

A new virtual environment with nothing else on the PATH (no compiler, no shell) gets the wheel and MLServer; only the
tests' client comes from this repository. 16 clients send 1,008 requests of one to three rows; after a quarter of them
one of the two workers is killed. Every answer must equal the original file's result in a plain session; a client
repeats a request that gets no answer. The model is NudeNet, a trained YOLOv8 from a PyPI wheel, at 64x64.

With --docker it runs the steps of a Dockerfile instead, with only Python, sh and ls on the PATH, then the commands of
examples/docker/README.md that need no GPU. Steps of the image's package manager are skipped.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from models import pypi  # noqa: E402 - the zoo is beside this folder, not in the installed package

CLIENTS, EACH = 16, 63

CLIENT = (
    f"CLIENTS, EACH = {CLIENTS}, {EACH}"
    + """
import os, shutil, signal, sys
from pathlib import Path
import numpy as np, onnxruntime
from tests.serving.engine import Engine, Question, load, wait_for
import graphopt
assert "site-packages" in graphopt.__file__, graphopt.__file__
assert not [tool for tool in ("cc", "gcc", "g++", "clang", "cmake", "make", "sh") if shutil.which(tool)]

session = onnxruntime.InferenceSession("original.onnx", providers=["CPUExecutionProvider"])
names, questions, rng = [o.name for o in session.get_outputs()], [], np.random.default_rng(0)
for rows in (1, 2, 3, 1, 2, 3):
    feeds = {session.get_inputs()[0].name: rng.standard_normal((rows, 3, 64, 64)).astype(np.float32)}
    questions.append(Question("model", feeds, [dict(zip(names, session.run(None, feeds)))]))
with Engine("mlserver", Path("served").absolute()) as engine:
    before = engine.workers()
    victim = before[-1]
    result = load(engine, questions, clients=CLIENTS, requests=EACH, attempts=60, patience=1200,
                  meanwhile=lambda: os.kill(victim, signal.SIGKILL))
    back = wait_for(lambda: victim not in engine.workers() and len(engine.workers()) == len(before))
    print(f"{result.right} right, {len(result.wrong)} wrong, {len(result.errors)} asked again; "
          f"{len(before)} workers, after one was killed {len(engine.workers())}")
    sys.exit(0 if result.right == CLIENTS * EACH and not result.wrong and back else 1)
"""
)


# Folders of the images, created in the temporary folder.
FOLDERS = ("/opt/graphopt", "/wheels", "/models")


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """Returns name and arguments of each instruction."""
    text = re.sub(r"^#.*\n", "", dockerfile.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def commands(readme: Path, image: str) -> list[list[str]]:
    """Returns the arguments of graphopt in each `docker run` of an image that gets no GPU."""
    lines = [line for line in readme.read_text().splitlines() if line.startswith("docker run") and "$gpu" not in line]
    return [shlex.split(line.partition(f" {image} ")[2]) for line in lines if f" {image} " in line]


def run_dockerfile(dockerfile: Path, wheel: Path, root: Path) -> None:
    """Runs the steps of a Dockerfile below a folder, then the README's commands on a model in /models."""

    def inside(text: str) -> str:
        return re.sub("|".join(FOLDERS), lambda match: f"{root}{match[0]}", text)

    (root / "bin").mkdir()
    for tool in ("sh", "ls", "python3"):
        (root / "bin" / tool).symlink_to(sys.executable if tool == "python3" else str(shutil.which(tool)))
    environment = {"PATH": str(root / "bin"), "HOME": str(root), "LANG": "C.UTF-8"}
    environment |= {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "REQUESTS_"))}
    folder = root

    def step(what: str, *command: str) -> None:
        begin = time.perf_counter()
        done = subprocess.run(command, cwd=folder, env=environment, check=False)
        print(f"== {what}: {time.perf_counter() - begin:.1f} s", flush=True)
        if done.returncode:
            sys.exit(f"{what}: exit code {done.returncode}")

    for name, rest in instructions(dockerfile):
        if name == "COPY":
            target = Path(inside(rest.split()[1]))
            target.mkdir(parents=True)
            shutil.copy(wheel, target)
        elif name == "ENV":
            variable, _, value = rest.partition("=")
            environment[variable] = inside(value).replace(f"${variable}", environment[variable])
        elif name == "WORKDIR":
            folder = Path(inside(rest))
            folder.mkdir(parents=True)
        elif name == "RUN" and not rest.startswith("apt-get"):
            step(rest, "sh", "-c", inside(rest))
        else:
            print(f"== not run here: {name} {rest}", flush=True)
    shutil.copy(pypi.fetch("nudenet"), folder / "in.onnx")
    for arguments in [["doctor"], *commands(dockerfile.with_name("README.md"), "graphopt:cpu")]:
        step(" ".join(["graphopt", *arguments]), str(root / "opt/graphopt/bin/graphopt"), *arguments)


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--docker", type=Path, metavar="DOCKERFILE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        machine = Path(folder)
        if arguments.docker is not None:
            run_dockerfile(arguments.docker, arguments.wheel, machine)
            return
        python = machine / "venv" / "bin" / "python"
        # Without the tools of this environment and without a compiler, which a wheel does not need.
        environment = {"PATH": str(python.parent), "HOME": folder, "LANG": "C.UTF-8"}
        kept = ("PIP_", "SSL_", "REQUESTS_")
        environment |= {name: value for name, value in os.environ.items() if name.startswith(kept)}

        def step(what: str, *command: str | Path) -> None:
            begin = time.perf_counter()
            done = subprocess.run([*map(str, command)], cwd=machine, env=environment, check=False)
            print(f"== {what}: {time.perf_counter() - begin:.1f} s", flush=True)
            if done.returncode:
                sys.exit(f"{what}: exit code {done.returncode}")

        shutil.copy(pypi.fetch("nudenet"), machine / "original.onnx")
        (machine / "tests" / "serving").mkdir(parents=True)
        shutil.copy(ROOT / "tests" / "serving" / "engine.py", machine / "tests" / "serving")
        step("a virtual environment", sys.executable, "-m", "venv", machine / "venv")
        wheel = f"graphopt[cpu] @ file://{arguments.wheel.resolve()}"
        step("install", python, "-m", "pip", "install", "--quiet", wheel, "mlserver", "uvloop<0.22", "tritonclient")
        step("optimize --verify", "graphopt", "optimize", "original.onnx", "fast.onnx", "--target", "cpu", "--verify")
        options = ("--name", "model", "--instances", "2", "--threads", "1")
        step("serve-config", "graphopt", "serve-config", "fast.onnx", "served", "--for", "mlserver", *options)
        step("serve, ask, kill", python, "-c", CLIENT)


if __name__ == "__main__":
    main()
