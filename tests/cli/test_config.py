"""Options from pyproject.toml and graphopt.toml."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from graphopt.errors import OptionError
from models import ZOO

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = pytest.mark.once

Command = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Changes to a folder below the one with the configuration; returns the latter."""
    onnx.save(ZOO["resnet18"](small=True), tmp_path / "in.onnx")
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path / "models")
    return tmp_path


def test_options_from_a_file(folder: Path, graphopt_command: Command) -> None:
    """Options of one command, options of all commands, and the command line, which takes precedence."""
    (folder / "pyproject.toml").write_text(
        '[tool.graphopt]\ntarget = "cpu"\n'
        '[tool.graphopt.optimize]\nignore-cost-model = true\nskip = ["fuse_epilogue"]\n'
    )
    shown = graphopt_command("optimize", "../in.onnx", "--dry-run").stdout
    assert "winograd_conv 5" in shown and "fuse_epilogue" not in shown and "optimized for cpu" in shown
    assert "winograd_conv 5" not in graphopt_command("explain", "../in.onnx").stdout
    portable = graphopt_command("optimize", "../in.onnx", "--dry-run", "--target", "portable").stdout
    assert "optimized for portable" in portable
    config = graphopt_command("--show-config").stdout
    assert config.startswith(f"# from {folder / 'pyproject.toml'}\n")
    data = tomllib.loads(config)
    assert data["optimize"] == {"target": "cpu", "ignore-cost-model": True, "skip": ["fuse_epilogue"]}
    assert data["explain"] == {"target": "cpu"} and data["verify"] == {}
    # A command's name with a value that is not a table is an option of other commands.
    (folder / "models" / "graphopt.toml").write_text("verify = true\n")
    data = tomllib.loads(graphopt_command("--show-config").stdout)
    assert data["optimize"] == data["lower"] == {"verify": True} and data["verify"] == {}
    (folder / "models" / "graphopt.toml").write_text('[explain]\ntarget = "migraphx"\n')
    assert tomllib.loads(graphopt_command("--show-config").stdout)["optimize"] == {}


def test_without_a_file(folder: Path, graphopt_command: Command) -> None:
    (folder / "pyproject.toml").write_text('[project]\nname = "other"\n')
    config = graphopt_command("--show-config").stdout
    assert config.startswith("# no graphopt.toml, and no [tool.graphopt] in pyproject.toml\n")
    assert not any(tomllib.loads(config).values())
    (folder / "pyproject.toml").write_text('[tool]\ngraphopt = "cpu"\n')
    result = graphopt_command("--show-config")
    assert result.exit_code == OptionError.exit_code
    assert result.stderr == f"graphopt: {folder / 'pyproject.toml'}: 'graphopt' is not a table\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nonsense = 1", "there is no option 'nonsense'"),
        ("[nonsense]\na = 1", "there is no command 'nonsense'"),
        ("doctor = true", "there is no option 'doctor'"),
        ("[optimize]\nnonsense = 1", "graphopt optimize has no option 'nonsense'; it has target, "),
        ('[optimize]\nskip = "winograd_conv"', 'optimize.skip is "winograd_conv", not a list'),
        ("[optimize]\nverify = 1", "optimize.verify is 1, not true or false"),
        ("[optimize]\ntarget = true", "optimize.target is true, not a string or a number"),
        ("[optimize", "cannot be read"),
    ],
)
def test_errors_name_the_file_and_the_problem(folder: Path, graphopt_command: Command, text: str, words: str) -> None:
    (folder / "graphopt.toml").write_text(text)
    result = graphopt_command("optimize", "../in.onnx", "--dry-run")
    assert result.exit_code == OptionError.exit_code
    assert result.stderr.startswith(f"graphopt: {folder / 'graphopt.toml'}: ") and words in result.stderr
    assert len(result.stderr.splitlines()) == 1
