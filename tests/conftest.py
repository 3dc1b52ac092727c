"""Fixtures shared by several test files."""

from __future__ import annotations

import gc
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from graphopt import cli


def pytest_collection_finish(session: pytest.Session) -> None:
    """Freezes collected objects, which saves garbage collections, and copies of the objects in forked processes."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def draws_of_its_own(request: pytest.FixtureRequest) -> None:
    """Makes each test draw the same values regardless of the tests that ran before it."""
    for name, value in list(vars(request.module).items()):
        if isinstance(value, np.random.Generator):
            seed = zlib.crc32(request.node.nodeid.encode())
            setattr(request.module, name, np.random.default_rng(seed))


@dataclass
class CommandResult:
    exit_code: int
    stdout: str
    stderr: str


@pytest.fixture
def graphopt_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., CommandResult]:
    """Runs the command line in this process, as `graphopt ARGS...` would."""

    def run(*args: object) -> CommandResult:
        monkeypatch.setattr(sys, "argv", ["graphopt", *map(str, args)])
        capsys.readouterr()
        try:
            cli.main()
            code = 0
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        captured = capsys.readouterr()
        return CommandResult(code, captured.out, captured.err)

    return run
