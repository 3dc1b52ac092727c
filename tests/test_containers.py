"""The Dockerfiles of examples/docker are complete, and their README's commands exist.

`scripts/empty_machine.py WHEEL --docker DOCKERFILE` runs them.
"""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest
import typer.main

from graphopt.cli.root import app
from scripts.empty_machine import ROOT, commands, instructions

pytestmark = pytest.mark.once

FOLDER = ROOT / "examples" / "docker"
README = FOLDER / "README.md"


@pytest.mark.parametrize(("name", "extra"), [("Dockerfile.cpu", "cpu"), ("Dockerfile.rocm", "amd")])
def test_the_steps_of_an_image(name: str, extra: str) -> None:
    steps = instructions(FOLDER / name)
    assert {name for name, _ in steps} <= {"ARG", "FROM", "RUN", "COPY", "ENV", "WORKDIR", "ENTRYPOINT", "CMD"}
    runs = [rest for name, rest in steps if name == "RUN"]
    for run in runs:
        assert subprocess.run(["sh", "-n", "-c", run]).returncode == 0, run
    assert sum(f"graphopt[{extra}] @ file://" in run for run in runs) == 1
    assert ("ENTRYPOINT", '["graphopt"]') in steps
    assert f"docker build -f {name} " in README.read_text()


def test_both_versions_of_rocm_have_an_image() -> None:
    text = README.read_text() + (FOLDER / "Dockerfile.rocm").read_text()
    images = {*re.findall(r"rocm/dev-ubuntu-24\.04:(\d+\.\d+)\.", text)}
    assert images == {"7.2", "10.0"}


def test_the_commands_of_the_readme_exist() -> None:
    group = typer.main.get_command(app)
    assert len(commands(README, "graphopt:cpu")) == 3
    lines = [line for line in README.read_text().splitlines() if line.startswith("docker run")]
    for line in lines:
        name, *arguments = shlex.split(re.split(r" graphopt:\S+ ", line)[1])
        command = group.get_command(None, name)  # type: ignore[attr-defined]
        options = {option for parameter in command.params for option in parameter.opts}
        assert {argument for argument in arguments if argument.startswith("--")} <= options, line
