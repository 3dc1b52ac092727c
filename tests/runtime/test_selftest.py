"""`doctor --selftest` passes with the right library and names a missing kernel."""

from __future__ import annotations

import io
import json
import math
import os
import re
import subprocess
import sys

import pytest
from rich.console import Console
from typer.testing import CliRunner

from graphopt.cli.root import app
from graphopt.ops import OPS
from graphopt.ops.cases import FAMILIES
from graphopt.report.tables import print_selftest
from graphopt.runtime import selftest
from graphopt.runtime.machine import Device


def test_a_missing_kernel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHOPT_DISABLE", "FusedLayerNorm")
    some = ("FusedLayerNorm", "FusedRmsNorm", "ScaleShift")  # the test of every kernel runs the others
    monkeypatch.setattr(selftest, "OPS", {name: spec for name, spec in OPS.items() if name.startswith(some)})
    result = CliRunner().invoke(app, ["doctor", "--selftest", "--json"])
    assert result.exit_code == 1
    results = json.loads(result.output)["selftest"]["results"]
    failed = {(r["op"], r["dtype"]): r["detail"] for r in results if r["detail"]}
    assert set(failed) == {("FusedLayerNorm", "float32"), ("FusedLayerNorm", "float16")}
    assert "FusedLayerNorm" in failed["FusedLayerNorm", "float32"]
    sessions = json.loads(result.output)["selftest"]["sessions"]
    assert {s["family"] for s in sessions if not s["passed"]} == {"FusedLayerNorm"}
    assert all(s["nodes"].count("Neg") == 2 for s in sessions)


def test_every_kernel_passes() -> None:
    result = CliRunner().invoke(app, ["doctor", "--selftest"], env={"COLUMNS": "140"})
    assert result.exit_code == 0
    assert "self-test: CPUExecutionProvider" in result.output
    sessions = sum(len(selftest.first_of(family).dtypes) for family in FAMILIES)
    assert f"the runtime's: {sessions} of {sessions} passed" in result.output
    rows = re.findall(r"^(\w+) +(float\d+) +(\d+) of \d+ +\d+ +(\S+) +(\S+)$", result.output, re.M)
    assert len(rows) > 20
    for family, dtype, passed, worst, limit in rows:
        assert float(worst) <= float(limit), f"{family} {dtype} passed"
        if family in ("FusedAttention", "FusedAttentionBf16"):
            named = [name for name in OPS if name.startswith("FusedAttention") and dtype in OPS[name].dtypes]
            assert int(passed) == sum(name.endswith("Bf16") == family.endswith("Bf16") for name in named)


def test_the_text_of_many_failures_fits_into_an_issue() -> None:
    """GitHub accepts 65,536 characters; the rest is for the times of `--bench`."""
    tested = selftest.SelfTest("P", Device("a GPU", "gfx942"), "", "")
    tested.results = [
        selftest.KernelResult(op, dtype, 9, math.inf, 1e-5, "a reason " * 44, implementation=implementation)
        for op in OPS
        for dtype in selftest.DTYPES
        for implementation in ("", "first", "second", "third")
    ]
    nodes = ("Neg", "MatMul", "Linear", "Neg")
    tested.sessions = [selftest.SessionResult(f, "float32", nodes, math.inf, 1e-5, "a reason " * 44) for f in FAMILIES]
    printed = io.StringIO()
    print_selftest(tested, Console(file=printed, width=140))
    assert len(printed.getvalue()) < 45_000
    assert f"{len(tested.results) - 20} more; --json lists all" in printed.getvalue()


NO_HOME = """
import os
from graphopt.runtime import selftest_record
from graphopt.runtime.machine import Device
from graphopt.serving import shared
os.setuid(54321)  # in no list of users, as in containers that take any number
print(selftest_record.failures("P", Device("a GPU", "gfx942"), "1"), shared.weights_folder())
"""


@pytest.mark.once
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_user_without_a_home_has_no_record() -> None:
    env = {
        name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_CACHE_HOME", "GRAPHOPT_WEIGHTS")
    }
    run = subprocess.run([sys.executable, "-c", NO_HOME], env=env, capture_output=True, text=True)
    assert run.stdout == "{} None\n", run.stderr
    assert "this user has no home: set XDG_CACHE_HOME" in run.stderr
