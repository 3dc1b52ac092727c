"""Follows a new user's steps on a machine with only Python: installs the wheel, optimizes, verifies, serves, queries.

    .venv/bin/python scripts/empty_machine.py release/graphopt-*.whl
    .venv/bin/python scripts/empty_machine.py release/graphopt-*.whl --docker examples/docker/Dockerfile.cpu

A new virtual environment with nothing else on the PATH (no compiler, no shell) gets the wheel, MLServer and Triton's
client; only the tests' client comes from this repository (tests/serving). It kills one of two workers.
The model is NudeNet, a trained YOLOv8 from a PyPI wheel, at 64x64.

With --docker it runs the steps of a Dockerfile instead, with only Python, sh and ls on the PATH. Steps of the image's
package manager are skipped. Then it runs the commands of examples/docker/README.md that need no GPU.
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

# Folders of the images, created in the temporary folder.
FOLDERS = ("/opt/graphopt", "/wheels", "/models")


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """Returns name and arguments of each instruction."""
    text = re.sub(r"^#.*\n", "", dockerfile.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def commands(readme: Path, image: str) -> list[list[str]]:
    """Returns graphopt's arguments in each `docker run` of the image without a GPU."""
    lines = [line for line in readme.read_text().splitlines() if line.startswith("docker run") and "$gpu" not in line]
    return [shlex.split(line.partition(f" {image} ")[2]) for line in lines if f" {image} " in line]


class Machine:
    """An empty folder with only some programs on the PATH, where commands run."""

    def __init__(self, root: Path, programs: Path) -> None:
        self.root, self.folder = root, root
        self.environment = {"PATH": str(programs), "HOME": str(root), "LANG": "C.UTF-8"}
        kept = ("PIP_", "SSL_", "REQUESTS_")
        self.environment |= {name: value for name, value in os.environ.items() if name.startswith(kept)}

    def step(self, what: str, *command: str | Path) -> None:
        """Runs a command, prints its seconds, and exits if it fails."""
        begin = time.perf_counter()
        done = subprocess.run([*map(str, command)], cwd=self.folder, env=self.environment, check=False)
        print(f"== {what}: {time.perf_counter() - begin:.1f} s", flush=True)
        if done.returncode:
            sys.exit(f"{what}: exit code {done.returncode}")


def run_dockerfile(dockerfile: Path, wheel: Path, root: Path) -> None:
    """Runs the steps of a Dockerfile below a folder, then the README's commands on a model in /models."""

    def inside(text: str) -> str:
        return re.sub("|".join(FOLDERS), lambda match: f"{root}{match[0]}", text)

    machine = Machine(root, root / "bin")
    (root / "bin").mkdir()
    for tool in ("sh", "ls", "python3"):
        (root / "bin" / tool).symlink_to(sys.executable if tool == "python3" else str(shutil.which(tool)))
    for name, rest in instructions(dockerfile):
        if name == "COPY":
            target = Path(inside(rest.split()[1]))
            target.mkdir(parents=True)
            shutil.copy(wheel, target)
        elif name == "ENV":
            variable, _, value = rest.partition("=")
            machine.environment[variable] = inside(value).replace(f"${variable}", machine.environment[variable])
        elif name == "WORKDIR":
            machine.folder = Path(inside(rest))
            machine.folder.mkdir(parents=True)
        elif name == "RUN" and not rest.startswith("apt-get"):
            machine.step(rest, "sh", "-c", inside(rest))
        else:
            print(f"== not run here: {name} {rest}", flush=True)
    shutil.copy(pypi.fetch("nudenet"), machine.folder / "in.onnx")
    for arguments in [["doctor"], *commands(dockerfile.with_name("README.md"), "graphopt:cpu")]:
        machine.step(" ".join(["graphopt", *arguments]), root / "opt/graphopt/bin/graphopt", *arguments)


def serve(wheel: Path, root: Path) -> None:
    """Installs, optimizes, serves and queries in a virtual environment."""
    python = root / "venv" / "bin" / "python"
    # The PATH has no compiler and no tools of the environment that runs this script: a wheel needs none.
    machine = Machine(root, python.parent)
    shutil.copy(pypi.fetch("nudenet"), root / "original.onnx")
    (root / "tests" / "serving").mkdir(parents=True)
    for name in ("engine.py", "client_of_two_workers.py"):
        shutil.copy(ROOT / "tests" / "serving" / name, root / "tests" / "serving")
    step = machine.step
    step("a virtual environment", sys.executable, "-m", "venv", root / "venv")
    packages = (f"graphopt[cpu] @ file://{wheel.resolve()}", "mlserver", "uvloop<0.22", "tritonclient")
    step("install", python, "-m", "pip", "install", "--quiet", *packages)
    step("optimize --verify", "graphopt", "optimize", "original.onnx", "fast.onnx", "--target", "cpu", "--verify")
    options = ("--name", "model", "--instances", "2", "--threads", "1")
    step("serve-config", "graphopt", "serve-config", "fast.onnx", "served", "--for", "mlserver", *options)
    step("serve, query, kill", python, "-m", "tests.serving.client_of_two_workers", "original.onnx", "served")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--docker", type=Path, metavar="DOCKERFILE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.docker is not None:
            run_dockerfile(arguments.docker, arguments.wheel, Path(folder))
        else:
            serve(arguments.wheel, Path(folder))


if __name__ == "__main__":
    main()
