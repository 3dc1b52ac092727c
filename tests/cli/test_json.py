"""The output with --json: complete, strict JSON, and valid by docs/report.schema.json."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from graphopt.runtime.discovery import library_path
from graphopt.strict_json import SCHEMA, dumps
from models import ZOO
from tests.rewriting import model_from_text

Command = Callable[..., Any]
FILE = Path(__file__).resolve().parents[2] / "docs" / "report.schema.json"


def strict(text: str) -> Any:
    """Parses JSON; raises an error for tokens outside of the standard."""

    def refuse(token: str) -> Any:
        raise ValueError(token)

    return json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="module")
def check() -> Callable[[Any], None]:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(FILE.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    kinds = {kind["properties"]["command"]["const"]: {**kind, "$defs": schema["$defs"]} for kind in schema["oneOf"]}

    def check(data: Any) -> None:
        assert data["schema"] == SCHEMA
        jsonschema.validate(data, kinds[data["command"]])

    return check


@pytest.mark.once
def test_every_command(graphopt_command: Command, tmp_path: Path, check: Callable[[Any], None]) -> None:
    path, out, report = tmp_path / "in.onnx", tmp_path / "out.onnx", tmp_path / "report.json"
    onnx.save(ZOO["resnet18"](small=True), path)
    options = ("--target", "cpu", "--ignore-cost-model", "--verify", "--bench", "--threads", "1", "--json", report)
    shown = graphopt_command("optimize", path, out, *options)
    assert shown.exit_code == 0
    whole = strict(report.read_text())
    check(whole)
    assert whole["verify"]["verdict"] == "equal" and len(whole["bench"]["rows"]) == 1
    assert re.fullmatch(r".* \(.*-.*\), equal \(worst \d(\.\d)?e-\d\), 30 -> 12 nodes", whole["answer"])
    assert shown.stdout.splitlines()[0] == whole["answer"]
    for command in (
        ("explain", path, "--target", "cpu"),
        ("verify", path, out, "--effort", "quick"),
        ("bench", path, "--seconds", "0.05", "--threads", "1"),
        ("diff", path, out),
        ("doctor",),
    ):
        data = strict(graphopt_command(*command, "--json").stdout)
        assert data["command"] == command[0]
        check(data)
    # The architectures are read from the library's file, with or without a GPU: wheels are made for other machines.
    code = set(re.findall(rb"amdgcn-amd-amdhsa--(gfx[0-9a-z-]+)", library_path().read_bytes()))
    kernels = data["findings"]["AMD GPU kernels"]
    assert {arch.encode() for arch in kernels.split(", ")} == code if code else kernels.startswith("none: there was no")


@pytest.mark.once
def test_a_failed_timing_is_reported_after_the_other_results(
    graphopt_command: Command, tmp_path: Path, check: Callable[[Any], None]
) -> None:
    """The result of `--verify` is not lost when `--bench` gets a size that the model refuses."""
    path, out, report = tmp_path / "in.onnx", tmp_path / "out.onnx", tmp_path / "report.json"
    text = "g (float[N, H] x) => (float[N, 1] y) { z = Add(x, k) t = Identity(z) y = MatMul(t, w) }"
    onnx.save(model_from_text(text, {"k": np.ones((1, 32), np.float32), "w": np.ones((32, 1), np.float32)}), path)
    options = ("--target", "cpu", "--verify", "--bench", "--dim", "H=7", "--threads", "1", "--json", report)
    shown = graphopt_command("optimize", path, out, *options)
    assert shown.exit_code == 2 and len(shown.stderr.splitlines()) == 1
    assert shown.stderr.startswith(f"graphopt: {path}: ") and "H=7" in shown.stderr and "(--dim, " in shown.stderr
    assert shown.stdout.startswith("equal (")
    whole = strict(report.read_text())
    check(whole)
    assert whole["verify"]["verdict"] == "equal" and whole["bench"] is None


@pytest.mark.once
def test_the_schema_rejects_wrong_reports(check: Callable[[Any], None]) -> None:
    from jsonschema import ValidationError

    for wrong in ({"schema": 1, "command": "diff"}, {"schema": 1, "command": "doctor", "graphopt": 0}):
        with pytest.raises(ValidationError):
            check(wrong)


@pytest.mark.once
def test_numbers_that_are_not_finite() -> None:
    text = dumps({"a": math.inf, "b": [-math.inf, (math.nan,)], "c": {"d": 1.5}})
    assert strict(text) == {"a": "inf", "b": ["-inf", ["nan"]], "c": {"d": 1.5}}


@pytest.mark.once
def test_json_to_stdout(graphopt_command: Command, tmp_path: Path) -> None:
    path = tmp_path / "in.onnx"
    onnx.save(ZOO["resnet18"](small=True), path)
    done = graphopt_command("optimize", path, "--dry-run", "--target", "cpu", "--json", "-")
    assert strict(done.stdout)["command"] == "optimize"
    assert "30 -> " in done.stderr
    both = graphopt_command("optimize", path, "-", "--target", "cpu", "--json", "-")
    assert both.exit_code == 5 and "only one of OUT, --json and --report" in both.stderr
